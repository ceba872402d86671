"""JSON as values: the types, the canonical text, the digest.

Canonical text follows RFC 8785 (JCS): keys sorted by UTF-16 code units, no white space, numbers as
ECMAScript writes them. One deviation, on purpose: whole numbers beyond 2^53, written as integers or as
floats, keep all their digits, since two different arguments must never share a digest.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import unicodedata
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from math import copysign, inf, isfinite, nextafter
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

import msgspec
import orjson
from pydantic_core import from_json, to_json

from toolcrib.errors import ToolcribError

if TYPE_CHECKING:
    JsonValue: TypeAlias = (
        bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"] | None
    )
else:  # msgspec reads annotations at run time and has no recursive aliases
    JsonValue: TypeAlias = Any
JsonObject: TypeAlias = dict[str, JsonValue]
SHORTEST_KEY = 16  # 128 bits: nobody tries them all
_EXPONENT = re.compile(rb"e[+-]?[0-9]")
_MAY_BE_EXPONENT = re.compile(rb"e[-+0-9]")  # found in half the time
_SORTED = orjson.OPT_SORT_KEYS
_SHORT = 512  # bytes, in which a translation is quicker than a search
_WHOLE = re.compile(rb"\.0[,}\]]")
_BEYOND = bytes(0xF0 if byte > 0xF0 else byte for byte in range(256))  # ten times a search's speed
_DIGITS = bytes(48 if 48 <= byte < 58 else 32 for byte in range(256))
_WIDE = b"0" * 19
_NEEDS_ROUNDING = b"0" * 16  # with fewer digits, each number has a float of its own
_RUNS = bytes(48 if byte == 46 else _DIGITS[byte] for byte in range(256))
_MAY_BE_ZERO = re.compile(rb"[eE]-[0-9]{3}")
_FLOATS = bytes(101 if byte in b".e" else _DIGITS[byte] for byte in range(256))


def canonical_json(value: Any) -> str:
    """Return the RFC 8785 text of a JSON value.

    Raises ValueError for NaN and infinities, TypeError for what is not JSON (lone surrogates too).
    """
    kind = value.__class__
    if kind is str or value is None or kind is bool or isinstance(value, str):
        return orjson.dumps(value).decode()
    if kind is list or kind is tuple or isinstance(value, (list, tuple)):
        return "[" + ",".join(map(canonical_json, value)) + "]"
    if kind is dict or isinstance(value, Mapping):
        return "{" + ",".join(map(_member, _sorted(value))) + "}"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return _number(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def canonical_text(text: str) -> str:
    """Return the canonical form of JSON text that toolcrib wrote, as `json_copy` reads it.

    What is ASCII and has no fraction or exponent is written by orjson just as RFC 8785 says.
    """
    value = orjson.loads(text)
    written = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    if written[0] in b"[{" and not _otherwise(written):
        return written.decode()
    return canonical_json(value)


def canonical_bytes(value: JsonValue) -> bytes:
    """Return the RFC 8785 text of a value that is JSON, in UTF-8: NaN and infinities are none."""
    if value.__class__ is float:
        return canonical_json(value).encode()
    try:
        written = orjson.dumps(value, None, _SORTED)
    except TypeError:  # an integer of more than 64 bits
        return canonical_json(value).encode()
    if (  # `in` takes four times as long as `partition`, `find` half as long again
        len(written) < _SHORT
        and written.isascii()
        and not written.translate(_FLOATS).partition(b"0e")[1]
    ):
        return written  # most texts
    return canonical_json(value).encode() if _otherwise(written) else written


def json_bytes(value: JsonValue) -> bytes:
    """Write a JSON value as compact text, its keys and numbers as they are.

    Raises ValueError or TypeError for what is not JSON.
    """
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer of more than 64 bits
        return to_json(value, inf_nan_mode="constants")


def text_as_given(value: Any) -> str:
    """Return JSON text in which a float stays one: `1e17` has no digits that somebody wrote.

    Raises ValueError, TypeError and RecursionError as `canonical_json` does.
    """
    canonical_json(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=dict)


def _otherwise(written: bytes) -> bool:
    """Return whether RFC 8785 may want another text than orjson's: of whole floats, of exponents, of
    the order of keys beyond the first plane of Unicode. Within a text it may err."""
    if written.find(b".") >= 0 and _WHOLE.search(written) is not None:
        return True
    if _MAY_BE_EXPONENT.search(written) is not None and _EXPONENT.search(written) is not None:
        return True
    return not written.isascii() and written.translate(_BEYOND).find(b"\xf0") >= 0


def fresh(text: str | bytes | bytearray) -> JsonObject:
    """Read JSON text that we wrote into a fresh object, with all digits of its integers.

    Raises ValueError for NaN and infinities, and for what is nested too deep to be read.
    """
    data = text.encode() if isinstance(text, str) else text
    wide = may_hold_wide_integer(data)
    made: JsonObject = from_json(data, allow_inf_nan=False) if wide else orjson.loads(data)
    return made


EXACT = 2**53
"""Up to here a float holds each integer, and no other number is rounded to it (RFC 7493, 2.2)."""


ROUNDED = "a number would be rounded to an integer: write the integer's own digits"


def is_whole(value: float) -> bool:
    """Return whether a number that was written with a fraction or an exponent is an integer: `3.0` is.

    One beyond `EXACT` has digits that nobody wrote.
    """
    return value.is_integer() and abs(value) <= EXACT


def has_rounded(value: Any) -> bool:
    """Return whether a JSON value holds a float that is an integer in canonical JSON, and whose digits
    nobody wrote: `1e17` is not the integer that has its digits."""
    if isinstance(value, dict | list):
        return any(map(has_rounded, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and value.is_integer() and not is_whole(value)


def kept_apart(data: bytes) -> Any:
    """Return the value of JSON text with a fraction, close to it, in place of each number that is an
    integer only as a float: `7.0000000000000001`. None if there is no such number.

    Whoever takes integers has to refuse this value, too. Raises ValueError for what is no JSON.
    """
    has_small = (b"e-" in data or b"E-" in data) and _MAY_BE_ZERO.search(data) is not None
    if not has_small and data.translate(_RUNS).find(_NEEDS_ROUNDING) < 0:
        return None
    found = []

    def read(text: str) -> float:
        value = float(text)
        if not is_whole(value) or (exact := _exact(text)) == value:
            return value
        found.append(text)
        if abs(value) >= EXACT / 2:  # from here on floats have no fractions
            return copysign(EXACT / 2 - 0.5, value)
        return nextafter(value, inf if exact > value else -inf)

    value = json.loads(data, parse_float=read)
    return value if found else None


def _exact(text: str) -> Decimal:
    """Return a number with all its digits, one whose exponent `decimal` does not take without it: the
    float of such a number is zero or infinite, as the sign and the digits alone say."""
    mantissa, _, exponent = text.lower().partition("e")
    return Decimal(text if len(exponent.lstrip("+-0")) < 9 else mantissa)


def may_hold_wide_integer(data: bytes | bytearray) -> bool:
    """Return whether JSON text holds 19 digits in a row; orjson reads longer integers as floats."""
    return data.translate(_DIGITS).find(_WIDE) >= 0


def _member(member: tuple[str, Any]) -> str:
    return f"{orjson.dumps(member[0]).decode()}:{canonical_json(member[1])}"


def _sorted(value: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    """Sort by UTF-16 code units, which for ASCII is the order of the characters."""
    try:
        plain = "".join(value).isascii()
    except TypeError:
        strange = next(key for key in value if not isinstance(key, str))
        raise TypeError(f"a {type(strange).__name__} is not a key in JSON") from None
    return sorted(value.items(), key=_name if plain else _utf16)


_name = itemgetter(0)


def _utf16(member: tuple[str, Any]) -> bytes:
    return member[0].encode("utf-16-be", "surrogatepass")


def _number(value: float) -> str:
    """ECMA-262 Number::toString, from Python's shortest round-trip digits."""
    if not isfinite(value):
        raise ValueError("NaN and infinities are not JSON")
    if value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    mantissa, _, exponent = float.__repr__(value).partition("e")
    if not exponent:
        return mantissa
    power = int(exponent)
    if power < -6 or power >= 21:
        return f"{mantissa}e{'+' if power > 0 else ''}{power}"
    sign, digits = ("-", mantissa[1:]) if mantissa[0] == "-" else ("", mantissa)
    return f"{sign}0.{'0' * (-power - 1)}{digits.replace('.', '')}"


