"""The reply under construction: what chunks and whole bodies of chat completions add to it."""

from __future__ import annotations

from typing import Any

import msgspec

from toolcrib.errors import WireError
from toolcrib.values.message import Reply, TextPart, Usage
from toolcrib.values.offer import Offer
from toolcrib.wire.base import Wire
from toolcrib.wire.builder import Parts
from toolcrib.wire.calls import CallAssembler, index_of
from toolcrib.wire.ending import NATURAL, Ending
from toolcrib.wire.json_text import cached, counted, mended
from toolcrib.wire.openai_chat.usual import usual_chunk


class _Function(msgspec.Struct):
    arguments: msgspec.Raw = msgspec.Raw(b"null")


class _Call(msgspec.Struct):
    function: _Function | None = None


class _Message(msgspec.Struct):
    tool_calls: list[_Call | None] | _Call | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct):
    delta: _Message | None = None
    message: _Message | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice]


_SLICES = msgspec.json.Decoder(_Body)
_PATIENCE = 16
"""So many unusual chunks show that a server's are all unusual, and that trying costs time."""


class ChatReply:
    """Takes chunks, gives the `Reply`. Only the first choice counts.

    `known` is whether `choices` was ever there, `seen` whether it held any; `torn` is set by the
    decoder if the stream stopped in the middle of an event.
    """

    over = False  # the wire's own end is no chunk: `[DONE]`

    def __init__(self, wire: Wire, *, offer: Offer, ids: str) -> None:
        self.known = False
        self.seen = False
        self.torn = False
        self._wire = wire
        self._ending = Ending(wire, offer)
        self._text: list[str] = []
        self._calls = CallAssembler(offer, ids)
        self._legacy = CallAssembler(offer, ids)
        self._choice: object = None
        self._refused = False
        self._usage: dict[str, Any] = {}
        self._source = (b"", 0, "")
        self._slices: _Body | None = None
        self._patience = _PATIENCE

    def body(self, body: dict[str, Any], data: bytes) -> None:
        self._chunk(body, data, whole=True, parts=[])
        if not self.seen:
            raise WireError("the reply has no choices: this is not a chat completion")

    def event(self, event: dict[str, Any], data: bytes, _name: bytes, parts: Parts) -> None:
        self._chunk(event, data, whole=False, parts=parts)

    def usual(self, data: bytes, parts: Parts) -> bool:
        if not (self.seen and self._patience):
            return False
        try:
            (choice,) = usual_chunk(data).choices
        except (ValueError, RecursionError):
            self._patience -= 1
            return False
        if choice.index != self._choice:
            return True
        if calls := choice.delta.tool_calls:
            self._calls.next_chunk()
            for call in calls:
                name, text = call.function.name or "", call.function.arguments or ""
                if part := self._calls.piece(call.index, call.id or "", name, text):
                    parts.append(part)
        if content := choice.delta.content:
            self._add_text(content, parts)
        return True

    def _chunk(self, chunk: dict[str, Any], data: bytes, *, whole: bool, parts: Parts) -> None:
        """Add one chunk (`data` are its bytes), or one whole body. Raises WireError."""
        if usage := chunk.get("usage"):
            self._usage = usage if isinstance(usage, dict) else {}
        choices = chunk.get("choices")
        if choices is None:
            return
        if not isinstance(choices, list):
            raise WireError("`choices` is not a list")
        self.known = True
        self._slices = None
        self._calls.next_chunk()
        for at, choice in enumerate(choices):
            if not isinstance(choice, dict):
                raise WireError(f"`choices[{at}]` is not an object")
            index = choice.get("index") or 0
            if not self.seen:
                self._choice = index
                self.seen = True
            if index == self._choice:
                key = _key(choice, whole=whole)
                self._source = (data, at, key)
                self._add(choice, choice.get(key), whole=whole, parts=parts)

    def _add(
        self,
        choice: dict[str, Any],
        delta: Any,
        *,
        whole: bool,
        parts: Parts,
    ) -> None:
        if choice.get("finish_reason") or choice.get("native_finish_reason") or "error" in choice:
            self._add_reason(choice)
        if delta is None and not whole:
            return
        if not isinstance(delta, dict):
            raise WireError("a choice has neither `message` nor `delta`")
        if calls := delta.get("tool_calls"):
            self._add_calls(calls, whole=whole, parts=parts)
        if function := delta.get("function_call"):
            name, text = self._function(function, None)
            self._legacy.piece("function_call", "", name, text)
        if content := delta.get("content"):
            self._add_text(content, parts)
        if refusal := delta.get("refusal"):
            self._refused = True
            self._add_text(refusal, parts)

    def _add_calls(self, calls: Any, *, whole: bool, parts: Parts) -> None:
        for at, call in enumerate(calls if isinstance(calls, list) else [calls]):
            if call is None:
                continue
            if not isinstance(call, dict):
                raise WireError("a tool call is not an object")
            name, text = self._function(call.get("function") or _custom(call), at)
            provider_id = call.get("id") or ""
            if not isinstance(provider_id, str):
                provider_id = str(provider_id)
            if whole:
                self._calls.whole(provider_id, name, text)
                continue
            if part := self._calls.piece(index_of(call.get("index")), provider_id, name, text):
                parts.append(part)

    def _function(self, function: Any, at: int | None) -> tuple[str, str]:
        """Name and arguments, as text; arguments that come as a value keep their bytes."""
        if not isinstance(function, dict):
            raise WireError("the function of a tool call is not an object")
        name, text = function.get("name") or "", function.get("arguments")
        if not isinstance(name, str):
            raise WireError("the name of a tool call is not text")
        if text is None:
            return name, ""
        return name, text if isinstance(text, str) else self._slice(at)

    def _slice(self, at: int | None) -> str:
        data, choice, key = self._source
        try:
            if self._slices is None:
                self._slices = _SLICES.decode(data)
            message = getattr(self._slices.choices[choice], key)
            call = message.tool_calls if at is not None else message
            call = call[at or 0] if isinstance(call, list) else call
            function = call.function if at is not None else call.function_call
            return bytes(function.arguments).decode()
        except (ValueError, RecursionError, AttributeError, IndexError):
            raise WireError("the arguments of a tool call are neither text nor an object") from None

    def _add_text(self, content: Any, parts: Parts) -> None:
        if isinstance(content, list):
            texts = [item.get("text") for item in content if isinstance(item, dict)]
            content = "".join(text for text in texts if isinstance(text, str))
        if not isinstance(content, str):
            raise WireError("the content of a message is neither text nor a list")
        if content:
            self._text.append(content)
            parts.append(TextPart(mended(content)))

    def _add_reason(self, choice: dict[str, Any]) -> None:
        """Of two reasons for a cut, the first says what it was, the last is the more exact word."""
        ending = self._ending
        for key in ("finish_reason", "native_finish_reason"):
            if not (reason := choice.get(key)):
                continue
            meaning = self._wire.meaning(str(reason))
            news = ending.cut is None and (key == "finish_reason" or not ending.reason)
            if news or meaning not in NATURAL:
                ending.reason = str(reason)
            ending.sign(meaning)
        if choice.get("error"):
            ending.sign("error")

    def finish(self, *, ended: bool, raw: Any) -> Reply:
        """The reply. `ended` is whether the provider said that this was all of it."""
        self._ending.stopped(ended=ended, torn=self.torn)
        calls = self._ending.calls(self._calls) or self._ending.calls(self._legacy)
        usage = Usage(
            1,
            counted(self._usage, "prompt_tokens"),
            counted(self._usage, "completion_tokens"),
            cached(self._usage, "prompt_tokens_details"),
        )
        return self._ending.reply(self._text, calls, usage, raw=raw, refused=self._refused)


def _key(choice: dict[str, Any], *, whole: bool) -> str:
    """Where a choice has its message; some servers stream under the other name."""
    if whole:
        return "delta" if choice.get("message") is None else "message"
    return "message" if choice.get("delta") is None else "delta"


def _custom(call: dict[str, Any]) -> dict[str, Any]:
    """A custom tool's call, whose input is free text."""
    custom = call.get("custom")
    if not isinstance(custom, dict):
        return {}
    return {"name": custom.get("name"), "arguments": custom.get("input")}
