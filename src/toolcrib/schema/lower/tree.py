"""The parts of a schema: which keywords contain further schemas, and where a part is.

Lowering works on a private copy, so that nothing it makes shares a part with the author's schema
and each part has one place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from toolcrib.schema.references import (
    REFS,
    ROLES,
    References,
    Role,
    names_in,
    subschemas,
)
from toolcrib.values.json import JsonObject, escape_pointer
from toolcrib.values.message import ArgumentRestorer


def _with_role(*roles: Role) -> frozenset[str]:
    return frozenset(keyword for keyword, role in ROLES.items() if role in roles)


MAPS = _with_role(Role.NAMED, Role.SHELF, Role.PATTERNS)
LISTS = _with_role(Role.MANY)
SINGLES = _with_role(Role.ONE)
SHELVES = _with_role(Role.SHELF)
_MAX_REFS = 10  # that lead from one to the next
# Keywords for references and the document, which say nothing about values.
DOCUMENT = frozenset(("$schema", "$id", "$vocabulary", "$anchor", "$dynamicAnchor")) | SHELVES
# Keywords that do not affect which values are valid.
# `discriminator` is the property that tells alternatives apart (OpenAPI).
ANNOTATIONS = DOCUMENT.union(
    ("discriminator", "title", "description", "default", "examples", "deprecated", "readOnly",
     "writeOnly", "$comment")
)  # fmt: skip
ASSERTIONS = frozenset(
    ("type", "enum", "const", "properties", "required", "additionalProperties", "patternProperties",
     "propertyNames", "unevaluatedProperties", "minProperties", "maxProperties", "dependentRequired",
     "dependentSchemas", "dependencies", "items", "prefixItems", "additionalItems", "unevaluatedItems",
     "contains", "minContains", "maxContains", "minItems", "maxItems", "uniqueItems", "minLength",
     "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
     "multipleOf", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", *REFS, "contentEncoding",
     "contentMediaType", "contentSchema")
)  # fmt: skip


def copied(value: Any) -> Any:
    """Return a copy of a JSON value in which no part occurs twice."""
    if type(value) is dict:
        return {key: copied(child) for key, child in value.items()}
    if type(value) is list:
        return [copied(child) for child in value]
    return value


def working_copy(schema: JsonObject) -> JsonObject:
    """Return a copy to work on, without what draft 7 ignores next to a `$ref`."""
    copy: JsonObject = copied(schema)
    if "draft-07" in str(schema.get("$schema", "")):
        for _, node in list(subschemas(copy)):
            if isinstance(node.get("$ref"), str):
                for keyword in node.keys() - ANNOTATIONS - {"$ref"}:
                    del node[keyword]
    return copy


def target_of(references: References, node: Any) -> JsonObject | None:
    """Return a part, or its target if it is only a reference."""
    *_, last = _chain(references, node)
    return last if isinstance(last, dict) and not _ref_of(last) else None


def default_of(references: References, node: Any) -> tuple[Any, ...]:
    """Return the default of a property, its own or its target's; empty if there is none."""
    parts = _chain(references, node)
    return next(((p["default"],) for p in parts if isinstance(p, dict) and "default" in p), ())


def _chain(references: References, node: Any) -> Iterator[Any]:
    """Yield a part, its reference's target, that one's target and so on, up to a limit."""
    yield node
    for _ in range(_MAX_REFS):
        ref = _ref_of(node) if isinstance(node, dict) else None
        if ref is None:
            return
        node = references.resolve(ref)
        yield node


def _ref_of(node: JsonObject) -> str | None:
    return next((ref for key in REFS if isinstance(ref := node.get(key), str)), None)


def pointers(schema: object) -> dict[int, str]:
    """Return the pointer of each object of a schema, by its id."""
    pointer_by_id = {}
    stack: list[tuple[str, object]] = [("", schema)]
    while stack:
        pointer, node = stack.pop()
        if isinstance(node, dict):
            pointer_by_id[id(node)] = pointer
            stack.extend((f"{pointer}/{escape_pointer(key)}", node[key]) for key in node)
        elif isinstance(node, list):
            stack.extend((f"{pointer}/{index}", child) for index, child in enumerate(node))
    return pointer_by_id


