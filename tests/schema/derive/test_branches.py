"""A union reads a value by a branch whose schema accepts it, whatever its other branches would read."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from dataclasses import InitVar, dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cache
from ipaddress import IPv4Address, IPv6Network
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import (
    AnyUrl,
    Base64Bytes,
    BaseModel,
    ByteSize,
    Field,
    IPvAnyAddress,
    Json,
    NaiveDatetime,
    SecretStr,
    StringConstraints,
    ValidationError,
)
from rows import each_row
from samples import sampled

from toolcrib import ALL, Completed, ToolCall, ToolRunner, tool
from toolcrib.schema import Parameter, compile_validator, derive_input
from toolcrib.schema.derive import converter_for
from toolcrib.schema.derive.roundtrip import Differs
from toolcrib.values.json import canonical_json


class Kind(Enum):
    A = "a"
    ONE = 1


@dataclass
class Item:
    a: int
    b: str = "x"


class Event(BaseModel):
    a: datetime
    b: int = 1


class Pair(NamedTuple):
    a: int
    b: int = 2


class Options(BaseModel):
    a: int = 1


HINTS: list[Any] = [
    str, int, float, bool, bytes, datetime, NaiveDatetime, date, time, timedelta, Decimal, Fraction,
    complex, UUID, Path, IPv4Address, IPv6Network, IPvAnyAddress, AnyUrl, ByteSize, re.Pattern,
    ZoneInfo, Base64Bytes, SecretStr, Kind, Literal["a", 1], Literal["1714"],
    Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True)],
    Annotated[str, Field(max_length=3)], list[int], list[str], list[datetime], set[int],
    frozenset[str], tuple[int, ...], tuple[int, int], deque[int], dict[str, int], dict[int, int],
    dict[float, int], dict[bool, int], dict[datetime, int], dict[str, datetime], Counter[str], Item,
    Event, Pair, Options, Json[list[int]],
]  # fmt: skip
VALUES: list[Any] = [
    "", "a", "1714", "1714.5", "20260101", "2026-01-01", "2026-01-01T00:00:00Z",
    "2026-01-01 00:00:00", "12:00", "1.5", "1e5", "NaN", "P1D", "1 day", "true", "a//b", "1/3", "1j",
    "12345678123456781234567812345678", "1.2.3.4", "::1", "HTTP://A", "1GB", "YQ==", "[1]", " A ",
    "(" * 9000, 0, 1, 1.0, 1.5, -1, 2**60, True, None, [], [1], [1, 1], [1, 2, 3], ["1714"], ["a"],
    {}, {"a": 1}, {"a": 1, "z": 2}, {"a": "1714"}, {"1": 1}, {"01": 1}, {"1.0": 1}, {"true": 1},
]  # fmt: skip


@cache
def accepts(hint: Any) -> Any:
    validator = compile_validator(derive_input([Parameter("x", hint)]).schema)
    return lambda value: validator.is_valid({"x": value})


def read(hint: Any, value: Any) -> tuple[str, str]:
    """The class of what is read and its text, or that it is refused."""
    converter = converter_for(hint)
    try:
        made = value if converter is None else converter(value)
    except (Differs, ValidationError, ValueError):
        return "refused", ""
    return type(made).__name__, repr(made)


@each_row(("one", "other"), sampled(permutations(HINTS, 2)))
def test_the_only_branch_whose_schema_accepts_a_value_reads_it(one: Any, other: Any) -> None:
    union = Union[one, other]  # noqa: UP007  of hints that are values
    for value in VALUES:
        accepting = [hint for hint in (one, other) if accepts(hint)(value)]
        if len(accepting) == 1:
            assert read(union, value) == read(accepting[0], value), canonical_json(value)[:80]


@dataclass
class Once:
    when: InitVar[datetime | str]

    def __post_init__(self, when: datetime | str) -> None:
        self.got = when


class Stripped(BaseModel, str_strip_whitespace=True):
    text: str | Options | dict[str, int]


def test_a_text_of_digits_is_no_moment_and_no_id_wherever_it_stands() -> None:
    @tool(visible=ALL)
    def keep(
        one: datetime | str,
        several: list[UUID | str] | None,
        unique: set[Decimal | str],
        given: Once,
        three: datetime | Path | str,
    ) -> list[str]:
        """Keep them."""
        return [repr(one), repr(several), repr(unique), repr(given.got), type(three).__name__]

    digits = "12345678123456781234567812345678"
    sent = {
        "one": "20260101", "several": [digits], "unique": ["1e5"], "given": {"when": "1714"},
        "three": "1714",
    }  # fmt: skip
    outcome = run(keep, sent)
    assert outcome.record.arguments == sent
    assert outcome.value[:4] == ["'20260101'", f"['{digits}']", "{'1e5'}", "'1714'"]
    assert outcome.value[4] in ("PosixPath", "WindowsPath", "str")


def test_a_class_drops_nothing_that_two_other_branches_take() -> None:
    @tool(visible=ALL)
    def keep(x: Options | dict[str, int] | dict[str, Any]) -> str:
        """Keep it."""
        return repr(x)

    assert run(keep, {"x": {"b": -5}}).value == "{'b': -5}"


def test_a_union_in_a_class_is_read_as_its_class_is_configured() -> None:
    @tool(visible=ALL)
    def keep(x: Stripped) -> str:
        """Keep it."""
        return repr(x.text)

    assert run(keep, {"x": {"text": " a "}}).value == "'a'"


def run(tool: Any, arguments: Any) -> Completed:
    call = ToolCall("1", "keep", canonical_json(arguments))
    outcome = asyncio.run(ToolRunner([tool]).exec(call))
    assert isinstance(outcome, Completed)
    return outcome
