"""A model's judgement, read out of its answer: numbers of tools and how well each fits.

Rule: the form is read leniently (prose, fences, thoughts around it), the content is not: a number
that nobody asked about or a score outside 0..1 spoils the whole answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from toolcrib.errors import PickError

_MAX_CHARS = 65_536
_MAX_TRIES = 1_000
_DECODER = json.JSONDecoder(object_pairs_hook=tuple)  # a key that comes twice must be seen
_SCORES = ("scores", "tools", "results")
_NUMBERS = ("number", "n", "id", "tool")


def read_judgement(answer: str, count: int) -> dict[int, float]:
    """`{number: score}` for some of the numbers 1 to `count`.

    The last object of the form `{"4": 0.9}`, `{"scores": {"4": 0.9}}` or list of
    `{"number": 4, "score": 0.9}` in the answer counts, an empty one only if it is alone. Raises
    PickError if there is none, and for a number or score out of range.
    """
    found = [
        pairs for value in _values(answer[-_MAX_CHARS:]) if (pairs := _pairs(value)) is not None
    ]
    if not found:
        raise PickError("there is no JSON object of scores in its answer")
    said = next((pairs for pairs in reversed(found) if pairs), found[0])
    judgement: dict[int, float] = {}
    for number, given in said:
        if not 1 <= number <= count:
            raise PickError(f"it scored number {number}, and there are 1 to {count}")
        if number in judgement:
            raise PickError(f"it scored number {number} twice")
        judgement[number] = _score(number, given)
    return judgement


def _values(text: str) -> Iterator[Any]:
    """The JSON objects and lists in a text, in order, none from inside of another one."""
    at, tries = 0, 0
    while at < len(text) and tries < _MAX_TRIES:
        if text[at] not in "{[":
            at += 1
            continue
        tries += 1
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
        else:
            yield value


def _pairs(value: Any) -> list[tuple[int, Any]] | None:
    """Numbers and what is said of them; None for what is of no form that we know.

    Objects are tuples of pairs here.
    """
    if isinstance(value, tuple):
        named = dict(value)
        for name in _SCORES:
            if isinstance(named.get(name), tuple | list):
                return _pairs(named[name])
        return _numbered(value)
    if isinstance(value, list) and all(isinstance(each, tuple) for each in value):
        said = map(dict, value)
        return _numbered((_first(each, _NUMBERS), each.get("score")) for each in said)
    return None


def _numbered(said: Iterable[tuple[Any, Any]]) -> list[tuple[int, Any]] | None:
    found = []
    for key, given in said:
        text = str(key).strip()
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            return None
        found.append((int(text), given))
    return found


def _first(value: dict[str, Any], names: Iterable[str]) -> Any:
    return next((value[name] for name in names if name in value), None)


def _score(number: int, given: Any) -> float:
    try:
        score = float(given) if isinstance(given, int | float | str) else -1.0
    except (ValueError, OverflowError):
        score = -1.0
    if isinstance(given, bool) or not 0.0 <= score <= 1.0:  # NaN is in no range
        raise PickError(f"it scored number {number} with something that is no number in 0..1")
    return score
