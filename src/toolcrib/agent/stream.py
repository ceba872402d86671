"""A run as it happens: `Watch` turns it into events, `RunStream` gives the events and the result.

Rule: an event shows public views only, and shares nothing mutable with the run, its result or its
session. Every event passes one place, where each list, object and mutable value in it is copied.
Only an instance of the application's own class, which the typed `output` of a result may be, is not
copied.

The run continues whether or not anybody reads; leaving `async with` cancels it.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from contextlib import suppress
from copy import copy
from functools import cache
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

import msgspec
import orjson

from toolcrib.agent.output import PartialAnswer
from toolcrib.agent.picking import Toolbox
from toolcrib.errors import ToolcribError
from toolcrib.failures import SafeLogger
from toolcrib.runner.output import public_arguments
from toolcrib.runner.recorder import public_name
from toolcrib.threads import cancel_requests, is_stop
from toolcrib.values.call import Hydrated, HydrationResult
from toolcrib.values.context import RunTally
from toolcrib.values.decision import ApprovalRequest
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonValue, encodable
from toolcrib.values.message import ArgumentsPart
from toolcrib.values.record import Outcome, ToolInvocationRecord, Waiting
from toolcrib.values.run import (
    ApprovalRequested,
    Done,
    Event,
    PartialOutput,
    ReasoningDelta,
    RunError,
    RunResult,
    RunState,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallProgress,
    ToolCallStarted,
)
from toolcrib.values.typed import check_type, got_type
from toolcrib.wire.json_text import paired

# The public part of streaming arguments: declared members of the top-level object, nothing else.
#
# The text so far is a prefix of one JSON object (RFC 8259); from the first character that cannot be
# part of one, nothing more shows. Regular expressions take long runs at once, and each character is
# examined only a few times, however the text is split.

_LONGEST = 1_000  # characters of a number; an escape has 12 at most
_S = r"[ \t\n\r]*+"
_HEX = "[0-9A-Fa-f]"
_ESCAPE = (  # not of one half of a surrogate pair
    rf'\\(?:["\\/bfnrt]|u(?:[0-9A-CEFa-cef]{_HEX}{{3}}|[Dd][0-7]{_HEX}{{2}}'
    rf"|[Dd][89ABab]{_HEX}{{2}}\\u[Dd][C-Fc-f]{_HEX}{{2}}))"
)
_INSIDE = rf"(?:[\]-~ #-\[!]++|[^\x00-~\ud800-\udfff]++|{_ESCAPE})*+"
_SCALAR = r"(?:-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+|true|false|null)"
_PLAIN = rf'(?:"{_INSIDE}"|{_SCALAR})'
_NAMED = rf'"{_INSIDE}"{_S}:{_S}'
_FLAT = rf"(?:{_PLAIN}|\{{(?:{_S}{_NAMED}{_PLAIN}{_S},)*+{_S}{_NAMED}{_PLAIN}{_S}\}})"


def _state(tokens: str, run: str = "") -> str:
    """Return a pattern: members or items to skip, white space, then one token, each optional."""
    return rf"{run}{_S}(?:{tokens})?+"


_compiled = cache(re.compile)  # compiled when first used: that takes longer than all imports


_VALUE = rf'(?P<text>")|(?P<open>[\[{{])|(?P<scalar>{_SCALAR})(?=[ \t\n\r,\]}}])'
_BEGIN: Final = _state(r"(?P<begin>\{)")
_FIRST_NAME: Final = _state(r'(?P<name>")|(?P<close>\})')
_NAME: Final = _state('(?P<name>")')
_IN_NAME: Final = f'{_INSIDE}(?P<named>")?+'
_FIRST_KEY: Final = _state(r'(?P<key>")|(?P<close>\})')
_KEY: Final = _state('(?P<key>")', run=rf"(?:{_S}{_NAMED}{_PLAIN}{_S},)*+")
_IN_KEY: Final = f'{_INSIDE}(?P<keyed>")?+'
_COLON: Final = _state("(?P<colon>:)")
_OF_KEY: Final = _state(_VALUE)
_FIRST_ITEM: Final = _state(_VALUE + r"|(?P<close>\])")
_ITEM: Final = _state(_VALUE, run=rf"(?:{_S}{_FLAT}{_S},)*+")
_IN_TEXT: Final = f'{_INSIDE}(?P<ended>")?+'
_AFTER: Final = _state(r"(?P<comma>,)|(?P<close>[\]}])")
_OVER: Final = "(?s:.*+)"
_NEXT: Final = {
    "key": _IN_KEY,
    "keyed": _COLON,
    "colon": _OF_KEY,
    "text": _IN_TEXT,
    "ended": _AFTER,
    "scalar": _AFTER,
}


class PublicText:
    """Filters the public part of one call's arguments: `feed` it their text, piece by piece.

    Its outputs, joined, are the text of an object with only the `declared` members. A number is
    given when it is known to be whole.
    """

    __slots__ = ("_closers", "_comma", "_declared", "_held", "_name", "_shows", "_state")

    def __init__(self, declared: Collection[str]) -> None:
        self._declared = declared
        self._state = _BEGIN
        self._closers: list[str] = []
        self._held = ""  # the beginning of an escape, a number, a word or a pair; or malformed
        self._name: list[str] = []
        self._shows = False
        self._comma = ""

    @classmethod
    def of(cls, definition: ToolDefinition) -> Self:
        """Make the filter for the arguments of a tool; without a schema no property is declared."""
        properties = (definition.input_schema or {}).get("properties")
        return cls(frozenset(properties if isinstance(properties, dict) else ()))

    def feed(self, piece: str) -> str:
        """Return the public part of the next piece, and of what was held back until it came."""
        text = self._held + piece
        half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""  # a server cut here
        text = paired(text.removesuffix(half))
        shown: list[str] = []
        at, length = 0, len(text)
        while at < length:
            state = self._state
            match = _compiled(state).match(text, at)
            if match is None or match.end() == at:
                break
            token, matched = match.lastgroup, text[at : match.end()]
            at = match.end()
            if token in _NEXT:
                self._state = _NEXT[token]
            elif token is not None or state is _IN_NAME or state is _AFTER:
                shown.append(self._take(token, matched))
                continue
            if self._shows:
                shown.append(matched)
        self._held = text[at:] + half
        if length - at > _LONGEST:
            self._state, self._shows, self._held = _OVER, False, ""
        return "".join(shown)

    def _take(self, token: str | None, text: str) -> str:
        """Move to the state after this token, and return what shows of its text."""
        is_top = len(self._closers) == 1
        match token:
            case "begin":
                self._closers, self._state = ["}"], _FIRST_NAME
                return "{"
            case "name":
                self._name, self._state = ['"'], _IN_NAME
                return ""
            case "named":
                return self._named(text)
            case "open":
                is_object = text[-1] == "{"
                self._closers.append("}" if is_object else "]")
                self._state = _FIRST_KEY if is_object else _FIRST_ITEM
            case "close":
                return self._closed(text)
            case "comma" if is_top:
                self._state, self._shows = _NAME, False
            case "comma":
                self._state = _KEY if self._closers[-1] == "}" else _ITEM
            case _ if self._state is _IN_NAME:
                self._name.append(text)
            case _ if is_top:
                return ""  # white space between members
        return text if self._shows else ""

    def _named(self, text: str) -> str:
        """Take the whole name of a member, which decides whether the member shows."""
        name = "".join((*self._name, text))
        self._state, self._shows = _COLON, orjson.loads(name) in self._declared
        if not self._shows:
            return ""
        comma, self._comma = self._comma, ","
        return comma + name

    def _closed(self, text: str) -> str:
        if self._closers.pop() == text[-1] and self._closers:
            self._state = _AFTER
            return text if self._shows else ""
        self._state, self._shows = _OVER, False
        return "}" if text[-1] == "}" and not self._closers else ""


class Watch:
    """Observes the runner for a run: emits the events of its calls, and collects their outcomes."""

    def __init__(
        self,
        emit: Callable[[Event], None],
        records: list[ToolInvocationRecord],
        state: RunState,
        tally: RunTally,
    ) -> None:
        """Watch a run from `state` on, whose questions and their calls were reported before."""
        self._emit = emit
        self._records = records
        self._reported_requests = {request.id for request in state.pending}
        self._reported_calls = {request.call_in(state.run_id) for request in state.pending}
        self._streaming: dict[str, PublicText] = {}  # by call id
        self._definitions: dict[str, ToolDefinition] = {}  # of this run's calls, by id
        self._tally = tally
        self.outcomes: dict[str, Outcome] = {}

    def text(self, text: str, partial: PartialAnswer | None = None) -> None:
        self._emit(TextDelta(text))
        if partial is not None:
            self.partial(partial.feed(text))

    def partial(self, values: list[JsonValue]) -> None:
        for value in values:
            self._emit(PartialOutput(value))

    def reasoning(self, text: str) -> None:
        self._emit(ReasoningDelta(text))

    def arguments(self, call_id: str, part: ArgumentsPart, toolbox: Toolbox) -> None:
        """Show declared arguments as they stream, except of tools with secrets or unknown tools.

        `call_id` is the id that the call will have in the history.
        """
        public = self._streaming.get(call_id)
        if public is None:
            definition = toolbox.definition(part.name)
            if definition is None or definition.secret:
                return
            public = PublicText.of(definition)
            self._streaming[call_id] = public
        text = public.feed(part.text)
        if text:
            self._emit(ToolArgumentsDelta(call_id, part.name, text))

    def started(self, call: HydrationResult) -> None:
        self._streaming.clear()  # all calls of the reply are whole
        arguments = None
        if isinstance(call, Hydrated):
            arguments = public_arguments(call.definition, call.arguments)
            self._definitions[call.call.id] = call.definition
        if call.call.id not in self._reported_calls:
            self._emit(ToolCallStarted(call.call.id, public_name(call), arguments))

    def approval_requested(self, request: ApprovalRequest) -> None:
        if request.id not in self._reported_requests:
            self._reported_requests.add(request.id)
            is_own = request.run_id == self._tally.run_id  # call ids are unique only within a run
            definition = self._definitions.get(request.call_id) if is_own else None
            self._emit(
                ApprovalRequested(request, None if definition is None else definition.input_schema)
            )

    def progress(self, call_id: str, part: JsonValue) -> None:
        definition = self._definitions.get(call_id)
        is_untrusted = definition is not None and definition.annotations.untrusted_output
        self._emit(ToolCallProgress(call_id, part, is_untrusted or self._tally.tainted))

    def finished(self, outcome: Outcome) -> None:
        self.outcomes[outcome.record.id] = outcome
        if isinstance(outcome, Waiting):
            for request in outcome.requests:  # of an agent that is a tool
                self.approval_requested(request)
        else:
            self._records.append(outcome.record)
            self._emit(ToolCallFinished(outcome.record))


_log = SafeLogger("toolcrib.agent")
# A loop keeps only weak references to its tasks; this keeps abandoned runs going.
_running: set[asyncio.Task[RunResult]] = set()


CancelCall: TypeAlias = Callable[[str], Awaitable[bool]]
"""Cancels a background call by its id; returns whether it ran until then."""


class Listener(NamedTuple):
    """Receives the events of a run, the result last.

    `streaming` asks for replies piece by piece. Each agent that speaks calls `set_cancel_call` with
    a function that cancels one background call.
    """

    emit: Callable[[Event], None]
    streaming: bool = True
    set_cancel_call: Callable[[CancelCall], None] = lambda _cancel: None


Drive: TypeAlias = Callable[[Listener], Coroutine[Any, Any, RunResult]]
"""Drives a run that is ready to continue, and tells a listener of it."""


class RunStream:
    """Async iterable of events, ending with `Done`; async context manager; `await .result()`.

    Each event goes to one reader. Reading anew after the last one raises ToolcribError. `is_read`
    says that somebody has begun to read the events, or will.
    """

    def __init__(self, drive: Drive) -> None:
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._result: RunResult | None = None
        self._unraised_error: RunError | None = None  # until `result` is asked for, and raises it
        self._is_over = False
        self.is_read = False
        self._on_ended: list[Callable[[RunResult | None], None]] = []
        self._cancel_call: CancelCall | None = None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ToolcribError(
                "a stream needs a running event loop: read it in an `async def`; to see no events, "
                "run_sync(agent.run(…))"
            ) from None
        self._task = loop.create_task(
            drive(Listener(self._emit, set_cancel_call=self._set_cancel_call))
        )
        _running.add(self._task)
        self._task.add_done_callback(self._close)

    def when_ended(self, ended: Callable[[RunResult | None], None]) -> None:
        """Call `ended`, too, with the result or None if there is none, before any reader sees it."""
        self._on_ended.append(ended)

    async def result(self) -> RunResult:
        """Return how the run ended, also if it was cancelled. Raises the provider's failure."""
        cancels = cancel_requests()
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError as raised:
            is_of_run = self._task.cancelled() and not is_stop(raised, cancels)
            if is_of_run and self._result is not None:
                return self._result
            raise
        finally:
            self._unraised_error = None

    async def cancel(self) -> RunResult:
        """Cancel the run and return its result; readers still get the outcomes of its calls.

        A run that has already ended does not change. Raises what `result` raises.
        """
        await self._stop()
        return await self.result()

    async def cancel_call(self, call_id: str) -> bool:
        """Cancel one call that runs in the background, and return when it is over.

        The run continues, and its model is told. False for a call that is not running in the
        background, not yet, or no longer.
        """
        check_type("call_id", call_id, str, "a str: the id of a call, as its events have it")
        return self._cancel_call is not None and await self._cancel_call(call_id)

    async def text(self) -> AsyncIterator[str]:
        """Yield the text of the answers as it arrives.

        Raises the provider's failure after everything that came before it.
        """
        async for event in self:
            if isinstance(event, TextDelta):
                yield event.text
        await self.result()

    def __aiter__(self) -> RunStream:
        if self._is_over:
            raise ToolcribError(
                "all events of this run have been read, and nothing keeps them: `await "
                "stream.result()` returns how it ended"
            )
        return self

    async def __anext__(self) -> Event:
        self.is_read = True
        event = None if self._is_over else await self._events.get()
        if event is None:
            self._is_over = True
            self._events.put_nowait(None)  # for other readers
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self._stop()
        error, self._unraised_error = self._unraised_error, None
        if error is not None:
            _log.warning(
                "a run failed, and nobody asked for its result: await stream.result() raises %s: %s",
                error.kind,
                encodable(error.message),
            )

    async def _stop(self) -> None:
        if not self._task.done():
            try:
                await asyncio.sleep(0)  # a run that has not begun could not report its cancellation
            finally:  # also if whoever stops it is cancelled here
                self._task.cancel()
            await asyncio.wait([self._task])

    def _set_cancel_call(self, cancel: CancelCall) -> None:
        self._cancel_call = cancel

    def _emit(self, event: Event) -> None:
        if isinstance(event, Done):
            self._result = event.result
            self._report(event.result)
        elif isinstance(event, RunError):
            self._unraised_error = event
        with suppress(RuntimeError):  # the event loop is gone, and its readers with it
            self._events.put_nowait(_independent(event))

    def _close(self, task: asyncio.Task[RunResult]) -> None:
        """Wake the readers; they got a failure as `RunError`, and `result` raises it."""
        _running.discard(task)
        if self._result is None:
            self._report(None)
        if not task.cancelled():
            task.exception()
        self._events.put_nowait(None)

    def _report(self, result: RunResult | None) -> None:
        for ended in self._on_ended:
            ended(result)


