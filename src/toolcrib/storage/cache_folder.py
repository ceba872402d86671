"""Files of our own: where what can be made again is kept, and who can read what is written."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

from toolcrib.errors import SourceError
from toolcrib.values.typed import names_wrong_types

OWNERS = 0o600  # the mode of what only its owner can read and write


def cache_folder() -> Path:
    """`TOOLCRIB_CACHE`, or the system's place. Raises SourceError where there is no home folder.

    That is `$XDG_CACHE_HOME/toolcrib` or `~/.cache/toolcrib`, `~/Library/Caches/toolcrib` on macOS,
    `%LOCALAPPDATA%\\toolcrib\\Cache` on Windows.
    """
    chosen = os.environ.get("TOOLCRIB_CACHE", "")
    try:
        return Path(chosen).expanduser().absolute() if chosen else _system_cache()
    except RuntimeError:  # how pathlib says it
        raise SourceError("there is no home folder for a cache: set TOOLCRIB_CACHE") from None


@names_wrong_types
def create_private(path: Path, *, new: bool = False, mode: int = OWNERS) -> BinaryIO:
    """Open a file to write it anew; only its owner can read it, unless it is there and says otherwise.

    Another `mode` is for a file that a group shares. With `new` it is a FileExistsError if it is there.
    """
    flags = os.O_WRONLY | os.O_CREAT | (os.O_EXCL if new else os.O_TRUNC)
    flags |= getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    there = not new and path.exists()
    handle = os.open(path, flags, mode)
    if mode != OWNERS and not there and os.name == "posix":
        os.fchmod(handle, mode)  # whatever the umask is: it was asked for
    return os.fdopen(handle, "wb")


@names_wrong_types
def mode_of(path: Path) -> int:
    """Return the mode of a file that is about to be replaced: it keeps its
    own, a new one is its owner's."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return OWNERS


def _system_cache() -> Path:
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "toolcrib" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "toolcrib"
    given = os.environ.get("XDG_CACHE_HOME", "")
    # XDG base directory specification: a relative path here is invalid and ignored.
    return (Path(given) if given.startswith("/") else Path.home() / ".cache") / "toolcrib"
