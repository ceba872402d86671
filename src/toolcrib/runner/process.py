"""Runs a blocking tool in a fresh process, which ends with its call, whatever happened to it.

Rule: the process leads a process group. When the call is over, with a result or without one, the
whole group is killed and its leader waited for, so that no process which the tool started in its
group survives. What it prints is discarded, because it may hold secrets.

Parent and process exchange JSON. The parent sends one line, the request, and nothing more; the end
of that pipe means that the parent is gone. The process answers in frames (a kind, a length, a JSON
text): any number of parts, then a result, content or an ending. A length over the limit is refused
before the body is read.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, ClassVar, Literal, TypeAlias, cast

import msgspec
from pydantic_core import to_json

from toolcrib.errors import CapabilityError, MissingExtraError, OutcomeUnknown, ToolError
from toolcrib.failures import Explained
from toolcrib.runner.execute import until_done
from toolcrib.runner.output import PathStep, Unusable, read_json, too_large
from toolcrib.tools import Tool
from toolcrib.values.call import Hydrated
from toolcrib.values.content import Part, ToolContent
from toolcrib.values.context import CallContext
from toolcrib.values.json import Redacted, sha256_hex

_CHILD_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1:]; del sys.argv[1:]; "
    "from toolcrib.runner.child import main; main()"
)

# Set in a tool's process while it loads the tool's module: a module that runs its tools on import
# would start a process that loads the module, and so on.
while_loading: Callable[[], None] | None = None


async def run_in_process(
    tool: Tool[..., Any], hydrated: Hydrated, context: CallContext, max_bytes: int
) -> Any:
    """Return the tool's value as JSON. Raises ProcessFailed, Unusable, and the author's ToolError.

    The process starts a new Python, imports the tool's module, and builds the arguments again from
    what was sent.
    """
    if while_loading is not None:
        while_loading()
    request = msgspec.json.encode(_request(tool, hydrated, context, max_bytes))
    # those that this Python was started with (`-O`, …), as multiprocessing gives them
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
    protocol = _ParentProtocol(context, max_bytes)
    transport, _ = await asyncio.get_running_loop().subprocess_exec(
        lambda: protocol,
        sys.executable,
        *flags,
        "-c",
        _CHILD_PROGRAM,
        *[path for path in sys.path if isinstance(path, str)],
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        start_new_session=True,
    )
    try:
        to_child = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
        to_child.write(request + b"\n")
        result = await protocol.outcome
    except GeneratorExit:
        protocol.kill()  # the loop is gone: nothing can be awaited any more
        raise
    except BaseException:
        await protocol.end()
        raise
    await protocol.end()
    if isinstance(result, Exception):
        raise result
    return result


def _request(
    tool: Tool[..., Any], hydrated: Hydrated, context: CallContext, max_bytes: int
) -> ProcessRequest:
    function = tool.__wrapped__
    module, spec = sys.modules.get(function.__module__), None
    if function.__module__ == "__main__":
        spec = getattr(module, "__spec__", None)  # set for `python -m name`
    return ProcessRequest(
        module=function.__module__ if spec is None else spec.name,
        qualname=function.__qualname__,
        file=os.path.abspath(getattr(module, "__file__", None) or ""),  # noqa: PTH100
        input_schema=tool.definition.input_schema_json,
        arguments=to_json(hydrated.building.sent).decode(),
        pinned=to_json(hydrated.building.pinned).decode(),
        effective_sha256=sha256_hex(hydrated.canonical),
        call_id=context.call_id,
        run_id=context.run_id,
        idempotency_key=context.idempotency_key,
        caller=context.caller.id,
        roles=tuple(context.caller.roles),
        deadline=context.deadline,
        max_bytes=max_bytes,
    )


class _ParentProtocol(asyncio.SubprocessProtocol):
    """The parent's side of the two pipes. `outcome` is the value, or the exception to raise."""

    _transport: asyncio.SubprocessTransport

    def __init__(self, context: CallContext, max_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[Any] = loop.create_future()
        self._closed: asyncio.Future[None] = loop.create_future()
        self._exited = False
        self._context = context
        self._frames = PipeFrames(max_bytes)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, _fd: int, data: bytes) -> None:
        if self.outcome.done():
            return
        try:
            for kind, body in self._frames.feed(data):
                self._handle_frame(kind, body)
        except (msgspec.DecodeError, UnicodeError):
            self._settle(ProcessFailed(GARBLED))
        except Exception as error:  # noqa: BLE001  asyncio would log it, with what was received
            self._settle(error)

    def _handle_frame(self, kind: bytes, body: bytearray) -> None:
        """Handle one frame. Raises Unusable, and what an observer raises."""
        if kind == PART:
            part = read_json(body)
            if not self.outcome.done():
                self._context.progress(part)
        elif kind == RESULT:
            self._settle(read_json(body))
        elif kind == CONTENT:
            content = msgspec.json.decode(body, type=ContentResult)
            self._settle(ToolContent(read_json(bytes(content.value)), content.parts))
        else:
            self._settle(error_of(msgspec.json.decode(body, type=Ending)))

    def pipe_connection_lost(self, fd: int, _error: Exception | None) -> None:
        if fd == 1 and not self._exited:
            self.kill()  # it has ended, or will never answer

    def process_exited(self) -> None:
        self.kill()  # whatever it left running
        code = self._transport.get_returncode() or 0
        ending = f"ended with status {code}" if code >= 0 else f"was ended by {_signal(-code)}"
        self._settle(ProcessFailed(f"its process {ending} and gave no result"))
        self._exited = True
        self._transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        self._closed.set_result(None)

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):  # no process is left
            os.killpg(self._transport.get_pid(), signal.SIGKILL)

    async def end(self) -> None:
        """Kill all processes that are left; return when they are gone and the pipes closed.

        A cancellation is raised only after that.
        """
        if not self._exited:
            self.kill()
        cancelled = await until_done(self._closed)  # after SIGKILL this takes little time
        if cancelled is not None:
            raise cancelled

    def _settle(self, result: object) -> None:
        if not self.outcome.done():
            self.outcome.set_result(result)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


