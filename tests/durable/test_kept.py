"""What is kept of a run is never lost, whatever ends the run while it takes that up: it is resumed with
all of it, and a run that was cancelled says all that it has done."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from children import Talking
from samples import sampled

pytest.importorskip("dbos", reason="the extra durable is not installed")

from durable.desk import KEY, Model
from durable.till import RUNS, PaidTill, Till, paying, till

from toolcrib import Agent, Limits, RunResult
from toolcrib.audit import AuditLog
from toolcrib.durable import DurableAgents, engine
from toolcrib.durable.engine import Engine, Ownership, Segment, StoredStep
from toolcrib.durable.store import RunStore, StoredRun
from toolcrib.errors import ErrorCode, SourceError, ToolcribError
from toolcrib.storage import UnreachableError
from toolcrib.values.record import ToolInvocationRecord
from toolcrib.values.run import RunRecord

PAYMENTS = range(1, 7)
"""The calls of each run, of which a worker was killed in one; or behind all of them."""
CUT: dict[int, Iterable[int]] = {
    1: (),
    2: (1, 3),
    3: (1, 2),
    4: (1, 2, 3, 5, 6),
    5: (1, 2, 3, 4),
    6: (1, 2, 3, 4, 5),
    7: PAYMENTS,
}
"""By the payment that hangs, those that have ended by then."""


class Away(AuditLog):
    """A log of the agent's own that cannot be used."""

    async def begin(self, entry: ToolInvocationRecord) -> ToolInvocationRecord | None:
        raise SourceError("the log is away")

    async def write(self, record: ToolInvocationRecord) -> ToolInvocationRecord | None:
        raise SourceError("the log is away")

    async def find(self, call: ToolInvocationRecord | str) -> ToolInvocationRecord | None:
        raise SourceError("the log is away")


def paid(folder: Path, what: str, run_id: str) -> Counter[int]:
    """Return how often each payment of a run has begun, or ended, in the world."""
    file = folder / "paid"
    told = [line.split() for line in file.read_text("utf-8").splitlines()] if file.exists() else []
    return Counter(int(n) for which, run, n in told if (which, run) == (what, run_id))


async def killed(url: str, folder: Path) -> None:
    """Begin all runs in a worker, and kill it when each of them hangs."""
    client = paying(url, folder)
    with Talking("-m", "durable.till", url, str(folder)) as child:
        assert (await asyncio.to_thread(child.stdout.readline)) == "ready\n"
        for run_id in RUNS:
            await client.start("till", "Pay.", run_id=run_id)
        async with asyncio.timeout(60):
            for run_id, at in RUNS.items():
                while not (hangs(folder, run_id, at) and await kept(client, run_id) == {*CUT[at]}):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        child.kill()
        await asyncio.to_thread(child.wait)
    await client.aclose()


async def kept(client: DurableAgents, run_id: str) -> set[int]:
    steps = await client._engine.steps(run_id, 0)
    return {number(step.call.record) for step in steps if step.call is not None}


def number(record: ToolInvocationRecord) -> int:
    """Return which payment a call makes."""
    return int(str((record.arguments or {})["n"]))


def hangs(folder: Path, run_id: str, at: int) -> bool:
    return at == 7 or bool(paid(folder, "begin", run_id)[at])


def check_said(records: Iterable[ToolInvocationRecord], at: int, begun: Iterable[int]) -> None:
    """Check that they have each payment that has ended before, as that, and each that has begun."""
    said = {number(record): record for record in records}
    assert {n for n, record in said.items() if record.status == "completed"} >= {*CUT[at]}, at
    assert said.keys() >= {*begun}, at
    for n, record in said.items():
        if record.error is not None and n in {*begun}:
            assert record.error.code is ErrorCode.OUTCOME_UNKNOWN


async def ended(client: DurableAgents, run_id: str) -> RunResult | None:
    """Return how a run ended; None where it failed."""
    try:
        return await client.result(run_id)
    except ToolcribError as error:
        assert f"run {run_id} failed" in str(error)  # noqa: PT017
        return None


