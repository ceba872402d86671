"""What a call knows about its graph: which call it is, what its run has spent, who answers.

Rule: a call that a reply asked for is one call, whoever makes it, how often, and in whichever
process. A thread of a graph is a run. A call is identified by its thread, by the id of the message
that asked for it (which a forked checkpoint keeps), and by the id that the model gave it. Some
models count from `call_0` in each reply, and the message tells those calls apart. Some give no ids,
or the same id to several calls, and their position in the message tells those apart. If no message
is known, or it has no id, or several of its calls are equal, the task of the step takes its place.
A step that is repeated from the same checkpoint has the same task id.

When a graph is resumed, LangGraph makes the call that had stopped it again, perhaps in another
process. If its tool is an agent, that has asked its model and made calls by then, and resumes from
where it waits. Its state is stored as a checkpoint of the thread, in a namespace of its own, and is
deleted with the thread. It is found by the thread and the call's key, and by nothing of the step: a
fork of the thread resumes the same agent. Questions that were asked before the call began belong to
the step in which it began, which is stored as well. Nothing is left to resume for a call that has
ended.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

import msgspec
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    CheckpointMetadata,
    CheckpointTuple,
    empty_checkpoint,
)
from langgraph.prebuilt import ToolRuntime
from langgraph.runtime import ExecutionInfo, get_runtime
from langgraph.types import StreamWriter, interrupt

from toolcrib.errors import SourceError
from toolcrib.runner.approval import NO_RULE, NotAnAnswer
from toolcrib.values.context import RunTally
from toolcrib.values.decision import Answer, ApprovalRequest, Approve, Refuse
from toolcrib.values.json import JsonObject, encodable, fresh, may_hold_wide_integer
from toolcrib.values.record import SpentWithin, SuspendedCall

CallState: TypeAlias = Literal["busy", "asks", "over"]
MARK = "toolcrib"
"""The key, in the artifact of a tool message, of what later calls of the thread need to know."""

_CHANNEL, _OVER = "suspended", ""
_MOST = 10_000  # threads, and answers, that a process keeps
_NO_QUESTION = "the resume value must name a question by its id"
_NOT_FOR_RUN = "this question is about one call only: answer without for_run"
_1582 = 0x01B21DD213814000  # 100 ns between the epochs of UUIDs and of Unix

ANSWER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id", "type"],
    "properties": {
        "id": {"type": "string", "description": "The id of the question."},
        "type": {"enum": ["approve", "refuse"]},
        "by": {"type": "string", "description": "Who says so; a yes needs it."},
        "arguments": {"type": "object", "description": "Other arguments, in place of those shown."},
        "for_run": {"enum": [False, True, "exactly"]},
        "always": {
            "type": "object",
            "description": "Makes it a rule: which arguments may have any value, for how long.",
            "properties": {
                "open": {"type": "array", "items": {"type": "string"}},
                "seconds": {"type": "number", "exclusiveMinimum": 0},
                "given_at": {"type": "number", "description": "Since the epoch, if not now."},
            },
            "additionalProperties": False,
        },
        "reason": {"type": "string", "description": "Why not; for the record."},
    },
    "additionalProperties": False,
}


class WaitingCall(NamedTuple):
    """Holds what a call needs to be resumed, and names the step of the graph in which it began."""

    suspended: SuspendedCall
    step: str


_WAITING = msgspec.json.Decoder(WaitingCall)


class CheckpointedCall(NamedTuple):
    """Where one call of a thread is stored. `namespace` belongs to the call. `step` is the
    namespace and the id of the checkpoint that the call is made from."""

    saver: BaseCheckpointSaver[Any]
    thread: str
    namespace: str
    step: tuple[str, str]

    @classmethod
    def of(
        cls, saver: BaseCheckpointSaver[Any], thread: str, call_id: str, info: ExecutionInfo
    ) -> CheckpointedCall:
        encoded_id = call_id.encode("utf-8", "surrogatepass")
        # the last part of the namespace is the task of the call
        step_namespace = info.checkpoint_ns.rpartition("|")[0]
        step = (step_namespace, info.checkpoint_id)
        return cls(saver, thread, f"toolcrib:{hashlib.sha256(encoded_id).hexdigest()}", step)

    @property
    def _config(self) -> RunnableConfig:
        return {"configurable": {"thread_id": self.thread, "checkpoint_ns": self.namespace}}

    async def _stored(self, config: RunnableConfig) -> CheckpointTuple | None:
        try:
            return await self.saver.aget_tuple(config)
        except NotImplementedError:  # a saver for `invoke` only
            return await asyncio.to_thread(self.saver.get_tuple, config)

    async def results_of_others(self) -> list[ToolMessage]:
        """Return the results of other calls of the same step that have ended. The thread has no
        message about them before all calls of the step have ended."""
        namespace, checkpoint_id = self.step
        checkpoint_config = {"checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}
        stored = await self._stored(
            {"configurable": {"thread_id": self.thread, **checkpoint_config}}
        )
        writes = [] if stored is None else stored.pending_writes or []
        values_written = [
            value if isinstance(value, list | tuple) else [value] for _, _, value in writes
        ]
        return [
            message
            for values in values_written
            for message in values
            if isinstance(message, ToolMessage)
        ]

    async def load(self) -> WaitingCall | None:
        """Return the last saved state, unless there is none or the call is over. Raises SourceError."""
        stored = await self._stored(self._config)
        if stored is None:
            return None
        try:
            saved = stored.checkpoint["channel_values"][_CHANNEL]
            return None if saved == _OVER else _WAITING.decode(saved)
        except (KeyError, TypeError, msgspec.DecodeError) as error:
            raise SourceError(
                f"the checkpoint of an agent in thread {self.thread!r} cannot be read: {error}"
            ) from None

    async def save(self, waiting: WaitingCall | None) -> None:
        """Store the state, in place of an earlier one, or None if the call is over."""
        saved = _OVER if waiting is None else msgspec.json.encode(waiting).decode()
        versions: ChannelVersions = {_CHANNEL: self.saver.get_next_version(None, None)}
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"][_CHANNEL] = saved
        checkpoint["channel_versions"].update(versions)
        metadata = CheckpointMetadata(source="update", step=0, parents={})
        try:
            await self.saver.aput(self._config, checkpoint, metadata, versions)
        except NotImplementedError:
            await asyncio.to_thread(self.saver.put, self._config, checkpoint, metadata, versions)


class GraphCall(NamedTuple):
    """Where a call comes from.

    `step` is the task of the graph that makes it, perhaps together with others. `reply` is the
    message that asked for it, if that is known. `asked_at` is the time of the previous checkpoint.
    If the graph can stop for an answer, `checkpointed` is where the call is stored. `writer` takes
    the graph's custom events.
    """

    run_id: str
    call_id: str
    step: str = ""
    messages: Sequence[BaseMessage] = ()
    reply: AIMessage | None = None
    asked_at: float = 0.0
    checkpointed: CheckpointedCall | None = None
    writer: StreamWriter | None = None


class AskedCall(NamedTuple):
    """A call as a reply asks for it. `text` is its arguments as JSON. `id` is empty if the reply
    has none, and None if code makes the call without one."""

    name: str
    arguments: str | JsonObject
    text: str
    id: str | None

    @property
    def digest(self) -> str:
        """A replacement for the id of a call that has none."""
        encoded = f"{self.name}\0{self.text}".encode("utf-8", "surrogatepass")
        return hashlib.sha256(encoded).hexdigest()[:32]


class AlikeCalls:
    """Distinguishes equal calls of one reply by their order in a step.

    A step that is repeated makes all of them again, and then it does not matter which one is which.
    """

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[object, ...], int] = OrderedDict()
        self._lock = threading.Lock()

    def place(self, info: ExecutionInfo, places: tuple[int, ...]) -> int:
        """Return the next of these places in this execution of a step."""
        key = (info.task_id, info.node_attempt, info.node_first_attempt_time, places)
        with self._lock:
            count = self._counts.pop(key, 0)
            self._counts[key] = count + 1
            if len(self._counts) > _MOST:
                self._counts.popitem(last=False)
        return places[count % len(places)]


def graph_call(
    config: RunnableConfig,
    runtime: ToolRuntime[Any, Any] | None,
    asked_call: AskedCall,
    alike: AlikeCalls,
) -> GraphCall:
    """Return what is known about a call. Outside of a graph, a call without a thread is a run of
    its own."""
    thread = str(config.get("configurable", {}).get("thread_id") or "")
    info = _execution_info() if runtime is None else runtime.execution_info
    if info is None:
        return GraphCall(
            thread or uuid.uuid4().hex, _loggable_id(asked_call.id) or uuid.uuid4().hex
        )
    messages = _messages(runtime)
    reply = _reply(messages, asked_call.id)
    call_id, saver = _key(asked_call, info, messages, reply, alike), _saver(config)
    return GraphCall(
        thread or info.checkpoint_id,  # the calls of a step share it; earlier ones are in messages
        call_id,
        info.task_id,
        messages,
        reply,
        _time_of(info.checkpoint_id),
        None
        if saver is None or asked_call.id is None
        else CheckpointedCall.of(saver, thread, call_id, info),
        writer=None if runtime is None else runtime.stream_writer,
    )


def _key(
    asked_call: AskedCall,
    info: ExecutionInfo,
    messages: Sequence[BaseMessage],
    reply: AIMessage | None,
    alike: AlikeCalls,
) -> str:
    """Return the key of a call in a thread. It consists of the message and the id, or of the
    position in the message if the id is empty or not unique. The quoted id of a message contains no
    `:` and no `/`."""
    step, written_id = f"task:{info.task_id}", _loggable_id(asked_call.id)
    if reply is None:
        substitute = uuid.uuid4().hex if asked_call.id is None else asked_call.digest
        return f"{step}/{written_id or substitute}"
    same_id_count, places = _places(reply, asked_call)
    if len(places) > 1:
        return f"{step}:{alike.place(info, places)}/{written_id}"
    reply_id = _reply_id(messages, reply) or step
    return (
        f"{reply_id}/{written_id}"
        if written_id and same_id_count == 1
        else f"{reply_id}:{places[0]}/{written_id}"
    )


def _places(reply: AIMessage, asked_call: AskedCall) -> tuple[int, tuple[int, ...]]:
    """Return how many calls of a reply have the id, and the positions where the call may be. Calls
    with the same name and arguments are preferred."""
    calls = reply.tool_calls
    same_id = [
        index for index, call in enumerate(calls) if (call["id"] or "") == (asked_call.id or "")
    ]
    same_name = [index for index in same_id if calls[index]["name"] == asked_call.name]
    same_arguments = [index for index in same_name if calls[index]["args"] == asked_call.arguments]
    return len(same_id), tuple(same_arguments or same_name or same_id)


def _loggable_id(call_id: str | None) -> str:
    """Return an id that a log can hold, with lone surrogates encoded."""
    text = call_id or ""
    return text if encodable(text) == text else quote(text, errors="surrogatepass")


def _execution_info() -> ExecutionInfo | None:
    try:
        runtime = get_runtime()
    except RuntimeError:  # no graph runs here
        return None
    return None if runtime is None else runtime.execution_info


def _saver(config: RunnableConfig) -> BaseCheckpointSaver[Any] | None:
    """Return the checkpointer that keeps the thread. Without one, nobody could go on with it."""
    values = config.get("configurable", {}).values()
    return next((value for value in values if isinstance(value, BaseCheckpointSaver)), None)


def _messages(runtime: ToolRuntime[Any, Any] | None) -> Sequence[BaseMessage]:
    state = None if runtime is None else runtime.state
    if isinstance(state, Mapping):
        state = state.get("messages")
    elif not isinstance(state, list):
        state = getattr(state, "messages", None)
    return state if isinstance(state, list) else ()


def _time_of(checkpoint_id: str) -> float:
    """Return when a checkpoint was made, according to its id (a UUID of version 6), or the current
    time."""
    with suppress(ValueError):
        checkpoint_uuid = uuid.UUID(checkpoint_id)
        if checkpoint_uuid.version == 6:
            ticks = checkpoint_uuid.int >> 80 << 12 | (checkpoint_uuid.int >> 64 & 0xFFF)
            return (ticks - _1582) / 1e7
    return time.time()


def _reply(messages: Sequence[BaseMessage], tool_call_id: str | None) -> AIMessage | None:
    for message in reversed(messages):
        if isinstance(message, AIMessage) and any(
            (call["id"] or "") == (tool_call_id or "") for call in message.tool_calls
        ):
            return message
    return None


def _reply_id(messages: Sequence[BaseMessage], reply: AIMessage) -> str:
    """Return the quoted id of a reply, or an empty string if it has none or shares it with another
    message."""
    if not reply.id or sum(message.id == reply.id for message in messages) != 1:
        return ""
    return quote(reply.id, safe="", errors="surrogatepass")


class ThreadTallies:
    """The tallies of threads. The messages of a thread say what other processes have spent, and
    whether they have read untrusted content."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._tallies: OrderedDict[str, RunTally] = OrderedDict()
        self._lock = threading.Lock()

    def spent(self, call: GraphCall, results_of_others: Sequence[BaseMessage] = ()) -> RunTally:
        """Return what the thread has spent, according to its messages and the results of other
        calls in the same step."""
        marks = [
            mark for mark in map(_mark, (*call.messages, *results_of_others)) if mark is not None
        ]
        with self._lock:
            tally = self._tallies.get(call.run_id)
            if tally is None:
                tally = RunTally(call.run_id, self._nonce, time.monotonic())
                self._tallies[call.run_id] = tally
                if len(self._tallies) > _MOST:
                    self._tallies.popitem(last=False)
            else:
                self._tallies.move_to_end(call.run_id)
            for mark in marks:
                if mark["key"] and mark["key"] not in tally.counted:
                    tally.counted[mark["key"]] = 1
                    tally.count(mark["tool"], mark["cost"])
                    within = mark.get("spent")  # spent by an agent
                    if within is not None:
                        tally.count_within(mark["key"], msgspec.convert(within, SpentWithin))
        if any(mark["tainted"] for mark in marks):
            tally.tainted = True
        return tally


