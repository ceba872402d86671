"""Text that is read once, from left to right, while more of it may still come.

What may need more text is a generator: it yields, and goes on once `feed` has brought some, or `ended`
is set. Nothing is read twice but what a mark's beginning takes, so that reading is linear in the text
whatever its pieces are, and the pieces make no difference to what is found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias, TypeVar

from toolcrib.wire.json_text import SPACE

_T = TypeVar("_T")
Asking: TypeAlias = Generator[None, None, _T]
"""Gives a value in the end, and yields wherever it has to wait for text."""
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
    """What was read is not what the syntax has at this place: it is text."""


class EndedError(Exception):
    """The text is at its end, and what was being read is not."""


class Marks:
    """Strings to look for; of two at one place the longer one counts."""

    def __init__(self, marks: Iterable[str]) -> None:
        ordered = sorted(set(marks), key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, ordered)))
        self._beginnings = frozenset(mark[:n] for mark in ordered for n in range(1, len(mark)))
        self._longest = len(ordered[0])

    def search(self, text: str, at: int, *, ended: bool) -> tuple[int, str]:
        """Where the first mark is, and which; or up to where there is none for certain, and ""."""
        found = self._any.search(text, at)
        start = len(text) if found is None else found.start()
        if not ended:
            for begin in range(max(at, len(text) - self._longest + 1), min(start + 1, len(text))):
                if text[begin:] in self._beginnings:
                    return begin, ""
        return start, "" if found is None else found.group()


class Cursor:
    """A place in a text. `start` begins an attempt, whose text `stop` gives back."""

    __slots__ = ("_before", "_from", "at", "ended", "text")

    def __init__(self, text: str = "", *, ended: bool = False) -> None:
        self.text = text
        self.at = 0
        self.ended = ended
        self._before: list[str] | None = None
        self._from = 0

    def feed(self, text: str) -> None:
        if self._before is not None:
            self._before.append(self.text[self._from : self.at])
        self.text = self.text[self.at :] + text
        self.at = self._from = 0

    def start(self, back: int = 0) -> None:
        """From here on, or `back` characters before, it is an attempt."""
        self._before = []
        self._from = self.at - back

    def stop(self) -> str:
        """The attempt is over. Gives what it has read."""
        raw = "".join(self._before or ()) + self.text[self._from : self.at]
        self._before = None
        return raw

    def rewind(self) -> None:
        """The attempt is over, and what it has read is to be read again."""
        if self._before:
            self.text = "".join(self._before) + self.text[self._from :]
            self._from = 0
        self.at, self._before = self._from, None

    def more(self) -> Asking[None]:
        """Wait for text. Raises EndedError if none can come."""
        if self.ended:
            raise EndedError
        yield

    def peek(self, size: int = 1) -> Asking[str]:
        """The next characters, fewer than `size` only at the end of the text."""
        while len(self.text) - self.at < size and not self.ended:
            yield
        return self.text[self.at : self.at + size]

    def char(self) -> Asking[str]:
        """The next character. Raises EndedError."""
        while self.at == len(self.text):
            yield from self.more()
        return self.text[self.at]

    def space(self, sink: Sink | None = None) -> Asking[None]:
        """Pass over white space."""
        yield from self.over(_SPACES, sink or _nowhere)

    def sees(self, mark: str) -> Asking[bool]:
        """Whether `mark` is what comes next."""
        while not self.text.startswith(mark, self.at):
            if self.ended or not mark.startswith(self.text[self.at : self.at + len(mark)]):
                return False
            yield
        return True

    def take(self, mark: str) -> Asking[bool]:
        """Pass over `mark`, if it is what comes next. Raises EndedError if the text ends within it."""
        seen = yield from self.sees(mark)
        self.at += len(mark) if seen else 0
        left = len(self.text) - self.at
        if not seen and 0 < left < len(mark) and mark.startswith(self.text[-left:]):
            raise EndedError
        return seen

    def expect(self, mark: str) -> Asking[None]:
        """Pass over `mark`. Raises NoCallError, or EndedError if the text is at its end."""
        if not (yield from self.take(mark)):
            raise EndedError if self.at == len(self.text) else NoCallError

    def name(self) -> Asking[str]:
        """A name of letters, digits and `_.:/-`. Raises NoCallError for none, or too long a one."""
        return (yield from self._word(_NAME))

    def key(self) -> Asking[str]:
        """A parameter's name in a tag: no angle brackets, double quotes or line breaks."""
        return (yield from self._word(_KEY))

    def bare(self) -> Asking[str]:
        """A number, or a word such as `true`. Raises NoCallError."""
        return (yield from self._word(_BARE))

    def bare_key(self) -> Asking[str]:
        """A parameter's name with nothing around it: none of what else a dictionary is made of."""
        return (yield from self._word(_BARE_KEY)).rstrip(SPACE)

    def until(self, marks: Marks, sink: Sink) -> Asking[str]:
        """Give `sink` what stands before the first of `marks`, pass over that, and tell which."""
        while True:
            start, mark = marks.search(self.text, self.at, ended=self.ended)
            if start > self.at:
                sink(self.text[self.at : start])
            self.at = start + len(mark)
            if mark:
                return mark
            yield from self.more()

    def string(self, sink: Sink) -> Asking[None]:
        """A string with its quotes, single or double, as it is written."""
        quote = yield from self.char()
        self._pass(self.at + 1, sink)
        while True:
            self._pass(_end(_IN_STRING[quote], self.text, self.at), sink)
            if self.text.startswith(quote, self.at):
                self._pass(self.at + 1, sink)
                return
            yield from self.more()

    def value(self, sink: Sink) -> Asking[None]:
        """A JSON value, or one in Python's words and quotes, as it is written.

        Only strings and the number of brackets are looked at. Raises NoCallError where neither JSON nor
        Python has such a character.
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
        """Pass over the characters that the pattern, which is of single ones, takes."""
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
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _nowhere(_text: str) -> None:
    pass
