"""Handle type hints before pydantic does: those it need not see, and those it would misread."""

from __future__ import annotations

import collections.abc
import inspect
import sys
import types
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from types import CodeType
from typing import Annotated, Any, ForwardRef, Literal, Union, get_args, get_origin

_TYPES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_UNIONS = (Union, types.UnionType)
_JSON_CHOICES = (str, bool, type(None))
_MAX_SHOWN = 200
_LISTS = (collections.abc.Iterable, collections.abc.Collection, collections.abc.Container)


def origin_and_args(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return `get_origin` and `get_args`, with a shortcut for the most common hints."""
    kind = hint.__class__
    if kind is types.GenericAlias:
        return hint.__origin__, hint.__args__
    if kind is types.UnionType:
        return kind, hint.__args__
    if kind is type:
        return None, ()
    return get_origin(hint), get_args(hint)


def direct(hint: Any) -> dict[str, Any] | None:
    """Return the schema of a hint made only of JSON's own types; None for any other."""
    if hint.__class__ is type:
        kind = _TYPES.get(hint)
        if kind is not None:
            return {"type": kind}
    if hint is None or hint is type(None):
        return {"type": "null"}
    origin, arguments = origin_and_args(hint)
    if origin is list and len(arguments) == 1:
        items = {} if arguments[0] is Any else direct(arguments[0])
        return None if items is None else {"type": "array", "items": items}
    if origin is dict and len(arguments) == 2 and arguments[0] is str:
        values = True if arguments[1] is Any else direct(arguments[1])
        return None if values is None else {"type": "object", "additionalProperties": values}
    if origin in _UNIONS:
        parts = [direct(argument) for argument in arguments]
        return None if None in parts else {"anyOf": parts}
    return None


def is_plain(hint: Any) -> bool:
    """Return whether every JSON value that fits the hint's schema is a value of the hint."""
    if hint in (str, bool, None, type(None), Any, dict, list):
        return True
    origin, arguments = origin_and_args(hint)
    if origin is Literal:
        return all(a.__class__ in _JSON_CHOICES for a in arguments)  # Enum members are built
    if origin is Annotated:
        return is_plain(arguments[0]) and all(
            type(extra).__module__ == "pydantic.fields" for extra in arguments[1:]
        )
    if origin in (*_UNIONS, list):
        return all(map(is_plain, arguments))
    if origin is dict:
        return not arguments or (arguments[0] is str and is_plain(arguments[1]))
    return False


def annotated_text(hint: Any) -> str:
    """Return the text of `Annotated[int, "how many"]` or `Annotated[int, Doc("…")]` (PEP 727)."""
    if get_origin(hint) is Annotated:
        for extra in hint.__metadata__:
            text = extra if isinstance(extra, str) else getattr(extra, "documentation", None)
            if isinstance(text, str):
                return text
    return ""


def with_lists(hint: Any) -> Any:
    """Replace each Iterable, Collection and Container by a list, however deep in the hint.

    pydantic would pass an Iterable on unread, so that an invalid item fails only inside the tool.
    It does not know the others. Raises TypeError for hints that pydantic would misread.
    """
    if hint.__class__ is type:
        return hint
    if any(hint is iterable_type for iterable_type in _LISTS):
        return list
    origin, arguments = origin_and_args(hint)
    if origin in _LISTS:
        return list[with_lists(arguments[0])] if arguments else list  # type: ignore[misc]
    if not arguments or origin in (Literal, collections.abc.Callable):
        return hint
    if origin is Annotated:
        inner = with_lists(arguments[0])
        return hint if inner is arguments[0] else Annotated[(inner, *hint.__metadata__)]
    if any(getattr(argument, "__unpacked__", False) for argument in arguments):
        raise TypeError("an unpacked tuple; use tuple[T, ...]")  # pydantic would nest it
    new_arguments = tuple(map(with_lists, arguments))
    if all(new is old for new, old in zip(new_arguments, arguments, strict=True)):
        return hint
    return Union[new_arguments] if origin in _UNIONS else origin[new_arguments]  # noqa: UP007


def identity(hint: Any) -> Hashable:
    """Return a key that is equal only for hints made of the same objects in the same order.

    `int | str` and `str | int` are equal but have different schemas. The same may hold for
    constraints, whose `==` and `repr` are written by their authors. The key is valid as long as the
    hint lives.
    """
    arguments = hint if isinstance(hint, list) else get_args(hint)
    return (id(get_origin(hint)), *map(identity, arguments)) if arguments else id(hint)


def show(hint: Any) -> str:
    """Name a class, and show any other hint as it is written, shortened if it is long.

    A hint that cannot be written is named by its kind: Python writes no integer of more than 4,300
    digits, and the `repr` of a constraint is its author's code.
    """
    if isinstance(hint, type) and get_origin(hint) is None:
        text = hint.__qualname__
    else:
        try:
            text = str(hint).replace("typing.", "")
        except Exception:  # noqa: BLE001  an author's `repr` may raise anything
            text = f"a hint made with {type(hint).__name__}"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


# Resolve annotations to types, compiling each text once, because the same few hints recur
# everywhere.
#
# This replaces `typing.get_type_hints` for plain hints. Any other hint, and all errors, are left to
# `typing`.

MAX_LEVELS = 100  # as deep as a schema may be; a deeper hint would exhaust Python's stack
_UNRESOLVED = (str, ForwardRef)


def quick_hints(
    annotations: Mapping[str, Any], globalns: dict[str, Any], localns: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the types that annotations name, or None if `typing` has to resolve them."""
    types_by_name: dict[str, Any] = {}
    try:
        for name, hint in annotations.items():
            resolved = _evaluated(hint, globalns, localns) if isinstance(hint, str) else hint
            if not _is_resolved(resolved):
                return None
            types_by_name[name] = type(None) if resolved is None else resolved
    except Exception:  # noqa: BLE001  `typing` gives a better message
        return None
    return types_by_name


def quick_class_hints(cls: type) -> dict[str, Any] | None:
    """Return the types of the fields of a class and its bases, each resolved in its own module."""
    all_hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        annotations = inspect.get_annotations(base)
        if annotations:
            module = sys.modules.get(base.__module__)
            hints = None if module is None else quick_hints(annotations, vars(module), {})
            if hints is None:
                return None
            all_hints |= hints
    return all_hints


def _evaluated(hint: str, globalns: dict[str, Any], localns: Mapping[str, Any]) -> Any:
    """Evaluate an author's annotation, as `typing` does. A single name need not be compiled."""
    if hint in localns:
        return localns[hint]
    if hint in globalns:
        return globalns[hint]
    return eval(_compiled(hint), globalns, localns)  # noqa: S307


def too_deep(hint: Any) -> bool:
    """Return whether a hint is nested deeper than MAX_LEVELS, without recursion."""
    level = [hint]
    for _ in range(MAX_LEVELS):
        nested = [part for node in level for part in _below(node)]
        level = list({id(part): part for part in nested}.values())
    return bool(level)


def _below(hint: Any) -> Sequence[Any]:
    if isinstance(hint, list):
        return hint
    origin, arguments = origin_and_args(hint)
    return () if origin is Literal else arguments[:1] if origin is Annotated else arguments


@lru_cache(maxsize=4096)
def _compiled(hint: str) -> CodeType:
    return compile(hint, "<hint>", "eval")


def _is_resolved(hint: Any, levels: int = MAX_LEVELS) -> bool:
    if isinstance(hint, type) or hint is None:
        return True
    if isinstance(hint, _UNRESOLVED) or not levels:
        return False
    if isinstance(hint, list):  # the parameters of a Callable
        return all(map(_is_resolved, hint, repeat(levels - 1)))
    origin, arguments = origin_and_args(hint)
    if origin is Literal:
        return True
    if origin is Annotated:
        arguments = arguments[:1]
    return all(map(_is_resolved, arguments, repeat(levels - 1)))
