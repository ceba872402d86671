"""The messages of a run, kept such that every call has an id of its own and at most one result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, assert_never

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
    ToolInvocationRecord,
    Waiting,
)
from toolcrib.values.run import RunResult

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
        """Give each call a new id where a client repeats one, or results would be mixed up."""
        calls = reply.tool_calls
        if not calls or len({c.id for c in calls} - self._ids) == len(calls):
            return reply
        renamed = tuple(
            msgspec.structs.replace(call, id=f"{prefix}{at}") for at, call in enumerate(calls)
        )
        message = msgspec.structs.replace(reply.message, tool_calls=renamed)
        return msgspec.structs.replace(reply, message=message)

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


# A run that is put into a conversation, which may have gone on meanwhile.
#
# Rule: nothing that either of them has is lost, and each call keeps the result that says what it did.
# A result stands, unless its call had not begun then (it waited, or was cancelled before), or this run
# has begun it and so knows better: a later no to a call that has run does not say what happened.

_WAITS = CallError.of(
    ErrorCode.APPROVAL_REQUIRED, "The call waits for somebody's approval. It has not run."
)
_UNTOLD = tuple(error_content(each) for each in (_WAITS, CallError.of(ErrorCode.CANCELLED)))


class _SaidTurn(NamedTuple):
    """Holds what was said, the results of its calls, and the system messages right before it."""

    said: Message
    results: dict[str, Message]
    before: tuple[Message, ...]

    @property
    def place(self) -> tuple[str, ...]:
        """Return what the turn is known by in its conversation."""
        ids = [call.id for call in self.said.tool_calls]
        said = self.said
        return ("calls", *ids) if ids else (said.role, said.content, said.call_id or "")

    @property
    def messages(self) -> list[Message]:
        return [*self.before, self.said, *self.results.values()]


def settled(result: RunResult) -> tuple[Message, ...]:
    """Return the messages of a run; a call that waits has a result that says so."""
    if result.status != "waiting":
        return result.messages
    history = ConversationHistory(result.messages, lambda call: call.arguments)
    history.settle({}, _WAITS)
    return history.messages


def call_ids(messages: Iterable[Message]) -> set[str]:
    """Return the ids of all calls that were made."""
    return {call.id for message in messages for call in message.tool_calls}


def told(messages: Iterable[Message]) -> set[tuple[str | None, str]]:
    """Return the calls that are over, or may be, each with what its result says."""
    return {(m.call_id, m.content) for m in messages if m.role == "tool" and not _is_untold(m)}


def _is_untold(result: Message) -> bool:
    """Return whether a result says that its call has not begun, and may still run."""
    return result.is_error and result.content in _UNTOLD


def put_in(
    known: tuple[Message, ...],
    run: tuple[Message, ...],
    records: Iterable[ToolInvocationRecord],
    *,
    own: bool = False,
) -> tuple[Message, ...] | None:
    """Return a conversation with a run in it: behind what the two have in common, and what the
    conversation has of that turn already. None for a run that is none of this conversation, unless it
    is said to be its `own`.

    A run that parts from the conversation belongs to it if a call of its `records` is in both.
    """
    (old, old_end), (new, new_end) = _turns(known), _turns(run)
    pairs = _pairs(old, new)
    same, after = len(pairs), pairs[-1] + 1 if pairs else 0
    records = tuple(records)
    shared = call_ids(turn.said for turn in new[:same])
    parted = same < len(new) and after < len(old)
    if parted and not own and shared.isdisjoint(record.id for record in records):
        return None
    begun = {record.id for record in records if record.idempotency_key}
    calls = {
        call.id: (call, turn.results.get(call.id)) for turn in new for call in turn.said.tool_calls
    }
    said = dict(zip(pairs, new, strict=False))
    told_by_now = [
        _as_told(
            _SaidTurn(said[at].said, turn.results, said[at].before) if at in said else turn,
            turn.said,
            calls,
            begun,
        )
        for at, turn in enumerate(old)
    ]
    common, rest = told_by_now[:after], told_by_now[after:]
    at = next((at for at, turn in enumerate(rest) if turn.said.role == "user"), len(rest))
    added = _without(new[same:], call_ids(turn.said for turn in old))
    turns = [*common, *rest[:at], *added, *rest[at:]]
    end = old_end if rest else new_end
    return (*(message for turn in turns for message in turn.messages), *end)


def _pairs(old: Sequence[_SaidTurn], new: Sequence[_SaidTurn]) -> list[int]:
    """Return where the turns of a run are in its conversation, up to the first that is not there.

    Other runs that waited, and went on meanwhile, have put turns of theirs before what the user said
    next: those are skipped.
    """
    found: list[int] = []
    at = 0
    for turn in new:
        while at < len(old) and old[at].place != turn.place and old[at].said.role != "user":
            at += 1
        if at == len(old) or old[at].place != turn.place:
            break
        found.append(at)
        at += 1
    return found


def _turns(messages: Iterable[Message]) -> tuple[list[_SaidTurn], list[Message]]:
    """Return the turns of a conversation, and the system messages behind the last of them."""
    turns: list[_SaidTurn] = []
    before: list[Message] = []
    open_calls: set[str | None] = set()
    for message in messages:
        if message.role == "system":
            before.append(message)
        elif message.role == "tool" and message.call_id in open_calls and not before:
            open_calls.discard(message.call_id)
            turns[-1].results[message.call_id or ""] = message
        else:
            turns.append(_SaidTurn(message, {}, tuple(before)))
            before, open_calls = [], {call.id for call in message.tool_calls}
    return turns, before


def _as_told(
    turn: _SaidTurn,
    known: Message,
    run: Mapping[str, tuple[ToolCall, Message | None]],
    begun: set[str],
) -> _SaidTurn:
    """Return a turn of the conversation, each call with the result that stands and its arguments.

    `known` is what the conversation has in place of what was said; `run` has the calls of the run.
    """
    calls: list[ToolCall] = []
    results: dict[str, Message] = {}
    for was in known.tool_calls:
        call, after = run.get(was.id, (was, None))
        before = turn.results.get(was.id)
        stands = before is not None and not _is_untold(before)
        keeps = after is None or (stands and was.id not in begun)
        result = before if keeps else after
        calls.append(was if keeps and before is not None else call)
        if result is not None:
            results[was.id] = _marked(result, before, after)
    said = known if calls and tuple(calls) == known.tool_calls else turn.said
    said = msgspec.structs.replace(said, content=known.content, tool_calls=tuple(calls))
    return _SaidTurn(_marked(said, known, turn.said), results, turn.before)


def _marked(message: Message, *each: Message | None) -> Message:
    """Return the message, untrusted if it is so anywhere."""
    if message.untrusted or not any(other and other.untrusted for other in each):
        return message
    return msgspec.structs.replace(message, untrusted=True)


def _without(turns: Sequence[_SaidTurn], ids: set[str]) -> list[_SaidTurn]:
    """Leave out calls that the conversation has in another turn: a call has one result."""
    left: list[_SaidTurn] = []
    for turn in turns:
        calls = tuple(call for call in turn.said.tool_calls if call.id not in ids)
        if len(calls) == len(turn.said.tool_calls):
            left.append(turn)
        elif calls or turn.said.content:
            said = msgspec.structs.replace(turn.said, tool_calls=calls, provider_state=None)
            results = {id_: told for id_, told in turn.results.items() if id_ not in ids}
            left.append(_SaidTurn(said, results, turn.before))
    return left
