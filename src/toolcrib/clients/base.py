"""A client is a wire, a transport and a base URL; all three are values that can be replaced.

A call leaves a client only inside a whole `Reply`: a connection that breaks, or a stream that ends
without saying so, is an error, and what had arrived by then is nothing but text on a screen.
"""

from __future__ import annotations

import contextlib
import email.utils
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from toolcrib.clients.transport import AiohttpTransport, Outgoing, Response, Timeouts, Transport
from toolcrib.errors import ClientError, ConnectionFailed, ProviderError, RequestError
from toolcrib.hydrate import hydrate
from toolcrib.tools import Catalog, ToolLike, as_tools
from toolcrib.values.client import Plan
from toolcrib.values.message import ChatRequest, Message, Reply, Settings, StreamPart, TextPart
from toolcrib.wire import Decoder, Memo, Wire, decoder, encode, http_error, wire_of

Tools = Iterable[ToolLike | Catalog | Mapping[str, Any]]

_LONGEST_ERROR = 64 * 1024
_SHORTEST_SECRET = 6


def request_of(prompt: str | ChatRequest, tools: Tools) -> ChatRequest:
    """The request for a prompt and tools in any form: classes, functions, catalogs, dictionaries.

    A `ChatRequest` keeps its own tools if `tools` is empty.
    """
    request = _asked(prompt) if isinstance(prompt, str) else prompt
    offered = as_tools(tools) or as_tools(request.tools)
    return msgspec.structs.replace(request, tools=offered)


def _asked(prompt: str) -> ChatRequest:
    """Call ids that no other plan has: they are the idempotency keys of what is run."""
    return ChatRequest((Message.user(prompt),), id_prefix=f"plan_{os.urandom(6).hex()}_")


def plan_of(reply: Reply) -> Plan:
    """The reply's calls, hydrated against what was offered. Nothing runs."""
    return Plan([hydrate(call, reply.offer) for call in reply.tool_calls], reply)


