"""Read a Python signature: which parameters the model fills in, and which are injected."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import MISSING, InitVar, fields, is_dataclass
from operator import is_
from types import FunctionType, GenericAlias, NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel

from toolcrib.errors import DefinitionError
from toolcrib.schema import Parameter, read_docstring
from toolcrib.schema.derive import NO_DEFAULT, Factory
from toolcrib.schema.derive.hints import MAX_LEVELS, annotated_text, quick_hints, too_deep
from toolcrib.schema.derive.plain import is_field
from toolcrib.schema.docstring import DocumentedSignature, class_doc
from toolcrib.tools.capability import Need, is_context, need_of
from toolcrib.values.content import NO_TEXT, ToolContent
from toolcrib.values.json import JsonValue

# Read the parameters of a function from its code object, or else with `inspect`.
#
# A plain function has names, kinds and defaults in its code object. `inspect.signature` reads them
# there too, but takes four times as long for details that are not needed here.

EMPTY: Any = inspect.Parameter.empty
POSITIONAL_ONLY: Any = inspect.Parameter.POSITIONAL_ONLY
POSITIONAL_OR_KEYWORD: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
VAR_POSITIONAL: Any = inspect.Parameter.VAR_POSITIONAL
KEYWORD_ONLY: Any = inspect.Parameter.KEYWORD_ONLY
VAR_KEYWORD: Any = inspect.Parameter.VAR_KEYWORD


class SignatureParameter(NamedTuple):
    """One parameter; `kind` and the `default` EMPTY are those of `inspect.Parameter`."""

    name: str
    kind: Any
    default: Any


def parameters_of(thing: Any) -> list[SignatureParameter]:
    """Return the parameters in order. Raises DefinitionError if no signature can be read."""
    if thing.__class__ is FunctionType and not thing.__dict__:  # not wrapped, no attributes
        return _of_code(thing)
    try:
        signature = inspect.signature(thing)
    except (ValueError, TypeError):
        name = getattr(thing, "__qualname__", repr(thing))
        raise DefinitionError(
            f"{name} has no signature that can be read: wrap it in a function"
        ) from None
    return [SignatureParameter(p.name, p.kind, p.default) for p in signature.parameters.values()]


def _of_code(function: Any) -> list[SignatureParameter]:
    code = function.__code__
    positional_count, keyword_only_count = code.co_argcount, code.co_kwonlyargcount
    names, variadic_index = code.co_varnames, positional_count + keyword_only_count
    defaults = function.__defaults__ or ()
    default_values = (EMPTY,) * (positional_count - len(defaults)) + defaults
    kinds = [POSITIONAL_ONLY] * code.co_posonlyargcount
    kinds += [POSITIONAL_OR_KEYWORD] * (positional_count - len(kinds))
    parameters = list(map(SignatureParameter, names[:positional_count], kinds, default_values))
    if code.co_flags & inspect.CO_VARARGS:
        parameters.append(SignatureParameter(names[variadic_index], VAR_POSITIONAL, EMPTY))
        variadic_index += 1
    keyword_defaults = function.__kwdefaults__ or {}
    parameters += [
        SignatureParameter(name, KEYWORD_ONLY, keyword_defaults.get(name, EMPTY))
        for name in names[positional_count : positional_count + keyword_only_count]
    ]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parameters.append(SignatureParameter(names[variadic_index], VAR_KEYWORD, EMPTY))
    return parameters


# Resolve the type hints of a function or class, wherever they are written.
#
# Under `from __future__ import annotations` a hint may name a type of the enclosing function. For a
# function defined there such a type takes precedence, as in Python. For a class it comes last,
# because the fields of its bases are resolved in their own modules.

_TOO_DEEP = f"(it is nested deeper than {MAX_LEVELS})"


def read_hints(
    thing: Any, name: str, frame_locals: Mapping[str, Any], *, lenient: bool = False
) -> dict[str, Any]:
    """Return the hints by parameter, and `return`. Raises DefinitionError naming `name` and the
    parameter.

    If `lenient`, return only the hints that can be read, each tried separately.
    """
    try:
        return _all_hints(thing, name, frame_locals)
    except DefinitionError:
        if not lenient:
            raise
        return {
            parameter: hint
            for parameter, hint in _separate_hints(thing, frame_locals)
            if not isinstance(hint, Exception)
        }


def _all_hints(thing: Any, name: str, frame_locals: Mapping[str, Any]) -> dict[str, Any]:
    is_function = inspect.isfunction(thing)
    local = is_function and "<locals>" in thing.__qualname__
    if is_function and not hasattr(thing, "__wrapped__"):
        hints = quick_hints(thing.__annotations__, thing.__globals__, frame_locals if local else {})
        if hints is not None:
            return hints
    hints = _read_by_typing(thing, name, frame_locals, local=local)
    for parameter, hint in hints.items():
        if too_deep(hint):
            raise _unreadable(name, _parameter_label(parameter), _TOO_DEEP)
    return hints


def _read_by_typing(
    thing: Any, name: str, frame_locals: Mapping[str, Any], *, local: bool
) -> dict[str, Any]:
    try:
        if not local:
            return typing.get_type_hints(thing, include_extras=True)
    except Exception:  # noqa: BLE001, S110  a hint is its author's code; tried again below
        pass
    try:
        return typing.get_type_hints(
            thing, globalns=_globals(thing), localns=dict(frame_locals), include_extras=True
        )
    except Exception as error:  # noqa: BLE001  likewise
        hints_or_errors = _separate_hints(thing, frame_locals)
        first_unreadable = next(
            (
                _parameter_label(parameter)
                for parameter, hint in hints_or_errors
                if isinstance(hint, Exception)
            ),
            "one of them",
        )
        raise _unreadable(name, first_unreadable, _reason(error)) from None


def _unreadable(name: str, where: str, reason: str) -> DefinitionError:
    return DefinitionError(
        f"{name}: its type hints cannot be read: {where} {reason}; with input_schema=… they need not be"
    )


def _reason(error: Exception) -> str:
    if isinstance(error, NameError):
        return f"({error}); the name has to be there at run time, not only under TYPE_CHECKING"
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    message = str(error) if isinstance(error, TypeError | SyntaxError | AttributeError) else ""
    return f"({message or type(error).__name__})"


def _parameter_label(parameter: str) -> str:
    return "the return type" if parameter == "return" else f"parameter '{parameter}'"


def _separate_hints(thing: Any, frame_locals: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Read each hint separately; for one that cannot be read, yield its error instead."""
    owners = reversed(thing.__mro__) if isinstance(thing, type) else [inspect.unwrap(thing)]
    for owner in owners:
        for parameter, hint in inspect.get_annotations(owner).items():
            holder = SimpleNamespace(__annotations__={parameter: hint})
            try:
                hints = typing.get_type_hints(
                    holder, _globals(owner), dict(frame_locals), include_extras=True
                )
                hint_or_error = RecursionError() if too_deep(hints[parameter]) else hints[parameter]
                yield parameter, hint_or_error
            except Exception as error:  # noqa: BLE001  a hint is its author's code
                yield parameter, error


