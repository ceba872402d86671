"""Running one tool under a time limit: the only place where an author's code is started.

A tool's coroutine is driven in its caller's own task, so that `asyncio.timeout`, task groups and
context variables in it work as ever; one that never suspends costs neither a task nor a timer. At its
time limit, and when its caller is cancelled, CancelledError is raised in it, once, and it has GRACE
seconds to end. Whichever of the two was first is why it ended; what comes from outside meanwhile does
not reach it, so that no clean-up is cut. (A timeout or a task group of its own does.) One
that goes on all the same is left behind in a task of its own, and its outcome is not known.
A thread cannot be killed either: a blocking tool that overruns is left behind in a thread of its own,
which no later call uses and which does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType, NoneType, coroutine
from typing import Any, Protocol, TypeVar

from toolcrib.threads import CALLING, Ending, Leaves, LeftWork, Work, in_thread
from toolcrib.tools import Tool

T = TypeVar("T")


GRACE = 5.0  # seconds that a tool has to end when it was told to stop
_left_behind: dict[asyncio.Task[Any], Work] = {}  # a loop holds its tasks weakly


class StillRunning(Exception):  # noqa: N818  an outcome; it never leaves the runner
    """The tool was cancelled, did not end within the grace, and was left behind; `late` says that it
    was out of time, before anybody cancelled its caller."""

    def __init__(self, *, late: bool) -> None:
        super().__init__()
        self.late = late


class TimeLimitExceeded(Exception):  # noqa: N818  an outcome; it never leaves the runner
    """The tool did not finish in time, and was cancelled (or, in a thread, left behind)."""


def started(
    tool: Tool[..., Any], instance: Any, injected: Mapping[str, Any]
) -> Coroutine[Any, Any, Any]:
    """Return what has to be awaited for the tool's own value. Raises what the tool raises at once."""
    if tool.blocking:
        return _from_thread(partial(tool.invoke, instance, injected))
    try:
        work: Any = tool.invoke(instance, injected)
    except GeneratorExit:
        raise _exit_of_its_own() from None
    if work.__class__ is CoroutineType:
        coroutine_: Coroutine[Any, Any, Any] = work
        return coroutine_
    return awaited(work)


async def limited(work: Coroutine[Any, Any, Any], seconds: float | None) -> Any:
    """Return the value of `work`. Raises TimeLimitExceeded when it was stopped at its limit, and
    StillRunning if it did not stop. When the caller is cancelled it waits as long, and returns or
    raises what `work` does then."""
    call: Leaves | None = CALLING.get()  # once it waits, the one here may be a call within it
    try:
        pending = work.send(None)
    except StopIteration as finished:
        return finished.value
    except GeneratorExit:
        raise _exit_of_its_own() from None
    deadline = _Deadline(work, seconds, call)
    try:
        return await _bounded(work, pending, deadline)
    finally:
        if deadline.kept_back:
            deadline.ask_again()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)  # it comes here, and is raised by whoever asks the task


async def _bounded(work: Coroutine[Any, Any, Any], pending: Any, deadline: _Deadline) -> Any:
    try:
        value = await _driven(work, pending, deadline)
    except (asyncio.CancelledError, TimeoutError) as raised:
        if deadline.passed and not deadline.ended_first:
            raise TimeLimitExceeded from None
        if deadline.kept_back and isinstance(raised, asyncio.CancelledError):
            raise asyncio.CancelledError(*deadline.kept_back[-1]) from None  # says whose it is
        raise
    finally:
        deadline.disarm()
    if deadline.passed and not deadline.ended_first:  # it caught the cancellation and went on
        raise TimeLimitExceeded
    return value


class _StopGate(asyncio.Future[None]):
    """A future that a task waits for, and that knows in whose context it was cancelled: within the tool
    that has the list `own`, or from outside."""

    own: LeftWork | None = None
    by: Context | None = None

    def cancel(self, msg: Any = None) -> bool:
        if not self.is_cancelled_within():
            self.by = copy_context()
        return super().cancel(msg)

    def is_cancelled_within(self) -> bool:
        call: Leaves | None = None if self.by is None else self.by.get(CALLING)
        while call is not None and call.works is not self.own:
            call = call.outer
        return call is not None


_ENDED_BY_CANCEL = (NoneType, asyncio.Future, _StopGate)  # cancelling a task waits for its code


