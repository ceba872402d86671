"""`toolcrib pick` and `eval-pick`: which tools fit a request, and how well and how fast they are
found.

Rule: no tool is called. `eval-pick` measures one system after the other, so that none slows
another. benchmarks/eval_peers.py measures other programs in the same way, and shows them in the
same tables.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from toolcrib.cli.options import (
    JsonOption,
    ToolsOption,
    UnusableError,
    as_options,
    load_for_picking,
)
from toolcrib.cli.render import err, one_line, out, print_json, printable
from toolcrib.errors import PickError, SourceError, no_such
from toolcrib.pick import SCORERS, PickOptions, PickResult, explain_pick, pick_tools
from toolcrib.pick.evaluation import (
    Figures,
    MeasuredScorer,
    Quality,
    Question,
    ScorerAnswer,
    Spread,
    Threshold,
    check_names,
    figures,
    read_questions,
)
from toolcrib.pick.options import DEFAULT_SCORER
from toolcrib.pick.scorer import Scorer
from toolcrib.values.definition import HasDefinition
from toolcrib.values.json import to_plain

_DEFAULT_OPTIONS = PickOptions()
_HEADINGS = (
    "set",
    "tools",
    "questions",
    "system",
    "nDCG@10",
    "recall@5",
    "recall@10",
    "MRR",
    "build ms",
    "CPU ms p50 / p95",
    "wall ms p50 / p95",
)
_NO_VALUE = "–"

_Request: TypeAlias = Annotated[
    str, typer.Argument(metavar="QUERY", help="The request, in plain words.")
]
_Top: TypeAlias = Annotated[
    int, typer.Option("--top", metavar="N", min=1, help="How many tools to show.")
]
_Scorer: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help=f"The scorer that ranks the tools: {', '.join(SCORERS)}.",
        autocompletion=lambda: list(SCORERS),
    ),
]
_MinScore: TypeAlias = Annotated[
    float, typer.Option(metavar="SCORE", min=0, max=1, help="Show no tool that scores less.")
]
_Roles: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROLE", help="A role of the caller: leave out tools for other roles. Repeatable."
    ),
]
_Tags: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="TAG", help="Only tools with one of these tags. Repeatable."),
]
_MaxCost: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="COST", min=0, help="Leave out tools that cost more, in the tools' own unit."
    ),
]
_Unsafe: TypeAlias = Annotated[
    bool,
    typer.Option("--unsafe/--no-unsafe", help="Whether to score tools that are marked unsafe."),
]
_Timeout: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="MS", help="Time limit in milliseconds for scoring, index build included."
    ),
]
_Explain: TypeAlias = Annotated[
    bool, typer.Option("--explain", help="Show how every tool scored and which were left out.")
]


def pick(  # noqa: PLR0913  the options of a command
    query: _Request,
    *,
    tools: ToolsOption = None,
    top: _Top = _DEFAULT_OPTIONS.max_candidates,
    scorer: _Scorer = DEFAULT_SCORER,
    min_score: _MinScore = _DEFAULT_OPTIONS.min_score,
    role: _Roles = None,
    tag: _Tags = None,
    max_cost: _MaxCost = None,
    unsafe: _Unsafe = _DEFAULT_OPTIONS.allow_unsafe,
    timeout_ms: _Timeout = None,
    explain: _Explain = False,
    as_json: JsonOption = False,
) -> None:
    """Rank the tools for a request. No tool is called."""
    try:
        options = PickOptions(
            max_candidates=top,
            min_score=min_score,
            scorer=scorer,
            allow_unsafe=unsafe,
            roles=role,
            tags=tag or (),
            max_cost=max_cost,
            timeout_ms=timeout_ms,
        )
    except PickError as error:
        raise UnusableError(str(error)) from error
    loaded = load_for_picking(tools)
    if explain:
        report = asyncio.run(explain_pick(query, loaded, options))
        if as_json:
            print_json(report.to_json())
        else:
            out.print(printable(report.text()))
        return
    results = asyncio.run(pick_tools(query, loaded, options))
    if as_json:
        print_json([_plain_result(result) for result in results])
    else:
        _show_results(results)
        left_out = sum(not tool.get_definition().annotations.safe for tool in loaded)
        if left_out and not unsafe:
            subject = "tool is" if left_out == 1 else "tools are"
            err.print(
                f"{left_out} {subject} marked unsafe and left out: add --unsafe to include them."
            )


def _show_results(results: list[PickResult]) -> None:
    if not results:
        err.print("No tool matches.")
        return
    table = Table("score", "tool", "why", box=None, pad_edge=False)
    for result in results:
        table.add_row(
            f"{result.score:.3f}", one_line(result.definition.name), one_line(result.reason or "")
        )
    out.print(table)


def _plain_result(result: PickResult) -> object:
    return {
        "name": result.definition.name,
        "score": result.score,
        "reason": result.reason,
        "provenance": to_plain(result.provenance),
    }


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
        help="A folder with tools.jsonl and queries.jsonl, instead of --tools and --queries; may "
        "be repeated.",
    ),
]
_Scorers: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="S",
        help=f"One of {', '.join(SCORERS)} ({DEFAULT_SCORER}); may be repeated.",
        autocompletion=lambda: list(SCORERS),
    ),
]
_Threshold: TypeAlias = Annotated[
    float,
    typer.Option(
        metavar="SCORE", min=0, max=1, help="A min_score to evaluate in addition to the ranking."
    ),
]
_Limit: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Ask only the first N questions of each set.")
]


def eval_pick(
    *,
    tools: ToolsOption = None,
    queries: _Questions = None,
    sets: _Sets = None,
    scorer: _Scorers = None,
    min_score: _Threshold = _DEFAULT_OPTIONS.min_score,
    limit: _Limit = None,
    as_json: JsonOption = False,
) -> None:
    """Measure picking: nDCG, recall, latency, and whether nothing is picked where no tool is
    needed.

    Whole catalogs are ranked. No tool is called.
    """
    scorers = scorers_of(scorer or [DEFAULT_SCORER])
    if sets and (tools or queries is not None):
        raise UnusableError("give either --set, or --tools and --queries")
    if sets:
        labelled = labelled_sets(sets)
    elif queries is not None:
        labelled = [_labelled_set(queries.stem, tools, queries)]
    else:
        raise UnusableError("name the questions: --queries FILE, or --set FOLDER")
    rows = asyncio.run(_measured(labelled, scorers, EvaluationTerms(limit, min_score)))
    if as_json:
        print_json({"min_score": min_score, "results": [plain_row(row) for row in rows]})
    else:
        for line in [*table(rows), *threshold_table(rows, min_score)]:
            out.print(printable(line))


class LabelledSet(NamedTuple):
    """Tools, with requests whose right tools are known."""

    name: str
    tools: tuple[HasDefinition, ...]
    questions: tuple[Question, ...]


class Row(NamedTuple):
    """Holds the figures that one system reached on one labelled set."""

    of: LabelledSet
    system: str
    figures: Figures


class EvaluationTerms(NamedTuple):
    """How a system is measured: on the first `limit` questions (None: on all), against `min_score`."""

    limit: int | None
    min_score: float


class System(Protocol):
    """A system that can be measured. It gets a catalog when it is made, builds its index and ranks
    the tools."""

    async def build(self) -> float: ...
    async def answer(self, query: str) -> ScorerAnswer: ...


def scorers_of(names: Sequence[str]) -> list[tuple[str, Scorer]]:
    """Make the scorers of these names. Raises UnusableError for an unknown name or a repeated one."""
    check_distinct("systems", names)
    for name in names:
        if name not in SCORERS:
            raise UnusableError(f"--scorer: {no_such('scorer', name, SCORERS)}")
    return [(name, SCORERS[name]()) for name in names]


def check_distinct(kind: str, names: Sequence[str]) -> None:
    """Raise UnusableError if two systems or sets have the same name, since a row could belong to
    either."""
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise UnusableError(
            f"two {kind} are both called {name}: rename one, so that rows can be told apart"
        )


def labelled_sets(folders: Sequence[Path]) -> list[LabelledSet]:
    """Read the sets in these folders. Raises UnusableError for a set that cannot be used."""
    names = [Path(os.path.realpath(folder)).name for folder in folders]
    check_distinct("sets", names)
    return [
        _labelled_set(name, [str(folder / "tools.jsonl")], folder / "queries.jsonl")
        for name, folder in zip(names, folders, strict=True)
    ]


def _labelled_set(name: str, tools: list[str] | None, queries: Path) -> LabelledSet:
    loaded = load_for_picking(tools)
    if not loaded:
        raise UnusableError(f"{as_options(tools or [])}: it has no tools")
    try:
        check_names(loaded, ", ".join(tools or ["the kit"]))
        questions = read_questions(queries, {tool.get_definition().name for tool in loaded})
    except SourceError as error:
        raise UnusableError(str(error)) from error
    return LabelledSet(name, loaded, questions)


async def _measured(
    sets: Sequence[LabelledSet], scorers: Sequence[tuple[str, Scorer]], terms: EvaluationTerms
) -> list[Row]:
    with progress() as bar:
        return [
            await measure(MeasuredScorer(scorer, of.tools), of, name=name, terms=terms, bar=bar)
            for of in sets
            for name, scorer in scorers
        ]


async def measure(
    system: System, of: LabelledSet, *, name: str, terms: EvaluationTerms, bar: Progress
) -> Row:
    """Ask a system the questions of a set, one after the other. Exceptions of the system are raised."""
    questions = of.questions[: terms.limit]
    with _steps(bar, f"{of.name}: {name}", len(questions)) as step:
        build_ms = await system.build()
        answers = []
        for question in questions:
            answers.append(await system.answer(question.query))
            step()
    reached = figures(questions, answers, build_ms=build_ms, min_score=terms.min_score)
    return Row(of, name, reached)


def progress() -> Progress:
    """Make the progress bars on stderr for `measure`."""
    # Redrawn only twice a second, since the time of its thread is measured, too.
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
        refresh_per_second=2,
        disable=not err.is_terminal,
    )


@contextmanager
def _steps(bar: Progress, what: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar for a measurement, or without a terminal print a line when it begins."""
    text = printable(what)
    if not err.is_terminal:
        err.print(f"{text} ({total} questions) …")
    task = bar.add_task(text, total=total)
    try:
        yield lambda: bar.advance(task)
    finally:
        bar.remove_task(task)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the Markdown of the main table.

    `±` is one standard error. "300 of 2885" says that the first 300 questions of a set were asked.
    """
    return _table_lines(
        [_HEADINGS, *(_cells(row) for row in rows)], right=(1, 2, *range(4, len(_HEADINGS)))
    )


def threshold_table(rows: Sequence[Row], min_score: float) -> Iterator[str]:
    """Yield the table of how well `min_score` recognises requests that need no tool.

    There is no table if no set has such requests.
    """
    thresholds = [
        (row, row.figures.threshold)
        for row in rows
        if row.figures.threshold and row.figures.threshold.needless
    ]
    if not thresholds:
        return
    yield ""
    yield f"Where no tool is needed, at a min_score of {min_score:g}:"
    yield ""
    headings = ("set", "system", "rightly empty", "right tool lost", "AUC of the best score")
    cells = [
        (row.of.name, row.system, *_threshold_cells(threshold)) for row, threshold in thresholds
    ]
    yield from _table_lines([headings, *cells], right=(2, 3, 4))


def plain_row(row: Row) -> dict[str, Any]:
    """Return a row as JSON: the figures of the table, unrounded."""
    fields: dict[str, Any] = {
        "set": row.of.name,
        "tools": len(row.of.tools),
        "questions_in_set": len(row.of.questions),
        "system": row.system,
    }
    fields.update(to_plain(row.figures))
    return fields


def _cells(row: Row) -> tuple[str, ...]:
    reached, question_count = row.figures, len(row.of.questions)
    return (
        row.of.name,
        str(len(row.of.tools)),
        str(question_count)
        if reached.questions == question_count
        else f"{reached.questions} of {question_count}",
        row.system,
        *_quality_cells(reached.quality),
        f"{reached.build_ms:.0f}",
        _spread(reached.cpu_ms),
        _spread(reached.wall_ms),
    )


def _quality_cells(quality: Quality | None) -> tuple[str, ...]:
    if quality is None:
        return (_NO_VALUE,) * 4
    error = "" if quality.error is None else f" ± {_three_decimals(quality.error)}"
    others = (quality.recall_at_5, quality.recall_at_10, quality.mrr)
    return (
        f"{_three_decimals(quality.ndcg_at_10)}{error}",
        *(_three_decimals(value) for value in others),
    )


def _threshold_cells(threshold: Threshold) -> tuple[str, str, str]:
    auc = _NO_VALUE if threshold.auc is None else _three_decimals(threshold.auc)
    return (
        f"{threshold.kept_empty} of {threshold.needless}",
        f"{threshold.lost} of {threshold.found}",
        auc,
    )


def _three_decimals(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def _spread(spread: Spread) -> str:
    return f"{spread.p50:.2f} / {spread.p95:.2f}"


def _table_lines(rows: Sequence[Sequence[str]], *, right: Sequence[int]) -> Iterator[str]:
    escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*escaped, strict=True)]
    separator = [("-" * (w - 1) + ":") if i in right else "-" * w for i, w in enumerate(widths)]
    for row in [escaped[0], separator, *escaped[1:]]:
        cells = [
            c.rjust(w) if i in right else c.ljust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"| {' | '.join(cells)} |"
