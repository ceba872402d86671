"""Replies of OpenAI Responses: items, assembled from events or a complete body."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from toolcrib.errors import WireError
from toolcrib.values.call import ToolCall
from toolcrib.values.message import (
    ArgumentsPart,
    Offer,
    Reply,
    Usage,
)
from toolcrib.wire.base import Wire
from toolcrib.wire.calls import (
    CONTRADICTORY,
    NATURAL,
    CallAssembler,
    Ending,
    index_of,
    member_of,
    reason_of,
    text_of_member,
)
from toolcrib.wire.decoding import Parts, cached_tokens, show_piece, show_reasoning, token_count
from toolcrib.wire.failure import reported_error
from toolcrib.wire.json_text import RawJson, is_object, json_key, mended, same_json

# The output items of a response, assembled from its events.
#
# An event belongs to the item that it names by index and id, or else by id, or else by index.
# Servers get each of these wrong. What is said at an item's end takes precedence over the earlier
# pieces, and everything said there must agree: an item whose complete copies differ is
# contradictory. These are contradictory, too: two calls that one event names; calls that may lack a
# piece which names none; a call that a piece follows after its end; and a call that came only in
# pieces, if the numbers of the events have a gap.


CallPath: TypeAlias = tuple[str | int, ...]
"""The path of a call in the JSON of an event or a body."""


class GrowingText:
    """Text that comes in pieces and then, perhaps, once more as a whole."""

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.size = 0

    def __str__(self) -> str:
        return "".join(self._pieces)

    @property
    def last_piece(self) -> str:
        return self._pieces[-1] if self._pieces else ""

    def add(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)
            self.size += len(piece)

    def complete_with(self, complete_text: str) -> str:
        """Take the whole text, unless it is empty; return what the pieces lacked of it."""
        if not complete_text:
            return ""
        size = self.size
        continues = len(complete_text) >= size and complete_text.startswith(str(self))
        self._pieces, self.size = [complete_text], len(complete_text)
        return complete_text[size:] if continues else ""


class Item(msgspec.Struct, eq=False):
    """An output item that grows: a call's `arguments` and our `own_call_id`, or a message's `texts`.

    `final` is the item in the provider's last form. `is_settled` says that the provider declared the
    arguments complete. `initial_arguments` holds those given before any piece, and `copies` holds the
    complete arguments, each time they came. `is_doubtful` says that what was sent about the item is
    contradictory, or that it may lack a piece; `has_gap` that an event was lost while it had no copy;
    `is_cut` that the item itself says it is incomplete; and `is_missing` that it streamed but is not in
    the complete response. `phase` tells a message that is a commentary from the final answer, if
    the provider says so.
    """

    kind: str
    index: int | None
    id: str
    own_call_id: str | None = None
    call_id: str = ""
    name: str = ""
    own_name: str = ""
    phase: object = None
    arguments: GrowingText = msgspec.field(default_factory=GrowingText)
    initial_arguments: str = ""
    streamed: list[str] = []
    copies: list[str] = []
    is_doubtful: bool = False
    is_cut: bool = False
    has_gap: bool = False
    texts: dict[int, GrowingText] = {}
    is_settled: bool = False
    is_listed: bool = False
    is_missing: bool = False
    final: dict[str, Any] | None = None

    @property
    def whole(self) -> str:
        """The arguments in order of precedence: the last copy, the pieces, the beginning.

        An empty object in the beginning is a placeholder, unless the provider declared it complete.
        """
        if self.copies:
            return self.copies[-1]
        initial = (
            self.initial_arguments if self.is_settled or self.initial_arguments.strip("{} ") else ""
        )
        return "".join(self.streamed) or initial

    @property
    def may_grow(self) -> bool:
        """Whether the item may lack a piece."""
        return self.final is None and not self.is_settled

    @property
    def is_contradictory(self) -> bool:
        if self.is_doubtful or self.is_missing or (self.has_gap and not self.copies):
            return True
        if not self._continues_from(self.initial_arguments):
            return True
        copies = set(self.copies)
        return len(copies) > 1 and len(set(map(json_key, copies))) > 1

    def _continues_from(self, beginning: str) -> bool:
        """Return whether the arguments equal or continue those that the item began with."""
        if not beginning.strip("{} "):
            return True
        streamed, whole = "".join(self.streamed), self.whole
        if same_json(beginning, whole) or same_json(beginning + streamed, whole):
            return True
        return not _is_complete(beginning) and (streamed or whole).startswith(beginning)

    @property
    def streamed_otherwise(self) -> bool:
        """Whether the pieces differ from the whole."""
        streamed = "".join(self.streamed)
        return (
            bool(streamed)
            and self.is_settled
            and not same_json(streamed, "".join(self.copies[-1:]))
        )

    @property
    def contents(self) -> tuple[str, str]:
        """The name and the arguments of a call, or the text of a message."""
        return self.name, "".join(map(str, self.texts.values())) or self.whole

    def begin_with(self, text: str) -> None:
        """Take the arguments that an item begins with. If it begins twice, one beginning must
        continue the other."""
        initial = self.initial_arguments
        if not initial.strip("{} "):
            self.initial_arguments = text or initial
        elif text.strip("{} "):
            self.initial_arguments = text
            continues = text.startswith(initial) or initial.startswith(text)
            self.is_doubtful = self.is_doubtful or not (continues or same_json(initial, text))

    def text(self, position: int) -> GrowingText:
        return self.texts.setdefault(position, GrowingText())


class Items:
    """The items of one response, in the order in which they began."""

    def __init__(self) -> None:
        self._all: list[Item] = []
        self._by_key: dict[object, Item] = {}
        self._growing_by_kind: dict[str, list[Item]] = {}
        self._doubted_count = self._lost_count = 0  # of the first items, which need no second look
        self._unlisted_by_contents: dict[tuple[str, str], list[Item]] | None = None

    def __iter__(self) -> Iterator[Item]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def open(self, kind: str, index: int | None, item_id: str) -> Item:
        item = Item(kind, index, item_id)
        self._all.append(item)
        self._growing_by_kind.setdefault(kind, []).append(item)
        self._by_key |= dict.fromkeys(_keys(index, item_id), item)
        return item

    def set_call_id(self, item: Item, call_id: str) -> None:
        """Take the id of a call, unless it has one. llama.cpp uses it as the item's id."""
        if call_id and not item.call_id:
            item.call_id = call_id
            self._by_key.setdefault(("call", call_id), item)
            self._by_key.setdefault(("id", call_id), item)

    def begun(self, kind: str, index: int | None, item_id: str) -> Item:
        """Return the item that begins: a new one, unless this repeats a known one's beginning."""
        for item in self._candidates(kind, index, item_id):
            has_other_id = bool(item_id and item.id and item.id != item_id)
            is_elsewhere = index is not None and item.index not in (None, index)
            if item.final is None and not (has_other_id or is_elsewhere):
                return item
        return self.open(kind, index, item_id)

    def growing(self, kind: str, index: int | None, item_id: str, call_id: str = "") -> Item:
        """Return the item that continues or ends; a new one if it is mentioned first here."""
        exact_item = self._by_key.get((index, item_id))
        if exact_item is not None and exact_item.kind == kind and exact_item.final is None:
            return exact_item
        for item in self._candidates(kind, index, item_id, call_id):
            if not _means_other_item(item, index, item_id, call_id):
                item_at_index = (
                    self._by_key.get(("at", index)) if item.index not in (None, index) else None
                )
                if (
                    item_at_index is not None
                    and item_at_index is not item
                    and item_at_index.kind == kind
                ):
                    item_at_index.is_doubtful = item.is_doubtful = True
                return item
        if index is None and not (item_id or call_id) and (only_item := self._only_growing(kind)):
            return only_item
        last_item = self._all[-1] if self._all and index is None else None
        if last_item is None or last_item.kind != kind or last_item.final is not None:
            return self.open(kind, index, item_id)
        is_other = call_id and last_item.call_id and last_item.call_id != call_id
        return self.open(kind, index, item_id) if is_other else last_item

    def _only_growing(self, kind: str) -> Item | None:
        """Return the only call of a kind that may grow, or None.

        If there are several, doubt them, because an event came that does not say which it belongs
        to.
        """
        if kind not in CALLS:
            return None
        growing, last_two = self._growing_by_kind.get(kind, []), list[Item]()
        while growing and len(last_two) < 2:
            last_two += [item] if (item := growing.pop()).may_grow else []
        growing += reversed(last_two)
        if len(last_two) < 2:
            return last_two[0] if last_two else None
        for item in self._all[self._doubted_count :]:
            item.is_doubtful = item.is_doubtful or item.may_grow
        self._doubted_count = len(self._all)
        return None

    def lost(self) -> None:
        """Note that an event was lost: each call without a copy may lack it."""
        for item in self._all[self._lost_count :]:
            item.has_gap = item.has_gap or (item.kind in CALLS and not item.copies)
        self._lost_count = len(self._all)

    def listed(self, position: int, form: dict[str, Any]) -> Item:
        """Return the item at a place of the list that ends a stream; a new one if it never streamed.

        An item with neither a known id nor a known place is matched by its contents, because some
        servers give their items new ids here (BerriAI/litellm#36375, vllm-project/vllm#47916).
        """
        kind, item_id = _form_and_kind(form)[1], text_of_member(form, "id")
        keys = ("id", item_id), ("call", text_of_member(form, "call_id")), ("at", position)
        for item in (*map(self._by_key.get, keys), self._with_same_contents(form)):
            if item is not None and item.kind == kind and not item.is_listed:
                break
        else:
            item = Item(kind, None, item_id)
            self._all.append(item)
        item.is_listed = True
        return item

    def _with_same_contents(self, form: dict[str, Any]) -> Item | None:
        """Return the first item with the same contents that is not listed yet."""
        if self._unlisted_by_contents is None:
            self._unlisted_by_contents = {}
            for item in reversed(self._all):
                self._unlisted_by_contents.setdefault(item.contents, []).append(item)
        name, text = form.get("name") or "", message_text([form]) or form.get("arguments")
        has_contents = isinstance(name, str) and isinstance(text, str) and text
        same_items = self._unlisted_by_contents.get((name, str(text)), []) if has_contents else []
        while same_items and same_items[-1].is_listed:
            same_items.pop()
        return same_items[-1] if same_items else None

    def _candidates(
        self, kind: str, index: int | None, item_id: str, call_id: str = ""
    ) -> Iterator[Item]:
        for key in _keys(index, item_id, call_id):
            item = self._by_key.get(key)
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


