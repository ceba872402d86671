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
from toolcrib.agent.history import known_error
from toolcrib.approvals import answer_later, shown_request
from toolcrib.chat.doors import (
    Authenticate,
    ChatError,
    ChatLimits,
    Doors,
    GivenRule,
    RunEvents,
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

_LAST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
_UNANSWERED: Final = (
    "The result of this call is unknown. Make it again only if the user asks for it."
)
_ANOTHER_WAITS: Final = (
    "another run of this thread is waiting for an answer: answer it first, then send this again"
)
_ASIDE: Final = ("activity", "reasoning")  # shown on a page, but not part of what was said
_ENVELOPE: Final = ("metadata", "encryptedValue")


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
    kept = ThreadStore(store) if isinstance(store, str) else store or _InMemory()
    return doors.route("POST", path, _Front(agent, kept, doors).run, _Input)


class _InMemory:
    """Keeps waiting runs as a `ThreadStore` does, for as long as the process lives."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, str], RunState] = {}

    async def keep_waiting(self, owner: str, thread: str, state: RunState) -> bool:
        self._states = {at: kept for at, kept in self._states.items() if not _is_over(kept)}
        if (owner, thread) in self._states:
            return False
        of_owner = [at for at in self._states if at[0] == owner]
        if len(of_owner) >= MOST_WAITING:
            del self._states[of_owner[0]]
        self._states[owner, thread] = state
        return True

    async def waiting(self, owner: str, thread: str) -> RunState | None:
        return self._states.get((owner, thread))

    async def take_waiting(self, owner: str, thread: str, state: RunState) -> bool:
        is_there = self._states.get((owner, thread)) is state
        return is_there and self._states.pop((owner, thread)) is state


class _Front:
    def __init__(self, agent: Agent, store: ThreadStore | _InMemory, doors: Doors) -> None:
        self._agent = agent
        self._store = store
        self._doors = doors

    async def run(self, _request: Request, caller: Caller, given: _Input) -> Response:
        state = await self._store.waiting(caller.id, given.thread_id)
        if given.resume or (state is not None and not _is_over(state)):
            try:
                run = await self._resumed(state, caller, given)
            except ChatError as error:  # the protocol wants this sent as an event
                told = f"data: {_line(_started(given))}\n\ndata: {_line(_failed(error))}\n\n"
                return Response(told, media_type="text/event-stream")
        else:
            said = [_plain(each) for each in given.messages if each.get("role") not in _ASIDE]
            asked = _in_place(said)
            run = begin(self._doors, self._agent, caller, asked, unanswered=_UNANSWERED)
        return RunEvents(run, self._told(run, caller, given), self._doors.limits.heartbeat)

    async def _resumed(self, state: RunState | None, caller: Caller, given: _Input) -> RunStream:
        """Continue a waiting run. Raises ChatError; the question then stays open."""
        if state is None:
            raise _no_question()
        resume = given.resume or []
        said, asked = ({e.interrupt_id: e for e in resume}, {r.id: r for r in state.pending})
        if len(said) != len(resume) or said.keys() != asked.keys():
            told = "answer each open interrupt of the thread, once"
            raise ChatError(409, "open_interrupts", told)
        answers = {i: await self._answer(state, r, caller, said[i]) for i, r in asked.items()}
        if not await self._store.take_waiting(caller.id, given.thread_id, state):
            raise _no_question()
        try:
            return self._doors.run(caller, lambda: self._agent.resume_stream(state, answers))
        except ToolcribError:
            await self._store.keep_waiting(caller.id, given.thread_id, state)
            raise

    async def _answer(
        self, state: RunState, asked: ApprovalRequest, caller: Caller, given: _Resume
    ) -> Answer:
        if given.status == "cancelled":
            return Refuse(by=caller.id)
        try:
            payload = msgspec.convert(given.payload, type=_Payload)
        except msgspec.ValidationError:
            raise ChatError(
                422,
                "invalid_answer",
                "a payload may have only approved, editedArgs, forRun and always",
            ) from None
        if not payload.approved and payload != _Payload(approved=False):
            raise ChatError(
                422,
                "invalid_answer",
                "a refusal (approved: false) must not have editedArgs, forRun or always",
            )
        yes = self._doors.yes_of(caller, payload.edited_args, payload.for_run, payload.always)
        answer = as_asked(yes, asked) if payload.approved else Refuse(by=caller.id)
        allowed = partial(self._doors.may_approve, caller)
        runner = self._agent.speaking_in(state).runner
        await check_answer(runner, state, asked, answer, allowed)
        return answer

    async def _told(
        self, run: RunStream, caller: Caller, given: _Input
    ) -> AsyncGenerator[str, None]:
        events = _Events(given, limited=self._doors.limited)
        yield _line(_started(given))
        try:
            async for event in followed(run):
                if isinstance(event, Done) and event.result.status == "waiting":
                    waits = event.result.state
                    if not await self._store.keep_waiting(caller.id, given.thread_id, waits):
                        raise ChatError(409, "busy", _ANOTHER_WAITS)
                for told in events.of(event):
                    yield _line(told)
        except ToolcribError as error:
            for told in (*events.close(), _failed(error)):
                yield _line(told)


class _Events:
    """Turns the events of a run into AG-UI's.

    A background call may end while a message is being sent, or before the calls of one. Clients
    append what arrives to their last message, so its result is held back until that message is
    whole.
    """

    def __init__(self, given: _Input, *, limited: bool = False) -> None:
        self._given = given
        self._limited = limited
        self._reply = ""  # the id of the reply's message, with its text or its calls
        self._open = False
        self._thought = ""  # the id of the open reasoning message
        self._schemas: dict[str, Any] = {}
        self._calls_follow = False
        self._held: list[core.BaseEvent] = []

    def of(self, event: Event) -> Iterator[core.BaseEvent]:
        if not isinstance(event, ToolCallStarted):
            yield from self._results()
        match event:
            case ReasoningDelta(text=text) if text:
                yield from self._think(encodable(text))
            case TextDelta(text=text) if text:
                yield from self._say(encodable(text))
            case ReplyFinished(finish=finish):
                if not self._open:
                    self._reply = _new_id()
                self._calls_follow = finish == "tool_calls"
                yield from self._end()
            case ToolCallStarted():
                yield from self._call(event)
            case ApprovalRequested(request=request, schema=schema):
                self._schemas[request.id] = schema
            case ToolCallFinished(record=record):
                self._held.append(_result(record))
                yield from self._results()
            case Done(result=result):
                yield from self.close()
                yield self._finished(result)

    def _call(self, event: ToolCallStarted) -> Iterator[core.BaseEvent]:
        self._calls_follow = False
        yield core.ToolCallStartEvent(
            tool_call_id=event.id, tool_call_name=event.name, parent_message_id=self._reply or None
        )
        delta = _as_text(event.arguments)
        if delta is not None:
            yield core.ToolCallArgsEvent(tool_call_id=event.id, delta=delta)
        yield core.ToolCallEndEvent(tool_call_id=event.id)

    def close(self) -> Iterator[core.BaseEvent]:
        """End the open messages, and send what was held back."""
        yield from self._end()
        self._calls_follow = False
        yield from self._results()

    def _results(self) -> Iterator[core.BaseEvent]:
        if not (self._open or self._thought or self._calls_follow):
            yield from self._held
            self._held.clear()

    def _think(self, text: str) -> Iterator[core.BaseEvent]:
        if not self._thought:
            id_ = self._thought = _new_id()
            yield core.ReasoningStartEvent(message_id=id_)
            yield core.ReasoningMessageStartEvent(message_id=id_, role="reasoning")
        yield core.ReasoningMessageContentEvent(message_id=self._thought, delta=text)

    def _say(self, text: str) -> Iterator[core.BaseEvent]:
        yield from self._end_thought()
        if not self._open:
            self._open, self._reply = True, _new_id()
            yield core.TextMessageStartEvent(message_id=self._reply, role="assistant")
        yield core.TextMessageContentEvent(message_id=self._reply, delta=text)

    def _end(self) -> Iterator[core.BaseEvent]:
        yield from self._end_thought()
        if self._open:
            self._open = False
            yield core.TextMessageEndEvent(message_id=self._reply)

    def _end_thought(self) -> Iterator[core.BaseEvent]:
        if self._thought:
            yield core.ReasoningMessageEndEvent(message_id=self._thought)
            yield core.ReasoningEndEvent(message_id=self._thought)
            self._thought = ""

    def _finished(self, result: RunResult) -> core.BaseEvent:
        if result.status == "limited":
            return core.RunErrorEvent(message=limit_text(result.limit or ""), code="limited")
        outcome: Any = core.RunFinishedSuccessOutcome()
        if result.status == "waiting":
            asked = [
                _interrupt(
                    each,
                    self._schemas.get(each.id),
                    each.call_in(result.state.run_id),
                    limited=self._limited,
                )
                for each in result.pending
            ]
            outcome = core.RunFinishedInterruptOutcome(interrupts=asked)
        spent, given = result.usage, self._given
        usage = core.TokenUsage(input_tokens=spent.input_tokens, output_tokens=spent.output_tokens)
        return core.RunFinishedEvent(
            thread_id=given.thread_id, run_id=given.run_id, outcome=outcome, usage=[usage]
        )


def _is_over(state: RunState) -> bool:
    """Return whether no question of a waiting run can be answered any more."""
    return all(asked.expired() for asked in state.pending)


def _interrupt(
    asked: ApprovalRequest, schema: Any, call_id: str, *, limited: bool
) -> core.Interrupt:
    properties = {"approved": {"type": "boolean"}, "editedArgs": schema or {"type": "object"}}
    if asked.for_run:
        offered = [False, "exactly"] if limited else [False, True, "exactly"]
        properties["forRun"] = {"enum": offered, "default": False}
    if asked.always and not limited:
        always: dict[str, Any] = {"seconds": {"type": "number", "exclusiveMinimum": 0}}
        masks = not asked.arguments_digest  # a tool with secrets: these may not be left open
        names = [name for name, value in asked.arguments.items() if not (masks and value == MASK)]
        if names:
            always["open"] = {"type": "array", "items": {"enum": names}}
        properties["always"] = {
            "type": "object",
            "properties": always,
            "additionalProperties": False,
        }
    return core.Interrupt(
        id=asked.id,
        reason="tool_call",
        message=f"Run {asked.title} {shown_request(asked)}? ({asked.reason})",
        tool_call_id=call_id,
        response_schema={
            "type": "object",
            "properties": properties,
            "required": ["approved"],
            "additionalProperties": False,
        },
        expires_at=datetime.fromtimestamp(min(asked.expires_at, _LAST), UTC).isoformat(),
        metadata={"tool": asked.tool, "arguments": readable(asked.arguments)},
    )


def _started(given: _Input) -> core.BaseEvent:
    return core.RunStartedEvent(
        thread_id=given.thread_id, run_id=given.run_id, protocol_version=core.PROTOCOL_VERSION
    )


def _result(record: ToolInvocationRecord) -> core.BaseEvent:
    error = known_error(record)
    gave = result_with_parts(record) if error is None else {"error": to_plain(error)}
    return core.ToolCallResultEvent(
        message_id=_new_id(), tool_call_id=record.id, content=_cut(gave), role="tool"
    )


def _failed(error: ToolcribError) -> core.BaseEvent:
    code = error.code if isinstance(error, ChatError) else "unavailable"
    return core.RunErrorEvent(message=str(error), code=code)


def _no_question() -> ChatError:
    return ChatError(404, "unknown_interrupt", "no run of this thread is waiting for an answer")


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message in OpenAI's form, without what AG-UI adds to it."""
    return {
        "role": message.get("role"),
        "content": _parts(message.get("content"), "id", *_ENVELOPE),
        "tool_calls": _parts(message.get("toolCalls"), *_ENVELOPE),
        "tool_call_id": message.get("toolCallId"),
    }


def _in_place(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with each result after the message of its call.

    A client keeps the result of a background call where it arrived.
    """
    groups: list[list[dict[str, Any]]] = []
    made: dict[object, int] = {}
    for message in messages:
        id_ = message["tool_call_id"]
        at = made.pop(id_, None) if message["role"] == "tool" and isinstance(id_, str) else None
        if at is not None:
            groups[at].append(message)
            continue
        given = message["tool_calls"]
        calls = given if isinstance(given, list) else []
        named = [each.get("id") for each in calls if isinstance(each, dict)]
        made |= {each: len(groups) for each in named if isinstance(each, str)}
        groups.append([message])
    return [message for group in groups for message in group]


def _parts(value: Any, *without: str) -> Any:
    if not isinstance(value, list):
        return value
    gone = dict.fromkeys(without)  # null members say nothing
    return [part | gone if isinstance(part, dict) else part for part in value]


def _as_text(arguments: JsonObject | None) -> str | None:
    """Return arguments as exact text; None if there are none, or a client could not return them."""
    if arguments is None:
        return None
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text if len(text.encode()) <= LARGEST_ARGUMENTS else None
    except ValueError:  # a default that is not JSON, or half of a surrogate pair
        return None


def _cut(value: JsonValue) -> str:
    """Return a result as text that a client may send back; for a large one, its size and head."""
    if isinstance(value, str) and len(encodable(value).encode()) <= LARGEST_RESULT:
        return encodable(value)
    return msgspec.json.encode(bounded(value, LARGEST_RESULT, LARGEST_RESULT // 3)).decode()


def _line(event: core.BaseEvent) -> str:
    return event.model_dump_json(by_alias=True)


def _new_id() -> str:
    return f"message_{os.urandom(8).hex()}"
