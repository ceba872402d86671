"""JSON values split on bytes, one a line (https://github.com/ndjson/ndjson-spec).

Every split of the same bytes gives the same values, in time linear in the bytes. Beyond that format:
blank lines count for nothing; a value that was printed over several lines is one, from a line that
begins with a brace which it does not close to the next line that begins with the closing one.
"""

from __future__ import annotations

from toolcrib.errors import WireError
from toolcrib.wire.base import MAX_BYTES
from toolcrib.wire.sse import Event

_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r"


class LineStream:
    """The splitter; its values are events without a name. `foreign` counts lines that begin none."""

    __slots__ = ("_held", "_limit", "_open", "_start", "_tail", "foreign")

    def __init__(self, limit: int = MAX_BYTES) -> None:
        self.foreign = 0
        self._limit = limit
        self._tail: list[bytes] = []
        self._open: list[bytes] = []
        self._held = 0
        self._start = True

    def feed(self, data: bytes) -> list[Event]:
        """The values that ended with `data`. Raises WireError for one over the size limit."""
        *lines, rest = data.split(b"\n")
        events: list[Event] = []
        for end in lines:
            self._hold(end)
            whole, self._tail = b"".join(self._tail), []
            if event := self._line(whole):
                events.append(event)
        if rest:
            self._hold(rest)
        return events

    def close(self) -> Event | None:
        """What was left without an end: a value, whole or only the beginning of one."""
        last = self._line(b"".join(self._tail)) if self._tail else None
        if last is None and self._open:
            last = Event(b"", b"\n".join(self._open))
        self._tail, self._open = [], []
        return last

    def _line(self, line: bytes) -> Event | None:
        if self._start:
            self._start = False
            line = line.removeprefix(_BOM)
        line = line.rstrip(_SPACE)
        begins = line.startswith(b"{") and not line.endswith(b"}")
        if self._open or begins:
            self._open.append(line)
            if begins or not line.startswith(b"}"):
                return None
            line, self._open = b"\n".join(self._open), []
        self._held = 0
        bare = line.lstrip(_SPACE)
        if not bare:
            return None
        self.foreign += not bare.startswith(b"{")
        return Event(b"", bare)

    def _hold(self, piece: bytes) -> None:
        self._tail.append(piece)
        self._held += len(piece) + 1
        if self._held > self._limit:
            raise WireError(f"one line of the stream is larger than {self._limit} bytes")
