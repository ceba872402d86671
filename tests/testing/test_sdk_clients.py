"""Each loopback server, asked by our client and by the provider's own: both hear the same.

A row of `CASES` is a server, our client for it, and the SDK's, which is driven with the very body that
our encoder made, as the arguments of its method.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import pytest
from rows import each_row
from samples import sampled
from servers.anthropic import anthropic_server
from servers.cohere import cohere_server
from servers.mistral import mistral_server
from servers.ollama import ollama_server

from toolcrib.clients import (
    AnthropicClient,
    CohereClient,
    MistralClient,
    OllamaClient,
    OpenAIClient,
    WireClient,
)
from toolcrib.testing import call, cut, openai_server
from toolcrib.values.call import ToolCall
from toolcrib.values.message import ChatRequest, Message, Reply, TextPart
from toolcrib.wire import encode


class Heard(NamedTuple):
    """What a client made of a reply; `finish` in the words of `Reply`, ids empty where it has none."""

    text: str
    calls: list[tuple[str, str, Any]]
    finish: str


class Case(NamedTuple):
    """`whole` and `streamed` ask with the SDK of that name, given it, a base URL and a body.

    `unsaid` are members that one of the two says and the other does not: by name, the value that
    means nothing, or `...` where the SDK drops any.
    """

    sdk: str
    server: Callable[[Any], AbstractAsyncContextManager[Any]]
    client: Callable[[str], WireClient]
    whole: Callable[[Any, str, dict[str, Any]], Awaitable[Heard]]
    streamed: Callable[[Any, str, dict[str, Any]], Awaitable[Heard]]
    unsaid: Mapping[str, Any] = {}


_FINISHES = {
    **dict.fromkeys(("stop", "end_turn", "COMPLETE"), "stop"),
    **dict.fromkeys(("tool_calls", "tool_use", "TOOL_CALL"), "tool_calls"),
    **dict.fromkeys(("length", "max_tokens", "MAX_TOKENS"), "length"),
}


def heard(text: str | None, calls: list[tuple[str, str, Any]], finish: str) -> Heard:
    read = [(i, name, json.loads(a) if isinstance(a, str) else dict(a)) for i, name, a in calls]
    return Heard(text or "", read, _FINISHES[finish])


def functions(calls: Any) -> list[tuple[str, str, Any]]:
    return [(c.id, c.function.name, c.function.arguments) for c in calls or ()]


def openai_choice(choice: Any) -> Heard:
    message = choice.message
    return heard(message.content, functions(message.tool_calls), choice.finish_reason)


async def openai_whole(openai: Any, url: str, body: dict[str, Any]) -> Heard:
    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
        made = await client.chat.completions.create(**body)
    return openai_choice(made.choices[0])


async def openai_streamed(openai: Any, url: str, body: dict[str, Any]) -> Heard:
    del body["stream"]
    try:
        async with (
            openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client,
            client.chat.completions.stream(**body) as stream,
        ):
            made = await stream.get_final_completion()
    except openai.LengthFinishReasonError as cut_off:
        made = cut_off.completion
    return openai_choice(made.choices[0])


def anthropic_message(message: Any) -> Heard:
    text = "".join(block.text for block in message.content if block.type == "text")
    calls = [(b.id, b.name, b.input) for b in message.content if b.type == "tool_use"]
    return heard(text, calls, message.stop_reason)


async def anthropic_whole(anthropic: Any, url: str, body: dict[str, Any]) -> Heard:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
        return anthropic_message(await client.messages.create(**body))


async def anthropic_streamed(anthropic: Any, url: str, body: dict[str, Any]) -> Heard:
    del body["stream"]
    async with (
        anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client,
        client.messages.stream(**body) as stream,
    ):
        return anthropic_message(await stream.get_final_message())


async def mistral_whole(mistral: Any, url: str, body: dict[str, Any]) -> Heard:
    async with mistral.Mistral(server_url=url.removesuffix("/v1"), api_key="k") as client:
        made = await client.chat.complete_async(**body)
    return openai_choice(made.choices[0])


async def mistral_streamed(mistral: Any, url: str, body: dict[str, Any]) -> Heard:
    del body["stream"]
    text, calls, finish = "", [], ""
    async with mistral.Mistral(server_url=url.removesuffix("/v1"), api_key="k") as client:
        async for event in await client.chat.stream_async(**body):
            choice = event.data.choices[0]
            text += choice.delta.content or ""
            calls += functions(choice.delta.tool_calls)
            finish = choice.finish_reason or finish
    return heard(text, calls, finish)


def ollama_calls(message: Any) -> list[tuple[str, str, Any]]:
    """The SDK has no place for the ids."""
    return [("", c.function.name, c.function.arguments) for c in message.tool_calls or ()]


def ollama_heard(text: str, calls: list[Any], reason: str) -> Heard:
    """The reason does not tell that there are calls."""
    return heard(text, calls, "tool_calls" if calls and reason == "stop" else reason)


@asynccontextmanager
async def closing(client: Any) -> AsyncIterator[Any]:
    """The client, which can be closed, but is no context manager."""
    try:
        yield client
    finally:
        await client.close()


async def ollama_whole(ollama: Any, url: str, body: dict[str, Any]) -> Heard:
    async with closing(ollama.AsyncClient(host=url)) as client:
        made = await client.chat(**body)
    return ollama_heard(made.message.content, ollama_calls(made.message), made.done_reason)


async def ollama_streamed(ollama: Any, url: str, body: dict[str, Any]) -> Heard:
    text, calls, reason = "", [], ""
    async with closing(ollama.AsyncClient(host=url)) as client:
        async for part in await client.chat(**body):
            text += part.message.content or ""
            calls += ollama_calls(part.message)
            reason = part.done_reason or reason
    return ollama_heard(text, calls, reason)


async def cohere_whole(cohere: Any, url: str, body: dict[str, Any]) -> Heard:
    async with cohere.AsyncClientV2("k", base_url=url.removesuffix("/v2")) as client:
        made = await client.chat(**body)
    text = "".join(part.text for part in made.message.content or ())
    return heard(text, functions(made.message.tool_calls), made.finish_reason)


async def cohere_streamed(cohere: Any, url: str, body: dict[str, Any]) -> Heard:
    """The SDK leaves it to its user to put the events together."""
    del body["stream"]
    text, calls, finish = "", dict[int, list[str]](), ""
    async with cohere.AsyncClientV2("k", base_url=url.removesuffix("/v2")) as client:
        async for event in client.chat_stream(**body):
            match event.type:
                case "content-delta":
                    text += event.delta.message.content.text
                case "tool-call-start":
                    begun = event.delta.message.tool_calls
                    calls[event.index] = [begun.id, begun.function.name, ""]
                case "tool-call-delta":
                    calls[event.index][2] += event.delta.message.tool_calls.function.arguments
                case "message-end":
                    finish = event.delta.finish_reason
    return heard(text, [(i, name, text) for i, name, text in calls.values()], finish)


CASES: dict[str, Case] = {
    "openai": Case(
        "openai",
        openai_server,
        lambda url: OpenAIClient("m", base_url=url),
        openai_whole,
        openai_streamed,
    ),
    "anthropic": Case(
        "anthropic",
        anthropic_server,
        lambda url: AnthropicClient("m", base_url=url),
        anthropic_whole,
        anthropic_streamed,
    ),
    "mistral": Case(
        "mistralai.client",
        mistral_server,
        lambda url: MistralClient("m", base_url=url),
        mistral_whole,
        mistral_streamed,
        {"stream": False, "prefix": False, "index": 0},
    ),
    "ollama": Case(
        "ollama",
        ollama_server,
        lambda url: OllamaClient("m", base_url=url),
        ollama_whole,
        ollama_streamed,
        {"content": "", "type": "function", "id": ..., "tool_call_id": ...},
    ),
    "cohere": Case(
        "cohere",
        cohere_server,
        lambda url: CohereClient("m", base_url=url),
        cohere_whole,
        cohere_streamed,
        {"stream": False},
    ),
}

TOOL: Any = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
BEFORE = ToolCall("r_0_0", "get_weather", '{"city": "Bari"}', provider_id="call00000")
REQUEST = ChatRequest(
    (
        Message.system("Be brief."),
        Message.user("And Bari?"),
        Message.assistant("", (BEFORE,)),
        Message.tool(BEFORE, "rain", is_error=True),
        Message.user("And Rome, Umeå?"),
    ),
    (TOOL,),
    id_prefix="r_1_",
)
UMEA = call("get_weather", city='Umeå "north"\n', days=3)

TURNS: dict[str, tuple[Any, str]] = {
    "text": ("Sunny in Rome; ☔ in Umeå.", "stop"),
    "a call": (call("get_weather", city="Rome"), "tool_calls"),
    "a call without arguments": (call("get_weather"), "tool_calls"),
    "text and calls": (
        ["Let me look. ", call("get_weather", city="Rome"), UMEA, UMEA],
        "tool_calls",
    ),
    "a text that is cut": (cut("Sunny in Rome and in Umeå."), "length"),
}


async def _asked(client: WireClient, *, stream: bool) -> Reply:
    if not stream:
        return await client.chat(REQUEST)
    parts: AsyncIterator[Any] = client.stream(REQUEST)
    *pieces, reply = [part async for part in parts]
    assert isinstance(reply, Reply)
    assert "".join(part.text for part in pieces if isinstance(part, TextPart)) == reply.text
    return reply


def _as_heard(reply: Reply) -> Heard:
    calls = [(c.provider_id, c.name, json.loads(c.arguments)) for c in reply.tool_calls]
    return Heard(reply.text, calls, reply.finish)


def _said(node: Any, unsaid: Mapping[str, Any]) -> Any:
    """A body without the members that mean nothing."""
    if isinstance(node, list):
        return [_said(item, unsaid) for item in node]
    if not isinstance(node, dict):
        return node
    silent = {key for key in node.keys() & unsaid.keys() if unsaid[key] in (node[key], ...)}
    return {key: _said(node[key], unsaid) for key in node.keys() - silent}


@each_row("stream", [False, True], ids=["whole", "streamed"])
@each_row(("turn", "finish"), sampled(TURNS.values(), part=3))
@each_row("case", CASES.values(), ids=CASES)
@pytest.mark.exhaustive
async def test_both_hear_the_same(case: Case, turn: Any, finish: str, stream: bool) -> None:
    sdk = pytest.importorskip(case.sdk, reason=f"the SDK {case.sdk} is not installed")
    async with case.server([turn]) as server, case.client(server.url) as client:
        ours = _as_heard(await _asked(client, stream=stream))
        body = json.loads(encode(client.wire, REQUEST, model="m", stream=stream).body)
    ask = case.streamed if stream else case.whole
    async with case.server([turn]) as other:
        theirs = await ask(sdk, other.url, body)
    assert ours.finish == finish
    assert theirs.finish == finish
    assert theirs.text == ours.text
    assert [made[1:] for made in theirs.calls] == [made[1:] for made in ours.calls]
    assert {made[0] for made in theirs.calls} <= {made[0] for made in ours.calls} | {""}
    assert _said(server.requests, case.unsaid) == _said(other.requests, case.unsaid)
