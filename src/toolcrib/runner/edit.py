"""An approver's edit: the call that runs with other arguments than the model's, if that call stands.

Rule: what an approver left as it was shown reaches the tool as it was shown, and what they wrote is
read as if the model had sent it. An edit is written in the terms of the effective arguments, which have
defaults, and what an author's validators made of values: read once more, those could become others. So
wherever a value of an edit is one that was shown, that is sent again which was sent for it, and what is
read must be that value. A call in which it is another one does not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import repeat, zip_longest
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec

from toolcrib.errors import ErrorCode
from toolcrib.hydration import hydrate
from toolcrib.runner.stopped import ExceptionHook, Stopped
from toolcrib.schema.references import read_text
from toolcrib.tools import Catalog
from toolcrib.values.call import Hydrated, HydrationResult
from toolcrib.values.json import JsonObject, canonical_bytes, json_bytes
from toolcrib.values.record import CallError

_ABSENT: Final = object()
_MOST_COMPARED = 50_000  # values; where it would take more, no item is taken for another one
_CHANGED = (
    "What the approver left as it was shown would be another value once the tool's own validators had "
    "read the edited arguments. The call did not run."
)


def edited_call(
    edited: JsonObject, hydrated: Hydrated, catalog: Catalog, hook: ExceptionHook
) -> HydrationResult:
    """Return the call with `edited` in place of its effective arguments; Rejected if they do not fit.

    `hook` is given what the author's code raises. Raises Stopped where what was left as it was shown
    would not run as it was shown.
    """
    if canonical_bytes(edited) == hydrated.canonical:
        return hydrated
    read: HydrationResult = hydrated
    shown = _Shown.of(hydrated)
    pinned, tried = hydrated.building.pinned, set[str]()
    for at, arguments in enumerate(shown.ways_to_send(edited, hydrated)):
        text = json_bytes(arguments).decode()
        if text in tried:
            continue
        call = msgspec.structs.replace(hydrated.call, name=hydrated.definition.name, arguments=text)
        read = hydrate(call, catalog, pinned=pinned, on_exception=hook)
        if (
            isinstance(read, Hydrated)
            and shown.stands(edited, read.arguments)
            and (at or not shown.gives_again(edited, read.arguments))
        ):
            return read
        if at or not isinstance(read, Hydrated):
            tried.add(text)
        if not at:
            pinned = _made_anew(read, hydrated)
    if isinstance(read, Hydrated):
        raise Stopped(CallError.of(ErrorCode.APPROVAL_MISMATCH, _CHANGED))
    return read


def _made_anew(read: HydrationResult, hydrated: Hydrated) -> dict[str, Any]:
    """Return what default factories made for an edit beyond what they had made before."""
    if not isinstance(read, Hydrated):
        return {}
    before = cast("dict[str, Any]", hydrated.building.pinned)
    made = cast("dict[str, Any]", read.building.pinned)
    return {key: values[len(before.get(key, ())) :] for key, values in made.items()}


_Value: TypeAlias = tuple[str, int]
"""A value by its number, and the name of the property that it is, or that it is in a list of."""


class _Numbers:
    """Gives each JSON value a number, the same one to what is the same JSON. Each part is looked at
    once, however deep it is."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}
        # by identity, with the value, which so stays alive
        self._of: dict[int, tuple[int, Any]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __call__(self, value: Any) -> int:
        if not isinstance(value, dict | list):
            kind = value.__class__
            if kind is float and value.is_integer() and abs(value) < 1e21:
                kind = int  # in canonical JSON
            return self._known.setdefault((kind, value), len(self._known))
        found = self._of.get(id(value))
        if found is None:
            key: Any = tuple(map(self, value))
            if isinstance(value, dict):
                key = frozenset((name, self(part)) for name, part in value.items())
            found = self._known.setdefault((value.__class__, key), len(self._known)), value
            self._of[id(value)] = found
        return found[0]


class _Shown(NamedTuple):
    """What was shown: `left` are its values, and `changed` has what was sent for each of those that was
    read as another one.

    `names` are those of all properties: what stands under another name in an edit is known by its value
    alone. `sets` are the properties with sets, which have an order of their own; `made` are the values
    that default factories made.
    """

    number: _Numbers
    left: frozenset[_Value]
    changed: Mapping[_Value, Any]
    names: frozenset[str]
    sets: frozenset[str]
    made: frozenset[int]

    @staticmethod
    def of(hydrated: Hydrated) -> _Shown:
        left, changed, names = set[_Value](), dict[_Value, Any](), set[str]()
        number = _Numbers()

        def look(shown: Any, sent: Any, name: str) -> None:
            names.add(name)
            for value in ((name, number(shown)), ("", number(shown))):
                left.add(value)
                if value[1] != number(sent):
                    changed[value] = sent
            inner = _json_in(shown)
            parts = shown if inner is None else inner
            if isinstance(parts, dict):
                was = sent if isinstance(sent, dict) else parts
                for own, part in parts.items():
                    look(part, was.get(own, part), own)
            elif isinstance(parts, list):
                before = sent if isinstance(sent, list) and len(sent) <= len(parts) else ()
                for part, item in zip_longest(parts, before, fillvalue=_ABSENT):
                    look(part, part if item is _ABSENT else item, name)

        look(hydrated.arguments, hydrated.building.sent, "")
        sets = frozenset(_with_sets(hydrated.definition.input_schema))
        pinned = cast("dict[str, Any]", hydrated.building.pinned)
        made = frozenset(number(v) for each in pinned.values() for one in each for v in one)
        return _Shown(number, frozenset(left), changed, frozenset(names), sets, made)

    def ways_to_send(self, edited: JsonObject, hydrated: Hydrated) -> Iterator[JsonObject]:
        """Yield arguments that may be read as the edited ones, the likeliest first.

        A default that was left as it was shown is not sent, so that it stays one. Where it would be
        another one now, it is sent, that of a factory first: its values are given in the order of
        asking, and an item may be asked for that was not there before. The last way is as written.
        """
        shown, sent = hydrated.arguments, hydrated.building.sent
        single = {v: was for v, was in self.changed.items() if not isinstance(was, dict | list)}
        yield self.sent_again(edited, shown, sent, kept=frozenset())
        for changed, kept in ((single, self.made), (single, None), (dict[_Value, Any](), None)):
            yield self._replace(changed=changed).sent_again(edited, shown, sent, kept=kept)

    def _value(self, name: str, value: Any) -> _Value:
        return name if name in self.names else "", self.number(value)

    def sent_again(
        self, edited: Any, shown: Any, sent: Any, name: str = "", *, kept: frozenset[int] | None
    ) -> Any:
        """Return what is sent for a value of an edit, its names in the order of what was sent.

        Defaults that were left are not sent, but for those that are `kept`; None keeps all but marks.
        """
        value = self._value(name, edited)
        if value in self.changed:
            return self.changed[value]
        if isinstance(edited, dict):
            was = shown if isinstance(shown, dict) else {}
            before = sent if isinstance(sent, dict) else was

            def is_left_out(own: str) -> bool:
                if own in before or own not in was:
                    return False
                number = self.number(edited[own])
                is_kept = number in kept if kept is not None else not _is_mark(edited[own])
                return number == self.number(was[own]) and not is_kept

            names = (
                *(own for own in before if own in edited),
                *(o for o in edited if o not in before),
            )
            return {
                own: self.sent_again(edited[own], was.get(own), before.get(own), own, kept=kept)
                for own in names
                if not is_left_out(own)
            }
        if isinstance(edited, list):
            alike = isinstance(shown, list) and isinstance(sent, list) and len(shown) == len(sent)
            places = self._places(edited, shown) if alike else repeat(None)
            return [
                self.sent_again(part, None, None, name, kept=kept)
                if at is None
                else self.sent_again(part, shown[at], sent[at], name, kept=kept)
                for part, at in zip(edited, places)  # noqa: B905  the second may have no end
            ]
        return edited

    def _places(self, edited: list[Any], shown: list[Any]) -> list[int | None]:
        """Return for each item of an edited list the place of the one that it was, if it was one.

        Those that are as they were shown are found wherever they are. Of the others each is taken for
        the one that it has most in common with.
        """
        free: dict[int, list[int]] = {}
        for at in reversed(range(len(shown))):
            free.setdefault(self.number(shown[at]), []).append(at)
        places: list[int | None] = []
        for item in edited:
            same = free.get(self.number(item))
            places.append(same.pop() if same else None)
        new = [at for at, place in enumerate(places) if place is None]
        left = [at for same in free.values() for at in same]
        if len(new) * len(self.number) > _MOST_COMPARED:
            return places
        pairs = [
            (self._in_common(edited[at], shown[was]), at == was, at, was)
            for at in new
            for was in left
        ]
        for common, _, at, was in sorted(pairs, key=lambda pair: pair[:2], reverse=True):
            if common and places[at] is None and was not in places:
                places[at] = was
        return places

    def _in_common(self, one: Any, other: Any) -> float:
        """Return how much of one value is in another one, each part at its place."""
        if self.number(one) == self.number(other):
            return 1
        if isinstance(one, dict) and isinstance(other, dict):
            parts = [self._in_common(one[name], other[name]) for name in one if name in other]
        elif isinstance(one, list) and isinstance(other, list):
            parts = [*map(self._in_common, one, other)]
        else:
            return 0
        return sum(parts) / (1 + len(one))

    def stands(self, edited: Any, read: Any, name: str = "") -> bool:
        """Return whether each value of an edit that was shown was read as it is: one that was not sent
        was shown, too. The others are as the tool's own validators have them.
        """
        value = self._value(name, edited)
        if value[1] == self.number(read):
            return True
        if value in self.left:
            return False
        if isinstance(edited, dict) and isinstance(read, dict):
            return all(
                own in read and self.stands(part, read[own], own) for own, part in edited.items()
            )
        if isinstance(edited, list) and isinstance(read, list):
            if name in self.sets:
                same = sorted(map(self.number, edited)) == sorted(map(self.number, read))
                if same or not any(isinstance(part, dict | list) for part in edited):
                    return same
            return len(edited) <= len(read) and all(  # the last fields of a NamedTuple are defaults
                self.stands(part, now, name) for part, now in zip(edited, read, strict=False)
            )
        if isinstance(edited, dict | list):
            return False  # of what became of its parts nothing is known
        inner, now = _json_in(edited), _json_in(read)
        return inner is None or now is None or self.stands(inner, now, name)

    def gives_again(self, edited: Any, read: Any) -> bool:
        """Return whether a value that a factory made for one item was filled in at another one."""
        if isinstance(edited, dict) and isinstance(read, dict):
            return any(
                self.gives_again(edited[own], part)
                if own in edited
                else self.number(part) in self.made
                for own, part in read.items()
            )
        if isinstance(edited, list) and isinstance(read, list):
            return any(map(self.gives_again, edited, read))
        return False


def _is_mark(value: Any) -> bool:
    """Return whether a default is shown by its type, being no JSON: that is no value to send."""
    return isinstance(value, dict) and value.keys() == {"default"}


def _with_sets(schema: Any, name: str = "") -> Iterator[str]:
    """Yield the properties of a schema that are sets, or lists of them."""
    if isinstance(schema, list):
        for part in schema:
            yield from _with_sets(part, name)
    elif isinstance(schema, dict):
        if schema.get("uniqueItems") is True:
            yield name
        properties = schema.get("properties")
        for part in schema.values():
            if part is properties and isinstance(properties, dict):
                for own, below in properties.items():
                    yield from _with_sets(below, own)
            else:
                yield from _with_sets(part, name)


def _json_in(text: Any) -> Any:
    """Return the object or the list that stands as JSON within a text, if one does."""
    try:
        found = read_text(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found if isinstance(found, dict | list) else None
