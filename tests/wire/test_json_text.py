"""Arguments as text: what is an object, what stops early, which habits are mended."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from rows import each_row

from toolcrib.wire.json_text import Balance, ends_early, is_object, mended, same_json, settled

SETTLED = [
    ("", "{}"),
    (" \n", "{}"),
    ("null", "{}"),
    ('{"a":1}', '{"a":1}'),
    (' {"a" : 1}\n', ' {"a" : 1}\n'),
    ('{"a":1,"a":2}', '{"a":1,"a":2}'),
    ('{"a":1e400}', '{"a":1e400}'),
    ('{}{"a":1}', '{"a":1}'),
    ('{} {}\n{"a":1}', '{"a":1}'),
    ('{}{"a":1}{"b":2}', '{}{"a":1}{"b":2}'),
    ('{"a":1}{"b":2}', '{"a":1}{"b":2}'),
    ("{}{}", "{}"),
    ('{}{"a":', '{}{"a":'),
    ('"{\\"a\\":1}"', '{"a":1}'),
    ('"{\\"a\\":"', '"{\\"a\\":"'),
    ('"text"', '"text"'),
    ('{"a":1} garbage', '{"a":1} garbage'),
    ('{"a":"[1]"}', '{"a":"[1]"}'),
    ("[1]", "[1]"),
]


@each_row(("text", "expected"), SETTLED)
def test_settled(text: str, expected: str) -> None:
    assert settled(text).text == expected


@each_row(
    ("text", "notes", "same"),
    [
        ("", ("empty_arguments",), True),
        (" null\n", ("empty_arguments",), True),
        ("{}", (), True),
        ('{}{"a":1}', ("empty_object_first",), True),
        ('{"a":1} {"a":1.0}', ("said_twice",), True),
        ("{}{}", ("empty_object_first",), True),
        ('{"p":1}{"p":true}', (), False),
        ('{"p":0}{"p":false}', (), False),
        ('{"p":1}{"p":"1"}', (), False),
        ('{"p":[1]}{"p":[true]}', (), False),
        ('{"p":1}{"q":1}', (), False),
        ('{"p":1}{"p":1,"p":1}', (), False),
        ('{}{"a":1}{"b":2}', (), False),
        ('{"a":1} garbage', (), True),
        ('{"a":1}[1]', (), True),
        ('{"a":', (), True),
    ],
)
def test_what_is_said_several_times_is_noted_or_contradictory(
    text: str, notes: tuple[str, ...], same: bool
) -> None:
    assert settled(text)[1:] == (notes, same)


SAME = [
    ('{"a": 1, "b": [2]}', '{"b":[2.0],"a":1e0}', True),
    ('{"a": 100000000000000000000001}', '{"a": 100000000000000000000002}', False),
    ('{"a": 0.1}', '{"a": 0.1000000000000000000001}', False),
    ("1", "true", False),
    ("null", "{}", False),
    ('{"a": 1, "a": 1}', '{"a": 1}', False),
    ("no JSON", "no JSON", True),
    ("no JSON", "no  JSON", False),
    ('{"a": "\\u00e9"}', '{"a": "é"}', True),
    ("[" * 100_000, "[" * 99_999, False),
]


@each_row(("one", "other", "same"), SAME)
def test_same_json(one: str, other: str, same: bool) -> None:
    assert same_json(one, other) is same
    assert same_json(other, one) is same


EARLY = [
    ("", False),
    ("{}", False),
    ("{", True),
    ('{"a', True),
    ('{"a":"b\\', True),
    ('{"a":"b\\"', True),
    ('{"a":{"b":1}', True),
    ('{"a":[1,2', True),
    ('{"a":"}"', True),
    ('{"a":"{"}', False),
    ("{'a': 1}", False),
    ("nonsense", False),
    ('{"a":1}}', False),
    ('{"a":1} garbage', False),
]


@each_row(("text", "early"), EARLY)
def test_ends_early(text: str, early: bool) -> None:
    assert ends_early(text) is early


@given(st.dictionaries(st.text(max_size=4), st.text(max_size=8), min_size=1), st.data())
def test_a_beginning_of_an_object_ends_early(value: dict[str, str], data: st.DataObject) -> None:
    text = json.dumps(value)
    assert is_object(text)
    assert ends_early(text[: data.draw(st.integers(1, len(text) - 1))])


@given(st.text('{}[]"\\a', max_size=30), st.data())
def test_a_balance_is_the_same_however_the_text_is_split(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    one, two = Balance(), Balance()
    one.scan(text)
    two.scan(text[:at])
    two.scan(text[at:])
    assert (one.whole, one.inside) == (two.whole, two.inside)


@each_row("text", ["[]", "1", '"a"', "", "{", "{'a':1}", '{"a":NaN}', "[" * 100_000])
def test_not_an_object(text: str) -> None:
    assert not is_object(text)


def test_mended_text_can_be_encoded() -> None:
    assert mended("a\ud83d\ude00b") == "a😀b"
    assert mended("a\ud83db").encode() == "a\ufffdb".encode()


def test_a_text_too_long_to_run_is_not_looked_through() -> None:
    """What is no object then counts as cut: what was sent before it in the reply is in doubt, too."""
    whole = '{"a": "' + "x" * 1_048_576 + '"}'
    assert not ends_early(whole)
    assert settled(whole).text is whole
    for long in ("{}" * 600_000 + '{"a": 1}', "{" * 1_048_577, "[" + "[]," * 400_000 + "0]"):
        assert ends_early(long)
        assert settled(long).notes == ()
