"""Where in a schema something stands: its subschemas and its properties, with pointers.

No `$ref` is followed, so each place is visited once; what a `$ref` leads to stands in `$defs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from toolcrib.schema import references
from toolcrib.schema.references import References, pointer_to
from toolcrib.values.json import JsonObject, JsonValue


class Property(NamedTuple):
    """A property of an object somewhere in a schema."""

    name: str
    pointer: str
    schema: JsonObject


def subschemas(schema: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Each subschema that is an object with its pointer, itself first, in document order."""
    return ((pointer_to(place), node) for place, node in references.subschemas(schema))


def properties(schema: JsonObject) -> Iterator[Property]:
    """Each property of each object in it that is a schema of its own (not True or False)."""
    for pointer, node in subschemas(schema):
        found = node.get("properties")
        if isinstance(found, dict):
            for name, child in found.items():
                if isinstance(child, dict):
                    at = f"{pointer}/properties/{references.escape_pointer(name)}"
                    yield Property(name, at, child)


def described(schema: JsonObject, root: References) -> bool:
    """Whether it is described: itself, or by each property within it."""
    if _said(schema, root):
        return True
    within = list(properties(schema))
    return bool(within) and all(_said(p.schema, root) or _holds_more(p.schema) for p in within)


def _holds_more(schema: JsonObject) -> bool:
    return next(properties(schema), None) is not None


def _said(schema: JsonObject, root: References) -> bool:
    """Whether it, what its `$ref` leads to, or one of its variants has a description."""
    if _ref_has_text(schema, root) or _has_text(schema) or "const" in schema:
        return True
    variants = [v for key in ("anyOf", "oneOf", "allOf") for v in _list(schema.get(key))]
    return any(_has_text(v) or _ref_has_text(v, root) for v in variants if isinstance(v, dict))


def _ref_has_text(schema: JsonObject, root: References) -> bool:
    target = schema.get("$ref")
    found = root.resolve(target) if isinstance(target, str) else None
    return isinstance(found, dict) and _has_text(found)


def _has_text(schema: JsonObject) -> bool:
    text = schema.get("description")
    return isinstance(text, str) and bool(text.strip())


def types(schema: JsonObject) -> frozenset[str] | None:
    """The JSON types that it takes, without null, integers as numbers; None if it does not say."""
    given = schema.get("type")
    if isinstance(given, str):
        given = [given]
    if isinstance(given, list):
        named = {t for t in given if isinstance(t, str)}
    else:
        variants = _list(schema.get("anyOf")) or _list(schema.get("oneOf"))
        parts = [
            types(v) if isinstance(v, dict) and v.get("type") != "null" else frozenset[str]()
            for v in variants
        ]
        if not parts or any(part is None for part in parts):
            return None
        named = {t for part in parts if part for t in part}
    return frozenset("number" if t == "integer" else t for t in named if t != "null") or None


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
