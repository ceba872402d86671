"""Choosing the tool: the offered tool to which the request lies nearest, or none.

Rule: nothing here knows any tool or phrase. A request is compared, as a mean of word vectors, with
what each tool says of itself and with the requests of its `examples`, and with `NO_TOOL`; whichever
text is nearest decides. A small model that is asked to choose does much worse.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from toolcrib.pick import Embedder, WordVectors
from toolcrib.pick.ranking import numpy
from toolcrib.pick.scorer import CatalogCache
from toolcrib.pick.words import spaced_name
from toolcrib.values.definition import Example, HasDefinition, ToolDefinition

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors: TypeAlias = NDArray[np.float32]

NO_TOOL = (
    "Hello",
    "Good morning, how are you doing?",
    "What's up?",
    "Thank you so much for your help",
    "Great, that is all for now",
    "Goodbye, see you later",
    "Yes please",
    "Who are you?",
    "What can you do?",
    "What is your name?",
    "I feel a bit tired and sad today",
    "Sorry, I do not understand",
    "Tell me a joke",
    "Write a poem about the sea",
    "Make up a story for my children",
    "Translate this sentence into French",
    "Who discovered penicillin?",
    "Who was the first man on the moon?",
    "What is the capital of Portugal?",
    "What is the largest ocean in the world?",
    "How many people live in Brazil?",
    "When did the Roman empire fall?",
    "Where do penguins live?",
    "Explain how a car engine works",
    "How does the stock market work?",
    "What does the word serendipity mean?",
    "Which team won the championship last year?",
    "What do you think about modern art?",
    "Should I learn to play the guitar?",
    "Are electric cars better than petrol cars?",
    "Recommend me a good film",
    "How do I cook rice?",
    "Give me some advice about my career",
    "Book a flight for next week",
    "Play some music",
    "Will it be warm and sunny tomorrow?",
    "Remind me to call my brother tonight",
    "Write a message to my boss",
    "Buy me a pair of shoes",
)
"""Requests without a tool, or for one that is seldom there: talk, knowledge, opinions, errands."""

_NOBODY = -1
_COUNTED = 2
"""How many of a tool's texts count, the nearest ones: one alone is too often near by accident."""

_OWN_GROUND = 0.5
"""The cosine from which a request of `NO_TOOL` is so near to an offered tool that it is the tool's."""

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


class _Index(NamedTuple):
    """Unit rows, the mean taken away; `owners[i]` is the tool of row i, or `_NOBODY`."""

    rows: Vectors
    owners: list[int]
    mean: Vectors


class Chooser:
    """Finds the tool, and the examples, nearest to a request. Safe to use from threads."""

    def __init__(self, vectors: Embedder | None = None) -> None:
        self._vectors = vectors or WordVectors()
        self._indexes = CatalogCache(self._build)

    def choose(
        self, request: str, tools: Sequence[HasDefinition], *, must: bool = False
    ) -> ToolDefinition | None:
        """The nearest tool, or None if a request of `NO_TOOL` is nearer; with `must` always a tool."""
        if not tools:
            return None
        index = self._indexes.get(tools)
        asked = _centred(self._vectors.embed([_plain(request)]), index.mean)[0]
        cosines = numpy().vecdot(index.rows, asked).tolist()
        of: dict[int, list[float]] = {}
        for owner, cosine in zip(index.owners, cosines, strict=True):
            if owner != _NOBODY or not must:
                of.setdefault(owner, []).append(cosine)
        nearest = max(of, key=lambda owner: fmean(sorted(of[owner])[-_COUNTED:]))
        return None if nearest == _NOBODY else tools[nearest].get_definition()

    def nearest(self, request: str, examples: Sequence[Example], count: int) -> list[Example]:
        """Up to `count` of the examples, the nearest to the request first."""
        if not examples:
            return []
        rows = self._vectors.embed([request, *(example.request for example in examples)])
        cosines = numpy().vecdot(rows[1:], rows[0]).tolist()
        order = sorted(range(len(examples)), key=lambda i: -cosines[i])
        return [examples[i] for i in order[:count]]

    def _build(self, definitions: Sequence[ToolDefinition]) -> _Index:
        owned = [(i, text) for i, d in enumerate(definitions) for text in _texts(d)]
        tools = self._vectors.embed([_plain(text) for _, text in owned])
        general = self._vectors.embed([_plain(text) for text in NO_TOOL])
        general = general[(general @ tools.T).max(axis=1) < _OWN_GROUND]
        np: Any = numpy()
        rows = np.concatenate([tools, general])
        mean = rows.mean(axis=0)
        return _Index(_centred(rows, mean), [i for i, _ in owned] + [_NOBODY] * len(general), mean)


def _texts(definition: ToolDefinition) -> list[str]:
    text = f"{spaced_name(definition.name)}: {definition.description}"
    return [text, *(example.request for example in definition.examples)]


def _plain(text: str) -> str:
    """Which number it is says nothing about the tool."""
    return _NUMBER.sub("7", text.lower())


def _centred(vectors: Vectors, mean: Vectors) -> Vectors:
    """What the texts have in common is taken away: it hides what tells them apart."""
    moved = vectors - mean
    lengths = numpy().linalg.norm(moved, axis=1, keepdims=True)
    centred: Vectors = moved / numpy().maximum(lengths, 1e-9)
    return centred
