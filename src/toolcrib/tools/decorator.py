"""`@tool`: from a function or a class to a definition, checked at import.

A schema is either derived from the signature or given by the author, never kept twice. What cannot
be registered safely is refused here, with an error that says what to change.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from pydantic import BaseModel

from toolcrib.errors import DefinitionError
from toolcrib.schema import Validator, derive_input, derive_output
from toolcrib.schema.derive import (
    NO_DEFAULT,
    check_types,
    converters_for,
    defaults_of,
    derive_object,
    readable,
)
from toolcrib.tools.apart import check_apart, refuse_class
from toolcrib.tools.build import (
    MODES,
    ToolOptions,
    build_definition,
    check_examples,
    check_name,
    with_defaults,
    with_feature,
)
from toolcrib.tools.checked import (
    Checked,
    check_derived,
    check_given,
    check_input,
    make_validator,
)
from toolcrib.tools.component import Tool
from toolcrib.tools.signature import Signature, read_class, read_function, sole_object
from toolcrib.tools.targets import check_class, check_function, make_component
from toolcrib.values.definition import ALL, All, AnnotationOptions, NoSchemaMode, ToolDefinition
from toolcrib.values.json import JsonObject

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
_SAID = frozenset(ToolOptions.__struct_fields__) - {"annotations", "is_own", "validator"}
_COMBINERS = ("$ref", "allOf", "anyOf", "oneOf", "if")


class ToolDecorator(Protocol):
    """A class stays what it is, and becomes a ToolComponent; a function becomes a `Tool`."""

    @overload  # a class is callable too; the first overload that fits is the one meant
    def __call__(self, target: type[C], /) -> type[C]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
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
    lazy: bool = False,
    subprocess: bool = False,
    **annotations: Unpack[AnnotationOptions],
) -> ToolDecorator: ...
@overload
def tool(
    target: Callable[P, R], /, *, visible: Sequence[str] | All, **options: Any
) -> Tool[P, R]: ...
def tool(target: Any = None, /, **options: Any) -> Any:
    """Make a tool of a function or of a class: `@tool(visible=…)`, or `tool(function, visible=…)`.

    `visible` names the result fields that UI, logs and audit may show (dotted paths, `ALL` for
    every one); there is no default, so that nothing shows by accident. `input_schema` (also
    `parameters`) replaces the schema derived from the signature; hints that cannot be read are then not
    read. `examples` are pairs of a request and the arguments that answer it. `marks` are the author's
    own annotations, JSON that policies can read (`definition.annotations.marks`). With `lazy` the
    schemas are checked now and compiled at the first call (examples are checked now, and so compile
    it). With `subprocess` a plain function runs in a process of its own, which can be killed. Raises
    DefinitionError.
    """
    if target is not None and not isinstance(target, type):
        check_function(target)  # first: what is no function lacks more than an option
    read = _options(options)
    frame_locals = sys._getframe(1).f_locals  # noqa: SLF001  hints may name the caller's own types

    def decorate(target: Any) -> Any:
        if isinstance(target, type):
            return _decorate_class(target, read, frame_locals)
        return make_function_tool(target, read, frame_locals)

    return decorate if target is None else decorate(target)


def _options(said: Mapping[str, Any]) -> ToolOptions:
    """What was said by keyword; what is no option of a tool is an annotation."""
    given = dict(said)
    parameters = given.pop("parameters", None)
    if parameters is not None:
        if given.get("input_schema") is not None:
            raise DefinitionError("@tool: parameters is another name for input_schema; give one")
        given["input_schema"] = parameters
    if given.get("visible") is None:
        raise DefinitionError(
            "@tool needs visible=, the fields of a result that UI, logs and audit may show: write "
            "@tool(visible=ALL), @tool(visible=['total']), or @tool(visible=[]) for none of them"
        )
    annotations = {key: given.pop(key) for key in list(given) if key not in _SAID}
    said_of_it = cast("AnnotationOptions", annotations)
    return ToolOptions(**given, annotations=said_of_it, is_own=True)


def make_function_tool(
    function: Callable[..., Any], options: ToolOptions, frame_locals: Mapping[str, Any]
) -> Tool[..., Any]:
    """A `Tool` of a plain function. Raises DefinitionError."""
    check_function(function)
    signature = read_function(function, frame_locals, lenient=options.input_schema is not None)
    if options.subprocess:
        check_apart(function, signature)
    definition, checks = _define(function.__name__, signature, options, sole=None)
    return Tool(
        definition,
        function,
        needs=signature.needs,
        context_parameter=signature.context_parameter,
        blocking=not (signature.streams or inspect.iscoroutinefunction(function)),
        streaming=signature.streams,
        subprocess=options.subprocess,
        **checks,
    )


def _decorate_class(cls: type, options: ToolOptions, frame_locals: Mapping[str, Any]) -> type:
    check_class(cls)
    if options.subprocess:
        refuse_class(cls)
    signature = read_class(cls, frame_locals, lenient=options.input_schema is not None)
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
        streaming=signature.streams,
        **checks,
    )
    make_component(cls, made)
    return cls


def _itself(made: Any) -> Any:
    """A model that is a tool is the object that its arguments make."""
    return made


def _define(
    default_name: str, signature: Signature, options: ToolOptions, sole: Any
) -> tuple[ToolDefinition, dict[str, Any]]:
    name = check_name(default_name if options.name is None else options.name)
    given, checks = _input(name, signature, options, sole)
    output = _output(name, signature, options)
    made = validators(name, given, output, options)
    checks["validator"], checks["output_validator"] = made
    if signature.streams:
        options = with_feature(options, "streaming")
    definition = build_definition(name, signature.description, given, output, options)
    definition = with_defaults(definition, given, checks.get("defaults", {}))
    check_examples(definition, checks["validator"])
    return definition, checks


def _output(name: str, signature: Signature, options: ToolOptions) -> Checked | None:
    if options.output_schema is not None:
        return check_given(name, "output_schema", options.output_schema)
    said = signature.returns_description
    try:
        derived = _derived(name, lambda hint: derive_output(hint, said), signature.returns)
    except DefinitionError:
        if options.input_schema is None:
            raise
        return None  # as with parameters: beside a given schema, a hint that cannot be read is not
    return check_derived(name, "output_schema", derived)


def validators(
    name: str, given: Checked | None, output: Checked | None, options: ToolOptions
) -> tuple[Validator | None, Validator | None]:
    """Those of a tool's two schemas, as the options want them. Raises SchemaError."""
    made = partial(make_validator, name, factory=options.validator, lazy=options.lazy)
    return made("input_schema", given), made("output_schema", output)


