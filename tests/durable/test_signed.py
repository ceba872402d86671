"""Rows that somebody changed who has no key: what is told of a run is what was signed, or an error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from samples import sampled

pytest.importorskip("dbos", reason="the extra durable is not installed")

from durable.desk import KEY, PROMPT, Model, desk

from toolcrib import ALL, Agent, Approve, Event, tool
from toolcrib.durable import DurableAgents
from toolcrib.errors import SourceError, ToolcribError
from toolcrib.testing import call


@dataclass
class Verdict:
    cents: int


async def changed(durable: DurableAgents, sql: str, run_id: str) -> None:
    """Change a row, as somebody does who has the database and no key."""
    write = f"UPDATE durable_runs SET {sql} WHERE id = :id"  # noqa: S608  of ours
    assert await durable._store._database.write(write, id=run_id) == 1


async def all_of(durable: DurableAgents, run_id: str) -> list[Event]:
    return [event async for event in durable.events(run_id)]


CHANGED = r"was changed|changed since|to another run or another caller"
FORGED = {
    "a text": ("judge", "text = replace(text, '7', '9999')"),
    "a reason": ("judge", "reason = 'calls'"),
    "that it was limited": ("judge", "status = 'limited', reason = 'calls'"),
    "that it failed": ("judge", "status = 'failed', reason = 'ClientError: no'"),
    "that it failed, with no reason": ("judge", "status = 'failed', text = ''"),
    "that it waits": ("judge", "status = 'waiting'"),
    "that it was cancelled": ("judge", "status = 'cancelled'"),
    "that it was cancelled, with no text": ("judge", "status = 'cancelled', text = ''"),
    "another caller": ("judge", "caller = 'eve'"),
    "its agent": ("judge", "agent = 'desk'"),
    "another state": ("judge", "state = (SELECT state FROM durable_runs WHERE id = 'desk')"),
    "a state of its own of before": ("judge", "state = '{first}'"),
    "where it was stopped": ("judge", "cut = state"),
    "when it began": ("judge", "began = 0"),
    "an end that nobody has signed": ("judge", "ended = ''"),
    "an end of another run": (
        "judge",
        "ended = (SELECT ended FROM durable_runs WHERE id = 'desk')",
    ),
    "that a run that waits is over": ("desk", "status = 'completed', text = 'All done.'"),
    "the text of a run that waits": ("desk", "text = 'All done.'"),
    "that one that waits failed": ("desk", "status = 'failed', reason = 'ClientError: no'"),
    "the text of one that was cancelled": ("desk", "status = 'cancelled', text = 'All done.'"),
}


@pytest.mark.parametrize("forged", sampled(FORGED, part=3))
async def test_what_is_told_of_a_run_is_what_was_signed(forged: str, tmp_path: Path) -> None:
    url, (run_id, change) = f"sqlite:///{tmp_path / 'runs.db'}", FORGED[forged]
    judge = desk(tmp_path, turns=('{"cents": 7}',), output=Verdict)
    agents = {"desk": desk(tmp_path), "judge": judge}
    client = DurableAgents(url, agents)
    for name in agents:
        await client.start(name, PROMPT, run_id=name)
    change = change.format(first=(await client.show("judge")).state.replace("'", "''"))
    async with DurableAgents(url, agents) as worker:
        assert (await worker.result("judge")).output == Verdict(7)
        assert (await worker.result("desk")).status == "waiting"
    await changed(client, change, run_id)
    asked: list[Callable[[], Awaitable[Any]]] = [
        lambda: client.result(run_id),
        lambda: all_of(client, run_id),
        lambda: client.show(run_id),
        client.list,
        lambda: client.resume(run_id),
        lambda: client.fork(run_id, turn=0),
    ]
    for ask in asked:
        with pytest.raises(SourceError, match=CHANGED):
            await ask()
    async with DurableAgents(url, {}) as anybody:
        assert {run.id for run in await anybody.list()} == {*agents}
    await client.aclose()


async def test_a_run_that_is_over_is_not_begun_again_by_who_writes_that_it_is_not(
    tmp_path: Path,
) -> None:
    url, asked = f"sqlite:///{tmp_path / 'runs.db'}", list[int]()
    agents = {"desk": desk(tmp_path, model=Model("Done.", before=asked.append))}
    async with DurableAgents(url, agents) as worker:
        run_id = await worker.start("desk", PROMPT)
        assert (await worker.result(run_id)).text == "Done."
        await changed(worker, "status = 'queued', text = '', segment = segment + 1", run_id)
        for ask in (worker.result, worker.resume):
            with pytest.raises(SourceError, match="was changed"):
                await ask(run_id)
    assert asked == [0]


async def test_a_run_that_was_cancelled_says_what_its_state_does(tmp_path: Path) -> None:
    """Anybody may cancel, without the key: of how it ended before nothing is told any more."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    said: tuple[Any, ...] = (["I refund.", call("refund", order=7)], "Done.")
    agents = {"desk": desk(tmp_path, turns=said)}
    async with DurableAgents(url, agents) as worker:
        run_id = await worker.start("desk", PROMPT)
        waits = await worker.result(run_id)
        await DurableAgents(url, {}).cancel(run_id)
        over = await worker.result(run_id)
        assert (over.status, over.text, over.limit) == ("cancelled", waits.text, None)
        found = await worker.show(run_id)
        assert (found.text, found.reason) == ("", "")
        await DurableAgents(url, {}).resume(run_id)
        for request in waits.pending:
            await worker.answer(request.id, Approve(by="grace"))
        assert (await worker.result(run_id)).text == "Done."


