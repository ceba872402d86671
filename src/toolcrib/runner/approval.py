"""Approvals: a question to a person, and an answer that fits that question only.

A request's id is a digest over run, call, tool, definition, arguments and caller. An answer is kept
under that id, so that with any of them changed there is no answer: nothing has to be compared.
"""

from __future__ import annotations

import asyncio
import json
import select
import sys
import threading
import time
from typing import TextIO

from toolcrib.runner.redact import masked_arguments
from toolcrib.threads import in_thread
from toolcrib.values.call import Hydrated
from toolcrib.values.context import RunTally
from toolcrib.values.decision import Answer, ApprovalRequest, Approve, Ask, Caller, Refuse
from toolcrib.values.json import digest

DEFAULT_SECONDS = 7 * 24 * 3600.0
_POLL = 0.1


def approval_request(
    hydrated: Hydrated,
    ask: Ask,
    *,
    caller: Caller,
    run: RunTally,
    seconds: float = DEFAULT_SECONDS,
) -> ApprovalRequest:
    """The question that `ask` leads to; it lapses after `seconds`.

    The run's `nonce` goes into the id: without it, secret arguments could be tried out against it.
    """
    definition, call = hydrated.definition, hydrated.call
    arguments_digest = digest(hydrated.arguments)
    bound = [run.run_id, run.nonce, call.id, caller.id]
    bound += [definition.name, definition.digest, arguments_digest]
    return ApprovalRequest(
        id="apr_" + digest(bound).removeprefix("sha256:")[:40],
        tool=definition.name,
        arguments=masked_arguments(definition, hydrated.arguments),
        reason=ask.reason,
        expires_at=time.time() + seconds,
        call_id=call.id,
        run_id=run.run_id,
        caller=caller.id,
        definition_digest=definition.digest,
        arguments_digest="" if definition.secret else arguments_digest,
    )


class TerminalApprover:
    """Asks at the terminal, one question at a time; anything but a clear yes is a no.

    Without a terminal to ask at, the answer is no.
    """

    def __init__(self, *, by: str = "terminal", source: TextIO | None = None) -> None:
        self._by = by
        self._source = source
        self._turns: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    async def __call__(self, request: ApprovalRequest) -> Answer:
        loop = asyncio.get_running_loop()
        if self._turns is None or self._turns[0] is not loop:  # a lock holds in one loop only
            self._turns = loop, asyncio.Lock()
        async with self._turns[1]:
            text, given_up = question(request), threading.Event()
            try:
                answer = await in_thread(lambda: self._ask(text, given_up))
            finally:
                given_up.set()
        if answer in ("y", "yes"):
            return Approve(by=self._by)
        return Refuse("not approved at the terminal", by=self._by)

    def _ask(self, text: str, given_up: threading.Event) -> str:
        source = self._source or sys.stdin
        if source is None or (self._source is None and not source.isatty()):
            return ""
        sys.stderr.write(text)
        sys.stderr.flush()
        return source.readline().strip().lower() if _has_line(source, given_up) else ""


def _has_line(source: TextIO, given_up: threading.Event) -> bool:
    """Wait for a line at a terminal; False once nobody waits for it, and it is not taken away.

    What cannot be watched (a file, a console of Windows) is simply read.
    """
    try:
        while source.isatty() and not given_up.is_set():
            if select.select([source], [], [], _POLL)[0]:
                break
    except (OSError, ValueError):
        return True
    return not given_up.is_set()


def question(request: ApprovalRequest) -> str:
    """One line in ASCII: nothing in it can move a cursor or pass for another character."""
    arguments = json.dumps(request.arguments, ensure_ascii=True)
    reason = json.dumps(request.reason, ensure_ascii=True)[1:-1]  # a policy may quote a model
    return f"Run {request.tool} {arguments}? ({reason}) [y/N] "
