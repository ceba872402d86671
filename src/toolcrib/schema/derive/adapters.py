"""Provide what reads typed values from JSON: cached pydantic adapters and our own converters."""

from __future__ import annotations

import dataclasses
import inspect
import re
import threading
import types
import typing
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, Union, cast, get_args, get_origin
from uuid import UUID

import msgspec
import typing_extensions
from pydantic import (
    BaseModel,
    GetCoreSchemaHandler,
    PydanticUndefinedAnnotation,
    PydanticUserError,
    TypeAdapter,
)
from pydantic_core import PydanticOmit, SchemaValidator, core_schema
from pydantic_core import SchemaError as CoreSchemaError

from toolcrib.errors import DefinitionError
from toolcrib.schema.derive.hints import (
    identity,
    origin_and_args,
    quick_class_hints,
    show,
    with_lists,
)
from toolcrib.schema.derive.plain import is_field
from toolcrib.schema.derive.reading import TypedReader
from toolcrib.schema.derive.roundtrip import PartCompiler, compile_alone
from toolcrib.values.json import is_whole

# Build the core schema of a simple dataclass from the core schemas of its fields.
#
# pydantic takes a millisecond to read a dataclass. Most have plain fields whose hints recur in
# other classes, so each such hint is read once. A class with anything else is left to pydantic.

_HOOKS = (
    *("__get_pydantic_core_schema__", "__get_pydantic_json_schema__"),
    *("__pydantic_core_schema__", "__pydantic_config__"),
)
_FIELD_KINDS = frozenset(("_FIELD", "_FIELD_CLASSVAR"))
_LEAVES = frozenset(
    (str, int, float, bool, bytes, type(None), date, datetime, time, timedelta, Decimal, UUID, Path,
     list, dict, tuple, set, frozenset)
)  # fmt: skip
_COMPOUND = (list, dict, tuple, set, frozenset, Union, types.UnionType)
_SCALARS = (str, int, float, bool, type(None))


class FlatAdapter(msgspec.Struct, frozen=True):
    """The part of a TypeAdapter's interface that is needed."""

    core_schema: Any
    validator: Any


def flat_adapter(hint: Any) -> FlatAdapter | None:
    """Return the adapter of a simple dataclass, a list of one, or an optional one; else None."""
    origin, arguments = origin_and_args(hint)
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
    if any(field._field_type.name not in _FIELD_KINDS for field in declared):  # type: ignore[attr-defined]  # noqa: SLF001  no public API tells an InitVar
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
    if not field.init or field.metadata or is_field(field.default):
        return None
    core = _leaf_core(hint)
    if core is None or field.default is field.default_factory is dataclasses.MISSING:
        return core
    if field.default is not dataclasses.MISSING:
        return core_schema.with_default_schema(core, default=field.default)
    factory = cast("Callable[[], Any]", field.default_factory)
    if not isinstance(factory, type) and not _has_no_parameters(factory):
        return None
    return core_schema.with_default_schema(core, default_factory=factory)


def _has_no_parameters(factory: Callable[..., Any]) -> bool:
    try:
        return not inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False


def _leaf_core(hint: Any) -> Any:
    """Return the core schema of a hint that names no model, cached for all equal hints."""
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
    """Return everything that a leaf's schema depends on, or None if the hint is not a leaf.

    `Field` objects of different classes are never equal, so their contents form the key.
    """
    if hint is Any or (hint.__class__ is type and hint in _LEAVES):
        return hint
    origin, arguments = origin_and_args(hint)
    if origin is Literal:
        scalars = all(type(value) in _SCALARS for value in arguments)
        return (Literal, *((type(value), value) for value in arguments)) if scalars else None
    if origin is Annotated:
        parts = [_leaf_key(arguments[0]), *map(_field_key, arguments[1:])]
    elif origin in _COMPOUND:
        parts = [a if a is ... else _leaf_key(a) for a in arguments]
    else:
        return None
    return None if None in parts or not parts else (origin, *parts)


def _field_key(extra: Any) -> Hashable:
    """Return the contents of a `Field` that has only a description and scalar constraints."""
    if not is_field(extra) or not extra.is_required():
        return None
    key: list[Hashable] = []
    for name, value in extra.__repr_args__():
        if name == "metadata":
            key += map(_constraint_key, value)
        elif name in ("description", "title") and type(value) is str:
            key.append((name, value))
        elif name not in ("annotation", "required"):
            return None
    return None if None in key else tuple(key)


