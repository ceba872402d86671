"""C: one call of an API through a tool of its OpenAPI document, against bare aiohttp.

The floor sends the same request: with a session for each, as ours does (no call shares a connection,
a cookie or a resolved name with another), and with one session that keeps its connection. The server
is a process of its own. CPU microseconds a call, interleaved; the minimum of the rounds.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from toolcrib import Completed, Trusted
from toolcrib.bridges.openapi import ApiServer, openapi_catalog
from toolcrib.runner import ToolRunner
from toolcrib.testing import MemorySink
from toolcrib.tools.lock import lock_catalog
from toolcrib.values.call import ToolCall

ROUNDS, CALLS = 7, 200
SERVER = """
from aiohttp import web

async def look_up(request):
    said = await request.json()
    return web.json_response({"found": len(said["query"])})

app = web.Application()
app.router.add_post("/v1/items/{id}", look_up)
web.run_app(app, host="127.0.0.1", port=0, print=lambda text: print(text, flush=True))
"""
INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
FOUND = {"type": "object", "required": ["found"], "properties": {"found": INTEGER}}
BODY = {"type": "object", "required": ["query"], "properties": {"query": TEXT}}
DOCUMENT: dict[str, Any] = {
    "openapi": "3.0.3",
    "paths": {
        "/items/{id}": {
            "post": {
                "operationId": "look_up",
                "parameters": [{"name": "id", "in": "path", "required": True, "schema": INTEGER}],
                "requestBody": {"content": {"application/json": {"schema": BODY}}},
                "responses": {"200": {"content": {"application/json": {"schema": FOUND}}}},
            }
        }
    },
}
ARGUMENTS = '{"id": 7, "body": {"query": "the price of tea in china"}}'
Once = Callable[[], Awaitable[object]]


@asynccontextmanager
async def server() -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    said = (await process.stdout.readline()).decode()
    try:
        yield said.partition("http://")[2].split()[0]
    finally:
        process.terminate()
        await process.communicate()


def through_a_tool(origin: str) -> Once:
    lock, sink, ids = lock_catalog(openapi_catalog(DOCUMENT)), MemorySink(), itertools.count()
    catalog = openapi_catalog(
        DOCUMENT, http=ApiServer(f"{origin}/v1"), trust={"look_up": Trusted()}, lock=lock
    )
    runner = ToolRunner(catalog, sinks=[sink])

    async def once() -> object:
        sink.records.clear()
        outcome = await runner.exec(ToolCall(f"call_{next(ids)}", "look_up", ARGUMENTS))
        assert isinstance(outcome, Completed)
        return outcome.value

    return once


async def post(session: aiohttp.ClientSession, origin: str) -> object:
    said = {"query": "the price of tea in china"}
    async with session.post(f"{origin}/v1/items/7", json=said) as answer:
        return await answer.json()


async def _measure(once: Once) -> float:
    started = time.process_time()
    for _ in range(CALLS):
        await once()
    return (time.process_time() - started) / CALLS * 1e6


async def main() -> None:
    async with server() as address, aiohttp.ClientSession() as kept:
        origin = f"http://{address}"

        async def anew() -> object:
            async with aiohttp.ClientSession() as session:
                return await post(session, origin)

        rows = {
            "aiohttp, one session": lambda: post(kept, origin),
            "aiohttp, a session a call": anew,
            "a tool of the document": through_a_tool(origin),
        }
        taken: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(ROUNDS):
            for name, once in rows.items():
                taken[name].append(await _measure(once))
        floor = min(taken["aiohttp, a session a call"])
        print(f"{'a call':<28}{'CPU µs':>10}{'ratio':>8}")
        for name, found in taken.items():
            print(f"{name:<28}{min(found):>10.0f}{min(found) / floor:>8.2f}")


if __name__ == "__main__":
    asyncio.run(main())
