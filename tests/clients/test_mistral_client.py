"""Where Mistral's client gets its server and key from, and how it talks to a real server."""

from __future__ import annotations

import pytest
from clients.exchanges import ADD, HI, LONG, answered, asks, both, is_below, offered, reply_of
from servers.mistral import mistral_server

from toolcrib import ALL, Agent, tool
from toolcrib.clients import MistralClient, client_for
from toolcrib.errors import (
    AuthenticationError,
    OverloadedError,
    RequestError,
)
from toolcrib.testing import call, raw
from toolcrib.values.message import ChatRequest, Message, Settings, Usage

CANARY = "canary-0123456789abcdef"

MISTRAL = "https://api.mistral.ai/v1"
OTHER = "http://localhost:8000/v1"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MISTRAL_API_KEY", raising=False)


SOURCES: list[tuple[str, dict[str, str], tuple[str, str | None]]] = [
    ("", {"api_key": " k1\n"}, (MISTRAL, "k1")),
    (" k2\n", {}, (MISTRAL, "k2")),
    ("k2", {"api_key": "k1"}, (MISTRAL, "k1")),
    ("k2", {"base_url": MISTRAL + "/"}, (MISTRAL + "/", "k2")),
    ("k2", {"base_url": OTHER}, (OTHER, None)),
    ("k2", {"base_url": OTHER, "api_key": "k1"}, (OTHER, "k1")),
]


@pytest.mark.parametrize(("environment", "given", "expected"), SOURCES)
def test_sources(
    environment: str,
    given: dict[str, str],
    expected: tuple[str, str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MISTRAL_API_KEY", environment)
    url, headers = asks(MistralClient, "m", **given)
    assert is_below(url, expected[0])
    assert headers == ({"Authorization": f"Bearer {expected[1]}"} if expected[1] else {})


@pytest.mark.parametrize("base_url", [None, MISTRAL])
def test_mistral_itself_needs_a_key(base_url: str | None) -> None:
    with pytest.raises(AuthenticationError, match="MISTRAL_API_KEY"):
        MistralClient("m", base_url=base_url)


def test_the_client_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MISTRAL_API_KEY", "k")
    client = client_for("mistral:mistral-small-latest")
    assert isinstance(client, MistralClient)
    assert client.model == "mistral-small-latest"
    with pytest.raises(RequestError, match="mistral:MODEL"):
        client_for("mistral:")


@both
async def test_a_conversation(stream: bool) -> None:
    request = ChatRequest(
        (Message.system("Be brief."), Message.user("Hi")),
        (ADD,),  # type: ignore[arg-type]
        settings=Settings(0.5, 99),
        id_prefix="r_0_",
    )
    async with (
        mistral_server([offered, "3"]) as server,
        MistralClient("m", base_url=server.url, api_key=CANARY) as client,
    ):
        reply = await reply_of(client, request, stream=stream)
        assert (reply.text, reply.finish) == ("Let me add. ", "tool_calls")
        assert reply.usage == Usage(1, 11, 7)
        assert [(c.id, c.provider_id, c.name, c.arguments) for c in reply.tool_calls] == [
            ("r_0_0", "call00100", LONG, '{"a":1}'),
            ("r_0_1", "call00101", LONG, '{"a":2}'),
        ]
        assert (await reply_of(client, answered(request, reply), stream=stream)).text == "3"
    assert server.headers[0]["authorization"] == f"Bearer {CANARY}"
    assert [bool(body.get("stream")) for body in server.requests] == [stream] * 2
    roles = [message["role"] for message in server.requests[1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool"]


async def test_a_server_that_fails_in_the_middle_of_a_stream() -> None:
    body = 'data: {"object": "error", "message": "overloaded", "code": "3505"}\n\n'
    async with (
        mistral_server([raw(body)]) as server,
        MistralClient("m", base_url=server.url, retries=None) as client,
    ):
        with pytest.raises(OverloadedError, match="overloaded"):
            await reply_of(client, HI, stream=True)


@tool(visible=ALL)
async def double(n: int) -> int:
    """Double a number."""
    return 2 * n


async def test_an_agent() -> None:
    async with (
        mistral_server([call("double", n=2), "4"]) as server,
        MistralClient("m", base_url=server.url) as client,
    ):
        result = await Agent(client, [double]).run("double 2")
    assert result.text == "4"
    assert [m["role"] for m in server.requests[1]["messages"]] == ["user", "assistant", "tool"]
    assert server.requests[1]["messages"][2]["tool_call_id"] == "call00100"
