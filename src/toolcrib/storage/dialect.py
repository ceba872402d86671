"""What differs between one database and another; nowhere else is it known which one is in use.

SQLite runs in WAL mode with `synchronous=FULL` and takes its write lock when a transaction begins;
PostgreSQL waits for its log to be on disk before it confirms. On both, what was committed is there
after a crash, and whoever only reads never waits for the writer.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from toolcrib.errors import MissingExtraError
from toolcrib.storage.cache_folder import OWNERS, create_private

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

_PATIENCE = 10.0  # seconds to wait for another connection's lock
_PRAGMAS = (
    f"busy_timeout={_PATIENCE * 1000:.0f}",
    "synchronous=FULL",
    "fullfsync=ON",
    "foreign_keys=ON",
)
_IN_MEMORY = (None, "", ":memory:")
_SCHEMA_LOCK = 7_665_646_001  # any number that no other program takes for its advisory lock
_NO_URL = ("ArgumentError", "NoSuchModuleError")
_UNREACHABLE = {
    "SQLITE_BUSY": "another program has locked it, and did not let go",
    "SQLITE_CANTOPEN": "it is not there, or its folder is not",
    "SQLITE_FULL": "the disk is full",
    "SQLITE_LOCKED": "it is locked",
    "SQLITE_NOMEM": "there is no memory left",
    "SQLITE_PERM": "this user may not read it",
    "SQLITE_READONLY": "this user may not write to it",
}


def open_engine(url: str, mode: int = OWNERS) -> Engine:
    """An engine of which nothing has been asked yet; raises SQLAlchemyError for an unusable URL.

    A SQLite file that is not there is made with that mode, and so are the files beside it.
    """
    sa = sqlalchemy()
    try:
        parsed = sa.engine.make_url(url)
    except ValueError:
        raise sa.exc.ArgumentError("a port is a number") from None
    options: dict[str, Any] = {"hide_parameters": True, "logging_name": "toolcrib"}
    logging.getLogger("sqlalchemy.engine.Engine.toolcrib").addFilter(_is_no_row)
    if parsed.get_backend_name() != "sqlite":
        options["pool_pre_ping"] = True  # servers and firewalls drop what is idle
    elif parsed.database in _IN_MEMORY:
        # each connection would be a database of its own: one for all threads, one at a time
        options |= {"poolclass": sa.pool.QueuePool, "pool_size": 1, "max_overflow": 0}
        options["connect_args"] = {"check_same_thread": False}
    elif not parsed.database.startswith("file:"):
        # every connection is to the same file, whatever becomes of the working folder
        parsed = parsed.set(database=os.path.abspath(parsed.database))  # noqa: PTH100  a link stays
    engine: Engine = sa.create_engine(parsed, **options)
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "do_connect", partial(_make_file, mode))
        sa.event.listen(engine, "connect", _set_pragmas)
        sa.event.listen(engine, "begin", _begin_sqlite)
    elif engine.dialect.name == "postgresql":
        sa.event.listen(engine, "connect", _confirm_on_disk)
    return engine


def _is_no_row(told: logging.LogRecord) -> bool:
    """SQLAlchemy hides what is written from its log, but not what is read, which it tells at DEBUG."""
    return told.levelno > logging.DEBUG


def file_behind(engine: Engine) -> object:
    """What tells the file of a SQLite database from any other; None where there is no such file."""
    name = engine.url.database or ""
    if engine.dialect.name != "sqlite" or not os.path.isabs(name):  # noqa: PTH117  no path yet
        return None
    try:
        found = os.stat(name)  # noqa: PTH116  once for each transaction
    except OSError:
        return None
    return found.st_dev, found.st_ino


def prepared(connection: Connection, *, write: bool) -> Connection:
    """For one transaction: a snapshot that is only read, or whatever the locks it takes let it see."""
    if connection.dialect.name == "sqlite":
        return connection.execution_options(toolcrib_write=write)
    if write:
        return connection.execution_options(isolation_level="READ COMMITTED")
    return connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def lock_schema(connection: Connection) -> None:
    """Until the transaction ends nobody else changes tables. SQLite's write lock does that already."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})")


def for_update(connection: Connection) -> str:
    """What ends a SELECT whose rows nobody else may change before this transaction ends."""
    return "" if connection.dialect.name == "sqlite" else " FOR UPDATE"


def column_types(connection: Connection) -> dict[str, str]:
    """The names of types that have no common one: `serial`, a key of 64 bits that counts rows."""
    return {"serial": "INTEGER" if connection.dialect.name == "sqlite" else "BIGINT"}


def damage(connection: Connection) -> str:
    """What the database itself finds wrong with its file; empty if nothing, or if it cannot tell."""
    if connection.dialect.name != "sqlite":
        return ""
    found = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
    return "" if found == "ok" else " ".join(str(found).split())


def advice(error: Exception) -> str:
    """What is wrong, or where to look."""
    if type(error).__name__ in _NO_URL:
        return "its URL must be such as sqlite:///crib.db or postgresql+psycopg://HOST/NAME"
    known = (said for code, said in _UNREACHABLE.items() if code_of(error).startswith(code))
    return next(known, "check its URL and its state")


def unreachable(error: Exception) -> bool:
    """Whether an error is about reaching the database, rather than about what is in it."""
    # sqlite3 calls most of its errors operational
    if isinstance(getattr(error, "orig", None), sqlite3.Error):
        return code_of(error).startswith(tuple(_UNREACHABLE))
    return type(error).__name__ in ("OperationalError", "InterfaceError", "TimeoutError")


def code_of(error: Exception) -> str:
    """The driver's own name or number for an error: never its text, which may hold what was written."""
    original = getattr(error, "orig", None)
    return str(
        getattr(original, "sqlite_errorname", None) or getattr(original, "sqlstate", "") or ""
    )


def sqlalchemy() -> Any:
    """The library; raises MissingExtraError without it."""
    try:
        import sqlalchemy
    except ImportError:
        raise MissingExtraError("audit", "a database") from None
    return sqlalchemy


def _make_file(
    mode: int, _dialect: object, _record: object, arguments: list[Any], _options: object
) -> None:
    """SQLite would make the file with whatever the umask leaves; `-wal` and `-shm` get its mode."""
    name = str(arguments[0]) if arguments else ""
    if name.startswith("file:"):
        parsed = urlsplit(name)
        asked = parse_qs(parsed.query).get("mode", ["rwc"])[0]
        name = unquote(parsed.path) if asked == "rwc" else ""
    if name in ("", ":memory:"):
        return
    with suppress(OSError):  # it is there; or it cannot be made, which SQLite tells
        create_private(Path(name), new=True, mode=mode).close()


def _set_pragmas(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver would begin by itself, and later than we do
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    _switch_to_wal(cursor, time.monotonic() + _PATIENCE)
    cursor.close()


def _switch_to_wal(cursor: sqlite3.Cursor, deadline: float) -> None:
    """While two connections switch, one is told that the file is busy: here SQLite does not wait."""
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
    """A transaction that reads first and writes later could find that another has written."""
    write = connection.get_execution_options().get("toolcrib_write", True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _confirm_on_disk(connection: Any, _record: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('synchronous_commit', 'on', false)"
            " WHERE current_setting('synchronous_commit') = 'off'"
        )
    connection.commit()
