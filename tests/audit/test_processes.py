"""Two processes write to one log at once, from the creation of its tables on."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from audit.writing_child import SHARED
from children import together

from toolcrib.audit import AuditLog


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
