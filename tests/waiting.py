"""Wait in the event loop for what happens elsewhere: in a thread, or in another process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(is_so: Callable[[], bool], seconds: float = 10) -> None:
    """Return when something is so. Raises TimeoutError if it is not so in time."""
    async with asyncio.timeout(seconds):
        while not is_so():  # noqa: ASYNC110  nothing tells the event loop of it
            await asyncio.sleep(0.001)