def _mark(message: BaseMessage) -> Mapping[str, Any] | None:
    artifact = message.artifact if isinstance(message, ToolMessage) else None
    mark = artifact.get(MARK) if isinstance(artifact, dict) else None
    return mark if isinstance(mark, dict) else None


class RunningCall:
    """A call of a step. It is `busy` until it has an outcome or has to ask, `asks` until it is
    answered or stops the graph, and then `over` or busy again."""

    def __init__(self) -> None:
        self.state: CallState = "busy"
        self.loop = asyncio.get_running_loop()
        self.changed = self.loop.create_future()

    def become(self, state: CallState) -> None:
        self.state = state
        self.changed.set_result(None)
        self.changed = self.loop.create_future()


class RunningSteps:
    """The calls that run now, by the step that makes them.

    A ToolNode makes all calls of a reply in one step. If one of them stops the graph, LangGraph
    does not wait for the others, and their results are lost. So that call first waits until the
    others have ended or stop the graph as well.
    """

    def __init__(self) -> None:
        self._running: dict[str, set[RunningCall]] = {}

    @contextmanager
    def entered(self, step: str) -> Iterator[RunningCall]:
        """Register a call of a step until the block ends."""
        call = RunningCall()
        self._running.setdefault(step, set()).add(call)
        try:
            yield call
        finally:
            call.become("over")
            running = self._running[step]
            running.discard(call)
            if not running:
                del self._running[step]

    async def others(self, step: str, call: RunningCall, *states: CallState) -> None:
        """Wait until all other calls of the step in this event loop are in one of these states."""
        while pending := [
            other.changed
            for other in tuple(self._running.get(step, ()))
            if other is not call and other.loop is call.loop and other.state not in states
        ]:
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)


