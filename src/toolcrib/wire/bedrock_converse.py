"""Bedrock's Converse and ConverseStream: blocks, requests, replies, and the wire's value."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from functools import partial
from typing import Any, cast
from urllib.parse import quote

import orjson

from toolcrib.errors import RequestError, WireError
from toolcrib.values.content import Image, Media, inline_data, media_type_of
from toolcrib.values.json import JsonObject
from toolcrib.values.message import (
    ChatRequest,
    Effort,
    FinishReason,
    Message,
    ToolChoice,
)
from toolcrib.wire.anthropic import (
    ANTHROPIC,
    CLAUDES,
    DIALECT,
    STRICT_DIALECT,
    claude_reasoning,
)
from toolcrib.wire.anthropic import TOOLS as ANTHROPIC_TOOLS
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
from toolcrib.wire.blocks import BlockReply, GrowingBlock
from toolcrib.wire.calls import (
    APART,
    misplaced,
    name_in,
)
from toolcrib.wire.content import IMAGES, OFFICE, in_blocks, in_prompt
from toolcrib.wire.decoding import Parts, decoding_by, show_reasoning, show_text
from toolcrib.wire.forms import (
    NameRule,
    OutputForm,
    ShownAnswer,
    ShownTool,
    ToolForm,
    asked_output,
    described,
)
from toolcrib.wire.framing import FrameStream
from toolcrib.wire.history import EncodedList, History, IdRule, SentCall, SentResult, dumps
from toolcrib.wire.json_text import RawJson, mended, parsed

# The content blocks of a model's message: assembled, kept to be sent back, and sent back.
#
# Bedrock gets back the list of blocks as it was, because the signature of reasoning covers its
# place among them. But the calls and the text are those of the message, which may have been
# changed. Shapes:
# https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ContentBlock.html


_KNOWN_KINDS = ("toolUse", "reasoningContent", "citationsContent", "text")
_OWN_CALL_TYPES = (None, "tool_use")
"""The types of a call that toolcrib runs. A call of any other type belongs to the provider."""


class ConverseBlock(GrowingBlock):
    """A block of Converse's."""

    __slots__ = ()

    id_key = "toolUseId"

    def __init__(self, number: int, form: dict[str, Any]) -> None:
        kind = next((kind for kind in _KNOWN_KINDS if kind in form), next(iter(form), ""))
        super().__init__(number, form, kind, form["toolUse"] if _is_call(form) else None)

    def takes(self, kind: str) -> bool:
        """Return whether this block may take a delta of that kind."""
        if kind == "citation":
            return self.kind in ("", "text")
        return self.kind == kind or (not self.kind and kind != "toolUse")

    def add(self, kind: str, member: str, text: str) -> None:
        self.kind = self.kind or kind
        self._pieces.setdefault(member, []).append(text)

    def add_other(self, kind: str, value: Any) -> None:
        """Take a delta that is neither text nor input: a citation, or more of a special block."""
        if kind == "citation":
            self._citations.append(value)
            return
        self.kind = self.kind or kind
        previous = self.form.get(kind)
        if isinstance(previous, dict) and isinstance(value, dict):
            previous.update(value)
        elif isinstance(previous, dict) and isinstance(value, list):  # of a tool's result
            previous_content = previous.get("content")
            if isinstance(previous_content, list):
                previous_content += value
            else:
                previous["content"] = value
        else:
            self.form[kind] = value

    def whole(self) -> dict[str, Any]:
        if (call := self.call) is not None:
            return {"toolUse": {key: call[key] for key in call if key != "input"}}
        if not self._pieces and not self._citations:
            return self.form
        joined = {member: mended("".join(pieces)) for member, pieces in self._pieces.items()}
        if self.kind == "toolUse":
            tool_input = parsed(joined["input"].encode()) if joined["input"] else {}
            return {"toolUse": self.form["toolUse"] | {"input": tool_input}}
        if self.kind == "reasoningContent":
            return {"reasoningContent": self._reasoning(joined)}
        if self._citations:
            content = [{"text": joined.get("text", "")}]
            return {"citationsContent": {"content": content, "citations": self._citations}}
        return self.form | joined

    def _reasoning(self, joined: dict[str, str]) -> dict[str, Any]:
        if "redactedContent" in joined:
            return {"redactedContent": _base64(self._pieces["redactedContent"])}
        return {"reasoningText": {"text": "", **joined}}


