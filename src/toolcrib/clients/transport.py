"""How bytes reach a provider: the `Transport` Protocol, and the default transport over aiohttp.

A transport knows nothing about wires. Its failures are a `ConnectionFailed`, whose text names the
server and never a header, the path's query or the body.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from urllib.parse import urlsplit

import msgspec

from toolcrib.clients.server import proxy_of, remembered, secrets_of
from toolcrib.connections import Pool, PooledSession, aiohttp_library, connector_class, is_closed
from toolcrib.errors import (
    AuthenticationError,
    ClientError,
    ConnectionFailed,
    MissingExtraError,
    RequestError,
)
from toolcrib.threads import cancel_requests
from toolcrib.values.json import Redacted
from toolcrib.values.typed import HandWritten, names_wrong_types

if TYPE_CHECKING:
    import aiohttp

# How long each step of a request may take.
#
# Rule: every wait has a limit, unless the user asked for none. A request has one `asyncio.timeout`,
# which is moved from step to step. Waiting for a free connection counts towards `total` only, making
# one towards `connect`, and each piece of the answer towards `read`. (aiohttp's own limits are three
# timers for each request, moved with each piece of a reply, though most pieces have arrived already
# when they are asked for.)


class Timeouts(HandWritten, frozen=True, kw_only=True):
    """Time limits in seconds, with None for no limit: to connect, between two reads, and in total.

    The total covers one request with all its attempts and the waits between them. Connecting covers
    all steps from the server's name to TLS, also through a proxy. Raises ValueError for a limit
    that is not greater than zero.
    """

    connect: float | None = 10.0
    read: float | None = 120.0
    total: float | None = 900.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(
            limit is None or 0 < limit < math.inf for limit in msgspec.structs.astuple(self)
        ):
            raise ValueError("Timeouts: each must be more than 0 seconds, or None for no limit")


class RequestDeadline:
    """Moves the time limit of one request from step to step, as aiohttp's events report them.

    `is_new_connection` says whether a connection was made for this request. The server may have
    closed a reused connection while it was idle.
    """

    def __init__(self, timeouts: Timeouts, until: float | None = None) -> None:
        self._now = asyncio.get_running_loop().time
        self._connect = math.inf if timeouts.connect is None else timeouts.connect
        self._read = math.inf if timeouts.read is None else timeouts.read
        self._end = math.inf if timeouts.total is None else self._now() + timeouts.total
        self._end = self._end if until is None else min(self._end, until)
        self._is_connecting = False
        self.is_new_connection = False
        self.limit = asyncio.timeout_at(_finite(self._end))

    @property
    def missed_connecting(self) -> bool:
        """Whether connecting took too long, so that the server never got the request."""
        return self._is_connecting and self.limit.expired()

    def on_connecting(self) -> None:
        """Start the limit on making a connection."""
        self.is_new_connection = True
        connect_by = self._now() + self._connect
        self._is_connecting = connect_by < self._end
        self._move(connect_by)

    def on_connected(self) -> None:
        """Start the limit on the beginning of the answer."""
        self._is_connecting = False
        self._move(self._now() + self._read)

    def reading(self) -> asyncio.Timeout:
        """Return the limit on the next piece of the answer."""
        return asyncio.timeout_at(_finite(min(self._now() + self._read, self._end)))

    def _move(self, deadline: float) -> None:
        limit = _finite(min(deadline, self._end))
        if limit != self.limit.when():
            self.limit.reschedule(limit)


def _finite(deadline: float) -> float | None:
    return None if deadline == math.inf else deadline


# aiohttp's errors about connections, in words that quote nothing of the request.


def failure_of(error: Exception, server: str) -> ConnectionFailed:
    """Return an error that says what broke and quotes nothing. Raise it outside of the handler.

    A slow server that has got the request is not asked again, since it may still be working on it.
    """
    library = aiohttp_library()
    if isinstance(error, TimeoutError):
        failure = ConnectionFailed(f"{server} did not answer within the time limit")
        failure.retryable = isinstance(error, library.ConnectionTimeoutError)
        return failure
    reasons = (
        (library.ClientConnectorDNSError, "there is no server of that name"),
        (library.ClientConnectorCertificateError, "its certificate is not valid"),
        (library.ClientHttpProxyError, "the proxy in the environment refused to connect"),
        (library.ClientProxyConnectionError, "the proxy in the environment cannot be reached"),
        (library.ClientConnectorError, "no connection"),
        (library.InvalidURL, "its URL is not valid"),
        (library.ClientResponseError, "its answer is not valid HTTP"),
        (library.ClientPayloadError, "the connection broke in the middle of the reply"),
    )
    reason = next((text for kind, text in reasons if isinstance(error, kind)), None)
    if reason == "no connection" and getattr(error, "os_error", None) is not None:
        reason = f"no connection ({error.os_error.strerror or 'refused'})"  # type: ignore[attr-defined]
    text = reason or "the connection broke before the reply was complete"
    failure = ConnectionFailed(f"{server}: {text}")
    permanent = (library.InvalidURL, library.ClientSSLError, library.ClientResponseError)
    failure.retryable = not isinstance(error, permanent)
    return failure


def open_session() -> aiohttp.ClientSession:
    """Return a session without cookies or time limits that reports its steps to a
    `RequestDeadline`.

    The deadline of a request is its `trace_request_ctx`.
    """
    library = aiohttp_library()
    trace = library.TraceConfig(
        trace_config_ctx_factory=lambda trace_request_ctx: trace_request_ctx
    )
    trace.on_connection_create_start.append(_on_connecting)
    trace.on_connection_create_end.append(_on_connected)
    trace.on_connection_reuseconn.append(_on_connected)
    session: aiohttp.ClientSession = library.ClientSession(
        timeout=library.ClientTimeout(total=None),
        connector=connector_class()(),
        cookie_jar=library.DummyCookieJar(),
        headers={"User-Agent": "toolcrib", "Accept-Encoding": ASKED_CODINGS},
        auto_decompress=False,  # aiohttp does not notice a cut in a compressed body
        trace_configs=[trace],
    )
    return session


async def _on_connecting(_session: object, deadline: RequestDeadline, _event: object) -> None:
    deadline.on_connecting()


async def _on_connected(_session: object, deadline: RequestDeadline, _event: object) -> None:
    deadline.on_connected()


LINGER = 0.2
"""Seconds that the connection of a whole reply gets to end, so that it can be reused."""

_LARGE = 1 << 20


class Outgoing(Redacted, msgspec.Struct, frozen=True, kw_only=True):
    """A request as it is sent. Its headers contain the key, so its repr shows none of them.

    `until` is the event loop's time at which all attempts have to be over, or None for no limit.
    """

    redacted: ClassVar[tuple[str, ...]] = ("url", "headers", "body")

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    until: float | None = None

    @property
    def server(self) -> str:
        """Scheme, host and port, which an error may name."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def __repr__(self) -> str:
        return f"Outgoing({self.method} {self.server}, {len(self.body)} bytes)"


