"""`PickOptions`: how to pick, checked when it is made."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from sys import float_info
from typing import Any

import msgspec

from toolcrib.errors import PickError
from toolcrib.pick.filters import Filters, Quota
from toolcrib.pick.named import DEFAULT_SCORER, SCORERS, scorer_named
from toolcrib.pick.scoring.scorer import Scorer


class PickOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to pick: at most `max_candidates` tools, of a score in 0..1 that is at least `min_score`.

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
        """The scorer itself. Raises MissingExtraError for one that needs what is not installed."""
        if self.scorer is None:
            return scorer_named(DEFAULT_SCORER)
        return scorer_named(self.scorer) if isinstance(self.scorer, str) else self.scorer

    def filters(self) -> Filters:
        """What decides who is scored, but for the quota, which is another one at every pick."""
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
            raise PickError(f"there is no scorer {scorer!r}: take one of {', '.join(SCORERS)}")
        return
    usable = callable(scorer) or any(callable(getattr(scorer, m, None)) for m in ("hits", "score"))
    if isinstance(scorer, type) or not (scorer is None or usable):
        raise PickError(
            f"scorer must be a name, an object with `name` and `score`, or a function, not {scorer!r}"
        )
