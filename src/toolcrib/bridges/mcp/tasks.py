"""Calls that a server works on as tasks: it gives a handle at once, and is asked for the result.

From 2026-07-28 on, tasks are an extension (https://github.com/modelcontextprotocol/ext-tasks), and
the server decides. In 2025-11-25 they are in the protocol, and a tool says that it has to be called
so. A call that nobody waits for any more is cancelled at the server, whatever the reason. It has
been sent, so unless the server says how this very task ended, its outcome is unknown. An error in
reply to the question says nothing about it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, TypeAlias

import mcp_types as types
from mcp import Client, MCPError
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.shared.dispatcher import CallOptions
from mcp_types import INTERNAL_ERROR
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from toolcrib.bridges.mcp.faults import RequestFault, fault_of
from toolcrib.errors import OutcomeUnknown

LOST = (
    "The connection to the server was lost during the call, so it is unknown whether the call "
    "was done."
)
TASK_LOST = (
    "The server accepted the call as a task but does not report its outcome, so it is "
    "unknown whether the call was done."
)
NO_ANSWER = (
    "The server asked something that this client cannot answer, in a call that it runs as a "
    "task. The task was told to stop, so it is unknown whether the call was done."
)
EXTENSION = "io.modelcontextprotocol/tasks"
State: TypeAlias = dict[str, Any]
_STATE: TypeAdapter[Any] = TypeAdapter(State)
_INPUT: TypeAdapter[types.InputRequest] = TypeAdapter(types.InputRequest)
_BROKE = (
    RequestFault.NOT_SENT,
    RequestFault.SESSION_GONE,
    RequestFault.BROKEN,
    RequestFault.ENDING,
)
_OVER = ("completed", "failed", "cancelled")
# seconds between two requests for the state
_DEFAULT_INTERVAL, _SHORTEST, _LONGEST = 1.0, 0.05, 30.0
_TO_CANCEL = 2.0


def plain(value: BaseModel) -> dict[str, Any]:
    """Return a value of the protocol as JSON."""
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


class _Handle(types.Result):
    """Names the task that a server made of a call, and says how often to ask for its state."""

    result_type: Literal["task"] = "task"
    task_id: str
    poll_interval_ms: int | None = None


class TaskParams(types.RequestParams):
    """The parameters of a request about a task."""

    task_id: str


class TaskUpdateParams(TaskParams):
    """The parameters of a request that answers what a task asks."""

    input_responses: dict[str, Any] = Field(default_factory=dict)


class _Get(types.Request[TaskParams, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    params: TaskParams
    name_param = "taskId"


class _Update(types.Request[TaskUpdateParams, Literal["tasks/update"]]):
    method: Literal["tasks/update"] = "tasks/update"
    params: TaskUpdateParams
    name_param = "taskId"


class _Cancel(types.Request[TaskParams, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: TaskParams
    name_param = "taskId"


class Tasks(ClientExtension):
    """Tells servers that a call may become a task, and waits for its result."""

    identifier = EXTENSION

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return (ResultClaim(result_type="task", model=_Handle, resolve=_result_of_handle),)


async def _result_of_handle(handle: _Handle, context: ClaimContext) -> types.CallToolResult:
    async with _cancelled_on_error(context.session, handle.task_id):
        state = await _final_state(context.session, handle.task_id, handle.poll_interval_ms)
    if state["status"] == "completed":
        return types.CallToolResult.model_validate(state.get("result"), by_name=False)
    raise _task_error(state)


async def raw_answer(session: ClientSession, request: State) -> dict[str, Any]:
    """Send a request, and return the server's result as it is. Raises MCPError."""
    options: CallOptions = {}
    session._stamp(request, options)  # noqa: SLF001
    send_raw = session._dispatcher.send_raw_request  # noqa: SLF001
    return await send_raw(request["method"], request.get("params"), options)


