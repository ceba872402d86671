"""Servers of MCP for tests: the odd one, and those of npm and PyPI that nobody here wrote."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from relayed import relayed

from toolcrib import Approve, Caller, Completed, Failed, ToolCall, ToolRunner
from toolcrib.bridges.mcp import StdioServer
from toolcrib.values.context import CallScope
from toolcrib.values.record import Outcome

ODD = Path(__file__).parent / "mcp_odd_server.py"
RAW = Path(__file__).parent / "mcp_raw_server.py"
NPM = ROOT / "tests" / "mcp" / "node_modules" / ".bin"
MODES = ("legacy", "auto")  # the handshake of before 2026, and what follows it
_started = iter(range(1_000_000))


def odd(log: Path, *options: str) -> StdioServer:
    program, *arguments = relayed(str(ODD), str(log), *options)
    return StdioServer(program, tuple(arguments))


def odd_itself(log: Path, *options: str) -> StdioServer:
    """The same as the very process that is started."""
    return StdioServer(sys.executable, (str(ODD), str(log), *options))


def raw(*mode: str, **environment: str) -> StdioServer:
    """The server that needs no SDK."""
    return StdioServer(sys.executable, ("-S", str(RAW), *mode), environment)


def of_npm(name: str, *arguments: str) -> StdioServer:
    program = NPM / f"mcp-server-{name}"
    if not program.exists():
        pytest.skip("the MCP servers of npm: run `make mcp-servers`")
    return StdioServer(str(program), arguments)


def of_pypi(name: str, *arguments: str) -> StdioServer:
    return StdioServer(sys.executable, ("-m", name, *arguments))


def of_sqlite(*arguments: str) -> StdioServer:
    program = ROOT / ".mcp-sqlite" / "bin" / "mcp-server-sqlite"
    if not program.exists():
        pytest.skip("the MCP server of SQLite: run `make mcp-servers`")
    return StdioServer(str(program), arguments)


def asked(log: Path) -> list[str]:
    """What the odd server was asked, and how it was started."""
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


async def until(log: Path, line: str, seconds: float = 10.0) -> None:
    """Wait until the odd server has noted a line."""
    async with asyncio.timeout(seconds):
        while line not in asked(log):  # noqa: ASYNC110  it is another process
            await asyncio.sleep(0.01)


async def approves(_request: object) -> Approve:
    return Approve(by="ada")


async def made(
    runner: ToolRunner, tool: str, scope: CallScope | None = None, /, **arguments: Any
) -> Outcome:
    asked_for = ToolCall(f"call_{next(_started)}", tool, json.dumps(arguments))
    return await runner.exec(asked_for, caller=Caller("ada"), scope=scope)


async def value(runner: ToolRunner, tool: str, /, **arguments: Any) -> Any:
    outcome = await made(runner, tool, **arguments)
    assert isinstance(outcome, Completed), outcome
    return outcome.value


async def failure(runner: ToolRunner, tool: str, /, **arguments: Any) -> Failed:
    outcome = await made(runner, tool, **arguments)
    assert isinstance(outcome, Failed), outcome
    return outcome


class HttpServerProcess:
    """The odd server behind HTTP, on one port for as many lives as it has."""

    def __init__(self, log: Path, *options: str) -> None:
        self.log = log
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        self.end()
        before = len(asked(self.log))
        command = [sys.executable, str(ODD), str(self.log), "--http", str(self.port)]
        paths = {"PYTHONPATH": str(ROOT / "tests")}
        self._process = subprocess.Popen([*command, *self._options], env=os.environ | paths)
        ends = time.monotonic() + 30
        while time.monotonic() < ends:
            told = [line for line in asked(self.log)[before:] if line.startswith("http ")]
            if told:
                self.port = int(told[0].split()[1])
                return
            time.sleep(0.02)
        raise AssertionError("the server did not start")

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def by_http(log: Path, *options: str) -> Iterator[HttpServerProcess]:
    server = HttpServerProcess(log, *options)
    try:
        yield server
    finally:
        server.end()


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        return state != "Z"
    return False
