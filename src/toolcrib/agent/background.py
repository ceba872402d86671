"""Calls in the background: the model is told at once that they run, and later what they returned.

Rule: a call of a tool marked `background` goes through the pipeline like any other, in its own
task. A call that ends before the tool's code begins has an ordinary outcome, in its place. Once the
code begins, the call's result is a handle, and its actual result becomes a separate message before
a later request.

Rule: before a run ends, hands over or waits for a person, everything that it began in the
background has ended and was reported to the model. So no saved state has a running call.

Two facts can differ between executions: which calls had begun when the results of a reply were
collected, and which had ended before a request. In a run with steps, each of the two is a step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Container, Sequence
from typing import Literal, NamedTuple, TypeAlias

from msgspec.structs import replace

from toolcrib.agent.history import later_message
from toolcrib.agent.spending import Spending
from toolcrib.agent.stream import Watch
from toolcrib.errors import ErrorCode
from toolcrib.failures import log_raised
from toolcrib.runner import CallScope, ToolRunner
from toolcrib.runner.stopped import record_end
from toolcrib.threads import cancel_requests
from toolcrib.values.call import Hydrated, HydrationResult
from toolcrib.values.context import StepRunner
from toolcrib.values.message import Message
from toolcrib.values.record import Outcome, Waiting
from toolcrib.values.run import RunState

Awaited: TypeAlias = Literal["none", "one", "all"]
_Ids: TypeAlias = tuple[str, ...]
_SINKS = "a sink or an observer of a call in the background"


class _Running(NamedTuple):
    """A call whose end has not been reported yet.

    `begun` is done when its tool begins, `tool_ended` is set when it has ended. Setting
    `called_off` before cancelling its task cancels this call alone.
    """

    call: HydrationResult
    scope: CallScope
    task: asyncio.Task[Outcome]
    begun: asyncio.Future[None]
    tool_ended: asyncio.Event
    called_off: asyncio.Event


class BackgroundCalls:
    """The calls of one run that continue while its model is asked.

    `begun` are the ids of calls whose result is a handle, `arrived` the messages that the model is
    still to be sent.
    """

    def __init__(
        self,
        runner: ToolRunner,
        watch: Watch,
        state: RunState,
        steps: StepRunner | None,
        spending: Spending,
    ) -> None:
        self._runner = runner
        self._watch = watch
        self._caller = state.caller
        self._steps = steps
        self._spending = spending
        self._running: dict[str, _Running] = {}
        self._open: dict[str, _Running] = {}
        self.begun: set[str] = set()
        self.arrived: list[Message] = list(state.arrived)

    @property
    def open_ids(self) -> Collection[str]:
        """The ids of calls whose results the model has yet to be told."""
        return self._open.keys()

    async def exec_all(
        self,
        calls: Sequence[HydrationResult],
        scope: CallScope,
        turn: int,
        background_tools: Container[str] | None = None,
    ) -> list[Outcome]:
        """Run the calls of one reply; return the outcomes of those that are over.

        Calls that have begun and continue in the background are not among them. Raises what
        `ToolRunner.exec_all` raises.

        `background_tools` has the names of these tools, if the step that made the calls recorded
        them: a tool may be another one by now, or gone.
        """
        started = [call for call in calls if _is_background(call, scope, background_tools)]
        if not started:
            return await self._runner.exec_all(calls, caller=self._caller, scope=scope)
        for call in started:
            self._start(call, scope)
        others = [call for call in calls if call.call.id not in self._running]
        await self._let_begin(others, scope)
        outcomes: list[Outcome] = []
        if others:
            outcomes = await self._runner.exec_all(others, caller=self._caller, scope=scope)
        ids = [call.call.id for call in started]
        begun_ids = await self._step(f"begun {turn}", lambda: self._begun_ids(ids))
        self._open |= {call_id: self._running.pop(call_id) for call_id in begun_ids}
        self.begun.update(begun_ids)
        for call_id in ids:
            if call_id not in self._open:
                await _wait_for(self._running[call_id].task)
                del self._running[call_id]
                outcomes.append(self._watch.outcomes[call_id])
        return outcomes

    async def collect(self, turn: int, awaited: Awaited = "none") -> None:
        """Add the results of ended calls to `arrived`, in the order in which the calls began.

        If one or all are `awaited`, wait for them. Raises what a sink raises, after all results are
        added.
        """
        if not self._open:
            return
        first_error: BaseException | None = None
        for call_id in await self._step(f"ended {turn}", lambda: self._ended_ids(awaited)):
            try:
                await _wait_for(self._open[call_id].task)
                await self._end_waiting(call_id)
            except Exception as raised:  # noqa: BLE001  raised below
                first_error = first_error or raised
            self._report(call_id)
        if first_error is not None:
            raise first_error

    async def stop(self) -> None:
        """Cancel all of them, and return when they are over.

        If this is cancelled in the meantime, raises CancelledError after that.
        """
        running = [*self._running.values(), *self._open.values()]
        unfinished = {call.task for call in running}
        for task in unfinished:
            task.cancel()
        cancelled: asyncio.CancelledError | None = None
        while unfinished:
            try:
                _, unfinished = await asyncio.wait(unfinished)
            except asyncio.CancelledError as error:
                cancelled = error
        for call in running:
            failure = None if call.task.cancelled() else call.task.exception()
            if failure is not None:
                log_raised(_SINKS, failure)
        for call_id in self._open:
            try:
                await self._end_waiting(call_id)
            except Exception as raised:  # noqa: BLE001  the run's own error is raised
                log_raised(_SINKS, raised)
        self._running.clear()
        if cancelled is not None:
            raise cancelled

    async def cancel(self, call_id: str) -> bool:
        """Cancel one of them, wait until it is over, and return whether it ran until then.

        A call whose tool has not begun is not one of them yet. If its tool has ended, its result is
        being stored, and this returns False.
        """
        running = self._open.get(call_id) or self._running.get(call_id)
        if running is None or not running.begun.done() or running.task.done():
            return False
        is_running = not running.tool_ended.is_set()
        if is_running:
            running.called_off.set()
            running.task.cancel()
        await asyncio.wait([running.task])
        return is_running

    def close(self) -> None:
        """Report all of them with what is known of their results."""
        for call_id in [*self._open]:
            self._report(call_id)

    def _start(self, call: HydrationResult, scope: CallScope) -> None:
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def begins() -> None:
            if not begun.done():
                begun.set_result(None)

        tool_ended, called_off = asyncio.Event(), asyncio.Event()
        call_scope = replace(
            scope, begins=begins, ends=tool_ended.set, called_off=called_off.is_set
        )
        task = asyncio.ensure_future(self._runner.exec(call, caller=self._caller, scope=call_scope))
        self._running[call.call.id] = _Running(call, scope, task, begun, tool_ended, called_off)

    async def _let_begin(self, others: Sequence[HydrationResult], scope: CallScope) -> None:
        """Let each started call begin before all `others`, so that any end of it is recorded.

        If this is cancelled, the other calls are recorded as cancelled, too.
        """
        cancels = cancel_requests()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError as raised:
            code = ErrorCode.CANCELLED
            ended = self._runner.refuse_all(others, caller=self._caller, scope=scope, code=code)
            await record_end(ended, raised, cancels)
            raise

    async def _step(self, name: str, work: Callable[[], Awaitable[_Ids]]) -> _Ids:
        if self._steps is None:
            return await work()
        return await self._steps.run(name, work, _Ids)

    async def _begun_ids(self, ids: Sequence[str]) -> _Ids:
        for call_id in ids:
            running = self._running[call_id]
            await asyncio.wait((running.task, running.begun), return_when=asyncio.FIRST_COMPLETED)
        return tuple(call_id for call_id in ids if self._running[call_id].begun.done())

    async def _ended_ids(self, awaited: Awaited) -> _Ids:
        tasks = {call_id: running.task for call_id, running in self._open.items()}
        if awaited != "none":
            first = asyncio.FIRST_COMPLETED if awaited == "one" else asyncio.ALL_COMPLETED
            await asyncio.wait(tasks.values(), return_when=first)
        return tuple(call_id for call_id, task in tasks.items() if task.done())

    async def _end_waiting(self, call_id: str) -> None:
        """End a call that would wait for a person although its model was told that it runs.

        That is an agent that has to ask, or a call that was cut off and may not begin again by
        itself.
        """
        outcome, running = self._watch.outcomes.get(call_id), self._open[call_id]
        if isinstance(outcome, Waiting):
            suspended, scope = outcome.suspended, running.scope
            if suspended is not None:
                self._spending.hold(call_id, suspended)
                scope = scope.resuming(suspended)
            code = ErrorCode.APPROVAL_REQUIRED
            await self._runner.refuse_all(
                [running.call], caller=self._caller, scope=scope, code=code, began=outcome.record
            )

    def _report(self, call_id: str) -> None:
        call = self._open.pop(call_id).call.call
        self.arrived.append(later_message(call, self._watch.outcomes.get(call_id)))


def _is_background(
    call: HydrationResult, scope: CallScope, background_tools: Container[str] | None
) -> bool:
    if background_tools is not None:
        is_marked = call.call.name in background_tools
    else:
        is_marked = isinstance(call, Hydrated) and call.definition.annotations.background
    return is_marked and call.call.id not in scope.suspended


async def _wait_for(task: asyncio.Task[Outcome]) -> None:
    """Wait for a call. Raises what a sink raises; a cancelled call has its own outcome."""
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
