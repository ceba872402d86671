"""A default fits its hint or is read by it; a schema shows those that it accepts itself."""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import count
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from named import named
from pydantic import (
    AfterValidator,
    AliasChoices,
    AnyUrl,
    Base64Bytes,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    PastDate,
    RootModel,
    Secret,
    SecretStr,
    field_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from rows import each_row
from typing_extensions import TypedDict

from toolcrib import ALL, Catalog, Hydrated, Rejected, ToolCall, hydrate, tool
from toolcrib.errors import DefinitionError
from toolcrib.schema import Parameter, compile_validator, derive_input
from toolcrib.schema.derive import NO_DEFAULT, Factory, derive_object
from toolcrib.schema.derive.defaults import can_be_shown, steady_json
from toolcrib.tools.component import tool_of

T = TypeVar("T")


class Login(BaseModel):
    user: str
    password: SecretStr


Count = Annotated[int, Field(ge=1, le=9)]
HIDDEN: list[tuple[Any, Any]] = [
    (int, None), (str, None), (Count, None),
    (float, math.nan), (float, -math.inf), (list[float], [1.0, math.inf]), (int, 2**70),
    (list[int], None),
    (datetime, datetime(2024, 1, 1)),  # noqa: DTZ001  the schema asks for an offset
    (Decimal, Decimal("1E+3")), (Any, object()), (bytes, b"\xff"), (str, "\ud800"),
    (set[float], {math.nan, 1.0}), (SecretStr, SecretStr("x")), (SecretStr, "x"),
    (Secret[int], Secret(5)), (list[SecretStr], [SecretStr("x")]),
    (Login, Login(user="u", password=SecretStr("x"))),
]  # fmt: skip


@each_row(("hint", "default"), HIDDEN, ids=named)
def test_what_its_own_schema_refuses_is_not_shown(hint: Any, default: Any) -> None:
    schema: Any = derive_input([Parameter("x", hint, default)]).schema
    assert "default" not in schema["properties"]["x"]
    assert "required" not in schema
    compile_validator(schema)


SHOWN: list[tuple[Any, Any, Any]] = [
    (int, 3, 3), (float, 1, 1), (float, 0.5, 0.5), (str, "é", "é"), (bool, True, True),
    (int | None, None, None), (str | list[int], "a", "a"), (list[int], [], []), (list, [1], [1]),
    (Count, 9, 9), (dict[str, int], {"a": 1}, {"a": 1}), (Any, None, None), (Any, {"a": 1}, {"a": 1}),
    (datetime, datetime(2024, 1, 1, tzinfo=UTC), "2024-01-01T00:00:00Z"), (Decimal, Decimal(5), "5"),
    (SecretStr | None, None, None), (list[SecretStr], [], []), (int, 3.0, 3),
    (dict[date, int], {date(2024, 1, 1): 1}, {"2024-01-01": 1}), (Login | None, None, None),
]  # fmt: skip


@each_row(("hint", "default", "shown"), SHOWN, ids=named)
def test_what_it_accepts_is_shown(hint: Any, default: Any, shown: Any) -> None:
    schema: Any = derive_input([Parameter("x", hint, default)]).schema
    assert schema["properties"]["x"]["default"] == shown
    assert compile_validator(schema).is_valid({"x": shown})


class Careless(BaseModel):
    count: int = None  # type: ignore[assignment]
    ratio: float = math.nan
    when: datetime = datetime(2024, 1, 1)  # noqa: DTZ001  likewise
    next: Careless = None  # type: ignore[assignment]
    previous: Careless | None = None
    large: int = 2**70
    size: Annotated[int, Field(gt=0)] = None  # type: ignore[assignment]
    good: set[str] = {"b", "a"}


@dataclass
class AlsoCareless:
    count: int = None  # type: ignore[assignment]
    size: Annotated[int, Field(gt=0)] = None  # type: ignore[assignment]
    good: int = 1


@pytest.mark.parametrize(
    ("hint", "shown"),
    [(Careless, {"previous": None, "good": ["a", "b"]}), (AlsoCareless, {"good": 1})],
)
def test_the_same_holds_for_the_fields_of_a_class(hint: Any, shown: dict[str, Any]) -> None:
    schema: Any = derive_object(hint).schema
    properties = schema["properties"]
    assert {n: p["default"] for n, p in properties.items() if "default" in p} == shown
    assert "required" not in schema
    compile_validator(schema)


def test_a_default_that_is_not_shown_takes_effect() -> None:
    @tool(visible=ALL)
    def look(depth: int = None, since: date = None) -> str:  # type: ignore[assignment]  # noqa: RUF013
        """Look."""
        return f"{depth} {since}"

    catalog = Catalog([look])
    left_out = hydrate(ToolCall("c", "look", "{}"), catalog)
    assert isinstance(left_out, Hydrated)
    assert left_out.arguments == {"depth": None, "since": None}
    assert left_out.defaults == ("/depth", "/since")
    assert left_out.provenance.parsed == {}
    assert isinstance(hydrate(ToolCall("c", "look", '{"depth": null}'), catalog), Rejected)


class Color(Enum):
    RED = "red"


class Unset(Enum):
    UNSET = "unset"


class Row(TypedDict):
    day: date


class Page(BaseModel):
    size: int = 10


class Point(NamedTuple):
    x: int
    y: int = 0


class Connection:
    pass


def upper(text: str) -> str:
    return text.upper()


def words(text: str) -> list[str]:
    return text.split()


Words = Annotated[str, AfterValidator(words)]


CONNECTION, SENTINEL = Connection(), object()
REFUSED: list[tuple[Any, Any]] = [
    (int, "x"), (int, "1"), (int, 1.5), (int, True), (str, 5), (bool, 1), (bool, "true"),
    (float, "nan"), (list[int], ["a"]), (list[int], "a"), (dict[str, int], {"a": "b"}),
    (Literal["a"], "b"), (Literal[1], True), (Count, 0), (Count, 10), (int | str, 1.5),
    (Annotated[str, Field(min_length=2)], "a"), (list[Login] | None, [{"user": "x"}]),
    (date, "yesterday"), (date, 5), (Color, "blue"), (Path, 5), (int, math.nan), (str, b"\xff"),
    (Row, {"day": "x"}), (int, Path("a")), (str, SecretStr("x")), (Page, {"sise": 5}), (Point, ["x"]),
    (float, Decimal("1.5")), (Json[list[int]], "[true]"),
    (Json[list[int]], [True]), (list[Page], [{"size": "5"}]),
]  # fmt: skip


@each_row(("hint", "default"), REFUSED, ids=named)
def test_what_does_not_fit_its_hint_is_refused(hint: Any, default: Any) -> None:
    with pytest.raises(DefinitionError, match=r"parameter 'x': its default .* does not fit"):
        derive_input([Parameter("y", int), Parameter("x", hint, default)])


KEPT: list[tuple[Any, Any, Any]] = [
    (int, 3, 3), (float, 1, 1), (str, "a", "a"), (list[int], [1], [1]), (int, None, None),
    (Count, None, None), (Color, Color.RED, "red"), (date, date(2024, 1, 2), "2024-01-02"),
    (Any, [1], [1]), (set[str], {"b", "a"}, ["a", "b"]), (Login | None, None, None),
    (Annotated[str, AfterValidator(upper)], "a", "a"), (PastDate, date(9999, 1, 1), "9999-01-01"),
    (PurePosixPath, PurePosixPath("a"), "a"), (ZoneInfo, ZoneInfo("UTC"), "UTC"),
    (Words, "a b", "a b"), (Page, Page(size=5), {"size": 5}),
    (Json[list[int]], [1], [1]), (Point, Point(1), [1, 0]),
]  # fmt: skip
READ: list[tuple[Any, Any, Any, Any]] = [
    (date, "2024-01-02", date(2024, 1, 2), "2024-01-02"), (Color, "red", Color.RED, "red"),
    (Path, "a", Path("a"), "a"), (Decimal, "1.50", Decimal("1.50"), "1.50"),
    (list[int], (), [], []), (tuple[int, ...], [1], (1,), [1]), (int, 3.0, 3, 3),
    (Row, {"day": "2024-01-02"}, {"day": date(2024, 1, 2)}, {"day": "2024-01-02"}),
    (Page, {"size": 5}, Page(size=5), {"size": 5}), (list[Page], [{}], [Page()], [{"size": 10}]),
    (dict[str, Page | None], {"a": {}}, {"a": Page()}, {"a": {"size": 10}}),
    (RootModel[list[int]], [1], RootModel[list[int]]([1]), [1]), (Point, (1, 2), Point(1, 2), [1, 2]),
    (Json[list[int]], "[1]", [1], [1]), (re.Pattern, "a+", re.compile("a+"), "a+"),
]  # fmt: skip
NOT_JSON: list[tuple[Any, Any, str]] = [
    (int, SENTINEL, "object"), (int, CONNECTION, "Connection"), (Any, CONNECTION, "Connection"),
    (str, upper, "function"), (int, Unset.UNSET, "Unset"), (float, math.inf, "float"),
    (str, Connection, "type"), (SecretStr, SecretStr("x"), "SecretStr"), (bytes, b"\xff", "bytes"),
    (Login, Login(user="u", password=SecretStr("x")), "Login"), (str, "\ud800", "str"),
    (deque[SecretStr], deque([SecretStr("x")]), "deque"), (Any, {SecretStr("x"): 1}, "dict"),
    (Base64Bytes, b"abcd", "bytes"), (list[Base64Bytes], [b"abcd"], "list"),
    (re.Pattern[str], re.compile("secret", re.IGNORECASE), "Pattern"),
    (datetime, datetime(1900, 1, 1, tzinfo=ZoneInfo("Europe/Amsterdam")), "datetime"),
]  # fmt: skip
"""The last ones have JSON, which their hint reads as another value."""


@each_row(("hint", "default", "shown"), KEPT, ids=named)
def test_what_fits_is_what_the_tool_gets(hint: Any, default: Any, shown: Any) -> None:
    made = derive_input([Parameter("x", hint, default)]).defaults["x"]
    assert made.value is default
    assert made.is_json
    assert made.shown == shown
    assert made.for_call().value == default


@each_row(("hint", "default", "value", "shown"), READ, ids=named)
def test_what_can_be_read_is_read_by_the_hint(
    hint: Any, default: Any, value: Any, shown: Any
) -> None:
    made = derive_input([Parameter("x", hint, default)]).defaults["x"]
    assert made.value == value
    assert type(made.value) is type(value)
    assert made.is_json
    assert made.shown == shown


@each_row(("hint", "default", "kind"), NOT_JSON, ids=named)
def test_what_is_no_json_is_shown_by_its_type(hint: Any, default: Any, kind: str) -> None:
    made = derive_input([Parameter("x", hint, default)]).defaults["x"]
    assert made.value is default
    assert not made.is_json
    assert made.shown == {"default": kind}
    own, taken_apart = made.for_call().value, (list, dict, deque, Login)
    assert type(own) is type(default)
    assert own == default
    assert (own is default) is not isinstance(default, taken_apart)


@dataclass
class Named:
    cents: Annotated[int, Field(alias="amount")] = 1


@pydantic_dataclass
class NamedToo:
    cents: int = Field(1, alias="amount")


class Chosen(BaseModel):
    cents: int = Field(1, validation_alias=AliasChoices("amount", "price"))


class ByName(BaseModel):
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=False)

    amount: int = Field(1, alias="cents")


