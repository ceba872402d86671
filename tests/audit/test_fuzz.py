"""What the log says at the end is what the world's own ledger, a file, says: whatever comes between.

Two to four processes make the same calls and go on with the same runs, on one log. They are killed at
random points, their writes fail (a full disk, closed connections), and they ask again. A seeded sample
runs always, all of it with TOOLCRIB_FUZZ=all.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter, defaultdict
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psycopg
import pytest
from audit.fuzz_child import CALLS, NAMES, RUNS, prepare, run
from children import FORKS
from samples import WHOLE

from toolcrib.audit import AuditEntry, AuditFilter, AuditLog
from toolcrib.cli.audit import outcome, stories
from toolcrib.values.record import ToolInvocationRecord, is_final, standing

SEED = 20_261_122
SAMPLE = 1  # of each database, in the ordinary run
SEEDS_IN_ALL = 60
UNTOLD = {"outcome_unknown", "duplicate_call"}  # what says of no outcome what it was
GAPS = {"started", "waiting", "outcome_unknown"}  # what nobody is told of beside a final outcome
SEEDS = [
    pytest.param(seed, id=str(seed), marks=[pytest.mark.exhaustive] if seed >= SAMPLE else [])
    for seed in range(SEEDS_IN_ALL if WHOLE else SAMPLE)
]


def start(url: str, folder: Path, seed: int, *, faults: bool) -> ForkServerProcess:
    process = FORKS.Process(target=run, args=(url, folder, seed, faults))
    process.start()
    return process


def round_of(url: str, folder: Path, chance: random.Random, *, faults: bool) -> None:
    """Some processes at once, of which some are killed, each when so many more outcomes were told."""
    seeds = [chance.randrange(2**32) for _ in range(chance.randrange(2, 5))]
    children = [start(url, folder, seed, faults=faults) for seed in seeds]
    for child in children:
        if chance.random() < 0.5:
            until = told_so_far(folder) + chance.randrange(1, 20)
            while child.is_alive() and told_so_far(folder) < until:
                child.join(0.001)
            child.kill()
    for child in children:
        child.join(120)
        assert child.exitcode in (0, -signal.SIGKILL)


async def until_alone(url: str) -> None:
    """Wait until a server has done what those that were killed asked of it: they end connections."""
    if not url.startswith("postgresql"):
        return
    others = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    async with asyncio.timeout(60):
        while True:
            with (
                suppress(psycopg.errors.AdminShutdown),  # by the last of them
                psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection,
            ):
                if connection.execute(others).fetchone() == (0,):
                    return
            await asyncio.sleep(0.02)


def told_so_far(folder: Path) -> int:
    told = folder / "told"
    return told.read_bytes().count(b"\n") if told.exists() else 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
async def test_the_log_says_what_the_world_says(url: str, seed: int, tmp_path: Path) -> None:
    chance = random.Random(SEED + seed)  # noqa: S311  seeded, to be repeated
    await prepare(url, tmp_path)
    for faults in (True, chance.random() < 0.5):
        round_of(url, tmp_path, chance, faults=faults)
        await until_alone(url)
        await check(url, tmp_path)
    last = start(url, tmp_path, chance.randrange(2**32), faults=False)
    last.join(120)
    assert last.exitcode == 0
    records = await check(url, tmp_path)
    check_the_end(records)


Lines = dict[str, list[list[str]]]


def lines(file: Path) -> Lines:
    """By call; a line that a process could not finish is none."""
    found: Lines = defaultdict(list)
    for line in file.read_text(encoding="utf-8").splitlines():
        call_id, *said = line.split()
        found[call_id].append(said)
    return found


async def check(url: str, folder: Path) -> dict[str, list[ToolInvocationRecord]]:
    """The log against the world, and against what callers were told; the records of each call."""
    async with AuditLog(url) as log:
        assert (await log.verify()).fault is None
        entries = await log.entries()
        latest = await log.entries(AuditFilter(latest=True))
    by_call: dict[str, list[AuditEntry]] = defaultdict(list)
    for entry in entries:
        by_call[entry.record.id].append(entry)
    listed: dict[str, list[ToolInvocationRecord]] = defaultdict(list)
    for entry in latest:
        listed[entry.record.id].append(entry.record)
    world, told = lines(folder / "world"), lines(folder / "told")
    silent = {call_id for call_id, said in told.items() if all(s[0] in UNTOLD for s in said)}
    unseen = (silent | set(world)) - set(by_call)  # a read that was killed, or could not be written
    assert {NAMES[int(call_id.removeprefix("call_")) % 4] for call_id in unseen} <= {"look"}
    assert set(told) - silent <= set(by_call)
    for call_id, found in by_call.items():
        records = [entry.record for entry in found]
        check_call(records, [token for (token,) in world[call_id]], told[call_id])
        stands = standing(records)
        assert stories(found)[0].record == stands
        if is_final(stands):
            assert stands in listed[call_id]
            assert not {outcome(record) for record in listed[call_id]} & GAPS
    return {call_id: [entry.record for entry in found] for call_id, found in by_call.items()}


def check_call(
    records: list[ToolInvocationRecord], happened: list[str], told: list[list[str]]
) -> None:
    stands = standing(records)
    started = sum(record.status == "started" for record in records)
    name = records[0].name
    if name == "look":
        assert started == 0  # it is written down when it is over
    else:
        assert started >= len(happened)  # nothing happened that was not begun in the log
    if name not in ("put", "look"):
        assert started <= 1
        assert len(happened) <= 1
    for at, record in enumerate(records):
        assert record not in records[:at]  # also where nobody was told that it was written
        if record.status == "completed":
            assert record.result in happened
    for how, token in told:
        if how == "completed":  # who was told an outcome was told the one that stands
            assert (stands.status, stands.result) == ("completed", token)
        elif how == "tool_error":
            assert stands.error is not None
            assert stands.error.code == "tool_error"
            assert happened
        else:
            assert how in ("outcome_unknown", "duplicate_call", "cancelled", "already_used")


def check_the_end(records: dict[str, list[ToolInvocationRecord]]) -> None:
    """When nobody is killed and nothing fails any more, each call has come to one end."""
    assert len(records) == CALLS + RUNS
    ends = Counter[str]()
    for found in records.values():
        stands = standing(found)
        if stands.name in ("put", "look"):
            assert stands.status == "completed"
        elif not is_final(stands):
            assert stands.error is not None
            assert stands.error.code == "outcome_unknown"
        ends[stands.status if stands.error is None else stands.error.code] += 1
    assert (
        ends["completed"] >= CALLS / 2
    )  # kills can leave each call unknown that may not run again
