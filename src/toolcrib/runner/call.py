"""One call on its way through a runner: permitted, perhaps asked about, run once, its result checked.

Whatever ends it early is raised: `Stopped` with an error, `EndedBefore` with the outcome that the same
call had earlier. The runner writes down which it was.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from typing import Any, NamedTuple, TypeAlias

import msgspec

from toolcrib.errors import ErrorCode, ToolcribError
from toolcrib.failures import log_over_time
from toolcrib.hydrate import Repairer, repair
from toolcrib.runner.approval import answer_to, approval_request, approved_call, lapsed_by_closing
from toolcrib.runner.execute import cancel_requests
from toolcrib.runner.executor import Executor
from toolcrib.runner.idempotency import CallMemory, Intents, print_of, replayed
from toolcrib.runner.limiter import Gate
from toolcrib.runner.output import check_output, report_unusable, views
from toolcrib.runner.policy import CountingPolicy, Policy, count_all, decide, settle_all
from toolcrib.runner.recorder import Draft, Recorder, own_record
from toolcrib.runner.scope import CallScope, enter_call, leave_call, taint
from toolcrib.runner.stopped import EndedBefore, Reporter, Stopped, accepted
from toolcrib.threads import MOST_LEFT_BEHIND, has_room
from toolcrib.tools import Catalog, Tool
from toolcrib.values.call import Hydrated
from toolcrib.values.context import PolicyContext, ToolApproval
from toolcrib.values.decision import (
    Allow,
    ApprovalRequest,
    Approve,
    Approver,
    Ask,
    Decision,
    Deny,
    Refuse,
)
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.record import (
    CallError,
    Completed,
    Failed,
    Outcome,
    ToolInvocationRecord,
    Waiting,
    key_of,
)

_NOT_RECORDED = "The tool ran, but what came of it could not be recorded. It is not run again."
_NO_ROOM = (
    f"{MOST_LEFT_BEHIND} earlier calls that were given up still run here. The tool was not started."
)
_log = logging.getLogger("toolcrib.audit")
# The outcome that stands, what sinks other than the ledger are told, and what to raise in the end.
_Recorded: TypeAlias = tuple[Outcome, ToolInvocationRecord | None, BaseException | None]


class Setup(NamedTuple):
    """What a runner holds, and each of its calls uses."""

    catalog: Catalog
    policies: tuple[Policy, ...]
    counting: tuple[CountingPolicy, ...]
    approver: Approver | None
    approval_seconds: float
    gate: Gate
    intents: Intents
    executor: Executor
    reporter: Reporter
    memory: CallMemory
    max_result_bytes: int
    recorder: Recorder


class Attempt(msgspec.Struct):
    """One call, once: `outcome`, then `close` with what came of it, or `ended_before`.

    How far it came: its `key` is claimed, the policies have `counted` it, its tool has `begun`; or it
    ran before, and what came of it is `held`, as the ledger could not write it then.

    What its caller is told is what the ledger has: an outcome that cannot be written is not known.
    """

    setup: Setup
    draft: Draft
    context: PolicyContext
    scope: CallScope
    key: str | None = None
    counted: bool = False
    begun: bool = False
    held: Completed | Failed | None = None

    async def outcome(self, cancels: int, repairer: Repairer | None) -> Outcome:
        """What comes of it, repaired first if need be. Raises Stopped, EndedBefore, CancelledError and
        what a sink raises.

        `cancels` is what `cancel_requests` said before.
        """
        setup = self.setup
        if repairer is not None and not self.draft.hydrated.success:
            self.draft.take(await repair(self.draft.hydrated, setup.catalog, repairer))
        hydrated = accepted(self.draft.hydrated)
        tool = self._runnable(hydrated)
        key = key_of(self.scope.tally.run_id, hydrated.call.id)
        self.held = setup.memory.claim(key, print_of(hydrated, self.context.caller))
        self.key = key
        if self.held is not None:
            raise EndedBefore(self.held)
        decision = self._decide(hydrated)
        if isinstance(decision, Allow):
            self._approved_before(hydrated)
        else:
            approved = await self._asked(hydrated, decision, key)
            if isinstance(approved, Waiting):
                return approved
            hydrated = approved
        self._count(hydrated)
        exclusive = hydrated.definition.annotations.exclusive
        place = setup.gate.try_enter(exclusive) or await setup.gate.enter(exclusive)
        outer = enter_call(self.scope.tally, hydrated.call.id)
        try:
            if setup.intents.wanted:
                await setup.intents.begin(key, self.draft, hydrated, setup.recorder)
            self.draft.key = key
            self.begun = True
            began = time.monotonic()
            value = await setup.executor.run(
                tool, hydrated, self.context.caller, self.scope, key=key, cancels=cancels
            )
            self._took(hydrated.definition, time.monotonic() - began)
        finally:
            leave_call(outer)
            setup.gate.leave(place)
        return _outcome_of(self.draft, tool, value, setup.max_result_bytes, setup.reporter)

    async def close(self, outcome: Outcome) -> Outcome:
        """Write down and remember what came of it; the outcome that stands.

        The ledger comes first, then the other sinks, and whoever watches is told also if one of them
        fails. Raises what a sink raises, in the end.
        """
        return await self._tell(*await self._recorded(outcome))

    async def ended_before(self, outcome: Completed | Failed) -> Outcome:
        """The earlier outcome, once more: its content is as untrusted as ever, and it has its cost.

        One that the ledger does not have yet is written first.
        """
        self._taint()
        definition = self.draft.hydrated.definition
        if not self.counted and definition is not None:
            self.scope.tally.count(definition.name, definition.annotations.cost)
        if self.held is None:
            self.settle(outcome)
            recorded: _Recorded = (outcome, None, None)
        else:
            self.draft.key = self.key or ""
            recorded = await self._recorded(outcome)
        stands, record, trouble = recorded
        return await self._tell(msgspec.structs.replace(stands, replayed=True), record, trouble)

    def settle(self, outcome: Outcome, *, stands: Outcome | None = None) -> None:
        """The part of `close` that waits for nothing, when nobody waits for this call any more.

        What `stands` is remembered: the ledger has it. Without that, it has to be written yet.
        """
        key, setup = self.key, self.setup
        if key is None:
            return
        if setup.intents.ledger is None:
            stands = outcome
        if isinstance(outcome, Waiting) or not (self.begun or self.held):
            hydrated = self.draft.hydrated
            if isinstance(outcome, Waiting) and isinstance(hydrated, Hydrated):
                setup.memory.pin(key, hydrated.call, hydrated.building.pinned)
            setup.memory.release(key)
        elif stands is None or isinstance(stands, Waiting):
            setup.memory.hold(key, outcome)
        else:
            setup.memory.keep(key, stands)
        if self.begun:
            self._taint()
        if self.counted:
            settle_all(setup.counting, outcome.record, self.context)

    async def _recorded(self, outcome: Outcome) -> _Recorded:
        """Have the ledger write an outcome, and settle it."""
        ledger = self.setup.intents.ledger
        if ledger is None:
            self.settle(outcome)
            return outcome, outcome.record, None
        try:
            written = await self.setup.recorder.write(ledger, outcome.record, self.draft)
        except BaseException:  # the loop is gone, or it was interrupted
            self.settle(outcome)
            raise
        ran = self.begun or self.held is not None
        if written.error is not None and ran:
            self.settle(outcome)
            unknown = self._unrecorded(written.error)
            return unknown, None if self.held else unknown.record, written.cancelled
        known = written.given
        if isinstance(known, ToolInvocationRecord) and known != outcome.record:
            stands = replayed(known)  # somebody else's was written first
            self.settle(outcome, stands=stands)
            return stands, outcome.record if ran else None, written.cancelled
        self.settle(outcome, stands=outcome)
        return outcome, outcome.record, written.error or written.cancelled

    def _unrecorded(self, raised: BaseException) -> Failed:
        """What the caller is told of a call that ran, when its outcome could not be written."""
        why = str(raised) if isinstance(raised, ToolcribError) else type(raised).__name__
        _log.warning(
            "a call of %s ran, and its outcome could not be recorded: %s. It is kept in this process,"
            " and written when the call is asked for again",
            self.draft.hydrated.call.name,
            why,
        )
        return self.draft.failed(CallError.of(ErrorCode.OUTCOME_UNKNOWN, _NOT_RECORDED))

    async def _tell(
        self, stands: Outcome, record: ToolInvocationRecord | None, trouble: BaseException | None
    ) -> Outcome:
        try:
            if record is not None:
                failed = await self.setup.recorder.tell(record, self.draft)
                trouble = trouble or failed
        finally:
            if self.scope.observer is not None:
                own = own_record(stands.record)
                self.scope.observer.finished(msgspec.structs.replace(stands, record=own))
        if trouble is not None:
            raise trouble
        return stands

    def _took(self, definition: ToolDefinition, seconds: float) -> None:
        """Note that a call was not ended by its time limit: something blocked the event loop."""
        limit = self.setup.executor.limit(definition)
        if limit is not None and seconds > limit:
            self.draft.notes += ("over_time_limit",)
            log_over_time(definition.name, seconds, limit)

    def _taint(self) -> None:
        definition = self.draft.hydrated.definition
        if definition is not None and definition.annotations.untrusted_output:
            taint(self.scope.tally)

    def _runnable(self, hydrated: Hydrated) -> Tool[..., Any]:
        """The tool as it is registered here; a call hydrated against another one does not run."""
        definition = hydrated.definition
        entry = self.setup.catalog.entry(definition.name)
        if entry is None or not entry.tool.runnable:
            raise Stopped(CallError.of(ErrorCode.NOT_RUNNABLE))
        if not has_room():
            raise Stopped(CallError.of(ErrorCode.NOT_RUNNABLE, _NO_ROOM, retryable=True))
        own = entry.tool.definition
        if own is not definition and own.digest != definition.digest:
            raise Stopped(CallError.of(ErrorCode.NOT_RUNNABLE))
        return entry.tool

    def _decide(self, hydrated: Hydrated) -> Decision:
        """What the policies say. Whoever was asked about a call is heard, whatever they say now."""
        decision = decide(self.setup.policies, hydrated, self.context)
        if self.scope.asked and isinstance(decision, Allow) and self.scope.was_asked(hydrated.call):
            decision = Ask("somebody was asked about this call before", "standard")
        self.draft.decision = decision
        return decision

    def _count(self, hydrated: Hydrated) -> None:
        """From here on the call is made. Nothing is awaited between the decision and this, so that
        calls of one reply cannot share a last allowance."""
        if self.setup.counting:
            refused = count_all(self.setup.counting, hydrated, self.context)
            if refused is not None:
                self.draft.decision = refused
                raise Stopped(CallError.of(refused.code))
        definition = hydrated.definition
        self.scope.tally.count(definition.name, definition.annotations.cost)
        self.counted = True

    async def _asked(
        self, hydrated: Hydrated, decision: Deny | Ask, key: str
    ) -> Hydrated | Waiting:
        """The call that somebody approved: this one, or this one with other arguments."""
        draft, setup = self.draft, self.setup
        await setup.intents.check(key, draft, hydrated)
        if isinstance(decision, Deny):
            raise Stopped(CallError.of(decision.code))
        request = self._request(hydrated, decision)
        draft.approval_id = request.id
        try:
            answer = await answer_to(
                request,
                self.scope,
                setup.approver,
                lambda raised: self._unanswered(hydrated, raised),
            )
        except Stopped as stopped:
            raise lapsed_by_closing(stopped, hydrated.definition) from None
        if answer is None:
            return Waiting(draft.record("waiting"), request)
        draft.approved_by = answer.by
        draft.refusal = answer.reason if isinstance(answer, Refuse) else ""
        approved = approved_call(hydrated, answer, setup.catalog, setup.reporter.debug)
        if approved is not hydrated:
            draft.edit(approved)
        again = self._decide(approved)  # the run may have spent more meanwhile
        if isinstance(again, Deny):
            raise Stopped(CallError.of(again.code))
        if isinstance(answer, Approve) and answer.for_run:
            self._approve_tool(approved, answer, request)
        return approved

    def _approve_tool(self, hydrated: Hydrated, answer: Approve, request: ApprovalRequest) -> None:
        """Remember a yes to the tool for the rest of the run."""
        tally, digest, caller = self.scope.tally, hydrated.definition.digest, self.context.caller.id
        if tally.approval_of(digest, caller) is None:
            given = ToolApproval(request.id, answer.by, digest, caller)
            tally.approved = (*tally.approved, given)

    def _approved_before(self, hydrated: Hydrated) -> None:
        """Record who approved the tool for the run, if it runs because of that."""
        definition, tally = hydrated.definition, self.scope.tally
        given = tally.approved and tally.approval_of(definition.digest, self.context.caller.id)
        if given:
            self.draft.approval_id, self.draft.approved_by = given.id, given.by

    def _unanswered(self, hydrated: Hydrated, raised: BaseException) -> None:
        """The approver failed, or gave no answer: its author is told."""
        what = f"the approver of tool '{hydrated.definition.name}'"
        self.setup.reporter.raised(what, hydrated.call, raised)

    def _request(self, hydrated: Hydrated, decision: Ask) -> ApprovalRequest:
        """The question; one that was asked before lapses when it said that it would."""
        request = approval_request(
            hydrated,
            decision,
            caller=self.context.caller,
            run=self.scope.tally,
            seconds=self.setup.approval_seconds,
        )
        asked = self.scope.asked.get(request.id)
        if asked is None:
            return request
        return msgspec.structs.replace(
            request, asked_at=asked.asked_at, expires_at=asked.expires_at
        )


async def concluded(attempt: Attempt, work: Awaitable[Outcome], cancels: int) -> Outcome:
    """What comes of `work`, remembered and told, whatever ends it; see `ToolRunner.exec`.

    `cancels` is what `cancel_requests` said before.
    """
    draft = attempt.draft
    try:
        outcome = await work
    except Stopped as stopped:
        outcome = draft.failed(stopped.error)
    except EndedBefore as ended:
        return await attempt.ended_before(ended.outcome)
    except GeneratorExit:  # the loop is gone: nothing can be awaited any more
        attempt.settle(draft.failed(CallError.of(ErrorCode.CANCELLED)))
        raise
    except BaseException:  # an intent that could not be written, too
        await attempt.close(draft.failed(CallError.of(ErrorCode.CANCELLED)))
        raise
    outcome = await attempt.close(outcome)
    if cancel_requests() > cancels:
        raise asyncio.CancelledError  # the tool caught it; its outcome stands, and is told
    return outcome


def _outcome_of(
    draft: Draft, tool: Tool[..., Any], value: Any, max_bytes: int, reporter: Reporter
) -> Completed | Failed:
    """What comes of a call that gave `value`; it is looked at once, for it may be used up then."""
    plain, unusable = check_output(tool, value, max_bytes)
    if unusable is not None:
        report_unusable(reporter, draft.hydrated.call, tool.definition, unusable)
        return draft.failed(unusable.error)
    model, public, error = views(tool.definition, plain)
    record = draft.record("completed", public, error)
    return Completed(record, value, model, public, draft.notice() if draft.edited else "")
