"""One small interface over SQLAlchemy Core: SQLite by default, a server by URL.

Statements run in a thread, so the event loop never blocks on a disk. A failure raises a SourceError
whose text and context hold nothing of what was written.

SQLite runs in WAL mode with `synchronous=FULL` and takes its write lock when a transaction begins.
PostgreSQL confirms a commit once its log is on disk. With both, committed data survives a crash, and
readers never wait for a writer. No other module knows which of the two is in use.

The tables come from a list of migrations, to which new ones are only appended. The table
`toolcrib_schema` holds a database's version. When a database is first opened, the missing migrations
are applied in one transaction, under a lock. A database newer than this list is left unchanged.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import selectors
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

import msgspec

from toolcrib.errors import MissingExtraError, SourceError
from toolcrib.failures import Explained, SafeLogger
from toolcrib.storage.cache_folder import OWNERS, create_private
from toolcrib.threads import renewed_in_children
from toolcrib.urls import without_password, without_passwords
from toolcrib.values.json import encodable, sha256_hex
from toolcrib.values.typed import explains_wrong_types, names_wrong_types

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Dialect, Engine
    from sqlalchemy.pool import PoolProxiedConnection

T = TypeVar("T")
_log = SafeLogger("toolcrib.storage")
Row: TypeAlias = Mapping[str, Any]
PATIENCE = 10.0  # seconds to wait for another connection's lock
PRAGMAS = ("synchronous=FULL", "fullfsync=ON", "foreign_keys=ON")
_OPTIONS = frozenset(  # those that Python's driver reads; it ignores all others, even `mode=ro`
    ("timeout", "detect_types", "isolation_level", "check_same_thread", "cached_statements")
)
_IN_MEMORY = (None, "", ":memory:")
_SCHEMA_LOCK = 7_665_646_001  # an advisory lock: any number that no other program uses
_URLS = (
    "must look like sqlite:///crib.db or postgresql+psycopg://HOST/NAME"
    " (only to read: sqlite:///file:crib.db?mode=ro&uri=true)"
)
_TAKEN = re.compile(r"(sqlite|postgresql)(\+\w+)?://")
_ABOUT_CONNECTIONS = ("OperationalError", "InterfaceError", "ProgrammingError", "TimeoutError")
_NO_URL = ("ArgumentError", "NoSuchModuleError")
_UNREACHABLE = {  # by the beginning of an SQLSTATE or of the name of a SQLite error
    "08": "the connection to it could not be made, or was lost",
    "25006": "it accepts no writes: it is a standby, or is set to read only",
    "25P03": "it ended the connection",
    "25P04": "the transaction took longer than it may",
    "28": "it refuses to log this user in",
    "3D": "there is no database of that name",
    "3F": "there is no schema of that name",
    "40": "it undid the transaction, because it and another one were in each other's way",
    "42501": "this user lacks a permission for that",
    "53": "it has no memory, no disk or no connections left",
    "55P03": "another program has locked it, and did not release it in time",
    "57014": "the statement took longer than it may, or somebody ended it",
    "57P0": "it was shut down, or ended the connection",
    "58030": "its disk cannot be read or written",
    "SQLITE_BUSY": "another program has locked it, and did not release it in time",
    "SQLITE_CANTOPEN": "the file or its folder does not exist, or cannot be opened",
    "SQLITE_FULL": "the disk is full",
    "SQLITE_IOERR": "its disk is full or broken, or files are limited in size",
    "SQLITE_LOCKED": "it is locked",
    "SQLITE_NOMEM": "there is no memory left",
    "SQLITE_PERM": "this user may not read it",
    "SQLITE_PROTOCOL": "it is locked",
    "SQLITE_READONLY": "this user may not write to it",
}
_REFUSED = ("23", "44", "P0001", "SQLITE_CONSTRAINT")  # by a constraint, a view or a trigger
_NOT_TAKEN = (
    "the database did not store what was written, so nothing of it is kept: look for a trigger, or a"
    " rule, on its tables"
)
_NOT_SUPPORTED = "0A000"
_DIVIDED = "22012"  # PostgreSQL's code for a division by zero: see `_refusing`
_NAMED_BY_SQLITE = re.compile(r"(?:CHECK|NOT NULL|UNIQUE) constraint failed: (.+)", re.DOTALL)
_LONGEST_NAME = 100
_ENDED = "57P0"  # how the codes begin by which PostgreSQL says that it ends a connection
_USED = "toolcrib_used"  # in the `info` of a connection that was handed out before
_CURSORS = "toolcrib_cursors"  # in the same place: making one takes as long as a small statement
_LONGEST = 200  # characters of a column: PostgreSQL's indexes take some 2,700 bytes of two of them


def open_engine(url: str, mode: int, folder: str) -> Engine:
    """Return an engine that has not connected yet. Raises SQLAlchemyError for an unusable URL.

    A missing SQLite file is created with `mode`, and so are its -wal and -shm files. A relative path
    starts at `folder`, or at the working directory if that is empty.
    """
    sa = sqlalchemy()
    try:
        parsed = sa.engine.make_url(url)
    except ValueError:
        raise sa.exc.ArgumentError("a port is a number") from None
    options: dict[str, Any] = {
        "hide_parameters": True,
        "logging_name": "toolcrib",
        "pool_reset_on_return": None,  # `_committed` rolls back
    }
    logging.getLogger("sqlalchemy.engine.Engine.toolcrib").addFilter(_is_no_row)
    is_sqlite = parsed.get_backend_name() == "sqlite"
    if is_sqlite and parsed.database in _IN_MEMORY:
        # each connection would open a separate database, so all threads share one, in turn
        options |= {"poolclass": sa.pool.QueuePool, "pool_size": 1, "max_overflow": 0}
        options["connect_args"] = {"check_same_thread": False}
    elif is_sqlite:
        if not (_is_uri(parsed) or _OPTIONS.issuperset(parsed.query)):
            raise sa.exc.ArgumentError(
                "SQLite takes such an option only in the form file:…&uri=true"
            )
        parsed = parsed.set(database=_from_anywhere(parsed, folder))
    try:
        engine: Engine = sa.create_engine(parsed, **options)
    except ValueError:
        raise sa.exc.ArgumentError("an option of the URL has a value that it cannot have") from None
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "do_connect", partial(_make_file, mode))
        sa.event.listen(engine, "connect", _set_pragmas)
        sa.event.listen(engine, "begin", _begin_sqlite)
    elif engine.dialect.name == "postgresql":
        sa.event.listen(engine, "connect", _set_session, insert=True)  # before the dialect asks
    return engine


def _is_uri(url: URL) -> bool:
    return (url.database or "").startswith("file:") and "uri" in url.query


def _path_in(url: URL) -> str:
    """Return the path in SQLite's form of a URI (`file:crib.db`), or "" for a database in memory."""
    path = unquote(urlsplit(url.database or "").path)
    return "" if path == ":memory:" or url.query.get("mode") == "memory" else path


