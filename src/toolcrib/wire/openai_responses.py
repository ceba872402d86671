"""OpenAI Responses: its requests, and the wire's value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson

from toolcrib.values.content import Image, Media, inline_data
from toolcrib.values.json import JsonObject
from toolcrib.values.message import (
    ChatRequest,
    Effort,
    FinishReason,
    Message,
    ToolChoice,
)
from toolcrib.wire.base import (
    HttpRequest,
    Memo,
    Reasoning,
    Wire,
    bearer,
    checked_choice,
    http_request,
    settings_members,
    tools_and_history,
    tools_member,
)
from toolcrib.wire.content import IMAGES, OFFICE, PDF, file_name, in_blocks, prompt_of
from toolcrib.wire.decoding import decoding_by
from toolcrib.wire.deferred import DeferredForm
from toolcrib.wire.forms import NameRule, ShownAnswer, ShownTool, ToolForm, asked_output, described
from toolcrib.wire.history import History, IdRule, SentCall, SentResult
from toolcrib.wire.json_text import mended
from toolcrib.wire.openai_chat import DIALECT, LONG_DESCRIPTION, NAMES, STRICT_DIALECT
from toolcrib.wire.openai_chat import OUTPUT as CHAT_OUTPUT
from toolcrib.wire.openai_responses_reply import (
    CALLS,
    SEARCH,
    SEARCH_CALL,
    ResponsesReply,
    message_text,
)

# The input of a response: messages, calls and results are items of one flat list.
#
# The model's own items other than text and calls (reasoning, phases, the provider's own tools) go
# back unchanged, as long as the message still says what those items said.


class ResponsesHistory(History):
    """Writes `input`: https://platform.openai.com/docs/api-reference/responses/create

    OpenAI refuses a `call_id` longer than 64: `string_above_max_length`. System messages keep their
    places, which `instructions` would not preserve; a model that knows only the `developer` role
    gets them with that role. The type of a message may be left out, but llama.cpp needs it to
    recognise an assistant's.
    """

    ids = IdRule(r"\x21-\x7e", 64)

    def __init__(self, wire: str, rule: NameRule, names: Mapping[str, str]) -> None:
        super().__init__(wire, rule, names)
        self._custom_ids: set[str] = set()
        self._search_ids: set[str] = set()

    def system(self, message: Message) -> Sequence[Any]:
        return [{"role": "system", "content": message.content}]

    def user(self, message: Message) -> Sequence[Any]:
        """Write a user's text alone, or parts if there are any, with the `images` first.

        https://developers.openai.com/api/docs/guides/file-inputs: documents with their data, or at
        an address.
        """
        content = prompt_of(self, message, _image, _media_form, _text)
        return [{"role": "user", "content": content}]

    def assistant(self, message: Message, calls: Sequence[SentCall]) -> Sequence[Any]:
        kept_items = self._kept_items(message, calls)
        if kept_items is not None:
            return kept_items
        items: list[dict[str, Any]] = [self._call_item(call) for call in calls]
        if message.content or not calls:
            items.insert(0, {"type": "message", "role": "assistant", "content": message.content})
        return items

    def results(self, results: Sequence[SentResult]) -> Sequence[Any]:
        """Write results. There is no error flag, so the text says it. With content they are lists.

        https://platform.openai.com/docs/guides/function-calling, and the type
        `ResponseFunctionCallOutputItemParam` of the `openai` package: text, images and files.
        """
        items: list[dict[str, Any]] = []
        search_texts: list[dict[str, Any]] = []
        for result in results:
            if result.id not in self._search_ids:
                kind = "custom_tool" if result.id in self._custom_ids else "function"
                members = {"call_id": result.id, "output": self._output(result.message)}
                items.append({"type": f"{kind}_call_output"} | members)
                continue
            tool_names = self.newly_found(result.message)
            items.append(
                _search_output(result.id, [self.loaded[own_name] for own_name in tool_names])
            )
            if not tool_names:
                search_texts.append(_search_text(result))
        return [*items, *search_texts]

    def _call_item(self, call: SentCall) -> dict[str, Any]:
        """Return a call. A call of the search has its own type here, with arguments that are an
        object.

        A tool that was found is in a namespace with its name. A request with a call of it without
        that is refused: "Missing namespace for function_call" (earendil-works/pi#7709).
        """
        members = {"call_id": call.id}
        if not self.search or call.call.name != self.search:
            members |= {"name": call.name, "arguments": call.arguments}
            namespace = {"namespace": call.name} if call.call.name in self.loaded else {}
            return {"type": "function_call"} | members | namespace
        self._search_ids.add(call.id)
        members |= {"execution": "client", "status": "completed"}
        return {"type": SEARCH_CALL} | members | {"arguments": orjson.Fragment(call.arguments)}

    def _repeated_call(self, item: dict[str, Any], call: SentCall) -> dict[str, Any]:
        """Return a call as the provider made it, except for our members and its tool's present type.

        The tool may be the search, one that was found, or one in the list.
        """
        form, own_name = self._call_item(call), call.call.name
        if (item["type"] == SEARCH_CALL) != (form["type"] == SEARCH_CALL):
            return form
        repeated = item | {key: form[key] for key in _OUR_MEMBERS if key in item}
        if own_name in self.loaded and own_name not in self._brought_tools:
            repeated.setdefault("namespace", call.name)
        elif (
            own_name in self._names
            and own_name not in self.loaded
            and repeated.get("namespace") == call.name
        ):
            del repeated["namespace"]
        return repeated

    def _output(self, message: Message) -> str | list[dict[str, Any]]:
        if not message.parts:
            return message.content
        return in_blocks(message, self.media, _media_form, _text) or ""

    def _kept_items(self, message: Message, calls: Sequence[SentCall]) -> list[Any] | None:
        """Return the provider's own items, with the calls as they are sent; None if unusable.

        A message whose text or calls were changed since is its author's own, and goes out without
        them.
        """
        items = self.state(message)
        if not isinstance(items, list) or mended(message_text(items)) != message.content:
            return None
        sent_items, remaining, custom_ids = [], list(reversed(calls)), set()
        for item in items:
            if not isinstance(item, dict) or str(item.get("type")) not in CALLS:
                sent_items.append(item)
            elif (
                remaining
                and (item.get("call_id") or item.get("id")) == remaining[-1].call.provider_id
            ):
                call = remaining.pop()
                sent_items.append(self._repeated_call(item, call))
                custom_ids |= {call.id} if "input" in item else set()
            elif item["type"] == "function_call":
                return None
            else:  # the provider's own tool, such as xAI's searches
                sent_items.append(item)
        if remaining:
            return None
        self._custom_ids |= custom_ids
        return sent_items


_OUR_MEMBERS = ("call_id", "name", "arguments")
"""The members of a call that we set: its id and name, and arguments that are an object."""


def _search_output(call_id: str, tools: Sequence[bytes]) -> dict[str, Any]:
    """Return what a search has found: definitions, which the model has from there on."""
    members = {"call_id": call_id, "execution": "client", "status": "completed"}
    return {"type": "tool_search_output"} | members | {"tools": list(map(orjson.Fragment, tools))}


def _search_text(result: SentResult) -> dict[str, Any]:
    """Return the text of a search that brought nothing, whose output has no place for a text.

    It has the role of a user, because what a tool says must not be an instruction.
    """
    text = f"[the result of {result.name}, call {result.id}] {result.message.text}"
    return {"role": "user", "content": text}


_DOCUMENTS = frozenset(
    [f"{OFFICE}.{kind}" for kind in ("wordprocessingml.document", "presentationml.presentation")]
    + [f"{OFFICE}.spreadsheetml.sheet", "application/msword", "application/vnd.ms-excel"]
    + ["application/vnd.ms-powerpoint"]
)
"""The documents, in addition to PDFs, whose text it reads."""


def _text(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def _media_form(part: Media, position: int) -> dict[str, Any] | None:
    """Return the item of an image or a file at an address, or with its data as a `data:` URL."""
    if isinstance(part, Image):
        return _image(part)
    if inline_data(part) is None:
        return {"type": "input_file", "file_url": part.url}
    file = {"filename": file_name(part, position), "file_data": part.as_url()}
    return {"type": "input_file"} | file


def _image(image: Image) -> dict[str, Any]:
    return {"type": "input_image", "image_url": image.as_url(), "detail": "auto"}


# Requests of OpenAI Responses, and the wire's value.
#
# Nothing depends on what the server remembers: each request contains the whole conversation, and
# `store` is false unless `Settings.extra` sets it. Shapes:
# https://platform.openai.com/docs/api-reference/responses/create


_OWN_KEYS = frozenset(("model", "input", "tools", "stream"))
_ONLY_WITH_TOOLS = frozenset(("parallel_tool_calls", "tool_choice"))

_REASONING_MODELS = re.compile(r"(?:openai[/.])?(?:o\d|gpt-(?!5-chat)(?:[5-9]|\d\d)|codex-)")
"""OpenAI's models that reason. Others refuse to be asked for it: "Encrypted content is not
supported with this model"."""


def encode(
    wire: Wire, request: ChatRequest, *, model: str, stream: bool, memo: Memo | None
) -> HttpRequest:
    """Return the request for `wire`. Raises RequestError for a history or settings that cannot be
    sent."""
    tools, history = tools_and_history(wire, request, memo, model=model)
    body: dict[str, Any] = {"model": model, "input": history.encoded()}
    body |= tools_member(tools, request)
    if request.tools and request.parallel_calls is not None:
        body["parallel_tool_calls"] = request.parallel_calls
    choice = checked_choice(request, tools)
    if choice is not None:
        body["tool_choice"] = _choice(choice)
    body |= settings_members(
        wire, request, tools, model=model, own_keys=_OWN_KEYS, only_with_tools=_ONLY_WITH_TOOLS
    )
    if body.setdefault("store", False) is False and _REASONING_MODELS.match(model):
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
"""The reasons of an `incomplete` response, and the statuses of others that ended."""


def _tool(tool: ShownTool) -> dict[str, Any]:
    """Write a tool flat, and always with `strict`, which is on by default here.

    In Chat Completions it is off.

    https://platform.openai.com/docs/guides/migrate-to-responses
    """
    members = {"parameters": tool.schema, "strict": tool.strict is True}
    return {"type": "function"} | described(tool) | members


TOOLS = ToolForm(
    name="openai-responses",
    names=NAMES,
    dialect=DIALECT,
    strict_dialect=STRICT_DIALECT,
    shape=_tool,
    long_description=LONG_DESCRIPTION,
)


def _search(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Write the search tool in its own form here: a search that the client executes."""
    members = {key: tool[key] for key in ("description", "parameters") if key in tool}
    return {"type": SEARCH, "execution": "client"} | members


# https://developers.openai.com/api/docs/guides/tools-tool-search, as of 2026: "only gpt-5.4 and
# later models support tool_search"; "All tools are loaded at the end of the model's context
# window", also in "client-executed tool search"; "in client mode you do not need to load the same
# tool again across turns". It says nothing about the smallest models and those of other kinds
# (nano, chat, pro).
DEFERRED = DeferredForm(
    models=r"^gpt-(?:5\.(?:[4-9]|\d\d)|[6-9]|\d\d)(?!.*(?:nano|chat|pro))",
    servers=frozenset(("api.openai.com",)),
    mark={"defer_loading": True},
    listed=False,
    search=_search,
    call_name=SEARCH,
)


def _answer(answer: ShownAnswer) -> dict[str, Any]:
    """Write the format flat, as `text.format`.

    https://platform.openai.com/docs/api-reference/responses/create
    """
    members = {
        "name": answer.name,
        "schema": orjson.Fragment(answer.schema),
        "strict": answer.strict,
    }
    return {"format": {"type": "json_schema"} | members}


OUTPUT = msgspec.structs.replace(CHAT_OUTPUT, shape=_answer, within="text")


def _reasoning(effort: Effort, _model: str) -> Reasoning:
    """Write the level in `reasoning`, to which `Settings.extra` may add, such as a `summary`.

    https://platform.openai.com/docs/api-reference/responses/create, `reasoning`
    """
    return Reasoning({"reasoning": {"effort": effort}})


def _is_reply(value: JsonObject) -> bool:
    return value.get("object") == "response" or str(value.get("type")).startswith("response.")


OPENAI_RESPONSES = Wire(
    name="openai-responses",
    path="/responses",
    encode=encode,
    tools=TOOLS,
    make_decoder=decoding_by(ResponsesReply),
    auth=bearer,
    natural_reasons=frozenset(("completed",)),
    finish_reasons=_FINISH_REASONS,
    history=ResponsesHistory,
    max_tokens_key="max_output_tokens",
    deferred=DEFERRED,
    output=OUTPUT,
    prompt_media=IMAGES | {PDF} | _DOCUMENTS,
    result_media=IMAGES | {PDF},
    reasoning=_reasoning,
    is_reply=_is_reply,
)
