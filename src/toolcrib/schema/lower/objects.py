"""Closed objects: nothing undeclared; and, where a dialect wants it, every property required.

What the author opened is told as a loss; what can only be open is refused.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from toolcrib.schema.lower.context import Context
from toolcrib.schema.lower.rewrite import differ
from toolcrib.schema.lower.tree import REFS, default_of, names_in, target_of
from toolcrib.values.json import JsonObject

_REST = ("additionalProperties", "unevaluatedProperties")
_SCALARS = frozenset({"string", "number", "integer", "boolean"})


def closed(ctx: Context, node: JsonObject, view: JsonObject, *, top: bool) -> None:
    """Closes the view of an object, in place."""
    if "object" not in names_in(view.get("type")):
        return
    declared: Any = node.get("properties", {})
    _check_rest(ctx, node, top=top)
    required = names_in(node.get("required"))
    for name in required:
        if name not in declared:
            ctx.lose(node, "required", "refused", "a required property is not declared")
    properties: Any = view.get("properties", {})
    if ctx.dialect.all_required:
        _fill(ctx, declared, properties, required)
        view["required"] = list(properties)
    elif required:
        view["required"] = [name for name in required if name in properties]
    view["properties"] = properties
    view["additionalProperties"] = False


def _fill(ctx: Context, declared: Any, properties: Any, required: list[str]) -> None:
    """What is optional takes null, in place; where null means something, that is told."""
    for name in [name for name in properties if name not in required]:
        ctx.filled = True
        part = declared[name]
        if not ctx.nulls.taken_by(part):
            properties[name] = nullable(properties[name])
        elif isinstance(part, dict) and (default := default_of(ctx.references, part)) != (None,):
            ctx.lose(part, _about_null(part), "doubtful", _SENT_NULL if default else _LEFT_OUT)


_SENT_NULL = "a null is taken as null: for the default, the model has to send its value"
_LEFT_OUT = "left out or null is the same to the model, which sends null for both"


def _check_rest(ctx: Context, node: JsonObject, *, top: bool) -> None:
    rest = [node[keyword] for keyword in _REST if keyword in node]
    if "patternProperties" in node:
        ctx.lose(node, "patternProperties", "refused", "a map cannot be closed")
    elif any(isinstance(value, dict) and value for value in rest) and False not in rest:
        ctx.lose(node, "additionalProperties", "refused", "a map cannot be closed")
    elif False not in rest and not node.get("properties") and not top:
        ctx.lose(node, "type", "refused", "an object without declared properties cannot be closed")
    elif rest and False not in rest:
        keyword = next(keyword for keyword in _REST if keyword in node)
        ctx.lose(node, keyword, "lost", "only declared properties can be given")


def _about_null(schema: Any) -> str:
    """The keyword of an optional part that has most to do with its taking null."""
    keywords = ("default", "type", "enum", "const", "anyOf", "oneOf", "allOf", *REFS)
    return next((keyword for keyword in keywords if keyword in schema), "type")


def nullable(view: JsonObject) -> JsonObject:
    """The view of a property that may be left out: it takes null besides."""
    kinds = names_in(view.get("type"))
    alternatives = view.get("anyOf")
    if isinstance(alternatives, list):
        return {**view, "anyOf": [*alternatives, {"type": "null"}]}
    if not kinds or "object" in kinds or "array" in kinds or "const" in view:
        outer = {key: view[key] for key in ("description",) if key in view}
        inner = {key: value for key, value in view.items() if key not in outer}
        return {**outer, "anyOf": [inner, {"type": "null"}]}
    new: JsonObject = {**view, "type": [*kinds, "null"]}
    if isinstance(view.get("enum"), list) and None not in view["enum"]:  # type: ignore[operator]
        new["enum"] = [*view["enum"], None]  # type: ignore[misc]
    if "null" in kinds:
        new["type"] = view["type"]
    return new


def check_alternatives(ctx: Context, node: JsonObject) -> None:
    """Closed alternatives with the same properties may be indistinguishable once null means absent."""
    branches: Any = node.get("anyOf")
    if branches is None:
        return
    parts = [part for b in branches if (part := target_of(ctx.references, b)) is not None]
    by_names: dict[frozenset[str], list[JsonObject]] = {}
    for part in parts:
        names = frozenset(_properties(part))
        if names:
            by_names.setdefault(names, []).append(part)
    for alike in by_names.values():
        for one, other in combinations(alike[:20], 2):
            if not differ(ctx, one, other) and _mistakable(ctx, one, other):
                ctx.lose(
                    node,
                    "anyOf",
                    "doubtful",
                    "two alternatives have the same properties: a null for one may be taken for "
                    "a property that the other leaves out",
                )
                return


def _properties(part: JsonObject) -> dict[str, Any]:
    properties = part.get("properties")
    return properties if isinstance(properties, dict) else {}


def _mistakable(ctx: Context, one: JsonObject, other: JsonObject) -> bool:
    mine, theirs = _properties(one), _properties(other)
    needed = set(names_in(one.get("required"))), set(names_in(other.get("required")))
    for name, schema in mine.items():
        kinds = [ctx.nulls.taken_by(schema), ctx.nulls.taken_by(theirs[name])]
        dropped = [name not in needed[i] and not kinds[i] for i in (0, 1)]
        if (dropped[0] and kinds[1]) or (dropped[1] and kinds[0]):
            return True
        if not _scalar(ctx, schema) or not _scalar(ctx, theirs[name]):
            return True
    return False


def _scalar(ctx: Context, schema: Any) -> bool:
    part = target_of(ctx.references, schema)
    if part is None:
        return False
    kinds = set(names_in(part.get("type"))) - {"null"}
    return (bool(kinds) and kinds <= _SCALARS) or "enum" in part or "const" in part
