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
from toolcrib.schema.derive.factories import AddedDefaults, FactoryValues, ReturnedValue
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
    failures: list[Rejected | CallError] = []
    for base in _bases(left, hydrated, catalog):
        reader = _Reader(base, catalog, left)
        first = reader.read(edited, None if failures else hook)
        if isinstance(first, Hydrated):
            return first
        second = reader.read_as_written(edited)
        if isinstance(second, Hydrated):
            return second
        failures += [first, second]
    rejected = [failure for failure in failures[:2] if isinstance(failure, Rejected)]
    if rejected:
        return rejected[0]
    errors = [failure for failure in failures if isinstance(failure, CallError)]
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
        self._default_pointers = set(pointers).union(*map(_with_those_above, shown.whole))
        sent_marks = set(map(canonical_json, _marks_in(shown.sent)))
        shown_marks = set(map(canonical_json, _marks_in(shown.arguments)))
        defaults = {canonical_json(shown.at(path)) for path in shown.origins}
        self._marks = shown_marks - (sent_marks - defaults)
        # the places where factories are called again, and where their values were shown
        self._left_out: dict[Steps, Steps] = {}
        if as_written:
            arguments = self._checked_for_marks(self._without_marks(edited, ()))
        else:
            arguments = self._to_send_for(edited, shown.arguments, shown.sent, (), ())
        self.arguments = cast("JsonObject", arguments)

    def _to_send_for(self, edited: Any, shown: Any, sent: Any, old_path: Steps, path: Steps) -> Any:
        """Return what is sent for what was at `old_path`, now at `path`; `ABSENT` for a default."""
        pointer, is_left = pointer_of(old_path), self.shown.same(edited, shown)
        if is_left:
            edited = shown
            if old_path in self._to_send:
                return self._checked_for_marks(self._to_send[old_path])
            if old_path in self._origins:
                if isinstance(self._origins[old_path], ReturnedValue):
                    self._left_out[path] = old_path
                return ABSENT
            if sent is not ABSENT and (
                pointer not in self._default_pointers or pointer in self.shown.whole
            ):
                self._leave_out_below(old_path, path)
                return sent
        elif (
            pointer not in self._default_pointers
            or pointer in self.shown.whole
            or old_path in self._origins
        ):
            return self._checked_for_marks(edited)
        if isinstance(edited, dict) and isinstance(shown, dict) and isinstance(sent, dict):
            names = (name for name in (*sent, *edited) if name in edited)  # in the order sent
            sent_parts = {name: sent.get(name, ABSENT) for name in names}
            parts = {
                name: self._to_send_for(
                    edited[name], shown[name], sent_part, (*old_path, name), (*path, name)
                )
                if name in shown
                else self._checked_for_marks(edited[name])
                for name, sent_part in sent_parts.items()
            }
            return {name: part for name, part in parts.items() if part is not ABSENT}
        if isinstance(edited, list) and isinstance(shown, list) and isinstance(sent, list):
            return self._list_to_send(edited, shown, sent, old_path, path)
        return sent if is_left and sent is not ABSENT else self._checked_for_marks(edited)

    def _list_to_send(
        self, edited: Any, shown: Any, sent: Any, old_path: Steps, path: Steps
    ) -> list[Any]:
        """Return the same for a list, of which only the last items may be left out."""
        old_steps, items = self.shown.places(edited, shown, old_path), list[Any]()
        for index, part in enumerate(edited):
            old_step = old_steps.get(index)
            if old_step is None:
                items.append(self._checked_for_marks(part))
                continue
            sent_part, paths = part_at(sent, old_step), ((*old_path, old_step), (*path, index))
            items.append(self._to_send_for(part, shown[old_step], sent_part, *paths))
        while items and items[-1] is ABSENT:  # the last fields of a NamedTuple
            items.pop()
        for index, part in enumerate(items):
            if part is ABSENT:
                self._left_out.pop((*path, index), None)
                items[index] = self._checked_for_marks(edited[index])
        return items

    def _leave_out_below(self, old_path: Steps, path: Steps) -> None:
        """Note the factory-made defaults in what was shown at `old_path` and is now at `path`."""
        for default_path, value in self._origins.items():
            if isinstance(value, ReturnedValue) and default_path[: len(old_path)] == old_path:
                self._left_out[*path, *default_path[len(old_path) :]] = default_path

    def _checked_for_marks(self, edited: Any) -> Any:
        """Return a value that is sent as it was written. Raises Stopped if it contains a mark."""
        marks = map(canonical_json, _marks_in(edited)) if self._marks else ()
        if not self._marks.isdisjoint(marks):
            raise Stopped(CallError.of(ErrorCode.APPROVAL_MISMATCH, _STANDS_FOR))
        return edited

    def _without_marks(self, edited: Any, path: Steps) -> Any:
        """Return an edit without the marks that are in their places."""
        if path in self._origins and is_mark(edited) and edited == self.shown.at(path):
            if isinstance(self._origins[path], ReturnedValue):
                self._left_out[path] = path
            return ABSENT
        if isinstance(edited, dict):
            parts = {
                name: self._without_marks(part, (*path, name)) for name, part in edited.items()
            }
            return {name: part for name, part in parts.items() if part is not ABSENT}
        if isinstance(edited, list):
            items = (self._without_marks(part, (*path, i)) for i, part in enumerate(edited))
            return [part for part in items if part is not ABSENT]
        return edited

    def factory_values(self) -> FactoryValues:
        """Return what factories are to give if they are called in the same order as before."""
        left_ids = {id(self._origins[old_path]) for old_path in self._left_out.values()}
        left_ids.update(map(id, self._unplaced))
        queues: dict[str, deque[ReturnedValue | None]] = {}
        for value in self.shown.factory_values:
            if id(value) in left_ids:
                queues.setdefault(value.key, deque()).append(value)
        return FactoryValues(queues)

    @cached_property
    def _unplaced(self) -> list[ReturnedValue]:
        """Factory values without a known place, such as those inside what a validator made."""
        placed_ids = {id(value) for value in self._origins.values()}
        return [value for value in self.shown.factory_values if id(value) not in placed_ids]

    def in_their_places(self, added: AddedDefaults) -> FactoryValues | None:
        """Return factory values that give each place its own; None if they already did.

        A new item gets a new value.
        """
        paths = {id(value): path for path, value in added.origins.items()}
        unplaced = _by_factory(self._unplaced)
        own_values: list[ReturnedValue | None] = []
        for new_value in added.factory_values:
            path = paths.get(id(new_value))
            old_path = None if path is None else self._left_out.get(path)
            own_value = _next(unplaced, new_value) if path is None else None
            own_values.append(own_value if old_path is None else self._origins[old_path])
        pairs = list(zip(added.factory_values, own_values, strict=True))
        if all(new_value.source is own_value for new_value, own_value in pairs):
            return None
        spare_values = _by_factory(
            new_value
            for new_value, own_value in pairs
            if own_value is not None and new_value.source is None and not new_value.has_data
        )
        queues: dict[str, deque[ReturnedValue | None]] = {}
        for new_value, assigned in pairs:
            own_value = assigned
            if own_value is None and not new_value.has_data:  # its data may differ now
                own_value = (
                    new_value if new_value.source is None else _next(spare_values, new_value)
                )
            queues.setdefault(new_value.key, deque()).append(own_value)
        return FactoryValues(queues)

    def error_of(self, read: Hydrated, read_again: Callable[[], JsonObject]) -> CallError | None:
        """Return the error if the call that was read differs from the edit.

        `read_again` returns what the tool reads when it is sent what was shown.
        """
        added = added_to(read)
        check, shown = _Check(self, read, added, read_again), self.shown.arguments
        path = check.difference(self.edited, read.arguments, self.arguments, shown, ())
        if path is not None:
            text = _CHANGED.format(f" at {pointer_of(path)}" if path else "")
            return CallError.of(ErrorCode.APPROVAL_MISMATCH, text)
        has_moved = self.may_have_moved(added)
        return CallError.of(ErrorCode.APPROVAL_MISMATCH, _MOVED) if has_moved else None

    def may_have_moved(self, added: AddedDefaults) -> bool:
        """Return whether a default that was left, and has no JSON, may have changed."""
        for key in {value.key for value in self._unplaced if not value.is_json}:
            source_ids = [id(value.source) for value in added.factory_values if value.key == key]
            if source_ids != [id(value) for value in self.shown.factory_values if value.key == key]:
                return True
        for path, old_path in self._left_out.items():
            old_value, new_value = self._origins[old_path], added.origins.get(path)
            source = new_value.source if isinstance(new_value, ReturnedValue) else new_value
            if is_mark(self.shown.at(old_path)) and source is not old_value:
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
        self._pointers_above = set[str]().union(*map(_with_those_above, self._changed))

    def difference(
        self, edited: Any, value: Any, sent: Any, shown: Any, path: Steps
    ) -> Steps | None:
        """Return the first place at which the tool would get something else than the edit says."""
        if self._same(edited, value):
            return None
        if shown is not ABSENT and self._same(edited, shown):
            return path
        texts = json_in(edited), json_in(value)
        if None not in texts:
            return self.difference(*texts, json_in(sent), json_in(shown), path)
        pointer = pointer_of(path)
        is_whole = isinstance(edited, list) and pointer in self._whole
        if not is_whole and _has_parts_of(value, edited, path, self._origins):
            inner_path = self._difference_in(edited, value, sent, shown, path)
            if inner_path is None or not self._is_in_another_order(edited, value, shown, pointer):
                return inner_path
        is_written = sent is not ABSENT and self._same(sent, edited)
        return None if is_written and self._may_change(path) else path

    def _difference_in(
        self, edited: Any, value: Any, sent: Any, shown: Any, path: Steps
    ) -> Steps | None:
        old_steps = self._shown.places(edited, shown, None)
        parts = (
            (
                edited_part,
                value[step],
                part_at(sent, step),
                part_at(shown, old_steps.get(step)),
                (*path, step),
            )
            for step, edited_part in steps_of(edited)
        )
        inner_paths = (self.difference(*part) for part in parts)
        return next((inner_path for inner_path in inner_paths if inner_path is not None), None)

    def _is_in_another_order(self, edited: Any, value: Any, shown: Any, pointer: str) -> bool:
        """Return whether validators moved items of a list that still has all items left alone."""
        if not (isinstance(edited, list) and isinstance(shown, list) and self._is_near(pointer)):
            return False
        shown_items, new_items = set(map(canonical_json, shown)), list(map(canonical_json, value))
        left_items = [
            (step, text)
            for step, text in enumerate(map(canonical_json, edited))
            if text in shown_items
        ]
        has_all = Counter(text for _, text in left_items) <= Counter(new_items)
        return has_all and any(new_items[step] != text for step, text in left_items)

    def _is_near(self, pointer: str) -> bool:
        """Return whether a validator changed something at a place, around it or within it."""
        return pointer in self._pointers_above or not self._changed.isdisjoint(
            _with_those_above(pointer)
        )

    def _may_change(self, path: Steps) -> bool:
        """Return whether a written value may be read as another value.

        It may be brought into a canonical form, and validators may change it if they leave alone
        what was shown.
        """
        if not self._is_near(pointer_of(path)):
            return True
        arguments = self._read_again()
        shown = self._shown.arguments
        names: Iterable[Any] = path[:1] or shown
        return all(self._same(arguments.get(name), shown.get(name)) for name in names)


def _has_parts_of(value: Any, edited: Any, path: Steps, origins: Mapping[Steps, Any]) -> bool:
    """Return whether a value has all parts of another one and, beyond them, only defaults."""
    if isinstance(edited, dict) and isinstance(value, dict):
        extra_steps: Iterable[str | int] = value.keys() - edited.keys()
        has_all = edited.keys() <= value.keys()
    elif isinstance(edited, list) and isinstance(value, list):
        extra_steps, has_all = range(len(edited), len(value)), len(edited) <= len(value)
    else:
        return False
    return has_all and all((*path, step) in origins for step in extra_steps)


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


def _by_factory(values: Iterable[ReturnedValue]) -> dict[int, deque[ReturnedValue]]:
    by_factory: dict[int, deque[ReturnedValue]] = {}
    for value in values:
        by_factory.setdefault(id(value.factory), deque()).append(value)
    return by_factory


def _next(
    by_factory: dict[int, deque[ReturnedValue]], value: ReturnedValue
) -> ReturnedValue | None:
    queue = by_factory.get(id(value.factory))
    return queue.popleft() if queue else None
