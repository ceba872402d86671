"""Validators: whether a value matches a schema and, if not, where and why.

Any library can be used through the small protocol here. Whichever it is, a schema is checked before
a validator is made of it: it is JSON, not too large, and refers only to itself.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cache, cached_property, lru_cache
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote, unquote

import jsonschema_rs

from toolcrib.errors import SchemaError
from toolcrib.schema.effort import (
    LARGEST_PATTERN,
    Comparing,
    explainable,
    matchable,
    never_compares_much,
)
from toolcrib.schema.guard import METASCHEMAS, Inspected, check_shape, inspect_schema, schema_text
from toolcrib.schema.references import (
    Draft,
    References,
    nodes_of,
    pointer_of,
    subschemas,
)
from toolcrib.values.call import ValidatorInfo
from toolcrib.values.json import JsonObject, canonical_json, escape_pointer, json_copy

# Explain why a value is invalid, using only the schema and the kind of the failure.
#
# Even masked messages of a validator repeat the key names that a model made up. So messages say
# nothing about a value except its JSON type.

_MAX_LENGTH = 400  # characters of a message
_ALTERNATIVES = ("anyOf", "oneOf")
_TAGS = ("const", "enum")
_CLOSED_PATHS = (["additionalProperties"], ["propertyNames"])
_Error: TypeAlias = jsonschema_rs.ValidationError
_Branches: TypeAlias = list[list[_Error]]


def reasons(error: _Error) -> Iterator[_Error]:
    """Yield what is wrong in the one alternative that the value is meant for, by its type or its tag.

    If there is no single one, yield what all alternatives of its type lack, or else the error
    itself.
    """
    candidates = _branches_of_type(error)
    same_tag = [branch for branch in candidates if not any(_is_tag(e, error) for e in branch)]
    if len(same_tag) == 1:
        candidates = same_tag
    if len(candidates) == 1:
        for branch_error in candidates[0]:
            yield from reasons(branch_error)
        return
    yield from _missing_in_each(error, candidates) or (error,)


def _branches_of_type(error: _Error) -> _Branches:
    """Return the alternatives of an anyOf that fail for more than the type of the value."""
    if error.kind.name not in _ALTERNATIVES:
        return []
    branches = error.kind.as_dict().get("context", [])
    return [
        branch
        for branch in branches
        if not any(_is_type(branch_error, error) for branch_error in branch)
    ]


def _missing_in_each(union_error: _Error, branches: _Branches) -> list[_Error]:
    """Return the required properties that the value lacks in every one of several alternatives."""
    missing_by_branch = [
        {
            str(reason.kind.as_dict()["property"]): reason
            for reason in branch
            if reason.kind.name == "required" and reason.instance_path == union_error.instance_path
        }
        for branch in branches
    ] or [{}]
    return [
        missing_error
        for name, missing_error in missing_by_branch[0].items()
        if all(name in missing for missing in missing_by_branch)
    ]


def _is_tag(error: _Error, union_error: _Error) -> bool:
    """Return whether a direct property of the value differs from the required constant."""
    return error.kind.name in _TAGS and error.instance_path[:-1] == union_error.instance_path


def _tags(union_error: _Error, branches: _Branches) -> str:
    """List the allowed values of a property that is wrong in every one of several alternatives."""
    tags_by_branch = [
        {
            str(reason.instance_path[-1]): reason.kind.as_dict()
            for reason in branch
            if _is_tag(reason, union_error)
        }
        for branch in branches
    ]
    for name in tags_by_branch[0]:
        if all(name in tags for tags in tags_by_branch):
            details = [tags[name] for tags in tags_by_branch]
            values = [
                v
                for detail in details
                for v in detail.get("options", [detail.get("expected_value")])
            ]
            return f"'{name}': {_options({'options': values}, None)}"
    return ""


def _is_type(error: _Error, union_error: _Error) -> bool:
    return error.kind.name == "type" and error.instance_path == union_error.instance_path


def describe(error: _Error) -> str:
    """Return one sentence, cut if the schema's own words are very long."""
    details = error.kind.as_dict()
    keyword = error.kind.name
    if keyword == "falseSchema" and error.schema_path[-1:] in _CLOSED_PATHS:
        keyword = str(error.schema_path[-1])
    if keyword in _ALTERNATIVES and details.get("context"):
        message = _alternatives(error, details["context"])
    elif keyword in _MESSAGES:
        message = _MESSAGES[keyword](details, error.instance)
    else:
        message = f"does not satisfy '{keyword}'"
    return message if len(message) <= _MAX_LENGTH else f"{message[: _MAX_LENGTH - 1]}…"


