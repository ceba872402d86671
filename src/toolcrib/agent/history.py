"""The messages of a run, kept such that every call has an id of its own and at most one result."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import assert_never

import msgspec
import orjson

from toolcrib.errors import ErrorCode
from toolcrib.hydration import ParseFailure, parse_arguments
from toolcrib.values.call import ToolCall
from toolcrib.values.json import JsonObject, JsonValue, encodable
from toolcrib.values.message import Message, Reply
from toolcrib.values.record import (
    CallError,
    Completed,
    Failed,
    Outcome,
    Waiting,
)

# What the model reads of its calls: results and errors as the content of tool messages.

_MALFORMED = (ErrorCode.INVALID_JSON, ErrorCode.TOO_LARGE, ErrorCode.TRUNCATED)
_UNREAD = (ErrorCode.UNKNOWN_TOOL, ErrorCode.NOT_OFFERED)


def content_of(view: JsonValue) -> str:
    """Return the text itself, everything else as JSON."""
    if isinstance(view, str):
        return view
    try:
        return orjson.dumps(view).decode()
    except TypeError:  # an integer beyond 64 bits
        return msgspec.json.encode(view).decode()


def error_content(error: CallError) -> str:
    """Code, message and the places: enough to correct a call, and nothing of what was sent."""
    body: JsonObject = {"code": str(error.code), "message": error.message}
    if len(error.details) > 1 or any(detail.path for detail in error.details):
        body["details"] = [{"path": d.path, "message": d.message} for d in error.details]
    return orjson.dumps({"error": body}).decode()


def readable_call(call: ToolCall, outcome: Outcome | None) -> ToolCall:
    """Return the call as history keeps it: arguments that are no JSON are
    not sent back to a provider."""
    code = outcome.error.code if isinstance(outcome, Failed) else None
    malformed = code in _MALFORMED or (
        code in _UNREAD and isinstance(parse_arguments(call.arguments), ParseFailure)
    )
    if malformed or not call.complete:
        call = msgspec.structs.replace(call, arguments="{}", complete=True, fault=None)
    return _encodable(call) if code in _UNREAD else call


def _encodable(call: ToolCall) -> ToolCall:
    """Replace lone surrogates, which no file or provider can hold, in a name that a model made up."""
    return msgspec.structs.replace(call, name=encodable(call.name))


def result_message(
    call: ToolCall, outcome: Outcome | None, error: CallError | None
) -> Message | None:
    """Return the message that answers a call, or None while it waits."""
    match outcome:
        case Completed():
            return Message.tool(call, _with(outcome.notice, content_of(outcome.model)))
        case Failed():
            content = _with(outcome.notice, error_content(_known(outcome)))
            return Message.tool(call, content, is_error=True)
        case Waiting() | None:
            return Message.tool(call, error_content(error), is_error=True) if error else None
        case _:
            assert_never(outcome)


def _known(failed: Failed) -> CallError:
    """Return the error; of a call that was cancelled when it had begun, that nobody knows what
    it did: a model that reads `cancelled` would make it once more."""
    begun = failed.record.idempotency_key != ""
    if failed.error.code is not ErrorCode.CANCELLED or not begun:
        return failed.error
    return CallError.of(
        ErrorCode.CANCELLED, "The call was cancelled while it ran: what it did is not known."
    )


def _with(notice: str, content: str) -> str:
    """Return what the model has to know first; then what it asked for."""
    return f"{notice}\n\n{content}" if notice else content


class ConversationHistory:
    """Messages in order; the last assistant's message and what follows it is the current turn.

    `text_of` gives the arguments of a call as they were judged, which may be repaired ones.
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

    @property
    def text(self) -> str:
        """The text of the last message, if it is the assistant's."""
        last = self._messages[-1] if self._messages else None
        return last.content if last is not None and last.role == "assistant" else ""

    def append(self, message: Message, *, untrusted: bool = False) -> None:
        """`untrusted` says that the run has read untrusted content."""
        if untrusted:
            message = msgspec.structs.replace(message, untrusted=True)
        self._messages.append(message)
        self._ids.update(call.id for call in message.tool_calls)

    def with_new_ids(self, reply: Reply, prefix: str) -> Reply:
        """Give a call a new id where a client repeats one, or results would be mixed up."""
        calls = reply.tool_calls
        if not calls or len({c.id for c in calls} - self._ids) == len(calls):
            return reply
        taken: set[str] = set()
        renamed = []
        for call in calls:
            call_id = self.free_id(call.id, prefix, taken)
            taken.add(call_id)
            renamed.append(msgspec.structs.replace(call, id=call_id))
        message = msgspec.structs.replace(reply.message, tool_calls=tuple(renamed))
        return msgspec.structs.replace(reply, message=message)

    def free_id(self, call_id: str, prefix: str, taken: Collection[str] = ()) -> str:
        """Return the id of a call, behind `prefix` where another call of the conversation has it."""
        while call_id in self._ids or call_id in taken:
            call_id = prefix + (call_id or "call")
        return call_id

    def unanswered(self) -> list[ToolCall]:
        """Return the calls of this turn that have no result yet."""
        position = self._last_assistant()
        if position < 0:
            return []
        answered = {message.call_id for message in self._messages[position + 1 :]}
        return [c for c in self._messages[position].tool_calls if c.id not in answered]

    def settle(
        self,
        outcomes: Mapping[str, Outcome],
        error: CallError | None = None,
        *,
        untrusted: bool = False,
    ) -> None:
        """Add the results that there are, in call order, and `error` for the calls that have none.

        A call that waited when its run ended has not begun, whatever `error` says of the others.
        `untrusted` says that the run has read untrusted content.
        """
        position = self._last_assistant()
        asked = self._messages[position]
        given = {message.call_id: message for message in self._messages[position + 1 :]}
        results: list[Message] = []
        calls = tuple(self._readable(call, outcomes.get(call.id)) for call in asked.tool_calls)
        for call in calls:
            outcome = outcomes.get(call.id)
            unknown = error is not None and error.code is ErrorCode.OUTCOME_UNKNOWN
            waited = unknown and isinstance(outcome, Waiting)
            told = CallError.of(ErrorCode.CANCELLED) if waited else error
            message = given.get(call.id) or result_message(call, outcome, told)
            if message is not None and untrusted:
                message = msgspec.structs.replace(message, untrusted=True)
            results += [] if message is None else [message]
        self._messages[position:] = [msgspec.structs.replace(asked, tool_calls=calls), *results]

    def _readable(self, call: ToolCall, outcome: Outcome | None) -> ToolCall:
        """While a call waits it stays as it was sent: it will be judged again."""
        if outcome is not None and not isinstance(outcome, Waiting):
            call = msgspec.structs.replace(call, arguments=self._text_of(call))
        return readable_call(call, outcome)

    def _last_assistant(self) -> int:
        """Return where the assistant's message is that this turn is about, or -1."""
        position = len(self._messages) - 1
        while position >= 0 and self._messages[position].role == "tool":
            position -= 1
        return position if position >= 0 and self._messages[position].role == "assistant" else -1


