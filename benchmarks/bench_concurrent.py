"""F: 1,000 concurrent calls of a tool that waits 10 ms, against the same coroutines without a runner.

CPU milliseconds for all of them; the minimum of the rounds, interleaved. Each call has a time limit of
its own, which the floor has not: the second line shows what it costs. The last line is a runner as it
is by default, which runs 32 calls at once.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

from toolcrib import ALL, Completed, ToolCall, ToolRunner, tool
from toolcrib.testing import MemorySink

COUNT = 1_000
ROUNDS = 7
REACH = {"with a time limit": 40, "without": 40, "by default": 60}


@tool(visible=ALL)
async def wait(n: int) -> dict[str, int]:
    """Wait for ten milliseconds."""
    await asyncio.sleep(0.01)
    return {"n": n}


async def _floor() -> None:
    await asyncio.gather(*(wait.__wrapped__(n=n) for n in range(COUNT)))


def _pipeline(**options: Any) -> Callable[[], Awaitable[None]]:
    sink, ids = MemorySink(), itertools.count()
    runner = ToolRunner([wait], sinks=[sink], **options)

    async def whole() -> None:
        sink.records.clear()
        calls = [ToolCall(f"call_{next(ids)}", "wait", f'{{"n": {n}}}') for n in range(COUNT)]
        outcomes = await runner.exec_all(calls)
        assert all(isinstance(outcome, Completed) for outcome in outcomes)

    return whole


async def _measure(work: Callable[[], Awaitable[None]]) -> float:
    started = time.process_time()
    await work()
    return (time.process_time() - started) * 1e3


async def main() -> None:
    cases = {
        "with a time limit": _pipeline(concurrency=COUNT, timeout=60.0),
        "without": _pipeline(concurrency=COUNT, timeout=None),
        "by default": _pipeline(),
    }
    print(f"{'1,000 calls':<20}{'floor ms':>10}{'toolcrib ms':>13}{'ratio':>8}{'reach ms':>10}")
    for name, pipeline in cases.items():
        pairs = [(await _measure(_floor), await _measure(pipeline)) for _ in range(ROUNDS)]
        floor, ours = min(p[0] for p in pairs), min(p[1] for p in pairs)
        print(f"{name:<20}{floor:>10.1f}{ours:>13.1f}{ours / floor:>8.1f}{REACH[name]:>10}")


if __name__ == "__main__":
    asyncio.run(main())
