"""Split streams into events: server-sent events, JSON lines, AWS event streams."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from functools import lru_cache

import msgspec
import orjson

from toolcrib.errors import WireError
from toolcrib.wire.base import MAX_BYTES

# Server-sent events, split on bytes: https://html.spec.whatwg.org/multipage/server-sent-events.html
#
# The same bytes give the same events, however they are split, in time linear in the bytes: a line
# is joined once, when its end has come. Beyond the standard, `close` returns the event that a body
# without a final blank line leaves.


_BOM = b"\xef\xbb\xbf"
_FIELDS = (b"data", b"event", b"id", b"retry")


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event; the lines of its data are joined by line feeds. `foreign_lines` counts the lines
    before its end that belong to no event."""

    name: bytes
    data: bytes
    foreign_lines: int = 0


class EventStream:
    """Splits a stream into events.

    `foreign_lines` counts lines that are not a field, errors without a text, and events with
    nothing but a bare `data`, which is what remains of a line that was broken after it.
    """

    __slots__ = (
        "_after_cr",
        "_data",
        "_has_bare_data",
        "_held_size",
        "_is_start",
        "_limit",
        "_name",
        "_tail",
        "foreign_lines",
    )

    def __init__(self, limit: int = MAX_BYTES) -> None:
        self.foreign_lines = 0
        self._limit = limit
        self._tail: list[bytes] = []
        self._data: list[bytes] = []
        self._held_size = 0
        self._name = b""
        self._has_bare_data = False
        self._after_cr = False
        self._is_start = True

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that ended with `data`. Raises WireError for one over the size
        limit."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if data.find(b"\n") < 0 and data.find(b"\r") < 0:
            self._tail.append(data)
            self._hold(len(data) + 1)
            return []
        if self._tail:
            self._held_size -= sum(map(len, self._tail)) + len(self._tail)
            self._tail.append(data)
            data = b"".join(self._tail)
            self._tail = []
        self._after_cr = data.endswith(b"\r")
        lines = data.splitlines()
        rest = b"" if data.endswith((b"\n", b"\r")) else lines.pop()
        events = self._events_in(lines)
        if rest:
            self._tail.append(rest)
            self._hold(len(rest) + 1)
        return events

    def close(self) -> Event | None:
        """Return the event that was left without an end, complete or not."""
        tail, self._tail = b"".join(self._tail), []
        if tail and b":" not in tail and any(field.startswith(tail) for field in _FIELDS):
            return Event(b"", tail)  # the torn beginning of a field begins an event
        events = self._events_in([tail, b""] if tail else [b""])
        return events[0] if events else None

    def _events_in(self, lines: list[bytes]) -> list[Event]:
        events: list[Event] = []
        if self._is_start and lines:
            self._is_start = False
            lines[0] = lines[0].removeprefix(_BOM)
        data, held_size = self._data, self._held_size
        for line in lines:
            if not line:
                if data:
                    self.foreign_lines += self._has_bare_data and not any(data)
                    self._has_bare_data = False
                    event_data = data[0] if len(data) == 1 else b"\n".join(data)
                    events.append(Event(self._name, event_data, self.foreign_lines))
                    data.clear()
                    held_size = 0
                elif self._name == b"error":
                    self.foreign_lines += 1  # an error without a text is still an error
                self._name = b""
                continue
            if line[:5] == b"data:":
                data.append(line[6:] if line[5:6] == b" " else line[5:])
                held_size += len(line)
            else:
                held_size += self._take_field(line)
            if held_size > self._limit:
                raise self._too_large()
        self._held_size = held_size
        return events

    def _take_field(self, line: bytes) -> int:
        """Handle a line that is not data with a value; return how much of it is held."""
        field, _, value = line.partition(b":")
        if field == b"event":
            self._name = value.removeprefix(b" ")
        elif line == b"data":
            self._data.append(b"")
            self._has_bare_data = True
            return len(line)
        elif field and field not in _FIELDS and not line.isspace():
            self.foreign_lines += 1  # blanks keep a connection open
        return 0

    def _hold(self, size: int) -> None:
        self._held_size += size
        if self._held_size > self._limit:
            raise self._too_large()

    def _too_large(self) -> WireError:
        return WireError(f"one event of the stream is larger than {self._limit} bytes")


