"""Another system, run beside ours: a command that is given tools and requests as JSON lines.

Rule: a peer is never trusted. It has a time limit for every answer, each answer is checked before it
counts, and when it fails it is that peer's row that says so.

The protocol, one JSON object a line, UTF-8:

    → {"tools": [{"name", "description", "input_schema"}, …]}
    ← {"build_ms": 12.5}                                   CPU milliseconds; other keys are not read
    → {"query": "…", "top": 10}
    ← {"ranking": ["name", …], "cpu_ms": 0.8}              at most `top` names, best first
    … until stdin ends
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import tempfile
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from time import perf_counter
from typing import IO, Any, cast

import msgspec

from toolcrib.cli.options import UnusableError
from toolcrib.cli.render import printable, shortened
from toolcrib.errors import ToolcribError
from toolcrib.pick.evaluation import DEPTH, Answer
from toolcrib.values.definition import HasDefinition

_MAX_LINE = 16 * 1024 * 1024
_MAX_MS = 1e9
_LAST_WORDS = 4096
_FAREWELL = 5.0


class PeerError(ToolcribError):
    """A peer that could not be started, died, was silent for too long or gave no usable answer."""


class Beside(msgspec.Struct, frozen=True):
    """`NAME=COMMAND` or `NAME:N=COMMAND`: `limit` is N, the questions of a set that it is asked."""

    name: str
    command: tuple[str, ...]
    limit: int | None = None


def parse_beside(given: str) -> Beside:
    """Raises UnusableError."""
    label, equals, command = given.partition("=")
    name, colon, limit = label.strip().partition(":")
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UnusableError(f"--beside {given}: {str(error).lower()}") from None
    if not equals or not name or not words:
        raise UnusableError(f"--beside {given}: give NAME=COMMAND, or NAME:N=COMMAND")
    if colon and not (limit.isascii() and limit.isdigit() and int(limit)):
        raise UnusableError(f"--beside {given}: after the colon, give a number of questions")
    return Beside(name, words, int(limit) if colon else None)


class Peer:
    """A peer that runs; `patience`, in seconds, bounds each of its answers."""

    def __init__(
        self, process: Process, tools: Sequence[HasDefinition], said: IO[bytes], patience: float
    ) -> None:
        self._process = process
        self._stdin = cast("StreamWriter", process.stdin)  # both are pipes
        self._stdout = cast("StreamReader", process.stdout)
        self._tools = [_plain(tool) for tool in tools]
        self._names = frozenset(tool["name"] for tool in self._tools)
        self._said = said
        self._patience = patience

    async def build(self) -> float:
        """Hands over the tools; the CPU milliseconds that the peer says it took."""
        return _milliseconds(await self._exchange({"tools": self._tools}), "build_ms")

    async def answer(self, query: str) -> Answer:
        """One request; the wall clock includes the pipe. Raises PeerError."""
        wall = perf_counter()
        found = await self._exchange({"query": query, "top": DEPTH})
        wall = perf_counter() - wall
        ranking = found.get("ranking")
        if not isinstance(ranking, list) or not all(isinstance(name, str) for name in ranking):
            raise PeerError(f"its 'ranking' is no list of names: {_shown(found)}")
        if len(ranking) > DEPTH or len(set(ranking)) < len(ranking):
            raise PeerError(
                f"its ranking has more than {DEPTH} names, or one twice: {_shown(found)}"
            )
        for name in ranking:
            if name not in self._names:
                raise PeerError(f"it ranks {name[:80]!r}, which is not among the tools")
        return Answer(tuple(ranking), _milliseconds(found, "cpu_ms"), wall * 1e3)

    async def _exchange(self, sent: object) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._patience):
                with suppress(ConnectionError):  # it died: its last words say more
                    self._stdin.write(json.dumps(sent).encode() + b"\n")
                    await self._stdin.drain()
                line = await self._stdout.readline()
        except TimeoutError:
            raise PeerError(f"it gave no answer within {self._patience:g} s") from None
        except ValueError:
            raise PeerError(f"its answer has more than {_MAX_LINE} bytes on a line") from None
        if not line.endswith(b"\n"):
            raise PeerError(await self._end())
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise PeerError(
                f"its answer is no JSON object: {_shown(line.decode(errors='replace').strip())}"
            )
        return found

    async def _end(self) -> str:
        ended = "it closed its stdout"
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                ended = f"it ended (exit code {await self._process.wait()})"
        self._said.seek(0, 2)
        self._said.seek(max(0, self._said.tell() - _LAST_WORDS))
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        last = f"; its last words: {lines[-1]}" if lines else ""
        return f"{ended} before it answered{last}"


@asynccontextmanager
async def started(
    beside: Beside, tools: Sequence[HasDefinition], *, patience: float
) -> AsyncIterator[Peer]:
    """The peer's process, killed at the end with all that it began: who lives on holds its pipes.

    Raises PeerError if it cannot be started.
    """
    with tempfile.TemporaryFile() as said:
        try:
            process = await asyncio.create_subprocess_exec(
                *beside.command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=said,
                limit=_MAX_LINE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise PeerError(f"{beside.command[0]} cannot be run ({reason})") from None
        try:
            yield Peer(process, tools, said, patience)
        finally:
            with suppress(ProcessLookupError, PermissionError):  # nobody is left
                os.killpg(process.pid, signal.SIGKILL)
            await _ended(process)


async def _ended(process: Process) -> None:
    """Until its pipes are closed, too, but for no long: who left its session may still hold them."""
    stdin, stdout = cast("StreamWriter", process.stdin), cast("StreamReader", process.stdout)
    stdin.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(_FAREWELL):
            while await stdout.read(_MAX_LINE):
                pass
            await process.wait()


def _plain(tool: HasDefinition) -> dict[str, Any]:
    definition = tool.get_definition()
    return {
        "name": definition.name,
        "description": definition.description,
        "input_schema": definition.input_schema or {"type": "object"},
    }


def _milliseconds(found: dict[str, Any], key: str) -> float:
    value = found.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MAX_MS:
        return float(value)
    raise PeerError(f"its {key!r} is no number of milliseconds: {_shown(found)}")


def _shown(found: object) -> str:
    return shortened(printable(found if isinstance(found, str) else json.dumps(found)))