def replayed(state: Any, text: str, calls: Sequence[SentCall]) -> list[dict[str, Any]]:
    """Return an assistant's content: text and calls, at their places among the kept blocks.

    Unsigned reasoning goes back only with calls, to whose results it belongs. DeepSeek's models
    refuse it otherwise (langchain-ai/langchain-aws#401), and no other model needs it.
    """
    kept_blocks = state if isinstance(state, list) else []
    forms = [form for form in kept_blocks if isinstance(form, dict) and _is_usable(form)]
    kept_text = "".join(map(text_of, forms))
    remaining, blocks = list(calls), list[dict[str, Any]]()
    for form in forms:
        if _is_call(form):
            call_id = form["toolUse"].get("toolUseId")
            call = next((c for c in remaining if c.call.provider_id == call_id), None)
            if call is not None:
                remaining.remove(call)
                blocks.append(_call(call))
        elif not _has_text(form):
            if calls or not _is_unsigned(form):
                blocks.append(form)
        elif kept_text == text and text_of(form).strip():
            blocks.append(form)
    if kept_text != text and text.strip():
        position = next((n for n, form in enumerate(blocks) if _is_call(form)), len(blocks))
        blocks.insert(position, {"text": text})
    return blocks + [_call(call) for call in remaining]


def text_of(form: dict[str, Any]) -> str:
    """Return what the block says to the user. With citations, it is one level deeper."""
    if "text" in form:
        return form["text"] if isinstance(form["text"], str) else ""
    citations_block = form.get("citationsContent")
    pieces = citations_block.get("content") if isinstance(citations_block, dict) else None
    cited_pieces = pieces if isinstance(pieces, list) else ()
    texts = (piece.get("text") for piece in cited_pieces if isinstance(piece, dict))
    return "".join(text for text in texts if isinstance(text, str))


def _has_text(form: dict[str, Any]) -> bool:
    return "text" in form or "citationsContent" in form


def _call(call: SentCall) -> dict[str, Any]:
    """Return a call whose input is the model's own text."""
    arguments = orjson.Fragment(call.arguments)
    return {"toolUse": {"toolUseId": call.id, "name": call.name, "input": arguments}}


def _is_call(form: dict[str, Any]) -> bool:
    """Return whether a block is a call for toolcrib to run."""
    call = form.get("toolUse")
    return isinstance(call, dict) and call.get("type") in _OWN_CALL_TYPES


def _is_unsigned(form: dict[str, Any]) -> bool:
    reasoning = form.get("reasoningContent")
    reasoning_text = reasoning.get("reasoningText") if isinstance(reasoning, dict) else None
    return isinstance(reasoning_text, dict) and not reasoning_text.get("signature")


def _is_usable(form: dict[str, Any]) -> bool:
    """Return whether Bedrock would accept the block back. It refuses invalid text and half an
    input."""
    call = form.get("toolUse")
    if "toolUse" in form:
        return isinstance(call, dict) and isinstance(call.get("input", {}), dict)
    return bool(form) and ("text" not in form or isinstance(form["text"], str))


def _base64(pieces: list[str]) -> str:
    """Join pieces that were each base64-encoded separately."""
    if len(pieces) == 1:
        return pieces[0]
    try:
        return base64.b64encode(b"".join(map(base64.b64decode, pieces))).decode()
    except ValueError:
        return "".join(pieces)


# The messages of a Converse request: content blocks, with all results of a turn in one message.
#
# The user and the model take turns, the user first; several consecutive messages of one of them are
# merged. Empty items are left out: "The text field in the ContentBlock object … is blank" is a
# refusal.


