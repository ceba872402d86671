"""A chat app over real HTTP, and a page's view of it: snapshots and operations applied."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn
from children import Talking
from waiting import until

from toolcrib import ALL, CallContext, tool
from toolcrib.chat.view import Operation
from toolcrib.errors import SourceError

Json = dict[str, Any]


def applied(state: Any, operations: Iterable[Operation]) -> Any:
    """Return a state with operations applied, as a page does it."""
    for operation in operations:
        path, value = operation["path"], operation["value"]
        if not path:
            state = deepcopy(value)
            continue
        place = state
        for name in path[:-1]:
            place = place[int(name)] if isinstance(place, list) else place[name]
        last: Any = int(path[-1]) if isinstance(place, list) else path[-1]
        if operation["type"] == "append-text":
            place[last] += value
        elif isinstance(place, list) and last == len(place):
            place.append(deepcopy(value))
        else:
            place[last] = deepcopy(value)
    return state


@asynccontextmanager
async def serving(app: Any, port: int = 0) -> AsyncIterator[str]:
    """Serve an ASGI app on this machine, on a free port if none is named; yield its address.

    It begins and ends at once: `Server.serve` looks ten times a second whether it shall end.
    """
    config = uvicorn.Config(app, port=port, log_level="error", lifespan="off", ws="none")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        for listening in server.servers:
            listening.close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # as if its process was killed
        if server.server_state.tasks:
            await asyncio.wait(server.server_state.tasks, timeout=0.2)
        chat = getattr(getattr(app, "state", None), "chat", None)
        if chat is not None:
            database = chat._store._database
            database._transact_noted = _killed  # what still runs of it reaches no database
            await database.aclose()


def _killed(*_given: object) -> None:
    raise SourceError("this server was killed")


def all_can_be_answered(state: Any) -> bool:
    """Return whether each question that is shown is one of a turn that waits."""
    return not any(
        part.get("approval") and turn["status"] != "waiting"
        for turn in state["turns"]
        for part in turn["parts"]
    )


class Page:
    """What a page knows of one thread, by reading its stream."""

    def __init__(self, base: str, session: aiohttp.ClientSession, thread: str = "") -> None:
        self.base = base
        self.session = session
        self.thread = thread
        self.state: Any = None
        self.told: list[Any] = []
        self._changed = asyncio.Condition()
        self._reading: asyncio.Task[None] | None = None

    async def post(self, path: str, body: Any = None, *, method: str = "POST", **more: Any) -> Any:
        """Return the status and the body of an answer."""
        url = f"{self.base}/threads{path}"
        async with self.session.request(method, url, json=body or {}, **more) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text else None

    async def get(self, path: str) -> Any:
        async with self.session.get(f"{self.base}/threads{path}") as answer:
            return answer.status, await answer.json()

    async def open(self, thread: str = "") -> None:
        """Begin to read a thread, a new one if none is named."""
        self.thread = thread or self.thread or (await self.post(""))[1]["id"]
        self._reading = asyncio.create_task(self._read())
        await self.until(lambda state: state is not None)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _read(self) -> None:
        url = f"{self.base}/threads/{self.thread}/stream"
        timeout = aiohttp.ClientTimeout(total=None)
        async with self.session.get(url, timeout=timeout) as answer:
            assert answer.headers["x-vercel-ai-data-stream"] == "v1"
            async for line in answer.content:
                await self.take(line)

    async def take(self, line: bytes) -> None:
        """Take a line of the stream."""
        if not line.strip():
            return
        kind, _, text = line.decode().partition(":")
        assert kind == "aui-state"
        operations = json.loads(text)
        self.told += operations
        self.state = applied(self.state, operations)
        assert all_can_be_answered(self.state)
        async with self._changed:
            self._changed.notify_all()

    async def until(self, wanted: Callable[[Any], bool]) -> Any:
        """Return the state as soon as it is as wanted."""
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: wanted(self.state))
        return self.state

    async def ask(self, text: str, **more: str) -> Any:
        return await self.post(f"/{self.thread}/messages", {"text": text, **more})

    @property
    def turns(self) -> list[Json]:
        turns: list[Json] = self.state["turns"]
        return turns

    def calls(self, turn: int = -1) -> list[Json]:
        return [part for part in self.turns[turn]["parts"] if part["kind"] == "call"]

    def text(self, turn: int = -1) -> str:
        return "".join(p["text"] for p in self.turns[turn]["parts"] if p["kind"] == "text")

    async def ended(self, status: str = "completed", turns: int = 1) -> Json:
        await self.until(lambda s: len(s["turns"]) == turns and s["turns"][-1]["status"] == status)
        return self.turns[-1]


class Late:
    """Holds one reading back, once it `is_next`, from when it has `found` something until that is
    `given`; the readings are the calls of an asynchronous method."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, of: type, method: str) -> None:
        self.found, self.given = asyncio.Event(), asyncio.Event()
        self.is_next = False
        read = getattr(of, method)

        async def late(*given: Any) -> Any:
            found = await read(*given)
            if self.is_next:
                self.is_next = False
                self.found.set()
                await self.given.wait()
            return found

        monkeypatch.setattr(of, method, late)


