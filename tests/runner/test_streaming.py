"""Tools that yield: parts as events, the last as the result, closed whatever becomes of the call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol, TypedDict

import pytest
from rows import each_row

from toolcrib import (
    ALL,
    Agent,
    CallContext,
    Catalog,
    Completed,
    ErrorCode,
    Failed,
    ToolCall,
    ToolCallFinished,
    ToolCallProgress,
    ToolError,
    ToolRunner,
    capability,
    per_call,
    tool,
)
from toolcrib.runner import CallScope
from toolcrib.testing import MemorySink, ScriptedClient, call
from toolcrib.values.context import RunTally
from toolcrib.values.json import JsonValue
from toolcrib.values.record import Outcome

CANARY = "canary-51de"


class Found(TypedDict):
    name: str
    price: int


@capability
class Shop(Protocol):
    def name(self) -> str: ...


class Watch:
    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.told = asyncio.Event()

    def approval_requested(self, _request: object) -> None: ...

    def progress(self, call_id: str, part: JsonValue) -> None:
        assert call_id == "call_0"
        self.parts.append(part)
        self.told.set()

    def finished(self, _outcome: Outcome) -> None: ...


@tool(visible=["name"], name="t")
async def finds(count: int) -> AsyncIterator[Found]:
    """Find things, one after the other."""
    for number in range(count):
        yield Found(name=f"n{number}", price=number)
        await asyncio.sleep(0)


@tool(visible=["name"], name="t")
class Finds:
    """Find things, as a class."""

    def __init__(self, count: int) -> None:
        self.count = count

    async def run(self) -> AsyncIterator[Found]:
        for number in range(self.count):
            yield Found(name=f"n{number}", price=number)


@tool(visible=["name"], name="t")
async def finds_in(count: int, shop: Shop) -> AsyncIterator[Found]:
    """Find things with something injected."""
    for number in range(count):
        yield Found(name=f"n{number}", price=number + len(shop.name()))


class Here:
    def name(self) -> str:
        return ""


async def run(
    subject: Any, arguments: str = "{}", watch: Watch | None = None, **options: Any
) -> Outcome:
    sink = MemorySink()
    runner = ToolRunner(subject, sinks=[sink], **options)
    outcome = await runner.exec(
        ToolCall("call_0", "t", arguments), scope=CallScope(RunTally(), observer=watch)
    )
    assert [r for r in sink.records if r.status != "started"] == [outcome.record]
    assert CANARY not in f"{sink.records}{'' if watch is None else watch.parts}"
    return outcome


@pytest.mark.parametrize(
    "subject",
    [
        [finds],
        [Finds],
        Catalog([finds_in]).bind({Shop: Here()}),
        Catalog([finds_in]).bind({Shop: per_call(Here)}),
    ],
    ids=["function", "class", "bound", "per_call"],
)
async def test_parts_are_told_as_they_may_show_and_the_last_is_the_result(subject: Any) -> None:
    watch = Watch()
    outcome = await run(subject, '{"count": 3}', watch)
    assert isinstance(outcome, Completed)
    assert watch.parts == [{"name": "n0"}, {"name": "n1"}, {"name": "n2"}]
    assert outcome.value == outcome.model == {"name": "n2", "price": 2}
    assert outcome.public == outcome.record.result == {"name": "n2"}


@pytest.mark.parametrize("subject", [finds, Finds])
def test_what_is_known_of_it_beforehand(subject: Any) -> None:
    definition = subject.get_definition()
    assert definition.annotations.features == ("streaming",)
    assert set(definition.output_schema["properties"]) == {"name", "price"}


async def test_without_anybody_who_watches() -> None:
    outcome = await run([finds], '{"count": 2}')
    assert isinstance(outcome, Completed)
    assert outcome.public == {"name": "n1"}


async def nothing() -> AsyncIterator[int | None]:
    if CANARY == "":
        yield 1


async def no_number() -> AsyncIterator[int]:
    if CANARY == "":
        yield 1


async def ends_wrong() -> AsyncIterator[int]:
    yield 1
    yield "2"  # type: ignore[misc]


async def no_json() -> AsyncIterator[Any]:
    yield 1
    yield object()
    yield 3


async def too_large() -> AsyncIterator[Any]:
    yield "x" * 5_000_000
    yield 3


async def fails() -> AsyncIterator[int]:
    yield 1
    raise ValueError(CANARY)


async def tells() -> AsyncIterator[int]:
    yield 1
    raise ToolError("closed for today")


async def exits() -> AsyncIterator[int]:
    yield 1
    raise GeneratorExit


async def exits_at_once() -> AsyncIterator[int]:
    raise GeneratorExit
    yield 1


async def stops() -> AsyncIterator[int]:
    yield 1
    raise StopAsyncIteration(CANARY)


async def cancels_itself() -> AsyncIterator[int]:
    yield 1
    raise asyncio.CancelledError


async def clings() -> AsyncIterator[Any]:
    try:
        yield 1
        yield object()
    except GeneratorExit:
        yield 2


async def fails_in_closing() -> AsyncIterator[Any]:
    try:
        yield 1
        yield object()
    finally:
        raise ValueError(CANARY)


@each_row("watched", [True, False])
@each_row(
    ("function", "ending", "parts"),
    [
        (nothing, None, []),
        (no_number, ErrorCode.INVALID_OUTPUT, []),
        (ends_wrong, ErrorCode.INVALID_OUTPUT, [1, "2"]),
        (no_json, ErrorCode.INVALID_OUTPUT, [1]),
        (too_large, ErrorCode.INVALID_OUTPUT, []),
        (fails, ErrorCode.TOOL_ERROR, [1]),
        (tells, ErrorCode.TOOL_ERROR, [1]),
        (exits, ErrorCode.TOOL_ERROR, [1]),
        (exits_at_once, ErrorCode.TOOL_ERROR, []),
        (stops, ErrorCode.TOOL_ERROR, [1]),
        (cancels_itself, ErrorCode.TOOL_ERROR, [1]),
        (clings, ErrorCode.INVALID_OUTPUT, [1]),
        (fails_in_closing, ErrorCode.INVALID_OUTPUT, [1]),
    ],
)
async def test_how_it_may_end(
    function: Any, ending: ErrorCode | None, parts: list[Any], watched: bool
) -> None:
    watch = Watch()
    outcome = await run(
        [tool(visible=ALL, description="It runs.", name="t")(function)],
        watch=watch if watched else None,
    )
    assert (outcome.error.code if isinstance(outcome, Failed) else None) == ending
    assert watch.parts == (parts if watched else [])


async def test_the_limit_for_a_part_can_be_set() -> None:
    async def yields() -> AsyncIterator[str]:
        """Yields."""
        yield "1234567"
        yield "12345678"

    watch = Watch()
    runner = ToolRunner([tool(visible=ALL, name="t")(yields)], max_result_bytes=9)
    outcome = await runner.exec(
        ToolCall("call_0", "t", "{}"), scope=CallScope(RunTally(), observer=watch)
    )
    assert isinstance(outcome, Failed)
    assert outcome.error.message.endswith("it is larger than 9 bytes.")
    assert watch.parts == ["1234567"]


def endless(closed: list[str], *, waits: bool) -> Any:
    @tool(visible=ALL, name="t")
    async def yields() -> AsyncIterator[int]:
        """Go on for ever, and clean up."""
        try:
            while True:
                yield 1
                if waits:
                    await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            closed.append("closed")

    return yields


@pytest.mark.parametrize("waits", [True, False])
async def test_a_time_limit_closes_it(waits: bool) -> None:
    closed: list[str] = []
    outcome = await run([endless(closed, waits=waits)], timeout=0.01)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.TIMEOUT
    assert closed == ["closed"]


@pytest.mark.parametrize("waits", [True, False])
async def test_a_cancellation_closes_it(waits: bool) -> None:
    closed: list[str] = []
    watch = Watch()
    task = asyncio.ensure_future(run([endless(closed, waits=waits)], watch=watch))
    await watch.told.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == ["closed"]


async def test_a_tool_that_clings_when_its_time_is_up_has_timed_out() -> None:
    @tool(visible=ALL, name="t")
    async def yields() -> AsyncIterator[int]:
        """Yield once more instead of ending."""
        try:
            while True:
                yield 1
        except GeneratorExit:
            yield 2

    outcome = await run([yields], timeout=0.01)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.TIMEOUT


async def test_what_it_was_given_is_closed_after_it() -> None:
    log: list[str] = []

    class Opened(Here):
        async def __aenter__(self) -> Here:
            log.append("in")
            return self

        async def __aexit__(self, *_details: object) -> None:
            log.append("out")

    @tool(visible=ALL, name="t")
    async def yields(shop: Shop) -> AsyncIterator[int]:
        """Yield, and fail at the end."""
        try:
            yield 1
            log.append("used")
            yield object()  # type: ignore[misc]
        finally:
            await asyncio.sleep(0)
            log.append("closed")

    outcome = await run(Catalog([yields]).bind({Shop: per_call(Opened)}))
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_OUTPUT
    assert log == ["in", "used", "closed", "out"]


async def test_an_author_may_tell_more_than_the_parts() -> None:
    @tool(visible=[], name="t")
    async def yields(ctx: CallContext) -> AsyncIterator[dict[str, int]]:
        """Yield what does not show, and tell what does."""
        ctx.progress("half")
        yield {"secret": 1}

    watch = Watch()
    await run([yields], watch=watch)
    assert watch.parts == ["half", {}]


def around() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@each_row("part", [object(), float("nan"), around(), {"a": CANARY * 400_000}])
@each_row("watched", [True, False])
@each_row("blocking", [True, False])
async def test_what_an_author_tells_is_json(part: Any, watched: bool, blocking: bool) -> None:
    if blocking:

        @tool(visible=ALL, name="t")
        def tells(ctx: CallContext) -> int:
            """Tell."""
            ctx.progress(part)
            return 1

        subject: Any = tells
    else:

        @tool(visible=ALL, name="t")
        async def tells_later(ctx: CallContext) -> int:
            """Tell."""
            ctx.progress(part)
            return 1

        subject = tells_later

    watch = Watch()
    outcome = await run([subject], watch=watch if watched else None)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_OUTPUT
    assert watch.parts == []


async def test_what_was_told_is_as_it_was_then() -> None:
    @tool(visible=ALL, name="t")
    async def tells(ctx: CallContext) -> int:
        """Tell, and go on changing it."""
        numbers: list[JsonValue] = [1]
        ctx.progress({"n": numbers})
        numbers.append(2)
        return 1

    watch = Watch()
    await run([tells], watch=watch)
    assert watch.parts == [{"n": [1]}]


async def test_parts_are_events_of_a_run() -> None:
    model = ScriptedClient([[call("t", count=2)], "done"])
    agent = Agent(model, [finds])
    events = [event async for event in agent.stream("find two")]
    told = [e for e in events if isinstance(e, ToolCallProgress | ToolCallFinished)]
    assert [getattr(e, "part", None) for e in told] == [{"name": "n0"}, {"name": "n1"}, None]
    finished = told[-1]
    assert isinstance(finished, ToolCallFinished)
    assert finished.record.result == {"name": "n1"}


async def test_called_directly_it_is_the_generator_it_was() -> None:
    assert [part["price"] async for part in finds(3)] == [0, 1, 2]


async def test_a_bound_call_runs_to_its_last_part() -> None:
    assert await finds.make({"count": 2}).instance.run() == {"name": "n1", "price": 1}
