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
            message = f"the schema is nested deeper than {MAX_DEPTH}, or contains itself"
            raise SchemaError(message, pointer_to(place))
        if node.__class__ is dict:
            members = node.items()
            size += _keys_size(node, place)
        else:
            members = _members(place, node)
            size += _keys_size(node, place) if isinstance(node, dict) else 0
        nodes += len(node)
        if nodes > MAX_NODES:
            raise SchemaError(f"the schema has more than {MAX_NODES} nodes", pointer_to(place))
        size += 2 + 3 * len(node)
        for key, child in members:
            value_type = child.__class__
            if value_type is str:
                size += len(child) if child.isascii() else _encoded_size(child, (place, key))
            elif value_type is dict or value_type is list or value_type is tuple:
                stack.append(((place, key), depth + 1, child))
            elif value_type is not bool and child is not None:
                size += _other_size(stack, (place, key), depth + 1, child)
        if size > MAX_BYTES:
            message = f"the text of the schema is longer than {MAX_BYTES} bytes"
            raise SchemaError(message, pointer_to(place))


def _members(place: Place, node: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(node, dict):
        return node.items()
    if isinstance(node, list | tuple):
        return enumerate(node)
    raise SchemaError(f"it is not JSON: a {type(node).__name__}", pointer_to(place))


def _other_size(stack: list[tuple[Place, int, Any]], place: Place, depth: int, value: Any) -> int:
    """Return the bytes of a number; put a subclass of a JSON type back on the stack."""
    if isinstance(value, int):
        if not _INT_MIN <= value <= _INT_MAX:
            message = "it is not JSON that every reader can read: an integer beyond 64 bits"
            raise SchemaError(message, pointer_to(place))
        return value.bit_length() // 3 + 1
    if value.__class__ is float:
        if not isfinite(value):
            raise SchemaError("it is not JSON: it holds NaN or an infinity", pointer_to(place))
        return 24
    if isinstance(value, str):
        return _encoded_size(value, place)
    if isinstance(value, dict | list | tuple):
        stack.append((place, depth, value))
        return 0
    raise SchemaError(f"it is not JSON: a {type(value).__name__}", pointer_to(place))


def _keys_size(node: dict[Any, Any], place: Place) -> int:
    try:
        joined = "".join(node)
    except TypeError:
        bad_key = next(key for key in node if not isinstance(key, str))
        message = f"it is not JSON: a key is of type {type(bad_key).__name__}, not a string"
        raise SchemaError(message, pointer_to(place)) from None
    return len(joined) if joined.isascii() else _encoded_size(joined, place)


def _encoded_size(text: str, place: Place) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        message = "it is not JSON: a string holds a lone surrogate"
        raise SchemaError(message, pointer_to(place)) from None


# The cost of comparing a value with the constants of a schema, in units of 10 ns.
#
# A validator looks up strings in an `enum` of strings, and whole numbers in one of whole numbers.
# Anything else it compares with one constant after the other. Numbers with a fraction are compared
# as exact fractions, which takes microseconds, and ten times that for very small or very large
# ones. Objects and arrays are compared node by node.

LISTED = ("enum", "const")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
COMPARED = frozenset((*LISTED, *BOUNDS))

_CONSTANT_COST = 2  # for any constant
_INTEGER_COST = 30
_CONTAINER_COST = 40  # for each node of the value
_NUMBER_COST = 300
EXTREME = 32  # how many times longer a number far from 1 takes
_FAR_EXPONENT = 60  # powers of two
_MAX_EXACT = 1 << 53  # beyond it, an integer is compared like a fraction


def is_extreme(number: float) -> bool:
    """Return whether a number is slow to compare, as a fraction with very many digits."""
    return number.__class__ is float and abs(frexp(number)[1]) > _FAR_EXPONENT


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
        return _CONSTANT_COST * self.listed + max(self.integer, self.number, self.node)

    def cost(self, part: Any, weight: int) -> int:
        """Return the cost for one part of a value, which weighs as much as `weight` nodes."""
        scan = _CONSTANT_COST * self.listed
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


def constants(keyword: str, value: Any) -> Constants:
    """Return the constants of one keyword of a schema, one of COMPARED."""
    if keyword in BOUNDS:
        if value.__class__ is not float:  # other types: the keyword is unknown, and this is data
            return _FREE
        return _cost_of([value])
    values = value if keyword == "enum" and value.__class__ is list else [value]
    if len(values) > 1 and all(
        constant is None or constant.__class__ is str for constant in values
    ):
        return _FREE
    if all(constant is None or _is_whole(constant) for constant in values):
        return _cost_of(values)._replace(listed=0, integer=0)
    return _cost_of(values)


def _cost_of(values: list[Any]) -> Constants:
    integer = number = extreme = node = 0
    for constant in values:
        if isinstance(constant, dict | list):
            node += max(_CONTAINER_COST, *map(_number_cost, nodes_of(constant)))
        elif (cost := _number_cost(constant)) > 0:
            integer += cost
            number += cost
            extreme += _NUMBER_COST * EXTREME
    return Constants(len(values), integer, number, extreme, node)


def _number_cost(constant: Any) -> int:
    if constant.__class__ is int:
        return _INTEGER_COST if _is_whole(constant) else _NUMBER_COST
    if constant.__class__ is float:
        return _NUMBER_COST * (EXTREME if is_extreme(constant) else 1)
    return 0


def _is_whole(value: Any) -> bool:
    return value.__class__ is int and -_MAX_EXACT <= value <= _MAX_EXACT


# Walk a schema once, down to its `$ref`s, and note its size, references and names.
#
# Only subschemas are interpreted. Data between them (an `enum`, a `default`, unknown keywords) is
# weighed but not interpreted.

_MAX_SHOWN = 200
_EVALUATIONS = 3  # to know what was evaluated, a validator applies the subschemas in place again
_CONTAINERS = frozenset((dict, list))
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
_ROLE_WEIGHTS = dict.fromkeys((Role.ONE, Role.MANY, Role.NAMED, Role.PATTERNS), 1) | {Role.SHELF: 0}


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
    surveyed = Surveyed(node, place, whole=whole)
    stack: list[Step] = [(place, node, 0, 1, True, False)]
    while stack:
        step = stack.pop()
        if step[1].__class__ is not dict:
            surveyed.total += step[3]
            continue
        if "$id" in step[1] or "$anchor" in step[1] or "$dynamicAnchor" in step[1]:
            step = _with_anchors(surveyed, step, draft)
        stack += _walked(surveyed, step, draft)
    return surveyed


def _walked(surveyed: Surveyed, step: Step, draft: Draft) -> list[Step]:
    """Note what one subschema says; return those below it, the first one last."""
    place, node, depth, weight, in_place, embedded = step
    count = 1 + len(node)
    inner_weight = weight
    if "unevaluatedProperties" in node or "unevaluatedItems" in node:
        inner_weight *= _EVALUATIONS
    if not _OTHER_DRAFT[draft][1].isdisjoint(node):
        _check_other_draft(node, place, draft)
    if weight and depth > surveyed.depth:
        surveyed.depth = depth
    below: list[Step] = []
    for key, value in node.items():
        role = _role_of(key)
        if role is None:
            if value.__class__ in _CONTAINERS:
                count += _nodes_below(value)
            if key in COMPARED:
                surveyed.compared += weight * constants(key, value).most
            continue
        child_weight = _ROLE_WEIGHTS.get(role)
        if child_weight is None:
            _note(surveyed, step, key, draft)
            continue
        if role is _PATTERNS and value.__class__ is dict:
            surveyed.patterns.update(value)
            surveyed.matches += weight * len(value)
        applies_in_place = key in IN_PLACE
        child_weight *= inner_weight if applies_in_place else weight
        child_in_place = in_place and applies_in_place
        below += [
            (child_place, child, depth + 2, child_weight, child_in_place, embedded)
            for child_place, child in children(place, key, value)
        ]
    surveyed.visited += count
    surveyed.total += weight * count
    below.reverse()
    return below


def _note(surveyed: Surveyed, step: Step, key: str, draft: Draft) -> None:
    """Note a pattern, a reference, or a dialect below the top."""
    node_place, node, depth, weight, in_place, embedded = step
    place, value, role = (node_place, key), node[key], ROLES[key]
    if role is Role.PATTERN:
        surveyed.patterns.add(str(value))
        surveyed.matches += weight
    elif role is Role.DIALECT and not (surveyed.whole and node_place is None):
        _check_dialect(node, place, draft)
    elif role is Role.UNKNOWN_REF:
        message = f"{key} belongs to a draft that is not supported: use $ref or $dynamicRef"
        raise SchemaError(message, pointer_to(place))
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
        surveyed.refs.append(Ref(place, value, depth + 1, weight, in_place))


def _with_anchors(surveyed: Surveyed, step: Step, draft: Draft) -> Step:
    """Note the names of a part. Below an `$id`, `#/…` would mean a place in that part."""
    place, node, depth, weight, in_place, _ = step
    for name in anchors_of(node, draft):
        if name in surveyed.anchors:
            message = f"two places are called by the anchor {name[:_MAX_SHOWN]!r}: rename one"
            raise SchemaError(message, pointer_to(place))
        surveyed.anchors.add(name)
    schema_id = node.get("$id")
    is_top = surveyed.whole and place is None
    if is_top or not isinstance(schema_id, str) or schema_id.startswith("#"):
        return step
    return place, node, depth, weight, in_place, True


def _check_dialect(node: dict[str, Any], place: Place, draft: Draft) -> None:
    try:
        declared = draft_of(node)
    except SchemaError as error:
        raise SchemaError(error.message, pointer_to(place)) from None
    if declared is not draft:
        message = (
            f"$schema says {declared} here, but the whole schema uses {draft}: use one dialect"
        )
        raise SchemaError(message, pointer_to(place))


def _check_other_draft(node: dict[str, Any], place: Place, draft: Draft) -> None:
    """Check keywords of the other draft by its rules, and what is below them by both drafts'.

    A draft ignores unknown keywords, whatever they contain, but the code here looks into them.
    """
    other, keywords = _OTHER_DRAFT[draft]
    for key in keywords.intersection(node):
        nested = children(place, key, node[key])
        child_checks = [(start, child, draft) for start, child in nested if isinstance(child, dict)]
        for start, part, checked_draft in [(place, {key: node[key]}, other), *child_checks]:
            try:
                jsonschema_rs.meta.validate({**part, "$schema": METASCHEMAS[checked_draft]})
            except jsonschema_rs.ValidationError as error:
                fault_place = reduce(
                    lambda outer, token: (outer, token), error.instance_path, start
                )
                raise SchemaError(
                    f"{key} is a keyword of {other}, but its value is not valid in {checked_draft}: "
                    "correct it, or leave it out",
                    pointer_to(fault_place),
                ) from None


def _nodes_below(data: Any) -> int:
    total = 0
    stack = [data]
    while stack:
        node = stack.pop()
        total += len(node)
        members = node.values() if node.__class__ is dict else node
        stack += [child for child in members if child.__class__ in _CONTAINERS]
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
    stack = [(whole, list(whole.refs))]  # parts being expanded, and their `$ref`s still to follow
    expanding = {id(whole.node)}
    visited = 0
    while stack:
        current, refs = stack[-1]
        if not refs:
            stack.pop()
            expanding.discard(id(current.node))
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
            stack.append((part, list(part.refs)))
            expanding.add(id(node))
            continue
        refs.pop()
        if not ref.weight:  # it is in a definition, and counts where that is referred to
            continue
        target = parts[id(node)]
        is_expanding = id(node) in expanding
        current.total += ref.weight * (1 if is_expanding else target.total)
        current.depth = max(current.depth, ref.depth + (0 if is_expanding else target.depth))
        if not is_expanding:
            current.matches += ref.weight * target.matches
            current.compared += ref.weight * target.compared
    _check_circles(parts, references)
    patterns = frozenset(pattern for part in parts.values() for pattern in part.patterns)
    return Inspected(draft, patterns, whole.matches, whole.compared)


def _check_size(current: Surveyed, whole: Surveyed) -> None:
    limit = MAX_EXPANDED if current is whole else MAX_EXPANSIONS
    pointer = pointer_to(current.place)
    if current.total > limit:
        raise SchemaError(f"its $refs expand to more than {limit} nodes", pointer)
    if current.depth > MAX_EXPANDED_DEPTH:
        raise SchemaError(f"its $refs are nested deeper than {MAX_EXPANDED_DEPTH} levels", pointer)


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
    raise SchemaError(f"$ref {ref.target[:_MAX_SHOWN]!r} {fault}", pointer_to(ref.place))


def _check_circles(parts: dict[int, Surveyed], references: References) -> None:
    """Refuse a circle of parts that all apply to the same value."""
    done: set[int] = set()
    for start, part in parts.items():
        path: list[tuple[int, list[Ref]]] = [(start, _in_place(part))]
        on_path = {start}
        while path:
            node, refs = path[-1]
            if not refs:
                done.add(node)
                on_path.discard(node)
                path.pop()
                continue
            ref = refs.pop()
            target = id(references.resolve(ref.target))
            if target in on_path:
                raise SchemaError(
                    f"$ref {ref.target[:_MAX_SHOWN]!r} leads back to itself without a step into "
                    "the value, so checking would never end",
                    pointer_to(ref.place),
                )
            if target not in done and target in parts:
                path.append((target, _in_place(parts[target])))
                on_path.add(target)


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
    inspected = Inspected(draft, patterns, whole.matches, whole.compared)
    if whole.refs or whole.total > MAX_EXPANDED:
        inspected = check_expansions(whole, References(schema), draft)
    if len(inspected.patterns) > MAX_PATTERNS:
        raise SchemaError(f"the schema has more than {MAX_PATTERNS} different patterns")
    return inspected
