"""A TypedDict of `typing` is unreadable to pydantic before Python 3.12.

Such a class is given the hook that an author could give it, which describes an equal TypedDict of
`typing_extensions`.
"""

from __future__ import annotations

import dataclasses
import threading
import types
import typing
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, get_args, get_origin

import typing_extensions
from pydantic import GetCoreSchemaHandler

_HOOK = "__get_pydantic_core_schema__"
_ONE_TWIN = threading.Lock()  # `lru_cache` alone would let two threads each make a twin of a class


def make_readable(hint: Any) -> None:
    """Gives the hook to each TypedDict of `typing` in a hint, and in the fields of what it names."""
    for found in _typed_dicts(hint):
        setattr(found, _HOOK, classmethod(_describe_twin))


def _typed_dicts(hint: Any) -> Iterator[Any]:
    pending, seen = [hint], set()
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        pending += get_args(node)
        origin = get_origin(node)
        if origin is not None and origin is not Annotated:
            pending.append(origin)
        pending += [v for name in ("__value__", "__supertype__") if (v := getattr(node, name, 0))]
        if isinstance(node, type) and _has_fields(node):
            pending += _field_hints(node).values()
        if _is_old_typed_dict(node):
            yield node


def _has_fields(cls: type) -> bool:
    return dataclasses.is_dataclass(cls) or hasattr(cls, "__total__") or hasattr(cls, "_fields")


def _is_old_typed_dict(node: Any) -> bool:
    return type(node).__module__ == "typing" and type(node).__name__ == "_TypedDictMeta"


def _field_hints(cls: type) -> dict[str, Any]:
    try:
        return typing_extensions.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError):
        return {}


def _describe_twin(cls: Any, source: Any, handler: GetCoreSchemaHandler) -> Any:
    arguments = get_args(source)
    with _ONE_TWIN:
        twin = _twin(cls)
    if arguments:
        twin = twin[arguments]
    return handler.generate_schema(twin)  # the call itself cannot be recursive


@lru_cache(maxsize=4096)
def _twin(cls: Any) -> Any:
    """An equal TypedDict of `typing_extensions`, which tells `Required` from the resolved hints."""
    hints = typing_extensions.get_type_hints(cls, include_extras=True)
    marks: tuple[Any, ...] = (typing_extensions.Required, typing_extensions.NotRequired)
    fields = {
        name: hint if get_origin(hint) in marks else marks[name not in cls.__required_keys__][hint]
        for name, hint in hints.items()
    }
    bases: tuple[Any, ...] = (typing_extensions.TypedDict,)
    if getattr(cls, "__parameters__", ()):
        bases += (typing.Generic[cls.__parameters__],)  # type: ignore[index]
    space = {"__annotations__": fields, "__doc__": cls.__doc__, "__module__": cls.__module__}
    if hasattr(cls, "__pydantic_config__"):
        space["__pydantic_config__"] = cls.__pydantic_config__
    twin = types.new_class(cls.__name__, bases, {}, lambda body: body.update(space))
    twin.__qualname__ = cls.__qualname__
    return twin
