"""What was shown of a call, and what an edit leaves of its defaults: the very same values.

Rule: a part of an object keeps its place under its name. An item keeps its place in a list whose
length did not change. If the length changed, unchanged items at the beginning and the end keep
their places.

Rule: what is left of a default is the `same` value. If an edit changes a part of a default, that
default is first sent as a model could have sent it: what its class adds by itself is left out, the
rest is written. If the tool gets the same default from that, the edit is applied to this call. If
it does not, no arguments can express a part of the default, and nothing runs.

Rule: values are the same if they are of one class, and the same in everything that they hold, as
pickle takes them apart. Comparing JSON is not enough: it does not say which class of a union a
value has, nor that a string was a `Decimal`.
"""

from __future__ import annotations

import copyreg
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timezone
from enum import Enum
from functools import cached_property, reduce
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
_MOST_COMPARED: Final = 1_000_000  # values; a default that holds more never counts as the same
_LOST = (
    "The edit leaves the default at {} unchanged, but the tool would get a different value or type "
    "there. The call did not run."
)
_IN_PART = (
    "The edit changes part of the default at {}. The rest of that default cannot be sent as arguments: "
    "it would change at {}. Leave this default as it was shown. The call did not run."
)


class Shown:
    """The arguments of a call as they were shown.

    `origins` maps the places of its defaults to what a factory made there, or None without one;
    `above` holds these places and all places around them. What is in `whole` is left or written as
    a whole.
    """

    def __init__(self, hydrated: Hydrated) -> None:
        added = added_to(hydrated)
        self.arguments = hydrated.arguments
        self.sent = hydrated.building.sent
        self.given = added.given
        self.asked = added.asked
        self.origins = added.origins
        self.above = {at[:depth] for at in added.origins for depth in range(len(at) + 1)}
        self.whole = added.sets.union(hydrated.building.normalised)
        self.same = SameJson()

    def at(self, place: Steps) -> Any:
        """Return what was shown at a place."""
        return reduce(part_at, place, self.arguments)

    def places(self, edited: Any, shown: Any, at: Steps | None) -> dict[Any, Any]:
        """Map the steps in an edit to the old steps of the parts that kept their places.

        The object or list was shown at `at`. A list that ends in a default there is a tuple, whose
        items keep their places.
        """
        if isinstance(edited, dict):
            return {name: name for name in edited}
        if not isinstance(shown, list):
            return {}
        is_tuple = at is not None and (*at, len(shown) - 1) in self.origins
        shorter, more = min(len(edited), len(shown)), len(shown) - len(edited)
        if is_tuple or not more:
            return {index: index for index in range(shorter)}
        head = 0
        while head < shorter and self.same(edited[head], shown[head]):
            head += 1
        tail = len(edited)
        while tail > max(head, head - more) and self.same(edited[tail - 1], shown[tail - 1 + more]):
            tail -= 1
        moved = {index: index + more for index in range(tail, len(edited))}
        return {index: index for index in range(head)} | moved


def have_parts(one: Any, other: Any) -> bool:
    """Return whether both are objects, or both are lists."""
    return isinstance(one, dict | list) and isinstance(other, one.__class__)


def steps_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the parts of an object or a list with their names or indexes."""
    return value.items() if isinstance(value, dict) else enumerate(value)


def part_at(value: Any, step: Any) -> Any:
    """Return a part of an object or a list; `ABSENT` if there is none."""
    try:
        return value[step]
    except (LookupError, TypeError):
        return ABSENT


def json_in(text: Any) -> Any:
    """Return the object or the list that a string holds as JSON, if it does."""
    try:
        found = read_text(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found if isinstance(found, dict | list) else None


class Besides(Enum):
    """Says which parts of a default are sent although its class adds them by itself.

    `CHANGED` sends what the edit changes, as it was shown: that part may say which class is meant,
    or be left alone by a validator. `SCALARS` also sends everything else that is neither an object
    nor a list.
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
    """Holds one part of the original call, and of the call that was read from its edit.

    Holds the values that the tool gets, their JSON, what the edit says, and the old and new place.
    """

    old: Any
    new: Any
    shown: Any
    made: Any
    edited: Any
    was: Steps
    at: Steps


class _Rule(NamedTuple):
    """Says what a part must keep.

    A default keeps what is left of it. With `is_base`, while nothing is edited yet, it also keeps
    what surrounds that.
    """

    is_base: bool
    is_default: bool = False