# The values of lowering: the dialect of JSON Schema that an endpoint supports, and what a view
# loses.
#
# The author's schema is never changed. A view is a fresh object for one dialect. It comes with a
# list of what it no longer says, and with a restorer for arguments made for it.

Effect: TypeAlias = Literal["refused", "lost", "doubtful"]


class Loss(NamedTuple):
    """A keyword that a view omits or expresses differently.

    `pointer` is a JSON Pointer into the author's schema; `keyword` is the keyword there. `refused`:
    the endpoint would refuse the tool. `lost`: the view says less than the author's schema, which
    still judges the arguments. `doubtful`: it works, but may surprise.
    """

    pointer: str
    keyword: str
    effect: Effect
    message: str


class Lowered(msgspec.Struct, frozen=True):
    """A view; `restorer` is None if whatever fits the view is already in the author's terms."""

    schema: JsonObject
    losses: tuple[Loss, ...]
    restorer: ArgumentRestorer | None = None


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """The part of JSON Schema that an endpoint supports; None for a set means everything.

    `keywords` and `formats` are those it supports. Other keywords are expressed with supported ones
    if possible (`oneOf` as `anyOf`, `const` as `enum`, `allOf` merged), and the rest moves into
    descriptions where it can. `root_without`: keywords not allowed at the top; a schema that needs
    one there is wrapped in a property. `refs`: `any` local one, only `#` and `#/$defs/x` (`plain`),
    or `none` (they are inlined, recursion to `unroll` levels). `ref_siblings`: whether `$ref` may
    have neighbours.

    `closed`: every object is closed and every part typed. What cannot be is refused, and so is
    recursion that would have to be cut. `all_required`: every property is also required, and
    optional ones are nullable. `booleans`: whether `true` and `false` are supported as schemas.
    `need_items`: whether an array must declare its items. `lookaround`: whether patterns may use
    it. `property_names`: a pattern for the names at the top.

    `max_…` limit the whole view. `max_names` is in characters, over property and definition names,
    enum and const values; so is `max_long_enum`, for one enum of more than 250 values. Schemas over
    `compact_over` bytes of JSON are shortened.
    """

    name: str
    keywords: frozenset[str] | None = None
    formats: frozenset[str] | None = None
    root_without: frozenset[str] = frozenset()
    refs: Literal["any", "plain", "none"] = "any"
    ref_siblings: bool = True
    unroll: int = 3
    closed: bool = False
    all_required: bool = False
    booleans: bool = True
    need_items: bool = False
    lookaround: bool = True
    property_names: str | None = None
    max_depth: int | None = None
    max_properties: int | None = None
    max_enum: int | None = None
    max_long_enum: int | None = None
    max_names: int | None = None
    compact_over: int | None = None


# Find out from a schema alone whether it accepts `null`.
#
# Only `type`, `enum`, `const`, references and combinations can refuse null; all other keywords
# apply to values of other types. So the answer is exact and needs no validator. The search ends,
# because a schema that `check_schema` passed never leads back to itself without a step into the
# value.


class Nulls:
    """Answers for the parts of one schema, and caches the answers. Threads may share it."""

    def __init__(self, references: References) -> None:
        self._references = references
        self._cached: dict[int, tuple[object, bool]] = {}

    def accepted_by(self, node: object) -> bool:
        """Return whether null is valid."""
        if not isinstance(node, dict):
            return node is not False
        cached = self._cached.get(id(node))
        if cached is None:
            cached = self._cached[id(node)] = node, self._accepts(node)
        return cached[1]

    def _accepts(self, node: dict[str, Any]) -> bool:
        if "type" in node and "null" not in names_in(node["type"]):
            return False
        if isinstance(node.get("enum"), list) and None not in node["enum"]:
            return False
        if "const" in node and node["const"] is not None:
            return False
        return self._combinations_accept(node)

    def _combinations_accept(self, node: dict[str, Any]) -> bool:
        accepts_null = self.accepted_by
        refs = (node[keyword] for keyword in REFS if isinstance(node.get(keyword), str))
        targets = [target for ref in refs if (target := self._references.resolve(ref)) is not None]
        if not all(map(accepts_null, targets)) or not all(map(accepts_null, node.get("allOf", ()))):
            return False
        if "anyOf" in node and not any(map(accepts_null, node["anyOf"])):
            return False
        if "oneOf" in node and sum(map(accepts_null, node["oneOf"])) != 1:
            return False
        if "not" in node and accepts_null(node["not"]):
            return False
        return "if" not in node or accepts_null(
            node.get("then" if accepts_null(node["if"]) else "else", True)
        )


