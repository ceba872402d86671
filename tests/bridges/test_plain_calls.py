"""Plain calls wait for a loop in another thread, wherever they are made."""

from __future__ import annotations

import asyncio
import os
import threading
from contextvars import ContextVar
from pathlib import Path

import pytest
from children import run

from toolcrib.bridges.langchain.to_langchain import PLAIN_CALLS

wait_for = PLAIN_CALLS.wait_for
WHERE: ContextVar[str] = ContextVar("where", default="nowhere")
FORKED = """
import asyncio, os, sys
from toolcrib.bridges.langchain.to_langchain import PLAIN_CALLS

wait_for = PLAIN_CALLS.wait_for

async def say(word):
    return word

assert wait_for(say("before")) == "before"
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0 if wait_for(say("after")) == "after" else 1)
"""


async def test_it_runs_in_the_context_of_who_waits() -> None:
    async def where() -> tuple[str, threading.Thread]:
        await asyncio.sleep(0)
        return WHERE.get(), threading.current_thread()

    WHERE.set("here")
    here, thread = wait_for(where())  # blocks the loop of this test
    assert here == "here"
    assert await asyncio.to_thread(wait_for, where()) == ("here", thread)
    assert thread is not threading.current_thread()


def test_what_is_raised_is_raised() -> None:
    async def fail() -> None:
        raise KeyError("a")

    with pytest.raises(KeyError, match="a"):
        wait_for(fail())


@pytest.mark.parametrize("by_thread", [True, False])
def test_a_plain_call_within_a_plain_call_does_not_wait_for_itself(*, by_thread: bool) -> None:
    """Whether the inner one is made in a loop, or in a thread that a loop waits for."""
    threads: list[threading.Thread] = []

    async def again(depth: int) -> int:
        threads.append(threading.current_thread())
        if depth == 0:
            return 0
        if by_thread and depth % 2:
            return await asyncio.to_thread(wait_for, again(depth - 1))
        return wait_for(again(depth - 1))

    for _ in range(2):
        assert wait_for(again(4)) == 0
    assert len(set(threads)) == 5  # and they are used again


def test_calls_of_several_threads_share_one_loop() -> None:
    both = threading.Barrier(2)
    loops: list[asyncio.AbstractEventLoop] = []

    async def note() -> None:
        loops.append(asyncio.get_running_loop())

    def call() -> None:
        both.wait()
        wait_for(note())

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loops) == 2
    assert len(set(loops)) == 1


def test_after_a_fork_it_is_begun_anew(tmp_path: Path) -> None:
    source = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    assert run("-c", FORKED, cwd=tmp_path, env=os.environ | source).returncode == 0
