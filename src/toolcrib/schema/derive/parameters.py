"""Derive the schema of a function's parameters, of one object that is all of them, and of a result.

Errors name the parameter: `parameter 'x': …`, `the arguments: …`, `the return type: …`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import NoneType, UnionType
from typing import Any, NamedTuple, Optional, Union, get_args, get_origin

import msgspec

from toolcrib.errors import DefinitionError
from toolcrib.schema.derive.adapters import (
    Adapter,
    Converter,
    adapter_for,
    inexpressible,
    reader,
    real,
    text,
    truth,
    whole,
)
from toolcrib.schema.derive.cores import choices_of, core_schemas, makes_secret
from toolcrib.schema.derive.defaults import (
    Default,
    can_be_shown,
    check_nested,
    named_in,
    read_default,
    with_definitions,
)
from toolcrib.schema.derive.generator import Mode, SchemaGenerator
from toolcrib.schema.derive.hints import direct, is_plain
from toolcrib.schema.derive.reading import TypedReader
from toolcrib.schema.derive.unions import bounded
from toolcrib.schema.references import References
from toolcrib.schema.validator import kind_of
from toolcrib.values.json import JsonObject

NO_DEFAULT: Any = object()


class Parameter(NamedTuple):
    """One parameter that the model fills in; `default` is NO_DEFAULT if it is required.

    A `Factory` as default makes one for each call.
    """

    name: str
    hint: Any
    default: Any = NO_DEFAULT
    description: str = ""


class DerivedInput(msgspec.Struct, frozen=True):
    """`schema` is for the model; `converters` are for the parameters that are not plain JSON.

    `defaults` has those of the parameters that the model may leave out.
    """

    schema: JsonObject
    converters: Mapping[str, Converter]
    defaults: Mapping[str, Default]


class DerivedObject(NamedTuple):
    """`schema` describes one object that is all the arguments; `convert` builds it from them."""

    schema: JsonObject
    convert: TypedReader


def derive_input(parameters: Sequence[Parameter]) -> DerivedInput:
    """Return the schema of an object with these parameters as its only properties.

    Raises DefinitionError, naming the parameter, for a hint that JSON Schema cannot express, and
    for a default that does not fit its hint.
    """
    properties = {p.name: derived for p in parameters if (derived := direct(p.hint)) is not None}
    adapters = {
        p.name: adapter_for(p.hint, _subject(p.name))
        for p in parameters
        if p.name not in properties
    }
    derived, definitions = _adapted_schemas(parameters, adapters)
    defaults = defaults_of(parameters, adapters)
    properties |= derived
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    for parameter in parameters:
        property_schema = properties[parameter.name]
        if parameter.description and "description" not in property_schema:
            property_schema["description"] = parameter.description
        _set_default(property_schema, defaults.get(parameter.name), definitions)
        schema["properties"][parameter.name] = property_schema
    required = [p.name for p in parameters if p.default is NO_DEFAULT]
    if required:
        schema["required"] = required
    schema["additionalProperties"] = False
    if definitions:
        schema["$defs"] = definitions
    return DerivedInput(schema, _converters(parameters, adapters), defaults)


def derive_object(hint: Any) -> DerivedObject:
    """Derive from a model, a TypedDict or a dataclass whose fields are all the arguments.

    Raises DefinitionError for one that JSON Schema cannot express.
    """
    adapter = adapter_for(hint, "the arguments")
    _check_nested(adapter, "the arguments")
    schema = _schema_of(adapter, hint, "the arguments", "validation")
    if "$ref" in schema:  # a recursive one; a tool's top has to be the object itself
        schema = {**schema["$defs"][named_in(schema)], "$defs": schema["$defs"]}
    return DerivedObject(schema, reader(bounded(adapter)))


def converters_for(parameters: Sequence[Parameter]) -> Mapping[str, Converter]:
    """Return a converter for each parameter of a tool whose author gave the schema.

    Such a schema may admit more than the hint accepts, so every value is read by its hint, plain
    ones too. A null is accepted where it is the default. Raises DefinitionError, naming the
    parameter, for a hint that pydantic cannot read.
    """
    converters = _converters(parameters, {})
    for name, hint, default, _ in parameters:
        if default is None and hint is not Any and (hint is int or hint is float or is_plain(hint)):
            converters[name] = reader(bounded(adapter_for(Optional[hint], _subject(name))))  # noqa: UP045
        elif hint is str or hint is bool:
            converters[name] = text if hint is str else truth
        elif name not in converters and hint is not Any:
            converters[name] = reader(bounded(adapter_for(hint, _subject(name))))
    return converters


def defaults_of(
    parameters: Sequence[Parameter], adapters: Mapping[str, Adapter] | None = None
) -> dict[str, Default]:
    """Return what the tool gets for each parameter that is not sent; `adapters` are already made ones.

    Raises DefinitionError, naming the parameter, for a default that does not fit its hint, whether
    it belongs to the parameter or to a field in its class.
    """
    existing = adapters or {}
    defaults: dict[str, Default] = {}
    for name, hint, default, _ in parameters:
        adapter = existing.get(name)
        if adapter is not None:
            _check_nested(adapter, _subject(name))
        if default is NO_DEFAULT:
            continue
        if adapter is None and default is not None and hint is not Any:
            adapter = adapter_for(hint, _subject(name))
        try:
            defaults[name] = read_default(default, hint, adapter)
        except DefinitionError as error:
            raise DefinitionError(f"{_subject(name)}: {error}") from None
    return defaults


def _check_nested(adapter: Adapter, subject: str) -> None:
    try:
        check_nested(adapter.core_schema)
    except DefinitionError as error:
        raise DefinitionError(f"{subject}: {error}") from None


def derive_output(hint: Any, description: str = "") -> JsonObject | None:
    """Return the schema of what a tool returns, as JSON; None if the hint says nothing.

    `description` describes the result, if the hint does not.
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
    """Return the converter from valid JSON to what `hint` promises; None if none is needed."""
    return _converters([Parameter("", hint)], {}).get("")


