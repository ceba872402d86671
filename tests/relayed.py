"""Python programs that others start, at the price of a fork: servers of MCP, which import for long.

`relayed(…)` is a command for `python …`. It starts `relay.py`, which imports next to nothing and hands
its streams to a host; that has imported what servers need, and forks the program. The two end together.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path
from typing import Any

from becoming import become

IMPORTED = [
    *("mcp.server.auth.provider", "mcp.server.lowlevel", "mcp.server.stdio"),
    *("mcp.server.subscriptions", "mcp_server_time.server", "uvicorn"),
]
RELAY = Path(__file__).parent / "relay.py"
FORKS = multiprocessing.get_context("fork")


def relayed(*arguments: str) -> list[str]:
    return [sys.executable, "-IS", str(RELAY), _address(), *arguments]


@functools.cache
def _address() -> str:
    """Start the host of this process, which ends when the process does."""
    address = str(Path(tempfile.mkdtemp(prefix="toolcrib-relay-")) / "socket")
    host = subprocess.Popen(
        [sys.executable, __file__, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    atexit.register(host.communicate)
    assert host.stdout is not None
    assert host.stdout.readline() == b"ready\n"
    return address


class Program:
    """A program that a relay has asked for."""

    def __init__(self, relay: socket.socket) -> None:
        self.relay = relay
        size, streams, _, _ = socket.recv_fds(relay, 4, 3)
        asked = relay.makefile("rb").read(int.from_bytes(size, "big"))
        arguments, cwd, env = json.loads(asked)
        self.process = FORKS.Process(
            target=become, args=(arguments, cwd, env, streams), daemon=True
        )
        self.process.start()
        for stream in streams:
            os.close(stream)

    def ended(self) -> None:
        """Tell the relay how; where that is gone, end the program."""
        if self.process.exitcode is None:
            self.process.kill()
        self.process.join()
        with self.relay, suppress(OSError):
            self.relay.sendall(str(self.process.exitcode).encode())


def serve(address: str) -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    programs: dict[Any, Program] = {}
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        os.write(1, b"ready\n")
        while True:
            for ready in connection.wait([0, listening, *programs]):
                if ready == 0:
                    return shutil.rmtree(Path(address).parent)
                if ready is listening:
                    begun = Program(listening.accept()[0])
                    programs |= dict.fromkeys((begun.relay, begun.process.sentinel), begun)
                elif over := programs.get(ready):
                    del programs[over.relay], programs[over.process.sentinel]
                    over.ended()


if __name__ == "__main__":
    serve(sys.argv[1])
