"""The life of one call: permitted, perhaps asked about, run once, result checked, end recorded.

Rule: a call is in one state, each step moves it as `NEXT` says, and what its end changes depends
only on that state (`ENDS`). Every call that comes in has exactly one end.

| state     | what has happened                               | at its end the key is | settled |
|-----------|-------------------------------------------------|-----------------------|---------|
| arrived   | nothing that anybody else could notice          | not its own           | no      |
| claimed   | it has claimed its idempotency key              | released              | no      |
| counted   | the policies and the run's tally have counted it| released              | undone  |
| begun     | its tool was started                            | kept with the outcome | yes     |
| suspended | its tool began, and waits for an answer itself  | released              | kept    |
| unwritten | it ran before, and the ledger lacks its outcome | kept with the outcome | no      |
| ended     | its outcome is settled                          |                       |         |
| late      | its tool, left behind at that end, has ended too| kept with the outcome | no      |

A suspended call comes in once more, with its saved state in `scope.suspended`. Such a call has
begun, so nobody is asked about it again. If it cannot resume, it ends as `outcome_unknown`: what it
did before is not undone, and the part that waited does not run here. Its record says who let it
begin. This is not final: the same state may resume later, or has resumed elsewhere. `policy` says
what such a call counts for in its run.

A tool that was left behind ends after its call (`late`). Its outcome is written as if it had ended
in time, or held until the call is asked for again.

A call that ends without having begun here may have begun before, in a process that is gone. If its
run has steps, or resumes from a saved state, the ledger is asked, and the call ends as the ledger
says. A call that began is reported with its recorded end or as `outcome_unknown`. It is also
`outcome_unknown` if the ledger cannot be asked: a call that may have begun is never reported as not
begun.

The caller gets the outcome that the ledger has. An outcome that cannot be written is unknown,
unless a step of its run has stored it. A ledger record is compared with the call before it is
returned, so that nobody learns the outcome of another call under the same key. If they are two
different calls, a call whose tool only read ends as `duplicate_call`; a call that had claimed the
key before it ran keeps its own outcome.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from toolcrib.errors import ErrorCode, SourceError, ToolcribError
from toolcrib.failures import SafeLogger, log_over_time, log_without_code
from toolcrib.hydration import Repairer, repair
from toolcrib.runner.execute import left_running
from toolcrib.runner.executor import Executor, ToolPlan, follow, late_end
from toolcrib.runner.idempotency import (
    ELSEWHERE,
    AlreadyCompleted,
    Fingerprint,
    claims_key,
    compared,
    fingerprint_of,
    release_claim,
    replay_masked,
)
from toolcrib.runner.output import CheckedOutput, check_output, report_unusable, views
from toolcrib.runner.policy import (
    FORK,
    LookedUp,
    Release,
    TallyAccount,
    count_all,
    count_begun,
    decide,
    give_back_all,
    look_up,
    release_each,
    reserve_each,
    settle_all,
)
from toolcrib.runner.question import CallQuestion, Setup, take_begun_with
from toolcrib.runner.recorder import DONE, CallFacts, SinkResult, to_the_end
from toolcrib.runner.running import CALLING, Calling, leave_call, taint
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
from toolcrib.values.definition import ALL, Annotations
from toolcrib.values.json import Redacted, key_of
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
    """Holds what a call's end changes: its idempotency key, policies' counts, the run's taint."""

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
_NOT_RECORDED = "The tool ran, but its outcome could not be recorded. It is not run again."
_TOO_MANY_LEFT_BEHIND = (
    f"{MOST_LEFT_BEHIND} earlier calls that did not stop are still running in this process. The tool"
    " was not started."
)
_BEGAN_UNEMULATED = (
    "The call began with the real tool and cannot be resumed here, where the tool is emulated."
)
_EVICTED = CallError.of(
    ErrorCode.DUPLICATE_CALL,
    "This call has run before, and its result is no longer kept. It was not run again.",
)
_INTERRUPTED = CallError.of(
    ErrorCode.OUTCOME_UNKNOWN, "The call was interrupted by an error outside its tool."
)
_INTERRUPTED_EARLY = CallError.of(
    ErrorCode.NOT_RUNNABLE, "The call was interrupted by an error outside its tool. It did not run."
)
_CUT_OFF = CallError.of(
    ErrorCode.OUTCOME_UNKNOWN, "The call was cut off while it ran: what it did is not known."
)
_UNBEGUN_STATES: frozenset[State] = frozenset(("arrived", "claimed", "counted"))
_ENDED_OUTCOMES = (Completed, Failed)
_RESUMED = Allow("the call had already begun and is being resumed", "standard")
_POLL_SECONDS = 0.05  # seconds between checks whether the outcome is written
_LONGEST_POLLING = 60.0  # seconds that another writer of an unknown outcome may take
_log = SafeLogger("toolcrib.audit")


Recorded: TypeAlias = tuple[Outcome, ToolInvocationRecord | None, SinkResult]
"""The final outcome, the record for sinks other than the ledger, and what to raise."""


