"""A call's id runs once: in this process by the runner's memory, everywhere by a ledger."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from records import raw_json

from toolcrib import (
    ALL,
    CallContext,
    Caller,
    Completed,
    Failed,
    Hydrated,
    ToolCall,
    ToolRunner,
    Waiting,
    hydrate,
    tool,
)
from toolcrib.audit import AuditLog
from toolcrib.errors import ErrorCode, ToolcribError
from toolcrib.runner import CallScope
from toolcrib.runner.idempotency import (
    AlreadyCompleted,
    Fingerprint,
    IdempotencyCache,
    compared,
    fingerprint_of,
    replayed,
)
from toolcrib.runner.recorder import Recorder
from toolcrib.runner.stopped import Stopped
from toolcrib.schema.derive.factories import FactoryValues
from toolcrib.testing import MemorySink
from toolcrib.values.context import RunTally
from toolcrib.values.decision import Answer, ApprovalRequest, Approve
from toolcrib.values.json import JsonValue, key_of
from toolcrib.values.record import (
    CallError,
    Candidate,
    RecordStatus,
    ToolInvocationRecord,
    is_final,
    standing,
)

RUNS: list[str] = []
CALL = ToolCall("run_1_0_0", "note", '{"text": "a"}')
KEY = key_of("run_1", CALL.id)


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RUNS.clear()


@tool(visible=["text"])
async def note(text: str, ctx: CallContext) -> dict[str, str]:
    """Write something down."""
    RUNS.append(ctx.idempotency_key)
    await asyncio.sleep(0)
    if text == "fail":
        raise ValueError(text)
    return {"text": text, "hidden": "h"}


@tool(visible=ALL, idempotent=True)
async def put(text: str, ctx: CallContext) -> str:
    """Put something where it is already."""
    RUNS.append(ctx.idempotency_key)
    return text


@tool(visible=ALL, safe=False)
async def wipe(text: str) -> str:
    """Wipe something."""
    RUNS.append(text)
    return text


@dataclasses.dataclass
class Dated:
    text: str
    at: int = dataclasses.field(default_factory=lambda: 1)


def scope(run_id: str = "run_1") -> CallScope:
    return CallScope(RunTally(run_id))


class MemoryLedger(MemorySink):
    """As a store does it: one claim a key, and the record that stands under it."""

    def __init__(self) -> None:
        super().__init__()
        self.claimed: set[str] = set()

    async def find(self, entry: ToolInvocationRecord) -> ToolInvocationRecord | None:
        assert entry.status == "started"
        found = [r for r in self.records if r.idempotency_key == entry.idempotency_key]
        return standing(found) if found else None

    async def begin(self, entry: ToolInvocationRecord) -> ToolInvocationRecord | None:
        known = await self.find(entry)
        if entry.idempotency_key in self.claimed or (known is not None and is_final(known)):
            return known
        self.claimed.add(entry.idempotency_key)
        self.records.append(entry)
        return None


def test_any_texts_have_a_key() -> None:
    texts = ["", "a", "1:a", "\ud800", "\udfff"]
    keys = {key_of(run_id, call_id) for run_id in texts for call_id in texts}
    assert len(keys) == len(texts) ** 2


@pytest.mark.parametrize("name", ["put", "dated"])
@pytest.mark.parametrize("changes", [{}, {"repaired_arguments": "{}"}, {"notes": ("restored",)}])
def test_a_second_call_has_to_share_what_was_made_of_the_text(name: str, changes: Any) -> None:
    """All but the values of default factories, which differ from run to run."""

    @tool(visible=ALL)
    async def dated(text: Dated) -> str:
        """Put something with a date."""
        return text.text

    sent = {"put": '{"text": "a"}', "dated": '{"text": {"text": "a"}}'}[name]
    hydrated = hydrate(ToolCall("c", name, sent), [put, dated])
    assert isinstance(hydrated, Hydrated)
    told = msgspec.structs.replace(hydrated.provenance, **changes)
    hydrated = msgspec.structs.replace(hydrated, provenance=told)
    made = hydrated.canonical if changes and name == "put" else None
    expected = (hydrated.definition.digest, sent, made, "ada")
    assert fingerprint_of(hydrated, Caller("ada")) == expected


async def test_a_read_is_told_to_the_ledger_when_it_is_over(tmp_path: Path) -> None:
    @tool(visible=ALL, read_only=True)
    async def look() -> int:
        """Count how often it was looked."""
        RUNS.append("look")
        return len(RUNS)

    asked = ToolCall("run_1_0_0", "look", "{}")
    async with AuditLog(f"sqlite:///{tmp_path}/crib.db") as log:
        outcomes = [await ToolRunner([look], sinks=[log]).exec(asked, scope=scope()) for _ in "12"]
        entries = [entry.record for entry in await log.entries()]
    assert RUNS == ["look", "look"]  # it is not known before that somebody else has looked
    assert [isinstance(o, Completed) and (o.value, o.replayed) for o in outcomes] == [
        (1, False),
        (1, True),
    ]
    assert [(r.status, r.result, r.idempotency_key) for r in entries] == [
        ("completed", 1, KEY),
        ("completed", 2, KEY),
    ]


@pytest.mark.parametrize(
    "changes",
    [{"id": "call_\ud800"}, {"picked": Candidate("note", math.inf)}],
    ids=["surrogate", "score"],
)
def test_what_json_does_not_give_back_is_kept_as_it_is(changes: Any) -> None:
    record = ToolInvocationRecord(id="c", name="note", status="completed", started_at=0.0)
    record = msgspec.structs.replace(record, **changes)
    cache, own = IdempotencyCache(1), ("sha256:d", "{}", None, "ada")
    assert cache.claim("k", own) is None
    cache.keep("k", Completed(record, {"a": 1}, b'{"a":1}', "edited"), b'{"a":1}')
    known = cache.claim("k", own)
    assert isinstance(known, AlreadyCompleted)
    assert known.outcome == Completed(record, {"a": 1}, b'{"a":1}', "edited")


@pytest.mark.parametrize("kind", [Completed, Failed])
def test_an_outcome_with_an_error_is_kept_as_it_is(kind: type[Completed | Failed]) -> None:
    """A call may have run though its public view lacks something; a failed one has its notice, too."""
    status: RecordStatus = "completed" if kind is Completed else "failed"
    record = ToolInvocationRecord(id="c", name="note", status=status, started_at=0.0, error=MISSING)
    cache, own = IdempotencyCache(1), ("sha256:d", "{}", None, "ada")
    assert cache.claim("k", own) is None
    outcome: Completed | Failed = Failed(record, MISSING, "edited")
    if kind is Completed:
        outcome = Completed(record, None, b"1", "edited")
    cache.keep("k", outcome)
    known = cache.claim("k", own)
    assert isinstance(known, AlreadyCompleted)
    assert known.outcome == outcome
    assert cache.running() == []


async def test_a_finished_call_gives_its_outcome_and_does_not_run_again() -> None:
    sink = MemorySink()
    runner = ToolRunner([note], sinks=[sink])
    first = await runner.exec(CALL, scope=scope())
    again = await runner.exec(CALL, scope=scope())
    assert isinstance(first, Completed)
    assert isinstance(again, Completed)
    assert (first.replayed, again.replayed) == (False, True)
    assert (again.record, again.value) == (first.record, first.value)
    assert RUNS == [KEY]
    assert sink.records == [first.record]
    assert (first.record.idempotency_key, first.record.key_scope) == (KEY, "process")


@tool(visible=["a"])
async def gives() -> Any:
    """Give numbers of all kinds."""
    return {"a": [2.0, 2**70, -0.0, 1e300], "b": [3.0, -(2**70)]}


async def test_a_replay_has_the_numbers_of_the_first_outcome() -> None:
    runner = ToolRunner([gives])
    first, again = [await runner.exec(ToolCall("c", "gives", "{}")) for _ in range(2)]
    assert isinstance(first, Completed)
    assert isinstance(again, Completed)
    for views in (first, again):
        assert repr(views.model) == repr({"a": [2.0, 2**70, -0.0, 1e300], "b": [3.0, -(2**70)]})
        assert repr(views.public) == repr({"a": [2, 2**70, 0, 1e300]})  # as the log has it
    assert first.record == again.record


async def test_a_failed_call_that_had_begun_does_not_run_again_either() -> None:
    runner = ToolRunner([note])
    call = msgspec.structs.replace(CALL, arguments='{"text": "fail"}')
    first, again = await runner.exec(call), await runner.exec(call)
    assert isinstance(again, Failed)
    assert again.replayed
    assert (again.error.code, again.record) == (ErrorCode.TOOL_ERROR, first.record)
    assert len(RUNS) == 1


async def test_a_call_that_never_began_may_come_again() -> None:
    runner = ToolRunner([wipe])
    call = ToolCall("c", "wipe", '{"text": "a"}')
    refused = await runner.exec(call)
    assert isinstance(refused, Failed)
    assert refused.record.idempotency_key == ""
    request = await _request(call)
    given = CallScope(RunTally(), {request.id: Approve(by="grace")})
    assert isinstance(await runner.exec(call, scope=given), Completed)
    assert RUNS == ["a"]


async def _request(call: ToolCall) -> ApprovalRequest:
    async def later(_request: ApprovalRequest) -> None:
        return None

    waiting = await ToolRunner([wipe], approver=later).exec(call)
    assert isinstance(waiting, Waiting)
    return waiting.request


@pytest.mark.parametrize(
    "other",
    [
        pytest.param((CALL, Caller("eve"), "run_1"), id="caller"),
        pytest.param(
            (msgspec.structs.replace(CALL, arguments='{"text": "b"}'), Caller("ada"), "run_1"),
            id="arguments",
        ),
        pytest.param(
            (msgspec.structs.replace(CALL, name="put"), Caller("ada"), "run_1"), id="tool"
        ),
    ],
)
@pytest.mark.parametrize("ledger", [False, True])
async def test_another_call_of_the_same_id_is_refused(
    other: tuple[ToolCall, Caller, str], ledger: bool
) -> None:
    kept = MemoryLedger()
    sinks = [kept] if ledger else []
    runner = ToolRunner([note, put], sinks=sinks, remember=0 if ledger else 10)
    assert isinstance(await runner.exec(CALL, caller=Caller("ada"), scope=scope()), Completed)
    call, caller, run_id = other
    outcome = await runner.exec(call, caller=caller, scope=scope(run_id))
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.DUPLICATE_CALL
    assert outcome.record.idempotency_key == ""
    assert len(RUNS) == 1


async def test_the_same_id_in_another_run_is_another_call() -> None:
    runner = ToolRunner([note])
    call = msgspec.structs.replace(CALL, id="x")
    for run_id in ("run_1", "run_2", ""):
        outcome = await runner.exec(call, scope=scope(run_id))
        assert isinstance(outcome, Completed)
        assert not outcome.replayed
    assert [key_of("run_1", "x"), key_of("run_2", "x"), key_of("", "x")] == RUNS


async def test_two_at_once_run_once() -> None:
    runner = ToolRunner([note])
    outcomes = await runner.exec_all([CALL, CALL], scope=scope())
    assert [type(o) for o in outcomes] == [Completed, Failed]
    assert isinstance(outcomes[1], Failed)
    assert outcomes[1].error.code is ErrorCode.DUPLICATE_CALL
    assert len(RUNS) == 1


async def test_nobody_is_asked_about_a_call_that_is_on_its_way() -> None:
    asked: list[str] = []

    async def approver(request: ApprovalRequest) -> Answer:
        asked.append(request.id)
        await asyncio.sleep(0)
        return Approve(by="grace")

    runner = ToolRunner([wipe], approver=approver)
    call = ToolCall("c", "wipe", '{"text": "a"}')
    outcomes = await runner.exec_all([call, call], scope=scope())
    assert [type(o) for o in outcomes] == [Completed, Failed]
    assert isinstance(outcomes[1], Failed)
    assert outcomes[1].error.code is ErrorCode.DUPLICATE_CALL
    assert RUNS == ["a"]
    assert len(asked) == 1


def test_no_more_bytes_are_remembered_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcrib.runner.idempotency.MAX_BYTES", 10_000)
    cache = IdempotencyCache(1_000)

    def own(size: int) -> Fingerprint:
        return "sha256:d", "a" * size, None, "ada"

    def kept(
        key: str,
        *,
        model: int = 1,
        value: int = 1,
        arguments: int = 0,
        result: int = 1,
        notice: int = 0,
        defaulted: int = 0,
    ) -> None:
        record = ToolInvocationRecord(
            id=key,
            name="note",
            status="completed",
            started_at=0.0,
            arguments_json=raw_json({"text": "a" * arguments}),
            result_json=raw_json("r" * result),
            defaulted=("/" * defaulted,),
        )
        assert cache.claim(key, own(arguments)) is None
        cache.keep(key, Completed(record, None, b"1" * model, "n" * notice), b"1" * value)

    kept("a", model=4_000)
    kept("b", value=4_000)
    assert cache.claim("a", own(0)) == "evicted"
    assert isinstance(cache.claim("b", own(0)), AlreadyCompleted)
    kept("c", arguments=4_000)
    assert cache.claim("b", own(0)) == "evicted"
    assert isinstance(cache.claim("c", own(4_000)), AlreadyCompleted)
    for part in ("result", "notice", "defaulted"):
        kept(part, **{part: 9_000})
        kept(f"after {part}")
        assert cache.claim(part, own(0)) == "evicted"
    kept("large", model=10_001)
    for key in "ab":
        assert cache.claim(key, own(0)) == "evicted"
    assert cache.claim("c", own(4_000)) == cache.claim("large", own(0)) == "evicted"
    with pytest.raises(Stopped):
        cache.claim("c", own(4_001))
    assert cache.running() == []


def test_no_more_keys_are_remembered_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcrib.runner.idempotency.MAX_EVICTED", 2)
    cache = IdempotencyCache(0)
    own: Fingerprint = ("sha256:d", "{}", b"made", "ada")
    for key in "abc":
        record = ToolInvocationRecord(id=key, name="note", status="completed", started_at=0.0)
        assert cache.claim(key, own) is None
        cache.keep(key, Completed(record, None, b"1"))
    assert [cache.claim(key, own) for key in "abc"] == [None, "evicted", "evicted"]


@pytest.mark.parametrize("ledger", [False, True])
async def test_what_is_no_longer_remembered_does_not_run_again(ledger: bool) -> None:
    runner = ToolRunner([note], sinks=[MemoryLedger()] if ledger else [], remember=2)
    calls = [msgspec.structs.replace(CALL, id=f"c{n}") for n in range(3)]
    for call in calls:
        await runner.exec(call)
    again = [await runner.exec(call) for call in reversed(calls)]
    assert len(RUNS) == 3
    assert [isinstance(o, Completed) and o.replayed for o in again] == [True, True, ledger]
    if ledger:
        assert isinstance(again[2], Completed)
        return
    assert isinstance(again[2], Failed)
    assert again[2].error.code is ErrorCode.DUPLICATE_CALL
    assert "has run before" in again[2].error.message
    changed = await runner.exec(msgspec.structs.replace(calls[0], arguments='{"text": "b"}'))
    assert isinstance(changed, Failed)
    assert "was not the same" in changed.error.message
    assert len(RUNS) == 3


async def test_an_outcome_is_given_again_as_it_was() -> None:
    """Whatever its owner does to the object that the tool returned."""
    given: list[dict[str, list[int]]] = []

    @tool(visible=ALL)
    async def make() -> dict[str, list[int]]:
        """Make a list."""
        given.append({"made": [1]})
        return given[0]

    runner = ToolRunner([make])
    call = ToolCall("c", "make", "{}")
    first = await runner.exec(call)
    assert isinstance(first, Completed)
    assert first.value is given[0]
    first.value["made"].append(2)
    for _ in range(2):
        again = await runner.exec(call)
        assert isinstance(again, Completed)
        assert again.value == again.model == again.public == {"made": [1]}
        again.value.clear()


async def test_a_ledger_outlives_the_process() -> None:
    ledger = MemoryLedger()
    first = await ToolRunner([note], sinks=[ledger]).exec(CALL, scope=scope())
    again = await ToolRunner([note], sinks=[ledger]).exec(CALL, scope=scope())
    assert isinstance(first, Completed)
    assert isinstance(again, Completed)
    assert again.replayed
    assert again.record == first.record
    assert again.record.key_scope == "store"
    assert (again.value, again.model) == ({"text": "a"}, {"text": "a"})  # the public view
    assert len(RUNS) == 1
    assert [r.status for r in ledger.records] == ["started", "completed"]


async def test_a_call_that_began_and_never_ended_is_of_unknown_outcome() -> None:
    ledger = await _left_behind(CALL)
    runner = ToolRunner([note], sinks=[ledger], remember=0)
    outcome = await runner.exec(CALL, scope=scope())
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.OUTCOME_UNKNOWN
    assert not outcome.error.retryable
    again = await runner.exec(CALL, scope=scope())
    assert isinstance(again, Failed)
    assert (again.error.code, again.replayed) == (ErrorCode.OUTCOME_UNKNOWN, True)
    assert RUNS == []
    assert [r.status for r in ledger.records] == ["started", "failed"]


async def test_an_idempotent_tool_is_run_again_under_the_same_key() -> None:
    call = ToolCall("run_1_0_0", "put", '{"text": "a"}')
    ledger = await _left_behind(call)
    outcome = await ToolRunner([put], sinks=[ledger]).exec(call, scope=scope())
    assert isinstance(outcome, Completed)
    assert RUNS == [KEY]
    assert [r.status for r in ledger.records] == ["started", "started", "completed"]


async def _left_behind(call: ToolCall) -> MemoryLedger:
    """A ledger as it is when the process was killed while the tool ran."""
    ledger = MemoryLedger()
    await ToolRunner([note, put], sinks=[ledger]).exec(call, scope=scope())
    del ledger.records[1:]
    RUNS.clear()
    return ledger


async def test_nobody_is_asked_about_a_call_that_will_not_run() -> None:
    asked: list[str] = []

    async def approver(request: ApprovalRequest) -> Answer:
        asked.append(request.id)
        return Approve(by="grace")

    ledger = MemoryLedger()
    call = ToolCall("c", "wipe", '{"text": "a"}')
    for _ in range(2):
        runner = ToolRunner([wipe], approver=approver, sinks=[ledger])
        assert isinstance(await runner.exec(call, scope=scope()), Completed)
    assert len(asked) == 1
    assert RUNS == ["a"]


@pytest.mark.parametrize("name", ["wipe", "rewrite"])
async def test_nobody_is_asked_about_a_call_of_unknown_outcome_unless_it_may_run(
    name: str,
) -> None:
    @tool(visible=ALL, safe=False, idempotent=True)
    async def rewrite(text: str) -> str:
        """Write something where it is already."""
        RUNS.append(text)
        return text

    async def approver(_request: ApprovalRequest) -> Answer:
        asked.append(name)
        return Approve(by="grace")

    asked: list[str] = []
    ledger, call = MemoryLedger(), msgspec.structs.replace(CALL, name=name)
    await ToolRunner([wipe, rewrite], approver=approver, sinks=[ledger]).exec(call, scope=scope())
    del ledger.records[1:]
    again = await ToolRunner([wipe, rewrite], approver=approver, sinks=[ledger]).exec(
        call, scope=scope()
    )
    if name == "wipe":
        assert isinstance(again, Failed)
        assert again.error.code is ErrorCode.OUTCOME_UNKNOWN
    assert again.record.idempotency_key == KEY  # it is about the call that was begun
    assert len(asked) == len(RUNS) == (1 if name == "wipe" else 2)


async def test_an_entry_is_written_to_the_end_before_the_tool_begins() -> None:
    """Also where the ledger takes its time, and the entry is the second one of a call."""

    class Slow(MemoryLedger):
        async def write(self, record: ToolInvocationRecord) -> None:  # type: ignore[override]
            await asyncio.sleep(0)
            seen.append((record.status, len(RUNS)))
            super().write(record)

    seen: list[tuple[str, int]] = []
    call, ledger = msgspec.structs.replace(CALL, name="put"), Slow()
    for _ in range(2):
        assert isinstance(
            await ToolRunner([put], sinks=[ledger]).exec(call, scope=scope()), Completed
        )
        del ledger.records[1:]
    assert seen == [("completed", 1), ("started", 1), ("completed", 2)]


async def test_a_key_that_was_claimed_is_the_calls_though_it_was_cancelled_then() -> None:
    claiming, go_on = asyncio.Event(), asyncio.Event()

    class Slow(MemoryLedger):
        async def begin(self, entry: ToolInvocationRecord) -> ToolInvocationRecord | None:
            claiming.set()
            await go_on.wait()
            return await super().begin(entry)

    ledger = Slow()
    running = asyncio.ensure_future(ToolRunner([note], sinks=[ledger]).exec(CALL, scope=scope()))
    await claiming.wait()
    running.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [(r.status, r.idempotency_key) for r in ledger.records] == [
        ("started", KEY),
        ("failed", KEY),
    ]
    assert RUNS == []


async def test_an_intent_that_cannot_be_written_keeps_the_tool_from_running() -> None:
    class Broken(MemoryLedger):
        async def begin(self, entry: ToolInvocationRecord) -> ToolInvocationRecord | None:
            raise OSError("disk full")

    broken = Broken()
    runner = ToolRunner([note], sinks=[broken])
    with pytest.raises(OSError, match="disk full"):
        await runner.exec(CALL, scope=scope())
    assert RUNS == []
    (record,) = broken.records
    assert (record.error and record.error.code) is ErrorCode.NOT_RECORDED
    assert record.idempotency_key == ""  # nobody knows whether it is ours


async def test_a_ledger_has_the_definition_of_a_call_before_it_begins() -> None:
    class Looking(MemoryLedger):
        async def begin(self, entry: ToolInvocationRecord) -> ToolInvocationRecord | None:
            assert [a.digest for a in self.attachments] == [entry.definition_digest]
            return await super().begin(entry)

    outcome = await ToolRunner([note], sinks=[Looking()]).exec(CALL, scope=scope())
    assert isinstance(outcome, Completed)


async def test_a_ledger_that_cannot_be_asked_keeps_an_approver_from_being_asked() -> None:
    class Broken(MemoryLedger):
        async def find(self, entry: ToolInvocationRecord) -> ToolInvocationRecord | None:
            raise OSError("no such table")

    asked: list[str] = []

    async def approver(request: ApprovalRequest) -> Answer:
        asked.append(request.id)
        return Approve(by="grace")

    broken, call = Broken(), msgspec.structs.replace(CALL, name="wipe")
    with pytest.raises(OSError, match="no such table"):
        await ToolRunner([wipe], approver=approver, sinks=[broken]).exec(call, scope=scope())
    assert (asked, RUNS) == ([], [])
    assert [r.error.code for r in broken.records if r.error] == [ErrorCode.NOT_RECORDED]


async def test_a_read_is_not_begun_in_a_ledger_though_a_sink_asks_for_entries_ahead() -> None:
    class Ahead(MemorySink):
        write_ahead = True

    @tool(visible=ALL, read_only=True)
    async def look(text: str) -> str:
        """Look."""
        return text

    ledger, ahead = MemoryLedger(), Ahead()
    call = msgspec.structs.replace(CALL, name="look")
    assert (await ToolRunner([look], sinks=[ledger, ahead]).exec(call)).record.status == "completed"
    assert [r.status for r in ledger.records] == ["completed"]
    assert [r.status for r in ahead.records] == ["started", "completed"]


@pytest.mark.parametrize("given", [{"status": "completed"}, True])
async def test_a_ledger_that_gives_no_record_keeps_the_tool_from_running(given: Any) -> None:
    class Odd(MemoryLedger):
        async def begin(self, entry: ToolInvocationRecord) -> Any:
            return given

    odd = Odd()
    with pytest.raises(TypeError, match=f"or None: this is a {type(given).__name__}"):
        await ToolRunner([note], sinks=[odd]).exec(CALL, scope=scope())
    assert RUNS == []
    assert [r.error.code for r in odd.records if r.error] == [ErrorCode.NOT_RECORDED]


def test_a_runner_has_one_ledger_at_most() -> None:
    with pytest.raises(ToolcribError, match="at most one"):
        ToolRunner([note], sinks=[MemoryLedger(), MemoryLedger()])


async def test_calls_that_had_not_begun_when_all_were_cancelled_are_recorded() -> None:
    sink = MemorySink()
    runner = ToolRunner([note], sinks=[sink])
    calls = [msgspec.structs.replace(CALL, id=f"c{n}") for n in range(3)]
    task = asyncio.ensure_future(runner.exec_all(calls, scope=scope()))
    await asyncio.sleep(0)  # the tasks are made, and none has taken a step
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(r.id for r in sink.records) == ["c0", "c1", "c2"]
    assert {r.error.code for r in sink.records if r.error} == {ErrorCode.CANCELLED}


async def test_an_edited_call_is_known_by_what_the_model_sent() -> None:
    async def edits(_request: ApprovalRequest) -> Answer:
        return Approve(by="grace", arguments={"text": "edited"})

    ledger = MemoryLedger()
    call = ToolCall("c", "wipe", '{"text": "a"}')
    for _ in range(2):
        runner = ToolRunner([wipe], approver=edits, sinks=[ledger])
        outcome = await runner.exec(call, scope=scope())
        assert isinstance(outcome, Completed)
        assert outcome.record.edited
    assert RUNS == ["edited"]


async def test_calls_that_had_not_begun_are_recorded_though_it_is_cancelled_again() -> None:
    """A sink that takes its time, and somebody who asks again and again."""

    class Slow(MemorySink):
        async def write(self, record: ToolInvocationRecord) -> None:  # type: ignore[override]
            await asyncio.sleep(0)
            self.records.append(record)

    for repeated in range(1, 8):
        sink = Slow()
        runner = ToolRunner([note], sinks=[sink])
        calls = [msgspec.structs.replace(CALL, id=f"c{n}") for n in range(3)]
        before = asyncio.all_tasks()
        task = asyncio.ensure_future(runner.exec_all(calls, scope=scope()))
        for _ in range(repeated):
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sorted(r.id for r in sink.records) == ["c0", "c1", "c2"]
        assert asyncio.all_tasks() <= before | {task}


async def test_an_iterable_that_fails_half_way_runs_nothing() -> None:
    def calls() -> Iterator[ToolCall]:
        yield CALL
        raise OSError("no more")

    sink = MemorySink()
    runner = ToolRunner([note], sinks=[sink])
    with pytest.raises(OSError, match="no more"):
        await runner.exec_all(calls(), scope=scope())
    assert (RUNS, sink.records) == ([], [])
    assert await runner.exec_all([]) == []


async def test_an_intent_that_could_not_be_written_may_be_tried_again() -> None:
    """Nothing ran, so nothing is remembered; a ledger is asked, and knows."""

    class Once(MemorySink):
        write_ahead = True
        broken = True

        def write(self, record: ToolInvocationRecord) -> None:
            if self.broken and record.status == "started":
                self.broken = False
                raise OSError("disk full")
            super().write(record)

    kept = MemorySink()
    runner = ToolRunner([note], sinks=[Once(), kept])
    with pytest.raises(OSError, match="disk full"):
        await runner.exec(CALL, scope=scope())
    assert [(r.status, r.idempotency_key) for r in kept.records] == [("failed", KEY)]
    assert isinstance(await runner.exec(CALL, scope=scope()), Completed)
    assert len(RUNS) == 1


async def test_an_outcome_that_was_unknown_is_known_once_the_other_process_has_ended() -> None:
    """Two runners share a ledger; one asks while the other's tool runs."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(visible=ALL)
    async def long(text: str) -> str:
        """Take its time."""
        begun.set()
        await go_on.wait()
        return text

    ledger = MemoryLedger()
    call = msgspec.structs.replace(CALL, name="long")
    one, two = (ToolRunner([long], sinks=[ledger]) for _ in range(2))
    running = asyncio.ensure_future(one.exec(call, scope=scope()))
    await begun.wait()
    unknown = await two.exec(call, scope=scope())
    assert isinstance(unknown, Failed)
    assert unknown.error.code is ErrorCode.OUTCOME_UNKNOWN
    go_on.set()
    await running
    again = await two.exec(call, scope=scope())
    assert isinstance(again, Completed)
    assert again.replayed


