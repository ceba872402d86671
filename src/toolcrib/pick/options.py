"""`PickOptions`: how to pick, checked when it is made."""

from __future__ import annotations

from math import isfinite

import msgspec

from toolcrib.errors import PickError
from toolcrib.pick.named import SCORERS, scorer_named
from toolcrib.pick.scorer import Scorer


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, (int, kind)) and not isinstance(value, bool)


class PickOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to pick; `timeout_ms`, in milliseconds, bounds the scoring (an index to be built included).

    `scorer` is the name of one that is ready-made (`SCORERS`; None is the first of them), a `Ranker`,
    a `BatchScorer`, or a function `(input, tool)` that gives a `Score` or a float, sync or async.
    `debug` adds to each result's provenance the tools that no scorer saw. Raises PickError for a
    value out of range.
    """

    max_candidates: int = 3
    min_score: float = 0.05
    allow_unsafe: bool = False
    scorer: Scorer | str | None = None
    timeout_ms: float | None = None
    debug: bool = False

    def __post_init__(self) -> None:
        if not _is_number(self.max_candidates, int) or self.max_candidates < 1:
            raise PickError(f"max_candidates must be an int from 1, not {self.max_candidates!r}")
        if not _is_number(self.min_score, float) or not 0 <= self.min_score <= 1:
            raise PickError(f"min_score must be in 0..1, not {self.min_score!r}")
        limit = self.timeout_ms
        if limit is not None and not (_is_number(limit, float) and limit > 0 and isfinite(limit)):
            raise PickError(f"timeout_ms must be above 0, or None for no limit, not {limit!r}")
        _check_scorer(self.scorer)

    def chosen_scorer(self) -> Scorer:
        """The scorer itself. Raises MissingExtraError for one that needs what is not installed."""
        if self.scorer is None:
            return scorer_named(next(iter(SCORERS)))
        return scorer_named(self.scorer) if isinstance(self.scorer, str) else self.scorer


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