_DOCUMENTS = {
    "application/pdf": "pdf",
    "application/msword": "doc",
    f"{OFFICE}.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    f"{OFFICE}.spreadsheetml.sheet": "xlsx",
}
"""The documents other than text:
https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_DocumentBlock.html"""
_FORMATS = {"png": "png", "jpeg": "jpeg", "jpg": "jpeg", "gif": "gif", "webp": "webp"}
_HEADS = (b'{"role":"user","content":[', b'{"role":"assistant","content":[')
_END = b"]}"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9]+")
_EMPTY_BLOCK = {"text": "."}
"""Stands for a user who has said nothing, if the model's message is the first."""


class BedrockHistory(History):
    """Writes `messages`:
    https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Message.html"""

    ids = IdRule("A-Za-z0-9_-", 64)
    given_ids = IdRule("A-Za-z0-9_.:-", 64)
    _head = b""
    _prompt_count = 0

    def user(self, message: Message) -> Sequence[Any]:
        """Write a user's blocks: images, text and documents.

        https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Message.html: a document
        needs a text with it. Documents are told apart by their names.
        """
        blocks = [*map(_image, message.images), *_text(message.content)]
        if message.parts:
            self._prompt_count += 1
            make_form = partial(_media_form, f"prompt {self._prompt_count}")
            blocks += in_prompt(self, message, make_form, lambda text: {"text": text})
            if any("document" in block for block in blocks) and not any(
                "text" in b for b in blocks
            ):
                raise RequestError(
                    "Bedrock takes a document only together with text: add text that says what "
                    "it is for"
                )
        return _message("user", blocks)

    def assistant(self, message: Message, calls: Sequence[SentCall]) -> Sequence[Any]:
        messages = _message("assistant", replayed(self.state(message), message.content, calls))
        return _message("user", [_EMPTY_BLOCK]) + messages if self.silent and messages else messages

    def results(self, results: Sequence[SentResult]) -> Sequence[Any]:
        return _message("user", [_result(result, self.media) for result in results])

    def encoded(self, last_block: bytes = b"") -> EncodedList:
        """Return the list as encoded so far; `last_block` is added to the last message."""
        return EncodedList((b"[", self._text, b"," if last_block else b"", last_block, _END, b"]"))

    def _add(self, item: bytes) -> None:
        """Add a message. Consecutive messages of one role are merged; the last one stays open."""
        head = _HEADS[not item.startswith(_HEADS[0])]
        if head is self._head:
            self._text += b","
            self._text += item[len(head) : -len(_END)]
        else:
            self._text += _END + b"," if self._text else b""
            self._text += item[: -len(_END)]
        self._head = head


def _message(role: str, content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content}] if content else []


def _text(text: str) -> list[dict[str, Any]]:
    return [{"text": text}] if text.strip() else []


def _result(result: SentResult, media: frozenset[str]) -> dict[str, Any]:
    """Return a result's block, of texts, images and documents.

    https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ToolResultContentBlock.html
    """
    is_error = result.message.is_error
    make_form = partial(_media_form, _NOT_IN_NAMES.sub("-", result.id))
    content = in_blocks(result.message, media, make_form, lambda text: {"text": text})
    content = content or _text("error" if is_error else "(empty)")
    form: dict[str, Any] = {"toolUseId": result.id, "content": content}
    return {"toolResult": form | {"status": "error"} if is_error else form}


def _media_form(name: str, part: Media, position: int) -> dict[str, Any] | None:
    """Return the block of an image or a document.

    A model may mistake a document's name for an instruction, so the name is neutral: its position.
    """
    data = inline_data(part)
    if data is None and not part.url.startswith("s3://"):
        return None
    if isinstance(part, Image):
        return _image(part) if media_type_of(part) in IMAGES else None
    document_format = _DOCUMENTS.get(media_type_of(part))
    if document_format is None:
        return None
    source: dict[str, Any] = {"s3Location": {"uri": part.url}} if data is None else {"bytes": data}
    return {
        "document": {"format": document_format, "name": f"{name} {position + 1}", "source": source}
    }


