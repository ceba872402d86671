"""Threads: which one does a piece of work, and what of it is left when it is over."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from contextvars import ContextVar

import pytest
from waiting import until

from toolcrib.threads import MOST_IDLE, CallThread, Work, in_thread

VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="unset")
NAME = "toolcrib-work"


class Thing:
    """Something that can be referred to weakly."""


async def test_one_thread_does_what_comes_one_after_the_other() -> None:
    assert len({await in_thread(threading.get_ident) for _ in range(50)}) == 1


async def test_what_comes_at_once_has_a_thread_each() -> None:
    together = threading.Barrier(40)

    def work() -> int:
        together.wait(10)
        return threading.get_ident()

    assert len(set(await asyncio.gather(*(in_thread(work) for _ in range(40))))) == 40


async def test_no_more_threads_are_kept_than_documented() -> None:
    most = MOST_IDLE + Work.left_behind  # by tools of other tests that hang
    await test_what_comes_at_once_has_a_thread_each()
    await until(lambda: [thread.name for thread in threading.enumerate()].count(NAME) <= most)


async def test_each_piece_of_work_has_a_copy_of_its_callers_context() -> None:
    VARIABLE.set("of the caller")

    def work() -> str:
        before = VARIABLE.get()
        VARIABLE.set("of the work")
        return before

    assert [await in_thread(work) for _ in range(2)] == ["of the caller"] * 2
    assert VARIABLE.get() == "of the caller"


@pytest.mark.parametrize("of_a_call", [False, True])
async def test_a_thread_that_is_left_behind_does_no_later_work(of_a_call: bool) -> None:
    before = Work.left_behind
    begun, goes_on = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def hangs() -> None:
        threads.append(threading.current_thread())
        begun.set()
        goes_on.wait(10)

    of_one = CallThread()
    task = asyncio.ensure_future(of_one.run(hangs) if of_a_call else in_thread(hangs))
    await until(begun.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    of_one.close()
    assert Work.left_behind == before + 1
    assert await in_thread(threading.current_thread) not in threads
    goes_on.set()
    await until(lambda: Work.left_behind == before)
    together = threading.Barrier(8)

    def work() -> threading.Thread:
        together.wait(10)
        return threading.current_thread()

    assert not {*threads} & set(await asyncio.gather(*(in_thread(work) for _ in range(8))))


async def test_a_thread_does_more_work_after_an_exception_and_holds_nothing_of_it() -> None:
    thing: Thing | None = Thing()
    seen = weakref.ref(thing)

    def fails(held: Thing | None = thing) -> None:
        raise ValueError(held)

    ident = await in_thread(threading.get_ident)
    with pytest.raises(ValueError, match="Thing"):
        await in_thread(fails)
    with pytest.raises(RuntimeError, match="StopIteration was raised in a thread"):
        await in_thread(lambda: next(iter(())))
    assert await in_thread(threading.get_ident) == ident
    del fails, thing
    gc.collect()
    assert seen() is None


async def test_a_call_has_one_thread_and_leaves_it_to_the_next() -> None:
    first = CallThread()
    ident = await first.run(threading.get_ident)
    VARIABLE.set("as it is now")
    assert await first.run(lambda: (threading.get_ident(), VARIABLE.get())) == (
        ident,
        "as it is now",
    )
    assert await in_thread(threading.get_ident) != ident
    first.close()
    assert await in_thread(threading.get_ident) == ident


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork a process")
def test_a_forked_child_starts_threads_of_its_own() -> None:
    asyncio.run(in_thread(threading.get_ident))
    child = os.fork()
    if child == 0:
        try:
            os._exit(asyncio.run(asyncio.wait_for(in_thread(lambda: 42), 10)))
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
