"""Hints as schemas, and valid JSON as what the hints promise."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Optional, Required
from uuid import UUID

import pytest
from named import named
from pydantic import BaseModel, Field, RootModel, SecretStr
from rows import each_row
from typing_extensions import TypedDict

from toolcrib.errors import DefinitionError
from toolcrib.schema import Parameter, compile_validator, derive_input, derive_output
from toolcrib.schema.derive import NO_DEFAULT, converter_for, derive_object
from toolcrib.schema.derive.constraints import DURATION, OFFSET, TIME


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Ticket(TypedDict, total=False):
    id: Required[int]
    title: str


@dataclass
class Point:
    x: float
    y: float = 0.0


@dataclass
class Node:
    value: int
    kids: list[Node] = field(default_factory=list)


class Person(BaseModel):
    """Somebody."""

    name: str = Field(min_length=1, description="As in the passport.")
    born: date | None = None
    tags: set[str] = {"a", "b", "c", "d"}


class Numbers(RootModel[list[int]]):
    pass


class Unfinished(BaseModel):
    later: NotThere  # type: ignore[name-defined]  # noqa: F821  what is under test


class Calls(BaseModel):
    back: Callable[[], int]


UserId = NewType("UserId", int)
STRING, INTEGER = {"type": "string"}, {"type": "integer"}
POINT = {
    "type": "object",
    "title": "Point",
    "properties": {
        "x": {"type": "number"},
        "y": {"type": "number", "default": 0.0},
    },
    "required": ["x"],
}
NODE = {
    "type": "object",
    "title": "Node",
    "properties": {
        "value": {"type": "integer"},
        "kids": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
    },
    "required": ["value"],
}

# hint, its schema, a valid JSON value, what the tool gets
HINTS: list[tuple[Any, dict[str, Any], Any, Any]] = [
    (str, STRING, "x", "x"),
    (int, INTEGER, 3, 3),
    (int, INTEGER, 3.0, 3),
    (int, INTEGER, 2**70, 2**70),
    (float, {"type": "number"}, 3, 3.0),
    (float, {"type": "number"}, 10**39, 1e39),
    (bool, {"type": "boolean"}, True, True),
    (None, {"type": "null"}, None, None),
    (Any, {}, {"a": [1]}, {"a": [1]}),
    (object, {}, 1, 1),
    (Optional[int], {"anyOf": [INTEGER, {"type": "null"}]}, None, None),  # noqa: UP045
    (int | None, {"anyOf": [INTEGER, {"type": "null"}]}, 3.0, 3),
    (int | str, {"anyOf": [INTEGER, STRING]}, "3", "3"),
    (str | int, {"anyOf": [STRING, INTEGER]}, 3, 3),
    (list[int | str], {"type": "array", "items": {"anyOf": [INTEGER, STRING]}}, [1, "1"], [1, "1"]),
    (list[str | int], {"type": "array", "items": {"anyOf": [STRING, INTEGER]}}, [1, "1"], [1, "1"]),
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, "a", "a"),
    (Literal[1, 2], {"type": "integer", "enum": [1, 2]}, 2.0, 2),
    (Literal["a", None], {"enum": ["a", None]}, None, None),  # noqa: PYI061
    (list, {"type": "array", "items": {}}, [1, "a"], [1, "a"]),
    (typing.List, {"type": "array", "items": {}}, [1, "a"], [1, "a"]),  # noqa: UP006
    (dict, {"type": "object", "additionalProperties": True}, {"a": 1}, {"a": 1}),
    (typing.Dict, {"type": "object", "additionalProperties": True}, {"a": 1}, {"a": 1}),  # noqa: UP006
    (list[int], {"type": "array", "items": INTEGER}, [1, 2.0], [1, 2]),
    (Sequence[str], {"type": "array", "items": STRING}, ["a"], ["a"]),
    (tuple[int, str],
     {"type": "array", "prefixItems": [INTEGER, STRING], "minItems": 2, "maxItems": 2},
     [1, "a"], (1, "a")),
    (tuple[int, ...], {"type": "array", "items": INTEGER}, [1, 2], (1, 2)),
    (set[str], {"type": "array", "uniqueItems": True, "items": STRING}, ["a", "b"], {"a", "b"}),
    (frozenset[int], {"type": "array", "uniqueItems": True, "items": INTEGER}, [1], frozenset({1})),
    (dict[str, int], {"type": "object", "additionalProperties": INTEGER}, {"a": 1.0}, {"a": 1}),
    (dict[int, str],
     {"type": "object", "additionalProperties": STRING,
      "propertyNames": {"pattern": "^(0|-?[1-9][0-9]{0,39})$"}}, {"1": "a"}, {1: "a"}),
    (dict[str, list[str]],
     {"type": "object", "additionalProperties": {"type": "array", "items": STRING}},
     {"a": ["b"]}, {"a": ["b"]}),
    (datetime, {"type": "string", "format": "date-time"}, "2024-02-29T12:00:00Z",
     datetime(2024, 2, 29, 12, tzinfo=UTC)),
    (date, {"type": "string", "format": "date"}, "2024-02-29", date(2024, 2, 29)),
    (time, {"type": "string", "pattern": f"{TIME}{OFFSET}?$"}, "12:30:00Z", time(12, 30, tzinfo=UTC)),
    (time, {"type": "string", "pattern": f"{TIME}{OFFSET}?$"}, "07:30", time(7, 30)),
    (timedelta, {"type": "string", "pattern": DURATION, "examples": ["PT1H30M"]}, "PT90S",
     timedelta(seconds=90)),
    (UUID, {"type": "string", "format": "uuid"}, str(UUID(int=7)), UUID(int=7)),
    (Path, {"type": "string", "format": "path"}, "a/b", Path("a/b")),
    (UserId, INTEGER, 3.0, 3),
    (Annotated[int, Field(ge=1, le=5, description="Of five.")],
     {"type": "integer", "minimum": 1, "maximum": 5, "description": "Of five."}, 5, 5),
    (Annotated[str, Field(pattern="^[a-z]+$", max_length=3)],
     {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}, "abc", "abc"),
    (Annotated[list[int], Field(min_length=1)],
     {"type": "array", "items": INTEGER, "minItems": 1}, [1.0], [1]),
    (Annotated[int, []], INTEGER, 3.0, 3),
]  # fmt: skip


@each_row(("hint", "schema", "value", "typed"), HINTS, ids=named)
def test_hints(hint: Any, schema: dict[str, Any], value: Any, typed: Any) -> None:
    derived = derive_input([Parameter("x", hint)])
    assert derived.schema == {
        "type": "object",
        "properties": {"x": schema},
        "required": ["x"],
        "additionalProperties": False,
    }
    assert compile_validator(derived.schema).is_valid({"x": value})
    convert = derived.converters.get("x", lambda plain: plain)
    made = convert(value)
    assert made == typed
    assert type(made) is type(typed)


MODELS: list[tuple[Any, str, dict[str, Any], Any, Any]] = [
    (Color, "Color", {"enum": ["red", "blue"], "type": "string", "title": "Color"}, "red", Color.RED),
    (Level, "Level", {"enum": [1, 2], "type": "integer", "title": "Level"}, 2.0, Level.HIGH),
    (Point, "Point", POINT, {"x": 1}, Point(1.0)),
    (Node, "Node", NODE, {"value": 1, "kids": [{"value": 2.0}]}, Node(1, [Node(2)])),
    (Ticket, "Ticket",
     {"type": "object", "title": "Ticket", "required": ["id"],
      "properties": {"id": {"type": "integer"},
                     "title": {"type": "string"}}},
     {"id": 1}, {"id": 1}),
    (Person, "Person",
     {"type": "object", "title": "Person", "description": "Somebody.", "required": ["name"],
      "properties": {
          "name": {"type": "string", "minLength": 1,
                   "description": "As in the passport."},
          "born": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}],
                   "default": None},
          "tags": {"type": "array", "items": STRING, "uniqueItems": True,
                   "default": ["a", "b", "c", "d"]}}},
     {"name": "Ann", "born": "2000-01-01"}, Person(name="Ann", born=date(2000, 1, 1))),
    (Numbers, "Numbers", {"type": "array", "items": INTEGER, "title": "Numbers"}, [1], Numbers([1])),
]  # fmt: skip


@each_row(("hint", "name", "schema", "value", "typed"), MODELS, ids=named)
def test_models_are_definitions(
    hint: Any, name: str, schema: dict[str, Any], value: Any, typed: Any
) -> None:
    derived = derive_input([Parameter("x", hint)])
    assert derived.schema["properties"] == {"x": {"$ref": f"#/$defs/{name}"}}
    closed = {"additionalProperties": False} if schema["type"] == "object" else {}
    assert derived.schema["$defs"] == {name: schema | closed}
    assert compile_validator(derived.schema).is_valid({"x": value})
    assert derived.converters["x"](value) == typed


def test_decimals_come_as_text_or_as_numbers() -> None:
    derived = derive_input([Parameter("x", Decimal)])
    validator, convert = compile_validator(derived.schema), derived.converters["x"]
    for value, typed in [("1.50", Decimal("1.50")), (2, Decimal(2)), (0.1, Decimal("0.1"))]:
        assert validator.is_valid({"x": value})
        assert convert(value) == typed


def test_nested_models_share_their_definitions() -> None:
    derived = derive_input([Parameter("a", list[Node]), Parameter("b", Node | None, None)])
    assert derived.schema["$defs"] == {"Node": NODE | {"additionalProperties": False}}
    assert derived.schema["required"] == ["a"]
    assert derived.schema["properties"] == {
        "a": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
        "b": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}], "default": None},
    }
    assert derived.converters["a"]([{"value": 1}]) == [Node(1)]


def test_plain_json_needs_no_converter() -> None:
    plain: list[Any] = [
        str,
        bool,
        None,
        Any,
        dict,
        list,
        list[str],
        dict[str, Any],
        Literal["a", True],
    ]
    plain += [str | None, Annotated[str, Field(max_length=3)], dict[str, list[bool]]]
    assert [hint for hint in plain if converter_for(hint) is not None] == []


def test_descriptions_come_from_the_docstring_unless_a_field_has_one() -> None:
    described = Annotated[int, Field(description="By the field.")]
    derived = derive_input(
        [
            Parameter("a", int, NO_DEFAULT, "By the docstring."),
            Parameter("b", described, NO_DEFAULT, "By the docstring."),
            Parameter("c", Node, NO_DEFAULT, "By the docstring."),
        ]
    )
    properties: Any = derived.schema["properties"]
    assert properties["a"]["description"] == "By the docstring."
    assert properties["b"]["description"] == "By the field."
    assert properties["c"] == {"$ref": "#/$defs/Node", "description": "By the docstring."}


@each_row(
    ("hint", "default", "shown"),
    [
        (int, 3, 3),
        (int | None, None, None),
        (Color, Color.BLUE, "blue"),
        (date, date(2020, 1, 1), "2020-01-01"),
        (Path, Path("a"), "a"),
        (Point, Point(1.0), {"x": 1.0, "y": 0.0}),
        (tuple[int, ...], (1, 2), [1, 2]),
        (set[str], {"d", "b", "a", "c", "e"}, ["a", "b", "c", "d", "e"]),
        (frozenset[int], frozenset({3, 1, 2}), [1, 2, 3]),
    ],
)
def test_defaults_are_shown_as_json(hint: Any, default: Any, shown: Any) -> None:
    derived = derive_input([Parameter("x", hint, default)])
    assert derived.schema["properties"]["x"]["default"] == shown  # type: ignore[index,call-overload]
    assert "required" not in derived.schema


@each_row(
    ("hint", "default"),
    [
        (float, float("inf")),
        (float, float("nan")),
        (list[float], [1.0, float("inf")]),
        (Any, object()),
        (bytes, b"\xff"),
        (SecretStr, SecretStr("hidden")),
        (str, "\ud800"),
    ],
    ids=named,
)
def test_defaults_that_json_lacks_are_not_shown(hint: Any, default: Any) -> None:
    derived = derive_input([Parameter("x", hint, default)])
    assert "default" not in derived.schema["properties"]["x"]  # type: ignore[operator,index,call-overload]
    assert "required" not in derived.schema


def test_no_parameters() -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    assert derive_input([]).schema == schema


@each_row(
    ("hint", "text"),
    [
        (
            range,
            r"range cannot be expressed in JSON Schema \(range is not a type that JSON has\); use",
        ),
        (list[complex | range], r"Schema \(range is not a type that JSON has\); use"),
        (Annotated[int, Field(multiple_of=0)], r"Schema \('multiple_of' must be a finite number"),
        (type, "cannot be expressed in JSON Schema"),
        (Callable[[int], int], "cannot be expressed in JSON Schema"),
        (Unfinished, "cannot be expressed in JSON Schema"),
        (Calls, "cannot be expressed in JSON Schema"),
        (Annotated[str, Field(pattern="(?=a)")], "look-around"),
        (Annotated[str, Field(pattern=r"a\Z")], "cannot be expressed in JSON Schema"),
        ("NotThere", "'NotThere' in it is not defined"),
    ],
    ids=named,
)
def test_what_json_cannot_express_names_the_parameter(hint: Any, text: str) -> None:
    with pytest.raises(DefinitionError, match=text) as caught:
        derive_input([Parameter("good", Node), Parameter("bad", hint)])
    assert "parameter 'bad'" in str(caught.value)
    assert "good" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hint_that_python_cannot_write_is_named_by_its_kind() -> None:
    """An integer of more than 4,300 digits has no `repr`."""
    for hint in (Annotated[int, Field(le=10**5000)], Literal[10**5000], list[Literal[10**5000]]):  # type: ignore[misc]
        with pytest.raises(DefinitionError, match=r"a hint made with .* cannot be expressed"):
            derive_input([Parameter("bad", hint)])


@each_row("value", ["3", "nan", None, [1], {}, 3.5, float("inf")], ids=repr)
def test_a_number_is_not_made_of_anything_else(value: Any) -> None:
    """A schema given by the author may let other values through than the hint."""
    whole = converter_for(int)
    assert whole is not None
    with pytest.raises((ValueError, OverflowError)):
        whole(value)
    if not isinstance(value, float):
        real = converter_for(float)
        assert real is not None
        with pytest.raises(ValueError, match="not a number"):
            real(value)


def test_an_integer_that_no_float_can_hold() -> None:
    real = converter_for(float)
    assert real is not None
    with pytest.raises(OverflowError):
        real(10**400)


@each_row(
    ("hint", "schema"),
    [
        (int, INTEGER),
        (str, STRING),
        (Any, None),
        (None, None),
        (type(None), None),
        (object, None),
        (list[int], {"type": "array", "items": INTEGER}),
        (dict[str, int], {"type": "object", "additionalProperties": INTEGER}),
        (Annotated[int, []], INTEGER),
        (Decimal, None),
        (Point, POINT),
        (set[str], {"type": "array", "uniqueItems": True, "items": STRING}),
    ],
    ids=named,
)
def test_results(hint: Any, schema: Any) -> None:
    derived = derive_output(hint)
    if hint is Decimal:
        assert derived is not None
        assert derived["type"] == "string"
    else:
        assert derived == schema


@pytest.mark.parametrize("hint", [Iterator[int], Callable[[], int], Unfinished, range], ids=str)
def test_results_that_are_no_json(hint: Any) -> None:
    with pytest.raises(DefinitionError, match="the return type"):
        derive_output(hint)


@pytest.mark.parametrize(
    ("hint", "value", "typed"),
    [
        (Point, {"x": 1}, Point(1.0)),
        (Ticket, {"id": 1.0}, {"id": 1}),
        (Person, {"name": "Ann"}, Person(name="Ann")),
        (Node, {"value": 1, "kids": [{"value": 2}]}, Node(1, [Node(2)])),
    ],
)
def test_an_object_that_is_all_the_arguments(hint: Any, value: Any, typed: Any) -> None:
    schema, convert = derive_object(hint)
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    validator = compile_validator(schema)
    assert validator.is_valid(value)
    assert not validator.is_valid({**value, "undeclared": 1})
    assert convert(value) == typed


@pytest.mark.parametrize("hint", [Unfinished, Calls])
def test_an_object_that_cannot_be(hint: Any) -> None:
    with pytest.raises(DefinitionError, match="the arguments"):
        derive_object(hint)
