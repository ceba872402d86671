"""Who may run at the same time: up to a limit together, an exclusive call alone.

First come, first served: a waiting exclusive call is not overtaken. Without contention nothing waits
and nothing is allocated. One gate serves any number of event loops, in any threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress

_Ticket = tuple[bool, asyncio.Future[None]]


class Gate:
    """`try_enter(exclusive)` or `await enter(exclusive)`, … `leave(exclusive)`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running = 0
        self._alone = False
        self._queue: deque[_Ticket] = deque()
        self._lock = threading.Lock()

    def try_enter(self, exclusive: bool) -> bool:
        """Enter if nobody has to be waited for."""
        with self._lock:
            if self._queue or exclusive or self._alone or self._running >= self._limit:
                return self._try_enter(exclusive)
            self._running += 1  # the way of nearly all
            return True

    async def enter(self, exclusive: bool) -> None:
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._try_enter(exclusive):
                return
            self._queue.append((exclusive, ticket))
        try:
            await ticket
        except asyncio.CancelledError:
            self._give_back((exclusive, ticket))
            raise

    def leave(self, exclusive: bool) -> None:
        with self._lock:
            self._running -= 1
            if exclusive:
                self._alone = False
            if self._queue:
                self._wake()

    def _try_enter(self, exclusive: bool) -> bool:
        if self._queue or not self._fits(exclusive):
            return False
        self._admit(exclusive)
        return True

    def _fits(self, exclusive: bool) -> bool:
        if exclusive:
            return self._running == 0
        return not self._alone and self._running < self._limit

    def _admit(self, exclusive: bool) -> None:
        self._running += 1
        self._alone = exclusive

    def _give_back(self, ticket: _Ticket) -> None:
        """One that no longer waits leaves the queue, or the place that it was just given."""
        with self._lock, suppress(ValueError):
            self._queue.remove(ticket)
            self._wake()
            return
        self.leave(ticket[0])

    def _wake(self) -> None:
        """Admitted here, told in its own loop; one whose loop is gone gives its place to the next."""
        while self._queue and self._fits(self._queue[0][0]):
            exclusive, ticket = self._queue.popleft()
            with suppress(RuntimeError):
                ticket.get_loop().call_soon_threadsafe(_tell, ticket)
                self._admit(exclusive)


def _tell(ticket: asyncio.Future[None]) -> None:
    if not ticket.done():
        ticket.set_result(None)
