"""What is a result, and what is not."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator
from datetime import date
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, SecretStr

from toolcrib import ALL, ErrorCode, tool
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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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
    plain, error = check_output(anything, value, 100)
    assert plain is None
    assert error is not None
    assert error.code is ErrorCode.INVALID_OUTPUT
    assert why in error.message
    assert CANARY not in error.message


def test_the_largest_result() -> None:
    assert check_output(anything, "x" * 98, 100) == ("x" * 98, None)


def test_a_result_of_another_kind_than_promised() -> None:
    plain, error = check_output(number, CANARY)
    assert plain is None
    assert error is not None
    assert error.message.endswith("cannot be used: the top: expected integer, got string.")
