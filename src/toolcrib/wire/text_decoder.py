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
    Written,
    nowhere,
)
from toolcrib.wire.text_calls.syntaxes import Reader, TextSyntax, some_calls, then

_FENCES = {"```": re.compile("`*+"), "~~~": re.compile("~*+")}
_INFO = re.compile(r"[\w.+-]*+")
_BLANKS = re.compile(r"[ \t]*+")
_ELEMENTS = (
    *("pre", "code", "blockquote", "samp", "kbd", "xmp", "textarea", "listing", "plaintext"),
    *("tt", "script", "style", "template", "q", "option"),
)
_ENCLOSED = {"<!--": "-->", "<![cdata[": "]]>"} | {f"<{name}": f"</{name}>" for name in _ELEMENTS}
"""What encloses shown text in HTML, in lower case; it may be written in any case."""
_PARAGRAPH_ENDS = ("\n\n", "\n\r", "\r\r")  # with lines that end with LF, CR LF or CR
_LINE_ENDS = ("\n", "\r")
_COMMENT_END = Marks(("*/",))


class Scanner:
    """Reads one text, in pieces by `feed` and `end`, or whole by `read`.

    `calls` are those found. `cut` says that the text ends inside one of them, or may do so.
    """

    def __init__(self, syntax: TextSyntax, offer: Offer) -> None:
        self.calls: list[Written] = []
        self.cut = False
        self._syntax = syntax
        self._offer = offer
        self._cursor = Cursor()
        self._thinking = {begin.lower(): end.lower() for begin, end in syntax.thinking.items()}
        self._thoughts = frozenset(self._thinking.values())
        self._marks = Marks(
            {*syntax.marks, *syntax.endings, *_FENCES},
            in_any_case={*_ENCLOSED, *self._thinking, *self._thoughts},
        )
        self._own = sorted(syntax.marks, key=len, reverse=True)
        self._scan = self._through()
        self._out: list[str] = []
        self._space: list[str] = []
        # Number of pieces of `_out`, and place in the text, up to which everything is passed on.
        self._kept = 0, 0
        self._quotes = Quotes()
        self._no_comment_ends = False  # in the rest of the text
        self._told = self._after_call = False
        self._beginnings = 2

    def read(self, text: str) -> str:
        """Return a whole text without its calls."""
        self._cursor.ended = True
        return self.feed(text) + self.end()

    def feed(self, text: str) -> str:
        """Return the text that is known, with this piece, not to be a call."""
        self._cursor.feed(text)
        self._kept = 0, 0
        next(self._scan, None)
        return self._shown()

    def end(self) -> str:
        """Return the text that was held back until the end."""
        self._cursor.ended = True
        next(self._scan, None)
        if not self._after_call:
            self._out += self._space
        return self._shown()

    def _shown(self) -> str:
        shown, self._out = "".join(self._out), []
        return shown

    def _through(self) -> Asking[None]:
        cursor, syntax, quotes = self._cursor, self._syntax, self._quotes
        try:
            yield from self._beginning()
            while True:
                mark = yield from cursor.until(self._marks, self._say)
                if mark in syntax.marks:
                    yield from self._marked(mark)
                elif mark in _FENCES:
                    yield from self._fenced(mark)
                elif quotes.marked or quotes.in_code():
                    self._say(mark)
                elif mark.lower() in self._thinking:
                    yield from self._pass_over(mark, self._thinking[mark.lower()])
                    yield from self._beginning()
                elif mark.lower() in self._thoughts:
                    self._forget(mark)
                    yield from self._beginning()
                elif mark.lower() in _ENCLOSED:
                    yield from self._enclosed(mark)
                elif not self._after_call:
                    self._say(mark)
        except EndedError:
            return

    def _pass_over(self, opener: str, closer: str) -> Asking[None]:
        self._tell(opener)
        marks = Marks((), in_any_case=(closer,))
        self._tell((yield from self._cursor.until(marks, self._tell)))
        self._quotes.past()

    def _enclosed(self, mark: str) -> Asking[None]:
        """Pass on what an HTML element encloses, including nested elements of the same name."""
        opener = mark.lower()
        if self._quotes.after_opener or (yield from self._is_longer(opener)):
            self._say(mark)
            return
        self._tell(mark)
        closer, depth = _ENCLOSED[opener], 1
        nests = () if opener.startswith("<!") else (opener,)
        marks = Marks((), in_any_case=(closer, *nests))
        while depth:
            found = yield from self._cursor.until(marks, self._tell)
            self._tell(found)
            if found.lower() == closer:
                depth -= 1
            elif not (yield from self._is_longer(opener)):
                depth += 1
        self._quotes.past()

    def _is_longer(self, opener: str) -> Asking[bool]:
        """Return whether the element's name is longer: `<sample>` is not `<samp>`."""
        follows = yield from self._cursor.peek()
        return opener[1].isalpha() and (follows.isalnum() or follows in tuple("-_:."))

    def _fenced(self, mark: str) -> Asking[None]:
        """Pass on a fenced block, which ends with a fence at least as long as the first.

        If the second fence is in the line of the first, it may be anywhere, and the block is inline
        code. In another line it has to come first, followed by nothing or a call.
        """
        cursor, column = self._cursor, self._quotes.column
        if self._quotes.marked or (mark == "~~~" and column is None):
            self._say(mark)
            return
        size = yield from self._run(mark)
        ends = Marks((mark, *_LINE_ENDS) if mark == "```" else _LINE_ENDS)
        while (yield from self._told_until(ends)) not in _LINE_ENDS:
            long_enough = (yield from self._run(mark)) >= size
            follows = yield from cursor.peek()
            if long_enough and not follows.isalnum():
                self._quotes.past()
                return
        while not (yield from self._fence_ends(mark, size, (column or 0) + 3)):
            yield from self._told_until(Marks(_LINE_ENDS))
        self._quotes.past_fence()

    def _fence_ends(self, mark: str, size: int, indent: int) -> Asking[bool]:
        """Return whether a line is the end of a fence; pass on what of it was read."""
        cursor = self._cursor
        blanks = yield from self._over(_BLANKS)
        if blanks > indent or not (yield from cursor.sees(mark)):
            return False
        if (yield from self._over(_FENCES[mark])) < size:
            return False
        yield from self._over(_BLANKS)
        return (yield from cursor.peek()) in ("", *_LINE_ENDS) or bool((yield from self._mark()))

    def _told_until(self, marks: Marks) -> Asking[str]:
        mark = yield from self._cursor.until(marks, self._tell)
        if mark in _LINE_ENDS:
            self._tell(mark)
        return mark

    def _run(self, mark: str) -> Asking[int]:
        """Pass on a fence whose first characters were read, and return its size."""
        self._tell(mark)
        return len(mark) + (yield from self._over(_FENCES[mark]))

    def _over(self, pattern: re.Pattern[str]) -> Asking[int]:
        """Pass on what the pattern matches, and return the number of characters."""
        pieces: list[str] = []
        yield from self._cursor.over(pattern, pieces.append)
        self._tell("".join(pieces))
        return sum(map(len, pieces))

    def _beginning(self) -> Asking[None]:
        """Read calls that are the whole text, or calls without a mark, if there are any here."""
        reader, cursor = self._syntax.unmarked, self._cursor
        self._beginnings -= 1
        if self._beginnings < 0:
            return
        yield from cursor.space(self._say)
        if self._quotes.in_comment():
            return
        if (yield from self._alone()) or reader is None or (yield from self._mark()):
            return
        yield from self._unmarked(reader)

    def _mark(self) -> Asking[str]:
        """Return the mark of a call that comes next, or "". It is not consumed."""
        for mark in self._own:
            if (yield from self._cursor.sees(mark)):
                return mark
        return ""

    def _alone(self) -> Asking[bool]:
        """Take calls that are the whole text, bare or in one fence; or else consume nothing."""
        cursor, block, fence = self._cursor, FoundCalls(self._offer), ""
        cursor.start()
        whole = marked = bool((yield from self._mark()))
        try:
            if not marked:
                fence = yield from self._opening_fence()
            yield from self._only_calls(block)
            whole = True
            yield from self._end_of_text(fence)
        except NoCallError:
            cursor.rewind()
            return False
        except EndedError:
            if whole:
                cursor.rewind()
                return False
            self._cut(block)
            raise
        self._take(block, cursor.stop(), native=marked)
        return True

    def _opening_fence(self) -> Asking[str]:
        """Read a fence and the word after it, if that comes next."""
        cursor = self._cursor
        for fence, run in _FENCES.items():
            if (yield from cursor.take(fence)):
                more: list[str] = []
                yield from cursor.over(run, more.append)
                yield from cursor.over(_INFO, nowhere)
                return fence + "".join(more)
        return ""

    def _only_calls(self, block: FoundCalls) -> Asking[None]:
        """Read calls at marks, or else one value that is one or several calls."""
        cursor, more = self._cursor, True
        while more:
            yield from cursor.space()
            mark = yield from self._mark()
            block.strict = not mark
            cursor.at += len(mark)
            if mark:
                yield from self._syntax.marks[mark](cursor, block)
            elif (yield from cursor.char()) in "{[":
                yield from some_calls(cursor, block)
            if not block.usable():
                raise NoCallError
            for ending in self._syntax.endings:
                yield from then(cursor, ending)
            yield from cursor.space()
            more = bool(mark and (yield from self._mark()))

    def _end_of_text(self, fence: str) -> Asking[None]:
        cursor = self._cursor
        if fence:
            yield from cursor.expect(fence)
            yield from cursor.space()
            for ending in self._syntax.endings:
                yield from then(cursor, ending)
        if (yield from cursor.peek()):
            raise NoCallError

    def _unmarked(self, reader: Reader) -> Asking[None]:
        """Take calls that the syntax has without a mark, or else consume nothing."""
        cursor, block = self._cursor, FoundCalls(self._offer, strict=True)
        cursor.start()
        try:
            yield from reader(cursor, block)
        except NoCallError:
            mark = (yield from self._mark()) if block.usable() else ""
            if not mark:
                cursor.rewind()
                return
            self._say(cursor.stop())
            yield from self._rest(mark)
        except EndedError:
            self._cut(block)
            raise
        else:
            raw = cursor.stop()
            yield from self._look_for_comment_end()
            if self._quotes.in_comment():
                self._tell(raw)
                self._quotes.past()
            else:
                self._take(block, raw, native=False)

    def _marked(self, mark: str) -> Asking[None]:
        """Take the calls at a mark, unless they are quoted."""
        cursor, quotes, block = self._cursor, self._quotes, FoundCalls(self._offer)
        quoted, native = quotes.here(), quotes.said_in_words()
        cursor.start(len(mark))
        read = True
        try:
            yield from self._syntax.marks[mark](cursor, block)
        except NoCallError:
            read = False
        except EndedError:
            if not quoted:
                self._cut(block)
                raise
            cursor.at = len(cursor.text)
            self._tell(cursor.stop())
            raise
        raw = cursor.stop()
        if read and not quoted and block.usable():
            yield from self._look_ahead()
            yield from self._look_for_comment_end()
            quoted = quotes.here()
        if quoted:
            self._tell(raw)
            quotes.past()
        elif read:
            self._take(block, raw, native=native)
        else:
            self._say(raw)
            if block.begun():
                yield from self._rest(mark)

    def _rest(self, mark: str) -> Asking[None]:
        """Pass on the rest of a block in which a call was begun and then stopped being one.

        Another form of that call in there is not another call.
        """
        cursor, closer = self._cursor, self._syntax.closers.get(mark)
        if closer is not None:
            self._tell((yield from cursor.until(Marks((closer,)), self._tell)))
            self._quotes.past()
            return
        while True:
            self._tell(cursor.text[cursor.at :])
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
            found = yield from cursor.until(Marks((*closers, *_PARAGRAPH_ENDS)), nowhere)
        except EndedError:
            found = ""
        cursor.rewind()
        self._quotes.look(found if found in closers else "")

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

    def _cut(self, block: FoundCalls) -> None:
        """End a text inside a block: neither its calls nor those before it may run."""
        cursor = self._cursor
        cursor.at = len(cursor.text)
        block.calls = [call for call in block.calls if call.name]
        self.cut = self._take(block, cursor.stop(), native=False) or bool(self.calls)

    def _take(self, block: FoundCalls, raw: str, *, native: bool) -> bool:
        """Take the calls of a block and return True; if it is not calls, pass on its text."""
        if not block.usable():
            self._say(raw)
            return False
        for call in block.calls:
            call.native = native
        self.calls += block.calls
        self._quotes.past()
        self._after_call = True
        self._space.append(raw[len(raw.rstrip(SPACE)) :])
        return True

    def _forget(self, mark: str) -> None:
        """Take back what was told: thinking ends without a beginning, so all before was no call.

        Only a whole text can be taken back. If it comes in pieces, earlier pieces that were not
        shown, such as the text of a call, stay hidden.
        """
        cursor = self._cursor
        if self.calls:
            pieces, at = self._kept
            end = cursor.at - len(mark)
            self._out[pieces:], self._space = [cursor.text[at:end]], []
            self._kept = pieces + 1, end
            self.calls, self._told, self._after_call = [], True, False
        self._say(mark)
        self._quotes.past_thoughts()

    def _say(self, text: str) -> None:
        self._quotes.say(text)
        self._tell(text)

    def _tell(self, text: str) -> None:
        """Pass on a text. Whitespace waits until it is known whether it is next to a call.

        When calls are removed, the remaining text keeps all whitespace except at its ends.
        """
        body = text.strip(SPACE)
        if not body:
            self._space.append(text)
            return
        for call in reversed(self.calls):  # a model that calls says nothing after that
            if not call.native:
                break
            call.native = False
        at = text.index(body[0]) if text[0] in SPACE else 0
        if self._told or not self._after_call:
            self._out += (*self._space, text[:at])
        self._out.append(body)
        self._space = [text[at + len(body) :]]
        self._told, self._after_call = True, False


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
        self._inner = inner
        self._syntax = syntax
        self._trusted = trusted
        self._offer = offer
        self._ids = ids
        self._shown = Scanner(syntax, offer)

    @property
    def done(self) -> bool:
        return self._inner.done

    def feed(self, data: bytes) -> list[Piece]:
        """Return text at once, except for calls and possible beginnings of calls."""
        parts: list[Piece] = []
        for part in self._inner.feed(data):
            if not isinstance(part, TextPart):
                parts.append(part)
            elif text := self._shown.feed(part.text):
                parts.append(TextPart(text))
        return parts

    def finish(self, *, clean: bool = True) -> Reply:
        """Return the reply. If it was cut, or ends inside a call, none of its calls may run."""
        reply = self._inner.finish(clean=clean)
        if reply.finish == "refusal":
            return reply
        scanner = Scanner(self._syntax, self._offer)
        text = scanner.read(reply.text)
        if not scanner.calls:
            return reply
        if reply.tool_calls:
            return _without_copies(reply, text, self._read(scanner, reply, whole=True))
        whole = reply.finish == "stop" and not scanner.cut
        calls = self._read(scanner, reply, whole=whole)
        message = msgspec.structs.replace(reply.message, content=text, tool_calls=calls)
        finish = "tool_calls" if whole else "length" if reply.finish == "stop" else reply.finish
        return msgspec.structs.replace(reply, message=message, finish=finish)

    def _read(self, scanner: Scanner, reply: Reply, *, whole: bool) -> tuple[ToolCall, ...]:
        return tuple(
            self._call(call, number, reply, whole=whole)
            for number, call in enumerate(scanner.calls)
        )

    def _call(self, call: Written, number: int, reply: Reply, *, whole: bool) -> ToolCall:
        doubtful = reply.finish == "doubtful" and reply.provider_finish
        given = call.arguments() if whole else Settled("".join(call.pieces))
        return ToolCall(
            id=f"{self._ids}{number}",
            provider_id=mended(call.provider_id),
            name=self._offer.own_name(call.name),
            arguments=given.text,
            complete=whole,
            notes=(*(_TRUSTED if self._trusted and call.native else _WRITTEN), *given.notes),
            fault=unlisted(doubtful) if doubtful else None,
            payload=reply.payload and msgspec.structs.replace(reply.payload, position=number),
        )


_WRITTEN = ("written_in_text",)
_TRUSTED = ("written_in_text", "text_call_trusted")


def _without_copies(reply: Reply, text: str, written: tuple[ToolCall, ...]) -> Reply:
    """Return the reply without the copies of its calls in its text; unchanged if any differs."""
    own = [(call.name, _value(call)) for call in reply.tool_calls]
    if not all((call.name, _value(call)) in own for call in written):
        return reply
    message = msgspec.structs.replace(reply.message, content=text)
    return msgspec.structs.replace(reply, message=message)


def _value(call: ToolCall) -> object:
    """Return the canonical arguments of a call, or their text if it is not JSON."""
    try:
        return canonical_text(call.arguments)
    except ValueError:
        return call.arguments
