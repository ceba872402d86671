"""What the tests of several clients say: a greeting, a tool with a long name, both ways to ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import pytest

from toolcrib.clients import WireClient
from toolcrib.clients.transport import Outgoing, Response
from toolcrib.errors import ConnectionFailed
from toolcrib.testing import call
from toolcrib.values.message import ChatRequest, Message, Reply, TextPart

HI = ChatRequest((Message.user("Hi"),), id_prefix="r_0_")
LONG = "add_" + "x" * 90  # most take 64 characters
ADD: dict[str, Any] = {
    "name": LONG,
    "description": "Add.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}

Header: TypeAlias = dict[str, str]
OF_THE_WIRE = ("content-type", "accept", "anthropic-version", "user-agent")

both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


async def reply_of(client: WireClient, request: ChatRequest, *, stream: bool) -> Reply:
    if not stream:
        return await client.chat(request)
    parts = [part async for part in client.stream(request)]
    last = parts[-1]
    assert isinstance(last, Reply)
    assert "".join(part.text for part in parts if isinstance(part, TextPart)) == last.text
    return last


class Noting:
    """A transport that keeps what a client would send, and reaches nobody."""

    def __init__(self) -> None:
        self.sent: list[Outgoing] = []

    async def send(self, request: Outgoing) -> Response:
        self.sent.append(request)
        raise ConnectionFailed("nobody is asked")

    async def aclose(self) -> None:
        """Close nothing."""


def asks(client: Callable[..., WireClient], *given: Any, **options: Any) -> tuple[str, Header]:
    """Return the URL that a client asks, and its headers that say who asks."""
    noting = Noting()
    made = client(*given, transport=noting, retries=None, **options)
    with pytest.raises(ConnectionFailed):
        asyncio.run(made.chat(HI))
    (sent,) = noting.sent
    own = {name: text for name, text in sent.headers.items() if name.lower() not in OF_THE_WIRE}
    return sent.url, own


def is_below(url: str, base: str) -> bool:
    """Tell whether a URL is one of a server whose base URL was given, with or without a slash."""
    return url.startswith(f"{base.rstrip('/')}/") and "//" not in url.partition("://")[2]


def answered(request: ChatRequest, reply: Reply) -> ChatRequest:
    results = [Message.tool(made, "x", is_error=n == 1) for n, made in enumerate(reply.tool_calls)]
    return msgspec.structs.replace(request, messages=(*request.messages, reply.message, *results))


def offered(body: dict[str, Any]) -> Any:
    """Two calls of the tool, by the name that the request has for it."""
    name = body["tools"][0]["function"]["name"]
    return ["Let me add. ", call(name, a=1), call(name, a=2)]
