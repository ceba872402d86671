"""Many calls at once, each ending in its own way: one record each, in order, and nothing is left."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Generator, Iterator
from contextlib import suppress
from types import coroutine
from typing import Any, Protocol, Self

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from samples import sample

from toolcrib import (
    ALL,
    Catalog,
    Completed,
    Failed,
    ToolCall,
    ToolError,
    ToolRunner,
    capability,
    per_call,
    tool,
)
from toolcrib.errors import ErrorCode
from toolcrib.testing import MemorySink
from toolcrib.threads import MOST_IDLE, Work
from toolcrib.values.record import Outcome, ToolInvocationRecord

COUNT = 1_000


@capability
class Line(Protocol):
    async def ask(self, n: int) -> int: ...


class OpenLine:
    open = 0

    async def __aenter__(self) -> Self:
        OpenLine.open += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        OpenLine.open -= 1

    async def ask(self, n: int) -> int:
        await asyncio.sleep(0)
        if n % 7 == 0:
            raise ConnectionError("no line")
        return n


@tool(visible=ALL)
async def wait(n: int, ms: float) -> int:
    """Wait, and give n back."""
    await asyncio.sleep(ms / 1000)
    return n


@tool(visible=ALL, exclusive=True)
async def alone_at_last() -> int:
    """Run when no other call has a slot."""
    return 1


@tool(visible=ALL)
async def at_once(n: int) -> int:
    """Give n back."""
    return n


@tool(visible=ALL, timeout=0.002)
async def late(n: int) -> int:
    """Wait for longer than it may."""
    await asyncio.sleep(30)
    return n


@tool(visible=ALL)
async def fail(n: int) -> int:
    """Fail, at once or later."""
    if n % 2:
        await asyncio.sleep(0)
        raise ToolError("not today")
    raise RuntimeError("an accident")


@tool(visible=ALL)
async def stop(n: int) -> int:
    """Raise what only a task's canceller should."""
    raise asyncio.CancelledError


@tool(visible=ALL)
def blocking(n: int) -> int:
    """Block a thread for a moment."""
    time.sleep(0.001)
    return n


@tool(visible=ALL, exclusive=True)
async def alone(n: int) -> int:
    """Run alone."""
    await asyncio.sleep(0)
    return n


@tool(visible=ALL)
async def lined(n: int, line: Line) -> int:
    """Ask somebody."""
    return await line.ask(n)


@tool(visible=ALL, requires_approval=True)
async def risky(n: int) -> int:
    """Do something that nobody approves."""
    return n


WAYS: dict[str, frozenset[str]] = {
    "wait": frozenset({"completed"}),
    "at_once": frozenset({"completed"}),
    "late": frozenset({ErrorCode.TIMEOUT}),
    "fail": frozenset({ErrorCode.TOOL_ERROR}),
    "stop": frozenset({ErrorCode.TOOL_ERROR}),
    "blocking": frozenset({"completed"}),
    "alone": frozenset({"completed"}),
    "lined": frozenset({"completed", ErrorCode.TOOL_ERROR}),
    "risky": frozenset({ErrorCode.APPROVAL_REQUIRED}),
    "unknown": frozenset({ErrorCode.UNKNOWN_TOOL}),
    "invalid": frozenset({ErrorCode.INVALID_ARGUMENTS}),
}
CATALOG = Catalog([wait, at_once, late, fail, stop, blocking, alone, lined, risky]).bind(
    {Line: per_call(OpenLine)}
)


def ending(outcome: Outcome) -> str:
    return outcome.error.code if isinstance(outcome, Failed) else outcome.record.status


