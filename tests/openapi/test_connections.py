"""Connections are used again for what only reads; each answer is that to its own request."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from children import ENVIRONMENT
from openapi.documents import document
from rows import each_row
from waiting import until

from toolcrib import Approve, Completed, Failed, ToolCall, ToolRunner
from toolcrib.bridges.openapi import ApiServer, openapi_catalog
from toolcrib.kit import GuardedHttp, HttpLimits

METHODS = ("get", "put", "post", "patch", "delete")
SOURCE = document(
    {
        "/{n}": {
            "parameters": [
                {"name": "n", "in": "path", "required": True, "schema": {"type": "integer"}}
            ],
            **{method: {"operationId": method, "responses": {}} for method in METHODS},
        }
    }
)


class Server:
    """Answers each request with its path, and knows by which connection each came.

    `after` is how many answers a connection has before it is closed: at once, or (`at_next`) when the
    next request has arrived, as if both had crossed. `beside` is sent after each answer, unasked.
    """

    def __init__(self, *, after: int = 1000, at_next: bool = False, beside: bytes = b"") -> None:
        self.origin = ""
        self.seen: list[tuple[int, str]] = []
        self.open = 0
        self.made = 0
        self.holding: asyncio.Event | None = None
        self.writers: list[asyncio.StreamWriter] = []
        self._after, self._at_next, self._beside = after, at_next, beside

    @property
    def asked(self) -> list[str]:
        return [line for _, line in self.seen]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made += 1
        self.open += 1
        self.writers.append(writer)
        number, answered = self.made, 0
        with suppress(OSError, asyncio.IncompleteReadError):
            while answered < self._after or self._at_next:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line = head.partition(" HTTP")[0]
                self.seen.append((number, line))
                if answered == self._after:
                    break
                body = line.rpartition("/")[2].encode()
                said = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n"
                writer.write(said % len(body))
                if self.holding is not None:
                    await self.holding.wait()
                writer.write(body)
                writer.write(self._beside)
                await writer.drain()
                answered += 1
        self.open -= 1
        writer.close()


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[Server, ApiServer]]:
    made = Server(**options)
    async with await asyncio.start_server(made.handle, "127.0.0.1", 0) as listening:
        made.origin = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        api = ApiServer(made.origin, limits=HttpLimits(seconds=5))
        yield made, api
        await api.aclose()


async def yes(_: object) -> Approve:
    return Approve(by="a test")


async def asked(api: ApiServer, method: str, n: int) -> Any:
    runner = ToolRunner(openapi_catalog(SOURCE, http=api), approver=yes)
    return await runner.exec(ToolCall(f"{method} {n}", method, f'{{"n": {n}}}'))


async def answer(api: ApiServer, method: str, n: int) -> str:
    outcome = await asked(api, method, n)
    assert isinstance(outcome, Completed), outcome
    return str(outcome.value)


async def test_what_reads_shares_a_connection_and_nothing_else_does() -> None:
    async with serving() as (server, api):
        for n, method in enumerate(("get", "get", *METHODS, "get")):
            assert await answer(api, method, n) == str(n)
    by_connection: dict[int, list[str]] = {}
    for number, line in server.seen:
        by_connection.setdefault(number, []).append(line.partition(" ")[0])
    assert sorted(by_connection.values(), key=len, reverse=True) == [
        ["GET"] * 4,
        *([method.upper()] for method in METHODS[1:]),
    ]


@each_row("at_next", [False, True])
@each_row("method", METHODS)
async def test_a_kept_connection_that_was_closed_is_no_failure(
    method: str, *, at_next: bool
) -> None:
    async with serving(after=1, at_next=at_next) as (server, api):
        assert await answer(api, "get", 1) == "1"
        assert await answer(api, method, 2) == "2"
        assert await answer(api, "get", 3) == "3"
    if method != "get":
        assert server.asked.count(f"{method.upper()} /2") == 1


async def test_any_number_of_them_may_have_been_closed() -> None:
    async with serving(after=1, at_next=True) as (server, api):
        server.holding = asyncio.Event()
        first = asyncio.gather(*(answer(api, "get", n) for n in range(10)))
        await until(lambda: server.made == 10)
        server.holding.set()
        assert await first == [str(n) for n in range(10)]
        assert server.open == 10
        assert await answer(api, "get", 10) == "10"


UNASKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nevil"


async def test_what_nobody_asked_for_is_no_answer() -> None:
    async with serving() as (server, _):
        guarded = GuardedHttp(allow=[server.origin], private=["127.0.0.0/8"], keep=True)
        for n in range(5):
            assert (await guarded.send("GET", f"{server.origin}/{n}")).body == str(n).encode()
            server.writers[-1].write(UNASKED)  # and the next one is asked before anybody reads it
        await guarded.aclose()
    assert server.made == 5


async def test_each_answer_is_that_to_its_own_request() -> None:
    async with serving(beside=UNASKED) as (_, api):
        for n in range(5):
            assert await answer(api, "get", n) == str(n)
        found = await asyncio.gather(*(answer(api, "get", n) for n in range(50)))
    assert found == [str(n) for n in range(50)]


async def test_the_answer_to_a_call_that_was_cancelled_is_nobodys() -> None:
    async with serving() as (server, api):
        server.holding = asyncio.Event()
        task = asyncio.create_task(asked(api, "get", 1))
        await until(lambda: bool(server.seen))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        server.holding.set()
        assert await answer(api, "get", 2) == "2"


@each_row("method", ["get", "post"])
async def test_what_is_read_when_it_is_closed_fails_or_goes_on(method: str) -> None:
    async with serving() as (server, api):
        assert await answer(api, "get", 0) == "0"
        server.holding = asyncio.Event()
        task = asyncio.create_task(asked(api, method, 1))
        await until(lambda: len(server.seen) == 2)
        await asyncio.sleep(0.05)  # it reads the body
        await api.aclose()
        server.holding.set()
        outcome = await task
        assert isinstance(outcome, Failed if method == "get" else Completed)
        assert await answer(api, "get", 2) == "2"  # what was closed can be used again


async def test_a_server_that_is_dropped_keeps_nothing_open() -> None:
    async with serving() as (server, _):
        assert await answer(ApiServer(server.origin), "get", 1) == "1"
        gc.collect()
        await until(lambda: server.open == 0)


CHILD = """
import asyncio, sys
from openapi.test_connections import ApiServer, answer
from toolcrib import run_sync

kept = ApiServer(sys.argv[1])


async def main():
    found = [await answer(kept, "get", n) for n in range(3)]
    found += [await answer(ApiServer(sys.argv[1]), "get", n) for n in range(3)]
    return found


for run in (asyncio.run, run_sync, asyncio.run):
    assert run(main()) == ["0", "1", "2", "0", "1", "2"]
print("done")
"""


@pytest.mark.exhaustive
async def test_one_that_is_never_closed_ends_with_its_loop_without_a_word() -> None:
    async with serving() as (server, _):
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-c", CHILD, server.origin),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=ENVIRONMENT,
        )
        async with asyncio.timeout(60):
            said = await child.communicate()
    assert said == (b"done\n", b"")
    assert server.made == 3 * 4  # in each loop one that was kept, and three that were dropped
