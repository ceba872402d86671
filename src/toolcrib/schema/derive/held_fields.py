"""Objects of declared fields, held against what was sent: models, dataclasses, TypedDicts, NamedTuples.

Rule: each property that was sent is the attribute of its field, or an extra that the author's type
takes; each field that was not sent is a default, shown and noted as one. What a class is given and does
not keep (an `InitVar`) is read once more, by its own hint.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from toolcrib.schema.derive.held import At, Differs, Found, Part, steps
from toolcrib.schema.derive.plain import MISSING, plain, same_json
from toolcrib.values.json import JsonValue

_UNCHANGING = frozenset((str, int, float, bool, bytes, type(None)))
_LOST = "the tool would not get this property"


@dataclass(slots=True)
class FieldPart:
    """A field: its attribute, the names that it is sent under (the first is shown), and its plan."""

    name: str
    keys: tuple[str, ...]
    node: Part
    factory: bool
    again: Callable[[JsonValue], Any] | None  # reads an InitVar anew: no attribute keeps it
    init_default: (
        Any  # what is passed of an InitVar that was not sent; MISSING if it is no constant
    )


class FieldsPart(Part):
    """An object of declared fields: a model, a dataclass, a TypedDict (`cls` is None), a NamedTuple."""

    def __init__(self, cls: Any, fields: Sequence[FieldPart], extras: Part) -> None:
        self._cls = cls
        self._fields = fields
        self._extras = extras
        self._indexed = cls is not None and issubclass(cls, tuple)

    def whole(self, sent: JsonValue) -> JsonValue:
        if isinstance(sent, list) and self._indexed:
            nodes = [field.node for field in self._fields][: len(sent)]
            items = [node.whole(item) for node, item in zip(nodes, sent, strict=False)]
            return items + sent[len(nodes) :]
        if not isinstance(sent, dict):
            return sent
        made = {key: self._extras.whole(item) for key, item in sent.items()}
        for field in self._fields:
            for key in field.keys:
                if key in sent:
                    made[key] = field.node.whole(sent[key])
        return made

    def fits(self, value: Any) -> bool:
        """A subclass has fields that this plan does not know."""
        if self._cls is None:
            return isinstance(value, dict)
        return value.__class__ is self._cls

    def hold(self, value: Any, sent: Any, at: At, found: Found) -> Any:
        if not self.fits(value):
            raise Differs(at)
        if self._indexed and isinstance(sent, list):
            return self._hold_items(value, sent, at, found)
        if sent is MISSING:
            return self._shown(value)
        if not isinstance(sent, dict):
            raise Differs(at)
        made: dict[str, Any] = {}
        for field in self._fields:
            item = self._attribute(value, field.name)
            key = next((key for key in field.keys if key in sent), None)
            if key is None or (found.pins and steps((at, key)) in found.pins):
                self._hold_default(value, field, made, at, found)
            else:
                made[key] = self._hold_field(field, item, sent[key], (at, key), found)
        if len(made) < len(sent) or not made.keys() >= sent.keys():
            self._hold_extras(value, sent, made, at, found)
        return made

    def _hold_default(
        self, value: Any, field: FieldPart, made: dict[str, Any], at: At, found: Found
    ) -> None:
        """A field that was not sent: shown, noted, and never the object that a class has for all."""
        item = self._attribute(value, field.name) if field.again is None else field.init_default
        if item is MISSING:
            return
        key = field.keys[0]
        made[key], own = _default(field, item, (at, key), found)
        if own is not item and field.again is None and not self._indexed:
            if self._cls is None:
                value[field.name] = own
            else:
                object.__setattr__(value, field.name, own)
        if isinstance(value, BaseModel):
            value.__pydantic_fields_set__.discard(field.name)

    def _hold_field(self, field: FieldPart, item: Any, sent: Any, at: At, found: Found) -> Any:
        if field.again is not None:
            mark = found.mark()
            shown = field.node.hold(field.again(sent), sent, at, found)
            if (
                len(found.pinned) > mark[2]
            ):  # a factory made a part of it, perhaps another each time
                anew = field.node.hold(field.again(sent), sent, at, Found())
                if not same_json(anew, shown):
                    raise Differs(at, "the tool would read another value each time")
            return shown
        if item is MISSING:
            raise Differs(at, _LOST)
        return field.node.hold(item, sent, at, found)

    def _attribute(self, value: Any, name: str) -> Any:
        if self._cls is None:
            return value.get(name, MISSING)
        return getattr(value, name, MISSING)

    def _shown(self, value: Any) -> Any:
        """All of an object that was not sent, or `MISSING` if a part of it is no JSON."""
        made = {}
        for field in self._fields:
            item = self._attribute(value, field.name)
            if item is not MISSING and field.again is None:
                made[field.keys[0]] = _shown_default(field.node, item)
        return MISSING if any(shown is MISSING for shown in made.values()) else made

    def _hold_extras(
        self, value: Any, sent: Any, made: dict[str, Any], at: At, found: Found
    ) -> None:
        """Properties that no field declares, where the author's type takes them."""
        extras = self._extras_of(value)
        named = {name for field in self._fields for name in (field.name, *field.keys)}
        for key in sent.keys() - made.keys():
            if (
                key not in extras or key in named
            ):  # beside a field of that name, it is not the field
                raise Differs((at, key), _LOST)
            made[key] = self._extras.hold(extras[key], sent[key], (at, key), found)

    def _extras_of(self, value: Any) -> Mapping[str, Any]:
        if isinstance(value, BaseModel):
            return value.__pydantic_extra__ or {}
        kept = value if self._cls is None else getattr(value, "__dict__", {})
        names = {field.name for field in self._fields}
        return {key: item for key, item in kept.items() if key not in names}

    def _hold_items(self, value: Any, sent: list[Any], at: At, found: Found) -> Any:
        """A NamedTuple that was sent as an array; its last fields may have defaults."""
        if len(sent) > len(self._fields):
            raise Differs(at)
        items: list[Any] = []
        for index, field in enumerate(self._fields):
            item = getattr(value, field.name)
            if index < len(sent):
                items.append(field.node.hold(item, sent[index], (at, index), found))
            else:
                items.append(_default(field, item, (at, index), found)[0])
        return items


def _default(field: FieldPart, value: Any, at: At, found: Found) -> tuple[Any, Any]:
    """A value that was not sent, in an object that was: as it is shown, with its place noted, and one
    for this instance alone.

    What is no JSON (a sentinel, a connection) stays the object that it is.
    """
    found.defaults.append(at)
    shown = _shown_default(field.node, value)
    if shown is MISSING:
        return {"default": type(value).__name__}, value
    if field.factory:
        found.pinned.append((at, shown))
    return shown, value if value.__class__ in _UNCHANGING else copy.deepcopy(value)


def _shown_default(node: Part, value: Any) -> Any:
    """A value that was not sent, as JSON; `MISSING` for one that is none."""
    try:
        return node.hold(value, MISSING, None, Found())
    except Differs:  # a default need not be of its hint
        return plain(value)
