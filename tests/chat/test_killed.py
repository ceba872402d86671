"""A server that is killed in the middle: the page says what is unknown, and nothing runs twice."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest
from chat.chat_helpers import Page, serving

from toolcrib import ALL, Agent, Message, ToolRunner, tool
from toolcrib.chat import chat_app, threads
from toolcrib.errors import SourceError
from toolcrib.testing import ScriptedClient
from toolcrib.values.message import ChatRequest, StreamPart

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


class Listening(ScriptedClient):
    """Keeps the last request's messages."""

    heard: tuple[Message, ...] = ()

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        self.heard = request.messages
        async for part in super().stream(request):
            yield part


@tool(visible=ALL)
async def pay(cents: int) -> str:
    """Pay."""
    return f"{cents}"


@pytest.mark.parametrize("asks", ["no", "yes"])
async def test_a_killed_server_forgets_no_call(
    asks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, ledger = f"sqlite:///{tmp_path}/chat.db", tmp_path / "ledger"
    arguments = ("-c", SERVER, url, str(ledger), asks)
    child = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    port = int(await child.stdout.readline())
    async with aiohttp.ClientSession() as session:
        page = Page(f"http://127.0.0.1:{port}", session)
        await page.open()
        await page.ask("Pay five, please.")
        if asks == "yes":
            await page.ended("waiting")
            asked = page.calls()[-1]["approval"]["id"]
            await page.post(f"/{page.thread}/approvals/{asked}", {"decision": "approve"})
        await page.until(lambda s: "'completed'" in repr(s["turns"]))
        async with asyncio.timeout(20):
            while not ledger.exists():  # noqa: ASYNC110  another process makes it
                await asyncio.sleep(0.02)
        os.kill(child.pid, signal.SIGKILL)
        await child.wait()
        await page.close()
        thread = page.thread

    client = Listening(["I see."])
    app = chat_app(Agent(client, ToolRunner([pay])), store=url)
    async with serving(app) as base, aiohttp.ClientSession() as session:
        page = Page(base, session)
        with monkeypatch.context() as later:
            later.setattr(threads, "_now", lambda: time.time() + threads.LEASE + 1)
            await page.open(thread)
        assert page.turns[0]["status"] == "interrupted"
        states = {card["name"]: card["state"] for card in page.calls(0)}
        assert states == {"add": "completed", "pay": "unknown"}
        await page.ask("Try again.")
        await page.ended("completed", 2)
        said = "\n".join(message.content for message in client.heard)
        assert "Pay five, please." in said
        assert "what it did is not known" in said
        await page.close()
    assert ledger.read_text() == "5\n"


async def test_a_turn_whose_beginning_the_database_does_not_keep_is_not_begun(
    tmp_path: Path,
) -> None:
    store = threads.ThreadStore(f"sqlite:///{tmp_path}/crib.db")
    thread = await store.create("anna")
    turn = await store.begin(thread, "anna", "Pay.")
    assert turn is not None
    waiting = {**turn.view, "status": "waiting"}
    assert await store.end(thread, turn.id, waiting, state="{}")
    loaded = await store.load(thread, "anna")
    assert loaded is not None
    (turn,) = loaded.turns
    with closing(sqlite3.connect(tmp_path / "crib.db")) as database:
        database.execute(
            "CREATE TRIGGER back AFTER UPDATE ON chat_turns"
            " BEGIN UPDATE chat_turns SET status = 'waiting' WHERE id = new.id; END"
        )
        with pytest.raises(SourceError, match="did not take"):
            await store.begin_again(thread, "anna", turn, waiting)
        database.execute("DROP TRIGGER back")
    assert await store.begin_again(thread, "anna", turn, waiting)
    await store.aclose()
