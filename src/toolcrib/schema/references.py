"""Where the references inside one schema lead, and how places in it are written.

A reference leads to a place in the schema itself (`#`, `#/…`, `#anchor`), or nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum, StrEnum
from functools import lru_cache, reduce
from typing import Any, TypeAlias
from urllib.parse import unquote

import jiter

from toolcrib.errors import SchemaError
from toolcrib.values.json import JsonValue, escape_pointer

# Where subschemas are in a schema, and by which drafts it can be read.
#
# Everything not named here is data: a `$ref` inside an `enum`, a `default` or a property named
# `$ref` refers to nothing. The keywords of both drafts are combined. A keyword that one of them
# does not know is only examined more carefully than necessary.


class Draft(StrEnum):
    """The drafts of JSON Schema that are really supported."""

    D2020 = "2020-12"
    D7 = "draft-07"


class Role(IntEnum):
    """Says what kind of value a keyword has."""

    ONE = 1  # a schema (`items` may be a list of them, in draft 7)
    MANY = 2  # a list of schemas
    NAMED = 3  # schemas by name
    SHELF = 4  # schemas by name that apply only where a `$ref` points to them
    REF = 5
    ANCHOR = 6
    ID = 7
    DIALECT = 8
    PATTERN = 9
    PATTERNS = 10  # schemas by pattern
    UNKNOWN_REF = 11  # a reference of a draft that is not supported


ROLES: dict[str, Role] = {
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), Role.MANY),
    **dict.fromkeys(
        ("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items",
         "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
        Role.ONE,
    ),
    **dict.fromkeys(("properties", "dependentSchemas", "dependencies"), Role.NAMED),
    **dict.fromkeys(("$defs", "definitions"), Role.SHELF),
    **dict.fromkeys(("$ref", "$dynamicRef"), Role.REF),
    **dict.fromkeys(("$anchor", "$dynamicAnchor"), Role.ANCHOR),
    "$id": Role.ID,
    "$schema": Role.DIALECT,
    "$recursiveRef": Role.UNKNOWN_REF,
    "pattern": Role.PATTERN,
    "patternProperties": Role.PATTERNS,
}  # fmt: skip
REFS = ("$ref", "$dynamicRef")
SHELVES = ("$defs", "definitions")
# These apply to the same value as the schema around them, not to a part of it.
IN_PLACE = frozenset(
    ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
)

_DRAFTS = {
    "json-schema.org/draft/2020-12/schema": Draft.D2020,
    "json-schema.org/draft-07/schema": Draft.D7,
}


def draft_of(schema: dict[str, Any], default: Draft = Draft.D2020) -> Draft:
    """Return the draft that `$schema` names (with or without `#`, by http or https).

    Raises SchemaError, at `/$schema`, for any other draft, because the schema would mean something
    else.
    """
    declared = schema.get("$schema")
    if declared is None and "$schema" not in schema:
        return default
    if isinstance(declared, str):
        draft = _DRAFTS.get(declared.removesuffix("#").partition("://")[2])
        if draft is not None and declared.startswith(("http://", "https://")):
            return draft
    raise SchemaError(
        "$schema names a dialect that is not supported: write the schema in draft 2020-12 "
        "('https://json-schema.org/draft/2020-12/schema') or in draft 7 "
        "('http://json-schema.org/draft-07/schema#')",
        "/$schema",
    )


_MAX_SHOWN = 200
_role_of = ROLES.get
_ONE, _MANY = Role.ONE, Role.MANY
_BY_NAME = frozenset((Role.NAMED, Role.SHELF, Role.PATTERNS))
_ANCHORS = ("$anchor", "$dynamicAnchor")
# A place in a schema as a chain of keys, the last one first, because most are never shown.
Place: TypeAlias = "tuple[Place, object] | None"


class References:
    """Finds the targets of the `$ref`s of one schema; each is looked up once."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._targets: dict[str, Any] = {"#": schema}
        self._anchors: dict[str, Any] | None = None

    def resolve(self, ref: str) -> Any:
        """Return what `#`, `#/…` or `#anchor` points to, or None."""
        if ref not in self._targets:
            if ref.startswith("#/"):
                self._targets[ref] = reduce(_step, steps_of(unquote(ref)), self._schema)
            else:
                self._targets[ref] = self._anchored(ref[1:])
        return self._targets[ref]

    def crosses_id(self, ref: str) -> bool:
        """Return whether a pointer leads into a part with an `$id`, where `#/…` means another place."""
        node = self._schema
        for token in steps_of(unquote(ref)) if ref.startswith("#/") else ():
            node = _step(node, token)
            schema_id = node.get("$id") if isinstance(node, dict) else None
            if isinstance(schema_id, str) and not schema_id.startswith("#"):
                return True
        return False

    def _anchored(self, name: str) -> Any:
        if self._anchors is None:
            try:
                draft = draft_of(self._schema if isinstance(self._schema, dict) else {})
            except SchemaError:
                draft = Draft.D2020
            self._anchors = {
                anchor: node
                for _, node in subschemas(self._schema)
                for anchor in anchors_of(node, draft)
            }
        return self._anchors.get(name)


