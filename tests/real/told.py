"""What is lost, as text files to be read: counts first, then a line for each; and whether they hold.

After a change that is meant: `TOOLCRIB_SAVE_LOSSES=1 pytest tests/real`, and read the difference.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from toolcrib.lint import Finding
from toolcrib.wire import ToolView

LOSSES = Path(__file__).parent / "losses"
SAVING = "TOOLCRIB_SAVE_LOSSES"


class Line(NamedTuple):
    """One loss. `what` is the linter's rule, or the keyword of a schema."""

    provider: str
    effect: str
    what: str
    tool: str
    pointer: str
    message: str

    def __str__(self) -> str:
        where = f"{self.tool or 'all of them'} {self.pointer}".strip()
        message = " ".join(self.message.split())
        return f"{self.provider}: {self.effect}: {self.what}: {where}: {message}"


def of_findings(findings: Iterable[Finding]) -> Iterator[Line]:
    for f in findings:
        yield Line(f.provider or "everywhere", f.effect, f.rule, f.tool, f.pointer, f.message)


def of_views(provider: str, views: Iterable[ToolView]) -> Iterator[Line]:
    for view in views:
        for pointer, keyword, effect, message in view.losses:
            yield Line(provider, effect, keyword, view.definition.name, pointer, message)


def check(name: str, lines: Iterable[Line]) -> None:
    """Fails if `losses/<name>.txt` says something else."""
    path = LOSSES / f"{name}.txt"
    now = _text(list(lines))
    if os.environ.get(SAVING):
        LOSSES.mkdir(exist_ok=True)
        path.write_text("\n".join(now) + "\n", encoding="utf-8")
    saved = path.read_text(encoding="utf-8").splitlines()
    new = [line for line in now if line not in saved]
    gone = [line for line in saved if line not in now]
    assert (new, gone) == ([], []), f"{path.name} is out of date: {SAVING}=1 writes it anew"
    assert now == saved


def _text(lines: list[Line]) -> list[str]:
    counts = Counter((line.provider, line.effect, line.what) for line in lines)
    summary = [f"{n:4}  {': '.join(kind)}" for kind, n in sorted(counts.items())]
    return [*(summary or ["   0  nothing is lost"]), "", *map(str, lines)]