async def known(client: DurableAgents, result: RunResult) -> list[ToolInvocationRecord]:
    """Return the calls that a run says it has made, and those of which it says that nobody knows."""
    run_id, found = result.state.run_id, {record.id: record for record in result.records}
    ledger = client._agents["till"].runner.ledger
    for record in () if isinstance(ledger, Away) else await client.unknown_calls(run_id):
        found.setdefault(record.id, record)
    return [*found.values()]


def told(result: RunResult) -> set[int]:
    """Return the payments of which the model is told what they gave."""
    records = {record.id: record for record in result.records}
    return {number(records[m.call_id]) for m in result.messages if m.call_id in records}


async def cancel(client: DurableAgents, folder: Path, *, fails: bool, resumes: bool) -> None:
    """Cancel each run that is not over, and check that it says what it has done."""
    for run_id, at in RUNS.items():
        try:
            await client.cancel(run_id)
        except ToolcribError as error:
            assert "is over" in str(error)  # noqa: PT017
            continue
        result = await client.result(run_id)
        assert result.status == "cancelled"
        assert fails or {*CUT[at]} <= told(result)
        check_said(await known(client, result), at, paid(folder, "begin", run_id))
        if resumes:
            await client.resume(run_id)


ENDS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "fewer turns": {"limits": Limits(turns=1)},
    "fewer calls": {"limits": Limits(calls=1)},
    "less time": {"limits": Limits(seconds=0.001)},
    "no such till": {"given": False},
    "its log is away": {"log": Away},
}


FAILS = ("no such till", "its log is away")
CASES = product(ENDS, ("never", "before", "meanwhile"))


@pytest.mark.parametrize(("ends", "cancelled"), sampled(CASES, part=6))
async def test_what_is_kept_is_taken_up_whatever_ends_a_run_before_that(
    tmp_path: Path, ends: str, cancelled: str
) -> None:
    url, log_url = f"sqlite:///{tmp_path / 'runs.db'}", f"sqlite:///{tmp_path / 'log.db'}"
    chance = random.Random(f"{ends} {cancelled}")  # noqa: S311
    await killed(url, tmp_path)
    made = dict(ENDS[ends])
    log = made.pop("log", AuditLog)(log_url)
    first = paying(url, tmp_path, log=log, **made)
    if cancelled == "before":
        for run_id in RUNS:
            await first.cancel(run_id)
    async with log, first:
        for resumes in (True, True, False) if cancelled == "meanwhile" else ():
            await asyncio.sleep(chance.uniform(0, 0.4))
            await cancel(first, tmp_path, fails=ends in FAILS, resumes=resumes)
        for run_id, at in RUNS.items():
            result = await ended(first, run_id)
            if result is not None:
                check_said(await known(first, result), at, paid(tmp_path, "begin", run_id))
            if ends not in FAILS:
                assert result is not None
                assert {*CUT[at]} <= told(result)
    async with AuditLog(log_url) as log, paying(url, tmp_path, log=log) as right:
        for run_id in RUNS:
            if (await right.show(run_id)).status != "completed":
                await right.resume(run_id)
        for run_id, at in RUNS.items():
            result = await right.result(run_id)
            begun = paid(tmp_path, "begin", run_id)
            assert (result.status, result.text) == ("completed", "Done.")
            assert begun.total() == len(begun)
            check_said(result.records, at, begun)
            assert len(result.records) == len(PAYMENTS)


