"""The API as a server that your code names. It alone knows the keys, and adds them to requests.

Rules: a request goes to the origins that were named and to no other, whatever the document says. A
key leaves this module only in a request. Answers are searched for it, since a server may repeat
what it was sent.
"""

from __future__ import annotations

import base64
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache, partial
from html import unescape
from html.entities import html5
from importlib.util import find_spec
from ipaddress import ip_network
from itertools import product
from typing import Protocol, TypeAlias
from urllib.parse import quote, unquote, urljoin, urlsplit

from toolcrib.bridges.openapi.charset import encoding_of, text_of
from toolcrib.bridges.openapi.forms import Security, SecurityScheme, is_json, kind_of
from toolcrib.bridges.openapi.request import ApiRequest
from toolcrib.clients.server import merged, names_server
from toolcrib.errors import CapabilityError, MissingExtraError, SourceError
from toolcrib.kit.http import GuardedHttp, HttpAnswer, HttpLimits
from toolcrib.tools import capability
from toolcrib.urls import without_password
from toolcrib.values.typed import names_wrong_types

Key: TypeAlias = str | Callable[[], str | Awaitable[str]]
"""A key, or a function that returns the current one, such as a token that is renewed."""

_LIMITS = HttpLimits(seconds=30.0, body_bytes=4 * 1024 * 1024)
_KEPT_HEADERS = ("content-type", "retry-after")
_SHORTEST = 6  # shorter keys may be a part of other words


@capability
class HttpApi(Protocol):
    """Sends the requests of an OpenAPI document's tools, and adds their keys. Write one of your
    own, or use an `ApiServer`."""

    async def send(self, request: ApiRequest) -> HttpAnswer:
        """Return the answer, whatever its status is, unless it is a redirect.

        Raises CapabilityError (`toolcrib.kit.http.Unanswered`) for a redirect, and if there is no
        answer.
        """