def _types(details: dict[str, Any], value: object) -> str:
    return f"expected {' or '.join(details['types'])}, got {kind_of(value)}"


def _alternatives(error: _Error, branches: _Branches) -> str:
    """Name the types that the alternatives require, if the value has none of them."""
    kind = kind_of(error.instance)
    if not all(branches):
        return f"matches more than one of the alternatives, got {kind}"
    candidates = _branches_of_type(error)
    if candidates:
        tags_text = _tags(error, candidates)
        return f"matches none of the alternatives, got {kind}{tags_text and f' ({tags_text})'}"
    expected_types = dict.fromkeys(
        name
        for branch in branches
        for reason in branch
        if _is_type(reason, error)
        for name in reason.kind.as_dict()["types"]
    )
    return f"expected {' or '.join(expected_types)}, got {kind}"


def _options(details: dict[str, Any], _value: object) -> str:
    options = details["options"]
    write = _show if len(set(map(_show, options))) == len(options) else canonical_json
    options_text = ", ".join(map(write, options[:12]))
    return f"expected one of: {options_text}{', …' if len(options) > 12 else ''}"


def _show(value: Any) -> str:
    """Show a value as the model has to write it, without quotes around strings."""
    return value if isinstance(value, str) else canonical_json(value)


_EXAMPLES = {
    "date-time": "2026-01-31T09:30:00Z",
    "date": "2026-01-31",
    "duration": "P1DT2H30M",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "ipv4": "192.0.2.1",
    "email": "name@example.org",
    "uri": "https://example.org/",
}
_LOCAL_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?", re.IGNORECASE)


def _format(name: str, value: object) -> str:
    """Name the required format with an example. A missing offset is common, so it is named."""
    example = _EXAMPLES.get(name)
    message = f"expected a string in the format '{name}'"
    if example is not None:
        message += f" (such as {example})"
    if name == "date-time" and isinstance(value, str) and _LOCAL_TIME.fullmatch(value):
        message += ": add an offset such as +00:00 or Z"
    return message


_MESSAGES: dict[str, Callable[[dict[str, Any], object], str]] = {
    "type": _types,
    "enum": _options,
    "const": lambda f, _: f"expected exactly {_show(f['expected_value'])}",
    "falseSchema": lambda _f, _: "no value is allowed here",
    "propertyNames": lambda _f, _: "has a property whose name is not allowed",
    "required": lambda f, _: f"the required property '{f['property']}' is missing",
    "additionalProperties": lambda _f, _: "there is a property that is not declared",
    "unevaluatedProperties": lambda _f, _: "there is a property that is not declared",
    "minimum": lambda f, _: f"expected at least {f['limit']}",
    "maximum": lambda f, _: f"expected at most {f['limit']}",
    "exclusiveMinimum": lambda f, _: f"expected more than {f['limit']}",
    "exclusiveMaximum": lambda f, _: f"expected less than {f['limit']}",
    "minLength": lambda f, _: f"expected at least {f['limit']} characters",
    "maxLength": lambda f, _: f"expected at most {f['limit']} characters",
    "minItems": lambda f, _: f"expected at least {f['limit']} items",
    "maxItems": lambda f, _: f"expected at most {f['limit']} items",
    "additionalItems": lambda _f, _: "there are more items than are declared",
    "unevaluatedItems": lambda _f, _: "there are more items than are declared",
    "minProperties": lambda f, _: f"expected at least {f['limit']} properties",
    "maxProperties": lambda f, _: f"expected at most {f['limit']} properties",
    "uniqueItems": lambda _f, _: "expected items that differ from each other",
    "pattern": lambda f, _: f"expected a string that matches the pattern {f['pattern']}",
    "format": lambda f, value: _format(f["format"], value),
    "multipleOf": lambda f, _: f"expected a multiple of {f['multiple_of']}",
}


