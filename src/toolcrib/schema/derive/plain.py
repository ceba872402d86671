"""Convert any Python value to the JSON it represents, and compare JSON values.

Attributes count, not a class's own serialization: secrets are unwrapped, enums become their values.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from math import isfinite
from pathlib import PurePath
from typing import Any
from zoneinfo import ZoneInfo

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, PydanticUndefined, to_jsonable_python

from toolcrib.values.json import JsonObject, canonical_json

MISSING: Any = object()
WRITTEN = (Fraction, PurePath, ZoneInfo)  # strings in JSON; pydantic does not write all of them
NUMBERS = (int, float)
_SCALARS = frozenset((str, int, float, bool, type(None)))


def classes_of(module: str, *names: str) -> tuple[type, ...]:
    """Return classes of a module that is slow to import.

    The result is empty if nobody has imported the module, because then no value is of these
    classes.
    """
    loaded = sys.modules.get(module)
    return tuple(vars(loaded)[name] for name in names if hasattr(loaded, name))


def is_field(value: Any) -> bool:
    """Return whether a value is the result of pydantic's `Field(…)`."""
    return isinstance(value, classes_of("pydantic.fields", "FieldInfo"))


def mark_of(kind: Any) -> JsonObject:
    """Return the mark shown in place of a value: the name of its class, or of its factory."""
    return {"default": getattr(kind, "__name__", type(kind).__name__)}


def is_mark(value: Any) -> bool:
    """Return whether a value may be a mark, which must not be sent."""
    return (
        isinstance(value, dict)
        and value.keys() == {"default"}
        and isinstance(value["default"], str)
    )


def secrets() -> tuple[type, ...]:
    """Return the classes of pydantic's secrets."""
    return classes_of("pydantic.types", "SecretStr", "SecretBytes", "Secret")


def is_secret(value: Any) -> bool:
    return hasattr(value, "get_secret_value") and isinstance(value, secrets())


def plain(value: Any) -> Any:
    """Return any value as JSON, with secrets unwrapped; `MISSING` if it has no JSON form."""
    kind = value.__class__
    if kind in _SCALARS:
        return value if kind is not float or isfinite(value) else MISSING
    if isinstance(value, Enum):
        return plain(value.value)
    if is_secret(value):
        return plain(value.get_secret_value())
    if isinstance(value, dict):
        return _plain_object(value)
    if is_object(value):
        return plain(attributes_of(value))
    if isinstance(value, list | tuple | deque | set | frozenset):
        items = [plain(item) for item in value]
        if any(item is MISSING for item in items):
            return MISSING
        return sorted(items, key=canonical_json) if isinstance(value, set | frozenset) else items
    return _plain_text(value)


def number_of(value: Any, shown: Any) -> Any:
    """Return the JSON number of a `Decimal` or a `Fraction`, if it has one; else `shown`."""
    if not isinstance(value, Decimal | Fraction):
        return shown
    with suppress(ValueError, ArithmeticError):  # NaN, and numbers beyond every float
        if value == int(value):
            return int(value)
        number = float(value)
        if value.__class__(repr(number)) == value:
            return number
    return shown


def attributes_of(value: Any) -> Any:
    """Return the fields of an object, by the names that they are sent under, and declared extras.

    A RootModel is replaced by what it holds. Serializers and excluded fields do not matter.
    Anything else in an object (set by `__post_init__`, kept by a `cached_property`) is not an
    argument and is not shown.
    """
    if isinstance(value, BaseModel):
        if isinstance(value, classes_of("pydantic.root_model", "RootModel")):
            return value.root  # type: ignore[attr-defined]
        stored, attributes = value.__dict__, {}
        for name, field in type(value).model_fields.items():
            if name in stored:
                alias = field.validation_alias
                attributes[alias if isinstance(alias, str) else name] = stored[name]
        return {**attributes, **(value.__pydantic_extra__ or {})}
    field_values = {field.name: getattr(value, field.name, MISSING) for field in fields(value)}
    return {n: part for n, part in field_values.items() if part is not MISSING} | extras_of(
        value, field_values
    )


def extras_of(value: Any, field_names: Collection[str]) -> dict[str, Any]:
    """Return what an object whose class allows extras holds under names other than its fields'."""
    if isinstance(value, BaseModel):
        return value.__pydantic_extra__ or {}
    is_open = getattr(type(value), "__pydantic_config__", {}).get("extra") == "allow"
    attributes = (
        value if isinstance(value, dict) else getattr(value, "__dict__", {}) if is_open else {}
    )
    return {name: part for name, part in attributes.items() if name not in field_names}


def attributes_and_extras(value: Any) -> Any:
    """Return everything that an object holds, declared or not, by name."""
    attributes = extras_of(value, ()) if isinstance(value, BaseModel) else attributes_of(value)
    return {**attributes, **getattr(value, "__dict__", {})}


def defaults_by_key(value: Any) -> dict[str, Any]:
    """Return the constant defaults of an object's fields, by each name they may be sent under."""
    return {
        key: field.default
        for key, (_, field) in fields_by_key(value).items()
        if field.default is not PydanticUndefined and field.default is not dataclasses.MISSING
    }