# A conversation: the turns of its runs, in the order in which they began.
#
# Rule: what a run says, from its prompt on, is one turn. A run that goes on extends its own turn and
# no other, so the turn is replaced whole, by one that says all that it said before, and more. What does
# not is refused: an older state of the run, or a run that parted from it.

_WAITS = CallError.of(
    ErrorCode.APPROVAL_REQUIRED, "The call waits for somebody's approval. It has not run."
)
_UNTOLD = tuple(error_content(each) for each in (_WAITS, CallError.of(ErrorCode.CANCELLED)))


class RunTurn(msgspec.Struct, frozen=True):
    """Holds what one run said; `before` is how many messages its own history has ahead of that.

    `run_id` is empty for messages that no run is known of. `over` says that the run was completed.
    """

    run_id: str = ""
    before: int = 0
    messages: tuple[Message, ...] = ()
    over: bool = False

    def replaced(self, messages: tuple[Message, ...], *, over: bool = False) -> RunTurn:
        """Return the turn as a run's whole history has it."""
        said = settled(messages)[self.before :]
        return msgspec.structs.replace(self, messages=said, over=over)

    def extends(self, other: RunTurn) -> bool:
        """Return whether this turn says all that the other one does."""
        said, before = _said(self.messages), _said(other.messages)
        return said[: len(before)] == before and told(other.messages) <= told(self.messages)

    def tells_more(self, other: RunTurn) -> bool:
        """Return whether this turn has a call, or a result, that the other one has not."""
        more = call_ids(self.messages) - call_ids(other.messages)
        return bool(more or told(self.messages) - told(other.messages))


def split_system(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Return the system messages at the beginning, which no run has said, and the rest."""
    at = next((at for at, m in enumerate(messages) if m.role != "system"), len(messages))
    return messages[:at], messages[at:]


def settled(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return what was said in a run; a call that waits has a result that says so."""
    history = ConversationHistory(split_system(messages)[1], lambda call: call.arguments)
    if history.unanswered():
        history.settle({}, _WAITS)
    return history.messages


def joined(turns: Iterable[RunTurn]) -> tuple[Message, ...]:
    """Return the messages of all turns. An id that an earlier turn has, too, is replaced: runs that go
    on side by side know nothing of each other's calls, and some servers count theirs."""
    known: set[str] = set()
    messages: list[Message] = []
    for turn in turns:
        ids = [call.id for message in turn.messages for call in message.tool_calls]
        free = (f"{turn.run_id or 'call'}_{number}" for number in itertools.count())
        new = {id_: _other(free, known.union(ids)) for id_ in ids if id_ in known}
        known.update(ids, new.values())
        messages += (_with_ids(m, new) for m in turn.messages) if new else turn.messages
    return tuple(messages)


def call_ids(messages: Iterable[Message]) -> set[str]:
    """Return the ids of all calls that were made."""
    return {call.id for message in messages for call in message.tool_calls}


def told(messages: Iterable[Message]) -> set[tuple[str | None, str]]:
    """Return the calls that are over, or may be, each with what its result says."""
    return {(m.call_id, m.content) for m in messages if m.role == "tool" and not _is_untold(m)}


def _is_untold(result: Message) -> bool:
    """Return whether a result says that its call has not begun, and may still run."""
    return result.is_error and result.content in _UNTOLD


def _said(messages: Iterable[Message]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return what was said and called, without the results."""
    said = (message for message in messages if message.role != "tool")
    return [(m.role, m.content, tuple(call.id for call in m.tool_calls)) for m in said]


def _other(free: Iterator[str], known: set[str]) -> str:
    return next(id_ for id_ in free if id_ not in known)


def _with_ids(message: Message, new: Mapping[str, str]) -> Message:
    """Return the message with other ids of its calls; what a provider wants back has the old ones."""
    replace = msgspec.structs.replace
    if not new.keys().isdisjoint(call.id for call in message.tool_calls):
        calls = tuple(replace(call, id=new.get(call.id, call.id)) for call in message.tool_calls)
        return replace(message, tool_calls=calls, provider_state=None)
    return replace(message, call_id=new.get(message.call_id or "", message.call_id))