def _globals(thing: Any) -> dict[str, Any]:
    module = sys.modules.get(getattr(thing, "__module__", ""), None)
    namespace: dict[str, Any] = getattr(thing, "__globals__", None) or vars(module or typing)
    return namespace


_STREAMS = (AsyncIterator, AsyncGenerator, AsyncIterable)
_LISTS_OF_CONTENT = (list, tuple, Sequence)
_LEVELS_OF_CONTENT = 8  # a union member, in a list, in a union, each perhaps Annotated
_JSON_TYPES = frozenset((str, int, float, bool, list, dict, NoneType))


class Signature(NamedTuple):
    """The parameters and hints of a function or class.

    `undocumentable` names the parameters for which no schema can be derived, and why. `takes_any`
    is True with a `**parameter`, which accepts whatever properties a given schema has. `streams` is
    True for an async generator; `returns` is then the hint of one part.
    """

    parameters: tuple[Parameter, ...]
    needs: tuple[Need, ...]
    context_parameter: str | None
    returns: Any
    description: str
    undocumentable: tuple[str, ...]
    takes_any: bool
    returns_description: str = ""
    streams: bool = False


def read_function(
    function: Callable[..., Any], frame_locals: Mapping[str, Any], *, lenient: bool = False
) -> Signature:
    """Read a function. Raises DefinitionError, naming the function and the parameter, for
    unreadable hints.

    If `lenient`, because a schema was given, a hint that cannot be read is ignored.
    """
    name = function.__qualname__
    hints = read_hints(function, name, frame_locals, lenient=lenient)
    docstring = read_docstring(function.__doc__)
    signature = _signature_of(name, parameters_of(function), hints, docstring)
    return (
        _streaming_signature(name, signature) if inspect.isasyncgenfunction(function) else signature
    )


