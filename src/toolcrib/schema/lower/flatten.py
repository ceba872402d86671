"""A part and all that applies at the same place: its references and the members of `allOf`."""

from __future__ import annotations

from typing import Any, TypeAlias

from toolcrib.schema.lower.context import Context
from toolcrib.schema.lower.merge import UnmergeableError, merged
from toolcrib.schema.lower.tree import ANNOTATIONS, REFS, SHELVES
from toolcrib.values.json import JsonObject

_MOST_PIECES = 200
_TOGETHER = frozenset({"allOf", *REFS})
_Piece: TypeAlias = "tuple[JsonObject, object]"  # what applies, and the part that says so


def flattened(ctx: Context, node: JsonObject, *, top: bool = False) -> tuple[JsonObject, list[int]]:
    """The part without what its dialect does not know there, and the ids of what was inlined for it.

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
            result = merged(result, piece)
        except UnmergeableError as reason:
            if top and ctx.keeps("allOf"):
                return node, []
            ctx.lose(
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
    """`allOf` around a single member, beside annotations only, is that member."""
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
    """What applies at a part, each with the part that says so; a part counts once."""
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