def sha256_hex(text: str | bytes) -> str:
    return hashlib.sha256(
        text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    ).hexdigest()


def key_of(run_id: str, call_id: str) -> str:
    """Return the idempotency key of a call: another one for any other pair of run and call.

    It is a SHA-256 over the run's length, the run and the call, so that no two pairs of whatever
    strings give one text, and every store and bank can take it.
    """
    text = f"{len(run_id)}:{run_id}{call_id}".encode("utf-8", "surrogatepass")
    return "sha256:" + hashlib.sha256(text).hexdigest()


def check_key(name: str, key: bytes) -> bytes:
    """Return a key that may sign. Raises ToolcribError, which calls it `name`, for one that is so short
    that somebody might find it, and for what is no key."""
    if not isinstance(key, bytes) or len(key) < SHORTEST_KEY:
        raise ToolcribError(f"{name} is at least {SHORTEST_KEY} random bytes: os.urandom(32)")
    return key


def keyed_digest(key: bytes, *parts: str) -> str:
    """Return a digest of texts that only who has the key can make, or try out: `hmac:<key's id>:<hex>`.

    HMAC-SHA256 over the texts, each behind its length, so that no two lists of texts are alike. Digests
    by different keys have different ids: of those nobody can say whether the texts are the same.
    """
    named, begun = _digests_by(key)
    message = b""
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        message += len(data).to_bytes(8, "big") + data
    made = begun.copy()
    made.update(message)
    return named + made.hexdigest()


