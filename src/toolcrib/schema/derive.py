"""Python signatures as JSON Schemas, by pydantic; and the way back, from JSON to typed arguments.

What is plain JSON by its hint (`str`, `list[str]`, `dict[str, Any]` …) is passed on as it is; only a
hint that promises something else (a date, a dataclass, a whole number where JSON has `3.0`) gets a
converter, so that the common call pays for nothing. Each value that a derived schema accepts makes
typed arguments, but for those that `EXCEPTIONS` lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import PydanticUserError
from pydantic_core import PydanticSerializationError

from toolcrib.errors import DefinitionError
from toolcrib.schema.derive_hints import (
    Adapter,
    Converter,
    adapter_for,
    direct,
    is_plain,
    reader,
    real,
    show,
    whole,
)
from toolcrib.schema.derive_json import Mode, steady_json
from toolcrib.schema.derive_tight import EXCEPTIONS
from toolcrib.schema.derive_types import SchemaGenerator
from toolcrib.values.json import JsonObject, canonical_json

__all__ = [
    "EXCEPTIONS",
    "NO_DEFAULT",
    "Converter",
    "DerivedInput",
    "DerivedObject",
    "Parameter",
    "converter_for",
    "converters_for",
    "derive_input",
    "derive_object",
    "derive_output",
]
NO_DEFAULT: Any = object()


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
        described = properties[parameter.name]
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


def derive_object(hint: Any) -> DerivedObject:
    """For a model, a TypedDict or a dataclass whose fields are the arguments, and the only ones.

    Raises DefinitionError for one that JSON Schema cannot express.
    """
    adapter = adapter_for(hint, "the arguments")
    schema = _schema_of(adapter, hint, "the arguments", "validation")
    reference = schema.get("$ref")
    if isinstance(reference, str):  # a recursive one; a tool's top has to be the object itself
        schema = {**schema["$defs"][reference.rpartition("/")[2]], "$defs": schema["$defs"]}
    if schema.get("type") == "object":
        schema.setdefault("additionalProperties", False)
    return DerivedObject(schema, reader(adapter))


def converters_for(parameters: Sequence[Parameter]) -> Mapping[str, Converter]:
    """A converter for each parameter whose hint is more than plain JSON."""
    return {p.name: c for p in parameters if (c := converter_for(p.hint)) is not None}


def derive_output(hint: Any, description: str = "") -> JsonObject | None:
    """The schema of what a tool returns, as JSON; None where the hint says nothing.

    `description` says what the result is, where the hint does not.
    """
    if hint is Any or hint is None or hint is type(None):
        return None
    schema = direct(hint)
    if schema is None:
        adapter = adapter_for(hint, "the return type")
        schema = _schema_of(adapter, hint, "the return type", "serialization")
    if schema and description:
        schema.setdefault("description", description)
    return schema or None


def converter_for(hint: Any) -> Converter | None:
    """What turns a valid JSON value into what `hint` promises; None where it already is."""
    if hint is int:
        return whole
    if hint is float:
        return real
    return None if is_plain(hint) else reader(adapter_for(hint, "parameter"))


def _property_schemas(
    parameters: Sequence[Parameter],
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    schemas: dict[str, dict[str, Any]] = {}
    inputs: list[tuple[Parameter, Adapter]] = []
    for parameter in parameters:
        made = direct(parameter.hint)
        if made is not None:
            schemas[parameter.name] = made
        else:
            what = f"parameter '{parameter.name}'"
            inputs.append((parameter, adapter_for(parameter.hint, what)))
    if not inputs:
        return schemas, {}
    generator = SchemaGenerator("validation")
    try:
        made_of, shared = generator.derive((p.name, a.core_schema) for p, a in inputs)
    except (PydanticUserError, ValueError):
        for parameter, adapter in inputs:  # one by one, to say which
            what = f"parameter '{parameter.name}'"
            _schema_of(adapter, parameter.hint, what, "validation")
        raise
    return schemas | made_of, shared


def _set_default(described: dict[str, Any], default: Any) -> None:
    """A default that JSON cannot express, or that is secret, takes effect in Python alone."""
    described.pop("default", None)
    if described.get("writeOnly"):
        return
    try:
        shown = steady_json(default)
        canonical_json(shown)
    except (PydanticSerializationError, ValueError, TypeError):
        return
    described["default"] = shown


def _schema_of(adapter: Adapter, hint: Any, what: str, mode: Mode) -> dict[str, Any]:
    """One schema with its `$defs`; a definition that is used once, at the top, stands there."""
    try:
        made, shared = SchemaGenerator(mode).derive([("", adapter.core_schema)])
    except PydanticUserError as error:
        raise DefinitionError(
            f"{what}: {show(hint)} has no JSON Schema ({error.message.splitlines()[0]}); use a "
            "JSON type, a dataclass, a TypedDict or a pydantic model"
        ) from None
    top = made[""]
    name = top.get("$ref", "").rpartition("/")[2]
    if name in shared and len(top) == 1 and not _refers(list(shared.values()), top["$ref"]):
        top = shared.pop(name)
    return {**top, "$defs": shared} if shared else dict(top)


def _refers(node: Any, ref: str) -> bool:
    if isinstance(node, list):
        return any(_refers(child, ref) for child in node)
    if not isinstance(node, dict):
        return False
    return node.get("$ref") == ref or any(_refers(child, ref) for child in node.values())
