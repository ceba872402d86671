"""The output items of a response, assembled from its events.

An event belongs to the item that it names by index and id, else by id, else by index; servers get
each of these wrong. What is said at an item's end counts for more than the pieces before it, and all
that is said there must be the same: an item whose whole copies differ is contradictory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec

from toolcrib.errors import WireError
from toolcrib.wire.json_text import same_json

Place: TypeAlias = int | Literal["item", "event"]
"""Where a call stands in the JSON: in a list of output at that index, in `item`, or in the event."""


class _RawCall(msgspec.Struct):
    arguments: msgspec.Raw = msgspec.Raw(b"null")
    input: msgspec.Raw = msgspec.Raw(b"null")


class _RawResponse(msgspec.Struct):
    output: list[_RawCall] | None = None


class _RawBody(_RawCall):
    item: _RawCall | None = None
    output: list[_RawCall] | None = None
    response: _RawResponse | None = None


_SLICES = msgspec.json.Decoder(_RawBody)


class Source:
    """The bytes that an event or a body was read from, for arguments that are no text."""

    __slots__ = ("_body", "_of", "data")

    def __init__(self) -> None:
        self.data = self._of = b""
        self._body = _RawBody()

    def slice(self, place: Place, key: str) -> str:
        """The bytes of a call's `arguments` or `input`. Raises WireError."""
        try:
            if self._of is not self.data:
                self._body, self._of = _SLICES.decode(self.data), self.data
            body = self._body
            call: Any = body.item if place == "item" else body
            if isinstance(place, int):
                call = ((body.response or body).output or [])[place]
            return bytes(getattr(call, key)).decode()
        except (ValueError, RecursionError, AttributeError, IndexError):
            raise WireError("the arguments of a tool call are neither text nor an object") from None


class Growing:
    """Text that comes in pieces and then, perhaps, once more as a whole."""

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.size = 0

    def __str__(self) -> str:
        return "".join(self._pieces)

    def add(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)
            self.size += len(piece)

    def settle(self, whole: str) -> str:
        """Take the whole, which an empty one is not; gives what the pieces had not said of it."""
        if not whole:
            return ""
        size = self.size
        goes_on = len(whole) >= size and whole.startswith(str(self))
        self._pieces, self.size = [whole], len(whole)
        return whole[size:] if goes_on else ""


class Item:
    """One output item: a call's `arguments` and our `call` id, or a message's `texts`, as they grow.

    `final` is the item as the provider has it in the end; `settled` is whether it said of the
    arguments that they are whole, `begun_with` what it gave for them before any piece. `copies` are the
    whole arguments, each time that they were said, `renamed` is whether one of them had another name,
    `cut` whether the item itself says that it is incomplete, `missing` whether it streamed and is not
    among those that the whole response lists.
    """

    __slots__ = (
        "arguments",
        "begun_with",
        "call",
        "call_id",
        "copies",
        "cut",
        "final",
        "id",
        "index",
        "kind",
        "listed",
        "missing",
        "name",
        "own",
        "renamed",
        "settled",
        "streamed",
        "texts",
    )

    def __init__(self, kind: str, index: int | None, item_id: str) -> None:
        self.kind = kind
        self.index = index
        self.id = item_id
        self.call: str | None = None
        self.call_id = ""
        self.name = ""
        self.own = ""
        self.arguments = Growing()
        self.begun_with = ""
        self.streamed: list[str] = []
        self.copies: list[str] = []
        self.renamed = self.cut = False
        self.texts: dict[int, Growing] = {}
        self.settled = False
        self.listed = self.missing = False
        self.final: dict[str, Any] | None = None

    @property
    def whole(self) -> str:
        """The arguments by what counts most: the last copy, else the pieces, else what it began with,
        which is a placeholder if it is an empty object and the provider never said that it was all."""
        if self.copies:
            return self.copies[-1]
        begun_with = self.begun_with if self.settled or self.begun_with.strip("{} ") else ""
        return "".join(self.streamed) or begun_with

    @property
    def contradictory(self) -> bool:
        if self.renamed or self.missing:
            return True
        return not all(same_json(self.copies[0], one) for one in self.copies[1:])

    @property
    def streamed_otherwise(self) -> bool:
        """Whether the pieces said something else than the whole."""
        streamed = "".join(self.streamed)
        return (
            bool(streamed) and self.settled and not same_json(streamed, "".join(self.copies[-1:]))
        )

    def text(self, at: int) -> Growing:
        return self.texts.setdefault(at, Growing())


