"""Requests of Anthropic's Messages, and the wire's value.

What goes out is what the wire has a place for: system messages beside the list of the others, errors
flagged, no output schema, no member that only says the default.
Shapes: https://platform.claude.com/docs/en/api/messages/create
"""

from __future__ import annotations

from typing import Any

import orjson

from toolcrib.values.message import ChatRequest, FinishReason, ToolChoice
from toolcrib.wire.anthropic.history import AnthropicHistory
from toolcrib.wire.anthropic.reply import AnthropicReply
from toolcrib.wire.base import HttpRequest, Memo, Wire
from toolcrib.wire.decoding import decoding_by
from toolcrib.wire.forms import ANTHROPIC_TOOLS
from toolcrib.wire.history import dumps
from toolcrib.wire.output import ANTHROPIC_OUTPUT, asked_output
from toolcrib.wire.request import (
    SentTools,
    checked_choice,
    extra_members,
    http_request,
    narrowed,
    remembered_history,
    remembered_tools,
    sampling,
    tools_member,
)

_OWN_KEYS = frozenset(("model", "messages", "system", "tools", "stream"))
_ONLY_WITH_TOOLS = frozenset(("tool_choice",))
_ANY = {"type": "object"}
_MODES = {"auto": "auto", "none": "none", "required": "any", "tool": "tool"}


def encode(
    wire: Wire, request: ChatRequest, *, model: str, stream: bool, memo: Memo | None
) -> HttpRequest:
    """The request for `wire`. Raises RequestError for a history or settings that cannot be sent.

    A choice among some tools has no form here: the others are not sent with that request, which
    costs its cache, and the model cannot call them. Where calls were made and no tool is on offer any
    more, the tools that were called are named all the same, and may not be called: "Requests which
    include `tool_use` or `tool_result` blocks must define tools".
    """
    tools = remembered_tools(wire, request.tools, memo)
    history = remembered_history(wire, request, tools, memo)
    choice = checked_choice(request.tool_choice, tools)
    if choice is not None and choice.allowed:
        tools, choice = _narrowed(wire, request, tools, choice)
    body: dict[str, Any] = {"model": model}
    if history.instructions:
        body["system"] = orjson.Fragment(dumps(_system(history.instructions)))
    body["messages"] = orjson.Fragment(history.encoded())
    if (listed := tools_member(tools, request)) is not None:
        body["tools"] = listed
        if tools.names and (said := _choice(choice, request.parallel_calls)):
            body["tool_choice"] = said
    elif history.called:
        body["tools"] = [{"name": name, "input_schema": _ANY} for name in history.called]
        body["tool_choice"] = {"type": "none"}
    body |= _settings(wire, request, tools)
    offer = asked_output(wire.output, request, body, model=model, offer=tools.offer)
    if stream:
        body["stream"] = True
    return http_request(wire, wire.path, body, stream=stream, offer=offer)


def _system(instructions: list[str]) -> str | list[dict[str, str]]:
    if len(instructions) == 1:
        return instructions[0]
    return [{"type": "text", "text": text} for text in instructions]


def _narrowed(
    wire: Wire, request: ChatRequest, tools: SentTools, choice: ToolChoice
) -> tuple[SentTools, ToolChoice]:
    """The tools and the choice that say which are allowed; as they are where there is no need."""
    own = frozenset(request.tool_choice.allowed)
    if choice.mode not in ("auto", "required") or own == tools.names.keys():
        return tools, choice
    if choice.mode == "required" and len(own) == 1:
        return tools, ToolChoice("tool", choice.allowed[0])
    return narrowed(wire, tools, own), choice


def _choice(choice: ToolChoice | None, parallel: bool | None) -> dict[str, Any]:
    """Empty where nothing need be said: without one the choice is `auto`, with any number of calls."""
    mode = "auto" if choice is None else choice.mode
    form: dict[str, Any] = {"type": _MODES[mode]}
    if choice is not None and mode == "tool":
        form["name"] = choice.name
    if parallel is False and mode != "none":
        form["disable_parallel_tool_use"] = True
    return form if form != {"type": "auto"} else {}


def _settings(wire: Wire, request: ChatRequest, tools: SentTools) -> dict[str, Any]:
    """Thinking counts among the tokens of a reply: the default leaves room beside its budget."""
    unwanted = frozenset() if tools.names else _ONLY_WITH_TOOLS
    extra = extra_members(request.settings.extra, own=_OWN_KEYS, unwanted=unwanted)
    thinking = extra.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    most = wire.default_max_tokens + (budget if isinstance(budget, int) else 0)
    return {wire.max_tokens_key: most} | sampling(wire, request) | extra


_FINISH_REASONS: dict[str, FinishReason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    # The provider's own loop stopped at its limit, or to make room: whoever wants the rest sends the
    # message back and asks again.
    "pause_turn": "length",
    "compaction": "length",
    "refusal": "refusal",
    # What servers that imitate this wire have been seen to say.
    "length": "length",
    "content_filter": "content_filter",
    "content_filtered": "content_filter",
    "guardrail_intervened": "content_filter",
    "sensitive": "content_filter",
    "error": "error",
    "malformed_tool_use": "error",
    "malformed_model_output": "error",
    "abort": "incomplete",
    "cancelled": "incomplete",
    "incomplete": "incomplete",
}


def _key(key: str) -> dict[str, str]:
    return {"x-api-key": key}


ANTHROPIC = Wire(
    name="anthropic",
    path="/v1/messages",
    encode=encode,
    tools=ANTHROPIC_TOOLS,
    make_decoder=decoding_by(AnthropicReply),
    auth=_key,
    natural_reasons=frozenset(("tool_use", "end_turn", "stop_sequence")),
    finish_reasons=_FINISH_REASONS,
    history=AnthropicHistory,
    headers={"anthropic-version": "2023-06-01"},
    default_max_tokens=8192,
    output=ANTHROPIC_OUTPUT,
)
