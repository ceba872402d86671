"""Measures other systems next to our scorers: `toolcrib eval-pick`, with peers and a picture.

    python benchmarks/eval_peers.py --set FOLDER --scorer light --beside NAME=COMMAND --plot FILE.svg

A peer is a command that is given tools and requests as JSON lines (UTF-8, one object a line);
benchmarks/peers has some, and install.py there prints the options that measure them:

    → {"tools": [{"name", "description", "input_schema"}, …]}
    ← {"build_ms": 12.5}                                   CPU milliseconds; other keys are not read
    → {"query": "…", "top": 10}
    ← {"ranking": ["name", …], "cpu_ms": 0.8}              at most `top` names, best first
    … until stdin ends

Rule: a peer is never trusted. It has a time limit for every answer, each answer is checked before it
counts, and when it fails, that is said of that peer alone: the others are measured all the same, and
the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import signal
import sys
import tempfile
import warnings
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import IO, Any, NamedTuple, cast

import msgspec

from toolcrib.cli.options import UnusableError
from toolcrib.cli.pick import (
    EvaluationTerms,
    LabelledSet,
    Row,
    check_distinct,
    labelled_sets,
    measure,
    plain_row,
    progress,
    scorers_of,
    table,
    threshold_table,
)
from toolcrib.cli.render import err, out, print_json, printable, shortened
from toolcrib.errors import ToolcribError
from toolcrib.pick import PickOptions
from toolcrib.pick.evaluation import DEPTH, MeasuredScorer, ScorerAnswer
from toolcrib.pick.options import DEFAULT_SCORER
from toolcrib.pick.scorer import Scorer
from toolcrib.values.definition import HasDefinition

_MAX_LINE = 16 * 1024 * 1024
_MAX_MS = 1e9
_LAST_WORDS = 4096
_CLOSING = 5.0  # seconds that the pipes of a peer that was ended may stay open
_FORMATS = (".png", ".svg")


class PeerError(ToolcribError):
    """A peer could not be started, died, was silent for too long or gave no usable answer."""


class Command(msgspec.Struct, frozen=True):
    """`NAME=COMMAND` or `NAME:N=COMMAND`: `limit` is N, how many questions of a set it is asked."""

    name: str
    command: tuple[str, ...]
    limit: int | None = None


class Failure(NamedTuple):
    """Why a peer was not measured on a set."""

    of: str
    system: str
    why: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables or the JSON, draw; return the exit code."""
    try:
        return _main(_parsed(arguments))
    except UnusableError as error:
        print(printable(f"eval_peers: {error}").replace("\n", " "), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure peers next to our scorers.")
    add = parser.add_argument
    add("--set", dest="sets", metavar="FOLDER", type=Path, action="append", required=True)
    add("--scorer", dest="scorers", metavar="S", action="append")
    add("--min-score", type=float, default=PickOptions().min_score)
    add("--limit", type=int, help="ask only the first N questions of each set")
    add("--beside", metavar="NAME[:N]=COMMAND", action="append", default=[], help="a peer")
    add("--patience", type=float, default=300.0, help="seconds that a peer may take to answer")
    add("--plot", metavar="FILE", type=Path, help="draw the figures, as .png or .svg")
    add("--json", action="store_true", dest="as_json")
    return parser.parse_args(arguments)


def _main(asked: argparse.Namespace) -> int:
    peers = [parse_peer(given) for given in asked.beside]
    scorers = scorers_of(asked.scorers or [DEFAULT_SCORER])
    check_distinct("systems", [name for name, _ in scorers] + [peer.name for peer in peers])
    if asked.limit is not None and asked.limit < 1:
        raise UnusableError(f"--limit {asked.limit}: ask at least one question")
    if asked.plot is not None:
        check_plot(asked.plot)
    sets, terms = labelled_sets(asked.sets), EvaluationTerms(asked.limit, asked.min_score)
    rows, failures = asyncio.run(
        measured(sets, scorers, peers, terms=terms, patience=asked.patience)
    )
    if asked.as_json:
        failed = [{"set": f.of, "system": f.system, "error": f.why} for f in failures]
        results = [plain_row(row) for row in rows]
        print_json({"min_score": terms.min_score, "results": results, "failed": failed})
    else:
        for line in [*table(rows), *threshold_table(rows, terms.min_score)]:
            out.print(printable(line))
    said = [f"{f.system} on {f.of}: {f.why}" for f in failures]
    if asked.plot is not None:
        try:
            draw(rows, asked.plot)
        except OSError as error:  # the figures have been shown by now, and are not lost
            said.append(f"--plot {asked.plot}: it cannot be written ({error.strerror or error})")
    for line in said:
        err.print(printable(line))
    return 1 if said else 0


async def measured(
    sets: Sequence[LabelledSet],
    scorers: Sequence[tuple[str, Scorer]],
    peers: Sequence[Command],
    *,
    terms: EvaluationTerms,
    patience: float,
) -> tuple[list[Row], list[Failure]]:
    """Measure every system on every set, one after the other, so that none slows another."""
    rows, failures = [], []
    with progress() as bar:
        for of in sets:
            for name, scorer in scorers:
                picking = MeasuredScorer(scorer, of.tools)
                rows.append(await measure(picking, of, name=name, terms=terms, bar=bar))
            for peer in peers:
                limit = min(terms.limit or len(of.questions), peer.limit or len(of.questions))
                own = terms._replace(limit=limit)
                try:
                    async with started(peer, of.tools, patience=patience) as running:
                        row = await measure(running, of, name=peer.name, terms=own, bar=bar)
                except PeerError as error:
                    failures.append(Failure(of.name, peer.name, str(error)))
                else:
                    rows.append(row)
    return rows, failures


def parse_peer(given: str) -> Command:
    """Read a value of `--beside`; raise UnusableError for one that is none."""
    label, equals, command = given.partition("=")
    name, colon, limit = label.strip().partition(":")
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UnusableError(f"--beside {given}: {str(error).lower()}") from None
    if not equals or not name or not words:
        raise UnusableError(f"--beside {given}: give NAME=COMMAND, or NAME:N=COMMAND")
    if colon and not (limit.isascii() and limit.isdigit() and int(limit)):
        raise UnusableError(f"--beside {given}: after the colon, give a number of questions")
    return Command(name, words, int(limit) if colon else None)


class Peer:
    """A running peer; each of its answers may take `patience` seconds."""

    def __init__(
        self, process: Process, tools: Sequence[HasDefinition], stderr: IO[bytes], patience: float
    ) -> None:
        self._process = process
        self._stdin = cast("StreamWriter", process.stdin)  # both are pipes
        self._stdout = cast("StreamReader", process.stdout)
        self._tools = [_plain(tool) for tool in tools]
        self._names = frozenset(tool["name"] for tool in self._tools)
        self._stderr = stderr
        self._patience = patience

    async def build(self) -> float:
        """Hand over the tools; return the CPU milliseconds that the peer says it took."""
        return _milliseconds(await self._exchange({"tools": self._tools}), "build_ms")

    async def answer(self, query: str) -> ScorerAnswer:
        """Send one request; the wall clock includes the pipe. Raises PeerError."""
        wall = perf_counter()
        found = await self._exchange({"query": query, "top": DEPTH})
        wall = perf_counter() - wall
        ranking = found.get("ranking")
        if not isinstance(ranking, list) or not all(isinstance(name, str) for name in ranking):
            raise PeerError(f"its 'ranking' is no list of names: {_shown(found)}")
        if len(ranking) > DEPTH or len(set(ranking)) < len(ranking):
            raise PeerError(
                f"its ranking has more than {DEPTH} names, or one twice: {_shown(found)}"
            )
        for name in ranking:
            if name not in self._names:
                raise PeerError(f"it ranks {name[:80]!r}, which is not among the tools")
        return ScorerAnswer(tuple(ranking), _milliseconds(found, "cpu_ms"), wall * 1e3)

    async def _exchange(self, sent: object) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._patience):
                with suppress(ConnectionError):  # it died: its last words say more
                    self._stdin.write(json.dumps(sent).encode() + b"\n")
                    await self._stdin.drain()
                line = await self._stdout.readline()
        except TimeoutError:
            raise PeerError(f"it gave no answer within {self._patience:g} s") from None
        except ValueError:
            raise PeerError(f"its answer has more than {_MAX_LINE} bytes on a line") from None
        if not line.endswith(b"\n"):
            raise PeerError(await self._end())
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise PeerError(
                f"its answer is no JSON object: {_shown(line.decode(errors='replace').strip())}"
            )
        return found

    async def _end(self) -> str:
        ended = "it closed its stdout"
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                ended = f"it ended (exit code {await self._process.wait()})"
        self._stderr.seek(0, 2)
        self._stderr.seek(max(0, self._stderr.tell() - _LAST_WORDS))
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        last = f"; its last words: {lines[-1]}" if lines else ""
        return f"{ended} before it answered{last}"


