"""Clients against a real server on this machine: whole and streamed, good and broken."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from clients.exchanges import HI, both, reply_of
from rows import each_row

from toolcrib.clients import (
    BedrockClient,
    LocalClient,
    OpenAIClient,
    Outgoing,
    Settings,
    Timeouts,
    WireClient,
    fallback,
)
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
from toolcrib.testing import (
    ScriptedClient,
    call,
    cassette,
    cut,
    die_after,
    http_error,
    openai_server,
    raw,
    raw_call,
)
from toolcrib.values.call import Hydrated, Rejected
from toolcrib.values.message import (
    ArgumentsPart,
    ChatRequest,
    LLMClient,
    Message,
    Reply,
    TextPart,
    ToolChoice,
    Usage,
)
from toolcrib.wire import OPENAI_CHAT

CANARY = "sk-canary-0123456789abcdef"
ADD: dict[str, Any] = {
    "name": "add",
    "description": "Add.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    },
}
LOOK: dict[str, Any] = {"name": "look", "description": "Look.", "input_schema": {"type": "object"}}
TWO: list[Any] = ["Let me add. ", call("add", a=1), call("add", a=2)]


@both
async def test_a_conversation(stream: bool) -> None:
    async with (
        openai_server([TWO, "3"]) as server,
        OpenAIClient("m", base_url=server.url, api_key=CANARY) as client,
    ):
        request = msgspec.structs.replace(HI, tools=(ADD,))
        reply = await reply_of(client, request, stream=stream)
        assert (reply.text, reply.finish, reply.usage) == (
            "Let me add. ",
            "tool_calls",
            Usage(1, 11, 7),
        )
        assert [(c.id, c.provider_id, c.name, c.arguments) for c in reply.tool_calls] == [
            ("r_0_0", "call_1_0", "add", '{"a":1}'),
            ("r_0_1", "call_1_1", "add", '{"a":2}'),
        ]
        results = [Message.tool(made, "x") for made in reply.tool_calls]
        messages = (*HI.messages, reply.message, *results)
        request = msgspec.structs.replace(request, messages=messages)
        assert (await reply_of(client, request, stream=stream)).text == "3"
        assert server.headers[0]["authorization"] == f"Bearer {CANARY}"
        assert server.headers[0]["user-agent"] == "toolcrib"
        assert [bool(body.get("stream")) for body in server.requests] == [stream] * 2
        assert [m["role"] for m in server.requests[1]["messages"]] == [
            "user", "assistant", "tool", "tool"]  # fmt: skip


async def test_a_stream_gives_parts_as_they_come() -> None:
    async with (
        openai_server([TWO]) as server,
        OpenAIClient("m", base_url=server.url) as client,
    ):
        parts = [part async for part in client.stream(HI)]
    assert len([part for part in parts if isinstance(part, TextPart)]) == 3
    arguments = [part for part in parts if isinstance(part, ArgumentsPart)]
    assert {(part.call_id, part.name) for part in arguments} == {("r_0_0", "add"), ("r_0_1", "add")}
    assert [type(part) is Reply for part in parts] == [False] * (len(parts) - 1) + [True]


async def test_connections_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, made = asyncio.get_running_loop(), []
    connect = loop.create_connection

    async def counted(*arguments: Any, **more: Any) -> Any:
        made.append(1)
        return await connect(*arguments, **more)

    monkeypatch.setattr(loop, "create_connection", counted)
    async with (
        openai_server(["a", "b", "c", "d"]) as server,
        OpenAIClient("m", base_url=server.url) as client,
    ):
        for stream in (False, True, True, False):
            await reply_of(client, HI, stream=stream)
    assert len(made) == 1


STATUSES: list[tuple[int, type[ClientError]]] = [
    (400, RequestError),
    (401, AuthenticationError),
    (403, AuthenticationError),
    (404, RequestError),
    (429, RateLimitError),
    (500, ProviderError),
    (503, OverloadedError),
]


@both
@each_row(("status", "kind"), STATUSES)
async def test_refusals(status: int, kind: type[ClientError], stream: bool) -> None:
    said = f"wrong key {CANARY} or Bearer {CANARY}, because"
    async with (
        openai_server([http_error(status, said, retry_after=1.5)]) as server,
        OpenAIClient("m", retries=None, base_url=server.url, api_key=CANARY) as client,
    ):
        with pytest.raises(kind) as caught:
            await reply_of(client, HI, stream=stream)
    assert type(caught.value) is kind
    assert caught.value.status == status
    assert "because" in str(caught.value)
    assert_nothing_leaks(caught.value)
    if isinstance(caught.value, RateLimitError):
        assert caught.value.retry_after == 1.5


def assert_nothing_leaks(error: BaseException) -> None:
    assert CANARY not in repr(error)
    assert CANARY not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None


@both
async def test_a_key_in_a_200_is_masked_too(stream: bool) -> None:
    secret = "x-very-own-secret"
    body = json.dumps({"error": {"message": f"no access for {secret}"}})
    async with (
        openai_server([raw(body, content_type="application/json")]) as server,
        WireClient(
            OPENAI_CHAT, "m", retries=None, base_url=server.url, headers={"api-key": secret}
        ) as client,
    ):
        with pytest.raises(ProviderError, match=r"no access for \[key\]"):
            await reply_of(client, HI, stream=stream)
        assert server.headers[0]["api-key"] == secret


@both
@each_row("after", [0, 1, 60, 300])
async def test_a_server_that_dies_gives_an_error_and_no_call(stream: bool, after: int) -> None:
    async with (
        openai_server([die_after(after, TWO)]) as server,
        OpenAIClient("m", retries=None, base_url=server.url, api_key=CANARY) as client,
    ):
        parts: list[Any] = []

        async def ask() -> None:
            if not stream:
                await client.chat(HI)
            async for part in client.stream(HI):
                parts.append(part)

        with pytest.raises(ConnectionFailed) as caught:
            await ask()
        assert_nothing_leaks(caught.value)
        assert not any(isinstance(part, Reply) for part in parts)


async def test_a_server_that_dies_after_the_last_call_but_before_the_end() -> None:
    async with (
        openai_server([die_after(100_000, TWO)]) as server,
        OpenAIClient("m", base_url=server.url) as client,
    ):
        reply = await reply_of(client, HI, stream=True)
        assert reply.finish == "tool_calls"


@each_row(
    "body",
    [
        "",
        ": waiting\n\n",
        'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n',
        'data: {"choices":[{"delta":{"tool_calls":[{"function":{"name":"add"}}]}}]}\n\n',
        'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\ndata: {"choi',
        "data: [DONE]\n\n",
        'data: {"choices":[],"usage":{"prompt_tokens":3}}\n\ndata: [DONE]\n\n',
    ],
)
async def test_a_stream_that_ends_early_without_an_error(body: str) -> None:
    async with (
        openai_server([raw(body)]) as server,
        OpenAIClient("m", retries=None, base_url=server.url) as client,
    ):
        with pytest.raises(ConnectionFailed, match="before it was complete"):
            await reply_of(client, HI, stream=True)


BROKEN: list[tuple[str, str, type[ClientError], str]] = [
    ("<html>", "text/html", WireError, "not a JSON object"),
    ("Not Found\n", "text/plain", WireError, "neither JSON nor"),
    ("{}", "application/json", WireError, "no choices"),
    ('data: {"error": {"message": "busy"}}\n\n', "text/event-stream", ProviderError, "busy"),
    ('{"choices": [{"message": {"content": "x"}, "finish_reason": "error"}]}', "application/json",
     ProviderError, "broke off"),
]  # fmt: skip


@each_row(("body", "kind", "error", "said"), BROKEN)
async def test_what_is_no_reply(body: str, kind: str, error: type[ClientError], said: str) -> None:
    async with (
        openai_server([raw(body, content_type=kind)]) as server,
        OpenAIClient("m", retries=None, base_url=server.url) as client,
    ):
        with pytest.raises(error, match=said):
            await reply_of(client, HI, stream=True)


@both
@each_row("word", ["error", "abort"])
async def test_a_reason_in_an_error_is_one_short_line_without_a_key(
    word: str, stream: bool
) -> None:
    reason = f"{word}: \x1b[2J\nsk-proj-abcdefghijkl {'x' * 5000}"
    body = json.dumps({"choices": [{"message": {"content": "Hi"}, "finish_reason": reason}]})
    async with (
        openai_server([raw(body, content_type="application/json")]) as server,
        OpenAIClient("m", retries=None, base_url=server.url) as client,
    ):
        with pytest.raises(ClientError, match=f"{word}: .*key") as caught:
            await reply_of(client, HI, stream=stream)
    said = str(caught.value)
    assert said.isprintable()
    assert "abcdefghijkl" not in said
    assert len(said) < 700


@both
@pytest.mark.parametrize("kind", ["text/event-stream", "Text/Event-Stream; charset=UTF-8"])
async def test_a_server_may_answer_in_the_other_form(kind: str, stream: bool) -> None:
    whole = '{"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}'
    events = f"data: {whole.replace('message', 'delta')}\n\ndata: [DONE]\n\n"
    turn = raw(whole, content_type="application/json") if stream else raw(events, content_type=kind)
    async with (
        openai_server([turn]) as server,
        OpenAIClient("m", base_url=server.url) as client,
    ):
        assert (await reply_of(client, HI, stream=stream)).text == "Hi"


@both
async def test_a_cut_reply_is_a_reply_with_nothing_to_run(stream: bool) -> None:
    async with (
        openai_server([cut(TWO)]) as server,
        OpenAIClient("m", base_url=server.url) as client,
    ):
        reply = await reply_of(client, HI, stream=stream)
    assert reply.finish == "length"
    assert [made.complete for made in reply.tool_calls] == [False, False]


async def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        async with OpenAIClient(
            "m", retries=None, base_url=f"http://127.0.0.1:{port}/v1", api_key=CANARY
        ) as client:
            with pytest.raises(
                ConnectionFailed, match=rf"127.0.0.1:{port}: no connection"
            ) as caught:
                await client.chat(HI)
            assert_nothing_leaks(caught.value)


@contextlib.asynccontextmanager
async def server_that(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """A server of a few bytes; gives its base URL, and waits for its connections to be closed."""
    handlers: list[asyncio.Task[Any] | None] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        await answer(reader, writer)
        await reader.read()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    await asyncio.gather(*(task for task in handlers if task is not None))


EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


@both
async def test_a_server_that_never_answers_runs_into_the_time_limit(stream: bool) -> None:
    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if stream:
            writer.write(EVENTS + b": wait\n\n")

    async with (
        server_that(silent) as url,
        OpenAIClient("m", base_url=url, timeouts=Timeouts(read=0.05)) as client,
    ):
        with pytest.raises(ConnectionFailed, match="time limit"):
            await reply_of(client, HI, stream=stream)


async def test_a_server_that_never_closes_after_the_end_is_left() -> None:
    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENTS + b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\ndata: [DONE]\n\n')

    async with server_that(endless) as url, OpenAIClient("m", base_url=url) as client:
        assert (await reply_of(client, HI, stream=True)).text == "Hi"


async def test_redirects_are_not_followed() -> None:
    turn = msgspec.structs.replace(http_error(302), headers={"Location": "http://127.0.0.1:9/"})
    async with (
        openai_server([turn]) as server,
        OpenAIClient("m", base_url=server.url, api_key=CANARY) as client,
    ):
        with pytest.raises(WireError, match="base URL"):
            await client.chat(HI)


async def test_a_stream_that_is_left_early_closes_its_connection() -> None:
    async with (
        openai_server(["text " * 1000, "again"]) as server,
        OpenAIClient("m", base_url=server.url) as client,
    ):
        stream = client.stream(HI)
        assert isinstance(await anext(stream), TextPart)
        await stream.aclose()  # type: ignore[attr-defined]
        assert (await client.chat(HI)).text == "again"


async def test_many_requests_at_once() -> None:
    async with (
        openai_server([lambda body: body["messages"][0]["content"]] * 20) as server,
        OpenAIClient("m", base_url=server.url) as client,
    ):
        requests = [ChatRequest((Message.user(f"n{n}"),)) for n in range(20)]
        replies = await asyncio.gather(*(client.chat(request) for request in requests))
    assert [reply.text for reply in replies] == [f"n{n}" for n in range(20)]


async def test_settings_of_the_client_and_of_the_request() -> None:
    own = Settings(temperature=0.1, max_tokens=5, extra={"seed": 1, "user": "u"})
    async with (
        openai_server(["a", "b"]) as server,
        OpenAIClient("m", base_url=server.url, settings=own) as client,
    ):
        await client.chat(HI)
        asked = Settings(temperature=0.9, extra={"seed": 2})
        await client.chat(msgspec.structs.replace(HI, settings=asked))
    first, second = server.requests
    assert (first["temperature"], first["max_tokens"], first["seed"]) == (0.1, 5, 1)
    assert (second["temperature"], second["max_tokens"], second["seed"]) == (0.9, 5, 2)
    assert second["user"] == "u"


@pytest.mark.parametrize("as_request", [False, True])
async def test_a_plan_is_hydrated_and_nothing_is_run(as_request: bool) -> None:
    turn: list[Any] = [
        "Hm. ",
        call("add", a=1),
        call("add", a="x"),
        call("no"),
        raw_call("add", "{"),
    ]
    turn[-1] = raw_call("add", "{]")
    async with (
        openai_server([turn, "None needed.", cut([call("add", a=1)])]) as server,
        OpenAIClient("m", base_url=server.url) as client,
    ):
        prompt: Any = HI if as_request else "Hi"
        plan = await client.tool_call(prompt, [ADD])
        assert [type(result) for result in plan] == [Hydrated, Rejected, Rejected, Rejected]
        codes = [[str(error.code) for error in result.errors] for result in plan]
        assert codes == [[], ["invalid_arguments"], ["unknown_tool"], ["invalid_json"]]
        assert plan.reply.text == "Hm. "
        plan = await client.tool_call(msgspec.structs.replace(HI, tools=(ADD,)))
        assert (list(plan), plan.reply.text) == ([], "None needed.")
        (result,) = await client.tool_call("Hi", [ADD])
        assert [str(error.code) for error in result.errors] == ["truncated"]
    functions = [tool["function"] for body in server.requests for tool in body["tools"]]
    assert functions[0] == functions[1] == functions[2]
    assert functions[0]["parameters"] == ADD["input_schema"]


@each_row(
    "choice",
    [
        ToolChoice("none"),
        ToolChoice(allowed=("look",)),
        ToolChoice("required", allowed=("look",)),
        ToolChoice("tool", "look"),
    ],
)
async def test_a_call_that_the_choice_does_not_permit_is_not_planned(choice: ToolChoice) -> None:
    """Many servers ignore the choice."""
    request = msgspec.structs.replace(HI, tool_choice=choice)
    async with (
        openai_server([[call("look"), call("add", a=1)]]) as server,
        OpenAIClient("m", base_url=server.url) as client,
    ):
        looked, added = await client.tool_call(request, [ADD, LOOK])
    assert isinstance(looked, Rejected if choice.mode == "none" else Hydrated)
    assert isinstance(added, Rejected)
    assert [str(error.code) for error in added.errors] == ["not_offered"]


def test_one_client_serves_several_event_loops_and_leaves_nothing_open() -> None:
    clients: list[OpenAIClient] = []

    async def once(text: str) -> str:
        async with openai_server([text, text]) as server:
            if not clients:
                clients.append(OpenAIClient("m", base_url=server.url))
            clients[0]._base = server.url
            first = await reply_of(clients[0], HI, stream=True)
            return first.text + (await clients[0].chat(HI)).text

    assert [asyncio.run(once(text)) for text in ("a", "b", "c")] == ["aa", "bb", "cc"]
    clients.clear()
    gc.collect()


def test_it_is_a_client_and_shows_nothing_secret() -> None:
    url = f"https://user:{CANARY}@api.example.com/v1?key={CANARY}"
    client: LLMClient = OpenAIClient("m", base_url=url, api_key=CANARY)
    assert isinstance(client, LLMClient)
    assert repr(client) == "OpenAIClient('m', openai-chat at https://api.example.com)"
    outgoing = Outgoing(method="POST", url=url, headers={"a": CANARY}, body=CANARY.encode())
    assert repr(outgoing) == "Outgoing(POST https://api.example.com, 26 bytes)"


@each_row("url", ["", "api.openai.com/v1", "ftp://host/v1", "http://", "/v1"])
def test_a_base_url_that_is_none(url: str) -> None:
    with pytest.raises(RequestError, match="base URL"):
        WireClient("openai-chat", "m", base_url=url)


def test_a_header_that_http_does_not_allow() -> None:
    with pytest.raises(RequestError, match="'x-key'") as caught:
        WireClient("openai-chat", "m", base_url="http://h", headers={"x-key": f"{CANARY}\r\nx: y"})
    assert CANARY not in str(caught.value)


async def test_a_query_in_the_base_url_stays() -> None:
    seen: list[str] = []

    class Seeing:
        async def send(self, request: Outgoing) -> Any:
            seen.append(request.url)
            raise ConnectionFailed("no further")

        async def aclose(self) -> None:
            return

    base = "https://h/openai/deployments/d/?api-version=1"
    client = WireClient("openai-chat", "m", base_url=base, transport=Seeing(), retries=None)
    with pytest.raises(ConnectionFailed):
        await client.chat(HI)
    assert seen == ["https://h/openai/deployments/d/chat/completions?api-version=1"]


@contextlib.asynccontextmanager
async def closing(head: bytes, body: bytes) -> AsyncIterator[str]:
    """The base URL of a server that ends each of its answers by closing the connection."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + head)
            writer.write(b"Connection: close\r\n\r\n" + body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def said(reason: str) -> bytes:
    piece = {"index": 0, "id": "c", "function": {"name": "add", "arguments": '{"a": 1}'}}
    choice = {"index": 0, "delta": {"tool_calls": [piece]}, "finish_reason": reason}
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


async def test_a_reason_counts_only_with_a_clean_end_of_the_transport() -> None:
    request, body = msgspec.structs.replace(HI, tools=(ADD,)), said("tool_calls")
    length = f"Content-Length: {len(body)}\r\n".encode()
    async with closing(length, body) as url, OpenAIClient("m", base_url=url) as client:
        assert (await reply_of(client, request, stream=True)).tool_calls[0].complete
    async with (
        closing(b"", body) as url,
        OpenAIClient("m", base_url=url, retries=None) as client,
    ):
        with pytest.raises(ConnectionFailed, match="before it was complete"):
            await reply_of(client, request, stream=True)
    async with (
        closing(b"", body + b"data: [DONE]\n\n") as url,
        OpenAIClient("m", base_url=url) as client,
    ):
        assert (await reply_of(client, request, stream=True)).tool_calls[0].complete


def packed(data: bytes, *, window: int = 31, whole: bool = True) -> bytes:
    packer = zlib.compressobj(wbits=window)
    flushed = packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)
    return flushed + packer.flush() if whole else flushed


