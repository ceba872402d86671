"""Where Gemini's client gets its server and key from, and what it asks and makes of the answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from clients.exchanges import asks, is_below

from toolcrib.clients import GeminiClient, Outgoing, WireClient, client_for
from toolcrib.clients.server import joined
from toolcrib.errors import (
    AuthenticationError,
    ClientError,
    ConnectionFailed,
    OverloadedError,
    ProviderError,
    RateLimitError,
    RequestError,
)
from toolcrib.values.message import ArgumentsPart, ChatRequest, Message, Reply, TextPart

GOOGLE = "https://generativelanguage.googleapis.com/v1beta"
OTHER = "http://localhost:8000/v1"
CANARY = "AIza-canary-0123456789abcdef"
HI = ChatRequest((Message.user("Hi"),), id_prefix="r_0_")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)


SOURCES: list[tuple[dict[str, str], dict[str, str], tuple[str, str | None]]] = [
    ({}, {"api_key": "k1"}, (GOOGLE, "k1")),
    ({"GEMINI_API_KEY": " k2\n"}, {}, (GOOGLE, "k2")),
    ({"GOOGLE_API_KEY": "k3"}, {}, (GOOGLE, "k3")),
    ({"GEMINI_API_KEY": "k2", "GOOGLE_API_KEY": "k3"}, {}, (GOOGLE, "k2")),
    ({"GEMINI_API_KEY": " ", "GOOGLE_API_KEY": "k3"}, {}, (GOOGLE, "k3")),
    ({"GEMINI_API_KEY": "k2"}, {"api_key": "k1"}, (GOOGLE, "k1")),
    ({"GEMINI_API_KEY": "k2"}, {"base_url": OTHER}, (OTHER, None)),
    ({"GEMINI_API_KEY": "k2"}, {"base_url": OTHER, "api_key": "k1"}, (OTHER, "k1")),
    ({"GEMINI_API_KEY": "k2"}, {"base_url": GOOGLE + "/"}, (GOOGLE + "/", "k2")),
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
    url, headers = asks(GeminiClient, "m", **given)
    assert is_below(url, expected[0])
    assert headers == ({"x-goog-api-key": expected[1]} if expected[1] else {})


@pytest.mark.parametrize("base_url", [None, GOOGLE])
def test_google_itself_needs_a_key(base_url: str | None) -> None:
    with pytest.raises(AuthenticationError, match="GEMINI_API_KEY"):
        GeminiClient("m", base_url=base_url)


def test_the_client_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    client = client_for("gemini:gemini-x")
    assert isinstance(client, GeminiClient)
    assert client.model == "gemini-x"
    with pytest.raises(RequestError, match="gemini:MODEL"):
        client_for("gemini:")


@pytest.mark.parametrize(
    ("base", "path", "url"),
    [
        ("https://a.test/v1/", "/m:x?alt=sse", "https://a.test/v1/m:x?alt=sse"),
        ("https://a.test/v1?k=v", "/m:x?alt=sse", "https://a.test/v1/m:x?alt=sse&k=v"),
        ("https://a.test/v1?k=v", "/m:x", "https://a.test/v1/m:x?k=v"),
    ],
)
def test_a_query_of_the_wire_and_one_of_the_server(base: str, path: str, url: str) -> None:
    assert joined(base, path) == url


class Answer:
    """An answer out of a table, in two pieces; with `breaks`, only half of it comes."""

    headers: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, status: int, body: bytes, *, breaks: bool = False) -> None:
        self.status = status
        self._body = body
        self._breaks = breaks

    async def chunks(self) -> AsyncIterator[bytes]:
        half = len(self._body) // 2
        yield self._body[:half]
        if not self._breaks:
            yield self._body[half:]

    async def aclose(self, *, whole: bool) -> None:
        pass


class Canned:
    """A transport that keeps what was sent."""

    def __init__(self, answer: Answer) -> None:
        self.sent: list[Outgoing] = []
        self._answer = answer

    async def send(self, request: Outgoing) -> Answer:
        self.sent.append(request)
        return self._answer

    async def aclose(self) -> None:
        pass


def reply_body(*, stream: bool, why: str = "STOP") -> bytes:
    parts: list[dict[str, Any]] = [
        {"text": "Let me add. "},
        {"functionCall": {"name": "add", "args": {"a": 1}}, "thoughtSignature": "c2ln"},
    ]
    if not stream:
        candidate = {"content": {"parts": parts}, "finishReason": why}
        return json.dumps({"candidates": [candidate]}).encode()
    chunks: list[Any] = [{"candidates": [{"content": {"parts": [part]}}]} for part in parts]
    chunks[-1]["candidates"][0]["finishReason"] = why
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n" for chunk in chunks)


async def parts_of(client: WireClient, *, stream: bool) -> list[Any]:
    return [part async for part in client.stream(HI)] if stream else [await client.chat(HI)]


both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@both
async def test_a_reply(stream: bool) -> None:
    transport = Canned(Answer(200, reply_body(stream=stream)))
    client = GeminiClient("gemini-x", api_key=CANARY, transport=transport)
    *parts, reply = await parts_of(client, stream=stream)
    assert isinstance(reply, Reply)
    assert (reply.text, reply.finish) == ("Let me add. ", "tool_calls")
    assert [(c.id, c.name, c.arguments) for c in reply.tool_calls] == [("r_0_0", "add", '{"a": 1}')]
    shown = [TextPart("Let me add. "), ArgumentsPart("r_0_0", "add", '{"a": 1}')]
    assert parts == (shown if stream else [])
    (sent,) = transport.sent
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    assert sent.url == f"{GOOGLE}/models/gemini-x:{method}"
    assert sent.headers["x-goog-api-key"] == CANARY
    assert json.loads(sent.body) == {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}


@both
async def test_a_reply_that_breaks_off_is_an_error(stream: bool) -> None:
    answer = Answer(200, reply_body(stream=stream), breaks=True)
    client = GeminiClient("m", api_key=CANARY, transport=Canned(answer))
    with pytest.raises(ConnectionFailed if stream else ClientError):
        await parts_of(client, stream=stream)


@both
async def test_a_malformed_call_is_an_error_that_says_so(stream: bool) -> None:
    answer = Answer(200, reply_body(stream=stream, why="MALFORMED_FUNCTION_CALL"))
    client = GeminiClient("m", retries=None, api_key=CANARY, transport=Canned(answer))
    with pytest.raises(ProviderError, match="MALFORMED_FUNCTION_CALL"):
        await parts_of(client, stream=stream)


WRONG_KEY = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}


@both
@pytest.mark.parametrize(
    ("status", "details", "kind"),
    [
        (400, [], RequestError),
        (400, [WRONG_KEY], AuthenticationError),
        (403, [], AuthenticationError),
        (404, [], RequestError),
        (429, [], RateLimitError),
        (503, [], OverloadedError),
    ],
)
async def test_refusals(status: int, details: Any, kind: type[ClientError], stream: bool) -> None:
    error = {"code": status, "message": f"{CANARY} because", "status": "X", "details": details}
    answer = Answer(status, json.dumps({"error": error}).encode())
    client = GeminiClient("m", retries=None, api_key=CANARY, transport=Canned(answer))
    with pytest.raises(kind, match="because") as caught:
        await parts_of(client, stream=stream)
    assert type(caught.value) is kind
    assert CANARY not in str(caught.value)
