"""The log answers "why was this refund made?": who asked with which roles, which definition was in
force, and which of two calls with secrets it was."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from audit.audit_helpers import opened as as_sqlite
from audit.audit_helpers import record

from toolcrib import (
    ALL,
    Caller,
    Completed,
    Failed,
    ToolCall,
    ToolRunner,
    tool,
)
from toolcrib.audit import AuditFilter, AuditLog, verify_jsonl
from toolcrib.errors import ErrorCode, SourceError
from toolcrib.testing import MemorySink
from toolcrib.values.context import CallScope, RunTally
from toolcrib.values.record import (
    Attachment,
    Candidate,
    Choice,
    Origin,
    Outcome,
    ToolInvocationRecord,
)

ADA = Caller("ada", ("support", "refunds"))


@tool(visible=ALL)
async def refund(order: int) -> int:
    """Refund an order."""
    return order


@tool(visible=ALL, secret=["pin"])
async def unlock(door: int, pin: str) -> int:
    """Open a door."""
    return door


def attachment(kind: Any = "prompt", *, run_id: str = "run_1", text: str = "x") -> Attachment:
    return Attachment.of(kind, {"text": text}, run_id=run_id)


async def entered(log: AuditLog, name: str) -> list[dict[str, Any]]:
    """What the export has of one status, as a stranger reads it."""
    lines = [json.loads(line) async for line in log.export()]
    found = [line["record"] for line in lines if "record" in line]
    return [each for each in found if each["status"] == name]


# --- the definition, once ---------------------------------------------------------------------------


async def test_the_definition_that_was_in_force_is_kept_once(url: str) -> None:
    async with AuditLog(url, key="k" * 16) as log:
        for process in range(2):  # each runner of each process begins without knowing of the other
            runner = ToolRunner([refund], sinks=[log])
            for call in range(3):
                await runner.exec(ToolCall(f"{process}_{call}", "refund", '{"order": 7}'))
        (kept,) = await entered(log, "definition")
        digest = refund.definition.digest
        assert (kept["id"], kept["name"]) == (digest, "refund")
        assert json.loads(kept["text"])["description"] == "Refund an order."
        found = await log.attachments([digest, "sha256:00", ""])
        assert list(found) == [digest]
        assert found[digest].text == refund.definition.canonical()
        assert found[digest].genuine
        assert len(await log.entries()) == 12, "it is no call"
        assert (await log.verify()).checked == 13
        assert verify_jsonl([line async for line in log.export()], key="k" * 16).ok


async def test_what_a_log_has_lost_is_given_to_it_again(tmp_path: Path) -> None:
    """A runner goes on with a log that another process pruned meanwhile."""
    url = f"sqlite:///{tmp_path}/crib.db"
    async with AuditLog(url) as log, AuditLog(url) as elsewhere:
        runner = ToolRunner([refund], sinks=[log])
        said = attachment()
        scope = CallScope(RunTally("run_1"), origin=Origin(prompt_digest=said.digest))
        scope = msgspec.structs.replace(scope, attachments=(said,))
        await runner.exec(ToolCall("1", "refund", '{"order": 7}'), scope=scope)
        await elsewhere.prune(before=time.time() + 1)
        await runner.exec(ToolCall("2", "refund", '{"order": 7}'), scope=scope)
        referred = [refund.definition.digest, said.digest]
        assert sorted(await log.attachments(referred)) == sorted(referred)
        assert (await log.verify()).ok


async def test_it_comes_before_what_refers_to_it_also_if_the_call_never_ran(url: str) -> None:
    async with AuditLog(url) as log:
        await ToolRunner([refund], sinks=[log]).exec(ToolCall("c", "refund", '{"order": "x"}'))
        lines = [json.loads(line) async for line in log.export()]
        statuses = [line["record"]["status"] for line in lines[1:-1]]
        assert statuses == ["definition", "failed"]


async def test_another_definition_of_that_name_is_another_entry(url: str) -> None:
    @tool(visible=ALL, name="refund")
    async def other(order: int) -> int:
        """Refund an order, and more."""
        return order

    async with AuditLog(url) as log:
        for made in (refund, other):
            call = ToolCall(made.definition.digest, "refund", '{"order": 7}')
            await ToolRunner([made], sinks=[log]).exec(call)
        assert len(await entered(log, "definition")) == 2


async def test_a_sink_of_the_application_gets_it_too() -> None:
    sink = MemorySink()
    runner = ToolRunner([refund], sinks=[sink])
    for number in range(2):
        await runner.exec(ToolCall(f"c{number}", "refund", '{"order": 7}'))
    (kept,) = sink.attachments
    assert kept == Attachment(
        refund.definition.digest, "definition", refund.definition.canonical(), "refund"
    )


class _Full(MemorySink):
    def attach(self, attachment: Attachment) -> None:
        raise OSError("the disk is full")


async def test_a_record_is_written_where_what_it_refers_to_could_not_be() -> None:
    full, after = _Full(), MemorySink()
    runner = ToolRunner([refund], sinks=[full, after])
    with pytest.raises(OSError, match="the disk is full"):
        await runner.exec(ToolCall("c", "refund", '{"order": 7}'))
    assert [len(full.records), len(after.records)] == [1, 1]
    with pytest.raises(OSError, match="the disk is full"):  # it is not believed to be kept
        await runner.exec(ToolCall("d", "refund", '{"order": 7}'))


async def test_what_was_changed_is_not_taken_for_what_it_was(url: str) -> None:
    true = attachment()
    false = Attachment(true.digest, true.kind, '{"text":"y"}', run_id="run_1")
    assert not false.genuine
    async with AuditLog(url) as log:
        await log.attach(false)
        with pytest.raises(SourceError, match="entry 1 of the audit log is not as it was written"):
            await log.attachments([true.digest])


async def test_a_run_has_its_own(url: str) -> None:
    one, other = attachment(run_id="run_1"), attachment(run_id="run_2")
    async with AuditLog(url) as log:
        for each in (one, one, other, attachment("choice")):
            await log.attach(each)
        assert [e["run_id"] for e in await entered(log, "prompt")] == ["run_1", "run_2"]
        assert len(await entered(log, "choice")) == 1
        assert await log.entries(AuditFilter(run_id="run_1")) == []


async def test_what_later_entries_may_refer_to_is_not_pruned_with_the_earlier_ones(
    url: str,
) -> None:
    defined = Attachment(
        refund.definition.digest, "definition", refund.definition.canonical(), "refund"
    )
    async with AuditLog(url, key="k" * 16) as log:
        for each in (defined, attachment(), attachment(run_id="run_0", text="long ago")):
            await log.attach(each)
        await log.write(record(1, run_id="run_0"))
        await log.write(record(2, run_id="run_1"))
        await log.write(record(3, run_id="run_1"))
        (last,) = await log.entries(AuditFilter(newest=True, limit=1))
        assert await log.prune(before=last.at) == 3  # two calls, and what was said in the first run
        assert [e["run_id"] for e in await entered(log, "prompt")] == ["run_1"]
        assert list(await log.attachments([defined.digest])) == [defined.digest]
        assert (await log.verify()).ok
        lines = [line async for line in log.export()]
        assert verify_jsonl(lines, key="k" * 16).ok
        await log.attach(defined)
        assert len(await entered(log, "definition")) == 1


# --- who, and out of what ---------------------------------------------------------------------------


async def test_a_record_names_the_callers_roles_and_why_the_tool_was_offered(url: str) -> None:
    best = Candidate("refund", 0.75, "name: refund")
    choice = Choice("keyword", (best, Candidate("unlock", 0.25)))
    kept = Attachment.of("choice", choice, run_id="run_1")
    scope = CallScope(RunTally("run_1"), choice=choice, attachments=(kept,))
    async with AuditLog(url) as log:
        runner = ToolRunner([refund], sinks=[log])
        call = ToolCall("run_1_0", "refund", '{"order": 7}')
        await runner.exec(call, caller=ADA, scope=scope)
        for entry in await log.entries():
            assert entry.record.caller_roles == ("support", "refunds")
            assert entry.record.picked == best
        (told,) = await entered(log, "choice")
        assert (told["id"], told["run_id"]) == (kept.digest, "run_1")
        assert json.loads(told["text"])["offered"][0]["score"] == 0.75


def test_a_choice_of_a_great_many_is_cut_and_says_so() -> None:
    many = [(f"t{n}", "é" * 999 + "\ud800") for n in range(1_000)]
    choice = Choice.of("keyword", (), many)
    assert (len(choice.excluded), choice.excluded_count) == (200, 1_000)
    assert len(choice.excluded[0].reason) == 300


# --- secrets ----------------------------------------------------------------------------------------


async def opened(log: AuditLog, pin: str, **options: Any) -> Outcome:
    """A runner of a new process, which is asked for call c of run r."""
    call = ToolCall("c", "unlock", json.dumps({"door": 1, "pin": pin}))
    runner = ToolRunner([unlock], sinks=[log], **options)
    return await runner.exec(call, caller=ADA, scope=CallScope(RunTally("r")))


async def test_secrets_of_equal_length_are_told_apart_also_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/crib.db"
    async with AuditLog(url, key="k" * 16) as log:
        first = await opened(log, "pin 1234")
        assert isinstance(first, Completed)
        assert not first.replayed
        second = await opened(log, "pin 4321")
        assert isinstance(second, Failed)
        assert second.error.code is ErrorCode.DUPLICATE_CALL
    async with AuditLog(url, key="k" * 16) as log:
        again = await opened(log, "pin 1234")
        assert isinstance(again, Completed)
        assert again.replayed
        other = await opened(log, "pin 4321")
        assert isinstance(other, Failed)
        assert other.error.code is ErrorCode.DUPLICATE_CALL
        exported = "".join([line async for line in log.export()])
        assert "pin 1234" not in exported  # digits alone may stand in any hash


async def test_without_a_key_they_are_told_apart_in_one_process(url: str) -> None:
    async with AuditLog(url) as log:
        assert isinstance(await opened(log, "1234"), Completed)
        assert isinstance(await opened(log, "4321"), Failed)
        again = await opened(log, "1234")
        assert isinstance(again, Completed)
        assert again.replayed
        if url != "sqlite://":
            async with AuditLog(url) as other:  # of another runner in this process
                assert isinstance(await opened(other, "4321"), Failed)


async def test_a_record_without_a_digest_or_by_another_key_is_judged_by_what_shows() -> None:
    """As records of before are, and those of another process by a log without a key."""
    async with AuditLog("sqlite://") as log:
        await opened(log, "1234")
        log._mac_key = b"of another process"
        again = await opened(log, "4321")
        assert isinstance(again, Completed)
        assert again.replayed


async def test_a_digest_of_secrets_says_nothing_to_who_has_no_key() -> None:
    """It is another one by another key and for another call, and there is no sha256."""
    seen = set[str]()
    for key in ("k" * 16, "l" * 16):
        async with AuditLog("sqlite://", key=key) as log:
            for run in ("r", "s"):
                call = ToolCall("c", "unlock", '{"door": 1, "pin": "1234"}')
                scope = CallScope(RunTally(run))
                outcome = await ToolRunner([unlock], sinks=[log]).exec(call, scope=scope)
                assert outcome.record.arguments_sha256 == ""
                seen.add(outcome.record.arguments_mac)
    assert len(seen) == 4


async def test_a_call_without_secrets_has_its_sha256_and_no_keyed_digest() -> None:
    outcome = await ToolRunner([refund]).exec(ToolCall("c", "refund", '{"order": 7}'))
    told: ToolInvocationRecord = outcome.record
    assert (len(told.arguments_sha256), told.arguments_mac) == (64, "")


def test_what_the_key_makes_for_arguments_is_no_seal() -> None:
    """Whoever chooses the arguments must not get an entry sealed by them."""
    log = AuditLog("sqlite://", key="k" * 16)
    forged = '{"hash":"00","seq":1}'
    assert log._seal(forged) not in log.mac(forged)
    assert log._mac_key != b"k"


async def test_a_call_does_not_run_where_its_definition_cannot_be_kept() -> None:
    """Its record would refer to what nobody can read."""
    ran = []

    @tool(visible=ALL)
    async def count() -> int:
        """Count."""
        ran.append(1)
        return 1

    class Stuck(AuditLog):
        async def attach(self, attachment: Attachment) -> None:
            raise OSError("the disk is full")

    async with Stuck("sqlite://") as log:
        with pytest.raises(OSError, match="the disk is full"):
            await ToolRunner([count], sinks=[log]).exec(ToolCall("c", "count", "{}"))
    assert ran == []


async def test_a_program_asks_the_log_why_a_call_ran(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    allowed = (
        "It ran because the policy 'standard' allowed it (nothing about this tool asks for more)"
    )
    async with AuditLog(f"sqlite:///{path}") as log:
        runner = ToolRunner([refund], sinks=[log])
        await runner.exec(
            ToolCall("a", "refund", '{"order": 7}'), scope=CallScope(RunTally("run_1"))
        )
        await runner.exec(
            ToolCall("a", "refund", '{"order": "x"}'), scope=CallScope(RunTally("run_2"))
        )
        assert await log.why("a", run_id="run_1") == f"{allowed}."
        refused = "It did not run: invalid_arguments at /order: expected integer, got string."
        assert await log.why("a") == refused  # the newest
        assert await log.why("b") is None
        with as_sqlite(path) as database:  # its end is still there, under another id
            database.execute("UPDATE audit_entries SET call_id = 'x' WHERE status = 'completed'")
        with pytest.raises(SourceError, match="changed or is missing"):
            await log.why("a", run_id="run_1")
        with as_sqlite(path) as database:
            database.execute("UPDATE audit_entries SET at = 5 WHERE run_id = 'run_2'")
        with pytest.raises(SourceError, match="changed or is missing"):
            await log.why("a")
