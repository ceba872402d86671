"""Plain calls wait for a loop in another thread, wherever they are made, and nobody waits forever
for a loop that does not run."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from contextvars import ContextVar
from pathlib import Path

import pytest
from children import ENVIRONMENT, run

from toolcrib.bridges import loops
from toolcrib.bridges.langchain.to_langchain import PLAIN_CALLS
from toolcrib.bridges.loops import LoopLost, run_in

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

LEFT = """
import asyncio, threading
from toolcrib.bridges.langchain.to_langchain import PLAIN_CALLS

async def leave(depth):
    if depth:
        PLAIN_CALLS.wait_for(leave(depth - 1))
    left.append(asyncio.create_task(wait(depth)))
    await asyncio.sleep(0)

async def wait(depth):
    try:
        await asyncio.Event().wait()
    finally:
        print("ended", depth, threading.current_thread().is_alive())

left = []
PLAIN_CALLS.wait_for(leave(1))
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


def test_the_loops_end_before_the_interpreter_does(tmp_path: Path) -> None:
    """A thread that would still import something then could block the whole end."""
    command = [sys.executable, "-c", LEFT]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["ended 0 True", "ended 1 True"]


async def test_work_for_a_blocked_loop_is_given_up_and_never_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "TO_BEGIN", 0.05)
    here, begun = asyncio.get_running_loop(), list[str]()

    async def work() -> None:
        begun.append("it")

    with pytest.raises(LoopLost) as caught:
        wait_for(run_in(here, work))  # blocks the loop that it needs
    assert not caught.value.begun
    await asyncio.sleep(0.01)
    assert begun == []
    await asyncio.to_thread(wait_for, run_in(here, work))
    assert begun == ["it"]


@pytest.mark.parametrize("how", ["cancelled", "stopped", "closed before"])
def test_work_of_a_loop_that_ends_is_told_apart_by_whether_it_began(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(loops, "TO_BEGIN", 0.05)
    loop = asyncio.new_event_loop()
    began = threading.Event()

    async def work() -> None:
        began.set()
        await asyncio.Event().wait()

    async def ends() -> None:
        await asyncio.to_thread(began.wait)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others if how == "cancelled" else ():
            task.cancel()

    def lives() -> None:
        loop.run_until_complete(ends())
        if how == "cancelled":
            loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()

    living = threading.Thread(target=lives)
    if how == "closed before":
        loop.close()
    else:
        living.start()
    with pytest.raises(LoopLost) as caught:
        wait_for(run_in(loop, work))
    assert caught.value.begun == (how != "closed before")
    if living.ident is not None:
        living.join()


async def test_work_in_another_loop_is_cancelled_with_who_waits_for_it() -> None:
    other = loops.LoopThreads("another").loop()
    began, ended = threading.Event(), threading.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    waiting = asyncio.create_task(run_in(other, work))
    await asyncio.to_thread(began.wait)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(ended.wait, 10)
