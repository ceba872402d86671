"""The interface of a model, as picking, repair and the loop know it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, Protocol, runtime_checkable

from toolcrib.values.call import HydrationResult
from toolcrib.values.message import ChatRequest, Reply, StreamPart


class Plan(list[HydrationResult]):
    """Holds what a model wants to do: hydrated or rejected calls, none of
    them run. `reply` has its text.

    `request` is what was asked, where the client says so. `ToolRunner.record_plan` writes a plan down.
    """

    def __init__(
        self, results: Iterable[HydrationResult], reply: Reply, request: ChatRequest | None = None
    ) -> None:
        super().__init__(results)
        self.reply = reply
        self.request = request


@runtime_checkable
class LLMClient(Protocol):
    """A model. `stream` gives parts as they come and the whole `Reply` last."""

    @property
    def model(self) -> str: ...

    async def chat(self, request: ChatRequest) -> Reply: ...

    def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]: ...

    async def tool_call(self, prompt: str | ChatRequest, tools: Iterable[Any]) -> Plan: ...

    async def aclose(self) -> None: ...
