"""What the models of a caller cost: none is asked once the money is used up, in whichever process, and
each request that was answered is paid for once."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psycopg
import pytest
from children import Talking, run
from policies.policy_helpers import leave_out, no_writes

from toolcrib import (
    ALL,
    Agent,
    Allow,
    Approve,
    Caller,
    Completed,
    ContextOptions,
    Deny,
    Done,
    Failed,
    Limits,
    RunState,
    ToolCall,
    ToolRunner,
    tool,
)
from toolcrib.approvals import answer_later
from toolcrib.clients import fallback
from toolcrib.errors import ClientError, MissingExtraError, SourceError, ToolcribError
from toolcrib.policies import budget
from toolcrib.runner.policy import paying
from toolcrib.spending import SpendStore
from toolcrib.storage import UnreachableError
from toolcrib.testing import ScriptedClient, ToolEmulator, call
from toolcrib.values.context import ModelRequest, Payment
from toolcrib.values.message import ChatRequest, Message, Reply, Usage

T = TypeVar("T")
ADA, EVE = Caller("ada"), Caller("eve")
CALLS = [call("look", at=n) for n in range(9)]


@tool(visible=ALL, read_only=True)
async def look(at: int) -> str:
    """Look."""
    return f"seen {at}"


@tool(visible=ALL, safe=False)
async def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'spent.db'}"
    made: str = request.getfixturevalue("postgres")()
    return made


def one_each(_usage: Usage, _model: str) -> Decimal:
    """Return what each request costs."""
    return Decimal(1)


def agent_of(turns: Any, store: Any, money: float = 3, **options: Any) -> Agent:
    made = {"prices": one_each, **options.pop("limits", {})}
    policy = budget(money=money, per="caller", store=store, **made)
    runner = ToolRunner([look, refund], policy=policy, approver=answer_later)
    return Agent(ScriptedClient(turns), runner, **options)


async def rows(store: SpendStore) -> int:
    (row,) = await store._database.read("SELECT count(*) AS rows FROM paid_requests")
    return int(row["rows"])


async def spend_here(url: str) -> str:
    async with SpendStore(url) as store:
        result = await agent_of([*CALLS[:1], "Done."], store).run("Go.", caller=ADA)
        return f"{result.status} {result.usage.requests}"


async def test_all_processes_together_ask_no_further_model_when_it_is_used_up(url: str) -> None:
    said = await asyncio.to_thread(run, "-m", "policies.test_money", url)
    assert said.stderr == ""
    assert said.stdout == "completed 2\n"
    async with SpendStore(url) as store, SpendStore(url) as other:
        agent = agent_of(CALLS, store)
        result = await agent.run("Go.", caller=ADA)
        assert (result.status, result.limit, result.usage.requests) == ("limited", "money", 1)
        assert [record.status for record in result.records] == ["completed"]  # it was paid for
        nothing = agent_of(CALLS, other)
        assert (await nothing.run("Go.", caller=ADA)).usage.requests == 0
        assert nothing.client.requests == []  # type: ignore[attr-defined]
        assert (await agent_of(["Hello."], other).run("Hi.", caller=EVE)).text == "Hello."
        assert await store.paid("ada") == 3


async def test_what_left_the_window_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("toolcrib.spending.time.time", lambda: now[0])
    async with SpendStore("sqlite://") as store:
        agent = agent_of([*CALLS[:4], "Done."], store, 2, limits={"window": 60})
        result = await agent.run("Go.", caller=ADA)
        assert (result.limit, result.usage.requests) == ("money", 2)
        now[0] += 61
        state = RunState.from_json(result.state.to_json())
        result = await agent.resume(state)  # what it asked before is paid for, and not asked again
        assert (result.limit, result.usage.requests) == ("money", 4)
        now[0] += 61
        result = await agent.resume(result.state)
        assert (result.status, result.text) == ("completed", "Done.")
        assert await rows(store) == 1  # what has left the window is not kept


async def test_prices_are_those_of_the_model_and_three_tenths_are_no_more_than_three() -> None:
    said = Reply(Message.assistant("Hi."), "stop", Usage(1, 1_000, 100), model="gpt-4o")
    async with SpendStore("sqlite://") as store:
        policy = budget(money=0.0105, per="caller", store=store)  # 2.50 and 10 dollars a million
        agent = Agent(ScriptedClient([said] * 9, model="gpt-4o"), ToolRunner([look], policy=policy))
        ended = [(await agent.run("Hi.", caller=ADA)).status for _ in range(4)]
        assert ended == ["completed", "completed", "completed", "limited"]
        assert await store.paid("ada") == pytest.approx(0.0105)


async def test_a_request_without_money_gives_its_turn_back() -> None:
    """Whoever tries again by the hour would have no turn left when there is money."""
    async with SpendStore("sqlite://") as store:

        def agent(money: float, *turns: Any) -> Agent:
            runner = agent_of([], store, money).runner
            return Agent(ScriptedClient(turns), runner, limits=Limits(turns=3))

        result = await agent(1, CALLS[0]).run("Go.", caller=ADA)
        for _ in range(4):
            assert (result.limit, result.state.turn, result.usage.requests) == ("money", 1, 1)
            assert [(mark.turn, mark.at) for mark in result.state.marks] == [(1, 1)]
            result = await agent(1).resume(result.state)
        result = await agent(9, CALLS[1], "Done.").resume(result.state)
        assert (result.status, result.text, result.state.turn) == ("completed", "Done.", 3)


async def test_an_agent_without_money_takes_no_turn_of_the_run_around_it() -> None:
    async with SpendStore("sqlite://") as store:
        clerk = Agent(ScriptedClient([])).as_tool("clerk", "Looks.", visible=ALL)
        policy = budget(money=1, per="caller", store=store, prices=one_each)
        agent = Agent(
            ScriptedClient([call("clerk", prompt="Go.")]), ToolRunner([clerk], policy=policy)
        )
        result = await agent.run("Go.", caller=ADA)
        assert (result.limit, result.state.turn) == ("money", 1)
        assert result.state.tally.inner.turns == 0


@pytest.mark.parametrize("asked", ["mine", "gpt-4o"])
async def test_a_model_whose_price_nobody_knows_is_an_error_and_not_asked(asked: str) -> None:
    async with SpendStore("sqlite://") as store:
        policy = budget(money=5, per="caller", store=store)
        client = ScriptedClient(["Hi."], model=asked)
        both: Any = client if asked == "mine" else fallback([client, ScriptedClient([])])
        agent = Agent(both, ToolRunner([look], policy=policy))
        with pytest.raises(ToolcribError, match=r"what the model '(mine|scripted)' costs.*prices="):
            await agent.run("Hi.")
        assert client.requests == []
        assert await rows(store) == 0


async def test_a_model_that_answers_under_another_name_costs_as_the_dearest_that_was_asked() -> (
    None
):
    said = Reply(Message.assistant("Hi."), "stop", Usage(1, 5, 5), model="served-as-this")
    known = {"cheap": 1, "dear": 4}
    async with SpendStore("sqlite://") as store:
        policy = budget(
            money=5, per="caller", store=store, prices=lambda _usage, model: known.get(model)
        )
        one, other = (ScriptedClient([said], model=name) for name in known)
        agent = Agent(fallback([one, other]), ToolRunner([look], policy=policy))
        await agent.run("Hi.", caller=ADA)
        assert await store.paid("ada") == 4


@pytest.mark.parametrize("given", [-1, float("nan"), "1", True, 10**400, Decimal("sNaN")])
async def test_what_is_no_price_is_an_error(given: Any) -> None:
    async with SpendStore("sqlite://") as store:
        prices: Any = {"limits": {"prices": lambda _usage, _model: given}}
        with pytest.raises(ToolcribError, match="an amount of money from 0, or None"):
            await agent_of(["Hi."], store, **prices).run("Hi.")


@pytest.mark.parametrize("whose", ["outer", "inner", "both"])
async def test_an_agent_that_is_a_tool_is_paid_for_by_the_run_around_it_once(whose: str) -> None:
    async with SpendStore("sqlite://") as store:
        policy = budget(money=4, per="caller", store=store, prices=one_each)
        inner = Agent(
            ScriptedClient([*CALLS[:2], "Seen."] * 2),
            ToolRunner([look], policy=() if whose == "outer" else policy),
        )
        ask = inner.as_tool("clerk", "Looks.", visible=ALL)
        front = ScriptedClient(
            [call("clerk", prompt="Look."), call("clerk", prompt="Again."), "Ok"]
        )
        outer = Agent(front, ToolRunner([ask], policy=() if whose == "inner" else policy))
        result = await outer.run("Go.", caller=ADA)
        if whose == "inner":  # the second time it has one request left
            assert (result.status, await store.paid("ada")) == ("completed", 4)
            assert "may spend on models is used up" in (result.records[1].error.message or "")  # type: ignore[union-attr]
        else:
            assert (result.status, result.limit) == ("limited", "money")
            assert (result.usage.requests, await store.paid("ada")) == (4, 4)


async def test_an_agent_that_is_a_tool_of_a_loop_of_somebodys_own_is_paid_for() -> None:
    @dataclass  # which has no hash
    class Pays:
        paid: list[str]

        def __call__(self, *_: object) -> Allow:
            return Allow()

        async def may_ask(self, request: ModelRequest, _context: object) -> bool:
            return request.models == ("scripted",) and len(self.paid) < 2

        async def pay(self, request: ModelRequest, _context: object) -> None:
            self.paid.append(request.model)

    policy = Pays([])
    inner = Agent(ScriptedClient([CALLS[0], "Seen.", "?"]), ToolRunner([look], policy=policy))
    ask = inner.as_tool("clerk", "Looks.", visible=ALL)
    runner = ToolRunner([ask], policy=policy)
    one, other = (ToolCall(id_, "clerk", '{"prompt": "Look."}') for id_ in ("c1", "c2"))
    assert isinstance(await runner.exec(one, caller=ADA), Completed)
    failed = await runner.exec(other, caller=ADA)
    assert isinstance(failed, Failed)
    assert "may spend on models" in failed.error.message
    assert policy.paid == ["scripted", "scripted"]


async def test_agents_two_deep_are_paid_for_from_outside() -> None:
    async with SpendStore("sqlite://") as store:
        deep = Agent(ScriptedClient(["Deep."])).as_tool("deep", "Is deep.", visible=ALL)
        middle = Agent(ScriptedClient([call("deep", prompt="?"), "Middle."]), [deep])
        policy = budget(money=9, per="caller", store=store, prices=one_each)
        runner = ToolRunner([middle.as_tool("middle", "Is between.", visible=ALL)], policy=policy)
        front = Agent(ScriptedClient([call("middle", prompt="?"), "Front."]), runner)
        assert (await front.run("?", caller=ADA)).text == "Front."
        assert await store.paid("ada") == 5


class Says:
    """A policy that says something about each request, and may fail as it pays for one."""

    def __init__(self, may: object, fails: bool = False) -> None:
        self.may, self.fails = may, fails

    def __call__(self, *_: object) -> Allow:
        return Allow()

    async def may_ask(self, _request: ModelRequest, _context: object) -> Any:
        return self.may

    async def pay(self, _request: ModelRequest, _context: object) -> None:
        if self.fails:
            raise SourceError("no purse")


class NeverPays:
    def __call__(self, *_: object) -> Allow:
        return Allow()

    async def may_ask(self, *_: object) -> bool:
        return True


@pytest.mark.parametrize("may", [Deny("no"), "no", 1, None, 0])
async def test_what_is_no_yes_lets_no_request_be_sent(may: object) -> None:
    client = ScriptedClient(["Sent."])
    agent = Agent(client, ToolRunner([look], policy=Says(may)))
    with pytest.raises(ToolcribError, match="may_ask must return True or False"):
        await agent.run("?", caller=ADA)
    assert client.requests == []


async def test_a_request_that_was_answered_is_used_though_paying_for_it_fails() -> None:
    agent = Agent(ScriptedClient(["Sent."]), ToolRunner([look], policy=Says(True, fails=True)))
    async with agent.stream("?", caller=ADA) as stream:
        told = [event async for event in stream]
    assert isinstance(told[-1], Done)
    assert (told[-1].result.status, told[-1].result.usage.requests) == ("failed", 1)


@pytest.mark.parametrize(
    ("table", "limits", "sent"),
    [("paid_requests", {"money": 3}, 0), ("spent_calls", {"calls": 3}, 1)],
)
async def test_a_store_that_leaves_out_what_is_spent_lets_nothing_begin(
    url: str, table: str, limits: dict[str, Any], sent: int
) -> None:
    client = ScriptedClient([CALLS[0], "Sent."])
    async with SpendStore(url) as store:
        await store.paid("ada")
        leave_out(url, table)
        policy = budget(per="caller", store=store, prices=one_each, **limits)
        with pytest.raises(SourceError, match="look for a trigger"):
            await Agent(client, ToolRunner([look], policy=policy)).run("?", caller=ADA)
    assert len(client.requests) == sent


def said_since() -> list[Message]:
    return [Message.user("And?"), Message.assistant("Ok.")] * 3


async def test_summaries_are_paid_for_and_not_asked_for_without_money() -> None:
    long = [Message.user("Write."), Message.assistant("word " * 2_000), *said_since()]
    for money, limit, paid in ((9, None, 2), (0, "money", 0)):
        summaries = ScriptedClient(["They said word."] * 3, model="short")
        async with SpendStore("sqlite://") as store:
            context = ContextOptions(3_000, summarize=summaries)
            agent = agent_of(["Hi."], store, money, context=context)
            result = await agent.run("Hi.", history=long, caller=ADA)
            asked = len(summaries.requests)
            assert (result.limit, await store.paid("ada")) == (limit, paid and 1 + asked)
            assert bool(asked) == bool(paid)


class Kept:
    """Keeps steps, and can end the process after the reply that it names, before that is kept."""

    def __init__(self, kept: list[bytes], stops_at: int = -1) -> None:
        self.kept, self.at, self.stops_at = kept, 0, stops_at

    async def run(self, name: str, work: Callable[[], Awaitable[T]], type: Any) -> T:
        del name
        self.at += 1
        if self.at <= len(self.kept):
            known: T = msgspec.json.decode(self.kept[self.at - 1], type=type)
            return known
        made = await work()
        if self.at == self.stops_at:
            raise KeyboardInterrupt
        self.kept.append(msgspec.json.encode(made))
        return made


async def test_a_reply_that_is_kept_is_paid_for_once_also_if_nothing_is_left_by_then() -> None:
    turns, kept = [CALLS[0], "Done."], list[bytes]()
    async with SpendStore("sqlite://") as store:
        first = agent_of(turns, store, 2, durability=Kept(kept))
        state = first.prepare("Go.", caller=ADA)
        done = await first.resume(state)
        assert (done.text, await store.paid("ada"), len(kept)) == ("Done.", 2, 3)
        again = await agent_of([], store, 2, durability=Kept(kept)).resume(state)
        assert (again.text, again.usage, await store.paid("ada")) == ("Done.", done.usage, 2)


async def test_a_request_that_is_asked_again_is_one_more() -> None:
    """Its process ended before the reply was kept: two replies were paid for at the provider's."""
    async with SpendStore("sqlite://") as store:
        agent = agent_of(["Lost."], store, durability=Kept([], stops_at=1))
        state = agent.prepare("Go.", caller=ADA)
        with pytest.raises(KeyboardInterrupt):
            await agent.resume(state)
        again = agent_of(["Done."], store, durability=Kept([]))
        assert ((await again.resume(state)).text, await store.paid("ada")) == ("Done.", 2)


