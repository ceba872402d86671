"""One client class for each provider and for every server that speaks its wire; and clients by
name.

The end of the module has vectors from OpenAI's endpoint for them, and the price of a reply.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import Literal, Unpack
from urllib.parse import urlsplit

import msgspec

from toolcrib.clients.base import (
    Attempts,
    Options,
    Retries,
    WireClient,
    exchanged,
    retried,
    with_headers,
)
from toolcrib.clients.local import LocalClient
from toolcrib.clients.sdk import SdkClient, over_sdk
from toolcrib.clients.server import (
    checked_headers,
    checked_url,
    joined,
    key_of,
    merged,
    same_server,
    url_or_default,
)
from toolcrib.clients.transport import (
    AiohttpTransport,
    Outgoing,
    SigningTransport,
    Timeouts,
    Transport,
    limit_of,
)
from toolcrib.closing import Closing
from toolcrib.errors import MissingExtraError, RequestError, WireError, did_you_mean
from toolcrib.values.json import encodable
from toolcrib.values.message import LLMClient, Reply, Usage
from toolcrib.values.typed import names_wrong_types
from toolcrib.wire import (
    ANTHROPIC,
    BEDROCK_CONVERSE,
    COHERE,
    GEMINI,
    MISTRAL,
    OLLAMA,
    OPENAI_CHAT,
    OPENAI_RESPONSES,
    Wire,
)


def _with_key(wire: Wire, key: str, options: Options) -> Options:
    return with_headers(wire.auth(key) if key else {}, options)


KEYS: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "bedrock": ("AWS_BEARER_TOKEN_BEDROCK",),
    "cohere": ("CO_API_KEY", "COHERE_API_KEY"),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "mistral": ("MISTRAL_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
}
"""The environment variables that may hold the key of each provider, in the order of preference."""


def _base_and_options(
    wire: Wire, provider_url: str, base_url: str | None, api_key: str | None, options: Options
) -> tuple[str, Options]:
    """Return where requests go, and the options with the key for that server.

    The environment's key is only for the provider's own server, which requires one. `KEYS` lists
    its variables by the name of the wire.
    """
    base = checked_url(url_or_default(base_url, provider_url))
    is_providers_own = same_server(base, provider_url)
    key = key_of(api_key, *KEYS[wire.name], looked_up=is_providers_own, needed=is_providers_own)
    return base, _with_key(wire, key, options)


OPENAI_URL = "https://api.openai.com/v1"

_OPENAI = msgspec.structs.replace(OPENAI_CHAT, max_tokens_key="max_completion_tokens")
"""OpenAI refuses `max_tokens` for its reasoning models, and many other servers know nothing else."""


class OpenAIClient(WireClient):
    """A model behind OpenAI's wires. `api` is "chat" (Chat Completions) or "responses".

    Reasoning models keep their reasoning between the turns of a conversation only with "responses".
    Nearly every other server knows only "chat".

    `base_url` and `api_key` default to `OPENAI_BASE_URL` and `OPENAI_API_KEY`, and the base then to
    OpenAI's own. A `base_url` that is passed here gets no key from the environment, because that is
    meant for another server. Pass `api_key` if it needs one. Instead of both, `sdk` may be a client
    of the openai package (`AsyncOpenAI`, `AsyncAzureOpenAI`) that has its own. You have to close it
    yourself.

    Raises AuthenticationError if OpenAI's own server is meant and there is no key, and RequestError
    for an unknown API or an unknown kind of `sdk`.
    """

    @names_wrong_types
    def __init__(
        self,
        model: str,
        *,
        api: Literal["chat", "responses"] = "chat",
        base_url: str | None = None,
        api_key: str | None = None,
        sdk: SdkClient | None = None,
        **options: Unpack[Options],
    ) -> None:
        if sdk is not None:
            base, options = over_sdk(sdk, options, base_url=base_url, api_key=api_key)
        else:
            base = base_of(base_url)
        base = checked_url(base)
        wire = _wire(api, is_openai=same_server(base, OPENAI_URL))
        if sdk is None:
            options = _with_key(wire, key_for(base, base_url, api_key), options)
        super().__init__(wire, model, base_url=base, **options)


def base_of(base_url: str | None) -> str:
    """Return the given address, or that of the environment, or OpenAI's own."""
    return url_or_default(base_url, OPENAI_URL, "OPENAI_BASE_URL")


