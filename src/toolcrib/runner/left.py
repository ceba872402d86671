"""What an approver's edit leaves of the defaults of a call: the very values, of the same classes.

Rule: what is left of a default is the same in everything that it holds, as pickle takes it apart. JSON
does not say of which class of a union a value is, nor that a text was a `Decimal`. So where an edit
changes a part of a default, that is first sent as a model could have sent it: what its class adds by
itself is left out, the rest is written. If the tool gets the same default of that, the edit is one of
this call; if it does not, nobody can say a part of the default, and nothing runs.
"""

from __future__ import annotations

import copyreg
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import timezone
from enum import Enum
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

from pydantic_core import TzInfo

from toolcrib.errors import ErrorCode
from toolcrib.hydration import added_to
from toolcrib.schema.derive.plain import (
    MISSING,
    attributes_of,
    classes_of,
    defaults_by_key,
    fields_by_key,
    held_by,
    is_mark,
    is_object,
    parts_by_key,
    same_json,
)
from toolcrib.schema.references import pointer_of, read_text
from toolcrib.values.call import Hydrated
from toolcrib.values.json import JsonObject, canonical_json, has_rounded
from toolcrib.values.record import CallError

Steps: TypeAlias = tuple[str | int, ...]
ABSENT: Final[Any] = object()
_SCALARS: Final = frozenset((str, int, float, bool, bytes, type(None)))
_MOST_COMPARED: Final = 1_000_000  # values; a default that holds more is none that can be left
_LOST = (
    "The tool would get another value, or one of another type, for the default at {}, which the edit "
    "leaves as it was shown. The call did not run."
)
_IN_PART = (
    "The edit changes a part of the default at {}, of which no arguments can say the rest: sent as it "
    "was shown, it would be another value, or of another type, at {}. Leave this default as it was "
    "shown. The call did not run."
)


class SameJson:
    """Compares JSON, each pair of containers once."""

    def __init__(self) -> None:
        # by identity, with the two values, which so stay alive
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


class Besides(Enum):
    """Says which parts of a default are sent although its class adds them by itself.

    `CHANGED` sends what the edit changes, as it was shown: it may say which class is meant, or be what
    a validator leaves alone. `SCALARS` sends that, and all else that is no object and no list.
    """

    NOTHING = 0
    CHANGED = 1
    SCALARS = 2


class _Changed(NamedTuple):
    """A default that an edit changes: its value, its JSON, and what the edit says."""

    value: Any
    shown: Any
    edited: Any


class _Pair(NamedTuple):
    """A part of a call, and of one that was read of its edit: the values that the tool gets, their
    JSON, what the edit says, and where it stood and stands."""

    old: Any
    new: Any
    shown: Any
    made: Any
    edited: Any
    was: Steps
    at: Steps


class _Rule(NamedTuple):
    """What a part has to keep: a default what is left of it and, `is_base`, while nothing is edited
    yet, what is around that."""

    is_base: bool
    is_default: bool = False


