"""The scorer to take where numpy and WordLlama are installed: words and meaning together, offline.

Rule: a tool's weight depends on the request, the tool and how common its words are, not on what other
tools weigh: BM25 and a cosine are added up as they are.

That did better than z-scores (nDCG@10 on metatool, bfcl, nestful: .709, .807, .866 against .688, .803,
.865), which make most of a match by chance where there is no real one; and it needs no mean over the
catalog. Logistic regressions fitted on two of the sets, z-scores among their features or not, were no
better on the third.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log
from typing import Any, NamedTuple

from toolcrib.pick.embedding import Embedder, EmbeddingScorer
from toolcrib.pick.hits import Hits
from toolcrib.pick.keyword import KeywordScorer
from toolcrib.pick.parts import Summand, column_of, explained, reasons_of
from toolcrib.pick.query import Query
from toolcrib.pick.scorer import Score
from toolcrib.pick.vectors import numpy
from toolcrib.values.definition import HasDefinition

_NEARNESS = 35.0
"""What a cosine of 1 is worth in units of BM25."""
_LARGE = 2_000
_BY_WORD = 100
_BY_MEANING = 250
_FEWEST = 100


class Light:
    """Ranks by `BM25 + 35 * nearness`: what `KeywordScorer` and `EmbeddingScorer` weigh; offline.

    The score is `1 / (1 + exp(-(weight - 10 - 4 ln n) / 7.5))`, `n` the number of tools, at least
    100: with `n` grows what the best of them get by accident. 0.05 is where, on metatool, bfcl and
    nestful, 3 % of the requests lose their right tool.

    Of more than 2,000 tools only those are weighed that are among the 100 best by words or the 250
    best by meaning. Raises MissingExtraError without the extra "pick". Deterministic; safe to use
    from threads.
    """

    name = "light"

    def __init__(self, vectors: Embedder | None = None) -> None:
        self._embedding = EmbeddingScorer(vectors)
        self._keyword = KeywordScorer()
        self._last: tuple[Query, Sequence[HasDefinition], _Found] | None = None

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        """Every tool's weight; with a `limit`, of a large catalog those that may be the best."""
        if not tools:
            return Hits([], None, float)
        found = self._found(query, tools, limit)
        self._last = (query, tools, found)
        weights: Any = found.words + found.near
        return Hits(weights, found.positions, logistic(10.0, 4.0, 7.5, len(tools)))

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        """For the tools at these positions, which words they share with the request, and how near
        they are to it."""
        return [explained(parts) for parts in self.summands(query, tools, picked)]

    def summands(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> list[list[Summand]]:
        """What the weights of the tools at these positions, which `hits` found, are made of."""
        last = self._last
        if last is not None and last[0] is query and last[1] is tools:
            found = last[2]  # `explain` comes right after `hits`, as a rule
        else:
            found = self._found(query, tools, len(picked))
        rows = picked
        if found.positions is not None:
            rows = numpy().searchsorted(found.positions, picked).tolist()
        by_word = reasons_of(self._keyword, query, tools, picked)
        by_meaning = reasons_of(self._embedding, query, tools, picked)
        return [
            [
                Summand(self._keyword.name, float(found.words[row]), by_word[at]),
                Summand(self._embedding.name, float(found.near[row]), by_meaning[at]),
            ]
            for at, row in enumerate(rows)
        ]

    def _found(self, query: Query, tools: Sequence[HasDefinition], limit: int | None) -> _Found:
        keyword, embedding = self._keyword, self._embedding
        if limit is None or len(tools) <= max(_LARGE, limit):
            words = column_of(keyword, keyword.hits(query, tools, None), len(tools))
            near = column_of(embedding, embedding.hits(query, tools, None), len(tools))
            return _Found(words, _NEARNESS * near, None)
        by_word = keyword.hits(query, tools, max(_BY_WORD, limit)).best(max(_BY_WORD, limit))
        by_meaning = embedding.likely(query, tools, max(_BY_MEANING, limit))
        if by_meaning is None:
            best = embedding.hits(query, tools, None).best(max(_BY_MEANING, limit))
            by_meaning = [position for position, _ in best]
        positions = numpy().array(sorted({*by_meaning, *(position for position, _ in by_word)}))
        words = numpy().array(keyword.weigh(query, tools, positions.tolist()))
        near = numpy().asarray(embedding.weigh(query, tools, positions), "float64")
        return _Found(words, _NEARNESS * near, positions)


class _Found(NamedTuple):
    """What words and meaning add to the tools at `positions`, ascending, or to all (None)."""

    words: Any
    near: Any
    positions: Any


def logistic(middle: float, slope: float, spread: float, tools: int) -> Callable[[float], float]:
    """Weights to scores: 0.5 at `middle + slope * ln(n)`, with n the number of tools, at least 100;
    `spread` more make the odds 2.7 times as high."""
    half = middle + slope * log(max(tools, _FEWEST))

    def score(weight: float) -> float:
        at = (weight - half) / spread
        return 1 / (1 + exp(-at)) if at > 0 else exp(at) / (1 + exp(at))

    return score