@pytest.mark.parametrize("ledger", [False, True])
async def test_of_two_calls_with_secrets_that_look_different_one_is_another(ledger: bool) -> None:
    """There is no digest of such a call's arguments; both texts have the same length."""

    @tool(visible=ALL, secret=["key"])
    async def open_(door: str, key: str) -> str:
        """Open a door."""
        RUNS.append(door)
        return door

    kept = MemoryLedger()
    runner = ToolRunner([open_], sinks=[kept] if ledger else [], remember=0 if ledger else 10)
    one, other = (
        ToolCall("c", "open_", f'{{"door": "{door}", "key": "{key}"}}')
        for door, key in (("a", "1"), ("b", "2"))
    )
    assert isinstance(await runner.exec(one, scope=scope()), Completed)
    again, refused = await runner.exec(one, scope=scope()), await runner.exec(other, scope=scope())
    assert isinstance(again, Completed)
    assert isinstance(refused, Failed)
    assert refused.error.code is ErrorCode.DUPLICATE_CALL
    assert RUNS == ["a"]


class Broken(MemoryLedger):
    """A ledger that cannot write an outcome, as long as it has something to raise."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__()
        self.raised: BaseException | None = raised

    def write(self, record: ToolInvocationRecord) -> None:
        if self.raised is not None:
            raise self.raised
        super().write(record)


async def test_the_log_says_of_what_kind_the_failure_of_a_ledger_was_and_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runner = ToolRunner([note], sinks=[Broken(ValueError("canary"))])
    for _ in range(2):  # what came first, and the next attempt to write it
        outcome = await runner.exec(CALL, scope=scope())
        assert isinstance(outcome, Failed)
        assert outcome.error.code is ErrorCode.OUTCOME_UNKNOWN
        assert outcome.record.idempotency_key == KEY
    line, _ = [record.getMessage() for record in caplog.records]
    assert "a call of note ran, but its outcome could not be recorded: ValueError." in line
    assert "canary" not in line


async def test_an_interrupt_while_an_outcome_is_written_loses_no_outcome() -> None:
    ledger = Broken(KeyboardInterrupt())
    runner = ToolRunner([note], sinks=[ledger])
    with pytest.raises(KeyboardInterrupt):
        await runner.exec(CALL, scope=scope())
    ledger.raised = None
    again = await runner.exec(CALL, scope=scope())
    assert isinstance(again, Completed)
    assert (again.value, again.replayed) == ({"text": "a", "hidden": "h"}, True)
    assert [r.status for r in ledger.records] == ["started", "completed"]
    assert RUNS == [KEY]


class Rival(MemoryLedger):
    """A ledger that takes its time to write an outcome, and where another process came first."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.fails, self.writes = fails, 0
        self.writing, self.go_on = asyncio.Event(), asyncio.Event()

    async def write(  # type: ignore[override]
        self, record: ToolInvocationRecord
    ) -> ToolInvocationRecord:
        self.writes += 1
        self.writing.set()
        await self.go_on.wait()
        if self.fails:
            raise OSError("disk full")
        return msgspec.structs.replace(record, result_json=raw_json({"text": "theirs"}))


