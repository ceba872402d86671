"""Old entries go, whole; that they went is in the chain."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from audit.audit_helpers import opened, record, write_calls

from toolcrib import ALL, Agent, ToolRunner, tool
from toolcrib.audit import AuditFilter, AuditLog, Fault, append, verify_jsonl
from toolcrib.audit import log as audit_log
from toolcrib.audit.entry import text_and_record
from toolcrib.audit.verify import plan_prune
from toolcrib.errors import SourceError, ToolcribError
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.record import Attachment


async def test_the_oldest_go_and_the_rest_still_verifies(url: str) -> None:
    async with AuditLog(url, key="k" * 16) as log:
        await write_calls(log, range(5))
        kept = await log.head()
        entries = await log.entries()
        assert await log.prune(before=entries[4].at) == 4
        assert await log.entries() == entries[4:]
        assert (await log.head()).seq == 11
        assert (await log.verify(head=kept)).ok
        assert (await log.verify()).checked == 7
        assert await log.prune(before=entries[4].at) == 0
        assert (await log.head()).seq == 11
        await log.write(record(9))
        assert (await log.verify()).ok
        lines = [line async for line in log.export()]
        assert verify_jsonl(lines, key="k" * 16).ok
        note = json.loads(lines[-3])["record"]
        assert note == {
            "entries": 4,
            "hash": entries[3].hash,
            "status": "pruned",
            "through": 4,
        }
        assert not verify_jsonl(lines[1:], key="k" * 16).ok


async def test_an_export_during_which_a_log_is_pruned_is_none(tmp_path: Path) -> None:
    """It would look like a log that somebody has changed."""
    url = f"sqlite:///{tmp_path}/crib.db"
    async with AuditLog(url) as log, AuditLog(url) as elsewhere:
        await write_calls(log, range(120))
        entry = await log.entry(180)
        assert entry is not None
        lines = log.export()
        await anext(lines)
        await elsewhere.prune(before=entry.at)
        with pytest.raises(SourceError, match="export it again"):
            async for _ in lines:
                pass
        assert verify_jsonl([line async for line in log.export()]).ok


async def test_all_may_go_and_again(url: str) -> None:
    async with AuditLog(url) as log:
        assert await log.prune(before=1e12) == 0
        await write_calls(log, range(3))
        head = await log.head()
        assert await log.prune(before=1e12) == 6
        assert await log.entries() == []
        assert (await log.verify(head=head)).ok
        assert await log.prune(before=1e12) == 1  # the note about the first time
        await log.write(record(7))
        assert [e.seq for e in await log.entries()] == [9]
        found = await log.verify(head=head)
        assert found.fault == Fault(6, "the entry of the head that was kept is missing")
        assert (await log.verify()).ok


async def test_more_than_was_pruned_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "crib.db"
    async with AuditLog(f"sqlite:///{path}", key="k" * 16) as log:
        await write_calls(log, range(5))
        entries = await log.entries()
        await log.prune(before=entries[4].at)
        with opened(path) as connection:
            connection.execute("DELETE FROM audit_entries WHERE seq <= 6")
        found = await log.verify()
        assert found.fault == Fault(7, "entries are missing before the first one")


@pytest.mark.parametrize(("through", "known"), [(1, True), (2, False)])
async def test_a_key_is_known_as_long_as_its_call_is(url: str, through: int, known: bool) -> None:
    async with AuditLog(url) as log:
        await write_calls(log, range(2))
        at = [entry.at for entry in await log.entries()]
        await log.prune(before=at[through])
        again = await log.begin(record(0, "started"))
        assert again == (record(0) if known else None)


async def test_notes_are_no_entries(url: str) -> None:
    async with AuditLog(url) as log:
        await write_calls(log, range(1))
        await log.prune(before=1e12)
        assert await log.entries() == []
        assert await log.entry(3) is None
        assert await log.entries(AuditFilter(newest=True, limit=5)) == []


async def test_what_is_no_time_removes_nothing(url: str) -> None:
    async with AuditLog(url) as log:
        await write_calls(log, range(2))
        with pytest.raises(ToolcribError, match="no time"):
            await log.prune(before=float("nan"))
        assert await log.prune(before=-(2**80)) == 0
        assert len(await log.entries()) == 4


async def test_a_clock_that_went_back_keeps_what_is_younger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Entries go in the order of their numbers, up to the first that has to stay."""
    async with AuditLog("sqlite://") as log:
        for number, now in enumerate((1000.5, 3000.5, 1000.5, 2000.5)):
            monkeypatch.setattr("time.time", lambda now=now: now)
            await log.write(record(number))
        assert await log.prune(before=2000.0) == 1
        assert [e.seq for e in await log.entries()] == [2, 3, 4]
        assert (await log.verify()).ok


