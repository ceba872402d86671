"""An agent behind AG-UI (protocol 1.0, https://docs.ag-ui.com), whose interrupts are approvals.

Rule: a call is told when it is whole, and each message and call ends before its run does. What a client
says of calls is context (`check_messages`); it answers by `resume` alone, and only what its own thread
was asked. Runs that wait are kept in this process; of one that is gone, nothing runs.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, assert_never

import msgspec

from toolcrib.agent import Agent, RunStream
from toolcrib.agent.history import edit_fault
from toolcrib.approvals import answer_later, shown_request
from toolcrib.chat.doors import (
    Authenticate,
    ChatError,
    ChatLimits,
    Doors,
    MayApprove,
    RunEvents,
    edit_error,
)
from toolcrib.chat.live import as_asked
from toolcrib.chat.messages import LARGEST_ARGUMENTS, LARGEST_RESULT, begin
from toolcrib.chat.view import readable
from toolcrib.errors import MissingExtraError
from toolcrib.values.decision import Answer, ApprovalRequest, Approve, Caller, Refuse
from toolcrib.values.json import JsonValue, encodable, to_plain
from toolcrib.values.run import (
    ApprovalRequested,
    Done,
    Event,
    ReplyFinished,
    RunError,
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
    from ag_ui.encoder import EventEncoder
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
except ImportError:
    raise MissingExtraError("ag-ui", "ag-ui-protocol") from None

__all__ = ["ag_ui_route"]

_MOST_WAITING = 50  # runs of a caller that are kept until they are answered
_LAST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
_UNANSWERED: Final = "No result of this call is known. Make it again only if the user asks for it."
_ASIDE: Final = ("activity", "reasoning")  # for a page's eyes, not part of what was said
_NAMES: Final = {"toolCalls": "tool_calls", "toolCallId": "tool_call_id"}


class _Payload(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    approved: bool
    edited_args: dict[str, Any] | None = None


class _Resume(msgspec.Struct, rename="camel"):
    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class _Input(msgspec.Struct, rename="camel"):
    """What counts of a `RunAgentInput`: tools, state and context are the server's."""

    thread_id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    run_id: str
    messages: list[dict[str, Any]]
    resume: list[_Resume] | None = None


@names_wrong_types
def ag_ui_route(
    agent: Agent,
    *,
    path: str = "/",
    authenticate: Authenticate | None = None,
    may_approve: MayApprove | None = None,
    allowed_origins: Sequence[str] = (),
    limits: ChatLimits = ChatLimits(),  # noqa: B008  frozen
) -> Route:
    """Return the route that AG-UI clients post to, for an app of yours.

    The options are as for `chat_app`. A call that needs an approval interrupts the run; whoever began
    it answers on the same thread. A client that leaves cancels its run. Raises TypeError for other
    types.
    """
    doors = Doors(authenticate, may_approve, allowed_origins, limits)
    if agent.runner.approver is None:
        agent = agent.replace(tools=agent.runner.with_approver(answer_later))
    return doors.route("POST", path, _Front(agent, doors).run)


