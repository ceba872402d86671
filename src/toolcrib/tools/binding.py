"""Which implementation goes to which need: what `Catalog.bind` and `Catalog.check_bound` stand on.

A need for `Repo[int]` takes what is bound for exactly that, else what is bound for `Repo`.
"""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, cast, get_args, get_origin

from toolcrib.errors import BindingError
from toolcrib.tools.capability import PerCall, interface_name
from toolcrib.tools.component import Tool
from toolcrib.tools.implements import check_implements, check_may_implement


def check_interfaces(capabilities: Mapping[type, object]) -> None:
    """Raises BindingError for a key that is no interface."""
    if not isinstance(capabilities, Mapping):
        raise BindingError("bind takes a dictionary {Interface: implementation}")
    for interface in capabilities:
        if not isinstance(get_origin(interface) or interface, type):
            raise BindingError(
                f"bind takes {{Interface: implementation}}, and a {type(interface).__name__} is no "
                "interface"
            )


def bound_for(tool: Tool[..., Any], capabilities: Mapping[type, object]) -> dict[type, object]:
    """What a tool needs of them, checked. Raises BindingError."""
    found: dict[type, object] = {}
    for need in tool.needs:
        plain = cast("type", get_origin(need.interface) or need.interface)
        for interface in (need.interface, plain):
            if interface in capabilities:
                implementation = capabilities[interface]
                _check(need.interface, implementation, tool.definition.name)
                found[need.interface] = implementation
                break
    return found


def check_all_bound(
    tool: Tool[..., Any], bindings: Mapping[type, object], spare: tuple[type, ...]
) -> None:
    """Raises BindingError, naming what was bound (`spare`) and no tool needs."""
    for need in tool.needs:
        if need.optional or need.interface in bindings:
            continue
        name = interface_name(need.interface)
        others = ", ".join(map(interface_name, spare))
        raise BindingError(
            f"tool '{tool.definition.name}' needs {name} (its parameter '{need.parameter}'): "
            f"catalog.bind({{{name}: …}})" + (f"; bound for no tool: {others}" if others else "")
        )


def _check(interface: type, implementation: object, tool: str) -> None:
    if not isinstance(implementation, PerCall):
        check_implements(interface, implementation, tool)
        return
    factory = implementation.factory
    made = _made_by(factory)
    if made is not None:
        who = getattr(factory, "__qualname__", type(factory).__name__)
        check_may_implement(interface, made, tool, who)


def _made_by(factory: Any) -> type | None:
    """The class that a factory's return hint promises, where that is one and says something."""
    if isinstance(factory, type):
        entered = hasattr(factory, "__aenter__") or hasattr(factory, "__enter__")
        return None if entered else factory
    try:
        hint = typing.get_type_hints(factory).get("return", Any)
    except Exception:  # noqa: BLE001  a hint may name anything, and raise anything
        return None
    origin = get_origin(hint)
    if isinstance(origin, type) and issubclass(origin, _WRAPPERS) and get_args(hint):
        hint = get_args(hint)[-1 if issubclass(origin, Awaitable) else 0]
        origin = get_origin(hint)
    elif hasattr(factory, "__wrapped__") and get_args(hint):  # made by @contextmanager
        hint = get_args(hint)[0]
        origin = get_origin(hint)
    plain = origin or hint
    vague = plain in (Any, object) or not isinstance(plain, type) or issubclass(plain, _WRAPPERS)
    return None if vague else plain


_WRAPPERS = (Awaitable, AbstractContextManager, AbstractAsyncContextManager)
