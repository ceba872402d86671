"""A tool is bounded: what blocks, goes on or is given up is ended, noted, counted and limited."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rows import each_row
from samples import sample, sampled
from waiting import until

from toolcrib import (
    ALL,
    ApprovalRequest,
    Approve,
    Catalog,
    Completed,
    ErrorCode,
    Failed,
    ToolCall,
    ToolRunner,
    tool,
)
from toolcrib.audit import AuditLog
from toolcrib.kit import Database as KitDatabase
from toolcrib.kit import DatabaseLimits, ReadOnlyDatabase
from toolcrib.kit.database import query_database
from toolcrib.runner import execute
from toolcrib.testing import MemorySink
from toolcrib.tools import capability, per_call

CALL = ToolCall("call_0", "f", "{}")


async def test_a_tool_that_blocks_the_event_loop_past_its_limit_is_noted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool(visible=ALL, timeout=0.01, requires_approval=True)
    async def f(text: str) -> str:
        """Block the event loop, and complete."""
        time.sleep(0.05)  # noqa: ASYNC251  that is the point
        return text

    async def for_run(_request: ApprovalRequest) -> Approve:
        return Approve(by="grace", for_run=True)

    call = ToolCall("call_0", "f", '{"text": "canary-52aa"}')
    with caplog.at_level(logging.WARNING, "toolcrib.tools"):
        outcome = await ToolRunner([f], approver=for_run).exec(call)
    assert isinstance(outcome, Completed)
    assert outcome.record.notes == ("approved_for_run", "over_time_limit")
    assert "tool 'f' completed after 0." in caplog.text
    assert "its time limit is 0.01 s" in caplog.text
    assert "canary-52aa" not in caplog.text


async def test_a_tool_within_its_limit_is_not_noted(caplog: pytest.LogCaptureFixture) -> None:
    @tool(visible=ALL, timeout=60)
    async def f() -> int:
        """Be quick."""
        await asyncio.sleep(0)
        return 1

    outcome = await ToolRunner([f]).exec(CALL)
    assert outcome.record.notes == ()
    assert caplog.text == ""


@capability
class Db(Protocol):
    def rows(self) -> int: ...


class Rows:
    def rows(self) -> int:
        return 1


class Stubborn:
    """What goes on whatever cancels it, until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.told, self.is_over = 0, False

    async def wait(self) -> int:
        self.begun.set()
        while not self.go.is_set():
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.told += 1
        self.is_over = True
        return 1

    def tools(self) -> dict[str, Any]:
        async def function() -> int:
            """Go on."""
            return await self.wait()

        async def parts() -> AsyncIterator[int]:
            """Go on, after a part."""
            yield 0
            yield await self.wait()

        async def task() -> int:
            """Wait for a task that goes on."""
            return await asyncio.ensure_future(self.wait())

        async def made(db: Db) -> int:
            """Go on with what is made for the call."""
            return db.rows() + await self.wait()

        return {"function": function, "parts": parts, "task": task, "made": made}


