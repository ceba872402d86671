"""Cohere's chat, version 2: requests, replies, and the wire's value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson

from toolcrib.errors import WireError
from toolcrib.schema.lower import Dialect
from toolcrib.values.content import Image, Media
from toolcrib.values.json import JsonObject
from toolcrib.values.message import (
    ChatRequest,
    Effort,
    FinishReason,
    Message,
    Offer,
    Reply,
    Usage,
)
from toolcrib.wire.base import (
    REASONING_TOKENS,
    HttpRequest,
    Memo,
    Reasoning,
    SentTools,
    Wire,
    bearer,
    checked_choice,
    http_request,
    narrowed,
    refuse_single_calls,
    settings_members,
    tools_and_history,
    tools_member,
)
from toolcrib.wire.calls import (
    APART,
    NOWHERE,
    CallAssembler,
    Ending,
    index_of,
    misplaced,
    reason_of,
)
from toolcrib.wire.content import IMAGES
from toolcrib.wire.decoding import Parts, decoding_by, show_reasoning, show_text, token_count
from toolcrib.wire.failure import reported_error
from toolcrib.wire.forms import (
    VERY_LARGE,
    NameRule,
    OutputForm,
    ShownAnswer,
    ShownTool,
    ToolForm,
    asked_output,
)
from toolcrib.wire.history import EncodedList, SentCall, dumps
from toolcrib.wire.json_text import mended
from toolcrib.wire.openai_chat import ChatHistory, call_form

# The messages of a request to Cohere: OpenAI's, with changes according to Cohere's error messages.
#
# "system turn must be the first in the list": the texts of all system messages are one message,
# before the others. "message must not be empty in a turn": a message without text and calls is left
# out. https://docs.cohere.com/reference/errors


class CohereHistory(ChatHistory):
    """Writes `messages`: https://docs.cohere.com/v2/reference/chat. A result has no error flag."""

    @property
    def silent(self) -> bool:
        return not (self._text or self.instructions)

    def encoded(self) -> EncodedList:
        if not self.instructions:
            return super().encoded()
        first = dumps({"role": "system", "content": "\n\n".join(self.instructions)})
        return EncodedList((b"[", first, b"," if self._text else b"", self._text, b"]"))

    def system(self, message: Message) -> Sequence[Any]:
        if message.content:
            self.instructions.append(message.content)
        return []

    def user(self, message: Message) -> Sequence[Any]:
        has_content = message.content or message.images or message.parts
        return super().user(message) if has_content else []

    def attachment(self, part: Media, position: int) -> dict[str, Any] | None:
        return super().attachment(part, position) if isinstance(part, Image) else None

    def assistant(self, message: Message, calls: Sequence[SentCall]) -> Sequence[Any]:
        """Send thinking, a plan and citations back unchanged, unless the text was changed since.

        "text content is not allowed when tool_calls are provided […] use 'tool_plan'"
        (vercel/ai#5794), so a text with calls is sent as their plan.
        """
        blocks, plan, citations = _kept_members(self.state(message))
        form: dict[str, Any] = {"role": "assistant"}
        if not calls:
            if not message.content:
                return []
            if not blocks or "".join(b.get("text", "") for b in blocks) != message.content:
                return [form | {"content": message.content}]
            cited = {"citations": citations} if citations else {}
            return [form | {"content": blocks} | cited]
        if thinking := [block for block in blocks if block.get("type") != "text"]:
            form["content"] = thinking
        if plans := [text for text in (plan, message.content) if text]:
            form["tool_plan"] = "\n\n".join(plans)
        return [form | {"tool_calls": [call_form(call) for call in calls]}]


def _kept_members(state: Any) -> tuple[list[dict[str, Any]], str, list[Any]]:
    """Return content, plan and citations from a state; nothing from an unknown one."""
    state = state if isinstance(state, dict) else {}
    content, plan, citations = map(state.get, ("content", "tool_plan", "citations"))
    blocks = [b for b in content if _is_usable(b)] if isinstance(content, list) else []
    citation_list = citations if isinstance(citations, list) else []
    return blocks, plan if isinstance(plan, str) else "", citation_list


