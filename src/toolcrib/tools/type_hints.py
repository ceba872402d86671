"""The type hints of a function or class as types, wherever they are written.

Under `from __future__ import annotations` a hint may name a type of the enclosing function. For a
function defined there such a type goes first, as it does in Python; for a class it comes last, since
the fields of its bases are read in modules of their own.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from toolcrib.errors import DefinitionError
from toolcrib.schema.derive.annotations import MAX_LEVELS, quick_hints, too_deep

_TOO_DEEP = f"(it is nested deeper than {MAX_LEVELS})"


def read_hints(
    thing: Any, name: str, frame_locals: Mapping[str, Any], *, lenient: bool = False
) -> dict[str, Any]:
    """By parameter, and `return`. Raises DefinitionError, naming `name` and the parameter.

    If `lenient`, those that can be read, each by itself.
    """
    if not lenient:
        return _all_hints(thing, name, frame_locals)
    try:
        return _all_hints(thing, name, frame_locals)
    except DefinitionError:
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
    except Exception:  # noqa: BLE001, S110  a hint is code of its author's; it is tried once more
        pass
    try:
        return typing.get_type_hints(
            thing, globalns=_globals(thing), localns=dict(frame_locals), include_extras=True
        )
    except Exception as error:  # noqa: BLE001  likewise
        raise _unreadable(name, _first_unreadable(thing, frame_locals), _why(error)) from None


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


def _first_unreadable(thing: Any, frame_locals: Mapping[str, Any]) -> str:
    for parameter, hint in _one_by_one(thing, frame_locals):
        if isinstance(hint, Exception):
            return _place(parameter)
    return "one of them"


def _one_by_one(thing: Any, frame_locals: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each hint by itself, or the error for the sake of which it cannot be read."""
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
            except Exception as error:  # noqa: BLE001  a hint is code of its author's
                yield parameter, error


def _globals(thing: Any) -> dict[str, Any]:
    module = sys.modules.get(getattr(thing, "__module__", ""), None)
    found: dict[str, Any] = getattr(thing, "__globals__", None) or vars(module or typing)
    return found
