"""Real definitions and hostile schemas: each dialect has a view of each, soon, that compiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rows import each_row
from schema.lower.lower_helpers import check_view

from toolcrib.errors import SchemaError
from toolcrib.schema.lower import Dialect, accepts_unchanged, lower
from toolcrib.schema.portable import PORTABLE, check_portable
from toolcrib.schema.validator import JsonSchemaValidator
from toolcrib.wire.anthropic import DIALECT as ANTHROPIC
from toolcrib.wire.anthropic import STRICT_DIALECT as ANTHROPIC_STRICT
from toolcrib.wire.cohere import DIALECT as COHERE
from toolcrib.wire.gemini import DIALECT as GEMINI
from toolcrib.wire.ollama import DIALECT as OLLAMA
from toolcrib.wire.openai_chat import DIALECT as OPENAI
from toolcrib.wire.openai_chat import STRICT_DIALECT as OPENAI_STRICT

VERBATIM = Dialect(name="verbatim")  # as servers take schemas that refuse nothing

ALL = (
    VERBATIM,
    OPENAI,
    OPENAI_STRICT,
    ANTHROPIC,
    ANTHROPIC_STRICT,
    OLLAMA,
    GEMINI,
    COHERE,
    PORTABLE,
)
STEP = 5  # every fifth definition of a large set


def views(schema: dict[str, Any]) -> None:
    for dialect in ALL:
        lowered = lower(schema, dialect)
        if not any(loss.effect == "refused" for loss in lowered.losses):
            check_view(dialect.name, lowered.schema)
            JsonSchemaValidator(lowered.schema)
        if accepts_unchanged(schema, dialect) and dialect != VERBATIM:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("toolcrib.schema.lower.walk.accepts_unchanged", lambda *_: False)
                assert lower(schema, dialect) == lowered


@pytest.mark.parametrize("name", ["bfcl", "nestful", "metatool"])
def test_definitions_from_outside(shared_data: Path, name: str) -> None:
    lines = (shared_data / "pick" / name / "tools.jsonl").read_text(encoding="utf-8").splitlines()
    seen = 0
    for line in lines[:: STEP if len(lines) > 500 else 1]:
        schema = json.loads(line).get("input_schema", {"type": "object"})
        try:
            JsonSchemaValidator(schema)
        except SchemaError:
            continue
        views(schema)
        check_portable(schema)
        seen += 1
    assert seen > 30


def fan(width: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"$ref": "#"} for i in range(width)}}


def stack(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    return schema


def laughs(levels: int, width: int) -> dict[str, Any]:
    defs: dict[str, Any] = {f"d{levels}": {"type": "string"}}
    for level in range(levels):
        refs = {f"p{i}": {"$ref": f"#/$defs/d{level + 1}"} for i in range(width)}
        defs[f"d{level}"] = {"type": "object", "properties": refs}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": defs}


def extended() -> dict[str, Any]:
    again = {"allOf": [{"$ref": "#/$defs/b"}, {"minProperties": 1}]}
    base = {
        "allOf": [
            {"type": "object", "properties": {"y": again}},
            {"properties": {"z": {"type": "boolean"}}},
        ]
    }
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/b"}}, "$defs": {"b": base}}


def spread() -> dict[str, Any]:
    leaf = {"type": "object", "properties": {"l": {"type": "string"}}, "required": ["l"]}
    child = {"type": "object", "anyOf": [{"$ref": "#/$defs/n"}, leaf]}
    node = {"type": "object", "properties": {"c": child}, "required": ["c"]}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/n"}}, "$defs": {"n": node}}


def maybe() -> dict[str, Any]:
    again = {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}
    node = {"type": "object", "properties": {"c": again}}
    return {"type": "object", "properties": {"x": again}, "$defs": {"n": node}}


@each_row(
    "schema",
    [fan(60), stack(48), laughs(3, 9), extended(), spread(), maybe()],
    ids=["a fan", "a stack", "laughs", "extended", "spread", "maybe"],
)
def test_hostile_schemas_have_bounded_views(schema: dict[str, Any]) -> None:
    JsonSchemaValidator(schema)
    views(schema)
    check_portable(schema)
    for dialect in ALL:
        assert len(json.dumps(lower(schema, dialect).schema)) < 500_000
