"""Requests of OpenAI Chat Completions, and the wire's value.

What goes out is what the wire has a place for: no output schema, no error flag, no member that only
says the default.
Shapes: https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

from typing import Any

import orjson

from toolcrib.values.message import ChatRequest, FinishReason, ToolChoice
from toolcrib.wire.base import HttpRequest, Memo, Wire
from toolcrib.wire.decoding import decoding_by
from toolcrib.wire.forms import OPENAI_CHAT_TOOLS
from toolcrib.wire.openai_chat.history import ChatHistory
from toolcrib.wire.openai_chat.reply import ChatReply
from toolcrib.wire.output import OPENAI_CHAT_OUTPUT, asked_output
from toolcrib.wire.reasons import GEMINI_FILTERED
from toolcrib.wire.request import (
    bearer,
    checked_choice,
    http_request,
    narrowed,
    remembered_history,
    remembered_tools,
    settings_members,
    tools_member,
)

_OWN_KEYS = frozenset(("model", "messages", "tools", "stream"))
_ONLY_WITH_TOOLS = frozenset(("parallel_tool_calls", "tool_choice"))


def encode(
    wire: Wire, request: ChatRequest, *, model: str, stream: bool, memo: Memo | None
) -> HttpRequest:
    """The request for `wire`. Raises RequestError for a history or settings that cannot be sent."""
    tools = remembered_tools(wire, request.tools, memo)
    history = remembered_history(wire, request, tools, memo)
    choice = checked_choice(request.tool_choice, tools)
    if choice is not None and choice.allowed and not wire.allowed_tools:
        tools = narrowed(wire, tools, request.tool_choice.allowed)
        choice = checked_choice(ToolChoice(choice.mode, request.tool_choice.name), tools)
    body: dict[str, Any] = {"model": model, "messages": orjson.Fragment(history.encoded())}
    if (listed := tools_member(tools, request)) is not None:
        body["tools"] = listed
    if request.tools and request.parallel_calls is not None:
        body["parallel_tool_calls"] = request.parallel_calls
    if choice is not None:
        body["tool_choice"] = _choice(wire, choice)
    body |= settings_members(wire, request, tools, own=_OWN_KEYS, only_with_tools=_ONLY_WITH_TOOLS)
    offer = asked_output(wire.output, request, body, model=model, offer=tools.offer)
    if stream:
        body["stream"] = True
        if wire.stream_usage:
            body.setdefault("stream_options", {"include_usage": True})
    return http_request(wire, wire.path, body, stream=stream, offer=offer)


def _choice(wire: Wire, choice: ToolChoice) -> Any:
    if choice.mode == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    if choice.mode == "none" or not choice.allowed:
        return wire.required_choice if choice.mode == "required" else choice.mode
    tools = [{"type": "function", "function": {"name": name}} for name in choice.allowed]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": tools}}


_NATURAL = frozenset(
    (
        "stop",
        "tool_calls",
        "tool_call",
        "function_call",
        "tool_use",
        "end_turn",
        "stop_sequence",
        "eos",
        "eos_token",
        "complete",
        "completed",
    )
)
"""Those of OpenAI, of compatible servers, and of the models behind gateways."""
_FINISH_REASONS: dict[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "max_completion_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "token_limit": "length",
    "content_filter": "content_filter",
    "content_filtered": "content_filter",
    "guardrail_intervened": "content_filter",
    "sensitive": "content_filter",
    "refusal": "refusal",
    "error": "error",
    "failed": "error",
    "network_error": "error",
    "function_call_filter": "error",
    "malformed_function_call": "error",
    "malformed_tool_use": "error",
    "malformed_model_output": "error",
    "abort": "incomplete",
    "cancelled": "incomplete",
    "incomplete": "incomplete",
    "insufficient_system_resource": "incomplete",
    "repetition": "incomplete",
    "time_limit": "incomplete",
    "timeout": "incomplete",
    **GEMINI_FILTERED,
}
"""Those of compatible servers, and of the models behind gateways, that are no natural end."""


OPENAI_CHAT = Wire(
    name="openai-chat",
    path="/chat/completions",
    encode=encode,
    tools=OPENAI_CHAT_TOOLS,
    make_decoder=decoding_by(ChatReply),
    auth=bearer,
    natural_reasons=_NATURAL,
    finish_reasons=_FINISH_REASONS,
    history=ChatHistory,
    done_servers=frozenset(
        (
            "api.openai.com",
            "openrouter.ai",
            "openai.azure.com",
            "cognitiveservices.azure.com",
            "services.ai.azure.com",
            "api.mistral.ai",
        )
    ),
    state_per_server=True,  # Groq, for one: "property 'reasoning_content' is unsupported"
    output=OPENAI_CHAT_OUTPUT,
)
