"""Turn a function, a class (`@tool`, checked at import), a dictionary or the methods of an object into
tools with definitions.

A schema is either derived from the signature or given by the author, never kept twice. Anything
that cannot be registered safely is refused here, with an error that says what to change.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

import msgspec
from pydantic import BaseModel

from toolcrib.errors import DefinitionError, no_such
from toolcrib.schema import Validator, ValidatorFactory, derive_input, derive_output
from toolcrib.schema.derive import (
    NO_DEFAULT,
    Parameter,
    check_types,
    converters_for,
    defaults_of,
    derive_object,
    readable,
    secret_parameters,
)
from toolcrib.schema.guard import schema_text
from toolcrib.tools.build import (
    MODES,
    CheckedSchema,
    ToolOptions,
    build_definition,
    check_derived,
    check_examples,
    check_given,
    check_input,
    check_name,
    make_validator,
    named_arguments,
    with_defaults,
    with_feature,
    with_secrets,
    without_secret_defaults,
)
from toolcrib.tools.capability import interface_name
from toolcrib.tools.component import ATTRIBUTE, Tool, ToolComponent, tool_of
from toolcrib.tools.signature import (
    Signature,
    instead_of_content,
    read_class,
    read_function,
    sole_object,
    structured_hint,
)
from toolcrib.values.definition import (
    ALL,
    All,
    AnnotationOptions,
    Annotations,
    Example,
    HasDefinition,
    ImportedForm,
    NoSchemaMode,
    ToolDefinition,
    examples_of_form,
    own_form,
)
from toolcrib.values.json import JsonObject
from toolcrib.values.typed import check_each, check_type

# Which functions can run in a separate process: those that another Python process can import.
#
# Only the arguments are sent there, as JSON. A function that cannot be found by name there, or that
# needs something from this process, is refused when it is decorated.


def _obstacle(function: Callable[..., Any], signature: Signature) -> str:
    """Say why a function cannot run in a subprocess, and what to do, or return ""."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "it is async, and runs in the event loop; write `def` instead of `async def`"
    if inspect.ismethod(function):
        return "its instance lives in this process; make a tool of a function that creates its own"
    if signature.needs:
        names = ", ".join(interface_name(need.interface) for need in signature.needs)
        return f"{names} is injected, and lives in this process; create it inside the function"
    if not all(part.isidentifier() for part in function.__qualname__.split(".")):
        return "another process cannot find it; define it with `def` at the top level of a module"
    module = sys.modules.get(function.__module__)
    if module is None or (function.__module__ == "__main__" and not hasattr(module, "__file__")):
        return "its module is not in a file that another process could load; put it into one"
    return ""


# What can become a tool: a plain function, a bound method, a class that can be constructed.
#
# Anything else is refused by name, with advice on what to do instead.


def check_function(target: Any) -> None:
    """Raise DefinitionError unless it is a function, or a method with its instance."""
    if not (inspect.isfunction(target) or inspect.ismethod(target)):
        raise DefinitionError(
            f"a tool is made of a function or a class, not of a {_kind(target)}{_advice(target)}"
        )
    name = target.__qualname__
    if inspect.isgeneratorfunction(target):
        raise DefinitionError(
            f"{name} yields: write `async def` to stream its parts, or return a list"
        )
    if inspect.isfunction(target) and _takes_self(target):
        raise DefinitionError(
            f"{name} is a method without its instance: toolset(thing) makes tools of all methods of "
            f"an object, tool(visible=…)(thing.{target.__name__}) makes a tool of this one"
        )


def check_class(cls: type) -> None:
    """Raise DefinitionError for a class that is already a tool, or that makes no instances."""
    name = cls.__qualname__
    existing = cls.__dict__.get(ATTRIBUTE)
    if isinstance(existing, Tool):
        raise DefinitionError(
            f"{name} is already the tool '{existing.definition.name}': to make another tool, decorate "
            "a subclass of it"
        )
    if "get_definition" in cls.__dict__:
        raise DefinitionError(f"{name} has a `get_definition` already: rename it")
    if getattr(cls, "_is_protocol", False):
        raise DefinitionError(f"{name} is a Protocol: decorate a class that implements it")
    run = getattr(cls, "run", None)
    has_async_run = inspect.iscoroutinefunction(run) or inspect.isasyncgenfunction(run)
    if has_async_run and inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise DefinitionError(f"{name} is abstract: decorate a subclass that has {missing}")