async def test_a_worker_with_another_key_ends_no_run_for_good(tmp_path: Path) -> None:
    """As one that was started without the right $TOOLCRIB_STATE_KEY, for a moment."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    said = (call("refund", order=7), "Done.")
    right = {"desk": desk(tmp_path, turns=said)}
    other = Agent(right["desk"].client, [], state_key=KEY[::-1])
    async with DurableAgents(url, right) as worker:
        run_id = await worker.start("desk", PROMPT)
        waits = await worker.result(run_id)
    for request in waits.pending:
        await DurableAgents(url, {}).answer(request.id, Approve(by="grace"))
    async with DurableAgents(url, {"desk": other}) as wrong:
        for ask in (wrong.result, wrong.resume, wrong.show):
            with pytest.raises(SourceError, match="signature"):
                await ask(run_id)
    async with DurableAgents(url, right) as worker:
        with pytest.raises(ToolcribError, match="failed: a worker could not read it"):
            await worker.result(run_id)
        assert [run.status for run in await worker.list()] == ["failed"]
        await worker.resume(run_id)
        result = await worker.result(run_id)
    assert (result.text, [each.approved_by for each in result.records]) == ("Done.", ["grace"])


@pytest.mark.parametrize("at", ["queued", "waiting", "cancelled"])
async def test_a_run_is_done_by_the_agent_that_it_was_begun_for(at: str, tmp_path: Path) -> None:
    """Also where another one has the same key: it has other tools."""
    url, ran = f"sqlite:///{tmp_path / 'runs.db'}", list[str]()

    @tool(visible=ALL, name="wipe")
    async def wipe() -> str:
        """Wipe everything."""
        ran.append("wipe")
        return "gone"

    admin = Agent(Model(*[call("wipe")] * 2, "Done."), [wipe], state_key=KEY)
    agents = {"desk": desk(tmp_path, turns=(call("refund", order=7), "Done.")), "admin": admin}
    client = DurableAgents(url, agents)
    run_id = await client.start("desk", PROMPT)
    if at == "waiting":
        async with DurableAgents(url, agents) as worker:
            assert (await worker.result(run_id)).status == "waiting"
    if at == "cancelled":
        await client.cancel(run_id)
    await changed(client, "agent = 'admin'", run_id)
    anybody = DurableAgents(url, {})
    if at == "waiting":
        for request in await anybody.pending():
            await anybody.answer(request.id, Approve(by="grace"))
    if at == "cancelled":
        await anybody.resume(run_id)
    async with DurableAgents(url, agents) as worker:
        with pytest.raises(SourceError, match=CHANGED):
            await worker.result(run_id)
        with pytest.raises(SourceError, match=CHANGED):
            await worker.fork(run_id, turn=0)
    assert ran == []
    await anybody.aclose()
    await client.aclose()
