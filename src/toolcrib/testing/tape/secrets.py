"""What of a request must never be in a file, and how it is taken out.

Every header is a secret unless it is known to hold none: a header that nobody thought of is masked too.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote, urlsplit

from toolcrib.clients import Outgoing

MASK = "[key]"
_MASK = MASK.encode()

_SHORTEST = 8
"""Characters. What is shorter ("EMPTY", "ollama") is what local servers are given for a key."""
_SHORTEST_UNNAMED = 12
"""The same for what is not called a secret: common words stay words."""
_HARMLESS = frozenset(
    (
        *("accept", "accept-encoding", "connection", "content-length", "content-type", "host"),
        *("user-agent", "anthropic-version", "anthropic-beta", "openai-beta", "x-amz-date"),
        *("http-referer", "x-title", "x-goog-api-client", "x-amzn-bedrock-accept"),
    )
)
_VARIABLE = re.compile(r"(_API_KEY|_ACCESS_KEY|_TOKEN|_TOKEN_BEDROCK|_SECRET|_PASSWORD)$")
_NAMED = re.compile(r"key|token|secret|passw|auth|sig|code|cred|cookie|session", re.IGNORECASE)


def secrets_of(request: Outgoing) -> set[str]:
    """What it is trusted with: in its headers, and in the login and the query of its URL.

    What variables of the environment hold whose names end as those of secrets do is one too: a
    transport may have a key of its own.
    """
    found = _least(_SHORTEST_UNNAMED, (v for n, v in os.environ.items() if _VARIABLE.search(n)))
    for name, value in request.headers.items():
        if name.lower() not in _HARMLESS:
            least = _SHORTEST if _NAMED.search(name) else _SHORTEST_UNNAMED
            found |= _least(least, _within(value))
    parts = urlsplit(request.url)
    found |= _least(_SHORTEST, (unquote(part) for part in (parts.username, parts.password) if part))
    query = (pair.partition("=") for pair in parts.query.split("&"))
    return found | _least(_SHORTEST, (unquote(v) for name, _, v in query if _NAMED.search(name)))


def _least(length: int, values: Iterable[str]) -> set[str]:
    return {value for value in values if len(value) >= length}


def masked_url(url: str, secrets: Iterable[str]) -> str:
    """The URL without its login, and with its secret parameters masked, however short."""
    parts = urlsplit(url)
    pairs = (pair.partition("=") for pair in parts.query.split("&"))
    query = "&".join(
        f"{name}={MASK}" if mark and _NAMED.search(name) else f"{name}{mark}{value}"
        for name, mark, value in pairs
    )
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], query=query, fragment="")
    return masked_text(bare.geturl(), secrets)


def masked_text(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets."""
    body = b"".join(masked([text.encode("utf-8", "surrogatepass")], secrets))
    return body.decode("utf-8", "surrogatepass")


def masked(chunks: list[bytes], secrets: Iterable[str]) -> list[bytes]:
    """The chunks without the secrets, also those that a cut goes through; others end where they did."""
    body = b"".join(chunks)
    there = [secret for secret in secrets if _longest_word(secret) in body]
    pattern = re.compile(b"|".join(map(_pattern, sorted(there, key=len, reverse=True))))
    spans = [found.span() for found in pattern.finditer(body)] if there else []
    if not spans:
        return chunks
    text = pattern.sub(_MASK, body)
    cuts = [0, *_moved(itertools.accumulate(map(len, chunks)), spans)]
    return [piece for start, end in itertools.pairwise(cuts) if (piece := text[start:end])]


def _moved(cuts: Iterable[int], spans: list[tuple[int, int]]) -> Iterator[int]:
    """Where cuts are once every span has become the mask; one within a span moves to its end."""
    at = shift = past = 0
    for cut in cuts:
        while at < len(spans) and spans[at][0] < cut:
            start, past = spans[at]
            shift += len(_MASK) - (past - start)
            at += 1
        yield max(cut, past) + shift


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


def _longest_word(secret: str) -> bytes:
    """A part that is written in one way only, to look for first."""
    return max(re.split(rb"[^A-Za-z0-9]+", secret.encode("utf-8", "surrogatepass")), key=len)


def _pattern(secret: str) -> bytes:
    """The secret, each character but letters and digits also as JSON and URLs may write it."""
    return b"".join(map(_character, secret))


def _character(character: str) -> bytes:
    plain = character.encode("utf-8", "surrogatepass")
    if plain.isalnum():
        return plain
    in_url = "".join(f"%{byte:02x}" for byte in plain)
    units = character.encode("utf-16-be", "surrogatepass").hex()
    in_json = "".join(f"\\\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
    escaped = f"(?i:{in_url}|{in_json})".encode()
    return b"(?:\\\\?" + re.escape(plain) + b"|" + escaped + b")"
