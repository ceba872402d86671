"""Event loops in threads of their own, which run until the process ends, and work that belongs to
another event loop.

Rules: the calls that a bridge makes together run in one loop. A loop that was closed after each call
would have to wait for a tool that does not end. Nobody waits forever for a loop that does not run:
it may be blocked by whoever waits, or have ended. A loop is stopped before the interpreter takes itself
apart: a thread that stands still within an import then would block every later import forever.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, TypeVar

from toolcrib.threads import LoopThread, cancel_requests

T = TypeVar("T")
TO_BEGIN = 10.0
"""Seconds within which another loop has to begin what it is given."""
_TO_END = 5.0  # seconds that a loop has for its end when the process ends
_DEPTH: ContextVar[int] = ContextVar("plain calls that this one is within", default=0)


class LoopThreads:
    """Loops of one kind, by depth, each begun when it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loops: list[LoopThread] = []
        atexit.register(self._stop)

    def loop(self, depth: int = 0) -> asyncio.AbstractEventLoop:
        """Return the loop of this depth. After a fork it is a new one."""
        with self._lock:
            if self._loops and not self._loops[0].is_alive():
                self._loops.clear()
            while len(self._loops) <= depth:
                self._loops.append(LoopThread(self._name))
            return self._loops[depth].loop

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run an awaitable to its end, in the context of the caller. Raises what it raises. A call
        that is made within another one uses the next loop, since the first one may wait for it."""
        depth = _DEPTH.get()
        token = _DEPTH.set(depth + 1)
        try:
            future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self.loop(depth))
        finally:
            _DEPTH.reset(token)
        try:
            return future.result()
        except BaseException:  # such as Ctrl-C while it waits
            future.cancel()
            raise

    def _stop(self) -> None:
        for running in reversed(self._loops):  # an outer call may wait for an inner one
            running.stop(_TO_END)


class LoopLost(Exception):  # noqa: N818  named after what happened
    """Another event loop did not begin the work that it was given, and will not; or, if it had
    `begun`, the loop ended before the work did."""

    def __init__(self, *, begun: bool) -> None:
        super().__init__("another event loop is blocked, or has ended")
        self.begun = begun


async def run_in(loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Do work in the event loop that it belongs to, in the context of the caller. It is cancelled
    together with its caller.

    Raises LoopLost if that loop ends, or does not begin the work within `TO_BEGIN` seconds because
    somebody blocks it.
    """
    if loop is asyncio.get_running_loop():
        return await work()
    turn: Future[None] = Future()  # it is either begun there or given up here

    async def begin() -> T:
        if not turn.set_running_or_notify_cancel():
            raise asyncio.CancelledError
        return await work()

    begun, cancels = begin(), cancel_requests()
    try:
        answer = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(begun, loop))
    except RuntimeError:  # the loop is closed
        begun.close()
        raise LoopLost(begun=False) from None
    try:
        while not answer.done():
            await asyncio.wait({answer}, timeout=TO_BEGIN)
            if not answer.done() and (turn.cancel() or loop.is_closed()):
                raise LoopLost(begun=not turn.cancelled())
        return await answer
    except asyncio.CancelledError:
        if cancel_requests() > cancels:
            raise
        raise LoopLost(begun=not turn.cancel()) from None
    finally:
        if not loop.is_closed():
            answer.cancel()