class Response(Protocol):
    """An answer whose body has not been read yet. `headers` have lower-case names.

    If the body ends only where the connection is closed, its end cannot be told from a cut. Such a
    response has an attribute `delimited` that is False.
    """

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises ConnectionFailed if it breaks off."""

    async def aclose(self, *, whole: bool) -> None:
        """Finish with the response. `whole` says that nothing of interest can follow."""


def is_delimited(headers: Mapping[str, str]) -> bool:
    """Return whether a body over HTTP/1.1 says where it ends (RFC 9112, 6.3).

    `chunked` has to be the last of its transfer codings. With any other coding, the length says
    nothing. Values that only Python takes for the word (other white space, other letters with the
    same lower case) were decoded by nobody.
    """
    if coding := headers.get("transfer-encoding", ""):
        last = coding.rpartition(",")[2].strip(" \t")
        return last.isascii() and last.lower() == "chunked"
    return "content-length" in headers


def is_bounded(response: Response) -> bool:
    """Return whether the end of the body is the end of the answer, and cannot be a cut."""
    return bool(getattr(response, "delimited", True))


ASKED_CODINGS = "gzip, deflate"
"""The content codings that are asked for, whose end is checked."""
_CODINGS = ("gzip", "x-gzip", "deflate")


class Decompressor:
    """Decompresses a body with the content coding gzip or deflate, which may hold several compressed
    streams in sequence.

    Any other coding is passed on unchanged. So are several codings: one is asked for, and two would
    turn a few bytes into work without a limit. Compressed data has an end of its own. A body that
    stops before it was cut, however its transfer ended. (Neither aiohttp nor httpx checks this for
    any coding.)
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        names = (
            name.strip(" \t").lower() for name in headers.get("content-encoding", "").split(",")
        )
        codings = [name for name in names if name not in ("", "identity")]
        self._coding = codings[0] if len(codings) == 1 and codings[0] in _CODINGS else ""
        self._stream: zlib._Decompress | None = None

    @property
    def whole(self) -> bool:
        """Whether the compressed data is complete."""
        return self._stream is None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed bytes, in pieces of a limited size. Raises ValueError, with what
        to say, if they are broken."""
        if not self._coding:
            yield data
            return
        try:
            yield from self._decompressed(data)
        except zlib.error:
            raise ValueError("the reply is not compressed as its Content-Encoding says") from None

    def _decompressed(self, data: bytes) -> Iterator[bytes]:
        is_full = False
        while data or is_full:
            stream = self._stream = self._stream or self._new_stream(data)
            piece = stream.decompress(data, _LARGE)
            data, is_full = stream.unconsumed_tail, len(piece) == _LARGE
            if stream.eof:  # another stream may follow
                data, is_full, self._stream = stream.unused_data.lstrip(b"\0"), False, None
            if piece:
                yield piece

    def _new_stream(self, data: bytes) -> zlib._Decompress:
        """Return a decoder. The first byte of a deflate stream tells whether it has zlib's header."""
        if self._coding != "deflate":
            return zlib.decompressobj(wbits=31)
        return zlib.decompressobj(wbits=15 if data[0] & 0xF == 8 else -15)


