"""Reading a Python signature: which parameters the model fills in, and which are injected."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, NamedTuple

from pydantic import BaseModel

from toolcrib.errors import DefinitionError
from toolcrib.schema import Parameter, read_docstring
from toolcrib.schema.derive import NO_DEFAULT
from toolcrib.tools.capability import Need, interface_of, is_context

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Signature(NamedTuple):
    """`undocumentable` names the parameters that a schema cannot be derived for, and why."""

    parameters: tuple[Parameter, ...]
    needs: tuple[Need, ...]
    context_parameter: str | None
    returns: Any
    description: str
    undocumentable: tuple[str, ...]


def read_function(function: Callable[..., Any], frame_locals: Mapping[str, Any]) -> Signature:
    """Raises DefinitionError, naming the function, if its hints cannot be resolved."""
    hints = _hints(function, function.__qualname__, frame_locals)
    documented = read_docstring(function.__doc__)
    return _split(inspect.signature(function), hints, documented.description, documented.parameters)


def read_class(cls: type, frame_locals: Mapping[str, Any]) -> Signature:
    """The constructor gives the parameters, `run` the capabilities, the result and the context."""
    run = getattr(cls, "run", None)
    if not inspect.iscoroutinefunction(run):
        raise DefinitionError(f"{cls.__qualname__} needs an `async def run(self, …)`")
    made = inspect.signature(cls)
    pydantic_model = issubclass(cls, BaseModel)
    constructor = inspect.getattr_static(cls, "__init__")
    owner = cls if pydantic_model else constructor
    hints = _hints(owner, cls.__qualname__, frame_locals)
    documented = read_docstring(_class_doc(cls))
    texts = {**read_docstring(constructor.__doc__).parameters, **documented.parameters}
    constructed = _split(made, hints, documented.description, texts)
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
    )


def sole_object(signature: Signature) -> Any:
    """The hint of the only parameter, where that is a model, a TypedDict or a dataclass."""
    if len(signature.parameters) != 1 or signature.undocumentable:
        return None
    hint = signature.parameters[0].hint
    if not isinstance(hint, type):
        return None
    structured = issubclass(hint, BaseModel) or is_dataclass(hint) or typing.is_typeddict(hint)
    return hint if structured else None


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
        interface = interface_of(hint)
        if interface is not None:
            needs.append(Need(name, interface))
        elif is_context(hint):
            context = name
        elif parameter.kind in _VARIADIC or parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            undocumentable.append(str(parameter).partition(":")[0] + _why(parameter))
        elif hint is inspect.Parameter.empty:
            undocumentable.append(f"{name} (has no type hint)")
        else:
            default = NO_DEFAULT if parameter.default is parameter.empty else parameter.default
            parameters.append(Parameter(name, hint, default, texts.get(name, "")))
    return Signature(
        tuple(parameters),
        tuple(needs),
        context,
        hints.get("return", Any),
        description,
        tuple(undocumentable),
    )


def _why(parameter: inspect.Parameter) -> str:
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        return " (is positional only; arguments are passed by name)"
    return " (can be anything)"


def _hints(thing: Any, name: str, frame_locals: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except NameError:
        pass  # a type of the enclosing function, under `from __future__ import annotations`
    except TypeError as error:
        raise DefinitionError(f"{name}: its type hints cannot be read ({error})") from None
    try:
        return typing.get_type_hints(
            thing, globalns=_globals(thing), localns=dict(frame_locals), include_extras=True
        )
    except (NameError, TypeError) as error:
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
