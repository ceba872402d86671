"""A row for each kind of hint: its schema, what it takes, what that becomes, what it refuses."""

from __future__ import annotations

import collections
from collections.abc import Collection, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pytest
from named import named
from pydantic import (
    UUID4,
    AliasPath,
    AwareDatetime,
    BaseModel,
    ByteSize,
    Field,
    HttpUrl,
    IPvAnyAddress,
    NaiveDatetime,
    Secret,
    SecretStr,
    StringConstraints,
)
from rows import each_row
from typing_extensions import TypeAliasType

from toolcrib.errors import DefinitionError
from toolcrib.schema import Parameter, compile_validator, derive_input, derive_output
from toolcrib.schema.derive import constraints


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Alias(IntEnum):
    A = 1
    B = 1
    C = 2


class Word(StrEnum):
    A = "a"


class Mixed(Enum):
    ONE = 1
    TEXT = "1"
    NONE = None


class Bits(Flag):
    A = 1
    B = 2
    D = 8


class Rights(IntFlag):
    R, W = 1, 2


class ManyBits(Flag):
    A, B, C, D, E, F, G, H = (1 << n for n in range(8))


class Pairs(Enum):
    P = (1, 2)


class Days(Enum):
    D = date(2024, 1, 1)


class Pair(NamedTuple):
    a: int
    b: str = "x"


class ByPath(BaseModel):
    a: int = Field(validation_alias=AliasPath("x", 0))


@dataclass
class Hidden:
    n: int
    seed: InitVar[int] = 1
    made: int = field(init=False, default=0)


Numbers = TypeAliasType("Numbers", list[int])
ZERO = "00000000-0000-4000-8000-000000000007"
INT, TEXT = {"type": "integer"}, {"type": "string"}