def _converters(
    parameters: Sequence[Parameter], adapters: Mapping[str, Adapter]
) -> dict[str, Converter]:
    converters: dict[str, Converter] = {}
    for name, hint, _, _ in parameters:
        if hint is int:
            converters[name] = whole
        elif hint is float:
            converters[name] = real
        elif not is_plain(hint):
            converters[name] = reader(
                bounded(adapters.get(name) or adapter_for(hint, _subject(name)))
            )
    return converters


def _subject(parameter: str) -> str:
    return f"parameter '{parameter}'"


def _adapted_schemas(
    parameters: Sequence[Parameter], adapters: Mapping[str, Adapter]
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    if not adapters:
        return {}, {}
    try:
        return SchemaGenerator("validation").derive(
            (name, adapter.core_schema) for name, adapter in adapters.items()
        )
    except Exception:
        for parameter in parameters:  # one by one, to know which one failed
            if parameter.name in adapters:
                adapter = adapters[parameter.name]
                _schema_of(adapter, parameter.hint, _subject(parameter.name), "validation")
        raise


def _set_default(
    property_schema: dict[str, Any], default: Default | None, definitions: Mapping[str, Any]
) -> None:
    """Show a default in its schema, if allowed; any other takes effect only in Python."""
    property_schema.pop("default", None)
    if default is not None and default.is_json:
        shown = default.shown
        if can_be_shown(shown, property_schema, definitions):
            property_schema["default"] = shown


def _schema_of(adapter: Adapter, hint: Any, subject: str, mode: Mode) -> dict[str, Any]:
    """Return one schema with its `$defs`. A definition that only the top refers to becomes the
    top."""
    try:
        schemas, definitions = SchemaGenerator(mode).derive([("", adapter.core_schema)])
    except Exception as error:  # noqa: BLE001  another author's type may have hooks that raise anything
        raise inexpressible(hint, subject, error) from None
    top = schemas[""]
    name = named_in(top)
    nested = with_definitions(definitions.values(), {})
    if (
        name in definitions
        and len(top) == 1
        and all(node.get("$ref") != top["$ref"] for node in nested)
    ):
        top = definitions.pop(name)
    return {**top, "$defs": definitions} if definitions else dict(top)


# Check a schema that the author gave against the hints of the function.
#
# Rule: if a parameter's schema and hint have no JSON type in common, the tool could never be
# called, and it is refused at registration. Only types are compared: the author knows what a
# pattern is for. A parameter that the schema does not declare needs no readable hint.

_ALL_TYPES = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))
_AUTHOR_FUNCTIONS = frozenset(("function-before", "function-wrap", "function-plain"))
_MAX_DEPTH = 20


