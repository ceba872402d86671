"""The thread of one blocking call: its work runs there in order, and nothing of another call.

What a call opens for a blocking tool is opened, used and closed in the same thread and the same
context, as libraries demand that are not thread-safe or that set context variables; what was set in
the event loop meanwhile is seen, too. Work that nobody waits for any more is still done, in its turn.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from queue import SimpleQueue
from typing import Any, TypeVar

from toolcrib.threads import CURRENT, Work

T = TypeVar("T")
_UNSET = object()


class CallThread:
    """`await run(work)` any number of times, then `close()`; a daemon thread, started when needed."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = False
        self._pending = 0
        self._context = Context()
        self._outside: Mapping[ContextVar[Any], Any] = {}  # as it was last, of whoever submits

    @property
    def busy(self) -> bool:
        """Whether work that was given up is still being done."""
        return self._pending > 0

    async def run(self, work: Callable[[], T]) -> T:
        """What `work()` returns or raises. On cancellation it goes on."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            self._pending -= 1
            if future.done():
                return  # nobody waits for it any more
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        def tell(value: Any, error: BaseException | None) -> None:
            with suppress(RuntimeError):  # the loop has closed: the work was given up long ago
                loop.call_soon_threadsafe(lambda: settle(value, error))

        self._pending += 1
        mine = Work()
        self.submit(lambda: _do(work, mine, tell))
        try:
            return await future
        except BaseException:
            mine.give_up()  # if it is not over
            raise

    def submit(self, work: Callable[[], None]) -> None:
        """Do it when its turn comes; what it raises is lost."""
        outside = copy_context()
        self._work.put(lambda: self._context.run(self._within, outside, work))
        if not self._started:
            self._started = True
            threading.Thread(target=self._serve, name="toolcrib-call", daemon=True).start()

    def close(self) -> None:
        """No more work: the thread ends after what it has."""
        if self._started:
            self._work.put(None)

    def _within(self, outside: Mapping[ContextVar[Any], Any], work: Callable[[], None]) -> None:
        for variable, value in outside.items():
            if self._outside.get(variable, _UNSET) is not value:
                variable.set(value)
        self._outside = outside
        work()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            with suppress(BaseException):
                work()


def _do(
    work: Callable[[], Any], mine: Work, tell: Callable[[Any, BaseException | None], None]
) -> None:
    value: Any = None
    error: BaseException | None = None
    try:
        CURRENT.set(mine)
        value = work()
    except (StopIteration, GeneratorExit) as raised:  # what would end a coroutine that awaits it
        error = RuntimeError(f"{type(raised).__name__} was raised in a thread")
        error.__cause__ = raised
    except BaseException as raised:  # noqa: BLE001  carried to the loop, and judged there
        error = raised
    mine.end()
    tell(value, error)
