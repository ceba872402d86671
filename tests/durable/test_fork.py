"""Forks of durable runs: runs of their own that repeat no effect of the first, whoever is killed."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from samples import sample
from waiting import until

pytest.importorskip("dbos", reason="the extra durable is not installed")

from durable.desk import KEY, PROMPT, Model, desk
from durable.test_killed import Workers

from toolcrib import ALL, Agent, Approve, Caller, Refuse, RunResult, ToolRunner, tool
from toolcrib.audit import AuditFilter, AuditLog
from toolcrib.durable import DurableAgents, StoredRun
from toolcrib.errors import ErrorCode, SourceError, ToolcribError
from toolcrib.testing import ScriptedClient, call
from toolcrib.testing.scripted import Said

ADA = Caller("ada")
PAYS: Sequence[Said] = (call("pay", to="ada"), call("look", what="1"), "Paid.")
AGAIN: Sequence[Said] = (call("pay", to="ada"), call("pay", to="eve"), "Once more.")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"


def agents(folder: Path, turns: Sequence[Said] = AGAIN) -> dict[str, Agent]:
    """Return the one that has made the first runs, and one that says something else."""
    return {"desk": desk(folder, turns=PAYS), "again": desk(folder, turns=turns)}


async def run_once(durable: DurableAgents, agent: str = "desk") -> str:
    run_id = await durable.start(agent, "Pay Ada.", caller=ADA)
    assert (await durable.result(run_id)).status == "completed"
    return run_id


def ends(result: RunResult) -> list[tuple[str, str]]:
    return [(r.name, r.status if r.error is None else r.error.code) for r in result.records]


def begun(folder: Path) -> list[str]:
    """Return the tools and the runs of the calls that have begun."""
    lines = (folder / "effects").read_text("utf-8").splitlines()
    return [" ".join(line.split()[1:3]) for line in lines if line.startswith("begin")]


async def test_a_fork_is_a_run_of_its_own_that_repeats_no_effect(url: str, tmp_path: Path) -> None:
    async with DurableAgents(url, agents(tmp_path)) as durable:
        first = await run_once(durable)
        before = await durable.show(first)
        fork = await durable.fork(first, turn=0, agent="again")
        assert fork != first
        result = await durable.result(fork)
        assert (result.text, ends(result)) == (
            "Once more.",
            [("pay", ErrorCode.REPEATED_EFFECT), ("pay", "completed")],
        )
        assert result.state.fork is not None
        assert (result.state.fork.run_id, result.state.caller) == (first, ADA)
        assert await durable.show(first) == before
        assert [run.id for run in await durable.list("completed")] == [first, fork]
        events = [event async for event in durable.events(fork)]
        assert sum(type(event).__name__ == "ToolCallFinished" for event in events) == 2
        over = await durable.fork(fork, turn=1)  # a fork of a fork knows of both
        known = (await durable.result(over)).state.fork
        assert known is not None
        assert [(each.run_id, each.tool) for each in known.effects] == [
            (first, "pay"),
            (fork, "pay"),
        ]
    assert begun(tmp_path).count(f"pay {first}") == 1
    async with AuditLog(url) as log:
        entries = await log.entries(AuditFilter(run_id=fork))
        told = {each.record.origin.forked_from for each in entries if each.record.origin}
        assert told == {first}
        assert (await log.verify()).ok


async def test_another_prompt_or_permission_goes_on_from_the_turn(url: str, tmp_path: Path) -> None:
    async with DurableAgents(url, agents(tmp_path, ["", "", "You are welcome."])) as durable:
        first = await run_once(durable)
        said = await durable.fork(first, turn=2, prompt="Thanks.", agent="again")
        result = await durable.result(said)
        assert result.text == "You are welcome."
        assert [m.text for m in result.messages if m.by_user] == ["Pay Ada.", "Thanks."]
        assert ends(result) == []
        allowed = await durable.result(await durable.fork(first, turn=0, repeat="allow"))
        assert ends(allowed) == [("pay", "completed"), ("look", "completed")]
        asked = await durable.fork(first, turn=0, repeat="ask")
        waits = await durable.result(asked)
        assert waits.pending[0].reason.startswith("this run was forked, and its first run has made")
        await durable.answer(waits.pending[0].id, Refuse("no", by="eve"))
        assert (await durable.result(asked)).status == "completed"
    assert len([each for each in begun(tmp_path) if each.startswith("pay")]) == 2


async def test_a_run_that_waits_is_forked_and_asked_about_by_itself(
    url: str, tmp_path: Path
) -> None:
    turns: list[Said] = [call("refund", order=7), "Over."]
    async with DurableAgents(url, {"desk": desk(tmp_path, turns=turns)}) as durable:
        first = await durable.start("desk", "Refund.")
        asked = (await durable.result(first)).pending[0]
        fork = await durable.fork(first, turn=1)
        other = (await durable.result(fork)).pending[0]
        assert other.id != asked.id
        await durable.answer(other.id, Refuse("no", by="eve"))
        assert ends(await durable.result(fork)) == [("refund", ErrorCode.APPROVAL_REFUSED)]
        assert (await durable.show(first)).status == "waiting"
        await durable.answer(asked.id, Approve(by="eve"))
        assert ends(await durable.result(first)) == [("refund", "completed")]
        anew = await durable.fork(first, turn=1, reopen=True)  # the yes was another run's
        assert ends(await durable.result(anew)) == [("refund", ErrorCode.REPEATED_EFFECT)]
    assert [each.split()[0] for each in begun(tmp_path)] == ["refund"]


async def test_a_fork_with_an_id_is_begun_once_whoever_asks_for_it(
    url: str, tmp_path: Path
) -> None:
    others = [DurableAgents(url, agents(tmp_path)) for _ in range(4)]
    async with DurableAgents(url, agents(tmp_path)) as durable:
        first, second = await run_once(durable), await run_once(durable)
        asked: dict[str, Any] = {"turn": 0, "prompt": "Pay.", "agent": "again", "fork_id": "anew"}
        made = await asyncio.gather(*(other.fork(first, **asked) for other in others))
        assert made == ["anew"] * 4
        assert (await durable.result("anew")).text == "Once more."
        assert await durable.fork(first, **asked) == "anew"  # also when it is over
        free = await asyncio.gather(*(other.fork(first, turn=0) for other in others))
        assert len({*free}) == 4  # without one, each is a run
        for wrong in (
            {"turn": 1},
            {"prompt": "Pay!"},
            {"prompt": None},
            {"prompt": None, "turn": 1, "reopen": True},
            {"repeat": "allow"},
            {"agent": "desk"},
            {"fork_id": second},
        ):
            with pytest.raises(ToolcribError, match="is the id of another run"):
                await durable.fork(first, **(asked | wrong))
        with pytest.raises(ToolcribError, match="is the id of another run"):
            await durable.fork(second, **asked)
        with pytest.raises(ToolcribError, match="id of the run that is forked"):
            await durable.fork(first, **(asked | {"fork_id": first}))
        with pytest.raises(ToolcribError, match="is the id of another run"):
            await durable.start("again", "Pay.", caller=ADA, run_id="anew")
        with pytest.raises(ToolcribError, match="at most 200 printable characters"):
            await durable.fork(first, turn=0, fork_id=" ")
        for result in [await durable.result(each) for each in free]:
            assert ends(result)[0] == ("pay", ErrorCode.REPEATED_EFFECT)
    for other in others:
        await other.aclose()
    assert begun(tmp_path).count("pay anew") == 1


async def test_what_is_under_way_is_not_forked(url: str, tmp_path: Path) -> None:
    """Not before it begins, not while it runs, not when an answer is given; when it was cut, it is."""
    held, hold = asyncio.Event(), asyncio.Event()

    @tool(visible=ALL)
    async def pay(to: str) -> str:
        """Pay somebody."""
        held.set()
        await hold.wait()
        return "paid"

    def shop(*turns: Said) -> Agent:
        return Agent(Model(*turns), ToolRunner([pay]), state_key=KEY)

    known = {
        "shop": shop(call("pay", to="ada"), "Paid."),
        "again": shop(call("pay", to="ada"), "-"),
    }
    elsewhere = DurableAgents(url, known)
    first = await elsewhere.start("shop", "Pay.")
    with pytest.raises(ToolcribError, match="not finished: wait for it, or cancel it"):
        await elsewhere.fork(first, turn=0)
    async with DurableAgents(url, known) as durable:
        await held.wait()
        with pytest.raises(ToolcribError, match="not finished"):
            await elsewhere.fork(first, turn=0)
        await durable.cancel(first)
        assert (await durable.result(first)).status == "cancelled"
        fork = await durable.fork(first, turn=0, agent="again")
        assert ends(await durable.result(fork)) == [("pay", ErrorCode.REPEATED_EFFECT)]
    await elsewhere.aclose()


async def test_what_only_the_log_knows_to_have_begun_is_held_back(url: str, tmp_path: Path) -> None:
    """Its worker was killed in a call, and the run cancelled before another one came to that."""
    turns: list[Said] = [call("pay", to="ada"), "Paid."]
    pool = Workers(url, tmp_path, 1)
    client = DurableAgents(url, {"desk": desk(tmp_path), "again": desk(tmp_path, turns=turns)})
    try:
        await asyncio.to_thread(pool.fill)
        first = await client.start("desk", PROMPT)
        effects = tmp_path / "effects"
        await until(lambda: effects.exists() and "begin pay" in effects.read_text("utf-8"))
        pool.kill(0)
        await client.cancel(first)
    finally:
        pool.end()
    async with client:
        result = await client.result(first)
        assert result.status == "cancelled"
        fork = await client.fork(first, turn=0, agent="again")
        assert ends(await client.result(fork)) == [("pay", ErrorCode.REPEATED_EFFECT)]
    paid = [each for each in begun(tmp_path) if each.startswith("pay")]
    assert not any(fork in each for each in paid)


async def test_what_was_changed_is_not_forked(url: str, tmp_path: Path) -> None:
    file = tmp_path / "runs.db"

    def change(sql: str, *values: str) -> None:
        with sqlite3.connect(file) as connection:
            assert connection.execute(sql, values).rowcount == 1
        connection.close()

    @tool(visible=ALL)
    async def other() -> None:
        """Do nothing."""

    strange = Agent(ScriptedClient([]), [other], state_key=b"a key of others, of 32 bytes too")
    async with DurableAgents(url, agents(tmp_path) | {"strange": strange}) as durable:
        first, second = await run_once(durable), await run_once(durable)
        state, own = [(await durable.show(each)).state for each in (first, second)]
        with pytest.raises(SourceError, match="signature"):
            await durable.fork(first, turn=0, agent="strange")
        set_state = "UPDATE durable_runs SET state = ? WHERE id = ?"
        change(set_state, state.replace("Pay Ada", "Pay Eve"), first)
        with pytest.raises(SourceError, match="signature"):
            await durable.fork(first, turn=0)
        change(set_state, state, second)
        with pytest.raises(SourceError, match="to another run or another caller"):
            await durable.fork(second, turn=0)
        change(set_state, own, second)
        change(set_state, state, first)
        with pytest.raises(ToolcribError, match="has no turn 9"):
            await durable.fork(first, turn=9)
        with pytest.raises(ToolcribError, match="no agent 'nobody' here"):
            await durable.fork(first, turn=0, agent="nobody")
        with pytest.raises(ToolcribError, match="no run 'none'"):
            await durable.fork("none", turn=0)
        forked = await durable.fork(first, turn=0, agent="again", fork_id="mine")
        assert (await durable.result(forked)).status == "completed"
        assert len(await durable.list()) == 3


async def test_a_run_that_failed_without_saying_what_it_did_is_resumed_first(
    url: str, tmp_path: Path
) -> None:
    fails = [True]

    def deps(_run: StoredRun) -> dict[Any, object]:
        if fails[0]:
            raise OSError("no")
        return {}

    async with DurableAgents(url, agents(tmp_path), deps=deps) as durable:
        first = await durable.start("desk", "Pay Ada.")
        with pytest.raises(ToolcribError, match="failed: OSError"):
            await durable.result(first)
        with pytest.raises(ToolcribError, match="is failed, and its saved state does not hold all"):
            await durable.fork(first, turn=0)
        fails[0] = False
        await durable.resume(first)
        assert (await durable.result(first)).status == "completed"
        fork = await durable.fork(first, turn=0, agent="again")
        assert ends(await durable.result(fork))[0] == ("pay", ErrorCode.REPEATED_EFFECT)


@pytest.mark.parametrize("seed", range(sample(3)))
async def test_workers_of_forks_that_are_killed_repeat_nothing(
    url: str, tmp_path: Path, seed: int
) -> None:
    """The forks of a run go on in whichever worker: each call that pays begins once in each of them,
    and none that the first run has made."""
    chance, pool = random.Random(seed), Workers(url, tmp_path, 2)  # noqa: S311
    client = DurableAgents(url, {"desk": desk(tmp_path)})

    async def approved(run_id: str) -> RunResult:
        async with asyncio.timeout(60):
            while (result := await client.result(run_id)).status == "waiting":
                for request in result.pending:
                    await client.answer(request.id, Approve(by="grace"))
        return result

    try:
        await asyncio.to_thread(pool.fill)
        first = await approved(await client.start("desk", PROMPT))
        forks = [await client.fork(first.state.run_id, turn=turn) for turn in (0, 1, 1, 2)]
        for _ in range(3):
            await asyncio.sleep(chance.uniform(0, 0.8))
            pool.kill(chance.randrange(2))
            await asyncio.to_thread(pool.fill)
        results = [await approved(run_id) for run_id in forks]
    finally:
        pool.end()
        await client.aclose()
    ran = begun(tmp_path)
    for result, turn in zip(results, (0, 1, 1, 2), strict=True):
        assert (result.status, result.text) == ("completed", "All done.")
        own = [each.split()[0] for each in ran if each.endswith(result.state.run_id)]
        assert {*own} <= {"look"}, own  # all else is what the first run did
        held = [r.name for r in result.records if r.error and r.error.code == "repeated_effect"]
        pays = ["pay"] * (3 - turn)
        assert sorted(held) == [*pays, "refund", "ship"]
    async with AuditLog(url) as log:
        assert (await log.verify()).ok
