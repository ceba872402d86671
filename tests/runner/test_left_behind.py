"""What may still happen after an outcome was told: it says so, and how it ended is added."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from rows import each_row

from toolcrib import (
    ALL,
    Agent,
    Completed,
    ErrorCode,
    Failed,
    ToolCall,
    ToolRunner,
    run_sync,
    tool,
)
from toolcrib.audit import AuditLog
from toolcrib.runner.call import _ENDING_LATE
from toolcrib.testing import MemorySink, ScriptedClient, call

CALL = ToolCall("call_1", "wire", "{}")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  what is waited for happens in another thread
            await asyncio.sleep(0.005)


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
    assert ("do not call it again before you have looked" in outcome.error.message) == looks_first


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
        await until(lambda: not _ENDING_LATE)
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
        session = Agent(
            ScriptedClient([call("wire"), "done"]), ToolRunner([f], sinks=[log])
        ).session()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.send("Wire it."), 0.1)
        (content,) = [m.content for m in session.messages if m.role == "tool"]
        assert "outcome_unknown" in content
        assert "before you have looked" in content
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
        assert "before you have looked" in outcome.error.message
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
