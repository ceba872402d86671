"""An approver's edit: the call that runs with other arguments than the model's, if that call stands.

Rule: what an approver left as it was shown reaches the tool as it was shown, and what they wrote is
read as if the model had sent it. An edit is written in the terms of the effective arguments, which have
defaults, and what an author's validators made of values: read once more, those could become others. So
wherever a value of an edit is one that was shown, that is sent again which was sent for it, and what is
read must be that value. A call in which it is another one does not run.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    tried = set[str]()
    for arguments, pinned in _ways_to_send(edited, shown, hydrated):
        text = json_bytes(arguments).decode()
        if text in tried:
            continue
        tried.add(text)
        call = msgspec.structs.replace(hydrated.call, name=hydrated.definition.name, arguments=text)
        read = hydrate(call, catalog, pinned=pinned, on_exception=hook)
        if isinstance(read, Hydrated) and shown.stands(edited, read.arguments):
            return read
    if isinstance(read, Hydrated):
        raise Stopped(CallError.of(ErrorCode.APPROVAL_MISMATCH, _CHANGED))
    return read


def _ways_to_send(
    edited: JsonObject, shown: _Shown, hydrated: Hydrated
) -> Iterator[tuple[JsonObject, dict[str, Any]]]:
    """Yield arguments that may be read as the edited ones, the likeliest first, and pinned values.

    A default that was left as it was shown is not sent, so that it stays one. Where it would be another
    one now, it is sent, that of a factory first: its values are given in the order of asking, and an
    item may be asked for that was not there before. The last way is what was written.
    """
    pinned = cast("dict[str, Any]", hydrated.building.pinned)
    yield shown.sent_again(edited, hydrated.building.sent), pinned
    made = {canonical_bytes(v) for each in pinned.values() for values in each for v in values}
    single = {value: was for value, was in shown.sent.items() if not isinstance(was, dict | list)}
    lasting = frozenset(default for default in shown.defaults if default[1] not in made)
    for defaults in (lasting, frozenset[_Value]()):
        yield shown._replace(sent=single, defaults=defaults).sent_again(edited, None), {}
    yield edited, {}


_Value: TypeAlias = tuple[str, bytes]
"""A value as canonical JSON, and the name of the property that it is, or that it is in a list of."""


class _Shown(NamedTuple):
    """What was shown: `left` are its values, and `defaults` those of them that were not sent.

    `sent` has what was sent for each value that was read as another one. `names` are those of all
    properties: what stands under another name in an edit is known by its value alone. `sets` are the
    properties with sets, which have an order of their own.
    """

    left: frozenset[_Value]
    defaults: frozenset[_Value]
    sent: dict[_Value, Any]
    names: frozenset[str]
    sets: frozenset[str]

    @staticmethod
    def of(hydrated: Hydrated) -> _Shown:
        left, defaults, names = set[_Value](), set[_Value](), set[str]()
        changed = dict[_Value, Any]()

        def look(shown: Any, sent: Any, name: str) -> None:
            text = canonical_bytes(shown)
            inner = _json_in(shown)
            parts = shown if inner is None else inner
            names.add(name)
            for value in ((name, text), ("", text)):
                left.add(value)
                if text != canonical_bytes(sent):
                    changed[value] = sent
            if isinstance(parts, dict):
                was = sent if isinstance(sent, dict) else parts
                for own, part in parts.items():
                    if own not in was:
                        defaults.add((own, canonical_bytes(part)))
                    look(part, was.get(own, part), own)
            elif isinstance(parts, list):
                before = sent if isinstance(sent, list) and len(sent) <= len(parts) else ()
                for part, item in zip_longest(parts, before, fillvalue=_ABSENT):
                    look(part, part if item is _ABSENT else item, name)

        look(hydrated.arguments, hydrated.building.sent, "")
        sets = frozenset(_with_sets(hydrated.definition.input_schema))
        return _Shown(frozenset(left), frozenset(defaults), changed, frozenset(names), sets)

    def _value(self, name: str, value: Any) -> _Value:
        return name if name in self.names else "", canonical_bytes(value)

    def sent_again(self, edited: Any, sent: Any, name: str = "") -> Any:
        """Return what is sent for a value of an edit, its names in the order of `sent`."""
        value = self._value(name, edited)
        if value in self.sent:
            return self.sent[value]
        if isinstance(edited, dict):
            before = sent if isinstance(sent, dict) else {}
            return {
                own: self.sent_again(edited[own], before.get(own), own)
                for own in (*before, *(own for own in edited if own not in before))
                if own in edited
                and (own in before or (own, canonical_bytes(edited[own])) not in self.defaults)
            }
        if isinstance(edited, list):
            items = sent if isinstance(sent, list) and len(sent) == len(edited) else repeat(None)
            return [self.sent_again(part, item, name) for part, item in zip(edited, items)]  # noqa: B905  the second may have no end
        return edited

    def stands(self, edited: Any, read: Any, name: str = "") -> bool:
        """Return whether each value of an edit that was shown has been read as that value."""
        value = self._value(name, edited)
        if value[1] == canonical_bytes(read):
            return True
        if value in self.left:
            return False
        if isinstance(edited, dict) and isinstance(read, dict):
            return all(
                own in read and self.stands(part, read[own], own) for own, part in edited.items()
            )
        if isinstance(edited, list) and isinstance(read, list):
            if name in self.sets:
                same = sorted(map(canonical_bytes, edited)) == sorted(map(canonical_bytes, read))
                if same or not any(isinstance(part, dict | list) for part in edited):
                    return same
            return len(edited) <= len(read) and all(  # the last fields of a NamedTuple are defaults
                self.stands(part, now, name) for part, now in zip(edited, read, strict=False)
            )
        if isinstance(edited, dict | list):
            return False  # of what became of its parts nothing is known
        inner, now = _json_in(edited), _json_in(read)
        return inner is None or now is None or self.stands(inner, now, name)


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
