"""Calls that take long become tasks, for clients that take tasks: one effect, one record, one owner."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.client.extension import advertise
from pydantic import TypeAdapter
from rows import each_row

from toolcrib import ALL, Agent, Allow, Approve, Caller, Catalog, Refuse, ToolRunner, per_call, tool
from toolcrib.bridges.mcp import (
    McpClient,
    McpServer,
    calling_client,
    mcp_server,
    serve,
)
from toolcrib.bridges.mcp.tasks import (
    EXTENSION,
    TaskParams,
    Tasks,
    TaskUpdateParams,
    _Cancel,
    _Get,
    _Update,
)
from toolcrib.runner import execute
from toolcrib.testing import MemorySink, ScriptedClient, call
from toolcrib.testing.scripted import Turn
from toolcrib.values.call import Hydrated
from toolcrib.values.context import PolicyContext
from toolcrib.values.decision import Answer, ApprovalRequest, Decision

STATE: TypeAdapter[Any] = TypeAdapter(dict[str, Any])
GO: list[asyncio.Event] = []


@tool(visible=ALL)
async def waits() -> str:
    """Wait until it may go on."""
    await GO[-1].wait()
    return "went on"


@tool(visible=ALL)
async def asks(client: McpClient) -> str:
    """Ask when it has become a task."""
    await GO[-1].wait()
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    given = await client.elicit("Which name?", schema, key="name")
    return f"Hello, {(given.content or {}).get('name')}!"


@tool(visible=ALL, safe=False)
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


FREE = threading.Event()


@tool(visible=ALL)
def threaded() -> str:
    """Work in a thread, which nobody can stop."""
    FREE.wait(20)
    return "done after all"


def serving(**options: Any) -> tuple[McpServer, MemorySink]:
    GO.append(asyncio.Event())  # of this loop
    sink = MemorySink()
    catalog = Catalog([waits, asks, refund, threaded]).bind({McpClient: per_call(calling_client)})
    approver = options.pop("approver", None)
    runner = ToolRunner(catalog, sinks=[sink], approver=approver)
    return mcp_server(runner, task_after=0.02, **options), sink


@asynccontextmanager
async def client_of(server: McpServer, *extensions: Any, **options: Any) -> AsyncIterator[Client]:
    async with Client(server.server, extensions=list(extensions), **options) as client:
        yield client


async def begin(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool, and return the handle that its client would wait with."""
    params = types.CallToolRequestParams(name=name, arguments=arguments)
    request = types.CallToolRequest(params=params)
    handle: dict[str, Any] = await client.session.send_request(request, STATE)
    assert handle["resultType"] == "task"
    return handle


async def get(client: Client, handle: dict[str, Any]) -> dict[str, Any]:
    request = _Get(params=TaskParams(task_id=handle["taskId"]))
    state: dict[str, Any] = await client.session.send_request(request, STATE)
    return state


async def until(client: Client, handle: dict[str, Any], status: str) -> dict[str, Any]:
    async with asyncio.timeout(5):
        while (state := await get(client, handle))["status"] != status:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return state


PLAIN = advertise(EXTENSION)


async def test_a_call_that_takes_long_becomes_a_task_and_ends_as_any_other() -> None:
    server, sink = serving()
    async with client_of(server, PLAIN) as client:
        handle = await begin(client, "waits")
        assert (await get(client, handle))["status"] == "working"
        assert sink.records == []
        GO[-1].set()
        state = await until(client, handle, "completed")
        assert state["result"]["content"] == [{"type": "text", "text": "went on"}]
        assert (await get(client, handle))["result"] == state["result"]  # it is kept
    assert [record.status for record in sink.records] == ["completed"]


async def test_a_client_that_takes_no_tasks_waits() -> None:
    server, _ = serving()
    async with client_of(server) as client:
        asyncio.get_running_loop().call_later(0.2, GO[-1].set)
        assert not (await client.call_tool("waits", {})).is_error
        with pytest.raises(MCPError, match="has not declared") as raised:
            await get(client, {"taskId": "x"})
    assert raised.value.error.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY


