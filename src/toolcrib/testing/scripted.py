"""A model that says what a test wrote down, without a server.

What it offers is what the request offers, so that hydration and the loop behave as with a real one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec
import orjson
from pydantic_core import PydanticSerializationError, to_json

from toolcrib.clients import plan_of, request_of
from toolcrib.clients.base import Tools
from toolcrib.closing import Closing
from toolcrib.errors import ToolcribError
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
from toolcrib.values.typed import Checked, names_wrong_types

# What a scripted model says: the notation that the scripted client and the loopback servers share.
#
# A turn is a text, a call, a list of texts and calls, a `Reply`, an exception, or a function that makes
# one of those from the request.


class ScriptedCall(Checked, msgspec.Struct, frozen=True):
    """A call that the scripted model makes; `arguments` is the text that it sends."""

    name: str
    arguments: str


Said: TypeAlias = str | ScriptedCall | Sequence[str | ScriptedCall]
"""What can be said in any form: text, calls, or both in order."""


class Spoken(msgspec.Struct, frozen=True):
    """A turn in its plain parts."""

    text: str
    calls: tuple[ScriptedCall, ...]


@names_wrong_types
def call(name: str, /, **arguments: Any) -> ScriptedCall:
    """Return a call of the tool `name`, with these arguments. Raises TypeError for what is no JSON."""
    try:
        return ScriptedCall(name, to_json(arguments, inf_nan_mode="null").decode())
    except PydanticSerializationError as error:
        raise TypeError(f"the arguments of call({name!r}, …) are no JSON: {error}") from None


@names_wrong_types
def raw_call(name: str, arguments: str) -> ScriptedCall:
    """Return a call whose arguments are this text, valid or not."""
    return ScriptedCall(name, arguments)


def in_one_line(arguments: str) -> orjson.Fragment:
    """Arguments as part of a body whose lines count: JSON has no line break but as white space."""
    return orjson.Fragment(arguments.replace("\r", " ").replace("\n", " "))


def spoken(turn: Said | Reply) -> Spoken:
    """Return the text and the calls of a turn. Raises TypeError for what is no turn."""
    if isinstance(turn, Reply):
        calls = tuple(ScriptedCall(c.name, c.arguments) for c in turn.tool_calls)
        return Spoken(turn.text, calls)
    parts = [turn] if isinstance(turn, str | ScriptedCall) else turn
    if not isinstance(parts, Sequence):
        raise TypeError(f"{type(turn).__name__} is no turn: use text, call(…) or a list of them")
    for part in parts:
        if not isinstance(part, str | ScriptedCall):
            raise TypeError(f"{type(part).__name__} is no part of a turn: use text or call(…)")
    return Spoken(
        "".join(part for part in parts if isinstance(part, str)),
        tuple(part for part in parts if isinstance(part, ScriptedCall)),
    )


Turn: TypeAlias = Said | Reply | Exception | Callable[[ChatRequest], Said | Reply | Exception]

_PIECE = 7


class ScriptedClient(Closing):
    """An `LLMClient` that gives `turns`, one a request, and keeps what it was asked in `requests`.

    An exception as a turn is raised. Raises ToolcribError when the script is used up.
    """

    @names_wrong_types
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
        """Yield text and arguments in small pieces, then the reply."""
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
        prefix = request.new_prefix()
        calls = tuple(
            ToolCall(f"{prefix}{at}", made.name, made.arguments)
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
