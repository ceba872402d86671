"""Literals that are not JSON, written as JSON: Python's, and those of Gemma's own notation.

Only literals: texts, numbers as JSON has them, true, false, nothing, lists and dictionaries. A name,
a call, an operator or a tuple is none. Nothing is evaluated, and nothing recurses.
"""

from __future__ import annotations

import json
import re

from toolcrib.wire.text_calls.cursor import Asking, Cursor, EndedError, Marks, NoCallError, Sink

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_WORDS = {
    "True": "true",
    "False": "false",
    "None": "null",
    "true": "true",
    "false": "false",
    "null": "null",
}
_ESCAPE = re.compile(
    r"\\(?:(\n)|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{1,3})|(N\{)|(.))",
    re.DOTALL,
)
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_QUOTES = "\"'"
_DEEPEST = 200  # what is deeper is refused as arguments anyway
_TRIPLE = {quote: Marks((quote * 3,)) for quote in _QUOTES}


class _Open:
    """A list or dictionary that is not closed; `between` is what comes after a key, if it has keys."""

    __slots__ = ("between", "closer", "end", "filled")

    def __init__(self, closer: str, between: str, end: str) -> None:
        self.closer = closer
        self.between = between
        self.end = end
        self.filled = False


def keywords(cursor: Cursor, sink: Sink) -> Asking[None]:
    """The rest of a Python call, `name="x", n=3)`, as a JSON object. Raises NoCallError, EndedError."""
    sink("{")
    yield from _filled(cursor, sink, [_Open(")", "=", "}")], "")


def dictionary(cursor: Cursor, sink: Sink, quote: str = "") -> Asking[None]:
    """A dictionary as a JSON object. With `quote`, that mark stands around texts, and keys are bare.

    Raises NoCallError, EndedError.
    """
    yield from cursor.expect("{")
    sink("{")
    yield from _filled(cursor, sink, [_Open("}", ":", "}")], quote)


def json_of(text: str) -> str | None:
    """A Python literal that is the whole text, as JSON; None if it is none."""
    cursor, pieces, open_ = Cursor(text, ended=True), list[str](), list[_Open]()
    try:
        for _ in _whole(cursor, pieces.append, open_):
            return None  # never: the text is at its end
    except (NoCallError, EndedError):
        return None
    return "".join(pieces)


def _whole(cursor: Cursor, sink: Sink, open_: list[_Open]) -> Asking[None]:
    yield from cursor.space()
    yield from _value(cursor, sink, open_, "")
    yield from _filled(cursor, sink, open_, "")
    yield from cursor.space()
    if cursor.at < len(cursor.text):
        raise NoCallError


def _filled(cursor: Cursor, sink: Sink, open_: list[_Open], quote: str) -> Asking[None]:
    """Read on until everything that is open is closed. A comma may stand before a closer."""
    while open_:
        last = open_[-1]
        yield from cursor.space()
        closed = yield from cursor.take(last.closer)
        if not closed and last.filled:
            yield from cursor.expect(",")
            yield from cursor.space()
            closed = yield from cursor.take(last.closer)
        if closed:
            sink(last.end)
            open_.pop()
            continue
        if last.filled:
            sink(", ")
        last.filled = True
        if last.between:
            key = yield from _key(cursor, last.between, quote)
            yield from cursor.space()
            yield from cursor.expect(last.between)
            yield from cursor.space()
            sink(f"{written(key)}: ")
        yield from _value(cursor, sink, open_, quote)


def _key(cursor: Cursor, between: str, quote: str) -> Asking[str]:
    if quote and (yield from cursor.take(quote)):
        return (yield from _quoted(cursor, quote))
    if quote:
        return (yield from cursor.bare_key())
    if between == "=":
        return (yield from cursor.bare())
    return (yield from string(cursor))


def _value(cursor: Cursor, sink: Sink, open_: list[_Open], quote: str) -> Asking[None]:
    char = yield from cursor.char()
    if char in ("[", "{"):
        if len(open_) > _DEEPEST:
            raise NoCallError
        cursor.at += 1
        sink(char)
        open_.append(_Open("]", "", "]") if char == "[" else _Open("}", ":", "}"))
    elif quote and (yield from cursor.take(quote)):
        sink(written((yield from _quoted(cursor, quote))))
    elif not quote and char in _QUOTES:
        sink(written((yield from string(cursor))))
    else:
        word = yield from cursor.bare()
        if _NUMBER.fullmatch(word) is None and word not in _WORDS:
            raise NoCallError
        sink(_WORDS.get(word, word))


def _quoted(cursor: Cursor, quote: str) -> Asking[str]:
    pieces: list[str] = []
    yield from cursor.until(Marks((quote,)), pieces.append)
    return "".join(pieces)


def string(cursor: Cursor) -> Asking[str]:
    """What a string of JSON or Python says. Raises NoCallError for what is no string, EndedError."""
    quote = yield from cursor.char()
    if quote not in _QUOTES:
        raise NoCallError
    pieces: list[str] = []
    if (yield from cursor.peek(3)) == quote * 3:
        cursor.at += 3
        yield from cursor.until(_TRIPLE[quote], pieces.append)
        return _said("".join(pieces))
    yield from cursor.string(pieces.append)
    text = "".join(pieces)
    if quote == '"':
        try:
            return _paired(str(json.loads(text, strict=False)))
        except ValueError:
            pass
    return _said(text[1:-1])


def written(text: str) -> str:
    """A text as JSON."""
    return json.dumps(text, ensure_ascii=False)


def _said(text: str) -> str:
    """What a Python string says. Raises NoCallError for a character given by its name (`\\N{…}`)."""
    return _paired(_ESCAPE.sub(_escaped, text)) if "\\" in text else text


def _paired(text: str) -> str:
    """The text, with escaped halves of surrogate pairs joined. Raises NoCallError for one alone."""
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise NoCallError from None


def _escaped(found: re.Match[str]) -> str:
    line, two, four, eight, octal, named, other = found.groups()
    if line:
        return ""
    digits = two or four or eight
    if digits or octal:
        number = int(digits, 16) if digits else int(octal, 8)
        if number > 0x10FFFF:
            raise NoCallError
        return chr(number)
    if named:
        raise NoCallError
    if other in "\\'\"":
        return str(other)
    return _LETTERS.get(other, "\\" + other)
