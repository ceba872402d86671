"""Which calls run: how many at the same time, and which call's tool is running here.

Slots: calls up to a limit run together, an exclusive call runs alone. They are served in order: a
waiting exclusive call is not overtaken. Without contention nothing waits. One limiter serves any
number of event loops, in any threads. A tool may make calls itself, and waits for them while it has
its own slot. Such a call never waits for a slot, because it might wait for the very tool that waits
for it. A tool that waits for a person lends its slot to others (`slots_lent`), unless it runs
alone, so that other calls run however many people have not answered. Once answered it resumes at
once, beyond the limit if need be, so that no two calls wait for each other. An exclusive call waits
until no slot is lent, and may be overtaken in that time.

Taint: a tool's code makes calls through a runner, or through an agent that is its tool. Rule: what
such a call reads, its caller has read, and the other way round. Untrusted content taints every run
within whose tools it was read, and whatever those runs begin after it. The call is known from the
context in which its tool runs, so nobody can forget to pass it on. Tasks, `asyncio.to_thread` and
plain functions have that context; a thread that a tool starts by other means does not.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Protocol

import msgspec

from toolcrib.errors import ErrorCode
from toolcrib.runner.stopped import Stopped
from toolcrib.threads import CALLING as CALLING_HERE
from toolcrib.threads import LeftWork
from toolcrib.values.context import RunTally
from toolcrib.values.record import READ_UNTRUSTED, CallError, SpentWithin


class CallNotes(Protocol):
    """What is noted about a call while its tool runs.

    That is whether untrusted content was read in it, and what an agent has spent in it.
    """

    notes: tuple[str, ...]
    spent: SpentWithin | None


class Calling(msgspec.Struct, gc=False):
    """A call whose tool runs, until it has `left`.

    It has a `slot` of `limiter`, or has `lent` it, or else it runs in the slot of the call `outer`.

    `tally` belongs to its run; `outer` is the call whose tool made it; `facts` are for its record.
    `executor` returns its runner's executor while that lives: a run may bind other implementations
    than the runner that a tool holds. `works` is the work that continues although the call does not
    wait for it. `agent` is the agent whose run the call is, while that run lasts.
    """

    tally: RunTally
    call_id: str
    limiter: Limiter
    outer: Calling | None
    slot: bool
    executor: Callable[[], Any] = type(None)
    facts: CallNotes | None = None
    works: LeftWork = msgspec.field(default_factory=LeftWork)
    left: bool = False
    agent: object = None
    lent: bool = False
    asking: int = 0  # the number of open questions that its tool waits for


CALLING: ContextVar[Calling | None] = CALLING_HERE
"""The call whose tool is running here, if there is one."""


def leave_call(ended: Calling) -> None:
    """Note that a call is over, or left behind.

    Afterwards a call within it may be the one that runs here. Work that it has left behind also
    counts as left behind by the call whose tool made it.
    """
    ended.left = True  # work that its tool left running may still have it in its context
    if ended.works and ended.outer is not None:
        ended.outer.works.extend(ended.works)
    call = CALLING.get()
    while call is not None and call is not ended:
        call = call.outer
    if call is ended:
        CALLING.set(ended.outer)


@contextmanager
def slots_lent() -> Iterator[None]:
    """Lend out the slots of the call running here and its outer calls while a person is asked."""
    calls, call = list[Calling](), CALLING.get()
    while call is not None:
        call.limiter.lend(call)
        calls.append(call)
        call = call.outer
    try:
        yield
    finally:
        for call in calls:
            call.limiter.take_back(call)


def is_running(agent: object, call: Calling | None) -> bool:
    """Return whether this call, or one that it is in, is the agent's run."""
    while call is not None and call.agent is not agent:
        call = call.outer
    return call is not None


def taint(tally: RunTally) -> None:
    """Mark a run as tainted, and every run within whose tools it was begun."""
    tally.tainted = True
    call = CALLING.get()
    while call is not None:
        call.tally.tainted = True
        if call.facts is not None and READ_UNTRUSTED not in call.facts.notes:
            call.facts.notes += (READ_UNTRUSTED,)
        call = call.outer


def is_tainted_here() -> bool:
    """Return whether any run within whose tools this code runs has read untrusted content."""
    call = CALLING.get()
    while call is not None and not call.tally.tainted:
        call = call.outer
    return call is not None


