"""The reply under construction: what events and whole bodies of Anthropic's messages add to it.

A reply is a list of content blocks, numbered in a stream. Calls of our tools and text become what
they are on every wire; the provider's own tools and thinking are nothing that we run or show.
Shapes: https://platform.claude.com/docs/en/api/messages, …/build-with-claude/streaming
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from toolcrib.errors import WireError
from toolcrib.values.message import Reply, TextPart, Usage
from toolcrib.values.offer import Offer
from toolcrib.wire.anthropic.blocks import Block, delta_of, kept
from toolcrib.wire.base import Wire
from toolcrib.wire.builder import Parts
from toolcrib.wire.calls import CONTRADICTORY, UNENDED, CallAssembler, index_of
from toolcrib.wire.ending import Ending
from toolcrib.wire.failure import reported_error
from toolcrib.wire.json_text import counted, mended, same_json

_EVENTS = (
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "ping",
)
_INPUT_TOKENS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class _Block(msgspec.Struct):
    input: msgspec.Raw = msgspec.Raw(b"")


class _Body(msgspec.Struct):
    content: list[_Block]


class _Event(msgspec.Struct):
    content_block: _Block


_BODY_SLICES = msgspec.json.Decoder(_Body)
_EVENT_SLICES = msgspec.json.Decoder(_Event)


class AnthropicReply:
    """Takes events or a body, gives the `Reply`. A call is a block, whatever the block's index."""

    def __init__(self, wire: Wire, *, offer: Offer, ids: str) -> None:
        self.known = False
        self.over = False
        self.torn = False
        self._whole = False
        self._id: object = None
        self._ending = Ending(wire, offer)
        self._blocks: list[Block] = []
        self._by_index: dict[object, Block] = {}
        self._text: list[str] = []
        self._calls = CallAssembler(offer, ids, marked=True)
        self._usage: dict[str, Any] = {}

    def body(self, body: dict[str, Any], data: bytes) -> None:
        if body.get("type") == "error":
            raise reported_error(body)
        content = body.get("content")
        if not isinstance(content, list):
            raise WireError("the reply has no content blocks: this is no message of Anthropic's")
        self.known = self._whole = True
        inputs = _inputs(content, data) if any(map(_has_input, content)) else [b""] * len(content)
        for form, given in zip(content, inputs, strict=True):
            self._stop(self._begin(form, None, given, []), [])
        self._take_reason(body)
        self._take_usage(body)

    def event(self, event: dict[str, Any], data: bytes, name: bytes, parts: Parts) -> None:
        kind = event.get("type") or name.decode("utf-8", "replace")
        self.known = self.known or kind in _EVENTS
        match kind:
            case "content_block_delta":
                self._take_delta(event, parts)
            case "content_block_start":
                self._take_start(event, data, parts)
            case "content_block_stop":
                if block := self._by_index.get(index_of(event.get("index"))):
                    self._stop(block, parts)
            case "message_start":
                self._take_message(event.get("message"))
            case "message_delta":
                self._take_reason(event.get("delta"))
                self._take_usage(event)
            case "message_stop":
                self.over = True
            case "error":
                raise reported_error(event)

    def _take_message(self, message: Any) -> None:
        """A message begins; if it is another one, the end of the one before it is lost."""
        given = message.get("id") if isinstance(message, dict) else None
        if self._id and given and given != self._id:
            self._ending.sign("incomplete")
        self._id = self._id or given
        self._take_usage(message)

    def _take_start(self, event: dict[str, Any], data: bytes, parts: Parts) -> None:
        form = event.get("content_block")
        given = _input_at_start(form, data) if _has_input(form) else b""
        given = given if given.strip(b"{} \t\r\n") else b""  # `{}` is a placeholder in streams
        index = index_of(event.get("index"))
        before = self._by_index.get(index)
        if before is not None and before.is_again(form):
            if given.decode("utf-8", "replace") != before.given:
                self._calls.doubt(before.number, CONTRADICTORY)
            return
        block = self._begin(form, index, given, parts)
        if before is not None and before.is_other(form):
            self._calls.doubt(before.number, CONTRADICTORY)
            self._calls.doubt(block.number, CONTRADICTORY)
        elif before is not None and before.kind == "tool_use" and not before.announced:
            self._calls.doubt(block.number, UNENDED)  # pieces came first that may be its own

    def _take_delta(self, event: dict[str, Any], parts: Parts) -> None:
        delta = event.get("delta")
        if not isinstance(delta, dict):
            raise WireError("a `content_block_delta` has no delta")
        kind, member = delta_of(delta)
        block = self._at(index_of(event.get("index")), kind, parts)
        value = delta.get(member) if member else delta
        if member in ("", "citation"):
            block.add(member, value)
        elif isinstance(value, str):
            self._add(block, member, value, parts)
        elif value is not None:
            raise WireError(f"the `{member}` of a delta is not text")

    def _begin(self, form: Any, index: object, given: bytes, parts: Parts) -> Block:
        """A new block. What it brings of its text is told at once, its input only at its end."""
        if not isinstance(form, dict):
            raise WireError("a content block is not an object")
        block = Block(len(self._blocks), form)
        self._blocks.append(block)
        self._by_index[index] = block
        if block.kind == "tool_use":
            name, provider_id = form.get("name") or "", form.get("id") or ""
            if not isinstance(name, str):
                raise WireError("the name of a tool call is not text")
            self._ending.called()
            self._calls.piece(block.number, str(provider_id), name, "")
            text = form.get("input")
            block.given = text if isinstance(text, str) else given.decode("utf-8", "replace")
        elif block.kind == "text" and (text := form.get("text")):
            if not isinstance(text, str):
                raise WireError("the text of a block is not text")
            self._tell(text, parts)
        return block

    def _at(self, index: object, kind: str, parts: Parts) -> Block:
        """The block that a delta adds to; one that nobody has announced begins with it."""
        block = self._by_index.get(index)
        if block is None and index is None and self._blocks:
            block = self._blocks[-1]
        if block is None or not block.takes(kind):
            block = self._begin({"type": kind or "unknown"}, index, b"", parts)
        return block

    def _add(self, block: Block, member: str, text: str, parts: Parts) -> None:
        if block.kind == "tool_use" and member == "partial_json":
            if text:
                self._ending.called()
                block.input.append(text)
            if part := self._calls.piece(block.number, "", "", text):
                parts.append(part)
            return
        block.add(member, text)
        if block.kind == "text" and text:
            self._tell(text, parts)

    def _stop(self, block: Block, parts: Parts) -> None:
        """The end of a block, by its own event."""
        self._settle(block, parts)
        block.stopped = True
        self._calls.end(block.number)

    def _settle(self, block: Block, parts: Parts) -> None:
        """Input that came with the beginning counts if none followed (gajae-code#1895); if both came,
        they are copies."""
        given, block.given = block.given, ""
        if not given:
            return
        if not block.input:
            block.input.append(given)
            if part := self._calls.piece(block.number, "", "", given):
                parts.append(part)
        elif not same_json(given, "".join(block.input)):
            self._calls.doubt(block.number, CONTRADICTORY)

    def _tell(self, text: str, parts: Parts) -> None:
        self._text.append(text)
        parts.append(TextPart(mended(text)))

    def _take_reason(self, message: Any) -> None:
        reason = message.get("stop_reason") if isinstance(message, dict) else None
        if reason:
            self._ending.said(reason)
            self._calls.close()

    def _take_usage(self, message: Any) -> None:
        """The counts of a stream are totals so far; one that is missing, or 0, stays as it was."""
        usage = message.get("usage") if isinstance(message, dict) else None
        if isinstance(usage, dict):
            self._usage |= {key: count for key, count in usage.items() if count}

    def finish(self, *, ended: bool, raw: Any) -> Reply:
        """The reply. `ended` is whether the provider said that this was all of it."""
        for block in self._blocks:
            self._settle(block, [])
        said_how = self._whole or bool(self._ending.reason)  # without, a cut may have been lost
        self._ending.stopped(ended=ended and said_how, torn=self.torn)
        calls = self._ending.calls(self._calls)
        state = kept(self._blocks, cut=self._ending.cut is not None)
        usage = Usage(
            1,
            counted(self._usage, *_INPUT_TOKENS),
            counted(self._usage, "output_tokens"),
            counted(self._usage, "cache_read_input_tokens"),
            counted(self._usage, "cache_creation_input_tokens"),
        )
        return self._ending.reply(self._text, calls, usage, raw=raw, state=state)


def _has_input(form: Any) -> bool:
    is_call = isinstance(form, dict) and form.get("type") == "tool_use"
    return is_call and form.get("input") is not None


def _inputs(content: list[Any], data: bytes) -> list[bytes]:
    """The inputs of all blocks of a body, as the very bytes."""
    try:
        return [bytes(block.input) for block in _BODY_SLICES.decode(data).content]
    except (ValueError, RecursionError):
        return [_again(form) for form in content]


def _input_at_start(form: Any, data: bytes) -> bytes:
    try:
        return bytes(_EVENT_SLICES.decode(data).content_block.input)
    except (ValueError, RecursionError):
        return _again(form)


def _again(form: Any) -> bytes:
    """An input out of JSON that strict parsers refuse, such as half a surrogate pair."""
    try:
        return json.dumps(form["input"]).encode() if _has_input(form) else b""
    except RecursionError:
        raise WireError("the input of a tool call is nested too deeply") from None
