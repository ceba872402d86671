"""What a run keeps: its messages, its conversation, and the arguments of calls that wait.

Rule: every call has its own id and at most one result.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import dropwhile
from types import MappingProxyType
from typing import TypeAlias, TypeVar, assert_never, cast

import msgspec
import orjson

from toolcrib.agent.inner import inner_run_id
from toolcrib.errors import ApprovalError, ErrorCode, SourceError, Stage
from toolcrib.hydration import ParseFailure, RepairRequest, hydrate, parse_arguments, repair
from toolcrib.runner import ToolRunner, approval_request
from toolcrib.runner.approval import approved_call, checked_answer, differing, request_id
from toolcrib.runner.stopped import Stopped, rejection
from toolcrib.values.call import (
    Hydrated,
    HydrationResult,
    Rejected,
    ToolCall,
    name_in_records,
)
from toolcrib.values.content import Part
from toolcrib.values.context import RunTally, ToolApproval
from toolcrib.values.decision import Answer, ApprovalRequest, Approve, Ask, OuterCall
from toolcrib.values.json import JsonObject, JsonValue, canonical_json, digest, encodable, to_plain
from toolcrib.values.message import Message, Offer, Reply
from toolcrib.values.record import (
    FOR_RUN,
    FOR_RUN_EXACTLY,
    PART_WAITED,
    CallError,
    Completed,
    Failed,
    Outcome,
    SuspendedCall,
    ToolInvocationRecord,
    Waiting,
    has_begun,
)
from toolcrib.values.run import RepairedText, RunState, saved_run
from toolcrib.values.step import ArgumentsStep

T = TypeVar("T")

# What the model reads of its calls: results and errors as the content of tool messages.

_HANDLE_PREFIX = '{"status":"running in the background",'
_RESULT_FOLLOWS = "Its result follows in a message of its own. Until then go on with all else."
_MALFORMED_CODES = (ErrorCode.INVALID_JSON, ErrorCode.TOO_LARGE, ErrorCode.TRUNCATED)
_UNKNOWN_TOOL_CODES = (ErrorCode.UNKNOWN_TOOL, ErrorCode.NOT_OFFERED)


def content_of(view: JsonValue) -> str:
    """Return a string itself, everything else as JSON."""
    if isinstance(view, str):
        return view
    try:
        return orjson.dumps(view).decode()
    except TypeError:  # an integer beyond 64 bits
        return msgspec.json.encode(view).decode()


def error_content(error: CallError, author_text: str = "") -> str:
    """Return code, message and places of an error as JSON.

    That is enough to correct a call, and nothing that was sent. `author_text` is the text for
    the model that the tool's author wrote in place of the message.
    """
    body: JsonObject = {"code": str(error.code), "message": author_text or error.message}
    if len(error.details) > 1 or any(detail.path for detail in error.details):
        body["details"] = [{"path": d.path, "message": d.message} for d in error.details]
    return orjson.dumps({"error": body}).decode()


def result_message(
    call: ToolCall, outcome: Outcome | None, error: CallError | None
) -> Message | None:
    """Return the message that answers a call, or None while it waits."""
    match outcome:
        case Completed():
            content, parts = (
                _model_content(outcome) if outcome.parts else (content_of(outcome.model), ())
            )
            message = Message.tool(call, _with_notice(outcome.notice, content), parts)
            if is_handle(message):  # the tool itself returned this text: nothing follows it
                message = Message.tool(call, orjson.dumps(content).decode(), parts)
            return message
        case Failed():
            shown_error = error_as_reported(outcome.record) or outcome.error
            content = _with_notice(outcome.notice, error_content(shown_error, outcome.model_text))
            return Message.tool(call, content, is_error=True)
        case Waiting() | None:
            return Message.tool(call, error_content(error), is_error=True) if error else None
        case _:
            assert_never(outcome)


def handle_message(call: ToolCall) -> Message:
    """Return the result of a call that has begun and continues in the background."""
    body = {"status": "running in the background", "call_id": call.id, "message": _RESULT_FOLLOWS}
    return Message.tool(call, orjson.dumps(body).decode())


def is_handle(message: Message) -> bool:
    """Return whether a result says that another one follows."""
    if message.role != "tool" or not message.content.startswith(_HANDLE_PREFIX):
        return False
    call = ToolCall(message.call_id or "", message.name or "", "")
    return message.content == handle_message(call).content


def later_message(call: ToolCall, outcome: Outcome | None) -> Message:
    """Return the message with a background call's result; unknown if there is no outcome.

    Of content it has only the texts: no provider takes images or files in this place.
    """
    result = result_message(call, outcome, CallError.of(ErrorCode.OUTCOME_UNKNOWN))
    assert result is not None  # noqa: S101  an error is given
    hidden = [part for part in result.parts if not isinstance(part, str)]
    content = result.text
    if hidden:
        content = f"{content}\n\n[not shown to you: {len(hidden)} images or files]".strip()
    return Message.later(call, content, is_error=result.is_error)


def _model_content(outcome: Completed) -> tuple[str, tuple[Part, ...]]:
    """Return what a model reads of a result with content, and what it is shown besides.

    If there is no structured value, the first text is what it reads.
    """
    parts = outcome.model_parts
    content = "" if outcome.model is None else content_of(outcome.model)
    if not parts:
        hidden = "; ".join(map(str, outcome.record.parts))
        return _with_notice(content, f"[not shown to you: {hidden}]"), ()
    if not content and isinstance(parts[0], str):
        return parts[0], parts[1:]
    return content, parts


_CUT_SHORT = CallError.of(
    ErrorCode.CANCELLED, "The call was cancelled while it ran: what it did is not known."
)


def is_cut_short(record: ToolInvocationRecord) -> bool:
    """Return whether a call was cancelled after it had begun: nobody knows what it did."""
    error = record.error
    return error is not None and error.code is ErrorCode.CANCELLED and has_begun(record)


def error_as_reported(record: ToolInvocationRecord) -> CallError | None:
    """Return the error of a call as reported.

    If a call that was cut short were reported as `cancelled`, its reader would make it again.
    """
    return _CUT_SHORT if is_cut_short(record) else record.error


def _with_notice(notice: str, content: str) -> str:
    """Return what the model has to know first, then what it asked for."""
    return f"{notice}\n\n{content}" if notice else content


def is_later(message: Message) -> bool:
    """Return whether this is the later result of a call in the background."""
    return message.role == "user" and message.from_tool


def running_calls(messages: Collection[Message]) -> set[str]:
    """Return the calls that are shown as running in the background, without a later result."""
    running = {m.call_id for m in messages if m.call_id is not None and is_handle(m)}
    return running - {m.call_id for m in messages if is_later(m)}


def last_calls_and_results(
    messages: Sequence[Message],
) -> tuple[tuple[ToolCall, ...], dict[str | None, Message]]:
    """Return the calls of the last reply, and their results so far, by id.

    After a reply there are only its results, and later results of background calls.
    """
    results: dict[str | None, Message] = {}
    for message in dropwhile(is_later, reversed(messages)):
        if message.role != "tool":
            return message.tool_calls, results
        results[message.call_id] = message
    return (), results


def last_text(messages: Sequence[Message]) -> str:
    """Return the text of the last message, if it is the assistant's."""
    last = messages[-1] if messages else None
    return last.content if last is not None and last.role == "assistant" else ""


