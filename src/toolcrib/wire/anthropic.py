"""Anthropic's Messages: blocks, requests, replies, and the wire's value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson

from toolcrib.errors import WireError
from toolcrib.schema.lower import Dialect
from toolcrib.values.content import Image, Media, inline_data, media_type_of
from toolcrib.values.message import (
    ChatRequest,
    Effort,
    FinishReason,
    Message,
    Offer,
    Reply,
    ToolChoice,
)
from toolcrib.wire.base import (
    REASONING_TOKENS,
    HttpRequest,
    Memo,
    Reasoning,
    SentTools,
    Wire,
    add_members,
    checked_choice,
    extra_members,
    has_tools,
    http_request,
    narrowed,
    no_effort,
    reasoning_of,
    sampling,
    tools_and_history,
    tools_member,
)
from toolcrib.wire.blocks import BlockReply, GrowingBlock
from toolcrib.wire.calls import (
    APART,
    CONTRADICTORY,
    misplaced,
    name_in,
)
from toolcrib.wire.content import IMAGES, PDF, in_blocks, in_prompt
from toolcrib.wire.decoding import Parts, decoding_by, show_reasoning, show_text
from toolcrib.wire.deferred import DeferredForm
from toolcrib.wire.failure import reported_error
from toolcrib.wire.forms import (
    VERY_LARGE,
    NameRule,
    OutputForm,
    ShownAnswer,
    ShownTool,
    StrictLimits,
    ToolForm,
    asked_output,
    described,
)
from toolcrib.wire.history import History, IdRule, SentCall, SentResult, dumps
from toolcrib.wire.json_text import RawJson, dumped, mended, parsed, same_json

# The content blocks of an assistant's message: assembled, kept to be sent back, and sent back.
#
# Anthropic gets back the list of blocks as it was, because the signature of thinking covers its
# place among them. But the calls and the text are those of the message, which may have been
# changed.


_DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
    "input_json_delta": ("tool_use", "partial_json"),
    "citations_delta": ("text", "citation"),
}
_KNOWN_KINDS = frozenset(("text", "thinking", "tool_use"))
_CALL_MEMBERS = frozenset(("type", "id", "name", "input", "caller"))
_DIRECT_CALLERS = ({"type": "direct"}, None)


def delta_of(delta: dict[str, Any]) -> tuple[str, str]:
    """Return the kind of block that a delta adds to and the member it carries, or "" for both."""
    kind = delta.get("type")
    if isinstance(kind, str) and kind in _DELTAS:
        return _DELTAS[kind]
    is_input = isinstance(delta.get("partial_json"), str)  # whatever its declared type
    return _DELTAS["input_json_delta"] if is_input else ("", "")


class ContentBlock(GrowingBlock):
    """A block of Anthropic's; `input` is the input of a call's deltas.

    `began_bare` says that the first delta contained only its type.
    """

    __slots__ = ("began_bare", "input")

    id_key = "id"

    def __init__(self, number: int, form: dict[str, Any]) -> None:
        kind = form.get("type")
        kind = kind if isinstance(kind, str) else ""
        super().__init__(number, dict(form), kind, _call_in(form))
        self.input: list[str] = []
        self.began_bare = False

    def is_bare(self, delta: dict[str, Any], member: str) -> bool:
        """Return whether a delta is the empty one with which Anthropic begins each input.

        Gateways that omit empty members send it bare. If a piece was lost there, the input is not
        JSON.
        """
        is_first = not (self.began_bare or self.input)
        self.began_bare = self.began_bare or (
            is_first and member == "partial_json" and delta.keys() == {"type"}
        )
        return is_first and self.began_bare

    def takes(self, kind: str) -> bool:
        """Return whether this block may take a delta for blocks of that kind."""
        return not kind or kind == self.kind or self.kind not in _KNOWN_KINDS

    def add(self, member: str, value: Any) -> None:
        """Add what a delta carries. The members of an unknown delta become members of the block."""
        if member == "citation":
            self._citations.append(value)
        elif member:
            self._pieces.setdefault(member, []).append(value)
        elif self.kind not in _KNOWN_KINDS:
            self.form.update(value, type=self.kind)

    def whole(self) -> dict[str, Any]:
        form = dict(self.form)
        for member, pieces in self._pieces.items():
            text = "".join(pieces)
            if member == "partial_json":
                form["input"] = parsed(mended(text).encode()) if text else {}
            else:
                previous = form.get(member)
                form[member] = mended((previous if isinstance(previous, str) else "") + text)
        if self._citations:
            previous = form.get("citations")
            form["citations"] = (previous if isinstance(previous, list) else []) + self._citations
        if self.kind == "tool_use":
            form.pop("input", None)
        return form


def replayed(state: Any, text: str, calls: Sequence[SentCall]) -> list[dict[str, Any]]:
    """Return an assistant's content: text and calls, at their places among the kept blocks."""
    kept_blocks = state if isinstance(state, list) else []
    forms = [
        form for form in kept_blocks if isinstance(form, dict) and _is_usable(form, is_cut=False)
    ]
    kept_text = "".join(form["text"] for form in forms if form.get("type") == "text")
    remaining, blocks = list(calls), list[dict[str, Any]]()
    for form in forms:
        if form.get("type") == "tool_use":
            call = next((c for c in remaining if c.call.provider_id == form.get("id")), None)
            if call is not None:
                remaining.remove(call)
                blocks.append(form | _call(call))
        elif form.get("type") != "text" or (kept_text == text and form["text"].strip()):
            blocks.append(form)
    if kept_text != text and text.strip():
        position = next(
            (n for n, form in enumerate(blocks) if form["type"] == "tool_use"), len(blocks)
        )
        blocks.insert(position, {"type": "text", "text": text})
    return blocks + [_call(call) for call in remaining]


