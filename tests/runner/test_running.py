"""Who may run at the same time: turns, slots, who lends one, and calls that a tool makes itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextvars import Context, ContextVar
from itertools import count
from random import Random
from typing import Any

import pytest
from samples import sample

from toolcrib import ALL, Completed, Failed, ToolCall, ToolRunner, run_sync, tool
from toolcrib.errors import ErrorCode
from toolcrib.runner.running import CALLING, Calling, Limiter, leave_call, slots_lent
from toolcrib.runner.stopped import Stopped
from toolcrib.values.context import RunTally
from toolcrib.values.decision import ApprovalRequest, Approve
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
    entered = Calling(RunTally(), "c", limiter, CALLING.get(), slot=True)
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


def asking_approver(answered: asyncio.Event, asked: asyncio.Event) -> Any:
    async def approver(_request: ApprovalRequest) -> Approve:
        asked.set()
        await answered.wait()
        return Approve("ada")

    return approver


@tool(visible=ALL, requires_approval=True)
async def risky() -> int:
    """Do what somebody is asked about."""
    return 1


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("levels", [1, 2])
async def test_a_tool_lends_its_slot_while_a_person_is_asked(levels: int, exclusive: bool) -> None:
    answered, asked, begun = asyncio.Event(), asyncio.Event(), asyncio.Event()
    inner = ToolRunner([risky], approver=asking_approver(answered, asked), timeout=None)
    if levels == 2:
        middle = caller("risky", lambda: innermost.exec_all([call("risky")]))
        innermost, inner = inner, ToolRunner([middle], concurrency=1, timeout=None)

    async def calls() -> list[Outcome]:
        begun.set()
        for _ in range(3):
            await asyncio.sleep(0)  # others wait by now
        return await inner.exec_all([call("risky")])

    outer = caller("outer", calls, exclusive=exclusive)
    runner = ToolRunner([outer, leaf, alone], concurrency=1, timeout=None)
    waiting = asyncio.ensure_future(runner.exec(call("outer")))
    await ended(begun.wait())
    others = [asyncio.ensure_future(runner.exec(call(name))) for name in ("alone", "leaf", "leaf")]
    await ended(asked.wait())
    for _ in range(20):
        await asyncio.sleep(0)
    # nothing runs beside what runs alone, whichever of the two waits
    assert [each.done() for each in others] == [False, not exclusive, not exclusive]
    answered.set()
    assert (await ended(waiting)).value == ["Completed"]
    assert [type(each) for each in await ended(asyncio.gather(*others))] == [Completed] * 3


async def test_a_slot_is_lent_until_the_last_of_several_questions_is_answered() -> None:
    asked: list[asyncio.Event] = []

    async def approver(_request: ApprovalRequest) -> Approve:
        asked.append(asyncio.Event())
        await asked[-1].wait()
        return Approve("ada")

    inner = ToolRunner([risky], approver=approver, timeout=None)
    outer = caller("outer", lambda: inner.exec_all([call("risky"), call("risky")]))
    runner = ToolRunner([outer, leaf, alone], concurrency=1, timeout=None)
    waiting = asyncio.ensure_future(runner.exec(call("outer")))
    for _ in range(20):
        await asyncio.sleep(0)
    asked[0].set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert isinstance(await ended(runner.exec(call("leaf"))), Completed)
    asked[1].set()
    assert (await ended(waiting)).value == ["Completed"] * 2
    assert isinstance(await ended(runner.exec(call("alone"))), Completed)


@pytest.mark.parametrize("ends", ["over", "cancelled"])
async def test_who_is_at_an_end_waits_for_no_slot_and_keeps_none(ends: str) -> None:
    answered, asked, over, stop = (asyncio.Event() for _ in range(4))
    inner = ToolRunner([risky], approver=asking_approver(answered, asked), timeout=None)
    left: list[asyncio.Task[Outcome]] = []

    @tool(visible=ALL)
    async def outer() -> None:
        """Ask somebody, and do not wait for the answer."""
        left.append(asyncio.ensure_future(inner.exec(call("risky"))))
        await (over.wait() if ends == "over" else left[0])

    @tool(visible=ALL)
    async def busy() -> None:
        """Take the slot."""
        await stop.wait()

    runner = ToolRunner([outer, busy, leaf, alone], concurrency=1, timeout=None)
    asking = asyncio.ensure_future(runner.exec(call("outer")))
    await ended(asked.wait())
    running = asyncio.ensure_future(runner.exec(call("busy")))
    await asyncio.sleep(0)
    if ends == "over":
        over.set()
    else:
        asking.cancel()
    await ended(asyncio.wait([asking]))
    other = asyncio.ensure_future(runner.exec(call("leaf")))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (running.done(), other.done()) == (False, False)
    answered.set()
    await ended(asyncio.wait(left))
    stop.set()
    assert [type(each) for each in await ended(asyncio.gather(running, other))] == [Completed] * 2
    assert isinstance(await ended(runner.exec(call("alone"))), Completed)


@pytest.mark.parametrize("seed", range(sample(500)))
def test_the_slots_are_those_of_calls_that_run_and_do_not_ask(seed: int) -> None:
    random = Random(seed)  # noqa: S311
    limit = random.choice((1, 2, 3))
    limiter, entered = Limiter(limit), list[Calling]()
    alone: Calling | None = None
    for _ in range(60):
        here = [each for each in entered if not each.left]
        one, what = (
            random.choice(entered or [None]),
            random.choice(("enter", "lend", "back", "leave")),
        )
        if what == "enter" or one is None:
            exclusive = random.random() < 0.3
            runs = sum(not each.asking for each in here)
            may = not here if exclusive else alone is None and runs < limit
            assert limiter.try_enter(exclusive) == may
            if may:
                entered.append(Calling(RunTally(), "c", limiter, None, slot=True))
                alone = entered[-1] if exclusive else None
        elif what == "lend":
            limiter.lend(one)  # also what a call has left behind asks
        elif what == "back" and one.asking:
            limiter.take_back(one)
        elif what == "leave" and not one.left:
            one.left = True
            limiter.leave(one)
            alone = None if one is alone else alone


async def test_who_is_to_run_alone_is_overtaken_while_a_slot_is_lent_and_keeps_its_turn() -> None:
    limiter, order = Limiter(2), list[int]()
    assert limiter.try_enter(False)
    lender = Calling(RunTally(), "c", limiter, None, slot=True)

    async def one(number: int, exclusive: bool) -> None:
        await limiter.enter(exclusive)
        order.append(number)
        await asyncio.sleep(0)
        limiter.leave()

    limiter.lend(lender)
    kinds = [True, False, True, False, True]
    tasks = [asyncio.ensure_future(one(number, kind)) for number, kind in enumerate(kinds)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert order == [1, 3]
    limiter.take_back(lender)
    tasks.append(asyncio.ensure_future(one(5, exclusive=False)))  # overtakes nobody any more
    for _ in range(10):
        await asyncio.sleep(0)
    assert order == [1, 3]
    limiter.leave(lender)
    await ended(asyncio.gather(*tasks))
    assert order == [1, 3, 0, 2, 4, 5]


Holder = tuple[str, int, bool]  # of a slot: in which runner, a number, does it run alone


class Turns:
    """Two runners whose tools do what they are told: compute, ask a person, or call a tool of their own
    runner or, those of the first, of the second. Notes who computes in a slot."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.limit = random.choice((1, 2, 3))
        self.computing: set[Holder] = set()
        self.lent: set[Holder] = set()
        self.asked: set[Holder] = set()
        self.holders: ContextVar[tuple[Holder, ...]] = ContextVar("holders", default=())
        self.runners = {name: self._runner(name) for name in "ab"}

    def _runner(self, name: str) -> ToolRunner:
        @tool(visible=ALL)
        async def shared(steps: list[str]) -> int:
            """Do the steps."""
            return await self._work((name, next(IDS), False), steps)

        @tool(visible=ALL, exclusive=True)
        async def alone(steps: list[str]) -> int:
            """Do the steps alone."""
            return await self._work((name, next(IDS), True), steps)

        return ToolRunner([shared, alone], concurrency=self.limit, timeout=None)

    async def _work(self, holder: Holder, steps: list[str]) -> int:
        around = self.holders.get()
        within = any(holder[0] == name for name, _, _ in around)  # then it has no slot of its own
        holders = around if within else (*around, holder)
        token = self.holders.set(holders)
        self._compute(holders)
        try:
            for step in steps:
                if step == "ask":
                    await self._ask(holders)
                elif step == "compute":
                    await asyncio.sleep(0)
                else:
                    await self.exec(step)
                self._check()
        finally:
            self.computing.discard(holder)
            self.holders.reset(token)
        return 1

    async def _ask(self, holders: tuple[Holder, ...]) -> None:
        lent = {each for each in holders if not each[2]}
        self.computing -= lent
        self.lent |= lent
        self.asked |= lent
        try:
            with slots_lent():
                for _ in range(self.random.randrange(6)):
                    await asyncio.sleep(0)
        finally:
            self.lent -= lent
        self._compute(holders)

    def _compute(self, holders: tuple[Holder, ...]) -> None:
        self.computing.update(holders)
        self._check()

    def _check(self) -> None:
        for runner in "ab":
            here = {each for each in self.computing if each[0] == runner}
            assert len(here - self.asked) <= self.limit
            if any(alone for _, _, alone in here):
                assert len(here) == 1
                assert not any(name == runner for name, _, _ in self.lent)

    async def exec(self, runner: str) -> Outcome:
        """Make a call of a tool, at random."""
        ways = ["compute", "ask", "ask", *("ab" if runner == "a" else "b")]
        steps = [self.random.choice(ways) for _ in range(self.random.randrange(4))]
        name = "alone" if self.random.random() < 0.2 else "shared"
        made = ToolCall(f"c{next(IDS)}", name, json.dumps({"steps": steps}))
        return await self.runners[runner].exec(made)


@pytest.mark.parametrize("seed", range(sample(200)))
async def test_no_more_begin_than_may_whoever_asks_and_nothing_stays_taken(seed: int) -> None:
    turns = Turns(Random(seed))  # noqa: S311
    begun = (turns.exec(turns.random.choice("ab")) for _ in range(30))
    running = [asyncio.ensure_future(each) for each in begun]
    for _ in range(turns.random.randrange(6)):
        for _ in range(turns.random.randrange(20)):
            await asyncio.sleep(0)
        turns.random.choice(running).cancel()
    outcomes = await ended(asyncio.gather(*running, return_exceptions=True))
    assert {type(each) for each in outcomes} <= {Completed, Failed, asyncio.CancelledError}
    codes = {each.error.code for each in outcomes if isinstance(each, Failed)}
    assert not codes, codes
    assert not turns.computing
    for runner in turns.runners.values():  # alone: no slot is taken any more
        assert isinstance(
            await ended(runner.exec(ToolCall("last", "alone", '{"steps": []}'))), Completed
        )
