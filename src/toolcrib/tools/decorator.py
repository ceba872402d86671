"""`@tool`: from a function or a class to a definition, checked at import.

A schema is either derived from the signature or given by the author, never kept twice. What cannot
be registered safely is refused here, with an error that says what to change.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from pydantic import TypeAdapter

from toolcrib.errors import DefinitionError
from toolcrib.schema import derive_input, derive_output
from toolcrib.schema.derive import NO_DEFAULT, converters_for
from toolcrib.tools.build import (
    MODES,
    ToolOptions,
    build_definition,
    check_name,
    compile_schema,
)
from toolcrib.tools.component import ATTRIBUTE, Tool, ToolComponent
from toolcrib.tools.signature import Signature, read_class, read_function, sole_object
from toolcrib.values.definition import ALL, All, AnnotationOptions, NoSchemaMode, ToolDefinition
from toolcrib.values.json import JsonObject

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


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
        if not callable(target):
            raise DefinitionError(f"@tool takes a function or a class, not {target!r}")
        return make_function_tool(target, options, frame_locals)

    return cast("ToolDecorator", decorate)


def make_function_tool(
    function: Callable[..., Any], options: ToolOptions, frame_locals: Mapping[str, Any]
) -> Tool[..., Any]:
    """A `Tool` of a plain function. Raises DefinitionError."""
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
    definition, checks = _define(cls.__name__, signature, options, sole=sole_object(signature))
    made: Tool[..., Any] = Tool(
        definition,
        cls,
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


def _define(
    default_name: str, signature: Signature, options: ToolOptions, sole: Any
) -> tuple[ToolDefinition, dict[str, Any]]:
    name = check_name(options.name or default_name)
    input_schema, checks = _input(name, signature, options, sole)
    output_schema = options.output_schema or _output(name, signature)
    definition = build_definition(name, signature.description, input_schema, output_schema, options)
    checks["validator"] = compile_schema(name, "input_schema", input_schema)
    checks["output_validator"] = compile_schema(name, "output_schema", output_schema)
    return definition, checks


def _input(
    name: str, signature: Signature, options: ToolOptions, sole: Any
) -> tuple[JsonObject | None, dict[str, Any]]:
    """The schema, and what turns valid arguments into typed ones."""
    if options.input_schema is not None:
        _check_accepts(name, signature, options.input_schema)
        return options.input_schema, {"converters": converters_for(signature.parameters)}
    if sole is not None:
        adapter: TypeAdapter[Any] = TypeAdapter(sole)
        return _root(adapter.json_schema()), {"takes_object": adapter.validate_python}
    if signature.undocumentable:
        if options.allow_no_schema:
            return None, {}
        raise DefinitionError(
            f"tool '{name}' has no schema: {'; '.join(signature.undocumentable)}. Give every "
            "parameter a type hint, pass input_schema=…, or opt out with allow_no_schema=True and "
            f"a no_schema_mode ({', '.join(MODES)})"
        )
    derived = derive_input(signature.parameters)
    return derived.schema, {"converters": derived.converters}


def _check_accepts(name: str, signature: Signature, schema: JsonObject) -> None:
    """A given schema and the signature must name the same parameters."""
    if signature.undocumentable:
        return
    properties = schema.get("properties", {})
    declared = set(properties) if isinstance(properties, dict) else set()
    accepted = {parameter.name for parameter in signature.parameters}
    needed = {p.name for p in signature.parameters if p.default is NO_DEFAULT}
    strangers = sorted(declared - accepted) + sorted(needed - declared)
    if strangers:
        raise DefinitionError(
            f"tool '{name}': input_schema and signature differ in {', '.join(strangers)}"
        )


def _root(schema: dict[str, Any]) -> JsonObject:
    """A recursive model's schema is a bare `$ref`; a tool's top has to be the object itself."""
    reference = schema.get("$ref")
    if isinstance(reference, str) and "$defs" in schema:
        target = schema["$defs"][reference.rpartition("/")[2]]
        return {**target, "$defs": schema["$defs"]}
    return schema


def _output(name: str, signature: Signature) -> JsonObject | None:
    try:
        return derive_output(signature.returns)
    except DefinitionError as error:
        raise DefinitionError(f"tool '{name}': {error}") from None
