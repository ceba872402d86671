"""How bytes reach a provider: the `Transport` Protocol, and the default one over aiohttp.

A transport knows no wire. What goes wrong on the way is a `ConnectionFailed`, whose text names the
server and never a header, the path's query or the body.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from toolcrib.clients.broken import aiohttp_library, failure_of, is_closed
from toolcrib.clients.proxy import proxy_of
from toolcrib.errors import ClientError, RequestError

if TYPE_CHECKING:
    import aiohttp

CONNECTIONS = 1000
"""The most that are open at once in one event loop, as in OpenAI's own client; more wait their turn."""
LINGER = 0.2
"""Seconds that a whole reply's connection is given to end, so that it can be used again."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits in seconds, None for none: to connect, between two reads, for everything.

    Raises ValueError for one that is not more than zero.
    """

    connect: float | None = 10.0
    read: float | None = 120.0
    total: float | None = 900.0

    def __post_init__(self) -> None:
        if not all(
            limit is None or 0 < limit < math.inf for limit in msgspec.structs.astuple(self)
        ):
            raise ValueError("Timeouts: each is more than 0 seconds, or None for no limit")


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it is sent. Its headers hold the key, so it shows nothing of them."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def server(self) -> str:
        """Scheme, host and port: what an error may name."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def __repr__(self) -> str:
        return f"Outgoing({self.method} {self.server}, {len(self.body)} bytes)"


class Response(Protocol):
    """An answer whose body is still to come. `headers` have lower-case names."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body, as it arrives. Raises ConnectionFailed if it breaks off."""

    async def aclose(self, *, whole: bool) -> None:
        """Be done with it; `whole` says that nothing of interest can follow."""


class Transport(Protocol):
    """What carries requests. One that has keys of its own may name them, in an iterable `secrets`:
    like a client's own, they are taken out of what a provider says in its errors.
    """

    async def send(self, request: Outgoing) -> Response:
        """The beginning of the answer. Raises ConnectionFailed."""

    async def aclose(self) -> None: ...


class AiohttpTransport:
    """Connections are kept per event loop, and closed with it at the latest.

    aiohttp is imported at the first request. Proxies are those of the environment (`HTTPS_PROXY`,
    `NO_PROXY`) when a server is first asked; redirects are not followed, since they would carry the
    key elsewhere. A connection that was kept, and turns out to have been closed meanwhile, is replaced
    without a word.
    """

    def __init__(self, timeouts: Timeouts | None = None) -> None:
        self._timeouts = timeouts or Timeouts()
        self._sessions: dict[asyncio.AbstractEventLoop, _Kept] = {}
        self._proxies: dict[str, str | None] = {}

    async def send(self, request: Outgoing) -> Response:
        session, server = await self._session(), request.server
        proxy = self._proxy(server, request.url)
        while True:
            way = _Way()
            try:
                response = await session.request(
                    request.method,
                    request.url,
                    data=request.body,
                    headers=request.headers,
                    allow_redirects=False,
                    proxy=proxy,
                    trace_request_ctx=way,
                )
            except (aiohttp_library().ClientError, OSError) as error:
                failure: ClientError = failure_of(error, server)
                again = way.kept and is_closed(error) and not session.closed
            except ValueError:
                failure = RequestError(
                    f"{server}: its URL holds a login, and there is a key besides"
                )
                again = False
            else:
                return _AiohttpResponse(response, server)
            if not again:
                failure.retryable = failure.retryable and not session.closed
                raise failure

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        kept = self._sessions.pop(asyncio.get_running_loop(), None)
        if kept is not None:
            await kept.keeper.aclose()

    def _proxy(self, server: str, url: str) -> str | None:
        """To read the environment takes as long as the rest of a request."""
        if server not in self._proxies:
            self._proxies[server] = proxy_of(url)
        return self._proxies[server]

    async def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        kept = self._sessions.get(loop)
        if kept is None or kept.session.closed:
            for old in list(self._sessions):  # at once: another thread may add its own
                if old.is_closed():
                    self._sessions.pop(old, None)
            session = _open_session(self._timeouts)
            kept = self._sessions[loop] = _Kept(session, _keep(session))
            await anext(kept.keeper)
        return kept.session


class _Way:
    """Whether a request went over a connection that was kept from an earlier one."""

    kept = False


async def _note_kept(_session: object, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx.kept = True


class _Kept(NamedTuple):
    session: aiohttp.ClientSession
    keeper: AsyncGenerator[None, None]


async def _keep(session: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    """Holds a session open. A loop that ends closes its generators, and so the session."""
    try:
        yield
    finally:
        await session.close()


def _open_session(timeouts: Timeouts) -> aiohttp.ClientSession:
    library = aiohttp_library()
    limits = library.ClientTimeout(
        total=timeouts.total, sock_connect=timeouts.connect, sock_read=timeouts.read
    )
    traces = library.TraceConfig()
    traces.on_connection_reuseconn.append(_note_kept)
    session: aiohttp.ClientSession = library.ClientSession(
        timeout=limits,
        connector=library.TCPConnector(limit=CONNECTIONS),
        trace_configs=[traces],
        cookie_jar=library.DummyCookieJar(),
        headers={"User-Agent": "toolcrib"},
    )
    return session


class _AiohttpResponse:
    def __init__(self, response: aiohttp.ClientResponse, server: str) -> None:
        self._response = response
        self._server = server
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    async def chunks(self) -> AsyncIterator[bytes]:
        content = self._response.content
        while True:
            try:
                data = await content.readany()
            except (aiohttp_library().ClientError, OSError) as error:
                failure = failure_of(error, self._server)
                break
            if not data:
                return
            yield data
        raise failure

    async def aclose(self, *, whole: bool) -> None:
        content = self._response.content
        try:
            if whole and not content.at_eof():
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(LINGER):
                        while await content.readany():
                            pass
        finally:
            if whole and content.at_eof():
                self._response.release()
            else:
                self._response.close()
