"""Requests of Gemini's generateContent, and the wire's value.

What goes out is what the wire has a place for: the model and whether to stream are said in the path,
system messages beside the list of the others, settings in `generationConfig`.
Shapes: https://ai.google.dev/api/generate-content
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import orjson

from toolcrib.errors import RequestError
from toolcrib.values.message import ChatRequest, FinishReason, ToolChoice
from toolcrib.wire.base import HttpRequest, Memo, Wire
from toolcrib.wire.decoding import decoding_by
from toolcrib.wire.forms import GEMINI_TOOLS
from toolcrib.wire.gemini.history import GeminiHistory
from toolcrib.wire.gemini.reply import GeminiReply
from toolcrib.wire.history import dumps
from toolcrib.wire.output import GEMINI_OUTPUT, asked_output
from toolcrib.wire.reasons import GEMINI_FILTERED
from toolcrib.wire.request import (
    checked_choice,
    extra_members,
    http_request,
    refuse_single_calls,
    remembered_history,
    remembered_tools,
    sampling,
    tools_member,
    with_extra,
)

_OWN_KEYS = frozenset(("model", "contents", "systemInstruction", "tools"))
_MODES = {"auto": "VALIDATED", "none": "NONE", "required": "ANY", "tool": "ANY"}
"""AUTO takes no names; VALIDATED is the same choice with them, and arguments held to the schema."""


def encode(
    wire: Wire, request: ChatRequest, *, model: str, stream: bool, memo: Memo | None
) -> HttpRequest:
    """The request for `wire`. Raises RequestError for a history or settings that cannot be sent.

    Gemini has no way to ask for one call at a time, so `parallel_calls=False` is refused.
    """
    tools = remembered_tools(wire, request.tools, memo)
    history = remembered_history(wire, request, tools, memo)
    body: dict[str, Any] = {}
    if history.instructions:
        parts = [{"text": text} for text in history.instructions]
        body["systemInstruction"] = orjson.Fragment(dumps({"parts": parts}))
    body["contents"] = orjson.Fragment(history.encoded())
    if (listed := tools_member(tools, request)) is not None:
        body["tools"] = listed
    refuse_single_calls(wire, request, tools)
    extra = extra_members(request.settings.extra, own=_OWN_KEYS)
    choice = checked_choice(request.tool_choice, tools)
    config = {} if choice is None else {"functionCallingConfig": _choice(choice)}
    for key, own in (("toolConfig", config), ("generationConfig", sampling(wire, request))):
        if member := with_extra(own, key, extra):
            body[key] = member
    path = _path(wire, model, stream=stream)
    body |= extra
    offer = asked_output(wire.output, request, body, model=model, offer=tools.offer)
    return http_request(wire, path, body, stream=stream, offer=offer)


def _path(wire: Wire, model: str, *, stream: bool) -> str:
    """A model with a slash is the name of a resource (`tunedModels/…`), others are below `models/`."""
    name = model if "/" in model else f"models/{model}"
    if any(step in ("", ".", "..") for step in name.split("/")):
        raise RequestError(f"{model!r} names no model of Gemini's")
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return f"{wire.path}/{quote(name, safe='/@')}:{method}"


def _choice(choice: ToolChoice) -> dict[str, Any]:
    form: dict[str, Any] = {"mode": _MODES[choice.mode]}
    names = (choice.name,) if choice.mode == "tool" else choice.allowed
    if names and choice.mode != "none":
        form["allowedFunctionNames"] = list(names)
    return form


_FINISH_REASONS: dict[str, FinishReason] = {
    "max_tokens": "length",
    **GEMINI_FILTERED,
    # The call is whole, but of a tool that was not declared: hydration says so to the model.
    "unexpected_tool_call": "tool_calls",
    "malformed_function_call": "error",
    "malformed_response": "error",
    "too_many_tool_calls": "error",
    "missing_thought_signature": "error",
    "language": "error",
    "other": "error",
    "no_image": "error",
    "image_other": "error",
    # Vertex may say the number. Those from 5 on mean one thing there and another at Google AI.
    "2": "length",
    "3": "content_filter",
    "4": "content_filter",
}


def _key(key: str) -> dict[str, str]:
    return {"x-goog-api-key": key}


GEMINI = Wire(
    name="gemini",
    path="",
    encode=encode,
    tools=GEMINI_TOOLS,
    make_decoder=decoding_by(GeminiReply),
    auth=_key,
    natural_reasons=frozenset(("stop", "1")),  # Vertex may say the number
    finish_reasons=_FINISH_REASONS,
    history=GeminiHistory,
    max_tokens_key="maxOutputTokens",
    output=GEMINI_OUTPUT,
)