@asynccontextmanager
async def started(
    peer: Command, tools: Sequence[HasDefinition], *, patience: float
) -> AsyncIterator[Peer]:
    """Start a peer; kill it in the end with all processes that it started, which would hold its pipes.

    Raises PeerError if it cannot be started.
    """
    with tempfile.TemporaryFile() as stderr:
        try:
            process = await asyncio.create_subprocess_exec(
                *peer.command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=stderr,
                limit=_MAX_LINE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise PeerError(f"{peer.command[0]} cannot be run ({reason})") from None
        try:
            yield Peer(process, tools, stderr, patience)
        finally:
            with suppress(ProcessLookupError, PermissionError):  # all have ended
                os.killpg(process.pid, signal.SIGKILL)
            await _ended(process)


async def _ended(process: Process) -> None:
    """Wait until its pipes are closed, too; not for long, since who left its session may hold them."""
    stdin, stdout = cast("StreamWriter", process.stdin), cast("StreamReader", process.stdout)
    stdin.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(_CLOSING):
            while await stdout.read(_MAX_LINE):
                pass
            await process.wait()


def _plain(tool: HasDefinition) -> dict[str, Any]:
    definition = tool.get_definition()
    return {
        "name": definition.name,
        "description": definition.description,
        "input_schema": definition.input_schema or {"type": "object"},
    }


def _milliseconds(found: dict[str, Any], key: str) -> float:
    value = found.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MAX_MS:
        return float(value)
    raise PeerError(f"its {key!r} is no number of milliseconds: {_shown(found)}")


def _shown(found: object) -> str:
    return shortened(printable(found if isinstance(found, str) else json.dumps(found)))


def check_plot(path: Path) -> None:
    """Raise UnusableError for a picture that could not be drawn."""
    if path.suffix.lower() not in _FORMATS:
        raise UnusableError(f"--plot {path}: name a file that ends in {' or '.join(_FORMATS)}")
    if not path.parent.is_dir():
        raise UnusableError(f"--plot {path}: there is no such folder")
    if find_spec("matplotlib") is None:
        raise UnusableError("--plot needs matplotlib: pip install 'matplotlib>=3.9'")


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw how good each system is on each set, and how fast by the size of the catalog.

    Takes at least one row; raises OSError.
    """
    from matplotlib.figure import Figure

    systems = list(dict.fromkeys(row.system for row in rows))
    figure = Figure(figsize=(11, 4.5 + 0.12 * len(systems)), layout="constrained")
    quality, speed = figure.subplots(1, 2)
    _draw_quality(quality, rows, systems)
    _draw_speed(speed, rows, systems)
    figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter that the font lacks is drawn as a box
        figure.savefig(path, dpi=150)


def _draw_quality(axes: Any, rows: Sequence[Row], systems: Sequence[str]) -> None:
    sets = list(dict.fromkeys(row.of.name for row in rows))
    width = 0.8 / len(systems)
    for place, system in enumerate(systems):
        own = [p for p in rows if p.system == system and p.figures.quality is not None]
        where = [sets.index(p.of.name) - 0.4 + (place + 0.5) * width for p in own]
        found = [p.figures.quality for p in own if p.figures.quality is not None]
        errors = [quality.error or 0.0 for quality in found]
        heights = [quality.ndcg_at_10 for quality in found]
        axes.bar(where, heights, width, yerr=errors, color=_color(place))
    axes.set_xticks(range(len(sets)), map(_label, sets))
    axes.set_ylim(0, 1)
    axes.set_ylabel("nDCG@10, with its standard error")


def _draw_speed(axes: Any, rows: Sequence[Row], systems: Sequence[str]) -> None:
    for place, system in enumerate(systems):
        own = sorted((len(p.of.tools), p.figures.cpu_ms.p50) for p in rows if p.system == system)
        axes.plot(*zip(*own, strict=True), marker="o", label=_label(system), color=_color(place))
    sizes = sorted({len(row.of.tools) for row in rows})
    axes.set_xscale("log")
    axes.set_yscale("log", subs=[2, 5])
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.xaxis.set_minor_formatter("")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel("tools in the catalog")
    axes.set_ylabel("CPU milliseconds a request, median")


def _label(name: str) -> str:
    """Return the name so that it is drawn as it is: no formula, none that a legend leaves out."""
    text = printable(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _color(place: int) -> tuple[str, float]:
    """Return one of ten colours, or the same ones paler."""
    return f"C{place % 10}", 1.0 if place < 10 else 0.5


if __name__ == "__main__":
    sys.exit(main())