_Ticket = tuple[bool, asyncio.Future[None]]


class Limiter:
    """Hands out slots: `leave` releases what `try_enter` or `await enter` took."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running = 0
        self._lent = 0
        self._exclusive = False
        self._queue: deque[_Ticket] = deque()
        self._lock = threading.Lock()

    def try_enter(self, exclusive: bool) -> bool:
        """Take a slot; return False if the call has to wait for one."""
        together = 1 if exclusive else self._limit
        self._lock.acquire()  # `with` takes twice as long
        try:
            if (
                self._queue
                or self._exclusive
                or self._running + (exclusive and self._lent) >= together
            ):
                return False
            self._running += 1
            self._exclusive = exclusive
        finally:
            self._lock.release()
        return True

    async def enter(self, exclusive: bool) -> bool:
        """Wait for a slot, in turn; return False for a call by a tool that has one and shares it.

        Raises Stopped for an exclusive call by such a tool.
        """
        if self._is_within_slot():
            if exclusive:
                message = "The tool runs alone, so another tool cannot call it."
                raise Stopped(CallError.of(ErrorCode.NOT_RUNNABLE, message))
            return False
        ticket: _Ticket = (exclusive, asyncio.get_running_loop().create_future())
        with self._lock:
            self._queue.append(ticket)
            self._wake()
        try:
            await ticket[1]
        except BaseException:
            self._give_back(ticket)
            raise
        return True

    def lend(self, call: Calling) -> None:
        """Lend out the slot of a call that waits for a person.

        An exclusive call's slot is lent, too, but nothing runs next to it.
        """
        with self._lock:
            call.asking += 1
            if call.slot and not (call.left or call.lent):
                call.lent = True
                self._running -= 1
                self._lent += 1
                self._wake()

    def take_back(self, call: Calling) -> None:
        """Take the slot back once its tool waits for no more open questions."""
        with self._lock:
            call.asking -= 1
            if call.lent and not call.asking:
                call.lent = False
                self._lent -= 1
                self._running += 1

    def leave(self, call: Calling | None = None) -> None:
        """Release a slot: the slot of this call, which may be lent."""
        self._lock.acquire()
        try:
            if call is not None and call.lent:
                call.lent = False
                self._lent -= 1
            else:
                self._running -= 1
            self._exclusive = False  # this call ran alone, or none does
            if self._queue:
                self._wake()
        finally:
            self._lock.release()

    def _is_within_slot(self) -> bool:
        call = CALLING.get()
        while call is not None and (call.limiter is not self or call.left):
            call = call.outer
        return call is not None

    def _fits(self, exclusive: bool) -> bool:
        if exclusive:
            return not (self._running or self._lent)
        return self._running < self._limit and not self._exclusive

    def _give_back(self, ticket: _Ticket) -> None:
        """Remove a call that stopped waiting from the queue, or release its new slot."""
        with self._lock:
            try:
                self._queue.remove(ticket)
            except ValueError:
                self._running -= 1
                self._exclusive = False
            self._wake()

    def _wake(self) -> None:
        """Admit waiting calls, each in its own event loop; calls whose loop is closed are skipped.

        An exclusive call keeps others waiting, but not while it waits for a lent slot.
        """
        waiting = deque[_Ticket]()
        while self._queue:
            exclusive, ticket = self._queue[0]
            fits = self._fits(exclusive)
            if not (fits or (exclusive and self._lent)):
                break
            self._queue.popleft()
            if not fits:
                waiting.append((exclusive, ticket))
                continue
            with suppress(RuntimeError):
                _wake_in_its_loop(ticket)
                self._running += 1
                self._exclusive = exclusive
        self._queue.extendleft(reversed(waiting))


def _wake_in_its_loop(ticket: asyncio.Future[None]) -> None:
    """Wake the ticket in its loop, without the system call if that loop is running here.

    Raises RuntimeError if the loop is closed.
    """
    loop, running_loop = ticket.get_loop(), None
    with suppress(RuntimeError):  # raised if no loop is running
        running_loop = asyncio.get_running_loop()
    if running_loop is loop:
        _wake_ticket(ticket)
    else:
        loop.call_soon_threadsafe(_wake_ticket, ticket)


def _wake_ticket(ticket: asyncio.Future[None]) -> None:
    if not ticket.done():
        ticket.set_result(None)
