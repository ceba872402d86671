"""Which database a command is about. To look into one never makes one, or changes another's."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from toolcrib.cli.where import UnusableError
from toolcrib.errors import SourceError

DATABASE = "sqlite:///crib.db"
_SQLITE = re.compile(r"sqlite(?:\+[a-z]+)?://(?:/([^?]*))?(?:\?.*)?", re.DOTALL)
_PASSWORD = re.compile(r"(://[^:/@]*:).*(@)|([?&]password=)[^&]*", re.DOTALL)
_MAGIC = b"SQLite format 3\0"


def check_url(url: str) -> None:
    """Raises UnusableError for what is no URL, such as the bare name of a file."""
    if "://" not in url:
        raise UnusableError(f"{url}: give the URL of a database, such as {DATABASE}")


def existing_file(url: str) -> Path | None:
    """The file of a SQLite database; None for a server's, of which nothing is known here.

    Raises UnusableError if there is no such file.
    """
    check_url(url)
    found = _SQLITE.fullmatch(url)
    if found is None or (found[1] or "").startswith("file:"):
        return None
    if found[1] in (None, "", ":memory:"):
        raise UnusableError(f"{url}: a database in memory is gone with its program")
    file = Path(found[1])
    if not file.is_file():
        absent = "it is a directory" if file.is_dir() else "there is no such file"
        raise UnusableError(f"{url}: {absent}")
    return file


def check_holds(table: str, url: str, absent: str) -> None:
    """Raises UnusableError as `existing_file` does, and SourceError for a file without that table.

    To open the database of something else would put tables into it.
    """
    file = existing_file(url)
    if file is None:
        return
    try:
        with file.open("rb") as opened:
            start = opened.read(len(_MAGIC))
    except OSError as error:
        raise SourceError(f"{url}: {error.strerror}") from None
    if start != _MAGIC:
        raise SourceError(f"{url}: it is not a SQLite database")
    query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?"
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            tables = database.execute(query, [table]).fetchone()[0]
    except sqlite3.Error:
        return  # whoever opens it says what is wrong with it
    if not tables:
        raise SourceError(f"{url}: {absent}")


def shown(url: str) -> str:
    """The URL less the password in it."""
    return _PASSWORD.sub(lambda found: f"{found[1] or found[3]}***{found[2] or ''}", url)