class InterruptAnswers:
    """Asks by `interrupt`, and gives each question only the answer that names it.

    Calls of one reply may share a step of the graph. LangGraph then gives the value of a resume to
    the first of them that asks, so an answer to another question is kept for that one. It is kept
    for that step alone, since whoever may resume one thread has no say in another.
    """

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[str, str], object] = OrderedDict()
        self._lock = threading.Lock()

    def ask(self, request: ApprovalRequest, step: str) -> object:
        """Return what was said to this question: an Answer, or a value that is none, such as one
        that names no question. Raises GraphInterrupt."""
        with self._lock:
            while (step, request.id) not in self._answers:
                resume_value = interrupt(storable(request), response_schema=_answer_schema(request))
                question_id = resume_value.get("id") if isinstance(resume_value, Mapping) else None
                if not isinstance(question_id, str):
                    return NotAnAnswer(_NO_QUESTION)
                self._answers[step, question_id] = _answer(resume_value)
                if len(self._answers) > _MOST:
                    self._answers.popitem(last=False)
            answer = self._answers.pop((step, request.id))
        if isinstance(answer, Approve) and answer.for_run and not request.for_run:
            return NotAnAnswer(_NOT_FOR_RUN)
        if isinstance(answer, Approve) and answer.always is not None and not request.always:
            return NotAnAnswer(NO_RULE)
        return answer