def _is_usable(block: Any) -> bool:
    return isinstance(block, dict) and isinstance(block.get("text", ""), str)


# The reply under construction: what events and complete bodies of Cohere's chat add to it.
#
# A stream sends the members of a message piece by piece, each at its index. What a complete reply
# has in `content`, `tool_plan` and `citations` is assembled in the same form.


_EVENTS: dict[str, tuple[str, ...]] = {
    "message-start": ("delta",),
    "content-start": ("index", "delta"),
    "content-delta": ("index", "delta"),
    "content-end": ("index",),
    "tool-plan-delta": ("delta",),
    "tool-call-start": ("index", "delta"),
    "tool-call-delta": ("index", "delta"),
    "tool-call-end": ("index",),
    "citation-start": ("index", "delta"),
    "citation-end": ("index",),
    "message-end": ("delta",),
}
"""The events, and the members in which a piece of a call may be."""
_TEXT_KINDS = ("text", "thinking")


class _ContentPart(msgspec.Struct, eq=False):
    """A part of the content: its first form, and the pieces of the member named like its kind."""

    kind: str
    first_form: dict[str, Any]
    pieces: list[str] = []

    def form(self) -> dict[str, Any]:
        text_member = {self.kind: mended("".join(self.pieces))} if self.kind in _TEXT_KINDS else {}
        return self.first_form | text_member