def _means_other_item(item: Item, index: int | None, item_id: str, call_id: str) -> bool:
    """Return whether an event means another item, although one of its names is this item's."""
    has_other_id = bool(item_id and item.id and item.id != item_id)
    has_other_call = bool(call_id and item.call_id and item.call_id != call_id)
    is_elsewhere = index is not None and item.index is not None and item.index != index
    if item.final is None:
        return has_other_call or (has_other_id and is_elsewhere)
    is_named = (item_id and item.id == item_id) or (call_id and item.call_id == call_id)
    return not is_named or has_other_call or has_other_id


# Which of a response's items go back unchanged with the next request.
#
# Reasoning goes back before what it led to, and only if the server can read it again. Otherwise it
# is refused: "Item … not found", "… provided without its required following item".


SEARCH = "tool_search"
SEARCH_CALL = "tool_search_call"
"""A search for tools. One that the `client` executes is a call. OpenAI's own searches belong to its
own tool.

https://developers.openai.com/api/docs/guides/tools-tool-search#client-executed-tool-search
"""
CALLS = frozenset(("function_call", "custom_tool_call", SEARCH_CALL))
TEXTS = {"output_text": "text", "text": "text", "refusal": "refusal"}
"""Parts of a message that are text, and the member that holds it."""

_PLAIN_MEMBERS = {
    "message": frozenset(("type", "id", "status", "role", "content")),
    "function_call": frozenset(("type", "id", "status", "call_id", "name", "arguments")),
}


