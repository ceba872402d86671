"""Texts as vectors, offline: WordLlama's token vectors, read from the files in its wheel.

Rule: this is the one door to numpy, tokenizers and safetensors. The `wordllama` package itself is
never imported (that sets up logging and loads an HTTP client): it only brings the files.

A text's vector is the plain mean of its tokens' vectors, lower-cased first. On the three sets of
`benchmarks/pick_quality.py` lower case gained 0.014 nDCG@10; weights by document
frequency gained 0.004 and lost 0.01 on catalogs of 20 tools, so there are none, and a vector
depends on its text alone.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from toolcrib.errors import MissingExtraError, SourceError
from toolcrib.pick.text import clip

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

_WEIGHTS = Path("weights", "l2_supercat_256.safetensors")
_TOKENIZER = Path("tokenizers", "l2_supercat_tokenizer_config.json")
_FEATURE = "WordVectors"
_DIMENSIONS = 256


class WordVectors:
    """Embeds texts with WordLlama's vectors; loaded at first use, shared by all instances.

    Raises MissingExtraError at once where the extra "pick" is not installed; `embed` raises
    SourceError where the model's files are not what they should be. Safe to use from threads.
    """

    def __init__(self) -> None:
        self._folder = _package_folder()

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors, shape (len(texts), 256); a text without a token gives zeros.

        Of a text longer than 16,384 characters the two ends are read.
        """
        model = _model(self._folder)
        vectors: NDArray[np.float32] = numpy().zeros((len(texts), _DIMENSIONS), "float32")
        for row, text in enumerate(texts):
            # One by one: a batch would start threads that complain on stderr after a fork.
            tokens = model.tokenizer.encode(clip(text).lower(), add_special_tokens=False).ids
            if tokens:
                total = model.table[tokens].sum(axis=0, dtype="float32")
                vectors[row] = total / max(sqrt(total @ total), 1e-9)
        return vectors


def numpy() -> Any:
    """The numpy module, imported on the first call; MissingExtraError without the extra "pick"."""
    try:
        return import_module("numpy")
    except ImportError:
        raise MissingExtraError("pick", _FEATURE) from None


class _Model(NamedTuple):
    tokenizer: Any
    table: NDArray[np.float16]


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
    if table.shape != (tokenizer.get_vocab_size(), _DIMENSIONS):
        raise SourceError(f"the vectors in {folder} do not fit their tokenizer")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return _Model(tokenizer, table)
