"""The audit log under 50 concurrent calls, and how fast it is verified.

Each call makes two records: its intent, and its outcome; both are on disk before it is over. Through
the runner, and the log alone. The floor is bare sqlite3, 50 records at a time, synchronous FULL: what
the disk allows. The best of three rounds, which take turns, by the clock and by the CPU (µs a record,
of this process; it tells more where others use the machine, too). PostgreSQL too, with its URL as
the first argument: `python benchmarks/bench_audit.py postgresql+psycopg://…`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import msgspec

from toolcrib import ALL, Completed, ToolCall, ToolRunner, tool
from toolcrib.audit import AuditLog
from toolcrib.runner import CallScope
from toolcrib.values.context import RunTally
from toolcrib.values.record import ToolInvocationRecord

ROUNDS = 3
CALLS = 2000
TOGETHER = 50
REACH = {"through the runner": 5000, "verify": 66_000}
ARGUMENTS = '{"query":"the price of tea in china","limit":10}'


@tool(visible=ALL)
async def search(query: str, limit: int) -> dict[str, int]:
    """Look something up."""
    return {"found": len(query) + limit}


class Speed(NamedTuple):
    """Records a second, and what one costs."""

    rate: float
    cpu: float


class Watch:
    """From its making on."""

    def __init__(self) -> None:
        self._clock, self._cpu = time.perf_counter(), time.process_time()

    def speed(self, records: int) -> Speed:
        rate = records / (time.perf_counter() - self._clock)
        return Speed(rate, (time.process_time() - self._cpu) / records * 1e6)


async def _together(call: Callable[[int], Awaitable[object]]) -> Speed:
    """Two records a call, and as many calls at once as there are workers."""
    numbers = iter(range(CALLS))

    async def work() -> None:
        for number in numbers:
            await call(number)

    watch = Watch()
    await asyncio.gather(*(work() for _ in range(TOGETHER)))
    return watch.speed(2 * CALLS)


async def _through_the_runner(log: AuditLog) -> Speed:
    runner = ToolRunner([search], sinks=[log], concurrency=TOGETHER)
    scope = CallScope(RunTally(run_id=uuid4().hex, started=time.monotonic()))

    async def call(number: int) -> None:
        given = ToolCall(f"call_{number}", "search", ARGUMENTS)
        assert isinstance(await runner.exec(given, scope=scope), Completed)

    return await _together(call)


async def _alone(log: AuditLog) -> Speed:
    known = (await log.entries())[-1].record
    run = uuid4().hex

    async def call(number: int) -> None:
        key = f"{run}/{number}"
        one: ToolInvocationRecord = msgspec.structs.replace(known, idempotency_key=key)
        assert await log.begin(msgspec.structs.replace(one, status="started")) is None
        await log.write(one)

    return await _together(call)


async def _verified(log: AuditLog) -> Speed:
    watch = Watch()
    found = await log.verify()
    assert found.ok
    return watch.speed(found.checked)


def _floor(path: Path) -> Speed:
    """One table without an index, one statement; the texts are as long as a record's."""
    rows = [(number, "x" * 900) for number in range(2 * CALLS)]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE entries (seq INTEGER PRIMARY KEY, record TEXT)")
        watch = Watch()
        for first in range(0, len(rows), TOGETHER):
            with connection:
                batch = rows[first : first + TOGETHER]
                connection.executemany("INSERT INTO entries VALUES (?, ?)", batch)
        return watch.speed(len(rows))


@asynccontextmanager
async def _log(url: str | None) -> AsyncIterator[tuple[AuditLog, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        async with AuditLog(
            url or f"sqlite:///{folder}/crib.db", key="a key of sixteen bytes"
        ) as log:
            yield log, Path(folder)


async def _measure(url: str | None) -> dict[str, Speed]:
    best: dict[str, Speed] = {}
    for _ in range(ROUNDS):
        async with _log(url) as (log, folder):
            found = {} if url else {"floor": _floor(folder / "floor.db")}
            found["through the runner"] = await _through_the_runner(log)
            found["the log alone"] = await _alone(log)
            found["verify"] = await _verified(log)
        for name, (rate, cpu) in found.items():
            known = best.get(name, Speed(0, cpu))
            best[name] = Speed(max(rate, known.rate), min(cpu, known.cpu))
    return best


async def main() -> None:
    print(f"{'records/s':<34}{'found':>10}{'reach':>10}{'CPU µs':>10}")
    for url in (None, *sys.argv[1:2]):
        name = "PostgreSQL" if url else "SQLite"
        for what, (rate, cpu) in (await _measure(url)).items():
            reach = REACH.get(what, "–") if url is None else "–"
            print(f"{name + ', ' + what:<34}{rate:>10.0f}{reach:>10}{cpu:>10.1f}")


if __name__ == "__main__":
    asyncio.run(main())