def readable(declared: Mapping[str, Any], parameters: Sequence[Parameter]) -> list[Parameter]:
    """Return the parameters with what can be read of their hints.

    That is Any for an unreadable hint that the schema does not declare, and, of a union that it
    declares, the members that JSON has: `str` of `httpx.URL | str`.
    """
    return [
        parameter._replace(
            hint=_members_in_json(parameter.hint)
            if parameter.name in declared
            else parameter.hint
            if _can_be_read(parameter)
            else Any
        )
        for parameter in parameters
    ]


def _members_in_json(hint: Any) -> Any:
    if get_origin(hint) not in (Union, UnionType):
        return hint
    members = [member for member in get_args(hint) if _has_schema(member)]
    if all(member is NoneType for member in members):
        return hint
    return Union[tuple(members)]  # noqa: UP007  known only now


def _has_schema(hint: Any) -> bool:
    try:
        derive_input([Parameter("value", hint)])
    except DefinitionError:
        return False
    return True


def check_types(schema: JsonObject, parameters: Sequence[Parameter]) -> None:
    """Raise DefinitionError, naming the parameter, if its schema contradicts its hint."""
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        return
    author_references = References(schema)
    for parameter in parameters:
        node = properties.get(parameter.name, True)
        if node is True or parameter.hint is Any or not _says_what_it_reads(parameter):
            continue
        derived: Any = derive_input([Parameter(parameter.name, parameter.hint)]).schema
        derived_property = derived["properties"][parameter.name]
        schema_types = _types(author_references, node)
        hint_types = _types(References(derived), derived_property)
        if not schema_types & hint_types:
            raise DefinitionError(
                f"parameter '{parameter.name}': input_schema says {_types_text(schema_types)}, but its "
                f"type hint reads {_types_text(hint_types)}, so no call could fit both: change one of "
                "them"
            )


def _can_be_read(parameter: Parameter) -> bool:
    try:
        adapter_for(parameter.hint, "")
    except DefinitionError:
        return False
    return True


def secret_parameters(parameters: Sequence[Parameter]) -> list[str]:
    """Return the parameters whose hints read a secret, which an author's schema need not say."""
    names = []
    for name, hint, _, _ in parameters:
        if direct(hint) is None:
            with suppress(DefinitionError):  # a hint that nobody reads
                if any(map(makes_secret, core_schemas(adapter_for(hint, "").core_schema))):
                    names.append(name)
    return names


def _says_what_it_reads(parameter: Parameter) -> bool:
    """Return whether a hint's schema describes its input. A validator before it may accept
    anything."""
    if direct(parameter.hint) is not None:
        return True
    pending: list[Any] = [adapter_for(parameter.hint, f"parameter '{parameter.name}'").core_schema]
    while pending:
        core = pending.pop()
        if core.get("type") in _AUTHOR_FUNCTIONS:
            return False
        if core.get("type") in ("default", "nullable", "function-after", "definitions"):
            pending.append(core["schema"])
        elif core.get("type") == "union":
            pending += choices_of(core)
    return True


def _types(root: References, node: Any, level: int = 0) -> frozenset[str]:
    """Return the JSON types that a schema may accept; integers are numbers, too."""
    if not isinstance(node, dict) or level > _MAX_DEPTH:
        return _ALL_TYPES if node is not False else frozenset()
    accepted = _own_types(node)
    if isinstance(node.get("$ref"), str):
        accepted &= _types(root, root.resolve(node["$ref"]), level + 1)
    for keyword in ("anyOf", "oneOf"):
        branches = node.get(keyword)
        if isinstance(branches, list):
            branch_types = [_types(root, branch, level + 1) for branch in branches]
            accepted &= frozenset[str]().union(*branch_types)
    for part in node.get("allOf", ()):
        accepted &= _types(root, part, level + 1)
    return accepted


def _own_types(node: Mapping[str, Any]) -> frozenset[str]:
    value = node.get("type")
    names = (
        [value]
        if isinstance(value, str)
        else value
        if isinstance(value, list)
        else list(_ALL_TYPES)
    )
    # An invalid type is reported later.
    accepted = frozenset(names) if _ALL_TYPES.issuperset(names) else _ALL_TYPES
    if "number" in accepted:
        accepted |= {"integer"}
    values = [node["const"]] if "const" in node else node.get("enum")
    if isinstance(values, list):
        kinds = set(map(kind_of, values))
        accepted &= kinds | ({"integer"} if "number" in kinds else set())
    return accepted


def _types_text(types: frozenset[str]) -> str:
    shown_types = types - ({"integer"} if "number" in types else set())
    return " or ".join(sorted(shown_types)) or "nothing"
