"""How much work it is to say what is wrong with a value.

Whether a value is valid is quick to tell. Listing the reasons is not: where a schema is recursive and
offers alternatives, each level of the value multiplies them, so that a small value could hold the
process for hours. The steps are counted before they are taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolcrib.schema.guard import References

MAX_STEPS = 20_000
_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLES = ("not", "if", "then", "else")
_REFS = ("$ref", "$dynamicRef")
_OTHER_MEMBERS = ("additionalProperties", "unevaluatedProperties")
_OTHER_ITEMS = ("items", "contains", "additionalItems", "unevaluatedItems")


def explainable(references: References, schema: Any, value: Any) -> bool:
    """Whether a validator meets at most MAX_STEPS pairs of a subschema and a part of the value."""
    steps = 0
    stack = [(schema, value)]
    while stack:
        node, part = stack.pop()
        if not isinstance(node, dict):
            continue
        for pair in _next(references, node, part):
            steps += 1
            if steps > MAX_STEPS:
                return False
            stack.append(pair)
    return True


def _next(references: References, node: dict[str, Any], part: Any) -> Iterator[tuple[Any, Any]]:
    for keyword in _LISTS:
        yield from ((branch, part) for branch in node.get(keyword, ()))
    yield from ((node[keyword], part) for keyword in _SINGLES if keyword in node)
    for keyword in _REFS:
        if isinstance(node.get(keyword), str):
            yield references.resolve(node[keyword]), part
    yield from ((branch, part) for branch in node.get("dependentSchemas", {}).values())
    if isinstance(part, dict):
        yield from _members(node, part)
    elif isinstance(part, list):
        yield from _items(node, part)


def _members(node: dict[str, Any], part: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    declared = node.get("properties", {})
    patterns = node.get("patternProperties", {}).values()
    others = [node[keyword] for keyword in _OTHER_MEMBERS if keyword in node]
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
