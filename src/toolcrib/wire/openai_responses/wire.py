"""Requests of OpenAI Responses, and the wire's value.

Nothing depends on what the server remembers: the whole conversation goes out with each request, and
`store` is false unless `Settings.extra` says otherwise.
Shapes: https://platform.openai.com/docs/api-reference/responses/create
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from toolcrib.values.message import ChatRequest, FinishReason, ToolChoice
from toolcrib.wire.base import HttpRequest, Memo, Wire
from toolcrib.wire.decoding import decoding_by
from toolcrib.wire.forms import OPENAI_RESPONSES_TOOLS
from toolcrib.wire.openai_responses.history import ResponsesHistory
from toolcrib.wire.openai_responses.reply import ResponsesReply
from toolcrib.wire.output import OPENAI_RESPONSES_OUTPUT, asked_output
from toolcrib.wire.request import (
    bearer,
    checked_choice,
    http_request,
    remembered_history,
    remembered_tools,
    settings_members,
    tools_member,
)

_OWN_KEYS = frozenset(("model", "input", "tools", "stream"))
_ONLY_WITH_TOOLS = frozenset(("parallel_tool_calls", "tool_choice"))

_REASONS = re.compile(r"(?:openai[/.])?(?:o\d|gpt-(?!5-chat)(?:[5-9]|\d\d)|codex-)")
"""OpenAI's models that reason. Others refuse to be asked for it: "Encrypted content is not supported
with this model"."""


def encode(
    wire: Wire, request: ChatRequest, *, model: str, stream: bool, memo: Memo | None
) -> HttpRequest:
    """The request for `wire`. Raises RequestError for a history or settings that cannot be sent."""
    tools = remembered_tools(wire, request.tools, memo)
    history = remembered_history(wire, request, tools, memo)
    body: dict[str, Any] = {"model": model, "input": orjson.Fragment(history.encoded())}
    if (listed := tools_member(tools, request)) is not None:
        body["tools"] = listed
    if request.tools and request.parallel_calls is not None:
        body["parallel_tool_calls"] = request.parallel_calls
    choice = checked_choice(request.tool_choice, tools)
    if choice is not None:
        body["tool_choice"] = _choice(choice)
    body |= settings_members(wire, request, tools, own=_OWN_KEYS, only_with_tools=_ONLY_WITH_TOOLS)
    if body.setdefault("store", False) is False and _REASONS.match(model):
        body.setdefault("include", ["reasoning.encrypted_content"])
    offer = asked_output(wire.output, request, body, model=model, offer=tools.offer)
    if stream:
        body["stream"] = True
    return http_request(wire, wire.path, body, stream=stream, offer=offer)


def _choice(choice: ToolChoice) -> Any:
    if choice.mode == "tool":
        return {"type": "function", "name": choice.name}
    if choice.mode == "none" or not choice.allowed:
        return choice.mode
    tools = [{"type": "function", "name": name} for name in choice.allowed]
    return {"type": "allowed_tools", "mode": choice.mode, "tools": tools}


_FINISH_REASONS: dict[str, FinishReason] = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "length": "length",
    "max_prompt_tokens": "length",
    "content_filter": "content_filter",
    "incomplete": "incomplete",
    "cancelled": "incomplete",
    "queued": "incomplete",
    "in_progress": "incomplete",
}
"""The reasons of a response that is `incomplete`, and the statuses that say how any other ended."""


OPENAI_RESPONSES = Wire(
    name="openai-responses",
    path="/responses",
    encode=encode,
    tools=OPENAI_RESPONSES_TOOLS,
    make_decoder=decoding_by(ResponsesReply),
    auth=bearer,
    natural_reasons=frozenset(("completed",)),
    finish_reasons=_FINISH_REASONS,
    history=ResponsesHistory,
    max_tokens_key="max_output_tokens",
    output=OPENAI_RESPONSES_OUTPUT,
)
