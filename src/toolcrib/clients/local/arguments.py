"""The arguments of a call, which the model writes under a grammar made from the tool's schema.

Rule: the engine silently ignores a schema that it cannot translate, and then nothing constrains the
model. So the schema is built anew from keywords that are known to work (tried with xllamacpp
2026.10, whose grammars are llguidance's), and all others are left out. Hydration refuses what the
grammar allows and the author's schema does not.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from toolcrib.clients.local.model import Completion, Model, TooLongError
from toolcrib.clients.local.reading import properties_of
from toolcrib.errors import RequestError
from toolcrib.schema.references import resolve_ref
from toolcrib.values.definition import Example, ToolDefinition
from toolcrib.values.json import JsonObject, JsonValue, encodable
from toolcrib.values.message import Settings

_TYPES = frozenset(("object", "array", "string", "integer", "number", "boolean", "null"))
_LENGTHS = ("minLength", "maxLength", "minItems", "maxItems")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_EXACT_BELOW = 2**53
"""From here on a float may differ from the number that was written."""
_MOST_DEPTH = 24

# Otherwise the engine would allow any white space, in which small models get lost.
_SPACING: JsonObject = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}


def grammar(schema: JsonObject, narrowed_schemas: Mapping[str, JsonObject]) -> JsonObject:
    """Return the schema that the arguments are written under. `narrowed_schemas` replace
    those of properties.

    At the top level, properties that have a default are required as well: a model that may leave
    things out leaves out too much.
    """
    rebuilt = _rebuilt(schema, schema, 0)
    properties = _mapping(schema.get("properties"))
    rebuilt |= {"type": "object", "x-guidance": _SPACING}
    if properties:
        rebuilt_properties = _mapping(rebuilt.get("properties"))
        rebuilt["properties"] = {
            name: narrowed_schemas.get(name, rebuilt_properties[name]) for name in properties
        }
        defaulted = [
            name for name, p in properties.items() if isinstance(p, dict) and "default" in p
        ]
        required = rebuilt.get("required")
        required_names = required if isinstance(required, list) else []
        rebuilt["required"] = [
            name for name in properties if name in required_names or name in defaulted
        ]
        rebuilt["additionalProperties"] = False
    for key in ("$defs", "definitions"):
        definitions = _mapping(schema.get(key))
        if definitions:
            rebuilt[key] = {name: _rebuilt(part, schema, 0) for name, part in definitions.items()}
    return rebuilt


def filled(schema: JsonObject, arguments: JsonObject) -> JsonObject:
    """Return the arguments in the schema's order with defaults filled in, as the grammar makes a
    model write."""
    complete: JsonObject = {}
    for name, property_schema in _mapping(schema.get("properties")).items():
        if name in arguments:
            complete[name] = arguments[name]
        elif isinstance(property_schema, dict) and "default" in property_schema:
            complete[name] = property_schema["default"]
    return complete | arguments


def size_of(schema: JsonValue) -> int:
    """Return how many properties a schema has at any depth, which determines the length of an
    answer."""
    if isinstance(schema, list):
        return sum(map(size_of, schema))
    if not isinstance(schema, dict):
        return 0
    return len(_mapping(schema.get("properties"))) + sum(map(size_of, schema.values()))


def _rebuilt(schema: JsonValue, root: JsonObject, depth: int) -> JsonObject:
    if not isinstance(schema, dict) or depth > _MOST_DEPTH:
        return {}
    rebuilt: JsonObject = {}
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
        rebuilt["type"] = schema["type"]
    rebuilt |= {key: schema[key] for key in _LENGTHS if _is_bound(schema.get(key), int)}
    rebuilt |= {key: schema[key] for key in _BOUNDS if _is_bound(schema.get(key), (int, float))}
    if isinstance(schema.get("items"), dict):
        rebuilt["items"] = _rebuilt(schema["items"], root, depth + 1)
    return rebuilt | _object_part(schema, root, depth)


def _object_part(schema: JsonObject, root: JsonObject, depth: int) -> JsonObject:
    properties = _mapping(schema.get("properties"))
    additional = schema.get("additionalProperties")
    if not properties:
        if isinstance(additional, dict):
            return {"type": "object", "additionalProperties": _rebuilt(additional, root, depth + 1)}
        return {"additionalProperties": False} if additional is False else {}
    required = schema.get("required")
    required_names = required if isinstance(required, list) else []
    return {
        "type": "object",
        "properties": {name: _rebuilt(part, root, depth + 1) for name, part in properties.items()},
        "required": [name for name in properties if name in required_names],
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
    """Return whether the engine reads the value exactly: no integer beyond 2^53, no lone surrogate."""
    if isinstance(value, str):
        return not any("\ud800" <= c <= "\udfff" for c in value)
    if isinstance(value, int | float):
        return abs(value) < _EXACT_BELOW
    if isinstance(value, list):
        return all(map(_exact, value))
    if isinstance(value, dict):
        return all(_exact(key) and _exact(member) for key, member in value.items())
    return value is None


# Parameters whose values are copied from the request, so that the model cannot invent them.
#
# Rule: these parameters are found by the tool's own examples alone. If a parameter has a value in at
# least two of them, and each such value (except the default) occurs word for word in its request, then
# only values from the new request are allowed: its sequences of up to eight words, or its numbers, and
# the default.

_AROUND = "?!.,;:'\"()[]{}<>`“”‘’…"
_AFTER = "?!.,;:…"
_QUOTES = "'\"`“”‘’…"
_MOST_WORDS = 80
_LONGEST_RUN = 8
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)|-?\d+(?:\.\d+)?")
_NUMBER_WITH_UNIT = re.compile(r"-?\d+(?:[.,]\d+)*([^\d\W]+|°\w*)")
_FEWEST_EXAMPLES = 2


def narrowed(definition: ToolDefinition, request: str) -> dict[str, JsonObject]:
    """Return the schema to write under for each copied parameter for which the request has a
    candidate."""
    schemas: dict[str, JsonObject] = {}
    for name, schema in properties_of(definition).items():
        if isinstance(schema, dict) and _is_copied(definition, name, schema):
            narrow = _narrow(schema, request)
            if narrow is not None:
                schemas[name] = narrow
    return schemas


def runs(text: str) -> list[str]:
    """Return the sequences of words in a text, each in up to three forms.

    The forms are: without the marks around it, without the marks after it only (so `./src` stays
    whole), and without quotes only (so `(1 + 2)` stays whole). A unit attached to its number counts
    as a word.
    """
    words = text.split()[:_MOST_WORDS]
    sequences: dict[str, None] = {}
    for start in range(len(words)):
        for end in range(start + 1, min(len(words), start + _LONGEST_RUN) + 1):
            run = " ".join(words[start:end])
            for form in (run.strip(_AROUND), run.rstrip(_AFTER), run.strip(_QUOTES)):
                if form.strip(_AROUND + " "):
                    sequences[form.strip()] = None
        number_with_unit = _NUMBER_WITH_UNIT.fullmatch(words[start].strip(_AROUND))
        if number_with_unit:
            sequences[number_with_unit[1]] = None
    return list(sequences)


def numbers(text: str, *, whole: bool) -> list[int | float]:
    """Return the numbers in a text, reading `1,000` as one thousand. With `whole`, only the
    integers."""
    values: dict[int | float, None] = {}
    for match in _NUMBER.findall(text):
        value = float(match.replace(",", ""))
        if abs(value) >= _EXACT_BELOW:
            continue
        if value.is_integer():
            values[int(value)] = None
        elif not whole:
            values[value] = None
    return list(values)


def _is_copied(definition: ToolDefinition, name: str, schema: JsonObject) -> bool:
    pairs = [
        (example.arguments[name], example.request)
        for example in definition.examples
        if name in example.arguments and example.arguments[name] != schema.get("default", ...)
    ]
    return len(pairs) >= _FEWEST_EXAMPLES and all(_is_in(value, text) for value, text in pairs)


def _is_in(value: JsonValue, text: str) -> bool:
    if isinstance(value, bool) or value is None:
        return False
    if isinstance(value, str):
        return value in runs(text)
    if isinstance(value, int | float):
        return value in numbers(text, whole=False)
    if isinstance(value, list):
        return bool(value) and all(_is_in(item, text) for item in value)
    return False


def _narrow(schema: JsonObject, request: str) -> JsonObject | None:
    if "enum" in schema or "const" in schema:
        return None
    candidates: Sequence[JsonValue]
    match schema.get("type"):
        case "string":
            candidates = runs(request)
        case "integer":
            candidates = numbers(request, whole=True)
        case "number":
            candidates = numbers(request, whole=False)
        case "array":
            items = schema.get("items")
            narrow_items = _narrow(items, request) if isinstance(items, dict) else None
            return None if narrow_items is None else {"type": "array", "items": narrow_items}
        case _:
            return _narrow_one_of(schema, request)
    if not candidates:
        return None
    default = [schema["default"]] if "default" in schema else []
    return {"enum": [*candidates, *(value for value in default if value not in candidates)]}


def _narrow_one_of(schema: JsonObject, request: str) -> JsonObject | None:
    """Narrow the one branch of an `anyOf` that can be narrowed, as in `str | None`. null stays."""
    parts = schema.get("anyOf")
    if not isinstance(parts, list):
        return None
    narrow_parts = [_narrow(part, request) if isinstance(part, dict) else None for part in parts]
    nulls = [part for part in parts if part == {"type": "null"}]
    branches: list[JsonValue] = [part for part in narrow_parts if part is not None]
    return (
        {"anyOf": [*branches, *nulls]}
        if branches and len(branches) + len(nulls) == len(parts)
        else None
    )


# Filling in a call: the model continues the tool's own examples, under the schema's grammar.
#
# Rule: the model writes arguments and nothing else. Its text is passed on unchanged, and hydration
# judges it like any other model's.

SHOTS = 4
_BUDGET = 4000
_LEAST_BUDGET = 200
_BASE_TOKENS = 64
_TOKENS_PER_PROPERTY = 32
_MOST_TOKENS = 512
_RESERVED_KEYS = frozenset(("prompt", "json_schema", "grammar", "n_predict", "stream", "n"))


def fill(
    model: Model,
    tool: ToolDefinition,
    request: str,
    *,
    shots: Sequence[Example],
    settings: Settings,
    given_up: threading.Event,
) -> Completion:
    """Return the arguments for the request, as JSON text. `shots` are sorted with the nearest
    first.

    What does not fit into the context is left out: first the farthest shots, then the middle of the
    request. Raises what `Model.complete` raises, and RequestError for settings that cannot be used.
    """
    for key in settings.extra:
        if key in _RESERVED_KEYS:
            raise RequestError(f"Settings.extra may not set {key!r}: the client sets it itself")
    schema = tool.input_schema or {"type": "object"}
    request = " ".join(encodable(request).split())
    most_tokens = min(_MOST_TOKENS, _BASE_TOKENS + _TOKENS_PER_PROPERTY * size_of(schema))
    body: JsonObject = {
        "temperature": settings.temperature or 0,
        "cache_prompt": True,
        **settings.extra,
        "n_predict": min(most_tokens, settings.max_tokens or most_tokens),
    }
    budget = _BUDGET
    while budget >= _LEAST_BUDGET:
        clipped_request = clipped(request, budget // 2)
        body["prompt"] = prompt(tool, clipped_request, shots, budget)
        body["json_schema"] = grammar(schema, narrowed(tool, clipped_request))
        try:
            return model.complete(body, given_up)
        except TooLongError:
            budget //= 2
    raise RequestError("the request does not fit the embedded model's context")


def prompt(tool: ToolDefinition, request: str, shots: Sequence[Example], budget: int) -> str:
    """Return a prompt of about `budget` characters: description, shots (nearest last), request."""
    schema = tool.input_schema or {}
    head = f"{tool.name}: {clipped(' '.join(tool.description.split()), budget // 4)}\n\n"
    tail = f"Request: {request}\nArguments:"
    remaining = budget - len(head) - len(tail)
    shot_texts: list[str] = []
    for shot in shots:
        arguments = json.dumps(filled(schema, shot.arguments), ensure_ascii=False)
        text = f"Request: {shot.request}\nArguments: {arguments}\n\n"
        remaining -= len(text)
        if remaining < 0:
            break
        shot_texts.append(text)
    return head + "".join(reversed(shot_texts)) + tail


def clipped(text: str, limit: int) -> str:
    """Return the text, or the beginning and the end of a text that is too long."""
    if len(text) <= limit:
        return text
    half = (limit - 3) // 2
    return f"{text[:half]} … {text[-half:]}"
