"""Whatever a derived schema accepts, the hint accepts: the arguments can be built."""

from __future__ import annotations

import typing
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypeVar
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from named import named
from pydantic import (
    UUID4,
    AliasChoices,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    IPvAnyAddress,
    NaiveDatetime,
    PositiveInt,
    RootModel,
    SecretStr,
    StringConstraints,
)
from rows import each_row
from samples import sample, sampled
from schema.from_schema import accepted
from typing_extensions import TypeAliasType, TypedDict

from toolcrib.schema import Parameter, derive_input
from toolcrib.schema.derive import derive_object

T = TypeVar("T")


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Word(StrEnum):
    A = "a"


class Mixed(Enum):
    ONE = 1
    TEXT = "1"
    HALF = 0.5
    NONE = None


class Bits(Flag):
    A = 1
    B = 2


class Ticket(TypedDict, total=False):
    id: int
    due: NotRequired[date]


class OldTicket(typing.TypedDict):
    id: int
    tags: typing.NotRequired[set[str]]
    parent: OldTicket | None


@dataclass
class Point:
    x: float
    y: float = 0.0


@dataclass
class Hidden:
    n: int
    seed: InitVar[int] = 1
    made: int = field(init=False, default=0)

    def __post_init__(self, seed: int) -> None:
        self.made = seed


@dataclass(frozen=True)
class Spot:
    x: int


@dataclass
class HasOld:
    tickets: list[OldTicket]


@dataclass
class Node:
    value: int
    kids: list[Node] = field(default_factory=list)


class Pair(NamedTuple):
    a: int
    b: str = "x"


class Person(BaseModel):
    name: str = Field(min_length=1, max_length=5, pattern="^[A-Z]")
    born: date | None = None
    tags: set[str] = set()
    amount: Annotated[int, Field(gt=0, multiple_of=3)] = 3
    nick: str = Field("x", alias="nickName")
    other: int = Field(0, validation_alias=AliasChoices("one", "two"))


class Strictly(BaseModel):
    model_config = ConfigDict(strict=True)

    when: date
    many: int
    tags: set[int]
    pair: tuple[int, str]
    color: Color
    code: UUID
    price: Decimal


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")

    n: int


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    loud: bool


class Numbers(RootModel[list[int]]):
    pass


class Box(BaseModel, Generic[T]):
    held: T


Ids = TypeAliasType("Ids", "list[int | Ids]")
UserId = NewType("UserId", int)

HINTS: list[Any] = [
    str, int, float, bool, None, Any, object, list, dict, tuple, set, frozenset,
    int | None, str | int | None, int | float, bool | int, list[int] | dict[str, int], date | int,
    Literal["a", "b"], Literal[1, 2] | None, Literal[1, True, "1"], Literal[Level.LOW, Word.A],
    Color, Level, Word, Mixed, Bits, Color | int,
    list[int], list[list[float]], tuple[int, str], tuple[int, ...], tuple[()],
    set[int], set[str | int], set[Any], frozenset[frozenset[int]],
    set[date], set[tuple[int, bool]], set[Spot], deque[int], Iterable[int], Sequence[date],
    dict[str, int], dict[int, str], dict[float, int], dict[bool, int], dict[date, int],
    dict[UUID, float], dict[Color, int], dict[Level, int], dict[Literal["a"], int],
    dict[int | str, int], dict[date | UUID, int], dict[Annotated[str, Field(pattern="^a")], int],
    dict[Decimal, int], dict[datetime, int], Mapping[str, Point], Counter[str],
    OrderedDict[str, int], defaultdict[str, list[int]], Annotated[dict[int, int], Field(min_length=2)],
    datetime, date, time, timedelta, NaiveDatetime, AwareDatetime, UUID, UUID4, Path, bytes,
    Decimal, Fraction, complex, IPv4Address, IPv6Address, IPvAnyAddress, SecretStr,
    Annotated[Decimal, Field(max_digits=5, decimal_places=2)],
    Annotated[Decimal, Field(decimal_places=2)], Annotated[Decimal, Field(max_digits=3)],
    Annotated[Decimal, Field(max_digits=2, decimal_places=2)],
    Annotated[Decimal, Field(gt=0, le=Decimal("9.99"))],
    Annotated[Decimal, Field(ge=0, multiple_of=Decimal("0.05"))],  # type: ignore[call-overload]
    Annotated[int, Field(ge=1, le=5)], Annotated[int, Field(gt=10**17)], PositiveInt,
    Annotated[int, Field(multiple_of=7)], Annotated[int, Field(strict=True)],
    Annotated[float, Field(lt=1, ge=-1)], Annotated[float, Field(multiple_of=0.5)],
    Annotated[str, Field(min_length=2, max_length=3)], Annotated[str, Field(pattern=r"^\w+-\d$")],
    Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)],
    Annotated[str, StringConstraints(strip_whitespace=True, min_length=3)],
    Annotated[list[int], Field(min_length=1, max_length=2)],
    Point, list[Point], Point | None, Hidden, Node, Pair, list[Pair], Ticket, OldTicket,
    list[OldTicket | None], HasOld, Person, list[Person], Strictly, Closed, Numbers, Box[date],
    Box[Box[int]], dict[str, Node], Annotated[Cat | Dog, Field(discriminator="kind")],
    Cat | Dog, Ids, UserId, list[UserId],
]  # fmt: skip
OBJECTS: list[Any] = [Point, Node, Ticket, OldTicket, HasOld, Person, Strictly, Closed, Box[date]]

quick = settings(
    max_examples=sample(30, part=8),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)


@each_row("hint", sampled(HINTS, part=6), ids=named)
def test_what_the_schema_accepts_can_be_built(hint: Any) -> None:
    derived = derive_input([Parameter("x", hint)])
    convert = derived.converters.get("x", lambda plain: plain)

    @quick
    @given(accepted(derived.schema))
    def check(arguments: Any) -> None:
        convert(arguments["x"])

    check()


@each_row("hint", OBJECTS, ids=str)
def test_what_the_schema_of_an_object_accepts_can_be_built(hint: Any) -> None:
    schema, convert = derive_object(hint)

    @quick
    @given(accepted(schema))
    def check(arguments: Any) -> None:
        convert(arguments)

    check()


@quick
@given(st.lists(st.sampled_from([h for h in HINTS if h is not None]), min_size=2, max_size=3))
def test_parameters_together_are_parameters_alone(hints: list[Any]) -> None:
    names = [f"p{n}" for n in range(len(hints))]
    together = derive_input([Parameter(n, h) for n, h in zip(names, hints, strict=True)])
    properties: Any = together.schema["properties"]
    assert list(properties) == names
    for name, hint in zip(names, hints, strict=True):
        alone: Any = derive_input([Parameter(name, hint)]).schema
        assert properties[name].keys() == alone["properties"][name].keys()
