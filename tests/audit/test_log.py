"""Writing and asking, on each database."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from audit.audit_helpers import record, write_calls
from rows import each_row
from waiting import until

from toolcrib.audit import AuditFilter, AuditLog, Head, verify_jsonl
from toolcrib.errors import ErrorCode, SourceError, ToolcribError
from toolcrib.storage import UnreachableError
from toolcrib.values.record import Ledger, ToolInvocationRecord


async def test_what_was_written_is_read_back(url: str) -> None:
    written = [record(1, "started"), record(1), record(2, "failed"), record(3, "waiting")]
    async with AuditLog(url) as log:
        assert isinstance(log, Ledger)
        assert log.write_ahead
        before = time.time()
        for each in written:
            await log.write(each)
        entries = await log.entries()
        assert [e.record for e in entries] == written
        assert [e.seq for e in entries] == [1, 2, 3, 4]
        assert all(before - 1 < e.at < time.time() + 1 for e in entries)
        assert [e.previous for e in entries[1:]] == [e.hash for e in entries[:-1]]
        assert await log.head() == Head(4, entries[-1].hash)
        assert (await log.verify()).ok


class Marked(str):
    """Text of a class of its own, as web frameworks and databases have it."""

    __slots__ = ()


# More than an index of PostgreSQL takes, even if it is compressed.
LONG = random.Random(20_261_122).randbytes(10_000).hex()  # noqa: S311  to be repeated
ODD = [
    {"result": {"big": 2**70, "small": -(2**70), "tiny": 1e-7, "whole": 3.0, "e": 1e300}},
    {"result": [None, True, "\0\x01\x7f\u2028", "Grüße 東京 🍵"]},
    {"caller": "nul\0led", "run_id": "\0", "id": "ключ", "idempotency_key": "a\0b"},
    {"caller": "'; DROP TABLE audit_entries; --"},
    {"id": LONG, "run_id": LONG[1:], "idempotency_key": LONG[2:], "caller": f"é{LONG}"},
    {"result": "e" * 4_000_000},
    {"caller": Marked("ada"), "run_id": Marked("run"), "id": Marked("é"), "result": Marked("x")},
    {"arguments": {"ﬀ": 1, "🍵": 2, "a": 3, "Z": {"null": None}}},
]


@pytest.mark.parametrize("given", ODD)
async def test_odd_content_is_kept_and_found(url: str, given: dict[str, Any]) -> None:
    one = record(1, **given)
    async with AuditLog(url) as log:
        assert await log.begin(one) is None
        assert await log.begin(one) == one
        assert await log.find(one.idempotency_key) == one
        found = await log.entries(AuditFilter(caller=one.caller, run_id=one.run_id, call_id=one.id))
        assert [e.record for e in found] == [one]
        assert (await log.verify()).fault is None


async def test_a_key_is_claimed_once(url: str) -> None:
    async with AuditLog(url) as log:
        assert await log.find("run_1/1") is None
        given = await asyncio.gather(*(log.begin(record(1, "started")) for _ in range(20)))
        assert given.count(None) == 1
        assert given.count(record(1, "started")) == 19
        assert len(await log.entries()) == 1
        await log.write(record(1))
        assert await log.begin(record(1, "started")) == record(1)
        assert await log.find("run_1/1") == record(1)


async def test_one_claim_that_is_late_fails_no_other(url: str) -> None:
    async with AuditLog(url) as log:
        await log.begin(record(3, "started"))
        given = await asyncio.gather(
            *(log.begin(record(at, "started")) for at in range(6)),
            *(log.write(record(at)) for at in range(6, 9)),
        )
        assert [answer is None for answer in given] == [True] * 3 + [False] + [True] * 5
        assert len(await log.entries()) == 9


@pytest.mark.parametrize(
    ("status", "key"), [("failed", ""), ("waiting", ""), ("waiting", "run_1/1")]
)
async def test_a_call_that_never_began_claims_nothing(url: str, status: Any, key: str) -> None:
    async with AuditLog(url) as log:
        await log.write(record(1, status, idempotency_key=key))
        assert await log.find("run_1/1") is None
        assert await log.begin(record(1, "started")) is None


async def test_without_a_key_nothing_is_claimed(url: str) -> None:
    async with AuditLog(url) as log:
        for _ in range(2):
            assert await log.begin(record(1, "started", idempotency_key="")) is None


FILTERS: list[tuple[AuditFilter, list[int]]] = [
    (AuditFilter(), [1, 2, 3, 4, 5, 6]),
    (AuditFilter(run_id="run_2"), [4]),
    (AuditFilter(call_id="call_1"), [1, 2]),
    (AuditFilter(tool="pay"), [5]),
    (AuditFilter(caller="ben"), [6]),
    (AuditFilter(caller="nobody"), []),
    (AuditFilter(status="failed"), [3]),
    (AuditFilter(code=ErrorCode.TOOL_ERROR), [3]),
    (AuditFilter(code=ErrorCode.TIMEOUT), []),
    (AuditFilter(run_id="run_1", status="completed"), [2, 5, 6]),
    (AuditFilter(after=4), [5, 6]),
    (AuditFilter(limit=2), [1, 2]),
    (AuditFilter(limit=0), []),
    (AuditFilter(newest=True, limit=2), [6, 5]),
    (AuditFilter(newest=True, after=4), [6, 5]),
    (AuditFilter(since=0.0, until=1.0), []),
    (AuditFilter(since=1.0), [1, 2, 3, 4, 5, 6]),
]


@each_row(("asked", "expected"), FILTERS)
async def test_filters(asked: AuditFilter, expected: list[int]) -> None:
    async with AuditLog("sqlite://") as log:
        await log.write(record(1, "started"))
        await log.write(record(1))
        await log.write(record(2, "failed"))
        await log.write(record(3, run_id="run_2"))
        await log.write(record(4, name="pay"))
        await log.write(record(5, caller="ben"))
        assert [e.seq for e in await log.entries(asked)] == expected
        lines = [one async for one in log.export(asked)]
        assert len(lines) == len(expected) + (2 if asked == AuditFilter() else 0)


async def test_the_time_of_writing_is_what_since_and_until_are_about(url: str) -> None:
    async with AuditLog(url) as log:
        await write_calls(log, range(2))
        at = [entry.at for entry in await log.entries()]
        assert [e.at for e in await log.entries(AuditFilter(since=at[1]))] == at[1:]
        assert [e.at for e in await log.entries(AuditFilter(until=at[1]))] == at[:1]


@pytest.mark.parametrize("asked", [AuditFilter(since=math.nan), AuditFilter(until=math.nan)])
async def test_what_is_no_time_is_no_filter(url: str, asked: AuditFilter) -> None:
    """Databases differ in what is before it."""
    async with AuditLog(url) as log:
        await log.write(record(1))
        with pytest.raises(ToolcribError, match="NaN is no time"):
            await log.entries(asked)


LATEST: list[tuple[AuditFilter, list[int]]] = [
    (AuditFilter(latest=True), [3, 4, 5, 6, 7]),
    (AuditFilter(latest=True, status="started"), [5]),
    (AuditFilter(latest=True, status="waiting"), [4, 7]),
    (AuditFilter(latest=True, newest=True, limit=2), [7, 6]),
    (AuditFilter(latest=True, until=4.0), [2, 3]),
    (AuditFilter(latest=True, run_id="run_2"), [4]),
]


@pytest.mark.parametrize(("asked", "expected"), LATEST)
async def test_what_is_overtaken_can_be_left_out(
    url: str, asked: AuditFilter, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = [
        record(1, "waiting"),
        record(1, "started"),
        record(2, "failed"),
        record(1, "waiting", run_id="run_2"),
        record(3, "started"),
        record(1),
        record(2, "waiting", id="call_4"),
    ]
    async with AuditLog(url) as log:
        for at, one in enumerate(written, start=1):
            monkeypatch.setattr("time.time", lambda at=at: at + 0.25)
            await log.write(one)
        assert [e.seq for e in await log.entries(asked)] == expected


@pytest.mark.parametrize("number", [2**63, 2**70, -(2**63) - 1])
async def test_a_number_that_no_entry_has(url: str, number: int) -> None:
    async with AuditLog(url) as log:
        await log.write(record(1))
        assert await log.entry(number) is None
        asked = AuditFilter(after=number, limit=2**70)
        assert [e.seq for e in await log.entries(asked)] == ([] if number > 0 else [1])
        assert await log.entries(AuditFilter(since=2**70)) == []


@pytest.mark.parametrize("key", ["", b""])
def test_an_empty_key_is_no_key(key: Any) -> None:
    with pytest.raises(ToolcribError, match="key is empty"):
        AuditLog("sqlite://", key=key)
    with pytest.raises(ToolcribError, match="key is empty"):
        verify_jsonl([], key=key)


@each_row("newest", [False, True])
@each_row("limit", [None, 500, 501, 1200])
@pytest.mark.exhaustive
async def test_pages_follow_each_other(newest: bool, limit: int | None) -> None:
    async with AuditLog("sqlite://") as log:
        await asyncio.gather(*(log.write(record(at)) for at in range(1100)))
        numbers = list(range(1, 1101))
        expected = (numbers[::-1] if newest else numbers)[:limit]
        asked = AuditFilter(newest=newest, limit=limit)
        assert [e.seq async for e in log.stream(asked)] == expected


async def test_one_entry_and_the_last_of_a_call(url: str) -> None:
    async with AuditLog(url) as log:
        await write_calls(log, range(3))
        second = await log.entry(4)
        assert second is not None
        assert second.record == record(1)
        assert await log.entry(7) is None
        assert await log.last("call_1") == second
        assert await log.last("call_1", run_id="run_1") == second
        assert await log.last("call_1", run_id="run_2") is None
        assert await log.last("call_9") is None


async def test_a_closed_log_opens_again(tmp_path: Any) -> None:
    log = AuditLog(f"sqlite:///{tmp_path}/crib.db")
    await log.aclose()
    await log.write(record(1))
    await log.aclose()
    await log.write(record(2))
    assert len(await log.entries()) == 2
    await log.aclose()


NOT_KEPT: list[dict[str, Any]] = [
    {"result": float("nan")},
    {"result": [float("inf")]},
    {"result": "\ud800"},
    {"result": {1: 2}},
    {"result": object()},
    {"arguments": [1]},
    {"id": 5},
    {"started_at": float("nan")},
    {"status": "odd"},
]


@each_row("given", NOT_KEPT)
async def test_what_could_not_be_read_again_fails_alone(given: dict[str, Any]) -> None:
    async with AuditLog("sqlite://") as log:
        answers = await asyncio.gather(
            log.write(record(1)),
            log.write(record(2, **given)),
            log.write(record(3)),
            return_exceptions=True,
        )
        assert answers[0] is answers[2] is None
        assert isinstance(answers[1], SourceError)
        assert answers[1].__context__ is None
        assert [e.record for e in await log.entries()] == [record(1), record(3)]


def test_a_record_without_much_in_it() -> None:
    bare = ToolInvocationRecord(id="c", name="t", status="completed", started_at=1.0)

    async def main() -> None:
        async with AuditLog("sqlite://") as log:
            await log.write(bare)
            assert (await log.entries())[0].record == bare

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize("entries", [0, 1])
async def test_a_database_that_accepts_no_writes_is_found_when_it_is_opened(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, entries: int
) -> None:
    """Before any call is made; what is in it can be read."""
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path}/crib.db"
        only_read = f"sqlite:///file:{tmp_path}/crib.db?mode=ro&uri=true"
    else:
        url = request.getfixturevalue("postgres")()
        only_read = f"{url}?options=-c%20default_transaction_read_only%3Don"
    async with AuditLog(url) as log:
        await log.open()
        await write_calls(log, range(entries))
        async with AuditLog(only_read) as other:
            with pytest.raises(UnreachableError, match=r"this user may not|it accepts no writes"):
                await other.open()
            assert len(await other.entries()) == 2 * entries


async def test_a_log_that_cannot_be_read_in_time_is_not_said_to_be_changed(
    postgres: Callable[[], str],
) -> None:
    """Another program holds a table for longer than a statement may take."""
    url = postgres()
    async with AuditLog(url) as log:
        await write_calls(log, range(1))
    hurried = f"{url}?options=-c%20statement_timeout%3D100"
    async with AuditLog(hurried) as log:
        with psycopg.connect(url.replace("+psycopg", "")) as other:
            other.execute("LOCK TABLE audit_entries IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(UnreachableError, match="57014"):
                await log.verify()
        assert (await log.verify()).ok


async def test_a_close_that_is_cancelled_writes_what_is_queued_and_closes(tmp_path: Path) -> None:
    log = AuditLog(f"sqlite:///{tmp_path}/crib.db")
    await log.open()
    commit, go_on = log._writer._commit, threading.Event()
    log._writer._commit = lambda items: commit(items) if go_on.wait(10) else []
    written = log.write(record())
    thread, closes = log._writer._thread, asyncio.create_task(log.aclose())
    await asyncio.sleep(0.05)
    closes.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closes
    go_on.set()
    await written
    await until(lambda: log._database._open is None)  # nobody waits for whoever closes it
    assert thread is not None
    assert not thread.is_alive()
    assert len(await log.entries()) == 1
    await log.aclose()
