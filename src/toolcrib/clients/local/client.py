"""`LocalClient`: an `LLMClient` that needs no key and no network, and is honest about what it can do.

Rule: it does one thing, a call for the last request. Choosing is nearness (`choose`), the arguments
are the model's (`fill`), and results are stated (`tell`), never retold by the model.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from toolcrib.clients.base import Tools, plan_of, request_of
from toolcrib.clients.local.choose import Chooser
from toolcrib.clients.local.download import is_installed, model_path
from toolcrib.clients.local.fill import SHOTS, fill
from toolcrib.clients.local.model import Model, check_engine, model_at, until_given_up
from toolcrib.clients.local.tell import tell
from toolcrib.closing import Closing
from toolcrib.errors import RequestError, SourceError
from toolcrib.tools import as_tools
from toolcrib.values.call import ToolCall
from toolcrib.values.client import Plan
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.message import (
    ArgumentsPart,
    ChatRequest,
    Message,
    Reply,
    Settings,
    StreamPart,
    TextPart,
    Usage,
)
from toolcrib.values.offer import Offer

_WHO = (
    "I am a small embedded model that can only fill in tool calls; "
    "for a conversation use --model (for example openai:NAME)."
)
NO_FIT = f"None of the tools fits that, so I called none. {_WHO}"
NO_TOOLS = f"There is no tool that I may call. {_WHO}"
NO_REQUEST = f"There is nothing asked. {_WHO}"


class LocalClient(Closing):
    """The embedded model: picks a tool by its examples and fills in the call, within a second or so.

    `path` is a GGUF file, the installed default model if left out. Only the last message counts: if
    it is a user's, the reply has one call or says that no tool fits; if it is a tool's result, the
    reply states the results. `ToolChoice` is kept to. Of `settings`, `temperature` (0 if unset) and
    `extra` go to llama.cpp as they are, and `max_tokens` can only lower the limit of a call.

    One completion runs at a time; clients of one file share one loaded model, which is freed when
    the last of them is closed. Closed, it can be used again. A process made by `fork` needs a client
    of its own, made there. Raises MissingExtraError without the extra "local", SourceError if the
    file is not there.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        settings: Settings = Settings(),  # noqa: B008  frozen
    ) -> None:
        check_engine()
        self.settings = settings
        self._path = _model_file(path)
        self._name = "local" if path is None else f"local:{self._path.stem}"
        self._model: Model | None = None
        self._chooser = Chooser()

    @property
    def model(self) -> str:
        return self._name

    async def chat(self, request: ChatRequest) -> Reply:
        """The whole reply. Raises RequestError, ProviderError; SourceError if the file is no model."""
        reply: Reply = await until_given_up(lambda given_up: self._answer(request, given_up))
        return msgspec.structs.replace(reply, model=self._name, provider="local")

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        """The same in parts; each is there at once, with nothing to wait for in between."""
        reply = await self.chat(request)
        if reply.text:
            yield TextPart(reply.text)
        for call in reply.tool_calls:
            yield ArgumentsPart(call.id, call.name, call.arguments)
        yield reply

    async def tool_call(self, prompt: str | ChatRequest, tools: Tools = ()) -> Plan:
        """What to call, hydrated; nothing is run."""
        request = request_of(prompt, tools)
        return plan_of(await self.chat(request), request)

    async def aclose(self) -> None:
        self._model = None

    def __repr__(self) -> str:
        return f"LocalClient({self._name!r})"

    def _answer(self, request: ChatRequest, given_up: threading.Event) -> Reply:
        """Blocks: for a thread."""
        tools = as_tools(request.tools)
        offer = Offer.of(tools)
        results = _last_results(request.messages)
        if results:
            return _said(tell(results), offer)
        asked = _last_request(request.messages)
        tool = self._chosen(request, asked, offer)
        if tool is None:
            may_call = tools and request.tool_choice.mode != "none"
            return _said((NO_FIT if may_call else NO_TOOLS) if asked else NO_REQUEST, offer)
        return self._called(request, asked, tool, offer=offer, given_up=given_up)

    def _chosen(self, request: ChatRequest, asked: str, offer: Offer) -> ToolDefinition | None:
        choice = request.tool_choice
        if choice.mode == "none":
            return None
        if choice.mode == "tool":
            named = offer.tools.get(choice.name or "")
            if named is None:
                raise RequestError(f"tool_choice names {choice.name!r}, which is not on offer")
            return named.get_definition()
        must = choice.mode == "required"
        if must and not offer.tools:
            raise RequestError("tool_choice 'required' needs tools, and none are on offer")
        if not asked and not must:
            return None
        return self._chooser.choose(asked, tuple(offer.tools.values()), must=must)

    def _called(
        self,
        request: ChatRequest,
        asked: str,
        tool: ToolDefinition,
        *,
        offer: Offer,
        given_up: threading.Event,
    ) -> Reply:
        model = self._model
        if model is None:
            model = self._model = model_at(self._path)
        shots = self._chooser.nearest(asked, tool.examples, SHOTS)
        settings = self._settings_of(request)
        written = fill(model, tool, asked, shots=shots, settings=settings, given_up=given_up)
        call = ToolCall(
            f"{request.id_prefix}0", "", tool.name, written.text.strip(), complete=written.whole
        )
        return Reply(
            Message.assistant("", (call,)),
            "tool_calls" if written.whole else "length",
            Usage(1, written.input_tokens, written.output_tokens),
            offer,
            "stop" if written.whole else "length",
        )

    def _settings_of(self, request: ChatRequest) -> Settings:
        own, asked = self.settings, request.settings
        return Settings(
            own.temperature if asked.temperature is None else asked.temperature,
            own.max_tokens if asked.max_tokens is None else asked.max_tokens,
            {**own.extra, **asked.extra},
        )


def _said(text: str, offer: Offer) -> Reply:
    return Reply(Message.assistant(text), "stop", Usage(1), offer, "stop")


def _last_results(messages: Sequence[Message]) -> list[Message]:
    """The tools' results that the conversation ends with."""
    first = len(messages)
    while first and messages[first - 1].role == "tool":
        first -= 1
    return list(messages[first:])


def _last_request(messages: Sequence[Message]) -> str:
    last = messages[-1] if messages else None
    return last.content.strip() if last is not None and last.role == "user" else ""


def _model_file(path: str | Path | None) -> Path:
    if path is None:
        if not is_installed():
            raise SourceError("the embedded model is not installed: run `toolcrib local install`")
        return model_path()
    given = Path(path).expanduser()
    if not given.is_file():
        raise SourceError(f"there is no model file {given}; give the path of a GGUF file")
    return given