HEAD = b"Content-Encoding: %s\r\nContent-Length: %d\r\n"


@pytest.mark.parametrize(
    ("coding", "window"), [(b"gzip", 31), (b"deflate", 15), (b"deflate", -15)], ids=repr
)
async def test_a_body_that_stops_before_the_end_of_what_was_packed_was_cut(
    coding: bytes, window: int
) -> None:
    request, body = msgspec.structs.replace(HI, tools=(ADD,)), said("tool_calls")
    cut = "broke in the middle of the reply"
    for sent, why in (
        (packed(body, window=window), ""),
        (packed(body, window=window)[:-1], cut),
        (packed(body, window=window, whole=False), cut),
        (b"no such thing", "not compressed as its Content-Encoding says"),
    ):
        async with (
            closing(HEAD % (coding, len(sent)), sent) as url,
            OpenAIClient("m", base_url=url, retries=None) as client,
        ):
            if not why:
                assert (await reply_of(client, request, stream=True)).tool_calls[0].complete
                continue
            with pytest.raises(ConnectionFailed, match=why):
                await reply_of(client, request, stream=True)


async def test_a_packed_body_that_was_cut_is_seen_behind_an_sdk_too() -> None:
    request, body = msgspec.structs.replace(HI, tools=(ADD,)), said("tool_calls")
    cut, none = "broke in the middle of the reply", "not compressed as its Content-Encoding says"
    for sent, why in ((packed(body), ""), (packed(body)[:-1], cut), (b"none", none)):
        async with (
            closing(HEAD % (b"gzip", len(sent)), sent) as url,
            openai.AsyncOpenAI(api_key="k", base_url=url) as sdk,
            OpenAIClient("m", sdk=sdk, retries=None) as client,
        ):
            if not why:
                assert (await reply_of(client, request, stream=True)).tool_calls[0].complete
                continue
            with pytest.raises(ConnectionFailed, match=why):
                await reply_of(client, request, stream=True)