class ApiServer:
    """Sends the requests of a document's tools to one server. The document's paths are added to
    `url`.

    `keys` are the keys by their names in the document (its security schemes): an API key, a token,
    `user:password` for HTTP's basic authentication, or a function that returns one. `also` are
    further origins, for operations that name their own server. `private` are networks that are not
    public and may be reached all the same. `limits` are those of one request, as in `GuardedHttp`.
    An address in `url` itself (`http://127.0.0.1:8000`) may be reached. Connections of GET and HEAD
    are reused until `aclose` or the end of the event loop. It is no context manager, since
    `per_call` would close one that calls share. Raises MissingExtraError without the extra
    `openapi`, and SourceError for a URL that names no server or a key that no request can contain.
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
        if isinstance(also, str) or isinstance(private, str):
            raise SourceError("also and private must be lists, not a single string")
        parts = urlsplit(url) if names_server(url) else None
        if parts is None or parts.query or "@" in parts.netloc:
            raise SourceError(
                f"{without_password(url)[:80]!r} is not a server: write it as "
                "https://api.example.com/v1"
            )
        self._base = url.rstrip("/")
        self._keys = dict(keys or {})
        for name, key in self._keys.items():
            if not callable(key):
                _check_key(name, key)
        reachable = [*private, *_networks_of(parts.hostname or "")]
        guarded = partial(GuardedHttp, private=reachable, limits=limits or _LIMITS, keep=True)
        self._http = guarded(allow=[f"{parts.scheme}://{parts.netloc}"])
        self._other_http = guarded(allow=also)

    async def aclose(self) -> None:
        """Close the connections of the running event loop. The server can be used again afterwards."""
        await self._http.aclose()
        await self._other_http.aclose()

    def __repr__(self) -> str:
        return f"ApiServer({self._base!r})"

    async def send(self, request: ApiRequest) -> HttpAnswer:
        """Return the answer, without the keys if the server repeats them.

        Raises CapabilityError for a missing key, and if there is no answer.
        """
        keys = {scheme: await self._key(scheme.id) for scheme in self._schemes(request.security)}
        headers, query, cookies = dict(request.headers), [], [*request.cookies]
        for scheme, key in keys.items():
            place, name, value = _key_placement(scheme, key)
            if not value.isascii() or (place == "cookie" and ";" in value):
                raise CapabilityError(_BAD_KEY.format(scheme.id), retryable=False)
            if place == "header":
                headers = merged(headers, {name: value})
            elif place == "cookie":
                cookies.append((name, value))
            else:
                query.append(f"{quote(name, safe='')}={quote(value, safe='')}")
        if cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies)
        base = urljoin(f"{self._base}/", request.server) if request.server else self._base
        separator = "&" if "?" in request.path else "?"
        url = base.rstrip("/") + request.path + (separator + "&".join(query) if query else "")
        http = self._http if _is_below(base, self._base) else self._other_http
        answer = await http.send(request.method, url, headers=headers, body=request.body)
        return _redacted_answer(answer, keys)

    def _schemes(self, security: Security) -> tuple[SecurityScheme, ...]:
        """Return the first alternative whose keys are all here, or none if no key is required.
        Raises CapabilityError."""
        for schemes in security:
            if schemes and all(
                scheme.kind != "unknown" and scheme.id in self._keys for scheme in schemes
            ):
                return schemes
        if not security or () in security:
            return ()
        names = " or ".join(dict.fromkeys(scheme.id for schemes in security for scheme in schemes))
        raise CapabilityError(f"the API needs a key that was not given: {names}", retryable=False)

    async def _key(self, name: str) -> str:
        key = self._keys[name]
        if not callable(key):
            return key
        current = key()
        current = await current if inspect.isawaitable(current) else current
        _check_key(name, current)
        return current


def _is_below(url: str, base: str) -> bool:
    """Return whether a URL without a query is another one, or lies below it."""
    target, parent = urlsplit(url), urlsplit(base)
    if (target.scheme, target.netloc.lower()) != (parent.scheme, parent.netloc.lower()):
        return False
    steps = unquote(target.path).rstrip("/").split("/")
    parent_steps = parent.path.rstrip("/").split("/")
    return ".." not in steps and steps[: len(parent_steps)] == parent_steps


def _networks_of(host: str) -> tuple[str, ...]:
    """Return the networks of an address in a URL. A DNS name gives none."""
    if host == "localhost":
        return ("127.0.0.0/8", "::1/128")
    try:
        return (str(ip_network(host)),)
    except ValueError:
        return ()


_BAD_KEY = "the key {!r:.60} is empty, or not a string that a request can hold"


def _check_key(name: str, key: object) -> None:
    """Raise SourceError for a key that cannot be sent. A user and a password may have characters
    beyond ASCII, since they are sent as base64."""
    if not isinstance(key, str) or not key or not key.isprintable():
        raise SourceError(_BAD_KEY.format(name))
    if not key.isascii() and ":" not in key:
        raise SourceError(_BAD_KEY.format(name))


def _key_placement(scheme: SecurityScheme, key: str) -> tuple[str, str, str]:
    """Return where a key is sent, under which name, and in which form."""
    if scheme.kind == "apiKey":
        return scheme.place, scheme.name, key
    if scheme.name == "basic":
        return "header", "Authorization", f"Basic {base64.b64encode(key.encode()).decode()}"
    return "header", "Authorization", f"{scheme.name.capitalize()} {key}"


# Keys that an API repeats.
#
# Rule: no text that is passed on contains a key that was sent, literally or escaped as in JSON, in
# a URL or in HTML. A short key may be a part of any word, and is only looked for as a whole word.
# JSON is parsed before it is searched, and stays JSON.


def _redacted_answer(answer: HttpAnswer, keys: Mapping[SecurityScheme, str]) -> HttpAnswer:
    """Return an answer without the keys, and with two of its headers."""
    headers = {name: answer.headers[name] for name in _KEPT_HEADERS if name in answer.headers}
    body = answer.body
    if keys:
        secrets = {secret for scheme, key in keys.items() for secret in _key_forms(scheme, key)}
        body = _redacted_body(body, headers.get("content-type", ""), secrets)
        headers = {name: _redacted(value, secrets) for name, value in headers.items()}
    return HttpAnswer(status=answer.status, body=body, headers=headers)


def _redacted_body(body: bytes, media_type: str, secrets: Iterable[str]) -> bytes:
    """Return a body without keys, in its own encoding. Bytes that are no text only lose the bytes
    of keys."""
    encoding, errors = "utf-8", "surrogateescape"
    text = None if kind_of(media_type) == "bytes" else text_of(body, media_type)
    if text is None:
        text = body.decode(encoding, errors)
    else:
        encoding, errors = encoding_of(body, media_type), "replace"
    redacted = _redacted(text, secrets, is_of_json=is_json(media_type))
    return body if redacted == text else redacted.encode(encoding, errors)


def _redacted(text: str, secrets: Iterable[str], *, is_of_json: bool = False) -> str:
    readings = _readings(text)
    present = [secret for secret in secrets if any(secret in reading for reading in readings)]
    if not present:
        return text
    hide = _hider(present)
    return _JSON_TOKEN.sub(partial(_json_without, hide), text) if is_of_json else hide(text)


def _key_forms(scheme: SecurityScheme, key: str) -> list[str]:
    """Return the forms in which a key may come back: itself, the form that was sent, a password,
    and a long user name."""
    user, _, password = key.partition(":") if scheme.name == "basic" else ("", "", "")
    forms = (key, base64.b64encode(key.encode()).decode() if password or user else "", password)
    return [*filter(None, forms), *([user] if len(user) >= _SHORTEST else ())]


def _readings(text: str) -> list[str]:
    """Return a text literally, and with the escapes of JSON, URLs and HTML resolved, in this order."""
    readings = [text]
    for resolve in _UNESCAPES:
        readings = list(dict.fromkeys([*readings, *map(resolve, readings)]))
    return readings


_ESCAPED = re.compile(
    r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})|\\u([0-9a-f]{4})|\\(.)",
    re.DOTALL | re.IGNORECASE,
)
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[^"\s,:{}\[\]]+', re.DOTALL)


def _unescaped(match: re.Match[str]) -> str:
    if match[1]:
        return bytes.fromhex(match[1] + match[2]).decode("utf-16-be")
    character = match[4] or chr(int(match[3], 16))
    return "\ufffd" if "\ud800" <= character <= "\udfff" else character


_unescape_json = partial(_ESCAPED.sub, _unescaped)
_unescape_url = partial(unquote, errors="surrogateescape")  # valid UTF-8, and other bytes
_UNESCAPES: tuple[Callable[[str], str], ...] = (
    *(_unescape_json, _unescape_json, lambda text: text.replace("+", " "), _unescape_url, unescape),
)


def _json_without(hide: Callable[[str], str], match: re.Match[str]) -> str:
    """Return a JSON string or number without keys. A short number is no key."""
    token = match[0]
    if len(token) < _SHORTEST and token[0] != '"':
        return token
    try:
        text = json.loads(token) if token[0] == '"' else token
    except ValueError:
        return hide(token)
    redacted = hide(text)
    return token if redacted == text else json.dumps(redacted)


def _hider(secrets: Iterable[str]) -> Callable[[str], str]:
    """Return a function that hides these in a text, or otherwise in a resolved reading of it."""
    patterns = []
    for secret in sorted(secrets, key=len, reverse=True):
        forms = "".join(map(_character_pattern, secret))
        patterns.append(forms if len(secret) >= _SHORTEST else f"{_BEFORE}{forms}{_AFTER}")
    any_secret = re.compile("|".join(patterns))

    def hide(text: str) -> str:
        redacted = any_secret.sub("[key]", text)
        readings = _readings(redacted) if _MAY_ESCAPE.search(redacted) else []
        for pattern, reading in product(patterns, readings):
            if re.search(pattern, reading):  # the key is escaped more than once
                return any_secret.sub("[key]", reading)
        return redacted

    return hide


_MAY_ESCAPE = re.compile(r"[\\%&+]")
_BEFORE = r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2}))"
_AFTER = r"(?![A-Za-z0-9])"


@cache
def _character_pattern(character: str) -> str:
    """Return a pattern of a character, literally and as escaped in JSON, in a URL and in HTML."""
    in_url = "".join(f"%{byte:02x}" for byte in character.encode())
    units = character.encode("utf-16-be").hex()
    in_json = "".join(f"\\\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
    number = ord(character)
    entities = (re.escape(name) for name, replacement in html5.items() if replacement == character)
    forms = (
        rf"\\?{re.escape(character)}",
        rf"(?i:{in_url}|{in_json}|&#x0*{number:x};?|&#0*{number};?)",
        *(f"&{name}" for name in sorted(entities, key=len, reverse=True)),
        *([r"\+"] if character == " " else []),
    )
    return f"(?:{'|'.join(forms)})"
