"""An approver's edit: the call that runs with other arguments than the model's, if that call stands.

Rule: what an approver left as it was shown reaches the tool as it was shown, and what they wrote is
read as if the model had sent it. Each item of an edit is matched with the item that it was, if it was
one. Of what was left, that is sent again which was sent for it: no default, and what an author's
validators were given, not what they made of it. A factory gives each place the very value that it gave
for that item. What comes out is held against what was left; if it is another value, nothing runs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec

from toolcrib.errors import ErrorCode
from toolcrib.hydration import added_to, hydrate
from toolcrib.runner.pairing import between, most_voted, pairs
from toolcrib.runner.stopped import ExceptionHook, Stopped
from toolcrib.schema.derive.factories import UNKNOWN, AddedDefaults, FactoryValues, Made
from toolcrib.schema.derive.plain import is_mark, same_json
from toolcrib.schema.references import pointer_of, read_text, steps_of
from toolcrib.tools import Catalog
from toolcrib.values.call import Hydrated, HydrationResult, Rejected, ToolCall
from toolcrib.values.json import JsonObject, canonical_json, is_whole, json_bytes
from toolcrib.values.record import CallError

Steps: TypeAlias = tuple[str | int, ...]
_ABSENT: Final[Any] = object()  # what was not sent, or what nobody knows to be sent
_PARTS: Final = object()  # expects parts of any kind, all of them written anew
_NOWHERE: Final[Steps] = (-1,)
_READINGS = 4
_CHANGED = (
    "What the approver left as it was shown{} would be another value once the tool had read the edited "
    "arguments. The call did not run."
)
_ALIKE = (
    "Items were shown alike that hold values which no JSON shows, and the edit does not say which of "
    "them is which. The call did not run."
)
_STANDS_FOR = (
    "A default that is no JSON was put where it was not shown: what was shown is only its type. The "
    "call did not run."
)


def edited_call(
    edited: JsonObject, hydrated: Hydrated, catalog: Catalog, hook: ExceptionHook
) -> HydrationResult:
    """Return the call with `edited` in place of its effective arguments; Rejected if they do not fit.

    A call is read again where its factories asked in another order than was thought, or where a default
    that was left would be another one now: that is sent. `hook` is given what the author's code raises.
    Raises Stopped where what was left as it was shown would not run as it was shown.
    """
    shown = _Shown(hydrated)
    sent, made = frozenset[Steps](), list[Made]()
    given: FactoryValues | None = None
    rejected: Rejected | None = None  # of the edit itself, not of a default that had to be sent
    changed: str = ""  # the first place that would be another value
    for attempt in range(_READINGS):
        edit = _Edit(shown, edited, sent)
        values = given or FactoryValues(pool=edit.pool(made))
        read = hydrate(_call(hydrated, edit.arguments), catalog, pinned=values, on_exception=hook)
        made += [one for one in values.asked if one.source is None]
        if isinstance(read, Rejected):
            rejected = rejected if attempt else read
            given, more = None, frozenset(edit.partly) - sent
        else:
            rejected, result = None, _Read(read)
            given = edit.in_their_places(result.added, made)
            stands = edit.stands(edit.expected, result.arguments, result, ())
            if given is None and stands and edit.is_known(result.added):
                return read
            changed = "" if stands else edit.changed(result)
            more = frozenset() if stands or given is not None else edit.others(result) - sent
        if given is None and not more:
            break
        sent |= more
    written = _as_written(edited, hydrated, catalog, edit)
    if written is not None and _holds(written.arguments, edited, (), written.building.normalised):
        return written
    if rejected is not None:
        changed = next((e.path for e in rejected.errors if edit.was_left(e.path)), "")
        if not (changed or (shown.changed and written is not None)):
            return rejected
    text = _CHANGED.format(f" at {changed}" if changed else "")
    raise Stopped(CallError.of(ErrorCode.APPROVAL_MISMATCH, text))


def _call(hydrated: Hydrated, arguments: JsonObject) -> ToolCall:
    text, name = json_bytes(arguments).decode(), hydrated.definition.name
    return msgspec.structs.replace(hydrated.call, name=name, arguments=text)


def _as_written(
    edited: JsonObject, hydrated: Hydrated, catalog: Catalog, edit: _Edit
) -> Hydrated | None:
    """Return the call of an edit that is sent as it was written, all of it; None if it does not fit."""
    if not all(map(edit.may_be_sent, _parts_of(edited))):
        return None
    values = FactoryValues(pool=edit.pool([]))
    read = hydrate(_call(hydrated, edited), catalog, pinned=values)
    return None if isinstance(read, Rejected) else read


def _holds(value: Any, part: Any, at: Steps, changed: Collection[str]) -> bool:
    """Return whether a value is another one, but for properties that only it has, and for the order in
    which a set is shown (of what a validator `changed` nobody knows whether it is one)."""
    if isinstance(part, dict):
        return isinstance(value, dict) and all(
            name in value and _holds(value[name], item, (*at, name), changed)
            for name, item in part.items()
        )
    if not isinstance(part, list):
        return same_json(value, part)
    if not isinstance(value, list) or len(value) != len(part):
        return False
    return all(
        _holds(one, item, (*at, index), changed)
        for index, (one, item) in enumerate(zip(value, part, strict=True))
    ) or (pointer_of(at) not in changed and same_json(value, sorted(part, key=canonical_json)))


class _Numbers:
    """Gives each JSON value a number, the same one to what is the same JSON. Each part is looked at
    once, however deep it is."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}
        # by identity, with the value, which so stays alive
        self._of: dict[int, tuple[int, Any]] = {}

    def __call__(self, value: Any) -> int:
        if not isinstance(value, dict | list):
            kind = value.__class__
            if kind is float and is_whole(value):
                kind = int  # in canonical JSON; one beyond 2^53 has no digits that somebody wrote
            return self._known.setdefault((kind, value), len(self._known))
        found = self._of.get(id(value))
        if found is None:
            key: Any = tuple(map(self, value))
            if isinstance(value, dict):
                key = frozenset((name, self(part)) for name, part in value.items())
            found = self._known.setdefault((value.__class__, key), len(self._known)), value
            self._of[id(value)] = found
        return found[0]


