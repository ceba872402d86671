"""JSON values: their types, canonical text and digest.

Canonical text follows RFC 8785 (JCS): keys sorted by UTF-16 code units, no whitespace, numbers as
ECMAScript writes them. There is one deliberate deviation: whole numbers beyond 2^53, written as
integers or as floats, keep all their digits, because two different arguments must never share a
digest.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from math import copysign, inf, isfinite, nextafter
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias, cast

import jiter
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
SHORTEST_KEY = 16  # 128 bits: too many to try them all
_EXPONENT = re.compile(rb"e[+-]?[0-9]")
_MAY_BE_EXPONENT = re.compile(rb"e[-+0-9]")  # twice as fast as the full pattern
_SORT_KEYS = orjson.OPT_SORT_KEYS
_SHORT = 512  # bytes; below this, translating is faster than searching
_WHOLE_FLOAT = re.compile(rb"\.0[,}\]]")
_BEYOND = bytes(0xF0 if byte > 0xF0 else byte for byte in range(256))  # ten times as fast as find()
_DIGITS = bytes(48 if 48 <= byte < 58 else 32 for byte in range(256))
_WIDE = b"0" * 19
_NEEDS_ROUNDING = b"0" * 16  # with fewer digits, every number has its own float
_RUNS = bytes(48 if byte == 46 else _DIGITS[byte] for byte in range(256))
_MAY_BE_ZERO = re.compile(rb"[eE]-[0-9]{3}")
_FLOATS = bytes(101 if byte in b".e" else _DIGITS[byte] for byte in range(256))


def canonical_json(value: Any) -> str:
    """Return the RFC 8785 text of a JSON value.

    Raises ValueError for NaN and infinities, TypeError for what is not JSON (including lone
    surrogates).
    """
    kind = value.__class__
    if kind is str or value is None or kind is bool or isinstance(value, str):
        return orjson.dumps(value).decode()
    if kind is list or kind is tuple or isinstance(value, (list, tuple)):
        return "[" + ",".join(map(canonical_json, value)) + "]"
    if kind is dict or isinstance(value, Mapping):
        return "{" + ",".join(map(_member_text, _sorted_members(value))) + "}"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return _number_text(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def canonical_text(text: str) -> str:
    """Return the canonical form of JSON text that toolcrib wrote, as `json_copy` reads it.

    If the text is ASCII without fractions or exponents, orjson already writes it as RFC 8785
    requires.
    """
    value = orjson.loads(text)
    written = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    if written[0] in b"[{" and not _may_differ(written):
        return written.decode()
    return canonical_json(value)


def canonical_bytes(value: JsonValue) -> bytes:
    """Return the RFC 8785 text of a JSON value in UTF-8. NaN and infinities are not JSON."""
    if value.__class__ is float:
        return canonical_json(value).encode()
    try:
        written = orjson.dumps(value, None, _SORT_KEYS)
    except TypeError:  # an integer of more than 64 bits
        return canonical_json(value).encode()
    if (  # `in` takes 4 times as long as `partition`, `find` 1.5 times
        len(written) < _SHORT
        and written.isascii()
        and not written.translate(_FLOATS).partition(b"0e")[1]
    ):
        return written  # the usual case
    return canonical_json(value).encode() if _may_differ(written) else written


def json_bytes(value: JsonValue) -> bytes:
    """Write a JSON value as compact text, without changing the order of keys or the form of numbers.

    Raises ValueError or TypeError for what is not JSON.
    """
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer of more than 64 bits
        return to_json(value, inf_nan_mode="constants")


def text_as_given(value: Any) -> str:
    """Return JSON text in which a float stays a float: `1e17` is not written with digits nobody gave.

    Raises ValueError, TypeError and RecursionError as `canonical_json` does.
    """
    canonical_json(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=dict)


def _may_differ(written: bytes) -> bool:
    """Return whether RFC 8785 may require a text different from orjson's.

    It differs for whole floats, exponents, and the order of keys beyond Unicode's first plane.
    Matches inside strings can cause false positives.
    """
    if written.find(b".") >= 0 and _WHOLE_FLOAT.search(written) is not None:
        return True
    if _MAY_BE_EXPONENT.search(written) is not None and _EXPONENT.search(written) is not None:
        return True
    return not written.isascii() and written.translate(_BEYOND).find(b"\xf0") >= 0


def fresh(text: str | bytes | bytearray) -> JsonObject:
    """Parse JSON text that toolcrib wrote into a fresh object, keeping all digits of its integers.

    Raises ValueError for NaN and infinities, and for text nested too deep to be parsed.
    """
    data = text.encode() if isinstance(text, str) else text
    has_wide_integer = may_hold_wide_integer(data)
    value: JsonObject = (
        from_json(data, allow_inf_nan=False) if has_wide_integer else orjson.loads(data)
    )
    return value


EXACT = 2**53
"""Up to here a float represents every integer, and nothing is rounded to one (RFC 7493, 2.2)."""


ROUNDED = "a number would be rounded to an integer: write the integer's own digits"


def is_whole(value: float) -> bool:
    """Return whether a number written with a fraction or an exponent is an integer, as `3.0` is.

    A float beyond `EXACT` is not, because nobody wrote its digits.
    """
    return value.is_integer() and abs(value) <= EXACT


def has_key_twice(data: bytes) -> bool:
    """Return whether an object in this JSON text has two members with one key.

    Most parsers keep the last of them. False for what is not JSON.
    """
    try:
        jiter.from_json(data, catch_duplicate_keys=True)
    except ValueError as error:
        return "duplicate key" in str(error).lower()
    return False


def escape_pointer(token: object) -> str:
    """Return one reference token of a JSON Pointer (RFC 6901, section 3)."""
    return str(token).replace("~", "~0").replace("/", "~1")


def is_finite(value: float) -> bool:
    """Return whether a number is neither NaN nor too large for a float; integers may be."""
    try:
        return isfinite(value)
    except OverflowError:
        return False


def has_rounded(value: Any) -> bool:
    """Return whether a JSON value contains a float that canonical JSON writes as an integer with
    digits that nobody wrote: `1e17` is not the integer with those digits."""
    if isinstance(value, dict | list):
        return any(map(has_rounded, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and value.is_integer() and not is_whole(value)


def read_unrounded(data: bytes) -> Any:
    """Parse JSON text, with a nearby fraction for numbers that are integers only as floats.

    An example is `7.0000000000000001`. A consumer that requires integers must refuse this value,
    too. Return None if there is no such number. Raises ValueError for what is not JSON.
    """
    has_small = (b"e-" in data or b"E-" in data) and _MAY_BE_ZERO.search(data) is not None
    if not has_small and data.translate(_RUNS).find(_NEEDS_ROUNDING) < 0:
        return None
    rounded = []

    def read(text: str) -> float:
        value = float(text)
        if not is_whole(value) or (exact := _exact_decimal(text)) == value:
            return value
        rounded.append(text)
        if abs(value) >= EXACT / 2:  # from here on floats have no fractions
            return copysign(EXACT / 2 - 0.5, value)
        return nextafter(value, inf if exact > value else -inf)

    value = json.loads(data, parse_float=read)
    return value if rounded else None


def _exact_decimal(text: str) -> Decimal:
    """Return a number with all its digits, without an exponent that `decimal` does not accept.

    The float of a number with such an exponent is zero or infinite, so sign and digits are enough.
    """
    mantissa, _, exponent = text.lower().partition("e")
    return Decimal(text if len(exponent.lstrip("+-0")) < 9 else mantissa)


def may_hold_wide_integer(data: bytes | bytearray) -> bool:
    """Return whether JSON text contains 19 digits in a row. orjson reads longer integers as
    floats."""
    return data.translate(_DIGITS).find(_WIDE) >= 0


def _member_text(member: tuple[str, Any]) -> str:
    return f"{orjson.dumps(member[0]).decode()}:{canonical_json(member[1])}"


def _sorted_members(value: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    """Sort by UTF-16 code units, which for ASCII is the order of the characters."""
    try:
        is_ascii = "".join(value).isascii()
    except TypeError:
        bad_key = next(key for key in value if not isinstance(key, str))
        raise TypeError(f"a {type(bad_key).__name__} cannot be a key in JSON") from None
    return sorted(value.items(), key=_member_name if is_ascii else _utf16_name)


_member_name = itemgetter(0)


def _utf16_name(member: tuple[str, Any]) -> bytes:
    return member[0].encode("utf-16-be", "surrogatepass")


def _number_text(value: float) -> str:
    """Write a number as ECMA-262 Number::toString does, from Python's shortest digits."""
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
    """Return the idempotency key of a call, which differs for every pair of run and call.

    It is the SHA-256 of the run id's length, the run id and the call id. So no two pairs give the
    same text, whatever the strings, and every store and bank can hold the key.
    """
    text = f"{len(run_id)}:{run_id}{call_id}".encode("utf-8", "surrogatepass")
    return "sha256:" + hashlib.sha256(text).hexdigest()


