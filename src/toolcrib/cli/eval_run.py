"""Runs every system of `eval-pick` over every set, one after the other, so that none slows another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from toolcrib.cli.peer import Beside, PeerError, started
from toolcrib.cli.render import err, printable
from toolcrib.pick.evaluation import Answer, Figures, Picking, Question, figures
from toolcrib.pick.scorer import Scorer
from toolcrib.values.definition import HasDefinition


class LabelledSet(NamedTuple):
    """Tools, and requests whose right tools are known."""

    name: str
    tools: tuple[HasDefinition, ...]
    questions: tuple[Question, ...]


class Row(NamedTuple):
    """What a system reached on a set, or why it did not."""

    of: LabelledSet
    system: str
    result: Figures | PeerError


class Terms(NamedTuple):
    """`limit`: the first so many questions of a set, None for all; `patience`: a peer's seconds."""

    limit: int | None
    min_score: float
    patience: float


async def measured(
    sets: Sequence[LabelledSet],
    scorers: Sequence[tuple[str, Scorer]],
    peers: Sequence[Beside],
    terms: Terms,
) -> list[Row]:
    """A row for each set and system. A peer's failure is in its row; a scorer's raises PickError."""
    rows: list[Row] = []
    with _progress() as bar:
        for of in sets:
            for name, scorer in scorers:
                asked = of.questions[: terms.limit]
                with _steps(bar, f"{of.name}: {name}", len(asked)) as step:
                    found = await _asked(Picking(scorer, of.tools), asked, terms.min_score, step)
                rows.append(Row(of, name, found))
            for peer in peers:
                asked = of.questions[: terms.limit][: peer.limit]
                with _steps(bar, f"{of.name}: {peer.name}", len(asked)) as step:
                    try:
                        async with started(peer, of.tools, patience=terms.patience) as running:
                            result = await _asked(running, asked, terms.min_score, step)
                    except PeerError as error:
                        rows.append(Row(of, peer.name, error))
                    else:
                        rows.append(Row(of, peer.name, result))
    return rows


class _System(Protocol):
    async def build(self) -> float: ...
    async def answer(self, query: str) -> Answer: ...


async def _asked(
    system: _System, questions: Sequence[Question], min_score: float, step: Callable[[], None]
) -> Figures:
    build_ms = await system.build()
    answers = []
    for question in questions:
        answers.append(await system.answer(question.query))
        step()
    return figures(questions, answers, build_ms=build_ms, min_score=min_score)


def _progress() -> Progress:
    # Redrawn twice a second: its thread's time counts as that of what is being measured.
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
    """One bar on stderr for what is being measured; without a terminal, a line as it begins."""
    text = printable(what)
    if not err.is_terminal:
        err.print(f"{text} ({total} questions) …")
    task = bar.add_task(text, total=total)
    try:
        yield lambda: bar.advance(task)
    finally:
        bar.remove_task(task)
