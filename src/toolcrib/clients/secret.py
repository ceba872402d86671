"""What goes with a request and may not come back in an error's text: keys, tokens, passwords.

A provider that repeats one may write it in other characters, break the line in it, or cut it short:
what begins as a long secret does is hidden to the end of the word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote, urlsplit

HARMLESS = frozenset(
    (
        *("accept", "accept-encoding", "connection", "content-length", "content-type", "host"),
        *("user-agent", "anthropic-version", "anthropic-beta", "openai-beta", "x-amz-date"),
        *("http-referer", "x-title", "x-goog-api-client", "x-amzn-bedrock-accept"),
    )
)
"""The headers, in lower case, that hold nothing to hide."""

_SHORTEST = 6
_LONG, _TELLING = 16, 8
"""Of a secret of so many characters, so many tell what it is, though the others be missing."""
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"}
_PUBLIC = frozenset(("api-version", "alt"))


def secrets_of(url: str, headers: Mapping[str, str]) -> list[str]:
    """The values of headers that may hold one, with and without a scheme such as `Bearer`, and those
    in a URL.
    """
    parts = urlsplit(url)
    members = (member.partition("=") for member in parts.query.split("&"))
    found = [unquote(value) for name, _, value in members if name not in _PUBLIC]
    found += map(unquote, parts.netloc.rpartition("@")[0].split(":"))
    for name, value in headers.items():
        if name.lower() not in HARMLESS:
            found += [value, value.rpartition(" ")[2]]
    return found


def hidden(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets. What has less than six characters is none."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        begun = _spelled(secret[:_TELLING])  # the whole of a long token takes 0.1 s to compile
        if len(secret) >= _SHORTEST and re.search(begun, text, re.IGNORECASE):
            text = re.sub(_pattern(secret), "[key]", text, flags=re.IGNORECASE)
    return text


def _pattern(secret: str) -> str:
    if len(secret) < _LONG:
        return _spelled(secret)
    return f"{_spelled(secret[:_TELLING])}(?:{_spelled(secret[_TELLING:])}|[^\\s\"'<>,)]*)"


def _spelled(secret: str) -> str:
    return "".join(rf"\s?{_forms(character)}" for character in secret).removeprefix(r"\s?")


def _forms(character: str) -> str:
    """A character as it is, escaped in JSON, in a URL, or in HTML."""
    if character.isalnum():
        return character
    code = f"{ord(character):02x}"
    return (
        rf"(?:\\?{re.escape(character)}|\\u00{code}|%{code}|&#x{code};|&#{ord(character)};"
        f"|{re.escape(_ENTITIES.get(character, character))})"
    )