def check_key(name: str, key: bytes) -> bytes:
    """Return a signing key after checking it.

    Raises ToolcribError, which uses `name`, for a key that is too short to be safe or is not bytes.
    """
    if not isinstance(key, bytes) or len(key) < SHORTEST_KEY:
        raise ToolcribError(
            f"{name} must be at least {SHORTEST_KEY} random bytes, such as os.urandom(32)"
        )
    return key


def keyed_digest(key: bytes, *parts: str) -> str:
    """Return a digest that only the holder of the key can compute: `hmac:<key's id>:<hex>`.

    It is HMAC-SHA256 over the texts, each preceded by its length, so that no two lists of texts
    give the same input. Digests made with different keys have different ids and cannot be compared.
    """
    prefix, keyed_hmac = _prefix_and_hmac(key)
    message = b""
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        message += len(data).to_bytes(8, "big") + data
    message_hmac = keyed_hmac.copy()
    message_hmac.update(message)
    return prefix + message_hmac.hexdigest()


@lru_cache(maxsize=16)
def _prefix_and_hmac(key: bytes) -> tuple[str, hmac.HMAC]:
    """Return the prefix of all digests made with a key, and its HMAC. They are cached because
    creating them takes twice as long as the rest."""
    key_id = hmac.digest(key, b"id of this key", "sha256").hex()[:8]
    return f"hmac:{key_id}:", hmac.new(key, b"texts", "sha256")


