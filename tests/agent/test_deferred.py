"""`search_tools`, where what was found is told where it was found: over HTTP, with the loopback servers
of both providers that take it there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import product
from typing import Any

import msgspec
import pytest
from agent.test_search_tools import PICK, RAN, _nothing_ran, made
from rows import each_row
from servers.anthropic import anthropic_server
from servers.responses import responses_server

from toolcrib import (
    Agent,
    ApprovalRequest,
    Approve,
    Catalog,
    ContextOptions,
    ErrorCode,
    PickOptions,
    Refuse,
    RunState,
    ToolRunner,
    ToolsOffered,
)
from toolcrib.approvals import answer_later
from toolcrib.clients import AnthropicClient, OpenAIClient
from toolcrib.errors import RequestError
from toolcrib.policies import ask
from toolcrib.testing import MemorySink, ScriptedClient, call, openai_server
from toolcrib.wire import encode

__all__ = ["_nothing_ran"]  # a fixture, which is used in each test
CATALOG = Catalog(
    [
        made("play_song", "Play a song or an album."),
        made("send_mail", "Send an e-mail to somebody."),
        made("convert_currency", "Convert an amount of money into another currency."),
        made("show_map", "Show a map of a city."),
    ]
)
TURNS: list[Any] = [
    call("search_tools", query="convert money into another currency", limit=1),
    call("convert_currency", text="10 EUR"),
    "It is 11 USD.",
]
SERVED: dict[str, tuple[Any, Callable[[str], Any]]] = {
    "anthropic": (
        anthropic_server,
        lambda url: AnthropicClient("claude-opus-4-5", base_url=url, api_key="none"),
    ),
    "openai-responses": (
        responses_server,
        lambda url: OpenAIClient("gpt-5.4", api="responses", base_url=url, api_key="none"),
    ),
}
each_wire = pytest.mark.parametrize("wire", SERVED)


def kept(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The tools that stand before everything else: what the provider's cache begins with."""
    return [tool for tool in body["tools"] if not tool.get("defer_loading")]


def told(body: dict[str, Any]) -> list[str]:
    """The tools that are told where they were found."""
    found: list[str] = []
    for item in body.get("input", ()):
        found += [tool["name"] for tool in item.get("tools", ())]
    for message in body.get("messages", ()):
        for block in message["content"] if isinstance(message["content"], list) else ():
            parts = block.get("content")
            found += [p["tool_name"] for p in parts] if isinstance(parts, list) else []
    return found


def messages(body: dict[str, Any]) -> list[Any]:
    said: list[Any] = body.get("input") or body["messages"]
    return said


@each_wire
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_model_searches_and_calls_what_it_found(wire: str, streaming: bool) -> None:
    serve, client_of = SERVED[wire]
    sink = MemorySink()
    async with serve(TURNS) as server, client_of(server.url) as client:
        runner = ToolRunner(CATALOG, sinks=[sink])
        agent = Agent(client, runner, pick=PICK, search_tools="deferred")
        if streaming:
            async with agent.stream("play a song") as stream:
                events = [event async for event in stream]
            result = await stream.result()
            names = [e.names for e in events if isinstance(e, ToolsOffered)]
            assert names == [("search_tools", "play_song"), result.state.offered]
        else:
            result = await agent.run("play a song")
    assert (result.status, result.text) == ("completed", "It is 11 USD.")
    assert RAN == [("convert_currency", "10 EUR")]
    first, second, third = server.requests
    assert kept(first) == kept(second) == kept(third) == first["tools"]
    assert (told(first), told(second), told(third)) == (
        [],
        ["convert_currency"],
        ["convert_currency"],
    )
    assert messages(second)[: len(messages(first))] == messages(first)
    assert messages(third)[: len(messages(second))] == messages(second)
    searched, converted = sink.records
    assert (searched.name, searched.status) == ("search_tools", "completed")
    assert searched.arguments == {"query": "convert money into another currency", "limit": 1}
    assert searched.result == {"tools": [{"name": "convert_currency"}]}
    assert converted.picked is not None
    assert converted.picked.score is not None
    assert converted.picked.reason is not None
    assert converted.picked.reason.startswith("found by search_tools: ")


@each_wire
async def test_what_was_not_found_is_not_called(wire: str) -> None:
    """A tool that there is, and that was told nowhere, is refused; one that was found stays."""
    serve, client_of = SERVED[wire]
    turns = [TURNS[0], [call("show_map", text="x"), call("convert_currency")], "done"]
    async with serve(turns) as server, client_of(server.url) as client:
        agent = Agent(client, CATALOG, pick=PICK, search_tools="deferred")
        result = await agent.run("play a song")
    assert RAN == [("convert_currency", "")]
    _, refused, _ = result.records
    assert refused.error is not None
    assert refused.error.code is ErrorCode.NOT_OFFERED


