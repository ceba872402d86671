"""What a run keeps: its messages and its conversation.

Rule: every call has its own id and at most one result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import dropwhile
from types import MappingProxyType
from typing import assert_never

import msgspec
import orjson

from toolcrib.errors import ErrorCode, SourceError
from toolcrib.hydration import ParseFailure, parse_arguments
from toolcrib.values.call import ToolCall
from toolcrib.values.content import Part
from toolcrib.values.json import JsonObject, JsonValue, digest, encodable, to_plain
from toolcrib.values.message import Message, Reply
from toolcrib.values.record import (
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
from toolcrib.values.run import RunState, saved_run

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
