"""`toolcrib pick`: which tools fit a request, how well, and why."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from toolcrib.cli.options import Json, Tools
from toolcrib.cli.render import err, out, print_json, printable, show_json
from toolcrib.cli.where import load_for_picking
from toolcrib.pick import SCORERS, PickOptions, PickResult, pick_tools


def pick(
    query: Annotated[str, typer.Argument(help="The request, in plain words.")],
    *,
    tools: Tools = None,
    top: Annotated[int, typer.Option("--top", min=1, help="How many to show.")] = 3,
    scorer: Annotated[
        str, typer.Option(help=f"What scores the tools: {', '.join(SCORERS)}.")
    ] = next(iter(SCORERS)),
    explain: Annotated[bool, typer.Option(help="Say which tools were left out, and why.")] = False,
    as_json: Json = False,
) -> None:
    """Rank the tools for a request. Nothing is called."""
    options = PickOptions(
        max_candidates=top,
        scorer=scorer,
        allow_unsafe=True,
        debug=explain,
    )
    results = asyncio.run(pick_tools(query, load_for_picking(tools), options))
    if as_json:
        print_json([_plain(result) for result in results])
        return
    if not results:
        err.print("No tool fits.")
        return
    table = Table("score", "tool", "why", box=None, pad_edge=False)
    for result in results:
        table.add_row(
            f"{result.score:.3f}", printable(result.definition.name), printable(result.reason or "")
        )
    out.print(table)
    if explain:
        show_json(msgspec.to_builtins(results[0].provenance))


def _plain(result: PickResult) -> object:
    return {
        "name": result.definition.name,
        "score": result.score,
        "reason": result.reason,
        "provenance": msgspec.to_builtins(result.provenance),
    }