class _Item(NamedTuple):
    """An item that was shown: its place, and what was sent for it; `_ABSENT` where nobody knows."""

    at: Steps
    shown: Any
    sent: Any


class _Shown:
    """Holds what was shown, and where each part of it came from.

    `below` are the places that hold a default, `hidden` those that hold one that a factory made and no
    JSON shows. `changed` are the places whose value an author's validator made, `values` how often each
    text or number was shown, `marks` the values that stand for a default by its type, and `items` what
    is sent otherwise than it was shown.
    """

    def __init__(self, hydrated: Hydrated) -> None:
        self.number = _Numbers()
        self.added = added_to(hydrated)
        self.changed = frozenset(hydrated.building.normalised)
        self.marks, self.below, self.hidden = set[int](), set[Steps](), set[Steps]()
        self.items: dict[int, _Item | None] = {}
        arguments = hydrated.arguments
        self.values = Counter(self.each(arguments, ""))
        for at, origin in self.added.origins.items():
            value = _at_place(arguments, at)
            above = [at[:depth] for depth in range(len(at) + 1)]
            self.below.update(above)
            if is_mark(value):
                self.marks.add(self.number(value))
                self.hidden.update(above if origin is not None else ())
        self.whole = _Item((), arguments, self._sent(arguments, hydrated.building.sent, ()))

    def is_changed(self, at: Steps) -> bool:
        return bool(self.changed) and pointer_of(at) in self.changed

    def each(self, value: Any, name: str) -> Iterator[tuple[str, int]]:
        """Yield each text, number and the like in a value: its property, and the number of it."""
        if not isinstance(value, dict | list):
            yield name, self.number(value)
        for step, part in _steps(value):
            yield from self.each(part, step if isinstance(step, str) else name)

    def _sent(self, shown: Any, sent: Any, at: Steps) -> Any:
        """Return what was sent for a value, its parts where they were shown; defaults are absent."""
        number = self.number(shown)
        if at in self.added.origins:
            return _ABSENT
        if self.is_changed(at):
            made = sent
        elif isinstance(shown, dict):
            was = sent if isinstance(sent, dict) else {}
            names = (*(n for n in was if n in shown), *(n for n in shown if n not in was))
            parts = ((n, self._sent(shown[n], was.get(n, _ABSENT), (*at, n))) for n in names)
            made = {name: part for name, part in parts if part is not _ABSENT}
        elif isinstance(shown, list):
            made = self._items(shown, sent, at)
        else:
            made = shown if sent is _ABSENT else sent
            if made != shown:
                self._note_texts(shown, made)
        if isinstance(shown, dict | list) and made is not _ABSENT and number != self.number(made):
            known = self.items.get(number)
            twice = number in self.items and (known is None or known.at != at)
            if not twice:
                self.items[number] = _Item(at, shown, made)
            elif at in self.hidden:  # which of the two was moved?
                self.items[number] = None
        return made

    def _items(self, shown: list[Any], sent: Any, at: Steps) -> list[Any]:
        was = deque(sent if isinstance(sent, list) and len(sent) <= len(shown) else ())
        if len(was) == len(shown) and list(map(self.number, was)) != list(map(self.number, shown)):
            bare = [self._sent(one, _ABSENT, (*at, index)) for index, one in enumerate(shown)]
            numbers = [self.number(one) for one in bare if one is not _ABSENT]
            if sorted(numbers) == sorted(map(self.number, was)):  # a set is shown in another order
                by_number = {self.number(one): one for one in was}
                was = deque(by_number[number] for number in numbers)
        made = [
            self._sent(one, was.popleft() if was else _ABSENT, (*at, index))
            for index, one in enumerate(shown)
        ]
        return [one for one in made if one is not _ABSENT]  # the last fields of a NamedTuple

    def _note_texts(self, shown: Any, sent: Any) -> None:
        """Note the marks of defaults that were added within a text of JSON."""
        sent_marks = {self.number(one) for one in _marks_in(_json_in(sent))}
        self.marks |= {self.number(one) for one in _marks_in(_json_in(shown))} - sent_marks


