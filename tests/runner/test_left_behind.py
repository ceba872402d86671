"""What may still happen after an outcome was told: it says so, and how it ended is added."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import pytest
from rows import each_row
from samples import sample, sampled
from waiting import until

from toolcrib import (
    ALL,
    Agent,
    Catalog,
    Completed,
    ErrorCode,
    Failed,
    ToolCall,
    ToolError,
    ToolRunner,
    capability,
    run_sync,
    tool,
)
from toolcrib.audit import AuditLog
from toolcrib.errors import SourceError
from toolcrib.testing import MemorySink, ScriptedClient, call
from toolcrib.threads import Work
from toolcrib.tools import per_call
from toolcrib.values.record import ToolInvocationRecord


@capability
class Bank(Protocol):
    """What a tool may need."""

    def name(self) -> str: ...


class AnyBank:
    def name(self) -> str:
        return "any"


CALL = ToolCall("call_1", "wire", "{}")


def waits(go: threading.Event, raises: BaseException | None = None) -> Callable[[], int]:
    def wire() -> int:
        """Wire money, late."""
        go.wait(30)
        if raises is not None:
            raise raises
        return 7

    return wire


async def told(log: AuditLog) -> list[tuple[str, str]]:
    return [
        (e.record.status, "" if e.record.error is None else str(e.record.error.code))
        for e in await log.entries()
    ]


async def until_told(log: AuditLog, entries: int) -> list[tuple[str, str]]:
    async with asyncio.timeout(10):
        while len(found := await told(log)) < entries:  # noqa: ASYNC110  a thread ends
            await asyncio.sleep(0.01)
    return found


@each_row(
    ("options", "code", "retryable", "notes"),
    [
        ({}, ErrorCode.OUTCOME_UNKNOWN, False, ("left_behind",)),
        ({"idempotent": True}, ErrorCode.OUTCOME_UNKNOWN, True, ("left_behind",)),
        ({"read_only": True}, ErrorCode.TIMEOUT, True, ()),
    ],
)
async def test_a_thread_that_overruns_may_still_do_it(
    options: Any, code: ErrorCode, retryable: bool, notes: tuple[str, ...]
) -> None:
    go = threading.Event()
    f = tool(visible=ALL, timeout=0.02, **options)(waits(go))
    outcome = await ToolRunner([f]).exec(CALL)
    go.set()
    assert isinstance(outcome, Failed)
    assert (outcome.error.code, outcome.error.retryable) == (code, retryable)
    assert outcome.record.notes == notes
    looks_first = code is ErrorCode.OUTCOME_UNKNOWN and not retryable
    assert ("check whether it did before you call it again" in outcome.error.message) == looks_first


@pytest.mark.parametrize(
    ("raised", "last"),
    [
        (None, ("completed", "")),
        (ValueError("no"), ("failed", "tool_error")),
        (SystemExit(), ("failed", "tool_error")),
    ],
)
async def test_how_a_thread_ended_that_was_left_behind_is_added(
    raised: BaseException | None, last: tuple[str, str]
) -> None:
    go = threading.Event()
    f = tool(visible=ALL, timeout=0.02)(waits(go, raised))
    async with AuditLog("sqlite://") as log:
        runner = ToolRunner([f], sinks=[log])
        first = await runner.exec(CALL)
        unknown = [("started", ""), ("failed", "outcome_unknown")]
        assert await told(log) == unknown
        go.set()
        assert await until_told(log, 3) == [*unknown, last]
        added = (await log.entries())[-1].record
        await until(lambda: not telling())
        assert (added.notes, added.idempotency_key) == (
            ("left_behind",),
            first.record.idempotency_key,
        )
        assert (await log.verify()).ok

        for asked in (runner, ToolRunner([f], sinks=[log])):
            again = await asked.exec(CALL)
            assert isinstance(again, Completed | Failed)
            assert again.replayed
            assert (again.record.status, again.record.result) == (last[0], added.result)
        assert len(await log.entries()) == 3


async def test_a_caller_that_is_cancelled_leaves_an_unknown_outcome() -> None:
    go = threading.Event()
    f = tool(visible=ALL)(waits(go))
    async with AuditLog("sqlite://") as log:
        assert await told(log) == []  # it is open: what is left of the time is the call's
        session = Agent(
            ScriptedClient([call("wire"), "done"]), ToolRunner([f], sinks=[log])
        ).session()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.send("Wire it."), 0.1)
        (content,) = [m.content for m in session.messages if m.role == "tool"]
        assert "outcome_unknown" in content
        assert "before you call it again" in content
        assert (await told(log))[-1] == ("failed", "outcome_unknown")
        go.set()
        assert ("completed", "") in await until_told(log, 3)


def test_a_thread_that_ends_when_its_loop_has_closed_is_added_too() -> None:
    go, log = threading.Event(), AuditLog("sqlite://")
    f = tool(visible=ALL, timeout=0.02)(waits(go))
    agent = Agent(ScriptedClient([call("wire"), "done"]), ToolRunner([f], sinks=[log]))
    run_sync(agent.run("Wire it."))
    go.set()
    deadline = time.monotonic() + 10
    while ("completed", "") not in run_sync(told(log)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    run_sync(log.aclose())


async def test_nothing_is_added_to_a_log_that_was_closed() -> None:
    go = threading.Event()
    f = tool(visible=ALL, timeout=0.02)(waits(go))
    log = AuditLog("sqlite://")
    runner = ToolRunner([f], sinks=[log])
    before = runner.left_behind
    await runner.exec(CALL)
    await log.aclose()
    assert log.closed
    go.set()
    await until(lambda: runner.left_behind == before)
    await asyncio.sleep(0.05)
    assert log.closed


async def test_a_task_that_is_left_behind_is_added_to_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolcrib.runner.execute.GRACE", 0.02)
    go = asyncio.Event()

    @tool(visible=ALL, timeout=0.02)
    async def wire() -> int:
        """Wire money, whoever says stop."""
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        return 7

    async with AuditLog("sqlite://") as log:
        outcome = await ToolRunner([wire], sinks=[log]).exec(CALL)
        assert isinstance(outcome, Failed)
        assert outcome.error.code is ErrorCode.OUTCOME_UNKNOWN
        assert outcome.record.notes == ("left_behind",)
        assert "before you call it again" in outcome.error.message
        go.set()
        assert (await until_told(log, 3))[-1] == ("completed", "")


async def test_a_tool_is_unknown_whose_own_call_was_left_behind() -> None:
    go = threading.Event()
    inner = ToolRunner([tool(visible=ALL)(waits(go))])

    @tool(visible=ALL, timeout=0.05)
    async def pay() -> str:
        """Pay by wire."""
        return (await inner.exec(CALL)).record.status

    sink = MemorySink()
    outcome = await ToolRunner([pay], sinks=[sink]).exec(ToolCall("call_2", "pay", "{}"))
    go.set()
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.OUTCOME_UNKNOWN


async def test_what_ended_in_time_is_not_unknown() -> None:
    @tool(visible=ALL, timeout=0.02)
    async def wire() -> None:
        """Wait."""
        await asyncio.sleep(30)

    outcome = await ToolRunner([wire]).exec(CALL)
    assert isinstance(outcome, Failed)
    assert (outcome.error.code, outcome.record.notes) == (ErrorCode.TIMEOUT, ())


class BusyLoop:
    """Blocks the event loop from when a plain function has begun until its thread has ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go, self.over = threading.Event(), threading.Event(), threading.Event()
        end = Work.end

        def ended(work: Work, ending: Any) -> None:
            end(work, ending)
            if self.go.is_set():
                self.over.set()

        monkeypatch.setattr(Work, "end", ended)

    async def blocks(self, seconds: float = 0.0) -> None:
        await until(self.begun.is_set)
        self.go.set()
        assert self.over.wait(10)
        time.sleep(seconds)  # noqa: ASYNC251  the loop is busy

    def waits(self) -> None:
        self.begun.set()
        self.go.wait(10)


