"""What the audit log costs: one call after the other, 64 at once, 8 processes, an umlaut, a filter,
signed checkpoints.

    PYTHONPATH=tests python benchmarks/bench_log.py [--only TEXT] [--before SRC] [--json FILE]

Each call's entries are on disk before it is over, in SQLite and in PostgreSQL, whose server is started
for this. The floor writes two rows of 900 characters for each call by sqlite3 or psycopg alone: in two
commits where calls come one after the other (one for a read-only tool), 64 rows in a commit where they
come together. CPU is that of this process, not of the server. Calls a second are by the clock. The
floor of a log that signs checkpoints is the same log without: signing may cost 5 %.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import contest
import msgspec
import psycopg
from contest import Case, Make, Round, repeated
from postgres import shared_server

from toolcrib import ALL, Completed, ErrorCode, ToolCall, ToolRunner, tool
from toolcrib.audit import AuditFilter, AuditLog, Checkpoints, SigningKey

TOGETHER = 64
SERVER = "TOOLCRIB_BENCH_POSTGRES"
"""The environment variable with the URL of the server, without a database's name."""
TEXT = "x" * 900
SMALL = '{"query":"the price of tea in china","limit":10}'
RECORDS = int(os.environ.get("TOOLCRIB_BENCH_RECORDS", "1000000"))
PROCESSES, OF_EACH = 8, 50


@tool(visible=ALL)
async def search(query: str, limit: int) -> dict[str, int]:
    """Look something up."""
    return {"found": len(query) + limit}


@tool(visible=ALL, read_only=True)
async def read(query: str, limit: int) -> dict[str, int]:
    """Look something up, and change nothing."""
    return {"found": len(query) + limit}


