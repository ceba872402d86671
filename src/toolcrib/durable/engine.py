"""DBOS as the engine of durable runs: a queue of segments for each agent, and the stored steps.

Everything is in one database. A process takes from the queues of its own agents only.

Rule: what DBOS stores is JSON, exceptions included: nothing in its tables is ever unpickled. SQLite
is opened in WAL mode with `synchronous=FULL`, as all of toolcrib's databases are.

Rule: a step begins only while its segment belongs to this worker (`Segment.check`), and is stored
only while its workflow belongs to this process, which DBOS checks in the transaction that stores
it. A stored step is used only with the signature of the agent's key, over its run, segment, number,
name and value.

Rule: what is stored of a run is never lost. As long as there are `unreplayed` steps, stored ones
that its segment has not taken up yet, no end of that segment has a state, and a cancellation does
not cut the segment off, unless it makes no progress for `PATIENCE` seconds. So whoever resumes the
run takes up all of them, and a cancelled run reports everything it has done.

A process has one DBOS. Its workflows run in the event loop in which it was opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from toolcrib.closing import Closing
from toolcrib.errors import MissingExtraError, SourceError, ToolcribError
from toolcrib.failures import SafeLogger
from toolcrib.runner.execute import until_done
from toolcrib.runner.stopped import STOPS
from toolcrib.storage import UnreachableError
from toolcrib.storage.database import LOCK_TIMEOUT, PRAGMAS, close_late
from toolcrib.storage.errors import failed_by, sqlalchemy, unreachable
from toolcrib.values.json import Redacted
from toolcrib.values.run import RunResult, RunState, check_signature
from toolcrib.values.step import CallStep

if TYPE_CHECKING:
    from sqlalchemy import URL, ExceptionContext
    from sqlalchemy import Engine as SqlEngine

T = TypeVar("T")
_log = SafeLogger("toolcrib.durable")
Work = Callable[[str, int], Awaitable[bool]]
"""Executes one segment of a run, given the run's id and the segment's number.

Returns whether nobody has to continue the segment.
"""

Ownership: TypeAlias = Literal["owned", "cancelled", "lost"]
"""Whether a worker may continue a segment.

`lost` says that another worker has it, or that another segment of the run has begun.
"""

_WORKFLOW = "toolcrib_segment"
_APPLICATION = "toolcrib"
# The version of the step protocol, not of the application: a new release of an application
# continues the segments of the old one.
_VERSION = "1"
_POLL_SECONDS = 0.1  # seconds between two looks at the queue
_LOOK_SECONDS = 0.2  # seconds between two tries to use an unreachable database
_MOMENT_SECONDS = 0.005  # seconds between two looks at steps that are being read
PATIENCE = 30.0
"""Seconds in which a database may be away, or full, before a run fails that has to write there."""
UNAVAILABLE = "a store that durable runs need cannot be used: %s"
_CHANGED = (
    "in this version of the program. The program was changed in a way that this run cannot "
    "follow: resume it with the earlier version"
)
_RETURN = 1.0  # seconds in which a thread may return a connection when the engine is closed
_STEP, _ERROR = '{"step":', '{"error":'


@cache
def dbos() -> Any:
    """Return the library. Raises MissingExtraError without it."""
    try:
        return import_module("dbos")
    except ImportError:
        raise MissingExtraError("durable", "a durable run") from None


def is_stop_of_worker(raised: BaseException) -> bool:
    """Return whether `raised` ends the worker, or what it does of a run, but not the run.

    Everything else is a failure of the run, even if it is not an Exception: a Rust library that
    panics raises a BaseException.
    """
    return isinstance(raised, (*STOPS, SystemExit, dbos().error.DBOSBaseException))


class StepJson(str):
    """The JSON of a `SignedStep`."""

    __slots__ = ()


class JsonSerializer:
    """How DBOS serializes what it stores. A step's JSON is embedded unchanged."""

    def name(self) -> str:
        return "toolcrib_json"

    def serialize(self, data: Any) -> str:
        if isinstance(data, StepJson):
            return f"{_STEP}{data}}}"
        if isinstance(data, BaseException):
            error = {"kind": type(data).__name__, "message": str(data)}
            return f"{_ERROR}{json.dumps(error)}}}"
        return json.dumps(data)

    def deserialize(self, serialized_data: str) -> Any:
        if serialized_data.startswith(_STEP):
            return StepJson(serialized_data[len(_STEP) : -1])
        if serialized_data.startswith(_ERROR):
            error = json.loads(serialized_data)["error"]
            return ToolcribError(f"{error['kind']}: {error['message']}")
        return json.loads(serialized_data)


