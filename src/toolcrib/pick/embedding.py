"""The semantic scorer: how near a request lies to what a tool says of itself and to its examples.

Rule: a vector is made once for all catalogs: it belongs to a definition's digest and nothing else.
Only an embedder that weighs words by their catalog is asked anew for each.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from toolcrib.errors import PickError, ToolcribError
from toolcrib.pick.hits import Hits
from toolcrib.pick.index import CatalogCache
from toolcrib.pick.matrix import Asked, Matrix, as_asked
from toolcrib.pick.query import Query
from toolcrib.pick.scorer import Score
from toolcrib.pick.segments import segments
from toolcrib.pick.text import Fields, fields, spaced_name
from toolcrib.pick.vectors import WordVectors, numpy
from toolcrib.values.definition import HasDefinition, ToolDefinition

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

_UNRELATED = 0.1
_PARAMETERS = 0.3
"""What a tool's parameters weigh beside its name and description."""
_LIKELY = 1_000
_KEPT = 20_000
_KEPT_QUERIES = 64


class Embedder(Protocol):
    """Texts to unit vectors, one row each; equal texts must give equal rows."""

    def embed(self, texts: Sequence[str]) -> Vectors: ...


@runtime_checkable
class CatalogEmbedder(Protocol):
    """An embedder for which a document's vector depends on the documents beside it, and is cheap.

    A document is its parts, each with a weight: (weight, text).
    """

    def embed(self, texts: Sequence[str]) -> Vectors: ...
    def embed_catalog(self, documents: Sequence[Sequence[tuple[float, str]]]) -> Vectors: ...


class EmbeddingScorer:
    """Scores by how near a request lies to a tool's description, or to the nearest of its examples.

    With `q` the request's vector and `s` those of its parts (`segments`; at most 8), a tool's weight
    is `0.7 cos(q) + 0.3 max cos(s)`, in -1..1, the best of its texts; for a request of one part that
    is the cosine. Of a conversation, `q` is the last turn's vector and 0.3 of the mean of those of the
    turns before. The description reads "split name: description (parameters) [tags]".

    The score is `(weight - 0.1) / 0.9`, and 0 below: 0.1 is what a request and a tool that have
    nothing to do with one another commonly reach.

    `vectors` is any embedder; the default, `WordVectors`, raises MissingExtraError here without the
    extra "pick" and is loaded at the first request. `asking` embeds the requests instead of it, with
    the same model: requests need no cache on disk. Vectors are kept by definition digest, a matrix for
    the eight catalogs used last. Raises PickError, naming the embedder, where it raises or does
    not give finite rows of one length. Deterministic; safe to use from threads.
    """

    def __init__(
        self,
        vectors: Embedder | None = None,
        *,
        asking: Embedder | None = None,
        name: str = "embedding",
    ) -> None:
        self.name = name
        self._vectors: Embedder = WordVectors() if vectors is None else vectors
        self._asking = asking or self._vectors
        self._indexes = CatalogCache(self._build)
        self._lock = Lock()
        self._kept: OrderedDict[str, Vectors] = OrderedDict()
        self._asked: OrderedDict[tuple[str, ...], Asked] = OrderedDict()

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        """Every tool's weight; with a `limit`, of a large catalog only those that may be the best."""
        if not tools:
            return Hits([], None, similarity)
        matrix, asked = self._indexes.get(tools, query.deadline), self._question(query)
        self._check(matrix, asked)
        positions = None if limit is None else matrix.likely(asked, max(_LIKELY, limit))
        # Arrays do for hits, though to a type checker they are no sequences.
        return Hits(_plain(matrix.nearness(asked, positions)), _plain(positions), similarity)

    def likely(
        self, query: Query, tools: Sequence[HasDefinition], count: int
    ) -> Sequence[int] | None:
        """The tools that are nearest at a first look, which is all that a large catalog is read for;
        None for a small one."""
        matrix, asked = self._indexes.get(tools, query.deadline), self._question(query)
        self._check(matrix, asked)
        positions = matrix.likely(asked, count)
        return None if positions is None else positions.tolist()

    def weigh(
        self, query: Query, tools: Sequence[HasDefinition], positions: Sequence[int]
    ) -> Sequence[float]:
        """The weights of the tools at these positions."""
        matrix, asked = self._indexes.get(tools, query.deadline), self._question(query)
        self._check(matrix, asked)
        weights: Sequence[float] = _plain(
            matrix.nearness(asked, numpy().asarray(positions, "int64"))
        )
        return weights

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        """For the tools at these positions, the nearest of their texts and how near it is."""
        matrix, asked = self._indexes.get(tools, query.deadline), self._question(query)
        self._check(matrix, asked)
        return [_explanation(tools[i].get_definition(), matrix.texts_of(asked, i)) for i in picked]

    def _question(self, query: Query) -> Asked:
        key = (query.text, *query.earlier)
        with self._lock:
            kept = self._asked.get(key)
        if kept is None:
            parts = segments(query.text)
            texts = [*key, *(parts if len(parts) > 1 else ())]
            rows = self._embedded(texts, self._asking)
            kept = as_asked(rows, len(query.earlier))
            with self._lock:
                _keep(self._asked, {key: kept}, _KEPT_QUERIES)
        return kept

    def _build(self, definitions: Sequence[ToolDefinition]) -> Matrix:
        if isinstance(self._vectors, CatalogEmbedder):
            said = [fields(definition) for definition in definitions]
            rows = self._checked(self._vectors.embed_catalog([_parts(f) for f in said]), len(said))
            examples = [example.request for d in definitions for example in d.examples]
            more = self._embedded(examples) if examples else rows[:0]
            return Matrix.interleaved(rows, more, [len(d.examples) for d in definitions])
        with self._lock:
            found = {d.digest: self._kept[d.digest] for d in definitions if d.digest in self._kept}
        new = {d.digest: _texts(d) for d in definitions if d.digest not in found}
        if new:
            rows = self._embedded([text for texts in new.values() for text in texts])
            ends = accumulate(len(texts) for texts in new.values())
            for (digest, texts), end in zip(new.items(), ends, strict=True):
                found[digest] = rows[end - len(texts) : end]
        with self._lock:
            _keep(self._kept, found, _KEPT)
        groups = [found[definition.digest] for definition in definitions]
        if len({group.shape[1] for group in groups}) > 1:
            raise PickError(f"embedder {self._embedder} changed the length of its rows")
        return Matrix.of(numpy().concatenate(groups), [len(group) for group in groups])

    @property
    def _embedder(self) -> str:
        name = getattr(self._vectors, "name", None)
        return repr(name if isinstance(name, str) else type(self._vectors).__name__)

    def _embedded(self, texts: Sequence[str], embedder: Embedder | None = None) -> Vectors:
        try:
            rows = (embedder or self._vectors).embed(texts)
        except ToolcribError:
            raise
        except Exception as error:
            raise PickError(f"embedder {self._embedder} raised {type(error).__name__}") from error
        return self._checked(rows, len(texts))

    def _checked(self, given: object, count: int) -> Vectors:
        np = numpy()
        try:
            rows: Vectors = np.asarray(given, "float32")
        except (TypeError, ValueError, OverflowError):
            raise PickError(f"embedder {self._embedder} gave no rows of numbers") from None
        if rows.ndim != 2 or len(rows) != count or not rows.shape[1]:
            raise PickError(
                f"embedder {self._embedder} gave shape {rows.shape} for {count} texts, not a row each"
            )
        lengths = np.sqrt(np.vecdot(rows, rows))
        if not np.isfinite(lengths).all():
            raise PickError(f"embedder {self._embedder} gave a number that is not finite")
        if not ((abs(lengths - 1) < 1e-3) | (lengths == 0)).all():
            rows = rows / np.maximum(lengths, 1e-12)[:, None]
        return rows

    def _check(self, matrix: Matrix, asked: Asked) -> None:
        if matrix.dimensions != len(asked.whole):
            raise PickError(
                f"embedder {self._embedder} gave {len(asked.whole)} numbers for a request and "
                f"{matrix.dimensions} for a tool"
            )


