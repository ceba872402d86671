"""Which calls have run here: a call's key runs once, and what came of it is given again.

Holds in this process only, for the last so many calls; a `Ledger` holds for longer and for all.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

import msgspec

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


class _Known(msgspec.Struct):
    """One call: on its way until it has an outcome."""

    print: Print
    outcome: Completed | Failed | None = None


class CallMemory:
    """`claim`, then `keep` or `release`. One memory serves any number of threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[str, _Known] = {}
        self._finished: deque[str] = deque()

    def claim(self, key: str, print_: Print) -> None:
        """The key is this call's until it is released or kept.

        Raises EndedBefore for the same call, Stopped if it is on its way or the key is another call's.
        """
        if self.try_claim(key, print_):
            return
        known = self._known.get(key)
        if known is None or known.outcome is None or known.print != print_:
            raise Stopped(CallError.of(ErrorCode.DUPLICATE_CALL))
        raise EndedBefore(known.outcome)

    def try_claim(self, key: str, print_: Print) -> bool:
        """`claim`, if nothing is known of the key; else nothing is done."""
        mine = _Known(print_)
        return self._known.setdefault(key, mine) is mine  # one step: another thread may ask

    def on_their_way(self) -> list[str]:
        """The keys of calls that have no outcome yet."""
        return [key for key, known in self._known.copy().items() if known.outcome is None]

    def release(self, key: str) -> None:
        """The call did not begin after all."""
        del self._known[key]

    def keep(self, key: str, outcome: Completed | Failed) -> None:
        """The call has run, and this came of it."""
        self._known[key].outcome = outcome
        self._finished.append(key)
        if len(self._finished) > self._limit:  # each thread takes out one for the one it put in
            del self._known[self._finished.popleft()]
