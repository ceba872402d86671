"""A text, cut into what it says and the calls in it.

What a failed attempt at a call has read is text, and is not read again. Nothing in thinking, in a
block fenced by backticks, after an open backtick in its line or in a line that begins with `>` is a
call: it is thought of, or quoted. As in Markdown, as many backticks close a quotation as opened it.
"""

from __future__ import annotations

import re

from toolcrib.values.offer import Offer
from toolcrib.wire.json_text import SPACE
from toolcrib.wire.text_calls.block import Block, Written
from toolcrib.wire.text_calls.cursor import Asking, Cursor, EndedError, Marks, NoCallError
from toolcrib.wire.text_calls.syntax import Reader, TextSyntax

_FENCE = "```"
_FENCES = Marks((_FENCE,))
_TICKS = re.compile("`+")
_BEGUN = re.compile(f"[{SPACE}]*+(.)")


class Scanner:
    """Reads one text, in pieces by `feed` and `end`, or whole by `read`.

    `calls` are those found, and `cut` is whether the text ends inside one of them, or may do so.
    """

    def __init__(self, syntax: TextSyntax, offer: Offer) -> None:
        self.calls: list[Written] = []
        self.cut = False
        self._syntax = syntax
        self._offer = offer
        self._cursor = Cursor()
        self._thoughts = frozenset(syntax.thinking.values())
        self._marks = Marks(
            (*syntax.marks, *syntax.endings, *syntax.thinking, *self._thoughts, _FENCE)
        )
        self._scan = self._through()
        self._out: list[str] = []
        self._space: list[str] = []
        self._kept = 0, 0  # pieces of `_out`, and the place in the text, before which all is told
        self._quote = 0  # so many backticks are open in this line; -1 if all of it is a quotation
        self._new_line = True
        self._told = self._after_call = False
        self._beginnings = 2

    def read(self, text: str) -> str:
        """What a whole text says, without its calls."""
        self._cursor.ended = True
        return self.feed(text) + self.end()

    def feed(self, text: str) -> str:
        """What can be told, now that the text goes on with this piece."""
        self._cursor.feed(text)
        self._kept = 0, 0
        next(self._scan, None)
        return self._shown()

    def end(self) -> str:
        """What was held back until the end."""
        self._cursor.ended = True
        next(self._scan, None)
        if not self._after_call:
            self._out += self._space
        return self._shown()

    def _shown(self) -> str:
        shown, self._out = "".join(self._out), []
        return shown

    def _through(self) -> Asking[None]:
        cursor, marks, thinking = self._cursor, self._syntax.marks, self._syntax.thinking
        try:
            yield from self._beginning()
            while True:
                mark = yield from cursor.until(self._marks, self._say)
                if mark in marks and not self._quote:
                    yield from self._attempt(marks[mark], mark)
                elif mark == _FENCE:
                    yield from self._fenced()
                elif self._quote:
                    self._say(mark)
                elif mark in thinking:
                    yield from self._pass_over(mark, thinking[mark])
                    yield from self._beginning()
                elif mark in self._thoughts:
                    self._forget(mark)
                    yield from self._beginning()
                elif not self._after_call:
                    self._say(mark)
        except EndedError:
            return

    def _pass_over(self, opener: str, closer: str) -> Asking[None]:
        """Say what stands between two marks, and those."""
        self._say(opener)
        self._say((yield from self._cursor.until(Marks((closer,)), self._say)))
        self._quote = 0

    def _fenced(self) -> Asking[None]:
        """Say a fenced block. A fence with a word after it opens one, and so closes none."""
        size = yield from self._fence()
        while True:
            yield from self._cursor.until(_FENCES, self._say)
            long_enough = (yield from self._fence()) >= size
            follows = yield from self._cursor.peek()
            if long_enough and not follows.isalnum():
                break
        self._quote = 0

    def _fence(self) -> Asking[int]:
        """Say a fence, whose first backticks are read. Gives its size."""
        ticks = [_FENCE]
        yield from self._cursor.ticks(ticks.append)
        self._say("".join(ticks))
        return sum(map(len, ticks))

    def _beginning(self) -> Asking[None]:
        """Calls without a mark, if there are any here."""
        reader, cursor = self._syntax.unmarked, self._cursor
        self._beginnings -= 1
        if reader is None or self._beginnings < 0:
            return
        yield from cursor.space(self._say)
        for mark in self._syntax.marks:
            if (yield from cursor.sees(mark)):
                return
        yield from self._attempt(reader, "")

    def _attempt(self, reader: Reader, mark: str) -> Asking[None]:
        cursor, block = self._cursor, Block(self._offer, strict=not mark)
        cursor.start(len(mark))
        try:
            yield from reader(cursor, block)
        except NoCallError:
            if mark:
                self._say(cursor.stop())
            else:
                cursor.rewind()
            return
        except EndedError:
            cursor.at = len(cursor.text)
            block.calls = [call for call in block.calls if call.name]
            self.cut = self._take(block) or bool(self.calls)
            raise
        self._take(block)

    def _take(self, block: Block) -> bool:
        """Whether a block that was read is calls; otherwise it is said."""
        raw = self._cursor.stop()
        if not block.usable():
            self._say(raw)
            return False
        self.calls += block.calls
        self._quote, self._new_line, self._after_call = 0, False, True
        self._space.append(raw[len(raw.rstrip(SPACE)) :])
        return True

    def _forget(self, mark: str) -> None:
        """Thinking ends that had no beginning: all before was thought, and no call.

        Only a whole text can be taken back; of one in pieces, what was not shown stays so.
        """
        cursor = self._cursor
        if self.calls:
            pieces, at = self._kept
            end = cursor.at - len(mark)
            self._out[pieces:], self._space = [cursor.text[at:end]], []
            self._kept = pieces + 1, end
            self.calls, self._told, self._after_call = [], True, False
        self._say(mark)

    def _say(self, text: str) -> None:
        """Tell a text. White space waits until it is known whether it stands next to a call.

        What is left when calls are taken out keeps all of it but at its ends.
        """
        if not text:
            return
        self._quote_on(text)
        body = text.strip(SPACE)
        if not body:
            self._space.append(text)
            return
        at = text.index(body[0]) if text[0] in SPACE else 0
        if self._told or not self._after_call:
            self._out += (*self._space, text[:at])
        self._out.append(body)
        self._space = [text[at + len(body) :]]
        self._told, self._after_call = True, False

    def _quote_on(self, text: str) -> None:
        """Keep up what quotes the rest of the line."""
        start = text.rfind("\n") + 1
        if start:
            self._quote, self._new_line = 0, True
        if self._new_line and (begun := _BEGUN.match(text, start)):
            self._quote, self._new_line = -(begun[1] == ">"), False
        if "`" in text:
            for ticks in _TICKS.findall(text, start):
                if self._quote in (0, len(ticks)):
                    self._quote = 0 if self._quote else len(ticks)