def _call(call: SentCall) -> dict[str, Any]:
    """Return a call whose input is the model's own text."""
    arguments = orjson.Fragment(call.arguments)
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _is_plain(form: dict[str, Any]) -> bool:
    if form.get("type") == "tool_use":
        return form.keys() <= _CALL_MEMBERS and form.get("caller") in _DIRECT_CALLERS
    return form.get("type") == "text" and not form.get("citations")


def _is_usable(form: dict[str, Any], *, is_cut: bool) -> bool:
    """Return whether Anthropic would accept the block back. It refuses thinking and calls that were
    cut."""
    kind = form.get("type")
    if kind == "text":
        return isinstance(form.get("text"), str)
    if kind == "thinking":
        return bool(form.get("signature")) or not is_cut
    return "input" not in form or isinstance(form["input"], dict)


# The messages of an Anthropic request: content blocks, with all results of a turn in one message.
#
# Empty items are left out, because Anthropic refuses a message or a text without a printing
# character.


class AnthropicHistory(History):
    """Writes `messages`: https://platform.claude.com/docs/en/api/messages/create

    Anthropic treats several consecutive messages of one role as one turn.
    """

    ids = IdRule("A-Za-z0-9_-", 64)

    def user(self, message: Message) -> Sequence[Any]:
        """Write a user's text alone, or blocks if there are any, with the `images` first.

        https://platform.claude.com/docs/en/build-with-claude/vision, …/pdf-support: images and
        PDFs, with their data or at an address.
        """
        if not message.images and not message.parts:
            return _message("user", message.content if message.content.strip() else "")
        parts = in_prompt(self, message, _media_form, lambda text: _text(text)[0])
        blocks = [*map(_image, message.images), *_text(message.content)]
        return _message("user", [*blocks, *parts])

    def assistant(self, message: Message, calls: Sequence[SentCall]) -> Sequence[Any]:
        state = self.state(message)
        if not calls and not state:
            return _message("assistant", message.content if message.content.strip() else "")
        return _message("assistant", replayed(state or (), message.content, calls))

    def results(self, results: Sequence[SentResult]) -> Sequence[Any]:
        return _message(
            "user",
            [self._tool_references(result) or _result(result, self.media) for result in results],
        )

    def _tool_references(self, result: SentResult) -> dict[str, Any] | None:
        """Return the result of a search that brings tools: only references to them.

        https://platform.claude.com/docs/en/agents-and-tools/tool-use/tool-search-tool#custom-tool-search-implementation
        and the type `ToolReferenceBlockParam` of the `anthropic` package. A tool that is in the
        list cannot be referenced; the model has it there already.
        """
        names = [self._wire_name(own_name) for own_name in self.newly_found(result.message)]
        content = [{"type": "tool_reference", "tool_name": name} for name in names]
        form = {"type": "tool_result", "tool_use_id": result.id, "content": content}
        return form if names else None


