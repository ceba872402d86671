"""One transaction: its statements, and the form in which a database stores their values."""

from __future__ import annotations

import logging
import re
import selectors
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from toolcrib.errors import SourceError
from toolcrib.failures import SafeLogger
from toolcrib.storage.errors import FEATURE_NOT_SUPPORTED, NOT_STORED, code_of, failed_by
from toolcrib.values.json import encodable, sha256_hex
from toolcrib.values.typed import explains_wrong_types

if TYPE_CHECKING:
    from sqlalchemy import Dialect
    from sqlalchemy.pool import PoolProxiedConnection


Row: TypeAlias = Mapping[str, Any]
T = TypeVar("T")
_log = SafeLogger("toolcrib.storage")
_CONNECTION_ENDED = "57P0"  # the codes with which PostgreSQL ends a connection begin with it
_CURSORS = (
    "toolcrib_cursors"  # in a connection's `info`: making one takes as long as a small statement
)
_MAX_COLUMN = (
    200  # characters of a column: PostgreSQL's indexes take some 2,700 bytes of two of them
)
MAX_COMPARED = 2**14
"""Characters of rows, as JSON, that a server compares itself: it takes 15 µs for each thousand."""

_MAX_ROWS_COMPARED = 16
MAX_BATCH = 16 * 2**20
"""The most bytes of rows in one statement to a server, unless a single row has more."""

_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")


@explains_wrong_types
def storable(text: str) -> str:
    """Return a string in a form that every database can store.

    PostgreSQL's strings cannot hold NUL, and no database stores a lone surrogate.
    """
    return encodable(text).replace("\0", "?")


@explains_wrong_types
def as_column(value: str) -> str:
    """Return an id in a form that every database can store and index.

    Different ids have different forms, even if one looks like the form of another.
    """
    text = storable(value)
    if text == value and len(value) <= _MAX_COLUMN and value[-65:-64] != "…":
        return value
    return f"{text[:100]}…{sha256_hex(value)}"


class TableHasRuleError(SourceError):
    """A table has a rule: PostgreSQL then refuses an INSERT that is part of a WITH."""


class Insert(NamedTuple):
    """An INSERT of rows with these columns; `conflict` is its clause for rows that exist already."""

    table: str
    columns: tuple[str, ...]
    conflict: str = ""

    @lru_cache(maxsize=64)  # noqa: B019  the few inserts are constants
    def of_values(self) -> str:
        """Return the statement for one row, with a parameter for each column."""
        names, values = ", ".join(self.columns), ", ".join(f":{name}" for name in self.columns)
        return f"INSERT INTO {self.table} ({names}) VALUES ({values}) {self.conflict}"  # noqa: S608  only our own names

    def of_json(self, parameter: str = "rows") -> str:
        """Return PostgreSQL's statement for all rows in a JSON string, in a third of the time.

        The table determines the types of the values.
        """
        names = ", ".join(self.columns)
        rows = f"json_populate_recordset(NULL::{self.table}, :{parameter})"
        return f"INSERT INTO {self.table} ({names}) SELECT {names} FROM {rows} {self.conflict}"  # noqa: S608  only our own names


