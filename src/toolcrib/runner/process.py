"""A blocking tool in a fresh process of its own, which ends with its call, whatever became of it.

The process leads a process group. When the call is over, with a result or without one, the whole group
is killed and its leader waited for: no process that the tool started in its group goes on. What it
prints goes nowhere: it may hold secrets.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import msgspec
from pydantic_core import to_json

from toolcrib.runner.execute import until_done
from toolcrib.runner.output import read_json
from toolcrib.runner.pipe import (
    GARBLED,
    PART,
    RESULT,
    Ending,
    Frames,
    ProcessFailed,
    Request,
    error_of,
)
from toolcrib.tools import Tool
from toolcrib.values.call import Hydrated
from toolcrib.values.context import CallContext
from toolcrib.values.json import sha256_hex

_START = (
    "import sys; sys.path[:] = sys.argv[1:]; del sys.argv[1:]; "
    "from toolcrib.runner.child import main; main()"
)

# In a tool's process, as long as it loads the tool's module: a program that ran its tools there would
# start a process that loads the program, and so on.
while_loading: Callable[[], None] | None = None


async def run_in_process(
    tool: Tool[..., Any], hydrated: Hydrated, context: CallContext, max_bytes: int
) -> Any:
    """The tool's value, as JSON has it. Raises ProcessFailed, Unusable, and what the author says.

    The process builds the arguments anew, of what was sent. It is a Python that starts, and imports
    the tool's module.
    """
    if while_loading is not None:
        while_loading()
    request = msgspec.json.encode(_request(tool, hydrated, context, max_bytes))
    talk = _Talk(context, max_bytes)
    transport, _ = await asyncio.get_running_loop().subprocess_exec(
        lambda: talk,
        sys.executable,
        *_flags(),
        "-c",
        _START,
        *[path for path in sys.path if isinstance(path, str)],
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        start_new_session=True,
    )
    try:
        to_child = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
        to_child.write(request + b"\n")
        found = await talk.outcome
    except GeneratorExit:
        talk.kill()  # the loop is gone: nothing can be awaited any more
        raise
    except BaseException:
        await talk.end()
        raise
    await talk.end()
    if isinstance(found, Exception):
        raise found
    return found


def _flags() -> list[str]:
    """Those that this Python was started with (`-O`, `-W`, `-X`, `-I`), as multiprocessing does it."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
    return flags


def _request(
    tool: Tool[..., Any], hydrated: Hydrated, context: CallContext, max_bytes: int
) -> Request:
    function = tool.__wrapped__
    module, spec = sys.modules.get(function.__module__), None
    if function.__module__ == "__main__":
        spec = getattr(module, "__spec__", None)  # of `python -m name`
    return Request(
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


class _Talk(asyncio.SubprocessProtocol):
    """The parent's side of the two pipes. `outcome` is the value, or the exception to raise."""

    _transport: asyncio.SubprocessTransport

    def __init__(self, context: CallContext, max_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[Any] = loop.create_future()
        self._closed: asyncio.Future[None] = loop.create_future()
        self._exited = False
        self._context = context
        self._frames = Frames(max_bytes)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, _fd: int, data: bytes) -> None:
        if self.outcome.done():
            return
        try:
            for kind, body in self._frames.feed(data):
                self._take(kind, body)
        except (msgspec.DecodeError, UnicodeError):
            self._settle(ProcessFailed(GARBLED))
        except Exception as wrong:  # noqa: BLE001  asyncio would log it, with what was received
            self._settle(wrong)

    def _take(self, kind: bytes, body: bytearray) -> None:
        """Raises Unusable, and what whoever watches raises."""
        if kind == PART:
            part = read_json(body)
            if not self.outcome.done():
                self._context.progress(part)
        elif kind == RESULT:
            self._settle(read_json(body))
        else:
            self._settle(error_of(msgspec.json.decode(body, type=Ending)))

    def pipe_connection_lost(self, fd: int, _error: Exception | None) -> None:
        if fd == 1 and not self._exited:
            self.kill()  # it has ended, or will never answer

    def process_exited(self) -> None:
        self.kill()  # whom it left behind
        code = self._transport.get_returncode() or 0
        how = f"ended with status {code}" if code >= 0 else f"was ended by {_signal(-code)}"
        self._settle(ProcessFailed(f"its process {how} and gave no result"))
        self._exited = True
        self._transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        self._closed.set_result(None)

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):  # nobody is left
            os.killpg(self._transport.get_pid(), signal.SIGKILL)

    async def end(self) -> None:
        """Kill whoever is left; return when they are gone and the pipes closed, cancelled or not."""
        if not self._exited:
            self.kill()
        cancelled = await until_done(self._closed)  # SIGKILL leaves little to wait for
        if cancelled is not None:
            raise cancelled

    def _settle(self, found: object) -> None:
        if not self.outcome.done():
            self.outcome.set_result(found)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
