"""A run as it happens: `Watch` turns what happens into events, `RunStream` gives them and the result.

The run goes on by itself, whether or not anybody reads; leaving `async with` cancels it.

Rules: an event shows public views only. It shares nothing that can be changed with the run, its result
or its session: every event passes one door, where each list, object and mutable value in it is copied.
Only an instance of the application's own class, which the typed `output` of a result may be, is not.
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

from toolcrib.agent.partial import PartialAnswer
from toolcrib.agent.picking import Toolbox
from toolcrib.errors import ToolcribError
from toolcrib.runner.output import public_arguments
from toolcrib.runner.recorder import public_name
from toolcrib.values.call import Hydrated, HydrationResult
from toolcrib.values.context import RunTally
from toolcrib.values.decision import ApprovalRequest
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonValue
from toolcrib.values.message import ArgumentsPart
from toolcrib.values.record import Outcome, ToolInvocationRecord, Waiting
from toolcrib.values.run import (
    ApprovalRequested,
    Done,
    Event,
    PartialOutput,
    ReasoningDelta,
    RunResult,
    RunState,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallProgress,
    ToolCallStarted,
)
from toolcrib.values.typed import came, check_type

# Of arguments that stream, the public ones: declared members of the top-level object, nothing else.
#
# What has come so far is a prefix of one JSON object (RFC 8259), or nothing more shows from the first
# character on that cannot be part of one. Regular expressions take long runs at once, and no character
# is looked at more than a few times, however the text is split.

_LONGEST = 1_000  # characters of a number; of an escape there are 12 at most
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


_compiled = cache(re.compile)  # when first used: it takes longer than importing all the rest


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
    """The public part of one call's arguments: `feed` it the pieces of their text, in order.

    What it gives is, put together, the text of an object with the `declared` members alone. A number
    is given when it is known to be whole.
    """

    __slots__ = ("_closers", "_comma", "_declared", "_held", "_name", "_shows", "_state")

    def __init__(self, declared: Collection[str]) -> None:
        self._declared = declared
        self._state = _BEGIN
        self._closers: list[str] = []
        self._held = ""  # the beginning of an escape, a number or a word; or what is malformed
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
        shown: list[str] = []
        at, length = 0, len(text)
        while at < length:
            state = self._state
            found = _compiled(state).match(text, at)
            if found is None or found.end() == at:
                break
            token, taken = found.lastgroup, text[at : found.end()]
            at = found.end()
            if token in _NEXT:
                self._state = _NEXT[token]
            elif token is not None or state is _IN_NAME or state is _AFTER:
                shown.append(self._take(token, taken))
                continue
            if self._shows:
                shown.append(taken)
        self._held = text[at:]
        if length - at > _LONGEST:
            self._state, self._shows, self._held = _OVER, False, ""
        return "".join(shown)

    def _take(self, token: str | None, text: str) -> str:
        """Go on by what ends in this token, or lies in a name or behind a value; what shows of it."""
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
        """`state` is where the run goes on: its questions, and their calls, were told before."""
        self._emit = emit
        self._records = records
        self._told = {request.id for request in state.pending}
        self._waited = {request.call_in(state.run_id) for request in state.pending}
        self._streaming: dict[str, PublicText] = {}  # by call id
        self._definitions: dict[str, ToolDefinition] = {}  # of the calls of this run, by their id
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
        """Show declared arguments as they stream; none of tools with secrets or of unknown tools.

        `call_id` is the one that the call will have in the history.
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
        shown = None
        if isinstance(call, Hydrated):
            shown = public_arguments(call.definition, call.arguments)
            self._definitions[call.call.id] = call.definition
        if call.call.id not in self._waited:
            self._emit(ToolCallStarted(call.call.id, public_name(call), shown))

    def approval_requested(self, request: ApprovalRequest) -> None:
        if request.id not in self._told:
            self._told.add(request.id)
            own = request.run_id == self._tally.run_id  # ids of calls are a run's own
            asks = self._definitions.get(request.call_id) if own else None
            self._emit(ApprovalRequested(request, None if asks is None else asks.input_schema))

    def progress(self, call_id: str, part: JsonValue) -> None:
        definition = self._definitions.get(call_id)
        brings = definition is not None and definition.annotations.untrusted_output
        self._emit(ToolCallProgress(call_id, part, brings or self._tally.tainted))

    def finished(self, outcome: Outcome) -> None:
        self.outcomes[outcome.record.id] = outcome
        if isinstance(outcome, Waiting):
            for request in outcome.requests:  # of an agent that is a tool
                self.approval_requested(request)
        else:
            self._records.append(outcome.record)
            self._emit(ToolCallFinished(outcome.record))


# A loop keeps only weak references to its tasks; a run that nobody holds goes on all the same.
_running: set[asyncio.Task[RunResult]] = set()


CancelCall: TypeAlias = Callable[[str], Awaitable[bool]]
"""Cancels a call in the background, by its id; says whether it ran until then."""


