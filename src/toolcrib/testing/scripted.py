"""A model that says what a test wrote down, without a server.

What it offers is what the request offers, so that hydration and the loop behave as with a real one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeAlias

import msgspec

from toolcrib.clients import plan_of, request_of
from toolcrib.clients.base import Tools
from toolcrib.closing import Closing
from toolcrib.errors import ToolcribError
from toolcrib.testing.script import Said, spoken
from toolcrib.values.call import ToolCall
from toolcrib.values.client import Plan
from toolcrib.values.message import (
    ArgumentsPart,
    ChatRequest,
    Message,
    Reply,
    StreamPart,
    TextPart,
    Usage,
)
from toolcrib.values.offer import Offer

Turn: TypeAlias = Said | Reply | Exception | Callable[[ChatRequest], Said | Reply | Exception]

_PIECE = 7


class ScriptedClient(Closing):
    """An `LLMClient` that gives `turns`, one a request, and keeps what it was asked in `requests`.

    An exception as a turn is raised. Raises ToolcribError when the script is used up.
    """

    def __init__(self, turns: Iterable[Turn], *, model: str = "scripted") -> None:
        self.requests: list[ChatRequest] = []
        self._turns = list(turns)
        self._model = model

    @property
    def model(self) -> str:
        return self._model

    @property
    def remaining(self) -> int:
        """How many turns nobody has asked for yet."""
        return len(self._turns) - len(self.requests)

    async def chat(self, request: ChatRequest) -> Reply:
        return self._reply(request)

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        """Text and arguments in small pieces, then the reply."""
        reply = self._reply(request)
        for piece in _pieces(reply.text):
            yield TextPart(piece)
        for made in reply.tool_calls:
            for piece in _pieces(made.arguments):
                yield ArgumentsPart(made.id, made.name, piece)
        yield reply

    async def tool_call(self, prompt: str | ChatRequest, tools: Tools = ()) -> Plan:
        request = request_of(prompt, tools)
        return plan_of(await self.chat(request), request)

    def _reply(self, request: ChatRequest) -> Reply:
        if self.remaining <= 0:
            raise ToolcribError(
                f"the script is used up: it has {len(self._turns)} turns, and this is the request "
                f"after them; its last message: {_last(request)}"
            )
        turn = self._turns[len(self.requests)]
        self.requests.append(request)
        return self._replied(turn(request) if callable(turn) else turn, request)

    def _replied(self, turn: Said | Reply | Exception, request: ChatRequest) -> Reply:
        if isinstance(turn, Exception):
            raise turn
        offer = Offer.of(request.tools)
        if isinstance(turn, Reply):
            return turn if turn.offer.tools else msgspec.structs.replace(turn, offer=offer)
        said = spoken(turn)
        calls = tuple(
            ToolCall(f"{request.id_prefix}{at}", "", made.name, made.arguments)
            for at, made in enumerate(said.calls)
        )
        message = Message.assistant(said.text, calls)
        return Reply(message, "tool_calls" if calls else "stop", Usage(1), offer)


def _pieces(text: str) -> Iterable[str]:
    return (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))


def _last(request: ChatRequest) -> str:
    if not request.messages:
        return "none"
    last = request.messages[-1]
    return f"{last.role}, {len(last.content)} characters"
