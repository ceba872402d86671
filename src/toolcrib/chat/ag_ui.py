"""An agent behind AG-UI (protocol 1.0, https://docs.ag-ui.com), whose interrupts are approvals.

Rule: a call is sent when it is whole, and each message and call ends before its run does. Arguments
are sent unchanged, or not at all, because a client sends back what it was sent. What a client says
about calls is context (`check_messages`). It answers only by `resume`, and only what its own thread
was asked. A waiting run is stored before its interrupt is sent, and an answer takes it out of the
store before it continues. So it continues once, and if it is gone from the store, nothing runs. One
run of a thread waits at a time; another one that gets to a question in the meantime ends.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolcrib.agent import Agent, RunStream
from toolcrib.agent.history import error_as_reported
from toolcrib.approvals import answer_later, shown_request
from toolcrib.chat.doors import (
    Authenticate,
    ChatError,
    ChatLimits,
    Doors,
    GivenRule,
    RunEvents,
    body_fault,
    check_answer,
    followed,
)
from toolcrib.chat.live import as_asked
from toolcrib.chat.messages import LARGEST_ARGUMENTS, LARGEST_RESULT, begin
from toolcrib.chat.threads import MOST_WAITING, ThreadStore
from toolcrib.chat.view import bounded, readable
from toolcrib.doors import MayApprove
from toolcrib.errors import MissingExtraError, ToolcribError
from toolcrib.runner.output import MASK
from toolcrib.values.decision import Answer, ApprovalRequest, Caller, ForRun, Refuse
from toolcrib.values.json import JsonObject, JsonValue, encodable, to_plain
from toolcrib.values.record import ToolInvocationRecord, result_with_parts
from toolcrib.values.run import (
    ApprovalRequested,
    Done,
    Event,
    ReasoningDelta,
    ReplyFinished,
    RunResult,
    RunState,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
    limit_text,
)
from toolcrib.values.typed import names_wrong_types

try:
    from ag_ui import core
except ImportError:
    raise MissingExtraError("ag-ui", "ag-ui-protocol") from None

__all__ = ["ag_ui_route"]

_LAST_TIMESTAMP = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
_UNANSWERED_RESULT: Final = (
    "The result of this call is unknown. Make it again only if the user asks for it."
)
_ANOTHER_WAITS: Final = (
    "another run of this thread is waiting for an answer: answer it first, then send this again"
)
_ASIDE_ROLES: Final = ("activity", "reasoning")  # shown on a page, but not part of what was said
_ENVELOPE_MEMBERS: Final = ("metadata", "encryptedValue")


class _Payload(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    approved: bool
    edited_args: dict[str, Any] | None = None
    for_run: ForRun = False
    always: GivenRule | None = None


class _Resume(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None
    metadata: Any = None  # a signature or a route, not part of the answer


class _Input(msgspec.Struct, rename="camel"):
    """The members of a `RunAgentInput` that count: tools, state and context are the server's."""

    thread_id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    run_id: str
    messages: list[dict[str, Any]]
    resume: list[_Resume] | None = None


@names_wrong_types
def ag_ui_route(
    agent: Agent,
    *,
    path: str = "/",
    store: ThreadStore | str | None = None,
    authenticate: Authenticate | None = None,
    may_approve: MayApprove | None = None,
    allowed_origins: Sequence[str] = (),
    limits: ChatLimits = ChatLimits(),  # noqa: B008  frozen
) -> Route:
    """Return the route that AG-UI clients post to, for your own app.

    A call that needs an approval interrupts the run; whoever began it answers on the same thread.
    `store` stores the waiting runs (a `ThreadStore`, or its URL), so that any of your processes
    continues them, also after a restart; without it only this process does. The other options are
    as for `chat_app`. If a client disconnects, its run is cancelled. Raises TypeError for other
    types.
    """
    doors = Doors(authenticate, may_approve, allowed_origins, limits)
    if agent.runner.approver is None:
        agent = agent.replace(tools=agent.runner.with_approver(answer_later))
    waiting_runs = ThreadStore(store) if isinstance(store, str) else store or _InMemory()
    return doors.route("POST", path, _AgUiFront(agent, waiting_runs, doors).run, _Input)


