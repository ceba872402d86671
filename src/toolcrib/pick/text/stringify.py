"""Any value as words: what a request says that is neither a text nor a conversation.

Rule: equal values give equal text, no value is too large or too deep, and what is cut is the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Literal, NamedTuple

import msgspec

from toolcrib.pick.text.words import MAX_CHARS, clip, spaced_name, words

_MAX_VALUES = 10_000


_END = object()
_SENTENCE = 4


class _Piece(NamedTuple):
    """A text, a key (as words), or another value: a number or truth."""

    kind: Literal["text", "key", "value"]
    said: str


def stringified(value: object) -> str:
    """`{"targetUnit": "euro", "of": [1, 2]}` reads "of: 1, 2, target unit: euro".

    Keys are sorted, as words, each said once; what is None is left out. But where one of the texts is
    a sentence, of four words or more, the texts alone are read: what is around it then is an
    envelope, whose words would be looked for among the tools. What JSON has no form for reads as
    `str` has it; whatever that raises passes.
    """
    pieces, size = [], 0
    for piece in _pieces(value):
        pieces.append(piece)
        size += len(piece.said) + 2
        if size > MAX_CHARS:
            break
    if any(piece.kind == "text" and _is_sentence(piece.said) for piece in pieces):
        pieces = [piece for piece in pieces if piece.kind == "text"]
    said = "".join(f"{p.said}: " if p.kind == "key" else f"{p.said}, " for p in pieces)
    return clip(said[:-2][:MAX_CHARS])


def _is_sentence(text: str) -> bool:
    found = text.split() if text.isascii() else words(text, stop_words=True)
    return len(found) >= _SENTENCE


def _pieces(value: object) -> Iterator[_Piece]:
    """Keys and texts in order. A container is read once, wherever it stands: cycles end there."""
    reading, keys, read = [iter((value,))], set[str](), dict[int, object]()
    for _ in range(_MAX_VALUES):
        here = next(reading[-1], _END)
        if here is _END:
            reading.pop()
            if not reading:
                return
        elif isinstance(here, _Piece):
            if here.said not in keys:
                keys.add(here.said)
                yield here
        elif isinstance(here, list | tuple | dict | Mapping | AbstractSet):
            if id(here) not in read:
                read[id(here)] = here  # held, so that no other one can have its id
                reading.append(_inside(here))
        elif here is not None:
            leaf = _leaf(here)
            if isinstance(leaf, _Piece):
                yield leaf
            else:
                reading.append(iter((leaf,)))


def _inside(container: Any) -> Iterator[object]:
    if isinstance(container, list | tuple):
        yield from container
    elif isinstance(container, AbstractSet):
        yield from sorted(container, key=str)
    else:
        for key in sorted(container, key=str):
            value = container[key]
            if value is not None:
                text = str(key)[:MAX_CHARS]
                yield _Piece("key", spaced_name(text) or text)
                yield value


def _leaf(leaf: object) -> Any:
    """The piece that it is, or the plain value that it stands for."""
    if isinstance(leaf, str):
        return _Piece("text", leaf[:MAX_CHARS])
    if isinstance(leaf, bytes | bytearray | memoryview):
        return bytes(leaf[:MAX_CHARS]).decode(errors="replace")
    if isinstance(leaf, bool):
        return _Piece("value", "true" if leaf else "false")
    if isinstance(leaf, int | float):  # str refuses thousands of digits
        return _Piece("value", str(leaf) if abs(leaf) < 1e300 else "a number")
    return msgspec.to_builtins(leaf, enc_hook=_plain, str_keys=True)


def _plain(strange: Any) -> Any:
    """Of what msgspec does not know: a model of pydantic as it dumps itself, else its `str`."""
    dump = getattr(strange, "model_dump", None)
    return dump() if callable(dump) else str(strange)
