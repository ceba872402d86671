"""The lines of standard input, in a form that can be left at any time, since a reading thread
cannot be stopped.

Rule: while it is open, nothing else in the process, and no program that it starts, reads what the
client sends. A line that is no message is answered with an error, logged and skipped. So is a line
of more than `MAX_MESSAGE` bytes, of which only the ends are kept. A message with an id is never a
notification, whatever the id is. The error names a request only if the line is clearly a request
with a usable id, because for the client the id of its own answer belongs to another request.

An id is a string or an integer, and "1" is not 1. A request is open until it was answered or has
ended without an answer, and another one with its id is invalid meanwhile. What was read before the
end of a file is answered before the stream ends. A client that closes a pipe has left.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import anyio
import mcp_types as types
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR
from pydantic_core import from_json

from toolcrib.bridges.mcp.faults import MAX_MESSAGE, ambiguity_of
from toolcrib.closing import Closing
from toolcrib.failures import SafeLogger

LOGGER = SafeLogger("toolcrib.mcp")
_CHUNK = 65_536
_CANCELLED = "notifications/cancelled"
_LISTEN = "subscriptions/listen"  # a request that lasts as long as its stream
# seconds for answers to what was read: at the end of a file, of a pipe, and after a request to stop
_OF_FILE, _OF_PIPE, _TO_STOP = 60.0, 1.0, 10.0
_EDGE = 4_096  # bytes at each end of a line, which say what it is
_MEMBER = r'"(jsonrpc|id|method)"\s*:\s*("(?:[^"\\]|\\.){0,200}"|-?\d{1,18})'
_HEAD = re.compile(rf"\s*\{{\s*(?:{_MEMBER}\s*,\s*)*")
_TAIL = re.compile(rf"(?:,\s*{_MEMBER}\s*)+\}}\s*$")
_ONE = re.compile(_MEMBER)
_DUPLICATE_ID = types.ErrorData(
    code=INVALID_REQUEST,
    message="Invalid request: an earlier request with this id is not answered yet",
)
_TEXT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?$)', re.DOTALL)  # also an unfinished one


class Reads(Protocol):
    """A stream of messages of the client."""

    async def receive(self) -> SessionMessage | Exception: ...

    async def __anext__(self) -> SessionMessage | Exception: ...

    async def aclose(self) -> None: ...


class Writes(Protocol):
    """A stream of messages to the client."""

    async def send(self, item: SessionMessage, /) -> None: ...

    async def aclose(self) -> None: ...


Ended: TypeAlias = Callable[[types.RequestId], Awaitable[None]]


class _StringId(str):
    """An id that is a string, which the SDK would convert to a number where possible."""

    __slots__ = ()

    def __int__(self) -> int:
        raise ValueError("it is a text")


class _NotedRequests(Closing):
    """A stream of the client's messages that tells `ended` which requests end without an answer."""

    def __init__(self, stream: Reads, ended: Ended) -> None:
        self._stream = stream
        self._ended = ended

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._observed(await self._stream.__anext__())

    async def receive(self) -> SessionMessage | Exception:
        return self._observed(await self._stream.receive())

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _observed(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        message = None if isinstance(item, Exception) else item.message
        if isinstance(message, types.JSONRPCNotification) and message.method == _CANCELLED:
            params = message.params or {}
            if isinstance(request_id := params.get("requestId"), str):
                params["requestId"] = _StringId(request_id)
        if not isinstance(message, types.JSONRPCRequest):
            return item
        if isinstance(message.id, str):
            message.id = _StringId(message.id)
        unanswered = partial(self._ended, message.id)
        return SessionMessage(message, ServerMessageMetadata(on_request_unanswered=unanswered))


class _NotedAnswers(Closing):
    """A stream of messages to the client that tells `ended` which requests have their answers."""

    def __init__(self, stream: Writes, ended: Ended) -> None:
        self._stream = stream
        self._ended = ended

    async def send(self, item: SessionMessage, /) -> None:
        try:
            await self._stream.send(item)
        finally:  # there is no other answer, even if the sending is cancelled
            match item.message:
                case (
                    types.JSONRPCResponse(id=request_id)
                    | types.JSONRPCError(id=str() | int() as request_id)
                ):
                    await self._ended(request_id)

    async def aclose(self) -> None:
        await self._stream.aclose()


class Line(NamedTuple):
    """A whole line, or the two ends of a line that was `cut`."""

    data: bytes
    cut: bool

    @property
    def envelope(self) -> dict[str, Any]:
        """Its own `id` and `method`, outside of its contents, as found at its ends."""
        text = self.data.decode(
            "utf-8", "surrogateescape"
        )  # invalid UTF-8 cannot be written either
        pairs: list[tuple[str, str]] = []
        structure = _TEXT.sub("", text)
        # the end of a line whose braces do not match may be inside a nested object
        if self.cut or structure.count("{") == structure.count("}"):
            tail = _TAIL.search(text[-_EDGE:])
            pairs += _ONE.findall("" if tail is None else tail[0])
        head = _HEAD.match(text[:_EDGE])
        pairs += _ONE.findall("" if head is None else head[0])
        members = {}
        for name, value in pairs:
            with suppress(ValueError):  # it cannot be read or written
                parsed = json.loads(value)
                str(parsed).encode()
                members[name] = parsed
        return members


class BoundedLines:
    """Makes lines from the bytes of a pipe. Of a line of more than `longest` bytes, which is cut,
    only the ends are held."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._held, self._cut = bytearray(), False

    def feed(self, chunk: bytes) -> list[Line]:
        """Return the lines that these bytes complete."""
        lines: list[Line] = []
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._held += end
            lines.append(self.last())
        self._held += rest
        if self._cut or len(self._held) > self._longest:
            self._cut = True
            del self._held[_EDGE:-_EDGE]
        return lines

    def last(self) -> Line:
        """Return what is held, whose line has ended."""
        line = Line(bytes(self._held), self._cut or len(self._held) > self._longest)
        self._held, self._cut = bytearray(), False
        return line


class StandardInput:
    """An async iterator over the messages of standard input, one for each line. It ends with the
    input, or when `stop` is set.

    Lines that are no message are answered on the stream given to `answered_by`. With `leave`, it
    waits before it ends until its messages have answers. If that takes too long, `leave` is called,
    which lets everything that still runs come to its answer.
    """

    def __init__(
        self, stop: asyncio.Event | None = None, leave: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._stop = asyncio.Event() if stop is None else stop
        self._leave = leave
        self._open: dict[types.RequestId, bool] = {}  # and whether its answer is waited for
        self._answered = asyncio.Event()
        self._lines: asyncio.Queue[Line | None] = asyncio.Queue(64)
        self._answers: asyncio.Future[Writes] = asyncio.get_running_loop().create_future()
        self._own_input = -1
        self._stop_task: asyncio.Task[None] | None = None
        self._has_left = False

    async def __aenter__(self) -> Self:
        self._own_input = os.dup(0)
        null_device = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null_device, 0)
        os.close(null_device)
        loop = asyncio.get_running_loop()
        threading.Thread(
            target=self._read, args=(loop, os.dup(self._own_input)), daemon=True
        ).start()
        self._stop_task = asyncio.create_task(self._wait_for_stop())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._has_left = True
        if self._stop_task is not None:
            self._stop_task.cancel()
        os.dup2(self._own_input, 0)
        os.close(self._own_input)

    def asked_by(self, stream: Reads) -> _NotedRequests:
        """Return the stream by which the requests among its messages are to be read."""
        return _NotedRequests(stream, self._request_ended)

    def answered_by(self, stream: Writes) -> _NotedAnswers:
        """Return the stream by which all requests are to be answered."""
        self._answers.set_result(stream)
        return _NotedAnswers(stream, self._request_ended)

    async def __aiter__(self) -> AsyncIterator[str]:
        while (line := await self._lines.get()) is not None and not self._stop.is_set():
            if not line.data.strip():
                continue
            message = _read(line)
            if isinstance(message, types.JSONRPCRequest) and message.id in self._open:
                await self._refuse(message.id, _DUPLICATE_ID)
            elif not isinstance(message, types.ErrorData):
                if isinstance(message, types.JSONRPCRequest):
                    self._open[message.id] = message.method != _LISTEN
                yield line.data.decode()
            elif "id" in (envelope := line.envelope) and "method" not in envelope:
                # an answer to our question that cannot be read
                yield _line_error(envelope["id"], message).model_dump_json()
            else:
                await self._refuse(envelope.get("id"), message)

        await self._wait_for_answers()

    async def _refuse(self, request_id: types.RequestId | None, fault: types.ErrorData) -> None:
        """Answer a line, with its id unless that would answer an open request."""
        request_id = None if request_id in self._open else request_id
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await (await self._answers).send(SessionMessage(_line_error(request_id, fault)))

    async def _request_ended(self, request: types.RequestId) -> None:
        self._open.pop(request, None)
        if not self._is_waiting():
            self._answered.set()

    def _is_waiting(self) -> bool:
        return any(self._open.values())

    async def _wait_for_answers(self) -> None:
        """Wait for the answers to what was read, as long as they are of use to anybody."""
        if self._leave is None or not self._is_waiting():
            return
        self._answered.clear()
        of_file = stat.S_ISREG(os.fstat(self._own_input).st_mode)
        await self._until((self._answered, self._stop), _OF_FILE if of_file else _OF_PIPE)
        if self._is_waiting():
            await self._leave()
            await self._until((self._answered,), _TO_STOP)

    @staticmethod
    async def _until(events: Iterable[asyncio.Event], seconds: float) -> None:
        waiting = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiting:
                waiter.cancel()

    async def _wait_for_stop(self) -> None:
        await self._stop.wait()
        await self._lines.put(None)

    def _read(self, loop: asyncio.AbstractEventLoop, source: int) -> None:
        lines = BoundedLines(MAX_MESSAGE)
        with (
            os.fdopen(source, "rb", buffering=0) as file,
            suppress(OSError, RuntimeError),  # the loop has closed and nobody waits
        ):
            while chunk := file.read(_CHUNK):
                for line in lines.feed(chunk):
                    self._put(loop, line)
            self._put(loop, lines.last())  # the end of the input ends the line
            self._put(loop, None)

    def _put(self, loop: asyncio.AbstractEventLoop, line: Line | None) -> None:
        if not self._has_left:
            asyncio.run_coroutine_threadsafe(self._lines.put(line), loop).result()


def _read(line: Line) -> types.JSONRPCMessage | types.ErrorData:
    """Return the message in a line, or why there is none."""
    if line.cut:
        text = f"a message may have at most {MAX_MESSAGE:,} bytes"
        return types.ErrorData(code=PARSE_ERROR, message=f"Parse error: {text}")
    try:
        message = types.jsonrpc_message_adapter.validate_json(line.data, by_name=False)
        line.data.decode()
    except ValueError:
        try:
            from_json(line.data, allow_inf_nan=False)
        except ValueError:
            text = "Parse error: the line is not valid JSON"
            return types.ErrorData(code=PARSE_ERROR, message=text)
        text = "Invalid request: the line is not a JSON-RPC message"
        return types.ErrorData(code=INVALID_REQUEST, message=text)
    if isinstance(message, types.JSONRPCNotification) and "id" in from_json(line.data):
        text = "Invalid request: an id must be a string or an integer"
        return types.ErrorData(code=INVALID_REQUEST, message=text)
    if ambiguity := ambiguity_of(line.data):
        return types.ErrorData(code=INVALID_REQUEST, message=f"Invalid request: {ambiguity}")
    return message


def _line_error(id_: str | int | None, fault: types.ErrorData) -> types.JSONRPCError:
    """Return the message that takes the place of a skipped line."""
    LOGGER.warning("a line from the client was ignored: %s", fault.message)
    return types.JSONRPCError(jsonrpc="2.0", id=id_, error=fault)
