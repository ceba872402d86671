"""What a lowest-common-denominator endpoint rejects is named, with its place."""

from __future__ import annotations

from typing import Any

import pytest
from rows import each_row

from toolcrib.schema.portable import check_portable

TEXT = {"type": "string"}
FINE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "minLength": 2, "enum": ["x"]},
        "b": {"type": "array", "items": {"$ref": "#/$defs/p", "description": "D"}},
    },
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"p": {"type": "object", "properties": {"c": {"type": "integer"}}}},
}


def test_the_portable_subset_has_nothing_to_name() -> None:
    assert check_portable(FINE) == ()


ROWS: list[tuple[dict[str, Any], str, str]] = [
    ({"oneOf": [TEXT, {"type": "integer"}]}, "oneOf", "refused"),
    ({"anyOf": [TEXT, {"type": "integer"}]}, "anyOf", "refused"),
    ({"anyOf": [TEXT, {"type": "null"}]}, "anyOf", "doubtful"),
    ({"type": ["string", "null"]}, "type", "doubtful"),
    ({"type": ["string", "integer"]}, "type", "refused"),
    ({"allOf": [TEXT]}, "allOf", "refused"),
    ({"type": "string", "not": {"const": "x"}}, "not", "refused"),
    ({"if": TEXT, "then": {"minLength": 1}}, "if", "refused"),
    ({"type": "object", "patternProperties": {"x": TEXT}}, "patternProperties", "refused"),
    ({"type": "object", "additionalProperties": TEXT}, "additionalProperties", "doubtful"),
    ({"type": "array"}, "items", "refused"),
    ({"type": "array", "prefixItems": [TEXT]}, "prefixItems", "refused"),
    ({"type": "object", "properties": {"b": True}}, "properties", "refused"),
    ({"$ref": "#/properties/b"}, "$ref", "refused"),
    ({"$ref": "#/$defs/t", "minLength": 1}, "$ref", "refused"),
    ({"$ref": "#/$defs/r"}, "$ref", "refused"),
]


@each_row(("part", "keyword", "effect"), ROWS)
def test_a_property(part: dict[str, Any], keyword: str, effect: str) -> None:
    recursive = {"type": "object", "properties": {"r": {"$ref": "#/$defs/r"}}}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"a/b": part, "b": TEXT},
        "$defs": {"t": TEXT, "r": recursive} if part.get("$ref") == "#/$defs/r" else {"t": TEXT},
    }
    found = [loss for loss in check_portable(schema) if loss.pointer == "/properties/a~1b"]
    assert [loss[1:3] for loss in found] == [(keyword, effect)]


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"properties": {}}, "type"),
        ({"type": "object", "anyOf": [{"required": ["a"]}]}, "anyOf"),
        ({"type": "object", "properties": {"a b": TEXT}}, "properties"),
        ({"type": "object", "enum": [{}]}, "enum"),
    ],
)
def test_the_top(schema: dict[str, Any], keyword: str) -> None:
    assert [(loss.pointer, loss.keyword) for loss in check_portable(schema)] == [("", keyword)]
