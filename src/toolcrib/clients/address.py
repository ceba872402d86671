"""Where requests go: base URLs, and the headers that go with them, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from toolcrib.errors import RequestError


def joined(base: str, path: str) -> str:
    """`path` below `base`; a query in the base (Azure's `api-version`) stays at the end."""
    start, mark, query = base.partition("?")
    mark = "&" if mark and "?" in path else mark
    return f"{start.rstrip('/')}{path}{mark}{query}"


def checked_url(url: str) -> str:
    """The URL itself. Raises RequestError if it is none that can be requested."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:  # brackets that do not close, a port that is none
        usable = False
    if not usable:
        raise RequestError("the base URL must begin with http:// or https:// and name a server")
    return url


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """A copy of them. Raises RequestError for a value that no header can have."""
    for name, value in headers.items():
        if not value.isascii() or not value.isprintable():
            raise RequestError(
                f"the value of the header {name!r} holds a character that is not allowed"
            )
    return dict(headers)