def make_component(cls: type, class_tool: Tool[..., Any]) -> None:
    """Make the class a `ToolComponent` with this tool. Raises DefinitionError."""
    try:
        setattr(cls, ATTRIBUTE, class_tool)
        if not issubclass(cls, ToolComponent):
            setattr(cls, "get_definition", classmethod(ToolComponent.get_definition.__func__))  # type: ignore[attr-defined]  # noqa: B010
            ToolComponent.register(cls)
    except (AttributeError, TypeError):
        raise DefinitionError(
            f"{cls.__qualname__} does not let its attributes be set: decorate a subclass of it"
        ) from None


def _takes_self(function: Any) -> bool:
    first = function.__code__.co_varnames[: function.__code__.co_argcount][:1]
    return first == ("self",) and "self" not in function.__annotations__


def _kind(target: Any) -> str:
    kind = type(target).__name__
    function = getattr(target, "func", target)  # a partial
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    if not isinstance(name, str):
        return kind
    module = getattr(function, "__module__", None)
    prefix = f"{module}." if isinstance(module, str) and not isinstance(target, Tool) else ""
    return f"{kind} ({prefix}{name})"


def _advice(target: Any) -> str:
    if isinstance(target, Tool):
        return ": it is already a tool; renamed('…') gives it another name"
    if isinstance(target, staticmethod):
        return ": put @tool below @staticmethod"
    if isinstance(target, classmethod):
        return ": decorate the bound method, as in tool(visible=…)(Class.method)"
    return ": wrap it in a function that has type hints" if callable(target) else ""


P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
_INTERNAL_OPTIONS = {"annotations", "imported", "is_own", "validator"}
_OPTION_NAMES = [name for name in ToolOptions.__struct_fields__ if name not in _INTERNAL_OPTIONS]
_KEYWORDS = [*_OPTION_NAMES, "parameters", *AnnotationOptions.__annotations__]
_COMBINING_KEYWORDS = ("$ref", "allOf", "anyOf", "oneOf", "if")


