"""`toolcrib audit keygen|checkpoint|prove|verify-inclusion`: kept elsewhere, they show changes.

A file that is there is written over only by what it holds already, a checkpoint by a checkpoint and a
proof by a proof: who names the log or a key by mistake would lose it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from toolcrib.audit import AuditLog, Checkpoint, PublicKey, SigningKey, verify_inclusion
from toolcrib.audit.checkpoint import Proof
from toolcrib.cli import audit_log as given
from toolcrib.cli.database import shown
from toolcrib.cli.options import JsonOption
from toolcrib.cli.render import json_text, out, print_json, printable
from toolcrib.cli.where import UnusableError
from toolcrib.errors import SourceError, ToolcribError
from toolcrib.storage import create_private

SigningKeyOption: TypeAlias = Annotated[
    Path, typer.Option("--signing-key", metavar="FILE", help="As `audit keygen` has written it.")
]
PublicKeyOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--public-key",
        metavar="KEY",
        help="Whose signature is believed: NAME+ID+KEY, or a file that holds it.",
    ),
]
CheckpointOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--checkpoint", metavar="FILE", help="A checkpoint that was kept elsewhere."),
]
FileArgument: TypeAlias = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="Where to; left out, to stdout.")
]


def keygen(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; it must be new.")],
    *,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="The log's, such as example.com/shop.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Make a key that signs checkpoints, in a file that only its owner can read; print the public one.

    Keep the file apart from the log, and give the public key to those who verify.
    """
    public = str(SigningKey.generate(name, file).public)
    if as_json:
        print_json({"file": str(file), "public_key": public})
    else:
        out.print(printable(public))


def checkpoint(
    file: FileArgument = None,
    *,
    log: given.LogOption = given.LOG,
    key_file: given.KeyFileOption = None,
    signing_key: SigningKeyOption,
    after: Annotated[
        Path | None, typer.Option("--after", metavar="FILE", help="An earlier checkpoint.")
    ] = None,
    rotates_to: Annotated[
        Path | None,
        typer.Option("--rotate-to", metavar="FILE", help="A new signing key: both keys sign."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Sign what the log has now: kept elsewhere, it shows every later change (`verify --checkpoint`).

    With --after, only if the log still begins with what that one was about.
    """
    key = SigningKey.load(signing_key)
    new = None if rotates_to is None else SigningKey.load(rotates_to)
    earlier = None if after is None else read(after)

    async def signed(audit: AuditLog) -> str:
        return await audit.checkpoint(key, after=earlier, rotates_to=new)

    note = given.used(given.log_to_read(log, key_file), signed)
    _give(note, file, Checkpoint.read, as_json=as_json)
    if as_json:
        told = Checkpoint.read(note)
        print_json({"log": shown(log), "size": told.size, "checkpoint": note})


def prove(
    wanted: Annotated[str, typer.Argument(metavar="ID", help="A call's id, or an entry's number.")],
    file: FileArgument = None,
    *,
    log: given.LogOption = given.LOG,
    key_file: given.KeyFileOption = None,
    kept: Annotated[
        Path, typer.Option("--checkpoint", metavar="FILE", help="One that came after the entry.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Write a proof that an entry is in the log of a checkpoint; `verify-inclusion` checks it."""
    note = read(kept)

    async def proved(audit: AuditLog) -> str:
        last = await audit.last(wanted)
        if last is None and not (wanted.isdecimal() and len(wanted) < 19):
            raise UnusableError(f"{shown(log)}: there is no call and no entry '{wanted}' in it")
        return await audit.prove(int(wanted) if last is None else last.seq, note)

    proof = given.used(given.log_to_read(log, key_file), proved)
    _give(proof, file, Proof.parse, as_json=as_json)
    if as_json:
        print_json({"log": shown(log), "id": wanted, "proof": proof})


def check_inclusion(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `prove` has written.")],
    *,
    public_key: PublicKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a proof without any log, and show its entry; exits with 1 if it proves nothing."""
    entry = json.loads(verify_inclusion(read(file), *public_keys(public_key)))
    if as_json:
        print_json({"file": str(file), "ok": True, "entry": entry})
    else:
        out.print(printable(f"{file}: entry {entry['seq']} is in the log"))
        out.print(json_text(entry))


def opened(file: Path | None, keys: list[str] | None) -> Checkpoint | None:
    """A checkpoint that was kept, once its signatures are checked."""
    if file is None:
        if keys:
            raise UnusableError("--public-key is about a checkpoint: give --checkpoint FILE")
        return None
    return Checkpoint.opened(read(file), *public_keys(keys))


def public_keys(texts: list[str] | None) -> list[PublicKey]:
    if not texts:
        raise UnusableError("give the log's --public-key: it is not taken from what is checked")
    return [PublicKey.parse(text if "+" in text else read(Path(text))) for text in texts]


def read(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except OSError as error:
        raise UnusableError(f"{file}: {error.strerror}") from None
    except UnicodeError:
        raise SourceError(f"{file}: it is no text") from None


def _give(text: str, file: Path | None, parse: Callable[[str], object], *, as_json: bool) -> None:
    """Write a text to its file, or to stdout if nothing else goes there.

    Raises UnusableError if the file holds something that `parse` does not take.
    """
    if file is None:
        if not as_json:
            typer.echo(text, nl=False)
        return
    if file.is_file() and file.stat().st_size:
        try:
            parse(read(file))
        except ToolcribError:
            raise UnusableError(f"{file}: something else is in it: name another file") from None
    try:
        with create_private(file) as target:
            target.write(text.encode())
    except OSError as error:
        raise SourceError(f"{file}: {error.strerror}") from None
