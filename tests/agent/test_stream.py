"""Streams that are used in unusual ways, and runs that end in unusual ways."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from toolcrib import (
    ALL,
    Agent,
    Approve,
    CallContext,
    Done,
    Limits,
    Message,
    PickOptions,
    Reply,
    RunResult,
    RunState,
    RunStream,
    Session,
    ToolCall,
    ToolRunner,
    tool,
)
from toolcrib.errors import ErrorCode, PickError, SourceError, ToolcribError
from toolcrib.testing import MemorySink, ScriptedClient, call
from toolcrib.testing.scripted import raw_call
from toolcrib.values.decision import ApprovalRequest
from toolcrib.values.message import ProviderState
from toolcrib.values.run import ToolCallFinished, ToolCallStarted


@tool(visible=ALL)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(visible=ALL)
async def stubborn(ctx: CallContext) -> int:
    """Do not be stopped."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        ctx.progress("not me")
    return 1


@tool(visible=ALL, safe=False)
async def risky() -> int:
    """Do something risky."""
    return 1


async def nobody(_request: ApprovalRequest) -> None:
    """Answers later."""


async def test_a_stream_that_is_left_at_once_was_cancelled() -> None:
    stream = Agent(ScriptedClient([call("stubborn")]), [stubborn]).stream("go")
    async with stream:
        pass
    assert (await stream.result()).status == "cancelled"


async def test_whoever_is_cancelled_while_leaving_has_stopped_the_run() -> None:
    stream = Agent(ScriptedClient([call("stubborn")]), [stubborn]).stream("go")

    async def leave() -> None:
        async with stream:
            pass

    leaving = asyncio.create_task(leave())
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert (await asyncio.wait_for(stream.result(), 5)).status == "cancelled"


