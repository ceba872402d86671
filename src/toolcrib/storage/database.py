"""One small interface over SQLAlchemy Core: SQLite by default, a server by URL.

Statements run in a thread; the event loop never blocks on a disk. What fails is a SourceError that
carries nothing of what was written, in its text or in its context.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from toolcrib.errors import SourceError
from toolcrib.storage.cache_folder import OWNERS
from toolcrib.storage.dialect import (
    advice,
    code_of,
    damage,
    file_behind,
    for_update,
    open_engine,
    prepared,
    sqlalchemy,
    unreachable,
)
from toolcrib.storage.migrations import MIGRATIONS, migrate, version_of
from toolcrib.threads import renewed_in_children
from toolcrib.values.typed import names_wrong_types

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

T = TypeVar("T")
Row: TypeAlias = Mapping[str, Any]


class UnreachableError(SourceError):
    """The database was not there, or not to be had: nothing is said about what is in it."""


class Transaction:
    """Statements that are committed together, or not at all. `:name` marks a value.

    A value that is a list stands for what is between the brackets of `IN :name`.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.when_committed: Callable[[], None] = lambda: None  # called once, after the commit
        self.failed = False  # then it cannot be committed, whoever caught the error

    def rows(self, sql: str, /, **values: object) -> list[Row]:
        """The rows of a SELECT, as mappings by column name."""
        return self._ask(sql, values, lambda found: [dict(row) for row in found.mappings()])

    def tuples(self, sql: str, /, **values: object) -> Sequence[tuple[Any, ...]]:
        """The same, bare: for many rows."""
        return self._ask(sql, values, lambda found: found.fetchall())

    def execute(self, sql: str, /, **values: object) -> int:
        """How many rows it changed."""
        return self._ask(sql, values, lambda found: int(found.rowcount))

    def execute_many(self, sql: str, values: Sequence[Row], /) -> None:
        if values:
            self._run(lambda: self._connection.execute(_statement(sql, ()), list(values)))

    @property
    def for_update(self) -> str:
        """What ends a SELECT whose rows nobody else may change before this transaction ends."""
        return for_update(self._connection)

    def damage(self) -> str:
        """What the database itself finds wrong with its file; empty if nothing."""
        return self._run(lambda: damage(self._connection))

    def _ask(self, sql: str, values: Row, take: Callable[[Any], T]) -> T:
        lists = tuple(name for name, value in values.items() if isinstance(value, list))
        statement = _statement(sql, lists)
        return self._run(lambda: take(self._connection.execute(statement, values)))

    def _run(self, work: Callable[[], T]) -> T:
        try:
            return _quietly(work)
        except SourceError:
            self.failed = True
            raise


class Database:
    """Opened at first use. Raises MissingExtraError without SQLAlchemy, SourceError if unusable.

    Its connections belong to the process that opened it: a child that is forked meanwhile may not use
    them (of SQLite's file it would lose the locks, and a server would hear two at once).
    """

    @names_wrong_types
    def __init__(self, url: str, *, mode: int = OWNERS) -> None:
        self._url = url
        self._mode = mode  # of a SQLite file that is made
        self._open: _Open | None = None
        self.renew()
        renewed_in_children(self)

    def renew(self) -> None:
        """In a forked child another thread's lock would be held for good."""
        self._opening = threading.Lock()

    async def read(self, sql: str, /, **values: object) -> list[Row]:
        """The rows of a SELECT, as mappings by column name; `:name` marks a value."""
        return await self.transact(lambda t: t.rows(sql, **values), write=False)

    async def write(self, sql: str, /, **values: object) -> int:
        """Execute and commit; how many rows it changed."""
        return await self.transact(lambda t: t.execute(sql, **values))

    async def transact(self, work: Callable[[Transaction], T], *, write: bool = True) -> T:
        """What `work` returns, committed; if it raises, nothing of it has happened.

        Without `write` all of its statements see one moment of the database.
        """
        return await asyncio.to_thread(self.transact_here, work, write=write)

    def transact_here(self, work: Callable[[Transaction], T], *, write: bool = True) -> T:
        """The same in this thread, which must not be an event loop's."""
        return _quietly(lambda: self._transact(work, write=write))

    async def aclose(self) -> None:
        """Close the connections; it opens again at its next use."""
        await asyncio.to_thread(self._close)

    def _transact(self, work: Callable[[Transaction], T], *, write: bool) -> T:
        engine, file, _ = self._opened()
        with engine.connect() as connection, prepared(connection, write=write).begin():
            transaction = Transaction(connection)
            found = work(transaction)
            if write and transaction.failed:
                raise SourceError("a statement failed, so nothing of its transaction is kept")
        if file_behind(engine) != file:
            self._close()
            raise UnreachableError("the database's file was removed or replaced while it was open")
        if write:
            transaction.when_committed()
        return found

    def _opened(self) -> _Open:
        with self._opening:
            if self._open is None:
                engine = open_engine(self._url, self._mode)
                try:
                    _to_newest(engine)
                except BaseException:
                    engine.dispose()
                    raise
                self._open = _Open(engine, file_behind(engine), os.getpid())
            if self._open.process != os.getpid():
                raise UnreachableError(
                    "the database was open when this process was forked: close it before, or open it"
                    " in each process"
                )
            return self._open

    def _close(self) -> None:
        with self._opening:
            opened = self._open
            if opened is not None and opened.process == os.getpid():
                opened.engine.dispose()
                self._open = None


class _Open(NamedTuple):
    """An engine, the file that it was opened on, if it is one, and by which process."""

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
    """What `work` returns; what goes wrong with the database is told by code, never by its text."""
    kind: type[SourceError] = SourceError
    try:
        return work()
    except ModuleNotFoundError as error:
        failure = f"the database's driver is not installed: {error.name}"
    except (sqlalchemy().exc.SQLAlchemyError, UnicodeError) as error:
        told = ", ".join(filter(None, (type(error).__name__, code_of(error))))
        failure = f"the database cannot be used ({told}): {advice(error)}"
        kind = UnreachableError if unreachable(error) else SourceError
    raise kind(failure)  # out here it carries no context, which holds what was written


@lru_cache(maxsize=256)
def _statement(sql: str, lists: tuple[str, ...]) -> Any:
    sa = sqlalchemy()
    return sa.text(sql).bindparams(*(sa.bindparam(name, expanding=True) for name in lists))
