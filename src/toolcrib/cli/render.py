"""What is shown on a terminal: text, JSON, a finished call, the events of a run as they happen.

Rule: text from outside cannot move the cursor, hide, or imitate other output.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, assert_never

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.status import Status
from rich.table import Table
from rich.text import Text

from toolcrib.agent.history import error_in_result, is_cut_short
from toolcrib.errors import ErrorCode
from toolcrib.values.decision import INVISIBLE, Allow, ApprovalRequest, Ask, Deny
from toolcrib.values.json import JsonValue
from toolcrib.values.record import ToolInvocationRecord, result_with_parts
from toolcrib.values.run import (
    ApprovalRequested,
    Done,
    Event,
    HandedOver,
    PartialOutput,
    ReasoningDelta,
    ReplyFinished,
    RunError,
    RunResult,
    RunStarted,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallProgress,
    ToolCallStarted,
    ToolsOffered,
    UsageReported,
    limit_text,
)

if os.environ.get("COLUMNS") == "0":  # the width is not known, but rich would print nothing
    del os.environ["COLUMNS"]
out = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)

# What a terminal acts upon: C0 and C1 controls without tab and line feed, and what reorders
# or hide text.
_TERMINAL_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff"
    "\U000e0000-\U000e007f]"
)
_MAX_SHOWN = 400


def printable(text: str) -> str:
    """Return the text with every character that is invisible, or that a terminal acts upon, escaped
    as `\\x1b`."""
    return INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Return the text as `printable` does, with line feeds and tabs escaped, too."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def spoken(text: str) -> str:
    """Escape a model's text, but keep the invisible characters that emoji, Arabic and Indic text
    need."""
    return _TERMINAL_CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def print_json(value: Any) -> None:
    """Print the one JSON value of `--json`."""
    if sys.stdout is not None:
        sys.stdout.write(f"{json_text(value, indent=2)}\n")
        sys.stdout.flush()


def show_json(value: Any) -> None:
    """Print JSON for a reader: indented, and coloured on a terminal."""
    out.print(JSONHighlighter()(Text(json_text(value, indent=2))))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return JSON in which everything that a terminal acts upon or hides is escaped as in JSON
    strings."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=False, default=str)
    return INVISIBLE.sub(lambda match: json.dumps(match[0])[1:-1], text)


def print_rows(rows: Sequence[Sequence[str]], columns: Mapping[str, bool]) -> None:
    """Print a table on a terminal, or lines with tab-separated columns in a file or a pipe.

    `columns` says for each column whether its text may be wrapped. If the other columns leave no
    room for that, a terminal gets lines, too, below a line with the headings.
    """
    if not out.is_terminal:
        for row in rows:
            typer.echo("\t".join(row))  # rich would turn tabs into spaces
        return
    if not all(columns.values()) and _least_width(rows, columns) > out.width:
        out.print("  ".join(columns), style="bold")
        for row in rows:
            out.print("  ".join(row))
        return
    table = Table(box=None, pad_edge=False)
    for column, may_wrap in columns.items():
        table.add_column(column, overflow="fold", no_wrap=not may_wrap)
    for row in rows:
        table.add_row(*row)
    out.print(table)


def _least_width(rows: Sequence[Sequence[str]], columns: Mapping[str, bool]) -> int:
    """Return the width of a table whose columns that may be wrapped are as narrow as their headings."""
    texts = zip(columns, *rows, strict=True)
    widths = [
        max(map(cell_len, column[:1] if may_wrap else column))
        for column, may_wrap in zip(texts, columns.values(), strict=True)
    ]
    return sum(widths) + 2 * (len(widths) - 1)


def short_json(value: Any) -> str:
    """Return JSON on one line, shortened."""
    return shortened(json_text(value))


def shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} … ({len(text)} characters)"


def call_line(record: ToolInvocationRecord) -> Text:
    """Return a finished call as one line: name, arguments, decision, time, result or error."""
    is_completed = record.status == "completed"
    line = Text("✓ " if is_completed else "✗ ", style="green" if is_completed else "red")
    line.append(one_line(record.name), style="bold")
    if record.arguments is not None:
        line.append(f" {short_json(record.arguments)}", style="cyan")
    duration = f" · {milliseconds(record)}" if record.seconds is not None else ""
    emulated_note = " · emulated" if record.emulated else ""
    line.append(f"  {_decision(record)}{duration}{emulated_note}", style="dim")
    if record.error is not None:
        is_cancelled = record.error.code is ErrorCode.CANCELLED
        not_run_note = " It did not run." if is_cancelled and not is_cut_short(record) else ""
        line.append(f" → {one_line(str(record.error))}{not_run_note}", style="red")
    else:
        line.append(f" → {short_json(result_with_parts(record))}")
    return line


def _decision(record: ToolInvocationRecord) -> str:
    match record.decision:
        case Allow() | Ask() if record.approved_by:
            return one_line(answered(record))
        case Allow():
            return "allowed"
        case Ask():
            return "asked"
        case Deny(reason=reason):
            return f"denied: {one_line(reason)}"
        case None:
            return "not run"


def answered(record: ToolInvocationRecord) -> str:
    """Return how a person answered a call's request: `refused by grace`."""
    is_refused = record.error is not None and record.error.code is ErrorCode.APPROVAL_REFUSED
    return f"{'refused' if is_refused else 'approved'} by {record.approved_by}"