def key_for(base: str, base_url: str | None, api_key: str | None) -> str:
    """Return the key for the server at `base`, which `base_of` made from `base_url`. It may be
    empty.

    The environment's key is for the environment's server and for OpenAI's own. Raises
    AuthenticationError if OpenAI's server is meant and there is no key.
    """
    is_openai = same_server(base, OPENAI_URL)
    looked_up = base_url is None or is_openai
    return key_of(api_key, "OPENAI_API_KEY", looked_up=looked_up, needed=is_openai)


def _wire(api: str, *, is_openai: bool) -> Wire:
    if api == "responses":
        return OPENAI_RESPONSES
    if api != "chat":
        raise RequestError(f"OpenAI has no API {api!r}; there are: chat, responses")
    return _OPENAI if is_openai else OPENAI_CHAT


# Anthropic, and every server that speaks its Messages wire.

ANTHROPIC_URL = "https://api.anthropic.com"


class AnthropicClient(WireClient):
    """A model behind Anthropic's Messages wire.

    `base_url` (the part before `/v1/messages`) and `api_key` default to `ANTHROPIC_BASE_URL` and
    `ANTHROPIC_API_KEY`, and the base then to Anthropic's own. Without a key, `ANTHROPIC_AUTH_TOKEN`
    is sent as a bearer token. A `base_url` that is passed here gets neither from the environment,
    because they are meant for another server. Pass `api_key` if it needs one. Instead of both,
    `sdk` may be a client of the anthropic package (`AsyncAnthropic`, or one for Vertex, Bedrock or
    Foundry) that has its own. You have to close it yourself. Beta features are requested by
    `headers={"anthropic-beta": …}`.

    Raises AuthenticationError if Anthropic's own server is meant and there is no key, and
    RequestError for an unknown kind of `sdk`.
    """

    @names_wrong_types
    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        sdk: SdkClient | None = None,
        **options: Unpack[Options],
    ) -> None:
        if sdk is not None:
            base, options = over_sdk(sdk, options, base_url=base_url, api_key=api_key)
        else:
            base = url_or_default(base_url, ANTHROPIC_URL, "ANTHROPIC_BASE_URL")
            is_anthropic = same_server(checked_url(base), ANTHROPIC_URL)
            auth = _auth(api_key, looked_up=base_url is None or is_anthropic, needed=is_anthropic)
            options = with_headers(auth, options)
        super().__init__(ANTHROPIC, model, base_url=base, **options)


def _auth(api_key: str | None, *, looked_up: bool, needed: bool) -> dict[str, str]:
    """Return the header for a key, or else for a token, as Anthropic's own client does."""
    token = key_of(None, "ANTHROPIC_AUTH_TOKEN", looked_up=looked_up, needed=False)
    needed = needed and not token
    key = key_of(api_key, "ANTHROPIC_API_KEY", looked_up=looked_up, needed=needed)
    if key:
        return dict(ANTHROPIC.auth(key))
    return {"Authorization": f"Bearer {token}"} if token else {}


# Google's Gemini, and every server that speaks its generateContent wire.

GEMINI_URL = "https://generativelanguage.googleapis.com/v1beta"


