"""A lazy validator: the guard at once, the compiler once, at the first use, and closed if it fails."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from rows import each_row

from toolcrib.errors import SchemaError
from toolcrib.schema import LazyValidator, Validator, compile_validator
from toolcrib.values.json import JsonObject

SCHEMA: JsonObject = {"type": "object", "properties": {"a": {"type": "integer"}}}


class Counting:
    """A factory that counts what it makes, and makes what the default one does."""

    def __init__(self, error: Exception | None = None) -> None:
        self.made: list[JsonObject] = []
        self.error = error

    def __call__(self, schema: JsonObject) -> Validator:
        self.made.append(schema)
        if self.error is not None:
            raise self.error
        return compile_validator(schema)


def test_it_is_compiled_once_and_only_when_it_is_used() -> None:
    factory = Counting()
    validator = LazyValidator(SCHEMA, factory)
    assert factory.made == []
    assert validator.is_valid({"a": 1})
    assert not validator.is_valid({"a": "x"})
    (violation,) = validator.violations({"a": "x"})
    assert (violation.path, violation.message) == ("/a", "expected integer, got string")
    assert factory.made == [SCHEMA]
    assert factory.made[0] is not SCHEMA


@pytest.mark.parametrize("use", ["is_valid", "violations", "info"])
def test_any_use_compiles(use: str) -> None:
    factory = Counting()
    validator = LazyValidator(SCHEMA, factory)
    used = getattr(validator, use)
    if use != "info":
        used({"a": 1})
    assert factory.made == [SCHEMA]
    assert validator.info.name == "jsonschema-rs"
    assert validator.info.compiled_at > 0
    assert validator.error is None


def test_what_changes_later_changes_nothing() -> None:
    schema: Any = {"type": "object", "required": ["a"]}
    validator = LazyValidator(schema)
    schema["required"].clear()
    assert not validator.is_valid({})


@each_row(
    ("schema", "pointer"),
    [
        ({"$ref": "http://127.0.0.1:9/x"}, "/$ref"),
        ({"properties": []}, "/properties"),
        ({"items": {"type": "nothing"}}, "/items/type"),
        ({"$schema": "http://x"}, "/$schema"),
        ({"default": float("nan")}, "/default"),
    ],
)
def test_what_is_dangerous_or_malformed_is_refused_at_once(schema: Any, pointer: str) -> None:
    factory = Counting()
    with pytest.raises(SchemaError) as caught:
        LazyValidator(schema, factory)
    assert caught.value.pointer == pointer
    assert factory.made == []


@pytest.mark.parametrize("error", [SchemaError("no", "/x"), ValueError("CANARY"), RecursionError()])
def test_it_fails_closed(error: Exception) -> None:
    factory = Counting(error)
    validator = LazyValidator(SCHEMA, factory)
    for use in (validator.is_valid, validator.violations, validator.is_valid):
        with pytest.raises(SchemaError) as raised:
            use({"a": 1})
        assert "CANARY" not in str(raised.value)
    assert validator.info.name == "unusable"
    assert isinstance(validator.error, SchemaError)
    assert "CANARY" not in str(validator.error)
    assert len(factory.made) == 1


def test_a_pattern_that_does_not_compile() -> None:
    validator = LazyValidator({"type": "object", "properties": {"a": {"pattern": "(?=a)"}}})
    with pytest.raises(SchemaError) as raised:
        validator.is_valid({})
    assert raised.value.pointer == "/properties/a/pattern"


def test_threads_share_one() -> None:
    factory = Counting()
    validator = LazyValidator(SCHEMA, factory)
    together = Barrier(8)

    def use(number: int) -> bool:
        together.wait(timeout=30)
        return validator.is_valid({"a": number})

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(8)))
    assert len(factory.made) == 1
