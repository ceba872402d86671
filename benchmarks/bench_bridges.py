"""C: one tool call through each bridge, next to the framework's own tool of the same function.

The floor is what the framework does for its own tool with the same arguments. Ours goes through
`ToolRunner.exec`, with policy, redaction and a record in memory. The figures are microseconds of this
process's CPU a call, in all its threads; a server that is a process of its own does not count. Floor
and bridge take turns, and the minimum of the rounds counts.

- `consume MCP`: the server is a program that answers at once, over its standard input and output; the
  floor is `ClientSession.call_tool`. With `other thread`, that thread's event loop owns our connection.
- `serve MCP`: the client runs in this process and counts, too, in both eras of the protocol. The SDK's
  `MCPServer` reads arguments by the function's hints; its bare handler checks nothing.
- `OpenAPI`: the floor is aiohttp, with a new session for each call, as ours has (no call shares a
  connection, a cookie or a resolved name with another), or with one session that keeps its connection.
- `LiteLLM`: a turn of a model that calls a tool; LiteLLM makes up the reply, and no tool runs.

A bridge is a function that yields its rows: add yours to BRIDGES.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any, Literal, NamedTuple

import aiohttp
import mcp_types as types
import msgspec
from anyio.from_thread import start_blocking_portal
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool as langchain_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from mcp import Client, StdioServerParameters
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from workload import arguments, look_up

from toolcrib import ALL, Completed, ToolCall, ToolRunner, Trusted, tool
from toolcrib.bridges.langchain import from_langchain_tool, to_langchain_tools
from toolcrib.bridges.litellm import litellm_client
from toolcrib.bridges.mcp import StdioServer, mcp_catalog, mcp_server
from toolcrib.bridges.openapi import ApiServer, openapi_catalog
from toolcrib.clients import request_of
from toolcrib.testing import MemorySink
from toolcrib.tools import Catalog, tool_of
from toolcrib.wire import OPENAI_CHAT, encode

ROUNDS = 7
TEXT = arguments("small")
ARGUMENTS = msgspec.json.decode(TEXT)
Once = Callable[[], Awaitable[object]]
_ids = itertools.count()


class Row(NamedTuple):
    """The same call, made by the framework alone and through a bridge; `times` in a round."""

    name: str
    floor: Once
    bridge: Once
    times: int = 200


def executed(tools: Any, name: str = "look_up", text: str = TEXT) -> Once:
    """Return a function that executes one call by a new runner of these tools."""
    sink = MemorySink()
    runner = ToolRunner(tools, sinks=[sink])

    async def once() -> object:
        sink.records.clear()
        outcome = await runner.exec(ToolCall(f"call_{next(_ids)}", name, text))
        assert isinstance(outcome, Completed)
        return outcome

    return once


def trusted(catalog: Catalog) -> Catalog:
    """Return the catalog with all of its imported tools trusted, so that none of them asks."""
    known = {name: tool_of(catalog[name]).imported for name in catalog.names}
    return catalog.trusting({name: Trusted(said.origin) for name, said in known.items() if said})


MCP_SERVER = """
import json, sys
INTEGER, STRING = {"type": "integer"}, {"type": "string"}
TAKES = {"type": "object", "properties": {"query": STRING, "limit": INTEGER}}
GIVES = {"type": "object", "properties": {"found": INTEGER}, "required": ["found"]}
STRUCTURED = {"name": "structured", "inputSchema": TAKES, "outputSchema": GIVES}
TOOLS = {"tools": [{"name": "text", "inputSchema": TAKES}, STRUCTURED]}
BEGUN = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
BEGUN["serverInfo"] = {"name": "bench", "version": "1"}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    result = BEGUN if asked["method"] == "initialize" else TOOLS
    if asked["method"] == "tools/call":
        given = asked["params"]["arguments"]
        found = {"found": len(given["query"]) + given["limit"]}
        result = {"content": [{"type": "text", "text": json.dumps(found)}]}
        if asked["params"]["name"] == "structured":
            result["structuredContent"] = found
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


