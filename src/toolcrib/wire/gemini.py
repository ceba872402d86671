"""Gemini's generateContent: parts, requests, replies, and the wire's value."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from urllib.parse import quote

import msgspec
import orjson

from toolcrib.errors import RequestError, WireError
from toolcrib.schema.lower import Dialect
from toolcrib.values.call import CallFault
from toolcrib.values.content import Image, Media, inline_data, media_type_of
from toolcrib.values.message import (
    ArgumentsPart,
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
    REASONING_TOKENS,
    HttpRequest,
    Memo,
    Reasoning,
    Wire,
    add_members,
    checked_choice,
    extra_members,
    http_request,
    no_effort,
    reasoning_of,
    refuse_single_calls,
    sampling,
    tools_and_history,
    tools_member,
    with_extra,
)
from toolcrib.wire.calls import (
    APART,
    CONTRADICTORY,
    GEMINI_FILTERED,
    CallAssembler,
    Ending,
    choice_of,
    member_of,
    reason_of,
)
from toolcrib.wire.content import PDF, attachment_label, in_prompt, result_content
from toolcrib.wire.decoding import Parts, decoding_by, show_reasoning, show_text, token_count
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
from toolcrib.wire.history import ANY_ID, History, IdRule, SentCall, SentResult, dumps
from toolcrib.wire.json_text import RawJson, dumped, is_encodable, mended, same_json
from toolcrib.wire.partial_args import PartialArguments

# The parts of a model's content: kept to be sent back, and sent back.
#
# Gemini gets back the list of parts as it was, because a thought signature belongs to the part that
# it came with. But the calls and the text are those of the message, which may have been changed.
# Shapes: https://ai.google.dev/api/caching#Part,
# https://ai.google.dev/gemini-api/docs/thought-signatures


_NO_SIGNATURE = base64.b64encode(b"skip_thought_signature_validator").decode()
"""Gemini 3 refuses a turn whose first call has no signature. This one stands for calls that other
models made (…/docs/thought-signatures, FAQ). Gemini 2 accepts and ignores it."""

_TEXT_MEMBERS = frozenset(("text", "thought"))


class KeptParts:
    """The parts of one reply. Adjacent pieces of text are one part, unless one has a signature."""

    def __init__(self) -> None:
        self._forms: list[dict[str, Any]] = []
        self._texts: dict[int, list[str]] = {}

    def add(self, part: dict[str, Any]) -> None:
        """Add a part that is not a call."""
        text = part.get("text")
        if not isinstance(text, str):
            self._forms.append(part)
            return
        is_only_text = part.keys() <= _TEXT_MEMBERS
        if is_only_text and not text:
            return
        last_index = len(self._forms) - 1
        continues = (
            is_only_text
            and last_index in self._texts
            and self._forms[last_index].keys() <= _TEXT_MEMBERS
        )
        if continues and bool(part.get("thought")) is bool(self._forms[last_index].get("thought")):
            self._texts[last_index].append(text)
            return
        self._texts[last_index + 1] = [text]
        self._forms.append(part)

    def add_call(self, part: dict[str, Any], call_id: str) -> dict[str, Any]:
        """Add a part that is a call, with its other members and our call id, and return it."""
        form = part | {"functionCall": {"id": call_id}}
        self._forms.append(form)
        return form

    def state(self) -> list[dict[str, Any]]:
        """Return what has to be sent back: all parts, or none if text and calls say it all."""
        for position, pieces in self._texts.items():
            self._forms[position] = self._forms[position] | {"text": mended("".join(pieces))}
        return [] if all(map(_is_plain, self._forms)) else self._forms


def replayed(state: Any, text: str, calls: Sequence[SentCall]) -> list[dict[str, Any]]:
    """Return a model's parts: text and calls, at their places among the kept parts."""
    kept_parts = state if isinstance(state, list) else []
    forms = [form for form in kept_parts if isinstance(form, dict)]
    is_same_text = "".join(form["text"] for form in forms if _is_text(form)) == text
    remaining = {call.call.id: call for call in calls}
    parts: list[dict[str, Any]] = []
    for form in forms:
        if "functionCall" in form:
            call = remaining.pop(_id_of(form), None)
            if call is not None:
                parts.append(form | _call(call))
        elif is_same_text or not _is_text(form):
            parts.append(form)
    if text and not is_same_text:
        position = next((n for n, form in enumerate(parts) if "functionCall" in form), len(parts))
        parts.insert(position, {"text": text})
    return _with_signature(parts + [_call(call) for call in remaining.values()])