@each_row("kind", ["function", "parts", "task", "made"])
@each_row("cancelled", [False, True])
async def test_a_tool_that_swallows_its_cancellation_is_left_behind(
    kind: str, cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.runner.execute.GRACE", 0.02)
    stubborn, sink = Stubborn(), MemorySink()
    f = tool(visible=ALL, description="It runs.", name="f", timeout=60 if cancelled else 0.02)(
        stubborn.tools()[kind]
    )
    catalog = Catalog([f]).bind({Db: per_call(Rows)} if f.needs else {})
    runner = ToolRunner(catalog, sinks=[sink])
    before = runner.left_behind
    running = asyncio.ensure_future(runner.exec(CALL))
    await stubborn.begun.wait()
    if cancelled:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        assert isinstance(await running, Failed)
    (record,) = sink.records
    assert record.error is not None
    assert record.error.code is ErrorCode.OUTCOME_UNKNOWN
    assert record.error.message.startswith("The tool was told to stop but did not")
    assert runner.left_behind == before + 1
    assert len(execute._left_behind) == 1  # a loop holds its tasks weakly
    await asyncio.sleep(0.05)
    assert (stubborn.told, stubborn.is_over) == (1, False)  # once: it goes on as it was
    stubborn.go.set()
    await until(lambda: runner.left_behind == before)
    assert (stubborn.told, stubborn.is_over) == (1, True)
    assert not execute._left_behind


@settings(
    max_examples=sample(80),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(st.floats(0, 0.02), min_size=1, max_size=4), cancelled=st.booleans())
async def test_no_clean_up_is_cut_however_long_it_takes(
    steps: list[float], cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that outlasts its grace goes on to its end, and ends as it does in time."""
    monkeypatch.setattr("toolcrib.runner.execute.GRACE", 0.02)
    done, told, begun = list[float](), list[str](), asyncio.Event()

    @tool(visible=ALL, timeout=60 if cancelled else 0.01)
    async def f() -> None:
        """Clean up, step by step."""
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            for step in steps:
                try:
                    await asyncio.sleep(step)
                except asyncio.CancelledError:
                    told.append("again")
                    raise
                done.append(step)

    runner = ToolRunner([f])
    before = runner.left_behind
    running = asyncio.ensure_future(runner.exec(CALL))
    await begun.wait()
    if cancelled:
        running.cancel()
    await asyncio.wait([running])
    await until(lambda: runner.left_behind == before)
    assert (done, told) == (steps, [])


@pytest.mark.parametrize("watched", ["property", "next call"])
def test_what_was_left_behind_in_a_loop_that_has_closed_has_ended(
    watched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told to stop as the loop closes, and nobody drives it then: what it did is unknown."""
    monkeypatch.setattr("toolcrib.runner.execute.GRACE", 0.02)
    sink, most = MemorySink(), 3

    @tool(visible=ALL)
    async def f() -> None:
        """Take long to stop."""
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await asyncio.sleep(60)

    @tool(visible=ALL)
    async def g() -> int:
        """Be quick."""
        return 1

    runner = ToolRunner([f, g], sinks=[sink])
    before = runner.left_behind
    monkeypatch.setattr("toolcrib.runner.call.MOST_LEFT_BEHIND", before + most)

    async def main() -> None:
        for at in range(most):
            calls.append(asyncio.ensure_future(runner.exec(ToolCall(f"call_{at}", "f", "{}"))))
        await asyncio.sleep(0.01)

    calls: list[asyncio.Task[Any]] = []
    asyncio.run(main())
    assert len(execute._left_behind) == most
    if watched == "property":
        assert runner.left_behind == before
    again = asyncio.run(runner.exec(ToolCall("call_9", "g", "{}")))
    assert isinstance(again, Completed)
    assert (runner.left_behind, len(execute._left_behind)) == (before, 0)
    codes = [r.error.code for r in sink.records if r.error is not None]
    assert codes == [ErrorCode.OUTCOME_UNKNOWN] * most


async def timeout_within() -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()


async def group_within() -> None:
    async def fails() -> None:
        raise ValueError

    with suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            await asyncio.Event().wait()


async def failing_group() -> None:
    async def fails() -> None:
        raise ValueError

    async with asyncio.TaskGroup() as group:
        group.create_task(fails())
        group.create_task(asyncio.Event().wait())


async def left_group_within() -> None:
    for _ in range(2):
        with suppress(ExceptionGroup):
            await failing_group()


async def groups_in_groups() -> None:
    with suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(left_group_within())
            await left_group_within()
            await group_within()
            group.create_task(failing_group())


async def group_in_a_generator() -> None:
    async def parts() -> AsyncIterator[int]:
        await left_group_within()
        yield 1

    async for _ in parts():
        await left_group_within()


async def group_in_a_call() -> None:
    @tool(visible=ALL)
    async def inner() -> int:
        """Leave groups."""
        await left_group_within()
        await failing_group()
        return 1

    outcome = await ToolRunner([inner]).exec(ToolCall("call_1", "inner", "{}"))
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.TOOL_ERROR


GROUPS = [left_group_within, groups_in_groups, group_in_a_generator, group_in_a_call]


async def cancelled_by_another() -> None:
    other = asyncio.ensure_future(asyncio.Event().wait())
    asyncio.get_running_loop().call_soon(other.cancel)
    with suppress(asyncio.CancelledError):
        await other


@each_row("within", [timeout_within, group_within, cancelled_by_another, *GROUPS])
async def test_a_cancellation_that_a_tool_takes_back_is_no_request_to_stop(
    within: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.runner.execute.GRACE", 0.01)

    @tool(visible=ALL)
    async def f(waits_for_a_task: bool) -> int:
        """Go on for longer than a tool may that was told to stop."""
        await within()
        rest = asyncio.sleep(0.05)
        await (asyncio.ensure_future(rest) if waits_for_a_task else rest)
        return 1

    for waits in ("true", "false"):
        outcome = await ToolRunner([f]).exec(
            ToolCall("call_0", "f", f'{{"waits_for_a_task": {waits}}}')
        )
        assert isinstance(outcome, Completed)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@each_row("within", GROUPS)
async def test_what_opens_or_streams_or_approves_may_use_task_groups(
    within: Callable[[], Awaitable[None]],
) -> None:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Rows]:
        await within()
        yield Rows()
        await within()

    @tool(visible=ALL, requires_approval=True)
    async def f(db: Db) -> AsyncIterator[int]:
        """Count."""
        await within()
        yield 0
        await within()
        yield db.rows()

    async def grace(_request: ApprovalRequest) -> Approve:
        await within()
        return Approve(by="grace")

    outcome = await ToolRunner(Catalog([f]).bind({Db: per_call(opened)}), approver=grace).exec(CALL)
    assert isinstance(outcome, Completed)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@each_row("fails", [True, False])
async def test_a_call_is_cancelled_from_outside_while_a_task_group_of_its_tool_ends(
    fails: bool,
) -> None:
    ending, go = asyncio.Event(), asyncio.Event()

    async def cleans_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await go.wait()

    @tool(visible=ALL)
    async def f() -> int:
        """Leave a group of which one child takes its time to end."""
        async with asyncio.TaskGroup() as group:
            group.create_task(cleans_up())
            if fails:
                group.create_task(failing_group())
        return 1

    running = asyncio.ensure_future(ToolRunner([f]).exec(CALL))
    if fails:
        await ending.wait()
    else:
        await asyncio.sleep(0.01)
    running.cancel()
    asyncio.get_running_loop().call_later(0.01, go.set)
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_what_is_left_behind_cancels_nobody_who_called_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolcrib.runner.execute.GRACE", 0.02)
    ended = asyncio.Event()

    @tool(visible=ALL, timeout=0.05)
    async def inner() -> int:
        """Wait."""
        await asyncio.Event().wait()
        return 1

    @tool(visible=ALL, timeout=0.01)
    async def f() -> int:
        """Go on, by calling a tool that runs into its own limit, when nobody waits any more."""
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        try:
            await runner.exec(ToolCall("call_1", "inner", "{}"))
        finally:
            ended.set()
        return 1

    runner = ToolRunner([inner, f])
    before = runner.left_behind
    outcome = await runner.exec(CALL)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.OUTCOME_UNKNOWN
    await ended.wait()
    await until(lambda: runner.left_behind == before)
    await asyncio.sleep(0.06)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def _limited() -> AsyncIterator[None]:
    async with asyncio.timeout(0.06):
        yield


def _stacked(limit: Callable[[], Any]) -> Callable[[], Any]:
    @asynccontextmanager
    async def stacked() -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(limit())
            yield

    return stacked


@asynccontextmanager
async def _anyio_scope() -> AsyncIterator[None]:
    with anyio.move_on_after(0.06, shield=True):
        yield


@asynccontextmanager
async def _anyio_group() -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        group.cancel_scope.deadline = anyio.current_time() + 0.06
        yield


@asynccontextmanager
async def _failing_group() -> AsyncIterator[None]:
    async def fail() -> None:
        await asyncio.sleep(0.06)
        raise ValueError

    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
        yield


_LIMITS: dict[str, Callable[[], Any]] = {
    "asyncio.timeout": lambda: asyncio.timeout(0.06),
    "in a context manager": asynccontextmanager(_limited),
    "in a stack": _stacked(lambda: asyncio.timeout(0.06)),
    "asyncio.TaskGroup": _failing_group,
    "an anyio scope": _anyio_scope,
    "an anyio group": _anyio_group,
}


@each_row("limit", _LIMITS.values(), _LIMITS)
async def test_limits_that_left_behind_work_has_open_cancel_nobody_who_called_it(
    limit: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.runner.execute.GRACE", 0.02)

    @tool(visible=ALL, timeout=0.01)
    async def f() -> int:
        """Wait within a limit of its own, when it was told to stop."""

        async def cleaned_up() -> None:
            async with limit():
                await asyncio.sleep(0.12)

        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await cleaned_up()
        return 1

    runner = ToolRunner([f])
    before = runner.left_behind
    outcome = await runner.exec(CALL)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.OUTCOME_UNKNOWN
    await until(lambda: runner.left_behind == before)
    await asyncio.sleep(0.06)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_left_behind_work_that_is_stopped_at_once_cleans_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolcrib.runner.execute.GRACE", 0.1)
    cleaned_up = asyncio.Event()

    @tool(visible=ALL, timeout=0.01)
    async def f() -> None:
        """Have a time limit that is due between being left behind and going on there."""
        loop = asyncio.get_running_loop()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        grace_ends = loop.time() + 0.1
        loop.call_at(grace_ends - 0.02, time.sleep, 0.04)  # so that what follows comes in one turn
        loop.call_at(grace_ends + 0.001, time.sleep, 0.1)
        try:
            async with asyncio.timeout_at(grace_ends + 0.06):
                await asyncio.sleep(60)
        except TimeoutError:
            await asyncio.sleep(0)
            cleaned_up.set()

    runner = ToolRunner([f])
    before = runner.left_behind
    outcome = await runner.exec(CALL)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.OUTCOME_UNKNOWN
    await until(lambda: runner.left_behind == before)
    assert cleaned_up.is_set()


@asynccontextmanager
async def _as_async(limit: Any) -> AsyncIterator[None]:
    with limit:
        yield


_OWN_STOPS: dict[str, Callable[[], Any]] = {
    "asyncio.timeout": lambda: asyncio.timeout(0.02),
    "asyncio.TaskGroup": _failing_group,
    "an anyio scope": lambda: _as_async(anyio.move_on_after(0.02)),
}


@each_row("limit", _OWN_STOPS.values(), _OWN_STOPS)
@each_row("end", ["completes", "limit", "cancelled"])
async def test_a_tool_that_stops_itself_for_longer_than_the_grace_cancels_nobody(
    limit: Callable[[], Any], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.runner.execute.GRACE", 0.02)

    @tool(visible=ALL, timeout=0.12 if end == "limit" else 60)
    async def f() -> int:
        """Clean up after a wait that was given up, and ignore who says stop meanwhile."""
        with suppress(TimeoutError, ExceptionGroup):
            async with limit():
                try:
                    await asyncio.sleep(60)
                finally:
                    with anyio.CancelScope(shield=True):
                        await asyncio.shield(asyncio.sleep(0.2))
        return 1

    @tool(visible=ALL, timeout=0.12)
    async def stubborn() -> int:
        """Never clean up in time."""
        async with limit():
            with anyio.CancelScope(shield=True):
                for _ in range(3):
                    with suppress(asyncio.CancelledError):
                        await asyncio.sleep(0.1)
        return 1

    runner = ToolRunner([stubborn if end == "limit" else f])
    before = runner.left_behind
    name = "stubborn" if end == "limit" else "f"
    running = asyncio.ensure_future(runner.exec(ToolCall("call_0", name, "{}")))
    if end == "cancelled":
        await asyncio.sleep(0.12)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        outcome = await running
        assert running.cancelling() == 0
        if end == "completes":
            assert isinstance(outcome, Completed)
        else:
            assert isinstance(outcome, Failed)
            assert outcome.error.code is ErrorCode.OUTCOME_UNKNOWN
    await until(lambda: runner.left_behind == before)


async def test_what_was_left_behind_does_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcrib.runner.execute.GRACE", 0.02)
    stubborn = Stubborn()
    f = tool(visible=ALL, description="It runs.", name="f", timeout=0.02)(
        stubborn.tools()["function"]
    )
    async with AuditLog("sqlite://") as log:
        for replayed in (False, True):
            outcome = await ToolRunner([f], sinks=[log]).exec(CALL)
            assert isinstance(outcome, Failed)
            assert (outcome.error.code, outcome.replayed) == (ErrorCode.OUTCOME_UNKNOWN, replayed)
        assert [entry.record.status for entry in await log.entries()] == ["started", "failed"]
    stubborn.go.set()


@pytest.mark.parametrize("made", [False, True])
async def test_threads_that_are_left_behind_are_counted_and_limited(
    made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, ran = threading.Event(), list[int]()

    def plain() -> int:
        """Block until it is let go."""
        ran.append(1)
        return int(go.wait(30))

    def needs(db: Db) -> int:
        """Block with what is made for the call."""
        return plain() * db.rows()

    f = tool(visible=ALL, description="It runs.", name="f", timeout=0.2)(needs if made else plain)
    catalog = Catalog([f]).bind({Db: per_call(Rows)} if made else {})
    runner = ToolRunner(catalog)
    before = runner.left_behind
    monkeypatch.setattr("toolcrib.runner.call.MOST_LEFT_BEHIND", before + 1)
    first = await runner.exec(CALL)
    assert isinstance(first, Failed)
    assert first.error.code is ErrorCode.OUTCOME_UNKNOWN
    assert runner.left_behind == before + 1
    refused = await runner.exec(ToolCall("call_1", "f", "{}"))
    assert isinstance(refused, Failed)
    assert (refused.error.code, refused.error.retryable) == (ErrorCode.NOT_RUNNABLE, True)
    assert "earlier calls that did not stop are still running" in refused.error.message
    assert ran == [1]
    go.set()
    await until(lambda: runner.left_behind == before)
    assert isinstance(await runner.exec(ToolCall("call_1", "f", "{}")), Completed)


async def test_what_another_runner_left_behind_counts_too() -> None:
    go = threading.Event()

    @tool(visible=ALL, timeout=0.01)
    def f() -> bool:
        """Block until it is let go."""
        return go.wait(30)

    other = ToolRunner([])
    before = other.left_behind
    await ToolRunner([f]).exec(CALL)
    assert other.left_behind == before + 1
    go.set()
    await until(lambda: other.left_behind == before)


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


async def test_a_question_to_a_database_ends_with_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process would have ten minutes."""
    sqlite3.connect(tmp_path / "a.db").execute("CREATE TABLE t (x)").connection.close()
    database = ReadOnlyDatabase(tmp_path / "a.db", DatabaseLimits(seconds=600))
    processes: list[subprocess.Popen[bytes]] = []

    class Spied(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            processes.append(self)

    monkeypatch.setattr(subprocess, "Popen", Spied)
    runner = ToolRunner(Catalog([query_database]).bind({KitDatabase: database}))
    before = runner.left_behind
    call = ToolCall("call_0", "query_database", f'{{"sql": "{ENDLESS}"}}')
    running = asyncio.ensure_future(runner.exec(call))
    await until(lambda: bool(processes))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: runner.left_behind == before)
    assert processes[0].returncode == -9


@pytest.mark.parametrize("ends", ["cancelled", "timeout"])
async def test_a_tool_does_not_begin_when_what_it_is_given_caught_the_end(ends: str) -> None:
    """A factory that opens something for the call catches what was to end the call."""
    done: list[str] = []

    @capability
    class Door(Protocol):
        async def close(self) -> None: ...

    class OpenDoor:
        async def close(self) -> None: ...

    opening = asyncio.Event()

    @asynccontextmanager
    async def opened(_context: object) -> AsyncIterator[OpenDoor]:
        with suppress(asyncio.CancelledError):
            opening.set()
            await asyncio.sleep(60)
        yield OpenDoor()
        done.append("closed")

    @tool(visible=ALL, timeout=0.01 if ends == "timeout" else None)
    async def f(door: Door) -> str:
        """Go through the door."""
        done.append("begun")
        return "through"

    sink = MemorySink()
    runner = ToolRunner(Catalog([f]).bind({Door: per_call(opened)}), sinks=[sink])
    running = asyncio.create_task(runner.exec(CALL))
    await opening.wait()
    if ends == "cancelled":
        running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    (record,) = sink.finished()
    assert record.error is not None
    assert record.error.code == ends
    assert "begun" not in done


CLEANING = 0.3  # seconds: long after whoever cancels once more, on a busy machine, too


class CleansUp:
    """A tool's cleaning up, in some way that waits: it begins when the tool is told to stop."""

    def __init__(self, way: str) -> None:
        self.way, self.told, self.done = way, 0, False
        self.begun, self.cleaning = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> None:
        self.begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.told += 1
            self.cleaning.set()
            try:
                await self._clean()
            except asyncio.CancelledError:
                self.told += 1
                raise
            self.done = True
            raise

    async def _clean(self) -> None:
        ends = time.monotonic() + CLEANING
        match self.way:
            case "sleep":
                await asyncio.sleep(CLEANING)
            case "steps":
                while time.monotonic() < ends:  # noqa: ASYNC110  as a tool may
                    await asyncio.sleep(0)
            case "task":
                await asyncio.ensure_future(asyncio.sleep(CLEANING))
            case "limit":
                async with asyncio.timeout(60):
                    await asyncio.sleep(CLEANING)
            case "limit that is over":
                with suppress(TimeoutError):
                    async with asyncio.timeout(CLEANING):
                        await asyncio.sleep(60)
            case "group that fails":
                with suppress(ExceptionGroup):
                    await failing_group()
                await asyncio.sleep(CLEANING)
            case "call":
                inner = tool(visible=ALL, name="inner", description="Wait.")(self._inner)
                assert isinstance(await ToolRunner([inner]).exec(INNER), Completed)
            case "call that is too long":
                inner = tool(visible=ALL, name="inner", description="Wait.", timeout=CLEANING)(
                    wait_long
                )
                told = await ToolRunner([inner]).exec(INNER)
                assert isinstance(told, Failed)
                assert told.error.code is ErrorCode.TIMEOUT

    async def _inner(self) -> None:
        await asyncio.sleep(CLEANING)


INNER = ToolCall("inner", "inner", "{}")
WAYS = (
    *("sleep", "steps", "task", "limit", "limit that is over", "group that fails"),
    *("call", "call that is too long"),
)
STOPS: list[tuple[float, tuple[float, ...], ErrorCode]] = [
    (60, (0.0,), ErrorCode.CANCELLED),
    (0.03, (0.0,), ErrorCode.CANCELLED),  # the limit is over while it cleans up
    (0.01, (), ErrorCode.TIMEOUT),
    (60, (0.0, 0.03), ErrorCode.CANCELLED),  # whoever asks twice
    (0.03, (0.0, 0.02, 0.05), ErrorCode.CANCELLED),
    (0.01, (0.04,), ErrorCode.TIMEOUT),  # it is cancelled while it cleans up after the limit
    (0.01, (0.04, 0.06), ErrorCode.TIMEOUT),
]


async def wait_long() -> None:
    await asyncio.sleep(60)


@each_row("way", sampled(WAYS, part=2))
@each_row(("limit", "cancels", "code"), STOPS)
async def test_a_tool_is_told_to_stop_once_and_why_first(
    way: str, limit: float, cancels: tuple[float, ...], code: ErrorCode
) -> None:
    clean, sink = CleansUp(way), MemorySink()

    @tool(visible=ALL, timeout=limit)
    async def f() -> None:
        """Clean up in the end."""
        await clean()

    running = asyncio.ensure_future(ToolRunner([f], sinks=[sink]).exec(CALL))
    await clean.begun.wait()
    began = time.monotonic()
    for at in cancels:
        await asyncio.sleep(max(0, began + at - time.monotonic()))
        running.cancel()
    with pytest.raises(asyncio.CancelledError) if cancels else nullcontext():
        await running
    (record,) = sink.records
    assert (clean.told, clean.done) == (1, True)
    assert record.error is not None
    assert record.error.code is code


async def test_a_tool_that_is_told_to_stop_has_the_grace_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolcrib.runner.execute.GRACE", 0.2)
    go, sink = asyncio.Event(), MemorySink()

    @tool(visible=ALL, timeout=0.02)
    async def f() -> None:
        """Go on, whoever says stop."""
        while not go.is_set():
            with suppress(asyncio.CancelledError):
                await go.wait()

    running = asyncio.ensure_future(ToolRunner([f], sinks=[sink]).exec(CALL))
    began = time.monotonic()
    while not running.done():
        await asyncio.sleep(0.05)
        running.cancel()
    assert 0.2 <= time.monotonic() - began < 1
    go.set()
    assert [record.error and record.error.code for record in sink.records] == [
        ErrorCode.OUTCOME_UNKNOWN
    ]


@each_row("asked", ["limit", "cancelled"])
async def test_who_stops_a_tool_while_it_stops_itself_is_heard(asked: str) -> None:
    """Its own timeout is over, it takes that back, and goes on: it is out of time, or cancelled."""
    told: list[str] = []

    @tool(visible=ALL, timeout=0.1 if asked == "limit" else 60)
    async def f() -> None:
        """Give up a wait, and take its time to."""
        async with asyncio.timeout(0.02):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0.2)
        told.append("went on")
        await asyncio.sleep(60)

    began = time.monotonic()
    running = asyncio.ensure_future(ToolRunner([f]).exec(CALL))
    if asked == "cancelled":
        await asyncio.sleep(0.1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        outcome = await running
        assert isinstance(outcome, Failed)
        assert outcome.error.code is ErrorCode.TIMEOUT
    assert told == ["went on"]
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("own", [False, True], ids=["its caller", "a timeout of its own"])
async def test_a_limit_that_was_put_off_by_an_earlier_stop_is_not_noted(
    own: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing blocked the event loop: the limit does not cut a clean-up that somebody else began."""
    begun, sink = asyncio.Event(), MemorySink()

    @tool(visible=ALL, timeout=0.2)
    async def f() -> str:
        """Clean up for longer than the limit, and complete."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0.02 if own else None):
                begun.set()
                try:
                    await asyncio.sleep(30)
                except asyncio.CancelledError:
                    await asyncio.sleep(0.3)
                    if own:
                        raise
        return "ok"

    running = asyncio.ensure_future(ToolRunner([f], sinks=[sink]).exec(CALL))
    await begun.wait()
    if not own:
        running.cancel()
    await asyncio.wait([running])
    assert running.cancelled() is not own
    assert [(record.status, record.notes) for record in sink.records] == [("completed", ())]
    assert caplog.text == ""


async def test_a_clean_up_that_blocks_the_event_loop_past_the_limit_is_noted() -> None:
    begun, sink = asyncio.Event(), MemorySink()

    @tool(visible=ALL, timeout=0.2)
    async def f() -> str:
        """Block the event loop when it is cancelled."""
        begun.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            time.sleep(0.3)  # noqa: ASYNC251  that is the point
        return "ok"

    running = asyncio.ensure_future(ToolRunner([f], sinks=[sink]).exec(CALL))
    await begun.wait()
    running.cancel()
    await asyncio.wait([running])
    assert [record.notes for record in sink.records] == [("over_time_limit",)]