# JSON values split on bytes, one per line (https://github.com/ndjson/ndjson-spec).
#
# The same bytes give the same values, however they are split, in time linear in the bytes. Beyond
# that format, blank lines are ignored. A value printed over several lines counts as one: it starts
# with a line that begins with a brace and does not close it, and ends with the next line that
# begins with the closing brace.


_SPACE = b" \t\r"


class LineStream:
    """Splits a stream into values, as events without a name. `foreign_lines` counts lines that
    begin none."""

    __slots__ = ("_held_size", "_is_start", "_limit", "_open_lines", "_tail", "foreign_lines")

    def __init__(self, limit: int = MAX_BYTES) -> None:
        self.foreign_lines = 0
        self._limit = limit
        self._tail: list[bytes] = []
        self._open_lines: list[bytes] = []
        self._held_size = 0
        self._is_start = True

    def feed(self, data: bytes) -> list[Event]:
        """Return the values that ended with `data`. Raises WireError for one over the size
        limit."""
        *lines, rest = data.split(b"\n")
        events: list[Event] = []
        for line_end in lines:
            self._hold(line_end)
            line, self._tail = b"".join(self._tail), []
            if event := self._event_of(line):
                events.append(event)
        if rest:
            self._hold(rest)
        return events

    def close(self) -> Event | None:
        """Return the value that was left without an end, complete or not."""
        event = self._event_of(b"".join(self._tail)) if self._tail else None
        if event is None and self._open_lines:
            event = Event(b"", b"\n".join(self._open_lines))
        self._tail, self._open_lines = [], []
        return event

    def _event_of(self, line: bytes) -> Event | None:
        if self._is_start:
            self._is_start = False
            line = line.removeprefix(_BOM)
        line = line.rstrip(_SPACE)
        begins_value = line.startswith(b"{") and not line.endswith(b"}")
        if self._open_lines or begins_value:
            self._open_lines.append(line)
            if begins_value or not line.startswith(b"}"):
                return None
            line, self._open_lines = b"\n".join(self._open_lines), []
        self._held_size = 0
        value = line.lstrip(_SPACE)
        if not value:
            return None
        self.foreign_lines += not value.startswith(b"{")
        return Event(b"", value)

    def _hold(self, piece: bytes) -> None:
        self._tail.append(piece)
        self._held_size += len(piece) + 1
        if self._held_size > self._limit:
            raise WireError(f"one line of the stream is larger than {self._limit} bytes")


# AWS event streams, split on bytes: https://smithy.io/2.0/aws/amazon-eventstream.html
#
# The same bytes give the same events, however they are split, in time linear in the bytes. A frame
# is joined once, when its last byte has come, and counts only if both of its checksums match. An
# exception becomes the error object that other wires use.


_PRELUDE = struct.Struct(">III")  # total length, length of the headers, CRC32 of these two
_CRC_SIZE = 4
_MIN_FRAME_SIZE = _PRELUDE.size + _CRC_SIZE
_MAX_HEADERS_SIZE = 128 * 1024
_MAX_PAYLOAD_SIZE = 24 * 1024 * 1024
_VALUE_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Sizes of a header's value by its type, where fixed; 6 (bytes) and 7 (string) carry their size."""
_TORN_FRAME = Event(b"", b"?")
_EMPTY_PAYLOAD = (b"", b"null")


