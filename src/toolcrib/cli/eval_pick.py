"""`toolcrib eval-pick`: how well and how fast tools are picked, on sets whose right tools are known."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from toolcrib.cli.eval_run import LabelledSet, Row, Terms, measured
from toolcrib.cli.eval_table import plain, table, threshold_table
from toolcrib.cli.options import JsonOption, ToolsOption, UnusableError, load_for_picking
from toolcrib.cli.peer import PeerError, parse_beside
from toolcrib.cli.plot import Point, check_plot, draw
from toolcrib.cli.render import err, out, print_json, printable
from toolcrib.errors import MissingExtraError, SourceError
from toolcrib.pick import SCORERS, PickOptions
from toolcrib.pick.evaluation import Figures, check_names, read_questions
from toolcrib.pick.options import DEFAULT_SCORER

_DEFAULT = PickOptions()


_Questions: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help='JSONL: {"query": "…", "gold": ["tool", …]}; [] where no tool is needed.',
    ),
]
_Sets: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--set",
        metavar="FOLDER",
        help="Holds tools.jsonl and queries.jsonl; may be repeated, instead of the two above.",
    ),
]
_Scorers: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="S", help=f"One of {', '.join(SCORERS)} ({DEFAULT_SCORER}); may be repeated."
    ),
]
_MinScore: TypeAlias = Annotated[
    float, typer.Option(min=0, max=1, help="The threshold that is judged beside the ranking.")
]
_Limit: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Ask the first so many questions of a set.")
]
_Beside: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=COMMAND",
        help="A program to measure beside (benchmarks/peers has some); NAME:N=COMMAND asks it "
        "the first N questions only. May be repeated.",
    ),
]
_Patience: TypeAlias = Annotated[
    float, typer.Option(min=0.1, help="Seconds that such a program may take for an answer.")
]
_Plot: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw it, as .png or .svg.")
]


def eval_pick(  # noqa: PLR0913  the options of a command
    *,
    tools: ToolsOption = None,
    queries: _Questions = None,
    sets: _Sets = None,
    scorer: _Scorers = None,
    min_score: _MinScore = _DEFAULT.min_score,
    limit: _Limit = None,
    beside: _Beside = None,
    patience: _Patience = 300.0,
    plot: _Plot = None,
    as_json: JsonOption = False,
) -> None:
    """Measure picking: nDCG, recall, latency, and whether no tool is picked where none is needed.

    Whole catalogs are ranked, nothing is called. Exits with 1 if a program beside failed; what was
    measured is shown all the same.
    """
    names, peers = (
        _known(scorer or [DEFAULT_SCORER]),
        [parse_beside(given) for given in beside or ()],
    )
    _check_distinct("systems", [*names, *(peer.name for peer in peers)])
    if plot is not None:
        check_plot(plot)
    labelled = _sets(tools, queries, sets or [])
    scorers = [(name, SCORERS[name]()) for name in names]
    rows = asyncio.run(measured(labelled, scorers, peers, Terms(limit, min_score, patience)))
    if as_json:
        print_json({"min_score": min_score, "results": [plain(row) for row in rows]})
    else:
        for line in [*table(rows), *threshold_table(rows, min_score)]:
            out.print(printable(line))
    failed = [
        f"{r.system} on {r.of.name}: {r.result}" for r in rows if isinstance(r.result, PeerError)
    ]
    if plot is not None:
        failed += _drawn(rows, plot)
    for line in failed:
        err.print(printable(line))
    if failed:
        raise typer.Exit(1)


def _known(names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if name not in SCORERS:
            known = ", ".join(SCORERS)
            raise UnusableError(f"--scorer {name}: there is no such scorer; there are: {known}")
    return names


def _check_distinct(kind: str, names: Sequence[str]) -> None:
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise UnusableError(f"two {kind} are called {name}: a row could be of either")


def _sets(tools: str | None, queries: Path | None, folders: Sequence[Path]) -> list[LabelledSet]:
    if folders and (tools is not None or queries is not None):
        raise UnusableError("give --set, or --tools and --queries, not both")
    if folders:
        names = [folder.resolve().name for folder in folders]
        _check_distinct("sets", names)
        return [
            _loaded(name, str(folder / "tools.jsonl"), folder / "queries.jsonl")
            for name, folder in zip(names, folders, strict=True)
        ]
    if queries is None:
        raise UnusableError("name the questions: --queries FILE, or --set FOLDER")
    return [_loaded(queries.stem, tools, queries)]


def _loaded(name: str, where: str | None, queries: Path) -> LabelledSet:
    found = load_for_picking(where)
    if not found:
        raise UnusableError(f"--tools {where}: there are no tools in it")
    try:
        check_names(found, "the kit" if where is None else where)
        questions = read_questions(queries, {tool.get_definition().name for tool in found})
    except SourceError as error:
        raise UnusableError(str(error)) from error
    return LabelledSet(name, found, questions)


def _drawn(rows: Sequence[Row], plot: Path) -> list[str]:
    """Why there is no picture, if so: by now the figures have been shown, and must not be lost."""
    points = [
        Point(row.of.name, len(row.of.tools), row.system, row.result)
        for row in rows
        if isinstance(row.result, Figures)
    ]
    try:
        draw(points, plot)
    except MissingExtraError as error:
        return [f"--plot {plot}: {error}"]
    except OSError as error:
        return [f"--plot {plot}: it cannot be written ({error.strerror or error})"]
    return []