def when(at: float | None) -> str:
    """Return a time in UTC, to the millisecond. A number that is no time is returned unchanged."""
    if at is None:
        return ""
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(" ", "milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(at)


def milliseconds(record: ToolInvocationRecord) -> str:
    return "" if record.seconds is None else f"{record.seconds * 1000:.1f} ms"


_MAY_HAVE_RUN = "stopped before its outcome was known; it may have run."
_ENDINGS = {"waiting": "The run is waiting for an approval.", "cancelled": "Cancelled."}


class Screen:
    """Shows text as it streams and one line for each finished call, with a spinner on stderr while
    it waits.

    What it says about a call that was stopped comes from its record, or, without one, from the
    history.
    """

    def __init__(self, waiting_for: str) -> None:
        self._waiting_for = waiting_for
        self._status: Status | None = None
        self._in_text = False
        self._announcements: dict[str, asyncio.Event] = {}
        self._open_questions = 0
        self._started: dict[str, str] = {}  # calls whose end was not shown yet

    @contextlib.asynccontextmanager
    async def question(self, request: ApprovalRequest) -> AsyncIterator[None]:
        """Reserve the terminal for a question after all earlier output is shown, without a spinner."""
        await self._announced(request.id).wait()
        try:
            yield
        except asyncio.CancelledError:
            err.print()  # the line of the question was not ended
            raise
        finally:
            self._open_questions -= 1

    def show(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._wait(self._waiting_for)
            case TextDelta(text=text):
                self._stop_waiting()
                out.print(spoken(text), end="")
                self._in_text = True
            case ToolCallStarted(id=id, name=name, arguments=arguments):
                self._started[id] = f"{one_line(name)} {short_json(arguments)}"
                self._end_text()
                self._wait(f"running {one_line(name)} …")
            case ToolCallFinished(record=record):
                self._end_text()
                self._show_end(record)
                self._wait("thinking …")
            case ToolCallProgress(part=part):
                self._progress(part)
            case ApprovalRequested(request=request):
                self._end_text()
                self._open_questions += 1
                self._announced(request.id).set()
            case Done(result=result):
                self._end_text()
                self._show_stopped(result)
                self._ending(result)
            case (
                ToolArgumentsDelta()
                | PartialOutput()
                | ToolsOffered()
                | HandedOver()
                | UsageReported()
                | ReasoningDelta()
                | ReplyFinished()
            ):
                pass
            case RunError():
                self._end_text()  # the error itself is raised and shown elsewhere
            case _:
                assert_never(event)

    def close(self) -> None:
        """End the turn. If its run never came to an end, say that the outcome of its calls is not
        known."""
        self._end_text()
        for call in self._started.values():
            err.print(Text(f"{call}: {_MAY_HAVE_RUN}"))
        self._started.clear()

    def _show_end(self, record: ToolInvocationRecord) -> None:
        call = self._started.pop(record.id, None)
        if call is not None and is_cut_short(record):
            err.print(Text(f"{call}: {_MAY_HAVE_RUN}"))
        else:
            out.print(call_line(record))

    def _show_stopped(self, result: RunResult) -> None:
        """Show the end of the calls whose end was not shown yet, unless they wait."""
        for record in result.records:
            if record.id in self._started:
                self._show_end(record)
        for call_id, call in self._started.items() if result.status != "waiting" else ():
            code, message = error_in_result(result.messages, call_id) or (
                ErrorCode.OUTCOME_UNKNOWN,
                "",
            )
            unknown = code == ErrorCode.OUTCOME_UNKNOWN
            err.print(Text(f"{call}: {_MAY_HAVE_RUN if unknown else f'{code}: {message}'}"))
        self._started.clear()

    def _ending(self, result: RunResult) -> None:
        if result.status == "limited":
            err.print(f"Stopped: {limit_text(result.limit or '')}.")
        elif result.status in _ENDINGS:
            err.print(_ENDINGS[result.status])

    def _progress(self, part: JsonValue) -> None:
        if self._status is not None:
            self._status.update(Text(one_line(str(part))[:80]))

    def _announced(self, request_id: str) -> asyncio.Event:
        return self._announcements.setdefault(request_id, asyncio.Event())

    def _wait(self, activity: str) -> None:
        self._stop_waiting()
        if err.is_terminal and not self._open_questions:  # a spinner would wipe the question away
            self._status = err.status(Text(activity))
            self._status.start()

    def _stop_waiting(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _end_text(self) -> None:
        self._stop_waiting()
        if self._in_text:
            out.print()
            self._in_text = False