class _Deadline:
    """Cancels a suspended tool at its time limit, and says when a cancelled tool used up its grace.

    `stopping` from the moment when CancelledError reached the tool on behalf of somebody outside of it
    until its grace is over. A task group or a timeout within the tool cancels the task, too, and takes
    that back: the grace then ends without consequence. A time limit that is over meanwhile is
    `overdue`: it counts only if that was taken back. A request to stop that comes meanwhile is
    `kept_back`, with its message: the task is asked again when that was taken back, or the tool has
    ended. Until then it does not count, so that timeouts and calls in a clean-up are what they say.
    """

    __slots__ = (
        "_gate",
        "_grace",
        "_limit",
        "_loop",
        "_requests",
        "_task",
        "_work",
        "kept_back",
        "left",
        "overdue",
        "passed",
        "stopping",
    )

    def __init__(
        self, work: Coroutine[Any, Any, Any], seconds: float | None, call: Leaves | None
    ) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._requests = 0 if self._task is None else self._task.cancelling()
        self.left = None if call is None else call.works
        self._limit: asyncio.TimerHandle | None = None
        if seconds is not None:
            around = copy_context()
            around.run(CALLING.set, call)  # so that it is known whose time limit cancels
            self._limit = self._loop.call_later(seconds, self._pass, context=around)
        self._grace: asyncio.TimerHandle | None = None
        self._gate: _StopGate | None = None
        self.kept_back: list[tuple[Any, ...]] = []
        self.overdue = False
        self.passed = False
        self.stopping = False

    @property
    def ended_first(self) -> bool:
        """Whether the tool's thread had ended before it was stopped, and says how the call ended."""
        return self.left is not None and self.left.ended_first

    def is_ignored(self) -> bool:
        """Return whether a cancelled tool goes on after its grace."""
        if not self.stopping or self._grace is not None:
            return False
        self.stopping = self.passed or self._is_cancelled()
        return self.stopping

    def guards(self, pending: Any) -> bool:
        """Return whether the tool waits through `until_done`, since cancelling may not end the wait."""
        if pending.__class__ in _ENDED_BY_CANCEL and not self.stopping:
            return False
        return pending is None or (asyncio.isfuture(pending) and pending.get_loop() is self._loop)

    def disarm(self) -> None:
        for timer in (self._limit, self._grace):
            if timer is not None:
                timer.cancel()
        if self.passed and self._task is not None and self._is_cancelled():
            self._task.uncancel()

    def move(self, task: asyncio.Task[Any]) -> None:
        """Stop another task from now on: the work around this one was left behind, and goes on there.
        A tool that was told to stop has been told so there, too."""
        told = self._is_cancelled()
        if told and self.passed and self._task is not None:
            self._task.uncancel()
        self._task, self._requests = task, -told

    def cancelled(self, gate: _StopGate | None = None) -> bool:
        """Return whether a CancelledError is for the tool; begin the grace if it came because the task
        was cancelled. Within the grace it is for the tool only if it came from within the tool."""
        _take_back(self._work)
        if not self._is_cancelled():
            return True
        if self.stopping and self._is_cancelled(before=1):  # nobody took the earlier one back
            return gate is None or gate.by is None or gate.is_cancelled_within()
        self.stopping = True
        if self._grace is not None:
            self._grace.cancel()
        self._grace = self._loop.call_later(GRACE, self._lapse)
        return True

    def until_done(self, pending: asyncio.Future[Any] | None) -> Generator[Any, Any, None]:
        """Wait until `pending` is done (without one, for a turn of the loop) or the grace is over.
        Raises CancelledError for the tool.

        The task waits for a future of ours: cancelling it returns at once, whatever `pending` does.
        """
        if pending is None:
            self._loop.call_soon(self._wake, None)
            yield from self._gated(None)
            return
        pending._asyncio_future_blocking = False  # noqa: SLF001  as a task does: it is waited for
        pending.add_done_callback(self._wake)
        try:
            while not pending.done() and not self.is_ignored():
                yield from self._gated(pending)
        finally:
            pending.remove_done_callback(self._wake)

    def _gated(self, pending: asyncio.Future[Any] | None) -> Generator[Any, Any, None]:
        """Wait until something wakes this, and pass on a cancellation that is for the tool."""
        gate = self._gate = _StopGate(loop=self._loop)
        gate.own = self.left
        try:
            yield from gate
        except asyncio.CancelledError as error:
            if not self.cancelled(gate):
                self._keep_back(error.args)
                return
            passed_on = False
            if pending is not None:
                by = copy_context() if gate.by is None else gate.by
                passed_on = by.run(pending.cancel, *error.args)
            if not passed_on:
                raise
        finally:
            self._gate = None

    def _is_cancelled(self, *, before: int = 0) -> bool:
        """Return whether the task is asked to stop; also without the last requests, of this number."""
        return self._task is not None and self._task.cancelling() - before > self._requests

    def _pass(self) -> None:
        self.overdue = self._is_cancelled()  # somebody was first
        if self.overdue:
            if self.left is not None:
                self.left.put_off = True
        else:
            self.passed = True
            if self._task is not None:
                self._task.cancel()

    def catch_up(self) -> None:
        """Stop a tool that was to be stopped while it was stopped by itself, if it took that back."""
        if self.kept_back and not self._is_cancelled():
            self.ask_again()
        if self.overdue:
            self._pass()

    def ask_again(self) -> None:
        """Ask the task to stop, as it was asked meanwhile."""
        if self._task is not None:
            for message in self.kept_back:
                self._task.cancel(*message)
        self.kept_back.clear()

    def _keep_back(self, message: tuple[Any, ...]) -> None:
        if self._task is not None:
            self._task.uncancel()
            self.kept_back.append(message)

    def _lapse(self) -> None:
        self._grace = None
        self._wake(None)

    def _wake(self, _done: object) -> None:
        if self._gate is not None and not self._gate.done():
            self._gate.set_result(None)


@coroutine
def _driven(
    work: Coroutine[Any, Any, Any], pending: Any, deadline: _Deadline
) -> Generator[Any, Any, Any]:
    """Drive a coroutine that was stepped once and waits for `pending`. Raises StillRunning.

    What it waits for is given to the event loop as it is, as long as cancelling the task is sure to
    wake it.
    """
    while True:
        error: BaseException | None = None
        if deadline.overdue or deadline.kept_back:
            deadline.catch_up()
        try:
            if deadline.guards(pending):
                yield from deadline.until_done(pending)
            else:
                yield pending
        except GeneratorExit:  # the loop is gone, or whoever closed this goes on without it
            deadline.kept_back.clear()
            work.close()
            raise
        except asyncio.CancelledError as cancelled:
            deadline.cancelled()
            error = cancelled
        except BaseException as failed:  # noqa: BLE001  of what it waited for
            error = failed
        if error is None and deadline.is_ignored():
            _leave_behind(work, pending, deadline.left)
            raise StillRunning(late=deadline.passed)
        try:
            pending = work.send(None) if error is None else work.throw(error)
        except StopIteration as finished:
            return finished.value
        except GeneratorExit:
            raise _exit_of_its_own() from None
        finally:
            error = None  # its traceback holds this frame


def _leave_behind(
    work: Coroutine[Any, Any, Any], pending: asyncio.Future[Any] | None, left: LeftWork | None
) -> None:
    """Let the work go on in a task that nobody waits for. It was told to stop, and is not told again:
    that would cut its clean-up.

    What it waits for may be a call that it makes itself: `left` is of the call that the work is of, and
    not of whichever is known by the context.
    """
    if pending is not None and not pending.done():
        pending._asyncio_future_blocking = True  # noqa: SLF001  as `await` does
    counted = Work()
    counted.give_up(left)
    task: Any = asyncio.ensure_future(_unheard(work, pending))
    task._log_destroy_pending = False  # noqa: SLF001  if its loop closes, the record says so
    _left_behind[task] = counted
    for frame in _frames(work):
        if frame.f_code is _driven.__code__:
            frame.f_locals["deadline"].move(task)

    def ended(_: asyncio.Task[Ending]) -> None:
        _left_behind.pop(task, None)
        counted.end(_ending(task))

    task.add_done_callback(ended)


def left_running() -> int:
    """Return how much work that was left behind goes on. What was in a task whose event loop has closed
    has ended: nobody drives it any more, and nobody knows what it did."""
    for task, work in list(_left_behind.items()):
        if task.get_loop().is_closed() and _left_behind.pop(task, None) is not None:
            work.lose()
    return Work.left_behind


async def _unheard(work: Coroutine[Any, Any, Any], pending: asyncio.Future[Any] | None) -> Ending:
    """Return the value or the exception: asyncio would log those of a task."""
    try:
        return await _resumed(work, None if pending is None or pending.done() else pending), None
    except GeneratorExit:
        raise  # the loop is gone
    except BaseException as raised:  # noqa: BLE001  nobody waits for it
        return None, raised


def _ending(task: asyncio.Task[Ending]) -> Ending:
    if task.cancelled():
        return None, asyncio.CancelledError()
    raised = task.exception()
    return task.result() if raised is None else (None, raised)


