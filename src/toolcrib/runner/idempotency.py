"""A call runs once under its idempotency key: the cache of this process, and the ledger's entries.

Rule: an outcome is given again only if it belongs to this very call and, where there is a ledger,
only when the ledger has it.

The cache covers the last calls of this process; a `Ledger` covers all calls for longer. The cache
holds a frozen record and JSON text: whatever happens to the object that a tool returned, the
outcome is given again unchanged, with JSON as its `value`. The cache is bounded in bytes. An
evicted outcome leaves its key: if the call is asked for again, it is known to have ended and does
not run. Its result is in the ledger, if there is one.

Before a tool runs, an entry of status `started` is written to every sink that asks for one, and a
ledger decides whether the tool may begin at all. A call that the ledger knows to have ended returns
what is in its record. A tool that only reads is written to the ledger once, when it is over:
reading twice does no harm, and of two outcomes the first one written stands. A call that began and
never ended, in a process that is gone or in another one, has an unknown outcome. It runs again only
if its tool is marked as idempotent, or if it resumes from a saved state.

Resuming is claimed like beginning, under a key made from the call's key and the number of earlier
claims. A call that has ended is not claimed. So a call is resumed only once at a time, from
whichever saved state. The next claim is possible only once the previous one is known to be over:
its process has ended, or it is this process, which knows what it is resuming. Otherwise nobody can
tell, and the call ends as `outcome_unknown`.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from toolcrib.errors import ErrorCode, ToolcribError
from toolcrib.processes import has_ended, this_process
from toolcrib.runner.recorder import (
    DONE,
    CallFacts,
    EditState,
    Recorder,
    SinkResult,
    edit_notice,
    masked_record,
    to_the_end,
)
from toolcrib.runner.running import taint
from toolcrib.runner.stopped import NOT_ITS_OWN, NotRecorded, Stopped, as_failure
from toolcrib.schema.derive.factories import FactoryValues
from toolcrib.threads import cancel_requests, is_stop
from toolcrib.values.call import TOOL_CHANGED, FactoryResults, Hydrated, HydrationResult, ToolCall
from toolcrib.values.content import Part, weight_of
from toolcrib.values.decision import Caller
from toolcrib.values.json import fresh, key_of, sha256_hex
from toolcrib.values.record import (
    CallError,
    Completed,
    Failed,
    Ledger,
    Sink,
    SpentWithin,
    ToolInvocationRecord,
    is_ended_by,
    is_final,
    lost_parts,
    mac_key,
    same_call,
)

T = TypeVar("T")
MAX_BYTES = 64 * 1_048_576
"""The most bytes that the outcomes in one cache take, roughly; the oldest are evicted first."""
MAX_EVICTED = 100_000
"""How many keys of evicted outcomes are known, at about 250 bytes each."""
_ARGUMENT_ERRORS = frozenset((ErrorCode.INVALID_ARGUMENTS, ErrorCode.APPROVAL_MISMATCH))
_OVERHEAD = 1_024  # bytes of the objects around an outcome, besides its strings
_resuming_claims: set[str] = set()  # the claims of calls that this process is resuming right now
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_resuming_claims.clear)
ELSEWHERE = CallError.of(
    ErrorCode.OUTCOME_UNKNOWN,
    "Another process is resuming this waiting call, or may have. It was not resumed here.",
)


def release_claim(claim: str) -> None:
    """Note that the call resumed under this claim has ended or waits: another may resume it."""
    _resuming_claims.discard(claim)


Likeness: TypeAlias = Literal["same", "unsure", "another"]
Fingerprint: TypeAlias = tuple[str, str, bytes | None, str]


def fingerprint_of(hydrated: Hydrated, caller: Caller) -> Fingerprint:
    """Return what a second call under one key must share with the first.

    The text that was sent decides. If it was changed (repaired, or put back into the author's
    terms), the resulting arguments decide too, unless their defaults were pinned: values of default
    factories differ from run to run.
    """
    provenance = hydrated.provenance
    is_plain = provenance.repaired_arguments is None and "restored" not in provenance.notes
    arguments = None if is_plain or hydrated.building.pinned else hydrated.canonical
    return hydrated.definition.digest, hydrated.call.arguments, arguments, caller.id


class AlreadyCompleted(NamedTuple):
    """The outcome that a call had before; `written` is False if its ledger lacks it."""

    outcome: Completed | Failed
    written: bool = True


class _RunningCall(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A call without an outcome yet. `fingerprint` is a hash that differs in each process."""

    fingerprint: int


