"""Tools that stream: each part goes to whoever watches, as `visible` lets it; the last is the result.

A part is treated alike whether or not somebody watches: one that is not JSON, or too large, ends the
call. After each part the event loop has its turn, so that a tool that never waits for anything can
still be stopped, and whoever reads keeps up. A generator that is given up on is closed and waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from toolcrib.runner.execute import own
from toolcrib.runner.output import as_json
from toolcrib.runner.redact import project
from toolcrib.runner.stopped import NOT_ITS_OWN
from toolcrib.values.context import Observer
from toolcrib.values.definition import Visibility


class Parts:
    """The parts of one call of a streaming tool."""

    __slots__ = ("_call_id", "_max_bytes", "_observer", "_visible")

    def __init__(
        self, call_id: str, visible: Visibility | None, observer: Observer | None, max_bytes: int
    ) -> None:
        self._call_id = call_id
        self._visible = visible
        self._observer = observer
        self._max_bytes = max_bytes

    async def last(self, generator: AsyncGenerator[Any, None]) -> Any:
        """The last value, None if there is none. Raises Unusable, and what the tool raises."""
        value = None
        try:
            while True:
                try:
                    value = await own(anext(generator))
                except StopAsyncIteration:
                    return value
                self._tell(value)
                await asyncio.sleep(0)
        except GeneratorExit:
            raise  # the loop is gone: nothing can be awaited any more
        except BaseException:
            await _close(generator)
            raise

    def _tell(self, value: object) -> None:
        plain = as_json(value, self._max_bytes)
        if self._observer is not None:
            self._observer.progress(self._call_id, project(plain, self._visible))


async def _close(generator: AsyncGenerator[Any, None]) -> None:
    """What closing raises does not take the place of what the call ended with."""
    try:
        await own(generator.aclose())
    except NOT_ITS_OWN:
        raise
    except BaseException:  # noqa: BLE001, S110  a generator may raise anything, or yield once more
        pass
