"""The transport over aiohttp: many at once, several threads, closed or cancelled in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import pytest
from rows import each_row

from toolcrib.clients import OpenAIClient, Timeouts
from toolcrib.clients.transport import AiohttpTransport, _AiohttpResponse
from toolcrib.errors import ConnectionFailed, RequestError, WireError
from toolcrib.testing import openai_server
from toolcrib.values.message import ChatRequest, Message, TextPart

HI = ChatRequest((Message.user("Hi"),))
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
TEXT = b'data: {"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n'
Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Its base URL, and an event that is set once a client has left."""

    url = ""

    def __init__(self) -> None:
        self.left = asyncio.Event()


@contextlib.asynccontextmanager
async def serving(body: bytes, *, head: bytes = HEAD) -> AsyncIterator[Server]:
    """A server that sends this head and body, and then waits for its client to leave."""
    made, tasks = Server(), list[asyncio.Task[Any] | None]()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head + body)
            await reader.read()
        made.left.set()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=200)
    async with server:
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield made
    await asyncio.gather(*(task for task in tasks if task is not None))


async def test_a_task_that_is_cancelled_after_the_last_byte_leaves_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server has said all, but does not end its body, which is waited for."""
    lingering, close = asyncio.Event(), _AiohttpResponse.aclose

    async def noted(response: _AiohttpResponse, *, whole: bool) -> None:
        lingering.set()
        await close(response, whole=whole)

    monkeypatch.setattr(_AiohttpResponse, "aclose", noted)
    monkeypatch.setattr("toolcrib.clients.transport.LINGER", 3600)
    async with serving(TEXT + b"data: [DONE]\n\n") as server:
        client = OpenAIClient("m", base_url=server.url)
        task = asyncio.create_task(client.chat(HI))
        await lingering.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.left.wait()
        await client.aclose()


async def test_more_streams_than_a_hundred_are_open_at_once() -> None:
    async with (
        serving(TEXT) as server,
        OpenAIClient("m", base_url=server.url) as client,
    ):
        streams: list[Any] = [client.stream(HI) for _ in range(120)]
        firsts = await asyncio.gather(*(anext(stream) for stream in streams))
        assert firsts == [TextPart("Hi")] * 120
        await asyncio.gather(*(stream.aclose() for stream in streams))


async def test_what_was_closed_is_used_again() -> None:
    async with openai_server(["a", "b"]) as server:
        client = OpenAIClient("m", base_url=server.url)
        for text in ("a", "b"):
            await client.aclose()
            assert (await client.chat(HI)).text == text
        await client.aclose()
        await client.aclose()


def whole(text: str) -> bytes:
    event = TEXT.replace(b"Hi", text.encode()) + b"data: [DONE]\n\n"
    length = b"\r\nContent-Length: %d\r\n\r\n" % len(event)
    return HEAD.removesuffix(b"\r\n\r\n") + length + event


@each_row(
    ("late", "waits"),
    [
        (whole("stray"), True),
        (whole("stray"), False),
        (whole("stray")[:-30], True),
        (b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n", True),
        (b"no http", True),
    ],
)
async def test_what_nobody_asked_for_answers_no_later_request(late: bytes, waits: bool) -> None:
    """A second answer on a kept connection would be taken for that to whatever is asked next."""
    stray, connections = asyncio.Event(), 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        first, number = connections == 1, 0
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
                number += 1
                writer.write(whole(f"{connections}.{number}"))
                if first and number == 1:
                    await stray.wait()
                    writer.write(late)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server, OpenAIClient("m", base_url=url, retries=None) as client:
        assert (await client.chat(HI)).text == "1.1"
        stray.set()
        await asyncio.sleep(0.05 if waits else 0)
        assert (await client.chat(HI)).text == "2.1"


@pytest.mark.parametrize("before", [0, 1], ids=["new", "kept"])
async def test_what_is_closed_in_the_middle_fails_and_is_not_asked_again(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, sessions = asyncio.Event(), list[aiohttp.ClientSession]()
    made = aiohttp.ClientSession

    def making(*given: Any, **named: Any) -> aiohttp.ClientSession:
        sessions.append(made(*given, **named))
        return sessions[-1]

    monkeypatch.setattr(aiohttp, "ClientSession", making)

    def answer(_body: Any) -> str:
        if len(server.requests) > before:
            arrived.set()
        return "text"

    async with openai_server([answer] * 3) as server:
        client = OpenAIClient("m", base_url=server.url)
        for _ in range(before):
            await client.chat(HI)
        task = asyncio.create_task(client.chat(HI))
        await arrived.wait()
        await client.aclose()
        with pytest.raises(ConnectionFailed):
            await task
        assert len(server.requests) == before + 1
        assert [session.closed for session in sessions] == [True] * len(sessions) != []


LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % (len(TEXT) + 9)


@pytest.mark.parametrize("head", [HEAD, LENGTH, CHUNKED], ids=["to the end", "length", "chunked"])
async def test_who_waits_for_a_body_that_is_closed_is_told_so(head: bytes) -> None:
    """Another attempt would open what was closed."""
    async with serving(TEXT, head=head) as server:
        limits = Timeouts(read=None, total=None)
        client = OpenAIClient("m", base_url=server.url, timeouts=limits)
        parts = client.stream(HI)
        assert await anext(parts) == TextPart("Hi")
        waiting = asyncio.ensure_future(anext(parts))
        await asyncio.sleep(0)
        await client.aclose()
        with pytest.raises(ConnectionFailed) as caught:
            await waiting
        assert not caught.value.retryable
        await server.left.wait()


async def test_who_waits_for_a_connection_is_told_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody cancelled it."""
    monkeypatch.setattr("toolcrib.connections.CONNECTIONS", 1)
    async with serving(TEXT) as server:
        client = OpenAIClient("m", base_url=server.url)
        async with contextlib.aclosing(client.stream(HI)) as parts:  # type: ignore[type-var]
            await anext(parts)
            waiting, cancelled = (asyncio.create_task(client.chat(HI)) for _ in range(2))
            await asyncio.sleep(0)
            cancelled.cancel()
            await client.aclose()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            with pytest.raises(ConnectionFailed) as caught:
                await waiting
        assert not caught.value.retryable


