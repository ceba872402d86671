"""Tools: how they are declared, what they are given, and the catalog that holds them."""

from toolcrib.tools.capability import Injected, Need, capability
from toolcrib.tools.catalog import Catalog, Entry, ToolLike, Tools, as_tools
from toolcrib.tools.component import BoundCall, Tool, ToolComponent, tool_of
from toolcrib.tools.decorator import tool
from toolcrib.tools.definitions import function_to_tool_definition, get_definition

__all__ = [
    "BoundCall",
    "Catalog",
    "Entry",
    "Injected",
    "Need",
    "Tool",
    "ToolComponent",
    "ToolLike",
    "Tools",
    "as_tools",
    "capability",
    "function_to_tool_definition",
    "get_definition",
    "tool",
    "tool_of",
]
