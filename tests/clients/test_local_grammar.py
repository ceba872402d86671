"""What of a schema the engine is given."""

from __future__ import annotations

from typing import Any

import pytest
from rows import each_row

from toolcrib.clients.local.arguments import filled, grammar, size_of

STRING = {"type": "string"}


def parameter(schema: Any) -> Any:
    """What becomes of one parameter's schema."""
    made: Any = grammar({"type": "object", "properties": {"a": schema}, "required": ["a"]}, {})
    return made["properties"]["a"]


PARAMETERS: list[tuple[Any, Any]] = [
    ({"type": "string", "description": "d", "title": "T", "default": "x"}, STRING),
    ({"type": "string", "pattern": "^(?=a)b$", "format": "date", "x-more": 1}, STRING),
    ({"type": "string", "minLength": 1, "maxLength": 5}, "same"),
    ({"type": "integer", "minimum": 3, "maximum": 7}, "same"),
    ({"type": "number", "exclusiveMinimum": 0.5}, "same"),
    ({"type": "integer", "maximum": 10**30}, {"type": "integer"}),
    ({"type": "integer", "minimum": True}, {"type": "integer"}),
    ({"type": ["integer", "null"]}, "same"),
    ({"type": "date"}, {}),
    ({"type": []}, {}),
    ({"type": "string", "enum": ["a", "b"]}, {"enum": ["a", "b"]}),
    ({"type": "string", "enum": []}, STRING),
    ({"enum": [2**60, 1]}, {}),
    ({"enum": ["\ud800"]}, {}),
    ({"const": {"x": [1, None]}}, "same"),
    ({"anyOf": [STRING, {"type": "null"}], "default": None}, {"anyOf": [STRING, {"type": "null"}]}),
    ({"oneOf": [STRING, {"type": "null"}]}, {"anyOf": [STRING, {"type": "null"}]}),
    ({"allOf": [{"type": "string", "title": "T"}]}, {"anyOf": [STRING]}),
    ({"allOf": [STRING, {"minLength": 1}]}, {}),
    ({"not": STRING, "if": STRING, "then": STRING}, {}),
    (
        {"type": "array", "items": {"type": "string", "title": "T"}, "minItems": 1, "maxItems": 2},
        {"type": "array", "items": STRING, "minItems": 1, "maxItems": 2},
    ),
    ({"type": "object"}, "same"),
    (
        {"type": "object", "additionalProperties": {"type": "string", "title": "T"}},
        {"type": "object", "additionalProperties": STRING},
    ),
    (
        {"properties": {"b": STRING, "c": STRING}, "required": ["c", "gone"]},
        {
            "type": "object",
            "properties": {"b": STRING, "c": STRING},
            "required": ["c"],
            "additionalProperties": False,
        },
    ),
    ({"$ref": "#/$defs/gone"}, {}),
    ({"$ref": "#"}, {}),
    (True, {}),
]


@each_row(("schema", "expected"), PARAMETERS)
def test_a_parameters_schema(schema: Any, expected: Any) -> None:
    assert parameter(schema) == (schema if expected == "same" else expected)


def test_a_reference_keeps_what_it_points_to() -> None:
    node: Any = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
        "title": "Node",
    }
    made: Any = grammar(
        {"properties": {"a": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}}, {}
    )
    assert made["properties"] == {"a": {"$ref": "#/$defs/Node"}}
    assert made["$defs"]["Node"] == {
        "type": "object",
        "properties": node["properties"],
        "required": [],
        "additionalProperties": False,
    }


def test_at_the_top_defaults_are_written_and_nothing_is_added() -> None:
    schema: Any = {
        "type": "object",
        "properties": {"a": STRING, "b": {"type": "integer", "default": 1}, "c": STRING},
        "required": ["a"],
    }
    made: Any = grammar(schema, {"c": {"enum": ["x"]}})
    assert made["required"] == ["a", "b"]
    assert made["additionalProperties"] is False
    assert made["properties"] == {"a": STRING, "b": {"type": "integer"}, "c": {"enum": ["x"]}}
    assert made["x-guidance"]["whitespace_flexible"] is False
    assert schema["properties"]["b"] == {"type": "integer", "default": 1}, "the author's own stays"


def test_without_parameters_it_is_any_object() -> None:
    made = grammar({}, {})
    assert made.keys() == {"type", "x-guidance"}
    assert made["type"] == "object"


def test_a_schema_nested_without_end_is_cut() -> None:
    schema: Any = STRING
    for _ in range(90):
        schema = {"type": "array", "items": schema}
    made, depth = parameter(schema), 0
    while "items" in made:
        made, depth = made["items"], depth + 1
    assert made == {}
    assert 10 < depth < 30


def test_examples_are_filled_in_the_schemas_order() -> None:
    schema: Any = {"properties": {"a": {"default": 1}, "b": STRING, "c": STRING}}
    assert list(filled(schema, {"c": "x", "b": "y"}).items()) == [("a", 1), ("b", "y"), ("c", "x")]
    assert filled({}, {"z": 1}) == {"z": 1}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, 0),
        ({"properties": {"a": STRING, "b": STRING}}, 2),
        ({"properties": {"a": {"anyOf": [{"properties": {"b": STRING}}, {"type": "null"}]}}}, 2),
        (True, 0),
    ],
)
def test_size(schema: Any, expected: int) -> None:
    assert size_of(schema) == expected
