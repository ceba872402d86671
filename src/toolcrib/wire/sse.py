"""Server-sent events, split on bytes: https://html.spec.whatwg.org/multipage/server-sent-events.html

Every split of the same bytes gives the same events, in time linear in the bytes: a line is joined
once, when its end has come. Beyond the standard: `close` gives the event that a body without a
blank line at the end leaves behind.
"""

from __future__ import annotations

import msgspec

from toolcrib.errors import WireError
from toolcrib.wire.base import MAX_BYTES

_BOM = b"\xef\xbb\xbf"
_FIELDS = (b"data", b"event", b"id", b"retry")


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event; the lines of its data are joined by line feeds."""

    name: bytes
    data: bytes


class EventStream:
    """The splitter. `foreign` counts lines that are not even the beginning of a field, and errors
    without a text."""

    __slots__ = ("_after_cr", "_data", "_held", "_limit", "_name", "_start", "_tail", "foreign")

    def __init__(self, limit: int = MAX_BYTES) -> None:
        self.foreign = 0
        self._limit = limit
        self._tail: list[bytes] = []
        self._data: list[bytes] = []
        self._held = 0
        self._name = b""
        self._after_cr = False
        self._start = True

    def feed(self, data: bytes) -> list[Event]:
        """The events that ended with `data`. Raises WireError for one over the size limit."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if b"\n" not in data and b"\r" not in data:
            self._tail.append(data)
            self._hold(len(data) + 1)
            return []
        if self._tail:
            self._held -= sum(map(len, self._tail)) + len(self._tail)
            self._tail.append(data)
            data = b"".join(self._tail)
            self._tail = []
        self._after_cr = data.endswith(b"\r")
        lines = data.splitlines()
        rest = b"" if data.endswith((b"\n", b"\r")) else lines.pop()
        events = self._lines(lines)
        if rest:
            self._tail.append(rest)
            self._hold(len(rest) + 1)
        return events

    def close(self) -> Event | None:
        """What was left without an end: an event, whole or only the beginning of one."""
        tail, self._tail = b"".join(self._tail), []
        if tail and b":" not in tail and any(known.startswith(tail) for known in _FIELDS):
            return Event(b"", tail)  # the torn beginning of a field is the beginning of an event
        events = self._lines([tail, b""] if tail else [b""])
        return events[0] if events else None

    def _lines(self, lines: list[bytes]) -> list[Event]:
        events: list[Event] = []
        if self._start and lines:
            self._start = False
            lines[0] = lines[0].removeprefix(_BOM)
        data, held = self._data, self._held
        for line in lines:
            if not line:
                if data:
                    whole = data[0] if len(data) == 1 else b"\n".join(data)
                    events.append(Event(self._name, whole))
                    data.clear()
                    held = 0
                elif self._name == b"error":
                    self.foreign += 1  # one that says nothing is still an error
                self._name = b""
                continue
            if line[:5] == b"data:":
                data.append(line[6:] if line[5:6] == b" " else line[5:])
                held += len(line)
            else:
                held += self._other(line)
            if held > self._limit:
                raise self._too_large()
        self._held = held
        return events

    def _other(self, line: bytes) -> int:
        """A line that is no data with a value; how much of it is held."""
        field, _, value = line.partition(b":")
        if field == b"event":
            self._name = value.removeprefix(b" ")
        elif line == b"data":
            self._data.append(b"")
            return len(line)
        elif not any(known.startswith(field) for known in _FIELDS):
            self.foreign += 1
        return 0

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > self._limit:
            raise self._too_large()

    def _too_large(self) -> WireError:
        return WireError(f"one event of the stream is larger than {self._limit} bytes")