def _from_anywhere(url: URL, folder: str) -> str:
    """Return a SQLite file's absolute name, which stays the same if the working directory changes."""
    name = url.database or ""
    if not _is_uri(url):
        return os.path.abspath(os.path.join(folder, name))  # noqa: PTH100, PTH118  a link stays
    path = _path_in(url)
    if not path or path.startswith("/"):
        return name
    return f"file:{quote(os.path.abspath(os.path.join(folder, path)))}"  # noqa: PTH100, PTH118


def _is_no_row(told: logging.LogRecord) -> bool:
    """Keep rows out of SQLAlchemy's log: it hides written values, but logs read rows at DEBUG."""
    return told.levelno > logging.DEBUG


def file_behind(engine: Engine) -> object:
    """Return the identity (device, inode) of a SQLite database's file; None if there is no file."""
    if engine.dialect.name != "sqlite":
        return None
    name = engine.url.database or ""
    name = _path_in(engine.url) if _is_uri(engine.url) else name
    if not os.path.isabs(name):  # noqa: PTH117  still a string
        return None
    try:
        found = os.stat(name)  # noqa: PTH116  once for each transaction
    except OSError:
        return None
    return found.st_dev, found.st_ino


def prepared(connection: Connection, *, write: bool) -> Connection:
    """Prepare a connection for one transaction: to read a snapshot, or to write under locks."""
    if connection.dialect.name == "sqlite":
        return connection.execution_options(toolcrib_write=write)
    if write:
        return connection.execution_options(isolation_level="READ COMMITTED")
    return connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def advice(error: Exception) -> str:
    """Return a hint about what is wrong or where to look."""
    if type(error).__name__ in _NO_URL:
        return f"its URL {_URLS}"
    known = (said for code, said in _UNREACHABLE.items() if code_of(error).startswith(code))
    return next(known, "check its URL and its state")


def unreachable(error: Exception) -> bool:
    """Return whether an error means that the database is unavailable, not that its data is wrong.

    The error's code decides, and its class only if the driver gives no code: a ProgrammingError
    without one is about an option of the URL.
    """
    code = code_of(error)
    if code.startswith(tuple(_UNREACHABLE)) or type(error).__name__ in _NO_URL:
        return True
    if code or isinstance(getattr(error, "orig", error), sqlite3.Error):
        return False  # sqlite3 raises OperationalError for most errors
    return type(error).__name__ in _ABOUT_CONNECTIONS


def code_of(error: Exception) -> str:
    """Return the driver's name or number for an error, never its text, which may hold written data."""
    original = getattr(error, "orig", error)
    return str(
        getattr(original, "sqlite_errorname", None) or getattr(original, "sqlstate", "") or ""
    )


def _constraint_of(error: Exception) -> str:
    original = getattr(error, "orig", error)
    if isinstance(original, sqlite3.Error):
        found = _NAMED_BY_SQLITE.fullmatch(str(original))
        name = "" if found is None else found[1]
    else:
        name = getattr(getattr(original, "diag", None), "constraint_name", None) or ""
    return name if len(name) <= _LONGEST_NAME else ""


