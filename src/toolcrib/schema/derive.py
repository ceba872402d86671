"""Python signatures as JSON Schemas, by pydantic; and the way back, from JSON to typed arguments.

What is plain JSON by its hint (`str`, `list[str]`, `dict[str, Any]` …) is passed on as it is; only a
hint that promises something else (a date, a dataclass, a whole number where JSON has `3.0`) gets a
converter, so that the common call pays for nothing.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python
from pydantic_core import SchemaError as CoreSchemaError

from toolcrib.errors import DefinitionError
from toolcrib.values.json import JsonObject, canonical_json

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


class DerivedObject(NamedTuple):
    """`schema` of one object that is all the arguments; `convert` makes it of them."""

    schema: JsonObject
    convert: Converter


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
    return DerivedInput(_steady(schema), converters_for(parameters))


def derive_object(hint: Any) -> DerivedObject:
    """For a model, a TypedDict or a dataclass whose fields are the arguments, and the only ones.

    Raises DefinitionError for one that JSON Schema cannot express.
    """
    adapter = _adapter(hint, "the arguments")
    schema = _steady(_schema_of(adapter, hint, "the arguments", "validation"))
    reference = schema.get("$ref")
    if isinstance(reference, str):  # a recursive one; a tool's top has to be the object itself
        schema = {**schema["$defs"][reference.rpartition("/")[2]], "$defs": schema["$defs"]}
    if schema.get("type") == "object":
        schema.setdefault("additionalProperties", False)
    return DerivedObject(schema, adapter.validate_python)


def converters_for(parameters: Sequence[Parameter]) -> Mapping[str, Converter]:
    """A converter for each parameter whose hint is more than plain JSON."""
    return {p.name: c for p in parameters if (c := converter_for(p.hint)) is not None}


def derive_output(hint: Any) -> JsonObject | None:
    """The schema of what a tool returns, as JSON; None where the hint says nothing."""
    if hint is Any or hint is None or hint is type(None):
        return None
    if _hashable(hint) and hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    adapter = _adapter(hint, "the return type")
    return _steady(_schema_of(adapter, hint, "the return type", "serialization")) or None


def converter_for(hint: Any) -> Converter | None:
    """What turns a valid JSON value into what `hint` promises; None where it already is."""
    if hint is int:
        return _whole
    if hint is float:
        return _real
    return None if _is_plain(hint) else _adapter(hint, "parameter").validate_python


def _whole(value: float) -> int:
    """JSON Schema takes `3.0` for an integer; Python's `int` does not.

    A schema given by the author may let other values through: they are refused, not rounded.
    """
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise ValueError("not a whole number")


def _real(value: float) -> float:
    if isinstance(value, int | float):
        return float(value)
    raise ValueError("not a number")


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
    if origin is dict:
        return not arguments or (arguments[0] is str and _is_plain(arguments[1]))
    return False


def _property_schemas(
    parameters: Sequence[Parameter],
) -> tuple[dict[str, Any], dict[str, Any]]:
    schemas: dict[str, Any] = {}
    inputs = []
    for name, hint, *_ in parameters:
        if _hashable(hint) and hint in _SIMPLE:
            schemas[name] = {"type": _SIMPLE[hint]}
        else:
            inputs.append((name, "validation", _adapter(hint, f"parameter '{name}'")))
    if not inputs:
        return schemas, {}
    try:
        generated, shared = TypeAdapter.json_schemas(inputs)  # type: ignore[arg-type]
    except PydanticUserError:
        for name, hint, *_ in parameters:  # one by one, to say which
            what = f"parameter '{name}'"
            _schema_of(_adapter(hint, what), hint, what, "validation")
        raise
    schemas |= {name: generated[name, mode] for name, mode, _ in inputs}  # type: ignore[index]
    return schemas, shared.get("$defs", {})


def _set_default(described: dict[str, Any], default: Any) -> None:
    """A default that JSON cannot express, or that is secret, takes effect in Python alone."""
    described.pop("default", None)
    if described.get("writeOnly"):
        return
    try:
        shown = to_jsonable_python(default)
        canonical_json(shown)
    except (PydanticSerializationError, ValueError, TypeError):
        return
    described["default"] = sorted(shown, key=canonical_json) if _is_set(default) else shown


def _is_set(default: Any) -> bool:
    return isinstance(default, AbstractSet)


def _steady(node: Any) -> Any:
    """The same schema in each process: what pydantic says of a set's default is in hash order."""
    if isinstance(node, list):
        return [_steady(child) for child in node]
    if not isinstance(node, dict):
        return node
    made = {key: _steady(child) for key, child in node.items()}
    default = made.get("default")
    unique = any(
        n.get("uniqueItems") for n in (made, *made.get("anyOf", ())) if isinstance(n, dict)
    )
    if unique and isinstance(default, list):
        made["default"] = sorted(default, key=canonical_json)
    return made


def _schema_of(
    adapter: TypeAdapter[Any], hint: Any, what: str, mode: Literal["validation", "serialization"]
) -> dict[str, Any]:
    try:
        return adapter.json_schema(mode=mode)
    except PydanticUserError as error:
        raise DefinitionError(
            f"{what}: {_show(hint)} has no JSON Schema ({error.message.splitlines()[0]}); use a "
            "JSON type, a dataclass, a TypedDict or a pydantic model"
        ) from None


def _adapter(hint: Any, what: str) -> TypeAdapter[Any]:
    try:
        return _cached_adapter(hint, str(hint)) if _hashable(hint) else TypeAdapter(hint)
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError, NameError) as error:
        first = str(error).splitlines()[0]
    except CoreSchemaError as error:
        first = " ".join(str(error).split())[:200]
    raise DefinitionError(
        f"{what}: {_show(hint)} cannot be read from JSON ({first}); use a JSON type, a "
        "dataclass, a TypedDict or a pydantic model"
    )


@lru_cache(maxsize=4096)
def _cached_adapter(hint: Any, _shown: str) -> TypeAdapter[Any]:
    """`int | str` and `str | int` are equal and have different schemas: hence the text too."""
    return TypeAdapter(hint)


def _hashable(hint: Any) -> bool:
    try:
        hash(hint)
    except TypeError:
        return False
    return True


def _show(hint: Any) -> str:
    return getattr(hint, "__qualname__", None) or str(hint)
