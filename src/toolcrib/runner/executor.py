"""From a call that may run to the tool's own value: what the tool is given, how it runs, its parts.

Rule: no detail of an exception passes through. It becomes a `CallError`, and its text stays here.

What is bound once for all calls is worked out when a runner is made. What a `per_call` factory
makes is opened before the tool runs and closed after it, within the tool's time limit, in reverse
order, each exactly once, whatever happened to the call. An error in closing fails a call that had
succeeded, since its work may be undone. It replaces the tool's error only if it has safe text and
the tool's error has none. Closing cannot turn a failure into a success. For a blocking tool,
everything is opened, used and closed in one thread and one context, because libraries that are not
thread-safe or that set context variables require it.

A part, streamed or reported by `CallContext.progress`, is treated alike whether or not anybody
observes it: one that is not JSON, or too large, ends the call. What an observer raises is not the
tool's fault. The tool is not told and continues; the error is raised once the call is over.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, Protocol, TypeAlias
from weakref import ref

import msgspec

from toolcrib.errors import CapabilityError, ErrorCode, MissingExtraError, OutcomeUnknown, ToolError
from toolcrib.failures import readable, words_of
from toolcrib.hydration import OtherArguments, instance_of
from toolcrib.runner.execute import (
    StillRunning,
    TimeLimitExceeded,
    call_guarded,
    guarded,
    run_limited,
    start_tool,
    value_of,
)
from toolcrib.runner.output import MAX_RESULT_BYTES, Unusable, as_json, project, report_unusable
from toolcrib.runner.process import run_in_process
from toolcrib.runner.stopped import (
    NOT_ITS_OWN,
    Reporter,
    Stopped,
    Suspended,
    as_failure,
    model_text,
    safe_error,
)
from toolcrib.threads import CallThread, Ending, LeftWork, Work, cancel_requests, is_stop
from toolcrib.tools import Catalog, Entry, Need, PerCall, Tool, check_implements
from toolcrib.values.call import Hydrated, ToolCall
from toolcrib.values.content import ToolContent
from toolcrib.values.context import CallContext, CallScope, Observer, PolicyContext, Surroundings
from toolcrib.values.decision import ApprovalRequest
from toolcrib.values.definition import ToolDefinition, Visibility
from toolcrib.values.json import JsonObject, JsonValue
from toolcrib.values.record import CallError, Completed, Failed, Outcome

_STILL_RUNNING = (
    "The tool was told to stop but did not. It was left running, and its outcome is unknown."
)
_CHECK_FIRST = " It may still finish: check whether it did before you call it again."
_POLL_SECONDS = 0.05  # seconds between checks whether the loop has closed


FactoryNeeds: TypeAlias = tuple[PerCall, tuple[Need, ...]]


class ToolPlan(msgspec.Struct, frozen=True, eq=False):
    """Holds what is known about a tool's calls in advance, worked out when a runner is made.

    `limit` is the seconds that a call may take, `fixed` is injected unchanged into each call, and
    `factories` holds the needs that each factory fills. `plain` is True if that is everything: no
    context, nothing made, no parts, no process. If `emulated`, the tool's code is never started.
    """

    tool: Tool[..., Any]
    limit: float | None
    fixed: Mapping[str, object]
    factories: tuple[FactoryNeeds, ...]
    plain: bool
    emulated: bool = False


def plan_of(entry: Entry, timeout: float | None) -> ToolPlan:
    """Return the plan of one tool; `timeout` holds for a tool that sets none."""
    fixed: dict[str, object] = {}
    needs_by_factory: dict[PerCall, list[Need]] = {}
    tool = entry.tool
    for need in tool.needs:
        implementation = entry.bindings.get(need.interface, need.default)
        if isinstance(implementation, PerCall):
            needs_by_factory.setdefault(implementation, []).append(need)
        else:
            fixed[need.parameter] = implementation
    return ToolPlan(
        tool,
        tool.definition.annotations.timeout or timeout,
        fixed,
        tuple((factory, tuple(needs)) for factory, needs in needs_by_factory.items()),
        not (needs_by_factory or tool.context_parameter or tool.streaming or tool.subprocess),
    )


class CallToRun(Protocol):
    """Holds what a tool that takes more than its arguments may know about its call.

    `key` is the call's idempotency key; `observer_failed` is called with what the observer raised at
    a part.
    """

    key: str
    scope: CallScope
    context: PolicyContext

    def around(self) -> Surroundings: ...

    def observer_failed(self, raised: BaseException) -> None: ...


class Executor:
    """Runs the tools of one catalog; `timeout` (seconds) holds for those that set none.

    `max_result_bytes` limits what is taken from a tool's process, and each part of a streaming
    tool.
    """

    emulates: ClassVar[bool] = False

    def __init__(
        self,
        catalog: Catalog,
        timeout: float | None,
        reporter: Reporter,
        *,
        max_result_bytes: int = MAX_RESULT_BYTES,
    ) -> None:
        self.timeout = timeout
        self._reporter = reporter
        self._max_bytes = max_result_bytes
        self.weakly = ref(self)
        runnable = [entry for entry in catalog.entries if entry.tool.runnable]
        self.plans = {e.tool.definition.name: plan_of(e, timeout) for e in runnable}

    def over(self, catalog: Catalog) -> Executor:
        """Return an executor of another catalog with the same settings."""
        return Executor(catalog, self.timeout, self._reporter, max_result_bytes=self._max_bytes)

    def run(self, plan: ToolPlan, hydrated: Hydrated, call: CallToRun) -> Awaitable[Any]:
        """Return an awaitable of the tool's value.

        The caller must pass whatever this or the awaitable raises through `end_of`.
        """
        instance = instance_of(hydrated, plan.tool)
        if plan.plain:
            return run_limited(start_tool(plan.tool, instance, plan.fixed), plan.limit)
        return self._in_context(plan, hydrated, instance, call)

    async def _in_context(
        self, plan: ToolPlan, hydrated: Hydrated, instance: Any, call: CallToRun
    ) -> Any:
        scope = call.scope
        watch = CallWatch(scope.observer, self._max_bytes, failed=call.observer_failed)
        context = CallContext(
            hydrated.call.id,
            scope.tally.run_id,
            call.key,
            call.context.caller,
            None if plan.limit is None else time.monotonic() + plan.limit,
            watch,
            call.around(),
        )
        try:
            return await self._run_with(context, plan, hydrated, instance)
        finally:
            watch.over = True

    async def _run_with(
        self, context: CallContext, plan: ToolPlan, hydrated: Hydrated, instance: Any
    ) -> Any:
        tool, limit = plan.tool, plan.limit
        if tool.subprocess:
            work = run_in_process(tool, hydrated, context, self._max_bytes)
            return await run_limited(work, limit)
        injected, parts = plan.fixed, None
        if tool.context_parameter is not None:
            injected = {**injected, tool.context_parameter: context}
        if tool.streaming:
            definition, watch = hydrated.definition, context.observer
            parts = Parts(context.call_id, definition.visible, watch, self._max_bytes)
        if plan.factories:
            return await execute_scoped(plan, instance, injected, context=context, parts=parts)
        if parts is not None:
            return await run_limited(parts.last(tool.invoke(instance, injected)), limit)
        return await run_limited(start_tool(tool, instance, injected), limit)

    def end_of(
        self,
        raised: BaseException,
        plan: ToolPlan,
        hydrated: Hydrated,
        works: LeftWork,
        *,
        cancels: int,
    ) -> BaseException:
        """Return the exception that a call ends with after its tool or its surroundings `raised`.

        That is Stopped, Suspended, or CancelledError if this task was asked to stop more than
        `cancels` times. If the tool does more than read, work that it left running (`works`)
        makes its outcome unknown.
        """
        call, tool_label = hydrated.call, f"tool '{hydrated.definition.name}'"
        marks = hydrated.definition.annotations
        may_repeat = marks.idempotent or marks.read_only  # otherwise it may have taken effect
        raised = readable(raised)
        match raised:
            case StillRunning():
                return _left_behind(works.tool_work, may_repeat=may_repeat, late=raised.late)
            case TimeLimitExceeded() | asyncio.CancelledError() | CapabilityFailed() if (
                works and not marks.read_only
            ):
                self._report_capability(raised, call, tool_label)
                is_late = isinstance(raised, TimeLimitExceeded)
                is_stopped = is_late or cancel_requests() > cancels
                return _left_behind(
                    _work_to_follow(raised, plan, works, is_stopped=is_stopped),
                    may_repeat=may_repeat,
                    late=is_late,
                )
            case TimeLimitExceeded():
                return Stopped(CallError.of(ErrorCode.TIMEOUT, retryable=may_repeat))
            case asyncio.CancelledError():
                raised.__context__ = None  # what the tool was handling at that moment
                if cancel_requests() > cancels:
                    return raised
                self._reporter.raised(tool_label, call, raised)  # an error of the tool's own
                return Stopped(CallError.of(ErrorCode.TOOL_ERROR, retryable=may_repeat))
            case KeyboardInterrupt() | GeneratorExit() | Suspended():
                return raised
            case Unusable():
                report_unusable(self._reporter, call, hydrated.definition, raised)
                return Stopped(raised.error)
            case OtherArguments():
                return Stopped(
                    CallError.of(ErrorCode.NOT_RUNNABLE, f"The call did not run: {raised}.")
                )
            case CapabilityFailed():
                self._report_capability(raised, call, tool_label)
                return Stopped(
                    raised.error(may_repeat=may_repeat), model_text=model_text(raised.raised)
                )
        self._reporter.raised(tool_label, call, raised)
        return Stopped(safe_error(raised, may_repeat=may_repeat), model_text=model_text(raised))

    def _report_capability(self, raised: BaseException, call: ToolCall, tool_label: str) -> None:
        if isinstance(raised, CapabilityFailed):
            self._reporter.raised(f"a capability of {tool_label}", call, raised.raised)


def _left_behind(work: Work | None, *, may_repeat: bool, late: bool) -> Stopped:
    text = _STILL_RUNNING if may_repeat else _STILL_RUNNING + _CHECK_FIRST
    error = CallError.of(ErrorCode.OUTCOME_UNKNOWN, text, retryable=may_repeat)
    return Stopped(error, left=True, work=work, late=late)


def _work_to_follow(
    raised: BaseException, plan: ToolPlan, works: LeftWork, *, is_stopped: bool
) -> Work | None:
    """Return the work whose end ends the call; None if closing what was opened may undo it.

    A tool that has itself ended was stopped, or raised a CancelledError of its own, and only calls
    that it made still run.
    """
    if plan.factories:
        return None
    if works.tool_work is not None:
        return works.tool_work
    own = RuntimeError("CancelledError was raised by the tool")
    return Work.after(works, (None, raised if is_stopped else own))


Exit: TypeAlias = Callable[[BaseException | None], Awaitable[object]]


class CapabilityFailed(Exception):  # noqa: N818  an outcome; it never leaves the runner
    """An implementation could not be made for a call, or not closed after it; `raised` is why.

    Only when closing fails is `has_begun` true: the tool may have taken effect.
    """

    def __init__(self, raised: BaseException, *, has_begun: bool) -> None:
        super().__init__()
        self.raised = raised
        self._has_begun = has_begun

    def error(self, *, may_repeat: bool) -> CallError:
        """Return the error of the call; `may_repeat` says that a begun call may be repeated."""
        may_repeat = may_repeat or not self._has_begun
        if isinstance(self.raised, MissingExtraError):
            return safe_error(self.raised, may_repeat=may_repeat)
        if isinstance(self.raised, ToolError):
            is_unknown = self._has_begun and isinstance(self.raised, OutcomeUnknown)
            kind = OutcomeUnknown if is_unknown else CapabilityError
            words = words_of(self.raised)
            public_error = kind(words.text, retryable=words.retryable and may_repeat)
            return safe_error(public_error, may_repeat=may_repeat)
        return CallError.of(ErrorCode.CAPABILITY_ERROR, retryable=may_repeat)


async def execute_scoped(
    plan: ToolPlan,
    instance: Any,
    injected: Mapping[str, Any],
    *,
    context: CallContext,
    parts: Parts | None,
) -> Any:
    """Return the tool's own value.

    Raises what `run_limited` raises, what the tool raises, and CapabilityFailed.
    """
    tool = plan.tool

    async def run_all() -> Any:
        thread = CallThread() if tool.blocking else None
        capabilities = OpenCapabilities(thread, plan.limit)
        value, outcome = None, None
        try:
            arguments = {
                **injected,
                **await capabilities.all(plan.factories, context, tool.definition.name),
            }
            pending = await capabilities.run(
                lambda: tool.invoke(instance, arguments), keeps_end=True
            )
            value = await (value_of(pending) if parts is None else parts.last(pending))
        except BaseException as raised:  # noqa: BLE001  what was opened is closed in any case
            outcome = raised
        outcome = await capabilities.close(outcome)
        if thread is not None:
            thread.close()
        try:
            if outcome is not None:
                raise outcome
        finally:
            outcome = None  # its traceback holds this frame
        return value

    return await run_limited(run_all(), plan.limit)


class OpenCapabilities:
    """Holds what one call has opened, and closes it. Blocking work goes to the call's thread."""

    def __init__(self, thread: CallThread | None, seconds: float | None) -> None:
        self._thread = thread
        self._seconds = seconds
        self._exits: list[Exit] = []
        self._cancels = cancel_requests()

    async def all(
        self, factories: tuple[FactoryNeeds, ...], context: CallContext, tool: str
    ) -> dict[str, object]:
        """Open everything, and return the implementations by parameter. Raises CapabilityFailed."""
        implementations: dict[str, object] = {}
        try:
            for factory, needs in factories:
                implementation = await self._open(factory, context)
                if cancel_requests() > self._cancels:
                    raise asyncio.CancelledError  # the factory caught it; the tool does not begin
                for need in needs:
                    check_implements(need.interface, implementation, tool)
                    implementations[need.parameter] = implementation
        except NOT_ITS_OWN:
            raise
        except BaseException as raised:  # a factory may raise anything
            if is_stop(raised, self._cancels):
                raise
            raise CapabilityFailed(raised, has_begun=False) from None
        return implementations

    async def close(self, outcome: BaseException | None) -> BaseException | None:
        """Close everything, the last first; return the exception that the call ends with, if any.

        After a stopped call, each gets the time limit again: what hung may hang in closing too.
        """
        while self._exits:
            is_stopped = isinstance(outcome, asyncio.CancelledError)
            try:
                async with asyncio.timeout(self._seconds if is_stopped else None):
                    await self._exits.pop()(outcome)
            except BaseException as raised:  # noqa: BLE001  the others are still closed
                outcome = self._later_end(outcome, raised)
        return outcome

    async def run(self, work: Callable[[], Any], *, keeps_end: bool = False) -> Any:
        """Run code of the tool or a capability, in the call's thread if the tool blocks."""
        if self._thread is None:
            return call_guarded(work)
        return await self._thread.run(work, keeps_end=keeps_end)

    def _later_end(self, outcome: BaseException | None, raised: BaseException) -> BaseException:
        if outcome is not None and raised is _cause(outcome):
            return outcome
        if is_stop(raised, self._cancels) or isinstance(raised, NOT_ITS_OWN):
            return raised
        if outcome is None:
            return CapabilityFailed(raised, has_begun=True)
        has_text = isinstance(outcome, ToolError | CapabilityFailed)
        if isinstance(raised, ToolError) and isinstance(outcome, Exception) and not has_text:
            return CapabilityFailed(raised, has_begun=True)
        return outcome

    async def _open(self, factory: PerCall, context: CallContext) -> object:
        implementation = await self.run(lambda: factory.make(context))
        if not (
            hasattr(type(implementation), "__aenter__")
            or hasattr(type(implementation), "__enter__")
        ):
            implementation = await value_of(implementation)
        kind: Any = type(implementation)
        if hasattr(kind, "__aenter__"):
            entered_value = await value_of(kind.__aenter__(implementation))
            self._exits.append(
                lambda outcome: value_of(kind.__aexit__(implementation, *_exit_arguments(outcome)))
            )
            return entered_value
        return (
            await self._enter(kind, implementation)
            if hasattr(kind, "__enter__")
            else implementation
        )

    async def _enter(self, kind: Any, manager: Any) -> object:
        """Enter a context manager; one given up on in a thread that still enters is left again."""
        entered_values: list[object] = []

        async def leave(outcome: BaseException | None) -> None:
            def exit_() -> None:
                if entered_values:
                    kind.__exit__(manager, *_exit_arguments(outcome))

            if self._thread is not None and self._thread.busy:
                self._thread.submit(exit_)  # the abandoned work still runs; this runs after it
            else:
                await self.run(exit_, keeps_end=True)

        self._exits.append(leave)
        await self.run(lambda: entered_values.append(kind.__enter__(manager)))
        return entered_values[0]


