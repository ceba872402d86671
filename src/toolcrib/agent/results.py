"""What the model is told of its calls: results and errors as the content of tool messages."""

from __future__ import annotations

from typing import assert_never

import msgspec
import orjson

from toolcrib.errors import ErrorCode
from toolcrib.hydrate import ParseFailure, parse_arguments
from toolcrib.values.call import ToolCall
from toolcrib.values.json import JsonObject, JsonValue, encodable
from toolcrib.values.message import Message
from toolcrib.values.record import CallError, Completed, Failed, Outcome, Waiting

_MALFORMED = (ErrorCode.INVALID_JSON, ErrorCode.TOO_LARGE, ErrorCode.TRUNCATED)
_UNREAD = (ErrorCode.UNKNOWN_TOOL, ErrorCode.NOT_OFFERED)


def content_of(view: JsonValue) -> str:
    """Text is sent as it is, everything else as JSON."""
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
    """The call as history keeps it: arguments that are no JSON are not sent back to a provider."""
    code = outcome.error.code if isinstance(outcome, Failed) else None
    malformed = code in _MALFORMED or (
        code in _UNREAD and isinstance(parse_arguments(call.arguments), ParseFailure)
    )
    if malformed or not call.complete:
        call = msgspec.structs.replace(call, arguments="{}", complete=True, fault=None)
    return _encodable(call) if code in _UNREAD else call


def _encodable(call: ToolCall) -> ToolCall:
    """A name that a model made up may hold what no file and no provider can: lone surrogates."""
    return msgspec.structs.replace(call, name=encodable(call.name))


def result_message(
    call: ToolCall, outcome: Outcome | None, error: CallError | None
) -> Message | None:
    """The message that answers a call, or None while it waits."""
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
    """The error as it stands; of a call that was cancelled when it had begun, that nobody knows what
    it did: a model that reads `cancelled` would make it once more."""
    begun = failed.record.idempotency_key != ""
    if failed.error.code is not ErrorCode.CANCELLED or not begun:
        return failed.error
    return CallError.of(
        ErrorCode.CANCELLED, "The call was cancelled while it ran: what it did is not known."
    )


def _with(notice: str, content: str) -> str:
    """What the model has to know first; then what it asked for."""
    return f"{notice}\n\n{content}" if notice else content
