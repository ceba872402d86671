"""A log that is open when its process forks stays its parent's: the child is told so."""

from __future__ import annotations

import asyncio

import pytest
from children import WARNED, run

from toolcrib.audit import AuditLog

FORK = """
import asyncio, os, sys
from audit.audit_helpers import record
from toolcrib.audit import AuditLog
from toolcrib.errors import SourceError

async def write(log, *numbers):
    await asyncio.gather(*(log.write(record(number)) for number in numbers))

def forked(log, *numbers):
    child = os.fork()
    if child:
        return child
    try:
        asyncio.run(write(log, *numbers))
        told = 0
    except SourceError as error:
        told = 1 if "forked" in str(error) else 2
    asyncio.run(log.aclose())
    os._exit(told)

log = AuditLog(sys.argv[1])
asyncio.run(write(log, 1))
child = forked(log, 2, 3)
asyncio.run(write(log, 4, 5))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
asyncio.run(write(log, 6))
asyncio.run(log.aclose())
child = forked(log, 7)
asyncio.run(write(log, 8))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
asyncio.run(log.aclose())
"""


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
async def test_open_it_is_refused_and_closed_it_is_opened_on_both_sides(url: str) -> None:
    done = await asyncio.to_thread(run, "-c", FORK, url, env=WARNED)
    assert (done.returncode, done.stderr) == (0, "")
    async with AuditLog(url) as log:
        assert (await log.verify()).ok
        ids = [entry.record.id for entry in await log.entries()]
    assert sorted(ids) == [f"call_{number}" for number in (1, 4, 5, 6, 7, 8)]
