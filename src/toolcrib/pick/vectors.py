"""Texts as vectors, offline: WordLlama's token vectors, read from the files in its wheel.

Rule: this is the one door to numpy, tokenizers and safetensors. The `wordllama` package itself is
never imported: that sets up logging and loads an HTTP client. It only brings the files.

A text's vector is the mean of its tokens' vectors, lower-cased first: that gained 0.014 nDCG@10 on the
three sets of `toolcrib eval-pick`. Where a whole catalog is embedded at once, a token counts for less
the more of its texts have it (`catalog_steps`); a request's tokens all count the same. Weighing those,
too, lost on catalogs of 20 tools.
"""

from __future__ import annotations

from array import array
from collections import Counter
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from toolcrib.errors import MissingExtraError, SourceError
from toolcrib.pick.text import clip

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Vectors: TypeAlias = NDArray[np.float32]

_WEIGHTS = Path("weights", "l2_supercat_256.safetensors")
_TOKENIZER = Path("tokenizers", "l2_supercat_tokenizer_config.json")
_FEATURE = "WordVectors"
_DIMENSIONS = 256

_COMMON = 0.1
"""`a` in a token's weight, a / (a + share of the texts that have it): S. Arora, Y. Liang, T. Ma, "A
Simple but Tough-to-Beat Baseline for Sentence Embeddings", 2017, with the catalog as the corpus."""

_MOST_TOKENS = 1 << 16
_AT_ONCE = 256
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

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors, shape (len(texts), 256); a text without a token gives zeros.

        Of a text longer than 16,384 characters the two ends are read.
        """
        model = _model(self._folder)
        vectors: Vectors = numpy().zeros((len(texts), _DIMENSIONS), "float32")
        for row, text in enumerate(texts):
            if tokens := _tokens(model, text):
                total = model.table[tokens].sum(axis=0, dtype="float32")
                vectors[row] = total / max(sqrt(total @ total), 1e-9)
        return vectors

    def catalog_steps(
        self, documents: Iterable[Sequence[tuple[float, str]]]
    ) -> Iterator[Vectors | None]:
        """At last a unit vector for each document: the weighted sum of those of its parts.

        A part is (weight, text). In its vector a token counts 0.1 / (0.1 + share), the share of the
        documents that have the token; so a row depends on all documents. Before that a None comes
        after every 256 documents that were read, and again that were added up.
        """
        model, np = _model(self._folder), numpy()
        read: list[list[tuple[float, array[int]]]] = []
        seen: Counter[int] = Counter()
        for document in documents:
            read.append([(w, array("H", _tokens(model, text))) for w, text in document])
            seen.update({token for _, tokens in read[-1] for token in tokens})
            if len(read) % _AT_ONCE == 0:
                yield None
        shares = np.zeros((len(model.table), 1), "float32")
        shares[list(seen), 0] = list(seen.values())
        shares /= max(len(read), 1)
        table = model.table * (_COMMON / (_COMMON + shares))
        vectors: Vectors = np.zeros((len(read), _DIMENSIONS), "float32")
        for row, parts in enumerate(read):
            for weight, tokens in parts:
                if tokens:
                    total = np.add.reduce(table.take(tokens, axis=0), axis=0)
                    vectors[row] += (weight / max(sqrt(total @ total), 1e-9)) * total
            if row % _AT_ONCE == 0:
                yield None
        lengths = np.sqrt(np.vecdot(vectors, vectors))
        vectors /= np.maximum(lengths, 1e-9)[:, None]
        yield vectors


def numpy() -> Any:
    """The numpy module, imported on the first call; MissingExtraError without the extra "pick"."""
    try:
        return import_module("numpy")
    except ImportError:
        raise MissingExtraError("pick", _FEATURE) from None


class _Model(NamedTuple):
    tokenizer: Any
    table: NDArray[np.float16]
    known: dict[str, list[int]]


def _tokens(model: _Model, text: str) -> list[int]:
    """Its tokens, word by word, which is how this tokenizer reads a text but for blanks in a row.

    A batch would be as quick, but start threads, which complain on stderr after a fork.
    """
    words = clip(text).lower().split()
    found = list(map(model.known.get, words))
    if None in found:
        found = [_word(model, word) for word in words]
    return list(chain.from_iterable(cast("list[list[int]]", found)))


def _word(model: _Model, word: str) -> list[int]:
    known = model.known
    found = known.get(word)
    if found is None:
        found = model.tokenizer.encode(word, add_special_tokens=False).ids
        if len(word) <= _LONGEST_WORD:
            if len(known) >= _KEPT_WORDS:
                known.clear()
            known[word] = found
    return found


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
    return _Model(tokenizer, table, {})
