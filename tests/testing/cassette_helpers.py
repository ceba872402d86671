"""What tests of cassettes share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from toolcrib.clients import Outgoing, Transport


class Wired:
    """A transport that remembers the pieces in which answers come, each cut to `size` bytes."""

    def __init__(self, inner: Transport, size: int = 0) -> None:
        self.inner = inner
        self.size = size
        self.pieces: list[list[bytes]] = []

    async def send(self, request: Outgoing) -> Any:
        response: Any = await self.inner.send(request)
        pieces: list[bytes] = []
        self.pieces.append(pieces)
        chunks = response.chunks

        async def noted() -> AsyncIterator[bytes]:
            async for data in chunks():
                size = self.size or len(data)
                for at in range(0, len(data), size):
                    pieces.append(data[at : at + size])
                    yield pieces[-1]

        response.chunks = noted
        return response

    async def aclose(self) -> None:
        await self.inner.aclose()
