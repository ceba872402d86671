"""A schema is shortened by stages, until it fits and no further."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolcrib.schema.dialects import OLLAMA
from toolcrib.schema.lower import compact, lower
from toolcrib.schema.lower.compact import size_of
from toolcrib.schema.validator import JsonSchemaValidator

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


@pytest.mark.parametrize(
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
