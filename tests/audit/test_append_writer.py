"""Many wait, one thread commits, and nobody is told too early."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from audit.audit_helpers import CANARY, opened, record
from rows import each_row

from toolcrib import ALL, ToolCall, ToolRunner, tool
from toolcrib.audit import AuditFilter, AuditLog
from toolcrib.audit.append import GroupWriter
from toolcrib.audit.index import ChangedIndexError
from toolcrib.errors import (
    ClientError,
    MissingExtraError,
    RateLimitError,
    SchemaError,
    SourceError,
    ToolcribError,
)
from toolcrib.storage import SqlDatabase


class Commits:
    """Holds each commit until it is let go, and keeps what each was given."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.threads: set[threading.Thread] = set()
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def __call__(self, items: Sequence[int]) -> list[int | ToolcribError]:
        self.threads.add(threading.current_thread())
        self.begun.release()
        assert self.go.acquire(timeout=30)
        self.batches.append(list(items))
        return [SourceError("no") if item < 0 else item * 2 for item in items]


async def test_what_comes_meanwhile_is_committed_together() -> None:
    commits = Commits()
    writer = GroupWriter(commits)
    first = writer.submit(0)
    await asyncio.to_thread(commits.begun.acquire)
    others = [writer.submit(item) for item in range(1, 50)]
    await asyncio.sleep(0)  # the loop goes on while the thread waits
    assert not any(future.done() for future in [first, *others])
    commits.go.release(2)
    assert await asyncio.gather(first, *others) == [item * 2 for item in range(50)]
    assert commits.batches == [[0], list(range(1, 50))]
    assert threading.current_thread() not in commits.threads
    assert len(commits.threads) == 1
    await asyncio.to_thread(writer.close)
    assert not any(thread.is_alive() for thread in commits.threads)


async def test_one_that_fails_fails_alone() -> None:
    commits = Commits()
    commits.go.release(9)
    writer = GroupWriter(commits)
    given = await asyncio.gather(*map(writer.submit, [1, -1, 2, -2]), return_exceptions=True)
    assert given[0::2] == [2, 4]
    assert all(isinstance(error, SourceError) for error in given[1::2])
    assert given[1] is not given[3]
    await asyncio.to_thread(writer.close)


async def test_whoever_is_cancelled_is_written_all_the_same() -> None:
    commits = Commits()
    writer = GroupWriter(commits)
    cancelled, other = writer.submit(1), writer.submit(2)
    cancelled.cancel()
    commits.go.release(9)
    assert await other == 4
    assert sorted(itertools.chain(*commits.batches)) == [1, 2]
    await asyncio.to_thread(writer.close)


