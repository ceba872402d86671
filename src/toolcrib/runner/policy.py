"""Policies: small functions that say whether a hydrated call may run. The strictest one wins.

A policy that raises denies. Decisions depend on the definition, the arguments, the caller and what
the run has spent; never on what a model or a browser says about itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from toolcrib.errors import ErrorCode
from toolcrib.values.call import Hydrated
from toolcrib.values.context import PolicyContext
from toolcrib.values.decision import Allow, Ask, Decision, Deny

Policy: TypeAlias = Callable[[Hydrated, PolicyContext], Decision]
_DECISIONS = (Allow, Deny, Ask)  # a union would be built anew at each call
_ALLOWED = Allow("nothing about this tool asks for more", "standard")


def decide(policies: Iterable[Policy], hydrated: Hydrated, context: PolicyContext) -> Decision:
    """Deny before ask before allow; the first of the strictest, with the name of its policy."""
    strictest: Decision = _ALLOWED
    for policy in policies:
        try:
            decision = policy(hydrated, context)
        except (Exception, SystemExit):  # noqa: BLE001  whatever a policy raises, it denies
            return Deny("the policy failed", _name(policy))
        if not isinstance(decision, _DECISIONS):
            if inspect.iscoroutine(decision):
                decision.close()  # or Python warns that it was never awaited
            return Deny("the policy gave no decision", _name(policy))
        if not decision.policy:
            decision = msgspec.structs.replace(decision, policy=_name(policy))
        if isinstance(decision, Deny):
            if isinstance(decision.code, ErrorCode):
                return decision
            return msgspec.structs.replace(decision, code=ErrorCode.DENIED)
        if isinstance(decision, Ask) and not isinstance(strictest, Ask):
            strictest = decision
    return strictest


def _name(policy: Policy) -> str:
    return getattr(policy, "__name__", type(policy).__name__)


def standard(hydrated: Hydrated, context: PolicyContext) -> Decision:
    """What every runner applies: roles deny; what is marked risky, unchecked or repaired asks."""
    marks = hydrated.definition.annotations
    if marks.allowed_roles and not set(marks.allowed_roles) & set(context.caller.roles):
        return Deny(f"it needs one of the roles {', '.join(marks.allowed_roles)}", "standard")
    reason = _why_ask(hydrated, context)
    return _ALLOWED if reason is None else Ask(reason, "standard")


def _why_ask(hydrated: Hydrated, context: PolicyContext) -> str | None:
    marks = hydrated.definition.annotations
    if marks.requires_approval:
        return "the tool requires an approval"
    if not marks.safe:
        return "the tool is marked as not safe"
    if marks.threat_level == "high":
        return "the tool's threat level is high"
    mode = hydrated.definition.no_schema_mode
    if mode == "human-approval" or (mode == "read-only" and not marks.read_only):
        return f"its arguments were not checked, and its mode is {mode}"
    if marks.read_only:
        return None
    if hydrated.provenance.repaired:
        return "its arguments were repaired"
    if context.run.tainted:
        return "the run has read untrusted content, and this tool may have side effects"
    return None


def deny_by_default(*, allow: Iterable[str]) -> Policy:
    """Deny all tools but those named."""
    allowed = frozenset([allow] if isinstance(allow, str) else allow)

    def deny_by_default(hydrated: Hydrated, _context: PolicyContext) -> Decision:
        if hydrated.definition.name in allowed:
            return Allow("it is on the list", "deny_by_default")
        return Deny("it is not on the list", "deny_by_default")

    return deny_by_default


def budget(
    *, calls: int | None = None, cost: float | None = None, seconds: float | None = None
) -> Policy:
    """Deny once a run has made so many calls, spent so much or lasted so long."""

    def budget(hydrated: Hydrated, context: PolicyContext) -> Decision:
        run, code = context.run, ErrorCode.BUDGET_EXCEEDED
        if calls is not None and run.calls >= calls:
            return Deny(f"the run has made {calls} calls", "budget", code)
        if cost is not None and run.cost + hydrated.definition.annotations.cost > cost:
            return Deny(f"the run would cost more than {cost}", "budget", code)
        if seconds is not None and run.elapsed >= seconds:
            return Deny(f"the run has lasted {seconds} seconds", "budget", code)
        return Allow("within the budget", "budget")

    return budget


def require_roles(*roles: str) -> Policy:
    """Deny callers that have none of `roles`, whatever the tool."""

    def require_roles(_hydrated: Hydrated, context: PolicyContext) -> Decision:
        if set(roles) & set(context.caller.roles):
            return Allow("the caller has the role", "require_roles")
        return Deny(f"it needs one of the roles {', '.join(roles)}", "require_roles")

    return require_roles
