"""Read text once, from left to right, while more of it may still come.

A function that may need more text is a generator: it yields, and continues once `feed` has added
some, or `ended` is set. Nothing is read twice except the beginning of a possible mark. So reading
is linear in the text, and how the text is split into pieces does not affect what is found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable
from functools import cached_property
from typing import TypeAlias, TypeVar

import msgspec

from toolcrib.schema.references import References
from toolcrib.values.json import JsonObject
from toolcrib.values.message import Offer
from toolcrib.wire.json_text import SPACE, Settled, is_object, settled

_T = TypeVar("_T")
Asking: TypeAlias = Generator[None, None, _T]
"""A generator that finally returns a value, and yields whenever it has to wait for text."""
Sink: TypeAlias = Callable[[str], object]

_LONGEST_WORD = 256
_SPACES = re.compile(f"[{SPACE}]*+")
_NAME = re.compile(r"[\w.:/-]*+")
_KEY = re.compile(r'[^<>"\r\n]*+')
_BARE = re.compile(r"[\w.+-]*+")
_BARE_KEY = re.compile(r'[^<>"\r\n:,{}\[\]]*+')
_PLAIN = re.compile(r"[\w\s:,.+-]++")
_OPEN = re.compile(r"[\[{]++")
_IN_STRING = {
    '"': re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL),
    "'": re.compile(r"(?:[^'\\]++|\\.)*+", re.DOTALL),
}


class NoCallError(Exception):
    """The text read does not match the syntax at this place, so it is plain text."""


class EndedError(Exception):
    """The text is at its end, in the middle of what was being read."""


class Marks:
    """Strings to look for; of two at one place the longer one counts.

    Those of `in_any_case` are in lower case, and do not begin with a letter.
    """

    def __init__(self, marks: Iterable[str], in_any_case: Iterable[str] = ()) -> None:
        patterns = {
            mark: f"{re.escape(mark[0])}(?ai:{re.escape(mark[1:])})" for mark in in_any_case
        }
        patterns |= {mark: re.escape(mark) for mark in marks}
        ordered = sorted(patterns, key=len, reverse=True)
        self._any = re.compile("|".join(patterns[mark] for mark in ordered))
        self._beginnings = frozenset(
            mark[:n].lower() for mark in ordered for n in range(1, len(mark))
        )
        self._longest = len(ordered[0])

    def search(self, text: str, at: int, *, ended: bool) -> tuple[int, str]:
        """Return where the first mark is, and which.

        Without one, return how far there is certainly none, and "".
        """
        match = self._any.search(text, at)
        start = len(text) if match is None else match.start()
        if not ended:
            for begin in range(max(at, len(text) - self._longest + 1), min(start + 1, len(text))):
                if text[begin:].lower() in self._beginnings:
                    return begin, ""
        return start, "" if match is None else match.group()


class Cursor:
    """A place in a text. `start` begins an attempt, whose text `stop` returns."""

    __slots__ = ("_attempt_start", "_attempt_texts", "at", "ended", "text")

    def __init__(self, text: str = "", *, ended: bool = False) -> None:
        self.text = text
        self.at = 0
        self.ended = ended
        self._attempt_texts: list[str] | None = None
        self._attempt_start = 0

    def feed(self, text: str) -> None:
        if self._attempt_texts is not None:
            self._attempt_texts.append(self.text[self._attempt_start : self.at])
        self.text = self.text[self.at :] + text
        self.at = self._attempt_start = 0

    def start(self, back: int = 0) -> None:
        """Begin an attempt here, or `back` characters earlier."""
        self._attempt_texts = []
        self._attempt_start = self.at - back

    def stop(self) -> str:
        """End the attempt, and return what it has read."""
        raw = "".join(self._attempt_texts or ()) + self.text[self._attempt_start : self.at]
        self._attempt_texts = None
        return raw

    def rewind(self) -> None:
        """End the attempt, so that its text is read again."""
        if self._attempt_texts:
            self.text = "".join(self._attempt_texts) + self.text[self._attempt_start :]
            self._attempt_start = 0
        self.at, self._attempt_texts = self._attempt_start, None

    def more(self) -> Asking[None]:
        """Wait for text. Raises EndedError if none can come."""
        if self.ended:
            raise EndedError
        yield

    def peek(self, size: int = 1) -> Asking[str]:
        """Return the next characters, fewer than `size` only at the end of the text."""
        while len(self.text) - self.at < size and not self.ended:
            yield
        return self.text[self.at : self.at + size]

    def char(self) -> Asking[str]:
        """Return the next character. Raises EndedError."""
        while self.at == len(self.text):
            yield from self.more()
        return self.text[self.at]

    def space(self, sink: Sink | None = None) -> Asking[None]:
        """Skip whitespace."""
        yield from self.over(_SPACES, sink or nowhere)

    def sees(self, mark: str) -> Asking[bool]:
        """Return whether `mark` comes next."""
        while not self.text.startswith(mark, self.at):
            if self.ended or not mark.startswith(self.text[self.at : self.at + len(mark)]):
                return False
            yield
        return True

    def take(self, mark: str) -> Asking[bool]:
        """Skip `mark`, if it comes next. Raises EndedError if the text ends within it."""
        is_next = yield from self.sees(mark)
        self.at += len(mark) if is_next else 0
        remaining = len(self.text) - self.at
        if not is_next and 0 < remaining < len(mark) and mark.startswith(self.text[-remaining:]):
            raise EndedError
        return is_next

    def expect(self, mark: str) -> Asking[None]:
        """Skip `mark`. Raises NoCallError, or EndedError if the text is at its end."""
        if not (yield from self.take(mark)):
            raise EndedError if self.at == len(self.text) else NoCallError

    def name(self) -> Asking[str]:
        """Return a name of letters, digits and `_.:/-`. Raises NoCallError for an empty or overlong
        one."""
        return (yield from self._word(_NAME))

    def key(self) -> Asking[str]:
        """Return a parameter's name in a tag: no angle brackets, double quotes or line breaks."""
        return (yield from self._word(_KEY))

    def bare(self) -> Asking[str]:
        """Return a number, or a word such as `true`. Raises NoCallError."""
        return (yield from self._word(_BARE))

    def bare_key(self) -> Asking[str]:
        """Return an unquoted parameter name: no characters that structure a dictionary."""
        return (yield from self._word(_BARE_KEY)).rstrip(SPACE)

    def until(self, marks: Marks, sink: Sink) -> Asking[str]:
        """Pass the text before the first of `marks` to `sink`, skip the mark, and return it."""
        while True:
            start, mark = marks.search(self.text, self.at, ended=self.ended)
            if start > self.at:
                sink(self.text[self.at : start])
            self.at = start + len(mark)
            if mark:
                return mark
            yield from self.more()

    def string(self, sink: Sink) -> Asking[None]:
        """Pass a string with its quotes, single or double, to `sink` as it is written."""
        quote = yield from self.char()
        self._pass(self.at + 1, sink)
        while True:
            self._pass(_end(_IN_STRING[quote], self.text, self.at), sink)
            if self.text.startswith(quote, self.at):
                self._pass(self.at + 1, sink)
                return
            yield from self.more()

    def value(self, sink: Sink) -> Asking[None]:
        """Pass a value, in JSON or in Python's words and quotes, to `sink` as it is written.

        Only strings and the number of brackets are checked. Raises NoCallError for a character that
        neither JSON nor Python has there.
        """
        depth = 0
        while True:
            char = yield from self.char()
            if char in _IN_STRING:
                yield from self.string(sink)
            elif char in "[{":
                end = _end(_OPEN, self.text, self.at)
                depth += end - self.at
                self._pass(end, sink)
            elif depth and char in "]}":
                depth -= 1
                self._pass(self.at + 1, sink)
            elif depth:
                end = _end(_PLAIN, self.text, self.at)
                if end == self.at:
                    raise NoCallError
                self._pass(end, sink)
            else:
                sink((yield from self.bare()))
            if not depth:
                return

    def over(self, pattern: re.Pattern[str], sink: Sink) -> Asking[None]:
        """Pass the characters that the pattern, which matches single ones, accepts to `sink`."""
        while True:
            self._pass(_end(pattern, self.text, self.at), sink)
            if self.at < len(self.text) or self.ended:
                return
            yield

    def _word(self, pattern: re.Pattern[str]) -> Asking[str]:
        while True:
            end = _end(pattern, self.text, self.at)
            if end - self.at > _LONGEST_WORD:
                raise NoCallError
            if end < len(self.text) or self.ended:
                break
            yield
        if end == self.at:
            raise EndedError if end == len(self.text) else NoCallError
        word = self.text[self.at : end]
        self.at = end
        return word

    def _pass(self, end: int, sink: Sink) -> None:
        if end > self.at:
            sink(self.text[self.at : end])
            self.at = end


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()


