"""Runs blocking work of an event loop in daemon threads.

Rule: a thread cannot be killed. One that is given up (its call timed out or was cancelled) is left
behind: it runs until it returns. It serves no later call, and unlike an executor's thread it does
not keep the process alive. Left-behind threads are counted in the whole process; with
MOST_LEFT_BEHIND of them no further tool is started.

Idle threads are kept, up to MOST_IDLE, and the one that worked last is used again, because starting
a thread costs more than most tools. What code keeps in a `threading.local` is therefore seen by
later work, as with any pool of threads; context variables are not.

A forked child has only the thread that forked. A lock that another thread held then is never
released, and what that thread was about to do is its parent's to do. Owners of such locks use
`renew_in_children`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

T = TypeVar("T")
Ending: TypeAlias = tuple[Any, BaseException | None]
MOST_LEFT_BEHIND = 100
MOST_IDLE = 32
_UNSET = object()


def cancel_requests() -> int:
    """Return how often the running task was asked to stop.

    A CancelledError without such a request is not a stop.
    """
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def is_stop(raised: BaseException, cancels: int) -> bool:
    """Return whether `raised` ends a task that was asked to stop more than `cancels` times.

    A CancelledError that nobody requested is a failure like any other. An author's exception may
    have a `__class__` that raises, which isinstance would ask.
    """
    return issubclass(type(raised), asyncio.CancelledError) and cancel_requests() > cancels


class Renewed(Protocol):
    """Holds locks, and may be used in a forked child."""

    def renew(self) -> None:
        """Make new locks in a forked child, and forget what the parent's threads were doing."""


_RENEWED: WeakSet[Renewed] = WeakSet()


def renew_in_children(owner: Renewed) -> None:
    """Have `owner.renew()` called in each forked process, as long as the owner lives."""
    _RENEWED.add(owner)


def _renew_all() -> None:
    Work.forget()
    Worker.forget()
    for owner in list(_RENEWED):
        owner.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


