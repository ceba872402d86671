"""What can be asked of a provider, found by asking its encoder, which raises where there is no form."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import msgspec

from toolcrib.errors import RequestError
from toolcrib.values.call import ToolCall
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import ChatRequest, Image, Message, OutputFormat, ToolChoice
from toolcrib.values.typed import names_wrong_types
from toolcrib.wire.base import HttpRequest, Wire
from toolcrib.wire.table import encode, wire_of

Choosing: TypeAlias = Literal["yes", "fewer", "no"]
"""`fewer`: there are no words for it, and so only those tools are sent that may be called."""


Answering: TypeAlias = Literal["yes", "alone", "no"]
"""`alone`: only in requests without tools."""


class Abilities(NamedTuple):
    """Each choice of tools; whether a reply can be kept to one call, pictures can be sent (as data, by
    address), a failed result is marked as such, and schemas can be held to while the model writes;
    whether there is a form for a typed answer."""

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


_SCHEMA = '{"type":"object","properties":{},"additionalProperties":false}'
_TOOLS = tuple(
    PlainTool(ToolDefinition(name=n, description=n, input_schema_json=_SCHEMA)) for n in "ab"
)
_TYPED = OutputFormat(
    "answer",
    '{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}',
)
_ASKED = Message.user("?")
_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)


@names_wrong_types
def abilities(wire: Wire | str) -> Abilities:
    """Those of one provider. Raises RequestError for a name that nobody knows."""
    wire = wire_of(wire)
    return Abilities(
        none=_chosen(wire, ToolChoice("none")),
        required=_chosen(wire, ToolChoice("required")),
        one_tool=_chosen(wire, ToolChoice("tool", "a")),
        some_tools=_chosen(wire, ToolChoice("auto", allowed=("a",))),
        one_call=_sent(wire, ChatRequest((_ASKED,), _TOOLS, parallel_calls=False)) is not None,
        images=_shows(wire, Image("image/png", _PIXEL)),
        image_urls=_shows(wire, Image("image/png", url="https://example.org/a.png")),
        marks_errors=_with_result(wire, is_error=True) != _with_result(wire, is_error=False),
        strict=wire.tools.strict_dialect is not None,
        typed=_answering(wire),
    )


def _sent(wire: Wire, request: ChatRequest) -> HttpRequest | None:
    try:
        return encode(wire, request, model="m")
    except RequestError:
        return None


def _chosen(wire: Wire, choice: ToolChoice) -> Choosing:
    sent = _sent(wire, ChatRequest((_ASKED,), _TOOLS, choice))
    if sent is None:
        return "no"
    return "yes" if len(sent.offer.tools) == len(_TOOLS) else "fewer"


def _answering(wire: Wire) -> Answering:
    if wire.output is None:
        return "no"
    wire = msgspec.structs.replace(wire, output=wire.output.everywhere())
    for tools in (_TOOLS, ()):
        request = ChatRequest((_ASKED,), tools)
        typed = msgspec.structs.replace(request, output=_TYPED)
        if encode(wire, typed, model="m").body != encode(wire, request, model="m").body:
            return "yes" if tools else "alone"
    return "no"


def _shows(wire: Wire, image: Image) -> bool:
    return _sent(wire, ChatRequest((Message.user("?", (image,)),))) is not None


def _with_result(wire: Wire, *, is_error: bool) -> bytes:
    call = ToolCall("call_0", "a", "{}")
    told = Message.tool(call, "it is so", is_error=is_error)
    history = (_ASKED, Message.assistant("", (call,)), told)
    return encode(wire, ChatRequest(history, _TOOLS), model="m").body
