"""Ready-made policies that read a list: of tools, or of roles. They keep nothing and count nothing."""

from __future__ import annotations

from collections.abc import Iterable

from toolcrib.errors import ToolcribError
from toolcrib.runner.policy import ForeseeingPolicy, Policy
from toolcrib.values.call import Hydrated
from toolcrib.values.context import PolicyContext
from toolcrib.values.decision import Allow, Ask, Decision, Deny
from toolcrib.values.definition import ToolDefinition


def names_of(given: str | Iterable[str], what: str) -> frozenset[str]:
    """Return names as a set; a string is one name. Raises ToolcribError for what are no names."""
    if isinstance(given, str):
        return frozenset([given])
    names = tuple(given) if isinstance(given, Iterable) else ()
    if not isinstance(given, Iterable) or not all(isinstance(name, str) for name in names):
        raise ToolcribError(f"{what}: names are strings")
    return frozenset(names)


def deny_by_default(*, allow: str | Iterable[str]) -> ForeseeingPolicy:
    """Deny all tools but those named."""
    return _OnTheList(names_of(allow, "deny_by_default(allow=…)"))


class _OnTheList:
    __name__ = "deny_by_default"

    def __init__(self, allowed: frozenset[str]) -> None:
        self._allowed = allowed
        self._allows = Allow("it is on the list", self.__name__)
        self._denies = Deny("it is not on the list", self.__name__)

    def __call__(self, hydrated: Hydrated, context: PolicyContext) -> Decision:
        return self.never_allows(hydrated.definition, context) or self._allows

    def never_allows(self, definition: ToolDefinition, _context: PolicyContext) -> Deny | None:
        return None if definition.name in self._allowed else self._denies


def require_roles(*roles: str, only: str | Iterable[str] = ()) -> ForeseeingPolicy:
    """Deny callers that have none of `roles`; all tools, or those that `only` names.

    Raises ToolcribError without a role.
    """
    required, named = names_of(roles, "require_roles"), names_of(only, "require_roles(only=…)")
    if not required:
        raise ToolcribError("require_roles: name a role")
    return _Roles(roles, named)


class _Roles:
    __name__ = "require_roles"

    def __init__(self, roles: tuple[str, ...], named: frozenset[str]) -> None:
        self._roles = frozenset(roles)
        self._named = named
        self._allows = Allow("the caller has the role, or the tool needs none", self.__name__)
        self._denies = Deny(f"it needs one of the roles {', '.join(roles)}", self.__name__)

    def __call__(self, hydrated: Hydrated, context: PolicyContext) -> Decision:
        return self.never_allows(hydrated.definition, context) or self._allows

    def never_allows(self, definition: ToolDefinition, context: PolicyContext) -> Deny | None:
        if self._named and definition.name not in self._named:
            return None
        return self._denies if self._roles.isdisjoint(context.caller.roles) else None


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
