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
    attributes_and_extras,
    attributes_of,
    classes_of,
    defaults_by_key,
    fields_by_key,
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
        self.typed_arguments = added.typed_arguments
        self.factory_values = added.factory_values
        self.origins = added.origins
        self.above = {path[:depth] for path in added.origins for depth in range(len(path) + 1)}
        self.whole = added.sets.union(hydrated.building.normalised)
        self.same = SameJson()

    def at(self, path: Steps) -> Any:
        """Return what was shown at a place."""
        return reduce(part_at, path, self.arguments)

    def places(self, edited: Any, shown: Any, path: Steps | None) -> dict[Any, Any]:
        """Map the steps in an edit to the old steps of the parts that kept their places.

        The object or list was shown at `path`. A list that ends in a default there is a tuple, whose
        items keep their places.
        """
        if isinstance(edited, dict):
            return {name: name for name in edited}
        if not isinstance(shown, list):
            return {}
        is_tuple = path is not None and (*path, len(shown) - 1) in self.origins
        shorter, surplus = min(len(edited), len(shown)), len(shown) - len(edited)
        if is_tuple or not surplus:
            return {index: index for index in range(shorter)}
        head = 0
        while head < shorter and self.same(edited[head], shown[head]):
            head += 1
        tail = len(edited)
        while tail > max(head, head - surplus) and self.same(
            edited[tail - 1], shown[tail - 1 + surplus]
        ):
            tail -= 1
        moved = {index: index + surplus for index in range(tail, len(edited))}
        return {index: index for index in range(head)} | moved


