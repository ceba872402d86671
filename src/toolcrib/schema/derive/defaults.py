"""Which defaults a schema shows: those that are JSON, that it accepts itself, and that hide nothing.

A model copies what it is shown, and providers check it. Any other default takes effect in Python all
the same: `x: int = None` is an integer that may be left out, and is None then.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from types import NoneType
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from toolcrib.errors import SchemaError
from toolcrib.schema.shape import schema_text
from toolcrib.schema.validator import compile_validator
from toolcrib.values.json import canonical_json

_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", NoneType: "null"}
_SIMPLE = frozenset(_KINDS.values())
STEADY = frozenset((str, bool, int, NoneType))  # what JSON has as it is
_BOUNDS = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}
_JUDGED = frozenset(("type", "title", "description", "examples")) | _BOUNDS.keys()
_UNION = frozenset(("anyOf", "title", "description"))
_LARGE = 2**63


def steady_json(value: Any) -> Any:
    """A value as JSON, the same in each process: sets have no order of their own.

    Raises PydanticSerializationError for what is not JSON.
    """
    if value.__class__ in STEADY:
        return value
    if isinstance(value, set | frozenset):
        try:
            return sorted(map(steady_json, value), key=canonical_json)
        except (ValueError, TypeError):
            raise PydanticSerializationError("a set of what is no JSON") from None
    if isinstance(value, list | tuple):
        return [steady_json(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: steady_json(item) for key, item in value.items()}
    return to_jsonable_python(value)


def can_be_shown(value: Any, schema: Mapping[str, Any], definitions: Mapping[Any, Any]) -> bool:
    """Whether `schema`, with the definitions that it refers to, may show `value` as its default."""
    judged = _judge(value, schema)
    if judged is not None:
        return judged
    if _has_secret(schema, definitions):
        return False
    try:
        schema_text([value])
        return compile_validator({**schema, "$defs": dict(definitions)}).is_valid(value)
    except SchemaError:  # the value is no JSON; or what it refers to is not known yet
        return False


def _judge(value: Any, schema: Mapping[str, Any]) -> bool | None:
    """For what can be told at a glance, which is nearly all that is written; None for the rest."""
    if "anyOf" in schema and schema.keys() <= _UNION:
        judged = [_judge(value, part) for part in schema["anyOf"]]
        return True if True in judged else None if None in judged else False
    kind = schema.get("type")
    if value == [] and kind == "array" and "minItems" not in schema:
        return True
    given = _KINDS.get(type(value))
    if given is None or kind not in _SIMPLE or not schema.keys() <= _JUDGED:
        return None
    if given == "number" or (given == "string" and not value.isascii()):
        return None
    if given == "integer":
        return (
            kind in ("integer", "number")
            and -_LARGE <= value < _LARGE
            and all(holds(value, schema[k]) for k, holds in _BOUNDS.items() if k in schema)
        )
    return bool(given == kind)


def _has_secret(schema: Mapping[str, Any], definitions: Mapping[Any, Any]) -> bool:
    """Whether a value of the schema may hold a secret: masked, it is no value to copy."""
    pending: list[Any] = [schema]
    seen = set[str]()
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict):
            if node.get("writeOnly") is True:
                return True
            pending += node.values()
            name = str(node.get("$ref")).rpartition("/")[2]
            if name in definitions and name not in seen:
                seen.add(name)
                pending.append(definitions[name])
    return False