# The state of one lowering: the schema, the dialect, losses, definitions.

MAX_INLINED = 2_000  # parts of a view in which references are replaced by their targets
MAX_LEVELS = 64
# What a keyword that the author did not write was made from.
_MADE_FROM = {"anyOf": ("oneOf",), "enum": ("const",), "items": ("prefixItems",)}


class Context:
    """Made for one call of `lower`. The rules of the walk are functions that take it."""

    def __init__(self, schema: JsonObject, dialect: Dialect) -> None:
        self.root: JsonObject = working_copy(schema)
        self.dialect = dialect
        self.refs = dialect.refs
        self.references = References(self.root)
        self.nulls = Nulls(self.references)
        self.open: Counter[int] = Counter()
        self.definitions: dict[str, Any] = {}  # name to its target in the author's schema
        self.part_count = 0
        self.level = 0
        self.wrapped = False
        self.filled = False  # whether the view requires what the author's schema does not
        self._names: dict[int, str] = {}
        self.losses: dict[Loss, None] = {}
        self._pointers: dict[int, str] | None = None
        # By id: a new part, what it was made from, and where those of its keywords come from whose
        # origin differs. All are kept alive, so that no id is reused.
        self._sources: dict[int, tuple[object, object, Mapping[str, object]]] = {}

    def made_from(
        self, new: JsonObject, source: object, origins: Mapping[str, object] | None = None
    ) -> JsonObject:
        """Note what a part was made from, so that a loss in it can be reported at its place."""
        if new is not source:
            self._sources[id(new)] = new, source, origins or {}
        return new

    def add_loss(self, part: object, keyword: str, effect: Effect, message: str) -> None:
        """Note a loss. A loss in a part that is inlined twice counts once."""
        source = part
        while id(source) in self._sources:
            _, source_part, origins = self._sources[id(source)]
            source = origins.get(keyword, source_part)
        if self._pointers is None:
            self._pointers = pointers(self.root)
        pointer = self._pointers.get(id(source), "")
        if isinstance(source, dict) and keyword not in source:
            keyword = next((k for k in _MADE_FROM.get(keyword, ()) if k in source), keyword)
        self.losses[Loss(pointer, keyword, effect, message)] = None

    def keeps(self, keyword: str, *, top: bool = False) -> bool:
        """Return whether a keyword may be used in a view, or at its top."""
        if keyword in DOCUMENT and self.refs != "any":
            return False
        if top and keyword in self.dialect.root_without:
            return False
        return self.dialect.keywords is None or keyword in self.dialect.keywords

    def is_exhausted(self, inlined: list[int]) -> bool:
        """Return whether a target is already being inlined too often, or the view is too large."""
        limit = self.dialect.unroll if self.refs == "none" else 1
        if any(self.open[target] >= limit for target in inlined):
            return True
        return self.refs == "none" and (self.part_count > MAX_INLINED or self.level > MAX_LEVELS)

    def definition_name(self, target: object, ref: str) -> str:
        """Return the name under `$defs` of a reference's target, which is lowered later."""
        if id(target) not in self._names:
            base_name = _allowed_name(ref.rpartition("/")[2].lstrip("#"))
            name, number = base_name, 1
            while name in self.definitions:
                number += 1
                name = f"{base_name}_{number}"
            self._names[id(target)] = name
            self.definitions[name] = target
        return self._names[id(target)]


def _allowed_name(name: str) -> str:
    allowed = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "_" for c in name)
    return allowed[:64] or "root"
