"""From what happens in a run to its events: public views only."""

from __future__ import annotations

from collections.abc import Callable

from toolcrib.agent.public_text import PublicText
from toolcrib.agent.toolbox import Toolbox
from toolcrib.runner.output import public_arguments
from toolcrib.runner.recorder import public_name
from toolcrib.values.call import Hydrated, HydrationResult
from toolcrib.values.decision import ApprovalRequest
from toolcrib.values.event import (
    ApprovalRequested,
    Event,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallProgress,
    ToolCallStarted,
)
from toolcrib.values.json import JsonValue
from toolcrib.values.message import ArgumentsPart
from toolcrib.values.record import Outcome, ToolInvocationRecord, Waiting


class Watch:
    """The run's `Observer`; keeps the outcomes beside telling of them."""

    def __init__(self, emit: Callable[[Event], None], records: list[ToolInvocationRecord]) -> None:
        self._emit = emit
        self._records = records
        self._streaming: dict[str, PublicText] = {}  # by call id
        self.outcomes: dict[str, Outcome] = {}

    def text(self, text: str) -> None:
        self._emit(TextDelta(text))

    def arguments(self, part: ArgumentsPart, toolbox: Toolbox) -> None:
        """The declared ones, as they stream; nothing of tools with secrets, and of unknown ones."""
        public = self._streaming.get(part.call_id)
        if public is None:
            definition = toolbox.definition(part.name)
            if definition is None or definition.secret:
                return
            public = PublicText.of(definition)
            self._streaming[part.call_id] = public
        text = public.feed(part.text)
        if text:
            self._emit(ToolArgumentsDelta(part.call_id, part.name, text))

    def started(self, call: HydrationResult) -> None:
        self._streaming.clear()  # all calls of the reply are whole
        shown = None
        if isinstance(call, Hydrated):
            shown = public_arguments(call.definition, call.arguments)
        self._emit(ToolCallStarted(call.call.id, public_name(call), shown))

    def approval_requested(self, request: ApprovalRequest) -> None:
        self._emit(ApprovalRequested(request))

    def progress(self, call_id: str, part: JsonValue) -> None:
        self._emit(ToolCallProgress(call_id, part))

    def finished(self, outcome: Outcome) -> None:
        self.outcomes[outcome.record.id] = outcome
        if not isinstance(outcome, Waiting):
            self._records.append(outcome.record)
            self._emit(ToolCallFinished(outcome.record))