class _Left(NamedTuple):
    """Expects a value as it was shown."""

    number: int


class _InText(NamedTuple):
    """Expects this in a text of JSON."""

    expected: Any


class _Read:
    """The call that was read of an edit."""

    def __init__(self, read: Hydrated) -> None:
        self.arguments = read.arguments
        self.added = added_to(read)
        self.changed = read.building.normalised


class _Edit:
    """An edit, matched with what was shown.

    `arguments` are what is sent for it, and `expected` what has to come of it: None for what was
    written anew, which is as the tool's own validators have it. `taken` has the defaults that were
    left, by their place now, but for those to be `sent`; `partly` are those in objects of which other
    parts were edited. Raises Stopped where a mark stands for no default.
    """

    def __init__(self, shown: _Shown, edited: JsonObject, sent: frozenset[Steps]) -> None:
        self._shown = shown
        self._number = shown.number
        self._sent = sent
        self.taken: dict[Steps, Steps] = {}
        self.partly: set[Steps] = set()
        self._kept, self._lost = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
        made, self.expected = self._matched(edited, shown.whole, ())
        self._lost = shown.values - self._kept
        if self._lost:  # and what is written may be what is lost
            self.taken, self.partly = {}, set()
            made, self.expected = self._matched(edited, shown.whole, ())
        self.arguments = cast("JsonObject", made)

    def _matched(self, edited: Any, was: _Item, at: Steps) -> tuple[Any, Any]:
        """Return what is sent for a value that stands for one that was shown, and what is expected."""
        number = self._number(edited)
        if number == self._number(was.shown):
            self._keep(edited, at)
            known = was.sent is not _ABSENT or was.at in self._shown.added.origins
            return self._left(was, at) if known else self._written(edited), _Left(number)
        if self._shown.is_changed(was.at):
            was = was._replace(sent=_ABSENT)
        if isinstance(edited, dict) and isinstance(was.shown, dict):
            return self._object(edited, was, at)
        if isinstance(edited, list) and isinstance(was.shown, list):
            return self._list(edited, was, at)
        inner, before = _json_in(edited), _json_in(was.shown)
        if inner is not None and before is not None:
            taken, partly = self.taken.copy(), self.partly.copy()
            _, expected = self._matched(inner, _Item(_NOWHERE, before, _ABSENT), at)
            self.taken, self.partly = taken, partly
            return self._written(edited), _InText(expected)
        return self._new(edited, at)

    def _keep(self, edited: Any, at: Steps) -> None:
        """Note that all of a value is as it was shown."""
        self._kept.update(self._shown.each(edited, _name_of(at)))

    def _left(self, was: _Item, at: Steps) -> Any:
        """Return what was sent for a value that was left, and note the defaults within it."""
        if was.at in self._shown.added.origins:
            self.taken[at] = was.at
            return was.shown if at in self._sent else _ABSENT
        if was.at not in self._shown.below or self._shown.is_changed(was.at):
            return was.sent
        if isinstance(was.shown, dict):
            names = (*was.sent, *(name for name in was.shown if name not in was.sent))
            parts = ((name, self._left(_part(was, name), (*at, name))) for name in names)
            return {name: part for name, part in parts if part is not _ABSENT}
        items = [self._left(_part(was, i), (*at, i)) for i in range(len(was.shown))]
        return self._without_last(items, was.shown, at)

    def _object(self, edited: dict[str, Any], was: _Item, at: Steps) -> tuple[Any, Any]:
        known = was.sent if isinstance(was.sent, dict) else {}
        origins = self._shown.added.origins
        places = self._places(edited, was)
        made, expected = {}, {}
        for name in (*(n for n in known if n in edited), *(n for n in edited if n not in known)):
            part, place = edited[name], (*at, name)
            if name not in places:
                value = self._new(part, place)
            else:
                value = self._matched(part, _part(was, places[name]), place)
                if place in self.taken and (*was.at, name) in origins and not is_mark(part):
                    self.partly.add(place)
            if value[0] is not _ABSENT:
                made[name] = value[0]
            expected[name] = value[1]
        return made, expected

    def _list(self, edited: list[Any], was: _Item, at: Steps) -> tuple[Any, Any]:
        places = self._places(edited, was)
        made, expected = [], []
        for index, part in enumerate(edited):
            now = (*at, index)
            if index in places:
                value = self._matched(part, _part(was, places[index]), now)
            else:
                value = self._new(part, now)
            made.append(value[0])
            expected.append(value[1])
        return self._without_last(made, edited, at), expected

    def _without_last(self, made: list[Any], edited: list[Any], at: Steps) -> list[Any]:
        """Return the items of a list without defaults at its end; one before it has to be sent."""
        while made and made[-1] is _ABSENT:
            made.pop()
        for index, part in enumerate(made):
            if part is _ABSENT:
                del self.taken[(*at, index)]
                made[index] = self._written(edited[index])
        return made

    def _new(self, edited: Any, at: Steps) -> tuple[Any, Any]:
        """Return what is sent for a value that was not here; an item that was shown may be moved."""
        if self._is_moved(edited):
            number = self._number(edited)
            self._keep(edited, at)
            return self._left(cast("_Item", self._shown.items[number]), at), _Left(number)
        if isinstance(edited, dict):
            self._check_marks(edited)
            parts = {name: self._new(part, (*at, name)) for name, part in edited.items()}
            expected = _any_of({name: one[1] for name, one in parts.items()})
            return {name: one[0] for name, one in parts.items()}, expected
        if isinstance(edited, list):
            items = [self._new(part, (*at, index)) for index, part in enumerate(edited)]
            return [one[0] for one in items], _any_of([one[1] for one in items])
        number = self._number(edited)
        may_be_left = (_name_of(at), number) in self._lost
        return self._written(edited), _Left(number) if may_be_left else None

    def _is_moved(self, edited: Any) -> bool:
        """Return whether this was shown somewhere, and is sent otherwise than it was shown."""
        is_item = isinstance(edited, dict | list)
        return is_item and self._shown.items.get(self._number(edited)) is not None

    def _written(self, edited: Any) -> Any:
        """Return a value that is sent as it was written, having looked for marks in it."""
        if self._shown.marks:
            for part in _parts_of(edited):
                self._check_marks(part)
        return edited

    def may_be_sent(self, part: Any) -> bool:
        """Return whether a value is none that stands for a default by its type."""
        return not isinstance(part, dict) or self._number(part) not in self._shown.marks

    def _check_marks(self, part: Any) -> None:
        if not self.may_be_sent(part):
            raise Stopped(CallError.of(ErrorCode.APPROVAL_MISMATCH, _STANDS_FOR))

    def _places(self, edited: Any, was: _Item) -> dict[Any, Any]:
        """Return the names or indexes that the parts of an object or a list had; new ones have none.

        Raises Stopped where items were shown alike, with values that no JSON shows, and nobody can tell
        which of them is which.
        """
        origins, is_list = self._shown.added.origins, isinstance(edited, list)
        if is_list and (*was.at, len(was.shown) - 1) in origins:  # a NamedTuple
            return {index: index for index in range(min(len(edited), len(was.shown)))}

        def may_move(step: Any, source: Any) -> bool:
            renamed = step not in before and source not in now
            is_item = is_list or isinstance(edited[step], dict | list)
            return (is_item or renamed) and (*was.at, source) not in origins

        now = {step: self._number(part) for step, part in _steps(edited)}
        before = {step: self._number(part) for step, part in _steps(was.shown)}
        found, copied = pairs(now, before, may_move, is_list=is_list)
        places = self._edited(edited, was, found, copied) | found | copied
        if was.at in self._shown.hidden:
            hidden = [step for step in before if (*was.at, step) in self._shown.hidden]
            _check_alike(hidden, now, before, places, is_list=is_list)
        return {
            step: source
            for step, source in places.items()
            if now[step] == before[source] or not self._is_moved(edited[step])
        }

    def _edited(
        self, edited: Any, was: _Item, found: dict[Any, Any], copied: dict[Any, Any]
    ) -> dict[Any, Any]:
        """Match the parts that are not as they were shown.

        In an object those were edited under their names, if what was there was not moved. In a list
        an item is known by what it has, else it was edited between the same two, if as many are there.
        """
        if isinstance(edited, dict):
            gone = set(found.values())
            return {name: name for name in edited if name in was.shown and name not in gone}
        new = [step for step in range(len(edited)) if step not in found and step not in copied]
        old = set(range(len(was.shown))) - set(found.values())
        known = self._recognised(edited, was, new, old)
        return known | between(sorted((found | known).items()), len(edited), len(was.shown))

    def _recognised(
        self, edited: list[Any], was: _Item, new: list[int], old: set[int]
    ) -> dict[int, int]:
        """Match items with those that they were by most of what no other item has, neither before nor
        now; a text tells twice as much as a number. The last one is known by anything. Plain defaults,
        and values that no JSON shows, tell nothing."""
        if not (new and old):
            return {}
        origins = self._shown.added.origins
        before: dict[Any, dict[int, bool]] = {}
        for source, item in enumerate(was.shown):
            for part, at in self._telling(item, (*was.at, source)):
                constant = origins.get(at, _ABSENT) is None
                before.setdefault(part, {})[source] = constant
        now: dict[Any, set[int]] = {}
        for step in range(len(edited)):
            for part, _ in self._telling(edited[step], _NOWHERE):
                now.setdefault(part, set()).add(step)
        is_last = len(new) == len(old) == 1
        votes: dict[tuple[int, int], int] = {}
        for part, steps in now.items():
            owners = before.get(part, {})
            if is_last and steps.issuperset(new) and not owners.get(min(old), True):
                return {new[0]: min(old)}
            if len(steps) == len(owners) == 1 and not any(owners.values()):
                pair = min(steps), min(owners)
                votes[pair] = votes.get(pair, 0) + part[2]
        return {s: one for s, one in most_voted(votes).items() if s in new and one in old}

    def _telling(self, value: Any, at: Steps, name: str = "") -> Iterator[tuple[Any, Steps]]:
        """Yield the parts of an item that may tell it from others, and where they are: a property, the
        number of its value, and how much it tells."""
        for step, part in _steps(value):
            number, place = self._number(part), (*at, step)
            if number not in self._shown.marks:
                below = f"{name}/{step}" if isinstance(step, str) else name
                yield (below, number, 2 if isinstance(part, str) else 1), place
                yield from self._telling(part, place, below)

    def _origin(self, at: Steps | None) -> Made | None:
        """Return what a factory gave for the default that was left here, if it is not sent."""
        if at is None or at in self._sent or at not in self.taken:
            return None
        origin = self._shown.added.origins[self.taken[at]]
        return None if origin is UNKNOWN else origin

    def _nowhere(self) -> list[Made]:
        """Return what factories gave for no place that is known, as within what a validator made."""
        placed = {id(one) for one in self._shown.added.origins.values()}
        return [one for one in self._shown.added.asked if id(one) not in placed]

    def pool(self, made: list[Made]) -> Iterator[Made]:
        """Yield what factories are to give: that of the defaults that were left, in their order, then
        what they gave for no known place, and what they `made` for this edit before."""
        for at in self.taken:
            origin = self._origin(at)
            if origin is not None:
                yield origin
        yield from self._nowhere()
        yield from (one for one in made if not one.has_data)

    def in_their_places(self, added: AddedDefaults, made: list[Made]) -> FactoryValues | None:
        """Return values that give each place its own, None if they did; what was `made` for this edit
        goes to the places that are new."""
        at = {id(one): place for place, one in added.origins.items()}
        before = {id(one) for one in self._shown.added.asked}
        nowhere = _by_factory(self._nowhere())
        wanted: list[Made | None] = []
        for asked in added.asked:
            place = at.get(id(asked))
            own = _next(nowhere, asked) if place is None else self._origin(place)
            if own is None and id(asked.source) not in before:
                own = asked.source or asked
            wanted.append(own)
        pairs = list(zip(added.asked, wanted, strict=True))
        if all(own is not None and _gave(asked, own) for asked, own in pairs):
            return None
        taken = {id(own) for own in wanted}
        spare = _by_factory([m for m in made if not m.has_data and id(m) not in taken])
        queues: dict[str, list[Made | None]] = {}
        for asked, own in pairs:
            queues.setdefault(asked.key, []).append(own or _next(spare, asked))
        return FactoryValues(queues)

    def others(self, result: _Read) -> frozenset[Steps]:
        """Return the places of defaults that were left and are others now, but for marks."""
        arguments = self._shown.whole.shown
        return frozenset(
            at
            for at, was in self.taken.items()
            if not is_mark(value := _at_place(arguments, was))
            and self._number(_at_place(result.arguments, at)) != self._number(value)
        )

    def is_known(self, added: AddedDefaults) -> bool:
        """Return whether what validators made of factories' values stands where it stood: nobody can
        say which of those values is whose."""
        origins = self._shown.added.origins
        before = [at for at, origin in origins.items() if origin is UNKNOWN]
        now = [at for at, origin in added.origins.items() if origin is UNKNOWN]
        return before == now and all(self.taken.get(at, at) == at for at in now)

    def was_left(self, pointer: str) -> bool:
        """Return whether a place holds what was left as it was shown, or may be that."""
        expected = self.expected
        for step in steps_of(pointer):
            if isinstance(expected, list) and step.isdecimal() and int(step) < len(expected):
                expected = expected[int(step)]
            elif isinstance(expected, dict):
                expected = expected.get(step)
        return isinstance(expected, _Left)

    def stands(self, expected: Any, read: Any, result: _Read, at: Steps) -> bool:
        """Return whether each value that was left was read as it was shown."""
        match expected:
            case _Left():
                return self._number(read) == expected.number
            case _InText():
                inner = _json_in(read)
                return inner is not None and self.stands(expected.expected, inner, result, _NOWHERE)
            case dict():
                return isinstance(read, dict) and all(
                    name in read and self.stands(part, read[name], result, (*at, name))
                    for name, part in expected.items()
                )
            case list():
                return isinstance(read, list) and self._items_stand(expected, read, result, at)
        return expected is None or isinstance(read, dict | list)

    def changed(self, result: _Read) -> str:
        """Return the first place at which what was read does not stand as it is expected."""
        expected, at = self.expected, list[Any]()
        read: Any = result.arguments
        while isinstance(expected, dict | list) and isinstance(read, type(expected)):
            now, parts = dict(_steps(read)), _steps(expected)
            fallen = (
                step
                for step, part in parts
                if step not in now or not self.stands(part, now[step], result, (*at, step))
            )
            step = next(fallen, None)
            if step is None:
                break
            at.append(step)
            expected, read = expected[step], now.get(step)
        return pointer_of(at)

    def _items_stand(self, expected: list[Any], read: list[Any], result: _Read, at: Steps) -> bool:
        if any(
            (*at, index) not in result.added.origins for index in range(len(expected), len(read))
        ):
            return False
        if len(expected) > len(read):
            return False
        if all(
            self.stands(part, now, result, (*at, index))
            for index, (part, now) in enumerate(zip(expected, read, strict=False))
        ):
            return True
        place = pointer_of(at)
        if any(
            f"{one}/".startswith(f"{place}/") or place.startswith(one) for one in result.changed
        ):
            return False
        free = Counter(map(self._number, read))  # a set is read in an order of its own
        free.subtract(part.number for part in expected if isinstance(part, _Left))
        if min(free.values()) < 0:
            return False
        left = list(free.elements())
        by_number = {self._number(now): now for now in read}
        for part in expected:
            if isinstance(part, _Left):
                continue
            same = (n for n in left if self.stands(part, by_number[n], result, _NOWHERE))
            found = next(same, None)
            if found is None:
                return False
            left.remove(found)
        return True


