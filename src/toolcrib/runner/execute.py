"""Running one tool under a time limit: the only place where an author's code is started.

A coroutine is stepped once before any timer is armed: one that never suspends costs none. On a time
limit it is cancelled and waited for. A thread cannot be killed: a blocking tool that overruns is left
behind in a thread of its own, which no later call uses and which does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import Any

from toolcrib.threads import in_thread
from toolcrib.tools import Tool


class TimeLimitExceeded(Exception):  # noqa: N818  an outcome; it never leaves the runner
    """The tool did not finish in time, and was cancelled (or, in a thread, left behind)."""


async def execute(
    tool: Tool[..., Any], instance: Any, injected: Mapping[str, Any], seconds: float | None
) -> Any:
    """The tool's own value. Raises TimeLimitExceeded, CancelledError, and what the tool raises."""
    if tool.blocking:
        return await limited(_from_thread(lambda: tool.invoke(instance, injected)), seconds)
    started = tool.invoke(instance, injected)
    if not inspect.iscoroutine(started):
        return await limited(awaited(started), seconds)
    try:
        pending = started.send(None)
    except StopIteration as finished:
        return finished.value
    return await limited(_resumed(started, pending), seconds)


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


async def _from_thread(work: Callable[[], Any]) -> Any:
    """A plain function may give something to await: a wrapper around a coroutine function does."""
    return await awaited(await in_thread(work))


async def awaited(thing: Any) -> Any:
    """The value, also of something to await."""
    return await thing if inspect.isawaitable(thing) else thing


async def _resumed(coroutine: Coroutine[Any, Any, Any], pending: Any) -> Any:
    return await _Rest(coroutine, pending)


class _Rest:
    """The rest of a coroutine that has been stepped once and waits for `pending`."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], pending: Any) -> None:
        self._coroutine = coroutine
        self._pending = pending

    def __await__(self) -> Generator[Any, Any, Any]:
        pending, coroutine = self._pending, self._coroutine
        try:
            while True:
                try:
                    sent = yield pending
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as error:  # noqa: BLE001  cancellation too goes to the tool
                    pending = coroutine.throw(error)
                else:
                    pending = coroutine.send(sent)
        except StopIteration as finished:
            return finished.value
