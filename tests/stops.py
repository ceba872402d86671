"""Runs that end before their calls do, and which of their tools have begun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from toolcrib import ALL, Agent, ApprovalRequest, Event, Limits, ToolRunner, tool
from toolcrib.approvals import answer_later
from toolcrib.testing import MemorySink, ScriptedClient, call
from toolcrib.values.record import ToolInvocationRecord
from toolcrib.values.run import ApprovalRequested, RunRecord, ToolCallFinished, ToolCallStarted


class Full(MemorySink):
    """Cannot take what `refuses` says of a record."""

    def __init__(self, refuses: Callable[[Any], bool]) -> None:
        super().__init__()
        self._refuses = refuses

    def write(self, record: ToolInvocationRecord) -> None:
        self._check(record)
        super().write(record)

    def write_run(self, record: RunRecord) -> None:
        self._check(record)

    def _check(self, record: ToolInvocationRecord | RunRecord) -> None:
        if self._refuses(record):
            raise OSError("the disk is full")


async def never(_request: ApprovalRequest) -> None:
    await asyncio.Event().wait()


NOTES, PAYS, HANGS = call("note"), call("pay"), call("hang")
STOPS: dict[str, tuple[list[Any], dict[str, Any], Limits, str]] = {
    "cancelled at a question": ([NOTES, PAYS], {"approver": never}, Limits(), "pay"),
    "cancelled while one runs": ([NOTES, HANGS], {}, Limits(), "hang"),
    "cancelled while one runs and one waits": (
        [PAYS, HANGS],
        {"approver": answer_later},
        Limits(),
        "hang",
    ),
    "out of time": ([NOTES, HANGS], {}, Limits(seconds=0.1), ""),
    "out of calls": ([NOTES, HANGS], {}, Limits(calls=1), ""),
    "no end is written": ([NOTES], {"sinks": [Full(lambda r: r.status == "completed")]}, Limits(), ""),
    "no refusal is written": (
        [NOTES, PAYS],
        {"sinks": [Full(lambda r: r.status == "failed")]},
        Limits(calls=1),
        "",
    ),
    "no wait is written": (
        [NOTES, PAYS],
        {"sinks": [Full(lambda r: r.status == "waiting")], "approver": answer_later},
        Limits(),
        "",
    ),
}  # fmt: skip


async def stopped(how: str) -> tuple[list[Event], set[str]]:
    """Return the events of a run that is stopped, and the names of the tools that have begun.

    It is cancelled where its row names the tool that has been asked about, or runs, by then.
    """
    begun = set[str]()
    running = asyncio.Event()

    @tool(visible=ALL)
    async def note() -> str:
        """Note."""
        begun.add("note")
        return "noted"

    @tool(visible=ALL, safe=False)
    async def pay() -> str:
        """Pay."""
        begun.add("pay")
        return "paid"

    @tool(visible=ALL)
    async def hang() -> str:
        """Hang."""
        begun.add("hang")
        running.set()
        await asyncio.Event().wait()
        return ""

    calls, setup, limits, at = STOPS[how]
    runner = ToolRunner([note, pay, hang], **setup)
    stream = Agent(ScriptedClient([calls, "done"]), runner, limits=limits).stream("go")
    events: list[Event] = []
    async for event in stream:
        events.append(event)
        if at == "hang" and isinstance(event, ToolCallStarted) and event.name == at:
            await running.wait()
            await asyncio.sleep(0.05)  # the others come to their end
            stream._task.cancel()
        if at == "pay" and isinstance(event, ApprovalRequested):
            await asyncio.sleep(0.05)
            stream._task.cancel()
    assert any(isinstance(event, ToolCallStarted) for event in events)
    assert not all(isinstance(event, ToolCallFinished) for event in events)
    return events, begun