@lru_cache(maxsize=16)
def _digests_by(key: bytes) -> tuple[str, hmac.HMAC]:
    """Return what all digests by a key begin with, their text and their HMAC: made anew for each, it
    takes twice as long as all the rest."""
    known_by = hmac.digest(key, b"id of this key", "sha256").hex()[:8]
    return f"hmac:{known_by}:", hmac.new(key, b"texts", "sha256")


def encodable(text: str) -> str:
    """Return the text with `?` for lone surrogates, which no provider and no file can hold."""
    return text.encode("utf-8", "replace").decode()


_LONGEST = 65_536
_CUT = "… [cut]"


def sentence(text: str) -> str:
    """Return what an author says of a failure, as it may be told: no way around the bounds of a
    result."""
    short = text if len(text) <= _LONGEST else text[: _LONGEST - len(_CUT)] + _CUT
    return encodable(short)


_FILLERS = "\u115f\u1160\u2800\u3164\uffa0"  # letters, as Unicode has it, that nobody sees


def is_seen(text: str) -> bool:
    """Return whether somebody who reads a text sees any of it."""
    return any(unicodedata.category(c)[0] in "LNPS" and c not in _FILLERS for c in text)


def digest(value: Any) -> str:
    """`sha256:…` over the canonical text of a JSON value; the same across processes and key orders."""
    return "sha256:" + sha256_hex(canonical_json(value))


def json_copy(text: str | bytes) -> JsonObject:
    """Return a fresh object from JSON text of our own making."""
    return cast("JsonObject", orjson.loads(text))


def to_plain(value: object) -> Any:
    """Return a struct, and what is in it, as JSON's own types; texts of JSON in it are read.

    Raises TypeError for what is neither.
    """
    return msgspec.to_builtins(value, enc_hook=_read_raw)


def _read_raw(value: object) -> Any:
    if isinstance(value, msgspec.Raw):
        return fresh(bytes(value))
    raise TypeError(f"a {type(value).__name__} is not JSON")


class Veiled:
    """A value whose repr shows of some fields only how much they hold: they may be secret.

    Reprs end in logs, tracebacks and tickets. What was said, what a tool is called with and what it
    gave are in the fields themselves, for whoever asks for them by name.
    """

    __slots__ = ()
    veiled: ClassVar[tuple[str, ...]] = ()
    __struct_fields__: ClassVar[tuple[str, ...]]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"

    def _hides(self, name: str) -> bool:
        return name in self.veiled

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Hide the same fields from rich, whose tracebacks show local values."""
        told = []
        for name in self.__struct_fields__:
            value = getattr(self, name)
            told.append((name, _Veil(value) if value and self._hides(name) else value))
        return told


class _Veil:
    """Stands for a value in a repr."""

    def __init__(self, value: object) -> None:
        match value:
            case str():
                self._told = f"<{len(value)} characters>"
            case bytes():
                self._told = f"<{len(value)} bytes>"
            case list() | tuple() | dict():
                self._told = f"<{len(value)} items>"
            case _:
                self._told = f"<{type(value).__name__}>"

    def __repr__(self) -> str:
        return self._told
