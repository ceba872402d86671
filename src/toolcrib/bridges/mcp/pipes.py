"""The lines of standard input, which can be left at any time: a thread that reads cannot be stopped.

Rule: while it is open, nothing else in the process, and no program that it starts, reads what the
client sends. A line that is longer than `MAX_LINE` ends the connection.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Self

MAX_LINE = 8 * 1_048_576
_CHUNK = 65_536


class StandardInput:
    """An async iterator over the lines of standard input; it ends with it, and where `stop` is set."""

    def __init__(self, stop: asyncio.Event | None = None) -> None:
        self._stop = stop
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(64)
        self._own = -1
        self._watching: asyncio.Task[None] | None = None
        self._left = False

    async def __aenter__(self) -> Self:
        self._own = os.dup(0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop, self._own), daemon=True).start()
        if self._stop is not None:
            self._watching = asyncio.create_task(self._watch(self._stop))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._left = True
        if self._watching is not None:
            self._watching.cancel()
        os.dup2(self._own, 0)  # it stays open: the thread may wait in it

    async def __aiter__(self) -> AsyncIterator[str]:
        while (line := await self._lines.get()) is not None:
            yield line

    async def _watch(self, stop: asyncio.Event) -> None:
        await stop.wait()
        await self._lines.put(None)

    def _read(self, loop: asyncio.AbstractEventLoop, source: int) -> None:
        held = bytearray()
        with suppress(OSError, RuntimeError):  # the loop has closed, and nobody waits any more
            while len(held) <= MAX_LINE and (chunk := os.read(source, _CHUNK)):
                *ends, rest = chunk.split(b"\n")
                for end in ends:
                    held += end
                    self._put(loop, held.decode("utf-8", "replace"))
                    held.clear()
                held += rest
            self._put(loop, None)

    def _put(self, loop: asyncio.AbstractEventLoop, line: str | None) -> None:
        if not self._left:
            asyncio.run_coroutine_threadsafe(self._lines.put(line), loop).result()
