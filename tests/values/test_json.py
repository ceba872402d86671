"""Canonical text by RFC 8785, and digests that do not depend on how a value came about."""

from __future__ import annotations

import hmac
import json
import struct
from collections import OrderedDict
from datetime import date
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from named import named
from rows import each_row

from toolcrib.errors import ToolcribError
from toolcrib.values.json import (
    JsonObject,
    canonical_bytes,
    canonical_json,
    check_key,
    digest,
    json_copy,
    keyed_digest,
    sha256_hex,
)

# RFC 8785, appendix B: IEEE 754 bits and the number's canonical text.
NUMBERS = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"),
    ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]
# The same appendix, where we keep all digits and the RFC does not: ours, theirs.
DEVIATIONS = [
    ("4430000000000000", "295147905179352825856", "295147905179352830000"),
    ("444b1ae4d6e2ef4e", "999999999999999737856", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999868928", "999999999999999900000"),
]


def _double(bits: str) -> float:
    value: float = struct.unpack(">d", bytes.fromhex(bits))[0]
    return value


@each_row(("bits", "text"), NUMBERS)
def test_numbers_of_the_rfc(bits: str, text: str) -> None:
    assert canonical_json(_double(bits)) == text


@pytest.mark.parametrize(("bits", "ours", "theirs"), DEVIATIONS)
def test_whole_numbers_keep_their_digits(bits: str, ours: str, theirs: str) -> None:
    assert canonical_json(_double(bits)) == ours
    assert digest(_double(bits)) == digest(int(ours))
    assert digest(_double(bits)) != digest(int(theirs))


@each_row(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (1, "1"),
        (1.0, "1"),
        (-0.0, "0"),
        (0.1, "0.1"),
        (1e-7, "1e-7"),
        (1e-6, "0.000001"),
        (1.5e-5, "0.000015"),
        (1e16, "10000000000000000"),
        (1e20, "100000000000000000000"),
        (1.5e300, "1.5e+300"),
        (2**53 + 1, "9007199254740993"),
        (2**70, "1180591620717411303424"),
        (-(10**40), "-1" + "0" * 40),
        ("", '""'),
        ('\u20ac$\u000f\nA\'B"\\\\"/', '"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'),  # its section 3.2.2
        ("\b\t\n\f\r\x00\x1f\x7f", '"\\b\\t\\n\\f\\r\\u0000\\u001f\x7f"'),
        ("\u2028\U0001f600", '"\u2028\U0001f600"'),
        ([], "[]"),
        ((1, [2]), "[1,[2]]"),
        ({}, "{}"),
        ({"b": [], "a": {"d": 1, "c": None}}, '{"a":{"c":null,"d":1},"b":[]}'),
        (MappingProxyType({"b": 1, "a": 2}), '{"a":2,"b":1}'),
        (OrderedDict(z=1, y=2), '{"y":2,"z":1}'),
    ],
)
def test_canonical_text(value: Any, text: str) -> None:
    assert canonical_json(value) == text
    assert canonical_bytes(value) == text.encode()
    nested: JsonObject = {"k": [value]}
    assert canonical_bytes(nested) == canonical_json(nested).encode()


def test_keys_are_sorted_by_utf16_units() -> None:
    """RFC 8785, section 3.2.3: the emoji is a surrogate pair, and comes before U+FB33."""
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    text = canonical_json(dict.fromkeys(keys, 0))
    assert list(json.loads(text)) == ["\r", "1", "\x80", "\xf6", "\u20ac", "\U0001f600", "\ufb33"]


class Level(IntEnum):
    HIGH = 3


class Mood(StrEnum):
    GOOD = "good"


class Loud(float):
    """As numpy's float64: a float that shows itself otherwise."""

    def __repr__(self) -> str:
        return "Loud!"

    __str__ = __repr__


class LoudInt(int):
    def __repr__(self) -> str:
        return "Loud!"

    __str__ = __repr__


@pytest.mark.parametrize(
    ("value", "text"),
    [(Level.HIGH, "3"), (Mood.GOOD, '"good"'), (Loud(1.5), "1.5"), (LoudInt(7), "7")],
)
def test_subclasses_are_written_as_what_they_are(value: object, text: str) -> None:
    assert canonical_json([value]) == f"[{text}]"


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), float("-inf"), [{"a": float("nan")}]]
)
def test_numbers_that_json_lacks(value: object) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        canonical_json(value)


@each_row(
    "value",
    [
        b"x",
        {1, 2},
        date(2020, 1, 1),
        object(),
        {"a": b"x"},
        {1: 2},
        {None: 1},
        {("a",): 1},
        "\ud800",
    ],
    ids=named,
)
def test_what_is_not_json(value: object) -> None:
    with pytest.raises(TypeError):
        canonical_json(value)


def test_a_lone_surrogate_is_refused_in_a_key_too() -> None:
    with pytest.raises(TypeError):
        canonical_json({"\udc00": 1})


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@given(JSON)
def test_canonical_text_is_json_of_the_same_value(value: Any) -> None:
    text = canonical_json(value)
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text
    assert canonical_bytes(value) == text.encode()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_come_back_exactly(value: float) -> None:
    assert float(json.loads(canonical_json(value))) == value


@given(st.dictionaries(st.text(), JSON, max_size=5), st.randoms(use_true_random=False))
def test_a_digest_does_not_know_the_order_of_keys(value: dict[str, Any], random: Any) -> None:
    members = list(value.items())
    random.shuffle(members)
    assert digest(dict(members)) == digest(value)


KEPT = b"sixteen of them."
NO_KEYS = [b"", KEPT[:-1], KEPT.decode(), bytearray(KEPT), None]


@each_row("key", NO_KEYS, ids=repr)
def test_a_key_that_may_be_guessed_is_none(key: Any) -> None:
    with pytest.raises(ToolcribError, match=r"^the_key must be at least 16 random bytes"):
        check_key("the_key", key)
    assert check_key("the_key", KEPT) == KEPT


@given(st.binary(max_size=80), st.lists(st.text()))
def test_a_keyed_digest_is_an_hmac_whatever_was_digested_before(
    key: bytes, parts: list[str]
) -> None:
    texts = [part.encode() for part in parts]
    message = b"texts" + b"".join(len(text).to_bytes(8, "big") + text for text in texts)
    known_by = hmac.new(key, b"id of this key", "sha256").hexdigest()[:8]
    own = f"hmac:{known_by}:{hmac.new(key, message, 'sha256').hexdigest()}"
    assert [keyed_digest(key, *parts) for _ in range(2)] == [own, own]


def test_a_digest_names_its_kind() -> None:
    assert digest({}) == "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert sha256_hex("é") == sha256_hex("é".encode())
    assert len(sha256_hex("\ud800")) == 64


def test_copies_are_fresh() -> None:
    text = '{"a":{"b":[1]}}'
    first = json_copy(text)
    first["a"] = None
    assert json_copy(text) == {"a": {"b": [1]}}
