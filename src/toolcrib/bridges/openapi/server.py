"""The API as a server that somebody named: it alone knows the keys, and adds them to what it is given.

Rules: a request goes to the origins that were named and to no other, whatever the document says; a key
leaves this file in a request alone. What comes back is looked through for it, since a server may
repeat what it was sent.
"""

from __future__ import annotations

import base64
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib.util import find_spec
from ipaddress import ip_network
from typing import Protocol, TypeAlias
from urllib.parse import quote, unquote, urljoin, urlsplit

from toolcrib.bridges.openapi.forms import Security, SecurityScheme
from toolcrib.bridges.openapi.request import ApiRequest
from toolcrib.clients.server import merged, names_server
from toolcrib.errors import CapabilityError, MissingExtraError, SourceError
from toolcrib.kit.http import GuardedHttp, HttpAnswer, HttpLimits
from toolcrib.tools import capability
from toolcrib.values.typed import names_wrong_types

Key: TypeAlias = str | Callable[[], str | Awaitable[str]]
"""A key, or a function that gives the one of the moment, such as a token that is renewed."""

_LIMITS = HttpLimits(seconds=30.0, body_bytes=4 * 1024 * 1024)
_SHORTEST = 6  # a shorter key is no secret that can be told from other text


@capability
class HttpApi(Protocol):
    """Sends the requests of an OpenAPI document's tools, and adds their keys: write one of your own, or
    take an `ApiServer`."""

    async def send(self, request: ApiRequest) -> HttpAnswer:
        """Return the answer, whatever its status is, unless it is a redirect.

        Raises CapabilityError (`toolcrib.kit.http.Unanswered`) if it is one, and if there is no answer.
        """


class ApiServer:
    """Sends the requests of a document's tools to one server; the document's paths are added to `url`.

    `keys` are the keys by the names that the document has for them (its security schemes): an API key,
    a token, `user:password` for HTTP's basic authentication, or a function that gives one. `also` are
    further origins, for operations that name a server of their own, `private` the networks that are
    not public and may be reached all the same, and `limits` those of one request, as in `GuardedHttp`.
    An address that stands in `url` itself (`http://127.0.0.1:8000`) may be reached. Connections of GET
    and HEAD are used again, until `aclose` or the end of the event loop; it is no context manager, for
    `per_call` would close one that calls share. Raises MissingExtraError without the extra `openapi`,
    SourceError for a URL that names no server, and for a key that no request can hold.
    """

    @names_wrong_types
    def __init__(
        self,
        url: str,
        *,
        keys: Mapping[str, Key] | None = None,
        also: Iterable[str] = (),
        private: Iterable[str] = (),
        limits: HttpLimits | None = None,
    ) -> None:
        if find_spec("aiohttp") is None:
            raise MissingExtraError("openapi", "toolcrib.bridges.openapi.ApiServer")
        parts = urlsplit(url) if names_server(url) else None
        if parts is None or parts.query or "@" in parts.netloc:
            raise SourceError(f"{url[:80]!r} is no server: write it as https://api.example.com/v1")
        self._base = url.rstrip("/")
        self._keys = dict(keys or {})
        for name, key in self._keys.items():
            if not callable(key):
                _check(name, key)
        self._http = GuardedHttp(
            allow=[f"{parts.scheme}://{parts.netloc}", *also],
            private=[*private, *_named(parts.hostname or "")],
            limits=limits or _LIMITS,
            keep=True,
        )

    async def aclose(self) -> None:
        """Close the connections of the running event loop; what was closed can be used again."""
        await self._http.aclose()

    def __repr__(self) -> str:
        return f"ApiServer({self._base!r})"

    async def send(self, request: ApiRequest) -> HttpAnswer:
        """Return the answer, without the keys if the server repeats them.

        Raises CapabilityError for a key that is not here, and if there is no answer.
        """
        keys = {scheme: await self._key(scheme.id) for scheme in self._schemes(request.security)}
        headers, query, cookies = dict(request.headers), [], [*request.cookies]
        for scheme, key in keys.items():
            where, name, value = _sent(scheme, key)
            if where == "header":
                headers = merged(headers, {name: value})
            elif where == "cookie":
                cookies.append((name, value))
            else:
                query.append(f"{quote(name, safe='')}={quote(value, safe='')}")
        if cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies)
        base = urljoin(f"{self._base}/", request.server) if request.server else self._base
        mark = "&" if "?" in request.path else "?"
        url = base.rstrip("/") + request.path + (mark + "&".join(query) if query else "")
        answer = await self._http.send(request.method, url, headers=headers, body=request.body)
        return _without(answer, keys)

    def _schemes(self, security: Security) -> tuple[SecurityScheme, ...]:
        """Return the first alternative for which all keys are here, or else none of them where none is
        demanded. Raises CapabilityError."""
        for schemes in security:
            if schemes and all(one.kind != "unknown" and one.id in self._keys for one in schemes):
                return schemes
        if not security or () in security:
            return ()
        names = " or ".join(dict.fromkeys(one.id for schemes in security for one in schemes))
        raise CapabilityError(f"the API asks for a key that is not here: {names}", retryable=False)

    async def _key(self, name: str) -> str:
        key = self._keys[name]
        if not callable(key):
            return key
        made = key()
        made = await made if inspect.isawaitable(made) else made
        _check(name, made)
        return made


def _named(host: str) -> tuple[str, ...]:
    """Return the networks of an address that is written in a URL; a name of DNS is none."""
    if host == "localhost":
        return ("127.0.0.0/8", "::1/128")
    try:
        return (str(ip_network(host)),)
    except ValueError:
        return ()


def _check(name: str, key: object) -> None:
    if not isinstance(key, str) or not key or not (key.isascii() and key.isprintable()):
        raise SourceError(f"the key {name!r:.60} is empty, or no text that a request can hold")


def _sent(scheme: SecurityScheme, key: str) -> tuple[str, str, str]:
    """Return where a key is sent, under which name, and as what."""
    if scheme.kind == "apiKey":
        return scheme.place, scheme.name, key
    if scheme.name == "basic":
        return "header", "Authorization", f"Basic {base64.b64encode(key.encode()).decode()}"
    return "header", "Authorization", f"{scheme.name.capitalize()} {key}"


def _without(answer: HttpAnswer, keys: Mapping[SecurityScheme, str]) -> HttpAnswer:
    """Return an answer without the keys, however a server that repeats one has escaped it."""
    text = answer.body.decode("latin-1")
    plain = unquote(_ESCAPED.sub(_unescaped, text), encoding="latin-1") if keys else ""
    for scheme, key in keys.items():
        told = {key, _sent(scheme, key)[2].rpartition(" ")[2], *key.split(":", 1)}
        for one in sorted((one for one in told if len(one) >= _SHORTEST), key=len, reverse=True):
            if one in plain:
                text = re.sub("".join(map(_forms, one)), "[key]", text)
    kept = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
    return HttpAnswer(status=answer.status, body=text.encode("latin-1"), headers=kept)


_ESCAPED = re.compile(r"\\u00([0-9a-fA-F]{2})|\\(.)")


def _unescaped(found: re.Match[str]) -> str:
    return found[2] or chr(int(found[1], 16))


def _forms(character: str) -> str:
    """Return a pattern of a character as it is, escaped in JSON, or in a URL."""
    code = f"{ord(character):02x}"
    return rf"(?:\\?{re.escape(character)}|(?i:%{code}|\\u00{code}))"


_KEPT = ("content-type", "retry-after")