# hint, its schema, [(JSON, what it becomes)], [JSON that is refused]
ROWS: list[tuple[Any, Any, list[tuple[Any, Any]], list[Any]]] = [
    (int, INT, [(2.0**53, 2**53), (2**70, 2**70)], [1.5, "1", True, None]),
    (Annotated[int, Field(multiple_of=7)], None, [(14.0, 14)], [15.0]),
    (list[int], None, [([-1e15, 3.0], [-(10**15), 3])], [[1.5], [True]]),
    (float, {"type": "number"}, [(1, 1.0)], ["1", True]),
    (Decimal, {"anyOf": [{"type": "number"}, {**TEXT, "pattern": r"^-?[0-9]+(\.[0-9]+)?$"}]},
     [("1.50", Decimal("1.50")), (0.1, Decimal("0.1")), (-7, Decimal(-7))],
     ["1e9", "NaN", "Infinity", " 1", "1_000", "٣", "", True]),
    (Annotated[Decimal, Field(max_digits=5, decimal_places=2)], None,
     [(19.99, Decimal("19.99")), ("019.9", Decimal("19.9")), (-999.99, Decimal("-999.99"))],
     [1000, 0.001, "1000", "0.001", 1e22]),
    (Annotated[Decimal, Field(ge=0)], {"type": "number", "minimum": 0}, [(0, Decimal(0))],
     [-1, "1"]),
    (Annotated[Decimal, Field(max_digits=30, decimal_places=2)], None,
     [(5, Decimal(5)), ("1" * 28, Decimal("1" * 28))], [1e29, "1" * 29, 0.001]),
    (Annotated[Decimal, Field(max_digits=3, decimal_places=2, lt=100)],
     {"type": "number", "multipleOf": 0.01, "exclusiveMinimum": -10, "exclusiveMaximum": 10},
     [(9.99, Decimal("9.99"))], [10, 99]),
    (Annotated[Decimal, Field(max_digits=3, gt=1)], {"type": "number", "exclusiveMinimum": 1},
     [(1.5, Decimal("1.5"))], [1, "2"]),
    (Fraction, None, [("1/3", Fraction(1, 3)), (0.5, Fraction(1, 2))], ["1/0", "x", True]),
    (complex, None, [("1+2j", 1 + 2j)], ["x", "1+j2"]),
    (datetime, {**TEXT, "format": "date-time"},
     [("2024-01-01t00:00:00.5z", datetime(2024, 1, 1, 0, 0, 0, 500_000, UTC))],
     ["2024-01-01T00:00:00", "2024-01-01 00:00:00Z", "2024-02-30T00:00:00Z", 1, ""]),
    (AwareDatetime, {**TEXT, "format": "date-time"},
     [("2024-01-01T00:00:00Z", datetime(2024, 1, 1, tzinfo=UTC))], ["2024-01-01T00:00:00"]),
    (NaiveDatetime, {**TEXT, "pattern": constraints.DATE + constraints.LOCAL},
     [("2024-01-01T00:00", datetime(2024, 1, 1))],  # noqa: DTZ001  what is meant
     ["2024-01-01T00:00:00Z", "2024-13-01T00:00:00", "2024-01-01"]),
    (date, {**TEXT, "format": "date"}, [("2024-02-29", date(2024, 2, 29))],
     ["2023-02-29", "2024-1-1", "2024-01-01T00:00:00Z", 3]),
    (time, None, [("07:30", time(7, 30)), ("23:59:59.5", time(23, 59, 59, 500_000))],
     ["24:00", "12:30:60", "12", "7:30"]),
    (timedelta, None,
     [("P1W", timedelta(days=7)), ("PT36H", timedelta(hours=36)), ("-P1D", timedelta(days=-1)),
      ("PT0.5S", timedelta(milliseconds=500)), ("-P1DT0.000001S", -timedelta(1, 0, 1)),
      ("P99999Y99999Y99999Y99999YT999999999S", timedelta(145_998_540, 999_999_999))],
     ["P9999999999D", "PT99999999999999H", "PT", "P", "-P", "PT.5S", "PT0.0000001S", "1 day", 5]),
    (Bits, {"$ref": "#/$defs/Bits"},
     [(1, Bits.A), (3, Bits.A | Bits.B), (0, Bits(0)), (9, Bits.A | Bits.D)], [4, 7, 16, -1, "A"]),
    (ManyBits, {"$ref": "#/$defs/ManyBits"}, [(255, ManyBits(255)), (2, ManyBits(2))], [256, -1]),
    (UUID, {**TEXT, "format": "uuid"}, [(ZERO.upper(), UUID(ZERO))],
     ["{" + ZERO + "}", ZERO.replace("-", ""), "urn:uuid:" + ZERO, "x"]),
    (UUID4, None, [(ZERO, UUID(ZERO))], [ZERO.replace("-4", "-1"), ZERO.replace("-8", "-0")]),
    (bytes, {**TEXT, "format": "binary"}, [("é", "é".encode())], [1]),
    (IPv4Address, {**TEXT, "format": "ipv4"}, [("1.2.3.4", IPv4Address("1.2.3.4"))], ["1.2.3"]),
    (IPv6Address, {**TEXT, "format": "ipv6"}, [("::1", IPv6Address("::1"))], ["1.2.3.4"]),
    (IPvAnyAddress, None, [("::1", IPv6Address("::1")), ("1.2.3.4", IPv4Address("1.2.3.4"))], ["x"]),
    (IPv4Network, None, [("10.0.0.0/8", IPv4Network("10.0.0.0/8"))], ["10.0.0.0/33", "x"]),
    (HttpUrl, None, [("http://a", HttpUrl("http://a"))], ["mailto:x", "http:///x", "x", ""]),
    (SecretStr, {**TEXT, "format": "password", "writeOnly": True}, [("x", SecretStr("x"))], [1]),
    (Literal[1, True], {"enum": [1, True]}, [(1, 1), (True, True)], [2, "1", False]),
    (Literal[Level.LOW], None, [(1.0, Level.LOW)], [2]),
    (Literal[Word.A], None, [("a", Word.A)], ["b"]),
    (Literal[Word.A] | None, None, [("a", Word.A), (None, None)], ["b"]),
    (Level, None, [(2.0, Level.HIGH)], [3, "2", True]),
    (Word, None, [("a", Word.A)], ["b"]),
    (Mixed, None, [(1, Mixed.ONE), ("1", Mixed.TEXT), (None, Mixed.NONE)], ["2", 0]),
    (tuple[()], {"type": "array", "minItems": 0, "maxItems": 0}, [([], ())], [[1]]),
    (tuple[int, str], None, [([1.0, "a"], (1, "a"))], [[1], [1, "a", 2], ["a", 1]]),
    (set[int], None, [([1, 2.0], {1, 2})], [[1, 1], [1, 1.0], ["a"]]),
    (set, None, [([1, "1", None], {1, "1", None})], [[[1]], [{}], [1, 1.0]]),
    (frozenset[frozenset[int]], None, [([[1]], frozenset({frozenset({1})}))], [[1], [[1, 1]]]),
    (dict[int, str], None, [({"-7": "a"}, {-7: "a"})], [{"x": "a"}, {"1.0": "a"}, {"01": "a"}]),
    (dict[float, int], None, [({"1.5": 1}, {1.5: 1})], [{"nan": 1}, {"1e400": 1}, {"": 1}]),
    (dict[bool, int], None, [({"true": 1}, {True: 1})], [{"yes": 1}, {"1": 1}]),
    (dict[date, int], None, [({"2024-01-01": 1}, {date(2024, 1, 1): 1})], [{"2024-02-30": 1}]),
    (dict[Word, int], None, [({"a": 1}, {Word.A: 1})], [{"b": 1}]),
    (dict[Level, int], None, [({"1": 1}, {Level.LOW: 1})], [{"3": 1}, {"LOW": 1}]),
    (dict[Rights, int], None, [({"2": 1}, {Rights.W: 1})], [{"3": 1}, {"0": 1}, {"4": 1}]),
    (ByteSize, None, [("1.5 KB", ByteSize(1500)), (7, ByteSize(7))], ["2026-01-31", "1 KB or so", -1]),
    (dict[int | str, int], None, [({"x": 1, "1": 2}, {"x": 1, "1": 2})], [{"x": "y"}]),
    (dict[Annotated[str, Field(pattern="^a")], int],
     {"type": "object", "additionalProperties": INT, "propertyNames": {"pattern": "^a"}},
     [({"ab": 1.0}, {"ab": 1})], [{"b": 1}, {"a": "1"}]),
    (Mapping[str, date], None, [({"a": "2024-01-01"}, {"a": date(2024, 1, 1)})], [{"a": 1}]),
    (Iterable[int], {"type": "array", "items": INT}, [([1.0], [1])], [["1"], 1]),
    (Iterable, {"type": "array", "items": {}}, [([1], [1])], [1]),
    (Collection, {"type": "array", "items": {}}, [([1], [1])], [1]),
    (dict[str, Iterable[int]] | None, None, [({"a": [1e15]}, {"a": [10**15]}), (None, None)],
     [{"a": ["1"]}]),
    (list[Annotated[Iterable[int], Field(min_length=1)]], None, [([[1.0]], [[1]])], [[[]], [["1"]]]),
    (tuple[Container[date], Sequence[Iterable[int]]], None,
     [([["2024-01-01"], [[1]]], ([date(2024, 1, 1)], [[1]]))], [[["x"], []]]),
    (Hashable, {"type": ["string", "number", "boolean", "null"]}, [(1, 1)], [[], {}]),
    (dict[Hashable, int], None, [({"a": 1}, {"a": 1})], []),
    (Secret[int], {**INT, "writeOnly": True}, [(3, Secret(3))], ["3"]),
    (Sequence[Secret[date]], None, [(["2024-01-01"], [Secret(date(2024, 1, 1))])], [["x"]]),
    (Alias, {"$ref": "#/$defs/Alias"}, [(1, Alias.A), (2, Alias.C)], [3]),
    (Literal[Level.LOW, 1, "a"], {"enum": [1, "a"]}, [("a", "a")], [2]),
    (Collection[date], None, [(["2024-01-01"], [date(2024, 1, 1)])], [["x"]]),
    (collections.deque[int], None, [([1], collections.deque([1]))], [["1"]]),
    (collections.Counter[str], None, [({"a": 1}, collections.Counter(a=1))], [{"a": "1"}]),
    (Pair, None, [([1], Pair(1)), ([1, "b"], Pair(1, "b"))], [[], [1, 2], [1, "b", 3]]),
    (Annotated[int, Field(strict=True)], INT, [(3.0, 3)], ["3"]),
    (Annotated[int, Field(multiple_of=3, gt=0)], None, [(6.0, 6)], [0, 4]),
    (Annotated[str, StringConstraints(strip_whitespace=True, min_length=2)], None,
     [(" ab ", "ab"), ("a b", "a b")], [" a ", "", "  "]),
    (Numbers, None, [([1.0], [1])], [["x"]]),
]  # fmt: skip