class GeminiClient(WireClient):
    """A model behind Gemini's generateContent wire.

    `model` is a name below `models/`, or that of a resource (`tunedModels/…`). `base_url` is the
    part before it, and defaults to Google's own. `api_key` defaults to `GEMINI_API_KEY`, then
    `GOOGLE_API_KEY`. A `base_url` that is passed here gets no key from the environment, because
    that is meant for another server. Pass `api_key` if it needs one, or `headers={"Authorization":
    …}` for Vertex AI. Raises AuthenticationError if Google's own server is meant and there is no
    key.
    """

    @names_wrong_types
    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        base, options = _base_and_options(GEMINI, GEMINI_URL, base_url, api_key, options)
        super().__init__(GEMINI, model, base_url=base, **options)


# Mistral, and every server that speaks its wire.

MISTRAL_URL = "https://api.mistral.ai/v1"


class MistralClient(WireClient):
    """A model behind Mistral's wire.

    `base_url` (the part before `/chat/completions`) defaults to Mistral's own, and `api_key` then
    to `MISTRAL_API_KEY`, which no other server gets. Pass `api_key` if another server needs one.
    Raises AuthenticationError if Mistral's own server is meant and there is no key.
    """

    @names_wrong_types
    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        base, options = _base_and_options(MISTRAL, MISTRAL_URL, base_url, api_key, options)
        super().__init__(MISTRAL, model, base_url=base, **options)


# Ollama, on this machine or another.

OLLAMA_URL = "http://localhost:11434"

_OLLAMA_PORT = 11434
_WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104  a server listens there


class OllamaClient(WireClient):
    """A model that an Ollama server has (`ollama pull NAME`).

    `base_url` (the part before `/api/chat`) defaults to `OLLAMA_HOST`, then to
    `http://localhost:11434`. Without a scheme it is read as Ollama's own programs read it:
    `gpu-box` is `http://gpu-box:11434`. A local server needs no key. ollama.com does: pass
    `api_key`.

    The server silently drops the beginning of a conversation that is longer than its context, whose
    size is set by `Settings(extra={"options": {"num_ctx": 32768}})`. A model may take minutes to
    load: `timeouts` says how long to wait for its first word.
    """

    @names_wrong_types
    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        key = key_of(api_key, looked_up=False, needed=False)
        host = url_or_default(base_url, OLLAMA_URL, "OLLAMA_HOST")
        super().__init__(
            OLLAMA, model, base_url=_ollama_url(host), **_with_key(OLLAMA, key, options)
        )


def _ollama_url(host: str) -> str:
    """Return the base URL for a value of `OLLAMA_HOST`. Raises RequestError.

    The value may be `:8080`, `gpu-box`, `gpu-box/ollama` or a URL. The address that means every
    interface stands for this machine.
    """
    is_bare = "://" not in host
    try:
        parts = urlsplit(f"http://{host}" if is_bare else host)
        port = parts.port or (_OLLAMA_PORT if is_bare else None)
    except ValueError:
        raise RequestError("OLLAMA_HOST or the base URL is not a host or URL") from None
    hostname = parts.hostname or ("127.0.0.1" if is_bare else "")
    hostname = _WILDCARD_HOSTS.get(hostname, f"[{hostname}]" if ":" in hostname else hostname)
    login = parts.netloc.rpartition("@")[0]
    netloc = f"{login}@{hostname}" if login else hostname
    port_suffix = f":{port}" if port else ""
    query = f"?{parts.query}" if parts.query else ""
    return checked_url(f"{parts.scheme}://{netloc}{port_suffix}{parts.path.rstrip('/')}{query}")


# Cohere, and every server that speaks version 2 of its chat.

COHERE_URL = "https://api.cohere.com/v2"


class CohereClient(WireClient):
    """A model behind Cohere's wire.

    `base_url` (the part before `/chat`) defaults to Cohere's own, and `api_key` then to
    `CO_API_KEY` or `COHERE_API_KEY`, which no other server gets. Pass `api_key` if another server
    needs one. Raises AuthenticationError if Cohere's own server is meant and there is no key.
    """

    @names_wrong_types
    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        base, options = _base_and_options(COHERE, COHERE_URL, base_url, api_key, options)
        super().__init__(COHERE, model, base_url=base, **options)


