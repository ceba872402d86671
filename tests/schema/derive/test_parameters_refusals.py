"""What JSON Schema cannot express, even in part, is an error that names the parameter and says why."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, Self

import pytest
from named import named
from pydantic import BaseModel, Field, ImportString, InstanceOf, JsonValue
from pydantic.json_schema import SkipJsonSchema
from rows import each_row
from typing_extensions import TypedDict

from toolcrib.errors import DefinitionError
from toolcrib.schema import Parameter, derive_input, derive_output


class Empty(Enum):
    pass


class Lazy(BaseModel):
    items: Iterable[int]


@dataclass
class AlsoLazy:
    items: Iterable[int] = ()


class Handler(BaseModel):
    call: Callable[[int], int] | None = None


class Job(BaseModel):
    first: Handler
    second: Handler


class Pair(TypedDict):
    one: Unknown  # type: ignore[name-defined]  # noqa: F821  what is under test


@dataclass
class Misspelt:
    one: hint  # type: ignore[name-defined]  # noqa: F821  as a local of the code that reads it


class Hooked:
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        raise RuntimeError("a secret\nof two lines")


class HookedSchema(BaseModel):
    n: int

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        raise ZeroDivisionError("a secret")


@dataclass(frozen=True)
class Holds:
    items: list[int]


class FrozenHolds(BaseModel, frozen=True):
    items: list[int]


class InTuple(NamedTuple):
    items: list[int]


class Plain(BaseModel):
    n: int


def helper(x: int) -> int:
    return x


REFUSED: list[tuple[Any, str]] = [
    (str | Callable[[float], str], "JSON has no callable"),
    (Callable[[], int] | None, "JSON has no callable"),
    (list[int | Callable[[], int]], "JSON has no callable"),
    (Handler, "JSON has no callable"),
    (list[Job], "JSON has no callable"),
    (type | tuple[type, ...], "JSON has no type"),
    (Callable[[], int] | type, "JSON has no"),
    (type[int], "JSON has no classes"),
    (list[type[int]], "JSON has no classes"),
    (InstanceOf[range] | int, "JSON has no range"),
    (Empty, "an Enum without members"),
    (Literal[1, b"x"], "a Literal of values"),
    (SkipJsonSchema[int], "SkipJsonSchema leaves it out"),
    (SkipJsonSchema[int] | SkipJsonSchema[str], "SkipJsonSchema leaves out every part"),
    (ImportString, "runs the module that a model names"),
    (list[ImportString[Any]], "runs the module that a model names"),
    (Lazy, "use a list"),
    (AlsoLazy, "use a list"),
    (Generator[int, None, None], "use a list"),
    (any, "a function is not a type"),
    (callable, "a function is not a type"),
    (helper, "a function is not a type"),
    (list[helper], "a function is not a type"),  # type: ignore[valid-type]
    ({"a": int}, "a dict is not a type; use a TypedDict"),
    ([int], "cannot be expressed"),
    (5, "cannot be expressed"),
    (Self, "cannot be expressed"),
    (Pair, "'?Unknown'?.* not defined"),
    (list[Misspelt], "the name 'hint' in it is not defined"),
    (Hooked, "its own pydantic hook raised RuntimeError"),
    (list[HookedSchema], "its own pydantic hook raised ZeroDivisionError"),
    (set[Holds], "cannot be hashed"),
    (set[FrozenHolds], "cannot be hashed"),
    (set[InTuple], "cannot be hashed"),
    (frozenset[tuple[Plain, int]], "cannot be hashed"),
    (tuple[Plain, set[Plain], Plain], "cannot be hashed"),
    (set[JsonValue], "cannot be hashed"),
    (set[tuple[int, Any]], "cannot be hashed"),
]


@each_row(("hint", "why"), REFUSED, ids=named)
def test_the_error_names_the_parameter_and_says_why(hint: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why) as caught:
        derive_input([Parameter("good", Plain), Parameter("bad", hint)])
    text = str(caught.value)
    assert text.startswith("parameter 'bad': ")
    assert "secret" not in text
    assert "\n" not in text
    assert len(text) < 700


@pytest.mark.parametrize("hint", [str | Callable[[], int], Handler, type | None, Hooked], ids=str)
def test_a_result_is_expressed_as_a_whole_too(hint: Any) -> None:
    with pytest.raises(DefinitionError, match="the return type"):
        derive_output(hint)


def test_what_an_author_leaves_out_of_a_union_is_left_out() -> None:
    schema: Any = derive_input([Parameter("x", int | SkipJsonSchema[None])]).schema  # type: ignore[misc]
    assert schema["properties"]["x"] == {"type": "integer"}


def test_a_hint_is_shown_up_to_a_length() -> None:
    hint: Any = range
    for _ in range(80):
        hint = list[hint]
    with pytest.raises(DefinitionError) as caught:
        derive_input([Parameter("bad", hint)])
    assert len(str(caught.value)) < 700


@dataclass
class Hand:
    """Its hash is its author's word."""

    items: list[int] = field(default_factory=list)

    def __hash__(self) -> int:
        return 1


@pytest.mark.parametrize("hint", [set[Hand], set[Annotated[Hand, Field()]]], ids=str)
def test_a_hash_of_its_own_is_trusted(hint: Any) -> None:
    derived = derive_input([Parameter("x", hint)])
    assert derived.converters["x"]([{"items": [1]}]) == {Hand([1])}
