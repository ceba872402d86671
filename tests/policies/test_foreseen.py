"""What policies know of tools before there is a call: never less lenient than they are at the call."""

from __future__ import annotations

from typing import Any

import pytest
from policies.policy_helpers import call_of, context_of
from rows import each_row

from toolcrib import Allow, Caller, Deny, Hydrated, PolicyContext, ToolDefinition, ToolRunner
from toolcrib.errors import ToolcribError
from toolcrib.policies import (
    ForeseeingPolicy,
    Standard,
    ask,
    budget,
    deny_by_default,
    rate_limit,
    require_roles,
    standard,
)
from toolcrib.runner.policy import Policy, never_allowed
from toolcrib.values.context import RunTally

STAFF = Caller("ada", ("staff",))
SPENT = RunTally(calls=3, cost=2.0, per_tool={"subject": 3}, cost_per_tool={"subject": 2.0})
ROWS: list[tuple[ForeseeingPolicy, dict[str, Any], Caller, bool]] = [
    (standard, {}, STAFF, False),
    (standard, {"safe": False, "threat_level": "high", "requires_approval": True}, STAFF, False),
    (standard, {"allowed_roles": ("staff", "boss")}, STAFF, False),
    (standard, {"allowed_roles": ("boss",)}, STAFF, True),
    (Standard(repaired_reads="allow"), {"allowed_roles": ("boss",)}, STAFF, True),
    (deny_by_default(allow="subject"), {}, STAFF, False),
    (deny_by_default(allow=["other"]), {}, STAFF, True),
    (require_roles("staff"), {}, STAFF, False),
    (require_roles("boss"), {}, STAFF, True),
    (require_roles("boss", only="other"), {}, STAFF, False),
    (budget(calls=4), {}, STAFF, False),
    (budget(calls=3), {}, STAFF, True),
    (budget(calls=3, only="other"), {}, STAFF, False),
    (budget(calls=3, per="tool"), {}, STAFF, True),
    (budget(cost=2.5), {"cost": 0.5}, STAFF, False),
    (budget(cost=2.5), {"cost": 0.6}, STAFF, True),
    (budget(calls=0, per="caller"), {}, STAFF, True),
    (budget(calls=1, per="caller"), {}, STAFF, False),
]


@each_row(("policy", "marks", "caller", "denied"), ROWS)
def test_a_call_is_denied_for_the_reason_that_was_foreseen(
    policy: ForeseeingPolicy, marks: dict[str, Any], caller: Caller, denied: bool
) -> None:
    hydrated, context = call_of(**marks), context_of(SPENT, caller)
    foreseen = policy.never_allows(hydrated.definition, context)
    assert isinstance(policy, ForeseeingPolicy)
    assert (foreseen is not None) is denied
    assert isinstance(policy(hydrated, context), Deny) is denied
    assert foreseen is None or foreseen == policy(hydrated, context)
    assert never_allowed([policy], hydrated.definition, context) == foreseen


@pytest.mark.parametrize("policy", [ask("subject"), rate_limit("1/minute"), lambda *_: Deny("no")])
def test_others_are_asked_at_the_call(policy: Policy) -> None:
    assert never_allowed([policy], call_of().definition, context_of()) is None


class Odd:
    def __init__(self, answer: object) -> None:
        self.answer = answer

    def __call__(self, _hydrated: Hydrated, _context: PolicyContext) -> Allow:
        return Allow()

    def never_allows(self, _definition: ToolDefinition, _context: PolicyContext) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


async def late() -> None:
    """Nobody awaits it."""


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ValueError("canary"), "the policy failed"),
        (True, "the policy gave no decision (a bool)"),
        (Allow(), "the policy gave no decision (an Allow)"),
        (Deny("because"), "because"),
    ],
)
def test_what_fails_to_say_denies(
    answer: object, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = never_allowed([standard, Odd(answer)], call_of().definition, context_of())
    assert found == Deny(reason, "Odd")
    assert ("policy 'Odd' raised ValueError" in caplog.text) is isinstance(answer, ValueError)


def test_one_that_is_async_denies() -> None:
    found = never_allowed([Odd(late())], call_of().definition, context_of())
    assert found == Deny("the policy gave no decision (a coroutine)", "Odd")


def test_a_runner_asks_all_of_its_policies() -> None:
    runner = ToolRunner([], policy=[ask("subject"), deny_by_default(allow="other")])
    assert runner.never_allows(call_of().definition, context_of()) == Deny(
        "it is not on the list", "deny_by_default"
    )


class Later(Odd):
    async def never_allows(self, _definition: ToolDefinition, _context: PolicyContext) -> None:
        """It would hide every tool."""


class Counter(Odd):
    never_allows: Any = 0


@pytest.mark.parametrize("policy", [Later(None), Counter(None)])
def test_one_that_could_say_nothing_is_refused_at_once(policy: Policy) -> None:
    with pytest.raises(ToolcribError, match=r"(Later|Counter): .*`never_allows`"):
        ToolRunner([], policy=policy)