_LONGEST_TITLE = 500


def _message(role: str, content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content}] if content else []


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _result(result: SentResult, media: frozenset[str]) -> dict[str, Any]:
    """Return a result's block. An error without a text would be refused.

    Its content is a text, or a list of blocks: texts, images, documents.
    https://platform.claude.com/docs/en/agents-and-tools/tool-use/implement-tool-use, and the type
    `ToolResultBlockParam` of the `anthropic` package.
    """
    form: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.id}
    message = result.message
    if not message.parts and message.content.strip():
        form["content"] = message.content
    elif blocks := in_blocks(message, media, _media_form, lambda text: _text(text)[0]):
        form["content"] = blocks
    if result.message.is_error:
        form |= {"content": form.get("content", "error"), "is_error": True}
    return form


def _media_form(part: Media, _position: int) -> dict[str, Any] | None:
    """Return the block of an image or a PDF. Anthropic fetches from https addresses only."""
    data = inline_data(part)
    if data is None and not part.url.startswith("https://"):
        return None
    media_type = media_type_of(part)
    if isinstance(part, Image):
        return _image(part) if not media_type or media_type in IMAGES else None
    if media_type != PDF:
        return None
    source = {"type": "url", "url": part.url}
    if data is not None:
        source = {"type": "base64", "media_type": media_type, "data": data}
    title = {"title": part.name[:_LONGEST_TITLE]} if part.name.strip() else {}
    return {"type": "document", "source": source} | title


def _image(image: Image) -> dict[str, Any]:
    source = {"type": "url", "url": image.url}
    head, _, data = image.url.partition(";base64,")
    if image.data:
        source = {"type": "base64", "media_type": image.media_type, "data": image.data}
    elif head.startswith("data:") and data:  # Anthropic accepts only https addresses
        media_type = head.removeprefix("data:").partition(";")[0]
        source = {"type": "base64", "media_type": media_type, "data": data}
    return {"type": "image", "source": source}


# The reply under construction: what events and complete bodies of Anthropic's messages add to it.
#
# Shapes: https://platform.claude.com/docs/en/api/messages, …/build-with-claude/streaming


_EVENTS: dict[str, tuple[str, ...]] = {
    "message_start": (),
    "content_block_start": ("index", "content_block"),
    "content_block_delta": ("index", "delta"),
    "content_block_stop": ("index",),
    "message_delta": ("delta",),
    "message_stop": (),
    "ping": ("index",),  # 0, from servers that write every member
}
"""The events, and the members in which a piece of a call may be."""


