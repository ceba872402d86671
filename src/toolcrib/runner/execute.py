"""Runs one tool under a time limit: the only place where an author's code is started.

Rule: a tool's coroutine runs in its caller's own task until it ends, is stopped, or is left behind.
So `asyncio.timeout`, task groups and context variables work in it as usual, and a tool that never
suspends costs neither a task nor a timer.

At its time limit, or when its caller is cancelled, CancelledError is raised in the tool once, and
it has GRACE seconds to end. Whichever of the two came first is the reason for its end. Further
requests from outside do not reach it during that time, so that no clean-up is cut short. (A timeout
or a task group inside the tool does.) A tool that keeps running after that is left behind in a
separate task, which its open timeouts cancel from then on, and its outcome is unknown. A thread
cannot be killed either: a blocking tool that overruns is left behind in its thread, which no later
call uses and which does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import (
    AsyncExitStack,
    ExitStack,
    _AsyncGeneratorContextManager,
    _GeneratorContextManager,
    suppress,
)
from contextvars import Context, copy_context
from functools import partial
from types import (
    AsyncGeneratorType,
    CoroutineType,
    FrameType,
    GeneratorType,
    MethodType,
    NoneType,
    coroutine,
)
from typing import Any, Protocol, TypeVar

from toolcrib.threads import CALLING, Ending, Leaves, LeftWork, Work, in_thread
from toolcrib.tools import Tool

T = TypeVar("T")


_HOLDERS = {asyncio.Timeout: "_task", asyncio.TaskGroup: "_parent_task"}
"""The attribute in which each holds the task that it cancels."""
_ANYIO = "anyio._backends._asyncio"
GRACE = 5.0  # seconds that a tool has to end after it was told to stop
_left_behind: dict[asyncio.Task[Any], Work] = {}  # an event loop holds its tasks weakly


class StillRunning(Exception):  # noqa: N818  an outcome; it never leaves the runner
    """Says that a cancelled tool did not end within the grace period and was left behind.

    `late` says that it ran out of time before anybody cancelled its caller.
    """

    def __init__(self, *, late: bool) -> None:
        super().__init__()
        self.late = late


class TimeLimitExceeded(Exception):  # noqa: N818  an outcome; it never leaves the runner
    """The tool did not finish in time, and was cancelled (or, in a thread, left behind)."""


def start_tool(
    tool: Tool[..., Any], instance: Any, injected: Mapping[str, Any]
) -> Coroutine[Any, Any, Any]:
    """Return what to await for the tool's own value. Raises what the tool raises immediately."""
    if tool.blocking:
        return _from_thread(partial(tool.invoke, instance, injected))
    try:
        work: Any = tool.invoke(instance, injected)
    except GeneratorExit:
        raise _generator_exit_error() from None
    if work.__class__ is CoroutineType:
        coroutine_: Coroutine[Any, Any, Any] = work
        return coroutine_
    return value_of(work)


async def run_limited(work: Coroutine[Any, Any, Any], seconds: float | None) -> Any:
    """Return the value of `work`.

    Raises TimeLimitExceeded if it was stopped at its limit, and StillRunning if it did not stop. If
    the caller is cancelled, this waits for the same grace, and returns or raises what `work` does
    then.
    """
    call: Leaves | None = CALLING.get()  # once it waits, CALLING may be set to a call within it
    try:
        pending = work.send(None)
    except StopIteration as stop:
        return stop.value
    except GeneratorExit:
        raise _generator_exit_error() from None
    deadline = _Deadline(work, seconds, call)
    try:
        return await _drive_to_end(work, pending, deadline)
    finally:
        if deadline.kept_back:
            deadline.ask_again()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)  # it arrives here; whoever asks the task raises it


async def _drive_to_end(work: Coroutine[Any, Any, Any], pending: Any, deadline: _Deadline) -> Any:
    try:
        value = await _drive(work, pending, deadline)
    except (asyncio.CancelledError, TimeoutError) as error:
        if deadline.passed and not deadline.ended_first:
            raise TimeLimitExceeded from None
        if deadline.kept_back and isinstance(error, asyncio.CancelledError):
            raise asyncio.CancelledError(*deadline.kept_back[-1]) from None  # it names its owner
        raise
    finally:
        deadline.disarm()
    if deadline.passed and not deadline.ended_first:  # it swallowed the cancellation and continued
        raise TimeLimitExceeded
    return value


