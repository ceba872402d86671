"""A schema that was given as plain data: refused at once if it is wrong, compiled at its first use."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import each_row
from samples import sample

from toolcrib import Catalog
from toolcrib.errors import DefinitionError, SchemaError
from toolcrib.schema.guard import inspect_schema
from toolcrib.schema.references import ROLES
from toolcrib.schema.validator import DeferredValidator, JsonSchemaValidator, is_plain
from toolcrib.tools.component import tool_of

DRAFTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-07/schema",
)
KEYWORDS = sorted(
    {
        *ROLES, "type", "enum", "const", "required", "minContains", "maxContains", "minLength",
        "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minimum", "maximum",
        "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "uniqueItems", "format",
        "dependentRequired", "title", "description", "default", "examples", "deprecated", "readOnly",
        "contentEncoding", "contentMediaType", "id", "optional", "nullable", "$comment", "$vocabulary",
    }
)  # fmt: skip
TYPES = ("object", "array", "string", "integer", "number", "boolean", "null", "any", "")
NUMBERS = (0, 1, -1, 1.0, 1.5, 1e30, 1e308, -0.0, 5e-324, 2**63, 2**64 - 1, -(2**63))
FORMATS = ("date", "regex", "email", "uri-template", "::", "a", "a.b", "#", "#/a")
LEAVES = st.one_of(
    st.none(), st.booleans(), st.sampled_from(NUMBERS), st.sampled_from((*TYPES, *FORMATS))
)
ANYTHING = st.recursive(
    LEAVES,
    lambda below: st.one_of(
        st.lists(below, max_size=3),
        st.dictionaries(st.sampled_from(KEYWORDS), below, max_size=4),
        st.dictionaries(st.sampled_from(("a", "b", "a/b~", "")), below, max_size=3),
    ),
    max_leaves=12,
)
SCHEMAS = st.builds(
    lambda body, draft: body | ({"$schema": draft} if draft else {}),
    st.dictionaries(st.sampled_from(KEYWORDS), ANYTHING, min_size=1, max_size=4),
    st.sampled_from((None, *DRAFTS)),
)
PLAIN = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def plain(schema: Any) -> bool:
    return is_plain(orjson.dumps(schema).decode(), schema, inspect_schema(schema))


def compiles(schema: Any) -> bool:
    try:
        JsonSchemaValidator(schema)
    except SchemaError:
        return False
    return True


@settings(max_examples=sample(4_000, part=16))
@given(SCHEMAS, ANYTHING)
@pytest.mark.exhaustive
def test_what_is_plain_compiles_and_judges_the_same(schema: Any, value: Any) -> None:
    try:
        if not plain(schema):
            return
    except SchemaError:
        return
    now, later = JsonSchemaValidator(schema), DeferredValidator(orjson.dumps(schema).decode())
    assert later.is_valid(value) is now.is_valid(value)
    assert later.violations(value) == now.violations(value)


@each_row("draft", (None, *DRAFTS))
@each_row("keyword", KEYWORDS)
def test_no_value_of_a_keyword_is_taken_for_plain_that_does_not_compile(
    keyword: str, draft: str | None
) -> None:
    lists: Any = ([], ["a"], ["a", "a"], [1], [{}], [True], [None], list(TYPES[:2]))
    maps: Any = (
        {},
        {"a": 1},
        {"a": True},
        {"a": {}},
        {"a": ["b"]},
        {"a": ["b", "b"]},
        {"type": "a"},
    )
    for value in (*NUMBERS, *TYPES, *FORMATS, None, True, *lists, *maps):
        for schema in ({keyword: value}, {"properties": {"a": {keyword: value}}}):
            whole: Any = ({"$schema": draft} if draft else {}) | schema
            try:
                found = plain(whole)
            except SchemaError:
                continue
            assert compiles(whole) or not found, whole


@each_row(
    "wrong",
    [
        {"type": "text"},
        {"type": 1},
        {"required": True},
        {"properties": {"a": 1}},
        {"minLength": -1},
        {"minLength": "1"},
        {"multipleOf": 0},
        {"enum": "a"},
        {"anyOf": []},
        {"pattern": "("},
        {"pattern": "(?=a)"},
        {"patternProperties": {"(": {}}},
        {"$ref": "#/nowhere"},
        {"$ref": "https://example.org/a"},
        {"$id": "http://[", "type": "string"},
        {"$schema": "http://json-schema.org/draft-04/schema#"},
    ],
)
def test_a_wrong_schema_is_refused_at_registration(wrong: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": wrong}}
    with pytest.raises((DefinitionError, SchemaError), match="tool 'look', input_schema"):
        Catalog.from_definitions([{"name": "look", "description": "", "input_schema": schema}])


def test_a_catalog_of_data_compiles_nothing_that_is_not_called() -> None:
    form = {"name": "look", "description": "Look.", "input_schema": PLAIN}
    for catalog in (
        Catalog.from_definitions([form]),
        Catalog([form]),
        Catalog([tool_of_form(form)]),
    ):
        tool = catalog.by_name["look"].tool
        assert isinstance(tool.validator, DeferredValidator)
        assert tool.validator._made is None
        assert tool.validator._text is tool.definition.input_schema_json
        assert not tool.validator.is_valid({})
        assert tool.validator._made is not None
        assert tool.validator.info.name == "jsonschema-rs"


def tool_of_form(form: dict[str, Any]) -> Any:
    return tool_of(Catalog([form])["look"]).definition


def test_threads_that_come_at_once_judge_alike() -> None:
    validator = DeferredValidator(orjson.dumps(PLAIN).decode())
    with ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(validator.is_valid, [{"a": 1}, {"a": "x"}] * 20))
    assert verdicts == [True, False] * 20
