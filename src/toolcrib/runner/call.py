"""The life of one call: permitted, perhaps asked about, run once, its result checked, its end recorded.

Rule: a call is in one state, each step moves it as `NEXT` says, and what its end changes depends on
that state alone (`ENDS`). Every call that comes in has exactly one end.

| state     | what has happened                               | at its end the key is | settled |
|-----------|-------------------------------------------------|-----------------------|---------|
| arrived   | nothing that anybody else could notice          | not its own           | no      |
| claimed   | its idempotency key is its own                  | released              | no      |
| counted   | the policies and the run's tally have counted it| released              | undone  |
| begun     | its tool was started                            | kept with the outcome | yes     |
| suspended | its tool has begun, asks itself, and will go on | released              | kept    |
| unwritten | it ran before, and the ledger lacks its outcome | kept with the outcome | no      |
| ended     | its outcome is settled                          |                       |         |
| late      | its tool, left behind at that end, has ended too| kept with the outcome | no      |

A call that was suspended comes in once more, with its state in `scope.suspended`: it has begun. So
nobody is asked about it again, and where it cannot go on it ends as `outcome_unknown`: what it did
before is not undone, and the part that waited does not run here; its record says who had let it begin.
(Nothing final is said with that: the same state may go on later, or has elsewhere.) What such a call
counts for in its run is in `account`.

A tool that was left behind ends when its call has (`late`): its outcome is written as if it had ended
in time, or held until the call is asked for again.

A call that ends without having begun here may have begun before, in a process that is gone: where its
run has steps, or goes on from what was saved, the ledger is asked, and the call ends as that says. One
that began is told as `outcome_unknown`, or as it ended, and so is one of which the ledger cannot be
asked: that it did not begin is said of no call that may have.

The caller gets the outcome that the ledger has: an outcome that cannot be written is unknown, unless a
step of its run has kept it. What stands in the ledger is held against the call before it is told:
nobody is told what became of another call under the same key. Of the two the one whose tool only read
ends as `duplicate_call`; one that had claimed the key before it ran has the outcome that it had.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from toolcrib.errors import ErrorCode, SourceError, ToolcribError
from toolcrib.failures import log_over_time
from toolcrib.hydration import Repairer, repair
from toolcrib.runner.account import account_of, count_begun
from toolcrib.runner.execute import left_running
from toolcrib.runner.executor import Executor, ToolPlan
from toolcrib.runner.idempotency import (
    ELSEWHERE,
    AlreadyCompleted,
    Fingerprint,
    claims_key,
    compared,
    fingerprint_of,
    goes_on_no_more,
    told_again,
)
from toolcrib.runner.late import follow, late_end
from toolcrib.runner.output import CheckedOutput, check_output, report_unusable, views
from toolcrib.runner.policy import (
    FORK,
    LookedUp,
    Release,
    count_all,
    decide,
    give_back_all,
    look_up,
    release_each,
    reserve_each,
    settle_all,
)
from toolcrib.runner.question import CallQuestion, take_begun_with
from toolcrib.runner.recorder import DONE, CallFacts, SinkResult, to_the_end
from toolcrib.runner.running import CALLING, Calling, leave_call, taint
from toolcrib.runner.setup import Setup
from toolcrib.runner.stopped import (
    NotRecorded,
    Stopped,
    Suspended,
    as_failure,
    record_end,
    rejection,
)
from toolcrib.schema.derive.factories import Pinned
from toolcrib.threads import MOST_LEFT_BEHIND, Ending, LeftWork, Work, cancel_requests
from toolcrib.values.call import Hydrated, HydrationResult, Rejected
from toolcrib.values.context import Account, CallScope, PolicyContext, StepRunner, Surroundings
from toolcrib.values.decision import Allow, Ask, Decision, Deny, OuterCall
from toolcrib.values.definition import ALL
from toolcrib.values.json import Veiled, key_of
from toolcrib.values.record import (
    ALWAYS,
    EMULATED,
    MADE_UP,
    PART_WAITED,
    READ_UNTRUSTED,
    SUSPENDED,
    CallError,
    Completed,
    Failed,
    Ledger,
    Outcome,
    SuspendedCall,
    ToolInvocationRecord,
    Waiting,
    has_begun,
    is_final,
)
from toolcrib.values.step import CallEnd, CallStep

State: TypeAlias = Literal[
    "arrived", "claimed", "counted", "begun", "suspended", "unwritten", "ended", "late"
]
Event: TypeAlias = Literal[
    "claim", "find unwritten", "count", "begin", "suspend", "end", "end late"
]
NEXT: dict[State, dict[Event, State]] = {
    "arrived": {"claim": "claimed", "find unwritten": "unwritten", "end": "ended"},
    "claimed": {"count": "counted", "end": "ended"},
    "counted": {"begin": "begun", "end": "ended"},
    "begun": {"suspend": "suspended", "end": "ended"},
    "suspended": {"end": "ended"},
    "unwritten": {"end": "ended"},
    "ended": {"end late": "late"},
    "late": {"end": "ended"},
}


class End(msgspec.Struct, frozen=True):
    """Says what the end of a call changes: its idempotency key, policies' counts, the run's taint."""

    key: Literal["not its own", "released", "kept"]
    counts: Literal["nothing", "undone", "kept", "settled"] = "nothing"
    taints: bool = False


ENDS: dict[State, End] = {
    "arrived": End("not its own"),
    "claimed": End("released"),
    "counted": End("released", counts="undone"),
    "begun": End("kept", counts="settled", taints=True),
    "suspended": End("released", counts="kept", taints=True),
    "unwritten": End("kept"),
    "late": End("kept"),
}
_NOT_RECORDED = "The tool ran, but what came of it could not be recorded. It is not run again."
_NO_ROOM = (
    f"{MOST_LEFT_BEHIND} earlier calls that were given up still run here. The tool was not started."
)
_STOOD_IN = "Something else stands in for its tool here."
_EVICTED = "This call has run before, and its result is no longer kept. It was not run again."
_BROKEN_OFF = CallError.of(
    ErrorCode.OUTCOME_UNKNOWN, "The call was broken off by an error beside its tool."
)
_NOT_STARTED = CallError.of(
    ErrorCode.NOT_RUNNABLE, "The call was broken off by an error beside its tool. It did not run."
)
_CUT = CallError.of(
    ErrorCode.OUTCOME_UNKNOWN, "The call was cut while it ran: what it did is not known."
)
_NOT_BEGUN: frozenset[State] = frozenset(("arrived", "claimed", "counted"))
_ENDED = (Completed, Failed)
_GOES_ON = Allow("it has begun, and goes on", "standard")
_LOOK = 0.05  # seconds after which is looked again whether it is written
_HELD_UP = 60.0  # seconds that another's write of an unknown outcome may take
_log = logging.getLogger("toolcrib.audit")


class Recorded(msgspec.Struct, frozen=True):
    """Holds the final outcome, the record for sinks other than the ledger, and what is to be raised."""

    outcome: Outcome
    record: ToolInvocationRecord | None
    trouble: SinkResult = DONE


class Call(Veiled, msgspec.Struct):
    """One call in a runner: `run` it, or `finalize` it with an outcome that it has without running."""

    veiled: ClassVar[tuple[str, ...]] = ("pinned",)

    setup: Setup
    facts: CallFacts
    context: PolicyContext
    scope: CallScope
    pinned: Pinned = None  # what its default factories made before
    executor: Executor | None = None  # another one than the runner's, of the run around it
    key: str = ""
    state: State = "arrived"
    value_json: bytes | None = None  # of the tool's value, when it has run
    mark: Fingerprint = ("", "", None, "")  # with which it has claimed its key
    question: CallQuestion | None = None  # with whose answer it may begin
    again: bool = False  # it was cut, and is made again where its run goes on
    watcher_raised: BaseException | None = None  # when it was told of a part
    left: tuple[Work, bool] | None = None  # its tool that was left behind; was it out of time
    asking: dict[str, str] = {}  # the policies that ask about it, and why
    reserved: Sequence[Release] = ()  # in stores; given back if its tool does not begin

    async def run(
        self, task: asyncio.Task[Any] | None, cancels: int, repairer: Repairer | None
    ) -> Outcome:
        """Return the outcome, once it is recorded. Raises what a sink raises, and CancelledError.

        `task` is the one that runs, and `cancels` how often it had been asked to stop before.
        """
        facts, steps = self.facts, self.scope.steps
        try:
            if steps is None:
                outcome = await self._ended(cancels, repairer)
            else:
                outcome = await self._step(steps, cancels, repairer)
        except GeneratorExit:  # the loop is gone: nothing can be awaited any more
            if self.state != "ended":
                self._settle(facts.failed(CallError.of(ErrorCode.CANCELLED)))
            raise
        except NotRecorded as failed:
            await self.finalize(self.ended(CallError.of(ErrorCode.NOT_RECORDED)))
            raise failed.raised from None
        except BaseException as raised:
            leaves = await self._broken_off(raised, cancels)
            if leaves is not raised:
                raise leaves from None
            raise
        if isinstance(outcome, AlreadyCompleted):
            return await self._replay(outcome.outcome)
        try:
            outcome = await self.finalize(outcome)
        finally:
            if self.left is not None:
                self._follow(*self.left)
        if task is not None and task.cancelling() > cancels:
            raise asyncio.CancelledError  # the tool caught it; its outcome stands, and is told
        return outcome

    def ended(self, error: CallError, told: str = "") -> Failed:
        """Return the outcome of a call that ends with this error, in the state that it is in."""
        facts, call_id = self.facts, self.facts.hydrated.call.id
        is_back = call_id in self.scope.suspended and self.state in _NOT_BEGUN
        if is_back and error.code is not ErrorCode.DUPLICATE_CALL:
            take_begun_with(self.setup, facts, self.context.caller, self.scope.suspended[call_id])
            facts.key = key_of(self.scope.tally.run_id, call_id)
            if error is not ELSEWHERE:
                error = CallError.of(ErrorCode.OUTCOME_UNKNOWN, f"{PART_WAITED} {error.message}")
        return facts.failed(error, told)

    def account(self) -> Account:
        """Return what an agent that is the tool of this call spends from."""
        return account_of(self.facts, self.setup.policies, self.context)

    def around(self) -> Surroundings:
        """Return what an agent that is the tool of this call has from the run around it."""
        approver = self.scope.approver or self.setup.approver
        paying = (*self.setup.paying, *self.scope.paying)
        sinks = self.setup.recorder.sinks
        steps = self.facts.steps_around
        return Surroundings(self.scope, approver, sinks, self.account, paying, steps)

    def watcher_failed(self, raised: BaseException) -> None:
        """Take what the observer raised at a part, which is raised once the call is over."""
        self.watcher_raised = raised

    async def finalize(self, outcome: Outcome) -> Outcome:
        """Write down and remember an outcome; return the one that stands.

        The ledger comes first, then the other sinks, and whoever watches is told also if one of them
        fails. Raises what a sink raises, in the end.
        """
        if self.state == "ended":  # it was told of, within its step
            return outcome
        ledger = self.setup.write_ahead.ledger
        if ledger is None:
            if self.state in _NOT_BEGUN and _began_elsewhere(outcome):
                self._share(outcome)
            self._settle(outcome)
            if not self.setup.recorder.others and self.scope.observer is None:
                return outcome  # nobody is to be told
            return await self._tell(outcome, outcome.record)
        if self.state in _NOT_BEGUN and isinstance(outcome, Failed):
            return await self._finalize_known(*await self._as_ledger_knows(outcome, ledger), ledger)
        recorded = await self._recorded(outcome, ledger)
        return await self._tell(recorded.outcome, recorded.record, recorded.trouble)

    async def _finalize_known(
        self, known: Failed | AlreadyCompleted, stop: SinkResult, ledger: Ledger
    ) -> Outcome:
        """Finalize a call that did not begin here as `_as_ledger_knows` says, and be stopped then."""
        if isinstance(known, AlreadyCompleted):
            told = await self._replay(known.outcome)
            stop.check()
            return told
        recorded = await self._recorded(known, ledger)
        trouble = recorded.trouble if stop is DONE else recorded.trouble.and_then(stop)
        return await self._tell(recorded.outcome, recorded.record, trouble)

    async def finalize_begun(self) -> None:
        """Finalize a call that is not made here if it began before. Raises what a sink raises."""
        ledger = self.setup.write_ahead.ledger
        if ledger is None:
            return
        failed = self.ended(CallError.of(ErrorCode.CANCELLED))
        known, stop = await self._as_ledger_knows(failed, ledger)
        if known is failed:
            stop.check()
        else:
            await self._finalize_known(known, stop, ledger)

    async def _as_ledger_knows(
        self, failed: Failed, ledger: Ledger
    ) -> tuple[Failed | AlreadyCompleted, SinkResult]:
        """Return how a call ends that has failed and not begun here: as the ledger knows it, if it
        began before, and as `outcome_unknown` if that cannot be asked. Whatever stops this meanwhile
        is returned, too."""
        facts = self.facts
        if has_begun(failed.record) or not facts.may_have_begun:
            return failed, DONE
        key = key_of(self.scope.tally.run_id, facts.hydrated.call.id)
        entry = facts.record("started", key=key)
        found = await to_the_end(partial(ledger.find, entry))
        known, stop = found.given, found.only_stop()
        if isinstance(known, ToolInvocationRecord):
            likeness = compared(known, entry, facts)
            if likeness == "another":
                return failed, stop
            if likeness == "same" and is_final(known):
                return AlreadyCompleted(told_again(known, facts)), stop
            facts.take_begun(known, unsure=likeness == "unsure")
            facts.decision = known.decision
        elif known is None and found.error is None:
            return failed, stop
        facts.key = key
        return facts.failed(CallError.of(ErrorCode.OUTCOME_UNKNOWN)), stop

    async def _ended(self, cancels: int, repairer: Repairer | None) -> Outcome | AlreadyCompleted:
        """Repair the call if need be, and take it through all steps up to its tool's result, or to what
        stops it on its way; return the outcome that is to be told of."""
        setup, facts = self.setup, self.facts
        try:
            if repairer is not None and not facts.hydrated.success:
                await self._repair(facts.hydrated, repairer, cancels)
            hydrated, plan = self._plan(facts.hydrated)
            earlier = self._claim(hydrated)
            if earlier is not None:
                return await self._in_ledger(hydrated) if earlier == "evicted" else earlier
            decision = await self._look_up(hydrated) if setup.looking else self._decide(hydrated)
            if not isinstance(decision, Allow):
                approved = await self._asked(hydrated, decision)
                if not isinstance(approved, Hydrated):
                    return approved
                hydrated = approved
            refused = self._count(hydrated)
            if refused is not None:
                return await self._denied(hydrated, refused)
            return await self._begun(hydrated, plan, cancels)
        except Suspended as suspended:
            return self._suspended(suspended)
        except Stopped as stopped:
            facts.notes += stopped.notes
            outcome = self.ended(stopped.error, stopped.told)
            self.left = None if stopped.body is None else (stopped.body, stopped.late)
            if self.question is not None and self.state != "begun":
                self.question.keep_end(outcome)
            return outcome
        finally:
            if self.reserved and self.state == "counted":
                await release_each(self.reserved)

    async def _begun(
        self, hydrated: Hydrated, plan: ToolPlan, cancels: int
    ) -> Outcome | AlreadyCompleted:
        """Begin a call that is permitted, and return what its tool gives, in a slot of the runner's."""
        setup, facts = self.setup, self.facts
        exclusive = hydrated.definition.annotations.exclusive
        slot = setup.limiter.try_enter(exclusive) or await setup.limiter.enter(exclusive)
        executor = (self.executor or setup.executor).weakly  # what a tool opens may keep it
        tally, call_id, left = self.scope.tally, hydrated.call.id, LeftWork()
        entered = Calling(tally, call_id, setup.limiter, facts.parent, slot, executor, facts, left)
        CALLING.set(entered)
        try:
            refused = await self._reserve(hydrated) if setup.reserving else None
            if refused is not None:
                return await self._denied(hydrated, refused)
            if setup.write_ahead.wanted:
                earlier = await setup.write_ahead.begin(self.key, facts, hydrated, setup.recorder)
                if earlier is not None:
                    return earlier
            facts.key = "" if plan.emulated else self.key  # of such a call nothing has begun
            self.state = NEXT[self.state]["begin"]
            self.scope.begins()
            began = time.monotonic()
            try:
                value = await setup.executor.run(plan, hydrated, self)
            except BaseException as raised:  # noqa: BLE001  a tool may raise anything
                raise setup.executor.ended(raised, plan, hydrated, left, cancels=cancels) from None
            seconds = time.monotonic() - began
            if plan.limit is not None and seconds > plan.limit and not left.put_off:
                facts.notes += ("over_time_limit",)  # something blocked the event loop
                log_over_time(plan.tool.definition.name, seconds, plan.limit)
        finally:
            self.scope.ends()
            leave_call(entered)
            if slot:
                setup.limiter.leave(entered)
        return self._checked(plan, value)

    async def _repair(self, rejected: Rejected, repairer: Repairer, cancels: int) -> None:
        setup = self.setup
        hook = setup.reporter.debug
        repaired = repair(rejected, setup.catalog, repairer, pinned=self.pinned, on_exception=hook)
        self.facts.take(await repaired)
        if cancel_requests() > cancels:
            raise asyncio.CancelledError  # the repairer caught it

    async def _broken_off(self, raised: BaseException, cancels: int) -> BaseException:
        """Record the end of a call that was cancelled, or broken off, and return what is to be raised.

        Where another process may go on with its run, or with the one that it is within, nothing is said
        for good of a call that has begun, or of which the log says that; nothing more of one that was
        told of, and is not kept; and nothing of one that it will make. One that was called off is made
        nowhere again: its end is one.
        """
        asked = cancel_requests() > cancels or isinstance(raised, KeyboardInterrupt)
        leaves = raised if asked else as_failure(raised)
        steps = self.facts.steps_around
        goes_on = getattr(steps, "stopping", False)  # elsewhere
        if self.state == "arrived" and goes_on:
            return leaves
        error = CallError.of(ErrorCode.CANCELLED) if asked else _BROKEN_OFF
        if not asked and self.state in _NOT_BEGUN:
            error = _NOT_STARTED
        begun = self.state == "begun" or bool(self.facts.key)
        stays = asked and self.facts.called_off and not goes_on
        cut = begun and steps is not None and (asked or goes_on) and not stays
        self.again = cut and self._is_repeatable()
        await record_end(self.finalize(self.ended(_CUT if cut else error)), leaves, cancels)
        return leaves

    def _is_repeatable(self) -> bool:
        definition = self.facts.hydrated.definition
        marks = None if definition is None else definition.annotations
        return marks is not None and (marks.idempotent or marks.read_only)

    async def _step(
        self, steps: StepRunner, cancels: int, repairer: Repairer | None
    ) -> Outcome | AlreadyCompleted:
        """Take the call to its outcome as a step of its run, or return what is kept of that.

        The end of a call that began is kept before anybody is told of it: nobody else knows what the
        model is to see. One that did not begin is told of first: its step may be done again.
        """
        done: list[Outcome | AlreadyCompleted] = []

        async def work() -> CallStep:
            outcome = await self._unless_called_off(cancels, repairer)
            end: CallEnd = "kept" if self.state in ("begun", "unwritten") else "known"
            if end == "kept":
                self._taint()  # so that the step says so: its tool may be another one by then
            if end == "known" and not isinstance(outcome, AlreadyCompleted):
                outcome, end = await self.finalize(outcome), "told"
                if isinstance(outcome, _ENDED) and outcome.replayed:
                    end = "known"
            done.append(outcome)
            ended = outcome.outcome if isinstance(outcome, AlreadyCompleted) else outcome
            return CallStep.of(ended, self.value_json, end, self.scope.tally)

        step = await steps.run(f"call {self.facts.hydrated.call.id}", work, CallStep)
        return done[0] if done else self._taken_up(step)

    async def _unless_called_off(
        self, cancels: int, repairer: Repairer | None
    ) -> Outcome | AlreadyCompleted:
        """Return the outcome, also of a call that somebody has called off while its tool ran: that is
        what becomes of it wherever its run goes on."""
        try:
            return await self._ended(cancels, repairer)
        except asyncio.CancelledError:
            if self.state != "begun" or not self.scope.called_off():
                raise
            return self.ended(CallError.of(ErrorCode.CANCELLED))

    def _taken_up(self, step: CallStep) -> Outcome | AlreadyCompleted:
        """Return the outcome that a step has kept, and count its share of what the run has spent."""
        scope, record, outcome = self.scope, step.record, step.outcome
        scope.tally.take_up(step.elapsed, step.approved)
        if step.tainted:
            taint(scope.tally)
        made_up = record.emulated and not self.setup.executor.emulates
        if step.end == "told" or isinstance(outcome, Waiting) or made_up:
            counts = made_up and isinstance(outcome, Completed)
            if counts or step.suspended is not None or _began_elsewhere(outcome):
                self._share(outcome)
            if step.suspended is not None:
                scope.tally.keep_place(record.id)
            self.state = NEXT[self.state]["end"]
            if scope.observer is not None:
                scope.observer.finished(outcome)
            if made_up:  # whoever has the run knows that it was, and nothing real follows
                raise SourceError(MADE_UP)
            return outcome
        if step.end == "kept":
            if record.seconds is not None:
                scope.tally.settle(record.name, record.seconds)
            with suppress(Stopped):  # its tool is another one by now
                if self._claim(self._plan(self.facts.hydrated)[0]) is None:
                    self.state = NEXT["arrived"]["find unwritten"]
        return AlreadyCompleted(outcome)

    def _suspended(self, suspended: Suspended) -> Waiting:
        """Wait for what the tool asks. The call stays counted."""
        self.state = NEXT[self.state]["suspend"]
        facts, tally, requests = self.facts, self.scope.tally, suspended.requests
        facts.key = ""
        approval = None if self.question is None else self.question.waits_within(requests)
        call = OuterCall(tally.run_id, facts.hydrated.call.id, facts.hydrated.call.name)
        tally.keep_place(call.call_id)
        before = self.scope.suspended.get(call.call_id)
        times = facts.claim[0] if facts.claim else 0 if before is None else before.times
        asked = "" if ALWAYS in facts.notes else facts.approval_id
        rule = None if facts.rule is None else (facts.rule, asked)
        saved = SuspendedCall(msgspec.Raw(suspended.saved.encode()), call, times, approval, rule)
        facts.notes += (SUSPENDED,)
        return Waiting(facts.record("waiting"), requests[0], requests[1:], saved)

    def _plan(self, hydrated: HydrationResult) -> tuple[Hydrated, ToolPlan]:
        """Return a call that may run, and the plan of its tool as it is registered. Raises Stopped.

        A call that was hydrated against another tool of this name does not run.
        """
        if not isinstance(hydrated, Hydrated):
            raise self._rejected(hydrated)
        definition, parent, setup = hydrated.definition, self.facts.parent, self.setup
        plan = setup.executor.plans.get(definition.name)
        if plan is not None and plan.emulated:
            if hydrated.call.id in self.scope.suspended:  # it has begun, for real
                raise Stopped(CallError.of(ErrorCode.NOT_RUNNABLE, _STOOD_IN))
            self.facts.notes += (EMULATED,)
        elif parent is not None and parent.limiter is setup.limiter and parent.agent is None:
            around = parent.executor()  # of the run that the call is made in
            bound = None if around is None else around.plans.get(definition.name)
            real = bound is not None and not bound.emulated  # what stands in may call what is real
            if plan is not None and bound is not None and real and bound.tool is plan.tool:
                self.executor, plan = around, bound
        if plan is None:
            raise Stopped(CallError.of(ErrorCode.NOT_RUNNABLE))
        # those that were given up go on until they return; few have to be looked at
        if Work.left_behind >= MOST_LEFT_BEHIND and left_running() >= MOST_LEFT_BEHIND:
            raise Stopped(CallError.of(ErrorCode.NOT_RUNNABLE, _NO_ROOM, retryable=True))
        own = plan.tool.definition
        if own is not definition and own.digest != definition.digest:
            raise Stopped(CallError.of(ErrorCode.NOT_RUNNABLE))
        return hydrated, plan

    def _claim(self, hydrated: Hydrated) -> AlreadyCompleted | Literal["evicted"] | None:
        """Claim the call's key; return its outcome where it has run before. Raises Stopped."""
        key = key_of(self.scope.tally.run_id, hydrated.call.id)
        self.mark = fingerprint_of(hydrated, self.context.caller)
        earlier = self.setup.cache.claim(key, self.mark)
        if earlier is None:
            self.key = key
            self.state = NEXT[self.state]["claim"]
        elif earlier != "evicted" and not earlier.written:
            self.key = key
            self.state = NEXT[self.state]["find unwritten"]
        return earlier

    async def _in_ledger(self, hydrated: Hydrated) -> AlreadyCompleted:
        """Return the outcome of a call that has ended and was evicted. Raises Stopped without one."""
        key = key_of(self.scope.tally.run_id, hydrated.call.id)
        earlier = await self.setup.write_ahead.check(key, self.facts, hydrated)
        if earlier is None:
            raise Stopped(CallError.of(ErrorCode.DUPLICATE_CALL, _EVICTED))
        return earlier

    def _decide(self, hydrated: Hydrated, looked_up: Sequence[LookedUp] = ()) -> Decision:
        """Ask the policies. Where a person was asked about this call before, their answer is needed."""
        scope, context = self.scope, self.context
        if scope.tally.begun and hydrated.call.id in scope.tally.begun:
            context = self._going_on(hydrated)
        if self.asking:
            self.asking = {}
        decision = decide(self.setup.at_once, hydrated, context, looked_up, self.asking)
        if scope.suspended or scope.asked:
            decision = self._asked_before(hydrated.call.id, decision)
        self.facts.decision = decision
        return decision

    def _asked_before(self, call_id: str, decision: Decision) -> Decision:
        """Return what is decided of a call about which a person may have been asked before."""
        begun = self.scope.suspended.get(call_id)
        answered = begun is not None and begun.approval is not None
        if begun is not None and not answered and isinstance(decision, Ask):
            return _GOES_ON
        if isinstance(decision, Allow) and (answered or any(self.scope.asked_about(call_id))):
            return Ask("somebody was asked about this call before", "standard")
        return decision

    def _going_on(self, hydrated: Hydrated) -> PolicyContext:
        """Return what policies know of the run: the call has its place, and needs no other one."""
        ahead = self.scope.tally.copied()
        ahead.give_back(hydrated.definition.name, hydrated.definition.annotations.cost)
        return PolicyContext(self.context.caller, ahead)

    async def _look_up(self, hydrated: Hydrated) -> Decision:
        """Ask the policies that look something up, unless others deny the call; then all others once
        more, so that nothing is awaited between what they say and the count."""
        decision = self._decide(hydrated)
        if isinstance(decision, Deny):
            return decision
        setup, begun = self.setup, hydrated.call.id in self.scope.tally.begun
        context = self._going_on(hydrated) if begun else self.context
        looked_up = await look_up(setup.looking, hydrated, context, setup.policy_seconds)
        return self._decide(hydrated, looked_up)

    def _count(self, hydrated: Hydrated) -> Deny | None:
        """Count the call, unless a policy refuses that: from here on it is made. Nothing is awaited
        between the decision and this, so that calls of one reply cannot share a last allowance."""
        if self.setup.counting:
            refused = count_all(self.setup.counting, hydrated, self.context)
            if refused is not None:
                return refused
        definition, tally = hydrated.definition, self.scope.tally
        if tally.approved and self.facts.approved_by is None:
            given = tally.approval_of(hydrated, self.context.caller.id)
            if given is not None:
                self.facts.approval_id, self.facts.approved_by = given.id, given.by
        counted = tally.counted
        goes_on = hydrated.call.id in tally.begun
        counted[self.key] = counted.get(self.key, goes_on) + 1
        if not goes_on:  # what begins counts, though another runner had a call of that id
            tally.count(definition.name, definition.annotations.cost)
        self.state = NEXT[self.state]["count"]
        return None

    async def _reserve(self, hydrated: Hydrated) -> Deny | None:
        """Count the call where other processes do, too, unless nothing is left there."""
        held: list[Release] = []
        self.reserved = held
        reserving, steps = self.setup.reserving, self.facts.steps_around
        return await reserve_each(reserving, hydrated, self.context, held, steps)

    def _checked(self, plan: ToolPlan, value: Any) -> Completed | Failed:
        """Return the outcome of a call that gave `value`; it is read once, since it may be used up."""
        facts, setup, definition = self.facts, self.setup, plan.tool.definition
        checked = check_output(plan.tool, value, setup.max_result_bytes)
        if not isinstance(checked, CheckedOutput):
            report_unusable(setup.reporter, facts.hydrated.call, definition, checked)
            return facts.failed(checked.error)
        self.value_json = checked.text
        model, public, error = views(definition, checked)
        notice = facts.notice() if facts.edit == "taken" else ""
        content = checked.content
        if content is None:
            return Completed(facts.record("completed", public, error), value, model, notice)
        facts.parts = checked.parts
        record, parts = facts.record("completed", public, error), tuple(content.parts)
        seen = parts if definition.model_visible is ALL else ()
        return Completed(record, content.value, model, notice, parts=parts, model_parts=seen)

    async def _replay(self, outcome: Completed | Failed) -> Outcome:
        """Return the earlier outcome. One that the ledger lacks is written first."""
        self._share(outcome)
        ledger = self.setup.write_ahead.ledger
        if self.state == "unwritten" and ledger is not None:
            self.facts.key = self.key
            recorded = await self._recorded(outcome, ledger)
        else:
            self._settle(outcome)
            recorded = Recorded(outcome, None)
        stands = msgspec.structs.replace(recorded.outcome, replayed=True)
        told = recorded.record if self.scope.steps is None else None  # they were, where it ran
        return await self._tell(stands, told, recorded.trouble)

    def _share(self, outcome: Outcome) -> None:
        """Have the run know of a call that began before, or elsewhere: its content is as untrusted as
        there, and the run has spent all that the call has, within it too, as if it had run here, once.
        """
        definition, scope, record = self.facts.hydrated.definition, self.scope, outcome.record
        if READ_UNTRUSTED in record.notes:
            taint(scope.tally)
        self._taint()
        if definition is not None and self.state != "begun":  # else it was counted here
            count_begun(self.facts, record, self.account, is_counted=self.state == "counted")

    def _taint(self) -> None:
        """Taint the run where the tool of the call brings untrusted content."""
        definition = self.facts.hydrated.definition
        if definition is not None and definition.annotations.untrusted_output:
            taint(self.scope.tally)

    def _settle(self, outcome: Outcome, *, stands: Outcome | None = None) -> None:
        """Do the part of `finalize` that awaits nothing: cache, taint, tally and policies.

        `stands` is the outcome that the ledger has; without it the outcome is still to be written.
        """
        setup, facts = self.setup, self.facts
        state, record = self.state, outcome.record
        end, self.state = ENDS[state], NEXT[state]["end"]
        stands = outcome if setup.write_ahead.ledger is None else stands
        kept = end.key == "kept"
        if facts.claim and (not kept or is_final(record)):
            goes_on_no_more(facts.claim[1])
        if kept and record.idempotency_key and not self.again and isinstance(outcome, _ENDED):
            if isinstance(stands, _ENDED):
                setup.cache.keep(self.key, stands, self.value_json if stands is outcome else None)
            else:
                setup.cache.hold(self.key, outcome, late=state == "late")
        elif end.key != "not its own":
            self._release(outcome)
        if end.taints:
            self._taint()
        if end.counts == "settled":
            if record.seconds is not None:
                self.scope.tally.settle(record.name, record.seconds)
            if setup.counting:
                settle_all(setup.counting, record, self.context)
        elif end.counts != "nothing":
            self._give_back(record, waits=end.counts == "kept")

    def _give_back(self, record: ToolInvocationRecord, *, waits: bool) -> None:
        """Undo what was counted for a call whose tool never began: what is counted is what ran. One
        that began and `waits` stays counted in its run, and policies learn from the tally that it did.
        """
        hydrated, scope = self.facts.hydrated, self.scope
        assert isinstance(hydrated, Hydrated)  # noqa: S101  it was counted
        tally = scope.tally
        tally.counted[self.key] = 1 if waits else tally.counted[self.key] - 1
        if not waits and hydrated.call.id not in tally.begun:
            tally.give_back(hydrated.definition.name, hydrated.definition.annotations.cost)
        give_back_all(self.setup.counting, hydrated, record, self.context)

    def _release(self, outcome: Outcome) -> None:
        """Let the key go; a call that waits keeps what its default factories made."""
        hydrated, cache = self.facts.hydrated, self.setup.cache
        if isinstance(outcome, Waiting) and isinstance(hydrated, Hydrated):
            caller = self.context.caller.id
            cache.pin(self.key, hydrated.call, caller, hydrated.building.made)
        cache.release(self.key)

    async def _recorded(self, outcome: Outcome, ledger: Ledger) -> Recorded:
        """Have the ledger write an outcome, and settle it."""
        ran, unwritten = ENDS[self.state].key == "kept", self.state in ("unwritten", "late")
        try:
            written = await self.setup.recorder.write(ledger, outcome.record, self.facts)
        except BaseException:  # the loop is gone, or it was interrupted
            self._settle(outcome)
            raise
        if written.error is not None and ran:
            self._settle(outcome)
            unknown = self._unrecorded(written.error)
            if self.scope.steps is not None and unwritten:
                return Recorded(outcome, None, written.only_stop())  # its step says so for good
            told = None if unwritten else unknown.record
            return Recorded(unknown, told, written.only_stop())
        known = written.given
        if isinstance(known, ToolInvocationRecord) and known != outcome.record:
            likeness = compared(known, outcome.record, self.facts)
            if likeness == "same":
                stands = told_again(known, self.facts)  # somebody else's was written first
                if not unwritten:
                    self._share(stands)
                self._settle(outcome, stands=stands)
                return Recorded(stands, outcome.record if ran else None, written.only_stop())
            # one that ran and had not claimed the key may not contradict what stands there
            if not claims_key(self.facts.hydrated) if ran else likeness == "another":
                return await self._another(ledger, written)
        if not ran and _began_elsewhere(outcome):
            self._share(outcome)
        self._settle(outcome, stands=outcome)
        return Recorded(outcome, outcome.record, written)

    async def _another(self, ledger: Ledger, written: SinkResult) -> Recorded:
        """End as `duplicate_call`, and have that written: another call ended under this key."""
        self.facts.key = ""
        outcome = self.facts.failed(CallError.of(ErrorCode.DUPLICATE_CALL))
        try:
            again = await self.setup.recorder.write(ledger, outcome.record, self.facts)
        finally:
            self._settle(outcome, stands=outcome)
        return Recorded(outcome, outcome.record, again.and_then(written.only_stop()))

    def _unrecorded(self, raised: BaseException) -> Failed:
        """Return `outcome_unknown` for a call that ran and whose outcome could not be written."""
        why = str(raised) if isinstance(raised, ToolcribError) else type(raised).__name__
        _log.warning(
            "a call of %s ran, and its outcome could not be recorded: %s. It is kept in this process,"
            " and written when the call is asked for again",
            self.facts.hydrated.call.name,
            why,
        )
        return self.facts.failed(CallError.of(ErrorCode.OUTCOME_UNKNOWN, _NOT_RECORDED))

    async def _tell(
        self,
        outcome: Outcome,
        record: ToolInvocationRecord | None,
        trouble: SinkResult = DONE,
    ) -> Outcome:
        """Tell every sink but the ledger, also when one of them fails, and whoever watches the run."""
        recorder = self.setup.recorder
        try:
            for sink in recorder.others:
                if record is None:
                    break
                written = recorder.begin_write(sink, record, self.facts)
                if not isinstance(written, SinkResult):
                    written = await written
                if written is not DONE:
                    trouble = trouble.and_then(written)
        finally:
            if self.scope.observer is not None:
                try:
                    self.scope.observer.finished(outcome)
                except asyncio.CancelledError as raised:
                    raise as_failure(raised) from None
        if trouble is not DONE:
            trouble.check()
        if self.watcher_raised is not None:
            raise self.watcher_raised
        return outcome

    def _follow(self, body: Work, late: bool) -> None:
        """Have the end of its tool added that was left behind; `late` says that it was out of time."""
        facts, executor, hydrated = self.facts, self.setup.executor, self.facts.hydrated
        assert isinstance(hydrated, Hydrated)  # noqa: S101  its tool has run
        plan = executor.plans[hydrated.definition.name]

        def read(ending: Ending) -> Completed | Failed:
            stopped = late_end(ending, plan, hydrated, executor, late=late)
            if stopped is None:
                return self._checked(plan, ending[0])
            return facts.failed(stopped.error, stopped.told)

        follow(body, read, self._add_late)

    async def _add_late(self, outcome: Completed | Failed) -> bool:
        """Add how the call ended, where its outcome was unknown: to the ledger, if that is open, and to
        what this process remembers. Return False where it could not be written."""
        cache, ledger = self.setup.cache, self.setup.write_ahead.ledger
        ends = time.monotonic() + _HELD_UP
        while not cache.claim_ended(self.key, self.mark):  # the unknown outcome is being written
            if time.monotonic() > ends:
                return False
            await asyncio.sleep(_LOOK)
        ended = msgspec.structs.replace(self, state=NEXT["ended"]["end late"])
        if ledger is None or getattr(ledger, "closed", False):
            ended._settle(outcome)  # noqa: SLF001  its own
            return True
        trouble = (await ended._recorded(outcome, ledger)).trouble  # noqa: SLF001  its own
        return trouble.error is None and trouble.cancelled is None

    def _rejected(self, rejected: Rejected) -> Stopped:
        """Return the end of a call that cannot run. Where somebody was asked about another definition
        of its tool, it is the tool that has changed, and no arguments of the model's are at fault."""
        now = "" if rejected.definition is None else rejected.definition.digest
        id_, question = next(self.scope.asked_about(rejected.call.id), ("", None))
        if question is None or question.definition_digest == now:
            return Stopped(rejection(rejected))
        self.facts.approval_id = id_
        return Stopped(CallError.of(ErrorCode.APPROVAL_MISMATCH))

    async def _asked(
        self, hydrated: Hydrated, decision: Deny | Ask
    ) -> Hydrated | Waiting | AlreadyCompleted:
        """Return the call that somebody approved: this one, or this one with edited arguments."""
        facts, setup = self.facts, self.setup
        begun = self.scope.suspended.get(hydrated.call.id)
        if begun is not None:  # which a log may know with another definition
            facts.take_suspended(begun)
        if isinstance(decision, Deny):
            return await self._denied(hydrated, decision)
        earlier = await setup.write_ahead.check(self.key, facts, hydrated)
        if earlier is not None:
            return earlier
        caller = self.context.caller
        rules = setup.rules
        while True:
            asking = self.asking
            question = CallQuestion.of(setup, facts, caller, hydrated, decision, asking)
            question.rules, self.question = rules, question
            approved = await question.approved()
            if approved is None:
                return Waiting(facts.record("waiting"), question.request)
            again = await self._look_again(approved, asking)
            if isinstance(again, Ask) and question.outgrown(self.asking):
                decision, rules = again, None  # now somebody is asked
                facts.rule, facts.approved_by = None, None
                continue
            if not isinstance(again, Deny) and await question.keep_rule(approved):
                again = await self._look_again(approved, asking)  # that took time
            if isinstance(again, Deny):
                return await self._denied(approved, again)
            question.keep_for_run(approved)
            return approved

    async def _denied(self, hydrated: Hydrated, denial: Deny) -> AlreadyCompleted:
        """Return the outcome of a call that is denied, and has ended before, as the ledger knows.
        Raises Stopped."""
        self.facts.decision = denial
        earlier = await self.setup.write_ahead.check(self.key, self.facts, hydrated)
        if earlier is None:
            raise Stopped(CallError.of(denial.code))
        return earlier

    async def _look_again(self, approved: Hydrated, asked: Mapping[str, str]) -> Decision:
        """Ask the policies once more, of a call that somebody approved: the run may have spent more
        meanwhile, and an edit is of another call than the one that was `asked` about. Raises Stopped.
        """
        again = await self._look_up(approved) if self.setup.looking else self._decide(approved)
        if isinstance(again, Deny):
            return again
        if self.asking.get(FORK) not in (None, asked.get(FORK)):  # nobody has read about that
            raise Stopped(CallError.of(ErrorCode.REPEATED_EFFECT))
        return again


def _began_elsewhere(outcome: Outcome) -> bool:
    """Return whether a call that did not begin here ends as one that has: nobody knows how."""
    error = outcome.record.error
    unknown = error is not None and error.code is ErrorCode.OUTCOME_UNKNOWN
    return unknown and has_begun(outcome.record)
