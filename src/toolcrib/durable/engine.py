"""DBOS as the engine of durable runs: a queue of segments for each agent, and the steps of each, in one
database. A process takes from the queues of its own agents only.

Rule: what DBOS keeps is JSON, exceptions included: nothing in its tables is ever unpickled. SQLite is
opened in WAL mode with `synchronous=FULL`, as all of toolcrib's databases are.

A process has one DBOS. Its workflows run in the event loop in which it was opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from toolcrib.errors import MissingExtraError, ToolcribError
from toolcrib.storage import UnreachableError, database

if TYPE_CHECKING:
    import sqlalchemy

T = TypeVar("T")
_log = logging.getLogger("toolcrib.durable")
Work = Callable[[str, int], Awaitable[None]]
"""Does one segment of a run, by the run's id and the segment's number."""

_WORKFLOW = "toolcrib_segment"
_APPLICATION = "toolcrib"
# Of how a segment takes its steps. A new version of an application goes on with those of the old one.
_VERSION = "1"
_POLL = 0.1  # seconds between two looks at the queue
_STEP, _ERROR = '{"step":', '{"error":'
_SEGMENT: ContextVar[bool] = ContextVar("toolcrib_segment", default=False)


@cache
def dbos() -> Any:
    """Return the library. Raises MissingExtraError without it."""
    try:
        return import_module("dbos")
    except ImportError:
        raise MissingExtraError("durable", "a durable run") from None


class KeptJson(str):
    """The JSON of what a step gave."""

    __slots__ = ()


class JsonSerializer:
    """How DBOS writes what it keeps. A step's JSON stands in it as it is."""

    def name(self) -> str:
        return "toolcrib_json"

    def serialize(self, data: Any) -> str:
        if isinstance(data, KeptJson):
            return f"{_STEP}{data}}}"
        if isinstance(data, BaseException):
            told = {"kind": type(data).__name__, "message": str(data)}
            return f"{_ERROR}{json.dumps(told)}}}"
        return json.dumps(data)

    def deserialize(self, serialized_data: str) -> Any:
        if serialized_data.startswith(_STEP):
            return KeptJson(serialized_data[len(_STEP) : -1])
        if serialized_data.startswith(_ERROR):
            told = json.loads(serialized_data)["error"]
            return ToolcribError(f"{told['kind']}: {told['message']}")
        return json.loads(serialized_data)


class _NotKept(BaseException):
    """Carries what the work of a step raised past DBOS, which would keep it."""

    def __init__(self, raised: Exception) -> None:
        super().__init__()
        self.raised = raised


class DurableSteps:
    """The `StepRunner` of all durable runs of a process. Once it is `stopping` no step begins: a run
    stands still before its next one, and another process goes on with it."""

    def __init__(self) -> None:
        self.stopping = False
        self.active = 0

    async def run(self, name: str, work: Callable[[], Awaitable[T]], type: Any) -> T:  # noqa: A002
        if not _SEGMENT.get():
            return await work()
        if self.stopping:
            await stand_still()
        made: list[T] = []

        async def step() -> KeptJson:
            within = _SEGMENT.set(False)
            try:
                made.append(await work())
            except Exception as raised:  # noqa: BLE001  raised again below
                raise _NotKept(raised) from None
            finally:
                _SEGMENT.reset(within)
            return KeptJson(msgspec.json.encode(made[0]).decode())

        kept = await self._kept(name, step)
        if made:
            return made[0]
        decoded: T = msgspec.json.decode(kept.encode(), type=type)
        return decoded

    async def _kept(self, name: str, step: Callable[[], Awaitable[KeptJson]]) -> KeptJson:
        """Return what is kept of a step. Raises what its work does, SourceError where that could not
        be kept. Not while the worker stops: then another process finds what became of it."""
        failed: Exception | None = None
        self.active += 1
        try:
            kept: KeptJson = await dbos().DBOS.run_step_async({"name": name}, step)
        except _NotKept as carried:
            raise carried.raised from None
        except Exception as error:  # noqa: BLE001  of DBOS, or of the database
            failed = error
        finally:
            self.active -= 1
        if failed is None:
            return kept
        if self.stopping:
            await stand_still()
        if isinstance(failed, database.sqlalchemy().exc.SQLAlchemyError):
            failed = database.failed_by(failed)
        raise failed


