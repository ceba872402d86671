"""Store the values of a call's default factories, so that each build of the call gets the same.

Rule: a default factory runs once per call. A call is built more than once: for a policy that looks
at its tool, in a subprocess, after it waited for an approval, perhaps in another process. So the
core schema of a hint is rewritten (`replayable`) to ask `FactoryValues` for each default that a
factory makes. The first time, the factory runs and its value is stored. After that, copies are
handed out in the same order. Apart from its factories, reading is deterministic: the same text asks
for the same values in the same order, whatever unions, sets, JSON strings and validators do in
between. A validator sees the same value each time.

For another process a value is stored as JSON, if the hint reads exactly that value back: the same
classes with the same attributes. A value that JSON cannot restore (a connection, an object of a
subclass) is made `anew` there. The call then runs only if its effective arguments are the same as
before. A value shown only by its type is `lost`: nobody can tell whether it is the value that was
asked about.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import cache, partial
from itertools import count
from typing import Any, Protocol, TypeAlias

import msgspec

from toolcrib.schema.derive.cores import definitions_of, factory_of, fields_of, rewritten
from toolcrib.schema.derive.plain import MISSING, own_copy, plain, plain_default, same_values
from toolcrib.schema.derive.roundtrip import (
    ADDS_TOO_MUCH,
    MAX_ADDED,
    Differs,
    FoundDefault,
    TooMuchWorkError,
    steps,
    weight_of_default,
)
from toolcrib.values.json import JsonValue


class Codec(Protocol):
    """Converts the values that a factory may make to JSON and back."""

    def shown(self, value: Any) -> Any:
        """Return the value as JSON; `MISSING` if it has no JSON form."""
        ...

    def __call__(self, shown: JsonValue, /) -> Any:
        """Return the value for this JSON. Raises whatever a reader raises."""
        ...


class _Value:
    """Holds a value as its factory made it; a connection stays the same object."""

    __slots__ = ("_codec", "_value", "is_json")

    def __init__(self, value: Any, codec: Callable[[], Codec], *, is_json: bool) -> None:
        self._codec = codec
        self.is_json = is_json
        self._value = own_copy(value)

    def again(self, _codec: Callable[[], Codec]) -> Any:
        return own_copy(self._value)

    def json(self) -> list[JsonValue]:
        """Return the value's JSON in a list, which is empty if JSON cannot restore the value."""
        if not self.is_json:
            return []
        try:
            codec = self._codec()
            shown = codec.shown(self._value)
            exact = shown is not MISSING and same_values(codec(shown), self._value)
        except Exception:  # noqa: BLE001  the author's own code reads it
            return []
        return [shown] if exact else []


class _Saved:
    """Holds a value of a saved call."""

    __slots__ = ("_listed",)

    def __init__(self, listed: JsonValue) -> None:
        self._listed = listed

    def again(self, codec: Callable[[], Codec]) -> Any:
        if not isinstance(self._listed, list) or len(self._listed) != 1:
            return MISSING
        try:
            return codec()(self._listed[0])
        except Exception:  # noqa: BLE001  the author's own code; the call will differ
            return MISSING


class FactoryFailed(Exception):  # noqa: N818  its cause is the failure
    """The default factory of `field` raised `__cause__`.

    It is not a ValueError, because a validator around the field would report that as a fault of the
    arguments.
    """

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


class ReturnedValue(msgspec.Struct, frozen=True):
    """The actual value that a factory returned when it was asked under `key`, not its JSON.

    `source` is the `ReturnedValue` that it was copied from, or None if the factory ran. `has_data`
    says that the factory received the fields before its own.
    """

    key: str
    factory: Callable[..., Any]
    value: Any
    stored: _Value
    source: ReturnedValue | None
    has_data: bool

    @property
    def is_json(self) -> bool:
        return self.stored.is_json

    def again(self, codec: Callable[[], Codec]) -> Any:
        copied = self.stored.again(codec)
        return self.value if copied is MISSING else copied


_MAX_COMPARED = 100  # values per place; beyond this, the origin is unknown
_COPIED = (list, tuple, deque, set, frozenset, dict)
UNKNOWN: Any = object()
"""The origin of a value that a validator made from a factory's value: it cannot be traced back."""