async def test_runs_with_patient_steps_and_those_within_wait_for_the_store() -> None:
    """A reply is not lost, and no call fails, because the store is away for a moment."""

    class Away(SpendStore):
        tried: Counter[str]

        def _now(self, what: str) -> None:
            self.tried[what] += 1
            if self.tried[what] % 2:
                raise UnreachableError("away")

        async def begin_request(self, *given: Any, window: float = 1.0) -> bool:
            self._now("begin")
            return await super().begin_request(*given, window=window)

        async def pay(self, payment: Payment, *, window: float = 1.0) -> None:
            self._now("pay")
            await super().pay(payment, window=window)

        async def take(self, *given: Any, **options: Any) -> str | None:
            self._now("take")
            return await super().take(*given, **options)

    class Patient(Kept):
        async def run_with_retries(self, work: Callable[[], Awaitable[T]]) -> T:
            try:
                return await work()
            except UnreachableError:
                return await work()

    async with Away("sqlite://") as store:
        store.tried = Counter()
        limits = {"limits": {"calls": 9}}
        deep = agent_of([CALLS[0], "Deep."], store, 9, **limits)
        within = deep.as_tool("deep", "Is deep.", visible=ALL)
        middle = Agent(ScriptedClient([call("deep", prompt="?"), "Middle."]), [within])
        runner = ToolRunner([middle.as_tool("middle", "Is between.", visible=ALL)])
        said = ScriptedClient([call("middle", prompt="?"), "Front."])
        front = Agent(said, runner, durability=Patient([]))
        assert (await front.run("?", caller=ADA)).text == "Front."
        assert await store.paid("ada") == 2
        assert store.tried == {"begin": 4, "pay": 4, "take": 2}
        with pytest.raises(UnreachableError):
            await agent_of(["Hi."], store, durability=Kept([])).run("?", caller=ADA)


