"""The wires and tool forms by name; which wire a body belongs to, and what a wire can do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec
import orjson

from toolcrib.errors import (
    RequestError,
    WireError,
    no_such,
)
from toolcrib.values.call import ToolCall
from toolcrib.values.content import Image
from toolcrib.values.definition import HasDefinition, PlainTool, ToolDefinition
from toolcrib.values.json import JsonObject
from toolcrib.values.message import (
    ChatRequest,
    Effort,
    Message,
    Offer,
    OutputFormat,
    Reply,
    Settings,
    ToolChoice,
)
from toolcrib.values.typed import names_wrong_types
from toolcrib.wire.anthropic import ANTHROPIC
from toolcrib.wire.base import Decoder, HttpRequest, Memo, Wire, as_offered
from toolcrib.wire.bedrock_converse import BEDROCK_CONVERSE
from toolcrib.wire.cohere import COHERE
from toolcrib.wire.failure import http_error, safe_text
from toolcrib.wire.forms import ToolForm, ToolView, forms_of, offered_output, views_of
from toolcrib.wire.framing import EventStream, FrameStream, LineStream
from toolcrib.wire.gemini import GEMINI
from toolcrib.wire.json_text import parsed
from toolcrib.wire.mistral import MISTRAL
from toolcrib.wire.ollama import OLLAMA
from toolcrib.wire.openai_chat import OPENAI_CHAT
from toolcrib.wire.openai_responses import OPENAI_RESPONSES
from toolcrib.wire.text_calls import syntax_of
from toolcrib.wire.text_decoder import TextCallDecoder

OfferedTools: TypeAlias = Iterable[Any] | HasDefinition | ToolDefinition | Mapping[str, object]

WIRES: Mapping[str, Wire] = {
    wire.name: wire
    for wire in (
        OPENAI_CHAT,
        OPENAI_RESPONSES,
        ANTHROPIC,
        GEMINI,
        MISTRAL,
        OLLAMA,
        COHERE,
        BEDROCK_CONVERSE,
    )
}

FORMS: Mapping[str, ToolForm] = {wire.tools.name: wire.tools for wire in WIRES.values()}


@names_wrong_types
def wire_of(wire: Wire | str) -> Wire:
    """Return the wire of that name. Raises RequestError for an unknown name."""
    if isinstance(wire, Wire):
        return wire
    if wire not in WIRES:
        raise RequestError(no_such("wire", wire, sorted(WIRES)))
    return WIRES[wire]


@names_wrong_types
def encode(
    wire: Wire | str,
    request: ChatRequest,
    *,
    model: str,
    stream: bool = False,
    memo: Memo | None = None,
) -> HttpRequest:
    """Return the HTTP request for a chat request, without server and key.

    `memo` lets requests of one conversation share their encoded part. Raises RequestError for
    anything that the wire has no form for, such as a call without its result, or a tool that the
    provider would refuse; CatalogError for a repeated name among the tools.
    """
    wire = wire_of(wire)
    if request.output is not None:
        request = offered_output(
            wire.tools, wire.output, request, model=model, as_tool=wire.output_tool
        )
    return wire.encode(wire, request, model=model, stream=stream, memo=memo)


@names_wrong_types
def form_of(wire: Wire | ToolForm | str) -> ToolForm:
    """Return how that provider takes tools. Raises RequestError for an unknown name."""
    if isinstance(wire, ToolForm):
        return wire
    if isinstance(wire, Wire):
        return wire.tools
    if wire not in FORMS:
        raise RequestError(no_such("form of tools", wire, sorted(FORMS)))
    return FORMS[wire]


@names_wrong_types
def encode_tools(wire: Wire | ToolForm | str, tools: OfferedTools) -> list[JsonObject]:
    """Return the `tools` of a request, from tools in any form: definitions, dictionaries, lists.

    Dictionaries are `{name, description, input_schema}`. Schemas are copies; output schemas are not
    sent. Raises RequestError for a tool that the provider would refuse, CatalogError for a repeated
    name.
    """
    return forms_of(form_of(wire), _definitions(tools))


@names_wrong_types
def tool_views(wire: Wire | ToolForm | str, tools: OfferedTools) -> list[ToolView]:
    """Return what each tool looks like to the provider and what is lost; refuses nothing.

    Raises CatalogError for a repeated name.
    """
    return views_of(form_of(wire), _definitions(tools))


def _definitions(tools: OfferedTools) -> list[ToolDefinition]:
    return [tool.get_definition() for tool in as_offered(tools)]


@names_wrong_types
def decoder(
    wire: Wire | str,
    streaming: bool = True,
    offer: Offer | None = None,
    ids: str | None = None,
) -> Decoder:
    """Return a decoder for one response.

    `ids` is the prefix of the calls' ids, `call_` by default. If a runner runs the calls, each
    reply needs its own prefix, to keep them apart from those of other replies. With `streaming`, a
    body that turns out to be JSON is still read as such. Raises RequestError for an unknown wire,
    or an unknown syntax of calls in text.
    """
    wire = wire_of(wire)
    ids = "call_" if ids is None else ids
    offer = offer or Offer()
    wire_decoder = wire.make_decoder(wire, streaming=streaming, offer=offer, ids=ids)
    if wire.text_calls is None:
        return wire_decoder
    syntax = syntax_of(wire.text_calls)
    return TextCallDecoder(
        wire_decoder, syntax, offer=offer, ids=ids, trusted=wire.text_calls_trusted
    )


@names_wrong_types
def decode(
    wire: Wire | str,
    body: bytes | str,
    *,
    status: int = 200,
    content_type: str = "",
    offer: Offer | None = None,
    ids: str | None = None,
) -> Reply:
    """Return the reply in a complete body, either JSON or a recorded stream.

    Its last byte counts as a clean end of the transport; `ids` is as in `decoder`.

    Raises AuthenticationError, RateLimitError, RequestError or ProviderError by HTTP status,
    ProviderError for an error in the body, WireError for another format.
    """
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    if not 200 <= status < 300:
        raise http_error(status, data)
    streaming = "json" not in content_type or not data.lstrip().startswith(b"{")
    body_decoder = decoder(wire, streaming, offer, ids)
    body_decoder.feed(data)
    return body_decoder.finish()


# Find out which wire a body belongs to, by members that only that wire has. Nothing is decoded.
#
# Servers that borrow a format belong to it: a chat completion is `openai-chat`, also Mistral's,
# which is read the same way there.


_FRAME_START = b"\0"  # no text begins like this, but every AWS frame below 16 MiB does
_CHUNK_SIZE = 64 * 1024
_BLANKS = b"\xef\xbb\xbf \t\r\n"


@names_wrong_types
def detect(body: bytes, content_type: str = "") -> str:
    """Return the wire's name for a response body: JSON, server-sent events, lines or AWS frames.

    `content_type` decides if the content does not. An error object in OpenAI's form, which every
    wire reads alike, is `openai-chat`. Raises WireError for a body that belongs to no wire, or may
    belong to several; it names them.
    """
    candidates = _possible_wires(body) or (["ollama"] if "x-ndjson" in content_type else [])
    if not candidates:
        excerpt = safe_text(body[:2000].decode("utf-8", "replace"), 80)
        raise WireError(
            f"the format of the body is none of the known wires ({', '.join(WIRES)}): "
            f"{excerpt or 'it is empty'}"
        )
    if len(candidates) > 1:
        raise WireError(
            f"the body may belong to several wires, {' or '.join(candidates)}: name one"
        )
    (wire,) = candidates
    if wire not in WIRES:
        raise WireError(
            f"the body is in the format of {wire}, which is not a known wire ({', '.join(WIRES)})"
        )
    return wire


def _possible_wires(body: bytes) -> list[str]:
    """Return the wires that the first meaningful value may belong to."""
    if body.startswith(_FRAME_START):
        return _wires_of_frames(body)
    return next(filter(None, map(_wires_of_value, _values(body))), [])


def _wires_of_frames(body: bytes) -> list[str]:
    """Return the wire whose events the frames' headers name. Raises WireError if they are not
    frames."""
    frames = FrameStream()
    names = {event.name for event in frames.feed(body[:_CHUNK_SIZE])}
    frames.feed(b"")
    return ["bedrock-invoke" if b"chunk" in names else "bedrock-converse"]


def _values(body: bytes) -> Iterator[Any]:
    """Yield the JSON values in a body, on demand."""
    stripped = body.lstrip(_BLANKS)
    frames: EventStream | LineStream = EventStream()
    if stripped.startswith((b"{", b"[")):
        value = _value(stripped)
        if value is not None:
            yield value
            return
        frames = LineStream()
    for offset in range(0, len(body), _CHUNK_SIZE):
        for event in frames.feed(body[offset : offset + _CHUNK_SIZE]):
            yield _value(event.data)
    if (last_event := frames.close()) is not None:
        yield _value(last_event.data)


def _value(data: bytes) -> Any:
    """Return the value, or the first item of an array; None if it is not JSON."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = parsed(data)
    return value[0] if isinstance(value, list) and value else value


