"""Gemini's form of a tool is read: what its schema takes is what the tool takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google import genai
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rows import each_row
from samples import sample
from schema.lower.lower_helpers import tools

from toolcrib import Catalog, get_definition
from toolcrib.errors import DefinitionError, SourceError
from toolcrib.schema import compile_validator
from toolcrib.tools.sources import read_definitions
from toolcrib.wire import encode_tools


def read(parameters: Any, **more: Any) -> Any:
    """The input schema of a declaration."""
    form = {"name": "it", "parameters": parameters, **more}
    return get_definition({"functionDeclarations": [form]}).input_schema


def read_part(part: Any) -> Any:
    return read({"type": "OBJECT", "properties": {"type": part}})["properties"]["type"]


@each_row(
    ("part", "told"),
    [
        ({"type": "STRING"}, {"type": "string"}),
        ({"type": "string"}, {"type": "string"}),
        ({"type": "TYPE_UNSPECIFIED", "title": "x"}, {"title": "x"}),
        ({"type": "STRING", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "STRING", "nullable": False}, {"type": "string"}),
        ({"type": "NULL", "nullable": True}, {"type": "null"}),
        (
            {"type": "STRING", "format": "enum", "enum": ["A", "B"], "nullable": True},
            {"type": ["string", "null"], "enum": ["A", "B", None]},
        ),
        ({"type": "INTEGER", "enum": ["1", "2"]}, {"type": "integer", "enum": [1, 2]}),
        ({"type": "STRING", "enum": ["1", "2"]}, {"type": "string", "enum": ["1", "2"]}),
        (
            {"anyOf": [{"type": "STRING"}, {"type": "INTEGER", "nullable": True}]},
            {"anyOf": [{"type": "string"}, {"type": ["integer", "null"]}]},
        ),
        (
            {"any_of": [{"type": "STRING"}], "nullable": True, "description": "x"},
            {
                "description": "x",
                "anyOf": [{"anyOf": [{"type": "string"}]}, {"type": "null"}],
            },
        ),
        (
            {"type": "ARRAY", "items": {"type": "NUMBER"}, "minItems": "1", "maxItems": "20"},
            {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 20},
        ),
        (
            {"type": "ARRAY", "items": {"type": "NUMBER"}, "max_items": 2},
            {"type": "array", "items": {"type": "number"}, "maxItems": 2},
        ),
        (
            {"type": "INTEGER", "minimum": "-1", "maximum": "9223372036854775807"},
            {"type": "integer", "minimum": -1, "maximum": 9223372036854775807},
        ),
        ({"type": "NUMBER", "maximum": "1.5e2"}, {"type": "number", "maximum": 150.0}),
        ({"type": "STRING", "max_length": "3"}, {"type": "string", "maxLength": 3}),
        (
            {"type": "OBJECT", "properties": {"max_length": {"type": "STRING"}}, "required": []},
            {"type": "object", "properties": {"max_length": {"type": "string"}}, "required": []},
        ),
        (
            {"type": "OBJECT", "propertyOrdering": ["a"], "additional_properties": False},
            {"type": "object", "additionalProperties": False},
        ),
        (
            {"type": "STRING", "example": "a", "default": "b"},
            {"type": "string", "default": "b", "examples": ["a"]},
        ),
        ({"type": "STRING", "items": None, "nullable": None}, {"type": "string"}),
    ],
)
def test_a_schema_is_read_in_json_schemas_words(part: Any, told: Any) -> None:
    assert read_part(part) == told
    assert json.dumps(read_part(part)) == json.dumps(told)


def test_references_are_within_the_schema() -> None:
    tree = {"type": "OBJECT", "properties": {"next": {"ref": "#/defs/Tree", "nullable": True}}}
    given = {"type": "OBJECT", "properties": {"t": {"ref": "#/defs/Tree"}}, "defs": {"Tree": tree}}
    schema = read(given)
    assert schema["properties"]["t"] == {"$ref": "#/$defs/Tree"}
    validator = compile_validator(schema)
    assert validator.is_valid({"t": {"next": {"next": None}}})
    assert not validator.is_valid({"t": {"next": {"next": 5}}})


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CAPITALS = {"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}, "required": ["a"]}


def book(title: str, pages: int | None = None, kinds: list[str] = []) -> dict[str, Any]:  # noqa: B006
    """Book it."""
    return {"title": title, "pages": pages, "kinds": kinds}


DUMPS: list[Callable[[Any], Any]] = [
    lambda made: made.model_dump(),
    lambda made: made.model_dump(exclude_none=True),
    lambda made: made.model_dump(mode="json"),
    lambda made: json.loads(made.model_dump_json(exclude_none=True, by_alias=True)),
    lambda made: made.to_json_dict(),
]


@each_row("dump", DUMPS)
@each_row("alone", [False, True])
def test_what_google_genai_dumps_is_read(dump: Callable[[Any], Any], alone: bool) -> None:
    declared = genai.types.FunctionDeclaration.from_callable_with_api_option(
        callable=book, api_option="VERTEX_AI"
    )
    whole = genai.types.Tool(function_declarations=[declared])
    definition = get_definition(dump(declared if alone else whole))
    assert (definition.name, definition.description) == ("book", "Book it.")
    assert definition.output_schema == {"type": "object"}
    schema = definition.input_schema
    assert schema is not None
    assert schema["required"] == ["title"]
    assert schema["properties"] == {
        "title": {"type": "string"},
        "pages": {"type": ["integer", "null"]},
        "kinds": {"type": "array", "items": {"type": "string"}, "default": []},
    }


@each_row(
    "form",
    [
        {"functionDeclarations": [{"name": "it", "description": "x", "parameters": CAPITALS}]},
        {"functionDeclarations": [{"name": "it", "description": "x", "parameters": SCHEMA}]},
        {
            "function_declarations": [{"name": "it", "description": "x", "parameters": CAPITALS}],
            "google_search": None,
        },
        {"name": "it", "description": "x", "parameters": CAPITALS},
        {
            "name": "it",
            "description": "x",
            "parameters": CAPITALS,
            "response": None,
            "behavior": "NON_BLOCKING",
        },
        {"name": "it", "description": "x", "parametersJsonSchema": SCHEMA},
        {"name": "it", "description": "x", "parameters_json_schema": SCHEMA, "parameters": None},
    ],
)
def test_a_declaration_is_read_wherever_it_stands(form: Any) -> None:
    own = get_definition({"name": "it", "description": "x", "input_schema": SCHEMA})
    assert get_definition(form) == own
    (made,) = Catalog.from_definitions(form, visible=())
    assert made.get_definition() == own
    (made,) = Catalog.from_definitions([form], handlers={"it": lambda a: a})
    assert made.get_definition().input_schema == SCHEMA


def test_what_it_gives_is_its_output_schema() -> None:
    response = {"type": "OBJECT", "properties": {"n": {"type": "STRING", "nullable": True}}}
    told = {"type": "object", "properties": {"n": {"type": ["string", "null"]}}}
    for more in ({"response": response}, {"responseJsonSchema": told}):
        form = {"name": "it", "parameters": CAPITALS, **more}
        assert get_definition(form).output_schema == told
    alone = get_definition({"name": "it", "response": response})
    assert alone.input_schema == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


def test_a_list_of_functions_is_as_many_tools(tmp_path: Path) -> None:
    two = {"functionDeclarations": [{"name": n, "parameters": CAPITALS} for n in ("one", "two")]}
    for form in (two, [two], [[two]]):
        assert Catalog.from_definitions(form).names == ("one", "two")
    assert Catalog.from_definitions([{"functionDeclarations": []}]).names == ()
    with pytest.raises(DefinitionError, match="holds 2 functions: give one of them, or all to a"):
        get_definition(two)
    file = tmp_path / "tools.json"
    for saved in (two, [two], {"tools": [two]}):
        file.write_text(json.dumps(saved), encoding="utf-8")
        catalog = Catalog.from_definitions(read_definitions(file))
        assert catalog.names == ("one", "two")
        for tool in catalog:  # somebody else's file
            assert tool.get_definition().annotations.requires_approval
    file.write_text(json.dumps([{**two, "googleSearch": {}}]), encoding="utf-8")
    with pytest.raises(
        SourceError, match=r"tools\.json: a 'googleSearch' tool runs at its provider"
    ):
        read_definitions(file)


@each_row(
    ("form", "text"),
    [
        (
            {"functionDeclarations": [{"name": "it"}], "codeExecution": {}},
            "'codeExecution' tool runs at",
        ),
        ({"functionDeclarations": {"name": "it"}}, "is not a list of functions"),
        ({"functionDeclarations": [5]}, "must be a dictionary"),
        ({"functionDeclarations": []}, "it holds 0 functions"),
        ({"functionDeclarations": [{"parameters": CAPITALS}]}, "a definition has no name"),
        (
            {"name": "it", "parameters": CAPITALS, "parametersJsonSchema": SCHEMA},
            "'it' has two schemas for input_schema",
        ),
        ({"name": "it", "parameters": {**CAPITALS, "minProperties": "many"}}, "minProperties"),
        ({"name": "it", "parameters": {**CAPITALS, "type": "STRING"}}, "must be type 'object'"),
        ({"name": "it", "parameters": {**CAPITALS, "properties": {"a": {"type": "DOG"}}}}, "DOG"),
        ({"name": "it", "parameters": CAPITALS, "more": 1}, "unknown key 'more'"),
        ({"name": "it", "parameters": SCHEMA}, "it is called input_schema here"),
    ],
)
def test_what_is_no_declaration_is_said(form: Any, text: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        get_definition(form)
    assert text in str(caught.value)


def test_a_schema_without_end_is_an_error() -> None:
    endless: dict[str, Any] = {"type": "ARRAY"}
    endless["items"] = endless
    with pytest.raises(DefinitionError, match="'it' is nested too deeply"):
        read({"type": "OBJECT", "properties": {"a": endless}})


_SNAKE = {
    "anyOf": "any_of",
    "prefixItems": "prefix_items",
    "minItems": "min_items",
    "maxItems": "max_items",
    "additionalProperties": "additional_properties",
}


def in_capitals(node: Any, *, snake: bool) -> Any:
    """A schema of our view in the words of Gemini's Schema, written apart from what reads it."""
    if not isinstance(node, dict):
        return node
    made: dict[str, Any] = {}
    for key, value in node.items():
        name = _SNAKE[key] if snake and key in _SNAKE else key
        if key == "properties":
            made[name] = {one: in_capitals(part, snake=snake) for one, part in value.items()}
        elif key in ("anyOf", "prefixItems"):
            made[name] = [in_capitals(part, snake=snake) for part in value]
        elif key in ("minItems", "maxItems"):
            made[name] = str(value)
        else:
            made[name] = in_capitals(value, snake=snake)
    return made | _kind(node)


