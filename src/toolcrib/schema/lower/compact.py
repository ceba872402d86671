"""Shorter views of very large schemas, by stages, the same for the same schema.

Names, types and `required` of the top stay whatever happens; what goes first is what a model needs
least. Only wider views come out: nothing valid becomes invalid.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from toolcrib.schema.lower.base import Loss
from toolcrib.schema.lower.tree import LISTS, MAPS, SHELVES, SINGLES, copied
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
    """A view of at most `max_bytes` (see `size_of`), if that can be, and what each stage took away.

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
    """The bytes of a view as JSON, in ASCII and without white space."""
    return len(json.dumps(view, separators=(",", ":")))


def _parts(view: JsonObject) -> Iterator[tuple[JsonObject, int]]:
    """Every schema in a view, with its depth."""
    stack: list[tuple[Any, int]] = [(view, 0)]
    while stack:
        node, depth = stack.pop()
        if not isinstance(node, dict):
            continue
        yield node, depth
        for keyword, child in node.items():
            stack += ((part, depth + 1) for part in _children(keyword, child))


def _children(keyword: str, child: Any) -> list[Any]:
    if keyword in MAPS and isinstance(child, dict):
        return list(child.values())
    if isinstance(child, list) and (keyword in LISTS or keyword == "items"):
        return child
    return [child] if keyword in SINGLES else []


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
    """What would take less if its parts took more goes before parts are cut."""
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
    """Definitions that nothing refers to any longer go."""
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
