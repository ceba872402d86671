"""The semantic scorer: how near a request lies to what a tool says of itself and to its examples.

Rule: a vector belongs to a definition's digest and nothing else, so it outlives any catalog.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol

from toolcrib.pick.hits import Hits
from toolcrib.pick.index import CatalogCache
from toolcrib.pick.query import Query
from toolcrib.pick.scorer import Score
from toolcrib.pick.text import fields, spaced_name
from toolcrib.pick.vectors import WordVectors, numpy
from toolcrib.values.definition import HasDefinition, ToolDefinition

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

_UNRELATED = 0.1
_KEPT = 20_000


class Embedder(Protocol):
    """Texts to unit vectors, one row each; equal texts must give equal rows."""

    def embed(self, texts: Sequence[str]) -> Vectors: ...


class EmbeddingScorer:
    """Scores by the best cosine of the request to a tool's description or one of its examples.

    The description reads "split name: description (parameters) [tags]". The score is
    `(cosine - 0.1) / 0.9`, and 0 below: 0.1 is what a request and a tool that have nothing to do
    with one another commonly reach (with `WordVectors`, on the sets of the project's
    `benchmarks/pick_quality.py`, nine pairs of ten lie under .15 to .22; the right tool's median
    is .39 to .56).

    `vectors` is any embedder; the default, `WordVectors`, raises MissingExtraError here without the
    extra "pick" and is loaded at the first request. Vectors are kept by definition digest, a matrix
    for the eight catalogs used last. Deterministic; safe to use from threads.
    """

    name = "embedding"

    def __init__(self, vectors: Embedder | None = None) -> None:
        self._vectors: Embedder = WordVectors() if vectors is None else vectors
        self._indexes = CatalogCache(self._build)
        self._lock = Lock()
        self._kept: dict[str, Vectors] = {}

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        """Every tool's best cosine, in -1..1."""
        if not tools:
            return Hits([], None, _calibrated)
        index = self._indexes.get(tools)
        cosines = _cosines(index.matrix, self._embedded(query.text))
        return Hits(numpy().maximum.reduceat(cosines, index.starts), None, _calibrated)

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        """For the tools at these positions, the nearest of their texts and its cosine."""
        index = self._indexes.get(tools)
        asked = self._embedded(query.text)
        return [
            _explanation(tools[i].get_definition(), _cosines(index.rows_of(i), asked))
            for i in picked
        ]

    def _embedded(self, query: str) -> Vectors:
        vector: Vectors = self._vectors.embed([query])[0]
        return vector

    def _build(self, definitions: Sequence[ToolDefinition]) -> _Index:
        with self._lock:
            found = {d.digest: self._kept[d.digest] for d in definitions if d.digest in self._kept}
        new = {d.digest: _texts(d) for d in definitions if d.digest not in found}
        rows = self._vectors.embed([text for texts in new.values() for text in texts])
        start = 0
        for digest, texts in new.items():
            found[digest] = rows[start : start + len(texts)]
            start += len(texts)
        with self._lock:
            self._kept |= found
            for digest in list(self._kept)[: max(0, len(self._kept) - _KEPT)]:
                del self._kept[digest]
        return _index([found[d.digest] for d in definitions])


class _Index(NamedTuple):
    """All tools' vectors under one another; `starts[i]` is the first row of tool i."""

    matrix: Vectors
    starts: list[int]

    def rows_of(self, tool: int) -> Vectors:
        after = self.starts[tool + 1] if tool + 1 < len(self.starts) else len(self.matrix)
        return self.matrix[self.starts[tool] : after]


def _calibrated(cosine: float) -> float:
    return min(max((cosine - _UNRELATED) / (1 - _UNRELATED), 0.0), 1.0)


def _index(groups: Sequence[Vectors]) -> _Index:
    starts = [0]
    for group in groups:
        starts.append(starts[-1] + len(group))
    return _Index(numpy().concatenate(groups), starts[:-1])


def _cosines(rows: Vectors, vector: Vectors) -> Vectors:
    # Row by row, not `@`: a threaded BLAS takes milliseconds here whenever the cores are busy, and
    # a row's result must not depend on how many there are.
    found: Vectors = numpy().vecdot(rows, vector)
    return found


def _texts(definition: ToolDefinition) -> list[str]:
    """What stands for a tool: its description first, then the request of each example."""
    found = fields(definition)
    text = f"{spaced_name(found.name)}: {found.description}"
    if found.parameters:
        text += f" ({spaced_name(found.parameters)})"
    if found.tags:
        text += f" [{found.tags}]"
    return [text, *(example.request for example in definition.examples)]


def _explanation(definition: ToolDefinition, cosines: Vectors) -> Score:
    nearest = int(cosines.argmax())
    cosine = round(float(cosines[nearest]), 3)
    if nearest == 0:
        return Score(0.0, f"near its description (cosine {cosine})", {"cosine": cosine})
    example = definition.examples[nearest - 1].request
    return Score(
        0.0,
        f"near its example {example!r} (cosine {cosine})",
        {"cosine": cosine, "example": example},
    )