class AnthropicReply(BlockReply[ContentBlock]):
    """Takes events or a body of Anthropic's."""

    reason_key = "stop_reason"
    usage_keys = (
        *("input_tokens", "output_tokens"),
        *("cache_read_input_tokens", "cache_creation_input_tokens"),
    )

    def __init__(self, wire: Wire, *, offer: Offer, ids: str) -> None:
        super().__init__(wire, offer=offer, ids=ids)
        self._is_body = False
        self._id: object = None

    def body(self, body: dict[str, Any], data: bytes) -> None:
        if body.get("type") == "error":
            raise reported_error(body)
        content = body.get("content")
        if not isinstance(content, list):
            raise WireError("the reply has no content blocks: this is not an Anthropic message")
        self.is_recognized = self._is_body = True
        source = RawJson(data)
        for position, form in enumerate(content):
            tool_input = _input(form, source, "content", position)
            self._stop(self._begin(form, None, tool_input, []), [])
        self._take_reason(body)
        self._take_usage(body)

    def event(self, event: dict[str, Any], data: bytes, name: bytes, parts: Parts) -> None:
        kind = event.get("type") or name.decode("utf-8", "replace")
        self.is_recognized = self.is_recognized or (isinstance(kind, str) and kind in _EVENTS)
        if misplaced(event, kind, _EVENTS):
            self._calls.doubt_open_calls()
        self._take_misplaced(event, is_beginning=kind == "message_start")
        match kind:
            case "content_block_delta":
                self._take_delta(event, parts)
            case "content_block_start":
                form = event.get("content_block")
                tool_input = _input(form, RawJson(data), "content_block")
                self._take_start(form, _call_in(form), event.get("index"), tool_input, parts)
            case "content_block_stop":
                if block := self._by_index.get(self._calls.block_at(event.get("index"))):
                    self._stop(block, parts)
            case "message_start":
                self._take_message(event.get("message"))
            case "message_delta":
                self._take_reason(event.get("delta"))
                self._take_usage(event)
            case "message_stop":
                self.is_over = True
            case "error":
                raise reported_error(event)

    def _take_misplaced(self, event: dict[str, Any], *, is_beginning: bool) -> None:
        """Take calls and reasons from places in an event where a stream does not have them.

        Complete calls there must match those of the blocks. A reason counts only if it is not
        natural.
        """
        for holder in (event, event.get("message"), event.get("delta")):
            if isinstance(holder, dict):
                self.ending.take_stray_reason(holder.get("stop_reason"))
                content = holder.get("content")
                for form in content if isinstance(content, list) else ():
                    self._take_copy(form, is_beginning=is_beginning)

    def _take_copy(self, form: Any, *, is_beginning: bool) -> None:
        if (call := _call_in(form)) is not None:
            tool_input = call.get("input")
            text = "" if tool_input is None else dumped(tool_input, "input of a tool call is")
            is_placeholder = is_beginning and not text.strip("{} ")
            name, provider_id = call.get("name") or "", call.get("id") or ""
            self._calls.take_copy(str(provider_id), str(name), "" if is_placeholder else text)

    def _take_message(self, message: Any) -> None:
        """Take the beginning of a message. If another one had begun, its end is lost."""
        message_id = message.get("id") if isinstance(message, dict) else None
        if self._id and message_id and message_id != self._id:
            self.ending.take_sign("incomplete")
        self._id = self._id or message_id
        self._take_usage(message)

    def _take_delta(self, event: dict[str, Any], parts: Parts) -> None:
        delta = event.get("delta")
        if not isinstance(delta, dict):
            raise WireError("a `content_block_delta` has no delta")
        kind, member = delta_of(delta)
        index = self._calls.block_at(event.get("index"), of_call=member == "partial_json")
        previous = self._by_index.get(index)
        if previous is not None and previous.kind == "tool_use" and member not in delta:
            if previous.is_bare(delta, member):
                return
            self._calls.doubt_open_calls()  # it may carry input
        block = self._block_at(index, kind, parts)
        value = delta.get(member) if member else delta
        if member in ("", "citation"):
            block.add(member, value)
        elif isinstance(value, str):
            self._add(block, member, value, parts)
        elif value is not None:
            raise WireError(f"the `{member}` of a delta is not text")

    def _begin(self, form: Any, index: object, tool_input: str, parts: Parts) -> ContentBlock:
        """Begin a block. Its input is shown only when it ends."""
        if not isinstance(form, dict):
            raise WireError("a content block is not an object")
        block = self._add_block(ContentBlock(len(self._blocks), form), index)
        if block.kind == "tool_use":
            name, provider_id = name_in(form), str(form.get("id") or "")
            self.ending.note_call()
            self._calls.take_piece(block.number, provider_id, name, "")
            text = form.get("input")
            block.initial_input = text if isinstance(text, str) else tool_input
        elif block.kind == "text" and (text := form.get("text")):
            if not isinstance(text, str):
                raise WireError("the text of a block is not text")
            show_text(text, self._text, parts)
        elif block.kind != "text":
            self._text.append(APART)
        return block

    def _block_at(self, index: object, kind: str, parts: Parts) -> ContentBlock:
        """Return the block that a delta adds to. Begin one if it was not announced."""
        block = self._by_index.get(index)
        if block is None and index is None and self._blocks:
            block = self._blocks[-1]
        if block is None or not block.takes(kind):
            block = self._begin({"type": kind or "unknown"}, index, "", parts)
        return block

    def _add(self, block: ContentBlock, member: str, text: str, parts: Parts) -> None:
        if block.kind == "tool_use" and member == "partial_json":
            if text:
                self.ending.note_call()
                block.input.append(text)
            if part := self._calls.take_piece(block.number, "", "", text):
                parts.append(part)
            return
        if member == "partial_json" and block.stopped:
            self._calls.doubt_open_calls()
        block.add(member, text)
        if block.kind == "text" and text:
            show_text(text, self._text, parts)
        elif block.kind == member == "thinking":
            show_reasoning(text, parts)

    def _stop(self, block: ContentBlock, parts: Parts) -> None:
        self._settle(block, parts)
        block.stopped = True
        self._calls.end_call(block.number)

    def _settle(self, block: ContentBlock, parts: Parts) -> None:
        """Settle a call's input.

        The input that came with the beginning counts if none followed (gajae-code#1895). If both
        came, they must be the same.
        """
        tool_input, block.initial_input = block.initial_input, ""
        if block.began_bare and not (tool_input or block.input):
            self._calls.doubt(block.number, CONTRADICTORY)
        if not tool_input:
            return
        if not block.input:
            block.input.append(tool_input)
            if part := self._calls.take_piece(block.number, "", "", tool_input):
                parts.append(part)
        elif not same_json(tool_input, "".join(block.input)):
            self._calls.doubt(block.number, CONTRADICTORY)

    def finish(self, *, ended: bool, raw: Any) -> Reply:
        """Return the reply. `ended` says whether the provider declared it complete."""
        for block in self._blocks:
            self._settle(block, [])
        has_end = self._is_body or bool(self.ending.reason)  # otherwise a cut may have been lost
        return super().finish(ended=ended and has_end, raw=raw)

    def _state_blocks(self, forms: list[dict[str, Any]], *, is_cut: bool) -> list[dict[str, Any]]:
        return (
            [] if all(map(_is_plain, forms)) else [f for f in forms if _is_usable(f, is_cut=is_cut)]
        )