class CohereReply:
    """Takes events or a body: https://docs.cohere.com/v2/reference/chat and …/chat-stream

    The plan for its calls is not what the model says to the user. It is kept for the next request,
    as are thinking and citations.
    """

    is_over = False  # Cohere itself sends `[DONE]` last; elsewhere the body just ends

    def __init__(self, wire: Wire, *, offer: Offer, ids: str) -> None:
        self.is_recognized = False
        self._is_body = False
        self._id: object = None
        self._begun = False
        self.ending = Ending(wire, offer)
        self._text: list[str] = []
        self._plan: list[str] = []
        self._citations: list[Any] = []
        self._blocks: list[_ContentPart] = []
        self._by_index: dict[object, _ContentPart] = {}
        self._calls = CallAssembler(offer, ids, has_end_marks=True)
        self._usage: JsonObject = {}

    def body(self, body: JsonObject, data: bytes) -> None:
        _check(body)
        message = body.get("message")
        if not isinstance(message, dict):
            raise WireError(
                "the reply has no message: this is not an answer of version 2 of Cohere's chat API"
            )
        self._is_body = True
        self._take_reason_and_usage(body)
        for index, block in enumerate(_list_member(message, "content")):
            self._block(index, block, [])
        self._add_plan(message)
        self._citations += _list_member(message, "citations")
        for call in _list_member(message, "tool_calls"):
            self._calls.take_whole(*_call(call))

    def event(self, event: JsonObject, data: bytes, name: bytes, parts: Parts) -> None:
        """Take one event. Raises WireError, and ProviderError for a reported error."""
        kind = event.get("type") or name.decode("utf-8", "replace")
        if misplaced(event, kind, _EVENTS):
            self._calls.doubt_open_calls()
        self._take_reasons(event)
        if not isinstance(kind, str) or kind not in _EVENTS:
            _check(event)
            return
        self.is_recognized = True
        self._calls.chunk += 1
        index = index_of(event.get("index"))
        if index in (None, NOWHERE) and kind == "tool-call-end":
            index = self._calls.index_of_open_call()
        self._take_mark(kind, event.get("id"), index)
        delta = _object_member(event, "delta")
        message = _object_member(delta, "message")
        if kind == "message-end":
            self._take_end(delta, message)
            return
        for block in _list_member(message, "content"):
            self._block(index, block, parts)
        self._add_plan(message)
        self._citations += _list_member(message, "citations")
        self._take_calls(kind, index, _list_member(message, "tool_calls"), parts)

    def _take_calls(self, kind: str, index: object, calls: list[Any], parts: Parts) -> None:
        if not calls and kind in ("tool-call-start", "tool-call-delta"):
            self._calls.doubt_open_calls()
        for call in calls:
            self.ending.note_call()
            if kind == "tool-call-delta" and not _has_arguments(call):
                self._calls.doubt_open_calls()
            if part := self._calls.take_piece(index, *_call(call)):
                parts.append(part)

    def _take_reasons(self, event: JsonObject) -> None:
        """Take a reason that is not natural, whatever the event's type."""
        for holder in (event, event.get("delta")):
            if isinstance(holder, dict):
                self.ending.take_stray_reason(holder.get("finish_reason"))

    def _take_end(self, delta: JsonObject, message: JsonObject) -> None:
        """Take the end of the message. Calls in it are copies of those before it."""
        if delta.get("error"):
            raise reported_error(delta["error"])
        self._take_reason_and_usage(delta)
        self._calls.close()
        for call in _list_member(message, "tool_calls"):
            self._calls.take_copy(*_call(call))

    def _take_mark(self, kind: str, message_id: object, index: object) -> None:
        """Take the end of a call or the beginning of a message. If another was open, its end is
        lost."""
        if kind == "tool-call-end":
            self._calls.end_call(index)
        elif kind == "message-start":
            if self._begun and (not message_id or message_id != self._id):
                self.ending.take_sign("incomplete")
            self._id, self._begun = message_id, True

    def _block(self, index: object, piece: Any, parts: Parts) -> None:
        """Take a part of the content, or a piece of one. Only text is for the user."""
        if isinstance(piece, str):
            piece = {"type": "text", "text": piece}
        if not isinstance(piece, dict):
            raise WireError("a part of the content is not an object")
        members = {key: value for key, value in piece.items() if key not in _TEXT_KINDS}
        if members:
            self._part_at(index, str(members.get("type") or "")).first_form |= members
        for kind in _TEXT_KINDS:
            text = piece.get(kind)
            if text is None:
                continue
            if not isinstance(text, str):
                raise WireError(f"the {kind} of a part of the content is not text")
            self._part_at(index, kind).pieces.append(text)
            if kind == "thinking":
                show_reasoning(text, parts)
            elif text:
                show_text(text, self._text, parts)

    def _part_at(self, index: object, kind: str) -> _ContentPart:
        """Return the block that a piece adds to. Begin one if it was not announced."""
        block = self._by_index.get(index)
        if block is None or (kind and kind != block.kind):
            block = self._by_index[index] = _ContentPart(kind, {"type": kind} if kind else {})
            self._blocks.append(block)
            if kind not in ("", "text"):
                self._text.append(APART)
        return block

    def _add_plan(self, message: Mapping[str, Any]) -> None:
        plan = message.get("tool_plan")
        if isinstance(plan, str):
            self._plan.append(plan)

    def _take_reason_and_usage(self, holder: Mapping[str, Any]) -> None:
        reason, usage = holder.get("finish_reason"), holder.get("usage")
        if reason_of(reason):
            self.ending.take_reason(reason)
        self._usage = usage if isinstance(usage, dict) else self._usage

    def finish(self, *, ended: bool, raw: Any) -> Reply:
        """Return the reply. `ended` says whether the provider declared it complete."""
        has_end = self._is_body or bool(self.ending.reason)  # otherwise a cut may have been lost
        self.ending.stop(ended=ended and has_end)
        calls = self.ending.calls(self._calls)
        return self.ending.reply(
            self._text, calls, self._billed_usage(), raw=raw, state=self._state()
        )

    def _state(self) -> dict[str, Any]:
        """Return the parts of the message other than its text and calls; empty if none."""
        state: dict[str, Any] = {}
        blocks = [block.form() for block in self._blocks]
        if self._citations or any(block.get("type") != "text" for block in blocks):
            state["content"] = blocks
        if plan := mended("".join(self._plan)):
            state["tool_plan"] = plan
        if self._citations:
            state["citations"] = self._citations
        return state

    def _billed_usage(self) -> Usage:
        """Return the billed tokens; `tokens` also counts what Cohere adds to a prompt."""
        counts = self._usage.get("billed_units") or self._usage.get("tokens")
        counts = counts if isinstance(counts, dict) else {}
        return Usage(1, token_count(counts, "input_tokens"), token_count(counts, "output_tokens"))


