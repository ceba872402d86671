"""A database that goes away, a full disk, a clock that is set back: named, and nothing is lost."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
import psycopg
import pytest
from waiting import until

pytest.importorskip("dbos", reason="the extra durable is not installed")

from durable.desk import KEY, PROMPT, Model, desk
from postgres import OwnServer
from rows import each_row
from samples import WHOLE, whole_only
from sqlalchemy import event

from toolcrib import (
    ALL,
    Agent,
    Allow,
    Approve,
    Caller,
    Hydrated,
    Reply,
    RunResult,
    RunState,
    ToolRunner,
    tool,
)
from toolcrib.audit import AuditLog
from toolcrib.durable import DurableAgents
from toolcrib.durable.engine import Engine, _current_work
from toolcrib.durable.store import RunStore
from toolcrib.errors import SourceError, ToolcribError
from toolcrib.policies import Policy, budget
from toolcrib.spending import SpendStore
from toolcrib.storage import Transaction, UnreachableError
from toolcrib.testing import call
from toolcrib.values.message import ChatRequest


async def to_the_end(durable: DurableAgents, run_id: str) -> tuple[RunResult, list[str]]:
    """Go on with a run until it is over, and return the reasons for which it failed on its way."""
    reasons: list[str] = []
    async with asyncio.timeout(60):
        while True:
            try:
                result = await durable.result(run_id)
            except UnreachableError:
                await asyncio.sleep(0.1)
                continue
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


class Break(Protocol):
    """Takes the database away, and returns what gives it back."""

    def __call__(self) -> Callable[[], None]: ...


def full(disk: Path) -> Callable[[], None]:
    """Write until the disk takes no more."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65_536, 4_096, 1):
            with suppress(OSError):
                while file.write(b"x" * size) == size:
                    pass
    return filler.unlink


def limited(folder: Path) -> Callable[[], None]:
    """Let no file of this process grow beyond what the database's has."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    most = max(file.stat().st_size for file in folder.glob("runs.db*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(
    params=[whole_only("restarted"), "crashed", whole_only("full disk"), "limited files"]
)
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Break]]:
    """The URL of a database, and what makes it unusable."""
    file = f"sqlite:///{tmp_path / 'runs.db'}"
    match request.param:
        case "restarted" | "crashed" as how:
            server: OwnServer = request.getfixturevalue("own_server")
            mode = "fast" if how == "restarted" else "immediate"
            yield server.url, lambda: server.stop(mode)
        case "limited files":
            yield file, lambda: limited(tmp_path)
        case "full disk":
            disk = tmp_path / "disk"
            disk.mkdir()
            unmount = ["umount", "-l"]
            mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
            if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
                pytest.skip("only root may mount a small disk")
            yield f"sqlite:///{disk / 'runs.db'}", lambda: full(disk)
            subprocess.run([*unmount, str(disk)], check=True)


class Shop:
    """An agent in whose second turn the database goes away: as its model speaks, or a tool runs."""

    def __init__(self, where: str, breaks: Break) -> None:
        self.ran: list[str] = []
        self.away = asyncio.Event()
        self.repairs: Callable[[], None] = lambda: None
        self._where, self._breaks = where, breaks

    async def _at(self, where: str) -> None:
        if where == self._where and not self.away.is_set():
            self.repairs = await asyncio.to_thread(self._breaks)
            self.away.set()

    async def looks(self, hydrated: Hydrated, _context: object) -> Allow:
        await self._at(f"before {hydrated.arguments.get('to')}")
        return Allow()

    def agent(self, *policies: Policy) -> Agent:
        @tool(visible=ALL)
        async def pay(to: str) -> str:
            """Pay somebody."""
            self.ran.append(f"pay {to}")
            await self._at(f"pay {to}")
            return f"paid {to}"

        @tool(visible=ALL, read_only=True)
        async def look(what: str) -> str:
            """Look something up."""
            self.ran.append(f"look {what}")
            await self._at(f"look {what}")
            return f"seen {what}"

        class Speaks(Model):
            async def chat(model, request: ChatRequest) -> Reply:  # noqa: N805  two selves
                await self._at(f"turn {sum(m.role == 'assistant' for m in request.messages)}")
                return await super().chat(request)

        model = Speaks(
            [call("pay", to="ada")],
            [call("pay", to="bob"), call("look", what="bob")],
            [call("pay", to="eve")],
            "Done.",
        )
        return Agent(model, ToolRunner([pay, look], policy=policies), state_key=KEY)

    async def held_up(self, worker: DurableAgents) -> tuple[RunResult, list[str]]:
        """Return a run that the database was away in, and the reasons for which it failed."""
        run_id = await worker.start("shop", PROMPT, caller=Caller("ada"))
        async with asyncio.timeout(60):
            await self.away.wait()
        try:
            await asyncio.sleep(0.7)
        finally:
            await asyncio.to_thread(self.repairs)
        return await to_the_end(worker, run_id)


ALL_OF_IT = ["pay ada", "pay bob", "look bob", "pay eve"]
TOLD = ["paid ada", "paid bob", "seen bob", "paid eve"]


@pytest.mark.parametrize("where", [whole_only("turn 1"), "pay bob", whole_only("look bob")])
async def test_a_database_that_is_away_in_mid_run_holds_it_up_and_nothing_is_lost(
    broken: tuple[str, Break], where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The run stands still, the worker says why, and it ends as if nothing had been."""
    url, breaks = broken
    shop = Shop(where, breaks)
    async with DurableAgents(url, {"shop": shop.agent()}) as worker:
        result, reasons = await shop.held_up(worker)
        assert await worker.unknown_calls(result.state.run_id) == []
    assert (result.text, reasons) == ("Done.", [])
    assert [m.content for m in result.messages if m.role == "tool"] == TOLD
    assert sorted(shop.ran) == sorted(ALL_OF_IT)
    said = [r.getMessage() for r in caplog.records if r.name == "toolcrib.durable"]
    assert any("the database cannot be used" in each for each in said)
    async with AuditLog(url) as log:
        assert (await log.verify()).ok


