"""Runs that pay six times, and the worker that is killed in the middle of them:
`python -m durable.till URL FOLDER`.

A run `till_3` hangs in its third payment there, and `till_7` as its model is asked for the last time.
As with a provider, what is asked twice has other ids of its calls: nobody but the kept steps knows
that they are the same. Payments are in the file `paid` when they begin, and when they have ended.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from durable.desk import KEY, Model
from msgspec.structs import replace

from toolcrib import ALL, Agent, CallContext, Catalog, Tool, ToolRunner, capability, tool
from toolcrib.audit import AuditLog
from toolcrib.durable import DurableAgents
from toolcrib.durable.store import StoredRun
from toolcrib.testing import call
from toolcrib.testing.scripted import Said
from toolcrib.values.message import ChatRequest, Reply

RUNS = {f"till_{at}": at for at in range(1, 8)}
TURNS: tuple[Said, ...] = (
    call("pay", n=1),
    [call("pay", n=2), call("pay", n=3)],
    [call("send", n=4), call("pay", n=5)],
    call("pay", n=6),
    *["Done."] * 4,
)


@capability
class Till(Protocol):
    async def pay(self, n: int, run_id: str) -> str: ...


class PaidTill:
    """Pays once for each call, and hangs where the run is to."""

    def __init__(self, folder: Path, *, hangs: bool = False) -> None:
        self._file = folder / "paid"
        self._hangs = hangs

    async def pay(self, n: int, run_id: str) -> str:
        self._tell(f"begin {run_id} {n}")
        if self._hangs and RUNS[run_id] == n:
            await asyncio.Event().wait()
        self._tell(f"end {run_id} {n}")
        return f"paid {n}"

    def _tell(self, what: str) -> None:
        file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, f"{what}\n".encode())
        finally:
            os.close(file)


class Provider(Model):
    """Gives calls new ids, whenever it is asked."""

    def __init__(self, *, hangs: bool) -> None:
        super().__init__(*TURNS)
        self._hangs = hangs

    async def chat(self, request: ChatRequest) -> Reply:
        reply = await super().chat(request)
        if self._hangs and "till_7" in request.id_prefix and not reply.tool_calls:
            await asyncio.Event().wait()
        ids = [replace(each, id=f"call_{os.urandom(6).hex()}") for each in reply.tool_calls]
        return replace(reply, message=replace(reply.message, tool_calls=tuple(ids)))


def till(folder: Path, *, hangs: bool = False, log: AuditLog | None = None, **made: Any) -> Agent:
    """Return an agent whose tools pay out of the till that a run is given, or out of an empty one."""

    @tool(visible=ALL)
    async def pay(n: int, till: Till, context: CallContext) -> str:
        """Pay."""
        return await till.pay(n, context.run_id)

    @tool(visible=ALL, background=True)
    async def send(n: int, till: Till, context: CallContext) -> str:
        """Send money, which takes a while."""
        return await till.pay(n, context.run_id)

    tools: list[Tool[..., Any]] = [pay, send]
    own = Catalog(tools).bind({Till: PaidTill(folder / "nowhere")})
    runner = ToolRunner(own, sinks=[] if log is None else [log])
    return Agent(Provider(hangs=hangs), runner, state_key=KEY, **made)


def paying(
    url: str, folder: Path, *, given: bool = True, hangs: bool = False, **made: Any
) -> DurableAgents:
    """Return what does these runs, or what does not give them what they were given."""

    def deps(_run: StoredRun) -> Mapping[Any, object]:
        return {Till: PaidTill(folder, hangs=hangs)}

    agents = {"till": till(folder, hangs=hangs, **made)}
    return DurableAgents(url, agents, deps=deps if given else None)


async def main(url: str, folder: Path) -> None:
    """Work until somebody kills this process."""
    log = AuditLog(f"sqlite:///{folder / 'log.db'}")
    async with paying(url, folder, hangs=True, log=log):
        print("ready", flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
