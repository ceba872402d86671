"""Which calls run: how many at the same time, and which one's tool is running here.

Up to a limit run together, an exclusive call alone. First come, first served: a waiting exclusive call
is not overtaken. Without contention nothing waits. One limiter serves any number of event loops, in any
threads. A tool may make calls itself, and waits for them while it has its own slot: such a call never
waits for a slot, or it might wait for the very tool that waits for it. A tool that waits for a person
lends its slot to others (`slots_lent`), unless it runs alone: however many have not answered, other
calls run. With an answer it goes on at once, beyond the limit if need be, so that none waits for
another; an exclusive call waits until no slot is lent, and is overtaken meanwhile.

A tool's code makes calls by a runner, or by an agent that is its tool. Rule: what such a call reads,
its caller has read, and the other way round. Untrusted content taints every run in whose tools it was
read, and what those begin after it. The call is known by the context in which its tool runs (tasks,
`asyncio.to_thread` and plain functions have it; a thread that a tool starts by other means has not),
so that nobody can forget to pass it on.
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


class Noted(Protocol):
    """What is known of a call, as far as it is noted while its tool runs: that untrusted content was
    read in it, and what an agent has spent in it."""

    notes: tuple[str, ...]
    spent: SpentWithin | None


class Calling(msgspec.Struct, gc=False):
    """A call whose tool runs, until it has `left`: in a `slot` of `limiter` that it has, or has `lent`,
    or else in that of the call `outer`.

    `tally` is that of its run; `outer` is the call whose tool made it; `facts` are for its record.
    `executor` is that of its runner, while that lives: a run may bind other implementations than the
    runner that a tool holds. `works` is what goes on though the call does not wait for it. `agent` is
    the one whose run the call is, while that runs.
    """

    tally: RunTally
    call_id: str
    limiter: Limiter
    outer: Calling | None
    slot: bool
    executor: Callable[[], Any] = type(None)
    facts: Noted | None = None
    works: LeftWork = msgspec.field(default_factory=LeftWork)
    left: bool = False
    agent: object = None
    lent: bool = False
    asking: int = 0  # how many questions are open that its tool waits for


CALLING: ContextVar[Calling | None] = CALLING_HERE
"""The call whose tool is running here, if one is."""


def leave_call(entered: Calling) -> None:
    """Note that a call is over, or left behind: then a call within it may be the one that runs here.
    What it has left behind, the call whose tool made it has, too."""
    entered.left = True  # what its tool left running may still have it in its context
    if entered.works and entered.outer is not None:
        entered.outer.works.extend(entered.works)
    call = CALLING.get()
    while call is not None and call is not entered:
        call = call.outer
    if call is entered:
        CALLING.set(entered.outer)


@contextmanager
def slots_lent() -> Iterator[None]:
    """Let others have the slots of the call that is running here, and of those that it is made within,
    while a person is asked."""
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
    """Return whether the run of an agent is this call, or one that it is in."""
    while call is not None and call.agent is not agent:
        call = call.outer
    return call is not None


def taint(tally: RunTally) -> None:
    """Mark a run as tainted, and every run in whose tools it was begun."""
    tally.tainted = True
    call = CALLING.get()
    while call is not None:
        call.tally.tainted = True
        if call.facts is not None and READ_UNTRUSTED not in call.facts.notes:
            call.facts.notes += (READ_UNTRUSTED,)
        call = call.outer


def is_tainted_here() -> bool:
    """Return whether a run in whose tools this is, near or far, has read untrusted content."""
    call = CALLING.get()
    while call is not None and not call.tally.tainted:
        call = call.outer
    return call is not None


_Ticket = tuple[bool, asyncio.Future[None]]


class Limiter:
    """Hands out slots: `leave` follows what `try_enter(exclusive) or await enter(exclusive)` took."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running = 0
        self._lent = 0
        self._alone = False
        self._queue: deque[_Ticket] = deque()
        self._lock = threading.Lock()

    def try_enter(self, exclusive: bool) -> bool:
        """Take a slot; False if the call has to wait for one."""
        together = 1 if exclusive else self._limit
        self._lock.acquire()  # `with` takes twice as long
        try:
            if self._queue or self._alone or self._running + (exclusive and self._lent) >= together:
                return False
            self._running += 1
            self._alone = exclusive
        finally:
            self._lock.release()
        return True

    async def enter(self, exclusive: bool) -> bool:
        """Wait for a slot, in turn; False for a call by a tool that has one: it runs within that.

        Raises Stopped for an exclusive call by such a tool.
        """
        if self._is_within():
            if exclusive:
                text = "The tool runs alone, and so cannot be called by another tool."
                raise Stopped(CallError.of(ErrorCode.NOT_RUNNABLE, text))
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
        """Let others have the slot of a call that waits for a person; none of them runs beside one that
        runs alone."""
        with self._lock:
            call.asking += 1
            if call.slot and not (call.left or call.lent):
                call.lent = True
                self._running -= 1
                self._lent += 1
                self._wake()

    def take_back(self, call: Calling) -> None:
        """Have the slot again, once no question is open that its tool waits for."""
        with self._lock:
            call.asking -= 1
            if call.lent and not call.asking:
                call.lent = False
                self._lent -= 1
                self._running += 1

    def leave(self, call: Calling | None = None) -> None:
        """Give a slot back: that of a call, which may be lent."""
        self._lock.acquire()
        try:
            if call is not None and call.lent:
                call.lent = False
                self._lent -= 1
            else:
                self._running -= 1
            self._alone = False  # it was alone, or nobody is
            if self._queue:
                self._wake()
        finally:
            self._lock.release()

    def _is_within(self) -> bool:
        """Return whether a tool that has a slot here makes the call, perhaps through another's tool."""
        call = CALLING.get()
        while call is not None and (call.limiter is not self or call.left):
            call = call.outer
        return call is not None

    def _fits(self, exclusive: bool) -> bool:
        if exclusive:
            return not (self._running or self._lent)
        return self._running < self._limit and not self._alone

    def _give_back(self, ticket: _Ticket) -> None:
        """Take a call that no longer waits from the queue, or free the slot that it was just given."""
        with self._lock:
            try:
                self._queue.remove(ticket)
            except ValueError:
                self._running -= 1
                self._alone = False
            self._wake()

    def _wake(self) -> None:
        """Admit waiting calls, each in its own event loop; a call whose loop is closed is skipped. One
        that is to run alone keeps others waiting, but not while it waits for a slot that is lent."""
        waits = deque[_Ticket]()
        while self._queue:
            exclusive, ticket = self._queue[0]
            fits = self._fits(exclusive)
            if not (fits or (exclusive and self._lent)):
                break
            self._queue.popleft()
            if not fits:
                waits.append((exclusive, ticket))
                continue
            with suppress(RuntimeError):
                _tell_in_its_loop(ticket)
                self._running += 1
                self._alone = exclusive
        self._queue.extendleft(reversed(waits))


def _tell_in_its_loop(ticket: asyncio.Future[None]) -> None:
    """Waking another loop is a system call, which calls of one loop need not make for one another.

    Raises RuntimeError if the loop is closed.
    """
    loop, here = ticket.get_loop(), None
    with suppress(RuntimeError):  # called where none is running
        here = asyncio.get_running_loop()
    if here is loop:
        _tell(ticket)
    else:
        loop.call_soon_threadsafe(_tell, ticket)


def _tell(ticket: asyncio.Future[None]) -> None:
    if not ticket.done():
        ticket.set_result(None)
