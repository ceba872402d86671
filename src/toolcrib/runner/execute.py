"""Running one tool under a time limit: the only place where an author's code is started.

A coroutine is stepped once before any timer is armed: one that never suspends costs none. On a time
limit it is cancelled and waited for. A thread cannot be killed: a blocking tool that overruns is left
behind in a thread of its own, which no later call uses and which does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Generator, Mapping
from types import CoroutineType, coroutine
from typing import Any, Protocol, TypeVar

from toolcrib.threads import in_thread
from toolcrib.tools import Tool

T = TypeVar("T")


class TimeLimitExceeded(Exception):  # noqa: N818  an outcome; it never leaves the runner
    """The tool did not finish in time, and was cancelled (or, in a thread, left behind)."""


async def execute(
    tool: Tool[..., Any], instance: Any, injected: Mapping[str, Any], seconds: float | None
) -> Any:
    """The tool's own value. Raises TimeLimitExceeded, CancelledError, and what the tool raises."""
    if tool.blocking:
        return await limited(_from_thread(lambda: tool.invoke(instance, injected)), seconds)
    work, value = begun(tool, instance, injected)
    return value if work is None else await limited(work, seconds)


def begun(
    tool: Tool[..., Any], instance: Any, injected: Mapping[str, Any]
) -> tuple[Coroutine[Any, Any, Any] | None, Any]:
    """What has to be awaited for the value of a tool, stepped once; or nothing, and the value."""
    try:
        started = tool.invoke(instance, injected)
        if started.__class__ is not CoroutineType:
            return awaited(started), None
        try:
            return _resumed(started, started.send(None)), None
        except StopIteration as finished:
            return None, finished.value
    except GeneratorExit:
        raise _exit_of_its_own() from None


async def limited(work: Coroutine[Any, Any, Any], seconds: float | None) -> Any:
    """What it gives. Raises TimeLimitExceeded once it has been cancelled and has ended."""
    if seconds is None:
        return await work
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            value = await work
    except TimeoutError:
        if limit.expired():
            raise TimeLimitExceeded from None
        raise
    if limit.expired():  # it caught the cancellation and went on
        raise TimeLimitExceeded
    return value


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
