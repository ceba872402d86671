"""Decide whether a place in a text is quoted, or in a comment, so that it is only shown.

Quotation marks need both of their ends in one paragraph. `/* */` needs both in the text, except at
the beginning of a line. A line that begins with `>`, `#` or `//` is quoted to its end, which is LF,
CR LF or CR, as in CommonMark.
"""

from __future__ import annotations

import re
from typing import Literal

_CLOSERS = {
    '"': '"',
    "'": "'",
    "“": "”",
    "”": "”",
    "„": "“”",
    "‘": "’",
    "‚": "‘’",
    "«": "»",
    "»": "«»",
    "‹": "›",
    "›": "‹›",
    "「": "」",
    "『": "』",
    "‛": "’",
    "‟": "”",
    "⹂": "‟“”",
    "〝": "〞〟",
    "﹁": "﹂",
    "﹃": "﹄",
    "＂": "＂",
    "＇": "＇",
    "｢": "｣",
    "❛": "❜",
    "❝": "❞",
}
"""Marks that open a quotation, and those that close it."""
_NO_OPENING = ".,!?;)]}%…"
_TOKEN = re.compile(f"[\r\n]|`+|[/*{''.join(sorted({*_CLOSERS, *''.join(_CLOSERS.values())}))}]")
_LINE_START = re.compile(r"[^\S\r\n]*+(?:(?:[-*+]|\d{1,9}[.)])[^\S\r\n]++)*+")
_MAY_START_LINE = re.compile(r"(?:[-*+/]|\d{1,9}[.)]?)?")
_INDENTED = re.compile(r" {4}|\t")
_MAX_LINE_START = 64


def is_in_path(before: str, after: str) -> bool:
    """Return whether `*/` is probably part of a path (`src/**/*.py`), not a comment's end."""
    is_after_name = before.isalnum() or before in tuple("_*/")
    return is_after_name and (after.isalnum() or after in tuple("_*.[{"))


