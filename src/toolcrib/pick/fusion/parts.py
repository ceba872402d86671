"""What scorers that are made of others share: parts of any kind as rankers, reasons as one reason.

Rule: a part is trusted no more than a scorer is: what it gives is checked before it is added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from toolcrib.errors import PickError
from toolcrib.pick.scoring.arrays import numpy
from toolcrib.pick.scoring.hits import Hits
from toolcrib.pick.scoring.scorer import (
    ExplainingScorer,
    Ranker,
    Score,
    Scorer,
    ToolScorer,
    checked_score,
    is_async,
    scorer_name,
)
from toolcrib.pick.text.query import Query
from toolcrib.values.definition import HasDefinition
from toolcrib.values.json import JsonObject


def as_ranker(scorer: Scorer) -> Ranker:
    """A ranker that does what this scorer does; a function is given the request's text.

    Raises PickError for one that is asynchronous, or no scorer.
    """
    ask = getattr(scorer, "hits", None) or getattr(scorer, "score", None) or scorer
    if isinstance(scorer, type) or not callable(ask):
        raise PickError(f"a part must be a scorer, not {scorer!r}")
    if is_async(ask):
        raise PickError(f"scorer {scorer_name(scorer)!r} is asynchronous: it can be no part")
    if hasattr(scorer, "hits"):
        return cast("Ranker", scorer)
    return _Scores(scorer)


class _Scores:
    """A batch scorer, or a function, as a ranker: its scores are the weights."""

    def __init__(self, scorer: Scorer) -> None:
        self.name = scorer_name(scorer)
        self._scorer = scorer

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        given = self._given(query, tools)
        if len(given) != len(tools):
            raise PickError(f"scorer {self.name!r} gave {len(given)} scores for {len(tools)} tools")
        values = [
            float(checked_score(score, self.name, tool).score)
            for score, tool in zip(given, tools, strict=True)
        ]
        return Hits(values, None, lambda score: score)

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        if isinstance(self._scorer, ExplainingScorer):
            return self._scorer.explain(query, tools, picked)
        given = self._given(query, [tools[position] for position in picked])
        return [score if isinstance(score, Score) else Score(0.0) for score in given]

    def _given(self, query: Query, tools: Sequence[HasDefinition]) -> list[object]:
        if hasattr(self._scorer, "score"):
            return list(cast("Any", self._scorer).score(query, tools))
        function = cast("ToolScorer", self._scorer)
        return [function(query.text, tool) for tool in tools]


def column_of(ranker: Ranker, hits: Hits, count: int, *, missing: float = 0.0) -> Any:
    """The weights of `count` tools, as an array; `missing` for those that are no hit.

    Raises PickError, naming the ranker, where one is not a finite number, or is for no tool.
    """
    values = numpy().asarray(hits.values, "float64")
    if not numpy().isfinite(values).all():
        raise PickError(f"scorer {ranker.name!r} gave a weight that is not a finite number")
    places = range(count) if hits.positions is None else hits.positions
    positions = numpy().asarray(places, "int64")
    if len(values) != len(positions) or not ((positions >= 0) & (positions < count)).all():
        raise PickError(f"scorer {ranker.name!r} gave weights that do not fit {count} tools")
    if hits.positions is None:
        return values
    column = numpy().full(count, missing)
    column[positions] = values
    return column


def reasons_of(
    ranker: Ranker, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
) -> Sequence[Score]:
    """Its reasons for the tools at these positions; empty ones where it gives none."""
    if not isinstance(ranker, ExplainingScorer):
        return [Score(0.0)] * len(picked)
    return ranker.explain(query, tools, picked)


class Summand(NamedTuple):
    """What a part, by its name, adds to a tool's weight, and why."""

    name: str
    added: float
    why: Score


def explained(parts: Sequence[Summand]) -> Score:
    """One reason of several: that of the part which added most comes first.

    `details["parts"]` is what each added, by name; beside it stands what each has for details itself.
    """
    told = [
        f"{name} {added:+.2f} ({why.reason})" if why.reason else f"{name} {added:+.2f}"
        for name, added, why in sorted(parts, key=lambda part: -abs(part.added))
    ]
    own: JsonObject = {name: why.details for name, _, why in parts if why.details is not None}
    added_up: JsonObject = {name: round(added, 6) for name, added, _ in parts}
    return Score(0.0, "; ".join(told), {**own, "parts": added_up})