def similarity(weight: float) -> float:
    """The score of a cosine."""
    return min(max((weight - _UNRELATED) / (1 - _UNRELATED), 0.0), 1.0)


def _plain(array: Any) -> Any:
    return array


def _keep(kept: OrderedDict[Any, Any], new: dict[Any, Any], size: int) -> None:
    """Room is made at the expense of what was not asked for longest."""
    for key, value in new.items():
        kept[key] = value
        kept.move_to_end(key)
    while len(kept) > size:
        kept.popitem(last=False)


def _parts(said: Fields) -> list[tuple[float, str]]:
    """What stands for a tool, by how much it counts."""
    tags = f" [{said.tags}]" if said.tags else ""
    return [
        (1.0, f"{spaced_name(said.name)}: {said.description}{tags}"),
        (_PARAMETERS, spaced_name(said.parameters)),
        (_PARAMETERS, said.parameter_text),
    ]


def _texts(definition: ToolDefinition) -> list[str]:
    """What stands for a tool: its description first, then the request of each example."""
    found = fields(definition)
    text = f"{spaced_name(found.name)}: {found.description}"
    if found.parameters:
        text += f" ({spaced_name(found.parameters)})"
    if found.tags:
        text += f" [{found.tags}]"
    return [text, *(example.request for example in definition.examples)]


def _explanation(definition: ToolDefinition, nearness: Vectors) -> Score:
    nearest = int(nearness.argmax())
    cosine = round(float(nearness[nearest]), 3)
    if nearest == 0:
        return Score(0.0, f"near its description (cosine {cosine})", {"cosine": cosine})
    example = definition.examples[nearest - 1].request
    return Score(
        0.0,
        f"near its example {example!r} (cosine {cosine})",
        {"cosine": cosine, "example": example},
    )
