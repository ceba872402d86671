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
from typing import Any

from toolcrib.pick.dense.embedding import Embedder, EmbeddingScorer
from toolcrib.pick.dense.matrix import best_of
from toolcrib.pick.fusion.parts import Summand, explained
from toolcrib.pick.lexical.keyword import KeywordScorer
from toolcrib.pick.scoring.arrays import numpy
from toolcrib.pick.scoring.hits import Hits
from toolcrib.pick.scoring.scorer import Score
from toolcrib.pick.text.query import Query
from toolcrib.values.definition import HasDefinition

_NEARNESS = 35.0
"""What a cosine of 1 is worth in units of BM25."""
_LIKELY = 300
_FEWEST = 100


class Light:
    """Ranks by `BM25 + 35 * nearness`: what `KeywordScorer` and `EmbeddingScorer` weigh; offline.

    The score is `1 / (1 + exp(-(weight - 10 - 4 ln n) / 7.5))`, `n` the number of tools, at least
    100: with `n` grows what the best of them get by accident. 0.05 is where, on metatool, bfcl and
    nestful, 3 % of the requests lose their right tool.

    Of a large catalog (8,192 texts) only 300 tools are weighed exactly: the best by single words and
    the first 64 of 256 dimensions. Of 30,000 tools, those have 99 of 100 that are among the best ten.
    Raises MissingExtraError without the extra "pick". Deterministic; safe to use from threads.
    """

    name = "light"

    def __init__(self, vectors: Embedder | None = None) -> None:
        self._embedding = EmbeddingScorer(vectors)
        self._keyword = KeywordScorer()

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        """Every tool's weight; with a `limit`, of a large catalog those that may be the best."""
        if not tools:
            return Hits([], None, float)
        positions = None if limit is None else self._likely(query, tools, max(_LIKELY, 2 * limit))
        words, near = self._added(query, tools, positions)
        return Hits(words + near, positions, logistic(10.0, 4.0, 7.5, len(tools)))

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        """For the tools at these positions, which words they share with the request, and how near
        they are to it."""
        return [explained(parts) for parts in self.summands(query, tools, picked)]

    def summands(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> list[list[Summand]]:
        """What the weights of the tools at these positions are made of."""
        words, near = self._added(query, tools, numpy().array(picked, "int64"))
        by_word = self._keyword.explain(query, tools, picked)
        by_meaning = self._embedding.explain(query, tools, picked)
        return [
            [
                Summand(self._keyword.name, float(words[row]), by_word[row]),
                Summand(self._embedding.name, float(near[row]), by_meaning[row]),
            ]
            for row in range(len(picked))
        ]

    def _added(
        self, query: Query, tools: Sequence[HasDefinition], positions: Any
    ) -> tuple[Any, Any]:
        """What words and meaning add to the tools at these positions, or to all; float64."""
        words = self._keyword.weights(query, tools, positions)
        return words, _NEARNESS * self._embedding.weights(query, tools, positions).astype("float64")

    def _likely(self, query: Query, tools: Sequence[HasDefinition], count: int) -> Any:
        """The `count` best at a first look; None where all are to be weighed."""
        near = self._embedding.glance(query, tools)
        if near is None or count >= len(tools):
            return None
        return best_of(self._keyword.glance(query, tools) + _NEARNESS * near, count)


def logistic(middle: float, slope: float, spread: float, tools: int) -> Callable[[float], float]:
    """Weights to scores: 0.5 at `middle + slope * ln(n)`, with n the number of tools, at least 100;
    `spread` more make the odds 2.7 times as high."""
    half = middle + slope * log(max(tools, _FEWEST))

    def score(weight: float) -> float:
        at = (weight - half) / spread
        return 1 / (1 + exp(-at)) if at > 0 else exp(at) / (1 + exp(at))

    return score