class _NotStored(BaseException):
    """Carries what a step's work raised past DBOS, which would store it."""

    def __init__(self, raised: Exception) -> None:
        super().__init__()
        self.raised = raised


class SignedStep(Redacted, msgspec.Struct, frozen=True):
    """Holds the JSON result of a step, the segment that made it, and the signature of both."""

    redacted: ClassVar[tuple[str, ...]] = ("value",)

    value: msgspec.Raw
    segment: int
    signature: str


class StoredStep(NamedTuple):
    """A stored step: its number, its name, its result."""

    at: int
    name: str
    result: SignedStep

    @property
    def text(self) -> bytes:
        return bytes(self.result.value)

    @property
    def call(self) -> CallStep | None:
        """What it says about a call, if it is a call's step."""
        is_call = self.name.startswith("call ")
        return msgspec.json.decode(self.text, type=CallStep) if is_call else None

    def check(self, sign: Callable[..., str], run_id: str) -> None:
        """Raise SourceError if the step was changed; `sign` is the agent's."""
        what = f"step {self.at} ({self.name}) of run {run_id}"
        check_signature(self.result.signature, self.signature(sign, run_id), what)

    def signature(self, sign: Callable[..., str], run_id: str) -> str:
        identity = (run_id, str(self.result.segment), str(self.at), self.name)
        return sign("toolcrib step", *identity, self.text.decode("utf-8", "surrogatepass"))


def _read(stored: object) -> SignedStep:
    text = stored.encode("utf-8", "surrogatepass") if isinstance(stored, StepJson) else b""
    try:
        return msgspec.json.decode(text, type=SignedStep)
    except ValueError:  # not a step, or not JSON
        return SignedStep(msgspec.Raw(text), -1, "")


