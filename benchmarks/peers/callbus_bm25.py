"""callbus: its BM25 over listings of an MCP server, with stems (`callbus[stem]`).

Its default is an 8-billion-parameter embedding model behind an endpoint, which needs a GPU: that is
not measured here.
"""

from __future__ import annotations

from collections.abc import Sequence

from callbus import Query
from callbus.adapters.bm25 import BM25Scorer
from callbus.ingest.mcp import tools_from_listing
from protocol import Search, Tool, serve

_SERVER = "tools"


def build(tools: list[Tool]) -> Search:
    listing = [
        {
            "name": tool["name"],
            "description": tool["description"],
            "inputSchema": tool["input_schema"],
        }
        for tool in tools
    ]
    scorer = BM25Scorer()
    scorer.index(tools_from_listing(_SERVER, listing))

    def search(query: str, top: int) -> Sequence[str]:
        (found,) = scorer.rank([Query("q", query, {})], top)
        pairs = zip(found.tool_ids, found.scores, strict=True)
        return [tool.removeprefix(f"{_SERVER}/") for tool, score in pairs if score > 0]

    return search


if __name__ == "__main__":
    serve(build)
