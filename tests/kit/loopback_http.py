"""A real HTTP server on this machine that answers whatever bytes a test wrote down."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

Answering: TypeAlias = Callable[[str], bytes | None]

PRIVATE = ("127.0.0.0/8",)


def answer(
    body: bytes = b"{}", *, status: int = 200, headers: str = "", length: int | None = None
) -> bytes:
    """A whole answer; `length` is what it says of its body, if not the truth. `headers` end in CRLF."""
    said = len(body) if length is None else length
    head = f"HTTP/1.1 {status} Said\r\nContent-Length: {said}\r\n{headers}\r\n"
    return head.encode() + body


@asynccontextmanager
async def serving(
    answering: Answering, tls: ssl.SSLContext | None = None, heads: list[str] | None = None
) -> AsyncIterator[str]:
    """The server's origin. `answering` takes a request's target; None is never an answer. `heads` are
    given the heads of all requests."""
    handling: set[asyncio.Task[None] | None] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handling.add(asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            if heads is not None:
                heads.append(head)
            said = answering(head.split(" ")[1])
            if said is None:
                await reader.read()  # until the other side is gone
            else:
                writer.write(said)
                await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    try:
        scheme = "http" if tls is None else "https"
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.gather(*filter(None, handling))
        await server.wait_closed()
