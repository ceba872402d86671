"""Definitions from anything, the dictionary form there and back, and digests across processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rows import each_row

from toolcrib import (
    ALL,
    Catalog,
    ToolCall,
    ToolDefinition,
    function_to_tool_definition,
    get_definition,
    hydrate,
    tool,
)
from toolcrib.errors import CatalogError, DefinitionError
from toolcrib.tools import as_tools, tool_of
from toolcrib.wire import FORMS, ToolForm
from toolcrib.wire.forms import wire_names


@dataclass
class Point:
    x: float
    y: float = 0.0


def google(place: str, at: Point | None = None, *, days: int = 1) -> list[Point]:
    """Find a way.

    Args:
        place: Where to.
        at: Where from.
        days: How long.
    """
    return []


def numpy(place: str, at: Point | None = None, *, days: int = 1) -> list[Point]:
    """Find a way.

    Parameters
    ----------
    place : str
        Where to.
    at : Point, optional
        Where from.
    days
        How long.
    """
    return []


def rest(place: str, at: Point | None = None, *, days: int = 1) -> list[Point]:
    """Find a way.

    :param place: Where to.
    :param at: Where from.
    :param days: How long.
    """
    return []


async def bare(place: str) -> None: ...


POINT = {
    "type": "object",
    "title": "Point",
    "properties": {
        "x": {"type": "number"},
        "y": {"type": "number", "default": 0.0},
    },
    "required": ["x"],
}


@pytest.mark.parametrize("function", [google, numpy, rest])
def test_a_function_as_a_dictionary(function: Any) -> None:
    assert function_to_tool_definition(function) == {
        "name": function.__name__,
        "description": "Find a way.",
        "input_schema": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "Where to."},
                "at": {
                    "anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}],
                    "default": None,
                    "description": "Where from.",
                },
                "days": {"type": "integer", "default": 1, "description": "How long."},
            },
            "required": ["place"],
            "additionalProperties": False,
            "$defs": {"Point": {**POINT, "additionalProperties": False}},
        },
        "output_schema": {
            "type": "array",
            "items": {"$ref": "#/$defs/Point"},
            "$defs": {"Point": POINT},
        },
    }


@pytest.mark.parametrize("function", [google, numpy, rest, bare])
def test_there_and_back(function: Any) -> None:
    form = function_to_tool_definition(function)
    assert re.fullmatch(r"[a-zA-Z0-9_]+", str(form["name"]))
    (planned,) = Catalog.from_definitions([form], visible=())
    assert planned.get_definition().to_dict() == form
    (handled,) = Catalog.from_definitions(
        [form], handlers={function.__name__: function}, visible=()
    )
    assert handled.get_definition().to_dict() == form
    assert handled.get_definition().digest == planned.get_definition().digest
    if form["description"]:
        declared = get_definition(tool(visible=())(function))
        assert declared.to_dict() == form
        assert declared.digest == planned.get_definition().digest


def test_a_function_without_a_result_has_no_output_schema() -> None:
    assert list(function_to_tool_definition(bare)) == ["name", "description", "input_schema"]


def test_the_definition_of_anything() -> None:
    @tool(visible=ALL)
    class Klass:
        """Klass."""

        async def run(self) -> None: ...

    made = tool(visible=ALL)(google)
    definition = get_definition(made)
    assert definition is made.get_definition()
    assert get_definition(definition) is definition  # type: ignore[arg-type]
    assert get_definition(Klass).name == "Klass"
    for thing in (google, 3, "google", object, None):
        with pytest.raises(DefinitionError, match="is no tool"):
            get_definition(thing)  # type: ignore[arg-type]


def test_a_definition_alone_can_be_planned() -> None:
    definition = ToolDefinition(
        name="look",
        description="",
        input_schema_json='{"type":"object","properties":{"a":{"type":"integer"}}}',
    )
    catalog = Catalog([definition])
    assert hydrate(ToolCall("c", "look", '{"a":1}'), catalog).success
    assert not hydrate(ToolCall("c", "look", '{"a":"x"}'), catalog).success


@pytest.mark.parametrize(
    ("one", "other"),
    [("int | str", "str | int"), ("list[int | str]", "list[str | int]")],
)
def test_what_was_decorated_before_does_not_matter(one: str, other: str) -> None:
    """`int | str` equals `str | int`, and has another schema."""

    def made(hint: str) -> ToolDefinition:
        def look(a: Any) -> None:
            """Look."""

        look.__annotations__["a"] = hint
        return tool(visible=ALL)(look).get_definition()

    first, second, third = made(one), made(other), made(one)
    assert first.digest == third.digest != second.digest


SCRIPT = """
from __future__ import annotations
import sys
from dataclasses import dataclass
from typing import Literal
from pydantic import BaseModel
from toolcrib import ALL, tool

