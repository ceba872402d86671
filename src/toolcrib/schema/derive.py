"""Python signatures as JSON Schemas, by pydantic; and the way back, from JSON to typed arguments.

What is plain JSON by its hint (`str`, `list[str]`, `dict[str, Any]` …) is passed on as it is; only a
hint that promises something else (a date, a dataclass, a whole number where JSON has `3.0`) gets a
converter, so that the common call pays for nothing.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic_core import PydanticSerializationError, to_jsonable_python

from toolcrib.errors import DefinitionError
from toolcrib.values.json import JsonObject

Converter: TypeAlias = Callable[[Any], Any]
NO_DEFAULT: Any = object()
_SIMPLE: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


class Parameter(NamedTuple):
    """One parameter that the model fills in; `default` is NO_DEFAULT if it has to."""

    name: str
    hint: Any
    default: Any = NO_DEFAULT
    description: str = ""


class DerivedInput(NamedTuple):
    """`schema` for the model; `converters` for the parameters that are not plain JSON."""

    schema: JsonObject
    converters: Mapping[str, Converter]


def derive_input(parameters: Sequence[Parameter]) -> DerivedInput:
    """The schema of an object with these parameters as its only properties.

    Raises DefinitionError, naming the parameter, for a hint that JSON Schema cannot express.
    """
    properties, definitions = _property_schemas(parameters)
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    for parameter in parameters:
        described = dict(properties[parameter.name])
        if parameter.description and "description" not in described:
            described["description"] = parameter.description
        if parameter.default is not NO_DEFAULT:
            _set_default(described, parameter.default)
        schema["properties"][parameter.name] = described
    required = [p.name for p in parameters if p.default is NO_DEFAULT]
    if required:
        schema["required"] = required
    schema["additionalProperties"] = False
    if definitions:
        schema["$defs"] = definitions
    return DerivedInput(schema, converters_for(parameters))


def converters_for(parameters: Sequence[Parameter]) -> Mapping[str, Converter]:
    """A converter for each parameter whose hint is more than plain JSON."""
    return {p.name: c for p in parameters if (c := converter_for(p.hint)) is not None}


def derive_output(hint: Any) -> JsonObject | None:
    """The schema of what a tool returns, as JSON; None where the hint says nothing."""
    if hint is Any or hint is None or hint is type(None):
        return None
    if hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    try:
        schema: JsonObject = _adapter(hint, "return").json_schema(mode="serialization")
    except PydanticInvalidForJsonSchema as error:
        raise DefinitionError(
            f"the return type {_show(hint)} has no JSON Schema ({error.message.splitlines()[0]}): "
            "return JSON, a dataclass or a pydantic model"
        ) from None
    return schema or None


def converter_for(hint: Any) -> Converter | None:
    """What turns a valid JSON value into what `hint` promises; None where it already is."""
    if hint is int:
        return _whole
    if hint is float:
        return float
    return None if _is_plain(hint) else _adapter(hint, "parameter").validate_python


def _whole(value: float) -> int:
    """JSON Schema takes `3.0` for an integer; Python's `int` does not."""
    return value if isinstance(value, int) else int(value)


def _is_plain(hint: Any) -> bool:
    """Whether every JSON value that fits the hint's schema is already a value of the hint."""
    if hint in (str, bool, None, type(None), Any, dict, list):
        return True
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return all(isinstance(a, str | bool | None) for a in arguments)
    if origin is Annotated:
        return _is_plain(arguments[0]) and all(
            type(extra).__module__ == "pydantic.fields" for extra in arguments[1:]
        )
    if origin in (Union, types.UnionType, list):
        return all(map(_is_plain, arguments))
    return origin is dict and arguments[0] is str and _is_plain(arguments[1])


def _property_schemas(
    parameters: Sequence[Parameter],
) -> tuple[dict[str, Any], dict[str, Any]]:
    schemas: dict[str, Any] = {}
    inputs = []
    for parameter in parameters:
        if _hashable(parameter.hint) and parameter.hint in _SIMPLE:
            schemas[parameter.name] = {"type": _SIMPLE[parameter.hint]}
        else:
            adapter = _adapter(parameter.hint, f"parameter '{parameter.name}'")
            inputs.append((parameter.name, "validation", adapter))
    if not inputs:
        return schemas, {}
    try:
        generated, shared = TypeAdapter.json_schemas(inputs)  # type: ignore[arg-type]
    except PydanticInvalidForJsonSchema as error:
        raise DefinitionError(
            f"parameters {', '.join(name for name, *_ in inputs)}: a hint has no JSON Schema "
            f"({error.message.splitlines()[0]})"
        ) from None
    schemas |= {name: generated[name, mode] for name, mode, _ in inputs}  # type: ignore[index]
    return schemas, shared.get("$defs", {})


def _set_default(described: dict[str, Any], default: Any) -> None:
    """A default that JSON cannot express stays in Python, where it takes effect all the same."""
    try:
        described["default"] = to_jsonable_python(default)
    except (PydanticSerializationError, ValueError):
        described.pop("default", None)


def _adapter(hint: Any, what: str) -> TypeAdapter[Any]:
    try:
        return _cached_adapter(hint) if _hashable(hint) else TypeAdapter(hint)
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError, NameError) as error:
        first = str(error).splitlines()[0]
        raise DefinitionError(
            f"{what}: {_show(hint)} cannot be read from JSON ({first}); use a JSON type, a "
            "dataclass, a TypedDict or a pydantic model"
        ) from None


@lru_cache(maxsize=4096)
def _cached_adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


def _hashable(hint: Any) -> bool:
    try:
        hash(hint)
    except TypeError:
        return False
    return True


def _show(hint: Any) -> str:
    return getattr(hint, "__qualname__", None) or str(hint)
