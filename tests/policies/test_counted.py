"""What is counted is what ran: what was counted for a call whose tool never began is given back, and
what began stays counted, though it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from policies.policy_helpers import call_of, context_of
from rows import each_row
from samples import sampled
from waiting import until

from toolcrib import (
    ALL,
    Agent,
    Allow,
    Approve,
    Completed,
    Deny,
    ErrorCode,
    Failed,
    Refuse,
    ToolCall,
    ToolRunner,
    Waiting,
    tool,
)
from toolcrib.approvals import answer_later
from toolcrib.audit import AuditLog
from toolcrib.errors import ToolcribError
from toolcrib.policies import budget, rate_limit
from toolcrib.runner import CallScope
from toolcrib.spending import SpendStore
from toolcrib.testing import MemorySink, ScriptedClient, call
from toolcrib.values.call import Hydrated
from toolcrib.values.context import PolicyContext, RunTally
from toolcrib.values.decision import Answer, Decision
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.message import ChatRequest, Usage
from toolcrib.values.record import (
    Expense,
    Outcome,
    SpentWithin,
    ToolInvocationRecord,
    state_of,
)

RAN: list[int] = []
LIMIT = 3


class Free:
    """An account from which anything may be spent, and that counts nothing."""

    def take(self, tool: str, spent: Expense, calls: Sequence[ToolDefinition]) -> None: ...

    def give_back(self, spent: Expense) -> None: ...

    def count_again(self, call_id: str, spent: SpentWithin) -> None: ...

    def use_within(self, call_id: str, usage: Usage) -> None: ...


FREE = Free()
LIMITS: dict[str, Callable[[], Any]] = {
    "calls": lambda: budget(calls=LIMIT),
    "cost": lambda: budget(cost=LIMIT * 0.1),
    "calls of a tool": lambda: budget(calls=LIMIT, per="tool"),
    "cost of a tool": lambda: budget(cost=LIMIT * 0.1, per="tool", only="pay"),
    "calls of a caller": lambda: budget(calls=LIMIT, per="caller"),
    "cost of a caller": lambda: budget(cost=LIMIT * 0.1, per="caller", only="pay"),
    "calls of a caller in a store": lambda: budget(
        calls=LIMIT, per="caller", store=SpendStore("sqlite://")
    ),
    "cost of a caller in a store": lambda: budget(
        cost=LIMIT * 0.1, per="caller", only="pay", store=SpendStore("sqlite://"), window=60
    ),
    "rate": lambda: rate_limit(f"{LIMIT}/minute"),
    "rate of a tool": lambda: rate_limit(f"{LIMIT}/minute", per="tool", only="pay"),
}


@tool(visible=ALL, cost=0.1)
async def pay(n: int) -> int:
    """Pay."""
    RAN.append(n)
    return n


@tool(visible=ALL, exclusive=True)
async def alone() -> int:
    """Run alone, and wait."""
    RAN.append(0)
    await asyncio.sleep(60)
    return 1


class Away(MemorySink):
    """It is to be told before a tool runs, and cannot be."""

    write_ahead = True
    away = False

    def write(self, record: ToolInvocationRecord) -> None:
        if self.away and record.status == "started":
            raise OSError("the disk is full")
        super().write(record)


class Last:
    """A policy that counts after the others, and refuses while it is told to."""

    refuses = False

    def __call__(self, _call: Hydrated, _context: PolicyContext) -> Allow:
        return Allow()

    def count(self, _call: Hydrated, _context: PolicyContext) -> Deny | None:
        return Deny("no more") if self.refuses else None

    def settle(self, record: ToolInvocationRecord, context: PolicyContext) -> None: ...


class Crib:
    """A runner with a limit, and calls in one run."""

    def __init__(self, log: AuditLog, limit: Any) -> None:
        self.log, self.sink, self.last = log, Away(), Last()
        self.runner = ToolRunner([pay, alone], sinks=[log, self.sink], policy=[limit, self.last])
        self.scope = CallScope(RunTally("run_1"))

    async def pay(self, id_: str, n: int = 1) -> Any:
        return await self.runner.exec(ToolCall(id_, "pay", f'{{"n": {n}}}'), scope=self.scope)

    async def elsewhere(self, id_: str) -> None:
        """Make a call in another process, of the same run."""
        scope = CallScope(RunTally("run_1"))
        await ToolRunner([pay], sinks=[self.log]).exec(
            ToolCall(id_, "pay", '{"n": 1}'), scope=scope
        )


async def replayed(crib: Crib) -> None:
    await crib.pay("ran")
    for _ in range(LIMIT + 1):
        assert (await crib.pay("ran")).replayed


async def duplicate(crib: Crib) -> None:
    await crib.pay("ran")
    for _ in range(LIMIT + 1):
        assert (await crib.pay("ran", 2)).error.code is ErrorCode.DUPLICATE_CALL


async def duplicate_in_the_log(crib: Crib) -> None:
    await crib.elsewhere("theirs")
    for _ in range(LIMIT + 1):
        assert (await crib.pay("theirs", 2)).error.code is ErrorCode.DUPLICATE_CALL


async def not_written(crib: Crib) -> None:
    crib.sink.away = True
    for number in range(LIMIT + 1):
        with pytest.raises(OSError, match="full"):
            await crib.pay(f"away {number}")
    crib.sink.away = False


async def refused_by_another(crib: Crib) -> None:
    crib.last.refuses = True
    for number in range(LIMIT + 1):
        assert (await crib.pay(f"refused {number}")).error.code is ErrorCode.DENIED
    crib.last.refuses = False


async def cancelled_while_it_waits_for_a_slot(crib: Crib) -> None:
    running = asyncio.ensure_future(crib.runner.exec(ToolCall("alone", "alone", "{}")))
    await until(lambda: RAN == [0])
    waiting = [asyncio.ensure_future(crib.pay(f"waits {number}")) for number in range(LIMIT)]
    await asyncio.sleep(0.01)
    for task in (*waiting, running):
        task.cancel()
    await asyncio.wait([*waiting, running])


NOT_BEGUN: list[tuple[Callable[[Crib], Awaitable[None]], int]] = [
    (replayed, 1),
    (duplicate, 1),
    (duplicate_in_the_log, 0),
    (not_written, 0),
    (refused_by_another, 0),
    (cancelled_while_it_waits_for_a_slot, 0),
]


@each_row("limit", sampled(LIMITS, part=3))
@each_row(("how", "ran"), NOT_BEGUN, ids=lambda given: getattr(given, "__name__", ""))
async def test_what_never_began_costs_nothing(
    how: Callable[[Crib], Awaitable[None]], ran: int, limit: str
) -> None:
    RAN.clear()
    async with AuditLog("sqlite://") as log:
        crib = Crib(log, LIMITS[limit]())
        await how(crib)
        mine = RAN.count(1) - (how is duplicate_in_the_log)
        counts_alone = limit == "rate" or limit.startswith("calls of a caller")
        other = counts_alone and how is cancelled_while_it_waits_for_a_slot
        assert mine == ran
        left = LIMIT - ran - other  # the call that ran alone is of the same caller
        outcomes = [await crib.pay(f"new {number}") for number in range(LIMIT + 1)]
        assert [isinstance(o, Completed) for o in outcomes] == [
            number < left for number in range(LIMIT + 1)
        ]
        tally, counted = crib.scope.tally, LIMIT - other
        assert (tally.calls, tally.per_tool) == (counted, {"pay": counted})
        assert tally.cost == pytest.approx(0.1 * counted)
        assert tally.cost_per_tool == {"pay": pytest.approx(0.1 * counted)}


@pytest.mark.parametrize("limit", LIMITS)
async def test_what_another_process_ran_is_its_runs_and_nobody_elses(limit: str) -> None:
    """A run that goes on elsewhere has spent what it spent, once; of callers and rates each process
    knows its own."""
    async with AuditLog("sqlite://") as log:
        crib = Crib(log, LIMITS[limit]())
        await crib.elsewhere("theirs")
        for _ in range(LIMIT + 1):
            assert (await crib.pay("theirs")).replayed
        assert (crib.scope.tally.calls, crib.scope.tally.per_tool) == (1, {"pay": 1})
        left = LIMIT if "caller" in limit or "rate" in limit else LIMIT - 1
        outcomes = [await crib.pay(f"new {number}") for number in range(LIMIT + 1)]
        assert [isinstance(o, Completed) for o in outcomes] == [
            number < left for number in range(LIMIT + 1)
        ]


class Late:
    """A policy that denies what goes on, while it is told to."""

    denies = False

    def __call__(self, _call: Hydrated, _context: PolicyContext) -> Decision:
        return Deny("late") if self.denies else Allow()


@pytest.mark.parametrize("limit", sampled(LIMITS, part=3))
@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("ends", ["goes on", "refused", "denied", "waits once more", "elsewhere"])
async def test_what_waits_within_its_tool_keeps_its_place(
    ends: str, limit: str, knows: bool
) -> None:
    """No more begin than the limit lets; each that waits goes on, and is neither counted again nor
    refused by the place that it has: also in a tally that `knows` nothing of it, a later request's.
    (What is spent within is for another account: `tests/agent/test_own_runs.py`.)"""

    @tool(visible=ALL, safe=False)
    async def send(n: int) -> str:
        """Send."""
        RAN.append(n)
        return "sent"

    def clerk() -> Any:
        def turn(request: ChatRequest) -> Any:
            said = sum(message.role == "assistant" for message in request.messages)
            more = 1 + (ends == "waits once more")
            return call("send", n=said) if said < more else "done"

        agent = Agent(ScriptedClient([turn] * 99), ToolRunner([send], approver=answer_later))
        return agent.as_tool("pay", "Pays.", visible=ALL, cost=0.1)

    RAN.clear()
    late, policy = Late(), LIMITS[limit]()
    runner = ToolRunner([clerk()], policy=[late, policy])
    tally = RunTally("run_1", "nonce")
    made = ToolCall("", "pay", '{"prompt": "go"}')
    calls = [msgspec.structs.replace(made, id=f"call_{n}") for n in range(LIMIT + 1)]
    outcomes = [await runner.exec(each, scope=CallScope(tally, account=FREE)) for each in calls]
    waiting = [outcome for outcome in outcomes if isinstance(outcome, Waiting)]
    assert [state_of(outcome.record) for outcome in outcomes] == [
        *["waiting"] * LIMIT,
        "failed (rate_limited)" if "rate" in limit else "failed (budget_exceeded)",
    ]
    late.denies = ends == "denied"
    if ends == "elsewhere":  # a process that knows the run, and none of what callers did
        runner = ToolRunner([clerk()], policy=LIMITS[limit]())
        tally = msgspec.json.decode(msgspec.json.encode(tally), type=RunTally)
    if not knows:
        tally = RunTally("run_1", "nonce")
    for at, asked in enumerate(calls[:LIMIT], 1):
        outcome: Outcome = next(each for each in waiting if each.record.id == asked.id)
        while isinstance(outcome, Waiting):
            assert outcome.suspended is not None
            answer = Refuse(by="grace") if ends == "refused" else Approve("grace")
            given: dict[str, Answer] = {outcome.request.id: answer}
            suspended = {asked.id: outcome.suspended}
            scope = CallScope(tally, given, suspended=suspended, account=FREE)
            outcome = await runner.exec(asked, scope=scope)
        unknown = "failed (outcome_unknown)"
        assert state_of(outcome.record) == (unknown if ends == "denied" else "completed")
        made_by_now = LIMIT if knows else at
        assert (tally.calls, tally.per_tool) == (made_by_now, {"pay": made_by_now})
    assert tally.cost == pytest.approx(0.1 * LIMIT)
    late.denies = False
    known = ends != "elsewhere" or not ("caller" in limit or "rate" in limit)
    new = msgspec.structs.replace(made, id="new")
    again = await runner.exec(new, scope=CallScope(tally, account=FREE))
    assert isinstance(again, Failed) == known


async def test_a_policy_of_anybodys_is_told_of_what_never_began() -> None:
    told: list[object] = []

    class Counts(Last):
        def count(self, call: Hydrated, _context: PolicyContext) -> None:
            told.append(call.call.id)

        def give_back(self, call: Hydrated, _context: PolicyContext) -> None:
            told.append(f"back: {call.call.id}")

        def settle(self, record: ToolInvocationRecord, _context: PolicyContext) -> None:
            told.append(record.seconds is None)

    class Fails(Counts):
        def give_back(self, call: Hydrated, _context: PolicyContext) -> None:
            raise ValueError

    sink = Away()
    sink.away = True
    runner = ToolRunner([pay], sinks=[sink], policy=[Counts(), Fails()])
    with pytest.raises(OSError, match="full"):
        await runner.exec(ToolCall("c", "pay", '{"n": 1}'))
    assert told == ["c", "c", "back: c", True, True]
    sink.away = False
    told.clear()
    await runner.exec(ToolCall("c", "pay", '{"n": 1}'))
    assert told == ["c", "c", False, False]


def test_giving_back_is_not_async() -> None:
    class Later(Last):
        async def give_back(self, call: Hydrated, context: PolicyContext) -> None: ...

    with pytest.raises(ToolcribError, match="`give_back` if it has one, must not be async"):
        ToolRunner([pay], policy=Later())


def test_of_two_calls_that_look_alike_the_one_that_holds_longer_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One call under two runners: what is given back never lets one too many run in a minute."""
    now = [0.0]
    monkeypatch.setattr("toolcrib.policies.time.monotonic", lambda: now[0])
    policy: Any = rate_limit("2/minute")
    call, context = call_of("subject"), context_of(RunTally("r"))

    def counted(at: float) -> bool:
        now[0] = at
        return policy.count(call, context) is None

    assert [counted(0.0), counted(30.0), counted(40.0)] == [True, True, False]
    policy.give_back(call, context)
    assert [counted(50.0), counted(61.0), counted(91.0)] == [True, False, True]
    for _ in range(5):  # more often than it was counted: of what is not there nothing goes
        policy.give_back(call, context)
    assert [counted(92.0), counted(93.0), counted(94.0)] == [True, True, False]


