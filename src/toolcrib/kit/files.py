"""Reading files. Their contents and names are data from outside, which taint the run.

Contents are not in the public view: a log that shows which file was read does not repeat its
contents.
"""

from __future__ import annotations

import codecs
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Final, Literal, Protocol, Self, TypeAlias

from typing_extensions import TypedDict

from toolcrib.errors import CapabilityError, SourceError, ToolError
from toolcrib.tools import capability, tool
from toolcrib.values.typed import HandWritten, names_wrong_types

NO_FILE: Final = "there is no such file"
NO_FOLDER: Final = "there is no such folder"
NOT_A_FILE: Final = "that is a folder: list it instead"
NOT_A_FOLDER: Final = "a name in that path is not a folder"
NOT_ORDINARY: Final = "that is not a regular file"
NOT_ALLOWED: Final = "reading that file or folder is not allowed"
IN_USE: Final = "that file is in use by the application"

_Identity: TypeAlias = tuple[int, int]  # device and inode

# Opening ordinary files below a folder, name by name, without following links.
#
# A path that was resolved before contains no link, so a link that is found here was put there
# meanwhile, and is an error. (A hard link cannot be told from the file itself.)
#
# A file that this process has open elsewhere is not opened. When any descriptor of a file is
# closed, POSIX drops all fcntl locks that the process has on it
# (https://www.sqlite.org/howtocorrupt.html, 2.2), and the holder of the locks, such as SQLite, is
# not told.

_DESCRIPTOR_LISTINGS = ("/proc/self/fd", "/dev/fd")
_MAX_UNCLOSED = 32  # descriptors closed after one listing, which costs about 5 µs for each
_PROBE_BYTES = 8192
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


@contextmanager
def fixed_messages(missing_message: str) -> Iterator[None]:
    """Turn errors of the system into fixed sentences, since their own text contains whole paths."""
    try:
        yield
    except PermissionError:
        raise CapabilityError(NOT_ALLOWED) from None
    except NotADirectoryError:
        raise CapabilityError(NOT_A_FOLDER) from None
    except OSError:
        raise CapabilityError(missing_message) from None


@contextmanager
def opened_folder(root: Path, parts: tuple[str, ...]) -> Iterator[int]:
    """Yield the descriptor of a folder below `root`. Raises OSError."""
    folder = os.open(root, _FOLDER_FLAGS)
    try:
        for name in parts:
            child = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
            os.close(folder)
            folder = child
        yield folder
    finally:
        os.close(folder)


class Reading:
    """The files that one call reads. Files that this process has open elsewhere are not among them.

    The open files are listed when the call begins, and again before the files that were read are
    closed. A file that was opened elsewhere in between is left open, and a later call closes it
    when it is free. One risk remains: a file that is opened and locked elsewhere in the
    microseconds between that listing and the close.

    If the system does not list a process's descriptors (Linux and macOS do, in `/proc/self/fd` or
    `/dev/fd`), no file is known to be in use, and every file that is read loses the locks of this
    process.
    """

    def __enter__(self) -> Self:
        self._in_use = _descriptors.close_unused()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # a later call closes what stays open
            _descriptors.close_unused()

    @contextmanager
    def file(self, name: str, folder: int) -> Iterator[BinaryIO]:
        """Yield a regular file in an open folder. Raises OSError, CapabilityError.

        Its type is checked before opening, since opening a device may have effects, and again
        afterwards, since a pipe may have been put there meanwhile. O_NONBLOCK keeps a pipe from
        blocking the call.
        """
        self._check(os.stat(name, dir_fd=folder, follow_symlinks=False))
        descriptor = _descriptors.open(name, folder)
        try:
            self._check(os.fstat(descriptor))
            with os.fdopen(descriptor, "rb", closefd=False) as stream:
                yield stream
        finally:
            if _descriptors.leave(descriptor) >= _MAX_UNCLOSED:
                self._in_use = _descriptors.close_unused()

    def _check(self, status: os.stat_result) -> None:
        if stat.S_ISDIR(status.st_mode):
            raise CapabilityError(NOT_A_FILE)
        if not stat.S_ISREG(status.st_mode):
            raise CapabilityError(NOT_ORDINARY)
        if (status.st_dev, status.st_ino) in self._in_use:
            raise CapabilityError(IN_USE)


