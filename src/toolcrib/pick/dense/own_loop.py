"""An event loop in a daemon thread, for synchronous code that has to wait for coroutines.

Rule: one loop for all calls, so that a client's connections outlive each of them. None is started
before the first call and none is carried across a fork; a loop ends with its owner, or the program.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_LAST_WORDS = 1.0
"""Seconds that tasks and connections are given to end when the program does."""


class OwnLoop:
    """Runs coroutines to their end, for any number of threads that wait for them.

    `served` is whose coroutines they are. It lives as long as the loop: collected before it, as part of
    a circle, its connections would be lost where only the loop's end can close them.
    """

    def __init__(self, served: object = None) -> None:
        self._whose = served
        self._lock = threading.Lock()
        self._served: _Served | None = None

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `await work()` gives or raises."""
        return asyncio.run_coroutine_threadsafe(work(), self._running().loop).result()

    def _running(self) -> _Served:
        served = self._served
        if served is not None and served.process != os.getpid():
            self._lock = threading.Lock()  # the other may have been held when the process forked
            served = self._served = None
        if served is None:
            with self._lock:
                if self._served is None:
                    self._served = _Served(self._whose)
                    weakref.finalize(self, self._served.stop)
                served = self._served
        return served


class _Served:
    """A loop and its thread. Closing the loop closes what its coroutines hold open."""

    def __init__(self, whose: object) -> None:
        self.whose = whose
        self.process = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="toolcrib-loop", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self.process == os.getpid():
            self.loop.call_soon_threadsafe(self._end.set)
            if threading.current_thread() is not self._thread:
                self._thread.join(_LAST_WORDS)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        await self._end.wait()
        for _ in range(
            3
        ):  # what an owner held open, and left to this loop to close, becomes a task
            await asyncio.sleep(0)
        closing = asyncio.all_tasks() - {asyncio.current_task()}
        if closing:
            await asyncio.wait(closing, timeout=_LAST_WORDS / 5)
