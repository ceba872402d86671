"""Where a key comes from. One in the environment goes only to the server that it is meant for."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from toolcrib.errors import AuthenticationError


def same_server(url: str, other: str) -> bool:
    """Whether two URLs name one host."""
    return urlsplit(url).hostname == urlsplit(other).hostname


def key_of(given: str | None, *names: str, looked_up: bool, needed: bool) -> str:
    """The key given, else, if it is to be `looked_up`, that of the first variable that holds one.

    Empty without any; raises AuthenticationError instead where one is `needed`.
    """
    key = (given or "").strip()
    if not key and looked_up:
        key = next(filter(None, (os.environ.get(name, "").strip() for name in names)), "")
    if not key and needed:
        raise AuthenticationError(f"there is no key: set {names[0]}, or pass api_key=…")
    return key