class _StopGate(asyncio.Future[None]):
    """A future that a task waits for and that knows who cancelled it.

    The canceller is either within the tool that has the list `works`, or outside it.
    """

    works: LeftWork | None = None
    canceller: Context | None = None

    def cancel(self, msg: Any = None) -> bool:
        if not self.is_cancelled_within():
            self.canceller = copy_context()
        return super().cancel(msg)

    def is_cancelled_within(self) -> bool:
        call: Leaves | None = None if self.canceller is None else self.canceller.get(CALLING)
        while call is not None and call.works is not self.works:
            call = call.outer
        return call is not None


_ENDED_BY_CANCEL = (NoneType, asyncio.Future, _StopGate)  # cancelling the task ends these waits


class _Deadline:
    """Cancels a suspended tool at its time limit, and says when a cancelled tool used up its grace.

    `stopping` is set from the moment CancelledError reached the tool on behalf of somebody outside
    it until its grace is over. A task group or a timeout within the tool cancels the task too, and
    takes that back, perhaps later: the grace then ends without consequence. A time limit reached in
    the meantime is `overdue`: it counts only if the cancellation was taken back or will be. A
    request to stop that arrives in the meantime is `kept_back`, with its message. The task is
    cancelled with it again once the earlier cancellation was taken back, its grace has ended
    without consequence, or the tool has ended. Until then it does not count, so that timeouts and
    calls within a clean-up behave normally.
    """

    __slots__ = (
        "_call",
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
        self._call = call
        self._limit: asyncio.TimerHandle | None = None
        if seconds is not None:
            self._limit = self._call_later(seconds, self._reach_limit)
        self._grace: asyncio.TimerHandle | None = None
        self._gate: _StopGate | None = None
        self.kept_back: list[tuple[Any, ...]] = []
        self.overdue = False
        self.passed = False
        self.stopping = False

    @property
    def ended_first(self) -> bool:
        """Whether the tool's thread ended before it was stopped, and so determines the outcome."""
        return self.left is not None and self.left.ended_first

    def is_ignored(self) -> bool:
        """Return whether a cancelled tool is still running after its grace."""
        if not self.stopping or self._grace is not None:
            return False
        self.stopping = False  # from now on only requests from outside count
        self.stopping = self.passed or self._is_cancelled()
        return self.stopping

    def guards(self, pending: Any) -> bool:
        """Return whether to wait through `until_done`, because cancelling may not end the wait."""
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
        """Stop another task from now on: this work was left behind and continues in that task.

        A tool that was told to stop counts as told there, too.
        """
        is_cancelled = self._is_cancelled()
        if is_cancelled and self.passed and self._task is not None:
            self._task.uncancel()
        self._task, self._requests = task, -is_cancelled

    def cancelled(self, gate: _StopGate | None = None) -> bool:
        """Return whether a CancelledError is for the tool.

        If the task was cancelled, this begins the tool's grace. Within the grace the error is for
        the tool only if it came from within the tool.
        """
        _take_back_cancellation(self._work)
        if self._requests_made() <= 0:
            return True
        if self.stopping and self._requests_made() > 1:  # the earlier request was not taken back
            return gate is None or gate.canceller is None or gate.is_cancelled_within()
        self.stopping = True
        if self._grace is not None:
            self._grace.cancel()
        self._grace = self._call_later(GRACE, self._end_grace)
        return True

    def until_done(self, pending: asyncio.Future[Any] | None) -> Generator[Any, Any, None]:
        """Wait until `pending` is done (or for one turn of the loop) or the grace is over.

        Raises CancelledError for the tool. The task waits for a future made here: cancelling that
        returns at once, whatever `pending` does.
        """
        if pending is None:
            self._loop.call_soon(self._wake, None)
            yield from self._wait_at_gate(None)
            return
        pending._asyncio_future_blocking = False  # noqa: SLF001  marks it awaited, as a task does
        pending.add_done_callback(self._wake)
        try:
            while not pending.done() and not self.is_ignored():
                yield from self._wait_at_gate(pending)
        finally:
            pending.remove_done_callback(self._wake)

    def _wait_at_gate(self, pending: asyncio.Future[Any] | None) -> Generator[Any, Any, None]:
        """Wait until something wakes this, and pass on a cancellation that is for the tool."""
        gate = self._gate = _StopGate(loop=self._loop)
        gate.works = self.left
        try:
            yield from gate
        except asyncio.CancelledError as error:
            if not self.cancelled(gate):
                self._keep_back(error.args)
                return
            is_passed_on = False
            if pending is not None:
                context = copy_context() if gate.canceller is None else gate.canceller
                is_passed_on = context.run(pending.cancel, *error.args)
            if not is_passed_on:
                raise
        finally:
            self._gate = None

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        context = copy_context()
        context.run(CALLING.set, self._call)  # so that the canceller is known to be this deadline
        return self._loop.call_later(seconds, callback, context=context)

    def _requests_made(self) -> int:
        return 0 if self._task is None else self._task.cancelling() - self._requests

    def _is_cancelled(self) -> bool:
        """Return whether the task is asked to stop.

        Once the grace is over, requests of limits within the tool no longer count.
        """
        requests = self._requests_made()
        if requests <= 0 or self._task is None or self.stopping:
            return requests > 0
        return requests > _own_requests(self._work, self._task)

    def _reach_limit(self) -> None:
        self.overdue = self._is_cancelled()  # somebody else cancelled first
        if self.overdue:
            if self.left is not None:
                self.left.put_off = True
        else:
            self.passed = True
            if self._task is not None:
                self._task.cancel()

    def catch_up(self) -> None:
        """Carry out a postponed stop if the tool took its own cancellation back."""
        if self.kept_back and not self._is_cancelled():
            self.ask_again()
        if self.overdue:
            self._reach_limit()

    def ask_again(self) -> None:
        """Cancel the task with the requests that were kept back."""
        if self._task is not None:
            for message in self.kept_back:
                self._task.cancel(*message)
        self.kept_back.clear()

    def _keep_back(self, message: tuple[Any, ...]) -> None:
        if self._task is not None:
            self._task.uncancel()
            self.kept_back.append(message)

    def _end_grace(self) -> None:
        self._grace = None
        if self.is_ignored():
            self._wake(None)
        else:
            self.catch_up()

    def _wake(self, _done: object) -> None:
        if self._gate is not None and not self._gate.done():
            self._gate.set_result(None)


@coroutine
def _drive(
    work: Coroutine[Any, Any, Any], pending: Any, deadline: _Deadline
) -> Generator[Any, Any, Any]:
    """Drive a coroutine that was stepped once and waits for `pending`. Raises StillRunning.

    What it waits for is passed to the event loop unchanged as long as cancelling the task is sure
    to wake it.
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
        except GeneratorExit:  # the loop is gone, or whoever closed this continues without it
            deadline.kept_back.clear()
            work.close()
            raise
        except asyncio.CancelledError as cancellation:
            deadline.cancelled()
            error = cancellation
        except BaseException as raised:  # noqa: BLE001  raised by what it waited for
            error = raised
        if error is None and deadline.is_ignored():
            _leave_behind(work, pending, deadline.left)
            raise StillRunning(late=deadline.passed)
        try:
            pending = work.send(None) if error is None else work.throw(error)
        except StopIteration as stop:
            return stop.value
        except GeneratorExit:
            raise _generator_exit_error() from None
        finally:
            error = None  # its traceback holds this frame


def _leave_behind(
    work: Coroutine[Any, Any, Any], pending: asyncio.Future[Any] | None, works: LeftWork | None
) -> None:
    """Let the work continue in a task that nobody waits for.

    It was told to stop and is not told again: that would cut its clean-up short. It may be waiting
    for a call that it makes itself, so `works` belongs to the work's own call, not to the call in
    the current context.
    """
    if pending is not None and not pending.done():
        pending._asyncio_future_blocking = True  # noqa: SLF001  as `await` does
    left_work = Work()
    left_work.give_up(works)
    resuming = _resume_to_ending(work, pending)
    resuming.send(None)  # a task cancelled before its first step would never resume the work
    task: Any = asyncio.ensure_future(resuming)
    task._log_destroy_pending = False  # noqa: SLF001  if its loop closes, the record says so
    _left_behind[task] = left_work
    for frame in _frames(work):
        if frame.f_code is _drive.__code__:
            frame.f_locals["deadline"].move(task)
    caller: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
    for _ in range(_own_requests(work, caller)):
        caller.uncancel()
    for context in _open_contexts(work):
        _move(context, caller, task)

    def ended(_: asyncio.Task[Ending]) -> None:
        _left_behind.pop(task, None)
        left_work.end(_ending(task))

    task.add_done_callback(ended)


def _open_contexts(work: Any) -> Iterator[Any]:
    """Yield the context managers that a suspended coroutine, and what it awaits, has entered."""
    for step, _ in _suspended(work):
        for referent in gc.get_referents(step):
            yield from _contexts_in(referent)


def _contexts_in(referent: Any) -> Iterator[Any]:
    context = referent.__self__ if referent.__class__ is MethodType else referent  # its __exit__
    if isinstance(context, _GeneratorContextManager | _AsyncGeneratorContextManager):
        yield from _open_contexts(context.gen)
    elif isinstance(context, ExitStack | AsyncExitStack):
        for _, callback in context._exit_callbacks:  # type: ignore[union-attr]  # noqa: SLF001
            yield from _contexts_in(callback)
    elif type(context).__module__ == _ANYIO:
        yield getattr(context, "cancel_scope", context)  # a task group has one
    else:
        yield context


def _own_requests(work: Any, task: asyncio.Task[Any]) -> int:
    """Return how many requests to stop `task` the coroutine's open contexts will take back.

    A suspended coroutine may hold a context twice: entered, and in a variable.
    """
    contexts = {id(context): context for context in _open_contexts(work)}
    return sum(_requests_by(context, task) for context in contexts.values())


def _requests_by(context: Any, task: asyncio.Task[Any]) -> int:
    """Return how often a context has cancelled `task` and is still to take that back."""
    kind: type = type(context)
    if issubclass(kind, asyncio.Timeout):
        return int(context._task is task and context._state.value == "expiring")  # noqa: SLF001
    if issubclass(kind, asyncio.TaskGroup):
        # Before Python 3.13 a group takes it back as soon as its body has ended.
        is_over = context._exiting and (sys.version_info < (3, 13) or not context._tasks)  # noqa: SLF001
        has_cancelled = context._parent_cancel_requested and not is_over  # noqa: SLF001
        return int(context._parent_task is task and has_cancelled)  # noqa: SLF001
    if kind.__module__ == _ANYIO and getattr(context, "_host_task", None) is task:
        return context._pending_uncancellations or 0  # noqa: SLF001
    return 0


def _move(context: Any, caller: asyncio.Task[Any] | None, task: asyncio.Task[Any]) -> None:
    """Let a timeout or a task group of left-behind work cancel the work's task, not its caller's.

    The work entered it in its caller's task. A scope of anyio cannot be moved, so it cancels nothing.
    """
    for kind, attribute in _HOLDERS.items():
        if isinstance(context, kind) and getattr(context, attribute, None) is caller:
            setattr(context, attribute, task)
    if type(context).__module__ == _ANYIO:
        getattr(context, "_tasks", set()).discard(caller)


def left_running() -> int:
    """Return how many pieces of left-behind work still run.

    Work in a task whose event loop has closed has ended: nothing drives it any more, and its
    outcome is unknown.
    """
    for task, work in list(_left_behind.items()):
        if task.get_loop().is_closed() and _left_behind.pop(task, None) is not None:
            work.lose()
    return Work.left_behind


async def _resume_to_ending(
    work: Coroutine[Any, Any, Any], pending: asyncio.Future[Any] | None
) -> Ending:
    """Return the value or the exception, because asyncio would log an unretrieved one."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError as cancellation:
        task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
        task.uncancel()
        task.cancel(*cancellation.args)  # this time for the work
    try:
        return await _resume(work, None if pending is None or pending.done() else pending), None
    except GeneratorExit:
        raise  # the loop is gone
    except BaseException as error:  # noqa: BLE001  nobody waits for it
        return None, error


def _ending(task: asyncio.Task[Ending]) -> Ending:
    if task.cancelled():
        return None, asyncio.CancelledError()
    error = task.exception()
    return task.result() if error is None else (None, error)


def _take_back_cancellation(work: Any) -> None:
    """Take back a cancellation that a task group within the coroutine requested of its task.

    A group whose child fails while it waits for the others cancels its task. Before Python 3.13 it
    never takes that back, so it would look as if the caller had been cancelled.
    """
    if sys.version_info >= (3, 13):
        return
    task = asyncio.current_task()
    for frame in _frames(work):
        if frame.f_code is not asyncio.TaskGroup.__aexit__.__code__ or frame.f_locals["et"]:
            continue  # what the group cancelled before its body was left, it takes back itself
        group = frame.f_locals["self"]
        if group._parent_cancel_requested and group._parent_task is task:  # noqa: SLF001
            group._parent_cancel_requested = False  # noqa: SLF001  once
            task.uncancel()


_FRAME_AND_AWAITED = {
    CoroutineType: ("cr_frame", "cr_await"),
    AsyncGeneratorType: ("ag_frame", "ag_await"),
    GeneratorType: ("gi_frame", "gi_yieldfrom"),
}


def _frames(work: Any) -> Iterator[FrameType]:
    """Yield the frames of a suspended coroutine and of what it awaits, the outermost first."""
    return (frame for _, frame in _suspended(work))


def _suspended(awaitable: Any) -> Iterator[tuple[Any, FrameType]]:
    """Yield a suspended coroutine and what it awaits, each with its frame, the outermost first."""
    while awaitable is not None:
        names = _FRAME_AND_AWAITED.get(awaitable.__class__)
        if names is None:  # a step of an async generator does not name its generator
            awaitable = next(
                (
                    referent
                    for referent in gc.get_referents(awaitable)
                    if referent.__class__ in _FRAME_AND_AWAITED
                ),
                None,
            )
            continue
        step = awaitable
        frame, awaitable = (getattr(step, name) for name in names)
        if frame is None:
            return
        yield step, frame
        if frame.f_code in (_drive.__code__, _resume.__code__):
            awaitable = frame.f_locals["work"]


async def until_done(future: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait until a future is done, however often this is cancelled; return what to raise then.

    The error keeps the message of the cancellation, by which libraries recognise their own (anyio).
    """
    cancelled = None
    while not future.done():
        gate = future.get_loop().create_future()
        open_gate = partial(_open_gate, gate)
        future.add_done_callback(open_gate)
        try:
            await gate
        except asyncio.CancelledError as error:
            cancelled = asyncio.CancelledError(*error.args)
            future.remove_done_callback(open_gate)
    return cancelled


def _open_gate(gate: asyncio.Future[None], _done: object) -> None:
    if not gate.done():
        gate.set_result(None)


class Steps(Protocol):
    """A coroutine, or one step of an async generator."""

    def send(self, value: Any, /) -> Any: ...

    def throw(self, error: BaseException, /) -> Any: ...

    def close(self) -> None: ...


async def guarded(steps: Steps) -> Any:
    """Return the value of a coroutine, and turn a GeneratorExit that it raises into an error.

    Only a GeneratorExit from outside means that the event loop is gone and nothing can be awaited.
    """
    try:
        pending = steps.send(None)
    except StopIteration as stop:
        return stop.value
    except GeneratorExit:
        raise _generator_exit_error() from None
    return await _resume(steps, pending)


def call_guarded(work: Callable[[], T]) -> T:
    """Return the result of `work`, and turn a GeneratorExit that it raises into an error."""
    try:
        return work()
    except GeneratorExit:
        raise _generator_exit_error() from None


async def value_of(value: Any) -> Any:
    """Return the value itself, or what awaiting it gives."""
    if value.__class__ is CoroutineType:
        return await guarded(value)
    if value.__class__ in _UNAWAITABLE:
        return value
    return await value if inspect.isawaitable(value) else value


_UNAWAITABLE = frozenset((dict, list, tuple, str, int, float, bool, NoneType))
"""The classes of most results: these need no check whether they can be awaited."""


async def _from_thread(work: Callable[[], Any]) -> Any:
    """Run a plain function in a thread; one that wraps a coroutine function gives an awaitable."""
    return await value_of(await in_thread(work, keeps_end=True))


@coroutine
def _resume(work: Steps, pending: Any) -> Generator[Any, Any, Any]:
    """Drive a coroutine that was stepped once and waits for `pending` to its end."""
    argument: Any
    while True:
        try:
            sent = yield pending
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # noqa: BLE001  cancellation goes to the tool, too
            if isinstance(error, asyncio.CancelledError):
                _take_back_cancellation(work)
            step, argument = work.throw, error
        else:
            step, argument = work.send, sent
        try:
            pending = step(argument)
        except StopIteration as stop:
            return stop.value
        except GeneratorExit:
            raise _generator_exit_error() from None
        finally:
            argument = None  # its traceback holds this frame


def _generator_exit_error() -> RuntimeError:
    return RuntimeError("GeneratorExit was raised by the tool")
