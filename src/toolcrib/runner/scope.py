"""What a run adds to each of its calls, and which call's tool is running here.

A tool's code may make calls itself: by a runner, or by an agent that is its tool. Rule: what such a
call reads, its caller has read, and the other way round. Untrusted content taints every run in whose
tools it was read, and what those begin after it. The call is known by the context in which its tool
runs (tasks, `asyncio.to_thread` and plain functions have it; a thread that a tool starts by other means
has not), so that nobody can forget to pass it on.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

import msgspec

from toolcrib.values.call import ToolCall
from toolcrib.values.context import Observer, RunTally
from toolcrib.values.decision import Answer, ApprovalRequest
from toolcrib.values.origin import Attachment, Choice, Origin


class CallScope(msgspec.Struct, frozen=True):
    """Holds what a run adds to its calls: a tally, a watcher, and approvers' answers given beforehand.

    `asked` are the requests of these answers, by id: a request lapses at its own time limit, and a call
    that has one does not run without an answer. `origin` is the turn that made the
    call, `choice` why its tools were on offer, and `attachments` the long texts that the two refer to.
    """

    tally: RunTally
    answers: Mapping[str, Answer] = {}
    asked: Mapping[str, ApprovalRequest] = {}
    observer: Observer | None = None
    origin: Origin | None = None
    choice: Choice | None = None
    attachments: tuple[Attachment, ...] = ()

    def was_asked(self, call: ToolCall) -> bool:
        """Return whether somebody was asked about this call, with whatever arguments."""
        run_id = self.tally.run_id
        return any(a.call_id == call.id and a.run_id == run_id for a in self.asked.values())


class Calling(msgspec.Struct, gc=False):
    """A call whose tool runs, until it has `left`, in a slot of `limiter` or of the call `outer`.

    `tally` is that of its run; `outer` is the call whose tool made it.
    """

    tally: RunTally
    call_id: str
    limiter: object
    outer: Calling | None
    left: bool = False


_CALLING: ContextVar[Calling | None] = ContextVar("toolcrib_calling", default=None)


def calling() -> Calling | None:
    """Return the call whose tool is running here, if one is."""
    return _CALLING.get()


def enter_call(tally: RunTally, call_id: str, limiter: object) -> Calling:
    """Mark the code that follows as a call's tool, until `leave_call`."""
    entered = Calling(tally, call_id, limiter, _CALLING.get())
    _CALLING.set(entered)
    return entered


def leave_call(entered: Calling) -> None:
    entered.left = True  # what its tool left running may still have it in its context
    if _CALLING.get() is entered:
        _CALLING.set(entered.outer)


def taint(tally: RunTally) -> None:
    """Mark a run as tainted, and every run in whose tools it was begun."""
    tally.tainted = True
    call = _CALLING.get()
    while call is not None:
        call.tally.tainted = True
        call = call.outer


def is_tainted_here() -> bool:
    """Return whether the run whose tool's code this is has read untrusted content."""
    call = _CALLING.get()
    return call is not None and call.tally.tainted
