"""`async with` for everything that holds connections."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Self


class Closing:
    """Adds `async with` to a class with `aclose`."""

    async def aclose(self) -> None:
        """Release what is held; a closed object can be used again."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def close_all(*closables: Closing | None) -> None:
    """Close each of these, the last one first, even if one of them raises."""
    async with AsyncExitStack() as stack:
        for closable in closables:
            if closable is not None:
                stack.push_async_callback(closable.aclose)
