"""`PickOptions`: how to pick, checked when it is made; the filters and the scorers that it names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, partial
from math import isnan
from sys import float_info
from typing import Any, TypeAlias

import msgspec

from toolcrib.errors import (
    MissingExtraError,
    PickError,
    ToolcribError,
    no_such,
)
from toolcrib.pick.embedding import EmbeddingScorer
from toolcrib.pick.hybrid import Light
from toolcrib.pick.keyword import KeywordScorer
from toolcrib.pick.rerank import Rerank
from toolcrib.pick.scorer import Ranker, Scorer
from toolcrib.values.definition import ToolDefinition

# Who may be a candidate at all: decided from what a definition says, before any scorer sees a tool.
#
# Rule: a filter never guesses. What was not given excludes nobody, and a tool that is left out is told
# every reason, not the first one.

Quota: TypeAlias = Mapping[str, float | None] | Callable[[str], float | None]
"""Calls left of the tool of a name; None, or no entry, for as many as one likes.

Of a large catalog give a mapping, which costs nothing for a tool that is not in it.
"""


class Excluded(msgspec.Struct, frozen=True):
    """A tool that was not scored, by name, and why."""

    tool: str
    reason: str


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Say what a tool must be. Two filters that are equal leave the same tools of a catalog.

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
        """Return what there is to check of each tool: a reason from one of these leaves it out."""
        return tuple(
            partial(check, self)
            for field, check in _CHECKS.items()
            if getattr(self, field) != getattr(_EVERYTHING, field)
        )


Check: TypeAlias = Callable[[ToolDefinition], str | None]
_EVERYTHING = Filters(allow_unsafe=True)


def exclusion(checks: tuple[Check, ...], definition: ToolDefinition) -> str | None:
    """Return why this tool may not be picked, every reason; None where it may."""
    reasons = [reason for check in checks if (reason := check(definition)) is not None]
    return "; ".join(reasons) if reasons else None


def _only(filters: Filters, definition: ToolDefinition) -> str | None:
    return None if definition.name in (filters.only or ()) else "it is not among `only`"


def _excluded(filters: Filters, definition: ToolDefinition) -> str | None:
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
    "without": _excluded,
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
    """Return the names in a mapping; of a function, those of `names` that have no call left.

    Raises PickError for what is no number, and for a function that raises.
    """
    if isinstance(quota, Mapping):
        return frozenset([name for name, left in _entries(quota) if _is_used_up(name, left)])
    return frozenset([name for name in names if _is_used_up(name, _asked(quota, name))])


def _entries(quota: Mapping[str, float | None]) -> list[tuple[str, float | None]]:
    """Return all at once, as another thread may change it meanwhile."""
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


# Scorers by name, as `PickOptions(scorer="…")` and the command line take them.
#
# Rule: one instance a name and process, so that what it derived from a catalog outlives the call.


def _auto() -> Ranker:
    """Return the best that is installed, under its own name."""
    for name in ("rerank", "light"):
        try:
            return scorer_named(name)
        except MissingExtraError:
            continue
    return scorer_named("keyword")


SCORERS: dict[str, Callable[[], Ranker]] = {
    "keyword": KeywordScorer,
    "embedding": EmbeddingScorer,
    "light": Light,
    "rerank": Rerank,
    "auto": _auto,
}
"""What a name stands for, the default first."""

DEFAULT_SCORER = next(iter(SCORERS))


@cache
def scorer_named(name: str) -> Ranker:
    """Return the shared scorer of that name; "auto" is "rerank", "light" or
    "keyword", the best installed.

    Raises PickError for another name, MissingExtraError for one that needs what is not installed.
    """
    if name not in SCORERS:
        raise PickError(no_such("scorer", name, SCORERS))
    return SCORERS[name]()


class PickOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Say how to pick: at most `max_candidates` tools, of a score in 0..1 that is at least `min_score`.

    `timeout_ms`, in milliseconds, bounds the scoring (an index to be built included).
    `scorer` is the name of one that is ready-made (`SCORERS`; None is the first of them), a `Ranker`,
    a `BatchScorer`, or a function `(input, tool)` that gives a `Score` or a float, sync or async.
    `debug` adds to each result's provenance the tools that no scorer saw.

    What is not scored at all: tools marked unsafe unless `allow_unsafe`; with `roles` (the caller's)
    those that are for other roles; tools that lack one of `features` or have one of
    `without_features`, such as "streaming"; tools whose cost is above `max_cost`; with `tags` those
    that have none of them; all but `only`, and those `without` names; and tools of which `quota` says
    that no call is left. Left out, each of these excludes nothing.

    `quota` gives the calls left by tool name, at every pick: as a mapping, or a function, which is
    asked about each tool that nothing else leaves out, on the event loop and within no time limit.

    Raises PickError for a value of another type or out of range.
    """

    max_candidates: int = 3
    min_score: float = 0.05
    allow_unsafe: bool = False
    scorer: Scorer | str | None = None
    timeout_ms: float | None = None
    debug: bool = False
    roles: Collection[str] | None = None
    features: Collection[str] = ()
    without_features: Collection[str] = ()
    max_cost: float | None = None
    tags: Collection[str] = ()
    only: Collection[str] | None = None
    without: Collection[str] = ()
    quota: Quota | None = None

    def __post_init__(self) -> None:
        if not _is_number(self.max_candidates, int) or self.max_candidates < 1:
            raise PickError(f"max_candidates must be an int from 1, not {self.max_candidates!r}")
        if not _is_number(self.min_score, float) or not 0 <= self.min_score <= 1:
            raise PickError(f"min_score must be in 0..1, not {self.min_score!r}")
        for name in ("allow_unsafe", "debug"):
            if not isinstance(getattr(self, name), bool):  # "no" is true
                raise PickError(f"{name} must be True or False, not {getattr(self, name)!r}")
        limit = self.timeout_ms
        if limit is not None and not (_is_number(limit, float) and 0 < limit <= float_info.max):
            raise PickError(f"timeout_ms must be above 0, or None for no limit, not {limit!r}")
        cost = self.max_cost
        if cost is not None and not (_is_number(cost, float) and cost >= 0):
            raise PickError(f"max_cost must be from 0, or None for any, not {cost!r}")
        if not (self.quota is None or callable(self.quota) or isinstance(self.quota, Mapping)):
            raise PickError(f"quota must be a mapping or a function, not {self.quota!r}")
        _check_scorer(self.scorer)
        for name in _NAMES:
            given = getattr(self, name)
            if given is not None or name not in _OPTIONAL:  # a copy: a list would not stay as it is
                msgspec.structs.force_setattr(self, name, _names(name, given))

    def chosen_scorer(self) -> Scorer:
        """Return the scorer itself. Raises MissingExtraError for one that
        needs what is not installed."""
        if self.scorer is None:
            return scorer_named(DEFAULT_SCORER)
        return scorer_named(self.scorer) if isinstance(self.scorer, str) else self.scorer

    def filters(self) -> Filters:
        """Return what decides who is scored, but for the quota, which is another one at every pick."""
        return Filters(
            allow_unsafe=self.allow_unsafe,
            max_cost=self.max_cost,
            **{name: _as_set(getattr(self, name)) for name in _NAMES},
        )


_NAMES = ("roles", "features", "without_features", "tags", "only", "without")
"""The options that are names, in `PickOptions` and in `Filters` alike."""
_OPTIONAL = ("roles", "only")


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, (int, kind)) and not isinstance(value, bool)


def _names(option: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Collection):
        raise PickError(f"{option} must be a collection of str, not {given!r}")
    for name in given:
        if not isinstance(name, str):
            raise PickError(f"{option} must hold str, not {name!r}")
    return tuple(given)


def _as_set(names: Collection[str] | None) -> Any:
    return None if names is None else frozenset(names)


def _check_scorer(scorer: object) -> None:
    if isinstance(scorer, str):
        if scorer not in SCORERS:
            raise PickError(no_such("scorer", scorer, SCORERS))
        return
    usable = callable(scorer) or any(callable(getattr(scorer, m, None)) for m in ("hits", "score"))
    if isinstance(scorer, type) or not (scorer is None or usable):
        raise PickError(
            f"scorer must be a name, an object with `name` and `score`, or a function, not {scorer!r}"
        )
