"""Texts as vectors, from any server with OpenAI's `/embeddings`.

Rule: an answer counts only as a whole: one vector for each text, by `index` and not by place, all of
the same length and of finite numbers. https://platform.openai.com/docs/api-reference/embeddings
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from toolcrib.clients.base import exchanged
from toolcrib.clients.providers import base_of, key_for
from toolcrib.clients.retry import Attempts, Retries, retried
from toolcrib.clients.server import checked_headers, checked_url, joined, merged
from toolcrib.clients.transport import (
    AiohttpTransport,
    Outgoing,
    Timeouts,
    Transport,
    limit_of,
)
from toolcrib.closing import Closing
from toolcrib.errors import WireError
from toolcrib.values.json import encodable
from toolcrib.values.typed import names_wrong_types
from toolcrib.wire import OPENAI_CHAT

_LONGEST = 1 << 28
_HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}


class EmbeddingsClient(Closing):
    """An embedding model behind OpenAI's wire: OpenAI, Mistral, Ollama, vLLM, llama.cpp and more.

        embedder = FunctionEmbedder(EmbeddingsClient("text-embedding-3-small"), name="te3-small")

    `dimensions` asks for shorter vectors, where the model has them. `base_url`, `api_key` and the other
    options are as for `OpenAIClient`: a `base_url` that is passed gets no key from the environment.
    Serves any number of requests at once, also from the event loops of several threads.

    Raises AuthenticationError where OpenAI's own server is meant and there is no key.
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
        own = {**_HEADERS, **(OPENAI_CHAT.auth(key) if key else {})}
        self._headers = merged(checked_headers(own), checked_headers(headers or {}))
        self._model = model
        self._dimensions = dimensions
        self._transport = transport or AiohttpTransport(timeouts)
        self._retries = retries

    @property
    def model(self) -> str:
        return self._model

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector for each text, as the model gives them, whatever their length. In a text,
        what UTF-8 cannot say (a lone surrogate) is sent as `?`.

        Raises ClientError; see its subclasses for what went wrong. WireError names the model where the
        answer is not one vector for each text.
        """
        if not texts:
            return []
        attempts = Attempts(self._retries, limit_of(self._transport))
        return await retried(attempts, lambda until: self._embedded(texts, until))

    async def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the same: a client is an embedding function."""
        return await self.embed(texts)

    async def aclose(self) -> None:
        await self._transport.aclose()

    def __repr__(self) -> str:
        server = Outgoing(method="", url=self._base, headers={}, body=b"").server
        return f"EmbeddingsClient({self._model!r} at {server})"

    async def _embedded(self, texts: Sequence[str], until: float | None) -> list[list[float]]:
        asked: dict[str, object] = {"model": self._model, "input": [*map(encodable, texts)]}
        if self._dimensions is not None:
            asked["dimensions"] = self._dimensions
        body = bytearray()
        url, sent = joined(self._base, "/embeddings"), msgspec.json.encode(asked)
        outgoing = Outgoing(method="POST", url=url, headers=self._headers, body=sent, until=until)
        async with exchanged(self._transport, outgoing, self._base, self._headers) as response:
            async for data in response.chunks():
                body += data
                if len(body) > _LONGEST:
                    raise self._wrong("is longer than 256 MB")
        return self._rows(bytes(body), len(texts))

    def _rows(self, body: bytes, count: int) -> list[list[float]]:
        data = _data(body)
        if data is None:
            raise self._wrong("is not of OpenAI's form")
        if sorted(row.index for row in data) != list(range(count)):
            raise self._wrong(f"holds {len(data)} vectors, not one for each of {count} texts")
        rows = [row.embedding for row in sorted(data, key=_index)]
        if not rows[0] or any(len(row) != len(rows[0]) for row in rows):
            raise self._wrong("holds vectors of different lengths, or empty ones")
        if not all(math.isfinite(number) for row in rows for number in row):
            raise self._wrong("holds a number that is not finite")
        return rows

    def _wrong(self, what: str) -> WireError:
        return WireError(f"the answer of embedding model {self._model!r} {what}")


class _Row(msgspec.Struct):
    index: int
    embedding: list[float]


class _Answer(msgspec.Struct):
    data: list[_Row]


def _data(body: bytes) -> list[_Row] | None:
    try:
        return msgspec.json.decode(body, type=_Answer).data
    except (msgspec.DecodeError, RecursionError):  # their texts may quote the answer
        return None


def _index(row: _Row) -> int:
    return row.index
