"""Tools that several tests share."""

from __future__ import annotations

from typing import Protocol

from toolcrib import ALL, capability, tool


@capability
class Clock(Protocol):
    def now(self) -> float: ...


@tool(visible=ALL)
async def needs_clock(clock: Clock) -> float:
    """Tell the time."""
    return clock.now()
