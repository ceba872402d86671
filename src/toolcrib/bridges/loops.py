"""Event loops in threads of their own, which run until the process ends.

Rule: the calls that a bridge makes together run in one loop. A loop that was closed after each call
would have to wait for a tool that does not end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
_DEPTH: ContextVar[int] = ContextVar("plain calls that this one is within", default=0)


class LoopThreads:
    """Loops of one kind, by depth, each begun when it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loops: list[tuple[asyncio.AbstractEventLoop, threading.Thread]] = []

    def loop(self, depth: int = 0) -> asyncio.AbstractEventLoop:
        """Return the loop of this depth. After a fork it is a new one."""
        with self._lock:
            if self._loops and not self._loops[0][1].is_alive():
                self._loops.clear()
            while len(self._loops) <= depth:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=loop.run_forever, name=self._name, daemon=True)
                thread.start()
                self._loops.append((loop, thread))
            return self._loops[depth][0]

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