def _independent(value: Any) -> Any:
    """Return an equal value that shares nothing mutable with the original.

    A deeply frozen value is returned itself.
    """
    duplicate = value
    if isinstance(value, dict):
        duplicate = {key: _independent(item) for key, item in value.items()}
    elif isinstance(value, list):
        duplicate = [_independent(item) for item in value]
    elif type(value) is tuple:
        items = tuple(map(_independent, value))
        shared = all(item is copied for item, copied in zip(value, items, strict=True))
        duplicate = value if shared else items
    elif isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        copies = {name: _independent(item) for name, item in fields.items()}
        changed = {name: item for name, item in copies.items() if item is not fields[name]}
        if changed or not value.__struct_config__.frozen:
            duplicate = copy(value)
            for name, item in changed.items():
                msgspec.structs.force_setattr(duplicate, name, item)
    return duplicate


# The one entry point from synchronous code: scripts and the REPL.

T = TypeVar("T")


def run_sync(awaitable: Awaitable[T]) -> T:
    """Run to the end and return the result. Raises ToolcribError inside a running event loop."""
    if not inspect.isawaitable(awaitable):
        raise TypeError(
            f"awaitable must be what agent.run(…) gives, or an async call; {got_type(awaitable)}"
        )

    async def awaited() -> T:
        return await awaitable

    if not _is_in_a_loop():  # outside of `except`, so that errors have no other context
        return asyncio.run(awaited())
    close = getattr(awaitable, "close", None)
    if close is not None:
        close()  # otherwise Python warns that it was never awaited
    raise ToolcribError(
        "an event loop is already running: await the call instead of using run_sync(…)"
    )


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
