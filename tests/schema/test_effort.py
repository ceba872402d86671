"""Reasons are listed only where that is affordable: counted, not timed."""

from __future__ import annotations

from typing import Any

import pytest
from rows import each_row

from toolcrib.schema import compile_validator
from toolcrib.schema.effort import MAX_STEPS, explainable
from toolcrib.schema.references import References


def _branch(name: str) -> dict[str, Any]:
    sides = {"left": {"$ref": "#/$defs/e"}, "right": {"$ref": "#/$defs/e"}}
    return {"type": "object", "properties": {**sides, "op": {"const": name}}, "required": ["op"]}


EXPRESSION: dict[str, Any] = {
    "type": "object",
    "$defs": {
        "e": {"anyOf": [{"$ref": "#/$defs/add"}, {"$ref": "#/$defs/mul"}, {"type": "integer"}]},
        "add": _branch("add"),
        "mul": _branch("mul"),
    },
    "properties": {"e": {"$ref": "#/$defs/e"}},
}
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"child": {"$ref": "#"}, "n": {"type": "integer"}},
}


def expression(depth: int, leaf: object) -> dict[str, Any]:
    made: Any = leaf
    for _ in range(depth):
        made = {"op": "mul", "left": made}
    return {"e": made}


def tree(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"n": "not a number"}
    for _ in range(depth):
        made = {"child": made}
    return made


DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize("depth", [20, 40, 90])
def test_alternatives_that_multiply_are_judged_but_not_explained(depth: int) -> None:
    """Listing the reasons would take 2**depth steps: at depth 16 that was 23 seconds."""
    validator = compile_validator(EXPRESSION)
    assert validator.is_valid(expression(depth, 1))
    assert not validator.is_valid(expression(depth, "bad"))
    (violation,) = validator.violations(expression(depth, "bad"))
    assert (violation.path, violation.message) == (
        "/e",
        "does not fit the schema, in more ways than can be listed",
    )


@pytest.mark.parametrize("draft", ["https://json-schema.org/draft/2020-12/schema", DRAFT_7])
@pytest.mark.parametrize("own", [{}, {"$id": "https://example.org/tool"}])
def test_what_is_not_explained_has_its_place_all_the_same(draft: str, own: dict[str, str]) -> None:
    open_: dict[str, Any] = {
        "anyOf": [{"properties": {f"p{i}": True}} for i in range(300)],
        "type": "object",
    }
    properties = {"a/b%": open_, "c": {"type": "object", "properties": {"a": {"$ref": "#"}}}}
    schema = {"$schema": draft, **own, "type": "object", "properties": properties}
    wide: dict[str, Any] = {f"p{i}": 1 for i in range(1000)}
    found = compile_validator(schema).violations({"c": {"a": []}, "a/b%": wide})
    assert [one.path for one in found] == ["/c"]
    if "2020" in draft:
        open_["unevaluatedProperties"] = False
        found = compile_validator(schema).violations({"c": {}, "a/b%": wide})
        assert [one.path for one in found] == ["/a~1b%"]


def test_a_few_levels_are_explained() -> None:
    (violation,) = compile_validator(EXPRESSION).violations(expression(3, "bad"))
    assert violation.path == "/e" + "/left" * 3


def test_plain_recursion_is_explained_at_any_depth() -> None:
    (violation,) = compile_validator(TREE).violations(tree(90))
    assert violation.path == "/child" * 90 + "/n"


@each_row(
    ("schema", "value", "affordable"),
    [
        ({"items": {"anyOf": [{}, {}]}}, [0] * (MAX_STEPS // 3), True),
        ({"items": {"anyOf": [{}, {}]}}, [0] * (MAX_STEPS // 3 + 1), False),
        ({"additionalProperties": True}, dict.fromkeys(map(str, range(MAX_STEPS)), 0), True),
        ({"patternProperties": {str(i): {} for i in range(11)}}, dict.fromkeys("abc" * 1, 0), True),
        (
            {"patternProperties": {str(i): {} for i in range(100)}},
            dict.fromkeys(map(str, range(1000)), 0),
            False,
        ),
        ({"$ref": "#"}, 0, False),
        ({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, 0, False),
        ({"not": {"if": {}, "then": {}, "else": {}}, "dependentSchemas": {"a": {}}}, {}, True),
        ({"prefixItems": [{"$ref": "#"}], "items": False, "contains": {}}, [[], []], True),
        ({"items": [{"$ref": "#"}], "additionalItems": {"$ref": "#"}}, [[], [[]]], True),
        ({"$dynamicRef": "#nowhere", "properties": {"a": True}}, {"a": 1, "b": 2}, True),
        ({"propertyNames": {}}, dict.fromkeys(map(str, range(MAX_STEPS + 1)), 0), False),
        (True, {"a": 1}, True),
    ],
)
def test_the_steps_are_counted(schema: Any, value: Any, affordable: bool) -> None:
    assert explainable(References(schema), schema, value) is affordable


MANY = ["x" * 20] * 20_000
HEAVY: dict[str, tuple[dict[str, Any], Any]] = {
    "long lists of options": ({"items": {"enum": [[n] for n in range(9000)]}}, [0] * 2_000),
    "a large constant": ({"items": {"const": list(range(20_000))}}, [0] * 5000),
    "much that is required": ({"required": [str(n) for n in range(1000)]}, {"x": MANY}),
    "and that depends": ({"dependentRequired": {"x": [str(n) for n in range(1000)]}}, {"x": MANY}),
    "many names": ({"propertyNames": {"maxLength": 0}}, {f"{n:09}": 0 for n in range(9000)}),
    "a long list against all": ({"allOf": [{"type": "string"}] * 1000}, MANY),
    "a long list against any": ({"anyOf": [{"type": "string"}] * 1000}, MANY),
    "a long text": ({"allOf": [{"type": "array"}] * 1000}, "x" * 1_000_000),
}


@each_row(("schema", "value"), HEAVY.values(), ids=HEAVY)
def test_reasons_that_would_fill_the_memory_are_not_listed(schema: Any, value: Any) -> None:
    """Each reason holds a copy of what it is about: of 1 MB and a thousand reasons, gigabytes."""
    validator = compile_validator(schema)
    assert not validator.is_valid(value)
    assert validator.violations(value) == ()


def test_a_fault_in_a_large_value_is_explained() -> None:
    row = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    schema = {"type": "object", "properties": {"rows": {"type": "array", "items": row}}}
    rows: list[Any] = [{"id": n} for n in range(4000)] + [{"id": "x"}]
    (violation,) = compile_validator(schema).violations({"rows": rows})
    assert violation.path == "/rows/4000/id"
