"""For tests of what is built with toolcrib: a scripted model, loopback servers, cassettes."""

from toolcrib.testing.anthropic_server import AnthropicServer, anthropic_server
from toolcrib.testing.bedrock_server import BedrockServer, bedrock_server
from toolcrib.testing.cohere_server import CohereServer, cohere_server
from toolcrib.testing.gemini_server import GeminiServer, gemini_server
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
from toolcrib.testing.responses_server import ResponsesServer, responses_server
from toolcrib.testing.script import ScriptedCall, call, raw_call
from toolcrib.testing.scripted import ScriptedClient
from toolcrib.testing.tape import Cassette, cassette

__all__ = [
    "AnthropicServer",
    "BedrockServer",
    "Cassette",
    "CohereServer",
    "GeminiServer",
    "MemorySink",
    "MistralServer",
    "OllamaServer",
    "OpenAIServer",
    "ResponsesServer",
    "ScriptedCall",
    "ScriptedClient",
    "anthropic_server",
    "bedrock_server",
    "call",
    "cassette",
    "cohere_server",
    "cut",
    "die_after",
    "gemini_server",
    "http_error",
    "mistral_server",
    "ollama_server",
    "openai_server",
    "raw",
    "raw_call",
    "responses_server",
]
