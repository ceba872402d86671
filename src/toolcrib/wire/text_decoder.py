"""The decoder for models that write calls in their text, which separates text from calls.

The reply is read from its whole text, so that it cannot depend on how the text was split into
pieces. The pieces are also read as they come, only to show what can be shown at once.

Something is a call where the model makes it, not where it shows it. A text that consists only of
calls, bare or in one fence, makes them. Next to prose a call is text if it is in thinking, in a
fence that is not a mark of the syntax, in a comment or another element of HTML that quotes, in a
comment of code, in indented code, in a line that begins with `>`, in inline code or in quotation
marks (`Quotes`). What a failed attempt at a call has read is text, and is not read again; if it had
read any part of a call, its whole block is text.

A call from the text has the note `written_in_text`: it needs approval, unless its tool only reads.
If the author trusts that model's text calls, a call that ends its reply at a mark of the syntax
also has the note `text_call_trusted`, and needs none. If the reply has calls of the wire's own
kind, only those count, and copies of them in the text are dropped.
"""

from __future__ import annotations

import re

import msgspec

from toolcrib.values.call import ToolCall
from toolcrib.values.json import canonical_text
from toolcrib.values.message import Offer, Piece, Reply, TextPart
from toolcrib.wire.base import Decoder
from toolcrib.wire.calls import unlisted
from toolcrib.wire.json_text import SPACE, Settled, mended
from toolcrib.wire.text_calls.quotes import Quotes, is_in_path
from toolcrib.wire.text_calls.reading import (
    Asking,
    Cursor,
    EndedError,
    FoundCalls,
    Marks,
    NoCallError,
    WrittenCall,
    nowhere,
)
from toolcrib.wire.text_calls.syntaxes import Reader, TextSyntax, some_calls, take_with_space

_FENCES = {"```": re.compile("`*+"), "~~~": re.compile("~*+")}
_INFO = re.compile(r"[\w.+-]*+")
_BLANKS = re.compile(r"[ \t]*+")
_ELEMENTS = (
    *("pre", "code", "blockquote", "samp", "kbd", "xmp", "textarea", "listing", "plaintext"),
    *("tt", "script", "style", "template", "q", "option"),
)
_ELEMENT_CLOSERS = {"<!--": "-->", "<![cdata[": "]]>"} | {
    f"<{name}": f"</{name}>" for name in _ELEMENTS
}
"""What encloses shown text in HTML, in lower case; it may be written in any case."""
_PARAGRAPH_ENDS = ("\n\n", "\n\r", "\r\r")  # with lines that end with LF, CR LF or CR
_LINE_ENDS = ("\n", "\r")
_COMMENT_END = Marks(("*/",))


