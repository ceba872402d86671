"""`toolcrib tools` and `call`: what is in a catalog, what is wrong with it, what changed, and one
call.

`check` reports before any request what providers refuse, models do not see and readers confuse.
`lock` writes down the digests of the tools, or compares the tools with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from toolcrib.audit import AuditLog
from toolcrib.cli.options import (
    ConsentOption,
    DataOption,
    InterruptedTurn,
    JsonOption,
    KeyFileOption,
    RecordOption,
    ToolsOption,
    UnusableError,
    WhereArgument,
    approver,
    check_no_pipe,
    each_source,
    exception_hook,
    given_once,
    load_catalog,
    log_to_write,
    names_to_try,
    no_terminal,
    stdout_on_stderr,
)
from toolcrib.cli.render import (
    err,
    one_line,
    out,
    print_json,
    print_rows,
    printable,
    shortened,
    show_json,
)
from toolcrib.errors import (
    DefinitionError,
    ErrorCode,
    RequestError,
    SourceError,
    counted,
    did_you_mean,
)
from toolcrib.hydration import ParseFailure, parse_arguments
from toolcrib.hydration.parse import MAX_BYTES
from toolcrib.lint import Finding, check_tools
from toolcrib.runner import ToolRunner
from toolcrib.testing import MemorySink
from toolcrib.tools import Catalog, tool_of
from toolcrib.tools.decorator import tool_from_dict
from toolcrib.tools.lock import FORMAT, MARK, Change, Lock, lock_catalog, read_lock, write_lock
from toolcrib.tools.trust import Imported
from toolcrib.values.call import ToolCall
from toolcrib.values.content import as_texts
from toolcrib.values.decision import Caller
from toolcrib.values.definition import All, HasDefinition, ToolDefinition, tools_in
from toolcrib.values.json import JsonObject, to_plain
from toolcrib.values.record import Completed, Failed, Outcome, Sink, ToolInvocationRecord
from toolcrib.wire import FORMS

_NARROW = 40
_Row: TypeAlias = tuple[Finding, list[str]]
_STYLES = {"refused": "red", "lost": "yellow", "doubtful": "cyan"}
LOCK_FILE = "toolcrib.lock"
_MARK_KEY = re.compile(rf'^[ \t{{]*"{MARK}"[ \t]*:'.encode(), re.MULTILINE)
_MOST_TRUST_LINES = 10  # lines that each trust one tool

app = typer.Typer(no_args_is_help=True, help="List, show, check and lock the tools of a catalog.")


@app.command("list")
def list_tools(
    where: WhereArgument = None,
    *,
    tools: ToolsOption = None,
    database: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the tools: name, what it does, and the annotations that policies read.

    In a file or a pipe each tool is one line with columns separated by tabs. With --json, an
    imported tool has its `trust_digest`, which `trust=` takes. `digest` is the one that records
    have.
    """
    catalog = load_catalog(given_once(where, tools), database=database)
    if as_json:
        print_json([_summary(tool) for tool in catalog])
        return
    definitions = [tool.get_definition() for tool in catalog]
    rows = [(d.name, _first_line(d.description), ", ".join(_marks(d))) for d in definitions]
    print_rows(rows, {"name": True, "description": True, "marks": True})


def _first_line(description: str) -> str:
    return shortened(printable(description.partition("\n")[0]).replace("\t", " "))


