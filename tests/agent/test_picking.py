"""Picking in the loop: what a run offers, in which order, and what it never does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from rows import each_row

from toolcrib import (
    ALL,
    Agent,
    ApprovalRequest,
    Approve,
    Caller,
    Catalog,
    Done,
    Message,
    PickOptions,
    Policy,
    RunResult,
    RunState,
    Session,
    ToolArgumentsDelta,
    ToolCall,
    ToolRunner,
    ToolsOffered,
    tool,
)
from toolcrib.errors import PickError, ToolcribError
from toolcrib.pick import Query
from toolcrib.policies import ask, budget, deny_by_default, rate_limit, require_roles
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.definition import HasDefinition

NAMES = ("mail_send", "map_show", "note_write", "rate_convert", "song_play", "sun_rise")
STAFF = Caller("ada", ("staff",))


def made(name: str, **marks: Any) -> HasDefinition:
    first, second = name.split("_")

    @tool(visible=ALL, name=name, description=f"{second.title()} a {first}.", **marks)
    async def run(text: str = "") -> str:
        return f"{name} of {text}"

    return run


CATALOG = Catalog([made(name) for name in NAMES])


class Wanted:
    """A scorer that wants the tools which the last request names, the last named most."""

    name = "wanted"

    def score(self, query: Query, tools: Sequence[HasDefinition]) -> list[float]:
        asked = query.text.split()
        names = [tool.get_definition().name for tool in tools]
        return [(1 + asked.index(n)) / len(asked) if n in asked else 0.0 for n in names]


def agent(client: ScriptedClient, *, runner: ToolRunner | None = None, **options: Any) -> Agent:
    pick = PickOptions(**{"scorer": Wanted(), "max_candidates": 3, **options})
    return Agent(client, ToolRunner(CATALOG) if runner is None else runner, pick=pick)


def offered(client: ScriptedClient) -> list[list[str]]:
    return [[t.get_definition().name for t in request.tools] for request in client.requests]


async def test_what_is_picked_is_offered_in_the_order_of_the_catalog_in_every_turn() -> None:
    client = ScriptedClient([call("map_show"), "done"])
    result = await agent(client).run("song_play mail_send map_show")
    assert offered(client) == [["mail_send", "map_show", "song_play"]] * 2
    assert client.requests[0].tools is client.requests[1].tools
    assert result.state.offered == ("mail_send", "map_show", "song_play")


async def test_what_was_called_in_the_history_is_offered_again() -> None:
    called = ToolCall("c1", "sun_rise", "{}")
    gone = ToolCall("c2", "no_such", "{}")
    history = [
        Message.user("hi"),
        Message.assistant("", (called, gone)),
        Message.tool(called, "early"),
        Message.tool(gone, "none", is_error=True),
    ]
    client = ScriptedClient(["done"])
    await agent(client).run("map_show", history=history)
    assert offered(client) == [["map_show", "sun_rise"]]


async def test_a_session_keeps_what_it_offered_and_puts_what_is_new_behind() -> None:
    client = ScriptedClient([*"abcd"])
    session = agent(client).session()
    for prompt in ("song_play map_show", "map_show", "mail_send song_play note_write", "sun_rise"):
        await session.send(prompt)
    assert offered(client) == [
        ["map_show", "song_play"],
        ["map_show", "song_play"],
        ["map_show", "song_play", "mail_send", "note_write"],
        ["map_show", "song_play", "mail_send", "note_write", "sun_rise"],
    ]
    assert client.requests[0].tools[0] is client.requests[3].tools[0]


async def test_where_too_many_gathered_only_what_is_wanted_and_was_called_stays() -> None:
    client = ScriptedClient([call("song_play"), *"abcdef"])
    session = agent(client, max_candidates=1).session()
    for prompt in ("song_play", "map_show", "mail_send", "note_write", "sun_rise", "sun_rise"):
        await session.send(prompt)
    assert offered(client)[1:] == [
        ["song_play"],
        ["song_play", "map_show"],
        ["song_play", "map_show", "mail_send"],
        ["song_play", "map_show", "mail_send", "note_write"],
        ["song_play", "sun_rise"],
        ["song_play", "sun_rise"],
    ]


@pytest.mark.parametrize(("count", "most"), [(40, 127), (200, 200)])
async def test_no_run_of_a_session_offers_more_than_a_provider_takes_unless_told_to(
    count: int, most: int
) -> None:
    many = [made(f"tool_{n:03}") for n in range(1000)]
    client = ScriptedClient([*"abcde"])
    pick = {"max_candidates": count, "min_score": 0.001}
    session = agent(client, runner=ToolRunner(many), **pick).session()
    for at in range(5):
        names = [f"tool_{n:03}" for n in range(at * count, (at + 1) * count)]
        await session.send(" ".join(names))
        assert set(names) <= set(offered(client)[-1])
    assert max(map(len, offered(client))) <= most


async def test_a_saved_session_knows_what_it_offered() -> None:
    client = ScriptedClient(["a", "b"])
    picks = agent(client)
    session = picks.session()
    await session.send("song_play")
    again = Session.from_json(picks, session.to_json())
    assert (again.messages, again.offered) == (session.messages, ("song_play",))
    await again.send("map_show")
    assert offered(client)[1] == ["song_play", "map_show"]


NOBODY = "good morning"  # nothing is picked for it
MANY = [f"tool_{n:03}" for n in range(200)]


@pytest.mark.parametrize(
    ("before", "stays"),
    [
        (["song_play"] * 3, ("song_play",)),
        (["no_such", "search_tools", "\ud800", "song_play"], ("song_play",)),
        (("sun_rise", "map_show"), ("sun_rise", "map_show")),
        (MANY, ()),  # saved while more were picked
    ],
)
async def test_whatever_was_offered_before(before: Sequence[str], stays: tuple[str, ...]) -> None:
    runner = ToolRunner([*CATALOG, *map(made, MANY)])
    result = await agent(ScriptedClient(["a"]), runner=runner).run(NOBODY, offered=before)
    assert result.state.offered == stays


@each_row("wrong", ["song_play", [["song_play"]], [None], b"song_play", 7])
async def test_what_are_no_names_was_never_offered(wrong: Any) -> None:
    picks = agent(ScriptedClient([]))
    with pytest.raises(ToolcribError, match=r"state\.offered"):
        await picks.run(NOBODY, offered=wrong)
    with pytest.raises(ToolcribError, match=r"state\.offered"):
        picks.stream(NOBODY, offered=wrong)


@each_row(
    ("options", "gone"),
    [
        ({"without": ["map_show"]}, "map_show"),
        ({"only": [n for n in NAMES if n != "map_show"]}, "map_show"),
        ({"quota": {"map_show": 0}}, "map_show"),
        ({"quota": lambda name: 0 if name == "map_show" else None}, "map_show"),
        ({}, "danger_zone"),
    ],
)
async def test_what_the_options_leave_out_is_offered_again_by_no_history(
    options: dict[str, Any], gone: str
) -> None:
    runner = ToolRunner([*CATALOG, made("danger_zone", safe=False)])
    called = tuple(ToolCall(f"c{n}", name, "{}") for n, name in enumerate([gone, "sun_rise"]))
    history = [Message.assistant("", called), *(Message.tool(each, "ok") for each in called)]
    picks = agent(ScriptedClient(["a"]), runner=runner, **options)
    result = await picks.run(NOBODY, history=history, offered=["song_play", gone])
    assert result.state.offered == ("song_play", "sun_rise")


async def test_a_saved_run_that_names_a_tool_twice_offers_it_once() -> None:
    runner = ToolRunner(CATALOG, policy=ask("map_show"), approver=later)
    client = ScriptedClient([call("map_show"), "done"])
    state = (await agent(client, runner=runner).run("map_show")).state
    twice = msgspec.structs.replace(state, offered=("map_show", "song_play", "map_show"))
    result = await agent(client, runner=runner).resume(twice, {state.pending[0].id: Approve("ada")})
    assert result.state.offered == ("map_show", "song_play")


async def later(_request: ApprovalRequest) -> None:
    return None


async def test_a_session_that_does_not_pick_is_saved_as_its_messages() -> None:
    session = Agent(ScriptedClient(["a"]), CATALOG).session()
    await session.send("hi")
    assert session.to_json().startswith("[")
    assert Session.from_json(session.agent, session.to_json()).messages == session.messages


async def test_nothing_picked_is_a_run_without_tools() -> None:
    client = ScriptedClient(["hello"])
    result = await agent(client).run("good morning")
    assert (offered(client), result.state.offered, result.text) == ([[]], (), "hello")


@each_row("prompt", ["", "   ", "\x00\x1b[2J", "x" * 1_000_000, 'NEAR("a" b) OR *'])
async def test_any_prompt_can_be_picked_for(prompt: str) -> None:
    client = ScriptedClient(["hello"])
    result = await agent(client, scorer="keyword").run(prompt)
    assert result.status == "completed"


async def test_the_time_is_up_and_the_first_ones_are_offered() -> None:
    async def hangs(_input: object, _tool: HasDefinition) -> float:
        await asyncio.Event().wait()
        return 1.0

    client = ScriptedClient(["done"])
    await agent(client, scorer=hangs, timeout_ms=20).run("sun_rise")
    assert offered(client) == [list(NAMES[:3])]


async def test_the_time_is_up_and_the_first_ones_that_are_not_denied_are_offered() -> None:
    asked: list[str] = []

    async def hangs(_input: object, tool: HasDefinition) -> float:
        asked.append(tool.get_definition().name)
        await asyncio.Event().wait()
        return 1.0

    runner = ToolRunner(CATALOG, policy=deny_by_default(allow=["song_play", "map_show"]))
    client = ScriptedClient(["done"])
    await agent(client, runner=runner, scorer=hangs, timeout_ms=20).run("sun_rise")
    assert offered(client) == [["map_show", "song_play"]]
    assert len(asked) <= len(NAMES)  # it had its time once


async def test_the_time_is_up_when_more_is_looked_for_and_what_was_found_is_offered() -> None:
    class Tires(Wanted):
        asked = 0

        async def score(  # type: ignore[override]
            self, query: Query, tools: Sequence[HasDefinition]
        ) -> list[float]:
            self.asked += 1
            if self.asked > 1:
                await asyncio.Event().wait()
            return super().score(query, tools)

    tires = Tires()
    runner = ToolRunner(CATALOG, policy=deny_by_default(allow=["mail_send", "sun_rise"]))
    client = ScriptedClient(["done"])
    picks = agent(client, runner=runner, scorer=tires, timeout_ms=200, max_candidates=2)
    await picks.run("map_show sun_rise")
    assert (offered(client), tires.asked) == ([["sun_rise"]], 2)


def only_staff(**marks: Any) -> ToolRunner:
    special = made("staff_only", allowed_roles=["staff"], **marks)
    return ToolRunner(Catalog([special, *CATALOG]))


POLICIES: list[tuple[Policy, bool]] = [
    (deny_by_default(allow=[n for n in NAMES if n != "map_show"]), False),
    (require_roles("staff", only="map_show"), False),
    (budget(calls=0, only="map_show"), False),
    (budget(cost=0.5, per="tool", only=["map_show"]), True),
    (budget(calls=0, per="caller", only="map_show"), False),
    (ask("map_show"), True),
    (rate_limit("1/minute", only="map_show"), True),
]


@each_row(("policy", "is_offered"), POLICIES)
async def test_a_tool_that_policy_never_lets_run_is_not_offered(
    policy: Policy, is_offered: bool
) -> None:
    client = ScriptedClient([call("map_show"), "done"])
    runner = ToolRunner(CATALOG, policy=policy)
    result = await agent(client, runner=runner).run("map_show song_play")
    assert offered(client)[0] == (["map_show"] if is_offered else []) + ["song_play"]
    if not is_offered:  # it is not told apart from a tool that is not there
        assert [r.error.code for r in result.records if r.error] == ["unknown_tool"]


@pytest.mark.parametrize(("caller", "names"), [(STAFF, ["staff_only"]), (Caller("eve"), [])])
async def test_a_tool_for_others_is_not_offered(caller: Caller, names: list[str]) -> None:
    client = ScriptedClient(["a", "b"])
    session = agent(client, runner=only_staff()).session()
    await session.send("staff_only map_show", caller=caller)
    assert offered(client) == [[*names, "map_show"]]
    await session.send("staff_only", caller=Caller("bob"))  # whatever was offered to somebody else
    assert offered(client)[1] == ["map_show"]


async def test_the_next_best_takes_the_place_of_a_tool_that_is_denied() -> None:
    many = [made(f"tool_{n:03}") for n in range(200)]
    runner = ToolRunner(many, policy=deny_by_default(allow=["tool_150", "tool_198"]))
    client = ScriptedClient(["done"])
    prompt = " ".join(f"tool_{n:03}" for n in reversed(range(200)))
    await agent(client, runner=runner, max_candidates=2, min_score=0.0).run(prompt)
    assert offered(client) == [["tool_150", "tool_198"]]


class Fails:
    def __call__(self, *_: object) -> Any:
        raise RuntimeError

    def never_allows(self, *_: object) -> Any:
        raise RuntimeError


class Vague(Fails):
    def never_allows(self, *_: object) -> Any:
        return True


@pytest.mark.parametrize("policy", [Fails(), Vague()])
async def test_a_policy_that_fails_to_say_denies(policy: Policy) -> None:
    client = ScriptedClient(["done"])
    await agent(client, runner=ToolRunner(CATALOG, policy=policy)).run("map_show")
    assert offered(client) == [[]]


async def test_a_budget_that_a_run_used_up_hides_its_tools_in_no_other_run() -> None:
    runner = ToolRunner(CATALOG, policy=budget(calls=1, only="map_show"))
    client = ScriptedClient([call("map_show"), "a", "b"])
    session = agent(client, runner=runner).session()
    await session.send("map_show")
    await session.send("map_show")
    assert offered(client) == [["map_show"]] * 3


async def test_a_tool_that_was_not_offered_and_one_that_is_not_there() -> None:
    client = ScriptedClient([[call("sun_rise"), call("moon_rise")], "done"])
    result = await agent(client).run("map_show")
    assert [r.error.code for r in result.records if r.error] == ["not_offered", "unknown_tool"]


async def test_who_watches_is_told_what_is_offered() -> None:
    async with agent(ScriptedClient(["hi"])).stream("song_play map_show") as stream:
        events = [event async for event in stream]
    assert [e.names for e in events if isinstance(e, ToolsOffered)] == [("map_show", "song_play")]
    async with Agent(ScriptedClient(["hi"]), CATALOG).stream("song_play") as stream:
        assert not [event async for event in stream if isinstance(event, ToolsOffered)]


async def test_a_scorer_that_raises_fails_the_run_which_can_go_on_later() -> None:
    broken = True

    def scorer(_input: object, tool: HasDefinition) -> float:
        if broken:
            raise ValueError
        return float(tool.get_definition().name == "map_show")

    client = ScriptedClient(["done"])
    picks = agent(client, scorer=scorer)
    results: list[RunResult] = []
    async with picks.stream("map_show", offered=["song_play", "gone"]) as stream:
        async for event in stream:
            results += [event.result] if isinstance(event, Done) else []
        with pytest.raises(PickError):
            await stream.result()
    broken = False
    state = RunState.from_json(results[0].state.to_json())
    assert (await picks.resume(state)).text == "done"
    assert offered(client) == [["song_play", "map_show"]]


@pytest.mark.parametrize(("name", "streams"), [("map_show", True), ("staff_only", False)])
async def test_of_a_call_that_is_answered_as_if_there_were_no_tool_no_arguments_stream(
    name: str, streams: bool
) -> None:
    client = ScriptedClient([call(name, text="now"), "done"])
    async with agent(client, runner=only_staff()).stream("map_show") as stream:
        events = [event async for event in stream]
    assert any(isinstance(event, ToolArgumentsDelta) for event in events) is streams
