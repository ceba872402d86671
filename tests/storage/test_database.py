"""The database: shared by threads, and quiet about what was written."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import socket
import sqlite3
import stat
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest
import sqlalchemy
from audit.audit_helpers import record
from rows import each_row

from toolcrib.approvals import ApprovalStore
from toolcrib.audit import AuditLog
from toolcrib.errors import ApprovalError, MissingExtraError, SourceError
from toolcrib.spending import SpendStore
from toolcrib.storage import Insert, Row, SqlDatabase, Transaction, UnreachableError
from toolcrib.storage.errors import failed_by
from toolcrib.storage.transaction import _CURSORS
from toolcrib.values.decision import ApprovalRequest, Approve

CANARY = "canary-88bb"


def request(at: int = 0) -> ApprovalRequest:
    return ApprovalRequest(f"apr_{at}", "pay", {"to": CANARY}, "risky", time.time() + 60 + at)


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite+pysqlite:///:memory:", "sqlite:///{}/crib.db"]
)
async def test_many_at_once_see_one_database(url: str, tmp_path: Path) -> None:
    store = ApprovalStore(url.format(tmp_path))
    await asyncio.gather(*(store(request(at)) for at in range(12)))
    assert [r.id for r in await store.pending()] == [f"apr_{at}" for at in range(12)]
    given = await asyncio.gather(
        *(store.answer("apr_0", Approve(str(at))) for at in range(4)), return_exceptions=True
    )
    assert given.count(None) == 1
    used = await asyncio.gather(*(store(request()) for _ in range(4)), return_exceptions=True)
    assert sum(isinstance(answer, Approve) for answer in used) == 1
    assert sum(isinstance(answer, ApprovalError) for answer in used) == 3
    await store.aclose()


@pytest.mark.parametrize(
    "url",
    ["nonsense", "sqlite:////nowhere/at/all.db", f"oracle://u:{CANARY}@h/x", "mysql://u@h:port/x"],
)
async def test_one_that_cannot_be_used_is_a_source_error_without_payload(url: str) -> None:
    with pytest.raises(SourceError, match="database") as raised:
        await ApprovalStore(url)(request())
    assert raised.value.__context__ is None
    assert CANARY not in str(raised.value)


@pytest.mark.parametrize("url", ["nonsense", "foo://x", "sqlite://h:port/x"])
async def test_what_is_no_url_says_how_one_looks(url: str) -> None:
    with pytest.raises(SourceError, match=r"must look like sqlite:///crib\.db or postgresql"):
        await ApprovalStore(url).pending()


@pytest.mark.parametrize("url", ["crib.db", f"postgres://u:{CANARY}@h/x", "mysql://h/x"])
@pytest.mark.parametrize("opened", [AuditLog, ApprovalStore, SpendStore])
def test_what_is_no_url_of_a_known_database_is_refused_at_once(
    opened: Callable[[str], object], url: str
) -> None:
    with pytest.raises(
        SourceError, match=r"its URL must look like sqlite:.* or postgresql"
    ) as raised:
        opened(url)
    assert raised.value.__notes__ == [f"the database is {url.replace(CANARY, '***')}"]


@pytest.mark.parametrize(
    "url", ["u:{}@h/x", "postgresql:u:{}@h/x", "postgresql:/u:{}@h/x", "postgresql//u:{}@h"]
)
def test_a_mistyped_url_shows_no_password(url: str) -> None:
    with pytest.raises(SourceError) as raised:
        AuditLog(url.format(CANARY))
    (note,) = raised.value.__notes__
    assert note.startswith("the database is")
    assert CANARY not in note


async def test_a_traceback_says_which_database_cannot_be_used() -> None:
    with pytest.raises(SourceError, match=r"^the database cannot be used") as raised:
        await AuditLog("sqlite:////nowhere/at/all.db").open()
    assert raised.value.__notes__ == ["the database is sqlite:////nowhere/at/all.db"]


async def test_what_is_no_answer_is_not_stored() -> None:
    store = ApprovalStore("sqlite://")
    await store(request())
    with pytest.raises(ApprovalError, match="not an answer"):
        await store.answer("apr_0", True)  # type: ignore[arg-type]
    assert len(await store.pending()) == 1
    await store.aclose()


@pytest.mark.parametrize("memory", [False, True])
async def test_statements_of_one_transaction_hold_together(url: str, memory: bool) -> None:
    database = SqlDatabase("sqlite://" if memory else url)
    insert = "INSERT INTO approvals (id, request, expires_at) VALUES (:id, :request, 0)"
    approvals = Insert("approvals", ("id", "request", "expires_at"))

    def both(transaction: Transaction) -> int:
        rows = [{"id": str(at), "request": CANARY, "expires_at": 0} for at in range(2)]
        last = {"id": "2", "request": CANARY}
        transaction.insert(approvals, rows)
        transaction.insert(approvals, [])
        transaction.send(insert, **last)
        assert transaction.execute(insert, id="9", request=CANARY) == 1
        return len(transaction.rows("SELECT id FROM approvals WHERE id IN :ids", ids=["1", "9"]))

    assert await database.transact(both) == 2
    with pytest.raises(SourceError) as raised:
        await database.transact(both)  # the ids are taken
    assert raised.value.__context__ is None
    assert CANARY not in str(raised.value)

    def neither(transaction: Transaction) -> None:
        transaction.execute("DELETE FROM approvals")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await database.transact(neither)
    assert len(await database.read("SELECT id FROM approvals")) == 4
    await database.aclose()


async def test_a_failure_that_is_caught_is_not_committed(url: str) -> None:
    database = SqlDatabase(url)
    insert = "INSERT INTO approvals (id, request, expires_at) VALUES ('1', '', 0)"

    def twice(transaction: Transaction) -> None:
        transaction.execute(insert)
        with suppress(SourceError):
            transaction.execute(insert)

    with pytest.raises(SourceError, match="nothing of the transaction was kept"):
        await database.transact(twice)
    assert await database.read("SELECT id FROM approvals") == []
    await database.aclose()


@contextmanager
def no_free_thread() -> Iterator[threading.Event]:
    """Keep what the event loop gives to a thread waiting until the event is set."""
    loop, may_begin = asyncio.get_running_loop(), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        loop.set_default_executor(threads)
        threads.submit(may_begin.wait)
        yield may_begin
    loop.set_default_executor(ThreadPoolExecutor())


async def test_a_transaction_asked_for_before_a_close_leaves_no_connection_open(url: str) -> None:
    """Its thread may begin after the close, since nothing ends a thread with its task."""
    database = SqlDatabase(url)
    insert = "INSERT INTO approvals (id, request, expires_at) VALUES ('1', '', 0)"
    with no_free_thread() as may_begin:
        asked = asyncio.create_task(database.write(insert))
        await asyncio.sleep(0)
        database.close_sync()
        may_begin.set()
        assert await asked == 1
    assert database._open is None
    assert len(await database.read("SELECT id FROM approvals")) == 1
    await database.aclose()


async def test_a_close_that_is_cancelled_before_a_thread_has_begun_it_is_a_close(url: str) -> None:
    database = SqlDatabase(url)
    await database.read("SELECT id FROM approvals")
    with no_free_thread() as may_begin:
        closes = asyncio.create_task(database.aclose())
        await asyncio.sleep(0)
        closes.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closes
        may_begin.set()
    assert database._open is None


async def test_one_moment_is_seen_by_all_that_is_read_together(url: str) -> None:
    database, other = SqlDatabase(url), SqlDatabase(url)
    insert = "INSERT INTO approvals (id, request, expires_at) VALUES (:id, '', 0)"
    count = "SELECT count(*) FROM approvals"

    def twice(transaction: Transaction) -> list[int]:
        seen = [transaction.tuples(count)[0][0]]
        other.transact_sync(lambda t: t.execute(insert, id="late"))
        return [*seen, transaction.tuples(count)[0][0]]

    await database.write(insert, id="early")
    assert await database.transact(twice, write=False) == [1, 1]
    assert len(await database.read("SELECT id FROM approvals")) == 2
    await database.aclose()
    await other.aclose()


async def test_what_was_committed_is_on_disk(postgres: Callable[[], str], tmp_path: Path) -> None:
    database = SqlDatabase(f"sqlite:///{tmp_path}/crib.db")
    assert await database.read("PRAGMA synchronous") == [{"synchronous": 2}]
    assert await database.read("PRAGMA journal_mode") == [{"journal_mode": "wal"}]
    await database.aclose()
    url = postgres()
    for setting, expected in [("off", "on"), ("local", "local"), ("on", "on")]:
        given = f"{url}?options=-csynchronous_commit%3D{setting}"
        database = SqlDatabase(given)
        assert await database.read("SHOW synchronous_commit") == [{"synchronous_commit": expected}]
        await database.aclose()


async def test_a_statement_means_the_same_to_each_driver(url: str) -> None:
    database = SqlDatabase(url)
    asked = "SELECT '1 %' AS literal, :a AS first, :ab AS second, 'at 12:30' AS time"
    assert await database.read(f"{asked} WHERE :a IN :many", a="%s", ab=":a", many=["x", "%s"]) == [
        {"literal": "1 %", "first": "%s", "second": ":a", "time": "at 12:30"}
    ]
    assert await database.read("SELECT 1 WHERE 1 IN :none", none=[]) == []
    await database.aclose()


async def test_what_is_read_of_a_list_is_as_long_as_the_list(url: str) -> None:
    database = SqlDatabase(url)
    for count in (1, 3, 2):
        found = await database.read("SELECT 1 AS one WHERE 2 IN :these", these=list(range(count)))
        assert len(found) == (count == 3)
    await database.aclose()


@pytest.mark.parametrize(
    "default", ["extra_float_digits = 0", "client_encoding = SQL_ASCII", "client_encoding = LATIN1"]
)
async def test_what_was_written_is_read_whatever_the_defaults_of_a_server(
    postgres: Callable[[], str], default: str
) -> None:
    url = postgres()
    plain = url.replace("+psycopg", "")
    with psycopg.connect(plain, autocommit=True) as owner:
        owner.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET {default}")
    database = SqlDatabase(url)
    told = {"text": "漢字 é", "at": 1_764_000_000.123457}
    asked = "SELECT CAST(:text AS TEXT) AS text, CAST(:at AS DOUBLE PRECISION) AS at"
    assert await database.read(asked, **told) == [told]
    await database.aclose()


@pytest.mark.parametrize(
    "option", ["mode=ro", "mode=rw", "cache=shared", "immutable=1&uri=true", "timeout=soon", "x=1"]
)
def test_an_option_that_the_driver_would_leave_out_is_refused(tmp_path: Path, option: str) -> None:
    """Whoever asks only to read must not get what writes."""
    store = ApprovalStore(f"sqlite:///{tmp_path}/crib.db?{option}")
    with pytest.raises(SourceError, match=r"file:crib\.db[?]mode=ro&uri=true"):
        asyncio.run(store.pending())
    assert list(tmp_path.iterdir()) == []


async def test_a_database_that_is_opened_to_be_read_is_not_written(tmp_path: Path) -> None:
    await ApprovalStore(f"sqlite:///{tmp_path}/crib.db?timeout=3").pending()
    store = ApprovalStore(f"sqlite:///file:{tmp_path}/crib.db?mode=ro&uri=true")
    assert await store.pending() == []
    with pytest.raises(SourceError, match="may not write"):
        await store(request(1))


URLS = ["sqlite:///{}crib.db", "sqlite:///file:{}crib.db?uri=true"]


@pytest.mark.parametrize("form", URLS)
@pytest.mark.parametrize("replaced", [False, True])
async def test_nothing_is_acknowledged_that_went_into_a_file_that_is_gone(
    tmp_path: Path, replaced: bool, form: str
) -> None:
    path = tmp_path / "crib.db"
    store = ApprovalStore(form.format(f"{tmp_path}/"))
    await store(request(1))
    await store.aclose()
    copy = path.read_bytes()
    await store(request(2))
    for name in ("crib.db", "crib.db-wal", "crib.db-shm"):
        (tmp_path / name).unlink()
    if replaced:
        path.write_bytes(copy)
    with pytest.raises(UnreachableError, match="removed or replaced"):
        await store(request(3))
    await store(request(4))  # it has opened what is there by now
    assert [r.id for r in await store.pending()] == ["apr_1"] * replaced + ["apr_4"]
    await store.aclose()


@pytest.mark.parametrize("form", URLS)
async def test_a_folder_that_changes_leaves_the_file_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.chdir(tmp_path)
    store = ApprovalStore(form.format(""))
    await store(request(0))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    await asyncio.gather(*(store(request(at)) for at in range(1, 4)))
    assert len(await store.pending()) == 4
    await store.aclose()
    assert len(await store.pending()) == 4  # opened again
    assert not (tmp_path / "other" / "crib.db").exists()
    await store.aclose()


@pytest.mark.parametrize("ends", ["committed", "rolled back"])
async def test_a_connection_that_the_server_has_dropped_is_made_again(
    postgres: Callable[[], str], ends: str
) -> None:
    """However the transactions ended that used it before."""
    url = postgres()
    database, other = SqlDatabase(url), SqlDatabase(url)

    def work(transaction: Transaction) -> None:
        transaction.tuples("SELECT 1")
        if ends == "rolled back":
            raise SourceError("not this time")

    with suppress(SourceError):
        await database.transact(work)
    mine = "pid <> pg_backend_pid() AND datname = current_database()"
    await other.write(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {mine}")  # noqa: S608
    assert await database.read("SELECT 1 AS one") == [{"one": 1}]
    await database.aclose()
    await other.aclose()


DIES = "SELECT pg_terminate_backend(pg_backend_pid())"


@pytest.mark.parametrize("dies", ["idle", "first", "second", "commit"])
async def test_work_is_done_again_only_if_nothing_of_it_was_answered(
    postgres: Callable[[], str], dies: str
) -> None:
    """On a connection that was idle; what kills a new one is not tried again and again."""
    url = postgres()
    database, other = SqlDatabase(url), SqlDatabase(url)
    await database.write("CREATE TABLE done (at integer)")
    begun: list[int] = []
    done = Insert("done", ("at",)).of_values()

    def work(transaction: Transaction) -> list[Row]:
        begun.append(len(begun))
        if dies == "first":
            transaction.tuples(DIES)
        transaction.send(done, at=1)
        if dies == "commit":  # nothing was answered, and yet it may have been done
            transaction.send(f"INSERT INTO done {DIES}::integer + :at", at=0)
            return []
        found = transaction.rows("SELECT at FROM done")
        if dies == "second":
            transaction.tuples(DIES)
        return found

    if dies == "idle":
        mine = "pid <> pg_backend_pid() AND datname = current_database()"
        await other.write(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {mine}")  # noqa: S608
        while await other.read(f"SELECT 1 FROM pg_stat_activity WHERE {mine}"):  # noqa: ASYNC110, S608  no event of ours
            await asyncio.sleep(0.01)
        assert await database.transact(work) == [{"at": 1}]
    else:
        with pytest.raises(UnreachableError, match="the database cannot be used"):
            await database.transact(work)
    if dies != "idle":  # which may show before the work begins
        assert len(begun) == (2 if dies == "first" else 1)
    assert await database.read("SELECT at FROM done") == [{"at": 1}] * (dies == "idle")
    await database.aclose()
    await other.aclose()


REFUSING = {  # the first statement of a transaction, and what refuses it
    "a lock": ("LOCK TABLE done", "LockNotAvailable"),
    "a time limit": ("SELECT pg_sleep(60)", "QueryCanceled"),
    "a constraint": ("INSERT INTO done VALUES (NULL)", "NotNullViolation"),
    "a wrong text": ("SELECT :text", "UnicodeEncodeError"),
}


@pytest.mark.parametrize("why", REFUSING)
async def test_a_statement_that_is_refused_is_not_sent_again_on_other_connections(
    postgres: Callable[[], str], why: str
) -> None:
    """Whoever set a time limit waits that long, and the connections that work are kept."""
    url = f"{postgres()}?options=-c%20lock_timeout%3D50%20-c%20statement_timeout%3D500"
    database, other = SqlDatabase(url), SqlDatabase(url)
    await database.write("CREATE TABLE done (at integer NOT NULL)")
    met = threading.Barrier(4)

    def meet(transaction: Transaction) -> int:
        ((process,),) = transaction.tuples("SELECT pg_backend_pid()")
        met.wait(30)
        return int(process)

    async def processes() -> set[int]:
        return set(await asyncio.gather(*(database.transact(meet) for _ in range(4))))

    def work(transaction: Transaction) -> None:
        begun.append(why)
        transaction.tuples(statement, **({"text": "\ud800"} if ":text" in statement else {}))

    async def refused() -> None:
        with pytest.raises(SourceError, match=error):
            await database.transact(work)

    before = await processes()
    begun: list[str] = []
    statement, error = REFUSING[why]
    if why == "a lock":
        locked, done = threading.Event(), threading.Event()

        def lock(transaction: Transaction) -> None:
            transaction.execute("LOCK TABLE done")
            locked.set()
            done.wait(30)

        holding = asyncio.create_task(other.transact(lock))
        await asyncio.to_thread(locked.wait, 30)
        await refused()
        done.set()
        await holding
    else:
        await refused()
    assert begun == [why]
    assert len(before & await processes()) == 3
    await database.aclose()
    await other.aclose()


@pytest.mark.parametrize(("write", "goes_on"), [(True, False), (True, True), (False, True)])
async def test_the_first_statement_that_failed_says_why(
    postgres: Callable[[], str], write: bool, goes_on: bool
) -> None:
    """Whoever caught its error, and whatever failed after it."""
    database = SqlDatabase(postgres())

    def work(transaction: Transaction) -> None:
        with suppress(SourceError):
            transaction.tuples("SELECT nothing FROM nowhere")
        if goes_on:
            transaction.tuples("SELECT 1")

    for _ in range(3):
        with pytest.raises(SourceError, match="UndefinedTable, 42P01"):
            await database.transact(work, write=write)
    await database.aclose()


BODIES = {
    "nothing": "IF NEW.at % 3 = 1 THEN RETURN NULL; END IF; RETURN NEW",
    "other": "NEW.text = upper(NEW.text); RETURN NEW",
    "removed": "DELETE FROM told WHERE at % 3 = 1; RETURN NULL",
}
CHANGES = {  # what a trigger does to rows that are written
    "leaves out": "BEFORE INSERT ON told FOR EACH ROW EXECUTE FUNCTION nothing()",
    "changes": "BEFORE INSERT ON told FOR EACH ROW EXECUTE FUNCTION other()",
    "removes": "AFTER INSERT ON told FOR EACH STATEMENT EXECUTE FUNCTION removed()",
    "removes late": "AFTER INSERT ON told DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
    " EXECUTE FUNCTION removed()",
}


@pytest.mark.parametrize("most", [1, 2**24])
@pytest.mark.parametrize("change", CHANGES)
async def test_what_is_required_is_there_or_nothing_is_kept(
    postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch, change: str, most: int
) -> None:
    """Whoever compares: the server, or we, where the rows are too large for one statement."""
    monkeypatch.setattr("toolcrib.storage.transaction.MAX_COMPARED", most)
    database = SqlDatabase(postgres())
    await database.write(
        "CREATE TABLE told (at integer PRIMARY KEY, text text, taken double precision)"
    )
    await database.write("CREATE TABLE ends (at integer)")
    for name, body in BODIES.items():
        does = f"'BEGIN {body}; END' LANGUAGE plpgsql"
        await database.write(f"CREATE FUNCTION {name}() RETURNS trigger AS {does}")

    def put(transaction: Transaction, first: int) -> None:
        rows = [
            {"at": first + at, "text": f'é "\\u0000" {at}', "taken": 1_764_000_000.123457 + at / 7}
            for at in range(3)
        ]
        insert = Insert("told", ("at", "text", "taken"))
        transaction.insert(insert, rows)
        transaction.send("INSERT INTO ends VALUES (:at)", at=first)
        found = "SELECT at, text, taken FROM told WHERE at >= :first ORDER BY at"
        transaction.require(rows, found, first=first)

    for first in range(0, 24, 3):  # a server prepares what it has run some times
        await database.transact(partial(put, first=first))
    late = "CONSTRAINT " if "DEFERRED" in CHANGES[change] else ""
    await database.write(f"CREATE {late}TRIGGER on_told {CHANGES[change]}")
    for _ in range(2):
        with pytest.raises(SourceError, match="look for a trigger"):
            await database.transact(partial(put, first=24))
        assert await database.read("SELECT count(*) AS n, max(at) AS last FROM told") == [
            {"n": 24, "last": 23}
        ]
        assert await database.read("SELECT at FROM ends WHERE at = 24") == []
    await database.write("DROP TRIGGER on_told ON told")
    await database.transact(partial(put, first=24))
    await database.aclose()


@pytest.mark.parametrize("rows", [1, 3])
async def test_a_rule_may_do_more_with_what_is_inserted(
    postgres: Callable[[], str], rows: int
) -> None:
    """PostgreSQL accepts one only if the INSERT is a statement of its own."""
    database = SqlDatabase(postgres())
    for table in ("told", "copies", "ends"):
        await database.write(f"CREATE TABLE {table} (at integer)")
    rule = "CREATE RULE {} AS ON INSERT TO told DO {}"
    await database.write(rule.format("kept", "ALSO INSERT INTO copies VALUES (NEW.at)"))
    told = [{"at": at} for at in range(rows)]
    end = Insert("ends", ("at",)).of_values()

    def put(transaction: Transaction) -> None:
        transaction.insert(Insert("told", ("at",)), told)
        transaction.send(end, at=rows)
        transaction.require(told, "SELECT at FROM told ORDER BY at")

    await database.transact(put)
    assert await database.read("SELECT at FROM copies ORDER BY at") == told
    await database.write("DELETE FROM told")
    await database.write(rule.format("gone", "INSTEAD NOTHING"))
    with pytest.raises(SourceError, match="look for a trigger, or a rule"):
        await database.transact(put)
    await database.aclose()


async def test_a_connection_that_dies_in_a_transaction_is_thrown_away_once(
    postgres: Callable[[], str],
) -> None:
    database = SqlDatabase(postgres())

    def die(transaction: Transaction) -> None:
        transaction.execute("CREATE TABLE deaths (a int)")
        die = "INSERT INTO deaths SELECT pg_terminate_backend(pg_backend_pid())::int + :a"
        transaction.send(die, a=1)  # which fails as late as with the COMMIT

    with pytest.raises(SourceError, match="the database cannot be used"):
        await database.transact(die)
    assert await database.read("SELECT 1 AS one") == [{"one": 1}]
    await database.aclose()


async def test_a_lock_that_is_not_let_go_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.storage.database.LOCK_TIMEOUT", 0.01)
    database = SqlDatabase(f"sqlite:///{tmp_path}/crib.db")
    await database.read("SELECT 1")
    with closing(sqlite3.connect(tmp_path / "crib.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnreachableError, match=r"SQLITE_BUSY.* another program"):
            await database.write("DELETE FROM approvals")
    await database.write("DELETE FROM approvals")
    await database.aclose()


@pytest.mark.parametrize("away", ["silent", "locked"])
async def test_a_server_is_waited_for_as_long_as_the_url_says(
    away: str, postgres: Callable[[], str]
) -> None:
    """A server that takes the connection and says nothing, and a table that somebody has locked."""
    limits = "?connect_timeout=2&tcp_user_timeout=2000&options=-c%20statement_timeout%3D500"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = postgres()
        plain = SqlDatabase(url)
        await plain.write("CREATE TABLE waited (n int)")
        here = f"postgresql+psycopg://crib@127.0.0.1:{silent.getsockname()[1]}/crib"
        database = SqlDatabase((here if away == "silent" else url) + limits)
        with psycopg.connect(url.replace("+psycopg", "")) as other:
            other.execute("LOCK TABLE waited IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(SourceError, match="the database cannot be used"):
                async with asyncio.timeout(20):
                    await database.read("SELECT n FROM waited")
        await database.aclose()
        await plain.aclose()


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
async def test_a_program_that_logs_all_it_can_logs_nothing_that_was_kept(
    caplog: pytest.LogCaptureFixture, level: int
) -> None:
    with caplog.at_level(level):
        store = ApprovalStore("sqlite://")
        await store(request())
        assert len(await store.pending()) == 1
        await store.aclose()
    assert CANARY not in caplog.text
    assert "sqlalchemy" not in caplog.text or level == logging.DEBUG


async def test_statements_can_be_logged_without_what_is_in_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "toolcrib.storage"):
        store = ApprovalStore("sqlite://")
        await store(request())
        assert len(await store.pending()) == 1
        await store.aclose()
    assert "INSERT INTO approvals" in caplog.text
    assert CANARY not in caplog.text


def modes(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


@pytest.mark.skipif(sys.platform == "win32", reason="no modes")
@each_row("umask", [0o000, 0o022, 0o077])
@each_row("mode", [None, 0o660])
@each_row("form", ["sqlite:///{}/a.db", "sqlite:///file:{}/a.db?uri=true"])
async def test_a_file_that_is_made_is_its_owners(
    tmp_path: Path, umask: int, mode: int | None, form: str
) -> None:
    """And so are the files that SQLite keeps beside it; a group's server says so."""
    url = form.format(tmp_path)
    before = os.umask(umask)
    try:
        database = SqlDatabase(url) if mode is None else SqlDatabase(url, mode=mode)
        await database.write("CREATE TABLE one (two INTEGER)")
        assert modes(tmp_path) == dict.fromkeys(("a.db", "a.db-wal", "a.db-shm"), mode or 0o600)
        await database.aclose()
    finally:
        os.umask(before)


