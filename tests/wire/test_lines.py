"""JSON values, one a line: every split of the same bytes gives the same."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import each_row

from toolcrib.errors import WireError
from toolcrib.wire.framing import LineStream


def values_of(*pieces: bytes) -> tuple[list[bytes], bytes | None]:
    stream = LineStream()
    found = [event.data for piece in pieces for event in stream.feed(piece)]
    last = stream.close()
    assert stream.close() is None
    return found, None if last is None else last.data


TABLE: dict[str, tuple[bytes, list[bytes], bytes | None]] = {
    "nothing": (b"", [], None),
    "lines": (b'{"a":1}\n{"b":2}\n', [b'{"a":1}', b'{"b":2}'], None),
    "a rest": (b'{"a":1}\n{"b"', [b'{"a":1}'], b'{"b"'),
    "CRLF and blanks": (b'\r\n {"a":1} \r\n \n{"b":2}\r\n', [b'{"a":1}', b'{"b":2}'], None),
    "a BOM": (b'\xef\xbb\xbf{"a":1}\n', [b'{"a":1}'], None),
    "several lines a value": (
        b'{\n  "a": {\n  }\n}\n{"b":2}',
        [b'{\n  "a": {\n  }\n}'],
        b'{"b":2}',
    ),
    "never closed": (b'{"a":\n{"b":2}\n', [], b'{"a":\n{"b":2}'),
    "no JSON": (b"<html>\n", [b"<html>"], None),
    "a lone carriage return is no end": (b'{"a":\r1}\n', [b'{"a":\r1}'], None),
}


@each_row(("body", "values", "rest"), TABLE.values(), ids=TABLE)
def test_values(body: bytes, values: list[bytes], rest: bytes | None) -> None:
    assert values_of(body) == (values, rest)
    assert values_of(*(body[at : at + 1] for at in range(len(body)))) == (values, rest)


@given(st.binary(max_size=40), st.lists(st.integers(0, 40)))
def test_any_split_gives_the_same(data: bytes, cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(ends)]
    assert values_of(*pieces) == values_of(data)


@given(st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=9), min_size=1)))
def test_what_was_printed_is_read(values: list[dict[str, str]]) -> None:
    for indent in (None, 2):
        body = "".join(json.dumps(value, indent=indent) + "\n" for value in values).encode()
        found, rest = values_of(body)
        assert ([json.loads(value) for value in found], rest) == (values, None)


@pytest.mark.parametrize("piece", [b"x" * 7, b"{ \n", b" x\n {"])
def test_a_value_without_end_is_stopped(piece: bytes) -> None:
    stream = LineStream(limit=1000)
    for _ in range(100):
        stream.feed(b"{\n}\n" + piece)  # each ends the one before
    stream.feed(b"\n}\n{\n")
    with pytest.raises(WireError, match="larger than 1000"):
        stream.feed(piece * 1000)


def test_lines_that_begin_no_value_are_foreign() -> None:
    stream = LineStream()
    stream.feed(b'<html>\n{"a":1}\n\n{"b":\n2\n}\ndata: {}\n')
    assert stream.foreign_lines == 2


def test_many_short_lines_are_not_one_long_one() -> None:
    stream = LineStream(limit=100)
    assert len(stream.feed(b'{"a":1}\n' * 1000)) == 1000