CHOSEN, BY_NAME = Chosen.model_validate({"amount": 9}), ByName.model_validate({"amount": 9})


class Entry(TypedDict):
    cents: Annotated[int, Field(alias="amount")]


class Pair(NamedTuple):
    one: int
    two: int = 2


Price = Annotated[Decimal, Field(ge=0)]


class Costs(BaseModel):
    price: Price = Decimal("1.10")
    rates: dict[str, Price] = {"a": Decimal("2.50")}
    free: Decimal = Decimal("3.30")
    long: Price = Decimal("0.1234567890123456789")


COSTS = {"price": 1.1, "rates": {"a": 2.5}, "free": "3.30", "long": "0.1234567890123456789"}


class Pairs(BaseModel):
    pair: Pair = Pair(9)
    blob: bytes = b"\xff"


@each_row(
    ("hint", "default", "value", "shown"),
    [
        (Named, Named(9), Named(9), {"amount": 9}),
        (NamedToo, NamedToo(amount=9), NamedToo(amount=9), {"amount": 9}),
        (list[Chosen], [CHOSEN], [CHOSEN], [{"amount": 9}]),
        (dict[str, Chosen] | None, {"a": CHOSEN}, {"a": CHOSEN}, {"a": {"amount": 9}}),
        (ByName, BY_NAME, BY_NAME, {"amount": 9}),
        (Entry, {"amount": 9}, {"cents": 9}, {"amount": 9}),
        (Pairs, Pairs(blob=b""), Pairs(blob=b""), {"pair": [9, 2], "blob": ""}),
        (Price, Decimal("1.10"), Decimal("1.10"), 1.1),
        (Price, Decimal("100.00"), Decimal(100), 100),
        (Price | None, Decimal("2.50"), Decimal("2.5"), 2.5),
        (list[Price], [Decimal("2.50")], [Decimal("2.5")], [2.5]),
        (Annotated[Fraction, Field(ge=0)], Fraction(1, 2), Fraction(1, 2), 0.5),
        (Decimal, Decimal("3.30"), Decimal("3.30"), "3.30"),
    ],
    ids=named,
)  # fmt: skip
def test_a_default_is_shown_as_it_would_be_sent(
    hint: Any, default: Any, value: Any, shown: Any
) -> None:
    """A policy finds a default under the one name that the schema has."""
    made = derive_input([Parameter("x", hint, default)])
    assert made.defaults["x"].value == value
    assert made.defaults["x"].shown == shown
    properties: Any = made.schema["properties"]
    assert properties["x"]["default"] == shown
    factory = derive_input([Parameter("x", hint, Factory(lambda: value))])
    assert factory.defaults["x"].for_call("x", None, factory.converters["x"]).shown == shown


