"""Translate arguments made for a view back into the terms of the author's schema.

Nulls that stand for absent properties are removed, and wrapped arguments are unwrapped. A null is
removed only if it is the value of an optional property that does not accept null. If the property
accepts null, it means null, and in the other direction a missing property is written as its
default. Below a union a null is removed only if the whole value can have been made in just one way,
and the rest fits no other alternative. The work is bounded: arguments that would take more are
passed on unchanged, for the author's schema to judge.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

import msgspec

from toolcrib.errors import SchemaError
from toolcrib.schema.effort import pairs
from toolcrib.schema.lower.tree import Nulls, copied, default_of, pointers, working_copy
from toolcrib.schema.references import REFS, References, names_in, subschemas, without
from toolcrib.schema.validator import Validator, compile_validator, kind_of
from toolcrib.values.json import JsonObject, JsonValue, is_whole

# Decide whether a value can have been made for an alternative of a union: by quick checks (the
# type, `const` and `enum` tags, what is required), and by validators if several remain.

_ROOT = "#/$defs/whole"


def may_be(references: References, branch: Any, value: JsonValue) -> bool:
    """Return whether the quick checks do not rule out an alternative."""
    for _ in range(10):
        if not isinstance(branch, dict):
            return branch is not False
        if not _has_type_of(branch, value):
            return False
        if isinstance(value, dict) and not _members_fit(references, branch, value):
            return False
        if not isinstance(branch.get("$ref"), str):
            return True
        branch = references.resolve(branch["$ref"])
    return True


def _has_type_of(branch: JsonObject, value: JsonValue) -> bool:
    """Return whether a value has the type, and is one of the values, that an alternative names."""
    types = names_in(branch.get("type"))
    kind = kind_of(value)
    if types and kind not in types:
        is_integer = isinstance(value, float) and is_whole(value) and "integer" in types
        if not is_integer and not (kind == "integer" and "number" in types):
            return False
    return _is_listed(branch, value)


def _is_listed(branch: JsonObject, value: JsonValue) -> bool:
    values: Any = [branch["const"]] if "const" in branch else branch.get("enum")
    if isinstance(values, list) and isinstance(value, dict | list):
        return any(isinstance(listed, dict | list) for listed in values)
    return not isinstance(values, list) or value in values


def _members_fit(references: References, branch: JsonObject, value: JsonObject) -> bool:
    if any(name not in value for name in names_in(branch.get("required"))):
        return False
    properties = branch.get("properties")
    if not isinstance(properties, dict):
        return True
    return all(
        _is_listed(tag, value[name])
        for name, schema in properties.items()
        if value.get(name) is not None and (tag := _tag(references, schema)) is not None
    )


def _tag(references: References, schema: Any) -> JsonObject | None:
    """Return the part that lists the values of a property, at most one reference away."""
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        schema = references.resolve(schema["$ref"])
    return schema if isinstance(schema, dict) and ("const" in schema or "enum" in schema) else None


def _with_moved_references(schema: JsonObject) -> JsonObject:
    """Return a copy whose references into the whole point to where the whole is placed."""
    copy: JsonObject = copied(schema)
    for _, node in list(subschemas(copy)):
        for keyword in REFS:
            ref = node.get(keyword)
            if isinstance(ref, str) and (ref == "#" or ref.startswith("#/")):
                node[keyword] = _ROOT + ref[1:]
    return copy


MAX_STEPS = 50_000  # pairs of a part of the schema and a part of the arguments
MAX_PAIRS = 40_000  # of a subschema and a part of the arguments, met by validators in one go
_UNIONS = ("anyOf", "oneOf")


class ViewRestorer(msgspec.Struct, frozen=True, dict=True):
    """Translates between arguments for a view and for the author's schema, whose JSON is `text`.

    `wrapper` is the one property of a wrapped top. `filled` says that the view requires every
    property, and optional ones may be null. These three determine equality, and make it picklable.
    """

    text: str
    wrapper: str | None = None
    filled: bool = True

    @cached_property
    def _author(self) -> _Author:
        return _Author(working_copy(json.loads(self.text)))

    def restore(self, arguments: JsonObject) -> JsonObject:
        """Return arguments sent for the view in the author's terms; leave the input unchanged."""
        inner = arguments
        if self.wrapper is not None and list(arguments) == [self.wrapper]:
            wrapped = arguments[self.wrapper]
            if not isinstance(wrapped, dict):
                return dict(arguments)
            inner = wrapped
        return self._converted(inner, to_view=False)

    def to_view(self, arguments: JsonObject) -> JsonObject:
        """Return valid arguments, such as those of an example, in the terms of the view."""
        inner = self._converted(arguments, to_view=True)
        return inner if self.wrapper is None else {self.wrapper: inner}

    def _converted(self, arguments: JsonObject, *, to_view: bool) -> JsonObject:
        if self.filled:
            try:
                conversion = _Conversion(self._author, to_view=to_view)
                converted = conversion.convert([self._author.schema], arguments, "drop").value
            except (_TooMuchError, RecursionError):
                converted = arguments
            if isinstance(converted, dict) and converted is not arguments:
                return converted
        return dict(arguments)