class Items:
    """The items of one response, in the order in which they began."""

    def __init__(self) -> None:
        self._all: list[Item] = []
        self._by: dict[object, Item] = {}

    def __iter__(self) -> Iterator[Item]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def open(self, kind: str, index: int | None, item_id: str) -> Item:
        item = Item(kind, index, item_id)
        self._all.append(item)
        self._by |= dict.fromkeys(_keys(index, item_id), item)
        return item

    def called(self, item: Item, call_id: str) -> None:
        """Take the id of a call, unless it has one. llama.cpp takes it for the item's."""
        if call_id and not item.call_id:
            item.call_id = call_id
            self._by.setdefault(("call", call_id), item)
            self._by.setdefault(("id", call_id), item)

    def begun(self, kind: str, index: int | None, item_id: str) -> Item:
        """The item that begins: a new one, unless it is said again that this one has begun."""
        for item in self._named(kind, index, item_id):
            other = bool(item_id and item.id and item.id != item_id)
            elsewhere = index is not None and item.index not in (None, index)
            if item.final is None and not (other or elsewhere):
                return item
        return self.open(kind, index, item_id)

    def growing(self, kind: str, index: int | None, item_id: str, call_id: str = "") -> Item:
        """The item that goes on, or ends; a new one if it is the first that is heard of it."""
        known = self._by.get((index, item_id))
        if known is not None and known.kind == kind and known.final is None:
            return known
        for item in self._named(kind, index, item_id, call_id):
            if not _another(item, index, item_id, call_id):
                return item
        last = self._all[-1] if self._all and index is None else None
        if last is None or last.kind != kind or last.final is not None:
            return self.open(kind, index, item_id)
        other = call_id and last.call_id and last.call_id != call_id
        return self.open(kind, index, item_id) if other else last

    def listed(self, kind: str, at: int, item_id: str, call_id: str) -> Item:
        """The item at a place of the list that ends a stream; a new one if it never streamed."""
        for key in (("id", item_id), ("call", call_id), ("at", at)):
            item = self._by.get(key)
            if item is not None and item.kind == kind and not item.listed:
                break
        else:
            item = Item(kind, None, item_id)
            self._all.append(item)
        item.listed = True
        return item

    def _named(
        self, kind: str, index: int | None, item_id: str, call_id: str = ""
    ) -> Iterator[Item]:
        for key in _keys(index, item_id, call_id):
            item = self._by.get(key)
            if item is not None and item.kind == kind:
                yield item


def _keys(index: int | None, item_id: str, call_id: str = "") -> Iterator[tuple[str | int, ...]]:
    if index is not None and item_id:
        yield index, item_id
    if item_id:
        yield "id", item_id
    if call_id:
        yield "call", call_id
    if index is not None:
        yield "at", index


def _another(item: Item, index: int | None, item_id: str, call_id: str) -> bool:
    """Whether what is named is not that item, although one of its names is the item's."""
    other_id = bool(item_id and item.id and item.id != item_id)
    other_call = bool(call_id and item.call_id and item.call_id != call_id)
    elsewhere = index is not None and item.index is not None and item.index != index
    if item.final is None:
        return other_call or (other_id and elsewhere)
    named = (item_id and item.id == item_id) or (call_id and item.call_id == call_id)
    return not named or other_call or other_id
