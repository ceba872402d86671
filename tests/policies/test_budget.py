"""Budgets: what each counts, whose it is, and that calls at the same time cannot share what is left."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from typing import Any

import msgspec
import pytest
from policies.policy_helpers import CANARY, call_of, context_of, over
from rows import each_row

from toolcrib import (
    ALL,
    Agent,
    Approve,
    Caller,
    Completed,
    Deny,
    ErrorCode,
    Failed,
    Message,
    Reply,
    ToolCall,
    ToolRunner,
    run_sync,
    tool,
)
from toolcrib.errors import ToolcribError
from toolcrib.policies import CountingPolicy, Policy, ask, budget
from toolcrib.runner import CallScope
from toolcrib.runner.policy import count_all, counting, settle_all
from toolcrib.spending import SpendStore
from toolcrib.testing import MemorySink, ScriptedClient, call, raw_call
from toolcrib.values.context import Payment, RunTally, Spend
from toolcrib.values.decision import Answer, ApprovalRequest
from toolcrib.values.message import Usage

ADA, EVE = Caller("ada"), Caller("eve")
USED = RunTally(
    calls=5,
    cost=1.5,
    tokens=900,
    started=0.0,
    per_tool={"subject": 2, "other": 3},
    cost_per_tool={"subject": 1.0, "other": 0.5},
    seconds_per_tool={"subject": 4.0, "other": 6.0},
)
BUDGETS: list[tuple[dict[str, Any], str | None]] = [  # of a call of `subject` that costs 0.5
    ({"calls": 6}, None),
    ({"calls": 5}, "the run's budget of 5 calls is used up"),
    ({"calls": 0}, "the run's budget of 0 calls is used up"),
    ({"tokens": 901}, None),
    ({"tokens": 900}, "the run's budget of 900 tokens is used up"),
    ({"cost": 2}, None),
    ({"cost": 1.99}, "the run's budget of 1.99 units of cost is used up"),
    ({"seconds": 1e12}, None),
    ({"seconds": 0}, "the run's budget of 0 seconds is used up"),
    ({"calls": 6, "cost": 1.6}, "the run's budget of 1.6 units of cost is used up"),
    ({"calls": 3, "per": "tool"}, None),
    ({"calls": 2, "per": "tool"}, "the tool's budget of 2 calls is used up"),
    ({"cost": 1.5, "per": "tool"}, None),
    ({"cost": 1.2, "per": "tool"}, "the tool's budget of 1.2 units of cost is used up"),
    ({"seconds": 4.5, "per": "tool"}, None),
    ({"seconds": 4, "per": "tool"}, "the tool's budget of 4 seconds is used up"),
    ({"calls": 3, "only": "subject"}, None),
    ({"calls": 2, "only": "subject"}, "the run's budget of 2 calls is used up"),
    ({"calls": 5, "only": ["subject", "other"]}, "the run's budget of 5 calls is used up"),
    ({"cost": 1.6, "only": ["subject"]}, None),
    ({"seconds": 10, "only": ["subject", "other"]}, "the run's budget of 10 seconds is used up"),
    ({"calls": 0, "only": "other"}, None),
    ({"calls": 0, "only": "other", "per": "tool"}, None),
    ({"calls": 0, "only": "other", "per": "caller"}, None),
    ({"calls": 0, "per": "caller"}, "the caller's budget of 0 calls is used up"),
    ({"tokens": 900, "per": "caller"}, None),  # what was used elsewhere
    ({"tokens": 0, "per": "caller"}, "the caller's budget of 0 tokens is used up"),
]


@each_row(("limits", "reason"), BUDGETS)
def test_what_a_run_has_spent(limits: dict[str, Any], reason: str | None) -> None:
    decision = budget(**limits)(call_of(cost=0.5), context_of(USED))
    assert decision.policy == "budget"
    if reason is None:
        assert not isinstance(decision, Deny)
    else:
        assert decision == Deny(reason, "budget", ErrorCode.BUDGET_EXCEEDED)
    assert CANARY not in repr(decision)


@each_row(
    ("limits", "message"),
    [
        ({}, "give a limit"),
        ({"per": "caller"}, "give a limit"),
        ({"calls": -1}, "calls is a whole number from 0"),
        ({"calls": True}, "calls is a whole number from 0"),
        ({"calls": 1.0}, "calls is a whole number from 0"),
        ({"calls": "9"}, "calls is a whole number from 0"),
        ({"tokens": float("nan")}, "tokens is a whole number from 0"),
        ({"cost": float("nan")}, "cost is a finite number from 0"),
        ({"cost": float("inf")}, "cost is a finite number from 0"),
        ({"cost": False}, "cost is a finite number from 0"),
        ({"seconds": -0.1}, "seconds is a finite number from 0"),
        ({"calls": 1, "per": "day"}, "per is one of run, tool, caller"),
        ({"tokens": 1, "per": "tool"}, "tokens= counts those of a run or a caller"),
        ({"tokens": 1, "only": ["subject"]}, "tokens= counts those of a run or a caller"),
        ({"calls": 1, "only": [7]}, "names are strings"),
    ],
)
def test_what_is_no_budget_is_refused_at_once(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolcribError, match=message):
        budget(**limits)


def test_enormous_numbers_are_numbers() -> None:
    for limit in ("calls", "tokens", "cost", "seconds"):
        policy = budget(**{limit: 10**308})  # type: ignore[arg-type]
        assert not isinstance(policy(call_of(), context_of(USED)), Deny)


@each_row("per", ["run", "tool", "caller"])
@each_row("limit", ["calls", "tokens", "cost", "seconds", "money", "window"])
@each_row("most", [10**400, -(10**400), 10**5000], ids=["400", "minus", "5000"])
def test_what_no_float_can_hold_is_no_limit(limit: str, per: str, most: int) -> None:
    """What is compared with it, or taken from the time of a clock, is a float."""
    limits: dict[str, Any] = {limit: most}
    if limit == "window":
        limits |= {"calls": 1, "per": "caller", "store": SpendStore("sqlite://")}
    with pytest.raises(ToolcribError, match=f"{limit} is .* number .*that a float can hold"):
        budget(**{"per": per, **limits})


@pytest.mark.parametrize("window", [10**400, math.nan, 0, -1])
async def test_a_store_counts_in_no_window_that_is_no_number_of_seconds(window: float) -> None:
    async with SpendStore("sqlite://") as store:
        for counted in (
            store.take(Spend("ada", "c", "pay", 1), {"calls": 1}, window=window),
            store.paid("ada", window=window),
            store.pay(Payment("ada", "r", 1.0), window=window),
        ):
            with pytest.raises(ToolcribError, match="window= is a number of seconds above 0"):
                await counted


def test_three_times_a_tenth_is_no_more_than_three_tenths() -> None:
    tally = RunTally()
    for _ in range(2):
        tally.count("subject", 0.1)
    assert 0.1 + 0.1 + 0.1 > 0.3
    assert not isinstance(budget(cost=0.3)(call_of(cost=0.1), context_of(tally)), Deny)
    tally.count("subject", 0.1)
    assert isinstance(budget(cost=0.3)(call_of(cost=0.1), context_of(tally)), Deny)


def test_what_a_run_has_spent_goes_with_it() -> None:
    saved = msgspec.json.decode(msgspec.json.encode(USED), type=RunTally)
    for limits, reason in BUDGETS:
        decision = budget(**limits)(call_of(cost=0.5), context_of(saved))
        assert isinstance(decision, Deny) is (reason is not None)


class Account:
    """A budget a caller, and what would become of the next call."""

    def __init__(self, **limits: Any) -> None:
        self.policy = budget(per="caller", **limits)
        self.counting: tuple[CountingPolicy, ...] = counting([self.policy])

    def denies(self, caller: Caller, tally: RunTally | None = None) -> bool:
        return isinstance(self.policy(call_of(cost=0.5), context_of(tally, caller)), Deny)

    def run(self, caller: Caller, tally: RunTally | None = None, seconds: float = 1.0) -> None:
        context = context_of(tally, caller)
        assert count_all(self.counting, call_of(cost=0.5), context) is None
        settle_all(self.counting, over("subject", seconds), context)


class TestPerCaller:
    @pytest.mark.parametrize("limits", [{"calls": 2}, {"cost": 1.0}, {"seconds": 2.0}])
    def test_each_caller_has_an_account_over_all_runs(self, limits: dict[str, Any]) -> None:
        account = Account(**limits)
        for run in "ab":
            assert not account.denies(ADA)
            account.run(ADA, RunTally(run))
        assert account.denies(ADA)
        assert not account.denies(EVE)

    def test_two_policies_have_two_accounts(self) -> None:
        account, other = Account(calls=1), Account(calls=1)
        account.run(ADA)
        assert account.denies(ADA)
        assert not other.denies(ADA)

    def test_other_tools_are_not_counted(self) -> None:
        account = Account(calls=1, seconds=3, only="other")
        account.run(ADA, seconds=5.0)
        assert not isinstance(account.policy(call_of("other"), context_of(None, ADA)), Deny)

    def test_threads_cannot_share_the_last_allowance(self) -> None:
        account, barrier = Account(calls=10), threading.Barrier(8)
        counted: list[bool] = []

        def run() -> None:
            barrier.wait()
            for _ in range(50):
                refused = count_all(account.counting, call_of(), context_of(None, ADA))
                counted.append(refused is None)

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(counted), sum(counted)) == (400, 10)


@tool(visible=ALL, cost=1)
async def spend() -> str:
    """Spend."""
    await asyncio.sleep(0)
    return "spent"


@tool(visible=ALL, cost=1)
def waste() -> str:
    """Waste, in a thread."""
    return "wasted"


def hundred(name: str) -> list[ToolCall]:
    return [ToolCall(f"{name}{n}", name, "{}") for n in range(100)]


def completed(outcomes: list[Any], name: str) -> int:
    denied = [o.error.code for o in outcomes if isinstance(o, Failed)]
    assert set(denied) <= {ErrorCode.BUDGET_EXCEEDED}
    return sum(isinstance(o, Completed) and o.record.name == name for o in outcomes)


@each_row(
    ("policy", "spends", "wastes"),
    [
        (budget(calls=10), 10, 0),
        (budget(cost=10), 10, 0),
        (budget(calls=10, per="tool"), 10, 10),
        (budget(cost=10, per="tool", only="waste"), 100, 10),
        (budget(calls=10, only="waste"), 100, 10),
        (budget(calls=10, per="caller"), 10, 0),
        (budget(cost=10, per="caller", only=["waste"]), 100, 10),
    ],
)
async def test_a_hundred_calls_at_the_same_time(policy: Policy, spends: int, wastes: int) -> None:
    runner = ToolRunner([spend, waste], policy=policy)
    outcomes = await runner.exec_all([*hundred("spend"), *hundred("waste")], caller=ADA)
    assert completed(outcomes, "spend") == spends
    assert completed(outcomes, "waste") == wastes


async def test_a_hundred_runs_of_one_caller_at_the_same_time() -> None:
    sink = MemorySink()
    runner = ToolRunner([spend], policy=budget(calls=10, per="caller"), sinks=[sink])
    scopes = [CallScope(RunTally(f"run_{n}", started=time.monotonic())) for n in range(100)]
    outcomes = await asyncio.gather(
        *(
            runner.exec(made, caller=ADA, scope=scope)
            for made, scope in zip(hundred("spend"), scopes, strict=True)
        )
    )
    assert completed(outcomes, "spend") == 10
    assert len(sink.records) == 100
    again = await runner.exec(ToolCall("x", "spend", "{}"), caller=EVE)
    assert isinstance(again, Completed)


async def test_those_that_wait_for_a_person_spend_nothing_until_they_run() -> None:
    asked = asyncio.Event()
    waiting: list[ApprovalRequest] = []

    async def all_at_once(request: ApprovalRequest) -> Answer:
        waiting.append(request)
        if len(waiting) == 3:
            asked.set()
        await asked.wait()
        return Approve("grace")

    runner = ToolRunner([spend], policy=[budget(calls=1), ask("spend")], approver=all_at_once)
    outcomes = await runner.exec_all(hundred("spend")[:3])
    assert len(waiting) == 3
    assert completed(list(outcomes), "spend") == 1


def says(tokens: int, *said: Any) -> Any:
    """Return a turn that has used so many tokens."""

    def turn(request: Any) -> Reply:
        calls = (c for c in said if not isinstance(c, str))
        made = tuple(
            ToolCall(f"{request.new_prefix()}{at}", c.name, c.arguments)
            for at, c in enumerate(calls)
        )
        message = Message.assistant("" if made else "Done.", made)
        return Reply(message, "tool_calls" if made else "stop", Usage(1, tokens - 5, 5))

    return turn


def test_the_loop_counts_the_tokens_of_its_replies() -> None:
    turns = [says(15, call("spend")), says(85, call("spend")), [call("spend")], "done"]
    model = ScriptedClient(turns)
    result = run_sync(Agent(model, ToolRunner([spend], policy=budget(tokens=100))).run("Spend"))
    assert [record.status for record in result.records] == ["completed", "failed", "failed"]
    assert result.state.tally.tokens == 100


SPENT_100: list[tuple[str, list[Any]]] = [
    ("run", [says(100, "Done.")]),
    ("run", [says(60, call("spend")), says(40, "Done.")]),
    ("run", [says(60, raw_call("spend", "{")), says(40, "Done.")]),
    ("run", [says(50, call("ask", prompt="Go.")), says(20, "Done.")]),  # an agent that uses 30
    ("plan", [says(100, call("spend"))]),
]


@pytest.mark.parametrize(("tokens", "status"), [(9, "completed"), (10, "failed")])
@each_row(("does", "script"), SPENT_100)
async def test_each_request_counts_once_for_its_caller(
    does: str, script: list[Any], tokens: int, status: str
) -> None:
    """Whatever it was for, and whichever of the agents with that budget has made it."""
    limit = budget(tokens=110, per="caller")
    within = ScriptedClient([says(20, call("spend")), says(10, "Done.")])
    inner = Agent(within, ToolRunner([spend], policy=limit)).as_tool("ask", "Ask.", visible=ALL)
    agent = Agent(ScriptedClient(script), ToolRunner([spend, inner], policy=limit))
    await getattr(agent, does)("Go.", caller=ADA)
    last = [says(tokens, call("spend")), "Done.", call("spend"), "Done."]
    later = agent.replace(model=ScriptedClient(last))
    for caller, ends in ((ADA, status), (EVE, "completed")):
        [record] = (await later.run("Go on.", caller=caller)).records
        assert record.status == ends
