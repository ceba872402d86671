"""The words of a catalog: in which tools each of them is, and how strongly.

Rule: what stands in an index of a tool depends on that tool alone. So an index that lost some tools and
got others is equal to one built anew, but for the order of its slots, which nothing shows.

A word's impact on a tool is BM25F's (S. Robertson, H. Zaragoza, "The Probabilistic Relevance Framework:
BM25 and Beyond", 2009, 3.6), but with fixed lengths where that has a collection's mean ones:
`x = sum over fields of weight * count / (0.7 + 0.3 * length / usual)`, `impact = 2.2 x / (x + 1.2)`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import takewhile
from math import ceil
from operator import eq, truth
from typing import NamedTuple

from toolcrib.pick.words import fields, stems
from toolcrib.values.definition import ToolDefinition

K1 = 1.2
SATURATION = K1 + 1
"""No impact is as high."""

_WEIGHTS = (4.0, 1.0, 1.0, 0.6, 0.5)  # by field, in the order of `Fields`
_USUAL = (4, 10, 4, 16, 2)  # words
_B = 0.3
_STEP = 64
_SHORTEST = 4
_ALIKE = 0.8
_BESIDE = 32
"""Known words before and after an unknown one, in the order of the alphabet, that are looked at."""


class Posting(NamedTuple):
    """The tools that have a word: their slots, ascending, its impact on each, and the highest."""

    slots: array[int]
    impacts: array[float]
    most: float


class WordIndex:
    """A catalog's words. A tool has a slot; `place[slot]` is its position, or -1 for one that is gone.

    `texts[slot]` is the stems of its name and of its description, " one two | three four ". Nothing in
    it changes once it is made, and indexes that were derived from one another share what they can.
    """

    def __init__(
        self,
        definitions: Sequence[ToolDefinition],
        place: array[int],
        texts: list[str],
        postings: dict[str, Posting],
    ) -> None:
        self.definitions = definitions
        self.place = place
        self.texts = texts
        self.postings = postings

    @cached_property
    def known(self) -> frozenset[ToolDefinition]:
        return frozenset(self.definitions)

    @cached_property
    def slots(self) -> array[int]:
        """The slot of each position."""
        found = array("i", bytes(4 * len(self.definitions)))
        for slot, position in enumerate(self.place):
            if position >= 0:
                found[position] = slot
        return found

    @cached_property
    def by_name(self) -> dict[str, int]:
        """The position of the first tool of each name."""
        names = [definition.name for definition in self.definitions]
        return dict(zip(reversed(names), range(len(names) - 1, -1, -1), strict=True))

    def nearest(self, word: str) -> tuple[str, float] | None:
        """Return the known word that an unknown one most likely stands for,
        and how alike they are, in 0..1.

        That is one with the same first letters (four, and four fifths of the word), or one that it
        begins with: "cryptocurrency" and "crypto". Alike is the part of the longer that they share.
        """
        if len(word) < _SHORTEST or not word.isalpha():
            return None
        begin = word[: max(_SHORTEST, ceil(_ALIKE * len(word)))]
        found: list[tuple[float, str]] = []
        at = bisect_left(self._sorted, word)
        for known in self._sorted[max(0, at - _BESIDE) : at + _BESIDE]:
            if known.startswith(begin):
                shared = sum(1 for _ in takewhile(truth, map(eq, known, word)))
                found.append((-shared / max(len(known), len(word)), known))
        for length in range(len(word) - 1, _SHORTEST - 1, -1):
            if word[:length] in self.postings:
                found.append((-length / len(word), word[:length]))
                break
        if not found:
            return None
        alike, known = min(found)
        return known, -alike

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted(self.postings)


_NOWHERE = Posting(array("I"), array("f"), 0.0)
_EMPTY = WordIndex((), array("i"), [], {})


def index_steps(
    definitions: Sequence[ToolDefinition], kept: Sequence[WordIndex] = ()
) -> Iterator[WordIndex | None]:
    """Yield the index of these definitions, after a None every now and then.

    It is derived from the one of `kept` that shares most with it, if that is at least half of it.
    """
    base = _most_alike(definitions, kept)
    place = array("i", [-1]) * len(base.place)
    free: dict[ToolDefinition, list[int]] = {}
    for position in range(len(base.definitions) - 1, -1, -1):
        free.setdefault(base.definitions[position], []).append(base.slots[position])
    texts = base.texts.copy()
    grown: dict[str, tuple[array[int], array[float]]] = defaultdict(_columns)
    for position, definition in enumerate(definitions):
        known = free.get(definition) if free else None
        if known:
            place[known.pop()] = position
            continue
        impacts, text = entry_of(definition)
        slot = len(place)
        for word, impact in impacts.items():
            slots_of_word, impacts_of_word = grown[word]
            slots_of_word.append(slot)
            impacts_of_word.append(impact)
        place.append(position)
        texts.append(text)
        if position % _STEP == 0:
            yield None
    gone: dict[str, list[int]] = {}
    for slot in sorted(slot for slots in free.values() for slot in slots):
        texts[slot] = ""
        for word in entry_of(base.definitions[base.place[slot]])[0]:
            gone.setdefault(word, []).append(slot)
    yield WordIndex(tuple(definitions), place, texts, _changed(base.postings, gone, grown))


def _columns() -> tuple[array[int], array[float]]:
    return array("I"), array("f")


def _most_alike(definitions: Sequence[ToolDefinition], kept: Sequence[WordIndex]) -> WordIndex:
    wanted = frozenset(definitions) if kept else frozenset()
    best, most = _EMPTY, len(wanted) // 2
    for index in kept:
        small_enough = len(index.place) <= 2 * len(definitions)  # with the slots of those gone
        shared = len(wanted & index.known) if small_enough else 0
        if shared > most:
            best, most = index, shared
    return best


def _changed(
    postings: dict[str, Posting],
    gone: dict[str, list[int]],
    grown: dict[str, tuple[array[int], array[float]]],
) -> dict[str, Posting]:
    found = postings.copy()
    for word, slots in gone.items():
        old = postings[word]
        left = Posting(old.slots[:], old.impacts[:], 0.0)
        for slot in reversed(slots):
            at = bisect_left(left.slots, slot)
            del left.slots[at], left.impacts[at]
        if left.slots:
            found[word] = left._replace(most=max(left.impacts))
        else:
            del found[word]
    for word, (slots_after, impacts_after) in grown.items():
        before = found.get(word, _NOWHERE)
        impacts = before.impacts + impacts_after
        found[word] = Posting(before.slots + slots_after, impacts, max(impacts))
    return found


def entry_of(definition: ToolDefinition) -> tuple[dict[str, float], str]:
    """Return what an index holds of a tool: each stem's impact, and the text
    of its name and description."""
    columns = stems_by_field(definition)
    weighed: dict[str, float] = defaultdict(float)
    for column, weight, usual in zip(columns, _WEIGHTS, _USUAL, strict=True):
        if not column:
            continue
        each = weight / (1 - _B + _B * len(column) / usual)
        for word in column:
            weighed[word] += each
    impacts = {word: SATURATION * x / (x + K1) for word, x in weighed.items()}
    return impacts, f" {' '.join(columns[0])} | {' '.join(columns[1])} "


def stems_by_field(definition: ToolDefinition) -> list[list[str]]:
    """Return the stems of each of the `Fields`: of the name all, of the others all but stop words."""
    text = fields(definition)
    return [stems(text.name, stop_words=True), *map(stems, text[1:])]
