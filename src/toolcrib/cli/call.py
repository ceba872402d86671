"""`toolcrib call`: one call through hydration and the runner, and what became of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import Annotated

import msgspec
import typer

from toolcrib.audit import AuditLog
from toolcrib.cli.audit_log import KeyFile, Record, log_to_write
from toolcrib.cli.options import Consent, Data, Json, Tools, approver
from toolcrib.cli.render import err, error_text, out, print_json, printable, show_json
from toolcrib.cli.where import UnusableError, load_catalog
from toolcrib.errors import SourceError
from toolcrib.hydrate.parse import MAX_BYTES
from toolcrib.runner import ToolRunner
from toolcrib.values.call import ToolCall
from toolcrib.values.decision import Caller
from toolcrib.values.record import Completed, Outcome


def call(
    tool: Annotated[str, typer.Argument(help="The tool's name.")],
    arguments: Annotated[
        str, typer.Argument(metavar="ARGS", help="One JSON object; - reads it from stdin.")
    ] = "{}",
    *,
    tools: Tools = None,
    database: Data = None,
    consent: Consent = None,
    audit: Record = None,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> int:
    """Run one tool call: checked, permitted, run and recorded like a model's.

    Exits with 1 if the call does not complete, its arguments being wrong included.
    """
    log = log_to_write(audit, key_file)
    sinks = () if log is None else (log,)
    catalog = load_catalog(tools, database=database)
    runner = ToolRunner(catalog, approver=approver(consent), sinks=sinks)
    text = _read_stdin() if arguments == "-" else arguments
    # The id is the tool's idempotency key: the same command, given twice, is two calls.
    asked = ToolCall(f"call_{os.urandom(8).hex()}", "", tool, text)
    with contextlib.redirect_stdout(sys.stderr):  # what a tool prints is not its result
        outcome = asyncio.run(_run(runner, asked, log))
    _show(outcome, as_json=as_json)
    return 0 if isinstance(outcome, Completed) else 1


async def _run(runner: ToolRunner, asked: ToolCall, log: AuditLog | None) -> Outcome:
    async with contextlib.nullcontext() if log is None else log:
        return await runner.exec(asked, caller=Caller("cli"))


def _read_stdin() -> str:
    """A little more than the limit is enough to see that it is exceeded."""
    if sys.stdin is None:
        raise UnusableError("there is no stdin to read the arguments from")
    try:
        return sys.stdin.buffer.read(MAX_BYTES + 1).decode()
    except UnicodeDecodeError as error:
        raise SourceError(f"stdin is not UTF-8 at byte {error.start}") from None


def _show(outcome: Outcome, *, as_json: bool) -> None:
    """The whole result as the model would see it: whoever runs the command is the application."""
    if as_json:
        result = outcome.model if isinstance(outcome, Completed) else None
        print_json({"record": msgspec.to_builtins(outcome.record), "result": result})
    elif isinstance(outcome, Completed):
        if isinstance(outcome.model, str):
            out.print(printable(outcome.model))
        else:
            show_json(outcome.model)
    if not isinstance(outcome, Completed):
        error = outcome.record.error
        text = "it waits for an approval" if error is None else error_text(error)
        err.print(f"toolcrib: {printable(outcome.record.name)}: {text}")
