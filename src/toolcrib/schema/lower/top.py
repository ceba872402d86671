"""The top of a view: a plain object, or one property that holds what the top may not say."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from toolcrib.schema.lower.as_it_is import taken_as_it_is
from toolcrib.schema.lower.base import Dialect, Lowered
from toolcrib.schema.lower.compact import compact, size_of
from toolcrib.schema.lower.context import Context
from toolcrib.schema.lower.flatten import flattened
from toolcrib.schema.lower.limits import over_limits
from toolcrib.schema.lower.rewrite import rewritten
from toolcrib.schema.lower.tree import copied, target_of
from toolcrib.schema.lower.walk import view_of, written
from toolcrib.schema.lower.way_back import ViewWayBack
from toolcrib.values.json import JsonObject

WRAPPER = "arguments"  # the one property of a wrapped top, with `_` added where the author has it
_DOCUMENT = ("$defs", "definitions", "$schema", "$id")


def lower(schema: JsonObject, dialect: Dialect) -> Lowered:
    """The view of a schema in a dialect, what it loses, and the way back for its arguments.

    The schema is left as it is and shares nothing with the view. Raises nothing for a schema that
    passed `check_schema` and compiles; that one should have is the caller's to see to.
    """
    if taken_as_it_is(schema, dialect):
        return Lowered(copied(schema), ())
    lowered, limit = _lowered(schema, dialect), dialect.compact_over
    if limit is None or size_of(lowered.schema) <= limit:
        return lowered
    if dialect.refs == "any":  # a reference might lead into what is cut: definitions are kept whole
        lowered = _lowered(schema, msgspec.structs.replace(dialect, refs="plain"))
    view, shortened = compact(lowered.schema, limit, cut=not dialect.closed)
    return Lowered(view, (*lowered.losses, *shortened), lowered.way_back)


def _lowered(schema: JsonObject, dialect: Dialect) -> Lowered:
    ctx = Context(schema, dialect)
    view, wrapper = _top(ctx)
    _define(ctx, view)
    losses = (*ctx.losses(), *over_limits(view, dialect))
    way_back = None
    if ctx.filled or wrapper is not None:
        way_back = ViewWayBack(json.dumps(schema), wrapper=wrapper, filled=dialect.all_required)
    return Lowered(view, losses, way_back)


def _top(ctx: Context) -> tuple[JsonObject, str | None]:
    flat, opened = flattened(ctx, ctx.root, top=True)
    if opened and ctx.refs == "any":
        ctx.refs = "plain"  # the top is a copy: what it calls an anchor would be there twice
    flat = rewritten(ctx, flat)
    if _must_wrap(ctx, flat):
        return _wrapped(ctx, flat)
    if ctx.dialect.root_without and flat.get("type") != "object":
        flat = ctx.places.made({"type": "object", **flat, **_OBJECT}, flat)
    ctx.open.update(opened)
    view = written(ctx, flat, top=True)
    ctx.open.subtract(opened)
    return view, None


_OBJECT: JsonObject = {"type": "object"}  # arguments are, whatever else the author admits


def _must_wrap(ctx: Context, flat: JsonObject) -> bool:
    """Whether the top needs what only a property may have."""
    if any(keyword in flat and ctx.keeps(keyword) for keyword in ctx.dialect.root_without - _TEXTS):
        return True
    pattern = ctx.dialect.property_names
    properties = flat.get("properties")
    if pattern is None or not isinstance(properties, dict):
        return False
    bad = [name for name in properties if not re.fullmatch(pattern, name)]
    if bad:
        text = f"names outside {pattern}: all is put under one property, whose parts may have them"
        ctx.lose(flat, "properties", "doubtful", text)
    return bool(bad)


_TEXTS = frozenset({"description"})


def _wrapped(ctx: Context, flat: JsonObject) -> tuple[JsonObject, str]:
    """The whole under one property; references into it become references to definitions."""
    taken = _declared(ctx, flat)
    name = WRAPPER
    while name in taken:
        name += "_"
    ctx.wrapped = True
    ctx.refs = "plain" if ctx.refs == "any" else ctx.refs
    part = {key: value for key, value in ctx.root.items() if key not in _DOCUMENT}
    inner = view_of(ctx, ctx.places.made(part, ctx.root))
    view: JsonObject = {"type": "object", "properties": {name: inner}, "required": [name]}
    if ctx.keeps("additionalProperties"):
        view["additionalProperties"] = False
    return view, name


def _declared(ctx: Context, flat: JsonObject) -> set[str]:
    """The names of the properties of the top and of its alternatives."""
    names: set[str] = set()
    branches: list[Any] = [flat]
    for keyword in ("anyOf", "oneOf", "allOf"):
        found = flat.get(keyword)
        branches += found if isinstance(found, list) else []
    for branch in branches:
        target = target_of(ctx.references, branch)
        properties = target.get("properties") if target is not None else None
        names |= properties.keys() if isinstance(properties, dict) else set()
    return names


def _define(ctx: Context, view: JsonObject) -> None:
    """Lowers what is referred to, and what that refers to in its turn."""
    done: JsonObject = {}
    while len(done) < len(ctx.definitions):
        for name, target in list(ctx.definitions.items()):
            if name not in done:
                done[name] = view_of(ctx, target)
    if done:
        view["$defs"] = done
