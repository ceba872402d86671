"""An agent as a tool: its run is one call of another run.

Rule: the inner run is a part of the outer one. It spends what that has left, asks whom that asks and
writes where that writes (unless it has an approver and sinks of its own), and is cancelled with it.
When it waits, the outer run waits with its questions, and the outer state holds the inner one: both go
on from there. Its run id follows from the call: the same call in another process is the same run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Annotated, Any, NamedTuple, TypeAlias

from toolcrib.errors import AnswerError, ClientError, ToolcribError, ToolError
from toolcrib.runner.idempotency import key_of
from toolcrib.runner.output import Unusable
from toolcrib.runner.stopped import Suspended
from toolcrib.tools import Tool, tool
from toolcrib.values.context import CallContext, CallScope, RunTally, Surroundings
from toolcrib.values.decision import Answer, Caller, OuterCall
from toolcrib.values.definition import All, AnnotationOptions
from toolcrib.values.json import to_plain
from toolcrib.values.record import SuspendedCall, ToolInvocationRecord, has_begun, state_of
from toolcrib.values.run import (
    ApprovalRequested,
    Event,
    ReplyFinished,
    RunError,
    RunResult,
    RunStarted,
    RunState,
    ToolCallFinished,
    ToolCallProgress,
    ToolCallStarted,
    limit_text,
)

_TOLD = (
    RunStarted,
    ReplyFinished,
    ToolCallStarted,
    ToolCallProgress,
    ApprovalRequested,
    ToolCallFinished,
    RunError,
)
"""What whoever watches the outer run is told of the inner one: no texts, which the tool's `visible` is
about."""
_MOST_NAMED = 20


Prompt: TypeAlias = Annotated[
    str, "What to do, with all that has to be known for it: nothing else is told."
]


class OuterRun(NamedTuple):
    """The call of another run that a run is begun by, and what that run has for it."""

    call: OuterCall
    around: Surroundings
    caller: Caller


class Runs(NamedTuple):
    """How an agent begins a run within a call, with a prompt, or goes on with one."""

    begin: Callable[[str, OuterRun, Callable[[Event], None]], Awaitable[RunResult]]
    resume: Callable[
        [RunState, Mapping[str, Answer], OuterRun, Callable[[Event], None]], Awaitable[RunResult]
    ]


_RUNNING: ContextVar[tuple[object, ...]] = ContextVar("toolcrib_agents_running", default=())
"""The agents within whose runs, as tools, this is."""


def inner_run_id(run_id: str, call_id: str) -> str:
    """Return the id of the run that a call of an agent begins."""
    return f"run_{key_of(run_id, call_id).removeprefix('sha256:')[:16]}"


def agent_tool(
    agent: object,
    runs: Runs,
    name: str,
    description: str,
    *,
    output: Any,
    visible: Sequence[str] | All,
    annotations: AnnotationOptions,
) -> Tool[..., Any]:
    """Return the tool that runs an agent. Raises DefinitionError for what is no tool's."""

    async def ask(prompt: Prompt, context: CallContext) -> Any:
        outside = _RUNNING.get()
        if agent in outside:
            said = f"The agent '{name}' is running, further out: it cannot be called from within."
            raise ToolError(said, retryable=False)
        _RUNNING.set((*outside, agent))
        try:
            return _answer(await _run(runs, name, prompt, context))
        except ToolcribError as error:
            state = error.state if isinstance(error, ClientError | AnswerError) else None
            records = () if state is None else state.records
            said = f"The agent failed ({type(error).__name__})."
            raise ToolError(said + _made(records)) from error
        finally:
            _RUNNING.set(outside)

    ask.__annotations__["return"] = output
    made: Tool[..., Any] = tool(
        ask, visible=visible, name=name, description=description, **annotations
    )
    return made


async def _run(runs: Runs, name: str, prompt: str, context: CallContext) -> RunResult:
    """Begin the run of a call, or go on with it, if it waited and the outer run has its state."""
    around = context.around or Surroundings(CallScope(RunTally(context.run_id)))
    outer = OuterRun(OuterCall(context.run_id, context.call_id, name), around, context.caller)

    def tell(event: Event) -> None:
        if isinstance(event, _TOLD):
            with suppress(Unusable):  # larger than a part may be
                context.progress(to_plain(event))

    suspended = around.scope.suspended.get(context.call_id)
    if suspended is None:
        return await runs.begin(prompt, outer, tell)
    state, given = saved_run(suspended), around.scope.answers
    answers = {each.id: given[each.id] for each in state.pending if each.id in given}
    return await runs.resume(state, answers, outer, tell)


def saved_run(suspended: SuspendedCall) -> RunState:
    """Return the state of the run that a call waits for. Raises SourceError."""
    return RunState.from_json(bytes(suspended.saved))


def _answer(result: RunResult) -> Any:
    """Return what the agent answered. Raises Suspended if it waits, and ToolError without an answer."""
    if result.status == "completed":
        return result.output
    if result.status == "waiting":
        raise Suspended(result.pending, result.state.to_json())
    why = limit_text(result.limit or "")
    raise ToolError(f"The agent stopped before it had an answer: {why}." + _made(result.records))


def _made(records: Sequence[ToolInvocationRecord]) -> str:
    """Name the calls that were begun: whoever asks again must know what is done already."""
    begun = [f"{each.name} ({state_of(each)})" for each in records if has_begun(each)]
    more = [f"and {len(begun) - _MOST_NAMED} more"] if len(begun) > _MOST_NAMED else []
    named = ", ".join([*begun[:_MOST_NAMED], *more])
    return f" It has made these calls: {named}." if begun else ""
