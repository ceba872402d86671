"""The other views of each dialect, row by row, exactly as they go out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rows import each_row

from toolcrib.schema.lower import Dialect, Loss, lower
from toolcrib.schema.portable import PORTABLE
from toolcrib.wire.anthropic import DIALECT as ANTHROPIC
from toolcrib.wire.gemini import DIALECT as GEMINI
from toolcrib.wire.ollama import DIALECT as OLLAMA
from toolcrib.wire.openai_chat import DIALECT as OPENAI

VERBATIM = Dialect(name="verbatim")  # as servers take schemas that refuse nothing


def tool(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), **more}


TEXT = {"type": "string"}
NODE = tool({"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}, "v")
CAT = tool({"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "kind")
DOG = tool({"kind": {"const": "dog"}, "name": TEXT}, "kind", "name")
CUT = tool({"v": {"type": "integer"}, "next": {"type": "object"}}, "v")
UNROLLED = tool(
    {"v": {"type": "integer"}, "next": tool(CUT["properties"] | {"next": CUT}, "v")}, "v"
)

INLINED: dict[str, tuple[Any, ...]] = {
    # the author's schema, then Ollama, Gemini, portable
    "plain": (tool({"a": TEXT}), *[tool({"a": TEXT})] * 3),
    "a title and an unknown keyword": (
        tool({"a": {"type": "string", "title": "A", "x-order": 1}}),
        tool({"a": TEXT}),
        tool({"a": {"type": "string", "title": "A"}}),
        tool({"a": TEXT}),
    ),
    "constraints": (
        tool({"a": {"type": "integer", "minimum": 1, "multipleOf": 2}}),
        tool({"a": {"type": "integer", "description": "At least 1. A multiple of 2."}}),
        tool({"a": {"type": "integer", "minimum": 1, "description": "A multiple of 2."}}),
        tool({"a": {"type": "integer", "description": "At least 1. A multiple of 2."}}),
    ),
    "nullable": (
        tool({"a": {"anyOf": [TEXT, {"type": "null"}]}}),
        *[tool({"a": {"anyOf": [TEXT, {"type": "null"}]}})] * 2,
        tool({"a": {"type": ["string", "null"]}}),
    ),
    "types": (
        tool({"a": {"anyOf": [TEXT, {"type": "integer"}]}}),
        *[tool({"a": {"anyOf": [TEXT, {"type": "integer"}]}})] * 2,
        tool({"a": {"type": ["string", "integer"]}}),
    ),
    "const": (tool({"a": {"const": "x"}}), *[tool({"a": {"enum": ["x"]}})] * 3),
    "true": (tool({"a": True}), *[tool({"a": {}})] * 3),
    "false": (tool({"a": TEXT, "b": False}), *[tool({"a": TEXT})] * 3),
    "a union of objects": (
        tool({"a": {"oneOf": [tool({"b": TEXT}), tool({"c": TEXT}, "c")]}}),
        *[tool({"a": {"anyOf": [tool({"b": TEXT}), tool({"c": TEXT}, "c")]}})] * 2,
        tool({"a": {"type": "object"}}),
    ),
    "references, the description wins": (
        tool(
            {"a": {"$ref": "#/$defs/t", "description": "D"}},
            **{"$defs": {"t": {"description": "E", **TEXT}}},
        ),
        *[tool({"a": {"description": "D", "type": "string"}})] * 3,
    ),
    "a reference and a constraint": (
        tool({"a": {"$ref": "#/$defs/t", "maxLength": 2}}, **{"$defs": {"t": TEXT}}),
        *[tool({"a": {"type": "string", "description": "At most 2 characters."}})] * 3,
    ),
    "recursion": (
        tool({"n": {"$ref": "#/$defs/node"}}, **{"$defs": {"node": NODE}}),
        *[tool({"n": UNROLLED})] * 3,
    ),
    "an array without items": (
        tool({"a": {"type": "array"}}),
        tool({"a": {"type": "array"}}),
        *[tool({"a": {"type": "array", "items": {}}})] * 2,
    ),
    "a tuple": (
        tool({"a": {"type": "array", "prefixItems": [TEXT, {"type": "null"}], "maxItems": 2}}),
        tool(
            {
                "a": {
                    "type": "array",
                    "items": {"anyOf": [TEXT, {"type": "null"}]},
                    "description": "At most 2 items.",
                }
            }
        ),
        tool({"a": {"type": "array", "prefixItems": [TEXT, {"type": "null"}], "maxItems": 2}}),
        tool(
            {
                "a": {
                    "type": "array",
                    "items": {"type": ["string", "null"]},
                    "description": "At most 2 items.",
                }
            }
        ),
    ),
    "a map": (
        tool({"a": {"type": "object", "additionalProperties": {"type": "integer"}}}),
        tool({"a": {"type": "object", "description": "Other properties are of type integer."}}),
        tool({"a": {"type": "object", "additionalProperties": {"type": "integer"}}}),
        tool({"a": {"type": "object", "description": "Other properties are of type integer."}}),
    ),
}

PLAIN = {"type": "object", "properties": {"a": TEXT}, "additionalProperties": False}
UNION = {"type": "object", "oneOf": [tool({"a": TEXT}, "a"), tool({"b": {"$ref": "#"}}, "b")]}
MOVED = {
    "type": "object",
    "oneOf": [tool({"a": TEXT}, "a"), tool({"b": {"$ref": "#/$defs/root"}}, "b")],
}
WRAPPED = {
    "type": "object",
    "properties": {"arguments": MOVED},
    "required": ["arguments"],
    "additionalProperties": False,
    "$defs": {"root": MOVED},
}
OPEN: dict[str, tuple[Any, ...]] = {
    # the author's schema, then OpenAI without strict, Anthropic
    "as it is": (PLAIN, PLAIN, PLAIN),
    "all keywords": (
        tool({"a": {"not": {"const": 1}, "default": 2}, "b": {"oneOf": [CAT, DOG]}}),
        *[tool({"a": {"not": {"const": 1}, "default": 2}, "b": {"oneOf": [CAT, DOG]}})] * 2,
    ),
    "a union on top": (UNION, WRAPPED, WRAPPED),
    "all of one on top": (
        {"type": "object", "allOf": [tool({"a": TEXT}, "a")]},
        *[tool({"a": TEXT}, "a")] * 2,
    ),
    "true, and an array without items": (
        tool({"a": True, "b": {"type": "array"}}),
        tool({"a": {}, "b": {"type": "array", "items": {}}}),
        tool({"a": True, "b": {"type": "array"}}),
    ),
    "a name outside the pattern": (
        tool({"filter[id]": TEXT}),
        tool({"filter[id]": TEXT}),
        tool({"arguments": tool({"filter[id]": TEXT})}, "arguments", additionalProperties=False),
    ),
    "a wrapper whose name is taken": (
        {"type": "object", "anyOf": [tool({"arguments": TEXT}), tool({"b": TEXT})]},
        *[
            tool(
                {
                    "arguments_": {
                        "type": "object",
                        "anyOf": [tool({"arguments": TEXT}), tool({"b": TEXT})],
                    }
                },
                "arguments_",
                additionalProperties=False,
            )
        ]
        * 2,
    ),
    "a list of types": (
        {"type": ["object"], "properties": {}},
        *[{"type": "object", "properties": {}}] * 2,
    ),
}


@each_row(("schema", "ollama", "gemini", "portable"), INLINED.values(), ids=INLINED)
def test_inlined(
    schema: dict[str, Any], ollama: dict[str, Any], gemini: dict[str, Any], portable: dict[str, Any]
) -> None:
    assert lower(schema, OLLAMA).schema == ollama
    assert lower(schema, GEMINI).schema == gemini
    assert lower(schema, PORTABLE).schema == portable
    assert lower(schema, OLLAMA).restorer is None


@each_row(("schema", "openai", "anthropic"), OPEN.values(), ids=OPEN)
def test_open(schema: dict[str, Any], openai: dict[str, Any], anthropic: dict[str, Any]) -> None:
    assert lower(schema, OPENAI).schema == openai
    assert lower(schema, ANTHROPIC).schema == anthropic


@pytest.mark.parametrize("rows", [INLINED, OPEN], ids=["inlined", "open"])
def test_verbatim_is_a_copy(rows: dict[str, tuple[dict[str, Any], ...]]) -> None:
    for schema, *_ in rows.values():
        lowered = lower(schema, VERBATIM)
        assert json.dumps(lowered.schema) == json.dumps(schema)
        assert lowered.schema is not schema
        assert lowered.losses == ()


def test_losses_have_a_place_in_the_authors_schema_through_inlining() -> None:
    part = tool({"s": {"type": "string", "minLength": 2}})
    schema = tool(
        {"a": {"$ref": "#/$defs/p"}, "b": {"$ref": "#/$defs/p"}}, **{"$defs": {"p": part}}
    )
    said = "not supported there: the description says it instead"
    assert lower(schema, OLLAMA).losses == (
        Loss("/$defs/p/properties/s", "minLength", "lost", said),
    )
