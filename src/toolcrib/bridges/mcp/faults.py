"""Failures that a transport detects itself, and that no server can claim.

Rule: the SDK reports everything to waiting callers as a JSON-RPC error, whether it is the server's
or the transport's. Our own fault has a mark that never leaves this process. The code by which the
SDK says that a connection has closed is removed from everything that a server writes.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from enum import Enum
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR

from toolcrib.values.json import ROUNDED, has_key_twice, read_unrounded

MAX_MESSAGE = 8 * 1_048_576  # bytes of a message, over pipes and HTTP, sent or received
_MARK = secrets.token_hex(16)
CLOSED = "Connection closed"
"""The text with which the SDKs, and our server, answer a request that is under way when the server
ends."""


class RequestFault(Enum):
    """Why a request has no answer of its own."""

    NOT_SENT = "not sent"
    BROKEN = "broken"  # it was sent, and no answer will come
    ENDING = "ending"  # likewise, since the server says that it ends
    SESSION_GONE = "session gone"  # the server has forgotten the session and did nothing
    REFUSED = "refused"  # like `SESSION_GONE`, if a ping is refused as well
    TOO_LARGE = "too large"
    UNREADABLE = "unreadable"
    UNANSWERED = "unanswered"  # the server asks what this client cannot answer


def marked(fault: RequestFault, text: str) -> types.ErrorData:
    """Return the error that reports a fault."""
    return types.ErrorData(code=INTERNAL_ERROR, message=text, data={_MARK: fault.value})


def mark_of(error: MCPError) -> RequestFault | None:
    """Return the fault that one of our transports has found."""
    data: Any = error.data
    value = data.get(_MARK) if isinstance(data, dict) else None
    return None if value is None else RequestFault(value)


def fault_of(error: MCPError) -> RequestFault | None:
    """Return why there is no answer, or None for an error that is the server's answer."""
    if error.code == CONNECTION_CLOSED:  # from the SDK: `clean_message` takes it from servers
        return RequestFault.BROKEN
    return mark_of(error)


def clean_message(message: types.JSONRPCMessage) -> types.JSONRPCMessage:
    """Return a server's message in a form that the SDK may read."""
    if not isinstance(message, types.JSONRPCError) or message.error.code != CONNECTION_CLOSED:
        return message
    reported = message.error
    error = types.ErrorData(code=INTERNAL_ERROR, message=reported.message, data=reported.data)
    if reported.message == CLOSED:
        error = marked(RequestFault.ENDING, "it ended before it answered")
    return types.JSONRPCError(jsonrpc="2.0", id=message.id, error=error)


def ambiguity_of(message: bytes) -> str:
    """Return why a JSON message can be read in two ways, or an empty text.

    The SDK would keep the last of two members with one key, and round a number to an integer; then
    a tool would run with arguments that nobody has written.
    """
    if has_key_twice(message):
        return "an object has a key twice"
    with suppress(ValueError):
        return "" if read_unrounded(message) is None else ROUNDED
    return ""
