"""Keeps what an agent that is a tool needs to go on: as a checkpoint of the thread of its graph.

When a graph goes on, LangGraph makes the call that had stopped it anew, perhaps in another process. An
agent has asked its model by then, and made calls: it goes on from where it waits. That is kept in a
namespace of its own, and goes when the thread is deleted.

Rule: a call is one call in whichever step it is made, so what it waits with is found by the thread and
by the call's key, and by nothing of the step: a fork of the thread goes on with the same agent. Whoever
was asked before the call began was asked in the step that it began in, which is kept with it. Of a call
that has ended, nothing is left to go on with.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, NamedTuple

import msgspec
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    CheckpointMetadata,
    CheckpointTuple,
    empty_checkpoint,
)
from langgraph.runtime import ExecutionInfo

from toolcrib.errors import SourceError
from toolcrib.values.record import SuspendedCall

_CHANNEL = "suspended"
_OVER = ""


class WaitingCall(NamedTuple):
    """Holds what a call needs to go on, and names the step of the graph in which it began."""

    suspended: SuspendedCall
    step: str


_WAITING = msgspec.json.Decoder(WaitingCall)


class CheckpointedCall(NamedTuple):
    """Where one call of a thread is kept: `namespace` is its own. `step` is the namespace of the
    checkpoint that it is made from, and the id of that."""

    saver: BaseCheckpointSaver[Any]
    thread: str
    namespace: str
    step: tuple[str, str]

    @classmethod
    def of(
        cls, saver: BaseCheckpointSaver[Any], thread: str, call_id: str, info: ExecutionInfo
    ) -> CheckpointedCall:
        said = call_id.encode("utf-8", "surrogatepass")
        around = info.checkpoint_ns.rpartition("|")[0]  # the last part is the task that makes it
        step = (around, info.checkpoint_id)
        return cls(saver, thread, f"toolcrib:{hashlib.sha256(said).hexdigest()}", step)

    @property
    def _config(self) -> RunnableConfig:
        return {"configurable": {"thread_id": self.thread, "checkpoint_ns": self.namespace}}

    async def _found(self, config: RunnableConfig) -> CheckpointTuple | None:
        try:
            return await self.saver.aget_tuple(config)
        except NotImplementedError:  # a saver for graphs that are called by `invoke`
            return await asyncio.to_thread(self.saver.get_tuple, config)

    async def told_beside(self) -> list[ToolMessage]:
        """Return what calls of the same step have given that ended while others of it wait: no message
        of the thread says so before all of them have ended."""
        namespace, checkpoint_id = self.step
        place = {"checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}
        found = await self._found({"configurable": {"thread_id": self.thread, **place}})
        writes = [] if found is None else found.pending_writes or []
        given = [value if isinstance(value, list | tuple) else [value] for _, _, value in writes]
        return [each for values in given for each in values if isinstance(each, ToolMessage)]

    async def load(self) -> WaitingCall | None:
        """Return what was saved last, if anything was, and the call is not over. Raises SourceError."""
        found = await self._found(self._config)
        if found is None:
            return None
        try:
            saved = found.checkpoint["channel_values"][_CHANNEL]
            return None if saved == _OVER else _WAITING.decode(saved)
        except (KeyError, TypeError, msgspec.DecodeError) as error:
            raise SourceError(
                f"the checkpoint of an agent in thread {self.thread!r} cannot be read: {error}"
            ) from None

    async def save(self, waiting: WaitingCall) -> None:
        """Keep it, in place of what was saved before."""
        await self._put(msgspec.json.encode(waiting).decode())

    async def end(self) -> None:
        """Say that the call is over."""
        await self._put(_OVER)

    async def _put(self, saved: str) -> None:
        versions: ChannelVersions = {_CHANNEL: self.saver.get_next_version(None, None)}
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"][_CHANNEL] = saved
        checkpoint["channel_versions"].update(versions)
        about = CheckpointMetadata(source="update", step=0, parents={})
        try:
            await self.saver.aput(self._config, checkpoint, about, versions)
        except NotImplementedError:
            await asyncio.to_thread(self.saver.put, self._config, checkpoint, about, versions)
