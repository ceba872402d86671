"""Reading a Python signature: which parameters the model fills in, and which are injected."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import InitVar, is_dataclass
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from toolcrib.errors import DefinitionError
from toolcrib.schema import Parameter, read_docstring
from toolcrib.schema.annotations import quick_hints
from toolcrib.schema.derive import NO_DEFAULT
from toolcrib.tools.capability import Need, is_context, need_of

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Signature(NamedTuple):
    """`undocumentable` names the parameters that a schema cannot be derived for, and why.

    `takes_any` is True with a `**parameter`: it accepts whatever properties a given schema has.
    """

    parameters: tuple[Parameter, ...]
    needs: tuple[Need, ...]
    context_parameter: str | None
    returns: Any
    description: str
    undocumentable: tuple[str, ...]
    takes_any: bool
    returns_description: str = ""


def read_function(function: Callable[..., Any], frame_locals: Mapping[str, Any]) -> Signature:
    """Raises DefinitionError, naming the function, if its hints cannot be resolved."""
    hints = _hints(function, function.__qualname__, frame_locals)
    documented = read_docstring(function.__doc__)
    read = _split(_signature(function), hints, documented.description, documented.parameters)
    return read._replace(returns_description=documented.returns)


def read_class(cls: type, frame_locals: Mapping[str, Any]) -> Signature:
    """The constructor gives the parameters, `run` the capabilities, the result and the context."""
    run = getattr(cls, "run", None)
    if not inspect.iscoroutinefunction(run):
        raise DefinitionError(f"{cls.__qualname__} needs an `async def run(self, …)`")
    constructor = inspect.getattr_static(cls, "__init__")
    _check_constructed(cls, constructor)
    hints = _hints(_hinted(cls, constructor), cls.__qualname__, frame_locals)
    documented = read_docstring(_class_doc(cls))
    texts = {**read_docstring(constructor.__doc__).parameters, **documented.parameters}
    constructed = _split(_signature(cls), hints, documented.description, texts)
    if constructed.needs or constructed.context_parameter:
        raise DefinitionError(
            f"{cls.__qualname__}: its constructor takes what the model sends; "
            "take capabilities and CallContext as parameters of `run`"
        )
    run_hints = _hints(run, f"{cls.__qualname__}.run", frame_locals)
    running = _split(_without_self(run), run_hints, "", {})
    if running.parameters or running.undocumentable:
        names = [p.name for p in running.parameters] or list(running.undocumentable)
        raise DefinitionError(
            f"{cls.__qualname__}.run takes {', '.join(names)}, which nothing provides; "
            "arguments go to the constructor, capabilities are marked with @capability or Injected"
        )
    return constructed._replace(
        needs=running.needs,
        context_parameter=running.context_parameter,
        returns=running.returns,
        returns_description=read_docstring(run.__doc__).returns or documented.returns,
    )


def sole_object(signature: Signature) -> Any:
    """The hint of the only parameter, where that is a model, a TypedDict or a dataclass."""
    if len(signature.parameters) != 1 or signature.undocumentable:
        return None
    hint = signature.parameters[0].hint
    if not isinstance(hint, type):
        return None
    structured = issubclass(hint, BaseModel) or is_dataclass(hint) or _is_typed_dict(hint)
    return hint if structured else None


def _is_typed_dict(hint: type) -> bool:
    """That of `typing_extensions` too, which is the one that pydantic takes before Python 3.12."""
    return issubclass(hint, dict) and hasattr(hint, "__required_keys__")


def _check_constructed(cls: type, constructor: Any) -> None:
    """Fields without a constructor: `@dataclass` stands above `@tool`, and has not run yet."""
    made_by_new = inspect.getattr_static(cls, "__new__") is not object.__dict__["__new__"]
    if constructor is not object.__init__ or made_by_new:
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
    """What has the hints: a constructor, or the class where that one was generated from its fields.

    The fields of a class are read in the modules that they come from; a generated constructor
    knows only the module of the last class.
    """
    code = getattr(constructor, "__code__", None)
    generated = is_dataclass(cls) and code is not None and code.co_filename == "<string>"
    return cls if generated or issubclass(cls, BaseModel) else constructor


def _signature(thing: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(thing)
    except (ValueError, TypeError):
        name = getattr(thing, "__qualname__", repr(thing))
        raise DefinitionError(f"{name} has no signature that can be read: wrap it") from None


def _split(
    signature: inspect.Signature,
    hints: Mapping[str, Any],
    description: str,
    texts: Mapping[str, str],
) -> Signature:
    parameters: list[Parameter] = []
    needs: list[Need] = []
    context: str | None = None
    undocumentable: list[str] = []
    for name, parameter in signature.parameters.items():
        hint = hints.get(name, inspect.Parameter.empty)
        if parameter.kind in _VARIADIC:
            undocumentable.append(f"{str(parameter).partition(':')[0]} (can be anything)")
        elif (need := need_of(name, hint, parameter.default)) is not None:
            needs.append(need._replace(parameter=_by_name(parameter)))
        elif is_context(hint):
            if context is not None:
                raise DefinitionError(
                    f"{context} and {name} are both the CallContext: take it once"
                )
            context = _by_name(parameter)
        else:
            if hint is inspect.Parameter.empty:
                undocumentable.append(f"{name} (has no type hint)")
                hint = Any
            hint = hint.type if isinstance(hint, InitVar) else hint
            parameters.append(
                Parameter(_by_name(parameter), hint, _default(parameter), texts.get(name, ""))
            )
    return Signature(
        tuple(parameters),
        tuple(needs),
        context,
        hints.get("return", Any),
        description,
        tuple(undocumentable),
        any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values()),
    )


def _by_name(parameter: inspect.Parameter) -> str:
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise DefinitionError(
            f"parameter '{parameter.name}' is positional only, and arguments are passed by name: "
            "remove the '/'"
        )
    return parameter.name


def _default(parameter: inspect.Parameter) -> Any:
    """A pydantic `Field(…)` as default would reach the function as it is, in place of a value."""
    if isinstance(parameter.default, FieldInfo):
        raise DefinitionError(
            f"parameter '{parameter.name}': write Annotated[…, Field(…)] for its type, and a plain "
            "default"
        )
    return NO_DEFAULT if parameter.default is parameter.empty else parameter.default


def _hints(thing: Any, name: str, frame_locals: Mapping[str, Any]) -> dict[str, Any]:
    """Under `from __future__ import annotations` a hint may name a type of the enclosing function.

    For a function defined there such a type goes first, as it does in Python; for a class it
    comes last, since the fields of its bases are read in modules of their own.
    """
    local = inspect.isfunction(thing) and "<locals>" in thing.__qualname__
    if inspect.isfunction(thing) and not hasattr(thing, "__wrapped__"):
        names = dict(frame_locals) if local else {}
        found = quick_hints(thing.__annotations__, thing.__globals__, names)
        if found is not None:
            return found
    try:
        if not local:
            return typing.get_type_hints(thing, include_extras=True)
    except NameError:
        pass
    except (TypeError, SyntaxError, AttributeError) as error:
        raise DefinitionError(f"{name}: its type hints cannot be read ({error})") from None
    try:
        return typing.get_type_hints(
            thing, globalns=_globals(thing), localns=dict(frame_locals), include_extras=True
        )
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise DefinitionError(f"{name}: its type hints cannot be read ({error})") from None


def _globals(thing: Any) -> dict[str, Any]:
    module = sys.modules.get(getattr(thing, "__module__", ""), None)
    found: dict[str, Any] = getattr(thing, "__globals__", None) or vars(module or typing)
    return found


def _without_self(run: Any) -> inspect.Signature:
    signature = inspect.signature(run)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _class_doc(cls: type) -> str | None:
    """`@dataclass` writes the signature where there is no docstring; that documents nothing."""
    doc = cls.__dict__.get("__doc__")
    if doc and is_dataclass(cls) and doc.startswith(f"{cls.__name__}("):
        return None
    return doc