# Amazon Bedrock, and every server that speaks its Converse wire.

_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_AMAZON_DOMAINS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")


class BedrockClient(WireClient):
    """A model behind Bedrock's Converse wire.

    `model` is the id of a model or an inference profile, or an ARN. `region` defaults to
    `AWS_REGION`, then `AWS_DEFAULT_REGION`. `base_url` (the part before `/model`) defaults to
    Amazon's own for the region. `api_key` is a Bedrock key and defaults to
    `AWS_BEARER_TOKEN_BEDROCK`. Without one, requests to Amazon are signed with AWS credentials
    before `transport` sends them (by a `SigningTransport`, which you may also pass). A server that
    is not Amazon's gets neither: pass `api_key` if it needs one. Raises RequestError if a region is
    needed and there is none, and MissingExtraError if requests have to be signed and botocore is
    not installed.
    """

    @names_wrong_types
    def __init__(
        self,
        model: str,
        *,
        region: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        default_server = "amazonaws.com"
        if base_url is None:
            default_server = f"https://bedrock-runtime.{_region(region)}.{default_server}"
        base = checked_url(url_or_default(base_url, default_server))
        is_amazon = (urlsplit(base).hostname or "").endswith(_AMAZON_DOMAINS)
        key = key_of(api_key, "AWS_BEARER_TOKEN_BEDROCK", looked_up=is_amazon, needed=False)
        transport = options.get("transport")
        if is_amazon and not key and not isinstance(transport, SigningTransport):
            timeouts = options.get("timeouts")
            signing = SigningTransport(transport, region=_region(region), timeouts=timeouts)
            options = {**options, "transport": signing}
        options = _with_key(BEDROCK_CONVERSE, key, options)
        super().__init__(BEDROCK_CONVERSE, model, base_url=base, **options)


def _region(explicit: str | None) -> str:
    candidates = (explicit, *(os.environ.get(name, "") for name in _REGION_VARIABLES))
    region = next((name.strip() for name in candidates if name and name.strip()), "")
    if not region:
        raise RequestError("there is no AWS region: set AWS_REGION, or pass region=…")
    if not re.fullmatch(r"[a-z0-9-]{1,40}", region):
        raise RequestError(f"{region!r} is not an AWS region; give one such as us-east-1")
    return region


# Clients by name, as the command line and `Agent` take them.

PROVIDERS: Mapping[str, Callable[..., LLMClient]] = {
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
_MODEL_FORMS = ", ".join(f"{provider}:MODEL" for provider in PROVIDERS if provider != "local")
_FORMS = (
    f"local, local:FILE.gguf, {_MODEL_FORMS}, or URL#MODEL for a server with an "
    "OpenAI-compatible API"
)


_FAMILIES = {
    "claude": "anthropic",
    "command": "cohere",
    "gemini": "gemini",
    "gpt": "openai",
    "magistral": "mistral",
    "mistral": "mistral",
    "o3": "openai",
    "o4": "openai",
}
"""The provider whose models have names with this beginning, for suggestions in errors only."""


def _likely_model(name: str) -> str:
    """Return the likely meaning of a name without a provider, with a mistyped provider, or of a URL
    without its scheme."""
    provider, _, model = name.partition(":")
    start, slash, rest = name.partition("/")
    if "#" in name or provider == "localhost":
        return f" (did you mean 'http://{name}{'' if '#' in name else '#MODEL'}'?)"
    if not model and provider in PROVIDERS:
        return f" (did you mean '{provider}:MODEL'?)"
    if slash and rest and start in PROVIDERS:
        return f" (did you mean '{start}:{rest}'?)"
    if model:
        return did_you_mean(provider, PROVIDERS).replace("'?", f":{model}'?")
    family = _FAMILIES.get(provider.partition("-")[0].lower())
    return f" (did you mean '{family}:{provider}'?)" if family else ""


@names_wrong_types
def client_for(name: str, *, transport: Transport | None = None) -> LLMClient:
    """Return the client that a name stands for.

    * `PROVIDER:MODEL`, such as `gemini:gemini-2.5-flash`, asks a provider in `PROVIDERS`. Its key and
      server come from the usual environment variables. openai-responses is OpenAI's second wire.
    * `URL#MODEL` asks a server that speaks OpenAI's chat wire, and gets no key from the environment.
    * `local` is the embedded model, `local:FILE.gguf` another one from a file.

    `transport` sends the requests. Raises RequestError for a name of another form, or for a
    transport given with a model that sends no requests. Raises AuthenticationError for a missing
    key, SourceError for a missing file, and MissingExtraError for a missing extra.
    """
    options = {} if transport is None else {"transport": transport}
    if name.lower().startswith(("http://", "https://")):
        url, _, model = name.rpartition("#")
        if not url or not model:
            raise RequestError(
                "name a server as URL#MODEL, such as http://localhost:8000/v1#my-model"
            )
        return OpenAIClient(model, base_url=url, transport=transport)
    provider, _, model = name.partition(":")
    if provider == "local" and options:
        raise RequestError("a local model sends no requests, so a transport cannot be used with it")
    if name == "local":
        return LocalClient()
    factory = PROVIDERS.get(provider)
    if factory is None or not model:
        raise RequestError(f"there is no model {name!r}{_likely_model(name)}; name one as {_FORMS}")
    return factory(model, **options)


# Texts as vectors, from any server with OpenAI's `/embeddings`.
#
# Rule: an answer is only used if it has one vector for each text, by `index` and not by position,
# all of the same length and of finite numbers.
# https://platform.openai.com/docs/api-reference/embeddings

_MOST_ANSWER_BYTES = 1 << 28
_JSON_HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}


class EmbeddingsClient(Closing):
    """An embedding model behind OpenAI's wire: OpenAI, Mistral, Ollama, vLLM, llama.cpp and more.

        embedder = FunctionEmbedder(EmbeddingsClient("text-embedding-3-small"), name="te3-small")

    `dimensions` asks for shorter vectors, if the model has them. `base_url`, `api_key` and the
    other options are as for `OpenAIClient`: a `base_url` that is passed gets no key from the
    environment. One client serves any number of requests at once, also from the event loops of
    several threads.

    Raises AuthenticationError if OpenAI's own server is meant and there is no key.
    """

    @names_wrong_types
    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        dimensions: int | None = None,
        headers: Mapping[str, str] | None = None,
        transport: Transport | None = None,
        timeouts: Timeouts | None = None,
        retries: Retries | None = Retries(),  # noqa: B008  frozen
    ) -> None:
        self._base = checked_url(base_of(base_url))
        key = key_for(self._base, base_url, api_key)
        defaults = {**_JSON_HEADERS, **(OPENAI_CHAT.auth(key) if key else {})}
        self._headers = merged(checked_headers(defaults), checked_headers(headers or {}))
        self._model = model
        self._dimensions = dimensions
        self._transport = transport or AiohttpTransport(timeouts)
        self._retries = retries

    @property
    def model(self) -> str:
        return self._model

    @names_wrong_types
    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector for each text, as the model gives them, with any length. Characters
        that UTF-8 cannot encode (lone surrogates) are sent as `?`.

        Raises ClientError, whose subclasses say what went wrong. WireError names the model if the
        answer is not one vector for each text.
        """
        if not texts:
            return []
        attempts = Attempts(self._retries, limit_of(self._transport))
        return await retried(attempts, lambda until: self._requested(texts, until))

    async def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the same, so that a client can be used as an embedding function."""
        return await self.embed(texts)

    async def aclose(self) -> None:
        await self._transport.aclose()

    def __repr__(self) -> str:
        server = Outgoing(method="", url=self._base, headers={}, body=b"").server
        return f"EmbeddingsClient({self._model!r} at {server})"

    async def _requested(self, texts: Sequence[str], until: float | None) -> list[list[float]]:
        payload: dict[str, object] = {"model": self._model, "input": [*map(encodable, texts)]}
        if self._dimensions is not None:
            payload["dimensions"] = self._dimensions
        answer = bytearray()
        url, request_body = joined(self._base, "/embeddings"), msgspec.json.encode(payload)
        outgoing = Outgoing(
            method="POST", url=url, headers=self._headers, body=request_body, until=until
        )
        async with exchanged(self._transport, outgoing, self._base, self._headers) as response:
            async for chunk in response.chunks():
                answer += chunk
                if len(answer) > _MOST_ANSWER_BYTES:
                    raise self._wire_error("is longer than 256 MB")
        return self._vectors(bytes(answer), len(texts))

    def _vectors(self, body: bytes, count: int) -> list[list[float]]:
        entries = None
        with suppress(msgspec.DecodeError, RecursionError):  # whose texts may quote the answer
            entries = msgspec.json.decode(body, type=_Answer).data
        if entries is None:
            raise self._wire_error("does not have OpenAI's format")
        if sorted(row.index for row in entries) != list(range(count)):
            raise self._wire_error(
                f"holds {len(entries)} vectors, not one for each of {count} texts"
            )
        rows = [row.embedding for row in sorted(entries, key=attrgetter("index"))]
        if not rows[0] or any(len(row) != len(rows[0]) for row in rows):
            raise self._wire_error("holds vectors of different lengths, or empty ones")
        if not all(math.isfinite(number) for row in rows for number in row):
            raise self._wire_error("holds a number that is not finite")
        return rows

    def _wire_error(self, problem: str) -> WireError:
        return WireError(f"the answer of embedding model {self._model!r} {problem}")


