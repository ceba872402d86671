"""Express a schema with other keywords if a dialect lacks those that the author used.

Each rule takes a part and returns a part; a rule that does not apply returns its input.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any, TypeAlias

from toolcrib.schema.lower.tree import ANNOTATIONS, SHELVES, Context, default_of, target_of
from toolcrib.schema.references import REFS, names_in, without
from toolcrib.values.json import JsonObject, canonical_json

# Merge schemas that all apply into one: the meaning of `allOf` without `allOf`.
#
# Nothing is guessed: if one schema cannot express what two express together, they are not merged.


class UnmergeableError(Exception):
    """The two schemas cannot be merged into one; `keyword` is why."""

    def __init__(self, keyword: str) -> None:
        super().__init__(keyword)
        self.keyword = keyword


def merge_schemas(first: JsonObject, second: JsonObject) -> JsonObject:
    """Return a schema for what is valid under both. Raises UnmergeableError."""
    _check_close_object(first, second)
    _check_close_object(second, first)
    result = dict(first)
    for keyword, value in second.items():
        if keyword not in result:
            result[keyword] = value
        elif keyword in ANNOTATIONS or canonical_json(result[keyword]) == canonical_json(value):
            continue
        elif keyword in _MERGING:
            result[keyword] = _MERGING[keyword](result[keyword], value)
        else:
            raise UnmergeableError(keyword)
    return result


def _check_close_object(closed: JsonObject, other: JsonObject) -> None:
    """Refuse to merge if one schema restricts undeclared properties that the other declares."""
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
    second_types = set(names_in(second))
    if "number" in second_types:
        second_types.add("integer")
    common = [name for name in names_in(first) if name in second_types]
    if "number" in names_in(first) and "integer" in second_types and "number" not in second_types:
        common.append("integer")
    if not common:
        raise UnmergeableError("type")
    return common[0] if len(common) == 1 else common


def _common_values(first: Any, second: Any) -> Any:
    allowed = {canonical_json(value) for value in second}
    common = [value for value in first if canonical_json(value) in allowed]
    if not common:
        raise UnmergeableError("enum")
    return common


def _both(first: Any, second: Any) -> Any:
    return {"allOf": [first, second]}


def _merged_properties(first: Any, second: Any) -> Any:
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


_MERGING: dict[str, Callable[[Any, Any], Any]] = {
    "type": _types,
    "enum": _common_values,
    "properties": _merged_properties,
    "required": lambda a, b: list(dict.fromkeys([*a, *b])),
    "items": _both,
    "additionalProperties": _others,
    "unevaluatedProperties": _others,
    "propertyNames": _both,
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
    "uniqueItems": lambda a, b: a or b,
}


# A part and everything else that applies to its value: its references and the members of `allOf`.

_MAX_PIECES = 200
_COMBINING = frozenset({"allOf", *REFS})
_Piece: TypeAlias = "tuple[JsonObject, object]"  # what applies, and the part that says so


def flatten(ctx: Context, node: JsonObject, *, top: bool = False) -> tuple[JsonObject, list[int]]:
    """Return the part without keywords that its dialect lacks, and the ids of what was inlined for it.

    An `allOf` at the top that cannot be merged is left for wrapping.
    """
    if node.keys().isdisjoint(_COMBINING):
        return node, []
    node = _one_reference(ctx, node)
    merges_all_of = "allOf" in node and not ctx.keeps("allOf", top=top)
    if not merges_all_of and not _wants_target(ctx, node, top=top):
        return node, []
    pieces, inlined = _gather(ctx, node)
    result: JsonObject = {}
    origins: dict[str, object] = {}
    for piece, source in pieces:
        try:
            result = merge_schemas(result, piece)
        except UnmergeableError as error:
            if top and ctx.keeps("allOf"):
                return node, []
            ctx.add_loss(
                node,
                "allOf" if "allOf" in node else "$ref",
                "refused" if ctx.dialect.closed else "lost",
                f"parts that apply together cannot be merged into one schema ('{error.keyword}')",
            )
            continue
        for keyword in piece:
            origins.setdefault(keyword, source)
    return ctx.made_from(result, node, origins), inlined


def _one_reference(ctx: Context, node: JsonObject) -> JsonObject:
    """Replace an `allOf` with a single member, next to annotations only, by that member."""
    members = node.get("allOf")
    if ctx.refs != "plain" or not isinstance(members, list) or len(members) != 1:
        return node
    siblings = without(node, "allOf")
    if not siblings.keys() <= ANNOTATIONS or not isinstance(members[0], dict):
        return node
    return ctx.made_from({**members[0], **siblings}, members[0])


def _wants_target(ctx: Context, node: JsonObject, *, top: bool) -> bool:
    if not any(isinstance(node.get(keyword), str) for keyword in REFS):
        return False
    if ctx.refs == "none" or (top and "$ref" in ctx.dialect.root_without):
        return True
    if ctx.refs == "any" or ctx.dialect.ref_siblings:
        return False
    return not node.keys() - set(REFS) <= ANNOTATIONS


def _gather(ctx: Context, node: JsonObject) -> tuple[list[_Piece], list[int]]:
    """Return everything that applies at a part, each piece once, with the part that says so."""
    pieces: list[_Piece] = []
    inlined: list[int] = []
    stack: list[Any] = [node]
    while stack and len(pieces) < _MAX_PIECES:
        part = stack.pop()
        if not isinstance(part, dict):
            pieces += [] if part is True else [({"not": {}}, node)]
            continue
        shelves = SHELVES if part is ctx.root and part is not node else ()
        piece = without(part, "allOf", *REFS, *shelves)
        pieces.append((piece, part))
        stack.extend(reversed(part.get("allOf", ())))
        for keyword in REFS:
            target = ctx.references.resolve(part[keyword]) if keyword in part else None
            if target is not None and id(target) not in inlined:
                inlined.append(id(target))
                stack.append(target)
    return pieces, inlined


# The rules, in the order in which they apply.

_SCALARS = frozenset({"string", "number", "integer", "boolean", "null"})
_MAX_BRANCHES = 64
_REWRITTEN = frozenset({"items", "prefixItems", "oneOf", "anyOf", "const"})  # they have a rule


def rewrite(ctx: Context, node: JsonObject) -> JsonObject:
    """Return a part in the keywords of the dialect, as far as it can express it."""
    if node.keys().isdisjoint(_REWRITTEN):
        return node
    for rule in _REWRITING:
        new = rule(ctx, node)
        node = ctx.made_from(new, node) if new is not node else node
    return node


def _tuple_of_draft7(_ctx: Context, node: JsonObject) -> JsonObject:
    items = node.get("items")
    if not isinstance(items, list):
        return node
    new = without(node, "items", "additionalItems")
    new["prefixItems"] = items
    if "additionalItems" in node:
        new["items"] = node["additionalItems"]
    return new


def _tuple(ctx: Context, node: JsonObject) -> JsonObject:
    """Turn items by position into items of any of their kinds."""
    members = node.get("prefixItems")
    if not isinstance(members, list) or ctx.keeps("prefixItems"):
        return node
    new = without(node, "prefixItems")
    item_schemas = list({canonical_json(member): member for member in members}.values())
    max_items: Any = node.get("maxItems")
    if node.get("items") is False:
        new["maxItems"] = (
            min(max_items, len(members)) if isinstance(max_items, int) else len(members)
        )
    elif not (isinstance(max_items, int) and max_items <= len(members)):
        item_schemas.append(node.get("items", True))
    new["items"] = item_schemas[0] if len(item_schemas) == 1 else {"anyOf": item_schemas}
    if len(item_schemas) > 1:
        text = "the model does not see which item belongs at which position"
        ctx.add_loss(node, "prefixItems", "lost", text)
    return new


def _one_of(ctx: Context, node: JsonObject) -> JsonObject:
    branches = node.get("oneOf")
    if not isinstance(branches, list) or ctx.keeps("oneOf") or "anyOf" in node:
        return node
    pairs_differ = (differ(ctx, a, b) for a, b in combinations(branches, 2))
    if len(branches) <= _MAX_BRANCHES and not all(pairs_differ):
        text = "the model does not see that exactly one alternative may match"
        ctx.add_loss(node, "oneOf", "lost", text)
    return {("anyOf" if key == "oneOf" else key): value for key, value in node.items()}


def differ(ctx: Context, first: Any, second: Any) -> bool:
    """Return whether types or tags make it obvious that no value is valid under both."""
    first_part, second_part = target_of(ctx.references, first), target_of(ctx.references, second)
    if first_part is None or second_part is None:
        return False
    first_types = set(names_in(first_part.get("type")))
    second_types = set(names_in(second_part.get("type")))
    if (
        first_types
        and second_types
        and not first_types & second_types
        and {"integer", "number"} - (first_types | second_types)
    ):
        return True
    if _disjoint(first_part, second_part):
        return True
    first_properties: Any = first_part.get("properties", {})
    second_properties: Any = second_part.get("properties", {})
    required_in_both = set(names_in(first_part.get("required"))) & set(
        names_in(second_part.get("required"))
    )
    return any(
        name in required_in_both
        and name in second_properties
        and _disjoint(schema, second_properties[name])
        for name, schema in first_properties.items()
    )


def _disjoint(first: Any, second: Any) -> bool:
    if not isinstance(first, dict) or not isinstance(second, dict):
        return False
    first_values, second_values = _values(first), _values(second)
    return (
        first_values is not None and second_values is not None and not first_values & second_values
    )


def _values(node: JsonObject) -> set[str] | None:
    if "const" in node:
        return {canonical_json(node["const"])}
    enum = node.get("enum")
    return {canonical_json(value) for value in enum} if isinstance(enum, list) else None


def _distributed(ctx: Context, node: JsonObject) -> JsonObject:
    """Move the keywords next to alternatives into each, as closed objects allow no neighbours."""
    branches = node.get("anyOf")
    if not ctx.dialect.closed or not isinstance(branches, list):
        return node
    base = without(node, "anyOf", *ANNOTATIONS)
    if not base:
        return node
    new = {key: value for key, value in node.items() if key in ANNOTATIONS}
    alternatives: list[Any] = []
    for branch in branches:
        try:
            alternatives += _with_base(ctx, base, branch)
        except UnmergeableError as error:
            # Its type or values differ from the base, so nothing can match that alternative.
            if error.keyword not in ("type", "enum"):
                text = "its alternatives cannot be closed one by one"
                ctx.add_loss(node, "anyOf", "refused", text)
    return {**new, "anyOf": alternatives}


def _with_base(ctx: Context, base: JsonObject, branch: Any) -> list[Any]:
    """Return an alternative together with what applies to all of them. Raises UnmergeableError."""
    if not isinstance(branch, dict):
        return [base] if branch is True else []
    target = target_of(ctx.references, branch)
    if target is None or any(keyword in target for keyword in ("allOf", "anyOf", "oneOf")):
        return [ctx.made_from({"allOf": [branch, base]}, branch)]
    merged = merge_schemas(target, base)
    if canonical_json(merged) == canonical_json(target):
        return [branch]
    if target is branch:
        return [ctx.made_from(merged, branch)]
    return [ctx.made_from({"allOf": [branch, base]}, branch)]  # it may be recursive


def _without_any_of(ctx: Context, node: JsonObject) -> JsonObject:
    """Turn alternatives of plain types into a list of types; for others, keep their types."""
    branches = node.get("anyOf")
    if not isinstance(branches, list) or ctx.keeps("anyOf") or "type" in node:
        return node
    targets = [target_of(ctx.references, branch) or {} for branch in branches]
    types = list(dict.fromkeys(name for t in targets for name in names_in(t.get("type"))))
    if not types or not all("type" in target for target in targets):
        return node
    typed: JsonObject = {**node, "type": list(types) if len(types) > 1 else types[0]}
    if set(types) <= _SCALARS and all(t.keys() - ANNOTATIONS == {"type"} for t in targets):
        del typed["anyOf"]
    return typed


def without_null(ctx: Context, node: JsonObject) -> JsonObject | None:
    """Return the part without null, if it is a value or null and the dialect has no alternatives."""
    union = "anyOf" if "anyOf" in node else "oneOf"
    branches = node.get(union)
    if not isinstance(branches, list) or len(branches) != 2 or ctx.keeps("anyOf"):
        return None
    others = [b for b in branches if not (isinstance(b, dict) and b.get("type") == "null")]
    if len(others) != 1 or not node.keys() - {union} <= ANNOTATIONS:
        return None
    return ctx.made_from({**without(node, union), "allOf": others}, node)


def _const(ctx: Context, node: JsonObject) -> JsonObject:
    if "const" not in node or ctx.keeps("const") or "enum" in node:
        return node
    return {
        ("enum" if key == "const" else key): ([value] if key == "const" else value)
        for key, value in node.items()
    }


_REWRITING: tuple[Callable[[Context, JsonObject], JsonObject], ...] = (
    _tuple_of_draft7,
    _tuple,
    _one_of,
    _distributed,
    _without_any_of,
    _const,
)


# Close objects: no undeclared properties and, if a dialect requires it, every property required.
#
# Closing what the author left open is reported as a loss. What can only be open is refused.

_OTHER_PROPERTIES = ("additionalProperties", "unevaluatedProperties")
_PLAIN_TYPES = frozenset({"string", "number", "integer", "boolean"})


def close_object(ctx: Context, node: JsonObject, view: JsonObject, *, top: bool) -> None:
    """Close the view of an object, in place."""
    if "object" not in names_in(view.get("type")):
        return
    declared: Any = node.get("properties", {})
    _check_others(ctx, node, top=top)
    required = names_in(node.get("required"))
    for name in required:
        if name not in declared:
            ctx.add_loss(node, "required", "refused", "a required property is not declared")
    properties: Any = view.get("properties", {})
    if ctx.dialect.all_required:
        _fill(ctx, declared, properties, required)
        view["required"] = list(properties)
    elif required:
        view["required"] = [name for name in required if name in properties]
    view["properties"] = properties
    view["additionalProperties"] = False


def _fill(ctx: Context, declared: Any, properties: Any, required: list[str]) -> None:
    """Let optional properties accept null, in place; report where null already has a meaning."""
    for name in [name for name in properties if name not in required]:
        ctx.filled = True
        part = declared[name]
        if not ctx.nulls.accepted_by(part):
            properties[name] = make_nullable(properties[name])
        elif isinstance(part, dict) and (default := default_of(ctx.references, part)) != (None,):
            ctx.add_loss(part, _about_null(part), "doubtful", _SENT_NULL if default else _LEFT_OUT)


_SAME_NAMES = (
    "two alternatives have the same properties: a null for one may be taken for a property that the "
    "other leaves out"
)
_SENT_NULL = "a null means null here, so to get the default the model has to send its value"
_LEFT_OUT = "the model sends null both for null and for a property that it leaves out"


def _check_others(ctx: Context, node: JsonObject, *, top: bool) -> None:
    other_schemas = [node[keyword] for keyword in _OTHER_PROPERTIES if keyword in node]
    if "patternProperties" in node:
        ctx.add_loss(node, "patternProperties", "refused", "a map cannot be closed")
    elif (
        any(isinstance(value, dict) and value for value in other_schemas)
        and False not in other_schemas
    ):
        ctx.add_loss(node, "additionalProperties", "refused", "a map cannot be closed")
    elif False not in other_schemas and not node.get("properties") and not top:
        text = "an object without declared properties cannot be closed"
        ctx.add_loss(node, "type", "refused", text)
    elif other_schemas and False not in other_schemas:
        keyword = next(keyword for keyword in _OTHER_PROPERTIES if keyword in node)
        ctx.add_loss(node, keyword, "lost", "only declared properties can be given")


def _about_null(schema: Any) -> str:
    """Return the keyword of an optional part that best explains why it accepts null."""
    keywords = ("default", "type", "enum", "const", "anyOf", "oneOf", "allOf", *REFS)
    return next((keyword for keyword in keywords if keyword in schema), "type")


def make_nullable(view: JsonObject) -> JsonObject:
    """Return the view of an optional property, which also accepts null."""
    kinds = names_in(view.get("type"))
    alternatives = view.get("anyOf")
    if isinstance(alternatives, list):
        return {**view, "anyOf": [*alternatives, {"type": "null"}]}
    if not kinds or "object" in kinds or "array" in kinds or "const" in view:
        outer = {key: view[key] for key in ("description",) if key in view}
        inner = without(view, *outer)
        return {**outer, "anyOf": [inner, {"type": "null"}]}
    return or_null(view)


def or_null(view: JsonObject) -> JsonObject:
    """Let a view accept null by its type. A view without a type accepts null already."""
    new = dict(view)
    kinds = names_in(view.get("type"))
    if kinds and "null" not in kinds:
        new["type"] = [*kinds, "null"]
    values = view.get("enum")
    if isinstance(values, list) and None not in values:
        new["enum"] = [*values, None]
    return new


def check_alternatives(ctx: Context, node: JsonObject) -> None:
    """Warn of closed alternatives that no longer differ once null means absent."""
    branches: Any = node.get("anyOf")
    if branches is None:
        return
    by_names: dict[frozenset[str], list[JsonObject]] = {}
    for branch in branches:
        part = target_of(ctx.references, branch)
        if part is not None and (names := frozenset(_properties(part))):
            by_names.setdefault(names, []).append(part)
    for parts in by_names.values():
        for first, second in combinations(parts[:20], 2):
            if not differ(ctx, first, second) and _may_be_confused(ctx, first, second):
                ctx.add_loss(node, "anyOf", "doubtful", _SAME_NAMES)
                return


def _properties(part: JsonObject) -> dict[str, Any]:
    properties = part.get("properties")
    return properties if isinstance(properties, dict) else {}


def _may_be_confused(ctx: Context, first: JsonObject, second: JsonObject) -> bool:
    first_properties, second_properties = _properties(first), _properties(second)
    required = set(names_in(first.get("required"))), set(names_in(second.get("required")))
    for name, schema in first_properties.items():
        accepts_null = [
            ctx.nulls.accepted_by(schema),
            ctx.nulls.accepted_by(second_properties[name]),
        ]
        can_be_absent = [name not in required[i] and not accepts_null[i] for i in (0, 1)]
        if (can_be_absent[0] and accepts_null[1]) or (can_be_absent[1] and accepts_null[0]):
            return True
        if not _is_scalar(ctx, schema) or not _is_scalar(ctx, second_properties[name]):
            return True
    return False


def _is_scalar(ctx: Context, schema: Any) -> bool:
    part = target_of(ctx.references, schema)
    if part is None:
        return False
    kinds = set(names_in(part.get("type"))) - {"null"}
    return (bool(kinds) and kinds <= _PLAIN_TYPES) or "enum" in part or "const" in part