async def test_our_own_client_waits_for_a_task() -> None:
    server, _ = serving()
    async with client_of(server, Tasks()) as client:
        asyncio.get_running_loop().call_later(0.2, GO[-1].set)
        (block,) = (await client.call_tool("waits", {})).content
    assert isinstance(block, types.TextContent)
    assert block.text == "went on"


async def test_a_task_asks_and_goes_on_with_the_answer() -> None:
    async def never(_context: Any, _params: types.ElicitRequestParams) -> types.ElicitResult:
        raise AssertionError

    server, sink = serving()
    async with client_of(server, PLAIN, elicitation_callback=never) as client:
        handle = await begin(client, "asks")
        GO[-1].set()
        state = await until(client, handle, "input_required")
        assert list(state["inputRequests"]) == ["name"]
        for answers in (
            {"other": {"action": "accept", "content": {"name": "eve"}}, "name": 7},
            {"name": {"action": "accept", "content": {"name": "ada"}}},
        ):
            params = TaskUpdateParams(task_id=handle["taskId"], input_responses=answers)
            await client.session.send_request(_Update(params=params), STATE)
        state = await until(client, handle, "completed")
    assert state["result"]["content"][0]["text"] == "Hello, ada!"
    assert [record.status for record in sink.records] == ["completed"]


def serving_an_agent(policy: Any = (), **options: Any) -> tuple[McpServer, MemorySink]:
    """One whose agent works long enough to be a task, and then asks twice at once, and once more."""
    GO.append(asyncio.Event())
    sink = MemorySink()
    asks_for: list[Turn] = [
        [call("refund", order=1), call("refund", order=2)],
        call("refund", order=3),
        "done",
    ]
    agent = Agent(ScriptedClient([call("waits"), *asks_for]), [waits, refund])
    clerk = agent.as_tool("clerk", "Refunds.", visible=ALL)
    runner = ToolRunner([clerk, refund], sinks=[sink], policy=policy)
    options = {"may_approve": lambda *_: True, **options}
    return mcp_server(runner, task_after=0.02, **options), sink


def refunds(sink: MemorySink) -> list[Any]:
    done = [one for one in sink.records if one.name == "refund" and one.status == "completed"]
    return sorted((one.arguments or {})["order"] for one in done)


async def test_what_a_task_has_approved_goes_on_in_it() -> None:
    async def yes(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        del context
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"answer": "yes"})

    asked: list[str] = []
    server, sink = serving_an_agent()
    async with client_of(server, Tasks(), elicitation_callback=yes) as client:
        asyncio.get_running_loop().call_later(0.1, GO[-1].set)
        (block,) = (await client.call_tool("clerk", {"prompt": "p"})).content
    assert isinstance(block, types.TextContent)
    assert (block.text, len(asked), refunds(sink)) == ("done", 3, [1, 2, 3])


async def test_a_task_that_waits_for_approvals_is_answered_or_given_up() -> None:
    async def never(_context: Any, _params: types.ElicitRequestParams) -> types.ElicitResult:
        raise AssertionError

    async def answer(key: str) -> None:
        said = {key: {"action": "accept", "content": {"answer": "yes"}}}
        params = TaskUpdateParams(task_id=handle["taskId"], input_responses=said)
        await client.session.send_request(_Update(params=params), STATE)

    server, sink = serving_an_agent()
    async with client_of(server, PLAIN, elicitation_callback=never) as client:
        handle = await begin(client, "clerk", prompt="p")
        GO[-1].set()
        first, second = (await until(client, handle, "input_required"))["inputRequests"]
        await answer("another")
        assert refunds(sink) == []
        await answer(second)
        async with asyncio.timeout(5):
            while not refunds(sink):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        left = (await until(client, handle, "input_required"))["inputRequests"]
        assert (list(left), refunds(sink)) == ([first], [2])
        params = TaskParams(task_id=handle["taskId"])
        await client.session.send_request(_Cancel(params=params), STATE)
        await answer(first)
        state = await until(client, handle, "completed")
    assert '"code":"outcome_unknown"' in state["result"]["content"][0]["text"]
    assert refunds(sink) == [2]