@each_row(("hint", "schema", "good", "bad"), ROWS, ids=named)
def test_rows(hint: Any, schema: Any, good: list[tuple[Any, Any]], bad: list[Any]) -> None:
    derived = derive_input([Parameter("x", hint)])
    properties: Any = derived.schema["properties"]
    if schema is not None:
        assert properties["x"] == schema
    validator = compile_validator(derived.schema)
    convert = derived.converters.get("x", lambda plain: plain)
    for value, typed in good:
        assert validator.is_valid({"x": value}), value
        made = convert(value)
        assert made == typed
        assert type(made) is type(typed)
    assert [value for value in bad if validator.is_valid({"x": value})] == []


@each_row(
    ("hint", "text"),
    [
        (set[list[int]], "a set of values that cannot be hashed"),
        (set[dict[str, int]], "a set of values that cannot be hashed"),
        (set[tuple[int, list[int]]], "a set of values that cannot be hashed"),
        (set[Hidden], "a set of values that cannot be hashed"),
        (list[set[set[int]]], "a set of values that cannot be hashed"),
        (Pairs, "an Enum of values that JSON does not have"),
        (Days, "an Enum of values that JSON does not have"),
        (Literal[b"x"], "a Literal of values that JSON does not have"),
        (Literal[Mixed.ONE], "use the Enum"),
        (dict[tuple[int, int], int], "from JSON property names"),
        (dict[Literal[1, 2], int], "from JSON property names"),
        (dict[None, int], "from JSON property names"),
        (ByPath, "AliasPath"),
        (tuple[int, *tuple[str, ...]], "an unpacked tuple"),
    ],
    ids=named,
)
def test_what_cannot_be_said_names_the_parameter(hint: Any, text: str) -> None:
    with pytest.raises(DefinitionError, match=text) as caught:
        derive_input([Parameter("fine", int), Parameter("bad", hint)])
    assert "parameter 'bad'" in str(caught.value)