def kind_of(value: object) -> str:
    """Return the JSON type of a value, which is all that a message may say about it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


MAX_VIOLATIONS = 20
_PATTERNS_BYTES = 1 << 24  # of all compiled patterns together
_UNDECLARED_PATHS = (["additionalProperties"], ["unevaluatedProperties"])
_COMPILERS = {
    Draft.D2020: jsonschema_rs.Draft202012Validator,
    Draft.D7: jsonschema_rs.Draft7Validator,
}


class Violation(NamedTuple):
    """`path` is a JSON Pointer into the value, with `*` for undeclared keys."""

    path: str
    keyword: str
    message: str


_TOO_MANY = Violation(
    "", "enum", "there are too many values to compare with those that the schema lists"
)
_TOO_LONG = Violation(
    "", "pattern", "the strings are too long to match against the patterns of the schema"
)
_MISFIT = "does not fit the schema, in more ways than can be listed"
_WHOLE = "urn:toolcrib:whole"  # identifies the whole schema in references from a schema around it


class Validator(Protocol):
    """The interface of a pluggable validator; `info` goes into the provenance of each call.

    It must not change the value. If it raises, or returns anything but True and False, nothing
    runs, its author is told, and the call ends as `unusable_tool`.
    """

    @property
    def info(self) -> ValidatorInfo:
        """The validator's name, its version, and when it was compiled (seconds since the epoch)."""
        ...

    def is_valid(self, value: object, /) -> bool: ...

    def violations(self, value: object, /) -> tuple[Violation, ...]:
        """Return why a value is invalid; empty if the reasons would take too long to list.

        A message reaches the model and the records, so it must not repeat the value.
        """
        ...


# Makes a validator of a schema that `check_schema` accepted. Raises SchemaError if it cannot. How
# another library handles patterns is its own affair; most of them backtrack.
ValidatorFactory: TypeAlias = Callable[[JsonObject], Validator]


class JsonSchemaValidator:
    """`jsonschema-rs`, offline, with formats checked and patterns in linear time.

    A value is refused if matching its strings with patterns, or comparing it with constants, would
    take too long. `inspected` is given if `check_schema` has already accepted the schema. If `text`
    is given and the schema needs no such work, only the text is kept, and parsed when the first
    value has to be explained. Raises SchemaError if the schema cannot be used or compiled.
    """

    def __init__(
        self, schema: dict[str, Any], inspected: Inspected | None = None, text: str | None = None
    ) -> None:
        if inspected is None:
            check_shape(schema)
            inspected = inspect_schema(schema)
        compiled = _compiled(schema, inspected)
        self._bounded = bool(inspected.patterns) or not never_compares_much(inspected)
        self._text = None if self._bounded else text
        self._schema: Any = schema if self._text is None else None
        self._inspected = inspected
        self._references: References | None = None
        self._declared: frozenset[str] = frozenset()
        self._iter_errors = compiled.iter_errors
        self._accepts: Callable[[object], bool] = compiled.is_valid
        self.is_valid = self._accepts_bounded if self._bounded else self._accepts
        self._compiled_at = time.time()

    @cached_property
    def info(self) -> ValidatorInfo:
        """The version is looked up on first access, because that takes as long as some imports."""
        return ValidatorInfo("jsonschema-rs", _installed_version(), self._compiled_at)

    @cached_property
    def _comparing(self) -> Comparing:
        return Comparing(self._inspected, self._schema)

    def violations(self, value: object, /) -> tuple[Violation, ...]:
        if self._references is None:  # most schemas never need to explain anything
            if self._text is not None:
                self._schema = json_copy(self._text)
            self._declared = frozenset(_declared_names(self._schema))
            self._references = References(self._schema)
        violations: list[Violation] = []
        if self._bounded:
            if not matchable(self._inspected, self._schema, value):
                return (_TOO_LONG,)
            if not self._comparing.is_bearable(value):
                return (_TOO_MANY,)
        if not explainable(self._references, self._schema, value):
            return tuple(self._misfits(value))[:MAX_VIOLATIONS]
        for error in self._iter_errors(value):
            for reason in reasons(error):
                if len(violations) == MAX_VIOLATIONS:
                    return tuple(violations)
                violations.append(Violation(self._path(reason), reason.kind.name, describe(reason)))
        return tuple(violations)

    def _misfits(self, value: object) -> Iterator[Violation]:
        """Yield the properties that are invalid on their own, if all reasons would be too many."""
        declared = self._schema.get("properties")
        if not (isinstance(value, dict) and isinstance(declared, dict)):
            return
        schema_id = self._schema.get("$id")
        whole = {**self._schema, "$id": schema_id if isinstance(schema_id, str) else _WHOLE}
        base = f"{whole['$id'].partition('#')[0]}#/properties/"
        properties = {name: {"$ref": base + quote(escape_pointer(name))} for name in declared}
        definitions_keyword = "definitions" if self._inspected.draft is Draft.D7 else "$defs"
        try:
            validator = _compiled(
                {definitions_keyword: {"whole": whole}, "properties": properties}, self._inspected
            )
        except SchemaError:  # it is not found because of its own $id
            return
        for name in declared:
            if name in value and not validator.is_valid({name: value[name]}):
                yield Violation(f"/{escape_pointer(name)}", "properties", _MISFIT)

    def _accepts_bounded(self, value: object, /) -> bool:
        return (
            (not self._inspected.patterns or matchable(self._inspected, self._schema, value))
            and self._comparing.is_bearable(value)
            and self._accepts(value)
        )

    def _path(self, error: _Error) -> str:
        path = "".join(
            f"/{escape_pointer(token) if isinstance(token, int) or token in self._declared else '*'}"
            for token in error.instance_path
        )
        return f"{path}/*" if error.schema_path[-1:] in _UNDECLARED_PATHS else path