class _InMemory:
    """Keeps waiting runs as a `ThreadStore` does, for as long as the process lives."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, str], RunState] = {}

    async def keep_waiting(self, owner: str, thread: str, state: RunState) -> bool:
        self._states = {
            key: waiting for key, waiting in self._states.items() if not _is_expired(waiting)
        }
        if (owner, thread) in self._states:
            return False
        owner_keys = [key for key in self._states if key[0] == owner]
        if len(owner_keys) >= MOST_WAITING:
            del self._states[owner_keys[0]]
        self._states[owner, thread] = state
        return True

    async def waiting(self, owner: str, thread: str) -> RunState | None:
        return self._states.get((owner, thread))

    async def take_waiting(self, owner: str, thread: str, state: RunState) -> bool:
        is_waiting = self._states.get((owner, thread)) is state
        return is_waiting and self._states.pop((owner, thread)) is state


class _AgUiFront:
    def __init__(self, agent: Agent, store: ThreadStore | _InMemory, doors: Doors) -> None:
        self._agent = agent
        self._store = store
        self._doors = doors

    async def run(self, _request: Request, caller: Caller, run_input: _Input) -> Response:
        state = await self._store.waiting(caller.id, run_input.thread_id)
        if run_input.resume or (state is not None and not _is_expired(state)):
            try:
                run = await self._resumed_run(state, caller, run_input)
            except ChatError as error:  # the protocol wants this sent as an event
                text = (
                    f"data: {_json(_started(run_input))}\n\ndata: {_json(_error_event(error))}\n\n"
                )
                return Response(text, media_type="text/event-stream")
        else:
            messages = [
                _openai_message(message)
                for message in run_input.messages
                if message.get("role") not in _ASIDE_ROLES
            ]
            ordered = _results_after_calls(messages)
            run = begin(self._doors, self._agent, caller, ordered, unanswered=_UNANSWERED_RESULT)
        return RunEvents(
            run, self._event_lines(run, caller, run_input), self._doors.limits.heartbeat
        )

    async def _resumed_run(
        self, state: RunState | None, caller: Caller, run_input: _Input
    ) -> RunStream:
        """Continue a waiting run. Raises ChatError; the question then stays open."""
        if state is None:
            raise _no_question()
        resume = run_input.resume or []
        resumes, requests = ({e.interrupt_id: e for e in resume}, {r.id: r for r in state.pending})
        if len(resumes) != len(resume) or resumes.keys() != requests.keys():
            message = "answer each open interrupt of the thread, once"
            raise ChatError(409, "open_interrupts", message)
        answers = {i: await self._answer(state, r, caller, resumes[i]) for i, r in requests.items()}
        if not await self._store.take_waiting(caller.id, run_input.thread_id, state):
            raise _no_question()
        try:
            return self._doors.run(caller, lambda: self._agent.resume_stream(state, answers))
        except ToolcribError:
            await self._store.keep_waiting(caller.id, run_input.thread_id, state)
            raise

    async def _answer(
        self, state: RunState, request: ApprovalRequest, caller: Caller, resume: _Resume
    ) -> Answer:
        if resume.status == "cancelled":
            return Refuse(by=caller.id)
        try:
            payload = msgspec.convert(resume.payload, type=_Payload)
        except msgspec.ValidationError as error:
            raise ChatError(
                422, "invalid_answer", body_fault(error, _Payload, "the payload")
            ) from None
        if not payload.approved and payload != _Payload(approved=False):
            raise ChatError(
                422,
                "invalid_answer",
                "a refusal (approved: false) must not have editedArgs, forRun or always",
            )
        approval = self._doors.yes_of(caller, payload.edited_args, payload.for_run, payload.always)
        answer = as_asked(approval, request) if payload.approved else Refuse(by=caller.id)
        allowed = partial(self._doors.may_approve, caller)
        runner = self._agent.speaking_in(state).runner
        await check_answer(runner, state, request, answer, allowed)
        return answer

    async def _event_lines(
        self, run: RunStream, caller: Caller, run_input: _Input
    ) -> AsyncGenerator[str, None]:
        events = _Events(run_input, limited=self._doors.limited)
        yield _json(_started(run_input))
        try:
            async for event in followed(run):
                if isinstance(event, Done) and event.result.status == "waiting":
                    waiting_state = event.result.state
                    if not await self._store.keep_waiting(
                        caller.id, run_input.thread_id, waiting_state
                    ):
                        raise ChatError(409, "busy", _ANOTHER_WAITS)
                for sent_event in events.of(event):
                    yield _json(sent_event)
        except ToolcribError as error:
            for sent_event in (*events.close(), _error_event(error)):
                yield _json(sent_event)


class _Events:
    """Turns the events of a run into AG-UI's.

    A background call may end while a message is being sent, or before the calls of one. Clients
    append what arrives to their last message, so its result is held back until that message is
    whole.
    """

    def __init__(self, run_input: _Input, *, limited: bool = False) -> None:
        self._run_input = run_input
        self._limited = limited
        self._reply_id = ""  # the id of the reply's message, with its text or its calls
        self._is_text_open = False
        self._reasoning_id = ""  # the id of the open reasoning message
        self._schemas: dict[str, Any] = {}
        self._calls_follow = False
        self._held_results: list[core.BaseEvent] = []

    def of(self, event: Event) -> Iterator[core.BaseEvent]:
        if not isinstance(event, ToolCallStarted):
            yield from self._release_results()
        match event:
            case ReasoningDelta(text=text) if text:
                yield from self._add_reasoning(encodable(text))
            case TextDelta(text=text) if text:
                yield from self._add_text(encodable(text))
            case ReplyFinished(finish=finish):
                if not self._is_text_open:
                    self._reply_id = _new_id()
                self._calls_follow = finish == "tool_calls"
                yield from self._end_messages()
            case ToolCallStarted():
                yield from self._call(event)
            case ApprovalRequested(request=request, schema=schema):
                self._schemas[request.id] = schema
            case ToolCallFinished(record=record):
                self._held_results.append(_result_event(record))
                yield from self._release_results()
            case Done(result=result):
                yield from self.close()
                yield self._finished(result)

    def _call(self, event: ToolCallStarted) -> Iterator[core.BaseEvent]:
        self._calls_follow = False
        yield core.ToolCallStartEvent(
            tool_call_id=event.id,
            tool_call_name=event.name,
            parent_message_id=self._reply_id or None,
        )
        delta = _arguments_text(event.arguments)
        if delta is not None:
            yield core.ToolCallArgsEvent(tool_call_id=event.id, delta=delta)
        yield core.ToolCallEndEvent(tool_call_id=event.id)

    def close(self) -> Iterator[core.BaseEvent]:
        """End the open messages, and send what was held back."""
        yield from self._end_messages()
        self._calls_follow = False
        yield from self._release_results()

    def _release_results(self) -> Iterator[core.BaseEvent]:
        if not (self._is_text_open or self._reasoning_id or self._calls_follow):
            yield from self._held_results
            self._held_results.clear()

    def _add_reasoning(self, text: str) -> Iterator[core.BaseEvent]:
        if not self._reasoning_id:
            id_ = self._reasoning_id = _new_id()
            yield core.ReasoningStartEvent(message_id=id_)
            yield core.ReasoningMessageStartEvent(message_id=id_, role="reasoning")
        yield core.ReasoningMessageContentEvent(message_id=self._reasoning_id, delta=text)

    def _add_text(self, text: str) -> Iterator[core.BaseEvent]:
        yield from self._end_reasoning()
        if not self._is_text_open:
            self._is_text_open, self._reply_id = True, _new_id()
            yield core.TextMessageStartEvent(message_id=self._reply_id, role="assistant")
        yield core.TextMessageContentEvent(message_id=self._reply_id, delta=text)

    def _end_messages(self) -> Iterator[core.BaseEvent]:
        yield from self._end_reasoning()
        if self._is_text_open:
            self._is_text_open = False
            yield core.TextMessageEndEvent(message_id=self._reply_id)

    def _end_reasoning(self) -> Iterator[core.BaseEvent]:
        if self._reasoning_id:
            yield core.ReasoningMessageEndEvent(message_id=self._reasoning_id)
            yield core.ReasoningEndEvent(message_id=self._reasoning_id)
            self._reasoning_id = ""

    def _finished(self, result: RunResult) -> core.BaseEvent:
        if result.status == "limited":
            return core.RunErrorEvent(message=limit_text(result.limit or ""), code="limited")
        outcome: Any = core.RunFinishedSuccessOutcome()
        if result.status == "waiting":
            interrupts = [
                _interrupt(
                    request,
                    self._schemas.get(request.id),
                    request.call_in(result.state.run_id),
                    limited=self._limited,
                )
                for request in result.pending
            ]
            outcome = core.RunFinishedInterruptOutcome(interrupts=interrupts)
        run_usage, run_input = result.usage, self._run_input
        usage = core.TokenUsage(
            input_tokens=run_usage.input_tokens, output_tokens=run_usage.output_tokens
        )
        return core.RunFinishedEvent(
            thread_id=run_input.thread_id, run_id=run_input.run_id, outcome=outcome, usage=[usage]
        )


def _is_expired(state: RunState) -> bool:
    """Return whether no question of a waiting run can be answered any more."""
    return all(request.expired() for request in state.pending)


def _interrupt(
    request: ApprovalRequest, schema: Any, call_id: str, *, limited: bool
) -> core.Interrupt:
    properties = {"approved": {"type": "boolean"}, "editedArgs": schema or {"type": "object"}}
    if request.for_run:
        choices = [False, "exactly"] if limited else [False, True, "exactly"]
        properties["forRun"] = {"enum": choices, "default": False}
    if request.always and not limited:
        rule_properties: dict[str, Any] = {"seconds": {"type": "number", "exclusiveMinimum": 0}}
        has_masked = not request.arguments_digest  # a tool with secrets: these may not be left open
        names = [
            name for name, value in request.arguments.items() if not (has_masked and value == MASK)
        ]
        if names:
            rule_properties["open"] = {"type": "array", "items": {"enum": names}}
        properties["always"] = {
            "type": "object",
            "properties": rule_properties,
            "additionalProperties": False,
        }
    return core.Interrupt(
        id=request.id,
        reason="tool_call",
        message=f"Run {request.title} {shown_request(request)}? ({request.reason})",
        tool_call_id=call_id,
        response_schema={
            "type": "object",
            "properties": properties,
            "required": ["approved"],
            "additionalProperties": False,
        },
        expires_at=datetime.fromtimestamp(
            min(request.expires_at, _LAST_TIMESTAMP), UTC
        ).isoformat(),
        metadata={"tool": request.tool, "arguments": readable(request.arguments)},
    )


def _started(run_input: _Input) -> core.BaseEvent:
    return core.RunStartedEvent(
        thread_id=run_input.thread_id,
        run_id=run_input.run_id,
        protocol_version=core.PROTOCOL_VERSION,
    )


def _result_event(record: ToolInvocationRecord) -> core.BaseEvent:
    error = error_as_reported(record)
    content = result_with_parts(record) if error is None else {"error": to_plain(error)}
    return core.ToolCallResultEvent(
        message_id=_new_id(), tool_call_id=record.id, content=_result_text(content), role="tool"
    )


def _error_event(error: ToolcribError) -> core.BaseEvent:
    code = error.code if isinstance(error, ChatError) else "unavailable"
    return core.RunErrorEvent(message=str(error), code=code)


def _no_question() -> ChatError:
    return ChatError(404, "unknown_interrupt", "no run of this thread is waiting for an answer")


def _openai_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message in OpenAI's form, without what AG-UI adds to it."""
    return {
        "role": message.get("role"),
        "content": _without_members(message.get("content"), "id", *_ENVELOPE_MEMBERS),
        "tool_calls": _without_members(message.get("toolCalls"), *_ENVELOPE_MEMBERS),
        "tool_call_id": message.get("toolCallId"),
    }


