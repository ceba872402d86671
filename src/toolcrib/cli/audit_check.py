"""`toolcrib audit verify|head|migrate|export|prune`: whether the log is as it was, a copy, less of it.

`verify` exits with 1 if something is not as it was written, and with UNSEALED if nothing is, but nobody
can tell whether something is missing at the start or at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import typer

from toolcrib.audit import Head, Verification, verify_jsonl
from toolcrib.cli import audit_log as given
from toolcrib.cli.audit_checkpoint import CheckpointOption, PublicKeyOption
from toolcrib.cli.audit_checkpoint import opened as opened_checkpoint
from toolcrib.cli.audit_story import when
from toolcrib.cli.database import existing_file, shown
from toolcrib.cli.options import JsonOption
from toolcrib.cli.render import json_text, out, print_json, printable
from toolcrib.cli.where import UnusableError
from toolcrib.errors import SourceError
from toolcrib.storage import mode_of

UNSEALED = 3


def verify(
    *,
    log: given.LogOption = given.LOG,
    key_file: given.KeyFileOption = None,
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="SEQ:HASH", help="What an earlier verify has printed."),
    ] = None,
    checkpoint: CheckpointOption = None,
    public_key: PublicKeyOption = None,
    jsonl: Annotated[
        Path | None, typer.Option("--jsonl", metavar="FILE", help="Check an export instead.")
    ] = None,
    filtered: Annotated[
        bool, typer.Option("--filtered", help="The export was made with a filter.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check that every entry is as it was written; exits with 1 at the first that is not.

    With --checkpoint, also that the log still begins with what was signed then, whoever changed it.
    Exits with 3 if all is as written, but start and tail are not sealed: a log of format 1, an export
    that was cut. Prints the head: kept elsewhere and given to a later --head, it shows what a
    recomputed chain would hide.
    """
    if filtered and jsonl is None:
        raise UnusableError("--filtered is about an export: give --jsonl FILE")
    kept = None if head is None else given.head_of(head)
    signed = opened_checkpoint(checkpoint, public_key)
    if signed is not None and jsonl is not None:
        raise UnusableError("--checkpoint is about a log: leave --jsonl out")
    if jsonl is not None:
        where, found = str(jsonl), _verify_file(jsonl, key_file, kept, filtered=filtered)
    else:
        opened = given.log_to_read(log, key_file, damaged=True)
        where, found = (
            shown(log),
            given.used(opened, lambda audit: audit.verify(head=kept, checkpoint=signed)),
        )
    if as_json:
        told = {"log": where, "ok": found.ok, "sealed": found.sealed or filtered}
        print_json({**told, **msgspec.to_builtins(found)})
    else:
        _say(where, found)
        if found.ok and signed is not None and signed.rotates_to is not None:
            out.print(printable(f"from this checkpoint on the key is {signed.rotates_to}"))
    if not found.ok:
        raise typer.Exit(1)
    if not found.sealed and not filtered:
        raise typer.Exit(UNSEALED)


