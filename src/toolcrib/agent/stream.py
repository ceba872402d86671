"""A run as it happens: `RunStream` gives the events, and the result once.

The run goes on by itself, whether or not anybody reads; leaving `async with` cancels it.

Rule: an event shares nothing that can be changed with the run, its result or its session. Every event
passes one door, where each list, object and mutable value in it is copied. Only an instance of the
application's own class, which the typed `output` of a result may be, is not.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from copy import copy
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from toolcrib.errors import ToolcribError
from toolcrib.values.event import Done, Event, TextDelta
from toolcrib.values.run import RunResult
from toolcrib.values.typed import came

# A loop keeps only weak references to its tasks; a run that nobody holds goes on all the same.
_running: set[asyncio.Task[RunResult]] = set()


class RunStream:
    """Async iterable of events, ending with `Done`; async context manager; `await .result()`."""

    def __init__(
        self, drive: Callable[[Callable[[Event], None]], Coroutine[Any, Any, RunResult]]
    ) -> None:
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._result: RunResult | None = None
        self._over = False
        self._ended: Callable[[RunResult | None], None] | None = None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ToolcribError("a stream needs a running event loop; use run_sync(…)") from None
        self._task = loop.create_task(drive(self._emit))
        _running.add(self._task)
        self._task.add_done_callback(self._close)

    def when_ended(self, ended: Callable[[RunResult | None], None]) -> None:
        """`ended` is given the result before anybody reads of it, or None if there is none."""
        self._ended = ended

    async def result(self) -> RunResult:
        """Return how the run ended, a cancelled one too. Raises what the provider's failure was."""
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if self._task.cancelled() and self._result is not None:
                return self._result
            raise

    async def cancel(self) -> RunResult:
        """Cancel the run and return its result; whoever reads still gets what became of its calls.

        A run that has ended already stays as it is. Raises what `result` does.
        """
        await self._stop()
        return await self.result()

    async def text(self) -> AsyncIterator[str]:
        """Yield the text of the answers as it comes. Raises what the provider's failure was, at the end
        of what came before it."""
        async for event in self:
            if isinstance(event, TextDelta):
                yield event.text
        await self.result()

    def __aiter__(self) -> RunStream:
        return self

    async def __anext__(self) -> Event:
        event = None if self._over else await self._events.get()
        if event is None:
            self._over = True
            self._events.put_nowait(None)  # for whoever else reads
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        if not self._task.done():
            await asyncio.sleep(0)  # a run that has not begun could not say that it was cancelled
            self._task.cancel()
            await asyncio.wait([self._task])

    def _emit(self, event: Event) -> None:
        if isinstance(event, Done):
            self._result = event.result
            self._tell(event.result)
        with suppress(RuntimeError):  # the event loop is gone, and with it whoever read
            self._events.put_nowait(_independent(event))

    def _close(self, task: asyncio.Task[RunResult]) -> None:
        """Wake the readers; they got a failure as `RunError`, and `result` raises it."""
        _running.discard(task)
        if self._result is None:
            self._tell(None)
        if not task.cancelled():
            task.exception()
        self._events.put_nowait(None)

    def _tell(self, result: RunResult | None) -> None:
        if self._ended is not None:
            self._ended(result)


def _independent(value: Any) -> Any:
    """Return an equal value in which nothing can be changed for anybody else.

    What is frozen all through is returned as it is.
    """
    made = value
    if isinstance(value, dict):
        made = {key: _independent(item) for key, item in value.items()}
    elif isinstance(value, list):
        made = [_independent(item) for item in value]
    elif type(value) is tuple:
        items = tuple(map(_independent, value))
        shared = all(item is own for item, own in zip(value, items, strict=True))
        made = value if shared else items
    elif isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        copies = {name: _independent(item) for name, item in fields.items()}
        changed = {name: item for name, item in copies.items() if item is not fields[name]}
        if changed or not value.__struct_config__.frozen:
            made = copy(value)
            for name, item in changed.items():
                msgspec.structs.force_setattr(made, name, item)
    return made


# The one door from synchronous code: scripts and the REPL.

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