def _call_in(form: Any) -> dict[str, Any] | None:
    return form if isinstance(form, dict) and form.get("type") == "tool_use" else None


def _input(form: Any, source: RawJson, *path: str | int) -> str:
    """Return the input of the block at that place, as it was written; empty if there is none."""
    if (call := _call_in(form)) is None or call.get("input") is None:
        return ""
    return source.text(
        (*path, "input"), form["input"], "the input of a tool call is nested too deeply"
    )


# Requests of Anthropic's Messages, and the wire's value.
#
# A request contains only what the wire has a place for: system messages are outside the list of the
# others, errors are flagged, and there is no output schema and no member that only states the
# default. Shapes: https://platform.claude.com/docs/en/api/messages/create


_OWN_KEYS = frozenset(("model", "messages", "system", "tools", "stream"))
_ONLY_WITH_TOOLS = frozenset(("tool_choice",))
_ANY_SCHEMA = {"type": "object"}
_MODES = {"auto": "auto", "none": "none", "required": "any", "tool": "tool"}


def encode(
    wire: Wire, request: ChatRequest, *, model: str, stream: bool, memo: Memo | None
) -> HttpRequest:
    """Return the request for `wire`. Raises RequestError for a history or settings that cannot be
    sent.

    A choice among some tools has no form here. The others are left out of that request, which
    invalidates its cache, and the model cannot call them. If calls were made and no tool is on
    offer any more, the called tools are still declared, but may not be called: "Requests which
    include `tool_use` or `tool_result` blocks must define tools".
    """
    tools, history = tools_and_history(wire, request, memo, model=model)
    choice = checked_choice(request, tools)
    if choice is not None and choice.allowed:
        tools, choice = _narrowed(wire, request, tools, choice)
    body: dict[str, Any] = {"model": model}
    if history.instructions:
        body["system"] = orjson.Fragment(dumps(_system(history.instructions)))
    body["messages"] = history.encoded()
    if tool_members := tools_member(tools, request):
        body |= tool_members
        parallel_calls = request.parallel_calls if tools.names else None
        if choice_form := _choice(choice, parallel_calls):
            body["tool_choice"] = choice_form
    elif history.called:
        body["tools"] = [{"name": name, "input_schema": _ANY_SCHEMA} for name in history.called]
        body["tool_choice"] = {"type": "none"}
    body |= _settings(wire, request, tools, model)
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
    """Return the tools and the choice that express which are allowed; unchanged if all are."""
    allowed_names = frozenset(request.tool_choice.allowed)
    if choice.mode not in ("auto", "required") or allowed_names == tools.names.keys():
        return tools, choice
    if choice.mode == "required" and len(allowed_names) == 1:
        return tools, ToolChoice("tool", choice.allowed[0])
    return narrowed(wire, tools, allowed_names), choice


