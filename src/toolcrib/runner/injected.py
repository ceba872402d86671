"""What a tool is given at each call: what is bound once for all, and what is made for this call.

What a `per_call` factory makes is opened before the tool runs and closed after it, within the tool's
time limit, in reverse order, each exactly once, whatever became of the call. What closing raises
fails a call that had succeeded (its work may be undone), and takes the place of the tool's error only
where it has safe text and the tool's has none. Closing cannot make a success of a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from toolcrib.errors import CapabilityError, ErrorCode, MissingExtraError, ToolError
from toolcrib.runner.call_thread import CallThread
from toolcrib.runner.execute import awaited, called, cancel_requests, limited
from toolcrib.runner.stopped import NOT_ITS_OWN, safe_error
from toolcrib.runner.streaming import Parts
from toolcrib.tools import Entry, Need, PerCall, Tool, check_implements
from toolcrib.values.context import CallContext
from toolcrib.values.record import CallError

Made: TypeAlias = tuple[PerCall, tuple[Need, ...]]
Exit: TypeAlias = Callable[[BaseException | None], Awaitable[object]]


class CapabilityFailed(Exception):  # noqa: N818  an outcome; it never leaves the runner
    """An implementation could not be made for a call, or not closed after it; `raised` is why.

    Only of what is closed the tool has `begun`, and may have done what it does.
    """

    def __init__(self, raised: BaseException, *, begun: bool) -> None:
        super().__init__()
        self.raised = raised
        self._begun = begun

    def error(self, *, again: bool) -> CallError:
        """`again` says that the call may be made again though its tool has begun."""
        again = again or not self._begun
        if isinstance(self.raised, MissingExtraError):
            return safe_error(self.raised, again=again)
        if isinstance(self.raised, ToolError) and isinstance(self.raised.safe_text, str):
            told = CapabilityError(self.raised.safe_text, retryable=self.raised.retryable)
            return safe_error(told, again=again)
        return CallError.of(ErrorCode.CAPABILITY_ERROR, retryable=again)


class Injection(NamedTuple):
    """Of one tool: `fixed` is the same at each call, `made` holds the needs that each factory fills.

    `plain` is True where that is all: no context, nothing made, no parts, no process.
    """

    fixed: Mapping[str, object]
    made: tuple[Made, ...]
    plain: bool


def injection(entry: Entry) -> Injection:
    """Worked out once, when a runner is made."""
    fixed: dict[str, object] = {}
    made: dict[PerCall, list[Need]] = {}
    tool = entry.tool
    for need in tool.needs:
        bound = entry.bindings.get(need.interface, need.default)
        if isinstance(bound, PerCall):
            made.setdefault(bound, []).append(need)
        else:
            fixed[need.parameter] = bound
    return Injection(
        fixed,
        tuple((factory, tuple(needs)) for factory, needs in made.items()),
        not (made or tool.context_parameter or tool.streaming or tool.subprocess),
    )


async def execute_scoped(
    tool: Tool[..., Any],
    instance: Any,
    injected: Mapping[str, Any],
    made: tuple[Made, ...],
    *,
    context: CallContext,
    seconds: float | None,
    parts: Parts | None,
) -> Any:
    """The tool's own value. Raises what `execute` raises, and CapabilityFailed."""

    async def whole() -> Any:
        thread = CallThread() if tool.blocking else None
        opened = Opened(thread, seconds)
        value, outcome = None, None
        try:
            given = {**injected, **await opened.all(made, context, tool.definition.name)}
            begun = await opened.run(lambda: tool.invoke(instance, given))
            value = await (awaited(begun) if parts is None else parts.last(begun))
        except BaseException as raised:  # noqa: BLE001  what was opened is closed, whatever came
            outcome = raised
        outcome = await opened.close(outcome)
        if thread is not None:
            thread.close()
        try:
            if outcome is not None:
                raise outcome
        finally:
            outcome = None  # its traceback holds this frame
        return value

    return await limited(whole(), seconds)