def message_text(items: Iterable[Any]) -> str:
    """Return all text in the messages among these items, including refusals."""
    return "".join(text for item in items for _, text, _ in texts_of(item))


def texts_of(item: Any) -> Iterator[tuple[int, str, bool]]:
    """Yield place, text and whether it is a refusal, for each text in a message."""
    if not isinstance(item, dict) or item.get("type") != "message":
        return
    content = item.get("content")
    if isinstance(content, str):
        yield 0, content, False
        return
    for position, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get(TEXTS[kind]) if isinstance(kind, str) and kind in TEXTS else None
        if isinstance(text, str):
            yield position, text, kind == "refusal"


def kept_items(items: list[dict[str, Any]], *, stored: bool) -> list[dict[str, Any]]:
    """Return what has to go back unchanged; empty if text and calls say as much.

    `stored` says that the server may have kept the items, and knows them by their ids.
    """
    kept = [item for item in items if stored or not _is_unreadable(item)]
    while kept and kept[-1].get("type") == "reasoning":
        kept.pop()
    kinds = [item.get("type") for item in kept]
    is_in_order = "message" not in kinds[1:]
    return [] if is_in_order and all(map(_is_plain, kept)) else kept


def _is_unreadable(item: dict[str, Any]) -> bool:
    if item.get("type") != "reasoning":
        return False
    return not (item.get("encrypted_content") or item.get("content"))


