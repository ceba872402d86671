"""The one door from synchronous code: scripts and the REPL."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import TypeVar

from toolcrib.errors import ToolcribError
from toolcrib.values.typed import came

T = TypeVar("T")


def run_sync(awaitable: Awaitable[T]) -> T:
    """Run to the end and give the result. Raises ToolcribError inside a running event loop."""
    if not inspect.isawaitable(awaitable):
        raise TypeError(
            f"awaitable is what agent.run(…) gives, or an async call; {came(awaitable)}"
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_await(awaitable))
    close = getattr(awaitable, "close", None)
    if close is not None:
        close()  # or Python warns that it was never awaited
    raise ToolcribError("an event loop is running here already: await it instead of run_sync(…)")


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable
