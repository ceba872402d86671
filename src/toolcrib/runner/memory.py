"""Which calls have run here: a call's key runs once, and what came of it is given again.

Holds in this process only, for the last so many calls; a `Ledger` holds for longer and for all.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

from toolcrib.errors import ErrorCode
from toolcrib.runner.stopped import EndedBefore, Stopped
from toolcrib.values.call import Hydrated
from toolcrib.values.decision import Caller
from toolcrib.values.record import CallError, Completed, Failed

Print: TypeAlias = tuple[str, str, str]


def key_of(run_id: str, call_id: str) -> str:
    """The idempotency key; the loop's call ids hold the run's already."""
    return call_id if call_id.startswith(run_id) else f"{run_id}/{call_id}"


def print_of(hydrated: Hydrated, caller: Caller) -> Print:
    """What a second call under one key has to share with the first."""
    return hydrated.definition.digest, hydrated.call.arguments, caller.id


class CallMemory:
    """`claim`, then `keep` or `release`. One memory serves any number of threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: dict[str, Print] = {}
        self._finished: OrderedDict[str, tuple[Print, Completed | Failed]] = OrderedDict()

    def claim(self, key: str, print_: Print) -> None:
        """The key is this call's until it is released or kept.

        Raises EndedBefore for the same call, Stopped if it is on its way or the key is another call's.
        """
        if self.try_claim(key, print_):
            return
        known = self._finished.get(key)
        if known is None or known[0] != print_:
            raise Stopped(CallError.of(ErrorCode.DUPLICATE_CALL))
        raise EndedBefore(known[1])

    def try_claim(self, key: str, print_: Print) -> bool:
        """`claim`, if nothing is known of the key; else nothing is done."""
        if self._running.setdefault(key, print_) is not print_:  # one step: another thread may ask
            return False
        if key not in self._finished:
            return True
        del self._running[key]
        return False

    def release(self, key: str) -> None:
        """The call did not begin after all."""
        del self._running[key]

    def keep(self, key: str, outcome: Completed | Failed) -> None:
        """The call has run, and this came of it."""
        finished = self._finished
        finished[key] = self._running[key], outcome
        if len(finished) > self._limit:  # looked at last: each thread takes out what it put in
            finished.popitem(last=False)  # a plain dict would look ever longer for it
        del self._running[key]