def _with_signature(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts, with a signature on the first call. Gemini signs no other."""
    first_call = next((n for n, part in enumerate(parts) if "functionCall" in part), None)
    if first_call is not None and "thoughtSignature" not in parts[first_call]:
        parts[first_call] = parts[first_call] | {"thoughtSignature": _NO_SIGNATURE}
    return parts


def _call(call: SentCall) -> dict[str, Any]:
    """Return a call whose arguments are the model's own text."""
    args = orjson.Fragment(call.arguments)
    return {"functionCall": {"id": call.id, "name": call.name, "args": args}}


def _id_of(form: dict[str, Any]) -> str:
    call = form["functionCall"]
    call_id = call.get("id") if isinstance(call, dict) else None
    return call_id if isinstance(call_id, str) else ""


def _is_text(form: dict[str, Any]) -> bool:
    """Return whether the part is what the model said, and not what it thought."""
    return isinstance(form.get("text"), str) and not form.get("thought")


def _is_plain(form: dict[str, Any]) -> bool:
    return form.keys() in ({"text"}, {"functionCall"})


# The messages of a Gemini request: contents made of parts, with all results of a turn in one of
# them.
#
# Empty items are left out, since a content needs parts. But a conversation begins with a user's
# turn, and a model's calls follow one, even if it is empty.


class GeminiHistory(History):
    """Writes `contents`: https://ai.google.dev/api/caching#Content

    Calls get an id even if the model gave none, so that a result can name its call and two calls of
    one tool can be told apart.
    """

    ids = IdRule(r"\x21-\x7e", 128)
    given_ids = ANY_ID
    inside: ClassVar[frozenset[str]] = frozenset()
    """The media types of content inside a result; other content follows as a user's."""
    _last_role = ""

    def user(self, message: Message) -> Sequence[Any]:
        parts = [_image(image) for image in message.images]
        if message.content:
            parts.append({"text": message.content})
        parts += in_prompt(self, message, _prompt_form, lambda text: {"text": text})
        return _content("user", parts) or ([] if self._last_role else _EMPTY_USER_TURN)

    def assistant(self, message: Message, calls: Sequence[SentCall]) -> Sequence[Any]:
        parts = replayed(self.state(message), message.content, calls)
        may_follow = self._last_role == "user" or (self._last_role == "model" and not calls)
        return [*([] if may_follow else _EMPTY_USER_TURN), *_content("model", parts)]

    def results(self, results: Sequence[SentResult]) -> Sequence[Any]:
        """Write results and their attachments: inside them as far as the model accepts it, the
        others after them as a user's."""
        forms, following_parts = list[dict[str, Any]](), list[dict[str, Any]]()
        for result in results:
            content = result_content(result.message, self.media, _media_form)
            inside_forms = []
            for name, form in content.attachments:
                if form.get("inlineData", {}).get("mimeType") in self.inside:
                    inside_forms.append(form)
                else:
                    following_parts += [{"text": attachment_label(name, result)}, form]
            forms.append(_result(result, content.text, inside_forms))
        return [*_content("user", forms), *_content("user", following_parts)]

    def _keep(self, items: Sequence[Any]) -> None:
        super()._keep(items)
        self._last_role = items[-1]["role"] if items else self._last_role


_EMPTY_USER_TURN: Sequence[Any] = [{"role": "user", "parts": [{"text": ""}]}]


def _content(role: str, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": role, "parts": parts}] if parts else []


class Gemini3History(GeminiHistory):
    """Writes the history for Gemini 3 and newer, which accept media inside results.

    https://ai.google.dev/gemini-api/docs/function-calling#multimodal, and `FunctionResponsePart` of
    the `google-genai` package.
    """

    inside = frozenset(("image/png", "image/jpeg", "image/webp", PDF))


# The formats: https://ai.google.dev/gemini-api/docs/image-understanding, …/audio,
# …/video-understanding
_MEDIA = frozenset(
    [PDF]
    + [f"image/{kind}" for kind in ("png", "jpeg", "webp", "heic", "heif")]
    + [f"audio/{kind}" for kind in ("wav", "mpeg", "aiff", "aac", "ogg", "flac")]
    + [f"video/{kind}" for kind in ("mp4", "mpeg", "quicktime", "webm")]
)
_HOLDS_MEDIA = re.compile(r"gemini-(?:[3-9]|\d\d)")


def _for_model(wire: Wire, model: str) -> Wire:
    if wire.history is not GeminiHistory or not _HOLDS_MEDIA.search(model):
        return wire
    return msgspec.structs.replace(wire, history=Gemini3History)


def _result(result: SentResult, text: str, inside: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the text under one key, so that no key of a tool means anything to the server."""
    key = "error" if result.message.is_error else "output"
    form: dict[str, Any] = {"id": result.id, "name": result.name, "response": {key: text}}
    return {"functionResponse": form | {"parts": inside} if inside else form}


def _media_form(part: Media, _position: int) -> dict[str, Any] | None:
    data = inline_data(part)
    media_type = media_type_of(part)
    if data is not None:
        return {"inlineData": {"mimeType": media_type, "data": data}}
    return {"fileData": {"fileUri": part.url, "mimeType": media_type}} if media_type else None


def _prompt_form(part: Media, position: int) -> dict[str, Any] | None:
    return _image(part) if isinstance(part, Image) else _media_form(part, position)


def _image(image: Image) -> dict[str, Any]:
    if image.data:
        return {"inlineData": {"mimeType": image.media_type, "data": image.data}}
    if image.url.startswith("data:"):
        kind, _, data = image.url.removeprefix("data:").partition(",")
        return {"inlineData": {"mimeType": kind.removesuffix(";base64"), "data": data}}
    file = {"fileUri": image.url}
    return {"fileData": file | {"mimeType": image.media_type} if image.media_type else file}


# The reply under construction: what chunks and complete bodies of Gemini's add to it.
#
# A chunk has the form of a complete body, so the same code reads both. Only STOP is an end that the
# model chose. With any other reason, known or not, the reply was cut. Shapes:
# https://ai.google.dev/api/generate-content#v1beta.GenerateContentResponse


_BODY_MEMBERS = ("candidates", "promptFeedback", "usageMetadata", "modelVersion")
_MEMBERS_WITHOUT_VALUE = frozenset(("id", "name", "willContinue"))
"""Members of a call that carry no part of its arguments."""
_COMMON_MEMBERS = frozenset(("thought", "thoughtSignature"))
_PIECE_MEMBERS = _MEMBERS_WITHOUT_VALUE | {"args", "partialArgs"}
_EMPTY_REASONS = frozenset(("", "finish_reason_unspecified", "blocked_reason_unspecified"))
_INPUT_TOKENS = ("promptTokenCount", "toolUsePromptTokenCount")
_OUTPUT_TOKENS = ("candidatesTokenCount", "thoughtsTokenCount")


_CALL, _SNAKE_CALL = "functionCall", "function_call"
_SNAKE = re.compile(rb'_\w*"\s*:|u005')  # a name in snake case, or one with an escaped `_`


def _camel_case(form: Any) -> Any:
    """Return an object with the wire's member names, if it has them in snake case.

    Google's own SDK writes replies that way (`model_dump_json`), including nulls, which are dropped
    here. A call keeps its name, and so does a member that is present under both names.
    """
    if not isinstance(form, dict) or not any("_" in key for key in form):
        return form
    members = {key: value for key, value in form.items() if value is not None}
    renamed = {key: value for key, value in members.items() if "_" not in key}
    for key in members.keys() - renamed.keys():
        first_word, *other_words = key.split("_")
        name = key if key == _SNAKE_CALL else first_word + "".join(map(str.capitalize, other_words))
        renamed[key if name in renamed else name] = members[key]
    return renamed


def _map_parts(event: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return an event with all its parts changed."""
    if not isinstance(candidates := event.get("candidates"), list):
        return event
    changed_candidates = []
    for candidate in candidates:
        content = candidate.get("content") if isinstance(candidate, dict) else None
        parts = content.get("parts") if isinstance(content, dict) else None
        if isinstance(content, dict) and isinstance(parts, list):
            new_content = {"content": content | {"parts": list(map(change, parts))}}
            changed_candidates.append(candidate | new_content)
        else:
            changed_candidates.append(candidate)
    return event | {"candidates": changed_candidates}


def _call_spellings(part: Any) -> list[str]:
    if not isinstance(part, dict):
        return []
    return [key for key in (_CALL, _SNAKE_CALL) if part.get(key) is not None]


def _with_calls_swapped(part: Any) -> Any:
    """Return a part with its snake-case call under the wire's name; one there becomes a copy."""
    if not isinstance(part, dict):
        return part
    swapped = {key: value for key, value in part.items() if key not in (_CALL, _SNAKE_CALL)}
    if (call := _camel_case(part.get(_SNAKE_CALL))) is not None:
        if isinstance(call, dict) and isinstance(values := call.get("partialArgs"), list):
            call = call | {"partialArgs": list(map(_camel_case, values))}
        swapped[_CALL] = call
    if part.get(_CALL) is not None:
        swapped[_SNAKE_CALL] = part[_CALL]
    return swapped


class _Partial(msgspec.Struct, eq=False):
    """A call whose arguments come value by value; `is_doubtful` says that it may lack a piece."""

    call: dict[str, Any]
    form: dict[str, Any]
    arguments: PartialArguments = msgspec.field(default_factory=PartialArguments)
    is_doubtful: bool = False


class GeminiReply:
    """Takes chunks or a body, and gives the `Reply`. Only the first candidate counts.

    The others are only checked for pieces of a call that none of their own can have
    (`wire/calls.py`).
    """

    is_over = False  # its stream ends only with the body

    def __init__(self, wire: Wire, *, offer: Offer, ids: str) -> None:
        self.is_recognized = False
        self._offer = offer
        self.ending = Ending(wire, offer)
        self._ids = ids
        self._index: object = None
        self._has_candidate = False
        self._text: list[str] = []
        self._calls = CallAssembler(offer, ids)
        self._call_count = 0
        self._partial: _Partial | None = None
        self._others: set[int] = set()
        self._kept_parts = KeptParts()
        self._usage: dict[str, Any] = {}
        self._spelling = ""  # how the first call was written; any other spelling is a copy

    def body(self, body: dict[str, Any], data: bytes) -> None:
        self.event(body, data, b"", [])
        if not self.is_recognized:
            raise WireError("the reply has no candidates: this is not an answer of Gemini")

    def event(self, event: dict[str, Any], data: bytes, _name: bytes, parts: Parts) -> None:
        event = self._in_camel_case(event, data)
        self.is_recognized = self.is_recognized or any(key in event for key in _BODY_MEMBERS)
        usage = event.get("usageMetadata")
        if isinstance(usage, dict):
            self._usage |= {key: count for key, count in usage.items() if count is not None}
        feedback = event.get("promptFeedback")
        if isinstance(feedback, dict) and _is_reason(feedback.get("blockReason")):
            self.ending.take_reason(feedback["blockReason"], "content_filter")
        candidates = member_of(event, "candidates", list) or []
        is_added = False
        for position, candidate in enumerate(candidates):
            if not isinstance(candidate, dict):
                raise WireError(f"`candidates[{position}]` is not an object")
            index = choice_of(candidate)
            if not self._has_candidate:
                self._has_candidate, self._index = True, index
            if index == self._index and not is_added:
                is_added = True
                self._add(candidate, data, position, parts)
                continue
            self._take_other(index, candidate)
            if index == self._index:
                self._take_second_entry(candidate)

    def _in_camel_case(self, event: dict[str, Any], data: bytes) -> dict[str, Any]:
        """Return an event under the wire's names for its members."""
        has_calls = b"functionCall" in data and not self._spelling
        if not has_calls and self._spelling != _SNAKE_CALL and _SNAKE.search(data) is None:
            return event  # it has those names already, as most do
        event = dict(_camel_case(event))
        event |= {
            k: _camel_case(event[k]) for k in ("usageMetadata", "promptFeedback") if k in event
        }
        if isinstance(candidates := event.get("candidates"), list):
            event["candidates"] = list(map(_camel_case, candidates))
        event = _map_parts(event, _camel_case)
        if not self._spelling:
            spellings = list[str]()
            _map_parts(event, lambda part: spellings.extend(_call_spellings(part)))
            self._spelling = min(spellings, default="")  # the wire's own, if both are there
        return _map_parts(event, _with_calls_swapped) if self._spelling == _SNAKE_CALL else event

    def _take_other(self, index: int, candidate: dict[str, Any]) -> None:
        """Take the calls of another candidate, which never run.

        A second entry of the first candidate, which may be another candidate without its index, is
        handled likewise. If they have begun no call, a piece of one is a stray.
        """
        for call in _calls_of(candidate):
            if call.get("name"):
                self._others.add(index)
            elif index not in self._others and _has_content(call, ignored=_MEMBERS_WITHOUT_VALUE):
                self._doubt_open_call()

    def _take_second_entry(self, candidate: dict[str, Any]) -> None:
        """Take what a second entry of the first candidate says in one event.

        Only two things count: a reason that is not natural and, if the entry has the index of the
        first, calls, which must match those of the first.
        """
        if _is_reason(reason := candidate.get("finishReason")):
            self.ending.take_stray_reason(reason)
        for call in _calls_of(candidate) if candidate.get("index") is not None else ():
            if call.get("name"):
                self._copy(call)

    def _copy(self, call: dict[str, Any]) -> None:
        text = dumped(call.get("args") or {}, "arguments of a call are")
        self._calls.take_copy(str(call.get("id") or ""), str(call.get("name") or ""), text)

    def _doubt_open_call(self) -> None:
        """Doubt the open call, or else the last one: it may lack the piece that came."""
        if self._partial is not None:
            self._partial.is_doubtful = True
        else:
            self._calls.doubt_last()

    def _add(self, candidate: dict[str, Any], data: bytes, position: int, parts: Parts) -> None:
        content_parts = member_of(member_of(candidate, "content", dict) or {}, "parts", list) or []
        if not all(isinstance(part, dict) for part in content_parts):
            raise WireError("the content of a candidate is not a list of parts")
        source = RawJson(data)
        for number, part in enumerate(content_parts):
            if isinstance(copy := part.get("function_call"), dict):  # its name in another spelling
                self._copy(copy)
            if (call := part.get("functionCall")) is not None:
                path = "candidates", position, "content", "parts", number, self._spelling or _CALL
                text = _arguments(call, source, *path)
                self._add_call(part, text, parts)
            else:
                self._kept_parts.add(part)
                self._add_text(part, parts)
        self.ending.take_stray_reason(candidate.get("finish_reason"))
        reason = candidate.get("finishReason")
        if _is_reason(reason):
            self.ending.renew()
            self.ending.take_reason(reason)

    def _add_text(self, part: dict[str, Any], parts: Parts) -> None:
        text = part.get("text")
        if part.get("thought") or (text is None and part.keys() - _COMMON_MEMBERS):
            self._text.append(APART)
        if part.get("thought"):
            show_reasoning(text, parts)
            return
        if text is None:
            return
        if not isinstance(text, str):
            raise WireError("the text of a part is not text")
        if text:
            show_text(text, self._text, parts)

    def _add_call(self, part: dict[str, Any], text: str, parts: Parts) -> None:
        self.ending.note_call()
        call = part["functionCall"]
        if not isinstance(call, dict) or not isinstance(call.get("name"), str | None):
            raise WireError("a function call is not an object with a name")
        partial = self._partial
        if partial is not None and (call.get("name") or _is_other(call, partial.call)):
            self._give_up(partial)
            partial = None
        values = _values_of(call)
        if (
            partial is None
            and not call.get("name")
            and _has_content(call, ignored=_MEMBERS_WITHOUT_VALUE)
        ):
            self._doubt_open_call()  # it may carry a part of the last call
        if partial is not None:
            partial.form |= {key: part[key] for key in part if key != "functionCall"}
            partial.is_doubtful = partial.is_doubtful or _has_content(call, ignored=_PIECE_MEMBERS)
        elif call.get("willContinue") or values:
            self._partial = partial = self._open_call(part)
        elif call.get("name") or text:
            self._add_whole_call(self._open_call(part).call, text, parts)
            return
        if partial is None:  # the end of a call that never began
            return
        partial.arguments.add(values)
        if not call.get("willContinue") and partial.arguments.is_whole:
            self._partial = None
            self._assemble(partial, text, parts)
        elif not _is_empty(text):
            partial.is_doubtful = True  # it continues, although this would be all of it

    def _assemble(self, partial: _Partial, text: str, parts: Parts) -> None:
        """Add a call whose values have all come.

        If `text` came as a whole, too, it counts, as a whole after pieces does on other wires.
        """
        values, call = partial.arguments, partial.call
        assembled = values.text() if values.has_values else ""
        if not text or (assembled and _is_empty(text)):
            fault = CONTRADICTORY if values.is_contradictory or partial.is_doubtful else None
            self._add_whole_call(call, assembled, parts, fault=fault)
            return
        is_same = not assembled or (same_json(text, assembled) and not values.is_contradictory)
        fault = CONTRADICTORY if partial.is_doubtful else None
        notes = () if is_same else ("streamed_otherwise",)
        self._add_whole_call(call, text, parts, fault=fault, notes=notes)

    def _open_call(self, part: dict[str, Any]) -> _Partial:
        form = self._kept_parts.add_call(part, f"{self._ids}{self._call_count}")
        self._call_count += 1
        return _Partial(part["functionCall"], form)

    def _give_up(self, partial: _Partial) -> None:
        """Give up a call that did not come to its end. The reply has a gap, so none of its calls
        may run."""
        self.ending.torn = True
        self._partial = None
        self._add_whole_call(partial.call, "", [])

    def _add_whole_call(
        self,
        call: dict[str, Any],
        text: str,
        parts: Parts,
        *,
        fault: CallFault | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        name, provider_id = call.get("name") or "", call.get("id") or ""
        self._calls.take_whole(str(provider_id), name, text, fault=fault, notes=notes)
        if text:
            number = self._call_count - 1
            parts.append(ArgumentsPart(f"{self._ids}{number}", self._offer.own_name(name), text))

    def finish(self, *, ended: bool, raw: Any) -> Reply:
        """Return the reply. `ended` says whether the provider declared it complete."""
        if self._partial is not None:
            self._give_up(self._partial)
        ending = self.ending
        ending.stop(ended=ended and self._has_candidate)
        calls = ending.calls(self._calls)
        if not calls and ending.meaning(ending.reason) == "tool_calls":
            ending.take_sign("error")
        input_tokens, output_tokens = (
            token_count(self._usage, *keys) for keys in (_INPUT_TOKENS, _OUTPUT_TOKENS)
        )
        usage = Usage(
            1, input_tokens, output_tokens, token_count(self._usage, "cachedContentTokenCount")
        )
        return ending.reply(self._text, calls, usage, raw=raw, state=self._kept_parts.state())


def _calls_of(candidate: dict[str, Any]) -> list[dict[str, Any]]:
    content = candidate.get("content")
    content_parts = content.get("parts") if isinstance(content, dict) else None
    part_list = content_parts if isinstance(content_parts, list) else []
    calls = (part.get("functionCall") for part in part_list if isinstance(part, dict))
    return [call for call in calls if isinstance(call, dict)]


def _values_of(call: dict[str, Any]) -> list[Any]:
    """Return the values in a piece of a call. Raises WireError if they are neither a list nor one
    value."""
    if isinstance(values := call.get("partialArgs"), list):
        return values
    return [] if values is None else [member_of(call, "partialArgs", dict)]


def _has_content(call: dict[str, Any], *, ignored: frozenset[str]) -> bool:
    """Return whether a piece of a call has anything in members other than these."""
    return any(value for key, value in call.items() if key not in ignored)


def _is_empty(text: str) -> bool:
    """Return whether complete arguments next to values are empty, as some servers write them."""
    return not text.strip("{} \t\r\n")


def _is_other(call: dict[str, Any], previous: dict[str, Any]) -> bool:
    return bool(call.get("id") and previous.get("id")) and call["id"] != previous["id"]


def _is_reason(reason: Any) -> bool:
    """Return whether a reason, given by name or number, says anything."""
    return reason_of(reason).lower() not in _EMPTY_REASONS


def _arguments(call: Any, source: RawJson, *path: str | int) -> str:
    """Return the arguments of the call at that place, as it was written; empty if there are none."""
    if not isinstance(call, dict) or (value := call.get("args")) is None:
        return ""
    return source.text((*path, "args"), value, "the arguments of a call are nested too deeply")


# Requests of Gemini's generateContent, and the wire's value.
#
# A request contains only what the wire has a place for: the model and whether to stream are in the
# path, system messages outside the list of the others, settings in `generationConfig`. Shapes:
# https://ai.google.dev/api/generate-content


_OWN_KEYS = frozenset(("model", "contents", "systemInstruction", "tools"))
_MODES = {"auto": "VALIDATED", "none": "NONE", "required": "ANY", "tool": "ANY"}
"""AUTO takes no names. VALIDATED is the same choice with names, and with arguments held to the
schema."""


def encode(
    wire: Wire, request: ChatRequest, *, model: str, stream: bool, memo: Memo | None
) -> HttpRequest:
    """Return the request for `wire`. Raises RequestError for a history or settings that cannot be
    sent.

    Gemini has no way to ask for one call at a time, so `parallel_calls=False` is refused.
    """
    tools, history = tools_and_history(_for_model(wire, model), request, memo, model=model)
    body: dict[str, Any] = {}
    if history.instructions:
        parts = [{"text": text} for text in history.instructions]
        body["systemInstruction"] = orjson.Fragment(dumps({"parts": parts}))
    body["contents"] = history.encoded()
    body |= tools_member(tools, request, can_forbid=False)
    refuse_single_calls(wire, request, tools)
    extra = extra_members(request.settings.extra, own_keys=_OWN_KEYS)
    choice = checked_choice(request, tools)
    config = {}
    if choice is not None and tools.names:  # without functions it would be refused
        config["functionCallingConfig"] = _choice(choice)
    reasoning = reasoning_of(wire, request, model)
    settings = sampling(wire, request, reasoning.tokens)
    for key, members in (("toolConfig", config), ("generationConfig", settings)):
        if member := with_extra(members, key, extra):
            body[key] = member
    path = _path(wire, model, stream=stream)
    body |= extra
    add_members(body, reasoning.members)
    offer = asked_output(wire.output, request, body, model=model, offer=tools.offer)
    return http_request(wire, path, body, stream=stream, offer=offer)


def _path(wire: Wire, model: str, *, stream: bool) -> str:
    """Return the path: a model with a slash is a resource (`tunedModels/…`), else in `models/`."""
    name = model if "/" in model else f"models/{model}"
    if not is_encodable(name) or any(step in ("", ".", "..") for step in name.split("/")):
        raise RequestError(f"{model!r} does not name a Gemini model")
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return f"{wire.path}/{quote(name, safe='/@')}:{method}"


def _choice(choice: ToolChoice) -> dict[str, Any]:
    form: dict[str, Any] = {"mode": _MODES[choice.mode]}
    names = (choice.name,) if choice.mode == "tool" else choice.allowed
    if names and choice.mode != "none":
        form["allowedFunctionNames"] = list(names)
    return form


_FINISH_REASONS: dict[str, FinishReason] = {
    "max_tokens": "length",
    **GEMINI_FILTERED,
    # The call is complete, but its tool was not declared. Hydration tells the model so.
    "unexpected_tool_call": "tool_calls",
    "malformed_function_call": "error",
    "malformed_response": "error",
    "too_many_tool_calls": "error",
    "missing_thought_signature": "error",
    "language": "error",
    "other": "error",
    "no_image": "error",
    "image_other": "error",
    # Vertex may send the number. Numbers from 5 on differ between Vertex and Google AI.
    "2": "length",
    "3": "content_filter",
    "4": "content_filter",
}


# The keywords that Google's API definition lists for schemas given as JSON Schema (googleapis:
# generativelanguage/v1beta/generative_service.proto, `_responseJsonSchema`; the
# `parametersJsonSchema` of a function says no more than "JSON Schema"). There, cyclic references
# may only be in properties that are not required, and nothing may be next to a `$ref`, so
# references are inlined. Formats: https://ai.google.dev/gemini-api/docs/structured-output.
_KEYWORDS = frozenset(
    ("type", "format", "title", "description", "enum", "items", "prefixItems", "minItems",
     "maxItems", "minimum", "maximum", "anyOf", "properties", "additionalProperties", "required",
     "propertyOrdering")
)  # fmt: skip

DIALECT = Dialect(
    name="gemini",
    keywords=_KEYWORDS,
    formats=frozenset({"date-time", "date", "time"}),
    root_without=frozenset({"anyOf", "oneOf", "allOf", "enum"}),
    refs="none",
    booleans=False,
    need_items=True,
    compact_over=VERY_LARGE,
)


def _tool(tool: ShownTool) -> dict[str, Any]:
    """Write a declaration: https://ai.google.dev/api/caching#FunctionDeclaration

    A tool without parameters gets a schema, too: mode ANY refuses a tool without one
    (googleapis/python-genai#981).
    """
    return described(tool) | {"parametersJsonSchema": tool.schema}


def _declarations(forms: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put all functions into one element, as Gemini's `tools` require."""
    return [{"functionDeclarations": forms}] if forms else []


# What every version of the service accepts, according to its refusals
# (google-gemini/gemini-cli#7869). Newer ones also accept colons, and 128 characters.
TOOLS = ToolForm(
    name="gemini",
    names=NameRule("A-Za-z0-9_.-", 64, first="A-Za-z_"),
    dialect=DIALECT,
    shape=_tool,
    gather=_declarations,
)


def _answer(answer: ShownAnswer) -> dict[str, Any]:
    """Write `responseJsonSchema`:
    https://ai.google.dev/api/generate-content#v1beta.GenerationConfig"""
    schema = orjson.Fragment(answer.schema)
    return {"responseMimeType": "application/json", "responseJsonSchema": schema}


# "Function calling with a response mime type: 'application/json' is unsupported"
# (googleapis/python-genai#867); models before 2.5 do not support JSON Schema.
OUTPUT = OutputForm(
    shape=_answer,
    within="generationConfig",
    dialect=DIALECT,
    models=r"gemini-(?!1|2\.0)",
)

_ANY_BODY_MEMBERS = frozenset(
    (*_BODY_MEMBERS, "prompt_feedback", "usage_metadata", "model_version")
)


def _reasoning(effort: Effort, model: str) -> Reasoning:
    """Return a budget for Gemini 2.5, which counts towards the token limit, and a level for others.

    https://ai.google.dev/gemini-api/docs/thinking: 2.5 Pro, and Gemini 3 and newer, cannot be kept
    from thinking; 2.5 refuses the levels, and all refuse budgets next to levels.
    """
    by_budget = "gemini-2.5" in model
    if effort == "none" and (not by_budget or "pro" in model):
        raise no_effort(effort, model, "minimal", "low", "medium", "high")
    tokens = REASONING_TOKENS[effort] if by_budget else 0
    thinking_config = {"thinkingBudget": tokens} if by_budget else {"thinkingLevel": effort.upper()}
    return Reasoning({"generationConfig": {"thinkingConfig": thinking_config}}, tokens)


GEMINI = Wire(
    name="gemini",
    path="",
    encode=encode,
    tools=TOOLS,
    make_decoder=decoding_by(GeminiReply),
    auth=lambda key: {"x-goog-api-key": key},
    natural_reasons=frozenset(("stop", "1")),  # Vertex may send the number
    finish_reasons=_FINISH_REASONS,
    history=GeminiHistory,
    max_tokens_key="maxOutputTokens",
    output=OUTPUT,
    prompt_media=_MEDIA,
    result_media=_MEDIA,
    reasoning=_reasoning,
    is_reply=lambda value: not _ANY_BODY_MEMBERS.isdisjoint(value),
)