@asynccontextmanager
async def mcp_servers() -> AsyncIterator[list[Row]]:
    """A tool of an MCP server: one gives a text, one structured content that its schema describes."""
    server = StdioServer(sys.executable, ("-c", MCP_SERVER))
    parameters = StdioServerParameters(command=server.command, args=list(server.args))
    elsewhere = mcp_catalog(server, client={"mode": "legacy"})
    async with (
        Client(parameters, mode="legacy") as client,
        mcp_catalog(server, client={"mode": "legacy"}) as catalog,
    ):
        await client.list_tools()  # so that it knows the schema, and checks results, too

        def row(told: str, given: Catalog, name: str) -> Row:
            floor: Once = lambda: client.session.call_tool(name, ARGUMENTS)  # noqa: E731
            return Row(f"consume MCP, {told}", floor, executed(trusted(given), name))

        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(elsewhere) as threaded,
        ):
            yield [
                row("text", catalog, "text"),
                row("structured", catalog, "structured"),
                row("other thread", threaded, "text"),
            ]


async def _listed(_context: Any, _params: Any) -> types.ListToolsResult:
    schema: dict[str, Any] = {"type": "object"}
    return types.ListToolsResult(tools=[types.Tool(name="look_up", input_schema=schema)])


async def _called(_context: Any, _params: types.CallToolRequestParams) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text="{}")], structured_content={})


Era = Literal["legacy", "2026-07-28"]
ERAS: dict[Era, str] = {"legacy": "2025", "2026-07-28": "2026"}


@asynccontextmanager
async def mcp_clients() -> AsyncIterator[list[Row]]:
    """Our tool, called by an MCP client, next to the two servers of the SDK."""
    theirs = MCPServer("theirs")
    theirs.add_tool(look_up)
    sink = MemorySink()
    ours = mcp_server(ToolRunner([tool(look_up, visible=ALL)], sinks=[sink])).server
    bare = Server("floor", on_list_tools=_listed, on_call_tool=_called)
    rows = []
    async with AsyncExitStack() as stack:

        async def calling(server: Any, era: Era) -> Once:
            client = await stack.enter_async_context(Client(server, mode=era))
            await client.list_tools()

            async def once() -> object:
                sink.records.clear()
                result = await client.call_tool("look_up", ARGUMENTS)
                assert not result.is_error
                return result

            return once

        for era, told in ERAS.items():
            through = await calling(ours, era)
            for name, floor in (("MCPServer", theirs), ("bare handler", bare)):
                rows.append(Row(f"serve MCP {told}, vs {name}", await calling(floor, era), through))
        yield rows


API_SERVER = """
from aiohttp import web

async def look_up(request):
    said = await request.json()
    return web.json_response({"found": len(said["query"]) + int(request.match_info["limit"])})

app = web.Application()
app.router.add_post("/v1/items/{limit}", look_up)
web.run_app(app, host="127.0.0.1", port=0, print=lambda text: print(text, flush=True))
"""
INTEGER = {"type": "integer"}
FOUND = {"type": "object", "required": ["found"], "properties": {"found": INTEGER}}
QUERY = {"type": "object", "required": ["query"], "properties": {"query": {"type": "string"}}}
OPERATION = {
    "operationId": "look_up",
    "parameters": [{"name": "limit", "in": "path", "required": True, "schema": INTEGER}],
    "requestBody": {"content": {"application/json": {"schema": QUERY}}},
    "responses": {"200": {"content": {"application/json": {"schema": FOUND}}}},
}
DOCUMENT: dict[str, Any] = {"openapi": "3.0.3", "paths": {"/items/{limit}": {"post": OPERATION}}}


@asynccontextmanager
async def _api() -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", API_SERVER, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    said = (await process.stdout.readline()).decode()
    try:
        yield f"http://{said.partition('http://')[2].split()[0]}/v1"
    finally:
        process.terminate()
        await process.communicate()


