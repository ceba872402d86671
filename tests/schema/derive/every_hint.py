"""Hints of every kind, JSON for them and for others, and how a hint reads it."""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cache
from ipaddress import IPv4Address, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
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

from toolcrib.schema import Parameter, compile_validator, derive_input
from toolcrib.schema.derive import converter_for
from toolcrib.schema.derive.roundtrip import Differs


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
