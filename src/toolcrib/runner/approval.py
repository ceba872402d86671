"""Approvals: a question to a person, and an answer that fits that question only.

A request's id is a digest over run, call, tool, definition, arguments and caller. An answer is kept
under that id, so that with any of them changed there is no answer: nothing has to be compared.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TextIO

from toolcrib.runner.redact import masked_arguments
from toolcrib.threads import in_thread
from toolcrib.values.call import Hydrated
from toolcrib.values.json import digest
from toolcrib.values.record import Answer, ApprovalRequest, Approve, Ask, Caller, Refuse

DEFAULT_SECONDS = 7 * 24 * 3600.0


def approval_request(
    hydrated: Hydrated, ask: Ask, *, caller: Caller, run_id: str, seconds: float = DEFAULT_SECONDS
) -> ApprovalRequest:
    """The question that `ask` leads to; it lapses after `seconds`."""
    definition, call = hydrated.definition, hydrated.call
    arguments_digest = digest(hydrated.arguments)
    bound = [run_id, call.id, definition.name, definition.digest, arguments_digest, caller.id]
    return ApprovalRequest(
        id="apr_" + digest(bound).removeprefix("sha256:")[:40],
        tool=definition.name,
        arguments=masked_arguments(definition, hydrated.arguments),
        reason=ask.reason,
        expires_at=time.time() + seconds,
        call_id=call.id,
        run_id=run_id,
        caller=caller.id,
        definition_digest=definition.digest,
        arguments_digest=arguments_digest,
    )


class TerminalApprover:
    """Asks at the terminal, one question at a time; anything but a clear yes is a no.

    Without a terminal to ask at, the answer is no.
    """

    def __init__(self, *, by: str = "terminal", source: TextIO | None = None) -> None:
        self._by = by
        self._source = source
        self._one_at_a_time: asyncio.Lock | None = None

    async def __call__(self, request: ApprovalRequest) -> Answer:
        if self._one_at_a_time is None:
            self._one_at_a_time = asyncio.Lock()
        async with self._one_at_a_time:
            text = question(request)
            answer = await in_thread(lambda: self._ask(text))
        if answer in ("y", "yes"):
            return Approve(by=self._by)
        return Refuse("not approved at the terminal", by=self._by)

    def _ask(self, text: str) -> str:
        source = self._source or sys.stdin
        if self._source is None and not source.isatty():
            return ""
        sys.stderr.write(text)
        sys.stderr.flush()
        return source.readline().strip().lower()


def question(request: ApprovalRequest) -> str:
    """One line in ASCII: nothing in it can move a cursor or pass for another character."""
    arguments = json.dumps(request.arguments, ensure_ascii=True)
    return f"Run {request.tool} {arguments}? ({request.reason}) [y/N] "
