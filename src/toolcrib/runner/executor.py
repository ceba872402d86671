"""From a call that may run to the tool's own value: what is injected, the context, the time limit.

Nothing of an exception passes through: it becomes a `CallError`, and its text stays here.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from toolcrib.errors import ErrorCode
from toolcrib.hydrate import OtherArguments, instance_of
from toolcrib.runner.call_watch import CallWatch
from toolcrib.runner.execute import (
    StillRunning,
    TimeLimitExceeded,
    cancel_requests,
    execute,
    limited,
)
from toolcrib.runner.injected import CapabilityFailed, Injection, execute_scoped, injection
from toolcrib.runner.output import MAX_RESULT_BYTES, Unusable, report_unusable
from toolcrib.runner.process import run_in_process
from toolcrib.runner.scope import CallScope
from toolcrib.runner.stopped import Reporter, Stopped, safe_error
from toolcrib.runner.streaming import Parts
from toolcrib.tools import Catalog, Tool
from toolcrib.values.call import Hydrated
from toolcrib.values.context import CallContext
from toolcrib.values.decision import Caller
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.record import CallError

_STILL_RUNNING = (
    "The tool was told to stop and did not: it was left behind, and its outcome is unknown."
)


class Executor:
    """Runs the tools of one catalog; `timeout` (seconds) holds for those that name none.

    `max_result_bytes` bounds what is taken from a tool's process, and each part of one that streams.
    """

    def __init__(
        self,
        catalog: Catalog,
        timeout: float | None,
        reporter: Reporter,
        *,
        max_result_bytes: int = MAX_RESULT_BYTES,
    ) -> None:
        self._timeout = timeout
        self._reporter = reporter
        self._max_bytes = max_result_bytes
        self.injections = {e.tool.definition.name: injection(e) for e in catalog.entries}

    def limit(self, definition: ToolDefinition) -> float | None:
        """Seconds that a call of this tool may take."""
        return definition.annotations.timeout or self._timeout

    def over(self, catalog: Catalog) -> Executor:
        """The same for another catalog."""
        return Executor(catalog, self._timeout, self._reporter, max_result_bytes=self._max_bytes)

    async def run(
        self,
        tool: Tool[..., Any],
        hydrated: Hydrated,
        caller: Caller,
        scope: CallScope,
        *,
        key: str = "",
        cancels: int | None = None,
    ) -> Any:
        """The tool's value. Raises Stopped, and CancelledError if this task was cancelled.

        `key` is the idempotency key that the tool is told, by default the call's id. `cancels` is what
        `cancel_requests` says before, for those who know: looking for the running task costs most.
        """
        definition = hydrated.definition
        limit = self.limit(definition)
        injection = self.injections[definition.name]
        before = cancel_requests() if cancels is None else cancels
        watch = None
        try:
            instance = instance_of(hydrated, tool)
            if injection.plain:
                return await execute(tool, instance, injection.fixed, limit)
            watch = CallWatch(scope.observer, self._max_bytes)
            context = CallContext(
                hydrated.call.id,
                scope.tally.run_id,
                key or hydrated.call.id,
                caller,
                None if limit is None else time.monotonic() + limit,
                watch,
            )
            return await self._with(
                context, tool, hydrated, instance, injection=injection, limit=limit
            )
        except BaseException as raised:  # noqa: BLE001  a tool may raise anything
            raise self._ended(raised, hydrated, before) from None
        finally:
            if watch is not None:
                watch.over = True

    async def _with(
        self,
        context: CallContext,
        tool: Tool[..., Any],
        hydrated: Hydrated,
        instance: Any,
        *,
        injection: Injection,
        limit: float | None,
    ) -> Any:
        """Those that take more than their arguments, or give more than a value."""
        if tool.subprocess:
            work = run_in_process(tool, hydrated, context, self._max_bytes)
            return await limited(work, limit)
        injected, parts = injection.fixed, None
        if tool.context_parameter is not None:
            injected = {**injected, tool.context_parameter: context}
        if tool.streaming:
            definition, watch = hydrated.definition, context.observer
            parts = Parts(context.call_id, definition.visible, watch, self._max_bytes)
        if injection.made:
            return await execute_scoped(
                tool,
                instance,
                injected,
                injection.made,
                context=context,
                seconds=limit,
                parts=parts,
            )
        if parts is not None:
            return await limited(parts.last(tool.invoke(instance, injected)), limit)
        return await execute(tool, instance, injected, limit)

    def _ended(self, raised: BaseException, hydrated: Hydrated, cancels: int) -> BaseException:
        """What leaves the executor in place of what was raised."""
        call, what = hydrated.call, f"tool '{hydrated.definition.name}'"
        marks = hydrated.definition.annotations
        again = marks.idempotent or marks.read_only  # else it may have happened
        match raised:
            case TimeLimitExceeded():
                return Stopped(CallError.of(ErrorCode.TIMEOUT, retryable=again))
            case StillRunning():
                return Stopped(CallError.of(ErrorCode.OUTCOME_UNKNOWN, _STILL_RUNNING))
            case asyncio.CancelledError():
                raised.__context__ = None  # what the tool was handling just then
                if cancel_requests() > cancels:
                    return raised
                self._reporter.raised(what, call, raised)  # something of its own
                return Stopped(CallError.of(ErrorCode.TOOL_ERROR, retryable=again))
            case KeyboardInterrupt() | GeneratorExit():
                return raised
            case Unusable():
                report_unusable(self._reporter, call, hydrated.definition, raised)
                return Stopped(raised.error)
            case OtherArguments():
                return Stopped(
                    CallError.of(ErrorCode.NOT_RUNNABLE, f"The call did not run: {raised}.")
                )
            case CapabilityFailed():
                self._reporter.raised(f"a capability of {what}", call, raised.raised)
                return Stopped(raised.error(again=again))
        self._reporter.raised(what, call, raised)
        return Stopped(safe_error(raised, again=again))
