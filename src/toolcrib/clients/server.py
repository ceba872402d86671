"""Where requests go, with which headers, proxy and key, and which parts of that no error may show."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from html import unescape
from urllib.parse import unquote, urlsplit

from toolcrib.errors import AuthenticationError, RequestError
from toolcrib.urls import url_secrets

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""https://www.rfc-editor.org/rfc/rfc9110#section-5.1"""


_URL_VARIABLES = ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL")


def joined(base: str, path: str) -> str:
    """Return `path` below `base`. A query in the base (Azure's `api-version`) stays at the end."""
    base_path, separator, query = base.partition("?")
    separator = "&" if separator and "?" in path else separator
    return f"{base_path.rstrip('/')}{path}{separator}{query}"


def names_server(url: str) -> bool:
    """Return whether it is an http:// or https:// URL with a host, without `#` or spaces."""
    try:
        parts = urlsplit(url)
        is_complete = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:  # unclosed brackets, an invalid port
        return False
    return bool(is_complete) and url.isprintable() and not {" ", "#"} & set(url)


def url_or_default(base_url: str | None, default: str, variable: str = "") -> str:
    """Return the given base URL, or that of the variable, or the default one. Raises RequestError for
    an empty one that is given, as from an unset variable, since the request would go to another
    server."""
    if base_url is not None and not base_url.strip():
        raise RequestError(
            "base_url= is empty: name a server, or leave it out to use the default one"
        )
    return (os.environ.get(variable, "").strip() or default) if base_url is None else base_url


def checked_url(url: str) -> str:
    """Return the URL without surrounding white space. Raises RequestError if nothing can be
    requested below it."""
    url = url.strip()
    if not names_server(url):
        variables = (
            f"${name}" for name in _URL_VARIABLES if url and os.environ.get(name, "").strip() == url
        )
        raise RequestError(
            f"{next(variables, 'the base URL')} must begin with http:// or https:// and name a server, "
            "without # or spaces"
        )
    return url


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of the headers. Raises RequestError for an invalid name or value."""
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise RequestError(f"{name!r} is not the name of a header")
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            raise RequestError(
                f"the value of the header {name!r} is not a string, or holds a character that "
                "is not allowed"
            )
    return dict(headers)


def merged(headers: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Return all of `others`, and those of `headers` that it does not have. Names are compared
    without case."""
    names = {name.lower() for name in others}
    return {name: value for name, value in headers.items() if name.lower() not in names} | dict(
        others
    )


# The proxy of the environment: `HTTPS_PROXY`, `HTTP_PROXY` or `ALL_PROXY`, except for `NO_PROXY`.

_LOOPBACK_HOSTS = ("localhost", "::1")