def _choice(choice: ToolChoice | None, parallel: bool | None) -> dict[str, Any]:
    """Return the choice in Anthropic's form; empty for `auto` with any number of calls."""
    mode = "auto" if choice is None else choice.mode
    form: dict[str, Any] = {"type": _MODES[mode]}
    if choice is not None and mode == "tool":
        form["name"] = choice.name
    if parallel is False and mode != "none":
        form["disable_parallel_tool_use"] = True
    return form if form != {"type": "auto"} else {}


def _settings(wire: Wire, request: ChatRequest, tools: SentTools, model: str) -> dict[str, Any]:
    """Set the token limit. Thinking counts towards it, so the thinking budget is added."""
    unwanted_keys = frozenset() if has_tools(tools, request) else _ONLY_WITH_TOOLS
    extra = extra_members(request.settings.extra, own_keys=_OWN_KEYS, unwanted_keys=unwanted_keys)
    thinking = extra.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    reasoning = reasoning_of(wire, request, model)
    max_tokens = (
        wire.default_max_tokens + reasoning.tokens + (budget if isinstance(budget, int) else 0)
    )
    members = {wire.max_tokens_key: max_tokens} | sampling(wire, request, reasoning.tokens) | extra
    add_members(members, reasoning.members)
    return members


_BY_BUDGET = re.compile(r"claude-(?:3|4-|(?:opus|sonnet|haiku)-4(?![-.][6-9]\b))")
_ALWAYS_THINKS = re.compile("claude-(?:fable|mythos|opus-5-5)")
_THINKS_BETWEEN_TOOLS = re.compile("claude-sonnet-5-5")


def claude_reasoning(effort: Effort, model: str) -> Reasoning:
    """Return how to ask Claude for an effort.

    From 4.6 on, Claude decides itself how much it thinks. Earlier models, and the models of other
    servers that know this form, get a budget.

    https://platform.claude.com/docs/en/build-with-claude/adaptive-thinking (a budget is "not
    supported for this model" from 4.7 on), `effort` there and `extended-thinking` ("Must be at
    least 1024 and less than `max_tokens`"). Fable, Mythos and Opus 5.5 always think; Sonnet 5.5
    takes `between_tools` for `disabled`
    (https://platform.claude.com/docs/en/models/sonnet-5-5/overview).
    """
    tokens = REASONING_TOKENS[effort]
    if "claude" not in model or _BY_BUDGET.search(model):
        budget = {"type": "enabled", "budget_tokens": tokens}
        return Reasoning({"thinking": budget if tokens else {"type": "disabled"}}, tokens)
    always_thinks = _ALWAYS_THINKS.search(model) is not None
    if effort == "minimal" or (always_thinks and effort == "none"):
        raise no_effort(
            effort, model, *(() if always_thinks else ("none",)), "low", "medium", "high"
        )
    if effort == "none":
        disabled_type = "between_tools" if _THINKS_BETWEEN_TOOLS.search(model) else "disabled"
        return Reasoning({"thinking": {"type": disabled_type}})
    members = {"thinking": {"type": "adaptive"}, "output_config": {"effort": effort}}
    return Reasoning(members, tokens)


_FINISH_REASONS: dict[str, FinishReason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    # The provider's own loop stopped at its limit, or to make room. To get the rest, send the
    # message back and ask again.
    "pause_turn": "length",
    "compaction": "length",
    "refusal": "refusal",
    # Reasons seen from servers that imitate this wire.
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


# "input_schema does not support oneOf, allOf, or anyOf at the top level" (anthropics/claude-code
# #40075); "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'", which looks at the top only
# (anthropics/claude-code#79418, decocms/studio#6874).
DIALECT = Dialect(
    name="anthropic",
    root_without=frozenset({"anyOf", "oneOf", "allOf", "$ref"}),
    property_names=r"[a-zA-Z0-9_.-]{1,64}",
    compact_over=VERY_LARGE,
)

# https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations,
# as of 2026, which strict tools share: "If you use an unsupported feature, you'll receive a 400
# error". Optional properties stay optional. Patterns ("complex patterns may result in 400 errors")
# and `minItems` (0 and 1 only) go into descriptions. References are accepted if they are not
# recursive and have nothing next to them. How a definition that is used twice counts is not
# documented, so references are inlined.
_STRICT_KEYWORDS = frozenset(
    ("type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const",
     "title", "description", "default", "format")
)  # fmt: skip

_STRICT_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
)  # fmt: skip

