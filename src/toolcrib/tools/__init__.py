"""Tools: how they are declared, what is injected into them, and the catalog that holds them."""

from toolcrib.tools.capability import (
    Injected,
    Need,
    PerCall,
    capability,
    check_implements,
    per_call,
    per_run,
)
from toolcrib.tools.catalog import Catalog, Entry, ToolLike, Tools, as_tools
from toolcrib.tools.component import BoundCall, Tool, ToolComponent, tool_of
from toolcrib.tools.decorator import (
    function_to_tool_definition,
    get_definition,
    tool,
    toolset,
)
from toolcrib.tools.sources import (
    DefinitionsFile,
    EntryPoints,
    ModuleTools,
    PythonFile,
    ToolSource,
    discover,
    read_definitions,
    source_of,
)
from toolcrib.tools.trust import ReadOnly, Trusted

__all__ = [
    "BoundCall",
    "Catalog",
    "DefinitionsFile",
    "Entry",
    "EntryPoints",
    "Injected",
    "ModuleTools",
    "Need",
    "PerCall",
    "PythonFile",
    "ReadOnly",
    "Tool",
    "ToolComponent",
    "ToolLike",
    "ToolSource",
    "Tools",
    "Trusted",
    "as_tools",
    "capability",
    "check_implements",
    "discover",
    "function_to_tool_definition",
    "get_definition",
    "per_call",
    "per_run",
    "read_definitions",
    "source_of",
    "tool",
    "tool_of",
    "toolset",
]
