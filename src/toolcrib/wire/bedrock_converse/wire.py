"""Requests of Bedrock's Converse and ConverseStream, and the wire's value.

What goes out is what the wire has a place for: the model and whether to stream are said in the path,
system messages beside the list of the others, settings in `inferenceConfig`. What only some models
have goes through `Settings.extra`, as `additionalModelRequestFields`.
Shapes: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html
"""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import quote

import orjson

from toolcrib.errors import RequestError
from toolcrib.values.message import ChatRequest, FinishReason, ToolChoice
from toolcrib.wire.base import HttpRequest, Memo, Wire
from toolcrib.wire.bedrock_converse.history import BedrockHistory
from toolcrib.wire.bedrock_converse.reply import BedrockReply
from toolcrib.wire.decoding import decoding_by
from toolcrib.wire.forms import BEDROCK_TOOLS, Told
from toolcrib.wire.frames import FrameStream
from toolcrib.wire.history import dumps
from toolcrib.wire.output import BEDROCK_OUTPUT, asked_output
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

_OWN_KEYS = frozenset(("modelId", "messages", "system", "toolConfig"))
_CACHE_POINT = "cachePoint"
_ANY = {"type": "object"}
_GONE = "Not available any more: do not call it."


def encode(
    wire: Wire, request: ChatRequest, *, model: str, stream: bool, memo: Memo | None
) -> HttpRequest:
    """The request for `wire`. Raises RequestError for a history or settings that cannot be sent.

    A choice of no tool, or among some, has no form here: the others are not sent with that request,
    which costs its cache. Where calls were made and no tool is left, the tools that were called are
    named all the same, since "The toolConfig field must be defined when using toolUse and toolResult
    content blocks", with the remark that they are gone; a call of one is then of a tool that was not
    offered. There is no way to ask for one call at a time, so `parallel_calls=False` is refused.

    `Settings.extra["cachePoint"]`, such as `{"type": "default"}`, is put behind the system text and
    behind the last message: all that is before such a point can be cached, the tools too, among which
    Nova would refuse it (NousResearch/hermes-agent#97281).
    """
    sent = remembered_tools(wire, request.tools, memo)
    history = cast("BedrockHistory", remembered_history(wire, request, sent, memo))
    tools, choice = _chosen(wire, request, sent)
    extra = extra_members(request.settings.extra, own=_OWN_KEYS)
    point = extra.pop(_CACHE_POINT, None)
    mark = b"" if point is None else _mark(point)
    body: dict[str, Any] = {"messages": orjson.Fragment(history.encoded(mark))}
    if history.instructions:
        texts = [dumps({"text": text}) for text in history.instructions]
        body["system"] = orjson.Fragment(b"[" + b",".join([*texts, mark] if mark else texts) + b"]")
    if config := _tool_config(tools_member(tools, request), history, choice):
        body["toolConfig"] = config
    refuse_single_calls(wire, request, tools)
    if settings := with_extra(sampling(wire, request), "inferenceConfig", extra):
        body["inferenceConfig"] = settings
    body |= extra
    offer = asked_output(wire.output, request, body, model=model, offer=tools.offer)
    return http_request(
        wire,
        _path(wire, model, stream=stream),
        body,
        stream=stream,
        offer=offer,
        streamed_as="application/vnd.amazon.eventstream",
    )


def _mark(point: Any) -> bytes:
    try:
        return orjson.dumps({_CACHE_POINT: point})
    except TypeError as error:
        raise RequestError(f"Settings.extra: {_CACHE_POINT!r} is no JSON: {error}") from None


def _path(wire: Wire, model: str, *, stream: bool) -> str:
    """An ARN is one step of the path. A colon stays: encoded or not, URL libraries make it one."""
    try:
        step = quote(model or "", safe=":")
    except UnicodeEncodeError:
        step = ""
    if step in ("", ".", ".."):
        raise RequestError(f"{model!r} names no model of Bedrock's")
    return f"{wire.path}/{step}/{'converse-stream' if stream else 'converse'}"


def _chosen(
    wire: Wire, request: ChatRequest, tools: SentTools
) -> tuple[SentTools, ToolChoice | None]:
    """The tools to send and the choice among them, which is None where nothing need be said."""
    choice = checked_choice(request.tool_choice, tools)
    if choice is None or choice.mode == "tool":
        return tools, choice
    own = request.tool_choice.allowed
    if choice.mode == "none":
        return narrowed(wire, tools, ()), None
    if choice.mode == "required" and len(choice.allowed) == 1:
        return tools, ToolChoice("tool", choice.allowed[0])
    left = narrowed(wire, tools, own) if own else tools
    return left, choice if choice.mode == "required" else None


def _tool_config(
    tools: orjson.Fragment | None, history: BedrockHistory, choice: ToolChoice | None
) -> dict[str, Any]:
    """Empty where nothing need be said: without a choice it is `auto`, with any number of calls."""
    if tools is None:
        gone = (Told(name=name, description=_GONE, schema=_ANY) for name in history.called)
        return {"tools": list(map(BEDROCK_TOOLS.shape, gone))} if history.called else {}
    config: dict[str, Any] = {"tools": tools}
    if choice is not None and choice.mode == "tool":
        config["toolChoice"] = {"tool": {"name": choice.name}}
    elif choice is not None:
        config["toolChoice"] = {"any": {}}
    return config


_FINISH_REASONS: dict[str, FinishReason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
    "refusal": "refusal",
    "malformed_tool_use": "error",
    "malformed_model_output": "error",
}

BEDROCK_CONVERSE = Wire(
    name="bedrock-converse",
    path="/model",
    encode=encode,
    tools=BEDROCK_TOOLS,
    make_decoder=decoding_by(BedrockReply, FrameStream),
    auth=bearer,
    natural_reasons=frozenset(("tool_use", "end_turn", "stop_sequence")),
    finish_reasons=_FINISH_REASONS,
    history=BedrockHistory,
    max_tokens_key="maxTokens",
    output=BEDROCK_OUTPUT,
)
