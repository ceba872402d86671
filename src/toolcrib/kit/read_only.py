"""A SQLite file as a `Database` that nothing can change, whatever the SQL says.

Each question is answered by a process of its own (`sqlite_process`), which is killed when its time is
over, or nobody waits for the answer any more: nothing else ends a statement for sure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from toolcrib.errors import CapabilityError, SourceError
from toolcrib.kit.database import Cell, DatabaseTables, QueryResult
from toolcrib.kit.sql_errors import error_of
from toolcrib.threads import stopped_by

_UNUSABLE = ("SQLITE_CANTOPEN", "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_READONLY")
_SCRIPT = str(Path(__file__).with_name("sqlite_process.py"))


class DatabaseLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one question may cost, and what it may be answered with; the rest is cut, and said to be.

    `rows` of a result, or tables of a description; `cell_characters` of a text; `result_bytes` of
    all as JSON; `value_bytes` is the largest text or blob that is looked at, `memory_bytes` what
    SQLite may use, `seconds` the time until the process is killed.
    """

    rows: int = 200
    cell_characters: int = 2_000
    result_bytes: int = 64 * 1024
    value_bytes: int = 16 * 1024 * 1024
    memory_bytes: int = 256 * 1024 * 1024
    seconds: float = 10.0


class ReadOnlyDatabase:
    """Reads one SQLite file: opened with `mode=ro`, and an authorizer that permits reading only.

    One statement at a time, no ATTACH, no extension, no PRAGMA but those that describe tables. A
    database in WAL mode needs a folder that can be written to, since SQLite keeps two files beside
    it for readers, too. Raises SourceError if `path` is no file of SQLite.
    """

    def __init__(self, path: str | Path, limits: DatabaseLimits | None = None) -> None:
        self.limits = limits or DatabaseLimits()
        try:
            self.path = Path(path).resolve()
            found = self.path.is_file()
        except (OSError, ValueError, RuntimeError):  # too long, a NUL in it, a loop of links
            found = False
        if not found:
            raise SourceError(f"there is no database file {str(path)!r}")
        # Not looked into here: a process that closes a file loses the locks that SQLite has on it.
        answer = self._answer({"sql": "SELECT 1 FROM sqlite_master", "parameters": []})
        if answer.get("error", "").startswith(_UNUSABLE):
            reason = error_of(answer["error"], "", "").safe_text
            raise SourceError(f"the database {str(path)!r} cannot be used: {reason}")

    def describe(self) -> DatabaseTables:
        found: DatabaseTables = self._ask({})
        return found

    def query(self, sql: str, parameters: Sequence[Cell] = ()) -> QueryResult:
        found = self._ask({"sql": sql, "parameters": list(parameters)})
        return {
            "columns": found["columns"],
            "rows": found["rows"],
            "row_count": len(found["rows"]),
            "truncated": found["truncated"],
        }

    def _ask(self, question: Mapping[str, Any]) -> Any:
        """Raises ToolError, CapabilityError."""
        answer = self._answer(question)
        if "error" in answer:
            raise error_of(answer["error"], answer.get("message", ""), question.get("sql", ""))
        return answer

    def _answer(self, question: Mapping[str, Any]) -> Any:
        """What the process says, or what became of it. Raises CapabilityError if there is none."""
        asked = {
            **question,
            "uri": f"{self.path.as_uri()}?mode=ro",  # as_uri() quotes what a URI takes as its own
            "limits": msgspec.to_builtins(self.limits),
        }
        try:
            process = subprocess.Popen(  # noqa: S603  our own script; the question is on stdin
                [sys.executable, "-I", "-S", _SCRIPT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            raise CapabilityError("the database cannot be asked: no process was started") from None
        with process, stopped_by(process.kill):  # a cancelled question ends at once
            try:
                said, _ = process.communicate(json.dumps(asked).encode(), self.limits.seconds)
                return json.loads(said) if process.returncode == 0 else {"error": "DIED"}
            except subprocess.TimeoutExpired:
                return {"error": "TIME"}
            except ValueError:
                return {"error": "DIED"}
            finally:
                process.kill()
