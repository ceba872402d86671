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
_LOOKING_INSIDE = frozenset(
    ("properties", "patternProperties", "propertyNames", "prefixItems", *_OTHER_MEMBERS, *_OTHER_ITEMS)
)  # fmt: skip


def explainable(references: References, schema: Any, value: Any) -> bool:
    """Return whether a validator meets at most MAX_STEPS pairs and copies at most MAX_COPIED nodes."""
    weights = _Weights()
    copied = 0
    visited = chain([(schema, value)], pairs(references, schema, value))
    for steps, (node, part) in enumerate(visited):
        if isinstance(node, dict):
            copied += _copied_nodes(weights, node, part)
        if steps > MAX_STEPS or copied > MAX_COPIED:
            return False
    return True


class _Weights:
    """The number of nodes of a value's parts; each object and array is counted once."""

    def __init__(self) -> None:
        self._weights: dict[int, int] = {}

    def of(self, part: Any) -> int:
        if isinstance(part, str):
            return 1 + len(part) // _TEXT
        if not isinstance(part, dict | list):
            return EXTREME if is_extreme(part) else 1
        weight = self._weights.get(id(part))
        if weight is None:
            parts = chain(part, part.values()) if isinstance(part, dict) else part
            weight = self._weights[id(part)] = 1 + sum(map(self.of, parts))
        return weight


def _copied_nodes(weights: _Weights, node: dict[str, Any], part: Any) -> int:
    """Return how much the reasons that one subschema may give about a part would copy."""
    reasons = len(node) + len(node.get("required", ()))
    if isinstance(part, dict):
        reasons += sum(map(len, _keyword_value(node, "dependentRequired").values()))
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
        yield from _keyword_value(node, keyword).values()


def _below(node: dict[str, Any], part: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(part, dict):
        yield from _members(node, part)
    elif isinstance(part, list):
        yield from _items(node, part)


def _keyword_value(node: dict[str, Any], keyword: str) -> Any:
    """Return the value of a keyword, or an empty one if it is absent or of another form."""
    expected_type = _OF_ONE_DRAFT.get(keyword, dict)
    value = node.get(keyword)
    return value if isinstance(value, expected_type) else expected_type()


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
    # In draft 7, schemas by position are a list under `items`.
    positional = items if isinstance(items, list) else _keyword_value(node, "prefixItems")
    others = [node[keyword] for keyword in _OTHER_ITEMS if isinstance(node.get(keyword), dict)]
    yield from zip(positional, part, strict=False)
    for child in part:
        yield from ((other, child) for other in others)


# Estimate the time to match a value's strings with a schema's patterns, before doing it.
#
# The engine does not backtrack, but its time is proportional to both text and pattern. One large
# pattern could occupy the process for minutes on a text of a megabyte.

# Bytes of text times bytes of compiled patterns. At the worst rate measured, 0.15 ns each, this is
# 1.8 s.
MAX_MATCHING = 12_000_000_000
_MAX_NODES = 100_000  # of the arguments of a call
MAX_PAIRS = 200_000  # of a subschema and a part of the value, while counting
LARGEST_PATTERN = 5 << 19  # bytes; `^.{1,2400}$` is as large
_SIZES: tuple[int, ...] = tuple(LARGEST_PATTERN * 8**step // 10**step for step in range(30, -1, -1))


def matchable(inspected: Inspected, schema: Any, value: Any) -> bool:
    """Return whether matching a value with the schema's patterns takes at most MAX_MATCHING steps.

    Quick upper bounds come first. They are enough for all but long texts.
    """
    matching_steps = _text_bytes(value) * inspected.matches
    if matching_steps * LARGEST_PATTERN <= MAX_MATCHING:
        return True
    if matching_steps * max(map(pattern_bytes, inspected.patterns)) <= MAX_MATCHING:
        return True
    matching_steps = 0
    visited = chain([(schema, value)], pairs(References(schema), schema, value))
    for count, (node, part) in enumerate(visited):
        matching_steps += _matching(node, part)
        if matching_steps > MAX_MATCHING or count > MAX_PAIRS:
            return False
    return True


MAX_COMPARED = 100_000_000  # units of `constants`: 1 s


def never_compares_much(inspected: Inspected) -> bool:
    """Return whether no value that may be sent can exceed MAX_COMPARED."""
    return inspected.compared * EXTREME * _MAX_NODES <= MAX_COMPARED


class _Applied(msgspec.Struct, frozen=True):
    """Holds what applies to a part of a value: all constants, and subschemas that look into it."""

    constants: Constants
    inner_schemas: tuple[dict[str, Any], ...]


class Comparing:
    """Decides whether comparing a value with a schema's constants takes at most MAX_COMPARED."""

    def __init__(self, inspected: Inspected, schema: Any) -> None:
        self._max_cost = inspected.compared
        self._schema = schema  # kept alive, so that the ids of its parts stay unique
        self._references = References(schema)
        self._cached: dict[int, _Applied] = {}

    def is_bearable(self, value: Any) -> bool:
        weights = _Weights()
        if weights.of(value) * self._max_cost <= MAX_COMPARED:
            return True
        cost = pair_count = 0
        stack = [(self._applied_by(self._schema), value)]
        while stack:
            applied, part = stack.pop()
            cost += applied.constants.cost(part, weights.of(part))
            for node in applied.inner_schemas:
                for subschema, child in _below(node, part):
                    pair_count += 1
                    child_applied = self._applied_by(subschema)
                    if child_applied is not _NOTHING:
                        stack.append((child_applied, child))
            if cost > MAX_COMPARED or pair_count > MAX_PAIRS:
                return False
        return True

    def _applied_by(self, schema: Any) -> _Applied:
        if not isinstance(schema, dict):
            return _NOTHING
        applied = self._cached.get(id(schema))
        if applied is None:
            applied = self._cached[id(schema)] = self._collected(schema)
        return applied

    def _collected(self, schema: dict[str, Any]) -> _Applied:
        compared: list[Constants] = []
        inner_schemas: list[dict[str, Any]] = []
        stack: list[Any] = [schema]
        while stack:
            node = stack.pop()
            if isinstance(node, dict):
                compared += (constants(key, node[key]) for key in COMPARED.intersection(node))
                if not _LOOKING_INSIDE.isdisjoint(node):
                    inner_schemas.append(node)
                stack += _in_place(self._references, node)
        if not (compared or inner_schemas):
            return _NOTHING
        return _Applied(
            Constants(*map(sum, zip(Constants(), *compared, strict=True))), tuple(inner_schemas)
        )


_NOTHING = _Applied(Constants(), ())


@remembered(1 << 20)
def pattern_bytes(pattern: str) -> int:
    """Return the size of a compiled pattern, as the engine counts; at most a quarter too large."""
    index = bisect_left(_SIZES, True, key=lambda size: _compiles(pattern, size))
    return _SIZES[min(index, len(_SIZES) - 1)]


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