def read_class(cls: type, frame_locals: Mapping[str, Any], *, lenient: bool = False) -> Signature:
    """Read a class: parameters from its constructor; capabilities, result, context from `run`."""
    name, run = cls.__qualname__, getattr(cls, "run", None)
    streams = inspect.isasyncgenfunction(run)
    if not (streams or inspect.iscoroutinefunction(run)):
        raise DefinitionError(
            f"{name} needs an `async def run(self, …)`; toolset({name}(…)) makes tools of its methods"
        )
    constructor = inspect.getattr_static(cls, "__init__")
    _check_constructed(cls, constructor)
    hints = read_hints(_owner_of_hints(cls, constructor), name, frame_locals, lenient=lenient)
    docstring = read_docstring(class_doc(cls))
    texts = {**read_docstring(constructor.__doc__).parameters, **docstring.parameters}
    constructor_parameters = _with_factories(cls, parameters_of(cls))
    constructor_signature = _signature_of(
        name, constructor_parameters, hints, docstring._replace(parameters=texts)
    )
    if constructor_signature.needs or constructor_signature.context_parameter:
        raise DefinitionError(
            f"{name}: its constructor takes what the model sends; "
            "take capabilities and CallContext as parameters of `run`"
        )
    run_hints = read_hints(run, f"{name}.run", frame_locals)
    run_signature = _signature_of(
        f"{name}.run", parameters_of(run)[1:], run_hints, read_docstring(run.__doc__)
    )
    if run_signature.parameters or run_signature.undocumentable:
        names = [p.name for p in run_signature.parameters] or list(run_signature.undocumentable)
        raise DefinitionError(
            f"{name}.run takes {', '.join(names)}, which nothing provides; "
            "arguments go to the constructor, capabilities are marked with @capability or Injected"
        )
    if streams:
        run_signature = _streaming_signature(f"{name}.run", run_signature)
    return constructor_signature._replace(
        needs=run_signature.needs,
        context_parameter=run_signature.context_parameter,
        returns=run_signature.returns,
        streams=streams,
        returns_description=run_signature.returns_description or docstring.returns,
    )


def _with_factories(
    cls: type, parameters: Sequence[SignatureParameter]
) -> list[SignatureParameter]:
    """Return a constructor's parameters, with default factories of dataclass or model fields."""
    factories: dict[str, Any] = {}
    if is_dataclass(cls):
        factories = {field.name: field.default_factory for field in fields(cls)}
    for name, info in getattr(cls, "__pydantic_fields__", {}).items():
        factories[name] = info.default_factory or MISSING
    replaced = list(parameters)
    for index, (name, _, default) in enumerate(parameters):
        factory = factories.get(name, MISSING)
        if factory is not MISSING and default is not EMPTY:
            replaced[index] = parameters[index]._replace(default=Factory(factory))
    return replaced


