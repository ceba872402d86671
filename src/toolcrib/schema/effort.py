"""How much work it is to say what is wrong with a value; it is counted before it is done.

Whether a value is valid is quick to tell. Listing the reasons is not: where a schema is recursive and
offers alternatives, each level of the value multiplies them; and each reason comes with a copy of the
part that it is about, and of the values that were allowed. A small value could hold the process for
hours, or fill its memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from toolcrib.schema.references import References

MAX_STEPS = 20_000  # pairs of a subschema and a part of the value
MAX_COPIED = 500_000  # nodes, in all reasons there may be: 0.2 s and 100 MB
_TEXT = 50  # bytes that count as much as a node
_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLES = ("not", "if", "then", "else")
_REFS = ("$ref", "$dynamicRef")
_DEPENDENT = ("dependentSchemas", "dependencies")  # lists of names, among draft 7's, are skipped
_OTHER_MEMBERS = ("additionalProperties", "unevaluatedProperties")
_OTHER_ITEMS = ("items", "contains", "additionalItems", "unevaluatedItems")


def explainable(references: References, schema: Any, value: Any) -> bool:
    """Whether a validator meets at most MAX_STEPS pairs, and would copy at most MAX_COPIED nodes."""
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
            return 1
        known = self._known.get(id(part))
        if known is None:
            below = chain(part, part.values()) if isinstance(part, dict) else part
            known = self._known[id(part)] = 1 + sum(map(self.of, below))
        return known


def _copied(weights: _Weights, node: dict[str, Any], part: Any) -> int:
    """What all that one subschema may find wrong with a part would copy."""
    reasons = len(node) + len(node.get("required", ()))
    if isinstance(part, dict):
        reasons += sum(map(len, node.get("dependentRequired", {}).values()))
        reasons += len(part) if "propertyNames" in node else 0
    allowed = (weights.of(node[key]) for key in ("enum", "const") if key in node)
    return reasons * weights.of(part) + sum(allowed)


def pairs(references: References, schema: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """The pairs of a subschema and a part of the value that a validator may meet below the top."""
    stack = [(schema, value)]
    while stack:
        node, part = stack.pop()
        if isinstance(node, dict):
            for pair in _next(references, node, part):
                yield pair
                stack.append(pair)


def _next(references: References, node: dict[str, Any], part: Any) -> Iterator[tuple[Any, Any]]:
    for keyword in _LISTS:
        yield from ((branch, part) for branch in node.get(keyword, ()))
    yield from ((node[keyword], part) for keyword in _SINGLES if keyword in node)
    for keyword in _REFS:
        if isinstance(node.get(keyword), str):
            yield references.resolve(node[keyword]), part
    for keyword in _DEPENDENT:
        yield from ((branch, part) for branch in node.get(keyword, {}).values())
    if isinstance(part, dict):
        yield from _members(node, part)
    elif isinstance(part, list):
        yield from _items(node, part)


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
    first = items if isinstance(items, list) else node.get("prefixItems", ())  # a list: draft 7
    others = [node[keyword] for keyword in _OTHER_ITEMS if isinstance(node.get(keyword), dict)]
    yield from zip(first, part, strict=False)
    for child in part:
        yield from ((other, child) for other in others)
