"""Gemini's form of a tool: function declarations whose schemas use Google's dialect of OpenAPI.

Declarations come in a list (`functionDeclarations`). A single one is recognised if something in it
is specific to Gemini. Members are spelled as in the API, or in snake case as google-genai dumps
them; a member that is None counts as absent. https://ai.google.dev/api/caching#FunctionDeclaration,
https://ai.google.dev/api/caching#Schema
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

from toolcrib.errors import DefinitionError
from toolcrib.values.json import JsonObject

_LIST_KEYS = ("functionDeclarations", "function_declarations")
_TYPES = frozenset(("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL"))
_NO_TYPE = "TYPE_UNSPECIFIED"
_SCHEMA_KEYS = {
    "parameters": "input_schema",
    "parametersJsonSchema": "input_schema",
    "response": "output_schema",
    "responseJsonSchema": "output_schema",
}
_CAMEL_KEYS = {
    "parameters_json_schema": "parametersJsonSchema",
    "response_json_schema": "responseJsonSchema",
}
_REQUEST_SETTINGS = frozenset(("behavior",))  # whether the model waits for the answer


def each_declared(form: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Split a Gemini tool into one tool per declared function; return any other form as the only item.

    Raises DefinitionError for a tool that also runs at its provider.
    """
    if _LIST_KEYS[0] not in form and _LIST_KEYS[1] not in form:
        return (form,)
    form = {key: value for key, value in form.items() if value is not None}
    other = next((key for key in form if key not in _LIST_KEYS), None)
    if other is not None:
        raise DefinitionError(
            f"a {other[:40]!r} tool runs at its provider: give it to the client, not as a definition"
        )
    functions = [function for key in _LIST_KEYS for function in _checked_list(form.get(key, []))]
    return [{_LIST_KEYS[0]: [function]} for function in functions]


def _checked_list(functions: object) -> Sequence[Any]:
    if not isinstance(functions, list | tuple):
        raise DefinitionError(f"its {_LIST_KEYS[0]} is not a list of functions")
    return functions


def gemini_form(form: Mapping[str, Any]) -> JsonObject | None:
    """Convert a declaration into toolcrib's form; return None for another form.

    The result has no `input_schema` if the function takes no parameters. Raises DefinitionError.
    """
    declaration = _declaration(form)
    if declaration is None:
        return None
    converted: JsonObject = {}
    for key, value in declaration.items():
        if key in _SCHEMA_KEYS:
            our_key = _SCHEMA_KEYS[key]
            if our_key in converted:
                raise DefinitionError(
                    f"{declaration.get('name')!r:.80} has two schemas for {our_key}"
                )
            converted[our_key] = (
                _schema(value, declaration) if key in ("parameters", "response") else value
            )
        elif key not in _REQUEST_SETTINGS:
            converted[key] = value
    return converted


def _declaration(form: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the one declaration that a dictionary contains or is, with the API's spelling."""
    if not form.keys().isdisjoint(_LIST_KEYS):
        tools = each_declared(form)
        if len(tools) != 1:
            raise DefinitionError(
                f"it holds {len(tools)} functions: give one of them, or all to a Catalog"
            )
        (form,) = tools[0][_LIST_KEYS[0]]
        if not isinstance(form, Mapping):
            raise DefinitionError(f"each function in {_LIST_KEYS[0]} must be a dictionary")
    elif not _is_declaration(form):
        return None
    return {_CAMEL_KEYS.get(key, key): value for key, value in form.items() if value is not None}


def _is_declaration(form: Mapping[str, Any]) -> bool:
    """Return whether a dictionary is a bare declaration. `parameters` alone does not prove it:
    others use that too."""
    if "type" in form or "input_schema" in form:
        return False
    if any(name in form for pair in _CAMEL_KEYS.items() for name in pair):
        return True
    schemas = (form.get("parameters"), form.get("response"))
    return any(isinstance(schema, Mapping) and _is_type(schema.get("type")) for schema in schemas)


def _is_type(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and str.__str__(value) in _TYPES  # google-genai uses an enum


# Schemas: https://spec.openapis.org/oas/v3.0.3#schema-object, with types in capitals, and with
# 64-bit integers as strings, as Protocol Buffers write them in JSON.

_COUNT_KEYWORDS = (
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minProperties",
    "maxProperties",
)
_KEYWORDS: Mapping[Any, Any] = {
    re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", word): word
    for word in (
        *("anyOf", "oneOf", "prefixItems", "additionalProperties", "uniqueItems"),
        *("propertyOrdering", *_COUNT_KEYWORDS),
    )
} | {"defs": "$defs", "ref": "$ref"}
_GEMINI_ONLY = frozenset(("nullable", "propertyOrdering"))
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?")


def _schema(schema: Any, declaration: Mapping[str, Any]) -> Any:
    try:
        return _translated(schema)
    except RecursionError:
        name = declaration.get("name")
        raise DefinitionError(f"a schema of {name!r:.80} is nested too deeply") from None


def _translated(schema: Any) -> Any:
    """Translate a schema. Any other value stays unchanged, and is refused as in any other form."""
    if not isinstance(schema, Mapping):
        return schema
    members: JsonObject = {
        _KEYWORDS.get(k, k): value for k, value in schema.items() if value is not None
    }
    converted: JsonObject = {
        key: _READERS[key](value) if key in _READERS else value
        for key, value in members.items()
        if key not in _GEMINI_ONLY
    }
    if converted.get("type") == _NO_TYPE:
        del converted["type"]
    if converted.get("format") == "enum":
        del converted["format"]
    if "example" in converted:
        converted["examples"] = [converted.pop("example")]
    values = converted.get("enum")
    if isinstance(values, list) and converted.get("type") in ("integer", "number"):
        converted["enum"] = list(map(_number, values))  # Gemini writes them as strings
    return _nullable(converted) if members.get("nullable") is True else converted


def _translated_by_name(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: _translated(schema) for name, schema in value.items()}


def _translated_each(value: Any) -> Any:
    return [*map(_translated, value)] if isinstance(value, list | tuple) else value


def _type(value: Any) -> Any:
    return value.lower() if _is_type(value) else value


def _ref(value: Any) -> Any:
    return value.replace("#/defs/", "#/$defs/", 1) if isinstance(value, str) else value


def _number(value: Any) -> Any:
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "type": _type,
    "properties": _translated_by_name,
    "$defs": _translated_by_name,
    "items": _translated,
    "additionalProperties": _translated,
    "anyOf": _translated_each,
    "oneOf": _translated_each,
    "prefixItems": _translated_each,
    "$ref": _ref,
    **dict.fromkeys(("minimum", "maximum", *_COUNT_KEYWORDS), _number),
}


def _nullable(schema: JsonObject) -> JsonObject:
    kind = schema.get("type")
    if not isinstance(kind, str) or not schema.keys().isdisjoint(("anyOf", "oneOf", "$ref")):
        descriptive: JsonObject = {
            key: schema.pop(key) for key in ("title", "description", "default") if key in schema
        }
        return {**descriptive, "anyOf": [schema, {"type": "null"}]}
    values = schema.get("enum")
    union = schema if kind == "null" else schema | {"type": [kind, "null"]}
    return union | {"enum": [*values, None]} if isinstance(values, list) else union
