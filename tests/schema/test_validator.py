"""What a value is judged by, and what is said of it: the schema's words, never the value's."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest
from rows import each_row

from toolcrib.errors import SchemaError
from toolcrib.schema import compile_validator
from toolcrib.schema.guard import inspect_schema
from toolcrib.schema.validator import MAX_VIOLATIONS, JsonSchemaValidator, kind_of

CANARY = "CANARY_f3a9"


def of(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", **keywords}


def prop(**schema: Any) -> dict[str, Any]:
    return of(properties={"a": schema})


TAGGED = [
    {
        "type": "object",
        "properties": {"kind": {"const": kind}, "size": {"type": "integer", "minimum": least}},
        "required": ["kind", *names],
        "additionalProperties": False,
    }
    for kind, names, least in (("cat", ["size"], 3), ("dog", [], 9))
]

INVALID: list[tuple[dict[str, Any], Any, str, str]] = [
    (prop(type="integer"), {"a": CANARY}, "/a", "expected integer, got string"),
    (prop(type="integer"), {"a": 1.5}, "/a", "expected integer, got number"),
    (prop(type=["integer", "null"]), {"a": [CANARY]}, "/a", "expected null or integer, got array"),
    (prop(type="string"), {"a": True}, "/a", "expected string, got boolean"),
    (prop(enum=[1, "1"]), {"a": CANARY}, "/a", 'expected one of: 1, "1"'),
    (prop(enum=["x", None, True, 1.0]), {"a": CANARY}, "/a", "expected one of: x, null, true, 1"),
    (prop(enum=list(range(13))), {"a": CANARY}, "/a",
     "expected one of: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, …"),
    (prop(const=None), {"a": CANARY}, "/a", "expected exactly null"),
    (prop(const={"b": [False]}), {"a": CANARY}, "/a", 'expected exactly {"b":[false]}'),
    (of(required=["b"]), {CANARY: 1}, "", "the required property 'b' is missing"),
    (of(additionalProperties=False), {CANARY: 1}, "/*", "there is a property that is not declared"),
    (of(unevaluatedProperties=False), {CANARY: 1}, "/*", "there is a property that is not declared"),
    (of(propertyNames={"maxLength": 1}), {CANARY: 1}, "", "has a property whose name is not allowed"),
    (of(propertyNames={"enum": ["a"]}), {CANARY: 1}, "", "has a property whose name is not allowed"),
    (of(propertyNames=False), {CANARY: 1}, "", "has a property whose name is not allowed"),
    (of(additionalProperties={"type": "null"}), {CANARY: CANARY}, "/*", "expected null, got string"),
    (of(patternProperties={"^C": {"type": "null"}}), {CANARY: 1}, "/*", "expected null, got integer"),
    (of(patternProperties={"^C": False}), {CANARY: 1}, "/*", "no value is allowed here"),
    (of(properties={"a": False}), {"a": CANARY}, "/a", "no value is allowed here"),
    (of(dependentRequired={"a": ["b"]}), {"a": CANARY}, "", "the required property 'b' is missing"),
    (prop(minimum=3), {"a": 2}, "/a", "expected at least 3"),
    (prop(maximum=3), {"a": 2**70}, "/a", "expected at most 3"),
    (prop(exclusiveMinimum=0.5), {"a": 0.5}, "/a", "expected more than 0.5"),
    (prop(exclusiveMaximum=3), {"a": 3}, "/a", "expected less than 3"),
    (prop(multipleOf=7), {"a": 8}, "/a", "expected a multiple of 7"),
    (prop(minLength=100), {"a": CANARY}, "/a", "expected at least 100 characters"),
    (prop(maxLength=1), {"a": CANARY}, "/a", "expected at most 1 characters"),
    (prop(pattern="^z$"), {"a": CANARY}, "/a", "expected a string that matches the pattern ^z$"),
    (prop(format="date"), {"a": CANARY}, "/a",
     "expected a string in the format 'date' (such as 2026-01-31)"),
    (prop(format="email"), {"a": CANARY}, "/a",
     "expected a string in the format 'email' (such as name@example.org)"),
    (prop(minItems=2), {"a": [CANARY]}, "/a", "expected at least 2 items"),
    (prop(maxItems=0), {"a": [CANARY]}, "/a", "expected at most 0 items"),
    (prop(uniqueItems=True), {"a": [CANARY] * 2}, "/a", "expected items that differ from each other"),
    (prop(items={"type": "null"}), {"a": [None, CANARY]}, "/a/1", "expected null, got string"),
    (prop(prefixItems=[{}], items=False), {"a": [1, CANARY]}, "/a/1", "no value is allowed here"),
    (prop(anyOf=[{"type": "null"}, {"type": "integer"}]), {"a": {CANARY: 1}}, "/a",
     "expected null or integer, got object"),
    (prop(anyOf=[{"type": "null"}, {"enum": ["x"], "type": "string"}]), {"a": CANARY}, "/a",
     "expected one of: x"),
    (prop(anyOf=[{"type": "null"}, {"type": "array", "items": {"anyOf": [
        {"type": "null"}, {"type": "object", "properties": {"b": {"type": "null"}}}]}}]),
     {"a": [None, {"b": CANARY}]}, "/a/1/b", "expected null, got string"),
    (prop(anyOf=[{"minLength": 99}, {"pattern": "^z"}]), {"a": CANARY}, "/a",
     "matches none of the alternatives, got string"),
    (prop(anyOf=[False, False]), {"a": CANARY}, "/a",
     "matches none of the alternatives, got string"),
    (prop(anyOf=TAGGED), {"a": {"kind": "dog", "size": 5}}, "/a/size", "expected at least 9"),
    (prop(oneOf=TAGGED), {"a": {"kind": "cat", CANARY: 1, "size": 5}}, "/a/*",
     "there is a property that is not declared"),
    (prop(oneOf=TAGGED), {"a": {"kind": "cat"}}, "/a", "the required property 'size' is missing"),
    (prop(oneOf=TAGGED), {"a": {}}, "/a", "the required property 'kind' is missing"),
    (prop(oneOf=TAGGED), {"a": {"kind": CANARY}}, "/a",
     "matches none of the alternatives, got object ('kind': expected one of: cat, dog)"),
    (prop(anyOf=[{"properties": {"k": {"enum": ["a", "b"]}}}, {"properties": {"k": {"const": 1}}}]),
     {"a": {"k": CANARY}}, "/a",
     "matches none of the alternatives, got object ('k': expected one of: a, b, 1)"),
    (prop(oneOf=[{"type": "null"}, {"type": "integer"}]), {"a": CANARY}, "/a",
     "expected null or integer, got string"),
    (prop(oneOf=[{}, {"type": "string"}]), {"a": CANARY}, "/a",
     "matches more than one of the alternatives, got string"),
    (prop(**{"not": {}}), {"a": CANARY}, "/a", "does not satisfy 'not'"),
    (prop(contains={"type": "null"}), {"a": [CANARY]}, "/a", "does not satisfy 'contains'"),
    (of(minProperties=2), {CANARY: 1}, "", "expected at least 2 properties"),
    (prop(maxProperties=0), {"a": {CANARY: 1}}, "/a", "expected at most 0 properties"),
    (prop(prefixItems=[{}], unevaluatedItems=False), {"a": [1, CANARY]}, "/a",
     "there are more items than are declared"),
    (of(properties={"a/b~c": False}), {"a/b~c": 1}, "/a~1b~0c", "no value is allowed here"),
    (of(properties={"é": {"type": "null"}}), {"é": 1}, "/é", "expected null, got integer"),
]  # fmt: skip


@each_row(("schema", "value", "path", "message"), INVALID)
def test_what_is_said(schema: dict[str, Any], value: Any, path: str, message: str) -> None:
    validator = compile_validator(schema)
    assert not validator.is_valid(value)
    (violation,) = validator.violations(value)
    assert (violation.path, violation.message) == (path, message)
    assert CANARY not in repr(violation)


@pytest.mark.parametrize(
    "schema",
    [
        prop(const=["x" * 1000] * 9),
        prop(enum=["x" * 1000] * 2),
        prop(pattern="^(" + "x" * 1000 + ")$"),
        of(required=["x" * 1000]),
    ],
)
def test_long_words_of_a_schema_are_cut(schema: dict[str, Any]) -> None:
    (violation,) = compile_validator(schema).violations({"a": "y"})
    assert violation.message.startswith(("expected ", "the required property 'xxx"))
    assert violation.message.endswith("x…")
    assert len(violation.message) == 400


@each_row(
    ("schema", "value"),
    [
        (prop(type="integer"), {"a": 3.0}),
        (prop(type="integer"), {"a": 2**70}),
        (prop(type="integer"), {"a": 10**39}),
        (prop(type="number"), {"a": -(10**39)}),
        (prop(enum=[1]), {"a": 1.0}),
        (prop(format="no-such-format"), {"a": CANARY}),
        (prop(format="date-time"), {"a": "2024-02-29T12:00:00Z"}),
        (prop(format="uuid"), {"a": "00000000-0000-0000-0000-000000000000"}),
        (prop(pattern="^(a+)+$"), {"a": "a" * 50_000}),
        (prop(pattern="^.{1,1000}$"), {"a": "é" * 1000}),
        (prop(pattern="^.{0,2048}$"), {"a": "é" * 2048}),
        (prop(pattern=r"^\S{1,255}$"), {"a": "x" * 255}),
        (prop(pattern=r"^[\p{L}\p{Z}\p{N}_.:/=+@-]+$"), {"a": "é x" * 300}),
        (prop(pattern=r"^[\w+=,.@-]{1,1024}$"), {"a": "x" * 1024}),
        (prop(pattern="^[A-Za-z0-9+/]*={0,2}$"), {"a": "x" * 1_000_000}),
        (of(), {"anything": [None]}),
    ],
)
def test_what_is_valid(schema: dict[str, Any], value: Any) -> None:
    validator = compile_validator(schema)
    assert validator.is_valid(value)
    assert validator.violations(value) == ()


def test_a_pattern_that_others_hang_on() -> None:
    assert not compile_validator(prop(pattern="^(a+)+$")).is_valid({"a": "a" * 50_000 + "b"})


@each_row(
    ("schema", "pointer"),
    [
        (prop(type="nothing"), "/properties/a/type"),
        (prop(minimum="3"), "/properties/a/minimum"),
        (prop(pattern="("), "/properties/a/pattern"),
        (prop(pattern="(?=a)"), "/properties/a/pattern"),
        (prop(pattern="(?<!a)b"), "/properties/a/pattern"),
        (prop(pattern=r"(a)\1"), "/properties/a/pattern"),
        (prop(pattern="(a{1000}){1000}"), "/properties/a/pattern"),
        (prop(pattern="(" * 300 + "a" + ")" * 300), "/properties/a/pattern"),
        (of(patternProperties={"(": {}}), "/patternProperties/("),
        (of(properties=[]), "/properties"),
        (of(properties={"a/b": 5}), "/properties/a~1b"),
        (of(required="a"), "/required"),
        (prop(**{"$ref": "#no-such-anchor"}), "/properties/a/$ref"),
        (of(propertyNames={"pattern": "(?!a)"}), "/propertyNames/pattern"),
        (of(patternProperties={"a(?=b)": {}}), "/patternProperties/a(?=b)"),
        (of(**{"$id": "%%"}), ""),
        (prop(**{"$ref": "http://127.0.0.1:9/schema"}), "/properties/a/$ref"),
    ],
)
def test_what_cannot_be_compiled(schema: dict[str, Any], pointer: str) -> None:
    with pytest.raises(SchemaError) as caught:
        compile_validator(schema)
    assert caught.value.pointer == pointer
    assert len(str(caught.value)) < 500


def test_draft_7_where_a_schema_says_so() -> None:
    schema = prop(items=[{"type": "null"}], additionalItems=False)
    schema["$schema"] = "http://json-schema.org/draft-07/schema#"
    assert compile_validator(schema).is_valid({"a": [None]})
    assert not compile_validator(schema).is_valid({"a": [None, None]})


def test_what_it_says_of_itself() -> None:
    before = time.time()
    info = compile_validator(of()).info
    assert info.name == "jsonschema-rs"
    assert info.version[0].isdigit()
    assert before <= info.compiled_at <= time.time()


def test_the_list_of_reasons_is_bounded() -> None:
    validator = compile_validator(prop(items={"type": "null"}))
    assert len(validator.violations({"a": [CANARY] * 5000})) == MAX_VIOLATIONS


def test_a_remote_schema_dialect_is_refused() -> None:
    """Port 9 discards: a request would fail, or hang."""
    schema = of(**{"$schema": "http://127.0.0.1:9/dialect"}, additionalProperties=False)
    with pytest.raises(SchemaError, match="not supported") as caught:
        compile_validator(schema)
    assert caught.value.pointer == "/$schema"


@each_row(
    ("value", "kind"),
    [
        (None, "null"),
        (True, "boolean"),
        (1, "integer"),
        (1.0, "number"),
        ("", "string"),
        ([], "array"),
        ({}, "object"),
    ],
)
def test_kinds(value: object, kind: str) -> None:
    assert kind_of(value) == kind


def test_a_schema_that_is_kept_as_text_explains_as_the_schema_does() -> None:
    schema = of(properties={"a": {"$ref": "#/$defs/n"}}, **{"$defs": {"n": {"minimum": 3}}})
    values: list[Any] = [{"a": 1}, {"a": 1, "b": 2}, {"a": 3}, [], {"a": 1}]
    expected = [compile_validator(schema).violations(value) for value in values]
    read = JsonSchemaValidator(schema, inspect_schema(schema), orjson.dumps(schema).decode())
    schema["properties"] = {}  # the text does not change with its original
    assert [read.violations(value) for value in values] == expected
    assert [found[0].path for found in expected if found] == ["/a", "/a", "", "/a"]
