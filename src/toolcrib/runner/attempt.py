"""One call on its way through a runner: permitted, perhaps asked about, run once, its result checked.

Whatever ends it early is raised: `Stopped` with an error, `EndedBefore` with the outcome that the same
call had earlier. The runner writes down which it was.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from toolcrib.errors import ErrorCode
from toolcrib.hydrate import Repairer, hydrate_anew, repair
from toolcrib.runner.approval import approval_request
from toolcrib.runner.asking import answer_to, approved_call
from toolcrib.runner.executor import Executor
from toolcrib.runner.gate import Gate
from toolcrib.runner.intents import Intents
from toolcrib.runner.memory import CallMemory, key_of, print_of
from toolcrib.runner.output import outcome_of
from toolcrib.runner.policy import CountingPolicy, Policy, count_all, decide, settle_all
from toolcrib.runner.recorder import Draft, Recorder
from toolcrib.runner.redact import own_copy
from toolcrib.runner.scope import CallScope
from toolcrib.runner.stopped import Reporter, Stopped, accepted
from toolcrib.tools import Catalog, Tool
from toolcrib.values.call import Hydrated
from toolcrib.values.context import PolicyContext
from toolcrib.values.decision import Allow, ApprovalRequest, Approver, Ask, Decision, Deny, Refuse
from toolcrib.values.record import CallError, Completed, Failed, Outcome, Waiting


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

    How far it came: its `key` is claimed, the policies have `counted` it, its tool has `begun`.
    """

    setup: Setup
    draft: Draft
    context: PolicyContext
    scope: CallScope
    key: str | None = None
    counted: bool = False
    begun: bool = False

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
        setup.memory.claim(key, print_of(hydrated, self.context.caller))
        self.key = key
        decision, runs = self._decide(hydrated), hydrated
        if not isinstance(decision, Allow):
            approved = await self._asked(tool, hydrated, decision, key)
            if isinstance(approved, Waiting):
                return approved
            runs, hydrated = approved, _copy(approved)
        self._count(hydrated)
        exclusive = hydrated.definition.annotations.exclusive
        place = setup.gate.try_enter(exclusive) or await setup.gate.enter(exclusive)
        try:
            if setup.intents.wanted:
                await setup.intents.begin(key, self.draft, hydrated, setup.recorder)
            self.draft.key = key
            self.begun = True
            value = await setup.executor.run(
                tool, runs, self.context.caller, self.scope, key=key, cancels=cancels
            )
        finally:
            setup.gate.leave(place)
        return outcome_of(self.draft, tool, value, setup.max_result_bytes)

    async def close(self, outcome: Outcome) -> None:
        """Remember and write down what came of it; whoever watches is told also if a sink fails."""
        self.settle(outcome)
        told = self.setup.recorder.tell(outcome, self.draft)
        if told is not None:
            await told

    def settle(self, outcome: Outcome) -> None:
        """The part of `close` that waits for nothing: nobody waits for this call any more."""
        key, memory = self.key, self.setup.memory
        if key is None:
            return
        if self.begun and not isinstance(outcome, Waiting):
            memory.keep(key, outcome)
            self._taint()
        else:
            memory.release(key)
        if self.counted:
            settle_all(self.setup.counting, outcome.record, self.context)

    def ended_before(self, outcome: Completed | Failed) -> Completed | Failed:
        """The earlier outcome, once more: its content is as untrusted as ever, and it has its cost."""
        self._taint()
        definition = self.draft.hydrated.definition
        if self.key is not None:
            self.setup.memory.release(self.key)
        if self.counted:
            settle_all(self.setup.counting, outcome.record, self.context)
        elif definition is not None:
            self.scope.tally.count(definition.name, definition.annotations.cost)
        again = msgspec.structs.replace(outcome, replayed=True)
        if self.scope.observer is not None:
            self.scope.observer.finished(again)
        return again

    def _taint(self) -> None:
        definition = self.draft.hydrated.definition
        if definition is not None and definition.annotations.untrusted_output:
            self.scope.tally.tainted = True

    def _runnable(self, hydrated: Hydrated) -> Tool[..., Any]:
        """The tool as it is registered here; a call hydrated against another one does not run."""
        definition = hydrated.definition
        entry = self.setup.catalog.entry(definition.name)
        if entry is None or not entry.tool.runnable:
            raise Stopped(CallError.of(ErrorCode.NOT_RUNNABLE))
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
        self, tool: Tool[..., Any], hydrated: Hydrated, decision: Deny | Ask, key: str
    ) -> Hydrated | Waiting:
        """The call that somebody approved: this one, or this one with other arguments.

        What is asked about is what runs: nobody else, no policy either, holds its arguments, or the
        instance that is made of them.
        """
        draft, setup = self.draft, self.setup
        await setup.intents.check(key, draft, hydrated)
        if isinstance(decision, Deny):
            raise Stopped(CallError.of(decision.code))
        hydrated = accepted(hydrate_anew(_copy(hydrated), tool))
        draft.take(hydrated)
        request = self._request(hydrated, decision)
        draft.approval_id = request.id
        answer = await answer_to(
            request, self.scope, setup.approver, lambda raised: self._unanswered(hydrated, raised)
        )
        if answer is None:
            return Waiting(draft.record("waiting"), request)
        draft.approved_by = answer.by
        draft.refusal = answer.reason if isinstance(answer, Refuse) else ""
        approved = approved_call(hydrated, answer, setup.catalog)
        if approved is not hydrated:
            draft.edit(approved)
        again = self._decide(_copy(approved))  # the run may have spent more meanwhile
        if isinstance(again, Deny):
            raise Stopped(CallError.of(again.code))
        return approved

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


def _copy(hydrated: Hydrated) -> Hydrated:
    return msgspec.structs.replace(hydrated, arguments=own_copy(hydrated.arguments))