def _streaming_signature(name: str, signature: Signature) -> Signature:
    """Return an async generator's signature, whose result is one part. Raises DefinitionError for
    other hints."""
    hint = signature.returns
    if hint is not Any:
        if (get_origin(hint) or hint) not in _STREAMS:
            raise DefinitionError(
                f"{name} yields: its return type must be AsyncIterator[…] of its parts"
            )
        hint = get_args(hint)[0] if get_args(hint) else Any
    return signature._replace(returns=hint, streams=True)


def structured_hint(hint: Any, level: int = 0) -> Any:
    """Return the part of a return hint that describes the structured value; Any if it is only content.

    Raises DefinitionError for content inside a value.
    """
    origin, inner = get_origin(hint), [arm for arm in get_args(hint) if arm is not Ellipsis]
    if origin is ToolContent:
        return inner[0]
    if hint is ToolContent or hint in NO_TEXT:
        return Any
    if origin is Annotated:
        bare = structured_hint(inner[0], level)
        return hint if bare is inner[0] else bare
    if level > _LEVELS_OF_CONTENT:
        return hint
    structured = [structured_hint(arm, level + 1) for arm in inner]
    if all(map(is_, structured, inner)):
        return hint
    if origin in (Union, UnionType):
        return Any if Any in structured else Union[tuple(structured)]  # noqa: UP007  known only at run time
    if origin in _LISTS_OF_CONTENT and Any in structured:
        return Any
    raise DefinitionError(
        "the return type has content inside a value: return content alone, in a list, or next to a "
        "value, as ToolContent(value, parts=[…])"
    )


def instead_of_content(hint: Any) -> tuple[JsonValue, ...] | None:
    """Return the JSON values that may stand in for content under this hint, or None.

    There are none for `Image`, null for `Image | None`, and an empty list for `list[Image]`.
    """
    origin, inner = get_origin(hint), [arm for arm in get_args(hint) if arm is not Ellipsis]
    if hint is ToolContent or hint in NO_TEXT:
        return ()
    if origin is Annotated:
        return instead_of_content(inner[0])
    replacements = [(None,) if arm is NoneType else instead_of_content(arm) for arm in inner]
    if origin in (Union, UnionType) and None not in replacements:
        return tuple(value for values in replacements for value in values or ())
    is_list = (
        origin in _LISTS_OF_CONTENT
        and replacements
        and all(values == () for values in replacements)
    )
    return ([],) if is_list else None


def sole_object(signature: Signature) -> Any:
    """Return the hint of the only parameter if it is a model, a TypedDict or a dataclass."""
    if len(signature.parameters) != 1 or signature.undocumentable:
        return None
    hint = signature.parameters[0].hint
    if not isinstance(hint, type):
        return None
    # a TypedDict may be one of `typing_extensions` (before Python 3.12)
    is_typed_dict = issubclass(hint, dict) and hasattr(hint, "__required_keys__")
    return hint if issubclass(hint, BaseModel) or is_dataclass(hint) or is_typed_dict else None


def _check_constructed(cls: type, constructor: Any) -> None:
    """Raise DefinitionError for fields without a constructor: `@dataclass` has not run yet."""
    if constructor is not object.__init__ or _has_own_new(cls):
        return
    unassigned = [
        name
        for name, hint in inspect.get_annotations(cls).items()
        if not (name.startswith("_") or hasattr(cls, name) or "ClassVar" in str(hint))
    ]
    if unassigned:
        raise DefinitionError(
            f"{cls.__qualname__}: no constructor takes its fields {', '.join(unassigned)}; "
            "put @tool above @dataclass"
        )


