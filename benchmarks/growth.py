"""How toolcrib grows: agents, turns, tools, results and records, next to their floors.

    python benchmarks/growth.py [--svg FILE] [--json FILE] [--records N]

CPU milliseconds, the median of three rounds that take turns with the floor's. Agents and turns are
those of `bench_conversations.py`. A request with many tools is encoded for a client that knows them,
where the floor dumps them by orjson. A result of N MB is a list of texts that goes through a call; the
floor dumps it once. Records are entries of a log in SQLite, of which a filter finds none.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import msgspec
import orjson
from bench_conversations import encoding, turn
from chart import Panel, curves

from toolcrib import ALL, Completed, Tool, ToolCall, ToolRunner, tool
from toolcrib.audit import AuditFilter, AuditLog
from toolcrib.testing import MemorySink
from toolcrib.values.message import ChatRequest, Message
from toolcrib.wire import Memo, encode

AGENTS = (1, 8, 64, 512)
TURNS = (30, 300, 3_000)
TOOLS = (10, 100, 1_000)
MEGABYTES = (1, 10, 100)
ROUNDS = 3
Figures = dict[str, list[tuple[float, float]]]


async def compared(
    sizes: tuple[int, ...],
    floor: Callable[[int], Awaitable[float]],
    ours: Callable[[int], Awaitable[float]],
) -> Figures:
    """Return the medians of rounds that take turns."""
    found: Figures = {"floor": [], "toolcrib": []}
    for size in sizes:
        pairs = [(await floor(size), await ours(size)) for _ in range(ROUNDS)]
        for name, figures in zip(found, zip(*pairs, strict=True), strict=True):
            found[name].append((size, median(figures)))
    return found


async def timed(work: Callable[[], Awaitable[object]], repeats: int = 1) -> float:
    started = time.process_time()
    for _ in range(repeats):
        await work()
    return (time.process_time() - started) * 1e3 / repeats


async def agents() -> Figures:
    async def apart(count: int) -> float:
        return await turn(count, together=False)

    async def together(count: int) -> float:
        return await turn(count, together=True)

    return await compared(AGENTS, apart, together)


async def turns() -> Figures:
    found: Figures = {"floor": [], "toolcrib": []}
    for count in TURNS:
        floor, ours, _ = encoding(count)
        found["floor"].append((count, floor))
        found["toolcrib"].append((count, ours))
    return found


def _by_hand(made: Tool[..., Any]) -> dict[str, Any]:
    d = made.definition
    function = {"name": d.name, "description": d.description, "parameters": d.input_schema}
    return {"type": "function", "function": function}


async def tools() -> Figures:
    def made(count: int) -> list[Tool[..., Any]]:
        def make(number: int) -> Callable[..., dict[str, int]]:
            def look_up(query: str, limit: int = 10) -> dict[str, int]:
                return {query: limit}

            look_up.__name__ = look_up.__qualname__ = f"look_up_{number}"
            look_up.__doc__ = f"Look something up in shelf {number}, by its name or a part of it."
            return look_up

        return [tool(visible=ALL)(make(number)) for number in range(count)]

    known = {count: made(count) for count in TOOLS}
    plain = {count: [_by_hand(t) for t in known[count]] for count in TOOLS}
    memos = {count: Memo() for count in TOOLS}

    async def ours(count: int) -> float:
        request = ChatRequest((Message.user("Hello."),), tuple(known[count]))

        async def once() -> object:
            return encode("openai-chat", request, model="m", memo=memos[count])

        await once()
        return await timed(once, 20)

    async def floor(count: int) -> float:
        async def once() -> object:
            return orjson.dumps({"model": "m", "tools": plain[count]})

        return await timed(once, 20)

    return await compared(TOOLS, floor, ours)


async def results() -> Figures:
    given: dict[int, list[str]] = {n: ["x" * 990] * (n * 1000) for n in MEGABYTES}

    @tool(visible=ALL)
    async def fetch(megabytes: int) -> list[str]:
        """Fetch something large."""
        return given[megabytes]

    sink, ids = MemorySink(), itertools.count()
    runner = ToolRunner([fetch], sinks=[sink], max_result_bytes=1 << 30)

    async def ours(megabytes: int) -> float:
        async def once() -> None:
            sink.records.clear()
            call = ToolCall(f"call_{next(ids)}", "fetch", f'{{"megabytes": {megabytes}}}')
            assert isinstance(await runner.exec(call), Completed)

        return await timed(once)

    async def floor(megabytes: int) -> float:
        async def once() -> object:
            return orjson.dumps(given[megabytes])

        return await timed(once)

    return await compared(MEGABYTES, floor, ours)


async def records(most: int) -> Figures:
    @tool(visible=ALL)
    async def look(query: str) -> int:
        """Look something up."""
        return len(query)

    found: Figures = {"floor": [], "toolcrib": []}
    with tempfile.TemporaryDirectory() as folder:
        bare = sqlite3.connect(":memory:")
        bare.execute("CREATE TABLE entries (name TEXT, record TEXT)")
        async with AuditLog(f"sqlite:///{folder}/crib.db", key="a key of sixteen bytes") as log:
            await ToolRunner([look], sinks=[log]).exec(ToolCall("a", "look", '{"query":"tea"}'))
            known = (await log.entries(AuditFilter(status="completed")))[0].record
            written, size = 1, 1_000
            while size <= most:
                for _ in range(written, size, 1_000):
                    keys = [uuid4().hex for _ in range(1_000)]
                    made = [msgspec.structs.replace(known, idempotency_key=key) for key in keys]
                    await asyncio.gather(*(log.write(record) for record in made))
                rows = [("look", "x" * 900)] * (size - written)
                bare.executemany("INSERT INTO entries VALUES (?, ?)", rows)
                written = size

                async def ours() -> object:
                    return await log.entries(AuditFilter(tool="nobody"))

                async def scan() -> object:
                    return bare.execute("SELECT * FROM entries WHERE name = 'nobody'").fetchall()

                pairs = [(await timed(scan), await timed(ours)) for _ in range(ROUNDS)]
                for name, figures in zip(found, zip(*pairs, strict=True), strict=True):
                    found[name].append((size, median(figures)))
                size *= 10
        bare.close()
    return found


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--svg", metavar="FILE", type=Path, help="draw the curves")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures")
    parser.add_argument("--records", type=int, default=1_000_000, help="the most records")
    asked = parser.parse_args()
    panels = [
        Panel("a turn of each agent, ms", "agents on one client at once", await agents()),
        Panel("encoding the next request, ms", "turns before it", await turns()),
        Panel("encoding a request, ms", "tools on offer", await tools()),
        Panel("a call, ms", "MB of its result", await results()),
        Panel("a filter that finds nothing, ms", "records", await records(asked.records)),
    ]
    for panel in panels:
        for name, points in panel.curves.items():
            figures = "  ".join(f"{size:,g}: {figure:,.3f}" for size, figure in points)
            print(f"{panel.title:<34}{panel.x:<32}{name:<10}{figures}")
    if asked.svg:
        asked.svg.write_text(curves(panels), encoding="utf-8")
    if asked.json:
        told = {f"{panel.title} · {panel.x}": panel.curves for panel in panels}
        asked.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
