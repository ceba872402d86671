"""Rule `name`, whoever the provider is: names that a model or a reader takes for one another.

Beyond what a catalog refuses, worth a look are names of the same words in another order, names that
differ only in their digits, or by one letter within a word (a typing error, or two spellings). A
plural is no such error: `get_user` and `get_users` are often both wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from toolcrib.lint.finding import Fault
from toolcrib.lint.words import name_words

_LONG = 5
"""A word of fewer letters is another word with one letter changed (`min` and `mid`)."""

_DIRECTIONS = frozenset(
    ("to", "from", "into", "in", "of", "by", "as", "for", "before", "after", "2")
)
"""Between them, order is meaning: `celsius_to_fahrenheit`."""


def check_names(names: Sequence[str]) -> Iterator[tuple[int, Fault]]:
    """Each name that is easily taken for an earlier one, with its place."""
    told: set[int] = set()
    for key, how in _KEYS:
        seen: dict[object, int] = {}
        for place, name in enumerate(names):
            for form in key(name):
                first = seen.setdefault(form, place)
                if first != place and place not in told and names[first] != name:
                    if how == _LETTER and not _slip(name, names[first]):
                        continue
                    told.add(place)
                    yield (
                        place,
                        Fault("name", "/name", f"it {how} '{names[first]}': rename one of them"),
                    )


def _ordered(name: str) -> Iterator[object]:
    parts = name_words(name)
    if not _DIRECTIONS.intersection(parts):
        yield tuple(sorted(parts))


def _undigited(name: str) -> Iterator[object]:
    yield tuple(word for word in name_words(name) if not word.isdigit())


def _one_letter(name: str) -> Iterator[object]:
    """Two words with a form in common are one letter apart, or have two letters swapped."""
    parts = name_words(name)
    for place, word in enumerate(parts):
        if len(word) >= _LONG and word.isalpha():
            for cut in {word} | {word[:i] + word[i + 1 :] for i in range(len(word))}:
                yield parts[:place], cut, parts[place + 1 :]


_LETTER = "differs by a letter from"
_KEYS: tuple[tuple[Callable[[str], Iterator[object]], str], ...] = (
    (_ordered, "has the same words as"),
    (_undigited, "differs only in digits from"),
    (_one_letter, _LETTER),
)


def _slip(name: str, other: str) -> bool:
    """Whether a letter was added, changed or swapped with its neighbour, other than for a plural."""
    pairs = zip(name_words(name), name_words(other), strict=True)
    ((one, two),) = [(a, b) for a, b in pairs if a != b]
    if len(one) != len(two):
        short, long = sorted((one, two), key=len)
        return long != short + "s"
    places = [place for place, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    if len(places) == 2:
        first, second = places
        return second == first + 1 and one[first] == two[second] and one[second] == two[first]
    return len(places) == 1
