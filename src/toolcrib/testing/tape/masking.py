"""How secrets are taken out of bytes, in whatever form somebody wrote them.

Besides the secrets that a request is known to hold, what has the form of a known provider's key is one.
"""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from toolcrib.testing.tape.secrets import SECRET_PARAMETER

MASK = "[key]"
_MASK = MASK.encode()

_START = rb"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrtbf]))"
_FORMS: tuple[tuple[bytes, bytes], ...] = (
    (b"sk-", _START + rb"sk-(?=[A-Za-z_-]*\d)[\w-]{16,}|" + _START + rb"sk-[\w-]*\*{3,}[\w-]*"),
    (b"_", _START + rb"(?:gsk|hf|r8|gh[pousr])_[A-Za-z0-9]{30,}"),
    (b"github_pat_", _START + rb"github_pat_\w{50,}"),
    (b"-", _START + rb"(?:xai|csk|nvapi|pplx|glpat|xox[abprs])-(?=[A-Za-z_-]*\d)[\w-]{20,}"),
    (b"AIza", _START + rb"AIza[\w-]{35}"),
    (b"ya29.", _START + rb"ya29\.[\w.-]{20,}"),
    (b"A", _START + rb"(?:AKIA|ASIA)[A-Z0-9]{16}"),
    (b"ABSK", _START + rb"ABSK[A-Za-z0-9+/=]{40,}"),
    (b"bedrock-api-key-", rb"bedrock-api-key-[A-Za-z0-9+/=]{20,}"),
    (b"eyJ", _START + rb"eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"),
    (b"PRIVATE KEY", rb"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]+-----END [A-Z ]*PRIVATE KEY-----"),
    (b"-", rb"(?i:x-amz-(?:security-token|signature|credential))[:=]([^&\s\"\\]+)"),
    (b"_token", rb'(?:access|refresh|id)_token\\*"\s*:\s*\\*"([^"\\]{8,})'),
    (b"org-", _START + rb"org-[A-Za-z0-9]{20,}"),
)
"""What a text has that holds such a key, to look for first, and the key, or its group."""
_KNOWN = tuple((sign, re.compile(form)) for sign, form in _FORMS)


_RANDOM = re.compile(r"(?=.*\d)\w[\w+/=.~-]{19,}", re.ASCII)
_TELLING = 12
"""What begins as a long key does is one too: providers repeat a key cut short."""


class Change(NamedTuple):
    """Bytes from `start` to `end` that become others."""

    start: int
    end: int
    new: bytes


def masked_url(url: str, secrets: Iterable[str]) -> str:
    """The URL without its login, and with its secret parameters masked, however short."""
    parts = urlsplit(url)
    pairs = (pair.partition("=") for pair in parts.query.split("&"))
    query = "&".join(
        f"{name}={MASK}" if mark and SECRET_PARAMETER.search(name) else f"{name}{mark}{value}"
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
    return changed(chunks, [Change(*span, _MASK) for span in places(b"".join(chunks), secrets)])


def changed(chunks: list[bytes], changes: list[Change]) -> list[bytes]:
    """The chunks with these changes, which are in order and apart."""
    if not changes:
        return chunks
    body = b"".join(chunks)
    starts = [0, *(change.end for change in changes)]
    kept = (
        body[start : change.start] + change.new
        for start, change in zip(starts, changes, strict=False)
    )
    text = b"".join((*kept, body[starts[-1] :]))
    cuts = [0, *_moved(itertools.accumulate(map(len, chunks)), changes)]
    return [piece for start, end in itertools.pairwise(cuts) if (piece := text[start:end])]


def _moved(cuts: Iterable[int], changes: list[Change]) -> Iterator[int]:
    """Where cuts are after the changes; one within a change moves to its end."""
    at = shift = past = 0
    for cut in cuts:
        while at < len(changes) and changes[at].start < cut:
            start, past, new = changes[at]
            shift += len(new) - (past - start)
            at += 1
        yield max(cut, past) + shift


def places(body: bytes, secrets: Iterable[str]) -> list[tuple[int, int]]:
    """Where secrets are, in order and apart."""
    spans = [
        found.span() for pattern in _patterns(body, secrets) for found in pattern.finditer(body)
    ]
    for sign, form in _KNOWN:
        if sign in body:
            spans += [found.span(form.groups) for found in form.finditer(body)]
    apart: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if apart and start < apart[-1][1]:
            apart[-1] = apart[-1][0], max(end, apart[-1][1])
        else:
            apart.append((start, end))
    return apart


def _patterns(body: bytes, secrets: Iterable[str]) -> Iterator[re.Pattern[bytes]]:
    for secret in secrets:
        for form in (secret, *_in_base64(secret)):
            if _longest_word(form) in body:
                yield re.compile(b"".join(map(_character, form)))
        if _RANDOM.fullmatch(secret) and _longest_word(secret[:_TELLING]) in body:
            yield re.compile(b"".join(map(_character, secret[:_TELLING])) + rb"[\w+/=~*-]*")


def _in_base64(secret: str) -> set[str]:
    """Those of its characters that are the same whatever stands before and after it."""
    found = set()
    for before, unsure in ((0, 0), (1, 2), (2, 3)):
        data = bytes(before) + secret.encode("utf-8", "surrogatepass")
        sure = len(data) * 8 // 6
        for code in (base64.b64encode, base64.urlsafe_b64encode):
            found.add(code(data).decode()[unsure:sure])
    return found


def _longest_word(secret: str) -> bytes:
    """A part that is written in one way only, to look for first."""
    return max(re.split(rb"[^A-Za-z0-9]+", secret.encode("utf-8", "surrogatepass")), key=len)


def _character(character: str) -> bytes:
    """A character; all but letters and digits also as JSON and URLs may write it, or both, twice."""
    plain = character.encode("utf-8", "surrogatepass")
    if plain.isalnum():
        return plain
    in_url = "".join(f"%(?:25){{0,3}}{byte:02x}" for byte in plain)
    units = character.encode("utf-16-be", "surrogatepass").hex()
    in_json = "".join(f"\\\\{{1,7}}u{units[at : at + 4]}" for at in range(0, len(units), 4))
    escaped = f"(?i:{in_url}|{in_json})".encode()
    return b"(?:\\\\{0,7}" + re.escape(plain) + b"|" + escaped + b")"