class ConversationHistory:
    """Messages in order; the last assistant message and what follows it are the current turn.

    `text_of` returns the arguments of a call as they were validated, which may be repaired ones.
    """

    def __init__(self, messages: Iterable[Message], text_of: Callable[[ToolCall], str]) -> None:
        self._messages = list(messages)
        self._text_of = text_of
        self._ids: set[str] = set()
        for message in self._messages:
            self._ids.update(call.id for call in message.tool_calls)

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)

    def instruct(self, text: str, *, replacing: bool) -> None:
        """Put the instructions, if there are any, in place of the reserved first message.

        With `replacing`, they also replace the message after it.
        """
        self._messages[: 1 + (replacing and text != "")] = [Message.system(text)] if text else []

    def append(self, message: Message, *, untrusted: bool = False) -> None:
        """Add a message; `untrusted` says that the run has read untrusted content."""
        if untrusted:
            message = msgspec.structs.replace(message, untrusted=True)
        self._messages.append(message)
        self._ids.update(call.id for call in message.tool_calls)

    def with_new_ids(self, reply: Reply, prefix: str) -> Reply:
        """Give a call a new id if a client repeats one, since results would be mixed up."""
        calls = reply.tool_calls
        if not calls or len({c.id for c in calls} - self._ids) == len(calls):
            return reply
        taken: set[str] = set()
        new_calls = []
        for call in calls:
            call_id = self.free_id(call.id, prefix, taken)
            taken.add(call_id)
            new_calls.append(msgspec.structs.replace(call, id=call_id))
        message = msgspec.structs.replace(reply.message, tool_calls=tuple(new_calls))
        return msgspec.structs.replace(reply, message=message)

    def free_id(self, call_id: str, prefix: str, taken: Collection[str] = ()) -> str:
        """Return a call's id, with `prefix` if another call of the conversation has that id."""
        while call_id in self._ids or call_id in taken:
            call_id = prefix + (call_id or "call")
        return call_id

    def unanswered(self) -> list[ToolCall]:
        """Return the calls of this turn that have no result yet."""
        position = self._last_assistant()
        if position < 0:
            return []
        answered_ids = {message.call_id for message in self._messages[position + 1 :]}
        return [c for c in self._messages[position].tool_calls if c.id not in answered_ids]

    def add_results(
        self,
        outcomes: Mapping[str, Outcome],
        error: CallError | None = None,
        *,
        errors: Mapping[str, CallError] = MappingProxyType({}),
        loads: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
        begun: Collection[str] = (),
        untrusted: bool = False,
    ) -> None:
        """Add the results that exist, in call order, and `error` for the calls that have none.

        Calls that have `begun` continue in the background: their results say so. A call that waited
        when its run ended is shown as waiting, whatever `error` says of the others. `errors` maps
        call ids to an error used in place of `error`, and `loads` maps them to the tools that they
        loaded. `untrusted` says that the run has read untrusted content.
        """
        position = self._last_assistant()
        reply = self._messages[position]
        existing = {message.call_id: message for message in self._messages[position + 1 :]}
        results: list[Message] = []
        calls = tuple(
            self._stored_call(call, outcomes.get(call.id), errors.get(call.id), begun)
            for call in reply.tool_calls
        )
        for call in calls:
            outcome = outcomes.get(call.id)
            shown_error = errors.get(call.id, error)
            if error is not None and isinstance(outcome, Waiting):
                shown_error = _WAITS if outcome.suspended is None else _PART_WAITED
            message = existing.get(call.id) or (
                handle_message(call)
                if call.id in begun
                else result_message(call, outcome, shown_error)
            )
            if message is None:
                continue
            if untrusted:
                message = msgspec.structs.replace(message, untrusted=True)
            if call.id in loads:
                message = msgspec.structs.replace(message, loads=loads[call.id])
            results.append(message)
        self._messages[position:] = [msgspec.structs.replace(reply, tool_calls=calls), *results]

    def _stored_call(
        self,
        call: ToolCall,
        outcome: Outcome | None,
        error: CallError | None,
        begun: Collection[str],
    ) -> ToolCall:
        """Return the call as history keeps it; a waiting call stays as sent, to be read again.

        Arguments that are not JSON are not sent back to a provider.
        """
        is_over = outcome is not None and not isinstance(outcome, Waiting)
        if is_over or call.id in begun:
            call = msgspec.structs.replace(call, arguments=self._text_of(call))
        error = outcome.error if isinstance(outcome, Failed) else error
        code = None if error is None else error.code
        is_malformed = code in _MALFORMED_CODES or (
            code in _UNKNOWN_TOOL_CODES
            and isinstance(parse_arguments(call.arguments), ParseFailure)
        )
        if is_malformed or not call.complete:
            call = msgspec.structs.replace(call, arguments="{}", complete=True, fault=None)
        if code in _UNKNOWN_TOOL_CODES:  # a name made up by a model may have lone surrogates
            call = msgspec.structs.replace(call, name=encodable(call.name))
        return call

    def _last_assistant(self) -> int:
        position = len(self._messages) - 1
        while position >= 0 and self._messages[position].role == "tool":
            position -= 1
        return position if position >= 0 and self._messages[position].role == "assistant" else -1


