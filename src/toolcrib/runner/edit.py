"""An approver's edit: the call that runs with other arguments than the model's, if it is valid.

Rule: the tool gets what the edited arguments say, or nothing runs. A value that is still in its
place as it was `shown` is sent as the model sent it: a default stays a default, and a factory's
value is that very value. Everything else counts as written by the approver and is read as if the
model had sent it. Then what the tool would get is compared with the edited arguments. What was left
alone must equal what was shown. A validator may change what was written only if it leaves alone
what was shown. `left` determines which parts of defaults are left.

In this module a mark is the placeholder shown for a default that has no JSON.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, cast

import msgspec

from toolcrib.errors import ErrorCode
from toolcrib.hydration import added_to, hydrate
from toolcrib.runner.left import (
    ABSENT,
    Besides,
    LeftDefaults,
    Shown,
    Steps,
    json_in,
    part_at,
    steps_of,
)
from toolcrib.runner.stopped import ExceptionHook, Stopped
from toolcrib.schema.derive.factories import AddedDefaults, FactoryValues, Made
from toolcrib.schema.derive.plain import is_mark
from toolcrib.schema.references import pointer_of
from toolcrib.tools import Catalog
from toolcrib.values.call import Hydrated, HydrationResult, Rejected
from toolcrib.values.json import JsonObject, canonical_json, json_bytes
from toolcrib.values.record import CallError

_CHANGED = (
    "The tool would not get the edited arguments{}: a validator or a default would change a value "
    "again. The call did not run."
)
_STANDS_FOR = (
    '`{"default": …}` shows only the type of a default, and may stay only where it was shown. The call '
    "did not run."
)
_MOVED = (
    "The edit keeps defaults that cannot be written as JSON, and one of them may end up at another "
    "item. The call did not run."
)


def edited_call(
    edited: JsonObject, hydrated: Hydrated, catalog: Catalog, hook: ExceptionHook
) -> HydrationResult:
    """Return the call with `edited` as its effective arguments; Rejected if they do not fit.

    `hook` is called with what the author's code raises. Raises Stopped if the tool would get
    something else than `edited` says.
    """
    left = LeftDefaults(edited, hydrated)
    failed: list[Rejected | CallError] = []
    for base in _bases(left, hydrated, catalog):
        reader = _Reader(base, catalog, left)
        first = reader.read(edited, None if failed else hook)
        if isinstance(first, Hydrated):
            return first
        second = reader.read_as_written(edited)
        if isinstance(second, Hydrated):
            return second
        failed += [first, second]
    rejected = [one for one in failed[:2] if isinstance(one, Rejected)]
    if rejected:
        return rejected[0]
    errors = [one for one in failed if isinstance(one, CallError)]
    raise Stopped(errors[0] if errors else left.error)


def _bases(left: LeftDefaults, hydrated: Hydrated, catalog: Catalog) -> Iterator[Hydrated]:
    """Yield the calls that the edit may be based on.

    First this call, for an edit that changes no part of a default; then this call with the defaults
    sent that the edit changes.
    """
    tried: list[dict[Steps, Any]] = []
    for besides in Besides:
        sent = left.to_send(besides)
        if sent in tried:
            continue
        tried.append(sent)
        base = _Reader(hydrated, catalog, left).read_with(sent) if sent else hydrated
        if base is not None:
            yield base


class _Reader:
    def __init__(self, hydrated: Hydrated, catalog: Catalog, left: LeftDefaults) -> None:
        self._hydrated = hydrated
        self._shown = Shown(hydrated)
        self._catalog = catalog
        self._left = left

    def read_with(self, defaults: Mapping[Steps, Any]) -> Hydrated | None:
        """Return the call with these defaults sent, None if that changes the call."""
        with suppress(Stopped):
            edit = _Edit(self._hydrated.arguments, self._shown, to_send=defaults)
            read = self._read(edit, None)
            if isinstance(read, Hydrated) and self._left.stays_in(read):
                return None if edit.may_have_moved(added_to(read)) else read
        return None

    def read(
        self, edited: JsonObject, hook: ExceptionHook | None, *, as_written: bool = False
    ) -> HydrationResult | CallError:
        """Return the call that an edit is read as, or an error if it differs from the edit."""
        edit = _Edit(edited, self._shown, as_written=as_written)
        read = self._read(edit, hook)
        if not isinstance(read, Hydrated):
            return read
        error = edit.error_of(read, lambda: self._shown_again) or self._left.error_of(read)
        return error or read

    def read_as_written(self, edited: JsonObject) -> HydrationResult | CallError:
        """Return the same for an edit that is sent whole, except for marks in their places."""
        try:
            return self.read(edited, None, as_written=True)
        except Stopped as stopped:
            return stopped.error

    def _read(self, edit: _Edit, hook: ExceptionHook | None) -> HydrationResult:
        text, name = json_bytes(edit.arguments).decode(), self._hydrated.definition.name
        call = msgspec.structs.replace(self._hydrated.call, name=name, arguments=text)
        values: FactoryValues | None = edit.factory_values()
        read = hydrate(call, self._catalog, pinned=values, on_exception=hook)
        if isinstance(read, Hydrated):
            values = edit.in_their_places(added_to(read))
            if values is not None:
                return hydrate(call, self._catalog, pinned=values, on_exception=hook)
        return read

    @cached_property
    def _shown_again(self) -> JsonObject:
        """The arguments that the tool reads when the shown arguments are sent to it."""
        try:
            shown = _Edit(self._hydrated.arguments, self._shown, as_written=True)
        except Stopped:
            return {}
        read = self._read(shown, None)
        return read.arguments if isinstance(read, Hydrated) else {}


class _Edit:
    """An edit together with what was shown.

    `arguments` are what is sent for it: everything `as_written` except marks in their places, or
    what was left as the model sent it plus the defaults `to_send`. Raises Stopped if a mark was
    written, since a mark stands for a default that has no JSON.
    """

    def __init__(
        self,
        edited: JsonObject,
        shown: Shown,
        *,
        as_written: bool = False,
        to_send: Mapping[Steps, Any] | None = None,
    ) -> None:
        self._to_send = to_send or {}
        self.edited = edited
        self.shown = shown
        self._origins = shown.origins
        pointers = map(pointer_of, shown.above)
        self._special = set(pointers).union(*map(_with_those_above, shown.whole))
        sent = set(map(canonical_json, _marks_in(shown.sent)))
        told = set(map(canonical_json, _marks_in(shown.arguments)))
        defaults = {canonical_json(shown.at(at)) for at in shown.origins}
        self._marks = told - (sent - defaults)
        # the places where factories are called again, and where their values were shown
        self._left_out: dict[Steps, Steps] = {}
        if as_written:
            made = self._written(self._without_marks(edited, ()))
        else:
            made = self._sent(edited, shown.arguments, shown.sent, (), ())
        self.arguments = cast("JsonObject", made)

    def _sent(self, edited: Any, shown: Any, sent: Any, was: Steps, at: Steps) -> Any:
        """Return what is sent for what was at `was` and is now at `at`; `ABSENT` for a default."""
        place, is_left = pointer_of(was), self.shown.same(edited, shown)
        if is_left:
            edited = shown
            if was in self._to_send:
                return self._written(self._to_send[was])
            if was in self._origins:
                if isinstance(self._origins[was], Made):
                    self._left_out[at] = was
                return ABSENT
            if sent is not ABSENT and (place not in self._special or place in self.shown.whole):
                self._leave_out_below(was, at)
                return sent
        elif place not in self._special or place in self.shown.whole or was in self._origins:
            return self._written(edited)
        if isinstance(edited, dict) and isinstance(shown, dict) and isinstance(sent, dict):
            names = (name for name in (*sent, *edited) if name in edited)  # in the order sent
            named = {name: sent.get(name, ABSENT) for name in names}
            made = {
                name: self._sent(edited[name], shown[name], before, (*was, name), (*at, name))
                if name in shown
                else self._written(edited[name])
                for name, before in named.items()
            }
            return {name: part for name, part in made.items() if part is not ABSENT}
        if isinstance(edited, list) and isinstance(shown, list) and isinstance(sent, list):
            return self._list(edited, shown, sent, was, at)
        return sent if is_left and sent is not ABSENT else self._written(edited)

    def _list(self, edited: Any, shown: Any, sent: Any, was: Steps, at: Steps) -> list[Any]:
        """Return the same for a list, of which only the last items may be left out."""
        places, made = self.shown.places(edited, shown, was), list[Any]()
        for index, part in enumerate(edited):
            old = places.get(index)
            if old is None:
                made.append(self._written(part))
                continue
            before, steps = part_at(sent, old), ((*was, old), (*at, index))
            made.append(self._sent(part, shown[old], before, *steps))
        while made and made[-1] is ABSENT:  # the last fields of a NamedTuple
            made.pop()
        for index, part in enumerate(made):
            if part is ABSENT:
                self._left_out.pop((*at, index), None)
                made[index] = self._written(edited[index])
        return made

    def _leave_out_below(self, was: Steps, at: Steps) -> None:
        """Note the factory-made defaults in what was shown at `was` and is now at `at`."""
        for place, made in self._origins.items():
            if isinstance(made, Made) and place[: len(was)] == was:
                self._left_out[*at, *place[len(was) :]] = place

    def _written(self, edited: Any) -> Any:
        """Return a value that is sent as it was written. Raises Stopped if it contains a mark."""
        marks = map(canonical_json, _marks_in(edited)) if self._marks else ()
        if not self._marks.isdisjoint(marks):
            raise Stopped(CallError.of(ErrorCode.APPROVAL_MISMATCH, _STANDS_FOR))
        return edited

    def _without_marks(self, edited: Any, at: Steps) -> Any:
        """Return an edit without the marks that are in their places."""
        if at in self._origins and is_mark(edited) and edited == self.shown.at(at):
            if isinstance(self._origins[at], Made):
                self._left_out[at] = at
            return ABSENT
        if isinstance(edited, dict):
            made = {name: self._without_marks(one, (*at, name)) for name, one in edited.items()}
            return {name: one for name, one in made.items() if one is not ABSENT}
        if isinstance(edited, list):
            items = (self._without_marks(one, (*at, i)) for i, one in enumerate(edited))
            return [one for one in items if one is not ABSENT]
        return edited

    def factory_values(self) -> FactoryValues:
        """Return what factories are to give if they are called in the same order as before."""
        left = {id(self._origins[was]) for was in self._left_out.values()}
        left.update(map(id, self._unplaced))
        queues: dict[str, deque[Made | None]] = {}
        for made in self.shown.asked:
            if id(made) in left:
                queues.setdefault(made.key, deque()).append(made)
        return FactoryValues(queues)

    @cached_property
    def _unplaced(self) -> list[Made]:
        """Factory values without a known place, such as those inside what a validator made."""
        placed = {id(made) for made in self._origins.values()}
        return [made for made in self.shown.asked if id(made) not in placed]

    def in_their_places(self, added: AddedDefaults) -> FactoryValues | None:
        """Return factory values that give each place its own; None if they already did.

        A new item gets a new value.
        """
        places = {id(made): at for at, made in added.origins.items()}
        unplaced = _by_factory(self._unplaced)
        owns: list[Made | None] = []
        for asked in added.asked:
            at = places.get(id(asked))
            was = None if at is None else self._left_out.get(at)
            own = _next(unplaced, asked) if at is None else None
            owns.append(own if was is None else self._origins[was])
        pairs = list(zip(added.asked, owns, strict=True))
        if all(asked.source is own for asked, own in pairs):
            return None
        spare = _by_factory(
            asked
            for asked, own in pairs
            if own is not None and asked.source is None and not asked.has_data
        )
        queues: dict[str, deque[Made | None]] = {}
        for asked, given in pairs:
            own = given
            if own is None and not asked.has_data:  # its data may differ now
                own = asked if asked.source is None else _next(spare, asked)
            queues.setdefault(asked.key, deque()).append(own)
        return FactoryValues(queues)

    def error_of(self, read: Hydrated, read_again: Callable[[], JsonObject]) -> CallError | None:
        """Return the error if the call that was read differs from the edit.

        `read_again` returns what the tool reads when it is sent what was shown.
        """
        added = added_to(read)
        check, shown = _Check(self, read, added, read_again), self.shown.arguments
        found = check.difference(self.edited, read.arguments, self.arguments, shown, ())
        if found is not None:
            text = _CHANGED.format(f" at {pointer_of(found)}" if found else "")
            return CallError.of(ErrorCode.APPROVAL_MISMATCH, text)
        moved = self.may_have_moved(added)
        return CallError.of(ErrorCode.APPROVAL_MISMATCH, _MOVED) if moved else None

    def may_have_moved(self, added: AddedDefaults) -> bool:
        """Return whether a default that was left, and has no JSON, may have changed."""
        for key in {made.key for made in self._unplaced if not made.is_json}:
            now = [id(made.source) for made in added.asked if made.key == key]
            if now != [id(made) for made in self.shown.asked if made.key == key]:
                return True
        for at, was in self._left_out.items():
            own, given = self._origins[was], added.origins.get(at)
            source = given.source if isinstance(given, Made) else given
            if is_mark(self.shown.at(was)) and source is not own:
                return True
        return False


class _Check:
    """Compares the call that was read from an edit with the edit."""

    def __init__(
        self,
        edit: _Edit,
        read: Hydrated,
        added: AddedDefaults,
        read_again: Callable[[], JsonObject],
    ) -> None:
        self._shown = edit.shown
        self._same = edit.shown.same
        self._origins = added.origins
        self._read_again = read_again
        self._changed = frozenset(read.building.normalised)
        self._whole = added.sets | self._changed
        self._above = set[str]().union(*map(_with_those_above, self._changed))

    def difference(self, edited: Any, value: Any, sent: Any, shown: Any, at: Steps) -> Steps | None:
        """Return the first place at which the tool would get something else than the edit says."""
        if self._same(edited, value):
            return None
        if shown is not ABSENT and self._same(edited, shown):
            return at
        texts = json_in(edited), json_in(value)
        if None not in texts:
            return self.difference(*texts, json_in(sent), json_in(shown), at)
        place = pointer_of(at)
        as_one = isinstance(edited, list) and place in self._whole
        if not as_one and _has_parts_of(value, edited, at, self._origins):
            found = self._difference_in(edited, value, sent, shown, at)
            if found is None or not self._is_in_another_order(edited, value, shown, place):
                return found
        is_written = sent is not ABSENT and self._same(sent, edited)
        return None if is_written and self._may_change(at) else at

    def _difference_in(
        self, edited: Any, value: Any, sent: Any, shown: Any, at: Steps
    ) -> Steps | None:
        places = self._shown.places(edited, shown, None)
        parts = (
            (one, value[step], part_at(sent, step), part_at(shown, places.get(step)), (*at, step))
            for step, one in steps_of(edited)
        )
        found = (self.difference(*part) for part in parts)
        return next((place for place in found if place is not None), None)

    def _is_in_another_order(self, edited: Any, value: Any, shown: Any, place: str) -> bool:
        """Return whether validators moved items of a list that still has all items left alone."""
        if not (isinstance(edited, list) and isinstance(shown, list) and self._is_near(place)):
            return False
        before, there = set(map(canonical_json, shown)), list(map(canonical_json, value))
        left = [
            (step, one) for step, one in enumerate(map(canonical_json, edited)) if one in before
        ]
        all_there = Counter(one for _, one in left) <= Counter(there)
        return all_there and any(there[step] != one for step, one in left)

    def _is_near(self, place: str) -> bool:
        """Return whether a validator changed something at a place, around it or within it."""
        return place in self._above or not self._changed.isdisjoint(_with_those_above(place))

    def _may_change(self, at: Steps) -> bool:
        """Return whether a written value may be read as another value.

        It may be brought into a canonical form, and validators may change it if they leave alone
        what was shown.
        """
        if not self._is_near(pointer_of(at)):
            return True
        again = self._read_again()
        shown = self._shown.arguments
        names: Iterable[Any] = at[:1] or shown
        return all(self._same(again.get(name), shown.get(name)) for name in names)


def _has_parts_of(value: Any, edited: Any, at: Steps, origins: Mapping[Steps, Any]) -> bool:
    """Return whether a value has all parts of another one and, beyond them, only defaults."""
    if isinstance(edited, dict) and isinstance(value, dict):
        more: Iterable[str | int] = value.keys() - edited.keys()
        has_all = edited.keys() <= value.keys()
    elif isinstance(edited, list) and isinstance(value, list):
        more, has_all = range(len(edited), len(value)), len(edited) <= len(value)
    else:
        return False
    return has_all and all((*at, step) in origins for step in more)


def _with_those_above(pointer: str) -> Iterator[str]:
    tokens = pointer.split("/")
    return ("/".join(tokens[:end]) for end in range(1, len(tokens) + 1))


def _parts_of(value: Any) -> Iterator[Any]:
    """Yield a value and everything in it, also within strings that hold JSON."""
    pending = [value]
    while pending:
        part = pending.pop()
        yield part
        if isinstance(part, str):
            part = json_in(part)
            pending += [] if part is None else [part]
        elif isinstance(part, dict | list):
            pending += part.values() if isinstance(part, dict) else part


def _marks_in(value: Any) -> Iterator[Any]:
    return filter(is_mark, _parts_of(value))


def _by_factory(made: Iterable[Made]) -> dict[int, deque[Made]]:
    found: dict[int, deque[Made]] = {}
    for one in made:
        found.setdefault(id(one.factory), deque()).append(one)
    return found


def _next(made: dict[int, deque[Made]], asked: Made) -> Made | None:
    same = made.get(id(asked.factory))
    return same.popleft() if same else None