def resolve_ref(schema: Any, ref: str) -> Any:
    """Return what a local `$ref` (`#`, `#/…` or `#anchor`) points to, or None."""
    return References(schema).resolve(ref)


def anchors_of(node: dict[str, Any], draft: Draft) -> list[str]:
    """Return the names that a subschema declares for itself; in draft 7 an `$id` like `#name`."""
    if draft is Draft.D7:
        schema_id = node.get("$id")
        return (
            [schema_id[1:]]
            if isinstance(schema_id, str) and len(schema_id) > 1 and schema_id[0] == "#"
            else []
        )
    return [node[key] for key in _ANCHORS if isinstance(node.get(key), str)]


def nodes_of(value: Any) -> Iterator[Any]:
    """Yield every node of a JSON value, itself first; keys are not nodes."""
    pending = [value]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, dict):
            pending += node.values()
        elif isinstance(node, list):
            pending += node


def names_in(value: object) -> list[str]:
    """Return the names under `type` or `required`, which may be one name, a list, or absent."""
    if isinstance(value, str):
        return [value]
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def without(node: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key not in keys}


def subschemas(schema: Any, place: Place = None) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield every subschema that is an object, with its place; the schema itself comes first."""
    stack: list[tuple[Place, Any]] = [(place, schema)]
    while stack:
        place, node = stack.pop()
        if not isinstance(node, dict):
            continue
        yield place, node
        nested = [
            (child_place, child)
            for key, value in node.items()
            for child_place, child in children(place, key, value)
        ]
        stack += reversed(nested)


def children(place: Place, key: str, value: Any) -> list[tuple[Place, Any]]:
    """Return the subschemas under one keyword of the subschema at `place`."""
    role = _role_of(key)
    value_place = (place, key)
    if value.__class__ is dict:
        if role is _ONE:
            return [(value_place, value)]
        if role in _BY_NAME:
            return [((value_place, name), child) for name, child in value.items()]
    elif value.__class__ is list:
        if role is _MANY or key == "items":
            return [((value_place, index), child) for index, child in enumerate(value)]
    elif role is _ONE:
        return [(value_place, value)]
    return []


def _step(node: Any, key: str) -> Any:
    if isinstance(node, dict):
        return node.get(key)
    if isinstance(node, list) and key.isascii() and key.isdigit() and len(key) < 10:
        return node[int(key)] if int(key) < len(node) else None
    return None


def pointer_to(place: Place) -> str:
    """Return a place as a JSON Pointer, cut if it would be very long."""
    tokens: list[str] = []
    while place is not None:
        place, key = place
        tokens.append("/" + escape_pointer(key)[:_MAX_SHOWN])
    return "".join(reversed(tokens))[:_MAX_SHOWN]


def pointer_of(steps: Sequence[str | int]) -> str:
    """Return the JSON Pointer of a place in a value."""
    return "".join(f"/{escape_pointer(step)}" for step in steps)


def remove_at(value: JsonValue, pointer: str) -> None:
    """Remove what is at a place from a JSON value. The place may be inside a string of JSON.

    Raises LookupError, TypeError and ValueError if there is no such place.
    """
    node: Any = value
    *parents, last = steps_of(pointer)
    for token in parents:
        node = node[int(token) if isinstance(node, list) else token]
        if isinstance(node, str):
            node = read_text(node)
    if isinstance(node, dict | list):
        step: Any = int(last) if isinstance(node, list) else last
        del node[step]


def read_text(text: str) -> Any:
    """Parse JSON inside a string. Raises ValueError for invalid JSON and for a repeated key, whose
    meaning would be ambiguous."""
    return jiter.from_json(text.encode(), allow_inf_nan=False, catch_duplicate_keys=True)


def steps_of(pointer: str) -> list[str]:
    """Return the tokens of a JSON Pointer, unescaped."""
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]


# Dotted paths into JSON (`total`, `items[].id`, `[].name`), the language of allowlists.

EACH = "[]"
# Schemas under these describe values other than those of a result.
_OTHER_VALUES = frozenset(("not", "if"))
_RESTRICTING = IN_PLACE.union(
    ("type", "enum", "const", "properties", "patternProperties", "additionalProperties"),
    ("items", "prefixItems", *REFS),
)


@lru_cache(maxsize=4096)
def split_path(path: str) -> tuple[str, ...]:
    """Split `items[].id` into `("items", "[]", "id")`. Raises ValueError for an empty step."""
    steps: list[str] = []
    for part in path.split("."):
        name = part
        arrays = 0
        while name.endswith(EACH):
            name, arrays = name[: -len(EACH)], arrays + 1
        if not name and not arrays:
            raise ValueError(f"{path!r} has an empty step")
        steps += [name] if name else []
        steps += [EACH] * arrays
    return tuple(steps)


def path_exists(schema: dict[str, Any], path: str) -> bool:
    """Return whether a value of this schema can have something at `path`."""
    references = References(schema)
    seen: set[tuple[int, int]] = set()
    stack: list[tuple[Any, tuple[str, ...]]] = [(schema, split_path(path))]
    while stack:
        node, steps = stack.pop()
        if not steps or node is True:
            return True
        if not isinstance(node, dict) or (id(node), len(steps)) in seen:
            continue
        if _RESTRICTING.isdisjoint(node):  # a title, or nothing: any value fits
            return True
        seen.add((id(node), len(steps)))
        for keyword in IN_PLACE.intersection(node) - _OTHER_VALUES:
            stack += ((branch, steps) for _, branch in children(None, keyword, node[keyword]))
        for keyword in REFS:
            if isinstance(node.get(keyword), str):
                stack.append((references.resolve(node[keyword]), steps))
        stack += ((child, steps[1:]) for child in _next(node, steps[0]))
    return False


def _next(node: dict[str, Any], step: str) -> list[Any]:
    if step == EACH:
        item_schemas = list(node.get("prefixItems", ()))
        items = node.get("items", True)
        if isinstance(items, list):  # draft 7
            return [*items, node.get("additionalItems", True)]
        if "items" in node or "array" in names_in(node.get("type")):
            item_schemas.append(items)
        return item_schemas
    properties = node.get("properties", {})
    if step in properties:
        return [properties[step]]
    is_open = "object" in names_in(node.get("type")) and "properties" not in node
    extra = node.get("additionalProperties", is_open)
    return [*node.get("patternProperties", {}).values(), *([extra] if extra is not False else [])]
