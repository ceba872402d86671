"""`search_tools`: the tool by which a model asks for more tools, where only some are offered.

It is a tool like any other: offered, hydrated, decided and recorded as such. It changes nothing; what
it found is read from its result, and is on offer from the next turn on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Protocol, TypedDict

from pydantic import Field

from toolcrib.tools import Tool, capability, tool
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonValue

NAME = "search_tools"
_SHOWN = 300
_LONGEST_QUERY = 1_000


@capability
class ToolSearch(Protocol):
    """The tools that the run of a call may have."""

    async def find(self, query: str, limit: int) -> Sequence[ToolDefinition]: ...


class FoundTool(TypedDict):
    name: str
    description: str


class FoundTools(TypedDict):
    tools: list[FoundTool]


@cache
def search_tools() -> Tool[..., Any]:
    """The tool; made when it is first wanted."""

    @tool(visible=["tools[].name"], read_only=True, idempotent=True, name=NAME)
    async def search(
        query: Annotated[str, Field(min_length=1, max_length=_LONGEST_QUERY)],
        shelf: ToolSearch,
        limit: Annotated[int, Field(ge=1, le=10)] = 5,
    ) -> FoundTools:
        """Find more tools, if none of those that you have does what is needed.

        Those that are found can be called from your next turn on.

        Args:
            query: What the tool should do, in a few words.
            limit: How many tools to find at most.
        """
        found = await shelf.find(query, limit)
        return {"tools": [{"name": d.name, "description": _short(d.description)} for d in found]}

    return search


def names_found(result: JsonValue) -> list[str]:
    """The names in a record's result: what is visible of it."""
    tools = result.get("tools") if isinstance(result, dict) else None
    entries = tools if isinstance(tools, list) else []
    named = [entry.get("name") for entry in entries if isinstance(entry, dict)]
    return [name for name in named if isinstance(name, str)]


def _short(description: str) -> str:
    return description if len(description) <= _SHOWN else f"{description[: _SHOWN - 1]}…"
