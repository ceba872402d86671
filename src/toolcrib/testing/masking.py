"""How secrets are removed from bytes, in whatever form they were written.

In addition to the known secrets of a request, everything in the form of a known provider's key is
one.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from toolcrib.clients import Outgoing
from toolcrib.clients.server import HARMLESS, SECRET_MEMBER, in_base64, longest_word, parts_of
from toolcrib.urls import SECRET_NAME, SECRET_VARIABLE, login_of, passwords_in

# The parts of a request that must never be in a file.
#
# Every header is a secret unless it is known to contain none, so that unknown headers are masked,
# too.

_MIN_LENGTH = 8
"""Characters. Shorter keys ("EMPTY", "ollama") are placeholders for local servers."""
_MIN_LENGTH_UNNAMED = 12
"""Characters that a value needs if its name does not call it a secret, so that common words are
kept."""
_CONVERSATION = frozenset(
    ("messages", "input", "contents", "system", "instructions", "systemInstruction")
)
"""Members whose texts are not searched by name, since a `password` may be any word there."""


def secrets_of(request: Outgoing) -> set[str]:
    """Return the secrets in a request's headers, in the login and the query of its URL, and in its
    body.

    A body contains keys for other servers if the provider is to ask them (remote MCP servers). The
    values of environment variables whose names are those of secrets count as well, since a
    transport may have a key of its own.
    """
    secrets = _in_environment() | _in_headers(request.headers) | _in_url(request.url)
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError):
        form = request.body.decode("utf-8", "replace")  # requests for tokens have this form
        return secrets | (
            _long_enough(_MIN_LENGTH, passwords_in(form)) if len(form) < 65_536 else set()
        )
    if isinstance(body, dict):
        secrets.update(*(_in_member(name, value) for name, value in _members(body)))
    return secrets


def _long_enough(length: int, values: Iterable[str]) -> set[str]:
    return {value for value in values if len(value) >= length}


def _in_environment() -> set[str]:
    named_values = [value for name, value in os.environ.items() if SECRET_VARIABLE.match(name)]
    others = set[str]().union(*map(passwords_in, os.environ.values()))
    return _long_enough(_MIN_LENGTH, named_values) | _long_enough(_MIN_LENGTH_UNNAMED, others)


def _in_headers(headers: Mapping[str, Any]) -> set[str]:
    secrets: set[str] = set()
    for name, value in headers.items():
        if isinstance(value, str) and name.lower() not in HARMLESS:
            min_length = _MIN_LENGTH if SECRET_NAME.search(name) else _MIN_LENGTH_UNNAMED
            secrets |= _long_enough(min_length, parts_of(value))
    return secrets


def _in_url(url: str) -> set[str]:
    return _long_enough(_MIN_LENGTH, passwords_in(url).union(login_of(url)))


def _members(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield all members, at any depth, that are no conversation. Items of a list have its name."""
    pending = [(name, value) for name, value in body.items() if name not in _CONVERSATION]
    while pending:
        name, value = pending.pop()
        yield name, value
        if isinstance(value, dict):
            pending.extend(value.items())
        elif isinstance(value, list):
            pending.extend((name, item) for item in value)


def _in_member(name: str, value: Any) -> set[str]:
    if name.lower() == "headers" and isinstance(value, dict):
        return _in_headers(value)
    if not isinstance(value, str):
        return set()
    if SECRET_MEMBER.fullmatch(name):
        return _long_enough(_MIN_LENGTH, parts_of(value))
    try:
        return _in_url(value) if value.lower().startswith(("http://", "https://")) else set()
    except ValueError:  # it only looked like a URL
        return set()


MASK = "[key]"
_MASK = MASK.encode()

