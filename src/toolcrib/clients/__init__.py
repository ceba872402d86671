"""Clients: how a model is asked, over HTTP or in process."""

from toolcrib.clients.anthropic import AnthropicClient
from toolcrib.clients.base import WireClient, plan_of, request_of
from toolcrib.clients.gemini import GeminiClient
from toolcrib.clients.local import LocalClient
from toolcrib.clients.mistral import MistralClient
from toolcrib.clients.named import client_for
from toolcrib.clients.ollama import OllamaClient
from toolcrib.clients.openai import OpenAIClient
from toolcrib.clients.transport import (
    AiohttpTransport,
    Outgoing,
    Response,
    Timeouts,
    Transport,
)
from toolcrib.values.client import LLMClient
from toolcrib.values.message import Settings

__all__ = [
    "AiohttpTransport",
    "AnthropicClient",
    "GeminiClient",
    "LLMClient",
    "LocalClient",
    "MistralClient",
    "OllamaClient",
    "OpenAIClient",
    "Outgoing",
    "Response",
    "Settings",
    "Timeouts",
    "Transport",
    "WireClient",
    "client_for",
    "plan_of",
    "request_of",
]
