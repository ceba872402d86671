"""Decide whether a place in a text is quoted, or in a comment, so that it is only shown.

Quotation marks need both of their ends in one paragraph. `/* */` needs both in the text, except at
the beginning of a line. A line that begins with `>`, `#` or `//` is quoted to its end, which is LF,
CR LF or CR, as in CommonMark.
"""

from __future__ import annotations

import re
from typing import Literal

_QUOTED = {
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
_TOKEN = re.compile(f"[\r\n]|`+|[/*{''.join(sorted({*_QUOTED, *''.join(_QUOTED.values())}))}]")
_LEAD = re.compile(r"[^\S\r\n]*+(?:(?:[-*+]|\d{1,9}[.)])[^\S\r\n]++)*+")
_MAY_LEAD = re.compile(r"(?:[-*+/]|\d{1,9}[.)]?)?")
_CODE = re.compile(r" {4}|\t")
_LONGEST_LEAD = 64


def is_in_path(before: str, after: str) -> bool:
    """Return whether `*/` is probably part of a path (`src/**/*.py`), not a comment's end."""
    begins = before.isalnum() or before in tuple("_*/")
    return begins and (after.isalnum() or after in tuple("_*.[{"))


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
        self.marked = False  # the line begins with ">"
        self.comment: Literal["", "open", "certain"] = ""
        self._commented = False  # the line begins with "#" or "//"
        self._leading = True  # it is not known yet how the line begins
        self._half = ""  # "/" or "*", which may be the first half of a comment's mark
        self._ahead_of_half = ""
        self._ahead_of_end = ""  # what precedes a "*/" whose next character is not known
        self.after_opener = False
        self._first = ""  # the first character in this line that is not blank
        self._lead = ""
        self._blank = True
        self._ticks = 0  # how many backticks opened the code in this line
        self._open: dict[str, str] = {}  # by kind open in this paragraph, what closes it
        self._certain: set[str] = set()
        self._pending = ""  # a kind that is closed unless a letter follows
        self._before = "\n"

    def said_in_words(self) -> bool:
        """Return whether the line is empty so far or begins with a letter.

        A line that begins with another character may be a comment, a list or a table in any
        language.
        """
        return not self._first or self._first.isalpha()

    def in_code(self) -> bool:
        """Return whether inline code is open in this line."""
        return self._ticks > 0

    def here(self) -> bool:
        """Return whether this place is quoted, whatever follows."""
        self._settle("")
        if self.after_opener:
            self._certain.add(self._before)
        indented = _CODE.search(self._lead) is not None
        shown = self.marked or indented or self.in_code() or self.in_comment()
        return shown or bool(self._certain)

    def in_comment(self) -> bool:
        """Return whether this place is in a comment of code, whatever follows."""
        return self._commented or self.comment == "certain"

    def closers(self) -> tuple[str, ...]:
        """Return the marks that would show, later in this paragraph, that this place is quoted."""
        each = ((kind,) if kind[0] == "`" else closers for kind, closers in self._open.items())
        return tuple(mark for marks in each for mark in marks)

    def look(self, found: str) -> None:
        """Note the closer that was found in this paragraph, or that there is none."""
        self._certain = {kind for kind, closers in self._open.items() if found and found in closers}
        if not found:
            self._open.clear()

    def past(self) -> None:
        """Note that text without effect on quotes was skipped: a call, or quoted text."""
        self._settle("")
        self._before, self.after_opener = ".", False
        self._blank, self._leading, self.column = False, False, None

    def past_fence(self) -> None:
        """Note that a fenced block is over, and with it everything that was open before."""
        self.paragraph()
        self.past()
        self._lead, self._ticks, self._commented = "", 0, False

    def paragraph(self) -> None:
        """Begin another paragraph."""
        self._open.clear()
        self._certain.clear()
        self._pending = ""

    def past_thoughts(self) -> None:
        """Note that everything before was thought.

        That closes what was open, except a comment that ends later.
        """
        self.paragraph()
        self.comment = "open" if self.comment else ""

    def say(self, text: str) -> None:
        self._settle(text[:1])
        at = 0
        for token in _TOKEN.finditer(text):
            self._plain(text[at : token.start()])
            at = token.end()
            mark = token.group()
            if mark in "\r\n":
                self._line(mark)
                continue
            before = self._before
            self._plain(mark)
            if mark[0] == "`":
                self._tick(len(mark))
            elif mark in "/*":
                self._half_of_comment(mark, before, text[at : at + 1])
            else:
                self._quotation(mark, before, text[at : at + 1])
        if at < len(text):
            self._plain(text[at:])

    def _plain(self, text: str) -> None:
        if not text:
            return
        self.after_opener = False
        self._first = self._first or text.lstrip()[:1]
        self._before = text[-1]
        self._blank = self._blank and text.isspace()
        if self._leading:
            self._begin(text)

    def _begin(self, text: str) -> None:
        """Read more of the beginning of a line. A beginning longer than any real one may be a
        comment."""
        self._lead += text[: _LONGEST_LEAD + 1 - len(self._lead)]
        lead = _LEAD.match(self._lead)
        end = lead.end() if lead else 0
        rest = self._lead[end:]
        may_lead = _MAY_LEAD.fullmatch(rest) is not None
        self.column = end if may_lead and rest != "/" else None
        if may_lead and len(self._lead) <= _LONGEST_LEAD:
            return
        self._leading = False
        self._lead = self._lead[:end]
        self.marked = rest.startswith(">")
        self._commented = may_lead or rest.startswith(("#", "//"))
        if rest.startswith("/*"):
            self.comment = "certain"

    def _line(self, end: str) -> None:
        """Begin another line, after LF, CR or both, whose halves may come in two pieces."""
        if end == "\n" and self._before == "\r":
            self._before = end
            return
        if self._blank:
            self.paragraph()
        self.column, self.marked, self.after_opener, self._first = 0, False, False, ""
        self._lead, self._blank, self._ticks = "", True, 0
        self._leading, self._commented = True, False
        self._before = end

    def _half_of_comment(self, mark: str, before: str, after: str) -> None:
        """Take `/` or `*`, which may complete a mark that opens or closes a comment.

        A mark inside a path (`**/x`, `a*/b`) closes none.
        """
        whole = self._half + mark if before == self._half else mark
        self._half = "" if whole in ("/*", "*/") else mark
        if whole == "/*" and not self.comment:
            self.comment = "open"
        elif whole == "*/" and self.comment:
            self._ahead_of_end = self._ahead_of_half
            if after:
                self._settle(after)
        self._ahead_of_half = before

    def _tick(self, size: int) -> None:
        if self._ticks in (0, size):
            self._ticks = 0 if self._ticks else size
        kind = "`" * size
        if kind in self._open:
            self._close(kind)
        elif not any(other[0] == "`" for other in self._open):
            self._open[kind] = kind

    def _quotation(self, mark: str, before: str, after: str) -> None:
        begins = _QUOTED.get(mark) == mark and before.isspace()  # the first of two equal marks does
        closed = [kind for kind, closers in self._open.items() if mark in closers and not begins]
        for kind in closed:
            if mark not in "'’":
                self._close(kind)
            elif not after:
                self._pending = kind
            elif not after.isalnum():
                self._close(kind)
        if not closed and mark in _QUOTED and not (before.isalnum() or before in _NO_OPENING):
            self._open[mark] = _QUOTED[mark]
            self.after_opener = True

    def _settle(self, after: str) -> None:
        if self._ahead_of_end and not is_in_path(self._ahead_of_end, after):
            self.comment = ""
        self._ahead_of_end = ""
        if self._pending and not after.isalnum():
            self._close(self._pending)
        self._pending = ""

    def _close(self, kind: str) -> None:
        self._open.pop(kind, None)
        self._certain.discard(kind)
