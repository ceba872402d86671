"""`toolcrib tools lock`: writes down what each tool says of itself, or compares with what it said."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from toolcrib.cli.options import JsonOption, ToolsOption, WhereArgument
from toolcrib.cli.render import err, out, print_json, printable
from toolcrib.cli.where import given_once, load_catalog
from toolcrib.errors import SourceError
from toolcrib.tools.lock import MARK, Change, Lock, lock_catalog, read_lock, write_lock

LOCK_FILE = "toolcrib.lock"


def lock(
    where: WhereArgument = None,
    *,
    tools: ToolsOption = None,
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="Where the lock is.")] = Path(
        LOCK_FILE
    ),
    check: Annotated[
        bool,
        typer.Option("--check", help="Write nothing; exit 1 if the tools are not as locked."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the tools' digests into a lock file, and say what changed against the old one.

    With --check a missing or damaged lock file is a failure too.
    """
    now = lock_catalog(load_catalog(given_once(where, tools)))
    before = read_lock(file) if check else _old(file)
    changes = (before or Lock({})).changes_to(now)
    if not check and (changes or before is None or before.was_open):
        write_lock(now, file)
    if as_json:
        plain = [msgspec.to_builtins(change) for change in changes]
        print_json({"file": str(file), "tools": len(now.tools), "changes": plain})
    else:
        _show(changes, now, file, check=check)
    if check and changes:
        raise typer.Exit(1)


def _old(file: Path) -> Lock | None:
    """What was locked before; a lock that cannot be read is written anew, and that is said.

    Raises SourceError for what never was one: a file of another kind is not written over.
    """
    if not file.exists():
        return None
    try:
        return read_lock(file)
    except SourceError as error:
        if not _was_a_lock(file):
            raise SourceError(
                f"{file}: it is no lock of toolcrib, and is not written over: name another --file"
            ) from None
        err.print(printable(f"the old lock is not used: {error}"))
        return None


def _was_a_lock(file: Path) -> bool:
    """Nothing, or what a merge left of one, or a newer toolcrib wrote."""
    try:
        text = file.read_bytes()
    except OSError:
        return False
    return not text.strip() or MARK.encode() in text


def _show(changes: list[Change], now: Lock, file: Path, *, check: bool) -> None:
    for change in changes:
        out.print(printable(str(change)))
    tools = f"{len(now.tools)} tool{'' if len(now.tools) == 1 else 's'}"
    if check:
        said = "not as locked" if changes else "as locked"
        out.print(printable(f"{file}: {tools}, {len(changes) or 'all'} {said}"))
    else:
        out.print(printable(f"{file}: {tools} locked, {len(changes)} changed"))