@each_row(
    ("hint", "shown"),
    [
        (ByName, {"amount": 1}),
        (Pairs, {"pair": [9, 2], "blob": {"default": "bytes"}}),
        (Costs, COSTS),
    ],
)
def test_so_is_the_default_of_a_field(hint: Any, shown: Any) -> None:
    def take(x: Any) -> int:
        """Take it."""
        return 1

    take.__annotations__["x"] = hint
    hydrated = hydrate(ToolCall("1", "take", '{"x": {}}'), Catalog([tool(take, visible=ALL)]))
    assert isinstance(hydrated, Hydrated)
    assert hydrated.arguments == {"x": shown}


def test_no_call_shares_the_default_of_another() -> None:
    made = derive_input([Parameter("x", list[Row], [{"day": date(2024, 1, 2)}])]).defaults["x"]
    first = made.for_call().value
    first[0]["day"] = None
    first.append(1)
    assert made.for_call().value == [{"day": date(2024, 1, 2)}]
    shown: Any = made.shown
    shown.clear()
    assert made.shown == [{"day": "2024-01-02"}]


def test_a_factory_makes_one_default_for_each_call() -> None:
    numbers = count(1)
    made = derive_input([Parameter("x", int, Factory(lambda: next(numbers)))]).defaults["x"]
    assert not made.is_json
    assert [made.for_call().value, made.for_call().value] == [1, 2]
    third = made.for_call()
    assert (third.is_json, third.shown) == (True, 3)


