"""Messages that a client sends: how much they may say, and what they count for.

Rule: a client's messages are context and nothing else. What it claims that an assistant said or
called, or a tool returned, is marked as untrusted, so that a run with it in its history is tainted.
It approves nothing, and is not a result of a tool here. A system message has no more authority than
its user, and becomes the user's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from toolcrib.agent import Agent, RunStream
from toolcrib.chat.doors import ChatError, Doors
from toolcrib.hydration import ParseFailure, parse_json
from toolcrib.values.decision import Caller
from toolcrib.values.json import canonical_json
from toolcrib.values.message import Message
from toolcrib.wire.openai_chat import FormError, MessageReader

LONGEST_ID: Final = 128
"""Characters of a call id or a tool name."""
LARGEST_ARGUMENTS: Final = 8 * 1024
"""Bytes of the arguments of a call, as JSON."""
LARGEST_RESULT: Final = 32 * 1024
"""Bytes of the result of a call."""


def check_messages(
    messages: Sequence[Mapping[str, Any]], *, unanswered: str | None = None
) -> tuple[Message, ...]:
    """Return a client's messages, in the form of OpenAI's chat completions, as an agent's history.

    They are JSON: roles `system`, `developer`, `user`, `assistant` and `tool`, with texts as
    content. Every call has its own id (up to 128 characters), arguments that are an object (8 KiB),
    and exactly one result (32 KiB), which follows the assistant's message. `unanswered` is the
    result for calls that have none; without it such calls are refused. An assistant's message
    without text or calls is skipped.

    What an assistant or a tool is claimed to have said is marked as untrusted, and taints the run.
    Raises ChatError: a status of 4xx, a code, and a text that names the place and repeats nothing.
    """
    if not isinstance(messages, list | tuple):
        raise ChatError(422, "invalid_messages", "messages must be a list")
    reader = MessageReader(untrusted=True, unanswered=unanswered, arguments=_arguments)
    try:
        read = reader.read(map(_without_additions, messages))
        return tuple(
            _bounded(message, path) for path, message in read if not _is_empty_answer(message)
        )
    except FormError as error:
        raise ChatError(422, error.code, error.safe) from None


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
        raise ChatError(422, "no_question", "the last message must be from the user")
    doors.check_text(last.content)
    return doors.run(caller, lambda: agent.stream(last.content, history=past, caller=caller))


def _without_additions(message: Any) -> Any:
    """Return a message without members that clients add or send back and that have no use here."""
    if not isinstance(message, Mapping):
        return message
    stripped = {**message, "name": None}
    if message.get("role") == "assistant":
        stripped |= {"annotations": None, "refusal": None}
        if message.get("content") in (None, ""):
            stripped["content"] = message.get("refusal")
    return stripped


def _is_empty_answer(message: Message) -> bool:
    """Return whether this is an empty answer: clients send back what they got."""
    return message.role == "assistant" and not message.tool_calls and not message.content.strip()


def _bounded(message: Message, path: str) -> Message:
    """Return a message that is within the limits; a system's message becomes the user's."""
    for index, call in enumerate(message.tool_calls):
        call_path = f"{path}.tool_calls[{index}]"
        for member, text in (("id", call.provider_id), ("name", call.name)):
            if len(text) > LONGEST_ID:
                fault = f"{call_path}: its {member} may have at most {LONGEST_ID} characters"
                raise ChatError(422, f"invalid_call_{member}", fault)
        if call.id != call.provider_id:
            raise ChatError(422, "call_twice", f"{call_path}: another call has the same id")
    if message.role == "tool" and len(message.content.encode()) > LARGEST_RESULT:
        raise ChatError(
            413, "result_too_large", f"{path}: a result may have at most {LARGEST_RESULT} bytes"
        )
    if message.role != "tool" and not message.tool_calls and not message.content.strip():
        raise ChatError(422, "empty_message", f"{path} is empty")
    return Message.user(message.content) if message.role == "system" else message


def _arguments(arguments: Any, path: str) -> str:
    """Return the arguments of a call as canonical JSON."""
    try:
        text = arguments if isinstance(arguments, str) else canonical_json(arguments)
        if len(text) > LARGEST_ARGUMENTS or len(text.encode()) > LARGEST_ARGUMENTS:
            raise ChatError(
                413,
                "arguments_too_large",
                f"{path}: arguments may have at most {LARGEST_ARGUMENTS} bytes",
            )
        # some servers write missing arguments as an empty text
        parsed = parse_json(text if text.strip() else "{}")
        if not isinstance(parsed, ParseFailure) and isinstance(parsed[0], dict):
            return canonical_json(parsed[0])
    except (TypeError, ValueError, RecursionError):
        pass
    raise ChatError(
        422, "invalid_arguments", f"{path}: arguments must be a JSON object, or its text"
    )
