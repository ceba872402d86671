"""One small interface over SQLAlchemy Core: SQLite by default, a server by URL.

SQLite runs in WAL mode with `synchronous=FULL`: what was committed is there after a crash, and
readers never wait for the writer. Statements run in a thread; the event loop never blocks on a disk.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from toolcrib.errors import MissingExtraError, SourceError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

T = TypeVar("T")
Row: TypeAlias = Mapping[str, Any]

_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=10000", "foreign_keys=ON")
_IN_MEMORY = ("sqlite://", "sqlite:///:memory:")
_TABLES = (
    """CREATE TABLE IF NOT EXISTS approvals (
        id VARCHAR(64) PRIMARY KEY,
        request TEXT NOT NULL,
        expires_at DOUBLE PRECISION NOT NULL,
        answer TEXT,
        used_at DOUBLE PRECISION
    )""",
)


class Database:
    """Opened at first use. Raises MissingExtraError without SQLAlchemy, SourceError if unusable."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine: Engine | None = None
        self._opening = threading.Lock()

    async def read(self, sql: str, /, **values: object) -> list[Row]:
        """The rows of a SELECT, as mappings by column name; `:name` marks a value."""
        return await self._in_thread(
            lambda c, q: [dict(r) for r in c.execute(q, values).mappings()], sql
        )

    async def write(self, sql: str, /, **values: object) -> int:
        """Execute and commit; how many rows it changed."""
        return await self._in_thread(lambda c, q: int(c.execute(q, values).rowcount), sql)

    async def aclose(self) -> None:
        if self._engine is not None:
            await asyncio.to_thread(self._engine.dispose)
            self._engine = None

    async def _in_thread(self, work: Callable[[Connection, Any], T], sql: str) -> T:
        return await asyncio.to_thread(self._transact, work, sql)

    def _transact(self, work: Callable[[Connection, Any], T], sql: str) -> T:
        sqlalchemy = _sqlalchemy()
        try:
            with self._opening:
                if self._engine is None:
                    self._engine = _open(sqlalchemy, self._url)
            with self._engine.begin() as connection:
                return work(connection, sqlalchemy.text(sql))
        except ModuleNotFoundError as error:
            failure = f"the database's driver is not installed: {error.name}"
        except (sqlalchemy.exc.SQLAlchemyError, UnicodeError) as error:
            failure = f"the database cannot be used ({type(error).__name__}): check its URL"
        raise SourceError(failure)  # out here it carries no context, which holds what was written


def _open(sqlalchemy: Any, url: str) -> Engine:
    options: dict[str, Any] = {}
    if sqlalchemy.engine.make_url(url) in map(sqlalchemy.engine.make_url, _IN_MEMORY):
        # each connection would be a database of its own: one for all threads, one at a time
        options = {"poolclass": sqlalchemy.pool.QueuePool, "pool_size": 1, "max_overflow": 0}
        options["connect_args"] = {"check_same_thread": False}
    engine: Engine = sqlalchemy.create_engine(url, **options)
    if engine.dialect.name == "sqlite":
        sqlalchemy.event.listen(engine, "connect", _set_pragmas)
    with engine.begin() as connection:
        for table in _TABLES:
            connection.execute(sqlalchemy.text(table))
    return engine


def _set_pragmas(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _sqlalchemy() -> Any:
    try:
        import sqlalchemy
    except ImportError:
        raise MissingExtraError("audit", "a database") from None
    return sqlalchemy
