"""Definitions have readable names that never collide, and TypedDicts of `typing` are read."""

from __future__ import annotations

import subprocess
import sys
import types
import typing
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, NotRequired, Required, TypeVar

import pytest
from named import named
from pydantic import BaseModel, Field
from rows import each_row
from typing_extensions import Doc

from toolcrib import ALL, tool
from toolcrib.schema import Parameter, compile_validator, derive_input, derive_output
from toolcrib.schema.derive import derive_object

T = TypeVar("T")


class Address(BaseModel):
    city: str


def _other_address(module: str, **fields: Any) -> Any:
    return type("Address", (BaseModel,), {"__annotations__": fields, "__module__": module})


Second = _other_address("shop.second", street=str)
Third = _other_address("shop.second", zip=int)


class Holder(BaseModel):
    one: Address
    two: Second  # type: ignore[valid-type]
    more: list[Address] = []


class Box(BaseModel, Generic[T]):
    held: T


def _names(*hints: Any) -> dict[str, list[str]]:
    derived = derive_input([Parameter(f"p{n}", hint) for n, hint in enumerate(hints)])
    compile_validator(derived.schema)
    found: Any = derived.schema.get("$defs", {})
    return {name: list(node["properties"]) for name, node in found.items()}


def test_two_models_of_one_name() -> None:
    assert _names(Address, Second) == {"Address": ["city"], "Address_2": ["street"]}
    assert _names(Second, list[Address]) == {"Address": ["street"], "Address_2": ["city"]}
    assert _names(Holder) == {
        "Address": ["city"], "Address_2": ["street"], "Holder": ["one", "two", "more"]
    }  # fmt: skip
    assert list(_names(Address, Second, Third, Holder)) == [
        "Address", "Address_2", "Address_3", "Holder"
    ]  # fmt: skip


def test_each_reference_leads_to_its_own_model() -> None:
    derived = derive_input([Parameter("x", Holder), Parameter("y", Third)])
    validator = compile_validator(derived.schema)
    good = {"x": {"one": {"city": "a"}, "two": {"street": "b"}}, "y": {"zip": 1}}
    assert validator.is_valid(good)
    assert not validator.is_valid({**good, "y": {"zip": "1"}})
    assert derived.converters["x"](good["x"]).two.street == "b"


def test_generic_models_and_local_ones() -> None:
    class Inner(BaseModel):
        n: int

    assert list(_names(Box[int], Box[date], Box[Inner])) == [
        "Box_int", "Box_date", "Inner", "Box_Inner"
    ]  # fmt: skip