class _Descriptors:
    """Holds the descriptors through which files are read here, in all threads. Each is closed here
    and nowhere else.

    They are opened, listed and closed one at a time, so that no reader takes another's for the
    application's.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._reading: set[int] = set()
        self._unclosed: set[int] = set()

    def open(self, name: str, folder: int) -> int:
        with self._lock:
            descriptor = os.open(name, _FILE_FLAGS, dir_fd=folder)
            self._reading.add(descriptor)
        return descriptor

    def leave(self, descriptor: int) -> int:
        """Note that a file is no longer read, and return how many files wait to be closed."""
        with self._lock:
            self._reading.discard(descriptor)
            self._unclosed.add(descriptor)
            return len(self._unclosed)

    def close_unused(self) -> frozenset[_Identity]:
        """Close the files that are read no more and free; return those that others have open."""
        with self._lock:
            open_files = _open_files()
            own_numbers = self._reading | self._unclosed
            foreign_files = frozenset(
                file for number, file in open_files.items() if number not in own_numbers
            )
            for number in [n for n in self._unclosed if open_files.get(n) not in foreign_files]:
                self._unclosed.discard(number)
                with suppress(OSError):
                    os.close(number)
        return foreign_files

    def forget(self) -> None:
        """Forget the reads of the parent's threads, which do not run in a forked child."""
        self._lock = Lock()  # another thread may have held the old lock
        for number in self._reading | self._unclosed:
            with suppress(OSError):
                os.close(number)
        self._reading.clear()
        self._unclosed.clear()


_descriptors = _Descriptors()
os.register_at_fork(after_in_child=_descriptors.forget)


