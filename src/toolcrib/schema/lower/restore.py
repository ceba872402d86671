"""Restore arguments that were made for a view to the terms of the author's schema.

Nulls that stand for nothing go, and what was wrapped is unwrapped. A null goes only where it is the
value of an optional property that does not take null; where it is taken, it means null, and the
default goes out as its value. Below a union it goes only where the value can have been made for one
alternative alone, and what is left fits no other one. The work is bounded: what would take more is
passed on unchanged, for that schema to judge.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

import msgspec

from toolcrib.errors import SchemaError
from toolcrib.schema.effort import pairs
from toolcrib.schema.lower.tree import Nulls, copied, default_of, names_in, pointers, working_copy
from toolcrib.schema.references import REFS, References, subschemas
from toolcrib.schema.validator import Validator, compile_validator, kind_of
from toolcrib.values.json import JsonObject, JsonValue, is_whole

# Choose the alternative of a union that a value was made for.
#
# What can be seen at once decides first: the type, `const` and `enum` tags, what is required, and that
# a view requires every property, however deep. Validators are asked only where several alternatives
# are left that would treat the value differently, and of what is left without its nulls, however deep
# they were: where that fits another alternative, the nulls become defaults; where that fits one, too,
# or the value can have been made for several, they stay, to be refused.


_ROOT = "#/$defs/whole"


def may_be(references: References, branch: Any, value: JsonValue) -> bool:
    """Return whether nothing that can be seen at once speaks against an alternative."""
    for _ in range(10):
        if not isinstance(branch, dict):
            return branch is not False
        if not _kind_fits(branch, value) or not _is_listed(branch, value):
            return False
        if isinstance(value, dict) and not _members_fit(references, branch, value):
            return False
        if not isinstance(branch.get("$ref"), str):
            return True
        branch = references.resolve(branch["$ref"])
    return True


def _kind_fits(branch: JsonObject, value: JsonValue) -> bool:
    wanted = names_in(branch.get("type"))
    kind = kind_of(value)
    if not wanted or kind in wanted:
        return True
    if kind == "integer":
        return "number" in wanted
    return isinstance(value, float) and is_whole(value) and "integer" in wanted


def _is_listed(branch: JsonObject, value: JsonValue) -> bool:
    if isinstance(value, dict | list):
        return True
    values: Any = [branch["const"]] if "const" in branch else branch.get("enum")
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
    """Return the part that lists the values of a property, one reference away at most."""
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        schema = references.resolve(schema["$ref"])
    return schema if isinstance(schema, dict) and ("const" in schema or "enum" in schema) else None


class BranchValidators:
    """Validators for parts of a schema, each compiled when it is first asked."""

    def __init__(self, schema: JsonObject, references: References) -> None:
        self._schema = schema
        self._references = references
        self._whole: Any = None
        self._pointers: dict[int, str] = {}
        self._validators: dict[int, Validator | None] = {}

    def accepts(
        self, branch: Any, value: JsonValue, count: Callable[[], None], *, unknown: bool = False
    ) -> bool:
        """Return whether a value is valid under an alternative; `unknown` where no validator can say.

        `count` is called for each pair of a subschema and a part of the value that is met.
        """
        if not isinstance(branch, dict):
            return branch is not False
        if id(branch) not in self._validators:
            self._validators[id(branch)] = self._compiled(branch)
        judge = self._validators[id(branch)]
        if judge is None:
            return unknown
        for _ in pairs(self._references, branch, value):
            count()
        return judge.is_valid(value)

    def _compiled(self, branch: JsonObject) -> Validator | None:
        if self._whole is None:
            self._pointers = pointers(self._schema)
            self._whole = _moved({k: v for k, v in self._schema.items() if k != "$id"})
        pointer = self._pointers.get(id(branch))
        if pointer is None:
            return None
        document: JsonObject = {"$defs": {"whole": self._whole}, "$ref": _ROOT + quote(pointer)}
        if "$schema" in self._schema:
            document["$schema"] = self._schema["$schema"]
        try:
            return compile_validator(document)
        except SchemaError:
            return None


def _moved(schema: JsonObject) -> JsonObject:
    """Return a copy in which references into the whole lead to where the whole is put."""
    copy: JsonObject = copied(schema)
    for _, node in list(subschemas(copy)):
        for keyword in REFS:
            ref = node.get(keyword)
            if isinstance(ref, str) and (ref == "#" or ref.startswith("#/")):
                node[keyword] = _ROOT + ref[1:]
    return copy


MAX_STEPS = 50_000  # pairs of a part of the schema and an object or array of the arguments
MAX_PAIRS = 40_000  # of a subschema and a part of the arguments that validators meet, in one go
_UNIONS = ("anyOf", "oneOf")


class ViewRestorer(msgspec.Struct, frozen=True, dict=True):
    """Between arguments for a view and for the author's schema, which `text` is as JSON.

    `wrapper` is the one property of a wrapped top; `filled`: in the view every property is
    required, what is optional being null. Two are equal, and can be pickled, by these three.
    """

    text: str
    wrapper: str | None = None
    filled: bool = True

    @cached_property
    def _author(self) -> _Author:
        return _Author(working_copy(json.loads(self.text)))

    def restore(self, arguments: JsonObject) -> JsonObject:
        """Return what a model sent for the view, in the author's terms, and leave the input alone."""
        inner = arguments
        if self.wrapper is not None and list(arguments) == [self.wrapper]:
            held = arguments[self.wrapper]
            if not isinstance(held, dict):
                return dict(arguments)
            inner = held
        return self._converted(inner, out=False)

    def to_view(self, arguments: JsonObject) -> JsonObject:
        """Return valid arguments, such as those of an example, in the terms of the view."""
        inner = self._converted(arguments, out=True)
        return inner if self.wrapper is None else {self.wrapper: inner}

    def _converted(self, arguments: JsonObject, *, out: bool) -> JsonObject:
        if self.filled:
            try:
                converted = _Conversion(self._author, out=out).value(
                    self._author.schema, arguments
                )[0]
            except (_TooMuchError, RecursionError):
                converted = arguments
            if isinstance(converted, dict) and converted is not arguments:
                return converted
        return dict(arguments)


