"""Requests of OpenAI Chat Completions, and the wire's value.

What goes out is what the wire has a place for: no output schema, no error flag, no member that only
says the default.
Shapes: https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson

from toolcrib.errors import RequestError
from toolcrib.values.definition import HasDefinition
from toolcrib.values.message import ChatRequest, FinishReason, Settings, ToolChoice
from toolcrib.values.offer import Offer
from toolcrib.wire.base import HttpRequest, Memo, Wire, as_offered
from toolcrib.wire.forms import OPENAI_CHAT_TOOLS, ToolForm
from toolcrib.wire.openai_chat_decode import make_decoder
from toolcrib.wire.openai_chat_history import History
from toolcrib.wire.views import encoded

_OWN_KEYS = frozenset(("model", "messages", "tools", "stream"))
_ONLY_WITH_TOOLS = frozenset(("parallel_tool_calls", "tool_choice"))


class _Tools(msgspec.Struct, frozen=True):
    """Tools as encoded once, `given` in a `form`; `names` is own name → wire name."""

    given: Sequence[Any]
    form: ToolForm
    names: Mapping[str, str]
    offer: Offer
    body: bytes


def encode(
    wire: Wire, request: ChatRequest, *, model: str, stream: bool, memo: Memo | None
) -> HttpRequest:
    """The request for `wire`. Raises RequestError for a history or settings that cannot be sent."""
    tools = _remembered_tools(wire, request.tools, memo)
    body: dict[str, Any] = {
        "model": model,
        "messages": orjson.Fragment(_messages(wire, request, tools, memo)),
    }
    if request.tools:
        body["tools"] = orjson.Fragment(tools.body)
    choice = _choice(request.tool_choice, tools)
    if choice is not None:
        body["tool_choice"] = choice
    body |= _settings(wire, request.settings, with_tools=bool(request.tools))
    if stream:
        body["stream"] = True
        if wire.stream_usage:
            body.setdefault("stream_options", {"include_usage": True})
    try:
        data = orjson.dumps(body)
    except TypeError as error:
        raise RequestError(f"the settings cannot be sent as JSON: {error}") from None
    headers = {"Content-Type": "application/json", **wire.headers}
    headers["Accept"] = "text/event-stream" if stream else "application/json"
    return HttpRequest("POST", wire.path, headers, data, tools.offer)


def _remembered_tools(wire: Wire, given: Sequence[HasDefinition], memo: Memo | None) -> _Tools:
    if memo is None:
        return _encoded(wire, given)
    known = memo.tools if isinstance(memo.tools, _Tools) else None
    if known is not None and known.form is not wire.tools:
        known = memo.history = None  # of another wire
    if known is None or known.given is not given:
        known = memo.tools = _encoded(wire, given)
    return known


def _encoded(wire: Wire, given: Sequence[HasDefinition]) -> _Tools:
    tools = [as_offered(tool) for tool in given]
    definitions = [tool.get_definition() for tool in tools]
    made = encoded(wire.tools, definitions)
    own_names = {wire_name: own for own, wire_name in made.names.items() if own != wire_name}
    offer = Offer.of(tools, own_names=own_names, ways_back=made.ways_back)
    return _Tools(given, wire.tools, made.names, offer, made.body)


def _messages(wire: Wire, request: ChatRequest, tools: _Tools, memo: Memo | None) -> bytes:
    history = memo.history if memo is not None else None
    if not isinstance(history, History) or not history.begins(request.messages, tools.names):
        history = History(wire.tools.names, tools.names)
    if memo is not None:
        memo.history = None
    history.extend(request.messages)
    if memo is not None:
        memo.history = history
    return history.encoded()


def _choice(choice: ToolChoice, tools: _Tools) -> Any:
    """The wire's form of a choice; None where nothing need be said."""
    if choice.mode == "auto" or (choice.mode == "none" and not tools.names):
        return None
    if not tools.names:
        raise RequestError(f"tool_choice {choice.mode!r} needs tools, and none are on offer")
    if choice.mode != "tool":
        return choice.mode
    name = tools.names.get(choice.name or "")
    if name is None:
        raise RequestError(f"tool_choice names {choice.name!r}, which is not on offer")
    return {"type": "function", "function": {"name": name}}


def _settings(wire: Wire, settings: Settings, *, with_tools: bool) -> dict[str, Any]:
    members: dict[str, Any] = {}
    if settings.temperature is not None:
        members["temperature"] = settings.temperature
    if settings.max_tokens is not None:
        members[wire.max_tokens_key] = settings.max_tokens
    for key, value in settings.extra.items():
        if key in _OWN_KEYS:
            raise RequestError(f"Settings.extra may not set {key!r}: the request says that itself")
        if with_tools or key not in _ONLY_WITH_TOOLS:
            members[key] = value
    return members


_FINISH_REASONS: dict[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
    "error": "error",
    "network_error": "error",
    "malformed_function_call": "error",
    "abort": "incomplete",
    "insufficient_system_resource": "incomplete",
}


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


OPENAI_CHAT = Wire(
    name="openai-chat",
    path="/chat/completions",
    encode=encode,
    tools=OPENAI_CHAT_TOOLS,
    make_decoder=make_decoder,
    auth=_bearer,
    finish_reasons=_FINISH_REASONS,
)
