"""`ToolRunner`: the one way to run a tool, and the one place that writes down what became of it.

hydrated call → policy → approval → run under a time limit → check the result → three views → record.
Every call that comes in leaves exactly one final record, whatever happens to it on the way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

import msgspec

from toolcrib.errors import ApprovalError, ErrorCode, ToolcribError
from toolcrib.hydrate import hydrate
from toolcrib.runner.approval import approval_request
from toolcrib.runner.execute import cancel_requests
from toolcrib.runner.executor import ExceptionHook, Executor
from toolcrib.runner.gate import Gate
from toolcrib.runner.output import check_output
from toolcrib.runner.policy import Policy, decide, standard
from toolcrib.runner.recorder import Draft
from toolcrib.runner.redact import project
from toolcrib.runner.scope import CallScope
from toolcrib.runner.stopped import Stopped, accepted
from toolcrib.tools import Catalog, Entry, Tools
from toolcrib.values.call import Hydrated, HydrationResult, ToolCall
from toolcrib.values.context import PolicyContext, RunTally
from toolcrib.values.decision import (
    ANONYMOUS,
    Answer,
    ApprovalRequest,
    Approve,
    Approver,
    Ask,
    Caller,
    Decision,
    Deny,
    Refuse,
)
from toolcrib.values.json import canonical_json
from toolcrib.values.record import CallError, Completed, Failed, Outcome, Sink, Waiting

DEFAULT_TIMEOUT = 60.0
_ANSWERS = (Approve, Refuse)


class ToolRunner:
    """Holds policy, approver and sinks: one object that agent, chat and bridges share.

    `policy` is added to the standard one, and the strictest wins. `timeout` (seconds) holds for
    tools that name none; `concurrency` bounds how many run together. `on_exception` is for
    debugging: it is given what a tool or a capability raised, which no record ever holds. Raises
    BindingError if a tool's capability is not bound.
    """

    def __init__(
        self,
        tools: Catalog | Tools,
        *,
        policy: Policy | Sequence[Policy] = (),
        approver: Approver | None = None,
        sinks: Sequence[Sink] = (),
        timeout: float | None = DEFAULT_TIMEOUT,
        concurrency: int = 32,
        on_exception: ExceptionHook | None = None,
    ) -> None:
        if concurrency < 1:
            raise ToolcribError("concurrency is the number of calls that run together: 1 or more")
        self.catalog = tools if isinstance(tools, Catalog) else Catalog(tools)
        self.catalog.check_bound()
        self.approver = approver
        self._policies = (standard, *([policy] if callable(policy) else policy))
        self._sinks = tuple(sinks)
        self._gate = Gate(concurrency)
        self._executor = Executor(self.catalog, timeout, on_exception)

    async def exec(
        self,
        call: ToolCall | HydrationResult,
        *,
        caller: Caller = ANONYMOUS,
        scope: CallScope | None = None,
    ) -> Outcome:
        """Run one call, or say why not. Raises only what a sink raises, and CancelledError."""
        scope = CallScope(RunTally(started=time.monotonic())) if scope is None else scope
        hydrated = hydrate(call, self.catalog) if isinstance(call, ToolCall) else call
        draft = Draft(self._sinks, hydrated, caller, scope.tally.run_id)
        cancels = cancel_requests()
        try:
            outcome = await self._permitted(accepted(hydrated), draft, caller, scope)
        except Stopped as stopped:
            outcome = draft.failed(stopped.error)
        except GeneratorExit:
            raise  # the loop is gone: nothing can be awaited any more
        except BaseException:  # an intent that could not be written, too
            await draft.close(draft.failed(CallError.of(ErrorCode.CANCELLED)), scope.observer)
            raise
        await draft.close(outcome, scope.observer)
        if cancel_requests() > cancels:
            raise asyncio.CancelledError  # the tool caught it; its outcome stands, and is told
        return outcome

    async def refuse(
        self, call: HydrationResult, *, caller: Caller = ANONYMOUS, scope: CallScope
    ) -> Failed:
        """Record a call that a limit of its run keeps from running: `budget_exceeded`."""
        draft = Draft(self._sinks, call, caller, scope.tally.run_id)
        try:
            accepted(call)
            outcome = draft.failed(CallError.of(ErrorCode.BUDGET_EXCEEDED))
        except Stopped as stopped:
            outcome = draft.failed(stopped.error)
        await draft.close(outcome, scope.observer)
        return outcome

    async def exec_all(
        self,
        calls: Iterable[ToolCall | HydrationResult],
        *,
        caller: Caller = ANONYMOUS,
        scope: CallScope | None = None,
    ) -> list[Outcome]:
        """Run calls of one reply together, exclusive ones alone; outcomes in the order of calls.

        If one raises (a sink), or this is cancelled, the others are cancelled and waited for.
        """
        scope = CallScope(RunTally(started=time.monotonic())) if scope is None else scope
        given = list(calls)
        if len(given) == 1:
            return [await self.exec(given[0], caller=caller, scope=scope)]
        tasks = [asyncio.ensure_future(self.exec(c, caller=caller, scope=scope)) for c in given]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _permitted(
        self, hydrated: Hydrated, draft: Draft, caller: Caller, scope: CallScope
    ) -> Outcome:
        entry = self._runnable(hydrated)
        decision = self._decide(hydrated, draft, caller, scope)
        if isinstance(decision, Ask):
            request = approval_request(hydrated, decision, caller=caller, run=scope.tally)
            answer = await self._answer(request, scope)
            if answer is None:
                return Waiting(draft.record("waiting"), request)
            draft.approved_by = answer.by
            hydrated = self._approved(hydrated, answer, draft)
            self._decide(hydrated, draft, caller, scope)  # the run may have spent more meanwhile
        # counted before anything is awaited, so that calls of one reply cannot share a last allowance
        scope.tally.count(hydrated.definition.name, hydrated.definition.annotations.cost)
        return await self._run(entry, hydrated, draft, caller, scope)

    def _runnable(self, hydrated: Hydrated) -> Entry:
        """The tool as it is registered here; a call hydrated against another one does not run."""
        entry = self.catalog.entry(hydrated.definition.name)
        if entry is None or not entry.tool.runnable:
            raise Stopped(CallError.of(ErrorCode.NOT_RUNNABLE))
        if entry.tool.definition.digest != hydrated.definition.digest:
            raise Stopped(CallError.of(ErrorCode.NOT_RUNNABLE))
        return entry

    def _decide(
        self, hydrated: Hydrated, draft: Draft, caller: Caller, scope: CallScope
    ) -> Decision:
        decision = decide(self._policies, hydrated, PolicyContext(caller, scope.tally))
        draft.decision = decision
        if isinstance(decision, Deny):
            raise Stopped(CallError.of(decision.code))
        return decision

    async def _answer(self, request: ApprovalRequest, scope: CallScope) -> Answer | None:
        given = scope.answers.get(request.id)
        if given is None:
            if self.approver is None:
                raise Stopped(CallError.of(ErrorCode.APPROVAL_REQUIRED))
            if scope.observer is not None:
                scope.observer.approval_requested(request)
            cancels = cancel_requests()
            try:
                given = await self.approver(request)
            except ApprovalError as error:
                raise Stopped(CallError.of(error.code)) from None
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and cancel_requests() > cancels:
                    raise
                # an approver that fails has not approved
                raise Stopped(CallError.of(ErrorCode.APPROVAL_REFUSED)) from None
        if given is None:
            return None
        if not isinstance(given, _ANSWERS):  # nothing but an answer is one: True is no yes
            raise Stopped(CallError.of(ErrorCode.APPROVAL_REFUSED))
        if scope.asked.get(request.id, request).expired():
            raise Stopped(CallError.of(ErrorCode.APPROVAL_EXPIRED))
        return given

    def _approved(self, hydrated: Hydrated, answer: Answer, draft: Draft) -> Hydrated:
        """The call that was approved; edited arguments are hydrated anew."""
        if isinstance(answer, Refuse):
            raise Stopped(CallError.of(ErrorCode.APPROVAL_REFUSED))
        if answer.arguments is None:
            return hydrated
        try:
            text = canonical_json(answer.arguments)
        except (TypeError, ValueError, RecursionError):
            raise Stopped(CallError.of(ErrorCode.INVALID_ARGUMENTS)) from None
        call = msgspec.structs.replace(hydrated.call, arguments=text)
        edited = accepted(hydrate(call, self.catalog))
        draft.take(edited)
        return edited

    async def _run(
        self, entry: Entry, hydrated: Hydrated, draft: Draft, caller: Caller, scope: CallScope
    ) -> Completed:
        definition = hydrated.definition
        marks = definition.annotations
        if not self._gate.try_enter(marks.exclusive):
            await self._gate.enter(marks.exclusive)
        try:
            await draft.intend()
            value = await self._executor.run(entry.tool, hydrated, caller, scope)
        finally:
            self._gate.leave(marks.exclusive)
        if marks.untrusted_output:
            scope.tally.tainted = True
        plain, error = check_output(entry.tool, value)
        if error is not None:
            raise Stopped(error)
        public = project(plain, definition.visible)
        record = draft.record("completed", public)
        return Completed(record, value, project(plain, definition.model_visible), public)
