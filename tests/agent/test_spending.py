"""What agents that are tools spend: whatever a reply has beside them, no limit around is passed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rows import each_row
from samples import sample, sampled

from toolcrib import (
    ALL,
    Agent,
    Allow,
    Approve,
    Caller,
    Deny,
    Limits,
    PolicyContext,
    Refuse,
    RunResult,
    RunState,
    ToolDefinition,
    ToolRunner,
    tool,
)
from toolcrib.approvals import answer_later
from toolcrib.audit import AuditLog
from toolcrib.policies import budget, deny_by_default, require_roles
from toolcrib.runner import Policy
from toolcrib.testing import MemorySink, ScriptedClient, call
from toolcrib.values.call import Hydrated
from toolcrib.values.decision import Answer, Decision
from toolcrib.values.message import ChatRequest, Reply
from toolcrib.values.record import Expense, Sink, ToolInvocationRecord, has_begun, state_of
from toolcrib.values.run import RunRecord

COST = 0.1


@tool(visible=ALL, cost=COST)
async def act(steps: int) -> str:
    """Act, after so many steps of the loop."""
    for _ in range(steps):
        await asyncio.sleep(0)
    return "acted"


@tool(visible=ALL, cost=COST, requires_approval=True)
async def asks(steps: int) -> str:
    """Act, if somebody says so."""
    return "acted"


@tool(visible=ALL, cost=COST)
async def denied(steps: int) -> str:
    """Never run."""
    raise AssertionError


ACT = call("act", steps=0)
ASK = call("clerk", prompt="go")


@dataclass
class Node:
    """An agent: its limits, its replies of calls, and the agents that it may call."""

    limits: Limits
    replies: list[list[tuple[str, int]]]
    below: list[Node]


def nodes(*below: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    few = st.none() | st.integers(0, 8)
    limits = st.builds(
        lambda calls, tens: Limits(calls=calls, tool_cost=tens if tens is None else tens * COST),
        few,
        few,
    )
    tools = st.sampled_from(["act", "asks", "denied", *["agent"] * bool(below)])
    replies = st.lists(st.tuples(tools, st.integers(0, 2)), min_size=1, max_size=4)
    agents = st.lists(st.one_of(below), min_size=1, max_size=2) if below else st.just([])
    return st.builds(Node, limits, st.lists(replies, max_size=2), agents)


LOW = nodes()
TREES = nodes(nodes(LOW), LOW)


def built(node: Node, path: str, made: dict[str, Node], *, gate: Policy, **options: Any) -> Agent:
    made[path] = node
    inner = [
        built(each, f"{path}_{at}", made, gate=gate).as_tool(f"agent{at}", "Does it.", cost=COST)
        for at, each in enumerate(node.below)
    ]
    turns = [
        [
            call(f"agent{at % len(inner)}", prompt="go")
            if kind == "agent"
            else call(kind, steps=at)
            for kind, at in reply
        ]
        for reply in node.replies
    ]
    allowed = deny_by_default(allow=["act", "asks", *(each.definition.name for each in inner)])
    runner = ToolRunner([act, asks, denied, *inner], policy=[allowed, gate], **options)
    model = ScriptedClient([*turns * 2, *["done"] * 99])
    return Agent(model, runner, limits=node.limits, name=path)


WAITS = Node(Limits(), [[("agent", 0)]], [Node(Limits(), [[("asks", 0)]], [])])


@settings(max_examples=sample(300), deadline=None)
@example(tree=WAITS, late=["agent0"])
@given(tree=TREES, late=st.lists(st.sampled_from(["", "agent0", "agent1"]), max_size=3))
async def test_the_calls_that_ran_exceed_no_limit_around_them(tree: Node, late: list[str]) -> None:
    """Agents within agents and beside one another, whose replies are of calls in any order: some are
    denied, some wait, and are approved when the whole is saved and goes on. Then some agents may not
    go on after all, and have begun all the same."""
    sink, made, closed = MemorySink(), dict[str, Node](), [""]

    def gate(hydrated: Hydrated, _context: PolicyContext) -> Decision:
        return Deny("late") if hydrated.definition.name == closed[0] else Allow()

    outer = built(tree, "top", made, gate=gate, approver=answer_later, sinks=[sink])
    result = await outer.run("go")
    while result.status == "waiting":
        closed[0] = late.pop() if late else ""
        yes: dict[str, Answer] = {request.id: Approve("grace") for request in result.pending}
        result = await outer.resume(RunState.from_json(result.state.to_json()), yes)
    runs = {run.run_id: run for run in sink.runs}
    ran = {(r.run_id, r.id): r.run_id for r in sink.records if has_begun(r)}
    within = Counter(run_id for begun in ran.values() for run_id in around(begun, runs))
    for run_id, run in runs.items():
        limits = made[run.agent].limits
        assert limits.calls is None or within[run_id] <= limits.calls
        assert limits.tool_cost is None or within[run_id] * COST <= limits.tool_cost + 1e-9
    tally = result.state.tally
    assert tally.calls == len(ran)
    assert tally.cost == pytest.approx(len(ran) * COST)
    await outer.resume(RunState.from_json(result.state.to_json()))  # it is held against itself


def around(run_id: str, runs: Mapping[str, RunRecord]) -> list[str]:
    """The run, and those within whose calls it is."""
    return [run_id, *around(runs[run_id].parent_run_id, runs)] if run_id else []


@each_row(
    ("policy", "made"),
    [
        (budget(calls=1, per="tool"), ["clerk", "act"]),
        (budget(cost=COST, per="tool"), ["clerk", "act"]),
        (budget(calls=1, only=["clerk"]), ["clerk", "act", "act"]),
        (budget(cost=COST, only="clerk"), ["clerk", "act", "act"]),
        (budget(calls=1, per="caller", only=["clerk"]), ["clerk", "act", "act"]),
        (budget(calls=1, per="caller"), ["clerk"]),
        (budget(calls=2), ["clerk", "act"]),
        (budget(calls=1, only=["act"]), ["clerk", "act"]),
        (budget(calls=2, only=["act", "clerk"]), ["clerk", "act"]),
        (budget(cost=0.0, only=["act"]), ["clerk"]),
        (deny_by_default(allow=["clerk"]), ["clerk", "act", "act"]),
        (require_roles("admin", only=["act"]), ["clerk", "act", "act"]),
    ],
)
async def test_a_budget_around_decides_on_a_call_within_as_itself(
    policy: Policy, made: list[str]
) -> None:
    """And the call of the agent was counted once. What may run at all, its own runner says."""
    sink = MemorySink()
    inner = Agent(ScriptedClient([ACT, ACT, "fin"]), [act])
    clerk = inner.as_tool("clerk", "Does it.", cost=COST)
    runner = ToolRunner([clerk, act], policy=policy, sinks=[sink])
    await Agent(ScriptedClient([ASK, "bye"]), runner).run("go", caller=Caller("ada"))
    assert sorted(r.name for r in sink.records if has_begun(r)) == sorted(made)


async def test_calls_within_are_counted_for_those_of_the_run() -> None:
    sink = MemorySink()
    clerk = Agent(ScriptedClient([ACT, "fin"]), [act]).as_tool("clerk", "Does it.")
    runner = ToolRunner([clerk, act], policy=budget(calls=1, per="tool"), sinks=[sink])
    result = await Agent(ScriptedClient([ASK, ACT, "bye"]), runner).run("go")
    assert [state_of(record) for record in result.records] == [
        *("completed", "failed (budget_exceeded)")
    ]
    inner = result.state.tally.inner
    assert (inner.per_tool, inner.cost_per_tool) == ({"act": 1}, {"act": COST})


@each_row("fails", [RuntimeError("no"), 1])
async def test_a_policy_around_that_cannot_say_what_is_left_lets_nothing_be_spent(
    fails: object,
) -> None:
    class Broken:
        def __call__(self, hydrated: Hydrated, context: PolicyContext) -> Decision:
            return Allow()

        def never_allows(self, definition: ToolDefinition, context: PolicyContext) -> Any:
            if isinstance(fails, Exception):
                raise fails
            return fails

    clerk = Agent(ScriptedClient([ACT, "fin"]), [act]).as_tool("clerk", "Does it.")
    runner = ToolRunner([clerk, act], policy=Broken())
    [record] = (await Agent(ScriptedClient([ASK, "bye"]), runner).run("go")).records
    assert record.error is not None
    assert "the limit on budget is reached" in record.error.message


def test_what_is_given_back_leaves_no_rounding() -> None:
    spent = Expense.of([act.definition] * 3)
    left = Expense.of([act.definition]).plus(Expense.of([act.definition] * 2)).plus(spent, -1)
    assert left == Expense()


class Same(ScriptedClient):
    """A model that says the same whenever it is asked the same: in each resume of a run, too."""

    def __init__(self, *turns: Any) -> None:
        super().__init__([])
        self.turns = turns

    async def chat(self, request: ChatRequest) -> Reply:
        said = sum(message.role == "assistant" for message in request.messages)
        for _ in range(2):
            await asyncio.sleep(0)
        return await ScriptedClient([self.turns[min(said, len(self.turns) - 1)]]).chat(request)

    async def stream(self, request: ChatRequest) -> AsyncIterator[Any]:
        yield await self.chat(request)


@settings(max_examples=sample(200), deadline=None)
@given(data=st.data())
async def test_what_ran_counts_once_however_often_a_state_is_resumed(data: st.DataObject) -> None:
    """A run with an agent, within agents or not, is saved when that asks, and resumed again and again:
    cancelled anywhere, and then to its end; by the same runner, or by others with a log."""
    few, flag = st.integers(0, 3), st.booleans()
    before, after, beside, deep = (data.draw(few) for _ in range(4))
    cancels = data.draw(st.lists(st.lists(st.integers(0, 150), max_size=2), min_size=9, max_size=9))
    own, logged = data.draw(flag, "asked itself"), data.draw(flag, "logged")
    sink, world = MemorySink(), list[str]()

    @tool(visible=ALL, cost=COST)
    async def act(steps: int) -> str:
        """Act, after so many steps of the loop."""
        world.append("act")
        for _ in range(steps):
            await asyncio.sleep(0)
        return "acted"

    @tool(visible=ALL, cost=COST, requires_approval=True)
    async def asks(steps: int) -> str:
        """Act, if somebody says so."""
        world.append("asks")
        return "acted"

    def made_of(log: AuditLog) -> Agent:
        turns = [[ACT] * before, [call("asks", steps=0)], [ACT] * after]
        inner = Agent(Same(*[each or [call("act", steps=1)] for each in turns], "fin"), [act, asks])
        for at in range(deep):
            marks: Any = {"safe": not own} if at == 0 else {}
            tools = [inner.as_tool("deep", "Does it.", cost=COST, **marks)]
            inner = Agent(Same(call("deep", prompt="x"), "fin"), tools)
        clerk = inner.as_tool("clerk", "Does it.", cost=COST, safe=not own)
        sinks: list[Sink] = [sink, *[log] * logged]
        runner = ToolRunner([clerk, act], approver=answer_later, sinks=sinks)
        return Agent(Same(ASK, [ACT] * beside or "-", "bye"), runner, limits=Limits(turns=99))

    async with AuditLog("sqlite://") as log:
        outer = made_of(log)
        result = await outer.run("go")
        while result.status == "waiting":
            saved = result.state.to_json()
            yes: dict[str, Answer] = {request.id: Approve("grace") for request in result.pending}
            for steps in cancels.pop():
                outer = made_of(log) if logged else outer
                stream = outer.resume_stream(RunState.from_json(saved), yes)
                for _ in range(steps):
                    await asyncio.sleep(0)
                result = await stream.cancel()
                if result.status == "waiting":
                    break  # the older state is not gone on with
            else:
                outer = made_of(log) if logged else outer
                result = await outer.resume(RunState.from_json(saved), yes)
        await outer.resume(RunState.from_json(result.state.to_json()))  # it is held against itself
    begun = {(r.run_id, r.id) for r in sink.records if r.name in ("act", "asks") and has_begun(r)}
    tally = result.state.tally
    counted = tally.own_expense.plus(tally.inner)
    made = sum(counted.per_tool.get(name, 0) for name in ("act", "asks"))
    assert len(world) <= made <= len(begun)  # one that was claimed, and cancelled then, may count
    assert logged or made == len(world)
    assert tally.calls == counted.calls
    assert tally.cost == pytest.approx(counted.calls * COST)


async def test_what_was_spent_counts_where_an_older_state_goes_on() -> None:
    """An agent within an agent has acted, and waits, where the older state still asks about it."""

    @tool(visible=ALL, cost=COST, requires_approval=True)
    async def asks(steps: int) -> str:
        """Act, if somebody says so."""
        return "acted"

    def made_of(log: AuditLog) -> Agent:
        inner = Agent(Same(ACT, call("asks", steps=0), "fin"), [act, asks])
        middle = Agent(
            Same(call("deep", prompt="x"), "fin"),
            [inner.as_tool("deep", "Does it.", cost=COST, safe=False)],
        )
        clerk = middle.as_tool("clerk", "Does it.", cost=COST)
        runner = ToolRunner([clerk], approver=answer_later, sinks=[log])
        return Agent(Same(ASK, "bye"), runner)

    def yes(result: RunResult) -> dict[str, Answer]:
        return {request.id: Approve("grace") for request in result.pending}

    async with AuditLog("sqlite://") as log:
        older = await made_of(log).run("go")
        saved = older.state.to_json()
        newer = await made_of(log).resume(RunState.from_json(saved), yes(older))
        assert (older.status, newer.status) == ("waiting", "waiting")
        result = await made_of(log).resume(RunState.from_json(saved), yes(older))
    assert result.status == "completed"
    assert newer.state.tally.inner.per_tool == {"deep": 1, "act": 1}
    assert result.state.tally.inner.per_tool == {"deep": 1, "act": 1}


class HeldLog(AuditLog):
    """A log whose so-and-so-many-th work on a call waits until it may."""

    def __init__(self, url: str, at: int, until: asyncio.Event) -> None:
        super().__init__(url)
        self.at, self.until, self.held = at, until, asyncio.Event()

    async def _hold(self) -> None:
        self.at -= 1
        if self.at == 0:
            self.held.set()
            await self.until.wait()

    async def begin(self, entry: ToolInvocationRecord) -> ToolInvocationRecord | None:
        await self._hold()
        return await super().begin(entry)

    async def find(self, call: ToolInvocationRecord | str) -> ToolInvocationRecord | None:
        await self._hold()
        return await super().find(call)

    async def write(self, record: ToolInvocationRecord) -> ToolInvocationRecord | None:
        await self._hold()
        return await super().write(record)


@pytest.mark.parametrize("at", sampled(range(1, 8), part=2))
@pytest.mark.parametrize("kind", ["plain", "untrusted", "agent", "agent that reads"])
async def test_whoever_is_told_of_a_call_has_all_that_it_brings(
    kind: str, at: int, tmp_path: Path
) -> None:
    """Two processes go on with one run over one log. One of them runs the call, and it ends while the
    other is at any point of the way to be told of it."""
    began, goes_on, over, ran = asyncio.Event(), asyncio.Event(), asyncio.Event(), list[str]()

    async def work(name: str) -> str:
        ran.append(name)
        began.set()
        await goes_on.wait()
        return "ran"

    @tool(visible=ALL, cost=COST, safe=False)
    async def plain() -> str:
        """Work, if somebody says so."""
        return await work("plain")

    @tool(visible=ALL, cost=COST, safe=False, untrusted_output=True)
    async def untrusted() -> str:
        """Work, if somebody says so."""
        return await work("untrusted")

    @tool(visible=ALL)
    async def send() -> str:
        """Send what was read."""
        ran.append("send")
        return "sent"

    def made(log: AuditLog) -> Agent:
        within = untrusted if kind == "agent that reads" else plain
        turns = [call(within.definition.name), *[[ACT, ACT]] * (kind == "agent"), "fin"]
        marks: Any = {"visible": ALL, "cost": COST}
        clerk = Agent(Same(*turns), [within, act]).as_tool("clerk", "Does it.", **marks)
        first = ASK if kind.startswith("agent") else call(kind)
        tools = [plain, untrusted, send, clerk]
        runner = ToolRunner(tools, sinks=[log], approver=answer_later)
        return Agent(Same(first, call("send"), "bye"), runner)

    url = f"sqlite:///{tmp_path}/log.db"
    async with AuditLog(url) as log, HeldLog(url, at, over) as other:
        first = await made(log).run("go")
        saved = first.state.to_json()
        yes: dict[str, Answer] = {request.id: Approve("grace") for request in first.pending}
        running = asyncio.ensure_future(made(log).resume(RunState.from_json(saved), yes))
        await began.wait()
        told = asyncio.ensure_future(made(other).resume(RunState.from_json(saved), yes))
        held = asyncio.ensure_future(other.held.wait())
        await asyncio.wait([held, told], return_when=asyncio.FIRST_COMPLETED)
        goes_on.set()
        mine = await running
        over.set()
        held.cancel()
        theirs = await told
        one, two = mine.state.tally, theirs.state.tally
        assert mine.records[0].status == "completed"
        assert two.own_expense.per_tool[mine.records[0].name] == 1
        if theirs.records[0].status == "completed":
            assert (two.calls, two.inner, two.tainted) == (one.calls, one.inner, one.tainted)
            assert two.cost == pytest.approx(one.cost)
            assert theirs.usage == mine.usage
            assert theirs.status == mine.status
            assert ("send" in ran) == (mine.status == "completed")
        assert ran.count("send") < 2
        for result in (mine, theirs):
            no: dict[str, Answer] = {each.id: Refuse(by="grace") for each in result.pending}
            await made(log).resume(RunState.from_json(result.state.to_json()), no)
        assert (await log.verify()).fault is None