async def _update(client: Client, handle: dict[str, Any], key: str, answer: str = "yes") -> None:
    said = {key: {"action": "accept", "content": {"answer": answer}}}
    params = TaskUpdateParams(task_id=handle["taskId"], input_responses=said)
    await client.session.send_request(_Update(params=params), STATE)


async def _never(_context: Any, _params: types.ElicitRequestParams) -> types.ElicitResult:
    raise AssertionError


@each_row("withdrawn", ["tool", "right to approve"])
async def test_an_answer_is_judged_by_what_holds_when_it_comes(withdrawn: str) -> None:
    """As one that comes with a new request, and not by what held when the task began."""
    roles: tuple[str, ...] = ("pay",)
    server, sink = serving_an_agent(
        may_approve=lambda caller, _: "pay" in caller.roles,
        caller=lambda _token: Caller("ide#ada", roles),
    )
    async with client_of(server, PLAIN, elicitation_callback=_never) as client:
        handle = await begin(client, "clerk", prompt="p")
        GO[-1].set()
        _, second = (await until(client, handle, "input_required"))["inputRequests"]
        if withdrawn == "tool":
            await server.use(ToolRunner([waits]))
        else:
            roles = ()
        await _update(client, handle, second)
        await until(client, handle, "completed")
    assert refunds(sink) == []


async def _slow(call: Hydrated, _context: PolicyContext) -> Decision:
    if call.call.name == "refund":
        await GO[-1].wait()
    return Allow("", "slow")


