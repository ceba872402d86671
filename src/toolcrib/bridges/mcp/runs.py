"""The runs of a server's clients. A run is what one client does, one call after the other.

Rule: untrusted content that a run has read makes its later calls ask. A run is not forgotten while
one of its calls goes on, including a task and a call whose tool waits for an answer, but not a call
that ended with a question for approval, because nobody knows whether it comes again. Without
sessions, the run is its caller's, and ends after `IDLE` seconds in which no call went on and none
was asked for.
"""

from __future__ import annotations

import asyncio
import secrets
from time import monotonic
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolcrib.values.context import RunTally
from toolcrib.values.decision import Caller

IDLE = 1_800.0  # seconds
MOST_RUNS = 10_000


class ClientRun:
    """One run, whose calls share a tally. `used` is when it was last used. `session` is told when
    the list of tools has changed."""

    def __init__(self) -> None:
        self.used = monotonic()
        self.tally = RunTally(f"mcp_{secrets.token_hex(8)}", secrets.token_hex(16), self.used)
        self.session: ServerSession | None = None
        self._calls: set[asyncio.Future[Any]] = set()

    @property
    def goes_on(self) -> bool:
        return bool(self._calls)

    def hold(self, call: asyncio.Future[Any]) -> None:
        """Keep the run while a call goes on."""
        self._calls.add(call)
        call.add_done_callback(self._ended)

    def hear(self, tally: RunTally) -> None:
        """Count what a call has read whose client is told about it now. The call may have begun in
        a run that is over, in another connection, or in another process."""
        self.tally.tainted = self.tally.tainted or tally.tainted

    def _ended(self, call: asyncio.Future[Any]) -> None:
        self._calls.discard(call)
        self.used = monotonic()


class ClientRuns:
    """Holds the runs of one connection, or of all HTTP clients."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], ClientRun] = {}

    def of(self, context: ServerRequestContext[Any, Any], caller: Caller) -> ClientRun:
        """Return the run that a request belongs to, by its session and its caller."""
        modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        headers = getattr(context.request, "headers", {})
        key = ("" if modern else headers.get("mcp-session-id", ""), caller.id)
        run = self._runs.get(key)
        if run is None or (modern and context.request is not None and _is_over(run)):
            run = self._runs[key] = ClientRun()
        run.used = monotonic()
        if not modern:
            run.session = context.session
        if len(self._runs) > MOST_RUNS:
            self._forget_one(run)
        return run

    def sessions(self) -> list[ServerSession]:
        return [run.session for run in self._runs.values() if run.session is not None]

    def _forget_one(self, new: ClientRun) -> None:
        """Forget the run that was used longest ago, among those in which no call goes on."""
        idle = {k: run.used for k, run in self._runs.items() if not run.goes_on and run is not new}
        if idle:
            del self._runs[min(idle, key=idle.__getitem__)]


def _is_over(run: ClientRun) -> bool:
    return not run.goes_on and monotonic() - run.used > IDLE
