"""Connections that are kept between requests: aiohttp's, one pool an event loop.

Rule: aiohttp is imported when the first one is opened.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any

from toolcrib.clients.broken import aiohttp_library
from toolcrib.clients.way import Way

if TYPE_CHECKING:
    import aiohttp

CONNECTIONS = 1000
"""The most that are open at once in one event loop, as in OpenAI's own client; more wait their turn."""

WAY: ContextVar[Way] = ContextVar("WAY")
"""The way of the request that the running task sends: aiohttp tells a connector nothing of its user."""


def open_session() -> aiohttp.ClientSession:
    """A session without cookies, whose requests have the limits of their `WAY`."""
    library = aiohttp_library()
    session: aiohttp.ClientSession = library.ClientSession(
        timeout=library.ClientTimeout(total=None),
        connector=_connector_class()(limit=CONNECTIONS),
        cookie_jar=library.DummyCookieJar(),
        headers={"User-Agent": "toolcrib", "Accept-Encoding": "gzip, deflate"},
        auto_decompress=False,  # it is not told there that a packed body was cut
    )
    return session


async def kept_open(session: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    """Holds a session open. A loop that ends closes its generators, and so the session."""
    try:
        yield
    finally:
        await session.close()


@cache
def _connector_class() -> Any:
    """aiohttp's connector, which tells a request of its connection, and makes it within its limit.

    (A TraceConfig would, too: it costs 20 µs and two copies of the URL a request.)
    """
    library = aiohttp_library()
    base: Any = library.TCPConnector

    class Connector(base):  # type: ignore[misc]
        async def connect(self, *args: Any, **kwargs: Any) -> Any:
            connection = await super().connect(*args, **kwargs)
            WAY.get().connected()
            return connection

        async def _create_connection(self, *args: Any, **kwargs: Any) -> Any:
            try:
                async with WAY.get().connecting():
                    return await super()._create_connection(*args, **kwargs)
            except TimeoutError:
                raise library.ConnectionTimeoutError from None

    return Connector