@each_row("end", ["cancelled", "its hour is over", "the server ends"])
@each_row(("name", "code"), [("clerk", "outcome_unknown"), ("refund", "cancelled")])
async def test_a_task_that_waits_is_recorded_however_it_is_given_up(
    name: str, code: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, sink = serving_an_agent(policy=_slow)
    async with client_of(server, PLAIN, elicitation_callback=_never) as client:
        handle = await begin(client, name, **({"prompt": "p"} if name == "clerk" else {"order": 7}))
        GO[-1].set()
        (first, *_) = (await until(client, handle, "input_required"))["inputRequests"]
        assert [one.status for one in sink.records if one.name == name] == ["waiting"]
        if end == "its hour is over":
            GO[-1].clear()
            monkeypatch.setattr(serve, "TTL", 0.0)
            await begin(client, "refund", order=8)
        for _ in range(2 * (end == "cancelled")):
            params = TaskParams(task_id=handle["taskId"])
            await client.session.send_request(_Cancel(params=params), STATE)
        if end != "the server ends":
            await _update(client, handle, first)
            await until(client, handle, "cancelled" if code == "cancelled" else "completed")
    ids = [one.id for one in sink.records if one.name == name]
    ended = [one for one in sink.records if one.id == ids[0] and one.error is not None]
    assert [one.error.code for one in ended if one.error] == [code]
    assert refunds(sink) == []


async def test_a_task_is_cancelled_once_and_recorded() -> None:
    server, sink = serving()
    async with client_of(server, PLAIN) as client:
        handle = await begin(client, "waits")
        for _ in range(2):
            params = TaskParams(task_id=handle["taskId"])
            await client.session.send_request(_Cancel(params=params), STATE)
        assert "result" not in await until(client, handle, "cancelled")
    assert [record.error.code for record in sink.records if record.error] == ["cancelled"]


async def test_a_task_whose_tool_goes_on_is_not_called_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread cannot be stopped: nobody knows how it ends, and the task says what the record does."""
    monkeypatch.setattr(execute, "GRACE", 0.05)
    FREE.clear()
    server, sink = serving()
    try:
        async with client_of(server, PLAIN) as client:
            handle = await begin(client, "threaded")
            params = TaskParams(task_id=handle["taskId"])
            await client.session.send_request(_Cancel(params=params), STATE)
            state = await until(client, handle, "completed")
    finally:
        FREE.set()
    assert state["result"]["isError"]
    assert '"code":"outcome_unknown"' in state["result"]["content"][0]["text"]
    assert [one.error.code for one in sink.records if one.error] == ["outcome_unknown"]


async def test_a_task_is_nobody_elses() -> None:
    who = "ada"
    server, _ = serving(caller=lambda _token: Caller(who))
    async with client_of(server, PLAIN) as client:
        handle = await begin(client, "waits")
        who = "bob"
        for unknown in (handle, {"taskId": "no-such-task"}):
            with pytest.raises(MCPError, match="no such task") as raised:
                await get(client, unknown)
            assert raised.value.error.code == types.INVALID_PARAMS


@each_row("roles", [("pay", "read"), ("read", "pay", "admin"), ()])
async def test_whoever_has_other_roles_by_now_is_the_same_caller(roles: tuple[str, ...]) -> None:
    """A token that was renewed may have other scopes, or the same in another order."""
    now: tuple[str, ...] = ("read", "pay")

    async def renewed(_context: Any, _params: types.ElicitRequestParams) -> types.ElicitResult:
        nonlocal now
        now = roles
        return types.ElicitResult(action="accept", content={"name": "ada"})

    server, sink = serving(caller=lambda _token: Caller("ide#ada", now))
    async with client_of(server, PLAIN, elicitation_callback=renewed) as client:
        given_up, answered = await begin(client, "waits"), await begin(client, "asks")
        now = roles
        await client.session.send_request(
            _Cancel(params=TaskParams(task_id=given_up["taskId"])), STATE
        )
        assert (await until(client, given_up, "cancelled"))["taskId"] == given_up["taskId"]
        GO[-1].set()
        await until(client, answered, "input_required")
        said = {"name": {"action": "accept", "content": {"name": "ada"}}}
        update = TaskUpdateParams(task_id=answered["taskId"], input_responses=said)
        await client.session.send_request(_Update(params=update), STATE)
        await until(client, answered, "completed")
    now = ("read", "pay")
    async with client_of(server, elicitation_callback=renewed) as client:
        assert not (await client.call_tool("asks", {})).is_error  # the request that asks has ended
    assert now == roles
    told = [(one.name, one.status, one.caller_roles) for one in sink.records]
    statuses = [("waits", "failed"), ("asks", "completed"), ("asks", "completed")]
    assert told == [(*each, ("read", "pay")) for each in statuses]


async def test_a_task_ends_with_its_server() -> None:
    server, sink = serving()
    async with client_of(server, PLAIN) as client:
        await begin(client, "waits")
    assert [record.error.code for record in sink.records if record.error] == ["cancelled"]


@pytest.mark.parametrize("said", [Approve("ada"), Refuse("no", "ada")])
async def test_a_call_that_waits_for_somebody_is_a_task_meanwhile(said: Answer) -> None:
    answers: list[Answer | None] = [None, said]

    async def later(_request: ApprovalRequest) -> Answer | None:
        return answers.pop(0)

    server, sink = serving(approver=later)
    async with client_of(server, PLAIN) as client:
        params = types.CallToolRequestParams(name="refund", arguments={"order": 7})
        request = types.CallToolRequest(params=params)
        handle = await client.session.send_request(request, STATE)
        assert (await get(client, handle))["status"] == "working"
        state = await until(client, handle, "completed")
    assert state["result"].get("isError", False) is isinstance(said, Refuse)
    assert [record.approved_by for record in sink.records] == ["ada"]
