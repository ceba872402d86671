"""What it costs that a run is durable: milliseconds a step, on a SQLite file, each the median.

    python benchmarks/bench_durable.py

A run of 50 turns, one call each (100 steps), in a process of its own: without an engine, with a log,
durable (`toolcrib.durable`), and the same number of bare steps of DBOS, with the engine of toolcrib
and as DBOS opens SQLite by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from toolcrib import ALL, Agent, tool
from toolcrib.audit import AuditLog
from toolcrib.clients.base import PlanningClient
from toolcrib.durable import DurableAgents
from toolcrib.durable.engine import JsonSerializer, dbos, engine_of
from toolcrib.runner import ToolRunner
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.message import ChatRequest, Reply
from toolcrib.values.run import Limits

TURNS = 50
STEPS = 2 * TURNS
REACH = 25.0
"""Milliseconds a durable step may take on a machine that others use, too."""


class Model(PlanningClient):
    """Calls the tool, until it has said enough."""

    @property
    def model(self) -> str:
        return "scripted"

    async def chat(self, request: ChatRequest) -> Reply:
        at = sum(message.role == "assistant" for message in request.messages)
        said = call("note", text=f"entry {at}") if at < TURNS else "That was all."
        return await ScriptedClient([said]).chat(request)

    def stream(self, request: ChatRequest) -> Any:
        raise NotImplementedError

    async def aclose(self) -> None: ...


@tool(visible=ALL)
async def note(text: str) -> dict[str, Any]:
    """Write something down."""
    return {"text": text, "lines": [f"line {n}" for n in range(10)]}


def agent(*sinks: Any) -> Agent:
    limits = Limits(turns=TURNS + 1)
    return Agent(Model(), ToolRunner([note], sinks=sinks), limits=limits, state_key=b"k" * 32)


async def plain(folder: Path) -> float:
    del folder
    began = time.perf_counter()
    await agent().run("Go.")
    return time.perf_counter() - began


async def logged(folder: Path) -> float:
    async with AuditLog(f"sqlite:///{folder / 'log.db'}") as log:
        await log.open()
        began = time.perf_counter()
        await agent(log).run("Go.")
        return time.perf_counter() - began


async def durable(folder: Path) -> float:
    async with DurableAgents(f"sqlite:///{folder / 'runs.db'}", {"a": agent()}) as worker:
        run_id = await worker.start("a", "Go.")
        while (run := await worker.show(run_id)).status == "queued":  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        began = time.perf_counter()
        while (run := await worker.show(run_id)).status == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        taken = time.perf_counter() - began
    assert run.status == "completed", run
    return taken


async def bare(folder: Path, *, own: bool) -> float:
    """The same number of steps of DBOS, each of which gives a text of 1 kB."""
    library = dbos()
    url = f"sqlite:///{folder / 'bare.db'}"
    config: dict[str, Any] = {"name": "bench", "log_level": "ERROR", "use_listen_notify": False}
    if own:
        engine = engine_of(make_url(url))
        config |= {"system_database_engine": engine, "serializer": JsonSerializer()}
    else:
        config["system_database_url"] = url
    library.DBOS(config=config)

    async def step() -> str:
        return "x" * 1_000

    async def all_steps() -> None:
        for _ in range(STEPS):
            await library.DBOS.run_step_async({"name": "s"}, step)

    steps = library.DBOS.workflow(name=f"bare_{own}")(all_steps)
    library.DBOS.launch()
    began = time.perf_counter()
    await steps()
    taken = time.perf_counter() - began
    await asyncio.to_thread(library.DBOS.destroy)
    return taken


CASES: dict[str, Callable[[Path], Coroutine[Any, Any, float]]] = {
    "no engine": plain,
    "no engine, audit log": logged,
    "durable": durable,
    "bare DBOS, WAL and FULL": lambda folder: bare(folder, own=True),
    "bare DBOS as it comes": lambda folder: bare(folder, own=False),
}


def once(name: str) -> float:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        return asyncio.run(CASES[name](Path(folder)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--once", choices=CASES)
    options = parser.parse_args()
    if options.once:
        print(once(options.once))
        return
    measured: dict[str, float] = {}
    for name in CASES:
        command = [sys.executable, __file__, "--once", name]
        told = [
            subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
            for _ in range(options.rounds)
        ]
        taken = [float(text.split()[-1]) for text in told]
        measured[name] = statistics.median(taken) * 1000 / STEPS
        print(f"{name:26} {measured[name]:8.2f} ms a step")
    assert measured["durable"] < REACH, "slower than it was"


if __name__ == "__main__":
    main()
