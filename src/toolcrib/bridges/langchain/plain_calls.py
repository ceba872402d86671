"""Synchronous calls (`invoke`) of async code, which runs in an event loop in another thread.

Rule: the calls of one run are decided on in one loop, so that two of them cannot share a last
allowance. A loop that was closed after each call would have to wait for a tool that does not end. A
call that is made within another one uses the next loop, since the first one may wait for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
_DEPTH: ContextVar[int] = ContextVar("plain calls that this one is within", default=0)
_lock = threading.Lock()
_begun: list[tuple[asyncio.AbstractEventLoop, threading.Thread]] = []


def wait_for(made: Coroutine[Any, Any, T]) -> T:
    """Run an awaitable to its end, in the context of the caller. Raises what it raises."""
    depth = _DEPTH.get()
    token = _DEPTH.set(depth + 1)
    try:
        future: Future[T] = asyncio.run_coroutine_threadsafe(made, _loop(depth))
    finally:
        _DEPTH.reset(token)
    try:
        return future.result()
    except BaseException:  # such as Ctrl-C while it waits
        future.cancel()
        raise


def _loop(depth: int) -> asyncio.AbstractEventLoop:
    """Return the loop of this depth, which runs until the process ends. After a fork it is a new
    one."""
    with _lock:
        if _begun and not _begun[0][1].is_alive():
            _begun.clear()
        while len(_begun) <= depth:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(
                target=loop.run_forever, name="toolcrib plain calls", daemon=True
            )
            thread.start()
            _begun.append((loop, thread))
        return _begun[depth][0]
