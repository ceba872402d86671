"""Guarded web requests, which reach only the named servers, and only at public addresses.

There are two independent checks. The origin of the URL has to be one of those that are allowed. The
address is checked where the socket for it is made, after all name resolution, so that no name can
mean one address when it is checked and another one when it is used (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping
from functools import partial
from importlib.util import find_spec
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from weakref import WeakSet

import msgspec

from toolcrib.connections import Pool, aiohttp_library, connector_class, is_closed
from toolcrib.errors import CapabilityError, MissingExtraError, SourceError
from toolcrib.threads import cancel_requests, in_thread
from toolcrib.tools import capability
from toolcrib.urls import without_password
from toolcrib.values.typed import Checked, HandWritten, names_wrong_types

# Public addresses, which are the only ones that a request for a model may reach.
#
# Addresses that are not known to be public are refused. The tables are IANA's special-purpose
# address registries (iana.org/assignments/iana-ipv4-special-registry and
# iana-ipv6-special-registry, RFC 6890). They are kept here because `ipaddress` judges several of
# them differently in each version of Python.

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_SPECIAL_NETWORKS = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",  # this network; Linux connects 0.0.0.0 to itself
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared by a carrier's customers; metadata of Alibaba Cloud
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # metadata of Azure, in a public range
            "169.254.0.0/16",  # link-local; metadata of most clouds
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments; metadata of Oracle Cloud
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # multicast tunnels
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/3",  # multicast, reserved, broadcast
            "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarks
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4: an IPv4 address in disguise
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
        ),
    )
)
_GLOBAL_6 = IPv6Network("2000::/3")  # all that IANA has assigned
_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052: how an IPv6 network reaches IPv4


def is_public(address: Address) -> bool:
    """Return whether an address is public. An IPv6 form of an IPv4 address (mapped, NAT64) is
    judged as that."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped
        if address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is None and address not in _GLOBAL_6:
            return False
        address = inner or address
    return not any(address in network for network in _SPECIAL_NETWORKS)


def may_reach(host: str, private: tuple[Network, ...]) -> bool:
    """Return whether the address of a connection about to be made is public, or in one of `private`."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return is_public(address) or any(address in network for network in private)


if TYPE_CHECKING:
    from aiohttp import (
        ClientHandlerType,
        ClientMiddlewareType,
        ClientRequest,
        ClientResponse,
        ClientSession,
    )
    from yarl import URL

_NOT_ALLOWED = "that server is not on the list of allowed servers"
_REFUSED = "requests to that address are not allowed"
_NOT_PUBLIC = "has no public address, so requests to it are not allowed"
_TOO_SLOW = "did not answer in time"
_TOO_LARGE = "gave an answer that is too large"
_ENCODED = "gave a compressed answer, which was not asked for"
_REDIRECTED = "answered with a redirect, and redirects are not followed"
_NOT_CHANGED = "answered that nothing has changed, and sent no content"
_NOT_REACHED = "could not be reached: is there a network connection?"
_NOT_TRUSTED = "could not be reached: its certificate or its TLS is not valid"
_BROKEN = "closed the connection before its answer was complete"
_UNREADABLE = "gave an answer that cannot be read as HTTP"


class HttpAnswer(Checked, msgspec.Struct, frozen=True, kw_only=True):
    """`status` is no redirect (3xx), and `body` is complete. The names of `headers` are in lower
    case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = {}


class Unanswered(CapabilityError):  # noqa: N818  named after what happened
    """A server may not be asked, or gave no usable answer.

    `sent` says that it may have received the request. `status` is the status of its answer, or 0
    without one.
    """

    def __init__(self, safe_text: str, *, retryable: bool, sent: bool, status: int = 0) -> None:
        super().__init__(safe_text, retryable=retryable)
        self.sent = sent
        self.status = status


@capability
class HttpGetter(Protocol):
    """Reads from the web for the tools of the kit."""

    async def get(self, url: str, query: Mapping[str, str]) -> HttpAnswer:
        """Return a server's answer to a GET. `query` becomes a part of the URL, escaped.

        Raises CapabilityError if the server may not be asked or gives no answer.
        """


class HttpLimits(HandWritten, frozen=True, kw_only=True):
    """Limits on one request: `seconds` in total, `body_bytes` of the answer."""

    seconds: float = 10.0
    body_bytes: int = 1024 * 1024