class Wrong(BaseModel):
    fine: date = "2024-01-02"  # type: ignore[assignment]
    count: int = "x"  # type: ignore[assignment]


@dataclass
class AlsoWrong:
    rows: list[Row]
    color: Color = "blue"  # type: ignore[assignment]


class Above(BaseModel):
    rows: dict[str, Wrong | None] = {}


class Below(NamedTuple):
    size: Count = 0


class Knows(BaseModel):
    """Its validators need the other fields, and never ran on a default."""

    low: int = 0
    high: int = 0
    name: str = ""

    @field_validator("high")
    @classmethod
    def above(cls, value: int, info: Any) -> int:
        assert value > info.data["low"]
        return value

    @field_validator("name")
    @classmethod
    def there(cls, value: str) -> str:
        if not value:
            raise ValueError("empty")
        return value


@pytest.mark.parametrize(
    ("hint", "field"), [(Wrong, "count"), (AlsoWrong, "color"), (Above, "count"), (Below, "size")]
)
def test_the_fields_of_a_class_have_defaults_that_fit(hint: Any, field: str) -> None:
    said = rf"its field '{field}': its default .* does not fit"
    for nested in (hint, list[hint], hint | None):
        with pytest.raises(DefinitionError, match=rf"parameter 'x': {said}"):
            derive_input([Parameter("x", nested)])
    with pytest.raises(DefinitionError, match=rf"the arguments: {said}"):
        derive_object(hint)


