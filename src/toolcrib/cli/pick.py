"""`toolcrib pick`: which tools fit a request, how well, and why."""

from __future__ import annotations

import asyncio
from typing import Annotated, TypeAlias

import msgspec
import typer
from rich.table import Table

from toolcrib.cli.options import JsonOption, ToolsOption, UnusableError, load_for_picking
from toolcrib.cli.render import err, out, print_json, printable
from toolcrib.errors import PickError
from toolcrib.pick import SCORERS, PickOptions, PickResult, explain_pick, pick_tools
from toolcrib.pick.options import DEFAULT_SCORER

_DEFAULT = PickOptions()


_Request: TypeAlias = Annotated[str, typer.Argument(help="The request, in plain words.")]
_Top: TypeAlias = Annotated[int, typer.Option("--top", min=1, help="How many to show.")]
_Scorer: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help=f"What scores the tools: {', '.join(SCORERS)}.",
        autocompletion=lambda: list(SCORERS),
    ),
]
_MinScore: TypeAlias = Annotated[
    float, typer.Option(min=0, max=1, help="Show no tool that scores less.")
]
_Roles: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(help="A role of the caller's: leave out what is for others. Repeatable."),
]
_Tags: TypeAlias = Annotated[
    list[str] | None, typer.Option(help="Only tools with one of these tags. Repeatable.")
]
_MaxCost: TypeAlias = Annotated[
    float | None, typer.Option(min=0, help="Leave out what costs more, in the tools' own unit.")
]
_Unsafe: TypeAlias = Annotated[
    bool,
    typer.Option("--unsafe/--no-unsafe", help="Whether to score tools marked unsafe, too."),
]
_Timeout: TypeAlias = Annotated[
    float | None, typer.Option(help="Milliseconds for the scoring, its index included.")
]
_Explain: TypeAlias = Annotated[
    bool, typer.Option("--explain", help="Say how every tool scored, and what was left out.")
]


def pick(  # noqa: PLR0913  the options of a command
    query: _Request,
    *,
    tools: ToolsOption = None,
    top: _Top = _DEFAULT.max_candidates,
    scorer: _Scorer = DEFAULT_SCORER,
    min_score: _MinScore = _DEFAULT.min_score,
    role: _Roles = None,
    tag: _Tags = None,
    max_cost: _MaxCost = None,
    unsafe: _Unsafe = _DEFAULT.allow_unsafe,
    timeout_ms: _Timeout = None,
    explain: _Explain = False,
    as_json: JsonOption = False,
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
        left_out = sum(not tool.get_definition().annotations.safe for tool in found)
        if left_out and not unsafe:
            what = "tool is" if left_out == 1 else "tools are"
            err.print(f"{left_out} {what} marked unsafe and left out: see --unsafe.")


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