async def call_as_task(client: Client, tool: str, arguments: State) -> types.CallToolResult:
    """Call a tool of a 2025-11-25 server that has to be called as a task. Raises MCPError and
    OutcomeUnknown."""
    session, params = client.session, {"name": tool, "arguments": arguments, "task": {}}
    # the public method accepts no handle as a result
    raw_result = await raw_answer(session, {"method": "tools/call", "params": params})
    created = types.CreateTaskResult.model_validate(raw_result, by_name=False)
    async with _cancelled_on_error(session, created.task.task_id):
        state = await _final_state(
            session, created.task.task_id, created.task.poll_interval, asks=False
        )
        if state["status"] not in ("failed", "cancelled"):
            task = types.GetTaskPayloadRequestParams(task_id=created.task.task_id)
            request = types.GetTaskPayloadRequest(params=task)
            try:
                return await session.send_request(request, types.CallToolResult)
            except MCPError as error:
                raise _unknown_outcome(error) from None
    raise _task_error(state)


@asynccontextmanager
async def _cancelled_on_error(session: ClientSession, task_id: str) -> AsyncIterator[None]:
    """Wait for a task in this block. Whatever the block raises, the task is then cancelled at the
    server."""
    try:
        yield
    except BaseException:
        cancel = _Cancel(params=TaskParams(task_id=task_id))
        cancelling = asyncio.ensure_future(session.send_request(cancel, _STATE))
        cancelling.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        await asyncio.wait({cancelling}, timeout=_TO_CANCEL)
        raise


async def _final_state(
    session: ClientSession, task_id: str, interval: int | None, *, asks: bool = True
) -> State:
    """Return a server's answer about a task that is over. Without `asks`, also return it for one
    that needs input, which the server itself then asks for. Raises OutcomeUnknown."""
    answered: set[str] = set()
    params = TaskParams(task_id=task_id)
    while True:
        await asyncio.sleep(_poll_seconds(interval))
        state = await _reply_state(session, _Get(params=params))
        if state.get("taskId", task_id) != task_id:
            raise OutcomeUnknown(TASK_LOST)
        status = state.get("status")
        if status in _OVER or (status == "input_required" and not asks):
            return state
        if status == "input_required":
            await _answer_requests(session, task_id, state.get("inputRequests"), answered)
        interval = state.get("pollIntervalMs", state.get("pollInterval", interval))


async def _reply_state(session: ClientSession, request: _Get | _Update) -> State:
    try:
        answer: State = await session.send_request(request, _STATE)
    except MCPError as error:
        raise _unknown_outcome(error) from None
    except ValidationError:
        raise OutcomeUnknown(TASK_LOST) from None
    return answer


async def _answer_requests(
    session: ClientSession, task_id: str, requests: object, answered: set[str]
) -> None:
    """Give the answers of the client's callbacks to a task's questions, each once. Raises
    OutcomeUnknown if there is no answer."""
    if not isinstance(requests, dict):
        return
    responses: dict[str, Any] = {}
    for key, request in requests.items():
        if key in answered:
            continue
        answered.add(key)
        context = ClientRequestContext(session=session, request_id=key)
        try:
            answer = await session.dispatch_input_request(context, _INPUT.validate_python(request))
            if not isinstance(answer, types.ErrorData):
                responses[key] = plain(answer)
                continue
        except Exception as error:
            raise OutcomeUnknown(NO_ANSWER) from error
        raise OutcomeUnknown(NO_ANSWER, model_text=f"{NO_ANSWER} {answer.message}")
    if responses:
        params = TaskUpdateParams(task_id=task_id, input_responses=responses)
        await _reply_state(session, _Update(params=params))


def _poll_seconds(milliseconds: object) -> float:
    if not isinstance(milliseconds, int | float):
        return _DEFAULT_INTERVAL
    return min(max(milliseconds / 1000, _SHORTEST), _LONGEST)


def _unknown_outcome(error: MCPError) -> OutcomeUnknown:
    """Return the error for a call that was sent. The server's own error does not say how it ended."""
    return OutcomeUnknown(LOST if fault_of(error) in _BROKE else TASK_LOST)


def _task_error(state: State) -> MCPError:
    with suppress(ValidationError):
        error = types.ErrorData.model_validate(state.get("error"))
        return MCPError(INTERNAL_ERROR, error.message)  # the server's own code is not used
    text = state.get("statusMessage")
    message = text if isinstance(text, str) else f"the task is {state['status']}"
    return MCPError(INTERNAL_ERROR, message)
