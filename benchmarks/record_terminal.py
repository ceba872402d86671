"""Draw docs/terminal.svg: a real `toolcrib chat` with the embedded model, recorded at a terminal.

Usage: make picture, or python benchmarks/record_terminal.py [FILE.svg]

A shell is driven through a pseudo-terminal, and typed to as a person types. What it prints is played on
a terminal emulator; each row that the screen has had becomes a line of text in the picture, visible for
as long as it was there. Only long waits are cut short. Nothing of what is shown is written here.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from html import escape
from pathlib import Path
from typing import NamedTuple

import pexpect
import pyte

ROOT = Path(__file__).parents[1]
COLUMNS, ROWS = 100, 37
LONGEST_WAIT, LAST_LOOK = 0.9, 6.0  # seconds
TYPING, READING = 0.03, 0.9
CELL, LINE, MARGIN, BAR = 8.4, 19, 16, 34  # pixels
COLOURS = {
    "default": "#d6dbe3",
    "green": "#7ee787",
    "cyan": "#79d3e6",
    "red": "#ff8a80",
    "blue": "#8ab8ff",
    "magenta": "#d7a8ff",
    "brown": "#e8c27a",
}
FAINT = "#8b949e"
FONT = 'ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace'
TELLS = (
    "A terminal: toolcrib chat asks back, asks before a refund, and refuses wrong arguments;"
    " the audit log says why the refund ran."
)
TOOLS = """\
from pydantic import PositiveInt
from toolcrib import ALL, tool

EXAMPLES = [("refund 500 cents of order 12", {"order": 12, "cents": 500})]


@tool(visible=ALL, safe=False, examples=EXAMPLES)
def refund(order: int, cents: PositiveInt) -> dict[str, int]:
    \"\"\"Pay a part of an order back.\"\"\"
    return {"refunded_cents": cents}
"""
PROMPT, CHAT, QUESTION = "\r?\n?\\$ $", "> $", r"\[y/N\] $"
TYPED = [  # what is typed, and what is waited for afterwards
    ("cat shop.py", PROMPT),
    ("toolcrib chat --tools shop.py --audit sqlite:///crib.db", CHAT),
    ("Refund order 77", CHAT),
    ("Refund 450 cents of order 77", QUESTION),
    ("y", CHAT),
    ("Refund 0 cents of order 78", CHAT),
    ("\x04", PROMPT),
    ("toolcrib audit show --entry 4 | head -6", PROMPT),
    ("toolcrib audit verify", PROMPT),
]


class Run(NamedTuple):
    """Characters of one row, side by side, that look alike."""

    column: int
    text: str
    colour: str
    bold: bool


class Shown(NamedTuple):
    """A row of the screen, from one moment to another, in seconds."""

    row: int
    runs: tuple[Run, ...]
    since: float
    until: float


def record(folder: Path) -> list[tuple[float, str]]:
    """Return what the terminal was sent, each piece with its time in seconds."""
    (folder / "shop.py").write_text(TOOLS, encoding="utf-8")
    program = folder / "toolcrib"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m toolcrib "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "PS1": "$ ",
        "TERM": "xterm-256color",
    }
    shell = pexpect.spawn(
        "bash", ["--norc", "--noprofile", "--noediting"], cwd=str(folder), env=env,
        dimensions=(ROWS, COLUMNS), encoding="utf-8", timeout=120,
    )  # fmt: skip
    tape = _Tape()
    shell.logfile_read = tape
    shell.expect(PROMPT)
    for typed, expected in TYPED:
        time.sleep(READING)
        for letter in typed:
            shell.send(letter)
            time.sleep(TYPING)
            shell.expect([r".+", pexpect.TIMEOUT], timeout=0)
        if typed != "\x04":
            shell.send("\n")
        shell.expect(expected)
    shell.close()
    return tape.pieces


class _Tape:
    """Keeps what is written, and when."""

    def __init__(self) -> None:
        self.pieces: list[tuple[float, str]] = []

    def write(self, text: str) -> None:
        self.pieces.append((time.monotonic(), text))

    def flush(self) -> None:
        pass


def shortened(pieces: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return the pieces with times that begin at 0, and no wait that is longer than the longest."""
    now, before, cut = 0.0, pieces[0][0], []
    for at, text in pieces:
        now += min(at - before, LONGEST_WAIT)
        before = at
        cut.append((now, text))
    return cut


