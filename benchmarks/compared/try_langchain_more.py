"""What langchain does with other packages of its makers, where it does not do it alone."""

from __future__ import annotations

from typing import Any

import features
from deepagents import create_deep_agent
from deepagents.backends.filesystem import FilesystemBackend
from features import LONG, Cell, yes
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph_swarm import create_handoff_tool, create_swarm
from try_langchain import said_by, scripted

THREAD: Any = {"configurable": {"thread_id": "1"}}


async def context_spill() -> Cell:
    def report(year: int) -> str:
        """Give the report of a year."""
        del year
        return LONG

    def look(messages: Any) -> Any:
        text = messages[-1].text
        start = text.index("/large_tool_results")
        path = text[start:].split()[0].strip("'\"`.,")
        return "grep", {"pattern": "surplus", "path": path, "output_mode": "content"}

    model = scripted(("report", {"year": 2025}), look, "It was 12.")
    agent = create_deep_agent(model, [report])
    await agent.ainvoke(said_by("What was the surplus?"))
    shown = next(m for m in model.requests[1] if m.type == "tool")
    assert len(str(shown.content)) < 20_000
    assert "The surplus was 12." in str(model.requests[2][-1].content)
    return yes("`deepagents`: a file that it can search")


async def memory() -> Cell:
    backend = FilesystemBackend(root_dir=".", virtual_mode=True)
    features.write("AGENTS.md", "# Notes\n")
    made = "edit_file", {"file_path": "/AGENTS.md", "old_string": "# Notes", "new_string": "# Tea"}
    model = scripted(made, "Noted.", "Tea.")
    for prompt in ("I drink tea.", "What do I drink?"):
        agent = create_deep_agent(model, memory=["/AGENTS.md"], backend=backend)
        await agent.ainvoke(said_by(prompt))
    assert "# Tea" in str(model.requests[2][0].content)
    return yes("`deepagents`: a file")


async def handover() -> Cell:
    billing = scripted("You have it back.", "You are welcome.")
    to_billing = create_handoff_tool(agent_name="billing")
    front = create_agent(scripted(("transfer_to_billing", {})), [to_billing], name="reception")
    agents: Any = [front, create_agent(billing, [], name="billing")]
    built = create_swarm(agents, default_active_agent="reception")
    swarm = built.compile(checkpointer=InMemorySaver())
    await swarm.ainvoke(said_by("My tea was cold."), THREAD)
    await swarm.ainvoke(said_by("Thanks!"), THREAD)
    assert "My tea was cold." in str(billing.requests[0])
    assert len(billing.requests) == 2
    return yes("`langgraph-swarm`, and stays")


if __name__ == "__main__":
    features.main(globals(), "deepagents", "langgraph-swarm", "langchain")