@pytest.mark.parametrize("sdk", [False, True], ids=["ours", "sdk"])
@each_row(
    ("coding", "sent", "whole"),
    [
        (b"identity, gzip", packed(said("tool_calls")), True),
        (b"identity, gzip", packed(said("tool_calls"), whole=False), False),
        (b"gzip, ,identity", packed(said("tool_calls"), whole=False), False),
        (b"gzip\r\nContent-Encoding: identity", packed(said("tool_calls"), whole=False), False),
        (b"gzip, gzip", packed(packed(said("tool_calls"))), False),
        (b"deflate, gzip", packed(packed(said("tool_calls"), window=15)), False),
    ],
)
async def test_one_coding_is_unpacked_and_several_are_not(
    coding: bytes, sent: bytes, whole: bool, sdk: bool
) -> None:
    request = msgspec.structs.replace(HI, tools=(ADD,))
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(closing(HEAD % (coding, len(sent)), sent))
        if sdk:
            given = await stack.enter_async_context(openai.AsyncOpenAI(api_key="k", base_url=url))
            client = OpenAIClient("m", sdk=given, retries=None)
        else:
            client = OpenAIClient("m", base_url=url, retries=None)
        await stack.enter_async_context(client)
        try:
            ran = [
                call.complete for call in (await reply_of(client, request, stream=True)).tool_calls
            ]
        except ClientError:
            ran = []
    # of two headers, our own client sees the last one alone: it unpacks nothing then
    assert ran == ([True] if whole else [])