class Model(BaseModel):
    tags: set[str] = {"a", "b", "c", "d", "e"}
    maybe: frozenset[str] | None = frozenset({"v", "w", "x", "y", "z"})

@dataclass
class Point:
    x: float

if "reverse" in sys.argv:
    @tool(visible=ALL)
    def before(a: str | int | None, b: dict[str, str | int]) -> None:
        '''Before.'''

@tool(visible=["tags"], allowed_roles=["a", "b"], tags=["t"], secret=["kind"],
      examples=[("q", {"model": {}, "kind": "a", "a": 1, "b": {}})])
def look(model: Model, kind: Literal["a", "b"], a: int | str | None, b: dict[str, int | str],
         names: set[str] = {"p", "q", "r", "s", "t"}, at: Point = Point(1.0)) -> Model:
    '''Look.'''
    return model

print(look.get_definition().digest)
"""


def test_digests_are_the_same_in_every_process() -> None:
    """Sets are in another order under another hash seed, and caches filled by other tools."""
    source = Path(__file__).parents[2] / "src"
    digests = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT, *arguments],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(source)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, arguments in [("1", []), ("2", ["reverse"]), ("33", [])]
    }
    assert len(digests) == 1
    assert digests.pop().startswith("sha256:")


def test_schemas_may_be_spelled_in_any_order() -> None:
    def look(a: int, b: str) -> None:
        """Look."""

    one: Any = {
        "type": "object",
        "properties": {"a": {"minimum": 1.0}, "b": {}},
        "required": ["a", "b"],
    }
    other: Any = {
        "required": ["a", "b"],
        "properties": {"b": {}, "a": {"minimum": 1}},
        "type": "object",
    }
    digests = [
        tool(visible=ALL, input_schema=schema)(look).get_definition().digest
        for schema in (one, other)
    ]
    assert digests[0] == digests[1]


def test_a_tuple_in_a_schema_is_a_list() -> None:
    schema: Any = {"type": "object", "properties": {"a": {"enum": ("x", 1)}}, "required": ("a",)}

    def look(a: Any) -> None:
        """Look."""

    made = tool(visible=ALL, input_schema=schema)(look)
    assert (made.get_definition().input_schema or {})["required"] == ["a"]


VERBATIM: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.com/look",
    "$comment": "kept",
    "type": "object",
    "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    "properties": {
        "a": {"oneOf": [{"const": None}, {"enum": [1, "x", [2.5]]}], "x-own": {"deep": [True]}},
        "b": {"$ref": "#/$defs/tree", "description": "é\u2028"},
    },
    "patternProperties": {"^x": {"not": {"type": "null"}}},
    "if": {"required": ["b"]},
    "then": {"dependentRequired": {"b": ["a"]}},
    "required": ["a"],
}


def test_an_authors_schema_is_kept_verbatim() -> None:
    @tool(visible=ALL, parameters=VERBATIM)
    def look(a: Any, b: Any = None, **more: Any) -> None:
        """Look."""

    definition = look.get_definition()
    assert definition.input_schema == VERBATIM
    assert list(definition.input_schema or {}) == list(VERBATIM)
    assert hydrate(ToolCall("c", "look", '{"a":[2.5],"x1":2}'), Catalog([look])).success


def test_numbers_are_kept_to_the_last_digit() -> None:
    integers = [2**64 - 1, -(2**63), 2**53 + 1, 0]
    floats = [1.0, -0.0, 0.1, 0.30000000000000004, 5e-324, 1.7976931348623157e308, 1e22, 1e-7]
    schema: Any = {"type": "object", "properties": {"a": {"enum": [*integers, *floats]}}}
    (made,) = Catalog.from_definitions([{"name": "x", "input_schema": schema}])
    kept: Any = made.get_definition().input_schema
    assert repr(kept) == repr(schema)


def test_a_type_of_the_calling_function_is_found() -> None:
    """Under `from __future__ import annotations`, and as `@tool` does."""

    @dataclass
    class Place:
        name: str

    def go(to: Place, by: list[Place] | None = None) -> Place:
        """Go."""
        return to

    form: Any = function_to_tool_definition(go)
    assert form["input_schema"] == tool(visible=ALL)(go).definition.input_schema
    assert list(form["input_schema"]["$defs"]) == ["Place"]
    assert form["output_schema"]["properties"] == {"name": {"type": "string"}}


def test_the_authors_own_dictionary_may_change_afterwards() -> None:
    schema: Any = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

    @tool(visible=ALL, input_schema=schema)
    def look(a: int) -> None:
        """Look."""

    before = look.get_definition().digest
    schema["properties"]["a"]["type"] = "string"
    schema["required"].clear()
    assert look.get_definition().input_schema == {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
    }
    assert tool_of(look).definition.digest == before
    assert not hydrate(ToolCall("c", "look", "{}"), Catalog([look])).success


PARAMETERS: Any = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
SAID: dict[str, Any] = {"name": "get-user.v1", "description": "Get a user."}
OWN = SAID | {"input_schema": PARAMETERS}


@each_row(
    ("given", "strict"),
    [
        (OWN, None),
        ({"type": "function", "function": SAID | {"parameters": PARAMETERS}}, None),
        ({"type": "function", "function": SAID | {"parameters": PARAMETERS, "strict": True}}, True),
        ({"type": "function", **SAID, "parameters": PARAMETERS, "strict": False}, False),
        ({"type": "custom", **OWN}, None),
        (OWN | {"strict": True}, True),
    ],
)
def test_the_forms_of_providers_are_taken(given: dict[str, Any], strict: bool | None) -> None:
    before = json.dumps(given)
    (made,) = Catalog.from_definitions([given])
    assert made.get_definition().to_dict() == OWN
    assert made.get_definition().strict is strict
    assert as_tools([given])[0].get_definition().to_dict() == OWN
    assert json.dumps(given) == before


def test_a_function_of_a_provider_may_have_no_parameters() -> None:
    (made,) = Catalog.from_definitions([{"type": "function", "function": {"name": "now"}}])
    schema: Any = made.get_definition().input_schema
    assert schema["properties"] == {}


@each_row("form", FORMS.values(), ids=str)
@each_row("name", ["get-user", "get.user", "v1.get-user", "-a", ".a", "1-a", "a" * 128])
def test_each_wire_takes_a_name_with_hyphens_and_dots(form: ToolForm, name: str) -> None:
    (made,) = Catalog.from_definitions([OWN | {"name": name}])
    sent = wire_names(form.names, [made.get_definition().name])[name]
    assert form.names.legal(sent)
    assert len(sent) <= form.names.limit
    assert (sent == name) is form.names.legal(name)
    other = wire_names(form.names, [name, sent] if sent != name else [name])
    assert len(set(other.values())) == len(other)


def test_names_that_wires_would_make_alike_are_confused() -> None:
    for other in ("get_user", "getUser", "get.user", "get--user"):
        with pytest.raises(CatalogError, match="differ only in case and underscores"):
            Catalog.from_definitions([OWN | {"name": "get-user"}, OWN | {"name": other}])
    Catalog.from_definitions([OWN | {"name": "v1-1"}, OWN | {"name": "v11"}])