class Grade(Enum):
    GOOD = "good"


@dataclass
class Dated:
    day: date = "2026-01-31"  # type: ignore[assignment]


class DatedModel(BaseModel):
    day: date = "2026-01-31"  # type: ignore[assignment]


class DatedTuple(NamedTuple):
    day: date = "2026-01-31"  # type: ignore[assignment]


class DatedInside(BaseModel):
    dates: dict[str, DatedModel] | None = None


class DatedByItself(BaseModel):  # strictly read, a text is no date: each call would be refused
    day: date = Field("2026-01-31", validate_default=True)


@dataclass
class Graded:
    grade: Grade = "good"  # type: ignore[assignment]


@dataclass
class Placed:
    path: Path = "."  # type: ignore[assignment]


class Linked(BaseModel):
    url: AnyUrl = "https://example.org"  # type: ignore[assignment]


class Priced(BaseModel):
    price: Decimal = 0  # type: ignore[assignment]


class Texts(BaseModel):
    """They are read from a text, and so their defaults are what it would hold."""

    numbers: Json[list[int]] = [1]
    anything: Json[Any] = {"a": 1}
    part: complex = 0


class Pages(BaseModel, Generic[T]):
    items: list[T] = []


class PagesOfOne(BaseModel):
    pages: Pages[int] = Pages()


class Proxied(BaseModel):
    limits: Mapping[str, int] = MappingProxyType({})


class Paged(BaseModel):
    page: Page = {"size": 5}  # type: ignore[assignment]


class Located(BaseModel):
    points: list[Point] = [(1, 2)]  # type: ignore[list-item]


class PagedByItself(BaseModel):
    page: Page = Field({"size": 5}, validate_default=True)
    tags: Words = "a b"


UNREAD: list[tuple[Any, str, str]] = [
    (Dated, "day", r"date(…)"), (DatedModel, "day", r"date(…)"), (DatedTuple, "day", r"date(…)"),
    (list[Dated], "day", r"date(…)"), (DatedInside, "day", r"date(…)"),
    (DatedByItself, "day", r"date(…)"), (Graded, "grade", "Grade.GOOD"), (Placed, "path", "Path(…)"),
    (Linked, "url", "AnyUrl(…)"), (Priced, "price", "Decimal(…)"),
    (Paged, "page", "Page(…)"), (list[Located], "points", "list(…)"),
]  # fmt: skip


