"""B: the whole agent loop against a loopback server that speaks OpenAI's chat wire.

    python benchmarks/bench_loop.py [--peers PYTHON]

A conversation has 20 turns of one call each, or 300, or 20 with 1,000 tools on offer, or one turn of
50 calls; toolcrib runs them without a log and with an audit log on SQLite. The server is a process of
its own, and each contender too; they take turns. The floor is aiohttp and orjson by hand, with a
history that is encoded anew for each request. CPU milliseconds a conversation, of the contender's
process alone, the minimum of the rounds; `first` is the first conversation of the process, the tools
encoded in it; then what passes between one call and the next, in the first tenth of the calls and in
the last. The peers (the openai SDK by hand, pydantic-ai) are those that the interpreter PYTHON has,
this one if none is named; where they take seconds they get one round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

Once = Callable[[], Awaitable[object]]
PROMPT = "Look up the tools of each shelf, one after the other."
ANSWER = "That was all of them."
ROUNDS = 7
PATIENCE = 1000
"""CPU milliseconds of a first conversation, from which on a peer is not asked again."""


class Case(NamedTuple):
    """`calls` are those of one turn; `reach` and `logged`, the same with a log, in CPU milliseconds."""

    name: str
    turns: int
    calls: int
    tools: int
    reach: int
    logged: int | None


CASES = (
    Case("20 turns", 20, 1, 3, 12, 20),
    Case("300 turns", 300, 1, 3, 250, 306),
    Case("20 turns, 1,000 tools", 20, 1, 1000, 40, None),
    Case("50 calls in a turn", 1, 50, 3, 4, 7),
)


class Asked(NamedTuple):
    """What a contender's process is asked for: conversations of this kind, with the server at `url`."""

    url: str
    turns: int
    calls: int
    tools: int

    @property
    def model(self) -> str:
        return f"turns-{self.turns}-{self.calls}"


MARKS: list[float] = []
"""The CPU time at which each call came to its tool."""


def functions(count: int) -> list[Callable[..., Any]]:
    """The tools' functions: the same for all contenders, each with a name of its own."""

    def make(number: int) -> Callable[..., Any]:
        async def look_up(query: str, limit: int = 10) -> dict[str, Any]:
            MARKS.append(time.process_time())
            return {"query": query, "found": [f"entry {n} of the shelf" for n in range(limit)]}

        look_up.__name__ = look_up.__qualname__ = f"look_up_{number}"
        look_up.__doc__ = f"Look something up in shelf {number}, by its name or a part of it."
        return look_up

    return [make(number) for number in range(count)]


def definitions(count: int) -> list[dict[str, Any]]:
    """The same tools as somebody would write them down by hand."""
    properties = {"query": {"type": "string"}, "limit": {"type": "integer", "default": 10}}
    schema = {"type": "object", "properties": properties, "required": ["query"]}
    return [
        {
            "type": "function",
            "function": {"name": f.__name__, "description": f.__doc__, "parameters": schema},
        }
        for f in functions(count)
    ]


async def toolcrib(asked: Asked, closing: AsyncExitStack, sinks: Sequence[Any] = ()) -> Once:
    import aiohttp  # noqa: F401  what loads late is loaded, as for the floor

    from toolcrib import ALL, Agent, ToolRunner, tool
    from toolcrib.clients import OpenAIClient
    from toolcrib.values.run import Limits

    client = OpenAIClient(asked.model, base_url=asked.url, api_key="none")
    offered = [tool(visible=ALL, description="It runs.")(f) for f in functions(asked.tools)]
    agent = Agent(
        await closing.enter_async_context(client),
        ToolRunner(offered, sinks=sinks),
        limits=Limits(turns=asked.turns + 1, calls=None),
    )

    async def once() -> object:
        result = await agent.run(PROMPT)
        assert (result.text, len(result.records)) == (ANSWER, asked.turns * asked.calls)
        return result

    return once


async def logged(asked: Asked, closing: AsyncExitStack) -> Once:
    from toolcrib.audit import AuditLog

    folder = closing.enter_context(tempfile.TemporaryDirectory())
    log = await closing.enter_async_context(
        AuditLog(f"sqlite:///{folder}/crib.db", key="a key of sixteen bytes")
    )
    return await toolcrib(asked, closing, [log])


async def floor(asked: Asked, closing: AsyncExitStack) -> Once:
    import aiohttp
    import orjson

    session = await closing.enter_async_context(aiohttp.ClientSession())
    offered = definitions(asked.tools)
    known = {function.__name__: function for function in functions(asked.tools)}

    async def ask(messages: list[Any]) -> Any:
        body = {"model": asked.model, "messages": messages, "tools": offered}
        headers = {"Content-Type": "application/json", "Authorization": "Bearer none"}
        async with session.post(
            f"{asked.url}/chat/completions", data=orjson.dumps(body), headers=headers
        ) as response:
            return orjson.loads(await response.read())["choices"][0]["message"]

    async def once() -> object:
        messages: list[Any] = [{"role": "user", "content": PROMPT}]
        while True:
            message = await ask(messages)
            messages.append({"role": "assistant", "content": message["content"]})
            if not message.get("tool_calls"):
                return message
            messages[-1]["tool_calls"] = message["tool_calls"]
            for call in message["tool_calls"]:
                function = call["function"]
                given = orjson.loads(function["arguments"])
                said = orjson.dumps(await known[function["name"]](**given)).decode()
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})

    return once


