"""A call that is cancelled, or whose event loop is gone, at each place where it waits for something."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Protocol, Self

import pytest
from rows import each_row
from samples import sampled

from toolcrib import (
    ALL,
    Allow,
    Approve,
    Catalog,
    Completed,
    Failed,
    ToolCall,
    ToolRunner,
    capability,
    tool,
)
from toolcrib.errors import ErrorCode
from toolcrib.runner import CallScope
from toolcrib.tools import per_call
from toolcrib.values.context import RunTally
from toolcrib.values.record import Outcome, ToolInvocationRecord, standing

MOST = 120


@capability
class Db(Protocol):
    def rows(self) -> int: ...


class Kept:
    """All that a call tells, opens and counts, each with places to wait at."""

    write_ahead = True

    def __init__(self) -> None:
        self.ran = 0
        self.counted = 0
        self.opened = 0
        self.writing = 0
        self.records: list[ToolInvocationRecord] = []
        self.told: list[Outcome] = []

    async def __aenter__(self) -> Self:
        await asyncio.sleep(0)
        self.opened += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.opened -= 1
        await asyncio.sleep(0)

    def rows(self) -> int:
        return 1

    def __call__(self, *_: object) -> Allow:
        return Allow()

    def count(self, *_: object) -> None:
        self.counted += 1

    def settle(self, *_: object) -> None:
        self.counted -= 1

    async def write(self, record: ToolInvocationRecord) -> None:
        self.writing += 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.writing -= 1
        self.records.append(record)

    def approval_requested(self, _request: object) -> None: ...

    def progress(self, _call_id: str, _part: object) -> None: ...

    def finished(self, outcome: Outcome) -> None:
        self.told.append(outcome)


class Ledger(Kept):
    async def find(self, entry: ToolInvocationRecord) -> ToolInvocationRecord | None:
        await asyncio.sleep(0)
        found = [r for r in self.records if r.idempotency_key == entry.idempotency_key]
        return standing(found) if found else None

    async def begin(self, entry: ToolInvocationRecord) -> ToolInvocationRecord | None:
        known = await self.find(entry)
        if known is None:
            self.records.append(entry)
            await asyncio.sleep(0)
        return known


def reads(kept: Kept) -> Any:
    @tool(visible=ALL, safe=False, name="f")
    async def f(db: Db) -> int:
        """Read."""
        kept.ran += 1
        await asyncio.sleep(0)
        return db.rows()

    return f


def reads_alone(kept: Kept) -> Any:
    @tool(visible=ALL, safe=False, exclusive=True, name="f")
    async def f(db: Db) -> int:
        """Read."""
        kept.ran += 1
        await asyncio.sleep(0)
        return db.rows()

    return f


def streams(kept: Kept) -> Any:
    @tool(visible=ALL, safe=False, name="f")
    async def f(db: Db) -> AsyncIterator[int]:
        """Read."""
        kept.ran += 1
        await asyncio.sleep(0)
        yield db.rows()

    return f


async def approves(_request: object) -> Approve:
    await asyncio.sleep(0)
    return Approve(by="grace")


async def cancelled_at(call: Coroutine[Any, Any, Outcome], at: set[int]) -> Outcome:
    """The call; cancelled when the event loop has turned so often."""
    task, loop, over = asyncio.current_task(), asyncio.get_running_loop(), list[bool]()
    assert task is not None

    def tick(now: int) -> None:
        if not over:
            if now in at:
                task.cancel()
            loop.call_soon(tick, now + 1)

    loop.call_soon(tick, 1)
    try:
        return await call
    finally:
        over.append(True)


def prepared(kept: Kept, target: Any) -> tuple[ToolRunner, Callable[[], Coroutine[Any, Any, Any]]]:
    catalog = Catalog([target]).bind({Db: per_call(lambda: kept)} if target.needs else {})
    runner = ToolRunner(catalog, policy=kept, approver=approves, sinks=[kept], concurrency=1)
    call = ToolCall("run_1_0", "f", "{}")
    return runner, lambda: runner.exec(call, scope=CallScope(RunTally("run_1"), observer=kept))


async def hold(runner: ToolRunner, begun: asyncio.Event) -> None:
    """Another call, which has the only slot for a while."""

    @tool(visible=ALL, name="holder")
    async def holder() -> None:
        """Wait."""
        begun.set()
        for _ in range(15):
            await asyncio.sleep(0)

    await runner.with_tools(Catalog([holder])).exec(ToolCall("h", "holder", "{}"))


async def assert_no_slot_is_taken(runner: ToolRunner) -> None:
    """A call that has to be alone begins at once."""

    @tool(visible=ALL, exclusive=True, name="alone")
    async def alone() -> int:
        """Run alone."""
        return 1

    async with asyncio.timeout(5):
        outcome = await runner.with_tools(Catalog([alone])).exec(ToolCall("a", "alone", "{}"))
    assert isinstance(outcome, Completed)


@each_row("times", sampled([1, 2, 3], part=3))
@each_row("contended", [False, True])
@each_row("make", [reads, reads_alone, streams])
@each_row("kind", [Kept, Ledger])
async def test_cancelled_wherever_it_waits(
    kind: type[Kept], make: Any, contended: bool, times: int
) -> None:
    """One final record, told once; nothing stays open, counted, claimed, half written or behind."""
    for at in range(1, MOST):
        kept = kind()
        runner, call = prepared(kept, make(kept))
        before = asyncio.all_tasks()
        others = []
        if contended:
            begun = asyncio.Event()
            others.append(asyncio.ensure_future(hold(runner, begun)))
            await begun.wait()
        task = asyncio.ensure_future(cancelled_at(call(), {at + n for n in range(times)}))
        async with asyncio.timeout(5):
            await asyncio.wait([task, *others])
        assert [r.status for r in kept.records if r.name == "f" and r.status != "started"] == [
            kept.told[0].record.status
        ]
        assert len(kept.told) == 1
        assert (kept.counted, kept.opened, kept.writing) == (0, 0, 0)
        await assert_no_slot_is_taken(runner)
        assert asyncio.all_tasks() <= before | {task, *others}
        ran = kept.ran
        again = await call()
        assert not isinstance(again, Failed) or again.error.code is not ErrorCode.DUPLICATE_CALL
        assert kept.ran <= 1
        assert again.replayed or not ran
        if not task.cancelled():
            assert at > 5
            return
    pytest.fail("it waits more often than was tried")


@pytest.mark.parametrize("kind", [Kept, Ledger])
async def test_an_event_loop_that_is_gone_leaves_nothing_claimed(kind: type[Kept]) -> None:
    @tool(visible=ALL, safe=False, name="f")
    async def f() -> int:
        """Wait."""
        kept.ran += 1
        await asyncio.sleep(0)
        return 1

    for at in range(1, MOST):
        kept = kind()
        runner, call = prepared(kept, f)
        if not await asyncio.ensure_future(closed(call(), at)):
            assert at > 4
            return
        assert kept.counted == 0
        await assert_no_slot_is_taken(runner)
    pytest.fail("it waits more often than was tried")


@coroutine
def closed(call: Coroutine[Any, Any, Any], at: int) -> Generator[Any, Any, bool]:
    """Whether the call was closed where it waits for the `at`th time; False if it ended before."""
    for _ in range(at):
        try:
            pending = call.send(None)
        except StopIteration:
            return False
        yield pending
    call.close()
    return True