async def test_whoever_is_cancelled_as_the_run_is_has_no_result() -> None:
    begun, stopped, ends = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool(visible=ALL)
    async def lingers() -> None:
        """Take some time to stop."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
            await ends.wait()

    stream = Agent(ScriptedClient([call("lingers")]), [lingers]).stream("go")
    await begun.wait()

    async def stop() -> None:
        await stream.cancel()
        reading.cancel()  # in the moment in which it would have the result

    stopping = asyncio.create_task(stop())
    await stopped.wait()
    reading = asyncio.create_task(stream.result())
    await asyncio.sleep(0)
    ends.set()
    await stopping
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_whoever_begins_to_read_after_the_end_is_told() -> None:
    stream = Agent(ScriptedClient(["Hello."]), []).stream("Hi.")
    assert [event async for event in stream]
    with pytest.raises(ToolcribError, match="have been read"):
        [event async for event in stream]
    with pytest.raises(ToolcribError, match=r"stream\.result"):
        [text async for text in stream.text()]
    assert (await stream.result()).text == "Hello."


async def test_two_readers_share_the_events_and_both_come_to_an_end() -> None:
    stream = Agent(ScriptedClient(["hello there"])).stream("go")

    async def read() -> list[Any]:
        return [event async for event in stream]

    first, second = await asyncio.wait_for(asyncio.gather(read(), read()), 5)
    assert sum(isinstance(event, Done) for event in first + second) == 1
    with pytest.raises(ToolcribError, match="have been read"):
        await read()


async def test_leaving_stops_a_run_whose_tool_does_not_stop() -> None:
    client = ScriptedClient([call("stubborn"), "never asked"])
    stream = Agent(client, [stubborn]).stream("go")
    async with stream:
        async for event in stream:
            if isinstance(event, ToolCallStarted):
                break
    result = await stream.result()
    assert (result.status, client.remaining) == ("cancelled", 1)
    assert result.messages[-1].content == "1"  # what it did is told all the same


async def test_a_limit_on_time_stops_a_run_whose_tool_does_not_stop() -> None:
    client = ScriptedClient([call("stubborn"), "never asked"])
    result = await Agent(client, [stubborn], limits=Limits(seconds=0.05)).run("go")
    assert (result.status, result.limit, client.remaining) == ("limited", "seconds", 1)


@pytest.mark.parametrize("seconds", [0, -1])
async def test_no_time_is_a_limit_though_nothing_waits(seconds: float) -> None:
    result = await Agent(ScriptedClient(["never"]), limits=Limits(seconds=seconds)).run("go")
    assert (result.status, result.limit) == ("limited", "seconds")


async def test_picking_that_fails_is_told_like_every_failure() -> None:
    def scorer(_input: object, _tool: object) -> float:
        raise ValueError

    agent = Agent(ScriptedClient(["x"]), [add], pick=PickOptions(scorer=scorer))
    stream = agent.stream("go")
    assert [type(event).__name__ async for event in stream] == ["RunStarted", "RunError", "Done"]
    with pytest.raises(PickError):
        await stream.result()


@pytest.mark.parametrize("asks", [False, True])
async def test_a_failure_that_nobody_asked_for_is_logged_as_its_stream_is_left(
    asks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with Agent(ScriptedClient([])).stream("go") as stream:
        async for _event in stream:
            pass
        if asks:
            with pytest.raises(ToolcribError):
                await stream.result()
    logged = [record.getMessage() for record in caplog.records if record.name == "toolcrib.agent"]
    assert [line.partition(":")[0] for line in logged] == [
        "a run failed, and nobody asked for its result"
    ] * (not asks)


async def test_ids_that_a_client_repeats_are_told_apart() -> None:
    twice = (ToolCall("c", "add", '{"a":1,"b":2}'), ToolCall("c", "add", '{"a":5,"b":5}'))
    turns = [Reply(Message.assistant("", calls), "tool_calls") for calls in (twice, twice[:1])]
    result = await Agent(ScriptedClient([*turns, "done"]), [add]).run("go")
    assert [m.content for m in result.messages if m.role == "tool"] == ["3", "10", "3"]
    ids = [c.id for m in result.messages for c in m.tool_calls]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", ["nowhere", "a\ud800", "b" * 100])
async def test_what_was_malformed_for_an_unknown_tool_is_not_kept(name: str) -> None:
    agent = Agent(ScriptedClient([raw_call(name, "canary{\ud800"), "done"]), [add])
    stream = agent.stream("prompt \udcff")
    events = [event async for event in stream]
    result = await stream.result()
    assert result.messages[1].tool_calls[0].arguments == "{}"
    assert RunState.from_json(result.state.to_json()).messages == result.messages
    started = next(event for event in events if isinstance(event, ToolCallStarted))
    assert started.name == ("nowhere" if name == "nowhere" else "*")


async def test_resuming_twice_starts_from_the_same_state() -> None:
    runner = ToolRunner([add, risky], approver=nobody)
    agent = Agent(ScriptedClient([[call("add", a=1, b=1), call("risky")], "a", "b"]), runner)
    waiting = await agent.run("go")
    answers = {waiting.pending[0].id: Approve("grace")}
    for _ in range(2):
        result = await agent.resume(waiting.state, answers)
        assert result.state.tally.per_tool == {"add": 1, "risky": 1}


async def test_an_answer_to_a_request_that_has_lapsed_is_too_late() -> None:
    agent = Agent(ScriptedClient([call("risky"), "done"]), ToolRunner([risky], approver=nobody))
    waiting = await agent.run("go")
    lapsed = msgspec.structs.replace(waiting.pending[0], expires_at=1.0)
    state = msgspec.structs.replace(waiting.state, pending=(lapsed,))
    result = await agent.resume(RunState.from_json(state.to_json()), {lapsed.id: Approve("grace")})
    error = result.records[-1].error
    assert error is not None
    assert error.code is ErrorCode.APPROVAL_EXPIRED


async def test_a_state_without_messages_ends_like_any_other() -> None:
    state = RunState.from_json(
        '{"run_id": "r", "turn": 0, "messages": [], "tally": {"run_id": "r"}}'
    )
    result = await Agent(ScriptedClient([]), limits=Limits(turns=0)).resume(state)
    assert (result.status, result.text) == ("limited", "")


DEEP = "[" * 100_000


def test_what_is_nested_without_end_is_refused() -> None:
    with pytest.raises(SourceError):
        RunState.from_json(f'{{"provider_state": {DEEP}')
    with pytest.raises(SourceError):
        Session.from_json(Agent(ScriptedClient([])), f'[{{"provider_state": {DEEP}')


async def test_whoever_reads_an_event_may_change_it_and_changes_no_call() -> None:
    ran: list[Any] = []

    @tool(visible=ALL, requires_approval=True)
    async def pay(to: str, items: list[str]) -> None:
        """Pay for items."""
        ran.append((to, items))

    async def later(request: ApprovalRequest) -> Approve:
        await asyncio.sleep(0)
        return Approve("grace")

    client = ScriptedClient([call("pay", to="ada", items=["a"]), "done"])
    stream = Agent(client, ToolRunner([pay], approver=later)).stream("go")
    async for event in stream:
        if isinstance(event, ToolCallFinished):
            assert event.record.arguments is not None
            event.record.arguments["to"] = "eve"
        if isinstance(event, ToolCallStarted):
            assert event.arguments is not None
            items = event.arguments["items"]
            assert isinstance(items, list)
            items.append("b")
            event.arguments["to"] = "eve"
    assert ran == [("ada", ["a"])]
    (record,) = (await stream.result()).records
    assert record.arguments == {"items": ["a"], "to": "ada"}


SCRIBBLE = "scribbled"


def scribble(value: Any) -> int:
    """Change everything that can be changed in a value; how much that was."""
    if isinstance(value, dict):
        changed = sum(map(scribble, list(value.values())))
        value[SCRIBBLE] = SCRIBBLE
        return changed + 1
    if isinstance(value, list):
        changed = sum(map(scribble, value))
        value.append(SCRIBBLE)
        return changed + 1
    if isinstance(value, tuple):
        return sum(map(scribble, value))
    if isinstance(value, msgspec.Struct):
        changed = sum(scribble(getattr(value, name)) for name in value.__struct_fields__)
        if not value.__struct_config__.frozen:
            value.run_id = SCRIBBLE  # type: ignore[attr-defined]
        return changed
    return 0


@tool(visible=ALL)
async def counts(items: list[str], ctx: CallContext) -> dict[str, list[str]]:
    """Count, and tell how far it is."""
    ctx.progress({"seen": [*items]})
    return {"items": items}


@tool(visible=ALL, requires_approval=True)
async def risky_with(items: list[str]) -> list[str]:
    """Do something risky."""
    return items


async def test_no_reader_of_any_event_changes_what_others_have() -> None:
    """The run goes on, waits, is resumed; whatever its events hold is scribbled over as it comes."""
    state = ProviderState("scripted", {"blocks": [1]})
    calls = (
        ToolCall("1", "counts", '{"items": ["a"]}'),
        ToolCall("2", "counts", '{"items": 3}'),
        ToolCall("3", "risky_with", '{"items": ["b"]}'),
    )
    said = Message("assistant", "", calls, provider_state=state)
    client = ScriptedClient([Reply(said, "tool_calls"), "done"])
    sink = MemorySink()
    runner = ToolRunner([counts, risky_with], approver=nobody, sinks=[sink])
    agent = Agent(client, runner, pick=PickOptions(max_candidates=3))
    session = agent.session()
    seen: dict[str, int] = {}

    async def read(stream: RunStream) -> RunResult:
        async for event in stream:
            name = type(event).__name__
            seen[name] = seen.get(name, 0) + scribble(event)
        return await stream.result()

    waiting = await read(session.stream("count, and do something risky"))
    request = waiting.pending[0]
    answered = {request.id: Approve("ada", {"items": ["c"]})}
    result = await read(agent.resume_stream(waiting.state, answered))
    assert result.status == "completed"
    held = [waiting, result, sink.records, session.messages, [r.messages for r in client.requests]]
    assert SCRIBBLE not in msgspec.json.encode(held).decode()
    changed = ("ApprovalRequested", "Done", "ToolCallProgress")
    assert all(seen[name] for name in (*changed, "ToolCallStarted"))
    assert {"RunStarted", "ToolsOffered", "UsageReported", "TextDelta"} <= seen.keys()