def _is_plain(item: dict[str, Any]) -> bool:
    members = {key for key, value in item.items() if value is not None}
    is_refusal = any(refusal for _, _, refusal in texts_of(item))
    return not is_refusal and members <= _PLAIN_MEMBERS.get(str(item.get("type")), frozenset())


# What the events of a response, and its list of output, say about the items in it.
#
# Each method takes one event and shows what can be shown of it. All raise WireError for JSON that
# does not belong to this wire.


class Output:
    """The items so far.

    `calls` are those for toolcrib to run. `copies` are those that a response showed while it was in
    progress (id, name, arguments). `refused` says that there is a refusal. `source` is the current
    event as it was written.
    """

    def __init__(self, offer: Offer, ids: str) -> None:
        self.items = Items()
        self.calls: list[Item] = []
        self.copies: list[tuple[str, str, str]] = []
        self.refused = False
        self.source = RawJson(b"")
        self._offer = offer
        self._ids = ids

    def begun(self, event: dict[str, Any], _parts: Parts) -> None:
        form, kind = _form_and_kind(event.get("item"))
        item = self.items.begun(kind, _index(event), text_of_member(form, "id"))
        item.phase = form.get("phase") or item.phase
        if kind in CALLS:
            self._name(item, form)
            item.begin_with(self._arguments(form, kind, ("item",)))

    def done(self, event: dict[str, Any], parts: Parts) -> None:
        form, kind = _form_and_kind(event.get("item"))
        item_id, call_id = text_of_member(form, "id"), text_of_member(form, "call_id")
        item = self.items.growing(kind, _index(event), item_id, call_id)
        self._finish_item(item, form, ("item",), parts)

    def arguments_delta(self, event: dict[str, Any], parts: Parts) -> None:
        item, delta = self._called_item(event), text_of_member(event, "delta")
        item.is_doubtful = item.is_doubtful or bool(
            delta and (item.final is not None or item.copies)
        )
        item.arguments.add(delta)
        item.streamed.append(delta)
        _show_arguments(item, delta, parts)

    def arguments_done(self, event: dict[str, Any], parts: Parts) -> None:
        item = self._called_item(event)
        if event.get("name"):
            self._name(item, event)
        self._settle_arguments(item, self._arguments(event, item.kind, ()), parts)

    def text(self, event: dict[str, Any], parts: Parts) -> None:
        """Take a piece of a text or refusal, or the whole of it."""
        item = self.items.growing("message", _index(event), text_of_member(event, "item_id"))
        position, is_refusal = event.get("content_index"), "refusal" in event["type"]
        text = item.text(position if type(position) is int else 0)
        previous, delta = text.last_piece, text_of_member(event, "delta")
        text.add(delta)
        rest = text.complete_with(text_of_member(event, "refusal" if is_refusal else "text"))
        show_piece(previous, delta + rest, parts)
        self.refused = self.refused or (is_refusal and text.size > 0)

    def reasoning(self, event: dict[str, Any], parts: Parts) -> None:
        """Show a piece of the reasoning, or of its summary; the item holds the whole."""
        show_reasoning(event.get("delta"), parts)

    def shown(self, response: dict[str, Any]) -> None:
        """Take the list of a response in progress, whose calls must match those that stream."""
        output = response.get("output")
        for position, form in enumerate(output if isinstance(output, list) else ()):
            kind = form.get("type") if isinstance(form, dict) else None
            if kind in CALLS and self._is_ours(kind, name := _name_in(form)):
                text = self._arguments(form, kind, ("response", "output", position))
                call_id = text_of_member(form, "call_id") or text_of_member(form, "id")
                copy = (call_id, name, text if text.strip("{} ") else "")
                self.copies.append(copy)

    def _is_ours(self, kind: str, name: str) -> bool:
        """Return whether a call is for toolcrib.

        A custom tool's call is if that tool is on offer, or nothing is; a search is if a tool with
        that name is on offer.
        """
        offered = self._offer.tools
        if kind == SEARCH_CALL:
            return name in self._offer.own_names
        return kind == "function_call" or not offered or self._offer.own_name(name) in offered

    def listed(self, response: dict[str, Any], parts: Parts, *, streamed: bool) -> None:
        """Take the list of a complete response; if it `streamed`, only what was incomplete."""
        output = member_of(response, "output", list) or []
        for position, entry in enumerate(output):
            form, kind = _form_and_kind(entry)
            path: CallPath = ("output", position)
            if streamed:
                item, path = self.items.listed(position, form), ("response", *path)
            else:
                item = self.items.open(kind, position, text_of_member(form, "id"))
            if item.final is None:
                self._finish_item(item, form, path, parts)
            else:
                self._compare_with_copy(item, form, path)
        for item in self.items if streamed and output else ():
            item.is_missing = item.kind in CALLS and not item.is_listed

    def _finish_item(self, item: Item, form: dict[str, Any], path: CallPath, parts: Parts) -> None:
        item.final = form
        item.phase = form.get("phase") or item.phase
        item.is_cut = item.is_cut or _is_cut(form, item.kind)
        if item.kind in CALLS:
            self._name(item, form)
            self._settle_arguments(item, self._arguments(form, item.kind, path), parts)
        for position, text, is_refusal in texts_of(form):
            self.refused = self.refused or (is_refusal and bool(text))
            growing_text = item.text(position)
            show_piece(growing_text.last_piece, growing_text.complete_with(text), parts)

    def _compare_with_copy(self, item: Item, form: dict[str, Any], path: CallPath) -> None:
        """Compare an item with its copy in the complete response, which repeats the stream."""
        item.phase = form.get("phase") or item.phase
        item.is_cut = item.is_cut or _is_cut(form, item.kind)
        if item.kind in CALLS:
            previous_status, status = (item.final or {}).get("status"), form.get("status")
            item.is_doubtful = item.is_doubtful or bool(
                previous_status and status and previous_status != status
            )
            self._name(item, form)
            self._settle_arguments(item, self._arguments(form, item.kind, path), [])

    def _name(self, item: Item, form: dict[str, Any]) -> None:
        """Take name and id of a call.

        An item with other ids at its end, as some servers give, is recognised by its contents.
        Under its own id it has one call id. OpenAI has given a search another one in progress than
        at its end, so for a search the first counts.
        """
        is_in_progress = item.kind == SEARCH_CALL and form.get("status") == "in_progress"
        call_id = "" if is_in_progress else text_of_member(form, "call_id")
        if item.id and item.id == text_of_member(form, "id"):
            item.is_doubtful = item.is_doubtful or call_id not in ("", item.call_id or call_id)
        self.items.set_call_id(item, call_id)
        name = _name_in(form)
        item.is_doubtful = item.is_doubtful or bool(name and item.name and name != item.name)
        item.name = item.name or name
        item.own_name = self._offer.own_name(item.name)
        if self._is_ours(item.kind, item.name):
            self._add_call(item)

    def _called_item(self, event: dict[str, Any]) -> Item:
        kind = "custom_tool_call" if "custom" in event["type"] else "function_call"
        item = self.items.growing(kind, _index(event), text_of_member(event, "item_id"))
        if kind == "function_call":
            self._add_call(item)
        return item

    def _add_call(self, item: Item) -> None:
        if item.own_call_id is None:
            item.own_call_id = f"{self._ids}{len(self.calls)}"
            self.calls.append(item)

    def _settle_arguments(self, item: Item, arguments: str, parts: Parts) -> None:
        item.is_settled = True
        if arguments:
            item.copies.append(arguments)
        _show_arguments(item, item.arguments.complete_with(arguments), parts)

    def _arguments(self, form: dict[str, Any], kind: str, path: CallPath) -> str:
        """Return the arguments in an item or event, as text; values keep their bytes."""
        key = "input" if kind == "custom_tool_call" else "arguments"
        text = form.get(key)
        if text is None or isinstance(text, str):
            return text or ""
        error_message = "the arguments of a tool call are neither text nor an object"
        return self.source.text((*path, key), None, error_message)