def sqlalchemy() -> Any:
    """Return the module `sqlalchemy`. Raises MissingExtraError if it is not installed."""
    try:
        import sqlalchemy
    except ImportError:
        raise MissingExtraError("audit", "a database") from None
    return sqlalchemy


def _make_file(
    mode: int, _dialect: object, _record: object, arguments: list[Any], _options: object
) -> None:
    """Create the file with `mode`, which its -wal and -shm files copy; SQLite would use the umask."""
    name = str(arguments[0]) if arguments else ""
    if name.startswith("file:"):
        parsed = urlsplit(name)
        asked = parse_qs(parsed.query).get("mode", ["rwc"])[0]
        name = unquote(parsed.path) if asked == "rwc" else ""
    if name in ("", ":memory:"):
        return
    with suppress(OSError):  # it exists, or cannot be created, which SQLite reports
        # for a dangling link, SQLite creates the file that the link names
        create_private(Path(os.path.realpath(name)), new=True, mode=mode).close()


def _set_pragmas(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # otherwise the driver also begins transactions
    cursor = connection.cursor()
    for pragma in (f"busy_timeout={PATIENCE * 1000:.0f}", *PRAGMAS):
        cursor.execute(f"PRAGMA {pragma}")
    _switch_to_wal(cursor, time.monotonic() + PATIENCE)
    cursor.close()


def _switch_to_wal(cursor: sqlite3.Cursor, deadline: float) -> None:
    """Switch to WAL. SQLite does not wait while another connection switches, so retry."""
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    """Take the write lock at once: if it read first, another could write before it gets the lock."""
    write = connection.get_execution_options().get("toolcrib_write", True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _set_session(connection: Any, _record: object) -> None:
    """Make commits wait for the disk, floats exact, and the encoding UTF-8.

    A server, a database or a role may have other defaults.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('synchronous_commit', 'on', false)"
            " WHERE current_setting('synchronous_commit') = 'off'"
        )
        cursor.execute(
            "SELECT set_config('extra_float_digits', '3', false),"
            " set_config('client_encoding', 'UTF8', false)"
        )
    connection.commit()


_APPROVALS = {"id", "request", "expires_at", "answer", "used_at"}  # the columns of version 1
# Databases older than the table of versions have no row for version 1, but may have its table.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE IF NOT EXISTS approvals (
            id VARCHAR(64) PRIMARY KEY,
            request TEXT NOT NULL,
            expires_at DOUBLE PRECISION NOT NULL,
            answer TEXT,
            used_at DOUBLE PRECISION
        )""",
    ),
    (
        "ALTER TABLE approvals ADD COLUMN run_id TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE approvals ADD COLUMN call_id TEXT NOT NULL DEFAULT ''",
        """CREATE UNIQUE INDEX approvals_by_call ON approvals (run_id, call_id)
            WHERE call_id <> ''""",
        """CREATE TABLE audit_entries (
            seq {serial} PRIMARY KEY,
            at DOUBLE PRECISION NOT NULL,
            run_id TEXT NOT NULL,
            call_id TEXT NOT NULL,
            idempotency_key TEXT NOT NULL,
            tool TEXT NOT NULL,
            caller TEXT NOT NULL,
            status TEXT NOT NULL,
            code TEXT NOT NULL,
            record TEXT NOT NULL,
            previous TEXT NOT NULL,
            hash TEXT NOT NULL
        )""",
        "CREATE INDEX audit_entries_by_run ON audit_entries (run_id, call_id)",
        "CREATE INDEX audit_entries_by_call ON audit_entries (call_id)",
        "CREATE INDEX audit_entries_by_key ON audit_entries (idempotency_key)",
        """CREATE TABLE audit_head (
            id INTEGER PRIMARY KEY,
            seq {serial} NOT NULL,
            hash TEXT NOT NULL,
            seal TEXT NOT NULL
        )""",
    ),
    # Entries that exist already have format 1 until they are migrated: `toolcrib.audit.entry`.
    (
        "ALTER TABLE audit_head ADD COLUMN format INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE audit_head ADD COLUMN log_id TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE audit_head ADD COLUMN first_seq {serial} NOT NULL DEFAULT 1",
        "ALTER TABLE audit_head ADD COLUMN keys_hash TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE audit_head ADD COLUMN tree_hash TEXT NOT NULL DEFAULT ''",
        "CREATE TABLE audit_keys (prefix TEXT PRIMARY KEY, content TEXT NOT NULL)",
        "CREATE TABLE audit_tiles (place TEXT PRIMARY KEY, hashes TEXT NOT NULL)",
    ),
    (
        """CREATE TABLE chat_threads (
            id TEXT PRIMARY KEY,
            owner TEXT NOT NULL,
            title TEXT NOT NULL,
            created_at DOUBLE PRECISION NOT NULL,
            updated_at DOUBLE PRECISION NOT NULL,
            session TEXT NOT NULL DEFAULT ''
        )""",
        "CREATE INDEX chat_threads_by_owner ON chat_threads (owner, updated_at)",
        """CREATE TABLE chat_turns (
            id TEXT PRIMARY KEY,
            thread_id TEXT NOT NULL,
            seq INTEGER NOT NULL,
            run_id TEXT NOT NULL,
            status TEXT NOT NULL,
            view TEXT NOT NULL,
            state TEXT NOT NULL,
            lease DOUBLE PRECISION NOT NULL,
            UNIQUE (thread_id, seq)
        )""",
        """CREATE TABLE chat_calls (
            run_id TEXT NOT NULL,
            call_id TEXT NOT NULL,
            record TEXT NOT NULL,
            PRIMARY KEY (run_id, call_id)
        )""",
    ),
    # The conversation before a turn. It is unknown (NULL) for turns that exist already.
    ("ALTER TABLE chat_turns ADD COLUMN before TEXT",),
    ("ALTER TABLE approvals ADD COLUMN pinned TEXT NOT NULL DEFAULT ''",),
    (
        """CREATE TABLE chat_waiting (
            owner TEXT NOT NULL,
            thread TEXT NOT NULL,
            state TEXT NOT NULL,
            kept_at DOUBLE PRECISION NOT NULL,
            expires_at DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (owner, thread)
        )""",
    ),
    (
        """CREATE TABLE durable_runs (
            id TEXT PRIMARY KEY,
            agent TEXT NOT NULL,
            caller TEXT NOT NULL,
            status TEXT NOT NULL,
            segment INTEGER NOT NULL,
            state TEXT NOT NULL,
            answers TEXT NOT NULL,
            text TEXT NOT NULL,
            reason TEXT NOT NULL,
            worker TEXT NOT NULL,
            created_at DOUBLE PRECISION NOT NULL,
            updated_at DOUBLE PRECISION NOT NULL
        )""",
        "CREATE INDEX durable_runs_by_status ON durable_runs (status, updated_at)",
        """CREATE TABLE durable_questions (
            id TEXT PRIMARY KEY,
            run_id TEXT NOT NULL,
            request TEXT NOT NULL,
            expires_at DOUBLE PRECISION NOT NULL,
            answer TEXT
        )""",
        "CREATE INDEX durable_questions_by_run ON durable_questions (run_id)",
        """CREATE TABLE durable_workers (
            id TEXT PRIMARY KEY,
            process TEXT NOT NULL,
            beat_at DOUBLE PRECISION NOT NULL
        )""",
    ),
    (
        "CREATE TABLE spenders (caller TEXT PRIMARY KEY)",
        """CREATE TABLE spent_calls (
            caller TEXT NOT NULL,
            call_key TEXT NOT NULL,
            tool TEXT NOT NULL,
            cost DOUBLE PRECISION NOT NULL,
            spent_at DOUBLE PRECISION NOT NULL,
            kept_until DOUBLE PRECISION NOT NULL,
            takers INTEGER NOT NULL,
            PRIMARY KEY (caller, call_key)
        )""",
        "CREATE INDEX spent_calls_by_time ON spent_calls (caller, spent_at)",
    ),
    (
        "ALTER TABLE durable_runs ADD COLUMN began INTEGER NOT NULL DEFAULT 0",
        """UPDATE durable_runs SET began = CASE WHEN status IN ('queued', 'running')
            THEN segment ELSE segment + 1 END""",
        "ALTER TABLE durable_runs ADD COLUMN cut TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE durable_questions ADD COLUMN signature TEXT NOT NULL DEFAULT ''",
    ),
    (
        """CREATE TABLE spilled_results (
            name TEXT PRIMARY KEY,
            kept_at DOUBLE PRECISION NOT NULL,
            text TEXT NOT NULL
        )""",
    ),
    (
        "ALTER TABLE approvals ADD COLUMN signature TEXT NOT NULL DEFAULT ''",
        """CREATE TABLE approval_rules (
            id VARCHAR(64) PRIMARY KEY,
            definition_digest TEXT NOT NULL,
            caller TEXT NOT NULL,
            content TEXT NOT NULL,
            signature TEXT NOT NULL
        )""",
        "CREATE INDEX approval_rules_by_call ON approval_rules (definition_digest, caller)",
    ),
    ("ALTER TABLE approvals ADD COLUMN answered_at DOUBLE PRECISION",),
    (
        """CREATE TABLE paid_requests (
            caller TEXT NOT NULL,
            request_key TEXT NOT NULL,
            money DOUBLE PRECISION NOT NULL,
            paid_at DOUBLE PRECISION NOT NULL,
            kept_until DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (caller, request_key)
        )""",
        "CREATE INDEX paid_requests_by_time ON paid_requests (caller, paid_at)",
    ),
    ("ALTER TABLE durable_runs ADD COLUMN ended TEXT NOT NULL DEFAULT ''",),
    # Keys are found in audit_keys, or in a log of format 1 by run and call.
    ("DROP INDEX IF EXISTS audit_entries_by_key",),
)