# A conversation: the turns of its runs, in the order in which they began.
#
# Rule: what a run says, from its prompt on, is one turn. A resumed run extends its own turn and no
# other, so the turn is replaced as a whole by one that says everything it said before, and more.
# Anything else is refused: an older state of the run, or a run that diverged from it. A run's turn
# also has what was said within its suspended calls, as digests, because it is not shown to others.

_WAITS = CallError.of(
    ErrorCode.APPROVAL_REQUIRED, "The call waits for somebody's approval. It has not run."
)
_PART_WAITS = CallError.of(
    ErrorCode.APPROVAL_REQUIRED,
    "The call has begun, and waits for somebody's approval of a part of it. That part has not run.",
)
_PART_WAITED = CallError.of(ErrorCode.OUTCOME_UNKNOWN, PART_WAITED)
NOT_MADE = CallError.of(
    ErrorCode.NOT_RUNNABLE, "The call was not made: its run failed first.", retryable=True
)
_BEGUN_AND_WAITS = error_content(_PART_WAITS)
_NOT_FINAL = (
    _BEGUN_AND_WAITS,
    *map(error_content, (_WAITS, NOT_MADE, CallError.of(ErrorCode.CANCELLED))),
)


class SaidWithin(msgspec.Struct, frozen=True):
    """Holds digests of what was said in the run of a suspended call.

    `said` has what was said, in order; `told` the result of each call that is over, or may be, by
    call id; `within` the same for its own suspended calls.
    """

    said: tuple[str, ...]
    told: dict[str, str] = {}
    within: dict[str, SaidWithin] = {}

    @classmethod
    def of(cls, suspended: SuspendedCall) -> SaidWithin:
        """Return the digests of a suspended call's run. Raises SourceError."""
        state = saved_run(suspended)
        messages = settled_messages(state)
        said = tuple(digest(to_plain(inner)) for inner in _spoken(messages))
        result_digests = {
            str(call_id): digest(to_plain(result)) for call_id, *result in final_results(messages)
        }
        return cls(
            said, result_digests, {id_: cls.of(inner) for id_, inner in state.suspended.items()}
        )

    def extends(self, other: SaidWithin) -> bool:
        """Return whether this says everything that the other one says."""
        is_more = self.said[: len(other.said)] == other.said
        is_more = is_more and other.told.items() <= self.told.items()
        return is_more and _extend(self.within, other.within, self.told)