class Segment:
    """A segment of a run that this worker executes, in the running task, behind a `fence`.

    `earlier` are the steps of the segments since `began`, which begin with the same state.
    `unreplayed` are the numbers of all stored steps, of those segments and of its own, that it has
    not taken up.
    `stop_reason` says why it does not continue, as soon as that is known, `cut` whether that has
    cut it off, and `result` how its run has ended. `active` counts its steps that are under way.
    """

    def __init__(
        self,
        key: tuple[str, int],
        fence: str,
        began: int,
        sign: Callable[..., str],
        look: Callable[[], Awaitable[Ownership]],
    ) -> None:
        self.key, self.fence = key, fence
        self.earlier: Mapping[int, StoredStep] = {}
        self.unreplayed: set[int] = set()
        self.stop_reason: Ownership | None = None
        self.cut = False
        self.active = 0
        self.result: RunResult | None = None
        self._knows_stored = False  # whether it knows what is stored
        self._reached = 0  # the number of the last step that was reached
        self._progress_at = 0.0  # when a stored step was last taken up
        self._is_replaying = False  # stored steps: none has begun since
        self._being_read: set[int] = set()  # the stored steps that are being taken up
        self._began = began
        self._sign = sign
        self._look = look
        self._task = asyncio.current_task()

    @property
    def state(self) -> RunState | None:
        """The state in which it has stopped, made from signed data."""
        return None if self.unreplayed or self.result is None else self.result.state

    @property
    def failed_state(self) -> RunState | None:
        """The state in which it has failed.

        None if it failed while stored steps were taken up, because the state may lack one of them.
        """
        return None if self._is_replaying else self.state

    @property
    def replays(self) -> bool:
        """Whether the next step had begun before, because a later step is stored."""
        return max(self.unreplayed, default=0) > self._reached

    def set_stored(self, earlier: Mapping[int, StoredStep], own: Iterable[int]) -> None:
        """Note which steps of the run are stored, and which of them are the segment's own.

        Before that, a stopped run would report none of them.
        """
        self.earlier, self.unreplayed = earlier, {*earlier, *own}
        self._knows_stored, self._progress_at = True, time.monotonic()

    def leave(self) -> None:
        """Leave it to another worker.

        Nothing begins here any more, and what is under way, including its end, is not stored.
        """
        self.stop_reason, self._task, self.cut = "lost", None, False

    @contextlib.contextmanager
    def at_step(self, at: int) -> Iterator[None]:
        """Note that the run has reached a step, and when it has left it."""
        self._reached = at
        if at in self.unreplayed:
            self._being_read.add(at)
        try:
            yield
        finally:
            self._being_read.discard(at)

    def end(self, ownership: Ownership) -> None:
        """Stop it, unless it may continue or is already stopping.

        A cancelled segment first takes up what is stored, unless it makes no progress.
        """
        if ownership == "lost" or (self.stop_reason is None and ownership == "cancelled"):
            self.stop_reason = ownership
        if self._task is None or self.stop_reason is None:
            return
        may_stop = not self.unreplayed or time.monotonic() - self._progress_at > PATIENCE
        if self.stop_reason == "lost" or (self._knows_stored and may_stop):
            self._task.cancel()
            self._task, self.cut = None, True

    async def check(self) -> None:
        """Return if a step may begin here; otherwise block until cancelled.

        It may begin if the segment still belongs to this worker, and all stored steps that the run
        has reached are taken up.
        """
        ownership: Ownership | None = None
        while ownership is None or self._being_read:
            while self._being_read:  # noqa: ASYNC110  threads of the engine do
                await asyncio.sleep(_MOMENT_SECONDS)
            ownership = self.stop_reason or await self._look()  # they may have begun to read since
        self.end(ownership)
        if self.stop_reason is not None:
            await block_forever()
        self._is_replaying = False

    def signed_json(self, at: int, name: str, text: bytes) -> StepJson:
        """Return the signed JSON of a step that was done here."""
        run_id, number = self.key
        bare = SignedStep(msgspec.Raw(text), number, "")
        signature = StoredStep(at, name, bare).signature(self._sign, run_id)
        return _json_of(msgspec.structs.replace(bare, signature=signature))

    def stored_json(self, at: int, name: str) -> StepJson | None:
        """Return what an earlier segment has stored of a step.

        Raises ToolcribError for another step, SourceError if it was changed.
        """
        step = self.earlier.get(at)
        if step is None:
            return None
        if step.name != name:
            raise self.differs(at, step.name, name)
        self._check(step)
        return _json_of(step.result)

    def differs(self, at: int, was: str, now: str) -> ToolcribError:
        """Return the error for a run whose stored steps differ from those of this program version.

        They remain stored for a version that takes them up.
        """
        return ToolcribError(
            f"step {at} of run {self.key[0]} was '{was}', but is '{now}' {_CHANGED}"
        )

    def check_end(self, status: str) -> None:
        """Raise ToolcribError for an end of the run before all stored steps were taken up.

        They would be lost; this program version has changed the run's steps.
        """
        if self.unreplayed:
            raise ToolcribError(
                f"run {self.key[0]} would be {status} before its step {min(self.unreplayed)} {_CHANGED}"
            )

    def replayed_text(self, at: int, name: str, stored: object) -> bytes:
        """Return the JSON of a step that was stored before. Raises SourceError for a change."""
        step = StoredStep(at, name, _read(stored))
        self._check(step)
        self.unreplayed.discard(at)
        self._progress_at, self._is_replaying = time.monotonic(), True
        return step.text

    def _check(self, step: StoredStep) -> None:
        run_id, number = self.key
        step.check(self._sign, run_id)
        if not self._began <= step.result.segment <= number:
            raise SourceError(f"step {step.at} of run {run_id} belongs to another segment")