async def test_a_fork_pays_for_its_own_requests_alone() -> None:
    async with SpendStore("sqlite://") as store:
        first = await agent_of([CALLS[0], "Done."], store, 9).run("Go.", caller=ADA)
        again = agent_of(["Otherwise."], store, 9)
        forked = await again.resume(again.fork(first.state, turn=1))
        assert (forked.usage.requests, await store.paid("ada")) == (2, 3)


async def test_a_run_that_waits_pays_for_nothing_again() -> None:
    async with SpendStore("sqlite://") as store:
        agent = agent_of([call("refund", order=7), "Refunded."], store, 2)
        waits = await agent.run("Refund.", caller=ADA)
        assert (waits.status, await store.paid("ada")) == ("waiting", 1)
        done = await agent.resume(waits.state, {waits.pending[0].id: Approve("eve")})
        assert (done.text, await store.paid("ada")) == ("Refunded.", 2)


async def test_plans_streams_and_emulated_runs_are_paid_for() -> None:
    async with SpendStore("sqlite://") as store:
        planned = await agent_of(CALLS, store).plan("Go.", caller=ADA)
        assert (planned.limit, len(planned.calls)) == (None, 1)
        async with agent_of(["Hi."], store).stream("Go.", caller=ADA) as stream:
            assert (await stream.result()).status == "completed"
        emulated = ToolEmulator({"look": "seen"}).over(agent_of(CALLS, store))
        assert (await emulated.run("Go.", caller=ADA)).limit == "money"
        assert await store.paid("ada") == 3
        client = agent_of(CALLS, store)
        assert (await client.plan("Go.", caller=ADA)).limit == "money"
        assert client.client.requests == []  # type: ignore[attr-defined]


