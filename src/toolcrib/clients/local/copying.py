"""Parameters whose values are copied from the request: a model that copies cannot make things up.

Rule: which parameters these are is learnt from the tool's own examples, and from nothing else. If
in at least two of them a parameter has a value, and each such value stands word for word in its
request (one that is the default aside), then the values that the new request offers are the only
ones allowed: its runs of up to eight words, or its numbers, and the default.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject, JsonValue

_AROUND = "?!.,;:'\"()[]{}<>`“”‘’…"
_AFTER = "?!.,;:…"
_QUOTES = "'\"`“”‘’…"
_MOST_WORDS = 80
_LONGEST_RUN = 8
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)|-?\d+(?:\.\d+)?")
_GLUED = re.compile(r"-?\d+(?:[.,]\d+)*([^\d\W]+|°\w*)")
_FEWEST = 2
_SAFE = 2**53
"""From here on a float is not the number that was written."""


def narrowed(definition: ToolDefinition, request: str) -> dict[str, JsonObject]:
    """For each copied parameter that the request has a candidate for, the schema to write it under."""
    found: dict[str, JsonObject] = {}
    properties = (definition.input_schema or {}).get("properties")
    for name, schema in properties.items() if isinstance(properties, dict) else ():
        if isinstance(schema, dict) and _is_copied(definition, name, schema):
            only = _narrow(schema, request)
            if only is not None:
                found[name] = only
    return found


def runs(text: str) -> list[str]:
    """The runs of words in a text, each in up to three forms.

    Without the marks around it; without those after it only (`./src` keeps its own); without quotes
    only (`(1 + 2)` keeps its own). A unit that is glued to its number is a word as well.
    """
    words = text.split()[:_MOST_WORDS]
    found: dict[str, None] = {}
    for start in range(len(words)):
        for end in range(start + 1, min(len(words), start + _LONGEST_RUN) + 1):
            run = " ".join(words[start:end])
            for form in (run.strip(_AROUND), run.rstrip(_AFTER), run.strip(_QUOTES)):
                if form.strip(_AROUND + " "):
                    found[form.strip()] = None
        glued = _GLUED.fullmatch(words[start].strip(_AROUND))
        if glued:
            found[glued[1]] = None
    return list(found)


def numbers(text: str, *, whole: bool) -> list[int | float]:
    """The numbers in a text, `1,000` being one thousand; with `whole` the integers only."""
    found: dict[int | float, None] = {}
    for match in _NUMBER.findall(text):
        value = float(match.replace(",", ""))
        if abs(value) >= _SAFE:
            continue
        if value.is_integer():
            found[int(value)] = None
        elif not whole:
            found[value] = None
    return list(found)


def _is_copied(definition: ToolDefinition, name: str, schema: JsonObject) -> bool:
    pairs = [(example.arguments, example.request) for example in definition.examples]
    given = [
        (arguments[name], request)
        for arguments, request in pairs
        if name in arguments and ("default" not in schema or arguments[name] != schema["default"])
    ]
    return len(given) >= _FEWEST and all(_stands_in(value, text) for value, text in given)


def _stands_in(value: JsonValue, text: str) -> bool:
    if isinstance(value, bool) or value is None:
        return False
    if isinstance(value, str):
        return value in runs(text)
    if isinstance(value, int | float):
        return value in numbers(text, whole=False)
    if isinstance(value, list):
        return bool(value) and all(_stands_in(item, text) for item in value)
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
            only = _narrow(items, request) if isinstance(items, dict) else None
            return None if only is None else {"type": "array", "items": only}
        case _:
            return _narrow_one_of(schema, request)
    if not candidates:
        return None
    default = [schema["default"]] if "default" in schema else []
    return {"enum": [*candidates, *(value for value in default if value not in candidates)]}


def _narrow_one_of(schema: JsonObject, request: str) -> JsonObject | None:
    """Of `anyOf`, as hints like `str | None` make it, the part that can be narrowed, and null."""
    parts = schema.get("anyOf")
    if not isinstance(parts, list):
        return None
    narrow = [_narrow(part, request) if isinstance(part, dict) else None for part in parts]
    others = [part for part in parts if part == {"type": "null"}]
    found: list[JsonValue] = [part for part in narrow if part is not None]
    return (
        {"anyOf": [*found, *others]} if found and len(found) + len(others) == len(parts) else None
    )
