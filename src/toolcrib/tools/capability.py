"""Capabilities: the only way for a tool to reach the world.

A tool declares what it needs as a parameter whose type is a Protocol marked with `@capability` (or
`Injected[T]` for a type one doesn't own). The model never sees such a parameter; the application
binds it to an implementation in one place, `Catalog.bind`.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

from toolcrib.errors import BindingError, DefinitionError
from toolcrib.values.record import CallContext

T = TypeVar("T")
_MARK = "__toolcrib_capability__"


class _InjectedMark:
    def __repr__(self) -> str:
        return "Injected"


_INJECTED = _InjectedMark()
Injected = Annotated[T, _INJECTED]


class Need(NamedTuple):
    """A parameter that the runner fills in with the implementation of `interface`."""

    parameter: str
    interface: type


def capability(cls: type[T]) -> type[T]:
    """Mark a Protocol of one's own as something that tools are given, never the model."""
    setattr(cls, _MARK, True)
    return cls


def interface_of(hint: Any) -> type | None:
    """The interface that a hint asks to be injected, or None for an ordinary parameter."""
    if get_origin(hint) is Annotated:
        inner, *extras = get_args(hint)
        if not any(extra is _INJECTED for extra in extras):
            return None
        if not isinstance(inner, type):
            raise DefinitionError(f"Injected takes a class, not {inner}")
        return inner
    return hint if isinstance(hint, type) and _MARK in hint.__dict__ else None


def is_context(hint: Any) -> bool:
    return hint is CallContext


def check_implements(interface: type, implementation: object, tool: str) -> None:
    """Raises BindingError, naming the tool, the interface and what the implementation lacks."""
    where = f"tool '{tool}' needs {interface.__name__}"
    if not getattr(interface, "_is_protocol", False):
        if not isinstance(implementation, interface):
            raise BindingError(f"{where}, and {_name(implementation)} is not one")
        return
    for member in _members(interface):
        bound = getattr(implementation, member, None)
        if bound is None and not hasattr(implementation, member):
            raise BindingError(f"{where}, and {_name(implementation)} has no '{member}'")
        wanted = inspect.getattr_static(interface, member, None)
        if inspect.isfunction(wanted) and not callable(bound):
            raise BindingError(f"{where}, and '{member}' of {_name(implementation)} is no method")


def _members(interface: type) -> list[str]:
    """The public names that a Protocol and its Protocol bases declare, in order."""
    names: dict[str, None] = {}
    for base in reversed(interface.__mro__):
        if getattr(base, "_is_protocol", False) and base.__module__ != "typing":
            declared = (*base.__dict__, *inspect.get_annotations(base))
            names |= dict.fromkeys(n for n in declared if not n.startswith("_"))
    return list(names)


def _name(implementation: object) -> str:
    return type(implementation).__name__