class RunTurn(msgspec.Struct, frozen=True):
    """Holds what one run said; `before` is how many messages its own history has before that.

    `run_id` is empty for messages of no known run. `over` says that the run was completed. `within`
    has, by call id, what was said within suspended calls.
    """

    run_id: str = ""
    before: int = 0
    messages: tuple[Message, ...] = ()
    over: bool = False
    within: dict[str, SaidWithin] = {}

    def replaced(self, state: RunState, *, over: bool = False) -> RunTurn:
        """Return the turn as a run's whole history has it. Raises SourceError for a bad state."""
        messages = settled_messages(state)[self.before :]
        within = {id_: SaidWithin.of(each) for id_, each in state.suspended.items()}
        return msgspec.structs.replace(self, messages=messages, over=over, within=within)

    def extends(self, other: RunTurn) -> bool:
        """Return whether this turn says everything that the other one says, as far as known."""
        spoken, earlier = _spoken(self.messages), _spoken(other.messages)
        results = final_results(self.messages)
        ended = {call_id or "" for call_id, *_ in results} | self._unknown
        is_more = spoken[: len(earlier)] == earlier and final_results(other.messages) <= results
        return is_more and _extend(self.within, other.within, ended)

    @property
    def _unknown(self) -> set[str]:
        """The calls known only from their message to have begun and wait.

        Version 0.2 saved no more, nor does a list of messages.
        """
        waiting = (m.call_id or "" for m in self.messages if m.content == _BEGUN_AND_WAITS)
        return {call_id for call_id in waiting if call_id not in self.within}

    def tells_more(self, other: RunTurn) -> bool:
        """Return whether this turn has a call, or a result, that the other one does not have."""
        more = call_ids(self.messages) - call_ids(other.messages)
        return bool(more or final_results(self.messages) - final_results(other.messages))