@each_row(("hint", "field", "write"), UNREAD, ids=named)
def test_a_field_has_no_default_that_would_have_to_be_read(
    hint: Any, field: str, write: str
) -> None:
    said = rf"'x': its field '{field}': .* write the default as \w*{re.escape(write)}$"
    with pytest.raises(DefinitionError, match=said):
        derive_input([Parameter("x", hint)])


@dataclass
class Whole:
    day: date = date(2026, 1, 31)
    until: date | None = None
    never: date = None  # type: ignore[assignment]
    ratio: float = 1
    grade: Grade = Grade.GOOD
    key: SecretStr = SecretStr("")  # noqa: RUF009  immutable


class ReadByItself(BaseModel):
    model_config = ConfigDict(validate_default=True)
    url: AnyUrl = "https://example.org"  # type: ignore[assignment]


async def test_a_tool_gets_field_defaults_of_their_hints() -> None:
    got: list[Any] = []

    @tool(visible=ALL)
    def keep(whole: Whole, read: ReadByItself, url: AnyUrl = "https://example.org") -> None:  # type: ignore[assignment]
        """Keep what was given."""
        got.extend((whole, read.url, url))

    hydrated = hydrate(ToolCall("1", "keep", '{"whole": {}, "read": {}}'), keep)
    assert isinstance(hydrated, Hydrated)
    await hydrated.building.another().run()
    url = AnyUrl("https://example.org")
    assert got == [Whole(), url, url]


def test_a_validator_of_the_author_does_not_judge_defaults() -> None:
    derive_object(Knows)
    derive_object(PagedByItself)
    derive_input([Parameter("x", Knows, Knows())])


@pytest.mark.parametrize("hint", [Texts, PagesOfOne])
def test_a_field_has_a_default_of_what_it_holds(hint: Any) -> None:
    derive_object(hint)


def test_a_field_has_no_default_that_no_call_can_copy() -> None:
    with pytest.raises(DefinitionError, match=r"'limits': .* cannot be copied for each call"):
        derive_object(Proxied)


def test_a_tool_says_which_default_is_wrong() -> None:
    with pytest.raises(DefinitionError, match=r"tool 'pay': parameter 'a': its default \(a str\)"):

        @tool(visible=ALL)
        def pay(a: int = "x") -> int:  # type: ignore[assignment]
            """Pay."""
            return a


@pytest.mark.parametrize("given", [None, {"type": "object", "properties": {"a": {}, "b": {}}}])
def test_a_tool_has_its_defaults(given: Any) -> None:
    @tool(visible=ALL, input_schema=given)
    def pay(a: int = 5, b: date = "2024-01-02") -> int:  # type: ignore[assignment]
        """Pay."""
        return a

    assert pay.defaults["a"].value == 5
    assert pay.defaults["b"].value == date(2024, 1, 2)
    assert pay.renamed("other").defaults == pay.defaults


def test_a_tool_without_a_schema_has_its_defaults() -> None:
    @tool(visible=ALL, allow_no_schema=True, no_schema_mode="full")
    def pay(a, b=5, c: Connection = CONNECTION):  # type: ignore[no-untyped-def]
        """Pay."""

    assert pay.defaults["b"].value == 5
    assert pay.defaults["c"].shown == {"default": "Connection"}


def test_the_factories_of_a_dataclass_are_those_of_its_tool() -> None:
    @tool(visible=ALL)
    @dataclass
    class Note:
        """Note something."""

        text: str
        tags: list[str] = field(default_factory=lambda: ["a"])

        async def run(self) -> str:
            return self.text

    @tool(visible=ALL)
    @pydantic_dataclass
    class Other:
        """Note something."""

        text: str
        tags: list[str] = Field(default_factory=lambda: ["a"])

        async def run(self) -> str:
            return self.text

    for made in (tool_of(Note).defaults["tags"], tool_of(Other).defaults["tags"]):
        assert made.for_call().value == ["a"]
        assert made.for_call().value is not made.for_call().value