def _cause(outcome: BaseException) -> BaseException:
    return outcome.raised if isinstance(outcome, CapabilityFailed) else outcome


def _exit_arguments(outcome: BaseException | None) -> tuple[Any, Any, Any]:
    """Return the arguments of `__exit__`: the tool's exception, or the capability's own."""
    if outcome is None:
        return None, None, None
    cause = _cause(outcome)
    return type(cause), cause, cause.__traceback__


class Parts(msgspec.Struct, frozen=True):
    """Takes the parts of one streaming call and reports them to the observer."""

    call_id: str
    visible: Visibility | None
    observer: Observer | None
    max_bytes: int

    async def last(self, generator: AsyncGenerator[Any, None]) -> Any:
        """Return the last value, or None. Raises Unusable, and what the tool raises.

        Content is not reported while it arrives: its data is for the application and the model.
        """
        value = None
        try:
            while True:
                try:
                    value = await guarded(anext(generator))
                except StopAsyncIteration:
                    return value
                if ToolContent.of(value) is None:
                    self._tell(value)
                await asyncio.sleep(0)
        except GeneratorExit:
            raise  # the loop is gone: nothing can be awaited any more
        except BaseException:
            await _close(generator)
            raise

    def _tell(self, value: object) -> None:
        json_value = as_json(value, self.max_bytes)
        if self.observer is not None:
            self.observer.progress(self.call_id, project(json_value, self.visible))


