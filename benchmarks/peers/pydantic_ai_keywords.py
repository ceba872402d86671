"""pydantic-ai: what its `search_tools` does for a model that has no tool search of its own.

Driven as an agent does: a toolset of deferred tools, wrapped in `ToolSearchToolset`, whose
`search_tools` is called. It answers with 10 at most. (The toolset is not exported: `ToolSearch`, the
capability that makes it, needs an agent and a model around it.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from protocol import Search, Tool, serve
from pydantic_ai import ModelRetry, RunContext, RunUsage
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset
from pydantic_ai.toolsets._tool_search import ToolSearchToolset

_SEARCH = "search_tools"


def build(tools: list[Tool]) -> Search:
    definitions = [
        ToolDefinition(
            name=tool["name"],
            description=tool["description"],
            parameters_json_schema=tool["input_schema"],
            defer_loading=True,
        )
        for tool in tools
    ]
    toolset = ToolSearchToolset(wrapped=ExternalToolset(definitions))
    context = RunContext(deps=None, model=TestModel(), usage=RunUsage())
    loop = asyncio.new_event_loop()
    offered = loop.run_until_complete(toolset.get_tools(context))[_SEARCH]

    def search(query: str, top: int) -> Sequence[str]:
        del top
        called = toolset.call_tool(_SEARCH, {"queries": [query]}, context, offered)
        try:
            found = loop.run_until_complete(called)
        except ModelRetry:  # it knows no word but those of a-z and 0-9, and this has none
            return []
        return [match["name"] for match in found["discovered_tools"]]

    search("build the index", 10)
    return search


if __name__ == "__main__":
    serve(build)