def nowhere(_text: str) -> None:
    """Drop text that is skipped."""


# Write literals that are not JSON as JSON: Python's, and those of Gemma's own notation.
#
# Only literals are accepted: strings, numbers as in JSON, true, false, nothing, lists and
# dictionaries. Names, calls, operators and tuples are not. Nothing is evaluated, and nothing
# recurses.


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
_MAX_LITERAL_DEPTH = 200  # deeper ones are refused as arguments anyway
_TRIPLE_QUOTES = {quote: Marks((quote * 3,)) for quote in _QUOTES}


class _OpenBracket(msgspec.Struct, eq=False):
    """An open list or dictionary; `between` is what follows a key, if it has keys."""

    closer: str
    between: str
    end: str
    filled: bool = False


def keywords(cursor: Cursor, sink: Sink) -> Asking[None]:
    """Pass the rest of a Python call, `name="x", n=3)`, to `sink` as a JSON object.

    Raises NoCallError, EndedError.
    """
    sink("{")
    yield from _read_open(cursor, sink, [_OpenBracket(")", "=", "}")], "")


def dictionary(cursor: Cursor, sink: Sink, quote: str) -> Asking[None]:
    """Pass a dictionary to `sink` as a JSON object. With `quote`, that mark encloses strings, and
    keys are bare.

    Raises NoCallError, EndedError.
    """
    yield from cursor.expect("{")
    sink("{")
    yield from _read_open(cursor, sink, [_OpenBracket("}", ":", "}")], quote)


