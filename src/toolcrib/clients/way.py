"""How long a request may take on its way, and what it went over.

Rule: nobody is waited for without a limit, unless the user said so, and a limit is moved only when
there is something to wait for. (aiohttp's own are three timers a request, moved with each piece of a
reply; most pieces are there already when they are asked for.)
"""

from __future__ import annotations

import asyncio
import math

import msgspec


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits in seconds, None for none: to connect, between two reads, for everything.

    To connect is all from the server's name to TLS, also by a proxy. Raises ValueError for one that
    is not more than zero.
    """

    connect: float | None = 10.0
    read: float | None = 120.0
    total: float | None = 900.0

    def __post_init__(self) -> None:
        if not all(
            limit is None or 0 < limit < math.inf for limit in msgspec.structs.astuple(self)
        ):
            raise ValueError("Timeouts: each is more than 0 seconds, or None for no limit")


class Way:
    """A request's: whether its connection is `fresh` or was kept, and the `limit` on its answer."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._now = asyncio.get_running_loop().time
        self._connect = timeouts.connect
        self._read = math.inf if timeouts.read is None else timeouts.read
        self._end = math.inf if timeouts.total is None else self._now() + timeouts.total
        self.fresh = False
        self.limit = asyncio.timeout_at(None if self._end == math.inf else self._end)

    def connecting(self) -> asyncio.Timeout:
        """The limit on a connection that is made for it."""
        self.fresh = True
        return asyncio.timeout(self._connect)

    def connected(self) -> None:
        """From here on the server is waited for."""
        when = self._next()
        if when != self.limit.when():
            self.limit.reschedule(when)

    def reading(self) -> asyncio.Timeout:
        """The limit on the next piece."""
        return asyncio.timeout_at(self._next())

    def _next(self) -> float | None:
        when = min(self._now() + self._read, self._end)
        return None if when == math.inf else when
