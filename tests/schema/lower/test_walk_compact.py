"""A schema is shortened by stages, until it fits and no further."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import msgspec
import pytest
from rows import each_row
from samples import sampled

from toolcrib.schema.lower import Dialect, compact, lower
from toolcrib.schema.lower.walk import size_of
from toolcrib.schema.validator import JsonSchemaValidator
from toolcrib.values.definition import ToolDefinition
from toolcrib.wire import FORMS, tool_views
from toolcrib.wire.anthropic import DIALECT as ANTHROPIC
from toolcrib.wire.cohere import DIALECT as COHERE
from toolcrib.wire.gemini import DIALECT as GEMINI
from toolcrib.wire.ollama import DIALECT as OLLAMA
from toolcrib.wire.openai_chat import DIALECT as OPENAI

PART: dict[str, Any] = {
    "type": "object",
    "title": "Part",
    "description": "What it is. And much more of it.",
    "properties": {
        "deep": {
            "type": "object",
            "description": "Deep. Deeper.",
            "properties": {"deepest": {"type": "array", "items": {"type": "string"}}},
        }
    },
    "required": ["deep"],
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {**{f"p{i}": PART for i in range(4)}, "r": {"$ref": "#/$defs/x"}},
    "required": ["p1"],
    "$defs": {"x": PART, "unused": {"type": "string"}},
}
SIZE = size_of(SCHEMA)
LEAST = 250


@each_row(
    ("limit", "keywords"),
    [
        (SIZE, []),
        (SIZE - 1, ["title"]),
        (SIZE - 150, ["title", "description"]),
        (SIZE - 450, ["title", "description", "properties"]),
        (10, ["title", "description", "properties", "properties"]),
    ],
)
def test_stages(limit: int, keywords: list[str]) -> None:
    before = json.dumps(SCHEMA)
    view: Any
    view, losses = compact(SCHEMA, limit)
    assert json.dumps(SCHEMA) == before
    assert [loss.keyword for loss in losses] == keywords
    assert size_of(view) <= limit or losses[-1].effect == "doubtful"
    assert list(view["properties"]) == list(SCHEMA["properties"])
    assert view["required"] == ["p1"]
    JsonSchemaValidator(view)


def test_the_same_schema_gives_the_same_view() -> None:
    assert compact(SCHEMA, 400) == compact(json.loads(json.dumps(SCHEMA)), 400)


def test_without_cutting_only_words_go() -> None:
    view: Any
    view, losses = compact(SCHEMA, LEAST, cut=False)
    assert [loss.keyword for loss in losses] == ["title", "description", "properties"]
    assert losses[-1].effect == "doubtful"
    assert view["properties"]["p0"]["properties"]["deep"]["properties"]


def test_a_dialect_says_when() -> None:
    many: dict[str, Any] = {f"p{i}": PART for i in range(200)}
    view: Any = lower({"type": "object", "properties": many}, OLLAMA).schema
    assert size_of(view) <= (OLLAMA.compact_over or 0)
    assert list(view["properties"]) == list(many)


LONG = "What it is. " + "And much more of it. " * 20
FIELDS = [f"field_{n}" for n in range(200)]
LARGE: dict[str, Any] = {
    "type": "object",
    "title": "Everything",
    "description": LONG,
    "properties": {
        name: {"$ref": "#/$defs/part", "description": LONG, "default": {"deep": {}}}
        for name in FIELDS
    },
    "required": FIELDS[:2],
    "$defs": {"part": {**PART, "description": LONG, "$anchor": "part"}},
}
HUGE: dict[str, Any] = {
    "type": "object",
    "properties": {
        name: {
            "type": "object",
            "properties": {
                **{
                    f"{name}_{n}": {"type": "string", "title": "T", "maxLength": 9}
                    for n in range(9)
                },
                "same": {"$ref": f"#/properties/{FIELDS[0]}/properties/{FIELDS[0]}_0"},
            },
            "additionalProperties": False,
            "oneOf": [{"required": [f"{name}_0"]}, {"required": [f"{name}_1"]}],
        }
        for name in FIELDS
    },
    "required": FIELDS[:2],
    "additionalProperties": False,
    "if": {"properties": {FIELDS[0]: {"properties": {f"{FIELDS[0]}_0": {"const": "x"}}}}},
    "then": {"required": [FIELDS[5]]},
}
PROVIDERS = {"openai-chat": OPENAI, "openai-responses": OPENAI, "anthropic": ANTHROPIC}


def golden(wire: str, schema: dict[str, Any]) -> tuple[Any, list[str]]:
    """The schema as that provider is sent it, and the keywords of what is lost."""
    text = json.dumps(schema)
    tool = ToolDefinition(name="f", description="D.", input_schema_json=text)
    (view,) = tool_views(wire, [tool])
    assert view.restorer is None
    assert size_of(view.schema) <= (PROVIDERS[wire].compact_over or 0) < size_of(schema)
    assert json.loads(text) == schema
    return view.schema, [loss.keyword for loss in view.losses]


@pytest.mark.parametrize("wire", PROVIDERS)
def test_a_very_large_schema_loses_words_first(wire: str) -> None:
    deep = {"deepest": {"type": "array", "items": {"type": "string"}}}
    part = {
        "type": "object",
        "description": "What it is",
        "properties": {"deep": {"type": "object", "description": "Deep", "properties": deep}},
        "required": ["deep"],
    }
    properties = {name: {"$ref": "#/$defs/part", "description": "What it is"} for name in FIELDS}
    assert golden(wire, LARGE) == (
        {
            "type": "object",
            "description": "What it is",
            "properties": properties,
            "required": FIELDS[:2],
            "$defs": {"part": part},
        },
        ["title", "description"],
    )


@pytest.mark.parametrize("wire", PROVIDERS)
def test_a_very_large_schema_loses_what_lies_deep_next(wire: str) -> None:
    assert golden(wire, HUGE) == (
        {
            "type": "object",
            "properties": {name: {"type": "object"} for name in FIELDS},
            "required": FIELDS[:2],
            "additionalProperties": False,
        },
        ["title", "not", "properties"],
    )


@each_row(
    ("dialect", "limit"),
    sampled(product([OPENAI, ANTHROPIC, COHERE, OLLAMA, GEMINI], [60_000, 30_000, 15_000]), part=3),
)
def test_what_is_valid_stays_so(dialect: Dialect, limit: int) -> None:
    part = {f"{FIELDS[0]}_0": "x", "same": "x"}
    valid = {
        FIELDS[0]: part,
        FIELDS[1]: {f"{FIELDS[1]}_1": "y"},
        FIELDS[5]: {f"{FIELDS[5]}_0": "z"},
    }
    assert JsonSchemaValidator(HUGE).is_valid(valid)
    small = msgspec.structs.replace(dialect, compact_over=limit)
    view = JsonSchemaValidator(lower(HUGE, small).schema)
    assert view.is_valid(valid)


def test_every_provider_has_a_limit() -> None:
    for form in FORMS.values():
        for dialect in (form.dialect, form.strict_dialect):
            assert dialect is None or dialect.compact_over
