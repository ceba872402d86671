"""Chooses the tool: the offered tool that is nearest to the request, or none.

Rule: this code knows no particular tool or phrase. The mean of a request's word vectors is compared
with the description of each tool, with the requests of its `examples`, and with `NO_TOOL`. This is
done once with the values and once without them, and the cost of reading the request by the tool's
examples is subtracted (`reading`). A small model that is asked to choose does much worse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import fsum
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from toolcrib.clients.local.ranking import RankedTool
from toolcrib.clients.local.reading import (
    RequestReader,
    RequestReading,
    patterns_of,
    without_values,
    words_around,
)
from toolcrib.pick import Embedder, WordVectors
from toolcrib.pick.scorer import CatalogCache, numpy
from toolcrib.pick.words import spaced_name
from toolcrib.values.definition import Example, HasDefinition, ToolDefinition
from toolcrib.values.json import JsonObject
from toolcrib.values.remembered import remembered

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
"""Requests without a tool, or for a rarely available one: small talk, knowledge, opinions, errands."""

_NO_OWNER = -1
_NEAREST_COUNTED = 2
"""How many of a tool's nearest texts count, since a single one is too often near by accident."""

_NEAR_A_TOOL = 0.5
"""From this cosine on, a request of `NO_TOOL` is so near to an offered tool that it belongs to the
tool."""

_MASKED_WEIGHT = 0.3
"""The weight of the nearness without the values on both sides."""

_UNREAD_COST = 0.4
"""The cost of reading that is assumed if there is no example to read by."""

_CONTINUATION_COST = 0.25
"""A request may continue the previous call if reading it so costs at most this much."""

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


class _Index(msgspec.Struct, frozen=True):
    """Unit vectors with the mean removed. `owners[i]` is the tool of row i, or `_NO_OWNER`."""

    rows: Vectors
    owners: list[int]
    mean: Vectors

    def nearness(self, query: Vectors, count: int) -> dict[int, float]:
        """Return for each owner the mean cosine of its nearest rows."""
        cosines = numpy().vecdot(self.rows, _centred(query, self.mean)[0]).tolist()
        cosines_of: dict[int, list[float]] = {}
        for owner, cosine in zip(self.owners, cosines, strict=True):
            cosines_of.setdefault(owner, []).append(cosine)
        best = {owner: sorted(nearest)[-count:] for owner, nearest in cosines_of.items()}
        return {owner: fsum(nearest) / len(nearest) for owner, nearest in best.items()}


class _CatalogIndex(msgspec.Struct, frozen=True):
    """What is derived from the offered tools: vectors of whole texts and of texts without values, and
    the readers of requests."""

    whole: _Index
    masked: _Index
    readers: list[RequestReader]