def encodable(text: str) -> str:
    """Return the text with `?` for lone surrogates, which no provider and no file can hold."""
    return text.encode("utf-8", "replace").decode()


_MAX_SENTENCE = 65_536
_CUT_MARK = "… [cut]"


def sentence(text: str) -> str:
    """Shorten an author's text about a failure, so that it cannot exceed the limit of results."""
    short = (
        text if len(text) <= _MAX_SENTENCE else text[: _MAX_SENTENCE - len(_CUT_MARK)] + _CUT_MARK
    )
    return encodable(short)


_FILLERS = "\u115f\u1160\u2800\u3164\uffa0"  # invisible, although Unicode calls them letters


def is_seen(text: str) -> bool:
    """Return whether any character of a text is visible to a reader."""
    return any(unicodedata.category(c)[0] in "LNPS" and c not in _FILLERS for c in text)


def digest(value: Any) -> str:
    """Return `sha256:…` over a JSON value's canonical text, whatever the process and key order."""
    return "sha256:" + sha256_hex(canonical_json(value))


def json_copy(text: str | bytes) -> JsonObject:
    """Return a fresh object from JSON text that toolcrib wrote."""
    return cast("JsonObject", orjson.loads(text))


def to_plain(value: object) -> Any:
    """Convert a struct and its contents to plain JSON types; JSON texts in it are parsed.

    Raises TypeError for any other type.
    """
    return msgspec.to_builtins(value, enc_hook=_read_raw)


def _read_raw(value: object) -> Any:
    if isinstance(value, msgspec.Raw):
        return fresh(bytes(value))
    raise TypeError(f"a {type(value).__name__} is not JSON")


def with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, as `object_pairs_hook` of `json`. Raises ValueError for a repeated key.

    Nobody can know which of the two values was meant.
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {counts.most_common(1)[0][0]!r:.80} appears twice")
    return members


def refuse_constant(constant: str) -> NoReturn:
    """Raise ValueError for NaN or an infinity, as `parse_constant` of `json`."""
    raise ValueError(f"{constant} is not JSON")


class Redacted:
    """A value whose repr shows only the size of some fields, because they may be secret.

    Reprs end up in logs, tracebacks and tickets. The contents (messages, arguments, results) are
    available by field name.
    """

    __slots__ = ()
    redacted: ClassVar[tuple[str, ...]] = ()
    __struct_fields__: ClassVar[tuple[str, ...]]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"

    def _hides(self, name: str) -> bool:
        return name in self.redacted

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Hide the same fields from rich, whose tracebacks show local values."""
        fields = []
        for name in self.__struct_fields__:
            value = getattr(self, name)
            fields.append((name, _RedactedValue(value) if value and self._hides(name) else value))
        return fields


class _RedactedValue:
    """Stands for a value in a repr."""

    def __init__(self, value: object) -> None:
        match value:
            case str():
                self._text = f"<{len(value)} characters>"
            case bytes():
                self._text = f"<{len(value)} bytes>"
            case list() | tuple() | dict():
                self._text = f"<{len(value)} items>"
            case _:
                self._text = f"<{type(value).__name__}>"

    def __repr__(self) -> str:
        return self._text