async def is_stopped(runner: ToolRunner, busy: BusyLoop, limit: float | None) -> None:
    """Have the call stopped by its limit, or else by its caller, while the loop is busy: it failed."""
    task = asyncio.create_task(runner.exec(CALL))
    await busy.blocks(0.0 if limit is None else 2 * limit)
    if limit is None:
        task.cancel()
    await asyncio.wait([task])
    again = await runner.exec(CALL)
    assert isinstance(again, Failed)
    assert again.error.code == ("cancelled" if limit is None else "timeout")


ENDINGS: tuple[tuple[BaseException | None, tuple[str, str]], ...] = (
    (None, ("completed", "")),
    (ToolError("no money"), ("failed", "tool_error")),
    (TimeoutError(), ("failed", "tool_error")),
    (asyncio.CancelledError(), ("failed", "tool_error")),
)


@each_row("stopped", ["at its limit", "by its caller"])
@each_row(("read_only", "made"), sampled(product([False, True], repeat=2), part=2))
@each_row(("raises", "ends"), ENDINGS)
async def test_a_thread_that_ended_first_has_ended_so_whatever_the_loop_saw_first(
    stopped: str,
    read_only: bool,
    made: bool,
    raises: BaseException | None,
    ends: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy, closed = BusyLoop(monkeypatch), list[type[BaseException] | None]()
    limit = 0.1 if stopped == "at its limit" else None

    def wire() -> int:
        """Wire money."""
        busy.waits()
        if raises is not None:
            raise raises
        return 7

    def wire_by(bank: Bank) -> int:
        """Wire money."""
        return wire()

    @contextmanager
    def banks() -> Iterator[Bank]:
        try:
            yield AnyBank()
        except BaseException as raised:
            closed.append(type(raised))
            raise
        closed.append(None)

    told_as = tool(name="wire", visible=ALL, timeout=limit, read_only=read_only)
    f = told_as(wire_by) if made else told_as(wire)
    async with AuditLog("sqlite://") as log:
        runner = ToolRunner(Catalog([f]).bind({Bank: per_call(banks)}), sinks=[log])
        task = asyncio.create_task(runner.exec(CALL))
        await busy.blocks(0.0 if limit is None else 2 * limit)
        if limit is None:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            assert (await task).record.status == ends[0]
        again = await runner.exec(CALL)
        assert again.record.status == ends[0]
        assert (await told(log))[-1] == ends
        assert len(await told(log)) == (1 if read_only else 2)
    assert again.record.error is None or "time" not in again.record.error.message
    over = ("over_time_limit",) if limit is not None and raises is None else ()
    assert again.record.notes == over
    assert not isinstance(again, Completed) or again.model == 7
    assert runner.left_behind == 0
    assert not made or [kind is None for kind in closed] == [raises is None]


async def test_what_was_committed_in_a_thread_before_the_stop_is_no_cancelled_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = BusyLoop(monkeypatch)

    @contextmanager
    def banks() -> Iterator[Bank]:
        yield AnyBank()
        busy.waits()  # it commits

    @tool(visible=ALL)
    def wire(bank: Bank) -> int:
        """Wire money."""
        return 7

    runner = ToolRunner(Catalog([wire]).bind({Bank: per_call(banks)}))
    task = asyncio.create_task(runner.exec(CALL))
    await busy.blocks()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await runner.exec(CALL)).record.status == "completed"


