"""Bytes kept by key in one SQLite file, for as many processes and threads as like.

Rule: nothing is ever wrong, only missing. Each entry ends in a hash of its key and its bytes, and one
that does not fit them is not there. A cache that is broken is begun anew; a file that is something else
is refused and left alone.

A connection lives for one operation (0.15 ms), so that none is carried across a fork or left open,
and a file that is deleted meanwhile is made again. Nothing is synced: a killed process breaks nothing,
since SQLite's journal undoes what it had half written, and what a power cut breaks the hashes find.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from errno import EEXIST
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from toolcrib.errors import SourceError

T = TypeVar("T")

_MAGIC, _AT, _APPLICATION = b"SQLite format 3\0", 68, 0x7463_7631
"""https://www.sqlite.org/fileformat.html#the_database_header"""
_CREATE = (
    f"PRAGMA application_id = {_APPLICATION}",
    "CREATE TABLE entry (key BLOB NOT NULL UNIQUE, bytes BLOB NOT NULL, used INTEGER NOT NULL)",
    "CREATE INDEX entry_used ON entry (used)",
)
_OLDEST = """DELETE FROM entry WHERE rowid IN
    (SELECT rowid FROM entry ORDER BY used, rowid LIMIT 1 + (SELECT count(*) FROM entry) / 10)"""
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
"""`SQLITE_ERROR` is what a table that lacks something gives: the statements are all written here."""
_PATIENCE = 2.0
"""Seconds that a busy file is waited for."""
_HOUR = 3600
"""Seconds by which `used` may be behind, so that most reads write nothing."""
_AT_ONCE = 500
_HASH = 8


class VectorFile:
    """Entries at `path`, at most `max_bytes` together: those not used for longest go first.

    `sole` says that nothing else is meant to lie at `path`: whatever does is replaced. Its methods
    raise SourceError where a file of another kind is there, OSError or sqlite3.Error where it cannot
    be used.
    """

    def __init__(self, path: Path, *, max_bytes: int, sole: bool) -> None:
        self._path = path.absolute()  # ":memory:" would be none, and the working folder may change
        self._max_bytes = max_bytes
        self._sole = sole

    def get(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """What is kept of these keys."""
        wanted = list(keys)
        return self._done(lambda connection: _read(connection, wanted))

    def put(self, entries: Mapping[bytes, bytes]) -> None:
        """Keep these as well, all of them or none."""
        self._done(lambda connection: _write(connection, entries, self._max_bytes))

    def _done(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What comes of it; of a file that turns out to be broken, with a new one."""
        try:
            return self._with_connection(work)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _BROKEN:
                raise
        if not (self._sole or self._is_ours()):
            raise SourceError(
                f"{self._path} is no cache of vectors: delete it, or name another file"
            )
        self._path.with_name(f"{self._path.name}-journal").unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        return self._with_connection(work)

    def _with_connection(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if not self._path.exists():
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.touch(mode=0o600)  # SQLite gives its journal the same
        if not self._path.is_file():
            raise FileExistsError(EEXIST, "what is there is no file")
        where = f"{self._path.as_uri()}?mode=rw"  # SQLite would create it for all to read
        connection = sqlite3.connect(where, uri=True, timeout=_PATIENCE, isolation_level=None)
        with closing(connection):
            connection.text_factory = bytes
            connection.execute("PRAGMA synchronous = OFF")
            if _number(connection, "PRAGMA application_id") != _APPLICATION:
                _transact(connection, _create)
            return work(connection)

    def _is_ours(self) -> bool:
        """An empty file or none is one that another process has just begun anew."""
        try:
            with self._path.open("rb") as file:
                head = file.read(_AT + 4)
        except FileNotFoundError:
            return True
        ours = head.startswith(_MAGIC) and head[_AT:] == _APPLICATION.to_bytes(4, "big")
        return ours or not head


class _ForeignError(sqlite3.DatabaseError):
    """A database, and not one of ours."""

    sqlite_errorcode = sqlite3.SQLITE_NOTADB


def _transact(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], None]) -> None:
    """A connection that is closed in the middle undoes it."""
    connection.execute("BEGIN IMMEDIATE")
    work(connection)
    connection.execute("COMMIT")


def _create(connection: sqlite3.Connection) -> None:
    if _number(connection, "PRAGMA application_id") == _APPLICATION:
        return  # another process was first
    if _number(connection, "SELECT count(*) FROM sqlite_master"):
        raise _ForeignError("it is another database")
    for statement in _CREATE:
        connection.execute(statement)


def _read(connection: sqlite3.Connection, keys: list[bytes]) -> dict[bytes, bytes]:
    now = int(time.time())
    found: dict[bytes, bytes] = {}
    stale: list[tuple[int, bytes]] = []
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        marks = ",".join("?" * len(some))
        rows = connection.execute(
            f"SELECT key, bytes, used FROM entry WHERE key IN ({marks})",  # noqa: S608  only marks
            some,
        )
        for key, kept, used in rows.fetchall():
            if isinstance(kept, bytes) and kept[-_HASH:] == _hash(key, kept[:-_HASH]):
                found[key] = kept[:-_HASH]
                if not isinstance(used, int) or abs(now - used) > _HOUR:
                    stale.append((now, key))
    if stale:
        with suppress(sqlite3.OperationalError):  # busy or read-only: it is read all the same
            _transact(connection, lambda opened: _touch(opened, stale))
    return found


def _touch(connection: sqlite3.Connection, rows: list[tuple[int, bytes]]) -> None:
    connection.executemany("UPDATE entry SET used = ? WHERE key = ?", rows)


def _write(connection: sqlite3.Connection, entries: Mapping[bytes, bytes], max_bytes: int) -> None:
    now = int(time.time())
    rows = [(key, kept + _hash(key, kept), now) for key, kept in entries.items()]

    def insert(opened: sqlite3.Connection) -> None:
        opened.executemany("INSERT OR REPLACE INTO entry (key, bytes, used) VALUES (?, ?, ?)", rows)
        page = _number(opened, "PRAGMA page_size")
        while _pages(opened) * page > max_bytes and opened.execute(_OLDEST).rowcount:
            pass

    _transact(connection, insert)


def _pages(connection: sqlite3.Connection) -> int:
    """Those in use; the others are used again before the file grows."""
    return _number(connection, "PRAGMA page_count") - _number(connection, "PRAGMA freelist_count")


def _number(connection: sqlite3.Connection, statement: str) -> int:
    found: int = connection.execute(statement).fetchone()[0]
    return found


def _hash(key: bytes, kept: bytes) -> bytes:
    return blake2b(key + kept, digest_size=_HASH).digest()
