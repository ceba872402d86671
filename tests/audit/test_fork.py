"""A log that was used before its process forked is used on, on both sides."""

from __future__ import annotations

import subprocess
import sys

import pytest
from children import ENVIRONMENT

from toolcrib.audit import AuditLog

FORK = """
import asyncio, os, sys
from audit.audit_helpers import record
from toolcrib.audit import AuditLog
log = AuditLog(sys.argv[1])
async def write(*numbers):
    await asyncio.gather(*(log.write(record(number)) for number in numbers))
asyncio.run(write(1))
child = os.fork()
if child == 0:
    asyncio.run(write(2, 3))
    asyncio.run(log.aclose())
    os._exit(0)
asyncio.run(write(4, 5))
assert os.waitpid(child, 0)[1] == 0
asyncio.run(write(6))
asyncio.run(log.aclose())
"""


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
async def test_both_sides_of_a_fork_write_on(url: str) -> None:
    command = [sys.executable, "-W", "error", "-c", FORK, url]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    async with AuditLog(url) as log:
        assert (await log.verify()).ok
        ids = [entry.record.id for entry in await log.entries()]
    assert sorted(ids) == [f"call_{number}" for number in range(1, 7)]