def _kind(node: dict[str, Any]) -> dict[str, Any]:
    """What Gemini has in place of several types, and of constants that are no text."""
    if "type" not in node:
        return {}
    kinds = [node["type"]] if isinstance(node["type"], str) else node["type"]
    said = [kind for kind in kinds if kind != "null"] or kinds
    assert len(said) == 1, node
    made: dict[str, Any] = {"type": said[0].upper()}
    if len(kinds) > 1:
        made["nullable"] = True
    if "enum" in node:
        listed = [one for one in node["enum"] if one is not None or said == ["null"]]
        made["enum"] = [str(one) for one in listed] if said[0] in ("integer", "number") else listed
    return made


def _spoilt(value: Any) -> list[Any]:
    """Values like this one: each member left out, and replaced."""
    found: list[Any] = [None, 5, "x", [], {}]
    if isinstance(value, dict):
        found.append({**value, "other": 1})
        for name, part in value.items():
            found.append({key: one for key, one in value.items() if key != name})
            found += [{**value, name: one} for one in _spoilt(part)]
    if isinstance(value, list):
        found += [value + value, value[1:]]
        found += [
            [*value[:at], one, *value[at + 1 :]]
            for at, part in enumerate(value)
            for one in _spoilt(part)
        ]
    return found


@settings(deadline=None, max_examples=sample(60), suppress_health_check=list(HealthCheck))
@given(tools(), st.booleans())
def test_what_our_view_encodes_is_read_back(made: tuple[Any, Any], snake: bool) -> None:
    schema, value = made
    given_form = {"name": "it", "description": "x", "input_schema": schema}
    form: Any
    (form,) = encode_tools("gemini", [given_form])
    (declared,) = form["functionDeclarations"]
    view = declared["parametersJsonSchema"]
    again = get_definition(json.loads(json.dumps(form))).input_schema
    assert again == view
    capitals = in_capitals(view, snake=snake)
    read_back = get_definition({"name": "it", "parameters": capitals}).input_schema
    assert read_back is not None
    ours, theirs = compile_validator(view), compile_validator(read_back)
    for one in (value, *_spoilt(value)):
        assert ours.is_valid(one) == theirs.is_valid(one), (view, capitals, read_back, one)
