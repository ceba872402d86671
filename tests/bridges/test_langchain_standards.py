"""LangChain's own standard tests for tools, on a runner's."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import BaseTool
from langchain_tests.integration_tests import ToolsIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests

from toolcrib import ALL, Catalog, ToolRunner, capability, tool
from toolcrib.bridges.langchain import to_langchain_tools


@capability
class Shelf:
    """What there is."""

    async def find(self, name: str) -> int:
        return len(name)


@tool(visible=ALL)
async def look_up(name: str, shelf: Shelf, limit: int = 10) -> dict[str, int]:
    """Look something up.

    Args:
        name: What is looked for.
        limit: How many at most.
    """
    return {"found": min(limit, await shelf.find(name))}


@tool(visible=["when"])
class Remind:
    """Remind somebody."""

    def __init__(self, text: str, minutes: int) -> None:
        self.text, self.minutes = text, minutes

    async def run(self) -> dict[str, Any]:
        return {"when": self.minutes, "text": self.text}


@tool(visible=ALL)
def plain(a: float, b: float) -> float:
    """Divide."""
    return a / b


RUNNER = ToolRunner(Catalog([look_up, Remind, plain]).bind({Shelf: Shelf()}))
EXAMPLES: list[dict[str, Any]] = [
    {"name": "tea"},
    {"text": "tea", "minutes": 5},
    {"a": 1, "b": 4},
]
CASES = list(zip(to_langchain_tools(RUNNER), EXAMPLES, strict=True))


class OurTool:
    """Gives the standard tests each tool in turn."""

    case: tuple[BaseTool, dict[str, Any]] = CASES[0]

    @pytest.fixture(autouse=True, params=CASES, ids=lambda case: case[0].name)
    def each(self, request: pytest.FixtureRequest) -> None:
        self.case = request.param

    @property
    def tool_constructor(self) -> BaseTool:
        return self.case[0]

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return dict(self.case[1])


class TestUnit(OurTool, ToolsUnitTests):
    @pytest.fixture
    def tool(self, each: None) -> BaseTool:
        return self.tool_constructor


class TestIntegration(OurTool, ToolsIntegrationTests):
    @pytest.fixture
    def tool(self, each: None) -> BaseTool:
        return self.tool_constructor