class GuardedHttp:
    """Asks only the servers in `allow`, at public addresses, and follows no redirect.

    An entry of `allow` is a host (`api.example.com`: HTTPS at its default port) or an origin
    (`https://api.example.com:8443`). `private` are networks that may be reached although they are
    not public, for a private server or a test server (`allow=["http://127.0.0.1:8000"],
    private=["127.0.0.0/8"]`). The proxies of the environment are not used, since a proxy resolves
    names itself. Raises MissingExtraError without the extra `http`, and SourceError for a wrong
    entry.

    With `keep`, connections for reading (GET, HEAD) are reused until `aclose` or the end of the
    event loop, since their addresses were checked when they were made. Any other request has a
    connection of its own: if a reused connection was closed by its server meanwhile, nobody could
    say whether the request was done.
    """

    @names_wrong_types
    def __init__(
        self,
        *,
        allow: Iterable[str],
        private: Iterable[str] = (),
        limits: HttpLimits | None = None,
        keep: bool = False,
    ) -> None:
        if find_spec("aiohttp") is None:
            raise MissingExtraError("http", "toolcrib.kit.GuardedHttp")
        if isinstance(allow, str) or isinstance(private, str):
            raise SourceError("allow and private must be lists, not a single string")
        self.limits = limits or HttpLimits()
        self._allowed = frozenset(_allowed_origin(entry) for entry in allow)
        self._private = tuple(_network(entry) for entry in private)
        self._pool = Pool(partial(_session, self._private, keep=True)) if keep else None

    async def aclose(self) -> None:
        """Close the connections of the running event loop. The object can be used again afterwards."""
        if self._pool is not None:
            await self._pool.aclose()

    async def get(self, url: str, query: Mapping[str, str]) -> HttpAnswer:
        target = _parsed_url(url)
        return await self._fetch(
            "GET", None if target is None else target.update_query(query), {}, None
        )

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> HttpAnswer:
        """Return the answer to a request of any method. Escapes in its `url` are kept unchanged.

        Raises Unanswered if the server may not be asked or gives no answer.
        """
        return await self._fetch(method, _parsed_url(url, encoded=True), headers or {}, body)

    async def _fetch(
        self, method: str, url: URL | None, headers: Mapping[str, str], body: bytes | None
    ) -> HttpAnswer:
        """Request exactly the URL that was checked, and no other reading of it."""
        if url is None or _origin_of(url) not in self._allowed:
            raise Unanswered(_NOT_ALLOWED, retryable=False, sent=False)
        request = _Request(method, url.with_fragment(None), headers, body)
        library = aiohttp_library()
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await self._exchange(request)
        except _UnusableAnswer as unusable:
            failure = str(unusable)
        except TimeoutError:
            failure = _TOO_SLOW
        except library.ClientSSLError:
            failure = _NOT_TRUSTED
        except library.ClientConnectorError as error:
            failure = _NOT_PUBLIC if _REFUSED in str(error.os_error) else _NOT_REACHED
        except library.InvalidURL:
            failure = _NOT_REACHED
        except library.ClientResponseError:
            failure = _UNREADABLE
        except (library.ClientError, OSError, ValueError):
            failure = _BROKEN
        raise Unanswered(
            f"{url.host} {failure}",
            retryable=failure != _NOT_PUBLIC,
            sent=request.connected,
            status=request.status,
        )

    async def _exchange(self, request: _Request) -> HttpAnswer:
        """Send a request on its own connection, or on a kept one that was not closed meanwhile."""
        if self._pool is None or request.method not in _READING_METHODS:
            async with _session(self._private, keep=False) as session:
                return await self._exchange_over(request, session)
        pooled, cancels = await self._pool.pooled_session(), cancel_requests()
        while True:
            request.fresh = False
            try:
                return await self._exchange_over(request, pooled.session, pooled.responses)
            except (aiohttp_library().ClientError, OSError) as error:
                is_final = request.fresh or request.status or pooled.session.closed
                if is_final or not is_closed(error):
                    raise
            except asyncio.CancelledError:  # raised by aiohttp if the session was closed
                if not pooled.session.closed or cancel_requests() > cancels:
                    raise
                raise _UnusableAnswer(_BROKEN) from None

    async def _exchange_over(
        self, request: _Request, session: ClientSession, read: WeakSet[ClientResponse] | None = None
    ) -> HttpAnswer:
        async with session.request(
            request.method,
            request.url,
            headers=request.headers,
            data=request.body,
            allow_redirects=False,
            skip_auto_headers=("Content-Type",),
            middlewares=(_send_once(),),
            trace_request_ctx=request,
        ) as response:
            request.status = response.status
            if read is not None:
                read.add(response)
            return await self._read_answer(response)

    async def _read_answer(self, response: ClientResponse) -> HttpAnswer:
        if 300 <= response.status < 400:
            raise _UnusableAnswer(_NOT_CHANGED if response.status == 304 else _REDIRECTED)
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise _UnusableAnswer(_ENCODED)
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > self.limits.body_bytes:
                raise _UnusableAnswer(_TOO_LARGE)
        headers = {name.lower(): value for name, value in response.headers.items()}
        return HttpAnswer(status=response.status, body=bytes(body), headers=headers)


