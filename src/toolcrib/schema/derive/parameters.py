"""Derive the schema of a function's parameters, of one object that is all of them, and of a result.

Errors name the parameter: `parameter 'x': …`, `the arguments: …`, `the return type: …`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Optional

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
    properties = {p.name: made for p in parameters if (made := direct(p.hint)) is not None}
    adapters = {
        p.name: adapter_for(p.hint, _named(p.name)) for p in parameters if p.name not in properties
    }
    made, definitions = _adapted_schemas(parameters, adapters)
    defaults = defaults_of(parameters, adapters)
    properties |= made
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    for parameter in parameters:
        described = properties[parameter.name]
        if parameter.description and "description" not in described:
            described["description"] = parameter.description
        _set_default(described, defaults.get(parameter.name), definitions)
        schema["properties"][parameter.name] = described
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
    made = _converters(parameters, {})
    for name, hint, default, _ in parameters:
        if default is None and hint is not Any and (hint is int or hint is float or is_plain(hint)):
            made[name] = reader(bounded(adapter_for(Optional[hint], _named(name))))  # noqa: UP045
        elif hint is str or hint is bool:
            made[name] = text if hint is str else truth
        elif name not in made and hint is not Any:
            made[name] = reader(bounded(adapter_for(hint, _named(name))))
    return made


def defaults_of(
    parameters: Sequence[Parameter], adapters: Mapping[str, Adapter] | None = None
) -> dict[str, Default]:
    """Return what the tool gets for each parameter that is not sent; `adapters` are already made ones.

    Raises DefinitionError, naming the parameter, for a default that does not fit its hint, whether
    it belongs to the parameter or to a field in its class.
    """
    known = adapters or {}
    made: dict[str, Default] = {}
    for name, hint, default, _ in parameters:
        adapter = known.get(name)
        if adapter is not None:
            _check_nested(adapter, _named(name))
        if default is NO_DEFAULT:
            continue
        if adapter is None and default is not None and hint is not Any:
            adapter = adapter_for(hint, _named(name))
        try:
            made[name] = read_default(default, hint, adapter)
        except DefinitionError as error:
            raise DefinitionError(f"{_named(name)}: {error}") from None
    return made


def _check_nested(adapter: Adapter, what: str) -> None:
    try:
        check_nested(adapter.core_schema)
    except DefinitionError as error:
        raise DefinitionError(f"{what}: {error}") from None


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
    made: dict[str, Converter] = {}
    for name, hint, _, _ in parameters:
        if hint is int:
            made[name] = whole
        elif hint is float:
            made[name] = real
        elif not is_plain(hint):
            made[name] = reader(bounded(adapters.get(name) or adapter_for(hint, _named(name))))
    return made


def _named(parameter: str) -> str:
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
                _schema_of(adapter, parameter.hint, _named(parameter.name), "validation")
        raise


def _set_default(
    described: dict[str, Any], default: Default | None, definitions: Mapping[str, Any]
) -> None:
    """Show a default in its schema, if allowed; any other takes effect only in Python."""
    described.pop("default", None)
    if default is not None and default.is_json:
        shown = default.shown
        if can_be_shown(shown, described, definitions):
            described["default"] = shown


def _schema_of(adapter: Adapter, hint: Any, what: str, mode: Mode) -> dict[str, Any]:
    """Return one schema with its `$defs`. A definition that only the top refers to becomes the
    top."""
    try:
        made, shared = SchemaGenerator(mode).derive([("", adapter.core_schema)])
    except Exception as error:  # noqa: BLE001  another author's type may have hooks that raise anything
        raise inexpressible(hint, what, error) from None
    top = made[""]
    name = named_in(top)
    below = with_definitions(shared.values(), {})
    if name in shared and len(top) == 1 and all(one.get("$ref") != top["$ref"] for one in below):
        top = shared.pop(name)
    return {**top, "$defs": shared} if shared else dict(top)


# Check a schema that the author gave against the hints of the function.
#
# Rule: if a parameter's schema and hint have no JSON type in common, the tool could never be
# called, and it is refused at registration. Only types are compared: the author knows what a
# pattern is for. A parameter that the schema does not declare needs no readable hint.

_ALL = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))
_AUTHORS = frozenset(("function-before", "function-wrap", "function-plain"))
_DEEPEST = 20


def readable(declared: Mapping[str, Any], parameters: Sequence[Parameter]) -> list[Parameter]:
    """Return the parameters, with Any for an unreadable hint that the schema does not declare."""
    return [
        one if one.name in declared or _can_be_read(one) else one._replace(hint=Any)
        for one in parameters
    ]


def check_types(schema: JsonObject, parameters: Sequence[Parameter]) -> None:
    """Raise DefinitionError, naming the parameter, if its schema contradicts its hint."""
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        return
    given = References(schema)
    for parameter in parameters:
        node = properties.get(parameter.name, True)
        if node is True or parameter.hint is Any or not _says_what_it_reads(parameter):
            continue
        derived: Any = derive_input([Parameter(parameter.name, parameter.hint)]).schema
        wanted = derived["properties"][parameter.name]
        asked, read = _types(given, node), _types(References(derived), wanted)
        if not asked & read:
            raise DefinitionError(
                f"parameter '{parameter.name}': input_schema says {_listed(asked)}, but its "
                f"type hint reads {_listed(read)}, so no call could fit both: change one of "
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
    found = []
    for name, hint, _, _ in parameters:
        if direct(hint) is None:
            with suppress(DefinitionError):  # a hint that nobody reads
                if any(map(makes_secret, core_schemas(adapter_for(hint, "").core_schema))):
                    found.append(name)
    return found


def _says_what_it_reads(parameter: Parameter) -> bool:
    """Return whether a hint's schema describes its input. A validator before it may accept
    anything."""
    if direct(parameter.hint) is not None:
        return True
    pending: list[Any] = [adapter_for(parameter.hint, f"parameter '{parameter.name}'").core_schema]
    while pending:
        core = pending.pop()
        if core.get("type") in _AUTHORS:
            return False
        if core.get("type") in ("default", "nullable", "function-after", "definitions"):
            pending.append(core["schema"])
        elif core.get("type") == "union":
            pending += choices_of(core)
    return True


def _types(root: References, node: Any, level: int = 0) -> frozenset[str]:
    """Return the JSON types that a schema may accept; integers are numbers, too."""
    if not isinstance(node, dict) or level > _DEEPEST:
        return _ALL if node is not False else frozenset()
    found = _own_types(node)
    if isinstance(node.get("$ref"), str):
        found &= _types(root, root.resolve(node["$ref"]), level + 1)
    for keyword in ("anyOf", "oneOf"):
        branches = node.get(keyword)
        if isinstance(branches, list):
            parts = [_types(root, branch, level + 1) for branch in branches]
            found &= frozenset[str]().union(*parts)
    for part in node.get("allOf", ()):
        found &= _types(root, part, level + 1)
    return found


def _own_types(node: Mapping[str, Any]) -> frozenset[str]:
    said = node.get("type")
    listed = [said] if isinstance(said, str) else said if isinstance(said, list) else list(_ALL)
    # An invalid type is reported later.
    found = frozenset(listed) if _ALL.issuperset(listed) else _ALL
    if "number" in found:
        found |= {"integer"}
    values = [node["const"]] if "const" in node else node.get("enum")
    if isinstance(values, list):
        kinds = set(map(kind_of, values))
        found &= kinds | ({"integer"} if "number" in kinds else set())
    return found


def _listed(types: frozenset[str]) -> str:
    plain = types - ({"integer"} if "number" in types else set())
    return " or ".join(sorted(plain)) or "nothing"