def _image(image: Image) -> dict[str, Any]:
    """Write an image: data, or an address in S3. Bedrock fetches from nowhere else."""
    head, _, data = image.url.partition(";base64,")
    if image.url.startswith("s3://"):
        kind = image.media_type or image.url.rpartition(".")[2]
        source: dict[str, Any] = {"s3Location": {"uri": image.url}}
    elif image.data or (head.startswith("data:") and data):
        kind = image.media_type or head.removeprefix("data:").partition(";")[0]
        source = {"bytes": image.data or data}
    else:
        raise RequestError("Bedrock takes images as data, or as an s3:// address, but no other URL")
    image_format = _FORMATS.get(kind.lower().rpartition("/")[2])
    if image_format is None:
        raise RequestError(f"Bedrock takes images as png, jpeg, gif or webp, and not as {kind!r}")
    return {"image": {"format": image_format, "source": source}}


# The reply under construction: what events and complete bodies of Converse add to it.
#
# Shapes: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html,
# …/API_runtime_ConverseStream.html


_EVENTS: dict[str, tuple[str, ...]] = {
    "messageStart": (),
    "contentBlockStart": ("contentBlockIndex", "start"),
    "contentBlockDelta": ("contentBlockIndex", "delta"),
    "contentBlockStop": ("contentBlockIndex",),
    "messageStop": (),
    "metadata": (),
}
"""The events, and the members in which a piece of a call may be."""


