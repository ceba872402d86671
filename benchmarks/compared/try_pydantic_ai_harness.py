"""What pydantic-ai does with its makers' own library of capabilities, where it does not do it alone.

In an environment of its own: the newest pydantic-ai-harness takes an older pydantic-ai.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import features
from acp import schema
from features import LONG, Cell, partly, yes
from pydantic_ai import Agent, Tool
from pydantic_ai.capabilities import LocalWorkspace
from pydantic_ai_harness import (
    BackgroundTools,
    Memory,
    Shell,
    SpendLimits,
    StepPersistence,
    ToolOutputLimits,
)
from pydantic_ai_harness.experimental.acp import PydanticAIACPAgent
from pydantic_ai_harness.memory import SqliteMemoryStore
from pydantic_ai_harness.spend import Budget, SpendLimitExceeded
from pydantic_ai_harness.step_persistence import SqliteStepStore
from try_pydantic_ai import Scripted, ran, refund


def names(offered: Iterable[list[str]]) -> set[str]:
    """Return the tools that were offered in any of the requests."""
    return {name for request in offered for name in request}


class Client:
    """Answers what an editor would: yes, always."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def session_update(self, *_: Any, **__: Any) -> None:
        """Show nothing."""

    async def request_permission(self, *, tool_call: Any, **_: Any) -> Any:
        self.asked.append(str(tool_call.raw_input))
        chosen = schema.AllowedOutcome(outcome="selected", option_id="allow_always")
        return schema.RequestPermissionResponse(outcome=chosen)


async def always_rule() -> Cell:
    ran.clear()
    one, other = ("refund", {"order": 79, "cents": 20}), ("refund", {"order": 80, "cents": 20})
    said = Scripted(*(turn for made in (one, one, other, one) for turn in (made, "Done.")))
    agent = Agent(said.model, tools=[Tool(refund, requires_approval=True)])
    served = PydanticAIACPAgent(agent)
    client = Client()
    served.on_connect(client)
    here = (await served.new_session(cwd="/", mcp_servers=[])).session_id
    later = (await served.new_session(cwd="/", mcp_servers=[])).session_id
    text = schema.TextContentBlock(type="text", text="Refund.")
    asked = []
    for session in (here, here, here, later):
        await served.prompt(prompt=[text], session_id=session)
        asked.append(len(client.asked))
    assert asked == [1, 1, 2, 3], asked
    assert len(ran) == 4
    return partly("its ACP server (experimental): the same arguments, in that session")


async def spend_per_caller() -> Cell:
    budget = Budget(usd=Decimal(1), window="day", scope=lambda run: run.deps, name="user")
    limits = SpendLimits(budgets=[budget], price=lambda *_: Decimal("0.6"))
    ended = []
    for who in ("ada", "ada", "ada", "bob"):
        try:
            agent = Agent(Scripted("Hello.").model, deps_type=str, capabilities=[limits])
            await agent.run("Hello?", deps=who)
            ended.append("completed")
        except SpendLimitExceeded:
            ended.append("limited")
    assert ended == ["completed", "completed", "limited", "completed"]
    return yes("`SpendLimits`: money, in a window of time")


async def fork() -> Cell:
    ran.clear()
    store = SqliteStepStore(database="steps.db")
    said = Scripted(("refund", {"order": 7}), "Done.", ("refund", {"order": 7}), "Done.")
    agent = Agent(said.model, tools=[refund], capabilities=[StepPersistence(store=store)])
    first = await agent.run("My tea was cold.")
    snapshots = await store.list_snapshots(run_id=first.run_id)
    earlier = min(snapshots, key=lambda each: len(each.messages))
    events = await store.list_events(run_id=first.run_id)
    assert "refund" in str(events)
    await agent.run("Refund it, please.", message_history=list(earlier.messages))
    assert ran == [(7, 9), (7, 9)]
    return yes("`StepPersistence`: a ledger has them; the call is made twice")


async def context_spill() -> Cell:
    def report(year: int) -> str:
        """Give the report of a year."""
        del year
        return LONG

    said = Scripted(
        ("report", {"year": 2025}),
        lambda messages: ("read_tool_result", {"handle": handle(messages), "pattern": "surplus"}),
        "It was 12.",
    )
    capabilities = [LocalWorkspace("."), ToolOutputLimits()]
    await Agent(said.model, tools=[report], capabilities=capabilities).run("What was the surplus?")
    assert len(str(said.requests[1])) < 20_000
    assert "read_tool_result" in said.offered[1]
    assert "The surplus was 12." in str(said.requests[2][-1])
    return yes("`ToolOutputLimits`: by a tool that reads and searches")


def handle(messages: list[Any]) -> str:
    """Return the handle that a shortened result names."""
    metadata = messages[-1].parts[0].metadata
    return str(metadata["overflow_handle"])


async def background_tools() -> Cell:
    async def report() -> str:
        """Give the report, which takes a while."""
        await asyncio.sleep(0.2)
        return "The surplus was 12."

    made = Tool(report, metadata={"background": True})
    said = Scripted(("report", {}), "It is on its way.", "It was 12.")
    agent = Agent(said.model, tools=[made], capabilities=[BackgroundTools()])
    result = await agent.run("What was the surplus?")
    assert "The surplus was 12." not in str(said.requests[1])
    assert "The surplus was 12." in str(said.requests[2][-1])
    assert result.output == "It was 12."
    return yes("`BackgroundTools`: as a later message")


async def memory() -> Cell:
    store = SqliteMemoryStore(database="memory.db")
    said = Scripted(("write_memory", {"content": "Ada drinks tea."}), "Noted.", "Tea.")
    for prompt in ("I drink tea.", "What do I drink?"):
        agent = Agent(said.model, capabilities=[Memory(store)])
        await agent.run(prompt)
    assert "Ada drinks tea." in str(said.requests[-1])
    return yes("`Memory`: a notebook")


async def shell() -> Cell:
    said = Scripted(("run_command", {"command": "echo 4 | tr 4 5"}), "Done.")
    await Agent(said.model, capabilities=[LocalWorkspace("."), Shell()]).run("Run it.")
    assert "5" in str(said.requests[1][-1].parts[0].content)
    return yes("`Shell`")


if __name__ == "__main__":
    features.main(globals(), "pydantic-ai-harness", "pydantic-ai-slim")