@pytest.mark.skipif(sys.platform == "win32", reason="no modes")
async def test_a_file_that_is_made_through_a_link_is_its_owners(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    before = os.umask(0)
    try:
        database = SqlDatabase(f"sqlite:///{tmp_path}/link.db")
        await database.write("CREATE TABLE one (two INTEGER)")
        made = {name: mode for name, mode in modes(tmp_path).items() if name != "link.db"}
        assert made == dict.fromkeys(("a.db", "a.db-wal", "a.db-shm"), 0o600)
        await database.aclose()
    finally:
        os.umask(before)


@pytest.mark.skipif(sys.platform == "win32", reason="no modes")
@each_row("store", [AuditLog, ApprovalStore], ids=["log", "approvals"])
@each_row("mode", [None, 0o660])
async def test_each_store_makes_its_file_with_the_mode_that_is_said(
    tmp_path: Path, store: Any, mode: int | None
) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with store(url) if mode is None else store(url, mode=mode) as opened:
        await (opened.entries() if store is AuditLog else opened.pending())
        assert set(modes(tmp_path).values()) == {mode or 0o600}
        assert "a.db" in modes(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="no modes")
async def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    file.touch()
    file.chmod(0o644)
    database = SqlDatabase(f"sqlite:///{file}")
    await database.write("CREATE TABLE one (two INTEGER)")
    assert set(modes(tmp_path).values()) == {0o644}
    await database.aclose()


REFUSED = [  # by which statement on a table with constraints, and what the error names
    ("INSERT INTO given VALUES (1, 1, '{}')", "UNIQUE|given_pkey|given.id"),
    ("INSERT INTO given VALUES (2, -1, '{}')", "positive"),
    ("INSERT INTO given VALUES (2, NULL, '{}')", "23502|given.n"),
    (
        "INSERT INTO given VALUES (2, 2, '{}'); INSERT INTO late VALUES (1, 7)",
        "late_is_given|FOREIGN",
    ),
    ("INSERT INTO refusing VALUES (1, '{}')", "P0001|TRIGGER"),
]
TABLES = (
    """CREATE TABLE given (id INTEGER PRIMARY KEY,
        n INTEGER NOT NULL CONSTRAINT positive CHECK (n > 0), told TEXT)""",
    "INSERT INTO given VALUES (1, 1, '')",
    """CREATE TABLE late (id INTEGER PRIMARY KEY, given INTEGER CONSTRAINT late_is_given
        REFERENCES given DEFERRABLE INITIALLY DEFERRED)""",
    "CREATE TABLE refusing (id INTEGER PRIMARY KEY, told TEXT)",
)


@pytest.fixture(params=["sqlite", "postgresql"])
async def constrained(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlDatabase]:
    """A database of each kind, with what refuses rows."""
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/x.db" if is_sqlite else request.getfixturevalue("postgres")()
    database = SqlDatabase(url)
    triggers = (
        [
            f"CREATE TRIGGER no BEFORE INSERT ON refusing BEGIN SELECT RAISE(ABORT, '{CANARY}'); END",
        ]
        if is_sqlite
        else [
            """CREATE FUNCTION no() RETURNS trigger AS
            $$ BEGIN RAISE EXCEPTION '%', NEW.told; END $$ LANGUAGE plpgsql""",
            "CREATE TRIGGER no BEFORE INSERT ON refusing FOR EACH ROW EXECUTE FUNCTION no()",
        ]
    )
    for sql in (*TABLES, *triggers):
        await database.write(sql)
    yield database
    await database.aclose()


@pytest.mark.parametrize(("statements", "named"), REFUSED)
async def test_what_a_database_refuses_is_not_said_to_be_out_of_reach(
    constrained: SqlDatabase, statements: str, named: str
) -> None:
    """At a statement as at the end of the transaction; the next one goes on, on the same connection."""

    def work(transaction: Transaction) -> None:
        for sql in statements.format(CANARY).split(";"):
            transaction.execute(sql)

    for _ in range(7):  # a server prepares what it has run some times
        with pytest.raises(SourceError, match="refused what was to be written") as raised:
            await constrained.transact(work)
        assert not isinstance(raised.value, UnreachableError)
        assert re.search(named, str(raised.value))
        assert CANARY not in str(raised.value)
        assert raised.value.__context__ is raised.value.__cause__ is None
    assert await constrained.read("SELECT id FROM given") == [{"id": 1}]
    assert await constrained.write("INSERT INTO given VALUES (2, 2, '')") == 1


@each_row(
    ("code", "kind"),
    [
        ("08006", UnreachableError),
        ("25006", UnreachableError),
        ("55P03", UnreachableError),
        ("57P01", UnreachableError),
        ("57P03", UnreachableError),
        ("53300", UnreachableError),
        ("53100", UnreachableError),
        ("28P01", UnreachableError),
        ("3D000", UnreachableError),
        ("3F000", UnreachableError),
        ("42501", UnreachableError),
        ("25P04", UnreachableError),
        ("40001", UnreachableError),
        ("40P01", UnreachableError),
        ("57014", UnreachableError),
        ("58030", UnreachableError),
        ("23505", SourceError),
        ("23503", SourceError),
        ("25P02", SourceError),
        ("P0001", SourceError),
        ("42P01", SourceError),
    ],
)
def test_an_sqlstate_says_whether_a_server_is_out_of_reach(code: str, kind: type) -> None:
    error = psycopg.errors.lookup(code)()
    assert type(failed_by(error)) is kind
    assert code in str(failed_by(error))
    # there is no code for these; the second says that a statement before failed
    assert type(failed_by(psycopg.OperationalError())) is UnreachableError
    assert type(failed_by(psycopg.errors.PipelineAborted())) is SourceError


@each_row(
    ("name", "kind"),
    [
        ("SQLITE_BUSY", UnreachableError),
        ("SQLITE_FULL", UnreachableError),
        ("SQLITE_IOERR_FSYNC", UnreachableError),
        ("SQLITE_IOERR_READ", UnreachableError),
        ("SQLITE_IOERR_SHMSIZE", UnreachableError),  # a full disk, when a file is opened
        ("SQLITE_IOERR_WRITE", UnreachableError),
        ("SQLITE_PROTOCOL", UnreachableError),
        ("SQLITE_CORRUPT", SourceError),
        ("SQLITE_NOTADB", SourceError),
        ("SQLITE_ERROR", SourceError),
    ],
)
def test_an_error_of_sqlite_says_whether_a_file_can_be_used(name: str, kind: type) -> None:
    error = sqlite3.OperationalError()
    error.sqlite_errorname = name
    assert type(failed_by(error)) is kind


async def test_an_option_that_a_server_does_not_know_says_nothing_about_its_content(
    postgres: Callable[[], str],
) -> None:
    with pytest.raises(UnreachableError):
        await SqlDatabase(f"{postgres()}?bogus=1").read("SELECT 1")


@pytest.mark.parametrize("code", ["23514", "08006", "57P01", "P0001"])
async def test_an_error_at_the_end_of_a_transaction_is_the_same_as_at_a_statement(
    postgres: Callable[[], str], code: str
) -> None:
    database = SqlDatabase(postgres())
    await database.write("CREATE TABLE late (id INTEGER)")
    await database.write(
        "CREATE FUNCTION no() RETURNS trigger AS"
        f" $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$ LANGUAGE plpgsql"
    )
    await database.write(
        "CREATE CONSTRAINT TRIGGER no AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION no()"
    )
    for _ in range(7):
        with pytest.raises(SourceError, match=code) as raised:
            await database.write("INSERT INTO late VALUES (1)")
        assert isinstance(raised.value, UnreachableError) == (code in ("08006", "57P01"))
    assert await database.read("SELECT * FROM late") == []
    await database.aclose()


class SlowLine:
    """A line to a server that takes little at a time, in both directions, and counts how often they
    take turns: the round trips."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()
        self.turns = 0
        self._last: object = None

    async def __aenter__(self) -> Self:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self._listening.setblocking(False)
        self._start(self._accept())
        return self

    def to(self, url: str) -> str:
        """Return the URL of the same server, by this line."""
        address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        return re.sub(r"127\.0\.0\.1:\d+", address, url)

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listening.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.ensure_future(work))

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            near, _ = await loop.sock_accept(self._listening)
            far = socket.create_connection(("127.0.0.1", self._port))
            for end in (near, far):
                end.setblocking(False)
            self._start(self._carry(near, far, "asked"))
            self._start(self._carry(far, near, "answered"))

    async def _carry(self, source: socket.socket, to: socket.socket, what: str) -> None:
        loop = asyncio.get_running_loop()
        with source, suppress(OSError):
            while piece := await loop.sock_recv(source, 65_536):
                self.turns += (self._last, what) == ("answered", "asked")
                self._last = what
                await loop.sock_sendall(to, piece)
                await asyncio.sleep(0)
            to.shutdown(socket.SHUT_WR)


async def test_a_large_value_arrives_whatever_a_line_takes_at_once(
    postgres: Callable[[], str],
) -> None:
    """Neither end waits for the other one, however little of a value is taken at a time."""
    url = postgres()
    async with SlowLine(int(url.split(":")[-1].split("/")[0])) as line:
        database = SqlDatabase(line.to(url))
        await database.write("CREATE TABLE texts (at integer, text text)")
        for at in range(3):

            def put(transaction: Transaction, at: int = at) -> int:
                given = {"at": at, "text": "ü" * 2_000_000}
                insert = Insert("texts", ("at", "text"))
                transaction.insert(insert, [given, given])
                transaction.send(insert.of_values(), **given)
                return len(transaction.tuples("SELECT text FROM texts WHERE at = :at", at=at))

            async with asyncio.timeout(60):
                assert await database.transact(put) == 3
        await database.aclose()


async def test_an_entry_takes_two_round_trips(postgres: Callable[[], str]) -> None:
    """One to see the head under its lock, one to write all and commit: a server may be far away."""
    url = postgres()
    async with SlowLine(int(url.split(":")[-1].split("/")[0])) as line:
        log = AuditLog(line.to(url))
        for at in range(20):  # a server prepares what it has run some times
            before = line.turns
            await log.write(record(at))
            assert at == 0 or line.turns - before <= 2
        assert (await log.verify()).ok
        await log.aclose()


@pytest.mark.parametrize("most", [1, 100, 5_000, 2**24])
async def test_many_rows_go_to_a_server_in_parts(
    postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """However large they are together: a server takes no message of a gigabyte."""
    monkeypatch.setattr("toolcrib.storage.transaction.MAX_BATCH", most)
    rows = [{"at": at, "text": "ü" * (at * 37 % 900)} for at in range(60)]
    insert = Insert("texts", ("at", "text"))
    database = SqlDatabase(postgres())
    await database.write("CREATE TABLE texts (at integer, text text)")
    await database.transact(lambda transaction: transaction.insert(insert, rows))
    assert await database.read("SELECT at, text FROM texts ORDER BY at") == rows
    await database.aclose()


@pytest.mark.parametrize("most", [1, 100, 5_000, 2**24])
async def test_rows_of_some_tables_and_a_statement_are_written_together(
    url: str, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """In one statement on PostgreSQL, however many rows are sent before it."""
    monkeypatch.setattr("toolcrib.storage.transaction.MAX_BATCH", most)
    database = SqlDatabase(url)
    for table in ("texts", "names"):
        await database.write(f"CREATE TABLE {table} (at integer PRIMARY KEY, text text)")
    await database.write("CREATE TABLE ends (at integer)")
    texts = [{"at": at, "text": "ü" * (at * 37 % 900)} for at in range(60)]
    names = [{"at": at, "text": f"é {at} % :at"} for at in range(3)]
    into = {table: Insert(table, ("at", "text")) for table in ("texts", "names")}
    end = Insert("ends", ("at",)).of_values()

    def put(transaction: Transaction) -> None:
        transaction.write([(into["texts"], texts), (into["names"], names)], end, at=7)
        transaction.write([(into["texts"], [])], end, at=8)

    await database.transact(put)
    for table, rows in (("texts", texts), ("names", names)):
        assert await database.read(f"SELECT at, text FROM {table} ORDER BY at") == rows  # noqa: S608
    assert await database.read("SELECT at FROM ends ORDER BY at") == [{"at": 7}, {"at": 8}]
    with pytest.raises(SourceError):
        await database.transact(put)  # the same keys once more: nothing of it is kept
    assert await database.read("SELECT count(*) AS n FROM ends") == [{"n": 2}]
    await database.aclose()


async def test_a_log_may_have_a_rule_that_copies_its_entries(postgres: Callable[[], str]) -> None:
    log = AuditLog(postgres())
    await log.write(record(0))
    await log._database.write("CREATE TABLE copies (seq bigint)")
    await log._database.write(
        "CREATE RULE copied AS ON INSERT TO audit_entries DO ALSO INSERT INTO copies VALUES (NEW.seq)"
    )
    for at in (1, 2, 3):
        await log.write(record(at))
    copies = await log._database.read("SELECT seq FROM copies ORDER BY seq")
    entries = await log.entries()
    assert [row["seq"] for row in copies] == [entry.seq for entry in entries[1:]]
    assert (await log.verify()).ok
    await log.aclose()


async def test_a_connection_keeps_its_cursors_and_nothing_that_they_read(url: str) -> None:
    database = SqlDatabase(url)
    connections: list[Any] = []

    def read(transaction: Transaction) -> list[tuple[Any, ...]]:
        connections.append(transaction._connection.info)
        ahead = [transaction.read_ahead("SELECT :at", at=f"{at}") for at in range(3)]
        assert [rows() for rows in ahead] == [[(f"{at}",)] for at in range(3)]
        return transaction.tuples("SELECT :large", large="x" * 1_000_000)

    for _ in range(20):
        assert await database.transact(read) == [("x" * 1_000_000,)]
    kept = {id(info): info[_CURSORS] for info in connections}
    assert sum(map(len, kept.values())) <= 5 * len(kept)
    for cursor in itertools.chain.from_iterable(kept.values()):
        result = getattr(cursor, "pgresult", None)  # sqlite3 keeps no results
        assert result is None or result.ntuples == 0 or len(result.get_value(0, 0)) < 10
    await database.aclose()


async def test_what_is_given_back_once_the_database_is_closed_is_closed(url: str) -> None:
    database, begun, go_on = SqlDatabase(url), threading.Event(), threading.Event()
    used: list[Any] = []

    def work(transaction: Transaction) -> None:
        used.append(transaction._connection.driver_connection)
        begun.set()
        go_on.wait(10)

    writing = asyncio.create_task(database.transact(work))
    await asyncio.to_thread(begun.wait, 10)
    await database.aclose()
    assert not is_closed(used[0])
    go_on.set()
    await writing
    assert is_closed(used[0])
    assert await database.read("SELECT 1 AS one") == [{"one": 1}]
    await database.aclose()


async def test_what_the_pool_takes_back_while_the_database_closes_is_closed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, taken_back = SqlDatabase(url), list[Any]()
    put = sqlalchemy.pool.QueuePool._do_return_conn

    def put_late(pool: Any, record: Any) -> None:
        monkeypatch.undo()
        taken_back.append(record.dbapi_connection)
        closing_it = threading.Thread(target=asyncio.run, args=[database.aclose()])
        closing_it.start()
        closing_it.join()
        put(pool, record)

    await database.read("SELECT 1 AS one")
    monkeypatch.setattr(sqlalchemy.pool.QueuePool, "_do_return_conn", put_late)
    await database.read("SELECT 1 AS one")
    assert is_closed(*taken_back)
    assert await database.read("SELECT 1 AS one") == [{"one": 1}]
    await database.aclose()


def is_closed(connection: Any) -> bool:
    try:
        connection.cursor().close()
    except (sqlite3.ProgrammingError, psycopg.OperationalError):
        return True
    return False


def test_without_sqlalchemy_a_store_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program hears of it as it starts, and not at the first call."""
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    for kind in (ApprovalStore, AuditLog, SpendStore, SqlDatabase):
        with pytest.raises(MissingExtraError, match=r"'\.\[audit\]'"):
            kind("sqlite://")