class LeftDefaults:
    """Knows the defaults of a call, and what an edit leaves of them."""

    def __init__(self, edited: JsonObject, hydrated: Hydrated) -> None:
        added = added_to(hydrated)
        self._edited = edited
        self._shown = hydrated.arguments
        self._given = added.given
        self._origins = added.origins
        self._above = {at[:depth] for at in added.origins for depth in range(len(at) + 1)}
        self._as_one = added.sets.union(hydrated.building.normalised)
        self._same = SameJson()
        self._changed = dict(self._changed_in(edited, self._shown, self._given, ()))
        self._in_part = {at for at, (_, *both) in self._changed.items() if _have_parts(*both)}
        self._lost_at: Steps = ()

    def _changed_in(
        self, edited: Any, shown: Any, value: Any, at: Steps
    ) -> Iterator[tuple[Steps, _Changed]]:
        if at not in self._above or self._same(edited, shown):
            return
        if at in self._origins:
            if not is_mark(shown):
                yield at, _Changed(value, shown, edited)
        elif _have_parts(shown, edited) and pointer_of(at) not in self._as_one:
            parts = parts_by_key(value)
            for step, was in self._places(edited, shown, at):
                part = part_at(parts, was)
                yield from self._changed_in(edited[step], shown[was], part, (*at, was))

    def _places(self, edited: Any, shown: Any, at: Steps) -> Iterator[tuple[Any, Any]]:
        """Yield the steps to what stands at its place: as it is now, and as it was."""
        is_tuple = isinstance(shown, list) and (*at, len(shown) - 1) in self._origins
        places = places_of(edited, shown, self._same, is_tuple=is_tuple)
        return (pair for pair in places.items() if part_at(shown, pair[1]) is not ABSENT)

    def to_send(self, besides: Besides) -> dict[Steps, Any]:
        """Return what to send for the defaults that the edit changes, so that the tool gets the same:
        all that their classes do not add by themselves, and something `besides`."""
        return {
            at: self._to_send(changed, besides)
            for at, changed in self._changed.items()
            if besides is not Besides.NOTHING or at in self._in_part
        }

    def _to_send(self, changed: _Changed, besides: Besides) -> Any:
        value, shown, edited = changed
        if not isinstance(shown, dict | list):
            return shown
        defaults, parts = defaults_by_key(value), parts_by_key(value)
        places = self._places(edited, shown, ()) if _have_parts(shown, edited) else ()
        now = {was: edited[step] for step, was in places}
        made: dict[Any, Any] = {}
        for step, one in steps_of(shown):
            then, part = now.get(step, ABSENT), part_at(parts, step)
            default = defaults.get(step, MISSING)
            if self._same(then, one):
                is_sent = besides is Besides.SCALARS and not isinstance(one, dict | list)
                is_sent = is_sent or not _is_same(part, default)
            else:
                is_sent = besides is not Besides.NOTHING or _have_parts(one, then)
            if is_sent or default is MISSING:
                then = then if _have_parts(one, then) else one
                made[step] = self._to_send(_Changed(part, one, then), besides)
        return made if isinstance(shown, dict) else list(made.values())

    @property
    def error(self) -> CallError:
        """What to say where nothing that can be sent is a default of which the edit changes a part."""
        at = min(self._in_part, key=pointer_of)
        text = _IN_PART.format(pointer_of(at), pointer_of(self._lost_at or at))
        return CallError.of(ErrorCode.APPROVAL_MISMATCH, text)

    def error_of(self, read: Hydrated) -> CallError | None:
        """Return what to say where the call that was read of the edit has another value for a default
        that was left."""
        lost = self._lost_in(read, _Rule(is_base=False))
        if lost is None:
            return None
        return CallError.of(ErrorCode.APPROVAL_MISMATCH, _LOST.format(pointer_of(lost)))

    def stays_in(self, base: Hydrated) -> bool:
        """Return whether a call with defaults sent is the same, but for what the edit changes."""
        lost = self._lost_in(base, _Rule(is_base=True))
        self._lost_at = self._lost_at or lost or ()
        return lost is None

    def _lost_in(self, read: Hydrated, rule: _Rule) -> Steps | None:
        given = added_to(read).given
        if self._given is None or given is None:
            return None
        whole = _Pair(self._given, given, self._shown, read.arguments, self._edited, (), ())
        return self._lost(whole, rule)

    def _lost(self, part: _Pair, rule: _Rule) -> Steps | None:
        """Return the first place at which a call has another value than what was left there."""
        if part.was in self._origins:
            rule = rule._replace(is_default=True)
        if self._same(part.edited, part.shown):
            is_told = is_mark(part.shown) and part.was in self._origins
            if rule.is_default and not is_told:  # an `InitVar` is shown of what was sent only
                return None if _is_same(part.old, part.new) else part.at
            if rule.is_base and not self._same(part.made, part.shown):
                return part.at
            if rule.is_default:
                return None
        texts = json_in(part.shown), json_in(part.made), json_in(part.edited)
        if not isinstance(part.old, str) and None not in texts:  # JSON in a text tells no defaults
            shown, made, edited = texts
            part = part._replace(shown=shown, made=made, edited=edited)
            rule = rule._replace(is_default=True)
        if not (rule.is_default or part.was in self._above):
            return None
        return self._lost_within(part, rule) if _have_parts(part.shown, part.edited) else None

    def _lost_within(self, part: _Pair, rule: _Rule) -> Steps | None:
        """Return the same of a part that the edit changes in part."""
        if not part.shown and isinstance(part.old, tuple | frozenset):
            return None  # there is nothing to be left
        if isinstance(part.old, set | frozenset):
            lost = None if _holds_what_was_left(part) else part.at
        else:
            found = (self._lost_at_step(one, rule) for one in self._below(part, rule))
            lost = next((one for one in found if one is not None), None)
        is_checked = rule.is_base and rule.is_default and lost is None
        return part.at if is_checked and not _is_same_around(part) else lost

    def _below(self, part: _Pair, rule: _Rule) -> Iterator[_Pair]:
        old, new = parts_by_key(part.old), parts_by_key(part.new)
        for step, was in self._places(part.edited, part.shown, part.was):
            now = was if rule.is_base else step
            values = part_at(old, was), part_at(new, now)
            said = part.shown[was], part_at(part.made, now), part.edited[step]
            yield _Pair(*values, *said, (*part.was, was), (*part.at, step))

    def _lost_at_step(self, part: _Pair, rule: _Rule) -> Steps | None:
        if part.old is not ABSENT and part.new is not ABSENT:
            return self._lost(part, rule)
        is_seen = part.old is not ABSENT and part.was in self._above
        return part.at if rule.is_default or is_seen else None