class _TooMuchError(Exception):
    """The arguments and the schema together would take too long."""


class _Author:
    """The author's schema, what is known about its parts, and validators for them.

    Each validator is compiled when first needed.
    """

    def __init__(self, schema: JsonObject) -> None:
        self.schema = schema
        self.references = References(schema)
        self.nulls = Nulls(self.references)
        self._whole: Any = None
        self._pointers: dict[int, str] = {}
        self._validators: dict[int, Validator | None] = {}

    def validator_of(self, branch: Any) -> Validator | None:
        """Return the validator of an alternative; None if there can be none."""
        if not isinstance(branch, dict):
            return None
        if id(branch) not in self._validators:
            self._validators[id(branch)] = self._compiled(branch)
        return self._validators[id(branch)]

    def _compiled(self, branch: JsonObject) -> Validator | None:
        if self._whole is None:
            self._pointers = pointers(self.schema)
            self._whole = _with_moved_references(without(self.schema, "$id"))
        pointer = self._pointers.get(id(branch))
        if pointer is None:
            return None
        document: JsonObject = {"$defs": {"whole": self._whole}, "$ref": _ROOT + quote(pointer)}
        if "$schema" in self.schema:
            document["$schema"] = self.schema["$schema"]
        try:
            return compile_validator(document)
        except SchemaError:
            return None


# First find out what a value was made for, then write that.
#
# A union is first read at every depth, ignoring nulls that stand for absent properties. Which
# alternatives can the value have been made for, and in how many ways? A view requires every
# property, so an alternative whose properties differ from the value's is ruled out. So is one under
# which the rest is not valid.
#
# If nulls are removed and there are several ways, here or in any part below, the whole value stays
# as it was sent. If there is one way, the value is written for it without its nulls. If that fits
# another alternative, too, the nulls become defaults. If that also fits another one, the whole
# value stays.

_Mode: TypeAlias = Literal["read", "drop", "fill"]
"""`read`: find out, on the way back, what was meant. `drop` and `fill`: write that, without its
nulls or with defaults in their place."""
_WRITING_MODES: Mapping[_Mode, tuple[_Mode, ...]] = {"drop": ("drop", "fill"), "fill": ("fill",)}
_Outer: TypeAlias = tuple[Sequence[JsonObject], Sequence[Any]]
"""What also applies to a value: parts, and unions of which no alternative is chosen yet."""


class _Converted(NamedTuple):
    """A converted value, and the number of ways it can have been made: 0, 1, or 2 for several.

    Also counts its properties that nothing declares (`undeclared`), the properties of the view that
    it lacks (`missing`), and its nulls that stand for absent properties (`nulls`).
    """

    value: Any
    ways: int = 1
    undeclared: int = 0
    missing: int = 0
    nulls: int = 0


_Alternative: TypeAlias = tuple[Any, _Converted]  # an alternative, and the value converted by it


