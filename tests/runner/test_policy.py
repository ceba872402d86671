"""Composition: the strictest decision wins, and whatever a policy does, no call slips through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
from policies.policy_helpers import call_of, context_of, over
from rows import each_row

from toolcrib import (
    ALL,
    Allow,
    Ask,
    Completed,
    Deny,
    ErrorCode,
    Failed,
    Hydrated,
    PolicyContext,
    ToolCall,
    ToolRunner,
    tool,
)
from toolcrib.errors import ToolcribError
from toolcrib.policies import Policy, Standard, require_roles, standard
from toolcrib.runner.policy import count_all, counting, decide, settle_all, with_standard
from toolcrib.values.context import RunTally
from toolcrib.values.decision import Decision
from toolcrib.values.record import ToolInvocationRecord


def allows(_call: Hydrated, _context: PolicyContext) -> Allow:
    return Allow("fine")


def asks(_call: Hydrated, _context: PolicyContext) -> Ask:
    return Ask("hm")


def denies(_call: Hydrated, _context: PolicyContext) -> Deny:
    return Deny("no")


def raises(_call: Hydrated, _context: PolicyContext) -> Allow:
    raise ValueError("what it knows")


def gives_nothing(_call: Hydrated, _context: PolicyContext) -> Any:
    return None


RANKS: dict[Policy, int] = {allows: 0, asks: 1, denies: 2, raises: 2, gives_nothing: 2}
DECISIONS: dict[Policy, Decision] = {
    asks: Ask("hm", "asks"),
    denies: Deny("no", "denies"),
    raises: Deny("the policy failed", "raises"),
    gives_nothing: Deny("the policy gave no decision", "gives_nothing"),
}


@each_row("policies", list(product(RANKS, repeat=3)))
def test_the_first_of_the_strictest_wins(policies: tuple[Policy, ...]) -> None:
    strictest = max(RANKS[policy] for policy in policies)
    first = next(policy for policy in policies if RANKS[policy] == strictest)
    decision = decide(with_standard(policies), call_of(), context_of())
    expected = DECISIONS.get(first) or Allow("nothing about this tool asks for more", "standard")
    assert decision == expected


def test_the_standard_one_asks_first() -> None:
    decision = decide(with_standard(asks), call_of(safe=False), context_of())
    assert decision == Ask("the tool is marked as not safe", "standard")


def test_a_role_check_that_passes_does_not_drop_an_approval() -> None:
    context = context_of()
    admits = require_roles("admin")
    assert decide([standard, admits], call_of(safe=False), context).policy == "require_roles"
    assert isinstance(decide([standard, allows], call_of(safe=False), context), Ask)


def raising(error: BaseException) -> Policy:
    def policy(_call: Hydrated, _context: PolicyContext) -> Allow:
        raise error

    return policy


def giving(value: Any) -> Policy:
    def policy(_call: Hydrated, _context: PolicyContext) -> Any:
        return value() if callable(value) else value

    return policy


async def never_awaited() -> Allow:
    return Allow("later")


NO_DECISIONS: list[tuple[Policy, str]] = [
    (raising(RecursionError()), "the policy failed"),
    (raising(SystemExit(0)), "the policy failed"),
    (raising(asyncio.CancelledError()), "the policy failed"),
    (raising(GeneratorExit()), "the policy failed"),
    (giving(True), "the policy gave no decision"),
    (giving("allow"), "the policy gave no decision"),
    (giving(lambda: Allow), "the policy gave no decision"),
    (giving(never_awaited), "the policy gave no decision"),
    (raising(TypeError("Deny: reason is a str; this is an int")), "the policy failed"),
]


@each_row(("policy", "reason"), NO_DECISIONS)
def test_what_is_no_decision_denies(policy: Policy, reason: str) -> None:
    decision = decide(with_standard(policy), call_of(), context_of())
    assert decision == Deny(reason, "policy", ErrorCode.DENIED)


def test_who_interrupts_the_program_is_heard() -> None:
    with pytest.raises(KeyboardInterrupt):
        decide([raising(KeyboardInterrupt())], call_of(), context_of())


@each_row("code", [*ErrorCode])
def test_a_deny_has_a_code_of_its_stage(code: ErrorCode) -> None:
    decision = decide([giving(Deny("no", "p", code))], call_of(), context_of())
    own = {ErrorCode.DENIED, ErrorCode.BUDGET_EXCEEDED, ErrorCode.RATE_LIMITED}
    expected = code if code in own else ErrorCode.DENIED
    assert decision == Deny("no", "p", expected)


def test_a_reason_can_be_written_down() -> None:
    decision = decide([giving(Ask("a\ud800b"))], call_of(), context_of())
    assert decision == Ask("a?b", "policy")


class Named:
    def __call__(self, _call: Hydrated, _context: PolicyContext) -> Deny:
        return Deny("no")


NAMES: list[tuple[Any, str]] = [
    (denies, "denies"),
    (partial(lambda _extra, call, context: denies(call, context), 1), "<lambda>"),
    (Named(), "Named"),
    (Named().__call__, "__call__"),
    (giving(Deny("no", "its own name")), "its own name"),
]


@each_row(("policy", "name"), NAMES)
def test_every_decision_says_which_policy_made_it(policy: Policy, name: str) -> None:
    assert decide([policy], call_of(), context_of()).policy == name


class TestWithStandard:
    def test_it_is_always_there_and_always_first(self) -> None:
        assert with_standard(()) == (standard,)
        assert with_standard(denies) == (standard, denies)
        assert with_standard([denies, standard, asks]) == (standard, denies, asks)

    def test_another_one_takes_its_place(self) -> None:
        other = Standard("allow")
        assert with_standard(other) == (other,)
        assert with_standard([denies, other]) == (other, denies)

    @each_row("wrong", ["deny", None, Deny("no"), Standard, Named])
    def test_what_is_no_policy_is_refused_at_once(self, wrong: Any) -> None:
        with pytest.raises(ToolcribError, match="a policy is called as"):
            with_standard([wrong])

    def test_there_are_no_two_of_them(self) -> None:
        with pytest.raises(ToolcribError, match="at most one Standard"):
            with_standard([Standard("allow"), standard])


class Counter:
    """Counts, and says what it was told."""

    def __init__(self, answer: Callable[[], Any] = lambda: None) -> None:
        self.told: list[str] = []
        self._answer = answer

    def __call__(self, _call: Hydrated, _context: PolicyContext) -> Allow:
        return Allow("so far")

    def count(self, call: Hydrated, _context: PolicyContext) -> Deny | None:
        self.told.append(f"counts {call.definition.name}")
        answer: Deny | None = self._answer()
        return answer

    def settle(self, _record: ToolInvocationRecord, _context: PolicyContext) -> None:
        self.told.append(f"settles {_record.name}")
        self._answer()


class TestCounting:
    def test_only_those_that_count_are_told(self) -> None:
        counter = Counter()
        assert list(counting((standard, denies, counter))) == [counter]

    def test_half_a_counting_policy_would_count_nothing(self) -> None:
        def forgot(_call: Hydrated, _context: PolicyContext) -> Allow:
            return Allow()

        forgot.count = lambda *_: None  # type: ignore[attr-defined]
        with pytest.raises(ToolcribError, match="forgot: a policy that counts has"):
            counting((standard, forgot))

    def test_an_async_one_would_count_nothing_either(self) -> None:
        class Late(Counter):
            async def settle(  # type: ignore[override]
                self, record: ToolInvocationRecord, context: PolicyContext
            ) -> None: ...

        with pytest.raises(
            ToolcribError, match=r"Late: a policy that counts has .* neither is async"
        ):
            counting((Late(),))

    @each_row(
        ("answer", "expected"),
        [
            (lambda: None, None),
            (lambda: Deny("late", "own"), Deny("late", "own")),
            (lambda: Deny("late", code=ErrorCode.RATE_LIMITED), "late"),
            (lambda: 1 / 0, "the policy failed to count the call"),
            (lambda: 1, "the policy gave no decision"),
            (Allow, "the policy gave no decision"),
            (never_awaited, "the policy gave no decision"),
        ],
    )
    def test_what_a_count_may_say(self, answer: Callable[[], Any], expected: Any) -> None:
        before, after = Counter(), Counter()
        refused = count_all((before, Counter(answer), after), call_of(), context_of())
        if isinstance(expected, str):
            assert isinstance(refused, Deny)
            assert (refused.reason, refused.policy) == (expected, "Counter")
        else:
            assert refused == expected
        assert before.told == ["counts subject", *(["settles subject"] if expected else [])]
        assert after.told == (["counts subject"] if expected is None else [])

    @pytest.mark.parametrize("error", [ValueError(), SystemExit(), asyncio.CancelledError()])
    def test_what_settling_raises_is_dropped_and_the_others_are_told(
        self, error: BaseException
    ) -> None:
        def fails() -> None:
            raise error

        after, tally = Counter(), RunTally()
        settle_all((Counter(fails), after), over("subject", 1.5), context_of(tally))
        settle_all((), over("subject", 0.5), context_of(tally))
        assert after.told == ["settles subject"]
        assert tally.seconds_per_tool == {"subject": 2.0}


@tool(visible=ALL)
async def spend(fail: bool = False) -> str:
    """Spend."""
    if fail:
        raise ValueError
    return "spent"


async def test_a_runner_tells_each_call_that_runs_to_those_that_count() -> None:
    counter = Counter()
    runner = ToolRunner([spend], policy=counter)
    for arguments in ("{}", '{"fail": true}', '{"nonsense": 1}'):
        await runner.exec(ToolCall(f"c{len(arguments)}", "spend", arguments))
    assert counter.told == ["counts spend", "settles spend"] * 2


async def test_one_that_cannot_count_keeps_the_call_from_running() -> None:
    outcome = await ToolRunner([spend], policy=Counter(lambda: 1 / 0)).exec(
        ToolCall("c", "spend", "{}")
    )
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.DENIED
    assert outcome.record.decision == Deny("the policy failed to count the call", "Counter")


async def test_one_that_cannot_settle_does_not_lose_the_outcome() -> None:
    class Careless(Counter):
        def settle(self, _record: ToolInvocationRecord, _context: PolicyContext) -> None:
            raise ValueError

    counter = Careless()
    outcome = await ToolRunner([spend], policy=counter).exec(ToolCall("c", "spend", "{}"))
    assert isinstance(outcome, Completed)
