"""Peers that run one tool call: what `bench_people.py --peers FILE` measures next to toolcrib.

Each is driven where it itself goes when a model has called: the text of the arguments comes in, and its
own result comes out, which is not yet the text of a request. None asks a policy or writes a record.
The tools and the texts are those of `workload.py`. See `install.py --calls`.
"""

import itertools
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Any

import contest
import workload
from contest import Case, Make, Round, repeated

COUNTS = {"small": 500, "medium": 200, "large": 20}
Function = Callable[..., Any]
Once = Callable[[], Awaitable[object]]


def openai_agents(function: Function, text: str) -> Once:
    agents, context = import_module("agents"), import_module("agents.tool_context").ToolContext
    made = agents.function_tool(function, failure_error_function=None)
    ids = itertools.count()

    async def once() -> object:
        id_ = f"call_{next(ids)}"
        given = context(None, tool_name=made.name, tool_call_id=id_, tool_arguments=text)
        return await made.on_invoke_tool(given, text)

    return once


def strands(function: Function, text: str) -> Once:
    async def order(
        title: str, items: list[workload.Item], options: workload.Options
    ) -> workload.Invoice:
        """Take an order, which strands judges and hands over as dictionaries."""
        made = [workload.Item.model_validate(item) for item in items]
        return await workload.order(title, made, workload.Options.model_validate(options))

    made = import_module("strands").tool(order if function is workload.order else function)
    ids = itertools.count()

    async def once() -> object:
        use = {"toolUseId": f"call_{next(ids)}", "name": made.tool_name, "input": json.loads(text)}
        *_, last = [event async for event in made.stream(use, {})]
        assert last["tool_result"]["status"] == "success", last
        return last

    return once


def pydantic_ai(function: Function, text: str) -> Once:
    whole = import_module("pydantic_ai")
    manager = import_module("pydantic_ai.tool_manager").ToolManager
    model = import_module("pydantic_ai.models.test").TestModel()
    usage = import_module("pydantic_ai.usage").RunUsage()
    part = import_module("pydantic_ai.messages").ToolCallPart
    toolset = import_module("pydantic_ai.toolsets").FunctionToolset([function])
    context = whole.RunContext(deps=None, model=model, usage=usage, run_step=0)
    ids = itertools.count()
    known: list[Any] = []

    async def once() -> object:
        if not known:
            known.append(await manager(toolset).for_run_step(context))
        return await known[0].handle_call(part(function.__name__, text, f"call_{next(ids)}"))

    return once


def langchain(function: Function, text: str) -> Once:
    tools = import_module("langchain_core.tools")
    waits = function is not workload.look_up_plainly
    given = {"coroutine": function} if waits else {"func": function}
    made = tools.StructuredTool.from_function(**given)
    ids = itertools.count()

    async def once() -> object:
        call = {"name": made.name, "args": json.loads(text), "id": f"call_{next(ids)}"}
        return await made.ainvoke(call | {"type": "tool_call"})

    return once


def llama_index(function: Function, text: str) -> Once:
    tools = import_module("llama_index.core.tools")
    waits = function is not workload.look_up_plainly
    given = {"async_fn": function} if waits else {"fn": function}
    made = tools.FunctionTool.from_defaults(**given)
    schema = made.metadata.fn_schema

    async def once() -> object:
        arguments = schema.model_validate_json(text)  # it hands on what it is given as it is
        return await made.acall(**dict(arguments))

    return once


def fastmcp(function: Function, text: str) -> Once:
    made = import_module("fastmcp.tools").Tool.from_function(function)

    async def once() -> object:
        return await made.run(json.loads(text))

    return once


PEERS: dict[str, Callable[[Function, str], Once]] = {
    "openai-agents": openai_agents,
    "strands": strands,
    "pydantic-ai": pydantic_ai,
    "langchain": langchain,
    "llama-index": llama_index,
    "fastmcp": fastmcp,
}


def _made(peer: Callable[[Function, str], Once], function: Function, size: str) -> Make:
    async def make(_closing: AsyncExitStack) -> Round:
        once = peer(function, workload.arguments(size))
        for _ in range(COUNTS[size]):
            await once()
        return repeated(once, COUNTS[size])

    return make


def cases() -> list[Case]:
    wanted: dict[str, tuple[Function, str]]
    wanted = {f"{size} call": (workload.order, size) for size in ("medium", "large")}
    wanted["small call"] = (workload.look_up, "small")
    wanted["plain def function"] = (workload.look_up_plainly, "small")
    return [
        Case(name, "µs CPU", {peer: _made(make, function, size) for peer, make in PEERS.items()})
        for name, (function, size) in wanted.items()
    ]


if __name__ == "__main__":
    contest.main(cases(), __doc__ or "")