def _check(payload: JsonObject) -> None:
    """Raise the error in a body, which only shows in that its message is a string."""
    if isinstance(payload.get("message"), str):
        raise reported_error(payload)


def _object_member(form: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a member that is an object, empty if absent. Raises WireError for another type.

    Its content may be a piece of a call.
    """
    value = form.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise WireError(f"the {key} of an event is not an object")
    return value


def _list_member(message: Mapping[str, Any], key: str) -> list[Any]:
    """Return a member as a list: complete messages have one, a piece has a single item."""
    value = message.get(key)
    return value if isinstance(value, list) else [] if value is None else [value]


def _has_arguments(call: Any) -> bool:
    """Return whether a piece of a call has a place for arguments."""
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and "arguments" in function


def _call(call: Any) -> tuple[str, str, str]:
    """Return id, name and arguments, each empty if this piece does not have it."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise WireError("a tool call is not an object with a function")
    values = (call.get("id"), function.get("name"), function.get("arguments"))
    id_, name, arguments = ("" if value is None else value for value in values)
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise WireError("the name or the arguments of a tool call are not text")
    return id_ if isinstance(id_, str) else str(id_), name, arguments


# Requests of Cohere's chat, version 2, and the wire's value.
#
# A choice of one tool, or among some, has no form here, so the others are left out of that request.
# Cohere refuses members that it does not know. Shapes: https://docs.cohere.com/v2/reference/chat


_OWN_KEYS = frozenset(("model", "messages", "tools", "stream"))
_ONLY_WITH_TOOLS = frozenset(("tool_choice", "strict_tools"))


def encode(
    wire: Wire, request: ChatRequest, *, model: str, stream: bool, memo: Memo | None
) -> HttpRequest:
    """Return the request for `wire`. Raises RequestError for a history or settings that cannot be
    sent.

    Strictness applies to the whole request: `Settings.extra={"strict_tools": True}`.
    """
    tools, history = tools_and_history(wire, request, memo, model=model)
    tools, choice = _choice(wire, request, tools)
    body: dict[str, Any] = {"model": model, "messages": history.encoded()}
    body |= tools_member(tools, request)
    if choice is not None:
        body["tool_choice"] = choice
    body |= settings_members(
        wire, request, tools, model=model, own_keys=_OWN_KEYS, only_with_tools=_ONLY_WITH_TOOLS
    )
    offer = asked_output(wire.output, request, body, model=model, offer=tools.offer)
    if stream:
        body["stream"] = True
    return http_request(wire, wire.path, body, stream=stream, offer=offer)


def _choice(wire: Wire, request: ChatRequest, tools: SentTools) -> tuple[SentTools, str | None]:
    """Return the tools that the choice leaves, and the word for the choice; None for `auto`."""
    refuse_single_calls(wire, request, tools)
    choice = request.tool_choice
    if checked_choice(request, tools) is None:
        return tools, None
    if choice.mode == "none":
        return tools, "NONE"
    allowed_names = (choice.name,) if choice.mode == "tool" and choice.name else choice.allowed
    tools = narrowed(wire, tools, allowed_names) if allowed_names else tools
    return tools, None if choice.mode == "auto" else wire.required_choice


_FINISH_REASONS: dict[str, FinishReason] = {
    "max_tokens": "length",
    "error": "error",
    "timeout": "error",
    # Reasons of the service before version 2, which hosts of its models still use.
    "error_limit": "length",
    "error_toxic": "content_filter",
    "user_cancel": "incomplete",
}


# "schema must be an object" (https://docs.cohere.com/reference/errors). The other restrictions
# (https://docs.cohere.com/docs/structured-outputs) apply only to requests with `strict_tools`.
DIALECT = Dialect(
    name="cohere",
    root_without=frozenset({"anyOf", "oneOf", "allOf", "enum", "not", "$ref"}),
    booleans=False,
    compact_over=VERY_LARGE,
)

# What https://docs.cohere.com/docs/structured-outputs does not list as unsupported for an answer:
# no combinations, ranges or lengths. The caller has to check for a part that would lose its type.
ANSWER_DIALECT = Dialect(
    name="cohere-output",
    keywords=frozenset({"type", "items", "description", "enum", "properties", "required"}),
    root_without=frozenset({"anyOf", "oneOf", "allOf", "enum"}),
    refs="none",
    booleans=False,
    need_items=True,
    compact_over=VERY_LARGE,
)


def _tool(tool: ShownTool) -> dict[str, Any]:
    """Write a tool nested: https://docs.cohere.com/v2/reference/chat, `tools`. A single tool has no
    `strict`.

    "the 'tool_1' tool must have at least a description, input, or output": the name is used as
    description.
    """
    function = {"name": tool.name, "description": tool.description or tool.name}
    return {"type": "function", "function": function | {"parameters": tool.schema}}


# "tool names can only contain certain characters (A-Za-z0-9_) and can't begin with a digit"
# (https://docs.cohere.com/reference/errors). No limit on their length is stated.
TOOLS = ToolForm(
    name="cohere",
    names=NameRule("A-Za-z0-9_", 64, first="A-Za-z_"),
    dialect=DIALECT,
    shape=_tool,
)


def _answer(answer: ShownAnswer) -> dict[str, Any]:
    """Write the format in JSON schema mode: https://docs.cohere.com/docs/structured-outputs"""
    schema = orjson.Fragment(answer.schema)
    return {"response_format": {"type": "json_object", "json_schema": schema}}


# "not supported when used in combinations with the `documents` or `tools` parameters" (Cohere's
# SDK, about JsonObjectResponseFormatV2).
OUTPUT = OutputForm(shape=_answer, dialect=ANSWER_DIALECT, plain=True)


def _reasoning(effort: Effort, _model: str) -> Reasoning:
    """Write a budget, which counts towards the token limit, or that there is no reasoning.

    https://docs.cohere.com/docs/reasoning, `thinking`
    """
    tokens = REASONING_TOKENS[effort]
    thinking = {"type": "enabled", "token_budget": tokens} if tokens else {"type": "disabled"}
    return Reasoning({"thinking": thinking}, tokens)


def _is_reply(value: JsonObject) -> bool:
    is_body = isinstance(value.get("message"), dict) and "finish_reason" in value
    return is_body or str(value.get("type")) in _EVENTS


# https://docs.cohere.com/docs/models: the others accept text only
_VISION_MODELS = "vision|command-a-plus"

COHERE = Wire(
    name="cohere",
    path="/chat",
    encode=encode,
    tools=TOOLS,
    make_decoder=decoding_by(CohereReply),
    auth=bearer,
    natural_reasons=frozenset(("tool_call", "complete", "stop_sequence")),
    finish_reasons=_FINISH_REASONS,
    history=CohereHistory,
    required_choice="REQUIRED",
    output=OUTPUT,
    prompt_media=IMAGES,
    prompt_models=_VISION_MODELS,
    result_media=IMAGES,
    result_models=_VISION_MODELS,
    reasoning=_reasoning,
    is_reply=_is_reply,
)