async def test_only_codings_whose_end_is_looked_for_are_asked_for_and_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """httpx asks for brotli and zstd, too, where they are installed, and gives what it had of a body
    that was cut."""
    monkeypatch.setitem(httpx2._decoders.SUPPORTED_DECODERS, "br", httpx2._decoders.IdentityDecoder)
    asked, cut = list[str](), b"\x0b\x80" + said("tool_calls")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).decode().lower())
        writer.write(b"HTTP/1.1 200 OK\r\n" + HEAD % (b"br", len(cut)) + b"\r\n" + cut)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with (
        server,
        openai.AsyncOpenAI(api_key="k", base_url=url) as sdk,
        OpenAIClient("m", sdk=sdk, retries=None) as client,
    ):
        with pytest.raises(ClientError):
            await reply_of(client, HI, stream=True)
    assert "\r\naccept-encoding: gzip, deflate\r\n" in asked[0]


@pytest.mark.parametrize(
    "coding", [b"\x0bchunked", b"chun\xe2\x84\xaaed", b"\xc2\xa0chunked"], ids=repr
)
async def test_what_only_looks_like_a_coding_tells_no_end(coding: bytes) -> None:
    request, body = msgspec.structs.replace(HI, tools=(ADD,)), said("tool_calls")
    async with (
        closing(b"Transfer-Encoding: %s\r\n" % coding, body) as url,
        OpenAIClient("m", base_url=url, retries=None) as client,
    ):
        with pytest.raises(ConnectionFailed):
            await reply_of(client, request, stream=True)


