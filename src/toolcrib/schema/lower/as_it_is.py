"""Whether a dialect takes a schema as its author wrote it, seen at a glance.

Most schemas are taken so by most endpoints. A yes is exact: lowering would change nothing and lose
nothing. A no only means that lowering has to look.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from toolcrib.schema.lower.base import Dialect
from toolcrib.schema.lower.compact import size_of
from toolcrib.schema.lower.tree import DOCUMENT, LISTS, MAPS, REFS, SINGLES, names_in
from toolcrib.values.json import JsonObject

_BOOLEAN = frozenset({"additionalProperties", "unevaluatedProperties"})  # known as such everywhere
_NOT_PLAIN = DOCUMENT.union(REFS)


def taken_as_it_is(schema: JsonObject, dialect: Dialect) -> bool:
    """Whether the view of a schema is the schema itself, without a loss."""
    if dialect == Dialect(name=dialect.name):
        return True
    if dialect.closed or not dialect.ref_siblings or not _plain_top(schema, dialect):
        return False
    stack: list[Any] = [schema]
    while stack:
        node = stack.pop()
        if node.__class__ is dict:
            if not _plain(node, dialect):
                return False
            stack += _below(node)
        elif node is not True or not dialect.booleans:
            return False
    return dialect.compact_over is None or size_of(schema) <= dialect.compact_over


def _plain_top(schema: JsonObject, dialect: Dialect) -> bool:
    if schema.get("type") != "object" or "draft-07" in str(schema.get("$schema", "")):
        return False
    properties = schema.get("properties", {})
    pattern = dialect.property_names
    named = pattern is None or (
        isinstance(properties, dict) and all(re.fullmatch(pattern, name) for name in properties)
    )
    return named and schema.keys().isdisjoint(dialect.root_without)


def _plain(node: JsonObject, dialect: Dialect) -> bool:
    """Whether the keywords of a part stay, whatever lies below it."""
    keywords, formats = dialect.keywords, dialect.formats
    if keywords is not None and not node.keys() <= keywords:
        return False
    if dialect.refs != "any" and not node.keys().isdisjoint(_NOT_PLAIN):
        return False
    if formats is not None and "format" in node and node["format"] not in formats:
        return False
    if "pattern" in node and not dialect.lookaround:
        return False
    return not dialect.need_items or _says_items(node)


def _below(node: JsonObject) -> Iterator[Any]:
    """The parts right below a part; None for what is plainly not one, such as an empty union."""
    for keyword, value in node.items():
        kind = value.__class__
        if keyword in MAPS and kind is dict:
            yield from value.values()  # type: ignore[union-attr]
        elif keyword in SINGLES and not (kind is bool and keyword in _BOOLEAN):
            yield value
        elif keyword in LISTS:
            yield from value if kind is list and value else [None]  # type: ignore[misc]


def _says_items(node: JsonObject) -> bool:
    arrays = "array" in names_in(node.get("type"))
    return not arrays or "items" in node or "prefixItems" in node
