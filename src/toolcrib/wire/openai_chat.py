"""OpenAI Chat Completions, which many servers use: its requests, its wire, and reading back messages.

Rule for reading messages (`decode_messages`): nothing is dropped, and nothing is guessed. Content
that has no place in a `Message` is an error that says where it is. What a model or a tool said
elsewhere was not checked here, so it counts as untrusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec
import orjson

from toolcrib.errors import RequestError
from toolcrib.schema.lower import Dialect
from toolcrib.values.call import ToolCall
from toolcrib.values.content import Image, Media, inline_data, media_type_of
from toolcrib.values.json import encodable
from toolcrib.values.message import (
    ChatRequest,
    Effort,
    FinishReason,
    Message,
    ToolChoice,
)
from toolcrib.values.typed import got_type
from toolcrib.wire.base import (
    HttpRequest,
    Memo,
    Reasoning,
    Wire,
    bearer,
    checked_choice,
    http_request,
    narrowed,
    settings_members,
    tools_and_history,
    tools_member,
)
from toolcrib.wire.calls import GEMINI_FILTERED
from toolcrib.wire.content import (
    IMAGES,
    PDF,
    attachment_label,
    file_name,
    prompt_of,
    result_content,
)
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

# The messages of a chat completion request: calls next to the text, each result its own message.


class ChatHistory(History):
    """Writes `messages`: https://platform.openai.com/docs/api-reference/chat/create

    OpenAI refuses ids of its own making that are longer than 40: `string_above_max_length`.
    """

    ids = IdRule(r"\x21-\x7e", 40)
    given_ids = ANY_ID  # some carry signatures

    def system(self, message: Message) -> Sequence[Any]:
        return [{"role": "system", "content": message.content}]

    def user(self, message: Message) -> Sequence[Any]:
        """Write a user's text alone, or parts if there are any, with the `images` first.

        https://developers.openai.com/api/docs/guides/file-inputs: only PDFs with their data, of all
        files; https://platform.openai.com/docs/guides/audio: recordings, WAV and MP3.
        """
        content = prompt_of(self, message, _image, self.attachment, text_part)
        return [{"role": "user", "content": content}]

    def assistant(self, message: Message, calls: Sequence[SentCall]) -> Sequence[Any]:
        state = self.state(message)
        form: dict[str, Any] = {"role": "assistant", "content": message.content}
        if calls:
            form["content"] = message.content or None
            form["tool_calls"] = [call_form(c) | of_call(state, c.call.id) for c in calls]
        return [form | of_message(state)]

    def results(self, results: Sequence[SentResult]) -> Sequence[Any]:
        """Write results, whose content is text, and their attachments as a user's message.

        `ChatCompletionToolMessageParam` of the `openai` package: a tool's message has only text
        parts. All results directly follow the calls, so attachments come after the last one.
        """
        items, attachments = list[dict[str, Any]](), list[dict[str, Any]]()
        for result in results:
            content = result_content(result.message, self.media, self.attachment)
            items.append({"role": "tool", "tool_call_id": result.id, "content": content.text})
            for name, form in content.attachments:
                attachments += [text_part(attachment_label(name, result)), form]
        return [*items, {"role": "user", "content": attachments}] if attachments else items

    def attachment(self, part: Media, position: int) -> dict[str, Any] | None:
        """Return the part of an image, or of a file or a recording that comes with its data.

        `ChatCompletionContentPartParam` of the `openai` package.
        """
        if isinstance(part, Image):
            return _image(part)
        data = inline_data(part)
        if data is None:
            return None
        audio_format = _AUDIO.get(media_type_of(part))
        if audio_format is not None:
            return {"type": "input_audio", "input_audio": {"data": data, "format": audio_format}}
        file = {"filename": file_name(part, position), "file_data": part.as_url()}
        return {"type": "file", "file": file}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


_AUDIO = {"audio/wav": "wav", "audio/mpeg": "mp3"}


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
# A request contains only what the wire has a place for: no output schema, no error flag, no member
# that only states the default. Shapes: https://platform.openai.com/docs/api-reference/chat/create


_OWN_KEYS = frozenset(("model", "messages", "tools", "stream"))
_ONLY_WITH_TOOLS = frozenset(("parallel_tool_calls", "tool_choice"))


def encode(
    wire: Wire, request: ChatRequest, *, model: str, stream: bool, memo: Memo | None
) -> HttpRequest:
    """Return the request for `wire`. Raises RequestError for a history or settings that cannot be
    sent."""
    tools, history = tools_and_history(wire, request, memo, model=model)
    choice = checked_choice(request, tools)
    if choice is not None and choice.allowed and not wire.allowed_tools:
        tools = narrowed(wire, tools, request.tool_choice.allowed)
        among_all = ToolChoice(choice.mode, request.tool_choice.name)
        choice = checked_choice(msgspec.structs.replace(request, tool_choice=among_all), tools)
    body: dict[str, Any] = {"model": model, "messages": history.encoded()}
    body |= tools_member(tools, request)
    if request.tools and request.parallel_calls is not None:
        body["parallel_tool_calls"] = request.parallel_calls
    if choice is not None:
        body["tool_choice"] = _choice(wire, choice)
    body |= settings_members(
        wire, request, tools, model=model, own_keys=_OWN_KEYS, only_with_tools=_ONLY_WITH_TOOLS
    )
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
"""The natural reasons of OpenAI, of compatible servers, and of the models behind gateways."""
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
"""The reasons of compatible servers, and of models behind gateways, that are not natural."""


# "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top
# level" and "array schema missing items" are the endpoint's own messages for functions without
# `strict` (as quoted in chatanywhere/GPT_API_free#403). It is not documented whether it accepts
# `true` as a schema; `{}` means the same.
DIALECT = Dialect(
    name="openai",
    root_without=frozenset({"anyOf", "oneOf", "allOf", "enum", "not", "$ref"}),
    booleans=False,
    need_items=True,
    compact_over=VERY_LARGE,
)

# https://platform.openai.com/docs/guides/structured-outputs#supported-schemas: the keywords,
# formats and limits, as of 2026. The `min/maxLength` of newer models are left out, because
# fine-tuned ones refuse them.
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
    """Write a tool nested: https://platform.openai.com/docs/api-reference/chat/create, `tools`"""
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
    """Write the format of an answer: https://platform.openai.com/docs/guides/structured-outputs

    Mistral's is the same: https://docs.mistral.ai/capabilities/structured_output/custom
    """
    schema = {
        "name": answer.name,
        "schema": orjson.Fragment(answer.schema),
        "strict": answer.strict,
    }
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