def proxy_of(url: str) -> str | None:
    """Return the proxy for a URL, or None. Raises RequestError for a proxy that cannot be used.

    `proxy:3128` means `http://proxy:3128`, as in curl. No proxy is used for this machine.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    import urllib.request  # takes 15 ms, which `import toolcrib` saves

    proxies = urllib.request.getproxies()
    if not proxies or host in _LOOPBACK_HOSTS or host.startswith("127."):
        return None
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    server = parts.netloc.rpartition("@")[2]  # with its port, which NO_PROXY may contain
    if not proxy or any(map(urllib.request.proxy_bypass, (host, server))):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not names_server(proxy):
        raise RequestError(
            "the proxy in the environment cannot be used: it must be an http:// URL that names a server"
        )
    return proxy


# Where a key comes from. A key in the environment is sent only to the server that it is meant for.


def same_server(url: str, other: str) -> bool:
    """Return whether two URLs name the same host."""
    return urlsplit(url).hostname == urlsplit(other).hostname


def key_of(api_key: str | None, *names: str, looked_up: bool, needed: bool) -> str:
    """Return the given key, or, if it is to be `looked_up`, that of the first variable that holds
    one.

    Return an empty string if there is none, or raise AuthenticationError if a key is `needed`.
    Raises RequestError for a variable whose value no header can have.
    """
    key = (api_key or "").strip()
    if not key and looked_up:
        candidates = ((name, os.environ.get(name, "").strip()) for name in names)
        name, key = next((candidate for candidate in candidates if candidate[1]), ("", ""))
        if not key.isascii() or not key.isprintable():
            raise RequestError(
                f"${name} holds a character that is not allowed in a header: set it again"
            )
    if not key and needed:
        raise AuthenticationError(
            f"there is no API key: set {names[0]}, or pass api_key=… in a program"
        )
    return key


# Secrets that are sent with a request and may not appear in an error's text: keys, tokens,
# passwords. They are hidden as they were given and as they are sent, since a login is sent in
# base64.
#
# A provider may repeat a secret with escaped characters, with line breaks in it, or shortened. A
# word that begins like a long secret is hidden to its end.

HARMLESS = frozenset(
    (
        *("accept", "accept-encoding", "connection", "content-length", "content-type", "host"),
        *("user-agent", "anthropic-version", "anthropic-beta", "openai-beta", "x-amz-date"),
        *("http-referer", "x-title", "x-goog-api-client", "x-amzn-bedrock-accept"),
    )
)
"""The headers, in lower case, that contain nothing to hide."""

SECRET_MEMBER = re.compile(
    r"authorization(?:_?token)?|(?:x[-_])?api[-_]?key|(?:(?:access|refresh|id|bearer|auth)[-_]?)?token"
    r"|(?:client[-_]?)?secret|client[-_]?assertion|password|cookie",
    re.IGNORECASE,
)
"""The names of members of a request's JSON that contain a key."""
_SERVER_MEMBERS = ("tools", "mcp_servers")

_SHORTEST_SECRET = 6
_LONG, _PREFIX = 16, 8
"""A secret of at least this many characters is recognised by its first few, even if the rest is
missing."""
_SHORTEST_PIECE = 4
_HIDDEN = re.compile(r"\[key\](?:[^\s\"'<>,)]*[A-Za-z0-9][^\s\"'<>,)]*)?(?:\s[^\s\"'<>,)]+)*")
"""The mark of a hidden secret, with the rest of its word and the words after it."""
_BREAK = r"(?:\s|\\{1,7}[nr])"
"""A line break, literally or as JSON writes it, since base64 may be written in lines."""
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"}
_SDK_PREFIX, _SIGNATURE_PREFIX = "x-stainless-", "AWS4-"
_MOST_REMEMBERED = 64


def secrets_of(url: str, headers: Mapping[str, str]) -> list[str]:
    """Return the values of headers that may be secret, with and without a scheme such as `Bearer`,
    and those in a URL."""
    secrets = url_secrets(url)
    for name, value in headers.items():
        if name.lower() not in HARMLESS:
            secrets += parts_of(value)
    return secrets


def parts_of(value: str) -> list[str]:
    """Return a header's value, its last word (after `Bearer`), the value of each pair in it, such
    as a cookie's, and the login in it, since a provider may repeat any of them alone."""
    last_word = value.rpartition(" ")[2]
    pairs = (pair.partition("=")[2].strip(' "') for pair in re.split("[;,]", value))
    parts = [value, last_word, *filter(None, pairs)]
    if value.lower().startswith("basic "):
        with suppress(binascii.Error, UnicodeDecodeError):
            login = base64.b64decode(last_word, validate=True).decode()
            parts += [login, *login.split(":", 1)]
    return parts


def in_base64(secret: str) -> set[str]:
    """Return the base64 characters of a secret that do not depend on the text around it."""
    forms = set()
    for padding, start in ((0, 0), (1, 2), (2, 3)):
        data = bytes(padding) + secret.encode("utf-8", "surrogatepass")
        end = len(data) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            forms.add(encode(data).decode()[start:end])
    return forms


def longest_word(secret: str) -> str:
    """Return a part of the secret that has only one spelling, to be looked for first."""
    return max(re.split(r"[^A-Za-z0-9]+", secret), key=len)


