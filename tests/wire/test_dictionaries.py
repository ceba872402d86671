"""Tools given as dictionaries: what nobody registered is checked before it goes out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rows import each_row
from wire.forms_helpers import PLAIN

from toolcrib.errors import DefinitionError
from toolcrib.wire import FORMS, encode_tools, tool_views

BROKEN: dict[str, dict[str, Any]] = {
    "no list": {"properties": []},
    "no union": {"anyOf": 3},
    "no reference": {"$ref": 3},
    "no type": {"properties": {"a": {"type": {}}}},
    "an unknown type": {"properties": {"a": {"type": "hashmap"}}},
    "a remote reference": {"properties": {"a": {"$ref": "http://127.0.0.1/s.json"}}},
    "no number": {"properties": {"a": {"default": float("nan")}}},
    "half a character": {"properties": {"\ud800": {"type": "string"}}},
    "a set": {"properties": {"a": {"enum": {1, 2}}}},
}


@each_row("broken", BROKEN.values(), ids=BROKEN)
@each_row("wire", FORMS)
def test_a_dictionary_that_nobody_registered_is_checked(wire: str, broken: dict[str, Any]) -> None:
    form = {"name": "f", "input_schema": {"type": "object", **broken}}
    for take in (tool_views, encode_tools):
        with pytest.raises(DefinitionError, match="the input_schema of 'f'"):
            take(wire, [form])


@pytest.mark.parametrize(
    "form", [{"parameters": PLAIN}, {"inputSchema": PLAIN, "output_schema": {}}]
)
def test_a_schema_by_another_name_is_not_passed_over(form: dict[str, Any]) -> None:
    said = f"'f': unknown key '{next(iter(form))}'.*input_schema"
    with pytest.raises(DefinitionError, match=said):
        encode_tools("openai-chat", [{"name": "f", "description": "D.", **form}])


@pytest.mark.parametrize("wire", ["openai-chat", "anthropic"])
def test_the_keys_of_a_dictionary_keep_their_order(wire: str) -> None:
    """Models answer in the order of the properties: a reason before what it is the reason for."""
    properties = {name: {"type": "string"} for name in ("why", "answer", "city")}
    schema = {"type": "object", "properties": properties, "required": ["why"]}
    (view,) = tool_views(wire, [{"name": "f", "input_schema": schema}])
    assert json.dumps(view.schema) == json.dumps(schema)