class Scanner:
    """Reads one text, in pieces by `feed` and `end`, or whole by `read`.

    `calls` are those found. `cut` says that the text ends inside one of them, or may do so.
    """

    def __init__(self, syntax: TextSyntax, offer: Offer) -> None:
        self.calls: list[WrittenCall] = []
        self.cut = False
        self._syntax = syntax
        self._offer = offer
        self._cursor = Cursor()
        self._thinking = {begin.lower(): end.lower() for begin, end in syntax.thinking.items()}
        self._thinking_closers = frozenset(self._thinking.values())
        self._marks = Marks(
            {*syntax.marks, *syntax.endings, *_FENCES},
            in_any_case={*_ELEMENT_CLOSERS, *self._thinking, *self._thinking_closers},
        )
        self._call_marks = sorted(syntax.marks, key=len, reverse=True)
        self._scan = self._scan_text()
        self._pieces: list[str] = []
        self._pending_space: list[str] = []
        # How many of the pieces, and how much of the text, are passed on.
        self._passed_on = 0, 0
        self._quotes = Quotes()
        self._no_comment_ends = False  # in the rest of the text
        self._has_text = self._after_call = False
        self._attempts_left = 2

    def read(self, text: str) -> str:
        """Return a whole text without its calls."""
        self._cursor.ended = True
        return self.feed(text) + self.end()

    def feed(self, text: str) -> str:
        """Return the text that is known, with this piece, not to be a call."""
        self._cursor.feed(text)
        self._passed_on = 0, 0
        next(self._scan, None)
        return self._shown()

    def end(self) -> str:
        """Return the text that was held back until the end."""
        self._cursor.ended = True
        next(self._scan, None)
        if not self._after_call:
            self._pieces += self._pending_space
        return self._shown()

    def _shown(self) -> str:
        shown, self._pieces = "".join(self._pieces), []
        return shown

    def _scan_text(self) -> Asking[None]:
        cursor, syntax, quotes = self._cursor, self._syntax, self._quotes
        try:
            yield from self._beginning()
            while True:
                mark = yield from cursor.until(self._marks, self._pass_on_prose)
                if mark in syntax.marks:
                    yield from self._calls_at_mark(mark)
                elif mark in _FENCES:
                    yield from self._pass_fenced(mark)
                elif quotes.is_block_quote or quotes.in_code():
                    self._pass_on_prose(mark)
                elif mark.lower() in self._thinking:
                    yield from self._pass_thoughts(mark, self._thinking[mark.lower()])
                    yield from self._beginning()
                elif mark.lower() in self._thinking_closers:
                    self._forget(mark)
                    yield from self._beginning()
                elif mark.lower() in _ELEMENT_CLOSERS:
                    yield from self._pass_element(mark)
                elif not self._after_call:
                    self._pass_on_prose(mark)
        except EndedError:
            return

    def _pass_thoughts(self, opener: str, closer: str) -> Asking[None]:
        self._pass_on(opener)
        marks = Marks((), in_any_case=(closer,))
        self._pass_on((yield from self._cursor.until(marks, self._pass_on)))
        self._quotes.note_skipped()

    def _pass_element(self, mark: str) -> Asking[None]:
        """Pass on what an HTML element encloses, including nested elements of the same name."""
        opener = mark.lower()
        if self._quotes.after_opener or (yield from self._is_longer(opener)):
            self._pass_on_prose(mark)
            return
        self._pass_on(mark)
        closer, depth = _ELEMENT_CLOSERS[opener], 1
        nests = () if opener.startswith("<!") else (opener,)
        marks = Marks((), in_any_case=(closer, *nests))
        while depth:
            found_mark = yield from self._cursor.until(marks, self._pass_on)
            self._pass_on(found_mark)
            if found_mark.lower() == closer:
                depth -= 1
            elif not (yield from self._is_longer(opener)):
                depth += 1
        self._quotes.note_skipped()

    def _is_longer(self, opener: str) -> Asking[bool]:
        """Return whether the element's name is longer: `<sample>` is not `<samp>`."""
        next_char = yield from self._cursor.peek()
        return opener[1].isalpha() and (next_char.isalnum() or next_char in tuple("-_:."))

    def _pass_fenced(self, mark: str) -> Asking[None]:
        """Pass on a fenced block, which ends with a fence at least as long as the first.

        If the second fence is in the line of the first, it may be anywhere, and the block is inline
        code. In another line it has to come first, followed by nothing or a call.
        """
        cursor, column = self._cursor, self._quotes.column
        if self._quotes.is_block_quote or (mark == "~~~" and column is None):
            self._pass_on_prose(mark)
            return
        size = yield from self._pass_fence_mark(mark)
        end_marks = Marks((mark, *_LINE_ENDS) if mark == "```" else _LINE_ENDS)
        while (yield from self._pass_until(end_marks)) not in _LINE_ENDS:
            is_long_enough = (yield from self._pass_fence_mark(mark)) >= size
            next_char = yield from cursor.peek()
            if is_long_enough and not next_char.isalnum():
                self._quotes.note_skipped()
                return
        while not (yield from self._fence_ends(mark, size, (column or 0) + 3)):
            yield from self._pass_until(Marks(_LINE_ENDS))
        self._quotes.note_fence()

    def _fence_ends(self, mark: str, size: int, indent: int) -> Asking[bool]:
        """Return whether a line is the end of a fence; pass on what of it was read."""
        cursor = self._cursor
        blanks = yield from self._pass_matching(_BLANKS)
        if blanks > indent or not (yield from cursor.sees(mark)):
            return False
        if (yield from self._pass_matching(_FENCES[mark])) < size:
            return False
        yield from self._pass_matching(_BLANKS)
        return (yield from cursor.peek()) in ("", *_LINE_ENDS) or bool(
            (yield from self._next_mark())
        )

    def _pass_until(self, marks: Marks) -> Asking[str]:
        mark = yield from self._cursor.until(marks, self._pass_on)
        if mark in _LINE_ENDS:
            self._pass_on(mark)
        return mark

    def _pass_fence_mark(self, mark: str) -> Asking[int]:
        """Pass on a fence whose first characters were read, and return its size."""
        self._pass_on(mark)
        return len(mark) + (yield from self._pass_matching(_FENCES[mark]))

    def _pass_matching(self, pattern: re.Pattern[str]) -> Asking[int]:
        """Pass on what the pattern matches, and return the number of characters."""
        pieces: list[str] = []
        yield from self._cursor.over(pattern, pieces.append)
        self._pass_on("".join(pieces))
        return sum(map(len, pieces))

    def _beginning(self) -> Asking[None]:
        """Read calls that are the whole text, or calls without a mark, if there are any here."""
        reader, cursor = self._syntax.unmarked, self._cursor
        self._attempts_left -= 1
        if self._attempts_left < 0:
            return
        yield from cursor.space(self._pass_on_prose)
        if self._quotes.in_comment():
            return
        if (yield from self._calls_alone()) or reader is None or (yield from self._next_mark()):
            return
        yield from self._calls_without_mark(reader)

    def _next_mark(self) -> Asking[str]:
        """Return the mark of a call that comes next, or "". It is not consumed."""
        for mark in self._call_marks:
            if (yield from self._cursor.sees(mark)):
                return mark
        return ""

    def _calls_alone(self) -> Asking[bool]:
        """Take calls that are the whole text, bare or in one fence; or else consume nothing."""
        cursor, block, fence = self._cursor, FoundCalls(self._offer), ""
        cursor.start()
        may_rewind = marked = bool((yield from self._next_mark()))
        try:
            if not marked:
                fence = yield from self._opening_fence()
            yield from self._only_calls(block)
            may_rewind = True
            yield from self._end_of_text(fence)
        except NoCallError:
            cursor.rewind()
            return False
        except EndedError:
            if may_rewind:
                cursor.rewind()
                return False
            self._end_inside(block)
            raise
        self._take(block, cursor.stop(), native=marked)
        return True

    def _opening_fence(self) -> Asking[str]:
        """Read a fence and the word after it, if that comes next."""
        cursor = self._cursor
        for fence, run in _FENCES.items():
            if (yield from cursor.take(fence)):
                pieces: list[str] = []
                yield from cursor.over(run, pieces.append)
                yield from cursor.over(_INFO, nowhere)
                return fence + "".join(pieces)
        return ""

    def _only_calls(self, block: FoundCalls) -> Asking[None]:
        """Read calls at marks, or else one value that is one or several calls."""
        cursor, has_more = self._cursor, True
        while has_more:
            yield from cursor.space()
            mark = yield from self._next_mark()
            block.strict = not mark
            cursor.at += len(mark)
            if mark:
                yield from self._syntax.marks[mark](cursor, block)
            elif (yield from cursor.char()) in "{[":
                yield from some_calls(cursor, block)
            if not block.usable():
                raise NoCallError
            for ending in self._syntax.endings:
                yield from take_with_space(cursor, ending)
            yield from cursor.space()
            has_more = bool(mark and (yield from self._next_mark()))

    def _end_of_text(self, fence: str) -> Asking[None]:
        cursor = self._cursor
        if fence:
            yield from cursor.expect(fence)
            yield from cursor.space()
            for ending in self._syntax.endings:
                yield from take_with_space(cursor, ending)
        if (yield from cursor.peek()):
            raise NoCallError

    def _calls_without_mark(self, reader: Reader) -> Asking[None]:
        """Take calls that the syntax has without a mark, or else consume nothing."""
        cursor, block = self._cursor, FoundCalls(self._offer, strict=True)
        cursor.start()
        try:
            yield from reader(cursor, block)
        except NoCallError:
            mark = (yield from self._next_mark()) if block.usable() else ""
            if not mark:
                cursor.rewind()
                return
            self._pass_on_prose(cursor.stop())
            yield from self._pass_rest(mark)
        except EndedError:
            self._end_inside(block)
            raise
        else:
            raw = cursor.stop()
            yield from self._look_for_comment_end()
            if self._quotes.in_comment():
                self._pass_on(raw)
                self._quotes.note_skipped()
            else:
                self._take(block, raw, native=False)

    def _calls_at_mark(self, mark: str) -> Asking[None]:
        """Take the calls at a mark, unless they are quoted."""
        cursor, quotes, block = self._cursor, self._quotes, FoundCalls(self._offer)
        is_quoted, is_native = quotes.is_quoted(), quotes.begins_in_words()
        cursor.start(len(mark))
        is_call = True
        try:
            yield from self._syntax.marks[mark](cursor, block)
        except NoCallError:
            is_call = False
        except EndedError:
            if not is_quoted:
                self._end_inside(block)
                raise
            cursor.at = len(cursor.text)
            self._pass_on(cursor.stop())
            raise
        raw = cursor.stop()
        if is_call and not is_quoted and block.usable():
            yield from self._look_ahead()
            yield from self._look_for_comment_end()
            is_quoted = quotes.is_quoted()
        if is_quoted:
            self._pass_on(raw)
            quotes.note_skipped()
        elif is_call:
            self._take(block, raw, native=is_native)
        else:
            self._pass_on_prose(raw)
            if block.begun():
                yield from self._pass_rest(mark)

    def _pass_rest(self, mark: str) -> Asking[None]:
        """Pass on the rest of a block in which a call was begun and then stopped being one.

        Another form of that call in there is not another call.
        """
        cursor, closer = self._cursor, self._syntax.closers.get(mark)
        if closer is not None:
            self._pass_on((yield from cursor.until(Marks((closer,)), self._pass_on)))
            self._quotes.note_skipped()
            return
        while True:
            self._pass_on(cursor.text[cursor.at :])
            cursor.at = len(cursor.text)
            yield from cursor.more()

    def _look_ahead(self) -> Asking[None]:
        """Look ahead whether an open quotation is closed in this paragraph. Consumes nothing."""
        cursor = self._cursor
        closers = self._quotes.closers()
        if not closers:
            return
        cursor.start()
        try:
            closer = yield from cursor.until(Marks((*closers, *_PARAGRAPH_ENDS)), nowhere)
        except EndedError:
            closer = ""
        cursor.rewind()
        self._quotes.note_closer(closer if closer in closers else "")

    def _look_for_comment_end(self) -> Asking[None]:
        """Look ahead whether a possible comment of code is closed in this text. Consumes
        nothing."""
        cursor, quotes = self._cursor, self._quotes
        if quotes.comment != "open":
            return
        cursor.start()
        try:
            while not self._no_comment_ends:
                pieces = [" "]
                yield from cursor.until(_COMMENT_END, pieces.append)
                if not is_in_path(pieces[-1][-1], (yield from cursor.peek())):
                    break
        except EndedError:
            self._no_comment_ends = True
        cursor.rewind()
        quotes.comment = "" if self._no_comment_ends else "certain"

    def _end_inside(self, block: FoundCalls) -> None:
        """End a text inside a block: neither its calls nor those before it may run."""
        cursor = self._cursor
        cursor.at = len(cursor.text)
        block.calls = [call for call in block.calls if call.name]
        self.cut = self._take(block, cursor.stop(), native=False) or bool(self.calls)

    def _take(self, block: FoundCalls, raw: str, *, native: bool) -> bool:
        """Take the calls of a block and return True; if it is not calls, pass on its text."""
        if not block.usable():
            self._pass_on_prose(raw)
            return False
        for call in block.calls:
            call.native = native
        self.calls += block.calls
        self._quotes.note_skipped()
        self._after_call = True
        self._pending_space.append(raw[len(raw.rstrip(SPACE)) :])
        return True

    def _forget(self, mark: str) -> None:
        """Take back what was passed on: thinking ends without a beginning, so all before was no call.

        Only a whole text can be taken back. If it comes in pieces, earlier pieces that were not
        shown, such as the text of a call, stay hidden.
        """
        cursor = self._cursor
        if self.calls:
            pieces, at = self._passed_on
            end = cursor.at - len(mark)
            self._pieces[pieces:], self._pending_space = [cursor.text[at:end]], []
            self._passed_on = pieces + 1, end
            self.calls, self._has_text, self._after_call = [], True, False
        self._pass_on_prose(mark)
        self._quotes.note_thoughts()

    def _pass_on_prose(self, text: str) -> None:
        """Pass on a text whose quotation marks and comments count."""
        self._quotes.read(text)
        self._pass_on(text)

    def _pass_on(self, text: str) -> None:
        """Pass on a text. Whitespace waits until it is known whether it is next to a call.

        When calls are removed, the remaining text keeps all whitespace except at its ends.
        """
        body = text.strip(SPACE)
        if not body:
            self._pending_space.append(text)
            return
        for call in reversed(self.calls):  # a model that calls says nothing after that
            if not call.native:
                break
            call.native = False
        start = text.index(body[0]) if text[0] in SPACE else 0
        if self._has_text or not self._after_call:
            self._pieces += (*self._pending_space, text[:start])
        self._pieces.append(body)
        self._pending_space = [text[start + len(body) :]]
        self._has_text, self._after_call = True, False


