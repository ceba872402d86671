"""What a stream tells of a run, for whoever shows it elsewhere: a page, another terminal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolcrib import (
    ALL,
    Agent,
    Approve,
    Done,
    Event,
    Message,
    Reply,
    RunResult,
    ToolCall,
    ToolRunner,
    tool,
)
from toolcrib.errors import ProviderError
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.decision import ApprovalRequest
from toolcrib.values.message import (
    ArgumentsPart,
    ChatRequest,
    ReasoningPart,
    StreamPart,
    TextPart,
    Usage,
)
from toolcrib.values.run import (
    ApprovalRequested,
    ReasoningDelta,
    ReplyFinished,
    RunStarted,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallStarted,
    ToolsOffered,
)


@tool(visible=ALL)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(visible=ALL, safe=False)
async def risky(path: str) -> int:
    """Do something risky."""
    return len(path)


@tool(visible=ALL)
async def endless() -> int:
    """Wait for ever."""
    await asyncio.Event().wait()
    return 1


async def nobody(_request: ApprovalRequest) -> None:
    """Answers later."""


class Streams(ScriptedClient):
    """Streams parts of its own, reply by reply; an error among them is raised."""

    def __init__(self, *replies: list[StreamPart | Exception]) -> None:
        super().__init__([])
        self._streams = iter(replies)

    async def stream(self, _request: ChatRequest) -> AsyncIterator[StreamPart]:
        for part in next(self._streams):
            if isinstance(part, Exception):
                raise part
            yield part


async def test_reasoning_and_the_end_of_each_reply_are_told() -> None:
    calls = (ToolCall("c", "add", '{"a":1,"b":2}'),)
    first = Reply(Message.assistant("", calls), "tool_calls", Usage(1, 10, 5), model="m")
    last = Reply(Message.assistant("3"), "stop", Usage(1, 20, 1), provider="p")
    client = Streams([ReasoningPart("Hm"), first], [TextPart("3"), last])
    events = [event async for event in Agent(client, [add]).stream("1 + 2?")]
    assert [e.text for e in events if isinstance(e, ReasoningDelta)] == ["Hm"]
    assert [e for e in events if isinstance(e, ReplyFinished)] == [
        ReplyFinished(1, "tool_calls", Usage(1, 10, 5), "m"),
        ReplyFinished(2, "stop", Usage(1, 20, 1), client.model, "p"),
    ]
    kinds = [type(event) for event in events]
    assert kinds.index(ReplyFinished) < kinds.index(ToolCallStarted)


async def test_a_question_brings_the_schema_to_edit_by() -> None:
    agent = Agent(ScriptedClient([call("risky", path="x")]), ToolRunner([risky], approver=nobody))
    (asked,) = [e async for e in agent.stream("go") if isinstance(e, ApprovalRequested)]
    assert asked.schema == risky.get_definition().input_schema


async def test_a_run_that_goes_on_tells_nothing_twice() -> None:
    turns: list[Any] = [
        [call("add", a=1, b=2), call("risky", path="x"), call("risky", path="y")],
        "done",
    ]
    agent = Agent(ScriptedClient(turns), ToolRunner([add, risky], approver=nobody))
    stream = agent.stream("go")
    told: list[Event] = [event async for event in stream]
    while (result := await stream.result()).status == "waiting":
        stream = agent.resume_stream(result.state, {result.pending[0].id: Approve(by="ada")})
        told += [event async for event in stream]
    assert [e.resumed for e in told if isinstance(e, RunStarted)] == [False, True, True]
    assert not any(isinstance(e, ToolsOffered) for e in told)
    for kind, ids in (
        (ToolCallStarted, [e.id for e in told if isinstance(e, ToolCallStarted)]),
        (ToolCallFinished, [e.record.id for e in told if isinstance(e, ToolCallFinished)]),
    ):
        assert len(ids) == len(set(ids)) == 3, kind
    asked = [e.request.id for e in told if isinstance(e, ApprovalRequested)]
    assert len(asked) == len(set(asked)) == 2


async def test_what_is_asked_anew_on_the_way_is_told() -> None:
    async def then(request: ApprovalRequest) -> None:
        """Answers nothing."""

    turns = [call("risky", path="x"), call("risky", path="y")]
    agent = Agent(ScriptedClient(turns), ToolRunner([risky], approver=then))
    first = await agent.run("go")
    stream = agent.resume_stream(first.state, {first.pending[0].id: Approve(by="ada")})
    events = [event async for event in stream]
    (asked,) = [e for e in events if isinstance(e, ApprovalRequested)]
    assert asked.request.arguments == {"path": "y"}
    assert [e.id for e in events if isinstance(e, ToolCallStarted)] == [asked.request.call_id]


async def test_cancel_ends_the_run_and_readers_hear_what_became_of_its_calls() -> None:
    stream = Agent(ScriptedClient([call("endless")]), [endless]).stream("go")
    events: list[Event] = []
    begun = asyncio.Event()

    async def read() -> None:
        async for event in stream:
            events.append(event)
            if isinstance(event, ToolCallStarted):
                begun.set()

    reading = asyncio.create_task(read())
    await begun.wait()
    result = await stream.cancel()
    await reading
    assert result.status == "cancelled"
    assert [type(e) for e in events[-2:]] == [ToolCallFinished, Done]
    assert await stream.cancel() == result  # it has ended: nothing more to stop


async def test_cancel_of_what_has_ended_leaves_it_as_it_is() -> None:
    stream = Agent(ScriptedClient(["hello"])).stream("go")
    assert (await stream.result()).status == "completed"
    assert (await stream.cancel()).status == "completed"


async def test_text_is_read_alone_and_a_failure_is_raised() -> None:
    good = Agent(ScriptedClient([[call("add", a=1, b=2)], "It is 3."]), [add]).stream("go")
    assert "".join([piece async for piece in good.text()]) == "It is 3."
    bad = Agent(Streams([TextPart("It "), ProviderError("it broke")])).stream("go")
    text = bad.text()
    assert await anext(text) == "It "
    with pytest.raises(ProviderError, match="it broke"):
        await anext(text)


async def ids_of(*replies: list[StreamPart | Exception]) -> tuple[list[set[str]], RunResult]:
    """Return the ids of deltas, of whole calls and of results."""
    stream = Agent(Streams(*replies), [add]).stream("go")
    events = [event async for event in stream]
    return [
        {e.id for e in events if isinstance(e, ToolArgumentsDelta)},
        {e.id for e in events if isinstance(e, ToolCallStarted)},
        {e.record.id for e in events if isinstance(e, ToolCallFinished)},
    ], await stream.result()


async def test_a_call_has_one_id_from_its_first_piece_to_its_result() -> None:
    text = '{"a":1,"b":2}'

    def reply(*ids: str) -> list[StreamPart | Exception]:
        calls = tuple(ToolCall(id_, "add", text) for id_ in ids)
        pieces = [ArgumentsPart(id_, "add", text) for id_ in ids]
        return [*pieces, Reply(Message.assistant("", calls), "tool_calls")]

    end: list[StreamPart | Exception] = [TextPart("3"), Reply(Message.assistant("3"), "stop")]
    (deltas, started, finished), result = await ids_of(reply("c"), reply("d", "c"), reply("c"), end)
    assert deltas == started == finished
    assert len(started) == 4
    assert {c.id for m in result.messages for c in m.tool_calls} == started
    assert {"c", "d"} < started


async def test_every_text_delta_is_the_answers() -> None:
    last = Reply(Message.assistant("yes"), "stop")
    client = Streams([ReasoningPart("no"), TextPart("yes"), last])
    stream = Agent(client).stream("go")
    assert [e.text async for e in stream if isinstance(e, TextDelta)] == ["yes"]
    assert (await stream.result()).text == "yes"
