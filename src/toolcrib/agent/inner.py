"""An agent as a tool: its run is one call of another run.

Rule: the inner run is a part of the outer one. It spends from the outer run's budget, asks the
outer run's approver and writes to its sinks (unless it has its own), and is cancelled with it. When
it waits, the outer run waits with its questions, and the outer state holds the inner one; both
resume from there. Its run id follows from the call: the same call in another process is the same
run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, NamedTuple, TypeAlias
from weakref import WeakSet

from toolcrib.agent.stream import Drive, Listener
from toolcrib.errors import SourceError, ToolError, listed
from toolcrib.failures import log_raised
from toolcrib.runner.output import Unusable
from toolcrib.runner.running import CALLING, is_running
from toolcrib.runner.stopped import STOPS, Suspended
from toolcrib.tools import Tool, tool
from toolcrib.values.context import CallContext, CallScope, RunTally, Surroundings
from toolcrib.values.decision import Answer, Caller, OuterCall
from toolcrib.values.definition import All, AnnotationOptions
from toolcrib.values.json import key_of, to_plain
from toolcrib.values.record import ToolInvocationRecord, has_begun, state_of
from toolcrib.values.run import (
    ApprovalRequested,
    Done,
    Event,
    HandedOver,
    ReplyFinished,
    RunError,
    RunResult,
    RunStarted,
    RunState,
    ToolCallFinished,
    ToolCallProgress,
    ToolCallStarted,
    limit_text,
    saved_run,
    spent_in,
)

_PASSED_ON = (
    RunStarted,
    HandedOver,
    ReplyFinished,
    ToolCallStarted,
    ToolCallProgress,
    ApprovalRequested,
    ToolCallFinished,
    RunError,
)
"""The events of the inner run that an observer of the outer one gets.

They do not include texts, which the tool's `visible` governs.
"""
_MOST_NAMED = 20
_AGENT_FUNCTIONS: WeakSet[Callable[..., Any]] = WeakSet()  # the functions of agents that are tools


Prompt: TypeAlias = Annotated[
    str, "What to do, with all that has to be known for it: nothing else is told."
]


class OuterRun(NamedTuple):
    """The outer call that an inner run is begun by, and what the outer run supplies."""

    call: OuterCall
    around: Surroundings
    caller: Caller


class Runs(NamedTuple):
    """How an agent begins a run within a call, with a prompt, or resumes one."""

    begin: Callable[[str, OuterRun], Drive]
    resume: Callable[[RunState, Mapping[str, Answer], OuterRun], Drive]


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
    """Return the tool that runs an agent. Raises DefinitionError for an invalid definition."""

    async def ask(prompt: Prompt, context: CallContext) -> Any:
        outer_call = CALLING.get()
        if is_running(agent, outer_call):
            text = (
                f"The agent '{name}' is already running, and led to this call: it cannot be called"
                " again here."
            )
            raise ToolError(text, retryable=False)
        previous = None if outer_call is None else outer_call.agent
        if outer_call is not None:
            outer_call.agent = agent
        earlier_state = _suspended_state(context)  # what it has done so far
        results: list[RunResult] = []
        try:
            result = await _run(runs, name, prompt, context, results)
        except STOPS:
            raise
        except BaseException as error:  # such as a client's error; its calls have been made
            log_raised(f"agent '{name}'", error)
            text = f"The agent failed ({type(error).__name__})."
            last_state = results[-1].state if results else earlier_state
            raise ToolError(text + _calls_made(last_state.records if last_state else ())) from error
        finally:
            last_state = results[-1].state if results else earlier_state
            if outer_call is not None:
                outer_call.agent = previous
            if outer_call is not None and outer_call.facts is not None and last_state is not None:
                outer_call.facts.spent = spent_in(last_state)
        return _answer(result)

    ask.__annotations__["return"] = output
    new_tool: Tool[..., Any] = tool(
        ask, visible=visible, name=name, description=description, **annotations
    )
    _AGENT_FUNCTIONS.add(ask)
    return new_tool


def is_agent(tool: Tool[..., Any]) -> bool:
    """Return whether a tool is an agent, under whatever name."""
    return not tool.is_class and tool.runnable and tool.__wrapped__ in _AGENT_FUNCTIONS


def _suspended_state(context: CallContext) -> RunState | None:
    """Return the state of a suspended call's run; None if there is none that can be read."""
    around = context.around
    suspended = None if around is None else around.scope.suspended.get(context.call_id)
    try:
        return None if suspended is None else saved_run(suspended)
    except SourceError:
        return None


async def _run(
    runs: Runs, name: str, prompt: str, context: CallContext, results: list[RunResult]
) -> RunResult:
    """Begin the run of a call, or resume it if the outer run has its saved state.

    Its result is added to `results`, also if this raises.
    """
    around = context.around or Surroundings(CallScope(RunTally(context.run_id)))
    outer = OuterRun(OuterCall(context.run_id, context.call_id, name), around, context.caller)

    def on_event(event: Event) -> None:
        if isinstance(event, Done):
            results.append(event.result)
        if isinstance(event, _PASSED_ON):
            with suppress(Unusable):  # it is larger than a part may be
                context.progress(to_plain(event))

    suspended = around.scope.suspended.get(context.call_id)
    if suspended is None:
        return await runs.begin(prompt, outer)(Listener(on_event, streaming=False))
    state, all_answers = saved_run(suspended), around.scope.answers
    answers = {each.id: all_answers[each.id] for each in state.pending if each.id in all_answers}
    return await runs.resume(state, answers, outer)(Listener(on_event, streaming=False))


def _answer(result: RunResult) -> Any:
    """Return the agent's answer. Raises Suspended if it waits, and ToolError without an answer."""
    if result.status == "completed":
        return result.output
    if result.status == "waiting":
        raise Suspended(result.pending, result.state.to_json())
    reason = limit_text(result.limit or "")
    raise ToolError(
        f"The agent stopped before it had an answer: {reason}." + _calls_made(result.records)
    )


def _calls_made(records: Sequence[ToolInvocationRecord]) -> str:
    """Name the calls that were begun: whoever asks again must know what is already done."""
    calls = [f"{each.name} ({state_of(each)})" for each in records if has_begun(each)]
    return f" It has made these calls: {listed(calls, _MOST_NAMED)}." if calls else ""