def _take_back(work: Any) -> None:
    """Take back what a task group within a coroutine asked of the task that it is driven in.

    A group of which a child fails while it waits for the others cancels its task. Before Python 3.13
    it never takes that back, so that it would look as if the caller had been cancelled.
    """
    if sys.version_info >= (3, 13):
        return
    task = asyncio.current_task()
    for frame in _frames(work):
        if frame.f_code is not asyncio.TaskGroup.__aexit__.__code__ or frame.f_locals["et"]:
            continue  # what it cancelled before it was left, it has taken back
        group = frame.f_locals["self"]
        if group._parent_cancel_requested and group._parent_task is task:  # noqa: SLF001
            group._parent_cancel_requested = False  # noqa: SLF001  once
            task.uncancel()


_SUSPENDED = {
    CoroutineType: ("cr_frame", "cr_await"),
    AsyncGeneratorType: ("ag_frame", "ag_await"),
    GeneratorType: ("gi_frame", "gi_yieldfrom"),
}


def _frames(steps: Any) -> Iterator[FrameType]:
    """Yield the frames of a suspended coroutine and of what it awaits, the outermost first."""
    while steps is not None:
        names = _SUSPENDED.get(steps.__class__)
        if names is None:  # a step of an async generator does not say whose it is
            steps = next((s for s in gc.get_referents(steps) if s.__class__ in _SUSPENDED), None)
            continue
        frame, steps = (getattr(steps, name) for name in names)
        if frame is None:
            return
        yield frame
        if frame.f_code in (_driven.__code__, _resumed.__code__):
            steps = frame.f_locals["work"]


async def until_done(future: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait until a future is done, however often this is cancelled; return what is to be raised then.

    That has the message which came with the cancellation: libraries know their own by it (anyio).
    """
    cancelled = None
    while not future.done():
        gate = future.get_loop().create_future()
        opened = partial(_open, gate)
        future.add_done_callback(opened)
        try:
            await gate
        except asyncio.CancelledError as error:
            cancelled = asyncio.CancelledError(*error.args)
            future.remove_done_callback(opened)
    return cancelled


def _open(gate: asyncio.Future[None], _done: object) -> None:
    if not gate.done():
        gate.set_result(None)


class Steps(Protocol):
    """A coroutine, or one step of an async generator."""

    def send(self, value: Any, /) -> Any: ...

    def throw(self, error: BaseException, /) -> Any: ...

    def close(self) -> None: ...


async def own(steps: Steps) -> Any:
    """Return the value of a coroutine. A GeneratorExit of its own is an error like any other.

    Only one that comes from outside means that the event loop is gone and nothing can be awaited.
    """
    try:
        pending = steps.send(None)
    except StopIteration as finished:
        return finished.value
    except GeneratorExit:
        raise _exit_of_its_own() from None
    return await _resumed(steps, pending)


def called(work: Callable[[], T]) -> T:
    """Return what `work` does; here, too, a GeneratorExit of its own is an error."""
    try:
        return work()
    except GeneratorExit:
        raise _exit_of_its_own() from None


async def awaited(thing: Any) -> Any:
    """Return the value itself, or what awaiting it gives."""
    if thing.__class__ is CoroutineType:
        return await own(thing)
    if thing.__class__ in _VALUES:
        return thing
    return await thing if inspect.isawaitable(thing) else thing


_VALUES = frozenset((dict, list, tuple, str, int, float, bool, NoneType))
"""Of what class most results are: it need not be asked whether they can be awaited."""


async def _from_thread(work: Callable[[], Any]) -> Any:
    """Run a plain function in a thread; one that wraps a coroutine function gives an awaitable."""
    return await awaited(await in_thread(work, keeps_end=True))


@coroutine
def _resumed(work: Steps, pending: Any) -> Generator[Any, Any, Any]:
    """Drive a coroutine that was stepped once and waits for `pending` to its end."""
    given: Any
    while True:
        try:
            sent = yield pending
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # noqa: BLE001  cancellation too goes to the tool
            if isinstance(error, asyncio.CancelledError):
                _take_back(work)
            step, given = work.throw, error
        else:
            step, given = work.send, sent
        try:
            pending = step(given)
        except StopIteration as finished:
            return finished.value
        except GeneratorExit:
            raise _exit_of_its_own() from None
        finally:
            given = None  # its traceback holds this frame


def _exit_of_its_own() -> RuntimeError:
    return RuntimeError("GeneratorExit was raised by the tool")
