"""Provider formats: encoders and decoders without IO, and a table of them."""

from toolcrib.values.message import ChatRequest
from toolcrib.wire.base import Decoder, HttpRequest, Memo, Wire
from toolcrib.wire.failure import http_error
from toolcrib.wire.openai_chat import OPENAI_CHAT
from toolcrib.wire.table import WIRES, decode, decoder, encode, encode_tools, wire_of

__all__ = [
    "OPENAI_CHAT",
    "WIRES",
    "ChatRequest",
    "Decoder",
    "HttpRequest",
    "Memo",
    "Wire",
    "decode",
    "decoder",
    "encode",
    "encode_tools",
    "http_error",
    "wire_of",
]
