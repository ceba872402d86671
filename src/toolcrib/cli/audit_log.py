"""What the commands about the audit log take: where it is, its key, which entries, which times.

A key is in a file or in the environment, never on a command line, which others on the machine can read.
To look into a log never makes one: a file that is not there is an error.
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar, get_args

import typer

from toolcrib.audit import AuditFilter, AuditLog, Head
from toolcrib.cli.where import UnusableError
from toolcrib.errors import ErrorCode, SourceError
from toolcrib.values.record import RecordStatus

T = TypeVar("T")
LOG = "sqlite:///crib.db"
KEY = "TOOLCRIB_AUDIT_KEY"

Log: TypeAlias = Annotated[
    str,
    typer.Option(
        "--log", metavar="URL", envvar="TOOLCRIB_AUDIT", help="The log, as SQLAlchemy names it."
    ),
]
Record: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--audit", metavar="URL", help="Record calls in this audit log, such as sqlite:///crib.db."
    ),
]
KeyFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--key-file", metavar="FILE", help=f"The log's key; left out, ${KEY} if it is set."
    ),
]
Run: TypeAlias = Annotated[str | None, typer.Option("--run", metavar="ID", help="Of this run.")]
Call: TypeAlias = Annotated[str | None, typer.Option("--call", metavar="ID", help="Of this call.")]
Named: TypeAlias = Annotated[
    str | None, typer.Option("--tool", metavar="NAME", help="Of this tool.")
]
By: TypeAlias = Annotated[
    str | None, typer.Option("--caller", metavar="ID", help="On behalf of this caller.")
]
Status: TypeAlias = Annotated[
    str | None, typer.Option("--status", help=f"One of {', '.join(get_args(RecordStatus))}.")
]
Code: TypeAlias = Annotated[
    str | None, typer.Option("--code", help="Failed with this error code, such as timeout.")
]
Since: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Not before: 2026-11-22T14:30 (UTC if it says no zone), 2h."),
]
Until: TypeAlias = Annotated[str | None, typer.Option(metavar="TIME", help="Before; likewise.")]
Most = Annotated[int | None, typer.Option("--limit", min=1, help="At most so many.")]

_STATUSES: tuple[RecordStatus, ...] = get_args(RecordStatus)
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGO = re.compile(r"([0-9]{1,9})([smhdw])")
_HEAD = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")
_SQLITE = re.compile(r"sqlite(?:\+[a-z]+)?://(?:/([^?]*))?(?:\?.*)?", re.DOTALL)
_PASSWORD = re.compile(r"(://[^:/@]*:).*@", re.DOTALL)
_MAGIC = b"SQLite format 3\0"


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


def log_to_write(url: str, key_file: Path | None) -> AuditLog:
    """A log that is made if it is not there."""
    if "://" not in url:
        raise UnusableError(f"{url}: give the URL of a database, such as {LOG}")
    return AuditLog(url, key=key_of(key_file))


def log_to_read(url: str, key_file: Path | None, *, damaged: bool = False) -> AuditLog:
    """A log that is there. Raises UnusableError if it is not; `damaged` ones, if that is expected."""
    log = log_to_write(url, key_file)
    file = _file_of(url)
    if file is None:
        return log
    if not file.is_file():
        raise UnusableError(f"{url}: there is no such file")
    if not damaged:
        _check(url, file)
    return log


def shown(url: str) -> str:
    """The URL less the password in it."""
    return _PASSWORD.sub(r"\1***@", url)


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


def _file_of(url: str) -> Path | None:
    """The file of a SQLite database; None for a server's, of which nothing is known here."""
    found = _SQLITE.fullmatch(url)
    if found is None or (found[1] or "").startswith("file:"):
        return None
    if found[1] in (None, "", ":memory:"):
        raise UnusableError(f"{url}: a database in memory is gone with its program")
    return Path(found[1])


def _check(url: str, file: Path) -> None:
    """Whether the file is a database that holds a log: to open another one would put tables into it."""
    try:
        with file.open("rb") as opened:
            start = opened.read(len(_MAGIC))
    except OSError as error:
        raise SourceError(f"{url}: {error.strerror}") from None
    if start != _MAGIC:
        raise SourceError(f"{url}: it is not a SQLite database")
    query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'audit_entries'"
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            tables = database.execute(query).fetchone()[0]
    except sqlite3.Error:
        return  # the log says what is wrong with it
    if not tables:
        raise SourceError(f"{url}: there is no audit log in it")
