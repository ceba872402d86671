"""Where requests go, with which headers, proxy and key, and what of it no error may show."""

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

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""https://www.rfc-editor.org/rfc/rfc9110#section-5.1"""


_ADDRESSES = ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL")


def joined(base: str, path: str) -> str:
    """Return `path` below `base`; a query in the base (Azure's `api-version`) stays at the end."""
    start, mark, query = base.partition("?")
    mark = "&" if mark and "?" in path else mark
    return f"{start.rstrip('/')}{path}{mark}{query}"


def names_server(url: str) -> bool:
    """Return whether it is an http:// or https:// URL with a host, without `#` or spaces."""
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:  # brackets that do not close, a port that is none
        return False
    return bool(whole) and url.isprintable() and not {" ", "#"} & set(url)


def given_or(base_url: str | None, known: str) -> str:
    """Return the base URL that was given, or the one that is known. Raises RequestError for an empty
    one, as from a variable that is not set: the request would go to somebody else's server."""
    if base_url is not None and not base_url.strip():
        raise RequestError("base_url= is empty: name a server, or leave it out for the usual one")
    return known if base_url is None else base_url


def checked_url(url: str) -> str:
    """Return the URL, without white space around it. Raises RequestError if
    none can be requested below it."""
    url = url.strip()
    if not names_server(url):
        held = (
            f"${name}" for name in _ADDRESSES if url and os.environ.get(name, "").strip() == url
        )
        raise RequestError(
            f"{next(held, 'the base URL')} must begin with http:// or https:// and name a server, "
            "without # or spaces"
        )
    return url


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of them. Raises RequestError for a name or a value that no header can have."""
    for name, value in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RequestError(f"{name!r} is not the name of a header")
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            raise RequestError(
                f"the value of the header {name!r} is no text, or holds a character that is not allowed"
            )
    return dict(headers)


def merged(headers: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Return all `others`, and those `headers` of which they have no other:
    names differ not by their case."""
    names = {name.lower() for name in others}
    return {name: value for name, value in headers.items() if name.lower() not in names} | dict(
        others
    )


# The proxy of the environment: `HTTPS_PROXY`, `HTTP_PROXY` or `ALL_PROXY`, but for `NO_PROXY`.

_HERE = ("localhost", "::1")


def proxy_of(url: str) -> str | None:
    """Return the proxy for a URL, None for none. Raises RequestError for one that cannot be used.

    `proxy:3128` is `http://proxy:3128`, as curl has it. This machine is asked without one.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    import urllib.request  # 15 ms, which `import toolcrib` need not pay

    proxies = urllib.request.getproxies()
    if not proxies or host in _HERE or host.startswith("127."):
        return None
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    server = parts.netloc.rpartition("@")[2]  # with its port, which NO_PROXY may name
    if not proxy or any(map(urllib.request.proxy_bypass, (host, server))):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not names_server(proxy):
        raise RequestError(
            "the proxy of the environment cannot be used: it must be an http:// one, and name a server"
        )
    return proxy


# Where a key comes from. One in the environment goes only to the server that it is meant for.


def same_server(url: str, other: str) -> bool:
    """Return whether two URLs name one host."""
    return urlsplit(url).hostname == urlsplit(other).hostname


def key_of(given: str | None, *names: str, looked_up: bool, needed: bool) -> str:
    """Return the key given, else, if it is to be `looked_up`, that of the
    first variable that holds one.

    Empty without any; raises AuthenticationError instead where one is `needed`, and RequestError for
    a variable that holds what no header can.
    """
    key = (given or "").strip()
    if not key and looked_up:
        found = ((name, os.environ.get(name, "").strip()) for name in names)
        name, key = next((each for each in found if each[1]), ("", ""))
        if not key.isascii() or not key.isprintable():
            raise RequestError(f"${name} holds a character that no header may have: set it anew")
    if not key and needed:
        raise AuthenticationError(
            f"there is no key: set {names[0]}, or in a program pass api_key=…"
        )
    return key


# What goes with a request and may not come back in an error's text: keys, tokens, passwords. They are
# hidden as they were given and as they go over the line: a login goes in base64.
#
# A provider that repeats one may write it in other characters, break the line in it, or cut it short:
# what begins as a long secret does is hidden to the end of the word.

HARMLESS = frozenset(
    (
        *("accept", "accept-encoding", "connection", "content-length", "content-type", "host"),
        *("user-agent", "anthropic-version", "anthropic-beta", "openai-beta", "x-amz-date"),
        *("http-referer", "x-title", "x-goog-api-client", "x-amzn-bedrock-accept"),
    )
)
"""The headers, in lower case, that hold nothing to hide."""

SECRET_MEMBER = re.compile(
    r"authorization(?:_?token)?|(?:x[-_])?api[-_]?key|(?:(?:access|refresh|id|bearer|auth)[-_]?)?token"
    r"|(?:client[-_]?)?secret|client[-_]?assertion|password|cookie",
    re.IGNORECASE,
)
"""The members of a request's JSON, by their names, that hold a key."""
_SERVERS = ("tools", "mcp_servers")

_SHORTEST = 6
_LONG, _TELLING = 16, 8
"""A secret of this many characters is identified by this many of them, the others missing."""
_PIECE = 4
_HIDDEN = re.compile(r"\[key\](?:[^\s\"'<>,)]*[A-Za-z0-9][^\s\"'<>,)]*)?(?:\s[^\s\"'<>,)]+)*")
"""The mark of a hidden secret, with the rest of its word and the words after it."""
_BREAK = r"(?:\s|\\{1,7}[nr])"
"""What ends a line, as it is or as JSON writes it: base64 comes in lines, too."""
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"}
_OF_SDK, _SIGNED = "x-stainless-", "AWS4-"
_REMEMBERED = 64


