"""Several schemas that all apply, as one: what `allOf` says without saying `allOf`.

Nothing is guessed: where one schema cannot say what two say together, there is no merged one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from toolcrib.schema.lower.tree import ANNOTATIONS, SHELVES, Context, names_in
from toolcrib.schema.references import REFS
from toolcrib.values.json import JsonObject, canonical_json


class UnmergeableError(Exception):
    """There is no one schema for both; `keyword` is why."""

    def __init__(self, keyword: str) -> None:
        super().__init__(keyword)
        self.keyword = keyword


def merge_schemas(first: JsonObject, second: JsonObject) -> JsonObject:
    """Return a schema for what is valid under both, or raise UnmergeableError."""
    _check_close_object(first, second)
    _check_close_object(second, first)
    result = dict(first)
    for keyword, value in second.items():
        if keyword not in result:
            result[keyword] = value
        elif keyword in ANNOTATIONS or canonical_json(result[keyword]) == canonical_json(value):
            continue
        elif keyword in _RULES:
            result[keyword] = _RULES[keyword](result[keyword], value)
        else:
            raise UnmergeableError(keyword)
    return result


def _check_close_object(closed: JsonObject, other: JsonObject) -> None:
    """Refuse to merge where one restricts undeclared properties that the other declares."""
    declared: Any = closed.get("properties", {})
    added: Any = other.get("properties", {})
    if all(name in declared for name in added):
        return
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if closed.get(keyword, True) not in (True, {}):
            raise UnmergeableError(keyword)
    if "patternProperties" in closed:
        raise UnmergeableError("patternProperties")


def _types(first: Any, second: Any) -> Any:
    wanted = set(names_in(second))
    if "number" in wanted:
        wanted.add("integer")
    common = [name for name in names_in(first) if name in wanted]
    if "number" in names_in(first) and "integer" in wanted and "number" not in wanted:
        common.append("integer")
    if not common:
        raise UnmergeableError("type")
    return common[0] if len(common) == 1 else common


def _values(first: Any, second: Any) -> Any:
    allowed = {canonical_json(value) for value in second}
    common = [value for value in first if canonical_json(value) in allowed]
    if not common:
        raise UnmergeableError("enum")
    return common


def _both(first: Any, second: Any) -> Any:
    """Return both; they are merged in their turn, when they are lowered."""
    return {"allOf": [first, second]}


def _properties(first: Any, second: Any) -> Any:
    result = dict(first)
    for name, schema in second.items():
        if name not in result or canonical_json(result[name]) == canonical_json(schema):
            result.setdefault(name, schema)
        else:
            result[name] = _both(result[name], schema)
    return result


def _others(first: Any, second: Any) -> Any:
    if first in (True, {}):
        return second
    if second in (True, {}):
        return first
    if first is False or second is False:
        return False
    return _both(first, second)


_RULES: dict[str, Callable[[Any, Any], Any]] = {
    "type": _types,
    "enum": _values,
    "properties": _properties,
    "required": lambda a, b: list(dict.fromkeys([*a, *b])),
    "items": _both,
    "additionalProperties": _others,
    "unevaluatedProperties": _others,
    "propertyNames": _both,
    "minimum": max,
    "exclusiveMinimum": max,
    "minLength": max,
    "minItems": max,
    "minProperties": max,
    "maximum": min,
    "exclusiveMaximum": min,
    "maxLength": min,
    "maxItems": min,
    "maxProperties": min,
    "uniqueItems": lambda a, b: a or b,
}


# A part and all that applies at the same place: its references and the members of `allOf`.


_MOST_PIECES = 200
_TOGETHER = frozenset({"allOf", *REFS})
_Piece: TypeAlias = "tuple[JsonObject, object]"  # what applies, and the part that says so


def flatten(ctx: Context, node: JsonObject, *, top: bool = False) -> tuple[JsonObject, list[int]]:
    """Return the part without what its dialect lacks, and the ids of what was inlined for it.

    At the top, `allOf` that cannot be merged is left for wrapping.
    """
    if node.keys().isdisjoint(_TOGETHER):
        return node, []
    node = _one_reference(ctx, node)
    wants_all = "allOf" in node and not ctx.keeps("allOf", top=top)
    if not wants_all and not _wants_target(ctx, node, top=top):
        return node, []
    pieces, opened = _gather(ctx, node)
    result: JsonObject = {}
    origins: dict[str, object] = {}
    for piece, source in pieces:
        try:
            result = merge_schemas(result, piece)
        except UnmergeableError as reason:
            if top and ctx.keeps("allOf"):
                return node, []
            ctx.add_loss(
                node,
                "allOf" if "allOf" in node else "$ref",
                "refused" if ctx.dialect.closed else "lost",
                f"what applies together cannot be said as one schema ('{reason.keyword}')",
            )
            continue
        for keyword in piece:
            origins.setdefault(keyword, source)
    return ctx.places.made(result, node, origins), opened


def _one_reference(ctx: Context, node: JsonObject) -> JsonObject:
    """Replace `allOf` around a single member, next to annotations only, by that member."""
    members = node.get("allOf")
    if ctx.refs != "plain" or not isinstance(members, list) or len(members) != 1:
        return node
    own = {key: value for key, value in node.items() if key != "allOf"}
    if not own.keys() <= ANNOTATIONS or not isinstance(members[0], dict):
        return node
    return ctx.places.made({**members[0], **own}, members[0])


def _wants_target(ctx: Context, node: JsonObject, *, top: bool) -> bool:
    if not any(isinstance(node.get(keyword), str) for keyword in REFS):
        return False
    if ctx.refs == "none" or (top and "$ref" in ctx.dialect.root_without):
        return True
    if ctx.refs == "any" or ctx.dialect.ref_siblings:
        return False
    return not node.keys() - set(REFS) <= ANNOTATIONS


def _gather(ctx: Context, node: JsonObject) -> tuple[list[_Piece], list[int]]:
    """Return what applies at a part, each piece once, with the part that says so."""
    pieces: list[_Piece] = []
    opened: list[int] = []
    stack: list[Any] = [node]
    while stack and len(pieces) < _MOST_PIECES:
        part = stack.pop()
        if not isinstance(part, dict):
            pieces += [] if part is True else [({"not": {}}, node)]
            continue
        shelves = SHELVES if part is ctx.root and part is not node else ()
        own = {k: v for k, v in part.items() if k not in ("allOf", *REFS, *shelves)}
        pieces.append((own, part))
        stack.extend(reversed(part.get("allOf", ())))
        for keyword in REFS:
            target = ctx.references.resolve(part[keyword]) if keyword in part else None
            if target is not None and id(target) not in opened:
                opened.append(id(target))
                stack.append(target)
    return pieces, opened
