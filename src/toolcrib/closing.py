"""`async with` for whatever holds connections."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Self


class Closing:
    """Gives `async with` to what has an `aclose`."""

    async def aclose(self) -> None:
        """Free what is held; what was closed can be used again."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def close_all(*held: Closing | None) -> None:
    """Close each of these, also where one of them raises."""
    async with AsyncExitStack() as stack:
        for each in held:
            if each is not None:
                stack.push_async_callback(each.aclose)