@pytest.mark.exhaustive
async def test_what_much_is_unpacked_from_lets_others_have_their_turn_and_has_a_limit() -> None:
    """A little of gzip can hold hours of comments."""
    packer, piece = zlib.compressobj(wbits=31), b": \n" * 1_000_000
    bomb = b"".join(packer.compress(piece) for _ in range(40)) + packer.flush()
    turns = 0

    async def turning() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with (
        closing(HEAD % (b"gzip", len(bomb)), bomb) as url,
        OpenAIClient(
            "m", base_url=url, retries=None, timeouts=Timeouts(read=None, total=0.5)
        ) as client,
    ):
        reading = asyncio.create_task(reply_of(client, HI, stream=True))
        other = asyncio.create_task(turning())
        with pytest.raises(ConnectionFailed, match="within the time limit"):
            await reading
        other.cancel()


async def test_all_members_of_a_packed_body_are_read() -> None:
    request, late = msgspec.structs.replace(HI, tools=(ADD,)), b'data: {"error": "no"}\n\n'
    long = said("") + b": \n" * 1_000_000 + said("")
    for more, error in ((late, ProviderError), (long, ConnectionFailed)):
        body = packed(said("tool_calls")) + packed(more)
        async with (
            closing(HEAD % (b"gzip", len(body)), body) as url,
            OpenAIClient("m", base_url=url, retries=None) as client,
        ):
            with pytest.raises(error):
                await reply_of(client, request, stream=True)


