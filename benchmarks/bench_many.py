"""Many tools: 1,000 plain functions, and 100,000 tools to pick from.

    python benchmarks/bench_many.py [--only TEXT] [--before SRC] [--json FILE]

Functions become tools in a fresh process each round, alone and with a Catalog; the floor compiles ready
schemas by jsonschema-rs and writes them by orjson. The tools to pick from are made as in
`bench_pick.py`, with schemas that hold; building is what comes before the first answer, once with a
Catalog and once with a tuple of tools, and memory is what it leaves resident. The floor is an index
of SQLite's FTS5. CPU time; the median of the rounds.
"""

from __future__ import annotations

import contextlib
import gc
import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import bench_define
import bench_pick
import contest
import jsonschema_rs
import orjson
from bench_pick import Tool, grown, resident_mb
from contest import Case, Make, Round, repeated

from toolcrib import ALL, Catalog, PickOptions, pick_tools, tool
from toolcrib.values.definition import ToolDefinition

TOOLS = 100_000
REQUEST = "find a cheap flight to Berlin"


def defined(*, catalog: bool) -> Make:
    async def make(_closing: AsyncExitStack) -> Round:
        @tool(visible=ALL)
        def first(text: str) -> str:  # what loads late is loaded, as in any program that has a tool
            """Say something."""
            return text

        functions = bench_define.make("plain")
        decorate = tool(visible=ALL)

        async def work() -> float:
            started = time.process_time()
            tools = [decorate(function) for function in functions]
            if catalog:
                Catalog([first, *tools])
            return (time.process_time() - started) / len(functions) * 1e6

        return work

    return make


async def compiled(_closing: AsyncExitStack) -> Round:
    tools = [tool(visible=ALL)(function) for function in bench_define.make("plain")]
    definitions = [made.definition for made in tools]
    schemas = [(d.input_schema or {}, d.output_schema or {}) for d in definitions]

    async def work() -> float:
        started = time.process_time()
        for pair in schemas:
            for schema in pair:
                jsonschema_rs.Draft202012Validator(schema)
                orjson.dumps(schema)
        return (time.process_time() - started) / len(schemas) * 1e6

    return work


def _usable(count: int) -> tuple[Tool, ...]:
    """Tools that a Catalog takes: parameters whose schemas hold, names that nobody mixes up."""
    holds: dict[str, bool] = {}

    def is_usable(schema: object) -> bool:
        text = json.dumps(schema)
        if text not in holds:
            holds[text] = False
            with contextlib.suppress(ValueError, jsonschema_rs.ValidationError):
                jsonschema_rs.Draft202012Validator({"properties": {"one": schema}})
                Catalog([Tool(_definition("one", {"one": schema}))])
                holds[text] = True
        return holds[text]

    found = []
    for number, made in enumerate(grown(count)):
        d = made.definition
        properties = (d.input_schema or {}).get("properties", {})
        assert isinstance(properties, dict)
        kept = {name: schema for name, schema in properties.items() if is_usable(schema)}
        found.append(Tool(_definition(f"{d.name}_{number}", kept, d.description)))
    return tuple(found)


def _definition(name: str, properties: dict[str, Any], description: str = "") -> ToolDefinition:
    schema = {"type": "object", "properties": properties}
    return ToolDefinition(
        name=name, description=description, input_schema_json=orjson.dumps(schema).decode()
    )


def built(figure: Callable[[float, float], float], *, catalog: bool) -> Make:
    """Return seconds, or megabytes, until there is a first answer."""

    async def make(_closing: AsyncExitStack) -> Round:
        tools = _usable(TOOLS)

        async def work() -> float:
            gc.collect()
            before, started = resident_mb(), time.process_time()
            offered = Catalog(tools) if catalog else tools
            await pick_tools(REQUEST, offered, PickOptions())
            return figure(time.process_time() - started, resident_mb() - before)

        return work

    return make


def indexed(figure: Callable[[float, float], float]) -> Make:
    async def make(_closing: AsyncExitStack) -> Round:
        tools = _usable(TOOLS)

        async def work() -> float:
            gc.collect()
            before, started = resident_mb(), time.process_time()
            search = bench_pick.floor(tools)
            search(REQUEST)
            return figure(time.process_time() - started, resident_mb() - before)

        return work

    return make


async def picked(_closing: AsyncExitStack) -> Round:
    tools = _usable(TOOLS)
    requests = iter(f"{REQUEST} {number}" for number in range(10**6))

    async def once() -> None:
        await pick_tools(next(requests), tools, PickOptions())

    await once()
    return repeated(once, 20)


async def searched(_closing: AsyncExitStack) -> Round:
    search = bench_pick.floor(_usable(TOOLS))
    requests = iter(f"{REQUEST} {number}" for number in range(10**6))

    async def once() -> None:
        search(next(requests))

    return repeated(once, 20)


def _seconds(seconds: float, _megabytes: float) -> float:
    return seconds


def _megabytes(_seconds: float, megabytes: float) -> float:
    return megabytes


def cases() -> list[Case]:
    found = []
    for catalog in (False, True):
        name = "1,000 plain functions to tools" + (", with a Catalog" if catalog else "")
        both = {contest.FLOOR: compiled, contest.OURS: defined(catalog=catalog)}
        found.append(Case(name, "µs CPU", both, "250" if catalog else "200", 5, cold=True))
    if not bench_pick.DATA.is_dir():
        print(f"without 100,000 tools: no data at {bench_pick.DATA}: set TOOLCRIB_SHARED")
        return found
    for catalog in (False, True):
        what = "with a Catalog" if catalog else "without"
        for unit, figure, goal in (("s CPU", _seconds, "8"), ("MB", _megabytes, "250")):
            both = {contest.FLOOR: indexed(figure), contest.OURS: built(figure, catalog=catalog)}
            found.append(
                Case(
                    f"100,000 tools, {what}, {unit}",
                    unit,
                    both,
                    goal if catalog else "",
                    1,
                    cold=True,
                )
            )
    both = {contest.FLOOR: searched, contest.OURS: picked}
    found.append(Case("100,000 tools, a pick", "µs CPU", both, "", 3))
    return found


if __name__ == "__main__":
    contest.main(cases(), __doc__ or "")
