"""Shorter views of very large schemas, by stages, the same for the same schema.

Names, types and `required` of the top stay whatever happens; what goes first is what a model needs
least. Only wider views come out: nothing valid becomes invalid.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from toolcrib.schema.lower.tree import (
    MAPS,
    SHELVES,
    Dialect,
    Loss,
    copied,
    names_in,
)
from toolcrib.schema.references import children
from toolcrib.values.json import JsonObject

_TEXTS = frozenset(
    ["title", "$comment", "examples", "default", "deprecated", "readOnly", "writeOnly"]
)
_NARROWING = frozenset(
    (
        *("not", "if", "then", "else", "contains", "minContains", "maxContains"),
        *("unevaluatedProperties", "unevaluatedItems"),
    )
)
_DEPTHS = (6, 5, 4, 3, 2, 1)
_BARE = frozenset({"type", "$ref"})


def compact(
    schema: JsonObject, max_bytes: int, *, cut: bool = True
) -> tuple[JsonObject, tuple[Loss, ...]]:
    """Return a view of at most `max_bytes` (see `size_of`), if possible, and what each stage removed.

    Stages: titles, comments, examples and defaults; all but the first sentence of descriptions;
    descriptions below the top's properties; then, with `cut`, conditions and negations, and ever more
    of what lies deep, to its type alone. The losses tell how many, not each. To be cut, a view refers
    to nothing but its definitions.
    """
    view = copied(schema)
    losses: list[Loss] = []
    cutting = (_without_conditions, *map(_cutting, _DEPTHS)) if cut else ()
    for stage in (*_SHORTENING, *cutting):
        if size_of(view) <= max_bytes:
            break
        done = stage(view)
        if done is not None:
            losses = [loss for loss in losses if loss.keyword != done.keyword]
            losses.append(done)
    if size_of(view) > max_bytes:
        text = f"the schema is longer than {max_bytes} bytes and cannot be shortened further"
        losses.append(Loss("", "properties", "doubtful", text))
    return view, tuple(losses)


def size_of(view: JsonObject) -> int:
    """Return the bytes of a view as JSON, in ASCII and without white space."""
    return len(json.dumps(view, separators=(",", ":")))


def _parts(view: JsonObject) -> Iterator[tuple[JsonObject, int]]:
    """Yield every schema in a view, with its depth."""
    stack: list[tuple[Any, int]] = [(view, 0)]
    while stack:
        node, depth = stack.pop()
        if not isinstance(node, dict):
            continue
        yield node, depth
        for keyword, value in node.items():
            stack += ((child, depth + 1) for _, child in children(None, keyword, value))


def _without_texts(view: JsonObject) -> Loss | None:
    count = 0
    for node, _ in _parts(view):
        for keyword in _TEXTS & node.keys():
            del node[keyword]
            count += 1
    return _loss("title", f"{count} titles, comments, examples and defaults", count)


def _first_sentences(view: JsonObject) -> Loss | None:
    count = 0
    for node, _ in _parts(view):
        text = node.get("description")
        short = text.split("\n\n")[0].split(". ")[0] if isinstance(text, str) else text
        if short != text:
            node["description"] = short
            count += 1
    return _loss("description", f"all but the first sentence of {count} descriptions", count)


def _without_nested(view: JsonObject) -> Loss | None:
    count = 0
    for node, depth in _parts(view):
        if depth > 1 and isinstance(node.pop("description", None), str):
            count += 1
    return _loss("description", f"{count} descriptions below the top", count)


def _without_conditions(view: JsonObject) -> Loss | None:
    """Remove conditions first: cutting the parts of a negation would make it take less."""
    count = 0
    for node, _ in _parts(view):
        narrowing = _NARROWING & node.keys()
        for keyword in narrowing:
            del node[keyword]
        one_of = node.pop("oneOf", None)
        if one_of is not None and "anyOf" not in node:
            node["anyOf"] = one_of
        count += bool(narrowing) or one_of is not None
    return _loss("not", f"{count} conditions, negations and choices of exactly one", count)


def _cutting(limit: int) -> Callable[[JsonObject], Loss | None]:
    def stage(view: JsonObject) -> Loss | None:
        count = 0
        for node, depth in _parts(view):
            if depth < limit:
                continue
            more = node.keys() - _BARE - {"description"}
            for keyword in more:
                del node[keyword]
            count += bool(more)
        _drop_unused(view)
        return _loss("properties", f"what lies below {count} parts", count)

    return stage


def _drop_unused(view: JsonObject) -> None:
    """Remove definitions that nothing refers to any longer."""
    text = json.dumps({key: value for key, value in view.items() if key not in SHELVES})
    for shelf in SHELVES & view.keys():
        definitions: Any = view[shelf]
        pending = [text]
        used: set[str] = set()
        while pending:
            part = pending.pop()
            found = {name for name in definitions if f'"#/{shelf}/{name}"' in part} - used
            used |= found
            pending += [json.dumps(definitions[name]) for name in sorted(found)]
        view[shelf] = {name: part for name, part in definitions.items() if name in used}
        if not used:
            del view[shelf]


def _loss(keyword: str, what: str, count: int) -> Loss | None:
    return Loss("", keyword, "lost", f"left out for size: {what}") if count else None


_SHORTENING: tuple[Callable[[JsonObject], Loss | None], ...] = (
    _without_texts,
    _first_sentences,
    _without_nested,
)


# The limits that an endpoint sets to a whole view, and what goes over them.


_LONG_ENUM = 250


class _Sizes(NamedTuple):
    depth: int
    properties: int
    enum: int
    long_enum: int
    names: int


def over_limits(view: JsonObject, dialect: Dialect) -> Iterator[Loss]:
    """Yield a refusal for each limit of the dialect that the view is over."""
    limits = (
        ("properties", "levels of objects", dialect.max_depth),
        ("properties", "properties", dialect.max_properties),
        ("enum", "enum values", dialect.max_enum),
        ("enum", "characters in one long enum", dialect.max_long_enum),
        ("properties", "characters of names and values", dialect.max_names),
    )
    if all(limit is None for _, _, limit in limits):
        return
    for size, (keyword, what, limit) in zip(_sizes(view), limits, strict=True):
        if limit is not None and size > limit:
            yield Loss("", keyword, "refused", f"{size} {what}: at most {limit} are taken")


def _sizes(view: JsonObject) -> _Sizes:
    depth = properties = enum = long_enum = names = 0
    stack: list[tuple[Any, int]] = [(view, 0)]
    while stack:
        node, level = stack.pop()
        if isinstance(node, list):
            stack += [(child, level) for child in node]
        if not isinstance(node, dict):
            continue
        level += "object" in names_in(node.get("type"))
        depth = max(depth, level)
        values = [*node.get("enum", ()), *([node["const"]] if "const" in node else ())]
        length = sum(len(value) for value in values if isinstance(value, str))
        enum += len(node.get("enum", ()))
        long_enum = max(long_enum, length if len(values) > _LONG_ENUM else 0)
        names += length
        for keyword, child in node.items():
            if keyword in MAPS and isinstance(child, dict):
                properties += len(child) if keyword == "properties" else 0
                names += sum(map(len, child))
                below = 0 if keyword == "$defs" else level
                stack += [(part, below) for part in child.values()]
            elif keyword not in ("enum", "const", "default", "examples", "required", "type"):
                stack.append((child, level))
    return _Sizes(depth, properties, enum, long_enum, names)
