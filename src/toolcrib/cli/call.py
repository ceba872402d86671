"""`toolcrib call`: one call through hydration and the runner, and its outcome."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

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
    approver,
    exception_hook,
    load_catalog,
    log_to_write,
    names_to_try,
)
from toolcrib.cli.render import err, error_text, out, print_json, printable, show_json
from toolcrib.errors import (
    ErrorCode,
    SourceError,
    did_you_mean,
)
from toolcrib.hydration.parse import MAX_BYTES
from toolcrib.runner import ToolRunner
from toolcrib.testing import MemorySink
from toolcrib.values.call import ToolCall
from toolcrib.values.decision import Caller
from toolcrib.values.json import to_plain
from toolcrib.values.record import Completed, Outcome, Sink, ToolInvocationRecord


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

    Exits with 1 if the call does not complete, its arguments being wrong included.
    """
    log = log_to_write(audit, key_file)
    written = MemorySink()  # has, after Ctrl-C, the outcome of the call
    sinks: tuple[Sink, ...] = (written,) if log is None else (written, log)
    catalog = load_catalog(tools, database=database)
    runner = ToolRunner(
        catalog, approver=approver(consent), sinks=sinks, on_exception=exception_hook()
    )
    text = _read_stdin() if arguments == "-" else arguments
    # The id is the tool's idempotency key: the same command, given twice, is two calls.
    asked = ToolCall(f"call_{os.urandom(8).hex()}", tool, text)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what a tool prints is not its result
            outcome = asyncio.run(_run(runner, asked, log))
    except KeyboardInterrupt:
        if not (as_json and written.records):
            raise
        print_json({"record": to_plain(written.records[-1]), "result": None})
        raise InterruptedTurn from None
    _show(outcome, as_json=as_json)
    if isinstance(outcome, Completed):
        return 0
    why = _why(outcome.record, catalog.names, consent)
    err.print(f"toolcrib: {printable(outcome.record.name)}: {why}")
    return 1


async def _run(runner: ToolRunner, asked: ToolCall, log: AuditLog | None) -> Outcome:
    async with contextlib.nullcontext() if log is None else log:
        return await runner.exec(asked, caller=Caller("cli"))


def _read_stdin() -> str:
    """Read the arguments; one byte more than the limit shows that it is exceeded."""
    if sys.stdin is None:
        raise UnusableError("there is no stdin to read the arguments from")
    try:
        return sys.stdin.buffer.read(MAX_BYTES + 1).decode()
    except UnicodeDecodeError as error:
        raise SourceError(f"stdin is not UTF-8 at byte {error.start}") from None


def _show(outcome: Outcome, *, as_json: bool) -> None:
    """Print the whole result as the model would see it: whoever runs the command is the application."""
    if as_json:
        result = outcome.model if isinstance(outcome, Completed) else None
        print_json({"record": to_plain(outcome.record), "result": result})
    elif isinstance(outcome, Completed):
        if isinstance(outcome.model, str):
            out.print(printable(outcome.model))
        else:
            show_json(outcome.model)


def _why(record: ToolInvocationRecord, names: Sequence[str], consent: bool | None) -> str:
    """Return why a call did not complete, and what can be done about it."""
    if record.error is None:
        return "it waits for an approval"
    text = error_text(record.error)
    if record.error.code is ErrorCode.UNKNOWN_TOOL:
        likely = did_you_mean(record.name, names)
        return f"{text.removesuffix('.')}{likely}: {names_to_try(names, record.name)}"
    asked = sys.stdin is not None and sys.stdin.isatty()
    if record.error.code is ErrorCode.APPROVAL_REQUIRED and consent is None and not asked:
        return f"{text} There is no terminal to ask at: --yes approves it."
    return text