@pytest.mark.parametrize("fails", [False, True])
async def test_whose_outcome_stands_is_asked_once_and_others_are_told_what_ran(
    fails: bool,
) -> None:
    """Also where the caller is cancelled while the outcome is written."""
    ledger, kept = Rival(fails=fails), MemorySink()
    runner = ToolRunner([note], sinks=[ledger, kept])
    running = asyncio.ensure_future(runner.exec(CALL, scope=scope()))
    await ledger.writing.wait()
    running.cancel()
    await asyncio.sleep(0)
    ledger.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    own = "failed" if fails else "completed"
    assert [record.status for record in kept.records] == [own]
    ledger.fails = False
    again = await runner.exec(CALL, scope=scope())
    assert isinstance(again, Completed)
    assert (again.public, again.replayed) == ({"text": "theirs"}, True)
    assert ledger.writes == (2 if fails else 1)
    if not fails:
        assert kept.records[0].result == {"text": "a"}
    assert RUNS == [KEY]


@pytest.mark.parametrize("ledger", [False, True])
async def test_a_call_costs_as_much_when_its_outcome_is_given_again(ledger: bool) -> None:
    @tool(visible=ALL, cost=2.5)
    async def buy(text: str) -> str:
        """Buy something."""
        RUNS.append(text)
        return text

    sinks = [MemoryLedger()] if ledger else []
    one = ToolRunner([buy], sinks=sinks)
    other = ToolRunner([buy], sinks=sinks) if ledger else one
    tallies, call = (
        [RunTally("run_1"), RunTally("run_1")],
        msgspec.structs.replace(CALL, name="buy"),
    )
    for runner, tally in zip((one, other), tallies, strict=True):
        assert isinstance(await runner.exec(call, scope=CallScope(tally)), Completed)
    assert [(t.calls, t.cost, t.per_tool) for t in tallies] == [(1, 2.5, {"buy": 1})] * 2
    assert RUNS == ["a"]


