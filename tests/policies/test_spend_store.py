"""What callers spend in a store: all processes together spend no more than there is, and none counts a
call twice, whoever is killed."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from children import Talking, together
from hypothesis import given, settings
from hypothesis import strategies as st
from policies.policy_helpers import call_of, context_of, no_writes
from rows import each_row
from samples import sample

from toolcrib import ALL, Caller, Completed, Deny, ErrorCode, Failed, ToolCall, ToolRunner, tool
from toolcrib.errors import SourceError, ToolcribError
from toolcrib.policies import budget
from toolcrib.runner import CallScope
from toolcrib.runner.policy import reserving
from toolcrib.spending import SpendStore
from toolcrib.testing import MemorySink
from toolcrib.values.context import Payment, RunTally, Spend

ADA, EVE = Caller("ada"), Caller("eve")


@tool(visible=ALL, cost=0.1)
async def pay() -> str:
    """Pay."""
    await asyncio.sleep(0)
    return "paid"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'spent.db'}"
    made: str = request.getfixturevalue("postgres")()
    return made


async def calls(runner: ToolRunner, run: str, count: int, caller: Caller = ADA) -> list[Any]:
    scope = CallScope(RunTally(run))
    made = [ToolCall(f"c{number}", "pay", "{}") for number in range(count)]
    return list(await runner.exec_all(made, caller=caller, scope=scope))


def ran(outcomes: list[Any]) -> int:
    ended = [o.error.code for o in outcomes if isinstance(o, Failed)]
    assert set(ended) <= {ErrorCode.BUDGET_EXCEEDED}
    return len(outcomes) - len(ended)


async def spend_here(url: str, run: str, limit: str) -> int:
    async with SpendStore(url) as store:
        limits: dict[str, Any] = {limit: 20 if limit == "calls" else 2.0}
        policy = budget(per="caller", store=store, **limits)
        await calls(ToolRunner([pay]), run, 1)  # all that is imported first
        print("ready", flush=True)  # noqa: T201
        await asyncio.to_thread(sys.stdin.readline)
        return ran(await calls(ToolRunner([pay], policy=policy), run, 15))


@pytest.mark.parametrize("limit", ["calls", "cost"])
async def test_processes_together_spend_no_more_than_there_is(url: str, limit: str) -> None:
    async with SpendStore(url) as store:
        await store.give_back(Spend("nobody", "none", "", 0))  # its tables are made
        programs = [("-m", "policies.test_spend_store", url, f"run_{n}", limit) for n in range(3)]
        said = await asyncio.to_thread(together, *programs)
        assert sum(map(int, said)) == 20
        runner = ToolRunner([pay], policy=budget(calls=20, per="caller", store=store))
        assert ran(await calls(runner, "more", 1)) == 0
        assert ran(await calls(runner, "hers", 1, EVE)) == 1


async def test_a_call_that_is_made_again_by_another_process_is_counted_once(url: str) -> None:
    """As where the first was killed after it began: the second knows nothing of it but the store."""
    program = ("-m", "policies.test_spend_store", url, "killed")
    with Talking(*program) as child:
        line = await asyncio.to_thread(child.stdout.readline)
        assert line == "begun\n"
    async with SpendStore(url) as store:
        runner = ToolRunner([pay], policy=budget(calls=2, per="caller", store=store))
        assert ran(await calls(runner, "run_1", 3)) == 2


async def hang_here(url: str) -> None:
    @tool(visible=ALL)
    async def pay() -> None:
        """Hang."""
        print("begun", flush=True)  # noqa: T201
        await asyncio.sleep(60)

    runner = ToolRunner([pay], policy=budget(calls=2, per="caller", store=SpendStore(url)))
    await calls(runner, "run_1", 1)


TAKEN = st.lists(
    st.tuples(
        st.sampled_from(["take", "give back"]),
        st.sampled_from("abcdef"),
        st.sampled_from([0, 1, 2]),
    ),
    max_size=40,
)


@given(TAKEN, st.integers(0, 4))
def test_a_store_holds_each_call_once_and_never_more_than_the_limit(
    steps: list[tuple[str, str, int]], limit: int
) -> None:
    """Against a model: calls, each with how many hold it."""

    async def played() -> None:
        held: dict[str, int] = {}
        async with SpendStore("sqlite://") as store:
            for what, call, cost in steps:
                spend = Spend("ada", call, "pay", cost)
                if what == "give back":
                    await store.give_back(spend)
                    held[call] = max(held.get(call, 0) - 1, 0)
                    continue
                others = sum(count > 0 for other, count in held.items() if other != call)
                over = await store.take(spend, {"calls": limit})
                assert over == (None if others + 1 <= limit else "calls")
                held[call] = held.get(call, 0) + (over is None)
            assert sum(count > 0 for count in held.values()) <= limit

    asyncio.run(played())


MADE = st.lists(
    st.tuples(
        st.sampled_from(["killed", "ran"]),
        st.sampled_from("abc"),
        st.sampled_from([1, 2, 3]),
        st.sampled_from([0, 1, 20, 41, 61]),
    ),
    max_size=30,
)


@given(MADE, st.sampled_from(["calls", "cost"]), st.integers(1, 5))
@settings(max_examples=sample(1_000, part=8))
def test_no_window_has_more_than_the_limit_however_often_a_call_is_made(
    steps: list[tuple[str, str, int, int]], unit: str, limit: int
) -> None:
    """A process is killed between the count of a call and its tool; another one makes the call later,
    when its tool may cost more."""
    now = 1000.0
    ran: dict[str, tuple[float, int]] = {}

    async def played() -> None:
        nonlocal now
        async with SpendStore("sqlite://") as store:
            for what, call, cost, later in steps:
                now += later
                name = f"{call}{sum(made.startswith(call) for made in ran)}"  # none runs twice
                spend = Spend("ada", name, "pay", cost)
                if await store.take(spend, {unit: limit}, window=60) is None and what == "ran":
                    ran[name] = now, cost if unit == "cost" else 1
                    assert sum(spent for at, spent in ran.values() if at > now - 60) <= limit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolcrib.spending.time.time", lambda: now)
        asyncio.run(played())


async def test_only_what_was_spent_in_the_window_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("toolcrib.spending.time.time", lambda: now[0])
    async with SpendStore("sqlite://") as store:
        hour = ToolRunner([pay], policy=budget(calls=2, per="caller", store=store, window=3600))
        ever = ToolRunner([pay], policy=budget(calls=4, per="caller", store=store))
        assert ran(await calls(hour, "a", 3)) == 2
        now[0] += 3599
        assert ran(await calls(hour, "b", 1)) == 0
        now[0] += 2
        assert ran(await calls(hour, "c", 1)) == 1
        now[0] -= 7200  # the clock was set back: what was spent stays spent
        assert ran(await calls(hour, "d", 2)) == 1
        assert ran(await calls(ever, "e", 9)) == 2  # of what the hour's budget still has to know


async def test_what_is_forgotten_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("toolcrib.spending.time.time", lambda: now[0])
    async with SpendStore("sqlite://") as store:
        runner = ToolRunner([pay], policy=budget(calls=1, per="caller", store=store, window=60))
        for run in range(5):
            assert ran(await calls(runner, str(run), 1)) == 1
            now[0] += 61
        (row,) = await store._database.read("SELECT count(*) AS rows FROM spent_calls")
        assert row["rows"] == 1


async def test_budgets_of_one_store_count_what_each_other_counts() -> None:
    @tool(visible=ALL, cost=1)
    async def ship() -> str:
        """Ship."""
        return "shipped"

    async with SpendStore("sqlite://") as store:
        one = budget(calls=2, per="caller", only="pay", store=store)
        all_ = budget(cost=2, per="caller", store=store)
        runner, scope = ToolRunner([pay, ship], policy=[one, all_]), CallScope(RunTally("r"))
        made = [ToolCall(f"{name}{n}", name, "{}") for n in range(3) for name in ("pay", "ship")]
        outcomes = [await runner.exec(call, caller=ADA, scope=scope) for call in made]
        names = [o.record.name for o in outcomes if isinstance(o, Completed)]
        assert names == [
            "pay",
            "ship",
            "pay",
        ]  # 1.2; a ship more is 2.2, and a third pay is too many


async def test_a_call_outside_of_a_run_is_a_call_by_itself() -> None:
    async with SpendStore("sqlite://") as store:
        policy = budget(calls=2, per="caller", store=store)
        same = ToolCall("c", "pay", "{}")
        outcomes = [await ToolRunner([pay], policy=policy).exec(same) for _ in range(3)]
        assert [isinstance(o, Completed) for o in outcomes] == [True, True, False]


async def test_a_store_that_cannot_be_used_is_named_and_nothing_runs(tmp_path: Path) -> None:
    sink, store = MemorySink(), SpendStore(f"sqlite:///{tmp_path / 'away' / 'spent.db'}")
    runner = ToolRunner([pay], policy=budget(calls=2, per="caller", store=store), sinks=[sink])
    with pytest.raises(SourceError, match="CANTOPEN"):
        await runner.exec(ToolCall("c", "pay", "{}"))
    assert [r.error.code for r in sink.records if r.error] == [ErrorCode.NOT_RECORDED]


@pytest.mark.parametrize("limits", [{"calls": 9}, {"cost": 9, "window": 60}])
async def test_a_store_that_can_be_read_and_not_written_lets_nothing_run(
    url: str, limits: dict[str, Any]
) -> None:
    async with SpendStore(url) as store:
        runner = ToolRunner([pay], policy=budget(per="caller", store=store, **limits))
        assert ran(await calls(runner, "one", 1)) == 1
        sink = MemorySink()
        with no_writes(url), pytest.raises(SourceError, match="the database cannot be used"):
            await calls(runner.with_sinks(sink), "two", 1)
        assert [r.error.code for r in sink.records if r.error] == [ErrorCode.NOT_RECORDED]
        assert ran(await calls(runner, "two", 1)) == 1


class Slow:
    """A store that takes its time, and can be away."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self.away = False

    async def take(
        self,
        spend: Spend,
        _limits: object,
        *,
        only: Sequence[str] = (),
        window: float = math.inf,
    ) -> str | None:
        assert (only, window) == ([], math.inf)
        self.asked.set()
        await self.go.wait()
        self.taken.append(spend.call)
        return None

    async def give_back(self, spend: Spend) -> None:
        if self.away:
            raise SourceError("away")
        self.taken.remove(spend.call)


