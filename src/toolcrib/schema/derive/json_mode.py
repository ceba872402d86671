"""Read what an author's validator passes on as JSON, as what was sent is read.

pydantic reads JSON more freely than Python objects: in its strict mode, a text is a date only in
JSON. What a validator that runs before a hint (`mode="before"`, `mode="wrap"`) returns or passes to
its handler is a Python object, although it mostly is what was sent. So a date behind such a
validator refused every text, and a tuple every array.

Rule: behind such a validator, a value made of JSON's types is written as JSON and read again. Any
other value (a date that the validator made) is read as a Python object.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import isfinite
from typing import Any

from pydantic_core import core_schema

from toolcrib.schema.derive.cores import core_schemas, is_pydantics, with_classes_apart
from toolcrib.schema.derive.roundtrip import OWN_STEP
from toolcrib.schema.references import nodes_of
from toolcrib.values.json import json_bytes

_JSON_TYPES = frozenset((str, int, float, bool, type(None), list, dict))
_JSON, _PYTHON = f"{OWN_STEP}JSON", f"{OWN_STEP}Python"
_KINDS = ("function-before", "function-wrap")


def has_code_before(core: Any) -> bool:
    """Return whether an author's code runs before a part of this hint is read."""
    return any(map(_runs_before, core_schemas(core)))


def in_json_mode(core: Any) -> Any:
    """Return a core schema that reads as JSON what an author's code before a hint passes on."""
    if not has_code_before(core):
        return core
    changed, definitions = with_classes_apart(core, _changed)
    return core_schema.definitions_schema(changed, list(definitions.values()))


def _changed(core: Any, _original: Any) -> Any:
    return _passing_on_json(core) if _runs_before(core) else core


def _runs_before(core: Any) -> bool:
    return core["type"] in _KINDS and not is_pydantics(core)


def _passing_on_json(core: Any) -> Any:
    inner = core["schema"]
    either = core_schema.tagged_union_schema(
        {_JSON: core_schema.json_schema(inner), _PYTHON: inner}, _kind_of
    )
    function = core["function"]
    change = _before if core["type"] == "function-before" else _around
    return {
        **core,
        "schema": either,
        "function": {**function, "function": change(function["function"])},
    }


class _JsonText(str):
    """The JSON of a value that an author's code passed on."""

    __slots__ = ()


def _kind_of(value: Any) -> str:
    return _JSON if value.__class__ is _JsonText else _PYTHON


def _before(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def called(value: Any, *info: Any) -> Any:
        return _as_json(function(value, *info))

    return called


def _around(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def called(value: Any, handler: Callable[..., Any], *info: Any) -> Any:
        return function(value, lambda passed, *place: handler(_as_json(passed), *place), *info)

    return called


def _as_json(value: Any) -> Any:
    """Return a value as JSON text if it is made of JSON's types, or else the value itself."""
    try:
        return (
            _JsonText(json_bytes(value).decode()) if all(map(_is_json, nodes_of(value))) else value
        )
    except (ValueError, TypeError):  # such as half of a surrogate pair
        return value


def _is_json(node: Any) -> bool:
    kind = node.__class__
    if kind is dict:
        return all(name.__class__ is str for name in node)
    return kind in _JSON_TYPES and (kind is not float or isfinite(node))
