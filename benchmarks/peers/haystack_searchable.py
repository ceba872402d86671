"""haystack: `SearchableToolset`, its `search_tools` called with the request as keywords."""

from __future__ import annotations

from collections.abc import Sequence

from haystack.tools import SearchableToolset
from haystack.tools import Tool as HaystackTool
from protocol import Search, Tool, serve
from text import valid_schema


def build(tools: list[Tool]) -> Search:
    def nothing(**_: object) -> None:
        return None

    catalog = [
        HaystackTool(
            name=tool["name"],
            description=tool["description"],
            parameters=valid_schema(tool["input_schema"]),
            function=nothing,
        )
        for tool in tools
    ]
    toolset = SearchableToolset(catalog=catalog, top_k=10)
    toolset.warm_up()
    search_tools = next(iter(toolset))

    def search(query: str, top: int) -> Sequence[str]:
        toolset.clear()
        search_tools.invoke(tool_keywords=query, k=top)
        return [tool.name for tool in toolset][1:]  # what is found is loaded, in this order

    return search


if __name__ == "__main__":
    serve(build)
