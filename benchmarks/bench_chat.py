"""200 people at once in the chat, for a minute, against a real uvicorn.

Each one again and again opens a new thread, reads its stream, asks, and reads the answer: a call, and
a text whose pieces are numbered, so that one that is lost, twice or out of order is found. Times are
seconds until the first byte of a stream, and from a question to the first piece of its answer, which
the model takes 0.05 for. Memory is the server's, after each quarter of the time.

Usage: PYTHONPATH=tests python benchmarks/bench_chat.py [PEOPLE [SECONDS]]
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from chat.chat_helpers import serving
from starlette.requests import Request

from toolcrib import ALL, Agent, Caller, tool
from toolcrib.chat import chat_app
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.message import ChatRequest, StreamPart, TextPart

PEOPLE, SECONDS = 200, 60
PIECES, PAUSE = 60, 0.05  # of an answer; twenty pieces a second
REACH = 1.0  # seconds until the first byte, for 95 of 100
PAGE = os.sysconf("SC_PAGE_SIZE")


@tool(visible=ALL)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Counting(ScriptedClient):
    """Asks for a call, then counts aloud, as fast as a model writes."""

    def __init__(self) -> None:
        super().__init__([])

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        if request.messages[-1].role == "user":
            async for part in ScriptedClient([call("add", a=1, b=2)]).stream(request):
                yield part
            return
        said = "".join(f"{n} " for n in range(PIECES))
        for n in range(PIECES):
            await asyncio.sleep(PAUSE)
            yield TextPart(f"{n} ")
        yield await ScriptedClient([said]).chat(request)


def who(request: Request) -> Caller | None:
    return Caller(request.headers["x-user"])


async def serve(url: str) -> None:
    async with serving(chat_app(Agent(Counting(), [add]), store=url, authenticate=who)) as base:
        print(base, flush=True)
        await asyncio.Event().wait()


class Tally:
    """What all people together have seen."""

    def __init__(self) -> None:
        self.opened: list[float] = []
        self.answered: list[float] = []
        self.faults: list[str] = []
        self.operations = 0


async def talk(http: aiohttp.ClientSession, name: str, until: float, tally: Tally) -> None:
    """Ask again and again, each time in a thread of its own."""
    headers = {"x-user": name}
    while time.monotonic() < until:
        async with http.post("/threads", json={}, headers=headers) as made:
            thread = (await made.json())["id"]
        begun = time.monotonic()
        async with http.get(f"/threads/{thread}/stream", headers=headers) as stream:
            await stream.content.readline()
            tally.opened.append(time.monotonic() - begun)
            begun = time.monotonic()
            body = {"text": "Count."}
            async with http.post(
                f"/threads/{thread}/messages", json=body, headers=headers
            ) as asked:
                if asked.status != 202:
                    tally.faults.append(f"{asked.status}: {await asked.text()}")
                    return
            fault = await _follow(stream.content, begun, tally)
            if fault:
                tally.faults.append(fault)


async def _follow(content: aiohttp.StreamReader, begun: float, tally: Tally) -> str:
    """Read an answer to its end; return what is wrong with it."""
    pieces: list[str] = []
    result: Any = None
    async for line in content:
        for operation in json.loads(line.partition(b":")[2]) if line.strip() else ():
            tally.operations += 1
            value, path = operation["value"], operation["path"]
            if path[2:3] == ["parts"] and path[4:] == ["result"]:
                result = value
            elif path[2:3] == ["parts"] and len(path) == 4 and value["kind"] == "text":
                tally.answered.append(time.monotonic() - begun)
                pieces = [value["text"]]
            elif operation["type"] == "append-text" and path[4:] == ["text"]:
                pieces.append(value)
            elif path[2:] == ["status"] and value not in ("running", "completed"):
                return f"a turn has ended as {value}"
            elif path[2:] == ["status"] and value == "completed":
                whole = "".join(pieces) == "".join(f"{n} " for n in range(PIECES))
                return "" if whole and result == 3 else f"{result}, {''.join(pieces)[:80]}"
    return "the stream broke off"


def _megabytes(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(people: int, seconds: float) -> None:
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        server = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--serve", f"sqlite:///{folder}/crib.db",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert server.stdout is not None
        base = (await server.stdout.readline()).decode().strip()
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(base, connector=connector, timeout=timeout) as http:
            until, cpu = time.monotonic() + seconds, _cpu(server.pid)
            talking = asyncio.gather(
                *(talk(http, f"person {n}", until, tally) for n in range(people))
            )
            memory = []
            for _ in range(4):
                await asyncio.sleep(seconds / 4)
                memory.append(_megabytes(server.pid))
            await talking
            cpu = _cpu(server.pid) - cpu
        server.kill()
        await server.wait()
    _print(people, seconds, tally, memory, cpu)


def _print(people: int, seconds: float, tally: Tally, memory: list[float], cpu: float) -> None:
    print(f"{people} people, {seconds:.0f} s")
    print(f"{'answers':<34}{len(tally.answered):>10,}")
    print(f"{'changes sent':<34}{tally.operations:>10,}")
    print(f"{'lost or out of order':<34}{len(tally.faults):>10,}")
    for name, times in (
        ("first byte of a stream", tally.opened),
        ("question to answer", tally.answered),
    ):
        cuts = statistics.quantiles(times, n=20)
        print(f"{name + ', p50 p95 s':<34}{cuts[9]:>10.3f}{cuts[18]:>8.3f}{REACH:>8.1f}")
    print(f"{'server MB, by quarters':<34}" + "".join(f"{each:>8.0f}" for each in memory))
    print(f"{'server CPU s':<34}{cpu:>10.1f}")
    for fault in sorted(set(tally.faults))[:5]:
        print("  ", fault)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(serve(sys.argv[2]))
    else:
        asyncio.run(measure(*map(int, sys.argv[1:3])) if sys.argv[1:] else measure(PEOPLE, SECONDS))
