"""What a terminal is shown. Text from outside cannot move the cursor or pass for something else."""

from __future__ import annotations

import re
import sys
from typing import Any

import orjson
from rich.console import Console
from rich.text import Text

from toolcrib.values.record import Allow, Ask, CallError, Deny, ToolInvocationRecord

out = Console(highlight=False, markup=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

# C0 and C1 controls but tab and line feed, and the characters that reorder or hide text.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_MAX_SHOWN = 400


def printable(text: str) -> str:
    """The text with whatever a terminal would act upon written out as `\\x1b`."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def print_json(value: Any) -> None:
    """The one JSON value of `--json`; ASCII controls in it are escaped by JSON itself."""
    data = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE, default=str)
    sys.stdout.write(data.decode())
    sys.stdout.flush()


def short_json(value: Any) -> str:
    """JSON on one line, cut to what a reader takes in."""
    return shortened(printable(orjson.dumps(value, default=str).decode()))


def shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} … ({len(text)} characters)"


def call_line(record: ToolInvocationRecord) -> Text:
    """A finished call on one line: name, arguments, decision, time, result or error."""
    done = record.status == "completed"
    line = Text("✓ " if done else "✗ ", style="green" if done else "red")
    line.append(printable(record.name), style="bold")
    if record.arguments is not None:
        line.append(f" {short_json(record.arguments)}", style="cyan")
    line.append(f"  {_decision(record)}{_milliseconds(record.seconds)}", style="dim")
    if record.error is not None:
        line.append(f" → {error_text(record.error)}", style="red")
    else:
        line.append(f" → {short_json(record.result)}")
    return line


def error_text(error: CallError) -> str:
    """`invalid_arguments at /value: expected number, got string`, each place once."""
    places = [d for d in error.details if d.path]
    if places:
        found = "; ".join(f"{d.path}: {d.message}" for d in places)
        return printable(f"{error.code} at {found}")
    return printable(f"{error.code}: {error.message}")


def _decision(record: ToolInvocationRecord) -> str:
    match record.decision:
        case Allow():
            return "allowed"
        case Ask():
            return f"approved by {printable(record.approved_by)}" if record.approved_by else "asked"
        case Deny(reason=reason):
            return f"denied: {printable(reason)}"
        case None:
            return "not run"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f" · {seconds * 1000:.1f} ms"
