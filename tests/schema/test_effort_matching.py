"""Texts and patterns: the work of matching is counted before it is done."""

from __future__ import annotations

from typing import Any

import pytest
from rows import each_row

from toolcrib.schema import compile_validator
from toolcrib.schema.effort import (
    LARGEST_PATTERN,
    MAX_MATCHING,
    comparable,
    matchable,
    pattern_bytes,
)
from toolcrib.schema.guard import inspect_schema

UNLUCKY = "[ab]*a[ab]{10000}c"  # 14 seconds over 200,000 letters
LONG = "ab" * 100_000


def of(pattern: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"pattern": pattern, **more}}}


def often(times: int, **schema: Any) -> dict[str, Any]:
    """One subschema that a value meets so many times."""
    return {"allOf": [{"$ref": "#/$defs/p"}] * times, "$defs": {"p": schema}}


MATCHING: dict[str, tuple[dict[str, Any], Any, bool]] = {
    "a large pattern, a long text": (of(UNLUCKY), {"a": LONG}, False),
    "a long key": ({"patternProperties": {UNLUCKY: {}}}, {LONG: 1}, False),
    "the name of a property": ({"propertyNames": {"pattern": UNLUCKY}}, {LONG: 1}, False),
    "in a list": ({"items": {"pattern": UNLUCKY}}, ["ab" * 1000] * 100, False),
    "often": (often(5000, **of("^[ab]{1,1000}$")), {"a": "ab" * 5000}, False),
    "behind recursion": (
        {"$defs": {"t": {"pattern": UNLUCKY, "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"},
        [[[LONG]]],
        False,
    ),
    "too many to count": (
        {"items": {"allOf": [{"pattern": f"^{n}"} for n in range(300)]}},
        ["x" * 100] * 5000,
        False,
    ),
    "a large pattern, a short text": (of(UNLUCKY), {"a": "ab" * 500}, True),
    "as long as the pattern takes": (of("^.{0,2000}$"), {"a": "é" * 2000}, True),
    "a long text beside it": (of("^.{1,1000}$"), {"a": "x", "content": LONG * 5}, True),
    "a small pattern": (of("^[a-z0-9_-]+$"), {"a": LONG * 5}, True),
    "many short texts": ({"items": {"pattern": r"^[\w-]{1,64}$"}}, ["x" * 50] * 20_000, True),
    "no pattern at all": ({"properties": {"a": {"maxLength": 1}}}, {"a": LONG}, True),
}


@each_row(("schema", "value", "bearable"), MATCHING.values(), ids=MATCHING)
def test_the_work_of_matching_is_counted(
    schema: dict[str, Any], value: Any, bearable: bool
) -> None:
    inspected = inspect_schema(schema)
    assert matchable(inspected, schema, value) is bearable
    if not bearable:
        validator = compile_validator(schema)
        assert not validator.is_valid(value)
        (violation,) = validator.violations(value)
        assert violation.message == "the texts are too long for the patterns of the schema"


@pytest.mark.parametrize(
    ("pattern", "least", "most"),
    [("^a$", 0, 10_000), ("^[ab]{1,1000}$", 50_000, 200_000), ("^.{1,1000}$", 900_000, 1_400_000)],
)
def test_a_pattern_is_as_large_as_the_engine_says(pattern: str, least: int, most: int) -> None:
    assert least < pattern_bytes(pattern) < most
    assert pattern_bytes("a{1000000}") == LARGEST_PATTERN
    assert MAX_MATCHING / LARGEST_PATTERN > 2400  # as many letters as its repetitions can be


OBJECTS = [{"a": n, "b": str(n)} for n in range(2_000)]
CONSTS: list[Any] = [{"const": each} for each in OBJECTS]
COMPARING: dict[str, tuple[dict[str, Any], Any, bool]] = {
    "many objects": ({"items": {"enum": OBJECTS}}, [OBJECTS[-1]] * 10_000, False),
    "many lists": ({"items": {"enum": [[n] for n in range(2_000)]}}, [[1]] * 10_000, False),
    "many constants": ({"items": {"anyOf": CONSTS}}, [OBJECTS[-1]] * 10_000, False),
    "often": (often(1000, items={"enum": OBJECTS[:100]}), [OBJECTS[1]] * 100, False),
    "few objects": ({"items": {"enum": OBJECTS[:10]}}, [OBJECTS[9]] * 10_000, True),
    "few values": ({"items": {"enum": OBJECTS}}, [OBJECTS[-1]] * 100, True),
    "many texts": ({"items": {"enum": list(map(str, range(2_000)))}}, ["1999"] * 10_000, True),
    "many values beside it": (
        {"properties": {"a": {"enum": OBJECTS}}},
        {"a": OBJECTS[-1], "b": [{}] * 10_000},
        True,
    ),
}


@each_row(("schema", "value", "bearable"), COMPARING.values(), ids=COMPARING)
def test_the_work_of_comparing_is_counted(
    schema: dict[str, Any], value: Any, bearable: bool
) -> None:
    assert comparable(inspect_schema(schema), schema, value) is bearable
    validator = compile_validator(schema)
    assert validator.is_valid(value) is bearable
    if not bearable:
        (violation,) = validator.violations(value)
        assert violation.message == (
            "the values are too many to compare with those that the schema lists"
        )
