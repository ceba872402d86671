"""Why a call was made can be read from its record: agent, model, provider, prompt, choice of tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from toolcrib import (
    ALL,
    Agent,
    Approve,
    Caller,
    Catalog,
    Done,
    Limits,
    Message,
    PickOptions,
    RunStarted,
    RunState,
    ToolRunner,
    ToolsOffered,
    tool,
)
from toolcrib.audit import AuditFilter, AuditLog, RunRecord
from toolcrib.clients import OpenAIClient
from toolcrib.errors import ProviderError, ToolcribError
from toolcrib.pick import Query
from toolcrib.policies import ask
from toolcrib.testing import MemorySink, ScriptedClient, call, openai_server
from toolcrib.values.content import Image
from toolcrib.values.definition import HasDefinition
from toolcrib.values.json import digest
from toolcrib.values.message import Usage
from toolcrib.values.record import Candidate, ToolInvocationRecord

ADA = Caller("ada", ("support",))


def made(name: str, **marks: Any) -> HasDefinition:
    @tool(visible=ALL, name=name, description=f"Do {name}.", **marks)
    async def run(text: str = "") -> str:
        return f"{name}: {text}"

    return run


REFUND, LOOK = made("refund"), made("look")
CATALOG = Catalog([REFUND, LOOK, made("ban", allowed_roles=["boss"]), made("wipe", safe=False)])


class Wanted:
    """A scorer that wants the tools that a request names, and says why."""

    name = "wanted"

    def score(self, query: Query, tools: Sequence[HasDefinition]) -> list[float]:
        names = [tool.get_definition().name for tool in tools]
        return [0.75 if name in query.text else 0.0 for name in names]


PICK = PickOptions(scorer=Wanted(), max_candidates=3)


def shop(*turns: Any, sinks: Sequence[Any] = (), tools: Any = CATALOG, **options: Any) -> Agent:
    runner = ToolRunner(tools, sinks=sinks)
    return Agent(ScriptedClient(turns), runner, name="shop", version="1.2", **options)


# --- the turn ---------------------------------------------------------------------------------------


async def test_each_record_says_which_turn_of_which_agent_made_the_call() -> None:
    sink = MemorySink()
    agent = shop(call("look"), call("refund"), "done", sinks=[sink], instructions="Be kind.")
    result = await agent.run("Refund it.", caller=ADA)
    first, second = (record.origin for record in sink.records)
    assert first is not None
    assert second is not None
    assert (first.agent, first.agent_version, first.turn, second.turn) == ("shop", "1.2", 1, 2)
    assert first.model == "scripted"
    assert [record.caller_roles for record in result.records] == [("support",)] * 2
    assert (agent.name, agent.version) == ("shop", "1.2")
    assert agent.replace(model=ScriptedClient([])).version == "1.2"


async def test_the_model_and_the_provider_are_those_of_the_reply() -> None:
    sink = MemorySink()
    async with (
        openai_server([call("look"), "done"]) as server,
        OpenAIClient("gpt-x", base_url=server.url, retries=None) as client,
    ):
        await Agent(client, ToolRunner(CATALOG, sinks=[sink])).run("Look.")
    (record,) = sink.records
    assert record.origin is not None
    assert record.origin.model == "gpt-x"
    assert record.origin.provider == "openai-chat at 127.0.0.1"
    assert record.payload is not None
    assert record.payload.position == 0


async def test_an_event_names_the_agent() -> None:
    async with shop("Hello.").stream("Hi.") as stream:
        (begun,) = [event async for event in stream if isinstance(event, RunStarted)]
    assert (begun.agent, begun.agent_version) == ("shop", "1.2")


@pytest.mark.parametrize("wrong", [{"name": 5}, {"version": 1.2}, {"record_prompts": "yes"}])
def test_what_is_no_label_is_told_so(wrong: dict[str, Any]) -> None:
    with pytest.raises(ToolcribError, match=f"{next(iter(wrong))}="):
        Agent(ScriptedClient([]), **wrong)


# --- the prompt -------------------------------------------------------------------------------------


async def prompt_of(agent: Agent, *said: Any, **given: Any) -> str:
    (record,) = (await agent.run(*said, **given)).records
    assert record.origin is not None
    return record.origin.prompt_digest


async def test_the_prompt_digest_is_over_what_was_said_and_the_definitions_on_offer() -> None:
    tools = [offered.get_definition().digest for offered in (REFUND, LOOK)]
    said = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Look."}]
    told = await prompt_of(
        shop(call("look"), "x", tools=[REFUND, LOOK], instructions="Be kind."), "Look."
    )
    assert told == digest({"messages": said, "tools": tools})


async def test_what_changes_the_prompt_changes_its_digest() -> None:
    def turns() -> list[Any]:
        return [call("look"), "x"]

    other = made("look", idempotent=True)  # the same name, another definition
    history = [Message.user("Hi."), Message.assistant("Yes?")]
    pictured = [Message.user("See.", (Image("image/png", "AAAA"),))]
    seen = [
        await prompt_of(shop(*turns(), tools=[LOOK]), "Look."),
        await prompt_of(shop(*turns(), tools=[LOOK]), "Look!"),
        await prompt_of(shop(*turns(), tools=[LOOK], instructions="Be kind."), "Look."),
        await prompt_of(shop(*turns(), tools=[other]), "Look."),
        await prompt_of(shop(*turns(), tools=[LOOK, REFUND]), "Look."),
        await prompt_of(shop(*turns(), tools=[LOOK]), "Look.", history=history),
        await prompt_of(shop(*turns(), tools=[LOOK]), "Look.", history=pictured),
    ]
    assert len(set(seen)) == len(seen)
    assert await prompt_of(shop(*turns(), tools=[LOOK]), "Look.") == seen[0]


async def test_its_text_is_recorded_only_if_the_author_says_so() -> None:
    silent, telling = MemorySink(), MemorySink()
    for sink, allowed in ((silent, False), (telling, True)):
        await shop(
            call("look", text="a\nb"), "x", call("look"), "y", sinks=[sink], record_prompts=allowed
        ).run("Look closely.")
    assert [a.kind for a in silent.attachments] == ["definition"]
    (prompt,) = [a for a in telling.attachments if a.kind == "prompt"]
    assert json.loads(prompt.text)["messages"] == [{"role": "user", "content": "Look closely."}]
    assert prompt.genuine
    (record,) = telling.records
    assert record.origin is not None
    assert (record.origin.prompt_digest, record.run_id) == (prompt.digest, prompt.run_id)


async def test_a_long_run_keeps_its_prompt_once() -> None:
    async with AuditLog("sqlite://") as log:
        agent = shop(*[call("look")] * 5, "x", sinks=[log], record_prompts=True)
        await agent.run("Look.")
        kept = [json.loads(line).get("record", {}) async for line in log.export()]
    assert [record.get("status") for record in kept].count("prompt") == 1


# --- the choice -------------------------------------------------------------------------------------


async def test_scores_reasons_and_exclusions_are_in_the_event_the_state_and_the_record() -> None:
    sink = MemorySink()
    runner = ToolRunner(CATALOG, sinks=[sink])
    agent = Agent(ScriptedClient([call("refund"), "done"]), runner, pick=PICK)
    async with agent.stream("refund or ban", caller=ADA) as stream:
        events = [event async for event in stream]
    (offered,) = [event for event in events if isinstance(event, ToolsOffered)]
    choice = offered.choice
    assert choice is not None
    assert (choice.scorer, choice.timed_out) == ("wanted", False)
    assert choice.offered == (Candidate("refund", 0.75),)
    excluded = {candidate.name: candidate.reason for candidate in choice.excluded}
    assert excluded["ban"].startswith("denied by ")
    assert "unsafe" in excluded["wipe"] or "safe" in excluded["wipe"]
    assert choice.excluded_count == 2
    (done,) = [event for event in events if isinstance(event, Done)]
    assert done.result.state.choice == choice
    (record,) = sink.records
    assert record.picked == Candidate("refund", 0.75)
    assert record.origin is not None
    (kept,) = [a for a in sink.attachments if a.kind == "choice"]
    assert record.origin.choice_digest == kept.digest
    assert json.loads(kept.text) == json.loads(msgspec.json.encode(choice))


async def test_what_is_offered_again_says_where_it_is_from() -> None:
    agent = shop(call("refund"), "one", "two", "three", pick=PICK)
    session = agent.session()
    await session.send("refund")
    second = await session.send("look")
    assert second.state.choice is not None
    told = {c.name: (c.score, c.reason) for c in second.state.choice.offered}
    assert told == {
        "look": (0.75, ""),
        "refund": (None, "called earlier in the conversation"),
    }


async def test_what_the_model_finds_itself_has_its_score_too() -> None:
    agent = shop(
        call("search_tools", query="look"), call("look"), "x", pick=PICK, search_tools=True
    )
    async with agent.stream("refund") as stream:
        events = [event async for event in stream]
        result = await stream.result()
    first, second = (e.choice for e in events if isinstance(e, ToolsOffered))
    assert first is not None
    assert second is not None
    assert [c.name for c in first.offered] == ["refund", "search_tools"]
    assert second.offered[-1] == Candidate("look", 0.75, "found by search_tools")
    searched, looked = result.records
    assert searched.picked == Candidate("search_tools", None, "the search for more tools")
    assert looked.picked == second.offered[-1]
    digests = {r.origin.choice_digest for r in result.records if r.origin is not None}
    assert len(digests) == 2


async def test_a_run_that_waits_keeps_where_its_calls_come_from() -> None:
    sink = MemorySink()

    def agent(*turns: Any, version: str) -> Agent:
        runner = ToolRunner(CATALOG, policy=[ask("refund")], sinks=[sink], approver=nobody)
        client = ScriptedClient(turns)
        return Agent(client, runner, pick=PICK, name="shop", version=version, record_prompts=True)

    async def nobody(_request: object) -> None:
        return None

    first = await agent(call("refund"), version="1").run("refund", caller=ADA)
    assert first.status == "waiting"
    state = RunState.from_json(first.state.to_json())
    assert state == first.state
    assert state.choice is not None
    answers = {state.pending[0].id: Approve("grace")}
    later = await agent("done", version="2").resume(state, answers)
    assert later.status == "completed"
    waited, ran = sink.records
    assert ran.origin == waited.origin
    assert ran.origin is not None
    assert (ran.origin.agent_version, ran.origin.turn) == ("1", 1)
    assert ran.picked == Candidate("refund", 0.75)
    assert {a.kind for a in sink.attachments} == {"definition", "prompt", "choice"}


def test_a_state_of_before_goes_on() -> None:
    """It has neither origin nor choice."""
    agent = shop("hello", pick=PICK)
    state = asyncio.run(agent.run("refund")).state
    old = json.loads(state.to_json())
    del old["origin"], old["choice"]
    again = RunState.from_json(json.dumps(old))
    assert (again.origin, again.choice) == (None, None)
    assert again.usage == Usage(1)


def test_a_record_of_a_call_outside_of_a_run_has_no_origin() -> None:
    bare = ToolInvocationRecord(id="c", name="t", status="completed", started_at=1.0)
    assert (bare.origin, bare.picked) == (None, None)
    assert b"origin" not in msgspec.json.encode(bare)


# --- the run ----------------------------------------------------------------------------------------


def told(sink: MemorySink) -> list[str]:
    return [run.status for run in sink.runs]


async def test_a_sink_is_told_of_each_run_also_of_one_without_calls() -> None:
    sink = MemorySink()
    result = await shop("Hello.", sinks=[sink], instructions="Be kind.").run("Hi.", caller=ADA)
    began, ended = sink.runs
    assert told(sink) == ["running", "completed"]
    assert began.run_id == ended.run_id == result.state.run_id
    assert began.started_at == ended.started_at
    assert (began.agent, began.agent_version, began.model) == ("shop", "1.2", "scripted")
    assert (ended.caller, ended.caller_roles) == ("ada", ("support",))
    tools = [offered.get_definition().digest for offered in CATALOG]
    said = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi."}]
    assert ended.prompt_digest == digest({"messages": said, "tools": tools})
    assert (ended.turns, ended.calls, ended.usage) == (1, 0, Usage(1))
    assert ended.seconds is not None


async def test_a_run_that_calls_has_the_prompt_digest_of_its_calls() -> None:
    sink = MemorySink()
    await shop(call("look"), call("look"), "done", sinks=[sink]).run("Look.")
    assert {r.origin.prompt_digest for r in sink.records if r.origin} == {
        sink.runs[-1].prompt_digest
    }
    assert (sink.runs[-1].turns, sink.runs[-1].calls) == (3, 2)


@pytest.mark.parametrize(
    ("turns", "limits", "status", "limit"),
    [
        ([call("look")] * 3, Limits(turns=2), "limited", "turns"),
        ([ProviderError("it is down")], Limits(), "failed", None),
    ],
)
async def test_it_says_how_the_run_ended(
    turns: Any, limits: Limits, status: str, limit: str | None
) -> None:
    sink = MemorySink()
    with suppress(ProviderError):
        await shop(*turns, sinks=[sink], limits=limits).run("Look.")
    assert told(sink) == ["running", status]
    assert sink.runs[-1].limit == limit


async def test_a_cancelled_run_says_so() -> None:
    sink = MemorySink()
    begun = asyncio.Event()

    @tool(visible=ALL)
    async def hang() -> int:
        """Hang."""
        begun.set()
        await asyncio.Event().wait()
        return 1

    running = asyncio.create_task(shop(call("hang"), sinks=[sink], tools=[hang]).run("Hang."))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert told(sink) == ["running", "cancelled"]


class Full(MemorySink):
    """A sink that cannot take what it is told of a run at this point."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self._at = at

    def write_run(self, record: RunRecord) -> None:
        if record.status == self._at:
            raise OSError("the disk is full")
        super().write_run(record)