async def test_a_model_is_told_no_more_of_an_outcome_when_it_is_given_again() -> None:
    @tool(visible=[], model_visible=["text"])
    async def read(text: str) -> dict[str, str]:
        """Read something."""
        return {"text": text, "hidden": "h"}

    runner, call = ToolRunner([read]), msgspec.structs.replace(CALL, name="read")
    for replayed_ in (False, True):
        outcome = await runner.exec(call)
        assert isinstance(outcome, Completed)
        assert outcome.replayed is replayed_
        assert (outcome.model, outcome.public) == ({"text": "a"}, {})
        assert outcome.value == {"text": "a", "hidden": "h"}
        assert isinstance(outcome.model, dict)
        outcome.model["text"] = "b"


OTHERS = "hmac:00000000:00"  # a keyed digest by a key that this process has not


@pytest.mark.parametrize(
    ("known", "same"),
    [
        ({}, False),  # by the same key: the secrets differ
        ({"arguments_mac": OTHERS}, True),
        ({"arguments_mac": ""}, True),  # an old record
        ({"arguments_mac": OTHERS, "arguments_json": raw_json({"door": "b", "key": "***"})}, False),
        ({"arguments_mac": "", "arguments_json": raw_json({"door": "b", "key": "***"})}, False),
        (
            {"arguments_mac": OTHERS, "arguments_json": raw_json({"door": "b"}), "edited": True},
            True,
        ),
        (
            {"arguments_mac": OTHERS, "arguments_json": raw_json({"door": "b"}), "repaired": True},
            True,
        ),
    ],
)
async def test_calls_with_secrets_are_told_apart_by_what_both_records_have(
    known: dict[str, Any], same: bool
) -> None:
    """By their keyed digests, if one key made both; else by what shows, if nobody changed it."""
    assert await _is_same_call(MemoryLedger(), known) is same


