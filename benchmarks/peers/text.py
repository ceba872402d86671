"""A definition in the forms that peers need: one text, or a schema that a strict one accepts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_HUMPS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z][A-Z0-9]*|[0-9]+")


def split_name(name: str) -> str:
    """`getUser_byID` reads "get User by ID"."""
    return " ".join(
        part for raw in re.findall(r"[^\W_]+", name) for part in _HUMPS.findall(raw) or [raw]
    )


def full_text(tool: dict[str, Any]) -> str:
    """Name (as it is, and split), description; the parameters' names, descriptions and choices."""
    name = tool["name"]
    parts = [name, split_name(name), tool["description"], *_parameters(tool["input_schema"])]
    return " ".join(part for part in parts if part)


def _parameters(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        properties = schema.get("properties")
        for name, below in properties.items() if isinstance(properties, dict) else ():
            yield split_name(name)
            if isinstance(below, dict):
                yield str(below.get("description") or "")
                choices = below.get("enum")
                yield from map(str, choices) if isinstance(choices, list) else ()
                yield from _parameters(below)
        yield from _parameters(schema.get("items"))


_TYPES = {"string", "integer", "number", "boolean", "array", "object", "null"}


def valid_schema(schema: Any) -> Any:
    """The schema without what JSON Schema does not know: `"required": true`, `"type": "hashmap"`."""
    if isinstance(schema, list):
        return [valid_schema(below) for below in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: valid_schema(value) for key, value in schema.items() if not _is_wrong(key, value)}


def _is_wrong(key: str, value: object) -> bool:
    if key == "required":
        return isinstance(value, bool | str)
    return key == "type" and isinstance(value, str) and value not in _TYPES