@asynccontextmanager
async def page_of(app: Any, **options: Any) -> AsyncIterator[Page]:
    """Serve an app and open a new thread of it."""
    async with serving(app) as base, aiohttp.ClientSession(**options) as session:
        page = Page(base, session)
        await page.open()
        try:
            yield page
        finally:
            await page.close()


Check = Callable[[Page], Awaitable[None]]

RAN: list[Any] = []  # by `add` and `pay`


@tool(visible=ALL)
async def add(a: int, b: int) -> int:
    """Add."""
    RAN.append(a)
    return a + b


@tool(visible=ALL, safe=False)
async def pay(cents: int) -> str:
    """Pay."""
    RAN.append(cents)
    return f"paid {cents}"


@tool(visible=ALL)
async def broken() -> str:
    """Fail."""
    raise RuntimeError("a secret")


@tool(visible=ALL)
async def endless(ctx: CallContext) -> str:
    """Wait for ever."""
    ctx.progress("at it")
    await asyncio.Event().wait()
    return ""


def endless_tool() -> tuple[Any, asyncio.Event, asyncio.Event]:
    """Return a tool `endless` that does not return, and events: it has begun, it has ended."""
    begun, ended = asyncio.Event(), asyncio.Event()

    @tool(visible=ALL)
    async def endless(ctx: CallContext) -> int:
        """Wait."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return 1

    return endless, begun, ended


SERVER = """
import asyncio, sys
import uvicorn
from toolcrib import ALL, Agent, ToolRunner, tool
from toolcrib.chat import chat_app
from toolcrib.testing import ScriptedClient, call

url, ledger, asks = sys.argv[1:]

@tool(visible=ALL, safe=asks == "no")
async def pay(cents: int) -> str:
    "Pay."
    with open(ledger, "a") as file:
        file.write(f"{cents}\\n")
    await asyncio.Event().wait()

@tool(visible=ALL)
async def add(a: int, b: int) -> int:
    "Add."
    return a + b

calls = [call("add", a=1, b=2), call("pay", cents=5)]
agent = Agent(ScriptedClient([calls]), ToolRunner([pay, add], timeout=None))
config = uvicorn.Config(chat_app(agent, store=url), port=0, log_level="error", lifespan="off")
server = uvicorn.Server(config)

async def main():
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await task

asyncio.run(main())
"""


async def killed_thread(url: str, folder: Path, asks: str = "no") -> str:
    """Have a server killed while a call of a thread runs; return the thread.

    The call has paid into the file `ledger` of the folder; where it `asks`, it was approved first.
    """
    ledger = folder / "ledger"
    arguments = ("-c", SERVER, url, str(ledger), asks)
    with Talking(*arguments) as child:
        port = int(await asyncio.to_thread(child.stdout.readline))
        return await _killed_thread(child, port, ledger, asks)


async def _killed_thread(child: Talking, port: int, ledger: Path, asks: str) -> str:
    async with aiohttp.ClientSession() as session:
        page = Page(f"http://127.0.0.1:{port}", session)
        await page.open()
        await page.ask("Pay five, please.")
        if asks == "yes":
            await page.ended("waiting")
            asked = page.calls()[-1]["approval"]["id"]
            await page.post(f"/{page.thread}/approvals/{asked}", {"decision": "approve"})
        await page.until(lambda state: "'completed'" in repr(state["turns"]))
        await until(lambda: ledger.exists() and ledger.stat().st_size > 0, 20)
        child.kill()
        child.wait()
        await page.close()
        return page.thread