class Keyless(MemoryLedger):
    """It has no key to make keyed digests with."""

    def mac(self, *_parts: str) -> str:
        return ""


@pytest.mark.parametrize("door", ["a", "b"])
async def test_where_no_record_has_a_keyed_digest_what_shows_has_to_do(door: str) -> None:
    known = {"arguments_json": raw_json({"door": door, "key": "***"})}
    assert await _is_same_call(Keyless(), known) is (door == "a")


async def _is_same_call(ledger: MemoryLedger, known: dict[str, Any]) -> bool:
    """Say whether a call with another secret is taken for one whose record has what is `known`."""

    @tool(visible=ALL, secret=["key"])
    async def open_(door: str, key: str) -> str:
        """Open a door."""
        RUNS.append(door)
        return door

    calls = [ToolCall("c", "open_", f'{{"door": "a", "key": "{key}"}}') for key in ("1", "2")]
    await ToolRunner([open_], sinks=[ledger]).exec(calls[0], scope=scope())
    ledger.records = [msgspec.structs.replace(record, **known) for record in ledger.records]
    again = await ToolRunner([open_], sinks=[ledger]).exec(calls[1], scope=scope())
    assert RUNS == ["a"]
    if isinstance(again, Failed):
        assert again.error.code is ErrorCode.DUPLICATE_CALL
        return False
    assert isinstance(again, Completed)
    assert again.replayed
    return True


