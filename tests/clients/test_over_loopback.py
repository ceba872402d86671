"""What holds for each client over its loopback server: cut replies, dying servers, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest
from clients.exchanges import ADD, HI, LONG, answered, both, offered, reply_of
from rows import each_row
from servers.anthropic import anthropic_server
from servers.cohere import cohere_server
from servers.mistral import mistral_server
from servers.ollama import ollama_server

from toolcrib import ALL, Message, ToolRunner, tool
from toolcrib.clients import (
    AnthropicClient,
    CohereClient,
    LLMClient,
    MistralClient,
    OllamaClient,
    OpenAIClient,
    WireClient,
    request_of,
)
from toolcrib.errors import (
    AuthenticationError,
    ClientError,
    ConnectionFailed,
    OverloadedError,
    ProviderError,
    RateLimitError,
    RequestError,
)
from toolcrib.testing import ScriptedClient, call, cut, die_after, http_error, openai_server
from toolcrib.wire import ChatRequest

KEY = "sk-ant-canary-0123456789abcdef"


class Case(NamedTuple):
    """`refusals` is what a status means; `ends` are where a stream of `calls` breaks off, in bytes;
    `left` is how many of two calls a cut leaves something of.
    """

    client: Callable[..., WireClient]
    server: Callable[..., Any]
    refusals: dict[int, type[ClientError]]
    calls: list[Any] = ["Let me add. ", call("add", a=1)]  # noqa: RUF012  nobody changes it
    ends: tuple[int, ...] = (0, 1, 200, 400)
    left: int = 2


_COMMON: dict[int, type[ClientError]] = {401: AuthenticationError, 429: RateLimitError}
_USUAL = _COMMON | {404: RequestError, 503: OverloadedError}
CASES = {
    "anthropic": Case(
        AnthropicClient,
        anthropic_server,
        _COMMON | {400: RequestError, 529: OverloadedError},
        ["Let me add. ", call(LONG, a=1), call(LONG, a=2)],
        (0, 1, 300, 900),
    ),
    "cohere": Case(CohereClient, cohere_server, _COMMON | {404: RequestError, 500: ProviderError}),
    "mistral": Case(MistralClient, mistral_server, _USUAL),
    "ollama": Case(OllamaClient, ollama_server, _USUAL, left=1),
}
LIKE_OPENAI = ["cohere", "mistral", "ollama"]
"""Whose requests name a tool where OpenAI's do."""


@both
@each_row("name", LIKE_OPENAI)
async def test_a_conversation_moves_between_providers(name: str, stream: bool) -> None:
    """Ids, names and results of one provider are made legal for the other, there and back."""
    request, case = msgspec.structs.replace(HI, tools=(ADD,)), CASES[name]
    async with (
        openai_server([offered, "Bye"]) as openai,
        case.server([offered]) as server,
        OpenAIClient("m", base_url=openai.url) as first,
        case.client("m", base_url=server.url) as second,
    ):
        request = answered(request, await reply_of(first, request, stream=stream))
        request = msgspec.structs.replace(request, id_prefix="r_1_")
        request = answered(request, await reply_of(second, request, stream=stream))
        assert (await reply_of(first, request, stream=stream)).text == "Bye"
    assert {made.name for message in request.messages for made in message.tool_calls} == {LONG}


@both
@each_row("name", CASES)
async def test_a_cut_reply_is_a_reply_with_nothing_to_run(name: str, stream: bool) -> None:
    request, case = msgspec.structs.replace(HI, tools=(ADD,)), CASES[name]
    said: list[Any] = ["Hm. ", call("add", a=1), call("add", a=2)]
    async with (
        case.server([cut(said)]) as server,
        case.client("m", base_url=server.url) as client,
    ):
        reply = await reply_of(client, request, stream=stream)
    assert reply.finish == "length"
    assert [made.complete for made in reply.tool_calls] == [False] * case.left


@both
@each_row(("name", "after"), [(name, after) for name, case in CASES.items() for after in case.ends])
async def test_a_server_that_dies_gives_an_error_and_no_call(
    name: str, after: int, stream: bool
) -> None:
    case = CASES[name]
    async with (
        case.server([die_after(after if stream else after // 5, case.calls)]) as server,
        case.client("m", retries=None, base_url=server.url) as client,
    ):
        with pytest.raises(ConnectionFailed):
            await reply_of(client, HI, stream=stream)


@both
@each_row(
    ("name", "status"), [(name, status) for name, case in CASES.items() for status in case.refusals]
)
async def test_refusals(name: str, status: int, stream: bool) -> None:
    case = CASES[name]
    kind = case.refusals[status]
    async with (
        case.server([http_error(status, f"{KEY} because", retry_after=1.5)]) as server,
        case.client("m", retries=None, base_url=server.url, api_key=KEY) as client,
    ):
        with pytest.raises(kind, match="because") as caught:
            await reply_of(client, HI, stream=stream)
    assert type(caught.value) is kind
    assert caught.value.status == status
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("ask", ["chat", "tool_call"])
@pytest.mark.parametrize("kind", ["openai", "scripted"])
async def test_calls_of_two_requests_are_two_calls(kind: str, ask: str) -> None:
    """The ids are the idempotency keys: under one, the second request's call would not run."""
    spent: list[int] = []

    @tool(visible=ALL)
    async def spend(cents: int) -> None:
        """Spend."""
        spent.append(cents)

    request = ChatRequest((Message.user("Spend 5"),), (spend,))
    runner = ToolRunner([spend])
    async with openai_server([call("spend", cents=5)] * 2) as server:
        client: LLMClient = ScriptedClient([call("spend", cents=5)] * 2)
        if kind == "openai":
            client = OpenAIClient("m", base_url=server.url)
        for _ in range(2):
            if ask == "chat":
                await runner.exec_all((await client.chat(request)).tool_calls)
            else:
                await runner.exec_all(await client.tool_call(request, ()))
        await client.aclose()
    assert spent == [5, 5]


@pytest.mark.parametrize("prompt", ["Spend 5", HI, ChatRequest((Message.user("Spend 5"),))])
def test_each_plan_has_a_prefix_for_whoever_writes_a_client(prompt: str | ChatRequest) -> None:
    first, second = request_of(prompt, []).id_prefix, request_of(prompt, []).id_prefix
    assert first
    assert (first == second) is (prompt is HI)  # it has one of its own
