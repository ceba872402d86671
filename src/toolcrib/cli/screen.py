"""The events of a run, as a terminal shows them while they happen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import assert_never

from rich.status import Status
from rich.text import Text

from toolcrib.cli.render import call_line, err, out, printable, short_json, spoken
from toolcrib.values.decision import ApprovalRequest
from toolcrib.values.event import (
    ApprovalRequested,
    Done,
    Event,
    RunError,
    RunStarted,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallProgress,
    ToolCallStarted,
    ToolsOffered,
    UsageReported,
)
from toolcrib.values.json import JsonValue
from toolcrib.values.run import RunResult

_ENDINGS = {
    "waiting": "The run waits for an approval.",
    "cancelled": "Cancelled.",
}


class Screen:
    """Text as it streams, a line per finished call; a spinner on stderr while nothing comes."""

    def __init__(self, waiting_for: str) -> None:
        self._waiting_for = waiting_for
        self._status: Status | None = None
        self._in_text = False
        self._asked: dict[str, asyncio.Event] = {}
        self._asking = 0
        self._begun: dict[str, str] = {}  # calls that have come and whose end was not shown

    @contextlib.asynccontextmanager
    async def question(self, request: ApprovalRequest) -> AsyncIterator[None]:
        """The terminal, for a question: once all before it is shown, and without a spinner."""
        await self._told(request.id).wait()
        try:
            yield
        finally:
            self._asking -= 1

    def show(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._wait(self._waiting_for)
            case TextDelta(text=text):
                self._stop_waiting()
                out.print(spoken(text), end="")
                self._in_text = True
            case ToolCallStarted(id=id, name=name, arguments=arguments):
                self._begun[id] = f"{printable(name)} {short_json(arguments)}"
                self._end_text()
                self._wait(f"running {printable(name)} …")
            case ToolCallFinished(record=record):
                self._begun.pop(record.id, None)
                self._end_text()
                out.print(call_line(record))
                self._wait("thinking …")
            case ToolCallProgress(part=part):
                self._progress(part)
            case ApprovalRequested(request=request):
                self._end_text()
                self._asking += 1
                self._told(request.id).set()
            case Done(result=result):
                self._end_text()
                self._ending(result)
            case ToolArgumentsDelta() | ToolsOffered() | UsageReported():
                pass
            case RunError():
                self._end_text()  # the error itself is raised, and told once
            case _:
                assert_never(event)

    def close(self) -> None:
        """End the turn; where it was stopped in the middle, say which calls may have run."""
        self._end_text()
        for call in self._begun.values():
            err.print(Text(f"{call}: stopped before its end was known; it may have run."))
        self._begun.clear()

    def _ending(self, result: RunResult) -> None:
        if result.status != "cancelled":
            self._begun.clear()
        if result.status == "limited":
            err.print(f"Stopped: the limit on {result.limit} is reached.")
        elif result.status in _ENDINGS:
            err.print(_ENDINGS[result.status])

    def _progress(self, part: JsonValue) -> None:
        if self._status is not None:
            self._status.update(Text(printable(str(part)).replace("\n", " ")[:80]))

    def _told(self, request_id: str) -> asyncio.Event:
        return self._asked.setdefault(request_id, asyncio.Event())

    def _wait(self, what: str) -> None:
        self._stop_waiting()
        if err.is_terminal and not self._asking:  # a spinner would wipe the question away
            self._status = err.status(Text(what))
            self._status.start()

    def _stop_waiting(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _end_text(self) -> None:
        self._stop_waiting()
        if self._in_text:
            out.print()
            self._in_text = False
