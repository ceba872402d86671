"""What the commands about the audit log take: where it is, its key, which entries, which times.

A key is in a file or in the environment, never on a command line, which others on the machine can read.
To look into a log never makes one: a file that is not there is an error.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar, get_args

import typer

from toolcrib.audit import AuditFilter, AuditLog, Head
from toolcrib.cli.database import DATABASE, check_holds, check_url, existing_file, shown
from toolcrib.cli.where import UnusableError
from toolcrib.errors import ErrorCode, SourceError
from toolcrib.values.record import RecordStatus

T = TypeVar("T")
LOG = DATABASE
KEY = "TOOLCRIB_AUDIT_KEY"

LogOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--log", metavar="URL", envvar="TOOLCRIB_AUDIT", help="The log, as SQLAlchemy names it."
    ),
]
RecordOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--audit", metavar="URL", help="Record calls in this audit log, such as sqlite:///crib.db."
    ),
]
KeyFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--key-file", metavar="FILE", help=f"The log's key; left out, ${KEY} if it is set."
    ),
]
RunOption: TypeAlias = Annotated[
    str | None, typer.Option("--run", metavar="ID", help="Of this run.")
]
CallOption: TypeAlias = Annotated[
    str | None, typer.Option("--call", metavar="ID", help="Of this call.")
]
NamedOption: TypeAlias = Annotated[
    str | None, typer.Option("--tool", metavar="NAME", help="Of this tool.")
]
ByOption: TypeAlias = Annotated[
    str | None, typer.Option("--caller", metavar="ID", help="On behalf of this caller.")
]
StatusOption: TypeAlias = Annotated[
    str | None, typer.Option("--status", help=f"One of {', '.join(get_args(RecordStatus))}.")
]
CodeOption: TypeAlias = Annotated[
    str | None, typer.Option("--code", help="Failed with this error code, such as timeout.")
]
SinceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Not before: 2026-11-22T14:30 (UTC if it says no zone), 2h."),
]
UntilOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TIME", help="Before; likewise.")
]
MostOption: TypeAlias = Annotated[
    int | None, typer.Option("--limit", min=1, help="At most so many.")
]

_STATUSES: tuple[RecordStatus, ...] = get_args(RecordStatus)
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGO = re.compile(r"([0-9]{1,9})([smhdw])")
_HEAD = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")


def asked(
    *, status: str | None, code: str | None, since: str | None, until: str | None, **ids: str | None
) -> AuditFilter:
    """Raises UnusableError for a status, a code or a time that there is not."""
    return AuditFilter(
        run_id=ids.get("run"),
        call_id=ids.get("call"),
        tool=ids.get("tool"),
        caller=ids.get("caller"),
        status=_status(status),
        code=None if code is None else _code(code),
        since=None if since is None else moment("--since", since),
        until=None if until is None else moment("--until", until),
    )


def moment(option: str, text: str) -> float:
    """Seconds since the epoch, of an ISO 8601 time or of so long ago: `30m`, `2h`, `3d`."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return time.time() - int(ago[1]) * _SECONDS[ago[2]]
    try:
        given = datetime.fromisoformat(text)
        return (given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise UnusableError(
            f"{option} {text}: give a time such as 2026-11-22T14:30, or how long ago: 30m, 2h, 3d"
        ) from None


def head_of(text: str) -> Head:
    """`SEQ:HASH`, as `verify` prints it."""
    found = _HEAD.fullmatch(text)
    if found is None:
        raise UnusableError("--head: give SEQ:HASH, as verify has printed it")
    return Head(int(found[1]), found[2])


def log_to_write(url: str | None, key_file: Path | None) -> AuditLog | None:
    """Return the log that calls are recorded in, if there is to be one; it is made if it is not there.

    It is opened once here: where nothing can be recorded, no tool runs and no model is asked.
    Raises UnusableError for a log that cannot be written to.
    """
    if url is None:
        if key_file is not None:
            raise UnusableError("--key-file is the key of a log: give --audit URL")
        return None
    check_url(url)
    log = AuditLog(url, key=key_of(key_file))
    try:
        used(log, AuditLog.open)
    except SourceError as error:
        raise UnusableError(f"--audit {shown(url)}: {error}") from None
    return log


def log_to_read(url: str, key_file: Path | None, *, damaged: bool = False) -> AuditLog:
    """A log that is there. Raises UnusableError if it is not; `damaged` ones, if that is expected."""
    if damaged:
        existing_file(url)
    else:
        check_holds("audit_entries", url, "there is no audit log in it")
    return AuditLog(url, key=key_of(key_file))


def used(log: AuditLog, work: Callable[[AuditLog], Awaitable[T]]) -> T:
    """What `work` gives; the log is closed after it."""

    async def opened() -> T:
        async with log:
            return await work(log)

    return asyncio.run(opened())


def key_of(file: Path | None) -> bytes | None:
    """The key, less one line feed at its end. Raises UnusableError if it is named, and not there."""
    if file is None:
        return os.fsencode(os.environ.get(KEY, "")) or None
    try:
        key = file.read_bytes().removesuffix(b"\n").removesuffix(b"\r")
    except OSError as error:
        raise UnusableError(f"--key-file {file}: {error.strerror}") from None
    if not key:
        raise UnusableError(f"--key-file {file}: it is empty")
    return key


def _status(given: str | None) -> RecordStatus | None:
    for known in _STATUSES:
        if given == known:
            return known
    if given is not None:
        raise UnusableError(f"--status {given}: there are {', '.join(_STATUSES)}")
    return None


def _code(given: str) -> ErrorCode:
    try:
        return ErrorCode(given)
    except ValueError:
        raise UnusableError(f"--code {given}: there are {', '.join(ErrorCode)}") from None
