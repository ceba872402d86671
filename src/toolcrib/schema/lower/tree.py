"""The parts of a schema: which keywords hold further schemas, and where a part lies.

Lowering works on a private copy, so that nothing it makes shares a part with the author's schema and
each part has one place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from toolcrib.schema.references import References, escape_pointer, subschemas
from toolcrib.values.json import JsonObject

MAPS = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"}
)
LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
SINGLES = frozenset(
    {
        "items",
        "additionalProperties",
        "not",
        "if",
        "then",
        "else",
        "contains",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
        "additionalItems",
        "contentSchema",
    }
)
SHELVES = frozenset({"$defs", "definitions"})
REFS = ("$ref", "$dynamicRef")
_MOST_REFS = 10  # that lead from one to the next
# What serves references and the document, and says nothing of values.
DOCUMENT = frozenset(
    {"$schema", "$id", "$defs", "definitions", "$vocabulary", "$anchor", "$dynamicAnchor"}
)
# What says nothing about which values are valid.
ANNOTATIONS = DOCUMENT | frozenset(
    {
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "$anchor",
        "$dynamicAnchor",
    }
)
ASSERTIONS = frozenset(
    {
        "type",
        "enum",
        "const",
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "unevaluatedProperties",
        "minProperties",
        "maxProperties",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "items",
        "prefixItems",
        "additionalItems",
        "unevaluatedItems",
        "contains",
        "minContains",
        "maxContains",
        "minItems",
        "maxItems",
        "uniqueItems",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "if",
        "then",
        "else",
        "$ref",
        "$dynamicRef",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
    }
)

# A part that was made, what it was made from, and from where its keywords come.
_Made: TypeAlias = "tuple[object, object, Mapping[str, object]]"


def copied(value: Any) -> Any:
    """A copy of a JSON value in which no part occurs twice."""
    if type(value) is dict:
        return {key: copied(child) for key, child in value.items()}
    if type(value) is list:
        return [copied(child) for child in value]
    return value


def own_copy(schema: JsonObject) -> JsonObject:
    """A copy to work on; what draft 7 ignores beside a `$ref` is left out of it."""
    copy: JsonObject = copied(schema)
    if "draft-07" in str(schema.get("$schema", "")):
        for _, node in list(subschemas(copy)):
            if isinstance(node.get("$ref"), str):
                for keyword in node.keys() - ANNOTATIONS - {"$ref"}:
                    del node[keyword]
    return copy


def names_in(value: object) -> list[str]:
    """A list of names, such as `type` or `required`, that may be one name or absent."""
    if isinstance(value, str):
        return [value]
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def target_of(references: References, node: Any) -> JsonObject | None:
    """A part, or what it refers to if it is but a reference."""
    *_, last = _chain(references, node)
    return last if isinstance(last, dict) and not _ref_of(last) else None


def default_of(references: References, node: Any) -> tuple[Any, ...]:
    """The default of a property, its own or that of what it refers to; empty if there is none."""
    parts = _chain(references, node)
    return next(((p["default"],) for p in parts if isinstance(p, dict) and "default" in p), ())


def _chain(references: References, node: Any) -> Iterator[Any]:
    """A part, what it refers to, what that refers to …; not without end."""
    yield node
    for _ in range(_MOST_REFS):
        ref = _ref_of(node) if isinstance(node, dict) else None
        if ref is None:
            return
        node = references.resolve(ref)
        yield node


def _ref_of(node: JsonObject) -> str | None:
    return next((ref for key in REFS if isinstance(ref := node.get(key), str)), None)


class Places:
    """Where the parts of a schema lie, and what is made of them; looked up when a loss is told."""

    def __init__(self, schema: JsonObject) -> None:
        self._schema = schema
        self._pointers: dict[int, str] | None = None
        self._made: dict[int, _Made] = {}

    def made(
        self, new: JsonObject, source: object, origins: Mapping[str, object] | None = None
    ) -> JsonObject:
        """Notes what a part was made from, and its keywords where these differ.

        All stay alive, so that no id is used again.
        """
        if new is not source:
            self._made[id(new)] = new, source, origins or {}
        return new

    def source(self, part: object, keyword: str) -> object:
        """The part of the schema that a keyword of this one comes from."""
        while id(part) in self._made:
            _, source, origins = self._made[id(part)]
            part = origins.get(keyword, source)
        return part

    def pointer(self, part: object) -> str:
        """The JSON Pointer of a part of the schema itself."""
        if self._pointers is None:
            self._pointers = pointers(self._schema)
        return self._pointers.get(id(part), "")


def pointers(schema: object) -> dict[int, str]:
    """Where each object of a schema lies, by its id."""
    found = {}
    stack: list[tuple[str, object]] = [("", schema)]
    while stack:
        pointer, node = stack.pop()
        if isinstance(node, dict):
            found[id(node)] = pointer
            stack.extend((f"{pointer}/{escape_pointer(key)}", node[key]) for key in node)
        elif isinstance(node, list):
            stack.extend((f"{pointer}/{index}", child) for index, child in enumerate(node))
    return found
