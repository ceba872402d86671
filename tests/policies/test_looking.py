"""Policies that look something up: in time or denied, beside those that decide at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policies.policy_helpers import call_of, context_of
from rows import each_row

from toolcrib import (
    ALL,
    Allow,
    Approve,
    Ask,
    Deny,
    Hydrated,
    PolicyContext,
    ToolCall,
    ToolRunner,
    tool,
)
from toolcrib.errors import ErrorCode, ToolcribError
from toolcrib.policies import budget
from toolcrib.runner.policy import decide, look_up
from toolcrib.values.decision import ApprovalRequest, Decision

ran: list[str] = []


@tool(visible=ALL)
async def note(text: str) -> str:
    """Note it."""
    ran.append(text)
    return text


CALL = ToolCall("c", "note", '{"text": "a"}')


async def frozen(_call: Hydrated, _context: PolicyContext) -> Deny:
    await asyncio.sleep(0)
    return Deny("it is frozen")


class Desk:
    """An object whose `__call__` is async."""

    def __init__(self, decision: Decision) -> None:
        self.decision, self.asked = decision, 0

    async def __call__(self, _call: Hydrated, _context: PolicyContext) -> Decision:
        self.asked += 1
        await asyncio.sleep(0)
        return self.decision

    def never_allows(self, *_: object) -> Deny | None:
        return Deny("never") if isinstance(self.decision, Deny) else None


async def raising(_call: Hydrated, _context: PolicyContext, error: BaseException) -> Allow:
    raise error


async def hanging(_call: Hydrated, _context: PolicyContext) -> Allow:
    await asyncio.sleep(3600)
    return Allow()


async def deaf(_call: Hydrated, _context: PolicyContext) -> Allow:
    """Swallows that it is told to stop, for a while, and allows then."""
    for _ in range(3):
        try:
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            continue
    return Allow()


async def nothing(_call: Hydrated, _context: PolicyContext) -> Any:
    return True


async def decision_of(*policies: Any, **options: Any) -> Decision | None:
    ran.clear()
    outcome = await ToolRunner([note], policy=policies, **options).exec(CALL)
    assert bool(ran) is isinstance(outcome.record.decision, Allow)
    return outcome.record.decision


LATE = "the policy did not decide within 0.01 seconds"


@each_row(
    ("policy", "reason"),
    [
        (frozen, Deny("it is frozen", "frozen")),
        (Desk(Deny("no")), Deny("no", "Desk")),
        (partial(raising, error=ValueError("secret")), Deny("the policy failed", "raising")),
        (partial(raising, error=SystemExit(0)), Deny("the policy failed", "raising")),
        (partial(raising, error=asyncio.CancelledError()), Deny("the policy failed", "raising")),
        (hanging, Deny(LATE, "hanging")),
        (deaf, Deny(LATE, "deaf")),
        (nothing, Deny("the policy gave no decision (a bool)", "nothing")),
    ],
)
async def test_one_that_denies_fails_or_is_late_lets_nothing_run(policy: Any, reason: Deny) -> None:
    assert await decision_of(policy, policy_seconds=0.01 if LATE in reason.reason else 5) == reason


async def test_a_plain_function_that_returns_something_to_await_gives_no_decision() -> None:
    def later(call: Hydrated, context: PolicyContext) -> object:
        return frozen(call, context)

    assert await decision_of(later) == Deny("the policy gave no decision (a coroutine)", "later")


async def test_it_is_not_asked_where_another_one_denies() -> None:
    desk = Desk(Allow())
    assert isinstance(await decision_of(budget(calls=0), desk), Deny)
    assert desk.asked == 0


async def test_what_an_allowance_leaves_is_asked_after_it_has_looked() -> None:
    """Two calls look at the same time; one of them takes the last allowance."""
    runner = ToolRunner([note], policy=[Desk(Allow()), budget(calls=1, per="caller")])
    calls = [ToolCall(f"c{n}", "note", '{"text": "a"}') for n in range(5)]
    outcomes = await runner.exec_all(calls)
    assert sorted(outcome.record.status for outcome in outcomes) == ["completed", *["failed"] * 4]


async def test_it_is_asked_again_about_what_somebody_approved() -> None:
    seen: list[object] = []

    async def small(call: Hydrated, _context: PolicyContext) -> Decision:
        seen.append(call.arguments["text"])
        return Deny("too long") if call.arguments["text"] == "long" else Ask("it is said aloud")

    async def desk(_request: ApprovalRequest) -> Approve:
        return Approve("ada", {"text": "long"})

    runner = ToolRunner([note], policy=small, approver=desk)
    outcome = await runner.exec(CALL)
    assert outcome.record.decision == Deny("too long", "small")
    assert seen == ["a", "long"]


async def test_what_knows_beforehand_is_asked_without_looking() -> None:
    desk = Desk(Deny("no"))
    runner = ToolRunner([note], policy=desk)
    assert runner.never_allows(note.definition, context_of()) == Deny("never", "Desk")
    assert ToolRunner([note], policy=frozen).never_allows(note.definition, context_of()) is None
    assert desk.asked == 0


async def test_who_is_cancelled_while_it_looks_is_cancelled() -> None:
    begun = asyncio.Event()
    stopped: list[bool] = []

    async def waits(_call: Hydrated, _context: PolicyContext) -> Allow:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.append(True)
        return Allow()

    task = asyncio.ensure_future(ToolRunner([note], policy=waits).exec(CALL))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert stopped == [True]


@each_row("seconds", [0, -1, True, "1"])
def test_the_time_limit_is_a_number_of_seconds(seconds: Any) -> None:
    with pytest.raises(ToolcribError, match="policy_seconds is a number of seconds above 0"):
        ToolRunner([note], policy_seconds=seconds)


DECISIONS: list[Callable[[str], Decision]] = [Allow, Ask, Deny]


@given(st.lists(st.tuples(st.sampled_from(DECISIONS), st.booleans()), max_size=6))
def test_the_strictest_wins_whoever_looked_it_up(
    given: list[tuple[Callable[[str], Decision], bool]],
) -> None:
    def at_once(decision: Decision) -> Any:
        return lambda _call, _context: decision

    made = [(make(f"{n}"), looks) for n, (make, looks) in enumerate(given)]
    plain = [at_once(decision) for decision, looks in made if not looks]
    looking = [Desk(decision) for decision, looks in made if looks]
    order = [d for d, looks in made if not looks] + [d for d, looks in made if looks]
    looked = asyncio.run(look_up(looking, call_of(), context_of(), 5)) if looking else []
    decision = decide(plain, call_of(), context_of(), looked)
    strictest = next((d for kind in (Deny, Ask) for d in order if isinstance(d, kind)), Allow())
    assert type(decision) is type(strictest)
    assert isinstance(decision, Allow) or decision.reason == strictest.reason
    assert not isinstance(decision, Deny) or decision.code is ErrorCode.DENIED


class AtMost:
    """Looks something up, and lets so many calls run at a time: `count` says who came first."""

    def __init__(self, most: int) -> None:
        self.free = most

    async def __call__(self, _call: Hydrated, _context: PolicyContext) -> Allow:
        await asyncio.sleep(0.01)
        return Allow()

    def count(self, _call: Hydrated, _context: PolicyContext) -> Deny | None:
        if self.free == 0:
            return Deny("enough are running")
        self.free -= 1
        return None

    def settle(self, _record: object, _context: PolicyContext) -> None:
        self.free += 1


async def test_one_that_counts_judges_when_it_counts() -> None:
    """All of them are asked before the first one is counted."""

    @tool(visible=ALL)
    async def slow(at: int) -> int:
        """Take its time."""
        await asyncio.sleep(0.05)
        return at

    runner = ToolRunner([slow], policy=AtMost(2))
    calls = [ToolCall(f"c{at}", "slow", f'{{"at": {at}}}') for at in range(5)]
    outcomes = await runner.exec_all(calls)
    ended = [outcome.record.status for outcome in outcomes]
    assert sorted(ended) == ["completed"] * 2 + ["failed"] * 3
