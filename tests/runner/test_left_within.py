"""A tool that was inside a call of its own when it was left behind has ended when that has, and its own
end is told then. Nothing of it is left where it was called from."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import each_row
from samples import sample
from waiting import until

from toolcrib import ALL, Agent, Completed, Failed, ToolCall, ToolRunner, tool
from toolcrib.audit import AuditLog
from toolcrib.runner.running import CALLING
from toolcrib.testing import MemorySink, ScriptedClient, call
from toolcrib.values.record import state_of

UNENDED = {"started", "failed (outcome_unknown)"}
LEAVES = ("stubborn", "thread")
KINDS = ("awaits", "group", "exec_all", "agent", "own_loop")


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcrib.runner.execute.GRACE", 0.02)


@dataclass
class Node:
    """A tool: how it makes its calls, or how it does not end."""

    kind: str
    below: list[Node] = field(default_factory=list)
    name: str = ""


class Tree:
    """Makes the tools of nodes, and knows when which leaf has ended."""

    def __init__(self, top: Node, log: AuditLog, limit: float | None) -> None:
        self.go = threading.Event()
        self.begun: set[str] = set()
        self.ended: dict[str, float] = {}
        self.inside: dict[str, list[str]] = {}
        self.limit = limit
        tools: list[Any] = []
        self._add(top, "t", tools)
        self.runner = ToolRunner(tools, sinks=[log], timeout=None)

    def _add(self, node: Node, name: str, tools: list[Any]) -> list[str]:
        node.name = name
        leaves = [name] if node.kind in LEAVES else []
        for at, below in enumerate(node.below):
            leaves += self._add(below, f"{name}{at}", tools)
        self.inside[name] = leaves
        limit = self.limit if name == "t" else None
        function = self._leaf(node) if node.kind in LEAVES else self._calling(node)
        tools.append(tool(function, name=name, description="Go.", visible=ALL, timeout=limit))
        return leaves

    def _leaf(self, node: Node) -> Any:
        async def stubborn() -> str:
            self.begun.add(node.name)
            while not self.go.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.001)
            self.ended[node.name] = time.time()
            return node.name

        def thread() -> str:
            self.begun.add(node.name)
            self.go.wait(30)
            self.ended[node.name] = time.time()
            return node.name

        return stubborn if node.kind == "stubborn" else thread

    def _calling(self, node: Node) -> Any:
        def calls() -> list[ToolCall]:
            return [ToolCall(each.name, each.name, "{}") for each in node.below]

        async def awaits() -> str:
            for each in calls():
                await self.runner.exec(each)
            return node.name

        async def group() -> str:
            async with asyncio.TaskGroup() as together:
                for each in calls():
                    together.create_task(self.runner.exec(each))
            return node.name

        async def exec_all() -> str:
            await self.runner.exec_all(calls())
            return node.name

        async def agent() -> str:
            model = ScriptedClient([[call(each.name) for each in node.below], "done"])
            return (await Agent(model, self.runner).run("go")).text

        def own_loop() -> str:
            return asyncio.run(awaits())

        functions = (awaits, group, exec_all, agent, own_loop)
        return next(each for each in functions if each.__name__ == node.kind)


leaf = st.builds(Node, st.sampled_from(LEAVES))


def calls_of(below: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.builds(Node, st.sampled_from(KINDS), st.lists(below, min_size=1, max_size=2))


trees = calls_of(leaf | calls_of(leaf | calls_of(leaf)))


@settings(max_examples=sample(80), deadline=None)
@given(top=trees, cancelled=st.booleans(), waits=st.sampled_from([0.0, 0.03, 0.1]))
async def test_each_call_ends_once_and_after_all_that_it_made(
    top: Node, cancelled: bool, waits: float
) -> None:
    async with AuditLog("sqlite://") as log:
        tree = Tree(top, log, None if cancelled else 0.1)
        before = tree.runner.left_behind
        try:
            running = asyncio.ensure_future(tree.runner.exec(ToolCall("t", "t", "{}")))
            await until(lambda: bool(tree.begun) or running.done())
            if cancelled:
                await asyncio.sleep(0.01)
                running.cancel()
            await asyncio.wait([running])
            await asyncio.sleep(waits)
            early = [e.record for e in await log.entries()]
        finally:
            tree.go.set()
        await until(lambda: tree.runner.left_behind == before)
        for record in early:  # no leaf in it has ended
            goes_on = not tree.begun.isdisjoint(tree.inside[record.name])
            assert not goes_on or state_of(record) in UNENDED
        entries = await log.entries()
        begun = [e.record.name for e in entries if e.record.status == "started"]
        final = [e for e in entries if state_of(e.record) not in UNENDED]
        assert sorted(e.record.name for e in final if e.record.idempotency_key) == sorted(begun)
        for entry in final:
            inside = tree.inside[entry.record.name]
            assert all(tree.ended[name] <= entry.at for name in inside if name in tree.ended)
        assert (await log.verify()).ok


async def test_a_thread_that_made_calls_ends_as_it_does_itself() -> None:
    """And not as a call that it had left behind before."""
    go = threading.Event()

    @tool(visible=ALL, timeout=0.02)
    def slow() -> str:
        """Be slow."""
        go.wait(30)
        return "slow"

    @tool(visible=ALL, timeout=0.2)
    def outer() -> str:
        """Make a call, and be slow."""
        made = asyncio.run(runner.exec(ToolCall("inner", "slow", "{}")))
        assert isinstance(made, Failed)
        go.wait(30)
        return "outer"

    async with AuditLog("sqlite://") as log:
        runner = ToolRunner([slow, outer], sinks=[log])
        before = runner.left_behind
        made = await runner.exec(ToolCall("outer", "outer", "{}"))
        assert state_of(made.record) == "failed (outcome_unknown)"
        assert runner.left_behind == before + 2
        go.set()
        await until(lambda: runner.left_behind == before)
        ends = {e.record.id: e.record.result for e in await log.entries()}
        assert ends == {"inner": "slow", "outer": "outer"}


@each_row("made_at_once", [False, True])
async def test_what_a_call_within_leaves_behind_is_over_when_it_has_ended(
    made_at_once: bool,
) -> None:
    """Whether or not the tool around it waited for anything else before."""
    go = asyncio.Event()

    @tool(visible=ALL, timeout=0.05)
    async def stubborn() -> str:
        """Do not end."""
        while not go.is_set():
            with suppress(asyncio.CancelledError):
                await go.wait()
        return "ended"

    @tool(visible=ALL, timeout=0.05)
    async def outer() -> str:
        """Make a call."""
        if not made_at_once:
            await asyncio.sleep(0)
        await runner.exec(ToolCall("inner", "stubborn", "{}"))
        return "ended"

    runner = ToolRunner([stubborn, outer])
    before = runner.left_behind
    try:
        made = await runner.exec(ToolCall("outer", "outer", "{}"))
        assert state_of(made.record) == "failed (outcome_unknown)"
        await until(lambda: runner.left_behind == before + 2)
    finally:
        go.set()
    await until(lambda: runner.left_behind == before)


@each_row("agent", [False, True])
async def test_who_called_what_was_left_behind_goes_on_as_if_it_had_ended(agent: bool) -> None:
    """Its later calls are its own: in no call, in no agent, in a slot each, and nobody stops them."""
    go = asyncio.Event()

    @tool(visible=ALL, timeout=0.15)
    async def stubborn() -> str:
        """Do not end."""
        while not go.is_set():
            with suppress(asyncio.CancelledError):
                await go.wait()
        return "ended"

    @tool(name="outer", visible=ALL, timeout=0.05)
    async def calls() -> str:
        """Make a call."""
        await runner.exec(ToolCall("inner", "stubborn", "{}"))
        return "ended"

    @tool(visible=ALL, exclusive=True)
    async def alone() -> str:
        """Be alone: it may be called by no tool."""
        return "alone"

    model = ScriptedClient([call("stubborn"), "done", "again"])
    asks = Agent(model, [stubborn]).as_tool("outer", "Asks.", timeout=0.05, visible=ALL)
    sink = MemorySink()
    runner = ToolRunner([stubborn, asks if agent else calls, alone], sinks=[sink])
    prompt = '{"prompt": "go"}' if agent else "{}"
    try:
        outer = await runner.exec(ToolCall("outer", "outer", prompt))
        assert state_of(outer.record) == "failed (outcome_unknown)"
        assert CALLING.get() is None
        await asyncio.sleep(0.3)  # beyond the limit of what is within: it stops what it is in
        after = asyncio.ensure_future(runner.exec(ToolCall("after", "alone", "{}")))
        await asyncio.sleep(0.01)
        if agent:
            again = await runner.exec(ToolCall("again", "outer", prompt))
            assert isinstance(again, Completed)
    finally:
        go.set()
    assert (await after).record.parent_call_id == ""
    assert (await after).record.status == "completed"
