"""A folder as a jail: what is read lies below the root, whatever a path and its links say.

A path is resolved first, links and all, and refused if it leads outside, whether or not anything is
there. What it came to is opened by `opening`, which follows no link any more.
"""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, Literal

import msgspec

from toolcrib.errors import CapabilityError, SourceError
from toolcrib.kit.files import FileMatches, FolderEntry, FolderListing, TextFile
from toolcrib.kit.opening import (
    NO_FILE,
    NO_FOLDER,
    NOT_A_FILE,
    Reading,
    is_folder,
    looks_binary,
    opened_folder,
    printable,
    shown_path,
    told,
)
from toolcrib.kit.search import Search, SearchLimits

OUTSIDE: Final = "the path is outside the folder that may be read"
NOT_TEXT: Final = "that is not a text file"
_LONGEST_PATH = 1024


class FolderLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one call may answer with; the rest is cut, and said to be.

    `scanned` is how many entries of a folder are looked at, to sort them and show the first
    `entries`; `file_bytes` how much of a file is read.
    """

    entries: int = 200
    scanned: int = 10_000
    file_bytes: int = 64 * 1024
    search: SearchLimits = SearchLimits()


class JailedFolder:
    """Reads below `root` and nowhere else: a folder of this machine as a `FileRoot`.

    A file that this process has open, such as the database of its audit log or a file that it logs to,
    is listed but not read: closing it again would drop the locks that this process has on it (what
    holds where that cannot be told: `opening.Reading`). Searching leaves it out, as it does hidden
    files and folders, virtual environments, installed packages, binary files and links. Needs a system
    that opens a file relative to a folder (Linux, macOS). Raises SourceError for that, and if `root` is
    no folder.
    """

    def __init__(self, root: str | Path, limits: FolderLimits | None = None) -> None:
        self.root = Path(os.path.realpath(root))
        self.limits = limits or FolderLimits()
        if os.open not in os.supports_dir_fd:
            raise SourceError("folders cannot be jailed on this system: it has no openat()")
        if not self.root.is_dir():
            raise SourceError(f"there is no folder {str(root)!r}: name one that may be read")

    def list_folder(self, path: str) -> FolderListing:
        parts = self._resolved(path, NO_FOLDER)
        most = self.limits.entries
        with told(NO_FOLDER), opened_folder(self.root, parts) as folder, os.scandir(folder) as all_:
            scanned = list(islice(all_, self.limits.scanned))
            more = next(all_, None) is not None
            scanned.sort(key=lambda e: (not e.is_dir(follow_symlinks=False), e.name.casefold()))
            entries = [self._entry(parts, entry) for entry in scanned[:most]]
        truncated = more or len(scanned) > most
        return {"path": shown_path(parts), "entries": entries, "truncated": truncated}

    def read_text(self, path: str) -> TextFile:
        parts = self._resolved(path, NO_FILE)
        most = self.limits.file_bytes
        with told(NO_FILE), self._file(parts) as stream:
            size = os.fstat(stream.fileno()).st_size
            content = stream.read(most + 1)
        if looks_binary(content):
            raise CapabilityError(NOT_TEXT)
        truncated = len(content) > most
        decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        text = decoder.decode(content[:most], final=not truncated)  # no half character at the cut
        return {"path": shown_path(parts), "text": text, "size": size, "truncated": truncated}

    def search(self, query: str, path: str) -> FileMatches:
        parts = self._resolved(path, NO_FILE)
        with (
            told(NO_FILE),
            opened_folder(self.root, parts[:-1]) as above,
            Reading() as reading,
        ):
            found = Search(query, self.limits.search, reading)
            if not parts or is_folder(parts[-1], above):
                with opened_folder(self.root, parts) as folder:
                    found.below(folder, parts)
            else:
                with reading.file(parts[-1], above) as stream:
                    found.within(stream, parts)
        return {"matches": found.matches, "truncated": found.truncated}

    def _resolved(self, path: str, missing: str) -> tuple[str, ...]:
        """The names that lead from the root to where a path goes, links followed."""
        if "\0" in path or len(path) > _LONGEST_PATH:
            raise CapabilityError(missing)
        try:
            return Path(os.path.realpath(self.root / path)).relative_to(self.root).parts
        except UnicodeError:
            raise CapabilityError(missing) from None
        except ValueError:
            raise CapabilityError(OUTSIDE) from None

    @contextmanager
    def _file(self, parts: tuple[str, ...]) -> Iterator[BinaryIO]:
        if not parts:
            raise CapabilityError(NOT_A_FILE)
        with (
            opened_folder(self.root, parts[:-1]) as folder,
            Reading() as reading,
            reading.file(parts[-1], folder) as stream,
        ):
            yield stream

    def _entry(self, parts: tuple[str, ...], entry: os.DirEntry[str]) -> FolderEntry:
        kind: Literal["file", "folder", "other"] = "other"
        size = 0
        try:
            mode, length = self._facts(parts, entry)
        except (OSError, CapabilityError):  # gone meanwhile, or a link that leads out or nowhere
            pass
        else:
            if stat.S_ISDIR(mode):
                kind = "folder"
            elif stat.S_ISREG(mode):
                kind, size = "file", length
        return {"name": printable(entry.name), "kind": kind, "size": size}

    def _facts(self, parts: tuple[str, ...], entry: os.DirEntry[str]) -> tuple[int, int]:
        """Mode and size of an entry; of a link, those of what it leads to, if that may be read."""
        facts = entry.stat(follow_symlinks=False)
        if stat.S_ISLNK(facts.st_mode):
            target = self._resolved("/".join((*parts, entry.name)), NO_FILE)
            facts = os.lstat(self.root.joinpath(*target))
        return facts.st_mode, facts.st_size
