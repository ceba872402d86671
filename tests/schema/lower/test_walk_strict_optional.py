"""Anthropic's strict view: closed like OpenAI's, but what is optional stays so; row by row."""

from __future__ import annotations

from typing import Any

from rows import each_row

from toolcrib.schema.lower import lower
from toolcrib.wire.anthropic import STRICT_DIALECT as ANTHROPIC_STRICT


def tool(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, **needed, **more}


def shut(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return tool(properties, *required, additionalProperties=False)


TEXT = {"type": "string"}
POINT = tool({"x": {"type": "integer"}, "y": {"type": "integer"}}, "x", "y")
SHUT_POINT = shut(POINT["properties"], "x", "y")

VIEWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no arguments": ({"type": "object"}, shut({})),
    "optional": (tool({"a": TEXT, "b": TEXT}, "a"), shut({"a": TEXT, "b": TEXT}, "a")),
    "nullable": (
        tool({"a": {"type": ["string", "null"], "default": "x"}}),
        shut({"a": {"type": ["string", "null"], "default": "x"}}),
    ),
    "formats": (
        tool({"a": {"type": "string", "format": "uri"}, "b": {"type": "string", "format": "idn"}}),
        shut(
            {
                "a": {"type": "string", "format": "uri"},
                "b": {"type": "string", "description": "Format: idn."},
            }
        ),
    ),
    "constraints": (
        tool(
            {
                "a": {"type": "integer", "minimum": 1, "description": "How many"},
                "b": {"type": "string", "pattern": "^x", "maxLength": 9},
                "c": {"type": "array", "items": TEXT, "minItems": 1},
            }
        ),
        shut(
            {
                "a": {"type": "integer", "description": "How many. At least 1."},
                "b": {
                    "type": "string",
                    "description": "Matches the pattern ^x. At most 9 characters.",
                },
                "c": {"type": "array", "items": TEXT, "description": "At least 1 item."},
            }
        ),
    ),
    "a definition used twice": (
        tool(
            {"a": {"$ref": "#/$defs/p", "description": "From"}, "b": {"$ref": "#/$defs/p"}},
            **{"$defs": {"p": POINT}},
        ),
        shut({"a": {"description": "From", **SHUT_POINT}, "b": SHUT_POINT}),
    ),
    "one of": (
        tool({"a": {"oneOf": [{"const": "x"}, {"type": "integer"}]}}, "a"),
        shut({"a": {"anyOf": [{"const": "x", "type": "string"}, {"type": "integer"}]}}, "a"),
    ),
    "all of": (
        tool({"a": TEXT}, "a", allOf=[POINT]),
        shut({"a": TEXT} | POINT["properties"], *"axy"),
    ),
    "a union on top": (
        {"type": "object", "anyOf": [tool({"id": TEXT}, "id"), tool({"name": TEXT})]},
        shut(
            {"arguments": {"anyOf": [shut({"id": TEXT}, "id"), shut({"name": TEXT})]}}, "arguments"
        ),
    ),
    "a name outside the pattern": (
        tool({"a b": TEXT}),
        shut({"arguments": shut({"a b": TEXT})}, "arguments"),
    ),
}


@each_row(("schema", "view"), VIEWS.values(), ids=VIEWS)
def test_what_is_optional_stays_so(schema: dict[str, Any], view: dict[str, Any]) -> None:
    lowered = lower(schema, ANTHROPIC_STRICT)
    assert lowered.schema == view
    assert not [loss for loss in lowered.losses if loss.effect == "refused"]
    assert (lowered.restorer is None) is ("arguments" not in view["properties"])


NODE = tool({"next": {"$ref": "#/$defs/node"}})
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a map": ({"type": "object", "additionalProperties": TEXT}, "additionalProperties"),
    "a free object": ({"type": "object"}, "type"),
    "no type": ({}, "type"),
    "any items": ({"type": "array"}, "items"),
    "recursion": ({"$ref": "#/$defs/node"}, "$ref"),
    "recursion to the top": ({"$ref": "#"}, "$ref"),
    "a list in an enum": ({"enum": [["x"], "y"]}, "enum"),
    "a list as a constant": ({"const": ["x"]}, "const"),
}


@each_row(("part", "keyword"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_strict_is_refused(part: dict[str, Any], keyword: str) -> None:
    schema = tool({"a": part}, **{"$defs": {"node": NODE}})
    losses = lower(schema, ANTHROPIC_STRICT).losses
    assert keyword in [loss.keyword for loss in losses if loss.effect == "refused"]
