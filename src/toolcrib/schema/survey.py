"""One walk over a schema, down to its `$ref`s: what it weighs, where it refers to, what it names.

Only subschemas are walked as such; data in between (an `enum`, a `default`, keywords of one's own) is
weighed and not read.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from toolcrib.errors import SchemaError
from toolcrib.schema.keywords import IN_PLACE, ROLES, Draft, Role, draft_of
from toolcrib.schema.references import Place, anchors_of, children, pointer_to

_SHOWN = 200
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_AGAIN = 3  # to tell what was evaluated, a validator judges the subschemas in place once more
_FEW = frozenset((dict, list))
# Looked up once: this is walked for every schema.
_role_of = ROLES.get
_PATTERNS = Role.PATTERNS
# Definitions are judged where a `$ref` leads to them, and not where they lie.
_PASSED = {
    Role.ONE: 1,
    Role.MANY: 1,
    Role.NAMED: 1,
    Role.PATTERNS: 1,
    Role.SHELF: 0,
}


class Ref(NamedTuple):
    """`weight` is how often its target is judged; `in_place`: on the same value as the part is."""

    place: Place
    target: str
    depth: int
    weight: int
    in_place: bool


# A subschema that is still to be walked: its place, itself, its depth, how often it is judged, whether
# on the same value as the part is, and whether it lies in something with an `$id` of its own.
Step: TypeAlias = tuple[Place, Any, int, int, bool, bool]


class Part:
    """A schema, or what one `$ref` leads to, without what the `$ref`s in it lead to.

    `matches` counts its patterns, each as often as it is matched with one and the same text.
    """

    __slots__ = (
        "anchors",
        "depth",
        "matches",
        "node",
        "patterns",
        "place",
        "refs",
        "total",
        "visited",
        "whole",
    )

    def __init__(self, node: Any, place: Place, *, whole: bool) -> None:
        self.node, self.place, self.whole = node, place, whole
        self.total = self.depth = self.visited = self.matches = 0
        self.refs: list[Ref] = []
        self.patterns: set[str] = set()
        self.anchors: set[str] = set()


def survey(node: Any, place: Place, draft: Draft, *, whole: bool = False) -> Part:
    """Raises SchemaError, with a pointer, for a reference outward and for names that are not clear."""
    part = Part(node, place, whole=whole)
    stack: list[Step] = [(place, node, 0, 1, True, False)]
    while stack:
        step = stack.pop()
        if step[1].__class__ is not dict:
            part.total += step[3]
            continue
        if "$id" in step[1] or "$anchor" in step[1] or "$dynamicAnchor" in step[1]:
            step = _named(part, step, draft)
        stack += _walked(part, step, draft)
    return part


def _walked(part: Part, step: Step, draft: Draft) -> list[Step]:
    """Notes what one subschema says; gives those below it, the first one last."""
    place, node, depth, weight, direct, embedded = step
    count = 1 + len(node)
    inner = weight
    if "unevaluatedProperties" in node or "unevaluatedItems" in node:
        inner *= _AGAIN
    if weight and depth > part.depth:
        part.depth = depth
    below: list[Step] = []
    for key, value in node.items():
        role = _role_of(key)
        if role is None:
            if value.__class__ in _FEW:
                count += _size(value)
            continue
        passed = _PASSED.get(role)
        if passed is None:
            _note(part, step, key, draft)
            continue
        if role is _PATTERNS and value.__class__ is dict:
            part.patterns.update(value)
            part.matches += weight * len(value)
        applied = key in IN_PLACE
        passed *= inner if applied else weight
        same = direct and applied
        below += [
            (where, child, depth + 2, passed, same, embedded)
            for where, child in children(place, key, value)
        ]
    part.visited += count
    part.total += weight * count
    below.reverse()
    return below


def _note(part: Part, step: Step, key: str, draft: Draft) -> None:
    """A pattern, a reference, or a dialect below the top."""
    above, node, depth, weight, direct, embedded = step
    place, value, role = (above, key), node[key], ROLES[key]
    if role is Role.PATTERN:
        part.patterns.add(str(value))
        part.matches += weight
    elif role is Role.DIALECT and not (part.whole and above is None):
        _check_dialect(node, place, draft)
    elif role is Role.UNKNOWN_REF:
        raise SchemaError(
            f"{key} is of a draft that is not supported: use $ref or $dynamicRef", pointer_to(place)
        )
    elif role is Role.REF and isinstance(value, str):
        if not value.startswith("#"):
            raise SchemaError(
                f"{key} must point into the schema itself, by its place ('#/$defs/…') and not by "
                "an $id; nothing is fetched: toolcrib.schema.bundle_refs(path) takes in the files "
                "that a schema refers to",
                pointer_to(place),
            )
        if embedded:
            raise SchemaError(
                f"{key} lies in a part that has an $id of its own: remove that $id",
                pointer_to(place),
            )
        part.refs.append(Ref(place, value, depth + 1, weight, direct))


def _named(part: Part, step: Step, draft: Draft) -> Step:
    """In a part with an `$id` of its own, `#/…` would mean a place in that part, not in the whole."""
    place, node, depth, weight, direct, _ = step
    for name in anchors_of(node, draft):
        if name in part.anchors:
            raise SchemaError(
                f"two places are called by the anchor {name[:_SHOWN]!r}: rename one",
                pointer_to(place),
            )
        part.anchors.add(name)
    own = node.get("$id")
    top = part.whole and place is None
    if top or not isinstance(own, str) or own.startswith("#"):
        return step
    return place, node, depth, weight, direct, True


def _check_dialect(node: dict[str, Any], place: Place, draft: Draft) -> None:
    try:
        named = draft_of(node)
    except SchemaError as error:
        raise SchemaError(error.message, pointer_to(place)) from None
    if named is not draft:
        raise SchemaError(
            f"$schema says {named} here, and {draft} holds for the whole: one schema has one "
            "dialect",
            pointer_to(place),
        )


def _size(data: Any) -> int:
    """The number of nodes below; its depth was checked before."""
    total = 0
    stack = [data]
    while stack:
        node = stack.pop()
        total += len(node)
        stack += [
            child
            for child in (node.values() if node.__class__ is dict else node)
            if child.__class__ in _FEW
        ]
    return total
