"""Stores results that are too large for a model: in a folder, or the database of the audit log.

Rule: only the text that the model would have been sent is stored, and nothing else of a result. It
is found by its id and its caller together. The name of a file or row contains neither, and is not
made from anything that a model writes.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from toolcrib.closing import Closing
from toolcrib.errors import SourceError
from toolcrib.storage import OWNERS, SqlDatabase, Transaction, create_private
from toolcrib.values.json import sha256_hex
from toolcrib.values.typed import check_type, names_wrong_types

_KEEP = """INSERT INTO spilled_results (name, kept_at, text) VALUES (:name, :now, :text)
    ON CONFLICT (name) DO NOTHING"""
_READ = "SELECT text FROM spilled_results WHERE name = :name"
_FORGET = "DELETE FROM spilled_results WHERE kept_at <= :until"
_SUFFIX = ".result"


class ResultStore(Closing):
    """Keeps large results for `ContextOptions(results=…)`.

    `ResultStore("results/")` is a folder, `ResultStore("sqlite:///crib.db")` a database, such as
    that of an `AuditLog`. New files and SQLite files are accessible only to their owner, unless
    `mode` says otherwise. Nothing is deleted automatically: call `forget`. All methods raise
    SourceError if the store cannot be used, and MissingExtraError for a database without
    SQLAlchemy.
    """

    @names_wrong_types
    def __init__(self, place: str | Path, *, mode: int = OWNERS) -> None:
        self._mode = mode
        is_url = isinstance(place, str) and "://" in place
        self._database = SqlDatabase(str(place), mode=mode) if is_url else None
        self._folder = Path(place).absolute()

    async def keep(self, caller: str, texts: Mapping[str, str]) -> None:
        """Store texts by their ids, for one caller. Texts that are already stored do not change."""
        named = {_name(caller, id_): text for id_, text in texts.items()}
        if not named:
            return
        if self._database is not None:
            await self._database.transact(partial(_keep_each, named))
        else:
            await asyncio.to_thread(self._write, named)

    async def read(self, caller: str, id: str) -> str | None:  # noqa: A002
        """Return the text of this id, if it was stored for this caller."""
        name = _name(caller, id)
        if self._database is None:
            return await asyncio.to_thread(self._read, name)
        found = await self._database.read(_READ, name=name)
        return json.loads(found[0]["text"]) if found else None

    async def forget(self, *, older_than: float) -> int:
        """Delete what was stored more than `older_than` seconds ago; return how many results."""
        check_type("older_than", older_than, (int, float), "a number of seconds")
        until = time.time() - older_than
        if self._database is None:
            return await asyncio.to_thread(self._delete, until)
        return await self._database.write(_FORGET, until=until)

    async def aclose(self) -> None:
        """Close the connections; the next use opens new ones. `async with` does this, too."""
        if self._database is not None:
            await self._database.aclose()

    def _write(self, named: Mapping[str, str]) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name, text in named.items():
                path = self._folder / f"{name}{_SUFFIX}"
                if not path.exists():
                    self._write_whole(path, text.encode("utf-8", "surrogatepass"))
        except (OSError, ValueError) as error:
            raise self._failed("written to", error) from None

    def _write_whole(self, path: Path, data: bytes) -> None:
        """Write a file completely or not at all, even if others write the same one."""
        half = path.with_suffix(f".{os.urandom(8).hex()}")
        try:
            with create_private(half, new=True, mode=self._mode) as file:
                file.write(data)
            half.replace(path)
        finally:
            with suppress(FileNotFoundError):
                half.unlink()

    def _read(self, name: str) -> str | None:
        try:
            return (self._folder / f"{name}{_SUFFIX}").read_bytes().decode("utf-8", "surrogatepass")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # a path with a NUL, or a text that is not valid
            raise self._failed("read", error) from None

    def _delete(self, until: float) -> int:
        deleted = 0
        try:
            for path in self._folder.glob(f"*{_SUFFIX}"):
                with suppress(FileNotFoundError):  # somebody else deletes it
                    if path.stat().st_mtime <= until:
                        path.unlink()
                        deleted += 1
        except (OSError, ValueError) as error:
            raise self._failed("cleared", error) from None
        return deleted

    def _failed(self, what: str, error: Exception) -> SourceError:
        why = type(error).__name__
        return SourceError(f"the folder of results, {self._folder}, cannot be {what} ({why})")


def _keep_each(named: Mapping[str, str], transaction: Transaction) -> None:
    """Store texts in a fixed order, in which no two writers wait for each other."""
    for name, text in sorted(named.items()):
        # as JSON in ASCII: every database accepts all its characters
        transaction.execute(_KEEP, name=name, now=time.time(), text=json.dumps(text))


def _name(caller: str, id_: str) -> str:
    """Return the name that a caller's result is stored under, unique for each pair."""
    return sha256_hex(f"{len(caller)}:{caller}{id_}")