@pytest.mark.parametrize("coding", [b"xchunked", b"chunked, gzip", b"identity"])
async def test_a_length_that_nobody_keeps_to_is_none(coding: bytes) -> None:
    request, body = msgspec.structs.replace(HI, tools=(ADD,)), said("tool_calls")
    async with (
        closing(b"Transfer-Encoding: %s\r\n" % coding, body) as url,
        OpenAIClient("m", base_url=url, retries=None) as client,
    ):
        with pytest.raises(ConnectionFailed, match="before it was complete"):
            await reply_of(client, request, stream=True)


async def test_what_was_cut_is_cut_on_tape_too(tmp_path: Path) -> None:
    request, body = msgspec.structs.replace(HI, tools=(ADD,)), said("tool_calls")
    async with closing(b"", body) as url:
        for mode in ("all", "none"):
            with cassette(tmp_path / "cut.json", record=mode) as tape:
                client = OpenAIClient("m", base_url=url, retries=None, transport=tape)
                with pytest.raises(ConnectionFailed, match="before it was complete"):
                    await reply_of(client, request, stream=True)


async def test_a_reason_that_nobody_lists_stops_calls_until_the_application_lists_it() -> None:
    body = said("finished")
    length = f"Content-Length: {len(body)}\r\n".encode()
    async with closing(length, body) as url:
        async with OpenAIClient("m", base_url=url) as client:
            (stopped,) = await client.tool_call("Add.", [ADD])
            assert isinstance(stopped, Rejected)
            assert "natural_reasons=['finished']" in stopped.errors[0].message
        async with OpenAIClient("m", base_url=url, natural_reasons=["Finished"]) as client:
            (planned,) = await client.tool_call("Add.", [ADD])
            assert isinstance(planned, Hydrated)
    with pytest.raises(RequestError, match="natural_reasons must be a list"):
        OpenAIClient("m", base_url="http://localhost", natural_reasons="finished")


