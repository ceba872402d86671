"""Checks what a client returns as its reply, whoever wrote the client.

Rule: no call is whole unless the reply is, and a client that returns anything but a reply has
failed. A CancelledError raised by the client itself is such a failure: only whoever cancels the
run's task ends the run by that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from toolcrib.errors import ClientError
from toolcrib.threads import is_stop
from toolcrib.values.message import ChatRequest, Reply
from toolcrib.values.typed import check_type

WHOLE = ("tool_calls", "stop")
"""How whole replies end. A typed answer is read only from these: half a reply may be JSON, too."""


async def replied(
    ask: Callable[[ChatRequest], Awaitable[Reply]],
    request: ChatRequest,
    cancels: int,
    who: str = "the client",
) -> Reply:
    """Return the reply of a client, in a task with `cancels` earlier cancellation requests.

    Raises what the client raises, and ClientError and TypeError for something that is not an
    assistant's reply.
    """
    try:
        reply = await ask(request)
    except asyncio.CancelledError as raised:
        if is_stop(raised, cancels):
            raise
        raise ClientError(f"{who} raised a CancelledError that nobody had asked for") from None
    check_type(f"the reply of {who}", reply, Reply, "a Reply")
    if reply.message.role != "assistant":
        raise ClientError(f"{who} gave a reply whose message is not the assistant's")
    if reply.finish in WHOLE or not reply.tool_calls:
        return reply
    cut = tuple(msgspec.structs.replace(call, complete=False) for call in reply.tool_calls)
    message = msgspec.structs.replace(reply.message, tool_calls=cut)
    return msgspec.structs.replace(reply, message=message)
