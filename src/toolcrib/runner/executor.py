"""From a call that may run to the tool's own value: what is injected, the context, the time limit.

Nothing of an exception passes through: it becomes a `CallError`, and its text stays here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from toolcrib.errors import ErrorCode
from toolcrib.runner.call_watch import CallWatch
from toolcrib.runner.execute import TimeLimitExceeded, cancel_requests, execute
from toolcrib.runner.injected import CapabilityFailed, execute_scoped, injection
from toolcrib.runner.scope import CallScope
from toolcrib.runner.stopped import Stopped, safe_error
from toolcrib.tools import Catalog, Tool
from toolcrib.values.call import Hydrated, ToolCall
from toolcrib.values.context import CallContext
from toolcrib.values.decision import Caller
from toolcrib.values.record import CallError

ExceptionHook: TypeAlias = Callable[[ToolCall, BaseException], None]


class Executor:
    """Runs the tools of one catalog; `timeout` (seconds) holds for those that name none."""

    def __init__(
        self, catalog: Catalog, timeout: float | None, on_exception: ExceptionHook | None
    ) -> None:
        self._timeout = timeout
        self._on_exception = on_exception
        self._injections = {e.tool.definition.name: injection(e) for e in catalog.entries}

    async def run(
        self, tool: Tool[..., Any], hydrated: Hydrated, caller: Caller, scope: CallScope
    ) -> Any:
        """The tool's value. Raises Stopped, and CancelledError if this task was cancelled."""
        call, name = hydrated.call, hydrated.definition.name
        limit = hydrated.definition.annotations.timeout or self._timeout
        fixed, made, wants_context = self._injections[name]
        injected, watch, context = fixed, None, None
        if wants_context:
            deadline = None if limit is None else time.monotonic() + limit
            watch = None if scope.observer is None else CallWatch(scope.observer)
            context = CallContext(call.id, scope.tally.run_id, call.id, caller, deadline, watch)
            if tool.context_parameter is not None:
                injected = {**fixed, tool.context_parameter: context}
        cancels = cancel_requests()
        try:
            if made:
                return await execute_scoped(tool, hydrated.tool, injected, made, context, limit)
            return await execute(tool, hydrated.tool, injected, limit)
        except BaseException as raised:  # noqa: BLE001  a tool may raise anything
            raise self._ended(raised, call, cancels) from None
        finally:
            if watch is not None:
                watch.over = True

    def _ended(self, raised: BaseException, call: ToolCall, cancels: int) -> BaseException:
        """What leaves the executor in place of what was raised."""
        match raised:
            case TimeLimitExceeded():
                return Stopped(CallError.of(ErrorCode.TIMEOUT))
            case asyncio.CancelledError():
                raised.__context__ = None  # what the tool was handling just then
                if cancel_requests() > cancels:
                    return raised
                return Stopped(CallError.of(ErrorCode.TOOL_ERROR))  # something of its own
            case KeyboardInterrupt() | GeneratorExit():
                return raised
            case CapabilityFailed():
                self._tell(call, raised.raised)
                return Stopped(raised.error)
        self._tell(call, raised)
        return Stopped(safe_error(raised))

    def _tell(self, call: ToolCall, raised: BaseException) -> None:
        if self._on_exception is not None:
            with suppress(Exception):
                self._on_exception(call, raised)
