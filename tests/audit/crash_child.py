"""The process that is killed: `python -m audit.crash_child URL FILE DIES`.

Runs 200 calls, eight at a time, through a real runner. Each run of the tool and each outcome that was
acknowledged is first put on disk, in FILE, and then told on stdout, a line each. Call number DIES kills
the process from within its tool; -1 is none.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from toolcrib import ALL, ToolCall, ToolRunner, tool
from toolcrib.audit import AuditLog
from toolcrib.runner import CallScope
from toolcrib.values.context import RunTally
from toolcrib.values.record import Completed, Failed

CALLS = 200
RUN = "run_1"


async def main(url: str, side: int, dies: int) -> None:
    def tell(*words: object) -> None:
        line = " ".join(map(str, words)) + "\n"
        os.write(side, line.encode())
        os.fsync(side)
        os.write(1, line.encode())

    @tool(visible=ALL)
    async def pay(number: int) -> int:
        """Pay once."""
        tell("ran", number)
        if number == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(0)
        return number

    @tool(visible=ALL, idempotent=True)
    async def put(number: int) -> int:
        """Set something to a value."""
        tell("ran", number)
        if number == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(0)
        return number

    async with AuditLog(url) as log:
        runner = ToolRunner([pay, put], sinks=[log])
        scope = CallScope(RunTally(run_id=RUN, started=time.monotonic()))
        numbers = iter(range(CALLS))

        async def work() -> None:
            for number in numbers:
                name = "put" if number % 2 else "pay"
                call = ToolCall(f"call_{number}", name, f'{{"number":{number}}}')
                outcome = await runner.exec(call, scope=scope)
                if isinstance(outcome, Completed):
                    tell("completed", number)
                elif isinstance(outcome, Failed):
                    tell(outcome.error.code, number)

        await asyncio.gather(*(work() for _ in range(8)))


if __name__ == "__main__":
    target = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    asyncio.run(main(sys.argv[1], target, int(sys.argv[3])))