def _json_of(step: SignedStep) -> StepJson:
    return StepJson(msgspec.json.encode(step).decode())


_SEGMENT: ContextVar[Segment | None] = ContextVar("toolcrib_segment", default=None)
_DONE_HERE: ContextVar[Segment | None] = ContextVar("toolcrib_done_here", default=None)
"""The segment, also during the work of its steps, where `_SEGMENT` is None."""


async def run_with_retries(
    work: Callable[[], Awaitable[T]], gives_up: Callable[[], bool] | None = None
) -> T:
    """Do work that needs the database, retrying on SourceError.

    With `gives_up`, it retries only while the database is unreachable and until `gives_up` returns
    True; every other SourceError is raised at once.
    """
    while True:
        try:
            return await work()
        except SourceError as error:
            is_away = isinstance(error, UnreachableError)
            if gives_up is not None and (not is_away or gives_up()):
                raise
            _log.warning(UNAVAILABLE, error)
            await asyncio.sleep(_LOOK_SECONDS)


class DurableSteps:
    """The `StepRunner` of all durable runs of a process.

    Once it `stops` no step begins: a run blocks before its next step, and another process continues
    it.
    """

    def __init__(self) -> None:
        self.stops = False

    @property
    def stopping(self) -> bool:
        """Whether another process continues the run that is executed here."""
        segment = _SEGMENT.get()
        return self.stops or (segment is not None and segment.stop_reason == "lost")

    @property
    def is_abandoned(self) -> bool:
        """Whether this is asked within a run that has stopped here, and ends with the event loop."""
        return self.stops and _DONE_HERE.get() is not None

    @property
    def replays(self) -> bool:
        """Whether the next step of this run had begun before, because a later step is stored."""
        segment = _DONE_HERE.get()
        return segment is not None and segment.replays

    async def run_with_retries(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do what a step needs a database for, such as its log or its caller's budget.

        While the database cannot be used, the run blocks. After `PATIENCE` seconds the error is
        raised.
        """
        deadline = time.monotonic() + PATIENCE
        return await run_with_retries(work, lambda: time.monotonic() > deadline or self.stopping)

    def enter(self, segment: Segment) -> None:
        """Assign the steps of the running task, and of those that it begins, to a segment."""
        _SEGMENT.set(segment)
        _DONE_HERE.set(segment)

    async def run(self, name: str, work: Callable[[], Awaitable[T]], type: Any) -> T:  # noqa: A002
        segment = _SEGMENT.get()
        if segment is None:
            return await work()
        reserved = dbos().DBOS.reserve_step()  # before any await: steps have an order
        at = reserved.step_id
        if self.stops:
            await block_forever()
        results: list[T] = []

        async def step() -> StepJson:
            try:
                stored = segment.stored_json(at, name)
                if stored is not None:
                    return stored
                await self._check(segment)
                results.append(await _outside(work))
            except Exception as raised:  # noqa: BLE001  raised again below
                raise _NotStored(raised) from None
            # a segment that has been cut off must end
            if segment.stop_reason == "lost" and not segment.cut:
                await block_forever()
            return segment.signed_json(at, name, msgspec.json.encode(results[0]))

        with segment.at_step(at):
            stored = await self._stored(segment, reserved.run_async({"name": name}, step))
            if results:
                return results[0]
            text = segment.replayed_text(at, name, stored)
        decoded: T = msgspec.json.decode(text, type=type)
        return decoded

    async def _check(self, segment: Segment) -> None:
        """Return if a step may begin, otherwise block. It does not count as under way meanwhile."""
        segment.active -= 1
        try:
            await segment.check()
            if self.stops:
                await block_forever()
        finally:
            segment.active += 1

    async def _stored(self, segment: Segment, step: Awaitable[StepJson]) -> StepJson:
        """Return what is stored of a step.

        Raises what its work raises, and SourceError if that could not be stored. If another process
        continues the run, this blocks instead, because that process finds the outcome. If the other
        process already has the segment, DBOS raises a BaseException, with which the whole segment
        waits there for it.
        """
        segment.active += 1
        try:
            return await step
        except _NotStored as carried:
            raise carried.raised from None
        except Exception as error:  # noqa: BLE001  from DBOS, or from the database
            failure: Exception = error
        finally:
            segment.active -= 1
        if self.stopping:
            await block_forever()
        if isinstance(failure, sqlalchemy().exc.SQLAlchemyError):
            failure = failed_by(failure)
        if isinstance(failure, dbos().error.DBOSUnexpectedStepError):
            _, at, now, was = failure.inputs
            failure = segment.differs(at, was, now)
        raise failure


async def _outside(work: Callable[[], Awaitable[T]]) -> T:
    """Do work outside steps: neither it nor the runs within it are steps."""
    token = _SEGMENT.set(None)
    try:
        return await work()
    finally:
        _SEGMENT.reset(token)


_blocked: set[asyncio.Future[None]] = set()  # keeps waiting tasks from being collected


async def block_forever() -> None:
    """Wait until the event loop ends, because another process continues the run."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    _blocked.add(future)
    future.add_done_callback(_blocked.discard)
    await future


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Do work to its end, even if this is cancelled, which it is then."""
    task = asyncio.ensure_future(work)
    cancelled = await until_done(task)
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    return task.result()


class Engine(Closing):
    """Runs the segments of one process, or only reads them: `open` it to work.

    At most `slots` segments of its `agents` are taken at a time. Raises MissingExtraError without
    DBOS.
    """

    def __init__(self, url: str, slots: int, agents: Iterable[str]) -> None:
        dbos()
        parsed_url = sqlalchemy().engine.make_url(url)
        if parsed_url.get_backend_name() == "sqlite":
            if not parsed_url.database or parsed_url.database.startswith((":", "file:")):
                raise ToolcribError(
                    "durable runs need a database in a file or on a server, such as "
                    "sqlite:///runs.db"
                )
            parsed_url = parsed_url.set(database=str(Path(parsed_url.database).absolute()))
        self._url, self._slots = parsed_url, slots
        self._queues = [_queue(agent) for agent in agents]
        self._database: SqlEngine | None = None
        self._client: Any = None
        self._is_working = False
        self._taken: dict[str, float] = {}  # segments that were taken and have not begun: when

    async def open(self, work: Work, worker: str) -> None:
        """Begin to work in the running event loop, as a worker with a new id.

        Raises ToolcribError if another engine works in this process. Close it whatever is raised.
        """
        library = dbos()
        if _current_work:
            raise ToolcribError(
                "durable agents are already working in this process: put all agents into one "
                "DurableAgents"
            )

        async def begun(run_id: str, number: int) -> bool:
            self._taken.pop(f"{run_id}:{number}", None)
            return await work(run_id, number)

        self._taken.clear()
        _current_work.append(begun)
        self._is_working = True
        _register()
        self._launch(worker)
        for queue in self._queues:
            await library.DBOS.register_queue_async(
                queue, polling_interval_sec=_POLL_SECONDS, on_conflict="always_update"
            )

    def _launch(self, worker: str) -> None:
        """Start DBOS, with the threads and the limits of this engine in place of its own."""
        library = dbos()
        library.DBOS(
            config={
                "name": _APPLICATION,
                "application_version": _VERSION,
                "executor_id": worker,
                "system_database_engine": self._open_engine(),
                "serializer": JsonSerializer(),
                "use_listen_notify": False,
                # its thread has nothing to listen to, but is waited for when the engine stops
                "notification_listener_polling_interval_sec": _POLL_SECONDS,
                "log_level": "ERROR",
            }
        )
        library.DBOS.listen_queues(self._queues)
        library.DBOS.launch()
        instance = library._dbos._get_dbos_instance()  # noqa: SLF001  it has no public way
        instance._shared_executor_field = _Threads(instance._executor)  # noqa: SLF001
        self._take_within_slots(instance)

    def _take_within_slots(self, instance: Any) -> None:
        """Take no more segments than there are free slots, so that none waits for a slot here.

        The limits of DBOS are stored with a queue: one for all workers, and another for each agent.
        A thread takes from each queue, and what it has taken begins a little later.
        """
        system, active = instance._sys_db, instance._active_workflows_set  # noqa: SLF001
        take, taking = system.start_queued_workflows, threading.Lock()

        def within_slots(
            queue: Any, worker: str, version: str, part: str | None, running: int = 0, **more: Any
        ) -> Any:
            if queue.name not in self._queues:
                return take(queue, worker, version, part, running, **more)
            with taking:
                now = time.monotonic()
                for id_, at in self._taken.copy().items():
                    if at < now - PATIENCE:  # it could not be begun
                        self._taken.pop(id_, None)
                free = self._slots - len(self._taken.keys() | active.activeList())
                if free <= 0:
                    return [], "worker_concurrency"
                queue._worker_concurrency = running + free  # noqa: SLF001
                ids, reason = take(queue, worker, version, part, running, **more)
                self._taken.update(dict.fromkeys(ids, now))
                return ids, reason

        system.start_queued_workflows = within_slots

    async def enqueue(self, agent: str, run_id: str, segment: int) -> None:
        """Put a segment into its agent's queue, once, however often this is called."""
        options = {
            "workflow_name": _WORKFLOW,
            "queue_name": _queue(agent),
            "workflow_id": f"{run_id}:{segment}",
            "app_version": _VERSION,
        }
        await dbos().DBOS.enqueue_workflow_with_options_async(options, run_id, segment)

    async def owns(self, run_id: str, segment: int) -> bool:
        """Return whether a segment still belongs to this worker and was not taken over.

        Blocks if the engine was closed in the meantime.
        """
        library, context = dbos(), import_module("dbos._context").get_local_dbos_context()
        try:
            ask_owner = library._dbos._get_dbos_instance()._sys_db.get_workflow_owner  # noqa: SLF001
            owner = await asyncio.to_thread(ask_owner, f"{run_id}:{segment}")
        except library.error.DBOSException:
            await block_forever()
            raise
        except sqlalchemy().exc.SQLAlchemyError as error:
            raise failed_by(error) from None
        return context is None or context.owner_xid in (None, owner)

    async def owners(self) -> set[str]:
        """Return the workers that have begun segments, or have taken them from a queue."""
        list_workflows = dbos().DBOS.list_workflows_async
        workflows = await list_workflows(
            status="PENDING", name=_WORKFLOW, load_input=False, load_output=False
        )
        return {each.executor_id for each in workflows if each.executor_id is not None}

    async def recover(self, workers: Iterable[str]) -> None:
        """Requeue the segments that these workers have begun and will not end."""
        recover = dbos().DBOS._recover_pending_workflows  # noqa: SLF001  DBOS has no public one
        await asyncio.to_thread(recover, list(workers))

    async def steps(self, run_id: str, segment: int, skipped: int = 0) -> list[StoredStep]:
        """Return the stored steps of a segment in order, except the first `skipped`."""
        rows = await asyncio.to_thread(self._steps, f"{run_id}:{segment}", skipped)
        return [
            StoredStep(step["function_id"], step["function_name"], _read(step["output"]))
            for step in rows
            if isinstance(step["output"], StepJson)
        ]

    def _steps(self, workflow: str, skipped: int) -> list[Any]:
        library = dbos()
        engine = self._open_engine()
        if self._client is None:
            self._client = library.DBOSClient(
                system_database_engine=engine, serializer=JsonSerializer(), lazy=True
            )
        sa = sqlalchemy()
        try:
            rows: list[Any] = self._client.list_workflow_steps(workflow, offset=skipped)
        except sa.exc.DBAPIError:
            schema = None if engine.dialect.name == "sqlite" else "dbos"
            if sa.inspect(engine).has_table("operation_outputs", schema=schema):
                raise
            return []  # nobody has ever worked here
        return rows

    async def aclose(self) -> None:
        """Stop working: nothing more is taken from a queue."""
        if self._is_working:
            self._is_working = False
            for task in list(_lost):
                task.cancel()  # otherwise DBOS would log that they cannot wait any more
            await asyncio.to_thread(dbos().DBOS.destroy)
            _current_work.clear()
        if self._client is not None:
            self._client.destroy()
            self._client = None
        sql_engine, self._database = self._database, None
        if sql_engine is not None:
            await _all_returned(sql_engine.pool)
            sql_engine.dispose()

    def _open_engine(self) -> SqlEngine:
        if self._database is None:
            sql_engine = self._database = engine_of(self._url)
            listen = sqlalchemy().event.listen
            listen(sql_engine, "do_connect", lambda *_: self._check_open(sql_engine))
            close_late(sql_engine, lambda: self._database is sql_engine)
        return self._database

    def _check_open(self, engine: SqlEngine) -> None:
        """Raise ToolcribError once the engine is closed.

        Threads of DBOS retry whatever an unreachable database has not taken, and would do so after
        everything else has ended.
        """
        if engine is not self._database:
            raise ToolcribError("the engine of durable runs was closed")


class _Threads(ThreadPoolExecutor):
    """The threads of the event loop in which an engine works, in place of those of DBOS.

    DBOS replaces the loop's threads by its own `executor`. When the engine is closed, that would
    refuse what the rest of the program gives to a thread, and cancel what it has given before.
    """

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        super().__init__()
        self.executor = executor  # by which DBOS knows that this one is in use


async def _all_returned(pool: Any) -> None:
    """Wait briefly for connections that threads of DBOS have in use.

    A connection returned while the pool is disposed of would never be closed.
    """
    deadline = time.monotonic() + _RETURN
    while pool.checkedout() and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def _queue(agent: str) -> str:
    return f"{_APPLICATION} {agent}"


_current_work: list[Work] = []  # what executes segments here: none, or one
_lost: set[asyncio.Task[Any]] = set()  # wait until others have ended segments that were lost here


@cache
def _register() -> None:
    library = dbos()

    async def segment(run_id: str, number: int) -> None:
        if not await _current_work[0](run_id, number):
            task = asyncio.current_task()
            if task is not None:
                _lost.add(task)
                task.add_done_callback(_lost.discard)
            # DBOS gives its place to another segment, and waits for whoever has this one
            raise library.error.DBOSWorkflowConflictIDError(f"{run_id}:{number}")

    library.DBOS.workflow(name=_WORKFLOW, max_recovery_attempts=None)(segment)


def engine_of(url: URL) -> SqlEngine:
    """Return an engine as DBOS needs it: on SQLite the driver begins transactions itself."""
    sa = sqlalchemy()
    options: dict[str, Any] = {"hide_parameters": True, "pool_size": 20}
    if url.get_backend_name() != "sqlite":
        sql_engine: SqlEngine = sa.create_engine(url, **options, pool_pre_ping=True)
        return sql_engine
    sql_engine = sa.create_engine(url, **options, connect_args={"timeout": LOCK_TIMEOUT})
    sa.event.listen(sql_engine, "connect", _set_pragmas)
    sa.event.listen(sql_engine, "handle_error", _unavailable, retval=True)
    return sql_engine


class _UnavailableError(UnreachableError):
    """A SQLite file that cannot be used for now, for example on a full disk.

    Of SQLite's errors, DBOS retries only those that say "locked" in `orig`. Tests check that it
    keeps retrying.
    """

    orig = "database is locked"


def _unavailable(context: ExceptionContext) -> Exception | None:
    raised = context.original_exception
    if not (isinstance(raised, Exception) and unreachable(raised)):
        return None
    away = _UnavailableError(*failed_by(raised).args)
    _log.warning(UNAVAILABLE, away)
    return away


def _set_pragmas(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = "IMMEDIATE"
    with contextlib.closing(connection.cursor()) as cursor:
        for pragma in ("journal_mode=WAL", *PRAGMAS):
            cursor.execute(f"PRAGMA {pragma}")