def is_large(piece: bytes) -> bool:
    """Return whether a piece may be one of very many that little data was decompressed to. Before
    the next one, other tasks get their turn."""
    return len(piece) >= _LARGE


class Transport(Protocol):
    """Carries requests.

    A transport that has keys of its own may list them in an iterable `secrets`. Like a client's own
    keys, they are removed from what a provider says in its errors. A transport that limits the
    seconds of a whole request may say so in `total`, and no wait before another attempt goes beyond
    it.
    """

    async def send(self, request: Outgoing) -> Response:
        """Return the beginning of the answer. Raises ConnectionFailed."""

    async def aclose(self) -> None: ...


def limit_of(transport: Transport) -> float | None:
    """Return the seconds that a transport allows for a whole request, or None if it names no limit."""
    total: float | None = getattr(transport, "total", None)
    return total


class AiohttpTransport:
    """Keeps connections for each event loop, and closes them with the loop at the latest.

    aiohttp is imported at the first request. Proxies are those of the environment (`HTTPS_PROXY`,
    `NO_PROXY`) when a server is first asked. Redirects are not followed, since they would carry the
    key elsewhere. A kept connection that was closed meanwhile is replaced silently.
    """

    @names_wrong_types
    def __init__(self, timeouts: Timeouts | None = None) -> None:
        self._timeouts = timeouts or Timeouts()
        self._pool = Pool(open_session)
        self._proxies: dict[str, str | None] = {}

    async def send(self, request: Outgoing) -> Response:
        pooled, server = await self._pool.pooled_session(), request.server
        session, proxy = pooled.session, self._proxy(server, request.url)
        body = request.body  # a large one is written in pieces, so that other tasks can run
        while True:
            deadline = RequestDeadline(self._timeouts, request.until)
            cancels = cancel_requests()
            try:
                async with deadline.limit:
                    response = await session.request(
                        request.method,
                        request.url,
                        data=body if len(body) <= _LARGE else io.BytesIO(body),
                        headers=request.headers,
                        allow_redirects=False,
                        proxy=proxy,
                        trace_request_ctx=deadline,
                    )
            except (aiohttp_library().ClientError, OSError) as error:
                failure: ClientError = failure_of(error, server)
                failure.retryable = failure.retryable or deadline.missed_connecting
                is_stale = (
                    not deadline.is_new_connection and is_closed(error) and not session.closed
                )
            except asyncio.CancelledError:
                if not session.closed or cancel_requests() > cancels:  # else aiohttp cancelled it
                    raise
                failure = failure_of(aiohttp_library().ClientConnectionError(), server)
                is_stale = False
            except UnicodeError:
                failure = RequestError(f"{server}: this is not a valid server name")
                is_stale = False
            except ValueError:
                failure = RequestError(
                    f"{server}: its URL holds a login, and a key is given too: use only one of them"
                )
                is_stale = False
            else:
                return _AiohttpResponse(response, server, deadline, pooled)
            if not is_stale:
                failure.retryable = failure.retryable and not session.closed
                raise failure

    async def aclose(self) -> None:
        """Close the connections of the running event loop. Reads that are under way on them fail."""
        await self._pool.aclose()

    @property
    def total(self) -> float | None:
        """The seconds that one request may take, with all attempts."""
        return self._timeouts.total

    @property
    def secrets(self) -> list[str]:
        """The logins of proxies."""
        proxies = list(self._proxies.values())  # a copy, since another thread may add its own
        return [login for proxy in proxies if proxy for login in secrets_of(proxy, {})]

    def _proxy(self, server: str, url: str) -> str | None:
        """Return a server's proxy. It is looked up once, since reading the environment takes as
        long as a request."""
        if server not in self._proxies:
            self._proxies[server] = proxy_of(url)
        return self._proxies[server]


