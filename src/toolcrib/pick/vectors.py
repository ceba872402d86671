"""Texts as vectors, offline: WordLlama's token vectors, read from the files in its wheel.

Rule: only this module uses safetensors and WordLlama's tokenizer. The `wordllama` package itself is
never imported, since it sets up logging and loads an HTTP client. It only provides the files.

A text's vector is the mean of its tokens' vectors after conversion to lower case, which gained
0.014 nDCG@10 on the three sets of `toolcrib eval-pick`. When a whole catalog is embedded at once, a
token counts for less if more of the texts have it (`catalog_steps`). A request's tokens all count
the same, since weighing those, too, was worse on catalogs of 20 tools.
"""

from __future__ import annotations

import sqlite3
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from errno import EEXIST
from functools import lru_cache
from hashlib import blake2b
from importlib.util import find_spec
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from toolcrib.errors import MissingExtraError, SourceError
from toolcrib.pick.query import legible
from toolcrib.pick.scorer import numpy
from toolcrib.pick.words import batched, clip
from toolcrib.values.typed import names_wrong_types

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from toolcrib.pick.scorer import Vectors

_WEIGHTS = Path("weights", "l2_supercat_256.safetensors")
_TOKENIZER = Path("tokenizers", "l2_supercat_tokenizer_config.json")
_FEATURE = "WordVectors"
_MODULES = ("numpy", "safetensors", "tokenizers")
_DIMENSIONS = 256

_COMMON = 0.1
"""`a` in a token's weight, a / (a + share of the texts that have it): S. Arora, Y. Liang, T. Ma, "A
Simple but Tough-to-Beat Baseline for Sentence Embeddings", 2017, with the catalog as the corpus."""

_MOST_TOKENS = 1 << 16
_DOCUMENTS_AT_ONCE = 256
_BATCH_BYTES = 1 << 13
_KEPT_WORDS = 100_000
_LONGEST_WORD = 48


class WordVectors:
    """Embeds texts with WordLlama's vectors, which are loaded at first use and shared by all
    instances.

    Raises MissingExtraError at once if the extra "pick" is not installed. `embed` raises
    SourceError if the model's files are not the expected ones. Safe to use from threads and after a
    fork.
    """

    name = "WordLlama l2_supercat 256"

    @names_wrong_types
    def __init__(self) -> None:
        self._folder = package_folder("wordllama", _MODULES, "pick", _FEATURE)

    def reads(self, text: str) -> float:
        """Return the share of a text whose words these vectors know, which is mostly Latin letters."""
        return legible(text)

    @names_wrong_types
    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors, shape (len(texts), 256). A text without a token gives zeros.

        For a text longer than 16,384 characters, the two ends are read.
        """
        model, np = _model(self._folder), numpy()
        vectors: Vectors = np.zeros((len(texts), _DIMENSIONS), "float32")
        for row, text in enumerate(texts):
            tokens = np.frombuffer(_tokens(model, text), "uint16")
            total = model.table[tokens].sum(axis=0, dtype="float32")
            vectors[row] = total / max(sqrt(total @ total), 1e-9)
        return vectors

    def catalog_steps(
        self, documents: Iterable[Sequence[tuple[float, str]]]
    ) -> Iterator[Vectors | None]:
        """Yield None between steps, then a unit vector for each document: the weighted sum of those
        of its parts.

        A part is (weight, text). In its vector a token counts 0.1 / (0.1 + share), with the share
        of the documents that have the token, so a row depends on all documents. A None comes after
        every few thousand tokens that were read, and again that were added up.
        """
        model, np = _model(self._folder), numpy()
        batches: list[_Batch] = []
        shares = np.zeros((len(model.table), 1), "float32")
        for batch in _batches(model, documents):
            batches.append(batch)
            shares[:, 0] += _documents_with(batch, len(shares))
            yield None
        shares /= max(sum(len(batch.parts) for batch in batches), 1)
        table = model.table * (_COMMON / (_COMMON + shares))
        vectors = [np.zeros((0, _DIMENSIONS), "float32")]
        for batch in batches:
            rows = _sums(table.take(batch.tokens, axis=0), batch.lengths)
            rows *= batch.weights[:, None] / _lengths(rows)
            rows = _sums(rows, batch.parts)
            vectors.append(rows / _lengths(rows))
            yield None
        yield np.concatenate(vectors)


class _Words(dict[str, bytes]):
    """The tokens of each lower-case word, as 16-bit numbers, which are made when they are first
    needed.

    Long words are not kept, and if there are too many words, all are dropped.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, word: str) -> bytes:
        word_tokens = array(
            "H", self._tokenizer.encode(word, add_special_tokens=False).ids
        ).tobytes()
        if len(word) <= _LONGEST_WORD:
            if len(self) >= _KEPT_WORDS:
                self.clear()
            self[word] = word_tokens
        return word_tokens