def _answer_schema(request: ApprovalRequest) -> dict[str, Any]:
    """Return the schema of answers to a question, with a yes for the run, or a rule, if it offers
    one."""
    for_run = ANSWER_SCHEMA["properties"]["for_run"] if request.for_run else {"enum": [False]}
    properties = {**ANSWER_SCHEMA["properties"], "for_run": for_run}
    if not request.always:
        del properties["always"]
    return {**ANSWER_SCHEMA, "properties": properties}


def _answer(resume_value: Mapping[str, Any]) -> object:
    """Return the Answer in a JSON value. Any other value is returned unchanged, and lets nothing
    run."""
    body = {name: value for name, value in resume_value.items() if name != "id"}
    try:
        return msgspec.convert(body, Approve | Refuse)
    except (msgspec.ValidationError, ValueError, TypeError):
        return resume_value


def storable(value: object) -> JsonObject:
    """Return a value as JSON that any checkpointer can store. Integers of more than 64 bits become
    their digits."""
    text = msgspec.json.encode(value)
    if not may_hold_wide_integer(text):
        return fresh(text)
    narrowed: JsonObject = json.loads(text, parse_int=_narrow)
    return narrowed


def _narrow(digits: str) -> int | str:
    number = int(digits)
    return number if -(2**63) <= number < 2**63 else digits


def answer_json(request_id: str, answer: Answer) -> dict[str, Any]:
    """Return an answer in the form that a graph is resumed with: JSON that names its question."""
    return {"id": request_id, **msgspec.to_builtins(answer)}
