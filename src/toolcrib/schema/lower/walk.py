"""Make a view in one walk over the schema. The code is the same for all dialects, which are data.

Each part is flattened (references, `allOf`), expressed with other keywords if the dialect lacks
some, written keyword by keyword, and finished (sentences, types, closing).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import msgspec

from toolcrib.schema.lower.choices import (
    check_alternatives,
    close_object,
    flatten,
    or_null,
    rewrite,
    without_null,
)
from toolcrib.schema.lower.restore import ViewRestorer
from toolcrib.schema.lower.tree import (
    ASSERTIONS,
    DOCUMENT,
    LISTS,
    MAPS,
    SHELVES,
    SINGLES,
    Context,
    Dialect,
    Loss,
    Lowered,
    copied,
    target_of,
)
from toolcrib.schema.references import REFS, children, names_in, without
from toolcrib.schema.validator import kind_of
from toolcrib.values.json import JsonObject, canonical_json

# Shorten views of very large schemas, in stages and deterministically.
#
# Names, types and `required` of the top always stay. What a model needs least goes first.
# Shortening only widens a view: nothing valid becomes invalid.

_DROPPED_TEXTS = frozenset(
    ["title", "$comment", "examples", "default", "deprecated", "readOnly", "writeOnly"]
)
_NARROWING = frozenset(
    ("not", "if", "then", "else", "contains", "minContains", "maxContains", "unevaluatedProperties",
     "unevaluatedItems")
)  # fmt: skip
_ALWAYS_KEPT = frozenset({"type", "$ref", "description"})


def compact(
    schema: JsonObject, max_bytes: int, *, cut: bool = True
) -> tuple[JsonObject, tuple[Loss, ...]]:
    """Return a view of at most `max_bytes` (see `size_of`), if possible, and what each stage removed.

    Stages: titles, comments, examples and defaults; all but the first sentence of descriptions;
    descriptions below the top's properties; then, with `cut`, conditions and negations, and deep
    parts, from more and more levels, down to their types alone. The losses give counts, not single
    items. A view to be cut must refer to nothing but its definitions.
    """
    view = copied(schema)
    losses: list[Loss] = []
    for keyword, words, shorten in (*_SHORTENING, *(_CUTTING if cut else ())):
        if size_of(view) <= max_bytes:
            break
        count = sum(shorten(node, depth) for node, depth in _parts(view))
        if keyword == "properties":
            _drop_unused(view)
        if count:
            losses = [loss for loss in losses if loss.keyword != keyword]
            text = f"left out for size: {words.format(count)}"
            losses.append(Loss("", keyword, "lost", text))
    if size_of(view) > max_bytes:
        text = f"the schema is longer than {max_bytes} bytes and cannot be shortened further"
        losses.append(Loss("", "properties", "doubtful", text))
    return view, tuple(losses)


def size_of(view: JsonObject) -> int:
    """Return the bytes of a view as JSON, in ASCII and without whitespace."""
    return len(json.dumps(view, separators=(",", ":")))


def _parts(view: JsonObject) -> Iterator[tuple[JsonObject, int]]:
    stack: list[tuple[Any, int]] = [(view, 0)]
    while stack:
        node, depth = stack.pop()
        if not isinstance(node, dict):
            continue
        yield node, depth
        for keyword, value in node.items():
            stack += ((child, depth + 1) for _, child in children(None, keyword, value))


def _drop_texts(node: JsonObject, _depth: int) -> int:
    dropped = _DROPPED_TEXTS & node.keys()
    for keyword in dropped:
        del node[keyword]
    return len(dropped)


def _keep_first_sentence(node: JsonObject, _depth: int) -> int:
    text = node.get("description")
    short = text.split("\n\n")[0].split(". ")[0] if isinstance(text, str) else text
    if short == text:
        return 0
    node["description"] = short
    return 1


def _drop_nested(node: JsonObject, depth: int) -> int:
    return depth > 1 and isinstance(node.pop("description", None), str)


def _drop_conditions(node: JsonObject, _depth: int) -> int:
    narrowing = _NARROWING & node.keys()
    for keyword in narrowing:
        del node[keyword]
    one_of = node.pop("oneOf", None)
    if one_of is not None and "anyOf" not in node:
        node["anyOf"] = one_of
    return bool(narrowing) or one_of is not None


def _keep_type(node: JsonObject, depth: int, limit: int) -> int:
    dropped = node.keys() - _ALWAYS_KEPT if depth >= limit else ()
    for keyword in dropped:
        del node[keyword]
    return bool(dropped)


def _drop_unused(view: JsonObject) -> None:
    text = json.dumps({key: value for key, value in view.items() if key not in SHELVES})
    for shelf in SHELVES & view.keys():
        definitions: Any = view[shelf]
        pending = [text]
        used: set[str] = set()
        while pending:
            part = pending.pop()
            referenced = {name for name in definitions if f'"#/{shelf}/{name}"' in part} - used
            used |= referenced
            pending += [json.dumps(definitions[name]) for name in sorted(referenced)]
        view[shelf] = {name: part for name, part in definitions.items() if name in used}
        if not used:
            del view[shelf]


# What a stage shortens, in words, and what it does to each part; it returns how much it removed.
_Stage: TypeAlias = tuple[str, str, Callable[[JsonObject, int], int]]
_SHORTENING: tuple[_Stage, ...] = (
    ("title", "{} titles, comments, examples and defaults", _drop_texts),
    ("description", "all but the first sentence of {} descriptions", _keep_first_sentence),
    ("description", "{} descriptions below the top", _drop_nested),
)
# Conditions go first: cutting the parts of a negation would make the view accept less.
_CUTTING: tuple[_Stage, ...] = (
    ("not", "{} conditions, negations and choices of exactly one", _drop_conditions),
    *(
        ("properties", "what lies below {} parts", partial(_keep_type, limit=limit))
        for limit in (6, 5, 4, 3, 2, 1)
    ),
)


# An endpoint's limits on a whole view, and what exceeds them.

_LONG_ENUM_VALUES = 250


def over_limits(view: JsonObject, dialect: Dialect) -> Iterator[Loss]:
    """Yield a refusal for each limit of the dialect that the view exceeds."""
    limits = (
        ("properties", "levels of objects", dialect.max_depth),
        ("properties", "properties", dialect.max_properties),
        ("enum", "enum values", dialect.max_enum),
        ("enum", "characters in one long enum", dialect.max_long_enum),
        ("properties", "characters of names and values", dialect.max_names),
    )
    if all(limit is None for _, _, limit in limits):
        return
    for size, (keyword, unit, limit) in zip(_sizes(view), limits, strict=True):
        if limit is not None and size > limit:
            yield Loss("", keyword, "refused", f"{size} {unit}: at most {limit} are allowed")


def _sizes(view: JsonObject) -> tuple[int, ...]:
    """Return the sizes of a view, in the order of the limits."""
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
        long_enum = max(long_enum, length if len(values) > _LONG_ENUM_VALUES else 0)
        names += length
        for keyword, child in node.items():
            if keyword in MAPS and isinstance(child, dict):
                properties += len(child) if keyword == "properties" else 0
                names += sum(map(len, child))
                child_level = 0 if keyword == "$defs" else level
                stack += [(part, child_level) for part in child.values()]
            elif keyword not in ("enum", "const", "default", "examples", "required", "type"):
                stack.append((child, level))
    return depth, properties, enum, long_enum, names


# What an endpoint does not support of a schema, in plain words for a description.

_MAX_QUOTED = 200  # of a value quoted in words
_MINIMUM_KEYWORDS = frozenset({"minItems", "minLength", "minProperties"})
_ANYTHING = frozenset(
    ("additionalProperties", "unevaluatedProperties", "unevaluatedItems", "additionalItems", "items",
     "propertyNames", "contains")
)  # fmt: skip


def says_nothing(keyword: str, value: object) -> bool:
    """Return whether a keyword with this value allows everything."""
    if keyword in _ANYTHING:
        return value is True or value == {}
    if keyword == "uniqueItems":
        return value is False
    if keyword == "not":
        return value is False
    return value == 0 if keyword in _MINIMUM_KEYWORDS else value in ([], {})


def sentence(keyword: str, value: Any) -> str:
    """Return a sentence for a keyword, or "" if none would help a model."""
    phrase = _PHRASES.get(keyword)
    return phrase(value) if phrase else ""


def with_sentences(description: object, sentences: list[str]) -> str:
    """Return a description with sentences added."""
    text = description.strip() if isinstance(description, str) else ""
    if text and text[-1] not in ".!?:;,":
        text += "."
    return " ".join([text, *sentences]).strip()


def _quoted(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else canonical_json(value)
    except (TypeError, ValueError):
        return ""
    return text if len(text) <= _MAX_QUOTED else ""


def _counted(words: str, one: str, many: str) -> Callable[[Any], str]:
    return lambda n: f"{words} {n} {one if n == 1 else many}."


def _quoting(words: str) -> Callable[[Any], str]:
    def phrase(value: Any) -> str:
        text = _quoted(value)
        return f"{words} {text}." if text else ""

    return phrase


def _default(value: Any) -> str:
    text = '""' if value == "" else _quoted(value)
    return f"Default: {text}." if text and value is not None else ""


def _examples(value: Any) -> str:
    shown = [text for text in map(_quoted, value[:3]) if text] if isinstance(value, list) else []
    return f"For example: {', '.join(shown)}." if shown else ""


def _others(value: Any) -> str:
    if value is False:
        return "No other properties."
    kind = value.get("type") if isinstance(value, dict) else None
    return f"Other properties are of type {kind}." if isinstance(kind, str) else ""


def _dependent_required(value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    pairs = (
        (name, required)
        for name, required in value.items()
        if isinstance(required, list) and required
    )
    return " ".join(
        f"With {name}, also give {', '.join(map(str, required))}." for name, required in pairs
    )


def _excluded(value: Any) -> str:
    if not isinstance(value, dict) or len(value) != 1:
        return ""
    (keyword, excluded), *_ = value.items()
    if keyword == "enum" and isinstance(excluded, list):
        return f"Not one of: {', '.join(map(_quoted, excluded))}."
    return f"Not {_quoted(excluded)}." if keyword == "const" else ""


_PHRASES: dict[str, Callable[[Any], str]] = {
    "default": _default,
    "examples": _examples,
    "const": _quoting("Always"),
    "deprecated": lambda yes: "Deprecated." if yes is True else "",
    "minLength": _counted("At least", "character", "characters"),
    "maxLength": _counted("At most", "character", "characters"),
    "minItems": _counted("At least", "item", "items"),
    "maxItems": _counted("At most", "item", "items"),
    "minProperties": _counted("At least", "property", "properties"),
    "maxProperties": _counted("At most", "property", "properties"),
    "uniqueItems": lambda _: "No two items alike.",
    "minimum": _quoting("At least"),
    "maximum": _quoting("At most"),
    "exclusiveMinimum": _quoting("More than"),
    "exclusiveMaximum": _quoting("Less than"),
    "multipleOf": _quoting("A multiple of"),
    "pattern": _quoting("Matches the pattern"),
    "format": _quoting("Format:"),
    "contentEncoding": _quoting("Encoded as"),
    "contentMediaType": _quoting("Content of type"),
    "additionalProperties": _others,
    "dependentRequired": _dependent_required,
    "not": _excluded,
}


_BOOLEAN = frozenset({"additionalProperties", "unevaluatedProperties"})  # may be booleans
_CLOSING = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties"})
_LOOKAROUND = ("(?=", "(?!", "(?<=", "(?<!")


def view_of(ctx: Context, node: Any) -> Any:
    """Return the view of one part and of what is below it."""
    if not isinstance(node, dict):
        return _boolean(ctx, node)
    ctx.part_count += 1
    flat, inlined = flatten(ctx, node)
    if inlined and ctx.is_exhausted(inlined):
        return _cut(ctx, node, flat)
    ctx.level += 1
    ctx.open.update(inlined)
    non_null = without_null(ctx, flat)
    view = (
        write_part(ctx, rewrite(ctx, flat)) if non_null is None else or_null(view_of(ctx, non_null))
    )
    ctx.open.subtract(inlined)
    ctx.level -= 1
    return view


def _boolean(ctx: Context, value: Any) -> Any:
    if ctx.dialect.booleans:
        return value
    return {} if value is not False or not ctx.keeps("not") else {"not": {}}


def _cut(ctx: Context, node: JsonObject, flat: JsonObject) -> JsonObject:
    """Reduce a part to its type. The model does not see what is below."""
    if ctx.dialect.closed:
        inlined_message = "it is recursive, or too large to be inlined"
        extended_message = "a recursive part that is extended cannot be a definition"
        ctx.add_loss(
            node, "$ref", "refused", inlined_message if ctx.refs == "none" else extended_message
        )
    else:
        text = "the model sees it to a limited depth only, and below that only its type"
        ctx.add_loss(node, "$ref", "lost", text)
    keywords = ("type", "description", "enum", "const")
    reduced = {key: copied(flat[key]) for key in keywords if key in flat and ctx.keeps(key)}
    if "type" not in reduced and "properties" in flat:
        reduced["type"] = "object"
    _add_items(ctx, node, reduced)
    return reduced


def write_part(ctx: Context, node: JsonObject, *, top: bool = False) -> JsonObject:
    """Write a part that needs no more rewriting, keyword by keyword, and finish it."""
    view: JsonObject = {}
    sentences: list[str] = []
    for keyword, value in node.items():
        if ctx.dialect.closed and keyword in _CLOSING:
            continue  # `closed` reports and writes it
        if ctx.keeps(keyword, top=top) and _known_value(ctx, keyword, value):
            view[keyword] = _value_in_view(ctx, keyword, value)
            if keyword in LISTS and not view[keyword]:
                del view[keyword]
                text = "no value is valid there, which the format cannot express"
                ctx.add_loss(node, keyword, "lost", text)
        else:
            sentences += _sentences_for(ctx, node, keyword, value, top=top)
    if sentences:
        view["description"] = with_sentences(view.get("description"), sentences)
    _add_items(ctx, node, view)
    if "$ref" in view and len(view) > 1 and not ctx.dialect.ref_siblings and ctx.refs == "plain":
        view["anyOf"] = [{"$ref": view.pop("$ref")}]  # a neighbour is its description
    if ctx.dialect.closed:
        _add_type(ctx, node, view)
        close_object(ctx, node, view, top=top)
        if ctx.dialect.all_required:
            check_alternatives(ctx, node)
    return view


def _known_value(ctx: Context, keyword: str, value: Any) -> bool:
    if keyword == "format":
        return ctx.dialect.formats is None or value in ctx.dialect.formats
    if keyword == "pattern" and not ctx.dialect.lookaround:
        return not any(mark in str(value) for mark in _LOOKAROUND)
    return True


def _value_in_view(ctx: Context, keyword: str, value: Any) -> Any:
    if isinstance(value, str) and keyword not in REFS:
        return value
    if keyword in MAPS and isinstance(value, dict):
        drops_false = keyword == "properties" and not ctx.keeps("not")
        return {
            name: copied(child) if isinstance(child, list) else view_of(ctx, child)
            for name, child in value.items()
            if child is not False or not drops_false
        }
    if (keyword in LISTS or keyword == "items") and isinstance(value, list):
        drops_false = keyword == "anyOf" and not ctx.keeps("not")
        return [view_of(ctx, child) for child in value if child is not False or not drops_false]
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


def _sentences_for(
    ctx: Context, node: JsonObject, keyword: str, value: Any, *, top: bool
) -> list[str]:
    """Return the sentence for an unsupported keyword, and note it if it is a loss."""
    if says_nothing(keyword, value):
        return []
    text = sentence(keyword, value) if ctx.keeps("description", top=top) else ""
    if keyword in ASSERTIONS and not (keyword == "items" and isinstance(value, list)):
        consequence = "the description says it instead" if text else "the model does not see it"
        ctx.add_loss(node, keyword, "lost", f"not supported there: {consequence}")
    return [text] if text else []


def _add_items(ctx: Context, node: JsonObject, view: JsonObject) -> None:
    is_missing = ctx.dialect.need_items and not {"items", "prefixItems"} & view.keys()
    if is_missing and "array" in names_in(view.get("type")):
        view["items"] = {}
        if ctx.dialect.closed:
            ctx.add_loss(node, "items", "refused", "an array must say the type of its items")


def _add_type(ctx: Context, node: JsonObject, view: JsonObject) -> None:
    """Give every part a type, if its keywords show one, for dialects with closed objects."""
    for keyword in ("properties", "items", "anyOf"):
        if any(child is True for _, child in children(None, keyword, node.get(keyword))):
            ctx.add_loss(node, keyword, "refused", "a part without a type is not supported there")
    values: Any = [view["const"]] if "const" in view else view.get("enum", ())
    if any(isinstance(value, dict | list) for value in values):
        ctx.add_loss(node, "enum", "refused", "objects and arrays cannot be listed as values there")
    if any(keyword in view for keyword in ("type", "$ref", "anyOf")):
        return
    kinds = list(dict.fromkeys(kind_of(value) for value in values))
    if kinds:
        view["type"] = kinds[0] if len(kinds) == 1 else list(kinds)
    elif "properties" in view or "items" in view:
        view["type"] = "object" if "properties" in view else "array"
        ctx.add_loss(node, "type", "lost", "a value of another type can no longer be given")
    else:
        ctx.add_loss(node, "type", "refused", "a part without a type is not supported there")


# Find out quickly whether a dialect accepts a schema unchanged.
#
# Most endpoints accept most schemas unchanged. A yes is exact: lowering would change nothing and
# lose nothing. A no only means that lowering has to look.

_NOT_PLAIN = DOCUMENT.union(REFS)


def accepts_unchanged(schema: JsonObject, dialect: Dialect) -> bool:
    """Return whether the view of a schema is the schema itself, without a loss."""
    if dialect == Dialect(name=dialect.name):
        return True
    if dialect.closed or not dialect.ref_siblings or not _is_supported_top(schema, dialect):
        return False
    stack: list[Any] = [schema]
    while stack:
        node = stack.pop()
        if node.__class__ is dict:
            if not _is_supported(node, dialect):
                return False
            stack += _below(node)
        elif node is not True or not dialect.booleans:
            return False
    return dialect.compact_over is None or size_of(schema) <= dialect.compact_over


def _is_supported_top(schema: JsonObject, dialect: Dialect) -> bool:
    if schema.get("type") != "object" or "draft-07" in str(schema.get("$schema", "")):
        return False
    properties = schema.get("properties", {})
    pattern = dialect.property_names
    has_allowed_names = pattern is None or (
        isinstance(properties, dict) and all(re.fullmatch(pattern, name) for name in properties)
    )
    return has_allowed_names and schema.keys().isdisjoint(dialect.root_without)


def _is_supported(node: JsonObject, dialect: Dialect) -> bool:
    """Return whether the keywords of a part stay, whatever is below it."""
    keywords, formats = dialect.keywords, dialect.formats
    if keywords is not None and not node.keys() <= keywords:
        return False
    if dialect.refs != "any" and not node.keys().isdisjoint(_NOT_PLAIN):
        return False
    if formats is not None and "format" in node and node["format"] not in formats:
        return False
    if "pattern" in node and not dialect.lookaround:
        return False
    needs_items = dialect.need_items and "array" in names_in(node.get("type"))
    return not needs_items or "items" in node or "prefixItems" in node


def _below(node: JsonObject) -> Iterator[Any]:
    """Yield the parts directly below a part; None for an invalid one, such as an empty union."""
    for keyword, value in node.items():
        kind = value.__class__
        if keyword in MAPS and kind is dict:
            yield from value.values()  # type: ignore[union-attr]
        elif keyword in SINGLES and not (kind is bool and keyword in _BOOLEAN):
            yield value
        elif keyword in LISTS:
            yield from value if kind is list and value else [None]  # type: ignore[misc]


# The top of a view: a plain object, or one property that holds what the top may not express.

WRAPPER = "arguments"  # the one property of a wrapped top, with `_` added if the author uses it
_DOCUMENT = ("$defs", "definitions", "$schema", "$id")


def lower(schema: JsonObject, dialect: Dialect) -> Lowered:
    """Return the view of a schema in a dialect, what it loses, and the restorer of its arguments.

    The schema is left unchanged and shares nothing with the view. Never raises for a schema that
    passed `check_schema` and compiles; the caller has to ensure both.
    """
    if accepts_unchanged(schema, dialect):
        return Lowered(copied(schema), ())
    lowered, limit = _lowered(schema, dialect), dialect.compact_over
    if limit is None or size_of(lowered.schema) <= limit:
        return lowered
    if dialect.refs == "any":  # a reference might lead into what is cut: definitions are kept whole
        lowered = _lowered(schema, msgspec.structs.replace(dialect, refs="plain"))
    view, shortened = compact(lowered.schema, limit, cut=not dialect.closed)
    return Lowered(view, (*lowered.losses, *shortened), lowered.restorer)


def _lowered(schema: JsonObject, dialect: Dialect) -> Lowered:
    ctx = Context(schema, dialect)
    view, wrapper = _top(ctx)
    _define(ctx, view)
    losses = (*ctx.losses, *over_limits(view, dialect))
    restorer = None
    if ctx.filled or wrapper is not None:
        restorer = ViewRestorer(json.dumps(schema), wrapper=wrapper, filled=dialect.all_required)
    return Lowered(view, losses, restorer)


def _top(ctx: Context) -> tuple[JsonObject, str | None]:
    flat, inlined = flatten(ctx, ctx.root, top=True)
    if inlined and ctx.refs == "any":
        ctx.refs = "plain"  # the top is a copy, so its anchors would exist twice
    flat = rewrite(ctx, flat)
    if _must_wrap(ctx, flat):
        return _wrapped(ctx, flat)
    if ctx.dialect.root_without and flat.get("type") != "object":
        # Arguments are objects, whatever else the author allows.
        flat = ctx.made_from({"type": "object"} | flat | {"type": "object"}, flat)
    ctx.open.update(inlined)
    view = write_part(ctx, flat, top=True)
    ctx.open.subtract(inlined)
    return view, None


def _must_wrap(ctx: Context, flat: JsonObject) -> bool:
    """Return whether the top needs what only a property may have."""
    not_at_top = ctx.dialect.root_without - {"description"}
    if any(keyword in flat and ctx.keeps(keyword) for keyword in not_at_top):
        return True
    pattern = ctx.dialect.property_names
    properties = flat.get("properties")
    if pattern is None or not isinstance(properties, dict):
        return False
    bad_names = [name for name in properties if not re.fullmatch(pattern, name)]
    if bad_names:
        text = (
            f"names outside {pattern}: all arguments are put under one property, where such names "
            "are allowed"
        )
        ctx.add_loss(flat, "properties", "doubtful", text)
    return bool(bad_names)


def _wrapped(ctx: Context, flat: JsonObject) -> tuple[JsonObject, str]:
    """Put the whole under one property. References into it become references to definitions."""
    declared_names = _declared_names(ctx, flat)
    name = WRAPPER
    while name in declared_names:
        name += "_"
    ctx.wrapped = True
    ctx.refs = "plain" if ctx.refs == "any" else ctx.refs
    inner = view_of(ctx, ctx.made_from(without(ctx.root, *_DOCUMENT), ctx.root))
    view: JsonObject = {"type": "object", "properties": {name: inner}, "required": [name]}
    if ctx.keeps("additionalProperties"):
        view["additionalProperties"] = False
    return view, name


def _declared_names(ctx: Context, flat: JsonObject) -> set[str]:
    names: set[str] = set()
    branches: list[Any] = [flat]
    for keyword in ("anyOf", "oneOf", "allOf"):
        members = flat.get(keyword)
        branches += members if isinstance(members, list) else []
    for branch in branches:
        target = target_of(ctx.references, branch)
        properties = target.get("properties") if target is not None else None
        names |= properties.keys() if isinstance(properties, dict) else set()
    return names


def _define(ctx: Context, view: JsonObject) -> None:
    """Lower what is referred to, and what that refers to, and so on."""
    definitions: JsonObject = {}
    while len(definitions) < len(ctx.definitions):
        for name, target in list(ctx.definitions.items()):
            if name not in definitions:
                definitions[name] = view_of(ctx, target)
    if definitions:
        view["$defs"] = definitions