@app.command("show")
def show_tool(
    name: Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name.")],
    *,
    tools: ToolsOption = None,
    database: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show everything about one tool: its schema, its annotations, who may see what of its result.

    For an imported tool also the line that trusts it, with its `trust_digest`.
    """
    catalog = load_catalog(tools, database=database)
    if name not in catalog:
        raise UnusableError(
            f"no tool '{name}'{did_you_mean(name, catalog.names)}; available: "
            f"{names_to_try(catalog.names, name)}"
        )
    tool = catalog[name]
    tool_json = _tool_json(tool)
    if as_json:
        print_json(tool_json)
        return
    out.print(f"{name}  {tool_json['digest']}")
    imported = tool_of(tool).imported
    if imported is not None:
        del tool_json["trust_digest"]
        out.print("imported. To trust it:")
        show_trust({name: imported})
    out.print(printable(str(tool_json["description"])))
    for title, value in tool_json.items():
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
    """Return the digest that records have, and for an imported tool the one that trust is bound to."""
    imported = tool_of(tool).imported
    digests = {"digest": tool.get_definition().digest}
    return digests if imported is None else digests | {"trust_digest": imported.origin}


def _tool_json(tool: HasDefinition) -> JsonObject:
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
        **({"answer": list(definition.answer)} if definition.answer else {}),
    }


def _marks(definition: ToolDefinition) -> list[str]:
    """Return the marks that deserve a reader's attention."""
    marks = definition.annotations
    conditions = {
        "read-only": marks.read_only,
        "not safe": not marks.safe,
        "asks": marks.requires_approval or marks.threat_level == "high",
        "untrusted output": marks.untrusted_output,
        "exclusive": marks.exclusive,
        "background": marks.background,
        "no schema": definition.input_schema_json is None,
    }
    return [mark for mark, holds in conditions.items() if holds]


@app.command("check")
def check(
    where: WhereArgument = None,
    *,
    tools: ToolsOption = None,
    provider: Annotated[
        list[str] | None,
        typer.Option(
            "--provider",
            metavar="P",
            help=f"Check only for this provider (may be repeated): {', '.join(FORMS)}; openai "
            "stands for both of its APIs.",
            autocompletion=lambda: ["openai", *FORMS],
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what is refused, lost or doubtful about each tool; exit 1 if anything is refused.

    Broken definitions in a file are reported one by one, and the others are still checked.
    """
    definitions = _unchecked_tools(given_once(where, tools))
    imported = _imported_asking(definitions)
    try:
        findings = check_tools(definitions, provider or None)
    except RequestError as error:
        raise UnusableError(f"--provider: {error}") from None
    if as_json:
        plain = [to_plain(finding) for finding in findings]
        report = {"tools": len(definitions), "counts": _counts(findings), "findings": plain}
        origins = {name: tool.origin for name, tool in imported.items()}
        print_json(report | ({"imported": origins} if origins else {}))
    else:
        _show_findings(findings)
        _show_trust(imported, are_all=len(imported) == len(definitions))
        out.print(_closing_line(findings, len(definitions)))
    if any(finding.effect == "refused" for finding in findings):
        raise typer.Exit(1)


def _unchecked_tools(tools: list[str] | None) -> Sequence[Any]:
    """Read files of definitions unchecked. Load anything else as a catalog."""
    definitions: list[Any] = []
    for where, source_tools in each_source(tools):
        if not source_tools:
            raise UnusableError(f"--tools {where}: it has no tools")
        definitions += source_tools
    return definitions


def _imported_asking(definitions: Sequence[Any]) -> dict[str, Imported]:
    """Return, by name, what is known of each imported tool that asks for approval."""
    imported: dict[str, Imported] = {}
    for tool in tools_in(definitions):
        with contextlib.suppress(DefinitionError):  # the findings report it
            loaded_tool = (
                tool_from_dict(tool, {}, ()) if isinstance(tool, Mapping) else tool_of(tool)
            )
            if (
                loaded_tool.imported is not None
                and loaded_tool.definition.annotations.requires_approval
            ):
                imported[loaded_tool.definition.name] = loaded_tool.imported
    return imported


def _show_trust(imported: Mapping[str, Imported], *, are_all: bool) -> None:
    """Print the code that trusts the imported tools, to be pasted. It is not shortened on a
    terminal.

    `are_all` says that there are no other tools, so that a single line can trust all of many.
    """
    if not imported:
        return
    is_single = len(imported) == 1
    subject = "tool asks and taints" if is_single else "tools ask and taint"
    if len(imported) <= _MOST_TRUST_LINES:
        out.print(
            f"{len(imported)} imported {subject}. To trust {'it' if is_single else 'a tool'}:"
        )
        show_trust(imported)
        return
    names = "catalog.names" if are_all else f"[{', '.join(json.dumps(name) for name in imported)}]"
    out.print(
        f"{len(imported)} imported {subject}. To trust all of them as they are now, read them, write "
        f"{LOCK_FILE} (`toolcrib tools lock`), and:"
    )
    typer.echo(
        f"    trusted = catalog.trusting({{name: Trusted() for name in {names}}}, "
        f'lock=read_lock("{LOCK_FILE}"))'
    )


def show_trust(imported: Mapping[str, Imported]) -> None:
    """Print the line that trusts each imported tool, with the digest that trust is bound to."""
    for name, tool in imported.items():
        trust = "ReadOnly" if tool.claims else "Trusted"
        typer.echo(f'    trust={{"{name}": {trust}("{tool.origin}")}}')


def _show_findings(findings: list[Finding]) -> None:
    """Print a table on a terminal, and a line for each row in a file or on a narrow terminal."""
    for tool, tool_findings in groupby(findings, key=lambda finding: finding.tool):
        out.print(Text(one_line(tool) or "all tools together", style="bold"))
        rows = _merged(tool_findings)
        if out.is_terminal and out.width >= _NARROW:
            out.print(_table(rows))
            continue
        for finding, providers in rows:
            place = _place_and_providers(finding, providers)
            message = one_line(finding.message)
            out.print(f"  {finding.effect} {finding.rule}: {message}{place and f' ({place})'}")


def _table(rows: list[_Row]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding, providers in rows:
        text = Text(one_line(finding.message))
        place = _place_and_providers(finding, providers)
        if place:
            text.append(f"\n{place}", style="dim")
        effect = Text(f"  {finding.effect}", style=_STYLES[finding.effect])
        table.add_row(effect, finding.rule, text)
    return table


def _merged(findings: Iterable[Finding]) -> list[_Row]:
    """Merge equal findings for several providers, or of a schema in several places, into rows."""
    merged: dict[tuple[str, ...], tuple[Finding, list[str]]] = {}
    for f in findings:
        _, providers = merged.setdefault((f.effect, f.rule, f.pointer, f.message), (f, []))
        if f.provider:
            providers.append(f.provider)
    rows: dict[tuple[object, ...], list[_Row]] = {}
    for f, providers in merged.values():
        shared_part = f.message.partition(": ")[2] if f.rule == "schema" else (f.pointer, f.message)
        rows.setdefault((f.effect, f.rule, shared_part, *providers), []).append((f, providers))
    return [_as_one_row(row_group) for row_group in rows.values()]


def _as_one_row(rows: list[_Row]) -> _Row:
    """Make one row: `maximum, minimum: …` at the first place, and the number of further places."""
    (first, providers), *others = rows
    if not others:
        return first, providers
    keywords = dict.fromkeys(f.message.partition(": ")[0] for f, _ in rows)
    return msgspec.structs.replace(
        first,
        pointer=f"{first.pointer} and {len(others)} more",
        message=f"{', '.join(keywords)}: {first.message.partition(': ')[2]}",
    ), providers


def _place_and_providers(finding: Finding, providers: list[str]) -> str:
    """Return the place of a finding and the providers that it is about."""
    provider_names = "every provider" if len(providers) == len(FORMS) else ", ".join(providers)
    return "  ".join(part for part in (one_line(finding.pointer), provider_names) if part)


def _counts(findings: list[Finding]) -> dict[str, int]:
    counts = Counter[str](finding.effect for finding in findings)
    return {effect: counts[effect] for effect in _STYLES}


def _closing_line(findings: list[Finding], tools: int) -> str:
    """Return the last line, which counts rows as shown: one for several providers."""
    shown_findings = [
        f
        for _, tool_findings in groupby(findings, key=lambda f: f.tool)
        for f, _ in _merged(tool_findings)
    ]
    counts = ", ".join(f"{number} {effect}" for effect, number in _counts(shown_findings).items())
    return f"{counted(tools, 'tool')}: {counts if shown_findings else 'no findings'}"


@app.command("lock")
def lock(
    where: WhereArgument = None,
    *,
    tools: ToolsOption = None,
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="The lock file.")] = Path(
        LOCK_FILE
    ),
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Write nothing; exit with 1 if the tools differ from the lock."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the tools' digests into a lock file, and say what has changed since the old one.

    With --check, a missing or damaged lock file is a failure, too.
    """
    if file.exists():
        check_no_pipe(file)
    new_lock = lock_catalog(load_catalog(given_once(where, tools)))
    old_lock = read_lock(file) if check else _earlier_lock(file)
    changes = (old_lock or Lock({})).changes_to(new_lock)
    if not check and (changes or old_lock is None or old_lock.format < FORMAT):
        write_lock(new_lock, file)
    if as_json:
        plain = [to_plain(change) for change in changes]
        print_json({"file": str(file), "tools": len(new_lock.tools), "changes": plain})
    else:
        _show_changes(changes, new_lock, file, check=check)
    if check and changes:
        raise typer.Exit(1)


def _earlier_lock(file: Path) -> Lock | None:
    """Read the earlier lock. One that cannot be read is replaced, and a line says so.

    Raises SourceError for a file that never was a lock, which is not overwritten.
    """
    if not file.exists():
        return None
    try:
        return read_lock(file)
    except SourceError as error:
        if not _resembles_lock(file):
            raise SourceError(
                f"{file}: it is not a lock file of toolcrib, so it is not overwritten: name "
                "another --file"
            ) from None
        err.print(one_line(f"the old lock file is ignored: {error}"))
        return None


def _resembles_lock(file: Path) -> bool:
    """Return whether a file is empty, or an unreadable lock, such as one with merge conflicts."""
    try:
        text = file.read_bytes()
    except OSError:
        return False
    return not text.strip() or _MARK_KEY.search(text) is not None


def _show_changes(changes: list[Change], new_lock: Lock, file: Path, *, check: bool) -> None:
    for change in changes:
        out.print(one_line(str(change)))
    tools = counted(len(new_lock.tools), "tool")
    if check:
        verdict = "not as locked" if changes else "as locked"
        out.print(printable(f"{file}: {tools}, {len(changes) or 'all'} {verdict}"))
    else:
        out.print(printable(f"{file}: {tools} locked, {len(changes)} changed"))


# `toolcrib call`: one call through hydration and the runner, and its outcome.


def call(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name.")],
    arguments: Annotated[
        str, typer.Argument(metavar="ARGS", help="One JSON object; - reads it from stdin.")
    ] = "{}",
    *,
    tools: ToolsOption = None,
    database: DataOption = None,
    consent: ConsentOption = None,
    audit: RecordOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run one tool call: checked, permitted, run and recorded like a model's.

    Exits with 1 if the call does not complete, also if its arguments are wrong.
    """
    log = log_to_write(audit, key_file)
    memory_sink = MemorySink()  # has the outcome of the call after Ctrl-C
    sinks: tuple[Sink, ...] = (memory_sink,) if log is None else (memory_sink, log)
    catalog = load_catalog(tools, database=database)
    runner = ToolRunner(
        catalog, approver=approver(consent), sinks=sinks, on_exception=exception_hook()
    )
    text = _read_stdin() if arguments == "-" else arguments
    _check_object(text)
    # The id becomes the idempotency key: the same command, given twice, makes two calls.
    tool_call = ToolCall(f"call_{os.urandom(8).hex()}", tool, text)
    try:
        with stdout_on_stderr():  # a tool's own output is not its result
            outcome = asyncio.run(_run_call(runner, tool_call, log))
    except KeyboardInterrupt:
        if not (as_json and memory_sink.records):
            raise
        print_json({"record": to_plain(memory_sink.records[-1]), "result": None})
        raise InterruptedTurn from None
    _show_outcome(outcome, as_json=as_json)
    if isinstance(outcome, Completed):
        return 0
    message = outcome.model_text if isinstance(outcome, Failed) else ""
    reason = message or _failure_text(outcome.record, catalog, of_kit=not tools)
    err.print(f"toolcrib: {printable(outcome.record.name)}: {reason}")
    return 1


async def _run_call(runner: ToolRunner, tool_call: ToolCall, log: AuditLog | None) -> Outcome:
    async with contextlib.nullcontext() if log is None else log:
        return await runner.exec(tool_call, caller=Caller("cli"))


def _check_object(text: str) -> None:
    """Raise UnusableError for what a model is forgiven (nothing, or null, for no arguments), and
    for `@FILE`, which other programs read as a file."""
    if text.startswith("@"):
        raise UnusableError("ARGS must be one JSON object; to read it from a file: - < FILE")
    parsed = parse_arguments(text)
    if not isinstance(parsed, ParseFailure) and "empty_arguments" in parsed.notes:
        found_text = (
            "null" if text.strip() else "empty"
        )  # the program that wrote it may have failed
        raise UnusableError(
            f"the arguments are {found_text}: leave ARGS out, or give {{}}, if there are none"
        )


def _read_stdin() -> str:
    """Read the arguments, up to one byte more than the limit, which shows that it is exceeded."""
    if sys.stdin is None:
        raise UnusableError("stdin is closed: give the arguments as ARGS")
    try:
        return sys.stdin.buffer.read(MAX_BYTES + 1).decode("utf-8-sig")  # as PowerShell writes it
    except UnicodeDecodeError as error:
        raise SourceError(f"stdin is not UTF-8 at byte {error.start}") from None


def _show_outcome(outcome: Outcome, *, as_json: bool) -> None:
    """Print the result as the model would see it, since whoever runs the command is the application."""
    if as_json:
        body = {"record": to_plain(outcome.record), "result": None}
        if isinstance(outcome, Completed):
            body["result"] = outcome.model
            body |= {"parts": list(to_plain(outcome.model_parts))} if outcome.model_parts else {}
        print_json(body)
    elif isinstance(outcome, Completed):
        if isinstance(outcome.model, str):
            out.print(printable(outcome.model))
        elif outcome.model is not None or not outcome.parts:
            show_json(outcome.model)
        for text in as_texts(outcome.model_parts):
            out.print(printable(text))


def _failure_text(record: ToolInvocationRecord, catalog: Catalog, *, of_kit: bool) -> str:
    """Return why a call did not complete, and what can be done about it."""
    if record.error is None:
        return "it is waiting for an approval"
    text = one_line(str(record.error))
    names = catalog.names
    if record.error.code is ErrorCode.UNKNOWN_TOOL:
        suggestion = did_you_mean(record.name, names)
        place, hint = (
            (" in the kit", "; for your own tools use --tools FILE.py") if of_kit else ("", "")
        )
        sentence = text.partition(".")[0]  # the rest is meant for models
        return f"{sentence}{place}{suggestion}; available: {names_to_try(names, record.name)}{hint}"
    return f"{text} {no_terminal(record)}".rstrip()
