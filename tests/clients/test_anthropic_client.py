"""Where Anthropic's client gets its server and key from, and how it talks to a real server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from clients.exchanges import ADD, HI, LONG, answered, asks, both, is_below, reply_of
from servers.anthropic import anthropic_server

from toolcrib.clients import AnthropicClient, OpenAIClient, client_for
from toolcrib.errors import (
    AuthenticationError,
    ProviderError,
    RequestError,
)
from toolcrib.testing import call, openai_server, raw
from toolcrib.values.message import (
    ChatRequest,
    Message,
    ToolChoice,
    Usage,
)

ANTHROPIC = "https://api.anthropic.com"
OTHER = "http://localhost:8000/anthropic"
CANARY = "sk-ant-canary-0123456789abcdef"
TWO: list[Any] = ["Let me add. ", call(LONG, a=1), call(LONG, a=2)]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


SOURCES: list[tuple[dict[str, str], dict[str, str], tuple[str, str | None]]] = [
    ({}, {"api_key": "k1"}, (ANTHROPIC, "k1")),
    ({"ANTHROPIC_API_KEY": " k2\n"}, {}, (ANTHROPIC, "k2")),
    ({"ANTHROPIC_API_KEY": "k2"}, {"api_key": "k1"}, (ANTHROPIC, "k1")),
    ({"ANTHROPIC_BASE_URL": OTHER}, {}, (OTHER, None)),
    ({"ANTHROPIC_BASE_URL": OTHER, "ANTHROPIC_API_KEY": "k2"}, {}, (OTHER, "k2")),
    ({"ANTHROPIC_BASE_URL": "", "ANTHROPIC_API_KEY": "k2"}, {}, (ANTHROPIC, "k2")),
    ({"ANTHROPIC_API_KEY": "k2"}, {"base_url": OTHER}, (OTHER, None)),
    ({"ANTHROPIC_API_KEY": "k2"}, {"base_url": OTHER, "api_key": "k1"}, (OTHER, "k1")),
    ({"ANTHROPIC_API_KEY": "k2"}, {"base_url": ANTHROPIC + "/"}, (ANTHROPIC + "/", "k2")),
]


@pytest.mark.parametrize(("environment", "given", "expected"), SOURCES)
def test_sources(
    environment: dict[str, str],
    given: dict[str, str],
    expected: tuple[str, str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    url, headers = asks(AnthropicClient, "m", **given)
    assert is_below(url, expected[0])
    assert headers == ({"x-api-key": expected[1]} if expected[1] else {})


TOKENS: list[tuple[dict[str, str], dict[str, str], dict[str, str]]] = [
    ({}, {}, {"Authorization": "Bearer t"}),
    ({"ANTHROPIC_API_KEY": "k"}, {}, {"x-api-key": "k"}),
    ({}, {"api_key": "k"}, {"x-api-key": "k"}),
    ({}, {"base_url": OTHER}, {}),
    ({"ANTHROPIC_BASE_URL": OTHER}, {}, {"Authorization": "Bearer t"}),
]


@pytest.mark.parametrize(("environment", "given", "expected"), TOKENS)
def test_a_token_in_place_of_a_key(
    environment: dict[str, str],
    given: dict[str, str],
    expected: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"ANTHROPIC_AUTH_TOKEN": " t\n", **environment}.items():
        monkeypatch.setenv(name, value)
    assert asks(AnthropicClient, "m", **given)[1] == expected


@pytest.mark.parametrize("base_url", [None, ANTHROPIC])
def test_anthropic_itself_needs_a_key(base_url: str | None) -> None:
    with pytest.raises(AuthenticationError, match="ANTHROPIC_API_KEY"):
        AnthropicClient("m", base_url=base_url)


def test_the_client_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    client = client_for("anthropic:claude-x")
    assert isinstance(client, AnthropicClient)
    assert client.model == "claude-x"
    with pytest.raises(RequestError, match="anthropic:MODEL"):
        client_for("anthropic:")


@both
async def test_a_conversation(stream: bool) -> None:
    request = ChatRequest(
        (Message.system("Be brief."), Message.user("Hi")),
        (ADD,),  # type: ignore[arg-type]
        ToolChoice("required"),
        id_prefix="r_0_",
        parallel_calls=False,
    )
    async with (
        anthropic_server([TWO, "3"]) as server,
        AnthropicClient("m", base_url=server.url, api_key=CANARY) as client,
    ):
        reply = await reply_of(client, request, stream=stream)
        assert (reply.text, reply.finish) == ("Let me add. ", "tool_calls")
        assert reply.usage == Usage(1, 11, 7)
        assert [(c.id, c.provider_id, c.name, c.arguments) for c in reply.tool_calls] == [
            ("r_0_0", "toolu_1_0", LONG, '{"a":1}'),
            ("r_0_1", "toolu_1_1", LONG, '{"a":2}'),
        ]
        assert (await reply_of(client, answered(request, reply), stream=stream)).text == "3"
    assert server.headers[0]["x-api-key"] == CANARY
    assert server.headers[0]["anthropic-version"] == "2023-06-01"
    assert [bool(body.get("stream")) for body in server.requests] == [stream] * 2
    assert [m["role"] for m in server.requests[1]["messages"]] == ["user", "assistant", "user"]


@both
async def test_a_conversation_moves_between_providers(stream: bool) -> None:
    """Ids, names and results of one provider are made legal for the other, there and back."""
    request = msgspec.structs.replace(HI, tools=(ADD,))

    def short(body: dict[str, Any]) -> Any:
        return call(body["tools"][0]["function"]["name"], a=1)

    async with (
        openai_server([short, "Bye"]) as openai,
        anthropic_server([TWO]) as server,
        OpenAIClient("m", base_url=openai.url) as first,
        AnthropicClient("m", base_url=server.url) as second,
    ):
        request = answered(request, await reply_of(first, request, stream=stream))
        request = msgspec.structs.replace(request, id_prefix="r_1_")
        request = answered(request, await reply_of(second, request, stream=stream))
        assert (await reply_of(first, request, stream=stream)).text == "Bye"
    assert {made.name for message in request.messages for made in message.tool_calls} == {LONG}


async def test_an_overloaded_server_in_the_middle_of_a_stream() -> None:
    event = '{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}'
    body = f'event: ping\ndata: {{"type": "ping"}}\n\nevent: error\ndata: {event}\n\n'
    async with (
        anthropic_server([raw(body)]) as server,
        AnthropicClient("m", retries=None, base_url=server.url) as client,
    ):
        with pytest.raises(ProviderError, match=r"Overloaded \(overloaded_error\)"):
            await reply_of(client, HI, stream=True)
