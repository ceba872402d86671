"""`@tool`: from a function or a class to a definition, checked at import.

A schema is either derived from the signature or given by the author, never kept twice. What cannot
be registered safely is refused here, with an error that says what to change.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from pydantic import BaseModel

from toolcrib.errors import DefinitionError
from toolcrib.schema import derive_input, derive_output
from toolcrib.schema.derive import NO_DEFAULT, converters_for, derive_object
from toolcrib.tools.build import (
    MODES,
    ToolOptions,
    build_definition,
    check_examples,
    check_name,
    check_top,
    compile_schema,
)
from toolcrib.tools.component import ATTRIBUTE, Tool, ToolComponent
from toolcrib.tools.signature import Signature, read_class, read_function, sole_object
from toolcrib.values.definition import ALL, All, AnnotationOptions, NoSchemaMode, ToolDefinition
from toolcrib.values.json import JsonObject

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
_COMBINERS = ("$ref", "allOf", "anyOf", "oneOf", "if")


class ToolDecorator(Protocol):
    """A class stays what it is, and becomes a ToolComponent; a function becomes a `Tool`."""

    @overload  # a class is callable too; the first overload that fits is the one meant
    def __call__(self, target: type[C], /) -> type[C]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[P, R], /) -> Tool[P, R]: ...


def tool(  # noqa: PLR0913  what an author may say of a tool, each by keyword
    *,
    visible: Sequence[str] | All,
    model_visible: Sequence[str] | All = ALL,
    secret: Sequence[str] = (),
    name: str | None = None,
    description: str | None = None,
    input_schema: JsonObject | None = None,
    parameters: JsonObject | None = None,
    output_schema: JsonObject | None = None,
    examples: Sequence[tuple[str, Mapping[str, Any]]] = (),
    allow_no_schema: bool = False,
    no_schema_mode: NoSchemaMode | None = None,
    **annotations: Unpack[AnnotationOptions],
) -> ToolDecorator:
    """Make a tool of a function or of a class.

    `visible` names the result fields that UI, logs and audit may show (dotted paths, `ALL` for
    every one); there is no default, so that nothing shows by accident. `input_schema` (also
    `parameters`) replaces the schema derived from the signature. `examples` are pairs of a request
    and the arguments that answer it. Raises DefinitionError.
    """
    if input_schema is not None and parameters is not None:
        raise DefinitionError("@tool: parameters is another name for input_schema; give one")
    options = ToolOptions(
        visible=visible,
        model_visible=model_visible,
        secret=secret,
        name=name,
        description=description,
        input_schema=parameters if input_schema is None else input_schema,
        output_schema=output_schema,
        examples=examples,
        allow_no_schema=allow_no_schema,
        no_schema_mode=no_schema_mode,
        annotations=annotations,
    )
    frame_locals = sys._getframe(1).f_locals  # noqa: SLF001  hints may name the caller's own types

    def decorate(target: Any) -> Any:
        if isinstance(target, type):
            return _decorate_class(target, options, frame_locals)
        return make_function_tool(target, options, frame_locals)

    return cast("ToolDecorator", decorate)


def make_function_tool(
    function: Callable[..., Any], options: ToolOptions, frame_locals: Mapping[str, Any]
) -> Tool[..., Any]:
    """A `Tool` of a plain function. Raises DefinitionError."""
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        kind = type(function).__name__
        raise DefinitionError(f"a tool is made of a function or a class, not of a {kind}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError(f"{function.__qualname__} yields; a tool returns one result")
    signature = read_function(function, frame_locals)
    definition, checks = _define(function.__name__, signature, options, sole=None)
    return Tool(
        definition,
        function,
        needs=signature.needs,
        context_parameter=signature.context_parameter,
        blocking=not inspect.iscoroutinefunction(function),
        **checks,
    )


def _decorate_class(cls: type, options: ToolOptions, frame_locals: Mapping[str, Any]) -> type:
    if "get_definition" in cls.__dict__:
        raise DefinitionError(f"{cls.__qualname__} has a `get_definition` already: rename it")
    signature = read_class(cls, frame_locals)
    is_model = issubclass(cls, BaseModel)
    sole = cls if is_model else sole_object(signature)
    definition, checks = _define(cls.__name__, signature, options, sole=sole)
    made: Tool[..., Any] = Tool(
        definition,
        _itself if is_model and "takes_object" in checks else cls,
        original=cls,
        needs=signature.needs,
        context_parameter=signature.context_parameter,
        is_class=True,
        **checks,
    )
    setattr(cls, ATTRIBUTE, made)
    if not issubclass(cls, ToolComponent):
        setattr(cls, "get_definition", classmethod(ToolComponent.get_definition.__func__))  # type: ignore[attr-defined]  # noqa: B010
        ToolComponent.register(cls)
    return cls


def _itself(made: Any) -> Any:
    """A model that is a tool is the object that its arguments make."""
    return made


def _define(
    default_name: str, signature: Signature, options: ToolOptions, sole: Any
) -> tuple[ToolDefinition, dict[str, Any]]:
    name = check_name(default_name if options.name is None else options.name)
    input_schema, checks = _input(name, signature, options, sole)
    output_schema = options.output_schema
    if output_schema is None:
        output_schema = _derived(name, derive_output, signature.returns)
    checks["validator"] = compile_schema(name, "input_schema", input_schema)
    checks["output_validator"] = compile_schema(name, "output_schema", output_schema)
    definition = build_definition(name, signature.description, input_schema, output_schema, options)
    check_examples(definition, checks["validator"])
    return definition, checks


def _input(
    name: str, signature: Signature, options: ToolOptions, sole: Any
) -> tuple[JsonObject | None, dict[str, Any]]:
    """The schema, and what turns valid arguments into typed ones."""
    if options.input_schema is not None:
        check_top(name, options.input_schema)
        _check_accepts(name, signature, options.input_schema)
        checks: dict[str, Any] = {"converters": converters_for(signature.parameters)}
        if not signature.takes_any:
            checks["accepts"] = frozenset(p.name for p in signature.parameters)
        return options.input_schema, checks
    if sole is not None:
        made = _derived(name, derive_object, sole)
        check_top(name, made.schema)
        return made.schema, {"takes_object": made.convert}
    if signature.undocumentable:
        if options.allow_no_schema:
            return None, {}
        raise DefinitionError(
            f"tool '{name}' has no schema: {'; '.join(signature.undocumentable)}. Give every "
            "parameter a type hint, pass input_schema=…, or opt out with allow_no_schema=True and "
            f"a no_schema_mode ({', '.join(MODES)})"
        )
    derived = _derived(name, derive_input, signature.parameters)
    return derived.schema, {"converters": derived.converters}


def _derived(name: str, derive: Callable[[Any], R], of: Any) -> R:
    try:
        return derive(of)
    except DefinitionError as error:
        raise DefinitionError(f"tool '{name}': {error}") from None


def _check_accepts(name: str, signature: Signature, schema: JsonObject) -> None:
    """A given schema and the signature must name, and require, the same parameters.

    What combined schemas declare and require is not looked for.
    """
    properties, required = schema.get("properties", {}), schema.get("required", [])
    declared = set(properties) if isinstance(properties, dict) else set()
    accepted = declared if signature.takes_any else {p.name for p in signature.parameters}
    needed = {p.name for p in signature.parameters if p.default is NO_DEFAULT}
    if any(keyword in schema for keyword in _COMBINERS):
        needed = set()
    strangers = sorted(declared - accepted) + sorted(needed - declared)
    if strangers:
        raise DefinitionError(
            f"tool '{name}': input_schema and signature differ in {', '.join(strangers)}"
        )
    optional = sorted(needed - set(required if isinstance(required, list | tuple) else ()))
    if optional:
        raise DefinitionError(
            f"tool '{name}': input_schema does not require {', '.join(optional)}, which the "
            "signature does: give it a default, or require it"
        )
