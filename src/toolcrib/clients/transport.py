"""How bytes reach a provider: the `Transport` Protocol, and the default one over aiohttp.

A transport knows no wire. What goes wrong on the way is a `ConnectionFailed`, whose text names the
server and never a header, the path's query or the body.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from toolcrib.errors import ConnectionFailed, MissingExtraError

if TYPE_CHECKING:
    import aiohttp

LINGER = 0.2
"""Seconds that a whole reply's connection is given to end, so that it can be used again."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits in seconds, None for none: to connect, between two reads, for everything."""

    connect: float | None = 10.0
    read: float | None = 120.0
    total: float | None = 900.0


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
            except (_library().ClientError, OSError) as error:
                failure = _failure(error, server)
                stale = way.kept and _is_closed(error)
            else:
                return _AiohttpResponse(response, server)
            if not stale:
                raise failure

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        kept = self._sessions.pop(asyncio.get_running_loop(), None)
        if kept is not None:
            await kept.keeper.aclose()

    def _proxy(self, server: str, url: str) -> str | None:
        """To read the environment takes as long as the rest of a request."""
        if server not in self._proxies:
            self._proxies[server] = _proxy(url)
        return self._proxies[server]

    async def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        kept = self._sessions.get(loop)
        if kept is None:
            self._sessions = {old: it for old, it in self._sessions.items() if not old.is_closed()}
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


def _library() -> ModuleType:
    try:
        import aiohttp
    except ImportError:
        raise MissingExtraError("http", "a client over HTTP") from None
    return aiohttp


def _open_session(timeouts: Timeouts) -> aiohttp.ClientSession:
    library = _library()
    limits = library.ClientTimeout(
        total=timeouts.total, sock_connect=timeouts.connect, sock_read=timeouts.read
    )
    traces = library.TraceConfig()
    traces.on_connection_reuseconn.append(_note_kept)
    session: aiohttp.ClientSession = library.ClientSession(
        timeout=limits,
        trace_configs=[traces],
        cookie_jar=library.DummyCookieJar(),
        headers={"User-Agent": "toolcrib"},
    )
    return session


def _proxy(url: str) -> str | None:
    parts = urlsplit(url)
    host = parts.hostname or ""
    import urllib.request  # 15 ms, which `import toolcrib` need not pay

    proxies = urllib.request.getproxies()
    if not proxies or host == "localhost" or host.startswith("127.") or host == "::1":
        return None
    return None if urllib.request.proxy_bypass(host) else proxies.get(parts.scheme)


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
            except (_library().ClientError, OSError) as error:
                failure = _failure(error, self._server)
                break
            if not data:
                return
            yield data
        raise failure

    async def aclose(self, *, whole: bool) -> None:
        if not whole:
            self._response.close()
            return
        content = self._response.content
        if not content.at_eof():
            with contextlib.suppress(Exception):
                async with asyncio.timeout(LINGER):
                    while await content.readany():
                        pass
        self._response.release()


def _is_closed(error: Exception) -> bool:
    """Whether the other side had gone, before it answered anything (RFC 9112, 9.3.1)."""
    gone = (_library().ServerDisconnectedError, _library().ClientOSError, ConnectionError)
    return isinstance(error, gone) and not isinstance(error, TimeoutError)


def _failure(error: Exception, server: str) -> ConnectionFailed:
    """What broke, in words that quote nothing. Raised outside the handler: it carries no context.

    A server that has the request and is slow is not asked again: it may still be at work on it.
    """
    library = _library()
    if isinstance(error, TimeoutError):
        failure = ConnectionFailed(f"{server} did not answer within the time limit")
        failure.retryable = isinstance(error, library.ConnectionTimeoutError)
        return failure
    reasons = (
        (library.ClientConnectorDNSError, "there is no server of that name"),
        (library.ClientConnectorCertificateError, "its certificate is not valid"),
        (library.ClientConnectorError, "no connection"),
        (library.InvalidURL, "this is not a URL that can be requested"),
        (library.ClientPayloadError, "the connection broke in the middle of the reply"),
    )
    reason = next((text for kind, text in reasons if isinstance(error, kind)), None)
    if reason == "no connection" and getattr(error, "os_error", None) is not None:
        reason = f"no connection ({error.os_error.strerror or 'refused'})"  # type: ignore[attr-defined]
    text = reason or "the connection broke before the reply was whole"
    failure = ConnectionFailed(f"{server}: {text}")
    failure.retryable = not isinstance(error, (library.InvalidURL, library.ClientSSLError))
    return failure
