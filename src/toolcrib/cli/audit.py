"""`toolcrib audit list` and `show`: what happened to calls, according to the audit log.

`audit_check` has the commands about the log itself.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from toolcrib.audit import AuditFilter, AuditLog, RunRecord
from toolcrib.cli.audit_check import (
    check_inclusion,
    checkpoint,
    export,
    head,
    keygen,
    migrate,
    prove,
    prune,
    verify,
)
from toolcrib.cli.audit_story import (
    CallStory,
    StoryLine,
    decision_of,
    ids_of,
    outcome,
    run_line,
    when,
    whole_stories,
)
from toolcrib.cli.options import (
    DATABASE,
    CallerOption,
    CallOption,
    CodeOption,
    JsonOption,
    KeyFileOption,
    LogOption,
    RunOption,
    SinceOption,
    StatusOption,
    ToolNameOption,
    UntilOption,
    UnusableError,
    filter_of,
    log_to_read,
    with_log,
    without_password,
)
from toolcrib.cli.render import milliseconds, out, print_json, print_rows, printable, shortened
from toolcrib.values.record import ToolInvocationRecord

SHOWN = 50
_COLUMNS = {
    "time": False,
    "run": True,
    "call": True,
    "tool": True,
    "outcome": True,
    "decision": True,
    "took": False,
}

app = typer.Typer(no_args_is_help=True, help="Read, check and export the audit log.")


@app.command("list")
def list_calls(  # noqa: PLR0913  the options of a command line
    *,
    log: LogOption = DATABASE,
    key_file: KeyFileOption = None,
    run: RunOption = None,
    call: CallOption = None,
    tool: ToolNameOption = None,
    caller: CallerOption = None,
    status: StatusOption = None,
    code: CodeOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Annotated[int, typer.Option(min=1, help="At most N.")] = SHOWN,
    as_json: JsonOption = False,
) -> None:
    """List calls, the newest first: when, which, how they ended, what was decided.

    Of a call that has ended only that is listed: `started` and `waiting` are those that have not, as
    far as the log knows. In a file or a pipe, columns are apart by tabs.
    """
    which = filter_of(
        run=run,
        call=call,
        tool=tool,
        caller=caller,
        status=status,
        code=code,
        since=since,
        until=until,
    )
    which = msgspec.structs.replace(which, newest=True, latest=True, limit=limit)
    opened = log_to_read(log, key_file)
    rows = with_log(opened, lambda audit: audit.entries(which))
    if as_json:
        print_json([msgspec.to_builtins(entry) for entry in rows])
        return
    print_rows([_row(entry.record) for entry in rows], _COLUMNS)


@app.command("show")
def show(
    wanted: Annotated[
        str, typer.Argument(metavar="ID", help="A run's id, a call's, or both: RUN/CALL.")
    ],
    *,
    log: LogOption = DATABASE,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what happened to each call of a run, or to one call, and why it ran or did not.

    Also where it came from: caller, agent, model, prompt, the choice of tools, the definition in
    force, the call that made it.
    """

    async def read(opened: AuditLog) -> tuple[list[CallStory], list[RunRecord]]:
        run, _, call = wanted.rpartition("/")
        runs = await opened.runs(wanted)
        filters = [AuditFilter(run_id=wanted), AuditFilter(call_id=wanted)]
        filters += [AuditFilter(run_id=run, call_id=call)] if run else []
        for asked in filters:
            if entries := await opened.entries(asked):
                return await whole_stories(opened, entries), runs
        return [], runs

    calls, runs = with_log(log_to_read(log, key_file), read) if wanted else ([], [])
    if not calls and not runs:
        raise UnusableError(
            f"{without_password(log)}: there is no run and no call '{wanted}' in it"
        )
    if as_json:
        print_json(
            {
                "id": wanted,
                "runs": [msgspec.to_builtins(run) for run in runs],
                "calls": [_story(call) for call in calls],
            }
        )
        return
    for run in runs:
        out.print(printable(run_line(run)).replace("\n", " "))
    if runs and calls:
        out.print()
    for number, call in enumerate(calls):
        if number:
            out.print()
        _print_story(call)


def _row(record: ToolInvocationRecord) -> tuple[str, ...]:
    return tuple(
        _cell(text)
        for text in (
            when(record.started_at),
            record.run_id,
            record.id,
            record.name,
            outcome(record),
            decision_of(record),
            milliseconds(record),
        )
    )


def _cell(text: str) -> str:
    return shortened(printable(text).replace("\n", " ").replace("\t", " "))


def _story(call: CallStory) -> dict[str, Any]:
    record = call.record
    entries = [msgspec.to_builtins(entry) for entry in call.entries]
    about = {"run_id": record.run_id, "id": record.id, "name": record.name}
    attached = {
        digest: {"kind": found.kind, "text": json.loads(found.text)}
        for digest, found in call.attachments.items()
    }
    callers = [_story(caller) for caller in call.callers]
    return {
        **about,
        "why": call.why(),
        "entries": entries,
        "attachments": attached,
        "called_by": callers,
    }


def _print_story(call: CallStory) -> None:
    title = Text().append(_cell(call.record.name), style="bold")
    title.append(_cell(f"  {ids_of(call.record)}"), style="dim")
    out.print(title)
    for line in call.lines():
        _print_line(line)


def _print_line(line: StoryLine) -> None:
    text = Text().append(f"  {line.at:<24}  ", style="dim")
    text.append(f"{line.what:<11} ", style="bold")
    text.append(printable(line.text).replace("\n", " "))
    text.rstrip()
    out.print(text)


app.command("verify")(verify)
app.command("head")(head)
app.command("migrate")(migrate)
app.command("keygen")(keygen)
app.command("checkpoint")(checkpoint)
app.command("prove")(prove)
app.command("verify-inclusion")(check_inclusion)
app.command("export")(export)
app.command("prune")(prune)
