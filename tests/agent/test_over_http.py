"""The loop over real HTTP: a server on this machine that speaks the OpenAI wire."""

from __future__ import annotations

import json

import pytest

from toolcrib import (
    ALL,
    Agent,
    Done,
    RunError,
    RunResult,
    RunStarted,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
    tool,
)
from toolcrib.clients import OpenAIClient
from toolcrib.errors import AuthenticationError, ConnectionFailed, RateLimitError
from toolcrib.testing import call, cut, die_after, http_error, openai_server, raw
from toolcrib.testing.scripted import ServerTurn

RAN: list[int] = []


@tool(visible=ALL)
async def double(n: int) -> int:
    """Double a number."""
    RAN.append(n)
    return 2 * n


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


async def go(url: str, *, streaming: bool) -> RunResult:
    async with OpenAIClient("model", base_url=url, retries=None) as client:
        agent = Agent(client, [double], instructions="Use the tool.")
        if not streaming:
            return await agent.run("double things")
        async with agent.stream("double things") as stream:
            events = [event async for event in stream]
        assert isinstance(events[0], RunStarted)
        assert isinstance(events[-1], Done)
        assert sum(isinstance(event, Done) for event in events) == 1
        started = [e.id for e in events if isinstance(e, ToolCallStarted)]
        finished = [e.record.id for e in events if isinstance(e, ToolCallFinished)]
        assert sorted(started) == sorted(finished)
        text = "".join(e.text for e in events if isinstance(e, TextDelta))
        result = await stream.result()
        assert text.endswith(result.text)
        return result


@pytest.mark.parametrize("streaming", [False, True])
async def test_parallel_calls_a_corrected_call_and_a_final_text(streaming: bool) -> None:
    turns: list[ServerTurn] = [
        [call("double", n=1), call("double", n=2)],
        ["once more", call("double", n="three")],
        call("double", n=3),
        "2, 4 and 6",
    ]
    async with openai_server(turns) as server:
        result = await go(server.url, streaming=streaming)
    assert (result.status, result.text) == ("completed", "2, 4 and 6")
    assert sorted(RAN) == [1, 2, 3]
    assert [r.status for r in result.records] == ["completed", "completed", "failed", "completed"]
    assert [request.get("stream", False) for request in server.requests] == [streaming] * 4
    last = server.requests[-1]["messages"]
    assert [m["content"] for m in last if m["role"] == "tool"][:2] == ["2", "4"]
    error = json.loads([m["content"] for m in last if m["role"] == "tool"][2])["error"]
    assert error["code"] == "invalid_arguments"
    assert error["details"][0]["path"] == "/n"
    assert result.usage.requests == 4
    assert len({r.id for r in result.records}) == 4


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("after", [0, 40, 300, 700])
async def test_a_server_that_dies_is_a_typed_error_and_no_call_runs(
    streaming: bool, after: int
) -> None:
    turn = [call("double", n=1), call("double", n=2)]
    async with openai_server([die_after(after, turn)]) as server:
        with pytest.raises(ConnectionFailed) as failed:
            await go(server.url, streaming=streaming)
    assert RAN == []
    assert failed.value.state is not None
    assert [m.role for m in failed.value.state.messages] == ["system", "user"]


async def test_a_stream_tells_that_it_failed() -> None:
    async with (
        openai_server([die_after(40, "some text that is cut")]) as server,
        OpenAIClient("model", base_url=server.url) as client,
    ):
        events = [event async for event in Agent(client, [double]).stream("go")]
    assert [type(e) for e in events if not isinstance(e, TextDelta)] == [RunStarted, RunError, Done]


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_reply_cut_by_length_never_runs_its_call(streaming: bool) -> None:
    async with openai_server([cut([call("double", n=1)]), "too long, sorry"]) as server:
        result = await go(server.url, streaming=streaming)
    assert RAN == []
    assert result.status == "completed"
    assert [r.error.code for r in result.records if r.error] == ["truncated"]


@pytest.mark.parametrize(
    ("turn", "error"),
    [
        (http_error(401, "Incorrect API key provided"), AuthenticationError),
        (http_error(429, "slow down", retry_after=3), RateLimitError),
    ],
)
async def test_a_provider_that_refuses(turn: ServerTurn, error: type[Exception]) -> None:
    async with openai_server([turn]) as server:
        with pytest.raises(error):
            await go(server.url, streaming=True)


async def test_an_id_of_one_server_is_made_legal_for_the_next() -> None:
    """As vLLM's, of 46 characters, which OpenAI refuses; the first one gets it back as it gave it."""
    given = "chatcmpl-tool-5534c2d1f5354206a54ac289f9b12e97"
    made = {
        "id": given,
        "type": "function",
        "function": {"name": "double", "arguments": '{"n": 2}'},
    }
    choice = {"message": {"tool_calls": [made]}, "finish_reason": "tool_calls"}
    turn = raw(json.dumps({"choices": [choice]}), content_type="application/json")
    async with openai_server([turn, "4"]) as first, openai_server(["4"]) as second:
        async with OpenAIClient("m", base_url=first.url) as client:
            result = await Agent(client, [double]).run("go")
        past = result.messages[:-1]
        async with OpenAIClient("m", base_url=second.url) as client:
            await Agent(client, [double]).run("And now?", history=past)
    own, others = first.requests[1]["messages"], second.requests[0]["messages"]
    assert [m["tool_call_id"] for m in own if m["role"] == "tool"] == [given]
    (sent,) = [m["tool_call_id"] for m in others if m["role"] == "tool"]
    assert len(sent) <= 40
    assert [c["id"] for m in others for c in m.get("tool_calls", ())] == [sent]
