"""Clients that stand in for one another: the next is asked where one could not answer.

Once anything of an answer has been given away, its errors are the caller's: no other client can go on
in the middle of a sentence.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from toolcrib.clients.base import Tools, plan_of, request_of
from toolcrib.closing import Closing
from toolcrib.errors import (
    ClientError,
    ConnectionFailed,
    ProviderError,
    RateLimitError,
    RequestError,
)
from toolcrib.values.client import LLMClient, Plan
from toolcrib.values.message import ChatRequest, ReasoningPart, Reply, StreamPart
from toolcrib.values.typed import explains_wrong_types

_MOVED_ON_BY = (ConnectionFailed, RateLimitError, ProviderError)


@explains_wrong_types
def fallback(
    clients: Sequence[LLMClient], *, on: tuple[type[ClientError], ...] = _MOVED_ON_BY
) -> FallbackClient:
    """Make one client out of several: the first is asked, and the next
    where one raises an error of `on`.

    Each client makes its own attempts first (`retries=`). A request that was refused is refused by the
    next one too, and a wrong key is better known than passed over: neither is in `on`, unless you
    put it there. Raises RequestError without clients, and for what is none, or no such error.
    """
    return FallbackClient(clients, on)


class FallbackClient(Closing):
    """Asks clients in turn until one answers; `Reply.model` says which did."""

    @explains_wrong_types
    def __init__(self, clients: Sequence[LLMClient], on: tuple[type[ClientError], ...]) -> None:
        if not clients:
            raise RequestError("fallback: there is no client to ask")
        for client in clients:
            if not isinstance(client, LLMClient):
                raise RequestError(f"fallback: {client!r} is no client; client_for(name) makes one")
        if not all(isinstance(kind, type) and issubclass(kind, ClientError) for kind in on):
            raise RequestError("fallback: on=(…) takes kinds of ClientError")
        self._clients = tuple(clients)
        self._on = tuple(on)

    @property
    def model(self) -> str:
        """The first client's: the one that is meant to answer."""
        return self._clients[0].model

    async def chat(self, request: ChatRequest) -> Reply:
        """Return the first whole reply. Raises the last client's error, with a note of all of them."""
        failures: list[ClientError] = []
        for client in self._clients:
            try:
                return await client.chat(request)
            except self._on as error:
                failures.append(error)
        raise self._all(failures)

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        """Yield what `chat` returns, in parts; after the first part no other client is asked."""
        failures: list[ClientError] = []
        for client in self._clients:
            begun = False
            parts = client.stream(request)
            try:
                async for part in parts:
                    begun = begun or not isinstance(part, ReasoningPart)
                    yield part
            except self._on as error:
                if begun:
                    raise
                failures.append(error)
            else:
                return
            finally:
                if isinstance(parts, AsyncGenerator):
                    await parts.aclose()
        raise self._all(failures)

    async def tool_call(self, prompt: str | ChatRequest, tools: Tools = ()) -> Plan:
        """Return what the model wants to call, hydrated; nothing is run. Raises ClientError."""
        request = request_of(prompt, tools)
        return plan_of(await self.chat(request), request)

    async def aclose(self) -> None:
        """Close all of them, also where one cannot be."""
        async with contextlib.AsyncExitStack() as stack:
            for client in self._clients:
                stack.push_async_callback(client.aclose)

    def __repr__(self) -> str:
        return f"fallback({list(self._clients)!r})"

    def _all(self, failures: list[ClientError]) -> ClientError:
        """Return the last failure. Its note names every client, since the
        first one's is often the reason."""
        for client, failure in zip(self._clients, failures, strict=True):
            failures[-1].add_note(f"{client.model}: {type(failure).__name__}: {failure}")
        return failures[-1]
