"""The best ranking there is offline: `Light` finds the likely tools, a small transformer reads them.

Rule: only the tools that `Light` likes best are ever embedded, so a catalog that is seen for the first
time costs no more than they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolcrib.errors import PickError
from toolcrib.pick.embedding import CachedEmbedder, Embedder, EmbeddingScorer
from toolcrib.pick.hybrid import Light, Summand, column_of, explained, logistic, reasons_of
from toolcrib.pick.minilm import MiniLM
from toolcrib.pick.query import Query
from toolcrib.pick.ranking import numpy
from toolcrib.pick.scorer import Hits, Score
from toolcrib.values.definition import HasDefinition
from toolcrib.values.typed import names_wrong_types

_NEARNESS = 45.0
"""What a cosine of 1 between the transformer's vectors is worth in units of BM25."""


class Rerank:
    """Ranks the `keep` tools that `Light` likes best by `Light's weight + 45 * nearness`.

    Nearness is what `EmbeddingScorer` makes of `vectors`, of a request as a whole: its parts, which
    `Light` reads, too, cost twice the time and gained nestful 0.004 nDCG@10, larger sets nothing. By
    default the vectors are MiniLM's, a tool's made when it is first among the best and kept on disk
    (`CachedEmbedder`), a request's in memory only. Once the tools' vectors are there, a request takes
    some 10 to 20 ms, a long one 40; each that is not some 10 ms more. The score is
    `1 / (1 + exp(-(weight - 18 - 5.5 ln n) / 10))`, `n` the number of tools, at least 100. A tool
    that is not kept is no hit.

    Raises PickError for a `keep` below 1, MissingExtraError without the extras "pick" and "rerank".
    Deterministic; safe to use from threads.
    """

    name = "rerank"

    @names_wrong_types
    def __init__(self, vectors: Embedder | None = None, *, keep: int = 100) -> None:
        if keep < 1:
            raise PickError(f"scorer {self.name!r}: keep must be at least 1, not {keep!r}")
        kept = CachedEmbedder(MiniLM()) if vectors is None else vectors
        self._near = EmbeddingScorer(kept, name="reranking", in_parts=False)
        self._light = Light()
        self._keep = keep

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        """Return the weights of the kept tools."""
        if not tools:
            return Hits([], None, float)
        best = sorted(self._light.hits(query, tools, self._keep).best(self._keep))
        kept = [position for position, _ in best]
        likely = numpy().array([weight for _, weight in best])
        total = likely + self._nearness(query, _those(tools, kept))
        return Hits(total, kept, logistic(18.0, 5.5, 10.0, len(tools)))

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        """Return what words, word vectors and the transformer add for the tools at these positions."""
        few = _those(tools, picked)
        near = self._nearness(query, few).tolist()
        why = reasons_of(self._near, query, few, range(len(few)))
        first = self._light.summands(query, tools, picked)
        return [
            explained([*parts, Summand(self._near.name, added, reason)])
            for parts, added, reason in zip(first, near, why, strict=True)
        ]

    def _nearness(self, query: Query, few: tuple[HasDefinition, ...]) -> Any:
        hits = self._near.hits(query, few)
        return _NEARNESS * column_of(self._near, hits, len(few))


def _those(tools: Sequence[HasDefinition], positions: Sequence[int]) -> tuple[HasDefinition, ...]:
    return tuple([tools[position] for position in positions])
