"""Clients by name, as the command line and `Agent` take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from toolcrib.clients.anthropic import AnthropicClient
from toolcrib.clients.bedrock import BedrockClient
from toolcrib.clients.cohere import CohereClient
from toolcrib.clients.gemini import GeminiClient
from toolcrib.clients.local import LocalClient
from toolcrib.clients.mistral import MistralClient
from toolcrib.clients.ollama import OllamaClient
from toolcrib.clients.openai import OpenAIClient
from toolcrib.clients.transport import Transport
from toolcrib.errors import RequestError
from toolcrib.values.client import LLMClient

_PROVIDERS: Mapping[str, Callable[..., LLMClient]] = {
    "anthropic": AnthropicClient,
    "bedrock": BedrockClient,
    "cohere": CohereClient,
    "gemini": GeminiClient,
    "local": LocalClient,
    "mistral": MistralClient,
    "ollama": OllamaClient,
    "openai": OpenAIClient,
    "openai-responses": partial(OpenAIClient, api="responses"),
}
_MODELS = ", ".join(f"{provider}:MODEL" for provider in _PROVIDERS if provider != "local")
_FORMS = f"local, local:FILE.gguf, {_MODELS}, or URL#MODEL for a server that speaks OpenAI's wire"


def client_for(name: str, *, transport: Transport | None = None) -> LLMClient:
    """The client that a name stands for.

    * `PROVIDER:MODEL`, such as `gemini:gemini-2.5-flash`, asks a provider, whose key and server come
      from the usual environment variables: anthropic, bedrock, cohere, gemini, mistral, ollama,
      openai, and openai-responses for the other of OpenAI's two wires;
    * `URL#MODEL` asks a server that speaks OpenAI's chat wire, and gets no key from the environment;
    * `local` is the embedded model, `local:FILE.gguf` another one from a file.

    `transport` is what requests go by. Raises RequestError for a name of another form, or a transport
    for a model that sends no requests; AuthenticationError for a missing key, SourceError for a missing
    file, MissingExtraError for a missing extra.
    """
    options = {} if transport is None else {"transport": transport}
    if name.startswith(("http://", "https://")):
        url, _, model = name.rpartition("#")
        if not url or not model:
            raise RequestError("a server is named as URL#MODEL: http://localhost:8000/v1#my-model")
        return OpenAIClient(model, base_url=url, transport=transport)
    provider, _, model = name.partition(":")
    if provider == "local" and options:
        raise RequestError("a local model sends no requests that a transport could carry")
    if name == "local":
        return LocalClient()
    make = _PROVIDERS.get(provider)
    if make is None or not model:
        raise RequestError(f"there is no model {name!r}; name one as {_FORMS}")
    return make(model, **options)
