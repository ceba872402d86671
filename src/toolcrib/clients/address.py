"""Where requests go: base URLs, and the headers that go with them, checked before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from toolcrib.errors import RequestError

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""https://www.rfc-editor.org/rfc/rfc9110#section-5.1"""


def joined(base: str, path: str) -> str:
    """`path` below `base`; a query in the base (Azure's `api-version`) stays at the end."""
    start, mark, query = base.partition("?")
    mark = "&" if mark and "?" in path else mark
    return f"{start.rstrip('/')}{path}{mark}{query}"


def names_server(url: str) -> bool:
    """Whether it is an http:// or https:// URL with a host, without `#` or spaces."""
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:  # brackets that do not close, a port that is none
        return False
    return bool(whole) and url.isprintable() and not {" ", "#"} & set(url)


def checked_url(url: str) -> str:
    """The URL, without white space around it. Raises RequestError if none can be requested below it."""
    url = url.strip()
    if not names_server(url):
        raise RequestError(
            "the base URL must begin with http:// or https:// and name a server, without # or spaces"
        )
    return url


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """A copy of them. Raises RequestError for a name or a value that no header can have."""
    for name, value in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RequestError(f"{name!r} is not the name of a header")
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            raise RequestError(
                f"the value of the header {name!r} is no text, or holds a character that is not allowed"
            )
    return dict(headers)


def merged(headers: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """All `others`, and those `headers` of which they have no other: names differ not by their case."""
    names = {name.lower() for name in others}
    return {name: value for name, value in headers.items() if name.lower() not in names} | dict(
        others
    )
