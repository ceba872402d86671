"""What JSON Schema cannot say: the schema takes it, and the call ends at `instantiate`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Flag
from ipaddress import IPv4Network, IPv6Interface
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from named import named
from pydantic import (
    Base64Bytes,
    BaseModel,
    ByteSize,
    Discriminator,
    Field,
    FilePath,
    HttpUrl,
    Json,
    NaiveDatetime,
    PastDate,
    PostgresDsn,
    StringConstraints,
    Tag,
    field_validator,
)
from rows import each_row

from toolcrib import ALL, Catalog, Rejected, ToolCall, hydrate, tool
from toolcrib.schema.derive import EXCEPTIONS


class Even(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def check(cls, value: int) -> int:
        if value % 2:
            raise ValueError("odd")
        return value


@dataclass
class Positive:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError("not positive")


@dataclass
class Sign:
    text: Annotated[str, Field(pattern=r"^\W$")]


class Gaps(Flag):
    A, B, C, E, F, G, H = (1 << n for n in range(8) if n != 3)


def _kind(value: Any) -> str:
    return "none"


ByFunction = Annotated[
    Annotated[int, Tag("int")] | Annotated[str, Tag("str")], Discriminator(_kind)
]

CASES: list[tuple[str, Any, Any]] = [
    ("author's code", Even, {"n": 3}),
    ("author's code", list[Even], [{"n": 3}]),
    ("author's code", Positive, {"n": -1}),
    ("leap seconds", datetime, "2016-12-31T23:59:60Z"),
    ("year 0", datetime, "0000-01-01T00:00:00Z"),
    ("year 0", date, "0000-02-03"),
    ("year 0", NaiveDatetime, "0000-02-03T00:00:00"),
    ("impossible dates", NaiveDatetime, "2024-02-30T00:00:00"),
    ("present", PastDate, "9999-01-01"),
    ("files", FilePath, "/no/such/file"),
    ("addresses", HttpUrl, "http://a:99999/"),
    ("addresses", PostgresDsn, "postgres://:x"),
    ("networks", IPv4Network, "10.0.0.1/8"),
    ("networks", IPv6Interface, "x"),
    ("encoded", Json[int], "{"),
    ("encoded", Base64Bytes, "a"),
    ("encoded", ByteSize, "1 XX"),
    ("regular expressions", re.Pattern, "(?<a>x)"),
    ("changed text",
     Annotated[str, StringConstraints(strip_whitespace=True, pattern="^.a")], " a"),
    ("other letters", Sign, {"text": "é"}),
    ("equal values", Annotated[set[datetime], Field(min_length=2)],
     ["2024-01-01T00:00:00Z", "2024-01-01T00:00:00+00:00"]),
    ("equal values", Annotated[set[bool | int], Field(min_length=2)], [True, 1]),
    ("keys", dict[Annotated[int, Field(gt=5)], int], {"1": 1}),
    ("bytes", Annotated[bytes, Field(max_length=2)], "éé"),
    ("tags", ByFunction, 1),
    ("flags", Gaps, 1 << 3),
    ("digits", Annotated[Decimal, Field(gt=1, max_digits=3)], 1000),
    ("digits", Annotated[Decimal, Field(ge=0, max_digits=1, decimal_places=1)], 0),
    ("time zones", ZoneInfo, "Nowhere/Land"),
    ("large numbers", Annotated[float, Field(lt=2**60)], 2**60 - 64),
    ("large numbers", Annotated[int, Field(multiple_of=7)], 7.024089268202713e16),
    ("large numbers", int, 1e300),
    ("large numbers", int, 2.0**53 + 2),
    ("large numbers", list[int], [-1e300]),
    ("large numbers", dict[str, Iterable[int]] | None, {"a": [1e300]}),
    ("large numbers", Annotated[Decimal, Field(multiple_of=Decimal("0.05"))], 5 * 10**26),  # type: ignore[call-overload]
]  # fmt: skip


@each_row(("name", "hint", "value"), CASES, ids=named)
def test_each_exception_is_refused_at_instantiate(name: str, hint: Any, value: Any) -> None:
    def take(x: Any) -> None:
        """Take."""

    take.__annotations__ = {"x": hint, "return": None}
    catalog = Catalog([tool(visible=ALL)(take)])
    result = hydrate(ToolCall("c", "take", json.dumps({"x": value})), catalog)
    assert isinstance(result, Rejected)
    assert [(e.code, e.stage) for e in result.errors] == [("invalid_arguments", "instantiate")]
    assert name in EXCEPTIONS


def test_all_that_is_listed_is_shown() -> None:
    assert {name for name, _, _ in CASES} == set(EXCEPTIONS)


@each_row(
    ("hint", "value"),
    [(datetime, "2016-06-01T12:00:60Z"), (datetime, "2024-01-01T00:00:00"), (date, "2023-02-29"),
     (time, "24:00:00"), (time, "23:59:60"), (Decimal, "NaN"), (Decimal, "1e9"),
     (Literal["a"], "b")],
)  # fmt: skip
def test_what_the_schema_itself_refuses(hint: Any, value: Any) -> None:
    def take(x: Any) -> None:
        """Take."""

    take.__annotations__ = {"x": hint}
    catalog = Catalog([tool(visible=ALL)(take)])
    result = hydrate(ToolCall("c", "take", json.dumps({"x": value})), catalog)
    assert [e.stage for e in result.errors] == ["validate"]
