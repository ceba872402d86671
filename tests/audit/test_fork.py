"""A log that is open when its process forks stays its parent's: the child is told so."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from children import ENVIRONMENT, WARNED, run

from toolcrib.audit import AuditLog

FORK = """
import asyncio, os, sys
from audit.audit_helpers import record
from toolcrib.audit import AuditLog
from toolcrib.errors import SourceError

async def write(log, *numbers):
    await asyncio.gather(*(log.write(record(number)) for number in numbers))

def forked(log, *numbers):
    child = os.fork()
    if child:
        return child
    try:
        asyncio.run(write(log, *numbers))
        told = 0
    except SourceError as error:
        told = 1 if "forked" in str(error) else 2
    asyncio.run(log.aclose())
    os._exit(told)

log = AuditLog(sys.argv[1])
asyncio.run(write(log, 1))
child = forked(log, 2, 3)
asyncio.run(write(log, 4, 5))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
asyncio.run(write(log, 6))
asyncio.run(log.aclose())
child = forked(log, 7)
asyncio.run(write(log, 8))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
asyncio.run(log.aclose())
"""


# A child opens the file anew, by itself; then its parent closes what it has open, and it does again.
ANEW = """
import asyncio, os, sys
from audit.audit_helpers import record
from toolcrib.approvals import ApprovalStore
from toolcrib.audit import AuditLog
from toolcrib.errors import SourceError
from toolcrib.spending import SpendStore

url, opens = sys.argv[1:]

def own():
    return {"log": AuditLog, "approvals": ApprovalStore, "spending": SpendStore}[opens](url)

async def use(which):
    match which:
        case AuditLog():
            await which.begin(record(os.getpid(), "started"))
        case ApprovalStore():
            await which.pending()
        case _:
            await which.paid("ada")

async def write(log):
    await log.write(record(os.getpid()))

def child(generations):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if generations > 1:
        os._exit(child(generations - 1))
    try:
        asyncio.run(write(AuditLog(url)))
        told = 0
    except SourceError as error:
        told = 1 if "forked" in str(error) else 2
    os._exit(told)

parents = own()
assert child(1) == 0
asyncio.run(use(parents))
assert (child(1), child(2)) == (1, 1)
asyncio.run(parents.aclose())
assert (child(1), child(2)) == (0, 0)
"""


@pytest.mark.parametrize("opens", ["log", "approvals", "spending"])
def test_a_child_opens_no_file_that_its_parent_has_open(tmp_path: Path, opens: str) -> None:
    url = f"sqlite:///{tmp_path}/crib.db"
    done = run("-c", ANEW, url, opens, env=WARNED)
    assert (done.returncode, done.stderr) == (0, "")


# Every lock that the log or its database makes is held by another thread while the process forks; the
# child must come to an end: to an answer where the log was not open, to a clear error where it was.
# A new Python, as a daemon may have no children; one for all cases, each of which has a log.
HELD = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")  # Python 3.12 warns of forks where there are threads

made = []

def noting(make):
    def made_by(*arguments):
        lock = make(*arguments)
        module = sys._getframe(1).f_globals.get("__name__", "")
        if module.startswith(("toolcrib.audit", "toolcrib.storage")):
            made.append(lock)
        return lock
    return made_by

threading.Lock, threading.RLock = noting(threading.Lock), noting(threading.RLock)
threading.Condition = noting(threading.Condition)

import asyncio
import multiprocessing
from audit.audit_helpers import record
from audit.test_checkpoint import signing
from toolcrib.audit import AuditLog, Checkpoints
from toolcrib.errors import SourceError

shared = list(made)  # by the modules, and not by a log

def hold(ready, over):
    for lock in made:
        lock.acquire()
    ready.set()
    over.wait()
    for lock in reversed(made):
        lock.release()

def ended_by(url, state, way):
    noted = []
    made[:] = shared
    log = AuditLog(url, checkpoints=Checkpoints(signing(), noted.append, every=1))

    async def use(number):
        await log.begin(record(number, "started"))
        await log.write(record(number))
        await log.aclose()

    async def first():
        await log.write(record(1))

    def child():
        noted.clear()
        try:
            asyncio.run(use(2))
        except SourceError as error:
            told = 3 if "forked" in str(error) else 4
        else:
            told = 0 if noted else 5
        os._exit(told)

    if state == "opened":
        asyncio.run(first())
    assert len(made) >= 4, made
    ready, over = threading.Event(), threading.Event()
    thread = threading.Thread(target=hold, args=(ready, over))
    thread.start()
    ready.wait()
    if way == "fork":
        pid = os.fork()
        if not pid:
            child()
        until = time.monotonic() + 30
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > until:
                os.kill(pid, 9)
            time.sleep(0.01)
        code = os.waitstatus_to_exitcode(ended[1])
    else:
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(30)
        process.kill()
        process.join()
        code = process.exitcode
    over.set()
    thread.join()
    asyncio.run(use(4))
    assert noted
    return code

print(*(ended_by(*case.split()) for case in sys.argv[1:]))
"""


