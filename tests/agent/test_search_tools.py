"""`search_tools`: a model that asks for more tools, over real HTTP, and what it never finds."""

from __future__ import annotations

import asyncio
import gc
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from records import raw_json
from servers.anthropic import anthropic_server
from servers.gemini import gemini_server

from toolcrib import (
    ALL,
    Agent,
    ApprovalRequest,
    Approve,
    Caller,
    Catalog,
    Completed,
    ErrorCode,
    Limits,
    Offer,
    PickOptions,
    PolicyContext,
    Refuse,
    Reply,
    RunState,
    ToolCallFinished,
    ToolInvocationRecord,
    ToolRunner,
    ToolsOffered,
    tool,
)
from toolcrib.agent.picking import AgentPicking, PickedToolbox, search_tools
from toolcrib.audit import AuditLog
from toolcrib.clients import AnthropicClient, GeminiClient, OpenAIClient
from toolcrib.errors import CatalogError, PickError, SourceError, ToolcribError
from toolcrib.policies import ask, budget, deny_by_default
from toolcrib.testing import MemorySink, ScriptedClient, call, openai_server
from toolcrib.values.context import RunTally
from toolcrib.values.definition import HasDefinition
from toolcrib.values.json import JsonObject
from toolcrib.values.message import ChatRequest, Message
from toolcrib.wire import WIRES, encode

PICK = PickOptions(max_candidates=2)
RAN: list[tuple[str, str]] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


def open_toolboxes() -> set[int]:
    """Those that anybody still holds, once the garbage is gone: of a run that is over there is none."""
    gc.collect()
    return {id(found) for found in gc.get_objects() if isinstance(found, PickedToolbox)}


def made(name: str, description: str, **marks: Any) -> HasDefinition:
    @tool(visible=ALL, name=name, description=description, **marks)
    async def run(text: str = "") -> str:
        RAN.append((name, text))
        return f"{name} of {text}"

    return run


CATALOG = Catalog(
    [
        made("play_song", "Play a song or an album."),
        made("send_mail", "Send an e-mail to somebody."),
        made("read_mail", "Read the e-mail that came in."),
        made("convert_currency", "Convert an amount of money into another currency."),
        made("show_map", "Show a map of a city."),
        made("delete_mail", "Delete an e-mail.", safe=False),
        made("audit_mail", "Audit the e-mail of others.", allowed_roles=["auditor"]),
    ]
)


def names_of(tools: list[dict[str, Any]]) -> list[str]:
    return [(t.get("function") or t)["name"] for t in tools]


def names_in(requests: list[Any]) -> list[list[str]]:
    return [names_of(request.get("tools", [])) for request in requests]


def found(content: str) -> list[str]:
    return [entry["name"] for entry in json.loads(content)["tools"]]


TURNS: list[Any] = [
    call("search_tools", query="convert money into another currency", limit=1),
    call("convert_currency", text="10 EUR"),
    "It is 11 USD.",
]


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_model_searches_and_calls_what_it_found(streaming: bool) -> None:
    sink = MemorySink()
    async with (
        openai_server(TURNS) as server,
        OpenAIClient("m", base_url=server.url) as client,
    ):
        agent = Agent(client, ToolRunner(CATALOG, sinks=[sink]), pick=PICK, search_tools=True)
        if streaming:
            async with agent.stream("play a song") as stream:
                events = [event async for event in stream]
            result = await stream.result()
            told = [e.names for e in events if isinstance(e, ToolsOffered)]
            assert told == [("search_tools", "play_song"), result.state.offered]
        else:
            result = await agent.run("play a song")
    assert (result.status, result.text) == ("completed", "It is 11 USD.")
    assert RAN == [("convert_currency", "10 EUR")]
    assert names_in(server.requests) == [
        ["search_tools", "play_song"],
        ["search_tools", "play_song", "convert_currency"],
        ["search_tools", "play_song", "convert_currency"],
    ]
    assert result.state.offered == ("search_tools", "play_song", "convert_currency")
    assert agent.runner.catalog is CATALOG
    content = server.requests[1]["messages"][-1]["content"]
    assert json.loads(content) == {
        "tools": [
            {
                "name": "convert_currency",
                "description": "Convert an amount of money into another currency.",
            }
        ]
    }
    first = sink.records[0]
    assert (first.name, first.status) == ("search_tools", "completed")
    assert first.arguments == {"query": "convert money into another currency", "limit": 1}
    assert first.result == {"tools": [{"name": "convert_currency"}]}  # its names, for records


