"""Where Cohere's client gets its server and key from, and how it talks to a real server."""

from __future__ import annotations

import msgspec
import pytest
from clients.exchanges import ADD, HI, LONG, answered, asks, both, is_below, offered, reply_of
from servers.cohere import cohere_server

from toolcrib import ALL, Agent, tool
from toolcrib.clients import CohereClient, client_for
from toolcrib.errors import (
    AuthenticationError,
    ProviderError,
    RequestError,
)
from toolcrib.testing import call, raw
from toolcrib.values.message import (
    ChatRequest,
    Message,
    Settings,
    ToolChoice,
    Usage,
)

CANARY = "canary-0123456789abcdef"

COHERE = "https://api.cohere.com/v2"
OTHER = "http://localhost:8000/v2"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CO_API_KEY", raising=False)
    monkeypatch.delenv("COHERE_API_KEY", raising=False)


SOURCES: list[tuple[dict[str, str], dict[str, str], tuple[str, str | None]]] = [
    ({}, {"api_key": " k1\n"}, (COHERE, "k1")),
    ({"CO_API_KEY": " k2\n"}, {}, (COHERE, "k2")),
    ({"COHERE_API_KEY": "k3"}, {}, (COHERE, "k3")),
    ({"CO_API_KEY": "k2", "COHERE_API_KEY": "k3"}, {}, (COHERE, "k2")),
    ({"CO_API_KEY": "k2"}, {"api_key": "k1"}, (COHERE, "k1")),
    ({"CO_API_KEY": "k2"}, {"base_url": OTHER}, (OTHER, None)),
    ({"CO_API_KEY": "k2"}, {"base_url": OTHER, "api_key": "k1"}, (OTHER, "k1")),
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
    url, headers = asks(CohereClient, "m", **given)
    assert is_below(url, expected[0])
    assert headers == ({"Authorization": f"Bearer {expected[1]}"} if expected[1] else {})


@pytest.mark.parametrize("base_url", [None, COHERE])
def test_cohere_itself_needs_a_key(base_url: str | None) -> None:
    with pytest.raises(AuthenticationError, match="CO_API_KEY"):
        CohereClient("m", base_url=base_url)


def test_the_client_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CO_API_KEY", "k")
    client = client_for("cohere:command-a-03-2025")
    assert isinstance(client, CohereClient)
    assert client.model == "command-a-03-2025"
    with pytest.raises(RequestError, match="cohere:MODEL"):
        client_for("cohere:")


@both
async def test_a_conversation(stream: bool) -> None:
    request = ChatRequest(
        (Message.user("Hi"), Message.system("Be brief.")),
        (ADD,),  # type: ignore[arg-type]
        ToolChoice("tool", LONG),
        Settings(0.5, 99),
        id_prefix="r_0_",
    )
    async with (
        cohere_server([offered, "3"]) as server,
        CohereClient("m", base_url=server.url, api_key=CANARY) as client,
    ):
        reply = await reply_of(client, request, stream=stream)
        assert (reply.text, reply.finish) == ("Let me add. ", "tool_calls")
        assert reply.usage == Usage(1, 11, 7)
        assert [(c.id, c.name, c.arguments) for c in reply.tool_calls] == [
            ("r_0_0", LONG, '{"a":1}'),
            ("r_0_1", LONG, '{"a":2}'),
        ]
        request = msgspec.structs.replace(answered(request, reply), tool_choice=ToolChoice("none"))
        assert (await reply_of(client, request, stream=stream)).text == "3"
    assert server.headers[0]["authorization"] == f"Bearer {CANARY}"
    assert [body["tool_choice"] for body in server.requests] == ["REQUIRED", "NONE"]
    assert [bool(body.get("stream")) for body in server.requests] == [stream] * 2
    roles = [message["role"] for message in server.requests[1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool"]
    assert server.requests[1]["messages"][2]["tool_plan"] == "Let me add. "


async def test_a_server_that_fails_in_the_middle_of_a_stream() -> None:
    body = 'data: {"type":"message-end","delta":{"finish_reason":"ERROR","error":"overloaded"}}\n\n'
    async with (
        cohere_server([raw(body)]) as server,
        CohereClient("m", retries=None, base_url=server.url) as client,
    ):
        with pytest.raises(ProviderError, match="overloaded"):
            await reply_of(client, HI, stream=True)


@tool(visible=ALL)
async def double(n: int) -> int:
    """Double a number."""
    return 2 * n


async def test_an_agent() -> None:
    async with (
        cohere_server([call("double", n=2), "4"]) as server,
        CohereClient("m", base_url=server.url) as client,
    ):
        result = await Agent(client, [double]).run("double 2")
    assert result.text == "4"
    assert [m["role"] for m in server.requests[1]["messages"]] == ["user", "assistant", "tool"]
    assert server.requests[1]["messages"][2]["tool_call_id"] == "double_1_0"
