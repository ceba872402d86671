"""The messages of a run, kept such that every call has an id of its own and at most one result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from toolcrib.agent.results import readable_call, result_message
from toolcrib.values.call import ToolCall
from toolcrib.values.message import Message, Reply
from toolcrib.values.record import CallError, Outcome, Waiting


class History:
    """Messages in order; the last assistant's message and what follows it is the turn at hand.

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
        """What the assistant said last, if nothing came after it."""
        last = self._messages[-1] if self._messages else None
        return last.content if last is not None and last.role == "assistant" else ""

    def append(self, message: Message, *, untrusted: bool = False) -> None:
        """`untrusted` says that the run has read untrusted content."""
        if untrusted:
            message = msgspec.structs.replace(message, untrusted=True)
        self._messages.append(message)
        self._ids.update(call.id for call in message.tool_calls)

    def with_new_ids(self, reply: Reply, prefix: str) -> Reply:
        """A client may repeat an id; here each call has its own, or results would be mixed up."""
        calls = reply.tool_calls
        if not calls or len({c.id for c in calls} - self._ids) == len(calls):
            return reply
        renamed = tuple(
            msgspec.structs.replace(call, id=f"{prefix}{at}") for at, call in enumerate(calls)
        )
        message = msgspec.structs.replace(reply.message, tool_calls=renamed)
        return msgspec.structs.replace(reply, message=message)

    def unanswered(self) -> list[ToolCall]:
        """The calls of this turn that have no result yet."""
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
        """The results that there are, in call order; `error` for the calls that have none.

        `untrusted` says that the run has read untrusted content.
        """
        position = self._last_assistant()
        asked = self._messages[position]
        given = {message.call_id: message for message in self._messages[position + 1 :]}
        results: list[Message] = []
        calls = tuple(self._readable(call, outcomes.get(call.id)) for call in asked.tool_calls)
        for call in calls:
            message = given.get(call.id) or result_message(call, outcomes.get(call.id), error)
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
        """Where the assistant's message is that this turn is about, or -1."""
        position = len(self._messages) - 1
        while position >= 0 and self._messages[position].role == "tool":
            position -= 1
        return position if position >= 0 and self._messages[position].role == "assistant" else -1
