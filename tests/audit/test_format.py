"""A log from before there were formats opens, verifies by its own rules, goes on, and is migrated."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from audit.audit_helpers import opened, record, write_calls

from toolcrib.audit import AuditLog, Fault, Head, verify_jsonl
from toolcrib.errors import SourceError

KEY = "a key"
OLD = Path(__file__).with_name("format_1.sql")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "old.db"
    with opened(path) as connection:
        connection.executescript(OLD.read_text(encoding="utf-8"))
    return path


async def test_it_verifies_by_its_own_rules_and_is_not_sealed(path: Path) -> None:
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        found = await log.verify()
        assert (found.ok, found.format, found.checked, found.sealed) == (True, 1, 6, False)
        lines = [line async for line in log.export()]
        assert len(lines) == 6
        found = verify_jsonl(lines, key=KEY)
        assert (found.ok, found.sealed) == (True, False)
    with opened(path) as connection:
        connection.execute("UPDATE audit_entries SET at = at + 1 WHERE seq = 2")
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        assert not (await log.verify()).ok


async def test_it_goes_on_and_knows_what_ran(path: Path) -> None:
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        assert await log.find("run_1/1") == await log.find(record(1, "started")) == record(1)
        assert await log.begin(record(0, "started")) == record(0)
        assert await log.begin(record(2, "started")) == record(2, "started")
        await log.write(record(2))
        await write_calls(log, range(7, 9))
        assert await log.find("run_1/7") == record(7)
        assert await log.find("run_1/99") is None
        found = await log.verify()
        assert (found.ok, found.format, found.checked) == (True, 1, 11)
        assert await log.prune(before=1e12) == 11
        assert (await log.verify()).ok


async def test_a_changed_row_of_it_decides_nothing(path: Path) -> None:
    with opened(path) as connection:
        connection.execute("UPDATE audit_entries SET record = replace(record, '1.5', '2.5')")
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        with pytest.raises(SourceError, match="was changed"):
            await log.find("run_1/1")
        with pytest.raises(SourceError, match="was changed"):
            await log.begin(record(1, "started"))


async def test_migrated_it_is_sealed_and_its_entries_are_as_they_were(path: Path) -> None:
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        before, head = await log.entries(), await log.head()
        assert await log.migrate()
        assert not await log.migrate()
        assert await log.entries() == before
        found = await log.verify(head=head)
        assert (found.ok, found.format, found.checked, found.sealed) == (True, 2, 7, True)
        lines = [line async for line in log.export()]
        note = json.loads(lines[6])["record"]
        assert (note["status"], note["through"], note["hash"]) == ("genesis", 6, head.hash)
        assert verify_jsonl(lines, key=KEY).sealed
        assert verify_jsonl(lines[:-1], key=KEY).fault is not None
        assert await log.find("run_1/1") == record(1)
        assert await log.begin(record(0, "started")) == record(0)
        await write_calls(log, range(7, 9))
        assert (await log.verify(head=head)).sealed
    for sql in ("DELETE FROM audit_entries WHERE seq > 6", "UPDATE audit_head SET format = 1"):
        with opened(path) as connection:
            connection.execute(sql)
        async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
            assert not (await log.verify()).ok


async def test_nobody_goes_back_to_the_format_before(path: Path) -> None:
    """The old head, seal and all, put back beside what was written since."""
    with opened(path) as connection:
        (old,) = connection.execute("SELECT seq, hash, seal FROM audit_head").fetchall()
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        await log.migrate()
    with opened(path) as connection:
        connection.execute(
            "UPDATE audit_head SET seq = ?, hash = ?, seal = ?, format = 1, first_seq = 1", old
        )
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        found = await log.verify()
        assert found.fault == Fault(8, "the log's head says that entry 6 is the last")


async def test_a_copy_from_before_the_migration_put_back_is_found_by_a_log_that_is_open(
    path: Path,
) -> None:
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        assert (await log.verify()).ok
        with opened(path) as database, sqlite3.connect(":memory:") as copy:
            database.backup(copy)
            assert await log.migrate()
            assert await log.begin(record(77, "started")) is None
            copy.backup(database)
        with pytest.raises(SourceError, match="an older copy was put back"):
            await log.begin(record(77, "started"))
        with pytest.raises(SourceError, match="an older copy was put back"):
            await log.find("run_1/77")
        assert not (await log.verify()).ok


async def test_what_was_changed_is_not_migrated(path: Path) -> None:
    with opened(path) as connection:
        connection.execute("DELETE FROM audit_entries WHERE seq = 3")
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        with pytest.raises(SourceError, match="not migrated: entries are missing"):
            await log.migrate()
    async with AuditLog(f"sqlite:///{path}", key="another") as log:
        with pytest.raises(SourceError, match="another key"):
            await log.migrate()


ATTACKS = [
    *(
        f"UPDATE audit_entries SET {name} = {value} WHERE seq = {seq}"  # noqa: S608
        for name in (
            "at",
            "record",
            "previous",
            "hash",
            "call_id",
            "idempotency_key",
            "status",
            "code",
        )
        for value in ("'x'", "''", f"(SELECT {name} FROM audit_entries WHERE seq = 2)")  # noqa: S608
        for seq in (3, 6)
    ),
    "UPDATE audit_entries SET at = 9e999 WHERE seq = 3",
    "UPDATE audit_entries SET record = x'7b7d' WHERE seq = 3",
    *(f"UPDATE audit_entries SET seq = {n} WHERE seq = 3" for n in (-1, 0, 9, 2**62)),  # noqa: S608
    *(
        f"DELETE FROM audit_entries WHERE seq {which}"  # noqa: S608
        for which in ("= 1", "= 3", "= 6", "> 3", "< 4")
    ),
    "DELETE FROM audit_entries",
    "DELETE FROM audit_head",
    *(
        f"INSERT INTO audit_entries SELECT {n}, at, run_id, call_id, idempotency_key, tool, caller,"  # noqa: S608
        " status, code, record, previous, hash FROM audit_entries WHERE seq = 3"
        for n in (-5, 0, 7)
    ),
    *(
        f"UPDATE audit_head SET {name} = {value}"  # noqa: S608
        for name in (
            "seq",
            "hash",
            "seal",
            "format",
            "log_id",
            "first_seq",
            "keys_hash",
            "tree_hash",
        )
        for value in ("''", "'x'", "0", "2", "3", "5", "x'00'", "-1")
    ),
    # two rows in each other's place
    """UPDATE audit_entries SET seq = CASE seq WHEN 2 THEN -3 ELSE -2 END WHERE seq IN (2, 3);
    UPDATE audit_entries SET seq = -seq WHERE seq < 0""",
    # parts of the newest format, put beside a log that has none
    "INSERT INTO audit_keys VALUES ('', '{}')",
    "INSERT INTO audit_keys VALUES ('a', '{}')",
    "INSERT INTO audit_tiles VALUES ('0/0', 'AAAA')",
    "INSERT INTO audit_tiles VALUES ('3/9', 'AAAA')",
]


@pytest.mark.parametrize("migrated", [False, True], ids=["format 1", "migrated"])
@pytest.mark.exhaustive
async def test_no_change_of_an_older_log_is_migrated(path: Path, migrated: bool) -> None:
    """What is migrated is what was written, whole and sealed; else it is an error, and stays."""
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        if migrated:
            await log.migrate()
        before = await log.entries()
    with opened(path) as connection:
        whole = "\n".join(connection.iterdump())
    wrong = []
    for number, attack in enumerate(ATTACKS):
        if "format = 2" in attack and migrated:
            continue  # what it is
        other = path.with_name(f"{number}.db")
        with opened(other) as connection:
            connection.executescript(whole)
            try:
                connection.executescript(attack)
            except sqlite3.IntegrityError:
                continue
            if "\n".join(connection.iterdump()) == whole:
                continue
        async with AuditLog(f"sqlite:///{other}", key=KEY) as log:
            try:
                done = await log.migrate()
                told = (done, (await log.verify()).ok, await log.entries() == before)
            except SourceError:
                continue
            except Exception as error:  # noqa: BLE001  it is what is looked for
                wrong.append((attack, repr(error)))
                continue
            if told != (True, True, True) and (done or told[1]):
                wrong.append((attack, f"{told}"))
    assert wrong == []


async def test_one_that_was_pruned_is_migrated_too(path: Path) -> None:
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        entries = await log.entries()
        await log.prune(before=entries[3].at)
        assert await log.migrate()
        found = await log.verify()
        assert (found.sealed, found.checked) == (True, 5)
        assert (await log.head()).seq == 8
        await log.write(record(9))
        assert await log.prune(before=1e12) == 6
        assert (await log.verify()).sealed


async def test_a_new_log_is_of_the_newest_format(tmp_path: Path) -> None:
    async with AuditLog(f"sqlite:///{tmp_path}/crib.db", key=KEY * 4) as log:
        assert (await log.head()) == Head(0, "0" * 64)
        found = await log.verify()
        assert found.fault == Fault(
            None, "nothing was ever written to this log, or all of it was erased"
        )
        assert not await log.migrate()
        assert (await log.verify()).sealed


@pytest.mark.parametrize("key", [KEY, b"fifteen bytes.."])
async def test_no_new_log_has_a_key_that_can_be_found(tmp_path: Path, key: str | bytes) -> None:
    """Those that exist go on: the logs of earlier formats in these tests have such a key."""
    async with AuditLog(f"sqlite:///{tmp_path}/crib.db", key=key) as log:
        for work in (log.open(), log.write(record(1))):
            with pytest.raises(SourceError, match="key is at least 16 random bytes"):
                await work
        assert await log.entries() == []


async def test_a_log_of_format_2_verifies_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "format_2.db"
    with opened(path) as connection:
        connection.executescript(OLD.with_name("format_2.sql").read_text(encoding="utf-8"))
    head = Head(7, "b8ada4a9c71667e83b525157a23f187f592647463d635b3d02d614959e93365f")
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        found = await log.verify(head=head)
        assert (found.ok, found.format, found.checked, found.head) == (True, 2, 7, head)
        assert await log.find("run_1/1") == record(1)
        assert await log.begin(record(2, "started")) == record(2)
        await log.write(record(3))
        await write_calls(log, range(4, 6))
        found = await log.verify(head=head)
        assert (found.ok, found.checked, found.sealed) == (True, 12, True)