def _owner_of_hints(cls: type, constructor: Any) -> Any:
    """Return what has the hints: the constructor, or the class if it was generated from fields.

    The fields of a class are resolved in the modules that define them. A generated constructor
    knows only the module of the last class.
    """
    if issubclass(cls, BaseModel) or "__is_pydantic_dataclass__" in cls.__dict__:
        return cls
    if constructor is object.__init__ and not (_has_own_new(cls) or hasattr(cls, "__signature__")):
        return constructor
    from_fields = is_dataclass(cls) or issubclass(cls, tuple)
    for candidate in (constructor, cls.__new__):
        code = getattr(candidate, "__code__", None)
        if code is not None and not (from_fields and code.co_filename == "<string>"):
            return candidate
    return cls


def _has_own_new(cls: type) -> bool:
    return inspect.getattr_static(cls, "__new__") is not object.__dict__["__new__"]


def _signature_of(
    name: str,
    parameters: Sequence[SignatureParameter],
    hints: Mapping[str, Any],
    docstring: DocumentedSignature,
) -> Signature:
    try:
        return _classified(parameters, hints, docstring)
    except DefinitionError as error:
        raise DefinitionError(f"{name}: {error}") from None


def _classified(
    signature_parameters: Sequence[SignatureParameter],
    hints: Mapping[str, Any],
    docstring: DocumentedSignature,
) -> Signature:
    texts = docstring.parameters
    parameters: list[Parameter] = []
    needs: list[Need] = []
    contexts: list[str] = []
    undocumentable: list[str] = []
    for name, kind, default in signature_parameters:
        hint = hints.get(name, EMPTY)
        if kind is VAR_POSITIONAL or kind is VAR_KEYWORD:
            undocumentable.append(
                f"*{name} (arguments are passed by name: take a list, {name}: list[…])"
                if kind is VAR_POSITIONAL
                else f"**{name} (can be anything)"
            )
            continue
        _check_by_name(name, kind)
        plain = _is_plain(hint)
        if not plain and (need := need_of(name, hint, default)) is not None:
            needs.append(need)
        elif not plain and is_context(hint):
            contexts.append(name)
        else:
            if hint is EMPTY:
                undocumentable.append(f"{name} (has no type hint)")
                hint = Any
            hint = hint.type if isinstance(hint, InitVar) else hint
            default_value = _default(name, hint, default)
            text = annotated_text(hint) or texts.get(name, "")
            parameters.append(Parameter(name, hint, default_value, text))
    if len(contexts) > 1:
        raise DefinitionError(f"{' and '.join(contexts)} are both the CallContext: take it once")
    return Signature(
        tuple(parameters),
        tuple(needs),
        contexts[0] if contexts else None,
        hints.get("return", Any),
        docstring.description,
        tuple(undocumentable),
        any(kind is VAR_KEYWORD for _, kind, _ in signature_parameters),
        docstring.returns,
    )


def _is_plain(hint: Any) -> bool:
    """Return whether a hint consists only of JSON types, which are never injected."""
    kind = hint.__class__
    if kind is type:
        return hint in _JSON_TYPES
    is_composed = kind is UnionType or (kind is GenericAlias and hint.__origin__ in _JSON_TYPES)
    return is_composed and all(map(_is_plain, hint.__args__))


def _check_by_name(name: str, kind: Any) -> None:
    if kind is POSITIONAL_ONLY:
        raise DefinitionError(
            f"parameter '{name}' is positional only, and arguments are passed by name: "
            "remove the '/', or wrap it in a function of your own"
        )


def _default(name: str, hint: Any, default: Any) -> Any:
    """Return a default. A default that only pydantic knows would not reach the function."""
    is_field_default = is_field(default)
    if default is EMPTY and get_origin(hint) is Annotated:
        is_field_default = any(
            is_field(extra) and not extra.is_required() for extra in hint.__metadata__
        )
    if is_field_default:
        raise DefinitionError(
            f"parameter '{name}': write Annotated[…, Field(…)] for its type, and a plain "
            "default after it"
        )
    return NO_DEFAULT if default is EMPTY else default
