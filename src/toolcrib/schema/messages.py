"""Why a value is not valid, in words made from the schema and the kind of the failure alone.

Even a masked validator text repeats the key names that a model made up: nothing of a value is said
but its JSON type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs

from toolcrib.values.json import canonical_json

_LONGEST = 400  # characters of a message
_ALTERNATIVES = ("anyOf", "oneOf")
_CLOSED = (["additionalProperties"], ["propertyNames"])


def reasons(error: jsonschema_rs.ValidationError) -> Iterator[jsonschema_rs.ValidationError]:
    """What is wrong in the one alternative of the value's own type, else the error itself."""
    close = _close_branches(error)
    if len(close) != 1:
        yield error
        return
    for inner in close[0]:
        yield from reasons(inner)


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


def describe(error: jsonschema_rs.ValidationError) -> str:
    """One sentence, cut where the schema's own words are very long."""
    said = _said(error)
    return said if len(said) <= _LONGEST else f"{said[: _LONGEST - 1]}…"


def _said(error: jsonschema_rs.ValidationError) -> str:
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
    """What is wanted, with an example of our own making; a time without an offset is common."""
    example = _EXAMPLES.get(name)
    said = f"expected text in the format '{name}'"
    if example is not None:
        said += f" (such as {example})"
    if name == "date-time" and isinstance(value, str) and _LOCAL_TIME.fullmatch(value):
        said += ": add an offset such as +00:00 or Z"
    return said


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
    "format": lambda f, value: _format(f["format"], value),
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
