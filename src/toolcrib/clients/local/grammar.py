"""A tool's schema, cut down to what the engine can hold a model to.

Rule: the engine drops a schema that it cannot translate without a word, and then nothing holds the
model. So the schema is built anew from keywords known to work (tried with xllamacpp 2026.10, whose
grammars are llguidance's), and everything else is left out. What the grammar lets through that the
author's schema does not, hydration refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolcrib.schema.guard import resolve_ref
from toolcrib.values.json import JsonObject, JsonValue

_TYPES = frozenset(("object", "array", "string", "integer", "number", "boolean", "null"))
_LENGTHS = ("minLength", "maxLength", "minItems", "maxItems")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_SAFE_INTEGER = 2**53
_DEEPEST = 24

# Beside them the engine would allow any white space, in which small models lose themselves.
_SPACING: JsonObject = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}


def grammar(schema: JsonObject, narrowed: Mapping[str, JsonObject]) -> JsonObject:
    """The schema that the arguments are written under; `narrowed` replaces properties' own schemas.

    At the top, a property that has a default is written too: a model that may leave things out
    leaves out too much.
    """
    made = _rebuilt(schema, schema, 0)
    properties = _mapping(schema.get("properties"))
    made |= {"type": "object", "x-guidance": _SPACING}
    if properties:
        allowed = _mapping(made.get("properties"))
        made["properties"] = {name: narrowed.get(name, allowed[name]) for name in properties}
        defaulted = [
            name for name, p in properties.items() if isinstance(p, dict) and "default" in p
        ]
        required = made.get("required")
        named = required if isinstance(required, list) else []
        made["required"] = [name for name in properties if name in named or name in defaulted]
        made["additionalProperties"] = False
    for key in ("$defs", "definitions"):
        definitions = _mapping(schema.get(key))
        if definitions:
            made[key] = {name: _rebuilt(part, schema, 0) for name, part in definitions.items()}
    return made


def filled(schema: JsonObject, arguments: JsonObject) -> JsonObject:
    """The arguments in the schema's order, defaults written out: as the grammar has a model write."""
    whole: JsonObject = {}
    for name, part in _mapping(schema.get("properties")).items():
        if name in arguments:
            whole[name] = arguments[name]
        elif isinstance(part, dict) and "default" in part:
            whole[name] = part["default"]
    return whole | arguments


def size_of(schema: JsonValue) -> int:
    """How many properties a schema has, at any depth: what an answer's length grows with."""
    if isinstance(schema, list):
        return sum(map(size_of, schema))
    if not isinstance(schema, dict):
        return 0
    return len(_mapping(schema.get("properties"))) + sum(map(size_of, schema.values()))


def _rebuilt(schema: JsonValue, root: JsonObject, depth: int) -> JsonObject:
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return {}
    made: JsonObject = {}
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref != "#" and resolve_ref(root, ref) is not None:
        return {"$ref": ref}
    values = schema.get("enum")
    if isinstance(values, list) and values and all(map(_exact, values)):
        return {"enum": values}
    if "const" in schema and _exact(schema["const"]):
        return {"const": schema["const"]}
    for key in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(key)
        if isinstance(parts, list) and parts and (key != "allOf" or len(parts) == 1):
            return {"anyOf": [_rebuilt(part, root, depth + 1) for part in parts]}
    if _is_type(schema.get("type")):
        made["type"] = schema["type"]
    made |= {key: schema[key] for key in _LENGTHS if _is_bound(schema.get(key), int)}
    made |= {key: schema[key] for key in _BOUNDS if _is_bound(schema.get(key), (int, float))}
    if isinstance(schema.get("items"), dict):
        made["items"] = _rebuilt(schema["items"], root, depth + 1)
    return made | _object_part(schema, root, depth)


def _object_part(schema: JsonObject, root: JsonObject, depth: int) -> JsonObject:
    properties = _mapping(schema.get("properties"))
    others = schema.get("additionalProperties")
    if not properties:
        if isinstance(others, dict):
            return {"type": "object", "additionalProperties": _rebuilt(others, root, depth + 1)}
        return {"additionalProperties": False} if others is False else {}
    required = schema.get("required")
    named = required if isinstance(required, list) else []
    return {
        "type": "object",
        "properties": {name: _rebuilt(part, root, depth + 1) for name, part in properties.items()},
        "required": [name for name in properties if name in named],
        "additionalProperties": False,
    }


def _mapping(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _is_type(value: JsonValue) -> bool:
    if isinstance(value, list):
        return bool(value) and all(item in _TYPES for item in value)
    return value in _TYPES


def _is_bound(value: JsonValue, kinds: Any) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool) and _exact(value)


def _exact(value: JsonValue) -> bool:
    """Whether the engine reads the value as it is: no integer beyond 2^53, no lone surrogate."""
    if isinstance(value, str):
        return not any("\ud800" <= c <= "\udfff" for c in value)
    if isinstance(value, int | float):
        return abs(value) < _SAFE_INTEGER
    if isinstance(value, list):
        return all(map(_exact, value))
    if isinstance(value, dict):
        return all(_exact(key) and _exact(member) for key, member in value.items())
    return value is None