class LeftDefaults:
    """Knows the defaults of a call, and what an edit leaves of them."""

    def __init__(self, edited: JsonObject, hydrated: Hydrated) -> None:
        self._edited = edited
        self._shown = shown = Shown(hydrated)
        self._same = shown.same
        self._changed = dict(self._changed_in(edited, shown.arguments, shown.given, ()))
        self._in_part = {at for at, (_, *both) in self._changed.items() if have_parts(*both)}
        self._lost_at: Steps = ()

    def _changed_in(
        self, edited: Any, shown: Any, value: Any, at: Steps
    ) -> Iterator[tuple[Steps, _Changed]]:
        if at not in self._shown.above or self._same(edited, shown):
            return
        if at in self._shown.origins:
            if not is_mark(shown):
                yield at, _Changed(value, shown, edited)
        elif have_parts(shown, edited) and pointer_of(at) not in self._shown.whole:
            parts = parts_by_key(value)
            for step, was in self._places(edited, shown, at):
                part = part_at(parts, was)
                yield from self._changed_in(edited[step], shown[was], part, (*at, was))

    def _places(self, edited: Any, shown: Any, at: Steps) -> Iterator[tuple[Any, Any]]:
        places = self._shown.places(edited, shown, at)
        return (pair for pair in places.items() if part_at(shown, pair[1]) is not ABSENT)

    def to_send(self, besides: Besides) -> dict[Steps, Any]:
        """Return what to send for defaults that the edit changes, so that the tool gets the same.

        That is everything their classes do not add by themselves, and what `besides` says.
        """
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
        places = self._places(edited, shown, ()) if have_parts(shown, edited) else ()
        now = {was: edited[step] for step, was in places}
        made: dict[Any, Any] = {}
        for step, one in steps_of(shown):
            then, part = now.get(step, ABSENT), part_at(parts, step)
            default = defaults.get(step, MISSING)
            if self._same(then, one):
                is_sent = besides is Besides.SCALARS and not isinstance(one, dict | list)
                is_sent = is_sent or not is_same(part, default)
            else:
                is_sent = besides is not Besides.NOTHING or have_parts(one, then)
            if is_sent or default is MISSING:
                then = then if have_parts(one, then) else one
                made[step] = self._to_send(_Changed(part, one, then), besides)
        return made if isinstance(shown, dict) else list(made.values())

    @property
    def error(self) -> CallError:
        """The error if no arguments can reproduce a default of which the edit changes a part."""
        at = min(self._in_part, key=pointer_of)
        text = _IN_PART.format(pointer_of(at), pointer_of(self._lost_at or at))
        return CallError.of(ErrorCode.APPROVAL_MISMATCH, text)

    def error_of(self, read: Hydrated) -> CallError | None:
        """Return the error if the call read from the edit has another value for a kept default."""
        lost = self._lost_in(read, _Rule(is_base=False))
        if lost is None:
            return None
        return CallError.of(ErrorCode.APPROVAL_MISMATCH, _LOST.format(pointer_of(lost)))

    def stays_in(self, base: Hydrated) -> bool:
        """Return whether a call with defaults sent is the same except for what the edit changes."""
        lost = self._lost_in(base, _Rule(is_base=True))
        self._lost_at = self._lost_at or lost or ()
        return lost is None

    def _lost_in(self, read: Hydrated, rule: _Rule) -> Steps | None:
        shown, given = self._shown, added_to(read).given
        if shown.given is None or given is None:
            return None
        whole = _Pair(shown.given, given, shown.arguments, read.arguments, self._edited, (), ())
        return self._lost(whole, rule)

    def _lost(self, part: _Pair, rule: _Rule) -> Steps | None:
        """Return the first place at which a call has another value than what was left there."""
        if part.was in self._shown.origins:
            rule = rule._replace(is_default=True)
        if self._same(part.edited, part.shown):
            is_told = is_mark(part.shown) and part.was in self._shown.origins
            if rule.is_default and not is_told:  # an `InitVar` is shown only from what was sent
                return None if is_same(part.old, part.new) else part.at
            if rule.is_base and not self._same(part.made, part.shown):
                return part.at
            if rule.is_default:
                return None
        texts = json_in(part.shown), json_in(part.made), json_in(part.edited)
        if not isinstance(part.old, str) and None not in texts:  # JSON in a string has no defaults
            shown, made, edited = texts
            part = part._replace(shown=shown, made=made, edited=edited)
            rule = rule._replace(is_default=True)
        if not (rule.is_default or part.was in self._shown.above):
            return None
        return self._lost_within(part, rule) if have_parts(part.shown, part.edited) else None

    def _lost_within(self, part: _Pair, rule: _Rule) -> Steps | None:
        """Return the same for a part that the edit changes in part."""
        if not part.shown and isinstance(part.old, tuple | frozenset):
            return None  # there is nothing to keep
        if isinstance(part.old, set | frozenset):
            lost = None if _holds_what_was_left(part) else part.at
        else:
            found = (self._lost_at_step(one, rule) for one in self._below(part, rule))
            lost = next((one for one in found if one is not None), None)
        if lost is not None or not (rule.is_base and rule.is_default):
            return lost
        return None if is_same_around(part.old, part.new, part.shown) else part.at

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
        is_seen = part.old is not ABSENT and part.was in self._shown.above
        return part.at if rule.is_default or is_seen else None


def _holds_what_was_left(part: _Pair) -> bool:
    """Return whether another set still has as many of this set's items as the edit has left."""
    if not isinstance(part.new, set | frozenset):
        return False
    own = {item: item for item in part.new}
    there = sum(item in own and is_same(item, own[item]) for item in part.old)
    left = Counter(map(canonical_json, part.shown)) & Counter(map(canonical_json, part.edited))
    return there >= left.total()


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