def fresh(kind: str, closing_: AsyncExitStack) -> str:
    """Return the URL of a new database."""
    if kind == "SQLite":
        return f"sqlite:///{closing_.enter_context(tempfile.TemporaryDirectory())}/crib.db"
    server = os.environ[SERVER]
    name = f"bench_{uuid4().hex}"
    with psycopg.connect(server.replace("+psycopg", "") + "postgres", autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')
    return server + name


async def _calls(
    url: str,
    name: str,
    closing_: AsyncExitStack,
    *,
    warm: int = 50,
    checkpoints: Checkpoints | None = None,
) -> Callable[[str], Awaitable[None]]:
    given = AuditLog(url, key="a key of sixteen bytes", checkpoints=checkpoints)
    log = await closing_.enter_async_context(given)
    runner = ToolRunner([search, read], sinks=[log], concurrency=TOGETHER)
    run, ids = uuid4().hex, itertools.count()

    async def once(text: str) -> None:
        outcome = await runner.exec(ToolCall(f"{run}_{next(ids)}", name, text))
        assert isinstance(outcome, Completed), outcome

    for _ in range(warm):
        await once(SMALL)
    return once


def one_by_one(kind: str, name: str = "search", count: int = 200) -> Make:
    async def make(closing_: AsyncExitStack) -> Round:
        once = await _calls(fresh(kind, closing_), name, closing_)
        return repeated(lambda: once(SMALL), count)

    return make


def together(kind: str, text: str = SMALL, count: int = 2000) -> Make:
    """Return calls a second, 64 at once."""

    async def make(closing_: AsyncExitStack) -> Round:
        once = await _calls(fresh(kind, closing_), "search", closing_)

        async def work() -> float:
            left = iter(range(count))

            async def worker() -> None:
                for _ in left:
                    await once(text)

            started = time.perf_counter()
            await asyncio.gather(*(worker() for _ in range(TOGETHER)))
            return count / (time.perf_counter() - started)

        return work

    return make


def signed(*, signs: bool, count: int = 2000) -> Make:
    """Return CPU microseconds a call, 64 at once; checkpoints are signed as often as by default."""

    async def make(closing_: AsyncExitStack) -> Round:
        folder = Path(closing_.enter_context(tempfile.TemporaryDirectory()))
        key = SigningKey.generate("example.com/bench", folder / "bench.key")
        checkpoints = Checkpoints(key, folder / "checkpoints") if signs else None
        url = fresh("SQLite", closing_)
        once = await _calls(url, "search", closing_, checkpoints=checkpoints)

        async def work() -> float:
            left = iter(range(count))

            async def worker() -> None:
                for _ in left:
                    await once(SMALL)

            started = time.process_time()
            await asyncio.gather(*(worker() for _ in range(TOGETHER)))
            return (time.process_time() - started) / count * 1e6

        return work

    return make


@asynccontextmanager
async def _bare(kind: str, url: str) -> AsyncIterator[Callable[[int], None]]:
    """Gives what commits a number of rows at once, by the driver alone."""
    create = "CREATE TABLE IF NOT EXISTS entries (seq BIGINT, record TEXT)"
    if kind == "SQLite":
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(create)

            def commit(rows: int) -> None:
                with connection:
                    connection.executemany("INSERT INTO entries VALUES (?, ?)", [(1, TEXT)] * rows)

            yield commit
        return
    with psycopg.connect(url.replace("+psycopg", "")) as server:
        server.execute(create)
        server.commit()

        def commit_there(rows: int) -> None:
            with server.cursor() as cursor:
                cursor.executemany("INSERT INTO entries VALUES (%s, %s)", [(1, TEXT)] * rows)
            server.commit()

        yield commit_there


def floor(kind: str, rows: tuple[int, ...], *, count: int = 500, rate: bool = False) -> Make:
    """Commit so many rows, one commit after the other; a rate is calls of two rows each a second."""

    async def make(closing_: AsyncExitStack) -> Round:
        commit = await closing_.enter_async_context(_bare(kind, fresh(kind, closing_)))

        async def once() -> None:
            for number in rows:
                commit(number)

        timed = repeated(once, count)

        async def work() -> float:
            if not rate:
                return await timed()
            started = time.perf_counter()
            await timed()
            return count * sum(rows) / 2 / (time.perf_counter() - started)

        return work

    return make


def processes(contender: str) -> Make:
    """Return calls a second of 8 processes on one database, each one call after the other."""

    async def make(closing_: AsyncExitStack) -> Round:
        url = fresh("PostgreSQL", closing_)
        async with AsyncExitStack() as first:
            if contender == contest.OURS:
                await _calls(url, "search", first, warm=1)
            else:
                await first.enter_async_context(_bare("PostgreSQL", url))
        command = [sys.executable, __file__, "--process", "worker", contender]
        environment = os.environ | {"TOOLCRIB_BENCH_URL": url}

        async def work() -> float:
            running = [
                subprocess.Popen(  # noqa: ASYNC220, S603  this file; nothing else waits here
                    command,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for _ in range(PROCESSES)
            ]
            for one in running:
                assert one.stdout is not None
                one.stdout.readline()
            for one in running:
                assert one.stdin is not None
                one.stdin.write("\n")
                one.stdin.flush()
            seconds = [float(one.communicate()[0]) for one in running]
            return PROCESSES * OF_EACH / max(seconds)

        return work

    return make


def worker(contender: str) -> Make:
    """One of the 8 processes: the seconds that its calls take."""

    async def make(closing_: AsyncExitStack) -> Round:
        url = os.environ["TOOLCRIB_BENCH_URL"]
        if contender == contest.OURS:
            once = await _calls(url, "search", closing_, warm=2)
            return _by_the_clock(lambda: once(SMALL))
        commit = await closing_.enter_async_context(_bare("PostgreSQL", url))

        async def two() -> None:
            commit(1)
            commit(1)

        return _by_the_clock(two)

    return make


def _by_the_clock(once: Callable[[], Awaitable[object]]) -> Round:
    async def work() -> float:
        started = time.perf_counter()
        for _ in range(OF_EACH):
            await once()
        return time.perf_counter() - started

    return work


async def filtered(closing_: AsyncExitStack) -> Round:
    """Return seconds to find that no entry of many fits a filter."""
    log = await closing_.enter_async_context(
        AuditLog(fresh("SQLite", closing_), key="a key of sixteen bytes")
    )
    await _calls_of(log)
    known = (await log.entries(AuditFilter(limit=1, status="completed")))[0].record
    run, batch = uuid4().hex, 2000
    for first in range(0, RECORDS, batch):
        records = [
            msgspec.structs.replace(known, idempotency_key=f"{run}/{n}")
            for n in range(first, first + batch)
        ]
        await asyncio.gather(*(log.write(record) for record in records))

    async def work() -> float:
        started = time.process_time()
        for nothing in (
            AuditFilter(tool="nobody"),
            AuditFilter(code=ErrorCode.TIMEOUT),
            AuditFilter(caller="x"),
        ):
            assert not await log.entries(nothing)
        return (time.process_time() - started) / 3

    return work


async def _calls_of(log: AuditLog) -> None:
    runner = ToolRunner([search], sinks=[log])
    assert isinstance(await runner.exec(ToolCall("first", "search", SMALL)), Completed)


async def scanned(closing_: AsyncExitStack) -> Round:
    """Return seconds that sqlite3 takes to look through as many rows of the floor's table."""
    url = fresh("SQLite", closing_)
    async with _bare("SQLite", url) as commit:
        for _ in range(0, RECORDS, 2000):
            commit(2000)
    bare = closing_.enter_context(closing(sqlite3.connect(url.removeprefix("sqlite:///"))))

    async def work() -> float:
        started = time.process_time()
        assert not bare.execute("SELECT * FROM entries WHERE seq = 2").fetchall()
        return time.process_time() - started

    return work


def _texts() -> dict[str, str]:
    """10 kB of arguments, in ASCII and with one umlaut."""
    text = "a" * 10_000
    return {
        "10 kB of ASCII": f'{{"query":"{text}","limit":10}}',
        "10 kB with one umlaut": f'{{"query":"{text}\u00fc","limit":10}}',
    }


def cases() -> list[Case]:
    found = []
    goals: dict[str, Any] = {
        "SQLite": ("900", "500", "15,000"),
        "PostgreSQL": ("900", "600", "8,000"),
    }
    for kind, (each, reading, rate) in goals.items():
        ours = {contest.FLOOR: floor(kind, (1, 1)), contest.OURS: one_by_one(kind)}
        found.append(Case(f"audited, {kind}", "µs CPU", ours, each, 5))
        ours = {contest.FLOOR: floor(kind, (1,)), contest.OURS: one_by_one(kind, "read")}
        found.append(Case(f"audited, read-only, {kind}", "µs CPU", ours, reading, 5))
        bare = floor(kind, (TOGETHER, TOGETHER), count=50, rate=True)
        ours = {contest.FLOOR: bare, contest.OURS: together(kind)}
        found.append(Case(f"audited, 64 at once, {kind}", "calls/s", ours, rate, 5, True))
    both = {name: processes(name) for name in (contest.FLOOR, contest.OURS)}
    found.append(Case("audited, 8 processes, PostgreSQL", "calls/s", both, "1,000", 3, True))
    for name, text in _texts().items():
        ours = {contest.OURS: together("SQLite", text, 300)}
        goal = "1.3 × of ASCII" if "umlaut" in name else ""
        found.append(Case(f"audited, 64 at once, {name}", "calls/s", ours, goal, 5, True))
    signing = {contest.FLOOR: signed(signs=False), contest.OURS: signed(signs=True)}
    found.append(Case("audited, checkpoints signed", "µs CPU", signing, "1.05 ×", 9))
    looked = {contest.FLOOR: scanned, contest.OURS: filtered}
    found.append(Case(f"{RECORDS:,} records, nothing fits", "s CPU", looked, "1", 3))
    return found


def main() -> None:
    """Start the server for all contenders, unless this is one of them."""
    if "--process" in sys.argv:
        everybody = {name: worker(name) for name in (contest.FLOOR, contest.OURS)}
        contest.main([*cases(), Case("worker", "", everybody)], __doc__ or "")
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        shared_server(Path(folder) / "postgres.json") as url,
    ):
        os.environ[SERVER] = url
        contest.main(cases(), __doc__ or "")


if __name__ == "__main__":
    main()
