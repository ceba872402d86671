"""What a transport finds out itself, which no server can say.

Rule: the SDK tells whoever waits for an answer of everything by an error of JSON-RPC, be it the
server's or the transport's. A fault of ours is known by a mark that never leaves this process, and the
code with which the SDK says that a connection has closed is taken from whatever a server writes.
"""

from __future__ import annotations

import secrets
from enum import Enum
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR

_MARK = secrets.token_hex(16)
CLOSED = "Connection closed"
"""What the SDKs, and our server, answer to a request that is on its way when the server itself ends."""


class RequestFault(Enum):
    """Why a request has no answer of its own."""

    NOT_SENT = "not sent"
    BROKEN = "broken"  # it was sent, and no answer comes
    ENDING = "ending"  # likewise: the server says that it ends
    SESSION_GONE = "session gone"  # the server has forgotten the session, and did nothing
    REFUSED = "refused"  # as `SESSION_GONE`, if a ping is refused, too
    TOO_LARGE = "too large"
    UNREADABLE = "unreadable"
    UNANSWERED = "unanswered"  # the server asks back what this client has no answer to


def marked(fault: RequestFault, text: str, *, code: int = INTERNAL_ERROR) -> types.ErrorData:
    """Return the error that tells of a fault."""
    return types.ErrorData(code=code, message=text, data={_MARK: fault.value})


def mark_of(error: MCPError) -> RequestFault | None:
    """Return the fault that a transport of ours has found."""
    data: Any = error.data
    value = data.get(_MARK) if isinstance(data, dict) else None
    return None if value is None else RequestFault(value)


def fault_of(error: MCPError) -> RequestFault | None:
    """Return why there is no answer; None for an error that the server has answered with."""
    if error.code == CONNECTION_CLOSED:  # no server can say that: `heard` is between
        return RequestFault.BROKEN
    return mark_of(error)


def heard(message: types.JSONRPCMessage) -> types.JSONRPCMessage:
    """Return a message of a server as the SDK may read it."""
    if not isinstance(message, types.JSONRPCError) or message.error.code != CONNECTION_CLOSED:
        return message
    said = message.error
    error = types.ErrorData(code=INTERNAL_ERROR, message=said.message, data=said.data)
    if said.message == CLOSED:
        error = marked(RequestFault.ENDING, "it ended before it answered")
    return types.JSONRPCError(jsonrpc="2.0", id=message.id, error=error)