def secrets_of(url: str, headers: Mapping[str, str]) -> list[str]:
    """Return the values of headers that may hold one, with and without a scheme such
    as `Bearer`, and those in a URL.
    """
    found = url_secrets(url)
    for name, value in headers.items():
        if name.lower() not in HARMLESS:
            found += parts_of(value)
    return found


def parts_of(value: str) -> list[str]:
    """Return a header's value, its last word (behind `Bearer`), the value of each pair in it, such as a
    cookie's, and the login in it: a provider may repeat any of them alone."""
    last = value.rpartition(" ")[2]
    pairs = (pair.partition("=")[2].strip(' "') for pair in re.split("[;,]", value))
    found = [value, last, *filter(None, pairs)]
    if value.lower().startswith("basic "):
        with suppress(binascii.Error, UnicodeDecodeError):
            login = base64.b64decode(last, validate=True).decode()
            found += [login, *login.split(":", 1)]
    return found


def in_base64(secret: str) -> set[str]:
    """Return those of its characters in base64 that are the same whatever stands around it."""
    found = set()
    for before, unsure in ((0, 0), (1, 2), (2, 3)):
        data = bytes(before) + secret.encode("utf-8", "surrogatepass")
        sure = len(data) * 8 // 6
        for code in (base64.b64encode, base64.urlsafe_b64encode):
            found.add(code(data).decode()[unsure:sure])
    return found


def longest_word(secret: str) -> str:
    """Return a part that is written in one way only, to look for first."""
    return max(re.split(r"[^A-Za-z0-9]+", secret), key=len)


def secrets_in(body: bytes) -> list[str]:
    """Return the keys that a request's tools have for other servers, which the provider is to ask."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return []
    left = [said.get(name) for name in _SERVERS] if isinstance(said, dict) else []
    found: list[str] = []
    while left:
        value = left.pop()
        left += value if isinstance(value, list) else ()
        for name, item in value.items() if isinstance(value, dict) else ():
            if name == "headers" and isinstance(item, dict):
                found += secrets_of("", {k: v for k, v in item.items() if isinstance(v, str)})
            elif isinstance(item, str) and SECRET_MEMBER.fullmatch(name):
                found += parts_of(item)
            elif isinstance(item, str) and names_server(item):
                found += secrets_of(item, {})
            else:
                left.append(item)
    return found


def remembered(known: tuple[str, ...], url: str, headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets that are known of the last requests, and those of one more, which somebody
    gave its keys on the way. What an SDK tells of its machine is none, nor is a signature."""
    given = {
        name: value
        for name, value in headers.items()
        if not name.lower().startswith(_OF_SDK) and not value.startswith(_SIGNED)
    }
    latest = secrets_of(url, given)
    return (*(one for one in known if one not in latest), *latest)[-_REMEMBERED:]


def hidden(text: str, secrets: Iterable[str]) -> str:
    """Return the text without the secrets. What has less than six characters is none."""
    secrets = {one for one in secrets if len(one) >= _SHORTEST}
    joined = re.sub(_BREAK, "", text)
    coded = {form for one in secrets for form in in_base64(one) if longest_word(form) in joined}
    secrets = sorted(secrets | coded, key=len, reverse=True)
    for secret in secrets:
        begun = _spelled(secret[:_TELLING])  # the whole of a long token takes 0.1 s to compile
        if re.search(begun, text, re.IGNORECASE):
            text = re.sub(_pattern(secret), "[key]", text, flags=re.IGNORECASE)
    long = [secret for secret in secrets if len(secret) >= _LONG]
    return _HIDDEN.sub(lambda found: _without_rest(found[0], long), text) if long else text


def _without_rest(text: str, secrets: Iterable[str]) -> str:
    """Drop the words after a leading `[key]` that are the rest of a long secret.

    The beginning of a key may have been hidden by its looks alone (`safe_text`), up to a character of
    another form or the end of a line: the rest of it is told by what it follows.
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
    return len(bare) >= _PIECE and bare in secret.lower()


def _pattern(secret: str) -> str:
    if len(secret) < _LONG:
        return _spelled(secret)
    rest = rf"{_broken(secret[_TELLING])}{_spelled(secret[_TELLING:])}|[^\s\"'<>,)]*"
    return f"{_spelled(secret[:_TELLING])}(?:{rest})"


def _spelled(secret: str) -> str:
    """Return a pattern of these characters, between which a line may end."""
    rest = (f"{_broken(character)}{_forms(character)}" for character in secret[1:])
    return "".join((_forms(secret[0]), *rest))


def _broken(character: str) -> str:
    """Return a pattern of what may stand before a character that is not the first one."""
    return r"\s?" if character.isspace() or character == "\\" else f"{_BREAK}*+"


def _forms(character: str) -> str:
    """Return a character as it is, escaped in JSON, in a URL, or in HTML."""
    if character.isalnum():
        return character
    code = f"{ord(character):02x}"
    return (
        rf"(?:\\?{re.escape(character)}|\\u00{code}|%{code}|&#x{code};|&#{ord(character)};"
        f"|{re.escape(_ENTITIES.get(character, character))})"
    )