class _Front:
    def __init__(self, agent: Agent, doors: Doors) -> None:
        self._agent = agent
        self._doors = doors
        self._waiting: dict[tuple[str, str], RunState] = {}  # by caller and thread

    async def run(self, request: Request, caller: Caller) -> Response:
        given: _Input = await self._doors.body(request, _Input)
        key = (caller.id, given.thread_id)
        if not given.resume and not self._is_open(key):
            posted = [m for m in given.messages if m.get("role") not in _ASIDE]
            run = begin(
                self._doors, self._agent, caller, [*map(_plain, posted)], unanswered=_UNANSWERED
            )
        else:
            try:
                run = await self._resumed(key, caller, given.resume or [])
            except ChatError as error:  # which the protocol wants told as an event
                told = (_started(given), core.RunErrorEvent(message=str(error), code=error.code))
                encode = EventEncoder().encode
                return Response("".join(map(encode, told)), media_type="text/event-stream")
        return RunEvents(run, self._told(run, key, given), self._doors.limits.heartbeat)

    async def _resumed(
        self, key: tuple[str, str], caller: Caller, resume: Sequence[_Resume]
    ) -> RunStream:
        state = self._waiting.pop(key, None)  # so that nobody else answers meanwhile
        if state is None:
            raise ChatError(404, "unknown_interrupt", "this thread waits for nothing")
        try:
            answers = await self._answers(state, caller, resume)
            return self._doors.run(caller, lambda: self._agent.resume_stream(state, answers))
        except BaseException:
            self._waiting.setdefault(key, state)
            raise

    async def _answers(
        self, state: RunState, caller: Caller, resume: Sequence[_Resume]
    ) -> dict[str, Answer]:
        given = {entry.interrupt_id: entry for entry in resume}
        asked = {request.id: request for request in state.pending}
        if len(given) != len(resume) or given.keys() != asked.keys():
            raise ChatError(
                409, "open_interrupts", "answer each open interrupt of the thread, once"
            )
        return {i: await self._answer(state, r, caller, given[i]) for i, r in asked.items()}

    async def _answer(
        self, state: RunState, asked: ApprovalRequest, caller: Caller, given: _Resume
    ) -> Answer:
        if given.status == "cancelled":
            return Refuse(by=caller.id)
        if asked.expired():
            raise ChatError(
                410, "approval_expired", "nobody answered in time: cancel the interrupt"
            )
        if not self._doors.may_approve(caller, asked):
            raise ChatError(403, "may_not_approve", "you may not answer for this call")
        try:
            payload = msgspec.convert(given.payload, type=_Payload)
        except msgspec.ValidationError:
            raise ChatError(422, "invalid_answer", "a payload is approved, editedArgs") from None
        if not payload.approved:
            return Refuse(by=caller.id)
        answer = as_asked(Approve(by=caller.id, arguments=payload.edited_args), asked)
        if isinstance(answer, Approve) and answer.arguments is not None:
            fault = await edit_fault(self._agent.runner, state, asked, answer)
            if fault is not None:
                raise edit_error(fault)
        return answer

    def _is_open(self, key: tuple[str, str]) -> bool:
        """Return whether a thread has a question that can still be answered."""
        state = self._waiting.get(key)
        return state is not None and not all(request.expired() for request in state.pending)

    def _keep(self, key: tuple[str, str], state: RunState) -> None:
        self._waiting = {each: s for each, s in self._waiting.items() if self._is_open(each)}
        of_caller = [each for each in self._waiting if each[0] == key[0]]
        if len(of_caller) >= _MOST_WAITING:
            del self._waiting[of_caller[0]]
        self._waiting[key] = state

    async def _told(
        self, run: RunStream, key: tuple[str, str], given: _Input
    ) -> AsyncGenerator[str, None]:
        yield _line(_started(given))
        events = _Events(given)
        async for event in run:
            if isinstance(event, Done) and event.result.status == "waiting":
                self._keep(key, event.result.state)
            for told in events.of(event):
                yield _line(told)