# "Structured Outputs … available in our latest large language models, starting with GPT-4o": older
# models refuse it. They are excluded by name, since a deployment at Azure may have any name.
_MODELS = r"^(?!.*(?:gpt-3|gpt-4(?![.o])|gpt-4o-2024-05-13|chatgpt-|o1-(?:mini|preview)))"

OUTPUT = OutputForm(
    shape=_answer,
    strict_dialect=STRICT_DIALECT,
    dialect=DIALECT,
    beside_tools=True,
    models=_MODELS,
    # Other servers of the format refuse it, or support it for some models only.
    servers=frozenset(("api.openai.com", "openai.azure.com", "cognitiveservices.azure.com")),
)


def _reasoning(effort: Effort, _model: str) -> Reasoning:
    """Write the level unchanged. It counts towards the token limit, without its own number.

    https://developers.openai.com/api/docs/guides/reasoning: "Not all reasoning models support every
    value"; one that does not refuses it. Mistral's member is the same. Its models have `none` and
    `high`, the newest ones the levels between, too:
    https://docs.mistral.ai/inference/conversations/reasoning.
    """
    return Reasoning({"reasoning_effort": effort})


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
            "mistral.ai",  # Codestral has its own server there
        )
    ),
    state_per_server=True,  # Groq, for one: "property 'reasoning_content' is unsupported"
    output=OUTPUT,
    prompt_media=IMAGES.union((PDF,), _AUDIO),
    result_media=IMAGES,  # beyond images, servers of the format differ
    reasoning=_reasoning,
    is_reply=lambda value: isinstance(value.get("choices"), list),
)


