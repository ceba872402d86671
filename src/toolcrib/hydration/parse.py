"""Parse arguments strictly: refuse whatever a lenient parser would drop or invent.

The fast path is sound. orjson parses the text and writes the value again, and the two texts are
compared. If they are equal, nothing was lost: no key was repeated and no number was rounded. A
value that may be too deep or too large is walked. A text that differs is read by a slower parser,
which detects duplicate keys.
"""

from __future__ import annotations

import re
from contextlib import suppress
from math import isinf
from typing import Any, ClassVar, NamedTuple

import jiter
import msgspec
import orjson

from toolcrib.errors import ErrorCode
from toolcrib.schema.validator import kind_of
from toolcrib.values.json import (
    JsonObject,
    JsonValue,
    Redacted,
    may_hold_wide_integer,
    read_unrounded,
)
from toolcrib.values.typed import names_wrong_types

# Detect whether orjson lost anything: write the value again and compare.
#
# orjson also decides the depth. It writes at most 254 nested lists or objects, so a value that it
# can still write inside 154 lists has a depth of at most 100.

MAX_DEPTH = 100
SHORT = 2 * MAX_DEPTH
"""In bytes. No value in a shorter text is too deep."""
_DEEPEST_WRITTEN = 254
_COUNTED = 8192  # bytes; below this, counting brackets is faster than wrapping
_SPACE = b" \t\n\r"


def written_again(value: JsonValue, data: bytes) -> tuple[bytes, bool]:
    """Return the compact text of a value read from `data`, and whether its depth is surely allowed.

    The text is empty if orjson refuses the value.
    """
    if len(data) < SHORT:
        return orjson.dumps(value), True
    if len(data) < _COUNTED and data.count(b"{") + data.count(b"[") <= MAX_DEPTH:
        return orjson.dumps(value), True
    if _WRAPS:
        with suppress(orjson.JSONEncodeError):
            return _written_within(value, _WRAPS), True
    with suppress(orjson.JSONEncodeError):
        return orjson.dumps(value), False
    return b"", False


def _written_within(value: JsonValue, wraps: int) -> bytes:
    """Return a value's text, written inside `wraps` lists; orjson refuses it if too deep.

    The lists are reused: creating them each time would be a quarter of the garbage collector's
    work.
    """
    try:
        outermost, innermost = _SPARE.pop()
    except IndexError:
        innermost = []
        outermost = _wrapped(innermost, wraps - 1)
    innermost.append(value)
    try:
        return orjson.dumps(outermost)[wraps:-wraps]
    finally:
        innermost.clear()
        _SPARE.append((outermost, innermost))


def _wrapped(value: JsonValue, times: int) -> JsonValue:
    for _ in range(times):
        value = [value]
    return value


def _writes(depth: int) -> bool:
    try:
        return bool(orjson.dumps(_wrapped(0, depth)))
    except orjson.JSONEncodeError:
        return False


_SPARE: list[tuple[JsonValue, list[JsonValue]]] = []
# None if this orjson has another limit; then values that may be too deep are walked
_WRAPS = (
    _DEEPEST_WRITTEN - MAX_DEPTH
    if _writes(_DEEPEST_WRITTEN) and not _writes(_DEEPEST_WRITTEN + 1)
    else None
)


def is_same(written: bytes, data: bytes) -> bool:
    """Return whether the texts are equal apart from whitespace, inside strings as well."""
    if written == data:
        return True
    return written.translate(None, _SPACE) == data.translate(None, _SPACE)


MAX_BYTES = 1_048_576
MAX_NODES = 100_000
MAX_DIGITS = 40

_HUGE_INT = 10**MAX_DIGITS
_SINGLE_QUOTED = re.compile(r"""(?<=[\[{,:])\s*'|'\s*(?=[\]},:])""")
# The start of jiter's message, and the wording used here.
_REASONS = {
    "EOF": "it ends too early",
    "expected `:`": "a colon is expected",
    "expected `,`": "a comma or a closing bracket is expected",
    "expected": "a JSON value is expected (strings and keys need double quotes)",
    "key must be": "a key in double quotes is expected",
    "invalid escape": "a backslash does not begin a JSON escape",
    "invalid number": "a number is not in JSON form",
    "unexpected end of hex": "half of a surrogate pair is missing",
    "lone leading surrogate": "half of a surrogate pair is missing",
    "control character": "a control character (such as a line break) is not escaped",
    "trailing comma": "there is a comma before a closing bracket",
    "trailing characters": "something follows the value",
}