def _input(
    name: str, signature: Signature, options: ToolOptions, sole: Any
) -> tuple[Checked | None, dict[str, Any]]:
    """The schema, and what turns valid arguments into typed ones."""
    if options.input_schema is not None:
        given = check_input(name, options.input_schema)
        _check_accepts(name, signature, given.schema)
        declared: Any = given.schema.get("properties", {})
        parameters = _derived(name, partial(readable, declared), signature.parameters)
        _derived(name, partial(check_types, given.schema), parameters)
        checks: dict[str, Any] = {
            "converters": converters_for(parameters),
            "defaults": _derived(name, defaults_of, parameters),
        }
        if not signature.takes_any:
            checks["accepts"] = frozenset(p.name for p in signature.parameters)
        return given, checks
    if sole is not None:
        made = _derived(name, derive_object, sole)
        return check_input(name, made.schema, derived=True), {"takes_object": made.convert}
    if signature.undocumentable:
        if options.allow_no_schema:
            untyped = [parameter._replace(hint=Any) for parameter in signature.parameters]
            return None, {"defaults": defaults_of(untyped)}
        raise DefinitionError(
            f"tool '{name}' has no schema: {'; '.join(signature.undocumentable)}. Give every "
            "parameter a type hint, pass input_schema=…, or opt out with allow_no_schema=True and "
            f"a no_schema_mode ({', '.join(MODES)})"
        )
    derived = _derived(name, derive_input, signature.parameters)
    given = check_input(name, derived.schema, derived=True)
    return given, {"converters": derived.converters, "defaults": derived.defaults}


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
