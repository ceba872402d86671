"""For tests of what is built with toolcrib: a scripted model, loopback servers, a sink in memory."""

from toolcrib.testing.anthropic_server import AnthropicServer, anthropic_server
from toolcrib.testing.loopback import (
    OpenAIServer,
    cut,
    die_after,
    http_error,
    openai_server,
    raw,
)
from toolcrib.testing.memory import MemorySink
from toolcrib.testing.script import ScriptedCall, call, raw_call
from toolcrib.testing.scripted import ScriptedClient

__all__ = [
    "AnthropicServer",
    "MemorySink",
    "OpenAIServer",
    "ScriptedCall",
    "ScriptedClient",
    "anthropic_server",
    "call",
    "cut",
    "die_after",
    "http_error",
    "openai_server",
    "raw",
    "raw_call",
]
