"""The portable subset of JSON Schema: what every model endpoint accepts as the author wrote it.

A schema inside it is the same everywhere. For a schema outside it, each wire makes its own view
(see `lower`). `X or null`, which every Optional is, is only `doubtful`, because each endpoint can
be given it in some form. A real union is `refused`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any, TypeAlias

from toolcrib.schema.lower.tree import ANNOTATIONS, SHELVES, Dialect, Effect, Loss, copied, pointers
from toolcrib.schema.references import References, names_in, subschemas, without
from toolcrib.values.json import JsonObject

# What every supported endpoint accepts.
PORTABLE = Dialect(
    name="portable",
    keywords=frozenset({"type", "items", "description", "enum", "properties", "required"}),
    root_without=frozenset({"anyOf", "oneOf", "allOf", "enum"}),
    refs="none",
    booleans=False,
    need_items=True,
    property_names=r"[a-zA-Z0-9_.-]{1,64}",
)

_REFUSED_KEYWORDS = {
    "oneOf": "use one object with optional properties, or several tools",
    "allOf": "write the parts as one schema",
    "not": "say it in the description",
    "if": "say it in the description, or make several tools",
    "dependentSchemas": "say it in the description, or make several tools",
    "dependencies": "say it in the description, or make several tools",
    "patternProperties": "use a list of objects with a name and a value",
    "propertyNames": "use a list of objects with a name and a value",
    "unevaluatedProperties": "use additionalProperties: false on a schema without combinations",
    "unevaluatedItems": "use items",
    "prefixItems": "use an object with named properties",
    "contains": "say it in the description",
    "$dynamicRef": "use $ref",
}
_NULLABLE = "a value that may be null: make the property optional instead"
_PLAIN_REF = re.compile(r"#/(\$defs|definitions)/[^/]+")
_Reason: TypeAlias = "tuple[str, Effect, str]"  # keyword, effect, message


def check_portable(schema: JsonObject) -> tuple[Loss, ...]:
    """Return what an endpoint of the lowest common denominator rejects in a schema, with its place.

    The result is empty for the portable subset: one object at the top, closed or not, with typed
    properties, arrays and enums, constraints on single values, and plain, non-recursive references
    into `$defs`. Nullable values and maps, which some endpoints accept, are `doubtful`; everything
    else that is reported is `refused` by at least one. The schema must have passed `check_schema`.
    """
    tree: JsonObject = copied(schema)
    pointer_by_id = pointers(tree)
    recursive = _recursive(tree)
    losses = list(_top(tree))
    for _, node in subschemas(tree):
        pointer = pointer_by_id[id(node)]
        reasons = chain(_combinations(node), _types(node), _maps(node), _references(node))
        losses += (Loss(pointer, *reason) for reason in reasons)
        if node.get("$ref") in recursive:
            losses.append(Loss(pointer, "$ref", "refused", "it is recursive: limit the depth"))
    return tuple(losses)


def _top(tree: JsonObject) -> Iterator[Loss]:
    if tree.get("type") != "object":
        yield Loss("", "type", "refused", "the top must say type: object")
    for keyword in ("enum", "$ref"):
        if keyword in tree:
            yield Loss("", keyword, "refused", "the top must be a plain object")
    properties: Any = tree.get("properties", {})
    pattern = PORTABLE.property_names or ""
    if any(not re.fullmatch(pattern, name) for name in properties):
        yield Loss("", "properties", "refused", f"names at the top must match {pattern}")


def _combinations(node: JsonObject) -> Iterator[_Reason]:
    for keyword in (name for name in _REFUSED_KEYWORDS if name in node):
        yield keyword, "refused", _REFUSED_KEYWORDS[keyword]
    branches = node.get("anyOf")
    if isinstance(branches, list):
        not_null = [b for b in branches if not (isinstance(b, dict) and b.get("type") == "null")]
        if len(not_null) == 1 and len(branches) == 2:
            yield "anyOf", "doubtful", _NULLABLE
        else:
            yield "anyOf", "refused", "use one type, or several tools"


def _types(node: JsonObject) -> Iterator[_Reason]:
    kinds = names_in(node.get("type"))
    if len(kinds) == 2 and "null" in kinds:
        yield "type", "doubtful", _NULLABLE
    elif len(kinds) > 1:
        yield "type", "refused", "use one type"
    items = node.get("items")
    if "array" in kinds and not isinstance(items, dict) and "prefixItems" not in node:
        yield "items", "refused", "an array must say what its items are"


def _maps(node: JsonObject) -> Iterator[_Reason]:
    rest = node.get("additionalProperties")
    if isinstance(rest, dict) and rest:
        yield "additionalProperties", "doubtful", "a map: use a list of names and values"
    properties = node.get("properties")
    if isinstance(properties, dict) and any(isinstance(p, bool) for p in properties.values()):
        yield "properties", "refused", "true and false are not supported as schemas: use an object"


def _references(node: JsonObject) -> Iterator[_Reason]:
    ref = node.get("$ref")
    if not isinstance(ref, str):
        return
    if not _PLAIN_REF.fullmatch(ref):
        yield "$ref", "refused", "a reference must lead to '#/$defs/name'"
    if not node.keys() - {"$ref"} <= ANNOTATIONS:
        yield "$ref", "refused", "nothing but a description may be next to a reference"


def _recursive(tree: JsonObject) -> set[str]:
    """Return the references that lead into a circle, directly or indirectly."""
    references = References(tree)
    refs = _refs_in(tree)
    body = without(tree, *SHELVES)
    refs_below = {ref: _refs_in(body if ref == "#" else references.resolve(ref)) for ref in refs}
    while finite := {
        ref for ref, inner_refs in refs_below.items() if not inner_refs & refs_below.keys()
    }:
        for ref in finite:
            del refs_below[ref]
    return set(refs_below)


def _refs_in(schema: Any) -> set[str]:
    return {r for _, n in subschemas(schema) if isinstance(r := n.get("$ref"), str)}
