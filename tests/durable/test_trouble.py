"""A database that goes away, a full disk, a clock that is set back: named, and nothing is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

pytest.importorskip("dbos", reason="the extra durable is not installed")

from durable.desk import KEY, PROMPT, desk

from toolcrib import Agent, Approve, RunResult, RunState
from toolcrib.durable import DurableAgents
from toolcrib.durable.store import RunStore
from toolcrib.errors import SourceError, ToolcribError


async def to_the_end(durable: DurableAgents, run_id: str) -> tuple[RunResult, list[str]]:
    """Go on with a run until it is over, and return the reasons for which it failed on its way."""
    reasons: list[str] = []
    async with asyncio.timeout(60):
        while True:
            try:
                result = await durable.result(run_id)
            except ToolcribError:
                reasons.append((await durable.show(run_id)).reason)
                await durable.resume(run_id)
                continue
            if result.status != "waiting":
                return result, reasons
            for request in await durable.pending():
                await durable.answer(request.id, Approve(by="grace"))


def begun(folder: Path) -> list[str]:
    told = (folder / "effects").read_text("utf-8").splitlines()
    return [line.split()[3] for line in told if line.startswith(("begin pay", "begin refund"))]


async def test_a_server_that_drops_its_connections_loses_nothing(
    tmp_path: Path, postgres: Callable[[], str]
) -> None:
    url = postgres()
    drop = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()"""

    def dropped() -> None:
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(drop)

    async with DurableAgents(url, {"desk": desk(tmp_path)}) as worker:
        run_id = await worker.start("desk", PROMPT)
        for _ in range(4):
            await asyncio.sleep(0.15)
            await asyncio.to_thread(dropped)
        result, reasons = await to_the_end(worker, run_id)
    assert (result.status, result.text) == ("completed", "All done.")
    assert len(begun(tmp_path)) == len(set(begun(tmp_path)))
    assert all("database" in reason for reason in reasons)


async def test_a_log_that_takes_nothing_is_named_and_the_run_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the disk is full: no call begins that nobody can write down."""
    full = [True]
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with DurableAgents(url, {"desk": desk(tmp_path)}) as worker:
        monkeypatch.setattr(worker._log, "_writer", Refusing(worker._log._writer, full))
        run_id = await worker.start("desk", PROMPT)
        with pytest.raises(ToolcribError, match="the disk is full"):
            await worker.result(run_id)
        assert not (tmp_path / "effects").exists() or begun(tmp_path) == []
        full.clear()
        result, _ = await to_the_end(worker, run_id)
    assert result.text == "All done."
    assert len(begun(tmp_path)) == 3 == len(set(begun(tmp_path)))  # the first was not made


class Refusing:
    """A log's writer that takes nothing while the disk is full."""

    def __init__(self, writer: Any, full: list[bool]) -> None:
        self._writer = writer
        self._full = full

    def submit(self, item: Any) -> Any:
        if self._full:
            raise SourceError("the database cannot be used (SQLITE_FULL): the disk is full")
        return self._writer.submit(item)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


async def test_a_worker_of_another_clock_is_not_dead_as_long_as_it_beats(tmp_path: Path) -> None:
    store = RunStore(f"sqlite:///{tmp_path / 'runs.db'}")
    await store.beat("here", "a process")
    await store.beat("other", "a process")
    assert await store.dead("here", 30, lambda _process: False) == []
    assert await store.dead("here", 30, lambda _process: True) == ["other"]
    back = time.time() - 3_600
    await store._database.write("UPDATE durable_workers SET beat_at = :at", at=back + 7_200)
    assert await store.dead("here", 30, lambda _process: False) == [
        "other"
    ]  # the clock was set back
    await store.beat("other", "a process")
    assert await store.dead("here", 30, lambda _process: False) == []
    await store.aclose()


async def test_what_was_changed_in_the_store_does_not_go_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    client = DurableAgents(url, {"desk": desk(tmp_path)})
    run_id = await client.start("desk", PROMPT)
    state = RunState.from_json((await client.show(run_id)).state)
    changed = msgspec.structs.replace(state, caller=msgspec.structs.replace(state.caller, id="eve"))
    await client._store._database.write("UPDATE durable_runs SET state = :s", s=changed.to_json())
    async with DurableAgents(url, {"desk": desk(tmp_path)}) as worker:
        with pytest.raises(ToolcribError, match="the signature of the saved state does not fit"):
            await worker.result(run_id)
    other = Agent(desk(tmp_path).client, [], state_key=KEY[::-1])
    with pytest.raises(SourceError, match="signature"):
        DurableAgents(url, {"desk": other})._result(
            msgspec.structs.replace(await client.show(run_id), status="completed")
        )
    await client.aclose()