def _wires_of_value(value: Any) -> list[str]:
    """Return the wires that have such a value; empty if it does not tell."""
    if not isinstance(value, dict):
        return []
    names = [w.name for w in WIRES.values() if w.is_reply is not None and w.is_reply(value)]
    return names or _wires_of_error(value)


def _wires_of_error(value: JsonObject) -> list[str]:
    error = value.get("error")
    if isinstance(error, dict):
        if value.get("type") == "error":
            return ["openai-responses" if "sequence_number" in value else "anthropic"]
        return [
            "gemini" if isinstance(error.get("code"), int) and "status" in error else "openai-chat"
        ]
    if isinstance(error, str):
        return ["openai-chat"]
    if isinstance(value.get("message"), str):
        if value.get("object") == "error":
            return ["mistral"]
        if value.get("type") == "error":
            return ["openai-responses"]
        return ["cohere"] if "id" in value else ["bedrock-converse", "cohere"]
    return []


# Find out what can be asked of a provider by asking its encoder, which raises if there is no form.


Choosing: TypeAlias = Literal["yes", "fewer", "no"]
"""`fewer`: there is no way to say it, so only the tools that may be called are sent."""


Answering: TypeAlias = Literal["yes", "alone", "no"]
"""`alone`: only in requests without tools; with tools it is a call of a special tool."""