def json_of(text: str) -> str | None:
    """Return the text as JSON if all of it is one Python literal, or None."""
    cursor, pieces, brackets = Cursor(text, ended=True), list[str](), list[_OpenBracket]()
    try:
        for _ in _read_literal(cursor, pieces.append, brackets):
            return None  # never: the text is at its end
    except (NoCallError, EndedError):
        return None
    return "".join(pieces)


def _read_literal(cursor: Cursor, sink: Sink, brackets: list[_OpenBracket]) -> Asking[None]:
    yield from cursor.space()
    yield from _value(cursor, sink, brackets, "")
    yield from _read_open(cursor, sink, brackets, "")
    yield from cursor.space()
    if cursor.at < len(cursor.text):
        raise NoCallError


def _read_open(
    cursor: Cursor, sink: Sink, brackets: list[_OpenBracket], quote: str
) -> Asking[None]:
    """Read on until everything that is open is closed. A comma may precede a closing bracket."""
    while brackets:
        bracket = brackets[-1]
        yield from cursor.space()
        is_closed = yield from cursor.take(bracket.closer)
        if not is_closed and bracket.filled:
            yield from cursor.expect(",")
            yield from cursor.space()
            is_closed = yield from cursor.take(bracket.closer)
        if is_closed:
            sink(bracket.end)
            brackets.pop()
            continue
        if bracket.filled:
            sink(", ")
        bracket.filled = True
        if bracket.between:
            key = yield from _key(cursor, bracket.between, quote)
            yield from cursor.space()
            yield from cursor.expect(bracket.between)
            yield from cursor.space()
            sink(f"{json_string(key)}: ")
        yield from _value(cursor, sink, brackets, quote)


def _key(cursor: Cursor, between: str, quote: str) -> Asking[str]:
    if quote and (yield from cursor.take(quote)):
        return (yield from _quoted(cursor, quote))
    if quote:
        return (yield from cursor.bare_key())
    if between == "=":
        return (yield from cursor.bare())
    return (yield from string(cursor))


def _value(cursor: Cursor, sink: Sink, brackets: list[_OpenBracket], quote: str) -> Asking[None]:
    char = yield from cursor.char()
    if char in ("[", "{"):
        if len(brackets) > _MAX_LITERAL_DEPTH:
            raise NoCallError
        cursor.at += 1
        sink(char)
        brackets.append(_OpenBracket("]", "", "]") if char == "[" else _OpenBracket("}", ":", "}"))
    elif quote and (yield from cursor.take(quote)):
        sink(json_string((yield from _quoted(cursor, quote))))
    elif not quote and char in _QUOTES:
        sink(json_string((yield from string(cursor))))
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
    """Return the value of a JSON or Python string. Raises NoCallError if it is not one,
    EndedError."""
    quote = yield from cursor.char()
    if quote not in _QUOTES:
        raise NoCallError
    pieces: list[str] = []
    if (yield from cursor.peek(3)) == quote * 3:
        cursor.at += 3
        yield from cursor.until(_TRIPLE_QUOTES[quote], pieces.append)
        return _python_string("".join(pieces))
    yield from cursor.string(pieces.append)
    text = "".join(pieces)
    if quote == '"':
        try:
            return _with_joined_halves(str(json.loads(text, strict=False)))
        except ValueError:
            pass
    return _python_string(text[1:-1])