def secrets_in(body: bytes) -> list[str]:
    """Return the keys for other servers in a request's tools, which the provider is to call."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return []
    unvisited = [request.get(name) for name in _SERVER_MEMBERS] if isinstance(request, dict) else []
    secrets: list[str] = []
    while unvisited:
        value = unvisited.pop()
        unvisited += value if isinstance(value, list) else ()
        for name, member in value.items() if isinstance(value, dict) else ():
            if name == "headers" and isinstance(member, dict):
                secrets += secrets_of("", {k: v for k, v in member.items() if isinstance(v, str)})
            elif isinstance(member, str) and SECRET_MEMBER.fullmatch(name):
                secrets += parts_of(member)
            elif isinstance(member, str) and names_server(member):
                secrets += secrets_of(member, {})
            else:
                unvisited.append(member)
    return secrets


def remembered(earlier: tuple[str, ...], url: str, headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets of earlier requests and those of one more, to which keys were added
    on the way. What an SDK tells about its machine is no secret, and neither is a signature."""
    own_headers = {
        name: value
        for name, value in headers.items()
        if not name.lower().startswith(_SDK_PREFIX) and not value.startswith(_SIGNATURE_PREFIX)
    }
    latest = secrets_of(url, own_headers)
    return (*(secret for secret in earlier if secret not in latest), *latest)[-_MOST_REMEMBERED:]


def hidden(text: str, secrets: Iterable[str]) -> str:
    """Return the text without the secrets. Strings of fewer than six characters do not count as
    secrets."""
    secrets = {candidate for candidate in secrets if len(candidate) >= _SHORTEST_SECRET}
    unbroken_text = re.sub(_BREAK, "", text)
    base64_forms = {
        form
        for candidate in secrets
        for form in in_base64(candidate)
        if longest_word(form) in unbroken_text
    }
    secrets = sorted(secrets | base64_forms, key=len, reverse=True)
    for secret in secrets:
        start_pattern = _spelled(secret[:_PREFIX])  # compiling a whole long token takes 0.1 s
        if re.search(start_pattern, text, re.IGNORECASE):
            text = re.sub(_pattern(secret), "[key]", text, flags=re.IGNORECASE)
    long_secrets = [secret for secret in secrets if len(secret) >= _LONG]
    return (
        _HIDDEN.sub(lambda match: _without_rest(match[0], long_secrets), text)
        if long_secrets
        else text
    )


def _without_rest(text: str, secrets: Iterable[str]) -> str:
    """Drop the words after a leading `[key]` that are the rest of a long secret.

    The beginning of a key may have been hidden for its looks alone (`safe_text`), up to an escaped
    character or the end of a line. The rest of it is recognised by what it follows.
    """
    mark, *words = text.split()
    rest = text[len(mark) :]
    for word in words:
        if not any(_is_piece(word, secret) for secret in secrets):
            break
        rest = rest.lstrip()[len(word) :]
    return f"[key]{rest}"


def _is_piece(word: str, secret: str) -> bool:
    bare = unquote(unescape(word.rstrip(".;:!?"))).lower()
    return len(bare) >= _SHORTEST_PIECE and bare in secret.lower()


def _pattern(secret: str) -> str:
    if len(secret) < _LONG:
        return _spelled(secret)
    rest = rf"{_break_before(secret[_PREFIX])}{_spelled(secret[_PREFIX:])}|[^\s\"'<>,)]*"
    return f"{_spelled(secret[:_PREFIX])}(?:{rest})"


def _spelled(secret: str) -> str:
    """Return a pattern of these characters, with possible line breaks between them."""
    rest = (f"{_break_before(character)}{_spellings(character)}" for character in secret[1:])
    return "".join((_spellings(secret[0]), *rest))


def _break_before(character: str) -> str:
    """Return a pattern of what may stand before a character that is not the first one."""
    return r"\s?" if character.isspace() or character == "\\" else f"{_BREAK}*+"


def _spellings(character: str) -> str:
    """Return a character literally, and as escaped in JSON, in a URL and in HTML."""
    if character.isalnum():
        return character
    hex_code = f"{ord(character):02x}"
    return (
        rf"(?:\\?{re.escape(character)}|\\u00{hex_code}|%{hex_code}|&#x{hex_code};|&#{ord(character)};"
        f"|{re.escape(_ENTITIES.get(character, character))})"
    )