@pytest.mark.parametrize(
    ("server_of", "client_of"),
    [
        (openai_server, OpenAIClient),
        (anthropic_server, AnthropicClient),
        (gemini_server, GeminiClient),
    ],
)
async def test_the_tools_of_a_request_begin_with_those_of_the_one_before(
    server_of: Any, client_of: Any
) -> None:
    """Within a run, and from one run of a session to the next, in the order of the wire."""
    async with (
        server_of([*TURNS, "hello"]) as server,
        client_of("m", base_url=server.url, api_key="none") as client,
    ):
        session = Agent(client, CATALOG, pick=PICK, search_tools=True).session()
        await session.send("play a song")
        await session.send("play a song again")
    sent = [json.dumps(_tools(request)) for request in server.requests]
    assert len(sent) == 4
    assert sent[1].startswith(sent[0].rstrip("]}"))
    assert len(sent[1]) > len(sent[0])
    assert sent[1] == sent[2] == sent[3]


@pytest.mark.parametrize("wire", WIRES)
def test_in_no_wire_does_a_tool_that_is_added_change_what_comes_before_it(wire: str) -> None:
    name = "n" * 100  # some providers need a shorter one
    tools = [search_tools(), made(name, "Odd."), *CATALOG, made("n" * 99, "Odd, too.")]
    sent = []
    for count in range(1, len(tools) + 1):
        request = ChatRequest((Message.user("hi"),), tuple(tools[:count]))
        body = json.loads(encode(wire, request, model="m").body)
        sent.append(json.dumps([body[key] for key in ("tools", "toolConfig") if key in body]))
    assert all(len(sent[0]) > 2 and b.startswith(a.rstrip("]}")) for a, b in pairwise(sent))


def _tools(request: dict[str, Any]) -> list[Any]:
    """In Gemini all declarations are one tool."""
    tools: list[Any] = request["tools"]
    declared: list[Any] = tools[0].get("functionDeclarations", tools)
    return declared


async def later(_request: ApprovalRequest) -> None:
    return None


async def test_a_resumed_run_has_what_was_found_before() -> None:
    turns: list[Any] = [
        call("search_tools", query="delete an e-mail", limit=1),
        call("delete_mail", text="all"),
        call("delete_mail", text="more"),
        "done",
    ]
    async with (
        openai_server(turns) as server,
        OpenAIClient("m", base_url=server.url) as client,
    ):

        def agent() -> Agent:
            runner = ToolRunner(CATALOG, approver=later)
            return Agent(client, runner, pick=PICK, search_tools=True)

        result = await agent().run("play a song")
        assert (result.status, RAN) == ("waiting", [])
        for _ in range(2):
            state = RunState.from_json(result.state.to_json())
            assert state.offered == ("search_tools", "play_song", "delete_mail")
            answers = {state.pending[0].id: Approve("grace")}
            result = await agent().resume(state, answers)
        assert (result.text, [text for _, text in RAN]) == ("done", ["all", "more"])
        assert names_in(server.requests)[1:] == [list(state.offered)] * 3
        with pytest.raises(SourceError, match="was offered the tool 'search_tools'"):
            await Agent(client, CATALOG, pick=PICK).resume(state)


@pytest.mark.parametrize("times", [1, 2])
async def test_a_search_that_somebody_approved_finds_also_when_it_is_not_made_again(
    times: int, tmp_path: Path
) -> None:
    client = ScriptedClient([TURNS[0], *(TURNS[1:] * times)])
    async with AuditLog(f"sqlite:///{tmp_path / 'log.db'}") as log:
        runner = ToolRunner(CATALOG, policy=ask("search_tools"), approver=later, sinks=[log])
        agent = Agent(client, runner, pick=PICK, search_tools=True)
        state = (await agent.run("play a song")).state
        for _ in range(times):
            result = await agent.resume(state, {state.pending[0].id: Approve("grace")})
            assert result.text == "It is 11 USD."
    assert RAN == [("convert_currency", "10 EUR")]  # the log knows how the same call has ended


