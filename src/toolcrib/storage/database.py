"""One small interface over SQLAlchemy Core: SQLite by default, a server by URL.

Statements run in a thread, so the event loop never blocks on a disk. A failure raises a SourceError
whose text and context hold nothing of what was written.

SQLite runs in WAL mode with `synchronous=FULL` and takes its write lock when a transaction begins.
PostgreSQL confirms a commit once its log is on disk. With both, committed data survives a crash, and
readers never wait for a writer. No other module knows which of the two is in use.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

from toolcrib.errors import MissingExtraError, SourceError
from toolcrib.storage.cache_folder import OWNER_ONLY, create_private
from toolcrib.storage.errors import (
    URL_FORMS,
    UnreachableError,
    failed_by,
    sqlalchemy,
    with_safe_errors,
)
from toolcrib.storage.migrations import MIGRATIONS, migrate, version_of
from toolcrib.storage.transaction import Row, TableHasRuleError, Transaction
from toolcrib.threads import renew_in_children
from toolcrib.urls import without_password
from toolcrib.values.typed import names_wrong_types

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine
    from sqlalchemy.pool import PoolProxiedConnection

T = TypeVar("T")
LOCK_TIMEOUT = 10.0  # seconds to wait for another connection's lock
PRAGMAS = ("synchronous=FULL", "fullfsync=ON", "foreign_keys=ON")
_SQLITE_OPTIONS = frozenset(  # Python's driver ignores all others, even `mode=ro`
    ("timeout", "detect_types", "isolation_level", "check_same_thread", "cached_statements")
)
_IN_MEMORY = (None, "", ":memory:")
_SUPPORTED_URL = re.compile(r"(sqlite|postgresql)(\+\w+)?://")
_WAS_USED = "toolcrib_used"  # in the `info` of a connection that was handed out before


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
    logging.getLogger("sqlalchemy.engine.Engine.toolcrib").addFilter(_holds_no_row)
    is_sqlite = parsed.get_backend_name() == "sqlite"
    if is_sqlite and parsed.database in _IN_MEMORY:
        # each connection would open a separate database, so all threads share one, in turn
        options |= {"poolclass": sa.pool.QueuePool, "pool_size": 1, "max_overflow": 0}
        options["connect_args"] = {"check_same_thread": False}
    elif is_sqlite:
        if not (_is_uri(parsed) or _SQLITE_OPTIONS.issuperset(parsed.query)):
            raise sa.exc.ArgumentError(
                "SQLite takes such an option only in the form file:…&uri=true"
            )
        parsed = parsed.set(database=_absolute_database(parsed, folder))
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


def _uri_path(url: URL) -> str:
    """Return the path in SQLite's form of a URI (`file:crib.db`), or "" for a database in memory."""
    path = unquote(urlsplit(url.database or "").path)
    return "" if path == ":memory:" or url.query.get("mode") == "memory" else path


def _absolute_database(url: URL, folder: str) -> str:
    """Return a SQLite file's absolute name, which stays the same if the working directory changes."""
    name = url.database or ""
    if not _is_uri(url):
        return os.path.abspath(os.path.join(folder, name))  # noqa: PTH100, PTH118  a link stays
    path = _uri_path(url)
    if not path or path.startswith("/"):
        return name
    return f"file:{quote(os.path.abspath(os.path.join(folder, path)))}"  # noqa: PTH100, PTH118


def _holds_no_row(record: logging.LogRecord) -> bool:
    """Keep rows out of SQLAlchemy's log: it hides written values, but logs read rows at DEBUG."""
    return record.levelno > logging.DEBUG


def file_behind(engine: Engine) -> object:
    """Return the identity (device, inode) of a SQLite database's file; None if there is no file."""
    if engine.dialect.name != "sqlite":
        return None
    name = engine.url.database or ""
    name = _uri_path(engine.url) if _is_uri(engine.url) else name
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
    for pragma in (f"busy_timeout={LOCK_TIMEOUT * 1000:.0f}", *PRAGMAS):
        cursor.execute(f"PRAGMA {pragma}")
    _switch_to_wal(cursor, time.monotonic() + LOCK_TIMEOUT)
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


def _committed(
    engine: Engine, work: Callable[[Transaction], T], *, write: bool, combines: bool
) -> tuple[T, Transaction]:
    """Run `work` in a transaction, commit, and return its result and the transaction.

    If `work` raises, the transaction is rolled back. Servers and firewalls drop idle connections, which
    shows only when the first statement is sent. So if a connection that was used before is lost and no
    statement was answered, `work` runs again on another one. A statement that is refused was answered.
    """
    while True:
        connection = _connected(engine)
        was_used = connection.info.get(_WAS_USED, False)
        connection.info[_WAS_USED] = True
        transaction = Transaction(connection, engine.dialect, combines=combines)
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
    def __init__(self, url: str, *, mode: int = OWNER_ONLY) -> None:
        self._note = f"the database is {without_password(url)}"
        if _SUPPORTED_URL.match(url) is None or "\0" in url:
            failure = UnreachableError(f"the database cannot be used: its URL {URL_FORMS}")
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
        self._combines = True  # until a table is found to have a rule
        self.renew()
        renew_in_children(self)

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
        return await self.begin(work, write=write)

    def begin(self, work: Callable[[Transaction], T], *, write: bool = True) -> asyncio.Future[T]:
        """Begin a transaction as `transact` does; it goes on if whoever waits for it is cancelled."""
        run = contextvars.copy_context().run
        transact = partial(run, self._transact_noted, work, write, self._closings)
        return asyncio.get_running_loop().run_in_executor(None, transact)

    def transact_sync(self, work: Callable[[Transaction], T], *, write: bool = True) -> T:
        """Do the same as `transact`, in the calling thread, which must not run an event loop."""
        return self._transact_noted(work, write, self._closings)

    async def aclose(self) -> None:
        """Close the connections. The next use opens the database again.

        A transaction that was asked for before, such as that of a cancelled task, may still run. It
        leaves no connection open. The connections are also closed if this is cancelled.
        """
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self.close_sync))

    def _transact_noted(self, work: Callable[[Transaction], T], write: bool, closings: int) -> T:
        try:
            return with_safe_errors(lambda: self._transact(work, write=write, closings=closings))
        except SourceError as error:
            error.add_note(self._note)  # only a traceback shows notes; the text may go to users
            raise

    def _transact(self, work: Callable[[Transaction], T], *, write: bool, closings: int) -> T:
        engine, file, _ = self._opened(closings)
        pool = engine.pool
        try:
            found, transaction = _committed(engine, work, write=write, combines=self._combines)
        except TableHasRuleError:
            self._combines = False
            found, transaction = _committed(engine, work, write=write, combines=False)
        finally:
            if not self._is_open(engine):  # it was closed while the pool took the connection back
                pool.dispose()
        if file_behind(engine) != file:
            self.close_sync()
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
                    _migrate(engine)
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

    def close_sync(self) -> None:
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


def _migrate(engine: Engine) -> None:
    with engine.connect() as connection, prepared(connection, write=False).begin():
        version = version_of(connection)
    if version < len(MIGRATIONS):
        with engine.connect() as connection, prepared(connection, write=True).begin():
            migrate(connection)
