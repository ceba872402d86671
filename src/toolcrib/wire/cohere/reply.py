"""The reply under construction: what events and whole bodies of Cohere's chat add to it.

A stream gives the members of a message piece by piece, each at its index; what a whole reply has in
`content`, `tool_plan` and `citations` is put together in the same form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolcrib.errors import WireError
from toolcrib.values.json import JsonObject
from toolcrib.values.message import Reply, TextPart, Usage
from toolcrib.values.offer import Offer
from toolcrib.wire.base import Wire
from toolcrib.wire.builder import Parts
from toolcrib.wire.calls import CallAssembler
from toolcrib.wire.ending import Ending
from toolcrib.wire.failure import reported_error
from toolcrib.wire.json_text import counted, mended

_KINDS = frozenset(
    (
        "message-start",
        "content-start",
        "content-delta",
        "content-end",
        "tool-plan-delta",
        "tool-call-start",
        "tool-call-delta",
        "tool-call-end",
        "citation-start",
        "citation-end",
        "message-end",
    )
)
_SAID = ("text", "thinking")


class _Block:
    """A part of the content: what it began as, and the pieces of the member that is its kind."""

    __slots__ = ("begun", "kind", "pieces")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.begun: dict[str, Any] = {"type": kind} if kind else {}
        self.pieces: list[str] = []

    def form(self) -> dict[str, Any]:
        said = {self.kind: mended("".join(self.pieces))} if self.kind in _SAID else {}
        return self.begun | said


class CohereReply:
    """https://docs.cohere.com/v2/reference/chat and …/chat-stream.

    The plan for its calls is not what the model says to the user: it is kept for the next request,
    as are thinking and citations.
    """

    def __init__(self, wire: Wire, *, offer: Offer, ids: str) -> None:
        self.known = False
        self.torn = False
        self._whole = False
        self._id: object = None
        self._begun = False
        self._ending = Ending(wire, offer)
        self._text: list[str] = []
        self._plan: list[str] = []
        self._citations: list[Any] = []
        self._blocks: list[_Block] = []
        self._by_index: dict[object, _Block] = {}
        self._calls = CallAssembler(offer, ids, marked=True)
        self._usage: JsonObject = {}

    @property
    def over(self) -> bool:
        """`[DONE]` follows the last event, from Cohere itself; where it does not, the body ends."""
        return False

    def body(self, body: JsonObject, data: bytes) -> None:
        _check(body)
        message = body.get("message")
        if not isinstance(message, dict):
            raise WireError("the reply has no message: this is not version 2 of Cohere's chat")
        self._whole = True
        self._ends(body)
        for index, block in enumerate(_list(message, "content")):
            self._block(index, block, [])
        self._add_plan(message)
        self._citations += _list(message, "citations")
        for call in _list(message, "tool_calls"):
            self._calls.whole(*_call(call))

    def event(self, event: JsonObject, data: bytes, name: bytes, parts: Parts) -> None:
        """Take one event. Raises WireError, and ProviderError for an error that it reports."""
        kind = event.get("type") or name.decode("utf-8", "replace")
        if not isinstance(kind, str) or kind not in _KINDS:
            _check(event)
            return
        self.known = True
        self._calls.next_chunk()
        index = event.get("index") if type(event.get("index")) is int else None
        self._take_mark(kind, event.get("id"), index)
        delta = event.get("delta")
        if not isinstance(delta, dict):
            return
        if kind == "message-end":
            if delta.get("error"):
                raise reported_error(delta["error"])
            self._ends(delta)
            self._calls.close()
            return
        message = delta.get("message")
        if not isinstance(message, dict):
            return
        for block in _list(message, "content"):
            self._block(index, block, parts)
        self._add_plan(message)
        self._citations += _list(message, "citations")
        for call in _list(message, "tool_calls"):
            self._ending.called()
            if part := self._calls.piece(index, *_call(call)):
                parts.append(part)

    def _take_mark(self, kind: str, given: object, index: object) -> None:
        """A call ends, or a message begins; if it is another one, the end of that before it is lost."""
        if kind == "tool-call-end":
            self._calls.end(index)
        elif kind == "message-start":
            if self._begun and (not given or given != self._id):
                self._ending.sign("incomplete")
            self._id, self._begun = given, True

    def _block(self, index: object, piece: Any, parts: Parts) -> None:
        """A part of the content, or a piece of one: text is for the user, the rest is not."""
        if isinstance(piece, str):
            piece = {"type": "text", "text": piece}
        if not isinstance(piece, dict):
            raise WireError("a part of the content is not an object")
        begun = {key: value for key, value in piece.items() if key not in _SAID}
        if begun:
            self._at(index, str(begun.get("type") or "")).begun |= begun
        for kind in _SAID:
            text = piece.get(kind)
            if text is None:
                continue
            if not isinstance(text, str):
                raise WireError(f"the {kind} of a part of the content is not text")
            self._at(index, kind).pieces.append(text)
            if text and kind == "text":
                self._text.append(text)
                parts.append(TextPart(mended(text)))

    def _at(self, index: object, kind: str) -> _Block:
        """The block that a piece adds to; one that nobody has announced begins with it."""
        block = self._by_index.get(index)
        if block is None or (kind and kind != block.kind):
            block = self._by_index[index] = _Block(kind)
            self._blocks.append(block)
        return block

    def _add_plan(self, message: Mapping[str, Any]) -> None:
        plan = message.get("tool_plan")
        if isinstance(plan, str):
            self._plan.append(plan)

    def _ends(self, last: Mapping[str, Any]) -> None:
        reason, usage = last.get("finish_reason"), last.get("usage")
        if reason:
            self._ending.said(reason)
        self._usage = usage if isinstance(usage, dict) else self._usage

    def finish(self, *, ended: bool, raw: Any) -> Reply:
        """The reply. `ended` is whether the provider said that this was all of it."""
        self._ending.stopped(ended=ended and self._said_how(), torn=self.torn)
        calls = self._ending.calls(self._calls)
        return self._ending.reply(self._text, calls, self._spent(), raw=raw, state=self._state())

    def _said_how(self) -> bool:
        """Whether a stream said how it ended: one without `message-end` may have lost a cut."""
        return self._whole or bool(self._ending.reason)

    def _state(self) -> dict[str, Any]:
        """What of the message is neither its text nor its calls; nothing if there is nothing more."""
        state: dict[str, Any] = {}
        blocks = [block.form() for block in self._blocks]
        if self._citations or any(block.get("type") != "text" for block in blocks):
            state["content"] = blocks
        if plan := mended("".join(self._plan)):
            state["tool_plan"] = plan
        if self._citations:
            state["citations"] = self._citations
        return state

    def _spent(self) -> Usage:
        """What is paid for; `tokens` has besides it what Cohere adds to a prompt, often a thousand."""
        counts = self._usage.get("billed_units") or self._usage.get("tokens")
        counts = counts if isinstance(counts, dict) else {}
        return Usage(1, counted(counts, "input_tokens"), counted(counts, "output_tokens"))


def _check(payload: JsonObject) -> None:
    """An error has no other sign than that its message is a text."""
    if isinstance(payload.get("message"), str):
        raise reported_error(payload)


def _list(message: Mapping[str, Any], key: str) -> list[Any]:
    """A member that a whole message has as a list, and a piece of a stream as a single one."""
    value = message.get(key)
    return value if isinstance(value, list) else [] if value is None else [value]


def _call(call: Any) -> tuple[str, str, str]:
    """Id, name and arguments, each empty where this piece does not say it."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise WireError("a tool call is not an object with a function")
    said = (call.get("id"), function.get("name"), function.get("arguments"))
    id_, name, arguments = ("" if value is None else value for value in said)
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise WireError("the name or the arguments of a tool call are not text")
    return id_ if isinstance(id_, str) else str(id_), name, arguments
