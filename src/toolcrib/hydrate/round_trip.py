"""Whether anything was lost when orjson read a text: the value is written again, and compared with it.

Depth is judged by orjson, too: it writes 254 lists or objects in one another and no more, so a value
that it still writes inside of 154 lists has at most 100.
"""

from __future__ import annotations

from contextlib import suppress

import orjson

from toolcrib.values.json import JsonValue

MAX_DEPTH = 100
SHORT = 2 * MAX_DEPTH
"""Bytes; in less, no value is too deep."""
_DEEPEST_WRITTEN = 254
_COUNTED = 8192  # bytes; in less, counting brackets is quicker than wrapping
_SPACE = b" \t\n\r"


def written_again(value: JsonValue, data: bytes) -> tuple[bytes, bool]:
    """Compact text of a value that was read from `data`, and True if its depth is surely allowed; no
    text if orjson refuses."""
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
    """Its text; orjson refuses what is too deep to be written inside of so many lists.

    They are used again: making them anew would be a quarter of the work for the garbage collector.
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
# None where orjson has another limit: then what may be too deep is walked
_WRAPS = (
    _DEEPEST_WRITTEN - MAX_DEPTH
    if _writes(_DEEPEST_WRITTEN) and not _writes(_DEEPEST_WRITTEN + 1)
    else None
)


def is_same(written: bytes, data: bytes) -> bool:
    """Equal but for white space. It is removed inside strings too: in both texts alike."""
    if written == data:
        return True
    return written.translate(None, _SPACE) == data.translate(None, _SPACE)
