"""`toolcrib eval-pick`: how well and how fast tools are picked, on sets whose right tools are known."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

import msgspec
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from toolcrib.cli.options import Json, Tools
from toolcrib.cli.peer import Beside, PeerError, parse_beside, started
from toolcrib.cli.plot import Point, check_plot, draw
from toolcrib.cli.render import err, out, print_json, printable
from toolcrib.cli.where import UnusableError, load_for_picking
from toolcrib.errors import SourceError
from toolcrib.pick import SCORERS, PickOptions
from toolcrib.pick.evaluation import (
    Answer,
    Figures,
    Picking,
    Question,
    check_names,
    figures,
    read_questions,
)
from toolcrib.values.definition import HasDefinition

_DEFAULT = next(iter(SCORERS))


class _Set(NamedTuple):
    name: str
    tools: tuple[HasDefinition, ...]
    questions: tuple[Question, ...]


class _Row(NamedTuple):
    """What a system reached on a set, or why it did not."""

    of: _Set
    system: str
    result: Figures | PeerError


class _Asked(Protocol):
    async def answer(self, query: str) -> Answer: ...


def eval_pick(
    *,
    tools: Tools = None,
    queries: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='JSONL: {"query": "…", "gold": ["tool", …]}.'),
    ] = None,
    sets: Annotated[
        list[Path] | None,
        typer.Option(
            "--set",
            metavar="FOLDER",
            help="Holds tools.jsonl and queries.jsonl; may be repeated, instead of the two above.",
        ),
    ] = None,
    scorer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="S", help=f"One of {', '.join(SCORERS)} ({_DEFAULT}); may be repeated."
        ),
    ] = None,
    min_score: Annotated[
        float, typer.Option(min=0, max=1, help="The threshold that is judged beside the ranking.")
    ] = PickOptions().min_score,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Ask the first so many questions of a set.")
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COMMAND",
            help="A program to measure beside (benchmarks/peers has some); NAME:N=COMMAND asks it "
            "the first N questions only. May be repeated.",
        ),
    ] = None,
    patience: Annotated[
        float, typer.Option(min=0.1, help="Seconds that such a program may take for an answer.")
    ] = 120.0,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it, as .png or .svg.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure picking: nDCG, recall, latency, and whether no tool is picked where none is needed.

    Whole catalogs are ranked, nothing is called. Exits with 1 if a program beside failed; what was
    measured is shown all the same.
    """
    names, peers = _chosen(scorer), [parse_beside(given) for given in beside or ()]
    _check_distinct([*names, *(peer.name for peer in peers)])
    if plot is not None:
        check_plot(plot)
    labelled = _sets(tools, queries, sets, limit)
    rows = asyncio.run(_Run(labelled, min_score, patience).all(names, peers))
    if plot is not None:
        draw([Point(r.of.name, len(r.of.tools), r.system, r.result) for r in _measured(rows)], plot)
    if as_json:
        print_json({"min_score": min_score, "results": [_plain(row) for row in rows]})
    else:
        _show(rows)
    if any(isinstance(row.result, PeerError) for row in rows):
        raise typer.Exit(1)