def _steps(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the parts of an object or a list with their names or indexes; others have none."""
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _check_alike(
    hidden: list[Any],
    now: Mapping[Any, int],
    before: Mapping[Any, int],
    places: Mapping[Any, Any],
    *,
    is_list: bool,
) -> None:
    """Raise Stopped if one of several parts that were shown alike was copied, or left out of a list, or
    if several of them have other names."""
    alike: dict[int, list[Any]] = {}
    for source in hidden:
        alike.setdefault(before[source], []).append(source)
    found: dict[int, list[Any]] = {}
    for step, number in now.items():
        if step in places:
            found.setdefault(number, []).append((step, places[step]))
    there = set(places.values())
    for number, sources in alike.items():
        taken = [source for _, source in found.get(number, ())]
        renamed = sum(step != source for step, source in found.get(number, ()))
        is_lost = not there.issuperset(sources) if is_list else renamed > 1
        if len(sources) > 1 and (is_lost or len(taken) > len(set(taken))):
            raise Stopped(CallError.of(ErrorCode.APPROVAL_MISMATCH, _ALIKE))


def _part(was: _Item, step: Any) -> _Item:
    sent = _ABSENT
    if isinstance(was.sent, dict):
        sent = was.sent.get(step, _ABSENT)
    elif isinstance(was.sent, list) and step < len(was.sent):
        sent = was.sent[step]
    return _Item((*was.at, step), was.shown[step], sent)


def _name_of(at: Steps) -> str:
    """Return the property that a place is, or that it is in a list of."""
    return next((step for step in reversed(at) if isinstance(step, str)), "")


def _by_factory(made: list[Made]) -> dict[int, deque[Made]]:
    found: dict[int, deque[Made]] = {}
    for one in made:
        found.setdefault(id(one.factory), deque()).append(one)
    return found


def _next(made: dict[int, deque[Made]], asked: Made) -> Made | None:
    same = made.get(id(asked.factory))
    return same.popleft() if same else None


def _gave(asked: Made, own: Made) -> bool:
    return asked is own or (asked.source is not None and asked.source.value is own.value)


def _any_of(expected: Any) -> Any:
    parts = expected.values() if isinstance(expected, dict) else expected
    return expected if any(part is not None and part is not _PARTS for part in parts) else _PARTS


def _at_place(value: Any, at: Steps) -> Any:
    """Return what stands at a place, None where nothing does."""
    for step in at:
        try:
            value = value[step]
        except (LookupError, TypeError):
            return None
    return value


def _parts_of(value: Any) -> Iterator[Any]:
    """Yield a value and all in it, in texts of JSON, too."""
    pending = [value]
    while pending:
        part = pending.pop()
        yield part
        if isinstance(part, str):
            part = _json_in(part)
            pending += [] if part is None else [part]
        elif isinstance(part, dict | list):
            pending += part.values() if isinstance(part, dict) else part


def _marks_in(value: Any) -> Iterator[Any]:
    return filter(is_mark, _parts_of(value))


def _json_in(text: Any) -> Any:
    """Return the object or the list that stands as JSON within a text, if one does."""
    try:
        found = read_text(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found if isinstance(found, dict | list) else None