class ToolDecorator(Protocol):
    """Turns a class into a ToolComponent, still the same class, and a function into a `Tool`."""

    @overload  # a class is callable too; the first matching overload wins
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
    answer: str | Sequence[str] = (),
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

    `visible` names the result fields that UI, logs and audit may show (dotted paths, or `ALL` for
    every field). It has no default, so that nothing is shown by accident. `input_schema` (also
    `parameters`) replaces the schema derived from the signature; hints that cannot be read are then
    ignored. `examples` are pairs of a request and the arguments that answer it. `answer` is the
    sentence with which the embedded model states a result, such as "{expression} is {value}". Of
    several sentences, the first whose values are all present is used. `marks` are the author's own
    annotations, JSON that policies can read (`definition.annotations.marks`). With `lazy` the
    schemas are checked now and compiled at the first call (examples are checked now, which compiles
    the input schema). With `subprocess` a plain function runs in a separate process, which can be
    killed. Raises DefinitionError.
    """
    if target is not None and not isinstance(target, type):
        check_function(target)  # first: a non-function lacks more than an option
    tool_options = _options(options)
    frame_locals = sys._getframe(1).f_locals  # noqa: SLF001  hints may name the caller's own types

    def decorate(target: Any) -> Any:
        if isinstance(target, type):
            return _decorate_class(target, tool_options, frame_locals)
        return make_function_tool(target, tool_options, frame_locals)

    return decorate if target is None else decorate(target)


def _options(keywords: Mapping[str, Any]) -> ToolOptions:
    """Return the options from keywords; those of `AnnotationOptions` are kept together."""
    for name in keywords:
        if name not in _KEYWORDS:
            raise DefinitionError(f"@tool: {no_such('option', name, _KEYWORDS)}")
    option_values = dict(keywords)
    parameters = option_values.pop("parameters", None)
    if parameters is not None:
        if option_values.get("input_schema") is not None:
            raise DefinitionError("@tool: parameters is another name for input_schema; give one")
        option_values["input_schema"] = parameters
    if option_values.get("visible") is None:
        raise DefinitionError(
            "@tool needs visible=, the fields of a result that UI, logs and audit may show (the "
            "model sees all of it): write @tool(visible=ALL), @tool(visible=['total']), or "
            "@tool(visible=[]) for none of them"
        )
    annotations = {
        key: option_values.pop(key) for key in list(option_values) if key not in _OPTION_NAMES
    }
    annotation_options = cast("AnnotationOptions", annotations)
    return ToolOptions(**option_values, annotations=annotation_options, is_own=True)


def make_function_tool(
    function: Callable[..., Any], options: ToolOptions, frame_locals: Mapping[str, Any]
) -> Tool[..., Any]:
    """Return a `Tool` of a plain function. Raises DefinitionError."""
    check_function(function)
    signature = read_function(function, frame_locals, lenient=options.input_schema is not None)
    if options.subprocess and (obstacle := _obstacle(function, signature)):
        raise DefinitionError(
            f"{function.__qualname__}: subprocess=True is not possible: {obstacle}"
        )
    definition, tool_fields = _define(function.__name__, signature, options, sole=None)
    return Tool(
        definition,
        function,
        needs=signature.needs,
        context_parameter=signature.context_parameter,
        blocking=not (signature.streams or inspect.iscoroutinefunction(function)),
        streaming=signature.streams,
        subprocess=options.subprocess,
        **tool_fields,
    )


def _decorate_class(cls: type, options: ToolOptions, frame_locals: Mapping[str, Any]) -> type:
    check_class(cls)
    if options.subprocess:
        raise DefinitionError(
            f"{cls.__qualname__}: subprocess=True is not possible: a class tool runs in the event "
            "loop; make a tool of a plain function"
        )
    signature = read_class(cls, frame_locals, lenient=options.input_schema is not None)
    is_model = issubclass(cls, BaseModel)
    sole = cls if is_model else sole_object(signature)
    definition, tool_fields = _define(cls.__name__, signature, options, sole=sole)
    class_tool: Tool[..., Any] = Tool(
        definition,
        _itself if is_model and "takes_object" in tool_fields else cls,
        original=cls,
        needs=signature.needs,
        context_parameter=signature.context_parameter,
        is_class=True,
        streaming=signature.streams,
        **tool_fields,
    )
    make_component(cls, class_tool)
    return cls


def _itself(instance: Any) -> Any:
    """Return the model itself, whose arguments make the object that runs."""
    return instance


def _define(
    default_name: str, signature: Signature, options: ToolOptions, sole: Any
) -> tuple[ToolDefinition, dict[str, Any]]:
    name = check_name(default_name if options.name is None else options.name)
    checked_input, tool_fields = _input(name, signature, options, sole)
    if checked_input is not None and checked_input.derived:
        checked_input = without_secret_defaults(name, checked_input, options.secret)
    checked_output = _output(name, signature, options)
    validator_pair = validators(name, checked_input, checked_output, options)
    tool_fields["validator"], tool_fields["output_validator"] = validator_pair
    if checked_output is None and options.output_schema is None:
        tool_fields["instead"] = instead_of_content(signature.returns)
    if signature.streams:
        options = with_feature(options, "streaming")
    definition = build_definition(
        name, signature.description, checked_input, checked_output, options
    )
    definition = with_secrets(
        definition, checked_input, secret_parameters(_sent_parameters(signature, sole))
    )
    definition = with_defaults(definition, checked_input, tool_fields.get("defaults", {}))
    check_examples(definition, tool_fields["validator"])
    return definition, tool_fields


def _sent_parameters(signature: Signature, sole: Any) -> Sequence[Parameter]:
    """Return the parameters under the names that are sent; for a model, these are its fields."""
    if not (isinstance(sole, type) and issubclass(sole, BaseModel)):
        return signature.parameters
    return [
        Parameter(
            alias if isinstance(alias := field.validation_alias, str) else name, field.annotation
        )
        for name, field in sole.model_fields.items()
    ]


def _output(name: str, signature: Signature, options: ToolOptions) -> CheckedSchema | None:
    if options.output_schema is not None:
        return check_given(name, "output_schema", options.output_schema)
    description = signature.returns_description
    try:
        returns = _derived(name, structured_hint, signature.returns)
        derived = _derived(name, lambda hint: derive_output(hint, description), returns)
    except DefinitionError:
        if options.input_schema is None:
            raise
        return None  # unreadable hints are ignored if a schema is given
    return check_derived(name, "output_schema", derived)


def validators(
    name: str,
    checked_input: CheckedSchema | None,
    checked_output: CheckedSchema | None,
    options: ToolOptions,
) -> tuple[Validator | None, Validator | None]:
    """Make the validators of a tool's two schemas, as the options ask. Raises SchemaError."""
    make = partial(make_validator, name, factory=options.validator, lazy=options.lazy)
    return make("input_schema", checked_input), make("output_schema", checked_output)


