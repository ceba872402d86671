"""Tools on offer, and texts as the templates of each family have them."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import Offer, Reply
from toolcrib.wire import OPENAI_CHAT, TextSyntax, Wire, decode

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "warm": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "where": {"type": "object"},
        "note": {"type": ["string", "null"]},
        "unit": {"$ref": "#/$defs/unit"},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "free": {},
    },
    "$defs": {"unit": {"enum": ["1", "2"]}},
}


def offer_of(*names: str, schema: dict[str, Any] | None = None) -> Offer:
    text = json.dumps(schema or {})
    tools = [ToolDefinition(name=name, description="", input_schema_json=text) for name in names]
    return Offer.of([PlainTool(tool) for tool in tools])


OFFER = offer_of("get_weather", "search", "now", schema=WEATHER)


def chat_body(text: str, reason: str = "stop", **message: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}}
    return json.dumps({"choices": [choice | {"finish_reason": reason}]}).encode()


def chat_stream(pieces: list[str], reason: str = "stop") -> bytes:
    chunks: list[dict[str, Any]] = [{"delta": {"content": piece}} for piece in pieces]
    chunks.append({"delta": {}, "finish_reason": reason})
    lines = [f"data: {json.dumps({'choices': [chunk]})}\n\n" for chunk in chunks]
    return "".join((*lines, "data: [DONE]\n\n")).encode()


def with_syntax(syntax: TextSyntax | str, wire: Wire = OPENAI_CHAT) -> Wire:
    return msgspec.structs.replace(wire, text_calls=syntax)


def read(syntax: TextSyntax | str, text: str, reason: str = "stop", offer: Offer = OFFER) -> Reply:
    return decode(with_syntax(syntax), chat_body(text, reason), offer=offer)


def calls_in(reply: Reply) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in reply.tool_calls]
