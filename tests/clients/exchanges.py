"""What the tests of several clients say: a greeting, a tool with a long name, both ways to ask."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from toolcrib.clients import WireClient
from toolcrib.testing import call
from toolcrib.values.message import ChatRequest, Message, Reply, TextPart

HI = ChatRequest((Message.user("Hi"),), id_prefix="r_0_")
LONG = "add_" + "x" * 90  # most take 64 characters
ADD: dict[str, Any] = {
    "name": LONG,
    "description": "Add.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}

both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


async def reply_of(client: WireClient, request: ChatRequest, *, stream: bool) -> Reply:
    if not stream:
        return await client.chat(request)
    parts = [part async for part in client.stream(request)]
    last = parts[-1]
    assert isinstance(last, Reply)
    assert "".join(part.text for part in parts if isinstance(part, TextPart)) == last.text
    return last


def answered(request: ChatRequest, reply: Reply) -> ChatRequest:
    results = [Message.tool(made, "x", is_error=n == 1) for n, made in enumerate(reply.tool_calls)]
    return msgspec.structs.replace(request, messages=(*request.messages, reply.message, *results))


def offered(body: dict[str, Any]) -> Any:
    """Two calls of the tool, by the name that the request has for it."""
    name = body["tools"][0]["function"]["name"]
    return ["Let me add. ", call(name, a=1), call(name, a=2)]
