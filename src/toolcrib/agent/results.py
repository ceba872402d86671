"""What the model is told of its calls: results and errors as the content of tool messages."""

from __future__ import annotations

import msgspec
import orjson

from toolcrib.errors import ErrorCode
from toolcrib.values.call import ToolCall
from toolcrib.values.json import JsonObject, JsonValue
from toolcrib.values.record import CallError, Failed, Outcome

_MALFORMED = (ErrorCode.INVALID_JSON, ErrorCode.TOO_LARGE, ErrorCode.TRUNCATED)


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
    if any(detail.path for detail in error.details):
        body["details"] = [{"path": d.path, "message": d.message} for d in error.details]
    return orjson.dumps({"error": body}).decode()


def readable_call(call: ToolCall, outcome: Outcome | None) -> ToolCall:
    """The call as history keeps it: arguments that are no JSON are not sent back to a provider."""
    malformed = isinstance(outcome, Failed) and outcome.error.code in _MALFORMED
    if malformed or not call.complete:
        return msgspec.structs.replace(call, arguments="{}", complete=True)
    return call
