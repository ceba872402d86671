"""A desk whose runs are durable, and the worker that is killed:
`python -m durable.desk URL FOLDER`, and how many seconds an effect takes.

Its model keeps nothing between requests, so that any process says the same; its tools write down in
the file `effects` when they begin and when they have ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from toolcrib import ALL, Agent, CallContext, ToolRunner, tool
from toolcrib.clients.base import PlanningClient
from toolcrib.durable import DurableAgents
from toolcrib.policies import budget
from toolcrib.spending import SpendStore
from toolcrib.testing import ScriptedClient, call
from toolcrib.testing.scripted import Said
from toolcrib.values.message import ChatRequest, Reply, StreamPart

KEY = b"the key of all these processes.."
PROMPT = "My tea was cold."


class Model(PlanningClient):
    """Says the turn that is next by what was said; `before` is called before each of them."""

    def __init__(self, *turns: Said, before: Callable[[int], Any] = lambda _at: None) -> None:
        self._turns = turns
        self._before = before

    @property
    def model(self) -> str:
        return "scripted"

    def _next(self, request: ChatRequest) -> ScriptedClient:
        at = sum(message.role == "assistant" for message in request.messages)
        self._before(at)
        return ScriptedClient([self._turns[at]])

    async def chat(self, request: ChatRequest) -> Reply:
        await asyncio.sleep(0.01)
        return await self._next(request).chat(request)

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        async for part in self._next(request).stream(request):
            yield part

    async def aclose(self) -> None: ...


TURNS: tuple[Said, ...] = (
    [call("look", what="1"), call("pay", to="ada"), call("look", what="2")],
    ["I pay.", call("pay", to="bob"), call("nobody")],
    [call("refund", order=7), call("pay", to="eve")],
    [call("ship", to="ada"), call("look", what="3")],
    "All done.",
)


BREWING: tuple[Said, ...] = (
    [call("brew", what="tea"), call("look", what="1"), call("stew", what="plums")],
    [call("brew", what="coffee"), call("look", what="2")],
    call("look", what="3"),
    *["I wait."] * 6,
)
"""Turns whose calls go on in the background; the model is asked again until all of them are told."""


def desk(folder: Path, **made: Any) -> Agent:
    """Return the agent; what its tools do is in the file `effects` of that folder."""

    def tell(what: str) -> None:
        file = os.open(folder / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, f"{what}\n".encode())
        finally:
            os.close(file)

    seconds = made.pop("seconds", 0.02)

    async def effect(name: str, context: CallContext) -> str:
        tell(f"begin {name} {context.run_id} {context.call_id}")
        await asyncio.sleep(seconds)
        tell(f"end {name} {context.run_id} {context.call_id}")
        return f"{name} done"

    @tool(visible=(), read_only=True)
    async def look(what: str, context: CallContext) -> str:
        """Look something up."""
        await effect("look", context)
        return f"what nobody else sees of {what}"

    @tool(visible=ALL)
    async def pay(to: str, context: CallContext) -> str:
        """Pay somebody."""
        return await effect("pay", context)

    @tool(visible=ALL, safe=False)
    async def refund(order: int, context: CallContext) -> str:
        """Refund an order."""
        return await effect("refund", context)

    @tool(visible=ALL, idempotent=True)
    async def ship(to: str, context: CallContext) -> str:
        """Ship something."""
        return await effect("ship", context)

    @tool(visible=ALL, background=True)
    async def brew(what: str, context: CallContext) -> str:
        """Brew something, which takes a while."""
        await asyncio.sleep(0.03)
        return await effect("brew", context)

    @tool(visible=ALL, background=True, idempotent=True)
    async def stew(what: str, context: CallContext) -> str:
        """Stew something, once more if need be."""
        await asyncio.sleep(0.06)
        return await effect("stew", context)

    model = made.pop("model", None) or Model(*made.pop("turns", TURNS))
    runner = ToolRunner([look, pay, refund, ship, brew, stew], policy=made.pop("policy", ()))
    return Agent(model, runner, state_key=KEY, **made)


async def main(url: str, folder: Path, seconds: float) -> None:
    """Work until SIGTERM; say when there is something to be killed."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    spends = budget(calls=100_000, per="caller", store=SpendStore(url))
    agents = {
        "desk": desk(folder, policy=spends, seconds=seconds),
        "brewer": desk(folder, turns=BREWING),
    }
    async with DurableAgents(url, agents, slots=4):
        print("ready", flush=True)  # noqa: T201
        await over.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), float((*sys.argv, "0.02")[3])))