class _Events:
    """Turns the events of a run into AG-UI's."""

    def __init__(self, given: _Input) -> None:
        self._given = given
        self._message = ""  # that is open
        self._parent = ""  # of the calls of a reply
        self._schemas: dict[str, Any] = {}
        self._failed = core.RunErrorEvent(message="the run was cancelled", code="cancelled")

    def of(self, event: Event) -> Iterator[core.BaseEvent]:
        match event:
            case TextDelta(text=text) if text:
                if not self._message:
                    self._message = self._parent = _new_id()
                    yield core.TextMessageStartEvent(message_id=self._message, role="assistant")
                delta = encodable(text)
                yield core.TextMessageContentEvent(message_id=self._message, delta=delta)
            case ReplyFinished():
                yield from self._end_message()
                self._parent = self._parent or _new_id()
            case ToolCallStarted(id=id_, name=name, arguments=arguments):
                yield core.ToolCallStartEvent(
                    tool_call_id=id_, tool_call_name=name, parent_message_id=self._parent or None
                )
                delta = _cut(arguments or {}, LARGEST_ARGUMENTS)
                yield core.ToolCallArgsEvent(tool_call_id=id_, delta=delta)
                yield core.ToolCallEndEvent(tool_call_id=id_)
            case ApprovalRequested(request=request, schema=schema):
                self._schemas[request.id] = schema
            case ToolCallFinished(record=record):
                self._parent = ""
                failed: Any = {"error": to_plain(record.error)} if record.error else None
                content = _cut(failed or record.result, LARGEST_RESULT)
                yield core.ToolCallResultEvent(
                    message_id=_new_id(), tool_call_id=record.id, content=content, role="tool"
                )
            case RunError(kind=kind, message=message):
                self._failed = core.RunErrorEvent(message=encodable(message), code=kind)
            case Done(result=result):
                yield from self._end_message()
                yield self._end(result)

    def _end_message(self) -> Iterator[core.BaseEvent]:
        if self._message:
            yield core.TextMessageEndEvent(message_id=self._message)
            self._message = ""

    def _end(self, result: RunResult) -> core.BaseEvent:
        outcome: Any = core.RunFinishedSuccessOutcome()
        match result.status:
            case "failed" | "cancelled":
                return self._failed
            case "limited":
                said = limit_text(result.limit or "")
                return core.RunErrorEvent(message=said, code="limited")
            case "waiting":
                asked = [_interrupt(each, self._schemas.get(each.id)) for each in result.pending]
                outcome = core.RunFinishedInterruptOutcome(interrupts=asked)
            case "completed":
                pass
            case _:
                assert_never(result.status)
        sent, written = result.usage.input_tokens, result.usage.output_tokens
        return core.RunFinishedEvent(
            thread_id=self._given.thread_id,
            run_id=self._given.run_id,
            outcome=outcome,
            usage=[core.TokenUsage(input_tokens=sent, output_tokens=written)],
        )


def _interrupt(asked: ApprovalRequest, schema: Any) -> core.Interrupt:
    properties = {"approved": {"type": "boolean"}, "editedArgs": schema or {"type": "object"}}
    return core.Interrupt(
        id=asked.id,
        reason="tool_call",
        message=f"Run {asked.tool} {shown_request(asked)}? ({asked.reason})",
        tool_call_id=asked.call_id,
        response_schema={"type": "object", "properties": properties, "required": ["approved"]},
        expires_at=datetime.fromtimestamp(min(asked.expires_at, _LAST), UTC).isoformat(),
        metadata={"tool": asked.tool, "arguments": readable(asked.arguments)},
    )


def _started(given: _Input) -> core.BaseEvent:
    return core.RunStartedEvent(
        thread_id=given.thread_id, run_id=given.run_id, protocol_version=core.PROTOCOL_VERSION
    )


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message in OpenAI's form, without what AG-UI adds to it."""
    named = {_NAMES.get(name, name): value for name, value in message.items()}
    return {
        name: [_only(each) for each in value] if isinstance(value, list) else value
        for name, value in named.items()
        if name in ("role", "content", "tool_calls", "tool_call_id")
    }


def _only(part: Any) -> Any:
    """Return a part of a message without its envelope."""
    envelope = ("metadata", "encryptedValue")
    if not isinstance(part, dict):
        return part
    gone = (*envelope, "id") if part.get("type") == "text" else envelope
    return {name: value for name, value in part.items() if name not in gone}


def _cut(value: JsonValue, most: int) -> str:
    """Return a value as text that a client may send back: of a larger one what it is, and its head."""
    shown = readable(value)
    text = shown.encode() if isinstance(shown, str) else msgspec.json.encode(shown)
    if len(text) <= most:
        return text.decode()
    head = text[: most // 3].decode("utf-8", "ignore")
    return msgspec.json.encode({"truncated": True, "bytes": len(text), "head": head}).decode()


def _line(event: core.BaseEvent) -> str:
    return event.model_dump_json(by_alias=True)


def _new_id() -> str:
    return f"message_{os.urandom(8).hex()}"