class Transaction:
    """Statements that are committed together, or not at all. `:name` marks a value.

    For `IN :name` the value is a list. Statements go straight to the driver, because SQLAlchemy's
    execution takes three times as long as a small statement in SQLite. For PostgreSQL they go through
    a pipeline: statements whose results are not needed yet are sent together with the next one.
    """

    def __init__(
        self, connection: PoolProxiedConnection, dialect: Dialect, *, combines: bool = True
    ) -> None:
        self._connection = connection
        self._dialect = dialect
        self._combines = combines  # whether INSERTs into PostgreSQL share a statement
        self._combined = False
        self._driver: Any = None  # set by `begin`
        self._used = 0  # how many of the connection's cursors
        self._cursor: Any = None
        self._unread: Any = None  # for statements whose results are not needed
        self._pipeline = ExitStack()
        self._sync: Callable[[], object] = _no_result
        self._pipelined = False  # whether statements are sent before earlier ones are answered
        self.when_committed: Callable[[], None] = lambda: None  # called once, after the commit
        self.failed: SourceError | None = None  # then nothing is committed, even if it was caught
        self.answered = False  # then the work is not repeated on another connection
        self._logs_statements = _log.isEnabledFor(logging.DEBUG)

    def rows(self, sql: str, /, **values: object) -> list[Row]:
        """Return the rows of a SELECT, as mappings by column name."""
        found = self.tuples(sql, **values)
        names = [column[0] for column in self._cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found]

    def tuples(self, sql: str, /, **values: object) -> list[tuple[Any, ...]]:
        """Return the rows as plain tuples, which is faster than `rows` if there are many."""
        return self._run(sql, values, self._fetch)

    def read_ahead(self, sql: str, /, **values: object) -> Callable[[], list[tuple[Any, ...]]]:
        """Send a SELECT to a server, without waiting, and return a function that returns its rows."""
        if not self._pipelined:
            return lambda: self.tuples(sql, **values)
        cursor = self._new_cursor()
        self._run(sql, values, _no_result, cursor=cursor)
        return lambda: self._with_safe_errors(lambda: self._fetch(cursor))

    def execute(self, sql: str, /, **values: object) -> int:
        """Run a statement and return how many rows it changed."""
        return self._run(sql, values, self._row_count)

    def insert(self, insert: Insert, rows: Sequence[Row]) -> None:
        """Insert rows; a server may report an error as late as with the next statement."""
        if rows and self._dialect.name == "postgresql":
            for part in _json_batches(rows):
                self.send(insert.of_json(), rows=part)
        elif rows:
            self._run(insert.of_values(), rows[0], _no_result, more=rows[1:])

    def write(
        self, inserts: Sequence[tuple[Insert, Sequence[Row]]], sql: str, /, **values: object
    ) -> None:
        """Insert rows into some tables, then run a statement whose result nobody needs.

        PostgreSQL gets all of it in one statement, which sees the tables as they were before, unless
        there are too many rows or a table has a rule.
        """
        if not self._combines or self._dialect.name != "postgresql":
            for insert, rows in inserts:
                self.insert(insert, rows)
            self.send(sql, **values)
            return
        last: dict[str, object] = {}
        some = [(insert, rows) for insert, rows in inserts if rows]
        for insert, rows in some:
            *first, last[f"rows_of_{insert.table}"] = _json_batches(rows)
            for part in first:
                self.send(insert.of_json(), rows=part)
        self._combined = bool(some)
        self.send(_combined_statement(tuple(insert for insert, _ in some), sql), **values, **last)

    def send(self, sql: str, /, **values: object) -> None:
        """Run a statement whose result nobody needs; a server may report an error as late as with the
        next one."""
        self._run(sql, values, _no_result, cursor=self._unread)

    def require(self, written: Sequence[Row], sql: str, /, **values: object) -> None:
        """Raise SourceError unless a SELECT returns exactly these rows, which were written before.

        It also finds what triggers changed, even deferred ones. A server compares a few rows itself,
        which saves a round trip, and reports a difference as late as with the COMMIT, which then does
        not happen. More rows are compared here, which is faster.
        """
        if self._dialect.name == "postgresql":
            self.send("SET CONSTRAINTS ALL IMMEDIATE")
        few = self._pipelined and len(written) <= _MAX_ROWS_COMPARED
        text = msgspec.json.encode(written).decode() if few else ""
        if few and len(text) <= MAX_COMPARED:
            self.send(_comparing_statement(sql), **values, written=text)
        elif self.tuples(sql, **values) != [tuple(row.values()) for row in written]:
            raise SourceError(NOT_STORED)

    @property
    def for_update(self) -> str:
        """Return the clause that locks a SELECT's rows for the transaction; SQLite needs none."""
        return "" if self._dialect.name == "sqlite" else " FOR UPDATE"

    def damage(self) -> str:
        """Return the first error of SQLite's integrity check; empty if none, and for servers."""
        if self._dialect.name != "sqlite":
            return ""
        ((found,),) = self.tuples("PRAGMA integrity_check(1)")
        return "" if found == "ok" else " ".join(str(found).split())

    def begin(self, *, write: bool) -> None:
        """Begin to read a snapshot, or to write under locks. A server gets this with the first
        statement."""
        self._driver = self._connection.driver_connection
        self._cursor, self._unread = self._new_cursor(), self._new_cursor()
        if self._dialect.name == "sqlite":
            # take the lock at once: if it read first, another could write before it gets the lock
            self._run("BEGIN IMMEDIATE" if write else "BEGIN", {}, _no_result)
            return
        self._with_safe_errors(self._enter_pipeline)
        mode = "READ COMMITTED" if write else "REPEATABLE READ READ ONLY"
        self.send(f"BEGIN ISOLATION LEVEL {mode}")

    def _enter_pipeline(self) -> None:
        driver = self._driver
        if not driver.autocommit:  # as SQLAlchemy leaves it; here BEGIN and COMMIT are statements
            driver.autocommit = True
        if getattr(self._dialect.loaded_dbapi.capabilities, "has_pipeline", bool)():
            self._sync = self._pipeline.enter_context(driver.pipeline()).sync
            self._pipelined = True

    def commit(self) -> None:
        """Keep everything. Raises SourceError if the database does not."""
        self.answered = True  # the server may commit although its answer is lost
        self._run("COMMIT", {}, self._pipeline.close)

    def roll_back(self) -> None:
        """Undo everything, also after an error. A connection that cannot roll back is discarded.

        So is a connection to a server that refused a statement: the driver may believe that later
        statements in the pipeline are prepared, although the server never read them.
        """
        if not getattr(self._driver, "in_transaction", True):  # SQLite has rolled back already
            return
        with suppress(self._error):
            self._pipeline.close()
        if not self._connection.is_valid:  # it was discarded when it was lost
            return
        if self.failed and self._dialect.name == "postgresql":
            self._connection.invalidate()
            return
        try:
            self._cursor.execute("ROLLBACK")
        except self._error:
            self._connection.invalidate()

    def _new_cursor(self) -> Any:
        """Return a cursor for this transaction; a connection keeps its cursors for the next one."""
        kept = self._connection.info.setdefault(_CURSORS, [])
        if len(kept) == self._used:
            kept.append(self._connection.cursor())
        self._used += 1
        return kept[self._used - 1]

    @property
    def _error(self) -> type[Exception]:
        kind: type[Exception] = self._dialect.loaded_dbapi.Error
        return kind

    def _fetch(self, cursor: Any = None) -> list[tuple[Any, ...]]:
        found = list((cursor or self._cursor).fetchall())
        self.answered = True
        return found

    def _row_count(self) -> int:
        self._sync()
        self.answered = True
        return int(self._cursor.rowcount)

    def _run(
        self,
        sql: str,
        values: Row,
        read_result: Callable[[], T],
        *,
        cursor: Any = None,
        more: Sequence[Row] = (),
    ) -> T:
        """Run a statement, also with `more` values, and return what `read_result` returns."""
        if self._logs_statements:
            _log.debug("%s", sql)
        text, named = _expanded_statement(sql, values, self._dialect.name)
        cursor = self._cursor if cursor is None else cursor
        try:
            if more:
                cursor.executemany(text, [named, *more])
            else:
                cursor.execute(text, named)
            if self._pipelined:
                _send_all(self._driver)
            return read_result()
        except (self._error, UnicodeError) as error:
            failure = self._failure_of(error)
        raise failure  # raised outside, without a context that may quote what was written

    def _with_safe_errors(self, work: Callable[[], T]) -> T:
        """Run `work` and return its result. Raises SourceError for an error of the driver."""
        try:
            return work()
        except (self._error, UnicodeError) as error:
            failure = self._failure_of(error)
        raise failure

    def _failure_of(self, error: Exception) -> SourceError:
        """Return why the transaction fails: its first error. Drop a connection that was lost."""
        if self.failed is None:  # a server refuses all that follows the first
            self.failed = failed_by(error)
            if self._combined and code_of(error) == FEATURE_NOT_SUPPORTED:
                self.failed = TableHasRuleError(str(self.failed))
        # the driver notices only later that the server has ended the connection
        has_ended = code_of(error).startswith(_CONNECTION_ENDED)
        if not isinstance(error, UnicodeError) and (
            has_ended or self._dialect.is_disconnect(error, self._driver, self._cursor)  # type: ignore[arg-type]
        ):
            self._connection.invalidate()
        return self.failed


