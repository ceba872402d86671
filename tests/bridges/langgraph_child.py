"""The process that is killed: `python -m bridges.langgraph_child FOLDER SAVER GRAPH DIES`.

Begins a graph that pays once, or goes on with one that was killed, and says yes where it is asked. The
effect is a line in FOLDER/paid. In a GRAPH of a clerk an agent makes the calls. DIES says when the
process kills itself: `effect` (paid, and nothing written of that), `recorded` (in the audit log, and
not in the checkpoint), `asked`, or `never`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from bridges.langchain_helpers import ASKED, agent, asks, reply, thread, told, tool_node
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from toolcrib import ALL, Agent, Approve, ToolInvocationRecord, ToolRunner, tool
from toolcrib.audit import AuditLog
from toolcrib.bridges.langchain import resume, to_langchain_tools
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.message import ChatRequest
from toolcrib.values.record import Sink

REPLY = reply(asks("look", "call_0", shelf=1), asks("pay", "call_1", cents=5))
CLERKS = reply(asks("clerk", "call_0", prompt="Pay."))
GRAPHS = {
    "agent": (agent, REPLY),
    "node": (tool_node, REPLY),
    "clerk": (agent, CLERKS),
    "clerk's node": (tool_node, CLERKS),
}


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Killer:
    """A sink that is told after the audit log was."""

    def __init__(self, dies: str) -> None:
        self._dies = dies == "recorded"

    def write(self, record: ToolInvocationRecord) -> None:
        if self._dies and (record.name, record.status) == ("pay", "completed"):
            kill()


def clerks(request: ChatRequest) -> Any:
    """Do as a model does that has two calls made, one after the other."""
    turn = sum(message.role == "assistant" for message in request.messages)
    return (call("look", shelf=1), call("pay", cents=5), "All paid.")[turn]


def built(folder: Path, log: AuditLog, dies: str, graph: str, saver: Any) -> Any:
    tools = tools_of(folder, dies)
    build, says = GRAPHS[graph]
    sinks: list[Sink] = [log, Killer(dies)]
    runner = ToolRunner(tools, sinks=sinks)
    if says is CLERKS:
        clerk = Agent(ScriptedClient([clerks] * 5), runner).as_tool("clerk", "Pays.", visible=ALL)
        runner = ToolRunner([clerk], sinks=sinks)
    return build(to_langchain_tools(runner), says, saver=saver)


def tools_of(folder: Path, dies: str) -> list[Any]:
    @tool(visible=ALL, safe=False)
    def pay(cents: int) -> str:
        """Pay once."""
        with (folder / "paid").open("a", encoding="utf-8") as paid:
            paid.write(f"{cents}\n")
            paid.flush()
            os.fsync(paid.fileno())
        if dies == "effect":
            kill()
        return f"paid {cents}"

    @tool(visible=ALL, read_only=True)
    def look(shelf: int) -> str:
        """Look at a shelf."""
        return f"shelf {shelf}"

    return [look, pay]


def next_step(interrupts: Any, *, begun: bool) -> Any:
    if not begun:
        return ASKED
    return resume(*((one, Approve("ada")) for one in interrupts)) if interrupts else None


async def waiting(folder: Path, saver: str, graph: str, dies: str) -> Any:
    """Run with AsyncSqliteSaver."""
    assert saver == "async"
    async with (
        AsyncSqliteSaver.from_conn_string(str(folder / "graph.db")) as kept,
        AuditLog(f"sqlite:///{folder}/audit.db") as log,
    ):
        made = built(folder, log, dies, graph, kept)
        state = await made.aget_state(thread())
        result = await made.ainvoke(
            next_step(state.interrupts, begun=bool(state.values)), thread(), durability="sync"
        )
        while "__interrupt__" in result:
            if dies == "asked":
                kill()
            command = next_step(result["__interrupt__"], begun=True)
            result = await made.ainvoke(command, thread(), durability="sync")
    return result


def blocking(folder: Path, saver: str, graph: str, dies: str) -> Any:
    """Run with SqliteSaver, and no loop but those of the calls."""
    assert saver == "sync"
    log = AuditLog(f"sqlite:///{folder}/audit.db")
    with SqliteSaver.from_conn_string(str(folder / "graph.db")) as kept:
        made = built(folder, log, dies, graph, kept)
        state = made.get_state(thread())
        result = made.invoke(
            next_step(state.interrupts, begun=bool(state.values)), thread(), durability="sync"
        )
        while "__interrupt__" in result:
            if dies == "asked":
                kill()
            command = next_step(result["__interrupt__"], begun=True)
            result = made.invoke(command, thread(), durability="sync")
    asyncio.run(log.aclose())
    return result


if __name__ == "__main__":
    where = Path(sys.argv[1])
    if sys.argv[2] == "async":
        ended = asyncio.run(waiting(where, *sys.argv[2:]))
    else:
        ended = blocking(where, *sys.argv[2:])
    for message in told(ended):
        sys.stdout.write(f"{message.status} {message.content}\n")
