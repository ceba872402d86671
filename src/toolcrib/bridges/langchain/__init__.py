"""LangChain and LangGraph, both ways: a runner's tools for their agents (`to_langchain_tools`), their
tools for a catalog (`from_langchain_tool`). Needs the extra `langchain`.
"""

from toolcrib.errors import MissingExtraError

try:
    import langchain_core
    import langgraph.types
except ImportError:
    raise MissingExtraError("langchain", "toolcrib.bridges.langchain") from None

from toolcrib.bridges.langchain.from_langchain import WithArtifact, from_langchain_tool
from toolcrib.bridges.langchain.to_langchain import RunnerTool, resume, to_langchain_tools

del langchain_core, langgraph

__all__ = ["RunnerTool", "WithArtifact", "from_langchain_tool", "resume", "to_langchain_tools"]
