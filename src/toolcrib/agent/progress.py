"""Whether a run makes progress: calls that tell its model nothing new, and tools that only fail.

Rule: a call repeats another one of the run if it is the same (tool and arguments) and its result
was the same. Calls that poll for a change are not repetitions, nor are alternating calls of which
one says something new. All of this is read from the messages, so that a run resumed elsewhere knows
it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from toolcrib.agent.history import is_handle
from toolcrib.values.call import ToolCall
from toolcrib.values.message import Message
from toolcrib.values.run import Limits, RunState

_Asked: TypeAlias = tuple[str, str]  # the tool, and the arguments as JSON text


class MadeCalls:
    """Reads the calls of one run, as they are answered."""

    def __init__(self, limits: Limits, state: RunState, answer: str = "") -> None:
        self._limits = limits
        self._answer = answer  # a call of this tool is not a call of the run
        self._at = _first_own(state)
        self._open: dict[str, _Asked] = {}
        self._made: set[_Asked] = set()
        self._told: set[int] = set()
        self._repeated = 0
        self._failed: dict[str, int] = {}

    def limit(self, messages: Sequence[Message], calls: Sequence[ToolCall]) -> str | None:
        """Return the limit of the run that keeps these calls from being made.

        They are the last in `messages` and have no results yet.
        """
        self._read(messages)
        repeated, failures = self._limits.repeated_calls, self._limits.tool_errors
        is_stuck = repeated is not None and self._repeated >= repeated
        if is_stuck and all((call.name, call.arguments) in self._made for call in calls):
            return "repeated_calls"
        if failures is not None and any(self._failed.get(c.name, 0) >= failures for c in calls):
            return "tool_errors"
        return None

    def _read(self, messages: Sequence[Message]) -> None:
        for message in messages[self._at :]:
            for call in message.tool_calls:
                if call.name != self._answer:
                    self._open[call.id] = (call.name, call.arguments)
            if is_handle(message):
                continue  # it is answered later
            asked = self._open.pop(message.call_id or "", None)
            if asked is not None:
                self._answered(asked, message)
        self._at = len(messages)

    def _answered(self, asked: _Asked, result: Message) -> None:
        told = hash((asked, result.result_text, result.parts))
        self._repeated = self._repeated + 1 if told in self._told else 0
        self._told.add(told)
        self._made.add(asked)
        self._failed[asked[0]] = self._failed.get(asked[0], 0) + 1 if result.is_error else 0


def _first_own(state: RunState) -> int:
    """Return where the messages of the run itself begin, after those of its conversation."""
    own = {record.id for record in state.records}
    for at, message in enumerate(state.messages):
        if any(call.id in own for call in message.tool_calls):
            return at
    return len(state.messages)
