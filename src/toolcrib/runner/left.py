"""What an approver's edit leaves of a call's defaults: the very same values, of the same classes.

Rule: what is left of a default is the `same` value. If an edit changes a part of a default, that
default is first sent as a model could have sent it: what its class adds by itself is left out, the
rest is written. If the tool gets the same default from that, the edit is applied to this call. If
it does not, no arguments can express a part of the default, and nothing runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple

from toolcrib.errors import ErrorCode
from toolcrib.hydration import added_to
from toolcrib.runner.same import is_same, is_same_around
from toolcrib.runner.shown import ABSENT, Shown, Steps, have_parts, json_in, part_at, steps_of
from toolcrib.schema.derive.plain import MISSING, defaults_by_key, is_mark, parts_by_key
from toolcrib.schema.references import pointer_of
from toolcrib.values.call import Hydrated
from toolcrib.values.json import JsonObject, canonical_json
from toolcrib.values.record import CallError

_LOST = (
    "The edit leaves the default at {} unchanged, but the tool would get a different value or type "
    "there. The call did not run."
)
_IN_PART = (
    "The edit changes part of the default at {}. The rest of that default cannot be sent as arguments: "
    "it would change at {}. Leave this default as it was shown. The call did not run."
)


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
        """Yield the new and old step to each part that is still in its place."""
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
