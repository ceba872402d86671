"""The core schema of a simple dataclass, put together from those of its fields.

pydantic takes a millisecond to read a dataclass. Most have plain fields, whose hints recur from class
to class: each such hint is read once. What is not plain to the letter is left to pydantic.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, Union, cast, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, SchemaValidator, core_schema

from toolcrib.schema.annotations import quick_class_hints

_HOOKS = ("__get_pydantic_core_schema__", "__pydantic_core_schema__", "__pydantic_config__")
_FIELD_KINDS = frozenset(("_FIELD", "_FIELD_CLASSVAR"))
# What a Field may say here; its other settings change how a field is filled.
_FIELD_SAYS = frozenset(
    ("annotation", "default", "description", "title", "gt", "ge", "lt", "le",
     "multiple_of", "min_length", "max_length", "pattern")
)  # fmt: skip


class FlatAdapter(NamedTuple):
    """As much of a TypeAdapter as is needed."""

    core_schema: Any
    validator: Any


def flat_adapter(hint: Any) -> FlatAdapter | None:
    """For a simple dataclass, a list of one, or one that may be None; None for all else."""
    origin, arguments = get_origin(hint), get_args(hint)
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
    """The core schema of a hint that names no model.

    Kept by the text of the hint, which tells all such hints apart: a `Field` is another object in
    each class, and equal to none.
    """
    shown = str(hint)
    if shown not in _cores and _is_leaf(hint):
        if len(_cores) >= _MAX_CORES:
            _cores.clear()
        _cores[shown] = TypeAdapter(hint).core_schema
    return _cores.get(shown)


_cores: dict[str, Any] = {}
_MAX_CORES = 4096


def _is_leaf(hint: Any) -> bool:
    if isinstance(hint, type) and not get_origin(hint):
        return hint.__module__ in _LEAF_MODULES
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _is_leaf(arguments[0]) and all(map(_says_little, arguments[1:]))
    if origin is Literal:
        return all(type(value) in (str, int, bool) for value in arguments)
    if origin in (list, dict, tuple, set, frozenset, Union, types.UnionType):
        return all(a is ... or _is_leaf(a) for a in arguments)
    return hint is Any


_LEAF_MODULES = frozenset(("builtins", "datetime", "uuid", "decimal", "pathlib"))


def _says_little(extra: Any) -> bool:
    if not isinstance(extra, FieldInfo):
        return False
    said = {name for name, value in extra.__repr_args__() if value is not PydanticUndefined}
    return extra.is_required() and said <= _FIELD_SAYS | {"required", "metadata"}
