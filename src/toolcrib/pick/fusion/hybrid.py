"""Several scorers of any kind as one: their z-scores added up.

Rule: what is added up is only what the parts say, and `explain` shows every summand.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from math import exp, isfinite
from typing import Any, NamedTuple

from toolcrib.errors import MissingExtraError, PickError
from toolcrib.pick.fusion.parts import (
    Summand,
    all_in_answer,
    as_ranker,
    column_of,
    explained,
    reasons_of,
)
from toolcrib.pick.scoring.arrays import numpy
from toolcrib.pick.scoring.hits import Hits
from toolcrib.pick.scoring.scorer import Ranker, Score, Scorer, has_to_be_awaited
from toolcrib.pick.text.query import Query
from toolcrib.values.definition import HasDefinition

_NO_SPREAD = 1e-9
"""Of the highest weight: rounding."""


class Hybrid:
    """Ranks by a weighted sum of z-scores: for parts whose weights have units of their own.

    A part is a ranker, a batch scorer or a function `(text, tool)`, sync or async (such as a
    `JudgeScorer`), with a weight. Its z-score is `(w - mean) / standard deviation` over all tools of
    the catalog, 0 where they are all equal; for a tool that is no hit, `w` is 0, or the part's lowest
    weight where that is lower. The best tool's score is the mean of the scores that its parts give
    it, by their weights (those below 0 count 0); a tool whose sum is `d` less has
    `exp(-d / sum of |weights|)` of that, which is 0.37 of it for one standard deviation less in every
    part.

    Tools that were used before count as the parts count them. A reason tells what each part added,
    and `details["parts"]` has it by name. Raises PickError for parts that cannot be added up,
    MissingExtraError without the extra "pick" (numpy). As deterministic, and as safe to use from
    threads, as its parts are. (`Light` and `Rerank` know their parts' units: they do better.)
    """

    def __init__(self, parts: Sequence[tuple[Scorer, float]], *, name: str = "hybrid") -> None:
        if find_spec("numpy") is None:
            raise MissingExtraError("pick", "Hybrid")
        self.name = name
        self._rankers = [as_ranker(scorer) for scorer, _ in parts]
        self._weights = [float(weight) for _, weight in parts]
        self._sum = sum(map(abs, self._weights))
        if not isfinite(self._sum) or max(self._weights, default=0.0) <= 0:
            raise PickError(f"scorer {name!r} needs parts with finite weights, one of them above 0")
        names = [ranker.name for ranker in self._rankers]
        if len(set(names)) < len(names):
            raise PickError(f"scorer {name!r} has two parts of one name: {', '.join(names)}")

    @property
    def asynchronous(self) -> bool:
        """Whether a part has to be awaited: then `pick_tools` does that, and `hits` cannot."""
        return any(map(has_to_be_awaited, self._rankers))

    async def awaited(self, query: Query, tools: Sequence[HasDefinition]) -> Hybrid:
        """The same with parts that have their answers, all awaited together."""
        rankers = await all_in_answer(self._rankers, query, tools)
        return Hybrid(list(zip(rankers, self._weights, strict=True)), name=self.name)

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        """Every tool's sum."""
        if not tools:
            return Hits([], None, float)
        columns = self._columns(query, tools)
        total: Any = sum(column.added for column in columns)
        best = int(total.argmax())
        most = float(total[best])
        positive = [max(weight, 0.0) for weight in self._weights]
        scores = [column.score(best) for column in columns]
        top = sum(w * s for w, s in zip(positive, scores, strict=True)) / sum(positive)
        return Hits(total, None, lambda weight: top * exp(min(weight - most, 0.0) / self._sum))

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        """What each part added to the tools at these positions, and why."""
        columns = self._columns(query, tools)
        reasons = [reasons_of(ranker, query, tools, picked) for ranker in self._rankers]
        names = [ranker.name for ranker in self._rankers]
        return [
            explained(
                [
                    Summand(name, float(column.added[position]), why[row])
                    for name, column, why in zip(names, columns, reasons, strict=True)
                ]
            )
            for row, position in enumerate(picked)
        ]

    def _columns(self, query: Query, tools: Sequence[HasDefinition]) -> list[_Column]:
        return [
            _standardised(ranker, weight, ranker.hits(query, tools, None), len(tools))
            for ranker, weight in zip(self._rankers, self._weights, strict=True)
        ]


class _Column(NamedTuple):
    """What a part found, and what that adds to each tool."""

    hits: Hits
    added: Any

    def score(self, position: int) -> float:
        """The part's own score of a tool."""
        places = self.hits.positions
        if places is not None:
            rows = numpy().nonzero(numpy().asarray(places) == position)[0]
            if not len(rows):
                return 0.0
            position = int(rows[0])
        return self.hits.calibrated(float(self.hits.values[position]))


def _standardised(ranker: Ranker, weight: float, hits: Hits, count: int) -> _Column:
    lowest = min([0.0, *map(float, hits.values)]) if hits.positions is not None else 0.0
    column = column_of(ranker, hits, count, missing=lowest)
    most = abs(column).max()
    if most == 0:
        return _Column(hits, column)
    column = column / most  # so that no square is too large or too small
    spread = column.std()
    if spread <= _NO_SPREAD:
        return _Column(hits, numpy().zeros(count))
    return _Column(hits, weight * (column - column.mean()) / spread)
