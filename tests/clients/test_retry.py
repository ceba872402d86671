"""When a request is made again, after how long, and what its caller is told in the end."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import itertools
import math
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
from rows import each_row

from toolcrib.clients import OpenAIClient, Retries, Timeouts
from toolcrib.clients.base import retry_after
from toolcrib.clients.transport import failure_of
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
from toolcrib.testing import die_after, http_error, openai_server, raw
from toolcrib.testing.scripted import RawTurn
from toolcrib.values.message import ChatRequest, Message, Reply, TextPart

HI = ChatRequest((Message.user("Hi"),))
BUSY = http_error(503, "busy")

both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


class Waits(list[float]):
    """Takes the place of sleeping, and notes for how long."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


@pytest.fixture
def waits() -> Waits:
    return Waits()


async def ask(client: OpenAIClient, *, stream: bool) -> str:
    if not stream:
        return (await client.chat(HI)).text
    *_, last = [part async for part in client.stream(HI)]
    assert isinstance(last, Reply)
    return last.text


def refused(status: int, **headers: str) -> RawTurn:
    return msgspec.structs.replace(http_error(status, "because"), headers=headers)


AGAIN: list[Any] = [
    http_error(408),
    http_error(409),
    http_error(429),
    http_error(500),
    http_error(502),
    http_error(529),
    refused(400, **{"x-should-retry": "true"}),
    die_after(0, "Hello."),
    raw('data: {"error": {"message": "wait", "type": "overloaded_error"}}\n\n'),
    raw(""),
]


@both
@pytest.mark.parametrize("turn", AGAIN)
async def test_what_may_pass_is_tried_again(turn: Any, stream: bool, waits: Waits) -> None:
    if turn == raw("") and not stream:
        turn = die_after(1, "Hello.")
    async with (
        openai_server([turn, turn, "Hello."]) as server,
        OpenAIClient("m", base_url=server.url, retries=Retries(sleep=waits)) as client,
    ):
        assert await ask(client, stream=stream) == "Hello."
        assert len(server.requests) == 3
        assert server.requests[0] == server.requests[2]
    first, second = waits
    assert 0.5 <= first <= 1
    assert 1 <= second <= 1.5


ONCE: list[tuple[Any, type[ClientError]]] = [
    (http_error(400), RequestError),
    (http_error(401), AuthenticationError),
    (http_error(403), AuthenticationError),
    (http_error(404), RequestError),
    (refused(500, **{"x-should-retry": "false"}), ProviderError),
    (refused(429, **{"retry-after": "61"}), RateLimitError),
    (raw('{"error": {"code": "insufficient_quota"}}', status=429), RateLimitError),
    (raw('{"error": {"code": "content_filter"}}', status=400), RequestError),
    (raw("<html>", content_type="text/html"), WireError),
]


@both
@pytest.mark.parametrize(("turn", "kind"), ONCE)
async def test_what_will_not_pass_is_not(
    turn: Any, kind: type[ClientError], stream: bool, waits: Waits
) -> None:
    async with (
        openai_server([turn]) as server,
        OpenAIClient("m", base_url=server.url, retries=Retries(sleep=waits)) as client,
    ):
        with pytest.raises(kind) as caught:
            await ask(client, stream=stream)
        assert len(server.requests) == 1
    assert "attempts" not in str(caught.value)
    assert waits == []


@both
async def test_the_last_error_says_how_often(stream: bool, waits: Waits) -> None:
    async with (
        openai_server([BUSY, BUSY, http_error(529, "full")]) as server,
        OpenAIClient("m", base_url=server.url, retries=Retries(sleep=waits)) as client,
    ):
        with pytest.raises(OverloadedError, match=r"full.*\(after 3 attempts\)$") as caught:
            await ask(client, stream=stream)
        assert caught.value.status == 529
        assert caught.value.__context__ is None
        assert len(server.requests) == 3


@both
async def test_an_error_that_ends_the_attempts_early_says_so_too(
    stream: bool, waits: Waits
) -> None:
    async with (
        openai_server([BUSY, http_error(401, "who?")]) as server,
        OpenAIClient("m", base_url=server.url, retries=Retries(sleep=waits)) as client,
    ):
        with pytest.raises(AuthenticationError, match=r"\(after 2 attempts\)$") as caught:
            await ask(client, stream=stream)
        assert caught.value.__context__ is None


@pytest.mark.parametrize("retries", [None, Retries(attempts=1)])
async def test_once_may_be_enough(retries: Retries | None) -> None:
    async with (
        openai_server([BUSY, "Hello."]) as server,
        OpenAIClient("m", base_url=server.url, retries=retries) as client,
    ):
        with pytest.raises(OverloadedError):
            await client.chat(HI)
        assert len(server.requests) == 1