class _TooMuchError(Exception):
    """The arguments and the schema together would take too long."""


class _Author:
    """The author's schema, and what is found out about its parts."""

    def __init__(self, schema: JsonObject) -> None:
        self.schema = schema
        self.references = References(schema)
        self.nulls = Nulls(self.references)
        self.branches = BranchValidators(schema, self.references)


_Nulls: TypeAlias = Literal["go", "become defaults", "stay"]
"""What is done with the nulls that stand for nothing."""
_NEXT: Mapping[_Nulls, _Nulls] = {"go": "become defaults", "become defaults": "stay"}


class _Converted(NamedTuple):
    """A value as it is on the other side; and how many of its properties nothing declares, how many
    are missing that a view has, and how many nulls in it stand for nothing."""

    value: Any
    undeclared: int = 0
    missing: int = 0
    nulls: int = 0


class _Parts(NamedTuple):
    """All that applies to a value, and what is done with its nulls."""

    of: list[JsonObject]
    nulls: _Nulls


class _Alternative(NamedTuple):
    """An alternative: the value as it would come out, and what applies in it."""

    converted: _Converted
    branch: Any
    parts: _Parts


class _Conversion:
    """One set of arguments on its way out or back; each pair of part and value is done once."""

    def __init__(self, author: _Author, *, out: bool) -> None:
        self._author = author
        self._out = out
        self._known: dict[tuple[int, int, _Nulls], _Converted] = {}
        self._containers: dict[int, int] = {}
        self._steps = 0
        self._pairs = 0

    def value(self, node: Any, value: JsonValue, nulls: _Nulls = "go") -> _Converted:
        if not isinstance(value, dict | list) or not isinstance(node, dict):
            return _Converted(value)
        key = id(node), id(value), nulls
        if key not in self._known:
            self._known[key] = self._shaped(self._parts(node, value, set(), nulls), value)
        return self._known[key]

    def _containers_in(self, value: Any) -> int:
        """Return how many objects and arrays a part is; shared ones count each time."""
        key = id(value)
        if key not in self._containers:
            inner = value.values() if isinstance(value, dict) else value
            inside = (self._containers_in(item) for item in inner if isinstance(item, dict | list))
            self._containers[key] = 1 + sum(inside)
        return self._containers[key]

    def _count(self, steps: int = 1) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise _TooMuchError

    def _count_pair(self) -> None:
        self._pairs += 1
        if self._pairs > MAX_PAIRS:
            raise _TooMuchError

    def _parts(self, node: Any, value: Any, seen: set[int], nulls: _Nulls) -> _Parts:
        """Return all that applies to the value at this place, with one alternative of each union.

        `seen` are the parts that are looked at already: one may lead back to itself.
        """
        parts: list[JsonObject] = []
        stack: list[Any] = [node]
        while stack:
            part = stack.pop()
            if not isinstance(part, dict) or id(part) in seen:
                continue
            self._count()
            seen = seen | {id(part)}
            parts.append(part)
            resolve = self._author.references.resolve
            stack += (resolve(part[key]) for key in REFS if isinstance(part.get(key), str))
            stack += part.get("allOf", ())
        found = _Parts(parts, nulls)
        for part in list(parts):
            for union in _UNIONS:
                if union in part:
                    found = self._chosen(found, part[union], value, seen)
        return found

    def _chosen(self, around: _Parts, branches: Any, value: Any, seen: set[int]) -> _Parts:
        """Return what applies around a union and in the alternative that the value was made for."""

        def alternative(branch: Any, nulls: _Nulls) -> _Alternative:
            inner = self._parts(branch, value, seen, nulls)
            parts = _Parts([*around.of, *inner.of], inner.nulls)
            return _Alternative(self._shaped(parts, value), branch, parts)

        found = [
            alternative(branch, around.nulls)
            for branch in branches
            if may_be(self._author.references, branch, value)
        ]
        if not found:
            return around
        best = self._best(found)
        first = best[0].converted.value
        self._count(self._containers_in(value) * (len(best) - 1))
        if any(one.converted.nulls or one.converted.value != first for one in best[1:]):
            chosen = self._judged(best, value)
        else:
            chosen = best[0]
        if self._out or not chosen.converted.nulls:
            return chosen.parts
        if any(self._fits(one.branch, one.converted.value, chosen) for one in best):
            return chosen.parts._replace(nulls="stay")
        while chosen.parts.nulls != "stay":
            left = chosen.converted.value
            if not any(self._fits(branch, left, chosen) for branch in branches):
                break
            chosen = alternative(chosen.branch, _NEXT[chosen.parts.nulls])
        return chosen.parts

    def _best(self, found: list[_Alternative]) -> list[_Alternative]:
        """Return the alternatives that declare most of the value; of those that came from a view, the
        ones all of whose properties are there, unless there are none."""
        fewest = min(one.converted.undeclared for one in found)
        best = [one for one in found if one.converted.undeclared == fewest]
        full = [one for one in best if not one.converted.missing]
        return best if self._out else full or best

    def _fits(self, branch: Any, value: Any, chosen: _Alternative) -> bool:
        """Return whether a value fits an alternative that is not the chosen one, or may."""
        if branch == chosen.branch or not may_be(self._author.references, branch, value):
            return False
        return self._accepts(branch, value, unknown=True)

    def _accepts(self, branch: Any, value: Any, *, unknown: bool = False) -> bool:
        return self._author.branches.accepts(branch, value, self._count_pair, unknown=unknown)

    def _judged(self, found: list[_Alternative], value: Any) -> _Alternative:
        """Return the alternative under which the value is valid as it is, else as it comes out."""
        self._count(self._containers_in(value) * len(found))
        for candidate in found:
            same = self._out or candidate.converted.value == value
            if same and self._accepts(candidate.branch, value):
                return candidate
        for candidate in found:
            if not self._out and self._accepts(candidate.branch, candidate.converted.value):
                return candidate
        return found[0]

    def _shaped(self, parts: _Parts, value: Any) -> _Converted:
        self._count(1 + len(value) // 4)
        return self._object(parts, value) if isinstance(value, dict) else self._array(parts, value)

    def _object(self, parts: _Parts, value: JsonObject) -> _Converted:
        declared: list[Any] = [part["properties"] for part in parts.of if "properties" in part]
        required = {name for part in parts.of for name in names_in(part.get("required"))}
        result: JsonObject = {}
        undeclared = nulls = 0
        missing = sum(
            name not in value and schema is not False
            for properties in declared
            for name, schema in properties.items()
        )
        for name, child in value.items():
            schemas = [properties[name] for properties in declared if name in properties]
            dropped = child is None and name not in required and not self._out
            if dropped and not all(map(self._author.nulls.accepted_by, schemas)):
                nulls += 1
                if parts.nulls != "go":
                    result[name] = None if parts.nulls == "stay" else self._default(schemas)
                continue
            converted = self._under(schemas, child, parts.nulls)
            result[name] = converted.value
            undeclared += converted.undeclared + (not schemas and bool(declared))
            missing += converted.missing
            nulls += converted.nulls
        if self._out:
            self._fill(declared, required, result)
        return _Converted(result, undeclared, missing, nulls)

    def _fill(self, declared: list[Any], required: set[str], result: JsonObject) -> None:
        """Fill in what is left out: null, or the default where null would mean null."""
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
        converted: JsonValue = copied(self._under(schemas, default, "go").value)
        return converted

    def _default(self, schemas: list[Any]) -> JsonValue:
        """Return the default of a property, null where it has none."""
        defaults = (default_of(self._author.references, schema) for schema in schemas)
        default: JsonValue = copied(next((found[0] for found in defaults if found), None))
        return default

    def _array(self, parts: _Parts, value: list[JsonValue]) -> _Converted:
        made: list[_Converted] = []
        first = max((len(_places(part)) for part in parts.of), default=0)
        rest = [s for part in parts.of for s in _items(part, first)]
        for index, child in enumerate(value):
            schemas = rest if index >= first else [s for p in parts.of for s in _items(p, index)]
            made.append(self._under(schemas, child, parts.nulls))
        return _Converted(
            [one.value for one in made],
            sum(one.undeclared for one in made),
            sum(one.missing for one in made),
            sum(one.nulls for one in made),
        )

    def _under(self, schemas: list[Any], value: JsonValue, nulls: _Nulls) -> _Converted:
        """Turn a value that several schemas may describe."""
        if not schemas or not isinstance(value, dict | list):
            return _Converted(value)
        if len(schemas) == 1:
            return self.value(schemas[0], value, nulls)
        parts: list[JsonObject] = []
        for schema in schemas:
            found = self._parts(schema, value, set(), nulls)
            parts, nulls = parts + found.of, found.nulls
        return self._shaped(_Parts(parts, nulls), value)


def _places(part: JsonObject) -> list[Any]:
    """Return what a part says of items by their position; a list under `items` is draft 7's."""
    items: Any = part.get("items")
    first: Any = items if isinstance(items, list) else part.get("prefixItems", [])
    return first if isinstance(first, list) else []


def _items(part: JsonObject, index: int) -> list[Any]:
    """Return what a part says of the item at an index."""
    first = _places(part)
    if index < len(first):
        return [first[index]]
    rest = part.get("additionalItems" if isinstance(part.get("items"), list) else "items")
    return [rest] if isinstance(rest, dict) else []
