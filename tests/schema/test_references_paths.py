"""The language of allowlists."""

from __future__ import annotations

from typing import Any

import pytest
from rows import each_row

from toolcrib.schema import references
from toolcrib.schema.references import path_exists, split_path


@each_row(
    ("path", "steps"),
    [
        ("total", ("total",)),
        ("a.b", ("a", "b")),
        ("items[].id", ("items", "[]", "id")),
        ("[]", ("[]",)),
        ("[].name", ("[]", "name")),
        ("grid[][].x", ("grid", "[]", "[]", "x")),
        ("größe", ("größe",)),
    ],
)
def test_steps(path: str, steps: tuple[str, ...]) -> None:
    assert split_path(path) == steps


@each_row("path", ["", ".", "a.", ".a", "a..b"])
def test_empty_steps(path: str) -> None:
    with pytest.raises(ValueError, match="empty step"):
        split_path(path)


SCHEMA: dict[str, Any] = {
    "type": "object",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"id": {}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        }
    },
    "properties": {
        "total": {"type": "integer"},
        "root": {"$ref": "#/$defs/node"},
        "maybe": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"$ref": "#/$defs/node"}]},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "closed": {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
        "open": {"type": "object"},
        "any": True,
        "x": {"type": "object", "patternProperties": {"^p": {"properties": {"q": {}}}}},
        "titled": {"title": "Any value", "description": "As pydantic writes `Any`."},
        "either": {"type": ["object", "null"]},
        "row": {"type": ["array", "null"]},
        "old": {"items": [{"const": 1}, {"properties": {"id": {}}}], "additionalItems": False},
        "then": {"if": {"properties": {"i": {}}}, "then": {"properties": {"t": {}}}},
        "needs": {"properties": {"a": {}}, "dependentSchemas": {"a": {"properties": {"d": {}}}}},
        "dynamic": {"$dynamicRef": "#/$defs/node"},
    },
}


@each_row(
    ("path", "exists"),
    [
        ("total", True),
        ("totals", False),
        ("total.cents", False),
        ("total[]", False),
        ("root.id", True),
        ("root.kids[].kids[].id", True),
        ("root.kids.id", False),
        ("root.kids[].name", False),
        ("maybe.id", True),
        ("maybe.name", False),
        ("pair[].id", True),
        ("counts.anything", True),
        ("counts.anything.more", False),
        ("closed.a.whatever", True),
        ("closed.b", False),
        ("open.b.c[].d", True),
        ("any[].thing", True),
        ("x.pre.q", True),
        ("titled.a[].b", True),
        ("either.a.b", True),
        ("either[]", False),
        ("row[].a", True),
        ("row.a", False),
        ("old[].id", True),
        ("old[].no", False),
        ("then.t", True),
        ("then.i", False),
        ("needs.d", True),
        ("needs.e", False),
        ("dynamic.kids[].id", True),
        ("dynamic.no", False),
    ],
)
def test_what_a_result_can_have(path: str, exists: bool) -> None:
    assert path_exists(SCHEMA, path) is exists


def test_alternatives_that_lead_back_to_themselves_end() -> None:
    """Trying each way of 2**50 would not."""
    loop = {"anyOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/a"}]}
    schema: dict[str, Any] = {"$defs": {"a": loop, "b": dict(loop)}, "$ref": "#/$defs/a"}
    assert not path_exists(schema, "nothing.here")


def test_a_long_chain_of_references_is_no_recursion() -> None:
    schema: dict[str, Any] = {
        "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(3000)},
        "$ref": "#/$defs/0",
    }
    schema["$defs"]["3000"] = {"properties": {"a": {}}}
    assert path_exists(schema, "a")


def test_thousands_of_names_are_looked_up_in_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    walks = 0
    subschemas = references.subschemas

    def counting(schema: Any) -> Any:
        nonlocal walks
        walks += 1
        return subschemas(schema)

    monkeypatch.setattr(references, "subschemas", counting)
    branches = [{"$ref": f"#n{i}"} for i in range(500)]
    shelf = {str(i): {"$anchor": f"n{i}", "type": "null"} for i in range(500)}
    assert not path_exists({"anyOf": branches, "$defs": shelf}, "a")
    assert walks == 1
