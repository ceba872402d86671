"""The reply under construction: what chunks and whole bodies of chat completions add to it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from toolcrib.errors import WireError
from toolcrib.values.call import ToolCall
from toolcrib.values.message import Reply, TextPart
from toolcrib.values.offer import Offer
from toolcrib.wire.base import Wire
from toolcrib.wire.builder import Parts
from toolcrib.wire.calls import CONTRADICTORY, CallAssembler, choice_of, index_of
from toolcrib.wire.ending import NATURAL, Ending
from toolcrib.wire.json_text import mended, same_json
from toolcrib.wire.openai_chat.beside import check_error, spent, usage_in
from toolcrib.wire.openai_chat.kept import KeptMembers
from toolcrib.wire.openai_chat.source import Source
from toolcrib.wire.openai_chat.usual import usual_chunk

_PATIENCE = 16
"""So many unusual chunks show that a server's are all unusual, and that trying costs time."""


class ChatReply:
    """Takes chunks, gives the `Reply`. Only the first choice counts.

    `known` is whether `choices` was ever there, `seen` whether it held any; `torn` is set by the
    decoder if the stream stopped in the middle of an event.
    """

    over = False  # the wire's own end is no chunk: `[DONE]`

    def __init__(self, wire: Wire, *, offer: Offer, ids: str) -> None:
        self.known = False
        self.seen = False
        self.torn = False
        self._wire = wire
        self._ending = Ending(wire, offer)
        self._text: list[str] = []
        self._kept = KeptMembers()
        self._calls = CallAssembler(offer, ids)
        self._legacy = CallAssembler(offer, ids)
        self._choice: object = None
        self._refused = False
        self._usage: dict[str, Any] = {}
        self._source = Source()
        self._patience = _PATIENCE

    def body(self, body: dict[str, Any], data: bytes) -> None:
        check_error(body)
        self._chunk(body, data, whole=True, parts=[])
        if not self.seen:
            raise WireError("the reply has no choices: this is not a chat completion")

    def event(self, event: dict[str, Any], data: bytes, _name: bytes, parts: Parts) -> None:
        check_error(event)
        self._chunk(event, data, whole=False, parts=parts)

    def usual(self, data: bytes, parts: Parts) -> bool:
        if not (self.seen and self._patience):
            return False
        try:
            (choice,) = usual_chunk(data).choices
        except (ValueError, RecursionError):
            self._patience -= 1
            return False
        if choice.index != self._choice:
            return True
        if calls := choice.delta.tool_calls:
            self._calls.next_chunk()
            for call in calls:
                name, text = call.function.name or "", call.function.arguments or ""
                self._take_note(call.id or "", name, text)
                if part := self._calls.piece(call.index, call.id or "", name, text):
                    parts.append(part)
        delta = choice.delta
        if content := delta.content:
            self._add_text(content, parts)
        if delta.reasoning_content or delta.reasoning:
            self._kept.add_text("reasoning_content", delta.reasoning_content)
            self._kept.add_text("reasoning", delta.reasoning)
        return True

    def _chunk(self, chunk: dict[str, Any], data: bytes, *, whole: bool, parts: Parts) -> None:
        """Add one chunk (`data` are its bytes), or one whole body. Raises WireError."""
        self._usage = usage_in(chunk) or self._usage
        choices = chunk.get("choices")
        if choices is None:
            return
        if not isinstance(choices, list):
            raise WireError("`choices` is not a list")
        self.known = True
        self._source = Source(data)
        self._calls.next_chunk()
        own = []
        for at, choice in enumerate(choices):
            if not isinstance(choice, dict):
                raise WireError(f"`choices[{at}]` is not an object")
            index = choice_of(choice)
            if not self.seen:
                self._choice = index
                self.seen = True
            if index == self._choice:
                key = _key(choice, whole=whole)
                self._source.point(at, key)
                self._add(choice.get(key), whole=whole, parts=parts)
                own.append(choice)
        for choice in own:  # what a chunk brings comes before its reason
            self._add_reason(choice)

    def _add(self, delta: Any, *, whole: bool, parts: Parts) -> None:
        if delta is None and not whole:
            return
        if not isinstance(delta, dict):
            raise WireError("a choice has neither `message` nor `delta`")
        self._kept.add(delta)
        if calls := delta.get("tool_calls"):
            self._add_calls(calls, whole=whole, parts=parts)
        if function := delta.get("function_call"):
            name, text = self._function(function, None)
            self._take_note("", name, text)
            self._legacy.piece("function_call", "", name, text)
        if content := delta.get("content"):
            self._add_text(content, parts)
        if refusal := delta.get("refusal"):
            self._refused = True
            self._add_text(refusal, parts)

    def _add_calls(self, calls: Any, *, whole: bool, parts: Parts) -> None:
        for at, call in enumerate(calls if isinstance(calls, list) else [calls]):
            if call is None:
                continue
            if not isinstance(call, dict):
                raise WireError("a tool call is not an object")
            name, text = self._function(_function_of(call), at)
            provider_id = call.get("id") or ""
            if not isinstance(provider_id, str):
                provider_id = str(provider_id)
            self._take_note(provider_id, name, text)
            if whole:
                self._calls.whole(provider_id, name, text)
            elif part := self._calls.piece(index_of(call.get("index")), provider_id, name, text):
                parts.append(part)
            self._kept.add_call(call, self._calls.last_id)

    def _take_note(self, provider_id: str, name: str, text: str) -> None:
        if provider_id or name or text:
            self._ending.called()

    def _function(self, function: Any, at: int | None) -> tuple[str, str]:
        """Name and arguments, as text; arguments that come as a value keep their bytes."""
        if not isinstance(function, dict):
            raise WireError("the function of a tool call is not an object")
        name, text = function.get("name") or "", function.get("arguments")
        if not isinstance(name, str):
            raise WireError("the name of a tool call is not text")
        if text is None:
            return name, ""
        return name, text if isinstance(text, str) else self._source.slice(at, text)

    def _add_text(self, content: Any, parts: Parts) -> None:
        if isinstance(content, list):
            content = "".join(map(_text_of, content))
        if not isinstance(content, str):
            raise WireError("the content of a message is neither text nor a list")
        if content:
            self._text.append(content)
            parts.append(TextPart(mended(content)))

    def _add_reason(self, choice: dict[str, Any]) -> None:
        """Take both reasons. The native one can only make it worse: it is no end.

        Of two reasons for a cut, the first says what it was, the last is the more exact word.
        """
        ending = self._ending
        for key in ("finish_reason", "native_finish_reason"):
            if not (reason := choice.get(key)):
                continue
            meaning, native = self._wire.meaning(str(reason)), key != "finish_reason"
            news = ending.cut is None and not (native and ending.reason)
            if native and meaning == "doubtful":
                ending.notes.append("unlisted_native_reason")
            elif news or meaning not in NATURAL:
                ending.reason = str(reason)
            if native:
                ending.sign(meaning if meaning != "doubtful" else "stop")
            else:
                ending.judge(str(reason), meaning)
        if choice.get("error"):
            ending.sign("error")

    def finish(self, *, ended: bool, raw: Any) -> Reply:
        """The reply. `ended` is whether the provider said that this was all of it."""
        self._ending.stopped(ended=ended, torn=self.torn)
        legacy = self._ending.calls(self._legacy)  # first: what cuts one of them cuts all
        calls = self._held_together(self._ending.calls(self._calls), legacy)
        usage, state = spent(self._usage), self._state()
        return self._ending.reply(
            self._text, calls, usage, raw=raw, state=state, refused=self._refused
        )

    def _held_together(
        self, calls: tuple[ToolCall, ...], legacy: tuple[ToolCall, ...]
    ) -> tuple[ToolCall, ...]:
        """The calls; a `function_call` beside them is a copy of one of them."""
        for copy in legacy if calls and self._ending.cut is None else ():
            if any(c.name == copy.name and same_json(c.arguments, copy.arguments) for c in calls):
                continue
            return tuple(replace(c, complete=False, fault=CONTRADICTORY) for c in calls)
        return calls or legacy

    def _state(self) -> Any:
        """What has to go back as it came."""
        return self._kept.state()


def _key(choice: dict[str, Any], *, whole: bool) -> str:
    """Where a choice has its message; some servers stream under the other name."""
    if whole:
        return "delta" if choice.get("message") is None else "message"
    return "message" if choice.get("delta") is None else "delta"


def _text_of(part: Any) -> str:
    """What a part of the content says to the user; that of another type is no text, or a thought."""
    says = isinstance(part, dict) and part.get("type", "text") in ("text", "output_text")
    text = part.get("text") if says else None
    return text if isinstance(text, str) else ""


def _function_of(call: dict[str, Any]) -> Any:
    """Where a call has its name and arguments; a custom tool's has free text, and some have no level
    of their own for them."""
    custom = call.get("custom")
    if call.get("function") or not isinstance(custom, dict):
        return call.get("function") or call
    return {"name": custom.get("name"), "arguments": custom.get("input")}