@pytest.mark.exhaustive
def test_schemas_are_the_same_in_each_process() -> None:
    script = (
        "from schema.derive.test_generator_names import *\n"
        "import json\n"
        "d = derive_input([Parameter('x', Holder), Parameter('y', Third), Parameter('z', Sets)])\n"
        "print(json.dumps(d.schema))"
    )
    path = [str(Path(__file__).parents[2]), *sys.path]
    texts = {
        subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}\n{script}"],
            env={"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
    assert "c" in texts.pop()


class Sets(BaseModel):
    tags: set[str] = {"a", "b", "c", "d", "e"}
    deep: dict[str, frozenset[str]] = {"x": frozenset({"q", "r", "s", "t"})}


class Base(typing.TypedDict, total=False):
    """Where it began."""

    start: date


class Move(Base):
    to: Required[str]
    via: NotRequired[Annotated[list[str], Field(max_length=2)]]
    back: Move | None


class Crate(typing.TypedDict, Generic[T]):
    held: T


class Leg(NamedTuple):
    move: Move


@dataclass
class Trip:
    moves: list[Move]
    first: Move | None = None
    notes: dict[str, Base] = field(default_factory=dict)


MOVE = {
    "title": "Move",
    "type": "object",
    "properties": {
        "start": {"type": "string", "format": "date"},
        "to": {"type": "string"},
        "via": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "back": {"anyOf": [{"$ref": "#/$defs/Move"}, {"type": "null"}]},
    },
    "required": ["to", "back"],
    "additionalProperties": False,
}
PLAIN = {"to": "x", "back": None}


@each_row(
    ("hint", "value", "typed"),
    [
        (Move, {**PLAIN, "start": "2024-01-01"}, {**PLAIN, "start": date(2024, 1, 1)}),
        (list[Move], [{"to": "a", "back": PLAIN}], [{"to": "a", "back": PLAIN}]),
        (Move | None, None, None),
        (dict[str, list[Move]], {"a": [PLAIN]}, {"a": [PLAIN]}),
        (Trip, {"moves": [PLAIN]}, Trip([PLAIN])),  # type: ignore[list-item]
        (Annotated[Move, Field(description="Where to.")], PLAIN, PLAIN),
        (Leg, [PLAIN], Leg(PLAIN)),  # type: ignore[arg-type]
    ],
    ids=named,
)
def test_typed_dicts_of_typing(hint: Any, value: Any, typed: Any) -> None:
    derived = derive_input([Parameter("x", hint)])
    found: Any = derived.schema["$defs"]
    assert found["Move"] == MOVE
    assert compile_validator(derived.schema).is_valid({"x": value})
    assert not compile_validator(derived.schema).is_valid({"x": {"back": 1}})
    assert derived.converters["x"](value) == typed
    assert derive_output(hint) is not None


def test_a_typed_dict_keeps_its_doc_and_its_type() -> None:
    made = derive_object(Base)
    assert made.schema == {
        "title": "Base",
        "description": "Where it began.",
        "type": "object",
        "properties": {"start": {"type": "string", "format": "date"}},
        "additionalProperties": False,
    }
    assert made.convert({"start": "2024-01-01"}) == {"start": date(2024, 1, 1)}


def test_a_generic_typed_dict() -> None:
    derived = derive_input([Parameter("x", list[Crate[date]])])
    assert derived.converters["x"]([{"held": "2024-01-01"}]) == [{"held": date(2024, 1, 1)}]


class Documented(BaseModel):
    """A point.

    Attributes:
        x: To the right.
        y: Upwards.
    """

    x: int
    y: int = Field(description="Its own.")


@dataclass
class AlsoDocumented:
    """A point.

    :param x: To the right.
    """

    x: int


@pytest.mark.parametrize("hint", [Documented, AlsoDocumented])
def test_fields_are_documented_by_the_docstring_of_their_class(hint: Any) -> None:
    schema: Any = derive_object(hint).schema
    assert schema["description"] == "A point."
    assert schema["properties"]["x"]["description"] == "To the right."
    if hint is Documented:
        assert schema["properties"]["y"]["description"] == "Its own."


def test_an_odd_class_name_is_made_plain() -> None:
    odd: Any = types.new_class("A/../b~ \n", (BaseModel,))
    held: Any = Box[odd]
    assert list(_names(held)) == ["b", "Box_b"]


class Written(BaseModel):
    x: Annotated[int, "To the right."]
    y: Annotated[int, "Up.", Field(description="Its own.")]


@dataclass
class AlsoWritten:
    x: Annotated[int, Doc("To the right.")]
    y: Annotated[int, Field(description="Its own."), "Up."]


@pytest.mark.parametrize("hint", [Written, AlsoWritten])
def test_the_text_of_a_hint_describes_a_field(hint: Any) -> None:
    properties: Any = derive_object(hint).schema["properties"]
    assert properties["x"]["description"] == "To the right."
    assert properties["y"]["description"] == "Its own."


def test_the_text_of_a_hint_describes_a_parameter() -> None:
    @tool(visible=ALL)
    def pay(cents: Annotated[int, "How much."], to: str, note: Annotated[str, Doc("Why.")]) -> None:
        """Pay.

        Args:
            cents: By the docstring.
            to: Whom.
        """

    schema: Any = pay.definition.input_schema
    said = {name: node["description"] for name, node in schema["properties"].items()}
    assert said == {"cents": "How much.", "to": "Whom.", "note": "Why."}
