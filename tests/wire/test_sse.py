"""Events from bytes, however the bytes are split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import each_row

from toolcrib.errors import WireError
from toolcrib.wire.framing import EventStream

Events = list[tuple[bytes, bytes]]

TABLE: list[tuple[str, bytes, Events]] = [
    ("one", b"data: a\n\n", [(b"", b"a")]),
    ("no space", b"data:a\n\n", [(b"", b"a")]),
    ("two spaces", b"data:  a\n\n", [(b"", b" a")]),
    ("crlf", b"data: a\r\n\r\ndata: b\r\n\r\n", [(b"", b"a"), (b"", b"b")]),
    ("cr", b"data: a\r\rdata: b\r\r", [(b"", b"a"), (b"", b"b")]),
    ("mixed", b"data: a\r\n\ndata: b\n\r\n", [(b"", b"a"), (b"", b"b")]),
    ("several lines", b"data: a\ndata: b\n\n", [(b"", b"a\nb")]),
    ("named", b"event: error\ndata: a\n\ndata: b\n\n", [(b"error", b"a"), (b"", b"b")]),
    ("name after data", b"data: a\nevent: x\n\n", [(b"x", b"a")]),
    ("name without data", b"event: x\n\ndata: a\n\n", [(b"", b"a")]),
    ("comments", b": hello\n\n:\ndata: a\n:\n\n", [(b"", b"a")]),
    ("id and retry", b"id: 1\nretry: 5\n\nid: 2\ndata: a\n\n", [(b"", b"a")]),
    ("empty data", b"data:\n\ndata\n\ndata: \n\n", [(b"", b""), (b"", b""), (b"", b"")]),
    ("byte order mark", b"\xef\xbb\xbfdata: a\n\n", [(b"", b"a")]),
    ("blank lines first", b"\n\r\n\ndata: a\n\n", [(b"", b"a")]),
    ("other separators stay", b"data: a\x0b\x0c\x1c\x85\xe2\x80\xa8b\n\n",
     [(b"", b"a\x0b\x0c\x1c\x85\xe2\x80\xa8b")]),
    ("no end at all", b"data: a", [(b"", b"a")]),
    ("no blank line", b"data: a\n", [(b"", b"a")]),
    ("torn field", b"data: a\n\ndat", [(b"", b"a"), (b"", b"dat")]),
    ("nothing", b"", []),
]  # fmt: skip


def events_of(body: bytes, cuts: list[int]) -> Events:
    stream = EventStream()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        found += stream.feed(body[start:end])
    rest = stream.close()
    return [(event.name, event.data) for event in [*found, *([rest] if rest else [])]]


@each_row(("body", "events"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE])
def test_the_table_whole_and_byte_by_byte(body: bytes, events: Events) -> None:
    assert events_of(body, []) == events
    assert events_of(body, list(range(1, len(body)))) == events


_LINES = st.lists(
    st.sampled_from([b"data: a", b"data:", b"data", b": c", b"event: e", b"", b"id: 1", b"x"]),
    max_size=12,
)


@given(
    _LINES, st.lists(st.sampled_from([b"\n", b"\r", b"\r\n"]), min_size=12, max_size=12), st.data()
)
def test_every_split_gives_the_same(
    lines: list[bytes], ends: list[bytes], data: st.DataObject
) -> None:
    body = b"".join(line + end for line, end in zip(lines, ends, strict=False))
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=8).map(sorted))
    assert events_of(body, cuts) == events_of(body, [])


@pytest.mark.parametrize(
    "pieces",
    [
        [b"data: " + b"a" * 200 + b"\n\n"],
        [b"data: ", *[b"a" * 10] * 20],
        [b"data: aaaaaaaaaa\n"] * 20,
        [b"data\n"] * 40,
    ],
    ids=["one line", "one line in pieces", "many lines", "many empty lines"],
)
def test_an_event_over_the_limit_is_refused(pieces: list[bytes]) -> None:
    stream = EventStream(limit=100)

    def feed_all() -> None:
        for piece in pieces:
            stream.feed(piece)

    with pytest.raises(WireError, match="larger than 100 bytes"):
        feed_all()


def test_many_small_events_are_under_the_limit() -> None:
    stream = EventStream(limit=100)
    assert stream.feed(b"da") == []
    assert sum(len(stream.feed(b"ta: aaaaaaaaaa\n\nda")) for _ in range(50)) == 50


def test_foreign_lines_are_counted() -> None:
    stream = EventStream()
    stream.feed(b"Not Found\n: fine\nid: 1\n<p>\n")
    assert stream.foreign_lines == 2
