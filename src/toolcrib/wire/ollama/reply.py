"""The reply under construction: what lines of Ollama's chat add to it.

A reply that is not streamed is a single line. Calls come whole, with arguments that are an object.
"""

from __future__ import annotations

from typing import Any

import msgspec

from toolcrib.errors import WireError
from toolcrib.values.json import JsonObject
from toolcrib.values.message import Reply, TextPart, Usage
from toolcrib.values.offer import Offer
from toolcrib.wire.base import Wire
from toolcrib.wire.builder import Parts
from toolcrib.wire.calls import CallAssembler
from toolcrib.wire.ending import Ending
from toolcrib.wire.json_text import counted, mended


class _Function(msgspec.Struct):
    arguments: msgspec.Raw = msgspec.Raw(b"null")


class _Call(msgspec.Struct):
    function: _Function


class _Message(msgspec.Struct):
    tool_calls: list[_Call]


class _Line(msgspec.Struct):
    message: _Message


_SLICES = msgspec.json.Decoder(_Line)


class OllamaReply:
    """Takes lines, gives the `Reply`. `thinking` is kept for the next request."""

    def __init__(self, wire: Wire, *, offer: Offer, ids: str) -> None:
        self.known = False
        self.over = False
        self.torn = False
        self._ending = Ending(wire, offer)
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls = CallAssembler(offer, ids)
        self._last: JsonObject = {}

    def body(self, body: JsonObject, data: bytes) -> None:
        self.event(body, data, b"", [])

    def event(self, event: JsonObject, data: bytes, _name: bytes, parts: Parts) -> None:
        """Take one line (`data` are its bytes). Raises WireError."""
        if "message" not in event and "done" not in event:
            return
        self.known = True
        self._last = event
        self.over = event.get("done") is True
        message = event.get("message")
        if message is None:
            return
        if not isinstance(message, dict):
            raise WireError("`message` is not an object")
        if thinking := _text(message, "thinking"):
            self._thinking.append(thinking)
        if content := _text(message, "content"):
            self._text.append(content)
            parts.append(TextPart(mended(content)))
        if calls := message.get("tool_calls"):
            self._add_calls(calls, data, parts)

    def _add_calls(self, calls: Any, data: bytes, parts: Parts) -> None:
        if not isinstance(calls, list):
            raise WireError("`tool_calls` is not a list")
        texts = _arguments(calls, data)
        for call, text in zip(calls, texts, strict=True):
            name = call["function"].get("name") or ""
            if not isinstance(name, str):
                raise WireError("the name of a tool call is not text")
            given = call.get("id") or ""
            part = self._calls.whole(given if isinstance(given, str) else str(given), name, text)
            if part is not None:
                parts.append(part)

    def finish(self, *, ended: bool, raw: Any) -> Reply:
        """The reply. `ended` is whether a line said that it was the last one."""
        ending, reason = self._ending, self._last.get("done_reason")
        ending.stopped(ended=ended, torn=self.torn)
        if isinstance(reason, str):
            ending.said(reason)
        calls = ending.calls(self._calls)
        state = {"thinking": mended("".join(self._thinking))} if self._thinking else None
        spent, made = (counted(self._last, f"{key}_count") for key in ("prompt_eval", "eval"))
        usage = Usage(1, spent, made)
        return ending.reply(self._text, calls, usage, raw=self._last or raw, state=state)


def _text(message: JsonObject, key: str) -> str:
    text = message.get(key) or ""
    if not isinstance(text, str):
        raise WireError(f"the {key} of a message is not text")
    return text


def _arguments(calls: list[Any], data: bytes) -> list[str]:
    """The arguments of each call as the model wrote them: an object's bytes, or a text."""
    if not all(isinstance(c, dict) and isinstance(c.get("function"), dict) for c in calls):
        raise WireError("a tool call is not an object with a function")
    given = [call["function"].get("arguments") for call in calls]
    if all(value is None or isinstance(value, str) for value in given):
        return [value or "" for value in given]
    try:
        slices = _SLICES.decode(data).message.tool_calls
        raw = [bytes(call.function.arguments).decode() for call in slices]
    except (ValueError, RecursionError):
        raise WireError("the arguments of a tool call cannot be read") from None
    return [
        value if isinstance(value, str) else "" if value is None else text
        for value, text in zip(given, raw, strict=True)
    ]
