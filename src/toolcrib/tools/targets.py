"""What a tool can be made of: a plain function, a bound method, a class that can be constructed.

Anything else is refused by its name, with what to do instead.
"""

from __future__ import annotations

import inspect
from typing import Any

from toolcrib.errors import DefinitionError
from toolcrib.tools.component import ATTRIBUTE, Tool, ToolComponent


def check_function(target: Any) -> None:
    """Raises DefinitionError unless it is a function, or a method with its instance."""
    if not (inspect.isfunction(target) or inspect.ismethod(target)):
        raise DefinitionError(
            f"a tool is made of a function or a class, not of a {_kind(target)}{_mend(target)}"
        )
    name = target.__qualname__
    if inspect.isgeneratorfunction(target):
        raise DefinitionError(
            f"{name} yields: write `async def` to stream its parts, or return a list"
        )
    if inspect.isfunction(target) and _takes_self(target):
        raise DefinitionError(
            f"{name} is a method without its instance: make a tool of one that has it, as in "
            f"tool(visible=…)(thing.{target.__name__}), or decorate the class"
        )


def check_class(cls: type) -> None:
    """Raises DefinitionError for a class that is a tool already, or that makes no instances."""
    name = cls.__qualname__
    before = cls.__dict__.get(ATTRIBUTE)
    if isinstance(before, Tool):
        raise DefinitionError(
            f"{name} is a tool already, '{before.definition.name}': for another one, decorate a "
            "subclass of it"
        )
    if "get_definition" in cls.__dict__:
        raise DefinitionError(f"{name} has a `get_definition` already: rename it")
    if getattr(cls, "_is_protocol", False):
        raise DefinitionError(f"{name} is a Protocol: decorate a class that implements it")
    if inspect.isabstract(cls) and _runs(getattr(cls, "run", None)):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise DefinitionError(f"{name} is abstract: decorate a subclass that has {missing}")


def _runs(run: object) -> bool:
    return inspect.iscoroutinefunction(run) or inspect.isasyncgenfunction(run)


def make_component(cls: type, made: Tool[..., Any]) -> None:
    """Makes the class a `ToolComponent`, and this tool its own. Raises DefinitionError."""
    try:
        setattr(cls, ATTRIBUTE, made)
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
    named = getattr(target, "func", target)  # a partial
    name = getattr(named, "__qualname__", None) or getattr(named, "__name__", None)
    if not isinstance(name, str):
        return kind
    module = getattr(named, "__module__", None)
    within = f"{module}." if isinstance(module, str) and not isinstance(target, Tool) else ""
    return f"{kind} ({within}{name})"


def _mend(target: Any) -> str:
    if isinstance(target, Tool):
        return ": it is one already; renamed('…') gives it another name"
    if isinstance(target, staticmethod):
        return ": put @tool below @staticmethod"
    if isinstance(target, classmethod):
        return ": make it of the bound method, as in tool(visible=…)(Class.method)"
    return ": wrap it in a function that has type hints" if callable(target) else ""
