"""Rule `similar`: two tools that are described in the same words.

The measure is the Jaccard index of the sets of words, |A ∩ B| / |A ∪ B|, over lower-case words
after NFKC, of the first 8,192 characters: `SIMILAR` and more is the same. Two descriptions that
differ in just the words in which the names differ (create/delete) tell a model what it needs, and
are let pass. Candidates come from an inverted index over each set's rarest words: for an index of
at least t, two sets share one of the |A| - ceil(t·|A|) + 1 rarest words of each (prefix filtering,
Chaudhuri et al. 2006, "A primitive operator for similarity joins"), so few pairs are compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from math import ceil
from typing import TypeAlias

from toolcrib.lint.finding import Fault
from toolcrib.lint.words import name_words, words
from toolcrib.values.definition import ToolDefinition

SIMILAR = 0.9
_CHECKED = 300  # entries of the index for one description: with more, there are other troubles

_Words: TypeAlias = frozenset[str]


def check_similar(definitions: Sequence[ToolDefinition]) -> Iterator[tuple[int, Fault]]:
    """Each description that is nearly an earlier one's, with the place of its tool."""
    texts = [frozenset(words(d.description)) for d in definitions]
    counts = Counter(word for text in texts for word in text)
    index: defaultdict[str, list[int]] = defaultdict(list)
    same: dict[_Words, int] = {}
    for place, text in enumerate(texts):
        if not text:
            continue
        prefix = _prefix(text, counts)
        first = same.setdefault(text, place)
        found = first if first != place else _earlier(place, prefix, index, texts, definitions)
        if first == place:
            for word in prefix:
                index[word].append(place)
        if found is not None:
            yield place, _fault(definitions[found], exact=first != place)


def _prefix(text: _Words, counts: Counter[str]) -> list[str]:
    length = len(text) - ceil(SIMILAR * len(text)) + 1
    return sorted(text, key=lambda word: (counts[word], word))[:length]


def _earlier(
    place: int,
    prefix: list[str],
    index: defaultdict[str, list[int]],
    texts: list[_Words],
    definitions: Sequence[ToolDefinition],
) -> int | None:
    text = texts[place]
    candidates = islice((other for word in prefix for other in index[word]), _CHECKED)
    for other in dict.fromkeys(candidates):
        shared = len(text & texts[other])
        if shared >= SIMILAR * (len(text) + len(texts[other]) - shared):
            differing = text ^ texts[other]
            if not differing <= _name_difference(definitions[place].name, definitions[other].name):
                return other
    return None


def _name_difference(name: str, other: str) -> frozenset[str]:
    return frozenset(name_words(name)) ^ frozenset(name_words(other))


def _fault(other: ToolDefinition, *, exact: bool) -> Fault:
    how = "has the same description as" if exact else "is described in nearly the same words as"
    return Fault(
        "similar",
        "/description",
        f"it {how} '{other.name}': say when to use which, or make them one tool",
    )
