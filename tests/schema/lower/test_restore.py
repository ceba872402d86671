"""Arguments made for a view come back as the author's schema has them, and others are left alone."""

from __future__ import annotations

import copy
from typing import Any

from rows import each_row

from toolcrib.schema.lower import ViewRestorer, lower
from toolcrib.schema.validator import JsonSchemaValidator
from toolcrib.wire.anthropic import DIALECT as ANTHROPIC
from toolcrib.wire.openai_chat import STRICT_DIALECT as OPENAI_STRICT

TEXT: dict[str, Any] = {"type": "string"}
NODE: dict[str, Any] = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
    "required": ["v"],
}


def tool(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), **more}


CAT = tool({"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "kind")
DOG = tool({"kind": {"const": "dog"}, "lives": {"type": ["integer", "null"]}}, "kind", "lives")
SMALL = tool({"n": {"type": "integer", "maximum": 9}, "x": TEXT}, "n")
LARGE = tool({"n": {"type": "integer", "minimum": 10}, "x": {"type": ["string", "null"]}}, "n", "x")

NUMBER: dict[str, Any] = {"type": "integer"}
REFUND = tool({"cents": NUMBER | {"default": 100}}, additionalProperties=False)
CANCEL = tool({"fee": NUMBER | {"default": 0}}, additionalProperties=False)

FREE = tool({"fee": TEXT | {"default": "none"}}, additionalProperties=False)
PRICED = tool({"fee": TEXT, "unit": TEXT}, additionalProperties=False)

OR_NULL: dict[str, Any] = {"type": ["string", "null"]}
EXACTLY_ONE = {
    "oneOf": [
        tool({"b": OR_NULL, "a": NUMBER}, additionalProperties=False),
        tool({"b": OR_NULL}, "b", additionalProperties=False),
    ]
}
ONE = tool({"a": NUMBER}, additionalProperties=False)
ONE_NEEDED = tool({"a": NUMBER}, "a", additionalProperties=False)


def nested(b: dict[str, Any], *below: dict[str, Any]) -> dict[str, Any]:
    return tool({"b": b, "a": {"anyOf": list(below)}}, "b", additionalProperties=False)


TOLD = nested(
    NUMBER,
    ONE_NEEDED,
    tool({"a": NUMBER, "b": TEXT | {"default": "x"}}, additionalProperties=False),
)
UNTOLD = nested(NUMBER, tool({"a": NUMBER, "b": NUMBER}, additionalProperties=False), ONE)
CLOSED_TEXT = nested(TEXT, tool({"a": NUMBER, "b": NUMBER}, additionalProperties=False))


def named(name: str, part: dict[str, Any]) -> dict[str, Any]:
    return {**part, "properties": {**part["properties"], name: {"$ref": "#/$defs/n"}}}


# the author's schema; what a model sends for the strict view; what comes of it
RESTORED: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "an optional null goes": (tool({"a": TEXT}), {"a": None}, {}),
    "a value stays": (tool({"a": TEXT}), {"a": ""}, {"a": ""}),
    "a required null stays": (tool({"a": TEXT}, "a"), {"a": None}, {"a": None}),
    "a null that is taken stays": (
        tool({"a": {"type": ["string", "null"]}}),
        {"a": None},
        {"a": None},
    ),
    "an undeclared null stays": (tool({"a": TEXT}), {"z": None, "a": None}, {"z": None}),
    "nested": (tool({"a": tool({"b": TEXT})}), {"a": {"b": None}}, {"a": {}}),
    "in arrays": (
        tool({"a": {"type": "array", "items": tool({"b": TEXT})}}),
        {"a": [{"b": None}, {"b": "x"}, None]},
        {"a": [{}, {"b": "x"}, None]},
    ),
    "in tuples": (
        tool({"a": {"type": "array", "prefixItems": [TEXT, tool({"b": TEXT})]}}),
        {"a": ["x", {"b": None}]},
        {"a": ["x", {}]},
    ),
    "through references": (
        tool({"a": {"$ref": "#/$defs/p"}}, **{"$defs": {"p": tool({"b": TEXT})}}),
        {"a": {"b": None}},
        {"a": {}},
    ),
    "through recursion": (
        tool({"n": {"$ref": "#/$defs/node"}}, **{"$defs": {"node": NODE}}),
        {"n": {"v": 1, "next": {"v": 2, "next": None}}},
        {"n": {"v": 1, "next": {"v": 2}}},
    ),
    "through all of": (
        tool({"a": TEXT}, allOf=[tool({"b": TEXT}, "b")]),
        {"a": None, "b": None},
        {"b": None},
    ),
    "in the alternative that a tag names": (
        tool({"p": {"oneOf": [CAT, DOG]}}),
        {"p": {"kind": "cat", "lives": None}},
        {"p": {"kind": "cat"}},
    ),
    "and in the other": (
        tool({"p": {"oneOf": [CAT, DOG]}}),
        {"p": {"kind": "dog", "lives": None}},
        {"p": {"kind": "dog", "lives": None}},
    ),
    "in the alternative that a validator finds": (
        tool({"p": {"anyOf": [SMALL, LARGE]}}),
        {"p": {"n": 3, "x": None}},
        {"p": {"n": 3}},
    ),
    "and in the other, which takes null": (
        tool({"p": {"anyOf": [SMALL, LARGE]}}),
        {"p": {"n": 30, "x": None}},
        {"p": {"n": 30, "x": None}},
    ),
    "where properties are called like keywords": (
        tool(
            {"p": {"anyOf": [named("default", LARGE), named("default", SMALL)]}},
            **{"$defs": {"n": {"type": "integer"}}},
        ),
        {"p": {"n": 3, "x": None, "default": 1}},
        {"p": {"n": 3, "default": 1}},
    ),
    "what would be another alternative without it has its default": (
        tool({"p": {"anyOf": [REFUND, CANCEL]}}),
        {"p": {"fee": None}},
        {"p": {"fee": 0}},
    ),
    "and in the first alternative": (
        tool({"p": {"anyOf": [REFUND, CANCEL]}}),
        {"p": {"cents": None}},
        {"p": {"cents": 100}},
    ),
    "and in arrays": (
        tool({"p": {"type": "array", "items": {"anyOf": [REFUND, CANCEL]}}}),
        {"p": [{"fee": None}, {"cents": 2}, {"fee": 3}]},
        {"p": [{"fee": 0}, {"cents": 2}, {"fee": 3}]},
    ),
    "without a default it is refused": (
        tool({"p": {"anyOf": [REFUND, tool({"fee": NUMBER})]}}),
        {"p": {"fee": None}},
        {"p": {"fee": None}},
    ),
    "however deep it is": (
        tool({"p": {"anyOf": [tool({"how": REFUND}, "how"), tool({"how": CANCEL}, "how")]}}),
        {"p": {"how": {"fee": None}}},
        {"p": {"how": {"fee": 0}}},
    ),
    "of what may be meant for several it is refused": (
        tool({"p": {"anyOf": [tool({"how": CANCEL}, "how"), tool({"how": FREE}, "how")]}}),
        {"p": {"how": {"fee": None}}},
        {"p": {"how": {"fee": None}}},
    ),
    "and of what may be meant in two ways, of which one alone can be told by its default": (
        tool({"p": {"anyOf": [TOLD, UNTOLD]}}),
        {"p": {"b": 1, "a": {"a": 1, "b": None}}},
        {"p": {"b": 1, "a": {"a": 1, "b": None}}},
    ),
    "also next to another null": (
        tool({"p": {"anyOf": [tool({"n": NUMBER, "p": {"anyOf": [TOLD, UNTOLD]}})]}}),
        {"p": {"n": None, "p": {"b": 1, "a": {"a": 1, "b": None}}}},
        {"p": {"n": None, "p": {"b": 1, "a": {"a": 1, "b": None}}}},
    ),
    "but not of what only looks as if it were": (
        tool({"p": {"anyOf": [CLOSED_TEXT, UNTOLD]}}),
        {"p": {"b": "x", "a": {"a": 1, "b": None}}},
        {"p": {"b": "x", "a": {"a": 1}}},
    ),
    "nor can it be told without a default": (
        tool({"p": {"anyOf": [tool({"a": OR_NULL, "b": NUMBER}), EXACTLY_ONE]}}),
        {"p": {"a": None, "b": None}},
        {"p": {"a": None, "b": None}},
    ),
    "and where the default fits another alternative": (
        tool({"p": {"anyOf": [tool({"fee": NUMBER, "n": NUMBER}), CANCEL]}}),
        {"p": {"fee": None}},
        {"p": {"fee": None}},
    ),
    "what lacks a property was not made for that alternative": (
        tool({"p": {"anyOf": [tool({"how": PRICED}, "how"), tool({"how": CANCEL}, "how")]}}),
        {"p": {"how": {"fee": None}}},
        {"p": {"how": {"fee": 0}}},
    ),
    "what is no other alternative goes": (
        tool({"p": {"anyOf": [REFUND, tool({"fee": NUMBER, "n": NUMBER}, "n")]}}),
        {"p": {"fee": None, "n": 1}},
        {"p": {"n": 1}},
    ),
    "what fits nothing": (
        tool({"a": tool({"b": TEXT})}),
        {"a": [{"b": None}]},
        {"a": [{"b": None}]},
    ),
}


@each_row(("schema", "sent", "expected"), RESTORED.values(), ids=RESTORED)
def test_nulls_that_stand_for_nothing_go(schema: dict[str, Any], sent: Any, expected: Any) -> None:
    before = copy.deepcopy(sent)
    restorer = ViewRestorer(_text(schema))
    assert restorer.restore(sent) == expected
    assert sent == before


def _text(schema: dict[str, Any]) -> str:
    restorer = lower(
        {**schema, "properties": {**schema["properties"], "zz": TEXT}}, OPENAI_STRICT
    ).restorer
    assert isinstance(restorer, ViewRestorer)
    return restorer.text


UNION: dict[str, Any] = {
    "type": "object",
    "anyOf": [tool({"a": TEXT}, "a"), tool({"b": TEXT, "c": TEXT}, "b")],
}


@each_row(
    ("sent", "expected"),
    [
        ({"arguments": {"a": "x"}}, {"a": "x"}),
        ({"arguments": {"b": "x", "c": None}}, {"b": "x"}),
        ({"a": "x"}, {"a": "x"}),  # a model that did not wrap
        ({"arguments": "x"}, {"arguments": "x"}),
        ({"arguments": {"a": "x"}, "more": 1}, {"arguments": {"a": "x"}, "more": 1}),
        ({}, {}),
    ],
)
def test_a_wrapped_top_is_unwrapped(sent: Any, expected: Any) -> None:
    restorer = lower(UNION, OPENAI_STRICT).restorer
    assert restorer is not None
    assert restorer.restore(sent) == expected


def test_wrapping_alone_drops_no_nulls() -> None:
    restorer = lower(UNION, ANTHROPIC).restorer
    assert restorer is not None
    assert restorer.restore({"arguments": {"b": "x", "c": None}}) == {"b": "x", "c": None}
    assert restorer.to_view({"b": "x"}) == {"arguments": {"b": "x"}}


def test_to_view_fills_what_is_absent() -> None:
    restorer = lower(tool({"a": TEXT, "b": tool({"c": TEXT})}), OPENAI_STRICT).restorer
    assert restorer is not None
    assert restorer.to_view({}) == {"a": None, "b": None}
    assert restorer.to_view({"b": {}}) == {"a": None, "b": {"c": None}}


def or_null(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": [kind, "null"], **more}


# the author's schema of `a`, which is optional and takes null; what goes out where it is left out
FILLED: dict[str, tuple[dict[str, Any], Any]] = {
    "no default": (or_null("integer"), None),
    "null by default": (or_null("integer", default=None), None),
    "a default": (or_null("integer", default=5), 5),
    "a false one": (or_null("boolean", default=False), False),
    "one that does not fit": (or_null("integer", default="five"), None),
    "an object": (or_null("object", properties={"b": TEXT}, default={}), {"b": None}),
    "a list": (or_null("array", items=TEXT, default=["x"]), ["x"]),
    "by reference": ({"$ref": "#/$defs/five"}, 5),
}


@each_row(("part", "out"), FILLED.values(), ids=FILLED)
def test_a_default_goes_out_where_null_would_mean_null(part: dict[str, Any], out: Any) -> None:
    """So that what comes back means what went out; a null that a model sends is a null."""
    schema = tool({"a": part}, **{"$defs": {"five": or_null("integer", default=5)}})
    lowered = lower(schema, OPENAI_STRICT)
    restorer = lowered.restorer
    assert restorer is not None
    sent = restorer.to_view({})
    assert sent == {"a": out}
    assert JsonSchemaValidator(lowered.schema).is_valid(sent)
    back = restorer.restore(sent)
    assert JsonSchemaValidator(schema).is_valid(back)
    assert back == {"a": part.get("default") if out == {"b": None} else out}
    assert restorer.restore({"a": None}) == {"a": None}


def test_what_goes_out_shares_nothing_with_the_schema() -> None:
    restorer = lower(
        tool({"a": or_null("array", items=TEXT, default=["x"])}), OPENAI_STRICT
    ).restorer
    assert restorer is not None
    restorer.to_view({})["a"].append("y")  # type: ignore[union-attr]
    assert restorer.to_view({}) == {"a": ["x"]}


def test_where_nothing_is_optional_there_is_no_restorer() -> None:
    assert lower(tool({"a": TEXT}, "a"), OPENAI_STRICT).restorer is None
