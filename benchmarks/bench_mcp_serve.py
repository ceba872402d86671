"""C: one call of our tool by an MCP client, against the same tool of the SDK's own servers.

The client is the SDK's, in the same process, and in both eras of the protocol: what is measured is the
server's work and the client's. `lowlevel` is the SDK's server with a handler that answers at once and
checks nothing; `MCPServer` reads arguments by the function's hints. Ours validates by the schema,
decides, redacts and records in memory. Microseconds of CPU; servers take turns; the least counts.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any, Literal

import mcp_types as types
from mcp import Client
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer

from toolcrib import ALL, ToolRunner, tool
from toolcrib.bridges.mcp import mcp_server
from toolcrib.testing import MemorySink

ROUNDS, CALLS = 9, 200
ARGUMENTS = {"text": "the price of tea in china", "limit": 3}
ERAS: tuple[Literal["legacy", "2026-07-28"], ...] = ("legacy", "2026-07-28")


@tool(visible=ALL)
async def search(text: str, limit: int = 10) -> dict[str, int]:
    """Search, and count."""
    return {text: limit}


async def _listed(_context: Any, _params: Any) -> types.ListToolsResult:
    schema: dict[str, Any] = {"type": "object"}
    return types.ListToolsResult(tools=[types.Tool(name="search", input_schema=schema)])


async def _called(_context: Any, _params: types.CallToolRequestParams) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text="{}")], structured_content={})


def servers() -> dict[str, Any]:
    theirs = MCPServer("theirs")
    theirs.add_tool(_plain, name="search")
    runner = ToolRunner([search], sinks=[MemorySink()])
    return {
        "lowlevel": Server("floor", on_list_tools=_listed, on_call_tool=_called),
        "MCPServer": theirs,
        "toolcrib": mcp_server(runner).server,
    }


async def _plain(text: str, limit: int = 10) -> dict[str, int]:
    """Search, and count."""
    return {text: limit}


async def _measure(client: Client) -> float:
    began = time.process_time()
    for _ in range(CALLS):
        await client.call_tool("search", ARGUMENTS)
    return (time.process_time() - began) / CALLS * 1e6


async def main() -> None:
    named = servers()
    print(f"{'a call, µs':<14}" + "".join(f"{name:>12}" for name in named))
    for era in ERAS:
        async with AsyncExitStack() as stack:
            clients = {
                name: await stack.enter_async_context(Client(server, mode=era))
                for name, server in named.items()
            }
            for client in clients.values():
                await client.list_tools()
                await _measure(client)
            rounds = [
                {name: await _measure(client) for name, client in clients.items()}
                for _ in range(ROUNDS)
            ]
        least = (min(each[name] for each in rounds) for name in named)
        print(f"{era:<14}" + "".join(f"{number:>12.0f}" for number in least))


if __name__ == "__main__":
    asyncio.run(main())
