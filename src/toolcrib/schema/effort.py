"""Estimate the work of explaining why a value is invalid, before doing it.

Finding out whether a value is valid is fast. Listing the reasons is not. If a schema is recursive
and offers alternatives, each level of the value multiplies them. Each reason also contains a copy
of the part that it concerns, and of the allowed values. A small value could occupy the process for
hours, or exhaust its memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain
from typing import Any

import jsonschema_rs
import msgspec

from toolcrib.schema.guard import COMPARED, EXTREME, Constants, Inspected, constants, is_extreme
from toolcrib.schema.references import REFS, References
from toolcrib.values.remembered import remembered

MAX_STEPS = 20_000  # pairs of a subschema and a part of the value
MAX_COPIED = 500_000  # nodes, in all possible reasons: 0.2 s and 100 MB
_TEXT = 50  # bytes that count as much as a node
_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLES = ("not", "if", "then", "else")
_DEPENDENT = ("dependentSchemas", "dependencies")  # draft 7's lists of names are skipped
# Keywords of one draft only. In the other draft they are data, of any form.
_OF_ONE_DRAFT = {"prefixItems": list, "dependentSchemas": dict, "dependentRequired": dict}
_OTHER_MEMBERS = ("additionalProperties", "unevaluatedProperties")
_OTHER_ITEMS = ("items", "contains", "additionalItems", "unevaluatedItems")
# Keywords that look into an object or an array.
_LOOKING = frozenset(
    ("properties", "patternProperties", "propertyNames", "prefixItems", *_OTHER_MEMBERS, *_OTHER_ITEMS)
)  # fmt: skip


def explainable(references: References, schema: Any, value: Any) -> bool:
    """Return whether a validator meets at most MAX_STEPS pairs and copies at most MAX_COPIED nodes."""
    weights = _Weights()
    copied = 0
    met = chain([(schema, value)], pairs(references, schema, value))
    for steps, (node, part) in enumerate(met):
        if isinstance(node, dict):
            copied += _copied(weights, node, part)
        if steps > MAX_STEPS or copied > MAX_COPIED:
            return False
    return True


class _Weights:
    """The number of nodes of a value's parts; each object and array is counted once."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def of(self, part: Any) -> int:
        if isinstance(part, str):
            return 1 + len(part) // _TEXT
        if not isinstance(part, dict | list):
            return EXTREME if is_extreme(part) else 1
        known = self._known.get(id(part))
        if known is None:
            below = chain(part, part.values()) if isinstance(part, dict) else part
            known = self._known[id(part)] = 1 + sum(map(self.of, below))
        return known


def _copied(weights: _Weights, node: dict[str, Any], part: Any) -> int:
    """Return how much the reasons that one subschema may give about a part would copy."""
    reasons = len(node) + len(node.get("required", ()))
    if isinstance(part, dict):
        reasons += sum(map(len, _said(node, "dependentRequired").values()))
        reasons += len(part) if "propertyNames" in node else 0
    allowed = (weights.of(node[key]) for key in ("enum", "const") if key in node)
    return reasons * weights.of(part) + sum(allowed)