@each_row("stopped", ["at its limit", "by its caller"])
async def test_what_a_factory_made_before_the_stop_lets_no_tool_begin(
    stopped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, begun = BusyLoop(monkeypatch), []
    limit = 0.1 if stopped == "at its limit" else None

    def bank() -> Bank:
        busy.waits()
        return AnyBank()

    @tool(visible=ALL, timeout=limit)
    def wire(bank: Bank) -> None:
        """Wire money."""
        begun.append(bank)

    runner = ToolRunner(Catalog([wire]).bind({Bank: per_call(bank)}))
    await is_stopped(runner, busy, limit)
    assert begun == []


@each_row("stopped", ["at its limit", "by its caller"])
async def test_work_that_a_thread_made_before_the_stop_is_not_done(
    stopped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, done = BusyLoop(monkeypatch), []
    limit = 0.1 if stopped == "at its limit" else None

    async def work() -> None:
        done.append(1)

    @tool(visible=ALL, timeout=limit)
    def wire() -> Any:
        """Wire money."""
        busy.waits()
        return work()

    runner = ToolRunner([wire])
    await is_stopped(runner, busy, limit)
    assert done == []


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def telling() -> bool:
    """Whether somebody is being told how a tool ended."""
    return any(thread.name == "toolcrib-ended" for thread in threading.enumerate())


class FullLog(AuditLog):
    """A log that cannot write what has one of these statuses, of `CALL`, for want of room."""

    refused: frozenset[str] = frozenset()
    refusals = 0

    async def write(self, record: ToolInvocationRecord) -> ToolInvocationRecord | None:
        if record.id == CALL.id and record.status in self.refused:
            self.refusals += 1
            raise SourceError("the disk is full")
        return await super().write(record)


@pytest.mark.parametrize("unknown", [False, True], ids=["unknown", "unknown unwritten"])
@pytest.mark.parametrize("others", [0, 1], ids=["kept", "evicted"])
async def test_an_end_that_cannot_be_written_is_written_when_it_is_asked_for(
    unknown: bool, others: int
) -> None:
    go = threading.Event()
    f = tool(visible=ALL, timeout=0.02)(waits(go))

    @tool(visible=ALL)
    async def other() -> None:
        """Do nothing."""

    async with FullLog("sqlite://") as log:
        runner = ToolRunner([f, other], sinks=[log], remember=1)
        await runner.exec(ToolCall("first", "other", "{}"))
        log.refused = frozenset({"completed", *["failed"] * unknown})
        assert isinstance(await runner.exec(CALL), Failed)
        for number in range(others):
            await runner.exec(ToolCall(f"other {number}", "other", "{}"))
        go.set()
        await until(lambda: log.refusals == 1 + unknown and not telling())
        log.refused = frozenset()
        again = await runner.exec(CALL)
        assert (again.record.status, again.record.notes) == ("completed", ("left_behind",))
        entries = [e.record.status for e in await log.entries() if e.record.id == CALL.id]
        assert entries == ["started", *["failed"] * (not unknown), "completed"]
        assert (await log.verify()).ok


@pytest.mark.parametrize("asked_again", [False, True], ids=["closed", "asked again"])
async def test_an_end_is_counted_until_it_is_written(
    monkeypatch: pytest.MonkeyPatch, asked_again: bool
) -> None:
    go = threading.Event()
    f = tool(visible=ALL, timeout=0.02)(waits(go))
    async with FullLog("sqlite://") as log:
        runner = ToolRunner([f], sinks=[log])
        before = runner.left_behind
        await runner.exec(CALL)
        log.refused = frozenset({"completed"})
        go.set()
        await until(lambda: log.refusals == 1 and not telling())
        assert runner.left_behind == before + 1
        assert (await runner.exec(CALL)).record.status == "failed"  # it cannot be written yet
        assert runner.left_behind == before + 1
        monkeypatch.setattr("toolcrib.runner.call.MOST_LEFT_BEHIND", before + 1)
        other = await runner.exec(ToolCall("other", "wire", "{}"))
        assert other.record.status == "completed"  # no thread is lost to what is only unwritten
        log.refused = frozenset()
        if asked_again:
            assert (await runner.exec(CALL)).record.status == "completed"
        else:
            await log.aclose()
        assert runner.left_behind == before


@each_row(("cancelled", "ends"), [(False, "raises"), (False, "returns"), (True, "raises")])
async def test_the_end_of_a_tool_whose_own_calls_were_left_behind_is_added(
    cancelled: bool, ends: str
) -> None:
    go, begun = threading.Event(), asyncio.Event()
    inner = tool(visible=ALL)(waits(go))

    @tool(visible=ALL, timeout=60 if cancelled else 0.05)
    async def pay() -> str:
        """Pay by wire, twice."""
        begun.set()
        calls = [ToolCall(f"inner {number}", "wire", "{}") for number in range(2)]
        try:
            await runner.exec_all(calls)
        except asyncio.CancelledError:
            if ends == "raises":
                raise
        return "done"

    async with AuditLog("sqlite://") as log:
        runner = ToolRunner([inner, pay], sinks=[log])
        before = runner.left_behind
        outer = ToolCall("outer", "pay", "{}")
        running = asyncio.ensure_future(runner.exec(outer))
        await begun.wait()
        if cancelled:
            await asyncio.sleep(0.05)
            running.cancel()
        await asyncio.wait([running])
        assert await ends_of(log, "outer") == ["started", "outcome_unknown"]
        go.set()
        await until(lambda: runner.left_behind == before)
        for number in range(2):
            assert await ends_of(log, f"inner {number}") == [
                *("started", "outcome_unknown", "completed")
            ]
        late = "cancelled" if cancelled else "timeout"
        assert await ends_of(log, "outer") == ["started", "outcome_unknown", late]
        again = await ToolRunner([pay], sinks=[log]).exec(outer)
        assert state(again.record) == late
        assert (await log.verify()).ok


def state(record: ToolInvocationRecord) -> str:
    return record.status if record.error is None else str(record.error.code)


async def ends_of(log: AuditLog, call_id: str) -> list[str]:
    return [state(entry.record) for entry in await log.entries() if entry.record.id == call_id]


@pytest.mark.parametrize("cancelled", [False, True])
@each_row(
    ("raises", "codes"),
    [
        (None, ("timeout", "cancelled")),  # the CancelledError that it was given
        (asyncio.CancelledError(), ("timeout", "cancelled")),
        (TimeoutError(), ("timeout", "tool_error")),
        (ValueError(), ("tool_error", "tool_error")),
    ],
)
async def test_a_task_that_was_left_behind_ends_as_one_that_ended_in_time(
    monkeypatch: pytest.MonkeyPatch,
    cancelled: bool,
    raises: BaseException | None,
    codes: tuple[str, str],
) -> None:
    monkeypatch.setattr("toolcrib.runner.execute.GRACE", 0.02)
    begun = asyncio.Event()

    @tool(visible=ALL, timeout=30.0 if cancelled else 0.02)
    async def wire(late: bool) -> int:
        """Wire money, and clean up."""
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            go = asyncio.ensure_future(asyncio.sleep(0.1 if late else 0))
            while not go.done():
                try:
                    await asyncio.shield(go)
                except asyncio.CancelledError:
                    continue
            if raises is None:
                raise
            raise raises from None
        return 7

    async with AuditLog("sqlite://") as log:
        runner = ToolRunner([wire], sinks=[log])
        for late in ("false", "true"):
            asked = ToolCall(late, "wire", f'{{"late": {late}}}')
            running = asyncio.ensure_future(runner.exec(asked))
            await begun.wait()
            begun.clear()
            if cancelled:
                running.cancel()
            await asyncio.wait([running])
        expected = ("failed", codes[cancelled])
        assert await until_told(log, 5) == [
            ("started", ""),
            expected,
            ("started", ""),
            ("failed", "outcome_unknown"),
            expected,
        ]
        await until(lambda: not telling())
        again = await runner.exec(asked)
        assert isinstance(again, Failed)
        assert again.error.code == codes[cancelled]


async def test_work_that_a_thread_made_too_late_is_not_done_and_says_so() -> None:
    go = threading.Event()

    async def later() -> int:
        return 7

    @tool(visible=ALL, timeout=0.02)
    def wire() -> object:
        """Wire money, later."""
        go.wait(30)
        return later()

    async with AuditLog("sqlite://") as log:
        runner = ToolRunner([wire], sinks=[log])
        await runner.exec(CALL)
        go.set()
        assert (await until_told(log, 3))[-1] == ("failed", "timeout")


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("closes", [True, False], ids=["log closed", "loop ended"])
def test_no_end_is_lost_whenever_the_loop_ends_or_the_log_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocking: bool, closes: bool
) -> None:
    monkeypatch.setattr("toolcrib.runner.execute.GRACE", 0.001)
    chance, runs = random.Random(7), sample(30, part=3)  # noqa: S311
    go = [threading.Event() for _ in range(runs)]

    def wire(number: int) -> int:
        """Wire money, late."""
        go[number].wait(30)
        return 7

    async def wire_async(number: int) -> int:
        """Wire money, late."""
        while not go[number].is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.001)
        return 7

    f = tool(name="wire", visible=ALL, timeout=0.005)(wire if blocking else wire_async)
    url = f"sqlite:///{tmp_path}/crib.db"

    async def once(number: int, log: AuditLog) -> None:
        runner = ToolRunner([f], sinks=[log])
        outcome = await runner.exec(ToolCall(str(number), "wire", f'{{"number": {number}}}'))
        assert outcome.record.notes == ("left_behind",)  # it cannot have ended
        threading.Timer(chance.uniform(0, 0.02), go[number].set).start()
        if closes:
            while runner.left_behind > before:  # noqa: ASYNC110  as a program may
                await asyncio.sleep(0)
            await log.aclose()
        else:
            await asyncio.sleep(chance.uniform(0, 0.02))

    log = AuditLog(url)
    runner = ToolRunner([f], sinks=[log])
    wait_until(lambda: runner.left_behind == 0, 30)  # of other tests
    before = runner.left_behind
    for number in range(runs):
        log = AuditLog(url) if closes else log
        asyncio.run(once(number, log))
    assert all(each.wait(30) for each in go)
    wait_until(lambda: runner.left_behind <= before, 30)
    found = asyncio.run(told(log))
    assert found.count(("failed", "outcome_unknown")) == runs
    assert found.count(("completed", "")) == runs
    run_sync(log.aclose())
