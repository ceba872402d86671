"""Instructions that toolcrib takes, counted by valgrind's callgrind: a report, no limit.

    python benchmarks/count_instructions.py [--only CASE] [--json FILE]

Counts depend on the builds of Python and of the libraries, not on who else uses the machine: compare
two commits on one machine. Each case runs twice, with few repeats and with more; the difference is what
the repeats take, without start-up. The cases: a small call, a medium and a large one (0.8 and 22.6 kB,
nested models), one of a plain function (all threads count), one that is audited (SQLite in memory), and
a stream's deltas, told for 50,000 of them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import bench_stream
import workload

from toolcrib import ALL, Completed, ToolCall, ToolRunner, tool
from toolcrib.audit import AuditLog
from toolcrib.wire import decoder


class Counted(NamedTuple):
    """`few` and `many` repeats; what is told is for `of` of them, called `unit`."""

    few: int
    many: int
    of: int
    unit: str


CASES = {
    "small": Counted(50, 250, 1, "small call"),
    "medium": Counted(20, 100, 1, "medium call"),
    "large": Counted(3, 13, 1, "large call"),
    "plain": Counted(50, 250, 1, "plain def call"),
    "audited": Counted(10, 40, 1, "audited call"),
    "deltas": Counted(400, 2_000, 50_000, "50,000 deltas"),
}


FUNCTIONS = {"small": workload.look_up, "plain": workload.look_up_plainly}


async def calls(case: str, count: int, log: AuditLog | None = None) -> None:
    function: Callable[..., Any] = FUNCTIONS.get(case, workload.order)
    runner = ToolRunner([tool(visible=ALL)(function)], sinks=[log] if log else [])
    text = workload.arguments("small" if case in FUNCTIONS else case)
    for number in range(count):
        outcome = await runner.exec(ToolCall(f"call_{number}", function.__name__, text))
        assert isinstance(outcome, Completed), outcome


async def work(case: str, count: int) -> None:
    """What is counted, in a process of its own. Whether a collection of all that was imported falls
    among the repeats is chance, and would be more than they take: there is none."""
    gc.freeze()
    if case == "audited":
        async with AuditLog("sqlite://", key="a key of sixteen bytes") as log:
            await calls("small", count, log)
    elif case == "deltas":
        events, _ = bench_stream.stream(count, bench_stream.CALLS)
        reading = decoder("openai-chat")
        for piece in bench_stream.cut(events):
            reading.feed(piece)
        assert len(reading.finish().tool_calls) == bench_stream.CALLS
    else:
        await calls(case, count)


def instructions(case: str, count: int) -> int:
    """Return what callgrind counts of a process that repeats a case."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out"]
        ran = subprocess.run(  # noqa: S603  this file
            [*command, sys.executable, __file__, "--case", case, str(count)],
            env=os.environ | {"PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=True,
        )
    found = re.search(r"Collected : (\d+)", ran.stderr)
    assert found, ran.stderr
    return int(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the counts there, too")
    parser.add_argument("--only", choices=CASES, action="append", help="count this case")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case:
        asyncio.run(work(asked.case[0], int(asked.case[1])))
        return
    if shutil.which("valgrind") is None:
        print("skipped: no valgrind on this machine")
        return
    counts = {}
    print(f"{'instructions':<20}{'thousands':>14}")
    for case in asked.only or CASES:
        few, many, of, unit = CASES[case]
        each = (instructions(case, many) - instructions(case, few)) / (many - few)
        counts[unit] = round(each * of)
        print(f"{unit:<20}{counts[unit] / 1e3:>14,.0f}", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
