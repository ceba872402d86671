"""A page shows of each canary what events and records do, and the other fronts no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from canaries import CANARY, PLANTS, Plant, released
from chat.chat_helpers import page_of
from rows import each_row
from samples import sampled
from starlette.applications import Starlette
from starlette.routing import Route
from test_canaries import CELLS, DOWN

from toolcrib import Agent, ApprovalRequest, Ask, ToolRunner
from toolcrib.chat import chat_app, openai_routes
from toolcrib.chat.ag_ui import ag_ui_route
from toolcrib.clients import OpenAIClient
from toolcrib.testing import openai_server
from toolcrib.values.decision import Answer

TOLD = ("delta", "event", "record")
SHOWN = {row for row, place, shows in CELLS if shows and place in TOLD}
SAID = {"role": "user", "content": "go"}


@asynccontextmanager
async def planted(plant: Plant) -> AsyncIterator[Agent]:
    """An agent with a canary in it, whose calls are asked about, and whose second reply fails."""

    async def approver(_request: ApprovalRequest) -> Answer:
        if isinstance(plant.answer, Exception):
            raise plant.answer
        return plant.answer

    def down(_body: Any) -> Any:
        released.set()
        return DOWN

    options = dict(plant.options)
    policy = [*options.pop("policy", ()), lambda *_: Ask("to be sure", "mine")]
    runner = ToolRunner(plant.tools, policy=policy, approver=approver, **options)
    released.clear()
    async with (
        openai_server([plant.turn, down]) as server,
        OpenAIClient("m", base_url=server.url, retries=None) as client,
    ):
        yield Agent(client, runner)
    released.set()


async def chat(agent: Agent) -> str:
    """Return all that a page of the chat is sent of a run, its records too."""
    async with page_of(chat_app(agent, store="sqlite://")) as page:
        await page.ask("go")
        await page.until(lambda state: state["turns"] and state["turns"][-1]["status"] != "running")
        calls = [await page.get(f"/{page.thread}/calls/{each['id']}") for each in page.calls()]
        assert {status for status, _ in calls} <= {200, 404}  # of a call that was never whole
        return repr((page.told, calls, await page.get(f"/{page.thread}/export")))


async def ag_ui(agent: Agent) -> str:
    body = {"threadId": "t", "runId": "r", "messages": [{"id": "u", **SAID}]}
    return await posted([ag_ui_route(agent)], "/", body)


async def completions(agent: Agent) -> str:
    body = {"model": "agent", "messages": [SAID]}
    return await posted(openai_routes(agent), "/v1/chat/completions", body)


async def posted(routes: list[Route], path: str, body: Any) -> str:
    transport = httpx.ASGITransport(Starlette(routes=routes))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        return (await http.post(path, json=body)).text


@each_row("row", sampled([row for row in PLANTS if "__del__" not in row], part=6))
async def test_what_no_event_shows_no_front_shows(row: str) -> None:
    for front in (chat, ag_ui, completions):
        async with asyncio.timeout(20), planted(PLANTS[row]) as agent:
            shows = CANARY in await front(agent)
        expected = row in SHOWN
        assert shows == expected if front is chat else shows <= expected, front.__name__
