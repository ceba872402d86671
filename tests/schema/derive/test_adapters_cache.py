"""What is kept for one hint is never given out for another, however alike the two look."""

from __future__ import annotations

import re
import sys
import threading
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge
from named import named
from pydantic import BaseModel, Field
from rows import each_row

from toolcrib.errors import DefinitionError
from toolcrib.schema import Parameter, derive_input
from toolcrib.schema.derive.hints import identity


def schema_of(hint: Any) -> Any:
    return derive_input([Parameter("x", hint)]).schema


def _local(kind: Any) -> Any:
    """Another class each time, of the same name, module and text."""
    return make_dataclass("Local", [("held", kind)], namespace={"__module__": __name__})


def _color(*names: str) -> Any:
    made: Any = Enum("Color", list(zip(names, names, strict=True)), module="builtins")  # type: ignore[misc]
    return made


LONG = "a" * 210  # a pattern's repr is cut off
One: Any = _local(int)
Two: Any = _local(str)
PAIRS: list[tuple[Any, Any]] = [
    (Annotated[str, Field(pattern=re.compile(LONG + "b"))],
     Annotated[str, Field(pattern=re.compile(LONG + "c"))]),
    (Annotated[int, Ge(1)], Annotated[int, Ge(2)]),
    (_color("a"), _color("b")),
    (int | str, str | int),
    (list[int | str], list[str | int]),
    (Literal[1, 2], Literal[2, 1]),
    (Literal[1], Literal[True]),
    (One, Two),
    (list[One], list[Two]),
    (One | Two | None, Two | One | None),
]  # fmt: skip


@each_row(("one", "two"), PAIRS, ids=named)
def test_each_has_its_own_schema(one: Any, two: Any) -> None:
    first, second = schema_of(one), schema_of(two)
    assert first != second
    assert (schema_of(one), schema_of(two)) == (first, second)


@each_row(("one", "two"), PAIRS, ids=named)
def test_each_has_its_own_schema_in_a_dataclass(one: Any, two: Any) -> None:
    first, second = (
        schema_of(make_dataclass("Same", [("held", hint)], namespace={"__module__": __name__}))
        for hint in (one, two)
    )
    assert first != second


@each_row(
    "hint",
    [int | None, list[dict[str, date]], Annotated[int, Field(ge=1)], Literal["a"], One | None,
     typing.Callable[[int], str]],
    ids=str,
)  # fmt: skip
def test_the_same_parts_make_the_same_hint(hint: Any) -> None:
    assert identity(hint) == identity(hint)
    assert identity(hint) != identity(list[hint])


def test_local_classes_of_one_name_stand_side_by_side() -> None:
    derived = derive_input([Parameter("one", One), Parameter("two", Two | None, None)])
    definitions: Any = derived.schema["$defs"]
    assert [d["properties"]["held"]["type"] for d in definitions.values()] == ["integer", "string"]
    assert derived.converters["two"]({"held": "a"}) == Two("a")


@dataclass
class Hooked:
    """Its author adds to its schema."""

    pin: str = ""

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        schema = handler.resolve_ref_schema(handler(core))
        schema["properties"]["pin"] |= {"writeOnly": True, "minLength": 3}
        return schema


@each_row(
    "hint", [Hooked, list[Hooked], Hooked | None, dict[str, Hooked], tuple[Hooked, int]], ids=str
)
def test_what_an_author_adds_to_a_dataclass_counts_wherever_it_is(hint: Any) -> None:
    held = schema_of(hint)["$defs"]["Hooked"]["properties"]["pin"]
    assert (held["writeOnly"], held["minLength"]) == (True, 3)


class Waiting(BaseModel):
    for_it: ComesLater  # type: ignore[name-defined]  # noqa: F821  not yet


def test_what_was_refused_is_read_once_it_can_be() -> None:
    with pytest.raises(DefinitionError, match="the name 'ComesLater' in it is not defined"):
        schema_of(Waiting)
    globals()["ComesLater"] = Plain
    try:
        assert list(schema_of(Waiting)["$defs"]) == ["Plain", "Waiting"]
    finally:
        del globals()["ComesLater"]


class Plain(BaseModel):
    n: int


@dataclass
class Named:
    """Fields may be called as their types are."""

    date: date | None = None
    text: Literal["a"] | None = None


def test_a_field_may_be_called_as_its_type_is() -> None:
    assert schema_of(Named)["$defs"]["Named"]["properties"]["date"] == {
        "anyOf": [{"type": "string", "format": "date"}, {"type": "null"}],
        "default": None,
    }


def _of_each_other() -> tuple[Any, Any]:
    """Two TypedDicts of `typing`, new ones each time."""
    made: dict[str, Any] = {"typing": typing, "__name__": f"{__name__}.made"}
    exec(  # noqa: S102  it stands here
        "class One(typing.TypedDict):\n    two: 'list[Two]'\n"
        "class Two(typing.TypedDict):\n    one: 'One | None'\n",
        made,
    )
    sys.modules[made["__name__"]] = types.SimpleNamespace(**made)  # type: ignore[assignment]
    return made["One"], made["Two"]


@pytest.fixture
def often_switched() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("often_switched")
def test_typed_dicts_of_each_other_in_threads() -> None:
    for _ in range(20):
        one: Any
        two: Any
        one, two = _of_each_other()
        hints = [one, two, list[one], dict[str, two], one, two]
        made: dict[int, Any] = {}
        start = threading.Barrier(len(hints))

        def derive(
            place: int, hint: Any, start: threading.Barrier = start, made: dict[int, Any] = made
        ) -> None:
            start.wait()
            made[place] = schema_of(hint)

        threads = [threading.Thread(target=derive, args=pair) for pair in enumerate(hints)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [sorted(made[place]["$defs"]) for place in range(len(hints))] == [["One", "Two"]] * 6
