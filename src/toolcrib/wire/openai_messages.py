"""The messages of a loop that was written with OpenAI's SDK, as messages of this package.

Rule: nothing is dropped, and nothing is guessed. What has no place in a `Message` is an error that says
where it stands. What a model or a tool said elsewhere was not checked here, so it counts as untrusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import msgspec

from toolcrib.errors import RequestError
from toolcrib.values.call import ToolCall
from toolcrib.values.json import encodable
from toolcrib.values.message import Message
from toolcrib.values.typed import came

_MEMBERS = {
    "system": ("role", "content"),
    "developer": ("role", "content"),
    "user": ("role", "content"),
    "assistant": ("role", "content", "tool_calls"),
    "tool": ("role", "content", "tool_call_id", "name"),
}
_SHOWN = 80


def decode_messages(messages: Iterable[Any], *, untrusted: bool = True) -> tuple[Message, ...]:
    """Return the messages of an OpenAI chat request, as `history=` and sessions take them.

    Each is a dictionary `{role, content, …}` or the SDK's own object. Roles, texts, calls and their
    results are taken. A run that goes on with them counts as one that has read untrusted content,
    because of what assistants and tools say in them; `untrusted=False` says that all of it came from
    your own model and tools. What users and systems say counts as said by you: take none from others.

    Raises RequestError, which says where, for anything else, and for calls without exactly one result.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise TypeError(f"messages is a list of dictionaries, as OpenAI has them; {came(messages)}")
    reader = _MessageReader(untrusted)
    taken = tuple(reader.take(given, f"messages[{n}]") for n, given in enumerate(messages))
    reader.check_answered("messages")
    return taken


class _MessageReader:
    """Knows which calls of the last assistant's message have no result yet, and all ids so far."""

    def __init__(self, untrusted: bool) -> None:
        self._untrusted = untrusted
        self._open: dict[str, ToolCall] = {}
        self._ids: set[str] = set()

    def take(self, given: Any, at: str) -> Message:
        given = _members(given, at)
        role = given.get("role")
        if not isinstance(role, str) or role not in _MEMBERS:
            _refuse(f"{at}.role", f"it is one of {', '.join(_MEMBERS)}", role)
        _check_members(given, at, *_MEMBERS[role])
        if role == "tool":
            return self._result(given, at)
        self.check_answered(at)
        if role == "user":
            return Message.user(_text(given.get("content"), f"{at}.content"))
        if role != "assistant":
            return Message.system(_text(given.get("content"), f"{at}.content"))
        calls = self._calls(given.get("tool_calls", []), f"{at}.tool_calls")
        content = "" if calls and "content" not in given else given.get("content")
        said = Message.assistant(_text(content, f"{at}.content"), calls)
        return msgspec.structs.replace(said, untrusted=self._untrusted)

    def check_answered(self, at: str) -> None:
        """Raise RequestError if a call has no result before what stands here."""
        if self._open:
            raise RequestError(f"{at}: no result comes before for the call {min(self._open)!r}")

    def _calls(self, given: Any, at: str) -> tuple[ToolCall, ...]:
        if not isinstance(given, list | tuple):
            _refuse(at, "it is a list", given)
        return tuple(self._call(call, f"{at}[{n}]") for n, call in enumerate(given))

    def _call(self, given: Any, at: str) -> ToolCall:
        given = _only(given, at, "id", "type", "function")
        if given.get("type", "function") != "function":
            _refuse(f"{at}.type", "it is 'function'", given["type"])
        function = _only(given.get("function"), f"{at}.function", "name", "arguments")
        known = _name(given.get("id"), f"{at}.id")
        if known in self._open:
            raise RequestError(f"{at}.id: another call of this message has it")
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            _refuse(f"{at}.function.arguments", "it is the text of JSON", arguments)
        name = _name(function.get("name"), f"{at}.function.name")
        call = ToolCall(self._own_id(known), name, encodable(arguments), provider_id=known)
        self._open[known] = call
        return call

    def _own_id(self, known: str) -> str:
        """Return an id that no call before has: some servers count anew in each reply."""
        own, number = known, 1
        while own in self._ids:
            number += 1
            own = f"{known}_{number}"
        self._ids.add(own)
        return own

    def _result(self, given: Mapping[str, Any], at: str) -> Message:
        known = _name(given.get("tool_call_id"), f"{at}.tool_call_id")
        call = self._open.pop(known, None)
        if call is None:
            raise RequestError(f"{at}.tool_call_id: no unanswered call before it has that id")
        if given.get("name", call.name) != call.name:
            raise RequestError(f"{at}.name: the call of that id is of {call.name!r}")
        result = Message.tool(call, _text(given.get("content"), f"{at}.content"))
        return msgspec.structs.replace(result, untrusted=self._untrusted)


def _members(given: Any, at: str) -> dict[str, Any]:
    """Return what a message, or a part of one, says: what is null or an empty list says nothing."""
    if not isinstance(given, type) and callable(getattr(given, "model_dump", None)):
        given = given.model_dump()
    if not isinstance(given, Mapping):
        _refuse(at, "it is a dictionary", given)
    return {
        name: value
        for name, value in given.items()
        if value is not None and not (isinstance(value, list) and not value)
    }


def _only(given: Any, at: str, *names: str) -> dict[str, Any]:
    said = _members(given, at)
    _check_members(said, at, *names)
    return said


def _check_members(said: Mapping[str, Any], at: str, *names: str) -> None:
    for name in said:
        if name not in names:
            raise RequestError(f"{at}.{str(name)[:_SHOWN]}: only {', '.join(names)} are taken here")


def _name(given: Any, at: str) -> str:
    if not isinstance(given, str) or not given:
        _refuse(at, "it is a text, and not empty", given)
    return encodable(given)


def _text(content: Any, at: str) -> str:
    """Return a text, or the texts of parts `{"type": "text", "text": …}`, one after the other."""
    if isinstance(content, str):
        return encodable(content)
    if not isinstance(content, list | tuple):
        _refuse(at, "it is a text, or a list of parts of text", content)
    texts = []
    for n, given in enumerate(content):
        part = _only(given, f"{at}[{n}]", "type", "text")
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise RequestError(f"{at}[{n}]: only parts of text are taken")
        texts.append(part["text"])
    return encodable("".join(texts))


def _refuse(at: str, wanted: str, given: Any) -> NoReturn:
    raise RequestError(f"{at}: {wanted}; {came(given)}")