def _constraint_key(constraint: Any) -> Hashable:
    if dataclasses.is_dataclass(constraint):
        values = [getattr(constraint, field.name) for field in dataclasses.fields(constraint)]
    else:
        values = [value for pair in getattr(constraint, "__dict__", {}).items() for value in pair]
    if not values or not all(type(value) in _SCALARS for value in values):
        return None
    return (type(constraint), *((type(value), value) for value in values))


# Before Python 3.12, pydantic cannot read a TypedDict of `typing`.
#
# Such a class is given the hook that an author could write. It describes an equal TypedDict of
# `typing_extensions`.

_TWIN_LOCK = threading.Lock()  # `lru_cache` alone would let two threads each make a twin of a class


def _typed_dicts(hint: Any) -> Iterator[Any]:
    """Yield each TypedDict of `typing` in a hint, and in the classes it names."""
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
        if isinstance(node, type) and (
            dataclasses.is_dataclass(node) or hasattr(node, "__total__") or hasattr(node, "_fields")
        ):
            with suppress(NameError, TypeError, SyntaxError, AttributeError):
                pending += typing_extensions.get_type_hints(node, include_extras=True).values()
        if type(node).__module__ == "typing" and type(node).__name__ == "_TypedDictMeta":
            yield node


def _describe_twin(cls: Any, source: Any, handler: GetCoreSchemaHandler) -> Any:
    with _TWIN_LOCK:
        twin = _twin(cls)
    if arguments := get_args(source):
        twin = twin[arguments]
    return handler.generate_schema(twin)  # the call itself cannot be recursive


@lru_cache(maxsize=4096)
def _twin(cls: Any) -> Any:
    """Return an equal TypedDict of `typing_extensions`, whose `Required` pydantic can read."""
    hints = typing_extensions.get_type_hints(cls, include_extras=True)
    marks: tuple[Any, ...] = (typing_extensions.Required, typing_extensions.NotRequired)
    fields = {
        name: hint if get_origin(hint) in marks else marks[name not in cls.__required_keys__][hint]
        for name, hint in hints.items()
    }
    bases: tuple[Any, ...] = (typing_extensions.TypedDict,)
    if getattr(cls, "__parameters__", ()):
        bases += (typing.Generic[cls.__parameters__],)  # type: ignore[index]
    namespace = {"__annotations__": fields, "__doc__": cls.__doc__, "__module__": cls.__module__}
    if hasattr(cls, "__pydantic_config__"):
        namespace["__pydantic_config__"] = cls.__pydantic_config__
    twin = types.new_class(cls.__name__, bases, {}, lambda body: body.update(namespace))
    twin.__qualname__ = cls.__qualname__
    return twin


Converter: TypeAlias = Callable[[Any], Any]
Adapter: TypeAlias = TypeAdapter[Any] | FlatAdapter
_MAX_SHOWN = 200
# This advice of pydantic is not for types that have to be JSON.
_ADVICE = ". Set `arbitrary_types_allowed"
_NO_SCHEMA = re.compile(r"Unable to generate pydantic-core schema for (?:<class '(.+)'>|(.+))")
_BUILDING = re.compile(r'Error building "[^"]*" validator: \w+: ')
_EXPLAINED_ERRORS = (PydanticUserError, CoreSchemaError, TypeError, NameError)


def whole(value: float) -> int:
    """Return a whole number as an int: JSON Schema accepts `3.0` as an integer, Python does not.

    An author's own schema may admit other values. They are refused, not rounded.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and is_whole(value):
        return int(value)
    raise ValueError("not a whole number")


def real(value: float) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ValueError("not a number")


def text(value: str) -> str:
    """Return a string. An author's own schema need not require one."""
    if isinstance(value, str):
        return value
    raise ValueError("not a string")


def truth(value: bool) -> bool:
    """Return a boolean. An author's own schema need not require one."""
    if isinstance(value, bool):
        return value
    raise ValueError("not true or false")


UNCHANGED_TYPES: Mapping[Converter, type] = {whole: int, real: float, text: str, truth: bool}
"""The type that each converter returns unchanged, so that most calls of it can be skipped."""


def reader(adapter: Adapter) -> TypedReader:
    """Return a reader that makes a typed value of valid JSON."""
    validate_json = adapter.validator.validate_json
    return TypedReader(adapter.core_schema, validate_json, part_compiler(adapter))