async def test_where_there_is_room_for_some_of_a_replayed_search_the_best_get_it() -> None:
    many = [made(f"tool_{n:03}", f"Do the work of kind {n}.") for n in range(200)]
    picking = AgentPicking(ToolRunner(many), PICK, search=True)
    context = PolicyContext(Caller("ada"), RunTally("run_a"))
    toolbox = picking.reopen([t.get_definition().name for t in many[:125]], context)
    best = [f"tool_{n}" for n in (190, 130, 180, 140, 170, 150, 160, 199)]
    told: JsonObject = {"tools": [{"name": name} for name in best]}
    record = ToolInvocationRecord(
        id="c",
        name="search_tools",
        status="completed",
        started_at=0.0,
        result_json=raw_json(told),
    )
    assert toolbox.take([Completed(record, None, b"null")])
    assert toolbox.names[125:] == ("tool_130", "tool_180", "tool_190")


async def test_a_search_that_is_refused_finds_nothing() -> None:
    async def no(_request: ApprovalRequest) -> Refuse:
        return Refuse()

    client = ScriptedClient([TURNS[0], TURNS[1], "sorry"])
    runner = ToolRunner(CATALOG, policy=ask("search_tools"), approver=no)
    result = await Agent(client, runner, pick=PICK, search_tools=True).run("play a song")
    codes = [r.error.code for r in result.records if r.error]
    assert codes == [ErrorCode.APPROVAL_REFUSED, ErrorCode.NOT_OFFERED]


async def test_a_client_that_does_not_say_what_it_offered_offered_what_was_found() -> None:
    class Silent(ScriptedClient):
        nothing = Offer()

        async def chat(self, request: ChatRequest) -> Reply:
            return msgspec.structs.replace(await super().chat(request), offer=self.nothing)

    agent = Agent(Silent(TURNS), CATALOG, pick=PICK, search_tools=True)
    result = await agent.run("play a song")
    assert [r.status for r in result.records] == ["completed", "completed"]


async def test_two_runs_of_one_agent_search_for_themselves() -> None:
    before = open_toolboxes()  # of other tests
    both = asyncio.Barrier(2)

    class Together(ScriptedClient):
        async def chat(self, request: Any) -> Any:
            await both.wait()
            mail = "mail" in request.messages[0].content
            turn = sum(message.role == "tool" for message in request.messages)
            script: list[Any] = [
                call("search_tools", query="read e-mail" if mail else "show a map", limit=1),
                call("read_mail" if mail else "show_map", text="now"),
                "done",
            ]
            return await ScriptedClient([script[turn]]).chat(request)

    agent = Agent(Together([]), CATALOG, pick=PickOptions(max_candidates=1), search_tools=True)
    runs = await asyncio.gather(agent.run("send mail"), agent.run("play a song"))
    assert [run.state.offered for run in runs] == [
        ("search_tools", "send_mail", "read_mail"),
        ("search_tools", "play_song", "show_map"),
    ]
    assert [run.status for run in runs] == ["completed", "completed"]
    assert open_toolboxes() <= before


async def test_a_saved_run_that_goes_on_twice_at_once_searches_in_both() -> None:
    before = open_toolboxes()  # of other tests
    first_is_over = asyncio.Event()

    class Late(ScriptedClient):
        async def chat(self, request: ChatRequest) -> Reply:
            await first_is_over.wait()
            return await super().chat(request)

    runner = ToolRunner(CATALOG, policy=ask("play_song"), approver=later)
    client = ScriptedClient([call("play_song"), "done"])
    agent = Agent(client, runner, pick=PICK, search_tools=True)
    state = (await agent.run("play a song")).state
    answers = {state.pending[0].id: Approve("grace")}
    agent.client = Late(TURNS)
    longer = asyncio.create_task(agent.resume(state, answers))
    await asyncio.sleep(0)
    agent.client = client
    assert (await agent.resume(state, answers)).text == "done"
    first_is_over.set()
    assert (await longer).text == "It is 11 USD."
    assert RAN[-1] == ("convert_currency", "10 EUR")
    assert open_toolboxes() <= before


@pytest.mark.parametrize("status", ["limited", "cancelled"])
async def test_what_was_found_in_a_turn_that_was_cut_is_on_offer_afterwards(status: str) -> None:
    @tool(visible=ALL)
    async def slow_song() -> None:
        """Play a slow song."""
        await asyncio.Event().wait()

    client = ScriptedClient([[TURNS[0], call("slow_song")], *TURNS[1:]])
    pick, limits = PickOptions(max_candidates=1), Limits(seconds=0.5)
    agent = Agent(client, [slow_song, *CATALOG], pick=pick, search_tools=True, limits=limits)
    session = agent.session()
    async with session.stream("play a slow song") as stream:
        async for event in stream:
            if status == "cancelled" and isinstance(event, ToolCallFinished):
                break
    result = await stream.result()
    assert result.status == status
    assert result.state.offered == ("search_tools", "slow_song", "convert_currency")
    session.keep(result)
    assert (await session.send("go on")).text == "It is 11 USD."
    assert RAN == [("convert_currency", "10 EUR")]


@pytest.mark.parametrize(
    ("caller", "finds"),
    [(Caller("eve"), False), (Caller("ada", ("auditor",)), True)],
)
async def test_a_tool_for_others_is_not_found(caller: Caller, finds: bool) -> None:
    search = call("search_tools", query="audit the e-mail of others", limit=10)
    client = ScriptedClient([search, call("audit_mail"), "done"])
    agent = Agent(client, CATALOG, pick=PickOptions(max_candidates=1), search_tools=True)
    result = await agent.run("play a song", caller=caller)
    told = next(m.content for m in result.messages if m.role == "tool")
    assert ("audit_mail" in told) is finds
    assert ("audit_mail" in found(told)) is finds
    assert "delete_mail" not in told  # nobody could approve it
    codes = [r.error.code for r in result.records if r.error]
    assert codes == ([] if finds else [ErrorCode.UNKNOWN_TOOL])


async def test_what_a_run_has_used_up_is_found_no_more() -> None:
    search = call("search_tools", query="convert a currency", limit=10)
    used = call("convert_currency")
    client = ScriptedClient([search, used, search, "done"])
    runner = ToolRunner(CATALOG, policy=budget(calls=1, only="convert_currency"))
    agent = Agent(client, runner, pick=PICK, search_tools=True)
    result = await agent.run("play a song")
    told = [m.content for m in result.messages if m.name == "search_tools"]
    assert ["convert_currency" in found(content) for content in told] == [True, False]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"query": "x" * 1_000_000}, ErrorCode.INVALID_ARGUMENTS),
        ({"query": ""}, ErrorCode.INVALID_ARGUMENTS),
        ({"query": "mail", "limit": 11}, ErrorCode.INVALID_ARGUMENTS),
        ({"query": "mail", "limit": 0}, ErrorCode.INVALID_ARGUMENTS),
        ({"query": 'mail" OR name:* NEAR(a b) --;'}, None),
        ({"query": '"'}, None),
        ({"query": "mail\x00\x1b[2J\u202e"}, None),
        ({"query": "AND NOT *"}, None),
        ({"query": "日本語 " * 200}, None),
    ],
)
async def test_a_hostile_query(arguments: dict[str, Any], code: ErrorCode | None) -> None:
    client = ScriptedClient([call("search_tools", **arguments), "done"])
    result = await Agent(client, CATALOG, pick=PICK, search_tools=True).run("play a song")
    [record] = result.records
    assert (record.error and record.error.code) == code
    assert result.status == "completed"


async def test_a_search_is_offered_alone_where_nothing_is_picked() -> None:
    client = ScriptedClient(["hello"])
    await Agent(client, CATALOG, pick=PICK, search_tools=True).run("good morning")
    assert [t.get_definition().name for t in client.requests[0].tools] == ["search_tools"]


async def test_a_search_that_policy_does_not_let_run_is_not_offered() -> None:
    client = ScriptedClient([TURNS[0], "done"])
    runner = ToolRunner(CATALOG, policy=deny_by_default(allow=["play_song"]))
    result = await Agent(client, runner, pick=PICK, search_tools=True).run("play a song")
    assert [t.get_definition().name for t in client.requests[0].tools] == ["play_song"]
    assert [r.error.code for r in result.records if r.error] == [ErrorCode.UNKNOWN_TOOL]


async def test_searches_beside_other_calls_of_one_reply() -> None:
    together = [
        TURNS[0],
        call("convert_currency"),
        call("search_tools", query="show a map"),
        TURNS[0],
    ]
    client = ScriptedClient([together, [call("convert_currency"), call("show_map")], "done"])
    agent = Agent(client, CATALOG, pick=PickOptions(max_candidates=1), search_tools=True)
    result = await agent.run("play a song")
    told = [m.content for m in result.messages if m.role == "tool"]
    assert '"not_offered"' in told[1]  # it is on offer from the next turn on
    assert told[0] == told[3]
    assert result.state.offered == ("search_tools", "play_song", "convert_currency", "show_map")
    assert [name for name, _ in RAN] == ["convert_currency", "show_map"]