OTHER = "1" * 64
SHOWN = raw_json({"door": "b", "key": "***"})


@pytest.mark.parametrize("secret", [False, True], ids=["", "secret"])
@pytest.mark.parametrize(
    ("known", "of_text", "of_secret"),
    [
        ({}, "same", "same"),
        ({"definition_digest": OTHER}, "same", "same"),
        ({"definition_digest": OTHER, "arguments_json": SHOWN}, "same", "same"),
        ({"name": "open", "definition_digest": OTHER}, "another", "another"),
        ({"caller": "bob"}, "another", "another"),
        ({"arguments_bytes": 7}, "another", "another"),
        (
            {"arguments_sha256": OTHER, "arguments_mac": ""},
            "another",
            "unsure",
        ),  # no part of it was secret then
        ({"arguments_sha256": "", "arguments_mac": OTHERS}, "unsure", "same"),
        ({"definition_digest": OTHER, "arguments_mac": OTHERS}, "same", "same"),
        ({"arguments_mac": "hmac:KEY:00"}, "same", "another"),
        ({"definition_digest": OTHER, "arguments_mac": "hmac:KEY:00"}, "same", "another"),
        ({"arguments_mac": OTHERS, "arguments_json": SHOWN}, "same", "unsure"),
    ],
)
@pytest.mark.parametrize("resumed", [True, False], ids=["resumed", ""])
async def test_of_a_call_that_may_have_begun_doubt_is_no_other_call(
    known: dict[str, Any], of_text: str, of_secret: str, secret: bool, resumed: bool
) -> None:
    """Only a digest says that the record under its key is another call's, if it can be compared."""

    @tool(visible=ALL, name="open_", secret=["key"] if secret else [])
    async def opens(door: str, key: str) -> str:
        """Open a door."""
        return door

    hydrated = hydrate(ToolCall("c", "open_", '{"door": "a", "key": "1"}'), [opens])
    within = CallScope(RunTally("run_1"), resumed=resumed)
    facts = Recorder((), None).facts(hydrated, Caller("ada"), within)
    asked = facts.record("started", key=KEY)
    same_key = asked.arguments_mac.split(":")[1] if secret else "KEY"
    told = {n: v.replace("KEY", same_key) if n == "arguments_mac" else v for n, v in known.items()}
    entry = msgspec.structs.replace(asked, **told)
    likeness = of_secret if secret else of_text
    changed = "definition_digest" in known
    if not resumed and (likeness == "unsure" or changed):
        likeness = "another"
    assert compared(entry, asked, facts) == likeness


