"""A: one tool call through the whole pipeline, against the floor of the bare libraries.

The pipeline parses, validates, asks policy, runs an async function, checks and redacts its output, and
records it in memory. The floor only parses (orjson), validates (jsonschema-rs), runs the function,
validates and writes its output. CPU microseconds a call, interleaved; the minimum of the rounds.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
import orjson

from toolcrib import ALL, Completed, ToolCall, ToolRunner, tool
from toolcrib.testing import MemorySink
from toolcrib.tools import Tool

ROUNDS = 7
REACH = {
    "48 B": 12,
    "739 B": 35,
    "22.7 kB": 330,
    "22.7 kB, dataclasses": 600,
    "48 B, suspends": None,
}


@tool(visible=ALL)
async def small(query: str, limit: int) -> dict[str, int]:
    """Look something up."""
    return {"found": len(query) + limit}


@tool(visible=ALL)
async def suspends(query: str, limit: int) -> dict[str, int]:
    """Look something up, giving way once."""
    await asyncio.sleep(0)
    return {"found": len(query) + limit}


@tool(visible=ALL)
async def large(title: str, items: list[dict[str, Any]], options: dict[str, str]) -> dict[str, int]:
    """Take an order."""
    return {"items": len(items) + len(title) + len(options)}


@dataclass
class Item:
    """One line of an order."""

    sku: str
    name: str
    quantity: int
    price: float
    line: int


@dataclass
class Options:
    """How an order is sent."""

    currency: str
    shipping: str
    note: str


@tool(visible=ALL)
async def typed(title: str, items: list[Item], options: Options) -> dict[str, int]:
    """Take an order, as objects."""
    return {"items": len(items) + len(title) + len(options.note)}


def _order(count: int) -> dict[str, Any]:
    item = {"sku": "A-1043-XL", "name": "a cotton shirt, blue", "quantity": 3, "price": 19.95}
    return {
        "title": "an order of some size",
        "items": [item | {"line": line} for line in range(count)],
        "options": {"currency": "EUR", "shipping": "standard", "note": "leave it at the door"},
    }


def _cases() -> list[tuple[str, Tool[..., Any], str, int]]:
    few = json.dumps({"query": "the price of tea in china", "limit": 10})
    return [
        ("48 B", small, few, 3000),
        ("739 B", large, json.dumps(_order(6)), 2000),
        ("22.7 kB", large, json.dumps(_order(240)), 100),
        ("22.7 kB, dataclasses", typed, json.dumps(_order(240)), 100),
        ("48 B, suspends", suspends, few, 2000),
    ]


def _objects(arguments: dict[str, Any]) -> dict[str, Any]:
    """What the dataclasses themselves take."""
    return {
        "title": arguments["title"],
        "items": [Item(**item) for item in arguments["items"]],
        "options": Options(**arguments["options"]),
    }


async def _floor(subject: Tool[..., Any], text: str) -> Callable[[], Awaitable[object]]:
    definition = subject.definition
    given = jsonschema_rs.Draft202012Validator(definition.input_schema or {})
    found = jsonschema_rs.Draft202012Validator(definition.output_schema or {})
    function = subject.__wrapped__
    made = _objects if subject is typed else dict

    async def once() -> object:
        arguments = orjson.loads(text)
        assert given.is_valid(arguments)
        value = await function(**made(arguments))
        assert found.is_valid(value)
        return orjson.dumps(value)

    return once


async def _pipeline(subject: Tool[..., Any], text: str) -> Callable[[], Awaitable[object]]:
    sink = MemorySink()
    runner = ToolRunner([subject], sinks=[sink])
    name, ids = subject.definition.name, itertools.count()
    assert isinstance(await runner.exec(ToolCall("first", name, text)), Completed)

    async def once() -> object:
        sink.records.clear()
        return await runner.exec(ToolCall(f"call_{next(ids)}", name, text))

    return once


async def _measure(once: Callable[[], Awaitable[object]], count: int) -> float:
    started = time.process_time()
    for _ in range(count):
        await once()
    return (time.process_time() - started) / count * 1e6


async def main() -> None:
    print(f"{'arguments':<22}{'floor µs':>10}{'toolcrib µs':>13}{'ratio':>8}{'reach µs':>10}")
    for name, subject, text, count in _cases():
        bare, whole = await _floor(subject, text), await _pipeline(subject, text)
        pairs = [(await _measure(bare, count), await _measure(whole, count)) for _ in range(ROUNDS)]
        floor, ours = min(p[0] for p in pairs), min(p[1] for p in pairs)
        reach = REACH[name]
        print(
            f"{name:<22}{floor:>10.1f}{ours:>13.1f}{ours / floor:>8.1f}"
            f"{reach if reach is not None else '–':>10}"
        )


if __name__ == "__main__":
    asyncio.run(main())
