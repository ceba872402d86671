"""Messages that a client sends: a strict form, and what they may count for.

Rule: a client's messages are context and nothing else. What it says that an assistant said or called,
or a tool gave, is marked as untrusted, so that a run with it in its history is tainted; it approves
nothing, and is no result of ours. A system message says no more than its user, and becomes the user's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, assert_never

import msgspec

from toolcrib.agent import Agent, RunStream
from toolcrib.chat.doors import ChatError, Doors
from toolcrib.hydration import ParseFailure, parse_json
from toolcrib.values.call import ToolCall
from toolcrib.values.decision import Caller
from toolcrib.values.json import canonical_json, encodable
from toolcrib.values.message import Message

LONGEST_ID: Final = 128
"""Characters of the id of a call, and of the name of a tool."""
LARGEST_ARGUMENTS: Final = 8 * 1024
"""Bytes of the arguments of a call, as JSON."""
LARGEST_RESULT: Final = 32 * 1024
"""Bytes of the result of a call."""


class PostedText(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str


Content: TypeAlias = str | list[PostedText]


class PostedFunction(msgspec.Struct, forbid_unknown_fields=True):
    """`arguments` are an object, or its text."""

    name: str
    arguments: str | dict[str, Any]


class PostedCall(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    function: PostedFunction
    type: Literal["function"] = "function"


class _Posted(msgspec.Struct, forbid_unknown_fields=True, tag_field="role"):
    pass


class PostedSystem(_Posted, tag="system"):
    content: Content
    name: str | None = None


class PostedDeveloper(_Posted, tag="developer"):
    content: Content
    name: str | None = None


class PostedUser(_Posted, tag="user"):
    content: Content
    name: str | None = None


class PostedAssistant(_Posted, tag="assistant"):
    """The members without a use here are those of a reply, which clients send back as it came."""

    content: Content | None = None
    tool_calls: list[PostedCall] | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None


class PostedTool(_Posted, tag="tool"):
    """The one result of one call."""

    tool_call_id: str
    content: Content
    name: str | None = None


PostedMessage: TypeAlias = (
    PostedSystem | PostedDeveloper | PostedUser | PostedAssistant | PostedTool
)


def check_messages(
    messages: Sequence[Mapping[str, Any]], *, unanswered: str | None = None
) -> tuple[Message, ...]:
    """Return a client's messages, in the form of OpenAI's chat completions, as a history for an agent.

    They are JSON: roles `system`, `developer`, `user`, `assistant` and `tool`, with texts for content.
    Every call has an id of its own (up to 128 characters), arguments that are an object (8 KiB), and
    exactly one result (32 KiB), which follows the assistant's message; `unanswered` is the result of
    calls that have none, which are refused without it.

    What an assistant or a tool is said to have said is marked as untrusted, and taints the run. Raises
    ChatError: a status of 4xx, a code, and a text that names the place and repeats nothing.
    """
    return _Checked(unanswered).taken(_read(messages))


def begin(
    doors: Doors,
    agent: Agent,
    caller: Caller,
    messages: Sequence[Mapping[str, Any]],
    *,
    unanswered: str | None = None,
) -> RunStream:
    """Begin a run with what a client's last message asks; the others are its history.

    Raises ChatError, as `check_messages` and the doors do.
    """
    *past, last = check_messages(messages, unanswered=unanswered) or (Message.assistant(),)
    if last.role != "user":
        raise ChatError(422, "no_question", "the last message is what a user asks")
    doors.check_text(last.content)
    return doors.run(caller, lambda: agent.stream(last.content, history=past, caller=caller))


def _read(messages: object) -> list[PostedMessage]:
    if not isinstance(messages, list | tuple):
        raise ChatError(422, "invalid_messages", "messages is a list")
    read = []
    for at, message in enumerate(messages):
        where = f"messages[{at}]"
        try:
            read.append(msgspec.convert(message, type=PostedMessage))
        except msgspec.ValidationError as error:
            _, at_all, place = str(error).rpartition(" - at `$")
            raise _misformed(where + (place.rstrip("`") if at_all else ""), message) from None
        except (UnicodeError, RecursionError):  # of names with half a character; of cycles
            raise ChatError(422, "invalid_message", f"{where} is not JSON") from None
    return read


def _misformed(place: str, message: object) -> ChatError:
    """Return the refusal of a message that is of no form; `place` is where, as a path."""
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(role, str) or role not in _TEXTS:
        return ChatError(422, "unknown_role", f"{place}: a role is one of {', '.join(_TEXTS)}")
    if ".content" in place:
        return ChatError(422, "invalid_content", f"{place}: the content of a {role} is {_TEXT}")
    return ChatError(422, "invalid_message", f"{place}: a message of {role} has {_TEXTS[role]}")


_TEXT = "a text, or a list of parts of type text"
_TEXTS: Final[Mapping[str, str]] = {
    "system": "content",
    "developer": "content",
    "user": "content",
    "assistant": "content, tool_calls or both; a call is {id, type, function: {name, arguments}}",
    "tool": "tool_call_id and content",
}


class _Checked:
    """Messages one after another, and the calls that have no result yet."""

    def __init__(self, unanswered: str | None) -> None:
        self._unanswered = unanswered
        self._made: list[Message] = []
        self._ids: set[str] = set()
        self._open: dict[str, ToolCall] = {}

    def taken(self, messages: Iterable[PostedMessage]) -> tuple[Message, ...]:
        for at, message in enumerate(messages):
            self._take(message, f"messages[{at}]")
        self._settle("the end")
        return tuple(self._made)

    def _take(self, message: PostedMessage, where: str) -> None:
        match message:
            case PostedTool():
                self._made.append(self._result(message, where))
            case PostedAssistant():
                self._settle(where)
                self._made.append(self._assistant(message, where))
            case PostedSystem() | PostedDeveloper() | PostedUser():
                self._settle(where)
                self._made.append(Message.user(_filled(_text(message.content), where)))
            case _:
                assert_never(message)

    def _assistant(self, message: PostedAssistant, where: str) -> Message:
        text = _text(message.content or message.refusal or "")
        calls = tuple(
            self._call(call, f"{where}.tool_calls[{at}]")
            for at, call in enumerate(message.tool_calls or ())
        )
        self._open = {call.id: call for call in calls}
        return Message("assistant", text if calls else _filled(text, where), calls, untrusted=True)

    def _call(self, call: PostedCall, where: str) -> ToolCall:
        for name, text in (("id", call.id), ("function.name", call.function.name)):
            if not 0 < len(text) <= LONGEST_ID or text != encodable(text):
                told = f"{where}.{name} has 1 to {LONGEST_ID} characters"
                raise ChatError(422, f"invalid_call_{name.rpartition('.')[2]}", told)
        if call.id in self._ids:
            raise ChatError(422, "call_twice", f"{where}: another call has its id")
        self._ids.add(call.id)
        arguments = _arguments(call.function.arguments, f"{where}.function.arguments")
        return ToolCall(call.id, call.function.name, arguments)

    def _result(self, message: PostedTool, where: str) -> Message:
        call = self._open.pop(message.tool_call_id, None)
        if call is None:
            code = "result_twice" if message.tool_call_id in self._ids else "orphan_result"
            told = f"{where}: it is no result that a call of the message before waits for"
            raise ChatError(422, code, told)
        text = _text(message.content)
        if len(text.encode()) > LARGEST_RESULT:
            told = f"{where}: a result has at most {LARGEST_RESULT} bytes"
            raise ChatError(413, "result_too_large", told)
        return msgspec.structs.replace(Message.tool(call, text), untrusted=True)

    def _settle(self, where: str) -> None:
        """Give the calls that have no result the one that says so, or refuse them."""
        if self._open and self._unanswered is None:
            told = f"{where}: a call of the assistant's message before it has no result"
            raise ChatError(422, "unanswered_call", told)
        for call in self._open.values():
            result = Message.tool(call, self._unanswered or "", is_error=True)
            self._made.append(msgspec.structs.replace(result, untrusted=True))
        self._open = {}


def _text(content: Content) -> str:
    parts = [content] if isinstance(content, str) else [part.text for part in content]
    return encodable("".join(parts))


def _filled(text: str, where: str) -> str:
    if not text.strip():
        raise ChatError(422, "empty_message", f"{where} says nothing")
    return text


def _arguments(given: str | dict[str, Any], where: str) -> str:
    """Return the arguments of a call as canonical JSON."""
    try:
        text = given if isinstance(given, str) else canonical_json(given)
        if len(text) > LARGEST_ARGUMENTS or len(text.encode()) > LARGEST_ARGUMENTS:
            told = f"{where} have at most {LARGEST_ARGUMENTS} bytes"
            raise ChatError(413, "arguments_too_large", told)
        read = parse_json(text if text.strip() else "{}")  # as some servers write no arguments
        if not isinstance(read, ParseFailure) and isinstance(read[0], dict):
            return canonical_json(read[0])
    except (TypeError, ValueError, RecursionError):
        pass
    raise ChatError(422, "invalid_arguments", f"{where} are a JSON object, or its text")
