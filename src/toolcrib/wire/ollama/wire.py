"""Requests of Ollama's chat, and the wire's value.

The server keeps of a tool what its model's template shows, and has no say in whether one is called.
Shapes: https://docs.ollama.com/api/chat
"""

from __future__ import annotations

from typing import Any

import orjson

from toolcrib.errors import RequestError
from toolcrib.values.message import ChatRequest, FinishReason, ToolChoice
from toolcrib.wire.base import HttpRequest, Memo, Wire
from toolcrib.wire.decoding import decoding_by
from toolcrib.wire.forms import OLLAMA_TOOLS
from toolcrib.wire.lines import LineStream
from toolcrib.wire.ollama.history import OllamaHistory
from toolcrib.wire.ollama.reply import OllamaReply
from toolcrib.wire.output import OLLAMA_OUTPUT, asked_output
from toolcrib.wire.request import (
    SentTools,
    bearer,
    checked_choice,
    extra_members,
    http_request,
    narrowed,
    refuse_single_calls,
    remembered_history,
    remembered_tools,
    sampling,
    tools_member,
    with_extra,
)

_OWN_KEYS = frozenset(("model", "messages", "tools", "stream"))


def encode(
    wire: Wire, request: ChatRequest, *, model: str, stream: bool, memo: Memo | None
) -> HttpRequest:
    """The request for `wire`. Raises RequestError for a history or settings that cannot be sent.

    There is no `tool_choice`: tools that may not be called are not sent with that request, and one
    that insists on a call, or on no more than one, is refused here.
    """
    tools = remembered_tools(wire, request.tools, memo)
    history = remembered_history(wire, request, tools, memo)
    tools = _callable(wire, request, tools)
    body: dict[str, Any] = {"model": model, "messages": orjson.Fragment(history.encoded())}
    if (listed := tools_member(tools, request)) is not None:
        body["tools"] = listed
    body |= _settings(wire, request)
    offer = asked_output(wire.output, request, body, model=model, offer=tools.offer)
    body["stream"] = stream  # left out, it is true
    return http_request(
        wire, wire.path, body, stream=stream, offer=offer, streamed_as="application/x-ndjson"
    )


def _callable(wire: Wire, request: ChatRequest, tools: SentTools) -> SentTools:
    """The tools that the choice leaves. Raises RequestError for a choice that cannot be kept to."""
    choice = checked_choice(request.tool_choice, tools) or ToolChoice()
    if choice.mode in ("required", "tool"):
        raise RequestError(
            f"tool_choice {choice.mode!r}: Ollama cannot be told to call a tool; "
            "leave it `auto` and ask for the call in the prompt"
        )
    refuse_single_calls(wire, request, tools)
    if choice.mode == "none":
        return narrowed(wire, tools, ())
    return narrowed(wire, tools, request.tool_choice.allowed) if choice.allowed else tools


def _settings(wire: Wire, request: ChatRequest) -> dict[str, Any]:
    """What concerns the model goes into `options`, with those of `extra`, which come first."""
    members = extra_members(request.settings.extra, own=_OWN_KEYS)
    options = with_extra(sampling(wire, request), "options", members)
    return members | ({"options": options} if options else {})


_FINISH_REASONS: dict[str, FinishReason] = {
    "length": "length",
    "content_filter": "content_filter",
    "error": "error",
}


OLLAMA = Wire(
    name="ollama",
    path="/api/chat",
    encode=encode,
    tools=OLLAMA_TOOLS,
    make_decoder=decoding_by(OllamaReply, LineStream, bodies=False),
    auth=bearer,  # none on one's own machine; ollama.com wants one
    natural_reasons=frozenset(("stop",)),
    finish_reasons=_FINISH_REASONS,
    history=OllamaHistory,
    max_tokens_key="num_predict",
    output=OLLAMA_OUTPUT,
)
