"""`toolcrib audit list` and `show`: what happened to calls, according to the audit log.

`audit_check` has the commands about the log itself.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from toolcrib.audit import AuditEntry, AuditFilter, AuditLog, RunRecord
from toolcrib.cli.audit_check import (
    check_inclusion,
    checkpoint,
    exit_if_changed,
    export,
    head,
    keygen,
    migrate,
    prove,
    prune,
    verify,
)
from toolcrib.cli.audit_story import (
    CHANGED,
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
    EntryOption,
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
    named_entry,
    with_log,
    without_password,
)
from toolcrib.cli.render import milliseconds, out, print_json, print_rows, printable, shortened
from toolcrib.values.json import to_plain

SHOWN = 50
_COLUMNS = {
    "time": False,
    "run": True,
    "call": True,
    "tool": True,
    "outcome": True,
    "decision": True,
    "took": False,
    "entry": True,
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
    far as the log knows. In a file or a pipe, columns are apart by tabs. The last one is the number of
    the entry, for `show --entry`. Exits with 1 if an entry is not as it was written, and marks it.
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
        print_json([to_plain(entry) for entry in rows])
    else:
        print_rows([_row(entry) for entry in rows], _COLUMNS)
    exit_if_changed(sum(not entry.intact for entry in rows))


@app.command("show")
def show(
    wanted: Annotated[
        str, typer.Argument(metavar="[ID]", help="A run's id, a call's, or both: RUN/CALL.")
    ] = "",
    *,
    seq: EntryOption = None,
    log: LogOption = DATABASE,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what happened to each call of a run, or to one call, and why it ran or did not.

    Also where it came from: caller, agent, model, prompt, the choice of tools, the definition in
    force, the call that made it. Exits with 1 if an entry is not as it was written, and marks it.
    """
    named = named_entry(wanted, seq)

    async def read(opened: AuditLog) -> tuple[list[CallStory], list[tuple[RunRecord, bool]]]:
        if seq is not None:
            return await whole_stories(opened, await _with_entry(opened, seq)), []
        entries = await _entries_of(opened, wanted)
        return await whole_stories(opened, entries), await opened.checked_runs(wanted)

    calls, runs = with_log(log_to_read(log, key_file), read)
    if not calls and not runs:
        raise UnusableError(f"{without_password(log)}: there is no {named} in it")
    if as_json:
        print_json(
            {
                "id": wanted,
                "entry": seq,
                "runs": [{**to_plain(run), "intact": intact} for run, intact in runs],
                "calls": [_story(call) for call in calls],
            }
        )
    else:
        _print_stories(calls, runs)
    changed = {entry.seq for call in calls for entry in call.changed}
    hidden = sum(not call.whole for call in calls)
    exit_if_changed(len(changed) + hidden + sum(not intact for _, intact in runs))


async def _entries_of(log: AuditLog, wanted: str) -> list[AuditEntry]:
    """Return the entries of a run, of calls with that id, and of RUN/CALL.

    Ids are the provider's: one that looks like RUN/CALL hides nothing, and may have a slash itself.
    One that is a number is an id, never an entry's number, which is another call's.
    """
    filters = [AuditFilter(run_id=wanted), AuditFilter(call_id=wanted)]
    slashes = [at for at, character in enumerate(wanted) if character == "/"]
    filters += [AuditFilter(run_id=wanted[:at], call_id=wanted[at + 1 :]) for at in slashes if at]
    entries = {entry.seq: entry for asked in filters for entry in await log.entries(asked)}
    return [entries[seq] for seq in sorted(entries)]


async def _with_entry(log: AuditLog, seq: int) -> list[AuditEntry]:
    """Return the entries of the call that an entry is about."""
    found = await log.entry(seq)
    if found is None:
        return []
    one = found.record
    others = await log.entries(AuditFilter(run_id=one.run_id, call_id=one.id))
    if one.id:
        return others or [found]
    # calls that came without an id have nothing in common but that
    whose = (one.idempotency_key, one.started_at)
    return [e for e in others if (e.record.idempotency_key, e.record.started_at) == whose]


def _print_stories(calls: list[CallStory], runs: list[tuple[RunRecord, bool]]) -> None:
    for run, intact in runs:
        mark = "" if intact else f"  ({CHANGED})"
        out.print(printable(f"{run_line(run)}{mark}").replace("\n", " "))
    if runs and calls:
        out.print()
    for number, call in enumerate(calls):
        if number:
            out.print()
        _print_story(call)


def _row(entry: AuditEntry) -> tuple[str, ...]:
    record = entry.record
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
            f"{entry.seq}" if entry.intact else f"{entry.seq} ({CHANGED})",
        )
    )


def _cell(text: str) -> str:
    return shortened(printable(text).replace("\n", " ").replace("\t", " "))


def _story(call: CallStory) -> dict[str, Any]:
    record = call.record
    entries = [to_plain(entry) for entry in call.entries]
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
        "whole": call.whole,
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
