"""What the server streams, read by the npm package `assistant-stream`: its decoder and its state."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from chat.chat_helpers import Page, broken, endless, killed_thread, serving
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolcrib import ALL, Agent, CallContext, ToolRunner, tool
from toolcrib.chat import chat_app, stream_response, threads
from toolcrib.errors import ProviderError
from toolcrib.testing import ScriptedClient, call, raw_call
from toolcrib.values.message import ChatRequest, ReasoningPart, StreamPart

PAY = call("pay", cents=7)
WEB = Path(__file__).parents[2] / "web"
HARD = (
    'a "quote", a \\ back, \u2028 a line, \u202e a turn, 🙂 and \x00\x1b.\r\n0:"no"\naui-state:[]'
)


class Thinking(ScriptedClient):
    """Thinks before it speaks."""

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        for piece in ("Let me ", "think."):
            yield ReasoningPart(piece)
        async for part in super().stream(request):
            yield part


@tool(visible=ALL)
async def echo(ctx: CallContext, said: str) -> list[Any]:
    """Give what was said, in many forms."""
    for part in range(60):
        ctx.progress({"done": part, "said": said})
    refused = {"__proto__": 1, "[__proto__]": 2, "constructor": {"prototype": 3}}
    return [said, {said: [None, True, 2**60, 1.5]}, [], refused]


@tool(visible=ALL, safe=False)
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


def agent(*turns: object) -> Agent:
    return Agent(Thinking(list(turns)), ToolRunner([echo, pay, broken, endless]))  # type: ignore[arg-type]


async def decoded(recorded: bytes, size: int) -> Any:
    """Return what the package makes of a recorded stream that comes in pieces of so many bytes."""
    node = shutil.which("node")
    if node is None or not (WEB / "node_modules" / "assistant-stream").is_dir():
        pytest.skip("there is no node.js, or `npm ci` was not run in web/")
    child = await asyncio.create_subprocess_exec(
        node, "read-stream.mjs", str(size), cwd=WEB,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, complaint = await child.communicate(recorded)
    assert child.returncode == 0, complaint.decode()
    return json.loads(out)


class Recorded(Page):
    """A page that keeps what came, byte for byte."""

    def __init__(self, base: str, session: aiohttp.ClientSession) -> None:
        super().__init__(base, session)
        self.heard = bytearray()

    async def _read(self) -> None:
        url = f"{self.base}/threads/{self.thread}/stream"
        async with self.session.get(url, timeout=aiohttp.ClientTimeout(total=None)) as answer:
            async for line in answer.content:
                self.heard += line
                await self.take(line)


@asynccontextmanager
async def recorded(app: Any, thread: str = "") -> AsyncIterator[Recorded]:
    async with serving(app) as base, aiohttp.ClientSession() as session:
        page = Recorded(base, session)
        await page.open(thread)
        yield page
        await page.close()


async def check(page: Recorded) -> None:
    """Read what was heard in pieces of some sizes: the state is the server's."""
    _, kept = await page.get(f"/{page.thread}")
    for size in (1, 7, 4096):
        read = await decoded(bytes(page.heard), size)
        assert read["kinds"] == ["update-state"]
        assert read["state"] == kept == page.state


@pytest.mark.exhaustive
async def test_every_kind_of_event_is_read_as_it_was_meant(tmp_path: Path) -> None:
    cut = raw_call("echo", '{"said": "with')
    model = agent(
        [HARD, call("echo", said=HARD), call("broken"), cut, call("pay", cents=2**60), PAY],
        "Done. " + HARD,
        call("endless"),
        ProviderError("the model is away"),
        "Anew.",
    )  # fmt: skip
    async with recorded(chat_app(model, store=f"sqlite:///{tmp_path}/chat.db")) as page:
        await page.ask(HARD)
        await page.ended("waiting")
        asked = [each["approval"]["id"] for each in page.calls() if each["approval"]]
        path = f"/{page.thread}/approvals/"
        edit = {"decision": "approve", "arguments": {"cents": 5}}
        await page.post(path + asked[0], edit)
        await page.until(lambda s: "paid 5" in repr(s) and s["turns"][0]["status"] == "waiting")
        await page.post(path + asked[1], {"decision": "deny", "reason": "no"})
        await page.ended("completed")
        await page.ask("Hang.")
        await page.until(lambda state: "at it" in repr(state["turns"]))
        await page.post(f"/{page.thread}/cancel")
        await page.ended("cancelled", 2)
        await page.ask("Fail.")
        await page.ended("failed", 3)
        title = "".join(c for c in HARD if c not in "\u202e\x00\x1b")  # which no title may have
        assert (await page.post(f"/{page.thread}", {"title": title}, method="PATCH"))[0] == 200
        await page.until(lambda state: "quote" in state["thread"]["title"])
        await page.ask("Otherwise.", instead_of=page.turns[0]["id"])
        await page.ended("completed", 4)
        parts = [part for turn in page.turns for part in turn["parts"]]
        assert {part["kind"] for part in parts} == {"text", "reasoning", "call"}
        states = {part["state"] for part in parts if part["kind"] == "call"}
        assert states == {"completed", "failed", "denied", "cancelled"}
        await check(page)


@pytest.mark.exhaustive
async def test_a_run_that_was_killed_and_gone_on_with_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    thread = await killed_thread(url, tmp_path)
    later = time.time() + threads.LEASE + 1
    monkeypatch.setattr(threads, "_now", lambda: later)
    async with recorded(chat_app(agent("I see."), store=url), thread) as again:
        assert "'unknown'" in repr(again.turns)
        monkeypatch.undo()
        await again.ask("And now?")
        await again.ended("completed", 2)
        await check(again)


@pytest.mark.exhaustive
async def test_a_run_on_a_route_of_ones_own_is_read() -> None:
    of = agent([HARD, call("echo", said=HARD), call("broken")], HARD)

    async def endpoint(_request: Request) -> Response:
        return stream_response(of.stream("Go."), asked="Go.", heartbeat=0.01)

    app = Starlette(routes=[Route("/", endpoint)])
    async with (
        serving(app) as base,
        aiohttp.ClientSession() as session,
        session.get(base) as answer,
    ):
        heard = await answer.read()
    for size in (1, 4096):
        read = await decoded(heard, size)
        assert read["kinds"] == ["update-state"]
        assert read["state"]["status"] == "completed"
        assert [part["kind"] for part in read["state"]["parts"]][-1] == "text"
        assert read["state"]["parts"][-1]["text"] == HARD