def _input(
    name: str, signature: Signature, options: ToolOptions, sole: Any
) -> tuple[CheckedSchema | None, dict[str, Any]]:
    """Return the input schema, and what turns valid arguments into typed ones."""
    if options.input_schema is not None:
        checked_input = check_input(name, options.input_schema)
        _check_accepts(name, signature, checked_input.schema)
        properties: Any = checked_input.schema.get("properties", {})
        parameters = _derived(name, partial(readable, properties), signature.parameters)
        _derived(name, partial(check_types, checked_input.schema), parameters)
        tool_fields: dict[str, Any] = {
            "converters": converters_for(parameters),
            "defaults": _derived(name, defaults_of, parameters),
        }
        tool_fields["requires"] = _required_parameters(signature) - _required_properties(
            checked_input.schema
        )
        return checked_input, tool_fields | _accepted_names(
            signature, checked_input.schema, imported=options.imported
        )
    if sole is not None:
        derived_object = _derived(name, derive_object, sole)
        return check_input(name, derived_object.schema, derived=True), {
            "takes_object": derived_object.convert
        }
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
    checked_input = check_input(name, derived.schema, derived=True)
    return checked_input, {"converters": derived.converters, "defaults": derived.defaults}


def _derived(name: str, derive: Callable[[Any], R], of: Any) -> R:
    try:
        return derive(of)
    except DefinitionError as error:
        raise DefinitionError(f"tool '{name}': {error}") from None


def _accepted_names(signature: Signature, schema: JsonObject, *, imported: bool) -> dict[str, Any]:
    """Return which names the target accepts beyond a given schema, as arguments for `Tool`."""
    parameter_names = frozenset(parameter.name for parameter in signature.parameters)
    # the server of a tool that only forwards checks what it is sent
    forwards = imported and signature.takes_any and not parameter_names
    declared = None if forwards else named_arguments(schema)
    if declared is None:
        return {} if signature.takes_any else {"accepts": parameter_names}
    names, matching = declared
    if signature.takes_any:
        return {"accepts": names, "accepts_matching": matching}
    undeclared = parameter_names - names
    return {
        "accepts": parameter_names
        - {name for name in undeclared if not (matching and matching.is_valid(name))}
    }


def _required_parameters(signature: Signature) -> frozenset[str]:
    return frozenset(p.name for p in signature.parameters if p.default is NO_DEFAULT)


def _required_properties(schema: JsonObject) -> frozenset[str]:
    """Return the properties that a schema itself requires."""
    required = schema.get("required", [])
    names = required if isinstance(required, list | tuple) else ()
    return frozenset(name for name in names if isinstance(name, str))


def _check_accepts(name: str, signature: Signature, schema: JsonObject) -> None:
    """Check that a given schema and the signature name and require the same parameters.

    Declarations and requirements in combined schemas are not examined.
    """
    properties = schema.get("properties", {})
    declared = set(properties) if isinstance(properties, dict) else set()
    injected = {need.parameter for need in signature.needs} | {signature.context_parameter}
    if declared & injected:
        raise DefinitionError(
            f"tool '{name}': input_schema declares '{min(declared & injected)}', but the parameter of "
            "that name is injected, and no model sends it: rename one of the two"
        )
    accepted = declared if signature.takes_any else {p.name for p in signature.parameters}
    required = set(_required_parameters(signature))
    if any(keyword in schema for keyword in _COMBINING_KEYWORDS):
        required = set()
    mismatches = []
    if untaken := sorted(declared - accepted):
        mismatches.append(
            f"input_schema declares {', '.join(untaken)}, which the signature does not take (add the "
            "parameter, take **arguments, or leave it out of the schema)"
        )
    if undeclared := sorted(required - declared):
        mismatches.append(
            f"the signature requires {', '.join(undeclared)}, which input_schema does not declare "
            "(declare it there, or give it a default)"
        )
    if mismatches:
        raise DefinitionError(f"tool '{name}': {'; '.join(mismatches)}")
    optional = sorted(required - _required_properties(schema))
    if optional:
        raise DefinitionError(
            f"tool '{name}': input_schema does not require {', '.join(optional)}, which the "
            "signature does: give it a default, or require it"
        )


