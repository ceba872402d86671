"""Tools and dictionaries: `{name, description, input_schema, output_schema?}`, both ways.

The forms of a tool in requests to OpenAI (Chat Completions and Responses) and Anthropic are taken,
too: what is written for a request anyway need not be written twice. So is MCP's, as imported, since a
server sent it. Members about the request (Anthropic's `cache_control`) are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from toolcrib.errors import DefinitionError
from toolcrib.schema import ValidatorFactory
from toolcrib.schema.guard import schema_text
from toolcrib.tools.build import (
    ToolOptions,
    build_definition,
    check_examples,
    check_given,
    check_input,
    check_name,
)
from toolcrib.tools.component import Tool, tool_of
from toolcrib.tools.decorator import make_function_tool, validators
from toolcrib.values.definition import (
    All,
    AnnotationOptions,
    Annotations,
    Example,
    HasDefinition,
    ImportedForm,
    ToolDefinition,
    examples_of_form,
    own_form,
)
from toolcrib.values.json import JsonObject

_KEYS = ("name", "description", "input_schema", "output_schema")
# What providers and MCP call it.
_MEANT = {
    "parameters": "input_schema",
    "inputSchema": "input_schema",
    "outputSchema": "output_schema",
}


def get_definition(
    thing: HasDefinition | type | Callable[..., Any] | Mapping[str, Any],
) -> ToolDefinition:
    """Return the definition of a tool, a decorated class, a dictionary, or a definition itself.

    Raises DefinitionError.
    """
    if isinstance(thing, Mapping):
        return tool_from_dict(thing, {}, ()).definition
    return tool_of(thing).definition


def function_to_tool_definition(function: Callable[..., Any]) -> JsonObject:
    """Return the dictionary form of a plain function, from its hints and docstring.

    Raises DefinitionError, naming the parameter, for what JSON Schema cannot express.
    """
    frame_locals = sys._getframe(1).f_locals  # noqa: SLF001  hints may name the caller's own types
    made = make_function_tool(function, ToolOptions(visible=()), frame_locals)
    return made.definition.to_dict()


def tool_from_dict(
    given: Mapping[str, Any],
    handlers: Mapping[str, Callable[..., Any]],
    visible: Sequence[str] | All | None,
    *,
    marks: Mapping[str, AnnotationOptions] | None = None,
    factory: ValidatorFactory | None = None,
    lazy: bool = False,
    frame_locals: Mapping[str, Any] | None = None,
) -> Tool[..., Any]:
    """Raises DefinitionError, naming the definition, for unknown keys, bad names, bad schemas.

    `marks` are the annotations of tools by name. One that was imported (`ImportedForm`) asks and taints
    besides, and is no less strict than it claims. `factory` makes its validators, in place of the
    default one; with `lazy` at their first use. `frame_locals` has the types that the hints of handlers
    may name in addition to those of their modules.
    """
    if not isinstance(given, Mapping):
        raise DefinitionError(f"a definition is a dictionary, not a {type(given).__name__}")
    given = own_form(given)
    name = _checked_keys(given)
    said: AnnotationOptions = {"strict": given["strict"]} if "strict" in given else {}
    strict = given.strictness() if isinstance(given, ImportedForm) else {}
    options = ToolOptions(
        visible=visible,
        name=name,
        description=given.get("description"),
        input_schema=given.get("input_schema"),
        output_schema=given.get("output_schema"),
        examples=examples_of_form(given),
        lazy=lazy,
        validator=factory,
        annotations={**said, **(marks or {}).get(name, {}), **strict},
    )
    if options.input_schema is not None and name in handlers:
        made = make_function_tool(handlers[name], options, frame_locals or {})
    else:
        made = _without_code(name, options)
    return made.brought(_origin(given)) if isinstance(given, ImportedForm) else made


def _without_code(name: str, options: ToolOptions) -> Tool[..., Any]:
    checked = None if options.input_schema is None else check_input(name, options.input_schema)
    output = check_given(name, "output_schema", options.output_schema)
    validator, output_validator = validators(name, checked, output, options)
    definition = build_definition(name, "", checked, output, options)
    check_examples(definition, validator)
    return Tool(definition, None, validator=validator, output_validator=output_validator)


def _origin(form: ImportedForm) -> str:
    """Return the digest of what was brought, and of nothing that is said of it here."""
    given, gives = form.get("input_schema"), form.get("output_schema")
    return ToolDefinition(
        name=form["name"],
        description=form.get("description") or "",
        input_schema_json=None if given is None else schema_text(given),
        output_schema_json=None if gives is None else schema_text(gives),
        examples=tuple(Example(said, schema_text(dict(a))) for said, a in examples_of_form(form)),
        annotations=msgspec.convert(form.strictness(), Annotations),
    ).digest


def _checked_keys(given: Mapping[str, Any]) -> str:
    """Return the name; what else there is has a known key and a value of its type."""
    if "name" not in given:
        found = ", ".join(map(str, given))[:80] or "nothing"
        raise DefinitionError(
            f"a definition has no name; it has {found}; known: {', '.join(_KEYS)}"
        )
    name = check_name(given["name"])
    known = (*_KEYS, "strict", "input_examples")
    unknown = sorted((key for key in given if key not in known), key=lambda key: key not in _MEANT)
    if unknown:
        meant = _MEANT.get(unknown[0]) if isinstance(unknown[0], str) else None
        hint = f" (it is called {meant} here)" if meant else ""
        raise DefinitionError(
            f"tool '{name}': unknown key {unknown[0]!r:.80}; known: {', '.join(_KEYS)}{hint}"
        )
    for key, kind in (("description", str), ("input_schema", dict), ("output_schema", dict)):
        if given.get(key) is not None and not isinstance(given[key], kind):
            found = type(given[key]).__name__
            raise DefinitionError(f"tool '{name}': {key} must be a {kind.__name__}, not {found}")
    return name