class Call(Redacted, msgspec.Struct):
    """Carries one call through a runner: `run` it, or `finalize` it if its outcome needs no run."""

    redacted: ClassVar[tuple[str, ...]] = ("pinned",)

    setup: Setup
    facts: CallFacts
    context: PolicyContext
    scope: CallScope
    pinned: Pinned = None  # what its default factories made before
    executor: Executor | None = None  # the executor of the surrounding run, if not the runner's
    key: str = ""
    state: State = "arrived"
    value_json: bytes | None = None  # the tool's value as JSON, once it has run
    fingerprint: Fingerprint = ("", "", None, "")  # the fingerprint with which it claimed its key
    question: CallQuestion | None = None  # the question whose answer lets it begin
    runs_again: bool = False  # it was cut off, and will run again when its run resumes
    observer_error: BaseException | None = None  # what the observer raised when told of a part
    left_behind: tuple[Work, bool] | None = None  # the tool, and whether it was out of time
    ask_reasons: dict[str, str] = {}  # the policies that ask about it, and why
    releases: Sequence[Release] = ()  # release what stores hold for it, if its tool does not begin

    async def run(
        self, task: asyncio.Task[Any] | None, cancels: int, repairer: Repairer | None
    ) -> Outcome:
        """Return the outcome once it is recorded. Raises what a sink raises, and CancelledError.

        `task` is the task that runs this, and `cancels` the number of cancellation requests it had
        before.
        """
        facts, steps = self.facts, self.scope.steps
        try:
            if steps is None:
                outcome = await self._run_to_outcome(cancels, repairer)
            else:
                outcome = await self._run_as_step(steps, cancels, repairer)
        except GeneratorExit:  # the event loop is gone: nothing can be awaited any more
            if self.state != "ended":
                self._settle(facts.failed(CallError.of(ErrorCode.CANCELLED)))
            raise
        except NotRecorded as not_recorded:
            await self._give_back_yes()
            await self.finalize(self.failure_of(CallError.of(ErrorCode.NOT_RECORDED)))
            raise not_recorded.raised from None
        except BaseException as raised:
            to_raise = await self._end_interrupted(raised, cancels)
            if to_raise is not raised:
                raise to_raise from None
            raise
        if isinstance(outcome, AlreadyCompleted):
            return await self._replay(outcome.outcome)
        try:
            outcome = await self.finalize(outcome)
        finally:
            if self.left_behind is not None:
                self._follow_left_tool(*self.left_behind)
        if task is not None and task.cancelling() > cancels:
            raise asyncio.CancelledError  # the tool caught it; its outcome is recorded
        return outcome

    def failure_of(self, error: CallError, model_text: str = "") -> Failed:
        """Return the outcome of a call that ends with this error in its present state."""
        facts, call_id = self.facts, self.facts.hydrated.call.id
        is_resumed = call_id in self.scope.suspended and self.state in _UNBEGUN_STATES
        if is_resumed and error.code is not ErrorCode.DUPLICATE_CALL:
            take_begun_with(self.setup, facts, self.context.caller, self.scope.suspended[call_id])
            facts.key = key_of(self.scope.tally.run_id, call_id)
            if error is not ELSEWHERE:
                error = CallError.of(ErrorCode.OUTCOME_UNKNOWN, f"{PART_WAITED} {error.message}")
        return facts.failed(error, model_text)

    def account(self) -> Account:
        """Return the account that an agent running as the tool of this call spends from."""
        account = self.scope.account
        return account or TallyAccount(self.setup.policies, self.context, self.facts.hydrated)

    def around(self) -> Surroundings:
        """Return what an agent running as the tool of this call takes from the surrounding run."""
        approver = self.scope.approver or self.setup.approver
        paying = (*self.setup.paying, *self.scope.paying)
        sinks = self.setup.recorder.sinks
        steps = self.facts.steps_around
        return Surroundings(self.scope, approver, sinks, self.account, paying, steps)

    def observer_failed(self, raised: BaseException) -> None:
        """Store what the observer raised at a part; it is raised once the call is over."""
        self.observer_error = raised

    async def finalize(self, outcome: Outcome) -> Outcome:
        """Record and remember an outcome; return the one that stands.

        The ledger comes first, then the other sinks. The observer is told even if one of them
        fails. Raises what a sink raised, after all of this.
        """
        if self.state == "ended":  # it was already reported, within its step
            return outcome
        ledger = self.setup.write_ahead.ledger
        if ledger is None:
            if self.state in _UNBEGUN_STATES and _began_elsewhere(outcome):
                self._charge_run(outcome)
            self._settle(outcome)
            if not self.setup.recorder.others and self.scope.observer is None:
                return outcome  # nobody is to be told
            return await self._notify(outcome, outcome.record)
        if self.state in _UNBEGUN_STATES and isinstance(outcome, Failed):
            return await self._finalize_known(*await self._as_ledger_knows(outcome, ledger), ledger)
        return await self._notify(*await self._write_outcome(outcome, ledger))

    async def _finalize_known(
        self, end: Failed | AlreadyCompleted, stop: SinkResult, ledger: Ledger
    ) -> Outcome:
        """Finalize a call that did not begin here as `_as_ledger_knows` says, then raise `stop`."""
        if isinstance(end, AlreadyCompleted):
            replayed = await self._replay(end.outcome)
            stop.check()
            return replayed
        outcome, record, sink_result = await self._write_outcome(end, ledger)
        return await self._notify(outcome, record, sink_result.and_then(stop))

    async def finalize_begun(self) -> None:
        """Finalize a call that is not run here if it began before. Raises what a sink raises."""
        ledger = self.setup.write_ahead.ledger
        if ledger is None:
            return
        failure = self.failure_of(CallError.of(ErrorCode.CANCELLED))
        end, stop = await self._as_ledger_knows(failure, ledger)
        if end is failure:
            stop.check()
        else:
            await self._finalize_known(end, stop, ledger)

    async def _as_ledger_knows(
        self, failure: Failed, ledger: Ledger
    ) -> tuple[Failed | AlreadyCompleted, SinkResult]:
        """Return how a call ends that has failed and did not begin here.

        If it began before, it ends as the ledger says; if the ledger cannot be asked, as
        `outcome_unknown`. A cancellation that arrived in the meantime is returned as well.
        """
        facts = self.facts
        if has_begun(failure.record) or not facts.may_have_begun:
            return failure, DONE
        key = key_of(self.scope.tally.run_id, facts.hydrated.call.id)
        entry = facts.record("started", key=key)
        find_result = await to_the_end(partial(ledger.find, entry))
        record, stop = find_result.value, find_result.without_error()
        if isinstance(record, ToolInvocationRecord):
            likeness = compared(record, entry, facts)
            if likeness == "another":
                return failure, stop
            if likeness == "same" and is_final(record):
                return AlreadyCompleted(replay_masked(record, facts)), stop
            facts.take_begun(record, unsure=likeness == "unsure")
            facts.decision = record.decision
        elif record is None and find_result.error is None:
            return failure, stop
        facts.key = key
        stop = stop.and_then(await self.setup.write_ahead.take_spent(facts))
        return facts.failed(CallError.of(ErrorCode.OUTCOME_UNKNOWN)), stop

    async def _run_to_outcome(
        self, cancels: int, repairer: Repairer | None
    ) -> Outcome | AlreadyCompleted:
        """Repair the call if needed, and take it through all steps to its tool's result.

        Returns the outcome to report, also when a step stops the call.
        """
        setup, facts = self.setup, self.facts
        try:
            if repairer is not None and not facts.hydrated.success:
                await self._repair(facts.hydrated, repairer, cancels)
            hydrated, plan = self._plan(facts.hydrated)
            earlier = self._claim(hydrated)
            if earlier is not None:
                return (
                    await self._in_ledger(hydrated, _EVICTED) if earlier == "evicted" else earlier
                )
            decision = await self._look_up(hydrated) if setup.looking else self._decide(hydrated)
            if not isinstance(decision, Allow):
                approved = await self._ask_for_approval(hydrated, decision)
                if not isinstance(approved, Hydrated):
                    return approved
                hydrated = approved
            denial = self._count(hydrated)
            if denial is not None:
                return await self._deny(hydrated, denial)
            return await self._start_tool(hydrated, plan, cancels)
        except Suspended as suspended:
            return self._suspend(suspended)
        except Stopped as stopped:
            facts.notes += stopped.notes
            outcome = self.failure_of(stopped.error, stopped.model_text)
            self.left_behind = None if stopped.work is None else (stopped.work, stopped.late)
            if self.question is not None and self.state != "begun":
                self.question.keep_end(outcome)
            return outcome
        finally:
            if self.releases and self.state == "counted":
                await release_each(self.releases)

    async def _start_tool(
        self, hydrated: Hydrated, plan: ToolPlan, cancels: int
    ) -> Outcome | AlreadyCompleted:
        """Start a permitted call in one of the runner's slots, and return what its tool gives."""
        setup, facts = self.setup, self.facts
        exclusive = hydrated.definition.annotations.exclusive
        slot = setup.limiter.try_enter(exclusive) or await setup.limiter.enter(exclusive)
        executor = (self.executor or setup.executor).weakly  # weak: a tool may keep this context
        tally, call_id, works = self.scope.tally, hydrated.call.id, LeftWork()
        calling = Calling(tally, call_id, setup.limiter, facts.parent, slot, executor, facts, works)
        CALLING.set(calling)
        try:
            denial = None
            if setup.reserving:
                releases = self.releases = list[Release]()
                steps = facts.steps_around
                denial = await reserve_each(
                    setup.reserving, hydrated, self.context, releases, steps
                )
            if denial is not None:
                return await self._deny(hydrated, denial)
            if setup.write_ahead.is_needed:
                earlier = await setup.write_ahead.begin(self.key, facts, hydrated, setup.recorder)
                if earlier is not None:
                    return earlier
            facts.key = "" if plan.emulated else self.key  # an emulated call begins nothing
            self.state = NEXT[self.state]["begin"]
            self.scope.begins()
            start = time.monotonic()
            try:
                value = await setup.executor.run(plan, hydrated, self)
            except BaseException as raised:  # noqa: BLE001  a tool may raise anything
                raise setup.executor.end_of(
                    raised, plan, hydrated, works, cancels=cancels
                ) from None
            seconds = time.monotonic() - start
            if plan.limit is not None and seconds > plan.limit and not works.put_off:
                facts.notes += ("over_time_limit",)  # something blocked the event loop
                log_over_time(plan.tool.definition.name, seconds, plan.limit)
        finally:
            self.scope.ends()
            leave_call(calling)
            if slot:
                setup.limiter.leave(calling)
        return self._check_result(plan, value)

    async def _repair(self, rejected: Rejected, repairer: Repairer, cancels: int) -> None:
        setup = self.setup
        hook = setup.reporter.debug
        repaired = repair(rejected, setup.catalog, repairer, pinned=self.pinned, on_exception=hook)
        self.facts.take(await repaired)
        if cancel_requests() > cancels:
            raise asyncio.CancelledError  # the repairer swallowed the cancellation

    async def _end_interrupted(self, raised: BaseException, cancels: int) -> BaseException:
        """Record the end of a call that was cancelled or broken off, and return what to raise.

        If another process may resume its run, or the run that this one is within, no final outcome
        is recorded for a call that has begun, or that the log says has begun. Nothing more is
        recorded for a call that was already reported and is not kept, and nothing for a call that
        the other process will make. A call that was called off is not made again anywhere, so its
        end is final.
        """
        is_stopped = cancel_requests() > cancels or isinstance(raised, KeyboardInterrupt)
        to_raise = raised if is_stopped else as_failure(raised)
        steps = self.facts.steps_around
        resumes_elsewhere = getattr(steps, "stopping", False)  # in another process
        if self.state == "arrived" and resumes_elsewhere:
            return to_raise
        error = CallError.of(ErrorCode.CANCELLED) if is_stopped else _INTERRUPTED
        if not is_stopped and self.state in _UNBEGUN_STATES:
            error = _INTERRUPTED_EARLY
        is_begun = self.state == "begun" or bool(self.facts.key)
        ends_here = is_stopped and self.facts.called_off and not resumes_elsewhere
        is_cut_off = (
            is_begun and steps is not None and (is_stopped or resumes_elsewhere) and not ends_here
        )
        definition = self.facts.hydrated.definition
        marks = Annotations() if definition is None else definition.annotations
        self.runs_again = is_cut_off and (marks.idempotent or marks.read_only)
        await self._give_back_yes()
        await record_end(
            self.finalize(self.failure_of(_CUT_OFF if is_cut_off else error)), to_raise, cancels
        )
        return to_raise

    async def _give_back_yes(self) -> None:
        """Give back the yes that a stored answer was for this call, unless its tool has begun."""
        if self.question is not None and self.state in _UNBEGUN_STATES:
            await self.question.give_back()

    async def _run_as_step(
        self, steps: StepRunner, cancels: int, repairer: Repairer | None
    ) -> Outcome | AlreadyCompleted:
        """Run the call to its outcome as a step of its run, or return the stored outcome.

        The end of a call that began is stored before anybody is told: nothing else knows what the
        model is to see. A call that did not begin is reported first, because its step may be
        repeated.
        """
        outcomes: list[Outcome | AlreadyCompleted] = []

        async def work() -> CallStep:
            outcome = await self._outcome_unless_called_off(cancels, repairer)
            end: CallEnd = "kept" if self.state in ("begun", "unwritten") else "known"
            if end == "kept":
                self._taint()  # stored in the step: its tool may be another one later
            if end == "known" and not isinstance(outcome, AlreadyCompleted):
                outcome, end = await self.finalize(outcome), "told"
                if isinstance(outcome, _ENDED_OUTCOMES) and outcome.replayed:
                    end = "known"
            outcomes.append(outcome)
            stored = outcome.outcome if isinstance(outcome, AlreadyCompleted) else outcome
            return CallStep.of(stored, self.value_json, end, self.scope.tally)

        step = await steps.run(f"call {self.facts.hydrated.call.id}", work, CallStep)
        return outcomes[0] if outcomes else self._take_step_outcome(step)

    async def _outcome_unless_called_off(
        self, cancels: int, repairer: Repairer | None
    ) -> Outcome | AlreadyCompleted:
        """Return the outcome, also of a call that was called off while its tool ran.

        That outcome holds wherever its run resumes.
        """
        try:
            return await self._run_to_outcome(cancels, repairer)
        except asyncio.CancelledError:
            if self.state != "begun" or not self.scope.called_off():
                raise
            return self.failure_of(CallError.of(ErrorCode.CANCELLED))

    def _take_step_outcome(self, step: CallStep) -> Outcome | AlreadyCompleted:
        """Return the outcome that a step has stored, and count its share of the run's spending."""
        scope, record, outcome = self.scope, step.record, step.outcome
        scope.tally.add_stored(step.elapsed, step.approved)
        if step.tainted:
            taint(scope.tally)
        is_made_up = record.emulated and not self.setup.executor.emulates
        if step.end == "told" or isinstance(outcome, Waiting) or is_made_up:
            is_counted = is_made_up and isinstance(outcome, Completed)
            if is_counted or step.suspended is not None or _began_elsewhere(outcome):
                self._charge_run(outcome)
            if step.suspended is not None:
                scope.tally.mark_begun(record.id)
            self.state = NEXT[self.state]["end"]
            if scope.observer is not None:
                scope.observer.finished(outcome)
            if is_made_up:  # emulated results must not continue in a real run
                raise SourceError(MADE_UP)
            return outcome
        if step.end == "kept":
            if record.seconds is not None:
                scope.tally.add_seconds(record.name, record.seconds)
            with suppress(Stopped):  # its tool is another one by now
                if self._claim(self._plan(self.facts.hydrated)[0]) is None:
                    self.state = NEXT["arrived"]["find unwritten"]
        return AlreadyCompleted(outcome)

    def _suspend(self, suspended: Suspended) -> Waiting:
        """Suspend the call until what its tool asks is answered. The call stays counted."""
        self.state = NEXT[self.state]["suspend"]
        facts, tally, requests = self.facts, self.scope.tally, suspended.requests
        facts.key = ""
        approval = None if self.question is None else self.question.waits_within(requests)
        call = OuterCall(tally.run_id, facts.hydrated.call.id, facts.hydrated.call.name)
        tally.mark_begun(call.call_id)
        earlier = self.scope.suspended.get(call.call_id)
        times = facts.claim[0] if facts.claim else 0 if earlier is None else earlier.times
        approval_id = "" if ALWAYS in facts.notes else facts.approval_id
        rule = None if facts.rule is None else (facts.rule, approval_id)
        suspended_call = SuspendedCall(
            msgspec.Raw(suspended.saved.encode()), call, times, approval, rule
        )
        facts.notes += (SUSPENDED,)
        return Waiting(facts.record("waiting"), requests[0], requests[1:], suspended_call)

    def _plan(self, hydrated: HydrationResult) -> tuple[Hydrated, ToolPlan]:
        """Return a call that may run, and the plan of its registered tool. Raises Stopped.

        A call that was hydrated against another tool of this name does not run.
        """
        if not isinstance(hydrated, Hydrated):
            raise self._stop_rejected(hydrated)
        definition, parent, setup = hydrated.definition, self.facts.parent, self.setup
        plan = setup.executor.plans.get(definition.name)
        if plan is not None and plan.emulated:
            if hydrated.call.id in self.scope.suspended:  # it has begun with its real tool
                raise Stopped(CallError.of(ErrorCode.NOT_RUNNABLE, _BEGAN_UNEMULATED))
            self.facts.notes += (EMULATED,)
        elif parent is not None and parent.limiter is setup.limiter and parent.agent is None:
            outer_executor = parent.executor()  # the executor of the run that the call is made in
            outer_plan = (
                None if outer_executor is None else outer_executor.plans.get(definition.name)
            )
            # an emulated tool may call real ones
            is_real = outer_plan is not None and not outer_plan.emulated
            if (
                plan is not None
                and outer_plan is not None
                and is_real
                and outer_plan.tool is plan.tool
            ):
                self.executor, plan = outer_executor, outer_plan
        if plan is None:
            if definition.name in setup.catalog:
                log_without_code(definition.name)
            raise Stopped(CallError.of(ErrorCode.NOT_RUNNABLE))
        # abandoned calls count until they return; usually there are few to check
        if Work.left_behind >= MOST_LEFT_BEHIND and left_running() >= MOST_LEFT_BEHIND:
            raise Stopped(
                CallError.of(ErrorCode.NOT_RUNNABLE, _TOO_MANY_LEFT_BEHIND, retryable=True)
            )
        registered = plan.tool.definition
        if registered is not definition and registered.digest != definition.digest:
            raise Stopped(CallError.of(ErrorCode.NOT_RUNNABLE))
        return hydrated, plan

    def _claim(self, hydrated: Hydrated) -> AlreadyCompleted | Literal["evicted"] | None:
        """Claim the call's key; return its outcome if it has run before. Raises Stopped."""
        key = key_of(self.scope.tally.run_id, hydrated.call.id)
        self.fingerprint = fingerprint_of(hydrated, self.context.caller)
        earlier = self.setup.cache.claim(key, self.fingerprint)
        if earlier is None:
            self.key = key
            self.state = NEXT[self.state]["claim"]
        elif earlier != "evicted" and not earlier.written:
            self.key = key
            self.state = NEXT[self.state]["find unwritten"]
        return earlier

    async def _in_ledger(self, hydrated: Hydrated, otherwise: CallError) -> AlreadyCompleted:
        """Return the ledger's outcome of the call. Raises Stopped if there is none."""
        key = key_of(self.scope.tally.run_id, hydrated.call.id)
        earlier = await self.setup.write_ahead.check(key, self.facts, hydrated)
        if earlier is None:
            raise Stopped(otherwise)
        return earlier

    def _decide(self, hydrated: Hydrated, looked_up: Sequence[LookedUp] = ()) -> Decision:
        """Ask the policies. If a person was asked about this call before, an answer is needed."""
        scope, context = self.scope, self.context
        if scope.tally.begun and hydrated.call.id in scope.tally.begun:
            context = self._context_without(hydrated)
        if self.ask_reasons:
            self.ask_reasons = {}
        decision = decide(self.setup.at_once, hydrated, context, looked_up, self.ask_reasons)
        if scope.suspended or scope.questions:
            decision = self._require_answer(hydrated.call.id, decision)
        self.facts.decision = decision
        return decision

    def _require_answer(self, call_id: str, decision: Decision) -> Decision:
        suspended = self.scope.suspended.get(call_id)
        is_answered = suspended is not None and suspended.approval is not None
        if suspended is not None and not is_answered and isinstance(decision, Ask):
            return _RESUMED
        if isinstance(decision, Allow) and (
            is_answered or any(self.scope.questions_about(call_id))
        ):
            return Ask("somebody was asked about this call before", "standard")
        return decision

    def _context_without(self, hydrated: Hydrated) -> PolicyContext:
        """Return the policies' context without this call, which already has its place in it."""
        tally = self.scope.tally.copied()
        tally.give_back(hydrated.definition.name, hydrated.definition.annotations.cost)
        return PolicyContext(self.context.caller, tally)

    async def _look_up(self, hydrated: Hydrated) -> Decision:
        """Ask the policies that look something up, unless the others deny the call.

        The other policies are then asked once more, so that nothing is awaited between their
        decision and the count.
        """
        decision = self._decide(hydrated)
        if isinstance(decision, Deny):
            return decision
        setup, is_begun = self.setup, hydrated.call.id in self.scope.tally.begun
        context = self._context_without(hydrated) if is_begun else self.context
        looked_up = await look_up(setup.looking, hydrated, context, setup.policy_seconds)
        return self._decide(hydrated, looked_up)

    def _count(self, hydrated: Hydrated) -> Deny | None:
        """Count the call, unless a policy refuses; from here on the call counts as made.

        Nothing is awaited between the decision and this, so that calls of one reply cannot share a
        last allowance.
        """
        if self.setup.counting:
            refused = count_all(self.setup.counting, hydrated, self.context)
            if refused is not None:
                return refused
        definition, tally = hydrated.definition, self.scope.tally
        if tally.approved and self.facts.approved_by is None:
            approval = tally.approval_of(hydrated, self.context.caller.id)
            if approval is not None:
                self.facts.approval_id, self.facts.approved_by = approval.id, approval.by
        counted = tally.counted
        is_begun = hydrated.call.id in tally.begun
        counted[self.key] = counted.get(self.key, is_begun) + 1
        if not is_begun:  # a call that begins counts, even if another runner had a call of that id
            tally.count(definition.name, definition.annotations.cost)
        self.state = NEXT[self.state]["count"]
        return None

    def _check_result(self, plan: ToolPlan, value: Any) -> Completed | Failed:
        """Return the outcome of a call that gave `value`, which is read once: it may be used up."""
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
        model_parts = parts if definition.model_visible is ALL else ()
        return Completed(record, content.value, model, notice, parts=parts, model_parts=model_parts)

    async def _replay(self, outcome: Completed | Failed) -> Outcome:
        """Return the earlier outcome. If the ledger lacks it, it is written first."""
        self._charge_run(outcome)
        ledger = self.setup.write_ahead.ledger
        if self.state == "unwritten" and ledger is not None:
            self.facts.key = self.key
            final_outcome, record, sink_result = await self._write_outcome(outcome, ledger)
        else:
            self._settle(outcome)
            final_outcome, record, sink_result = outcome, None, DONE
        final_outcome = msgspec.structs.replace(final_outcome, replayed=True)
        record = record if self.scope.steps is None else None  # they were told where it ran
        return await self._notify(final_outcome, record, sink_result)

    def _charge_run(self, outcome: Outcome) -> None:
        """Update the run for a call that began earlier or elsewhere.

        Its content taints the run as it did there, and the run is charged once for everything the
        call spent, also within it, as if it had run here.
        """
        definition, scope, record = self.facts.hydrated.definition, self.scope, outcome.record
        if READ_UNTRUSTED in record.notes:
            taint(scope.tally)
        self._taint()
        if definition is not None and self.state != "begun":  # otherwise it was counted here
            count_begun(self.facts, record, self.account, is_counted=self.state == "counted")

    def _taint(self) -> None:
        definition = self.facts.hydrated.definition
        if definition is not None and definition.annotations.untrusted_output:
            taint(self.scope.tally)

    def _settle(self, outcome: Outcome, *, ledger_outcome: Outcome | None = None) -> None:
        """Do the part of `finalize` that awaits nothing: cache, taint, tally and policies.

        `ledger_outcome` is what the ledger has; without it the outcome is still to be written.
        """
        setup, facts = self.setup, self.facts
        state, record = self.state, outcome.record
        end, self.state = ENDS[state], NEXT[state]["end"]
        ledger_outcome = outcome if setup.write_ahead.ledger is None else ledger_outcome
        is_kept = end.key == "kept"
        if facts.claim and (not is_kept or is_final(record)):
            release_claim(facts.claim[1])
        if (
            is_kept
            and record.idempotency_key
            and not self.runs_again
            and isinstance(outcome, _ENDED_OUTCOMES)
        ):
            if isinstance(ledger_outcome, _ENDED_OUTCOMES):
                setup.cache.keep(
                    self.key, ledger_outcome, self.value_json if ledger_outcome is outcome else None
                )
            else:
                setup.cache.hold(self.key, outcome, late=state == "late")
        elif end.key != "not its own":
            self._release(outcome)
        if end.taints:
            self._taint()
        if end.counts == "settled":
            if record.seconds is not None:
                self.scope.tally.add_seconds(record.name, record.seconds)
            if setup.counting:
                settle_all(setup.counting, record, self.context)
        elif end.counts != "nothing":
            self._give_back(record, waits=end.counts == "kept")

    def _give_back(self, record: ToolInvocationRecord, *, waits: bool) -> None:
        """Undo the counts of a call whose tool never began, because only calls that ran count.

        A call that began and `waits` stays counted in its run; the tally tells the policies so.
        """
        hydrated, scope = self.facts.hydrated, self.scope
        assert isinstance(hydrated, Hydrated)  # noqa: S101  it was counted
        tally = scope.tally
        tally.counted[self.key] = 1 if waits else tally.counted[self.key] - 1
        if not waits and hydrated.call.id not in tally.begun:
            tally.give_back(hydrated.definition.name, hydrated.definition.annotations.cost)
        give_back_all(self.setup.counting, hydrated, record, self.context)

    def _release(self, outcome: Outcome) -> None:
        """Release the key; for a call that waits, keep what its default factories made."""
        hydrated, cache = self.facts.hydrated, self.setup.cache
        if isinstance(outcome, Waiting) and isinstance(hydrated, Hydrated):
            caller = self.context.caller.id
            cache.pin(self.key, hydrated.call, caller, hydrated.building.factory_values)
        cache.release(self.key)

    async def _write_outcome(self, outcome: Outcome, ledger: Ledger) -> Recorded:
        """Have the ledger write an outcome, and settle it."""
        has_run, is_unwritten = ENDS[self.state].key == "kept", self.state in ("unwritten", "late")
        try:
            write_result = await self.setup.recorder.write(ledger, outcome.record, self.facts)
        except BaseException:  # the event loop is gone, or the write was interrupted
            self._settle(outcome)
            raise
        if write_result.error is not None and has_run:
            self._settle(outcome)
            unknown = self._unknown_outcome(write_result.error)
            if self.scope.steps is not None and is_unwritten:
                return outcome, None, write_result.without_error()  # its step has stored it
            return unknown, None if is_unwritten else unknown.record, write_result.without_error()
        record = write_result.value
        if isinstance(record, ToolInvocationRecord) and record != outcome.record:
            likeness = compared(record, outcome.record, self.facts)
            if likeness == "same":
                # another process wrote its outcome first
                ledger_outcome = replay_masked(record, self.facts)
                if not is_unwritten:
                    self._charge_run(ledger_outcome)
                self._settle(outcome, ledger_outcome=ledger_outcome)
                return (
                    ledger_outcome,
                    outcome.record if has_run else None,
                    write_result.without_error(),
                )
            # a call that ran without claiming the key must not contradict the record under it
            if not claims_key(self.facts.hydrated) if has_run else likeness == "another":
                return await self._end_as_duplicate(ledger, write_result)
        if not has_run and _began_elsewhere(outcome):
            self._charge_run(outcome)
        self._settle(outcome, ledger_outcome=outcome)
        return outcome, outcome.record, write_result

    async def _end_as_duplicate(self, ledger: Ledger, write_result: SinkResult) -> Recorded:
        """End as `duplicate_call` and record that: another call ended under this key."""
        self.facts.key = ""
        outcome = self.facts.failed(CallError.of(ErrorCode.DUPLICATE_CALL))
        try:
            second_result = await self.setup.recorder.write(ledger, outcome.record, self.facts)
        finally:
            self._settle(outcome, ledger_outcome=outcome)
        return outcome, outcome.record, second_result.and_then(write_result.without_error())

    def _unknown_outcome(self, error: BaseException) -> Failed:
        reason = str(error) if isinstance(error, ToolcribError) else type(error).__name__
        _log.warning(
            "a call of %s ran, but its outcome could not be recorded: %s. The outcome is kept in this"
            " process, and written when the same call is made again",
            self.facts.hydrated.call.name,
            reason,
        )
        return self.facts.failed(CallError.of(ErrorCode.OUTCOME_UNKNOWN, _NOT_RECORDED))

    async def _notify(
        self, outcome: Outcome, record: ToolInvocationRecord | None, sink_result: SinkResult = DONE
    ) -> Outcome:
        """Tell every sink but the ledger, even if one fails, and then the run's observer."""
        recorder = self.setup.recorder
        try:
            for sink in recorder.others:
                if record is None:
                    break
                write_result = recorder.begin_write(sink, record, self.facts)
                if not isinstance(write_result, SinkResult):
                    write_result = await write_result
                if write_result is not DONE:
                    sink_result = sink_result.and_then(write_result)
        finally:
            if self.scope.observer is not None:
                try:
                    self.scope.observer.finished(outcome)
                except asyncio.CancelledError as raised:
                    raise as_failure(raised) from None
        if sink_result is not DONE:
            sink_result.check()
        if self.observer_error is not None:
            raise self.observer_error
        return outcome

    def _follow_left_tool(self, work: Work, late: bool) -> None:
        """Record the end of a left-behind tool; `late` says that it had run out of time."""
        facts, executor, hydrated = self.facts, self.setup.executor, self.facts.hydrated
        assert isinstance(hydrated, Hydrated)  # noqa: S101  its tool has run
        plan = executor.plans[hydrated.definition.name]

        def read(ending: Ending) -> Completed | Failed:
            stopped = late_end(ending, plan, hydrated, executor, late=late)
            if stopped is None:
                return self._check_result(plan, ending[0])
            return facts.failed(stopped.error, stopped.model_text)

        follow(work, read, self._add_late)

    async def _add_late(self, outcome: Completed | Failed) -> bool:
        """Add the end of a call whose outcome was unknown to the ledger, if open, and to the cache.

        Returns False if it could not be written.
        """
        cache, ledger = self.setup.cache, self.setup.write_ahead.ledger
        deadline = time.monotonic() + _LONGEST_POLLING
        # as long as the unknown outcome is being written
        while not cache.claim_ended(self.key, self.fingerprint):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        late_call = msgspec.structs.replace(self, state=NEXT["ended"]["end late"])
        if ledger is None or getattr(ledger, "closed", False):
            late_call._settle(outcome)  # noqa: SLF001  the same class
            return True
        _, _, sink_result = await late_call._write_outcome(outcome, ledger)  # noqa: SLF001  the same class
        return sink_result.error is None and sink_result.cancelled is None

    def _stop_rejected(self, rejected: Rejected) -> Stopped:
        """Return the end of a call that cannot run.

        If somebody was asked about another definition of its tool, the tool has changed, and the
        model's arguments are not at fault.
        """
        digest = "" if rejected.definition is None else rejected.definition.digest
        id_, request = next(self.scope.questions_about(rejected.call.id), ("", None))
        if request is None or request.definition_digest == digest:
            return Stopped(rejection(rejected))
        self.facts.approval_id = id_
        return Stopped(CallError.of(ErrorCode.APPROVAL_MISMATCH))

    async def _ask_for_approval(
        self, hydrated: Hydrated, decision: Deny | Ask
    ) -> Hydrated | Waiting | AlreadyCompleted:
        """Return the call that somebody approved: this one, or this one with edited arguments."""
        facts, setup = self.facts, self.setup
        suspended = self.scope.suspended.get(hydrated.call.id)
        if suspended is not None:  # the log may have it with another definition
            facts.take_suspended(suspended)
        if isinstance(decision, Deny):
            return await self._deny(hydrated, decision)
        earlier = await setup.write_ahead.check(self.key, facts, hydrated)
        if earlier is not None:
            return earlier
        caller = self.context.caller
        rules = setup.rules
        while True:
            ask_reasons = self.ask_reasons
            question = CallQuestion.of(setup, facts, caller, hydrated, decision, ask_reasons)
            question.rules, self.question = rules, question
            approved = await question.approved()
            if approved is None:
                return Waiting(facts.record("waiting"), question.request)
            new_decision = await self._decide_again(approved, ask_reasons)
            if isinstance(new_decision, Ask) and question.outgrown(self.ask_reasons):
                decision, rules = new_decision, None  # from now on a person is asked
                facts.rule, facts.approved_by = None, None
                continue
            if not isinstance(new_decision, Deny) and await question.keep_rule(approved):
                new_decision = await self._decide_again(approved, ask_reasons)  # that took time
            if isinstance(new_decision, Deny):
                return await self._deny(approved, new_decision)
            question.keep_for_run(approved)
            return approved

    async def _deny(self, hydrated: Hydrated, denial: Deny) -> AlreadyCompleted:
        self.facts.decision = denial
        return await self._in_ledger(hydrated, CallError.of(denial.code))

    async def _decide_again(
        self, approved: Hydrated, earlier_reasons: Mapping[str, str]
    ) -> Decision:
        """Ask the policies again about an approved call. Raises Stopped.

        The run may have spent more in the meantime, and an edited call is not the one that somebody
        was asked about, for `earlier_reasons`.
        """
        decision = await self._look_up(approved) if self.setup.looking else self._decide(approved)
        if isinstance(decision, Deny):
            return decision
        # nobody was asked about the fork, or not for this reason
        if self.ask_reasons.get(FORK) not in (None, earlier_reasons.get(FORK)):
            raise Stopped(CallError.of(ErrorCode.REPEATED_EFFECT))
        return decision


def _began_elsewhere(outcome: Outcome) -> bool:
    """Return whether a call that did not begin here ends as begun elsewhere, outcome unknown."""
    error = outcome.record.error
    is_unknown = error is not None and error.code is ErrorCode.OUTCOME_UNKNOWN
    return is_unknown and has_begun(outcome.record)
