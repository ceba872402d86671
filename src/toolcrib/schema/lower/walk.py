"""One walk over a schema makes its view, the same for all dialects: what differs is data.

Each part is flattened (references, `allOf`), said with other keywords where the dialect lacks some,
written out keyword by keyword, and finished (sentences, types, closing).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolcrib.schema.lower.context import Context
from toolcrib.schema.lower.flatten import flattened
from toolcrib.schema.lower.objects import check_alternatives, closed
from toolcrib.schema.lower.rewrite import but_for_null, rewritten
from toolcrib.schema.lower.tree import (
    ASSERTIONS,
    LISTS,
    MAPS,
    REFS,
    SINGLES,
    copied,
    names_in,
)
from toolcrib.schema.lower.words import says_nothing, sentence, with_sentences
from toolcrib.values.json import JsonObject

_BOOLEAN = frozenset({"additionalProperties", "unevaluatedProperties"})  # known as such everywhere
_CLOSING = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties"})
_LOOKAROUND = ("(?=", "(?!", "(?<=", "(?<!")
_KINDS: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    dict: "object",
    list: "array",
}


def view_of(ctx: Context, node: Any) -> Any:
    """The view of one part and of what lies below it."""
    if not isinstance(node, dict):
        return _boolean(ctx, node)
    ctx.spent += 1
    flat, opened = flattened(ctx, node)
    if opened and ctx.over(opened):
        return _cut(ctx, node, flat)
    ctx.level += 1
    ctx.open.update(opened)
    other = but_for_null(ctx, flat)
    view = written(ctx, rewritten(ctx, flat)) if other is None else _or_null(view_of(ctx, other))
    ctx.open.subtract(opened)
    ctx.level -= 1
    return view


def _or_null(view: JsonObject) -> JsonObject:
    """The view of a part that may be null, by its type; without a type, all is admitted anyhow."""
    kinds = names_in(view.get("type"))
    if kinds and "null" not in kinds:
        view["type"] = [*kinds, "null"]
    values = view.get("enum")
    if isinstance(values, list) and None not in values:
        view["enum"] = [*values, None]
    return view


def _boolean(ctx: Context, value: Any) -> Any:
    if ctx.dialect.booleans:
        return value
    return {} if value is not False or not ctx.keeps("not") else {"not": {}}


def _cut(ctx: Context, node: JsonObject, flat: JsonObject) -> JsonObject:
    """A part as its type alone: what lies below is not told."""
    if ctx.dialect.closed:
        inlined = "it is recursive, or too much to be inlined"
        extended = "a recursive part that is extended cannot be a definition"
        ctx.lose(node, "$ref", "refused", inlined if ctx.refs == "none" else extended)
    else:
        ctx.lose(node, "$ref", "lost", "it is told to a limited depth only; its type stays")
    kept = ("type", "description", "enum", "const")
    bare = {key: copied(flat[key]) for key in kept if key in flat and ctx.keeps(key)}
    if "type" not in bare and "properties" in flat:
        bare["type"] = "object"
    _needs_items(ctx, node, bare)
    return bare


def written(ctx: Context, node: JsonObject, *, top: bool = False) -> JsonObject:
    """A part that needs no more rewriting, keyword by keyword, and finished."""
    view: JsonObject = {}
    sentences: list[str] = []
    for keyword, value in node.items():
        if ctx.dialect.closed and keyword in _CLOSING:
            continue  # told and said by `closed`
        if ctx.keeps(keyword, top=top) and _known_value(ctx, keyword, value):
            view[keyword] = _kept(ctx, keyword, value)
            if keyword in LISTS and not view[keyword]:
                del view[keyword]
                ctx.lose(node, keyword, "lost", "no value is valid there, which cannot be said")
        else:
            sentences += _told(ctx, node, keyword, value, top=top)
    if sentences:
        view["description"] = with_sentences(view.get("description"), sentences)
    for finish in _FINISHES:
        finish(ctx, node, view)
    if ctx.dialect.closed:
        _typed(ctx, node, view)
        closed(ctx, node, view, top=top)
        if ctx.dialect.all_required:
            check_alternatives(ctx, node)
    return view


def _known_value(ctx: Context, keyword: str, value: Any) -> bool:
    if keyword == "format":
        return ctx.dialect.formats is None or value in ctx.dialect.formats
    if keyword == "pattern" and not ctx.dialect.lookaround:
        return not any(mark in str(value) for mark in _LOOKAROUND)
    return True


def _kept(ctx: Context, keyword: str, value: Any) -> Any:
    if isinstance(value, str) and keyword not in REFS:
        return value
    if keyword in MAPS and isinstance(value, dict):
        dropping = keyword == "properties" and not ctx.keeps("not")
        return {
            name: copied(child) if isinstance(child, list) else view_of(ctx, child)
            for name, child in value.items()
            if child is not False or not dropping
        }
    if (keyword in LISTS or keyword == "items") and isinstance(value, list):
        dropping = keyword == "anyOf" and not ctx.keeps("not")
        return [view_of(ctx, child) for child in value if child is not False or not dropping]
    if keyword in SINGLES and not (keyword in _BOOLEAN and isinstance(value, bool)):
        return view_of(ctx, value)
    if keyword in REFS and ctx.refs == "plain":
        return _reference(ctx, value)
    return copied(value)


def _reference(ctx: Context, ref: Any) -> Any:
    target = ctx.references.resolve(ref)
    if target is ctx.root and not ctx.wrapped:
        return "#"
    return ref if target is None else f"#/$defs/{ctx.definition_name(target, ref)}"


def _told(ctx: Context, node: JsonObject, keyword: str, value: Any, *, top: bool) -> list[str]:
    """The sentence for a keyword that the dialect does not know, and the loss if it is one."""
    if says_nothing(keyword, value):
        return []
    said = sentence(keyword, value) if ctx.keeps("description", top=top) else ""
    if keyword in ASSERTIONS and not (keyword == "items" and isinstance(value, list)):
        how = "it is said in the description" if said else "the model is not told"
        ctx.lose(node, keyword, "lost", f"not known there: {how}")
    return [said] if said else []


def _needs_items(ctx: Context, node: JsonObject, view: JsonObject) -> None:
    needed = ctx.dialect.need_items and not {"items", "prefixItems"} & view.keys()
    if needed and "array" in names_in(view.get("type")):
        view["items"] = {}
        if ctx.dialect.closed:
            ctx.lose(node, "items", "refused", "an array must say the type of its items")


def _lone_reference(ctx: Context, _node: JsonObject, view: JsonObject) -> None:
    """A description stays beside a reference that may have no neighbours, one level further out."""
    if "$ref" in view and len(view) > 1 and not ctx.dialect.ref_siblings and ctx.refs == "plain":
        view["anyOf"] = [{"$ref": view.pop("$ref")}]


def _typed(ctx: Context, node: JsonObject, view: JsonObject) -> None:
    """Every part has a type where objects must be closed; an unnamed one shows in its keywords."""
    for keyword in ("properties", "items", "anyOf"):
        if keyword in node and True in _booleans_in(node[keyword]):
            ctx.lose(node, keyword, "refused", "a part without a type is not known there")
    values: Any = [view["const"]] if "const" in view else view.get("enum", ())
    if any(isinstance(value, dict | list) for value in values):
        ctx.lose(node, "enum", "refused", "objects and arrays cannot be listed as values there")
    if any(keyword in view for keyword in ("type", "$ref", "anyOf")):
        return
    kinds = list(dict.fromkeys(_KINDS[type(value)] for value in values))
    if kinds:
        view["type"] = kinds[0] if len(kinds) == 1 else list(kinds)
    elif "properties" in view or "items" in view:
        view["type"] = "object" if "properties" in view else "array"
        ctx.lose(node, "type", "lost", "a value of another type can no longer be given")
    else:
        ctx.lose(node, "type", "refused", "a part without a type is not known there")


def _booleans_in(children: Any) -> list[bool]:
    """The schemas under a keyword that are but true or false."""
    if isinstance(children, dict):
        children = list(children.values())
    children = children if isinstance(children, list) else [children]
    return [child for child in children if isinstance(child, bool)]


_FINISHES: tuple[Callable[[Context, JsonObject, JsonObject], None], ...] = (
    _needs_items,
    _lone_reference,
)
