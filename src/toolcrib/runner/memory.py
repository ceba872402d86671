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
    """`check`, then `claim`, then `keep` or `release`; nothing is awaited between check and claim."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: dict[str, Print] = {}
        self._finished: OrderedDict[str, tuple[Print, Completed | Failed]] = OrderedDict()

    def check(self, key: str, print_: Print) -> None:
        """Raises EndedBefore for the same call, Stopped if it runs or if the key is another call's."""
        known = self._finished.get(key)
        if known is not None and known[0] == print_:
            raise EndedBefore(known[1])
        if known is not None or key in self._running:
            raise Stopped(CallError.of(ErrorCode.DUPLICATE_CALL))

    def claim(self, key: str, print_: Print) -> None:
        """The call begins."""
        self._running[key] = print_

    def release(self, key: str) -> None:
        """The call did not begin after all."""
        self._running.pop(key, None)

    def keep(self, key: str, outcome: Completed | Failed) -> None:
        """The call has run, and this came of it."""
        print_ = self._running.pop(key)
        if self._limit == 0:
            return
        if len(self._finished) >= self._limit:
            self._finished.popitem(last=False)  # a plain dict would look ever longer for its first
        self._finished[key] = print_, outcome