def test_what_a_server_takes_in_results_is_a_list_of_media_types() -> None:
    client = BedrockClient("m", region="eu-west-1", api_key="k", result_media=["Image/PNG"])
    assert (client.wire.result_media, client.wire.result_models) == (frozenset(["image/png"]), "")
    with pytest.raises(RequestError, match="a list of media types"):
        OpenAIClient("m", base_url="http://localhost", result_media="image/png")


def test_who_always_ends_a_stream_with_done() -> None:
    for url, always in (
        ("https://api.openai.com/v1", True),
        ("https://API.openai.com.:443/v1", True),
        ("https://openrouter.ai/api/v1", True),
        ("https://it.openai.azure.com/openai/v1", True),
        ("http://localhost:8000/v1", False),
        ("https://api.cerebras.ai/v1", False),
    ):
        assert OpenAIClient("m", base_url=url, api_key="k").wire.always_done is always


async def test_what_is_no_request_is_answered_with_one() -> None:
    clients: list[Any] = [LocalClient(), OpenAIClient("m", base_url="http://127.0.0.1:1")]
    clients += [ScriptedClient(["Hi"]), fallback([ScriptedClient(["Hi"])])]
    told = (
        r"request must be a request, such as toolcrib.wire.ChatRequest\(\[Message.user\('Hi'\)\]\)"
    )
    for asked in clients:
        with pytest.raises(TypeError, match=told):
            await asked.chat("Hi")
        with pytest.raises(TypeError, match=told):
            await anext(asked.stream("Hi"))
        await asked.aclose()