class _Row(msgspec.Struct):
    index: int
    embedding: list[float]


class _Answer(msgspec.Struct):
    data: list[_Row]


# What a reply costs. Prices are those included in genai-prices. Nothing is fetched.
#
# An unknown price is None, never zero.

_PROVIDERS = {"gemini": "google", "bedrock": "aws", "openai-responses": "openai"}
"""The name of a provider in genai-prices, where `client_for` has another name for it."""


@names_wrong_types
def cost_of(
    spent: Reply | Usage, model: str | None = None, *, provider: str | None = None
) -> Decimal | None:
    """Return the price of a reply, or of the tokens of one request, in US dollars; None if it is
    not known.

    `model` defaults to the model that the reply names. `provider` is a name of `client_for` or
    genai-prices ("openai", "bedrock", "openrouter"), or a base URL. Without it, only the model's
    name decides, so that a private server with a known name is charged for.

    A long request may cost more for each token than a short one. So add up the prices of replies,
    and do not price the sum of their tokens. Raises MissingExtraError.
    """
    library = _library()
    usage = spent.usage if isinstance(spent, Reply) else spent
    name = model or (spent.model if isinstance(spent, Reply) else "")
    cache_read = min(usage.cache_read, usage.input_tokens)
    tokens_used = library.Usage(
        input_tokens=usage.input_tokens,
        cache_read_tokens=cache_read,
        cache_write_tokens=min(usage.cache_written, usage.input_tokens - cache_read),
        output_tokens=usage.output_tokens,
    )
    provider_option = {}
    if provider is not None:
        is_url = provider.lower().startswith(("http://", "https://"))
        key = "provider_api_url" if is_url else "provider_id"
        provider_option[key] = _PROVIDERS.get(provider, provider)
    price: Decimal | None = None
    with suppress(LookupError):
        price = library.calc_price(
            tokens_used, name.removeprefix("models/"), **provider_option
        ).total_price
    return price


def _library() -> ModuleType:
    try:
        import genai_prices
    except ImportError:
        raise MissingExtraError("prices", "the cost of a reply") from None
    return genai_prices
