"""Schemas and values valid under them, made together; and what a dialect demands of a view."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "b", "c", "kind", "n_1")
_TEXT = st.text(alphabet="abcxyz é", max_size=4)


def _numbers() -> st.SearchStrategy[tuple[Any, Any]]:
    return st.one_of(
        st.tuples(st.just({"type": "integer"}), st.integers(-9, 9)),
        st.tuples(st.just({"type": "integer", "minimum": 2, "maximum": 9}), st.integers(2, 9)),
        st.tuples(st.just({"type": "number", "exclusiveMinimum": 0}), st.integers(1, 5)),
        st.tuples(st.just({"type": "integer", "multipleOf": 3}), st.sampled_from([0, 3, -6])),
        st.tuples(st.just({"type": "boolean"}), st.booleans()),
    )


def _texts() -> st.SearchStrategy[tuple[Any, Any]]:
    return st.one_of(
        st.tuples(st.just({"type": "string"}), _TEXT),
        st.tuples(st.just({"type": "string", "minLength": 1, "maxLength": 3}), st.just("ab")),
        st.tuples(st.just({"type": "string", "format": "date"}), st.just("2024-02-29")),
        st.tuples(st.just({"type": "string", "pattern": "^x"}), st.just("xa")),
        st.tuples(st.just({"type": "string", "enum": ["p", "q"]}), st.sampled_from(["p", "q"])),
        st.tuples(st.just({"enum": ["p", 1, None]}), st.sampled_from(["p", 1, None])),
        st.tuples(st.just({"const": "fixed"}), st.just("fixed")),
        st.tuples(st.just({"type": "string", "default": "d", "title": "T"}), _TEXT),
    )


def _nullable(inner: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    def made(draw: Any) -> tuple[Any, Any]:
        schema, value = draw(inner)
        value = draw(st.sampled_from([None, value]))
        forms: list[Any] = [{"anyOf": [schema, {"type": "null"}]}]
        if isinstance(schema.get("type"), str) and "enum" not in schema:
            forms.append({**schema, "type": [schema["type"], "null"]})
        defaults = [{**forms[0], "default": None}, {**forms[0], "default": value}]
        return draw(st.sampled_from([*forms, *defaults])), value

    return st.composite(made)()


@st.composite
def _objects(draw: Any, inner: st.SearchStrategy[tuple[Any, Any]]) -> tuple[Any, Any]:
    properties: dict[str, Any] = {}
    value: dict[str, Any] = {}
    required = []
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=4)):
        properties[name], example = draw(inner)
        if draw(st.booleans()):
            required.append(name)
            value[name] = example
        elif draw(st.booleans()):
            value[name] = example
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    if draw(st.booleans()):
        schema["additionalProperties"] = False
    if draw(st.integers(0, 4)) == 0:
        schema["description"] = "An object. It has parts."
    return schema, value


@st.composite
def _arrays(draw: Any, inner: st.SearchStrategy[tuple[Any, Any]]) -> tuple[Any, Any]:
    schema, value = draw(inner)
    if draw(st.integers(0, 3)) == 0:
        second, other = draw(inner)
        tuples: dict[str, Any] = {"type": "array", "prefixItems": [schema, second], "items": False}
        return {**tuples, "minItems": 2}, [value, other]
    length = draw(st.integers(0, 2))
    limits: dict[str, Any] = draw(st.sampled_from([{}, {"maxItems": 3}, {"minItems": length}]))
    return {"type": "array", "items": schema, **limits}, [value] * length


@st.composite
def _tagged(draw: Any, inner: st.SearchStrategy[tuple[Any, Any]]) -> tuple[Any, Any]:
    """A union of objects that a tag tells apart."""
    branches, values = [], []
    for tag in draw(st.sampled_from([("p", "q"), ("p", "q", "r")])):
        schema, value = draw(_objects(inner))
        schema["properties"]["kind"] = {"const": tag}
        schema["required"] = list(dict.fromkeys([*schema.get("required", ()), "kind"]))
        branches.append(schema)
        values.append({**value, "kind": tag})
    keyword = draw(st.sampled_from(["anyOf", "oneOf"]))
    return {keyword: branches}, draw(st.sampled_from(values))


@st.composite
def _untagged(draw: Any, inner: st.SearchStrategy[tuple[Any, Any]]) -> tuple[Any, Any]:
    pairs = draw(st.lists(inner, min_size=2, max_size=3))
    return {"anyOf": [schema for schema, _ in pairs]}, draw(st.sampled_from(pairs))[1]


@st.composite
def _all_of(draw: Any, inner: st.SearchStrategy[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Objects whose properties are disjoint, all of which apply."""
    first, value = draw(_objects(inner))
    second, other = draw(_objects(inner))
    for schema in (first, second):
        schema.pop("additionalProperties", None)
    second["properties"] = {f"{name}_2": s for name, s in second["properties"].items()}
    if "required" in second:
        second["required"] = [f"{name}_2" for name in second["required"]]
    whole = {**value, **{f"{name}_2": v for name, v in other.items()}}
    return draw(st.sampled_from([{"allOf": [first, second]}, {**first, "allOf": [second]}])), whole


