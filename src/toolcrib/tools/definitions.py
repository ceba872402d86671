"""Tools and dictionaries: `{name, description, input_schema, output_schema?}`, both ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolcrib.errors import DefinitionError
from toolcrib.tools.build import (
    ToolOptions,
    build_definition,
    check_name,
    check_top,
    compile_schema,
)
from toolcrib.tools.component import Tool, tool_of
from toolcrib.tools.decorator import make_function_tool
from toolcrib.values.definition import All, HasDefinition, ToolDefinition
from toolcrib.values.json import JsonObject

_KEYS = ("name", "description", "input_schema", "output_schema")


def get_definition(thing: HasDefinition | type | Callable[..., Any]) -> ToolDefinition:
    """The definition of a tool, a decorated class, or a definition itself. Raises DefinitionError."""
    return tool_of(thing).definition


def function_to_tool_definition(function: Callable[..., Any]) -> JsonObject:
    """The dictionary form of a plain function, from its hints and docstring.

    Raises DefinitionError, naming the parameter, for what JSON Schema cannot express.
    """
    return make_function_tool(function, ToolOptions(visible=()), {}).definition.to_dict()


def tool_from_dict(
    given: Mapping[str, Any],
    handlers: Mapping[str, Callable[..., Any]],
    visible: Sequence[str] | All,
) -> Tool[..., Any]:
    """Raises DefinitionError, naming the definition, for unknown keys, bad names, bad schemas."""
    if not isinstance(given, Mapping):
        raise DefinitionError(f"a definition is a dictionary, not a {type(given).__name__}")
    name = check_name(given.get("name"))
    unknown = [key for key in given if key not in _KEYS]
    if unknown:
        raise DefinitionError(
            f"tool '{name}': unknown key {unknown[0]!r}; known: {', '.join(_KEYS)}"
        )
    for key, kind in (("description", str), ("input_schema", dict), ("output_schema", dict)):
        if given.get(key) is not None and not isinstance(given[key], kind):
            raise DefinitionError(f"tool '{name}': {key} must be a {kind.__name__}")
    options = ToolOptions(
        visible=visible,
        name=name,
        description=given.get("description"),
        input_schema=given.get("input_schema"),
        output_schema=given.get("output_schema"),
    )
    if options.input_schema is not None and name in handlers:
        return make_function_tool(handlers[name], options, {})
    if options.input_schema is not None:
        check_top(name, options.input_schema)
    validator = compile_schema(name, "input_schema", options.input_schema)
    output_validator = compile_schema(name, "output_schema", options.output_schema)
    definition = build_definition(name, "", options.input_schema, options.output_schema, options)
    return Tool(definition, None, validator=validator, output_validator=output_validator)
