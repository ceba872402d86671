"""Opening what lies below a folder: name by name, following no link, ordinary files only.

A path that was resolved before has no link left in it, so one that is met here was put there
meanwhile: an error, not a way out. (A hard link can't be told from the file itself.)
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from toolcrib.errors import CapabilityError

NO_FILE: Final = "there is no such file"
NO_FOLDER: Final = "there is no such folder"
NOT_A_FILE: Final = "that is a folder: list it instead"
NOT_A_FOLDER: Final = "a name in that path is not a folder"
NOT_ORDINARY: Final = "that is no ordinary file"
NOT_ALLOWED: Final = "that may not be read"

_PROBE = 8192
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


@contextmanager
def told(missing: str) -> Iterator[None]:
    """Errors of the system as fixed sentences: its own text has whole paths in it."""
    try:
        yield
    except PermissionError:
        raise CapabilityError(NOT_ALLOWED) from None
    except NotADirectoryError:
        raise CapabilityError(NOT_A_FOLDER) from None
    except OSError:
        raise CapabilityError(missing) from None


@contextmanager
def opened_folder(root: Path, parts: tuple[str, ...]) -> Iterator[int]:
    """The descriptor of a folder below `root`. Raises OSError."""
    folder = os.open(root, _FOLDER)
    try:
        for name in parts:
            below = os.open(name, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def open_file(name: str, folder: int) -> BinaryIO:
    """A regular file in an open folder, to be read. Raises OSError, CapabilityError.

    What it is, is looked at before opening, since to open a device may do something; and after,
    since a pipe may have been put there meanwhile, which O_NONBLOCK keeps from hanging the call.
    """
    _check_ordinary(os.stat(name, dir_fd=folder, follow_symlinks=False))
    stream = os.fdopen(os.open(name, _FILE, dir_fd=folder), "rb")
    try:
        _check_ordinary(os.fstat(stream.fileno()))
    except CapabilityError:
        stream.close()
        raise
    return stream


def is_folder(name: str, folder: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def looks_binary(content: bytes) -> bool:
    """A NUL near the beginning is what tells a binary file from a text, as git does it."""
    return b"\0" in content[:_PROBE]


def shown_path(parts: tuple[str, ...]) -> str:
    return printable("/".join(parts)) or "."


def printable(text: str) -> str:
    """Without what could steer a terminal or hide text: U+FFFD in its place, a space for a tab."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c == "\t" else "\ufffd" for c in text)


def _check_ordinary(facts: os.stat_result) -> None:
    if stat.S_ISDIR(facts.st_mode):
        raise CapabilityError(NOT_A_FILE)
    if not stat.S_ISREG(facts.st_mode):
        raise CapabilityError(NOT_ORDINARY)