# Convert between tools and dictionaries: `{name, description, input_schema, output_schema?}`.
#
# The forms of a tool in requests to OpenAI (Chat Completions and Responses), Anthropic and Gemini
# are accepted, too, so that nobody has to write a tool twice. So is MCP's, as imported, because it
# comes from a server. Members about the request (Anthropic's `cache_control`) are dropped.

_KEYS = ("name", "description", "input_schema", "output_schema")
# The names that providers and MCP use.
_OUR_KEYS = {
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

    Raises DefinitionError, naming the parameter, for anything that JSON Schema cannot express.
    """
    frame_locals = sys._getframe(1).f_locals  # noqa: SLF001  hints may name the caller's own types
    function_tool = make_function_tool(function, ToolOptions(visible=()), frame_locals)
    return function_tool.definition.to_dict()


def tool_from_dict(
    form: Mapping[str, Any],
    handlers: Mapping[str, Callable[..., Any]],
    visible: Sequence[str] | All | Mapping[str, Sequence[str] | All] | None,
    *,
    marks: Mapping[str, AnnotationOptions] | None = None,
    factory: ValidatorFactory | None = None,
    lazy: bool = False,
    frame_locals: Mapping[str, Any] | None = None,
) -> Tool[..., Any]:
    """Return the tool for a dictionary.

    `marks` are the annotations of tools by name, and `visible` may be by name, too. An imported
    tool (`ImportedForm`) also needs approval and taints the run, and is at least as strict as it
    claims. `factory` makes its validators, in place of the default; with `lazy` at their first use.
    `frame_locals` holds types that the hints of handlers may name in addition to those of their
    modules.

    Raises DefinitionError, naming the definition, for unknown keys, bad names, bad schemas.
    """
    if not isinstance(form, Mapping):
        raise DefinitionError(f"a definition is a dictionary, not a {type(form).__name__}")
    form = own_form(form)
    name = _checked_keys(form)
    stated: AnnotationOptions = {"strict": form["strict"]} if "strict" in form else {}
    claimed = form.strictness() if isinstance(form, ImportedForm) else {}
    options = ToolOptions(
        visible=visible.get(name) if isinstance(visible, Mapping) else visible,
        name=name,
        description=form.get("description"),
        input_schema=form.get("input_schema"),
        output_schema=form.get("output_schema"),
        examples=examples_of_form(form),
        lazy=lazy,
        validator=factory,
        annotations={**stated, **(marks or {}).get(name, {}), **claimed},
        imported=isinstance(form, ImportedForm),
    )
    if options.input_schema is not None and name in handlers:
        new_tool = make_function_tool(handlers[name], options, frame_locals or {})
    else:
        new_tool = _without_code(name, options)
    if not isinstance(form, ImportedForm):
        return new_tool
    return new_tool.brought(_as_imported(form))


def _without_code(name: str, options: ToolOptions) -> Tool[..., Any]:
    checked_input = (
        None if options.input_schema is None else check_input(name, options.input_schema)
    )
    checked_output = check_given(name, "output_schema", options.output_schema)
    validator, output_validator = validators(name, checked_input, checked_output, options)
    definition = build_definition(name, "", checked_input, checked_output, options)
    check_examples(definition, validator)
    return Tool(definition, None, validator=validator, output_validator=output_validator)


def _as_imported(form: ImportedForm) -> ToolDefinition:
    """Return the definition as imported, with its claims and nothing that was added here."""
    input_schema, output_schema = form.get("input_schema"), form.get("output_schema")
    return ToolDefinition(
        name=form["name"],
        description=form.get("description") or "",
        input_schema_json=None if input_schema is None else schema_text(input_schema),
        output_schema_json=None if output_schema is None else schema_text(output_schema),
        examples=tuple(
            Example(request, schema_text(dict(arguments)))
            for request, arguments in examples_of_form(form)
        ),
        annotations=msgspec.convert(form.claims(), Annotations),
        strict=form.get("strict"),
    )


def _checked_keys(form: Mapping[str, Any]) -> str:
    """Return the name, after checking that all keys are known and have values of the right type."""
    if "name" not in form:
        actual = ", ".join(map(str, form))[:80] or "nothing"
        raise DefinitionError(
            f"a definition has no name; it has {actual}; known: {', '.join(_KEYS)}"
        )
    name = check_name(form["name"])
    known_keys = (*_KEYS, "strict", "input_examples")
    unknown = sorted(
        (key for key in form if key not in known_keys), key=lambda key: key not in _OUR_KEYS
    )
    if unknown:
        our_key = _OUR_KEYS.get(unknown[0]) if isinstance(unknown[0], str) else None
        hint = f" (it is called {our_key} here)" if our_key else ""
        raise DefinitionError(
            f"tool '{name}': unknown key {unknown[0]!r:.80}; known: {', '.join(_KEYS)}{hint}"
        )
    for key, expected_type in (
        ("description", str),
        ("input_schema", dict),
        ("output_schema", dict),
    ):
        if form.get(key) is not None and not isinstance(form[key], expected_type):
            actual = type(form[key]).__name__
            raise DefinitionError(
                f"tool '{name}': {key} must be a {expected_type.__name__}, not {actual}"
            )
    return name


# Make tools of undecorated code: plain functions in a list, and the methods of one object.
#
# Rule: only the model sees the results of a plain function, until its author declares what is
# visible.

_NOTHING_SHOWN = ToolOptions(visible=(), is_own=True)


def plain_tool(thing: object) -> Tool[..., Any] | None:
    """Return the tool of a plain function or of a bound method, or None for anything else.

    Raises DefinitionError.
    """
    if not inspect.isroutine(thing) or isinstance(getattr(thing, "__wrapped__", None), Tool):
        return None
    return make_function_tool(thing, _NOTHING_SHOWN, {})


def toolset(
    obj: object,
    *,
    prefix: str = "",
    only: Collection[str] = (),
    visible: Sequence[str] | All | Mapping[str, Sequence[str] | All] = (),
    **annotations: Unpack[AnnotationOptions],
) -> list[Tool[..., Any]]:
    """Return the tools of an object: its public methods, or `only` the named ones, sorted by name.

    A tool is named `prefix` plus the name of the method. `visible` says which result fields UI,
    logs and audit may show, for all methods or, in a dictionary, by method name. By default none
    are shown. `annotations` are those of `@tool`, and apply to all methods. Raises DefinitionError
    for a method that cannot be a tool (it has no docstring, or a parameter without a hint), and for
    a name that no method has.
    """
    check_type("prefix", prefix, str, "a str, such as 'shop_'")
    only = check_each("only", only, str, "a list of names of methods")
    _check_possible(obj, annotations)
    methods = dict(_methods(obj))
    class_name = type(obj).__name__
    visible_by_name = visible if isinstance(visible, Mapping) else {}
    for name in (*only, *visible_by_name):
        if name not in methods:
            raise DefinitionError(f"toolset({class_name}): {no_such('method', name, methods)}")
    if not methods:
        raise DefinitionError(f"toolset({class_name}): it has no public methods")
    tools = []
    for name, method in methods.items():
        if only and name not in only:
            continue
        visible_paths = visible_by_name.get(name, ()) if isinstance(visible, Mapping) else visible
        options = ToolOptions(
            visible=visible_paths, name=prefix + name, annotations=annotations, is_own=True
        )
        try:
            tools.append(make_function_tool(method, options, {}))
        except DefinitionError as error:
            raise DefinitionError(
                f"toolset({class_name}): {error}; to leave a method out, name the others: only=[…]"
            ) from None
    return tools


def _check_possible(obj: object, options: Mapping[str, object]) -> None:
    """Raise DefinitionError for an object without usable methods, and for an unknown option."""
    if isinstance(obj, type):
        name = obj.__name__
        raise DefinitionError(
            f"toolset({name}): it takes an object of the class: toolset({name}(…))"
        )
    if isinstance(obj, ModuleType):
        raise DefinitionError(
            f"toolset({obj.__name__}): a module has no methods; give its functions in a list"
        )
    if "subprocess" in options:
        raise DefinitionError(
            "toolset: subprocess= is not possible: an object lives in this process; make a tool of a "
            "function at the top of a module: @tool(visible=…, subprocess=True)"
        )
    for name in options:
        if name not in AnnotationOptions.__annotations__:
            known = ("prefix", "only", "visible", *AnnotationOptions.__annotations__)
            raise DefinitionError(
                f"toolset({type(obj).__name__}): {no_such('option', name, known)}"
            )


def _methods(obj: object) -> Iterator[tuple[str, Any]]:
    """Yield the public methods, without evaluating properties."""
    for name, member in inspect.getmembers_static(type(obj)):
        is_method = inspect.isfunction(member) or isinstance(member, classmethod | staticmethod)
        if is_method and not name.startswith("_"):
            yield name, getattr(obj, name)