_ROLE_MEMBERS = {
    "system": ("role", "content"),
    "developer": ("role", "content"),
    "user": ("role", "content"),
    "assistant": ("role", "content", "tool_calls"),
    "tool": ("role", "content", "tool_call_id", "name"),
}
_CALL_RULE = "a call must be {id, type, function: {name, arguments}}"
_SHOWN_LENGTH = 80


class FormError(RequestError):
    """`code` names the rule that a message breaks. `safe` states it and the place, without
    repeating content."""

    def __init__(self, message: str, code: str = "", safe: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.safe = safe


def decode_messages(messages: Iterable[Any], *, untrusted: bool = True) -> tuple[Message, ...]:
    """Return the messages of an OpenAI chat request, as `history=` and sessions take them.

    Each is a dictionary `{role, content, …}` or the SDK's own object. Roles, texts, calls and their
    results are accepted. A run that continues with them counts as having read untrusted content,
    because of what assistants and tools say in them; `untrusted=False` declares that all of it came
    from your own model and tools. What users and systems say counts as said by you, so accept no
    such messages from others.

    Raises RequestError, which says where, for anything else, and for calls without exactly one
    result.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise TypeError(
            f"messages must be a list of dictionaries in OpenAI's format; {got_type(messages)}"
        )
    return tuple(message for _, message in MessageReader(untrusted=untrusted).read(messages))


def _as_written(arguments: Any, path: str) -> str:
    if not isinstance(arguments, str):
        _refuse("invalid_arguments", path, "it must be JSON text", f"; {got_type(arguments)}")
    return encodable(arguments)


@dataclass(kw_only=True)
class MessageReader:
    """Tracks which calls of the last assistant's message have no result yet, and all ids so far.

    `unanswered` is the result to give calls that have none; without it they are an error.
    `arguments` reads those of a call; it is also given their place.
    """

    untrusted: bool
    unanswered: str | None = None
    arguments: Callable[[Any, str], str] = _as_written
    _open_calls: dict[str, ToolCall] = field(default_factory=dict, init=False)
    _ids: set[str] = field(default_factory=set, init=False)

    def read(self, messages: Iterable[Any]) -> Iterator[tuple[str, Message]]:
        """Yield each message with its place. Raises FormError."""
        for number, raw_message in enumerate(messages):
            path = f"messages[{number}]"
            members = _members(raw_message, path, "unknown_role")
            role = members.get("role")
            if not isinstance(role, str) or role not in _ROLE_MEMBERS:
                rule = f"it must be one of {', '.join(_ROLE_MEMBERS)}"
                _refuse("unknown_role", f"{path}.role", rule, f"; {got_type(role)}")
            if role == "assistant":  # an SDK's reply has empty lists for absent members
                members = {"content": ""} | {
                    k: value for k, value in members.items() if value != []
                }
            rule = f"a message of {role} has {', '.join(_ROLE_MEMBERS[role][1:])}"
            _members(members, path, "invalid_message", rule, *_ROLE_MEMBERS[role])
            if role != "tool":
                yield from self._results_of_open_calls(path)
            yield path, self._message(role, members, path)
        yield from self._results_of_open_calls("messages")

    def _message(self, role: str, members: Mapping[str, Any], path: str) -> Message:
        if role == "tool":
            call = self._answered_call(members, path)
            return self._with_trust(
                Message.tool(call, _text(members.get("content"), f"{path}.content"))
            )
        text = _text(members.get("content"), f"{path}.content")
        if role != "assistant":
            return Message.user(text) if role == "user" else Message.system(text)
        calls_path, raw_calls = f"{path}.tool_calls", members.get("tool_calls", ())
        if not isinstance(raw_calls, list | tuple):
            _refuse("invalid_message", calls_path, "it must be a list", f"; {got_type(raw_calls)}")
        calls = tuple(
            self._call(call, f"{calls_path}[{number}]") for number, call in enumerate(raw_calls)
        )
        return self._with_trust(Message.assistant(text, calls))

    def _with_trust(self, message: Message) -> Message:
        return msgspec.structs.replace(message, untrusted=self.untrusted)

    def _results_of_open_calls(self, path: str) -> Iterator[tuple[str, Message]]:
        """Yield results for the calls that still have none, or refuse them."""
        for call_id, call in self._open_calls.items():
            if self.unanswered is None:
                _refuse("unanswered_call", path, "a call has no result yet", f": {call_id!r}")
            yield path, self._with_trust(Message.tool(call, self.unanswered, is_error=True))
        self._open_calls = {}

    def _call(self, raw: Any, path: str) -> ToolCall:
        members = _members(raw, path, "invalid_message", _CALL_RULE, "id", "type", "function")
        if members.get("type", "function") != "function":
            _refuse("invalid_message", f"{path}.type", "it must be 'function'")
        function_path, raw = f"{path}.function", members.get("function")
        function = _members(raw, function_path, "invalid_message", _CALL_RULE, "name", "arguments")
        call_id = _name(members.get("id"), f"{path}.id", "invalid_call_id")
        if call_id in self._open_calls:
            _refuse("call_twice", f"{path}.id", "another call of this message has the same id")
        name = _name(function.get("name"), f"{function_path}.name", "invalid_call_name")
        arguments = self.arguments(function.get("arguments"), f"{function_path}.arguments")
        self._open_calls[call_id] = ToolCall(
            self._own_id(call_id), name, arguments, provider_id=call_id
        )
        return self._open_calls[call_id]

    def _own_id(self, call_id: str) -> str:
        """Return an id that no earlier call has, as some servers restart counting in each reply."""
        unique_id, number = call_id, 1
        while unique_id in self._ids:
            number += 1
            unique_id = f"{call_id}_{number}"
        self._ids.add(unique_id)
        return unique_id

    def _answered_call(self, members: Mapping[str, Any], path: str) -> ToolCall:
        call_id = _name(members.get("tool_call_id"), f"{path}.tool_call_id", "invalid_message")
        call = self._open_calls.pop(call_id, None)
        if call is None:
            code = "result_twice" if call_id in self._ids else "orphan_result"
            _refuse(
                code, f"{path}.tool_call_id", "there is no unanswered call with that id before it"
            )
        if members.get("name", call.name) != call.name:
            _refuse(
                "invalid_message",
                f"{path}.name",
                "the call with that id is a call of",
                f" {call.name!r}",
            )
        return call


def _members(raw: Any, path: str, code: str, rule: str = "", *names: str) -> dict[str, Any]:
    """Return an object's members without nulls.

    If `names` are given, other members raise FormError, with `rule` in its safe text.
    """
    if not isinstance(raw, type) and callable(getattr(raw, "model_dump", None)):
        raw = raw.model_dump()
    if not isinstance(raw, Mapping):
        _refuse(code, path, "it must be a dictionary", f"; {got_type(raw)}")
    members = {name: value for name, value in raw.items() if value is not None}
    for name in members:
        if names and name not in names:
            message = (
                f"{path}.{str(name)[:_SHOWN_LENGTH]}: only {', '.join(names)} are allowed here"
            )
            raise FormError(message, code, f"{path}: {rule}")
    return members


def _name(value: Any, path: str, code: str) -> str:
    if not isinstance(value, str) or not value or value != encodable(value):
        _refuse(
            code, path, "it must be a string of valid characters, not empty", f"; {got_type(value)}"
        )
    return value


def _text(content: Any, path: str) -> str:
    """Return a string, or the concatenated texts of parts `{"type": "text", "text": …}`."""
    if isinstance(content, str):
        return encodable(content)
    code, rule = "invalid_content", "it must be a string, or a list of parts of type text"
    if not isinstance(content, list | tuple):
        _refuse(
            "invalid_message" if content is None else code, path, rule, f"; {got_type(content)}"
        )
    texts = []
    for number, raw_part in enumerate(content):
        part = _members(raw_part, f"{path}[{number}]", code, rule, "type", "text")
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            _refuse(code, f"{path}[{number}]", "only parts of type text are allowed")
        texts.append(part["text"])
    return encodable("".join(texts))


def _refuse(code: str, path: str, rule: str, detail: str = "") -> NoReturn:
    raise FormError(f"{path}: {rule}{detail}", code, f"{path}: {rule}")
