"""The commands of `toolcrib audit` about the log itself: verifying, copying and pruning it.

`verify`, `head`, `migrate`, `export` and `prune`. For proofs that are kept elsewhere and reveal
later changes: `keygen`, `checkpoint`, `prove` and `verify-inclusion`.

Rules: `verify` exits with 1 if an entry is not as it was written, with UNSEALED if all entries are
as written but some may be missing at the start or at the end, and with 4 if the log could not be
checked. A checkpoint overwrites only a checkpoint, and a proof only a proof, so that a file named
by mistake, such as the log or a key, is not lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, TypeAlias

import typer

from toolcrib.audit import (
    AuditFilter,
    AuditLog,
    Checkpoint,
    Head,
    PublicKey,
    SigningKey,
    Verification,
    verify_inclusion,
    verify_jsonl,
)
from toolcrib.audit.checkpoint import Proof
from toolcrib.cli.options import (
    DATABASE,
    CallerOption,
    CallOption,
    CodeOption,
    EntryOption,
    JsonOption,
    KeyFileOption,
    LimitOption,
    LogOption,
    RunOption,
    SinceOption,
    StatusOption,
    ToolNameOption,
    UncheckedError,
    UntilOption,
    UnusableError,
    check_no_pipe,
    existing_file,
    head_of,
    key_of,
    log_to_read,
    moment,
    named_entry,
    narrowed,
    of_log,
)
from toolcrib.cli.render import err, json_text, one_line, out, print_json, printable, when
from toolcrib.errors import MissingExtraError, SourceError, ToolcribError
from toolcrib.storage import mode_of, replacing
from toolcrib.urls import without_password
from toolcrib.values.json import to_plain

SigningKeyOption: TypeAlias = Annotated[
    Path, typer.Option("--signing-key", metavar="FILE", help="The file that `audit keygen` wrote.")
]
PublicKeyOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--public-key",
        metavar="KEY",
        help="The public key to trust: NAME+ID+KEY, or a file that holds it.",
    ),
]
CheckpointOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint", metavar="FILE", help="A checkpoint that you kept outside the log."
    ),
]
FileArgument: TypeAlias = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="The file to write; stdout if - or left out.")
]


def keygen(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write; it must not exist yet.")
    ],
    *,
    name: Annotated[
        str,
        typer.Option("--name", metavar="NAME", help="The log's name, such as example.com/shop."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Make a key that signs checkpoints, in a file that only its owner can read, and print the
    public key.

    Keep the file in another place than the log, and give the public key to those who verify.
    """
    public = str(SigningKey.generate(name, file).public)
    if as_json:
        print_json({"file": str(file), "public_key": public})
    else:
        out.print(printable(public))


