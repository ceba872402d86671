"""What a call leaves behind in its runner, whatever ends it: one record, nothing claimed or held."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toolcrib import (
    ALL,
    Completed,
    Deny,
    Failed,
    Hydrated,
    ToolCall,
    ToolRunner,
    tool,
)
from toolcrib.hydration import hydrate
from toolcrib.runner import CallScope
from toolcrib.runner.policy import Standard
from toolcrib.testing import MemorySink
from toolcrib.values.context import PolicyContext, RunTally
from toolcrib.values.decision import Decision
from toolcrib.values.record import Outcome, ToolInvocationRecord


@tool(visible=ALL)
async def gives(n: int, items: list[int] | None = None) -> dict[str, int]:
    """Give."""
    return {"n": n, "items": len(items or [])}


@tool(visible=ALL)
async def waits(n: int) -> int:
    """Give way once."""
    await asyncio.sleep(0)
    return n


@tool(visible=ALL, exclusive=True)
async def alone() -> int:
    """Run when nothing else does."""
    return 1


async def check_nothing_is_held(runner: ToolRunner, call: ToolCall | None = None) -> None:
    """What runs alone runs at once, and the call itself, asked for again, is not running still."""
    async with asyncio.timeout(5):
        outcome = await runner.with_tools(alone).exec(ToolCall("alone", "alone", "{}"))
        assert isinstance(outcome, Completed)
        if call is not None:
            again = await runner.exec(call)
            assert not isinstance(again, Failed) or again.error.code != "duplicate_call"


class Unlike:
    """What raises as soon as it is looked at."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise KeyError("its own affair")


class Watcher:
    def __init__(self) -> None:
        self.told: list[Outcome] = []

    def approval_requested(self, request: object) -> None: ...

    def progress(self, call_id: str, part: object) -> None: ...

    def finished(self, outcome: Outcome) -> None:
        self.told.append(outcome)


class Denies(Standard, frozen=True):
    def __call__(self, hydrated: Hydrated, context: PolicyContext) -> Decision:
        return Deny("nothing runs", "ours")


class Counts(Standard, frozen=True):
    def count(self, hydrated: Hydrated, context: PolicyContext) -> Deny:
        return Deny("used up", "ours")

    def settle(self, record: ToolInvocationRecord, context: PolicyContext) -> None: ...


@pytest.mark.parametrize("policy", [Denies(), [Denies()], Counts(), [Counts("allow")]], ids=repr)
async def test_a_subclass_of_the_standard_policy_is_asked(policy: Any) -> None:
    runner = ToolRunner([gives], policy=policy)
    outcome = await runner.exec(ToolCall("c", "gives", '{"n":1}'))
    assert isinstance(outcome, Failed)
    assert outcome.error.code == "denied"


def test_without_an_event_loop_nothing_is_begun() -> None:
    runner, call = ToolRunner([gives]), ToolCall("c", "gives", '{"n":1}')
    with pytest.raises(RuntimeError, match="no running event loop"):
        runner.exec(call).send(None)
    asyncio.run(check_nothing_is_held(runner, call))


async def test_who_watches_may_stop_the_task() -> None:
    class Stops(Watcher):
        def finished(self, outcome: Outcome) -> None:
            super().finished(outcome)
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    watcher, returned = Stops(), list[Outcome]()
    runner = ToolRunner([gives])

    async def run() -> None:
        scope = CallScope(RunTally("r"), observer=watcher)
        returned.append(await runner.exec(ToolCall("c", "gives", '{"n":1}'), scope=scope))

    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(run())
    assert len(watcher.told) == 1
    assert returned == []


def test_a_program_that_is_interrupted_while_a_result_is_looked_at() -> None:
    class Interrupts:
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise KeyboardInterrupt

    @tool(visible=ALL)
    async def interrupts() -> Any:
        """Give it."""
        return Interrupts()

    runner = ToolRunner([interrupts], sinks=[sink := MemorySink()])
    call = ToolCall("c", "interrupts", "{}")
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(runner.exec(call))
    assert [record.error and record.error.code for record in sink.records] == ["cancelled"]
    asyncio.run(check_nothing_is_held(runner, call))


