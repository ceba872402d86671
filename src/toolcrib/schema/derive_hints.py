"""Hints, before and after pydantic: what it need not see, what it cannot read, what makes values.

A TypedDict of `typing` is unreadable to pydantic before Python 3.12; such a class is given the hook
that an author could give it, which describes an equal TypedDict of `typing_extensions`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import typing_extensions
from pydantic import (
    BaseModel,
    GetCoreSchemaHandler,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import SchemaError as CoreSchemaError
from pydantic_core import to_json

from toolcrib.errors import DefinitionError
from toolcrib.schema.derive_flat import FlatAdapter, flat_adapter

Converter: TypeAlias = Callable[[Any], Any]
Adapter: TypeAlias = TypeAdapter[Any] | FlatAdapter
_TYPES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_UNIONS = (Union, types.UnionType)
_HOOK = "__get_pydantic_core_schema__"
# What pydantic would hand on unread, or not know at all, is a list for the tool.
_LISTS = (collections.abc.Iterable, collections.abc.Collection, collections.abc.Container)


def direct(hint: Any) -> dict[str, Any] | None:
    """The schema of a hint that is made of JSON's own types only; None for any other."""
    if isinstance(hint, type):
        kind = _TYPES.get(hint) if get_origin(hint) is None else None
        if kind is not None:
            return {"type": kind}
    if hint is None or hint is type(None):
        return {"type": "null"}
    origin, arguments = get_origin(hint), get_args(hint)
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
    """Whether every JSON value that fits the hint's schema is already a value of the hint."""
    if hint in (str, bool, None, type(None), Any, dict, list):
        return True
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return all(isinstance(a, str | bool | None) for a in arguments)
    if origin is Annotated:
        return is_plain(arguments[0]) and all(
            type(extra).__module__ == "pydantic.fields" for extra in arguments[1:]
        )
    if origin in (*_UNIONS, list):
        return all(map(is_plain, arguments))
    if origin is dict:
        return not arguments or (arguments[0] is str and is_plain(arguments[1]))
    return False


def whole(value: float) -> int:
    """JSON Schema takes `3.0` for an integer; Python's `int` does not.

    A schema given by the author may let other values through: they are refused, not rounded.
    """
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise ValueError("not a whole number")


def real(value: float) -> float:
    if isinstance(value, int | float):
        return float(value)
    raise ValueError("not a number")


def reader(adapter: Adapter) -> Converter:
    """What makes a typed value of valid JSON.

    What pydantic does not take as Python it is shown once more as the JSON that it is, with whole
    numbers written as such: `1e300` for an `int`, text for a date in a strict model.
    """
    validate, validate_json = adapter.validator.validate_python, adapter.validator.validate_json

    def read(value: Any) -> Any:
        try:
            return validate(value)
        except ValidationError:
            try:
                return validate_json(to_json(_whole_numbers(value)))
            except (ValidationError, ValueError):
                pass
            raise

    return read


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    return value


def adapter_for(hint: Any, what: str) -> Adapter:
    """Raises DefinitionError, which begins with `what`, for a hint that pydantic cannot read."""
    try:
        try:
            return _adapter(hint)
        except PydanticUserError as error:
            if error.code != "typed-dict-version":
                raise
            for found in _typed_dicts(hint):
                setattr(found, _HOOK, classmethod(_describe_twin))
            return _adapter(hint)
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError, NameError) as error:
        first = str(error).splitlines()[0]
    except CoreSchemaError as error:
        first = " ".join(str(error).split())[:200]
    raise DefinitionError(
        f"{what}: {show(hint)} cannot be read from JSON ({first}); use a JSON type, a "
        "dataclass, a TypedDict or a pydantic model"
    )


def _adapter(hint: Any) -> Adapter:
    if "*tuple[" in (shown := str(hint)):  # pydantic takes it for a tuple in the tuple
        raise TypeError("an unpacked tuple; use tuple[T, ...]")
    if get_origin(hint) in _LISTS:
        hint = list[get_args(hint)[0]]  # type: ignore[misc]
    return _cached_adapter(hint, shown) if hashable(hint) else TypeAdapter(hint)


@lru_cache(maxsize=4096)
def _cached_adapter(hint: Any, _shown: str) -> Adapter:
    """`int | str` and `str | int` are equal and have different schemas: hence the text too."""
    if isinstance(hint, type) and issubclass(hint, BaseModel) and hint.__pydantic_complete__:
        return FlatAdapter(hint.__pydantic_core_schema__, hint.__pydantic_validator__)
    return flat_adapter(hint) or TypeAdapter(hint)


def _typed_dicts(hint: Any) -> Iterator[Any]:
    """Each TypedDict of `typing` in a hint, and in the fields of what it names."""
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
    twin, arguments = _twin(cls), get_args(source)
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


def hashable(hint: Any) -> bool:
    try:
        hash(hint)
    except TypeError:
        return False
    return True


def show(hint: Any) -> str:
    return getattr(hint, "__qualname__", None) or str(hint)