@pytest.mark.parametrize("at", ["running", "completed"])
async def test_what_a_sink_raises_ends_the_run_and_it_says_so_once(at: str) -> None:
    sink = Full(at)
    stream = shop("Hello.", sinks=[sink]).stream("Hi.")
    events = [event async for event in stream]
    with pytest.raises(OSError, match="the disk is full"):
        await stream.result()
    assert [type(event) for event in events].count(Done) == 1
    assert isinstance(events[-1], Done)
    assert events[-1].result.status == "failed"
    assert sink.runs[-1].status == "failed"


async def test_the_log_keeps_how_a_run_ended() -> None:
    async with AuditLog("sqlite://", key="k" * 16) as log:
        result = await shop(call("look"), "done", sinks=[log]).run("Look.", caller=ADA)
        (run,) = await log.runs(result.state.run_id)
        assert (run.status, run.agent, run.caller_roles) == ("completed", "shop", ("support",))
        assert await log.runs("another") == []
        assert [e.record.name for e in await log.entries(AuditFilter(run_id=run.run_id))] == [
            "look",
            "look",
        ]
        assert (await log.verify()).ok


async def test_a_run_that_another_one_called_names_it() -> None:
    sink = MemorySink()
    inner = shop("done", sinks=[sink])

    @tool(visible=ALL)
    async def delegate() -> str:
        """Have it done."""
        return (await inner.run("Do it.")).text

    outer = await shop(call("delegate"), "done", tools=[delegate]).run("Do it.")
    assert {run.parent_run_id for run in sink.runs} == {outer.state.run_id}
    assert {run.parent_call_id for run in sink.runs} == {outer.records[0].id}