def test_several_loops_share_one_writer() -> None:
    commits = Commits()
    commits.go.release(99)
    writer = GroupWriter(commits)
    answers: list[int] = []

    async def work(item: int) -> None:
        answers.append(await writer.submit(item))

    loops = [threading.Thread(target=asyncio.run, args=(work(item),)) for item in range(8)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
    assert sorted(answers) == [item * 2 for item in range(8)]
    writer.close()


def test_a_loop_that_is_gone_holds_up_nobody() -> None:
    commits = Commits()
    writer = GroupWriter(commits)

    async def leave() -> None:
        writer.submit(1)

    async def stay() -> int:
        commits.go.release(9)
        return await writer.submit(2)

    asyncio.run(leave())
    assert asyncio.run(stay()) == 4
    writer.close()


@pytest.mark.parametrize(
    "error", [SourceError("no"), RuntimeError(CANARY), MemoryError(), SystemExit(CANARY)]
)
async def test_the_writer_outlives_a_commit_that_fails(error: BaseException) -> None:
    failures = [error]

    def commit(items: Sequence[int]) -> list[int | ToolcribError]:
        if failures:
            raise failures.pop()
        return list(items)

    writer = GroupWriter(commit)
    given = await asyncio.gather(writer.submit(1), return_exceptions=True)
    assert isinstance(given[0], SourceError)
    assert CANARY not in str(given[0])
    assert given[0].__context__ is given[0].__cause__ is None
    assert await writer.submit(2) == 2
    await asyncio.to_thread(writer.close)


async def test_a_thread_that_cannot_be_started_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commits = Commits()
    commits.go.release(9)
    writer = GroupWriter(commits)

    def full(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", full)
        with pytest.raises(SourceError, match="no thread can be started"):
            writer.submit(1)
    assert await writer.submit(2) == 4
    assert commits.batches == [[2]]
    await asyncio.to_thread(writer.close)


async def test_fifty_at_once_are_few_transactions(url: str, monkeypatch: Any) -> None:
    async with AuditLog(url) as log:
        commits, transact = [], SqlDatabase.transact_sync

        def counted(*given: Any, **named: Any) -> Any:
            commits.append(threading.current_thread())
            return transact(*given, **named)

        monkeypatch.setattr(SqlDatabase, "transact_sync", counted)

        async def call(number: int) -> None:
            await log.begin(record(number, "started"))
            await log.write(record(number))

        await asyncio.gather(*(call(number) for number in range(50)))
        assert 2 <= len(commits) <= 12  # of 100 records
        assert threading.current_thread() not in commits
        assert len(await log.entries()) == 100


async def test_a_database_that_fails_fails_the_waiters_and_then_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "crib.db"
    async with AuditLog(f"sqlite:///{path}") as log:
        await log.write(record(0))
        with opened(path) as connection:
            connection.execute("ALTER TABLE audit_entries RENAME TO away")
        given = await asyncio.gather(
            *(log.write(record(at, caller=CANARY)) for at in range(3)),
            log.begin(record(9, "started", caller=CANARY)),
            return_exceptions=True,
        )
        for error in given:
            assert isinstance(error, SourceError)
            assert error.__context__ is error.__cause__ is None
            assert CANARY not in str(error)
        with opened(path) as connection:
            connection.execute("ALTER TABLE away RENAME TO audit_entries")
        await log.write(record(1))
        assert [e.seq for e in await log.entries()] == [1, 2]
        assert (await log.verify()).ok


async def test_a_writer_that_is_held_up_waits(tmp_path: Path) -> None:
    """Another program holds the lock on the file; the loop runs on, and nothing is lost."""
    path = tmp_path / "crib.db"
    async with AuditLog(f"sqlite:///{path}") as log:
        await log.write(record(0))
        with opened(path) as connection:
            connection.execute("BEGIN IMMEDIATE")
            waiting = asyncio.ensure_future(log.write(record(1)))
            assert [e.seq for e in await log.entries(AuditFilter())] == [1]
            assert not waiting.done()
        await waiting
        assert (await log.head()).seq == 2


@pytest.mark.parametrize(
    "url", ["sqlite:////nowhere/at/all.db", f"postgresql+psycopg://u:{CANARY}@127.0.0.1:1/x"]
)
async def test_a_database_that_cannot_be_used_says_so(url: str) -> None:
    async with AuditLog(url) as log:
        for work in (log.write(record(1)), log.begin(record(1)), log.entries(), log.head()):
            with pytest.raises(SourceError, match="database") as raised:
                await work
            assert raised.value.__context__ is None
            assert CANARY not in str(raised.value)


async def test_a_missing_driver_is_named() -> None:
    async with AuditLog("postgresql+pg8000://u@h/x") as log:
        with pytest.raises(SourceError, match="pg8000"):
            await log.write(record(1))


@each_row(
    "error",
    [
        MissingExtraError("audit", "a database"),
        ChangedIndexError(),
        SchemaError("no", "/a"),
        ClientError("no", 500),
        RateLimitError("no", 429, 1.5),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_each_who_waits_is_told_whatever_error_it_is(error: ToolcribError) -> None:
    def refused(_items: Sequence[int]) -> list[ToolcribError]:
        raise error

    writer = GroupWriter[int, int](refused)
    waiting = asyncio.gather(*(writer.submit(n) for n in range(2)), return_exceptions=True)
    told = await asyncio.wait_for(waiting, 30)
    await asyncio.to_thread(writer.close)
    assert [(type(each), str(each), vars(each)) for each in told] == [
        (type(error), str(error), vars(error))
    ] * 2
    assert told[0] is not told[1]


async def test_a_call_whose_index_is_gone_ends_with_an_error(tmp_path: Path) -> None:
    path = tmp_path / "crib.db"
    async with AuditLog(f"sqlite:///{path}") as log:
        await log.write(record(1))
    with opened(path) as database:
        database.execute("DELETE FROM audit_keys")
    async with AuditLog(f"sqlite:///{path}") as log:
        with pytest.raises(SourceError, match="index of keys"):
            await asyncio.wait_for(log.begin(record(2, "started")), 30)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("before", range(1, 6))
async def test_a_write_that_a_server_refuses_stops_no_later_one(
    postgres: Callable[[], str], before: int, late: bool
) -> None:
    """The driver prepares a statement at its sixth use, and may think that a refused one was read."""

    @tool(visible=ALL)
    async def count(n: int) -> int:
        """Count."""
        return n

    url = postgres()
    async with AuditLog(url) as log:
        runner = ToolRunner([count], sinks=[log])

        async def called(number: int) -> str:
            call = ToolCall(f"call_{number}", "count", f'{{"n": {number}}}')
            return (await runner.exec(call)).record.status

        assert {await called(number) for number in range(before)} == {"completed"}
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as server:
            server.execute(
                "CREATE FUNCTION no() RETURNS trigger AS"
                " $$ BEGIN RAISE EXCEPTION 'no' USING errcode = '23514'; END $$ LANGUAGE plpgsql"
            )
            server.execute(
                "CREATE CONSTRAINT TRIGGER no AFTER INSERT ON audit_entries"
                " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION no()"
                if late
                else "CREATE TRIGGER no BEFORE INSERT ON audit_entries"
                " FOR EACH ROW EXECUTE FUNCTION no()"
            )
            with pytest.raises(SourceError, match=r"refused.*23514"):
                await called(100)
            server.execute("DROP TRIGGER no ON audit_entries")
        assert {await called(number) for number in range(100, 108)} == {"completed"}
        assert (await log.verify()).ok
