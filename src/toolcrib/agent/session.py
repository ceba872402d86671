"""A conversation: each `send` is a run that knows what was said before.

Rule: a call that was made stays in the conversation with its one result, however its run ended. A model
that is told "try again" must see what it has done already, or it does it twice. A run that failed, or
was cancelled, before it called anything leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from toolcrib.agent.history import History
from toolcrib.agent.results import error_content
from toolcrib.agent.stream import RunStream
from toolcrib.errors import ErrorCode, SourceError, ToolcribError
from toolcrib.values.decision import ANONYMOUS, Caller
from toolcrib.values.event import Done, Event
from toolcrib.values.json import canonical_json
from toolcrib.values.message import Message
from toolcrib.values.record import CallError
from toolcrib.values.run import RunResult, check_signature
from toolcrib.values.typed import came, check_each, check_type

if TYPE_CHECKING:  # an agent makes its sessions
    from toolcrib.agent.agent import Agent


_SHORTEST_KEY = 16
_KEPT = ("completed", "limited", "waiting")
_WAITS = CallError.of(
    ErrorCode.APPROVAL_REQUIRED, "The call waits for somebody's approval. It has not run."
)
_WAITING_TEXT = error_content(_WAITS)


class _Saved(msgspec.Struct, frozen=True):
    messages: tuple[Message, ...]
    offered: tuple[str, ...] = ()
    signature: str = ""


class Session:
    """Keeps the messages of a conversation with an agent. One `send` or `stream` at a time.

    `offered` names the tools that its runs have offered, where the agent picks them.
    """

    def __init__(
        self, agent: Agent, messages: tuple[Message, ...] = (), offered: tuple[str, ...] = ()
    ) -> None:
        if not callable(getattr(agent, "start", None)):
            raise TypeError(f"agent is an Agent; {came(agent)}")
        self.agent = agent
        self.messages = check_each("messages", messages, Message, "a list of Message")
        self.offered = check_each("offered", offered, str, "a list of names")
        self._busy = False

    async def send(self, text: str, *, caller: Caller = ANONYMOUS) -> RunResult:
        """One run; its messages become the history. Raises ToolcribError while another runs.

        Raises what `Agent.run` does; what ran before that stays in the conversation.
        """
        self._begin()
        ended: list[RunResult] = []

        def heard(event: Event) -> None:
            if isinstance(event, Done):
                ended.append(event.result)

        try:
            return await self.agent.start(
                text, heard, history=self.messages, caller=caller, offered=self.offered
            )
        finally:
            self._end(ended[0] if ended else None)

    def stream(self, text: str, *, caller: Caller = ANONYMOUS) -> RunStream:
        """`send`, with its events; the session is busy until the run has ended, read or not."""
        self._begin()
        try:
            stream = self.agent.stream(
                text, history=self.messages, caller=caller, offered=self.offered
            )
        except BaseException:
            self._end(None)
            raise
        stream.when_ended(self._end)
        return stream

    def keep(self, result: RunResult) -> None:
        """Take a run into the conversation: one that was resumed; `send` and `stream` see to their own.

        Where the conversation went on while the run waited, the run is put where it began. What the
        conversation has already is not taken again. Raises ToolcribError for a run that is none of this
        conversation: what was said, and called, would be lost.
        """
        check_type("result", result, RunResult, "a RunResult: what agent.resume(…) gives")
        messages = _settled(result)
        if _is_older(messages, self.messages):
            return
        at, own = _waiting_turn(self.messages, messages)
        if _goes_on(self.messages, messages):
            self.messages = messages
        elif at is None:
            raise ToolcribError(
                "the result is of another conversation: it does not go on with this one"
            )
        else:
            self.messages = (*self.messages[:at], *messages[own:], *_after_turn(self.messages, at))
        if self.agent.pick is not None:
            self.offered = result.state.offered or self.offered

    def _begin(self) -> None:
        if self._busy:
            raise ToolcribError("this session is busy: await the send, or the stream, before")
        self._busy = True

    def _end(self, result: RunResult | None) -> None:
        """Keep the run, unless it failed, or was cancelled, before it called anything."""
        self._busy = False
        if result is None:
            return
        called = len(_call_ids(result.messages)) > len(_call_ids(self.messages))
        if called or result.status in _KEPT:
            self.keep(result)

    def to_json(self) -> str:
        """Its messages as a list, or an object with what was offered where the agent picks."""
        signature = self._signature()
        if not (self.offered or signature):
            return msgspec.json.encode(self.messages).decode()
        return msgspec.json.encode(_Saved(self.messages, self.offered, signature)).decode()

    @classmethod
    def from_json(cls, agent: Agent, text: str | bytes) -> Session:
        """Raises SourceError if the text is not a saved session, or not as an agent with the same
        `state_key` has saved it."""
        check_type("text", text, (str, bytes), "the JSON of a saved session, str or bytes")
        try:
            saved = msgspec.json.decode(text, type=_Saved | tuple[Message, ...])
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise SourceError(f"not a saved session: {error}") from None
        if not isinstance(saved, _Saved):
            saved = _Saved(saved)
        session = cls(agent, saved.messages, saved.offered)
        made = session._signature()
        if made:
            check_signature(saved.signature, made, "the saved session")
        return session

    def _signature(self) -> str:
        saved = msgspec.json.decode(msgspec.json.encode((self.messages, self.offered)))
        return self.agent.session_signature(canonical_json(saved))


def checked_key(key: bytes | None) -> bytes | None:
    """A key for signing. Raises ToolcribError for what is none."""
    if key is not None and (not isinstance(key, bytes) or len(key) < _SHORTEST_KEY):
        raise ToolcribError(f"state_key is at least {_SHORTEST_KEY} random bytes: os.urandom(32)")
    return key


def _settled(result: RunResult) -> tuple[Message, ...]:
    """The messages of a run; a call that waits has a result that says so, until `keep` replaces it."""
    if result.status != "waiting":
        return result.messages
    history = History(result.messages, lambda call: call.arguments)
    history.settle({}, _WAITS)
    return history.messages


def _call_ids(messages: Iterable[Message]) -> list[str]:
    return [call.id for message in messages for call in message.tool_calls]


def _is_older(messages: tuple[Message, ...], known: tuple[Message, ...]) -> bool:
    """Whether a conversation has all of these already, and knows how their calls ended."""
    waits = {m.call_id for m in messages if m.role == "tool" and m.content == _WAITING_TEXT}
    ended = {m.call_id for m in known if m.role == "tool" and m.content != _WAITING_TEXT}
    longer = len(known) > len(messages) or bool(waits & ended)
    return longer and _goes_on(messages, known)


def _goes_on(known: tuple[Message, ...], messages: tuple[Message, ...]) -> bool:
    """Whether `messages` begin with those that are known, whatever the results are by now."""
    old, new = ([_place(m) for m in each if m.role != "system"] for each in (known, messages))
    return new[: len(old)] == old


def _place(message: Message) -> tuple[str, ...]:
    """What a message is known by in its conversation."""
    if message.role == "tool":
        return "tool", message.call_id or ""
    return message.role, message.content, *_call_ids([message])


def _waiting_turn(
    known: tuple[Message, ...], messages: tuple[Message, ...]
) -> tuple[int | None, int]:
    """Where the turn that waits stands in `known`, and where in `messages`; None if there is none."""
    calls = set(_call_ids(messages))
    waits = {m.call_id for m in known if m.role == "tool" and m.content == _WAITING_TEXT} & calls
    for at, message in enumerate(known):
        ids = {call.id for call in message.tool_calls}
        if ids & waits:
            return at, next(n for n, m in enumerate(messages) if ids & set(_call_ids([m])))
    return None, 0


def _after_turn(messages: tuple[Message, ...], at: int) -> tuple[Message, ...]:
    """What follows the results of the calls of the message at `at`."""
    end = at + 1
    while end < len(messages) and messages[end].role == "tool":
        end += 1
    return messages[end:]
