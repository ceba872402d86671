"""The wires and the forms of tools by name, and the functions that take one by name or as a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from toolcrib.errors import RequestError
from toolcrib.values.definition import HasDefinition, ToolDefinition
from toolcrib.values.json import JsonObject
from toolcrib.values.message import ChatRequest, Reply
from toolcrib.values.offer import Offer
from toolcrib.values.typed import names_wrong_types
from toolcrib.wire.anthropic import ANTHROPIC
from toolcrib.wire.base import Decoder, HttpRequest, Memo, Wire, as_offered
from toolcrib.wire.bedrock_converse import BEDROCK_CONVERSE
from toolcrib.wire.cohere import COHERE
from toolcrib.wire.failure import http_error
from toolcrib.wire.forms import FORMS, ToolForm
from toolcrib.wire.gemini import GEMINI
from toolcrib.wire.mistral import MISTRAL
from toolcrib.wire.ollama import OLLAMA
from toolcrib.wire.openai_chat import OPENAI_CHAT
from toolcrib.wire.openai_responses import OPENAI_RESPONSES
from toolcrib.wire.text_calls import syntax_of
from toolcrib.wire.text_calls.decoder import TextCallDecoder
from toolcrib.wire.views import ToolView, forms_of, views_of

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


@names_wrong_types
def wire_of(wire: Wire | str) -> Wire:
    """The wire of that name. Raises RequestError for a name that nobody knows."""
    if isinstance(wire, Wire):
        return wire
    if wire not in WIRES:
        raise RequestError(f"there is no wire {wire!r}; there are: {', '.join(sorted(WIRES))}")
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
    """The HTTP request for a chat request, without server and key.

    `memo` lets requests of one conversation share their encoded part. Raises RequestError for what
    the wire has no form for, such as a call without its result, or a tool that the provider would
    refuse; CatalogError for a name on offer twice.
    """
    wire = wire_of(wire)
    return wire.encode(wire, request, model=model, stream=stream, memo=memo)


@names_wrong_types
def form_of(wire: Wire | ToolForm | str) -> ToolForm:
    """How that provider takes tools. Raises RequestError for a name that nobody knows."""
    if isinstance(wire, ToolForm):
        return wire
    if isinstance(wire, Wire):
        return wire.tools
    if wire not in FORMS:
        raise RequestError(
            f"there is no form of tools {wire!r}; there are: {', '.join(sorted(FORMS))}"
        )
    return FORMS[wire]


@names_wrong_types
def encode_tools(wire: Wire | ToolForm | str, tools: OfferedTools) -> list[JsonObject]:
    """The `tools` of a request, from tools, definitions, `{name, description, input_schema}`, or
    catalogs and lists of them.

    Schemas are copies; output schemas stay home. Raises RequestError for a tool that the provider
    would refuse, CatalogError for a name that comes twice.
    """
    return forms_of(form_of(wire), _definitions(tools))


@names_wrong_types
def tool_views(wire: Wire | ToolForm | str, tools: OfferedTools) -> list[ToolView]:
    """What each tool looks like to the provider and what is lost on the way; refuses nothing.

    Raises CatalogError for a name that comes twice.
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
    """A decoder for one response. `ids` is the prefix of the calls' ids, `call_` by default.

    With `streaming` a body that turns out to be JSON is read as such all the same. Raises
    RequestError for a wire, or a syntax of calls in text, that nobody knows.
    """
    wire = wire_of(wire)
    ids = "call_" if ids is None else ids
    offer = offer or Offer()
    made = wire.make_decoder(wire, streaming=streaming, offer=offer, ids=ids)
    if wire.text_calls is None:
        return made
    syntax = syntax_of(wire.text_calls)
    return TextCallDecoder(made, syntax, offer=offer, ids=ids, trusted=wire.text_calls_trusted)


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
    """The reply in a whole body, be it JSON or a recorded stream.

    Its last byte counts as a clean end of the transport.

    Raises AuthenticationError, RateLimitError, RequestError or ProviderError by HTTP status,
    ProviderError for an error in the body, WireError for another format.
    """
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    if not 200 <= status < 300:
        raise http_error(status, data)
    streaming = "json" not in content_type or not data.lstrip().startswith(b"{")
    reading = decoder(wire, streaming, offer, ids)
    reading.feed(data)
    return reading.finish()