class Parsed(Redacted, msgspec.Struct, frozen=True, gc=False):
    """An object and the JSON text it was read from.

    `notes` names what was tolerated to find it, such as `empty_arguments` or `single_quotes`.
    `unrounded` is the same object, in which a number that is an integer only after rounding to a float
    keeps a fraction; it is None if there is no such number.
    """

    redacted: ClassVar[tuple[str, ...]] = ("value", "data", "unrounded")

    value: JsonObject
    data: bytes
    notes: tuple[str, ...] = ()
    unrounded: JsonObject | None = None


class ParseFailure(NamedTuple):
    """Describes why a text was refused: `code` is `invalid_json` or `too_large`, and the message
    gives the position, never the content."""

    code: ErrorCode
    message: str


def read_short(text: str) -> Parsed | None:
    """Return what `parse_arguments` would for most short texts, or None if a closer look is needed.

    It covers only texts that the fast path accepts and that are too short to be too deep or hold
    too many values.
    """
    if len(text) >= SHORT:
        return None
    try:
        value: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    data, written = text.encode(), orjson.dumps(value)
    is_unchanged = written == data or written.replace(b" ", b"") == data.replace(b" ", b"")
    return Parsed(value, data) if is_unchanged and value.__class__ is dict else None


@names_wrong_types
def parse_arguments(text: str) -> Parsed | ParseFailure:
    """Parse one JSON object from the text that a model sent. Never raises.

    Limits: 1 MiB, depth 100, 100,000 nodes, integers of 40 digits. Blank text and `null` become
    `{}`, because providers send them for calls without arguments. A doubly encoded object is
    unwrapped.
    """
    return read_arguments(text)


def read_arguments(text: str) -> Parsed | ParseFailure:
    """Do what `parse_arguments` does, without checking that `text` is a string."""
    if len(text) > MAX_BYTES:
        return _too_large(f"they are longer than {MAX_BYTES} bytes")
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return ParseFailure(ErrorCode.INVALID_JSON, "the text holds a lone surrogate")
    if len(data) > MAX_BYTES:
        return _too_large(f"they are longer than {MAX_BYTES} bytes")
    if not data or data.isspace():
        return Parsed({}, b"{}", ("empty_arguments",))
    value, unrounded, failure = _read(data)
    if failure is not None:
        return _single_quoted(text) or failure
    if isinstance(value, dict):
        return Parsed(value, data, (), unrounded)
    return _unwrapped(value)


