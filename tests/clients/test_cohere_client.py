"""Where Cohere's client gets its server and key from, and how it talks to a real server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from toolcrib import ALL, Agent, tool
from toolcrib.clients import CohereClient, OpenAIClient, WireClient, client_for
from toolcrib.errors import (
    AuthenticationError,
    ClientError,
    ConnectionFailed,
    ProviderError,
    RateLimitError,
    RequestError,
)
from toolcrib.testing import call, cohere_server, cut, die_after, http_error, openai_server, raw
from toolcrib.values.message import (
    ChatRequest,
    Message,
    Reply,
    Settings,
    TextPart,
    ToolChoice,
    Usage,
)

CANARY = "canary-0123456789abcdef"
HI = ChatRequest((Message.user("Hi"),), id_prefix="r_0_")
LONG = "add_" + "x" * 90  # both take 64 characters
ADD: dict[str, Any] = {
    "name": LONG,
    "description": "Add.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}

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
    client = CohereClient("m", **given)  # type: ignore[arg-type]
    key = client._headers.get("Authorization", "").removeprefix("Bearer ") or None
    assert (client._base, key) == expected


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


async def reply_of(client: WireClient, request: ChatRequest, *, stream: bool) -> Reply:
    if not stream:
        return await client.chat(request)
    parts = [part async for part in client.stream(request)]
    last = parts[-1]
    assert isinstance(last, Reply)
    assert "".join(part.text for part in parts if isinstance(part, TextPart)) == last.text
    return last


def answered(request: ChatRequest, reply: Reply) -> ChatRequest:
    results = [Message.tool(made, "x", is_error=n == 1) for n, made in enumerate(reply.tool_calls)]
    return msgspec.structs.replace(request, messages=(*request.messages, reply.message, *results))


def offered(body: dict[str, Any]) -> Any:
    name = body["tools"][0]["function"]["name"]
    return ["Let me add. ", call(name, a=1), call(name, a=2)]


both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


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


@both
async def test_a_conversation_moves_between_providers(stream: bool) -> None:
    """Ids, names and results of one provider are made legal for the other, there and back."""
    request = msgspec.structs.replace(HI, tools=(ADD,))
    async with (
        openai_server([offered, "Bye"]) as openai,
        cohere_server([offered]) as server,
        OpenAIClient("m", base_url=openai.url) as first,
        CohereClient("m", base_url=server.url) as second,
    ):
        request = answered(request, await reply_of(first, request, stream=stream))
        request = msgspec.structs.replace(request, id_prefix="r_1_")
        request = answered(request, await reply_of(second, request, stream=stream))
        assert (await reply_of(first, request, stream=stream)).text == "Bye"
    assert {made.name for message in request.messages for made in message.tool_calls} == {LONG}


@both
async def test_a_cut_reply_is_a_reply_with_nothing_to_run(stream: bool) -> None:
    request = msgspec.structs.replace(HI, tools=(ADD,))
    async with (
        cohere_server([cut(["Hm. ", call("add", a=1), call("add", a=2)])]) as server,
        CohereClient("m", base_url=server.url) as client,
    ):
        reply = await reply_of(client, request, stream=stream)
    assert reply.finish == "length"
    assert {made.complete for made in reply.tool_calls} == {False}


@both
@pytest.mark.parametrize("after", [0, 1, 200, 400])
async def test_a_server_that_dies_gives_an_error_and_no_call(stream: bool, after: int) -> None:
    turn: list[Any] = ["Let me add. ", call("add", a=1)]
    async with (
        cohere_server([die_after(after if stream else after // 5, turn)]) as server,
        CohereClient("m", retries=None, base_url=server.url) as client,
    ):
        with pytest.raises(ConnectionFailed):
            await reply_of(client, HI, stream=stream)


@both
@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, RequestError), (401, AuthenticationError), (429, RateLimitError), (500, ProviderError)],
)
async def test_refusals(status: int, kind: type[ClientError], stream: bool) -> None:
    async with (
        cohere_server([http_error(status, f"{CANARY} because")]) as server,
        CohereClient("m", retries=None, base_url=server.url, api_key=CANARY) as client,
    ):
        with pytest.raises(kind, match="because") as caught:
            await reply_of(client, HI, stream=stream)
    assert type(caught.value) is kind
    assert CANARY not in str(caught.value)


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