class Slow(SpendStore):
    """A store that takes its time to count."""

    asked: asyncio.Event
    go: asyncio.Event

    async def pay(self, payment: Payment, *, window: float = 1.0) -> None:
        self.asked.set()
        await self.go.wait()
        await super().pay(payment, window=window)


async def test_who_is_cancelled_while_a_request_is_paid_for_has_paid() -> None:
    async with Slow("sqlite://") as store:
        store.asked, store.go = asyncio.Event(), asyncio.Event()
        task = asyncio.ensure_future(agent_of(["Hi."], store).run("Hi.", caller=ADA))
        await store.asked.wait()
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        store.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await rows(store), await store.paid("ada")) == (1, 1)


async def test_what_failed_costs_nothing_and_a_store_that_is_away_lets_nothing_be_sent(
    tmp_path: Path,
) -> None:
    async with SpendStore("sqlite://") as store:
        with pytest.raises(ClientError):
            await agent_of([ClientError("down")], store).run("Hi.", caller=ADA)
        assert await store.paid("ada") == 0
    away = agent_of(["Hi."], SpendStore(f"sqlite:///{tmp_path / 'away' / 'spent.db'}"))
    with pytest.raises(SourceError, match="CANTOPEN"):
        await away.run("Hi.")
    assert away.client.requests == []  # type: ignore[attr-defined]


