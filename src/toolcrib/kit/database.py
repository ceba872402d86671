"""Querying a database. Its contents, including names, are data from outside, which taint the run.

Rows are not in the public view: a log that shows a query does not repeat its result.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, Protocol, TypeAlias

import msgspec
from typing_extensions import TypedDict

from toolcrib.errors import CapabilityError, SourceError, ToolError
from toolcrib.threads import stopped_by
from toolcrib.tools import capability, tool
from toolcrib.urls import without_password
from toolcrib.values.typed import HandWritten, names_wrong_types

Cell: TypeAlias = str | int | float | None

_LONGEST_SQL = 20_000


class ColumnInfo(TypedDict):
    """`type` is as declared, and may be empty.

    `references` is where a foreign key leads: `table.column`, or `table` if to its primary key.
    """

    name: str
    type: str
    references: NotRequired[str]


class TableInfo(TypedDict):
    """A table or a view."""

    name: str
    kind: Literal["table", "view"]
    columns: list[ColumnInfo]


class DatabaseTables(TypedDict):
    """`truncated` says that there is more: further tables, or columns of one that is without any."""

    tables: list[TableInfo]
    truncated: bool


class QueryResult(TypedDict):
    """`rows` have their cells in the order of `columns`; `truncated` says that there are more rows.

    A text that was cut says so at its end; of a blob there is only its size.
    """

    columns: list[str]
    rows: list[list[Cell]]
    row_count: int
    truncated: bool


@capability
class Database(Protocol):
    """A database that can be read and not changed.

    Both methods raise ToolError for a question that cannot be asked, and CapabilityError if the
    database cannot be read.
    """

    def describe(self) -> DatabaseTables:
        """Return the tables and views, with their columns."""

    def query(self, sql: str, parameters: Sequence[Cell] = ()) -> QueryResult:
        """Return the rows of one SELECT. `parameters` are the values for its `?`, in their order."""


@tool(
    visible=["tables", "truncated"],
    read_only=True,
    idempotent=True,
    untrusted_output=True,
    timeout=20,
    tags=["database", "sql", "tables"],
    examples=[
        ("Which tables does the database have?", {}),
        ("Show me the schema of the database", {}),
        ("What columns are there in the customers table?", {}),
        ("Describe the database", {}),
        ("What kind of data is stored in the db?", {}),
        ("List all tables and views", {}),
    ],
)
def describe_database(*, database: Database) -> DatabaseTables:
    """List the tables and views of the database, with the names and types of their columns."""
    return database.describe()


@tool(
    visible=["columns", "row_count", "truncated"],
    read_only=True,
    idempotent=True,
    untrusted_output=True,
    timeout=20,
    tags=["database", "sql", "query", "table"],
    examples=[
        ("How many rows does the orders table have?", {"sql": "SELECT count(*) FROM orders"}),
        (
            "Show the first 10 customers in the database",
            {"sql": "SELECT * FROM customers LIMIT 10"},
        ),
        (
            "Run SELECT name FROM products WHERE price > 20",
            {"sql": "SELECT name FROM products WHERE price > 20"},
        ),
        (
            "What are the names of all employees, sorted?",
            {"sql": "SELECT name FROM employees ORDER BY name"},
        ),
        (
            "What is the average of amount in the payments table?",
            {"sql": "SELECT avg(amount) FROM payments"},
        ),
        (
            "Total sales by country from the db",
            {"sql": "SELECT country, sum(total) FROM sales GROUP BY country"},
        ),
        (
            "Query the users table for everybody who joined after 2024",
            {"sql": "SELECT * FROM users WHERE joined >= '2025-01-01'"},
        ),
        (
            "Which record in invoices has the highest total?",
            {"sql": "SELECT * FROM invoices ORDER BY total DESC LIMIT 1"},
        ),
    ],
)
def query_database(sql: str, *, database: Database) -> QueryResult:
    """Query the SQLite database with one SQL SELECT statement. It can be read, not changed.

    Args:
        sql: The statement, such as SELECT name FROM customers ORDER BY name LIMIT 10.
    """
    if not sql.strip() or "\0" in sql or len(sql) > _LONGEST_SQL:
        raise ToolError(f"sql must be one statement of 1 to {_LONGEST_SQL} characters")
    return database.query(sql)


# SQLite's errors as sentences that contain only what the model itself wrote.
#
# SQLite's own text may quote data, from a row or a literal. It is passed on only if it has a known
# form and the one name in it is a plain word of the statement, outside of quotes and comments.

_QUOTED = re.compile(  # also comments, since a quote in one would swap inside and outside
    r"'[^']*'?|\"[^\"]*\"?|`[^`]*`?|\[[^\]]*\]?|--[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL
)
_WORD = r"([A-Za-z_][\w.]{0,63})"
_FORMS = tuple(
    re.compile(form, re.ASCII)
    for form in (
        rf'near "{_WORD}": syntax error',
        rf"no such (?:table|column|function|collation sequence): {_WORD}",
        rf"ambiguous column name: {_WORD}",
        rf"wrong number of arguments to function {_WORD}\(\)",
        rf"misuse of (?:window function|aggregate(?: function)?:?) {_WORD}\(\)",
        r"incomplete input",
        r"no tables specified",
        r"a GROUP BY clause is required before HAVING",
        r"sub-select returns \d+ columns - expected \d+",
        r"\d+\w\w (?:ORDER|GROUP) BY term out of range - should be between 1 and \d+",
        r"\d+\w\w ORDER BY term does not match any column in the result set",
        r"SELECTs to the left and right of [A-Z ]+ do not have the same number of result columns",
        r"integer overflow",
    )
)
_ONLY_SELECT = "only reading is permitted: use one SELECT statement"
_REFUSED = (
    "SQLite refused the statement: check its syntax, and its names by describing the database"
)
_ONE_STATEMENT = "one statement at a time: leave out all but the first"
_TOO_BIG = "a value or the statement is too large: leave out the column with the large values"

# By SQLite's name of the result code (sqlite.org/rescode.html), or the longest prefix of it.
_STATEMENT_ERRORS: Mapping[str, str] = {
    "LARGE_ROW": "one row alone is too large for an answer: select fewer columns",
    "NO_QUERY": _ONLY_SELECT,
    "SQLITE_AUTH": _ONLY_SELECT,
    "SQLITE_CONSTRAINT": _ONLY_SELECT,
    "SQLITE_MISMATCH": "a value has the wrong type for its place, or is a number that is too large",
    "SQLITE_NOMEM": "the query needs too much memory: ask for less at once",
    "SQLITE_RANGE": "the statement has parameters: write the values into it instead",
    "SQLITE_READONLY": _ONLY_SELECT,
    "SQLITE_TOOBIG": _TOO_BIG,
    "DataError": _TOO_BIG,
    "TIME": "the query took too long and was stopped: ask for less, or without joining so much",
    "Warning": _ONE_STATEMENT,
}
_DATABASE_ERRORS: Mapping[str, str] = {
    "SQLITE_BUSY": "the database is locked by another program: try again later",
    "SQLITE_CANTOPEN": "the database cannot be opened: its file is missing or cannot be read",
    "SQLITE_CORRUPT": "the database is damaged",
    "SQLITE_FORMAT": "the database is damaged",
    "SQLITE_IOERR": "the database could not be read",
    "SQLITE_LOCKED": "the database is locked by another program: try again later",
    "SQLITE_NOTADB": "the file is not a SQLite database",
    "SQLITE_PERM": "the database may not be read",
    "SQLITE_PROTOCOL": "the database is locked by another program: try again later",
    "SQLITE_READONLY_": "the database cannot be read without writing: it is in WAL mode in a folder "
    "that cannot be written to, or has to be recovered by a program that may write to it",
    "SQLITE_SCHEMA": "the database changed in the meantime: try again",
    "DIED": "the operating system stopped the query: ask for less at once",
}


def error_of(name: str, message: str, sql: str) -> ToolError:
    """Return the error for SQLite's result code `name`: a CapabilityError if the statement is not
    at fault."""
    prefixes = [k for k in (*_STATEMENT_ERRORS, *_DATABASE_ERRORS) if name.startswith(k)]
    if prefixes:
        longest = max(prefixes, key=len)
        if longest in _DATABASE_ERRORS:
            return CapabilityError(_DATABASE_ERRORS[longest])
        return ToolError(_STATEMENT_ERRORS[longest])
    if name == "ProgrammingError":  # from Python, about several statements or about parameters
        return ToolError(
            _ONE_STATEMENT if "one statement" in message else _STATEMENT_ERRORS["SQLITE_RANGE"]
        )
    if message.startswith(("not authorized", "access to ", "prohibited", "unsafe use of ")):
        return ToolError(_ONLY_SELECT)
    return ToolError(_safe_message(message, sql) or _REFUSED)


def _safe_message(message: str, sql: str) -> str | None:
    for form in _FORMS:
        match = form.fullmatch(message)
        if match is not None:
            words = {word.lower() for word in re.findall(r"[\w.]+", _QUOTED.sub(" ", sql))}
            names = {group.lower() for group in match.groups()}
            return message if names <= words else None
    return None


# A SQLite file as a `Database` that nothing can change, whatever the SQL says.
#
# Each question is answered by a separate process (`sqlite_process`). It is killed when its time is
# over, or when nobody waits for the answer any more, since nothing else is sure to end a statement.

_UNUSABLE = ("SQLITE_CANTOPEN", "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_READONLY")
_SCRIPT = str(Path(__file__).with_name("sqlite_process.py"))


class DatabaseLimits(HandWritten, frozen=True, kw_only=True):
    """How much one question may cost, and how large its answer may be. The rest is cut, and the
    answer says so.

    `rows` limits the rows of a result, or the tables of a description. `cell_characters` limits
    each text, and `result_bytes` the whole JSON. `value_bytes` is the largest text or blob that is
    read, `memory_bytes` what SQLite may use, and `seconds` the time until the process is killed.
    """

    rows: int = 200
    cell_characters: int = 2_000
    result_bytes: int = 64 * 1024
    value_bytes: int = 16 * 1024 * 1024
    memory_bytes: int = 256 * 1024 * 1024
    seconds: float = 10.0


class ReadOnlyDatabase:
    """Reads one SQLite file, opened with `mode=ro` and an authorizer that permits only reading.

    One statement is run at a time, without ATTACH, extensions, or any PRAGMA except those that
    describe tables. A database in WAL mode needs a writable folder, since SQLite keeps two files
    next to it for readers as well. Raises SourceError if `path` is no SQLite file.
    """

    @names_wrong_types
    def __init__(self, path: str | Path, limits: DatabaseLimits | None = None) -> None:
        self.limits = limits or DatabaseLimits()
        try:
            self.path = Path(path).resolve()
            is_file = self.path.is_file()
        except (OSError, ValueError, RuntimeError):  # a too long path, a NUL, a loop of links
            is_file = False
        if not is_file:
            raise SourceError(f"there is no database file {without_password(str(path))!r}")
        # It is not opened here: a process that closes a file loses the locks that SQLite has on it.
        answer = self._answer({"sql": "SELECT 1 FROM sqlite_master", "parameters": []})
        if answer.get("error", "").startswith(_UNUSABLE):
            reason = error_of(answer["error"], "", "").safe_text
            raise SourceError(f"the database {str(path)!r} cannot be used: {reason}")

    def describe(self) -> DatabaseTables:
        tables: DatabaseTables = self._ask({})
        return tables

    def query(self, sql: str, parameters: Sequence[Cell] = ()) -> QueryResult:
        result = self._ask({"sql": sql, "parameters": list(parameters)})
        return {
            "columns": result["columns"],
            "rows": result["rows"],
            "row_count": len(result["rows"]),
            "truncated": result["truncated"],
        }

    def _ask(self, question: Mapping[str, Any]) -> Any:
        """Ask the child process. Raises ToolError, CapabilityError."""
        answer = self._answer(question)
        if "error" in answer:
            raise error_of(answer["error"], answer.get("message", ""), question.get("sql", ""))
        return answer

    def _answer(self, question: Mapping[str, Any]) -> Any:
        """Return the process's answer, or an error for its end. Raises CapabilityError."""
        request = {
            **question,
            "uri": f"{self.path.as_uri()}?mode=ro",  # as_uri() escapes what a URI reserves
            "limits": msgspec.to_builtins(self.limits),
        }
        try:
            process = subprocess.Popen(  # noqa: S603  our own script, which reads stdin
                [sys.executable, "-I", "-S", _SCRIPT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            raise CapabilityError(
                "the database cannot be queried, because no process could be started"
            ) from None
        with process, stopped_by(process.kill):  # a cancelled query ends at once
            try:
                output, _ = process.communicate(json.dumps(request).encode(), self.limits.seconds)
                return json.loads(output) if process.returncode == 0 else {"error": "DIED"}
            except subprocess.TimeoutExpired:
                return {"error": "TIME"}
            except ValueError:
                return {"error": "DIED"}
            finally:
                process.kill()
