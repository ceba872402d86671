"""One thread commits whatever has been queued meanwhile, so that many records share one wait.

Nobody is told that a record is written before the transaction that holds it is committed. The thread
begins with the first record and ends by itself when there is nothing to do for a while.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from toolcrib.errors import SourceError, ToolcribError
from toolcrib.threads import renewed_in_children

S = TypeVar("S")
T = TypeVar("T")
_IDLE = 5.0  # seconds
_MOST = 500  # in one transaction


class GroupWriter(Generic[S, T]):
    """`commit` is given what was queued, in order, and gives an answer, or an error, for each."""

    def __init__(
        self,
        commit: Callable[[Sequence[S]], Sequence[T | ToolcribError]],
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._commit = commit
        self._idle = idle  # when nothing was to be done for a while
        self.renew()
        renewed_in_children(self)

    def renew(self) -> None:
        """In a forked child another thread's lock would be held for good, and what is queued is the
        parent's to commit."""
        self._changed = threading.Condition()
        self._queue: list[tuple[S, asyncio.Future[T]]] = []
        self._thread: threading.Thread | None = None
        self._closing = False

    def submit(self, item: S) -> asyncio.Future[T]:
        """Queue from an event loop, any; the future is done once the item is committed."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._changed:
            if self._thread is None or not self._thread.is_alive():
                self._closing = False
                thread = threading.Thread(target=self._serve, name="toolcrib-audit", daemon=True)
                thread.start()
                self._thread = thread
            self._queue.append((item, future))
            self._changed.notify()
        return future

    async def aclose(self) -> None:
        """Wait until all that was queued is committed, and the thread has ended."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            await asyncio.to_thread(thread.join)

    def _serve(self) -> None:
        while batch := self._take():
            _settle(batch, self._answers([item for item, _ in batch]))
        self._idle()

    def _take(self) -> list[tuple[S, asyncio.Future[T]]]:
        with self._changed:
            if not self._queue and not self._closing:
                self._changed.wait(_IDLE)
            batch, self._queue = self._queue[:_MOST], self._queue[_MOST:]
            if not batch:
                self._thread = None
            return batch

    def _answers(self, items: Sequence[S]) -> Sequence[T | ToolcribError]:
        try:
            return self._commit(items)
        except ToolcribError as error:
            return [error] * len(items)
        except BaseException as error:  # noqa: BLE001  somebody waits for each answer
            return [SourceError(f"the audit log failed ({type(error).__name__})")] * len(items)


def _settle(
    batch: Sequence[tuple[object, asyncio.Future[T]]], answers: Sequence[T | ToolcribError]
) -> None:
    """Answer each loop in one go."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[T], T | ToolcribError]]] = {}
    for (_, future), answer in zip(batch, answers, strict=True):
        loops.setdefault(future.get_loop(), []).append((future, answer))
    for loop, settled in loops.items():
        with suppress(RuntimeError):  # the loop has closed: nobody waits there any more
            loop.call_soon_threadsafe(_tell, settled)


def _of_its_own(error: ToolcribError) -> ToolcribError:
    """The same error for one who waits: of one object all would share a traceback.

    It is made without its class's `__init__`, whose parameters differ: `copy.copy` would fail for
    some, and nobody would be told.
    """
    kind = type(error)
    own = kind.__new__(kind, *error.args)
    vars(own).update(vars(error))
    return own


def _tell(settled: Sequence[tuple[asyncio.Future[T], T | ToolcribError]]) -> None:
    for future, answer in settled:
        if future.done():
            continue  # cancelled: it is written all the same
        if isinstance(answer, ToolcribError):
            future.set_exception(_of_its_own(answer))
        else:
            future.set_result(answer)