async def test_a_tainted_run_asks_and_a_call_without_a_slot_waits() -> None:
    go_on = asyncio.Event()

    @tool(visible=ALL)
    async def holds() -> int:
        """Run until it is let go."""
        await go_on.wait()
        return 1

    runner = ToolRunner([gives, holds], concurrency=1)
    call = ToolCall("a", "gives", '{"n":1}')
    outcome = await runner.exec(call, scope=CallScope(RunTally("", tainted=True)))
    assert isinstance(outcome, Failed)
    assert outcome.error.code == "approval_required"

    first = asyncio.ensure_future(runner.exec(ToolCall("h", "holds", "{}")))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(runner.exec(ToolCall("b", "gives", '{"n":1}')))
    await asyncio.sleep(0)
    assert not second.done()
    go_on.set()
    assert isinstance(await first, Completed)
    assert isinstance(await second, Completed)


async def test_a_tool_that_has_its_task_cancelled() -> None:
    """The call is recorded as what came of it, and the task is cancelled all the same."""

    @tool(visible=ALL)
    async def cancels(waits: bool) -> int:
        """Cancel whoever called."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if waits:
            await asyncio.sleep(0)
        return 1

    for waits_, status in ((False, "completed"), (True, "failed")):
        sink = MemorySink()
        runner = ToolRunner([cancels], sinks=[sink])
        text = '{"waits": true}' if waits_ else '{"waits": false}'
        call = ToolCall("c", "cancels", text)
        task = asyncio.ensure_future(runner.exec(call))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [record.status for record in sink.records] == [status]
        await check_nothing_is_held(runner, call)


async def test_a_sink_that_fails_is_heard_of() -> None:
    class Fails(MemorySink):
        def write(self, record: ToolInvocationRecord) -> None:
            super().write(record)
            raise OSError("no space left")

    watcher, sink, other = Watcher(), Fails(), MemorySink()
    runner = ToolRunner([gives], sinks=[sink, other])
    scope = CallScope(RunTally("r"), observer=watcher)
    with pytest.raises(OSError, match="no space left"):
        await runner.exec(ToolCall("c", "gives", '{"n":1}'), scope=scope)
    assert len(sink.records) == len(other.records) == len(watcher.told) == 1


async def test_a_tool_that_calls_its_own_runner() -> None:
    runners: list[ToolRunner] = []

    @tool(visible=ALL)
    async def down(depth: int) -> int:
        """Go down."""
        if depth == 0:
            return 0
        call = ToolCall(f"d{depth}", "down", f'{{"depth":{depth - 1}}}')
        outcome = await runners[0].exec(call)
        assert isinstance(outcome, Completed)
        return int(outcome.value) + 1

    runners.append(ToolRunner([down], concurrency=1))
    outcome = await runners[0].exec(ToolCall("top", "down", '{"depth":4}'))
    assert isinstance(outcome, Completed)
    assert outcome.value == 4
    await check_nothing_is_held(runners[0])


async def test_a_call_is_not_changed_after_hydration() -> None:
    @tool(visible=ALL)
    async def counts(items: Any) -> int:
        """Count."""
        return len(items)

    runner = ToolRunner([counts], sinks=[sink := MemorySink()])
    hydrated = hydrate(ToolCall("c", "counts", '{"items":[1]}'), runner.catalog)
    assert hydrated.success
    hydrated.arguments["items"].append(5)  # type: ignore[union-attr]
    outcome = await runner.exec(hydrated)
    assert isinstance(outcome, Completed)
    assert (outcome.value, sink.records[0].arguments) == (1, {"items": [1]})


def test_a_call_whose_loop_is_gone_leaves_nothing_claimed() -> None:
    runner, call = ToolRunner([waits], concurrency=1), ToolCall("c", "waits", '{"n":1}')
    steps = runner.exec(call)

    async def begin() -> None:
        steps.send(None)

    asyncio.run(begin())
    steps.close()
    asyncio.run(check_nothing_is_held(runner, call))
