"""Stores the state of an agent that is a tool and waits, as a checkpoint of the thread of its
graph.

When a graph is resumed, LangGraph makes the call that had stopped it again, perhaps in another
process. By then the agent has asked its model and made calls, and it resumes from where it waits.
Its state is stored in a namespace of its own, and is deleted with the thread.

Rule: a call is the same call in whichever step it is made. So its state is found by the thread and
the call's key, and by nothing of the step: a fork of the thread resumes the same agent. Questions
that were asked before the call began belong to the step in which it began, which is stored as well.
Nothing is left to resume for a call that has ended.
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
    """Holds what a call needs to be resumed, and names the step of the graph in which it began."""

    suspended: SuspendedCall
    step: str


_WAITING = msgspec.json.Decoder(WaitingCall)


class CheckpointedCall(NamedTuple):
    """Where one call of a thread is stored. `namespace` belongs to the call. `step` is the
    namespace and the id of the checkpoint that the call is made from."""

    saver: BaseCheckpointSaver[Any]
    thread: str
    namespace: str
    step: tuple[str, str]

    @classmethod
    def of(
        cls, saver: BaseCheckpointSaver[Any], thread: str, call_id: str, info: ExecutionInfo
    ) -> CheckpointedCall:
        said = call_id.encode("utf-8", "surrogatepass")
        around = info.checkpoint_ns.rpartition("|")[0]  # the last part is the task of the call
        step = (around, info.checkpoint_id)
        return cls(saver, thread, f"toolcrib:{hashlib.sha256(said).hexdigest()}", step)

    @property
    def _config(self) -> RunnableConfig:
        return {"configurable": {"thread_id": self.thread, "checkpoint_ns": self.namespace}}

    async def _found(self, config: RunnableConfig) -> CheckpointTuple | None:
        try:
            return await self.saver.aget_tuple(config)
        except NotImplementedError:  # a saver for `invoke` only
            return await asyncio.to_thread(self.saver.get_tuple, config)

    async def told_beside(self) -> list[ToolMessage]:
        """Return the results of other calls of the same step that have ended. The thread has no
        message about them before all calls of the step have ended."""
        namespace, checkpoint_id = self.step
        place = {"checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}
        found = await self._found({"configurable": {"thread_id": self.thread, **place}})
        writes = [] if found is None else found.pending_writes or []
        given = [value if isinstance(value, list | tuple) else [value] for _, _, value in writes]
        return [each for values in given for each in values if isinstance(each, ToolMessage)]

    async def load(self) -> WaitingCall | None:
        """Return the last saved state, unless there is none or the call is over. Raises SourceError."""
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
        """Store the state, in place of an earlier one."""
        await self._put(msgspec.json.encode(waiting).decode())

    async def end(self) -> None:
        """Record that the call is over."""
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
