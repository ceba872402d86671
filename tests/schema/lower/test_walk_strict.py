"""The strict view, row by row, exactly as it goes out; what it refuses; its limits."""

from __future__ import annotations

from typing import Any

import pytest
from rows import each_row

from toolcrib.schema.lower import Dialect, lower
from toolcrib.wire.anthropic import STRICT_DIALECT as ANTHROPIC_STRICT
from toolcrib.wire.openai_chat import STRICT_DIALECT as OPENAI_STRICT


def tool(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), **more}


def shut(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**tool(properties, *properties), "additionalProperties": False, **more}


TEXT = {"type": "string"}
NODE = tool({"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}, "v")
CAT = tool({"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "kind")
DOG = tool({"kind": {"const": "dog"}, "name": TEXT}, "kind", "name")
KIND = {"propertyName": "kind"}
PETS = [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Pack"}]
PACK = tool({"kind": {"const": "pack"}, "of": {"oneOf": PETS, "discriminator": KIND}}, "kind", "of")

STRICT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no arguments": ({"type": "object"}, shut({})),
    "optional": (tool({"a": TEXT}), shut({"a": {"type": ["string", "null"]}})),
    "required": (tool({"a": TEXT}, "a"), shut({"a": TEXT})),
    "nullable already": (
        tool({"a": {"anyOf": [TEXT, {"type": "null"}], "default": None}}),
        shut({"a": {"anyOf": [TEXT, {"type": "null"}]}}),
    ),
    "recursive alternatives that a property tells apart": (
        tool(
            {"a": {"oneOf": PETS, "discriminator": KIND}},
            "a",
            **{"$defs": {"Cat": tool({"kind": {"const": "cat"}}, "kind"), "Pack": PACK}},
        ),
        shut(
            {"a": {"anyOf": PETS}},
            **{
                "$defs": {
                    "Cat": shut({"kind": {"const": "cat", "type": "string"}}),
                    "Pack": shut(
                        {"kind": {"const": "pack", "type": "string"}, "of": {"anyOf": PETS}}
                    ),
                }
            },
        ),
    ),
    "optional enum": (
        tool({"a": {"type": "string", "enum": ["x", "y"]}}),
        shut({"a": {"type": ["string", "null"], "enum": ["x", "y", None]}}),
    ),
    "enum without a type": (
        tool({"a": {"enum": ["x", 1]}}, "a"),
        shut({"a": {"enum": ["x", 1], "type": ["string", "integer"]}}),
    ),
    "default": (
        tool({"a": {"type": "integer", "default": 5, "description": "How many"}}),
        shut({"a": {"type": ["integer", "null"], "description": "How many. Default: 5."}}),
    ),
    "constraints": (
        tool({"a": {"type": "string", "minLength": 3, "maxLength": 9, "format": "uri"}}, "a"),
        shut(
            {
                "a": {
                    "type": "string",
                    "description": "At least 3 characters. At most 9 characters. Format: uri.",
                }
            }
        ),
    ),
    "kept constraints": (
        tool({"a": {"type": "integer", "minimum": 1, "multipleOf": 2}}, "a"),
        shut({"a": {"type": "integer", "minimum": 1, "multipleOf": 2}}),
    ),
    "lookaround": (
        tool({"a": {"type": "string", "pattern": "(?=x)"}}, "a"),
        shut({"a": {"type": "string", "description": "Matches the pattern (?=x)."}}),
    ),
    "a nested object": (
        tool({"a": tool({"b": TEXT})}),
        shut({"a": {"anyOf": [shut({"b": {"type": ["string", "null"]}}), {"type": "null"}]}}),
    ),
    "references": (
        tool({"a": {"$ref": "#/definitions/x y", "description": "D"}}, definitions={"x y": TEXT}),
        shut(
            {"a": {"description": "D", "anyOf": [{"$ref": "#/$defs/x_y"}, {"type": "null"}]}},
            **{"$defs": {"x_y": TEXT}},
        ),
    ),
    "a reference to a property": (
        tool({"a": TEXT, "b": {"$ref": "#/properties/a"}}, "a", "b"),
        shut({"a": TEXT, "b": {"$ref": "#/$defs/a"}}, **{"$defs": {"a": TEXT}}),
    ),
    "recursion": (
        tool({"n": {"$ref": "#/$defs/node"}}, "n", **{"$defs": {"node": NODE}}),
        shut(
            {"n": {"$ref": "#/$defs/node"}},
            **{
                "$defs": {
                    "node": shut(
                        {
                            "v": {"type": "integer"},
                            "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                        }
                    )
                }
            },
        ),
    ),
    "recursion into the top": (
        tool({"v": TEXT, "next": {"$ref": "#"}}, "v"),
        shut({"v": TEXT, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}),
    ),
    "one of, told apart": (
        tool({"pet": {"oneOf": [CAT, DOG]}}, "pet"),
        shut(
            {
                "pet": {
                    "anyOf": [
                        shut(
                            {
                                "kind": {"const": "cat", "type": "string"},
                                "lives": {"type": ["integer", "null"]},
                            }
                        ),
                        shut({"kind": {"const": "dog", "type": "string"}, "name": TEXT}),
                    ]
                }
            }
        ),
    ),
    "all of one": (
        tool(
            {"a": {"allOf": [{"$ref": "#/$defs/t"}], "description": "D"}},
            "a",
            **{"$defs": {"t": TEXT}},
        ),
        shut(
            {"a": {"description": "D", "anyOf": [{"$ref": "#/$defs/t"}]}}, **{"$defs": {"t": TEXT}}
        ),
    ),
    "all of several": (
        tool({"a": TEXT}, "a", allOf=[tool({"b": TEXT}, "b")]),
        shut({"a": TEXT, "b": TEXT}),
    ),
    "one or the other": (
        tool({"a": TEXT, "b": TEXT}, anyOf=[{"required": ["a"]}, {"required": ["b"]}]),
        shut(
            {
                "arguments": {
                    "anyOf": [
                        shut({"a": TEXT, "b": {"type": ["string", "null"]}}),
                        shut({"a": {"type": ["string", "null"]}, "b": TEXT}),
                    ]
                }
            }
        ),
    ),
    "a tuple": (
        tool({"a": {"type": "array", "prefixItems": [TEXT, TEXT], "items": False}}, "a"),
        shut({"a": {"type": "array", "maxItems": 2, "items": TEXT}}),
    ),
    "a top that is a reference": (
        {"$ref": "#/$defs/x", "$defs": {"x": tool({"a": TEXT}, "a")}},
        shut({"a": TEXT}),
    ),
}


@each_row(("schema", "view"), STRICT.values(), ids=STRICT)
def test_strict(schema: dict[str, Any], view: dict[str, Any]) -> None:
    lowered = lower(schema, OPENAI_STRICT)
    assert lowered.schema == view
    assert not [loss for loss in lowered.losses if loss.effect == "refused"]


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a map": (
        {"type": "object", "additionalProperties": TEXT},
        "/properties/a",
        "additionalProperties",
    ),
    "a free object": ({"type": "object"}, "/properties/a", "type"),
    "patterns": (
        {"type": "object", "patternProperties": {"x": TEXT}},
        "/properties/a",
        "patternProperties",
    ),
    "no type": ({}, "/properties/a", "type"),
    "undeclared": (tool({}, "x", additionalProperties=False), "/properties/a", "required"),
    "true": (tool({"x": True}, additionalProperties=False), "/properties/a", "properties"),
    "any of true": ({"anyOf": [True, TEXT]}, "/properties/a", "anyOf"),
    "any items": ({"type": "array"}, "/properties/a", "items"),
    "what cannot be merged": (
        {"allOf": [shut({"x": TEXT}), tool({"y": TEXT})]},
        "/properties/a",
        "allOf",
    ),
    "through a reference": ({"$ref": "#/$defs/map"}, "/$defs/map", "additionalProperties"),
}


@each_row(("part", "pointer", "keyword"), REFUSED.values(), ids=REFUSED)
def test_strict_refuses_what_cannot_be_closed(part: Any, pointer: str, keyword: str) -> None:
    shelf = {"map": {"type": "object", "additionalProperties": TEXT}}
    schema = tool({"a": part}, "a", **{"$defs": shelf})
    refused = [loss[:2] for loss in lower(schema, OPENAI_STRICT).losses if loss.effect == "refused"]
    assert refused == [(pointer, keyword)]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": ["string", "null"]}, True),
        ({"type": ["string", "null"], "default": "x"}, True),
        ({"type": ["string", "null"], "default": None}, False),
        ({"type": "string", "default": "x"}, False),
    ],
)
def test_absent_and_null_that_differ_are_doubtful(part: Any, expected: bool) -> None:
    effects = [loss.effect for loss in lower(tool({"a": part}), OPENAI_STRICT).losses]
    assert ("doubtful" in effects) is expected


@pytest.mark.parametrize("keyword", ["uniqueItems", "deprecated"])
def test_items_with_a_keyword_that_is_true_have_a_type(keyword: str) -> None:
    items = {"type": "array", "items": TEXT, keyword: True}
    made = lower(tool({"x": {"type": "array", "items": items}}, "x"), OPENAI_STRICT)
    assert "refused" not in [loss.effect for loss in made.losses]


@each_row(
    ("more", "keywords"),
    [
        ({}, []),
        ({"additionalProperties": False}, []),
        ({"unevaluatedProperties": False}, []),
        ({"additionalProperties": True}, ["additionalProperties"]),
        ({"additionalProperties": {}}, ["additionalProperties"]),
        ({"unevaluatedProperties": True}, ["unevaluatedProperties"]),
    ],
)
@each_row("dialect", [OPENAI_STRICT, ANTHROPIC_STRICT], ids=lambda d: d.name)
def test_closing_is_a_loss_only_where_the_author_opened(
    dialect: Dialect, more: dict[str, Any], keywords: list[str]
) -> None:
    schema = tool({"a": tool({"b": TEXT}, "b", **more)}, "a", **more)
    lost = [loss.keyword for loss in lower(schema, dialect).losses]
    assert lost == keywords * 2


SMALL = tool({"n": {"type": "integer"}, "x": TEXT}, "n")
LARGE = tool({"n": {"type": "number"}, "x": {"type": ["string", "null"]}}, "n", "x")
TAGGED = tool({"n": {"const": "t"}, "x": {"type": ["string", "null"]}}, "n", "x")
OTHER = tool({"n": {"const": "u"}, "x": TEXT}, "n")


@pytest.mark.parametrize(
    ("branches", "expected"),
    [([SMALL, LARGE], [("/properties/a", "oneOf")]), ([TAGGED, OTHER], [])],
    ids=["alike", "told apart"],
)
def test_alternatives_that_a_null_confuses_are_doubtful(branches: Any, expected: Any) -> None:
    losses = lower(tool({"a": {"oneOf": branches}}, "a"), OPENAI_STRICT).losses
    assert [loss[:2] for loss in losses if loss.effect == "doubtful"] == expected


def nested(levels: int) -> dict[str, Any]:
    schema = tool({"x": TEXT}, "x")
    for _ in range(levels - 1):
        schema = tool({"x": schema}, "x")
    return schema


@each_row(
    ("schema", "refused"),
    [
        (nested(10), []),
        (nested(11), ["properties"]),
        (tool({"a": {"type": "string", "enum": [f"v{i}" for i in range(1001)]}}), ["enum"]),
        (tool({"a": {"type": "string", "enum": [f"{i:0100d}" for i in range(251)]}}), ["enum"]),
        (tool({f"p{i}": TEXT for i in range(5001)}), ["properties"]),
        (tool({"n" * 120_001: TEXT}), ["properties"]),
    ],
    ids=["ten levels", "eleven", "values", "a long enum", "properties", "names"],
)
def test_limits_of_strict(schema: dict[str, Any], refused: list[str]) -> None:
    losses = lower(schema, OPENAI_STRICT).losses
    assert [loss.keyword for loss in losses if loss.effect == "refused"] == refused