async def test_to_wait_for_a_free_connection_is_not_to_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolcrib.connections.CONNECTIONS", 1)
    limits = Timeouts(connect=0.2, read=None, total=None)
    async with serving(TEXT) as server:
        client = OpenAIClient("m", base_url=server.url, timeouts=limits, retries=None)
        async with client, contextlib.aclosing(client.stream(HI)) as parts:  # type: ignore[type-var]
            await anext(parts)
            async with contextlib.aclosing(client.stream(HI)) as others:  # type: ignore[type-var]
                waiting = asyncio.ensure_future(anext(others))
                await asyncio.sleep(0.3)
                assert not waiting.done()
                await parts.aclose()  # type: ignore[attr-defined]
                assert await waiting == TextPart("Hi")


async def test_a_server_that_says_nothing_is_waited_for_by_the_limit_to_read() -> None:
    """It has the request, and may be at work on it: nobody asks it again."""
    limits = Timeouts(connect=0.05, read=0.1, total=None)
    async with serving(b"", head=b"") as server:
        client = OpenAIClient("m", base_url=server.url, timeouts=limits, retries=None)
        async with client:
            with pytest.raises(ConnectionFailed, match=r"within the time limit$") as caught:
                await client.chat(HI)
    assert not caught.value.retryable


async def test_a_large_body_is_sent() -> None:
    """As `-W error` has it: aiohttp warns of what it writes at one go."""
    large = ChatRequest((Message.user("x" * (3 << 20)),))
    async with openai_server(["Hi"]) as server, OpenAIClient("m", base_url=server.url) as client:
        assert (await client.chat(large)).text == "Hi"
        assert server.requests[0]["messages"][0]["content"] == large.messages[0].content


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_server_whose_name_nobody_tells(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    limits = Timeouts(connect=0.01, read=None, total=None)
    client = OpenAIClient("m", base_url=f"{scheme}://h.example/v1", timeouts=limits, retries=None)
    async with client:
        with pytest.raises(ConnectionFailed, match=r"within the time limit$") as caught:
            await client.chat(HI)
    assert caught.value.retryable


async def test_a_proxy_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Timeouts(connect=0.05, read=None, total=None)
    async with serving(b"", head=b"") as server:
        monkeypatch.setenv("https_proxy", server.url.removesuffix("/v1"))
        client = OpenAIClient("m", base_url="https://h.example/v1", timeouts=limits, retries=None)
        async with client:
            with pytest.raises(ConnectionFailed, match=r"within the time limit$") as caught:
                await client.chat(HI)
        assert caught.value.retryable
        await server.left.wait()


async def test_an_answer_that_nobody_reads_to_its_end_is_not_kept() -> None:
    async with serving(TEXT) as server, OpenAIClient("m", base_url=server.url) as client:
        async with contextlib.aclosing(client.stream(HI)) as parts:  # type: ignore[type-var]
            await anext(parts)
        await server.left.wait()  # though the client is open


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 two hundred\r\n\r\n", b"\x15\x03\x01\0\2\2F", b"HTTP/1.1 200\r\n: x\r\n\r\n"],
)
async def test_what_does_not_speak_http_is_not_asked_again(answer: bytes) -> None:
    async with (
        serving(b"", head=answer) as server,
        OpenAIClient("m", base_url=server.url) as client,
    ):
        with pytest.raises(ConnectionFailed, match=r"its answer is not valid HTTP$") as caught:
            await client.chat(HI)
        assert not caught.value.retryable


