"""The process that answers one question to a database, and may only read.

A statement can keep SQLite busy in a single step that nothing interrupts (`trim` of two long texts,
for minutes), so the process is killed from outside. Its memory is limited inside. It is started as
a script and sees only the standard library, with a JSON object on stdin and another one on stdout.
"""

from __future__ import annotations

import json
import math
import signal
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, TypeAlias

Answer: TypeAlias = dict[str, Any]

_LONGEST_NAME = 200
_BUSY_SECONDS = 1.0
# Those that describe tables, and those that FTS5 itself uses when read. None can change anything.
_PRAGMAS = frozenset(
    (
        *("table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo"),
        *("foreign_key_list", "data_version"),
    )
)
_NO_FUNCTIONS = frozenset(("load_extension", "fts3_tokenizer"))
_FUNCTION_TABLES = ("json_each", "json_tree", *(f"pragma_{name}" for name in sorted(_PRAGMAS)))
_READING_ACTIONS = frozenset((sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE))
_VIRTUAL_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage = 0 LIMIT 100"
_TABLES = (
    "SELECT name, type FROM pragma_table_list WHERE schema = 'main' AND type <> 'shadow' "
    "AND substr(name, 1, 7) <> 'sqlite_' ORDER BY name"
    if sqlite3.sqlite_version_info >= (3, 37)
    else "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') "
    "AND substr(name, 1, 7) <> 'sqlite_' ORDER BY name"
)
# This includes computed columns, and leaves out the hidden ones of a virtual table.
_COLUMNS = "SELECT name, type FROM pragma_table_xinfo(?) WHERE hidden <> 1"


class _Refused(Exception):  # noqa: N818  it becomes an answer
    """There is no result; the first argument is the name of the reason."""


def answer(request: Answer) -> Answer:
    """Return the result, or `error` (SQLite's name for it, or one of ours) and SQLite's `message`.

    `request` has the `uri` of the database, the `limits`, and either `sql` with `parameters`, or
    neither.
    """
    limits = request["limits"]
    try:
        with closing(_opened_database(request["uri"], limits)) as database:
            if "sql" in request:
                return _rows(database, request["sql"], request["parameters"], limits)
            return _described_tables(database, limits)
    except _Refused as refused:
        return {"error": refused.args[0]}
    except MemoryError:
        return {"error": "SQLITE_NOMEM"}
    except UnicodeDecodeError:  # from the name of a column
        return {"error": "SQLITE_CORRUPT"}
    except UnicodeEncodeError:  # from the statement, or one of its values
        return {"error": "SQLITE_ERROR", "message": ""}
    except OverflowError:  # from one of its values
        return {"error": "SQLITE_MISMATCH"}
    except (sqlite3.Error, sqlite3.Warning) as error:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        return {"error": name, "message": str(error)}


def _opened_database(uri: str, limits: Answer) -> sqlite3.Connection:
    database = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    database.text_factory = _text
    database.execute(f"PRAGMA hard_heap_limit={limits['memory_bytes']:d}").close()
    for pragma in ("temp_store=MEMORY", "query_only=ON", "trusted_schema=OFF"):
        database.execute(f"PRAGMA {pragma}").close()
    _open_virtual_tables(database)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits["value_bytes"])
    database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    database.set_authorizer(_permitted)
    return database


def _open_virtual_tables(database: sqlite3.Connection) -> None:
    """Open each virtual table before writing is denied, as some prepare to write at first use."""
    names = [name for (name,) in database.execute(_VIRTUAL_TABLES)]
    for name in (*_FUNCTION_TABLES, *names):
        quoted = name.replace('"', '""')
        with suppress(sqlite3.Error):  # without its module it is no table either
            database.execute(f'SELECT 1 FROM "{quoted}" LIMIT 0').close()  # noqa: S608