async def test_a_payment_that_is_told_twice_counts_once(url: str) -> None:
    async with SpendStore(url) as store:
        for window in (60, 3600, 60):
            await store.pay(Payment("ada", "r1", 2.5), window=window)
        await store.pay(Payment("ada", "r2", 0.5))
        assert (await store.paid("ada"), await store.paid("eve")) == (3.0, 0.0)


async def test_a_store_that_can_be_read_and_not_written_lets_nothing_be_sent(url: str) -> None:
    """Else requests would be sent without end, of which none is counted."""
    async with SpendStore(url) as store:
        agent = agent_of(["Hi."] * 9, store)
        asked: list[Any] = agent.client.requests  # type: ignore[attr-defined]
        assert (await agent.run("Hi.", caller=ADA)).status == "completed"
        with no_writes(url):
            for _ in range(4):
                with pytest.raises(SourceError, match="the database cannot be used"):
                    await agent.run("Hi.", caller=ADA)
            assert (len(asked), await store.paid("ada")) == (1, 1)
        ended = [(await agent.run("Hi.", caller=ADA)).status for _ in range(3)]
        assert (ended, await store.paid("ada")) == (["completed", "completed", "limited"], 3)


async def test_what_is_not_taken_when_it_is_paid_is_paid_before_anything_else_is_sent(
    url: str,
) -> None:
    class Full(SpendStore):
        full = False

        async def pay(self, payment: Payment, *, window: float = 1.0) -> None:
            if self.full:
                raise SourceError("the disk is full")
            await super().pay(payment, window=window)

    async with Full(url) as store:
        agent = agent_of(["Hi."] * 9, store)
        asked: list[Any] = agent.client.requests  # type: ignore[attr-defined]
        store.full = True
        for _ in range(3):
            with pytest.raises(SourceError, match="the disk is full"):
                await agent.run("Hi.", caller=ADA)
        assert len(asked) == 1
        assert (await rows(store), await store.paid("ada")) == (1, 0)
        store.full = False
        assert (await agent.run("Hi.", caller=EVE)).status == "completed"
        ended = [(await agent.run("Hi.", caller=ADA)).status for _ in range(3)]
        assert (ended, await store.paid("ada")) == (["completed", "completed", "limited"], 3)


