"""Reusable connections: aiohttp's, one pool per event loop.

Rule: a request goes out only on a connection on which nothing waits to be read. aiohttp is imported
when the first pool is opened, and only its public interface is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import msgspec

from toolcrib.errors import MissingExtraError

if TYPE_CHECKING:
    import aiohttp

CONNECTIONS = 1000
"""The most connections open at once in one event loop, as in OpenAI's client; others wait."""


def aiohttp_library() -> ModuleType:
    try:
        import aiohttp
    except ImportError:
        raise MissingExtraError("http", "a client over HTTP") from None
    return aiohttp


def is_closed(error: Exception) -> bool:
    """Return whether the other side was gone before it answered anything (RFC 9112, 9.3.1)."""
    library = aiohttp_library()
    error_types = (library.ServerDisconnectedError, library.ClientOSError, ConnectionError)
    return isinstance(error, error_types) and not isinstance(error, TimeoutError)


class PooledSession(msgspec.Struct, frozen=True):
    """An event loop's session, the generator that closes it, and the responses being read."""

    session: aiohttp.ClientSession
    closer: AsyncGenerator[None, None]
    responses: WeakSet[aiohttp.ClientResponse]


class Pool:
    """Sessions made by `open_session`: one per event loop, closed with the loop at the latest."""

    def __init__(self, open_session: Callable[[], aiohttp.ClientSession]) -> None:
        self._open = open_session
        self._sessions: dict[asyncio.AbstractEventLoop, PooledSession] = {}

    async def pooled_session(self) -> PooledSession:
        loop = asyncio.get_running_loop()
        pooled = self._sessions.get(loop)
        if pooled is None or pooled.session.closed:
            for other_loop in list(self._sessions):  # copied: another thread may add its own
                if other_loop.is_closed():
                    self._sessions.pop(other_loop, None)
            session = self._open()
            pooled = self._sessions[loop] = PooledSession(session, closer_of(session), WeakSet())
            await anext(pooled.closer)
        return pooled

    async def aclose(self) -> None:
        """Close the connections of the running event loop. Reads that are still going on fail."""
        pooled = self._sessions.pop(asyncio.get_running_loop(), None)
        if pooled is not None:
            for response in list(pooled.responses):  # aiohttp does not wake a reader of a body
                response.content.set_exception(aiohttp_library().ClientConnectionError())
            await pooled.closer.aclose()


async def closer_of(session: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    """Hold a session open. A loop that ends closes its generators, and so the session."""
    try:
        yield
    finally:
        await session.close()


async def _has_unread_data(connection: Any) -> bool:
    """Return whether unrequested data arrived on a reused connection.

    That would be a second answer, which would be taken for the answer to the next request, of
    whichever conversation. What has arrived is read in the loop's next turn, and known in the one
    after it.
    """
    try:
        for _ in range(2):
            await asyncio.sleep(0)
    except BaseException:
        connection.close()
        raise
    has_unread_data: bool = connection.protocol is None or connection.protocol.should_close
    return has_unread_data


@cache
def connector_class() -> Any:
    """Return a subclass of aiohttp's connector, made once aiohttp is imported."""
    base: Any = aiohttp_library().TCPConnector

    class Connector(base):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(limit=CONNECTIONS, **options)
            self.used = WeakSet[Any]()

        async def connect(self, *args: Any, **kwargs: Any) -> Any:
            connection = await super().connect(*args, **kwargs)
            while connection.protocol in self.used and await _has_unread_data(connection):
                connection.close()
                connection = await super().connect(*args, **kwargs)
            self.used.add(connection.protocol)
            return connection

    return Connector
