"""What of a request must never be in a file.

Every header is a secret unless it is known to hold none: a header that nobody thought of is masked too.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from toolcrib.clients import Outgoing
from toolcrib.clients.secret import HARMLESS

SECRET_PARAMETER = re.compile(
    r"key|token|secret|passw|auth|sig|code|cred|cookie|session", re.IGNORECASE
)

_SHORTEST = 8
"""Characters. What is shorter ("EMPTY", "ollama") is what local servers are given for a key."""
_SHORTEST_UNNAMED = 12
"""The same for what is not called a secret: common words stay words."""
_VARIABLE = re.compile(
    r"(?:(?:^|_)(?:API_?KEY|KEY|KEY_ID|TOKEN|TOKEN_BEDROCK|SECRET|PASS|PAT)|PASSWORD|PASSWD)$",
    re.IGNORECASE,
)
_LOGIN = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")
_MEMBER = re.compile(
    r"authorization(?:_?token)?|(?:x[-_])?api[-_]?key|(?:(?:access|refresh|id|bearer|auth)[-_]?)?token"
    r"|(?:client[-_]?)?secret|client[-_]?assertion|password|cookie",
    re.IGNORECASE,
)
_CONVERSATION = frozenset(
    ("messages", "input", "contents", "system", "instructions", "systemInstruction")
)
"""What is said is not searched by name: there, a `password` may be any word."""


def secrets_of(request: Outgoing) -> set[str]:
    """What it is trusted with: in its headers, in the login and the query of its URL, in its body.

    A body has keys for other servers where the provider is to ask them (remote MCP servers). What
    variables of the environment hold whose names end as those of secrets do is one too: a transport
    may have a key of its own.
    """
    found = _in_environment() | _in_headers(request.headers) | _in_url(request.url)
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError):
        form = request.body.decode("utf-8", "replace")  # a token is asked for in this form
        return found | (_in_query(form) if len(form) < 65_536 else set())
    if isinstance(body, dict):
        found.update(*(_in_member(name, value) for name, value in _members(body)))
    return found


def _least(length: int, values: Iterable[str]) -> set[str]:
    return {value for value in values if len(value) >= length}


def _in_environment() -> set[str]:
    held = [value for name, value in os.environ.items() if _VARIABLE.search(name)]
    held += [unquote(login) for value in os.environ.values() for login in _LOGIN.findall(value)]
    return _least(_SHORTEST_UNNAMED, held)


def _in_headers(headers: Mapping[str, Any]) -> set[str]:
    found: set[str] = set()
    for name, value in headers.items():
        if isinstance(value, str) and name.lower() not in HARMLESS:
            least = _SHORTEST if SECRET_PARAMETER.search(name) else _SHORTEST_UNNAMED
            found |= _least(least, _within(value))
    return found


def _in_url(url: str) -> set[str]:
    parts = urlsplit(url)
    login = [unquote(part) for part in (parts.username, parts.password) if part]
    coded = base64.b64encode(":".join(login).encode()).decode() if login else ""
    return _least(_SHORTEST, [*login, coded]) | _in_query(parts.query)


def _in_query(query: str) -> set[str]:
    pairs = (pair.partition("=") for pair in query.split("&"))
    return _least(_SHORTEST, (unquote(v) for name, _, v in pairs if SECRET_PARAMETER.search(name)))


def _members(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """All members at all depths of what is no conversation; those of a list have its name."""
    left = [(name, value) for name, value in body.items() if name not in _CONVERSATION]
    while left:
        name, value = left.pop()
        yield name, value
        if isinstance(value, dict):
            left.extend(value.items())
        elif isinstance(value, list):
            left.extend((name, item) for item in value)


def _in_member(name: str, value: Any) -> set[str]:
    if name.lower() == "headers" and isinstance(value, dict):
        return _in_headers(value)
    if not isinstance(value, str):
        return set()
    if _MEMBER.fullmatch(name):
        return _least(_SHORTEST, _within(value))
    try:
        return _in_url(value) if value.startswith(("http://", "https://")) else set()
    except ValueError:  # it only looks like a URL
        return set()


def _within(value: str) -> set[str]:
    """A header's value, and what may be a secret in it: `Bearer KEY`, `a=KEY; b=KEY`, a login."""
    last = value.rpartition(" ")[2]
    found = {value, last, *(pair.partition("=")[2] for pair in re.split(r"[;,]\s*", value))}
    if value.lower().startswith("basic "):
        try:
            login = base64.b64decode(last, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return found
        found |= {login, login.partition(":")[2]}
    return found