class FrameStream:
    """Splits a stream into events. An event's name is its `:event-type`, its data is the frame's
    payload."""

    __slots__ = ("_fault", "_held_size", "_needed_size", "_pieces", "foreign_lines")

    def __init__(self) -> None:
        self.foreign_lines = 0
        self._pieces: list[bytes] = []
        self._held_size = 0
        self._needed_size = _PRELUDE.size
        self._fault: WireError | None = None

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that ended with `data`. Raises WireError, after the events before the
        fault were returned."""
        if self._fault is not None:
            raise self._fault
        self._pieces.append(data)
        self._held_size += len(data)
        if self._held_size < self._needed_size:
            return []
        return self._split(b"".join(self._pieces))

    def close(self) -> Event | None:
        """Return an event that is not JSON if a frame was torn, None at the end of a frame.

        Raises WireError as `feed` does.
        """
        if self._fault is not None:
            raise self._fault
        return _TORN_FRAME if self._held_size else None

    def _split(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        offset, size = 0, len(data)
        try:
            while True:
                self._needed_size = _PRELUDE.size
                if size - offset < self._needed_size:
                    break
                self._needed_size, headers = _lengths(data, offset)
                if size - offset < self._needed_size:
                    break
                events.append(
                    _event(data[offset : offset + self._needed_size], _PRELUDE.size + headers)
                )
                offset += self._needed_size
        except WireError as fault:
            self._fault = fault
        self._pieces, self._held_size = [data[offset:]] if offset < size else [], size - offset
        return events


def _lengths(data: bytes, offset: int) -> tuple[int, int]:
    """Return the lengths of the frame that begins there and of its headers."""
    total, headers, checksum = _PRELUDE.unpack_from(data, offset)
    if zlib.crc32(data[offset : offset + 8]) != checksum:
        raise WireError(
            "the reply is not an AWS event stream: the checksum of a frame's head is wrong"
        )
    payload = total - headers - _MIN_FRAME_SIZE
    if headers > _MAX_HEADERS_SIZE or not 0 <= payload <= _MAX_PAYLOAD_SIZE:
        raise WireError(f"a frame of the event stream claims to be {total} bytes long")
    return total, headers


def _event(frame: bytes, payload_start: int) -> Event:
    if zlib.crc32(frame[:-_CRC_SIZE]) != int.from_bytes(frame[-_CRC_SIZE:]):
        raise WireError("a frame of the event stream is damaged: its checksum is wrong")
    headers = _headers(frame[_PRELUDE.size : payload_start])
    payload = frame[payload_start:-_CRC_SIZE]
    if headers.get(":message-type", "event") == "event":
        is_empty = payload.strip() in _EMPTY_PAYLOAD  # its type still makes it an event
        return Event(headers.get(":event-type", "").encode(), b"{}" if is_empty else payload)
    return Event(b"exception", _error_data(headers, payload))


def _error_data(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Return an event for a frame with an exception or an error.

    An exception has its type in the headers and the rest in JSON; an error is all headers.
    """
    error_type = headers.get(":exception-type") or headers.get(":error-code") or "exception"
    try:
        error = orjson.loads(payload)
    except orjson.JSONDecodeError:
        error = payload.decode("utf-8", "replace")
    if not isinstance(error, dict):
        error = {"message": error or headers.get(":error-message", "")}
    try:
        return orjson.dumps({"error": error | {"type": error_type}})
    except TypeError:  # nested deeper than orjson writes
        return orjson.dumps({"error": {"type": error_type}})


@lru_cache(maxsize=64)  # all deltas of a stream have the same ones
def _headers(data: bytes) -> Mapping[str, str]:
    """Return the headers that are strings. Raises WireError for a malformed list of headers."""
    headers: dict[str, str] = {}
    offset = 0
    try:
        while offset < len(data):
            name_end = offset + 1 + data[offset]
            name, value_type = data[offset + 1 : name_end].decode(), data[name_end]
            offset = name_end + 1
            if value_type in (6, 7):
                value_start = offset + 2
                offset = value_start + int.from_bytes(data[offset:value_start])
                if value_type == 7:  # a string
                    headers[name] = data[value_start:offset].decode()
            else:
                offset += _VALUE_SIZES[value_type]
        if offset == len(data):
            return headers
    except (IndexError, KeyError, UnicodeDecodeError):
        pass
    raise WireError("a frame of the event stream has headers that cannot be read")
