"""Opening what lies below a folder: name by name, following no link, ordinary files only.

A path that was resolved before has no link left in it, so one that is met here was put there
meanwhile: an error, not a way out. (A hard link can't be told from the file itself.)

A file that this process has open elsewhere is not opened: on closing any descriptor of a file, POSIX
drops all fcntl locks that the process has on it (https://www.sqlite.org/howtocorrupt.html, 2.2), and
whoever holds them, such as SQLite, does not learn of it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Final, Self, TypeAlias

from toolcrib.errors import CapabilityError

NO_FILE: Final = "there is no such file"
NO_FOLDER: Final = "there is no such folder"
NOT_A_FILE: Final = "that is a folder: list it instead"
NOT_A_FOLDER: Final = "a name in that path is not a folder"
NOT_ORDINARY: Final = "that is no ordinary file"
NOT_ALLOWED: Final = "that may not be read"
IN_USE: Final = "that file is in use by the application"

_Identity: TypeAlias = tuple[int, int]  # device and inode

_LISTINGS = ("/proc/self/fd", "/dev/fd")
_AT_ONCE = 32  # descriptors to close after one look at all: a look costs some 5 µs for each
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
    """Yield the descriptor of a folder below `root`. Raises OSError."""
    folder = os.open(root, _FOLDER)
    try:
        for name in parts:
            below = os.open(name, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


class Reading:
    """The files that one call reads: none of those that this process has open elsewhere.

    What is open is looked at as the call begins, and again before what was read is closed; a file that
    was opened elsewhere in between is left open, to be closed by a later call, when it is free. What
    remains: a file that is opened and locked elsewhere in the microseconds from that look to the close.

    Where the system does not list a process's descriptors (it does in `/proc/self/fd` or `/dev/fd`:
    Linux, macOS), nothing is known to be in use, and whatever is read loses the locks of this process.
    """

    def __enter__(self) -> Self:
        self._in_use = _ours.settle()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # what stays open is closed by a later call
            _ours.settle()

    @contextmanager
    def file(self, name: str, folder: int) -> Iterator[BinaryIO]:
        """Yield a regular file in an open folder. Raises OSError, CapabilityError.

        What it is, is looked at before opening, since to open a device may do something; and after,
        since a pipe may have been put there meanwhile, which O_NONBLOCK keeps from hanging the call.
        """
        self._check(os.stat(name, dir_fd=folder, follow_symlinks=False))
        descriptor = _ours.open(name, folder)
        try:
            self._check(os.fstat(descriptor))
            with os.fdopen(descriptor, "rb", closefd=False) as stream:
                yield stream
        finally:
            if _ours.leave(descriptor) >= _AT_ONCE:
                self._in_use = _ours.settle()

    def _check(self, facts: os.stat_result) -> None:
        if stat.S_ISDIR(facts.st_mode):
            raise CapabilityError(NOT_A_FILE)
        if not stat.S_ISREG(facts.st_mode):
            raise CapabilityError(NOT_ORDINARY)
        if (facts.st_dev, facts.st_ino) in self._in_use:
            raise CapabilityError(IN_USE)


class _Descriptors:
    """Holds the descriptors that files are read through here, in all threads; each
    is closed here and nowhere else.

    Opened, listed and closed one at a time, so that no reader takes another's for the application's.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._reading: set[int] = set()
        self._left: set[int] = set()

    def open(self, name: str, folder: int) -> int:
        with self._lock:
            descriptor = os.open(name, _FILE, dir_fd=folder)
            self._reading.add(descriptor)
        return descriptor

    def leave(self, descriptor: int) -> int:
        """Note that a file is not read any more, and return how many wait to be closed."""
        with self._lock:
            self._reading.discard(descriptor)
            self._left.add(descriptor)
            return len(self._left)

    def settle(self) -> frozenset[_Identity]:
        """Return the files that others have open in this process; what was
        left and is none, is closed."""
        with self._lock:
            open_ = _open_files()
            ours = self._reading | self._left
            others = frozenset(file for number, file in open_.items() if number not in ours)
            for number in [n for n in self._left if open_.get(n) not in others]:
                self._left.discard(number)
                with suppress(OSError):
                    os.close(number)
        return others

    def forget(self) -> None:
        """Forget the reads of the parent's threads, which do not run in a forked child."""
        self._lock = Lock()  # another thread may have held it
        for number in self._reading | self._left:
            with suppress(OSError):
                os.close(number)
        self._reading.clear()
        self._left.clear()


_ours = _Descriptors()
os.register_at_fork(after_in_child=_ours.forget)


def is_folder(name: str, folder: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def looks_binary(content: bytes) -> bool:
    """Return whether there is a NUL near the beginning, by which git, too, knows a binary file."""
    return b"\0" in content[:_PROBE]


def shown_path(parts: tuple[str, ...]) -> str:
    return printable("/".join(parts)) or "."


def printable(text: str) -> str:
    """Without what could steer a terminal or hide text: U+FFFD in its place, a space for a tab."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c == "\t" else "\ufffd" for c in text)


def _open_files() -> dict[int, _Identity]:
    """Return the regular files that this process has open, by descriptor. Raises OSError."""
    found: dict[int, _Identity] = {}
    for number in _numbers():
        try:
            facts = os.fstat(number)
        except OSError:  # closed meanwhile, as that of the listing itself
            continue
        if stat.S_ISREG(facts.st_mode):
            found[number] = facts.st_dev, facts.st_ino
    return found


def _numbers() -> list[int]:
    for listing in _LISTINGS:
        with suppress(FileNotFoundError, NotADirectoryError):
            return [int(name) for name in os.listdir(listing)]  # noqa: PTH208  no paths, numbers
    return []