class _HeldCall(msgspec.Struct, frozen=True, eq=False):
    """A call that ran and whose outcome no ledger has."""

    fingerprint: int
    outcome: Completed | Failed


class _KeptCall(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The outcome of the call under `key`, in a form that nobody can change.

    `value_json` stands for the tool's own value, None if nobody has it; `model_json` is None for a
    call that failed. `size` is roughly how many bytes all of it takes.
    """

    key: str
    fingerprint: int
    record: ToolInvocationRecord
    value_json: bytes | None
    model_json: bytes | None
    notice: str
    size: int
    model_text: str = ""
    parts: tuple[Part, ...] = ()
    model_parts: tuple[Part, ...] = ()

    def outcome(self) -> Completed | Failed:
        record = self.record
        if self.model_json is None and record.error is not None:
            return Failed(record, record.error, self.notice, model_text=self.model_text)
        value = record.result if self.value_json is None else fresh(self.value_json)
        return Completed(
            record,
            value,
            self.model_json or b"null",
            self.notice,
            parts=self.parts,
            model_parts=self.model_parts,
        )


class _EvictedCall(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A call that has run, and whose outcome is no longer kept."""

    fingerprint: int


class EndedByAnswer(NamedTuple):
    """How a call ended by the answer to its question, before its tool began, and `by` whom.

    `edited` says that the answer had other arguments. A call that began with that answer and waits
    has its record in `begun_record`.
    """

    error: CallError
    by: str | None
    edited: bool = False
    begun_record: ToolInvocationRecord | None = None

    @property
    def edit(self) -> EditState:
        """Say what happened to the edit, as far as the error that ended the call tells."""
        if not self.edited:
            return "none"
        return "unfit" if self.error.code in _ARGUMENT_ERRORS else "unread"


class IdempotencyCache:
    """`claim`, then `keep`, `hold` or `release`. One cache serves any number of threads.

    | a call is …          | a claim …                   | then it may be            |
    |----------------------|-----------------------------|---------------------------|
    | not known            | succeeds: the call may run  | kept, held or released    |
    | running              | fails: `duplicate_call`     |                           |
    | kept                 | returns its outcome         | evicted, in time          |
    | evicted              | returns `evicted`: it ended | forgotten, in a long time |
    | held: it ran, and no | returns its outcome, to be  | kept or held              |
    | ledger has it yet    | written, and not run again  |                           |
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._calls: dict[str, _RunningCall | _HeldCall | _KeptCall | _EvictedCall] = {}
        self._kept: deque[_KeptCall] = deque()
        self._evicted: deque[str] = deque()
        self._bytes = 0
        self._unwritten: set[str] = set()
        self._lock = threading.Lock()
        self.pins: dict[str, tuple[ToolCall, str, FactoryValues]] = {}
        self.answered: dict[str, EndedByAnswer] = {}
        self.asked: dict[str, None] = {}

    def pin(self, key: str, call: ToolCall, caller: str, pinned: FactoryResults | None) -> None:
        """Keep the default factories' values of a waiting call, because they run once per call."""
        if not isinstance(pinned, FactoryValues):
            return
        self._add(self.pins, key, (call, caller, pinned), self._limit)

    def keep_answered(self, request_id: str, ended: EndedByAnswer) -> None:
        """Keep how a call ended by the answer to its question: an answered question is used up."""
        self._add(self.answered, request_id, ended, MAX_EVICTED)

    def keep_asked(self, key: str) -> None:
        """Keep that somebody was asked about the call of this key."""
        self._add(self.asked, key, None, MAX_EVICTED)

    def _add(self, entries: dict[str, T], key: str, value: T, limit: int) -> None:
        with self._lock:  # also for the first line: nothing may be added while `iter` is at work
            entries[key] = value
            while len(entries) > limit:
                del entries[next(iter(entries))]

    def pinned(self, run_id: str, call: ToolCall, caller: str) -> FactoryValues | None:
        """Return the values that were pinned for this very call, if it waited here before."""
        entry = self.pins.get(key_of(run_id, call.id))
        if entry is None:
            return None
        earlier, earlier_caller, pinned = entry
        is_same = (earlier.name, earlier.arguments, earlier_caller) == (
            call.name,
            call.arguments,
            caller,
        )
        return pinned.again() if is_same else None

    def claim(
        self, key: str, fingerprint: Fingerprint
    ) -> AlreadyCompleted | Literal["evicted"] | None:
        """Claim a key until it is released, kept or held; return the outcome if the call has one.

        An unwritten outcome is claimed by whoever gets it. Raises Stopped if the call is running or
        the key belongs to another call.
        """
        running = _RunningCall(hash(fingerprint))
        call = self._calls.setdefault(key, running)  # atomic: another thread may ask
        if call is running:
            return None
        if call.fingerprint != running.fingerprint:
            raise Stopped(CallError.of(ErrorCode.DUPLICATE_CALL))
        if isinstance(call, _EvictedCall):
            return "evicted"
        if isinstance(call, _KeptCall):
            return AlreadyCompleted(call.outcome())
        with self._lock:
            if isinstance(call, _RunningCall) or self._calls.get(key) is not call:
                raise Stopped(CallError.of(ErrorCode.DUPLICATE_CALL))
            self._calls[key] = running
        return AlreadyCompleted(call.outcome, written=False)

    def running(self) -> list[str]:
        """Return the keys of calls that have no outcome yet."""
        return [key for key, call in self._calls.copy().items() if isinstance(call, _RunningCall)]

    def release(self, key: str) -> None:
        """Forget a key: its call did not begin, or the key is another call's."""
        del self._calls[key]
        self._unwritten.discard(key)

    def hold(self, key: str, outcome: Completed | Failed, *, late: bool = False) -> None:
        """Keep the outcome of a call that has run and that its ledger lacks; it is never evicted.

        `late` says that it is the end of a tool that was left behind.
        """
        self._calls[key] = _HeldCall(self._calls[key].fingerprint, outcome)
        if late:
            self._unwritten.add(key)

    @property
    def unwritten(self) -> int:
        """How many left-behind tools have ended whose ends could not be written yet."""
        return len(self._unwritten)

    def keep(self, key: str, outcome: Completed | Failed, value_json: bytes | None = None) -> None:
        """Keep the outcome of a call that has run, with `value_json` in place of its value."""
        record, notice = outcome.record, outcome.notice
        if isinstance(outcome, Completed):
            model_json, text = outcome.model_json, ""
        else:
            model_json, text = None, outcome.model_text
        size = _OVERHEAD + len(record.arguments_json) + len(record.result_json) + len(notice)
        size += len(model_json or text)
        if value_json is not None and value_json is not model_json:
            size += len(value_json)  # one object shared by both is counted once
        if record.defaulted:
            size += sum(map(len, record.defaulted))
        calls, order = self._calls, self._kept
        fingerprint = calls[key].fingerprint
        kept_call = _KeptCall(key, fingerprint, record, value_json, model_json, notice, size, text)
        if record.parts and isinstance(outcome, Completed):
            size += sum(map(weight_of, outcome.parts))
            parts, model_parts = outcome.parts, outcome.model_parts
            kept_call = msgspec.structs.replace(
                kept_call, size=size, parts=parts, model_parts=model_parts
            )
        calls[key] = kept_call  # atomic: another thread may ask
        if self._unwritten:
            self._unwritten.discard(key)
        self._lock.acquire()  # `with` takes twice as long
        try:
            order.append(kept_call)
            self._bytes += size
            while len(order) > self._limit or self._bytes > MAX_BYTES:
                oldest = order.popleft()
                self._bytes -= oldest.size
                calls[oldest.key] = _EvictedCall(oldest.fingerprint)
                self._evicted.append(oldest.key)
                if len(self._evicted) > MAX_EVICTED:
                    del calls[self._evicted.popleft()]
        finally:
            self._lock.release()

    def claim_ended(self, key: str, fingerprint: Fingerprint) -> bool:
        """Claim the key of a call whose tool has ended late, whatever is known of it.

        Returns False while somebody else has the key.
        """
        with self._lock:
            call = self._calls.get(key)
            if isinstance(call, _RunningCall):
                return False
            if isinstance(call, _KeptCall):
                self._kept.remove(call)
                self._bytes -= call.size
            elif isinstance(call, _EvictedCall):
                self._evicted.remove(key)
            self._calls[key] = _RunningCall(hash(fingerprint))
        return True


class WriteAhead:
    """Writes an entry for each call before it runs: to the ledger, and to sinks that ask for it.

    A record has the call's key if it is about how the call under that key ended: this call has
    claimed the key, or cannot know how the call that did claim it has ended.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        ledgers = [sink for sink in sinks if isinstance(sink, Ledger)]
        if len(ledgers) > 1:
            raise ToolcribError("a runner takes at most one ledger: each call is begun in one")
        self.ledger = ledgers[0] if ledgers else None
        self._other_sinks = [
            s for s in sinks if getattr(s, "write_ahead", False) and s is not self.ledger
        ]
        self.is_needed = bool(ledgers or self._other_sinks)

    async def check(
        self, key: str, facts: CallFacts, hydrated: Hydrated
    ) -> AlreadyCompleted | None:
        """Do what `begin` does except writing, before asking about a call that will not run."""
        if self.ledger is None:
            return None
        record = await _ask_ledger(partial(self.ledger.find, facts.record("started", key=key)))
        return await self._outcome_in_ledger(record, key, facts, hydrated)

    async def _outcome_in_ledger(
        self, found: object, key: str, facts: CallFacts, hydrated: Hydrated
    ) -> AlreadyCompleted | None:
        try:
            return _earlier_outcome(found, key, facts, hydrated)
        except Stopped as stopped:
            if stopped.error.code is ErrorCode.OUTCOME_UNKNOWN:
                await self.take_spent(facts)  # if this is cancelled, the call ends so nevertheless
            raise

    async def take_spent(self, facts: CallFacts) -> SinkResult:
        """Take over what was spent within a call that began elsewhere, if a searchable log knows.

        The entry under its key says that the call began. What an agent that is its tool had spent
        when it last waited is in a later one. Returns a cancellation that arrived meanwhile.
        """
        find_spent = getattr(self.ledger, "spent_within", None)
        if find_spent is None or facts.spent is not None:
            return DONE
        find_result = await to_the_end(partial(find_spent, facts.initial.id, facts.initial.run_id))
        if isinstance(find_result.value, SpentWithin):
            facts.spent = find_result.value
        return find_result.without_error()

    async def answered(self, request_id: str, facts: CallFacts) -> EndedByAnswer | None:
        """Return how a call ended by an answer to this question, if a searchable log knows of it.

        Raises NotRecorded.
        """
        find_last = getattr(self.ledger, "last", None)
        if find_last is None:
            return None
        find = partial(
            find_last, facts.initial.id, run_id=facts.initial.run_id, approval_id=request_id
        )
        entry = await _ask_ledger(find)
        record = None if entry is None else entry.record
        if record is None or record.error is None or not is_ended_by(record, request_id):
            return None
        return EndedByAnswer(record.error, record.approved_by, record.edited)

    async def begin(
        self, key: str, facts: CallFacts, hydrated: Hydrated, recorder: Recorder
    ) -> AlreadyCompleted | None:
        """Write the entry; return the outcome of a call that the ledger knows to have ended.

        Raises Stopped if the call must not run, and NotRecorded with what a sink raised.
        """
        claims = self.ledger is not None and claims_key(hydrated)
        if not claims and not self._other_sinks:
            return None
        entry = facts.record("started", key=key)
        if claims and self.ledger is not None:
            if facts.scope.suspended or recorder.lacks(self.ledger, facts):
                await self._prepare(self.ledger, key, facts, hydrated, recorder)
            begin_result = await to_the_end(partial(self.ledger.begin, entry))
            record = begin_result.value
            if begin_result is not DONE:
                if begin_result.error is None and record is None:
                    facts.key = key  # the key is claimed, even if this is cancelled now
                _check(begin_result)
            if record is not None:
                earlier = await self._outcome_in_ledger(record, key, facts, hydrated)
                if earlier is not None:
                    return earlier
                write = partial(self.ledger.write, entry)  # records that it begins again
                _check(DONE if facts.claim else await to_the_end(write))
        if claims or self.ledger is None:
            facts.key = key  # otherwise no ledger has claimed it, and another attempt may run
        for sink in self._other_sinks:
            _check(await recorder.write(sink, entry, facts))
        return None

    async def _prepare(
        self, ledger: Ledger, key: str, facts: CallFacts, hydrated: Hydrated, recorder: Recorder
    ) -> None:
        """Attach what the entry refers to, and claim the resumption of a suspended call.

        Only a call that waited within its tool and has not ended is claimed. Raises Stopped and
        NotRecorded.
        """
        if recorder.lacks(ledger, facts):
            _check(await recorder.attach(ledger, facts))
        suspended = facts.scope.suspended.get(hydrated.call.id)
        if suspended is None or hydrated.definition.annotations.idempotent:
            return
        is_claimed = await self._go_on(ledger, key, suspended.times, facts)
        if not is_claimed and await self.check(key, facts, hydrated) is None:
            raise Stopped(ELSEWHERE)

    async def _go_on(self, ledger: Ledger, key: str, times: int, facts: CallFacts) -> bool:
        """Claim that a call resumes that had been claimed `times` times when it was suspended.

        Returns False if it has ended, resumes elsewhere, or nobody can tell. Raises NotRecorded.
        """
        process = this_process()
        while True:
            times += 1
            # never a call's key, whose hashed text begins with a digit
            claim = "sha256:" + sha256_hex(f"goes on {times} {key}")
            if claim in _resuming_claims:
                return False
            _resuming_claims.add(claim)
            facts.claim = times, claim
            begin_result = await to_the_end(
                partial(ledger.begin, facts.resuming_entry(claim, process))
            )
            if begin_result.value is None:
                _check(begin_result)
                return True
            release_claim(claim)
            facts.claim = ()
            _check(begin_result)
            record = _checked_record(begin_result.value)
            if is_final(record) or (record.process != process and not has_ended(record.process)):
                return False


async def _ask_ledger(find: Callable[[], Awaitable[T]]) -> T:
    """Return what a ledger finds. Raises NotRecorded with what it raised, unless that is a stop."""
    cancels = cancel_requests()
    try:
        return await find()
    except NOT_ITS_OWN:
        raise
    except BaseException as raised:  # a ledger may raise anything
        if is_stop(raised, cancels):
            raise
        raise NotRecorded(as_failure(raised)) from None


def _checked_record(value: object) -> ToolInvocationRecord:
    """Return the record that a ledger gave. Raises NotRecorded for anything else."""
    if not isinstance(value, ToolInvocationRecord):
        kind = type(value).__name__
        raise NotRecorded(
            TypeError(f"a ledger must return a ToolInvocationRecord or None: this is a {kind}")
        )
    return value


def _check(sink_result: SinkResult) -> None:
    """Raise the cancellation, or NotRecorded with what a sink raised, if there was one."""
    if sink_result.cancelled is None and sink_result.error is not None:
        raise NotRecorded(sink_result.error)
    sink_result.check()


def replayed(record: ToolInvocationRecord) -> Completed | Failed:
    """Return the outcome of a call from its record, which holds the public view.

    If the call ran with an edit, the model is told of it again.
    """
    edit = edit_notice(record.arguments or {}, record.defaulted) if record.edited else ""
    if record.status == "completed" or record.error is None:
        text, notice = bytes(record.result_json), " ".join(filter(None, (edit, lost_parts(record))))
        return Completed(record, record.result, text, notice, replayed=True)
    return Failed(record, record.error, edit, replayed=True)


def _earlier_outcome(
    found: object, key: str, facts: CallFacts, hydrated: Hydrated
) -> AlreadyCompleted | None:
    """Decide from the record under a call's key whether the call may run.

    Raises Stopped, and NotRecorded for something that is not a record.
    """
    if found is None:
        return None
    record = _checked_record(found)
    likeness = compared(record, facts.record("started"), facts)
    if likeness == "another":
        raise Stopped(CallError.of(ErrorCode.DUPLICATE_CALL))
    if likeness == "same":
        if is_final(record):
            return AlreadyCompleted(replay_masked(record, facts))
        definition = hydrated.definition
        may_repeat = (
            definition.annotations.idempotent and definition.digest == record.definition_digest
        )
        if may_repeat or hydrated.call.id in facts.scope.suspended:
            return None
        if record.error is not None:  # it was already reported as unknown
            return AlreadyCompleted(replayed(masked_record(record, definition)))
    facts.key = key  # the record is about the call that was begun with this key
    facts.take_begun(record, unsure=likeness == "unsure")
    raise Stopped(CallError.of(ErrorCode.OUTCOME_UNKNOWN))


def claims_key(hydrated: HydrationResult) -> bool:
    """Return whether a ledger lets this call begin, and keeps its key from then on.

    True if its tool does more than read, or may have done so when the call was made.
    """
    definition = hydrated.definition
    if definition is None:
        return False
    return not definition.annotations.read_only or TOOL_CHANGED in hydrated.provenance.notes


def replay_masked(record: ToolInvocationRecord, facts: CallFacts) -> Completed | Failed:
    """Return the outcome of a call from its record, with what is secret by now masked.

    If its tool is gone or has another definition by now, nobody here knows what it had read, so its
    result taints the run.
    """
    definition = facts.hydrated.definition
    if definition is None or definition.digest != record.definition_digest:
        taint(facts.scope.tally)
    return replayed(masked_record(record, definition))


def compared(
    record: ToolInvocationRecord, current: ToolInvocationRecord, facts: CallFacts
) -> Likeness:
    """Return whether the record under a call's key is of the `same` call.

    If the call may have begun before, its tool may have another definition by now, or be gone; then
    the text that was sent decides. If the texts cannot be compared (one of them has secrets, or the
    two digests were made with different keys), the answer is `unsure`, and the call is not reported
    as not begun.
    """
    if facts.unsure:  # the facts already come from the record
        return "unsure"
    if same_call(record, current):
        return "same"
    if not facts.may_have_begun or _call_of(record) != _call_of(current):
        return "another"
    if record.arguments_sha256 and current.arguments_sha256:
        return "same" if record.arguments_sha256 == current.arguments_sha256 else "another"
    if mac_key(record) == mac_key(current) != "":
        return "same" if record.arguments_mac == current.arguments_mac else "another"
    redefined = msgspec.structs.replace(current, definition_digest=record.definition_digest)
    return "same" if same_call(record, redefined) else "unsure"


def _call_of(record: ToolInvocationRecord) -> tuple[str, str, int]:
    return record.name, record.caller, record.arguments_bytes