def have_parts(value: Any, other: Any) -> bool:
    """Return whether both are objects, or both are lists."""
    return isinstance(value, dict | list) and isinstance(other, value.__class__)


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
        parsed = read_text(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict | list) else None


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
    new_json: Any
    edited: Any
    old_path: Steps
    path: Steps


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
        self._changed = dict(self._changed_in(edited, shown.arguments, shown.typed_arguments, ()))
        self._in_part = {
            path
            for path, (_, *shown_and_edited) in self._changed.items()
            if have_parts(*shown_and_edited)
        }
        self._lost_path: Steps = ()

    def _changed_in(
        self, edited: Any, shown: Any, value: Any, path: Steps
    ) -> Iterator[tuple[Steps, _Changed]]:
        if path not in self._shown.above or self._same(edited, shown):
            return
        if path in self._shown.origins:
            if not is_mark(shown):
                yield path, _Changed(value, shown, edited)
        elif have_parts(shown, edited) and pointer_of(path) not in self._shown.whole:
            parts = parts_by_key(value)
            for step, old_step in self._places(edited, shown, path):
                part = part_at(parts, old_step)
                yield from self._changed_in(edited[step], shown[old_step], part, (*path, old_step))

    def _places(self, edited: Any, shown: Any, path: Steps) -> Iterator[tuple[Any, Any]]:
        old_steps = self._shown.places(edited, shown, path)
        return (pair for pair in old_steps.items() if part_at(shown, pair[1]) is not ABSENT)

    def to_send(self, besides: Besides) -> dict[Steps, Any]:
        """Return what to send for defaults that the edit changes, so that the tool gets the same.

        That is everything their classes do not add by themselves, and what `besides` says.
        """
        return {
            path: self._to_send(changed, besides)
            for path, changed in self._changed.items()
            if besides is not Besides.NOTHING or path in self._in_part
        }

    def _to_send(self, changed: _Changed, besides: Besides) -> Any:
        value, shown, edited = changed
        if not isinstance(shown, dict | list):
            return shown
        defaults, parts = defaults_by_key(value), parts_by_key(value)
        steps = self._places(edited, shown, ()) if have_parts(shown, edited) else ()
        edited_parts = {old_step: edited[step] for step, old_step in steps}
        to_send: dict[Any, Any] = {}
        for step, shown_part in steps_of(shown):
            edited_part, part = edited_parts.get(step, ABSENT), part_at(parts, step)
            default = defaults.get(step, MISSING)
            if self._same(edited_part, shown_part):
                is_sent = besides is Besides.SCALARS and not isinstance(shown_part, dict | list)
                is_sent = is_sent or not is_same(part, default)
            else:
                is_sent = besides is not Besides.NOTHING or have_parts(shown_part, edited_part)
            if is_sent or default is MISSING:
                edited_part = edited_part if have_parts(shown_part, edited_part) else shown_part
                to_send[step] = self._to_send(_Changed(part, shown_part, edited_part), besides)
        return to_send if isinstance(shown, dict) else list(to_send.values())

    @property
    def error(self) -> CallError:
        """The error if no arguments can reproduce a default of which the edit changes a part."""
        path = min(self._in_part, key=pointer_of)
        text = _IN_PART.format(pointer_of(path), pointer_of(self._lost_path or path))
        return CallError.of(ErrorCode.APPROVAL_MISMATCH, text)

    def error_of(self, read: Hydrated) -> CallError | None:
        """Return the error if the call read from the edit has another value for a kept default."""
        lost_path = self._lost_path_of(read, _Rule(is_base=False))
        if lost_path is None:
            return None
        return CallError.of(ErrorCode.APPROVAL_MISMATCH, _LOST.format(pointer_of(lost_path)))

    def stays_in(self, base: Hydrated) -> bool:
        """Return whether a call with defaults sent is the same except for what the edit changes."""
        lost_path = self._lost_path_of(base, _Rule(is_base=True))
        self._lost_path = self._lost_path or lost_path or ()
        return lost_path is None

    def _lost_path_of(self, read: Hydrated, rule: _Rule) -> Steps | None:
        shown, values = self._shown, added_to(read).typed_arguments
        if shown.typed_arguments is None or values is None:
            return None
        whole = _Pair(
            shown.typed_arguments, values, shown.arguments, read.arguments, self._edited, (), ()
        )
        return self._lost_path_in(whole, rule)

    def _lost_path_in(self, part: _Pair, rule: _Rule) -> Steps | None:
        """Return the first place at which a call has another value than what was left there."""
        if part.old_path in self._shown.origins:
            rule = rule._replace(is_default=True)
        if self._same(part.edited, part.shown):
            is_shown_mark = is_mark(part.shown) and part.old_path in self._shown.origins
            # a mark of an `InitVar` is shown only from what was sent
            if rule.is_default and not is_shown_mark:
                return None if is_same(part.old, part.new) else part.path
            if rule.is_base and not self._same(part.new_json, part.shown):
                return part.path
            if rule.is_default:
                return None
        texts = json_in(part.shown), json_in(part.new_json), json_in(part.edited)
        if not isinstance(part.old, str) and None not in texts:  # JSON in a string has no defaults
            shown, new_json, edited = texts
            part = part._replace(shown=shown, new_json=new_json, edited=edited)
            rule = rule._replace(is_default=True)
        if not (rule.is_default or part.old_path in self._shown.above):
            return None
        return self._lost_path_within(part, rule) if have_parts(part.shown, part.edited) else None

    def _lost_path_within(self, part: _Pair, rule: _Rule) -> Steps | None:
        """Return the same for a part that the edit changes in part."""
        if not part.shown and isinstance(part.old, tuple | frozenset):
            return None  # there is nothing to keep
        if isinstance(part.old, set | frozenset):
            lost_path = None if _holds_what_was_left(part) else part.path
        else:
            lost_paths = (self._lost_at_step(one, rule) for one in self._below(part, rule))
            lost_path = next((one for one in lost_paths if one is not None), None)
        if lost_path is not None or not (rule.is_base and rule.is_default):
            return lost_path
        return None if is_same_around(part.old, part.new, part.shown) else part.path

    def _below(self, part: _Pair, rule: _Rule) -> Iterator[_Pair]:
        old, new = parts_by_key(part.old), parts_by_key(part.new)
        for step, old_step in self._places(part.edited, part.shown, part.old_path):
            new_step = old_step if rule.is_base else step
            values = part_at(old, old_step), part_at(new, new_step)
            contents = part.shown[old_step], part_at(part.new_json, new_step), part.edited[step]
            yield _Pair(*values, *contents, (*part.old_path, old_step), (*part.path, step))

    def _lost_at_step(self, part: _Pair, rule: _Rule) -> Steps | None:
        if part.old is not ABSENT and part.new is not ABSENT:
            return self._lost_path_in(part, rule)
        is_around_default = part.old is not ABSENT and part.old_path in self._shown.above
        return part.path if rule.is_default or is_around_default else None


def _holds_what_was_left(part: _Pair) -> bool:
    """Return whether another set still has as many of this set's items as the edit has left."""
    if not isinstance(part.new, set | frozenset):
        return False
    items = {item: item for item in part.new}
    kept_count = sum(item in items and is_same(item, items[item]) for item in part.old)
    left_items = Counter(map(canonical_json, part.shown)) & Counter(
        map(canonical_json, part.edited)
    )
    return kept_count >= left_items.total()


