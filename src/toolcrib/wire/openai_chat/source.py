"""The bytes of arguments that come as a value and not as text, cut out of the chunk they are in."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from toolcrib.errors import WireError
from toolcrib.wire.json_text import parsed


class _Function(msgspec.Struct):
    arguments: msgspec.Raw = msgspec.Raw(b"null")


class _Call(_Function):
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


class Source:
    """One chunk or body; `point` says which message in it is read: that of a choice, under a key."""

    __slots__ = ("_at", "_body", "_data", "_key")

    def __init__(self, data: bytes = b"") -> None:
        self._data = data
        self._body: _Body | None = None
        self._at = 0
        self._key = ""

    def point(self, at: int, key: str) -> None:
        self._at, self._key = at, key

    def slice(self, at: int | None, value: Any) -> str:
        """The arguments of the call at that place, or of the `function_call`; `value` is what they are.

        The very bytes, unless strict parsers refuse the JSON around them. Raises WireError.
        """
        try:
            if self._body is None:
                self._body = _SLICES.decode(self._data)
            message = getattr(self._body.choices[self._at], self._key)
            call = message.function_call if at is None else message.tool_calls
            call = call[at or 0] if isinstance(call, list) else call
            function = call if at is None else call.function or call
            return bytes(function.arguments).decode()
        except (ValueError, RecursionError, AttributeError, IndexError):
            pass
        try:
            return json.dumps(self._again(at, value))
        except RecursionError:
            raise WireError("the arguments of a tool call are nested too deeply") from None

    def _again(self, at: int | None, value: Any) -> Any:
        """The value out of JSON that is read with care: no key of it may be lost."""
        try:
            message = parsed(self._data)["choices"][self._at][self._key]
            call = message["function_call" if at is None else "tool_calls"]
            call = call[at or 0] if isinstance(call, list) else call
            return (call.get("function") or call)["arguments"]
        except (TypeError, KeyError, IndexError, AttributeError):
            return value
