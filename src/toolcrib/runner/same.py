"""When two values are the same: as JSON, and as what a tool is given.

Rule: values are the same if they are of one class, and the same in everything that they hold, as
pickle takes them apart. Comparing JSON is not enough: it does not say which class of a union a
value has, nor that a string was a `Decimal`.
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterable
from datetime import timezone
from functools import cached_property
from typing import Any, Final

from pydantic_core import TzInfo

from toolcrib.schema.derive.plain import (
    MISSING,
    attributes_of,
    classes_of,
    fields_by_key,
    held_by,
    is_object,
    same_json,
)
from toolcrib.values.json import has_rounded

_SCALARS: Final = frozenset((str, int, float, bool, bytes, type(None)))
_MOST_COMPARED: Final = 1_000_000  # values; a default that holds more never counts as the same


class SameJson:
    """Compares JSON, each pair of containers once."""

    def __init__(self) -> None:
        # Keyed by identity; holding the two values keeps the identities valid.
        self._known: dict[tuple[int, int], tuple[bool, Any, Any]] = {}

    def __call__(self, one: Any, other: Any) -> bool:
        """Return whether two values are the same JSON."""
        if not (isinstance(one, dict | list) and isinstance(other, one.__class__)):
            is_one_kind = one.__class__ is other.__class__
            return same_json(one, other) and (
                is_one_kind or not any(map(has_rounded, (one, other)))
            )
        key = id(one), id(other)
        if key not in self._known:
            steps = set(one) if isinstance(one, dict) else range(len(one))
            others = set(other) if isinstance(other, dict) else range(len(other))
            inner = (self(one[step], other[step]) for step in steps)
            self._known[key] = steps == others and all(inner), one, other
        return self._known[key][0]


def is_same(one: Any, other: Any) -> bool:
    """Return whether another value is and holds the same as this one.

    An equal float may stand for a whole number, and pydantic's time zone for one of the same
    offset, because type hints read them so.
    """
    pending = [(one, other)]
    seen: dict[tuple[int, int], Any] = {}  # holding the values keeps their identities valid
    try:
        while pending:
            pair = pending.pop()
            if pair[0] is pair[1] or (key := (id(pair[0]), id(pair[1]))) in seen:
                continue
            seen[key] = pair
            inner = _held(*pair) if len(seen) < _MOST_COMPARED else None
            if inner is None:
                return False
            pending += inner
    except Exception:  # noqa: BLE001  an author's class may raise anything
        return False
    return True


def _held(one: Any, other: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return what two values hold, in pairs; None if they differ otherwise."""
    kind = type(one)
    if kind is int and type(other) is float:
        return () if one == other else None
    if kind is timezone and type(other) is TzInfo:  # how pydantic reads an offset
        return () if one.utcoffset(None) == other.utcoffset(None) else None
    if kind is not type(other):
        return None
    if kind in _SCALARS:
        return () if repr(one) == repr(other) else None
    if kind is dict or kind is set or kind is frozenset:
        names = {name: name for name in other}
        pairs = [(name, names.get(name, MISSING)) for name in one]
        if kind is dict:
            pairs += [(part, other.get(name, MISSING)) for name, part in one.items()]
        return pairs if len(one) == len(other) else None
    if kind is not list and kind is not tuple:
        one, other = _reduced(one), _reduced(other)
    return zip(one, other, strict=True) if len(one) == len(other) else None


def _reduced(value: Any) -> list[Any]:
    """Return what pickle reduces a value to.

    Raises what that raises, and TypeError for an object that is pickled by name only.
    """
    kind: Any = type(value)
    known = copyreg.dispatch_table.get(kind)
    made: Any = known(value) if known else kind.__reduce_ex__(value, 4)
    if not isinstance(made, tuple):
        raise TypeError("it has only a name")
    make, args, state, items, pairs = (*made, None, None, None)[:5]
    if is_object(value) and (state is None or isinstance(state, dict)):
        state = _attributes(value)
    return [make, args, state, items and list(items), pairs and dict(pairs)]


def _attributes(value: Any) -> tuple[dict[str, Any], Any]:
    """Return what an object holds, declared or not, and its private attributes.

    Attributes that only record what was sent are left out, and so is what a `cached_property`
    computed.
    """
    kind = type(value)
    held = held_by(value).items()
    kept = {n: one for n, one in held if not isinstance(getattr(kind, n, None), cached_property)}
    return kept, getattr(value, "__pydantic_private__", None)


def is_same_around(one: Any, other: Any, shown: Any) -> bool:
    """Return whether two values are of one class, and equal in what is not shown of them."""
    try:
        return is_same(_around(one, shown), _around(other, shown))
    except Exception:  # noqa: BLE001  an author's class may raise anything
        return False


def _around(value: Any, shown: Any) -> list[Any]:
    """Return a value's class and what it holds besides what is shown of it."""
    if is_object(value):
        named = {name for key, (name, _) in fields_by_key(value).items() if key in shown}
        held, private = _attributes(value)
        hidden = {n: one for n, one in held.items() if n not in named and n not in shown}
        if isinstance(value, classes_of("pydantic.root_model", "RootModel")):
            hidden = {"root": _around(attributes_of(value), shown)}
        return [type(value), hidden, private]
    make, args, state, *_ = _reduced(value)
    names = dict.fromkeys(value) if isinstance(value, dict) else None
    is_of_items = isinstance(value, tuple | set | frozenset)
    return [type(value), make, () if is_of_items else args, state, names]