class Work:
    """A piece of work that may be given up before it is over; then it is left behind.

    All methods may be called from any thread.
    """

    _lock = threading.Lock()
    left_behind: ClassVar[int] = 0
    """How many pieces of work in this process still run although nobody waits for them any more.

    Work whose end has not yet been reported to its `tell` callback counts, too.
    """

    def __init__(self) -> None:
        self._over = False
        self._given_up = False
        self._stops: list[Callable[[], None]] = []
        self._callbacks: list[Callable[[], None]] = []  # called when it is over
        self._ending: Ending = (None, None)
        self._end_callback: Callable[[Any, BaseException | None], None] | None = None
        self._call_works: Sequence[Work] = ()

    @staticmethod
    def after(left_works: LeftWork, ending: Ending) -> Work:
        """Return the work of a call that has ended itself with that ending.

        It counts as given up, and is over when all `left_works` are: what the call has left behind.
        """
        call_work = Work()
        call_work.give_up(left_works)
        call_work.end(ending)
        return call_work

    @property
    def is_over(self) -> bool:
        return self._over

    def then(self, callback: Callable[[], None]) -> None:
        """Call `call` once the work is over; at once, if it already is."""
        with self._lock:
            is_over = self._over
            if not is_over:
                self._callbacks.append(callback)
        if is_over:
            callback()

    @classmethod
    def forget(cls) -> None:
        """Forget the parent's threads, none of which runs in a forked child."""
        cls._lock = threading.Lock()
        cls.left_behind = 0

    def give_up(self, call_works: LeftWork | None = None) -> bool:
        """Note that nobody waits for the work any more, and call what can stop it.

        Returns whether it was over before. If `call_works` is given, this is the work of a whole
        call, and it is over when everything that the call has left behind is over, too, including
        what is added later.
        """
        with self._lock:
            if self._over or self._given_up:
                return self._over
            self._given_up = True
            self._call_works = () if call_works is None else call_works
            Work.left_behind += 1
            stops = list(self._stops)
        left_work = left_here() if call_works is None else call_works
        if left_work is not None:
            left_work.append(self)
        if call_works is not None:
            call_works.tool_work = self
        for stop in stops:
            stop()
        return False

    def result_despite(self, stop: BaseException) -> Any:
        """Return or raise what the work ended with, though `stop` was raised: it was over before.

        Raises `stop` if the value is still to be awaited. A CancelledError of the work's own, which
        would look like the stop, becomes a RuntimeError.
        """
        value, raised = self._ending
        if raised is None and inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()  # a coroutine that nobody will await any more
            raise stop
        left_work = left_here()
        if left_work is not None:
            left_work.ended_first = True
        if raised is None:
            return value
        error = RuntimeError("CancelledError was raised by the tool")
        error.__cause__ = raised
        raise error if isinstance(raised, asyncio.CancelledError) else raised

    def done(
        self, work: Callable[[], Any], run_in_context: Callable[[Callable[[], Any]], Any]
    ) -> tuple[Any, BaseException | None]:
        """Do the work in this thread; return its value, or what it raised."""

        def run_work() -> Any:
            CURRENT.set(self)
            return work()

        ending: Ending = (None, None)
        try:
            ending = run_in_context(run_work), None
        except (StopIteration, GeneratorExit) as raised:  # these would end a coroutine that awaits
            error = RuntimeError(f"{type(raised).__name__} was raised in a thread")
            error.__cause__ = raised
            ending = None, error
        except BaseException as raised:  # noqa: BLE001  passed to the loop, and handled there
            ending = None, raised
        finally:
            self.end(ending)
        return ending

    def end(self, ending: Ending) -> None:
        """Note that the work is over, with this value or what it raised."""
        with self._lock:
            if self._over:
                return
            unfinished = self._unfinished_work() if self._call_works else None
            if unfinished is None:
                self._over = True
                end_callback, callbacks, self._callbacks = self._end_callback, self._callbacks, []
                self._ending = ending
                if end_callback is None:
                    Work.left_behind -= self._given_up
        if unfinished is not None:
            unfinished.then(lambda: self.end(ending))
            return
        if end_callback is not None:
            self._tell(end_callback)
        for callback in callbacks:
            callback()

    def _unfinished_work(self) -> Work | None:
        return next((work for work in self._call_works if not (work is self or work.is_over)), None)

    def lose(self) -> None:
        """Note that the work is over, and that nobody will know how it ended."""
        with self._lock:
            is_lost, self._over = not self._over, True
            Work.left_behind -= is_lost and self._given_up
            callbacks = self._callbacks if is_lost else ()
        for callback in callbacks:
            callback()

    def tell(self, end_callback: Callable[[Any, BaseException | None], None]) -> None:
        """Call `heard` with how the given-up work ended, in a separate thread.

        The work counts until that call is over, and the process does not end before.
        """
        with self._lock:
            self._end_callback, is_over = end_callback, self._over
            Work.left_behind += is_over
        if is_over:
            self._tell(end_callback)

    def _tell(self, end_callback: Callable[[Any, BaseException | None], None]) -> None:
        def tell() -> None:
            try:
                end_callback(*self._ending)
            finally:
                with self._lock:
                    Work.left_behind -= 1

        threading.Thread(target=tell, name="toolcrib-ended", daemon=False).start()

    @contextmanager
    def stopped_by(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call `stop` if the work is given up within this block; at once, if it already was."""
        with self._lock:
            self._stops.append(stop)
            is_late = self._given_up
        if is_late:
            stop()
        try:
            yield
        finally:
            with self._lock:
                self._stops.remove(stop)


CURRENT: ContextVar[Work | None] = ContextVar("toolcrib_work", default=None)


class LeftWork(list[Work]):
    """The work that one call of a tool has left behind.

    `tool_work` is the work of the tool itself, if that still runs. `put_off` says that the time
    limit passed when somebody else had already stopped the tool. `ended_first` says that the tool's
    thread had ended before the stop was handled.
    """

    tool_work: Work | None = None
    put_off = False
    ended_first = False


class Leaves(Protocol):
    """A call of a tool, with the work that it has left behind, and the call whose tool made it."""

    works: LeftWork

    @property
    def outer(self) -> Leaves | None: ...


CALLING: ContextVar[Any] = ContextVar("toolcrib_calling", default=None)
"""The call whose tool is running here (a `Leaves`), if there is one.

Code that has a call, or one within it, in its context was begun by that call's tool.
"""


def left_here() -> LeftWork | None:
    """Return the list of the work that is left behind here."""
    call: Leaves | None = CALLING.get()
    return None if call is None else call.works


@contextmanager
def stopped_by(stop: Callable[[], None]) -> Iterator[None]:
    """Let `stop` be called, from another thread, once nobody waits for this blocking code."""
    work = CURRENT.get()
    if work is None:
        yield
        return
    with work.stopped_by(stop):
        yield


async def in_thread(work: Callable[[], T], *, keeps_end: bool = False) -> T:
    """Return or raise the result of `work()`, run in a copy of this context.

    On cancellation it is given up. `keeps_end` as in `Worker.run`.
    """
    worker = Worker.take()
    try:
        return await worker.run(work, contextvars.copy_context().run, keeps_end=keeps_end)
    finally:
        worker.leave()


class CallThread:
    """Does any number of pieces of work in one thread and one context, until `close`.

    The thread is taken when it is first needed. Each piece sees its requester's context variables
    at that time, and what earlier pieces have set themselves.
    """

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._context = contextvars.Context()
        self._requester_context: Mapping[ContextVar[Any], Any] = {}  # the last requester's context

    @property
    def busy(self) -> bool:
        """Whether work that was given up is still running."""
        return self._worker is not None and self._worker.busy

    async def run(self, work: Callable[[], T], *, keeps_end: bool = False) -> T:
        """Return or raise the result of `work()`. On cancellation it is given up, and runs on.

        `keeps_end` as in `Worker.run`.
        """
        return await self._own_worker().run(work, self._in_context(), keeps_end=keeps_end)

    def submit(self, work: Callable[[], None]) -> None:
        """Do this work after the present work; what it raises is lost."""
        run_in_context = self._in_context()
        self._own_worker().do(lambda: run_in_context(work))

    def close(self) -> None:
        """Accept no more work: the thread is released when it has done what it was given."""
        if self._worker is not None:
            self._worker.leave()

    def _own_worker(self) -> Worker:
        if self._worker is None:
            self._worker = Worker.take()
        return self._worker

    def _in_context(self) -> Callable[[Callable[[], Any]], Any]:
        requester_context = contextvars.copy_context()

        def run_work(work: Callable[[], Any]) -> Any:
            for variable, value in requester_context.items():
                if self._requester_context.get(variable, _UNSET) is not value:
                    variable.set(value)
            self._requester_context = requester_context
            return work()

        return lambda work: self._context.run(run_work, work)


class Worker:
    """A daemon thread that does one piece of work after the other. `take` one, and `leave` it."""

    _lock = threading.Lock()
    _idle: ClassVar[list[Worker]] = []  # the one that worked last is at the end: its stack is warm

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._open_count = 0  # counted in the event loop: requested and not yet returned
        threading.Thread(target=self._serve, name="toolcrib-work", daemon=True).start()

    @classmethod
    def take(cls) -> Worker:
        """Return a worker that nobody else has."""
        with cls._lock:
            if cls._idle:
                return cls._idle.pop()
        return cls()

    @classmethod
    def forget(cls) -> None:
        """Forget the parent's threads, none of which runs in a forked child."""
        cls._lock = threading.Lock()
        cls._idle.clear()

    @property
    def busy(self) -> bool:
        """Whether work that was given up is still running."""
        return self._open_count > 0

    async def run(
        self,
        work: Callable[[], T],
        run_in_context: Callable[[Callable[[], T]], T],
        *,
        keeps_end: bool = False,
    ) -> T:
        """Return or raise the result of `run_in_context(work)`, given up on cancellation.

        If `keeps_end`, work that is already over by then (the loop was busy) has ended, and is not
        cancelled.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        own_work = Work()

        def settle(value: Any, error: BaseException | None) -> None:
            self._open_count -= 1
            if future.done():
                return  # nobody waits for it any more
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        def job() -> None:
            value, error = own_work.done(work, run_in_context)
            # a lambda: in debug mode asyncio logs what it calls with its arguments
            try:  # noqa: SIM105  `suppress` takes ten times as long
                loop.call_soon_threadsafe(lambda: settle(value, error))
            except RuntimeError:  # the loop has closed: the work was given up long ago
                pass

        self._open_count += 1
        self._queue.put(job)
        try:
            return await future
        except BaseException as raised:
            is_over = own_work.give_up(left_here() if keeps_end else None)
            if is_over and keeps_end and isinstance(raised, asyncio.CancelledError):
                value: T = own_work.result_despite(raised)
                return value
            raise

    def do(self, job: Callable[[], None]) -> None:
        """Do this job after the present one; what it raises is lost."""
        self._queue.put(job)

    def leave(self) -> None:
        """Release the worker for others; one that still does given-up work serves nobody else."""
        with self._lock:
            if not self.busy and len(self._idle) < MOST_IDLE:
                self._idle.append(self)
                return
        self._queue.put(None)

    def _serve(self) -> None:
        while (job := self._queue.get()) is not None:
            with suppress(BaseException):
                job()
            job = None  # so that what it holds is freed while this waits


class LoopThread(threading.Thread):
    """An event loop in a daemon thread, until it is stopped. After a fork it is not alive.

    The end of the loop cancels what it still does, and closes what its coroutines hold open. Before
    that, they have `patience` seconds to end by themselves. `owner` lives as long as the loop.
    """

    def __init__(self, name: str, *, owner: object = None, patience: float = 0.0) -> None:
        super().__init__(name=name, daemon=True)
        self.owner = owner
        self.loop = asyncio.new_event_loop()
        self._patience = patience
        self._stopped = asyncio.Event()
        self.start()

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._until_stopped())

    def stop(self, seconds: float) -> None:
        """Stop the loop, and wait for its end for at most so many seconds."""
        if self.is_alive():
            self.loop.call_soon_threadsafe(self._stopped.set)
            if threading.current_thread() is not self:
                self.join(seconds)

    async def _until_stopped(self) -> None:
        await self._stopped.wait()
        if not self._patience:
            return
        for _ in range(3):  # open resources whose owner left them to this loop become tasks
            await asyncio.sleep(0)
        closing = asyncio.all_tasks() - {asyncio.current_task()}
        if closing:
            await asyncio.wait(closing, timeout=self._patience)
