"""Expensive and outward-looking schemas are refused before anything is compiled from them."""

from __future__ import annotations

from typing import Any

import pytest
from rows import each_row

from toolcrib.errors import SchemaError
from toolcrib.schema import compile_validator, guard
from toolcrib.schema.guard import (
    MAX_DEPTH,
    MAX_EXPANDED_DEPTH,
    MAX_NODES,
    check_schema,
)
from toolcrib.schema.references import Draft, References, resolve_ref
from toolcrib.values.json import escape_pointer


def layers(count: int, keyword: str = "$ref", to: str = "#/$defs/{}") -> dict[str, Any]:
    """Each layer points twice to the next: the last one is reached 2**count times."""
    made: dict[str, Any] = {
        str(i): {"$anchor": f"n{i}", "allOf": [{keyword: to.format(i + 1)}] * 2}
        for i in range(count)
    }
    return {**made, str(count): {"$anchor": f"n{count}", "type": "object"}}


def chain(count: int) -> dict[str, Any]:
    links: dict[str, Any] = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(count)}
    return {**links, str(count): {}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"not": schema}
    return schema


BOMBS: dict[str, dict[str, Any]] = {
    "by $ref": {"$defs": layers(60), "$ref": "#/$defs/0"},
    "by $ref in a property": {"$defs": layers(60), "properties": {"a": {"$ref": "#/$defs/0"}}},
    "by $anchor": {"$defs": layers(60, to="#n{}"), "$ref": "#n0"},
    "by $dynamicRef": {"$defs": layers(60, "$dynamicRef"), "$dynamicRef": "#/$defs/0"},
    "by definitions": {
        "definitions": layers(60, to="#/definitions/{}"),
        "$ref": "#/definitions/0",
    },
    "by many refs at the top": {
        "$defs": {"d": {"allOf": [{"minProperties": 0}] * 4000}},
        "allOf": [{"$ref": "#/$defs/d"}] * 5000,
    },
    "wide": {
        "$defs": {"d": {"enum": list(range(9000))}, "e": {"allOf": [{"$ref": "#/$defs/d"}] * 9}},
        "$ref": "#/$defs/e",
    },
}


