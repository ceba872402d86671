"""OpenAI Chat Completions, which many servers speak: its requests, and the wire's value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from toolcrib.schema.lower import Dialect
from toolcrib.values.json import JsonObject
from toolcrib.values.message import (
    ChatRequest,
    FinishReason,
    Image,
    Message,
    ToolChoice,
)
from toolcrib.wire.base import HttpRequest, Memo, Wire
from toolcrib.wire.calls import GEMINI_FILTERED
from toolcrib.wire.decoding import decoding_by
from toolcrib.wire.forms import (
    VERY_LARGE,
    NameRule,
    OutputForm,
    ShownAnswer,
    ShownTool,
    ToolForm,
    asked_output,
    described,
)
from toolcrib.wire.history import ANY_ID, History, IdRule, SentCall, SentResult
from toolcrib.wire.openai_chat_reply import ChatReply, of_call, of_message
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

# The messages of a chat completion request: calls next to the text, each result its own message.


class ChatHistory(History):
    """https://platform.openai.com/docs/api-reference/chat/create, `messages`.

    OpenAI refuses ids of its own making that are longer than 40: `string_above_max_length`.
    """

    ids = IdRule(r"\x21-\x7e", 40)
    given_ids = ANY_ID  # signatures ride in some

    def system(self, message: Message) -> Sequence[Any]:
        return [{"role": "system", "content": message.content}]

    def user(self, message: Message) -> Sequence[Any]:
        return [{"role": "user", "content": content(message)}]

    def assistant(self, message: Message, calls: Sequence[SentCall]) -> Sequence[Any]:
        state = self.state(message)
        form: dict[str, Any] = {"role": "assistant", "content": message.content}
        if calls:
            form["content"] = message.content or None
            form["tool_calls"] = [call_form(c) | of_call(state, c.call.id) for c in calls]
        return [form | of_message(state)]

    def results(self, results: Sequence[SentResult]) -> Sequence[Any]:
        return [
            {"role": "tool", "tool_call_id": result.id, "content": result.message.content}
            for result in results
        ]


def content(message: Message) -> str | list[dict[str, Any]]:
    """Return text alone, or parts where there are images."""
    if not message.images:
        return message.content
    parts: list[dict[str, Any]] = [_image(image) for image in message.images]
    return [*parts, {"type": "text", "text": message.content}] if message.content else parts


def _image(image: Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": image.as_url()}}


def call_form(call: SentCall) -> dict[str, Any]:
    """Return a call, its arguments as text."""
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


# Requests of OpenAI Chat Completions, and the wire's value.
#
# What goes out is what the wire has a place for: no output schema, no error flag, no member that only
# says the default.
# Shapes: https://platform.openai.com/docs/api-reference/chat/create


_OWN_KEYS = frozenset(("model", "messages", "tools", "stream"))
_ONLY_WITH_TOOLS = frozenset(("parallel_tool_calls", "tool_choice"))


def encode(
    wire: Wire, request: ChatRequest, *, model: str, stream: bool, memo: Memo | None
) -> HttpRequest:
    """Return the request for `wire`. Raises RequestError for a history or
    settings that cannot be sent."""
    tools = remembered_tools(wire, request.tools, memo)
    history = remembered_history(wire, request, tools, memo)
    choice = checked_choice(request.tool_choice, tools)
    if choice is not None and choice.allowed and not wire.allowed_tools:
        tools = narrowed(wire, tools, request.tool_choice.allowed)
        choice = checked_choice(ToolChoice(choice.mode, request.tool_choice.name), tools)
    body: dict[str, Any] = {"model": model, "messages": history.encoded()}
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


# "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level"
# and "array schema missing items" are the endpoint's own messages for functions without `strict`
# (as quoted in chatanywhere/GPT_API_free#403). Whether it takes `true` as a schema is not said:
# `{}` means the same.
DIALECT = Dialect(
    name="openai",
    root_without=frozenset({"anyOf", "oneOf", "allOf", "enum", "not", "$ref"}),
    booleans=False,
    need_items=True,
    compact_over=VERY_LARGE,
)

# https://platform.openai.com/docs/guides/structured-outputs#supported-schemas: the keywords, formats
# and limits, as of 2026. The `min/maxLength` of newer models are left out: fine-tuned ones refuse them.
_STRICT_KEYWORDS = frozenset(
    ("type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const",
     "$ref", "$defs", "title", "description", "pattern", "format", "multipleOf", "minimum",
     "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems")
)  # fmt: skip

STRICT_DIALECT = Dialect(
    name="openai-strict",
    keywords=_STRICT_KEYWORDS,
    formats=frozenset(
        {"date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
    ),
    root_without=frozenset({"anyOf", "oneOf", "allOf", "enum", "const", "$ref"}),
    refs="plain",
    ref_siblings=False,
    closed=True,
    all_required=True,
    booleans=False,
    need_items=True,
    lookaround=False,
    max_depth=10,
    max_properties=5_000,
    max_enum=1_000,
    max_long_enum=15_000,
    max_names=120_000,
    compact_over=VERY_LARGE,
)


def _tool(tool: ShownTool) -> dict[str, Any]:
    """Nested; https://platform.openai.com/docs/api-reference/chat/create, `tools`."""
    function = described(tool) | {"parameters": tool.schema}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


NAMES = NameRule("A-Za-z0-9_-", 64)

LONG_DESCRIPTION = 1024
"""OpenAI's own servers dropped this limit in 2025 (run-llama/llama_index#18784); others keep it."""

TOOLS = ToolForm(
    name="openai-chat",
    names=NAMES,
    dialect=DIALECT,
    strict_dialect=STRICT_DIALECT,
    shape=_tool,
    long_description=LONG_DESCRIPTION,
)


def _answer(answer: ShownAnswer) -> dict[str, Any]:
    """Mistral's is the same: https://docs.mistral.ai/capabilities/structured_output/custom.

    https://platform.openai.com/docs/guides/structured-outputs
    """
    schema = {
        "name": answer.name,
        "schema": orjson.Fragment(answer.schema),
        "strict": answer.strict,
    }
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


# "Structured Outputs … available in our latest large language models, starting with GPT-4o": what is
# older refuses it, by name here, since a deployment at Azure may have any name.
_MODELS = r"^(?!.*(?:gpt-3|gpt-4(?![.o])|gpt-4o-2024-05-13|chatgpt-|o1-(?:mini|preview)))"

OUTPUT = OutputForm(
    shape=_answer,
    strict_dialect=STRICT_DIALECT,
    dialect=DIALECT,
    beside_tools=True,
    models=_MODELS,
    # Other servers of the format refuse it, or know it of some models only.
    servers=frozenset(("api.openai.com", "openai.azure.com", "cognitiveservices.azure.com")),
)


def _is_reply(value: JsonObject) -> bool:
    return isinstance(value.get("choices"), list)


OPENAI_CHAT = Wire(
    name="openai-chat",
    path="/chat/completions",
    encode=encode,
    tools=TOOLS,
    make_decoder=decoding_by(ChatReply),
    auth=bearer,
    natural_reasons=_NATURAL,
    finish_reasons=_FINISH_REASONS,
    history=ChatHistory,
    done_servers=frozenset(
        (
            "api.openai.com",
            "openrouter.ai",
            *("openai.azure.com", "openai.azure.us", "openai.azure.cn"),
            "cognitiveservices.azure.com",
            "services.ai.azure.com",
            "mistral.ai",  # Codestral has a server of its own there
        )
    ),
    state_per_server=True,  # Groq, for one: "property 'reasoning_content' is unsupported"
    output=OUTPUT,
    is_reply=_is_reply,
)