def checkpoint(
    file: FileArgument = None,
    *,
    log: LogOption = DATABASE,
    key_file: KeyFileOption = None,
    signing_key: SigningKeyOption,
    after: Annotated[
        Path | None,
        typer.Option(
            "--after", metavar="FILE", help="An earlier checkpoint that the log must still match."
        ),
    ] = None,
    rotates_to: Annotated[
        Path | None,
        typer.Option("--rotate-to", metavar="FILE", help="A new signing key: both keys sign."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Sign the current state of the log. A checkpoint that is kept elsewhere reveals every later
    change (`verify --checkpoint`).

    With --after, the command signs only if the log still begins with what that checkpoint covers.
    """
    key = SigningKey.load(signing_key)
    new_key = None if rotates_to is None else SigningKey.load(rotates_to)
    earlier_note = None if after is None else read_checkpoint("--after", after)
    audit_log = log_to_read(log, key_file)
    note = of_log(
        log, audit_log, lambda audit: audit.checkpoint(key, after=earlier_note, rotates_to=new_key)
    )
    _write_output(note, file, Checkpoint.read, as_json=as_json)
    if as_json:
        signed = Checkpoint.read(note)
        print_json({"log": without_password(log), "size": signed.size, "checkpoint": note})


def prove(
    wanted: Annotated[
        str | None, typer.Argument(metavar="ID", help="A call's id; leave it out with --entry.")
    ] = None,
    file: FileArgument = None,
    *,
    seq: EntryOption = None,
    log: LogOption = DATABASE,
    key_file: KeyFileOption = None,
    kept: Annotated[
        Path,
        typer.Option("--checkpoint", metavar="FILE", help="A checkpoint made after the entry."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Write a proof that an entry is in the log that a checkpoint covers. `verify-inclusion` checks
    it."""
    if seq is not None and file is None and wanted:  # the only argument is the file
        file, wanted = Path(wanted), None
    subject = named_entry(wanted, seq)
    note = read_checkpoint("--checkpoint", kept)

    async def prove_entry(audit: AuditLog) -> str:
        if wanted is None:
            return await audit.prove(seq or 0, note)
        last_entry = await audit.last(wanted)
        if last_entry is None:
            raise UnusableError(f"{without_password(log)}: it has no {subject}")
        return await audit.prove(last_entry.seq, note)

    proof = of_log(log, log_to_read(log, key_file), prove_entry)
    _write_output(proof, file, Proof.parse, as_json=as_json)
    if as_json:
        identity = {"log": without_password(log), "id": wanted or "", "entry": seq}
        print_json({**identity, "proof": proof})


def check_inclusion(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The proof that `audit prove` wrote.")
    ],
    *,
    public_key: PublicKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a proof without any log, and show its entry. Exits with 1 if it proves nothing."""
    entry = json.loads(verify_inclusion(read_text(file), *public_keys(public_key)))
    if as_json:
        print_json({"file": str(file), "ok": True, "entry": entry})
    else:
        out.print(printable(f"{file}: entry {entry['seq']} is in the log"))
        out.print(json_text(entry))


def verified_checkpoint(file: Path | None, keys: list[str] | None) -> Checkpoint | None:
    """Read a checkpoint and check its signatures. Return None if no file is given."""
    if file is None:
        if keys:
            raise UnusableError("--public-key needs --checkpoint FILE")
        return None
    return Checkpoint.opened(read_checkpoint("--checkpoint", file), *public_keys(keys))


def public_keys(texts: list[str] | None) -> list[PublicKey]:
    if not texts:
        raise UnusableError(
            "give the log's --public-key: the key in the file being checked is not trusted"
        )
    return [_public_key(text) for text in texts]


def _public_key(key_or_file: str) -> PublicKey:
    text = key_or_file if "+" in key_or_file else read_text(Path(key_or_file), "--public-key ")
    try:
        return PublicKey.parse(text)
    except SourceError as error:
        raise UnusableError(f"--public-key {key_or_file}: {error}") from None


def read_checkpoint(option: str, file: Path) -> str:
    """Return the text of a checkpoint. Raises UnusableError, which names option and file, for
    anything else."""
    note = read_text(file, f"{option} ")
    try:
        Checkpoint.read(note)
    except SourceError as error:
        raise UnusableError(f"{option} {file}: it is not a checkpoint ({error})") from None
    return note


def read_text(file: Path, option: str = "") -> str:
    try:
        check_no_pipe(file)
        return file.read_bytes().decode()
    except OSError as error:
        raise UnusableError(f"{option}{file}: {error.strerror}") from None
    except UnicodeError:
        raise UnusableError(f"{option}{file}: it is not UTF-8 text") from None


def _write_output(
    text: str, file: Path | None, parse: Callable[[str], object], *, as_json: bool
) -> None:
    """Write a text to its file, or to stdout if nothing else is printed there.

    Raises UnusableError if the file holds something that `parse` does not accept.
    """
    file = _output_file(file)
    if file is None:
        if not as_json:
            typer.echo(text, nl=False)
        return
    if file.is_file() and file.stat().st_size:
        try:
            parse(read_text(file))
        except ToolcribError:
            raise UnusableError(
                f"{file}: it already holds something else: name another file"
            ) from None
    try:
        with replacing(file) as target:
            target.write(text.encode())
    except OSError as error:
        raise SourceError(f"{file}: {error.strerror}") from None


def _output_file(file: Path | None) -> Path | None:
    """Return the file to write to, or None for stdout, which `-` names, too."""
    return None if str(file) == "-" else file


UNSEALED = 3


def verify(
    *,
    log: LogOption = DATABASE,
    key_file: KeyFileOption = None,
    head: Annotated[
        str | None,
        typer.Option(
            "--head", metavar="SEQ:HASH", help="The head that an earlier `audit verify` printed."
        ),
    ] = None,
    checkpoint: CheckpointOption = None,
    public_key: PublicKeyOption = None,
    jsonl: Annotated[
        Path | None, typer.Option("--jsonl", metavar="FILE", help="Check an export instead.")
    ] = None,
    filtered: Annotated[
        bool, typer.Option("--filtered", help="With --jsonl: the export was made with a filter.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check that every entry is as it was written. Exits with 1 at the first that is not.

    With --checkpoint, it also checks that the log still begins with what was signed then, whoever
    changed it. Exits with 3 if all is as written, but the start and the end are not sealed (a log
    of format 1, an export that was cut). Exits with 4 if the log could not be checked, because it
    is locked or its server is not there. Prints the head. Kept elsewhere and given to a later
    --head, it reveals a chain that was recomputed.
    """
    if filtered and jsonl is None:
        raise UnusableError("--filtered needs --jsonl FILE")
    kept_head = None if head is None else head_of(head)
    try:
        signed = verified_checkpoint(checkpoint, public_key)
    except MissingExtraError as error:
        raise UncheckedError(str(error)) from None
    if signed is not None and jsonl is not None:
        raise UnusableError("--checkpoint checks a log, not an export: leave out --jsonl")
    if jsonl is not None:
        log_name = str(jsonl)
        verification = _verify_file(jsonl, key_file, kept_head, filtered=filtered)
    else:
        log_name, audit_log = without_password(log), log_to_read(log, key_file, damaged=True)
        verification = of_log(
            log,
            audit_log,
            lambda audit: audit.verify(head=kept_head, checkpoint=signed),
        )
    if as_json:
        summary = {
            "log": log_name,
            "ok": verification.ok,
            "sealed": verification.sealed or filtered,
        }
        print_json({**summary, **to_plain(verification)})
    else:
        _print_verification(log_name, verification, filtered=filtered, expected_head=kept_head)
        if verification.ok and signed is not None and signed.rotates_to is not None:
            out.print(
                printable(f"after this checkpoint, checkpoints are signed with {signed.rotates_to}")
            )
    if not verification.ok:
        raise typer.Exit(1)
    if not verification.sealed and not filtered:
        raise typer.Exit(UNSEALED)


def head(
    *, log: LogOption = DATABASE, key_file: KeyFileOption = None, as_json: JsonOption = False
) -> None:
    """Print the head without checking the whole log. Keep it elsewhere, for a later --head."""
    current_head = of_log(log, log_to_read(log, key_file), lambda audit: audit.head())
    if as_json:
        print_json({"log": without_password(log), **to_plain(current_head)})
    else:
        out.print(f"{current_head.seq}:{current_head.hash}")


def migrate(
    *, log: LogOption = DATABASE, key_file: KeyFileOption = None, as_json: JsonOption = False
) -> None:
    """Verify an older log and bring it to the newest format, which seals its start and its end."""
    was_migrated = of_log(log, log_to_read(log, key_file), lambda audit: audit.migrate())
    if as_json:
        print_json({"log": without_password(log), "migrated": was_migrated})
    else:
        state = "is sealed from here on" if was_migrated else "already has the newest format"
        out.print(printable(f"{without_password(log)}: {state}"))


def export(  # noqa: PLR0913  the options of a command line
    file: FileArgument = None,
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
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write entries as JSON lines, the oldest first. A FILE is written completely or not at all.

    `verify --jsonl FILE` checks them. With --json, the output is JSON about what was written to
    FILE.
    """
    base_filter = AuditFilter(run_id=run, call_id=call, tool=tool, caller=caller, limit=limit)
    audit_filter = narrowed(base_filter, status=status, code=code, since=since, until=until)
    file = _output_file(file)
    if file is None and as_json:
        raise UnusableError("--json needs a FILE to write the export to")
    if file is not None and _is_part_of(file, log):
        raise UnusableError(f"{file}: it is the log itself: name another file")
    audit_log = log_to_read(log, key_file)
    if file is None:
        exit_if_changed(
            of_log(log, audit_log, lambda audit: _print_lines(audit.checked_export(audit_filter)))
        )
        return
    written, changed = of_log(
        log, audit_log, lambda a: _write_lines(a.checked_export(audit_filter), file)
    )
    if as_json:
        print_json({"file": str(file), "entries": written, "changed": changed})
    else:
        out.print(printable(f"{file}: {_entry_count(written)} written"))
    exit_if_changed(changed)


def prune(
    *,
    before: Annotated[
        str,
        typer.Option(
            "--before", metavar="TIME", help="A time such as 2026-11-22, or an age such as 90d."
        ),
    ],
    log: LogOption = DATABASE,
    key_file: KeyFileOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove the oldest entries for good. An entry in the log's chain says that this was done."""
    cutoff = moment("--before", before)
    audit_log = log_to_read(log, key_file)
    if not yes:
        if as_json or sys.stdin is None or not sys.stdin.isatty():
            raise UnusableError("there is no terminal to confirm at: pass --yes")
        typer.confirm(f"Remove all entries before {when(cutoff)} from the log?", abort=True)
    removed = of_log(log, audit_log, lambda audit: audit.prune(before=cutoff))
    if as_json:
        print_json({"log": without_password(log), "before": cutoff, "removed": removed})
    else:
        out.print(printable(f"{without_password(log)}: {_entry_count(removed)} removed"))


def _print_verification(
    log_name: str, verification: Verification, *, filtered: bool, expected_head: Head | None
) -> None:
    if expected_head is not None and not expected_head.seq and verification.head.seq:
        out.print("--head 0 belongs to an empty log, so it proves nothing about this log")
    if verification.fault is None:
        torn_note = "; the last line is incomplete and is not counted" if verification.torn else ""
        out.print(
            printable(
                f"{log_name}: {_entry_count(verification.checked)}, all as written{torn_note}"
            )
        )
        if filtered:
            out.print(
                "each entry was checked alone: in a filtered export, missing entries cannot be "
                "detected"
            )
        elif verification.format == 1:
            out.print(
                "format 1: the start and end of the log are not sealed; `toolcrib audit migrate` "
                "seals them"
            )
        out.print(f"head {verification.head.seq}:{verification.head.hash}")
        return
    location = "" if verification.fault.seq is None else f"entry {verification.fault.seq}: "
    out.print(one_line(f"{log_name}: {location}{verification.fault.what}"))
    out.print(f"{_entry_count(verification.checked)} checked before it")


def _verify_file(
    file: Path, key_file: Path | None, expected_head: Head | None, *, filtered: bool
) -> Verification:
    try:
        check_no_pipe(file)
        # a line that is not UTF-8 is reported as no entry
        with file.open(encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
            return verify_jsonl(lines, key=key_of(key_file), head=expected_head, filtered=filtered)
    except OSError as error:
        raise UnusableError(f"--jsonl {file}: {error.strerror}") from None


def _is_part_of(file: Path, url: str) -> bool:
    """Return whether a file is that of a SQLite database, its write-ahead log or its shared memory."""
    log = existing_file(url)
    database_files = (
        ()
        if log is None
        else (f"{os.path.realpath(log)}{suffix}" for suffix in ("", "-wal", "-shm"))
    )
    return os.path.realpath(file) in database_files


def exit_if_changed(count: int) -> None:
    """Exit with 1 if `count` rows are not as they were written, after a last line on stderr that
    says so. Return if there are none."""
    if count:
        err.print(
            f"toolcrib: {_entry_count(count)} not as written, or the log has a different key:"
            " run `toolcrib audit verify`"
        )
        raise typer.Exit(1)


async def _print_lines(lines: AsyncIterator[tuple[str, bool]]) -> int:
    """Print the lines unchanged, for `verify`. On a terminal, escape what it would act upon.

    Return the number of lines that are not as they were written.
    """
    changed = 0
    if sys.stdout is None:
        raise UnusableError("stdout is closed: name a FILE to write to")
    async for line, intact in lines:
        text = f"{json_text(json.loads(line))}\n" if out.is_terminal else line
        sys.stdout.buffer.write(text.encode())
        changed += not intact
    sys.stdout.flush()
    return changed


async def _write_lines(lines: AsyncIterator[tuple[str, bool]], target: Path) -> tuple[int, int]:
    """Write the lines to a file; return how many entries were written, and how many changed."""
    written = changed = 0
    try:
        with _opened(target) as file:
            async for line, intact in lines:
                file.write(line.encode())
                changed += not intact
                written += line.startswith('{"at":') and not line.endswith('"seq":0}\n')
    except OSError as error:
        raise SourceError(f"{target}: the export cannot be written ({error.strerror})") from None
    return written, changed


@contextlib.contextmanager
def _opened(target: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces the target at the end, with the target's mode.

    A pipe or a device is written to and not replaced.
    """
    if target.exists() and not target.is_file():
        with target.open("wb") as device:
            yield device
        return
    real_path = Path(os.path.realpath(target))  # a symbolic link is kept
    with replacing(real_path, mode=mode_of(real_path)) as file:
        yield file


def _entry_count(count: int) -> str:
    return f"{count} entr{'y' if count == 1 else 'ies'}"
