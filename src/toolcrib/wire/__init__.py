"""Provider formats: encoders and decoders without IO, and tables of them."""

from toolcrib.values.content import Image
from toolcrib.values.message import ChatRequest, OutputFormat, ToolChoice
from toolcrib.wire.anthropic import ANTHROPIC
from toolcrib.wire.base import Decoder, HttpRequest, Memo, Wire
from toolcrib.wire.bedrock_converse import BEDROCK_CONVERSE
from toolcrib.wire.cohere import COHERE
from toolcrib.wire.failure import http_error
from toolcrib.wire.forms import ToolForm, ToolView
from toolcrib.wire.gemini import GEMINI
from toolcrib.wire.mistral import MISTRAL
from toolcrib.wire.ollama import OLLAMA
from toolcrib.wire.openai_chat import OPENAI_CHAT, decode_messages
from toolcrib.wire.openai_responses import OPENAI_RESPONSES
from toolcrib.wire.registry import (
    FORMS,
    WIRES,
    Abilities,
    abilities,
    decode,
    decoder,
    detect,
    encode,
    encode_tools,
    form_of,
    tool_views,
    wire_of,
)
from toolcrib.wire.text_calls import SYNTAXES, TextSyntax, syntax_of

__all__ = [
    "ANTHROPIC",
    "BEDROCK_CONVERSE",
    "COHERE",
    "FORMS",
    "GEMINI",
    "MISTRAL",
    "OLLAMA",
    "OPENAI_CHAT",
    "OPENAI_RESPONSES",
    "SYNTAXES",
    "WIRES",
    "Abilities",
    "ChatRequest",
    "Decoder",
    "HttpRequest",
    "Image",
    "Memo",
    "OutputFormat",
    "TextSyntax",
    "ToolChoice",
    "ToolForm",
    "ToolView",
    "Wire",
    "abilities",
    "decode",
    "decode_messages",
    "decoder",
    "detect",
    "encode",
    "encode_tools",
    "form_of",
    "http_error",
    "syntax_of",
    "tool_views",
    "wire_of",
]