async def test_a_request_whose_process_was_killed_has_left_a_row_without_money(url: str) -> None:
    with Talking("-m", "policies.test_money", url, "killed") as child:
        line = await asyncio.to_thread(child.stdout.readline)
        assert line == "asked\n"
    async with SpendStore(url) as store:
        assert (await rows(store), await store.paid("ada")) == (1, 0)
        assert (await agent_of(["Hi."], store, 1).run("Hi.", caller=ADA)).status == "completed"


async def hang_here(url: str) -> None:
    class Hangs(ScriptedClient):
        async def chat(self, request: ChatRequest) -> Reply:
            print("asked", flush=True)  # noqa: T201
            await asyncio.sleep(60)
            return await super().chat(request)

    policy = budget(money=3, per="caller", store=SpendStore(url), prices=one_each)
    await Agent(Hangs(["Hi."]), ToolRunner([look], policy=policy)).run("Hi.", caller=ADA)


async def test_a_request_is_paid_for_in_the_window_in_which_it_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr("toolcrib.spending.time.time", lambda: now[0])
    async with SpendStore("sqlite://") as store:
        assert await store.begin_request("ada", "r", 2, window=60)
        now[0] += 50
        await store.pay(Payment("ada", "r", 2), window=60)
        now[0] += 50  # the request was begun 100 seconds ago
        assert await store.paid("ada", window=60) == 2
        assert not await store.begin_request("ada", "s", 2, window=60)
        assert await rows(store) == 1  # what is not sent has no row
        now[0] += 11
        assert await store.begin_request("ada", "s", 2, window=60)
        assert await rows(store) == 1
        now[0] += 100  # it is forgotten, and answered
        assert await store.begin_request("ada", "t", 2, window=60)
        await store.pay(Payment("ada", "s", 2), window=60)
        assert await store.paid("ada", window=60) == 2


