"""Picking out of 10,000 and 100,000 tools: a request, the index, the memory.

    python benchmarks/bench_pick.py [--sizes 10000,100000] [--scorer S …]

The tools are made from those of `$TOOLCRIB_SHARED/data/pick`: names, halves of descriptions and
parameters of different ones put together, seeded; the requests are those of the same sets. Each row
has a process of its own, in which requests to `pick_tools` and to the floor take turns: CPU
milliseconds of the whole process, the median. The floor is bare SQLite FTS5: one column, the words
of the request that are no stop words joined by OR, the best 10. Build and memory are those of the
first request; the tools are there already, but the digests that definitions keep are not.

Vectors of tools are kept in the folder of `$TOOLCRIB_CACHE`, which is empty at first here: `first` is
the median of a process that fills it, the rest is of one that finds it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from toolcrib.errors import MissingExtraError
from toolcrib.pick import SCORERS
from toolcrib.pick.evaluation import MeasuredScorer, Question, figures
from toolcrib.pick.words import spaced_name, words
from toolcrib.values.definition import ToolDefinition

_SHARED = Path(os.environ.get("TOOLCRIB_SHARED", Path(__file__).parents[2] / "shared"))
DATA = _SHARED / "data" / "pick"
SIZES = (10_000, 100_000)
REQUESTS = 200
REACH_MS = {10_000: 3, 100_000: 15}
REACH_FOR = ("keyword", "light")
REACH_BUILD_S = 15


class Tool(msgspec.Struct, frozen=True):
    """A tool that is nothing but its definition."""

    definition: ToolDefinition

    def get_definition(self) -> ToolDefinition:
        return self.definition


def grown(count: int) -> tuple[Tool, ...]:
    """`count` tools with names of their own, the same ones each time."""
    chance = random.Random(6)
    real = _lines("tools.jsonl")
    parameters = [
        pair
        for tool in real
        for pair in (tool.get("input_schema") or {}).get("properties", {}).items()
    ]
    made: dict[str, Tool] = {}
    while len(made) < count:
        first, second = chance.choice(real), chance.choice(real)
        name = "_".join(
            [*_half(spaced_name(first["name"]), 0), *_half(spaced_name(second["name"]), 1)]
        )
        if name in made:
            name = f"{name}_{len(made)}"
        description = [*_half(first["description"], 0), *_half(second["description"], 1)]
        schema = {
            "type": "object",
            "properties": dict(chance.sample(parameters, chance.randint(0, 6))),
        }
        definition = ToolDefinition(
            name=name, description=" ".join(description), input_schema_json=json.dumps(schema)
        )
        made.setdefault(name, Tool(definition))
    return tuple(made.values())


def _half(text: str, which: int) -> list[str]:
    parts = text.split()
    middle = (len(parts) + 1) // 2
    return parts[middle:] if which else parts[:middle]


def _lines(file: str) -> list[dict[str, Any]]:
    paths = sorted(DATA.glob(f"*/{file}"))
    return [json.loads(line) for path in paths for line in path.open(encoding="utf-8")]


def floor(tools: Sequence[Tool]) -> Callable[[str], None]:
    """Bare FTS5 over all of each definition's text."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE docs USING fts5(text, tokenize='porter unicode61')")
    rows = (
        (f"{spaced_name(d.name)} {d.description} {d.input_schema_json}",)
        for d in (tool.definition for tool in tools)
    )
    database.executemany("INSERT INTO docs VALUES (?)", rows)

    def search(query: str) -> None:
        either = " OR ".join(f'"{word}"' for word in words(query))
        asked = "SELECT rowid FROM docs WHERE docs MATCH ? ORDER BY rank LIMIT 10"
        database.execute(asked, (either,)).fetchall()

    return search


async def measure(scorer: str, count: int) -> dict[str, float]:
    """One process: what the scorer takes, and the floor."""
    tools = grown(count)
    bare = floor(tools)
    asked = [line["query"] for line in random.Random(7).sample(_lines("queries.jsonl"), REQUESTS)]
    picking = MeasuredScorer(SCORERS[scorer](), tools)
    await MeasuredScorer(
        SCORERS[scorer](), tools[:1]
    ).build()  # a model that is loaded once is loaded now
    before = resident_mb()
    build_ms = await picking.build()
    grew = resident_mb() - before
    answers, floors = [], []
    for query in asked:
        began = time.process_time()
        bare(query)
        floors.append((time.process_time() - began) * 1e3)
        answers.append(await picking.answer(query))
    questions = [Question(query, frozenset()) for query in asked]
    found = figures(questions, answers, build_ms=build_ms, min_score=0)
    return {
        "build_s": build_ms / 1e3,
        "memory_mb": grew,
        "p50": found.cpu_ms.p50,
        "p95": found.cpu_ms.p95,
        "floor": sorted(floors)[len(floors) // 2],
    }


def resident_mb() -> float:
    """What the process has in memory now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--scorer", action="append", choices=list(SCORERS))
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    sizes = [int(size) for size in asked.sizes.split(",")]
    if not DATA.is_dir():
        print(f"skipped: no data at {DATA}: set TOOLCRIB_SHARED")
        return
    if asked.alone:
        print(json.dumps(asyncio.run(measure(asked.scorer[0], sizes[0]))))
        return
    print(
        f"{'tools':>8}  {'scorer':<12}{'floor ms':>10}{'first ms':>10}{'p50 ms':>9}{'p95 ms':>9}"
        f"{'ratio':>7}{'reach ms':>10}{'build s':>9} (reach {REACH_BUILD_S}){'memory MB':>11}"
    )
    for size in sizes:
        for scorer in asked.scorer or SCORERS:
            try:
                SCORERS[scorer]()
            except MissingExtraError as missing:
                print(f"{size:>8,}  {scorer:<12}  skipped: {missing}")
                continue
            with tempfile.TemporaryDirectory() as cache:
                first, found = _fresh(scorer, size, cache), _fresh(scorer, size, cache)
            reach = REACH_MS.get(size, "–") if scorer in REACH_FOR else "–"
            print(
                f"{size:>8,}  {scorer:<12}{found['floor']:>10.2f}{first['p50']:>10.2f}"
                f"{found['p50']:>9.2f}{found['p95']:>9.2f}{found['p50'] / found['floor']:>7.2f}"
                f"{reach:>10}{found['build_s']:>9.1f}{'':>11}{found['memory_mb']:>11.0f}"
            )


def _fresh(scorer: str, size: int, cache: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--alone", "--scorer", scorer, "--sizes", str(size)]
    env = os.environ | {"TOOLCRIB_CACHE": cache}
    made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)  # noqa: S603
    result: dict[str, float] = json.loads(made.stdout)
    return result


if __name__ == "__main__":
    main()
