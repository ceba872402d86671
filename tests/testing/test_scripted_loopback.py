"""The loopback server: it speaks the wire, and judges requests as the provider does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from rows import each_row

from toolcrib.testing import call, cut, die_after, http_error, openai_server, raw, raw_call
from toolcrib.testing.scripted import fault_of
from toolcrib.values.message import Reply
from toolcrib.wire import decode

HI = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
TWO: list[Any] = ["Wait. ", call("f", a="x" * 20), call("g", b=2)]


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def post(http: aiohttp.ClientSession, url: str, body: Any) -> tuple[int, str, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with http.post(f"{url}/chat/completions", data=data) as response:
        return response.status, response.content_type, await response.read()


def said_by(reply: Reply) -> tuple[str, list[tuple[str, str, str]], str]:
    calls = [(c.provider_id, c.name, c.arguments) for c in reply.tool_calls]
    return reply.text, calls, reply.finish


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_in_both_forms(http: aiohttp.ClientSession, stream: bool) -> None:
    async with openai_server([TWO, "Bye"]) as server:
        status, kind, body = await post(http, server.url, HI | {"stream": stream})
        assert (status, kind) == (200, "text/event-stream" if stream else "application/json")
        calls = [("call_1_0", "f", json.dumps({"a": "x" * 20}, separators=(",", ":")))]
        calls.append(("call_1_1", "g", '{"b":2}'))
        reply = decode("openai-chat", body)
        assert said_by(reply) == ("Wait. ", calls, "tool_calls")
        assert (reply.usage.input_tokens, reply.usage.output_tokens) == (11, 7)
        _, _, body = await post(http, server.url, HI | {"stream": stream})
        assert said_by(decode("openai-chat", body)) == ("Bye", [], "stop")
        assert server.requests == [HI | {"stream": stream}] * 2


async def test_streams_interleave_parallel_calls(http: aiohttp.ClientSession) -> None:
    async with openai_server([TWO]) as server:
        _, _, body = await post(http, server.url, HI | {"stream": True})
    chunks = [json.loads(line[6:]) for line in body.decode().split("\n\n")[:-2]]
    pieces = [
        c for chunk in chunks for x in chunk["choices"] for c in x["delta"].get("tool_calls", ())
    ]
    assert [piece["index"] for piece in pieces][:6] == [0, 1, 0, 1, 0, 1]
    assert len(pieces) > 8


@pytest.mark.parametrize("stream", [False, True])
async def test_cut_turns(http: aiohttp.ClientSession, stream: bool) -> None:
    async with openai_server([cut(TWO), cut("Hello!")]) as server:
        _, _, body = await post(http, server.url, HI | {"stream": stream})
        reply = decode("openai-chat", body)
        assert (reply.finish, reply.tool_calls[1].arguments) == ("length", '{"b')
        _, _, body = await post(http, server.url, HI | {"stream": stream})
        assert said_by(decode("openai-chat", body)) == ("Hel", [], "length")


@pytest.mark.parametrize("after", [0, 1, 100])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_that_dies(http: aiohttp.ClientSession, after: int, stream: bool) -> None:
    async with openai_server([die_after(after, TWO)]) as server:
        with pytest.raises(aiohttp.ClientError):
            await post(http, server.url, HI | {"stream": stream})


async def test_raw_turns_errors_and_functions(http: aiohttp.ClientSession) -> None:
    turns: list[Any] = [
        raw("data: x\n\n"),
        raw(b"{}", content_type="application/json", status=418),
        http_error(429, "slow down", retry_after=2),
        lambda body: f"model {body['model']}",
        raw_call("f", "{not json"),
    ]
    async with openai_server(turns) as server:
        assert await post(http, server.url, HI) == (200, "text/event-stream", b"data: x\n\n")
        assert await post(http, server.url, HI) == (418, "application/json", b"{}")
        async with http.post(f"{server.url}/chat/completions", json=HI) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "2")
            assert (await response.json())["error"]["message"] == "slow down"
        assert decode("openai-chat", (await post(http, server.url, HI))[2]).text == "model m"
        reply = decode("openai-chat", (await post(http, server.url, HI))[2])
        assert reply.tool_calls[0].arguments == "{not json"
        status, _, body = await post(http, server.url, HI)
        assert status == 500
        assert b"used up" in body


async def test_illegal_requests_use_up_no_turn(http: aiohttp.ClientSession) -> None:
    async with openai_server(["Hello"]) as server:
        status, _, body = await post(http, server.url, b"{")
        assert (status, json.loads(body)["error"]["message"]) == (400, "the body is not JSON")
        status, _, body = await post(http, server.url, {"model": "m", "messages": []})
        assert (status, "messages" in json.loads(body)["error"]["message"]) == (400, True)
        assert (await post(http, server.url, HI))[0] == 200


F = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
GIVEN = {"role": "tool", "tool_call_id": "c", "content": "x"}
USER = {"role": "user", "content": "Hi"}


def said(*messages: Any, **members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages)} | members


def picture(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def document(data: str) -> dict[str, Any]:
    return {"type": "file", "file": {"filename": "a.pdf", "file_data": data}}


def recording(format_: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": format_}}


PDF = "data:application/pdf;base64,JVBERi0="


def function(**members: Any) -> dict[str, Any]:
    return {"type": "function", "function": F["function"] | members}  # type: ignore[operator]


LEGAL = [
    said(USER),
    said({"role": "user", "content": [document(PDF), recording("wav")]}),
    said({"role": "user", "content": [{"type": "document_url", "document_url": PDF}]}),
    said({"role": "user", "content": [{"type": "input_audio", "input_audio": "UklGRg=="}]}),
    said(USER, ASKED, GIVEN),
    said(USER, ASKED, GIVEN, ASKED, GIVEN, USER, tools=[F], tool_choice="auto"),
    said(USER, tools=[function(description="d", strict=True)], parallel_tool_calls=True),
    said(USER, stream=True, stream_options={"include_usage": True}),
]
FAULTS: list[tuple[Any, str]] = [
    ([], "not a JSON object"),
    ({"messages": [USER]}, "'model'"),
    (said(), "'messages'"),
    (said({"role": "robot"}), "role"),
    (said({"role": "user"}), "content"),
    (said({"role": "user", "content": []}), "content"),
    (said({"role": "user", "content": [{"type": "image"}]}), "content"),
    (said({"role": "user", "content": [picture("ftp://x/y.png")]}), "content"),
    (said({"role": "assistant", "content": [picture("https://x/y.png")]}), "content"),
    (said({"role": "assistant", "content": [document(PDF)]}), "content"),
    (said({"role": "user", "content": [document("https://x/a.pdf")]}), "content"),
    (said({"role": "user", "content": [recording("ogg")]}), "content"),
    (said(USER, GIVEN), "must be a response"),
    (said(USER, ASKED), "did not have response messages: c"),
    (said(USER, ASKED, USER, GIVEN), "did not have"),
    (said(USER, ASKED, GIVEN, GIVEN), "must be a response"),
    (said(USER | {"tool_calls": [CALL]}), "tool_calls"),
    (said(ASKED | {"tool_calls": []}), "tool_calls"),
    (said(ASKED | {"tool_calls": [CALL, CALL]}, GIVEN), "invalid id"),
    (said(ASKED | {"tool_calls": [CALL | {"id": ""}]}), "invalid id"),
    (said(ASKED | {"tool_calls": [CALL | {"function": {"name": "a.b", "arguments": ""}}]}), "name"),
    (
        said(ASKED | {"tool_calls": [CALL | {"function": {"name": "f", "arguments": {}}}]}),
        "arguments",
    ),
    (said(USER, stream_options={}), "stream_options"),
    (said(USER, tool_choice="auto"), "tool_choice"),
    (said(USER, parallel_tool_calls=True), "parallel_tool_calls"),
    (said(USER, tools=[]), "'tools' is too short"),
    (said(USER, tools=[{"name": "f"}]), "tools[0]"),
    (said(USER, tools=[F, F]), "tools[1]"),
    (said(USER, tools=[function(name="a.b")]), "name"),
    (said(USER, tools=[function(name="f\n")]), "name"),
    (said(USER, tools=[function(output_schema={})]), "'output_schema'"),
    (said(USER, tools=[function(parameters={"type": "array"})]), "schema"),
]


@pytest.mark.parametrize("url", ["https://x/y.png", "data:image/png;base64,aGk="])
def test_pictures_are_legal(url: str) -> None:
    parts = [picture(url), {"type": "text", "text": "?"}]
    assert fault_of(said({"role": "user", "content": parts})) is None


async def test_what_no_check_expects_is_refused(http: aiohttp.ClientSession) -> None:
    """Of any type, anywhere."""
    bodies: list[Any] = [1, [[]], said(1), said(USER, tools=[{"type": "function", "function": 1}])]
    bodies.append(said(ASKED | {"tool_calls": [1]}))
    bodies.append(said(ASKED | {"tool_calls": [CALL | {"function": 1}]}))
    async with openai_server([]) as server:
        for body in bodies:
            assert (await post(http, server.url, body))[0] == 400


@each_row("body", LEGAL)
def test_legal_requests(body: Any) -> None:
    assert fault_of(body) is None


@each_row(("body", "fault"), FAULTS)
def test_faults(body: Any, fault: str) -> None:
    assert fault in (fault_of(body) or "")