def is_folder(name: str, folder: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def looks_binary(content: bytes) -> bool:
    """Return whether there is a NUL near the beginning, by which git recognises binary files as
    well."""
    return b"\0" in content[:_PROBE_BYTES]


def shown_path(parts: tuple[str, ...]) -> str:
    return printable("/".join(parts)) or "."


def printable(text: str) -> str:
    """Return a text in which U+FFFD replaces characters that could control a terminal or hide text."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c == "\t" else "\ufffd" for c in text)


def _open_files() -> dict[int, _Identity]:
    """Return the regular files that this process has open, by descriptor. Raises OSError."""
    files: dict[int, _Identity] = {}
    for number in _open_descriptors():
        try:
            status = os.fstat(number)
        except OSError:  # closed meanwhile, like that of the listing itself
            continue
        if stat.S_ISREG(status.st_mode):
            files[number] = status.st_dev, status.st_ino
    return files


def _open_descriptors() -> list[int]:
    for listing in _DESCRIPTOR_LISTINGS:
        with suppress(FileNotFoundError, NotADirectoryError):
            return [int(name) for name in os.listdir(listing)]  # noqa: PTH208  no paths, numbers
    return []


# The tools, and the root from which they read.

_LONGEST_QUERY = 200


class FolderEntry(TypedDict):
    """`size` is in bytes, 0 for a folder; `other` is what can be neither read nor listed."""

    name: str
    kind: Literal["file", "folder", "other"]
    size: int


class FolderListing(TypedDict):
    """Folders come first; `truncated` says that there are more entries than these."""

    path: str
    entries: list[FolderEntry]
    truncated: bool


class TextFile(TypedDict):
    """`size` is that of the whole file in bytes; `truncated` says that `text` is its beginning."""

    path: str
    text: str
    size: int
    truncated: bool


class LineMatch(TypedDict):
    """A line that has the text in it, numbered from 1; a long one is cut around the match."""

    path: str
    line: int
    text: str


class FileMatches(TypedDict):
    """`truncated` says that the search ended early, so that there may be more."""

    matches: list[LineMatch]
    truncated: bool


@capability
class FileRoot(Protocol):
    """A folder that may be read, and nothing outside of it.

    Paths are relative to it, with `/` between names, and "." is the folder itself. All methods
    raise CapabilityError for a path that is outside, missing or of the wrong kind.
    """

    def list_folder(self, path: str) -> FolderListing:
        """Return the direct contents of a folder."""

    def read_text(self, path: str) -> TextFile:
        """Return a text file, decoded."""

    def search(self, query: str, path: str) -> FileMatches:
        """Return the lines that contain a text, ignoring case, in a file or in all files below a
        folder."""


@tool(
    visible=["path", "entries", "truncated"],
    read_only=True,
    idempotent=True,
    untrusted_output=True,
    timeout=10,
    tags=["files", "folder", "directory"],
    examples=[
        ("List the files in the docs folder", {"path": "docs"}),
        ("What files are here?", {"path": "."}),
        ("Show me what is inside src/app", {"path": "src/app"}),
        ("Which folders are in the current directory?", {"path": "."}),
        ("What's in the config directory?", {"path": "config"}),
        ("ls tests/data", {"path": "tests/data"}),
        ("Show the contents of the images folder", {"path": "images"}),
        ("Give me the names of all files in lib", {"path": "lib"}),
    ],
)
def list_files(path: str = ".", *, root: FileRoot) -> FolderListing:
    """List the files and folders that are directly in a folder.

    Args:
        path: The folder, such as docs or src/app; "." is the current one.
    """
    return root.list_folder(path)


@tool(
    visible=["path", "size", "truncated"],
    read_only=True,
    idempotent=True,
    untrusted_output=True,
    timeout=10,
    tags=["files", "text", "contents"],
    examples=[
        ("Show me the contents of notes.txt", {"path": "notes.txt"}),
        ("Open docs/setup.md", {"path": "docs/setup.md"}),
        ("What does pyproject.toml say?", {"path": "pyproject.toml"}),
        ("Read the file src/main.py to me", {"path": "src/main.py"}),
        ("What is written in config/app.json?", {"path": "config/app.json"}),
        ("cat report.csv", {"path": "report.csv"}),
        ("Summarize the text of guide.md", {"path": "guide.md"}),
        ("Print tests/test_api.py", {"path": "tests/test_api.py"}),
    ],
)
def read_file(path: str, *, root: FileRoot) -> TextFile:
    """Read a text file: its contents, of a large file the beginning.

    Args:
        path: The file, such as notes.txt or docs/setup.md.
    """
    return root.read_text(path)


@tool(
    visible=["matches[].path", "matches[].line", "truncated"],
    read_only=True,
    idempotent=True,
    untrusted_output=True,
    timeout=20,
    tags=["files", "search", "grep"],
    examples=[
        ("Search for TODO in src", {"query": "TODO", "path": "src"}),
        ("Find the word timeout in the docs folder", {"query": "timeout", "path": "docs"}),
        ("Which files mention license?", {"query": "license", "path": "."}),
        ("Where is parse_args used?", {"query": "parse_args", "path": "."}),
        ('grep for "import json" in tests', {"query": "import json", "path": "tests"}),
        (
            "Look for 'connection lost' in logs/app.log",
            {"query": "connection lost", "path": "logs/app.log"},
        ),
        ("In which file is the class Session defined?", {"query": "class Session", "path": "."}),
        ("Show me every place where retry occurs", {"query": "retry", "path": "."}),
        ("In lib, look for 'async def'", {"query": "async def", "path": "lib"}),
        ("Does anything in web/ use fetch?", {"query": "fetch", "path": "web/"}),
        ("Show the lines with 'warning' in build.log", {"query": "warning", "path": "build.log"}),
    ],
)
def search_files(query: str, path: str = ".", *, root: FileRoot) -> FileMatches:
    """Find the lines that contain a text, in all files below a folder or in one file.

    Args:
        query: The text to find, as it is written in the files; upper and lower case are the same.
        path: The folder or file to search, such as src; "." is the current folder.
    """
    if not query.strip() or "\n" in query or len(query) > _LONGEST_QUERY:
        raise ToolError(f"query must be a text of 1 to {_LONGEST_QUERY} characters in one line")
    return root.search(query, path)


# Searching files for a text, within limits. A search always ends, and says if it ended early.

_GENERATED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages"})
_ENVIRONMENT = "pyvenv.cfg"  # a file that marks the folder of a virtual environment


class SearchLimits(HandWritten, frozen=True, kw_only=True):
    """How much one search may read and return. A larger file is searched up to `file_bytes`."""

    matches: int = 50
    line_characters: int = 200
    files: int = 5_000
    file_bytes: int = 1024 * 1024
    bytes: int = 64 * 1024 * 1024
    depth: int = 20
    seconds: float = 5.0


class Search:
    """Searches files. `matches` has the matches so far, and `truncated` says that there may be more."""

    def __init__(self, query: str, limits: SearchLimits, reading: Reading) -> None:
        self.matches: list[LineMatch] = []
        self.truncated = False
        self._needle = query.casefold()
        self._limits = limits
        self._reading = reading
        self._files_left = limits.files
        self._bytes_left = limits.bytes
        self._deadline = time.monotonic() + limits.seconds

    def below(self, folder: int, parts: tuple[str, ...]) -> None:
        """Search all files below an open folder, except links and hidden, installed or generated
        files."""
        for folder_path, folders, files, descriptor in os.fwalk(".", dir_fd=folder):
            if self._is_late():
                self.truncated = True
                return
            names_below = folder_path.split("/")[1:]
            if names_below and _ENVIRONMENT in files:
                folders.clear()
                continue
            folders[:] = sorted(filter(_is_source, folders))
            if folders and len(names_below) >= self._limits.depth:
                folders.clear()
                self.truncated = True
            for name in sorted(filter(_is_source, files)):
                if self._is_over():
                    self.truncated = True
                    return
                # what cannot be read is left out: a pipe, a link, a file in use
                with (
                    suppress(OSError, CapabilityError),
                    self._reading.file(name, descriptor) as stream,
                ):
                    self.within(stream, (*parts, *names_below, name))

    def within(self, stream: BinaryIO, parts: tuple[str, ...]) -> None:
        """Search one open file. A binary file has no lines, and so no matches."""
        byte_limit = self._limits.file_bytes
        content = stream.read(byte_limit + 1)
        self._files_left -= 1
        self._bytes_left -= len(content)
        if looks_binary(content):
            return
        self.truncated |= len(content) > byte_limit
        text = content[:byte_limit].decode("utf-8-sig", "replace")
        if self._needle not in text.casefold():
            return
        for number, line in enumerate(text.split("\n"), 1):
            folded = line.casefold()
            position = folded.find(self._needle)
            if position < 0:
                continue
            position = position if len(folded) == len(line) else _unfolded(line, position)
            if len(self.matches) == self._limits.matches:
                self.truncated = True
                return
            line_text = printable(self._cut(line.rstrip("\r"), position))
            self.matches.append({"path": shown_path(parts), "line": number, "text": line_text})

    def _is_over(self) -> bool:
        return (
            len(self.matches) >= self._limits.matches
            or self._files_left <= 0
            or self._bytes_left <= 0
            or self._is_late()
        )

    def _is_late(self) -> bool:
        return time.monotonic() >= self._deadline

    def _cut(self, line: str, position: int) -> str:
        limit = self._limits.line_characters
        start = max(0, min(position - limit // 4, len(line) - limit))
        end = start + limit
        return f"{'…' if start else ''}{line[start:end]}{'…' if end < len(line) else ''}"


def _unfolded(line: str, position: int) -> int:
    """Return the index in a line of the character at `position` in its casefolded, longer form."""
    for index, character in enumerate(line):
        position -= len(character.casefold())
        if position < 0:
            return index
    return len(line)


def _is_source(name: str) -> bool:
    return not name.startswith(".") and name not in _GENERATED_FOLDERS


# A folder as a jail: only files below the root are read, whatever a path and its links say.
#
# A path is first resolved, including links, and refused if it leads outside, whether or not it
# exists. `Reading` then opens the resolved path, and follows no links.

OUTSIDE: Final = "the path is outside the folder that may be read"
NOT_TEXT: Final = "that is not a text file"
_LONGEST_PATH = 1024


class FolderLimits(HandWritten, frozen=True, kw_only=True):
    """How much one call may return. The rest is cut, and the result says so.

    `scanned` is how many entries of a folder are looked at, to be sorted, of which the first
    `entries` are shown. `file_bytes` is how much of a file is read.
    """

    entries: int = 200
    scanned: int = 10_000
    file_bytes: int = 64 * 1024
    search: SearchLimits = SearchLimits()


class JailedFolder:
    """Reads below `root` and nowhere else: a folder of this machine as a `FileRoot`.

    A file that this process has open, such as the database of its audit log or a log file, is
    listed but not read, because closing it again would drop the locks that this process has on it
    (`Reading` says what happens where open files are not known). A search leaves it out, and also
    hidden files and folders, virtual environments, installed packages, binary files and links. This
    needs a system that opens files relative to a folder (Linux, macOS). Raises SourceError on other
    systems, and if `root` is no folder.
    """

    @names_wrong_types
    def __init__(self, root: str | Path, limits: FolderLimits | None = None) -> None:
        self.root = Path(os.path.realpath(root))
        self.limits = limits or FolderLimits()
        if os.open not in os.supports_dir_fd:
            raise SourceError(
                "this system cannot limit reading to a folder, because it has no openat()"
            )
        if not self.root.is_dir():
            raise SourceError(f"there is no folder {str(root)!r}: name one that may be read")

    def list_folder(self, path: str) -> FolderListing:
        parts = self._resolved(path, NO_FOLDER)
        entry_limit = self.limits.entries
        with (
            fixed_messages(NO_FOLDER),
            opened_folder(self.root, parts) as folder,
            os.scandir(folder) as all_entries,
        ):
            scanned = list(islice(all_entries, self.limits.scanned))
            has_more = next(all_entries, None) is not None
            scanned.sort(key=lambda e: (not e.is_dir(follow_symlinks=False), e.name.casefold()))
            entries = [self._entry(parts, entry) for entry in scanned[:entry_limit]]
        truncated = has_more or len(scanned) > entry_limit
        return {"path": shown_path(parts), "entries": entries, "truncated": truncated}

    def read_text(self, path: str) -> TextFile:
        parts = self._resolved(path, NO_FILE)
        byte_limit = self.limits.file_bytes
        if not parts:
            raise CapabilityError(NOT_A_FILE)
        with (
            fixed_messages(NO_FILE),
            opened_folder(self.root, parts[:-1]) as folder,
            Reading() as reading,
            reading.file(parts[-1], folder) as stream,
        ):
            size = os.fstat(stream.fileno()).st_size
            content = stream.read(byte_limit + 1)
        if looks_binary(content):
            raise CapabilityError(NOT_TEXT)
        truncated = len(content) > byte_limit
        decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        # not final if truncated, so that no half character is at the end
        text = decoder.decode(content[:byte_limit], final=not truncated)
        return {"path": shown_path(parts), "text": text, "size": size, "truncated": truncated}

    def search(self, query: str, path: str) -> FileMatches:
        parts = self._resolved(path, NO_FILE)
        with (
            fixed_messages(NO_FILE),
            opened_folder(self.root, parts[:-1]) as above,
            Reading() as reading,
        ):
            search = Search(query, self.limits.search, reading)
            if not parts or is_folder(parts[-1], above):
                with opened_folder(self.root, parts) as folder:
                    search.below(folder, parts)
            else:
                with reading.file(parts[-1], above) as stream:
                    search.within(stream, parts)
        return {"matches": search.matches, "truncated": search.truncated}

    def _resolved(self, path: str, missing_message: str) -> tuple[str, ...]:
        """Return the names that lead from the root to the target of a path, with links followed."""
        if "\0" in path or len(path) > _LONGEST_PATH:
            raise CapabilityError(missing_message)
        try:
            return Path(os.path.realpath(self.root / path)).relative_to(self.root).parts
        except UnicodeError:
            raise CapabilityError(missing_message) from None
        except ValueError:
            raise CapabilityError(OUTSIDE) from None

    def _entry(self, parts: tuple[str, ...], entry: os.DirEntry[str]) -> FolderEntry:
        kind: Literal["file", "folder", "other"] = "other"
        size = 0
        try:
            mode, length = self._mode_and_size(parts, entry)
        except (OSError, CapabilityError):  # gone, or a link that leads outside or nowhere
            pass
        else:
            if stat.S_ISDIR(mode):
                kind = "folder"
            elif stat.S_ISREG(mode):
                kind, size = "file", length
        return {"name": printable(entry.name), "kind": kind, "size": size}

    def _mode_and_size(self, parts: tuple[str, ...], entry: os.DirEntry[str]) -> tuple[int, int]:
        """Return an entry's mode and size; for a link its target's, if that may be read."""
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            target = self._resolved("/".join((*parts, entry.name)), NO_FILE)
            status = os.lstat(self.root.joinpath(*target))
        return status.st_mode, status.st_size
