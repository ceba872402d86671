"""A runner's tools as LangChain tools. Each call of one goes through `ToolRunner.exec`.

This module does itself what LangChain's `BaseTool` does around a call, since `BaseTool` shows
everything that it is given to callbacks (tracers, `astream_events`). Callbacks are shown what
records show: declared arguments with secrets masked, and the public view of a result. The model,
and so the state of a graph, has the model's view.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, TypeAlias, TypeVar

import msgspec
from langchain_core.callbacks import AsyncCallbackManager, AsyncCallbackManagerForToolRun
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, patch_config, set_config_context
from langchain_core.runnables.schema import StreamEvent
from langchain_core.runnables.utils import coro_with_context
from langchain_core.tools import BaseTool, ToolException
from langgraph.errors import GraphInterrupt
from langgraph.prebuilt import ToolRuntime
from langgraph.types import Command, Interrupt, StreamWriter, interrupt
from pydantic import PrivateAttr

from toolcrib.agent.history import content_of, error_content, result_message
from toolcrib.approvals import answer_later
from toolcrib.bridges.langchain.blocks import shown_content
from toolcrib.bridges.langchain.graph_run import (
    MARK,
    AlikeCalls,
    AskedCall,
    GraphCall,
    InterruptAnswers,
    RunningCall,
    RunningSteps,
    ThreadTallies,
    WaitingCall,
    answer_json,
    graph_call,
    storable,
)
from toolcrib.bridges.langchain.reply_end import fault_of
from toolcrib.bridges.loops import LoopThreads
from toolcrib.errors import ApprovalError, CatalogError, ErrorCode, no_such
from toolcrib.runner import CallScope, ToolRunner
from toolcrib.runner.output import public_arguments
from toolcrib.tools import Entry
from toolcrib.values.call import CallFault, ToolCall
from toolcrib.values.context import RunTally
from toolcrib.values.decision import ANONYMOUS, Answer, ApprovalRequest, Approve, Caller, Refuse
from toolcrib.values.json import JsonObject, JsonValue, encodable
from toolcrib.values.record import (
    PART_WAITED,
    CallError,
    Completed,
    Failed,
    Outcome,
    ToolInvocationRecord,
    Waiting,
    has_begun,
    is_final,
    result_with_parts,
)
from toolcrib.values.typed import check_each, check_type, got_type
from toolcrib.wire.forms import NameRule, wire_names

T = TypeVar("T")
CallerOf: TypeAlias = Callable[[RunnableConfig], Caller]
PLAIN_CALLS = LoopThreads("toolcrib plain calls")
"""Synchronous calls (`invoke`). Those of one run are decided on in one loop, so that two of them
cannot share a last allowance."""
NAMES = NameRule("A-Za-z0-9_-", 64, first="A-Za-z_")
"""Names that every provider takes, since LangChain sends names unchanged."""
RUNTIME = "toolcrib_runtime"
"""The parameter that a ToolNode fills in. No model is told about it."""
_LATER = CallError.of(
    ErrorCode.APPROVAL_REQUIRED, "The call is waiting for an approval. It did not run."
)
_PART_LATER = CallError.of(ErrorCode.OUTCOME_UNKNOWN, PART_WAITED)
_NO_JSON = CallFault(
    ErrorCode.INVALID_JSON,
    "The arguments are not JSON: they hold values that JSON does not have, contain "
    "themselves, or are nested too deeply.",
)
_NO_ID = CallFault(
    ErrorCode.INVALID_JSON, "The id of the call holds a lone surrogate, which a log cannot hold."
)


def to_langchain_tools(
    runner: ToolRunner,
    *,
    caller: Caller | CallerOf = ANONYMOUS,
    nonce: str = "",
    return_direct: Collection[str] = (),
    natural_reasons: Collection[str] = (),
) -> list[BaseTool]:
    """Return the tools of a runner for `create_agent`, `ToolNode` or `bind_tools`, in their order.

    `caller` is on whose behalf they are called, or a function of the call's RunnableConfig that
    returns it. Anybody may have set what is in `configurable`, and that function has to take care
    of it. If the runner has no approver, a graph with a checkpointer stops by `interrupt`, and is
    resumed with `resume`. `nonce` is a secret of yours for the ids of questions. Without one, short
    secret arguments could be found by trying. An agent ends with the result of a tool in
    `return_direct`. `natural_reasons` are further finish reasons of your provider for the natural
    end of a reply; after any unknown one no call runs. Raises CatalogError for an unknown name in
    `return_direct`.
    """
    check_type("runner", runner, ToolRunner, "a ToolRunner")
    if not callable(caller):
        check_type("caller", caller, Caller, "a Caller, or a function of a RunnableConfig")
    for name in check_each("return_direct", return_direct, str, "a list of names of tools"):
        if name not in runner.catalog:
            raise CatalogError(no_such("tool", name, runner.catalog.names))
    check_type(
        "natural_reasons", natural_reasons, (list, tuple, set, frozenset), "a list of reasons"
    )
    bridge = _Bridge(runner, caller, nonce, frozenset(map(str.lower, natural_reasons)))
    names = wire_names(NAMES, runner.catalog.names)
    return [
        RunnerTool.of(entry, bridge, names[name], return_direct=name in return_direct)
        for name, entry in runner.catalog.by_name.items()
    ]


def resume(*answers: tuple[Interrupt, Answer]) -> Command[Any]:
    """Return the Command that resumes a graph, made from pairs of an interrupt and its answer.

    Approve runs the call, with other arguments if it has some, and Refuse does not. Interrupts that
    are left out keep waiting. Raises ApprovalError for an interrupt that asks something else.
    """
    for pair in answers:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(
                f"an answer must be a pair, (Interrupt, Approve(by=…)); {got_type(pair)}"
            )
        asked, answer = pair
        check_type("asked", asked, Interrupt, "an Interrupt of the graph's result")
        if not (isinstance(asked.value, dict) and isinstance(asked.value.get("id"), str)):
            raise ApprovalError(f"the interrupt {asked.id} is not a question of a tool of a runner")
        check_type("answer", answer, (Approve, Refuse), "Approve(by=…) or Refuse()")
    return Command(resume={a.id: answer_json(a.value["id"], answer) for a, answer in answers})


class _Bridge:
    """Makes the calls of all tools of one runner, which share its threads, steps and answers."""

    def __init__(
        self, runner: ToolRunner, caller: Caller | CallerOf, nonce: str, natural: frozenset[str]
    ) -> None:
        self.runner = runner
        self.natural = natural
        self.graph_answers = runner.approver is None or runner.approver is answer_later
        self.pausing = runner.with_approver(answer_later) if self.graph_answers else runner
        self.caller_of: CallerOf = (lambda _: caller) if isinstance(caller, Caller) else caller
        self.threads = ThreadTallies(nonce)
        self.answers = InterruptAnswers()
        self.steps = RunningSteps()
        self.alike = AlikeCalls()

    async def outcome(
        self, call: ToolCall, origin: GraphCall, caller: Caller, running: RunningCall
    ) -> tuple[Outcome, Mapping[str, Any]]:
        """Return the outcome of a call, and the mark for its message. Raises GraphInterrupt to ask,
        and whatever `exec` raises."""
        runner = self.runner if origin.checkpointed is None else self.pausing
        results_of_others = (
            () if origin.checkpointed is None else await origin.checkpointed.results_of_others()
        )
        tally = self.threads.spent(origin, results_of_others)
        observer = None if origin.writer is None else _EventWriter(call, origin.writer)
        scope = CallScope(tally, observer=observer, occasion=origin.step)
        tool = self.runner.catalog.by_name[call.name].tool
        # only a tool with a context parameter can be an agent, which has a state to go on with
        if origin.checkpointed is not None and tool.context_parameter is not None:
            saved_call = await origin.checkpointed.load()
            scope = scope if saved_call is None else _resumed(scope, saved_call)
        outcome = await runner.exec(call, caller=caller, scope=scope)
        while isinstance(outcome, Waiting) and origin.checkpointed is not None:
            if outcome.suspended is not None:
                waiting_call = WaitingCall(outcome.suspended, scope.occasion)
                await origin.checkpointed.save(waiting_call)
                scope = _resumed(scope, waiting_call)
            request = _with_asked_at(outcome.request, origin.asked_at)
            answer = await self._ask(request, origin.step, running)
            answers = {request.id: answer} if self.graph_answers else {}
            questions = {**scope.questions, request.id: request}
            resumed_scope = msgspec.structs.replace(scope, answers=answers, questions=questions)
            outcome = await runner.exec(call, caller=caller, scope=resumed_scope)
        record = outcome.record
        if (
            scope.suspended
            and origin.checkpointed is not None
            and has_begun(record)
            and is_final(record)
        ):
            await origin.checkpointed.save(None)
        running.become("over")
        return outcome, self._mark(record, tally)

    def _mark(self, record: ToolInvocationRecord, tally: RunTally) -> JsonObject:
        """Return what later calls of the thread need to know about a call, in whichever process."""
        cost = self.runner.catalog.by_name[record.name].tool.definition.annotations.cost
        mark: JsonObject = {"key": record.idempotency_key, "tool": record.name, "cost": cost}
        within = tally.spent_within.get(record.idempotency_key)
        if within is not None:
            mark["spent"] = storable(within)
        return mark | {"tainted": tally.tainted}

    async def _ask(self, request: ApprovalRequest, step: str, running: RunningCall) -> Any:
        """Return the value that the graph is resumed with. Raises GraphInterrupt once no other call
        of the step is running."""
        running.become("asks")
        await self.steps.others(step, running, "asks", "over")
        try:
            if self.graph_answers:
                answer = self.answers.ask(request, step)
            else:  # only the approver's answer counts, whatever the resume value is
                answer = interrupt(storable(request))
        except GraphInterrupt:
            running.become("over")
            await self.steps.others(step, running, "over")
            raise
        running.become("busy")
        return answer


def _resumed(scope: CallScope, waiting_call: WaitingCall) -> CallScope:
    """Return the scope in which a call goes on whose tool has begun, in this step or another one."""
    return msgspec.structs.replace(
        scope.resuming(waiting_call.suspended), occasion=waiting_call.step
    )


def _with_asked_at(request: ApprovalRequest, asked_at: float) -> ApprovalRequest:
    """Return a question that lapses as if it had been asked then. A question that a tool itself
    asks keeps its own time."""
    if request.within:
        return request
    expires_at = asked_at + request.expires_at - request.asked_at
    return msgspec.structs.replace(request, asked_at=asked_at, expires_at=expires_at)


class _EventWriter:
    """Passes on the parts of a streaming tool as custom events of the graph."""

    def __init__(self, call: ToolCall, writer: StreamWriter) -> None:
        self._call = call
        self._writer = writer

    def approval_requested(self, request: ApprovalRequest) -> None: ...

    def progress(self, call_id: str, part: JsonValue) -> None:
        call_fields = {"tool": self._call.name, "tool_call_id": self._call.provider_id}
        self._writer({MARK: {**call_fields, "progress": part}})

    def finished(self, outcome: Outcome) -> None: ...


class RunnerTool(BaseTool):
    """A tool of a runner as a LangChain tool, made by `to_langchain_tools`."""

    args_schema: dict[str, Any]
    _entry: Entry = PrivateAttr()
    _bridge: _Bridge = PrivateAttr()

    @classmethod
    def of(cls, entry: Entry, bridge: _Bridge, name: str, *, return_direct: bool) -> RunnerTool:
        """Return the tool for one entry of a runner's catalog, for `to_langchain_tools`."""
        definition = entry.tool.definition
        langchain_tool = cls(
            name=name,
            description=definition.description,
            args_schema=definition.input_schema or {"type": "object", "properties": {}},
            response_format="content_and_artifact",
            return_direct=return_direct,
            tags=list(definition.tags) or None,
        )
        langchain_tool._entry, langchain_tool._bridge = entry, bridge
        return langchain_tool

    @property
    def args(self) -> dict[str, Any]:
        """The properties in the schema of its arguments."""
        return dict(self.args_schema.get("properties", {}))

    def func(self, toolcrib_runtime: ToolRuntime[Any, Any]) -> None:
        """Do nothing. A ToolNode reads the hints of this signature, and fills in the runtime of a
        call."""

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("call a tool of a runner with invoke or ainvoke")

    def run(self, tool_input: str | dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Make one call like `arun`, in the event loop of another thread, and wait for it. An event
        loop that runs in this thread is blocked meanwhile."""
        return PLAIN_CALLS.wait_for(self.arun(tool_input, *args, **kwargs))

    async def arun(  # noqa: PLR0913  BaseTool's own parameters
        self,
        tool_input: str | dict[str, Any],
        verbose: bool | None = None,
        start_color: str | None = None,
        color: str | None = None,
        callbacks: Any = None,
        *,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        run_name: str | None = None,
        run_id: uuid.UUID | None = None,
        config: RunnableConfig | None = None,
        tool_call_id: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Make one call through the runner. `ainvoke` and graphs use this method.

        With a `tool_call_id`, as a model's call has, it returns a ToolMessage whether the call
        completed or failed. Without one it returns the model's view of the result, and raises
        ToolException if the call did not complete.
        """
        check_type("tool_call_id", tool_call_id, str | None, "the id of a call, a text")
        config = ensure_config(config)
        arguments = dict(tool_input) if isinstance(tool_input, dict) else tool_input
        runtime = _take_runtime(arguments)
        if runtime is not None:  # a model asks for it, though without an id
            tool_call_id = tool_call_id or ""
        text, fault = _json_of(arguments)
        asked_call = AskedCall(self.name, arguments, text, tool_call_id)
        origin = graph_call(config, runtime, asked_call, self._bridge.alike)
        call = self._call(asked_call, fault, origin)
        manager = AsyncCallbackManager.configure(
            callbacks, self.callbacks, bool(verbose), tags, self.tags, metadata, self.metadata
        )
        shown = self._public_arguments(arguments) if manager.handlers and call.complete else {}
        with self._bridge.steps.entered(origin.step) as running:
            run_manager = await manager.on_tool_start(
                {"name": self.name, "description": self.description},
                str(shown),
                name=run_name,
                run_id=run_id,
                inputs=shown,
                tool_call_id=tool_call_id,
                **kwargs,
            )
            try:
                running_outcome = self._bridge.outcome(
                    call, origin, self._bridge.caller_of(config), running
                )
                result, public = self._results_of(
                    *await _traced_below(run_manager, config, running_outcome), tool_call_id
                )
            except BaseException as raised:
                is_question = isinstance(raised, GraphInterrupt)
                # callbacks do not see the question, which shows more than records do
                error = GraphInterrupt() if is_question else raised
                await run_manager.on_tool_error(error, tool_call_id=tool_call_id)
                raise
        await run_manager.on_tool_end(public, name=self.name, **kwargs)
        return result

    def astream_events(
        self,
        input: Any,  # noqa: A002  LangChain's name
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Any:
        """Stream the events of one call. The start event shows what callbacks are shown.
        LangChain's own would contain all arguments."""
        events: Any = super().astream_events(input, config, **kwargs)
        return self._with_public_input(events, input) if hasattr(events, "__aiter__") else events

    async def _with_public_input(
        self, events: AsyncGenerator[StreamEvent, None], tool_input: Any
    ) -> AsyncGenerator[StreamEvent, None]:
        is_call = isinstance(tool_input, dict) and tool_input.get("type") == "tool_call"
        shown = self._public_arguments(tool_input.get("args", {}) if is_call else tool_input)
        async with aclosing(events):
            async for event in events:
                if event["data"].get("input") is tool_input:
                    event["data"]["input"] = shown
                yield event

    def _call(self, asked_call: AskedCall, fault: CallFault | None, origin: GraphCall) -> ToolCall:
        fault = fault_of(origin.reply, self._bridge.natural) or fault
        provider_id = encodable(asked_call.id or "")
        if provider_id != (asked_call.id or ""):
            fault = fault or _NO_ID
        return ToolCall(
            origin.call_id,
            self._entry.tool.definition.name,
            asked_call.text,
            provider_id=provider_id,
            complete=fault is None,
            fault=fault,
        )

    def _public_arguments(self, arguments: str | JsonObject) -> JsonObject:
        """Return the arguments as records show them, or nothing if they are not valid."""
        tool = self._entry.tool
        if not isinstance(arguments, dict) or tool.validator is None:
            return {}
        try:
            valid = tool.validator.is_valid(arguments)
        except Exception:  # noqa: BLE001  an author's validator, which the call reports
            return {}
        return public_arguments(tool.definition, arguments) if valid else {}

    def _results_of(
        self, outcome: Outcome, mark: Mapping[str, Any], tool_call_id: str | None
    ) -> tuple[Any, Any]:
        """Return the result for the caller, and what callbacks are shown. Raises ToolException."""
        error = None if isinstance(outcome, Completed) else _error(outcome)
        public = (
            result_with_parts(outcome.record)
            if isinstance(outcome, Completed)
            else error_content(_error(outcome))
        )
        reply = result_message(ToolCall("", self.name, ""), outcome, error)
        assert reply is not None  # noqa: S101  a waiting call has an error
        content: Any = shown_content(reply)
        if tool_call_id is None:
            if not isinstance(outcome, Completed):
                raise ToolException(public)
            return content if outcome.model_parts else outcome.model, public
        artifact = {**storable(outcome.record), MARK: mark}

        def message(content: Any) -> ToolMessage:
            return ToolMessage(
                content,
                artifact=artifact,
                tool_call_id=tool_call_id,
                name=self.name,
                status="success" if isinstance(outcome, Completed) else "error",
            )

        return message(content), message(content_of(public))


def _json_of(arguments: str | JsonObject) -> tuple[str, CallFault | None]:
    if isinstance(arguments, str):
        return arguments, None
    try:
        return json.dumps(arguments, ensure_ascii=False), None
    except (TypeError, ValueError, RecursionError):
        return "", _NO_JSON


def _error(outcome: Failed | Waiting) -> CallError:
    """Return why there is no result. A call may wait in a graph that cannot wait."""
    if isinstance(outcome, Failed):
        return outcome.error
    return _LATER if outcome.suspended is None else _PART_LATER


async def _traced_below(
    run_manager: AsyncCallbackManagerForToolRun,
    config: RunnableConfig,
    coroutine: Coroutine[Any, Any, T],
) -> T:
    """Await it in a context in which the runs that it starts are traced below its own run."""
    with set_config_context(patch_config(config, callbacks=run_manager.get_child())) as context:
        return await coro_with_context(coroutine, context)


def _take_runtime(arguments: str | JsonObject) -> ToolRuntime[Any, Any] | None:
    """Remove what a ToolNode filled in from the arguments. A model's value under that name stays."""
    if not isinstance(arguments, dict) or not isinstance(arguments.get(RUNTIME), ToolRuntime):
        return None
    runtime: Any = arguments.pop(RUNTIME)
    return runtime if isinstance(runtime, ToolRuntime) else None