def _results_after_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with each result after the message of its call.

    A client keeps the result of a background call where it arrived.
    """
    groups: list[list[dict[str, Any]]] = []
    group_of_call: dict[object, int] = {}
    for message in messages:
        id_ = message["tool_call_id"]
        group_index = (
            group_of_call.pop(id_, None)
            if message["role"] == "tool" and isinstance(id_, str)
            else None
        )
        if group_index is not None:
            groups[group_index].append(message)
            continue
        tool_calls = message["tool_calls"]
        calls = tool_calls if isinstance(tool_calls, list) else []
        call_ids = [call.get("id") for call in calls if isinstance(call, dict)]
        group_of_call |= {call: len(groups) for call in call_ids if isinstance(call, str)}
        groups.append([message])
    return [message for group in groups for message in group]


def _without_members(value: Any, *names: str) -> Any:
    if not isinstance(value, list):
        return value
    nulls = dict.fromkeys(names)  # null members say nothing
    return [part | nulls if isinstance(part, dict) else part for part in value]


def _arguments_text(arguments: JsonObject | None) -> str | None:
    """Return arguments as exact text; None if there are none, or a client could not return them."""
    if arguments is None:
        return None
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text if len(text.encode()) <= LARGEST_ARGUMENTS else None
    except ValueError:  # a default that is not JSON, or half of a surrogate pair
        return None


def _result_text(value: JsonValue) -> str:
    """Return a result as text that a client may send back; for a large one, its size and head."""
    if isinstance(value, str) and len(encodable(value).encode()) <= LARGEST_RESULT:
        return encodable(value)
    return msgspec.json.encode(bounded(value, LARGEST_RESULT, LARGEST_RESULT // 3)).decode()


def _json(event: core.BaseEvent) -> str:
    return event.model_dump_json(by_alias=True)


def _new_id() -> str:
    return f"message_{os.urandom(8).hex()}"
