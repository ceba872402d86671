"""How people write a unit: factors with `*`, `/` and powers, or in words. Nothing is computed here,
and whatever is not of that form is refused.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

_LONGEST = 80
_MAX_FACTORS = 6
_FACTOR = re.compile(r"([^\W\d][\w\s-]*|%|°[\w\s-]*)(?:\^\s*(-?[1-9]))?")
_TIMES = str.maketrans("·⋅\N{MULTIPLICATION SIGN}", "***")
_PER = re.compile(r"[\s_-]+per[\s_-]+", re.IGNORECASE)
_POWERS_BEFORE = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_POWERS_AFTER = {"squared": 2, "cubed": 3}
_WORDS_BEFORE = {"degrees": "", "degree": "", "deg": "", "us": "", "uk": "imperial"}


class Factor(NamedTuple):
    """The words of a unit's name, and its power."""

    words: tuple[str, ...]
    power: int


def read_factors(text: str) -> list[Factor] | None:
    """`"square feet / s^2"` → `(("feet",), 2), (("s",), -2)`; None for what is no such product."""
    if len(text) > _LONGEST:
        return None
    plain = unicodedata.normalize("NFKC", text).strip().replace("**", "^").translate(_TIMES)
    pieces = re.split(r"\s*([*/])\s*", _PER.sub("/", plain))
    if len(pieces) > 2 * _MAX_FACTORS:
        return None
    factors = []
    for before, piece in zip(["*", *pieces[1::2]], pieces[::2], strict=True):
        match = _FACTOR.fullmatch(piece)
        if match is None:
            return None
        words, power = _spelled(match[1])
        factors.append(Factor(words, power * int(match[2] or 1) * (-1 if before == "/" else 1)))
    return factors


def _spelled(name: str) -> Factor:
    """The words of a name, without those that say a power or only how the rest is meant."""
    words = re.split(r"[\s_-]+", name.strip().removeprefix("°") or name)
    power = 1
    if len(words) > 1 and words[0].lower() in _POWERS_BEFORE:
        power = _POWERS_BEFORE[words.pop(0).lower()]
    if len(words) > 1 and words[-1].lower() in _POWERS_AFTER:
        power *= _POWERS_AFTER[words.pop().lower()]
    if len(words) > 1:
        words[0] = _WORDS_BEFORE.get(words[0].lower(), words[0])
    return Factor(tuple(word for word in words if word), power)
