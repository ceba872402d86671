"""What a tool tells while it runs: taken from any thread, and only as long as its call lasts."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from toolcrib.values.context import Observer
from toolcrib.values.decision import ApprovalRequest
from toolcrib.values.json import JsonValue
from toolcrib.values.record import Outcome


class CallWatch:
    """An `Observer` for one call, which passes on to another one in the event loop.

    A blocking tool runs in a thread, and one that was given up on may go on there after the call
    has finished: what that one says is not passed on. `over` is set when the call has ended.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.over = False

    def progress(self, call_id: str, part: JsonValue) -> None:
        if threading.get_ident() == self._thread:
            self._tell(call_id, part)
            return
        with suppress(RuntimeError):  # the loop has closed: nobody watches any more
            self._loop.call_soon_threadsafe(lambda: self._tell(call_id, part))

    def approval_requested(self, request: ApprovalRequest) -> None:
        self._observer.approval_requested(request)

    def finished(self, outcome: Outcome) -> None:
        self._observer.finished(outcome)

    def _tell(self, call_id: str, part: JsonValue) -> None:
        if not self.over:
            self._observer.progress(call_id, part)
