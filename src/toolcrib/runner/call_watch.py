"""What a tool tells while it runs: taken from any thread, and only as long as its call lasts.

It is taken as it is at that moment, as JSON; what is none ends the call, watched or not.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from toolcrib.runner.output import MAX_RESULT_BYTES, as_json
from toolcrib.values.context import Observer
from toolcrib.values.decision import ApprovalRequest
from toolcrib.values.json import JsonValue
from toolcrib.values.record import Outcome


class CallWatch:
    """An `Observer` for one call, which passes on to another one in the event loop.

    A blocking tool runs in a thread, and one that was given up on may go on there after the call
    has finished: what that one says is not passed on. `over` is set when the call has ended.
    """

    def __init__(self, observer: Observer | None, max_bytes: int = MAX_RESULT_BYTES) -> None:
        self._observer = observer
        self._max_bytes = max_bytes
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.over = False

    def progress(self, call_id: str, part: JsonValue) -> None:
        """Raises Unusable, in the tool, for what is not JSON or too large."""
        if self.over:
            return
        part = as_json(part, self._max_bytes)
        if threading.get_ident() == self._thread:
            self._tell(call_id, part)
            return
        with suppress(RuntimeError):  # the loop has closed: nobody watches any more
            self._loop.call_soon_threadsafe(lambda: self._tell(call_id, part))

    def approval_requested(self, request: ApprovalRequest) -> None: ...

    def finished(self, outcome: Outcome) -> None: ...

    def _tell(self, call_id: str, part: JsonValue) -> None:
        if self._observer is not None and not self.over:
            self._observer.progress(call_id, part)
