"""Clients: how a model is asked, over HTTP or in process."""

from toolcrib.clients.anthropic import AnthropicClient
from toolcrib.clients.base import WireClient, plan_of, request_of
from toolcrib.clients.bedrock import BedrockClient
from toolcrib.clients.cohere import CohereClient
from toolcrib.clients.embeddings import EmbeddingsClient
from toolcrib.clients.fallback import FallbackClient, fallback
from toolcrib.clients.gemini import GeminiClient
from toolcrib.clients.local import LocalClient
from toolcrib.clients.mistral import MistralClient
from toolcrib.clients.named import client_for
from toolcrib.clients.ollama import OllamaClient
from toolcrib.clients.openai import OpenAIClient
from toolcrib.clients.prices import cost_of
from toolcrib.clients.retry import Retries
from toolcrib.clients.signing import SigningTransport
from toolcrib.clients.transport import (
    AiohttpTransport,
    Outgoing,
    Response,
    Transport,
)
from toolcrib.clients.way import Timeouts
from toolcrib.values.client import LLMClient
from toolcrib.values.message import Settings

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
