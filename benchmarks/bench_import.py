"""D: what importing toolcrib costs, with one tool defined: for tools and a runner; for the example of
the README, with an agent; with every public name resolved.

CPU milliseconds above an empty interpreter, the minimum of several processes that have the bytecode
of all modules, as after an installation; the floor is the import of the third-party modules that the
core uses. Then the distributions that the core installs.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile

ROUNDS = 9
REACH_MS, REACH_DISTRIBUTIONS = 190, 10
_BYTECODE = tempfile.TemporaryDirectory()
"""Where the first process of a kind leaves the bytecode for those after it."""
TIME = "\nimport resource; u = resource.getrusage(resource.RUSAGE_SELF)\nprint(u.ru_utime + u.ru_stime)"
EMPTY = ""
FLOOR = """
import asyncio, jiter, jsonschema_rs, msgspec, orjson, sqlite3
from pydantic import TypeAdapter
TypeAdapter(dict[str, int]).json_schema()
"""
TOOL = """
@tool(visible=ALL)
def count(words: list[str], least: int = 1) -> dict[str, int]:
    "Count words."
    return {}
"""


PROGRAMS = {
    "tools and a runner": f"from toolcrib import ALL, ToolRunner, tool{TOOL}ToolRunner([count])",
    "the README's example": f"from toolcrib import ALL, Agent, run_sync, tool{TOOL}",
    "every public name": f"from toolcrib import *{TOOL}",
}


def cpu_ms(code: str) -> float:
    """CPU time of one fresh process that runs `code`."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    run = subprocess.run(  # noqa: S603  our own code, in our own interpreter
        [sys.executable, "-c", code + TIME],
        capture_output=True,
        text=True,
        check=True,
        env=environment | {"PYTHONPYCACHEPREFIX": _BYTECODE.name},
    )
    return float(run.stdout) * 1000


def distributions(name: str, seen: set[str]) -> set[str]:
    """The distribution and all that it needs, extras aside."""
    if name not in seen:
        seen.add(name)
        for requirement in importlib.metadata.requires(name) or ():
            if "extra ==" not in requirement and "python_version" not in requirement:
                found = re.match(r"[A-Za-z0-9_.-]+", requirement)
                if found:
                    distributions(found[0].lower().replace("_", "-"), seen)
    return seen


def main() -> None:
    codes = (EMPTY, FLOOR, *PROGRAMS.values())
    rounds = [[cpu_ms(code) for code in codes] for _ in range(ROUNDS)]
    empty, floor, *ours = (min(column) for column in zip(*rounds, strict=True))
    print(f"empty interpreter          {empty:7.0f} ms")
    print(f"third-party imports alone  {floor - empty:7.0f} ms above it")
    for name, took in zip(PROGRAMS, ours, strict=True):
        ratio = (took - empty) / (floor - empty)
        print(f"{name:<27}{took - empty:7.0f} ms above it, {ratio:.2f} x (reach {REACH_MS} ms)")
    core = sorted(distributions("toolcrib", set()))
    print(
        f"distributions              {len(core):7d} (reach {REACH_DISTRIBUTIONS}): {', '.join(core)}"
    )


if __name__ == "__main__":
    main()