@pytest.mark.parametrize("away", [False, True])
async def test_who_is_cancelled_while_it_is_counted_gives_that_back(
    away: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = Slow()
    store.away = away
    runner = ToolRunner([pay], policy=budget(calls=2, per="caller", store=store))
    task = asyncio.ensure_future(calls(runner, "r", 1))
    await store.asked.wait()
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()  # nobody would know what was counted
    store.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(store.taken) == away  # too strict, and said
    assert bool(caplog.records) == away


def test_what_no_store_counts_is_refused() -> None:
    store: Any = SpendStore("sqlite://")
    for wrong in (
        {"calls": 1, "store": store},
        {"tokens": 1, "per": "caller", "store": store},
        {"seconds": 1, "per": "caller", "store": store},
        {"calls": 1, "per": "caller", "window": 60},
        {"calls": 1, "per": "caller", "store": store, "window": 0},
        {"calls": 1, "per": "caller", "store": store, "window": math.inf},
        {"calls": 1, "per": "caller", "store": store, "window": True},
        {"calls": 1, "per": "caller", "store": "sqlite://"},
        {"money": 1, "per": "caller", "store": "sqlite://", "prices": lambda *_: 1},
    ):
        with pytest.raises(ToolcribError, match=r"store=|window"):
            budget(**wrong)
    never: Any = budget(calls=0, per="caller", store=store)
    assert isinstance(never(call_of(), context_of(None, ADA)), Deny)

    class Plain:
        def __call__(self, *_: object) -> Deny:
            return Deny("no")

        def reserve(self, *_: object) -> None: ...

    with pytest.raises(ToolcribError, match="`reserve` must be an async method"):
        reserving([Plain()])


if __name__ == "__main__":
    if sys.argv[2] == "killed":
        asyncio.run(hang_here(sys.argv[1]))
    else:
        print(asyncio.run(spend_here(*sys.argv[1:])))  # noqa: T201


@each_row("amount", [math.nan, math.inf, -math.inf])
async def test_an_amount_that_is_not_finite_is_refused(amount: float) -> None:
    """NaN exceeds no limit, so whoever spends it could spend without end."""
    async with SpendStore("sqlite://") as store:
        for pays in (
            lambda: store.take(Spend("ada", "c", "pay", amount), {"cost": 1}),
            lambda: store.take(Spend("ada", "c", "pay", 1.0), {"cost": amount}),
            lambda: store.begin_request("ada", "r", amount),
            lambda: store.pay(Payment("ada", "r", amount)),
        ):
            with pytest.raises(ToolcribError, match="finite numbers"):
                await pays()
        assert await store.paid("ada") == 0.0
