"""ratel: `ToolCatalog.search`, BM25, its default. Its other methods fetch a model from a hub."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from protocol import Search, Tool, serve
from ratel_ai import ExecutableTool, ToolCatalog


def build(tools: list[Tool]) -> Search:
    catalog = ToolCatalog()

    async def register() -> None:
        await catalog.register(
            [
                ExecutableTool(
                    id=tool["name"],
                    name=tool["name"],
                    description=tool["description"],
                    input_schema=tool["input_schema"],
                    execute=lambda _: None,
                )
                for tool in tools
            ]
        )

    asyncio.run(register())

    def search(query: str, top: int) -> Sequence[str]:
        return [hit.tool_id for hit in catalog.search(query, top)]

    search("build the index", 10)
    return search


if __name__ == "__main__":
    serve(build)