def _is_complete(text: str) -> bool:
    """Return whether these are complete arguments, and not a placeholder."""
    return bool(text.strip("{} ")) and is_object(text)


def _is_cut(form: dict[str, Any], kind: str) -> bool:
    """Return whether an item says that it is incomplete.

    An unknown status of a call counts as incomplete. "In progress" does not, once the response has
    come to its end.
    """
    status = form.get("status")
    return status == "incomplete" or (kind in CALLS and status not in _GOOD_STATUSES)


_GOOD_STATUSES = (None, "", "completed", "in_progress")


def _show_arguments(item: Item, text: str, parts: Parts) -> None:
    if text and item.own_call_id is not None:
        parts.append(ArgumentsPart(item.own_call_id, item.own_name, text))


def _form_and_kind(item: Any) -> tuple[dict[str, Any], str]:
    if not isinstance(item, dict):
        raise WireError("an output item is not an object")
    return item, text_of_member(item, "type")


def _name_in(form: dict[str, Any]) -> str:
    """Return the name of a call; of a search, only if the client has to run it."""
    if form.get("type") == SEARCH_CALL:
        return SEARCH if form.get("execution") == "client" else ""
    return text_of_member(form, "name")


def _index(event: dict[str, Any]) -> int | None:
    """Return the index of an item, or None if it is absent or not a number."""
    index = index_of(event.get("output_index"))
    return index if type(index) is int else None


