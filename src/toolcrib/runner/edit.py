"""An approver's edit: the call that runs with other arguments than the model's, if that call stands.

Rule: what an approver left as it was shown reaches the tool as it was shown, and what they wrote is
read as if the model had sent it. An edit is written in the terms of the effective arguments, which have
defaults, and what an author's validators made of values: read once more, those could become others. So
of what was left as it was shown, that is sent again which was sent before, and the result is compared,
place by place, with what was shown. A call in which it is another value does not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

import msgspec

from toolcrib.errors import ErrorCode
from toolcrib.hydration import hydrate
from toolcrib.runner.stopped import ExceptionHook, Stopped
from toolcrib.schema.references import read_text, value_at
from toolcrib.tools import Catalog
from toolcrib.values.call import Hydrated, HydrationResult
from toolcrib.values.json import JsonObject, canonical_bytes, json_bytes
from toolcrib.values.record import CallError

_ABSENT: Final = object()
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
    shown = hydrated.arguments
    if _same(edited, shown):
        return hydrated
    read: HydrationResult = hydrated
    known = _Known.of(hydrated, shown)
    tried = set[str]()
    for arguments, pinned in _ways_to_send(edited, shown, hydrated, known):
        text = json_bytes(arguments).decode()
        if text in tried:
            continue
        tried.add(text)
        call = msgspec.structs.replace(hydrated.call, name=hydrated.definition.name, arguments=text)
        read = hydrate(call, catalog, pinned=pinned, on_exception=hook)
        known = known._replace(reorders=arguments is edited)
        if isinstance(read, Hydrated) and known.stands(edited, shown, read.arguments):
            return read
    if isinstance(read, Hydrated):
        raise Stopped(CallError.of(ErrorCode.APPROVAL_MISMATCH, _CHANGED))
    return read


def _ways_to_send(
    edited: JsonObject, shown: JsonObject, hydrated: Hydrated, known: _Known
) -> Iterator[tuple[JsonObject, dict[str, Any]]]:
    """Yield arguments that may be read as the edited ones, the likeliest first, and pinned values.

    A default that was left as it was shown is not sent, so that it stays one. Where it would be another
    one now, it is sent, that of a factory first: its values are given in the order of asking, and an
    item may be asked for that was not there before. The last way is what was written.
    """
    sent, pinned = hydrated.building.sent, cast("dict[str, Any]", hydrated.building.pinned)
    yield known.sent_again(edited, shown, sent), pinned
    made = {_text(v) for each in pinned.values() for values in each for v in values}
    lasting = frozenset(default for default in known.defaults if default[1] not in made)
    for defaults in (lasting, frozenset[_Value]()):
        yield known._replace(defaults=defaults, entire=False).sent_again(edited, shown, sent), {}
    yield edited, {}


_Value = tuple[str, bytes]
"""A value as canonical JSON, and the name of the property that it is, or that it is in a list of."""


class _Known(NamedTuple):
    """What was shown that is not what was sent: the sent value of each that a validator `changed`, and
    the `defaults`. `left` are both: wherever such a value stands in an edit, it was left as shown.

    With `entire`, an object or a list that was left as it was shown is sent as it was, not part by
    part. With `reorders`, a list may have been read in another order, as that of a set.
    """

    changed: dict[_Value, Any]
    defaults: frozenset[_Value]
    left: frozenset[_Value]
    entire: bool = True
    reorders: bool = False

    @staticmethod
    def of(hydrated: Hydrated, shown: JsonObject) -> _Known:
        sent = hydrated.building.sent
        changed = dict[_Value, Any]()
        for pointer in hydrated.building.normalised:
            before, after = value_at(sent, pointer, _ABSENT), value_at(shown, pointer, _ABSENT)
            if before is not _ABSENT and after is not _ABSENT:
                changed[_property(pointer), _text(after)] = before
        values = ((p, value_at(shown, p, _ABSENT)) for p in hydrated.defaults)
        defaults = frozenset((_property(p), _text(v)) for p, v in values if v is not _ABSENT)
        return _Known(changed, defaults, defaults.union(changed))

    def sent_again(self, edited: Any, shown: Any, sent: Any, name: str = "") -> Any:
        """Return what is sent for a value of an edit: where it is as it was shown, what was sent."""
        is_same = sent is not _ABSENT and _same(edited, shown)
        if is_same and (self.entire or not isinstance(edited, dict | list)):
            return sent
        if (name, _text(edited)) in self.changed:
            return self.changed[name, _text(edited)]
        if isinstance(edited, dict):
            before = sent if isinstance(sent, dict) else {}
            if is_same and before is not sent:
                return sent
            left = shown if isinstance(shown, dict) else {}
            names = (*(n for n in before if n in edited), *(n for n in edited if n not in before))
            was = _names(edited, left)
            return {
                n: self.sent_again(
                    edited[n], left.get(was[n], _ABSENT), before.get(was[n], _ABSENT), n
                )
                for n in names
                if n in before or (n, _text(edited[n])) not in self.defaults
            }
        if isinstance(edited, list):
            if is_same and not isinstance(sent, list):
                return sent
            paired = _are_lists(shown, sent) and len(shown) == len(sent)
            places = _places(edited, shown) if paired else [None] * len(edited)
            return [
                self.sent_again(item, _ABSENT, _ABSENT, name)
                if at is None
                else self.sent_again(item, shown[at], sent[at], name)
                for item, at in zip(edited, places, strict=True)
            ]
        return edited

    def stands(self, edited: Any, shown: Any, read: Any, name: str = "") -> bool:
        """Return whether all that is in `edited` as it was shown has been read as that.

        What was written anew is as the tool's own validators have it.
        """
        if _same(edited, read):
            return True
        if _same(edited, shown) or (name, _text(edited)) in self.left:
            return False
        if isinstance(edited, dict) and isinstance(read, dict):
            left = shown if isinstance(shown, dict) else {}
            was = _names(edited, left)
            return all(
                n in read and self.stands(value, left.get(was[n], _ABSENT), read[n], n)
                for n, value in edited.items()
            )
        if _are_lists(edited, read):
            if self.reorders and sorted(map(_text, edited)) == sorted(map(_text, read)):
                return True
            places = _places(edited, shown) if isinstance(shown, list) else [None] * len(edited)
            return len(edited) <= len(read) and all(
                self.stands(item, _ABSENT if at is None else shown[at], now, name)
                for item, at, now in zip(edited, places, read, strict=False)
            )
        if isinstance(edited, str) and isinstance(read, str):
            texts = [_json_in(text) for text in (edited, shown, read)]
            if all(isinstance(text, dict | list) for text in (texts[0], texts[2])):
                return self.stands(*texts)
        return True


def _property(pointer: str) -> str:
    """Return the name of the property that a JSON Pointer leads to, or to an item of."""
    return next((step for step in reversed(pointer.split("/")) if not step.isdigit()), "")


def _names(edited: dict[str, Any], shown: dict[str, Any]) -> dict[str, str]:
    """Return for each name of an edited object the one that its value had: mostly the same."""
    new = [name for name in edited if name not in shown]
    gone = (
        {_text(value): name for name, value in shown.items() if name not in edited} if new else {}
    )
    return {**{name: name for name in edited}, **{n: gone.get(_text(edited[n]), n) for n in new}}


def _places(edited: list[Any], shown: list[Any]) -> list[int | None]:
    """Return for each item of an edited list the place of the one that it was, if it was one.

    Those that are as they were shown are found wherever they are; of the others each is taken for the
    one at its own place or, if that was found elsewhere, for the next.
    """
    free: dict[bytes, list[int]] = {}
    for at in reversed(range(len(shown))):
        free.setdefault(_text(shown[at]), []).append(at)
    places: list[int | None] = []
    for at, item in enumerate(edited):
        same = free.get(_text(item), [])
        if at in same:
            same.remove(at)
            places.append(at)
        else:
            places.append(same.pop() if same else None)
    others = sorted(at for same in free.values() for at in same)
    for at, place in enumerate(places):
        if place is None and others:
            places[at] = others.pop(others.index(at) if at in others else 0)
    return places


def _are_lists(*values: Any) -> bool:
    return all(isinstance(value, list) for value in values)


def _json_in(text: Any) -> Any:
    try:
        return read_text(text) if isinstance(text, str) else _ABSENT
    except ValueError:
        return _ABSENT


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON; in Python 1 equals True."""
    return one is not _ABSENT and other is not _ABSENT and _text(one) == _text(other)


def _text(value: Any) -> bytes:
    return canonical_bytes(value)
