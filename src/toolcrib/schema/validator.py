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
from toolcrib.schema.effort import explainable
from toolcrib.schema.guard import References, check_schema, escape_pointer
from toolcrib.values.call import ValidatorInfo
from toolcrib.values.json import canonical_json

MAX_VIOLATIONS = 20
_PATTERN_BYTES = 1 << 20
_ALTERNATIVES = ("anyOf", "oneOf")
_UNDECLARED = (["additionalProperties"], ["unevaluatedProperties"])
_CLOSED = (["additionalProperties"], ["propertyNames"])


class Violation(NamedTuple):
    """`path` is a JSON Pointer into the value, with `*` for keys that the schema does not declare."""

    path: str
    keyword: str
    message: str


class Validator(Protocol):
    """What a pluggable validator has to do; `info` goes into the provenance of each call."""

    info: ValidatorInfo

    def is_valid(self, value: object) -> bool: ...

    def violations(self, value: object) -> tuple[Violation, ...]:
        """Why a value is not valid; nothing where the reasons would take too long to list."""
        ...


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
        self._schema = schema
        self._references = References(schema)
        self._declared = frozenset(_declared_names(schema))
        self._iter_errors = compiled.iter_errors
        self.is_valid: Callable[[object], bool] = compiled.is_valid
        self.info = ValidatorInfo("jsonschema-rs", _installed_version(), time.time())

    def violations(self, value: object) -> tuple[Violation, ...]:
        found: list[Violation] = []
        if not explainable(self._references, self._schema, value):
            return ()
        for error in self._iter_errors(value):
            for reason in _reasons(error):
                if len(found) == MAX_VIOLATIONS:
                    return tuple(found)
                found.append(Violation(self._path(reason), reason.kind.name, _describe(reason)))
        return tuple(found)

    def _path(self, error: jsonschema_rs.ValidationError) -> str:
        path = "".join(
            f"/{escape_pointer(token) if isinstance(token, int) or token in self._declared else '*'}"
            for token in error.instance_path
        )
        return f"{path}/*" if error.schema_path[-1:] in _UNDECLARED else path


def compile_validator(schema: dict[str, Any]) -> Validator:
    """The default validator for a schema. Raises SchemaError."""
    return JsonSchemaValidator(schema)


@cache
def _installed_version() -> str:
    return version("jsonschema-rs")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300]


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


def _reasons(error: jsonschema_rs.ValidationError) -> Iterator[jsonschema_rs.ValidationError]:
    """What is wrong in the one alternative of the value's own type, else the error itself."""
    close = _close_branches(error)
    if len(close) != 1:
        yield error
        return
    for inner in close[0]:
        yield from _reasons(inner)


def _close_branches(
    error: jsonschema_rs.ValidationError,
) -> list[list[jsonschema_rs.ValidationError]]:
    """The alternatives of an anyOf that fail for more than the type of the value."""
    if error.kind.name not in _ALTERNATIVES:
        return []
    branches = error.kind.as_dict().get("context", [])
    return [branch for branch in branches if not any(_is_type(e, error) for e in branch)]


def _is_type(error: jsonschema_rs.ValidationError, of: jsonschema_rs.ValidationError) -> bool:
    return error.kind.name == "type" and error.instance_path == of.instance_path


def _describe(error: jsonschema_rs.ValidationError) -> str:
    facts = error.kind.as_dict()
    keyword = error.kind.name
    if keyword == "falseSchema" and error.schema_path[-1:] in _CLOSED:
        keyword = str(error.schema_path[-1])
    if keyword in _ALTERNATIVES and facts.get("context"):
        return _alternatives(error, facts["context"])
    if keyword in _MESSAGES:
        return _MESSAGES[keyword](facts, error.instance)
    return f"does not satisfy '{keyword}'"


def _types(facts: dict[str, Any], value: object) -> str:
    return f"expected {' or '.join(facts['types'])}, got {kind_of(value)}"


def _alternatives(
    error: jsonschema_rs.ValidationError, branches: list[list[jsonschema_rs.ValidationError]]
) -> str:
    """The types that the alternatives want, where the value is of none of them."""
    kind = kind_of(error.instance)
    if not all(branches):
        return f"matches more than one of the alternatives, got {kind}"
    if _close_branches(error):
        return f"matches none of the alternatives, got {kind}"
    wanted = dict.fromkeys(
        name
        for branch in branches
        for reason in branch
        if _is_type(reason, error)
        for name in reason.kind.as_dict()["types"]
    )
    return f"expected {' or '.join(wanted)}, got {kind}"


def _options(facts: dict[str, Any], _value: object) -> str:
    options = facts["options"]
    shown = ", ".join(_show(option) for option in options[:12])
    return f"expected one of: {shown}{', …' if len(options) > 12 else ''}"


def _show(value: Any) -> str:
    """As the model has to write it, but for the quotes around text."""
    return value if isinstance(value, str) else canonical_json(value)


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