async def test_of_a_scorer_that_raises_the_model_reads_only_that_the_search_failed() -> None:
    def scorer(asked: object, _tool: HasDefinition) -> float:
        return float("canary") if isinstance(asked, str) else 0.0

    raised: list[BaseException] = []
    runner = ToolRunner(CATALOG, on_exception=lambda _call, error: raised.append(error))
    client = ScriptedClient([TURNS[0], "done"])
    agent = Agent(client, runner, pick=PickOptions(scorer=scorer), search_tools=True)
    result = await agent.run("play a song")
    assert [r.error.code for r in result.records if r.error] == [ErrorCode.TOOL_ERROR]
    assert "canary" not in result.state.to_json()
    assert [type(error) for error in raised] == [PickError]  # the developer is told of it


async def test_a_search_that_takes_too_long_is_an_error_and_offers_nothing() -> None:
    async def hangs(_input: object, _tool: HasDefinition) -> float:
        await asyncio.Event().wait()
        return 1.0

    client = ScriptedClient([TURNS[0], "done"])
    pick = PickOptions(max_candidates=1, scorer=hangs, timeout_ms=20)
    result = await Agent(client, CATALOG, pick=pick, search_tools=True).run("play a song")
    assert [r.error.message for r in result.records if r.error] == ["the search took too long"]
    assert result.state.offered == ("search_tools", "play_song")


async def test_a_run_offers_as_many_tools_as_a_provider_takes_and_no_more() -> None:
    many = [made(f"tool_{n:03}", f"Do the work of kind {n}.") for n in range(300)]
    searches = [
        [call("search_tools", query=f"kind {2 * turn + n} work", limit=10) for n in range(2)]
        for turn in range(12)
    ]

    def by_query(request: Any, tool: HasDefinition) -> float:
        wanted = int(request.split()[1]) if isinstance(request, str) else 0
        return float(int(tool.get_definition().name[5:]) // 10 == wanted)

    client = ScriptedClient([*searches, "done"])
    agent = Agent(client, many, pick=PickOptions(scorer=by_query), search_tools=True)
    result = await agent.run("work")
    assert len(result.state.offered) == len(set(result.state.offered)) == 128
    told_of = {
        n for m in result.messages if m.role == "tool" and not m.is_error for n in found(m.content)
    }
    assert told_of < set(result.state.offered)  # whatever it was told of, it may call
    told = {r.error.message for r in result.records if r.error}
    assert told == {"no more tools can be offered in this run"}


@pytest.mark.parametrize("name", ["search_tools", "searchTools"])
def test_a_tool_of_that_name_is_an_error(name: str) -> None:
    own = made(name, "Find tools.")
    with pytest.raises(CatalogError, match=r"'search_?[tT]ools'.*from search_tools=True"):
        Agent(ScriptedClient([]), [own], pick=PICK, search_tools=True)


async def test_a_tool_of_that_name_is_nothing_special_without_the_search() -> None:
    @tool(visible=ALL, name="search_tools")
    async def own() -> dict[str, Any]:
        """Find the tools of the shed."""
        return {"tools": [{"name": "read_mail"}]}

    client = ScriptedClient([call("search_tools"), "done"])
    agent = Agent(client, [own, *CATALOG], pick=PickOptions(max_candidates=1))
    result = await agent.run("which tools are in the shed?")
    assert result.state.offered == ("search_tools",)


def test_a_search_without_a_pick_is_an_error() -> None:
    with pytest.raises(ToolcribError, match="needs pick"):
        Agent(ScriptedClient([]), CATALOG, search_tools=True)


def test_every_provider_takes_the_tool() -> None:
    assert Catalog([search_tools()]).demand_portable().names == ("search_tools",)


async def test_an_agent_that_is_another_one_still_searches() -> None:
    client = ScriptedClient(list(TURNS))
    agent = Agent(ScriptedClient([]), CATALOG, pick=PICK, search_tools=True)
    assert (await agent.replace(model=client).run("play a song")).text == "It is 11 USD."
