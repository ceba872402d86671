"""`WithFeedback`: any ranker, with what was learned from use on top of it.

Rule: what was learned adds to a score and never takes away, so a tool is found as before by a
request like which there was none.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolcrib.errors import PickError
from toolcrib.pick.fusion.feedback import Feedback
from toolcrib.pick.scoring.catalog_cache import CatalogCache
from toolcrib.pick.scoring.hits import Hits
from toolcrib.pick.scoring.scorer import (
    ExplainingScorer,
    Ranker,
    Score,
    has_to_be_awaited,
    in_answer,
    scorer_name,
)
from toolcrib.pick.text.query import Query
from toolcrib.values.definition import HasDefinition, ToolDefinition
from toolcrib.values.json import JsonObject

_DEPTH = 100


class WithFeedback:
    """Scores as `scorer` does, and nudges the tools that served requests like this one.

    With a score `s` and a nudge `n`, both in 0..1, the tool has `s + (1 - s) * n`. While nothing was
    learned of like requests, hits are those of `scorer`.
    """

    def __init__(self, scorer: Ranker, feedback: Feedback) -> None:
        if not hasattr(scorer, "hits"):
            raise PickError(f"feedback needs a Ranker (with `hits`), not {scorer_name(scorer)!r}")
        self._scorer = scorer
        self._feedback = feedback
        self._positions = CatalogCache(_positions)

    @property
    def asynchronous(self) -> bool:
        """Whether the scorer has to be awaited: then `pick_tools` does that, and `hits` cannot."""
        return has_to_be_awaited(self._scorer)

    async def awaited(self, query: Query, tools: Sequence[HasDefinition]) -> WithFeedback:
        """The same with a scorer that has its answers."""
        return WithFeedback(await in_answer(self._scorer, query, tools), self._feedback)

    @property
    def name(self) -> str:
        return f"{scorer_name(self._scorer)}+feedback"

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        """The scorer's hits, the nudged tools among them."""
        nudges = self._nudges(query, tools)
        if not nudges:
            return self._scorer.hits(query, tools, limit)
        depth = None if limit is None else max(limit, _DEPTH)
        hits = self._scorer.hits(query, tools, depth)
        count = len(hits.values) if depth is None else depth
        scores = {position: hits.calibrated(weight) for position, weight in hits.best(count)}
        for position, nudge in nudges.items():
            score = scores.get(position, 0.0)
            scores[position] = score + (1 - score) * nudge
        return Hits([*scores.values()], [*scores], _as_it_is)

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        """The scorer's reasons, and with them how much a tool was nudged."""
        reasons: Sequence[Score] = [Score(0.0)] * len(picked)
        if isinstance(self._scorer, ExplainingScorer):
            reasons = self._scorer.explain(query, tools, picked)
        nudges = self._nudges(query, tools)
        return [
            _nudged(reason, nudges[position]) if position in nudges else reason
            for position, reason in zip(picked, reasons, strict=True)
        ]

    def _nudges(self, query: Query, tools: Sequence[HasDefinition]) -> dict[int, float]:
        by_digest = self._feedback.nudges(query.text)
        if not by_digest:
            return {}
        positions = self._positions.get(tools)
        return {
            position: nudge
            for digest, nudge in by_digest.items()
            for position in positions.get(digest, ())
        }


def _positions(definitions: Sequence[ToolDefinition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for position, definition in enumerate(definitions):
        found.setdefault(definition.digest, []).append(position)
    return found


def _nudged(reason: Score, nudge: float) -> Score:
    text = f"served requests like this one ({nudge:+.2f})"
    details: JsonObject = reason.details or {}
    parts = details.get("parts")
    parts = {**(parts if isinstance(parts, dict) else {}), "feedback": round(nudge, 6)}
    told = f"{reason.reason}; {text}" if reason.reason else text
    return Score(0.0, told, {**details, "parts": parts})


def _as_it_is(score: float) -> float:
    return score