class Opened:
    """What one call has opened, and how it is closed. Blocking work goes to the call's thread."""

    def __init__(self, thread: CallThread | None, seconds: float | None) -> None:
        self._thread = thread
        self._seconds = seconds
        self._exits: list[Exit] = []
        self._cancels = cancel_requests()

    async def all(
        self,
        made: tuple[Made, ...],
        context: CallContext,
        tool: str,
    ) -> dict[str, object]:
        """The implementations by parameter. Raises CapabilityFailed."""
        given: dict[str, object] = {}
        try:
            for factory, needs in made:
                implementation = await self._open(factory, context)
                for need in needs:
                    check_implements(need.interface, implementation, tool)
                    given[need.parameter] = implementation
        except NOT_ITS_OWN:
            raise
        except BaseException as raised:  # a factory may raise anything
            if self._is_a_stop(raised):
                raise
            raise CapabilityFailed(raised, begun=False) from None
        return given

    async def close(self, outcome: BaseException | None) -> BaseException | None:
        """Close all, the last first; what the call ends with now. Raises nothing.

        Of a call that was stopped, each has the time limit once more: what hung may hang in closing.
        """
        while self._exits:
            stopped = isinstance(outcome, asyncio.CancelledError)
            try:
                async with asyncio.timeout(self._seconds if stopped else None):
                    await self._exits.pop()(outcome)
            except BaseException as raised:  # noqa: BLE001  the others are closed all the same
                outcome = self._settled(outcome, raised)
        return outcome

    async def run(self, work: Callable[[], Any]) -> Any:
        """Do what the tool's own code, or that of a capability, would block with."""
        return called(work) if self._thread is None else await self._thread.run(work)

    def _settled(self, outcome: BaseException | None, raised: BaseException) -> BaseException:
        if outcome is not None and raised is _cause(outcome):
            return outcome
        if self._is_a_stop(raised) or isinstance(raised, NOT_ITS_OWN):
            return raised
        if outcome is None:
            return CapabilityFailed(raised, begun=True)
        has_text = isinstance(outcome, ToolError | CapabilityFailed)
        if isinstance(raised, ToolError) and isinstance(outcome, Exception) and not has_text:
            return CapabilityFailed(raised, begun=True)
        return outcome

    def _is_a_stop(self, raised: BaseException) -> bool:
        """The task was cancelled, or its time is up: no CancelledError of somebody's own making."""
        return isinstance(raised, asyncio.CancelledError) and cancel_requests() > self._cancels

    async def _open(self, factory: PerCall, context: CallContext) -> object:
        made = await self.run(lambda: factory.make(context))
        if not _is_manager(made):
            made = await awaited(made)
        kind: Any = type(made)
        if hasattr(kind, "__aenter__"):
            entered = await awaited(kind.__aenter__(made))
            self._exits.append(lambda outcome: awaited(kind.__aexit__(made, *_details(outcome))))
            return entered
        return await self._enter(kind, made) if hasattr(kind, "__enter__") else made

    async def _enter(self, kind: Any, made: Any) -> object:
        """In a thread, entering may be given up on and still succeed: then it is left, too."""
        entered: list[object] = []

        async def leave(outcome: BaseException | None) -> None:
            def exit_() -> None:
                if entered:
                    kind.__exit__(made, *_details(outcome))

            if self._thread is not None and self._thread.busy:
                self._thread.submit(exit_)  # what was given up goes on; this is done after it
            else:
                await self.run(exit_)

        self._exits.append(leave)
        await self.run(lambda: entered.append(kind.__enter__(made)))
        return entered[0]


def _is_manager(thing: object) -> bool:
    return hasattr(type(thing), "__aenter__") or hasattr(type(thing), "__enter__")


def _cause(outcome: BaseException) -> BaseException:
    return outcome.raised if isinstance(outcome, CapabilityFailed) else outcome


def _details(outcome: BaseException | None) -> tuple[Any, Any, Any]:
    """What `__exit__` is given: the tool's exception, or a capability's own."""
    if outcome is None:
        return None, None, None
    cause = _cause(outcome)
    return type(cause), cause, cause.__traceback__