def part_compiler(adapter: Adapter) -> PartCompiler:
    """Return what makes validators of parts of a hint, which read them as its own validator does."""
    return getattr(adapter.validator, "compile_part", compile_alone)


def whole_numbers(value: Any) -> Any:
    """Return the same JSON with `3.0` as `3`, which strict readers require for an integer."""
    if isinstance(value, float) and is_whole(value):
        return int(value)
    if isinstance(value, list):
        return [whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: whole_numbers(item) for key, item in value.items()}
    return value


def adapter_for(hint: Any, subject: str) -> Adapter:
    """Return the adapter of a hint. Raises DefinitionError, beginning with `subject`, if it is
    unreadable."""
    try:
        return _adapter(hint)
    except Exception as error:  # noqa: BLE001  another author's type may have hooks that raise anything
        raise inexpressible(hint, subject, error) from None


def inexpressible(hint: Any, subject: str, error: Exception) -> DefinitionError:
    """Say why `hint` has no schema; for errors of code other than pydantic's only the type."""
    if isinstance(error, PydanticOmit):
        reason = "SkipJsonSchema leaves it out"
    elif isinstance(error, PydanticUndefinedAnnotation):
        reason = f"the name '{error.name}' in it is not defined where it is written"
    elif isinstance(error, RecursionError):
        reason = "it is nested too deeply"
    elif isinstance(error, _EXPLAINED_ERRORS):
        reason = str(error).partition("\n\nFor further information")[0].partition(_ADVICE)[0]
        reason = _BUILDING.sub("", " ".join(reason.split()))
        reason = _NO_SCHEMA.sub(r"\1\2 is not a type that JSON has", reason)[:_MAX_SHOWN]
    else:
        reason = f"its own pydantic hook raised {type(error).__name__}"
    return DefinitionError(
        f"{subject}: {show(hint)} cannot be expressed in JSON Schema ({reason}); use a JSON type, a "
        f"dataclass, a TypedDict or a pydantic model{_injection_advice(hint, subject, reason)}"
    )


def _injection_advice(hint: Any, subject: str, reason: str) -> str:
    """Say what to do about a parameter whose class the program provides and no model can send."""
    if not (isinstance(hint, type) and subject.startswith("parameter")):
        return ""
    if not reason.startswith(repr(hint).removeprefix("<class '").removesuffix("'>")):
        return ""  # it is a type within the hint
    name = show(hint)
    if getattr(hint, "_is_protocol", False):
        return f"; if your program provides it, decorate {name} with @capability"
    return f"; if your program provides it, write Injected[{name}]"


def _adapter(hint: Any) -> Adapter:
    if inspect.isroutine(hint):  # such as `any` and `callable`; pydantic would call it
        raise TypeError("a function is not a type")
    if isinstance(hint, dict):  # pydantic takes it for a core schema
        raise TypeError("a dict is not a type; use a TypedDict")
    hint = with_lists(hint)
    try:
        return _cached_adapter(_Key(hint))
    except PydanticUserError as error:
        if error.code != "typed-dict-version":
            raise
    for typed_dict in _typed_dicts(hint):
        typed_dict.__get_pydantic_core_schema__ = classmethod(_describe_twin)
    return _cached_adapter(_Key(hint))


class _Key:
    """A hint that is equal to others made of the same parts, and keeps the parts alive."""

    __slots__ = ("hint", "parts")

    def __init__(self, hint: Any) -> None:
        self.hint = hint
        self.parts = identity(hint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)


@lru_cache(maxsize=4096)
def _cached_adapter(key: _Key) -> Adapter:
    hint = key.hint
    if isinstance(hint, type) and issubclass(hint, BaseModel) and hint.__pydantic_complete__:
        return FlatAdapter(hint.__pydantic_core_schema__, hint.__pydantic_validator__)
    return flat_adapter(hint) or _pydantic_adapter(hint)


def _pydantic_adapter(_toolcrib_hint: Any) -> TypeAdapter[Any]:
    """Make an adapter. The names here are odd because pydantic also looks up hints in its caller's
    frame."""
    if (_toolcrib_adapter := TypeAdapter(_toolcrib_hint)).pydantic_complete:
        return _toolcrib_adapter
    _toolcrib_adapter.rebuild(force=True, raise_errors=True)  # names what is missing
    return _toolcrib_adapter
