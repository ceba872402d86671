"""A default is shown if the schema that shows it accepts it; the others take effect all the same."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from named import named
from pydantic import BaseModel, Field, Secret, SecretStr

from toolcrib import ALL, Catalog, Hydrated, Rejected, ToolCall, hydrate, tool
from toolcrib.schema import Parameter, compile_validator, derive_input
from toolcrib.schema.derive import NO_DEFAULT, derive_object
from toolcrib.schema.derive.defaults import can_be_shown, steady_json


class Login(BaseModel):
    user: str
    password: SecretStr


Count = Annotated[int, Field(ge=1, le=9)]
HIDDEN: list[tuple[Any, Any]] = [
    (int, None), (str, None), (str, 5), (bool, 1), (int, True), (int, 1.5), (int, "1"),
    (float, math.nan), (float, -math.inf), (list[float], [1.0, math.inf]), (int, 2**70),
    (list[int], ["a"]), (list[int], None), (dict[str, int], {"a": "b"}), (Literal["a"], "b"),
    (Count, 0), (Count, 10), (Annotated[str, Field(min_length=2)], "a"), (int | str, 1.5),
    (datetime, datetime(2024, 1, 1)),  # noqa: DTZ001  the schema asks for an offset
    (Decimal, Decimal("1E+3")), (Any, object()), (bytes, b"\xff"), (str, "\ud800"),
    (set[float], {math.nan, 1.0}), (SecretStr, SecretStr("x")), (SecretStr, "x"),
    (Secret[int], Secret(5)), (list[SecretStr], [SecretStr("x")]),
    (Login, Login(user="u", password=SecretStr("x"))), (list[Login] | None, [{"user": "x"}]),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "default"), HIDDEN, ids=named)
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
    (SecretStr | None, None, None), (list[SecretStr], [], []), (int, 3.0, 3.0),
    (dict[date, int], {date(2024, 1, 1): 1}, {"2024-01-01": 1}), (Login | None, None, None),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "default", "shown"), SHOWN, ids=named)
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
    size: Annotated[int, Field(gt=0)] = 0
    good: set[str] = {"b", "a"}


@dataclass
class AlsoCareless:
    count: int = None  # type: ignore[assignment]
    size: Annotated[int, Field(gt=0)] = 0
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
    left_out = hydrate(ToolCall("c", "", "look", "{}"), catalog)
    assert isinstance(left_out, Hydrated)
    assert left_out.arguments == {}
    assert isinstance(hydrate(ToolCall("c", "", "look", '{"depth": null}'), catalog), Rejected)


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