async def test_many_requests_of_a_caller_at_once_are_each_paid_once(url: str) -> None:
    """Rows are deleted all the while, also those of requests that are paid for just then."""
    async with SpendStore(url) as store, SpendStore(url) as other:

        async def many(store: SpendStore, name: str, window: float) -> None:
            for number in range(20):
                request = f"{name} {number}"
                assert await store.begin_request("ada", request, 1e9, window=window)
                await store.pay(Payment("ada", request, 1), window=window)

        of = [(each, window) for each in (store, other) for window in (0.01, 0.02, 3600)]
        made = (many(each, str(name), window) for name, (each, window) in enumerate(of))
        await asyncio.gather(*made)
        assert 40 <= await store.paid("ada") < 120


async def test_whoever_counts_on_a_server_is_alone_with_its_caller(
    postgres: Callable[[], str],
) -> None:
    """Or two that delete old rows, and pay for what the other deletes, would wait for each other."""
    url = postgres()
    async with SpendStore(url) as store:
        await store.pay(Payment("ada", "r", 1))
        with psycopg.connect(url.replace("+psycopg", "")) as another:
            another.execute("UPDATE spenders SET caller = caller WHERE caller = 'ada'")
            paying = asyncio.ensure_future(store.pay(Payment("ada", "s", 1)))
            begun = asyncio.ensure_future(store.begin_request("ada", "t", 9))
            await store.pay(Payment("eve", "u", 1))
            assert [task.done() for task in (paying, begun)] == [False, False]
        await paying
        assert await begun


async def test_the_limits_on_calls_next_to_it_are_as_ever() -> None:
    async with SpendStore("sqlite://") as store:
        agent = agent_of([*CALLS[:2], "Done."], store, 9, limits={"calls": 1})
        result = await agent.run("Go.", caller=ADA)
        codes = [None if r.error is None else r.error.code for r in result.records]
        assert codes == [None, "budget_exceeded"]


def test_what_money_is_not_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = SpendStore("sqlite://")
    mine = {"per": "caller", "store": store}
    for wrong, said in (
        ({"money": 5}, "per='caller' and store=SpendStore"),
        ({"money": 5, "per": "caller"}, "and store="),
        ({"money": 5, "store": store}, "per='caller'"),
        ({"money": 5, "only": "look", **mine}, "leave out only="),
        ({"money": -1, **mine}, "money is a finite number from 0"),
        (
            {"money": 5, "per": "caller", "store": object()},
            "needs `take`, `give_back`, `begin_request` and",
        ),
        ({"money": 5, "prices": 3, **mine}, "prices= must be a function"),
    ):
        with pytest.raises(ToolcribError, match=said):
            budget(**wrong)

    class Plain:
        def __call__(self, *_: object) -> None: ...

        def may_ask(self, *_: object) -> bool:
            return True

        async def pay(self, *_: object) -> None: ...

    policy: Any = Plain()
    with pytest.raises(ToolcribError, match="`may_ask` and `pay` must be async"):
        paying([policy])
    policy = NeverPays()
    with pytest.raises(ToolcribError, match="NeverPays: a policy with `may_ask` needs `pay`, too"):
        paying([policy])
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    with pytest.raises(MissingExtraError, match="prices"):
        budget(money=5, **mine)


if __name__ == "__main__":
    if sys.argv[2:] == ["killed"]:
        asyncio.run(hang_here(sys.argv[1]))
    else:
        print(asyncio.run(spend_here(sys.argv[1])))  # noqa: T201
