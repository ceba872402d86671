"""Blocking work beside an event loop, in a daemon thread of its own.

A thread cannot be killed. One that is given up (its call timed out or was cancelled) goes on until it
returns; it serves no later call, and unlike an executor's it does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """What `work()` returns or raises, in a copy of this context. On cancellation it is given up."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if future.done():
            return  # nobody waits for it any more
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def target() -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = context.run(work)
        except (StopIteration, GeneratorExit) as raised:  # what would end a coroutine that awaits
            error = RuntimeError(f"{type(raised).__name__} was raised in a thread")
        except BaseException as raised:  # noqa: BLE001  carried to the loop, and judged there
            error = raised
        # a lambda: asyncio, debugging, logs what it calls with its arguments
        with suppress(RuntimeError):  # the loop has closed: the work was given up long ago
            loop.call_soon_threadsafe(lambda: settle(value, error))

    threading.Thread(target=target, name="toolcrib-work", daemon=True).start()
    return await future
