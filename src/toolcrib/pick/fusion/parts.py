"""What scorers that are made of others share: parts of any kind as rankers, reasons as one reason.

Rule: a part is trusted no more than a scorer is: what it gives is checked before it is added up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from toolcrib.errors import PickError
from toolcrib.pick.scoring.arrays import numpy
from toolcrib.pick.scoring.hits import Hits
from toolcrib.pick.scoring.ranking import Request, all_awaited
from toolcrib.pick.scoring.scorer import (
    BatchScorer,
    ExplainingScorer,
    Ranker,
    Score,
    Scorer,
    ToolScorer,
    checked_score,
    in_answer,
    is_async,
    scorer_name,
)
from toolcrib.pick.text.query import Query
from toolcrib.values.definition import HasDefinition
from toolcrib.values.json import JsonObject


def as_ranker(scorer: Scorer) -> Ranker:
    """A ranker that does what this scorer does; a function is given the request's text.

    Of one that is asynchronous, the scores are awaited before the ranker is asked: `AwaitedRanker`.
    Raises PickError for what is no scorer.
    """
    ask = getattr(scorer, "hits", None) or getattr(scorer, "score", None) or scorer
    if isinstance(scorer, type) or not callable(ask):
        raise PickError(f"a part must be a scorer, not {scorer!r}")
    if hasattr(scorer, "hits"):
        if is_async(ask):
            name = scorer_name(scorer)
            raise PickError(f"scorer {name!r}: `hits` is not async; an async scorer has `score`")
        return cast("Ranker", scorer)
    return _Awaited(scorer) if is_async(ask) else _Scores(scorer)


async def all_in_answer(
    rankers: Sequence[Ranker], query: Query, tools: Sequence[HasDefinition]
) -> list[Ranker]:
    """Those to ask in a thread; what has to be awaited is awaited together."""
    tasks = [asyncio.ensure_future(in_answer(ranker, query, tools)) for ranker in rankers]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class _Awaited:
    """An asynchronous batch scorer or function as a ranker, whose scores are awaited first."""

    asynchronous = True

    def __init__(self, scorer: BatchScorer | ToolScorer) -> None:
        self.name = scorer_name(scorer)
        self._scorer = scorer

    async def awaited(self, query: Query, tools: Sequence[HasDefinition]) -> Ranker:
        request = Request(query.text, query, tuple(tools), 0.0, len(tools))
        return _Given(self.name, self._scorer, await all_awaited(self._scorer, request))

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        raise PickError(f"scorer {self.name!r} is asynchronous: `pick_tools` awaits it")


class _Given:
    """What an asynchronous scorer gave for one query, as a ranker for just that."""

    def __init__(self, name: str, scorer: object, scores: list[Score]) -> None:
        self.name = name
        self._scorer = scorer
        self._scores = scores

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        return Hits([float(score.score) for score in self._scores], None, lambda score: score)

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        if isinstance(self._scorer, ExplainingScorer):
            return self._scorer.explain(query, tools, picked)
        return [self._scores[position] for position in picked]


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
