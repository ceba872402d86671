"""Secrets that an answer spells piece by piece: a few letters in each event of its stream.

What is joined is the text at one place of all events, as their readers join it.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from toolcrib.testing.tape.masking import MASK, Change, changed, places

_MASK = MASK.encode()
_LINE = re.compile(
    rb"(?:^|(?<=\r))(?:\xef\xbb\xbf)?(?:data:[ \t]*)?(\{[^\r\n]*\})[ \t]*(?:\r|$)", re.MULTILINE
)
_HEAD = struct.Struct(">II")  # whole length, length of the headers
_HEAD_SIZE, _CRC_SIZE = 12, 4


def unspelled(chunks: list[bytes], secrets: Iterable[str]) -> list[bytes]:
    """The chunks of an event stream without what its events spell; those of anything else as they are.

    An AWS event stream has no secret in it at all afterwards, and is whole.
    """
    body = b"".join(chunks)
    framed = body.startswith(b"\0")
    events = list(_frames(body) if framed else _lines(body))
    if len(events) < 2 and not framed:
        return chunks
    texts: dict[tuple[Any, ...], list[_Leaf]] = defaultdict(list)
    for event in events:
        for leaf in _leaves(event):
            texts[leaf.place].append(leaf)
    touched = {id(event) for leaves in texts.values() for event in _hide(leaves, list(secrets))}
    return changed(chunks, [_change(event) for event in events if id(event) in touched])


class _Event(NamedTuple):
    """A JSON value and where it is. Of a frame, `head` are the bytes between its head and it."""

    start: int
    end: int
    value: Any
    head: bytes | None = None


class _Leaf(NamedTuple):
    """A text in an event: `holder[key]`."""

    event: _Event
    place: tuple[Any, ...]
    holder: Any
    key: Any


def _lines(body: bytes) -> Iterator[_Event]:
    for found in _LINE.finditer(body):
        value = _value(found[1])
        if value is not None:
            yield _Event(*found.span(1), value)


def _frames(body: bytes) -> Iterator[_Event]:
    """Those that are whole: https://smithy.io/2.0/aws/amazon-eventstream.html"""
    at = 0
    while at + _HEAD_SIZE <= len(body):
        size, headers = _HEAD.unpack_from(body, at)
        payload, end = at + _HEAD_SIZE + headers, at + size - _CRC_SIZE
        if payload > end or at + size > len(body):
            return
        value = _value(body[payload:end])
        if value is not None:
            yield _Event(at, at + size, value, body[at + _HEAD_SIZE : payload])
        at += size


def _value(data: bytes) -> Any:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _leaves(event: _Event) -> Iterator[_Leaf]:
    left: list[tuple[Any, tuple[Any, ...]]] = [(event.value, ())]
    while left:
        holder, place = left.pop()
        members = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, value in list(members):
            if isinstance(value, str):
                yield _Leaf(event, (*place, key), holder, key)
            elif isinstance(value, dict | list):
                left.append((value, (*place, key)))


def _hide(leaves: list[_Leaf], secrets: list[str]) -> Iterator[_Event]:
    """The events whose texts it changes: a secret is masked in its first piece, cut from the others."""
    pieces = [leaf.holder[leaf.key].encode("utf-8", "surrogatepass") for leaf in leaves]
    spans = places(b"".join(pieces), secrets)
    if not spans:
        return
    starts, ends = zip(*spans, strict=True)
    at = 0
    for leaf, piece in zip(leaves, pieces, strict=True):
        until = at + len(piece)
        inside = spans[bisect_right(ends, at) : bisect_left(starts, until)]
        if inside:
            cuts = [
                Change(max(start - at, 0), min(end - at, len(piece)), _MASK if start >= at else b"")
                for start, end in inside
            ]
            text = b"".join(changed([piece], cuts))
            leaf.holder[leaf.key] = text.decode("utf-8", "surrogatepass")
            yield leaf.event
        at = until


def _change(event: _Event) -> Change:
    text = json.dumps(event.value, separators=(",", ":"))
    if event.head is None:
        return Change(event.start, event.end, text.encode())
    size = _HEAD_SIZE + len(event.head) + len(text) + _CRC_SIZE
    prelude = _HEAD.pack(size, len(event.head))
    frame = prelude + zlib.crc32(prelude).to_bytes(4) + event.head + text.encode()
    return Change(event.start, event.end, frame + zlib.crc32(frame).to_bytes(4))
