"""One of two processes that write to one log: `python -m audit.writing_child URL`.

Says that it is ready, waits for a line, claims 100 keys that the other one claims too, writes 100
records of its own, and tells which keys it got.
"""

from __future__ import annotations

import asyncio
import os
import sys

from audit.audit_helpers import record

from toolcrib.audit import AuditLog

SHARED = 100


async def main(url: str) -> None:
    print("ready", flush=True)  # noqa: T201  the parent waits for it
    sys.stdin.readline()
    async with AuditLog(url) as log:
        given = await asyncio.gather(
            *(log.begin(record(number, "started")) for number in range(SHARED))
        )
        mine = [number for number, known in enumerate(given) if known is None]
        first = os.getpid() * 1000
        for number in range(first, first + 100, 10):
            await asyncio.gather(*(log.write(record(number + at)) for at in range(10)))
    print(*mine, flush=True)  # noqa: T201  likewise


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
