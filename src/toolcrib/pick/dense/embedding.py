"""The semantic scorer: how near a request lies to what a tool says of itself and to its examples.

Rule: a vector is made once for all catalogs: it belongs to a definition's digest and nothing else.
Only an embedder that weighs words by their catalog is asked anew for each.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from toolcrib.errors import PickError, ToolcribError
from toolcrib.pick.dense.matrix import Matrix, QueryVectors, best_of, query_vectors
from toolcrib.pick.dense.vectors import WordVectors
from toolcrib.pick.scoring.arrays import checked_rows, numpy, units
from toolcrib.pick.scoring.catalog_cache import CatalogCache
from toolcrib.pick.scoring.hits import Hits
from toolcrib.pick.scoring.scorer import Score
from toolcrib.pick.text.documents import parts_of, texts_of
from toolcrib.pick.text.query import Query
from toolcrib.pick.text.reading import part_read
from toolcrib.pick.text.segments import segments
from toolcrib.values.definition import HasDefinition, ToolDefinition

if TYPE_CHECKING:
    from toolcrib.pick.scoring.arrays import Vectors

_UNRELATED = 0.1
_LIKELY = 1_000
_AT_ONCE = 256
_KEPT = 20_000
_KEPT_QUERIES = 64


class Embedder(Protocol):
    """Texts to unit vectors, one row each; equal texts must give equal rows.

    One that was made for some languages may have a method `reads(text)`: what part of a text it can
    read, 0..1.
    """

    def embed(self, texts: Sequence[str]) -> Vectors: ...


@runtime_checkable
class CatalogEmbedder(Protocol):
    """An embedder for which a document's vector depends on the documents beside it, and is cheap.

    A document is its parts, each with a weight: (weight, text). What comes last are the rows; before
    that comes a None every now and then, for who has no more time.
    """

    def embed(self, texts: Sequence[str]) -> Vectors: ...
    def catalog_steps(
        self, documents: Iterable[Sequence[tuple[float, str]]]
    ) -> Iterator[Vectors | None]: ...


class EmbeddingScorer:
    """Scores by how near a request lies to a tool's description, or to the nearest of its examples.

    With `q` the request's vector and `s` those of its parts (`segments`; at most 8), a tool's weight
    is `0.7 cos(q) + 0.3 max cos(s)`, in -1..1, the best of its texts; for a request of one part,
    and with `in_parts=False`, it is the cosine. Of a conversation, `q` is the last turn's vector and
    0.3 of the mean of those of the turns before. What of a request the embedder cannot read (its
    `reads`) counts as a cosine of 0.3 to any tool. The description reads "split name: description
    (parameters) [tags]".

    The score is `(weight - 0.1) / 0.9`, and 0 below: 0.1 is what a request and a tool that have
    nothing to do with one another commonly reach.

    `vectors` is any embedder; the default, `WordVectors`, raises MissingExtraError here without the
    extra "pick" and is loaded at the first request. `asking` embeds the requests instead of it, with
    the same model; of a `CachedEmbedder` its own embedder does, and no request is kept on disk.
    Vectors are kept by definition digest, a matrix for the eight catalogs used last. Raises PickError,
    naming the embedder, where it raises or does not give finite rows of one length; and once the
    query's deadline has passed: it is looked at after at most 256 tools, and the next request goes on
    there. Deterministic; safe to use from threads.
    """

    def __init__(
        self,
        vectors: Embedder | None = None,
        *,
        asking: Embedder | None = None,
        name: str = "embedding",
        in_parts: bool = True,
    ) -> None:
        self.name = name
        self._vectors: Embedder = WordVectors() if vectors is None else vectors
        own: Embedder = getattr(self._vectors, "uncached", self._vectors)
        self._asking = own if asking is None else asking
        self._in_parts = in_parts
        self._indexes = CatalogCache.in_steps(self._steps)
        self._lock = Lock()
        self._kept: OrderedDict[str, Vectors] = OrderedDict()
        self._asked: OrderedDict[tuple[str, ...], QueryVectors] = OrderedDict()

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        """Every tool's weight; with a `limit`, of a large catalog only those that may be the best."""
        if not tools:
            return Hits([], None, similarity)
        glance = None if limit is None else self.glance(query, tools)
        positions = None if glance is None else best_of(glance, max(_LIKELY, limit or 0))
        return Hits(self.weights(query, tools, positions), positions, similarity)

    def glance(self, query: Query, tools: Sequence[HasDefinition]) -> Any:
        """What each tool's weight is at a first look, as an array; None for a small catalog, which
        needs none."""
        matrix, asked = self._both(query, tools)
        return matrix.glance(asked)

    def weights(self, query: Query, tools: Sequence[HasDefinition], positions: Any = None) -> Any:
        """The weights of the tools at these positions, an array of them, or of all; as an array."""
        matrix, asked = self._both(query, tools)
        return matrix.nearness(asked, positions)

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        """For the tools at these positions, the nearest of their texts and how near it is."""
        matrix, asked = self._both(query, tools)
        return [_explanation(tools[i].get_definition(), matrix.texts_of(asked, i)) for i in picked]

    def _both(self, query: Query, tools: Sequence[HasDefinition]) -> tuple[Matrix, QueryVectors]:
        matrix, asked = self._indexes.get(tools, query.deadline), self._question(query)
        if matrix.dimensions != len(asked.whole):
            raise PickError(
                f"embedder {self._embedder} gave {len(asked.whole)} numbers for a request and "
                f"{matrix.dimensions} for a tool"
            )
        return matrix, asked

    def _question(self, query: Query) -> QueryVectors:
        key = (query.text, *query.earlier)
        with self._lock:
            kept = self._asked.get(key)
        if kept is None:
            parts = segments(query.text) if self._in_parts else ()
            texts = [*key, *(parts if len(parts) > 1 else ())]
            rows = self._embedded(texts, self._asking).copy()
            read = part_read(self._asking, query.text, self._embedder)
            kept = query_vectors(rows, len(query.earlier), read)
            with self._lock:
                _keep(self._asked, {key: kept}, _KEPT_QUERIES)
        return kept

    def _steps(
        self, definitions: Sequence[ToolDefinition], _kept: Sequence[Matrix]
    ) -> Iterator[Matrix | None]:
        if isinstance(self._vectors, CatalogEmbedder):
            return self._weighed_by_catalog(definitions, self._vectors)
        return self._each_alone(definitions)

    def _weighed_by_catalog(
        self, definitions: Sequence[ToolDefinition], embedder: CatalogEmbedder
    ) -> Iterator[Matrix | None]:
        rows: Any = None
        for rows in embedder.catalog_steps(parts_of(each) for each in definitions):
            if rows is None:
                yield None
        rows = units(checked_rows(rows, len(definitions), who=f"embedder {self._embedder}"))
        more = rows[:0]
        requests = [example.request for each in definitions for example in each.examples]
        for start in range(0, len(requests), _AT_ONCE):
            some = self._embedded(requests[start : start + _AT_ONCE])
            more = numpy().concatenate([more, some])
            yield None
        yield Matrix.interleaved(rows, more, [len(each.examples) for each in definitions])

    def _each_alone(self, definitions: Sequence[ToolDefinition]) -> Iterator[Matrix | None]:
        with self._lock:
            found = {d.digest: self._kept[d.digest] for d in definitions if d.digest in self._kept}
        new = list({d.digest: d for d in definitions if d.digest not in found}.values())
        for start in range(0, len(new), _AT_ONCE):
            made = self._made(new[start : start + _AT_ONCE])
            found |= made
            with self._lock:
                _keep(self._kept, made, _KEPT)
            yield None
        groups = [found[definition.digest] for definition in definitions]
        if len({group.shape[1] for group in groups}) > 1:
            raise PickError(f"embedder {self._embedder} changed the length of its rows")
        yield Matrix.of(numpy().concatenate(groups), [len(group) for group in groups])

    def _made(self, definitions: Sequence[ToolDefinition]) -> dict[str, Vectors]:
        texts = [texts_of(definition) for definition in definitions]
        rows = self._embedded([text for group in texts for text in group])
        ends = accumulate(map(len, texts))
        return {
            definition.digest: rows[end - len(group) : end].copy()  # it may be the embedder's own
            for definition, group, end in zip(definitions, texts, ends, strict=True)
        }

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
        return units(checked_rows(rows, len(texts), who=f"embedder {self._embedder}"))


def similarity(weight: float) -> float:
    """The score of a cosine."""
    return min(max((weight - _UNRELATED) / (1 - _UNRELATED), 0.0), 1.0)


def _keep(kept: OrderedDict[Any, Any], new: dict[Any, Any], size: int) -> None:
    """Room is made at the expense of what was not asked for longest."""
    for key, value in new.items():
        kept[key] = value
        kept.move_to_end(key)
    while len(kept) > size:
        kept.popitem(last=False)


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
