"""Words of names and of descriptions, in the one form in which they are compared."""

from __future__ import annotations

import re
import unicodedata

MAX_CHARS = 8_192
"""How much of a description is read: a longer one costs no more."""

_WORD = re.compile(r"[^\W_]+")
_HUMPS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+|[^\W_A-Za-z0-9]+")
_EMPTY = frozenset(
    """
    a an and are as at be by can for from function given in into is it its method of on or that the
    this to tool use used using with you your
    """.split()  # noqa: SIM905  readable as text
)


def words(text: str) -> list[str]:
    """Lower-case words after NFKC; scripts without spaces come as runs."""
    return _WORD.findall(unicodedata.normalize("NFKC", text[:MAX_CHARS]).lower())


def name_words(name: str) -> tuple[str, ...]:
    """`getUser_byID2` → get, user, by, id, 2."""
    return tuple(part.lower() for part in _HUMPS.findall(name))


def told(text: str) -> frozenset[str]:
    """The words that tell something, without endings: those that a name may repeat."""
    return frozenset(stem(word) for word in words(text) if word not in _EMPTY)


def stem(word: str) -> str:
    """Without a plural or a verb's ending. Crude on purpose: both sides are treated alike."""
    for ending in ("ing", "es", "ed", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def spaceless(text: str) -> bool:
    """Whether it is in a script that puts no spaces between words, so that words tell no length."""
    return any(
        "\u3040" <= c <= "\u9fff" or "\uac00" <= c <= "\ud7af" or "\u0e00" <= c <= "\u0eff"
        for c in text
    )
