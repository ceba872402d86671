"""The messages of OpenAI's chat completions, as messages of this package.

Rule: nothing is dropped, and nothing is guessed. What has no place in a `Message` is an error that says
where it stands. What a model or a tool said elsewhere was not checked here, so it counts as untrusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
_CALL = "a call is {id, type, function: {name, arguments}}"
_SHOWN = 80


class FormError(RequestError):
    """`code` names the rule that a message breaks; `safe` says it and where, and repeats nothing."""

    def __init__(self, told: str, code: str = "", safe: str = "") -> None:
        super().__init__(told)
        self.code = code
        self.safe = safe


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
    return tuple(said for _, said in MessageReader(untrusted=untrusted).read(messages))


def _as_written(arguments: Any, at: str) -> str:
    if not isinstance(arguments, str):
        _refuse("invalid_arguments", at, "it is the text of JSON", f"; {came(arguments)}")
    return encodable(arguments)


@dataclass(kw_only=True)
class MessageReader:
    """Knows which calls of the last assistant's message have no result yet, and all ids so far.

    `unanswered` is the result of calls that have none: without it they are an error. `arguments` reads
    those of a call; it is given their place, too.
    """

    untrusted: bool
    unanswered: str | None = None
    arguments: Callable[[Any, str], str] = _as_written
    _open: dict[str, ToolCall] = field(default_factory=dict, init=False)
    _ids: set[str] = field(default_factory=set, init=False)

    def read(self, messages: Iterable[Any]) -> Iterator[tuple[str, Message]]:
        """Yield each message with its place. Raises FormError."""
        for n, given in enumerate(messages):
            at = f"messages[{n}]"
            said = _members(given, at, "unknown_role")
            role = said.get("role")
            if not isinstance(role, str) or role not in _MEMBERS:
                rule = f"it is one of {', '.join(_MEMBERS)}"
                _refuse("unknown_role", f"{at}.role", rule, f"; {came(role)}")
            if role == "assistant":  # an SDK's reply has empty lists for what it does not say
                said = {"content": ""} | {k: value for k, value in said.items() if value != []}
            rule = f"a message of {role} has {', '.join(_MEMBERS[role][1:])}"
            _members(said, at, "invalid_message", rule, *_MEMBERS[role])
            if role != "tool":
                yield from self._settled(at)
            yield at, self._message(role, said, at)
        yield from self._settled("messages")

    def _message(self, role: str, said: Mapping[str, Any], at: str) -> Message:
        if role == "tool":
            call = self._answered(said, at)
            return self._marked(Message.tool(call, _text(said.get("content"), f"{at}.content")))
        text = _text(said.get("content"), f"{at}.content")
        if role != "assistant":
            return Message.user(text) if role == "user" else Message.system(text)
        place, given = f"{at}.tool_calls", said.get("tool_calls", ())
        if not isinstance(given, list | tuple):
            _refuse("invalid_message", place, "it is a list", f"; {came(given)}")
        calls = tuple(self._call(call, f"{place}[{n}]") for n, call in enumerate(given))
        return self._marked(Message.assistant(text, calls))

    def _marked(self, message: Message) -> Message:
        return msgspec.structs.replace(message, untrusted=self.untrusted)

    def _settled(self, at: str) -> Iterator[tuple[str, Message]]:
        """Yield the results of the calls that have none before what stands here, or refuse them."""
        for known, call in self._open.items():
            if self.unanswered is None:
                _refuse("unanswered_call", at, "no result comes before for the call", f" {known!r}")
            yield at, self._marked(Message.tool(call, self.unanswered, is_error=True))
        self._open = {}

    def _call(self, given: Any, at: str) -> ToolCall:
        said = _members(given, at, "invalid_message", _CALL, "id", "type", "function")
        if said.get("type", "function") != "function":
            _refuse("invalid_message", f"{at}.type", "it is 'function'")
        place, given = f"{at}.function", said.get("function")
        function = _members(given, place, "invalid_message", _CALL, "name", "arguments")
        known = _name(said.get("id"), f"{at}.id", "invalid_call_id")
        if known in self._open:
            _refuse("call_twice", f"{at}.id", "another call of this message has it")
        name = _name(function.get("name"), f"{place}.name", "invalid_call_name")
        arguments = self.arguments(function.get("arguments"), f"{place}.arguments")
        self._open[known] = ToolCall(self._own_id(known), name, arguments, provider_id=known)
        return self._open[known]

    def _own_id(self, known: str) -> str:
        """Return an id that no call before has: some servers count anew in each reply."""
        own, number = known, 1
        while own in self._ids:
            number += 1
            own = f"{known}_{number}"
        self._ids.add(own)
        return own

    def _answered(self, said: Mapping[str, Any], at: str) -> ToolCall:
        known = _name(said.get("tool_call_id"), f"{at}.tool_call_id", "invalid_message")
        call = self._open.pop(known, None)
        if call is None:
            code = "result_twice" if known in self._ids else "orphan_result"
            _refuse(code, f"{at}.tool_call_id", "no unanswered call before it has that id")
        if said.get("name", call.name) != call.name:
            _refuse("invalid_message", f"{at}.name", "the call of that id is of", f" {call.name!r}")
        return call


def _members(given: Any, at: str, code: str, rule: str = "", *names: str) -> dict[str, Any]:
    """Return what an object says: null is nothing. `rule` is that it has `names` only."""
    if not isinstance(given, type) and callable(getattr(given, "model_dump", None)):
        given = given.model_dump()
    if not isinstance(given, Mapping):
        _refuse(code, at, "it is a dictionary", f"; {came(given)}")
    said = {name: value for name, value in given.items() if value is not None}
    for name in said:
        if names and name not in names:
            told = f"{at}.{str(name)[:_SHOWN]}: only {', '.join(names)} are taken here"
            raise FormError(told, code, f"{at}: {rule}")
    return said


def _name(given: Any, at: str, code: str) -> str:
    if not isinstance(given, str) or not given or given != encodable(given):
        _refuse(code, at, "it is a text, of whole characters and not empty", f"; {came(given)}")
    return given


def _text(content: Any, at: str) -> str:
    """Return a text, or the texts of parts `{"type": "text", "text": …}`, one after the other."""
    if isinstance(content, str):
        return encodable(content)
    code, rule = "invalid_content", "it is a text, or a list of parts of type text"
    if not isinstance(content, list | tuple):
        _refuse("invalid_message" if content is None else code, at, rule, f"; {came(content)}")
    texts = []
    for n, given in enumerate(content):
        part = _members(given, f"{at}[{n}]", code, rule, "type", "text")
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            _refuse(code, f"{at}[{n}]", "only parts of text are taken")
        texts.append(part["text"])
    return encodable("".join(texts))


def _refuse(code: str, at: str, rule: str, told: str = "") -> NoReturn:
    raise FormError(f"{at}: {rule}{told}", code, f"{at}: {rule}")
