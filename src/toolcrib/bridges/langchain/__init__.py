"""LangChain and LangGraph in both directions. `to_langchain_tools` gives a runner's tools to their
agents, and `from_langchain_tool` gives their tools to a catalog. Needs the extra `langchain`."""

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