def test_a_constructor_is_asked_for_what_it_takes_and_shows_what_it_has() -> None:
    given: Any = derive_input([Parameter("x", Hidden)]).schema["$defs"]
    shown: Any = derive_output(Hidden)
    assert list(given["Hidden"]["properties"]) == ["n", "seed"]
    assert list(shown["properties"]) == ["n", "made"]


RESULTS: list[tuple[Any, Any]] = [
    (datetime, "2024-01-01T00:00:00"), (datetime, "2024-01-01T00:00:00.5+00:00"),
    (time, "07:30:00"), (timedelta, "-P1DT0.5S"), (Decimal, "1E+3"), (Decimal, "NaN"),
    (dict[int, str], {"1": "a"}), (dict[datetime, int], {"2024-01-01T00:00:00": 1}),
    (Pairs, [1, 2]), (set[Pair], [[1, "x"]]),
    (list[Hashable], [1]), (Secret[int], "**********"), (Alias, 2),
    (HttpUrl, "http://a/|"), (Hidden, {"n": 1, "made": 1}),
]  # fmt: skip


@each_row(("hint", "value"), RESULTS, ids=str)
def test_results_are_described_loosely(hint: Any, value: Any) -> None:
    schema = derive_output(hint)
    assert schema is not None
    assert compile_validator(schema).is_valid(value)


def test_the_description_of_a_result() -> None:
    assert derive_output(int, "How many.") == {**INT, "description": "How many."}
    assert derive_output(Any, "What it is.") is None
    described = Annotated[int, Field(description="By the field.")]
    assert derive_output(described, "By the docstring.") == {**INT, "description": "By the field."}


def test_a_member_is_listed_once() -> None:
    schema: Any = derive_input([Parameter("x", Alias)]).schema
    assert schema["$defs"]["Alias"]["enum"] == [1, 2]
    assert (derive_output(Alias) or {})["enum"] == [1, 2]


def test_a_property_has_no_title_and_an_item_of_a_tuple_has_its_name() -> None:
    schema: Any = derive_input([Parameter("x", Pair), Parameter("y", Hidden)]).schema
    assert [item["title"] for item in schema["$defs"]["Pair"]["prefixItems"]] == ["A", "B"]
    assert not [p for p in schema["$defs"]["Hidden"]["properties"].values() if "title" in p]
