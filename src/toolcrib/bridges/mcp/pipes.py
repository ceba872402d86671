"""The lines of standard input, which can be left at any time: a thread that reads cannot be stopped.

Rule: while it is open, nothing else in the process, and no program that it starts, reads what the
client sends. A line that is no message is answered as an error, logged, and passed over; so is one of
more than `MAX_LINE` bytes, of which no more than its ends are kept. What has an id is no notification,
whatever its id is. Such an answer names a request only where the line shows it to be one, by an id
that can be written: to the client, the id of its own answer is another request's.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR
from pydantic_core import from_json

LOGGER = logging.getLogger("toolcrib.mcp")
MAX_LINE = 8 * 1_048_576
_CHUNK = 65_536
_EDGE = 4_096  # bytes at each end of a line, in which it says what it is
_MEMBER = r'"(jsonrpc|id|method)"\s*:\s*("(?:[^"\\]|\\.){0,200}"|-?\d{1,18})'
_HEAD = re.compile(rf"\s*\{{\s*(?:{_MEMBER}\s*,\s*)*")
_TAIL = re.compile(rf"(?:,\s*{_MEMBER}\s*)+\}}\s*$")
_ONE = re.compile(_MEMBER)
_TEXT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?$)', re.DOTALL)  # also one without an end


class Writes(Protocol):
    """A stream of messages to the client."""

    async def send(self, item: SessionMessage, /) -> None: ...


class _Line(NamedTuple):
    """A line as it came, or the two ends of one that was `cut`."""

    data: bytes
    cut: bool = False


class StandardInput:
    """An async iterator over the messages of standard input, a line each; it ends with it, and where
    `stop` is set. What is no message is answered by the stream that `answer_by` is given."""

    def __init__(self, stop: asyncio.Event | None = None) -> None:
        self._stop = stop
        self._lines: asyncio.Queue[_Line | None] = asyncio.Queue(64)
        self._answers: asyncio.Future[Writes] = asyncio.get_running_loop().create_future()
        self._own = -1
        self._watching: asyncio.Task[None] | None = None
        self._left = False

    async def __aenter__(self) -> Self:
        self._own = os.dup(0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop, self._own), daemon=True).start()
        if self._stop is not None:
            self._watching = asyncio.create_task(self._watch(self._stop))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._left = True
        if self._watching is not None:
            self._watching.cancel()
        os.dup2(self._own, 0)  # it stays open: the thread may wait in it

    def answer_by(self, stream: Writes) -> None:
        self._answers.set_result(stream)

    async def __aiter__(self) -> AsyncIterator[str]:
        while (line := await self._lines.get()) is not None:
            if not line.data.strip():
                continue
            fault = _fault(line)
            if fault is None:
                yield line.data.decode()
                continue
            LOGGER.warning("a line of the client was passed over: %s", fault.message)
            named = _named(line)
            if "id" in named and "method" not in named:  # an answer to what we asked: it is none
                yield _error(named["id"], fault).model_dump_json()
                continue
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                answer = SessionMessage(_error(named.get("id"), fault))
                await (await self._answers).send(answer)

    async def _watch(self, stop: asyncio.Event) -> None:
        await stop.wait()
        await self._lines.put(None)

    def _read(self, loop: asyncio.AbstractEventLoop, source: int) -> None:
        held, cut = bytearray(), False
        with suppress(OSError, RuntimeError):  # the loop has closed, and nobody waits any more
            while chunk := os.read(source, _CHUNK):
                *ends, rest = chunk.split(b"\n")
                for end in ends:
                    held += end
                    self._put(loop, _Line(bytes(held), cut or len(held) > MAX_LINE))
                    held, cut = bytearray(), False
                held += rest
                if cut or len(held) > MAX_LINE:
                    cut = True
                    del held[_EDGE:-_EDGE]
            self._put(loop, None)

    def _put(self, loop: asyncio.AbstractEventLoop, line: _Line | None) -> None:
        if not self._left:
            asyncio.run_coroutine_threadsafe(self._lines.put(line), loop).result()


def _fault(line: _Line) -> types.ErrorData | None:
    """Return why a line is no message; None for one that is."""
    if line.cut:
        told = f"a message has at most {MAX_LINE:,} bytes"
        return types.ErrorData(code=PARSE_ERROR, message=f"Parse error: {told}")
    try:
        message = types.jsonrpc_message_adapter.validate_json(line.data, by_name=False)
        line.data.decode()
    except ValueError:
        try:
            from_json(line.data, allow_inf_nan=False)
        except ValueError:
            told = "Parse error: the line is no JSON that can be read"
            return types.ErrorData(code=PARSE_ERROR, message=told)
        told = "Invalid request: the line is no message of JSON-RPC"
        return types.ErrorData(code=INVALID_REQUEST, message=told)
    if isinstance(message, types.JSONRPCNotification) and "id" in from_json(line.data):
        told = "Invalid request: an id is a text or an integer"
        return types.ErrorData(code=INVALID_REQUEST, message=told)
    return None


def _named(line: _Line) -> dict[str, Any]:
    """Return what a line says outside of its contents, of its `id` and `method`: at its ends."""
    text = line.data.decode("utf-8", "surrogateescape")  # what is no text cannot be written either
    found: list[tuple[str, str]] = []
    outside = _TEXT.sub("", text)
    if line.cut or outside.count("{") == outside.count("}"):  # else its end may be within
        tail = _TAIL.search(text[-_EDGE:])
        found += _ONE.findall("" if tail is None else tail[0])
    head = _HEAD.match(text[:_EDGE])
    found += _ONE.findall("" if head is None else head[0])
    named = {}
    for name, value in found:
        with suppress(ValueError):  # it cannot be read, or not be written again
            read = json.loads(value)
            str(read).encode()
            named[name] = read
    return named


def _error(id_: str | int | None, fault: types.ErrorData) -> types.JSONRPCError:
    return types.JSONRPCError(jsonrpc="2.0", id=id_, error=fault)
