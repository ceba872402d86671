"""Runs blocking work of an event loop in daemon threads.

A thread cannot be killed. One that is given up (its call timed out or was cancelled) is left behind: it
goes on until it returns. It serves no later call, and unlike an executor's it does not keep the process
alive. How many are left behind is counted, in the whole process; who would start one more tool asks
`has_room` first.

A forked child has the one thread that forked. Whatever lock another thread held then is held for good,
and whatever that thread was about to do is its parent's: who owns such a lock is `renewed_in_children`.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

T = TypeVar("T")
MOST_LEFT_BEHIND = 100


class Renewed(Protocol):
    """Holds locks, and may be used in a child that was forked."""

    def renew(self) -> None:
        """Make the locks of a forked child anew, and forget what the
        parent's threads were about to do."""


_RENEWED: WeakSet[Renewed] = WeakSet()


def renewed_in_children(owner: Renewed) -> None:
    """Have `owner.renew()` called in each process that is forked, for as long as the owner lives."""
    _RENEWED.add(owner)


def _renew_all() -> None:
    Work.forget()
    for owner in list(_RENEWED):
        owner.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


class Work:
    """A piece of work that may be given up before it is over; then it is left behind.

    All methods may be called from any thread.
    """

    _lock = threading.Lock()
    _left = 0

    def __init__(self) -> None:
        self._over = False
        self._given_up = False
        self._stops: list[Callable[[], None]] = []

    @classmethod
    def left_behind(cls) -> int:
        """Return how many pieces of work go on in this process, though
        nobody waits for them any more."""
        return cls._left

    @classmethod
    def forget(cls) -> None:
        """Forget the parent's threads, none of which runs in a forked child."""
        cls._lock = threading.Lock()
        cls._left = 0

    def give_up(self) -> None:
        """Note that nobody waits for the work any more, and call what can stop it."""
        with self._lock:
            if self._over or self._given_up:
                return
            self._given_up = True
            Work._left += 1
            stops = list(self._stops)
        for stop in stops:
            stop()

    def end(self) -> None:
        """Note that the work is over."""
        with self._lock:
            if not self._over:
                self._over = True
                Work._left -= self._given_up

    @contextmanager
    def stopped_by(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call `stop` when the work is given up within this block; at once, if it was before."""
        with self._lock:
            self._stops.append(stop)
            late = self._given_up
        if late:
            stop()
        try:
            yield
        finally:
            with self._lock:
                self._stops.remove(stop)


CURRENT: ContextVar[Work | None] = ContextVar("toolcrib_work", default=None)


def has_room() -> bool:
    """Return whether one more tool may be started: many that were given up go on till they return."""
    return Work._left < MOST_LEFT_BEHIND  # noqa: SLF001  of this module


@contextmanager
def stopped_by(stop: Callable[[], None]) -> Iterator[None]:
    """Let `stop` be called, from another thread, once nobody waits for this blocking code any more."""
    work = CURRENT.get()
    if work is None:
        yield
        return
    with work.stopped_by(stop):
        yield


async def in_thread(work: Callable[[], T]) -> T:
    """Return what `work()` returns or raises, in a copy of this context. On
    cancellation it is given up."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()
    mine = Work()

    def settle(value: Any, error: BaseException | None) -> None:
        if future.done():
            return  # nobody waits for it any more
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def within() -> T:
        CURRENT.set(mine)
        return work()

    def target() -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = context.run(within)
        except (StopIteration, GeneratorExit) as raised:  # what would end a coroutine that awaits
            error = RuntimeError(f"{type(raised).__name__} was raised in a thread")
            error.__cause__ = raised
        except BaseException as raised:  # noqa: BLE001  carried to the loop, and judged there
            error = raised
        mine.end()
        # a lambda: asyncio, debugging, logs what it calls with its arguments
        with suppress(RuntimeError):  # the loop has closed: the work was given up long ago
            loop.call_soon_threadsafe(lambda: settle(value, error))

    threading.Thread(target=target, name="toolcrib-work", daemon=True).start()
    try:
        return await future
    except BaseException:
        mine.give_up()  # if it is not over
        raise
