"""Tools of every kind that a provider may be told of."""

from __future__ import annotations

import json
from typing import Any

from toolcrib.values.definition import Example, ToolDefinition

PLAIN: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "A city."}},
    "required": ["city"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
OPTIONAL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "note": {"type": ["string", "null"]},
    },
    "required": ["city"],
}
RECURSIVE: dict[str, Any] = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Node"}},
    "required": ["root"],
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
            },
            "required": ["value", "children"],
        }
    },
}
UNION: dict[str, Any] = {
    "type": "object",
    "anyOf": [
        {"properties": {"id": {"type": "integer"}}, "required": ["id"]},
        {"properties": {"name": {"type": "string"}}, "required": ["name"]},
    ],
}
OPEN: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}


def defined(name: str = "f", schema: Any = PLAIN, **changes: Any) -> ToolDefinition:
    text = None if schema is None else json.dumps(schema)
    return ToolDefinition(name=name, **{"description": "D.", "input_schema_json": text} | changes)


EXAMPLES = tuple(Example(f"weather in {at}", f'{{"city":"{at}"}}') for at in range(9))
TOOLS: dict[str, ToolDefinition] = {
    "plain": defined(),
    "without a description": defined(description=""),
    "strict": defined(strict=True),
    "never strict": defined(strict=False),
    "strict, impossible": defined(schema=OPEN, strict=True),
    "strict, without a schema": defined(schema=None, strict=True),
    "optional and nullable": defined(schema=OPTIONAL, strict=True),
    "recursive": defined(schema=RECURSIVE),
    "recursive, strict": defined(schema=RECURSIVE, strict=True),
    "a union at the top": defined(schema=UNION),
    "a union at the top, strict": defined(schema=UNION, strict=True),
    "illegal name": defined("9 lives/now"),
    "long name": defined("x" * 128),
    "without a schema": defined(schema=None),
    "with examples": defined(examples=EXAMPLES),
}


def inner(form: Any) -> Any:
    return form.get("function") or form.get("toolSpec") or form
