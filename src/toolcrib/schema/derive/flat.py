"""The core schema of a simple dataclass, put together from those of its fields.

pydantic takes a millisecond to read a dataclass. Most have plain fields, whose hints recur from class
to class: each such hint is read once. What is not plain to the letter is left to pydantic.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Hashable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, cast, get_origin
from uuid import UUID

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import SchemaValidator, core_schema

from toolcrib.schema.derive.annotations import quick_class_hints
from toolcrib.schema.derive.hints import taken_apart

_HOOKS = ("__get_pydantic_core_schema__", "__pydantic_core_schema__", "__pydantic_config__")
_FIELD_KINDS = frozenset(("_FIELD", "_FIELD_CLASSVAR"))
_LEAVES = frozenset(
    (str, int, float, bool, bytes, type(None), date, datetime, time, timedelta, Decimal, UUID, Path,
     list, dict, tuple, set, frozenset)
)  # fmt: skip
_BUILT = (list, dict, tuple, set, frozenset, Union, types.UnionType)
_SCALARS = (str, int, float, bool, type(None))


class FlatAdapter(NamedTuple):
    """As much of a TypeAdapter as is needed."""

    core_schema: Any
    validator: Any


def flat_adapter(hint: Any) -> FlatAdapter | None:
    """For a simple dataclass, a list of one, or one that may be None; None for all else."""
    origin, arguments = taken_apart(hint)
    if origin is list and arguments and (core := _core_of(arguments[0])) is not None:
        core = core_schema.list_schema(core)
    elif origin in (Union, types.UnionType) and len(arguments) == 2 and arguments[1] is type(None):
        core = _core_of(arguments[0])
        core = None if core is None else core_schema.nullable_schema(core)
    else:
        core = _core_of(hint)
    return None if core is None else FlatAdapter(core, SchemaValidator(core))


def _core_of(cls: Any) -> Any:
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)) or get_origin(cls):
        return None
    if any(hasattr(cls, hook) for hook in _HOOKS) or getattr(cls, "__parameters__", None):
        return None
    declared = cls.__dataclass_fields__.values()
    if any(field._field_type.name not in _FIELD_KINDS for field in declared):  # type: ignore[attr-defined]  # noqa: SLF001  nothing public tells an InitVar
        return None
    hints = quick_class_hints(cls)
    if hints is None:
        return None
    fields = []
    for field in dataclasses.fields(cls):
        core = _field_core(field, hints[field.name])
        if core is None:
            return None
        fields.append(core_schema.dataclass_field(field.name, core, kw_only=field.kw_only is True))
    arguments = core_schema.dataclass_args_schema(cls.__name__, fields)
    return core_schema.dataclass_schema(
        cls,
        arguments,
        [field["name"] for field in fields],
        ref=f"{cls.__module__}.{cls.__qualname__}:{id(cls)}",
        post_init=hasattr(cls, "__post_init__"),
        config=core_schema.CoreConfig(title=cls.__name__),
        slots="__slots__" in cls.__dict__,
    )


def _field_core(field: dataclasses.Field[Any], hint: Any) -> Any:
    if not field.init or field.metadata or isinstance(field.default, FieldInfo):
        return None
    core = _leaf_core(hint)
    if core is None or field.default is field.default_factory is dataclasses.MISSING:
        return core
    if field.default is not dataclasses.MISSING:
        return core_schema.with_default_schema(core, default=field.default)
    factory = cast("Callable[[], Any]", field.default_factory)
    if not isinstance(factory, type) and not _takes_nothing(factory):
        return None
    return core_schema.with_default_schema(core, default_factory=factory)


def _takes_nothing(factory: Callable[..., Any]) -> bool:
    try:
        return not inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False


def _leaf_core(hint: Any) -> Any:
    """The core schema of a hint that names no model: made once for all that say the same."""
    key = _leaf_key(hint)
    if key is None:
        return None
    core = _cores.get(key)
    if core is None:
        core = TypeAdapter(hint).core_schema
        if len(_cores) >= _MAX_CORES:
            _cores.clear()
        _cores[key] = core
    return core


_cores: dict[Hashable, Any] = {}
_MAX_CORES = 4096


def _leaf_key(hint: Any) -> Hashable:
    """All that a leaf's schema depends on; None for what is no leaf.

    A `Field` is another object in each class, and equal to none: what it says is the key.
    """
    if hint is Any or (hint.__class__ is type and hint in _LEAVES):
        return hint
    origin, arguments = taken_apart(hint)
    if origin is Literal:
        scalars = all(type(value) in _SCALARS for value in arguments)
        return (Literal, *((type(value), value) for value in arguments)) if scalars else None
    if origin is Annotated:
        parts = [_leaf_key(arguments[0]), *map(_field_key, arguments[1:])]
    elif origin in _BUILT:
        parts = [a if a is ... else _leaf_key(a) for a in arguments]
    else:
        return None
    return None if None in parts or not parts else (origin, *parts)


def _field_key(extra: Any) -> Hashable:
    """What a `Field` says, if that is no more than a description and constraints of scalars."""
    if not isinstance(extra, FieldInfo) or not extra.is_required():
        return None
    key: list[Hashable] = []
    for name, said in extra.__repr_args__():
        if name == "metadata":
            key += map(_constraint_key, said)
        elif name in ("description", "title") and type(said) is str:
            key.append((name, said))
        elif name not in ("annotation", "required"):
            return None
    return None if None in key else tuple(key)


def _constraint_key(constraint: Any) -> Hashable:
    if dataclasses.is_dataclass(constraint):
        said = [getattr(constraint, field.name) for field in dataclasses.fields(constraint)]
    else:
        said = [part for pair in getattr(constraint, "__dict__", {}).items() for part in pair]
    if not said or not all(type(part) in _SCALARS for part in said):
        return None
    return (type(constraint), *((type(part), part) for part in said))
