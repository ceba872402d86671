"""Results too large for a model: stored in a folder or the database of the audit log, read in parts.

Rule: only the text that the model would have been sent is stored, and nothing else of a result. It
is found by its id and its caller together. The name of a file or row contains neither, and is not
made from anything that a model writes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol, TypedDict

from toolcrib.closing import Closing
from toolcrib.errors import SourceError
from toolcrib.storage import OWNER_ONLY, SqlDatabase, Transaction, replacing
from toolcrib.tools import Tool, capability, tool
from toolcrib.values.context import CallContext
from toolcrib.values.json import JsonObject, sha256_hex
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
    SourceError if the store cannot be used, the constructor MissingExtraError for a database
    without SQLAlchemy.
    """

    @names_wrong_types
    def __init__(self, place: str | Path, *, mode: int = OWNER_ONLY) -> None:
        self._mode = mode
        is_url = isinstance(place, str) and "://" in place
        self._database = SqlDatabase(str(place), mode=mode) if is_url else None
        self._folder = Path(place).absolute()

    async def keep(self, caller: str, texts: Mapping[str, str]) -> None:
        """Store texts by their ids, for one caller. Texts that are already stored do not change."""
        texts_by_name = {_name(caller, id_): text for id_, text in texts.items()}
        if not texts_by_name:
            return
        if self._database is not None:
            await self._database.transact(partial(_keep_each, texts_by_name))
        else:
            await asyncio.to_thread(self._write, texts_by_name)

    async def read(self, caller: str, id: str) -> str | None:  # noqa: A002
        """Return the text of this id, if it was stored for this caller."""
        name = _name(caller, id)
        if self._database is None:
            return await asyncio.to_thread(self._read, name)
        rows = await self._database.read(_READ, name=name)
        return json.loads(rows[0]["text"]) if rows else None

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

    def _write(self, texts_by_name: Mapping[str, str]) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name, text in texts_by_name.items():
                path = self._folder / f"{name}{_SUFFIX}"
                if not path.exists():
                    with replacing(path, mode=self._mode) as file:  # others may write the same
                        file.write(text.encode("utf-8", "surrogatepass"))
        except (OSError, ValueError) as error:
            raise self._error_for("written to", error) from None

    def _read(self, name: str) -> str | None:
        try:
            return (self._folder / f"{name}{_SUFFIX}").read_bytes().decode("utf-8", "surrogatepass")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # a path with a NUL, or a text that is not valid
            raise self._error_for("read", error) from None

    def _delete(self, until: float) -> int:
        deleted = 0
        try:
            for path in self._folder.glob(f"*{_SUFFIX}"):
                with suppress(FileNotFoundError):  # somebody else deletes it
                    if path.stat().st_mtime <= until:
                        path.unlink()
                        deleted += 1
        except (OSError, ValueError) as error:
            raise self._error_for("cleared", error) from None
        return deleted

    def _error_for(self, action: str, error: Exception) -> SourceError:
        reason = type(error).__name__
        return SourceError(f"the folder of results, {self._folder}, cannot be {action} ({reason})")


def _keep_each(texts_by_name: Mapping[str, str], transaction: Transaction) -> None:
    """Store texts in a fixed order, in which no two writers wait for each other."""
    for name, text in sorted(texts_by_name.items()):
        # as JSON in ASCII: every database accepts all its characters
        transaction.execute(_KEEP, name=name, now=time.time(), text=json.dumps(text))


def _name(caller: str, id_: str) -> str:
    """Return the name that a caller's result is stored under, unique for each pair."""
    return sha256_hex(f"{len(caller)}:{caller}{id_}")


# `read_result`: the tool that returns what was left out.
#
# It is a tool like any other: offered, hydrated, decided and recorded as such. It is offered from
# the beginning, because adding a tool later would change the beginning of each request.

NAME = "read_result"
_MOST_FOUND = 10
_AROUND = 80  # characters on each side of a match
UNKNOWN = "This run has no shortened result of that id."
LOST = "The part left out of that result is no longer kept: make the call again."


@capability
class ResultReader(Protocol):
    """Returns what was left out of the results of one run."""

    async def text(self, id: str, caller: str) -> str: ...  # noqa: A002

    def page(self, text: str) -> str: ...


class FoundText(TypedDict):
    at: int
    text: str


class ResultText(TypedDict):
    start: int
    end: int
    size: int
    text: str
    found: list[FoundText]


_INPUT: JsonObject = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "maxLength": 100, "description": "The id in the mark."},
        "start": {
            "type": "integer",
            "minimum": 0,
            "default": 0,
            "description": "The first character to read.",
        },
        "end": {
            "anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}],
            "default": None,
            "description": "The character to stop before.",
        },
        "search": {
            "type": "string",
            "maxLength": 200,
            "default": "",
            "description": "Only find this text, and say where it is.",
        },
    },
    "required": ["id"],
    "additionalProperties": False,
}


@cache
def read_result() -> Tool[..., Any]:
    """Return the tool; made when it is first needed."""

    @tool(
        visible=["start", "end", "size"],
        read_only=True,
        idempotent=True,
        name=NAME,
        input_schema=_INPUT,
    )
    async def read(
        id: str,  # noqa: A002
        results: ResultReader,
        context: CallContext,
        start: int = 0,
        end: int | None = None,
        search: str = "",
    ) -> ResultText:
        """Read from a result of which a mark like [900000 characters left out, read_result(id='r_…')]
        says that it is not all there, or search it.

        Where less came than was asked for, read on from the `end` that came.
        """
        text = await results.text(id, context.caller.id)
        stop = len(text) if end is None else max(start, min(end, len(text)))
        if search:
            matches = _matches(text, search, start, stop)
            shown = _fitting(matches, len(results.page("".join(each["text"] for each in matches))))
            has_more = len(shown) < len(matches) or len(shown) == _MOST_FOUND
            begin = shown[0]["at"] if shown else stop
            last = shown[-1]["at"] + len(search) if has_more else stop
            return {"start": begin, "end": last, "size": len(text), "text": "", "found": shown}
        piece = results.page(text[start:stop])
        at = min(start, len(text))
        return {"start": at, "end": at + len(piece), "size": len(text), "text": piece, "found": []}

    return read


def _matches(text: str, search: str, start: int, stop: int) -> list[FoundText]:
    matches: list[FoundText] = []
    position = text.find(search, start, stop)
    while position >= 0 and len(matches) < _MOST_FOUND:
        excerpt = text[max(0, position - _AROUND) : position + len(search) + _AROUND]
        matches.append({"at": position, "text": excerpt})
        position = text.find(search, position + len(search), stop)
    return matches


def _fitting(matches: list[FoundText], max_characters: int) -> list[FoundText]:
    """Return the first places, at least one, whose texts have at most `max_characters` in all."""
    fitting: list[FoundText] = []
    remaining = max_characters
    for match in matches:
        remaining -= len(match["text"])
        if fitting and remaining < 0:
            break
        fitting.append(match)
    return fitting