PART, RESULT, CONTENT, ENDING = b"p", b"r", b"c", b"e"
_FRAME_HEADER = struct.Struct(">cQ")
_ENDING_BYTES = 1_048_576  # an ending is a sentence, whatever the limit for results


class ProcessRequest(Redacted, msgspec.Struct, frozen=True):
    """Says which function to run, and for what call; `file` is where its module was loaded from.

    `arguments` and `pinned` are JSON text: what was sent, already validated, and what default
    factories made for this call. The arguments that the process builds from them must have the
    digest `effective_sha256`, or the tool does not run. `deadline` is on the clock of
    `time.monotonic()`, which all processes of a machine share.
    """

    redacted: ClassVar[tuple[str, ...]] = ("arguments", "pinned")

    module: str
    qualname: str
    file: str
    input_schema: str | None
    arguments: str
    pinned: str
    effective_sha256: str
    call_id: str
    run_id: str
    idempotency_key: str
    caller: str
    roles: tuple[str, ...]
    deadline: float | None
    max_bytes: int


class ContentResult(msgspec.Struct, frozen=True):
    """A result with content: the text of its structured value, and its parts."""

    value: msgspec.Raw
    parts: tuple[Part, ...]


class SafeText(msgspec.Struct, frozen=True, tag="told"):
    """The text of a ToolError of this `kind`: no other exception's text leaves the process."""

    text: str
    retryable: bool | None
    kind: Literal["ToolError", "CapabilityError", "OutcomeUnknown"]
    model_text: str = ""


class ExtraMissing(msgspec.Struct, frozen=True, tag="missing"):
    """The tool raised MissingExtraError."""

    extra: str
    feature: str


class NoResult(msgspec.Struct, frozen=True, tag="bad"):
    """The value is not a result; `kind` is the type of what cannot be used, `path` leads to it."""

    why: str
    kind: str = ""
    path: tuple[tuple[str, bool], ...] = ()


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """The tool gave no result. An exception's class and place are told; its text stays there."""

    why: str


Ending: TypeAlias = SafeText | ExtraMissing | NoResult | Broken
UNGUARDED = Broken(
    "its module calls tools with subprocess=True while it is loaded, and the tool's"
    ' process loads it too: keep those calls under `if __name__ == "__main__":`'
)


class ProcessFailed(Explained):
    """A tool's process gave no result; the text says how it ended, and nothing of what it held."""


GARBLED = "its process sent data that cannot be read"
_ERRORS_WITH_TEXT = {kind.__name__: kind for kind in (ToolError, CapabilityError, OutcomeUnknown)}


def error_of(ending: Ending) -> Exception:
    """Return the exception that the tool would have raised in this process."""
    match ending:
        case SafeText():
            kind = _ERRORS_WITH_TEXT[ending.kind]
            return kind(ending.text, retryable=ending.retryable, model_text=ending.model_text)
        case ExtraMissing():
            return MissingExtraError(ending.extra, ending.feature)
        case NoResult():
            return Unusable(ending.why, ending.kind, tuple(PathStep(*step) for step in ending.path))
        case Broken():
            return ProcessFailed(ending.why)


def frame(kind: bytes, body: bytes) -> bytes:
    return _FRAME_HEADER.pack(kind, len(body)) + body


class PipeFrames:
    """Turns the bytes of a pipe into whole frames."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytearray]]:
        """Yield whole frames.

        Raises Unusable if a frame announces more than the limit, and ProcessFailed for a malformed
        frame.
        """
        self._buffer += data
        while len(self._buffer) >= _FRAME_HEADER.size:
            kind, length = _FRAME_HEADER.unpack_from(self._buffer)
            if kind not in (PART, RESULT, CONTENT, ENDING) or (
                kind == ENDING and length > _ENDING_BYTES
            ):
                raise ProcessFailed(GARBLED)
            if length > self._max_bytes and kind != ENDING:
                raise too_large(self._max_bytes)
            end = _FRAME_HEADER.size + length
            if len(self._buffer) < end:
                return
            body = self._buffer[_FRAME_HEADER.size : end]
            del self._buffer[:end]
            yield kind, body