async def openai(asked: Asked, closing: AsyncExitStack) -> Once:
    sdk: Any = import_module("openai")
    client = await closing.enter_async_context(sdk.AsyncOpenAI(base_url=asked.url, api_key="none"))
    offered = definitions(asked.tools)
    known = {function.__name__: function for function in functions(asked.tools)}

    async def once() -> object:
        messages: list[Any] = [{"role": "user", "content": PROMPT}]
        while True:
            reply = await client.chat.completions.create(
                model=asked.model, messages=messages, tools=offered
            )
            message = reply.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return message
            for call in message.tool_calls:
                given = json.loads(call.function.arguments)
                said = json.dumps(await known[call.function.name](**given))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": said})

    return once


async def pydantic_ai(asked: Asked, _closing: AsyncExitStack) -> Once:
    models: Any = import_module("pydantic_ai.models.openai")
    providers: Any = import_module("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=asked.url, api_key="none")
    model = models.OpenAIChatModel(asked.model, provider=provider)
    agent = import_module("pydantic_ai").Agent(model, tools=functions(asked.tools))
    limits = import_module("pydantic_ai.usage").UsageLimits(request_limit=None)

    async def once() -> object:
        result = await agent.run(PROMPT, usage_limits=limits)
        assert result.output == ANSWER
        return result

    return once


CONTENDERS: dict[str, Callable[[Asked, AsyncExitStack], Awaitable[Once]]] = {
    "floor": floor,
    "toolcrib": toolcrib,
    "toolcrib, with a log": logged,
    "openai": openai,
    "pydantic_ai": pydantic_ai,
}
PEERS = ("openai", "pydantic_ai")


async def compete(name: str, asked: Asked) -> None:
    """A contender's process: one conversation for each line of standard input, its figures out."""
    async with AsyncExitStack() as closing:
        try:
            once = await CONTENDERS[name](asked, closing)
        except ImportError:
            print("absent", flush=True)
            return
        print("ready", flush=True)
        for _ in sys.stdin:
            print(json.dumps(await figures(once, asked)), flush=True)


async def figures(once: Once, asked: Asked) -> list[float]:
    """CPU milliseconds of a conversation, and from call to call in its first tenth and its last."""
    MARKS.clear()
    started = time.process_time()
    await once()
    whole = time.process_time() - started
    assert len(MARKS) == asked.turns * asked.calls
    tenth = len(MARKS) // 10
    steps = [later - mark for mark, later in pairwise(MARKS)]
    first, last = sum(steps[:tenth]) / tenth, sum(steps[-tenth:]) / tenth
    return [whole * 1e3, first * 1e3, last * 1e3]


def _call(number: int) -> dict[str, Any]:
    given = json.dumps({"query": f"what is on shelf {number}", "limit": 5})
    function = {"name": f"look_up_{number % 3}", "arguments": given}
    return {"id": f"call_{number}", "type": "function", "function": function}


async def serve() -> None:
    """The server's process: a call for each turn, then a text; the model's name says how many."""
    import orjson
    from aiohttp import web

    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}

    async def answer(request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        message: dict[str, Any] = {"role": "assistant", "content": ANSWER}
        reason = "stop"
        turns, count = map(int, body["model"].removeprefix("turns-").split("-"))
        if turn < turns:
            calls = [_call(number) for number in range(turn * count, (turn + 1) * count)]
            message, reason = message | {"content": None, "tool_calls": calls}, "tool_calls"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        reply = {"id": f"chatcmpl-{turn}", "object": "chat.completion", "created": 1760000000}
        reply |= {"model": body["model"], "choices": [choice], "usage": usage}
        return web.Response(body=orjson.dumps(reply), content_type="application/json")

    app = web.Application(client_max_size=1 << 28)
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until nobody listens


class Process:
    """One of this file's processes; `said` is its first line."""

    def __init__(self, python: str, *arguments: object) -> None:
        given = [python, __file__, *map(str, arguments)]
        self._process = subprocess.Popen(  # noqa: S603  this file
            given, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.said = self._line()

    def figures(self) -> list[float]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: list[float] = json.loads(self._line())
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", default=sys.executable, help="the peers' interpreter")
    parser.add_argument("--process", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.process == ["serve"]:
        asyncio.run(serve())
    elif asked.process:
        name, url, *numbers = asked.process
        asyncio.run(compete(name, Asked(url, *map(int, numbers))))
    else:
        compare(asked.peers)


def compare(peers: str) -> None:
    print(
        f"{'':<24}{'CPU ms':>10}{'ratio':>8}{'reach':>8}{'first':>10}{'a call, first':>16}{'last':>8}"
    )
    server = Process(sys.executable, "--process", "serve")
    for case in CASES:
        print(case.name)
        contenders = {
            name: Process(
                peers if name in PEERS else sys.executable,
                *("--process", name, server.said, case.turns, case.calls, case.tools),
            )
            for name in CONTENDERS
        }
        here = {name: process for name, process in contenders.items() if process.said == "ready"}
        first = {name: process.figures() for name, process in here.items()}
        best = dict(first)
        for _ in range(ROUNDS):
            for name, process in here.items():
                if name not in PEERS or first[name][0] < PATIENCE:
                    pairs = zip(best[name], process.figures(), strict=True)
                    best[name] = [min(pair) for pair in pairs]
        for process in contenders.values():
            process.close()
        for name, (whole, early, late) in best.items():
            reach = {"toolcrib": case.reach, "toolcrib, with a log": case.logged}.get(name) or "–"
            ratio = whole / best["floor"][0]
            print(
                f"  {name:<22}{whole:>10.1f}{ratio:>8.2f}{reach:>8}{first[name][0]:>10.1f}"
                f"{early:>16.3f}{late:>8.3f}"
            )
    server.close()


if __name__ == "__main__":
    main()