# The reply under construction: what events and complete bodies of responses add to it.
#
# A response has no finish reason: its status says whether it is complete, its items what it
# contains. https://platform.openai.com/docs/api-reference/responses-streaming


_IN_PROGRESS = ("queued", "in_progress")
_END_STATUSES = {
    "response.completed": "completed",
    "response.done": "completed",  # can1357/oh-my-pi#4692
    "response.incomplete": "incomplete",
    "response.cancelled": "cancelled",
    "response.failed": "failed",
}
_EVENTS: Mapping[str, Callable[[Output, dict[str, Any], Parts], None]] = {
    "response.output_item.added": Output.begun,
    "response.output_item.done": Output.done,
    "response.function_call_arguments.delta": Output.arguments_delta,
    "response.function_call_arguments.done": Output.arguments_done,
    "response.custom_tool_call_input.delta": Output.arguments_delta,
    "response.custom_tool_call_input.done": Output.arguments_done,
    "response.output_text.delta": Output.text,
    "response.output_text.done": Output.text,
    "response.reasoning_text.delta": Output.reasoning,
    "response.reasoning_summary_text.delta": Output.reasoning,
    "response.refusal.delta": Output.text,
    "response.refusal.done": Output.text,
}


class ResponsesReply:
    """Takes events, and gives the `Reply`. It is a `Builder`."""

    def __init__(self, wire: Wire, *, offer: Offer, ids: str) -> None:
        self.is_recognized = self.is_over = False
        self.ending = Ending(wire, offer)
        self._offer = offer
        self._ids = ids
        self._output = Output(offer, ids)
        self._response: dict[str, Any] = {}
        self._id = ""
        self._number: int | None = None

    def body(self, body: dict[str, Any], data: bytes) -> None:
        if not isinstance(body.get("output"), list) and body.get("object") != "response":
            raise WireError("the reply has no output: this is not a response")
        self._output.source = RawJson(data)
        self._output.listed(body, [], streamed=False)
        self._end(body, body.get("status"))

    def event(self, event: dict[str, Any], data: bytes, name: bytes, parts: Parts) -> None:
        self._take_number(event.get("sequence_number"))
        kind = event.get("type")
        if kind is None:
            kind = event["type"] = name.decode("utf-8", "replace")
        if kind in ("error", "response.error"):
            raise reported_error({key: value for key, value in event.items() if key != "type"})
        if not isinstance(kind, str) or not kind.startswith("response."):
            return
        self.is_recognized = True
        self._output.source = RawJson(data)
        if kind not in _END_STATUSES:
            self._take_progress(event.get("response"))
        if take := _EVENTS.get(kind):
            take(self._output, event, parts)
        elif isinstance(response := event.get("response"), dict):
            self._take_response(kind, response, parts)
        elif kind in _END_STATUSES:
            if "output_index" in event or "item_id" in event:
                self.ending.take_sign("incomplete")  # it is the remains of a piece of an item
            self._end({}, _END_STATUSES[kind])

    def _take_number(self, number: object) -> None:
        """Take the number of an event. A gap means that an event was lost. Some servers restart the
        numbers."""
        if type(number) is int:
            if self._number is not None and number > self._number + 1:
                self._output.items.lost()
            self._number = number

    def _take_response(self, kind: str, response: dict[str, Any], parts: Parts) -> None:
        response_id = response.get("id")
        is_other = self._id not in ("", response_id)
        if is_other and (kind == "response.created" or (kind in _END_STATUSES and response_id)):
            self.ending.take_sign("incomplete")  # of another one: the end of this is lost
        self._id = self._id or str(response.get("id") or "")
        self._response = response
        if kind in _END_STATUSES:
            self._output.listed(response, parts, streamed=True)
            self._end(response, _status(response, _END_STATUSES[kind]))

    def _take_progress(self, response: Any) -> None:
        """Take a response in progress: the calls in it, and any sign that it has stopped."""
        if not isinstance(response, dict):
            return
        self._output.shown(response)
        if (status := response.get("status")) not in _IN_PROGRESS:
            self.ending.take_stray_reason(status)
        self._take_cut(_incomplete_reason(response))

    def _take_cut(self, reason: object) -> None:
        """Take the reason for which a response is incomplete, if there is one."""
        if word := reason_of(reason):
            meaning = self.ending.meaning(word)
            self.ending.take_reason(word, "incomplete" if meaning in NATURAL else meaning)

    def _end(self, response: dict[str, Any], status: Any) -> None:
        """Take the response that says how everything ended. Raises ProviderError if it failed."""
        if status == "failed" or response.get("error"):
            raise reported_error(response.get("error") or "the response failed")
        self.is_recognized = self.is_over = True
        self._response = response or self._response
        reason = reason_of(_incomplete_reason(response))
        if reason or status == "incomplete":
            self._take_cut(reason or status)
        elif reason_of(status):
            self.ending.take_reason(status)
        else:
            self.ending.take_reason("", "stop")

    def finish(self, *, ended: bool, raw: Any) -> Reply:
        """Return the reply. Only a complete response ends it: `[DONE]` alone says nothing about its
        status."""
        if self.ending.torn or not (ended and self.is_over):
            self.ending.take_sign("incomplete")
        items = self._output.items
        if any(item.is_cut for item in items if item.own_call_id or item.texts):
            self.ending.take_sign("length")
        calls = self._calls()
        usage = self._response.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        return self.ending.reply(
            (str(text) for item in items for text in item.texts.values()),
            calls,
            Usage(
                1,
                token_count(usage, "input_tokens"),
                token_count(usage, "output_tokens"),
                cached_tokens(usage, "input_tokens_details"),
            ),
            raw=self._response or raw,
            state=self._state(calls),
            refused=self._output.refused,
            answers=_answers(items),
        )

    def _calls(self) -> tuple[ToolCall, ...]:
        """Return the calls. One without any sign of its end, and with incomplete arguments, was
        cut."""
        assembler = CallAssembler(self._offer, self._ids, has_end_marks=True)
        for item in self._output.calls:
            text = item.whole
            is_begun = not item.is_settled and bool(item.name or text)
            if is_begun and self.ending.cut is None and not is_object(mended(text)):
                self.ending.take_sign("incomplete")
            assembler.take_whole(
                item.call_id or item.id,
                item.name,
                text,
                fault=CONTRADICTORY if item.is_contradictory else None,
                notes=("streamed_otherwise",) if item.streamed_otherwise else (),
            )
        for copy in self._output.copies:
            assembler.take_copy(*copy)
        return self.ending.calls(assembler)

    def _state(self, calls: tuple[ToolCall, ...]) -> list[Any]:
        """Return the items for the next request; none if one of them has not come to its end."""
        output = self._output
        items = [item.final for item in output.items if item.final is not None]
        if len(items) < len(output.items) or len(calls) < len(output.calls):
            return []
        return kept_items(items, stored=self._response.get("store") is not False)


def _incomplete_reason(response: dict[str, Any]) -> object:
    details = response.get("incomplete_details")
    return details.get("reason") if isinstance(details, dict) else details


def _answers(items: Iterable[Item]) -> tuple[str, ...]:
    """Return the texts that may be the answer.

    Each message is a separate one, unless the provider says that it is a commentary, or that
    another one is the final answer.
    """
    texts = [(item.phase, "".join(map(str, item.texts.values()))) for item in items if item.texts]
    has_final = any(phase == "final_answer" for phase, _ in texts)
    return tuple(
        mended(text)
        for phase, text in texts
        if text.strip() and (phase == "final_answer" if has_final else phase != "commentary")
    )


def _status(response: dict[str, Any], ending: str) -> Any:
    """Return how a stream ended: the event's own word, unless the status is worse.

    Some servers' `status` is still that of the beginning.
    """
    status = response.get("status")
    return ending if ending != "completed" or status is None or status in _IN_PROGRESS else status
