"""Which calls have run here: a call's key runs once, and what came of it is given again.

Holds in this process only, for the last so many calls; a `Ledger` holds for longer and for all. Where
there is one, an outcome is given again only when the ledger has it. What is kept is nobody else's:
whatever the one who was told an outcome does to its views, it is given again as it was.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TypeAlias

import msgspec

from toolcrib.errors import ErrorCode
from toolcrib.runner.recorder import own_outcome
from toolcrib.runner.stopped import EndedBefore, Stopped
from toolcrib.values.call import Hydrated, ToolCall
from toolcrib.values.decision import Caller
from toolcrib.values.json import JsonValue
from toolcrib.values.record import CallError, Completed, Failed, key_of

Print: TypeAlias = tuple[str, str, bytes | None, str]


def print_of(hydrated: Hydrated, caller: Caller) -> Print:
    """What a second call under one key has to share with the first.

    The text that was sent decides, and where more was made of it (it was repaired, or put back into
    the author's terms) what was made: the values of default factories differ from run to run.
    """
    told = hydrated.provenance
    plain = told.repaired_arguments is None and "restored" not in told.notes
    made = None if plain or hydrated.building.pinned else hydrated.canonical
    return hydrated.definition.digest, hydrated.call.arguments, made, caller.id


class _Known(msgspec.Struct):
    """One call: on its way, until it is kept or held; a held one is `taken` while it is written."""

    print: Print
    outcome: Completed | Failed | None = None
    held: bool = False
    taken: bool = True


class CallMemory:
    """`claim`, then `keep`, `hold` or `release`. One memory serves any number of threads.

    | a call is …          | a claim …                   | then it may be            |
    |----------------------|-----------------------------|---------------------------|
    | not known            | is given: it may run        | kept, held or released    |
    | on its way           | is a `duplicate_call`       |                           |
    | kept                 | has its outcome             |                           |
    | held: it ran, and no | is given with the outcome:  | kept or held              |
    | ledger has it yet    | write it, and do not run it |                           |
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[str, _Known] = {}
        self._finished: deque[str] = deque()
        self._lock = threading.Lock()
        self._pinned: dict[str, tuple[ToolCall, dict[str, JsonValue]]] = {}

    def pin(self, key: str, call: ToolCall, pinned: dict[str, JsonValue]) -> None:
        """What default factories made of a call that waits: they run once a call."""
        if not pinned:
            return
        self._pinned[key] = call, pinned
        with self._lock:
            while len(self._pinned) > self._limit:
                del self._pinned[next(iter(self._pinned))]

    def pinned(self, run_id: str, call: ToolCall) -> dict[str, JsonValue]:
        """What was pinned of this very call, if it waited here before."""
        if not self._pinned:
            return {}
        known, pinned = self._pinned.get(key_of(run_id, call.id), (None, {}))
        same = known is not None and (known.name, known.arguments) == (call.name, call.arguments)
        return pinned if same else {}

    def claim(self, key: str, print_: Print) -> Completed | Failed | None:
        """The key is this call's until it is released, kept or held; the outcome, if one is held.

        Raises EndedBefore for the same call, Stopped if it is on its way or the key is another call's.
        """
        mine = _Known(print_)
        known = self._known.setdefault(key, mine)  # one step: another thread may ask
        if known is mine:
            return None
        with self._lock:
            held = known.held and not known.taken
            if known.outcome is None or known.print != print_ or (known.held and known.taken):
                raise Stopped(CallError.of(ErrorCode.DUPLICATE_CALL))
            known.taken = held
        if not held:
            raise EndedBefore(own_outcome(known.outcome))
        return own_outcome(known.outcome)

    def on_their_way(self) -> list[str]:
        """The keys of calls that have no outcome yet."""
        return [key for key, known in self._known.copy().items() if known.taken]

    def release(self, key: str) -> None:
        """The call did not begin after all."""
        del self._known[key]

    def hold(self, key: str, outcome: Completed | Failed) -> None:
        """The call has run, and its ledger does not have this outcome of it; it is not forgotten."""
        known = self._known[key]
        known.outcome, known.held, known.taken = own_outcome(outcome), True, False

    def keep(self, key: str, outcome: Completed | Failed) -> None:
        """The call has run, and this came of it."""
        known = self._known[key]
        known.outcome, known.held, known.taken = own_outcome(outcome), False, False
        self._finished.append(key)
        if len(self._finished) > self._limit:  # each thread takes out one for the one it put in
            del self._known[self._finished.popleft()]
