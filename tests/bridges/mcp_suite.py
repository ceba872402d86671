"""The official MCP conformance suite of npm, run against a server: what it says of each scenario."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

MCP = Path(__file__).parents[1] / "mcp" / "node_modules"
NODE = MCP / ".bin" / "node"  # 22: the suite needs it
OURS = (sys.executable, str(Path(__file__).parent / "mcp_conformance_server.py"))
_FOLDER = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[0-9-]+Z")


class Judgement(NamedTuple):
    """The checks of a scenario by what they ended as."""

    passed: tuple[str, ...]
    failed: tuple[str, ...]
    warned: tuple[str, ...]


def suite(version: str) -> Path | None:
    """Return the suite, if npm has brought it: the released one, or for a version the newer one."""
    name = "conformance-next" if version else "conformance"
    found = MCP / "@modelcontextprotocol" / name / "dist" / "index.js"
    return found if found.exists() and (NODE.exists() or shutil.which("node")) else None


@contextmanager
def serving(command: Sequence[str], log: Path) -> Iterator[str]:
    """Start a server with a port that is free, wait for it, and end it; give its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with log.open("wb") as out:
        server = subprocess.Popen([*command, str(port)], stdout=out, stderr=out)
    try:
        _wait(port, server)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.terminate()
        server.wait(10)


def _wait(port: int, server: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + 60
    while time.monotonic() < ends and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("the server has not started")


def judged(url: str, into: Path, version: str) -> dict[str, Judgement]:
    """Run a suite against a server; return what it says of each scenario.

    Without a version it is the released one, with all that it has; `tasks` is what the newer one has
    for that extension.
    """
    if version == "tasks":
        listed = _run(version, "list").stdout.decode()
        for scenario in sorted(set(re.findall(r"\btasks-[a-z-]+", listed))):
            _run(version, "server", "--url", url, "-o", str(into), "--scenario", scenario)
    else:
        options = ("--spec-version", version) if version else ()
        _run(version, "server", "--url", url, "-o", str(into), "--suite", "all", *options)
    found: dict[str, Judgement] = {}
    for file in sorted(into.glob("server-*/checks.json")):
        name = _FOLDER.fullmatch(file.parent.name)
        assert name is not None
        checks = json.loads(file.read_text(encoding="utf-8"))
        by = {
            status: tuple(one["id"] for one in checks if one["status"] == status)
            for status in ("SUCCESS", "FAILURE", "WARNING")
        }
        found[name[1]] = Judgement(by["SUCCESS"], by["FAILURE"], by["WARNING"])
    return found


def _run(version: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    program = suite(version)
    assert program is not None
    node = str(NODE) if NODE.exists() else "node"
    return subprocess.run(  # which ends with 1 where anything fails
        [node, str(program), *arguments], check=False, capture_output=True, timeout=300
    )