@pytest.mark.parametrize("where", ["turn 1", whole_only("before bob")])
async def test_what_a_caller_spends_is_counted_when_its_database_is_there_again(
    broken: tuple[str, Break], where: str
) -> None:
    """The run waits for it as for its log: no reply is lost, and no call fails."""
    url, breaks = broken
    shop = Shop(where, breaks)
    async with SpendStore(url) as store:
        counts = budget(money=9, calls=9, per="caller", store=store, prices=lambda _used, _model: 1)
        async with DurableAgents(url, {"shop": shop.agent(shop.looks, counts)}) as worker:
            result, reasons = await shop.held_up(worker)
        assert (result.text, reasons) == ("Done.", [])
        assert [record.status for record in result.records] == ["completed"] * 4
        (spent,) = await store._database.read("SELECT count(*) AS calls FROM spent_calls")
        (asked,) = await store._database.read("SELECT count(*) AS requests FROM paid_requests")
        assert await store.paid("ada") == asked["requests"] == spent["calls"] == 4


class LostAnswers:
    """Has the answer to one write lost: it is committed, and the writer is told that the database is
    away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, which: int) -> None:
        self.seen = 0
        begin, commit = Transaction.begin, Transaction.commit
        writes: set[int] = set()

        def begun(transaction: Transaction, *, write: bool) -> None:
            (writes.add if write else writes.discard)(id(transaction))
            begin(transaction, write=write)

        def lost(transaction: Transaction) -> None:
            commit(transaction)
            self.seen += id(transaction) in writes
            if self.seen == which and id(transaction) in writes:
                raise UnreachableError("the database cannot be used: the answer was lost")

        monkeypatch.setattr(Transaction, "begin", begun)
        monkeypatch.setattr(Transaction, "commit", lost)


async def test_a_commit_whose_answer_is_lost_is_known_to_have_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was committed: a call that began is not taken for one that began elsewhere."""
    monkeypatch.setattr("toolcrib.durable.engine._LOOK_SECONDS", 0.01)
    monkeypatch.setattr("toolcrib.durable.agents._LOOK_SECONDS", 0.01)
    which, seen = 0, 7
    while seen > which:
        which += 1 if WHOLE else 7
        url = f"sqlite:///{tmp_path / f'runs{which}.db'}"
        shop = Shop("nowhere", lambda: lambda: None)
        async with SpendStore(url) as store:
            counts = budget(money=9, calls=9, per="caller", store=store, prices=lambda _u, _m: 1)
            async with DurableAgents(url, {"shop": shop.agent(counts)}) as worker:
                run_id = await worker.start("shop", PROMPT, caller=Caller("ada"))
                with monkeypatch.context() as patched:
                    lost = LostAnswers(patched, which)
                    result, reasons = await to_the_end(worker, run_id)
            assert (which, result.text, reasons) == (which, "Done.", [])
            assert [m.content for m in result.messages if m.role == "tool"] == TOLD, which
            assert await store.paid("ada") == 4, which
        assert sorted(shop.ran) == sorted(ALL_OF_IT), which
        seen = lost.seen
    assert which > 20


