"""Redaction: what is not named does not show."""

from __future__ import annotations

from typing import Any

import pytest

from toolcrib import ALL, ToolDefinition
from toolcrib.runner.redact import project, public_arguments

VALUE: Any = {"a": {"b": 1, "c": 2}, "items": [{"id": 1, "x": 2}, {"id": 3}], "n": None}

TABLE: list[tuple[Any, Any, Any]] = [
    (VALUE, ALL, VALUE),
    (VALUE, (), {}),
    (VALUE, ("a",), {"a": {"b": 1, "c": 2}}),
    (VALUE, ("a.b",), {"a": {"b": 1}}),
    (VALUE, ("a.b", "a"), {"a": {"b": 1, "c": 2}}),
    (VALUE, ("a", "a.b"), {"a": {"b": 1, "c": 2}}),
    (VALUE, ("a.z",), {"a": {}}),
    (VALUE, ("items",), {"items": VALUE["items"]}),
    (VALUE, ("items[].id",), {"items": [{"id": 1}, {"id": 3}]}),
    (VALUE, ("items[]",), {"items": VALUE["items"]}),
    (VALUE, ("items.id",), {"items": None}),
    (VALUE, ("n",), {"n": None}),
    ([{"id": 1, "x": 2}], ("[].id",), [{"id": 1}]),
    ([[{"id": 1}]], ("[][].id",), [[{"id": 1}]]),
    ([1, 2], (), None),
    ("secret", (), None),
    ("secret", ("a",), None),
    (7, ALL, 7),
]


@pytest.mark.parametrize(("value", "paths", "shown"), TABLE)
def test_an_allowlist(value: Any, paths: Any, shown: Any) -> None:
    assert project(value, paths) == shown


def test_undeclared_arguments_do_not_show_and_secret_ones_are_masked() -> None:
    schema = '{"type":"object","properties":{"user":{},"password":{}}}'
    definition = ToolDefinition(
        name="t", description="", input_schema_json=schema, secret=("password",)
    )
    given: Any = {"user": "u", "password": "hush", "other": "hidden"}
    assert public_arguments(definition, given) == {"user": "u", "password": "***"}


def test_of_a_tool_without_a_schema_no_argument_shows() -> None:
    definition = ToolDefinition(
        name="t", description="", input_schema_json=None, no_schema_mode="full"
    )
    assert public_arguments(definition, {"anything": 1}) == {}
