"""Options that several commands share."""

from __future__ import annotations

import sys
import traceback
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from toolcrib.approvals import TerminalApprover
from toolcrib.runner.stopped import ExceptionHook
from toolcrib.values.call import ToolCall
from toolcrib.values.decision import Answer, ApprovalRequest, Approve, Approver, Refuse

ToolsOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--tools",
        metavar="WHERE",
        help="module:attribute, a module, a Python file, a .json/.jsonl file of definitions, or "
        "entry-points[:NAME]; the kit if left out.",
    ),
]
DataOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--database",
        metavar="FILE",
        help="Give the kit a SQLite file that its tools may read, and cannot change.",
    ),
]
WhereArgument: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="WHERE", help="The same as --tools WHERE.")
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON value on stdout.")]
ConsentOption: TypeAlias = Annotated[
    bool | None,
    typer.Option("--yes/--no", help="Approve or refuse every risky call without asking."),
]


class InterruptedTurn(Exception):  # noqa: N818  an ending, not a failure
    """Ctrl-C ended a command with `--json` that has printed what ran until then."""


SHOWS_TRACEBACKS: ContextVar[bool] = ContextVar("toolcrib_debug", default=False)
"""Whether `--debug` was given, wherever on the command line."""


def exception_hook() -> ExceptionHook | None:
    """With `--debug`: what a tool raises, as Python prints it. Else the log's line has to do."""

    def shown(_call: ToolCall, raised: BaseException) -> None:
        traceback.print_exception(raised, file=sys.stderr)

    return shown if SHOWS_TRACEBACKS.get() else None


def approver(consent: bool | None) -> Approver:
    """Asks at the terminal unless the command line has answered already."""
    if consent is None:
        return TerminalApprover()

    async def answered(_request: ApprovalRequest) -> Answer:
        if consent:
            return Approve(by="--yes")
        return Refuse("refused by --no", by="--no")

    return answered
