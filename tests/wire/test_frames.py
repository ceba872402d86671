"""Binary frames of AWS event streams: what they say, in any pieces, and every way to be wrong."""

from __future__ import annotations

import contextlib
import random
import struct
import zlib

import pytest
from rows import each_row
from servers.bedrock import frame

from toolcrib.errors import WireError
from toolcrib.wire.framing import Event, FrameStream

TWO = [frame({"a": "ü"}, event_type="one"), frame({}, event_type="two")]
EVENTS = [Event(b"one", '{"a":"ü"}'.encode()), Event(b"two", b"{}")]


def framed(headers: bytes, payload: bytes = b"{}") -> bytes:
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    whole = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return whole + struct.pack(">I", zlib.crc32(whole))


def events_of(data: bytes, sizes: tuple[int, ...] = ()) -> list[Event]:
    stream, at, events = FrameStream(), 0, list[Event]()
    for size in sizes:
        events += stream.feed(data[at : at + size])
        at += size
    events += stream.feed(data[at:])
    assert stream.close() is None
    return events


def test_any_pieces_give_the_same_events() -> None:
    data = b"".join(TWO)
    random_ = random.Random(3)  # noqa: S311
    assert events_of(data) == EVENTS
    assert events_of(data, (1,) * len(data)) == EVENTS
    for _ in range(50):
        sizes = tuple(random_.choice((1, 2, 11, 12, 13, 40)) for _ in range(30))
        assert events_of(data, sizes) == EVENTS


def test_headers_of_every_type_are_passed_over() -> None:
    values = [(0, b""), (1, b""), (2, b"x"), (3, b"xx"), (4, b"x" * 4), (5, b"x" * 8),
              (6, b"\0\3abc"), (8, b"x" * 8), (9, b"x" * 16)]  # fmt: skip
    headers = b"".join(b"\1h" + bytes([kind]) + value for kind, value in values)
    named = b"\x0b:event-type\7\0\4stop"
    assert events_of(framed(headers + named)) == [Event(b"stop", b"{}")]
    assert events_of(framed(b"")) == [Event(b"", b"{}")]


REPORTED: list[tuple[bytes, bytes]] = [
    (
        frame({"message": "m"}, message_type="exception", exception_type="throttlingException"),
        b'{"error":{"message":"m","type":"throttlingException"}}',
    ),
    (
        frame(b"plain", message_type="exception", exception_type="x"),
        b'{"error":{"message":"plain","type":"x"}}',
    ),
    (
        frame(b"", message_type="error", error_code="500", error_message="m"),
        b'{"error":{"message":"m","type":"500"}}',
    ),
    (frame(b"", message_type="error"), b'{"error":{"message":"","type":"exception"}}'),
    (
        frame(b'{"a":' * 300 + b"1" + b"}" * 300, message_type="exception", exception_type="x"),
        b'{"error":{"type":"x"}}',
    ),
]


@each_row(("data", "said"), REPORTED)
def test_an_exception_is_an_error_object(data: bytes, said: bytes) -> None:
    assert events_of(TWO[0] + data) == [EVENTS[0], Event(b"exception", said)]


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def claimed(whole: int, headers: int) -> bytes:
    prelude = struct.pack(">II", whole, headers)
    return prelude + struct.pack(">I", zlib.crc32(prelude)) + bytes(100)


FAULTS: dict[str, tuple[bytes, str]] = {
    "another format": (b"data: {}\n\ndata: {}\n\n", "not an AWS event stream"),
    "a length changed": (changed(TWO[1], 3), "not an AWS event stream"),
    "a header changed": (changed(TWO[1], 20), "damaged"),
    "the payload changed": (changed(TWO[1], len(TWO[1]) - 5), "damaged"),
    "the checksum changed": (changed(TWO[1], len(TWO[1]) - 1), "damaged"),
    "a frame shorter than itself": (claimed(15, 0), "15 bytes"),
    "headers longer than the frame": (claimed(100, 90), "100 bytes"),
    "a frame over the limit": (claimed(2**31, 4), "2147483648 bytes"),
    "headers over the limit": (claimed(2**20, 2**18), "1048576 bytes"),
    "a name that is cut": (framed(b"\x09abc"), "headers"),
    "a value that is cut": (framed(b"\1h\7\0\x09abc"), "headers"),
    "a value without a type": (framed(b"\1h"), "headers"),
    "a type that there is not": (framed(b"\1h\x0a"), "headers"),
    "a name that is no text": (framed(b"\1\xff\0"), "headers"),
}


@each_row(("data", "words"), FAULTS.values(), ids=FAULTS)
@each_row("singly", [False, True])
def test_a_fault_is_named_after_the_events_before_it(data: bytes, words: str, singly: bool) -> None:
    """And it stays: nothing that follows is read."""
    stream = FrameStream()
    pieces = (
        [TWO[0], *(data[at : at + 1] for at in range(len(data)))] if singly else [TWO[0] + data]
    )
    events: list[Event] = []
    with contextlib.suppress(WireError):
        for piece in (*pieces, TWO[1]):
            events += stream.feed(piece)
    assert events == EVENTS[:1]
    with pytest.raises(WireError, match=words):
        stream.feed(TWO[1])
    with pytest.raises(WireError, match=words):
        stream.close()


@each_row("at", range(1, len(TWO[1])))
def test_a_torn_frame_is_no_event(at: int) -> None:
    stream = FrameStream()
    assert stream.feed(TWO[0] + TWO[1][:at]) == EVENTS[:1]
    assert stream.close() == Event(b"", b"?")


def test_amazons_own_parser_reads_the_same() -> None:
    buffer = pytest.importorskip("botocore.eventstream").EventStreamBuffer()
    buffer.add_data(b"".join(TWO) + REPORTED[0][0])
    heard = [(message.headers, message.payload) for message in buffer]
    types = [headers.get(":event-type", headers[":message-type"]) for headers, _ in heard]
    assert types == ["one", "two", "exception"]
    assert [payload for _, payload in heard[:2]] == [event.data for event in EVENTS]
