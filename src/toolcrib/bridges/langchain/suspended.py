"""Keeps what an agent that is a tool needs to go on: as a checkpoint of the thread of its graph.

When a graph goes on, LangGraph makes the call that had stopped it anew, perhaps in another process. An
agent has asked its model by then, and made calls: it goes on from where it waits. That is kept in a
namespace of its own, and goes when the thread is deleted.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, NamedTuple

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    CheckpointMetadata,
    empty_checkpoint,
)

from toolcrib.errors import SourceError
from toolcrib.values.record import SuspendedCall

_CHANNEL = "suspended"
_SUSPENDED = msgspec.json.Decoder(SuspendedCall)


class CheckpointedCall(NamedTuple):
    """Where one call of a thread is kept: `namespace` is its own, of this step of the graph."""

    saver: BaseCheckpointSaver[Any]
    thread: str
    namespace: str

    @classmethod
    def of(
        cls, saver: BaseCheckpointSaver[Any], thread: str, step: str, call_id: str
    ) -> CheckpointedCall:
        said = f"{step}\0{call_id}".encode("utf-8", "surrogatepass")
        return cls(saver, thread, f"toolcrib:{hashlib.sha256(said).hexdigest()}")

    @property
    def _config(self) -> RunnableConfig:
        return {"configurable": {"thread_id": self.thread, "checkpoint_ns": self.namespace}}

    async def load(self) -> SuspendedCall | None:
        """Return what was saved last, if anything was. Raises SourceError."""
        try:
            found = await self.saver.aget_tuple(self._config)
        except NotImplementedError:  # a saver for graphs that are called by `invoke`
            found = await asyncio.to_thread(self.saver.get_tuple, self._config)
        if found is None:
            return None
        try:
            return _SUSPENDED.decode(found.checkpoint["channel_values"][_CHANNEL])
        except (KeyError, TypeError, msgspec.DecodeError) as error:
            raise SourceError(
                f"the checkpoint of an agent in thread {self.thread!r} cannot be read: {error}"
            ) from None

    async def save(self, suspended: SuspendedCall) -> None:
        """Keep it, in place of what was saved before."""
        versions: ChannelVersions = {_CHANNEL: self.saver.get_next_version(None, None)}
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"][_CHANNEL] = msgspec.json.encode(suspended).decode()
        checkpoint["channel_versions"].update(versions)
        about = CheckpointMetadata(source="update", step=0, parents={})
        try:
            await self.saver.aput(self._config, checkpoint, about, versions)
        except NotImplementedError:
            await asyncio.to_thread(self.saver.put, self._config, checkpoint, about, versions)
