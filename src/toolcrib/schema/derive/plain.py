"""A Python value of any kind as the JSON that it is, and JSON values that are the same.

Attributes count, not what a class says of itself: secrets are opened, enums are their values.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from fractions import Fraction
from math import isfinite
from typing import Any

from pydantic import Secret, SecretBytes, SecretStr
from pydantic_core import PydanticSerializationError, to_jsonable_python

from toolcrib.values.json import canonical_json

MISSING: Any = object()
SECRETS = (SecretStr, SecretBytes, Secret)
_NUMBERS = (int, float)
_SCALARS = frozenset((str, int, float, bool, type(None)))


def plain(value: Any) -> Any:
    """A value of any kind as JSON, secrets unwrapped; `MISSING` for what is none."""
    kind = value.__class__
    if kind in _SCALARS:
        return value if kind is not float or isfinite(value) else MISSING
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, SECRETS):
        return plain(value.get_secret_value())
    if isinstance(value, dict):
        return _plain_object(value)
    if isinstance(value, list | tuple | deque | set | frozenset):
        items = [plain(item) for item in value]
        if any(item is MISSING for item in items):
            return MISSING
        return sorted(items, key=canonical_json) if isinstance(value, set | frozenset) else items
    return _plain_text(value)


def _plain_object(value: dict[Any, Any]) -> Any:
    made = {}
    for key, item in value.items():
        name = plain(key)
        made[name if isinstance(name, str) else canonical_json(name)] = plain(item)
    whole = len(made) == len(value) and not any(item is MISSING for item in made.values())
    return made if whole else MISSING


def _plain_text(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Fraction):
        return str(value)
    try:
        made = to_jsonable_python(value, by_alias=True, round_trip=True)
        canonical_json(made)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError):
        owner = type(value).__module__.partition(".")[0]
        return str(value) if owner in ("pydantic", "pydantic_core") else MISSING
    except Exception:  # noqa: BLE001  a serializer of the author's
        return MISSING
    return made


def same_json(one: Any, other: Any) -> bool:
    """Equal as JSON: `1` is `1.0`, and neither is `true`."""
    kind = one.__class__
    if kind is not other.__class__:
        return kind in _NUMBERS and other.__class__ in _NUMBERS and one == other
    if kind is dict:
        return one.keys() == other.keys() and all(same_json(v, other[k]) for k, v in one.items())
    if kind is list:
        return len(one) == len(other) and all(map(same_json, one, other))
    return bool(one == other)
