"""A call's id runs once: in this process by the runner's memory, everywhere by a ledger."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from toolcrib import (
    ALL,
    CallContext,
    Caller,
    Completed,
    Failed,
    ToolCall,
    ToolRunner,
    Waiting,
    tool,
)
from toolcrib.errors import ErrorCode, ToolcribError
from toolcrib.runner import CallScope
from toolcrib.testing import MemorySink
from toolcrib.values.context import RunTally
from toolcrib.values.decision import Answer, ApprovalRequest, Approve
from toolcrib.values.record import ToolInvocationRecord

RUNS: list[str] = []
CALL = ToolCall("run_1_0_0", "", "note", '{"text": "a"}')


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


def scope(run_id: str = "run_1") -> CallScope:
    return CallScope(RunTally(run_id))


class MemoryLedger(MemorySink):
    """As a store does it: one claim a key, and the last record under it."""

    def __init__(self) -> None:
        super().__init__()
        self.claimed: set[str] = set()

    async def find(self, key: str) -> ToolInvocationRecord | None:
        found = [r for r in self.records if r.idempotency_key == key]
        return found[-1] if found else None

    async def begin(self, intent: ToolInvocationRecord) -> ToolInvocationRecord | None:
        if intent.idempotency_key in self.claimed:
            return await self.find(intent.idempotency_key)
        self.claimed.add(intent.idempotency_key)
        self.records.append(intent)
        return None


async def test_a_finished_call_gives_its_outcome_and_does_not_run_again() -> None:
    sink = MemorySink()
    runner = ToolRunner([note], sinks=[sink])
    first = await runner.exec(CALL, scope=scope())
    again = await runner.exec(CALL, scope=scope())
    assert isinstance(first, Completed)
    assert isinstance(again, Completed)
    assert (first.replayed, again.replayed) == (False, True)
    assert (again.record, again.value) == (first.record, first.value)
    assert RUNS == ["run_1_0_0"]
    assert sink.records == [first.record]
    assert (first.record.idempotency_key, first.record.key_scope) == ("run_1_0_0", "process")


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
    call = ToolCall("c", "", "wipe", '{"text": "a"}')
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
    assert RUNS == ["run_1/x", "run_2/x", "x"]


async def test_two_at_once_run_once() -> None:
    runner = ToolRunner([note])
    outcomes = await runner.exec_all([CALL, CALL], scope=scope())
    assert [type(o) for o in outcomes] == [Completed, Failed]
    assert isinstance(outcomes[1], Failed)
    assert outcomes[1].error.code is ErrorCode.DUPLICATE_CALL
    assert len(RUNS) == 1


async def test_two_that_wait_for_the_same_approval_run_once() -> None:
    asked = 0
    both = asyncio.Event()

    async def approver(_request: ApprovalRequest) -> Answer:
        nonlocal asked
        asked += 1
        if asked == 2:
            both.set()
        await both.wait()
        return Approve(by="grace")

    runner = ToolRunner([wipe], approver=approver)
    call = ToolCall("c", "", "wipe", '{"text": "a"}')
    outcomes = await runner.exec_all([call, call], scope=scope())
    assert sorted(type(o).__name__ for o in outcomes) in (
        ["Completed"] * 2,
        ["Completed", "Failed"],
    )
    assert RUNS == ["a"]


async def test_no_more_is_remembered_than_said() -> None:
    runner = ToolRunner([note], remember=2)
    calls = [msgspec.structs.replace(CALL, id=f"c{n}") for n in range(3)]
    for call in calls:
        await runner.exec(call)
    again = [await runner.exec(call) for call in reversed(calls)]
    assert [o.replayed for o in again if isinstance(o, Completed)] == [True, True, False]


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
    call = ToolCall("run_1_0_0", "", "put", '{"text": "a"}')
    ledger = await _left_behind(call)
    outcome = await ToolRunner([put], sinks=[ledger]).exec(call, scope=scope())
    assert isinstance(outcome, Completed)
    assert RUNS == ["run_1_0_0"]
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
    call = ToolCall("c", "", "wipe", '{"text": "a"}')
    for _ in range(2):
        runner = ToolRunner([wipe], approver=approver, sinks=[ledger])
        assert isinstance(await runner.exec(call, scope=scope()), Completed)
    assert len(asked) == 1
    assert RUNS == ["a"]


async def test_an_intent_that_cannot_be_written_keeps_the_tool_from_running() -> None:
    class Broken(MemoryLedger):
        async def begin(self, intent: ToolInvocationRecord) -> ToolInvocationRecord | None:
            raise OSError("disk full")

    broken = Broken()
    runner = ToolRunner([note], sinks=[broken])
    with pytest.raises(OSError, match="disk full"):
        await runner.exec(CALL, scope=scope())
    assert RUNS == []
    assert [r.error.code for r in broken.records if r.error] == [ErrorCode.CANCELLED]


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
    call = ToolCall("c", "", "wipe", '{"text": "a"}')
    for _ in range(2):
        runner = ToolRunner([wipe], approver=edits, sinks=[ledger])
        outcome = await runner.exec(call, scope=scope())
        assert isinstance(outcome, Completed)
        assert outcome.record.edited
    assert RUNS == ["edited"]