def played(pieces: list[tuple[float, str]]) -> tuple[list[Shown], float]:
    """Return each row that the screen has had, and how long all of it takes."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.Stream(screen)
    now: dict[int, tuple[tuple[Run, ...], float]] = {}
    shown: list[Shown] = []
    for at, text in pieces:
        stream.feed(text)
        for row in range(ROWS):
            runs = _runs(screen, row)
            before, since = now.get(row, ((), at))
            if runs != before:
                if before and at > since:
                    shown.append(Shown(row, before, since, at))
                now[row] = (runs, at)
    end = pieces[-1][0] + LAST_LOOK
    shown += [Shown(row, runs, since, end) for row, (runs, since) in now.items() if runs]
    return shown, end


def _runs(screen: pyte.Screen, row: int) -> tuple[Run, ...]:
    cells = [(column, screen.buffer[row][column]) for column in range(COLUMNS)]
    runs = []
    for (colour, bold), group in itertools.groupby(cells, lambda cell: (cell[1].fg, cell[1].bold)):
        several = list(group)
        text = "".join(cell.data for _, cell in several)
        if text.strip():
            indent = len(text) - len(text.lstrip())
            runs.append(Run(several[0][0] + indent, text.strip(), colour, bold))
    return tuple(runs)


def drawn(shown: list[Shown], seconds: float) -> str:
    """Return the picture. Where nothing moves it shows the last screen."""
    width, height = round(COLUMNS * CELL) + 2 * MARGIN, ROWS * LINE + BAR + MARGIN
    rows = "\n".join(_row(one, seconds) for one in sorted(shown, key=lambda one: one.since))
    dots = "".join(
        f'<circle cx="{22 + 20 * at}" cy="18" r="6" fill="{colour}"/>'
        for at, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" \
height="{height}" role="img" aria-label="{TELLS}">
<style>text{{font:14px {FONT};white-space:pre;fill:{COLOURS["default"]}}}.b{{font-weight:bold}}</style>
<rect width="{width}" height="{height}" rx="10" fill="#0f141b"/>
{dots}
{rows}
</svg>
"""


def _row(one: Shown, seconds: float) -> str:
    times = [one.since / seconds, one.until / seconds]
    last = one.until >= seconds
    values = "hidden;visible" if last else "hidden;visible;hidden"
    keys = ";".join(f"{at:.5f}".rstrip("0") for at in (0, times[0], *([] if last else times[1:])))
    texts = "".join(_text(run, BAR + LINE * one.row + 15) for run in one.runs)
    return (
        f'<g visibility="{"visible" if last else "hidden"}">{texts}'
        f'<animate attributeName="visibility" values="{values}" keyTimes="{keys}" dur="{seconds:.2f}s"'
        ' calcMode="discrete" repeatCount="indefinite"/></g>'
    )


def _text(run: Run, y: int) -> str:
    colour = COLOURS.get(run.colour, FAINT)
    fill = "" if run.colour == "default" else f' fill="{colour}" style="fill:{colour}"'
    bold = ' class="b"' if run.bold else ""
    x = MARGIN + run.column * CELL
    wide = f' textLength="{len(run.text) * CELL:.1f}"' if len(run.text) > 1 else ""
    return f'<text x="{x:.1f}" y="{y}"{wide}{bold}{fill}>{escape(run.text)}</text>'


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pieces = record(Path(folder))
    shown, seconds = played(shortened(pieces))
    target.write_text(drawn(shown, seconds), encoding="utf-8")
    print(f"{target}: {seconds:.0f} s, {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "terminal.svg")
