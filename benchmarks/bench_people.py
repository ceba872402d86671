"""One call as people write it: typed arguments, a policy, redaction, a plain function.

    python benchmarks/bench_people.py [--only TEXT] [--before SRC] [--peers FILE] [--json FILE]

CPU microseconds a call, the median of the rounds. `with a policy and redaction` has three policies,
hides an argument from all but the tool, and shows two fields of the result. The floor parses and judges
the arguments, runs the function, and judges and writes its result, by orjson and jsonschema-rs or,
where there are models, by pydantic. The runner has made 1,100 calls before: it remembers all it will.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import contest
import jsonschema_rs
import orjson
import workload
from contest import Case, Make, Round, repeated
from pydantic import TypeAdapter, create_model

from toolcrib import (
    ALL,
    Allow,
    Completed,
    Deny,
    Hydrated,
    Policy,
    PolicyContext,
    ToolCall,
    ToolRunner,
    tool,
)
from toolcrib.policies import budget, deny_by_default
from toolcrib.testing import MemorySink

COUNTS = {"small": 2000, "medium": 600, "large": 30}
GOALS = {"small": "12", "medium": "28", "large": "290"}
PEERS = Path(__file__).parent / "peers" / "calls.py"
Function = Callable[..., Any]


def not_too_many(call: Hydrated, _context: PolicyContext) -> Allow | Deny:
    limit = call.arguments.get("limit", 0)
    return Deny("too many") if isinstance(limit, int) and limit > 1000 else Allow()


def _runner(function: Function, sink: MemorySink, *, careful: bool) -> ToolRunner:
    if not careful:
        return ToolRunner([tool(visible=ALL)(function)], sinks=[sink])
    small = function is not workload.order
    shown = ["found"] if small else ["title", "lines[].sku"]
    hidden = ["query"] if small else ["title"]
    made = tool(visible=shown, secret=hidden)(function)
    policy: list[Policy] = [
        deny_by_default(allow=[function.__name__]),
        not_too_many,
        budget(calls=10**9),
    ]
    return ToolRunner([made], policy=policy, sinks=[sink])


def ours(function: Function, size: str, *, careful: bool = False) -> Make:
    async def make(_closing: AsyncExitStack) -> Round:
        sink = MemorySink()
        runner = _runner(function, sink, careful=careful)
        text, ids = workload.arguments(size), itertools.count()

        async def once() -> None:
            sink.records.clear()
            outcome = await runner.exec(ToolCall(f"call_{next(ids)}", function.__name__, text))
            assert isinstance(outcome, Completed), outcome

        for _ in range(1100):
            await once()
        return repeated(once, COUNTS[size])

    return make


def pauses(size: str) -> Make:
    """Return the longest stop for the garbage collector in a round, in milliseconds."""

    async def make(closing: AsyncExitStack) -> Round:
        work = await ours(workload.order, size)(closing)
        began, longest = 0.0, 0.0

        def note(phase: str, _info: dict[str, int]) -> None:
            nonlocal began, longest
            now = time.thread_time()
            if phase == "start":
                began = now
            else:
                longest = max(longest, now - began)

        gc.callbacks.append(note)

        async def once() -> float:
            nonlocal longest
            longest = 0.0
            for _ in range(10):
                await work()
            return longest * 1e3

        return once

    return make


def floor(function: Function, size: str) -> Make:
    async def make(_closing: AsyncExitStack) -> Round:
        text = workload.arguments(size)
        once = _by_pydantic(text) if function is workload.order else _by_schema(function, text)
        return repeated(once, COUNTS[size])

    return make


def _by_schema(function: Function, text: str) -> Callable[[], Awaitable[object]]:
    definition = tool(visible=ALL)(function).definition
    given = jsonschema_rs.Draft202012Validator(definition.input_schema or {})
    found = jsonschema_rs.Draft202012Validator(definition.output_schema or {})
    waits = asyncio.iscoroutinefunction(function)

    async def once() -> object:
        arguments = orjson.loads(text)
        assert given.is_valid(arguments)
        value = await function(**arguments) if waits else function(**arguments)
        assert found.is_valid(value)
        return orjson.dumps(value)

    return once


def _by_pydantic(text: str) -> Callable[[], Awaitable[object]]:
    fields: dict[str, Any] = {
        "title": (str, ...),
        "items": (list[workload.Item], ...),
        "options": (workload.Options, ...),
    }
    given = TypeAdapter(create_model("Arguments", **fields))
    found = TypeAdapter(workload.Invoice)

    async def once() -> object:
        arguments: Any = given.validate_json(text, strict=True)
        value = await workload.order(arguments.title, arguments.items, arguments.options)
        return found.dump_json(found.validate_python(value))

    return once


def cases() -> list[Case]:
    found = []
    for size in workload.SIZES:
        function = workload.look_up if size == "small" else workload.order
        for careful in (False, True):
            name = f"{size} call" + (", with a policy and redaction" if careful else "")
            contenders = {
                contest.FLOOR: floor(function, size),
                contest.OURS: ours(function, size, careful=careful),
            }
            peers = None if careful else PEERS
            found.append(Case(name, "µs CPU", contenders, GOALS[size], peers=peers))
    plain = workload.look_up_plainly
    contenders = {contest.FLOOR: floor(plain, "small"), contest.OURS: ours(plain, "small")}
    found.append(Case("plain def function", "µs CPU", contenders, "40", peers=PEERS))
    longest = {contest.OURS: pauses("large")}
    found.append(Case("large call, longest collection", "ms CPU", longest, "10", rounds=3))
    return found


if __name__ == "__main__":
    contest.main(cases(), __doc__ or "")
