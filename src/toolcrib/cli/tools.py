"""`toolcrib tools`: what is in a catalog."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.table import Table

from toolcrib.cli.options import Json, Tools
from toolcrib.cli.render import out, print_json, printable, show_json
from toolcrib.cli.where import UnusableError, load_catalog
from toolcrib.values.definition import All, ToolDefinition
from toolcrib.values.json import JsonObject

app = typer.Typer(no_args_is_help=True, help="Look into a catalog of tools.")


@app.command("list")
def list_tools(*, tools: Tools = None, as_json: Json = False) -> None:
    """List the tools: name, what it does, and what policies read."""
    definitions = [tool.get_definition() for tool in load_catalog(tools)]
    if as_json:
        print_json([_summary(definition) for definition in definitions])
        return
    table = Table("name", "description", "marks", box=None, pad_edge=False)
    for definition in definitions:
        first = printable(definition.description.partition("\n")[0])
        table.add_row(definition.name, first, ", ".join(_marks(definition)))
    out.print(table)


@app.command("show")
def show_tool(
    name: Annotated[str, typer.Argument(help="The tool's name.")],
    *,
    tools: Tools = None,
    as_json: Json = False,
) -> None:
    """Show one tool whole: its schema, its marks, who may see what of its result."""
    catalog = load_catalog(tools)
    if name not in catalog:
        raise UnusableError(f"no tool '{name}'; there are {', '.join(catalog.names)}")
    definition = catalog[name].get_definition()
    if as_json:
        print_json(_whole(definition))
        return
    out.print(f"{definition.name}  {definition.digest}")
    out.print(printable(definition.description))
    for title, value in _whole(definition).items():
        if title not in ("name", "description", "digest") and value not in ([], None, {}):
            out.print(f"\n{title}")
            show_json(value)


def _summary(definition: ToolDefinition) -> JsonObject:
    return {
        "name": definition.name,
        "description": definition.description,
        "marks": list(_marks(definition)),
        "digest": definition.digest,
    }


def _whole(definition: ToolDefinition) -> JsonObject:
    visible = definition.visible
    return {
        **definition.to_dict(),
        "digest": definition.digest,
        "annotations": msgspec.to_builtins(definition.annotations),
        "visible": "ALL" if isinstance(visible, All) else list(visible),
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
