"""Ollama's chat: requests, replies line by line, and the wire's value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from toolcrib.errors import RequestError, WireError
from toolcrib.schema.lower import Dialect
from toolcrib.values.content import Image, Media, inline_data
from toolcrib.values.json import JsonObject
from toolcrib.values.message import (
    ChatRequest,
    Effort,
    FinishReason,
    Message,
    Offer,
    Reply,
    ToolChoice,
    Usage,
)
from toolcrib.wire.base import (
    HttpRequest,
    Memo,
    Reasoning,
    SentTools,
    Wire,
    add_members,
    bearer,
    checked_choice,
    extra_members,
    http_request,
    narrowed,
    no_effort,
    reasoning_of,
    refuse_single_calls,
    sampling,
    tools_and_history,
    tools_member,
    with_extra,
)
from toolcrib.wire.calls import CallAssembler, Ending, member_of, name_in, reason_of, text_of_member
from toolcrib.wire.content import IMAGES, in_prompt, result_content
from toolcrib.wire.decoding import Parts, decoding_by, show_reasoning, show_text, token_count
from toolcrib.wire.forms import (
    NameRule,
    OutputForm,
    ShownAnswer,
    ShownTool,
    ToolForm,
    asked_output,
    described,
)
from toolcrib.wire.framing import LineStream
from toolcrib.wire.history import ANY_ID, History, IdRule, SentCall, SentResult
from toolcrib.wire.json_text import RawJson, mended

# The messages of an Ollama request: arguments are objects, and a result names its tool.


_OWN_MEMBERS = frozenset(("role", "content", "tool_calls"))


class OllamaHistory(History):
    """Writes `messages`: https://docs.ollama.com/api/chat

    The server has no rule for ids. Results are distinguished by their order and their tool's name;
    newer servers also pass on the ids, older ones ignore them. There is no error flag. A result has
    images as a user's message has, because the server accepts those of every role (`chatPrompt` in
    its server/prompt.go).
    """

    ids = IdRule(r"\x21-\x7e", 64)
    given_ids = ANY_ID

    def system(self, message: Message) -> Sequence[Any]:
        return [{"role": "system", "content": message.content}]

    def user(self, message: Message) -> Sequence[Any]:
        """Write a user's texts as one, and the images, which have no position among the texts.

        https://docs.ollama.com/capabilities/vision
        """
        parts = in_prompt(self, message, _media_form, lambda text: {"text": text})
        texts = [message.content, *(part["text"] for part in parts if "text" in part)]
        form: dict[str, Any] = {"role": "user", "content": "\n\n".join(filter(None, texts))}
        images = [_image(image) for image in message.images]
        images += [part["data"] for part in parts if "data" in part]
        return [form | {"images": images} if images else form]

    def assistant(self, message: Message, calls: Sequence[SentCall]) -> Sequence[Any]:
        form: dict[str, Any] = {"role": "assistant", "content": message.content}
        state = self.state(message)
        if isinstance(state, dict):  # the thoughts; never what is said here
            form |= {name: value for name, value in state.items() if name not in _OWN_MEMBERS}
        if calls:
            form["tool_calls"] = [_call(call) for call in calls]
        return [form]

    def results(self, results: Sequence[SentResult]) -> Sequence[Any]:
        return [self._sent(result) for result in results]

    def _sent(self, result: SentResult) -> dict[str, Any]:
        content = result_content(result.message, self.media, _media_form)
        form: dict[str, Any] = {
            "role": "tool",
            "tool_name": result.name,
            "tool_call_id": result.id,
            "content": content.text,
        }
        images = [attachment["data"] for _, attachment in content.attachments]
        return form | {"images": images} if images else form


def _call(call: SentCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": orjson.Fragment(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _media_form(part: Media, _position: int) -> dict[str, Any] | None:
    data = inline_data(part) if isinstance(part, Image) else None
    return None if data is None else {"data": data}


def _image(image: Image) -> str:
    """Return the base64 text. Raises RequestError for an address: the server fetches nothing."""
    kind, comma, data = image.url.partition(",")
    if comma and kind.startswith("data:") and kind.endswith(";base64"):
        return data
    if not image.data:
        raise RequestError("Ollama takes no image by URL: pass its data as Image(media_type, data)")
    return image.data


# The reply under construction: what lines of Ollama's chat add to it.
#
# A reply that is not streamed is a single line. Calls come complete, with arguments that are an
# object.


class OllamaReply:
    """Takes lines, and gives the `Reply`. `thinking` is kept for the next request."""

    def __init__(self, wire: Wire, *, offer: Offer, ids: str) -> None:
        self.is_recognized = False
        self.is_over = False
        self.ending = Ending(wire, offer)
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls = CallAssembler(offer, ids)
        self._last_line: JsonObject = {}

    def body(self, body: JsonObject, data: bytes) -> None:
        self.event(body, data, b"", [])

    def event(self, event: JsonObject, data: bytes, _name: bytes, parts: Parts) -> None:
        """Take one line (`data` is its bytes). Raises WireError."""
        if "message" not in event and "done" not in event:
            return
        self.is_recognized = True
        self._last_line = event
        self.is_over = event.get("done") is True
        if not self.is_over:
            # The last line may give another reason.
            self.ending.take_stray_reason(event.get("done_reason"))
        message = member_of(event, "message", dict)
        if message is None:
            return
        if thinking := text_of_member(message, "thinking"):
            self._thinking.append(thinking)
            show_reasoning(thinking, parts)
        if content := text_of_member(message, "content"):
            show_text(content, self._text, parts)
        if calls := member_of(message, "tool_calls", list):
            self._add_calls(calls, data, parts)

    def _add_calls(self, calls: list[Any], data: bytes, parts: Parts) -> None:
        if not all(isinstance(c, dict) and isinstance(c.get("function"), dict) for c in calls):
            raise WireError("a tool call is not an object with a function")
        source, error_message = RawJson(data), "the arguments of a tool call cannot be read"
        for position, call in enumerate(calls):
            text = call["function"].get("arguments")
            text = "" if text is None else text
            if not isinstance(text, str):
                path = "message", "tool_calls", position, "function", "arguments"
                text = source.text(path, None, error_message)
            name = name_in(call["function"])
            call_id = call.get("id") or ""
            part = self._calls.take_whole(
                call_id if isinstance(call_id, str) else str(call_id), name, text
            )
            if part is not None:
                parts.append(part)

    def finish(self, *, ended: bool, raw: Any) -> Reply:
        """Return the reply. `ended` says whether a line declared itself the last one."""
        ending, reason = self.ending, self._last_line.get("done_reason")
        ending.stop(ended=ended)
        if reason_of(reason):
            ending.take_reason(reason)
        calls = ending.calls(self._calls)
        state = {"thinking": mended("".join(self._thinking))} if self._thinking else None
        input_tokens, output_tokens = (
            token_count(self._last_line, f"{key}_count") for key in ("prompt_eval", "eval")
        )
        usage = Usage(1, input_tokens, output_tokens)
        return ending.reply(self._text, calls, usage, raw=self._last_line or raw, state=state)


# Requests of Ollama's chat, and the wire's value.
#
# The server uses only what its model's template shows of a tool, and does not control whether one
# is called. Shapes: https://docs.ollama.com/api/chat


_OWN_KEYS = frozenset(("model", "messages", "tools", "stream"))


def encode(
    wire: Wire, request: ChatRequest, *, model: str, stream: bool, memo: Memo | None
) -> HttpRequest:
    """Return the request for `wire`. Raises RequestError for a history or settings that cannot be
    sent.

    There is no `tool_choice`: tools that may not be called are left out of that request. A
    request that requires a call, or allows at most one, is refused here.
    """
    tools, history = tools_and_history(wire, request, memo, model=model)
    tools = _callable_tools(wire, request, tools)
    body: dict[str, Any] = {"model": model, "messages": history.encoded()}
    body |= tools_member(tools, request, can_forbid=False)
    body |= _settings(wire, request, model)
    offer = asked_output(wire.output, request, body, model=model, offer=tools.offer)
    body["stream"] = stream  # the default is true
    return http_request(
        wire, wire.path, body, stream=stream, offer=offer, stream_type="application/x-ndjson"
    )


def _callable_tools(wire: Wire, request: ChatRequest, tools: SentTools) -> SentTools:
    """Return the tools that the choice leaves. Raises RequestError for a choice that cannot be
    enforced."""
    choice = checked_choice(request, tools) or ToolChoice()
    if choice.mode in ("required", "tool"):
        raise RequestError(
            f"tool_choice {choice.mode!r}: Ollama cannot be forced to call a tool; leave it "
            "`auto` and ask for the call in the prompt"
        )
    refuse_single_calls(wire, request, tools)
    if choice.mode == "none":
        return narrowed(wire, tools, ())
    return narrowed(wire, tools, request.tool_choice.allowed) if choice.allowed else tools


def _settings(wire: Wire, request: ChatRequest, model: str) -> dict[str, Any]:
    """Put the model's settings into `options`, after those of `extra`."""
    members = extra_members(request.settings.extra, own_keys=_OWN_KEYS)
    options = with_extra(sampling(wire, request), "options", members)
    members |= {"options": options} if options else {}
    add_members(members, reasoning_of(wire, request, model).members)
    return members