@each_row("schema", BOMBS.values(), ids=BOMBS)
def test_bombs_are_refused_without_being_expanded(
    schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bomb of 2**60 nodes: what is counted is how many nodes were looked at, not the time."""
    seen = 0
    walked = guard._walked

    def counting(part: guard.Surveyed, step: guard.Step, draft: Draft) -> list[guard.Step]:
        nonlocal seen
        seen += 1
        return walked(part, step, draft)

    monkeypatch.setattr(guard, "_walked", counting)
    with pytest.raises(SchemaError, match="expand to more than"):
        check_schema({"type": "object", **schema})
    assert seen < 100_000


@each_row(
    ("schema", "pointer"),
    [
        ({"$ref": "http://example.com/s"}, "/$ref"),
        ({"$ref": "https://example.com/s#/$defs/a"}, "/$ref"),
        ({"$ref": "file:///etc/passwd"}, "/$ref"),
        ({"$ref": "other.json"}, "/$ref"),
        ({"$ref": ""}, "/$ref"),
        ({"$ref": "urn:x:y"}, "/$ref"),
        ({"$dynamicRef": "http://example.com/s"}, "/$dynamicRef"),
        ({"properties": {"a/b~": {"items": {"$ref": "x"}}}}, "/properties/a~1b~0/items/$ref"),
        ({"$defs": {"unused": {"$ref": "http://example.com"}}}, "/$defs/unused/$ref"),
        ({"anyOf": [{}, {"$ref": "x"}]}, "/anyOf/1/$ref"),
    ],
)
def test_references_outward(schema: dict[str, Any], pointer: str) -> None:
    with pytest.raises(SchemaError, match="nothing is fetched") as caught:
        check_schema(schema)
    assert caught.value.pointer == pointer


@each_row(
    "ref",
    [
        "#/$defs/none",
        "#/",
        "#/anyOf/5",
        "#/anyOf/²",
        "#/anyOf/-1",
        "#/anyOf/" + "9" * 5000,
        "#/type/x",
    ],
)
def test_references_to_nothing(ref: str) -> None:
    with pytest.raises(SchemaError, match="points to nothing") as caught:
        check_schema({"type": "object", "anyOf": [{}], "properties": {"a": {"$ref": ref}}})
    assert caught.value.pointer == "/properties/a/$ref"
    assert len(str(caught.value)) < 400


@each_row(
    ("schema", "text"),
    [
        (nested(MAX_DEPTH + 1), "nested deeper"),
        (nested(100_000), "nested deeper"),
        ({"enum": list(range(MAX_NODES))}, "more than 50000 nodes"),
        ({"$defs": chain(MAX_EXPANDED_DEPTH), "$ref": "#/$defs/0"}, "are nested deeper than"),
        ({"$defs": chain(3000), "$ref": "#/$defs/0"}, "are nested deeper than"),
    ],
    ids=["a little too deep", "far too deep", "too many", "a chain", "a longer chain"],
)
def test_too_large(schema: dict[str, Any], text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        check_schema(schema)


def test_a_schema_that_holds_itself() -> None:
    schema: dict[str, Any] = {"type": "object"}
    schema["not"] = schema
    with pytest.raises(SchemaError, match="nested deeper"):
        check_schema(schema)


def test_a_reference_below_an_id_of_its_own_would_mean_another_place() -> None:
    small: dict[str, Any] = {str(i): {} for i in range(61)}
    inner = {"$id": "urn:x", "$defs": layers(60), "$ref": "#/$defs/0"}
    with pytest.raises(SchemaError, match=r"its own \$id") as caught:
        check_schema({"$defs": {**small, "in": inner}, "$ref": "#/$defs/in"})
    assert caught.value.pointer.startswith("/$defs/in/")


RECURSIVE: dict[str, dict[str, Any]] = {
    "itself": {"type": "object", "properties": {"child": {"$ref": "#"}}},
    "a list of itself": {
        "$defs": {"n": {"properties": {"kids": {"items": {"$ref": "#/$defs/n"}}}}},
        "$ref": "#/$defs/n",
    },
    "in turn": {
        "$defs": {
            "a": {"properties": {"b": {"$ref": "#/$defs/b"}}},
            "b": {"properties": {"a": {"$ref": "#/$defs/a"}}},
        },
        "properties": {"x": {"$ref": "#/$defs/a"}, "y": {"$ref": "#/$defs/b"}},
    },
    "any JSON": {
        "$defs": {
            "j": {
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"$ref": "#/$defs/j"}},
                    {"type": "object", "additionalProperties": {"$ref": "#/$defs/j"}},
                ]
            }
        },
        "properties": {"x": {"$ref": "#/$defs/j"}},
    },
}
FINE: dict[str, dict[str, Any]] = {
    **RECURSIVE,
    "empty": {},
    "an id at the top": {"$id": "https://example.com/me", "$defs": {"a": {}}, "$ref": "#/$defs/a"},
    "an id below, without references": {"properties": {"a": {"$id": "urn:a", "type": "string"}}},
    "a property called $ref": {"properties": {"$ref": {"type": "string"}, "$id": {}}},
    "a bomb that nothing leads to": {"$defs": layers(60)},
    "an escaped pointer": {"$defs": {"a/b~c d": {}}, "$ref": "#/$defs/a~1b~0c%20d"},
    "an index": {"anyOf": [{}, {"type": "object"}], "$ref": "#/anyOf/1"},
    "as deep as may be": nested(MAX_DEPTH),
    "as many as may be": {"enum": list(range(MAX_NODES - 2))},
    "one definition often": {
        "$defs": {"d": {"enum": list(range(900))}},
        "properties": {f"p{i}": {"$ref": "#/$defs/d"} for i in range(300)},
    },
    "boolean schemas": {"properties": {"a": True, "b": False}},
    **{
        f"the dialect {named}": {"$schema": named, "type": "object"}
        for named in (
            "https://json-schema.org/draft/2020-12/schema",
            "https://json-schema.org/draft/2020-12/schema#",
            "http://json-schema.org/draft-07/schema",
            "http://json-schema.org/draft-07/schema#",
            "https://json-schema.org/draft-07/schema#",
        )
    },
    "references in data": {
        "enum": [{"$ref": "http://x"}],
        "const": {"$ref": "x", "$id": "y", "$schema": 3},
        "default": {"$dynamicRef": "http://x"},
        "examples": [{"not": {"$ref": "x"}}],
        "x-own": {"items": {"$ref": "x"}},
        "required": ["$ref"],
    },
    "properties called like keywords": {
        "properties": {
            "$ref": {"type": "string"},
            "$schema": {"const": 1},
            "$id": {"$ref": "#/properties/$ref"},
            "$anchor": {},
            "pattern": {"pattern": "a"},
            "enum": {"enum": [1]},
        },
        "patternProperties": {"$ref": {}},
        "dependentSchemas": {"$ref": {}},
        "$defs": {"$ref": {}},
    },
    "siblings of a $ref": {
        "$defs": {"a": {"type": "string"}},
        "properties": {"x": {"$ref": "#/$defs/a", "maxLength": 3}},
    },
    "draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"a": {"$id": "#n", "items": [{"$ref": "#"}]}},
        "properties": {"x": {"$ref": "#n", "type": "ignored"}, "y": {"$ref": "#/definitions/a"}},
        "dependencies": {"x": ["y"], "y": {"$ref": "#n"}},
    },
    "a reference outside of where schemas lie": {
        "components": {"schemas": {"a": {"not": {"$ref": "#/components/schemas/b"}}, "b": {}}},
        "properties": {"a": {"$ref": "#/components/schemas/a"}},
    },
    "an anchor": {"$defs": {"a": {"$anchor": "here"}}, "properties": {"a": {"$ref": "#here"}}},
    "a dangling reference would be refused, a bool is fine": {
        "$defs": {"no": False},
        "properties": {"a": {"$ref": "#/$defs/no"}},
    },
    "recursion on the very value, guarded by a step": {
        "$defs": {"t": {"anyOf": [{"type": "null"}, {"items": {"$ref": "#/$defs/t"}}]}},
        "allOf": [{"$ref": "#/$defs/t"}],
    },
}


@each_row("schema", FINE.values(), ids=FINE)
def test_what_is_fine(schema: dict[str, Any]) -> None:
    check_schema(schema)


def test_long_keys_are_not_copied_into_every_pointer() -> None:
    """A key of 1 MB above 20,000 nodes must not become 20 GB; and a message stays short."""
    key = "k" * 1_000_000
    with pytest.raises(SchemaError) as caught:
        check_schema({key: {"enum": [*range(20_000), {"$ref": "x"}]}})
    assert len(str(caught.value)) < 400


DOCUMENT: dict[str, Any] = {
    "$defs": {"a": {"type": "string"}, "b": {"$anchor": "here", "enum": [1]}},
    "anyOf": [{"title": "first"}],
}


@each_row(
    ("ref", "found"),
    [
        ("#", DOCUMENT),
        ("#/$defs/a", {"type": "string"}),
        ("#/%24defs/a", {"type": "string"}),
        ("#/anyOf/0/title", "first"),
        ("#here", DOCUMENT["$defs"]["b"]),
        ("#nowhere", None),
        ("#/anyOf/x", None),
        ("#/$defs/a/type/deeper", None),
    ],
)
def test_where_references_lead(ref: str, found: object) -> None:
    assert resolve_ref(DOCUMENT, ref) == found
    references = References(DOCUMENT)
    assert references.resolve(ref) == found
    assert references.resolve(ref) is references.resolve(ref)


@pytest.mark.parametrize(("token", "text"), [("a/b", "a~1b"), ("~", "~0"), ("~1", "~01"), (3, "3")])
def test_pointers_are_escaped(token: object, text: str) -> None:
    assert escape_pointer(token) == text


def test_two_circles_that_share_a_step_into_the_value() -> None:
    """The circle in place is found although a walk meets it from both sides."""
    schema = {
        "$defs": {
            "a": {"properties": {"x": {"$ref": "#/$defs/c"}}, "anyOf": [{"$ref": "#/$defs/b"}]},
            "b": {"allOf": [{"$ref": "#/$defs/c"}]},
            "c": {"if": {"$ref": "#/$defs/a"}},
        },
        "$ref": "#/$defs/a",
    }
    with pytest.raises(SchemaError, match="never end"):
        check_schema(schema)


def test_draft_7_is_judged_as_draft_7() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema",
        "definitions": {"a": {"$id": "#n", "type": "integer"}},
        "properties": {"x": {"$ref": "#n", "type": "string"}, "y": {"items": [{"const": 1}]}},
    }
    validator = compile_validator(schema)
    assert validator.is_valid({"x": 1, "y": [1, 2]})
    assert not validator.is_valid({"x": "text"})
    assert not validator.is_valid({"y": [2]})
