"""AWS event streams, split on bytes: https://smithy.io/2.0/aws/amazon-eventstream.html

Every split of the same bytes gives the same events, in time linear in the bytes: a frame is joined
once, when its last byte has come, and counts only if both of its checksums do. An exception becomes
the error object that it is on other wires.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from functools import lru_cache

import orjson

from toolcrib.errors import WireError
from toolcrib.wire.sse import Event

_PRELUDE = struct.Struct(">III")  # whole length, length of the headers, CRC32 of the two
_CRC_SIZE = 4
_LEAST = _PRELUDE.size + _CRC_SIZE
_MOST_HEADERS = 128 * 1024
_MOST_PAYLOAD = 24 * 1024 * 1024
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Sizes of a header's value by its type, where they are fixed; 6 (bytes) and 7 (text) say theirs."""
_TORN = Event(b"", b"?")


class FrameStream:
    """The splitter. The name of an event is its `:event-type`, its data are the frame's payload."""

    __slots__ = ("_fault", "_held", "_need", "_pieces", "foreign")

    def __init__(self) -> None:
        self.foreign = 0
        self._pieces: list[bytes] = []
        self._held = 0
        self._need = _PRELUDE.size
        self._fault: WireError | None = None

    def feed(self, data: bytes) -> list[Event]:
        """The events that ended with `data`. Raises WireError, once those before the fault are out."""
        if self._fault is not None:
            raise self._fault
        self._pieces.append(data)
        self._held += len(data)
        if self._held < self._need:
            return []
        return self._cut(b"".join(self._pieces))

    def close(self) -> Event | None:
        """No JSON where a frame was torn, None at the end of one. Raises WireError as `feed` does."""
        if self._fault is not None:
            raise self._fault
        return _TORN if self._held else None

    def _cut(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        at, size = 0, len(data)
        try:
            while True:
                self._need = _PRELUDE.size
                if size - at < self._need:
                    break
                self._need, headers = _lengths(data, at)
                if size - at < self._need:
                    break
                events.append(_event(data[at : at + self._need], _PRELUDE.size + headers))
                at += self._need
        except WireError as fault:
            self._fault = fault
        self._pieces, self._held = [data[at:]] if at < size else [], size - at
        return events


def _lengths(data: bytes, at: int) -> tuple[int, int]:
    """Of the frame that begins there, and of its headers."""
    whole, headers, crc = _PRELUDE.unpack_from(data, at)
    if zlib.crc32(data[at : at + 8]) != crc:
        raise WireError("the reply is no AWS event stream: the checksum of a frame's head is wrong")
    payload = whole - headers - _LEAST
    if headers > _MOST_HEADERS or not 0 <= payload <= _MOST_PAYLOAD:
        raise WireError(f"a frame of the event stream claims to be {whole} bytes long")
    return whole, headers


def _event(frame: bytes, payload_at: int) -> Event:
    if zlib.crc32(frame[:-_CRC_SIZE]) != int.from_bytes(frame[-_CRC_SIZE:]):
        raise WireError("a frame of the event stream is damaged: its checksum is wrong")
    headers = _headers(frame[_PRELUDE.size : payload_at])
    payload = frame[payload_at:-_CRC_SIZE]
    if headers.get(":message-type", "event") == "event":
        return Event(headers.get(":event-type", "").encode(), payload)
    return Event(b"exception", _reported(headers, payload))


def _reported(headers: Mapping[str, str], payload: bytes) -> bytes:
    """An exception says its type in the headers and the rest in JSON, an error all in the headers."""
    kind = headers.get(":exception-type") or headers.get(":error-code") or "exception"
    try:
        said = orjson.loads(payload)
    except orjson.JSONDecodeError:
        said = payload.decode("utf-8", "replace")
    if not isinstance(said, dict):
        said = {"message": said or headers.get(":error-message", "")}
    try:
        return orjson.dumps({"error": said | {"type": kind}})
    except TypeError:  # nested more deeply than orjson writes
        return orjson.dumps({"error": {"type": kind}})


@lru_cache(maxsize=64)  # those of all deltas of a stream are the same
def _headers(data: bytes) -> Mapping[str, str]:
    """The headers that are text. Raises WireError for what is no list of headers."""
    headers: dict[str, str] = {}
    at = 0
    try:
        while at < len(data):
            name_end = at + 1 + data[at]
            name, kind = data[at + 1 : name_end].decode(), data[name_end]
            at = name_end + 1
            if kind in (6, 7):
                at, start = at + 2 + int.from_bytes(data[at : at + 2]), at + 2
                if kind == 7:  # text
                    headers[name] = data[start:at].decode()
            else:
                at += _SIZES[kind]
        if at == len(data):
            return headers
    except (IndexError, KeyError, UnicodeDecodeError):
        pass
    raise WireError("a frame of the event stream has headers that cannot be read")