async def test_a_run_that_is_cancelled_before_it_goes_on_says_what_it_did_before(
    tmp_path: Path,
) -> None:
    """It was cancelled and resumed, and no worker has begun with it: it has done no more since."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    await killed(url, tmp_path)
    log = AuditLog(f"sqlite:///{tmp_path / 'log.db'}")
    async with log:
        client = paying(url, tmp_path, log=log)
        for run_id in RUNS:
            await client.cancel(run_id)
        async with client:
            before = [await client.result(run_id) for run_id in RUNS]
        client = paying(url, tmp_path, log=log)
        for run_id, known in zip(RUNS, before, strict=True):
            await client.resume(run_id)
            with pytest.raises(ToolcribError, match="is not finished"):
                await client.fork(run_id, turn=0)
            await client.cancel(run_id)
            result = await client.result(run_id)
            assert (result.records, result.messages) == (known.records, known.messages)
            assert await client.fork(run_id, turn=0)
        await client.aclose()


class Slow(AuditLog):
    async def write(self, record: ToolInvocationRecord) -> ToolInvocationRecord | None:
        await asyncio.sleep(1)
        return await super().write(record)


async def test_a_run_that_is_cut_while_it_takes_up_what_is_kept_says_what_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cancelled, and what its worker takes up got nowhere for long."""
    url, log_url = f"sqlite:///{tmp_path / 'runs.db'}", f"sqlite:///{tmp_path / 'log.db'}"
    await killed(url, tmp_path)
    run_id, at = "till_7", 7
    monkeypatch.setattr("toolcrib.durable.engine.PATIENCE", 0.3)
    async with Slow(log_url) as log:
        client = paying(url, tmp_path, log=log)
        await client.cancel(run_id)
        async with client:
            result = await client.result(run_id)
            assert (result.status, result.state.turn) == ("cancelled", 0)
            check_said(result.records, at, CUT[at])
            with pytest.raises(
                ToolcribError, match="does not hold all that it did: resume it first"
            ):
                await client.fork(run_id, turn=0)
    async with AuditLog(log_url) as whole, paying(url, tmp_path, log=whole) as client:
        await client.resume(run_id)
        result = await client.result(run_id)
        assert (result.status, len(result.records)) == ("completed", len(PAYMENTS))
    assert set(paid(tmp_path, "begin", run_id).values()) == {1}


@dataclass
class Euros:
    euros: int


@dataclass
class Cents:
    cents: int


async def test_an_end_ahead_of_what_is_kept_is_none(tmp_path: Path) -> None:
    """A version that takes an answer of which the model was told that it is none is another program."""
    url, asked = f"sqlite:///{tmp_path / 'runs.db'}", list[int]()

    def version(output: type, stops_at: int = -1) -> DurableAgents:
        def before(turn: int) -> None:
            asked.append(turn)
            durable._steps.stops = turn == stops_at  # no step begins after this reply

        model = Model('{"cents": 7}', '{"pounds": 8}', '{"euros": 9}', before=before)
        durable = DurableAgents(url, {"a": Agent(model, state_key=KEY, output=output)})
        return durable

    async with version(Euros, 1) as older:
        run_id = await older.start("a", "How much?")
        while len(await older._engine.steps(run_id, 0)) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    async with version(Cents) as newer:
        with pytest.raises(ToolcribError, match="would be completed before its step 2 in"):
            await newer.result(run_id)
    async with version(Euros) as older:
        await older.resume(run_id)
        assert (await older.result(run_id)).output == Euros(9)
    assert asked == [0, 1, 2]


async def test_a_run_is_not_stopped_before_it_is_known_what_is_kept_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cancelled, and its worker takes longer to read its steps than to see that, or than a
    segment may get nowhere."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    await killed(url, tmp_path)
    read = Engine.steps

    async def slowly(self: Engine, run_id: str, segment: int, skipped: int = 0) -> list[StoredStep]:
        await asyncio.sleep(2.5)
        return await read(self, run_id, segment, skipped)

    monkeypatch.setattr(Engine, "steps", slowly)
    monkeypatch.setattr(engine, "PATIENCE", 2)
    log = AuditLog(f"sqlite:///{tmp_path / 'log.db'}")
    async with log, paying(url, tmp_path, log=log) as client:
        for run_id in RUNS:
            await client.cancel(run_id)
        for run_id, at in RUNS.items():
            result = await client.result(run_id)
            assert (result.status, {*CUT[at]} - told(result)) == ("cancelled", set())


class SlowToWrite(AuditLog):
    """A log of which each write takes a while."""

    async def write(self, record: ToolInvocationRecord) -> ToolInvocationRecord | None:
        await asyncio.sleep(0.3)
        return await super().write(record)


