"""Which arguments no record may show."""

from __future__ import annotations

from typing import Any

import pytest

from toolcrib.errors import DefinitionError
from toolcrib.tools.secret import secret_properties

HIDDEN = {"type": "string", "writeOnly": True}


@pytest.mark.parametrize(
    ("properties", "named", "secret"),
    [
        ({}, [], ()),
        ({"a": {}}, [], ()),
        ({"a": {}, "b": {}}, ["b"], ("b",)),
        ({"a": HIDDEN, "b": {}}, [], ("a",)),
        ({"a": HIDDEN, "b": {}}, ["b", "a"], ("b", "a")),
        ({"a": {"anyOf": [{"type": "null"}, HIDDEN]}}, [], ("a",)),
        ({"a": {"items": {"properties": {"x": HIDDEN}}}}, [], ("a",)),
        ({"a": {"$ref": "#/$defs/s"}}, [], ("a",)),
        ({"a": {"$ref": "#/$defs/s", "title": "beside"}, "b": {"$ref": "#/$defs/r"}}, [], ("a",)),
        ({"a": {"$ref": "#/$defs/r", "not": HIDDEN}}, [], ("a",)),
        ({"a": {"writeOnly": False}, "b": {"writeOnly": "yes"}}, [], ()),
        ({"writeOnly": {"type": "boolean"}}, [], ()),
        ({"a": True, "b": False}, [], ()),
    ],
)
def test_named_and_found(properties: Any, named: list[str], secret: tuple[str, ...]) -> None:
    schema = {"type": "object", "properties": properties}
    schema["$defs"] = {"s": HIDDEN, "r": {"items": {"$ref": "#/$defs/r"}}}
    assert secret_properties("t", schema, named) == secret


def test_a_tool_without_a_schema_takes_any_name() -> None:
    assert secret_properties("t", None, ["anything"]) == ("anything",)


@pytest.mark.parametrize("named", [["z"], "a", ["a", "z"]])
def test_names_that_are_no_parameters(named: Any) -> None:
    with pytest.raises(DefinitionError, match="tool 't': secret"):
        secret_properties("t", {"properties": {"a": {}}}, named)
