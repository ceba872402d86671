"""Running one tool under a time limit: the only place where an author's code is started.

Each call's code runs in a task of its own. On a time limit, and when its caller is cancelled, that task
is cancelled and has GRACE seconds to end; one that goes on all the same is left behind, and its outcome
is not known. A thread cannot be killed either: a blocking tool that overruns is left behind in a thread
of its own, which no later call uses and which does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from types import CoroutineType, coroutine
from typing import Any, Protocol, TypeVar

from toolcrib.threads import Work, in_thread
from toolcrib.tools import Tool

T = TypeVar("T")


GRACE = 5.0  # seconds that a cancelled tool has to end
_left_behind: set[asyncio.Task[Any]] = set()  # a loop holds its tasks weakly


class StillRunning(Exception):  # noqa: N818  an outcome; it never leaves the runner
    """The tool was cancelled, did not end within the grace, and was left behind."""


class TimeLimitExceeded(Exception):  # noqa: N818  an outcome; it never leaves the runner
    """The tool did not finish in time, and was cancelled (or, in a thread, left behind)."""


async def execute(
    tool: Tool[..., Any], instance: Any, injected: Mapping[str, Any], seconds: float | None
) -> Any:
    """The tool's own value. Raises what `limited` does, and what the tool raises."""
    if tool.blocking:
        return await limited(_from_thread(lambda: tool.invoke(instance, injected)), seconds)
    return await limited(_in_the_loop(lambda: tool.invoke(instance, injected)), seconds)


async def limited(work: Coroutine[Any, Any, Any], seconds: float | None) -> Any:
    """What it gives, or raises. Raises TimeLimitExceeded once it has been cancelled and has ended,
    StillRunning if it has not; cancelled, it waits as long, and gives what came of it nevertheless."""
    end = _End()
    task = asyncio.ensure_future(_caught(work, end))
    late = False
    try:
        await asyncio.sleep(0)  # its first step; what never suspends needs no timer
        if not task.done():
            await asyncio.wait((task,), timeout=seconds)
        late = not task.done()
        if late:
            task.cancel()
    except asyncio.CancelledError as error:
        task.cancel(*error.args)
    except GeneratorExit:  # the loop is gone, or whoever closed this goes on without it
        with suppress(RuntimeError):
            task.cancel()
        if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
            work.close()  # nobody will begin it any more
        raise
    if not task.done():
        await _ended(task)
    if end.come is None:
        task.result()  # it was cancelled before its first step: that is raised
    value, raised = end.come or (None, None)
    end.come = None
    if late and (raised is None or isinstance(raised, asyncio.CancelledError | TimeoutError)):
        raise TimeLimitExceeded
    try:
        if raised is not None:
            raise raised
    finally:
        raised = None  # its traceback holds this frame
    return value


class _End:
    """What has come of a tool: its value, or what it raised.

    It is no task's result: asyncio, when it debugs, logs those, and drops that of a task which was
    cancelled in its last step.
    """

    come: tuple[Any, BaseException | None] | None = None


async def _caught(work: Coroutine[Any, Any, Any], end: _End) -> None:
    """A task's own: what it raises is judged where it is waited for, and ends no event loop."""
    try:
        end.come = await work, None
    except GeneratorExit:
        raise  # the loop is gone
    except BaseException as raised:  # noqa: BLE001  as said
        end.come = None, raised


async def _ended(task: asyncio.Task[Any]) -> None:
    """Wait for a task that was cancelled. Raises StillRunning if it does not end.

    Who cancels again meanwhile is heard by the task, too.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + GRACE
    while not task.done() and clock() < until:
        try:
            await asyncio.wait((task,), timeout=until - clock())
        except asyncio.CancelledError as error:
            task.cancel(*error.args)
        except GeneratorExit:
            with suppress(RuntimeError):
                task.cancel()
            raise
    if not task.done():
        work = Work()
        work.give_up()
        _left_behind.add(task)
        task.add_done_callback(lambda _: work.end())
        task.add_done_callback(_left_behind.discard)
        raise StillRunning


def cancel_requests() -> int:
    """How often the running task was asked to stop: a CancelledError without that is no stop."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def until_done(future: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait until it is done, however often this is cancelled meanwhile; then, what to raise.

    That has the message which came with the cancellation: libraries know their own by it (anyio).
    """
    cancelled = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = asyncio.CancelledError(*error.args)
    return cancelled


class Steps(Protocol):
    """A coroutine, or one step of an async generator."""

    def send(self, value: Any, /) -> Any: ...

    def throw(self, error: BaseException, /) -> Any: ...

    def close(self) -> None: ...


async def own(steps: Steps) -> Any:
    """What it gives. A GeneratorExit that it raises by itself is an error like any other.

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
    """What it returns; a GeneratorExit of its own, likewise, is an error."""
    try:
        return work()
    except GeneratorExit:
        raise _exit_of_its_own() from None


async def awaited(thing: Any) -> Any:
    """The value, also of something to await."""
    if thing.__class__ is CoroutineType:
        return await own(thing)
    return await thing if inspect.isawaitable(thing) else thing


async def _in_the_loop(work: Callable[[], Any]) -> Any:
    return await awaited(called(work))


async def _from_thread(work: Callable[[], Any]) -> Any:
    """A plain function may give something to await: a wrapper around a coroutine function does."""
    return await awaited(await in_thread(work))


@coroutine
def _resumed(steps: Steps, pending: Any) -> Generator[Any, Any, Any]:
    """The rest of what has been stepped once and waits for `pending`."""
    given: Any
    while True:
        try:
            sent = yield pending
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as error:  # noqa: BLE001  cancellation too goes to the tool
            step, given = steps.throw, error
        else:
            step, given = steps.send, sent
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
