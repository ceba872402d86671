"""What a run adds to each of its calls."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from toolcrib.values.context import Observer, RunTally
from toolcrib.values.decision import Answer, ApprovalRequest


class CallScope(msgspec.Struct, frozen=True):
    """What a run adds to a call: its tally, who watches, answers that were given beforehand.

    `asked` are the requests that those answer, by id: they lapse when they said they would.
    """

    tally: RunTally
    answers: Mapping[str, Answer] = {}
    asked: Mapping[str, ApprovalRequest] = {}
    observer: Observer | None = None
