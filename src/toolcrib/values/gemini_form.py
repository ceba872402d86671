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

_LISTS = ("functionDeclarations", "function_declarations")
_TYPES = frozenset(("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL"))
_NO_TYPE = "TYPE_UNSPECIFIED"
_SCHEMAS = {
    "parameters": "input_schema",
    "parametersJsonSchema": "input_schema",
    "response": "output_schema",
    "responseJsonSchema": "output_schema",
}
_SNAKE = {
    "parameters_json_schema": "parametersJsonSchema",
    "response_json_schema": "responseJsonSchema",
}
_OF_REQUESTS = frozenset(("behavior",))  # whether the model waits for the answer


def each_declared(given: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Split a Gemini tool into one tool per declared function; return any other form as the only item.

    Raises DefinitionError for a tool that also runs at its provider.
    """
    if _LISTS[0] not in given and _LISTS[1] not in given:
        return (given,)
    given = {key: value for key, value in given.items() if value is not None}
    other = next((key for key in given if key not in _LISTS), None)
    if other is not None:
        raise DefinitionError(
            f"a {other[:40]!r} tool runs at its provider: give it to the client, not as a definition"
        )
    found = [one for key in _LISTS for one in _listed(given.get(key, []))]
    return [{_LISTS[0]: [one]} for one in found]


def _listed(found: object) -> Sequence[Any]:
    if not isinstance(found, list | tuple):
        raise DefinitionError(f"its {_LISTS[0]} is not a list of functions")
    return found


def gemini_form(given: Mapping[str, Any]) -> JsonObject | None:
    """Convert a declaration into toolcrib's form; return None for another form.

    The result has no `input_schema` if the function takes no parameters. Raises DefinitionError.
    """
    declared = _declaration(given)
    if declared is None:
        return None
    made: JsonObject = {}
    for key, value in declared.items():
        if key in _SCHEMAS:
            ours = _SCHEMAS[key]
            if ours in made:
                raise DefinitionError(f"{declared.get('name')!r:.80} has two schemas for {ours}")
            made[ours] = _schema(value, declared) if key in ("parameters", "response") else value
        elif key not in _OF_REQUESTS:
            made[key] = value
    return made


def _declaration(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the one declaration that a dictionary contains or is, with the API's spelling."""
    if not given.keys().isdisjoint(_LISTS):
        found = each_declared(given)
        if len(found) != 1:
            raise DefinitionError(
                f"it holds {len(found)} functions: give one of them, or all to a Catalog"
            )
        (given,) = found[0][_LISTS[0]]
        if not isinstance(given, Mapping):
            raise DefinitionError(f"each function in {_LISTS[0]} must be a dictionary")
    elif not _is_declaration(given):
        return None
    return {_SNAKE.get(key, key): value for key, value in given.items() if value is not None}


def _is_declaration(given: Mapping[str, Any]) -> bool:
    """Return whether a dictionary is a bare declaration. `parameters` alone does not prove it:
    others use that too."""
    if "type" in given or "input_schema" in given:
        return False
    if any(name in given for pair in _SNAKE.items() for name in pair):
        return True
    schemas = (given.get("parameters"), given.get("response"))
    return any(isinstance(one, Mapping) and _is_type(one.get("type")) for one in schemas)


def _is_type(said: object) -> TypeGuard[str]:
    return isinstance(said, str) and str.__str__(said) in _TYPES  # google-genai uses an enum


# Schemas: https://spec.openapis.org/oas/v3.0.3#schema-object, with types in capitals, and with
# 64-bit integers as strings, as Protocol Buffers write them in JSON.

_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_WORDS: Mapping[Any, Any] = {
    re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", word): word
    for word in (
        *("anyOf", "oneOf", "prefixItems", "additionalProperties", "uniqueItems"),
        *("propertyOrdering", *_COUNTS),
    )
} | {"defs": "$defs", "ref": "$ref"}
_NOT_OURS = frozenset(("nullable", "propertyOrdering"))
_WHOLE = re.compile(r"-?[0-9]{1,20}")
_NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?")


def _schema(given: Any, declared: Mapping[str, Any]) -> Any:
    try:
        return _translated(given)
    except RecursionError:
        name = declared.get("name")
        raise DefinitionError(f"a schema of {name!r:.80} is nested too deeply") from None


def _translated(given: Any) -> Any:
    """Translate a schema. Any other value stays unchanged, and is refused as in any other form."""
    if not isinstance(given, Mapping):
        return given
    said: JsonObject = {_WORDS.get(k, k): value for k, value in given.items() if value is not None}
    made: JsonObject = {
        key: _READERS[key](value) if key in _READERS else value
        for key, value in said.items()
        if key not in _NOT_OURS
    }
    if made.get("type") == _NO_TYPE:
        del made["type"]
    if made.get("format") == "enum":
        del made["format"]
    if "example" in made:
        made["examples"] = [made.pop("example")]
    listed = made.get("enum")
    if isinstance(listed, list) and made.get("type") in ("integer", "number"):
        made["enum"] = list(map(_number, listed))  # Gemini writes them as strings
    return _nullable(made) if said.get("nullable") is True else made


def _by_name(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: _translated(one) for name, one in value.items()}


def _each(value: Any) -> Any:
    return [*map(_translated, value)] if isinstance(value, list | tuple) else value


def _type(value: Any) -> Any:
    return value.lower() if _is_type(value) else value


def _ref(value: Any) -> Any:
    return value.replace("#/defs/", "#/$defs/", 1) if isinstance(value, str) else value


def _number(value: Any) -> Any:
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "type": _type,
    "properties": _by_name,
    "$defs": _by_name,
    "items": _translated,
    "additionalProperties": _translated,
    "anyOf": _each,
    "oneOf": _each,
    "prefixItems": _each,
    "$ref": _ref,
    **dict.fromkeys(("minimum", "maximum", *_COUNTS), _number),
}


def _nullable(made: JsonObject) -> JsonObject:
    kind = made.get("type")
    if not isinstance(kind, str) or not made.keys().isdisjoint(("anyOf", "oneOf", "$ref")):
        told: JsonObject = {
            key: made.pop(key) for key in ("title", "description", "default") if key in made
        }
        return {**told, "anyOf": [made, {"type": "null"}]}
    listed = made.get("enum")
    union = made if kind == "null" else made | {"type": [kind, "null"]}
    return union | {"enum": [*listed, None]} if isinstance(listed, list) else union