def make(random_: random.Random, n: int) -> tuple[ToolCall, str]:
    way = random_.choice(list(WAYS))
    if way == "invalid":
        return ToolCall(f"c{n}", "at_once", '{"n": "x"}'), way
    more = f', "ms": {random_.random() * 20}' if way == "wait" else ""
    return ToolCall(f"c{n}", way, f'{{"n": {n}{more}}}'), way


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No task, no capability, and no more threads than are kept for later calls, outlive the calls."""
    most = MOST_IDLE + Work.left_behind  # by tools of other tests that hang
    most += _workers() - sum(thread.name == "toolcrib-work" for thread in threading.enumerate())
    yield
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _workers() > most:
        time.sleep(0.01)  # the last thread may be on its way out
    assert _workers() <= most
    assert OpenLine.open == 0


def _workers() -> int:
    return sum(thread.name.startswith("toolcrib") for thread in threading.enumerate())


@pytest.mark.parametrize("seed", range(3))
async def test_a_thousand_calls_of_one_reply(seed: int, nothing_left: None) -> None:
    random_ = random.Random(seed)  # noqa: S311  seeded, to be repeated
    made = [make(random_, n) for n in range(COUNT)]
    sink = MemorySink()
    runner = ToolRunner(CATALOG, sinks=[sink], concurrency=64)
    outcomes = await runner.exec_all([call for call, _ in made])
    assert [o.record.id for o in outcomes] == [call.id for call, _ in made]
    assert Counter(r.id for r in sink.records) == Counter(call.id for call, _ in made)
    wrong = [
        (w, ending(o)) for (_, w), o in zip(made, outcomes, strict=True) if ending(o) not in WAYS[w]
    ]
    assert wrong == []
    values = [o.value for o in outcomes if isinstance(o, Completed)]
    expected = [int(o.record.id[1:]) for o in outcomes if isinstance(o, Completed)]
    assert values == expected
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("seed", range(3))
async def test_a_thousand_calls_some_of_them_cancelled(seed: int, nothing_left: None) -> None:
    random_ = random.Random(seed)  # noqa: S311  seeded, to be repeated
    made = [make(random_, n) for n in range(COUNT)]
    sink = MemorySink()
    runner = ToolRunner(CATALOG, sinks=[sink], concurrency=64)
    tasks = [asyncio.ensure_future(runner.exec(call)) for call, _ in made]
    for _ in range(30):
        await asyncio.sleep(random_.random() / 500)
        random_.choice(tasks).cancel()
    results: list[Outcome | BaseException] = await asyncio.gather(*tasks, return_exceptions=True)
    told = Counter(r.id for r in sink.records)
    by_id = {r.id: r for r in sink.records}
    for (call, way), result in zip(made, results, strict=True):
        if isinstance(result, BaseException):
            assert isinstance(result, asyncio.CancelledError)
            assert told[call.id] <= 1  # none, if its task never took a first step
        else:
            assert told[call.id] == 1
            assert result.record == by_id[call.id]
            assert ending(result) in WAYS[way]
    assert sum(isinstance(r, asyncio.CancelledError) for r in results) > 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


@tool(visible=ALL)
async def held(n: int) -> int:
    """Go on when told."""
    return await _held(n)


@tool(visible=ALL, exclusive=True)
async def held_alone(n: int) -> int:
    """The same, alone."""
    return await _held(n)


async def _held(n: int) -> int:
    running = Calls.current
    running.inside.add(n)
    try:
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        running.doors[n] = done
        if await done == "fail":
            raise RuntimeError("an accident")
        return n
    finally:
        running.inside.discard(n)


class Calls(RuleBasedStateMachine):
    """Any order of beginning, letting go on, failing and cancelling; tools wait until they are told."""

    calls: Bundle[int] = Bundle("calls")
    current: Calls
    LIMIT = 3

    def __init__(self) -> None:
        super().__init__()
        Calls.current = self
        self.loop = asyncio.new_event_loop()
        self.sink = MemorySink()
        self.runner = ToolRunner(
            [held, held_alone], sinks=[self.sink], concurrency=self.LIMIT, timeout=None
        )
        self.tasks: list[asyncio.Task[Outcome]] = []
        self.alone: set[int] = set()
        self.inside: set[int] = set()
        self.doors: dict[int, asyncio.Future[str]] = {}
        self.stepped: set[int] = set()

    def spin(self) -> None:
        self.loop.run_until_complete(_some_ticks())
        self.stepped = set(range(len(self.tasks)))

    @rule(target=calls, exclusive=st.booleans(), tick=st.booleans())
    def begin(self, exclusive: bool, tick: bool) -> int:
        n = len(self.tasks)
        name = "held_alone" if exclusive else "held"
        if exclusive:
            self.alone.add(n)
        call = ToolCall(f"c{n}", name, f'{{"n": {n}}}')
        self.tasks.append(self.loop.create_task(self.runner.exec(call)))
        if tick:
            self.spin()
        return n

    @rule(n=calls, how=st.sampled_from(["go", "fail"]), tick=st.booleans())
    def end(self, n: int, how: str, tick: bool) -> None:
        door = self.doors.get(n)
        if door is not None and not door.done():
            door.set_result(how)
        if tick:
            self.spin()

    @rule(n=calls, tick=st.booleans())
    def cancel(self, n: int, tick: bool) -> None:
        self.tasks[n].cancel()
        if tick:
            self.spin()

    @invariant()
    def as_many_as_may(self) -> None:
        assert len(self.inside) <= self.LIMIT
        if self.inside & self.alone:
            assert len(self.inside) == 1

    def teardown(self) -> None:
        for _ in range(len(self.tasks) + 1):  # every one that is let in lets in another
            for door in self.doors.values():
                if not door.done():
                    door.set_result("go")
            self.spin()
        told = Counter(r.id for r in self.sink.records)
        for n, task in enumerate(self.tasks):
            assert task.done(), "a call waits for nobody"
            if task.cancelled():
                assert told[f"c{n}"] <= 1
            else:
                assert told[f"c{n}"] == 1
                assert task.result().record.id == f"c{n}"
        assert self.inside == set()
        alone = self.runner.with_tools(alone_at_last).exec(ToolCall("last", "alone_at_last", "{}"))
        last = self.loop.create_task(alone)
        self.spin()
        assert last.done(), "a slot was not given back"
        assert isinstance(last.result(), Completed)
        assert asyncio.all_tasks(self.loop) == set()
        self.loop.close()


async def _some_ticks() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


TestCalls: Any = Calls.TestCase
TestCalls.settings = settings(max_examples=sample(60), stateful_step_count=40, deadline=None)


def test_one_runner_serves_loops_in_several_threads() -> None:
    """An exclusive tool is alone among all of them, and nobody waits for ever."""
    inside, most = 0, 0
    lock = threading.Lock()

    @tool(visible=ALL, exclusive=True)
    async def solo(n: int) -> int:
        """Run alone."""
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        await asyncio.sleep(0.0005)
        with lock:
            inside -= 1
        return n

    sink = MemorySink()
    runner = ToolRunner([solo, at_once], sinks=[sink])
    failures: list[BaseException] = []

    def serve(which: int) -> None:
        calls = [
            ToolCall(f"t{which}_{n}", "solo" if n % 3 else "at_once", f'{{"n": {n}}}')
            for n in range(30)
        ]
        try:
            outcomes = asyncio.run(asyncio.wait_for(runner.exec_all(calls), 30))
            assert [o.value for o in outcomes if isinstance(o, Completed)] == list(range(30))
        except BaseException as error:  # noqa: BLE001  shown below, in the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=serve, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert most == 1
    assert len(sink.records) == 120


async def test_a_cancelled_exec_all_leaves_nothing(nothing_left: None) -> None:
    sink = MemorySink()
    runner = ToolRunner(CATALOG, sinks=[sink], concurrency=8)
    calls = [ToolCall(f"c{n}", "wait", f'{{"n": {n}, "ms": 5000}}') for n in range(100)]
    task = asyncio.ensure_future(runner.exec_all(calls))
    await asyncio.sleep(0.01)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert Counter(r.id for r in sink.records) == Counter(call.id for call in calls)
    assert {r.error.code for r in sink.records if r.error} == {ErrorCode.CANCELLED}
    assert asyncio.all_tasks() == {asyncio.current_task()}


@coroutine
def overtaken(work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, None]:
    """Cancel a coroutine when what it waits for is over, and before it has heard of that."""
    pending = work.send(None)
    pending._asyncio_future_blocking = False
    while not pending.done():
        yield
    with suppress(asyncio.CancelledError):
        pending = work.throw(asyncio.CancelledError())
        while True:
            yield pending
            pending = work.send(None)


async def test_an_error_that_a_cancellation_overtook_is_not_printed() -> None:
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context)))

    class Broken:
        def write(self, record: ToolInvocationRecord) -> None:
            raise OSError(record.id)

    calls = [ToolCall(f"c{n}", "wait", f'{{"n": {n}, "ms": 0}}') for n in range(2)]
    await overtaken(ToolRunner(CATALOG, sinks=[Broken()]).exec_all(calls))
    gc.collect()
    assert told == []
