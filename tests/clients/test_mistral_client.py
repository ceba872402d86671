"""Where Mistral's client gets its server and key from, and how it talks to a real server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from toolcrib import ALL, Agent, tool
from toolcrib.clients import MistralClient, OpenAIClient, WireClient, client_for
from toolcrib.errors import (
    AuthenticationError,
    ClientError,
    ConnectionFailed,
    OverloadedError,
    RateLimitError,
    RequestError,
)
from toolcrib.testing import call, cut, die_after, http_error, mistral_server, openai_server, raw
from toolcrib.values.message import ChatRequest, Message, Reply, Settings, TextPart, Usage

CANARY = "canary-0123456789abcdef"
HI = ChatRequest((Message.user("Hi"),), id_prefix="r_0_")
LONG = "add_" + "x" * 90  # both take 64 characters
ADD: dict[str, Any] = {
    "name": LONG,
    "description": "Add.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}

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
    client = MistralClient("m", **given)  # type: ignore[arg-type]
    key = client._headers.get("Authorization", "").removeprefix("Bearer ") or None
    assert (client._base, key) == expected


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


@both
async def test_a_conversation_moves_between_providers(stream: bool) -> None:
    """Ids, names and results of one provider are made legal for the other, there and back."""
    request = msgspec.structs.replace(HI, tools=(ADD,))
    async with (
        openai_server([offered, "Bye"]) as openai,
        mistral_server([offered]) as server,
        OpenAIClient("m", base_url=openai.url) as first,
        MistralClient("m", base_url=server.url) as second,
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
        mistral_server([cut(["Hm. ", call("add", a=1), call("add", a=2)])]) as server,
        MistralClient("m", base_url=server.url) as client,
    ):
        reply = await reply_of(client, request, stream=stream)
    assert reply.finish == "length"
    assert {made.complete for made in reply.tool_calls} == {False}


@both
@pytest.mark.parametrize("after", [0, 1, 200, 400])
async def test_a_server_that_dies_gives_an_error_and_no_call(stream: bool, after: int) -> None:
    turn: list[Any] = ["Let me add. ", call("add", a=1)]
    async with (
        mistral_server([die_after(after if stream else after // 5, turn)]) as server,
        MistralClient("m", retries=None, base_url=server.url) as client,
    ):
        with pytest.raises(ConnectionFailed):
            await reply_of(client, HI, stream=stream)


@both
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, RequestError),
        (401, AuthenticationError),
        (429, RateLimitError),
        (503, OverloadedError),
    ],
)
async def test_refusals(status: int, kind: type[ClientError], stream: bool) -> None:
    async with (
        mistral_server([http_error(status, f"{CANARY} because", retry_after=1.5)]) as server,
        MistralClient("m", retries=None, base_url=server.url, api_key=CANARY) as client,
    ):
        with pytest.raises(kind, match="because") as caught:
            await reply_of(client, HI, stream=stream)
    assert type(caught.value) is kind
    assert caught.value.status == status
    assert CANARY not in str(caught.value)


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