_START = rb"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrtbf]))"
_KEY_FORMS: tuple[tuple[bytes, bytes], ...] = (
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
"""Forms of keys: bytes to look for first, and a pattern of the key, or with the key as its group."""
_KEY_PATTERNS = tuple((sign, re.compile(form)) for sign, form in _KEY_FORMS)


_RANDOM_KEY = re.compile(r"(?=.*\d)\w[\w+/=.~-]{19,}", re.ASCII)
_PREFIX_LENGTH = 12
"""A text that begins with this many characters of a long key counts as the key, since providers
repeat shortened keys."""


class Replacement(NamedTuple):
    """Bytes from `start` to `end` that are replaced by others."""

    start: int
    end: int
    new: bytes


def masked_url(url: str, secrets: Iterable[str]) -> str:
    """Return the URL without its login, and with its secret parameters masked, however short they
    are."""
    parts = urlsplit(url)
    pairs = (pair.partition("=") for pair in parts.query.split("&"))
    query = "&".join(
        f"{name}={MASK}"
        if equals and SECRET_NAME.search(unquote(name))
        else f"{name}{equals}{value}"
        for name, equals, value in pairs
    )
    public_parts = parts._replace(netloc=parts.netloc.rpartition("@")[2], query=query, fragment="")
    return masked_text(public_parts.geturl(), secrets)


def masked_text(text: str, secrets: Iterable[str]) -> str:
    """Return the text without the secrets."""
    body = b"".join(masked([text.encode("utf-8", "surrogatepass")], secrets))
    return body.decode("utf-8", "surrogatepass")


def masked(chunks: list[bytes], secrets: Iterable[str]) -> list[bytes]:
    """Return the chunks without the secrets, including those that are split between chunks. Other
    chunks end where they did."""
    return changed(
        chunks, [Replacement(*span, _MASK) for span in places(b"".join(chunks), secrets)]
    )


def changed(chunks: list[bytes], changes: list[Replacement]) -> list[bytes]:
    """Return the chunks with these replacements, which are in order and do not overlap."""
    if not changes:
        return chunks
    body = b"".join(chunks)
    starts = [0, *(change.end for change in changes)]
    parts = (
        body[start : change.start] + change.new
        for start, change in zip(starts, changes, strict=False)
    )
    text = b"".join((*parts, body[starts[-1] :]))
    cuts = [0, *_moved_cuts(itertools.accumulate(map(len, chunks)), changes)]
    return [piece for start, end in itertools.pairwise(cuts) if (piece := text[start:end])]


def _moved_cuts(cuts: Iterable[int], changes: list[Replacement]) -> Iterator[int]:
    """Yield the positions of cuts after the changes. A cut within a change moves to its end."""
    index = shift = change_end = 0
    for cut in cuts:
        while index < len(changes) and changes[index].start < cut:
            start, change_end, new = changes[index]
            shift += len(new) - (change_end - start)
            index += 1
        yield max(cut, change_end) + shift


def places(body: bytes, secrets: Iterable[str]) -> list[tuple[int, int]]:
    """Return the places of secrets, in order and without overlap.

    Rule: a search for a form of a secret allows line breaks between any two of its characters,
    since base64 is written in lines of 64 or 76 characters.
    """
    secrets = list(secrets)
    spans = [
        match.span() for pattern in _patterns(body, secrets) for match in pattern.finditer(body)
    ]
    spans += _over_lines(body, secrets)
    for hint, form in _KEY_PATTERNS:
        if hint in body:
            spans += [match.span(form.groups) for match in form.finditer(body)]
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _over_lines(body: bytes, secrets: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield the places of secrets whose characters are on several lines."""
    joined = _LINE_BREAK.sub(b"", body)
    if len(joined) == len(body):
        return
    patterns = (
        pattern for secret in _stripped(secrets) for pattern in _whole_patterns(joined, secret)
    )
    spans = sorted(match.span() for pattern in patterns for match in pattern.finditer(joined))
    if spans:
        # overlapping spans may pair starts and ends differently, but together they cover the same
        starts = _positions_in_body((start for start, _ in spans), body)
        ends = _positions_in_body(sorted(end - 1 for _, end in spans), body)
        yield from zip(starts, (end + 1 for end in ends), strict=True)


def _positions_in_body(positions: Iterable[int], body: bytes) -> Iterator[int]:
    """Yield the places in the body of places in a joined text, which are in order."""
    breaks, removed_length, line_break = _LINE_BREAK.finditer(body), 0, None
    for position in positions:
        while True:
            line_break = line_break or next(breaks, None)
            if line_break is None or line_break.start() - removed_length > position:
                break
            removed_length, line_break = removed_length + len(line_break[0]), None
        yield position + removed_length


def _stripped(secrets: Iterable[str]) -> Iterator[str]:
    return filter(None, map(str.strip, secrets))  # a secret read from a file may have a line end


def _whole_patterns(body: bytes, secret: str) -> Iterator[re.Pattern[bytes]]:
    """Yield patterns of the whole secret, in the forms that it may have in the body."""
    for form in (secret, *in_base64(secret)):
        if longest_word(form).encode() in body:
            yield re.compile(b"".join(map(_character_pattern, form)))


def _patterns(body: bytes, secrets: Iterable[str]) -> Iterator[re.Pattern[bytes]]:
    for secret in _stripped(secrets):
        yield from _whole_patterns(body, secret)
        if _RANDOM_KEY.fullmatch(secret) and longest_word(secret[:_PREFIX_LENGTH]).encode() in body:
            start, rest = (
                b"".join(map(_character_pattern, part))
                for part in (secret[:_PREFIX_LENGTH], secret[_PREFIX_LENGTH:])
            )
            yield re.compile(start + rb"(?:" + rest + rb"|[\w+/=~*-]*)")  # the whole one ends there


_SHORT_ESCAPES = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
"""What JSON writes after a backslash for characters that it must escape."""


def _character_pattern(character: str) -> bytes:
    """Return a pattern of a character. Characters other than letters and digits may also be escaped
    as in JSON, URLs, or both, up to twice."""
    plain = character.encode("utf-8", "surrogatepass")
    if plain.isalnum():
        return plain
    in_url = "".join(f"%(?:25){{0,3}}{byte:02x}" for byte in plain)
    units = character.encode("utf-16-be", "surrogatepass").hex()
    in_json = "".join(
        f"\\\\{{1,7}}u{units[offset : offset + 4]}" for offset in range(0, len(units), 4)
    )
    in_json += f"|\\\\{{1,7}}(?-i:{short})" if (short := _SHORT_ESCAPES.get(character)) else ""
    in_form = r"|\+" if character == " " else ""
    escaped = f"(?i:{in_url}|{in_json}){in_form}".encode()
    return b"(?:\\\\{0,7}" + re.escape(plain) + b"|" + escaped + b")"


_LINE_BREAK = re.compile(
    rb"(?:(?:[\r\n]|\\{1,7}(?:[nr\r\n]|u000[aAdD])|%(?:25){0,3}0[aAdD])[ \t]*)+"
)
"""Line ends, literally or as JSON and URLs write them, with the indentation of the next line."""


# Secrets that an answer spells piece by piece, with a few letters in each event of its stream, or
# with escapes of letters that JSON need not escape.
#
# The texts at the same place of all events are joined, as their readers join them: all of them, and
# those of each index apart, since the events of parallel calls may alternate.

_JSON_LINE = re.compile(
    rb"(?:^|(?<=\r))(?:\xef\xbb\xbf)?(?:data:[ \t]*)?(\{[^\r\n]*\})[ \t]*(?:\r|$)", re.MULTILINE
)
_ESCAPED_LETTER = re.compile(rb"\\u00(?:3[0-9]|[46][1-9a-f]|[57][0-9a])", re.IGNORECASE)
_INDEX = re.compile("(?:.*_)?index|.*Index|item_id")
"""Names of members that say which of several texts an event continues."""
_PRELUDE = struct.Struct(">II")  # total length, length of the headers
_PRELUDE_SIZE, _CRC_SIZE = 12, 4


def unspelled(chunks: list[bytes], secrets: Iterable[str]) -> list[bytes]:
    """Return the chunks of an event stream, or of JSON, without the secrets that its texts spell.
    Other chunks are returned unchanged.

    An AWS event stream contains no secret at all afterwards, and its frames are valid.
    """
    body = b"".join(chunks)
    is_framed = body.startswith(b"\0")
    events = list(_frames(body) if is_framed else _json_lines(body))
    if len(events) < 2 and not is_framed:
        value = _json_value(body) if _ESCAPED_LETTER.search(body) else None
        if value is None:
            return chunks
        events = [_LocatedValue(0, len(body), value)]
    texts: dict[tuple[Any, ...], list[_Leaf]] = defaultdict(list)
    for event in events:
        for leaf in _leaves(event):
            texts[leaf.path].append(leaf)
            if leaf.indexes:
                texts[leaf.names, leaf.indexes].append(leaf)
    touched_ids = {id(event) for leaves in texts.values() for event in _hide(leaves, list(secrets))}
    return changed(chunks, [_replacement_of(event) for event in events if id(event) in touched_ids])


class _LocatedValue(NamedTuple):
    """A JSON value and its place. For a frame, `head` are the bytes between its head and the value."""

    start: int
    end: int
    value: Any
    head: bytes | None = None


class _Leaf(NamedTuple):
    """A text in an event: `holder[key]`. `indexes` are those of the objects that it is in."""

    event: _LocatedValue
    path: tuple[Any, ...]
    indexes: tuple[Any, ...]
    holder: Any
    key: Any

    @property
    def names(self) -> tuple[str, ...]:
        """The path without places in lists, which change where an event continues several texts."""
        return tuple(part for part in self.path if isinstance(part, str))


def _json_lines(body: bytes) -> Iterator[_LocatedValue]:
    for match in _JSON_LINE.finditer(body):
        value = _json_value(match[1])
        if value is not None:
            yield _LocatedValue(*match.span(1), value)


def _frames(body: bytes) -> Iterator[_LocatedValue]:
    """Yield the complete frames: https://smithy.io/2.0/aws/amazon-eventstream.html"""
    offset = 0
    while offset + _PRELUDE_SIZE <= len(body):
        size, headers_size = _PRELUDE.unpack_from(body, offset)
        payload_start, end = offset + _PRELUDE_SIZE + headers_size, offset + size - _CRC_SIZE
        if payload_start > end or offset + size > len(body):
            return
        value = _json_value(body[payload_start:end])
        if value is not None:
            yield _LocatedValue(
                offset, offset + size, value, body[offset + _PRELUDE_SIZE : payload_start]
            )
        offset += size


def _json_value(data: bytes) -> Any:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _leaves(event: _LocatedValue) -> Iterator[_Leaf]:
    pending: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = [(event.value, (), ())]
    while pending:
        holder, path, indexes = pending.pop()
        members = list(holder.items() if isinstance(holder, dict) else enumerate(holder))
        indexes += tuple(
            value
            for key, value in members
            if isinstance(key, str) and isinstance(value, int | str) and _INDEX.fullmatch(key)
        )
        for key, value in members:
            if isinstance(value, str):
                yield _Leaf(event, (*path, key), indexes, holder, key)
            elif isinstance(value, dict | list):
                pending.append((value, (*path, key), indexes))


def _hide(leaves: list[_Leaf], secrets: list[str]) -> Iterator[_LocatedValue]:
    """Yield the events that it changes: a secret's first piece becomes a mask, others nothing."""
    pieces = [leaf.holder[leaf.key].encode("utf-8", "surrogatepass") for leaf in leaves]
    spans = places(b"".join(pieces), secrets)
    if not spans:
        return
    starts, ends = zip(*spans, strict=True)
    offset = 0
    for leaf, piece in zip(leaves, pieces, strict=True):
        piece_end = offset + len(piece)
        piece_spans = spans[bisect_right(ends, offset) : bisect_left(starts, piece_end)]
        if piece_spans:
            replacements = [
                Replacement(
                    max(start - offset, 0),
                    min(end - offset, len(piece)),
                    _MASK if start >= offset else b"",
                )
                for start, end in piece_spans
            ]
            text = b"".join(changed([piece], replacements))
            leaf.holder[leaf.key] = text.decode("utf-8", "surrogatepass")
            yield leaf.event
        offset = piece_end


def _replacement_of(event: _LocatedValue) -> Replacement:
    text = json.dumps(event.value, separators=(",", ":"))
    if event.head is None:
        return Replacement(event.start, event.end, text.encode())
    size = _PRELUDE_SIZE + len(event.head) + len(text) + _CRC_SIZE
    prelude = _PRELUDE.pack(size, len(event.head))
    frame = prelude + zlib.crc32(prelude).to_bytes(4) + event.head + text.encode()
    return Replacement(event.start, event.end, frame + zlib.crc32(frame).to_bytes(4))