class AddedDefaults(msgspec.Struct, frozen=True):
    """The defaults of a call: each one's origin, by the steps to it, and all factory values.

    An origin is None for a constant, or else what the factory returned for this very place. `sets`
    points to collections without an order. `typed_arguments` are what the tool was given, by
    name or as one object; None if that is only JSON.
    """

    origins: dict[tuple[str | int, ...], ReturnedValue | None]
    factory_values: Sequence[ReturnedValue]
    sets: frozenset[str]
    typed_arguments: Any = None

    @staticmethod
    def of(
        found_defaults: Sequence[FoundDefault],
        factory_values: Sequence[ReturnedValue],
        sets: Iterable[str],
        typed_arguments: Any,
    ) -> AddedDefaults:
        unmatched: dict[tuple[int, int], deque[ReturnedValue]] = {}
        for made in factory_values:
            unmatched.setdefault((id(made.factory), id(made.value)), deque()).append(made)
        origins: dict[tuple[str | int, ...], ReturnedValue | None] = {}
        for at, value, factory in found_defaults:
            matches = unmatched.get((id(factory), id(value)))
            origin = matches.popleft() if matches else UNKNOWN
            origins[steps(at)] = None if factory is None else origin
        remaining = [made for matches in unmatched.values() for made in matches]
        for at, value, factory in found_defaults if remaining else ():
            # `validate_default` turns a list into another, equal list
            if origins[steps(at)] is UNKNOWN and isinstance(value, _COPIED):
                for index, candidate in enumerate(remaining[:_MAX_COMPARED]):
                    if candidate.factory is factory and _are_equal(candidate.value, value):
                        origins[steps(at)] = remaining.pop(index)
                        break
        return AddedDefaults(origins, factory_values, frozenset(sets), typed_arguments)


class FactoryValues:
    """The values that the default factories of one call made, by factory and in the order of asking.

    `before` holds earlier values by the key of asking. `pool` holds them by the author's factory,
    whoever asks it. If an entry is None, the factory runs. `returned` lists all values that were
    handed out, and `added` is their weight. `anew` says that an earlier value had to be made again,
    and `lost` that nothing shows whether it is the same.
    """

    __slots__ = ("_before", "_made", "_pool", "_scope", "added", "anew", "lost", "returned")

    def __init__(
        self, before: Mapping[str, Iterable[Any]] | None = None, pool: Iterable[ReturnedValue] = ()
    ) -> None:
        self._before = {key: deque(stored) for key, stored in (before or {}).items()}
        self._pool: dict[int, deque[Any]] = {}
        for made in pool:
            self._pool.setdefault(id(made.factory), deque()).append(made)
        self._made: dict[str, list[_Value]] = {}
        self.returned: list[ReturnedValue] = []
        self._scope = ""
        self.added = 0
        self.anew = self.lost = False

    @classmethod
    def of(cls, pinned: Mapping[str, JsonValue] | FactoryValues) -> FactoryValues:
        return pinned if isinstance(pinned, FactoryValues) else cls.of_json(pinned)

    @classmethod
    def of_json(cls, saved: Mapping[str, JsonValue]) -> FactoryValues:
        """Return the values of a saved call. Anything that is not one is made again."""
        lists = {key: stored for key, stored in saved.items() if isinstance(stored, list)}
        return cls({key: list(map(_Saved, stored)) for key, stored in lists.items()})

    def json(self) -> dict[str, JsonValue]:
        return {key: [value.json() for value in stored] for key, stored in self._made.items()}

    def again(self) -> FactoryValues:
        """Return values that hand out again what was stored here."""
        values = FactoryValues(self._made)
        values.anew, values.lost = self.anew, self.lost
        return values

    def value(
        self,
        key: str,
        factory: Callable[..., Any],
        codec: Callable[[], Codec],
        *data: Any,
        field: str = "",
    ) -> Any:
        """Return the next value of the factory of `field`: the stored one, or else a new one.

        `codec` is called only when a call is saved, or built from a saved one. Raises
        FactoryFailed, and TooMuchWorkError if all values together are too large.
        """
        earlier_values = self._before.get(key) or self._pool.get(id(factory))
        source = earlier_values.popleft() if earlier_values else None
        value = MISSING if source is None else source.again(codec)
        if value is MISSING:
            source, value = None, _run(field, factory, *data)
            self.anew = self.anew or key in self._before
            self.lost = self.lost or (bool(self._before) and not _is_shown(value, codec))
        shown = _json_or_missing(value)
        self.added += weight_of_default(shown, factory=True)
        if self.added > MAX_ADDED:
            raise TooMuchWorkError(ADDS_TOO_MUCH)
        stored = _Value(value, codec, is_json=shown is not MISSING)
        self._made.setdefault(key, []).append(stored)
        copied_from = source if isinstance(source, ReturnedValue) else None
        self.returned.append(ReturnedValue(key, factory, value, stored, copied_from, bool(data)))
        return value

    def reading(self, scope: str, read: Callable[[], Any]) -> Any:
        """Return what `read` returns, while the factories of a replayable core schema ask here.

        `scope` distinguishes the factories of this reader from those of another.
        """
        self._scope = scope
        outer = _CURRENT.set(self)
        try:
            return read()
        finally:
            _CURRENT.reset(outer)

    def scoped(self, index: int) -> str:
        return f"{self._scope}.{index}"