class _AiohttpResponse:
    def __init__(
        self,
        response: aiohttp.ClientResponse,
        server: str,
        deadline: RequestDeadline,
        pooled: PooledSession,
    ) -> None:
        self._response = response
        self._deadline = deadline
        self._server = server
        self._pooled = pooled
        pooled.responses.add(response)
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self.delimited = is_delimited(self.headers)

    async def chunks(self) -> AsyncIterator[bytes]:
        content, decompressor = self._response.content, Decompressor(self.headers)
        while True:
            try:
                chunk = content.read_nowait()
                if not chunk and not content.at_eof():
                    async with self._deadline.reading():
                        chunk = await content.readany()
                if not chunk and decompressor.whole:
                    return
                if not chunk:
                    message = f"{self._server}: the connection broke in the middle of the reply"
                    failure = ConnectionFailed(message)
                    break
                for piece in decompressor.feed(chunk):
                    yield piece
                    if is_large(piece):
                        async with self._deadline.reading():
                            await asyncio.sleep(0)
            except (aiohttp_library().ClientError, OSError) as error:
                failure = failure_of(error, self._server)
                failure.retryable = failure.retryable and not self._pooled.session.closed
                break
            except ValueError as error:
                failure = ConnectionFailed(f"{self._server}: {error}")
                break
        raise failure

    async def aclose(self, *, whole: bool) -> None:
        self._pooled.responses.discard(self._response)
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


# Requests to AWS, which are signed and then sent by another transport.
#
# The signature is of the exact bytes of path and body, so nothing may change them afterwards.


class SigningTransport:
    """Signs with AWS Signature Version 4, and sends through `transport` (by default aiohttp's).

    `credentials` are botocore's, such as `boto3.Session(profile_name=…).get_credentials()`. Without
    them, botocore looks for some at the first request: in the environment, profiles, SSO, the
    machine's role. Raises MissingExtraError if botocore is not installed, and in `send`
    AuthenticationError if there are no credentials.
    """

    @names_wrong_types
    def __init__(
        self,
        transport: Transport | None = None,
        *,
        region: str,
        service: str = "bedrock",
        credentials: Any = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        self._library = _botocore()
        self._transport = transport or AiohttpTransport(timeouts)
        self._region = region
        self._service = service
        self._credentials = credentials
        self._sent_secrets: tuple[str, ...] = ()

    @property
    def secrets(self) -> Iterable[str]:
        """The secrets of the wrapped transport, and those that requests were signed with."""
        return (*getattr(self._transport, "secrets", ()), *self._sent_secrets)

    @property
    def total(self) -> float | None:
        """The limit of the wrapped transport."""
        return limit_of(self._transport)

    async def send(self, request: Outgoing) -> Response:
        """Sign in a thread, since credentials may be fetched over the network, and send the request."""
        headers = await asyncio.to_thread(self._signed_headers, request)
        self._sent_secrets = remembered(self._sent_secrets, request.url, headers)
        return await self._transport.send(msgspec.structs.replace(request, headers=headers))

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _signed_headers(self, request: Outgoing) -> dict[str, str]:
        aws_request = self._library.awsrequest.AWSRequest(
            method=request.method, url=request.url, data=request.body, headers=dict(request.headers)
        )
        signer = self._library.auth.SigV4Auth(
            self._current_credentials(), self._service, self._region
        )
        signer.add_auth(aws_request)
        return dict(aws_request.headers.items())

    def _current_credentials(self) -> Any:
        """Return the current credentials. An error names only its kind, and nothing of the
        credentials."""
        try:
            if self._credentials is None:
                self._credentials = self._library.session.get_session().get_credentials()
            credentials = self._credentials and self._credentials.get_frozen_credentials()
        except Exception as error:  # noqa: BLE001  from botocore, or files and programs it uses
            failure = AuthenticationError(
                f"there are no usable AWS credentials: {type(error).__name__}"
            )
        else:
            if credentials:
                return credentials
            failure = AuthenticationError(
                "there are no AWS credentials: set AWS_BEARER_TOKEN_BEDROCK, or AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            )
        raise failure


def _botocore() -> SimpleNamespace:
    names = ("auth", "awsrequest", "session")
    try:
        return SimpleNamespace(**{name: import_module(f"botocore.{name}") for name in names})
    except ImportError:
        raise MissingExtraError("bedrock", "signing requests with AWS credentials") from None
