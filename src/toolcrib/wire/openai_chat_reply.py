"""Replies of OpenAI Chat Completions, assembled from chunks or a complete body."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from typing import Any, Literal

import msgspec
import orjson
from msgspec.structs import replace

from toolcrib.errors import WireError
from toolcrib.values.call import ToolCall
from toolcrib.values.json import JsonObject
from toolcrib.values.message import (
    Offer,
    Reply,
    Usage,
)
from toolcrib.wire.base import Wire
from toolcrib.wire.calls import (
    CONTRADICTORY,
    NATURAL,
    CallAssembler,
    Ending,
    choice_of,
    index_of,
    member_of,
    reason_of,
)
from toolcrib.wire.decoding import Parts, cached_tokens, show_reasoning, show_text, token_count
from toolcrib.wire.failure import reported_error
from toolcrib.wire.json_text import RawJson, check_keys, json_key, mended, same_json

# Errors and usage, which a chunk or a body has next to its choices.
#
# OpenAI has one member for each; compatible servers use other places.


_ERROR_TEXTS = ("message", "detail", "msg")


def check_error(payload: JsonObject) -> None:
    """Raise ClientError for an error that is not under `error`.

    It takes the place of the choices (vLLM's and Mistral's `object: "error"`, FastAPI's `detail`,
    MiniMax's `base_resp`); Groq says in `x_groq` why it stopped a stream early.
    """
    groq_error = _member(payload, "x_groq").get("error")
    if groq_error:
        raise reported_error(groq_error)
    if payload.get("choices") is not None:
        return
    status = _member(payload, "base_resp")
    if status.get("status_code"):
        raise reported_error({"message": status.get("status_msg"), "code": status["status_code"]})
    if payload.get("object") == "error" or any(
        isinstance(payload.get(k), str) for k in _ERROR_TEXTS
    ):
        raise reported_error(payload)


def usage_in(payload: JsonObject) -> JsonObject:
    """Return the counts.

    Groq streams them in `x_groq`, Moonshot in the choice (earendil-works/pi#2017).
    """
    usual_usage = payload.get("usage")
    if isinstance(usual_usage, dict) and usual_usage:
        return usual_usage
    choices = payload.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    for holder in (payload.get("x_groq"), choice):
        if isinstance(holder, dict) and "usage" in holder and (usage := _member(holder, "usage")):
            return usage
    return {}


def usage_from(usage: JsonObject) -> Usage:
    """Return the usage; Moonshot and DeepSeek count cached tokens under other names."""
    from_cache = cached_tokens(usage, "prompt_tokens_details")
    from_cache = from_cache or token_count(usage, "cached_tokens")
    from_cache = from_cache or token_count(usage, "prompt_cache_hit_tokens")
    input_tokens = token_count(usage, "prompt_tokens")
    output_tokens = token_count(usage, "completion_tokens")
    return Usage(1, input_tokens, output_tokens, from_cache)


def _member(holder: Any, key: str) -> JsonObject:
    value = holder.get(key) if isinstance(holder, dict) else None
    return value if isinstance(value, dict) else {}


# Decode the usual chunk of a stream, as nearly every server sends it, into just its contents.
#
# The type is the rule. It names every member that can have a meaning. A value that does not fit
# makes the chunk unusual, and it is read elsewhere, more carefully. A chunk that can be read both
# ways means the same. This halves the time for a stream of 50,000 chunks.


class ChunkFunction(msgspec.Struct, gc=False):
    """Arguments that are not a string make the chunk unusual."""

    name: str | None = None
    arguments: str | None = None


class ChunkCall(msgspec.Struct, gc=False):
    """A piece of a call, with nothing of it outside of its function."""

    function: ChunkFunction
    index: int | None = None
    id: str | None = None
    custom: None = None
    name: None = None
    arguments: None = None
    extra_content: None = None
    provider_specific_fields: None = None


class Delta(msgspec.Struct):
    """The piece that a chunk adds to its choice's message."""

    tool_calls: list[ChunkCall] | None = None
    content: str | None = None
    function_call: None = None
    refusal: Literal[""] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: None = None
    thinking_blocks: None = None
    extra_content: None = None
    provider_specific_fields: None = None


class ChunkChoice(msgspec.Struct):
    """A choice that continues."""

    delta: Delta
    index: int = 0
    finish_reason: Literal[""] | None = None
    native_finish_reason: Literal[""] | None = None
    error: None = None
    usage: None = None
    message: None = None


class Chunk(msgspec.Struct):
    """A chunk with one choice, and without usage or errors."""

    choices: tuple[ChunkChoice]
    usage: None = None
    error: None = None
    x_groq: None = None


_decode_chunk = msgspec.json.Decoder(Chunk).decode


def fast_choice(data: bytes) -> ChunkChoice:
    """Decode the choice in a chunk.

    Raises ValueError, TypeError or RecursionError for an unusual chunk.
    """
    check_keys(orjson.loads(data), data)  # the decoder would keep the last of two
    return _decode_chunk(data).choices[0]


# Members of a model's message other than text and calls: stored, and sent back under the same
# names.
#
# Servers whose models think want the thoughts back with the calls that they led to (DeepSeek and
# Moonshot refuse a request without them), and signatures with the message or the call that they
# came with. https://api-docs.deepseek.com/guides/thinking_mode,
# https://openrouter.ai/docs/use-cases/reasoning-tokens,
# https://ai.google.dev/gemini-api/docs/openai, https://docs.litellm.ai/docs/reasoning_content


_TEXT_MEMBERS = ("reasoning_content", "reasoning")
_LIST_MEMBERS = ("reasoning_details", "thinking_blocks")
_KEPT_CALL_MEMBERS = ("extra_content", "provider_specific_fields")
MEMBERS = (*_TEXT_MEMBERS, *_LIST_MEMBERS, *_KEPT_CALL_MEMBERS)
"""The members of a message that are kept, always in this order, as providers cache by bytes."""
_MEMBER_SET, _KEPT_CALL_MEMBER_SET = frozenset(MEMBERS), frozenset(_KEPT_CALL_MEMBERS)
_GROWING_MEMBERS = ("text", "summary", "thinking")
_CALLS_KEY = "calls"


class KeptMembers(msgspec.Struct, eq=False):
    """Collects the members of a reply that go back to the provider, complete or in pieces."""

    _texts: dict[str, list[str]] = {}
    _lists: dict[str, list[Any]] = {}
    _other_members: JsonObject = {}
    _calls: dict[str, JsonObject] = {}

    def add(self, message: JsonObject) -> None:
        """Take the members of a message, or of a piece of one."""
        for name in _TEXT_MEMBERS:
            self.add_text(name, message.get(name))
        for name in _LIST_MEMBERS:
            value = message.get(name)
            if isinstance(value, list):
                self._lists.setdefault(name, []).extend(value)
        self._other_members |= _present_members(message, _KEPT_CALL_MEMBERS)

    def add_text(self, name: str, text: object) -> None:
        """Take a piece of a thought. An empty one has to be sent back, too."""
        if isinstance(text, str):
            self._texts.setdefault(name, []).append(text)

    def add_call(self, call: JsonObject, call_id: str) -> None:
        """Take the members of a call, or a piece of one, except its function; `call_id` is ours."""
        if members := _present_members(call, _KEPT_CALL_MEMBERS):
            self._calls[call_id] = self._calls.get(call_id, {}) | members

    def state(self) -> JsonObject:
        """Return all members by name, those of calls under `calls`; empty if there are none."""
        texts: JsonObject = {name: mended("".join(pieces)) for name, pieces in self._texts.items()}
        lists = {name: _merged(pieces) for name, pieces in self._lists.items() if pieces}
        members: JsonObject = texts | lists | self._other_members
        return members | {_CALLS_KEY: dict(self._calls)} if self._calls else members


def of_message(state: Any) -> JsonObject:
    """Return the message's part of a state; empty for an unknown state."""
    return _present_members(state, MEMBERS)


def of_call(state: Any, call_id: str) -> JsonObject:
    """Return what a state keeps for that call of ours."""
    calls = state.get(_CALLS_KEY) if isinstance(state, dict) else None
    return (
        _present_members(calls.get(call_id), _KEPT_CALL_MEMBERS) if isinstance(calls, dict) else {}
    )


def _present_members(holder: Any, names: Iterable[str]) -> JsonObject:
    if not isinstance(holder, dict):
        return {}
    return {name: holder[name] for name in names if holder.get(name) is not None}


def _merged(pieces: list[Any]) -> list[Any]:
    """Merge pieces into blocks; a piece continues the preceding block if it can belong to it."""
    blocks: list[Any] = []
    growing_texts: dict[str, list[str]] = {}
    for piece in pieces:
        if not blocks or not _continues_block(blocks[-1], piece):
            _close(blocks, growing_texts)
            blocks.append(dict(piece) if isinstance(piece, dict) else piece)
        else:
            blocks[-1] |= {key: value for key, value in piece.items() if value is not None}
        if isinstance(piece, dict):
            for key in _GROWING_MEMBERS:
                if isinstance(piece.get(key), str):
                    growing_texts.setdefault(key, []).append(piece[key])
    _close(blocks, growing_texts)
    return blocks


def _close(blocks: list[Any], growing_texts: dict[str, list[str]]) -> None:
    if blocks and isinstance(blocks[-1], dict):
        blocks[-1] |= {key: mended("".join(texts)) for key, texts in growing_texts.items()}
    growing_texts.clear()


def _continues_block(block: Any, piece: Any) -> bool:
    """Return whether a piece has the block's type, place and id, and precedes its signature."""
    if not isinstance(block, dict) or not isinstance(piece, dict):
        return False
    if "data" in block or "data" in piece or block.get("signature"):
        return False
    same_id = None in (block.get("id"), piece.get("id")) or block.get("id") == piece.get("id")
    return same_id and all(block.get(key) == piece.get(key) for key in ("type", "index"))


# The reply under construction: what chunks and complete bodies of chat completions add to it.


_CALL_MEMBERS = ("tool_calls", "function_call")
_OUTSIDE_MEMBERS = frozenset(("custom", "name", "arguments"))
_MEMBERS_WITHOUT_CONTENTS = frozenset(("index", "id", "type", "name"))
_PATIENCE = 16
"""After this many unusual chunks, all of a server's are assumed to be, as trying takes time."""


class ChatReply:
    """Takes chunks, and gives the `Reply`. Only the first choice counts.

    The others are only checked for pieces of a call that none of their own can have
    (`wire/calls.py`). `is_recognized` says whether `choices` was ever there, `seen` whether it
    contained any.

    `fast` takes chunks before `event` sees them, and arguments that are not strings are cut out of
    the bytes that `body` and `event` receive. Both know the members only by OpenAI's names; a
    member with another name does not exist for them. A subclass for a server with other names must
    pass both methods a body and bytes that agree, and have a `fast` that returns False. Otherwise a
    call runs without its arguments.
    """

    is_over = False  # the wire's own end is no chunk: `[DONE]`

    def __init__(self, wire: Wire, *, offer: Offer, ids: str) -> None:
        self.is_recognized = False
        self.seen = False
        self._wire = wire
        self.ending = Ending(wire, offer)
        self._text: list[str] = []
        self._text_size = 0
        self._kept_members: KeptMembers | None = None
        self._ids = ids
        self._calls = CallAssembler(offer, ids)
        self._legacy: CallAssembler | None = None  # for `function_call`, if one comes
        self._other_choices: dict[int, CallAssembler] = {}
        self._has_deltas = False
        self._copies: list[CallAssembler] = []
        self._offer = offer
        self._choice: object = None
        self._refused = False
        self._usage: dict[str, Any] = {}
        self._source = RawJson(b"")
        self._choice_path = 0, ""
        self._patience = _PATIENCE

    def body(self, body: dict[str, Any], data: bytes) -> None:
        self._chunk(body, data, is_body=True, parts=[])
        if not self.seen:
            raise WireError("the reply has no choices: this is not a chat completion")

    def event(self, event: dict[str, Any], data: bytes, _name: bytes, parts: Parts) -> None:
        self._chunk(event, data, is_body=False, parts=parts)

    def fast(self, data: bytes, parts: Parts) -> bool:
        if not (self.seen and self._patience):
            return False
        try:
            choice = fast_choice(data)
        except (ValueError, TypeError, RecursionError):
            self._patience -= 1
            return False
        if choice.index != self._choice:
            return not choice.delta.tool_calls
        delta = choice.delta
        if delta.reasoning_content or delta.reasoning:
            self._kept_members = kept_members = self._kept_members or KeptMembers()
            kept_members.add_text("reasoning_content", delta.reasoning_content)
            kept_members.add_text("reasoning", delta.reasoning)
            show_reasoning(delta.reasoning_content or delta.reasoning, parts)
        if calls := delta.tool_calls:
            self._calls.chunk += 1
            for call in calls:
                name, text = call.function.name or "", call.function.arguments or ""
                if self.ending.natural:
                    self._note_call(call.id or "", name, text)
                if part := self._calls.take_piece(call.index, call.id or "", name, text):
                    parts.append(part)
        if content := delta.content:
            self.add_text(content, parts)
        return True

    def _chunk(self, chunk: dict[str, Any], data: bytes, *, is_body: bool, parts: Parts) -> None:
        """Add one chunk (`data` is its bytes), or one complete body. Raises ClientError."""
        choices = member_of(chunk, "choices", list)
        if choices is None or "x_groq" in chunk:
            check_error(chunk)
        self._usage = usage_in(chunk) or self._usage
        if choices is None:
            return
        self.is_recognized = True
        self._source = RawJson(data)
        self._calls.chunk += 1
        own_choices: list[dict[str, Any]] = []
        # some servers mix them
        usual_key, other_key = ("message", "delta") if is_body else ("delta", "message")
        for position, choice in enumerate(choices):
            if not isinstance(choice, dict):
                raise WireError(f"`choices[{position}]` is not an object")
            index = choice_of(choice)
            if not self.seen:
                self._choice = index
                self.seen = True
            if index == self._choice:
                key = other_key if choice.get(usual_key) is None else usual_key
                self._choice_path = position, key
                message = choice.get(key)
                is_repeat = (is_body and bool(own_choices)) or (
                    key == "message" and self._has_deltas
                )
                if is_repeat and message is not None:
                    self._take_repeat(message, parts)
                else:
                    self._add(message, is_body=is_body, parts=parts)
                if key == usual_key and choice.get(other_key) is not None:
                    self._choice_path = position, other_key
                    self._take_second(message, choice, other_key, parts)
                self._has_deltas = self._has_deltas or (key == "delta" and not is_body)
                own_choices.append(choice)
            else:
                self._take_other_choice(index, choice.get(usual_key))
                self._take_other_choice(index, choice.get(other_key))
        for choice in own_choices:  # a chunk's contents come before its reason
            self._add_reason(choice)

    def _take_other_choice(self, index: int, delta: Any) -> None:
        """Take the calls of another choice, which never run: see `finish`."""
        if not isinstance(delta, dict):
            return
        assembler = self._other_choices.setdefault(index, CallAssembler(self._offer, ""))
        assembler.chunk += 1
        calls = delta.get("tool_calls") or []
        for call in calls if isinstance(calls, list) else [calls]:
            function = _function_of(call) if isinstance(call, dict) else None
            pieces = _pieces_of(function)
            if any(pieces):
                assembler.take_piece(
                    index_of(call.get("index")), str(call.get("id") or ""), *pieces
                )
        if any(pieces := _pieces_of(delta.get("function_call"))):
            assembler.take_piece("function_call", "", *pieces)

    def _take_second(self, message: Any, choice: dict[str, Any], other: str, parts: Parts) -> None:
        """Take the calls of a choice's second member, unless they repeat those of the first.

        Some servers write each piece into both.
        """
        calls = _calls_in(member_of(choice, other, dict))
        if calls and calls != _calls_in(message):
            self._take_repeat(calls, parts)

    def _take_repeat(self, message: Any, parts: Parts) -> None:
        """Take the complete message with which some servers end a stream (MiniMax:
        GCWing/OpenBitFun#792).

        Only text that did not stream is new. Its calls must match those that streamed.
        """
        copy = ChatReply(self._wire, offer=self._offer, ids="")
        copy._source, copy._choice_path = self._source, self._choice_path
        copy._add(message, is_body=True, parts=[])
        text = "".join(copy._text)
        if len(text) * 2 < self._text_size:  # too short for a copy, which is compared as a whole
            self.add_text(text, parts)
        elif text.strip() != (streamed_text := "".join(self._text)).strip():
            self.add_text(text.removeprefix(streamed_text), parts)
        self._refused = self._refused or copy._refused
        if not (self._kept_members and self._kept_members.state()):
            self._kept_members = copy._kept_members
        copied_calls = copy._calls if copy._calls.last_id else copy._legacy
        if copied_calls is not None and (self._calls.last_id or self._legacy):
            self._copies.append(copied_calls)
        elif copied_calls is not None:
            self._add({**message, "content": None, "refusal": None}, is_body=False, parts=parts)

    def _add(self, delta: Any, *, is_body: bool, parts: Parts) -> None:
        if delta is None and not is_body:
            return
        if not isinstance(delta, dict):
            raise WireError("a choice has neither `message` nor `delta`")
        if not _MEMBER_SET.isdisjoint(delta):
            self._kept_members = self._kept_members or KeptMembers()
            self._kept_members.add(delta)
            show_reasoning(next(filter(None, map(delta.get, _TEXT_MEMBERS)), None), parts)
        calls = delta.get("tool_calls")
        if calls is not None:
            self._add_calls(calls, is_body=is_body, parts=parts)
        if "function_call" in delta and (function := member_of(delta, "function_call", dict)):
            name, text = self._function(function, "function_call", is_body=is_body)
            self._note_call("", name, text)
            self._legacy = self._legacy or CallAssembler(self._offer, self._ids)
            self._legacy.take_piece("function_call", "", name, text, is_all=_is_value(function))
        if (content := delta.get("content")) not in (None, ""):
            self.add_text(content, parts)
        if refusal := delta.get("refusal"):
            self._refused = True
            self.add_text(refusal, parts)

    def _add_calls(self, calls: Any, *, is_body: bool, parts: Parts) -> None:
        for position, call in enumerate(calls if isinstance(calls, list) else [calls]):
            if call is None:
                self._calls.doubt_open_calls()
                continue
            if not isinstance(call, dict) or not (call or isinstance(calls, list)):
                raise WireError("a tool call is not an object")
            function = call.get("function") or _function_of(call)
            path: list[str | int] = (
                ["tool_calls", position] if isinstance(calls, list) else ["tool_calls"]
            )
            path += [] if call.get("function") is None else ["function"]
            name, text = self._function(function, *path, is_body=is_body)
            provider_id = str(call.get("id") or "")
            if self.ending.natural:
                self._note_call(provider_id, name, text)
            if not is_body and _has_no_contents(call):
                self._calls.take_empty_piece(
                    index_of(call.get("index")), has_contents=_has_unknown_member(call)
                )
            elif is_body:
                self._calls.take_whole(provider_id, name, text)
            elif part := self._calls.take_piece(
                index_of(call.get("index")), provider_id, name, text, is_all=_is_value(function)
            ):
                parts.append(part)
            if not _OUTSIDE_MEMBERS.isdisjoint(call) and _is_contradicted(call, name, text):
                self._calls.doubt_last()
            if not _KEPT_CALL_MEMBER_SET.isdisjoint(call):
                self._kept_members = self._kept_members or KeptMembers()
                self._kept_members.add_call(call, self._calls.last_id)

    def _note_call(self, provider_id: str, name: str, text: str) -> None:
        if provider_id or name or text:
            self.ending.note_call()

    def _function(self, function: Any, *steps: str | int, is_body: bool) -> tuple[str, str]:
        """Return name and arguments as text; arguments that come as a value keep their bytes.

        `steps` leads from the message to what has them.
        In a piece, arguments are a string, or one object.
        """
        if not isinstance(function, dict):
            raise WireError("the function of a tool call is not an object")
        name, text = function.get("name") or "", function.get("arguments")
        if not isinstance(name, str):
            raise WireError("the name of a tool call is not text")
        if text is None:
            return name, ""
        if isinstance(text, str):
            return name, text
        if not (is_body or isinstance(text, dict)):
            raise WireError("the arguments of a tool call are neither text nor an object")
        choice, key = self._choice_path
        path = "choices", choice, key, *steps, "arguments"
        error_message = "the arguments of a tool call are nested too deeply"
        return name, self._source.text(path, text, error_message)

    def add_text(self, content: Any, parts: Parts) -> None:
        if isinstance(content, list):
            content = "".join(map(_text_of, content))
        if not isinstance(content, str):
            raise WireError("the content of a message is neither text nor a list")
        if content:
            self._text_size += len(content)
            show_text(content, self._text, parts)

    def _add_reason(self, choice: dict[str, Any]) -> None:
        """Take both reasons. The native one can only make it worse; it never makes the end natural.

        Of two reasons for a cut, the first determines the kind, and the last gives the exact word.
        """
        ending = self.ending
        for key in ("finish_reason", "native_finish_reason"):
            if not (word := reason_of(choice.get(key))):
                continue
            meaning, is_native = ending.meaning(word), key != "finish_reason"
            is_new = ending.cut is None and not (is_native and ending.reason)
            if is_native and meaning == "doubtful":
                ending.notes.append("unlisted_native_reason")
            elif is_new or meaning not in NATURAL:
                ending.reason = word
            if is_native:
                ending.take_sign(meaning if meaning != "doubtful" else "stop")
            else:
                ending.judge(word, meaning)
        if choice.get("error"):
            ending.take_sign("error")

    def finish(self, *, ended: bool, raw: Any) -> Reply:
        """Return the reply. `ended` says whether the provider declared it complete; without a choice,
        the reply itself was lost."""
        self.ending.stop(ended=ended and self.seen)
        if any(assembler.has_nameless_call for assembler in self._other_choices.values()):
            self._calls.doubt_open_calls()
            if self._legacy:
                self._legacy.doubt_open_calls()
        # Those first: a cut in one of them cuts all.
        legacy = self.ending.calls(self._legacy) if self._legacy else ()
        calls = self.ending.calls(self._calls)
        if legacy:
            calls = self._with_legacy_calls(calls, legacy)
        for copy in self._copies:
            copied_calls = copy.finish(is_cut=False)[0]
            is_same = len(copied_calls) == len(calls) and all(
                map(_is_same_call, copied_calls, calls)
            )
            if not is_same and self.ending.cut is None:
                calls = tuple(replace(c, complete=False, fault=CONTRADICTORY) for c in calls)
        usage, state = usage_from(self._usage) if self._usage else Usage(1), self.state()
        return self.ending.reply(
            self._text, calls, usage, raw=raw, state=state, refused=self._refused
        )

    def _with_legacy_calls(
        self, calls: tuple[ToolCall, ...], legacy: tuple[ToolCall, ...]
    ) -> tuple[ToolCall, ...]:
        """Return the calls; a `function_call` next to them is a copy of one."""
        if calls and self.ending.cut is None and not _keys_of(legacy) <= _keys_of(calls):
            return tuple(replace(c, complete=False, fault=CONTRADICTORY) for c in calls)
        return calls or legacy

    def state(self) -> Any:
        """Return what has to go back unchanged."""
        return None if self._kept_members is None else self._kept_members.state()


def _keys_of(calls: Iterable[ToolCall]) -> set[Hashable]:
    return {(call.name, json_key(call.arguments)) for call in calls}


def _is_same_call(one: ToolCall, other: ToolCall) -> bool:
    return one.name == other.name and same_json(one.arguments, other.arguments)


def _calls_in(message: Any) -> JsonObject:
    """Return what a message contains about calls; its text is that of the accompanying delta."""
    message = message if isinstance(message, dict) else {}
    return {key: message[key] for key in _CALL_MEMBERS if message.get(key)}


def _text_of(part: Any) -> str:
    """Return what a part says to the user; parts of other types are thoughts or not text."""
    is_text = isinstance(part, dict) and part.get("type", "text") in ("text", "output_text")
    return (member_of(part, "text", str) or "") if is_text else ""


def _has_no_contents(call: dict[str, Any]) -> bool:
    """Return whether a piece has no place for contents. One that is present and empty is
    Snowflake's."""
    has_place = "function" in call or "custom" in call or "arguments" in call
    return not has_place and not call.get("id") and not call.get("name")


def _has_unknown_member(call: dict[str, Any]) -> bool:
    """Return whether a piece has an unknown member that is not empty."""
    return any(value for key, value in call.items() if key not in _MEMBERS_WITHOUT_CONTENTS)


def _is_value(function: dict[str, Any]) -> bool:
    """Return whether arguments came as an object, as some servers write them if complete."""
    return isinstance(function.get("arguments"), dict)


def _is_contradicted(call: dict[str, Any], name: str, text: str) -> bool:
    """Return whether a call has different contents outside its `function` (if not empty)."""
    custom = call.get("custom")
    others = [(call.get("name"), call.get("arguments"))]
    if isinstance(custom, dict):
        others.append((custom.get("name"), custom.get("input")))
    for other_name, other_arguments in others:
        if other_name and other_name != name:
            return True
        if other_arguments and not same_json(
            other_arguments if isinstance(other_arguments, str) else json.dumps(other_arguments),
            text,
        ):
            return True
    return False


def _pieces_of(function: Any) -> tuple[str, str]:
    """Return name and arguments in a piece of a call that never runs; other values count as
    text."""
    if not isinstance(function, dict):
        return "", ""
    name, text = function.get("name"), function.get("arguments")
    return name if isinstance(name, str) else "", "" if text in (None, "") else str(text)


def _function_of(call: dict[str, Any]) -> Any:
    """Return where a call has its name and arguments.

    A custom tool's call has free text, and some calls have no separate level for them.
    """
    custom = call.get("custom")
    if call.get("function") is not None and not isinstance(call["function"], dict):
        raise WireError("the function of a tool call is not an object")
    if call.get("function") or not isinstance(custom, dict):
        return call.get("function") or call
    return {"name": custom.get("name"), "arguments": custom.get("input")}