def split_system(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Return the system messages at the beginning, which no run has said, and the rest."""
    end = next((end for end, m in enumerate(messages) if m.role != "system"), len(messages))
    return messages[:end], messages[end:]


def settled_messages(state: RunState) -> tuple[Message, ...]:
    """Return what was said in a run; a waiting call gets a result that says so.

    That result is as untrusted as what the run has read, because an agent that is its tool may have
    read it.
    """
    history = ConversationHistory(split_system(state.messages)[1], lambda call: call.arguments)
    if history.unanswered():
        errors = dict.fromkeys(state.suspended, _PART_WAITS)
        history.add_results({}, _WAITS, errors=errors, untrusted=state.tally.tainted)
    return (*history.messages, *state.arrived)


def joined(turns: Iterable[RunTurn]) -> tuple[Message, ...]:
    """Return the messages of all turns, with duplicate call ids replaced.

    An id that an earlier turn also has is replaced: runs next to each other do not know each
    other's calls, and some servers number theirs.
    """
    used_ids: set[str] = set()
    messages: list[Message] = []
    for turn in turns:
        ids = [call.id for message in turn.messages for call in message.tool_calls]
        reserved_ids = used_ids.union(ids)
        candidates = (f"{turn.run_id or 'call'}_{number}" for number in itertools.count())
        free_ids = (id_ for id_ in candidates if id_ not in reserved_ids)
        new_ids = {id_: next(free_ids) for id_ in ids if id_ in used_ids}
        used_ids.update(ids, new_ids.values())
        messages += (_with_ids(m, new_ids) for m in turn.messages) if new_ids else turn.messages
    return tuple(messages)


def call_ids(messages: Iterable[Message]) -> set[str]:
    """Return the ids of all calls that were made."""
    return {call.id for message in messages for call in message.tool_calls}


def final_results(messages: Iterable[Message]) -> set[tuple[str | None, str, tuple[Part, ...]]]:
    """Return the calls that are over, or may be, each with its result."""
    results = (message for message in messages if message.role == "tool")
    return {
        (m.call_id, m.content, m.parts)
        for m in results
        if not (m.is_error and m.content in _NOT_FINAL)  # it has not begun, and may still run
    }


def error_in_result(messages: Sequence[Message], call_id: str) -> tuple[str, str] | None:
    """Return code and message of the error in a call's result, or None without such a call.

    This is for a call without a record of its end. Raises SourceError if its result is not an
    error.
    """
    for message in reversed(messages):
        if message.role == "tool" and message.call_id == call_id and message.is_error:
            try:
                error = msgspec.json.decode(message.content, type=_ErrorContent).error
            except (ValueError, RecursionError):
                problem = "its result in the messages is not written as an error"
                raise SourceError(
                    f"call {call_id!r} of the run has failed, but {problem}"
                ) from None
            return error.code, error.message
    return None


class _ErrorBody(msgspec.Struct, frozen=True):
    code: str
    message: str


class _ErrorContent(msgspec.Struct, frozen=True):
    """The part of what `error_content` writes that is read again."""

    error: _ErrorBody


def _extend(
    digests: Mapping[str, SaidWithin], others: Mapping[str, SaidWithin], ended: Collection[str]
) -> bool:
    """Return whether `digests` say everything that `others` say within calls.

    A call that has `ended` needs no entry, because its result stands for it.
    """
    return all(
        call_id in ended or (call_id in digests and digests[call_id].extends(other))
        for call_id, other in others.items()
    )


def _spoken(messages: Iterable[Message]) -> list[tuple[object, ...]]:
    spoken = (message for message in messages if message.role != "tool")
    return [(m.role, m.content, tuple(call.id for call in m.tool_calls), *m.parts) for m in spoken]


def _with_ids(message: Message, new_ids: Mapping[str, str]) -> Message:
    """Return the message with new ids for its calls, dropping provider state with the old ids."""
    replace = msgspec.structs.replace
    if not new_ids.keys().isdisjoint(call.id for call in message.tool_calls):
        calls = tuple(
            replace(call, id=new_ids.get(call.id, call.id)) for call in message.tool_calls
        )
        return replace(message, tool_calls=calls, provider_state=None)
    old_id = message.call_id or ""
    if old_id not in new_ids:
        return message
    content = message.content
    if message.role == "user" or is_handle(message):
        old_text, new_text = (
            f'"call_id":{msgspec.json.encode(id_).decode()}' for id_ in (old_id, new_ids[old_id])
        )
        content = content.replace(old_text, new_text, 1)
    return replace(message, call_id=new_ids[old_id], content=content)


# The arguments of calls before they were decided on, kept as long as their call waits.
#
# A model answers for the view of a schema that its provider was sent, and what it sends may have
# been repaired; a default factory makes its value once per call. The restorer is known only to the
# offer of that one request, and a repairer may be a model. A run that waits, and resumes in another
# process or with another model, must arrive at exactly the arguments that somebody was asked to
# approve.
#
# A saved state is checked for contradictions before a call in it runs: the questions that it shows
# must be those that its calls lead to, field by field, and its counts must match its records. That
# detects a state in which one thing was changed. Only a signature (`state_key`) detects a change by
# somebody who may change everything.


_TOLERANCE = 1e-9


def check_state(state: RunState) -> None:
    """Raise SourceError, naming the field, for a state whose parts contradict one another."""
    for name, number in _counts(state):
        if not -_TOLERANCE <= number < math.inf:
            raise changed(name, "it is not a valid count")
    for field, why, wrong in _contradictions(state):
        if wrong:
            raise changed(field, why)
    for call_id, suspended in state.suspended.items():
        inner, field_path = saved_run(suspended), f"suspended['{call_id}']"
        call = OuterCall(state.run_id, call_id, suspended.call.tool)
        is_foreign = inner.run_id != inner_run_id(state.run_id, call_id) or suspended.call != call
        if is_foreign or _differs(inner.caller, state.caller):
            raise changed(field_path, "it does not belong to the run that this call began")
        requests = [each for each in state.pending if each.call_in(state.run_id) == call_id]
        if not requests or _differs(inner.pending, tuple(requests)):
            raise changed(field_path, "its questions are not those in `pending`")
        check_state(inner)


def _counts(state: RunState) -> Iterator[tuple[str, float]]:
    tally, inner = state.tally, state.tally.inner
    yield from (("turn", state.turn), ("elapsed", state.elapsed))
    for prefix, values, names in (
        ("tally.", tally, ("calls", "cost", "tokens")),
        ("", state, ("corrections",)),
        ("tally.inner.", inner, ("turns", "calls", "cost")),
        ("usage.", state.usage, state.usage.__struct_fields__),
    ):
        yield from ((f"{prefix}{name}", getattr(values, name)) for name in names)
    for prefix, numbers in (
        ("tally.inner.per_tool", inner.per_tool),
        ("tally.inner.cost_per_tool", inner.cost_per_tool),
        ("tally.per_tool", tally.per_tool),
        ("tally.cost_per_tool", tally.cost_per_tool),
        ("tally.seconds_per_tool", tally.seconds_per_tool),
    ):
        yield from ((f"{prefix}['{name}']", number) for name, number in numbers.items())
    yield from ((f"suspended['{id_}'].times", each.times) for id_, each in state.suspended.items())


_Checks: TypeAlias = Iterator[tuple[str, str, bool]]
"""For a state: each field, what would be wrong with it, and whether it is."""


def _contradictions(state: RunState) -> _Checks:
    tally, caller = state.tally, state.caller
    is_foreign = any(
        record.caller != caller.id
        # records without an origin are older than the roles in them
        or (record.origin is not None and record.caller_roles != caller.roles)
        for record in state.records
    )
    yield "caller", "the records have another caller", is_foreign
    is_emulated = state.emulated or not any(record.emulated for record in state.records)
    yield "emulated", "the records say that results were made up", not is_emulated
    yield "tally.run_id", "it belongs to another run", tally.run_id not in ("", state.run_id)
    names = {call.id: call.name for message in state.messages for call in message.tool_calls}
    answered_ids = {message.call_id for message in state.messages if message.role == "tool"}
    for index, record in enumerate(state.records):
        yield f"records[{index}].run_id", "it belongs to another run", record.run_id != tally.run_id
        is_unknown = record.id not in answered_ids or record.id not in names
        yield f"records[{index}].id", "no call with a result has this id", is_unknown
        name = names.get(record.id, "")
        is_renamed = record.name not in (name, name_in_records(name))
        yield f"records[{index}].name", "its call has another name", is_renamed
    yield "turn", "it does not fit the turns of the calls", _is_another_turn(state)
    yield from _count_contradictions(state, names)
    for_run = {FOR_RUN, FOR_RUN_EXACTLY}
    answers = {r.approval_id: r for r in state.records if not for_run.isdisjoint(r.notes)}
    for index, approval in enumerate(tally.approved):
        answer_record = answers.get(approval.id)
        is_unknown = answer_record is None or approval != _approval_in(
            answer_record, approval, tally
        )
        is_unknown = is_unknown or approval.caller != caller.id
        yield f"tally.approved[{index}]", "no record of this run has that answer", is_unknown
    yield (
        "arrived",
        "no call in the background is waiting for that result",
        _has_unexpected_result(state),
    )
    positions = [(mark.turn, mark.at) for mark in state.marks]
    is_beyond = any(mark.turn > state.turn or mark.at > len(state.messages) for mark in state.marks)
    is_wrong = (
        is_beyond
        or positions != sorted(positions)
        or any(min(position) < 0 for position in positions)
    )
    yield "marks", "no turn begins there", is_wrong


def _count_contradictions(state: RunState, names: Mapping[str, str]) -> _Checks:
    """Check the counts of a state against its records, and against each other.

    `names` are the names of its calls.
    """
    tally, inner, called = state.tally, state.tally.inner, state.tally.per_tool
    recorded_ids = {record.id for record in state.records}
    begun = Counter(
        names.get(call_id, "") for call_id in tally.begun if call_id not in recorded_ids
    )
    yield "tally.begun", "no call has that id", "" in begun
    recorded = Counter(record.name for record in state.records) + begun
    is_missing = any(number > recorded[name] for name, number in called.items())
    yield "tally.per_tool", "not all calls that were made have a record", is_missing
    is_wrong = sum(inner.per_tool.values()) != inner.calls
    yield "tally.inner", "it is not the number of the calls that were made", is_wrong
    is_wrong = not math.isclose(inner.cost, sum(inner.cost_per_tool.values()), abs_tol=_TOLERANCE)
    is_wrong = is_wrong or not inner.cost_per_tool.keys() <= inner.per_tool.keys()
    yield "tally.inner", "it is not the cost of the calls that were made", is_wrong
    ended = Counter(record.name for record in state.records if record.status == "completed")
    completed, own_calls = ended + begun, tally.calls - inner.calls
    is_wrong = own_calls != sum(called.values()) or own_calls < completed.total()
    yield "tally.calls", "it is not the number of the calls that were made", is_wrong
    is_wrong = any(called.get(name, 0) < number for name, number in completed.items())
    yield "tally.per_tool", "a tool completed more often than that", is_wrong
    for field, tools in (
        ("cost_per_tool", called.keys()),
        ("seconds_per_tool", called.keys() | inner.per_tool.keys()),  # from the run that was forked
    ):
        is_uncalled = not getattr(tally, field).keys() <= tools
        yield f"tally.{field}", "it names a tool that was not called", is_uncalled
    costs = sum(tally.cost_per_tool.values(), inner.cost)
    is_wrong = not math.isclose(tally.cost, costs, abs_tol=_TOLERANCE)
    yield "tally.cost", "it is not the cost of the calls that were made", is_wrong
    tokens = state.usage.input_tokens + state.usage.output_tokens
    yield "tally.tokens", "it does not fit `usage`", tally.tokens != tokens


def _has_unexpected_result(state: RunState) -> bool:
    """Return whether the later results in a state do not match the calls shown as running.

    A running call with a record must have one, a running call without a record may have one, and
    no other call may.
    """
    running = running_calls(state.messages)
    arrived = {message.call_id for message in state.arrived if message.role == "user"}
    recorded = running & {record.id for record in state.records}
    return len(arrived) < len(state.arrived) or not recorded <= arrived <= running


def _differs(one: object, other: object) -> bool:
    """Return whether two values are different JSON: to Python, 1 equals True."""
    return canonical_json(to_plain(one)) != canonical_json(to_plain(other))


def _approval_in(
    record: ToolInvocationRecord, approval: ToolApproval, tally: RunTally
) -> ToolApproval:
    """Return the approval for the whole run that a record has.

    If the record does not show all arguments that it was about, they are taken from `approval`.
    """
    mac = ""
    if FOR_RUN not in record.notes:
        shows_all = record.arguments_sha256 and not any(
            note.startswith("undeclared:") for note in record.notes
        )
        mac = approval.arguments_mac
        if shows_all:
            mac = tally.mac(canonical_json(record.arguments), record.defaulted)
        mac = mac or "of arguments that no record shows"
    by, digest = record.approved_by or "", record.definition_digest
    return ToolApproval(record.approval_id, by, digest, record.caller, mac)


def _is_another_turn(state: RunState) -> bool:
    """Return whether calls were made in a turn that had not begun, or wait in another turn."""
    turns = [record.origin.turn for record in state.records if record.origin is not None]
    asking_turn = 0 if state.origin is None else state.origin.turn
    is_other = bool(state.pending and asking_turn) and asking_turn != state.turn
    return is_other or state.turn < max((*turns, asking_turn))


_ARGUMENTS = frozenset(("id", "arguments", "arguments_digest"))


def check_as_asked(state: RunState, calls: Sequence[HydrationResult]) -> None:
    """Raise SourceError, naming the field, unless the calls that wait are what `pending` shows.

    If a tool's definition has changed, nothing else can be compared: its call ends as
    `approval_mismatch`, as for any changed tool. Nor can the arguments be compared if the tool's
    own code fails now, or refuses them: its call ends with that error, and nobody has changed
    anything.
    """
    waiting = {call.call.id: call for call in calls}
    for call_id, suspended in state.suspended.items():  # its own questions have been compared
        call, field_path = waiting.pop(call_id, None), f"suspended['{call_id}']"
        if call is None:
            raise changed(field_path, "no call of that id waits")
        if suspended.approval is not None and _differing_fields(suspended.approval[0], call, state):
            raise changed(f"{field_path}.approval", "it is not what the call would run with")
    for index, request in enumerate(state.pending):
        if request.call_in(state.run_id) in state.suspended:
            continue
        call = waiting.pop(request.call_id, None)
        if call is None:
            raise changed(f"pending[{index}].call_id", "no call of that id waits")
        fields = _differing_fields(request, call, state)
        values = call.building.factory_values if isinstance(call, Hydrated) else None
        if values is not None and values.anew and _ARGUMENTS.issuperset(fields):
            continue  # a default factory made another value, and no answer lets the call run
        if fields:
            raise changed(
                f"pending[{index}].{fields[-1]}", "it is not what the call would run with"
            )
    if waiting:
        call = next(iter(waiting.values()))
        raise changed("pending", f"nobody was asked about the call '{call.call.id}'")


def check_answers(state: RunState, answers: Mapping[str, Answer]) -> None:
    """Raise ApprovalError for an answer to a question that the state does not ask."""
    unasked = answers.keys() - {request.id for request in state.pending}
    if unasked:
        problem = f"an answer to {min(map(repr, unasked))}, which this state does not ask about"
        raise ApprovalError(
            f"{problem}: its questions are in `pending`", ErrorCode.UNKNOWN_APPROVAL
        )


def _differing_fields(
    request: ApprovalRequest, call: HydrationResult, state: RunState
) -> list[str]:
    """Return the fields of a question that do not fit its call, derived fields first."""
    is_intact = request.arguments_digest in ("", digest(request.arguments))
    definition = call.definition
    if definition is None or definition.name != request.tool:
        return ["tool"]
    if definition.digest != request.definition_digest:
        is_same = is_intact and (
            not request.arguments_digest or request.id == request_id(request, state.tally)
        )
        return [] if is_same else ["id" if is_intact else "arguments"]
    if not isinstance(call, Hydrated):
        error = call.errors[0]
        is_tool_fault = error.stage is Stage.INSTANTIATE or error.code is ErrorCode.UNUSABLE_TOOL
        return [] if is_tool_fault and is_intact else ["arguments"]
    question = Ask(request.reason)
    expected = approval_request(call, question, caller=state.caller, run=state.tally)
    return differing(request, expected)


def changed(field: str, why: str) -> SourceError:
    return SourceError(f"the saved state was changed: {field}: {why}")


class _StoredRestorer(msgspec.Struct, frozen=True):
    arguments: JsonObject

    def restore(self, arguments: JsonObject) -> JsonObject:
        """Return a copy of the restored arguments, validated once; a tool may change it."""
        return copy.deepcopy(self.arguments)

    def to_view(self, arguments: JsonObject) -> JsonObject:
        return arguments


class _StoredRepair:
    """The repairer of one call that was repaired before."""

    def __init__(self, repaired: RepairedText) -> None:
        self.name = repaired.by
        self._text = repaired.text

    async def __call__(self, _request: RepairRequest) -> str:
        return self._text


class Restored:
    """Keeps, by call id, the arguments that waiting calls were restored or repaired to."""

    def __init__(self, runner: ToolRunner, state: RunState) -> None:
        self._runner = runner
        self._restored: dict[str, JsonObject] = {}
        self._repaired: dict[str, RepairedText] = {}
        self._pinned: dict[str, JsonObject] = {}
        self.take(state)

    def take(self, saved: RunState | ArgumentsStep) -> None:
        """Take over arguments that were restored or repaired elsewhere."""
        self._restored |= saved.restored
        self._repaired |= saved.repaired
        self._pinned |= saved.pinned

    def arguments_of(self, calls: Iterable[ToolCall]) -> ArgumentsStep:
        """Return what is known of the arguments of the calls that still wait."""
        ids = [call.id for call in calls]
        return ArgumentsStep(
            _subset(ids, self._restored), _subset(ids, self._repaired), _subset(ids, self._pinned)
        )

    async def hydrate(self, call: ToolCall, offer: Offer) -> HydrationResult:
        """Hydrate a call; one that was hydrated before gets the same arguments again."""
        if call.id in self._restored:
            restorer = _StoredRestorer(self._restored[call.id])
            offer = msgspec.structs.replace(offer, restorers={call.name: restorer})
        result = await self._hydrate(call, offer)
        provenance = result.provenance
        if isinstance(result, Hydrated) and "restored" in provenance.notes:
            self._restored[call.id] = result.building.sent
        if isinstance(result, Hydrated) and result.building.pinned:
            self._pinned[call.id] = result.building.pinned
        if isinstance(result, Hydrated) and provenance.repaired_arguments is not None:
            self._repaired[call.id] = RepairedText(
                provenance.repaired_arguments, provenance.repaired_by
            )
        return result

    def text(self, call: ToolCall) -> str:
        """Return the arguments as they were validated: a provider can be sent these again."""
        repaired = self._repaired.get(call.id)
        return call.arguments if repaired is None else repaired.text

    async def _hydrate(self, call: ToolCall, offer: Offer) -> HydrationResult:
        repaired, pinned = self._repaired.get(call.id), self._pinned.get(call.id)
        if repaired is None:
            return await self._runner.hydrate(call, offer, pinned=pinned)
        result = hydrate(call, offer, pinned=pinned)
        if not isinstance(result, Rejected):
            del self._repaired[call.id]  # it runs with what was sent, and the history says so
            return result
        return await repair(result, offer, _StoredRepair(repaired), pinned=pinned)


def _subset(ids: Iterable[str], entries: Mapping[str, T]) -> dict[str, T]:
    return {id_: entries[id_] for id_ in ids if id_ in entries}


async def edit_fault(
    runner: ToolRunner, state: RunState, request: ApprovalRequest, answer: Approve
) -> CallError | None:
    """Return why a waiting call could not run with an approver's arguments.

    None if it could, and also if only its run can tell. No tool runs.
    """
    calls = (call for message in state.messages for call in message.tool_calls)
    call = next((call for call in calls if call.id == request.call_id), None)
    if request.run_id != state.run_id or call is None or call.name not in runner.catalog:
        return None
    restored = Restored(runner, state)
    result = await restored.hydrate(call, Offer.of([runner.catalog[call.name]]))
    if not isinstance(result, Hydrated):
        return None
    try:
        answer = cast("Approve", checked_answer(answer))
        approved = approved_call(
            result, answer, runner.catalog, lambda _call, _raised: None, asked=request
        )
    except ApprovalError as error:
        return CallError.of(error.code, str(error))
    except Stopped as stopped:
        return stopped.error
    return rejection(approved) if isinstance(approved, Rejected) else None
