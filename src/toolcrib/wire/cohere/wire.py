"""Requests of Cohere's chat, version 2, and the wire's value.

A choice of one tool, or among some, has no form here: the others are not sent with that request.
Members that it does not know, Cohere refuses. Shapes: https://docs.cohere.com/v2/reference/chat
"""

from __future__ import annotations

from typing import Any

import orjson

from toolcrib.values.message import ChatRequest, FinishReason
from toolcrib.wire.base import HttpRequest, Memo, Wire
from toolcrib.wire.cohere.history import CohereHistory
from toolcrib.wire.cohere.reply import CohereReply
from toolcrib.wire.decoding import decoding_by
from toolcrib.wire.forms import COHERE_TOOLS
from toolcrib.wire.output import COHERE_OUTPUT_FORM, asked_output
from toolcrib.wire.request import (
    SentTools,
    bearer,
    checked_choice,
    http_request,
    narrowed,
    refuse_single_calls,
    remembered_history,
    remembered_tools,
    settings_members,
    tools_member,
)

_OWN_KEYS = frozenset(("model", "messages", "tools", "stream"))
_ONLY_WITH_TOOLS = frozenset(("tool_choice", "strict_tools"))


def encode(
    wire: Wire, request: ChatRequest, *, model: str, stream: bool, memo: Memo | None
) -> HttpRequest:
    """The request for `wire`. Raises RequestError for a history or settings that cannot be sent.

    Strictness is the whole request's: `Settings.extra={"strict_tools": True}`.
    """
    tools = remembered_tools(wire, request.tools, memo)
    history = remembered_history(wire, request, tools, memo)
    tools, choice = _choice(wire, request, tools)
    body: dict[str, Any] = {"model": model, "messages": orjson.Fragment(history.encoded())}
    if (listed := tools_member(tools, request)) is not None:
        body["tools"] = listed
    if choice is not None:
        body["tool_choice"] = choice
    body |= settings_members(wire, request, tools, own=_OWN_KEYS, only_with_tools=_ONLY_WITH_TOOLS)
    offer = asked_output(wire.output, request, body, model=model, offer=tools.offer)
    if stream:
        body["stream"] = True
    return http_request(wire, wire.path, body, stream=stream, offer=offer)


def _choice(wire: Wire, request: ChatRequest, tools: SentTools) -> tuple[SentTools, str | None]:
    """The tools that the choice leaves, and the word for it; there is none for `auto`."""
    refuse_single_calls(wire, request, tools)
    choice = request.tool_choice
    if checked_choice(choice, tools) is None:
        return tools, None
    if choice.mode == "none":
        return tools, "NONE"
    left = (choice.name,) if choice.mode == "tool" and choice.name else choice.allowed
    tools = narrowed(wire, tools, left) if left else tools
    return tools, None if choice.mode == "auto" else wire.required_choice


_FINISH_REASONS: dict[str, FinishReason] = {
    "max_tokens": "length",
    "error": "error",
    "timeout": "error",
    # What the service said before version 2, and what hosts of its models still say.
    "error_limit": "length",
    "error_toxic": "content_filter",
    "user_cancel": "incomplete",
}


COHERE = Wire(
    name="cohere",
    path="/chat",
    encode=encode,
    tools=COHERE_TOOLS,
    make_decoder=decoding_by(CohereReply),
    auth=bearer,
    natural_reasons=frozenset(("tool_call", "complete", "stop_sequence")),
    finish_reasons=_FINISH_REASONS,
    history=CohereHistory,
    required_choice="REQUIRED",
    output=COHERE_OUTPUT_FORM,
)
