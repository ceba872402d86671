"""Policies that read a list: of tools, or of roles."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from policies.policy_helpers import CANARY, call_of, context_of
from rows import each_row

from toolcrib import ALL, Allow, Ask, Caller, Deny, ToolRunner, tool
from toolcrib.errors import ToolcribError
from toolcrib.policies import Policy, ask, budget, deny_by_default, require_roles

NEEDS_ADMIN = Deny("it needs one of the roles admin, owner", "require_roles")
ADMITS = Allow("the caller has the role, or the tool needs none", "require_roles")
RULES: list[
    tuple[Policy, Allow | Deny | Ask]
] = [  # for a call of `subject` by a caller of the staff
    (deny_by_default(allow=["subject"]), Allow("it is on the list", "deny_by_default")),
    (deny_by_default(allow="subject"), Allow("it is on the list", "deny_by_default")),
    (deny_by_default(allow=["other"]), Deny("it is not on the list", "deny_by_default")),
    (deny_by_default(allow="s"), Deny("it is not on the list", "deny_by_default")),
    (deny_by_default(allow=()), Deny("it is not on the list", "deny_by_default")),
    (require_roles("admin", "staff"), ADMITS),
    (require_roles("admin", "owner"), NEEDS_ADMIN),
    (require_roles("admin", "owner", only=["subject"]), NEEDS_ADMIN),
    (require_roles("admin", "owner", only="other"), ADMITS),
    (require_roles("s"), Deny("it needs one of the roles s", "require_roles")),
    (ask("other", "subject"), Ask("somebody has to say yes to this tool", "ask")),
    (ask("subject", reason="it sends mail"), Ask("it sends mail", "ask")),
    (ask("other"), Allow("it is not on the list", "ask")),
]


@each_row(("policy", "expected"), RULES)
def test_the_rules(policy: Policy, expected: Allow | Deny | Ask) -> None:
    decision = policy(call_of(), context_of(None, Caller("ada", ("staff",))))
    assert decision == expected
    assert CANARY not in repr(decision)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (require_roles, "name a role"),
        (ask, "name a tool"),
        (lambda: deny_by_default(allow=[7]), "names are strings"),  # type: ignore[list-item]
        (lambda: require_roles("a", only=[None]), "names are strings"),  # type: ignore[list-item]
    ],
)
def test_what_is_no_rule_is_refused_at_once(wrong: Callable[[], Policy], message: str) -> None:
    with pytest.raises(ToolcribError, match=message):
        wrong()


@tool(visible=ALL)
def refund(order: int) -> int:
    """Refund an order."""
    return order


@pytest.mark.parametrize(
    ("policy", "warns"),
    [
        (ask("refnd"), True),
        (require_roles("admin", only=["Refund"]), True),
        (budget(calls=1, only=["send_mail", "refunds"]), True),
        (budget(calls=1, only=["refund", "refunds"]), False),  # which another runner may have
        (deny_by_default(allow=["refnd"]), True),
        (ask("refund"), False),
        (ask("send_mail"), False),  # of another runner, it may be
        (require_roles("admin"), False),
    ],
)
def test_a_name_that_is_likely_misspelt_is_logged(
    policy: Policy, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ToolRunner([refund], policy=policy)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == warns
    for text in said:
        assert text.startswith(f"policy '{policy.__name__}' names ")
        assert text.endswith("but this runner has no such tool (did you mean 'refund'?)")