@pytest.mark.exhaustive
async def test_one_that_is_away_for_long_is_named_and_its_run_is_resumed(
    broken: tuple[str, Break], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.durable.engine.PATIENCE", 0.2)
    url, breaks = broken
    shop = Shop("turn 1", breaks)
    async with DurableAgents(url, {"shop": shop.agent()}) as worker:
        run_id = await worker.start("shop", PROMPT)
        await shop.away.wait()
        try:
            await asyncio.sleep(1.5)
        finally:
            await asyncio.to_thread(shop.repairs)
        result, reasons = await to_the_end(worker, run_id)
    assert all("the database cannot be used" in reason for reason in reasons)
    assert result.text == "Done."
    assert len(shop.ran) == len(set(shop.ran))


@pytest.mark.exhaustive
async def test_a_worker_ends_while_its_database_is_away(broken: tuple[str, Break]) -> None:
    """What it could not keep, another one takes up."""
    url, breaks = broken
    shop = Shop("pay bob", breaks)
    worker = DurableAgents(url, {"shop": shop.agent()})
    await worker.__aenter__()
    run_id = await worker.start("shop", PROMPT)
    await shop.away.wait()
    began = time.monotonic()
    try:
        await worker.stop(0.3)
        took = time.monotonic() - began
    finally:
        await asyncio.to_thread(shop.repairs)
    assert took < 20
    await worker.aclose()
    async with DurableAgents(url, {"shop": shop.agent()}, lease=1) as other:
        result, _ = await to_the_end(other, run_id)
    assert result.text == "Done."
    assert shop.ran.count("pay bob") == 1


@pytest.mark.exhaustive
async def test_a_clock_that_is_set_back_or_forward_loses_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, offset = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + offset[0])
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with DurableAgents(url, {"desk": desk(tmp_path)}) as worker:
        runs = []
        for day in (0, -2, -1, 0.5, -3):
            offset[0] = day * 86_400
            runs.append(await worker.start("desk", PROMPT))
            await asyncio.sleep(0.3)
        results = [await to_the_end(worker, run_id) for run_id in runs]
        assert [run.status for run in await worker.list()] == ["completed"] * 5
    assert [(result.text, reasons) for result, reasons in results] == [("All done.", [])] * 5
    assert len(begun(tmp_path)) == len(set(begun(tmp_path))) == 20
    async with AuditLog(url) as log:
        assert (await log.verify()).ok


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


