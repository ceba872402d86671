"""The semantic scorer: how near a request is to a tool's description and to its examples.

Rule: a vector is made once for all catalogs, because it depends only on a definition's digest. Only
an embedder that weighs words by their catalog is asked again for each catalog.
"""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b, sha256
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from toolcrib.errors import MissingExtraError, PickError, SourceError
from toolcrib.pick.query import Query, part_read, parts_of, texts_of
from toolcrib.pick.scorer import (
    CatalogCache,
    Hits,
    Score,
    blamed,
    checked_rows,
    digests_in_steps,
    numpy,
    together,
    trim,
    units,
)
from toolcrib.pick.vectors import (
    Matrix,
    QueryVectors,
    VectorFile,
    WordVectors,
    best_of,
    query_vectors,
)
from toolcrib.pick.words import batched, clip, segments
from toolcrib.storage.cache_folder import cache_folder
from toolcrib.threads import LoopThread
from toolcrib.values.definition import HasDefinition, ToolDefinition
from toolcrib.values.typed import names_wrong_types

if TYPE_CHECKING:
    from toolcrib.pick.scorer import Vectors

_UNRELATED_COSINE = 0.1
_MOST_LIKELY = 1_000
_AT_ONCE = 256
_MOST_KEPT = 20_000
_KEPT_QUERIES = 64


class Embedder(Protocol):
    """Turns texts into unit vectors, one row for each text. Equal texts must give equal rows.

    An embedder for certain languages may have a method `reads(text)`, which says what share of a
    text it can read, 0..1.
    """

    def embed(self, texts: Sequence[str]) -> Vectors: ...


@runtime_checkable
class CatalogEmbedder(Protocol):
    """An embedder whose cheap document vectors depend on the other documents of the catalog.

    A document consists of parts with weights: (weight, text). The last value is the rows. Before
    that, a None is yielded now and then, so that a caller who is out of time can stop.
    """

    def embed(self, texts: Sequence[str]) -> Vectors: ...
    def catalog_steps(
        self, documents: Iterable[Sequence[tuple[float, str]]]
    ) -> Iterator[Vectors | None]: ...


