"""Texts as vectors, offline: WordLlama's token vectors, read from the files in its wheel.

Rule: this is the one door to safetensors and to WordLlama's tokenizer. The `wordllama` package
itself is never imported: that sets up logging and loads an HTTP client. It only brings the files.

A text's vector is the mean of its tokens' vectors, lower-cased first: that gained 0.014 nDCG@10 on the
three sets of `toolcrib eval-pick`. Where a whole catalog is embedded at once, a token counts for less
the more of its texts have it (`catalog_steps`); a request's tokens all count the same. Weighing those,
too, lost on catalogs of 20 tools.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from importlib.util import find_spec
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from toolcrib.errors import MissingExtraError, SourceError
from toolcrib.pick.scoring.arrays import numpy
from toolcrib.pick.text.reading import legible
from toolcrib.pick.text.words import clip

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from toolcrib.pick.scoring.arrays import Vectors

_WEIGHTS = Path("weights", "l2_supercat_256.safetensors")
_TOKENIZER = Path("tokenizers", "l2_supercat_tokenizer_config.json")
_FEATURE = "WordVectors"
_DIMENSIONS = 256

_COMMON = 0.1
"""`a` in a token's weight, a / (a + share of the texts that have it): S. Arora, Y. Liang, T. Ma, "A
Simple but Tough-to-Beat Baseline for Sentence Embeddings", 2017, with the catalog as the corpus."""

_MOST_TOKENS = 1 << 16
_AT_ONCE = 256
_BATCH_BYTES = 1 << 13
_KEPT_WORDS = 100_000
_LONGEST_WORD = 48


class WordVectors:
    """Embeds texts with WordLlama's vectors; loaded at first use, shared by all instances.

    Raises MissingExtraError at once where the extra "pick" is not installed; `embed` raises
    SourceError where the model's files are not what they should be. Safe to use from threads and
    after a fork.
    """

    name = "WordLlama l2_supercat 256"

    def __init__(self) -> None:
        self._folder = _package_folder()

    def reads(self, text: str) -> float:
        """What part of a text these vectors know the words of: Latin letters, mostly."""
        return legible(text)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors, shape (len(texts), 256); a text without a token gives zeros.

        Of a text longer than 16,384 characters the two ends are read.
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
        """At last a unit vector for each document: the weighted sum of those of its parts.

        A part is (weight, text). In its vector a token counts 0.1 / (0.1 + share), the share of the
        documents that have the token; so a row depends on all documents. Before that a None comes
        after every few thousand tokens that were read, and again that were added up.
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
    """The tokens of each lower-case word, as 16-bit numbers, made when they are first asked for.

    Long words are not kept, and all are forgotten when they are too many.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, word: str) -> bytes:
        found = array("H", self._tokenizer.encode(word, add_special_tokens=False).ids).tobytes()
        if len(word) <= _LONGEST_WORD:
            if len(self) >= _KEPT_WORDS:
                self.clear()
            self[word] = found
        return found


class _Model(NamedTuple):
    words: _Words
    table: NDArray[np.float16]


class _Batch(NamedTuple):
    """The tokens of some documents one after another: how many each part has and what it weighs, and
    how many parts each document has."""

    tokens: NDArray[np.uint16]
    lengths: NDArray[np.int64]
    weights: NDArray[np.float32]
    parts: NDArray[np.int64]


def _batches(model: _Model, documents: Iterable[Sequence[tuple[float, str]]]) -> Iterator[_Batch]:
    read: list[bytes] = []
    weights: list[float] = []
    parts: list[int] = []
    size = 0
    for document in documents:
        parts.append(len(document))
        for weight, text in document:
            weights.append(weight)
            read.append(_tokens(model, text))
            size += len(read[-1])
        if size >= _BATCH_BYTES or len(parts) >= _AT_ONCE:
            yield _batch(read, weights, parts)
            read, weights, parts, size = [], [], [], 0
    if parts:
        yield _batch(read, weights, parts)


def _batch(read: list[bytes], weights: list[float], parts: list[int]) -> _Batch:
    np = numpy()
    return _Batch(
        np.frombuffer(b"".join(read), "uint16"),
        np.array([len(tokens) // 2 for tokens in read], "int64"),
        np.array(weights, "float32"),
        np.array(parts, "int64"),
    )


def _documents_with(batch: _Batch, tokens: int) -> NDArray[np.int64]:
    """In how many documents of a batch each token is."""
    np = numpy()
    document = np.repeat(np.repeat(np.arange(len(batch.parts)), batch.parts), batch.lengths)
    pairs = np.sort(document * tokens + batch.tokens)
    first = np.diff(pairs, prepend=-1) > 0
    return np.bincount(pairs[first] % tokens, minlength=tokens)  # type: ignore[no-any-return]


def _sums(rows: Vectors, counts: NDArray[np.int64]) -> Vectors:
    """The first `counts[0]` rows added up, the next `counts[1]`, and so on; zeros for none."""
    np = numpy()
    found: Vectors = np.empty((len(counts), rows.shape[1]), "float32")
    start = 0
    for row, count in enumerate(counts.tolist()):
        np.add.reduce(rows[start : start + count], axis=0, out=found[row])
        start += count
    return found


def _lengths(rows: Vectors) -> Vectors:
    """How long each row is, as a column; what has no length counts as 1e-9 long."""
    np = numpy()
    return np.maximum(np.sqrt(np.vecdot(rows, rows)), 1e-9)[:, None]  # type: ignore[no-any-return]


def _tokens(model: _Model, text: str) -> bytes:
    """A text's tokens, as 16-bit numbers. Read word by word they are what this tokenizer reads in the
    whole text, but for blanks in a row; a batch of texts would start threads, which complain on stderr
    after a fork."""
    return b"".join(map(model.words.__getitem__, clip(text).lower().split()))


def _package_folder() -> Path:
    spec = find_spec("wordllama")
    found = all(find_spec(name) is not None for name in ("numpy", "safetensors", "tokenizers"))
    if spec is None or not spec.submodule_search_locations or not found:
        raise MissingExtraError("pick", _FEATURE)
    return Path(spec.submodule_search_locations[0])


@lru_cache(maxsize=1)
def _model(folder: Path) -> _Model:
    try:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtraError("pick", _FEATURE) from None
    try:
        tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
        table = load_file(folder / _WEIGHTS)["embedding.weight"]
    except Exception as error:  # both libraries raise bare Exceptions of their own
        raise SourceError(f"the vectors in {folder} cannot be read: reinstall wordllama") from error
    if table.shape != (tokenizer.get_vocab_size(), _DIMENSIONS) or len(table) > _MOST_TOKENS:
        raise SourceError(f"the vectors in {folder} do not fit their tokenizer")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return _Model(_Words(tokenizer), table)
