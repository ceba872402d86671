"""Any embedding function as an embedder: a provider's endpoint, a model of one's own.

Rule: the function is never trusted. What it answers is checked and brought to length 1, and what it
raises becomes a PickError that names the embedder; errors of toolcrib (a ClientError) pass as they are.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from toolcrib.errors import MissingExtraError, PickError, ToolcribError
from toolcrib.pick.dense.own_loop import OwnLoop
from toolcrib.pick.scoring.arrays import checked_rows, numpy, units
from toolcrib.pick.text.words import clip

if TYPE_CHECKING:
    from toolcrib.pick.scoring.arrays import Vectors

Rows: TypeAlias = Sequence[Sequence[float]]
EmbeddingFunction: TypeAlias = Callable[[list[str]], Rows | Awaitable[Rows]]

_LONGEST = 8_192
_AT_ONCE = 4


class FunctionEmbedder:
    """Embeds texts with a function of lists of texts, synchronous or `async`, one row a text.

    `name` says which model it is, for errors and for `CachedEmbedder`. The function is given at most
    `batch` texts at once, each of at most 8,192 characters (of a longer one, its beginning) and none
    of them blank: a text without a word has a row of zeros. An `async` function is awaited on an
    event loop of this embedder, in a thread of its own, up to four batches at once; what it uses must
    not be bound to another loop (`EmbeddingsClient` is not).

    `embed` waits, and so belongs in a thread, where scorers run. It raises PickError, naming the
    embedder, where the function raises or does not give finite numbers, one row for each text, all of
    the same length. Raises ValueError for an empty name or a batch of none, MissingExtraError without
    the extra "pick" (numpy). Safe to use from threads, as far as the function is, and after a fork.
    """

    def __init__(self, function: EmbeddingFunction, *, name: str, batch: int = 64) -> None:
        if not name or batch < 1:
            raise ValueError("FunctionEmbedder: it needs a name, and a batch of at least 1")
        if find_spec("numpy") is None:
            raise MissingExtraError("pick", "FunctionEmbedder")
        self.name = name
        self._function = function
        self._batch = batch
        self._loop = OwnLoop(function)
        self._dimensions: int | None = None

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors, shape (len(texts), dimensions)."""
        plain = [clip(text)[:_LONGEST].strip() for text in texts]
        rows = self._rows([text for text in plain if text])
        if self._dimensions is None and plain:  # all blank, and none was ever asked for
            self._rows(["a"])
        vectors: Vectors = numpy().zeros((len(plain), self._dimensions or 0), "float32")
        vectors[numpy().array([bool(text) for text in plain], bool)] = rows
        return vectors

    def _rows(self, texts: list[str]) -> Vectors | float:
        """What the function says of these texts, of length 1; of none, nothing."""
        if not texts:
            return 0.0
        batches = [texts[at : at + self._batch] for at in range(0, len(texts), self._batch)]
        try:
            answers = self._answers(batches)
        except ToolcribError:
            raise
        except Exception as error:
            raise PickError(f"embedder {self.name!r} raised {type(error).__name__}") from error
        found = [self._checked(*pair) for pair in zip(answers, batches, strict=True)]
        rows: Vectors = numpy().concatenate(found)
        return rows

    def _answers(self, batches: list[list[str]]) -> Sequence[object]:
        first, rest = self._function(batches[0]), batches[1:]
        if inspect.isawaitable(first):
            begun = first
            return self._loop.run(lambda: self._awaited(begun, rest))
        return [first, *(self._function(batch) for batch in rest)]

    async def _awaited(self, first: Awaitable[Rows], rest: list[list[str]]) -> Sequence[object]:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(batch: list[str] | None) -> object:
            async with gate:
                return await (first if batch is None else cast("Any", self._function(batch)))

        tasks = [asyncio.ensure_future(one(batch)) for batch in (None, *rest)]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    def _checked(self, answer: object, texts: list[str]) -> Vectors:
        what = f"embedder {self.name!r}"
        rows = checked_rows(answer, len(texts), who=what, form="float64")
        if self._dimensions not in (None, rows.shape[1]):
            raise PickError(
                f"{what} gave {rows.shape[1]} numbers a text, and {self._dimensions} before"
            )
        self._dimensions = rows.shape[1]
        return units(rows)
