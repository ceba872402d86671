"""A conversation: each `send` is a run that knows what was said before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from toolcrib.agent.stream import RunStream
from toolcrib.errors import SourceError, ToolcribError
from toolcrib.values.decision import ANONYMOUS, Caller
from toolcrib.values.message import Message
from toolcrib.values.run import RunResult

if TYPE_CHECKING:  # an agent makes its sessions
    from toolcrib.agent.agent import Agent


_KEPT = ("completed", "limited")


class _Saved(msgspec.Struct, frozen=True):
    messages: tuple[Message, ...]
    offered: tuple[str, ...] = ()


class Session:
    """Keeps the messages of a conversation with an agent. One `send` or `stream` at a time.

    `offered` names the tools that its runs have offered, where the agent picks them.
    """

    def __init__(
        self, agent: Agent, messages: tuple[Message, ...] = (), offered: tuple[str, ...] = ()
    ) -> None:
        self.agent = agent
        self.messages = messages
        self.offered = offered
        self._busy = False

    async def send(self, text: str, *, caller: Caller = ANONYMOUS) -> RunResult:
        """One run; its messages become the history. Raises ToolcribError while another runs."""
        self._begin()
        result = None
        try:
            result = await self.agent.run(
                text, history=self.messages, caller=caller, offered=self.offered
            )
        finally:
            self._end(result)
        return result

    def stream(self, text: str, *, caller: Caller = ANONYMOUS) -> RunStream:
        """`send`, with its events; the session is busy until the run has ended, read or not.

        One that failed or was cancelled is left out of the history, unless it is handed to `keep`.
        """
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
        """Take a run into the history; one that waits for an approval is left out.

        For a run that was resumed; `send` and `stream` see to their own.
        """
        if result.status != "waiting":
            self.messages = result.messages
            if self.agent.pick is not None:
                self.offered = result.state.offered or self.offered

    def _begin(self) -> None:
        if self._busy:
            raise ToolcribError("this session is busy: await the send, or the stream, before")
        self._busy = True

    def _end(self, result: RunResult | None) -> None:
        self._busy = False
        if result is not None and result.status in _KEPT:
            self.keep(result)

    def to_json(self) -> str:
        """Its messages as a list, or an object with what was offered where the agent picks."""
        saved = _Saved(self.messages, self.offered) if self.offered else self.messages
        return msgspec.json.encode(saved).decode()

    @classmethod
    def from_json(cls, agent: Agent, text: str | bytes) -> Session:
        """Raises SourceError if the text is not a saved session."""
        try:
            saved = msgspec.json.decode(text, type=_Saved | tuple[Message, ...])
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise SourceError(f"not a saved session: {error}") from None
        if isinstance(saved, _Saved):
            return cls(agent, saved.messages, saved.offered)
        return cls(agent, saved)
