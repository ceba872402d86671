"""C: one call of an MCP server's tool through the bridge, against the SDK's `ClientSession.call_tool`.

The server is a program on the same machine, over its standard input and output, and answers at once:
a text, or structured content that both sides hold against its schema. Ours goes through
`ToolRunner.exec`, with validation, policy, redaction and a record in memory. Microseconds of this
process's CPU and of the clock, interleaved; the minimum of the rounds. The last row is a call from
another thread's event loop than the server's.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from anyio.from_thread import start_blocking_portal
from mcp import Client, StdioServerParameters

from toolcrib import Completed, ToolCall, ToolRunner, Trusted
from toolcrib.bridges.mcp import StdioServer, mcp_catalog
from toolcrib.testing import MemorySink
from toolcrib.tools import Catalog, tool_of

ROUNDS, CALLS = 7, 200
SERVER = """
import json, sys
COUNT = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = [
    {"name": "echo", "description": "Say it.", "inputSchema": TEXT},
    {"name": "count", "description": "Count it.", "inputSchema": TEXT, "outputSchema": COUNT},
]
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    match asked["method"]:
        case "initialize":
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            result["serverInfo"] = {"name": "bench", "version": "1"}
        case "tools/list":
            result = {"tools": TOOLS}
        case "tools/call":
            text = asked["params"]["arguments"]["text"]
            result = {"content": [{"type": "text", "text": text}]}
            if asked["params"]["name"] == "count":
                number = {"count": len(text)}
                result = {"content": [{"type": "text", "text": json.dumps(number)}]}
                result["structuredContent"] = number
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
ARGUMENTS = {"text": "the price of tea in china"}
TEXT = json.dumps(ARGUMENTS)
Once = Callable[[], Awaitable[object]]
_ids = itertools.count()


def ours(catalog: Catalog, tool: str) -> Once:
    trust = {}
    for name in catalog.names:
        imported = tool_of(catalog[name]).imported
        assert imported is not None
        trust[name] = Trusted(imported.origin)
    sink = MemorySink()
    runner = ToolRunner(catalog.trusting(trust), sinks=[sink])

    async def once() -> object:
        sink.records.clear()
        outcome = await runner.exec(ToolCall(f"call_{next(_ids)}", tool, TEXT))
        assert isinstance(outcome, Completed)
        return outcome

    return once


def theirs(client: Client, tool: str) -> Once:
    async def once() -> object:
        return await client.session.call_tool(tool, ARGUMENTS)

    return once


async def _measure(once: Once) -> tuple[float, float]:
    cpu, clock = time.process_time(), time.perf_counter()
    for _ in range(CALLS):
        await once()
    return (
        (time.process_time() - cpu) / CALLS * 1e6,
        (time.perf_counter() - clock) / CALLS * 1e6,
    )


def _least(rounds: list[tuple[float, float]]) -> tuple[float, float]:
    return min(one[0] for one in rounds), min(one[1] for one in rounds)


async def _show(name: str, floor: Once, bridge: Once) -> None:
    pairs: list[Any] = [(await _measure(floor), await _measure(bridge)) for _ in range(ROUNDS)]
    before, after = (_least([pair[at] for pair in pairs]) for at in (0, 1))
    print(
        f"{name:<30}{before[0]:>9.0f}{after[0]:>10.0f}{after[0] / before[0]:>7.2f}"
        f"{before[1]:>11.0f}{after[1]:>10.0f}{after[1] / before[1]:>7.2f}"
    )


async def main() -> None:
    server = StdioServer(sys.executable, ("-c", SERVER))
    parameters = StdioServerParameters(command=server.command, args=list(server.args))
    print(
        f"{'a call, µs':<30}{'SDK cpu':>9}{'toolcrib':>10}{'':>7}{'SDK clock':>11}{'toolcrib':>10}"
    )
    async with Client(parameters, mode="legacy") as client:
        await client.list_tools()
        async with mcp_catalog(server, client={"mode": "legacy"}) as catalog:
            for tool in ("echo", "count"):
                await _show(tool, theirs(client, tool), ours(catalog, tool))
        elsewhere = mcp_catalog(server, client={"mode": "legacy"})
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(elsewhere) as catalog,
        ):
            await _show("echo, another thread's", theirs(client, "echo"), ours(catalog, "echo"))


if __name__ == "__main__":
    asyncio.run(main())
