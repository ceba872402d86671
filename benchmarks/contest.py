"""What benchmarks of cases share: contenders in processes of their own that take turns, and the table.

Each contender of a case runs in a process of its own, so that none has another's garbage. All of them
take turns, round by round, on the same machine; what counts is the median of the rounds, with the
garbage collector on. A figure is CPU time of that process unless its unit says something else.
It imports the standard library and its neighbour alone: peers use it, in environments of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import chart

Round = Callable[[], Awaitable[float]]
Make = Callable[[AsyncExitStack], Awaitable[Round]]
HERE = Path(__file__).parent
SOURCES = HERE.parent / "src"
FLOOR, OURS, BEFORE = "floor", "toolcrib", "before"


class Case(NamedTuple):
    """`goal` is what the figure should be, in `unit` or as a ratio ("2 ×"); `script` has the peers."""

    name: str
    unit: str
    contenders: Mapping[str, Make]
    goal: str = ""
    rounds: int = 7
    more_is_better: bool = False
    peers: Path | None = None
    """The script whose cases of the same name are the peers'."""
    cold: bool = False
    """Whether each round is the first of a process."""


class Peer(NamedTuple):
    """A peer's name, and the interpreter of its own environment."""

    name: str
    python: str


class Result(NamedTuple):
    """The medians of a case, by contender."""

    case: Case
    figures: dict[str, float]

    def ratio(self, name: str) -> float | None:
        """How many times worse than the floor; None where there is no floor."""
        if FLOOR not in self.figures or name not in self.figures or not self.figures[name]:
            return None
        ratio = self.figures[name] / self.figures[FLOOR]
        return 1 / ratio if self.case.more_is_better else ratio


def repeated(once: Callable[[], Awaitable[object]], count: int) -> Round:
    """Return a round of `count` calls: CPU microseconds a call."""

    async def work() -> float:
        started = time.process_time()
        for _ in range(count):
            await once()
        return (time.process_time() - started) / count * 1e6

    return work


class Process:
    """A contender: its first line says `ready`, or why it cannot take part; then a line a round."""

    def __init__(self, command: Sequence[str], *, sources: Path | None) -> None:
        paths = [sources, HERE, HERE.parent / "tests"] if sources else [HERE]
        self._process = subprocess.Popen(  # noqa: S603  this project's own files
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
        )
        self.said = self._line()

    def round(self) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._line() or "nan")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


async def _take_part(make: Make) -> None:
    """A contender's process: a round for each line of standard input."""
    async with AsyncExitStack() as closing:
        try:
            work = await make(closing)
        except ImportError as missing:
            print(f"absent: {missing}", flush=True)
            return
        print("ready", flush=True)
        for _ in sys.stdin:
            print(await work(), flush=True)


def main(cases: Sequence[Case], about: str) -> None:
    """The command line of a file of cases."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="cases with this in the name"
    )
    parser.add_argument("--before", metavar="SRC", type=Path, help="another checkout's src, beside")
    parser.add_argument("--peers", metavar="FILE", type=Path, help="JSON of peers/install_calls.py")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there, too")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="draw the figures there, too")
    parser.add_argument("--process", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.process:
        wanted, contender = asked.process
        (make,) = (case.contenders[contender] for case in cases if case.name == wanted)
        asyncio.run(_take_part(make))
        return
    peers = []
    if asked.peers:
        found = json.loads(asked.peers.read_text(encoding="utf-8"))
        peers = [Peer(name, python) for name, python in found.items()]
    chosen = [c for c in cases if not asked.only or any(text in c.name for text in asked.only)]
    results = []
    print(f"{'':<44}{'unit':<10}{'':<24}{'median':>12}{'ratio':>8}{'goal':>14}")
    for case in chosen:
        results.append(measured(case, before=asked.before, peers=peers))
        show(results[-1])
    if asked.json:
        save(results, asked.json)
    if asked.svg:
        figures = {f"{r.case.name}, {r.case.unit}": r.figures for r in results}
        asked.svg.write_text(chart.bars(figures), encoding="utf-8")


def measured(case: Case, *, before: Path | None = None, peers: Sequence[Peer] = ()) -> Result:
    """Run all contenders of a case, round by round."""
    script = Path(sys.argv[0]).resolve()
    starts: dict[str, Callable[[], Process]] = {}
    for name in case.contenders:
        command = (sys.executable, str(script), "--process", case.name, name)
        starts[name] = partial(Process, command, sources=SOURCES)
        if name == OURS and before:
            starts[BEFORE] = partial(Process, command, sources=before.resolve())
    for peer in peers if case.peers else ():
        command = (peer.python, str(case.peers), "--process", case.name, peer.name)
        starts[peer.name] = partial(Process, command, sources=None)
    rounds: dict[str, list[float]] = {name: [] for name in starts}
    running: dict[str, Process] = {}
    for _ in range(case.rounds):
        for name, start in starts.items():
            process = running.get(name) or start()
            if process.said == "ready":
                rounds[name].append(process.round())
            elif name not in running:
                print(f"{case.name}: {name}: {process.said or 'failed'}", file=sys.stderr)
            if case.cold:
                process.close()
            else:
                running[name] = process
    for process in running.values():
        process.close()
    return Result(case, {name: median(found) for name, found in rounds.items() if found})


def show(result: Result) -> None:
    case = result.case
    for at, (name, figure) in enumerate(result.figures.items()):
        ratio = result.ratio(name)
        print(
            f"{'' if at else case.name:<44}{'' if at else case.unit:<10}{name:<24}{figure:>12,.1f}"
            f"{'–' if ratio is None else format(ratio, '.2f'):>8}"
            f"{case.goal if name == OURS else '':>14}",
            flush=True,
        )


def save(results: Sequence[Result], path: Path) -> None:
    """Write what was measured, and on what, as JSON."""
    rows: list[dict[str, Any]] = [
        {
            "name": result.case.name,
            "unit": result.case.unit,
            "goal": result.case.goal,
            "more_is_better": result.case.more_is_better,
            "figures": {name: round(figure, 3) for name, figure in result.figures.items()},
        }
        for result in results
    ]
    about = {"python": platform.python_version(), "machine": platform.machine(), "rows": rows}
    path.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