Reasoned: TypeAlias = Literal["yes", "some", "by model", "no"]
"""`some`: only some of the levels of reasoning. `by model`: only models for which it is known
how."""


Deferred: TypeAlias = Literal["by model", "no"]
"""`by model`: for models and servers known to support it, or where it is requested."""


class Abilities(NamedTuple):
    """Says what a wire can express.

    That is: which choices of tools; whether a reply can be limited to one call, pictures can be
    sent (as data, by address), a failed result is marked as such, and schemas can be enforced while
    the model writes; whether there is a form for a typed answer, for how much the model is to
    reason, and for tools sent at the place where a search found them.
    """

    none: Choosing
    required: Choosing
    one_tool: Choosing
    some_tools: Choosing
    one_call: bool
    images: bool
    image_urls: bool
    marks_errors: bool
    strict: bool
    typed: Answering
    reasoning: Reasoned
    deferred: Deferred


_SCHEMA = '{"type":"object","properties":{},"additionalProperties":false}'
_TOOLS = tuple(
    PlainTool(ToolDefinition(name=n, description=n, input_schema_json=_SCHEMA)) for n in "ab"
)
_OUTPUT = OutputFormat(
    "answer",
    '{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}',
)
_QUESTION = Message.user("?")
_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)


@names_wrong_types
def abilities(wire: Wire | str) -> Abilities:
    """Return the abilities of a wire. Raises RequestError for an unknown name."""
    wire = wire_of(wire)
    return Abilities(
        none=_choice_ability(wire, ToolChoice("none")),
        required=_choice_ability(wire, ToolChoice("required")),
        one_tool=_choice_ability(wire, ToolChoice("tool", "a")),
        some_tools=_choice_ability(wire, ToolChoice("auto", allowed=("a",))),
        one_call=_try_encode(wire, ChatRequest((_QUESTION,), _TOOLS, parallel_calls=False))
        is not None,
        images=_can_send(wire, Image("image/png", _PIXEL)),
        image_urls=_can_send(wire, Image("image/png", url="https://example.org/a.png")),
        marks_errors=_body_with_result(wire, is_error=True)
        != _body_with_result(wire, is_error=False),
        strict=wire.tools.strict_dialect is not None,
        typed=_output_ability(wire),
        reasoning=_reasoning_ability(wire),
        deferred=_deferred_ability(wire),
    )


def _try_encode(wire: Wire, request: ChatRequest) -> HttpRequest | None:
    try:
        return encode(wire, request, model="m")
    except RequestError:
        return None


def _choice_ability(wire: Wire, choice: ToolChoice) -> Choosing:
    http_request = _try_encode(wire, ChatRequest((_QUESTION,), _TOOLS, choice))
    if http_request is None:
        return "no"
    return "yes" if len(http_request.offer.tools) == len(_TOOLS) else "fewer"


def _output_ability(wire: Wire) -> Answering:
    if wire.output is None:
        return "no"
    wire = msgspec.structs.replace(wire, output=wire.output.everywhere())
    for tools in (_TOOLS, ()):
        request = ChatRequest((_QUESTION,), tools)
        typed_request = msgspec.structs.replace(request, output=_OUTPUT)
        if encode(wire, typed_request, model="m").body != encode(wire, request, model="m").body:
            return "yes" if tools else "alone"
    return "no"


def _reasoning_ability(wire: Wire) -> Reasoned:
    if wire.reasoning is None:
        return "no"
    settings = (Settings(reasoning=effort) for effort in get_args(Effort))
    supported = [
        _try_encode(wire, ChatRequest((_QUESTION,), settings=requested)) is not None
        for requested in settings
    ]
    return "yes" if all(supported) else "some" if any(supported) else "by model"


def _deferred_ability(wire: Wire) -> Deferred:
    request = ChatRequest((_QUESTION,), _TOOLS, search_tool="a", deferred=True)
    return "no" if _try_encode(wire, request) is None else "by model"


def _can_send(wire: Wire, image: Image) -> bool:
    wire = msgspec.structs.replace(wire, prompt_models="")  # allow every model
    return _try_encode(wire, ChatRequest((Message.user("?", (image,)),))) is not None


def _body_with_result(wire: Wire, *, is_error: bool) -> bytes:
    call = ToolCall("call_0", "a", "{}")
    result = Message.tool(call, "it is so", is_error=is_error)
    history = (_QUESTION, Message.assistant("", (call,)), result)
    return encode(wire, ChatRequest(history, _TOOLS), model="m").body
