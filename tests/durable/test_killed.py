"""Workers that are killed at any moment, again and again: every run ends, and nothing is done twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from children import Talking
from samples import sample

pytest.importorskip("dbos", reason="the extra durable is not installed")

from durable.desk import PROMPT, desk

from toolcrib import Approve, RunResult
from toolcrib.agent.history import is_handle
from toolcrib.audit import AuditLog
from toolcrib.durable import DurableAgents
from toolcrib.errors import ApprovalError, ErrorCode
from toolcrib.spending import SpendStore
from toolcrib.values.json import key_of

UNDER_WAY = 4
"""How many runs are to be under way when a worker is killed."""


class Workers:
    """The processes that work on one database, some of which are killed."""

    def __init__(self, url: str, folder: Path, count: int) -> None:
        self._arguments = ("-m", "durable.desk", url, str(folder))
        self._count = count
        self._living: list[Talking] = []

    def fill(self) -> None:
        """Start those that are missing, and wait until they work."""
        new = [Talking(*self._arguments) for _ in range(self._count - len(self._living))]
        for child in new:
            assert child.stdout.readline() == "ready\n"
        self._living += new

    def kill(self, which: int) -> None:
        self._living.pop(which % len(self._living)).__exit__()

    def end(self) -> None:
        while self._living:
            self.kill(0)


async def _approve(client: DurableAgents) -> None:
    for request in await client.pending():
        try:
            await client.answer(request.id, Approve(by="grace"))
        except ApprovalError as error:
            assert error.code is ErrorCode.ALREADY_USED  # noqa: PT017


async def _killed(
    url: str, folder: Path, kills: int, *, workers: int, seed: int, agent: str = "desk"
) -> list[RunResult]:
    """Kill workers at random moments while runs are under way; then let all of them end."""
    chance, pool = random.Random(seed), Workers(url, folder, workers)  # noqa: S311
    runs: list[str] = []
    client = DurableAgents(url, {agent: desk(folder)})
    try:
        for _ in range(kills):
            over = {run.id for run in await client.list() if run.status == "completed"}
            while len(runs) - len(over) < UNDER_WAY:
                runs.append(await client.start(agent, PROMPT))
            await asyncio.to_thread(pool.fill)
            until = asyncio.get_running_loop().time() + chance.uniform(0, 1.2)
            while asyncio.get_running_loop().time() < until:
                await _approve(client)
                await asyncio.sleep(0.02)
            pool.kill(chance.randrange(workers))
        await asyncio.to_thread(pool.fill)
        results = []
        for run_id in runs:
            async with asyncio.timeout(60):
                while (result := await client.result(run_id)).status == "waiting":
                    await _approve(client)
            results.append(result)
    finally:
        pool.end()
        await client.aclose()
    async with AuditLog(url) as log:
        assert (await log.verify()).ok
    return results


async def _check_spent(url: str, results: list[RunResult]) -> None:
    made = {
        (state.run_id, record.id)
        for state in (result.state for result in results)
        for record in state.records
        if record.name != "nobody"
    }
    async with SpendStore(url) as store:
        rows = await store._database.read("SELECT call_key FROM spent_calls")
    assert sorted(row["call_key"] for row in rows) == sorted(key_of(*each) for each in made)


def _effects(folder: Path) -> tuple[Counter[tuple[str, ...]], set[tuple[str, ...]]]:
    """Return how often each call's tool has begun, and which have ended."""
    told = [line.split() for line in (folder / "effects").read_text("utf-8").splitlines()]
    begun = Counter(tuple(call) for what, *call in told if what == "begin")
    return begun, {tuple(call) for what, *call in told if what == "end"}


def _check(results: list[RunResult], folder: Path) -> None:
    """Every run has ended as one that nobody kills, but for calls of which nobody knows the outcome:
    those were begun, and not told to have ended. No call was begun twice that may not be."""
    begun, whole = _effects(folder)
    twice = [call for call, times in begun.items() if times > 1]
    assert all(name in ("look", "ship") for name, _, _ in twice)
    for result in results:
        assert (result.status, result.text) == ("completed", "All done.")
        said = [m for m in result.messages if m.role != "tool"]
        assert [m.content for m in said if m.role == "assistant"] == [
            "",
            "I pay.",
            "",
            "",
            "All done.",
        ]
        assert len(result.records) == 9
        seen = {m.call_id: m for m in result.messages if m.role == "tool"}
        for record in result.records:
            known = (record.name, result.state.run_id, record.id)
            if record.error is None:
                assert known in whole
                assert "nobody else sees" in seen[record.id].content or record.name != "look"
            elif record.name == "nobody":
                assert record.error.code is ErrorCode.UNKNOWN_TOOL
            else:
                assert (record.error.code, record.name in ("pay", "refund")) == (
                    ErrorCode.OUTCOME_UNKNOWN,
                    True,
                )
                assert begun[known] <= 1


async def test_workers_that_are_killed_lose_nothing_and_do_nothing_twice(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    results = await _killed(url, tmp_path, sample(100, part=50), workers=1, seed=7)
    _check(results, tmp_path)
    await _check_spent(url, results)


async def test_of_two_workers_on_a_server_one_is_killed(
    tmp_path: Path, postgres: Callable[[], str]
) -> None:
    url = postgres()
    results = await _killed(url, tmp_path, sample(100, part=50), workers=2, seed=11)
    _check(results, tmp_path)
    await _check_spent(url, results)


async def test_what_runs_in_the_background_outlives_its_worker(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    kills = sample(60, part=30)
    results = await _killed(url, tmp_path, kills, workers=1, seed=3, agent="brewer")
    begun, whole = _effects(tmp_path)
    assert not [call for call, times in begun.items() if times > 1 and call[0] == "brew"]
    for result in results:
        assert (result.status, result.text) == ("completed", "I wait.")
        assert len(result.records) == len({record.id for record in result.records}) == 6
        said = {m.call_id: m for m in result.messages if m.role == "user" and m.call_id}
        runs = {m.call_id for m in result.messages if is_handle(m)}
        assert said.keys() == runs
        for record in result.records:
            known = (record.name, result.state.run_id, record.id)
            if record.error is None:
                assert known in whole
            else:
                assert record.error.code is ErrorCode.OUTCOME_UNKNOWN
                assert record.name == "brew"
                assert begun[known] <= 1
            if record.id in runs and record.error is None:
                assert f'"result":"{record.result}"' in said[record.id].content