async def _close(generator: AsyncGenerator[Any, None]) -> None:
    """Close a generator; what that raises does not replace the call's own end."""
    try:
        await guarded(generator.aclose())
    except NOT_ITS_OWN:
        raise
    except BaseException:  # noqa: BLE001, S110  a generator may raise anything, or yield once more
        pass


class CallWatch:
    """An `Observer` for one call, which passes reports on to another one in the event loop.

    A blocking tool runs in a thread, and one that was given up on may still run there after the
    call has ended (`over`); its reports are dropped. So are all further ones to an observer that
    has raised; `failed` is called with what it raised.
    """

    def __init__(
        self,
        observer: Observer | None,
        max_bytes: int = MAX_RESULT_BYTES,
        *,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._observer = observer
        self._failed = failed
        self._max_bytes = max_bytes
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.over = False

    def progress(self, call_id: str, part: JsonValue) -> None:
        """Report a part. Raises Unusable, in the tool, for what is not JSON or too large."""
        if self.over:
            return
        part = as_json(part, self._max_bytes)
        if threading.get_ident() == self._thread:
            self._tell(call_id, part)
            return
        with suppress(RuntimeError):  # the loop has closed: nobody observes any more
            self._loop.call_soon_threadsafe(lambda: self._tell(call_id, part))

    def approval_requested(self, request: ApprovalRequest) -> None: ...

    def finished(self, outcome: Outcome) -> None: ...

    def _tell(self, call_id: str, part: JsonValue) -> None:
        if self._observer is None or self.over:
            return
        try:
            self._observer.progress(call_id, part)
        except NOT_ITS_OWN:
            raise
        except BaseException as raised:  # noqa: BLE001  raised once the call is over
            self._observer = None
            self._failed(as_failure(raised))


# A stand-in for each tool: the one executor that starts no tool's code.
#
# Rule: everything around a tool stays the same (policies, approvals, time limits, the check and the
# views of its result), and the outside world is left alone. No capability is opened, no ledger is
# asked, and nothing is taken from a store of budgets. Such a call never begins: its record has no
# idempotency key, and carries the note `emulated`.

StandIn: TypeAlias = Callable[[ToolDefinition, JsonObject], Any]
"""Returns the value of a call of this tool with these effective arguments.

It may also return an awaitable, or a generator of parts whose last part is the value.
"""


class EmulatingExecutor(Executor):
    """Runs `stand_in` for the tools of a catalog, except for library tools that `spares` names."""

    emulates = True

    def __init__(
        self,
        catalog: Catalog,
        timeout: float | None,
        reporter: Reporter,
        *,
        max_result_bytes: int,
        stand_in: StandIn,
        spares: Callable[[Tool[..., Any]], bool],
    ) -> None:
        super().__init__(catalog, timeout, reporter, max_result_bytes=max_result_bytes)
        self.stand_in = stand_in
        self.spares = spares
        plans = [plan_of(entry, timeout) for entry in catalog.entries]
        self.plans = {
            plan.tool.definition.name: plan
            if spares(plan.tool)
            else msgspec.structs.replace(plan, plain=False, emulated=True)
            for plan in plans
        }

    def over(self, catalog: Catalog) -> Executor:
        return EmulatingExecutor(
            catalog,
            self.timeout,
            self._reporter,
            max_result_bytes=self._max_bytes,
            stand_in=self.stand_in,
            spares=self.spares,
        )

    async def _run_with(
        self, context: CallContext, plan: ToolPlan, hydrated: Hydrated, instance: Any
    ) -> Any:
        if self.spares(plan.tool):
            return await super()._run_with(context, plan, hydrated, instance)
        definition = hydrated.definition
        parts = Parts(context.call_id, definition.visible, context.observer, self._max_bytes)
        return await run_limited(self._value(plan, hydrated, parts), plan.limit)

    async def _value(self, plan: ToolPlan, hydrated: Hydrated, parts: Parts) -> Any:
        value = call_guarded(lambda: self.stand_in(hydrated.definition, hydrated.arguments))
        value = await value_of(value)
        if inspect.isgenerator(value) or isinstance(value, AsyncIterator):
            return await parts.last(_iterate(value)) if plan.tool.streaming else await _last(value)
        return await parts.last(_iterate(iter([value]))) if plan.tool.streaming else value


async def _iterate(parts: Any) -> AsyncGenerator[Any, None]:
    if isinstance(parts, AsyncIterator):
        async for part in parts:
            yield part
    else:
        for part in parts:
            yield part


async def _last(parts: Any) -> Any:
    last = None
    async for last in _iterate(parts):  # noqa: B007
        pass
    return last


# A left-behind tool ends after its call: its end is added to what is known about the call.
#
# Rule: the end is worked out once, as if the tool had ended that way in time, and added in the event
# loop of its call. If that loop has closed, or closes before the end is added, a new loop does it.


def follow(
    work: Work,
    read: Callable[[Ending], Completed | Failed],
    add: Callable[[Completed | Failed], Awaitable[bool]],
) -> None:
    """Add the end of a left-behind tool to its call once its `work` is over.

    `read` returns the call's outcome, and is called once because reading may use up a value. `add`
    returns False if the end could not be written.
    """
    loop = asyncio.get_running_loop()

    def add_end(value: Any, raised: BaseException | None) -> None:
        outcomes: list[Completed | Failed] = []
        were_written: list[bool] = []
        over_event = threading.Event()
        tasks = []  # a loop holds its tasks weakly

        async def end() -> None:
            if not outcomes:
                outcomes.append(read((value, raised)))
            were_written.append(await add(outcomes[0]))

        ending = end()

        async def in_loop() -> None:
            try:
                await ending
            finally:
                over_event.set()

        loop_work = in_loop()
        with suppress(RuntimeError):  # the loop has closed
            loop.call_soon_threadsafe(lambda: tasks.append(loop.create_task(loop_work)))
        while not (over_event.wait(_POLL_SECONDS) or loop.is_closed()):
            if not threading.main_thread().is_alive():
                break  # the process ends, and nobody drives the loop
        for unfinished in (loop_work, ending):  # they may wait in a closed loop, or not have begun
            with suppress(ValueError):
                unfinished.close()
        if not any(were_written):
            asyncio.run(end())

    work.tell(add_end)


def late_end(
    ending: Ending, plan: ToolPlan, hydrated: Hydrated, executor: Executor, *, late: bool
) -> Stopped | None:
    """Return how a call ended whose tool was left behind; None if the tool returned a value.

    `late` says that it had run out of time; otherwise its caller was cancelled.
    """
    value, raised = ending
    is_awaitable = inspect.isawaitable(value)
    if raised is None and not is_awaitable:
        return None
    if inspect.iscoroutine(value):
        value.close()  # a coroutine that nobody will await any more
    is_told = is_awaitable or not plan.tool.blocking  # it was told to stop; a thread cannot be told
    if is_told and late and isinstance(raised, asyncio.CancelledError | TimeoutError | None):
        raised = TimeLimitExceeded()
    if raised is not None and not (is_told and isinstance(raised, asyncio.CancelledError)):
        end = executor.end_of(raised, plan, hydrated, LeftWork(), cancels=cancel_requests())
        if isinstance(end, Stopped):
            return end
    return Stopped(CallError.of(ErrorCode.CANCELLED))