def compile_validator(schema: dict[str, Any]) -> Validator:
    """Return the default validator for a schema. Raises SchemaError."""
    return JsonSchemaValidator(schema)


# A plain schema is compiled at its first use, because of many tools only few are called.
#
# It is plain if the drafts' own schema accepts it and nothing in it could fail later: no pattern,
# which the engine may refuse, and no reference.


def is_plain(text: str, schema: dict[str, Any], inspected: Inspected) -> bool:
    """Return whether a checked schema is certain to compile."""
    dialects = text.count('"$schema":"http')  # a dialect that was checked
    if inspected.patterns or text.count('"$') != dialects:
        return False
    is_valid: bool = _metaschema_validator(inspected.draft).is_valid(schema)
    return is_valid


_UNUSABLE = ValidatorInfo("unusable", "", 0.0)  # for a schema that cannot be compiled


class _CompiledLater(ABC):
    """A validator that is compiled at its first use. If it cannot be, `info` says `unusable`."""

    __slots__ = ("_made", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._made: Validator | None = None

    @abstractmethod
    def _compiled(self) -> Validator: ...

    @property
    def info(self) -> ValidatorInfo:
        """The info of the compiled validator; `unusable` if it cannot be compiled."""
        try:
            validator = self._made or self._compiled()
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001  also a panic in Rust
            return _UNUSABLE
        return validator.info

    def is_valid(self, value: object, /) -> bool:
        validator = self._made or self._compiled()
        return validator.is_valid(value)

    def violations(self, value: object, /) -> tuple[Violation, ...]:
        validator = self._made or self._compiled()
        return validator.violations(value)


class DeferredValidator(_CompiledLater):
    """A `JsonSchemaValidator` for a schema that `is_plain`, compiled at its first use."""

    __slots__ = ()

    def _compiled(self) -> JsonSchemaValidator:
        """Compile the schema. Several threads may do so at once; one of the equal results is
        kept."""
        schema = json_copy(self._text)
        self._made = validator = JsonSchemaValidator(schema, inspect_schema(schema), self._text)
        return validator


def check_keywords(schema: dict[str, Any], inspected: Inspected) -> None:
    """Check that each keyword's value has the right form, for schemas that are not compiled yet.

    Raises SchemaError, with a pointer.
    """
    meta = _metaschema_validator(inspected.draft)
    for pointer, part in _schemas_to_check(schema):
        try:
            meta.validate(part)
        except jsonschema_rs.ValidationError as error:
            raise _unusable_error(error, pointer) from None


def _schemas_to_check(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the schema, and the targets of its `$ref`s that are not at the places of subschemas."""
    references = References(schema)
    seen: set[int] = set()
    stack: list[tuple[str, Any]] = [("", schema)]
    while stack:
        pointer, part = stack.pop()
        if id(part) in seen:
            continue
        yield pointer, part
        for _, node in subschemas(part):
            seen.add(id(node))
            ref = node.get("$ref")
            if isinstance(ref, str) and ref.startswith("#/"):
                stack.append((unquote(ref[1:]), references.resolve(ref)))


def _unusable_error(error: _Error, base_pointer: str = "") -> SchemaError:
    pointer = base_pointer + pointer_of(error.instance_path)
    return SchemaError(f"not a usable schema: {_unusable_reason(error)}", pointer)


def _compiled(schema: dict[str, Any], inspected: Inspected) -> Any:
    try:
        return _COMPILERS[inspected.draft](
            schema,
            validate_formats=True,
            offline=True,
            pattern_options=_pattern_options(len(inspected.patterns)),
        )
    except jsonschema_rs.ValidationError as error:
        raise _unusable_error(error) from None
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise SchemaError(f"not a usable schema: {_first_line(error)}") from None


@lru_cache(maxsize=64)
def _pattern_options(pattern_count: int) -> jsonschema_rs.RegexOptions:
    """Limit patterns by a shared budget: compiling one takes time proportional to its limit."""
    share = _PATTERNS_BYTES // max(pattern_count, 1)
    return jsonschema_rs.RegexOptions(size_limit=min(LARGEST_PATTERN, share))


def _unusable_reason(error: _Error) -> str:
    """Say why a schema is unusable. The library reports every invalid pattern as a `format`."""
    path = error.instance_path
    if path[-1:] == ["pattern"] or path[-2:-1] == ["patternProperties"]:
        pattern = str(error.instance if path[-1:] == ["pattern"] else path[-1])
        return (
            f"the pattern {pattern[:80]!r} is not a regular expression, or cannot be matched in "
            "linear time (it may have no lookaround, backreferences or large repetitions; to "
            "limit a length, use maxLength)"
        )
    return _first_line(error)


@cache
def _metaschema_validator(draft: Draft) -> Any:
    return _COMPILERS[draft]({"$ref": METASCHEMAS[draft]}, offline=True)


@cache
def _installed_version() -> str:
    from importlib.metadata import version  # 10 ms that `import toolcrib` need not spend

    return version("jsonschema-rs")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300]


def _declared_names(schema: Any) -> Iterator[str]:
    """Yield the names of properties, also in data, because a `$ref` may make a schema of it."""
    for node in nodes_of(schema):
        if isinstance(node, dict) and isinstance(properties := node.get("properties"), dict):
            yield from properties


# Other validators, held to what the protocol promises.
#
# They fail closed and never as a fault of the value: exceptions are passed on.


class ForeignValidator:
    """Another library's validator. Its `info` is read once, now. Raises TypeError for an invalid
    answer."""

    __slots__ = ("_made", "info")

    def __init__(self, validator: Validator) -> None:
        self._made = validator
        self.info: ValidatorInfo = validator.info

    def is_valid(self, value: object, /) -> bool:
        answer: object = self._made.is_valid(value)
        if isinstance(answer, bool):
            return answer
        raise TypeError(f"is_valid must return True or False, not a {type(answer).__name__}")

    def violations(self, value: object, /) -> tuple[Violation, ...]:
        violations = tuple(self._made.violations(value))[:MAX_VIOLATIONS]
        return tuple(
            Violation(str(path), str(keyword), str(message))
            for path, keyword, message in violations
        )


def validator_from(factory: ValidatorFactory, schema: JsonObject) -> Validator:
    """Return what a factory makes of a schema. Raises whatever the factory raises."""
    validator = factory(schema)
    return validator if isinstance(validator, JsonSchemaValidator) else ForeignValidator(validator)


# A validator that is compiled at its first use, while its schema is checked now.
#
# It fails closed: if the schema turns out not to compile, each use raises.


class LazyValidator(_CompiledLater):
    """Compiles `schema` with `factory` once, whichever thread comes first.

    Raises SchemaError at once for a schema that `check_schema` refuses, or that has a keyword of
    the wrong form. If it cannot be compiled, each later use raises `error`.
    """

    __slots__ = ("_factory", "_lock", "error")

    def __init__(self, schema: JsonObject, factory: ValidatorFactory = compile_validator) -> None:
        super().__init__(schema_text(schema))
        copy = json_copy(self._text)
        check_keywords(copy, inspect_schema(copy))
        self._factory = factory
        self._lock = Lock()
        self.error: SchemaError | None = None

    def _compiled(self) -> Validator:
        with self._lock:
            if self._made is not None:
                return self._made
            if self.error is None:
                try:
                    validator = validator_from(self._factory, json_copy(self._text))
                except SchemaError as error:
                    self.error = error
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # noqa: BLE001  another factory, or a panic in Rust
                    self.error = SchemaError(f"no validator can be made ({type(error).__name__})")
                    self.error.__cause__ = error
                else:
                    self._made = validator
                    return validator
            raise SchemaError(self.error.message, self.error.pointer) from self.error
