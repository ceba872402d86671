"""Who may run at the same time: up to a limit together, an exclusive call alone.

First come, first served: a waiting exclusive call is not overtaken. Without contention nothing waits
and nothing is allocated.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress


class Gate:
    """`await enter(exclusive)` … `leave(exclusive)`, in one event loop at a time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running = 0
        self._alone = False
        self._queue: deque[tuple[bool, asyncio.Future[None]]] = deque()

    def try_enter(self, exclusive: bool) -> bool:
        """Enter if nobody has to be waited for."""
        if self._queue or not self._fits(exclusive):
            return False
        self._admit(exclusive)
        return True

    async def enter(self, exclusive: bool) -> None:
        if self.try_enter(exclusive):
            return
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((exclusive, ticket))
        try:
            await ticket
        except asyncio.CancelledError:
            if ticket.cancelled():
                with suppress(ValueError):  # `_wake` may have dropped it already
                    self._queue.remove((exclusive, ticket))
                self._wake()
            else:
                self.leave(exclusive)
            raise

    def leave(self, exclusive: bool) -> None:
        self._running -= 1
        if exclusive:
            self._alone = False
        self._wake()

    def _fits(self, exclusive: bool) -> bool:
        if exclusive:
            return self._running == 0
        return not self._alone and self._running < self._limit

    def _admit(self, exclusive: bool) -> None:
        self._running += 1
        self._alone = exclusive

    def _wake(self) -> None:
        while self._queue and self._fits(self._queue[0][0]):
            exclusive, ticket = self._queue.popleft()
            if not ticket.cancelled():
                self._admit(exclusive)
                ticket.set_result(None)
