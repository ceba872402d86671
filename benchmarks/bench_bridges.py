"""C: one tool call through each bridge, against the framework's own tool of the same function; for
LiteLLM a turn of a model that calls a tool, which LiteLLM makes up, against LiteLLM alone.

The floor is what the framework does for its own tool, with the same arguments: it validates them and
calls the function. Ours does that through `ToolRunner.exec`, with policy, redaction and a record in
memory. CPU microseconds a call, interleaved; the minimum of the rounds. A bridge is a function that
gives its rows: add yours to BRIDGES.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any, NamedTuple

import msgspec
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool as langchain_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from toolcrib import ALL, ToolRunner, tool
from toolcrib.bridges.langchain import from_langchain_tool, to_langchain_tools
from toolcrib.bridges.litellm import litellm_client
from toolcrib.clients import request_of
from toolcrib.testing import MemorySink
from toolcrib.values.call import ToolCall
from toolcrib.wire import OPENAI_CHAT, encode

ROUNDS = 7
Once = Callable[[], Awaitable[object]]


class Row(NamedTuple):
    """The same call, made by the framework alone and through a bridge; `times` in a round."""

    name: str
    floor: Once
    bridge: Once
    times: int = 500


async def look_up(query: str, limit: int) -> dict[str, int]:
    """Look something up."""
    return {"found": len(query) + limit}


ARGUMENTS = {"query": "the price of tea in china", "limit": 10}
TEXT = '{"query": "the price of tea in china", "limit": 10}'


@asynccontextmanager
async def langchain() -> AsyncIterator[list[Row]]:
    """LangChain's `@tool`: called by itself, in a ToolNode of a graph, and from a catalog of ours."""
    theirs = langchain_tool(look_up)
    sink, ids = MemorySink(), itertools.count()
    runner = ToolRunner([tool(look_up, visible=ALL)], sinks=[sink])
    (ours,) = to_langchain_tools(runner)
    brought = ToolRunner([from_langchain_tool(theirs, visible=ALL, own=True)], sinks=[sink])

    def by_itself(made: Any) -> Once:
        async def once() -> object:
            sink.records.clear()
            name = f"call_{next(ids)}"
            call = {"type": "tool_call", "name": "look_up", "id": name, "args": ARGUMENTS}
            return await made.ainvoke(call)

        return once

    def in_a_graph(made: Any) -> Once:
        graph = StateGraph(MessagesState)
        graph.add_node("tools", ToolNode([made]))
        graph.add_edge(START, "tools")
        compiled = graph.compile(checkpointer=InMemorySaver())

        async def once() -> object:
            sink.records.clear()
            name = f"call_{next(ids)}"
            calls: Any = [{"type": "tool_call", "name": "look_up", "id": name, "args": ARGUMENTS}]
            said: Any = [HumanMessage("Look it up."), AIMessage("", tool_calls=calls)]
            return await compiled.ainvoke({"messages": said}, {"configurable": {"thread_id": name}})

        return once

    async def from_theirs() -> object:
        sink.records.clear()
        return await brought.exec(ToolCall(f"call_{next(ids)}", "look_up", TEXT))

    yield [
        Row("LangChain, ainvoke", by_itself(theirs), by_itself(ours)),
        Row("LangGraph, a ToolNode", in_a_graph(theirs), in_a_graph(ours), times=60),
        Row("from LangChain, exec", by_itself(theirs), from_theirs),
    ]


@asynccontextmanager
async def litellm() -> AsyncIterator[list[Row]]:
    """A turn with a call, which no server says."""
    library: Any = import_module("litellm")
    logging.getLogger("asyncio").setLevel("CRITICAL")  # LiteLLM leaves tasks when loops take turns
    function = {"name": "look_up", "arguments": TEXT}
    made = [{"id": "call_1", "type": "function", "function": function}]
    given = {"mock_response": "I look it up. " * 20, "mock_tool_calls": made, "api_key": "k"}
    client = litellm_client("openai/m", given=given)
    offered = request_of("Look it up.", [tool(look_up, visible=ALL)])
    body = msgspec.json.decode(encode(OPENAI_CHAT, offered, model="openai/m").body)

    async def alone() -> object:
        return await library.acompletion(**body, **given)

    async def ours() -> object:
        return await client.chat(offered)

    yield [Row("LiteLLM, a turn", alone, ours, times=100)]


BRIDGES = (langchain, litellm)


async def _measure(once: Once, times: int) -> float:
    started = time.process_time()
    for _ in range(times):
        await once()
    return (time.process_time() - started) / times * 1e6


async def main() -> None:
    print(f"{'a call':<26}{'framework µs':>14}{'toolcrib µs':>13}{'ratio':>8}{'more µs':>10}")
    for bridge in BRIDGES:
        async with bridge() as rows:
            for name, floor, ours, times in rows:
                pairs = [
                    (await _measure(floor, times), await _measure(ours, times))
                    for _ in range(ROUNDS)
                ]
                least, most = min(p[0] for p in pairs), min(p[1] for p in pairs)
                print(
                    f"{name:<26}{least:>14.1f}{most:>13.1f}{most / least:>8.2f}{most - least:>10.1f}"
                )


if __name__ == "__main__":
    asyncio.run(main())
