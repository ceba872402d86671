"""`toolcrib tools check`: what providers refuse, models miss and readers confuse, before a request."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, TypeAlias

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from toolcrib.cli.options import JsonOption, ToolsOption, WhereArgument
from toolcrib.cli.render import out, print_json, printable
from toolcrib.cli.where import UnusableError, given_once, load_catalog
from toolcrib.errors import DefinitionError, RequestError, SourceError
from toolcrib.lint import Finding, check_tools
from toolcrib.tools import DefinitionsFile, read_definitions, source_of, tool_of
from toolcrib.tools.definitions import tool_from_dict
from toolcrib.values.definition import tools_in
from toolcrib.wire import FORMS

_NARROW = 40
_Row: TypeAlias = tuple[Finding, list[str]]
_STYLES = {"refused": "red", "lost": "yellow", "doubtful": "cyan"}


def check(
    where: WhereArgument = None,
    *,
    tools: ToolsOption = None,
    provider: Annotated[
        list[str] | None,
        typer.Option(
            "--provider",
            metavar="P",
            help=f"Only this one (may be repeated): {', '.join(FORMS)}; openai for both of its.",
            autocompletion=lambda: ["openai", *FORMS],
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what is refused, lost or doubtful about each tool; exit 1 if anything is refused.

    A file of definitions may have broken ones: each is reported, the others are checked.
    """
    given = _given(given_once(where, tools))
    imported = _imported(given)
    try:
        findings = check_tools(given, provider or None)
    except RequestError as error:
        raise UnusableError(f"--provider: {error}") from None
    if as_json:
        print_json(_plain(findings, len(given)) | ({"imported": imported} if imported else {}))
    else:
        _show(findings)
        _show_trust(imported)
        out.print(_closing(findings, len(given)))
    if any(finding.effect == "refused" for finding in findings):
        raise typer.Exit(1)


def _given(where: str | None) -> Sequence[Any]:
    """A file of definitions as it stands; anything else as a catalog, which is whole or an error."""
    try:
        source = None if where is None else source_of(where)
        if not isinstance(source, DefinitionsFile):
            return list(load_catalog(where))
        found = read_definitions(source.path)
    except UnusableError:
        raise
    except SourceError as error:
        raise UnusableError(f"--tools {error}") from error
    if not found:
        raise UnusableError(f"--tools {where}: there are no tools in it")
    return found


def _imported(given: Sequence[Any]) -> dict[str, str]:
    """The tools that ask because nobody here wrote or trusts them: by name, what trust is bound to."""
    found: dict[str, str] = {}
    for tool in tools_in(given):
        with contextlib.suppress(DefinitionError):  # it is among the findings
            made = tool_from_dict(tool, {}, ()) if isinstance(tool, Mapping) else tool_of(tool)
            if made.imported is not None and made.definition.annotations.requires_approval:
                found[made.definition.name] = made.imported.origin
    return found


def _show_trust(imported: Mapping[str, str]) -> None:
    """The line to paste for each, whole: it is cut by no terminal."""
    if not imported:
        return
    one = len(imported) == 1
    asks = "tool asks and taints" if one else "tools ask and taint"
    out.print(f"{len(imported)} imported {asks}. To trust {'it' if one else 'one'}:")
    show_trust(imported)


def show_trust(origins: Mapping[str, str]) -> None:
    """Print the line that trusts each imported tool, with the digest that trust is bound to."""
    for name, origin in origins.items():
        typer.echo(f'    trust={{"{name}": ReadOnly("{origin}")}}')


def _plain(findings: list[Finding], tools: int) -> dict[str, Any]:
    return {
        "tools": tools,
        "counts": _counts(findings),
        "findings": [msgspec.to_builtins(finding) for finding in findings],
    }


def _show(findings: list[Finding]) -> None:
    """A table for a terminal; for a file, a pipe or a sliver of one a line for each finding."""
    for tool, own in groupby(findings, key=lambda finding: finding.tool):
        out.print(Text(printable(tool) or "all tools together", style="bold"))
        rows = _merged(own)
        if out.is_terminal and out.width >= _NARROW:
            out.print(_table(rows))
            continue
        for finding, providers in rows:
            where = _where(finding, providers)
            message = printable(finding.message).replace("\n", " ")
            out.print(f"  {finding.effect} {finding.rule}: {message}{where and f' ({where})'}")


def _table(rows: list[_Row]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding, providers in rows:
        text = Text(printable(finding.message))
        where = _where(finding, providers)
        if where:
            text.append(f"\n{where}", style="dim")
        effect = Text(f"  {finding.effect}", style=_STYLES[finding.effect])
        table.add_row(effect, finding.rule, text)
    return table


def _merged(findings: Iterable[Finding]) -> list[_Row]:
    """What is so with several providers is told once; what befalls a schema, once for all places."""
    merged: dict[tuple[str, ...], tuple[Finding, list[str]]] = {}
    for f in findings:
        _, providers = merged.setdefault((f.effect, f.rule, f.pointer, f.message), (f, []))
        if f.provider:
            providers.append(f.provider)
    rows: dict[tuple[object, ...], list[_Row]] = {}
    for f, providers in merged.values():
        what = f.message.partition(": ")[2] if f.rule == "schema" else (f.pointer, f.message)
        rows.setdefault((f.effect, f.rule, what, *providers), []).append((f, providers))
    return [_together(several) for several in rows.values()]


def _together(rows: list[_Row]) -> _Row:
    """`maximum, minimum: …` at the first of their places, and how many more there are."""
    (first, providers), *others = rows
    if not others:
        return first, providers
    keywords = dict.fromkeys(f.message.partition(": ")[0] for f, _ in rows)
    return msgspec.structs.replace(
        first,
        pointer=f"{first.pointer} and {len(others)} more",
        message=f"{', '.join(keywords)}: {first.message.partition(': ')[2]}",
    ), providers


def _where(finding: Finding, providers: list[str]) -> str:
    """Its place, and for whom it is so."""
    whom = "every provider" if len(providers) == len(FORMS) else ", ".join(providers)
    return "  ".join(part for part in (printable(finding.pointer), whom) if part)


def _counts(findings: list[Finding]) -> dict[str, int]:
    counts = Counter[str](finding.effect for finding in findings)
    return {effect: counts[effect] for effect in _STYLES}


def _closing(findings: list[Finding], tools: int) -> str:
    """Counted as shown: once for all the providers with which it is so."""
    shown = [f for _, own in groupby(findings, key=lambda f: f.tool) for f, _ in _merged(own)]
    said = ", ".join(f"{number} {effect}" for effect, number in _counts(shown).items())
    return f"{tools} tool{'' if tools == 1 else 's'}: {said if shown else 'nothing to say'}"
