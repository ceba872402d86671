"""Whatever is changed in a database shows, or changes nothing that anybody reads."""

# ruff: noqa: S311, S608, ASYNC240  randomness is seeded, SQL is our own, and files are small

from __future__ import annotations

import asyncio
import random
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
import sqlalchemy
from audit.audit_helpers import opened, record, write_calls
from samples import WHOLE, sample, sampled

from toolcrib import ALL, Completed, ToolCall, ToolRunner, tool
from toolcrib.audit import (
    AuditEntry,
    AuditLog,
    Fault,
    Head,
    SigningKey,
    Verification,
    index,
    tree,
)
from toolcrib.audit.append import stored_state
from toolcrib.audit.entry import (
    COLUMNS,
    KINDS,
    NOTHING,
    ROW,
    Seal,
    Summary,
    kind_of,
    text_and_record,
)
from toolcrib.audit.index import Index
from toolcrib.errors import SourceError
from toolcrib.storage import SqlDatabase, Transaction
from toolcrib.values.record import Attachment

KEY = "a key of sixteen bytes"
SEED = 20_261_122


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A log of ten entries with a key, and an eleventh that tells of a call that failed."""
    path = tmp_path / "crib.db"
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        await write_calls(log, range(5))
        await log.write(record(5, "failed"))
    return path


async def verified(path: Path, head: Head | None = None, key: str | None = KEY) -> Verification:
    async with AuditLog(f"sqlite:///{path}", key=key) as log:
        return await log.verify(head=head)


async def entries(path: Path) -> list[AuditEntry]:
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        return await log.entries()


async def test_nothing_changed_is_in_order(path: Path) -> None:
    head = Head(11, (await entries(path))[-1].hash)
    assert await verified(path, head) == Verification(11, head)


COPY = """INSERT INTO audit_entries SELECT {}, at, run_id, call_id, idempotency_key, tool, caller,
    status, code, record, previous, hash FROM audit_entries WHERE seq = 11"""
SWAP = """UPDATE audit_entries SET seq = -seq WHERE seq IN (3, 4);
    UPDATE audit_entries SET seq = 7 + seq WHERE seq < 0"""
STEP_BACK = """UPDATE audit_head SET seq = 10,
    hash = (SELECT hash FROM audit_entries WHERE seq = 10);
    DELETE FROM audit_entries WHERE seq = 11"""

# what is done, and at which entry it shows; None where it is about no entry
SQL: list[tuple[str, int | None]] = [
    ("DELETE FROM audit_entries WHERE seq = 1", 2),
    ("DELETE FROM audit_entries WHERE seq = 5", 6),
    ("DELETE FROM audit_entries WHERE seq = 11", 11),
    ("DELETE FROM audit_entries", 1),
    ("DELETE FROM audit_entries; DELETE FROM audit_head", None),
    ("DELETE FROM audit_entries WHERE seq > 0", 1),
    ("DELETE FROM audit_entries WHERE seq = 0", 1),
    ("DELETE FROM audit_keys", None),
    ("DELETE FROM audit_tiles", None),
    ("UPDATE audit_head SET format = 1", None),
    ("DELETE FROM audit_head", 12),
    ("DELETE FROM audit_head; DELETE FROM audit_entries WHERE seq > 3", 4),
    (STEP_BACK, None),
    ("UPDATE audit_head SET seal = ''", None),
    ("UPDATE audit_head SET seq = 'many'", None),
    (SWAP, 3),
    ("UPDATE audit_entries SET seq = 100 WHERE seq = 3", 4),
    (COPY.format(12), 12),
    ("DELETE FROM audit_entries WHERE seq = 0;" + COPY.format(0), 0),
    (COPY.format(-(2**63)), None),
    (COPY.format(2**63 - 1), None),
    ("UPDATE audit_entries SET record = CAST(x'ff00fe' AS TEXT) WHERE seq = 4", 4),
    ("UPDATE audit_entries SET record = x'ff00fe' WHERE seq = 4", 4),
    ("UPDATE audit_entries SET record = 5 WHERE seq = 4", 4),
    ("UPDATE audit_entries SET at = 'noon' WHERE seq = 4", 4),
    ("UPDATE audit_entries SET at = at + 0.001 WHERE seq = 4", 4),
    ("UPDATE audit_entries SET at = 9e999 WHERE seq = 4", 4),
    ("DROP TABLE audit_entries", None),
    ("DROP TABLE audit_head", None),
    ("DROP TABLE audit_keys", None),
    ("DROP TABLE audit_tiles", None),
    ("ALTER TABLE audit_entries DROP COLUMN caller", None),
]
SQL += [(f"UPDATE audit_entries SET {name} = {name} || 'x' WHERE seq = 11", 11) for name in COLUMNS]
SQL += [(f"UPDATE audit_entries SET {name} = '' WHERE seq = 11", 11) for name in COLUMNS]
SQL += [
    (
        f"UPDATE audit_entries SET {name} = replace({name}, substr({name}, 1, 1), 'x') WHERE seq = 9",
        9,
    )
    for name in ("record", "previous", "hash")
]


@pytest.mark.parametrize(("sql", "seq"), sampled(SQL, part=2))
async def test_a_change_by_sql_is_found(path: Path, sql: str, seq: int | None) -> None:
    with opened(path) as connection:
        connection.executescript(sql)
    found = await verified(path)
    assert found.fault is not None
    assert not found.ok
    if seq is not None:
        assert found.fault.seq == seq


@pytest.mark.parametrize("seq", sampled(range(1, 12), part=3))
async def test_each_byte_of_an_entry_counts(path: Path, seq: int) -> None:
    """Every place of every text of one entry is changed in turn, in ways a text can be."""
    names = ("record", "previous", "hash", *COLUMNS)
    with opened(path) as connection:
        row = connection.execute(
            f"SELECT {', '.join(names)} FROM audit_entries WHERE seq = ?", (seq,)
        ).fetchone()
    log = AuditLog(f"sqlite:///{path}", key=KEY)
    for name, text in zip(names, row, strict=True):
        for at in range(0, len(text), 1 if name in COLUMNS else 7):
            flipped = text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]
            _set(path, name, flipped, seq)
            found = (await log.verify()).fault
            assert found is not None, (name, at)
            assert found.seq in (seq, seq + 1), (name, at)
        _set(path, name, text, seq)
    assert (await log.verify()).ok
    await log.aclose()


def _set(path: Path, name: str, text: str, seq: int) -> None:
    with opened(path) as connection:
        connection.execute(f"UPDATE audit_entries SET {name} = ? WHERE seq = ?", (text, seq))


async def test_a_byte_flipped_in_the_file_is_found_or_changes_nothing(path: Path) -> None:
    whole = path.read_bytes()
    before = await entries(path)
    chance = random.Random(SEED)
    found = 0
    flips = sample(400, part=8)
    for _ in range(flips):  # most pages are of tables without rows
        at, flip = chance.randrange(len(whole)), chance.randrange(1, 256)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
        _forget(path)
        if not (await verified(path)).ok:
            found += 1
        else:
            assert await entries(path) == before, at
    assert found > flips // 40


async def test_every_byte_of_a_text_in_the_file_counts(path: Path) -> None:
    whole = path.read_bytes()
    texts = [e.hash.encode() for e in await entries(path)] + [b'"status":"completed"', b"anna"]
    places = [m.start() + len(m.group()) // 2 for t in texts for m in re.finditer(t, whole)]
    assert len(places) > 40
    for at in places:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        _forget(path)
        assert not (await verified(path)).ok, at


def _forget(path: Path) -> None:
    """The side files belong to the file as it was before."""
    for side in ("-wal", "-shm"):
        path.with_name(path.name + side).unlink(missing_ok=True)


async def test_garbage_instead_of_a_file_is_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "crib.db"
    path.write_bytes(random.Random(SEED).randbytes(9000))
    found = await verified(path)
    assert found.fault is not None
    assert found.fault.seq is None


async def test_a_database_that_is_not_there_is_no_finding(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="CANTOPEN"):
        await verified(tmp_path / "nowhere" / "crib.db")


def recompute(path: Path, key: str | None, change: Callable[[sqlite3.Connection], object]) -> None:
    """What an attacker does who knows how all of it is made, and perhaps the key."""
    seal, head = Seal(key), NOTHING
    with opened(path) as connection:
        change(connection)
        rows = connection.execute("SELECT rowid, at, record FROM audit_entries ORDER BY seq")
        for old, at, text in rows.fetchall():
            previous, head = head, seal.entry(head, at, text)
            connection.execute(
                "UPDATE audit_entries SET seq = ?, previous = ?, hash = ? WHERE seq = ?",
                (head.seq, previous.hash, head.hash, old),
            )
        connection.executescript("DELETE FROM audit_keys; DELETE FROM audit_tiles")
    SqlDatabase(f"sqlite:///{path}").transact_sync(lambda t: _resealed(t, seal, head))


def _resealed(transaction: Transaction, seal: Seal, head: Head) -> None:
    """An index, a tree and a state to the entries that there are."""
    keys = Index(transaction, seal, "")
    grown = tree.Tree(0, lambda _places: {})
    sql = "SELECT seq, at, record, idempotency_key, status FROM audit_entries ORDER BY seq"
    for seq, at, text, key, status in transaction.tuples(sql):
        if key:
            keys.add(key, seq * KINDS + kind_of(Summary(status=status)))
        grown.extend([tree.leaf_hash(seq, at, text)])
    root, nodes = keys.changed()
    transaction.insert(tree.SAVE, tree.rows_of(grown.changed()))
    transaction.insert(index.SAVE, nodes)
    found = stored_state(transaction)
    assert found is not None
    state = msgspec.structs.replace(found[0], head=head, keys=root, root=grown.root().hex())
    values = {name: state.members()[name] for name in ("seq", "hash", "keys", "root")}
    transaction.send(
        "UPDATE audit_head SET seq = :seq, hash = :hash, keys_hash = :keys, tree_hash = :root,"
        " seal = :seal",
        **values,
        seal=seal.state(state),
    )


def _remove_one(connection: sqlite3.Connection) -> object:
    return connection.execute("DELETE FROM audit_entries WHERE seq = 3")


def _nothing(connection: sqlite3.Connection) -> object:
    return connection.execute("SELECT 1")


async def test_a_chain_recomputed_without_the_key_is_found(path: Path) -> None:
    recompute(path, KEY, _nothing)
    assert (await verified(path)).ok  # it is done as the log does it
    for key in (None, "another key"):
        recompute(path, key, _nothing)
        assert (await verified(path)).fault == Fault(
            0, "the entry was changed after it was written, or the log has another key"
        )


async def test_a_plain_chain_can_be_recomputed_and_only_a_kept_head_shows_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "crib.db"
    async with AuditLog(f"sqlite:///{path}") as log:
        await write_calls(log, range(5))
        head = await log.head()
        await log.write(record(7))
    recompute(path, None, _remove_one)
    assert (await verified(path, key=None)).ok
    found = await verified(path, head, key=None)
    assert found.fault == Fault(10, "the entry does not have the hash of the head that was kept")


@pytest.mark.parametrize("key", [None, "another key"])
async def test_nobody_writes_on_with_another_key(path: Path, key: str | None) -> None:
    async with AuditLog(f"sqlite:///{path}", key=key) as log:
        with pytest.raises(SourceError, match="another key"):
            await log.write(record(9))
        with pytest.raises(SourceError, match="another key"):
            await log.prune(before=1e12)
    assert (await verified(path)).ok


async def test_a_changed_record_stands_for_no_call(path: Path) -> None:
    with opened(path) as connection:
        connection.execute("UPDATE audit_entries SET record = replace(record, '1.5', '2.5')")
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        with pytest.raises(SourceError, match=r"entry 4 .* was changed"):
            await log.find("run_1/1")
        with pytest.raises(SourceError, match=r"entry 4 .* was changed"):
            await log.begin(record(1, "started"))
        given = await asyncio.gather(
            log.begin(record(1, "started")), log.write(record(9)), return_exceptions=True
        )
        assert isinstance(given[0], SourceError)
        assert given[1] is None


async def test_an_entry_that_cannot_be_read_is_an_error_without_its_text(path: Path) -> None:
    _set(path, "record", '{"secret":', 4)
    with pytest.raises(SourceError, match=r"entry 4 .* verify") as raised:
        await entries(path)
    assert raised.value.__context__ is None


DEEP = "[" * 100_000 + "]" * 100_000
UNREADABLE = [
    f'{{"id":"call_1","idempotency_key":"run_1/1","result":{DEEP}}}',
    f'{{"status":"pruned","through":{DEEP}}}',
    DEEP,
]


@pytest.mark.parametrize("text", UNREADABLE, ids=["record", "note", "list"])
async def test_what_is_nested_too_deeply_is_a_finding(path: Path, text: str) -> None:
    """With the key, or else the hash would be wrong before anybody reads it."""
    with opened(path) as connection:
        connection.execute("UPDATE audit_entries SET record = ? WHERE seq = 4", (text,))
    recompute(path, KEY, _nothing)
    assert (await verified(path)).fault == Fault(4, "the entry is not a record")
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        for work in (log.entries(), log.find("run_1/1"), log.begin(record(1, "started"))):
            with pytest.raises(SourceError, match=r"entry 4 .* verify the log") as raised:
                await work
            assert raised.value.__context__ is None


async def test_what_only_columns_call_an_attachment_keeps_none_out(path: Path) -> None:
    said = Attachment.of("definition", {"name": "pay"}, run_id="")
    with opened(path) as connection:
        connection.execute(
            "UPDATE audit_entries SET run_id = '', call_id = ?, status = 'definition' WHERE seq = 3",
            (said.digest,),
        )
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        await log.attach(said)
        await log.attach(said)
    with opened(path) as connection:
        sql = "SELECT seq FROM audit_entries WHERE call_id = ?"
        assert connection.execute(sql, (said.digest,)).fetchall() == [(3,), (12,)]


@pytest.mark.parametrize("seq", [3, 500])
async def test_an_attachment_that_is_not_in_the_tree_keeps_none_out(
    tmp_path: Path, seq: int
) -> None:
    """Without a key anybody can make a row that fits its hash, and take it away again."""
    path = tmp_path / "plain.db"
    said = Attachment.of("definition", {"name": "pay"}, run_id="")
    text = text_and_record(said)[0]
    async with AuditLog(log_url(path)) as log:
        await write_calls(log, range(3))
        with opened(path) as database:
            database.execute("CREATE TABLE aside AS SELECT * FROM audit_entries WHERE seq = 3")
            database.execute("DELETE FROM audit_entries WHERE seq = ?", (seq,))
            own = Seal(None).entry(Head(seq - 1, "0" * 64), 1.5, text).hash
            row = (seq, 1.5, "", said.digest, "", "", "", "definition", "", text, "0" * 64, own)
            database.execute(f"INSERT INTO audit_entries VALUES ({','.join('?' * 12)})", row)
        await log.attach(said)
        with opened(path) as database:
            database.execute("DELETE FROM audit_entries WHERE seq = ?", (seq,))
            if seq == 3:
                database.execute("INSERT INTO audit_entries SELECT * FROM aside")
        assert (await log.verify()).ok
        assert await log.attachments([said.digest]) == {said.digest: said}


@pytest.mark.parametrize("value", ["9e999", "x'00ff'", "x''"])
async def test_what_cannot_be_told_as_json_is_one_of_our_errors(path: Path, value: str) -> None:
    """Whatever is in a column of the head or of an entry."""
    key = SigningKey.generate("example.com/log", path.with_name("k"))
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        note = await log.checkpoint(key)
        with opened(path) as connection:
            connection.execute(f"UPDATE audit_entries SET at = {value} WHERE seq = 3")
        with pytest.raises(SourceError, match="verify the log"):
            await log.prove(3, note)
        with opened(path) as connection:
            connection.execute("UPDATE audit_entries SET at = 1.5 WHERE seq = 3")
            connection.execute(f"UPDATE audit_head SET first_seq = {value}")
        with pytest.raises(SourceError, match="verify the log"):
            [_ async for _ in log.export()]


def snapshot(connection: sqlalchemy.Connection) -> dict[str, list[tuple[Any, ...]]]:
    return {
        table: [tuple(row) for row in connection.exec_driver_sql(f"SELECT * FROM {table}")]
        for table in ("audit_entries", "audit_head", "audit_keys", "audit_tiles")
    }


def restore(connection: sqlalchemy.Connection, saved: dict[str, list[tuple[Any, ...]]]) -> None:
    for table, rows in saved.items():
        connection.exec_driver_sql(f"DELETE FROM {table}")
        marks = ", ".join(["%s"] * len(rows[0]))
        connection.exec_driver_sql(f"INSERT INTO {table} VALUES ({marks})", rows)


# what only SQLite does: texts for numbers and numbers for texts
OWN = re.compile("CAST|noon|x'ff|= 5 |many|9e999")


async def test_changes_in_postgresql_are_found(postgres: Callable[[], str]) -> None:
    url = postgres()
    async with AuditLog(url, key=KEY) as log:
        await write_calls(log, range(5))
        await log.write(record(5, "failed"))
        engine = sqlalchemy.create_engine(url)
        for sql, seq in SQL:
            if "TABLE" in sql or OWN.search(sql):
                continue
            with engine.begin() as connection:
                saved = snapshot(connection)
                connection.exec_driver_sql(sql)
            found = (await log.verify()).fault
            assert found is not None, sql
            assert seq in (None, found.seq), sql
            with engine.begin() as connection:
                restore(connection, saved)
            assert (await log.verify()).ok
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE audit_head")
        engine.dispose()
        assert not (await log.verify()).ok


FUZZ = None if WHOLE else 40
TABLES = ("audit_entries", "audit_head", "audit_keys", "audit_tiles", "toolcrib_schema")
VALUES = ("''", "'x'", "0", "1", "2", "-1", "NULL", "x'00ff'")


def statements(path: Path) -> Iterator[str]:
    """One statement each, on every row and every column of every table of the log."""
    with opened(path) as connection:
        for table in TABLES:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            rows = [row for (row,) in connection.execute(f"SELECT rowid FROM {table}")]
            yield f"DELETE FROM {table}"
            for row in rows:
                yield f"DELETE FROM {table} WHERE rowid = {row}"
            for column in columns:
                # what it holds in another row, or something else, there or everywhere
                other = f"(SELECT {column} FROM {table} WHERE rowid <> {{row}} ORDER BY rowid)"
                flipped = f"substr({column}, 2) || substr({column}, 1, 1)"
                for value in (*VALUES, flipped, f"{column} || '0'", f"{column} + 1"):
                    yield f"UPDATE OR IGNORE {table} SET {column} = {value}"
                    at = rows[len(rows) // 2]
                    yield f"UPDATE OR IGNORE {table} SET {column} = {value} WHERE rowid = {at}"
                for row in rows:
                    yield (
                        f"UPDATE OR IGNORE {table} SET {column} = {other.format(row=row)}"
                        f" WHERE rowid = {row}"
                    )
            for column in columns:
                copied = ", ".join(f"{c} || '9'" if c == column else c for c in columns)
                yield f"INSERT OR IGNORE INTO {table} SELECT {copied} FROM {table}"


async def decided(path: Path) -> dict[str, object]:
    """What the log says of each call of three, and of one that was never made: may it run?"""
    found: dict[str, object] = {}
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        for number in (0, 1, 2, 99):
            try:
                found[f"find {number}"] = await log.find(f"run_1/{number}")
                found[f"begin {number}"] = await log.begin(record(number, "started"))
            except SourceError:
                found[f"error {number}"] = "it does not run"
    return found


async def test_no_single_statement_makes_a_call_run_again_or_stays_unseen(tmp_path: Path) -> None:
    """By somebody who has not the key: a call that ran has its outcome, or is an error, ever after;
    and whatever `verify` does not find has changed no decision at all."""
    path, copy = tmp_path / "crib.db", tmp_path / "copy.db"
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        await write_calls(log, range(3))
    whole = path.read_bytes()
    copy.write_bytes(whole)
    right = await decided(copy)
    assert right["begin 1"] == record(1)
    assert right["begin 99"] is None
    chance = random.Random(SEED)
    everything = sorted(set(statements(path)))
    assert len(everything) > 600
    for sql in everything if FUZZ is None else chance.sample(everything, FUZZ):
        copy.write_bytes(whole)
        _forget(copy)
        with (
            opened(copy) as connection,
            suppress(sqlite3.Error),
        ):  # such as a column that is never null
            connection.execute(sql)
        seen = not (await verified(copy)).ok
        told = await decided(copy)
        for number in range(3):
            for asked in ("find", "begin"):
                assert told.get(f"{asked} {number}", record(number)) == record(number), sql
        assert seen or told == right, sql


SWALLOWED = {  # by table: the statement, whose rows a trigger leaves out, or takes away again
    "audit_entries": ("INSERT", "DELETE FROM audit_entries WHERE seq = new.seq"),
    "audit_head": ("UPDATE", "UPDATE audit_head SET seq = old.seq, seal = old.seal WHERE id = 1"),
}
SEALED = ("seq", "hash", "format", "log_id", "first_seq", "keys_hash", "tree_hash", "seal")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "tables", [{"audit_entries"}, {"audit_head"}, {"audit_entries", "audit_head"}], ids=len
)
async def test_a_database_that_swallows_what_is_written_lets_no_call_run(
    path: Path, tables: set[str], after: bool
) -> None:
    triggers = {
        f"on_{table}": f"AFTER {when} ON {table} BEGIN {undo}; END"
        if after
        else f"BEFORE {when} ON {table} BEGIN SELECT RAISE(IGNORE); END"
        for table, (when, undo) in SWALLOWED.items()
        if table in tables
    }
    await no_call_runs(log_url(path), partial(_run_there, path), triggers)


@pytest.mark.parametrize(
    ("table", "column"),
    sampled(
        [*(("audit_entries", n) for n in ROW.split(", ")), *(("audit_head", n) for n in SEALED)],
        part=3,
    ),
)
async def test_a_database_that_changes_a_column_of_what_is_written_lets_no_call_run(
    path: Path, table: str, column: str
) -> None:
    when = "INSERT" if table == "audit_entries" else "UPDATE"
    change = f"UPDATE {table} SET {column} = 7007 WHERE rowid = new.rowid"
    trigger = f"AFTER {when} ON {table} BEGIN {change}; END"
    await no_call_runs(log_url(path), partial(_run_there, path), {"changes": trigger})


@pytest.mark.parametrize("what", ["seq > 8", "call_id = 'call_77'", "status <> 'started'"])
async def test_a_database_that_swallows_some_of_a_batch_takes_none_of_it(
    path: Path, what: str
) -> None:
    _run_there(
        path,
        "CREATE TRIGGER some BEFORE INSERT ON audit_entries"
        f" WHEN new.{what} BEGIN SELECT RAISE(IGNORE); END",
    )
    async with AuditLog(log_url(path), key=KEY) as log:
        before = await log.entries()
        waiting = [log.begin(record(n, "started")) for n in range(76, 79)]
        told = await asyncio.gather(*waiting, log.write(record(80)), return_exceptions=True)
        refused = [error for error in told if error is not None]  # one batch, or two of them
        assert refused
        assert all("did not store" in str(error) for error in refused), told
        _run_there(path, "DROP TRIGGER some")
        assert len(await log.entries()) == len(before) + len(told) - len(refused)
        if len(refused) == len(told):
            assert await log.begin(record(77, "started")) is None
        assert (await log.verify()).ok


@pytest.mark.parametrize(
    "how",
    [
        "BEFORE INSERT ON audit_entries FOR EACH ROW EXECUTE FUNCTION swallow()",
        "AFTER INSERT ON audit_entries FOR EACH ROW EXECUTE FUNCTION take_away()",
        "BEFORE INSERT ON audit_entries FOR EACH ROW EXECUTE FUNCTION mask()",
        "BEFORE INSERT ON audit_entries FOR EACH ROW EXECUTE FUNCTION rename()",
        "BEFORE UPDATE ON audit_head FOR EACH ROW EXECUTE FUNCTION swallow()",
        """AFTER INSERT ON audit_entries DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION take_away()""",
    ],
)
async def test_a_server_that_swallows_what_is_written_lets_no_call_run(
    postgres: Callable[[], str], how: str
) -> None:
    url = postgres()
    functions = {
        "swallow": "RETURN NULL;",
        "take_away": "DELETE FROM audit_entries WHERE seq = NEW.seq; RETURN NULL;",
        "mask": "NEW.record := '{}'; RETURN NEW;",
        "rename": "NEW.tool := 'other'; RETURN NEW;",
    }
    async with AuditLog(url, key=KEY) as log:
        await write_calls(log, range(3))
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as server:
        for name, body in functions.items():
            server.execute(
                f"CREATE FUNCTION {name}() RETURNS trigger AS"
                f" $$ BEGIN {body} END $$ LANGUAGE plpgsql"
            )

        def run(sql: str) -> None:
            on = f" ON {how.split()[3]}" if sql.startswith("DROP") else ""
            late = "CREATE CONSTRAINT" if "DEFERRABLE" in how else "CREATE"
            server.execute(sql.replace("CREATE", late) + on)

        await no_call_runs(url, run, {"on_write": how})


async def no_call_runs(url: str, run: Callable[[str], object], triggers: dict[str, str]) -> None:
    """While the database has these triggers; the log goes on without them, as if nothing had been."""
    ran: list[int] = []

    @tool(visible=ALL)
    async def count(number: int) -> int:
        """Count."""
        ran.append(number)
        return number

    async with AuditLog(url, key=KEY) as log:
        runner = ToolRunner([count], sinks=[log])
        before = await log.head()
        for name, how in triggers.items():
            run(f"CREATE TRIGGER {name} {how}")
        for number in range(7):  # a server prepares what it has run some times
            with pytest.raises(SourceError, match="did not store"):
                await runner.exec(ToolCall(f"call_{number}", "count", f'{{"number":{number}}}'))
            with pytest.raises(SourceError, match="did not store"):
                await log.begin(record(77, "started"))
        for name in triggers:
            run(f"DROP TRIGGER {name}")
        assert await log.head() == before
        assert ran == []
        assert await log.begin(record(77, "started")) is None
        await runner.exec(ToolCall("call_9", "count", '{"number":9}'))
        assert ran == [9]
        assert (await log.verify()).ok


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("table", ["audit_keys", "audit_tiles"])
async def test_a_swallowed_index_lets_no_call_run_again(
    path: Path, table: str, after: bool
) -> None:
    """The entries are there, and whatever is read leads to them, or is an error."""
    what, name = ("content", "prefix") if table == "audit_keys" else ("hashes", "place")
    for when in ("INSERT", "UPDATE"):
        undo = (
            f"UPDATE {table} SET {what} = '' WHERE {name} = new.{name}"
            if after
            else "SELECT RAISE(IGNORE)"
        )
        how = "AFTER" if after else "BEFORE"
        _run_there(path, f"CREATE TRIGGER on_{when} {how} {when} ON {table} BEGIN {undo}; END")
    async with AuditLog(log_url(path), key=KEY) as one, AuditLog(log_url(path), key=KEY) as other:
        claims = []
        for log in (one, other, one, other):
            with suppress(SourceError):
                claims.append(await log.begin(record(77, "started")))
        assert claims.count(None) <= 1
    async with AuditLog(log_url(path), key=KEY) as log:
        with suppress(SourceError):
            claims.append(await log.begin(record(77, "started")))
        assert claims.count(None) <= 1
        assert not (await log.verify()).ok


def _run_there(path: Path, sql: str) -> None:
    with opened(path) as database:
        database.execute(sql)


async def test_an_older_copy_put_back_while_the_log_is_open_lets_no_call_run(path: Path) -> None:
    """In place, through SQLite: the file is the same, and its seal is the one that it had then."""
    async with (
        AuditLog(f"sqlite:///{path}", key=KEY) as log,
        AuditLog(log_url(path), key=KEY) as other,
    ):
        with opened(path) as database, sqlite3.connect(":memory:") as copy:
            database.backup(copy)
            assert await log.begin(record(77, "started")) is None
            copy.backup(database)
        with pytest.raises(SourceError, match="an older copy was put back"):
            await log.begin(record(77, "started"))
        with pytest.raises(SourceError, match="an older copy was put back"):
            await log.find("run_1/77")
        fault = (await log.verify()).fault
        assert fault is not None
        assert "an older copy was put back" in fault.what
        await write_calls(other, range(80, 85))  # it has never seen more, and makes the copy longer
        with pytest.raises(SourceError, match="an older copy was put back"):
            await log.begin(record(77, "started"))


@pytest.mark.parametrize("table", ["audit_head", "audit_entries"])
async def test_a_trigger_that_puts_rows_back_lets_no_call_run_again(path: Path, table: str) -> None:
    with opened(path) as database:
        database.execute("CREATE TABLE old AS SELECT * FROM audit_head")
        back = (
            "DELETE FROM audit_entries WHERE seq = new.seq"
            if table == "audit_entries"
            else "UPDATE audit_head SET seq = (SELECT seq FROM old), hash = (SELECT hash FROM old),"
            " keys_hash = (SELECT keys_hash FROM old), tree_hash = (SELECT tree_hash FROM old),"
            " seal = (SELECT seal FROM old)"
        )
        when = "INSERT ON audit_entries" if table == "audit_entries" else "UPDATE ON audit_head"
        database.execute(f"CREATE TRIGGER back AFTER {when} BEGIN {back}; END")
    async with AuditLog(log_url(path), key=KEY) as log:
        with suppress(SourceError):
            await log.begin(record(77, "started"))
        with pytest.raises(SourceError):
            await log.begin(record(77, "started"))


async def test_the_last_of_a_call_whose_columns_were_changed_is_given(path: Path) -> None:
    with opened(path) as database:
        database.execute("UPDATE audit_entries SET run_id = 'x' WHERE call_id = 'call_1'")
    async with AuditLog(log_url(path), key=KEY) as log:
        last = await log.last("call_1")
        assert last is not None
        assert not last.intact


async def test_two_that_write_and_read_at_once_take_nothing_for_an_older_copy(path: Path) -> None:
    async with AuditLog(log_url(path), key=KEY) as one, AuditLog(log_url(path), key=KEY) as other:
        for number in range(100, 115):
            await asyncio.gather(
                write_calls(one, range(number, number + 1)),
                write_calls(other, range(number + 100, number + 101)),
                one.find("run_1/1"),
                other.head(),
                one.head(),
            )
        assert (await one.verify()).ok


def log_url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.mark.parametrize("replaced", ["gone", "new", "of another program"])
async def test_a_log_that_is_removed_while_it_is_open_does_not_begin_again(
    replaced: str, tmp_path: Path
) -> None:
    """The calls that it had recorded would run again."""
    ran: list[int] = []

    @tool(visible=ALL)
    async def charge(cents: int) -> str:
        """Charge."""
        ran.append(cents)
        return "paid"

    url, file = f"sqlite:///{tmp_path}/crib.db", tmp_path / "crib.db"
    paid = ToolCall("order_77", "charge", '{"cents": 1999}')
    async with AuditLog(url) as first:
        assert isinstance(await ToolRunner([charge], sinks=[first]).exec(paid), Completed)
    async with AuditLog(url) as log:
        runner = ToolRunner([charge], sinks=[log])
        await runner.exec(ToolCall("other", "charge", '{"cents": 1}'))
        for each in tmp_path.glob("crib.db*"):
            each.unlink()
        if replaced == "new":
            async with AuditLog(url) as second:
                await second.write(record())
        elif replaced == "of another program":
            with closing(sqlite3.connect(file)) as connection:
                connection.execute("CREATE TABLE other (a)")
        for _ in range(3):
            with pytest.raises(SourceError, match="removed"):
                await runner.exec(paid)
    assert ran == [1999, 1]
    async with AuditLog(url) as again:
        assert isinstance(await ToolRunner([charge], sinks=[again]).exec(paid), Completed)
