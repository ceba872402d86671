"""An approver's edit: the call that runs with other arguments than the model's, if that call stands.

Rule: the tool gets what the edited arguments say, or nothing runs. What stands at its place as it was
shown is sent as the model sent it: a default stays a default, and what a factory made is that very
value. In a list whose length changed, items are at their place at its beginning and at its end.
Everything else is written, and read as if the model had sent it. Then what the tool would get is held
against the edited arguments: a validator may change what is new in them, and nothing that was shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final, TypeAlias, cast

import msgspec

from toolcrib.errors import ErrorCode
from toolcrib.hydration import added_to, hydrate
from toolcrib.runner.stopped import ExceptionHook, Stopped
from toolcrib.schema.derive.factories import AddedDefaults, FactoryValues, Made
from toolcrib.schema.derive.plain import is_mark, same_json
from toolcrib.schema.references import pointer_of, read_text
from toolcrib.tools import Catalog
from toolcrib.values.call import Hydrated, HydrationResult
from toolcrib.values.json import JsonObject, canonical_json, is_whole, json_bytes
from toolcrib.values.record import CallError

Steps: TypeAlias = tuple[str | int, ...]
_ABSENT: Final[Any] = object()
_CHANGED = (
    "What the approver left as it was shown{} would be another value once the tool had read the edited "
    "arguments. The call did not run."
)
_STANDS_FOR = (
    "A default that is no JSON was put where it was not shown: what was shown is only its type. The "
    "call did not run."
)
_MOVED = (
    "The edit leaves defaults that are no JSON, and may give one of them to another item. The call did "
    "not run."
)


def edited_call(
    edited: JsonObject, hydrated: Hydrated, catalog: Catalog, hook: ExceptionHook
) -> HydrationResult:
    """Return the call with `edited` in place of its effective arguments; Rejected if they do not fit.

    `hook` is given what the author's code raises. Raises Stopped where the tool would get something
    else than `edited` says.
    """
    edit = _Edit(edited, hydrated)
    found = _read(edit, hydrated, catalog, hook)
    if not isinstance(found, Hydrated):
        other = _Edit(edited, hydrated, as_written=True)
        again = None if edit.arguments == other.arguments else _read(other, hydrated, catalog)
        found = again if isinstance(again, Hydrated) else found
    if isinstance(found, CallError):
        raise Stopped(found)
    return found


def _read(
    edit: _Edit, hydrated: Hydrated, catalog: Catalog, hook: ExceptionHook | None = None
) -> HydrationResult | CallError:
    """Return the call that is read of an edit, an error if it is not what the edit says."""
    text, name = json_bytes(edit.arguments).decode(), hydrated.definition.name
    call = msgspec.structs.replace(hydrated.call, name=name, arguments=text)
    read = hydrate(call, catalog, pinned=edit.factory_values(), on_exception=hook)
    return edit.error_of(read) or read if isinstance(read, Hydrated) else read


class _Edit:
    """An edit, and what was shown. `arguments` are what is sent for it: all of it `as_written`, but for
    marks at their places, or what was left as the model sent it. Raises Stopped where a mark, which
    stands for a default that is no JSON, was written."""

    def __init__(self, edited: JsonObject, hydrated: Hydrated, *, as_written: bool = False) -> None:
        added = added_to(hydrated)
        self._edited = edited
        self._shown = hydrated.arguments
        self._origins = added.origins
        self._asked = added.asked
        self._changed = frozenset(hydrated.building.normalised)
        above = {at[:depth] for at in added.origins for depth in range(len(at) + 1)}
        self._special = {pointer_of(at) for at in above}.union(
            *map(_with_those_above, self._changed)
        )
        sent = set(map(canonical_json, _marks_in(hydrated.building.sent)))
        shown = set(map(canonical_json, _marks_in(self._shown)))
        defaults = {canonical_json(_at_place(self._shown, at)) for at in added.origins}
        self._marks = shown - (sent - defaults)
        # by identity, with the two values, which so stay alive
        self._known: dict[tuple[int, int], tuple[bool, Any, Any]] = {}
        self._left_out: set[Steps] = set()  # the places where factories are asked again
        if as_written:
            made = self._written(self._without_marks(edited, ()))
        else:
            made = self._sent(edited, self._shown, hydrated.building.sent, ())
        self.arguments = cast("JsonObject", made)

    def _same(self, one: Any, other: Any) -> bool:
        """Return whether two values are the same JSON; each pair of containers is compared once."""
        if not (isinstance(one, dict | list) and isinstance(other, one.__class__)):
            digits = one.__class__ is other.__class__ or all(map(_has_digits, (one, other)))
            return digits and same_json(one, other)
        key = id(one), id(other)
        if key not in self._known:
            steps = set(one) if isinstance(one, dict) else range(len(one))
            others = set(other) if isinstance(other, dict) else range(len(other))
            inner = (self._same(one[step], other[step]) for step in steps)
            self._known[key] = steps == others and all(inner), one, other
        return self._known[key][0]

    def _sent(self, edited: Any, shown: Any, sent: Any, at: Steps) -> Any:
        """Return what is sent for what stands at a place that was shown, `_ABSENT` for a default."""
        if self._same(edited, shown):
            return self._left(shown, sent, at, at)
        place = pointer_of(at)
        if place not in self._special or place in self._changed or at in self._origins:
            return self._written(edited)
        if isinstance(edited, dict) and isinstance(shown, dict) and isinstance(sent, dict):
            made = {
                name: self._sent(edited[name], shown[name], sent.get(name, _ABSENT), (*at, name))
                if name in shown
                else self._written(edited[name])
                for name in _in_order(sent, edited)
            }
            return {name: part for name, part in made.items() if part is not _ABSENT}
        if isinstance(edited, list) and isinstance(shown, list) and isinstance(sent, list):
            return self._list(edited, shown, sent, at)
        return self._written(edited)

    def _list(self, edited: list[Any], shown: list[Any], sent: list[Any], at: Steps) -> list[Any]:
        if not _in_one_order(shown, sent):
            return cast("list[Any]", self._written(edited))
        places = self._places(edited, shown, at)
        made = []
        for index, part in enumerate(edited):
            was = places.get(index)
            if was is None:
                made.append(self._written(part))
                continue
            before = sent[was] if was < len(sent) else _ABSENT
            if was == index:
                made.append(self._sent(part, shown[was], before, (*at, index)))
            else:
                made.append(self._left(shown[was], before, (*at, was), (*at, index)))
        while made and made[-1] is _ABSENT:  # the last fields of a NamedTuple
            made.pop()
        self._left_out -= {(*at, i) for i, part in enumerate(made) if part is _ABSENT}
        return [self._written(edited[i]) if one is _ABSENT else one for i, one in enumerate(made)]

    def _places(self, edited: list[Any], shown: list[Any], at: Steps) -> dict[int, int]:
        """Return where the items of a list stood that are at their places."""
        is_tuple = (*at, len(shown) - 1) in self._origins
        shorter, more = min(len(edited), len(shown)), len(shown) - len(edited)
        if is_tuple or not more:
            return {index: index for index in range(shorter)}
        head = 0
        while head < shorter and self._same(edited[head], shown[head]):
            head += 1
        tail = len(edited)
        while tail > max(head, head - more) and self._same(
            edited[tail - 1], shown[tail - 1 + more]
        ):
            tail -= 1
        moved = {index: index + more for index in range(tail, len(edited))}
        return {index: index for index in range(head)} | moved

    def _left(self, shown: Any, sent: Any, was: Steps, at: Steps) -> Any:
        """Return what is sent for what was shown at `was` and stands at `at` now."""
        if was in self._origins:
            if self._origins[was] is None:
                return _ABSENT
            if was != at:
                return self._written(shown)
            self._left_out.add(at)
            return _ABSENT
        place = pointer_of(was)
        if sent is _ABSENT:
            return self._written(shown)
        if place not in self._special or place in self._changed:
            return sent
        if isinstance(shown, dict) and isinstance(sent, dict):
            made = {
                name: self._left(shown[name], sent.get(name, _ABSENT), (*was, name), (*at, name))
                for name in _in_order(sent, shown)
            }
            return {name: part for name, part in made.items() if part is not _ABSENT}
        if isinstance(shown, list) and isinstance(sent, list) and _in_one_order(shown, sent):
            parts = (
                self._left(one, sent[i] if i < len(sent) else _ABSENT, (*was, i), (*at, i))
                for i, one in enumerate(shown)
            )
            return [part for part in parts if part is not _ABSENT]
        return sent

    def _written(self, edited: Any) -> Any:
        """Return a value that is sent as it was written. Raises Stopped for a mark in it."""
        if self._marks and any(canonical_json(mark) in self._marks for mark in _marks_in(edited)):
            raise Stopped(CallError.of(ErrorCode.APPROVAL_MISMATCH, _STANDS_FOR))
        return edited

    def _without_marks(self, edited: Any, at: Steps) -> Any:
        """Return an edit without the marks that stand at their places."""
        if at in self._origins and is_mark(edited) and edited == _at_place(self._shown, at):
            if self._origins[at] is not None:
                self._left_out.add(at)
            return _ABSENT
        if isinstance(edited, dict):
            made = {name: self._without_marks(one, (*at, name)) for name, one in edited.items()}
            return {name: one for name, one in made.items() if one is not _ABSENT}
        if isinstance(edited, list):
            items = (self._without_marks(one, (*at, i)) for i, one in enumerate(edited))
            return [one for one in items if one is not _ABSENT]
        return edited

    def factory_values(self) -> FactoryValues:
        """Return what factories are to give: what they gave, but for the places that are sent now."""
        sent = {id(made) for at, made in self._origins.items() if made and at not in self._left_out}
        before: dict[str, deque[Made]] = {}
        for made in self._asked:
            if id(made) not in sent:
                before.setdefault(made.key, deque()).append(made)
        return FactoryValues(before)

    def error_of(self, read: Hydrated) -> CallError | None:
        """Return what to say where the call that was read of the edit is not what the edit says."""
        added = added_to(read)
        normalised = frozenset(read.building.normalised)
        above = set[str]().union(*map(_with_those_above, normalised))

        def difference(edited: Any, value: Any, sent: Any, at: Steps) -> Steps | None:
            """Return the first place at which the tool would get something else."""
            if self._same(edited, value):
                return None
            place = pointer_of(at)
            is_near = place in above or not normalised.isdisjoint(_with_those_above(place))
            is_list = isinstance(edited, list)
            if is_list and not is_near and self._same(value, _sorted(edited)):
                return None  # a set
            inner, inner_value = _json_in(edited), _json_in(value)
            if inner is not None and inner_value is not None:
                return difference(inner, inner_value, _json_in(sent), at)
            as_one = is_list and place in normalised
            if not as_one and _has_parts_of(value, edited, at, added.origins):
                steps = edited if isinstance(edited, dict) else range(len(edited))
                parts = ((s, _part(edited, s), _part(value, s), _part(sent, s)) for s in steps)
                found = (difference(one, now, was, (*at, step)) for step, one, now, was in parts)
                return next((place for place in found if place is not None), None)
            is_written = sent is not _ABSENT and self._same(sent, edited)
            return None if is_written and not (is_near and self._was_shown(edited)) else at

        found = difference(self._edited, read.arguments, self.arguments, ())
        if found is not None:
            text = _CHANGED.format(f" at {pointer_of(found)}" if found else "")
            return CallError.of(ErrorCode.APPROVAL_MISMATCH, text)
        moved = self._may_have_moved(added)
        return CallError.of(ErrorCode.APPROVAL_MISMATCH, _MOVED) if moved else None

    def _was_shown(self, edited: Any) -> bool:
        """Return whether anything in a value was shown, in whatever place."""
        return any(canonical_json(leaf) in self._shown_leaves for leaf in _leaves_in(edited))

    @cached_property
    def _shown_leaves(self) -> set[str]:
        return set(map(canonical_json, _leaves_in(self._shown)))

    def _may_have_moved(self, added: AddedDefaults) -> bool:
        """Return whether a default that was left, and is no JSON, may be another one now."""
        placed = {id(made) for made in self._origins.values()}
        hidden = {made.key for made in self._asked if not made.is_json and id(made) not in placed}
        for key in hidden:
            now = [id(made.source) for made in added.asked if made.key == key]
            if now != [id(made) for made in self._asked if made.key == key]:
                return True
        for at in self._left_out:
            was, now_there = self._origins[at], added.origins.get(at)
            source = now_there.source if isinstance(now_there, Made) else now_there
            if is_mark(_at_place(self._shown, at)) and source is not was:
                return True
        return False


def _has_parts_of(value: Any, edited: Any, at: Steps, origins: Mapping[Steps, Any]) -> bool:
    """Return whether a value has the parts of another one, and besides them only defaults."""
    if isinstance(edited, dict) and isinstance(value, dict):
        more: Iterable[str | int] = value.keys() - edited.keys()
        has_all = edited.keys() <= value.keys()
    elif isinstance(edited, list) and isinstance(value, list):
        more, has_all = range(len(edited), len(value)), len(edited) <= len(value)
    else:
        return False
    return has_all and all((*at, step) in origins for step in more)


def _in_one_order(shown: list[Any], sent: list[Any]) -> bool:
    """Return whether items were sent in the order in which they are shown, which a set has not."""
    if len(sent) > len(shown):
        return False
    other = next((i for i, one in enumerate(sent) if not _contains(shown[i], one)), None)
    return other is None or not any(_contains(one, sent[other]) for one in shown)


def _contains(value: Any, part: Any) -> bool:
    """Return whether a value is another one, but for what only it has."""
    if isinstance(part, dict):
        return isinstance(value, dict) and all(
            name in value and _contains(value[name], one) for name, one in part.items()
        )
    if isinstance(part, list):
        return (
            isinstance(value, list) and len(part) <= len(value) and all(map(_contains, value, part))
        )
    return same_json(value, part)


def _in_order(first: Collection[str], then: Collection[str]) -> Iterator[str]:
    """Yield the names of `then`: those of `first` in its order before the others."""
    yield from (name for name in first if name in then)
    yield from (name for name in then if name not in first)


def _sorted(items: list[Any]) -> list[Any]:
    return sorted(items, key=canonical_json)


def _has_digits(number: Any) -> bool:
    """Return whether a number has the digits that were written, which a float beyond 2^53 has not."""
    return not isinstance(number, float) or not number.is_integer() or is_whole(number)


def _part(value: Any, step: Any) -> Any:
    try:
        return value[step]
    except (LookupError, TypeError):
        return _ABSENT


def _at_place(value: Any, at: Steps) -> Any:
    for step in at:
        value = _part(value, step)
    return value


def _with_those_above(pointer: str) -> Iterator[str]:
    tokens = pointer.split("/")
    return ("/".join(tokens[:end]) for end in range(1, len(tokens) + 1))


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


def _leaves_in(value: Any) -> Iterator[Any]:
    return (part for part in _parts_of(value) if not isinstance(part, dict | list))


def _json_in(text: Any) -> Any:
    """Return the object or the list that stands as JSON within a text, if one does."""
    try:
        found = read_text(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found if isinstance(found, dict | list) else None