def _holds_what_was_left(part: _Pair) -> bool:
    """Return whether as many items of a set are in another one as the edit has left."""
    if not isinstance(part.new, set | frozenset):
        return False
    own = {item: item for item in part.new}
    there = sum(item in own and _is_same(item, own[item]) for item in part.old)
    left = Counter(map(canonical_json, part.shown)) & Counter(map(canonical_json, part.edited))
    return there >= left.total()


def _is_same(one: Any, other: Any) -> bool:
    """Return whether another value is all that one is, and holds: an equal float may stand for a whole
    number, and pydantic's zone for one of the same offset, which their hints read so."""
    pending = [(one, other)]
    seen: dict[tuple[int, int], Any] = {}  # with the values, which so stay alive
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
    """Return in pairs what two values hold; None if there is another difference between them."""
    kind = type(one)
    if kind is int and type(other) is float:
        return () if one == other else None
    if kind is timezone and type(other) is TzInfo:  # as pydantic reads an offset
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
    """Return what pickle makes a value of. Raises whatever it raises, and TypeError for what has only
    a name."""
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
    """Return what an object holds, declared or not, and what is private to it; not what of it was sent,
    nor what a `cached_property` made of the rest."""
    kind = type(value)
    held = held_by(value).items()
    kept = {n: one for n, one in held if not isinstance(getattr(kind, n, None), cached_property)}
    return kept, getattr(value, "__pydantic_private__", None)


def _is_same_around(part: _Pair) -> bool:
    """Return whether two values are of one class, and hold the same besides what is shown of them."""
    try:
        return _is_same(_around(part.old, part.shown), _around(part.new, part.shown))
    except Exception:  # noqa: BLE001  an author's class may raise anything
        return False


def _around(value: Any, shown: Any) -> list[Any]:
    """Return what a value is, and holds besides what is shown of it."""
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


def _have_parts(one: Any, other: Any) -> bool:
    """Return whether both are objects, or both are lists."""
    return isinstance(one, dict | list) and isinstance(other, one.__class__)


def steps_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the parts of an object or a list with their names or indexes."""
    return value.items() if isinstance(value, dict) else enumerate(value)


def places_of(
    edited: Any, shown: Any, same: Callable[[Any, Any], bool], *, is_tuple: bool = False
) -> dict[Any, Any]:
    """Return where the parts stood that are at their places; in a list whose length changed, these are
    its beginning and its end, as far as they are as they were shown."""
    if isinstance(edited, dict):
        return {name: name for name in edited}
    if not isinstance(shown, list):
        return {}
    shorter, more = min(len(edited), len(shown)), len(shown) - len(edited)
    if is_tuple or not more:
        return {index: index for index in range(shorter)}
    head = 0
    while head < shorter and same(edited[head], shown[head]):
        head += 1
    tail = len(edited)
    while tail > max(head, head - more) and same(edited[tail - 1], shown[tail - 1 + more]):
        tail -= 1
    moved = {index: index + more for index in range(tail, len(edited))}
    return {index: index for index in range(head)} | moved


def part_at(value: Any, step: Any) -> Any:
    """Return a part of an object or a list, `ABSENT` where there is none."""
    try:
        return value[step]
    except (LookupError, TypeError):
        return ABSENT


def json_in(text: Any) -> Any:
    """Return the object or the list that stands as JSON within a text, if one does."""
    try:
        found = read_text(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found if isinstance(found, dict | list) else None