UNKNOWN = CallError.of(ErrorCode.OUTCOME_UNKNOWN)
MISSING = CallError.of(ErrorCode.REDACTION_MISSING)


@pytest.mark.parametrize(
    ("status", "error", "ran"),
    [
        ("completed", None, True),
        ("completed", MISSING, True),  # it ran; only its public view lacks something
        ("started", None, True),
        ("failed", UNKNOWN, False),
    ],
)
def test_a_record_gives_the_outcome_that_it_is_of(
    status: RecordStatus, error: CallError | None, ran: bool
) -> None:
    record = ToolInvocationRecord(
        id="c",
        name="note",
        status=status,
        started_at=0.0,
        error=error,
        result_json=raw_json({"text": "a"}),
    )
    outcome = replayed(record)
    assert outcome.replayed is True
    assert outcome.record is record
    if ran:
        assert isinstance(outcome, Completed)
        assert outcome.value == outcome.model == outcome.public == {"text": "a"}
    else:
        assert isinstance(outcome, Failed)
        assert outcome.error == error


class AsItIs:
    """A codec of what is JSON."""

    def shown(self, value: Any) -> Any:
        return value

    def __call__(self, shown: JsonValue, /) -> Any:
        return shown


def test_no_more_default_values_are_kept_than_said_and_only_for_their_call() -> None:
    cache = IdempotencyCache(2)
    calls = [msgspec.structs.replace(CALL, id=f"c{n}") for n in range(4)]
    for call in calls[:3]:
        made = FactoryValues()
        assert made.value("/day", partial(str, call.id), AsItIs) == call.id
        cache.pin(key_of("run_1", call.id), call, "ada", made)
    cache.pin(key_of("run_1", "c3"), calls[3], "ada", None)  # nothing to keep

    def again(run_id: str, call: ToolCall, caller: str = "ada") -> object:
        made = cache.pinned(run_id, call, caller)
        return None if made is None else made.value("/day", lambda: "anew", AsItIs)

    assert [again("run_1", call) for call in calls] == [None, "c1", "c2", None]
    assert again("run_2", calls[2]) is None
    assert again("run_1", calls[2], caller="eve") is None
    for other in ({"name": "put"}, {"arguments": '{"text": "b"}'}):
        assert again("run_1", msgspec.structs.replace(calls[2], **other)) is None


