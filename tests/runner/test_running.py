"""Who may run at the same time: turns, places, and calls that a tool makes itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from itertools import count
from typing import Any

import pytest

from toolcrib import ALL, Completed, Failed, ToolCall, ToolRunner, run_sync, tool
from toolcrib.errors import ErrorCode
from toolcrib.runner.running import CALLING, Calling, Limiter, leave_call
from toolcrib.runner.stopped import Stopped
from toolcrib.values.context import RunTally
from toolcrib.values.record import Outcome

IDS = count()


@tool(visible=ALL)
async def leaf() -> int:
    """Do it."""
    await asyncio.sleep(0)
    return 1


@tool(visible=ALL, exclusive=True)
async def alone() -> int:
    """Do it alone."""
    await asyncio.sleep(0)
    return 1


def call(name: str) -> ToolCall:
    return ToolCall(f"c{next(IDS)}", name, "{}")


async def ended(work: Any) -> Any:
    async with asyncio.timeout(5):
        return await work


def caller(name: str, calls: Callable[[], Any], *, exclusive: bool = False) -> Any:
    """A tool that makes calls: its value is the names of what they ended as."""

    async def calling() -> list[str]:
        outcomes: list[Outcome] = await calls()
        return [str(o.error.code) if isinstance(o, Failed) else type(o).__name__ for o in outcomes]

    return tool(visible=ALL, name=name, description="Call others.", exclusive=exclusive)(calling)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("many", [1, 5])
async def test_a_call_by_a_tool_waits_for_no_place(exclusive: bool, many: int) -> None:
    outer = caller(
        "outer", lambda: runner.exec_all([call("leaf") for _ in range(many)]), exclusive=exclusive
    )
    runner = ToolRunner([outer, leaf], concurrency=1, timeout=None)
    outcomes = await ended(runner.exec_all([call("outer") for _ in range(3)]))
    assert [o.value for o in outcomes] == [["Completed"] * many] * 3
    assert (await ended(runner.exec(call("leaf")))).value == 1


async def test_a_blocking_tool_may_make_calls_in_a_loop_of_its_own() -> None:
    @tool(visible=ALL)
    def outer() -> int:
        """Call another."""
        outcome = run_sync(runner.exec(call("leaf")))
        assert isinstance(outcome, Completed)
        return int(outcome.value)

    runner = ToolRunner([outer, leaf], concurrency=1, timeout=None)
    assert (await ended(runner.exec(call("outer")))).value == 1


async def test_two_runners_may_call_each_other() -> None:
    first_tool = caller("first", lambda: second.exec_all([call("second")]))
    second_tool = caller("second", lambda: first.exec_all([call("leaf")]))
    first = ToolRunner([first_tool, leaf], concurrency=1, timeout=None)
    second = ToolRunner([second_tool], concurrency=1, timeout=None)
    assert (await ended(first.exec(call("first")))).value == ["Completed"]


@pytest.mark.parametrize("exclusive", [False, True])
async def test_what_runs_alone_is_called_by_no_tool(exclusive: bool) -> None:
    outer = caller("outer", lambda: runner.exec_all([call("alone")]), exclusive=exclusive)
    runner = ToolRunner([outer, alone], timeout=None)
    assert (await ended(runner.exec(call("outer")))).value == [ErrorCode.NOT_RUNNABLE]
    assert (await ended(runner.exec(call("alone")))).value == 1


async def test_what_a_tool_leaves_behind_waits_its_turn() -> None:
    left: list[asyncio.Task[Outcome]] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def later() -> Outcome:
        await begun.wait()
        return await runner.exec(call("alone"))

    @tool(visible=ALL)
    async def outer() -> None:
        """Leave something behind."""
        left.append(asyncio.ensure_future(later()))

    @tool(visible=ALL)
    async def busy() -> int:
        """Take a place."""
        begun.set()
        await go_on.wait()
        return 1

    runner = ToolRunner([outer, alone, busy], timeout=None)
    await runner.exec(call("outer"))
    running = asyncio.ensure_future(runner.exec(call("busy")))
    await begun.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not left[0].done()
    go_on.set()
    assert isinstance(await ended(left[0]), Completed)
    assert isinstance(await running, Completed)


@pytest.mark.parametrize("admitted", [False, True])
async def test_a_waiting_call_whose_coroutine_is_closed_gives_its_place_back(
    admitted: bool,
) -> None:
    gate = Limiter(1)
    assert gate.try_enter(False)

    async def other() -> Any:
        return await gate.enter(False)

    waiting = other()
    Context().run(waiting.send, None)
    if admitted:
        gate.leave()
    waiting.close()
    if not admitted:
        gate.leave()
    assert gate.try_enter(True)


async def _waiting(limiter: Limiter, *exclusive: bool) -> list[asyncio.Task[bool]]:
    """Calls that wait for a slot, in this order."""
    waiting = [asyncio.ensure_future(limiter.enter(alone)) for alone in exclusive]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    return waiting


async def _admitted(waiting: list[asyncio.Task[bool]]) -> list[bool]:
    for _ in range(3):
        await asyncio.sleep(0)
    return [task.done() for task in waiting]


async def test_who_waited_holds_a_slot_like_anybody_else() -> None:
    limiter = Limiter(2)
    assert limiter.try_enter(True)
    waiting = await _waiting(limiter, False, False, False, True, False)
    limiter.leave()
    assert await _admitted(waiting) == [True, True, False, False, False]
    limiter.leave()
    assert await _admitted(waiting) == [True, True, True, False, False]
    limiter.leave()
    assert await _admitted(waiting) == [True, True, True, False, False]
    limiter.leave()
    assert await _admitted(waiting) == [True, True, True, True, False]
    assert not limiter.try_enter(False)
    limiter.leave()
    assert await _admitted(waiting) == [True] * 5
    assert limiter.try_enter(False)
    assert not limiter.try_enter(False)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("admitted", [False, True])
async def test_who_is_cancelled_while_waiting_gives_back_no_more_than_it_had(
    admitted: bool, exclusive: bool
) -> None:
    limiter = Limiter(2)
    assert limiter.try_enter(False)
    assert limiter.try_enter(False)
    first, second = await _waiting(limiter, exclusive, False)
    if admitted:
        limiter.leave()
        limiter.leave()
    first.cancel()
    await asyncio.wait([first])
    if not admitted:
        limiter.leave()
    assert await _admitted([first, second]) == [True, True]
    assert first.cancelled()
    assert limiter.try_enter(False) is admitted
    assert not limiter.try_enter(False)


async def test_a_call_whose_loop_is_closed_takes_no_slot() -> None:
    limiter = Limiter(1)
    assert limiter.try_enter(False)
    loop, gone = asyncio.new_event_loop(), []

    async def waits() -> None:
        gone.append(limiter.enter(False))
        gone[0].send(None)

    await asyncio.to_thread(loop.run_until_complete, waits())
    loop.close()
    (waiting,) = await _waiting(limiter, True)
    limiter.leave()
    assert await _admitted([waiting]) == [True]
    with pytest.raises(RuntimeError, match="closed"):
        gone[0].throw(RuntimeError("closed"))
    limiter.leave()
    assert limiter.try_enter(True)


async def test_a_call_within_a_slot_takes_none_that_it_would_give_back() -> None:
    limiter = Limiter(1)
    assert limiter.try_enter(False)
    entered = Calling(RunTally(), "c", limiter, CALLING.get())
    CALLING.set(entered)
    try:
        assert await limiter.enter(False) is False
        with pytest.raises(Stopped) as stopped:
            await limiter.enter(True)
        assert stopped.value.error.message.startswith("The tool runs alone")
    finally:
        leave_call(entered)
    assert not limiter.try_enter(False)
    limiter.leave()
    assert limiter.try_enter(True)