@pytest.mark.parametrize("seconds", sampled((0.2, 0.5, 0.8, 1.1, 1.4, 1.7, 2.0), part=7))
async def test_a_worker_that_stops_while_it_takes_up_a_cancelled_run_leaves_it_to_others(
    tmp_path: Path, seconds: float
) -> None:
    url, log_url = f"sqlite:///{tmp_path / 'runs.db'}", f"sqlite:///{tmp_path / 'log.db'}"
    await killed(url, tmp_path)

    async def work() -> None:
        log = SlowToWrite(log_url)
        async with log, paying(url, tmp_path, log=log) as client:
            for run_id in RUNS:
                await client.cancel(run_id)
            await asyncio.sleep(seconds)

    await asyncio.to_thread(asyncio.run, work())  # which ends what is left in its loop
    log = AuditLog(log_url)
    async with log, paying(url, tmp_path, log=log) as client:
        for run_id, at in RUNS.items():
            result = await client.result(run_id)
            assert (result.status, {*CUT[at]} - told(result)) == ("cancelled", set())


async def test_no_step_begins_while_a_kept_one_is_read() -> None:
    """One that the run has come to while it was looked whether it goes on, too."""
    looks, happened = asyncio.Event(), []

    async def look() -> Ownership:
        happened.append("looks")
        await looks.wait()
        return "owned"

    segment = Segment(("run", 0), "fence", 0, lambda *_: "", look)
    segment.set_stored({}, [2])
    checked = asyncio.create_task(segment.check())
    await asyncio.sleep(0.01)
    with segment.at_step(2):
        looks.set()
        await asyncio.sleep(0.05)
        assert not checked.done()
    await checked
    assert happened == ["looks", "looks"]


AT_ONCE = (1, True)
"""Who has lost the run and who has it now are both here for longest, in the first payment."""


@pytest.mark.parametrize(
    ("at", "dead"),
    dict.fromkeys((AT_ONCE, *sampled(product(PAYMENTS, (False, True)), part=6))),
    ids=str,
)
async def test_a_worker_that_works_again_does_no_more_of_what_it_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, dead: bool
) -> None:
    """It was stopped, or taken for dead. Its places are free again, and what goes on of before is
    neither kept nor made twice."""
    pay, run_id, slow = PaidTill.pay, "till_7", asyncio.Event()

    async def slowly(self: PaidTill, n: int, run_id: str) -> str:
        if n == at and not slow.is_set():
            slow.set()
            self._tell(f"begin {run_id} {n}")
            await asyncio.sleep(0.5)
            self._tell(f"end {run_id} {n}")
            return f"paid {n}"
        await asyncio.sleep(0.1)
        return await pay(self, n, run_id)

    monkeypatch.setattr(PaidTill, "pay", slowly)
    agents = {"till": till(tmp_path)}
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    client = DurableAgents(
        url, agents, slots=2 if dead else 1, deps=lambda _run: {Till: PaidTill(tmp_path)}
    )
    async with client:
        await client.start("till", "Pay.", run_id=run_id)
        await slow.wait()
        if dead:  # another worker takes it for that, and has its segment done again
            await client._engine.recover([client._worker])
            await client.result(run_id)
        else:
            assert not await client.stop(0)
    async with client:
        result = await client.result(run_id)
        await asyncio.sleep(0.5)
        assert await client.result(run_id) == result
    begun = paid(tmp_path, "begin", run_id)
    assert begun.total() == len(begun)
    assert result.status == "completed"
    assert {number(each) for each in result.records if each.status == "completed"} <= {*begun}
    unknown = sorted(number(each) for each in result.records if each.status != "completed")
    assert dead or at in unknown  # of who is not dead, it may have been kept in time
    assert len(unknown) <= 3  # some have begun together
    assert len(result.records) == len(PAYMENTS)