def migrate(connection: Connection) -> None:
    """Bring the database to the newest version. Raises SourceError if it has a newer one."""
    run = connection.exec_driver_sql
    kind = connection.dialect.name
    if kind == "postgresql":  # on SQLite the write lock keeps other migrations out
        run(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})")
    run("CREATE TABLE IF NOT EXISTS toolcrib_schema (version INTEGER PRIMARY KEY)")
    serial = "INTEGER" if kind == "sqlite" else "BIGINT"  # a 64-bit key
    known = version_of(connection)
    if known == 0:
        _check_free(connection)
    for version, statements in enumerate(MIGRATIONS[known:], start=known + 1):
        for statement in statements:
            run(statement.format(serial=serial))
        run(f"INSERT INTO toolcrib_schema (version) VALUES ({version})")  # noqa: S608  a number


def _check_free(connection: Connection) -> None:
    """Raise SourceError if another program has tables of these names, so they are not altered."""
    found = sqlalchemy().inspect(connection)
    there = set(found.get_table_names())
    taken = there & {"audit_entries", "audit_head", "audit_keys", "audit_tiles"}
    if "approvals" in there:
        named = {column["name"] for column in found.get_columns("approvals")}
        taken |= set() if named == _APPROVALS else {"approvals"}
    if taken:
        raise SourceError(
            f"the database has a table {min(taken)} of another program: give toolcrib a database, or on"
            " a server a schema, of its own"
        )