async def test_a_part_of_an_answer_is_none() -> None:
    length = b"Content-Length: %d\r\n\r\n" % len(TEXT)
    head = HEAD.replace(b"200 OK", b"206 Partial Content")[:-2] + length
    async with (
        serving(TEXT, head=head) as server,
        OpenAIClient("m", base_url=server.url, retries=None) as client,
    ):
        with pytest.raises(WireError, match="HTTP 206"):
            await client.chat(HI)


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example"])
async def test_a_name_that_no_server_can_have(host: str) -> None:
    async with OpenAIClient("m", base_url=f"http://{host}/v1") as client:
        with pytest.raises(RequestError, match="this is not a valid server name"):
            await client.chat(HI)


@each_row("seconds", [0, -1, math.nan, math.inf])
@each_row("name", Timeouts.__struct_fields__)
def test_time_limits_are_checked(name: str, seconds: float) -> None:
    with pytest.raises(ValueError, match="more than 0 seconds"):
        Timeouts(**{name: seconds})
    assert getattr(Timeouts(**{name: None}), name) is None


@pytest.fixture
def often() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(works: list[Callable[[], None]]) -> None:
    """All of them at once. Raises what one of them raised."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:  # noqa: BLE001  raised below
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.mark.usefixtures("often")
def test_loops_of_several_threads_do_not_close_one_anothers_connections() -> None:
    transport = AiohttpTransport()

    async def once() -> None:
        pooled = await transport._pool.pooled_session()
        await asyncio.sleep(0)
        assert not pooled.session.closed
        assert await transport._pool.pooled_session() is pooled

    def work() -> None:
        for _ in range(25):
            asyncio.run(once())

    in_threads([work] * 6)


def test_no_two_threads_go_on_in_the_same_encoded_history() -> None:
    client = OpenAIClient("m", base_url="http://h")
    memos = [client._per_thread.memo]
    in_threads([lambda: memos.append(client._per_thread.memo)] * 2)
    assert client._per_thread.memo is memos[0]
    assert len({id(memo) for memo in memos}) == 3


@pytest.mark.parametrize(("given", "kept"), [({}, 1), ({"history_bytes": 0}, 0)])
async def test_a_client_keeps_what_it_encoded_within_its_limit(
    given: dict[str, Any], kept: int
) -> None:
    async with (
        openai_server(["Hello"]) as server,
        OpenAIClient("m", base_url=server.url, **given) as client,
    ):
        await client.chat(HI)
        assert len(client._per_thread.memo.histories) == kept


def test_a_limit_is_a_number_of_bytes() -> None:
    with pytest.raises(RequestError, match="history_bytes must be a number of bytes, 0 or more"):
        OpenAIClient("m", base_url="http://h", history_bytes=-1)
