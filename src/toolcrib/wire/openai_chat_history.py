"""The messages of a chat completion request, each encoded once.

The wire's rule for tools: the results of an assistant message's calls follow it directly, one for
each. A history that breaks it is refused here, where the error can say which call it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from toolcrib.errors import RequestError
from toolcrib.values.call import ToolCall
from toolcrib.values.json import sha256_hex
from toolcrib.values.message import Message
from toolcrib.wire.json_text import is_object, mended
from toolcrib.wire.names import NameRule, wire_name

_LONGEST_ID = 40
"""OpenAI refuses ids of its own making that are longer: `string_above_max_length`."""


class History:
    """Messages encoded so far. `aliases` are the ids that the provider knows the open calls by."""

    def __init__(self, rule: NameRule, names: Mapping[str, str]) -> None:
        self._rule = rule
        self._names = names
        self._messages: tuple[Message, ...] = ()
        self._encoded: list[bytes] = []
        self._used: set[str] = set()
        self._open: dict[str, str] = {}

    def begins(self, messages: tuple[Message, ...], names: Mapping[str, str]) -> bool:
        """Whether these messages are the beginning of `messages`, encoded for the same names."""
        known = self._messages
        return self._names == names and messages[: len(known)] == known

    def extend(self, messages: tuple[Message, ...]) -> None:
        """Encode what is new. Raises RequestError; this history is of no use after that."""
        for at in range(len(self._messages), len(messages)):
            self._encoded.append(self._message(messages[at], at))
        self._messages = messages
        if not messages:
            raise RequestError("there are no messages to send")
        if self._open:
            raise self._unanswered()

    def encoded(self) -> bytes:
        return b"[" + b",".join(self._encoded) + b"]"

    def _message(self, message: Message, at: int) -> bytes:
        if message.role == "tool":
            return _dumps(self._result(message, at))
        if self._open:
            raise self._unanswered()
        form: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            if message.role != "assistant":
                raise RequestError(f"messages[{at}]: only an assistant's message may hold calls")
            form["content"] = message.content or None
            form["tool_calls"] = [self._call(call) for call in message.tool_calls]
        return _dumps(form)

    def _call(self, call: ToolCall) -> dict[str, Any]:
        """A call as the model made it; arguments that are no JSON object go back as an empty one.

        Servers parse them to fill a template, and fail on text that a model got wrong.
        """
        if call.id in self._open:
            raise RequestError(f"two calls of one message have the id {call.id!r}")
        alias = self._open[call.id] = self._alias(call)
        name = self._names.get(call.name) or wire_name(self._rule, call.name)
        arguments = call.arguments if is_object(call.arguments) else "{}"
        return {
            "id": alias,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }

    def _result(self, message: Message, at: int) -> dict[str, Any]:
        alias = self._open.pop(message.call_id or "", None)
        if alias is None:
            raise RequestError(
                f"messages[{at}] is the result of {message.call_id!r}, which is no unanswered call "
                "of the assistant's message before it"
            )
        return {"role": "tool", "tool_call_id": alias, "content": message.content}

    def _alias(self, call: ToolCall) -> str:
        """The provider's own id where it gave a unique one, else ours, shortened if need be."""
        alias = call.provider_id
        if not alias or alias in self._used:
            alias = call.id
            if len(alias) > _LONGEST_ID:
                alias = f"call_{sha256_hex(alias)[:24]}"
        made = alias or "call"
        number = 1
        while made in self._used or not made:
            number += 1
            made = f"{alias[: _LONGEST_ID - 8]}_{number}"
        self._used.add(made)
        return made

    def _unanswered(self) -> RequestError:
        ids = ", ".join(map(repr, self._open))
        return RequestError(f"no result follows the tool call {ids}: each call needs exactly one")


def _dumps(form: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(form)
    except TypeError:  # lone surrogates
        return orjson.dumps(_mended(form))


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return mended(value)
    if isinstance(value, list):
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {key: _mended(item) for key, item in value.items()}
    return value
