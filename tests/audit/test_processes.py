"""Two processes write to one log at once, from the creation of its tables on."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from audit.audit_helpers import record
from audit.writing_child import SHARED
from children import together
from samples import sample

from toolcrib.audit import AuditLog, SigningKey
from toolcrib.errors import SourceError
from toolcrib.values.record import RecordStatus


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
async def test_two_processes_share_one_chain_and_claim_each_key_once(url: str) -> None:
    said = await asyncio.to_thread(together, *[("-m", "audit.writing_child", url)] * 2)
    told = [int(number) for out in said for number in out.split()]
    assert sorted(told) == list(range(SHARED))
    async with AuditLog(url) as log:
        assert (await log.verify()).fault is None
        entries = await log.entries()
    assert [entry.seq for entry in entries] == list(range(1, SHARED + 201))
    assert max(Counter((e.record.id, e.record.status) for e in entries).values()) == 1


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
async def test_two_that_take_turns_follow_from_each_other(url: str) -> None:
    """However much the other has written meanwhile: within what is read ahead, and beyond it."""
    async with AuditLog(url, key="k" * 16) as one, AuditLog(url, key="k" * 16) as other:
        number = 0
        for many in (1, 1, 14, 1, 40, 1, 70, 2, 140):
            await one.write(record(number))
            batch = [record(number + more) for more in range(1, many + 1)]
            await asyncio.gather(*(other.write(each) for each in batch))
            number += many + 1
            assert await one.begin(record(number - 1, "started")) == record(number - 1)
        assert (await other.verify()).ok
        assert (await one.head()).seq == number


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE audit_keys SET content = replace(content, '0', '1')",
        "DELETE FROM audit_keys WHERE prefix <> ''",
        "UPDATE audit_tiles SET hashes = 'AAAA' || substr(hashes, 5)",
        "DELETE FROM audit_tiles WHERE place LIKE '0/%'",
    ],
)
async def test_what_is_read_ahead_is_checked(change: str, postgres: Callable[[], str]) -> None:
    url = postgres()
    async with AuditLog(url, key="k" * 16) as one, AuditLog(url, key="k" * 16) as other:
        for number in range(0, 60, 2):
            await one.write(record(number))
            await other.write(record(number + 1))
        await one._database.write(change)
        with pytest.raises(SourceError, match="verify the log"):
            await one.begin(record(7, "started"))


async def test_who_comes_too_late_is_told_also_in_a_batch_that_fills_a_tile(
    postgres: Callable[[], str],
) -> None:
    """What was read ahead is what was there before the batch: its own tiles are newer."""
    url = postgres()
    async with AuditLog(url, key="k" * 16) as one, AuditLog(url, key="k" * 16) as other:
        for number in range(0, 300, 5):
            await other.write(record(number))
            new = [one.write(record(number + more)) for more in range(1, 5)]
            late = [one.begin(record(max(0, number - more), "started")) for more in range(0, 40, 5)]
            answers = await asyncio.gather(*new, *late)
            assert answers[4:] == [record(max(0, number - more)) for more in range(0, 40, 5)]
        assert (await other.verify()).ok


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
async def test_no_log_that_nobody_has_changed_is_said_to_be(url: str, tmp_path: Path) -> None:
    """Whatever three that are open at once do, each in batches: write, claim in time and too late, look
    for a call, sign, prove, verify and prune."""
    chance = random.Random(url[:6])  # noqa: S311
    logs = [AuditLog(url, key="k" * 16) for _ in range(3)]
    known: dict[int, RecordStatus] = {}  # what the log has last of each call
    key, fresh = SigningKey.generate("log.example", tmp_path / "key"), iter(range(100_000))
    for _ in range(sample(480, part=8)):
        news = [next(fresh) for _ in range(chance.randrange(9))]
        begun = [number for number, status in known.items() if status == "started"]
        ended = chance.sample(begun, chance.randrange(len(begun) + 1))
        others = sorted(known.keys() - ended)
        late = chance.choices(others, k=chance.randrange(9)) if others else []
        work: list[tuple[Awaitable[object], object]] = []
        work += [(chance.choice(logs).begin(record(n, "started")), None) for n in news]
        work += [(chance.choice(logs).write(record(n)), None) for n in ended]
        for number in late:
            stands = record(number, known[number])
            ask = chance.choice(logs)
            asked = (
                ask.begin(record(number, "started")) if chance.random() < 0.7 else ask.find(stands)
            )
            work.append((asked, stands))
        chance.shuffle(work)
        assert await asyncio.gather(*(each for each, _ in work)) == [told for _, told in work]
        known.update(dict.fromkeys(news, "started"))
        known.update(dict.fromkeys(ended, "completed"))
        match chance.randrange(12):
            case 0:
                head = await chance.choice(logs).head()
                note = await chance.choice(logs).checkpoint(key)
                await chance.choice(logs).prove(head.seq, note)
            case 1:
                assert (await chance.choice(logs).verify()).fault is None
            case 2 if chance.random() < 0.3:
                await chance.choice(logs).prune(before=time.time() + 1)
                known.clear()
    assert all([(await log.verify()).ok for log in logs])
    await asyncio.gather(*(log.aclose() for log in logs))