async def test_nothing_is_repeated_once_a_part_is_out(waits: Waits) -> None:
    late = 'data: {"choices":[{"delta":{"content":"Hel"}}]}\n\ndata: {"error": "busy"}\n\n'
    async with (
        openai_server([raw(late), "Hello."]) as server,
        OpenAIClient("m", base_url=server.url, retries=Retries(sleep=waits)) as client,
    ):
        stream = client.stream(HI)
        assert await anext(stream) == TextPart("Hel")
        with pytest.raises(ProviderError, match="busy"):
            await anext(stream)
        assert len(server.requests) == 1
        assert waits == []


@pytest.mark.parametrize(
    ("headers", "least"), [({"retry-after": "7"}, 7), ({"retry-after-ms": "1500"}, 1.5)]
)
async def test_the_provider_says_when(headers: dict[str, str], least: float, waits: Waits) -> None:
    async with (
        openai_server([refused(429, **headers), "Hello."]) as server,
        OpenAIClient("m", base_url=server.url, retries=Retries(sleep=waits)) as client,
    ):
        assert await ask(client, stream=True) == "Hello."
    (waited,) = waits
    assert least <= waited <= least + 0.5


async def test_google_says_when_in_the_body(waits: Waits) -> None:
    body = b"""{"error": {"code": 429, "message": "Quota.", "status": "RESOURCE_EXHAUSTED", "details":
        [5, {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.07s"}]}}"""
    turn = raw(body, status=429, content_type="application/json")
    async with (
        openai_server([turn, turn]) as server,
        OpenAIClient("m", base_url=server.url, retries=Retries(sleep=waits, attempts=2)) as client,
    ):
        with pytest.raises(RateLimitError, match=r"Quota\. Try again in 34\.1 s") as caught:
            await client.chat(HI)
    assert caught.value.retry_after == 34.07
    assert 34 < waits[0] < 35


NOW = 1_800_000_000.0
DATE = email.utils.formatdate(NOW + 30, usegmt=True)


