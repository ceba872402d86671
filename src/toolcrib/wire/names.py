"""Names that a provider accepts, for tools whose own names it would refuse.

A legal name stays as it is. Another is made legal by itself alone (its hash is part of it), so that
it is the same in every request; a legal name of another tool is never taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from toolcrib.errors import CatalogError
from toolcrib.values.json import sha256_hex

_DIGITS = 8


class NameRule(msgspec.Struct, frozen=True):
    """`allowed` is the inside of a regular expression's character class; `limit` in characters.

    `first` is the class of a name's first character, where that has a rule of its own.
    """

    allowed: str
    limit: int
    first: str | None = None

    def legal(self, name: str) -> bool:
        return _legal(self).fullmatch(name) is not None


@lru_cache
def _legal(rule: NameRule) -> re.Pattern[str]:
    begins = "" if rule.first is None else f"(?=[{rule.first}])"
    return re.compile(f"{begins}[{rule.allowed}]{{1,{rule.limit}}}")


def wire_name(rule: NameRule, name: str, *, salt: int = 0) -> str:
    """The legal form of one name; `salt` gives further ones, should the first be taken."""
    if not salt and rule.legal(name):
        return name
    stem = re.sub(f"[^{rule.allowed}]", "_", name) or "tool"
    if rule.first is not None and not re.match(f"[{rule.first}]", stem):
        stem = f"_{stem}"
    stem = stem[: rule.limit - _DIGITS - 1]
    return f"{stem}_{sha256_hex(f'{salt}:{name}' if salt else name)[:_DIGITS]}"


def wire_names(rule: NameRule, names: Iterable[str]) -> dict[str, str]:
    """Own name → wire name, one to one. Raises CatalogError for a name that comes twice."""
    own = list(names)
    legal = set(filter(rule.legal, own))
    taken = set(legal)
    mapping: dict[str, str] = {}
    for name in own:
        if name in mapping:
            raise CatalogError(f"two tools on offer are called {name!r}: rename or drop one")
        if name in legal:
            mapping[name] = name
            continue
        salt = 0
        while (candidate := wire_name(rule, name, salt=salt)) in taken:
            salt += 1
        taken.add(candidate)
        mapping[name] = candidate
    return mapping