class BedrockReply(BlockReply[ConverseBlock]):
    """Takes events or a body of Converse's."""

    reason_key = "stopReason"
    usage_keys = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
    _begun = False

    def body(self, body: dict[str, Any], data: bytes) -> None:
        output = body.get("output")
        message = output.get("message") if isinstance(output, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            raise WireError(
                "the reply has no content blocks: this is not an answer of the Converse API"
            )
        self.is_recognized = True
        source = RawJson(data)
        for position, form in enumerate(content):
            tool_input = _input(form, source, "output", "message", "content", position)
            self._calls.end_call(self._begin(form, None, tool_input, []).number)
        self._take_reason(body)
        self._take_usage(body)

    def event(self, event: dict[str, Any], data: bytes, name: bytes, parts: Parts) -> None:
        kind = name.decode()
        self.is_recognized = self.is_recognized or kind in _EVENTS
        if misplaced(event, kind, _EVENTS):
            self._calls.doubt_open_calls()
        if kind == "contentBlockDelta":
            delta = event.get("delta")
            if not isinstance(delta, dict) or not delta:
                raise WireError("a `contentBlockDelta` has no delta")
            index = self._calls.block_at(event.get("contentBlockIndex"), of_call="toolUse" in delta)
            for member, value in delta.items():
                self._take_delta(index, member, value, parts)
        elif kind == "contentBlockStart":
            form = event.get("start")
            tool_input = _input(form, RawJson(data), "start")
            self._take_start(
                form, _call_in(form), event.get("contentBlockIndex"), tool_input, parts
            )
        elif kind == "contentBlockStop":
            self._stop(self._calls.block_at(event.get("contentBlockIndex")))
        elif kind == "messageStart":
            self._take_message()
        elif kind == "messageStop":
            self._take_reason(event)
        elif kind == "metadata":
            self._take_usage(event)
            self.is_over = bool(self.ending.reason)

    def _take_message(self) -> None:
        """Take the beginning of a message. If another one had begun, its end is lost."""
        if self._begun:
            self.ending.take_sign("incomplete")
        self._begun = True

    def _stop(self, index: object) -> None:
        if block := self._by_index.get(index):
            block.stopped = True
            self._calls.end_call(block.number)

    def _begin(self, form: Any, index: object, tool_input: str, parts: Parts) -> ConverseBlock:
        if not isinstance(form, dict) or not isinstance(form.get("toolUse", form), dict):
            raise WireError("a content block is not an object")
        block = self._add_block(ConverseBlock(len(self._blocks), dict(form)), index)
        if text := text_of(form):
            show_text(text, self._text, parts)
        elif form and not _has_text(form):
            self._text.append(APART)
        if (call := block.call) is not None:
            name, provider_id = name_in(call), str(call.get("toolUseId") or "")
            self.ending.note_call()
            if part := self._calls.take_piece(block.number, provider_id, name, tool_input):
                parts.append(part)
        return block

    def _take_delta(self, index: object, kind: str, value: Any, parts: Parts) -> None:
        previous = self._by_index.get(index)
        if (
            previous is not None
            and previous.call is not None
            and kind not in (*_KNOWN_KINDS, "citation")
        ):
            self._calls.doubt_open_calls()  # it may carry input
        block = self._block_at(index, kind, parts)
        if kind not in ("text", "citation", "citationsContent"):
            self._text.append(APART)
        if kind == "toolUse":
            self._take_input(block, value, parts)
        elif kind == "text":
            if not isinstance(value, str):
                raise WireError("the text of a delta is not text")
            block.add(kind, kind, value)
            if value:
                show_text(value, self._text, parts)
        elif kind == "reasoningContent" and isinstance(value, dict):
            for member, text in value.items():
                block.add(kind, member, text if isinstance(text, str) else "")
            show_reasoning(value.get("text"), parts)
        else:
            block.add_other(kind, value)

    def _block_at(self, index: object, kind: str, parts: Parts) -> ConverseBlock:
        """Return the block that a delta adds to. Begin one if it was not announced, as text never
        is."""
        block = self._by_index.get(index)
        if block is None or not block.takes(kind):
            block = self._begin({"toolUse": {}} if kind == "toolUse" else {}, index, "", parts)
        return block

    def _take_input(self, block: ConverseBlock, value: Any, parts: Parts) -> None:
        text = value.get("input") if isinstance(value, dict) else None
        if not isinstance(text, str):
            raise WireError("the input of a delta is not text")
        if block.call is None:
            if block.stopped:
                self._calls.doubt_open_calls()
            block.add("toolUse", "input", text)
        elif part := self._calls.take_piece(block.number, "", "", text):
            self.ending.note_call()
            parts.append(part)

    def _state_blocks(self, forms: list[dict[str, Any]], *, is_cut: bool) -> list[dict[str, Any]]:
        """Return the blocks to be sent back. Without its signature, reasoning that was cut is
        useless."""
        if all(not form or "text" in form or _is_call(form) for form in forms):
            return []
        return [form for form in forms if _is_usable(form) and not (is_cut and _is_unsigned(form))]


def _call_in(form: Any) -> dict[str, Any] | None:
    call = form.get("toolUse") if isinstance(form, dict) else None
    return call if isinstance(call, dict) else None


def _input(form: Any, source: RawJson, *path: str | int) -> str:
    """Return the input of the block at that place, as it was written; empty if there is none."""
    if (call := _call_in(form)) is None or (tool_input := call.get("input")) is None:
        return ""
    error_message = "the input of a tool call is nested too deeply"
    return source.text((*path, "toolUse", "input"), tool_input, error_message)


# Requests of Bedrock's Converse and ConverseStream, and the wire's value.
#
# A request contains only what the wire has a place for: the model and whether to stream are in the
# path, system messages outside the list of the others, settings in `inferenceConfig`. What only
# some models support goes through `Settings.extra`, as `additionalModelRequestFields`. Shapes:
# https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html


_OWN_KEYS = frozenset(("modelId", "messages", "system", "toolConfig"))
_CACHE_POINT = "cachePoint"
_ANY_SCHEMA = {"type": "object"}
_UNAVAILABLE = "Not available any more: do not call it."
_FIELDS = "additionalModelRequestFields"


def encode(
    wire: Wire, request: ChatRequest, *, model: str, stream: bool, memo: Memo | None
) -> HttpRequest:
    """Return the request for `wire`. Raises RequestError for a history or settings that cannot be
    sent.

    A choice of no tool, or among some, has no form here. The others are left out of that request,
    which invalidates its cache. If calls were made and no tool is left, the called tools are still
    declared, since "The toolConfig field must be defined when using toolUse and toolResult content
    blocks", with a remark that they are gone; a call of one is then a call of a tool that was not
    offered. There is no way to ask for one call at a time, so `parallel_calls=False` is refused.

    `Settings.extra["cachePoint"]`, such as `{"type": "default"}`, is put after the system text and
    after the last message. Everything before such a point can be cached, including the tools. It is
    not put among the tools, where Nova would refuse it (NousResearch/hermes-agent#97281).
    """
    offered_tools, plain_history = tools_and_history(wire, request, memo, model=model)
    history = cast("BedrockHistory", plain_history)
    tools, choice = _chosen(wire, request, offered_tools)
    extra = extra_members(request.settings.extra, own_keys=_OWN_KEYS)
    cache_point = extra.pop(_CACHE_POINT, None)
    cache_block = b"" if cache_point is None else dumps({_CACHE_POINT: cache_point})
    body: dict[str, Any] = {"messages": history.encoded(cache_block)}
    if history.instructions:
        texts = [dumps({"text": text}) for text in history.instructions]
        body["system"] = orjson.Fragment(
            b"[" + b",".join([*texts, cache_block] if cache_block else texts) + b"]"
        )
    if config := _tool_config(tools_member(tools, request, can_forbid=False), history, choice):
        body["toolConfig"] = config
    refuse_single_calls(wire, request, tools)
    reasoning = reasoning_of(wire, request, model)
    sampling_members = sampling(wire, request, reasoning.tokens)
    if reasoning.tokens:  # Bedrock's own default may be less
        sampling_members.setdefault(
            wire.max_tokens_key, ANTHROPIC.default_max_tokens + reasoning.tokens
        )
    if settings := with_extra(sampling_members, "inferenceConfig", extra):
        body["inferenceConfig"] = settings
    body |= extra
    add_members(body, reasoning.members)
    offer = asked_output(wire.output, request, body, model=model, offer=tools.offer)
    return http_request(
        wire,
        _path(wire, model, stream=stream),
        body,
        stream=stream,
        offer=offer,
        stream_type="application/vnd.amazon.eventstream",
    )


def _path(wire: Wire, model: str, *, stream: bool) -> str:
    """Return the path. An ARN is one segment of it. A colon is not escaped: URL libraries decode it
    anyway."""
    try:
        step = quote(model or "", safe=":")
    except UnicodeEncodeError:
        step = ""
    if step in ("", ".", ".."):
        raise RequestError(f"{model!r} does not name a Bedrock model")
    return f"{wire.path}/{step}/{'converse-stream' if stream else 'converse'}"


def _chosen(
    wire: Wire, request: ChatRequest, tools: SentTools
) -> tuple[SentTools, ToolChoice | None]:
    """Return the tools to send and the choice among them, which is None if nothing need be sent."""
    choice = checked_choice(request, tools)
    if choice is None or choice.mode == "tool":
        return tools, choice
    allowed_names = request.tool_choice.allowed
    if choice.mode == "none":
        return narrowed(wire, tools, ()), None
    if choice.mode == "required" and len(choice.allowed) == 1:
        return tools, ToolChoice("tool", choice.allowed[0])
    remaining_tools = narrowed(wire, tools, allowed_names) if allowed_names else tools
    return remaining_tools, choice if choice.mode == "required" else None


def _tool_config(
    tools: dict[str, orjson.Fragment], history: BedrockHistory, choice: ToolChoice | None
) -> dict[str, Any]:
    """Return tools and choice in Bedrock's form; no choice is `auto`, with any number of calls."""
    if not tools:
        unavailable = (
            ShownTool(name=name, description=_UNAVAILABLE, schema=_ANY_SCHEMA)
            for name in history.called
        )
        return {"tools": list(map(TOOLS.shape, unavailable))} if history.called else {}
    config: dict[str, Any] = {**tools}
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


def _tool(tool: ShownTool) -> dict[str, Any]:
    """Write a tool:
    https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ToolSpecification.html

    Only `strict: true` is sent, which few of the models there know.
    """
    spec = described(tool) | {"inputSchema": {"json": tool.schema}}
    return {"toolSpec": spec | {"strict": True} if tool.strict else spec}


# What the strictest models there accept, which are Anthropic's; for all of them, "inputSchema.
# json.type must be one of the following: object". Strictness:
# https://docs.aws.amazon.com/bedrock/latest/userguide/structured-output.html.
TOOLS = ToolForm(
    name="bedrock-converse",
    names=NameRule("A-Za-z0-9_-", 64),
    dialect=DIALECT,
    strict_dialect=STRICT_DIALECT,
    strict_limits=ANTHROPIC_TOOLS.strict_limits,
    shape=_tool,
)


def _answer(answer: ShownAnswer) -> dict[str, Any]:
    """Return the member that asks for a typed answer, whose schema is text on this wire.

    https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_JsonSchemaDefinition.html
    """
    schema = {"name": answer.name, "schema": answer.schema}
    return {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": schema}}}


OUTPUT = OutputForm(
    shape=_answer,
    within="outputConfig",
    strict_dialect=STRICT_DIALECT,
    strict_limits=ANTHROPIC_TOOLS.strict_limits,
    beside_tools=True,
    models=rf"anthropic\.{CLAUDES}",
)


def _reasoning(effort: Effort, model: str) -> Reasoning:
    """Return what the model's maker accepts, which goes through `additionalModelRequestFields`.

    Claude: as at Anthropic. Nova 2:
    https://docs.aws.amazon.com/nova/latest/nova2-userguide/extended-thinking.html. gpt-oss has
    three levels: https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-openai.html.
    For other models, and for an ARN, it is unknown.
    """
    if "anthropic.claude" in model:
        claude_form = claude_reasoning(effort, model)
        return Reasoning({_FIELDS: claude_form.members}, claude_form.tokens)
    if "nova-2" in model:
        if effort == "minimal":
            raise no_effort(effort, model, "none", "low", "medium", "high")
        config = {"type": "enabled", "maxReasoningEffort": effort}
        return Reasoning(
            {_FIELDS: {"reasoningConfig": {"type": "disabled"} if effort == "none" else config}}
        )
    if "gpt-oss" in model:
        if effort in ("none", "minimal"):
            raise no_effort(effort, model, "low", "medium", "high")
        return Reasoning({_FIELDS: {"reasoning_effort": effort}})
    raise RequestError(
        f"reasoning={effort!r}: how {model!r} is asked to reason is unknown; use the model's "
        f"own settings instead, extra={{{_FIELDS!r}: {{…}}}}"
    )


def _is_reply(value: JsonObject) -> bool:
    output = value.get("output")
    return isinstance(output, dict) and "message" in output


BEDROCK_CONVERSE = Wire(
    name="bedrock-converse",
    path="/model",
    encode=encode,
    tools=TOOLS,
    make_decoder=decoding_by(BedrockReply, FrameStream),
    auth=bearer,
    natural_reasons=frozenset(("tool_use", "end_turn", "stop_sequence")),
    finish_reasons=_FINISH_REASONS,
    history=BedrockHistory,
    max_tokens_key="maxTokens",
    output=OUTPUT,
    prompt_media=IMAGES.union(_DOCUMENTS),
    result_media=IMAGES.union(_DOCUMENTS),
    result_models=r"anthropic|nova|^arn:",  # an ARN may stand for any model
    reasoning=_reasoning,
    is_reply=_is_reply,
)
