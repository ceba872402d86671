"""`toolcrib tools`: what is in a catalog; `check` and `lock` have files of their own."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from toolcrib.cli import check, lock
from toolcrib.cli.check import show_trust
from toolcrib.cli.options import JsonOption, ToolsOption, WhereArgument
from toolcrib.cli.render import out, print_json, printable, shortened, show_json
from toolcrib.cli.where import UnusableError, given_once, load_catalog, names_to_try
from toolcrib.tools import tool_of
from toolcrib.values.definition import All, HasDefinition, ToolDefinition
from toolcrib.values.json import JsonObject

app = typer.Typer(no_args_is_help=True, help="Look into a catalog of tools, check it, lock it.")


@app.command("list")
def list_tools(
    where: WhereArgument = None, *, tools: ToolsOption = None, as_json: JsonOption = False
) -> None:
    """List the tools: name, what it does, and what policies read.

    In a file or a pipe, a line for each, its columns apart by tabs. With --json, an imported tool has
    its `trust_digest`, which `trust=` takes; `digest` is the one that records have.
    """
    catalog = load_catalog(given_once(where, tools))
    if as_json:
        print_json([_summary(tool) for tool in catalog])
        return
    definitions = [tool.get_definition() for tool in catalog]
    rows = [(d.name, _first_line(d.description), ", ".join(_marks(d))) for d in definitions]
    if not out.is_terminal:
        for row in rows:
            typer.echo("\t".join(row))  # rich would make spaces of tabs
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("name", overflow="fold")
    table.add_column("description", overflow="fold")
    table.add_column("marks")
    for row in rows:
        table.add_row(*row)
    out.print(table)


def _first_line(description: str) -> str:
    return shortened(printable(description.partition("\n")[0]).replace("\t", " "))


@app.command("show")
def show_tool(
    name: Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name.")],
    *,
    tools: ToolsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one tool whole: its schema, its marks, who may see what of its result.

    Of an imported tool also the line that trusts it, with its `trust_digest`.
    """
    catalog = load_catalog(tools)
    if name not in catalog:
        raise UnusableError(f"no tool '{name}'; there are {names_to_try(catalog.names, name)}")
    tool = catalog[name]
    whole = _whole(tool)
    if as_json:
        print_json(whole)
        return
    out.print(f"{name}  {whole['digest']}")
    trust_digest = whole.pop("trust_digest", None)
    if trust_digest is not None:
        out.print("imported. To trust it:")
        show_trust({name: str(trust_digest)})
    out.print(printable(str(whole["description"])))
    for title, value in whole.items():
        if title not in ("name", "description", "digest") and value not in ([], None, {}):
            out.print(f"\n{title}")
            show_json(value)


def _summary(tool: HasDefinition) -> JsonObject:
    definition = tool.get_definition()
    return {
        "name": definition.name,
        "description": definition.description,
        "marks": list(_marks(definition)),
        **_digests(tool),
    }


def _digests(tool: HasDefinition) -> dict[str, str]:
    """Return the digest that records have, and of an imported tool the one that trust is bound to."""
    imported = tool_of(tool).imported
    digests = {"digest": tool.get_definition().digest}
    return digests if imported is None else digests | {"trust_digest": imported.origin}


def _whole(tool: HasDefinition) -> JsonObject:
    definition = tool.get_definition()
    visible = definition.visible
    return {
        **definition.to_dict(),
        **_digests(tool),
        "annotations": definition.annotations.to_dict(),
        "visible": "ALL" if isinstance(visible, All) else list(visible or ()),
        "secret": list(definition.secret),
        "tags": list(definition.tags),
        "examples": [{"request": e.request, "arguments": e.arguments} for e in definition.examples],
    }


def _marks(definition: ToolDefinition) -> list[str]:
    """Only what deserves a reader's attention."""
    marks = definition.annotations
    said = {
        "read-only": marks.read_only,
        "not safe": not marks.safe,
        "asks": marks.requires_approval or marks.threat_level == "high",
        "untrusted output": marks.untrusted_output,
        "exclusive": marks.exclusive,
        "no schema": definition.input_schema_json is None,
    }
    return [mark for mark, holds in said.items() if holds]


app.command("check")(check.check)
app.command("lock")(lock.lock)
