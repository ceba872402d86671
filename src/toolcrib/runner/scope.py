"""What a run adds to each of its calls."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from toolcrib.values.call import ToolCall
from toolcrib.values.context import Observer, RunTally
from toolcrib.values.decision import Answer, ApprovalRequest
from toolcrib.values.origin import Attachment, Choice, Origin


class CallScope(msgspec.Struct, frozen=True):
    """What a run adds to a call: its tally, who watches, answers that were given beforehand.

    `asked` are the requests that those answer, by id: they lapse when they said they would, and a call
    that somebody was asked about does not run without an answer. `origin` is the turn that made the
    call, `choice` why its tools were on offer, and `attachments` the long texts that the two refer to.
    """

    tally: RunTally
    answers: Mapping[str, Answer] = {}
    asked: Mapping[str, ApprovalRequest] = {}
    observer: Observer | None = None
    origin: Origin | None = None
    choice: Choice | None = None
    attachments: tuple[Attachment, ...] = ()

    def was_asked(self, call: ToolCall) -> bool:
        """Whether somebody was asked about this call, with whatever arguments."""
        run_id = self.tally.run_id
        return any(a.call_id == call.id and a.run_id == run_id for a in self.asked.values())
