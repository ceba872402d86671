"""Texts and patterns: the work of matching is counted before it is done."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from time import perf_counter
from typing import Any

import pytest
from rows import each_row
from samples import sampled

from toolcrib.schema import compile_validator
from toolcrib.schema.effort import (
    LARGEST_PATTERN,
    MAX_MATCHING,
    Comparing,
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
        assert (
            violation.message
            == "the strings are too long to match against the patterns of the schema"
        )


@pytest.mark.parametrize(
    ("pattern", "least", "most"),
    [("^a$", 0, 10_000), ("^[ab]{1,1000}$", 50_000, 200_000), ("^.{1,1000}$", 900_000, 1_400_000)],
)
def test_a_pattern_is_as_large_as_the_engine_says(pattern: str, least: int, most: int) -> None:
    assert least < pattern_bytes(pattern) < most
    assert pattern_bytes("a{1000000}") == LARGEST_PATTERN
    assert MAX_MATCHING / LARGEST_PATTERN > 2400  # as many letters as its repetitions can be


OBJECTS = [{"a": n, "b": str(n)} for n in range(2_000)]
FRACTIONS = [n * 1.5 for n in range(2_000)]
CONSTS: list[Any] = [{"const": each} for each in OBJECTS]
COMPARING: dict[str, tuple[dict[str, Any], Any, bool]] = {
    "many objects": ({"items": {"enum": OBJECTS}}, [OBJECTS[-1]] * 10_000, False),
    "many lists": ({"items": {"enum": [[n] for n in range(2_000)]}}, [[1]] * 10_000, False),
    "many constants": ({"items": {"anyOf": CONSTS}}, [OBJECTS[-1]] * 10_000, False),
    "often": (often(1000, items={"enum": OBJECTS[:100]}), [OBJECTS[1]] * 100, False),
    "few objects": ({"items": {"enum": OBJECTS[:10]}}, [OBJECTS[9]] * 10_000, True),
    "few values": ({"items": {"enum": OBJECTS}}, [OBJECTS[-1]] * 100, True),
    "many texts": ({"items": {"enum": list(map(str, range(2_000)))}}, ["1999"] * 10_000, True),
    "many numbers": ({"items": {"enum": FRACTIONS}}, FRACTIONS[-1:] * 2_000, False),
    "many constant numbers": (
        {"items": {"oneOf": [{"const": each} for each in FRACTIONS]}},
        FRACTIONS[-1:] * 2_000,
        False,
    ),
    "numbers among texts": (
        {"items": {"enum": [*FRACTIONS, *map(str, range(2_000))]}},
        FRACTIONS[-1:] * 2_000,
        False,
    ),
    "whole numbers sent as floats": (
        {"items": {"enum": list(range(2_000))}},
        [1_999.0] * 500,
        True,
    ),
    "tiny numbers": ({"items": {"enum": [0.5, 1.5]}}, [1e-300] * 20_000, False),
    "a tiny constant": ({"items": {"const": 1e-300}}, [0.5] * 20_000, False),
    "tiny numbers and a bound": ({"items": {"minimum": 0.5}}, [1e-300] * 20_000, False),
    "numbers in lists": (
        {"items": {"enum": [[1.5, each] for each in FRACTIONS]}},
        [[1.5, FRACTIONS[-1]]] * 2_000,
        False,
    ),
    "few numbers": ({"items": {"enum": FRACTIONS[:10]}}, FRACTIONS[9:10] * 5_000, True),
    "many bounds": (
        {"items": {"minimum": 0.5, "maximum": 99.5, "multipleOf": 0.5}},
        [1.5] * 30_000,
        True,
    ),
    "whole numbers": ({"items": {"enum": list(range(2_000))}}, [1_999] * 90_000, True),
    "many values beside numbers": (
        {"properties": {"a": {"enum": FRACTIONS}}},
        {"a": FRACTIONS[-1], "b": [[0.5]] * 20_000},
        True,
    ),
    "many values beside it": (
        {"properties": {"a": {"enum": OBJECTS}}},
        {"a": OBJECTS[-1], "b": [{}] * 10_000},
        True,
    ),
}


@each_row("name", sampled(COMPARING, part=3))
def test_the_work_of_comparing_is_counted(name: str) -> None:
    schema, value, bearable = COMPARING[name]
    assert Comparing(inspect_schema(schema), schema).is_bearable(value) is bearable
    validator = compile_validator(schema)
    assert validator.is_valid(value) is bearable
    if not bearable:
        (violation,) = validator.violations(value)
        assert violation.message == (
            "there are too many values to compare with those that the schema lists"
        )


SCALARS: list[Callable[[Random], Any]] = [
    lambda chance: chance.randrange(-9, 99_999),
    lambda chance: chance.randrange(2**60, 2**63),
    lambda chance: float(chance.randrange(99_999)),
    lambda chance: chance.random(),
    lambda chance: chance.random() * 10.0 ** chance.randrange(-300, 300),
    lambda chance: "x" * chance.choice([0, 9, 99]) + str(chance.randrange(99_999)),
]


def constants_and_values(chance: Random) -> tuple[dict[str, Any], Any]:
    """Many constants of one kind or of several, in any keyword, and many values, which are the last."""
    kinds = chance.sample(SCALARS, chance.randint(1, 3))
    wraps: list[Callable[[Any], Any]] = [lambda one: one, lambda one: [one], lambda one: {"a": one}]
    wrap = chance.choice(wraps)
    listed = [wrap(chance.choice(kinds)(chance)) for _ in range(chance.choice([30, 300, 3_000]))]
    word = chance.choice(["enum", "anyOf", "oneOf", "not"])
    item: Any = {"enum": listed}
    if word != "enum":
        item = {word if word != "not" else "anyOf": [{"const": each} for each in listed]}
    if word == "not":
        item = {"not": {"not": item}}
    values = chance.choice([listed[-1:], listed[-9:]])
    return {"type": "array", "items": item}, values * chance.choice([10, 300, 4_000])


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.exhaustive
def test_whatever_the_constants_are_comparing_takes_bearable_time(seed: int) -> None:
    schema, values = constants_and_values(Random(seed))  # noqa: S311  the same each time
    validator = compile_validator(schema)
    started = perf_counter()
    validator.is_valid(values)
    assert perf_counter() - started < 6  # about one; without the count up to hours