class Listener(NamedTuple):
    """Receives the events of a run, the result last; `streaming` asks for replies piece by piece, and
    `reached_by` is told how whoever listens cancels a single call, by each agent that speaks."""

    emit: Callable[[Event], None]
    streaming: bool = True
    reached_by: Callable[[CancelCall], None] = lambda _cancel: None


Drive: TypeAlias = Callable[[Listener], Coroutine[Any, Any, RunResult]]
"""Drives a run that is ready to go on, and tells a listener of it."""


class RunStream:
    """Async iterable of events, ending with `Done`; async context manager; `await .result()`.

    `is_read` says that somebody has begun to read the events, or will.
    """

    def __init__(self, drive: Drive) -> None:
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._result: RunResult | None = None
        self._over = False
        self.is_read = False
        self._ended: Callable[[RunResult | None], None] | None = None
        self._cancel_call: CancelCall | None = None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ToolcribError(
                "a stream needs a running event loop: read it in an `async def`; to see no events, "
                "run_sync(agent.run(…))"
            ) from None
        self._task = loop.create_task(drive(Listener(self._emit, reached_by=self._reach)))
        _running.add(self._task)
        self._task.add_done_callback(self._close)

    def when_ended(self, ended: Callable[[RunResult | None], None]) -> None:
        """Give the result to `ended` before anybody reads of it, or None if there is none."""
        self._ended = ended

    async def result(self) -> RunResult:
        """Return how the run ended, a cancelled one too. Raises what the provider's failure was."""
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if self._task.cancelled() and self._result is not None:
                return self._result
            raise

    async def cancel(self) -> RunResult:
        """Cancel the run and return its result; whoever reads still gets what became of its calls.

        A run that has ended already stays as it is. Raises what `result` does.
        """
        await self._stop()
        return await self.result()

    async def cancel_call(self, call_id: str) -> bool:
        """Cancel one call that runs in the background, and return when it is over. The run goes on, and
        its model is told. False for a call that does not run there, not yet, or not any more."""
        check_type("call_id", call_id, str, "a str: the id of a call, as its events have it")
        return self._cancel_call is not None and await self._cancel_call(call_id)

    async def text(self) -> AsyncIterator[str]:
        """Yield the text of the answers as it comes. Raises what the provider's failure was, at the end
        of what came before it."""
        async for event in self:
            if isinstance(event, TextDelta):
                yield event.text
        await self.result()

    def __aiter__(self) -> RunStream:
        return self

    async def __anext__(self) -> Event:
        self.is_read = True
        event = None if self._over else await self._events.get()
        if event is None:
            self._over = True
            self._events.put_nowait(None)  # for whoever else reads
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

    async def _stop(self) -> None:
        if not self._task.done():
            await asyncio.sleep(0)  # a run that has not begun could not say that it was cancelled
            self._task.cancel()
            await asyncio.wait([self._task])

    def _reach(self, cancel: CancelCall) -> None:
        self._cancel_call = cancel

    def _emit(self, event: Event) -> None:
        if isinstance(event, Done):
            self._result = event.result
            self._tell(event.result)
        with suppress(RuntimeError):  # the event loop is gone, and with it whoever read
            self._events.put_nowait(_independent(event))

    def _close(self, task: asyncio.Task[RunResult]) -> None:
        """Wake the readers; they got a failure as `RunError`, and `result` raises it."""
        _running.discard(task)
        if self._result is None:
            self._tell(None)
        if not task.cancelled():
            task.exception()
        self._events.put_nowait(None)

    def _tell(self, result: RunResult | None) -> None:
        if self._ended is not None:
            self._ended(result)


def _independent(value: Any) -> Any:
    """Return an equal value in which nothing can be changed for anybody else.

    What is frozen all through is returned as it is.
    """
    made = value
    if isinstance(value, dict):
        made = {key: _independent(item) for key, item in value.items()}
    elif isinstance(value, list):
        made = [_independent(item) for item in value]
    elif type(value) is tuple:
        items = tuple(map(_independent, value))
        shared = all(item is own for item, own in zip(value, items, strict=True))
        made = value if shared else items
    elif isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        copies = {name: _independent(item) for name, item in fields.items()}
        changed = {name: item for name, item in copies.items() if item is not fields[name]}
        if changed or not value.__struct_config__.frozen:
            made = copy(value)
            for name, item in changed.items():
                msgspec.structs.force_setattr(made, name, item)
    return made


# The one door from synchronous code: scripts and the REPL.

T = TypeVar("T")


def run_sync(awaitable: Awaitable[T]) -> T:
    """Run to the end and give the result. Raises ToolcribError inside a running event loop."""
    if not inspect.isawaitable(awaitable):
        raise TypeError(
            f"awaitable is what agent.run(…) gives, or an async call; {came(awaitable)}"
        )
    if not _is_in_a_loop():  # and in no `except`: what is raised has no other error before it
        return asyncio.run(_await(awaitable))
    close = getattr(awaitable, "close", None)
    if close is not None:
        close()  # or Python warns that it was never awaited
    raise ToolcribError("an event loop is running here already: await it instead of run_sync(…)")


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable
