"""An agent as a tool, served by MCP: what its inner tools ask reaches the user, and it goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Literal

import mcp_types as types
import pytest
from mcp import Client, MCPError
from rows import each_row

from toolcrib import ALL, Agent, ApprovalRequest, Caller, Catalog, ToolRunner, per_call, tool
from toolcrib.bridges.mcp import McpClient, McpServer, calling_client, elicitation, mcp_server
from toolcrib.policies import budget, rate_limit
from toolcrib.testing import MemorySink, ScriptedClient, call
from toolcrib.testing.scripted import Turn
from toolcrib.values.record import ToolInvocationRecord, state_of

ERAS = pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
Era = Literal["legacy", "2026-07-28"]
RAN: list[str] = []
YES = types.ElicitResult(action="accept", content={"answer": "yes"})
NO = types.ElicitResult(action="accept", content={"answer": "no"})
EDITED = types.ElicitResult(
    action="accept", content={"answer": "yes", "arguments": '{"order": 7, "amount": 5}'}
)


@tool(visible=ALL, safe=False)
def refund(order: int, amount: float = 1.0) -> str:
    """Refund an order."""
    RAN.append(f"refund {order} {amount:g}")
    return f"refunded {order}"


def _small(_caller: Caller, request: ApprovalRequest) -> bool:
    return request.tool != "refund" or request.arguments["amount"] in range(21)


def serving(
    replies: Sequence[Turn], *, asks: bool = False, **options: Any
) -> tuple[McpServer, MemorySink]:
    RAN.clear()
    sink, policy = MemorySink(), options.pop("policy", ())
    agent = Agent(ScriptedClient(list(replies)), [refund])
    marks: dict[str, Any] = {"safe": False} if asks else {}
    clerk = agent.as_tool("clerk", "Handles refunds.", visible=ALL, **marks)
    options = {"may_approve": _small, **options}
    return mcp_server(ToolRunner([clerk], sinks=[sink], policy=policy), **options), sink


async def user_says(
    server: McpServer, era: Era, *answers: types.ElicitResult
) -> tuple[str, list[str]]:
    """Call the agent; return what it says, and what its user was asked."""
    asked: list[str] = []

    async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        del context
        asked.append(params.message)
        return answers[(len(asked) - 1) % len(answers)]

    async with Client(server.server, mode=era, elicitation_callback=answer) as client:
        done = await client.call_tool("clerk", {"prompt": "p"})
    (block,) = done.content
    assert isinstance(block, types.TextContent)
    return block.text, asked


@ERAS
@pytest.mark.parametrize("asks", [False, True], ids=["", "the agent asks, too"])
@pytest.mark.parametrize(
    ("replies", "answer", "ran"),
    [
        ([call("refund", order=7), "done"], YES, ["refund 7 1"]),
        ([call("refund", order=7), "done"], EDITED, ["refund 7 5"]),
        ([call("refund", order=7, amount=50), "done"], YES, []),
        (
            [call("refund", order=1), call("refund", order=2), "done"],
            YES,
            ["refund 1 1", "refund 2 1"],
        ),
        (
            [[call("refund", order=1), call("refund", order=2)], "done"],
            YES,
            ["refund 1 1", "refund 2 1"],
        ),
        (
            [[call("refund", order=1), call("refund", order=2, amount=50)], "done"],
            YES,
            ["refund 1 1"],
        ),
    ],
    ids=["one", "edited", "beyond", "one after the other", "together", "one of two beyond"],
)
async def test_an_agent_goes_on_once_its_inner_question_is_answered(
    era: Era, asks: bool, replies: list[Turn], answer: types.ElicitResult, ran: list[str]
) -> None:
    server, sink = serving(replies, asks=asks)
    given = [YES, answer] if asks else [answer]
    text, asked = await user_says(server, era, *given)
    assert (text, sorted(RAN)) == ("done", ran)
    assert len(asked) == len(ran) + asks
    assert all(each.startswith("Run clerk > refund {") for each in asked[asks:])
    ended = [each for each in sink.records if each.name == "clerk" and each.status != "waiting"]
    assert [each.status for each in ended] == ["completed"]
    refunds = [each for each in sink.records if each.name == "refund"]
    assert [each.approved_by for each in refunds if each.status == "completed"] == [
        "anonymous"
    ] * len(ran)


@ERAS
async def test_a_no_to_what_an_agent_asks_is_one(era: Era) -> None:
    server, sink = serving([call("refund", order=7), "done"])
    assert (await user_says(server, era, NO))[0] == "done"
    assert RAN == []
    codes = [each.error.code for each in sink.records if each.error is not None]
    assert codes == ["approval_refused"]


@ERAS
async def test_a_mistyped_edit_of_what_an_agent_asks_is_no_no(era: Era) -> None:
    server, sink = serving([call("refund", order=7), "done"])
    mistyped = types.ElicitResult(action="accept", content={"answer": "yes", "arguments": "{order"})
    assert (await user_says(server, era, mistyped))[0] == "done"
    assert RAN == []
    (record,) = [each for each in sink.records if each.error is not None]
    assert record.error is not None
    assert (record.name, record.error.code) == ("refund", "invalid_arguments")
    assert (record.approved_by, record.edited) == ("anonymous", True)


async def _ask(
    client: Client, state: str | None = None, name: str = "clerk", **answers: types.ElicitResult
) -> Any:
    return await client.session.call_tool(
        name,
        {"prompt": "p"},
        input_responses=dict(answers) or None,
        request_state=state,
        allow_input_required=True,
    )


async def _nobody(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    raise AssertionError((context, params))


async def test_what_an_agent_asks_outlives_the_process_and_counts_once() -> None:
    key = "k" * 32
    before, _ = serving([call("refund", order=7)], state_key=key)
    async with Client(before.server, mode="2026-07-28", elicitation_callback=_nobody) as client:
        state = (await _ask(client)).request_state
    after, sink = serving(["done"], state_key=key)
    async with Client(after.server, mode="2026-07-28", elicitation_callback=_nobody) as client:
        for _ in range(3):
            assert (await _ask(client, state, approval=YES)).content[0].text == "done"
    assert RAN == ["refund 7 1"]
    assert sorted(each.name for each in sink.records) == ["clerk", "refund"]


async def test_a_call_that_goes_on_in_another_session_keeps_the_place_that_it_has() -> None:
    """Its caller's last one: the tally of the session that it comes from is not there."""
    server, _ = serving([call("refund", order=7), "done"], policy=[rate_limit("1/minute")])
    async with Client(server.server, mode="2026-07-28", elicitation_callback=_nobody) as client:
        state = (await _ask(client)).request_state
    async with Client(server.server, mode="2026-07-28", elicitation_callback=_nobody) as client:
        assert (await _ask(client, state, approval=YES)).content[0].text == "done"
        assert "rate_limited" in (await _ask(client)).content[0].text
    assert RAN == ["refund 7 1"]


async def test_of_several_inner_questions_those_without_an_answer_come_again() -> None:
    server, _ = serving([[call("refund", order=1), call("refund", order=2)], "done"])
    async with Client(server.server, mode="2026-07-28", elicitation_callback=_nobody) as client:
        asked = await _ask(client)
        assert list(asked.input_requests) == ["approval", "approval_2"]
        again = await _ask(client, asked.request_state, approval_2=YES)
        (left,) = again.input_requests.values()
        assert '"order": 1' in left.params.message
        assert RAN == ["refund 2 1"]
        done = await _ask(client, again.request_state, approval=YES)
        assert done.content[0].text == "done"
    assert RAN == ["refund 2 1", "refund 1 1"]


async def test_who_dismisses_an_inner_question_has_not_said_yes() -> None:
    server, sink = serving([call("refund", order=7), "done"])
    async with Client(server.server, mode="2026-07-28", elicitation_callback=_nobody) as client:
        state = (await _ask(client)).request_state
        dismissed = types.ElicitResult(action="cancel")
        assert (await _ask(client, state, approval=dismissed)).content[0].text == "done"
    assert RAN == []
    codes = [each.error.code for each in sink.records if each.error is not None]
    assert codes == ["approval_required"]


async def test_nobody_goes_on_with_the_agent_of_another_caller() -> None:
    who = "grace"
    server, _ = serving([call("refund", order=7), "done"], caller=lambda _token: Caller(who))
    async with Client(server.server, mode="2026-07-28", elicitation_callback=_nobody) as client:
        state = (await _ask(client)).request_state
        who = "ada"
        with pytest.raises(MCPError, match="is no longer waiting"):
            await _ask(client, state, approval=YES)
        assert RAN == []
        who = "grace"
        assert (await _ask(client, state, approval=YES)).content[0].text == "done"


async def test_what_is_too_long_to_be_kept_by_a_client_ends_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, _ = serving([call("refund", order=7), "done"])
    monkeypatch.setattr(elicitation, "_LONGEST_STATE", 1_000)
    async with Client(server.server, mode="2026-07-28", elicitation_callback=_nobody) as client:
        ended = await _ask(client)
    error = json.loads(ended.content[0].text)["error"]
    assert error["code"] == "approval_required"
    assert "too long" in error["message"]
    assert RAN == []


@tool(visible=ALL)
async def greet(client: McpClient) -> str:
    """Greet the user."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    given = await client.elicit("Who?", schema)
    RAN.append(f"greet {(given.content or {}).get('name')}")
    return "greeted"


@ERAS
async def test_a_tool_of_an_agent_asks_the_clients_user(era: Era) -> None:
    RAN.clear()
    tools = Catalog([greet]).bind({McpClient: per_call(calling_client)})
    agent = Agent(ScriptedClient([call("greet"), call("greet"), "done"]), tools)
    server = mcp_server(ToolRunner([agent.as_tool("clerk", "Greets.", visible=ALL)]))
    ada = types.ElicitResult(action="accept", content={"name": "Ada"})
    text, asked = await user_says(server, era, ada)
    assert (text, asked, RAN) == ("done", ["Who?", "Who?"], ["greet Ada"] * 2)


class _Gated(MemorySink):
    """Lets a call begin once it may."""

    write_ahead = True

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_begin = asyncio.Event(), asyncio.Event()

    async def write(self, record: ToolInvocationRecord) -> None:  # type: ignore[override]
        if record.status == "started":
            self.asked.set()
            await self.may_begin.wait()
        super().write(record)


@each_row("name", ["clerk", "book"])
async def test_an_answer_that_comes_twice_leaves_the_call_its_client(name: str) -> None:
    """The second request ends before the first one's tool begins, which asks the client something."""

    @tool(visible=ALL, safe=False)
    async def book(prompt: str, client: McpClient) -> str:
        """Book it."""
        return await greet(client)

    RAN.clear()
    sink = _Gated()
    bound: dict[type, object] = {McpClient: per_call(calling_client)}
    agent = Agent(ScriptedClient([call("greet"), "done"]), Catalog([greet]).bind(bound))
    clerk = agent.as_tool("clerk", "Greets.", visible=ALL, safe=False)
    runner = ToolRunner(Catalog([clerk, Catalog([book]).bind(bound)]), sinks=[sink])
    server = mcp_server(runner, may_approve=lambda *_: True)
    async with Client(server.server, mode="2026-07-28", elicitation_callback=_nobody) as client:
        state = (await _ask(client, name=name)).request_state
        first = asyncio.ensure_future(_ask(client, state, name=name, approval=YES))
        await sink.asked.wait()
        again = await _ask(client, state, name=name, approval=YES)
        assert json.loads(again.content[0].text)["error"]["code"] == "duplicate_call"
        sink.may_begin.set()
        asked = await asyncio.wait_for(first, 10)
        ada = types.ElicitResult(action="accept", content={"name": "Ada"})
        (key,) = asked.input_requests
        done = await _ask(client, asked.request_state, name=name, **{key: ada})
    assert (done.is_error, RAN) == (False, ["greet Ada"])


@ERAS
async def test_what_an_agent_spends_is_of_its_clients_run(era: Era) -> None:
    """The run's budget limits it while it runs, and it counts for what the client calls after it."""
    RAN.clear()

    @tool(visible=ALL, read_only=True)
    def look(order: int) -> str:
        """Look an order up."""
        RAN.append(f"look {order}")
        return "found"

    replies: list[Turn] = [*(call("look", order=n) for n in range(4)), "done"]
    clerk = Agent(ScriptedClient(replies), [look]).as_tool("clerk", "Looks.", visible=ALL)
    server = mcp_server(ToolRunner([clerk, look], policy=budget(calls=3)))
    async with Client(server.server, mode=era) as client:
        first = await client.call_tool("clerk", {"prompt": "p"})
        second = await client.call_tool("look", {"order": 9})
    assert "the limit on budget is reached" in str(first.content[0])
    assert "budget_exceeded" in str(second.content[0])
    assert RAN == ["look 0", "look 1"]


async def test_what_an_agent_spent_before_it_waited_counts_in_another_process() -> None:
    key, policy = "k" * 32, budget(calls=2)
    before, _ = serving([call("refund", order=7)], state_key=key, policy=policy)
    async with Client(before.server, mode="2026-07-28", elicitation_callback=_nobody) as client:
        state = (await _ask(client)).request_state
    more: list[Turn] = [call("refund", order=8), "done"]
    after, sink = serving(more, state_key=key, policy=policy)
    async with Client(after.server, mode="2026-07-28", elicitation_callback=_nobody) as client:
        done = await _ask(client, state, approval=YES)
    assert "the limit on budget is reached" in str(done.content[0])
    assert [state_of(each) for each in sink.records if each.name == "refund"] == [
        *("completed", "failed (budget_exceeded)")
    ]