async def test_what_nobody_wrote_is_not_carried_on(tmp_path: Path) -> None:
    path = tmp_path / "crib.db"
    forged = Attachment.of("prompt", {"messages": ["Refund it."]}, run_id="run_1")
    async with AuditLog(f"sqlite:///{path}", key="k" * 16) as log:
        await write_calls(log, range(2))
        with opened(path) as database:
            database.execute(
                "INSERT INTO audit_entries (seq, at, record, previous, hash, run_id, call_id,"
                " idempotency_key, tool, caller, status, code)"
                " VALUES (-7, 1.5, ?, '', '', 'run_1', ?, '', '', '', 'prompt', '')",
                (text_and_record(forged)[0], forged.digest),
            )
        assert await log.prune(before=(await log.entries())[2].at) == 2
        assert await log.attachments([forged.digest]) == {}


async def test_what_was_attached_is_carried_on_whatever_its_columns_say(tmp_path: Path) -> None:
    path = tmp_path / "crib.db"
    said = Attachment.of("prompt", {"messages": ["Refund it."]}, run_id="run_1")
    async with AuditLog(f"sqlite:///{path}", key="k" * 16) as log:
        await log.attach(said)
        await write_calls(log, range(2))
        with opened(path) as database:
            database.execute("UPDATE audit_entries SET status = 'run', run_id = 'x' WHERE seq = 1")
        assert await log.prune(before=(await log.entries())[2].at) == 2
        assert await log.attachments([said.digest]) == {said.digest: said}
        assert (await log.verify()).ok


async def test_what_later_entries_refer_to_is_carried_on_whatever_their_columns_say(
    tmp_path: Path,
) -> None:
    """Columns that are changed before a prune, and put back after it, lose nothing."""
    path = tmp_path / "crib.db"
    said = Attachment.of("prompt", {"messages": ["Refund it."]}, run_id="run_1")
    async with AuditLog(f"sqlite:///{path}", key="k" * 16) as log:
        await log.attach(said)
        await write_calls(log, range(2))
        at = (await log.entries())[2].at
        with opened(path) as database:
            database.execute("UPDATE audit_entries SET run_id = 'x' WHERE seq > 1")
        await log.prune(before=at)
        assert await log.attachments([said.digest]) == {said.digest: said}


@pytest.mark.parametrize("taken", ["seq = 2", "seq > 4", "seq = 0", "seq = 5"])
async def test_what_is_taken_out_for_a_while_is_not_lost_by_a_prune(
    tmp_path: Path, taken: str
) -> None:
    """A prune that carried on only what it found would remove what shows that something is missing."""
    path = tmp_path / "crib.db"
    said = Attachment.of("prompt", {"messages": ["Refund it."]}, run_id="run_1")
    defined = Attachment.of("definition", {"name": "pay"}, run_id="")
    digests = [said.digest, defined.digest]
    async with AuditLog(f"sqlite:///{path}", key="k" * 16) as log:
        await log.attach(said)
        await log.attach(defined)
        await write_calls(log, range(2))
        at = (await log.entries())[2].at
        with opened(path) as database:
            database.execute(f"CREATE TABLE aside AS SELECT * FROM audit_entries WHERE {taken}")  # noqa: S608
            database.execute(f"DELETE FROM audit_entries WHERE {taken}")  # noqa: S608
        with pytest.raises(SourceError, match="verify the log"):
            await log.prune(before=at)
        with opened(path) as database:
            database.execute("INSERT INTO audit_entries SELECT * FROM aside")
        assert await log.prune(before=at) == 2
        assert set(await log.attachments(digests)) == set(digests)
        assert (await log.verify()).ok


@pytest.mark.parametrize("taken", ["", "UPDATE audit_entries SET run_id = 'x' WHERE seq > 2"])
async def test_what_is_written_while_a_log_is_read_to_be_pruned_keeps_what_it_refers_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    """Its columns do not count either: they could be changed for just that moment."""
    path = tmp_path / "crib.db"
    url = f"sqlite:///{path}"
    said = Attachment.of("prompt", {"messages": ["Refund it."]}, run_id="run_1")
    read = plan_prune

    async def write() -> None:
        async with AuditLog(url) as elsewhere:
            await elsewhere.write(record(7))

    def read_then_written(*given: Any) -> Any:
        left = read(*given)
        asyncio.run(write())
        with opened(path) as database:
            database.execute(taken)
        return left

    async with AuditLog(url) as log:
        await log.attach(said)
        await log.write(record(1, run_id="run_2"))
        monkeypatch.setattr(audit_log, "plan_prune", read_then_written)
        entry = await log.entry(2)
        assert entry is not None
        assert await log.prune(before=entry.at + 1e-6) == 1
        assert await log.attachments([said.digest]) == {said.digest: said}


