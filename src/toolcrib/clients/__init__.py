"""Clients: how a model is asked, over HTTP or in process."""

from toolcrib.clients.base import FallbackClient, Retries, WireClient, fallback, plan_of, request_of
from toolcrib.clients.local import LocalClient
from toolcrib.clients.providers import (
    AnthropicClient,
    BedrockClient,
    CohereClient,
    EmbeddingsClient,
    GeminiClient,
    MistralClient,
    OllamaClient,
    OpenAIClient,
    client_for,
    cost_of,
)
from toolcrib.clients.transport import (
    AiohttpTransport,
    Outgoing,
    Response,
    SigningTransport,
    Timeouts,
    Transport,
)
from toolcrib.values.message import LLMClient, Settings

__all__ = [
    "AiohttpTransport",
    "AnthropicClient",
    "BedrockClient",
    "CohereClient",
    "EmbeddingsClient",
    "FallbackClient",
    "GeminiClient",
    "LLMClient",
    "LocalClient",
    "MistralClient",
    "OllamaClient",
    "OpenAIClient",
    "Outgoing",
    "Response",
    "Retries",
    "Settings",
    "SigningTransport",
    "Timeouts",
    "Transport",
    "WireClient",
    "client_for",
    "cost_of",
    "fallback",
    "plan_of",
    "request_of",
]