STRICT_DIALECT = Dialect(
    name="anthropic-strict",
    keywords=_STRICT_KEYWORDS,
    formats=_STRICT_FORMATS,
    root_without=frozenset({"anyOf", "oneOf", "allOf", "enum", "const", "$ref"}),
    refs="none",
    unroll=1,
    closed=True,
    booleans=False,
    need_items=True,
    property_names=r"[a-zA-Z0-9_.-]{1,64}",
    compact_over=VERY_LARGE,
)


def _tool(tool: ShownTool) -> dict[str, Any]:
    """Write a tool, including `input_examples`:
    https://platform.claude.com/docs/en/api/messages/create, `tools`

    Each example has to fit the schema that is sent, or the whole request is refused.
    """
    form = described(tool) | {"input_schema": tool.schema}
    if tool.strict is not None:
        form["strict"] = tool.strict
    if tool.examples:
        form["input_examples"] = list(tool.examples)
    return form


TOOLS = ToolForm(
    name="anthropic",
    names=NameRule("A-Za-z0-9_-", 128),
    dialect=DIALECT,
    strict_dialect=STRICT_DIALECT,
    # https://platform.claude.com/docs/en/build-with-claude/structured-outputs#schema-complexity-limits.
    # There are further limits without a number ("Schema is too complex for compilation").
    strict_limits=StrictLimits(tools=20, optional=24, unions=16),
    shape=_tool,
    examples=5,  # each costs tokens in every request; more teach little
)


def _answer(answer: ShownAnswer) -> dict[str, Any]:
    """Write `output_config`:
    https://platform.claude.com/docs/en/build-with-claude/structured-outputs"""
    return {"format": {"type": "json_schema", "schema": orjson.Fragment(answer.schema)}}


# "generally available on the Claude API and Amazon Bedrock for Claude Opus 4.6, Sonnet 4.6, Sonnet 4.5,
# Opus 4.5 and Haiku 4.5", and their successors.
CLAUDES = r"claude-(?:opus|sonnet|haiku)-(?:4-[5-9]\b|[5-9]\b|\d\d\b)"

OUTPUT = OutputForm(
    shape=_answer,
    within="output_config",
    strict_dialect=STRICT_DIALECT,
    strict_limits=TOOLS.strict_limits,
    beside_tools=True,
    models=CLAUDES,
    servers=frozenset(("api.anthropic.com",)),
)

# https://platform.claude.com/docs/en/agents-and-tools/tool-use/tool-search-tool, as of 2026: "Deferred
# tools are not included in the system-prompt prefix"; "Every tool referenced must have a corresponding
# tool definition in the top-level `tools` parameter with `defer_loading: true`"; "not compatible with
# tool use examples". The models are those of its list.
DEFERRED = DeferredForm(
    models=rf"{CLAUDES}|claude-(?:fable|mythos)-",
    servers=frozenset(("api.anthropic.com",)),
    mark={"defer_loading": True},
    listed=True,
    without=frozenset(("input_examples",)),
)

_TYPES = _EVENTS.keys() - {"ping"} | {"message"}

ANTHROPIC = Wire(
    name="anthropic",
    path="/v1/messages",
    encode=encode,
    tools=TOOLS,
    make_decoder=decoding_by(AnthropicReply),
    auth=lambda key: {"x-api-key": key},
    natural_reasons=frozenset(("tool_use", "end_turn", "stop_sequence")),
    finish_reasons=_FINISH_REASONS,
    history=AnthropicHistory,
    headers={"anthropic-version": "2023-06-01"},
    default_max_tokens=8192,
    reasoning=claude_reasoning,
    deferred=DEFERRED,
    output=OUTPUT,
    prompt_media=IMAGES | {PDF},
    result_media=IMAGES | {PDF},
    is_reply=lambda value: str(value.get("type")) in _TYPES,
)
