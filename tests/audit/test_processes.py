"""Two processes write to one log at once, from the creation of its tables on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from audit.audit_helpers import record
from audit.writing_child import SHARED
from children import together

from toolcrib.audit import AuditLog
from toolcrib.errors import SourceError


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