def version_of(connection: Connection) -> int:
    """Return the version that the database records, 0 if none. Raises SourceError if not known."""
    sa = sqlalchemy()
    if not sa.inspect(connection).has_table("toolcrib_schema"):
        return 0
    version = connection.execute(sa.text("SELECT max(version) FROM toolcrib_schema")).scalar() or 0
    if not isinstance(version, int) or version > len(MIGRATIONS):
        raise SourceError(
            f"the database has version {version}, but this toolcrib knows versions up to"
            f" {len(MIGRATIONS)}: install a newer toolcrib"
        )
    return version


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
    if text == value and len(value) <= _LONGEST and value[-65:-64] != "…":
        return value
    return f"{text[:100]}…{sha256_hex(value)}"


class UnreachableError(SourceError, Explained):
    """The database could not be reached or used. The error says nothing about its content."""


class _HasRuleError(SourceError):
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
        self, connection: PoolProxiedConnection, dialect: Dialect, *, joins: bool = True
    ) -> None:
        self._connection = connection
        self._dialect = dialect
        self._joins = joins  # whether INSERTs into PostgreSQL share a statement
        self._joined = False
        self._driver: Any = None  # set by `begin`
        self._used = 0  # how many of the connection's cursors
        self._cursor: Any = None
        self._unread: Any = None  # for statements whose results are not needed
        self._pipeline = ExitStack()
        self._sync: Callable[[], object] = _nothing
        self._ahead = False  # whether statements are sent before earlier ones are answered
        self.when_committed: Callable[[], None] = lambda: None  # called once, after the commit
        self.failed: SourceError | None = None  # then nothing is committed, even if it was caught
        self.answered = False  # then the work is not repeated on another connection
        self._tells = _log.isEnabledFor(logging.DEBUG)

    def rows(self, sql: str, /, **values: object) -> list[Row]:
        """Return the rows of a SELECT, as mappings by column name."""
        found = self.tuples(sql, **values)
        names = [column[0] for column in self._cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found]

    def tuples(self, sql: str, /, **values: object) -> list[tuple[Any, ...]]:
        """Return the rows as plain tuples, which is faster than `rows` if there are many."""
        return self._run(sql, values, self._all)

    def ahead(self, sql: str, /, **values: object) -> Callable[[], list[tuple[Any, ...]]]:
        """Return a function that returns the rows of a SELECT; a server gets it now, without a wait."""
        if not self._ahead:
            return lambda: self.tuples(sql, **values)
        cursor = self._new_cursor()
        self._run(sql, values, _nothing, cursor=cursor)
        return lambda: self._checked(lambda: self._all(cursor))

    def execute(self, sql: str, /, **values: object) -> int:
        """Run a statement and return how many rows it changed."""
        return self._run(sql, values, self._changed)

    def insert(self, insert: Insert, rows: Sequence[Row]) -> None:
        """Insert rows; a server may report an error as late as with the next statement."""
        if rows and self._dialect.name == "postgresql":
            for part in _in_parts(rows):
                self.send(insert.of_json(), rows=part)
        elif rows:
            self._run(insert.of_values(), rows[0], _nothing, more=rows[1:])

    def write(
        self, inserts: Sequence[tuple[Insert, Sequence[Row]]], sql: str, /, **values: object
    ) -> None:
        """Insert rows into some tables, then run a statement whose result nobody needs.

        PostgreSQL gets all of it in one statement, which sees the tables as they were before, unless
        there are too many rows or a table has a rule.
        """
        if not self._joins or self._dialect.name != "postgresql":
            for insert, rows in inserts:
                self.insert(insert, rows)
            self.send(sql, **values)
            return
        last: dict[str, object] = {}
        some = [(insert, rows) for insert, rows in inserts if rows]
        for insert, rows in some:
            *first, last[f"rows_of_{insert.table}"] = _in_parts(rows)
            for part in first:
                self.send(insert.of_json(), rows=part)
        self._joined = bool(some)
        self.send(_in_one(tuple(insert for insert, _ in some), sql), **values, **last)

    def send(self, sql: str, /, **values: object) -> None:
        """Run a statement whose result nobody needs; a server may report an error as late as with the
        next one."""
        self._run(sql, values, _nothing, cursor=self._unread)

    def require(self, written: Sequence[Row], sql: str, /, **values: object) -> None:
        """Raise SourceError unless a SELECT returns exactly these rows, which were written before.

        It also finds what triggers changed, even deferred ones. A server compares a few rows itself,
        which saves a round trip, and reports a difference as late as with the COMMIT, which then does
        not happen. More rows are compared here, which is faster.
        """
        if self._dialect.name == "postgresql":
            self.send("SET CONSTRAINTS ALL IMMEDIATE")
        few = self._ahead and len(written) <= _FEW
        text = msgspec.json.encode(written).decode() if few else ""
        if few and len(text) <= MOST_COMPARED:
            self.send(_refusing(sql), **values, written=text)
        elif self.tuples(sql, **values) != [tuple(row.values()) for row in written]:
            raise SourceError(_NOT_TAKEN)

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
            self._run("BEGIN IMMEDIATE" if write else "BEGIN", {}, _nothing)
            return
        self._checked(self._enter_pipeline)
        mode = "READ COMMITTED" if write else "REPEATABLE READ READ ONLY"
        self.send(f"BEGIN ISOLATION LEVEL {mode}")

    def _enter_pipeline(self) -> None:
        driver = self._driver
        if not driver.autocommit:  # as SQLAlchemy leaves it; here BEGIN and COMMIT are statements
            driver.autocommit = True
        if getattr(self._dialect.loaded_dbapi.capabilities, "has_pipeline", bool)():
            self._sync = self._pipeline.enter_context(driver.pipeline()).sync
            self._ahead = True

    def commit(self) -> None:
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

    def _all(self, cursor: Any = None) -> list[tuple[Any, ...]]:
        found = list((cursor or self._cursor).fetchall())
        self.answered = True
        return found

    def _changed(self) -> int:
        self._sync()
        self.answered = True
        return int(self._cursor.rowcount)

    def _run(
        self,
        sql: str,
        values: Row,
        take: Callable[[], T],
        *,
        cursor: Any = None,
        more: Sequence[Row] = (),
    ) -> T:
        if self._tells:
            _log.debug("%s", sql)
        text, named = _statement(sql, values, self._dialect.name)
        cursor = self._cursor if cursor is None else cursor
        try:
            if more:
                cursor.executemany(text, [named, *more])
            else:
                cursor.execute(text, named)
            if self._ahead:
                _send_all(self._driver)
            return take()
        except (self._error, UnicodeError) as error:
            failure = self._failed_by(error)
        raise failure  # raised outside, without a context that may quote what was written

    def _checked(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except (self._error, UnicodeError) as error:
            failure = self._failed_by(error)
        raise failure

    def _failed_by(self, error: Exception) -> SourceError:
        if self.failed is None:  # a server refuses all that follows the first
            self.failed = failed_by(error)
            if self._joined and code_of(error) == _NOT_SUPPORTED:
                self.failed = _HasRuleError(str(self.failed))
        said = code_of(error).startswith(_ENDED)  # the driver notices it later, when it is closed
        if not isinstance(error, UnicodeError) and (
            said or self._dialect.is_disconnect(error, self._driver, self._cursor)  # type: ignore[arg-type]
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


def _nothing() -> None:
    """Return nothing, for a statement whose result is not needed."""


def _committed(
    engine: Engine, work: Callable[[Transaction], T], *, write: bool, joins: bool
) -> tuple[T, Transaction]:
    """Run `work` in a transaction, commit, and return its result and the transaction.

    If `work` raises, the transaction is rolled back. Servers and firewalls drop idle connections, which
    shows only when the first statement is sent. So if a connection that was used before is lost and no
    statement was answered, `work` runs again on another one. A statement that is refused was answered.
    """
    while True:
        connection = _connected(engine)
        was_used = connection.info.get(_USED, False)
        connection.info[_USED] = True
        transaction = Transaction(connection, engine.dialect, joins=joins)
        try:
            transaction.begin(write=write)
            found = work(transaction)
            if write and transaction.failed:
                raise transaction.failed
            transaction.commit()
        except BaseException as error:
            # before it is rolled back, which throws away a connection that only refused a statement
            dropped = isinstance(error, SourceError) and not connection.is_valid
            transaction.roll_back()
            if not (dropped and was_used) or transaction.answered:
                raise
        else:
            return found, transaction
        finally:
            connection.close()


def _connected(engine: Engine) -> PoolProxiedConnection:
    try:
        return engine.raw_connection()
    except engine.dialect.loaded_dbapi.Error as error:
        failure = failed_by(error)
    raise failure


_FORKED = (
    "the database was open when this process was forked: close it before the fork, open it only in the"
    " forked processes, or start them in another way (multiprocessing's spawn or forkserver)"
)
_open_at_fork: set[object] = set()  # identities of the SQLite files that the parent had open


class SqlDatabase:
    """A database, opened at its first use.

    Its methods raise SourceError if the database is unusable. The constructor raises SourceError unless
    the URL is one of SQLite or PostgreSQL, and MissingExtraError without SQLAlchemy.

    Its connections belong to the process that opened them. A child forked while it is open cannot use
    them: two processes would talk to a server on one connection. Nor can it open the same SQLite file:
    SQLite would take the parent's locks for its own, and other processes would remove the write-ahead
    log while it is in use.
    """

    @names_wrong_types
    def __init__(self, url: str, *, mode: int = OWNERS) -> None:
        self._note = f"the database is {without_passwords(without_password(url))}"
        if _TAKEN.match(url) is None or "\0" in url:
            failure = UnreachableError(f"the database cannot be used: its URL {_URLS}")
            failure.add_note(self._note)
            raise failure
        if find_spec("sqlalchemy") is None:
            raise MissingExtraError("audit", "a database")
        self._url = url
        self._mode = mode  # for a SQLite file that is created
        self._folder = ""
        with suppress(OSError):  # the folder may be gone, and may not be needed
            self._folder = os.getcwd()  # noqa: PTH109  to open the same file again later
        self._open: _OpenEngine | None = None
        self._closings = 0
        self._joins = True  # until a table is found to have a rule
        self.renew()
        renewed_in_children(self)

    def renew(self) -> None:
        """Make a new lock in a forked child, and note which file the parent has open.

        Another thread's lock would stay locked in the child.
        """
        self._opening = threading.Lock()
        if self._open is not None and self._open.file is not None:
            _open_at_fork.add(self._open.file)

    async def read(self, sql: str, /, **values: object) -> list[Row]:
        """Return the rows of a SELECT, as mappings by column name; `:name` marks a value."""
        return await self.transact(lambda t: t.rows(sql, **values), write=False)

    async def write(self, sql: str, /, **values: object) -> int:
        """Execute a statement, commit, and return how many rows it changed."""
        return await self.transact(lambda t: t.execute(sql, **values))

    async def transact(self, work: Callable[[Transaction], T], *, write: bool = True) -> T:
        """Run `work` in a transaction, commit, and return its result; if it raises, nothing is kept.

        Without `write`, all its statements read one snapshot.
        """
        return await asyncio.to_thread(self._transact_noted, work, write, self._closings)

    def transact_here(self, work: Callable[[Transaction], T], *, write: bool = True) -> T:
        """Do the same as `transact`, in the calling thread, which must not run an event loop."""
        return self._transact_noted(work, write, self._closings)

    async def aclose(self) -> None:
        """Close the connections. The next use opens the database again.

        A transaction that was asked for before, such as that of a cancelled task, may still run. It
        leaves no connection open. The connections are also closed if this is cancelled.
        """
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self.close_here))

    def _transact_noted(self, work: Callable[[Transaction], T], write: bool, closings: int) -> T:
        try:
            return _quietly(lambda: self._transact(work, write=write, closings=closings))
        except SourceError as error:
            error.add_note(self._note)  # only a traceback shows notes; the text may go to users
            raise

    def _transact(self, work: Callable[[Transaction], T], *, write: bool, closings: int) -> T:
        engine, file, _ = self._opened(closings)
        pool = engine.pool
        try:
            found, transaction = _committed(engine, work, write=write, joins=self._joins)
        except _HasRuleError:
            self._joins = False
            found, transaction = _committed(engine, work, write=write, joins=False)
        finally:
            if not self._is_open(engine):  # it was closed while the pool took the connection back
                pool.dispose()
        if file_behind(engine) != file:
            self.close_here()
            raise UnreachableError("the database's file was removed or replaced while it was open")
        if write:
            transaction.when_committed()
        return found

    def _opened(self, closings: int) -> _OpenEngine:
        """Return the engine in use. If there is none, open it, or one for a single transaction if the
        database was closed after that was asked for, when it had been closed `closings` times."""
        with self._opening:
            if self._open is None:
                engine = open_engine(self._url, self._mode, self._folder)
                if file_behind(engine) in _open_at_fork:
                    raise UnreachableError(_FORKED)
                try:
                    _to_newest(engine)
                except BaseException:
                    engine.dispose()
                    raise
                opened = _OpenEngine(engine, file_behind(engine), os.getpid())
                close_late(engine, lambda: self._is_open(engine))
                if closings != self._closings:
                    return opened
                self._open = opened
            if self._open.process != os.getpid():
                raise UnreachableError(_FORKED)
            return self._open

    def _is_open(self, engine: Engine) -> bool:
        return self._open is not None and self._open.engine is engine

    def close_here(self) -> None:
        """Do the same as `aclose`, in the calling thread, which must not run an event loop."""
        with self._opening:
            self._closings += 1
            opened = self._open
            if opened is not None and opened.process == os.getpid():
                self._open = None
                opened.engine.dispose()