@pytest.mark.parametrize("logged", [False, True])
@each_row("limit", LIMITS)
async def test_a_call_that_comes_again_counts_once_in_whichever_scope(
    limit: str, *, logged: bool, tmp_path: Path
) -> None:
    """A run is its tally, and not the scope that a loop makes for one `exec`."""
    RAN.clear()
    tally = RunTally("run_1")
    async with AuditLog(f"sqlite:///{tmp_path}/log.db") as log:
        runner = ToolRunner([pay], policy=[LIMITS[limit]()], sinks=[log] if logged else [])
        for n in range(LIMIT):
            one = ToolCall(f"call_{n}", "pay", f'{{"n": {n}}}')
            for _ in range(4):
                assert isinstance(await runner.exec(one, scope=CallScope(tally)), Completed)
            assert tally.calls == n + 1
        more = ToolCall("one more", "pay", '{"n": 9}')
        assert isinstance(await runner.exec(more, scope=CallScope(tally)), Failed)
    assert [*range(LIMIT)] == RAN


@each_row("limit", [name for name in LIMITS if "caller" not in name and "rate" not in name])
async def test_what_begins_counts_though_another_runner_had_a_call_of_that_id(limit: str) -> None:
    """As where a loop makes a runner for each request, and each reply counts its calls from 0."""
    RAN.clear()
    tally, policy, outcomes = RunTally("run_1"), LIMITS[limit](), []
    for n in range(LIMIT + 2):
        one = ToolCall("call_0", "pay", f'{{"n": {n}}}')
        runner = ToolRunner([pay], policy=[policy])
        outcomes.append(await runner.exec(one, scope=CallScope(tally)))
    assert [*range(LIMIT)] == RAN
    assert tally.calls == LIMIT
    assert {type(outcome) for outcome in outcomes[LIMIT:]} == {Failed}
