"""Capabilities: the only way for a tool to reach the world.

A tool declares what it needs as a parameter whose type is a Protocol marked with `@capability` (or
`Injected[T]` for a type one doesn't own). The model never sees such a parameter; the application
binds it to an implementation in one place, `Catalog.bind`. A need is optional where its hint takes
None or its parameter has a default: unbound, it gets that default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec

from toolcrib.errors import BindingError, DefinitionError
from toolcrib.values.context import CallContext
from toolcrib.values.typed import check_type, names_wrong_types

T = TypeVar("T")
_MARK = "__toolcrib_capability__"


class _InjectedMark:
    def __repr__(self) -> str:
        return "Injected"


_INJECTED = _InjectedMark()
Injected = Annotated[T, _INJECTED]


class Need(NamedTuple):
    """A parameter that the runner fills in with the implementation of `interface`.

    `interface` is a class, or one with arguments (`Repo[int]`). An `optional` need that nothing is
    bound for gets `default`.
    """

    parameter: str
    interface: type
    optional: bool = False
    default: Any = None


class PerCall(msgspec.Struct, frozen=True, eq=False):
    """A factory that makes an implementation anew for each call; see `per_call`."""

    factory: Callable[..., Any]
    context_parameter: str | None
    positional: bool

    def make(self, context: CallContext | None) -> Any:
        """What the factory returns; `context` is there if the factory takes one."""
        if self.context_parameter is None:
            return self.factory()
        if self.positional:
            return self.factory(context)
        return self.factory(**{self.context_parameter: context})


@names_wrong_types
def capability(cls: type[T]) -> type[T]:
    """Mark a Protocol of one's own as something that tools are given, never the model."""
    check_type("cls", cls, type, "a class, a Protocol")
    setattr(cls, _MARK, True)
    return cls


@names_wrong_types
def per_call(factory: Callable[..., Any]) -> PerCall:
    """Bind a factory instead of an implementation: `bind({Db: per_call(open_db)})`.

    `factory` takes a `CallContext`, or nothing, and returns the implementation, something to await
    for it, or a context manager (also an async one), which is entered before the tool runs and left
    after it, whatever became of the call. Bound to several interfaces, or needed twice, one
    `per_call` makes one implementation for a call. Raises BindingError for what is no such factory.
    """
    name = getattr(factory, "__qualname__", type(factory).__name__)
    if not callable(factory):
        raise BindingError(f"per_call takes a factory, not a {name}: leave out the parentheses")
    if inspect.isgeneratorfunction(factory) or inspect.isasyncgenfunction(factory):
        manager = "asynccontextmanager" if inspect.isasyncgenfunction(factory) else "contextmanager"
        raise BindingError(f"per_call: {name} yields: decorate it with @contextlib.{manager}")
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (ValueError, TypeError):
        return PerCall(factory, None, positional=False)
    wanted = [p for p in parameters if p.default is p.empty and p.kind not in _VARIADIC] or [
        p for p in parameters if p.annotation is CallContext or p.annotation == "CallContext"
    ]
    if len(wanted) > 1:
        names = ", ".join(p.name for p in wanted)
        raise BindingError(
            f"per_call: {name} takes {names}: a factory takes a CallContext, or nothing"
        )
    if not wanted:
        return PerCall(factory, None, positional=False)
    positional = wanted[0].kind is inspect.Parameter.POSITIONAL_ONLY
    return PerCall(factory, wanted[0].name, positional=positional)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def need_of(parameter: str, hint: Any, default: Any = inspect.Parameter.empty) -> Need | None:
    """What a parameter of this hint asks to be injected, or None for an ordinary one.

    Raises DefinitionError for a hint that asks for something to be injected, and not for one thing.
    """
    interface, takes_none = _asked_for(hint)
    if interface is None:
        return None
    if default is inspect.Parameter.empty:
        return Need(parameter, interface, optional=takes_none)
    return Need(parameter, interface, optional=True, default=default)


def interface_of(hint: Any) -> type | None:
    """The interface that a hint asks to be injected, or None for an ordinary parameter."""
    return _asked_for(hint)[0]


def _asked_for(hint: Any) -> tuple[type | None, bool]:
    """The interface, and whether None will do."""
    plain, takes_none = _without_none(hint)
    if get_origin(plain) is Annotated:
        inner, *extras = get_args(plain)
        if not any(extra is _INJECTED for extra in extras):
            interface, inside = _asked_for(inner)
            return interface, takes_none or inside
        interface, inside = _without_none(inner)
        named = get_origin(interface) or interface
        if named is UnionType or not isinstance(named, type):
            raise DefinitionError(f"Injected takes a class, not {inner}")
        return interface, takes_none or inside
    if get_origin(plain) in (Union, UnionType):
        if any(_asked_for(arm)[0] is not None for arm in get_args(plain)):
            raise DefinitionError(f"{hint}: one capability is injected, not one of several types")
        return None, False
    named = get_origin(plain) or plain
    marked = isinstance(named, type) and _MARK in named.__dict__
    return (plain, takes_none) if marked else (None, False)


def is_context(hint: Any) -> bool:
    return _without_none(hint)[0] is CallContext


def interface_name(interface: type) -> str:
    """`Orders`; with its arguments, `Repo[int]`."""
    named: Any = get_origin(interface) or interface
    arguments = ", ".join(getattr(a, "__name__", str(a)) for a in get_args(interface))
    return f"{named.__name__}[{arguments}]" if arguments else str(named.__name__)


def _without_none(hint: Any) -> tuple[Any, bool]:
    """`X` and True for `X | None`, where that is all that the union has."""
    arms = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    rest = [arm for arm in arms if arm is not NoneType]
    return (rest[0], True) if len(rest) == 1 and len(arms) == 2 else (hint, False)
