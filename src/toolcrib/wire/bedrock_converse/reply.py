"""The reply under construction: what events and whole bodies of Converse add to it.

A reply is a list of content blocks, numbered in a stream. Calls of our tools and text become what
they are on every wire; the provider's own tools and reasoning are nothing that we run or show.
Shapes: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html,
…/API_runtime_ConverseStream.html
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from toolcrib.errors import WireError
from toolcrib.values.message import Reply, TextPart, Usage
from toolcrib.values.offer import Offer
from toolcrib.wire.base import Wire
from toolcrib.wire.bedrock_converse.blocks import Block, kept, text_of
from toolcrib.wire.builder import Parts
from toolcrib.wire.calls import CONTRADICTORY, UNENDED, CallAssembler, index_of
from toolcrib.wire.ending import Ending
from toolcrib.wire.json_text import counted, mended

_EVENTS = (
    "messageStart",
    "contentBlockStart",
    "contentBlockDelta",
    "contentBlockStop",
    "messageStop",
    "metadata",
)
_INPUT_TOKENS = ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")


class _Use(msgspec.Struct):
    input: msgspec.Raw = msgspec.Raw(b"")


class _Block(msgspec.Struct, rename="camel"):
    tool_use: _Use | None = None


class _Message(msgspec.Struct):
    content: list[_Block]


class _Output(msgspec.Struct):
    message: _Message


class _Body(msgspec.Struct):
    output: _Output


class _Start(msgspec.Struct):
    start: _Block


_BODY_SLICES = msgspec.json.Decoder(_Body)
_START_SLICES = msgspec.json.Decoder(_Start)


class BedrockReply:
    """Takes events or a body, gives the `Reply`. A call is a block, whatever the block's index."""

    def __init__(self, wire: Wire, *, offer: Offer, ids: str) -> None:
        self.known = False
        self.over = False
        self.torn = False
        self._begun = False
        self._ending = Ending(wire, offer)
        self._blocks: list[Block] = []
        self._by_index: dict[object, Block] = {}
        self._text: list[str] = []
        self._calls = CallAssembler(offer, ids, marked=True)
        self._usage: dict[str, Any] = {}

    def body(self, body: dict[str, Any], data: bytes) -> None:
        output = body.get("output")
        message = output.get("message") if isinstance(output, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            raise WireError("the reply has no content blocks: this is no answer of Converse")
        self.known = True
        inputs = _inputs(content, data) if any(map(_has_input, content)) else [""] * len(content)
        for form, given in zip(content, inputs, strict=True):
            self._calls.end(self._begin(form, None, given, []).number)
        self._take_reason(body)
        self._take_usage(body)

    def event(self, event: dict[str, Any], data: bytes, name: bytes, parts: Parts) -> None:
        kind = name.decode()
        self.known = self.known or kind in _EVENTS
        if kind == "contentBlockDelta":
            delta = event.get("delta")
            if not isinstance(delta, dict):
                raise WireError("a `contentBlockDelta` has no delta")
            for member, value in delta.items():
                self._take_delta(index_of(event.get("contentBlockIndex")), member, value, parts)
        elif kind == "contentBlockStart":
            form = event.get("start")
            given = _input_at_start(form, data) if _has_input(form) else ""
            given = given if given.strip("{} \t\r\n") else ""  # `{}` would be a placeholder
            self._take_start(form, index_of(event.get("contentBlockIndex")), given, parts)
        elif kind == "contentBlockStop":
            self._stop(index_of(event.get("contentBlockIndex")))
        elif kind == "messageStart":
            self._take_message()
        elif kind == "messageStop":
            self._take_reason(event)
        elif kind == "metadata":
            self._take_usage(event)
            self.over = bool(self._ending.reason)

    def _take_message(self) -> None:
        """A message begins; if one has begun before, the end of that is lost."""
        if self._begun:
            self._ending.sign("incomplete")
        self._begun = True

    def _stop(self, index: object) -> None:
        if block := self._by_index.get(index):
            block.stopped = True
            self._calls.end(block.number)

    def _take_start(self, form: Any, index: object, given: str, parts: Parts) -> None:
        before = self._by_index.get(index)
        if before is not None and before.is_again(form):
            if given:
                self._calls.doubt(before.number, CONTRADICTORY)
            return
        block = self._begin(form, index, given, parts)
        if before is not None and before.is_other(form):
            self._calls.doubt(before.number, CONTRADICTORY)
            self._calls.doubt(block.number, CONTRADICTORY)
        elif before is not None and before.ours and not before.announced:
            self._calls.doubt(block.number, UNENDED)  # pieces came first that may be its own

    def _begin(self, form: Any, index: object, given: str, parts: Parts) -> Block:
        """A new block, whose text is told at once. `given` is the input that came with it."""
        if not isinstance(form, dict) or not isinstance(form.get("toolUse", form), dict):
            raise WireError("a content block is not an object")
        block = Block(len(self._blocks), dict(form))
        self._blocks.append(block)
        self._by_index[index] = block
        if text := text_of(form):
            self._tell(text, parts)
        if block.ours:
            use = form["toolUse"]
            name, provider_id = use.get("name") or "", use.get("toolUseId") or ""
            if not isinstance(name, str):
                raise WireError("the name of a tool call is not text")
            self._ending.called()
            if part := self._calls.piece(block.number, str(provider_id), name, given):
                parts.append(part)
        return block

    def _take_delta(self, index: object, kind: str, value: Any, parts: Parts) -> None:
        block = self._at(index, kind, parts)
        if kind == "toolUse":
            self._take_input(block, value, parts)
        elif kind == "text":
            if not isinstance(value, str):
                raise WireError("the text of a delta is not text")
            block.add(kind, kind, value)
            if value:
                self._tell(value, parts)
        elif kind == "reasoningContent" and isinstance(value, dict):
            for member, text in value.items():
                block.add(kind, member, text if isinstance(text, str) else "")
        else:
            block.add_other(kind, value)

    def _at(self, index: object, kind: str, parts: Parts) -> Block:
        """The block that a delta adds to; without an announcement, as text has none, it begins."""
        block = self._by_index.get(index)
        if block is None or not block.takes(kind):
            block = self._begin({"toolUse": {}} if kind == "toolUse" else {}, index, "", parts)
        return block

    def _take_input(self, block: Block, value: Any, parts: Parts) -> None:
        text = value.get("input") if isinstance(value, dict) else None
        if not isinstance(text, str):
            raise WireError("the input of a delta is not text")
        if not block.ours:
            block.add("toolUse", "input", text)
        elif part := self._calls.piece(block.number, "", "", text):
            self._ending.called()
            parts.append(part)

    def _tell(self, text: str, parts: Parts) -> None:
        self._text.append(text)
        parts.append(TextPart(mended(text)))

    def _take_reason(self, message: dict[str, Any]) -> None:
        if reason := message.get("stopReason"):
            self._ending.said(reason)
            self._calls.close()

    def _take_usage(self, message: dict[str, Any]) -> None:
        usage = message.get("usage")
        if isinstance(usage, dict):
            self._usage |= {key: count for key, count in usage.items() if count is not None}

    def finish(self, *, ended: bool, raw: Any) -> Reply:
        """The reply. `ended` is whether the provider said that this was all of it."""
        self._ending.stopped(ended=ended, torn=self.torn)
        calls = self._ending.calls(self._calls)
        state = kept(self._blocks, cut=self._ending.cut is not None)
        usage = Usage(
            1,
            counted(self._usage, *_INPUT_TOKENS),
            counted(self._usage, "outputTokens"),
            counted(self._usage, "cacheReadInputTokens"),
            counted(self._usage, "cacheWriteInputTokens"),
        )
        return self._ending.reply(self._text, calls, usage, raw=raw, state=state)


def _has_input(form: Any) -> bool:
    use = form.get("toolUse") if isinstance(form, dict) else None
    return isinstance(use, dict) and use.get("input") is not None


def _inputs(content: list[Any], data: bytes) -> list[str]:
    """The inputs of all blocks of a body, in the very bytes; empty where there are none."""
    try:
        return list(map(_slice, _BODY_SLICES.decode(data).output.message.content))
    except (ValueError, RecursionError):
        return [_again(form) for form in content]


def _input_at_start(form: Any, data: bytes) -> str:
    """Nothing in the documentation says that a beginning has one: a call never loses what it has."""
    try:
        return _slice(_START_SLICES.decode(data).start)
    except (ValueError, RecursionError):
        return _again(form)


def _slice(block: _Block) -> str:
    return "" if block.tool_use is None else bytes(block.tool_use.input).decode()


def _again(form: Any) -> str:
    """An input out of JSON that strict parsers refuse, such as half a surrogate pair."""
    try:
        return json.dumps(form["toolUse"]["input"]) if _has_input(form) else ""
    except RecursionError:
        raise WireError("the input of a tool call is nested too deeply") from None