def _send_all(driver: Any) -> None:
    """Send all statements to the server completely.

    psycopg would wait for an answer as soon as its socket took a part. If a large value was cut, the
    server waits for the rest: a deadlock. `_pipeline_communicate` of psycopg 3.3 ignores the return
    value of `flush`.
    """
    pgconn = driver.pgconn
    while pgconn.flush():  # 0 when nothing is left
        with selectors.DefaultSelector() as selector:
            selector.register(pgconn.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
            ready = selector.select()
        if any(events & selectors.EVENT_READ for _, events in ready):
            pgconn.consume_input()  # otherwise the server may wait for us to read


def _no_result() -> None:
    """Return nothing, for a statement whose result is not needed."""


def _expanded_statement(sql: str, values: Row, kind: str) -> tuple[str, Row]:
    """Return a statement and its values for the driver, with a name for each item of a list."""
    if list not in map(type, values.values()):
        return _driver_statement(sql, (), kind), values
    lists = tuple((n, len(v)) for n, v in values.items() if v.__class__ is list)
    items = {n: v for n, v in values.items() if v.__class__ is not list}
    for name, _ in lists:
        items.update((f"{name}_{at}", item) for at, item in enumerate(values[name]))
    return _driver_statement(sql, lists, kind), items


def _json_batches(values: Sequence[Row]) -> Iterator[str]:
    """Yield the rows as JSON strings of at most MAX_BATCH bytes, or of one larger row."""
    whole = msgspec.json.encode(values)
    if len(whole) <= MAX_BATCH:
        yield whole.decode()
        return
    part: list[bytes] = []
    size = 0
    for row in values:
        text = msgspec.json.encode(row)
        if part and size + len(text) > MAX_BATCH:
            yield f"[{b','.join(part).decode()}]"
            part, size = [], 0
        part.append(text)
        size += len(text)
    yield f"[{b','.join(part).decode()}]"


@lru_cache(maxsize=64)
def _combined_statement(inserts: tuple[Insert, ...], sql: str) -> str:
    """Return PostgreSQL's statement for INSERTs of rows in JSON strings and another statement."""
    each = (f"into_{one.table} AS ({one.of_json(f'rows_of_{one.table}')})" for one in inserts)
    return f"WITH {', '.join(each)} {sql}" if inserts else sql


@lru_cache(maxsize=64)
def _comparing_statement(sql: str) -> str:
    """Return a statement that fails unless a SELECT returns the rows in the JSON string `:written`."""
    found = f"SELECT coalesce(jsonb_agg(to_jsonb(found)), '[]') FROM ({sql}) AS found"  # noqa: S608
    return f"SELECT 1 / (CASE WHEN ({found}) = CAST(:written AS jsonb) THEN 1 ELSE 0 END)"


@lru_cache(maxsize=1024)
def _driver_statement(sql: str, lists: tuple[tuple[str, int], ...], kind: str) -> str:
    """Return a statement with the parameters of the driver, and one for each item of a list."""
    for name, size in lists:
        names = ", ".join(f":{name}_{at}" for at in range(size)) or "NULL"
        sql = re.sub(rf"(?<![:\w]):{name}\b", f"({names})", sql)
    return sql if kind == "sqlite" else _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))