async def test_a_worker_is_not_dead_between_two_beats_however_short_the_lease(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    store = RunStore(url)
    await store.beat("other", "a process")
    async with DurableAgents(url, {"desk": desk(tmp_path)}, lease=0.001) as worker:
        await worker.result(await worker.start("desk", PROMPT))  # it has looked after others by now
    assert "other" in await store.dead("here", 0, lambda _process: True)  # those that are known
    await store.aclose()


async def test_what_was_changed_in_the_store_does_not_go_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    client = DurableAgents(url, {"desk": desk(tmp_path)})
    run_id = await client.start("desk", PROMPT)
    state = RunState.from_json((await client.show(run_id)).state)
    changed = msgspec.structs.replace(state, caller=msgspec.structs.replace(state.caller, id="eve"))
    await client._store._database.write("UPDATE durable_runs SET state = :s", s=changed.to_json())
    async with DurableAgents(url, {"desk": desk(tmp_path)}) as worker:
        with pytest.raises(ToolcribError, match="the signature of the saved state does not match"):
            await worker.result(run_id)
    other = Agent(desk(tmp_path).client, [], state_key=KEY[::-1])
    with pytest.raises(SourceError, match="signature"):
        await DurableAgents(url, {"desk": other}).result(run_id)
    await client.aclose()


@pytest.mark.parametrize("changed", ["state", "caller"])
async def test_a_state_goes_on_in_its_own_run_alone(changed: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    client = DurableAgents(url, {"desk": desk(tmp_path)})
    run_id, other = [await client.start("desk", PROMPT) for _ in range(2)]
    value = (await client.show(other)).state if changed == "state" else "root"
    write = f"UPDATE durable_runs SET {changed} = :value WHERE id = :id"  # noqa: S608  of ours
    await client._store._database.write(write, value=value, id=run_id)
    async with DurableAgents(url, {"desk": desk(tmp_path)}) as worker:
        with pytest.raises(ToolcribError, match="belongs to another run or another caller"):
            await worker.result(run_id)
        assert (await worker.result(other)).status == "waiting"
    await client.aclose()


async def test_what_is_given_back_while_the_engine_closes_is_closed(tmp_path: Path) -> None:
    """As by a thread of DBOS that ends by itself: it has been let back in, and is not in yet."""
    worker = Engine(f"sqlite:///{tmp_path / 'runs.db'}", 1, ())
    opened, given_back, go_on = worker._open_engine(), threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        given_back.set()
        go_on.wait(10)

    event.listen(opened, "checkin", wait)
    used = opened.raw_connection()
    kept: Any = used.driver_connection
    thread = threading.Thread(target=used.close)
    thread.start()
    await until(given_back.is_set)
    closes = asyncio.create_task(worker.aclose())
    await asyncio.sleep(0.05)
    go_on.set()
    await closes
    thread.join()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        kept.execute("SELECT 1")


@pytest.mark.parametrize("claimed", ["in the store", "by the engine"])
async def test_a_run_that_a_forgotten_worker_has_goes_on(tmp_path: Path, claimed: str) -> None:
    """A thread of a worker may claim it when others have already taken over what it had."""
    url, begun = f"sqlite:///{tmp_path / 'runs.db'}", asyncio.Event()

    @tool(visible=ALL, read_only=True)
    async def look() -> str:
        """Look."""
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(60)
        return "seen"

    agents = {"a": Agent(Model(call("look"), "Over."), [look], state_key=KEY)}
    client = DurableAgents(url, agents)
    run_id = await client.start("a", PROMPT)
    if claimed == "in the store":
        begun.set()
        assert await client._store._database.write("UPDATE durable_runs SET worker = 'gone'") == 1
    else:
        async with asyncio.timeout(20), DurableAgents(url, agents) as worker:
            await begun.wait()
            await worker.stop(0)
        assert await client._store._database.write("DELETE FROM durable_workers") == 1
    async with asyncio.timeout(20), DurableAgents(url, agents) as other:
        assert (await other.result(run_id)).text == "Over."
    await client.aclose()


@each_row("when", [1, 2, 3, 5, 10, 50, 200])
async def test_a_worker_that_is_cancelled_as_it_closes_closes_whole(
    tmp_path: Path, when: int
) -> None:
    worker = DurableAgents(f"sqlite:///{tmp_path / 'runs.db'}", {"desk": desk(tmp_path)})
    await worker.__aenter__()
    closes = asyncio.create_task(worker.aclose())
    for _ in range(when):
        await asyncio.sleep(0)
    for _ in range(2):
        closes.cancel()
        await asyncio.sleep(0)
    with suppress(asyncio.CancelledError):
        await closes
    assert worker._serving is None
    assert worker._engine._database is None
    assert worker._store._database._open is None
    assert _current_work == []


async def test_a_worker_that_cannot_begin_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = DurableAgents(f"sqlite:///{tmp_path / 'runs.db'}", {"desk": desk(tmp_path)})

    async def fail(*_: object) -> None:
        raise UnreachableError("no")

    monkeypatch.setattr(worker._engine, "open", fail)
    with pytest.raises(UnreachableError, match="no"):
        await worker.__aenter__()
    assert worker._store._database._open is None


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("begin", [None]),
        ("write", [None]),
        ("find", ["call_1"]),
        ("last", ["call_1"]),
        ("write_run", [None]),
        ("attach", [None]),
    ],
)
async def test_whatever_a_run_asks_of_its_log_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, given: list[Any]
) -> None:
    asked: list[object] = []

    async def away_once(_log: AuditLog, *given: object, **_named: object) -> None:
        asked.append(given)
        if len(asked) == 1:
            raise UnreachableError("the database cannot be used: it is away")

    monkeypatch.setattr(AuditLog, name, away_once)
    client = DurableAgents(f"sqlite:///{tmp_path / 'runs.db'}", {"desk": desk(tmp_path)})
    assert await getattr(client._log, name)(*given) is None
    assert len(asked) == 2
    await client.aclose()


async def test_a_text_that_no_database_can_hold_ends_its_run(postgres: Callable[[], str]) -> None:
    """Its NUL is kept where the messages are, as JSON."""
    said = "Hello \0 there"
    agent = Agent(Model(said), ToolRunner([]), state_key=KEY)
    async with DurableAgents(postgres(), {"desk": agent}) as worker:
        result = await worker.result(await worker.start("desk", PROMPT))
        assert (result.status, result.text) == ("completed", said)
        shown = await worker.show(result.state.run_id)
        assert shown.text == "Hello ? there"
