"""Shows a recorded run, turn by turn, from its saved state alone, without model or tools.

Rule: calls and results are shown only as records hold them, which is what everybody may see. Texts
of people and of the model are shown in full.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import ClassVar

import msgspec

from toolcrib.agent.history import error_in_result
from toolcrib.values.call import name_in_records
from toolcrib.values.content import as_texts
from toolcrib.values.json import Redacted
from toolcrib.values.message import Message, Usage
from toolcrib.values.record import ToolInvocationRecord
from toolcrib.values.run import RunState, TurnMark


class UnrecordedCall(msgspec.Struct, frozen=True):
    """A call without a record of its end.

    It waits, was not made, or was for the answer. `code` is what its model read, or `answer`. A
    name that a model made up shows only if it looks like a name.
    """

    id: str
    name: str
    code: str = "waiting"


class ReplayedTurn(Redacted, msgspec.Struct, frozen=True):
    """Holds one turn of a run.

    That is what the user or the loop said `before` it, the model's `text`, and the outcomes of its
    calls. `seconds` and `usage` are for the turn with its calls, None if the state does not say.
    """

    redacted: ClassVar[tuple[str, ...]] = ("before", "text")

    turn: int
    before: tuple[str, ...]
    text: str
    calls: tuple[ToolInvocationRecord, ...] = ()
    unrecorded: tuple[UnrecordedCall, ...] = ()
    seconds: float | None = None
    usage: Usage | None = None


def replayed(state: RunState) -> tuple[ReplayedTurn, ...]:
    """Return the turns of a run that have a reply, in order.

    A state of an earlier version does not say where turns began: they are shown from the first call
    on, without seconds and tokens.
    """
    has_marks, messages = bool(state.marks), state.messages
    # a failed turn was repeated: its last mark counts
    by_position = {mark.at: mark for mark in state.marks or _derived_marks(state)}
    marks = [
        m
        for at, m in by_position.items()
        if at < len(messages) and messages[at].role == "assistant"
    ]
    begin = marks[0].at if marks else len(messages)
    while begin and messages[begin - 1].by_user:
        begin -= 1
    end = TurnMark(state.turn + 1, len(messages), state.usage, state.elapsed)
    turns: list[ReplayedTurn] = []
    for mark, next_mark in pairwise([*marks, end]):
        calls, unrecorded = _calls(state, messages[mark.at : next_mark.at])
        turn = ReplayedTurn(
            turn=mark.turn,
            before=tuple(_user_text(m) for m in messages[begin : mark.at] if m.by_user),
            text=messages[mark.at].content,
            calls=calls,
            unrecorded=unrecorded,
            seconds=max(0.0, next_mark.elapsed - mark.elapsed) if has_marks else None,
            usage=next_mark.usage.beyond(mark.usage) if has_marks else None,
        )
        turns.append(turn)
        begin = mark.at
    return tuple(turns)


def _user_text(message: Message) -> str:
    """Return what a user has said, in order: all texts, and mentions of images and files."""
    images, parts = as_texts(message.images), as_texts(message.parts)
    return "\n\n".join(filter(None, (*images, message.content, *parts)))


def _calls(
    state: RunState, messages: Sequence[Message]
) -> tuple[tuple[ToolInvocationRecord, ...], tuple[UnrecordedCall, ...]]:
    records = {record.id: record for record in state.records}
    recorded: list[ToolInvocationRecord] = []
    others: list[UnrecordedCall] = []
    for call in messages[0].tool_calls:
        if call.id in records:
            recorded.append(records[call.id])
            continue
        is_answer = any(m.call_id == call.id and not m.is_error for m in messages)
        code, _ = error_in_result(messages, call.id) or ("answer" if is_answer else "waiting", "")
        others.append(UnrecordedCall(call.id, name_in_records(call.name), code))
    return tuple(recorded), tuple(others)


def _derived_marks(state: RunState) -> Iterator[TurnMark]:
    """Yield where turns began, as far as the records and messages of a run show it."""
    records = {record.id: record for record in state.records}
    turn = 0
    for at, message in enumerate(state.messages):
        if message.role != "assistant":
            continue
        origins = [records[c.id].origin for c in message.tool_calls if c.id in records]
        turns = [origin.turn for origin in origins if origin is not None]
        is_last = at == len(state.messages) - 1
        if turns or turn or is_last:
            turn = turns[0] if turns else turn + 1
            yield TurnMark(turn, at)