class TextCallDecoder:
    """A `Decoder` around that of a wire. The text of a refusal stays text."""

    def __init__(
        self,
        inner: Decoder,
        syntax: TextSyntax,
        *,
        offer: Offer,
        ids: str,
        trusted: bool = False,
    ) -> None:
        self._decoder = inner
        self._syntax = syntax
        self._trusted = trusted
        self._offer = offer
        self._ids = ids
        self._scanner = Scanner(syntax, offer)

    @property
    def done(self) -> bool:
        return self._decoder.done

    def feed(self, data: bytes) -> list[Piece]:
        """Return text at once, except for calls and possible beginnings of calls."""
        parts: list[Piece] = []
        for part in self._decoder.feed(data):
            if not isinstance(part, TextPart):
                parts.append(part)
            elif text := self._scanner.feed(part.text):
                parts.append(TextPart(text))
        return parts

    def finish(self, *, clean: bool = True) -> Reply:
        """Return the reply. If it was cut, or ends inside a call, none of its calls may run."""
        reply = self._decoder.finish(clean=clean)
        if reply.finish == "refusal":
            return reply
        scanner = Scanner(self._syntax, self._offer)
        text = scanner.read(reply.text)
        if not scanner.calls:
            return reply
        if reply.tool_calls:
            return _without_copies(reply, text, self._read(scanner, reply, is_complete=True))
        is_complete = reply.finish == "stop" and not scanner.cut
        calls = self._read(scanner, reply, is_complete=is_complete)
        message = msgspec.structs.replace(reply.message, content=text, tool_calls=calls)
        finish = (
            "tool_calls" if is_complete else "length" if reply.finish == "stop" else reply.finish
        )
        return msgspec.structs.replace(reply, message=message, finish=finish)

    def _read(self, scanner: Scanner, reply: Reply, *, is_complete: bool) -> tuple[ToolCall, ...]:
        return tuple(
            self._call(call, number, reply, is_complete=is_complete)
            for number, call in enumerate(scanner.calls)
        )

    def _call(self, call: WrittenCall, number: int, reply: Reply, *, is_complete: bool) -> ToolCall:
        doubtful = reply.finish == "doubtful" and reply.provider_finish
        arguments = call.arguments() if is_complete else Settled("".join(call.pieces))
        return ToolCall(
            id=f"{self._ids}{number}",
            provider_id=mended(call.provider_id),
            name=self._offer.own_name(call.name),
            arguments=arguments.text,
            complete=is_complete,
            notes=(
                *(_TRUSTED_NOTES if self._trusted and call.native else _WRITTEN_NOTES),
                *arguments.notes,
            ),
            fault=unlisted(doubtful) if doubtful else None,
            payload=reply.payload and msgspec.structs.replace(reply.payload, position=number),
        )


_WRITTEN_NOTES = ("written_in_text",)
_TRUSTED_NOTES = ("written_in_text", "text_call_trusted")


def _without_copies(reply: Reply, text: str, written: tuple[ToolCall, ...]) -> Reply:
    """Return the reply without the copies of its calls in its text; unchanged if any differs."""
    own_calls = {(call.name, _value(call)) for call in reply.tool_calls}
    if not all((call.name, _value(call)) in own_calls for call in written):
        return reply
    message = msgspec.structs.replace(reply.message, content=text)
    return msgspec.structs.replace(reply, message=message)


def _value(call: ToolCall) -> str:
    """Return the canonical arguments of a call, or their text if it is not JSON."""
    try:
        return canonical_text(call.arguments)
    except ValueError:
        return call.arguments