def _leaves() -> st.SearchStrategy[tuple[Any, Any]]:
    leaf = st.one_of(_numbers(), _texts())
    return st.one_of(leaf, _nullable(leaf))


def _wider(inner: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    objects = _objects(inner)
    return st.one_of(
        objects,
        _arrays(inner),
        _nullable(objects),
        _tagged(inner),
        _untagged(inner),
        _all_of(inner),
    )


parts = st.recursive(_leaves(), _wider, max_leaves=6)
TREE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/tree"}},
    "required": ["v"],
    "additionalProperties": False,
}
TREES = ({"v": 1}, {"v": 1, "next": {"v": 2}}, {"v": 1, "next": {"v": 2, "next": {"v": 3}}})


@st.composite
def tools(draw: Any) -> tuple[Any, Any]:
    """The input schema of a tool and valid arguments: sometimes with definitions, or a union on top."""
    shape = draw(st.integers(0, 5))
    schema, value = draw({4: _tagged(parts), 5: _all_of(parts)}.get(shape, _objects(parts)))
    if shape == 4:
        schema = {"type": "object", **schema}
    if shape in (1, 2):
        shared, example = draw(parts)
        schema["$defs"] = {"shared": shared, "tree": TREE}
        schema["properties"]["s"] = {"$ref": "#/$defs/shared", "description": "shared"}
        schema["properties"]["t"] = {"$ref": "#/$defs/tree"}
        if draw(st.booleans()):
            value["s"] = example
        if draw(st.booleans()):
            value["t"] = draw(st.sampled_from(TREES))
    return schema, value


def subparts(view: Any) -> list[tuple[dict[str, Any], int]]:
    """Every schema in a view, with its depth; written apart from the code that is tested."""
    found = []
    todo = [(view, 0)]
    while todo:
        node, depth = todo.pop()
        assert isinstance(node, dict), node
        found.append((node, depth))
        for keyword in ("properties", "$defs", "patternProperties"):
            todo += [(child, depth + 1) for child in node.get(keyword, {}).values()]
        for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
            todo += [(child, depth + 1) for child in node.get(keyword, [])]
        for keyword in ("items", "not"):
            if isinstance(node.get(keyword), dict):
                todo.append((node[keyword], depth + 1))
    return found


_STRICT = {
    "type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const",
    "$ref", "$defs", "title", "description", "pattern", "format", "multipleOf", "minimum",
    "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems",
}  # fmt: skip
_GEMINI = {
    "type", "format", "title", "description", "enum", "items", "prefixItems", "minItems", "maxItems",
    "minimum", "maximum", "anyOf", "properties", "additionalProperties", "required",
}  # fmt: skip
_ANTHROPIC_STRICT = {
    "type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const",
    "title", "description", "default", "format",
}  # fmt: skip
_PORTABLE = {"type", "items", "description", "enum", "properties", "required"}
KEYWORDS = {
    "openai-strict": _STRICT,
    "anthropic-strict": _ANTHROPIC_STRICT,
    "gemini": _GEMINI,
    "portable": _PORTABLE,
    "ollama": _PORTABLE | {"anyOf"},
}


def check_view(name: str, view: dict[str, Any]) -> None:
    """That a view keeps to the rules of the dialect of that name."""
    if name == "verbatim":
        return
    assert view["type"] == "object"
    assert not {"anyOf", "oneOf", "allOf"} & view.keys()
    for node, _ in subparts(view):
        if name in KEYWORDS:
            assert node.keys() <= KEYWORDS[name], (node, node.keys() - KEYWORDS[name])
        if name not in ("anthropic", "ollama") and node.get("type") == "array":
            assert "items" in node or "prefixItems" in node
        if name.endswith("-strict"):
            _check_strict(view, node)
            assert name != "openai-strict" or _names(node, "required") == _names(node, "properties")
    if name in ("anthropic", "anthropic-strict", "portable"):
        assert all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", key) for key in view.get("properties", {}))
    if name == "ollama":
        assert "description" not in view


def _check_strict(view: dict[str, Any], node: dict[str, Any]) -> None:
    if "$ref" in node:
        assert node.keys() == {"$ref"}
        target = re.fullmatch(r"#(?:/\$defs/([A-Za-z0-9_.-]+))?", node["$ref"])
        assert target, node
        assert target[1] is None or target[1] in view["$defs"]
        return
    assert "type" in node or "anyOf" in node, node
    if "object" in (
        [node.get("type")] if isinstance(node.get("type"), str) else node.get("type", [])
    ):
        assert node["additionalProperties"] is False
        assert _names(node, "required") <= _names(node, "properties")


def _names(node: dict[str, Any], keyword: str) -> set[str]:
    return set(node.get(keyword, ()))
