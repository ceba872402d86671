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
    named, alone = code.co_argcount, code.co_kwonlyargcount
    names, last = code.co_varnames, named + alone
    defaults = function.__defaults__ or ()
    given = (EMPTY,) * (named - len(defaults)) + defaults
    kinds = [POSITIONAL_ONLY] * code.co_posonlyargcount
    kinds += [POSITIONAL_OR_KEYWORD] * (named - len(kinds))
    taken = list(map(SignatureParameter, names[:named], kinds, given))
    if code.co_flags & inspect.CO_VARARGS:
        taken.append(SignatureParameter(names[last], VAR_POSITIONAL, EMPTY))
        last += 1
    by_name = function.__kwdefaults__ or {}
    taken += [
        SignatureParameter(name, KEYWORD_ONLY, by_name.get(name, EMPTY))
        for name in names[named : named + alone]
    ]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        taken.append(SignatureParameter(names[last], VAR_KEYWORD, EMPTY))
    return taken


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
            for parameter, hint in _one_by_one(thing, frame_locals)
            if not isinstance(hint, Exception)
        }


def _all_hints(thing: Any, name: str, frame_locals: Mapping[str, Any]) -> dict[str, Any]:
    is_function = inspect.isfunction(thing)
    local = is_function and "<locals>" in thing.__qualname__
    if is_function and not hasattr(thing, "__wrapped__"):
        found = quick_hints(thing.__annotations__, thing.__globals__, frame_locals if local else {})
        if found is not None:
            return found
    found = _read_by_typing(thing, name, frame_locals, local=local)
    for parameter, hint in found.items():
        if too_deep(hint):
            raise _unreadable(name, _place(parameter), _TOO_DEEP)
    return found


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
        each = _one_by_one(thing, frame_locals)
        first = next(
            (_place(one) for one, hint in each if isinstance(hint, Exception)), "one of them"
        )
        raise _unreadable(name, first, _why(error)) from None


def _unreadable(name: str, where: str, why: str) -> DefinitionError:
    return DefinitionError(
        f"{name}: its type hints cannot be read: {where} {why}; with input_schema=… they need not be"
    )


def _why(error: Exception) -> str:
    if isinstance(error, NameError):
        return f"({error}); the name has to be there at run time, not only under TYPE_CHECKING"
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    said = str(error) if isinstance(error, TypeError | SyntaxError | AttributeError) else ""
    return f"({said or type(error).__name__})"


def _place(parameter: str) -> str:
    return "the return type" if parameter == "return" else f"parameter '{parameter}'"