def _permitted(action: int, first: str | None, second: str | None, *_where: str | None) -> int:
    """Allow reading and whatever serves reading. Deny unknown actions."""
    if action == sqlite3.SQLITE_FUNCTION:
        permitted = (second or "").lower() not in _NO_FUNCTIONS
    elif action == sqlite3.SQLITE_PRAGMA:
        permitted = (first or "").lower() in _PRAGMAS
    else:
        permitted = action in _READING_ACTIONS
    return sqlite3.SQLITE_OK if permitted else sqlite3.SQLITE_DENY


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _cut(limit: int, raw: bytes) -> str:
    """Cut a text while it is read, so that a row of many long ones is never completely in memory."""
    if len(raw) <= limit:
        return _text(raw)
    text = _text(raw[: 4 * (limit + 1)])  # a character has at most 4 bytes
    return text if len(text) <= limit else f"{text[:limit]}… (cut, it has {len(raw)} bytes)"


def _rows(
    database: sqlite3.Connection, sql: str, parameters: Sequence[Any], limits: Answer
) -> Answer:
    database.text_factory = partial(_cut, limits["cell_characters"])
    with closing(database.execute(sql, parameters)) as cursor:
        if cursor.description is None:
            raise _Refused("NO_QUERY")
        columns = [_cut_name(column[0]) for column in cursor.description]
        rows: list[list[Any]] = []
        remaining = limits["result_bytes"] - _json_bytes(columns)
        if remaining < 0:
            raise _Refused("LARGE_ROW")
        for row in cursor:
            cells = [_cell(value) for value in row]
            remaining -= _json_bytes(cells)
            if remaining < 0 and not rows:
                raise _Refused("LARGE_ROW")
            if remaining < 0 or len(rows) == limits["rows"]:
                return {"columns": columns, "rows": rows, "truncated": True}
            rows.append(cells)
    return {"columns": columns, "rows": rows, "truncated": False}


def _cell(value: Any) -> Any:
    """Return a cell for JSON. What JSON cannot represent is put into words. SQLite has no NaN."""
    if isinstance(value, bytes):
        return f"(blob of {len(value)} bytes)"
    if isinstance(value, float) and not math.isfinite(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _described_tables(database: sqlite3.Connection, limits: Answer) -> Answer:
    """Return the tables; one whose columns do not fit without them, to leave room for others."""
    tables: list[Answer] = []
    truncated = False
    remaining = limits["result_bytes"]
    for name, kind in database.execute(_TABLES).fetchall():
        table: Answer = {
            "name": _cut_name(name),
            "kind": "view" if kind == "view" else "table",
            "columns": [],
        }
        described_table = {**table, "columns": list(_columns(database, name))}
        if _json_bytes(described_table) > remaining:
            described_table, truncated = table, True
        remaining -= _json_bytes(described_table)
        if remaining < 0 or len(tables) == limits["rows"]:
            return {"tables": tables, "truncated": True}
        tables.append(described_table)
    return {"tables": tables, "truncated": truncated}


def _columns(database: sqlite3.Connection, table: str) -> Iterator[Answer]:
    """Yield the columns. A broken view, or a virtual table without its module, has none."""
    with suppress(sqlite3.Error):
        columns = database.execute(_COLUMNS, (table,)).fetchall()
        keys = database.execute("SELECT * FROM pragma_foreign_key_list(?)", (table,)).fetchall()
        references = {key[3]: f"{key[2]}.{key[4]}" if key[4] else key[2] for key in keys}
        for name, kind in columns:
            column = {"name": _cut_name(name), "type": _cut_name(kind or "")}
            if name in references:
                column["references"] = _cut_name(references[name])
            yield column


def _json_bytes(value: Any) -> int:
    """Return the bytes of a cell as JSON in UTF-8, with a comma."""
    return len(json.dumps(value, ensure_ascii=False).encode()) + 1


def _cut_name(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def main() -> None:
    request = json.load(sys.stdin.buffer)
    if sys.platform != "win32":
        import resource

        # The parent kills this process in time. The alarm is for when the parent is gone, and works
        # even if the parent ignored or blocked the signal.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        signal.alarm(math.ceil(request["limits"]["seconds"]) + 1)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (2 * request["limits"]["memory_bytes"],) * 2)
    sys.stdout.write(json.dumps(answer(request)))


if __name__ == "__main__":
    main()