def close_late(engine: Engine, is_open: Callable[[], bool]) -> None:
    """Close each connection that a thread returns after its engine was disposed of.

    `dispose` does not close the connections that are in use at that moment.
    """

    def closed(connection: Any, _: object) -> None:
        if connection is not None and not is_open():
            connection.close()

    sqlalchemy().event.listen(engine, "checkin", closed)


class _OpenEngine(NamedTuple):
    """An engine, the identity of its SQLite file or None, and the process that opened it."""

    engine: Engine
    file: object
    process: int


def _to_newest(engine: Engine) -> None:
    with engine.connect() as connection, prepared(connection, write=False).begin():
        version = version_of(connection)
    if version < len(MIGRATIONS):
        with engine.connect() as connection, prepared(connection, write=True).begin():
            migrate(connection)


def _quietly(work: Callable[[], T]) -> T:
    """Run `work` and return its result. SourceErrors hold the database's error code, never its text."""
    try:
        return work()
    except ModuleNotFoundError as error:
        failure: SourceError = UnreachableError(
            f"the database's driver is not installed: {error.name}"
        )
    except (sqlalchemy().exc.SQLAlchemyError, UnicodeError) as error:
        failure = failed_by(error)
    raise failure  # raised outside, without a context that may quote what was written


def failed_by(error: Exception) -> SourceError:
    """Return the SourceError for an error of SQLAlchemy or a driver, with its code, never its text."""
    code = code_of(error)
    if code == _DIVIDED:
        return SourceError(_NOT_TAKEN)
    told = ", ".join(filter(None, (type(error).__name__, code)))
    if code.startswith(_REFUSED):
        name = _constraint_of(error)
        what = f"its constraint {name}" if name else "a constraint or a trigger of it"
        return SourceError(
            f"the database refused what was to be written ({told}): {what} is not toolcrib's, or does"
            " not fit. Remove it; nothing of the transaction was kept"
        )
    kind = UnreachableError if unreachable(error) else SourceError
    return kind(f"the database cannot be used ({told}): {advice(error)}")