Pinned: TypeAlias = Mapping[str, JsonValue] | FactoryValues | None
"""What default factories made earlier for a call: as JSON, or in one process the values."""
_CURRENT: ContextVar[FactoryValues | None] = ContextVar("_CURRENT", default=None)


def replayable(core: Any, codec_of: Callable[[Any], Codec]) -> Any:
    """Return a core schema whose default factories ask the `FactoryValues` of the call being read.

    `codec_of` makes the codec of a factory from the core schema of its field. A validator of this
    core schema must not use the prebuilt validators of classes, which do not ask.
    """
    number = count()

    def codec(core: Any) -> Codec:
        shared = definitions_of(replayable_core)
        with_definitions = (
            {"type": "definitions", "schema": core, "definitions": shared} if shared else core
        )
        return codec_of(with_definitions)

    def change(node: Any, _original: Any) -> Any:
        for name, field in fields_of(node):
            replayed = factory_of(field)
            if isinstance(replayed, _ReplayedFactory):
                replayed.field = replayed.field or name
        if "default_factory" not in node:
            return node
        cached_codec = cache(partial(codec, node["schema"]))
        replayed = _ReplayedFactory(next(number), node["default_factory"], cached_codec)
        return {**node, "default_factory": replayed}

    replayable_core = rewritten(core, change)
    return replayable_core


class _ReplayedFactory:
    """A factory that asks, while a call is being read; it may receive the fields before its own."""

    __slots__ = ("_codec", "_factory", "_index", "field")

    def __init__(self, index: int, factory: Callable[..., Any], codec: Callable[[], Codec]) -> None:
        self._index = index
        self._factory = factory
        self._codec = codec
        self.field = ""

    def __call__(self, *data: Any) -> Any:
        values = _CURRENT.get()
        if values is None:
            return self._factory(*data)
        key = values.scoped(self._index)
        return values.value(key, self._factory, self._codec, *data, field=self.field)


def _run(field: str, factory: Callable[..., Any], *data: Any) -> Any:
    try:
        return factory(*data)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an author's code
        raise FactoryFailed(field) from error


def _json_or_missing(value: Any) -> Any:
    try:
        return plain(value)
    except Exception:  # noqa: BLE001  an author's class may raise anything
        return MISSING


def _is_shown(value: Any, codec: Callable[[], Codec]) -> bool:
    """Return whether someone who looks at a call sees more of a value than its type."""
    if plain_default(value) is MISSING:
        return False
    try:
        return codec().shown(value) is not MISSING
    except Differs:  # it does not fit its hint, and is shown as it is
        return True
    except Exception:  # noqa: BLE001  an author's class may raise anything
        return False


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return same_values(one, other)
    except Exception:  # noqa: BLE001  an author's class may raise anything
        return False