class _UnusableAnswer(Exception):  # noqa: N818  an outcome that never leaves this file
    """There is an answer, and it cannot be used; the text says why."""


_READING_METHODS = ("GET", "HEAD")


def _send_once() -> ClientMiddlewareType:
    """Return a middleware that sends one request only.

    aiohttp repeats a request with an idempotent method when the connection breaks, and has no
    option against it. Then one approval would do something twice.
    """
    sent = False

    async def send(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        nonlocal sent
        if sent:
            raise aiohttp_library().ServerDisconnectedError
        sent = True
        return await handler(request)

    return send


class _Request:
    """A request and its progress.

    `connected` is set when there is a connection, on which it may have been sent. `fresh` says that
    the connection was made for this request. `status` is that of the answer, once there is one.
    """

    def __init__(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None
    ) -> None:
        self.method, self.url, self.headers, self.body = method, url, headers, body
        self.connected = self.fresh = False
        self.status = 0


def _socket(private: tuple[Network, ...], info: tuple[Any, ...]) -> socket.socket:
    """Make the socket of a connection, to an allowed address only."""
    family, kind, protocol, _name, address = info
    if not may_reach(str(address[0]), private):
        raise OSError(_REFUSED)
    connection = socket.socket(family, kind, protocol)
    connection.setblocking(False)
    return connection


class _Resolver:
    """Looks names up in threads that can be abandoned.

    At its end, an event loop waits for the threads of its executor. With a name server that does
    not answer, that takes much longer than the request.
    """

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[dict[str, Any]]:
        flags = socket.AI_ADDRCONFIG  # no IPv6 address on a machine without IPv6
        look_up = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, flags=flags)
        try:
            addresses = await in_thread(look_up)
        except UnicodeError:  # a label of the name is too long
            raise OSError("that is not a valid host name") from None
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [
            {
                "hostname": host,
                "host": address[0],
                "port": address[1],
                "family": address_family,
                "proto": protocol,
                "flags": numeric,
            }
            for address_family, _kind, protocol, _name, address in addresses
        ]

    async def close(self) -> None:
        """Do nothing, since there is nothing to close."""


def _session(private: tuple[Network, ...], *, keep: bool) -> ClientSession:
    """Return a session that shares no connection, cookie or resolved name with another one. It
    tells each request, as its `trace_request_ctx`, about the connection. Without `keep` it is for
    one request."""
    library = aiohttp_library()
    trace = library.TraceConfig(trace_config_ctx_factory=_request_of)
    trace.on_connection_create_start.append(_connecting)
    trace.on_connection_create_end.append(_connected)
    trace.on_connection_reuseconn.append(_connected)
    session: ClientSession = library.ClientSession(
        connector=connector_class()(
            resolver=_Resolver(),
            socket_factory=partial(_socket, private),
            use_dns_cache=False,
            force_close=not keep,
        ),
        cookie_jar=library.DummyCookieJar(),
        headers={"User-Agent": "toolcrib", "Accept-Encoding": "identity"},
        auto_decompress=False,
        trust_env=False,
        trace_configs=[trace],
    )
    return session


def _request_of(trace_request_ctx: _Request) -> _Request:
    return trace_request_ctx


async def _connecting(_session: object, request: _Request, _event: object) -> None:
    request.fresh = True


async def _connected(_session: object, request: _Request, _event: object) -> None:
    request.connected = True


def _allowed_origin(entry: str) -> tuple[str, str, int]:
    """Parse an allowed server. Raises SourceError."""
    url = _parsed_url(entry if "://" in entry else f"https://{entry}")
    origin = None if url is None else _origin_of(url)
    if url is None or origin is None or url != url.origin() or "*" in entry:
        raise SourceError(
            f"{without_password(entry)!r} is not a server: give a host such as api.example.com, or"
            " an origin such as https://api.example.com:8443"
        )
    return origin


def _origin_of(url: URL) -> tuple[str, str, int] | None:
    """Return scheme, host and port of a URL, or None if it names no server, or a user on one."""
    if url.scheme not in ("https", "http") or not url.raw_host or not url.port:
        return None
    if url.raw_user is not None or url.raw_password is not None:
        return None
    return url.scheme, url.raw_host, url.port


def _network(entry: str) -> Network:
    """Parse an allowed network. Raises SourceError."""
    try:
        return ip_network(entry)
    except ValueError:
        raise SourceError(
            f"{entry!r} is not a network: write it as 127.0.0.0/8 or fd00::/8"
        ) from None


def _parsed_url(text: str, *, encoded: bool = False) -> URL | None:
    """Parse a URL by yarl, as aiohttp will, or return None for a text that is no URL."""
    from yarl import URL

    try:
        url = URL(text, encoded=encoded)
        _ = url.port  # yarl parses the port only here
    except ValueError:
        return None
    return url