MOST_COMPARED = 2**14
"""Characters of rows, as JSON, that a server compares itself: it takes 15 µs for each thousand."""
_FEW = 16  # rows
MOST_IN_ONE = 16 * 2**20
"""The most bytes of rows in one statement to a server, unless a single row has more."""
_NAMED = re.compile(r"(?<![:\w]):(\w+)")


def _statement(sql: str, values: Row, kind: str) -> tuple[str, Row]:
    """Return a statement and its values for the driver, with a name for each item of a list."""
    if list not in map(type, values.values()):
        return _in_style(sql, (), kind), values
    lists = tuple((n, len(v)) for n, v in values.items() if v.__class__ is list)
    items = {n: v for n, v in values.items() if v.__class__ is not list}
    for name, _ in lists:
        items.update((f"{name}_{at}", item) for at, item in enumerate(values[name]))
    return _in_style(sql, lists, kind), items


def _in_parts(values: Sequence[Row]) -> Iterator[str]:
    """Yield the rows as JSON strings of at most MOST_IN_ONE bytes, or of one larger row."""
    whole = msgspec.json.encode(values)
    if len(whole) <= MOST_IN_ONE:
        yield whole.decode()
        return
    part: list[bytes] = []
    size = 0
    for row in values:
        text = msgspec.json.encode(row)
        if part and size + len(text) > MOST_IN_ONE:
            yield f"[{b','.join(part).decode()}]"
            part, size = [], 0
        part.append(text)
        size += len(text)
    yield f"[{b','.join(part).decode()}]"