class Closing:
    """`async with` for what has an `aclose`."""

    async def aclose(self) -> None:
        """Free what is held; what was closed can be used again."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class WireClient(Closing):
    """An `LLMClient` for any server that speaks a known wire.

    `wire` is a name or a `Wire`; `headers` go with every request; `settings` are the defaults for
    requests that leave them open. One client serves any number of concurrent requests, also from
    several event loops one after the other.
    """

    def __init__(
        self,
        wire: Wire | str,
        model: str,
        *,
        base_url: str,
        headers: Mapping[str, str] | None = None,
        settings: Settings = Settings(),  # noqa: B008  frozen
        transport: Transport | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        self.wire = wire_of(wire)
        self.settings = settings
        self._model = model
        self._base = checked_url(base_url)
        self._headers = _checked_headers(headers or {})
        self._transport = transport or AiohttpTransport(timeouts)
        self._memo = Memo()

    @property
    def model(self) -> str:
        return self._model

    async def chat(self, request: ChatRequest) -> Reply:
        """The whole reply. Raises ClientError; see its subclasses for what went wrong."""
        async with self._exchange(request, stream=False) as (response, reading):
            async for data in response.chunks():
                reading.feed(data)
                if reading.done:
                    break
            return _whole(reading.finish())

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        """Text and arguments as they come, and the whole `Reply` last. Raises ClientError."""
        told = False
        async with self._exchange(request, stream=True) as (response, reading):
            async for data in response.chunks():
                for part in reading.feed(data):
                    told = told or isinstance(part, TextPart)
                    yield part
                if reading.done:
                    break
            reply = _whole(reading.finish())
        if reply.text and not told:  # a server that does not stream answers in one piece
            yield TextPart(reply.text)
        yield reply

    async def tool_call(self, prompt: str | ChatRequest, tools: Tools = ()) -> Plan:
        """What the model wants to call, hydrated; nothing is run. Raises ClientError."""
        return plan_of(await self.chat(request_of(prompt, tools)))

    async def aclose(self) -> None:
        await self._transport.aclose()

    def __repr__(self) -> str:
        server = Outgoing(method="", url=self._base, headers={}, body=b"").server
        return f"{type(self).__name__}({self._model!r}, {self.wire.name} at {server})"

    @contextlib.asynccontextmanager
    async def _exchange(
        self, request: ChatRequest, *, stream: bool
    ) -> AsyncGenerator[tuple[Response, Decoder], None]:
        """One request and its answer; the answer is closed in the end, whatever happens."""
        request = self._completed(request)
        sent = encode(self.wire, request, model=self._model, stream=stream, memo=self._memo)
        outgoing = Outgoing(
            method=sent.method,
            url=_joined(self._base, sent.path),
            headers={**sent.headers, **self._headers},
            body=sent.body,
        )
        response = await self._transport.send(outgoing)
        whole = False
        try:
            if not 200 <= response.status < 300:
                raise await _refusal(response)
            streaming = stream or "event-stream" in response.headers.get("content-type", "")
            yield response, decoder(self.wire, streaming, sent.offer, request.id_prefix)
            whole = True
        except ClientError as error:
            error.args = tuple(self._masked(argument) for argument in error.args)
            error.__context__ = None
            raise
        finally:
            await response.aclose(whole=whole)

    def _completed(self, request: ChatRequest) -> ChatRequest:
        """The request with this client's settings where it leaves them open."""
        own, asked = self.settings, request.settings
        if own != Settings():
            asked = Settings(
                own.temperature if asked.temperature is None else asked.temperature,
                own.max_tokens if asked.max_tokens is None else asked.max_tokens,
                {**own.extra, **asked.extra},
            )
            request = msgspec.structs.replace(request, settings=asked)
        if not all(hasattr(tool, "get_definition") for tool in request.tools):
            request = msgspec.structs.replace(request, tools=as_tools(request.tools))
        return request

    def _masked(self, argument: object) -> object:
        """An error's text without the values of our headers, should a provider repeat one."""
        if not isinstance(argument, str):
            return argument
        for value in self._headers.values():
            for secret in (value, value.rpartition(" ")[2]):
                if len(secret) >= _SHORTEST_SECRET:
                    argument = argument.replace(secret, "[key]")
        return argument


def _whole(reply: Reply) -> Reply:
    if reply.finish == "incomplete":
        reason = f" (its reason: {reply.provider_finish})" if reply.provider_finish else ""
        raise ConnectionFailed(f"the reply ended before it was whole{reason}")
    if reply.finish == "error":
        raise ProviderError(f"the provider broke off its reply: {reply.provider_finish}")
    return reply


async def _refusal(response: Response) -> ClientError:
    """The error in an answer that is no success, with as much of its text as can be had."""
    body = b""
    with contextlib.suppress(ConnectionFailed):
        async for data in response.chunks():
            body += data
            if len(body) > _LONGEST_ERROR:
                break
    retry_after = _seconds(response.headers.get("retry-after", ""))
    return http_error(response.status, body, retry_after=retry_after)


def _seconds(value: str) -> float | None:
    """`Retry-After` (RFC 9110, 10.2.3): seconds, or a date; None if it is neither."""
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _joined(base: str, path: str) -> str:
    """`path` below `base`; a query in the base (Azure's `api-version`) stays at the end."""
    start, mark, query = base.partition("?")
    mark = "&" if mark and "?" in path else mark
    return f"{start.rstrip('/')}{path}{mark}{query}"


def checked_url(url: str) -> str:
    """The URL itself. Raises RequestError if it is none that can be requested."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:  # brackets that do not close, a port that is none
        usable = False
    if not usable:
        raise RequestError("the base URL must begin with http:// or https:// and name a server")
    return url


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not value.isascii() or not value.isprintable():
            raise RequestError(
                f"the value of the header {name!r} holds a character that is not allowed"
            )
    return dict(headers)