class _WordModel(msgspec.Struct, frozen=True):
    words: _Words
    table: NDArray[np.float16]


class _Batch(msgspec.Struct, frozen=True):
    """The tokens of some documents one after another; how many tokens each part has and its weight;
    and how many parts each document has."""

    tokens: NDArray[np.uint16]
    lengths: NDArray[np.int64]
    weights: NDArray[np.float32]
    parts: NDArray[np.int64]


def _batches(
    model: _WordModel, documents: Iterable[Sequence[tuple[float, str]]]
) -> Iterator[_Batch]:
    token_bytes: list[bytes] = []
    weights: list[float] = []
    parts: list[int] = []
    size = 0
    for document in documents:
        parts.append(len(document))
        for weight, text in document:
            weights.append(weight)
            token_bytes.append(_tokens(model, text))
            size += len(token_bytes[-1])
        if size >= _BATCH_BYTES or len(parts) >= _DOCUMENTS_AT_ONCE:
            yield _batch(token_bytes, weights, parts)
            token_bytes, weights, parts, size = [], [], [], 0
    if parts:
        yield _batch(token_bytes, weights, parts)


def _batch(token_bytes: list[bytes], weights: list[float], parts: list[int]) -> _Batch:
    np = numpy()
    return _Batch(
        np.frombuffer(b"".join(token_bytes), "uint16"),
        np.array([len(tokens) // 2 for tokens in token_bytes], "int64"),
        np.array(weights, "float32"),
        np.array(parts, "int64"),
    )


def _documents_with(batch: _Batch, token_count: int) -> NDArray[np.int64]:
    """Return in how many documents of a batch each token occurs."""
    np = numpy()
    document_of = np.repeat(np.repeat(np.arange(len(batch.parts)), batch.parts), batch.lengths)
    pairs = np.sort(document_of * token_count + batch.tokens)
    is_first = np.diff(pairs, prepend=-1) > 0
    return np.bincount(pairs[is_first] % token_count, minlength=token_count)  # type: ignore[no-any-return]


def _sums(rows: Vectors, counts: NDArray[np.int64]) -> Vectors:
    """Return the sum of the first `counts[0]` rows, of the next `counts[1]`, and so on, with zeros
    for no rows."""
    np = numpy()
    sums: Vectors = np.empty((len(counts), rows.shape[1]), "float32")
    start = 0
    for row, count in enumerate(counts.tolist()):
        np.add.reduce(rows[start : start + count], axis=0, out=sums[row])
        start += count
    return sums


def _lengths(rows: Vectors) -> Vectors:
    """Return the length of each row, as a column. A row without length counts as 1e-9 long."""
    np = numpy()
    return np.maximum(np.sqrt(np.vecdot(rows, rows)), 1e-9)[:, None]  # type: ignore[no-any-return]


def _tokens(model: _WordModel, text: str) -> bytes:
    """Return a text's tokens as 16-bit numbers.

    Read word by word, they are the same as this tokenizer gives for the whole text, except for
    several blanks in a row. A batch of texts would start threads, which print errors to stderr
    after a fork.
    """
    return b"".join(map(model.words.__getitem__, clip(text).lower().split()))


def package_folder(package: str, others: Iterable[str], extra: str, feature: str) -> Path:
    """Return the folder of a package that is not imported. Raises MissingExtraError, also if one of
    the others is not installed."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations or None in map(find_spec, others):
        raise MissingExtraError(extra, feature)
    return Path(spec.submodule_search_locations[0])


@lru_cache(maxsize=1)
def _model(folder: Path) -> _WordModel:
    try:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtraError("pick", _FEATURE) from None
    try:
        tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
        table = load_file(folder / _WEIGHTS)["embedding.weight"]
    except Exception as error:  # both libraries raise their own bare Exceptions
        raise SourceError(f"the vectors in {folder} cannot be read: reinstall wordllama") from error
    if table.shape != (tokenizer.get_vocab_size(), _DIMENSIONS) or len(table) > _MOST_TOKENS:
        raise SourceError(f"the vectors in {folder} do not fit their tokenizer")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return _WordModel(_Words(tokenizer), table)


# A catalog's vectors as a matrix, and how near a request is to them.
#
# Rule: in a large catalog, only a part of every row is read, and the whole row only if it may
# matter. A row's result does not depend on the number of rows.

_WHOLE_WEIGHT = 0.7
_EARLIER_WEIGHT = 0.3
_UNREAD_COSINE = 0.3
"""The cosine of any tool with the unread part of a request, since what cannot be judged excludes
nothing."""
_MANY_ROWS = 8_192
"""The number of rows from which a catalog is large. Its rows are stored in half precision, and
searched in two stages."""
_HEAD_DIMENSIONS = 64
"""Dimensions that the first stage reads. WordLlama's vectors are trained so that their first 64,
128, … dimensions carry as much meaning as possible. Of the ten nearest of 100,000, 96 % are among
the 1,000 best by these."""
_ROWS_AT_ONCE = 4_096


class QueryVectors(msgspec.Struct, frozen=True):
    """A request's vector and those of its parts, which a request of one part does not have.

    Their length is the share of the request that was read. `unread` is what every tool gets for the
    rest.
    """

    whole: Vectors
    parts: Vectors
    unread: float


def query_vectors(rows: Vectors, earlier: int, share: float) -> QueryVectors:
    """Combine the rows of a request, of the turns before it and of its parts, in this order.

    `share` is the part of the request that they stand for, 0..1.
    """
    whole = rows[0]
    if earlier:
        whole = whole + _EARLIER_WEIGHT * rows[1 : 1 + earlier].mean(axis=0)
        whole = whole / max(float(whole @ whole) ** 0.5, 1e-9)
    return QueryVectors(whole * share, rows[1 + earlier :] * share, (1 - share) * _UNREAD_COSINE)


class Matrix(msgspec.Struct, frozen=True):
    """Unit rows. `starts[i]` is the first row of tool i, or None if each tool has one. For a large
    catalog, `head` has the first dimensions, scaled up to the average length of whole rows."""

    rows: Any
    head: Vectors | None
    starts: NDArray[np.int64] | None

    @staticmethod
    def of(rows: Vectors, counts: Sequence[int]) -> Matrix:
        """Return a matrix in which `counts[i]` rows, at least one, belong to tool i."""
        np = numpy()
        one_each = len(rows) == len(counts)
        starts = None if one_each else np.cumsum(np.array(counts)) - np.array(counts)
        if len(rows) < _MANY_ROWS:
            return Matrix(rows, None, starts)
        head = np.ascontiguousarray(rows[:, :_HEAD_DIMENSIONS])
        share = float(np.vecdot(head, head).mean())
        return Matrix(rows.astype("float16"), head / max(share, 1e-9), starts)

    @staticmethod
    def interleaved(first: Vectors, example_rows: Vectors, counts: Sequence[int]) -> Matrix:
        """Interleave each tool's own row with its rows in `example_rows`."""
        if not len(example_rows):
            return Matrix.of(first, [1] * len(first))
        rows_before = numpy().cumsum(numpy().array(counts)) - numpy().array(counts)
        own_rows = numpy().arange(len(first)) + rows_before
        rows = numpy().empty((len(first) + len(example_rows), first.shape[1]), "float32")
        is_own = numpy().zeros(len(rows), bool)
        is_own[own_rows] = True
        rows[is_own], rows[~is_own] = first, example_rows
        return Matrix.of(rows, [1 + count for count in counts])

    @property
    def dimensions(self) -> int:
        return int(self.rows.shape[1])

    def glance(self, query: QueryVectors) -> Vectors | None:
        """Return an estimate of how near each tool is, from the first dimensions; None for a small
        catalog."""
        if self.head is None:
            return None
        vector = query.whole
        if len(query.parts):
            vector = _WHOLE_WEIGHT * vector + (1 - _WHOLE_WEIGHT) * query.parts.mean(axis=0)
        cosines = _cosines(self.head, vector[:_HEAD_DIMENSIONS])
        return cosines if self.starts is None else numpy().maximum.reduceat(cosines, self.starts)

    def nearness(self, query: QueryVectors, positions: NDArray[np.int64] | None) -> Vectors:
        """Return, for the tools at these positions or for all, the nearness of their best text."""
        np = numpy()
        if positions is None:
            row_nearness = np.concatenate(
                [
                    _nearness_of(self.rows[start : start + _ROWS_AT_ONCE], query)
                    for start in range(0, len(self.rows), _ROWS_AT_ONCE)
                ]
            )
            best: Vectors = (
                row_nearness
                if self.starts is None
                else np.maximum.reduceat(row_nearness, self.starts)
            )
            return best
        if self.starts is None:
            return _nearness_of(self.rows[positions], query)
        if not len(positions):
            return _nearness_of(self.rows[:0], query)
        counts = np.diff(self.starts, append=len(self.rows))[positions]
        group_starts = np.cumsum(counts) - counts
        rows = np.repeat(self.starts[positions] - group_starts, counts) + np.arange(counts.sum())
        nearest: Vectors = np.maximum.reduceat(_nearness_of(self.rows[rows], query), group_starts)
        return nearest

    def texts_of(self, query: QueryVectors, tool: int) -> Vectors:
        """Return how near each text of one tool is."""
        if self.starts is None:
            return _nearness_of(self.rows[tool : tool + 1], query)
        end = self.starts[tool + 1] if tool + 1 < len(self.starts) else len(self.rows)
        return _nearness_of(self.rows[self.starts[tool] : end], query)


def _nearness_of(rows: Any, query: QueryVectors) -> Vectors:
    exact = rows.astype("float32", copy=False)
    cosines = _cosines(exact, query.whole)
    if len(query.parts):
        part_cosines = _cosines(exact, query.parts[:, None])
        cosines = _WHOLE_WEIGHT * cosines + (1 - _WHOLE_WEIGHT) * part_cosines.max(axis=0)
    return cosines + query.unread


def _cosines(rows: Vectors, vector: Vectors) -> Vectors:
    # Row by row, not `@`: a threaded BLAS takes milliseconds here whenever the cores are busy, and
    # a row's result must not depend on how many there are.
    cosines: Vectors = numpy().vecdot(rows, vector)
    return cosines


def best_of(weights: Any, count: int) -> Any:
    """Return the positions of the `count` highest values of an array, ascending. Of equal ones, the
    first are taken.

    If there are no more than that, return all positions.
    """
    np = numpy()
    if len(weights) <= count:
        return np.arange(len(weights))
    threshold = np.partition(weights, len(weights) - count)[len(weights) - count]
    above = (weights > threshold).nonzero()[0]
    equal = (weights == threshold).nonzero()[0][: count - len(above)]
    return np.sort(np.concatenate([above, equal]))


# Bytes by key in one SQLite file, for any number of processes and threads.
#
# Rule: entries may be missing, but are never wrong. Each entry ends in a hash of its key and its
# bytes, and one whose hash does not fit counts as missing. A broken cache is replaced. A file of
# another kind is refused and not changed.
#
# A connection lives for one operation (0.15 ms), so that none is used after a fork or left open,
# and a file that is deleted meanwhile is made again. Nothing is synced. A killed process breaks
# nothing, since SQLite's journal undoes unfinished writes, and the hashes detect damage by a power
# failure.

T = TypeVar("T")

_MAGIC, _APPLICATION_OFFSET, _APPLICATION = b"SQLite format 3\0", 68, 0x7463_7631
"""https://www.sqlite.org/fileformat.html#the_database_header"""
_CREATE_STATEMENTS = (
    f"PRAGMA application_id = {_APPLICATION}",
    "CREATE TABLE entry (key BLOB NOT NULL UNIQUE, bytes BLOB NOT NULL, used INTEGER NOT NULL)",
    "CREATE INDEX entry_used ON entry (used)",
)
_DELETE_OLDEST = """DELETE FROM entry WHERE rowid IN
    (SELECT rowid FROM entry ORDER BY used, rowid LIMIT 1 + (SELECT count(*) FROM entry) / 10)"""
_BROKEN_FILE_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
"""`SQLITE_ERROR` is what an incomplete table gives, since all statements are written in this module."""
_PATIENCE = 2.0
"""Seconds to wait for a busy file."""
_HOUR = 3600
"""Seconds by which `used` may be late, so that most reads write nothing."""
_KEYS_AT_ONCE = 500
_HASH_BYTES = 8


class VectorFile:
    """Entries in the file at `path`, with at most `max_bytes` together. Those not used for longest
    are removed.

    `sole` says that nothing else is meant to be at `path`, so that any other file is replaced. The
    methods raise SourceError for a file of another kind, and OSError or sqlite3.Error if it cannot
    be used.
    """

    def __init__(self, path: Path, *, max_bytes: int, sole: bool) -> None:
        self._path = path.absolute()  # ":memory:" would be none, and the working folder may change
        self._max_bytes = max_bytes
        self._sole = sole

    def get(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the stored entries with these keys."""
        key_list = list(keys)
        return self._run(lambda connection: _read(connection, key_list))

    def put(self, entries: Mapping[bytes, bytes]) -> None:
        """Store these entries as well, all of them or none."""
        self._run(lambda connection: _write(connection, entries, self._max_bytes))

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run an operation. If the file turns out to be broken, run it again on a new one."""
        try:
            return self._with_connection(work)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _BROKEN_FILE_CODES:
                raise
        if not (self._sole or self._is_ours()):
            raise SourceError(
                f"{self._path} is not a cache of vectors: delete it, or name another file"
            )
        self._path.with_name(f"{self._path.name}-journal").unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        return self._with_connection(work)

    def _with_connection(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if not self._path.exists():
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.touch(mode=0o600)  # SQLite's journal gets the same mode
        if not self._path.is_file():
            raise FileExistsError(EEXIST, "it is not a file")
        uri = f"{self._path.as_uri()}?mode=rw"  # SQLite itself would create it readable for all
        connection = sqlite3.connect(uri, uri=True, timeout=_PATIENCE, isolation_level=None)
        with closing(connection):
            connection.text_factory = bytes
            connection.execute("PRAGMA synchronous = OFF")
            if _number(connection, "PRAGMA application_id") != _APPLICATION:
                with _transaction(connection):
                    _create(connection)
            return work(connection)

    def _is_ours(self) -> bool:
        """Return whether the file is ours. If it is empty or missing, another process has just
        begun it."""
        try:
            with self._path.open("rb") as file:
                head = file.read(_APPLICATION_OFFSET + 4)
        except FileNotFoundError:
            return True
        is_ours = head.startswith(_MAGIC) and head[_APPLICATION_OFFSET:] == _APPLICATION.to_bytes(
            4, "big"
        )
        return is_ours or not head


class _ForeignError(sqlite3.DatabaseError):
    """A database that is not one of ours."""

    sqlite_errorcode = sqlite3.SQLITE_NOTADB


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end. If the connection is closed in the middle, the transaction is undone."""
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("COMMIT")


def _create(connection: sqlite3.Connection) -> None:
    if _number(connection, "PRAGMA application_id") == _APPLICATION:
        return  # another process was faster
    if _number(connection, "SELECT count(*) FROM sqlite_master"):
        raise _ForeignError("it is a different database")
    for statement in _CREATE_STATEMENTS:
        connection.execute(statement)


def _read(connection: sqlite3.Connection, keys: list[bytes]) -> dict[bytes, bytes]:
    now = int(time.time())
    entries: dict[bytes, bytes] = {}
    stale: list[tuple[int, bytes]] = []
    for batch in batched(keys, _KEYS_AT_ONCE):
        marks = ",".join("?" * len(batch))
        rows = connection.execute(
            f"SELECT key, bytes, used FROM entry WHERE key IN ({marks})",  # noqa: S608  only `?`
            batch,
        )
        for key, stored, used_at in rows.fetchall():
            if isinstance(stored, bytes) and stored[-_HASH_BYTES:] == _hash(
                key, stored[:-_HASH_BYTES]
            ):
                entries[key] = stored[:-_HASH_BYTES]
                if not isinstance(used_at, int) or abs(now - used_at) > _HOUR:
                    stale.append((now, key))
    if stale:
        # A file that is busy or read-only can still be read.
        with suppress(sqlite3.OperationalError), _transaction(connection):
            connection.executemany("UPDATE entry SET used = ? WHERE key = ?", stale)
    return entries


def _write(connection: sqlite3.Connection, entries: Mapping[bytes, bytes], max_bytes: int) -> None:
    now = int(time.time())
    rows = [(key, value + _hash(key, value), now) for key, value in entries.items()]
    with _transaction(connection):
        connection.executemany(
            "INSERT OR REPLACE INTO entry (key, bytes, used) VALUES (?, ?, ?)", rows
        )
        while _size(connection) > max_bytes and connection.execute(_DELETE_OLDEST).rowcount:
            pass


def _size(connection: sqlite3.Connection) -> int:
    """Return the bytes of all pages in use. Free pages are used again before the file grows."""
    page, all_pages, free = (
        _number(connection, f"PRAGMA {name}")
        for name in ("page_size", "page_count", "freelist_count")
    )
    return page * (all_pages - free)


def _number(connection: sqlite3.Connection, statement: str) -> int:
    number: int = connection.execute(statement).fetchone()[0]
    return number


def _hash(key: bytes, value: bytes) -> bytes:
    return blake2b(key + value, digest_size=_HASH_BYTES).digest()
