"""One call on its way through a runner: permitted, perhaps asked about, run once, its result checked.

Whatever ends it early is raised: `Stopped` with an error, `EndedBefore` with the outcome that the same
call had earlier. The runner writes down which it was.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import msgspec

from toolcrib.errors import ApprovalError, ErrorCode, SourceError
from toolcrib.hydrate import hydrate
from toolcrib.runner.approval import approval_request, checked_answer
from toolcrib.runner.execute import cancel_requests
from toolcrib.runner.executor import Executor
from toolcrib.runner.gate import Gate
from toolcrib.runner.intents import Intents
from toolcrib.runner.memory import CallMemory, Print, key_of, print_of
from toolcrib.runner.output import check_output
from toolcrib.runner.policy import CountingPolicy, Policy, count_all, decide, settle_all
from toolcrib.runner.recorder import Draft, write_all
from toolcrib.runner.redact import project, redaction_missing, unmasked
from toolcrib.runner.scope import CallScope
from toolcrib.runner.stopped import Stopped, accepted
from toolcrib.tools import Catalog, Tool
from toolcrib.values.call import Hydrated
from toolcrib.values.context import PolicyContext
from toolcrib.values.decision import (
    Allow,
    Answer,
    ApprovalRequest,
    Approve,
    Approver,
    Ask,
    Decision,
    Deny,
    Refuse,
)
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import canonical_json
from toolcrib.values.record import CallError, Completed, Failed, Outcome, Sink, Waiting


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
    memory: CallMemory
    max_result_bytes: int
    sinks: tuple[Sink, ...]


class Attempt(msgspec.Struct):
    """One call, once: `outcome`, then `close` with what came of it, or `ended_before`."""

    setup: Setup
    draft: Draft
    context: PolicyContext
    scope: CallScope
    key: str = ""
    print_: Print = ("", "", "")
    claimed: bool = False

    async def outcome(self, cancels: int) -> Outcome:
        """What comes of it. Raises Stopped, EndedBefore, CancelledError and what a sink raises.

        `cancels` is what `cancel_requests` said before.
        """
        setup, hydrated = self.setup, accepted(self.draft.hydrated)
        tool = self._runnable(hydrated)
        self.key = key_of(self.scope.tally.run_id, hydrated.call.id)
        self.print_ = print_of(hydrated, self.context.caller)
        setup.memory.check(self.key, self.print_)
        decision = self._decide(hydrated)
        if not isinstance(decision, Allow):
            approved = await self._asked(hydrated, decision)
            if isinstance(approved, Waiting):
                return approved
            hydrated = approved
        self._claim(hydrated)
        exclusive = hydrated.definition.annotations.exclusive
        if not setup.gate.try_enter(exclusive):
            await setup.gate.enter(exclusive)
        try:
            if setup.intents.wanted:
                await setup.intents.begin(self.key, self.draft, hydrated)
            self.draft.key = self.key
            value = await setup.executor.run(
                tool, hydrated, self.context.caller, self.scope, key=self.key, cancels=cancels
            )
        finally:
            setup.gate.leave(exclusive)
        return self._completed(tool, hydrated.definition, value)

    async def close(self, outcome: Outcome) -> None:
        """Remember and write down what came of it; whoever watches is told also if a sink fails."""
        if self.claimed:
            if self.draft.key and not isinstance(outcome, Waiting):
                self.setup.memory.keep(self.key, outcome)
                self._taint()
            else:
                self.setup.memory.release(self.key)
            settle_all(self.setup.counting, outcome.record, self.context)
        try:
            await write_all(self.setup.sinks, outcome.record)
        finally:
            if self.scope.observer is not None:
                self.scope.observer.finished(outcome)

    def ended_before(self, outcome: Completed | Failed) -> Completed | Failed:
        """The earlier outcome, once more: its content is as untrusted as ever, and it has its cost."""
        self._taint()
        definition = self.draft.hydrated.definition
        if self.claimed:
            self.setup.memory.release(self.key)
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
        decision = self.draft.decision = decide(self.setup.policies, hydrated, self.context)
        return decision

    def _claim(self, hydrated: Hydrated) -> None:
        """From here on the call is made. Nothing is awaited between the decision and this, so that
        calls of one reply cannot share a last allowance."""
        if self.setup.counting:
            refused = count_all(self.setup.counting, hydrated, self.context)
            if refused is not None:
                self.draft.decision = refused
                raise Stopped(CallError.of(refused.code))
        definition = hydrated.definition
        self.scope.tally.count(definition.name, definition.annotations.cost)
        self.setup.memory.claim(self.key, self.print_)
        self.claimed = True

    async def _asked(self, hydrated: Hydrated, decision: Deny | Ask) -> Hydrated | Waiting:
        """The call that somebody approved: this one, or this one with other arguments."""
        draft, setup = self.draft, self.setup
        await setup.intents.check(self.key, draft, hydrated)
        if isinstance(decision, Deny):
            raise Stopped(CallError.of(decision.code))
        request = approval_request(
            hydrated,
            decision,
            caller=self.context.caller,
            run=self.scope.tally,
            seconds=setup.approval_seconds,
        )
        draft.approval_id = request.id
        answer = await self._answer(request)
        if answer is None:
            return Waiting(draft.record("waiting"), request)
        draft.approved_by = answer.by
        approved = self._approved(hydrated, answer)
        setup.memory.check(self.key, self.print_)  # the same call may have been made meanwhile
        again = self._decide(approved)  # and the run may have spent more
        if isinstance(again, Deny):
            raise Stopped(CallError.of(again.code))
        return approved

    async def _answer(self, request: ApprovalRequest) -> Answer | None:
        """The answer to this very question, if there is one. Raises Stopped."""
        scope, approver = self.scope, self.setup.approver
        given: object = scope.answers.get(request.id)
        if given is None:
            if _asked_differently(request, scope):
                raise Stopped(CallError.of(ErrorCode.APPROVAL_MISMATCH))
            if approver is None:
                raise Stopped(CallError.of(ErrorCode.APPROVAL_REQUIRED))
            if scope.observer is not None:
                scope.observer.approval_requested(request)
            given = await _ask(approver, request)
        if given is None:
            return None
        try:
            answer = checked_answer(given)
        except ApprovalError as error:
            raise Stopped(CallError.of(error.code)) from None
        if isinstance(answer, Approve) and scope.asked.get(request.id, request).expired():
            raise Stopped(CallError.of(ErrorCode.APPROVAL_EXPIRED))
        return answer

    def _approved(self, hydrated: Hydrated, answer: Answer) -> Hydrated:
        """The call that was approved; edited arguments are hydrated anew, and the model is told."""
        if isinstance(answer, Refuse):
            raise Stopped(CallError.of(ErrorCode.APPROVAL_REFUSED))
        if answer.arguments is None:
            return hydrated
        text = canonical_json(unmasked(hydrated.definition, answer.arguments, hydrated.arguments))
        call = msgspec.structs.replace(hydrated.call, arguments=text)
        edited = accepted(hydrate(call, self.setup.catalog))
        self.draft.edit(edited)
        return edited

    def _completed(self, tool: Tool[..., Any], definition: ToolDefinition, value: Any) -> Completed:
        plain, error = check_output(tool, value, self.setup.max_result_bytes)
        if error is not None:
            raise Stopped(error)
        public = project(plain, definition.visible)
        missing = redaction_missing(plain, definition.visible)
        error = CallError.of(ErrorCode.REDACTION_MISSING) if missing else None
        model = project(plain, definition.model_visible)
        record = self.draft.record("completed", public, error)
        return Completed(record, value, model, public, self.draft.notice())


def _asked_differently(request: ApprovalRequest, scope: CallScope) -> bool:
    """Whether this call was asked about with other arguments, a definition or a caller not these."""
    return any(
        asked.run_id == request.run_id and asked.call_id == request.call_id
        for id_, asked in scope.asked.items()
        if id_ != request.id and id_ in scope.answers
    )


async def _ask(approver: Approver, request: ApprovalRequest) -> Answer | None:
    """An approver that fails has not approved. Raises SourceError where its store cannot be used."""
    cancels = cancel_requests()
    try:
        return await approver(request)
    except ApprovalError as error:
        raise Stopped(CallError.of(error.code)) from None
    except SourceError:
        raise  # it may have the answer: the call is not over, as with a sink that cannot write
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and cancel_requests() > cancels:
            raise
        raise Stopped(CallError.of(ErrorCode.APPROVAL_REFUSED)) from None
