"""What is a result, and what is not."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import date
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr
from rows import each_row
from samples import sample

from toolcrib import ALL, ErrorCode, tool
from toolcrib.runner import output
from toolcrib.runner.output import check_output

CANARY = "canary-0b1d"


class Model(BaseModel):
    day: date
    key: SecretStr = SecretStr(CANARY)


class Struct(msgspec.Struct):
    day: date


class Around(msgspec.Struct):
    inner: Any


@dataclasses.dataclass
class Plain:
    parts: tuple[int, ...]


@tool(visible=ALL)
async def anything() -> Any:
    """Give anything."""


@tool(visible=ALL)
async def number() -> int:
    """Give a number."""
    return 1


async def parts() -> AsyncIterator[int]:
    yield 1


def items() -> Iterator[int]:
    yield 1


class Unwilling:
    def __iter__(self) -> Iterator[int]:
        raise ValueError(CANARY)


def around() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@each_row(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (2**70, 2**70),
        (1.0, 1.0),
        ("ä", "ä"),
        (Model(day=date(2026, 11, 22)), {"day": "2026-11-22", "key": "**********"}),
        (Struct(date(2026, 11, 22)), {"day": "2026-11-22"}),
        (
            {"a": [Around([Model(day=date(2026, 11, 22)), Around(Struct(date(2026, 11, 22)))])]},
            {
                "a": [
                    {
                        "inner": [
                            {"day": "2026-11-22", "key": "**********"},
                            {"inner": {"day": "2026-11-22"}},
                        ]
                    }
                ]
            },
        ),
        (Plain((1, 2)), {"parts": [1, 2]}),
        ({"a": {1}}, {"a": [1]}),
    ],
    ids=repr,
)
def test_what_is_a_result(value: Any, plain: Any) -> None:
    assert check_output(anything, value) == (plain, None)


@each_row(
    ("value", "why"),
    [
        (items(), "an iterator"),
        (parts(), "an iterator"),
        (float("nan"), "not JSON"),
        ({"a": [float("inf")]}, "not JSON"),
        (object(), "not JSON"),
        (Around(object()), "not JSON"),
        (Around(around()), "not JSON"),
        (Around({"a": float("nan")}), "not JSON"),
        ({"a": Unwilling()}, "not JSON"),
        ("\ud800", "not JSON"),
        (around(), "not JSON"),
        ("x" * 99, "larger than 100 bytes"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_none(value: Any, why: str) -> None:
    plain, unusable = check_output(anything, value, 100)
    assert plain is None
    assert unusable is not None
    error = unusable.error
    assert error.code is ErrorCode.INVALID_OUTPUT
    assert why in error.message
    assert CANARY not in error.message


def test_the_largest_result() -> None:
    assert check_output(anything, "x" * 98, 100) == ("x" * 98, None)


def test_a_result_of_another_kind_than_promised() -> None:
    plain, unusable = check_output(number, CANARY)
    assert plain is None
    assert unusable is not None
    assert unusable.error.message.endswith("cannot be used: the top: expected integer, got string.")


class Colour(enum.StrEnum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Agreeable(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=4)
    | st.sampled_from([Colour.RED, Number.ONE, Agreeable(7), date(2024, 2, 29), Plain((1,)), -0.0])
    | st.builds(lambda: uuid.UUID(int=7))
)
_KEYS = st.text(max_size=3) | st.sampled_from([1, "1", None, True, Colour.RED, 1.5])
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(_KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=sample(1_500), deadline=None)
@given(_VALUES)
@example([float("nan")])
@example({"a": (1, 2)})
@example([2**64])
@example({1: "a", "1": "b"})
@example("\ud800")
def test_what_is_json_already_is_read_as_all_else(value: Any) -> None:
    quick = check_output(anything, value)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(output, "_as_it_is", lambda value, max_bytes: None)
        assert repr(check_output(anything, value)) == repr(quick)


def test_a_result_is_a_copy() -> None:
    value = {"items": [1, {"a": "b"}]}
    result, error = check_output(anything, value)
    assert (result, error) == (value, None)
    assert result is not value
    assert isinstance(result, dict)
    assert result["items"] is not value["items"]
