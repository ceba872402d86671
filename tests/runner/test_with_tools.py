"""A runner of more tools: what it shares with the one that it was made from."""

from __future__ import annotations

from typing import Protocol

import pytest

from toolcrib import ALL, ToolCall, ToolRunner, capability, tool
from toolcrib.errors import BindingError, CatalogError
from toolcrib.policies import budget
from toolcrib.testing import MemorySink

RAN: list[str] = []


@tool(visible=ALL)
async def first(text: str) -> str:
    """The first."""
    RAN.append(text)
    return text


@tool(visible=ALL)
async def second(text: str) -> str:
    """The second."""
    return f"second {text}"


@capability
class Store(Protocol):
    async def get(self) -> str: ...


@tool(visible=ALL)
async def needy(store: Store) -> str:
    """It needs something."""
    return await store.get()


def call_of(name: str, number: int) -> ToolCall:
    return ToolCall(f"c{number}", name, '{"text": "x"}')


async def test_it_shares_policies_sinks_and_the_memory_of_calls() -> None:
    RAN.clear()
    sink = MemorySink()
    one = ToolRunner([first], policy=budget(calls=3, per="caller"), sinks=[sink])
    two = one.with_tools(second)
    assert (one.catalog.names, two.catalog.names) == (("first",), ("first", "second"))
    outcomes = [
        await one.exec(call_of("first", 1)),
        await two.exec(call_of("first", 1)),
        await two.exec(call_of("second", 2)),
        await two.exec(call_of("first", 3)),
        await one.exec(call_of("first", 4)),
    ]
    assert [o.record.status for o in outcomes] == ["completed"] * 4 + ["failed"]
    assert RAN == ["x", "x"]  # the second time it was the same call
    assert [r.id for r in sink.records] == ["c1", "c2", "c3", "c4"]
    assert (await one.exec(call_of("second", 5))).record.status == "failed"  # it knows no such tool


def test_a_name_that_is_taken_and_a_need_that_nobody_meets() -> None:
    runner = ToolRunner([first])
    with pytest.raises(CatalogError, match="two tools are called 'first'"):
        runner.with_tools(first)
    with pytest.raises(BindingError, match="needy"):
        runner.with_tools(needy)