@each_row(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": DATE}, 30),
        ({"retry-after": email.utils.formatdate(NOW - 30, usegmt=True)}, 0),
        ({"retry-after": "Fri Jan 15 08:01:00 2027"}, 60),  # without a zone: UTC
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0),
        ({"retry-after": "1e9"}, 1e9),
        ({"retry-after": ""}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "5, 10"}, 10),  # two lines of one header
        ({"retry-after": "20, x"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e400"}, None),
        ({"retry-after": "1_000"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after-ms": "?", "retry-after": "1"}, 1),
    ],
)
def test_when_to_come_back(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_a_date_counts_the_same_in_every_zone(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(time, "tzset"):
        pytest.skip("this system cannot change its time zone")
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert retry_after({"retry-after": "Fri Jan 15 08:00:30 2027"}, NOW) == 30
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_when_and_whether_are_both_heeded(waits: Waits) -> None:
    turn = refused(400, **{"x-should-retry": "true", "retry-after": "7"})
    async with (
        openai_server([turn, "Hello."]) as server,
        OpenAIClient("m", base_url=server.url, retries=Retries(sleep=waits)) as client,
    ):
        assert await ask(client, stream=False) == "Hello."
    (waited,) = waits
    assert 7 <= waited <= 7.5


async def test_an_error_is_known_though_its_text_never_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolcrib.clients.base._PATIENCE", 0.05)
    head = b"HTTP/1.1 429 No\r\nContent-Length: 99\r\n\r\nslow down"
    async with (
        server_of([[head]]) as (url, _),
        OpenAIClient("m", base_url=url, retries=None) as client,
    ):
        with pytest.raises(RateLimitError, match="slow down"):
            await client.chat(HI)


async def test_a_cancelled_task_waits_no_longer() -> None:
    waiting = asyncio.Event()

    async def forever(_seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async with (
        openai_server([BUSY, "Hello."]) as server,
        OpenAIClient("m", base_url=server.url, retries=Retries(sleep=forever)) as client,
    ):
        task = asyncio.create_task(client.chat(HI))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(server.requests) == 1


@each_row(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": math.nan},
        {"first_wait": -1.0},
        {"first_wait": math.nan},
        {"first_wait": math.inf, "longest_wait": math.inf},
        {"longest_wait": math.nan},
        {"first_wait": 2.0, "longest_wait": 1.0},
    ],
)
def test_retries_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="attempts must be at least 1"):
        Retries(**wrong)


async def test_without_tenacity_the_error_itself_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tenacity", None)
    async with (
        openai_server([BUSY]) as server,
        OpenAIClient("m", base_url=server.url) as client,
    ):
        with pytest.raises(OverloadedError, match=r"busy.*pip install '\.\[http\]'"):
            await client.chat(HI)


BODY = b'{"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]}'
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
    BODY
)


@contextlib.asynccontextmanager
async def server_of(answers: list[list[bytes]]) -> AsyncIterator[tuple[str, list[int]]]:
    """A server whose nth connection gives these answers, and is closed upon the next request.

    Gives its base URL, and a list that grows with its connections.
    """
    numbers, made, tasks = itertools.count(), list[int](), list[asyncio.Task[Any] | None]()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        number = next(numbers)
        made.append(number)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for answer in answers[min(number, len(answers) - 1)]:
                head = await reader.readuntil(b"\r\n\r\n")
                size = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(size))
                writer.write(answer)
            await reader.readuntil(b"\r\n\r\n")  # one more, upon which it leaves
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", made
    await asyncio.gather(*(task for task in tasks if task is not None))


async def test_a_kept_connection_that_was_closed_is_no_failure() -> None:
    async with (
        server_of([[WHOLE + BODY]]) as (url, made),
        OpenAIClient("m", base_url=url, retries=None) as client,
    ):
        assert [(await client.chat(HI)).text for _ in range(3)] == ["Hello."] * 3
        assert len(made) == 3


async def test_a_new_connection_that_is_closed_is_one() -> None:
    async with (
        server_of([[WHOLE + BODY], []]) as (url, made),
        OpenAIClient("m", base_url=url, retries=None) as client,
    ):
        assert (await client.chat(HI)).text == "Hello."
        with pytest.raises(ConnectionFailed):
            await client.chat(HI)
        assert len(made) == 2


async def test_a_slow_server_is_not_asked_twice(waits: Waits) -> None:
    async with (
        server_of([[b"", b""]]) as (url, made),  # it waits for another request
        OpenAIClient(
            "m", base_url=url, timeouts=Timeouts(read=0.05), retries=Retries(sleep=waits)
        ) as client,
    ):
        with pytest.raises(ConnectionFailed, match=r"within the time limit$"):
            await client.chat(HI)
        assert (len(made), waits) == (1, [])


def test_what_is_wrong_for_good_is_not_tried_again() -> None:
    assert not failure_of(aiohttp.InvalidURL("h"), "http://h").retryable
    assert not failure_of(aiohttp.ServerTimeoutError(), "http://h").retryable
    assert failure_of(aiohttp.ConnectionTimeoutError(), "http://h").retryable
    assert failure_of(aiohttp.ServerDisconnectedError(), "http://h").retryable


class Sleeps(Waits):
    """Sleeps, and notes for how long."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)
        await asyncio.sleep(seconds)


@both
async def test_the_limit_in_all_is_for_attempts_and_waits_together(stream: bool) -> None:
    """A wait that would end after it is not begun, whoever asks for it."""
    sleeps = Sleeps()
    late = refused(429, **{"retry-after": "6"})
    for turns, retries, least in (
        ([late], Retries(sleep=sleeps), 1),
        ([BUSY] * 20, Retries(attempts=20, first_wait=0.1, sleep=sleeps), 2),
    ):
        async with (
            openai_server(turns) as server,
            OpenAIClient(
                "m", base_url=server.url, timeouts=Timeouts(total=1), retries=retries
            ) as client,
        ):
            began = time.monotonic()
            with pytest.raises((RateLimitError, ProviderError)) as caught:
                await ask(client, stream=stream)
            assert time.monotonic() - began < 1.1
            assert least <= len(server.requests) < 10
        if turns == [late]:
            assert (caught.value.retry_after, sleeps) == (6, [])


async def test_each_attempt_has_what_is_left_of_the_limit_in_all() -> None:
    """The second one does not answer: it would have waited for as long again."""
    waited = []

    async def wait(_: float) -> None:
        waited.append(1)
        await asyncio.sleep(0.4)

    limits = Timeouts(total=0.6)
    busy = b"HTTP/1.1 503 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    async with (
        server_of([[busy], [b"", b""]]) as (url, _),
        OpenAIClient(
            "m", base_url=url, timeouts=limits, retries=Retries(first_wait=0.01, sleep=wait)
        ) as client,
    ):
        began = time.monotonic()
        with pytest.raises(ConnectionFailed, match="within the time limit"):
            await client.chat(HI)
        assert time.monotonic() - began < 0.9
    assert waited == [1]


async def test_embeddings_have_one_limit_in_all() -> None:
    from toolcrib.clients import EmbeddingsClient

    late = b"HTTP/1.1 429 X\r\nRetry-After: 6\r\nContent-Length: 0\r\n\r\n"
    limits = Timeouts(total=0.5)
    async with (
        server_of([[late]]) as (url, _),
        EmbeddingsClient("m", base_url=url, timeouts=limits) as client,
    ):
        began = time.monotonic()
        with pytest.raises(RateLimitError):
            await client.embed(["a"])
        assert time.monotonic() - began < 0.5