def parts_by_key(value: Any) -> Any:
    """Return the parts of a value by the steps to them in its JSON; empty if it has none."""
    if isinstance(value, classes_of("pydantic.root_model", "RootModel")):
        return parts_by_key(attributes_of(value))
    if is_object(value):
        fields_of = fields_by_key(value)
        parts = {key: getattr(value, name, MISSING) for key, (name, _) in fields_of.items()}
        present = {key: part for key, part in parts.items() if part is not MISSING}
        return {**extras_of(value, parts), **present}
    if isinstance(value, Mapping):
        names = {key: key if isinstance(key, str) else plain(key) for key in value}
        return {
            name if isinstance(name, str) else canonical_json(name): value[key]
            for key, name in names.items()
            if name is not MISSING
        }
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {**value._asdict(), **dict(enumerate(value))}
    return value if isinstance(value, list | tuple | deque) else ()


def fields_by_key(value: Any) -> dict[str, tuple[str, Any]]:
    """Return an object's fields with their names, by each name that they may be sent under."""
    if not is_object(value):
        return {}
    declared = getattr(type(value), "__pydantic_fields__", None)
    fields_by_name = {one.name: one for one in fields(value)} if declared is None else declared
    by_key = {name: (name, field) for name, field in fields_by_name.items()}
    for name, field in fields_by_name.items():
        alias = getattr(field, "validation_alias", None)
        keys = [key for key in getattr(alias, "choices", [alias]) if isinstance(key, str)]
        by_key |= dict.fromkeys(keys, (name, field))
    return by_key


def same_values(one: Any, other: Any) -> bool:
    """Return whether two values have the same classes and the same attributes, at any depth.

    Objects that pydantic does not take apart are compared with `==`.
    """
    if one.__class__ is not other.__class__:
        return False
    if is_object(one):
        one, other = attributes_and_extras(one), attributes_and_extras(other)
    if isinstance(one, dict):
        pairs = [(part, other.get(key, MISSING)) for key, part in one.items()]
    elif isinstance(one, set | frozenset):
        other_items = {item: item for item in other}
        pairs = [(item, other_items.get(item, MISSING)) for item in one]
    elif isinstance(one, list | tuple | deque):
        pairs = list(zip(one, other, strict=False))
    else:
        return bool(one == other)
    return len(one) == len(other) and all(same_values(*pair) for pair in pairs)


def is_object(value: Any) -> bool:
    """Return whether a value is an object that pydantic takes apart."""
    return isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type))


def own_copy(value: Any) -> Any:
    """Return a copy of what pydantic takes apart.

    All other objects in it (a sentinel, a connection), and those whose class cannot be copied, are
    passed on as the same objects.
    """
    pending, seen = [value], dict[int, Any]()
    memo: dict[int, Any] = {}  # marks objects as already copied for `deepcopy`
    while pending:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        if isinstance(part, dict):
            pending += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple | deque | set | frozenset):
            pending += part
        elif is_object(part):
            private = getattr(part, "__pydantic_private__", None) or {}
            pending += [*attributes_and_extras(part).values(), *private.values()]
        elif not isinstance(part, bytearray):
            memo[id(part)] = part
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # noqa: BLE001  an author's class may raise anything
        return value


def holds_secret(value: Any) -> bool:
    """Return whether a value contains a secret, at any depth."""
    pending, seen = [value], set[int]()
    while pending:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if is_secret(part):
            return True
        if isinstance(part, Mapping):
            pending += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple | deque | set | frozenset):
            pending += part
        elif is_object(part):
            pending.append(attributes_of(part))
    return False


def plain_default(value: Any) -> Any:
    """Return a value as JSON where no schema marks secrets; `MISSING` if it contains one."""
    try:
        return MISSING if holds_secret(value) else plain(value)
    except RecursionError:  # it contains itself
        return MISSING


def _plain_object(value: dict[Any, Any]) -> Any:
    result = {}
    for key, item in value.items():
        name = plain(key)
        result[name if isinstance(name, str) else canonical_json(name)] = plain(item)
    is_complete = len(result) == len(value) and not any(item is MISSING for item in result.values())
    return result if is_complete else MISSING


def _plain_text(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, WRITTEN):
        return str(value)
    if isinstance(value, Iterator):  # looking at one would use it up
        return MISSING
    try:
        jsonable = to_jsonable_python(value, by_alias=True, round_trip=True)
        canonical_json(jsonable)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError):
        package = type(value).__module__.partition(".")[0]
        return str(value) if package in ("pydantic", "pydantic_core") else MISSING
    except Exception:  # noqa: BLE001  an author's serializer
        return MISSING
    return jsonable


def same_json(one: Any, other: Any) -> bool:
    """Return whether two values are equal as JSON: `1` is `1.0`, and neither is `true`."""
    kind = one.__class__
    if kind is not other.__class__:
        return kind in NUMBERS and other.__class__ in NUMBERS and one == other
    if kind is dict:
        return one.keys() == other.keys() and all(same_json(v, other[k]) for k, v in one.items())
    if kind is list:
        return len(one) == len(other) and all(map(same_json, one, other))
    return bool(one == other)
