"""graph-tool-call: `ToolGraph.retrieve` over an ingested MCP listing, without a model."""

from __future__ import annotations

from collections.abc import Sequence

from graph_tool_call import ToolGraph
from protocol import Search, Tool, serve
from text import valid_schema


def build(tools: list[Tool]) -> Search:
    graph = ToolGraph()
    graph.ingest_mcp_tools(
        [
            {
                "name": tool["name"],
                "description": tool["description"],
                "inputSchema": valid_schema(tool["input_schema"]),
            }
            for tool in tools
        ]
    )
    graph.retrieve("build the index", top_k=10)

    def search(query: str, top: int) -> Sequence[str]:
        return [tool.name for tool in graph.retrieve(query, top_k=top)]

    return search


if __name__ == "__main__":
    serve(build)