class _Conversion:
    """One conversion of arguments, to the view or back. Each part is done once in each step."""

    def __init__(self, author: _Author, *, to_view: bool) -> None:
        self._author = author
        self._to_view = to_view
        self._cached: dict[tuple[tuple[int, ...], int, _Mode], _Converted] = {}
        self._steps = 0
        self._pairs = 0

    def convert(self, schemas: list[Any], value: JsonValue, mode: _Mode) -> _Converted:
        """Convert a value that all of the given schemas describe."""
        if not schemas or (mode != "read" and not isinstance(value, dict | list)):
            return _Converted(value)
        key = tuple(map(id, schemas)), id(value), mode
        if key not in self._cached:
            self._cached[key] = self._convert(schemas, value, mode, ((), ()))
        return self._cached[key]

    def _count(self, steps: int = 1) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise _TooMuchError

    def _convert(self, schemas: list[Any], value: Any, mode: _Mode, outer: _Outer) -> _Converted:
        """Convert a value by everything that applies to it, with one alternative of each union."""
        parts, unions = list(outer[0]), list(outer[1])
        seen = set(map(id, parts))  # a part may lead back to itself
        stack = list(schemas)
        while stack:
            part = stack.pop()
            if not isinstance(part, dict) or id(part) in seen:
                continue
            self._count()
            seen.add(id(part))
            parts.append(part)
            resolve = self._author.references.resolve
            stack += (resolve(part[key]) for key in REFS if isinstance(part.get(key), str))
            stack += part.get("allOf", ())
            unions += (part[union] for union in _UNIONS if union in part)
        if unions:
            return self._by_one_of(unions[0], value, mode, (parts, unions[1:]))
        if mode == "read" and not all(_has_type_of(part, value) for part in parts):
            return _Converted(value, ways=0)
        if not isinstance(value, dict | list):
            return _Converted(value)
        self._count(1 + len(value) // 4)
        if isinstance(value, dict):
            return self._object(parts, value, mode)
        return self._array(parts, value, mode)

    def _by_one_of(self, branches: Any, value: Any, mode: _Mode, outer: _Outer) -> _Converted:
        """Convert a value by the alternative of a union that it was made for."""
        candidates = [
            branch for branch in branches if may_be(self._author.references, branch, value)
        ]
        if not candidates:
            return self._convert([], value, mode, outer)._replace(ways=0)
        chosen = candidates[0]
        if len(candidates) > 1:
            chosen, converted = self._best_alternative(candidates, value, outer)
            if mode == "read" or self._to_view:
                return converted
            if converted.ways > 1:
                return converted._replace(value=value)
        if mode == "read" or self._to_view:
            return self._convert([chosen], value, mode, outer)
        for writing_mode in _WRITING_MODES[mode]:
            written = self._convert([chosen], value, writing_mode, outer)
            if written.ways < 2 and self._is_unambiguous(written, writing_mode, chosen, branches):
                return written
        return written._replace(value=value, ways=2)

    def _best_alternative(self, candidates: list[Any], value: Any, outer: _Outer) -> _Alternative:
        """Return the alternative that a value was made for, with the ways over all of them."""
        mode: _Mode = "drop" if self._to_view else "read"
        alternatives = [
            (alternative, self._convert([alternative], value, mode, outer))
            for alternative in candidates
        ]
        least_evidence = min(map(self._evidence_against, alternatives))
        best = [
            alternative
            for alternative in alternatives
            if self._evidence_against(alternative) == least_evidence
        ]
        if len(best) == 1 or not (
            self._to_view or any(alternative.nulls for _, alternative in best)
        ):
            return best[0]
        valid = [alternative for alternative in best if self._is_valid(alternative, value, outer)]
        branch, converted = max(valid or best, key=lambda alternative: alternative[1].nulls)
        if not valid:
            converted = converted._replace(ways=0)
        elif converted.nulls and any(other != branch for other, _ in valid):
            converted = converted._replace(ways=2)
        return branch, converted

    def _evidence_against(self, alternative: _Alternative) -> tuple[bool, int, bool]:
        """Return the evidence against an alternative; the one with the least is best."""
        _, converted = alternative
        return not converted.ways, converted.undeclared, not self._to_view and converted.missing > 0

    def _is_valid(self, alternative: _Alternative, value: Any, outer: _Outer) -> bool:
        """Return whether a value, in the author's terms, is or may be valid for an alternative."""
        branch, converted = alternative
        if self._to_view:
            return self._accepts(branch, value)
        if converted.ways != 1:
            return converted.ways > 1
        if self._accepts(branch, converted.value):
            return True
        written = self._convert([branch], value, "drop", outer)
        return written.ways > 1 or self._accepts(branch, written.value)

    def _is_unambiguous(self, written: _Converted, mode: _Mode, chosen: Any, branches: Any) -> bool:
        """Return whether the written value fits no alternative but the chosen one.

        A value with defaults in place of nulls also has to fit the chosen one.
        """
        if not written.nulls:
            return True
        if mode == "fill" and not self._accepts(chosen, written.value):
            return False
        return not any(
            may_be(self._author.references, branch, written.value)
            and branch != chosen
            and self._accepts(branch, written.value)
            for branch in branches
            if branch is not chosen
        )

    def _accepts(self, branch: Any, value: Any) -> bool:
        """Return whether a value is valid under an alternative, or may be."""
        validator = self._author.validator_of(branch)
        if validator is None:  # no validator can tell, or there is nothing to check
            return branch is not False
        for _ in pairs(self._author.references, branch, value):
            self._pairs += 1
            if self._pairs > MAX_PAIRS:
                raise _TooMuchError
        return validator.is_valid(value)

    def _object(self, parts: list[JsonObject], value: JsonObject, mode: _Mode) -> _Converted:
        declared: list[Any] = [part["properties"] for part in parts if "properties" in part]
        required = {name for part in parts for name in names_in(part.get("required"))}
        result: JsonObject = {}
        ways, undeclared, nulls = 1, 0, 0
        missing = sum(
            name not in value and schema is not False
            for properties in declared
            for name, schema in properties.items()
        )
        for name, child in value.items():
            schemas = [properties[name] for properties in declared if name in properties]
            if child is None and not all(map(self._author.nulls.accepted_by, schemas)):
                if name not in required and not self._to_view:
                    nulls += 1
                    if mode == "fill":
                        result[name] = copied(self._default(schemas))
                    continue
                ways = 0
            undeclared += not schemas and bool(declared)
            result[name] = child
            if schemas and (mode == "read" or isinstance(child, dict | list)):
                converted = self.convert(schemas, child, mode)
                result[name] = converted.value
                ways = min(2, ways * converted.ways)
                undeclared += converted.undeclared
                missing += converted.missing
                nulls += converted.nulls
        if self._to_view:
            self._fill(declared, required, result)
        return _Converted(result, ways, undeclared, missing, nulls)

    def _fill(self, declared: list[Any], required: set[str], result: JsonObject) -> None:
        """Fill in missing properties: null, or the default if null would mean null."""
        for properties in declared:
            for name, schema in properties.items():
                if name not in result and name not in required and schema is not False:
                    schemas = [others[name] for others in declared if name in others]
                    result[name] = self._placeholder(schemas)

    def _placeholder(self, schemas: list[Any]) -> JsonValue:
        if not all(map(self._author.nulls.accepted_by, schemas)):
            return None
        default = self._default(schemas)
        if not all(may_be(self._author.references, schema, default) for schema in schemas):
            return None
        converted: JsonValue = copied(self.convert(schemas, default, "drop").value)
        return converted

    def _default(self, schemas: list[Any]) -> JsonValue:
        defaults = (default_of(self._author.references, schema) for schema in schemas)
        default: JsonValue = next((found[0] for found in defaults if found), None)
        return default

    def _array(self, parts: list[JsonObject], value: list[JsonValue], mode: _Mode) -> _Converted:
        items: list[_Converted] = []
        ways = 1
        positional_count = max((len(_positional_schemas(part)) for part in parts), default=0)
        rest_schemas = [s for part in parts for s in _item_schemas(part, positional_count)]
        for index, child in enumerate(value):
            schemas = (
                rest_schemas
                if index >= positional_count
                else [s for p in parts for s in _item_schemas(p, index)]
            )
            items.append(self.convert(schemas, child, mode))
            ways = min(2, ways * items[-1].ways)
        return _Converted(
            [item.value for item in items],
            ways,
            sum(item.undeclared for item in items),
            sum(item.missing for item in items),
            sum(item.nulls for item in items),
        )


def _positional_schemas(part: JsonObject) -> list[Any]:
    """Return the schemas for items by position; in draft 7 these are a list under `items`."""
    items: Any = part.get("items")
    positional: Any = items if isinstance(items, list) else part.get("prefixItems", [])
    return positional if isinstance(positional, list) else []


def _item_schemas(part: JsonObject, index: int) -> list[Any]:
    positional = _positional_schemas(part)
    if index < len(positional):
        return [positional[index]]
    rest = part.get("additionalItems" if isinstance(part.get("items"), list) else "items")
    return [rest] if isinstance(rest, dict) else []