def test_an_outcome_that_no_ledger_has_is_given_to_one_and_is_never_evicted() -> None:
    cache = IdempotencyCache(0)
    outcome = Completed(
        ToolInvocationRecord(
            id="c", name="note", status="completed", started_at=0.0, result_json=raw_json(1)
        ),
        1,
        b"1",
    )
    own: Fingerprint = ("sha256:d", "{}", None, "ada")

    def refused(fingerprint: Fingerprint) -> None:
        with pytest.raises(Stopped) as stopped:
            cache.claim("k", fingerprint)
        assert stopped.value.error.code is ErrorCode.DUPLICATE_CALL

    assert cache.claim("k", own) is None
    refused(own)
    for _ in range(2):
        cache.hold("k", outcome)
        assert cache.running() == []
        refused(("sha256:d", "{}", None, "eve"))
        held = cache.claim("k", own)
        assert isinstance(held, AlreadyCompleted)
        assert (held.outcome, held.written) == (outcome, False)
        assert cache.running() == ["k"]
        refused(own)  # somebody writes it
    cache.keep("k", outcome)
    assert cache.claim("k", own) == "evicted"  # once it is written


def test_a_call_runs_once_in_however_many_threads_it_is_made() -> None:
    ran: list[int] = []
    together = threading.Barrier(8)

    @tool(visible=ALL)
    async def count() -> int:
        """Count."""
        ran.append(1)
        return 1

    runner = ToolRunner([count])

    def made() -> None:
        for n in range(50):
            together.wait(10)
            asyncio.run(_exec(runner, ToolCall(f"c{n}", "count", "{}")))

    threads = [threading.Thread(target=made) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ran) == 50


async def _exec(runner: ToolRunner, call: ToolCall) -> None:
    await runner.exec(call)
