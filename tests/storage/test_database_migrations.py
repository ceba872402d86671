"""Databases of every version become the newest; those from the future are left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy
from children import together

from toolcrib.audit import AuditLog
from toolcrib.errors import SourceError
from toolcrib.storage import SqlDatabase
from toolcrib.storage.migrations import MIGRATIONS

NEWEST = len(MIGRATIONS)
OLDEST = """CREATE TABLE approvals (
    id VARCHAR(64) PRIMARY KEY,
    request TEXT NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL,
    answer TEXT,
    used_at DOUBLE PRECISION
)"""


def execute(url: str, *statements: str) -> None:
    """As somebody else would, who knows nothing of versions."""
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


async def versions(database: SqlDatabase) -> list[int]:
    rows = await database.read("SELECT version FROM toolcrib_schema ORDER BY version")
    return [row["version"] for row in rows]


async def tables(url: str) -> dict[str, list[str]]:
    def found() -> dict[str, list[str]]:
        engine = sqlalchemy.create_engine(url)
        about = sqlalchemy.inspect(engine)
        told = {n: [c["name"] for c in about.get_columns(n)] for n in about.get_table_names()}
        engine.dispose()
        return told

    return await asyncio.to_thread(found)


async def test_a_new_database_is_of_the_newest_version(url: str) -> None:
    database = SqlDatabase(url)
    assert await versions(database) == list(range(1, NEWEST + 1))
    await database.aclose()
    found = await tables(url)
    audit = {"audit_entries", "audit_head", "audit_keys", "audit_tiles"}
    chat = {"chat_threads", "chat_turns", "chat_calls", "chat_waiting"}
    durable = {"durable_runs", "durable_questions", "durable_workers"}
    spent = {"spenders", "spent_calls", "paid_requests"}
    own = {"approvals", "approval_rules", "spilled_results", "toolcrib_schema"}
    assert own.union(audit, chat, durable, spent) == set(found)
    assert found["approvals"][-4:] == ["call_id", "pinned", "signature", "answered_at"]


async def test_one_without_a_version_is_taken_over_with_all_that_is_in_it(url: str) -> None:
    execute(
        url,
        OLDEST,
        "INSERT INTO approvals (id, request, expires_at) VALUES ('apr_1', '{}', 9.5)",
    )
    database = SqlDatabase(url)
    assert await database.read("SELECT * FROM approvals") == [
        {
            "id": "apr_1",
            "request": "{}",
            "expires_at": 9.5,
            "answer": None,
            "used_at": None,
            "run_id": "",
            "call_id": "",
            "pinned": "",
            "signature": "",
            "answered_at": None,
        }
    ]
    assert await versions(database) == list(range(1, NEWEST + 1))
    await database.aclose()


async def test_what_is_there_is_left_as_it_is(url: str) -> None:
    for _ in range(3):
        database = SqlDatabase(url)
        await database.write(
            "INSERT INTO approvals (id, request, expires_at) VALUES (:id, '', 0)",
            id=str(len(await database.read("SELECT id FROM approvals"))),
        )
        await database.aclose()
    database = SqlDatabase(url)
    assert len(await database.read("SELECT id FROM approvals")) == 3
    assert await versions(database) == list(range(1, NEWEST + 1))
    await database.aclose()


async def test_a_newer_one_is_refused_and_not_touched(url: str) -> None:
    database = SqlDatabase(url)
    newer = NEWEST + 1
    await database.write("INSERT INTO toolcrib_schema (version) VALUES (:version)", version=newer)
    await database.aclose()
    before = await tables(url)
    with pytest.raises(SourceError, match=f"has version {newer}.* install a newer"):
        await SqlDatabase(url).read("SELECT 1")
    async with AuditLog(url) as log:
        found = (await log.verify()).fault
        assert found is not None
        assert "install a newer" in found.what
    assert await tables(url) == before


async def test_a_migration_that_fails_leaves_nothing_behind(url: str) -> None:
    execute(url, OLDEST, "CREATE TABLE mine (x INTEGER)")
    execute(url, "CREATE INDEX audit_entries_by_run ON mine (x)")
    with pytest.raises(SourceError, match="cannot be used"):
        await SqlDatabase(url).read("SELECT 1")
    assert set(await tables(url)) == {"approvals", "mine"}
    execute(url, "DROP TABLE mine")
    database = SqlDatabase(url)
    assert await versions(database) == list(range(1, NEWEST + 1))
    await database.aclose()


OPEN = """
import asyncio, sys
from toolcrib.storage import SqlDatabase
print("ready", flush=True)
sys.stdin.readline()
print(len(asyncio.run(SqlDatabase(sys.argv[1]).read("SELECT version FROM toolcrib_schema"))))
"""


@pytest.mark.parametrize("prepare", [(), (OLDEST,)])
async def test_several_processes_open_it_at_once(url: str, prepare: tuple[str, ...]) -> None:
    if prepare:
        execute(url, *prepare)
    assert await asyncio.to_thread(together, *[("-c", OPEN, url)] * 3) == [f"{NEWEST}\n"] * 3


async def test_several_threads_open_it_at_once(url: str) -> None:
    databases = [SqlDatabase(url) for _ in range(4)]
    read: Callable[[SqlDatabase], Any] = versions
    assert await asyncio.gather(*map(read, databases)) == [list(range(1, NEWEST + 1))] * 4
    await asyncio.gather(*(database.aclose() for database in databases))


@pytest.mark.parametrize("name", ["approvals", "audit_entries", "audit_tiles"])
async def test_a_table_of_another_program_is_left_alone(url: str, name: str) -> None:
    execute(url, f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, who TEXT)")
    before = await tables(url)
    async with AuditLog(url) as log:
        with pytest.raises(SourceError, match=f"a table {name} of another program"):
            await log.open()
    assert await tables(url) == before
