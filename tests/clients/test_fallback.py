"""Clients that stand in for one another: who is asked next, when, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest
from rows import each_row
from servers.anthropic import anthropic_server

from toolcrib import ALL, Agent, tool
from toolcrib.clients import AnthropicClient, GeminiClient, OpenAIClient, fallback
from toolcrib.errors import (
    AuthenticationError,
    ClientError,
    ConnectionFailed,
    OverloadedError,
    ProviderError,
    RateLimitError,
    RequestError,
    WireError,
)
from toolcrib.testing import ScriptedClient, call, die_after, http_error, openai_server
from toolcrib.values.message import ChatRequest, LLMClient, Message, Reply, TextPart

HI = ChatRequest((Message.user("Hi"),))


@tool(visible=ALL)
async def double(n: int) -> int:
    """Double a number."""
    return 2 * n


@tool(visible=ALL, strict=True)
async def strict_double(n: int = 1) -> int:
    """Double a number, strictly."""
    return 2 * n


both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


async def ask(client: LLMClient, *, stream: bool) -> Reply:
    if not stream:
        return await client.chat(HI)
    *_, last = [part async for part in client.stream(HI)]
    assert isinstance(last, Reply)
    return last


@both
@each_row(
    "error",
    [ConnectionFailed("x"), RateLimitError("x", 429), ProviderError("x"), OverloadedError("x")],
    ids=lambda error: type(error).__name__,
)
async def test_the_next_is_asked(error: ClientError, stream: bool) -> None:
    first, second = ScriptedClient([error]), ScriptedClient(["Hello."])
    assert (await ask(fallback([first, second]), stream=stream)).text == "Hello."
    assert [len(client.requests) for client in (first, second)] == [1, 1]


@both
@each_row(
    "error",
    [RequestError("x", 400), AuthenticationError("x", 401), WireError("x")],
    ids=lambda error: type(error).__name__,
)
async def test_what_another_would_refuse_too_is_raised(error: ClientError, stream: bool) -> None:
    second = ScriptedClient(["Hello."])
    with pytest.raises(type(error)):
        await ask(fallback([ScriptedClient([error]), second]), stream=stream)
    assert second.requests == []
    chosen = fallback([ScriptedClient([error]), second], on=(type(error),))
    assert (await ask(chosen, stream=stream)).text == "Hello."


@both
async def test_all_fail(stream: bool) -> None:
    clients = [
        ScriptedClient([ConnectionFailed("not there")]),
        ScriptedClient([OverloadedError("busy")]),
    ]
    with pytest.raises(OverloadedError, match="busy") as caught:
        await ask(fallback(clients), stream=stream)
    assert caught.value.__notes__ == [
        "scripted: ConnectionFailed: not there",
        "scripted: OverloadedError: busy",
    ]
    assert caught.value.__context__ is None


def test_there_must_be_one() -> None:
    with pytest.raises(RequestError, match="at least one client"):
        fallback([])
    wrong: Any = ["openai:gpt-5"]
    with pytest.raises(RequestError, match="'openai:gpt-5' is not a client"):
        fallback(wrong)


async def test_they_may_come_one_by_one() -> None:
    each: Any = (ScriptedClient([said]) for said in (OverloadedError("busy"), "Hello."))
    assert (await ask(fallback(each), stream=False)).text == "Hello."


@pytest.mark.parametrize("on", [("x",), (OSError,), (ClientError("x"),), "x"])
def test_what_may_not_be_moved_on_by(on: Any) -> None:
    with pytest.raises(RequestError, match="subclasses of ClientError"):
        fallback([ScriptedClient([])], on=on)


async def test_errors_in_a_list_are_as_good() -> None:
    on: Any = [ConnectionFailed]
    client = fallback([ScriptedClient([ConnectionFailed("x")]), ScriptedClient(["Hello."])], on=on)
    assert (await ask(client, stream=False)).text == "Hello."


async def test_after_the_first_part_nobody_else_is_asked() -> None:
    async with (
        openai_server([die_after(600, "A long text. " * 20)]) as one,
        OpenAIClient("m1", base_url=one.url) as first,
    ):
        second = ScriptedClient(["Hello."])
        stream = fallback([first, second]).stream(HI)
        assert isinstance(await anext(stream), TextPart)
        with pytest.raises(ConnectionFailed):
            [part async for part in stream]
    assert second.requests == []


async def test_a_stream_that_is_left_is_closed() -> None:
    async with (
        openai_server(["text " * 1000, "again"]) as server,
        OpenAIClient("m", base_url=server.url) as client,
    ):
        stream: Any = fallback([client]).stream(HI)
        assert isinstance(await anext(stream), TextPart)
        await stream.aclose()
        assert (await client.chat(HI)).text == "again"


async def test_the_reply_says_who_answered_and_all_are_closed() -> None:
    async with (
        openai_server([http_error(503)]) as one,
        anthropic_server(["Hello."]) as other,
        fallback(
            [
                OpenAIClient("m1", base_url=one.url, retries=None),
                AnthropicClient("m2", base_url=other.url),
            ]
        ) as client,
    ):
        assert client.model == "m1"
        assert (await client.chat(HI)).model == "m2"

    class Closed(ScriptedClient):
        closed = 0

        async def aclose(self) -> None:
            self.closed += 1
            raise ConnectionFailed("cannot")

    clients = [Closed([]), Closed([])]
    with pytest.raises(ConnectionFailed):
        await fallback(clients).aclose()
    assert [made.closed for made in clients] == [1, 1]


async def test_a_plan_of_another() -> None:
    second = ScriptedClient([[call("double", n=2)]])
    client = fallback([ScriptedClient([OverloadedError("busy")]), second])
    plan = await client.tool_call("Hi", [double])
    assert [made.success for made in plan] == [True]


async def test_a_conversation_goes_on_with_another_provider_and_back() -> None:
    """The servers judge what they are sent as the providers would, ids and order included."""
    first_turns: list[Any] = [
        ["Let me see. ", call("double", n=1), call("double", n=2)],
        http_error(529),
        "Eight.",
    ]
    async with (
        anthropic_server(first_turns) as one,
        openai_server([[call("double", n=4)]]) as other,
        fallback(
            [
                AnthropicClient("m1", base_url=one.url, retries=None),
                OpenAIClient("m2", base_url=other.url, retries=None),
            ]
        ) as client,
    ):
        result = await Agent(client, [double]).run("Double it all.")
    assert (result.status, result.text) == ("completed", "Eight.")
    assert [message["role"] for message in other.requests[0]["messages"]] == [
        "user", "assistant", "tool", "tool"]  # fmt: skip
    last = one.requests[-1]["messages"]
    assert [message["role"] for message in last] == [
        "user", "assistant", "user", "assistant", "user"]  # fmt: skip
    (result_block,) = last[-1]["content"]
    assert result_block["tool_use_id"] == last[-2]["content"][-1]["id"]
    assert [record.status for record in result.records] == ["completed"] * 3


def test_what_was_offered_is_told_by_the_client_that_answered() -> None:
    """Each of them writes tools in its own way, at whatever depth it is."""
    gemini = GeminiClient("g", base_url="http://a.test")
    chat = OpenAIClient("m", base_url="http://b.test")
    responses = OpenAIClient("m", base_url="http://b.test", api="responses")
    nested = fallback([gemini, fallback([chat, fallback([responses])])])
    request = ChatRequest(HI.messages, (strict_double,))
    for client in (gemini, chat, responses):
        reply = Reply(Message.assistant(""), "stop", model=client.model, provider=client.provider)
        assert nested.offer(request, reply) == client.offer(request, reply)
    assert not gemini.offer(request, reply).restorers
    assert chat.offer(request, reply).restorers
