"""Whatever tools do, and whoever is cancelled: each call has one end, and nothing stays taken.

Seeded crowds of calls: tools that sleep, block, raise, swallow their cancellation or cancel themselves,
call each other, run alone, are asked about, give parts. A quarter of the callers are cancelled.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from samples import sample

from toolcrib import ALL, Approve, CallContext, ErrorCode, Refuse, ToolCall, ToolRunner, tool
from toolcrib.errors import SourceError
from toolcrib.runner.running import CALLING
from toolcrib.testing import MemorySink

CROWDS = 48
WAYS = (
    *("sleep", "swallow", "stubborn", "raise", "cancels itself", "cancels its task", "group"),
    *("own limit", "calls", "leaves a task", "no JSON", "blocks", "returns"),
)
TOOLS = ("act", "act", "act", "act", "alone", "plain", "asks", "parts")


async def behave(  # noqa: C901, PLR0912  a list of ways
    way: str, seconds: float, runner: ToolRunner
) -> object:
    match way:
        case "sleep":
            await asyncio.sleep(seconds)
        case "swallow" | "stubborn":
            for _ in range(1 if way == "swallow" else 4):
                try:
                    await asyncio.sleep(0.06)
                except asyncio.CancelledError:
                    continue
        case "raise":
            await asyncio.sleep(seconds / 4)
            raise ValueError(way)
        case "cancels itself":
            raise asyncio.CancelledError
        case "cancels its task":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        case "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(seconds))
                group.create_task(asyncio.sleep(seconds / 2))
        case "own limit":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(seconds / 4):
                    await asyncio.sleep(1)
        case "calls":
            inner = json.dumps({"way": "sleep", "seconds": seconds / 2})
            await runner.exec(ToolCall("inner", "act", inner))
        case "leaves a task":
            asyncio.ensure_future(asyncio.sleep(0.001))  # noqa: RUF006  that is its way
        case "no JSON":
            return object()
        case "blocks":
            time.sleep(0.002)  # noqa: ASYNC251  that is its way
    return way


def crowd(chance: random.Random, sink: MemorySink) -> ToolRunner:
    """The runner of one crowd, which its tools know."""

    @tool(visible=ALL, timeout=0.05)
    async def act(way: str, seconds: float) -> Any:
        """Behave in that way."""
        return await behave(way, seconds, runner)

    @tool(visible=ALL, timeout=0.05, exclusive=True)
    async def alone(way: str, seconds: float) -> str:
        """Sleep, with nobody else about."""
        await asyncio.sleep(seconds / 3)
        return way

    @tool(visible=ALL, timeout=0.05)
    def plain(way: str, seconds: float) -> str:
        """Block a thread, or fail in it."""
        time.sleep(seconds if way == "sleep" else 0)
        if way == "raise":
            raise ValueError(way)
        return way

    @tool(visible=ALL, safe=False)
    async def asks(way: str, seconds: float) -> str:
        """Do what somebody has to be asked about."""
        return way

    @tool(visible=ALL, timeout=0.05)
    async def parts(way: str, seconds: float, ctx: CallContext) -> AsyncIterator[int]:
        """Give parts."""
        for part in range(3):
            ctx.progress(part)
            yield part
            await asyncio.sleep(seconds / 5)

    async def approver(_request: object) -> Approve | Refuse | None:
        await asyncio.sleep(chance.random() * 0.02)
        if chance.random() < 0.2:
            raise chance.choice((ValueError, SourceError, SystemExit, asyncio.CancelledError))
        return chance.choice((Approve(by="ada"), Refuse(by="ada"), None))

    runner = ToolRunner(
        [act, alone, plain, asks, parts],
        approver=approver,
        sinks=[sink],
        concurrency=chance.choice((1, 2, 5, 32)),
        remember=chance.choice((0, 5, 1_000)),
    )
    return runner


@pytest.mark.parametrize("seed", range(sample(CROWDS, part=12)))
async def test_each_call_has_one_end_and_nothing_stays_taken(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.runner.execute.GRACE", 0.02)
    chance, sink = random.Random(seed), MemorySink()  # noqa: S311  seeded, to be repeated
    runner = crowd(chance, sink)
    made, asked_to_stop = list[str](), set[str]()
    for _ in range(6):
        calls = []
        for _ in range(chance.randrange(1, 25)):
            made.append(f"c{len(made)}")
            asked = {"way": chance.choice(WAYS), "seconds": chance.random() * 0.08}
            call = ToolCall(made[-1], chance.choice(TOOLS), json.dumps(asked))
            calls.append(asyncio.create_task(runner.exec(call), name=call.id))
            if asked["way"] == "cancels its task":
                asked_to_stop.add(call.id)
        for task in calls:
            if chance.random() < 0.25:
                await asyncio.sleep(chance.random() * 0.005)
                task.cancel()
                asked_to_stop.add(task.get_name())
        ended, unended = await asyncio.wait(calls, timeout=30)
        assert not unended
        assert all(task.cancelled() or task.exception() is None for task in ended)
    deadline = time.monotonic() + 30
    while runner.left_behind and time.monotonic() < deadline:  # noqa: ASYNC110  threads, too
        await asyncio.sleep(0.01)
    assert runner.left_behind == 0
    assert CALLING.get() is None
    ends = Counter(record.id for record in sink.records)
    assert {call_id: ends[call_id] for call_id in made} == dict.fromkeys(made, 1)
    cancelled = {r.id for r in sink.records if r.error and r.error.code is ErrorCode.CANCELLED}
    assert cancelled <= asked_to_stop | {"inner"}
    again = [ToolCall(f"again {n}", "alone", '{"way":"","seconds":0}') for n in range(2)]
    after = await asyncio.wait_for(runner.exec_all(again), 30)  # no slot is taken any more
    assert [outcome.record.status for outcome in after] == ["completed", "completed"]
