"""`ToolRunner`: the one way to run a tool, and the one place that records what happened.

Rule: every call that comes in leaves exactly one final record, whatever happens to it.

hydrated call → policy → approval → run under a time limit → check the result → three views →
record.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from typing import Any

from msgspec.structs import replace

from toolcrib.errors import ErrorCode, SourceError, ToolcribError
from toolcrib.hydration import Repairer, check_repairer, hydrate, repair
from toolcrib.runner.approval import DEFAULT_SECONDS, check_approver
from toolcrib.runner.call import Call
from toolcrib.runner.execute import left_running
from toolcrib.runner.executor import EmulatingExecutor, Executor, StandIn
from toolcrib.runner.idempotency import IdempotencyCache, WriteAhead
from toolcrib.runner.output import MAX_RESULT_BYTES
from toolcrib.runner.policy import (
    Policy,
    count_resumed_call,
    counting,
    decide,
    has_spent_within,
    look_up,
    never_allowed,
    paying,
    reserving,
    split_async,
    warn_of_misspelt,
    with_standard,
)
from toolcrib.runner.question import Setup
from toolcrib.runner.recorder import Recorder
from toolcrib.runner.running import CALLING, Limiter, is_tainted_here
from toolcrib.runner.stopped import (
    NOT_ITS_OWN,
    ExceptionHook,
    Reporter,
    check_stop,
    record_end,
    rejection,
)
from toolcrib.schema.derive.factories import Pinned
from toolcrib.threads import cancel_requests
from toolcrib.tools import Catalog, Tool, ToolLike, Tools
from toolcrib.values.call import Hydrated, HydrationResult, Provenance, Rejected, ToolCall
from toolcrib.values.context import CallScope, PayingPolicy, PolicyContext, RunTally
from toolcrib.values.decision import (
    ANONYMOUS,
    Approver,
    Caller,
    Decision,
    Deny,
    KeepingApprover,
    OuterCall,
)
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.message import Offer, Plan
from toolcrib.values.record import (
    CallError,
    Ledger,
    Origin,
    Outcome,
    Sink,
    ToolInvocationRecord,
    prompt_of,
)
from toolcrib.values.rule import KeepsRules
from toolcrib.values.run import RunRecord, saved_run, spent_in
from toolcrib.values.typed import check_each, check_type, explains_wrong_types, names_parameters

REMEMBERED = 1_000
_CALLS = (ToolCall, Hydrated, Rejected)
_PLANS = "a Plan (await client.tool_call(…)), or a list of results of hydrate"


class ToolRunner:
    """Holds policy, approver and sinks: one object that agent, chat and bridges share.

    `policy` is added to the standard policy, and the strictest decision wins; async policies decide
    within `policy_seconds`, or deny. `timeout` (seconds) holds for tools that set none;
    `concurrency` limits how many run together. A request for approval expires after
    `approval_seconds`. `rules` stores what an answer allows for always; its default is the
    approver, if that can store rules. With a `repairer`, a call that does not parse or validate is
    repaired once. The outcomes of the last `remember` calls are kept, up to 64 MB of results: a
    call with the same id in the same run is not run again and gets the same outcome. A sink that is
    a `Ledger` remembers all of them.

    `on_exception` is for debugging: it is called with what a tool, a capability or the approver
    raised, which no record ever holds. The logger `toolcrib.tools` only says where it was raised.

    Raises BindingError if a tool's capability is not bound, ApprovalError for something that is not
    an approver, and ToolcribError for an invalid repairer, sink, policy or hook, and for a number
    out of range.
    """

    @names_parameters
    def __init__(  # noqa: PLR0913  what an application may want to set, each with a default
        self,
        tools: Catalog | Tools,
        *,
        policy: Policy | Sequence[Policy] = (),
        approver: Approver | None = None,
        rules: KeepsRules | None = None,
        sinks: Sequence[Sink] = (),
        timeout: float | None = 60.0,
        concurrency: int = 32,
        repairer: Repairer | None = None,
        remember: int = REMEMBERED,
        approval_seconds: float = DEFAULT_SECONDS,
        policy_seconds: float = 10.0,
        max_result_bytes: int = MAX_RESULT_BYTES,
        on_exception: ExceptionHook | None = None,
    ) -> None:
        if timeout is not None:
            _check_seconds("timeout", timeout)
        _check_seconds("approval_seconds", approval_seconds)
        _check_seconds("policy_seconds", policy_seconds)
        _check_whole("concurrency", concurrency, 1)
        _check_whole("remember", remember, 0)
        _check_whole("max_result_bytes", max_result_bytes, 1)
        check_hook(on_exception)
        sinks = checked_sinks(sinks)
        catalog = tools if isinstance(tools, Catalog) else Catalog(tools)
        catalog.check_bound()
        if approver is not None:
            check_approver(approver)
        check_rules(rules, approver)
        if repairer is not None:
            check_repairer(repairer)
        self._repairer = repairer
        self._keeper = _keeper(approver)
        self._sinks = sinks
        self._keeps_ledger = True
        write_ahead = WriteAhead(sinks)
        policies = with_standard(policy)
        warn_of_misspelt(policies, catalog.names)
        at_once, looking = split_async(policies)
        reporter = Reporter(on_exception)
        self._hook = reporter.debug
        self._setup = Setup(
            catalog=catalog,
            policies=policies,
            at_once=at_once,
            looking=looking,
            policy_seconds=policy_seconds,
            counting=counting(policies),
            reserving=reserving(policies),
            paying=paying(policies),
            approver=approver,
            rules=_rules_of(approver, rules),
            approval_seconds=approval_seconds,
            limiter=Limiter(concurrency),
            write_ahead=write_ahead,
            executor=Executor(catalog, timeout, reporter, max_result_bytes=max_result_bytes),
            reporter=reporter,
            cache=IdempotencyCache(remember),
            max_result_bytes=max_result_bytes,
            recorder=Recorder(sinks, write_ahead.ledger),
        )

    def with_tools(self, *tools: ToolLike | Catalog) -> ToolRunner:
        """Return a runner that also has these tools, and shares everything else.

        Raises what a catalog and a runner of all these tools would raise.
        """
        return self.over(self.catalog.with_tools(*tools))

    def _with(self, **changes: Any) -> ToolRunner:
        """Return a runner with these changes of its `Setup`, which shares everything else."""
        changed = copy(self)
        changed._setup = replace(self._setup, **changes)  # noqa: SLF001  a copy made here
        return changed

    def over(self, tools: Catalog | Tools) -> ToolRunner:
        """Return a runner of these tools only, which shares everything but the tools.

        Policies, approver, sinks, slots and the outcomes of calls are shared. Raises what a catalog
        and a runner of these tools would raise.
        """
        catalog = tools if isinstance(tools, Catalog) else Catalog(tools)
        catalog.check_bound()
        return self._with(catalog=catalog, executor=self._setup.executor.over(catalog))

    def with_sinks(self, *sinks: Sink) -> ToolRunner:
        """Return a runner that also writes its calls to these sinks, and shares everything else.

        Raises what a runner with all these sinks would raise.
        """
        all_sinks = (*self._sinks, *checked_sinks(sinks))
        write_ahead = WriteAhead(all_sinks if self._keeps_ledger else ())
        recorder = Recorder(all_sinks, write_ahead.ledger)
        runner = self._with(write_ahead=write_ahead, recorder=recorder)
        runner._sinks = all_sinks  # noqa: SLF001  a copy made here
        return runner

    def or_sinks(self, sinks: Sequence[Sink]) -> ToolRunner:
        """Return this runner if it has sinks, otherwise one that writes to these sinks."""
        return self if self._sinks else self.with_sinks(*sinks)

    @explains_wrong_types
    def completed_by(self, other: ToolRunner) -> ToolRunner:
        """Return a runner that takes from another one what this one lacks.

        It also writes to the other's sinks, asks the other's approver if it has none, and emulates
        if the other does. Of two ledgers it keeps its own, even where its tools are emulated and no
        ledger is asked.
        """
        runner = self.emulated_as(other)
        ledger, other_ledger = (WriteAhead(each).ledger for each in (self._sinks, other._sinks))
        known_sinks = [*self._sinks, *([] if ledger is None else [other_ledger])]
        new_sinks = [
            each
            for each in other._sinks
            if not any(each is known_sink for known_sink in known_sinks)
        ]
        runner = runner.with_sinks(*new_sinks) if new_sinks else runner
        if runner.approver is None and other.approver is not None:
            runner = runner.with_approver(other.approver)
        return runner

    def with_approver(self, approver: Approver) -> ToolRunner:
        """Return a runner that asks this approver, and shares everything else."""
        check_approver(approver)
        rules = None if self.emulates else _rules_of(approver, self._setup.rules)
        runner = self._with(approver=approver, rules=rules)
        runner._keeper = _keeper(approver)  # noqa: SLF001  a copy made here
        return runner

    @explains_wrong_types
    def emulated(
        self, stand_in: StandIn, *, spares: Callable[[Tool[..., Any]], bool]
    ) -> ToolRunner:
        """Return a runner that starts `stand_in` in place of every tool's code.

        This also holds for tools that it is given later. Tools that it `spares` still run: they are
        the library's own, without effects. The runner shares policies, approver and sinks, but no
        outcomes, and takes nothing from budgets in a store except what models cost. No rule
        approves its calls, and no answer gives one.
        """
        setup = self._setup
        executor = EmulatingExecutor(
            setup.catalog,
            setup.executor.timeout,
            setup.reporter,
            max_result_bytes=setup.max_result_bytes,
            stand_in=stand_in,
            spares=spares,
        )
        cache = IdempotencyCache(REMEMBERED)
        runner = self._with(executor=executor, reserving=(), rules=None, cache=cache)
        runner._keeps_ledger = False  # noqa: SLF001  a copy made here
        return runner.with_sinks()

    def emulated_as(self, other: ToolRunner) -> ToolRunner:
        """Return a runner emulated like another one; this runner if there is nothing to change."""
        executor = other._setup.executor
        if self.emulates or not isinstance(executor, EmulatingExecutor):
            return self
        return self.emulated(executor.stand_in, spares=executor.spares)

    def asking_first(self, policy: Policy) -> ToolRunner:
        """Return a runner that asks this policy before all others, and shares everything else.

        Of equally strict decisions the first is reported. The policy must not count or reserve.
        """
        policies = (policy, *self._setup.policies)
        at_once, looking = split_async(policies)
        return self._with(policies=policies, at_once=at_once, looking=looking)

    @property
    def emulates(self) -> bool:
        """Whether stand-ins run in place of its tools, so that none of their code is started."""
        return self._setup.executor.emulates

    @property
    def on_exception(self) -> ExceptionHook:
        """The hook, in a form that never raises and may be called even if there is none."""
        return self._hook

    @property
    def makes_arguments(self) -> bool:
        """Whether hydrating a call again may give other arguments.

        A repairer or a default factory of a tool may cause that.
        """
        factories = any(entry.tool.has_factories for entry in self.catalog.entries)
        return self._repairer is not None or factories

    @property
    def rules(self) -> KeepsRules | None:
        """The store of answers that hold for always, if there is one."""
        return self._setup.rules

    @property
    def ledger(self) -> Ledger | None:
        """The sink that keeps calls from running twice, if there is one."""
        return self._setup.write_ahead.ledger

    @property
    def catalog(self) -> Catalog:
        """The tools that it runs; `over` makes a runner of others."""
        return self._setup.catalog

    @property
    def approver(self) -> Approver | None:
        """The approver that is asked, if there is one."""
        return self._setup.approver

    @property
    def paying(self) -> tuple[PayingPolicy, ...]:
        """The policies that count the cost of model requests, also where tools are emulated."""
        return self._setup.paying

    @property
    def left_behind(self) -> int:
        """How many calls were given up on and still run, or whose end is still to be written.

        Those that still run, in threads or tasks, are counted for all runners of the process. When
        100 of them run, no runner starts another tool: calls end as `not_runnable`. Ends still to
        be written are counted for this runner alone. An end that the log could not take counts
        until the call is made again, unless the log was closed. So 0 says that all ends of this
        runner's calls are written. A log that several runners write to may be closed when each of
        them says 0.
        """
        ledger = self._setup.write_ahead.ledger
        is_closed = ledger is None or getattr(ledger, "closed", False)
        return left_running() + (0 if is_closed else self._setup.cache.unwritten)

    def never_allows(self, definition: ToolDefinition, context: PolicyContext) -> Deny | None:
        """Return the Deny that every call of this tool would get in the rest of a run.

        None if no policy knows of one that holds for all arguments.
        """
        return never_allowed(self._setup.policies, definition, context)

    def has_spent(self, tool: str, calls: Sequence[ToolDefinition], context: PolicyContext) -> bool:
        """Return whether a budget denies one of these calls by the agent that is this tool.

        This is about the rest of the run. Without calls, it is about the agent's next reply.
        """
        definition = self.catalog[tool].get_definition()
        return has_spent_within(self._setup.policies, definition, calls, context)

    async def foreseen(
        self, calls: Iterable[HydrationResult], context: PolicyContext
    ) -> list[Decision | None]:
        """Return what the policies say now about calls that nobody runs; None for rejected ones.

        Each call is judged as if the run had counted those before it, except in counts that a
        policy keeps itself. Nothing is counted, and nobody is asked.
        """
        tally, decisions = context.run.copied(), list[Decision | None]()
        for call in calls:
            decision = None
            if isinstance(call, Hydrated):
                decision = await self._foreseen(call, PolicyContext(context.caller, tally))
            if isinstance(call, Hydrated) and not isinstance(decision, Deny):
                tally.count(call.definition.name, call.definition.annotations.cost)
            decisions.append(decision)
        return decisions

    async def _foreseen(self, call: Hydrated, context: PolicyContext) -> Decision:
        setup = self._setup
        decision = decide(setup.at_once, call, context)
        if not setup.looking or isinstance(decision, Deny):
            return decision
        looked_up = await look_up(setup.looking, call, context, setup.policy_seconds)
        return decide(setup.at_once, call, context, looked_up)

    async def hydrate(
        self, call: ToolCall, offer: Offer | None = None, *, pinned: Pinned = None
    ) -> HydrationResult:
        """Check one call against what was offered, by default all tools; repair it once if allowed.

        `pinned` has what default factories made for this call before.
        """
        offered = self.catalog if offer is None else offer
        hook = self._hook
        result = hydrate(call, offered, pinned=pinned, on_exception=hook)
        if self._repairer is None or not isinstance(result, Rejected):
            return result
        return await repair(result, offered, self._repairer, pinned=pinned, on_exception=hook)

    async def exec(
        self,
        call: ToolCall | HydrationResult,
        *,
        caller: Caller = ANONYMOUS,
        scope: CallScope | None = None,
    ) -> Outcome:
        """Run one call, or say why not.

        Raises only what a sink raises, KeyboardInterrupt, and CancelledError: only the latter if
        its task was cancelled, whatever a sink raised. Raises SourceError, before anything is done,
        if the scope's `suspended` state for it belongs to another call.
        """
        if call.__class__ not in _CALLS or caller.__class__ is not Caller:
            check_type("call", call, _CALLS, "a ToolCall, or a result of hydrate")
            check_type("caller", caller, Caller, "a Caller, such as Caller('ada')")
        if scope is None:
            scope = CallScope(RunTally(started=time.monotonic()))
        else:
            check_type("scope", scope, CallScope, "a CallScope, or None")
            if scope.suspended:
                _check_suspended(call if isinstance(call, ToolCall) else call.call, scope)
        setup = self._setup
        task = asyncio.current_task()
        cancels = 0 if task is None else task.cancelling()
        pinned: Pinned = None
        try:
            if not isinstance(call, ToolCall):
                hydrated = call
            else:
                if setup.cache.pins:
                    pinned = setup.cache.pinned(scope.tally.run_id, call, caller.id)
                keeper = self._keeper if scope.approver is None else _keeper(scope.approver)
                if pinned is None and keeper is not None:
                    pinned = await self._pinned_by(keeper, call, caller, scope)
                hook = self._hook
                hydrated = hydrate(call, setup.catalog, pinned=pinned, on_exception=hook)
            parent = CALLING.get()
            if parent is not None and is_tainted_here():
                scope.tally.tainted = True
            facts = setup.recorder.facts(hydrated, caller, scope, parent, setup.catalog)
            to_run = Call(setup, facts, PolicyContext(caller, scope.tally), scope, pinned)
            if scope.suspended:
                count_resumed_call(facts, to_run.account)
            return await to_run.run(task, cancels, None if hydrated is call else self._repairer)
        except BaseException as raised:
            check_stop(raised, cancels)
            raise

    async def write_run(self, record: RunRecord) -> None:
        """Tell the sinks that watch runs that one begins or ends. Raises what a sink raises."""
        await self._setup.recorder.write_run(record)

    async def record_plan(
        self, plan: Iterable[HydrationResult], *, caller: Caller = ANONYMOUS
    ) -> None:
        """Record calls that were planned and that nobody runs.

        These are the calls of `LLMClient.tool_call`, or what `hydrate` returned. Each gets a record
        of status `planned`, or `rejected` with the errors. If such a call is run later after all,
        it gets its records as usual. When all are recorded, raises what a sink raised, and
        CancelledError.
        """
        check_type("caller", caller, Caller, "a Caller, such as Caller('ada')")
        planned = check_each("plan", plan, (Hydrated, Rejected), _PLANS)
        scope = CallScope(RunTally())
        if isinstance(plan, Plan):
            request = plan.request
            digest = "" if request is None else prompt_of(request.messages, request.tools).digest
            reply = plan.reply
            origin = Origin(model=reply.model, provider=reply.provider, prompt_digest=digest)
            scope = CallScope(RunTally(), origin=origin)
        recorder = self._setup.recorder
        await _to_the_last(
            recorder.plan(hydrated, caller, scope, self.catalog) for hydrated in planned
        )

    async def refuse_all(
        self,
        calls: Iterable[HydrationResult],
        *,
        caller: Caller = ANONYMOUS,
        scope: CallScope,
        code: ErrorCode = ErrorCode.BUDGET_EXCEEDED,
        began: ToolInvocationRecord | None = None,
    ) -> None:
        """Record calls that a limit of their run keeps from running.

        A rejected call is recorded with its own reason. `began` is the record of a call that waits.
        When all are recorded, raises what a sink raised, and CancelledError.
        """

        async def refuse(call: HydrationResult) -> None:
            refused = self._call(call, caller, scope)
            facts = refused.facts
            count_resumed_call(facts, refused.account)
            suspended = scope.suspended.get(call.call.id)
            if began is not None:
                facts.take_waiting(began)
            if suspended is not None:
                with suppress(SourceError):  # its agent cannot resume
                    facts.spent = spent_in(saved_run(suspended))
            error = CallError.of(code)
            if isinstance(call, Rejected) and began is None:  # a waiting call was well-formed
                error = rejection(call)
            await refused.finalize(refused.failure_of(error))

        await _to_the_last(map(refuse, calls))

    async def record_begun(
        self, calls: Iterable[ToolCall], *, caller: Caller, scope: CallScope
    ) -> None:
        """Record those calls, not run here, that began before according to the ledger.

        They are recorded as they ended, or as `outcome_unknown`. Raises what `refuse_all` raises.
        """

        async def look(call: ToolCall) -> None:
            await self._call(self._unbuilt(call), caller, scope).finalize_begun()

        await _to_the_last(map(look, calls))

    async def exec_all(
        self,
        calls: Iterable[ToolCall | HydrationResult],
        *,
        caller: Caller = ANONYMOUS,
        scope: CallScope | None = None,
    ) -> list[Outcome]:
        """Run calls of one reply together, exclusive ones alone; return outcomes in call order.

        If one raises (through a sink), or this is cancelled, the others are cancelled and waited
        for; those that had not begun are recorded as cancelled, too.
        """
        calls = check_each("calls", calls, _CALLS, "a list of ToolCall, or of results of hydrate")
        scope = CallScope(RunTally(started=time.monotonic())) if scope is None else scope
        call_list, begun_indexes, cancels = list(calls), set[int](), cancel_requests()
        if len(call_list) == 1:
            return [await self.exec(call_list[0], caller=caller, scope=scope)]

        async def run_one(index: int) -> Outcome:
            begun_indexes.add(index)
            return await self.exec(call_list[index], caller=caller, scope=scope)

        tasks = [asyncio.ensure_future(run_one(index)) for index in range(len(call_list))]
        together = asyncio.gather(*tasks)
        # otherwise asyncio prints an error that a cancellation overtook
        together.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return list(await together)
        except BaseException as raised:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):  # cancelled again; it is over when all tasks are
                await asyncio.gather(*tasks, return_exceptions=True)
            unbegun = (
                self._hydrated(call) if isinstance(call, ToolCall) else call
                for index, call in enumerate(call_list)
                if index not in begun_indexes
            )
            refusal = self.refuse_all(unbegun, caller=caller, scope=scope, code=ErrorCode.CANCELLED)
            await record_end(refusal, raised, cancels)
            check_stop(raised, cancels)
            raise

    def _call(self, call: HydrationResult, caller: Caller, scope: CallScope) -> Call:
        facts = self._setup.recorder.facts(call, caller, scope, CALLING.get(), self._setup.catalog)
        return Call(self._setup, facts, PolicyContext(caller, scope.tally), scope)

    def _hydrated(self, call: ToolCall) -> HydrationResult:
        return hydrate(call, self._setup.catalog, on_exception=self._hook)

    def _unbuilt(self, call: ToolCall) -> HydrationResult:
        """Return a call that is not run here, without running its default factories again."""
        entry = self.catalog.by_name.get(call.name)
        if entry is None or not entry.tool.has_factories:
            return self._hydrated(call)
        provenance = Provenance(call.provider_id, call.arguments, notes=call.notes)
        return Rejected(call, (), provenance, entry.tool.definition)

    async def _pinned_by(
        self, keeper: KeepingApprover, call: ToolCall, caller: Caller, scope: CallScope
    ) -> Pinned:
        """Return what was kept with the question about a call.

        Raises SourceError if its store cannot be used, and CancelledError; the call then has its
        record.
        """
        entry = self.catalog.by_name.get(call.name)
        if entry is None or not entry.tool.has_factories:
            return None
        cancels = cancel_requests()
        try:
            return await keeper.kept(scope.tally.run_id, call.id, caller.id) or None
        except BaseException as raised:
            if isinstance(raised, Exception) and not isinstance(raised, SourceError):
                self._setup.reporter.raised(f"the approver of tool '{call.name}'", call, raised)
                return None
            calls = [self._hydrated(call)]
            refusal = self.refuse_all(calls, caller=caller, scope=scope, code=ErrorCode.CANCELLED)
            await record_end(refusal, raised, cancels)
            raise


def _keeper(approver: Approver | None) -> KeepingApprover | None:
    return approver if isinstance(approver, KeepingApprover) else None


def _rules_of(approver: Approver | None, rules: KeepsRules | None) -> KeepsRules | None:
    """Return the store of rules: the approver if it is a store; only it knows what was asked."""
    if isinstance(approver, KeepsRules):
        return approver if approver.keeps_rules else None
    return rules


def check_rules(rules: object, approver: object) -> None:
    """Raise ToolcribError for a store that cannot keep rules, or has no key to sign them with.

    Also raised for a store other than the approver, which would not know of a refusal in the
    approver.
    """
    if isinstance(approver, KeepsRules) and rules not in (None, approver):
        raise ToolcribError(
            "the approver is a store, and keeps the rules: give it the state_key, and leave out rules="
        )
    if rules is None or (isinstance(rules, KeepsRules) and rules.keeps_rules):
        return
    raise ToolcribError(
        "rules= must be a store that signs rules, such as ApprovalStore(url, state_key=…): "
        f"this {type(rules).__name__} cannot sign rules, or has no key"
    )


def checked_sinks(sinks: Iterable[Sink]) -> tuple[Sink, ...]:
    """Return the sinks. Raises ToolcribError for an object that is not one, before any call."""
    if not isinstance(sinks, Iterable):
        raise ToolcribError("sinks is a list: sinks=[sink]")
    sink_list = tuple(sinks)
    for sink in sink_list:
        if isinstance(sink, type) or not callable(getattr(sink, "write", None)):
            kind = sink if isinstance(sink, type) else type(sink)
            raise ToolcribError(
                f"a sink must be an object with a method write(record): {kind.__name__} is not"
            )
    return sink_list


def check_hook(hook: object) -> None:
    """Raise ToolcribError for a class, an async function, or anything that cannot be called.

    What an async hook raised would be lost.
    """
    is_wrong = isinstance(hook, type) or inspect.iscoroutinefunction(hook) or not callable(hook)
    if hook is not None and is_wrong:
        raise ToolcribError("on_exception is a plain function: hook(call, raised)")


def _check_suspended(call: ToolCall, scope: CallScope) -> None:
    suspended = scope.suspended.get(call.id)
    this_call = OuterCall(scope.tally.run_id, call.id, call.name)
    if suspended is not None and suspended.call != this_call:
        other = suspended.call
        raise SourceError(
            f"suspended[{call.id!r}] belongs to another call: {other.call_id!r} of run"
            f" {other.run_id!r}, tool {other.tool!r}"
        )


async def _to_the_last(steps: Iterable[Awaitable[object]]) -> None:
    """Await all of them, one after the other, then raise the first failure, or the cancellation."""
    first_error: BaseException | None = None
    cancels = cancel_requests()
    for step in steps:
        try:
            await step
        except NOT_ITS_OWN:
            raise
        except BaseException as raised:  # noqa: BLE001  raised below
            first_error = first_error or raised
    if first_error is not None:
        check_stop(first_error, cancels)
        raise first_error


def _check_seconds(name: str, value: object) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:  # type: ignore[operator]
        raise ToolcribError(f"{name} is a number of seconds above 0")


def _check_whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ToolcribError(f"{name} is a whole number from {least}")
