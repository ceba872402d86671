"""Ready-made policies that read a list: of tools, or of roles. They keep nothing and count nothing."""

from __future__ import annotations

from collections.abc import Iterable

from toolcrib.errors import ToolcribError
from toolcrib.runner.policy import Policy
from toolcrib.values.call import Hydrated
from toolcrib.values.context import PolicyContext
from toolcrib.values.decision import Allow, Ask, Decision, Deny


def names_of(given: str | Iterable[str], what: str) -> frozenset[str]:
    """A string is one name, not its letters. Raises ToolcribError for what are no names."""
    if isinstance(given, str):
        return frozenset([given])
    names = frozenset(given)
    if not all(isinstance(name, str) for name in names):
        raise ToolcribError(f"{what}: names are strings")
    return names


def deny_by_default(*, allow: str | Iterable[str]) -> Policy:
    """Deny all tools but those named."""
    allowed = names_of(allow, "deny_by_default(allow=…)")
    allows = Allow("it is on the list", "deny_by_default")
    denies = Deny("it is not on the list", "deny_by_default")

    def deny_by_default(hydrated: Hydrated, _context: PolicyContext) -> Decision:
        return allows if hydrated.definition.name in allowed else denies

    return deny_by_default


def require_roles(*roles: str, only: str | Iterable[str] = ()) -> Policy:
    """Deny callers that have none of `roles`; all tools, or those that `only` names.

    Raises ToolcribError without a role.
    """
    required, named = names_of(roles, "require_roles"), names_of(only, "require_roles(only=…)")
    if not required:
        raise ToolcribError("require_roles: name a role")
    allows = Allow("the caller has the role, or the tool needs none", "require_roles")
    denies = Deny(f"it needs one of the roles {', '.join(roles)}", "require_roles")

    def require_roles(hydrated: Hydrated, context: PolicyContext) -> Decision:
        if named and hydrated.definition.name not in named:
            return allows
        return allows if required.intersection(context.caller.roles) else denies

    return require_roles


def ask(*tools: str, reason: str = "somebody has to say yes to this tool") -> Policy:
    """Ask before the tools named run, whatever their authors say of them.

    Raises ToolcribError without a tool.
    """
    named = names_of(tools, "ask")
    if not named:
        raise ToolcribError("ask: name a tool")
    allows, asks = Allow("it is not on the list", "ask"), Ask(reason, "ask")

    def ask(hydrated: Hydrated, _context: PolicyContext) -> Decision:
        return asks if hydrated.definition.name in named else allows

    return ask
