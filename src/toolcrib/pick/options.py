"""`PickOptions`: how to pick, checked when it is made, with its filters and the named scorers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from math import isnan
from sys import float_info
from typing import Any, TypeAlias

import msgspec

from toolcrib.errors import MissingExtraError, PickError, no_such
from toolcrib.pick.embedding import EmbeddingScorer
from toolcrib.pick.hybrid import Light
from toolcrib.pick.keyword import KeywordScorer
from toolcrib.pick.rerank import Rerank
from toolcrib.pick.scorer import Ranker, Scorer, blamed
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.typed import HandWritten

# Which tools may be candidates, decided by their definitions before any scorer sees a tool.
#
# Rule: a filter never guesses. An option that was not given excludes no tool, and a tool that is
# left out gets all reasons, not only the first one.

Quota: TypeAlias = Mapping[str, float | None] | Callable[[str], float | None]
"""How many calls are left, by the name of a tool. None, or no entry, means no limit.

For a large catalog use a mapping, which costs nothing for tools that are not in it.
"""


class Excluded(msgspec.Struct, frozen=True):
    """The name of a tool that was not scored, and why."""

    tool: str
    reason: str


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Says which tools may be picked. Equal filters leave the same tools of a catalog.

    `roles` are the caller's, or None if roles do not matter. A tool needs all of `features`, none
    of `without_features`, and one of `tags` if there are any. `used_up` are the names of tools
    whose quota is used up.
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

    def reasons(self, definition: ToolDefinition) -> list[str]:
        """Return all reasons why this tool may not be picked."""
        name, annotations = definition.name, definition.annotations
        reasons: list[str] = []
        if self.only is not None and name not in self.only:
            reasons.append("it is not in `only`")
        if name in self.without:
            reasons.append("it is in `without`")
        if name in self.used_up:
            reasons.append("its quota is used up")
        if not (self.allow_unsafe or annotations.safe):
            reasons.append("it is marked unsafe and allow_unsafe is off")
        roles = annotations.allowed_roles
        if self.roles is not None and roles and self.roles.isdisjoint(roles):
            reasons.append(f"it needs one of the roles {', '.join(roles)}")
        if self.features and (missing := self.features.difference(annotations.features)):
            reasons.append(f"it lacks {', '.join(sorted(missing))}")
        if self.without_features and (
            unwanted := self.without_features.intersection(annotations.features)
        ):
            reasons.append(f"it has {', '.join(sorted(unwanted))}")
        if self.max_cost is not None and not annotations.cost <= self.max_cost:
            reasons.append(f"it costs {annotations.cost:g}, more than {self.max_cost:g}")
        if self.tags and self.tags.isdisjoint(definition.tags):
            reasons.append(f"it has none of the tags {', '.join(sorted(self.tags))}")
        return reasons


def used_up(quota: Quota, names: Iterable[str]) -> frozenset[str]:
    """Return the used-up names in a mapping; for a function, those of `names` that have no call
    left.

    Raises PickError for a value that is no number, and if the function raises.
    """
    if isinstance(quota, Mapping):
        with blamed("quota"):  # all at once, since another thread may change it meanwhile
            entries = [*quota.items()]
        return frozenset([name for name, remaining in entries if _is_used_up(name, remaining)])
    exhausted = []
    for name in names:
        with blamed("quota", f" for tool {name!r}"):
            remaining = quota(name)
        if _is_used_up(name, remaining):
            exhausted.append(name)
    return frozenset(exhausted)


def _is_used_up(name: str, remaining: object) -> bool:
    if remaining is None:
        return False
    if isinstance(remaining, bool) or not isinstance(remaining, int | float) or isnan(remaining):
        raise PickError(
            f"quota gave {remaining!r} for tool {name!r}, not a number of calls or None"
        )
    return remaining <= 0


# Scorers by name, as `PickOptions(scorer="…")` and the command line take them.
#
# Rule: there is one instance for each name in a process, so that its indexes outlive the call.


def _auto() -> Ranker:
    """Return the best installed scorer, which keeps its own name."""
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
"""The scorers by name, the default first."""

DEFAULT_SCORER = next(iter(SCORERS))


@cache
def scorer_named(name: str) -> Ranker:
    """Return the shared scorer of that name. "auto" is the best installed of "rerank", "light" and
    "keyword".

    Raises PickError for another name, and MissingExtraError for one whose extra is not installed.
    """
    if name not in SCORERS:
        raise PickError(no_such("scorer", name, SCORERS))
    return SCORERS[name]()


class PickOptions(HandWritten, frozen=True, kw_only=True):
    """How to pick: at most `max_candidates` tools, whose score in 0..1 is at least `min_score`.

    `timeout_ms` limits the scoring in milliseconds, including the time to build an index. `scorer`
    is the name of a ready-made one (`SCORERS`; None is the first of them), a `Ranker`, a
    `BatchScorer`, or a function `(input, tool)` that returns a `Score` or a float, sync or async.
    `debug` adds the tools that no scorer saw to each result's provenance.

    Not scored at all are: tools marked unsafe, unless `allow_unsafe`; with `roles` (the caller's),
    tools for other roles; tools that lack one of `features` or have one of `without_features`, such
    as "streaming"; tools whose cost is above `max_cost`; with `tags`, tools that have none of them;
    tools not in `only`, and those in `without`; and tools that have no calls left by `quota`. An
    option that is not given excludes nothing.

    `quota` gives the calls left by tool name, at every pick. It is a mapping, or a function that is
    asked about each tool that nothing else leaves out, on the event loop and without a time limit.

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
            raise PickError(
                f"max_candidates must be an int, 1 or more, not {self.max_candidates!r}"
            )
        if not _is_number(self.min_score, float) or not 0 <= self.min_score <= 1:
            raise PickError(f"min_score must be from 0 to 1, not {self.min_score!r}")
        for name in ("allow_unsafe", "debug"):
            if not isinstance(getattr(self, name), bool):  # "no" would count as true
                raise PickError(f"{name} must be True or False, not {getattr(self, name)!r}")
        limit = self.timeout_ms
        if limit is not None and not (_is_number(limit, float) and 0 < limit <= float_info.max):
            raise PickError(f"timeout_ms must be above 0, or None for no limit, not {limit!r}")
        cost = self.max_cost
        if cost is not None and not (_is_number(cost, float) and cost >= 0):
            raise PickError(f"max_cost must be 0 or more, or None for any cost, not {cost!r}")
        if not (self.quota is None or callable(self.quota) or isinstance(self.quota, Mapping)):
            raise PickError(f"quota must be a mapping or a function, not {self.quota!r}")
        _check_scorer(self.scorer)
        for name in _NAMES:
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:  # a copy, since a list may change later
                msgspec.structs.force_setattr(self, name, _names(name, value))

    def chosen_scorer(self) -> Scorer:
        """Return the scorer itself. Raises MissingExtraError if its extra is not installed."""
        scorer = DEFAULT_SCORER if self.scorer is None else self.scorer
        return scorer_named(scorer) if isinstance(scorer, str) else scorer

    def filters(self) -> Filters:
        """Return the filters, without the quota, which may differ at every pick."""
        values = {name: getattr(self, name) for name in _NAMES}
        sets: dict[str, Any] = {n: g if g is None else frozenset(g) for n, g in values.items()}
        return Filters(allow_unsafe=self.allow_unsafe, max_cost=self.max_cost, **sets)


_NAMES = ("roles", "features", "without_features", "tags", "only", "without")
"""The options that are lists of names, which `PickOptions` and `Filters` share."""
_OPTIONAL = ("roles", "only")


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, (int, kind)) and not isinstance(value, bool)


def _names(option: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        raise PickError(f"{option} must be a collection of str, not {value!r}")
    for name in value:
        if not isinstance(name, str):
            raise PickError(f"{option} must hold str, not {name!r}")
    return tuple(value)


def _check_scorer(scorer: object) -> None:
    if isinstance(scorer, str):
        if scorer not in SCORERS:
            raise PickError(no_such("scorer", scorer, SCORERS))
        return
    is_usable = callable(scorer) or any(
        callable(getattr(scorer, m, None)) for m in ("hits", "score")
    )
    if isinstance(scorer, type) or not (scorer is None or is_usable):
        raise PickError(
            f"scorer must be a name, an object with `name` and `score`, or a function, not {scorer!r}"
        )
