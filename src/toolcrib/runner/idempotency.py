"""A call runs once under its idempotency key: the cache of this process, and the ledger's entries.

The cache holds for the last calls of this process; a `Ledger` holds for longer and for all. Where there
is one, an outcome is given again only when the ledger has it. What is cached is nobody else's: whatever
the one who was told an outcome does to its views, it is given again as it was.

Before a tool runs, an entry of status `started` is written to whoever asks for one, and a ledger says
whether the tool may begin at all. A call that a ledger knows to have ended gives what is in its record.
One that began and never ended, in a process that is gone or in another one, has done nobody knows what:
it runs again only if its tool is marked as idempotent.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias, cast

import msgspec

from toolcrib.errors import ErrorCode, ToolcribError
from toolcrib.runner.recorder import Draft, Recorder, own_outcome, own_record, to_the_end
from toolcrib.runner.stopped import EndedBefore, Stopped
from toolcrib.values.call import Hydrated, ToolCall
from toolcrib.values.decision import Caller
from toolcrib.values.json import JsonValue, canonical_json
from toolcrib.values.record import (
    CallError,
    Completed,
    Failed,
    Ledger,
    Sink,
    ToolInvocationRecord,
    is_final,
    key_of,
)

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


class Intents:
    """The sinks that are told before a call, and the ledger among them, if there is one.

    A record has the call's key if its entry is about what became of it: this attempt has claimed the
    key, or could not know how the one that did has ended.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        ledgers = [sink for sink in sinks if isinstance(sink, Ledger)]
        if len(ledgers) > 1:
            raise ToolcribError("a call is begun in one ledger: give a runner at most one")
        self.ledger = ledgers[0] if ledgers else None
        self._told = [s for s in sinks if getattr(s, "intents", False) and s is not self.ledger]
        self.wanted = bool(ledgers or self._told)

    async def check(self, key: str, draft: Draft, hydrated: Hydrated) -> None:
        """Raises what `begin` does, before somebody is asked about a call that will not run."""
        if self.ledger is not None:
            _judge(await self.ledger.find(draft.intent(key)), key, draft, hydrated)

    async def begin(self, key: str, draft: Draft, hydrated: Hydrated, recorder: Recorder) -> None:
        """Write the intent. Raises EndedBefore, and Stopped if the call must not run."""
        intent = draft.intent(key)
        if self.ledger is not None:
            (await recorder.attach(self.ledger, draft)).check()
            await _claim(self.ledger, intent, draft, hydrated)
        draft.key = key
        for sink in self._told:
            (await recorder.write(sink, intent, draft)).check()


async def _claim(
    ledger: Ledger, intent: ToolInvocationRecord, draft: Draft, hydrated: Hydrated
) -> None:
    begun = await to_the_end(ledger.begin(own_record(intent)))
    known = cast("ToolInvocationRecord | None", begun.given)
    if begun.error is None and known is None:
        draft.key = intent.idempotency_key  # it is ours, also if this is cancelled now
    begun.check()
    if known is not None:
        _judge(known, intent.idempotency_key, draft, hydrated)
        pending = ledger.write(own_record(intent))  # begun before, and begun again
        if pending is not None:
            (await to_the_end(pending)).check()


def replayed(known: ToolInvocationRecord) -> Completed | Failed:
    """The outcome of a call as its record has it: that is the public view."""
    if known.status == "completed" or known.error is None:
        return Completed(known, known.result, known.result, known.result, replayed=True)
    return Failed(known, known.error, replayed=True)


def _judge(known: ToolInvocationRecord | None, key: str, draft: Draft, hydrated: Hydrated) -> None:
    if known is None:
        return
    if not _same(known, draft.record("started")):
        raise Stopped(CallError.of(ErrorCode.DUPLICATE_CALL))
    if is_final(known):
        raise EndedBefore(replayed(known))
    if hydrated.definition.annotations.idempotent:
        return
    if known.error is not None:  # it was said before that nobody knows
        raise EndedBefore(replayed(known))
    draft.key = key  # the record is about the call that was begun with this key
    raise Stopped(CallError.of(ErrorCode.OUTCOME_UNKNOWN))


def _same(known: ToolInvocationRecord, asked: ToolInvocationRecord) -> bool:
    """Whether two records under one key are of one call: the same tool, caller and arguments."""
    return (
        known.definition_digest == asked.definition_digest
        and known.caller == asked.caller
        and known.arguments_sha256 == asked.arguments_sha256
        and known.arguments_bytes == asked.arguments_bytes
        and (known.arguments_sha256 != "" or _same_secrets(known, asked))
    )


def _same_secrets(known: ToolInvocationRecord, asked: ToolInvocationRecord) -> bool:
    """Of a call with secrets there is a digest by a key, which says it if both are by the same key.

    Otherwise (the ledger has no key, and the earlier record is another process's or an old one) what
    shows of the call has to do, if nobody changed it.
    """
    if known.arguments_mac == asked.arguments_mac != "":
        return True
    if _key_of_mac(known) == _key_of_mac(asked) != "":
        return False
    changed = known.edited or asked.edited or known.repaired or asked.repaired
    return changed or canonical_json(known.arguments) == canonical_json(asked.arguments)


def _key_of_mac(record: ToolInvocationRecord) -> str:
    return record.arguments_mac.rpartition(":")[0]