def json_string(text: str) -> str:
    """Return a string as JSON."""
    return json.dumps(text, ensure_ascii=False)


def _python_string(text: str) -> str:
    """Return the value of a Python string. Raises NoCallError for a character given by name
    (`\\N{…}`)."""
    return _with_joined_halves(_ESCAPE.sub(_escaped, text)) if "\\" in text else text


def _with_joined_halves(text: str) -> str:
    """Return the text, with escaped halves of surrogate pairs joined. Raises NoCallError for a lone
    half."""
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise NoCallError from None


def _escaped(match: re.Match[str]) -> str:
    line, two, four, eight, octal, named, other = match.groups()
    if line:
        return ""
    digits = two or four or eight
    if digits or octal:
        code_point = int(digits, 16) if digits else int(octal, 8)
        if code_point > 0x10FFFF:
            raise NoCallError
        return chr(code_point)
    if named:
        raise NoCallError
    if other in "\\'\"":
        return str(other)
    return _LETTERS.get(other, "\\" + other)


# The calls in one block of text, under construction, and what is on offer for them.
#
# A block is all or nothing: if one of its names is not on offer, all of it is text.


class WrittenCall(msgspec.Struct, eq=False):
    """A call as it was written. `pieces` are its arguments so far.

    `native` says that it came where a model makes its calls: at a mark of the syntax, outside
    fences, after words or on its own line, and followed only by calls.
    """

    name: str
    pieces: list[str] = []
    provider_id: str = ""
    native: bool = False

    def arguments(self) -> Settled:
        """Return the model's own text, if it is JSON; the equivalent JSON, if it is Python."""
        arguments = settled("".join(self.pieces))
        text = (
            arguments.text
            if is_object(arguments.text)
            else json_of(arguments.text) or arguments.text
        )
        return arguments._replace(text=text)


class FoundCalls:
    """Collects what a reader finds. With `strict`, a name that is not on offer ends it at once."""

    def __init__(self, offer: Offer, *, strict: bool = False) -> None:
        self.calls: list[WrittenCall] = []
        self.strict = strict
        self._offer = offer

    def call(self, name: str = "") -> WrittenCall:
        """Return a new call, to be filled."""
        call = WrittenCall("")
        self.calls.append(call)
        if name:
            self.named(call, name)
        return call

    def named(self, call: WrittenCall, name: str) -> None:
        """Give a call its name. Raises NoCallError if an unknown one ends the block."""
        if self.strict and not self.offers(name):
            raise NoCallError
        call.name = name

    def offers(self, name: str) -> bool:
        return self._offer.own_name(name) in self._offer.tools

    def usable(self) -> bool:
        """Return whether there are calls, and all of them are on offer."""
        return bool(self.calls) and all(self.offers(call.name) for call in self.calls)

    def begun(self) -> bool:
        """Return whether there is a name or an argument of a call, on offer or not."""
        return any(call.name or call.pieces for call in self.calls)

    def parameters(self, name: str) -> Parameters:
        """Return the schemas of a tool's parameters."""
        tool = self._offer.tools.get(self._offer.own_name(name))
        return Parameters(None if tool is None else tool.get_definition().input_schema)


class Parameters:
    """The kinds of values that a tool's parameters take: names of JSON types, empty for all."""

    def __init__(self, schema: JsonObject | None) -> None:
        self._schema = schema if isinstance(schema, dict) else {}

    @cached_property
    def _references(self) -> References:
        return References(self._schema)

    def kinds(self, name: str) -> frozenset[str]:
        properties = self._schema.get("properties")
        schema = properties.get(name) if isinstance(properties, dict) else None
        return frozenset(self._kinds(schema, 0))

    def _kinds(self, schema: object, depth: int) -> set[str]:
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return set()
        if isinstance(ref := schema.get("$ref"), str):
            return self._kinds(self._references.resolve(ref), depth + 1)
        kinds = schema.get("type")
        if isinstance(kinds, str | list):
            return {kinds} if isinstance(kinds, str) else {k for k in kinds if isinstance(k, str)}
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(values, list):
            return {_TYPE_NAMES.get(type(value), "object") for value in values}
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(branches := schema.get(key), list):
                return set().union(*(self._kinds(branch, depth + 1) for branch in branches))
        return set()


_MAX_DEPTH = 8
_TYPE_NAMES = {str: "string", bool: "boolean", type(None): "null", int: "integer", float: "number"}
