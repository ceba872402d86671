"""Who may be a candidate at all: decided from what a definition says, before any scorer sees a tool.

Rule: a filter never guesses. What was not given excludes nobody, and a tool that is left out is told
every reason, not the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import isnan
from typing import TypeAlias

import msgspec

from toolcrib.errors import PickError, ToolcribError
from toolcrib.values.definition import ToolDefinition

Quota: TypeAlias = Mapping[str, float | None] | Callable[[str], float | None]
"""Calls left of the tool of a name; None, or no entry, for as many as one likes.

Of a large catalog give a mapping, which costs nothing for a tool that is not in it.
"""


class Excluded(msgspec.Struct, frozen=True):
    """A tool that was not scored, by name, and why."""

    tool: str
    reason: str


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool must be. Two that are equal leave the same tools of a catalog.

    `roles` are the caller's, None where nobody asks for them; a tool needs all of `features`, none of
    `without_features`, and one of `tags` if there are any. `used_up` are names of tools of whose
    quota nothing is left.
    """

    allow_unsafe: bool = False
    roles: frozenset[str] | None = None
    features: frozenset[str] = frozenset()
    without_features: frozenset[str] = frozenset()
    max_cost: float | None = None
    tags: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    without: frozenset[str] = frozenset()
    used_up: frozenset[str] = frozenset()

    def checks(self) -> tuple[Check, ...]:
        """What there is to check of each tool: a reason from one of these leaves it out."""
        return tuple(
            partial(check, self)
            for field, check in _CHECKS.items()
            if getattr(self, field) != getattr(_EVERYTHING, field)
        )


Check: TypeAlias = Callable[[ToolDefinition], str | None]
_EVERYTHING = Filters(allow_unsafe=True)


def exclusion(checks: tuple[Check, ...], definition: ToolDefinition) -> str | None:
    """Why this tool may not be picked, every reason; None where it may."""
    reasons = [reason for check in checks if (reason := check(definition)) is not None]
    return "; ".join(reasons) if reasons else None


def _only(filters: Filters, definition: ToolDefinition) -> str | None:
    return None if definition.name in (filters.only or ()) else "it is not among `only`"


def _without(filters: Filters, definition: ToolDefinition) -> str | None:
    return "it is among `without`" if definition.name in filters.without else None


def _used_up(filters: Filters, definition: ToolDefinition) -> str | None:
    return "its quota is used up" if definition.name in filters.used_up else None


def _unsafe(_: Filters, definition: ToolDefinition) -> str | None:
    safe = definition.annotations.safe
    return None if safe else "it is marked unsafe and allow_unsafe is off"


def _roles(filters: Filters, definition: ToolDefinition) -> str | None:
    needed = definition.annotations.allowed_roles
    if not needed or not (filters.roles or frozenset()).isdisjoint(needed):
        return None
    return f"it needs one of the roles {', '.join(needed)}"


def _features(filters: Filters, definition: ToolDefinition) -> str | None:
    missing = filters.features.difference(definition.annotations.features)
    return f"it lacks {', '.join(sorted(missing))}" if missing else None


def _without_features(filters: Filters, definition: ToolDefinition) -> str | None:
    unwanted = filters.without_features.intersection(definition.annotations.features)
    return f"it has {', '.join(sorted(unwanted))}" if unwanted else None


def _max_cost(filters: Filters, definition: ToolDefinition) -> str | None:
    cost, most = definition.annotations.cost, filters.max_cost
    if most is None or cost <= most:
        return None
    return f"it costs {cost:g}, more than {most:g}"


def _tags(filters: Filters, definition: ToolDefinition) -> str | None:
    if not filters.tags.isdisjoint(definition.tags):
        return None
    return f"it has none of the tags {', '.join(sorted(filters.tags))}"


_CHECKS: dict[str, Callable[[Filters, ToolDefinition], str | None]] = {
    "only": _only,
    "without": _without,
    "used_up": _used_up,
    "allow_unsafe": _unsafe,
    "roles": _roles,
    "features": _features,
    "without_features": _without_features,
    "max_cost": _max_cost,
    "tags": _tags,
}
"""By the field that turns each on, in the order in which reasons are given."""


def used_up(quota: Quota, names: Iterable[str]) -> frozenset[str]:
    """Of a mapping its names, of a function those of `names` that have no call left.

    Raises PickError for what is no number, and for a function that raises.
    """
    if isinstance(quota, Mapping):
        return frozenset([name for name, left in _entries(quota) if _is_used_up(name, left)])
    return frozenset([name for name in names if _is_used_up(name, _asked(quota, name))])


def _entries(quota: Mapping[str, float | None]) -> list[tuple[str, float | None]]:
    """All at once, as another thread may change it meanwhile."""
    try:
        return [*quota.items()]
    except ToolcribError:
        raise
    except Exception as error:
        raise PickError(f"quota raised {type(error).__name__}") from error


def _asked(quota: Callable[[str], float | None], name: str) -> float | None:
    try:
        return quota(name)
    except ToolcribError:
        raise
    except Exception as error:
        raise PickError(f"quota raised {type(error).__name__} for tool {name!r}") from error


def _is_used_up(name: str, left: object) -> bool:
    if left is None:
        return False
    if isinstance(left, bool) or not isinstance(left, int | float) or isnan(left):
        raise PickError(f"quota gave {left!r} for tool {name!r}, not a number of calls or None")
    return left <= 0