class ToolChooser:
    """Finds the tool, and the examples, that are nearest to a request. Safe to use from threads."""

    def __init__(self, vectors: Embedder | None = None) -> None:
        self._vectors = vectors or WordVectors()
        self._indexes = CatalogCache(self._build)
        self._likeness = remembered(16 << 20)(self._similarity)
        self._vector = remembered(16 << 20, each=2_000)(self._embedded)

    def choose(
        self, request: str, tools: Sequence[HasDefinition], *, must: bool = False
    ) -> ToolDefinition | None:
        """Return the nearest tool, or None if a request of `NO_TOOL` is nearer. With `must`, always
        return a tool."""
        ranked = self.rank(request, tools, must=must)
        return ranked[0].tool if ranked else None

    def rank(
        self, request: str, tools: Sequence[HasDefinition], *, must: bool = False
    ) -> list[RankedTool]:
        """Return the offered tools, the nearest first. Without `must`, None is among them."""
        if not tools:
            return []
        catalog_index: _CatalogIndex = self._indexes.get(tools)
        candidates: dict[str | None, tuple[ToolDefinition | None, Sequence[RequestReading]]]
        candidates = {
            r.definition.name: (r.definition, r.read(request)) for r in catalog_index.readers
        }
        candidates[None] = None, ()
        masked = {
            name: readings[0].masked for name, (_, readings) in candidates.items() if readings
        }
        ranked = []
        for name, (text_nearness, masked_nearness) in self.nearness(request, tools, masked).items():
            tool, readings = candidates[name]
            if tool or not must:
                score = _MASKED_WEIGHT * masked_nearness + (1 - _MASKED_WEIGHT) * text_nearness
                score -= readings[0].share if readings else _UNREAD_COST
                ranked.append(RankedTool(score, tool, readings))
        return sorted(ranked, key=lambda choice: -choice.score)

    def nearness(
        self, request: str, tools: Sequence[HasDefinition], masked: Mapping[str | None, str]
    ) -> dict[str | None, tuple[float, float]]:
        """Return how near each tool is, with and without values. The key None stands for no tool.

        `masked` has the request without the values that it has for each tool.
        """
        catalog_index: _CatalogIndex = self._indexes.get(tools)
        text_of = catalog_index.whole.nearness(
            self._vectors.embed([_plain(request)]), _NEAREST_COUNTED
        )
        masked_of = catalog_index.masked.nearness(self._vectors.embed([request.lower()]), 1)
        nearness_of: dict[str | None, tuple[float, float]] = {}
        for owner, text_nearness in text_of.items():
            name = None if owner == _NO_OWNER else catalog_index.readers[owner].definition.name
            masked_nearness = masked_of[owner]
            if name in masked:
                text = self._vectors.embed([masked[name].lower()])
                masked_nearness = max(
                    masked_nearness, catalog_index.masked.nearness(text, 1)[owner]
                )
            nearness_of[name] = (text_nearness, masked_nearness)
        return nearness_of

    def follow(
        self, request: str, tools: Sequence[HasDefinition], name: str, previous: JsonObject
    ) -> RankedTool | None:
        """Return readings of a request that leaves out what the previous call of a tool said."""
        catalog_index: _CatalogIndex = self._indexes.get(tools)
        for reader in catalog_index.readers:
            if reader.definition.name == name:
                readings = reader.follow(request, previous)
                if readings and readings[0].share <= _CONTINUATION_COST:
                    return RankedTool(-readings[0].share, reader.definition, readings)
        return None

    def nearest(self, request: str, examples: Sequence[Example], count: int) -> list[Example]:
        """Return up to `count` of the examples, those nearest to the request first."""
        if not examples:
            return []
        rows = self._vectors.embed([request, *(example.request for example in examples)])
        cosines = numpy().vecdot(rows[1:], rows[0]).tolist()
        order = sorted(range(len(examples)), key=lambda i: -cosines[i])
        return [examples[i] for i in order[:count]]

    def _embedded(self, text: str) -> Any:
        return self._vectors.embed([text])[0]

    def _similarity(self, text: str, other_text: str) -> float:
        return float(numpy().dot(self._vector(text), self._vector(other_text)))

    def _build(self, definitions: Sequence[ToolDefinition]) -> _CatalogIndex:
        patterns = [patterns_of(definition) for definition in definitions]
        familiar = words_around([p for tool_patterns in patterns for p in tool_patterns])
        readers = [
            RequestReader(definition, tool_patterns, self._likeness, familiar)
            for definition, tool_patterns in zip(definitions, patterns, strict=True)
        ]
        whole = [
            (i, _plain(text))
            for i, d in enumerate(definitions)
            for text in (_name_and_description(d), *(example.request for example in d.examples))
        ]
        masked = [(i, _name_and_description(d).lower()) for i, d in enumerate(definitions)]
        masked += [
            (i, without_values(p))
            for i, tool_patterns in enumerate(patterns)
            for p in tool_patterns
        ]
        return _CatalogIndex(self._index(whole, _plain), self._index(masked, str.lower), readers)

    def _index(self, owned: Sequence[tuple[int, str]], form: Callable[[str], str]) -> _Index:
        tools = self._vectors.embed([text for _, text in owned])
        general = self._vectors.embed([form(text) for text in NO_TOOL])
        general = general[(general @ tools.T).max(axis=1) < _NEAR_A_TOOL]
        np: Any = numpy()
        rows = np.concatenate([tools, general])
        mean = rows.mean(axis=0)
        return _Index(
            _centred(rows, mean), [i for i, _ in owned] + [_NO_OWNER] * len(general), mean
        )


def _name_and_description(definition: ToolDefinition) -> str:
    return f"{spaced_name(definition.name)}: {definition.description}"


def _plain(text: str) -> str:
    """Return the text with one token for every number, since a number's value says nothing about
    the tool."""
    return _NUMBER.sub("7", text.lower())


def _centred(vectors: Vectors, mean: Vectors) -> Vectors:
    """Subtract what the texts have in common, since it hides their differences."""
    differences = vectors - mean
    lengths = numpy().linalg.norm(differences, axis=1, keepdims=True)
    centred: Vectors = differences / numpy().maximum(lengths, 1e-9)
    return centred
