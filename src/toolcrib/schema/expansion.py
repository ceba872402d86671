"""How large a schema would be with every `$ref` replaced by what it points to.

A `$ref` back into what is being expanded (recursion) ends there: a validator follows it only as deep as
the value goes, and the value's depth is limited. One that comes back without a step into the value
would never end, and is refused. No recursion in here: a chain of `$ref`s may be longer than Python's
stack.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from toolcrib.errors import SchemaError
from toolcrib.schema.keywords import Draft
from toolcrib.schema.references import References, pointer_to
from toolcrib.schema.survey import Part, Ref, survey

MAX_EXPANSIONS = 10_000  # of what one `$ref` points to
MAX_EXPANDED = 1_000_000  # of the whole schema
MAX_EXPANDED_DEPTH = 400  # times the depth of a value, this is what a validator's stack has to bear
MAX_VISITED = 200_000  # nodes that are looked at while counting
_SHOWN = 200


class Expanded(NamedTuple):
    """`patterns` are those of all that is reached; `matches` counts them as `Part.matches` does."""

    patterns: frozenset[str]
    matches: int


class _Open:
    """A part that is being expanded: the `$ref`s that are still to be followed, and the sum."""

    __slots__ = ("depth", "matches", "part", "refs", "total")

    def __init__(self, part: Part) -> None:
        self.part = part
        self.refs = list(part.refs)
        self.total, self.depth, self.matches = part.total, part.depth, part.matches


def check_expansions(whole: Part, references: References, draft: Draft) -> Expanded:
    """Raises SchemaError for `$ref`s that lead nowhere, in a circle, or to too much."""
    parts: dict[int, Part] = {id(whole.node): whole}
    known: dict[int, tuple[int, int, int]] = {}
    path = [_Open(whole)]
    opened = {id(whole.node)}
    visited = 0
    while path:
        current = path[-1]
        if not current.refs:
            path.pop()
            node = id(current.part.node)
            opened.discard(node)
            known[node] = current.total, current.depth, current.matches
            _check_size(current, whole)
            continue
        ref = current.refs[-1]
        node = _target(references, ref)
        if ref.weight and id(node) not in opened and id(node) not in known:
            part = parts[id(node)] = survey(node, ref.place, draft)
            visited += part.visited
            if visited > MAX_VISITED:
                raise SchemaError("its $refs point into one another too often")
            path.append(_Open(part))
            opened.add(id(node))
            continue
        current.refs.pop()
        total, below, matches = known.get(id(node), (1, 0, 0))
        current.total += total * ref.weight
        current.matches += matches * ref.weight
        if ref.weight:  # else it lies in a definition, and counts where that is referred to
            current.depth = max(current.depth, ref.depth + below)
    _check_circles(parts, references)
    patterns = frozenset(pattern for part in parts.values() for pattern in part.patterns)
    return Expanded(patterns, known[id(whole.node)][2])


def _check_size(current: _Open, whole: Part) -> None:
    limit = MAX_EXPANDED if current.part is whole else MAX_EXPANSIONS
    where = pointer_to(current.part.place)
    if current.total > limit:
        raise SchemaError(f"its $refs expand to more than {limit} nodes", where)
    if current.depth > MAX_EXPANDED_DEPTH:
        raise SchemaError(f"its $refs nest deeper than {MAX_EXPANDED_DEPTH}", where)


def _target(references: References, ref: Ref) -> Any:
    """What a reference leads to: a schema, with no `$id` on the way that would change its meaning."""
    node = references.resolve(ref.target)
    if node is None:
        raise SchemaError(
            f"$ref {ref.target[:_SHOWN]!r} points to nothing in the schema", pointer_to(ref.place)
        )
    if not isinstance(node, dict | bool):
        raise SchemaError(
            f"$ref {ref.target[:_SHOWN]!r} points to something that is no schema",
            pointer_to(ref.place),
        )
    if references.crosses_id(ref.target):
        raise SchemaError(
            f"$ref {ref.target[:_SHOWN]!r} leads into a part that has an $id of its own: remove "
            "that $id",
            pointer_to(ref.place),
        )
    return node


def _check_circles(parts: dict[int, Part], references: References) -> None:
    """A circle of parts in which each judges the very value that the one before it does."""
    done: set[int] = set()
    for start, part in parts.items():
        path: list[tuple[int, list[Ref]]] = [(start, _in_place(part))]
        opened = {start}
        while path:
            node, refs = path[-1]
            if not refs:
                done.add(node)
                opened.discard(node)
                path.pop()
                continue
            ref = refs.pop()
            target = id(references.resolve(ref.target))
            if target in opened:
                raise SchemaError(
                    f"$ref {ref.target[:_SHOWN]!r} leads back to itself without a step into the "
                    "value: it would never end",
                    pointer_to(ref.place),
                )
            if target not in done and target in parts:
                path.append((target, _in_place(parts[target])))
                opened.add(target)


def _in_place(part: Part) -> list[Ref]:
    return [ref for ref in part.refs if ref.in_place and ref.weight]
