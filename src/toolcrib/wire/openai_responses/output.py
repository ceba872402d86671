"""What the events of a response, and its list of output, say about the items in it.

Each method takes one event and shows what can be shown of it. All of them raise WireError for JSON
that is none of this wire's.
"""

from __future__ import annotations

from typing import Any

from toolcrib.errors import WireError
from toolcrib.values.message import ArgumentsPart, TextPart
from toolcrib.values.offer import Offer
from toolcrib.wire.builder import Parts
from toolcrib.wire.json_text import mended
from toolcrib.wire.openai_responses.items import Item, Items, Place, Source
from toolcrib.wire.openai_responses.kept import CALLS, texts_of


class Output:
    """The items so far. `calls` are those for us to run, `refused` whether a refusal is there.

    `source` holds the bytes of the event that is taken.
    """

    def __init__(self, offer: Offer, ids: str) -> None:
        self.items = Items()
        self.calls: list[Item] = []
        self.refused = False
        self.source = Source()
        self._offer = offer
        self._ids = ids

    def begun(self, event: dict[str, Any], _parts: Parts) -> None:
        form, kind = _typed(event.get("item"))
        item = self.items.begun(kind, _index(event), _string(form, "id"))
        if kind in CALLS:
            self._name(item, form)
            item.begun_with = self._arguments(form, kind, "item")

    def done(self, event: dict[str, Any], parts: Parts) -> None:
        form, kind = _typed(event.get("item"))
        item_id, call_id = _string(form, "id"), _string(form, "call_id")
        item = self.items.growing(kind, _index(event), item_id, call_id)
        self._finished(item, form, "item", parts)

    def arguments_delta(self, event: dict[str, Any], parts: Parts) -> None:
        item, delta = self._called(event), _string(event, "delta")
        item.arguments.add(delta)
        item.streamed.append(delta)
        _show_arguments(item, delta, parts)

    def arguments_done(self, event: dict[str, Any], parts: Parts) -> None:
        item = self._called(event)
        if event.get("name"):
            self._name(item, event)
        self._settle(item, self._arguments(event, item.kind, "event"), parts)

    def text(self, event: dict[str, Any], parts: Parts) -> None:
        """A piece of a text or refusal, or the whole of it."""
        item = self.items.growing("message", _index(event), _string(event, "item_id"))
        at, refused = event.get("content_index"), "refusal" in event["type"]
        text = item.text(at if type(at) is int else 0)
        delta = _string(event, "delta")
        text.add(delta)
        rest = text.settle(_string(event, "refusal" if refused else "text"))
        _show(delta + rest, parts)
        self.refused = self.refused or (refused and text.size > 0)

    def listed(self, output: Any, parts: Parts, *, streamed: bool) -> None:
        """The list of a whole response; of one that `streamed`, only what was not whole before."""
        for at, entry in enumerate(output if isinstance(output, list) else ()):
            form, kind = _typed(entry)
            item_id, call_id = _string(form, "id"), _string(form, "call_id")
            if streamed:
                item = self.items.listed(kind, at, item_id, call_id)
            else:
                item = self.items.open(kind, at, item_id)
            if item.final is None:
                self._finished(item, form, at, parts)
            else:
                self._said_again(item, form, at)
        for item in self.items if streamed and output else ():
            item.missing = item.kind in CALLS and not item.listed

    def _finished(self, item: Item, form: dict[str, Any], place: Place, parts: Parts) -> None:
        item.final = form
        item.cut = item.cut or _is_cut(form, item.kind)
        if item.kind in CALLS:
            self._name(item, form)
            self._settle(item, self._arguments(form, item.kind, place), parts)
        for at, text, refused in texts_of(form):
            self.refused = self.refused or (refused and bool(text))
            _show(item.text(at).settle(text), parts)

    def _said_again(self, item: Item, form: dict[str, Any], place: Place) -> None:
        """A whole response repeats the items that it streamed: their copies are held together."""
        item.cut = item.cut or _is_cut(form, item.kind)
        if item.kind in CALLS:
            self._name(item, form)
            self._settle(item, self._arguments(form, item.kind, place), [])

    def _name(self, item: Item, form: dict[str, Any]) -> None:
        """Take name and id of a call. A custom tool's is ours if it is on offer, or nothing is."""
        self.items.called(item, _string(form, "call_id"))
        name = _string(form, "name")
        item.renamed = item.renamed or bool(name and item.name and name != item.name)
        item.name = item.name or name
        item.own = self._offer.own_name(item.name)
        if item.kind == "function_call" or not self._offer.tools or item.own in self._offer.tools:
            self._claim(item)

    def _called(self, event: dict[str, Any]) -> Item:
        kind = "custom_tool_call" if "custom" in event["type"] else "function_call"
        item = self.items.growing(kind, _index(event), _string(event, "item_id"))
        if kind == "function_call":
            self._claim(item)
        return item

    def _claim(self, item: Item) -> None:
        if item.call is None:
            item.call = f"{self._ids}{len(self.calls)}"
            self.calls.append(item)

    def _settle(self, item: Item, whole: str, parts: Parts) -> None:
        item.settled = True
        if whole:
            item.copies.append(whole)
        _show_arguments(item, item.arguments.settle(whole), parts)

    def _arguments(self, form: dict[str, Any], kind: str, place: Place) -> str:
        """The arguments in an item or event, as text; those that come as a value keep their bytes."""
        key = "arguments" if kind == "function_call" else "input"
        text = form.get(key)
        if text is None or isinstance(text, str):
            return text or ""
        return self.source.slice(place, key)


def _is_cut(form: dict[str, Any], kind: str) -> bool:
    """Whether an item says that it is not whole. What a call says that nobody knows is doubt enough;
    that it is in progress is not, once the response has come to its end."""
    status = form.get("status")
    return status == "incomplete" or (kind in CALLS and status not in _GOOD)


_GOOD = (None, "", "completed", "in_progress")


def _show(text: str, parts: Parts) -> None:
    if text:
        parts.append(TextPart(mended(text)))


def _show_arguments(item: Item, text: str, parts: Parts) -> None:
    if text and item.call is not None:
        parts.append(ArgumentsPart(item.call, item.own, text))


def _typed(item: Any) -> tuple[dict[str, Any], str]:
    if not isinstance(item, dict):
        raise WireError("an output item is not an object")
    return item, _string(item, "type")


def _index(event: dict[str, Any]) -> int | None:
    index = event.get("output_index")
    return index if type(index) is int else None


def _string(form: dict[str, Any], key: str) -> str:
    value = form.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise WireError(f"`{key}` is not text")
    return value