@lru_cache(maxsize=64)
def _in_one(inserts: tuple[Insert, ...], sql: str) -> str:
    """Return PostgreSQL's statement for INSERTs of rows in JSON strings and another statement."""
    each = (f"into_{one.table} AS ({one.of_json(f'rows_of_{one.table}')})" for one in inserts)
    return f"WITH {', '.join(each)} {sql}" if inserts else sql


@lru_cache(maxsize=64)
def _refusing(sql: str) -> str:
    """Return a statement that fails unless a SELECT returns the rows in the JSON string `:written`."""
    found = f"SELECT coalesce(jsonb_agg(to_jsonb(found)), '[]') FROM ({sql}) AS found"  # noqa: S608
    return f"SELECT 1 / (CASE WHEN ({found}) = CAST(:written AS jsonb) THEN 1 ELSE 0 END)"


@lru_cache(maxsize=1024)
def _in_style(sql: str, lists: tuple[tuple[str, int], ...], kind: str) -> str:
    for name, size in lists:
        names = ", ".join(f":{name}_{at}" for at in range(size)) or "NULL"
        sql = re.sub(rf"(?<![:\w]):{name}\b", f"({names})", sql)
    return sql if kind == "sqlite" else _NAMED.sub(r"%(\1)s", sql.replace("%", "%%"))
