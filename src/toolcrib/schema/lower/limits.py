"""The limits that an endpoint sets to a whole view, and what goes over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from toolcrib.schema.lower.base import Dialect, Loss
from toolcrib.schema.lower.tree import MAPS, names_in
from toolcrib.values.json import JsonObject

_LONG_ENUM = 250


class _Sizes(NamedTuple):
    depth: int
    properties: int
    enum: int
    long_enum: int
    names: int


def over_limits(view: JsonObject, dialect: Dialect) -> Iterator[Loss]:
    """A refusal for each limit of the dialect that the view is over."""
    limits = (
        ("properties", "levels of objects", dialect.max_depth),
        ("properties", "properties", dialect.max_properties),
        ("enum", "enum values", dialect.max_enum),
        ("enum", "characters in one long enum", dialect.max_long_enum),
        ("properties", "characters of names and values", dialect.max_names),
    )
    if all(limit is None for _, _, limit in limits):
        return
    for size, (keyword, what, limit) in zip(_sizes(view), limits, strict=True):
        if limit is not None and size > limit:
            yield Loss("", keyword, "refused", f"{size} {what}: at most {limit} are taken")


def _sizes(view: JsonObject) -> _Sizes:
    depth = properties = enum = long_enum = names = 0
    stack: list[tuple[Any, int]] = [(view, 0)]
    while stack:
        node, level = stack.pop()
        if isinstance(node, list):
            stack += [(child, level) for child in node]
        if not isinstance(node, dict):
            continue
        level += "object" in names_in(node.get("type"))
        depth = max(depth, level)
        values = [*node.get("enum", ()), *([node["const"]] if "const" in node else ())]
        length = sum(len(value) for value in values if isinstance(value, str))
        enum += len(node.get("enum", ()))
        long_enum = max(long_enum, length if len(values) > _LONG_ENUM else 0)
        names += length
        for keyword, child in node.items():
            if keyword in MAPS and isinstance(child, dict):
                properties += len(child) if keyword == "properties" else 0
                names += sum(map(len, child))
                below = 0 if keyword == "$defs" else level
                stack += [(part, below) for part in child.values()]
            elif keyword not in ("enum", "const", "default", "examples", "required", "type"):
                stack.append((child, level))
    return _Sizes(depth, properties, enum, long_enum, names)
