"""Searching files for a text, within limits: a search always ends, and says if it ended early."""

from __future__ import annotations

import os
import time
from typing import BinaryIO

import msgspec

from toolcrib.errors import CapabilityError
from toolcrib.kit.files import LineMatch
from toolcrib.kit.opening import Reading, looks_binary, printable, shown_path

_NO_SOURCES = frozenset({"__pycache__", "node_modules", "site-packages"})
_ENVIRONMENT = "pyvenv.cfg"  # what marks the folder of a virtual environment


class SearchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one search may read and answer with; a larger file is searched up to `file_bytes`."""

    matches: int = 50
    line_characters: int = 200
    files: int = 5_000
    file_bytes: int = 1024 * 1024
    bytes: int = 64 * 1024 * 1024
    depth: int = 20
    seconds: float = 5.0


class Search:
    """One search: `matches` as far as it came, `truncated` if there may be more."""

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
        """All files below an open folder, but hidden, installed and generated ones; no links."""
        for where, folders, files, opened in os.fwalk(".", dir_fd=folder):
            inside = where.split("/")[1:]
            if inside and _ENVIRONMENT in files:
                folders.clear()
                continue
            folders[:] = sorted(filter(_is_source, folders))
            if folders and len(inside) >= self._limits.depth:
                folders.clear()
                self.truncated = True
            for name in sorted(filter(_is_source, files)):
                if self._is_over():
                    self.truncated = True
                    return
                self._try(name, opened, (*parts, *inside, name))

    def within(self, stream: BinaryIO, parts: tuple[str, ...]) -> None:
        """One open file; a binary one has no lines, and no matches."""
        most = self._limits.file_bytes
        content = stream.read(most + 1)
        self._files_left -= 1
        self._bytes_left -= len(content)
        if looks_binary(content):
            return
        self.truncated |= len(content) > most
        text = content[:most].decode("utf-8", "replace")
        if self._needle not in text.casefold():
            return
        for number, line in enumerate(text.split("\n"), 1):
            at = line.casefold().find(self._needle)
            if at < 0:
                continue
            if len(self.matches) == self._limits.matches:
                self.truncated = True
                return
            shown = printable(self._cut(line.rstrip("\r"), at))
            self.matches.append({"path": shown_path(parts), "line": number, "text": shown})

    def _try(self, name: str, folder: int, parts: tuple[str, ...]) -> None:
        """What cannot be read (a pipe, a link, a file in use) is not what was asked for."""
        try:
            with self._reading.file(name, folder) as stream:
                self.within(stream, parts)
        except (OSError, CapabilityError):
            pass

    def _is_over(self) -> bool:
        return (
            len(self.matches) >= self._limits.matches
            or self._files_left <= 0
            or self._bytes_left <= 0
            or time.monotonic() >= self._deadline
        )

    def _cut(self, line: str, at: int) -> str:
        most = self._limits.line_characters
        start = max(0, min(at - most // 4, len(line) - most))
        end = start + most
        return f"{'…' if start else ''}{line[start:end]}{'…' if end < len(line) else ''}"


def _is_source(name: str) -> bool:
    return not name.startswith(".") and name not in _NO_SOURCES