@asynccontextmanager
async def openapi() -> AsyncIterator[list[Row]]:
    """An operation of an HTTP API."""
    said = {"query": ARGUMENTS["query"]}
    text = msgspec.json.encode({"limit": ARGUMENTS["limit"], "body": said}).decode()
    async with _api() as address, aiohttp.ClientSession() as kept:

        async def post(session: aiohttp.ClientSession) -> object:
            async with session.post(f"{address}/items/{ARGUMENTS['limit']}", json=said) as answer:
                return await answer.json()

        async def anew() -> object:
            async with aiohttp.ClientSession() as session:
                return await post(session)

        ours = executed(trusted(openapi_catalog(DOCUMENT, http=ApiServer(address))), text=text)
        yield [
            Row("OpenAPI, vs a session a call", anew, ours),
            Row("OpenAPI, vs one session", lambda: post(kept), ours),
        ]


@asynccontextmanager
async def langchain() -> AsyncIterator[list[Row]]:
    """LangChain's `@tool`: called by itself, in a ToolNode of a graph, and from a catalog of ours."""
    theirs = langchain_tool(look_up)
    sink = MemorySink()
    (ours,) = to_langchain_tools(ToolRunner([tool(look_up, visible=ALL)], sinks=[sink]))

    def call() -> Any:
        sink.records.clear()
        name = f"call_{next(_ids)}"
        return {"type": "tool_call", "name": "look_up", "id": name, "args": ARGUMENTS}

    def by_itself(made: Any) -> Once:
        return lambda: made.ainvoke(call())

    def in_a_graph(made: Any) -> Once:
        graph = StateGraph(MessagesState)
        graph.add_node("tools", ToolNode([made]))
        graph.add_edge(START, "tools")
        compiled = graph.compile(checkpointer=InMemorySaver())

        async def once() -> object:
            asked = call()
            said: Any = [HumanMessage("Look it up."), AIMessage("", tool_calls=[asked])]
            of: Any = {"configurable": {"thread_id": asked["id"]}}
            return await compiled.ainvoke({"messages": said}, of)

        return once

    brought = executed([from_langchain_tool(theirs, visible=ALL, own=True)])
    yield [
        Row("to LangChain, ainvoke", by_itself(theirs), by_itself(ours), times=500),
        Row("to LangGraph, a ToolNode", in_a_graph(theirs), in_a_graph(ours), times=60),
        Row("from LangChain, exec", by_itself(theirs), brought, times=500),
    ]


@asynccontextmanager
async def litellm() -> AsyncIterator[list[Row]]:
    """A turn whose reply has a call, without a server."""
    library: Any = import_module("litellm")
    for name in ("asyncio", "LiteLLM"):  # both log tasks that LiteLLM loses when loops take turns
        logging.getLogger(name).setLevel("CRITICAL")
    function = {"name": "look_up", "arguments": TEXT}
    made = [{"id": "call_1", "type": "function", "function": function}]
    given = {"mock_response": "I look it up. " * 20, "mock_tool_calls": made, "api_key": "k"}
    client = litellm_client("openai/m", given=given)
    offered = request_of("Look it up.", [tool(look_up, visible=ALL)])
    body = msgspec.json.decode(encode(OPENAI_CHAT, offered, model="openai/m").body)
    alone: Once = lambda: library.acompletion(**body, **given)  # noqa: E731
    yield [Row("LiteLLM, a turn", alone, lambda: client.chat(offered), times=100)]


BRIDGES = (mcp_servers, mcp_clients, openapi, langchain, litellm)


async def _measure(once: Once, times: int) -> float:
    started = time.process_time()
    for _ in range(times):
        await once()
    return (time.process_time() - started) / times * 1e6


async def main() -> None:
    print(f"{'a call':<34}{'framework µs':>14}{'toolcrib µs':>13}{'ratio':>8}{'more µs':>10}")
    for bridge in BRIDGES:
        async with bridge() as rows:
            for name, floor, ours, times in rows:
                pairs = [
                    (await _measure(floor, times), await _measure(ours, times))
                    for _ in range(ROUNDS)
                ]
                least, most = (min(taken) for taken in zip(*pairs, strict=True))
                ratio, more = most / least, most - least
                print(f"{name:<34}{least:>14.1f}{most:>13.1f}{ratio:>8.2f}{more:>10.1f}")


if __name__ == "__main__":
    asyncio.run(main())
