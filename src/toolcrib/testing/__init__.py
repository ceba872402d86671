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
from toolcrib.testing.mistral_server import MistralServer, mistral_server
from toolcrib.testing.ollama_server import OllamaServer, ollama_server
from toolcrib.testing.script import ScriptedCall, call, raw_call
from toolcrib.testing.scripted import ScriptedClient

__all__ = [
    "AnthropicServer",
    "MemorySink",
    "MistralServer",
    "OllamaServer",
    "OpenAIServer",
    "ScriptedCall",
    "ScriptedClient",
    "anthropic_server",
    "call",
    "cut",
    "die_after",
    "http_error",
    "mistral_server",
    "ollama_server",
    "openai_server",
    "raw",
    "raw_call",
]
