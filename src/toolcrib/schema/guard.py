"""Limits on schemas from outside. Registration refuses those that are expensive or refer outside.

A validator walks a schema as often as its `$ref`s expand, and a hostile one can occupy a process
for minutes ("billion laughs"). So size, depth and expansions are counted before a validator is
compiled, and a `$ref` may only point into the schema itself: nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from math import frexp, isfinite
from typing import Any, NamedTuple, TypeAlias

import jsonschema_rs
import msgspec
import orjson

from toolcrib.errors import SchemaError
from toolcrib.schema.references import (
    IN_PLACE,
    ROLES,
    Draft,
    Place,
    References,
    Role,
    anchors_of,
    children,
    draft_of,
    nodes_of,
    pointer_to,
)

# First check whether an author's object is JSON at all, and not too large.
#
# The walk is counted. An object that contains itself, or one small object a million times (an alias
# bomb in YAML), is refused after a limit of steps. Only then is it safe to write it as text.

MAX_DEPTH = 100
MAX_NODES = 50_000
MAX_BYTES = 1_000_000  # of the schema's text
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1


def schema_text(schema: object) -> str:
    """Return a schema as text, with the keys in the author's order. Raises as `check_shape`
    does."""
    check_shape(schema)
    try:
        return orjson.dumps(schema).decode()
    except TypeError:  # a tuple, or a subclass of float or dict
        raise SchemaError("it is not JSON: it holds values of classes of their own") from None


def check_shape(schema: object) -> None:
    """Raise SchemaError, with a pointer, for anything that is not JSON, too deep, or too large.

    Limits: depth 100, 50,000 nodes, 1,000,000 bytes of text, integers of 64 bits.
    """
    nodes, size = 1, 0
    members: Iterable[tuple[Any, Any]]
    stack: list[tuple[Place, int, Any]] = [(None, 0, schema)]
    while stack:
        place, depth, node = stack.pop()
        if depth > MAX_DEPTH:
            text = f"the schema is nested deeper than {MAX_DEPTH}, or contains itself"
            raise SchemaError(text, pointer_to(place))
        if node.__class__ is dict:
            members = node.items()
            size += _keys(node, place)
        else:
            members = _members(place, node)
            size += _keys(node, place) if isinstance(node, dict) else 0
        nodes += len(node)
        if nodes > MAX_NODES:
            raise SchemaError(f"the schema has more than {MAX_NODES} nodes", pointer_to(place))
        size += 2 + 3 * len(node)
        for key, child in members:
            kind = child.__class__
            if kind is str:
                size += len(child) if child.isascii() else _encoded(child, (place, key))
            elif kind is dict or kind is list or kind is tuple:
                stack.append(((place, key), depth + 1, child))
            elif kind is not bool and child is not None:
                size += _other(stack, (place, key), depth + 1, child)
        if size > MAX_BYTES:
            text = f"the text of the schema is longer than {MAX_BYTES} bytes"
            raise SchemaError(text, pointer_to(place))


def _members(place: Place, node: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(node, dict):
        return node.items()
    if isinstance(node, list | tuple):
        return enumerate(node)
    raise SchemaError(f"it is not JSON: a {type(node).__name__}", pointer_to(place))


def _other(stack: list[tuple[Place, int, Any]], place: Place, depth: int, value: Any) -> int:
    """Return the bytes of a number; put a subclass of a JSON type back on the stack."""
    if isinstance(value, int):
        if not _INT_MIN <= value <= _INT_MAX:
            text = "it is not JSON that every reader can read: an integer beyond 64 bits"
            raise SchemaError(text, pointer_to(place))
        return value.bit_length() // 3 + 1
    if value.__class__ is float:
        if not isfinite(value):
            raise SchemaError("it is not JSON: it holds NaN or an infinity", pointer_to(place))
        return 24
    if isinstance(value, str):
        return _encoded(value, place)
    if isinstance(value, dict | list | tuple):
        stack.append((place, depth, value))
        return 0
    raise SchemaError(f"it is not JSON: a {type(value).__name__}", pointer_to(place))


def _keys(node: dict[Any, Any], place: Place) -> int:
    try:
        joined = "".join(node)
    except TypeError:
        strange = next(key for key in node if not isinstance(key, str))
        text = f"it is not JSON: a key is of type {type(strange).__name__}, not a string"
        raise SchemaError(text, pointer_to(place)) from None
    return len(joined) if joined.isascii() else _encoded(joined, place)


def _encoded(text: str, place: Place) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        said = "it is not JSON: a string holds a lone surrogate"
        raise SchemaError(said, pointer_to(place)) from None


# The cost of comparing a value with the constants of a schema, in units of 10 ns.
#
# A validator looks up strings in an `enum` of strings, and whole numbers in one of whole numbers.
# Anything else it compares with one constant after the other. Numbers with a fraction are compared
# as exact fractions, which takes microseconds, and ten times that for very small or very large
# ones. Objects and arrays are compared node by node.

LISTED = ("enum", "const")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
COMPARED = frozenset((*LISTED, *BOUNDS))

_STEP = 2  # for any constant
_INTEGER = 30
_CONTAINER = 40  # for each node of the value
_NUMBER = 300
EXTREME = 32  # how many times longer a number far from 1 takes
_FAR = 60  # powers of two
_EXACT = 1 << 53  # beyond it, an integer is compared like a fraction


def is_extreme(number: float) -> bool:
    """Return whether a number is slow to compare, as a fraction with very many digits."""
    return number.__class__ is float and abs(frexp(number)[1]) > _FAR


class Constants(NamedTuple):
    """The constants of one keyword: how many are compared one by one, and what that costs.

    `integer` is the cost for a whole number, `number` for any other number, `extreme` for a number
    far from 1, and `node` for each node of an object or array. Lookups are free.
    """

    listed: int = 0
    integer: int = 0
    number: int = 0
    extreme: int = 0
    node: int = 0

    @property
    def most(self) -> int:
        """The largest cost for one node of a value; an extreme number counts as `EXTREME` nodes."""
        return _STEP * self.listed + max(self.integer, self.number, self.node)

    def cost(self, part: Any, weight: int) -> int:
        """Return the cost for one part of a value, which weighs as much as `weight` nodes."""
        scan = _STEP * self.listed
        if part is None or part.__class__ is bool:
            return scan
        if isinstance(part, str):
            return scan * weight
        if isinstance(part, dict | list):
            return scan + self.node * weight
        if is_extreme(part):
            return scan + self.extreme
        return scan + (self.integer if _is_whole(part) else self.number)


_FREE = Constants()


def constants(keyword: str, said: Any) -> Constants:
    """Return the constants of one keyword of a schema, one of COMPARED."""
    if keyword in BOUNDS:
        if said.__class__ is not float:  # other types: the keyword is unknown, and this is data
            return _FREE
        return _counted([said])
    listed = said if keyword == "enum" and said.__class__ is list else [said]
    if len(listed) > 1 and all(one is None or one.__class__ is str for one in listed):
        return _FREE
    if all(one is None or _is_whole(one) for one in listed):
        return _counted(listed)._replace(listed=0, integer=0)
    return _counted(listed)


def _counted(listed: list[Any]) -> Constants:
    integer = number = extreme = node = 0
    for one in listed:
        if isinstance(one, dict | list):
            node += max(_CONTAINER, *map(_of_number, nodes_of(one)))
        elif (cost := _of_number(one)) > 0:
            integer += cost
            number += cost
            extreme += _NUMBER * EXTREME
    return Constants(len(listed), integer, number, extreme, node)


def _of_number(constant: Any) -> int:
    if constant.__class__ is int:
        return _INTEGER if _is_whole(constant) else _NUMBER
    if constant.__class__ is float:
        return _NUMBER * (EXTREME if is_extreme(constant) else 1)
    return 0


def _is_whole(value: Any) -> bool:
    return value.__class__ is int and -_EXACT <= value <= _EXACT


# Walk a schema once, down to its `$ref`s, and note its size, references and names.
#
# Only subschemas are interpreted. Data between them (an `enum`, a `default`, unknown keywords) is
# weighed but not interpreted.

_SHOWN = 200
_AGAIN = 3  # to know what was evaluated, a validator applies the subschemas in place again
_FEW = frozenset((dict, list))
METASCHEMAS = {
    Draft.D2020: "https://json-schema.org/draft/2020-12/schema",
    Draft.D7: "http://json-schema.org/draft-07/schema#",
}
# In one draft these are data, of any form; code that reads schemas of both drafts interprets them.
_OTHER_DRAFT = {
    Draft.D2020: (Draft.D7, frozenset(("additionalItems",))),
    Draft.D7: (
        Draft.D2020,
        frozenset(
            ("$defs", "contentSchema", "dependentRequired", "dependentSchemas", "prefixItems",
             "unevaluatedProperties", "unevaluatedItems")
        ),
    ),
}  # fmt: skip
# Looked up once, because every schema is walked.
_role_of = ROLES.get
_PATTERNS = Role.PATTERNS
# Definitions are applied where a `$ref` points to them, not where they are defined.
_PASSED = dict.fromkeys((Role.ONE, Role.MANY, Role.NAMED, Role.PATTERNS), 1) | {Role.SHELF: 0}


class Ref(msgspec.Struct, frozen=True):
    """A reference. `weight` is how often its target is applied; `in_place`: to the same value as
    the part."""

    place: Place
    target: str
    depth: int
    weight: int
    in_place: bool


# A subschema still to be walked: its place, itself, its depth, how often it is applied, whether to
# the same value as the part is, and whether it is inside something with its own `$id`.
Step: TypeAlias = tuple[Place, Any, int, int, bool, bool]


class Surveyed(msgspec.Struct):
    """A schema or the target of one `$ref`, without the targets of the `$ref`s inside it.

    `matches` counts its patterns, each as often as it is matched against the same text. `compared`
    is the most that comparing one node of a value with its constants may cost (`constants`).
    """

    node: Any
    place: Place
    whole: bool = False
    total: int = 0
    depth: int = 0
    visited: int = 0
    matches: int = 0
    compared: int = 0
    refs: list[Ref] = []
    patterns: set[str] = set()  # one each: structs copy an empty default
    anchors: set[str] = set()


def survey(node: Any, place: Place, draft: Draft, *, whole: bool = False) -> Surveyed:
    """Survey one part. Raises SchemaError, with a pointer, for an outside reference or an ambiguous
    name."""
    part = Surveyed(node, place, whole=whole)
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


def _walked(part: Surveyed, step: Step, draft: Draft) -> list[Step]:
    """Note what one subschema says; return those below it, the first one last."""
    place, node, depth, weight, direct, embedded = step
    count = 1 + len(node)
    inner = weight
    if "unevaluatedProperties" in node or "unevaluatedItems" in node:
        inner *= _AGAIN
    if not _OTHER_DRAFT[draft][1].isdisjoint(node):
        _check_other_draft(node, place, draft)
    if weight and depth > part.depth:
        part.depth = depth
    below: list[Step] = []
    for key, value in node.items():
        role = _role_of(key)
        if role is None:
            if value.__class__ in _FEW:
                count += _nodes_below(value)
            if key in COMPARED:
                part.compared += weight * constants(key, value).most
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


def _note(part: Surveyed, step: Step, key: str, draft: Draft) -> None:
    """Note a pattern, a reference, or a dialect below the top."""
    above, node, depth, weight, direct, embedded = step
    place, value, role = (above, key), node[key], ROLES[key]
    if role is Role.PATTERN:
        part.patterns.add(str(value))
        part.matches += weight
    elif role is Role.DIALECT and not (part.whole and above is None):
        _check_dialect(node, place, draft)
    elif role is Role.UNKNOWN_REF:
        text = f"{key} belongs to a draft that is not supported: use $ref or $dynamicRef"
        raise SchemaError(text, pointer_to(place))
    elif role is Role.REF and isinstance(value, str):
        if not value.startswith("#"):
            raise SchemaError(
                f"{key} must point into the schema itself, by its place ('#/$defs/…') and not by "
                "an $id; nothing is fetched. To include the files that a schema refers to, "
                "use toolcrib.schema.bundle_refs(path)",
                pointer_to(place),
            )
        if embedded:
            raise SchemaError(
                f"{key} is in a part that has its own $id: remove that $id", pointer_to(place)
            )
        part.refs.append(Ref(place, value, depth + 1, weight, direct))


def _named(part: Surveyed, step: Step, draft: Draft) -> Step:
    """Note the names of a part. Below an `$id`, `#/…` would mean a place in that part."""
    place, node, depth, weight, direct, _ = step
    for name in anchors_of(node, draft):
        if name in part.anchors:
            text = f"two places are called by the anchor {name[:_SHOWN]!r}: rename one"
            raise SchemaError(text, pointer_to(place))
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
        text = f"$schema says {named} here, but the whole schema uses {draft}: use one dialect"
        raise SchemaError(text, pointer_to(place))


def _check_other_draft(node: dict[str, Any], place: Place, draft: Draft) -> None:
    """Check keywords of the other draft by its rules, and what is below them by both drafts'.

    A draft ignores unknown keywords, whatever they contain, but the code here looks into them.
    """
    other, keywords = _OTHER_DRAFT[draft]
    for key in keywords.intersection(node):
        below = children(place, key, node[key])
        judged = [(where, child, draft) for where, child in below if isinstance(child, dict)]
        for where, part, held in [(place, {key: node[key]}, other), *judged]:
            try:
                jsonschema_rs.meta.validate({**part, "$schema": METASCHEMAS[held]})
            except jsonschema_rs.ValidationError as error:
                at = reduce(lambda above, step: (above, step), error.instance_path, where)
                raise SchemaError(
                    f"{key} is a keyword of {other}, but its value is not valid in {held}: "
                    "correct it, or leave it out",
                    pointer_to(at),
                ) from None


def _nodes_below(data: Any) -> int:
    total = 0
    stack = [data]
    while stack:
        node = stack.pop()
        total += len(node)
        below = node.values() if node.__class__ is dict else node
        stack += [child for child in below if child.__class__ in _FEW]
    return total


# Count how large a schema would be with every `$ref` replaced by its target.
#
# A `$ref` back into a part being expanded (recursion) ends there: a validator follows it only as
# deep as the value goes, and the value's depth is limited. A `$ref` that returns without a step
# into the value would never end, and is refused. The code is not recursive, because a chain of
# `$ref`s may be longer than Python's stack.

MAX_EXPANSIONS = 10_000  # of the target of one `$ref`
MAX_EXPANDED = 1_000_000  # of the whole schema
MAX_EXPANDED_DEPTH = 400  # a validator's stack has to bear this times the depth of a value
MAX_VISITED = 200_000  # nodes that are visited while counting


def check_expansions(whole: Surveyed, references: References, draft: Draft) -> Inspected:
    """Raise SchemaError for `$ref`s that lead nowhere, in a circle, or to too much.

    The totals of each part grow by those of the parts that it refers to.
    """
    parts: dict[int, Surveyed] = {id(whole.node): whole}
    path = [(whole, list(whole.refs))]  # parts being expanded, and their `$ref`s still to follow
    opened = {id(whole.node)}
    visited = 0
    while path:
        current, refs = path[-1]
        if not refs:
            path.pop()
            opened.discard(id(current.node))
            _check_size(current, whole)
            continue
        ref = refs[-1]
        node = _target(references, ref)
        if ref.weight and id(node) not in parts:
            part = parts[id(node)] = survey(node, ref.place, draft)
            visited += part.visited
            if visited > MAX_VISITED:
                raise SchemaError(
                    "following its $refs takes too many steps: use fewer references between "
                    "definitions"
                )
            path.append((part, list(part.refs)))
            opened.add(id(node))
            continue
        refs.pop()
        if not ref.weight:  # it is in a definition, and counts where that is referred to
            continue
        known = parts[id(node)]
        is_open = id(node) in opened
        current.total += ref.weight * (1 if is_open else known.total)
        current.depth = max(current.depth, ref.depth + (0 if is_open else known.depth))
        if not is_open:
            current.matches += ref.weight * known.matches
            current.compared += ref.weight * known.compared
    _check_circles(parts, references)
    patterns = frozenset(pattern for part in parts.values() for pattern in part.patterns)
    return Inspected(draft, patterns, whole.matches, whole.compared)


def _check_size(current: Surveyed, whole: Surveyed) -> None:
    limit = MAX_EXPANDED if current is whole else MAX_EXPANSIONS
    where = pointer_to(current.place)
    if current.total > limit:
        raise SchemaError(f"its $refs expand to more than {limit} nodes", where)
    if current.depth > MAX_EXPANDED_DEPTH:
        raise SchemaError(f"its $refs are nested deeper than {MAX_EXPANDED_DEPTH} levels", where)


def _target(references: References, ref: Ref) -> Any:
    """Return the target of a reference, with no `$id` on the way that would change its meaning."""
    node = references.resolve(ref.target)
    if node is None:
        fault = "points to nothing in the schema"
    elif not isinstance(node, dict | bool):
        fault = "points to something that is not a schema"
    elif references.crosses_id(ref.target):
        fault = "leads into a part that has its own $id: remove that $id"
    else:
        return node
    raise SchemaError(f"$ref {ref.target[:_SHOWN]!r} {fault}", pointer_to(ref.place))


def _check_circles(parts: dict[int, Surveyed], references: References) -> None:
    """Refuse a circle of parts that all apply to the same value."""
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
                    f"$ref {ref.target[:_SHOWN]!r} leads back to itself without a step into "
                    "the value, so checking would never end",
                    pointer_to(ref.place),
                )
            if target not in done and target in parts:
                path.append((target, _in_place(parts[target])))
                opened.add(target)


def _in_place(part: Surveyed) -> list[Ref]:
    return [ref for ref in part.refs if ref.in_place and ref.weight]


MAX_PATTERNS = 1000
_NO_PATTERNS: frozenset[str] = frozenset()  # shared: each empty frozenset takes 216 bytes


class Inspected(NamedTuple):
    """The dialect of a checked schema, its patterns, how many of them one text may meet, and the
    most that comparing one node of a value with its constants may cost."""

    draft: Draft
    patterns: frozenset[str] = frozenset()
    matches: int = 0
    compared: int = 0


def check_schema(schema: dict[str, Any]) -> None:
    """Raise SchemaError, with a pointer, for a schema that could not be used safely.

    It must be JSON; of draft 2020-12 or draft 7; at most 100 deep, of 50,000 nodes and 1,000,000
    bytes; its references lead into itself, not in a circle, and expand to at most 1,000,000 nodes.
    Patterns are checked when a validator is compiled.
    """
    check_shape(schema)
    inspect_schema(schema)


def inspect_schema(schema: dict[str, Any]) -> Inspected:
    """Do what `check_schema` does, for a schema that is known to be JSON of an acceptable size."""
    draft = draft_of(schema)
    whole = survey(schema, None, draft, whole=True)
    patterns = frozenset(whole.patterns) if whole.patterns else _NO_PATTERNS
    found = Inspected(draft, patterns, whole.matches, whole.compared)
    if whole.refs or whole.total > MAX_EXPANDED:
        found = check_expansions(whole, References(schema), draft)
    if len(found.patterns) > MAX_PATTERNS:
        raise SchemaError(f"the schema has more than {MAX_PATTERNS} different patterns")
    return found