class EmbeddingScorer:
    """Scores by how near a request is to a tool's description, or to the nearest of its examples.

    With `q` the request's vector and `s` those of its parts (`segments`; at most 8), a tool's
    weight is `0.7 cos(q) + 0.3 max cos(s)`, in -1..1, for the best of its texts. For a request of
    one part, and with `in_parts=False`, it is the cosine. For a conversation, `q` is the last
    turn's vector plus 0.3 of the mean of those of the earlier turns. What the embedder cannot read
    of a request (its `reads`) counts as a cosine of 0.3 to any tool. The description reads "split
    name: description (parameters) [tags]".

    The score is `(weight - 0.1) / 0.9`, and 0 for lower weights, since 0.1 is commonly reached by a
    request and a tool that have nothing to do with each other.

    `vectors` is any embedder. The default, `WordVectors`, raises MissingExtraError here without the
    extra "pick", and is loaded at the first request. `asking` embeds the requests in its place,
    with the same model. For a `CachedEmbedder` its own embedder does so, and no request is stored
    on disk. Vectors are kept by definition digest, with a matrix for each of the eight catalogs
    used last. Raises PickError, which names the embedder, if it raises or does not return finite
    rows of one length. Also raises PickError once the query's deadline has passed, which is checked
    at least every 256 tools; the next request continues there. Deterministic, and safe to use from
    threads.
    """

    @names_wrong_types
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
        uncached: Embedder = getattr(self._vectors, "uncached", self._vectors)
        self._query_embedder = uncached if asking is None else asking
        self._in_parts = in_parts
        is_by_catalog = isinstance(self._vectors, CatalogEmbedder)
        steps = self._steps_by_catalog if is_by_catalog else self._steps_by_tool
        self._indexes = CatalogCache.in_steps(steps)
        self._lock = Lock()
        self._kept: dict[str, Vectors] = {}
        self._cached_queries: dict[tuple[str, ...], QueryVectors] = {}

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        """Return every tool's weight. With a `limit`, for a large catalog, only those that may be
        the best."""
        if not tools:
            return Hits([], None, similarity)
        glance = None if limit is None else self.glance(query, tools)
        positions = None if glance is None else best_of(glance, max(_MOST_LIKELY, limit or 0))
        return Hits(self.weights(query, tools, positions), positions, similarity)

    def glance(self, query: Query, tools: Sequence[HasDefinition]) -> Any:
        """Return an estimate of each tool's weight as an array, or None for a small catalog, which
        needs none."""
        matrix, vectors = self._matrix_and_vectors(query, tools)
        return matrix.glance(vectors)

    def weights(self, query: Query, tools: Sequence[HasDefinition], positions: Any = None) -> Any:
        """Return the weights of the tools at these positions (an array), or of all, as an array."""
        matrix, vectors = self._matrix_and_vectors(query, tools)
        return matrix.nearness(vectors, positions)

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        """Return, for the tools at these positions, the nearest of their texts and how near it is."""
        matrix, vectors = self._matrix_and_vectors(query, tools)
        return [
            _explanation(tools[i].get_definition(), matrix.texts_of(vectors, i)) for i in picked
        ]

    def _matrix_and_vectors(
        self, query: Query, tools: Sequence[HasDefinition]
    ) -> tuple[Matrix, QueryVectors]:
        matrix, vectors = self._indexes.get(tools, query.deadline), self._query_vectors(query)
        if matrix.dimensions != len(vectors.whole):
            raise PickError(
                f"embedder {self._embedder} gave {len(vectors.whole)} numbers for a request and "
                f"{matrix.dimensions} for a tool"
            )
        return matrix, vectors

    def _query_vectors(self, query: Query) -> QueryVectors:
        key = (query.text, *query.earlier)
        with self._lock:
            cached = self._cached_queries.get(key)
        if cached is None:
            parts = segments(query.text) if self._in_parts else ()
            texts = [*key, *(parts if len(parts) > 1 else ())]
            rows = self._embedded(texts, self._query_embedder).copy()
            share = part_read(self._query_embedder, query.text, self._embedder)
            cached = query_vectors(rows, len(query.earlier), share)
            with self._lock:
                self._cached_queries[key] = cached
                trim(self._cached_queries, _KEPT_QUERIES)
        return cached

    def _steps_by_catalog(
        self, definitions: Sequence[ToolDefinition], _kept: Sequence[Matrix]
    ) -> Iterator[Matrix | None]:
        rows: Any = None
        for rows in cast("CatalogEmbedder", self._vectors).catalog_steps(
            parts_of(definition) for definition in definitions
        ):
            if rows is None:
                yield None
        rows = units(checked_rows(rows, len(definitions), source=f"embedder {self._embedder}"))
        example_rows = rows[:0]
        requests = [
            example.request for definition in definitions for example in definition.examples
        ]
        for batch in batched(requests, _AT_ONCE):
            example_rows = numpy().concatenate([example_rows, self._embedded(batch)])
            yield None
        yield Matrix.interleaved(
            rows, example_rows, [len(definition.examples) for definition in definitions]
        )

    def _steps_by_tool(
        self, definitions: Sequence[ToolDefinition], _kept: Sequence[Matrix]
    ) -> Iterator[Matrix | None]:
        yield from digests_in_steps(definitions)
        with self._lock:
            vectors = {
                d.digest: self._kept[d.digest] for d in definitions if d.digest in self._kept
            }
        missing = list({d.digest: d for d in definitions if d.digest not in vectors}.values())
        for batch in batched(missing, _AT_ONCE):
            new_vectors = self._computed(batch)
            vectors |= new_vectors
            with self._lock:
                self._kept |= new_vectors
                trim(self._kept, _MOST_KEPT)
            yield None
        groups = [vectors[definition.digest] for definition in definitions]
        if len({group.shape[1] for group in groups}) > 1:
            raise PickError(f"embedder {self._embedder} changed the length of its rows")
        yield Matrix.of(numpy().concatenate(groups), [len(group) for group in groups])

    def _computed(self, definitions: Sequence[ToolDefinition]) -> dict[str, Vectors]:
        texts = [texts_of(definition) for definition in definitions]
        rows = self._embedded([text for group in texts for text in group])
        ends = accumulate(map(len, texts))
        return {
            definition.digest: rows[end - len(group) : end].copy()  # may be the embedder's array
            for definition, group, end in zip(definitions, texts, ends, strict=True)
        }

    @property
    def _embedder(self) -> str:
        name = getattr(self._vectors, "name", None)
        return repr(name if isinstance(name, str) else type(self._vectors).__name__)

    def _embedded(self, texts: Sequence[str], embedder: Embedder | None = None) -> Vectors:
        source = f"embedder {self._embedder}"
        with blamed(source):
            rows = (embedder or self._vectors).embed(texts)
        return units(checked_rows(rows, len(texts), source=source))


