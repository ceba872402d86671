"""Clients by name, as the command line and `Agent` take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from toolcrib.clients.anthropic import AnthropicClient
from toolcrib.clients.gemini import GeminiClient
from toolcrib.clients.local import LocalClient
from toolcrib.clients.mistral import MistralClient
from toolcrib.clients.ollama import OllamaClient
from toolcrib.clients.openai import OpenAIClient
from toolcrib.errors import RequestError
from toolcrib.values.client import LLMClient

_PROVIDERS: Mapping[str, Callable[[str], LLMClient]] = {
    "anthropic": AnthropicClient,
    "gemini": GeminiClient,
    "local": LocalClient,
    "mistral": MistralClient,
    "ollama": OllamaClient,
    "openai": OpenAIClient,
    "openai-responses": partial(OpenAIClient, api="responses"),
}
_FORMS = (
    "local, local:FILE.gguf, openai:MODEL, openai-responses:MODEL, anthropic:MODEL, gemini:MODEL, "
    "mistral:MODEL, ollama:MODEL, or URL#MODEL for a server that speaks OpenAI's wire"
)


def client_for(name: str) -> LLMClient:
    """The client for `local`, `local:FILE.gguf`, `URL#MODEL`, or `PROVIDER:MODEL` (`gemini:MODEL`).

    Raises RequestError for a name of another form, and what the client raises: AuthenticationError
    for a missing key, SourceError for a missing file, MissingExtraError for a missing extra.
    """
    if name.startswith(("http://", "https://")):
        url, _, model = name.rpartition("#")
        if not url or not model:
            raise RequestError("a server is named as URL#MODEL: http://localhost:8000/v1#my-model")
        return OpenAIClient(model, base_url=url)
    if name == "local":
        return LocalClient()
    provider, _, model = name.partition(":")
    make = _PROVIDERS.get(provider)
    if make is None or not model:
        raise RequestError(f"there is no model {name!r}; name one as {_FORMS}")
    return make(model)