def _reasoning(effort: Effort, _model: str) -> Reasoning:
    """Write whether to think, and how much. A model without levels treats any level as yes.

    https://docs.ollama.com/capabilities/thinking: `false`, and the levels `low`, `medium` and
    `high`. The server ignores other words, so `minimal` is refused here.
    """
    if effort == "minimal":
        raise no_effort(effort, "Ollama", "none", "low", "medium", "high")
    return Reasoning({"think": False if effort == "none" else effort})


_FINISH_REASONS: dict[str, FinishReason] = {
    "length": "length",
    "content_filter": "content_filter",
    "error": "error",
}


# The fields that the structs ToolProperty and ToolFunctionParameters of ollama's api/types.go
# decode; the rest is dropped on the way to the model. `true` cannot be decoded at all. Templates
# print the schema into the prompt, and the context window is small by default.
DIALECT = Dialect(
    name="ollama",
    keywords=frozenset({"type", "anyOf", "items", "description", "enum", "properties", "required"}),
    root_without=frozenset({"anyOf", "oneOf", "allOf", "enum", "description"}),
    refs="none",
    booleans=False,
    compact_over=16_384,
)


def _tool(tool: ShownTool) -> dict[str, Any]:
    """Write a tool nested, without strictness: https://docs.ollama.com/api/chat, `tools`"""
    return {"type": "function", "function": described(tool) | {"parameters": tool.schema}}


