"""fastmcp: a server with `BM25SearchTransform`, its `search_tools` called as a client's call is.

The results are names only, which spares it writing out the definitions found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fastmcp import FastMCP
from fastmcp.server.transforms.search import BM25SearchTransform
from fastmcp.tools import Tool as ServerTool
from protocol import Search, Tool, serve


def build(tools: list[Tool]) -> Search:
    server: Any = FastMCP("peer")
    for tool in tools:
        server.add_tool(
            ServerTool(
                name=tool["name"],
                description=tool["description"],
                parameters=tool["input_schema"],
            )
        )
    found: list[str] = []

    def names(results: Sequence[Any]) -> str:
        found[:] = [result.name for result in results]
        return ""

    server.add_transform(BM25SearchTransform(max_results=10, search_result_serializer=names))
    loop = asyncio.new_event_loop()

    def search(query: str, top: int) -> Sequence[str]:
        del top
        loop.run_until_complete(server.call_tool("search_tools", {"query": query}))
        return found

    search("build the index", 10)
    return search


if __name__ == "__main__":
    serve(build)