class Quotes:
    """Knows whether the text up to a place leaves it inside quotes.

    A quotation needs both of its ends in one paragraph, so the caller has to look ahead for the
    second (`closers`). Two cases need no second end: inline code that is open in the line of the
    call, and a mark directly before it. The kinds of marks are independent of each other, so that a
    stray one of one kind hides none of another.

    A comment of code (`comment`) is `certain` if it begins a line. Any other `/*` may be the
    pattern of a path, and is `open` until the caller has looked for its `*/` in the rest of the
    text.
    """

    def __init__(self) -> None:
        self.column: int | None = 0  # the width of the line's beginning, as long as it is not prose
        self.is_block_quote = False  # the line begins with ">"
        self.comment: Literal["", "open", "certain"] = ""
        self._commented = False  # the line begins with "#" or "//"
        self._in_line_start = True  # it is not known yet how the line begins
        self._half_mark = ""  # "/" or "*", which may be the first half of a comment's mark
        self._char_before_half = ""
        self._char_before_end = ""  # what precedes a "*/" whose next character is not known
        self.after_opener = False
        self._first_char = ""  # the first character in this line that is not blank
        self._line_start = ""
        self._is_blank = True
        self._tick_count = 0  # how many backticks opened the code in this line
        self._open_kinds: dict[str, str] = {}  # by kind open in this paragraph, what closes it
        self._certain_kinds: set[str] = set()
        self._pending_kind = ""  # a kind that is closed unless a letter follows
        self._previous_char = "\n"

    def begins_in_words(self) -> bool:
        """Return whether the line is empty so far or begins with a letter.

        A line that begins with another character may be a comment, a list or a table in any
        language.
        """
        return not self._first_char or self._first_char.isalpha()

    def in_code(self) -> bool:
        """Return whether inline code is open in this line."""
        return self._tick_count > 0

    def is_quoted(self) -> bool:
        """Return whether this place is quoted, whatever follows."""
        self._settle("")
        if self.after_opener:
            self._certain_kinds.add(self._previous_char)
        is_indented = _INDENTED.search(self._line_start) is not None
        is_shown = self.is_block_quote or is_indented or self.in_code() or self.in_comment()
        return is_shown or bool(self._certain_kinds)

    def in_comment(self) -> bool:
        """Return whether this place is in a comment of code, whatever follows."""
        return self._commented or self.comment == "certain"

    def closers(self) -> tuple[str, ...]:
        """Return the marks that would show, later in this paragraph, that this place is quoted."""
        closer_groups = (
            (kind,) if kind[0] == "`" else closers for kind, closers in self._open_kinds.items()
        )
        return tuple(mark for group in closer_groups for mark in group)

    def note_closer(self, closer: str) -> None:
        """Note the closer that was found in this paragraph, or that there is none."""
        self._certain_kinds = {
            kind for kind, closers in self._open_kinds.items() if closer and closer in closers
        }
        if not closer:
            self._open_kinds.clear()

    def note_skipped(self) -> None:
        """Note that text without effect on quotes was skipped: a call, or quoted text."""
        self._settle("")
        self._previous_char, self.after_opener = ".", False
        self._is_blank, self._in_line_start, self.column = False, False, None

    def note_fence(self) -> None:
        """Note that a fenced block is over, and with it everything that was open before."""
        self.paragraph()
        self.note_skipped()
        self._line_start, self._tick_count, self._commented = "", 0, False

    def paragraph(self) -> None:
        """Begin another paragraph."""
        self._open_kinds.clear()
        self._certain_kinds.clear()
        self._pending_kind = ""

    def note_thoughts(self) -> None:
        """Note that everything before was thought.

        That closes what was open, except a comment that ends later.
        """
        self.paragraph()
        self.comment = "open" if self.comment else ""

    def read(self, text: str) -> None:
        self._settle(text[:1])
        position = 0
        for token in _TOKEN.finditer(text):
            self._plain(text[position : token.start()])
            position = token.end()
            mark = token.group()
            if mark in "\r\n":
                self._line(mark)
                continue
            before = self._previous_char
            self._plain(mark)
            if mark[0] == "`":
                self._tick(len(mark))
            elif mark in "/*":
                self._half_of_comment(mark, before, text[position : position + 1])
            else:
                self._quotation(mark, before, text[position : position + 1])
        if position < len(text):
            self._plain(text[position:])

    def _plain(self, text: str) -> None:
        if not text:
            return
        self.after_opener = False
        self._first_char = self._first_char or text.lstrip()[:1]
        self._previous_char = text[-1]
        self._is_blank = self._is_blank and text.isspace()
        if self._in_line_start:
            self._take_line_start(text)

    def _take_line_start(self, text: str) -> None:
        """Read more of the beginning of a line. A beginning longer than any real one may be a
        comment."""
        self._line_start += text[: _MAX_LINE_START + 1 - len(self._line_start)]
        match = _LINE_START.match(self._line_start)
        end = match.end() if match else 0
        rest = self._line_start[end:]
        may_start_line = _MAY_START_LINE.fullmatch(rest) is not None
        self.column = end if may_start_line and rest != "/" else None
        if may_start_line and len(self._line_start) <= _MAX_LINE_START:
            return
        self._in_line_start = False
        self._line_start = self._line_start[:end]
        self.is_block_quote = rest.startswith(">")
        self._commented = may_start_line or rest.startswith(("#", "//"))
        if rest.startswith("/*"):
            self.comment = "certain"

    def _line(self, end: str) -> None:
        """Begin another line, after LF, CR or both, whose halves may come in two pieces."""
        if end == "\n" and self._previous_char == "\r":
            self._previous_char = end
            return
        if self._is_blank:
            self.paragraph()
        self.column, self.is_block_quote, self.after_opener, self._first_char = 0, False, False, ""
        self._line_start, self._is_blank, self._tick_count = "", True, 0
        self._in_line_start, self._commented = True, False
        self._previous_char = end

    def _half_of_comment(self, mark: str, before: str, after: str) -> None:
        """Take `/` or `*`, which may complete a mark that opens or closes a comment.

        A mark inside a path (`**/x`, `a*/b`) closes none.
        """
        joined = self._half_mark + mark if before == self._half_mark else mark
        self._half_mark = "" if joined in ("/*", "*/") else mark
        if joined == "/*" and not self.comment:
            self.comment = "open"
        elif joined == "*/" and self.comment:
            self._char_before_end = self._char_before_half
            if after:
                self._settle(after)
        self._char_before_half = before

    def _tick(self, size: int) -> None:
        if self._tick_count in (0, size):
            self._tick_count = 0 if self._tick_count else size
        kind = "`" * size
        if kind in self._open_kinds:
            self._close(kind)
        elif not any(other[0] == "`" for other in self._open_kinds):
            self._open_kinds[kind] = kind

    def _quotation(self, mark: str, before: str, after: str) -> None:
        is_first = _CLOSERS.get(mark) == mark and before.isspace()  # of two equal marks
        closed_kinds = [
            kind for kind, closers in self._open_kinds.items() if mark in closers and not is_first
        ]
        for kind in closed_kinds:
            if mark not in "'’":
                self._close(kind)
            elif not after:
                self._pending_kind = kind
            elif not after.isalnum():
                self._close(kind)
        if (
            not closed_kinds
            and mark in _CLOSERS
            and not (before.isalnum() or before in _NO_OPENING)
        ):
            self._open_kinds[mark] = _CLOSERS[mark]
            self.after_opener = True

    def _settle(self, after: str) -> None:
        if self._char_before_end and not is_in_path(self._char_before_end, after):
            self.comment = ""
        self._char_before_end = ""
        if self._pending_kind and not after.isalnum():
            self._close(self._pending_kind)
        self._pending_kind = ""

    def _close(self, kind: str) -> None:
        self._open_kinds.pop(kind, None)
        self._certain_kinds.discard(kind)
