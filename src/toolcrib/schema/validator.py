"""Validators: does a value match a schema, and if not, where and why.

A message is built from the kind of the failure and from the schema, never from the value: even a
masked validator text repeats the key names that a model made up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple, Protocol

import jsonschema_rs

from toolcrib.errors import SchemaError
from toolcrib.schema.guard import check_schema, escape_pointer
from toolcrib.values.call import ValidatorInfo

MAX_VIOLATIONS = 20
_PATTERN_BYTES = 1 << 20


class Violation(NamedTuple):
    """`path` is a JSON Pointer into the value, with `*` for keys that the schema does not declare."""

    path: str
    keyword: str
    message: str


class Validator(Protocol):
    """What a pluggable validator has to do; `info` goes into the provenance of each call."""

    info: ValidatorInfo

    def is_valid(self, value: object) -> bool: ...

    def violations(self, value: object) -> tuple[Violation, ...]: ...


class JsonSchemaValidator:
    """`jsonschema-rs`, offline, with formats checked and patterns in linear time.

    Raises SchemaError if the schema cannot be compiled.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        check_schema(schema)
        draft7 = "draft-07" in str(schema.get("$schema", ""))
        compiler = jsonschema_rs.Draft7Validator if draft7 else jsonschema_rs.Draft202012Validator
        try:
            compiled = compiler(
                schema,
                validate_formats=True,
                offline=True,
                pattern_options=jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES),
            )
        except jsonschema_rs.ValidationError as error:
            pointer = "".join(f"/{escape_pointer(p)}" for p in error.instance_path)
            raise SchemaError(f"not a usable schema: {_first_line(error)}", pointer) from None
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            raise SchemaError(f"not a usable schema: {_first_line(error)}") from None
        self._declared = frozenset(_declared_names(schema))
        self._iter_errors = compiled.iter_errors
        self.is_valid: Callable[[object], bool] = compiled.is_valid
        self.info = ValidatorInfo("jsonschema-rs", _installed_version(), time.time())

    def violations(self, value: object) -> tuple[Violation, ...]:
        found: list[Violation] = []
        for error in self._iter_errors(value):
            if len(found) == MAX_VIOLATIONS:
                break
            found.append(Violation(self._path(error), error.kind.name, _describe(error)))
        return tuple(found)

    def _path(self, error: jsonschema_rs.ValidationError) -> str:
        return "".join(
            f"/{escape_pointer(token) if isinstance(token, int) or token in self._declared else '*'}"
            for token in error.instance_path
        )


def compile_validator(schema: dict[str, Any]) -> Validator:
    """The default validator for a schema. Raises SchemaError."""
    return JsonSchemaValidator(schema)


@cache
def _installed_version() -> str:
    return version("jsonschema-rs")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _declared_names(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        properties = node.get("properties")
        if isinstance(properties, dict):
            yield from properties
        for child in node.values():
            yield from _declared_names(child)
    elif isinstance(node, list):
        for child in node:
            yield from _declared_names(child)


def _describe(error: jsonschema_rs.ValidationError) -> str:
    facts = error.kind.as_dict()
    keyword = error.kind.name
    if keyword in _MESSAGES:
        return _MESSAGES[keyword](facts, error.instance)
    return f"does not satisfy '{keyword}'"


def _types(facts: dict[str, Any], value: object) -> str:
    return f"expected {' or '.join(facts['types'])}, got {kind_of(value)}"


def _alternatives(facts: dict[str, Any], value: object) -> str:
    """The types that the branches of an anyOf want, where that is all that they ask."""
    types: list[str] = []
    for branch in facts.get("context", ()):
        for error in branch:
            if error.kind.name != "type" or error.instance_path:
                return f"matches none of the alternatives, got {kind_of(value)}"
            types += error.kind.as_dict()["types"]
    return f"expected {' or '.join(dict.fromkeys(types))}, got {kind_of(value)}"


def _options(facts: dict[str, Any], _value: object) -> str:
    options = facts["options"]
    shown = ", ".join(str(option) for option in options[:12])
    return f"expected one of: {shown}{', …' if len(options) > 12 else ''}"


_MESSAGES: dict[str, Callable[[dict[str, Any], object], str]] = {
    "type": _types,
    "anyOf": _alternatives,
    "enum": _options,
    "const": lambda f, _: f"expected exactly {f['expected_value']}",
    "required": lambda f, _: f"the required property '{f['property']}' is missing",
    "additionalProperties": lambda _f, _: "has a property that is not declared",
    "unevaluatedProperties": lambda _f, _: "has a property that is not declared",
    "minimum": lambda f, _: f"expected at least {f['limit']}",
    "maximum": lambda f, _: f"expected at most {f['limit']}",
    "exclusiveMinimum": lambda f, _: f"expected more than {f['limit']}",
    "exclusiveMaximum": lambda f, _: f"expected less than {f['limit']}",
    "minLength": lambda f, _: f"expected at least {f['limit']} characters",
    "maxLength": lambda f, _: f"expected at most {f['limit']} characters",
    "minItems": lambda f, _: f"expected at least {f['limit']} items",
    "maxItems": lambda f, _: f"expected at most {f['limit']} items",
    "uniqueItems": lambda _f, _: "expected items that differ from each other",
    "pattern": lambda f, _: f"expected text that matches the pattern {f['pattern']}",
    "format": lambda f, _: f"expected text in the format '{f['format']}'",
    "multipleOf": lambda f, _: f"expected a multiple of {f['multiple_of']}",
}


def kind_of(value: object) -> str:
    """The JSON type of a value, which is all that a message may say of it."""
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
