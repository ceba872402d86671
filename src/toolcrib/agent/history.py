"""The messages of a run, kept such that every call has an id of its own and at most one result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

import msgspec
import orjson

from toolcrib.errors import ErrorCode
from toolcrib.hydration import ParseFailure, parse_arguments
from toolcrib.values.call import ToolCall
from toolcrib.values.json import JsonObject, JsonValue, encodable
from toolcrib.values.message import Message, Reply
from toolcrib.values.record import CallError, Completed, Failed, Outcome, Waiting

# What the model reads of its calls: results and errors as the content of tool messages.

_MALFORMED = (ErrorCode.INVALID_JSON, ErrorCode.TOO_LARGE, ErrorCode.TRUNCATED)
_UNREAD = (ErrorCode.UNKNOWN_TOOL, ErrorCode.NOT_OFFERED)


def content_of(view: JsonValue) -> str:
    """Return the text itself, everything else as JSON."""
    if isinstance(view, str):
        return view
    try:
        return orjson.dumps(view).decode()
    except TypeError:  # an integer beyond 64 bits
        return msgspec.json.encode(view).decode()


def error_content(error: CallError) -> str:
    """Code, message and the places: enough to correct a call, and nothing of what was sent."""
    body: JsonObject = {"code": str(error.code), "message": error.message}
    if len(error.details) > 1 or any(detail.path for detail in error.details):
        body["details"] = [{"path": d.path, "message": d.message} for d in error.details]
    return orjson.dumps({"error": body}).decode()


def readable_call(call: ToolCall, outcome: Outcome | None) -> ToolCall:
    """Return the call as history keeps it: arguments that are no JSON are
    not sent back to a provider."""
    code = outcome.error.code if isinstance(outcome, Failed) else None
    malformed = code in _MALFORMED or (
        code in _UNREAD and isinstance(parse_arguments(call.arguments), ParseFailure)
    )
    if malformed or not call.complete:
        call = msgspec.structs.replace(call, arguments="{}", complete=True, fault=None)
    return _encodable(call) if code in _UNREAD else call


def _encodable(call: ToolCall) -> ToolCall:
    """Replace lone surrogates, which no file or provider can hold, in a name that a model made up."""
    return msgspec.structs.replace(call, name=encodable(call.name))


def result_message(
    call: ToolCall, outcome: Outcome | None, error: CallError | None
) -> Message | None:
    """Return the message that answers a call, or None while it waits."""
    match outcome:
        case Completed():
            return Message.tool(call, _with(outcome.notice, content_of(outcome.model)))
        case Failed():
            content = _with(outcome.notice, error_content(_known(outcome)))
            return Message.tool(call, content, is_error=True)
        case Waiting() | None:
            return Message.tool(call, error_content(error), is_error=True) if error else None
        case _:
            assert_never(outcome)


def _known(failed: Failed) -> CallError:
    """Return the error; of a call that was cancelled when it had begun, that nobody knows what
    it did: a model that reads `cancelled` would make it once more."""
    begun = failed.record.idempotency_key != ""
    if failed.error.code is not ErrorCode.CANCELLED or not begun:
        return failed.error
    return CallError.of(
        ErrorCode.CANCELLED, "The call was cancelled while it ran: what it did is not known."
    )


def _with(notice: str, content: str) -> str:
    """Return what the model has to know first; then what it asked for."""
    return f"{notice}\n\n{content}" if notice else content


class ConversationHistory:
    """Messages in order; the last assistant's message and what follows it is the current turn.

    `text_of` gives the arguments of a call as they were judged, which may be repaired ones.
    """

    def __init__(self, messages: Iterable[Message], text_of: Callable[[ToolCall], str]) -> None:
        self._messages = list(messages)
        self._text_of = text_of
        self._ids: set[str] = set()
        for message in self._messages:
            self._ids.update(call.id for call in message.tool_calls)

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)

    @property
    def text(self) -> str:
        """The text of the last message, if it is the assistant's."""
        last = self._messages[-1] if self._messages else None
        return last.content if last is not None and last.role == "assistant" else ""

    def append(self, message: Message, *, untrusted: bool = False) -> None:
        """`untrusted` says that the run has read untrusted content."""
        if untrusted:
            message = msgspec.structs.replace(message, untrusted=True)
        self._messages.append(message)
        self._ids.update(call.id for call in message.tool_calls)

    def with_new_ids(self, reply: Reply, prefix: str) -> Reply:
        """Give each call a new id where a client repeats one, or results would be mixed up."""
        calls = reply.tool_calls
        if not calls or len({c.id for c in calls} - self._ids) == len(calls):
            return reply
        renamed = tuple(
            msgspec.structs.replace(call, id=f"{prefix}{at}") for at, call in enumerate(calls)
        )
        message = msgspec.structs.replace(reply.message, tool_calls=renamed)
        return msgspec.structs.replace(reply, message=message)

    def unanswered(self) -> list[ToolCall]:
        """Return the calls of this turn that have no result yet."""
        position = self._last_assistant()
        if position < 0:
            return []
        answered = {message.call_id for message in self._messages[position + 1 :]}
        return [c for c in self._messages[position].tool_calls if c.id not in answered]

    def settle(
        self,
        outcomes: Mapping[str, Outcome],
        error: CallError | None = None,
        *,
        untrusted: bool = False,
    ) -> None:
        """Add the results that there are, in call order, and `error` for the calls that have none.

        A call that waited when its run ended has not begun, whatever `error` says of the others.
        `untrusted` says that the run has read untrusted content.
        """
        position = self._last_assistant()
        asked = self._messages[position]
        given = {message.call_id: message for message in self._messages[position + 1 :]}
        results: list[Message] = []
        calls = tuple(self._readable(call, outcomes.get(call.id)) for call in asked.tool_calls)
        for call in calls:
            outcome = outcomes.get(call.id)
            unknown = error is not None and error.code is ErrorCode.OUTCOME_UNKNOWN
            waited = unknown and isinstance(outcome, Waiting)
            told = CallError.of(ErrorCode.CANCELLED) if waited else error
            message = given.get(call.id) or result_message(call, outcome, told)
            if message is not None and untrusted:
                message = msgspec.structs.replace(message, untrusted=True)
            results += [] if message is None else [message]
        self._messages[position:] = [msgspec.structs.replace(asked, tool_calls=calls), *results]

    def _readable(self, call: ToolCall, outcome: Outcome | None) -> ToolCall:
        """While a call waits it stays as it was sent: it will be judged again."""
        if outcome is not None and not isinstance(outcome, Waiting):
            call = msgspec.structs.replace(call, arguments=self._text_of(call))
        return readable_call(call, outcome)

    def _last_assistant(self) -> int:
        """Return where the assistant's message is that this turn is about, or -1."""
        position = len(self._messages) - 1
        while position >= 0 and self._messages[position].role == "tool":
            position -= 1
        return position if position >= 0 and self._messages[position].role == "assistant" else -1
