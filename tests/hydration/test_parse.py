"""Arguments as text: what is read, what is refused, and that nothing is lost or made up."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from named import named
from rows import each_row
from samples import sample

from toolcrib.errors import ErrorCode
from toolcrib.hydration import Parsed, ParseFailure, parse, parse_arguments, parse_json
from toolcrib.hydration.parse import MAX_BYTES, MAX_DEPTH, MAX_DIGITS, MAX_NODES
from toolcrib.values.json import fresh

CANARY = "CANARY_77ab"
JSON, LARGE = ErrorCode.INVALID_JSON, ErrorCode.TOO_LARGE


def lists(depth: int, inner: str = "") -> str:
    """An object that holds lists in lists; the innermost list lies at `depth`."""
    return f'{{"a":{"[" * depth}{inner}{"]" * depth}}}'


ACCEPTED: list[tuple[str, Any, tuple[str, ...]]] = [
    ("{}", {}, ()),
    ('{"a":1}', {"a": 1}, ()),
    (' \t\r\n{ "a" : 1 }\n', {"a": 1}, ()),
    ('{"a b":"c  d"}', {"a b": "c  d"}, ()),
    ('{"":""}', {"": ""}, ()),
    ('{"a":"\\ud83d\\ude00"}', {"a": "\U0001f600"}, ()),
    ('{"a":"\\u0061\\/\\n"}', {"a": "a/\n"}, ()),
    ('{"\\u0061":1}', {"a": 1}, ()),
    ('{"a":"é\u2028\x7f\U0001f600"}', {"a": "é\u2028\x7f\U0001f600"}, ()),
    ('{"a":[true,false,null]}', {"a": [True, False, None]}, ()),
    ('{"a":-0}', {"a": 0}, ()),
    ('{"a":1E+2}', {"a": 100.0}, ()),
    ('{"a":1.10}', {"a": 1.1}, ()),
    ('{"a":5e-324}', {"a": 5e-324}, ()),
    ('{"a":1e-400}', {"a": 0.0}, ()),
    ('{"a":1.7976931348623157e308}', {"a": 1.7976931348623157e308}, ()),
    (f'{{"a":{2**53 + 1}}}', {"a": 2**53 + 1}, ()),
    (f'{{"a":{2**63}}}', {"a": 2**63}, ()),
    (f'{{"a":{2**64}}}', {"a": 2**64}, ()),
    (f'{{"a":{2**70}}}', {"a": 2**70}, ()),
    (f'{{"a":-{2**70}}}', {"a": -(2**70)}, ()),
    (f'{{"a":{"9" * MAX_DIGITS}}}', {"a": int("9" * MAX_DIGITS)}, ()),
    (f'{{"a":0.{"3" * 500}}}', {"a": float("0." + "3" * 500)}, ()),
    ('{"a":{"a":{"a":1}}}', {"a": {"a": {"a": 1}}}, ()),
    ('[{"a":1},{"a":1}]'.join(['{"x":', "}"]), {"x": [{"a": 1}, {"a": 1}]}, ()),
    ("", {}, ("empty_arguments",)),
    (" \n\t ", {}, ("empty_arguments",)),
    ("null", {}, ("empty_arguments",)),
    (" null ", {}, ("empty_arguments",)),
    (json.dumps('{"a":1}'), {"a": 1}, ("double_encoded",)),
    (json.dumps(" {} "), {}, ("double_encoded",)),
    ("{'a':'b'}", {"a": "b"}, ("single_quotes",)),
    ("{ 'a' : 'b c' , 'd' : [ 'e' , 1 ] }", {"a": "b c", "d": ["e", 1]}, ("single_quotes",)),
    ("{'a':''}", {"a": ""}, ("single_quotes",)),
    ("{'a':{'b':null}}", {"a": {"b": None}}, ("single_quotes",)),
    (lists(MAX_DEPTH), json.loads(lists(MAX_DEPTH)), ()),
    (lists(MAX_DEPTH - 1, "1"), json.loads(lists(MAX_DEPTH - 1, "1")), ()),
    (lists(MAX_DEPTH - 1, "1.0e0"), json.loads(lists(MAX_DEPTH - 1, "1.0")), ()),
    ('{"a":"' + "[{" * 300 + '"}', {"a": "[{" * 300}, ()),
    ('{"a":[' + ",".join(["[]"] * 300) + "]}", {"a": [[]] * 300}, ()),
]  # fmt: skip


@each_row(("text", "value", "notes"), ACCEPTED, ids=named)
def test_what_is_read(text: str, value: Any, notes: tuple[str, ...]) -> None:
    parsed = parse_arguments(text)
    assert isinstance(parsed, Parsed)
    assert (parsed.value, parsed.notes) == (value, notes)
    assert fresh(parsed.data) == value
    assert json.dumps(parsed.value) == json.dumps(value)  # True is not 1, and 1 is not 1.0


REFUSED: list[tuple[str, ErrorCode, str]] = [
    ('{"a":NaN}', JSON, "not valid JSON"),
    ('{"a":Infinity}', JSON, "not valid JSON"),
    ('{"a":-Infinity}', JSON, "not valid JSON"),
    ('{"a":1e400}', JSON, "range of a double"),
    ('{"a":[-1e400]}', JSON, "range of a double"),
    ('{"a":[1e400],"b":[1]}', JSON, "range of a double"),
    ('{"a":{"x":1e400},"b":[1],"c":{}}', JSON, "range of a double"),
    ('{"a" : 1E+400, "\\u0062":1}', JSON, "range of a double"),
    ('{"a":1e99999999999999999999}', JSON, "range of a double"),
    ('{"a":1.7976931348623159e308}', JSON, "range of a double"),
    (f'{{"{CANARY}":1,"{CANARY}":2}}', JSON, "the same key appears twice"),
    ('{"a":1,"a":1}', JSON, "the same key appears twice"),
    ('{"a":1,"\\u0061":2}', JSON, "the same key appears twice"),
    ('{"\\ud83d\\ude00":1,"\U0001f600":2}', JSON, "the same key appears twice"),
    ('{"x":[{"a":1, "a" :1}]}', JSON, "the same key appears twice"),
    ('{"":1,"":2}', JSON, "the same key appears twice"),
    ('{"a":"\\ud800"}', JSON, "not valid JSON"),
    ('{"a":"\\udc00\\ud800"}', JSON, "not valid JSON"),
    ('{"\\ud800":1}', JSON, "not valid JSON"),
    ('{"a":"\ud800"}', JSON, "lone surrogate"),
    ("\udcff", JSON, "lone surrogate"),
    ("\ufeff{}", JSON, "not valid JSON"),
    ("\xa0", JSON, "not valid JSON"),
    ("\x00", JSON, "not valid JSON"),
    (f"{{}} {CANARY}", JSON, "not valid JSON"),
    ("{}{}", JSON, "not valid JSON"),
    ("{} //", JSON, "not valid JSON"),
    ('```json\n{"a":1}\n```', JSON, "not valid JSON"),
    (f"{{{CANARY}:1}}", JSON, "not valid JSON"),
    (f'{{"a":{CANARY}}}', JSON, "not valid JSON"),
    ("{'a':True}", JSON, "not valid JSON"),
    ("{'a':'it's'}", JSON, "not valid JSON"),
    ("{'a':\"b\"}", JSON, "not valid JSON"),
    ("{'a':'b\\'c'}", JSON, "not valid JSON"),
    ("{'a':'b\\nc'}", JSON, "not valid JSON"),
    ("{'a':'x','y'}", JSON, "not valid JSON"),
    ("{'a':'he said, 'hi'}", JSON, "not valid JSON"),
    ("{'a':'b','a':'c'}", JSON, "not valid JSON"),
    ("{'a':'b'", JSON, "not valid JSON"),
    ("['a']", JSON, "not valid JSON"),
    ("'{}'", JSON, "not valid JSON"),
    ("[]", JSON, "one JSON object, got array"),
    ("1", JSON, "one JSON object, got integer"),
    ("1.5", JSON, "one JSON object, got number"),
    ("true", JSON, "one JSON object, got boolean"),
    ('""', JSON, "one JSON object, got string"),
    (f'"{CANARY}"', JSON, "one JSON object, got string"),
    (json.dumps("null"), JSON, "one JSON object, got string"),
    (json.dumps("[]"), JSON, "one JSON object, got string"),
    (json.dumps(json.dumps("{}")), JSON, "one JSON object, got string"),
    (json.dumps('{"a":NaN}'), JSON, "one JSON object, got string"),
    (json.dumps('{"a":1,"a":2}'), JSON, "one JSON object, got string"),
    (lists(MAX_DEPTH, "1"), LARGE, "nested deeper than 100"),
    (lists(MAX_DEPTH, "1.0e0"), LARGE, "nested deeper than 100"),
    (lists(MAX_DEPTH + 1), LARGE, "nested deeper than 100"),
    (lists(MAX_DEPTH + 1).replace(",", " ,"), LARGE, "nested deeper than 100"),
    (lists(250), LARGE, "nested deeper than 100"),
    (lists(300), LARGE, "nested deeper than 100"),
    (lists(1100), LARGE, "nested deeper than 100"),
    (lists(200_000), LARGE, "nested deeper than 100"),
    ("[" * 200_000, LARGE, "nested deeper than 100"),
    ('{"a":' * 90_000, LARGE, "nested deeper than 100"),
    (f'{{"a":1{"0" * MAX_DIGITS}}}', LARGE, "more than 40 digits"),
    (f'{{"a":-1{"0" * MAX_DIGITS}}}', LARGE, "more than 40 digits"),
    (f'{{"a":-{"9" * (MAX_DIGITS + 1)}}}', LARGE, "more than 40 digits"),
    (f'{{"a":{"9" * 5000}}}', LARGE, "a number is too long"),
    ('{"a":[' + "0," * MAX_NODES + "0]}", LARGE, "more than 100000 values"),
    ('{"a":[' + "[]," * MAX_NODES + "[]]}", LARGE, "more than 100000 values"),
    ('{"a":[' + "[[[[1]]]]," * 30_000 + "[]]}", LARGE, "more than 100000 values"),
    ("{" + ",".join(f'"{i}":0' for i in range(MAX_NODES // 2)) + "}", LARGE, "more than 100000 values"),
    ('{"a":"' + "x" * MAX_BYTES + '"}', LARGE, "longer than 1048576 bytes"),
    ('{"a":"' + "é" * (MAX_BYTES // 2) + '"}', LARGE, "longer than 1048576 bytes"),
    (" " * (MAX_BYTES + 1), LARGE, "longer than 1048576 bytes"),
    ('{"a":"' + CANARY * 1_000_000 + '"}', LARGE, "longer than 1048576 bytes"),
]  # fmt: skip


@each_row(("text", "code", "words"), REFUSED, ids=named)
def test_what_is_refused(text: str, code: ErrorCode, words: str) -> None:
    failure = parse_arguments(text)
    assert isinstance(failure, ParseFailure)
    assert failure.code is code
    assert words in failure.message
    assert CANARY not in failure.message
    assert len(failure.message) < 120


@each_row(
    ("text", "value"),
    [
        ("[1]", [1]),
        ("null", None),
        ('{"a":1}', {"a": 1}),
        (f'"{"x" * (MAX_BYTES - 2)}"', "x" * (MAX_BYTES - 2)),
    ],
    ids=named,
)
def test_any_value_is_read(text: str, value: Any) -> None:
    assert parse_json(text) == (value,)


@each_row(
    ("text", "failure"),
    [
        ("[\ud800]", ParseFailure(JSON, "the text holds a lone surrogate")),
        (f'"{"x" * (MAX_BYTES - 1)}"', ParseFailure(LARGE, f"it is longer than {MAX_BYTES} bytes")),
        ("", None),
        ("{'a':'b'}", None),
        ('{"a":1,"a":1}', None),
        (lists(MAX_DEPTH + 1), None),
    ],
    ids=named,
)
def test_no_value_is_read_with_liberties(text: str, failure: ParseFailure | None) -> None:
    found = parse_json(text)
    assert isinstance(found, ParseFailure)
    assert failure in (found, None)


def test_a_failure_says_where() -> None:
    failure = parse_arguments('{"a": 1,\n "b": x}')
    assert failure == ParseFailure(
        JSON,
        "not valid JSON at line 2, column 7: "
        "a JSON value is expected (strings and keys need double quotes)",
    )


@each_row(
    ("text", "reason"),
    [
        ('{"a":1', "it ends too early"),
        ('{"a":"x', "it ends too early"),
        ('{"a" 1}', "a colon is expected"),
        ('{"a":1 "b":2}', "a comma or a closing bracket is expected"),
        ('{"a":NaN}', "a JSON value is expected (strings and keys need double quotes)"),
        ("{a:1}", "a key in double quotes is expected"),
        ('{"a":"\\d"}', "a backslash does not begin a JSON escape"),
        ('{"a":01}', "a number is not in JSON form"),
        ('{"a":"\\ud800"}', "half of a surrogate pair is missing"),
        ('{"a":"\\udc00"}', "half of a surrogate pair is missing"),
        ('{"a":"\n"}', "a control character (such as a line break) is not escaped"),
        ('{"a":1,}', "there is a comma before a closing bracket"),
        ("{} and more", "something follows the value"),
    ],
)
def test_a_failure_says_why(text: str, reason: str) -> None:
    failure = parse_arguments(text)
    assert isinstance(failure, ParseFailure)
    assert failure.message.partition(": ")[2] == reason


def test_a_text_as_long_as_may_be() -> None:
    text = '{"a":"' + "x" * (MAX_BYTES - 8) + '"}'
    assert len(text) == MAX_BYTES
    assert isinstance(parse_arguments(text), Parsed)


def test_as_many_values_as_may_be() -> None:
    """The object, its key, its list, and what is in the list."""
    text = '{"a":[' + ",".join("0" * (MAX_NODES - 3)) + "]}"
    assert isinstance(parse_arguments(text), Parsed)


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        ("[" * 100 + "]" * 100, None),
        ("[" * 101 + "]" * 101, "deeper"),
        ("[" + "0," * (MAX_NODES - 6) + "0]", None),
        ("[" + "0," * (MAX_NODES - 5) + "0]", "values"),
        ("9" * MAX_DIGITS, None),
        ("9" * (MAX_DIGITS + 1), "digits"),
        (str(2**140), "digits"),  # a double says the same
        ("1e400", "range"),
        ("-1E+400", "range"),
        ('1,"a":2', "twice"),
        ("{" + ",".join(f'"k{n}":{{}}' for n in range(300)) + "}", None),
    ],
)
def test_the_limits_hold_in_a_text_with_an_escape(inner: str, words: str | None) -> None:
    found = parse_arguments(f'{{"\\u00e9":"\\/","a":{inner}}}')
    if words is None:
        assert isinstance(found, Parsed)
        assert found.value == {"é": "/", "a": json.loads(inner)}
    else:
        assert isinstance(found, ParseFailure)
        assert words in found.message


@each_row("padding", [0, 10_000], ids=["counted", "wrapped"])
@each_row("wraps", [parse._WRAPS, None], ids=["by orjson", "walked"])
@each_row("inner", ["", "1", '"x"', "1.0e0"])
def test_depth_is_exact_however_it_is_judged(
    inner: str, wraps: int | None, padding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parse, "_WRAPS", wraps)
    deepest = MAX_DEPTH if not inner else MAX_DEPTH - 1
    for shape in ("[", '{"b":'):
        for depth in (2, deepest - 2, deepest - 1, deepest, deepest + 1, deepest + 2, 254, 300):
            close = {"[": "]", '{"b":': "}"}[shape]
            text = shape * depth + (inner or ("" if shape == "[" else "1")) + close * depth
            text = f'{{"p":"{"x" * padding}","a":{text}}}'
            bound = deepest if shape == "[" or inner else deepest - 1
            assert isinstance(parse_arguments(text), Parsed) is (depth <= bound), (shape, depth)


def test_the_limit_of_orjson_is_the_one_that_is_relied_on() -> None:
    assert parse._WRAPS == 154


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**39), 10**39)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=4), inner, max_size=4
        )
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6), VALUES, max_size=5
)
STRINGS = re.compile(r'("(?:[^"\\]|\\.)*")')


def spaced(text: str, dice: random.Random) -> str:
    """The same JSON with white space between its tokens at random."""
    pieces = [
        piece
        if piece.startswith('"')
        else re.sub(r"([\[\]{},:])", lambda m: gap(m[1], dice), piece)
        for piece in STRINGS.split(text)
    ]
    return "".join(pieces)


def gap(token: str, dice: random.Random) -> str:
    return "".join([dice.choice(["", " ", "\n", "\t "]), token, dice.choice(["", " ", "\r\n"])])


@settings(max_examples=sample(150), deadline=None)
@given(OBJECTS, st.booleans(), st.integers(0, 2**32))
def test_any_object_parses_to_itself(value: dict[str, Any], ascii_only: bool, seed: int) -> None:
    dumped = json.dumps(value, ensure_ascii=ascii_only)
    text = spaced(dumped, random.Random(seed))  # noqa: S311  white space is no secret
    assert json.loads(text) == value
    parsed = parse_arguments(text)
    assert isinstance(parsed, Parsed)
    assert parsed.value == value
    assert repr(parsed.value) == repr(json.loads(text))


@settings(max_examples=sample(150), deadline=None)
@given(st.text(max_size=40) | st.text("{}[]\",:\\'u0123456789eE+-. \nntf", max_size=40))
def test_no_text_raises(text: str) -> None:
    result = parse_arguments(text)
    assert isinstance(result, Parsed | ParseFailure)
    if isinstance(result, Parsed) and not result.notes:
        assert result.value == json.loads(text)


@settings(max_examples=sample(60), deadline=None)
@given(
    st.from_regex(r"-?(0|[1-9][0-9]{0,45})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
)
def test_numbers_are_those_of_the_standard_library(number: str) -> None:
    result = parse_arguments(f'{{"a":{number}}}')
    value = json.loads(number)
    if isinstance(result, Parsed):
        assert repr(result.value["a"]) == repr(value) or number in ("-0",)
    else:
        assert abs(value) > 10**39
