"""Names that a provider accepts, for tools whose own names it would refuse.

A legal name stays as it is. Another is made legal by itself alone (its hash is part of it), so that
it is the same in every request; a legal name of another tool is never taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from toolcrib.errors import CatalogError
from toolcrib.values.json import sha256_hex

_DIGITS = 8


class NameRule(msgspec.Struct, frozen=True):
    """`allowed` is the inside of a regular expression's character class; `limit` in characters."""

    allowed: str
    limit: int

    def legal(self, name: str) -> bool:
        return len(name) <= self.limit and re.fullmatch(f"[{self.allowed}]+", name) is not None


def wire_name(rule: NameRule, name: str, *, salt: int = 0) -> str:
    """The legal form of one name; `salt` gives further ones, should the first be taken."""
    if not salt and rule.legal(name):
        return name
    stem = re.sub(f"[^{rule.allowed}]", "_", name)[: rule.limit - _DIGITS - 1] or "tool"
    return f"{stem}_{sha256_hex(f'{salt}:{name}' if salt else name)[:_DIGITS]}"


def wire_names(rule: NameRule, names: Iterable[str]) -> dict[str, str]:
    """Own name → wire name, one to one. Raises CatalogError for a name that comes twice."""
    own = list(names)
    mapping: dict[str, str] = {}
    taken = {name for name in own if rule.legal(name)}
    for name in own:
        if name in mapping:
            raise CatalogError(f"two tools on offer are called {name!r}: rename or drop one")
        if rule.legal(name):
            mapping[name] = name
            continue
        salt = 0
        while (candidate := wire_name(rule, name, salt=salt)) in taken:
            salt += 1
        taken.add(candidate)
        mapping[name] = candidate
    return mapping
