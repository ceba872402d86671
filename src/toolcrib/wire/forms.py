"""The form of a tool in each provider's requests, its rule for names, its limits on strictness."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import msgspec

from toolcrib.errors import CatalogError
from toolcrib.schema.lower import Dialect
from toolcrib.values.json import JsonObject, sha256_hex
from toolcrib.values.remembered import remembered

# The form of a tool for each provider: one small function each, and a table of them.
#
# A shape gives the facts of a tool their places and decides nothing: which view of the schema a
# provider gets, under which name, and whether strictly, has been settled before (`views`).


# Names that a provider accepts, for tools whose own names it would refuse.
#
# A legal name stays as it is. Another is made legal by itself alone (its hash is part of it), so that
# it is the same in every request; a legal name of another tool is never taken.


_DIGITS = 8
VERY_LARGE = 65_536
"""Characters. No provider says how large the schema of a tool may be. Beyond this (about 16,000 tokens)
it would take more of a context than most conversations do, in each request."""


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
    """Return the legal form of one name; `salt` gives further ones, should the first be taken."""
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


# How much of strictness one request may hold, where a provider limits that.
#
# Tools are taken in their order; one that would go over a limit is sent without `strict`, since the
# provider would refuse the whole request.


class StrictLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on what the strict tools of one request hold together.

    `optional` counts properties that are not required, `unions` parts with `anyOf` or a list of types.
    """

    tools: int
    optional: int
    unions: int


class Weight(NamedTuple):
    """The counts of one view that limits are about."""

    tools: int
    optional: int
    unions: int


_WHAT = ("strict tools", "optional properties of strict tools", "unions in strict tools")


class Allowance:
    """Says what is left for the further tools of one request."""

    def __init__(self, limits: StrictLimits) -> None:
        self._limits = (limits.tools, limits.optional, limits.unions)
        self._spent = Weight(0, 0, 0)

    def refusal(self, view: str) -> str | None:
        """Return why a view cannot be strict after the others; count it and return None if it can."""
        total = Weight(*map(sum, zip(self._spent, weight(view), strict=True)))
        for most, count, what in zip(self._limits, total, _WHAT, strict=True):
            if count > most:
                return f"a request takes at most {most} {what}, and with this one it had {count}"
        self._spent = total
        return None


@remembered(4 << 20)
def weight(view: str) -> Weight:
    """Return the weight of a view, which refers to nothing."""
    optional = unions = 0
    stack: list[Any] = [json.loads(view)]
    while stack:
        part = stack.pop()
        if not isinstance(part, dict):
            continue
        properties = part.get("properties", {})
        optional += len(properties.keys() - set(part.get("required", ())))
        unions += "anyOf" in part or isinstance(part.get("type"), list)
        stack += [*properties.values(), *part.get("anyOf", ()), part.get("items")]
    return Weight(1, optional, unions)


class ShownTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a provider is shown it. `schema` is JSON, or encoded text to be spliced in.

    `strict` is None where nothing is to be said of it.
    """

    name: str
    description: str
    schema: Any
    strict: bool | None = None
    examples: tuple[JsonObject, ...] = ()


Shape: TypeAlias = Callable[[ShownTool], dict[str, Any]]
Gather: TypeAlias = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


class ToolForm(msgspec.Struct, frozen=True, kw_only=True):
    """Says how a provider takes tools: `shape` is the JSON of one, `gather` the request's list of them.

    Without a `strict_dialect` nothing is said of strictness; `strict_limits` are those of a whole
    request. `examples` is how many of a tool's examples go along; `long_description` the length in
    characters that some of the provider's servers refuse to exceed.
    """

    name: str
    names: NameRule
    dialect: Dialect
    shape: Shape
    gather: Gather = list
    strict_dialect: Dialect | None = None
    strict_limits: StrictLimits | None = None
    examples: int = 0
    long_description: int | None = None

    def __repr__(self) -> str:
        return f"ToolForm({self.name!r})"


def described(tool: ShownTool) -> dict[str, Any]:
    """Return the members that nearly all forms have: the name, and a description if there is one."""
    named: dict[str, Any] = {"name": tool.name}
    return named | {"description": tool.description} if tool.description else named