@pytest.mark.exhaustive  # eight programs
async def test_no_lock_of_the_parents_stops_the_child(
    tmp_path: Path, postgres: Callable[[], str]
) -> None:
    cases = [
        (kind, state, way)
        for kind in ("sqlite", "postgresql")
        for state in ("opened", "closed")
        for way in ("fork", "multiprocessing")
    ]
    urls = [
        postgres() if kind == "postgresql" else f"sqlite:///{tmp_path}/{state}-{way}.db"
        for kind, state, way in cases
    ]
    given = [f"{url} {state} {way}" for url, (_, state, way) in zip(urls, cases, strict=True)]
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", HELD, *given],
        env=ENVIRONMENT,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    codes = dict(zip(cases, map(int, done.stdout.split()), strict=True))
    assert codes == {case: 3 if case[1] == "opened" else 0 for case in cases}
    for url, case in zip(urls, cases, strict=True):
        async with AuditLog(url) as log:
            assert (await log.verify()).ok
            written = {entry.record.id for entry in await log.entries()}
        left = {"call_1", "call_4"} if case[1] == "opened" else {"call_2", "call_4"}
        assert written == left, case


# What was queued when the process forked is committed by the parent, and by nobody else. The parent's
# thread has it, and has not opened the database: within SQLite, a child has the locks that a thread of
# its parent held, and what that thread had open it finds locked for good.
QUEUED = """
import asyncio, os, sys, threading, warnings
warnings.simplefilter("ignore")
from audit.audit_helpers import record
from toolcrib.audit import AuditLog

PARENT, forked = os.getpid(), threading.Event()

class Held(AuditLog):
    def _commit(self, items):
        if os.getpid() == PARENT:
            assert forked.wait(30)
        return super()._commit(items)

log = Held(sys.argv[1])

async def main():
    queued = [asyncio.ensure_future(log.write(record(number))) for number in range(20)]
    await asyncio.sleep(0)
    child = os.fork()
    if not child:
        os._exit(0 if await_in_child() else 1)
    forked.set()
    await asyncio.gather(*queued)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    await log.aclose()

def await_in_child():
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(1) as other:
        return other.submit(asyncio.run, write()).result(timeout=30)

async def write():
    for number, own in ((98, log), (99, AuditLog(sys.argv[1]))):
        await own.write(record(number))
        await own.aclose()
    return True

asyncio.run(main())
"""


async def test_what_was_queued_is_the_parents_to_commit(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/crib.db"
    done = await asyncio.to_thread(run, "-c", QUEUED, url)
    assert (done.returncode, done.stderr) == (0, "")
    async with AuditLog(url) as log:
        assert (await log.verify()).ok
        ids = [entry.record.id for entry in await log.entries()]
    assert sorted(ids) == sorted(f"call_{number}" for number in (*range(20), 98, 99))


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
async def test_open_it_is_refused_and_closed_it_is_opened_on_both_sides(url: str) -> None:
    done = await asyncio.to_thread(run, "-c", FORK, url, env=WARNED)
    assert (done.returncode, done.stderr) == (0, "")
    async with AuditLog(url) as log:
        assert (await log.verify()).ok
        ids = [entry.record.id for entry in await log.entries()]
    assert sorted(ids) == [f"call_{number}" for number in (1, 4, 5, 6, 7, 8)]