def similarity(weight: float) -> float:
    """Return the score for a cosine."""
    return min(max((weight - _UNRELATED_COSINE) / (1 - _UNRELATED_COSINE), 0.0), 1.0)


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


# Vectors on disk, which are made once for all later processes.
#
# Rule: a stored vector is bit by bit the one that the embedder gave, or it is missing. Vectors that
# cannot be stored on disk are kept in memory, since a cache must not make a pick fail.

_FILE = "vectors.sqlite"
_IN_MEMORY = 4096
_CACHED_AT_ONCE = 256
"""Texts that are embedded before they are stored, so that an interruption loses no more than these."""
_DTYPE = "<f4"


class CachedEmbedder:
    """Any embedder, which is asked only for texts that are not stored yet.

    `name` says whose vectors they are: model, version, number of dimensions and everything else
    that they depend on. By default it is the embedder's own `name`. Embedders of different names
    may share a file. This is meant for the texts of tools. Scorers embed requests by `uncached`,
    the embedder itself.

    `path` is the file, by default `vectors.sqlite` in the user's cache folder (`TOOLCRIB_CACHE`,
    `XDG_CACHE_HOME`), which several processes may use at once. It grows to `max_bytes`, and then
    loses what was not used for longest. A broken file is replaced. It contains no texts, but
    vectors reveal what a text was about, so only its owner may read it. If no file can be written,
    the last 4,096 vectors are kept in memory instead, and a RuntimeWarning says so, once.

    Raises ValueError for an embedder without a name. `embed` raises SourceError if a given `path`
    holds a file of another kind, and PickError if the embedder does not give one finite row for
    each text, all of one length. Safe to use from threads and after a fork.
    """

    @names_wrong_types
    def __init__(
        self,
        embedder: Embedder,
        path: Path | str | None = None,
        *,
        name: str | None = None,
        max_bytes: int = 1 << 28,
    ) -> None:
        chosen_name = name or getattr(embedder, "name", None)
        if not isinstance(chosen_name, str) or not chosen_name:
            raise ValueError("CachedEmbedder: the embedder has no name; pass name=…")
        self.name = chosen_name
        self.uncached = embedder
        self._key = sha256(chosen_name.encode()).digest()
        self._memory: dict[bytes, bytes] = {}
        self._warned = False
        self._file: VectorFile | None = None
        try:
            file_path = Path(path).expanduser() if path else cache_folder() / _FILE
            self._file = VectorFile(file_path, max_bytes=max_bytes, sole=not path)
        except (SourceError, RuntimeError, OSError) as error:  # no home or working folder
            self._warn(error)

    @names_wrong_types
    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row for each text, in the form in which the embedder gives them."""
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        keys = [blake2b(text, key=self._key, digest_size=32).digest() for text in encoded]
        by_key = dict(zip(keys, texts, strict=True))
        rows = {
            key: numpy().frombuffer(stored, _DTYPE) for key, stored in self._kept(by_key).items()
        }
        rows |= self._computed([key for key in by_key if key not in rows], by_key)
        if len({len(row) for row in rows.values()}) > 1:  # another model uses the name now
            rows = self._computed(list(by_key), by_key)
        if not rows:
            return self.uncached.embed([])
        if len({len(row) for row in rows.values()}) > 1:
            raise PickError(f"embedder {self.name!r} gave rows of different lengths")
        vectors: Vectors = numpy().stack([rows[key] for key in keys]).astype("float32")
        return vectors

    def _computed(self, keys: Sequence[bytes], texts: Mapping[bytes, str]) -> dict[bytes, Vectors]:
        computed: dict[bytes, Vectors] = {}
        for batch in batched(keys, _CACHED_AT_ONCE):
            answer = self.uncached.embed([texts[key] for key in batch])
            source = f"embedder {self.name!r}"
            rows: Vectors = checked_rows(answer, len(batch), source=source, dtype=_DTYPE)
            new_rows = dict(zip(batch, rows, strict=True))
            self._keep({key: row.tobytes() for key, row in new_rows.items()})
            computed |= new_rows
        return computed

    def _kept(self, keys: Mapping[bytes, object]) -> dict[bytes, bytes]:
        stored = {key: row for key in keys if (row := self._memory.get(key)) is not None}
        missing = [key for key in keys if key not in stored]
        if missing and self._file is not None:
            try:
                stored |= self._file.get(missing)
            except (OSError, sqlite3.Error) as error:
                self._warn(error)
        return stored

    def _keep(self, entries: Mapping[bytes, bytes]) -> None:
        if self._file is not None:
            try:
                self._file.put(entries)
            except (OSError, sqlite3.Error) as error:
                self._warn(error)
            else:
                return
        self._memory |= entries
        trim(self._memory, _IN_MEMORY)

    def _warn(self, error: Exception) -> None:
        if self._warned or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            return
        self._warned = True
        reason = error.strerror if isinstance(error, OSError) else error
        warnings.warn(
            f"vectors are kept in memory only, because the file cannot be used: {reason}",
            RuntimeWarning,
            stacklevel=2,
        )


# An event loop in a daemon thread, for synchronous code that has to wait for coroutines.
#
# Rule: there is one loop for all calls, so that a client's connections outlive each call. It is
# started at the first call and not used after a fork. It ends with its owner, or with the program.

T = TypeVar("T")

_ENDING_SECONDS = 1.0
"""Seconds that tasks and connections get to end when the program does."""


class OwnLoop:
    """Runs coroutines to their end, for any number of waiting threads.

    `owner` is the object whose coroutines they are. It lives as long as the loop. If it were
    collected earlier, as part of a cycle, its connections would be lost, since only the end of the
    loop can close them.
    """

    def __init__(self, owner: object) -> None:
        self._owner = owner
        self._lock = threading.Lock()
        self._loop_thread: LoopThread | None = None

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what `await work()` returns, or raise what it raises."""
        return asyncio.run_coroutine_threadsafe(work(), self._running().loop).result()

    def _running(self) -> LoopThread:
        loop_thread = self._loop_thread
        if loop_thread is not None and not loop_thread.is_alive():
            self._lock = threading.Lock()  # the old lock may have been held at the fork
            loop_thread = self._loop_thread = None
        if loop_thread is None:
            with self._lock:
                if self._loop_thread is None:
                    patience = _ENDING_SECONDS / 5
                    new = LoopThread("toolcrib-loop", owner=self._owner, patience=patience)
                    self._loop_thread = new
                    weakref.finalize(self, new.stop, _ENDING_SECONDS)
                loop_thread = self._loop_thread
        return loop_thread