# The server has no rule for names; its models' templates and parsers were made for OpenAI's.
TOOLS = ToolForm(name="ollama", names=NameRule("A-Za-z0-9_-", 64), dialect=DIALECT, shape=_tool)


def _answer(answer: ShownAnswer) -> dict[str, Any]:
    """Write `format`: https://docs.ollama.com/capabilities/structured-outputs"""
    return {"format": orjson.Fragment(answer.schema)}


# "will not work with tools as models require other control tokens" (ollama/ollama#11185).
OUTPUT = OutputForm(shape=_answer, dialect=DIALECT)


def _is_reply(value: JsonObject) -> bool:
    return isinstance(value.get("message"), dict) and isinstance(value.get("done"), bool)


OLLAMA = Wire(
    name="ollama",
    path="/api/chat",
    encode=encode,
    tools=TOOLS,
    make_decoder=decoding_by(OllamaReply, LineStream, bodies=False),
    auth=bearer,  # none for a local server; ollama.com requires one
    natural_reasons=frozenset(("stop",)),
    finish_reasons=_FINISH_REASONS,
    history=OllamaHistory,
    max_tokens_key="num_predict",
    output=OUTPUT,
    prompt_media=IMAGES,
    result_media=IMAGES,
    reasoning=_reasoning,
    is_reply=_is_reply,
)
