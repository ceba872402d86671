"""Annotations as types, each text compiled once: the same few stand in front of most parameters.

This is `typing.get_type_hints` for what is plain; whatever is not is left to it, and so are the errors.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from types import CodeType
from typing import Annotated, Any, ForwardRef, Literal

from toolcrib.schema.derive.hints import taken_apart

MAX_LEVELS = 100  # as deep as a schema may be; a deeper hint would exhaust Python's stack
_UNRESOLVED = (str, ForwardRef)


def quick_hints(
    annotations: Mapping[str, Any], globalns: dict[str, Any], localns: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The types that annotations name, or None where it takes more to tell."""
    found: dict[str, Any] = {}
    try:
        for name, hint in annotations.items():
            read = _read(hint, globalns, localns) if isinstance(hint, str) else hint
            if not _is_resolved(read):
                return None
            found[name] = type(None) if read is None else read
    except Exception:  # noqa: BLE001  typing says it better
        return None
    return found


def quick_class_hints(cls: type) -> dict[str, Any] | None:
    """The same for the fields of a class and its bases, each read in a module of its own."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        annotations = inspect.get_annotations(base)
        if annotations:
            module = sys.modules.get(base.__module__)
            hints = None if module is None else quick_hints(annotations, vars(module), {})
            if hints is None:
                return None
            found |= hints
    return found


def _read(hint: str, globalns: dict[str, Any], localns: Mapping[str, Any]) -> Any:
    """What the author's own code means, as typing reads it; a name alone need not be compiled."""
    if hint in localns:
        return localns[hint]
    if hint in globalns:
        return globalns[hint]
    return eval(_compiled(hint), globalns, localns)  # noqa: S307


def too_deep(hint: Any) -> bool:
    """Whether its brackets are nested deeper than MAX_LEVELS. It needs no stack to tell."""
    level = [hint]
    for _ in range(MAX_LEVELS):
        below = [part for node in level for part in _below(node)]
        level = list({id(part): part for part in below}.values())
    return bool(level)


def _below(hint: Any) -> Sequence[Any]:
    if isinstance(hint, list):
        return hint
    origin, arguments = taken_apart(hint)
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
    origin, arguments = taken_apart(hint)
    if origin is Literal:
        return True
    if origin is Annotated:
        arguments = arguments[:1]
    return all(map(_is_resolved, arguments, repeat(levels - 1)))