def _one_by_one(thing: Any, frame_locals: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Read each hint separately; for one that cannot be read, yield its error instead."""
    owners = reversed(thing.__mro__) if isinstance(thing, type) else [inspect.unwrap(thing)]
    for owner in owners:
        for parameter, hint in inspect.get_annotations(owner).items():
            alone = SimpleNamespace(__annotations__={parameter: hint})
            try:
                found = typing.get_type_hints(
                    alone, _globals(owner), dict(frame_locals), include_extras=True
                )
                unusable = RecursionError() if too_deep(found[parameter]) else found[parameter]
                yield parameter, unusable
            except Exception as error:  # noqa: BLE001  a hint is its author's code
                yield parameter, error


def _globals(thing: Any) -> dict[str, Any]:
    module = sys.modules.get(getattr(thing, "__module__", ""), None)
    found: dict[str, Any] = getattr(thing, "__globals__", None) or vars(module or typing)
    return found


_STREAMS = (AsyncIterator, AsyncGenerator, AsyncIterable)
_LISTS_OF_CONTENT = (list, tuple, Sequence)
_LEVELS_OF_CONTENT = 8  # a union member, in a list, in a union, each perhaps Annotated
_PLAIN = frozenset((str, int, float, bool, list, dict, NoneType))


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
    documented = read_docstring(function.__doc__)
    signature = _split(name, parameters_of(function), hints, documented)
    return _streaming(name, signature) if inspect.isasyncgenfunction(function) else signature


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
    hints = read_hints(_hinted(cls, constructor), name, frame_locals, lenient=lenient)
    documented = read_docstring(class_doc(cls))
    texts = {**read_docstring(constructor.__doc__).parameters, **documented.parameters}
    taken = _with_factories(cls, parameters_of(cls))
    constructed = _split(name, taken, hints, documented._replace(parameters=texts))
    if constructed.needs or constructed.context_parameter:
        raise DefinitionError(
            f"{name}: its constructor takes what the model sends; "
            "take capabilities and CallContext as parameters of `run`"
        )
    run_hints = read_hints(run, f"{name}.run", frame_locals)
    running = _split(f"{name}.run", parameters_of(run)[1:], run_hints, read_docstring(run.__doc__))
    if running.parameters or running.undocumentable:
        names = [p.name for p in running.parameters] or list(running.undocumentable)
        raise DefinitionError(
            f"{name}.run takes {', '.join(names)}, which nothing provides; "
            "arguments go to the constructor, capabilities are marked with @capability or Injected"
        )
    if streams:
        running = _streaming(f"{name}.run", running)
    return constructed._replace(
        needs=running.needs,
        context_parameter=running.context_parameter,
        returns=running.returns,
        streams=streams,
        returns_description=running.returns_description or documented.returns,
    )


def _with_factories(cls: type, taken: Sequence[SignatureParameter]) -> list[SignatureParameter]:
    """Return a constructor's parameters, with default factories of dataclass or model fields."""
    made_by: dict[str, Any] = {}
    if is_dataclass(cls):
        made_by = {field.name: field.default_factory for field in fields(cls)}
    for name, info in getattr(cls, "__pydantic_fields__", {}).items():
        made_by[name] = info.default_factory or MISSING
    found = list(taken)
    for at, (name, _, default) in enumerate(taken):
        factory = made_by.get(name, MISSING)
        if factory is not MISSING and default is not EMPTY:
            found[at] = taken[at]._replace(default=Factory(factory))
    return found


def _streaming(name: str, signature: Signature) -> Signature:
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
    found = [structured_hint(arm, level + 1) for arm in inner]
    if all(map(is_, found, inner)):
        return hint
    if origin in (Union, UnionType):
        return Any if Any in found else Union[tuple(found)]  # noqa: UP007  known only at run time
    if origin in _LISTS_OF_CONTENT and Any in found:
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
    found = [(None,) if arm is NoneType else instead_of_content(arm) for arm in inner]
    if origin in (Union, UnionType) and None not in found:
        return tuple(value for values in found for value in values or ())
    is_list = origin in _LISTS_OF_CONTENT and found and all(values == () for values in found)
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
    if constructor is not object.__init__ or _made_by_new(cls):
        return
    bare = [
        name
        for name, hint in inspect.get_annotations(cls).items()
        if not (name.startswith("_") or hasattr(cls, name) or "ClassVar" in str(hint))
    ]
    if bare:
        raise DefinitionError(
            f"{cls.__qualname__}: no constructor takes its fields {', '.join(bare)}; "
            "put @tool above @dataclass"
        )


def _hinted(cls: type, constructor: Any) -> Any:
    """Return what has the hints: the constructor, or the class if it was generated from fields.

    The fields of a class are resolved in the modules that define them. A generated constructor
    knows only the module of the last class.
    """
    if issubclass(cls, BaseModel) or "__is_pydantic_dataclass__" in cls.__dict__:
        return cls
    if constructor is object.__init__ and not (_made_by_new(cls) or hasattr(cls, "__signature__")):
        return constructor
    from_fields = is_dataclass(cls) or issubclass(cls, tuple)
    for made_by in (constructor, cls.__new__):
        code = getattr(made_by, "__code__", None)
        if code is not None and not (from_fields and code.co_filename == "<string>"):
            return made_by
    return cls


def _made_by_new(cls: type) -> bool:
    return inspect.getattr_static(cls, "__new__") is not object.__dict__["__new__"]


def _split(
    name: str,
    taken: Sequence[SignatureParameter],
    hints: Mapping[str, Any],
    documented: DocumentedSignature,
) -> Signature:
    try:
        return _sorted(taken, hints, documented)
    except DefinitionError as error:
        raise DefinitionError(f"{name}: {error}") from None


def _sorted(
    taken: Sequence[SignatureParameter], hints: Mapping[str, Any], documented: DocumentedSignature
) -> Signature:
    texts = documented.parameters
    parameters: list[Parameter] = []
    needs: list[Need] = []
    contexts: list[str] = []
    undocumentable: list[str] = []
    for name, kind, default in taken:
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
            given = _default(name, hint, default)
            text = annotated_text(hint) or texts.get(name, "")
            parameters.append(Parameter(name, hint, given, text))
    if len(contexts) > 1:
        raise DefinitionError(f"{' and '.join(contexts)} are both the CallContext: take it once")
    return Signature(
        tuple(parameters),
        tuple(needs),
        contexts[0] if contexts else None,
        hints.get("return", Any),
        documented.description,
        tuple(undocumentable),
        any(kind is VAR_KEYWORD for _, kind, _ in taken),
        documented.returns,
    )


def _is_plain(hint: Any) -> bool:
    """Return whether a hint consists only of JSON types, which are never injected."""
    kind = hint.__class__
    if kind is type:
        return hint in _PLAIN
    made = kind is UnionType or (kind is GenericAlias and hint.__origin__ in _PLAIN)
    return made and all(map(_is_plain, hint.__args__))


def _check_by_name(name: str, kind: Any) -> None:
    if kind is POSITIONAL_ONLY:
        raise DefinitionError(
            f"parameter '{name}' is positional only, and arguments are passed by name: "
            "remove the '/', or wrap it in a function of your own"
        )


def _default(name: str, hint: Any, default: Any) -> Any:
    """Return a default. A default that only pydantic knows would not reach the function."""
    wrong = is_field(default)
    if default is EMPTY and get_origin(hint) is Annotated:
        wrong = any(is_field(f) and not f.is_required() for f in hint.__metadata__)
    if wrong:
        raise DefinitionError(
            f"parameter '{name}': write Annotated[…, Field(…)] for its type, and a plain "
            "default after it"
        )
    return NO_DEFAULT if default is EMPTY else default