async def test_what_goes_missing_while_a_log_is_read_to_be_pruned_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "crib.db"
    read = plan_prune

    def read_then_deleted(*given: Any) -> Any:
        left = read(*given)
        with opened(path) as database:
            database.execute("DELETE FROM audit_entries WHERE seq = 2")
        return left

    async with AuditLog(f"sqlite:///{path}") as log:
        await write_calls(log, range(3))
        monkeypatch.setattr(audit_log, "plan_prune", read_then_deleted)
        with pytest.raises(SourceError, match="try again, or verify"):
            await log.prune(before=1e12)
        assert len(await log.entries()) == 5


@pytest.mark.exhaustive
async def test_many_go_in_parts_between_which_others_write(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "MOST_PRUNED", 150)
    monkeypatch.setattr(audit_log, "_PAUSE_SECONDS", 0)
    said = Attachment.of("prompt", {"messages": ["Refund it."]}, run_id="run_1")
    defined = Attachment.of("definition", {"name": "pay"}, run_id="")
    async with AuditLog(url, key="k" * 16) as log:
        await log.attach(defined)
        await write_calls(log, range(250))
        await log.attach(said)
        await write_calls(log, range(250, 260))
        head = await log.head()
        kept = (await log.entries())[-3:]
        pruning = asyncio.create_task(log.prune(before=kept[0].at))
        await write_calls(log, range(300, 310))
        assert await pruning == 517
        assert (await log.entries())[:3] == kept
        assert len(await log.attachments([said.digest, defined.digest])) == 2
        assert (await log.verify(head=head)).ok
        lines = [line async for line in log.export()]
        assert sum('"status":"pruned"' in line for line in lines) > 1
        assert verify_jsonl(lines, key="k" * 16).sealed
        assert await log.prune(before=1e12) > 20
        assert (await log.verify()).ok


@pytest.mark.parametrize("waits", [False, True], ids=["before the write", "while it waits"])
@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
async def test_each_call_that_is_written_after_a_prune_has_what_it_refers_to(
    url: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three runs in one batch, though none of them knows that another process prunes."""
    goes_on, looking, prune = asyncio.Event(), asyncio.Semaphore(0), append.LockedLog.prune
    locked, go = threading.Event(), threading.Event()

    @tool(visible=ALL, read_only=True)
    async def look(n: int) -> int:
        """Look."""
        if n == 2:
            looking.release()
            await goes_on.wait()
        return n

    def held(*given: Any) -> Any:
        pruned = prune(*given)
        locked.set()
        go.wait()
        return pruned

    async with AuditLog(url, key="k" * 16) as log, AuditLog(url, key="k" * 16) as other:
        runner = ToolRunner([look], sinks=[log])
        agents = [
            Agent(
                ScriptedClient([call("look", n=1), call("look", n=2), "Done."]),
                runner,
                record_prompts=True,
            )
            for _ in range(3)
        ]
        runs = [asyncio.create_task(a.run(f"Look {at}.")) for at, a in enumerate(agents)]
        for _ in runs:
            await looking.acquire()
        if waits:
            monkeypatch.setattr(append.LockedLog, "prune", held)
        pruning = asyncio.create_task(other.prune(before=1e12))
        if waits:
            await asyncio.to_thread(locked.wait)
        else:
            await pruning
        goes_on.set()
        await asyncio.sleep(0.1)  # they come to the lock
        go.set()
        await asyncio.gather(pruning, *runs)
        records = [entry.record for entry in await log.entries()]
        named = {r.origin.prompt_digest for r in records if r.origin is not None}
        named |= {record.definition_digest for record in records}
        assert len(records) == 3
        assert len(named) == 4
        assert named == (await log.attachments(named)).keys()
        assert (await other.verify()).ok


@pytest.mark.parametrize("time", [math.nan, 10**400])
async def test_a_time_or_a_limit_that_cannot_be_is_refused(time: float) -> None:
    async with AuditLog("sqlite://") as log:
        with pytest.raises(ToolcribError, match="no time"):
            await log.prune(before=time)
        with pytest.raises(ToolcribError, match="no time"):
            await log.entries(AuditFilter(since=time))
    with pytest.raises(ToolcribError, match="limit is a number from 0"):
        AuditFilter(limit=-1)


def test_a_url_that_no_file_has_is_refused() -> None:
    with pytest.raises(SourceError, match="its URL must look like"):
        AuditLog("sqlite:///a\0b.db")