def head(
    *,
    log: given.LogOption = given.LOG,
    key_file: given.KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the head, without checking the whole log: to be kept elsewhere, for a later --head."""
    found = given.used(given.log_to_read(log, key_file), lambda audit: audit.head())
    if as_json:
        print_json({"log": shown(log), **msgspec.to_builtins(found)})
    else:
        out.print(f"{found.seq}:{found.hash}")


def migrate(
    *,
    log: given.LogOption = given.LOG,
    key_file: given.KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring an older log to the newest format, once it is verified: its start and tail are sealed."""
    done = given.used(given.log_to_read(log, key_file), lambda audit: audit.migrate())
    if as_json:
        print_json({"log": shown(log), "migrated": done})
    else:
        told = "is sealed from here on" if done else "is of the newest format already"
        out.print(printable(f"{shown(log)}: {told}"))


def export(  # noqa: PLR0913  the options of a command line
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Where to; left out, to stdout.")
    ] = None,
    *,
    log: given.LogOption = given.LOG,
    key_file: given.KeyFileOption = None,
    run: given.RunOption = None,
    call: given.CallOption = None,
    tool: given.NamedOption = None,
    caller: given.ByOption = None,
    status: given.StatusOption = None,
    code: given.CodeOption = None,
    since: given.SinceOption = None,
    until: given.UntilOption = None,
    limit: given.MostOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write entries as JSON lines, the oldest first; a FILE whole or not at all.

    `verify --jsonl FILE` checks them. With --json, what has been written to FILE is told as JSON.
    """
    which = given.asked(
        run=run,
        call=call,
        tool=tool,
        caller=caller,
        status=status,
        code=code,
        since=since,
        until=until,
    )
    which = msgspec.structs.replace(which, limit=limit)
    if file is None and as_json:
        raise UnusableError("--json tells of a FILE: name it")
    if file is not None and _is_part_of(file, log):
        raise UnusableError(f"{file}: it is the log itself: name another file")
    opened = given.log_to_read(log, key_file)
    if file is None:
        given.used(opened, lambda audit: _print_lines(audit.export(which)))
        return
    written = given.used(opened, lambda audit: _write_lines(audit.export(which), file))
    if as_json:
        print_json({"file": str(file), "entries": written})
    else:
        out.print(printable(f"{file}: {_entries(written)} written"))


def prune(
    *,
    before: Annotated[
        str, typer.Option("--before", metavar="TIME", help="Such as 2026-11-22, or 90d.")
    ],
    log: given.LogOption = given.LOG,
    key_file: given.KeyFileOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove the oldest entries, for good; the log keeps, in its chain, that this was done."""
    limit = given.moment("--before", before)
    opened = given.log_to_read(log, key_file)
    if not yes:
        if as_json or sys.stdin is None or not sys.stdin.isatty():
            raise UnusableError("nobody can be asked here: give --yes")
        typer.confirm(f"Remove all entries before {when(limit)} from the log?", abort=True)
    removed = given.used(opened, lambda audit: audit.prune(before=limit))
    if as_json:
        print_json({"log": shown(log), "before": limit, "removed": removed})
    else:
        out.print(printable(f"{shown(log)}: {_entries(removed)} removed"))


def _say(where: str, found: Verification) -> None:
    if found.fault is None:
        torn = "; the last line was cut, and is not counted" if found.torn else ""
        out.print(printable(f"{where}: {_entries(found.checked)}, all as written{torn}"))
        if found.format == 1:
            out.print("format 1: start and tail are not sealed; `toolcrib audit migrate` does that")
        out.print(f"head {found.head.seq}:{found.head.hash}")
        return
    place = "" if found.fault.seq is None else f"entry {found.fault.seq}: "
    out.print(printable(f"{where}: {place}{found.fault.what}").replace("\n", " "))
    out.print(f"{_entries(found.checked)} checked up to there")


def _verify_file(
    file: Path, key_file: Path | None, kept: Head | None, *, filtered: bool
) -> Verification:
    try:
        # what is not UTF-8 is no entry, and is found to be none
        with file.open(encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
            return verify_jsonl(lines, key=given.key_of(key_file), head=kept, filtered=filtered)
    except OSError as error:
        raise UnusableError(f"--jsonl {file}: {error.strerror}") from None


def _is_part_of(file: Path, url: str) -> bool:
    """Whether a file is that of a SQLite database, or one of those that it keeps beside it."""
    log = existing_file(url)
    own = () if log is None else (f"{os.path.realpath(log)}{end}" for end in ("", "-wal", "-shm"))
    return os.path.realpath(file) in own


async def _print_lines(lines: AsyncIterator[str]) -> None:
    """As they are, for `verify`; but a terminal is shown nothing that it would act upon."""
    if sys.stdout is None:
        raise UnusableError("there is no stdout to write to: name a FILE")
    async for line in lines:
        shown = f"{json_text(json.loads(line))}\n" if out.is_terminal else line
        sys.stdout.buffer.write(shown.encode())
    sys.stdout.flush()


async def _write_lines(lines: AsyncIterator[str], target: Path) -> int:
    """How many were written."""
    written = 0
    try:
        with _opened(target) as file:
            async for line in lines:
                file.write(line.encode())
                written += line.startswith('{"at":') and not line.endswith('"seq":0}\n')
    except OSError as error:
        raise SourceError(f"{target}: the export cannot be written ({error.strerror})") from None
    return written


@contextlib.contextmanager
def _opened(target: Path) -> Iterator[BinaryIO]:
    """Written beside its place, then moved there in one step; only the owner can read it.

    What is there and is no file (a pipe, a device) stays what it is, and is written to.
    """
    if target.exists() and not target.is_file():
        with target.open("wb") as other:
            yield other
        return
    place = Path(os.path.realpath(target))  # a link stays one
    handle, name = tempfile.mkstemp(prefix=".export.", suffix=".part", dir=place.parent)
    try:
        with os.fdopen(handle, "wb") as part:
            yield part
            if place.exists() and os.name == "posix":
                os.fchmod(handle, mode_of(place))  # a file that is replaced keeps its own
            part.flush()
            os.fsync(part.fileno())
        Path(name).replace(place)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def _entries(count: int) -> str:
    return f"{count} entr{'y' if count == 1 else 'ies'}"