_standing: set[asyncio.Future[None]] = set()  # or what waits for them would be collected, and end


async def stand_still() -> None:
    """Wait until the event loop ends: another process goes on."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    _standing.add(future)
    future.add_done_callback(_standing.discard)
    await future


class KeptStep(NamedTuple):
    """A step as it was kept: its place, its name, its JSON."""

    at: int
    name: str
    text: bytes


class Engine:
    """Runs the segments of one process, or only reads of them: `open` it to work.

    At most `slots` segments of each of its `agents` are taken at a time. Raises MissingExtraError
    without DBOS.
    """

    def __init__(self, url: str, worker: str, slots: int, agents: Iterable[str]) -> None:
        dbos()
        parsed = database.sqlalchemy().engine.make_url(url)
        if parsed.get_backend_name() == "sqlite":
            if not parsed.database or parsed.database.startswith((":", "file:")):
                raise ToolcribError("durable runs need a file, or a server: sqlite:///runs.db")
            parsed = parsed.set(database=str(Path(parsed.database).absolute()))
        self._url, self._worker, self._slots = parsed, worker, slots
        self._queues = [_queue(agent) for agent in agents]
        self._database: sqlalchemy.Engine | None = None
        self._client: Any = None
        self._works = False

    async def open(self, work: Work) -> None:
        """Begin to work in the running event loop. Raises ToolcribError where another one does here."""
        library = dbos()
        if _working:
            raise ToolcribError("durable agents work in this process already: one engine has all")
        _working.append(work)
        self._works = True
        try:
            _register()
            library.DBOS(
                config={
                    "name": _APPLICATION,
                    "application_version": _VERSION,
                    "executor_id": self._worker,
                    "system_database_engine": self._opened(),
                    "serializer": JsonSerializer(),
                    "use_listen_notify": False,
                    # its thread hears of nothing here, but is waited for when the engine stops
                    "notification_listener_polling_interval_sec": _POLL,
                    "log_level": "ERROR",
                }
            )
            library.DBOS.listen_queues(self._queues)
            library.DBOS.launch()
            options = {"worker_concurrency": self._slots, "polling_interval_sec": _POLL}
            for queue in self._queues:
                await library.DBOS.register_queue_async(
                    queue, **options, on_conflict="always_update"
                )
        except BaseException:
            await self.aclose()
            raise

    async def give(self, agent: str, run_id: str, segment: int) -> None:
        """Put a segment into the queue of its agent, once, however often it is given."""
        options = {
            "workflow_name": _WORKFLOW,
            "queue_name": _queue(agent),
            "workflow_id": f"{run_id}:{segment}",
            "app_version": _VERSION,
        }
        await dbos().DBOS.enqueue_workflow_with_options_async(options, run_id, segment)

    async def take_over(self, workers: Iterable[str]) -> None:
        """Put what these workers have begun, and will not end, into its queue again."""
        recover = dbos().DBOS._recover_pending_workflows  # noqa: SLF001  DBOS has no other door
        await asyncio.to_thread(recover, list(workers))

    async def steps(self, run_id: str, segment: int, skipped: int = 0) -> list[KeptStep]:
        """Return the steps of a segment that are kept, in their order, but for the first of them."""
        listed = await asyncio.to_thread(self._steps, f"{run_id}:{segment}", skipped)
        return [
            KeptStep(step["function_id"], step["function_name"], step["output"].encode())
            for step in listed
            if isinstance(step["output"], KeptJson)
        ]

    def _steps(self, workflow: str, skipped: int) -> list[Any]:
        library = dbos()
        engine = self._opened()
        if self._client is None:
            self._client = library.DBOSClient(
                system_database_engine=engine, serializer=JsonSerializer(), lazy=True
            )
        sa = database.sqlalchemy()
        try:
            found: list[Any] = self._client.list_workflow_steps(workflow, offset=skipped)
        except sa.exc.DBAPIError:
            schema = None if engine.dialect.name == "sqlite" else "dbos"
            if sa.inspect(engine).has_table("operation_outputs", schema=schema):
                raise
            return []  # nobody has ever worked here
        return found

    async def aclose(self) -> None:
        """Stop to work: nothing is taken from a queue any more."""
        if self._works:
            self._works = False
            await asyncio.to_thread(dbos().DBOS.destroy)
            _working.clear()
            # DBOS had put its own in the place of the loop's, and has closed it
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
        if self._client is not None:
            self._client.destroy()
            self._client = None
        opened, self._database = self._database, None
        if opened is not None:
            opened.dispose()

    def _opened(self) -> sqlalchemy.Engine:
        if self._database is None:
            made = self._database = engine_of(self._url)
            listen = database.sqlalchemy().event.listen
            listen(made, "do_connect", lambda *_: self._check_open(made))
            listen(made, "checkin", lambda connection, _: self._close_late(made, connection))
        return self._database

    def _check_open(self, engine: sqlalchemy.Engine) -> None:
        """Raise ToolcribError once it is closed: threads of DBOS try again whatever a database that is
        away has not taken, and would do so after all others have ended."""
        if engine is not self._database:
            raise ToolcribError("the engine of durable runs was closed")

    def _close_late(self, engine: sqlalchemy.Engine, connection: Any) -> None:
        """Close what a thread of DBOS still had in use when it was closed."""
        if engine is not self._database and connection is not None:
            connection.close()


def _queue(agent: str) -> str:
    return f"{_APPLICATION} {agent}"


_working: list[Work] = []  # what a segment is done by here: none, or one


@cache
def _register() -> None:
    library = dbos()

    async def segment(run_id: str, number: int) -> None:
        _SEGMENT.set(True)  # in a task of its own
        await _working[0](run_id, number)

    library.DBOS.workflow(name=_WORKFLOW, max_recovery_attempts=None)(segment)


def engine_of(url: sqlalchemy.URL) -> sqlalchemy.Engine:
    """Return an engine as DBOS needs it: on SQLite the driver begins transactions itself."""
    sa = database.sqlalchemy()
    options: dict[str, Any] = {"hide_parameters": True, "pool_size": 20}
    if url.get_backend_name() != "sqlite":
        made: sqlalchemy.Engine = sa.create_engine(url, **options, pool_pre_ping=True)
        return made
    made = sa.create_engine(url, **options, connect_args={"timeout": database.PATIENCE})
    sa.event.listen(made, "connect", _set_pragmas)
    sa.event.listen(made, "handle_error", _away, retval=True)
    return made


class _AwayError(UnreachableError):
    """A SQLite file that cannot be used for now, such as on a full disk. Of what SQLite says DBOS tries
    again only what says that it is locked, in its `orig`; that it keeps at it the tests see to."""

    orig = "database is locked"


def _away(context: sqlalchemy.ExceptionContext) -> Exception | None:
    raised = context.original_exception
    if not (isinstance(raised, Exception) and database.unreachable(raised)):
        return None
    away = _AwayError(*database.failed_by(raised).args)
    _log.warning("the store of durable runs cannot be used: %s", away)
    return away


def _set_pragmas(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = "IMMEDIATE"
    with contextlib.closing(connection.cursor()) as cursor:
        for pragma in ("journal_mode=WAL", *database.PRAGMAS):
            cursor.execute(f"PRAGMA {pragma}")