def test_the_digest_pins_a_default_that_no_schema_shows() -> None:
    def made(default: Any, **options: Any) -> Any:
        @tool(visible=ALL, **options)
        def pay(a: int = default) -> int:
            """Pay."""
            return a

        return pay.definition

    given = {"input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    assert made(SENTINEL).digest != made(CONNECTION).digest
    assert made(SENTINEL).digest != made(None).digest
    assert made(1).digest != made(2).digest
    assert made(1, **given).digest != made(2, **given).digest
    assert made(1).defaults_json is None
    assert json.loads(made(SENTINEL).defaults_json) == {"a": {"default": "object"}}
    assert json.loads(made(1, **given).defaults_json) == {"a": 1}


def test_a_default_in_a_field_is_none_of_the_parameter() -> None:
    hint = Annotated[int, Field(5)]
    given: Any = derive_input([Parameter("x", hint, NO_DEFAULT)]).schema
    assert given["properties"]["x"] == {"type": "integer"}
    assert given["required"] == ["x"]
    nested: Any = derive_input([Parameter("x", list[Annotated[int, Field(None)]])]).schema
    assert nested["properties"]["x"]["items"] == {"type": "integer"}


def test_references_are_followed_and_unknown_ones_show_nothing() -> None:
    tree = {"type": "array", "items": {"$ref": "#/$defs/T"}}
    assert can_be_shown([[]], {"$ref": "#/$defs/T"}, {"T": tree})
    assert not can_be_shown([1], {"$ref": "#/$defs/T"}, {"T": tree})
    assert not can_be_shown([1], {"$ref": "#/$defs/T"}, {})


def test_sets_have_one_order() -> None:
    assert steady_json({"x": {3, 1, 2}, "y": ({"b", "a"},)}) == {"x": [1, 2, 3], "y": [["a", "b"]]}


class NamedLikeCore(BaseModel):
    """Its field has the name of a member of a pydantic core schema."""

    default: int = "three"  # type: ignore[assignment]


def test_a_field_is_judged_whatever_its_name() -> None:
    with pytest.raises(DefinitionError, match="its field 'default'"):
        derive_object(NamedLikeCore)


class Marked(BaseModel, frozen=True):
    order: int
    number: UUID = Field(default_factory=uuid4)


class Grouped(BaseModel, frozen=True):
    order: int
    groups: frozenset[int] = Field(default_factory=frozenset)


@dataclass(frozen=True)
class Numbered:
    order: int
    number: UUID = field(default_factory=uuid4)


@dataclass(frozen=True)
class Knot:
    kids: frozenset[Knot] = frozenset()
    number: UUID = field(default_factory=uuid4)


@dataclass(frozen=True)
class Aside:
    order: int
    number: UUID = field(default_factory=uuid4, compare=False)


@each_row(
    ("hint", "taken"),
    [
        *((set[Marked], False), (frozenset[Numbered], False), (Knot, False)),
        *((list[set[Marked]], False), (dict[str, set[tuple[Marked, int]]], False)),
        *((set[Grouped], True), (set[Aside], True), (list[Marked], True), (list[Numbered], True)),
    ],
    ids=str,
)
def test_items_of_a_set_are_not_made_anew_each_time(hint: Any, taken: bool) -> None:
    """Such an item was refused at each call, since none of the set could be told from it."""

    def take(x: Any) -> None:
        """Take."""

    take.__annotations__["x"] = hint
    if taken:
        tool(visible=ALL)(take)
        return
    with pytest.raises(DefinitionError, match=r"'number' .*may make different set items"):
        tool(visible=ALL)(take)
