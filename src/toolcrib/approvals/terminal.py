"""Questions at a terminal: whole or visibly cut, in ASCII, and answered only after they were shown."""

from __future__ import annotations

import asyncio
import json
import select
import sys
import threading
from contextlib import suppress
from typing import TextIO
from weakref import WeakKeyDictionary

from toolcrib.errors import ApprovalError, ErrorCode
from toolcrib.threads import in_thread
from toolcrib.values.decision import Answer, ApprovalRequest, Approve, Refuse
from toolcrib.values.json import JsonObject, JsonValue, digest
from toolcrib.values.typed import names_wrong_types

if sys.platform != "win32":
    import termios

_POLL = 0.1
_MAX_PLACES = 20
_MAX_VALUE = 400
_MAX_SHOWN = 4_000


class TerminalApprover:
    """Asks at the terminal, one question at a time; anything but a clear yes is a no.

    Where a yes for the run would spare the questions about further calls of the tool
    (`ApprovalRequest.for_run`), `run` says it; where it would not, `run` is a no like any other word.
    Without a terminal to ask at there is no answer, nor is there from one that ended (Ctrl-D, a lost
    connection): the call ends as `approval_required`. `by` is who answers, as records will say it.
    """

    @names_wrong_types
    def __init__(self, *, by: str = "terminal", source: TextIO | None = None) -> None:
        self._by = by
        self._source = source
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )
        self._turn = threading.Lock()  # the terminal is one, however many loops there are

    async def __call__(self, request: ApprovalRequest) -> Answer:
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            text, given_up = question(request), threading.Event()
            try:
                answer = await in_thread(lambda: self._ask(text, given_up))
            finally:
                given_up.set()
        if answer is None:
            raise ApprovalError("there is nobody at a terminal", ErrorCode.APPROVAL_REQUIRED)
        if answer in ("y", "yes"):
            return Approve(by=self._by)
        if answer == "run" and request.for_run:
            return Approve(by=self._by, for_run=True)
        return Refuse("not approved at the terminal", by=self._by)

    def _ask(self, text: str, given_up: threading.Event) -> str | None:
        with self._turn:
            return self._asked(text, given_up)

    def _asked(self, text: str, given_up: threading.Event) -> str | None:
        """Return what was typed, None if the question was shown to nobody, or the input has ended."""
        source = self._source or sys.stdin
        if source is None or (self._source is None and not source.isatty()) or given_up.is_set():
            return None
        _forget_typed(source)
        sys.stderr.write(text)
        sys.stderr.flush()
        line = source.readline() if _has_line(source, given_up) else ""
        return line.strip().lower() if line else None


def _forget_typed(source: TextIO) -> None:
    """Drop what was typed before a question was shown: it is no answer to it."""
    if sys.platform != "win32":
        with suppress(OSError, ValueError, termios.error):  # no terminal
            termios.tcflush(source, termios.TCIFLUSH)


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
    """Return the question as ASCII: nothing in it can move a cursor or pass for another character."""
    tool = json.dumps(request.tool)[1:-1]
    reason = json.dumps(request.reason)[1:-1]  # a policy may quote a model
    answers = "y/N, run: yes, and to this tool for this run" if request.for_run else "y/N"
    return f"Run {tool} {shown_request(request)}? ({reason}) [{answers}] "


def shown_request(request: ApprovalRequest) -> str:
    """Return the arguments, and which of them were not sent and are defaults, all in ASCII."""
    places = [json.dumps(place)[1:-1] for place in request.defaults[:_MAX_PLACES]]
    more = len(request.defaults) - len(places)
    rest = f" and {more} more" if more else ""
    marked = f" (defaults: {', '.join(places)}{rest})" if places else ""
    return f"{shown_arguments(request.arguments)}{marked}"


def shown_arguments(arguments: JsonObject) -> str:
    """Return arguments as JSON in ASCII. Omissions are marked by `<…>` outside of any text.

    At most 400 characters of each value, so that a long one hides no other, and some 4,000 in all.
    The digests are sha256 over the canonical JSON (RFC 8785) of the value, and of all arguments.
    """
    parts: list[str] = []
    room = _MAX_SHOWN
    for name, value in arguments.items():
        part = f"{_shown(name)}: {_shown(value)}"
        room -= len(part) + len(", ")
        if room < 0:
            parts.append(f"<{len(arguments) - len(parts):,} more arguments, {digest(arguments)}>")
            break
        parts.append(part)
    return f"{{{', '.join(parts)}}}"


def _shown(value: JsonValue) -> str:
    text = json.dumps(value)
    more = len(text) - _MAX_VALUE
    return text if more <= 0 else f"{text[:_MAX_VALUE]} <{more:,} more characters, {digest(value)}>"