@each_wire
async def test_two_searches_of_one_turn(wire: str) -> None:
    """A tool that both find is told once; a search that finds nothing new says what it found."""
    serve, client_of = SERVED[wire]
    found = call("search_tools", query="convert money", limit=1)
    turns = [[found, found], call("search_tools", query="convert money", limit=1), "done"]
    async with serve(turns) as server, client_of(server.url) as client:
        agent = Agent(client, CATALOG, pick=PICK, search_tools="deferred")
        result = await agent.run("play a song")
    assert result.text == "done"
    assert [told(body) for body in server.requests] == [
        [],
        ["convert_currency"],
        ["convert_currency"],
    ]
    assert kept(server.requests[0]) == kept(server.requests[2])
    assert json.dumps(server.requests[2]).count("Convert an amount of money") >= 2
    assert [m.loads for m in result.messages if m.loads] == [("convert_currency",)]


@each_wire
async def test_a_session_goes_on_with_it(wire: str) -> None:
    """What one run found the next one has, where it was found; what is picked anew is in the list."""
    serve, client_of = SERVED[wire]
    turns = [*TURNS, "played", "mailed"]
    async with serve(turns) as server, client_of(server.url) as client:
        session = Agent(client, CATALOG, pick=PICK, search_tools="deferred").session()
        await session.send("play a song")
        await session.send("play a song again")
        await session.send("send an e-mail")
    *_, again, mail = server.requests
    assert kept(again) == kept(server.requests[0])
    assert (told(again), told(mail)) == (["convert_currency"], ["convert_currency"])
    assert kept(mail)[: len(kept(again))] == kept(again)
    assert [tool["name"] for tool in kept(mail)[len(kept(again)) :]] == ["send_mail"]


async def later(request: ApprovalRequest) -> None:
    """Nobody is there."""
    del request


@each_wire
async def test_a_saved_run_goes_on_with_it(wire: str) -> None:
    serve, client_of = SERVED[wire]
    async with serve(TURNS) as server, client_of(server.url) as client:
        runner = ToolRunner(CATALOG, policy=ask("convert_currency"), approver=later)
        agent = Agent(client, runner, pick=PICK, search_tools="deferred")
        waiting = await agent.run("play a song")
        assert waiting.status == "waiting"
        state = RunState.from_json(waiting.state.to_json())
        (request,) = state.pending
        result = await agent.resume(state, {request.id: Approve("grace")})
    assert result.text == "It is 11 USD."
    assert kept(server.requests[0]) == kept(server.requests[2])
    assert told(server.requests[2]) == ["convert_currency"]


@each_wire
async def test_a_search_that_somebody_changed_says_so(wire: str) -> None:
    """That is a text, and so what it found comes in the list."""

    async def other(request: ApprovalRequest) -> Approve:
        del request
        return Approve("grace", arguments={"query": "show a map", "limit": 1})

    serve, client_of = SERVED[wire]
    async with (
        serve([TURNS[0], call("show_map"), "done"]) as server,
        client_of(server.url) as client,
    ):
        runner = ToolRunner(CATALOG, policy=ask("search_tools"), approver=other)
        agent = Agent(client, runner, pick=PICK, search_tools="deferred")
        result = await agent.run("play a song")
    assert (result.text, RAN) == ("done", [("show_map", "")])
    assert told(server.requests[1]) == []
    assert kept(server.requests[1])[-1]["name"] == "show_map"
    assert "Whoever approved this call changed" in str(messages(server.requests[1])[-1])


async def test_a_conversation_goes_on_with_another_provider() -> None:
    """The search is a call like any other there; what it found is told as that provider takes it."""
    async with (
        anthropic_server(TURNS) as one,
        responses_server(["hello", "hello"]) as two,
        openai_server(["hello"]) as three,
        AnthropicClient("claude-opus-4-5", base_url=one.url, api_key="none") as claude,
        OpenAIClient("gpt-5.4", api="responses", base_url=two.url, api_key="none") as gpt,
        OpenAIClient("m", base_url=three.url, api_key="none") as chat,
    ):
        agent = Agent(claude, CATALOG, pick=PICK, search_tools="deferred")
        first = await agent.run("play a song")
        history, offered = first.messages, first.state.offered
        other = agent.replace(model=gpt)
        await other.run("and now?", history=history, offered=offered)
        listed = Agent(gpt, CATALOG, pick=PICK, search_tools="listed")
        await listed.run("and now?", history=history, offered=offered)
        plain = Agent(chat, CATALOG, pick=PICK, search_tools=True)
        await plain.run("and now?", history=history, offered=offered)
    searched, listed_ = two.requests
    assert told(searched) == ["convert_currency"]
    assert [tool["type"] for tool in searched["tools"]] == ["tool_search", "function"]
    assert told(listed_) == []
    names = ["search_tools", "play_song", "convert_currency"]
    assert [tool["name"] for tool in listed_["tools"]] == names
    (request,) = three.requests
    assert [tool["function"]["name"] for tool in request["tools"]] == names
    assert (
        "convert_currency" in next(m for m in request["messages"] if m["role"] == "tool")["content"]
    )


@each_row("setting", [True, "listed"])
@each_wire
async def test_at_a_server_that_nobody_knows_all_are_in_the_list(wire: str, setting: Any) -> None:
    """The loopback server is none of the provider's own."""
    serve, client_of = SERVED[wire]
    async with serve(TURNS) as server, client_of(server.url) as client:
        await Agent(client, CATALOG, pick=PICK, search_tools=setting).run("play a song")
    names = [[tool["name"] for tool in body["tools"]] for body in server.requests]
    assert names == [
        ["search_tools", "play_song"],
        *[["search_tools", "play_song", "convert_currency"]] * 2,
    ]
    assert [told(body) for body in server.requests] == [[], [], []]


async def test_a_wire_without_a_form_says_so() -> None:
    async with openai_server(["hello"]) as server, OpenAIClient("m", base_url=server.url) as client:
        agent = Agent(client, CATALOG, pick=PICK, search_tools="deferred")
        with pytest.raises(RequestError, match="deferred=True: openai-chat cannot send tools"):
            await agent.run("play a song")
    assert server.requests == []


async def test_requests_name_the_search_only_where_there_is_one() -> None:
    client = ScriptedClient(["a", "b"])
    await Agent(client, CATALOG, pick=PICK).run("play a song")
    await Agent(client, CATALOG, pick=PICK, search_tools="listed").run("play a song")
    assert [(r.search_tool, r.deferred) for r in client.requests] == [
        ("", None),
        ("search_tools", False),
    ]


async def test_a_result_that_was_shortened_still_brings_its_tools() -> None:
    """What does not fit is the text; the reference stands for the tool. Summed up, it is gone."""
    many = [call("play_song", text=f"{n} {'la ' * 900}") for n in range(6)]
    client = ScriptedClient([*TURNS[:2], *many, "done"])
    context = ContextOptions(tokens=6_000, summarize=ScriptedClient(["A song was played."] * 9))
    agent = Agent(client, CATALOG, pick=PICK, search_tools="deferred", context=context)
    await agent.run("play a song")
    whole, seen = client.requests[1].messages[-1], set[str]()
    assert whole.loads == ("convert_currency",)
    for request in client.requests[1:]:
        found = [m for m in request.messages if m.name == "search_tools"]
        assert [m.loads for m in found] == [whole.loads] * len(found)
        seen |= {m.content for m in found} or {"it is gone"}
        for wire, model in (("anthropic", "claude-opus-4-5"), ("openai-responses", "gpt-5.4")):
            body = json.loads(encode(wire, request, model=model).body)
            listed = [tool.get("name") for tool in kept(body)]
            assert told(body) == ["convert_currency"][: len(found)]
            assert ("convert_currency" in listed) == (not found)
    assert len(seen) > 1


def test_it_is_kept_when_the_agent_is_replaced() -> None:
    agent = Agent(ScriptedClient([]), CATALOG, pick=PICK, search_tools="deferred")
    assert agent.replace(model=ScriptedClient([])).search_tools == "deferred"


def test_a_message_says_what_it_brings_where_it_is_saved() -> None:
    client = ScriptedClient(TURNS)
    result = asyncio.run(Agent(client, CATALOG, pick=PICK, search_tools=True).run("play a song"))
    (found,) = [m for m in result.messages if m.loads]
    assert (found.name, found.loads) == ("search_tools", ("convert_currency",))
    assert RunState.from_json(result.state.to_json()).messages == result.state.messages
    plain = msgspec.structs.replace(found, loads=())
    assert b"loads" not in msgspec.json.encode(plain)


async def test_what_only_a_reopened_search_had_found_is_not_on_offer() -> None:
    search = TURNS[0]
    convert = call("convert_currency", text="b")
    client = ScriptedClient([search, "Done.", convert, "Done again."])
    runner = ToolRunner(CATALOG, policy=ask("search_tools"), approver=answer_later)
    agent = Agent(client, runner, pick=PICK, search_tools="deferred")
    waits = await agent.run("play a song")
    found = await agent.resume(waits.state, {waits.pending[0].id: Approve("ada")})
    assert "convert_currency" in found.state.offered
    asked = await agent.resume(agent.fork(found.state, turn=1, reopen=True))
    refused = {asked.pending[0].id: Refuse("no", by="ada")}
    ended = await agent.resume(asked.state, refused)
    assert "convert_currency" not in ended.state.offered
    error = ended.records[-1].error
    assert error is not None
    assert error.code is ErrorCode.NOT_OFFERED
    assert RAN == []


async def test_no_request_has_more_tools_than_a_run_offers_also_with_one_for_answers() -> None:
    parts = ("bdkmz", ["ar", "el", "im", "on", "ut"], "fgkl", ["ano", "ibe"])
    words = ["".join(each) for each in product(*parts)]
    many = Catalog([made(f"{word}_tool", f"Handle {word} things.") for word in words[:200]])
    queries = [" ".join(words[at : at + 10]) for at in range(0, 160, 10)]
    searches = [call("search_tools", query=query, limit=10) for query in queries[1:]]
    client = ScriptedClient([*searches, "1"])
    pick = PickOptions(max_candidates=10)
    agent = Agent(client, many, pick=pick, search_tools="listed", output=int)
    result = await agent.run(queries[0])
    assert len(result.state.offered) == 127
    sent = encode("mistral", client.requests[-1], model="m")
    assert len(json.loads(sent.body)["tools"]) == 128