# Any embedding function as an embedder: a provider's endpoint, your own model.
#
# Rule: the function is never trusted. Its rows are checked and scaled to length 1, and its
# exceptions become a PickError that names the embedder. toolcrib's own errors (a ClientError) are
# raised unchanged.

Rows: TypeAlias = Sequence[Sequence[float]]
EmbeddingFunction: TypeAlias = Callable[[list[str]], Rows | Awaitable[Rows]]

_MOST_CHARACTERS = 8_192
_REQUESTS_AT_ONCE = 4


class FunctionEmbedder:
    """Embeds texts with a synchronous or `async` function from a list of texts to one row for each
    text.

    `name` says which model it is, for errors and for `CachedEmbedder`. The function gets at most
    `batch` texts at once, each of at most 8,192 characters (the beginning of a longer one), and
    none of them blank. A text without a word gets a row of zeros. An `async` function is awaited on
    this embedder's own event loop, in a separate thread, up to four batches at once. It must not
    use anything that is bound to another loop (`EmbeddingsClient` is not).

    `embed` blocks, and so belongs in a thread, where scorers run. It raises PickError, which names
    the embedder, if the function raises or does not return finite numbers, one row for each text,
    all of the same length. Raises ValueError for an empty name or an empty batch, and
    MissingExtraError without the extra "pick" (numpy). As safe to use from threads as the function
    is, and safe after a fork.
    """

    @names_wrong_types
    def __init__(self, function: EmbeddingFunction, *, name: str, batch: int = 64) -> None:
        if not name or batch < 1:
            raise ValueError("FunctionEmbedder: give a name, and a batch of at least 1")
        if find_spec("numpy") is None:
            raise MissingExtraError("pick", "FunctionEmbedder")
        self.name = name
        self._function = function
        self._batch = batch
        self._loop = OwnLoop(function)
        self._dimensions: int | None = None

    @names_wrong_types
    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors, shape (len(texts), dimensions)."""
        clipped = [clip(text)[:_MOST_CHARACTERS].strip() for text in texts]
        rows = self._rows([text for text in clipped if text])
        if self._dimensions is None and clipped:  # all are blank, and no row was made before
            self._rows(["a"])
        vectors: Vectors = numpy().zeros((len(clipped), self._dimensions or 0), "float32")
        vectors[numpy().array([bool(text) for text in clipped], bool)] = rows
        return vectors

    def _rows(self, texts: list[str]) -> Vectors | float:
        """Return the function's vectors for these texts, scaled to length 1. No texts give no
        vectors."""
        if not texts:
            return 0.0
        batches = [
            texts[start : start + self._batch] for start in range(0, len(texts), self._batch)
        ]
        with blamed(f"embedder {self.name!r}"):
            answers = self._answers(batches)
        checked = [self._checked(*pair) for pair in zip(answers, batches, strict=True)]
        rows: Vectors = numpy().concatenate(checked)
        return rows

    def _answers(self, batches: list[list[str]]) -> Sequence[object]:
        first, rest = self._function(batches[0]), batches[1:]
        if inspect.isawaitable(first):
            pending = first
            return self._loop.run(lambda: self._awaited(pending, rest))
        return [first, *(self._function(batch) for batch in rest)]

    async def _awaited(self, first: Awaitable[Rows], rest: list[list[str]]) -> Sequence[object]:
        semaphore = asyncio.Semaphore(_REQUESTS_AT_ONCE)

        async def answer_of(batch: list[str] | None) -> object:
            async with semaphore:
                return await (first if batch is None else cast("Any", self._function(batch)))

        return await together(answer_of(batch) for batch in (None, *rest))

    def _checked(self, answer: object, texts: list[str]) -> Vectors:
        source = f"embedder {self.name!r}"
        rows = checked_rows(answer, len(texts), source=source, dtype="float64")
        if self._dimensions not in (None, rows.shape[1]):
            raise PickError(
                f"{source} gave {rows.shape[1]} numbers per text, but {self._dimensions} before"
            )
        self._dimensions = rows.shape[1]
        return units(rows)
