"""A typed answer while it streams: the value that its text represents so far, for display.

Rule: it is plain JSON data that nothing has validated. What the answer is, only the whole text
says, once the reply has ended. Incomplete JSON never raises. A number shows when it is known to be
whole; a number alone does not, because text may begin with it.

A value is reported again when the text has grown by a thirty-second. So the total work grows with
the length of the text, not with its square, however small the pieces are.
"""

from __future__ import annotations

import json
import re
from typing import Any

import jiter

from toolcrib.agent.output import ANSWER
from toolcrib.values.json import JsonValue
from toolcrib.values.message import ArgumentsPart, ChatRequest, LLMClient, Message, Reply
from toolcrib.values.step import offer_of
from toolcrib.wire.forms import AnswerRestorer

_GROWTH = 32
_LONGEST_HEAD = 16  # characters before a value: a fence, and white space after it
_FENCE = re.compile(r"\s*(?:```(?:json)?\s)?")
_QUOTES = re.compile(r'\\.|\\$|"', re.DOTALL)
_UNENDED = b"0123456789+-.eE"
_NOTHING: Any = object()


class PartialValue:
    """Reads the text of one reply as it arrives; `feed` it the pieces, in order.

    `wrapper` is the one property under which the provider was asked for a value that is not an
    object.
    """

    def __init__(self, wrapper: str | None = None) -> None:
        self._wrapper = wrapper
        self._text = bytearray()
        self._head = ""
        self._begun = False
        self._told = 0
        self._in_text = False
        self._escaped = False
        self._last = _NOTHING

    def feed(self, piece: str) -> list[JsonValue]:
        """Return the value so far as a list of one; empty if there is none, or no new one."""
        if not self._begun:
            self._head = (self._head + piece).lstrip()
            piece = self._head[_end_of_head(self._head) :]
            if not piece.strip("`json \t\r\n") and len(self._head) < _LONGEST_HEAD:
                return []
            self._begun = True
        self._note_quotes(piece)
        self._text += piece.encode("utf-8", "replace")
        if len(self._text) - self._told <= self._told // _GROWTH:
            return []
        self._told = len(self._text)
        return self._value()

    def end(self) -> list[JsonValue]:
        """Return the value of everything fed, in the same way."""
        return self._value() if self._told < len(self._text) else []

    def _value(self) -> list[JsonValue]:
        text = bytes(self._text)
        if not self._in_text:
            text = text.rstrip(_UNENDED)
        try:
            value = jiter.from_json(text, partial_mode="trailing-strings", allow_inf_nan=False)
            json.dumps(value, allow_nan=False)  # 1e999 is read as infinity
        except ValueError:
            return []
        if not isinstance(value, dict | list | str):
            return []
        if isinstance(value, dict) and list(value) == [self._wrapper]:
            value = value[self._wrapper]
        if value in ({}, self._last):
            return []
        self._last = value
        return [value]

    def _note_quotes(self, piece: str) -> None:
        """Note whether the text so far ends within a string."""
        at = int(self._escaped and bool(piece))
        self._escaped = self._escaped and not piece
        for found in _QUOTES.finditer(piece, at):
            if found.group() == '"':
                self._in_text = not self._in_text
            elif len(found.group()) == 1:
                self._escaped = True


class PartialAnswer:
    """Reads the answer of one reply as it arrives: its text, or the arguments of an answer call.

    `tool` is the name of the answer tool.
    """

    def __init__(self, text: PartialValue, tool: str = "") -> None:
        self._reading = self._text = text
        self._tool = tool
        self._call_id: str | None = None

    @staticmethod
    def of(client: LLMClient, request: ChatRequest) -> PartialAnswer | None:
        """Return the reader for the reply to a request; None if it asks for no typed answer."""
        if request.output is None:
            return None
        restorer = offer_of(client, request, _NO_REPLY).output
        wrapper = restorer.wrapper if isinstance(restorer, AnswerRestorer) else None
        tool = request.output.tool
        name = "" if tool is None else tool.get_definition().name
        return PartialAnswer(PartialValue(wrapper), name)

    def feed(self, piece: str) -> list[JsonValue]:
        """Return what a piece of text adds, as `PartialValue.feed` does; nothing after a call."""
        return self._text.feed(piece) if self._reading is self._text else []

    def feed_call(self, part: ArgumentsPart) -> list[JsonValue]:
        """Return what a piece of a call adds, if it is of the first answer call."""
        if part.name != self._tool:
            return []
        if self._call_id is None:
            self._call_id, self._reading = part.call_id, PartialValue(ANSWER)
        return self._reading.feed(part.text) if part.call_id == self._call_id else []

    def end(self) -> list[JsonValue]:
        """Return the value of everything fed, in the same way."""
        return self._reading.end()


_NO_REPLY = Reply(Message.assistant(), "stop")


def _end_of_head(text: str) -> int:
    found = _FENCE.match(text)
    return found.end() if found else 0
