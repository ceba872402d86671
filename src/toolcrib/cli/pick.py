"""`toolcrib pick`: which tools fit a request, how well, and why."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from toolcrib.cli.options import Json, Tools
from toolcrib.cli.render import err, out, print_json, printable
from toolcrib.cli.where import UnusableError, load_for_picking
from toolcrib.errors import PickError
from toolcrib.pick import SCORERS, PickOptions, PickResult, explain_pick, pick_tools

_DEFAULT = PickOptions()


def pick(  # noqa: PLR0913  the options of a command
    query: Annotated[str, typer.Argument(help="The request, in plain words.")],
    *,
    tools: Tools = None,
    top: Annotated[
        int, typer.Option("--top", min=1, help="How many to show.")
    ] = _DEFAULT.max_candidates,
    scorer: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"What scores the tools: {', '.join(SCORERS)}.",
            autocompletion=lambda: list(SCORERS),
        ),
    ] = next(iter(SCORERS)),
    min_score: Annotated[
        float, typer.Option(min=0, max=1, help="Show no tool that scores less.")
    ] = _DEFAULT.min_score,
    role: Annotated[
        list[str] | None,
        typer.Option(help="A role of the caller's: leave out what is for others. Repeatable."),
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(help="Only tools with one of these tags. Repeatable.")
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(min=0, help="Leave out what costs more, in the tools' own unit.")
    ] = None,
    unsafe: Annotated[
        bool, typer.Option("--unsafe/--no-unsafe", help="Whether to score tools marked unsafe.")
    ] = True,
    timeout_ms: Annotated[
        float | None, typer.Option(help="Milliseconds for the scoring, its index included.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say how every tool scored, and what was left out.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Rank the tools for a request. Nothing is called."""
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
    found = load_for_picking(tools)
    if explain:
        report = asyncio.run(explain_pick(query, found, options))
        if as_json:
            print_json(report.to_json())
        else:
            out.print(printable(report.text()))
        return
    results = asyncio.run(pick_tools(query, found, options))
    if as_json:
        print_json([_plain(result) for result in results])
    else:
        _show(results)


def _show(results: list[PickResult]) -> None:
    if not results:
        err.print("No tool fits.")
        return
    table = Table("score", "tool", "why", box=None, pad_edge=False)
    for result in results:
        table.add_row(
            f"{result.score:.3f}", printable(result.definition.name), printable(result.reason or "")
        )
    out.print(table)


def _plain(result: PickResult) -> object:
    return {
        "name": result.definition.name,
        "score": result.score,
        "reason": result.reason,
        "provenance": msgspec.to_builtins(result.provenance),
    }