class SameJson:
    """Compares JSON, each pair of containers once."""

    def __init__(self) -> None:
        # Keyed by identity; holding the two values keeps the identities valid.
        self._compared: dict[tuple[int, int], tuple[bool, Any, Any]] = {}

    def __call__(self, value: Any, other: Any) -> bool:
        """Return whether two values are the same JSON."""
        if not (isinstance(value, dict | list) and isinstance(other, value.__class__)):
            is_same_class = value.__class__ is other.__class__
            return same_json(value, other) and (
                is_same_class or not any(map(has_rounded, (value, other)))
            )
        key = id(value), id(other)
        if key not in self._compared:
            steps = set(value) if isinstance(value, dict) else range(len(value))
            others = set(other) if isinstance(other, dict) else range(len(other))
            comparisons = (self(value[step], other[step]) for step in steps)
            self._compared[key] = steps == others and all(comparisons), value, other
        return self._compared[key][0]


def is_same(value: Any, other: Any) -> bool:
    """Return whether another value is and holds the same as this one.

    An equal float may stand for a whole number, and pydantic's time zone for one of the same
    offset, because type hints read them so.
    """
    pending = [(value, other)]
    seen: dict[tuple[int, int], Any] = {}  # holding the values keeps their identities valid
    try:
        while pending:
            pair = pending.pop()
            if pair[0] is pair[1] or (key := (id(pair[0]), id(pair[1]))) in seen:
                continue
            seen[key] = pair
            pairs = _inner_pairs(*pair) if len(seen) < _MOST_COMPARED else None
            if pairs is None:
                return False
            pending += pairs
    except Exception:  # noqa: BLE001  an author's class may raise anything
        return False
    return True


def _inner_pairs(value: Any, other: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return what two values hold, in pairs; None if they differ otherwise."""
    kind = type(value)
    if kind is int and type(other) is float:
        return () if value == other else None
    if kind is timezone and type(other) is TzInfo:  # how pydantic reads an offset
        return () if value.utcoffset(None) == other.utcoffset(None) else None
    if kind is not type(other):
        return None
    if kind in _SCALARS:
        return () if repr(value) == repr(other) else None
    if kind is dict or kind is set or kind is frozenset:
        names = {name: name for name in other}
        pairs = [(name, names.get(name, MISSING)) for name in value]
        if kind is dict:
            pairs += [(part, other.get(name, MISSING)) for name, part in value.items()]
        return pairs if len(value) == len(other) else None
    if kind is not list and kind is not tuple:
        value, other = _reduced(value), _reduced(other)
    return zip(value, other, strict=True) if len(value) == len(other) else None


def _reduced(value: Any) -> list[Any]:
    """Return what pickle reduces a value to.

    Raises what that raises, and TypeError for an object that is pickled by name only.
    """
    kind: Any = type(value)
    reducer = copyreg.dispatch_table.get(kind)
    reduced: Any = reducer(value) if reducer else kind.__reduce_ex__(value, 4)
    if not isinstance(reduced, tuple):
        raise TypeError("it has only a name")
    rebuild, args, state, items, pairs = (*reduced, None, None, None)[:5]
    if is_object(value) and (state is None or isinstance(state, dict)):
        state = _attributes(value)
    return [rebuild, args, state, items and list(items), pairs and dict(pairs)]


def _attributes(value: Any) -> tuple[dict[str, Any], Any]:
    """Return what an object holds, declared or not, and its private attributes.

    Attributes that only record what was sent are left out, and so is what a `cached_property`
    computed.
    """
    kind = type(value)
    attributes = attributes_and_extras(value).items()
    own_attributes = {
        name: attribute
        for name, attribute in attributes
        if not isinstance(getattr(kind, name, None), cached_property)
    }
    return own_attributes, getattr(value, "__pydantic_private__", None)


def is_same_around(value: Any, other: Any, shown: Any) -> bool:
    """Return whether two values are of one class, and equal in what is not shown of them."""
    try:
        return is_same(_around(value, shown), _around(other, shown))
    except Exception:  # noqa: BLE001  an author's class may raise anything
        return False


def _around(value: Any, shown: Any) -> list[Any]:
    """Return a value's class and what it holds besides what is shown of it."""
    if is_object(value):
        named = {name for key, (name, _) in fields_by_key(value).items() if key in shown}
        attributes, private = _attributes(value)
        hidden = {
            n: attribute for n, attribute in attributes.items() if n not in named and n not in shown
        }
        if isinstance(value, classes_of("pydantic.root_model", "RootModel")):
            hidden = {"root": _around(attributes_of(value), shown)}
        return [type(value), hidden, private]
    rebuild, args, state, *_ = _reduced(value)
    names = dict.fromkeys(value) if isinstance(value, dict) else None
    is_of_items = isinstance(value, tuple | set | frozenset)
    return [type(value), rebuild, () if is_of_items else args, state, names]