class LateToSay(AuditLog):
    """A log that notes the end of a run only when its worker stops."""

    ends: asyncio.Event
    stops: asyncio.Event

    async def write_run(self, record: RunRecord) -> None:
        if record.status != "running":
            self.ends.set()
            await self.stops.wait()


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_run_that_ends_while_its_worker_stops_ends_or_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    """Its steps are all behind it, and the worker does not wait for it any more."""
    url, log = f"sqlite:///{tmp_path / 'runs.db'}", f"sqlite:///{tmp_path / 'log.db'}"
    late, leave = LateToSay(log), Segment.leave
    late.ends, late.stops = asyncio.Event(), asyncio.Event()

    def leaves(segment: Segment) -> None:
        leave(segment)
        late.stops.set()

    monkeypatch.setattr(Segment, "leave", leaves)
    async with late, paying(url, tmp_path, log=late) as client:
        await client.start("till", "Pay.", run_id="till_7")
        await late.ends.wait()
        if cancelled:
            await client.cancel("till_7")
        assert await client.stop()
        await asyncio.sleep(0.1)
    own = AuditLog(log)
    async with own, paying(url, tmp_path, log=own) as client, asyncio.timeout(30):
        result = await client.result("till_7")
    assert result.status == ("cancelled" if cancelled else "completed")
    assert {number(record) for record in result.records} == {*PAYMENTS}


async def test_a_segment_that_was_taken_over_before_it_began_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker could not reach the store, was taken for dead, and has been given it once more."""
    url, run_id, tries = f"sqlite:///{tmp_path / 'runs.db'}", "till_7", asyncio.Event()
    again, begin = asyncio.Event(), RunStore.begin
    fences: list[str] = []

    async def away_once(self: RunStore, run_id: str, segment: int, fence: str) -> StoredRun | None:
        if not tries.is_set():
            tries.set()
            await again.wait()
            raise UnreachableError("the database cannot be used: it is away")
        fences.append(fence)
        return await begin(self, run_id, segment, fence)

    monkeypatch.setattr(RunStore, "begin", away_once)
    async with paying(url, tmp_path) as client:
        await client.start("till", "Pay.", run_id=run_id)
        await tries.wait()
        await client._engine.recover([client._worker])
        while not fences:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        again.set()
        result = await client.result(run_id)
        await asyncio.sleep(0.3)
    assert (result.status, len(fences)) == ("completed", 1)
    assert paid(tmp_path, "begin", run_id) == Counter(PAYMENTS)


async def test_agents_that_work_are_not_opened_twice(tmp_path: Path) -> None:
    """Who tries is told so, and the work goes on."""
    async with paying(f"sqlite:///{tmp_path / 'runs.db'}", tmp_path) as client:
        with pytest.raises(ToolcribError, match="already working"):
            await client.__aenter__()
        await client.start("till", "Pay.", run_id="till_7")
        assert (await client.result("till_7")).status == "completed"


async def test_agents_that_are_opened_twice_at_once_work_once(tmp_path: Path) -> None:
    worker = DurableAgents(f"sqlite:///{tmp_path / 'runs.db'}", {"till": till(tmp_path)})
    first, second = await asyncio.gather(
        worker.__aenter__(), worker.__aenter__(), return_exceptions=True
    )
    assert first is worker
    assert "already working" in str(second)
    async with asyncio.timeout(20):
        await worker.start("till", "Pay.", run_id="till_7")
        assert (await worker.result("till_7")).status == "completed"
    await worker.aclose()


@pytest.mark.parametrize("stop", ["stop", "aclose"])
async def test_agents_that_are_stopped_as_they_open_hold_no_run(tmp_path: Path, stop: str) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    worker = DurableAgents(url, {"till": till(tmp_path)})
    opening = asyncio.create_task(worker.__aenter__())
    await asyncio.sleep(0)
    await getattr(worker, stop)()
    with pytest.raises(ToolcribError, match="stopped before they began to work"):
        await opening
    async with asyncio.timeout(20), paying(url, tmp_path) as other:
        await other.start("till", "Pay.", run_id="till_7")
        assert (await other.result("till_7")).status == "completed"
    async with asyncio.timeout(20), worker:  # and may be opened again
        assert (await worker.result("till_7")).status == "completed"
