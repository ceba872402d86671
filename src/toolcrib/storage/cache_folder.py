"""toolcrib's own files: where reproducible data is cached, and who can read what is written."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from toolcrib.errors import SourceError
from toolcrib.values.typed import names_wrong_types

OWNER_ONLY = 0o600  # readable and writable by the owner only


def cache_folder() -> Path:
    """Return the cache folder: `TOOLCRIB_CACHE`, or the system's place.

    That is `$XDG_CACHE_HOME/toolcrib` or `~/.cache/toolcrib`, `~/Library/Caches/toolcrib` on macOS,
    `%LOCALAPPDATA%\\toolcrib\\Cache` on Windows. Raises SourceError if there is no home folder.
    """
    chosen = os.environ.get("TOOLCRIB_CACHE", "")
    try:
        return Path(chosen).expanduser().absolute() if chosen else _system_cache()
    except RuntimeError:  # this is how pathlib reports it
        raise SourceError("there is no home folder for a cache: set TOOLCRIB_CACHE") from None


@names_wrong_types
def create_private(path: Path, *, new: bool = False, mode: int = OWNER_ONLY) -> BinaryIO:
    """Open a file for writing from scratch. A new file can be read only by its owner.

    An existing file keeps its mode. Another `mode` is for a file that a group shares. With `new`,
    raises FileExistsError if the file exists.
    """
    flags = os.O_WRONLY | os.O_CREAT | (os.O_EXCL if new else os.O_TRUNC)
    flags |= getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    there = not new and path.exists()
    handle = os.open(path, flags, mode)
    if mode != OWNER_ONLY and not there and os.name == "posix":
        os.fchmod(handle, mode)  # regardless of the umask: this mode was requested
    return os.fdopen(handle, "wb")


@names_wrong_types
@contextmanager
def replacing(path: Path, *, mode: int = OWNER_ONLY) -> Iterator[BinaryIO]:
    """Open a new file in the same folder, which replaces `path` in one step at the end.

    After an exception or a crash, what `path` was before is still there.
    """
    part = path.with_name(f".{path.name}.{os.urandom(8).hex()}.part")
    try:
        with create_private(part, new=True, mode=mode) as file:  # never through somebody's link
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@names_wrong_types
def write_new(path: Path, data: bytes) -> None:
    """Write a new file that only its owner can read. If not all of it can be written, none is left.

    Raises FileExistsError if the file exists.
    """
    file = create_private(path, new=True)
    try:
        with file:
            file.write(data)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@names_wrong_types
def mode_of(path: Path) -> int:
    """Return the mode for a file that is about to be replaced.

    An existing file keeps its mode; a new one is accessible only to its owner.
    """
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return OWNER_ONLY


def _system_cache() -> Path:
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "toolcrib" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "toolcrib"
    given = os.environ.get("XDG_CACHE_HOME", "")
    # XDG base directory specification: a relative path here is invalid and ignored.
    return (Path(given) if given.startswith("/") else Path.home() / ".cache") / "toolcrib"