def pairs(references: References, schema: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the pairs of a subschema and a part that a validator meets below the top."""
    stack = [(schema, value)]
    while stack:
        node, part = stack.pop()
        if isinstance(node, dict):
            in_place = ((branch, part) for branch in _in_place(references, node))
            for pair in chain(in_place, _below(node, part)):
                yield pair
                stack.append(pair)


def _in_place(references: References, node: dict[str, Any]) -> Iterator[Any]:
    """Yield the subschemas that apply to the same part as `node`."""
    for keyword in _LISTS:
        yield from node.get(keyword, ())
    yield from (node[keyword] for keyword in _SINGLES if keyword in node)
    for keyword in REFS:
        if isinstance(node.get(keyword), str):
            yield references.resolve(node[keyword])
    for keyword in _DEPENDENT:
        yield from _said(node, keyword).values()


def _below(node: dict[str, Any], part: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(part, dict):
        yield from _members(node, part)
    elif isinstance(part, list):
        yield from _items(node, part)


def _said(node: dict[str, Any], keyword: str) -> Any:
    """Return the value of a keyword, or an empty one if it is absent or of another form."""
    form = _OF_ONE_DRAFT.get(keyword, dict)
    value = node.get(keyword)
    return value if isinstance(value, form) else form()


def _members(node: dict[str, Any], part: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    declared = node.get("properties", {})
    patterns = node.get("patternProperties", {}).values()
    others = [node[keyword] for keyword in _OTHER_MEMBERS if keyword in node]
    if "propertyNames" in node:
        yield from ((node["propertyNames"], name) for name in part)
    for name, child in part.items():
        yield from ((pattern, child) for pattern in patterns)
        if name in declared:
            yield declared[name], child
        else:
            yield from ((other, child) for other in others)


def _items(node: dict[str, Any], part: list[Any]) -> Iterator[tuple[Any, Any]]:
    items = node.get("items")
    first = items if isinstance(items, list) else _said(node, "prefixItems")  # a list in draft 7
    others = [node[keyword] for keyword in _OTHER_ITEMS if isinstance(node.get(keyword), dict)]
    yield from zip(first, part, strict=False)
    for child in part:
        yield from ((other, child) for other in others)


# Estimate the time to match a value's strings with a schema's patterns, before doing it.
#
# The engine does not backtrack, but its time is proportional to both text and pattern. One large
# pattern could occupy the process for minutes on a text of a megabyte.

# Bytes of text times bytes of compiled patterns. At the worst rate measured, 0.15 ns each, this is
# 1.8 s.
MAX_MATCHING = 12_000_000_000
_MOST_NODES = 100_000  # of the arguments of a call
MAX_PAIRS = 200_000  # of a subschema and a part of the value, while counting
LARGEST_PATTERN = 5 << 19  # bytes; `^.{1,2400}$` is as large
_SIZES: tuple[int, ...] = tuple(LARGEST_PATTERN * 8**step // 10**step for step in range(30, -1, -1))


def matchable(inspected: Inspected, schema: Any, value: Any) -> bool:
    """Return whether matching a value with the schema's patterns takes at most MAX_MATCHING steps.

    Quick upper bounds come first. They are enough for all but long texts.
    """
    work = _text_bytes(value) * inspected.matches
    if work * LARGEST_PATTERN <= MAX_MATCHING:
        return True
    if work * max(map(pattern_bytes, inspected.patterns)) <= MAX_MATCHING:
        return True
    work = 0
    met = chain([(schema, value)], pairs(References(schema), schema, value))
    for count, (node, part) in enumerate(met):
        work += _matching(node, part)
        if work > MAX_MATCHING or count > MAX_PAIRS:
            return False
    return True


MAX_COMPARED = 100_000_000  # units of `constants`: 1 s


def never_compares_much(inspected: Inspected) -> bool:
    """Return whether no value that may be sent can exceed MAX_COMPARED."""
    return inspected.compared * EXTREME * _MOST_NODES <= MAX_COMPARED


class _Judging(msgspec.Struct, frozen=True):
    """Holds what applies to a part of a value: all constants, and subschemas that look into it."""

    constants: Constants
    within: tuple[dict[str, Any], ...]


class Comparing:
    """Decides whether comparing a value with a schema's constants takes at most MAX_COMPARED."""

    def __init__(self, inspected: Inspected, schema: Any) -> None:
        self._most = inspected.compared
        self._schema = schema  # kept alive, so that the ids of its parts stay unique
        self._references = References(schema)
        self._known: dict[int, _Judging] = {}

    def is_bearable(self, value: Any) -> bool:
        weights = _Weights()
        if weights.of(value) * self._most <= MAX_COMPARED:
            return True
        work = met = 0
        stack = [(self._judging(self._schema), value)]
        while stack:
            judging, part = stack.pop()
            work += judging.constants.cost(part, weights.of(part))
            for node in judging.within:
                for below, child in _below(node, part):
                    met += 1
                    inner = self._judging(below)
                    if inner is not _NOTHING:
                        stack.append((inner, child))
            if work > MAX_COMPARED or met > MAX_PAIRS:
                return False
        return True

    def _judging(self, schema: Any) -> _Judging:
        if not isinstance(schema, dict):
            return _NOTHING
        known = self._known.get(id(schema))
        if known is None:
            known = self._known[id(schema)] = self._judged(schema)
        return known

    def _judged(self, schema: dict[str, Any]) -> _Judging:
        found: list[Constants] = []
        within: list[dict[str, Any]] = []
        stack: list[Any] = [schema]
        while stack:
            node = stack.pop()
            if isinstance(node, dict):
                found += (constants(key, node[key]) for key in COMPARED.intersection(node))
                if not _LOOKING.isdisjoint(node):
                    within.append(node)
                stack += _in_place(self._references, node)
        if not (found or within):
            return _NOTHING
        return _Judging(Constants(*map(sum, zip(Constants(), *found, strict=True))), tuple(within))


_NOTHING = _Judging(Constants(), ())


@remembered(1 << 20)
def pattern_bytes(pattern: str) -> int:
    """Return the size of a compiled pattern, as the engine counts; at most a quarter too large."""
    found = bisect_left(_SIZES, True, key=lambda size: _compiles(pattern, size))
    return _SIZES[min(found, len(_SIZES) - 1)]


def _compiles(pattern: str, size: int) -> bool:
    try:
        jsonschema_rs.Draft202012Validator(
            {"pattern": pattern}, pattern_options=jsonschema_rs.RegexOptions(size_limit=size)
        )
    except jsonschema_rs.ValidationError:
        return False
    return True


def _matching(node: Any, part: Any) -> int:
    if not isinstance(node, dict):
        return 0
    if isinstance(part, str) and "pattern" in node:
        return _bytes(part) * pattern_bytes(node["pattern"])
    if isinstance(part, dict) and "patternProperties" in node:
        return sum(map(_bytes, part)) * sum(map(pattern_bytes, node["patternProperties"]))
    return 0


def _text_bytes(value: Any) -> int:
    total = 0
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            total += _bytes(node)
        elif isinstance(node, dict):
            stack += node
            stack += node.values()
        elif isinstance(node, list):
            stack += node
    return total


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
