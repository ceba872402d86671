"""A stand-in for tools: the way of a call is as ever, no tool's code runs, and every record says so."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from pydantic import SecretStr
from rows import each_row
from samples import sample

from toolcrib import (
    ALL,
    Agent,
    Approve,
    Catalog,
    Completed,
    Failed,
    Limits,
    PickOptions,
    RunState,
    ToolCall,
    ToolCallProgress,
    ToolDefinition,
    ToolError,
    ToolRunner,
    capability,
    per_call,
    tool,
)
from toolcrib.agent import ContextOptions
from toolcrib.approvals import Always, ApprovalStore, answer_later
from toolcrib.audit import AuditFilter, AuditLog
from toolcrib.cli.audit import CallStory
from toolcrib.errors import ApprovalError, CatalogError, SourceError
from toolcrib.policies import budget, deny_by_default
from toolcrib.testing import MemorySink, ScriptedClient, ToolEmulator, call
from toolcrib.values.message import ChatRequest
from toolcrib.values.record import has_begun

REAL: list[Any] = []


@capability
class Till(Protocol):
    async def pay(self, amount: int) -> None: ...


def opened(_context: Any) -> Any:
    REAL.append("till")


@tool(visible=ALL, idempotent=True)
async def count(word: str) -> int:
    """Count letters."""
    REAL.append("count")
    return len(word)


@tool(visible=ALL)
def blocks(word: str) -> int:
    """Count letters, slowly."""
    REAL.append("blocks")
    return len(word)


@tool(visible=ALL)
async def streams(word: str) -> AsyncIterator[int]:
    """Count letters, one by one."""
    REAL.append("streams")
    for at, _ in enumerate(word):
        yield at


@tool(visible=ALL, name="class_tool")
class ClassTool:
    """Count letters, as a class."""

    def __init__(self, word: str) -> None:
        self.word = word

    async def run(self, till: Till) -> int:
        REAL.append("class")
        return len(self.word)


@tool(visible=ALL, subprocess=True)
def apart(word: str) -> int:
    """Count letters, in a process."""
    raise AssertionError


@tool(visible=ALL, safe=False)
async def wipe(disk: str, key: SecretStr) -> dict[str, int]:
    """Wipe a disk."""
    REAL.append("wipe")
    return {}


KINDS = (count, blocks, streams, ClassTool, apart)
ALL_KINDS = ("count", "blocks", "streams", "class_tool", "apart")


@pytest.fixture(autouse=True)
def _nothing_real() -> Any:
    REAL.clear()
    yield
    assert REAL == []


def runner(**options: Any) -> ToolRunner:
    return ToolRunner(Catalog([*KINDS, wipe]).bind({Till: per_call(opened)}), **options)


def asked(name: str, arguments: str = '{"word": "tea"}') -> ToolCall:
    return ToolCall("call_1", name, arguments)


async def _later(arguments: Any) -> int:
    return len(arguments["word"]) + 4


@each_row(
    ("name", "answer"),
    [
        (name, answer)
        for name in ALL_KINDS
        for answer in (7, lambda arguments: len(arguments["word"]) + 4, _later)
    ],
)
async def test_every_kind_of_tool_is_stood_in_for(name: str, answer: Any) -> None:
    sink = MemorySink()
    emulated = ToolEmulator({name: answer}).over(runner(sinks=[sink]))
    outcome = await emulated.exec(asked(name))
    assert isinstance(outcome, Completed)
    assert (outcome.value, outcome.record.emulated) == (7, True)
    [record] = sink.finished()
    assert (record.notes, record.idempotency_key) == (("emulated",), "")


async def test_a_streaming_tool_tells_its_parts() -> None:
    async def parts(_arguments: Any) -> AsyncIterator[int]:
        yield 1
        yield 2

    emulator = ToolEmulator({"streams": parts, "count": parts})
    agent = Agent(ScriptedClient([call("streams", word="ab"), "Done."]), runner())
    async with emulator.over(agent).stream("Go.") as stream:
        told = [event.part async for event in stream if isinstance(event, ToolCallProgress)]
    assert told == [1, 2]
    assert (await stream.result()).records[0].result == 2
    last = await emulator.over(runner()).exec(asked("count"))
    assert isinstance(last, Completed)
    assert last.value == 2


@each_row(
    ("answer", "code", "said"),
    [
        ("seven", "invalid_output", "expected integer"),
        (object(), "invalid_output", "not JSON"),
        (ToolError("The shop is closed."), "tool_error", "The shop is closed."),
        (ValueError("secret words"), "tool_error", "The tool failed."),
    ],
)
async def test_what_it_gives_is_judged_as_what_the_tool_gives(
    answer: Any, code: str, said: str
) -> None:
    outcome = (
        await ToolEmulator({"count": lambda _: _raised(answer)}).over(runner()).exec(asked("count"))
    )
    assert isinstance(outcome, Failed)
    assert (str(outcome.error.code), outcome.record.emulated) == (code, True)
    assert said in outcome.error.message


def _raised(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


async def test_arguments_permissions_and_approvals_are_as_ever() -> None:
    emulator = ToolEmulator({"count": 7, "wipe": {"n": 1}})
    invalid = await emulator.over(runner()).exec(asked("count", "{}"))
    assert str(invalid.record.error and invalid.record.error.code) == "invalid_arguments"
    denied = await emulator.over(runner(policy=deny_by_default(allow=["blocks"]))).exec(
        asked("count")
    )
    assert str(denied.record.error and denied.record.error.code) == "denied"
    arguments = '{"disk": "a", "key": "k"}'
    nobody = await emulator.over(runner()).exec(asked("wipe", arguments))
    assert str(nobody.record.error and nobody.record.error.code) == "approval_required"
    assert nobody.record.emulated
    requests: list[Any] = []

    async def approver(request: Any) -> Approve:
        requests.append(request)
        return Approve("grace")

    yes = await emulator.over(runner(approver=approver)).exec(asked("wipe", arguments))
    assert (yes.record.status, yes.record.approved_by, len(requests)) == ("completed", "grace", 1)
    few = emulator.over(runner(policy=budget(calls=1)))
    result = await Agent(ScriptedClient([[call("count", word="a")] * 2, "Done."]), few).run("Go.")
    assert sorted(record.status for record in result.records) == ["completed", "failed"]


async def test_a_model_makes_up_what_has_no_answer_and_is_told_no_secret() -> None:
    model = ScriptedClient(['```json\n{"n": 3}\n```', "no JSON"])

    async def approver(_request: Any) -> Approve:
        return Approve("grace")

    emulated = ToolEmulator(model=model).over(runner(approver=approver))
    made = await emulated.exec(asked("wipe", '{"disk": "a", "key": "hidden canary"}'))
    assert isinstance(made, Completed)
    assert made.value == {"n": 3}
    [request] = model.requests
    assert request.output is not None
    assert "Wipe a disk." in request.messages[0].content
    assert request.messages[1].content == '{"disk":"a","key":"***"}'
    no = await emulated.exec(ToolCall("call_2", "count", '{"word": "tea"}'))
    assert no.record.error is not None
    assert no.record.error.message == "The model that emulates this tool did not answer with JSON."


async def test_without_an_answer_or_a_model_a_call_fails_and_never_runs() -> None:
    outcome = await ToolEmulator().over(runner()).exec(asked("count"))
    assert isinstance(outcome, Failed)
    assert outcome.error.message == "The emulator has no answer for this tool."


async def test_tools_that_come_later_and_sinks_that_come_later_are_held_to_it() -> None:
    log = AuditLog("sqlite://")
    agent = ToolEmulator({"count": 7}).over(Agent(ScriptedClient([]), runner()))
    later = agent.replace(
        tools=[blocks, count], model=ScriptedClient([call("blocks", word="a"), "Well."])
    )
    result = await later.run("Go.")
    assert result.records[0].error is not None
    assert result.records[0].error.message == "The emulator has no answer for this tool."
    for made in (later.runner.with_sinks(log), later.runner.with_tools(wipe).or_sinks([log])):
        assert made.ledger is None
        assert (await made.exec(asked("count"))).record.emulated
    await log.aclose()


async def test_a_log_holds_back_no_real_call_because_of_an_emulated_one() -> None:
    log = AuditLog("sqlite://")

    @tool(visible=ALL)
    async def real(word: str) -> str:
        """Do it."""
        return f"really {word}"

    agent = Agent(
        ScriptedClient([call("real", word="so"), "Done."]), ToolRunner([real], sinks=[log])
    )
    state = agent.prepare("Go.", run_id="run_1")
    trial = ToolEmulator({"real": "as if"}).over(agent)
    first = await trial.resume(state)
    second = await agent.replace(model=ScriptedClient([call("real", word="so"), "Done."])).resume(
        state
    )
    assert [r.records[0].result for r in (first, second)] == ["as if", "really so"]
    entries = await log.entries(AuditFilter(status="completed"))
    assert [entry.record.emulated for entry in entries] == [True, False]
    why = [CallStory([entry]).why() for entry in entries]
    assert why[0].startswith("It did not run (an emulator gave the result)")
    assert why[1].startswith("It ran because")
    await log.aclose()


async def test_an_emulated_call_is_no_effect_of_a_run_that_is_forked() -> None:
    agent = Agent(ScriptedClient([call("count", word="a"), "Done."]), runner())
    done = await ToolEmulator({"count": 7}).over(agent).run("Go.")
    start = agent.fork(done.state, turn=0)
    assert start.fork is not None
    assert start.fork.effects == ()
    assert agent.fork(done.state, turn=1).tally.calls == 1


async def test_the_search_of_an_agent_that_picks_is_the_librarys_own() -> None:
    model = ScriptedClient([call("search_tools", query="wipe a disk"), "Found."])
    pick = PickOptions(max_candidates=1, scorer="keyword")
    agent = ToolEmulator().over(Agent(model, runner(), pick=pick, search_tools=True))
    [record] = (await agent.run("Count letters.")).records
    assert (record.status, record.emulated) == ("completed", False)


async def test_a_tool_of_which_only_the_definition_is_known() -> None:
    known = ToolDefinition(name="far", description="Far.", input_schema_json='{"type":"object"}')
    outcome = (
        await ToolEmulator({"far": [1]}).over(ToolRunner(Catalog([known]))).exec(asked("far", "{}"))
    )
    assert isinstance(outcome, Completed)
    assert outcome.value == [1]


def test_an_answer_of_a_tool_that_there_is_not() -> None:
    with pytest.raises(CatalogError, match="coutn"):
        ToolEmulator({"coutn": 7}).over(runner())
    with pytest.raises(TypeError, match="an Agent or a ToolRunner"):
        ToolEmulator().over(Catalog([count]))  # type: ignore[type-var]


# Whoever speaks after an agent that is emulated.


TOOL_OF = ("count", "blocks", "streams", "class_tool")


def to(name: str) -> Any:
    return call(f"hand_over_to_{name}", reason="It is theirs.")


def speaker(name: str, *turns: Any, **options: Any) -> Agent:
    return Agent(
        ScriptedClient(turns),
        options.pop("runner", None) or runner(),
        name=name,
        limits=Limits(repeated_calls=None),
        **options,
    )


async def test_who_is_handed_over_to_is_emulated_too_in_runs_sessions_and_other_processes() -> None:
    emulator = ToolEmulator({"count": 7, "wipe": {"n": 1}})

    def team(front: list[Any], back: list[Any]) -> Agent:
        second = speaker("billing", *back, runner=runner(approver=answer_later))
        return emulator.over(speaker("front", *front, runner=ToolRunner([]), handovers=[second]))

    done = await team([to("billing")], [call("count", word="tea"), "Done."]).run("Go.")
    assert [(r.name, r.emulated) for r in done.records] == [
        ("hand_over_to_billing", False),  # the library's own, without effects: it happens
        ("count", True),
    ]
    session = team([to("billing")], ["Hello.", call("count", word="tea"), "Done."]).session()
    await session.send("Go.")
    assert session.speaker == "billing"
    assert [r.emulated for r in (await session.send("Go on.")).records] == [True]
    waits = await team([to("billing")], [call("wipe", disk="a", key="k"), "Done."]).run("Go.")
    [question] = waits.pending
    over = await team([], ["Done."]).resume(
        RunState.from_json(waits.state.to_json()), {question.id: Approve("grace")}
    )
    assert [(r.name, r.emulated) for r in over.records][-1] == ("wipe", True)


async def test_answers_are_for_the_tools_of_all_who_may_speak() -> None:
    team = speaker("front", runner=ToolRunner([]), handovers=[speaker("billing")])
    ToolEmulator({"count": 7}).over(team)
    with pytest.raises(CatalogError, match="nothing_such"):
        ToolEmulator({"nothing_such": 7}).over(team)


async def test_an_agent_of_the_test_within_a_real_team_hands_on_to_nobody_real() -> None:
    second = ToolEmulator({"count": 7}).over(speaker("billing", to("front"), handovers=["front"]))
    front = speaker("front", to("billing"), call("count", word="a"), "Done.", handovers=[second])
    done = await front.run("Go.")
    assert [r.emulated for r in done.records if r.name == "count"] == [True]


async def test_no_way_brings_a_real_tool_into_an_emulated_run() -> None:
    """Teams and ways to begin, go on and change them, drawn at random: `REAL` stays empty."""
    for seed in range(sample(60, part=4)):
        draw = random.Random(seed)  # noqa: S311
        named = draw.sample(["ada", "bob", "eve", "kim"], draw.randint(1, 4))
        turns: dict[str, list[Any]] = {name: [] for name in named}
        said = [named[0]]
        for _ in range(draw.randint(0, 5) if len(named) > 1 else 0):
            turns[said[-1]].append(_some_call(draw))
            heir = draw.choice([name for name in named if name != said[-1]])
            turns[said[-1]].append(to(heir))
            said.append(heir)
        turns[said[-1]] += [_some_call(draw), call("wipe", disk="a", key="k"), "Done."]
        agent = _team(draw, named, turns)
        if draw.random() < 0.5:
            agent = agent.replace(tools=runner(approver=answer_later))
        if draw.random() < 0.5:
            agent = agent.replace(tools=agent.runner.with_tools(_inner("clerk")))
        result = await (
            agent.run("Go.", speaker=said[0])
            if draw.random() < 0.5
            else agent.session().send("Go.")
        )
        while result.status == "waiting":
            result = await agent.resume(
                RunState.from_json(result.state.to_json()),
                {each.id: Approve("grace") for each in result.pending},
            )
        assert (result.status, result.limit) == ("completed", None), seed
        others = [r for r in result.records if not r.name.startswith("hand_over_to_")]
        assert others, seed
        assert all(r.emulated or not has_begun(r) for r in others), seed
        assert REAL == [], seed


def _some_call(draw: random.Random) -> Any:
    return call(draw.choice(TOOL_OF), word="tea")


def _inner(name: str) -> Any:
    inner = speaker("inner", call("count", word="a"), "Done.")
    return inner.as_tool(name, "Count letters.", visible=ALL)


def _team(draw: random.Random, named: list[str], turns: dict[str, list[Any]]) -> Agent:
    """An emulated team: the first leads to all others, who lead to each other by name."""
    members = [
        speaker(
            name,
            *turns[name],
            runner=runner(approver=answer_later, sinks=draw.choice([(), (MemorySink(),)])),
            handovers=[other for other in named if other != name],
        )
        for name in named[1:]
    ]
    first = speaker(
        named[0],
        *turns[named[0]],
        runner=runner(approver=answer_later),
        handovers=members,
        **({"pick": PickOptions(max_candidates=6)} if draw.random() < 0.3 else {}),
    )
    return ToolEmulator({**dict.fromkeys(ALL_KINDS, 3), "wipe": {"n": 1}}).over(first)


# What was made up does not become real.


async def test_a_run_that_was_emulated_goes_on_with_an_emulated_agent_alone() -> None:
    def clerk(*turns: Any) -> Agent:
        return speaker("clerk", *turns, runner=runner(approver=answer_later))

    emulator = ToolEmulator({"count": 7, "wipe": {"n": 1}})
    wipe_it = call("wipe", disk="a", key="k")
    waits = await emulator.over(clerk(call("count", word="a"), wipe_it)).run("Go.")
    yes = {each.id: Approve("grace") for each in waits.pending}
    state = RunState.from_json(waits.state.to_json())
    assert (state.emulated, len(yes)) == (True, 1)
    with pytest.raises(SourceError, match="the run was emulated"):
        await clerk("Done.").resume(state, yes)
    session = clerk("Done.").session(waits.messages)
    with pytest.raises(SourceError, match="the run was emulated"):
        await session.resume(state, yes)
    done = await emulator.over(clerk("Done.")).resume(state, yes)
    assert [record.emulated for record in done.records] == [True, True]
    kept = clerk("Done.").fork(done.state, turn=1)
    with pytest.raises(SourceError, match="the run was emulated"):
        await clerk("Done.").resume(kept)
    twice = emulator.over(clerk("Done."))
    later = await twice.resume(kept)
    with pytest.raises(SourceError, match="the run was emulated"):
        await clerk("Done.").resume(twice.fork(later.state, turn=0))
    again = clerk("Done.").fork(done.state, turn=0)  # nothing that was made up is left
    assert (await clerk("Done.").resume(again)).text == "Done."


async def test_a_team_goes_on_as_whoever_has_spoken_was_emulated() -> None:
    def team(front: list[Any], back: list[Any], over: ToolEmulator | None) -> Agent:
        second = speaker("billing", *back, handovers=["front"])
        given = second if over is None else over.over(second)
        return speaker("front", *front, runner=runner(approver=answer_later), handovers=[given])

    emulator = ToolEmulator({"wipe": {"n": 1}})
    asks = [to("billing"), call("wipe", disk="a", key="k"), "Done."]
    waits = await team(asks, [to("front")], emulator).run("Go.")
    yes = {each.id: Approve("grace") for each in waits.pending}
    with pytest.raises(SourceError, match="the run was emulated"):
        await team(["Done."], [], None).resume(waits.state, yes)
    done = await team(["Done."], [], emulator).resume(waits.state, yes)
    assert [record.emulated for record in done.records] == [False, False, True]


async def test_an_answer_to_what_an_emulated_call_asks_gives_no_rule(tmp_path: Path) -> None:
    store = ApprovalStore(f"sqlite:///{tmp_path}/a.db", state_key=b"k" * 32)
    emulated = ToolEmulator({"wipe": {"n": 1}}).over(runner(approver=store))
    await runner(approver=store).exec(ToolCall("call_2", "wipe", '{"disk": "a", "key": "k"}'))
    [real] = await store.pending()
    assert real.always
    for each in (emulated, emulated.with_approver(store), emulated.completed_by(runner())):
        await each.exec(asked("wipe", '{"disk": "a", "key": "k"}'))
    question = next(each for each in await store.pending() if each.id != real.id)
    assert not question.always
    with pytest.raises(ApprovalError):
        await store.answer(question.id, Approve("grace", always=Always()))
    await store.aclose()


async def test_what_was_left_out_of_a_made_up_result_can_be_read() -> None:
    @tool(visible=ALL)
    async def big() -> str:
        """Give a long text."""
        REAL.append("big")
        return ""

    def reads_on(request: ChatRequest) -> Any:
        found = re.search(r"read_result\(id='([^']+)'\)", request.messages[-1].content)
        assert found is not None
        return call("read_result", id=found[1], start=30_000, end=30_003)

    told = "".join(f"{at:05}." for at in range(10_000))
    agent = Agent(
        ScriptedClient([call("big"), reads_on, "Done."]),
        [big],
        context=ContextOptions(tokens=4000),
    )
    done = await ToolEmulator({"big": told}).over(agent).run("Go.")
    assert [(r.name, r.status, r.emulated) for r in done.records] == [
        ("big", "completed", True),
        ("read_result", "completed", False),
    ]
    assert done.messages[-2].content.count(told[30_000:30_003]) == 1