@names_wrong_types
def parse_json(text: str) -> tuple[JsonValue] | ParseFailure:
    """Parse one JSON value from a model's text, within the limits for arguments. Never raises."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return ParseFailure(ErrorCode.INVALID_JSON, "the text holds a lone surrogate")
    if len(data) > MAX_BYTES:
        return ParseFailure(ErrorCode.TOO_LARGE, f"it is longer than {MAX_BYTES} bytes")
    value, _, failure = _read(data)
    return failure or (value,)


def _unwrapped(value: JsonValue) -> Parsed | ParseFailure:
    if value is None:
        return Parsed({}, b"{}", ("empty_arguments",))
    if isinstance(value, str):
        data = value.encode()
        inner, unrounded, failure = _read(data)
        if failure is None and isinstance(inner, dict):
            return Parsed(inner, data, ("double_encoded",), unrounded)
    return ParseFailure(
        ErrorCode.INVALID_JSON, f"the arguments must be one JSON object, got {kind_of(value)}"
    )


def _read(data: bytes) -> tuple[JsonValue, Any, ParseFailure | None]:
    """Return a value, the same with its numbers kept apart (see `Parsed`), and the failure.

    If orjson writes the text again unchanged, no number was rounded to an integer.
    """
    try:
        value: JsonValue = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        # It reports deep, large and malformed texts in the same words.
        _, careful_failure = _read_carefully(data)
        message = f"not valid JSON at character {error.pos}"
        return None, None, careful_failure or ParseFailure(ErrorCode.INVALID_JSON, message)
    written, is_shallow = written_again(value, data)
    is_small = is_shallow and _has_few_nodes(data)
    if is_same(written, data):
        return value, None, None if is_small else _walk(value)
    del value  # keeping both would double the garbage collector's work
    is_ordinary = is_small and not may_hold_wide_integer(data)  # orjson refuses infinite numbers
    value, failure = _read_carefully(data, ordinary=is_ordinary)
    return value, None if failure is not None else read_unrounded(data), failure


def _read_carefully(
    data: bytes, *, ordinary: bool = False
) -> tuple[JsonValue, ParseFailure | None]:
    """Parse a text that orjson would write differently: it has an escape or a repeated key.

    `ordinary` says that the text is known to be within the limits.
    """
    try:
        value: JsonValue = jiter.from_json(data, catch_duplicate_keys=True, allow_inf_nan=False)
    except ValueError as error:
        return None, _jiter_failure(str(error))
    return value, None if ordinary else _walk(value)


def _has_few_nodes(data: bytes) -> bool:
    """Return whether the bytes and separators rule out too many values. A value takes two bytes or
    more."""
    if len(data) < 2 * MAX_NODES:
        return True
    bracket_count = data.count(b"{") + data.count(b"[")
    return 2 * (data.count(b",") + bracket_count) + 2 <= MAX_NODES


def _jiter_failure(message: str) -> ParseFailure:
    """Translate jiter's message. It repeats keys of the text, so only its kind and position are
    kept."""
    position = re.search(r" at line (\d+) column (\d+)$", message)
    position_text = f" at line {position[1]}, column {position[2]}" if position else ""
    if "duplicate key" in message:
        return ParseFailure(ErrorCode.INVALID_JSON, f"the same key appears twice{position_text}")
    if "recursion limit" in message:
        return _too_large(f"they are nested deeper than {MAX_DEPTH}")
    if "out of range" in message:
        return _too_large(f"a number is too long{position_text}")
    reason = next(
        (f": {wording}" for kind, wording in _REASONS.items() if message.startswith(kind)), ""
    )
    return ParseFailure(ErrorCode.INVALID_JSON, f"not valid JSON{position_text}{reason}")


def _walk(value: JsonValue) -> ParseFailure | None:
    """Return what is wrong with a parsed value, level by level. Keys count as values, too."""
    level: list[Any] = [value]
    nodes = 0
    for _ in range(MAX_DEPTH + 1):
        nodes += len(level)
        next_level: list[Any] = []
        for node in level:
            kind = node.__class__
            if kind is list:
                next_level += node
            elif kind is dict:
                nodes += len(node)
                next_level += node.values()
            elif kind is float and isinf(node):
                reason = "a number is out of the range of a double"
                return ParseFailure(ErrorCode.INVALID_JSON, reason)
            elif kind is int and not -_HUGE_INT < node < _HUGE_INT:
                return _too_large(f"an integer has more than {MAX_DIGITS} digits")
        if nodes > MAX_NODES:
            return _too_large(f"they hold more than {MAX_NODES} values")
        if not next_level:
            return None
        level = next_level
    return _too_large(f"they are nested deeper than {MAX_DEPTH}")


def _single_quoted(text: str) -> Parsed | None:
    """Parse `{'a': 'b'}` if no double quote, backslash or inner apostrophe makes it ambiguous."""
    if "'" not in text or '"' in text or "\\" in text:
        return None
    if text.count("'") != len(_SINGLE_QUOTED.findall(text)):
        return None
    data = text.replace("'", '"').encode()
    value, unrounded, failure = _read(data)
    if failure is not None or not isinstance(value, dict):
        return None
    return Parsed(value, data, ("single_quotes",), unrounded)


def _too_large(reason: str) -> ParseFailure:
    return ParseFailure(ErrorCode.TOO_LARGE, f"the arguments are too large: {reason}")
