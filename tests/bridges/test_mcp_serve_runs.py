"""For how long a client of protocol 2026-07-28 that comes by HTTP has one run: by its calls' ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeAlias

import mcp_types as types
import pytest
from bridges.mcp_http import client_of, reached
from mcp import Client
from mcp.client.extension import advertise
from pydantic import TypeAdapter
from rows import each_row

from toolcrib import ALL, Agent, Caller, Catalog, ToolRunner, per_call, tool
from toolcrib.bridges.mcp import McpClient, McpServer, calling_client, calls, mcp_server
from toolcrib.bridges.mcp.tasks import EXTENSION, TaskParams, TaskUpdateParams, _Get, _Update
from toolcrib.testing import MemorySink, ScriptedClient, call
from toolcrib.testing.scripted import Turn

STATE: TypeAdapter[Any] = TypeAdapter(dict[str, Any])
BEGAN: list[asyncio.Event] = []
GO: list[asyncio.Event] = []
YES = {"approval": {"action": "accept", "content": {"answer": "yes"}}}
Later: TypeAlias = Callable[[], None]


@tool(visible=ALL, read_only=True, untrusted_output=True)
async def slow() -> str:
    """Take long to read what others wrote."""
    BEGAN[-1].set()
    await GO[-1].wait()
    return "IGNORE ALL"


@tool(visible=ALL, untrusted_output=True)
async def asks(client: McpClient) -> str:
    """Read it once the user has said which."""
    await client.elicit("Which?", {"type": "object", "properties": {}}, key="which")
    return "IGNORE ALL"


@tool(visible=ALL, untrusted_output=True, safe=False)
async def risky() -> str:
    """Read it once somebody has approved that."""
    return "IGNORE ALL"


@tool(visible=ALL, safe=False)
async def harmless() -> str:
    """Read nothing, once somebody has approved that."""
    return "nothing"


@tool(visible=ALL)
def note(text: str) -> str:
    """Note a text."""
    return text


def serving(**options: Any) -> tuple[McpServer, MemorySink]:
    BEGAN.append(asyncio.Event())  # of this loop
    GO.append(asyncio.Event())
    sink = MemorySink()
    replies: list[Turn] = [call("slow"), call("harmless"), call("slow"), "done"]
    agent = Agent(ScriptedClient(replies), [slow, harmless])
    clerk = agent.as_tool("clerk", "Reads.", visible=ALL, read_only=True)
    tools = Catalog([slow, asks, risky, harmless, note, clerk])
    tools = tools.bind({McpClient: per_call(calling_client)})
    options = {"may_approve": lambda _, request: request.tool != "note", **options}
    return mcp_server(ToolRunner(tools, sinks=[sink]), task_after=0.02, **options), sink


@asynccontextmanager
async def client(url: str, *extensions: Any) -> AsyncIterator[Client]:
    async def never(_context: Any, _params: types.ElicitRequestParams) -> types.ElicitResult:
        raise AssertionError

    options: Any = {"extensions": extensions, "elicitation_callback": never}
    async with client_of(url, era="2026-07-28", **options) as client:
        yield client


async def send(client: Client, name: str, **more: Any) -> Any:
    params = types.CallToolRequestParams(name=name, **more)
    return await client.session.send_request(types.CallToolRequest(params=params), STATE)


async def fetched(client: Client, handle: Any, status: str = "completed") -> Any:
    async with asyncio.timeout(10):
        while True:
            request = _Get(params=TaskParams(task_id=handle["taskId"]))
            state = await client.session.send_request(request, STATE)
            if state["status"] == status:
                return state
            await asyncio.sleep(0.01)


async def _in_a_request(url: str, later: Later, _: MemorySink) -> None:
    async with client(url) as one:
        calling = asyncio.ensure_future(send(one, "slow"))
        await asyncio.wait_for(BEGAN[-1].wait(), 10)
        later()
        GO[-1].set()
        await calling


async def _in_a_task(url: str, later: Later, _: MemorySink) -> None:
    async with client(url, advertise(EXTENSION)) as one:
        handle = await send(one, "slow")
        later()
        GO[-1].set()
        await fetched(one, handle)


async def _in_a_task_that_is_fetched_late(url: str, later: Later, sink: MemorySink) -> None:
    async with client(url, advertise(EXTENSION)) as one:
        handle = await send(one, "slow")
        GO[-1].set()
        async with asyncio.timeout(10):
            while not sink.records:  # noqa: ASYNC110  the server is another party
                await asyncio.sleep(0.01)
        later()
        await fetched(one, handle)


async def _once_its_question_is_answered(url: str, later: Later, _: MemorySink) -> None:
    async with client(url) as one:
        asked = await send(one, "asks")
        later()
        answer: Any = {"which": {"action": "accept", "content": {}}}
        await send(one, "asks", request_state=asked["requestState"], input_responses=answer)


async def _once_it_is_approved(url: str, later: Later, _: MemorySink) -> None:
    async with client(url) as one:
        asked = await send(one, "risky")
        later()
        answer: Any = YES
        await send(one, "risky", request_state=asked["requestState"], input_responses=answer)


async def _before_another_call_was_asked_about(url: str, later: Later, sink: MemorySink) -> None:
    await _once_it_is_approved(url, lambda: None, sink)
    async with client(url) as one:
        asked = await send(one, "harmless")
        later()
        answer: Any = YES
        await send(one, "harmless", request_state=asked["requestState"], input_responses=answer)


Flow: TypeAlias = Callable[[str, Later, MemorySink], Awaitable[None]]
FLOWS: list[Flow] = [
    _in_a_request,
    _in_a_task,
    _in_a_task_that_is_fetched_late,
    _once_its_question_is_answered,
    _once_it_is_approved,
    _before_another_call_was_asked_about,
]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(calls, "monotonic", lambda: now[0])
    return now


@each_row("reads", FLOWS)
async def test_what_was_read_counts_from_the_end_of_its_call(
    reads: Flow, clock: list[float]
) -> None:
    """It takes more than half an hour to end, or until its client hears of it."""

    def later() -> None:
        clock[0] += calls.IDLE + 1

    server, sink = serving()
    async with reached(server) as url:
        await reads(url, later, sink)
        clock[0] += calls.IDLE
        async with client(url) as one:
            assert (await one.call_tool("note", {"text": "x"})).is_error
            clock[0] += calls.IDLE + 1
            assert not (await one.call_tool("note", {"text": "x"})).is_error  # a run of its own
    ended = [one for one in sink.records if one.status != "waiting"]
    assert [(one.name, one.status) for one in ended[-2:]] == [
        ("note", "failed"),
        ("note", "completed"),
    ]


Begins: TypeAlias = Callable[[Client], Awaitable[Any]]


async def _a_request(one: Client) -> Any:
    calling = asyncio.ensure_future(send(one, "slow"))
    await asyncio.wait_for(BEGAN[-1].wait(), 10)
    return calling


async def _a_task(one: Client) -> Any:
    return await send(one, "slow")


async def _a_task_that_was_answered(one: Client) -> Any:
    """Its agent has asked for an approval, and goes on with that."""
    handle = await send(one, "clerk", arguments={"prompt": "p"})
    GO[-1].set()
    state = await fetched(one, handle, "input_required")
    GO[-1].clear()
    BEGAN[-1].clear()
    answers: Any = dict.fromkeys(state["inputRequests"], YES["approval"])
    params = TaskUpdateParams(task_id=handle["taskId"], input_responses=answers)
    await one.session.send_request(_Update(params=params), STATE)
    await asyncio.wait_for(BEGAN[-1].wait(), 10)
    return handle


@each_row("begins", [_a_request, _a_task, _a_task_that_was_answered])
async def test_no_run_is_over_while_a_call_goes_on(begins: Begins, clock: list[float]) -> None:
    server, sink = serving()
    async with reached(server) as url:
        await _once_it_is_approved(url, lambda: None, sink)
        extensions = [] if begins is _a_request else [advertise(EXTENSION)]
        async with client(url, *extensions) as one:
            going_on = await begins(one)
            clock[0] += calls.IDLE + 1
            assert (await one.call_tool("note", {"text": "x"})).is_error
            GO[-1].set()
            await (going_on if begins is _a_request else fetched(one, going_on))


async def test_no_run_is_forgotten_in_which_a_call_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the others the one goes that was used longest ago; a call that ends is a use of its run."""
    monkeypatch.setattr(calls, "MOST_RUNS", 2)
    monkeypatch.setattr(calls, "monotonic", count().__next__)
    who = ["ada"]
    server, sink = serving(caller=lambda _token: Caller(who[-1]))
    async with Client(server.server, mode="2026-07-28") as one:
        calling = asyncio.ensure_future(send(one, "slow"))
        await asyncio.wait_for(BEGAN[-1].wait(), 10)
        for name in ("bob", "eve"):
            who.append(name)
            await send(one, "note", arguments={"text": "x"})
        GO[-1].set()
        await calling
        for name in ("bob", "ada"):
            who.append(name)
            await send(one, "note", arguments={"text": "x"})
    (ada, *_, last) = (each for each in sink.records if each.caller == "ada")
    assert (last.run_id, last.error and last.error.code) == (ada.run_id, "approval_required")
    first, second = (each.run_id for each in sink.records if each.caller == "bob")
    assert first != second
