"""Each call has the same outcome, record and effects on the short way and on the long one."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable
from typing import Any

import msgspec
import pytest
from named import named

from toolcrib import (
    ALL,
    Allow,
    Completed,
    Deny,
    Failed,
    Hydrated,
    ToolCall,
    ToolError,
    ToolRunner,
    tool,
)
from toolcrib.hydrate import hydrate
from toolcrib.runner import CallScope
from toolcrib.runner.standard import Standard
from toolcrib.testing import MemorySink
from toolcrib.values.context import PolicyContext, RunTally
from toolcrib.values.decision import Caller, Decision
from toolcrib.values.record import Outcome, ToolInvocationRecord


@tool(visible=ALL)
async def gives(n: int, items: list[int] | None = None) -> dict[str, int]:
    """Give."""
    return {"n": n, "items": len(items or [])}


@tool(visible=("n",), model_visible=("n", "m"), cost=2.5)
async def shows_some(n: int) -> dict[str, int]:
    """Give more than shows."""
    return {"n": n, "m": 1, "hidden": 2}


@tool(visible=())
async def shows_nothing(n: int) -> dict[str, int]:
    """Give what nobody may see."""
    return {"n": n}


@tool(visible=ALL, secret=("key",))
async def keeps_a_secret(n: int, key: str) -> int:
    """Use a key."""
    return n + len(key)


@tool(visible=ALL, untrusted_output=True, read_only=True)
async def taints(n: int) -> str:
    """Read what anybody may have written."""
    return "x" * n


@tool(visible=ALL)
async def changes_its_arguments(n: int, items: list[int]) -> int:
    """Change them."""
    items.append(n)
    return len(items)


@tool(visible=ALL)
async def waits(n: int) -> int:
    """Give way once."""
    await asyncio.sleep(0)
    return n


@tool(visible=ALL, timeout=0.001)
async def takes_too_long(n: int) -> int:
    """Wait."""
    await asyncio.sleep(10)
    return n


@tool(visible=ALL)
async def fails(n: int) -> int:
    """Fail."""
    raise ToolError(f"cannot {n}")


@tool(visible=ALL)
async def breaks(n: int) -> int:
    """Break at once."""
    raise ValueError("its own affair")


@tool(visible=ALL)
async def breaks_later(n: int) -> int:
    """Break after a while."""
    await asyncio.sleep(0)
    raise ValueError("its own affair")


@tool(visible=ALL)
async def raises_an_exit(n: int) -> int:
    """Raise what the closing of coroutines raises."""
    raise GeneratorExit


@tool(visible=ALL)
async def raises_a_cancellation(n: int) -> int:
    """Raise what nobody asked for."""
    raise asyncio.CancelledError


@tool(visible=ALL)
async def gives_no_json(n: int) -> Any:
    """Give what is none."""
    return {"it": object()}


@tool(visible=ALL)
async def gives_nan(n: int) -> Any:
    """Give what JSON lacks."""
    return [float("nan")]


@tool(visible=ALL)
async def gives_another(n: int) -> int:
    """Give what its schema does not take."""
    return "text"  # type: ignore[return-value]


@tool(visible=ALL)
async def gives_much(n: int) -> str:
    """Give more than is taken."""
    return "x" * 5000


@tool(visible=ALL, output_schema={"items": {"items": {"type": "integer"}}})
async def gives_what_is_used_up(n: int) -> Any:
    """Give what is looked at once, and is not what its schema takes."""
    return [(text for text in ["text"])]


class Unlike:
    """What raises as soon as it is looked at."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise KeyError("its own affair")


@tool(visible=ALL)
async def gives_what_raises(n: int) -> Any:
    """Give that."""
    return Unlike()


@tool(visible=ALL)
async def gives_none(n: int) -> None:
    """Give nothing."""


@functools.wraps(gives.__wrapped__)
def _exits(**_: Any) -> Any:
    raise GeneratorExit


exits_before_it_begins = tool(visible=ALL)(_exits)


@tool(visible=ALL)
class Classy:
    """Be a class."""

    def __init__(self, n: int) -> None:
        self.n = n

    async def run(self) -> int:
        """Give it."""
        return self.n


TOOLS: list[Any] = [
    gives, shows_some, shows_nothing, keeps_a_secret, taints, changes_its_arguments, waits,
    takes_too_long, fails, breaks, breaks_later, raises_an_exit, raises_a_cancellation,
    gives_no_json, gives_nan, gives_another, gives_much, gives_none, gives_what_is_used_up,
    gives_what_raises, exits_before_it_begins, Classy,
]  # fmt: skip
ARGUMENTS = [
    '{"n": 3}',
    '{"n":3.0, "items":[1,2]}',
    '{"n":3, "items":[123456789012345678901234567890]}',
    "{'n': 3}",
    '{"n": 3, "key": "canary"}',
    '{"n": "three"}',
    "[",
]


class Watcher:
    def __init__(self) -> None:
        self.told: list[Outcome] = []

    def approval_requested(self, request: object) -> None: ...

    def progress(self, call_id: str, part: object) -> None: ...

    def finished(self, outcome: Outcome) -> None:
        self.told.append(outcome)


class Waits(MemorySink):
    """A sink that has to wait."""

    def write(self, record: ToolInvocationRecord) -> Awaitable[None]:  # type: ignore[override]
        async def later() -> None:
            await asyncio.sleep(0)
            self.records.append(record)

        return later()


def runner_of(subject: Any, *, short: bool, **given: Any) -> ToolRunner:
    runner = ToolRunner([subject], **given)
    if not short:
        runner._short_ways = {}
    return runner


def plain(thing: Any) -> Any:
    """Without what differs between any two calls."""
    if isinstance(thing, ToolInvocationRecord):
        ended = thing.ended_at is not None and thing.seconds is not None
        changed: Any = {"started_at": 0, "ended_at": int(ended), "seconds": int(ended)}
        if thing.validator is not None:
            changed["validator"] = msgspec.structs.replace(thing.validator, compiled_at=0.0)
        return msgspec.structs.replace(thing, **changed)
    if isinstance(thing, Completed | Failed):
        shown = msgspec.structs.replace(thing, record=plain(thing.record))
        if isinstance(shown, Completed) and type(shown.value) not in (int, str, dict, type(None)):
            return msgspec.structs.replace(shown, value=repr(type(shown.value)))
        return shown
    return thing


async def seen(
    subject: Any,
    text: str,
    *,
    short: bool,
    scoped: bool,
    sink: type[MemorySink] = MemorySink,
    hydrated: bool = False,
) -> list[Any]:
    """All that one call, and a second one under the same id, leave behind."""
    kept, watcher = sink(), Watcher()
    tally = RunTally("run_7", tainted=False)
    scope = CallScope(tally, observer=watcher) if scoped else None
    runner = runner_of(subject, short=short, sinks=[kept], max_result_bytes=4096)
    call = ToolCall("run_7_0", "theirs", subject.get_definition().name, text)
    given = hydrate(call, runner.catalog) if hydrated else call
    caller = Caller("ada", ("role",))
    outcomes = [await runner.exec(given, caller=caller, scope=scope) for _ in range(2)]
    assert runner._setup.gate._running == 0
    assert runner._setup.memory.on_their_way() == []
    tally.seconds_per_tool = dict.fromkeys(tally.seconds_per_tool, 0.0)
    return [
        *map(plain, outcomes),
        [plain(record) for record in kept.records],
        [plain(outcome) for outcome in watcher.told],
        list(runner._setup.memory._known),
        msgspec.structs.replace(tally, started=0.0),
    ]


@pytest.mark.parametrize("sink", [MemorySink, Waits])
@pytest.mark.parametrize("scoped", [False, True])
@pytest.mark.parametrize("subject", TOOLS, ids=named)
async def test_both_ways_are_the_same(subject: Any, scoped: bool, sink: type[MemorySink]) -> None:
    for text in ARGUMENTS:
        for hydrated in (False, True):
            ways = [
                await seen(subject, text, short=s, scoped=scoped, sink=sink, hydrated=hydrated)
                for s in (True, False)
            ]
            assert ways[0] == ways[1], text


def test_which_tools_have_a_short_way() -> None:
    @tool(visible=ALL, exclusive=True)
    async def alone() -> int:
        """Run alone."""
        return 1

    @tool(visible=ALL, safe=False)
    async def risky() -> int:
        """Ask."""
        return 1

    @tool(visible=ALL)
    def blocking() -> int:
        """Run in a thread."""
        return 1

    def has(subject: Any, **given: Any) -> bool:
        return bool(ToolRunner([subject], **given)._short_ways)

    assert has(gives)
    assert not has(alone)
    assert not has(risky)
    assert not has(blocking)
    assert not has(gives, policy=lambda *_: Allow("so"))


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
    outcome = await runner.exec(ToolCall("c", "", "gives", '{"n":1}'))
    assert isinstance(outcome, Failed)
    assert outcome.error.code == "denied"


@pytest.mark.parametrize("policy", [Standard(), Standard("allow"), [Standard("allow")]], ids=repr)
async def test_a_standard_policy_of_ones_own_has_the_short_way(policy: Any) -> None:
    runner = ToolRunner([gives], policy=policy)
    assert runner._short_ways
    repaired = hydrate(ToolCall("c", "", "gives", '{"n":1}'), runner.catalog)
    assert isinstance(repaired, Hydrated)
    changed = msgspec.structs.replace(repaired.provenance, repaired=True)
    repaired = msgspec.structs.replace(repaired, provenance=changed)
    outcome = await runner.exec(repaired)
    assert isinstance(outcome, Failed)
    assert outcome.error.code == "approval_required"


@pytest.mark.parametrize("short", [True, False])
def test_without_an_event_loop_nothing_is_begun(short: bool) -> None:
    runner = runner_of(gives, short=short)
    with pytest.raises(RuntimeError, match="no running event loop"):
        runner.exec(ToolCall("c", "", "gives", '{"n":1}')).send(None)
    assert runner._setup.gate._running == 0
    assert runner._setup.memory.on_their_way() == []


@pytest.mark.parametrize("short", [True, False])
async def test_who_watches_may_stop_the_task(short: bool) -> None:
    class Stops(Watcher):
        def finished(self, outcome: Outcome) -> None:
            super().finished(outcome)
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    watcher, returned = Stops(), list[Outcome]()
    runner = runner_of(gives, short=short)

    async def run() -> None:
        scope = CallScope(RunTally("r"), observer=watcher)
        returned.append(await runner.exec(ToolCall("c", "", "gives", '{"n":1}'), scope=scope))

    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(run())
    assert len(watcher.told) == 1
    assert returned == []


@pytest.mark.parametrize("short", [True, False])
def test_a_program_that_is_interrupted_while_a_result_is_looked_at(short: bool) -> None:
    class Interrupts:
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise KeyboardInterrupt

    @tool(visible=ALL)
    async def interrupts() -> Any:
        """Give it."""
        return Interrupts()

    runner = runner_of(interrupts, short=short, sinks=[sink := MemorySink()])
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(runner.exec(ToolCall("c", "", "interrupts", "{}")))
    assert [record.error and record.error.code for record in sink.records] == ["cancelled"]
    assert runner._setup.gate._running == 0
    assert runner._setup.memory.on_their_way() == []


async def test_a_tainted_run_and_a_full_gate_take_the_long_way() -> None:
    runner = ToolRunner([gives], concurrency=1)
    call = ToolCall("a", "", "gives", '{"n":1}')
    outcome = await runner.exec(call, scope=CallScope(RunTally("", tainted=True)))
    assert isinstance(outcome, Failed)
    assert outcome.error.code == "approval_required"

    async def hold() -> Any:  # in a task, and so a context, of its own
        return runner._setup.gate.try_enter(False)

    place = await asyncio.ensure_future(hold())
    assert place is not None
    second = asyncio.ensure_future(runner.exec(ToolCall("b", "", "gives", '{"n":1}')))
    await asyncio.sleep(0)
    assert not second.done()
    runner._setup.gate.leave(place)
    assert isinstance(await second, Completed)


@pytest.mark.parametrize("short", [True, False])
async def test_a_tool_that_has_its_task_cancelled(short: bool) -> None:
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
        runner = runner_of(cancels, short=short, sinks=[sink])
        text = '{"waits": true}' if waits_ else '{"waits": false}'
        task = asyncio.ensure_future(runner.exec(ToolCall("c", "", "cancels", text)))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [record.status for record in sink.records] == [status]
        assert runner._setup.gate._running == 0
        assert runner._setup.memory.on_their_way() == []


@pytest.mark.parametrize("short", [True, False])
async def test_a_sink_that_fails_is_heard_of(short: bool) -> None:
    class Fails(MemorySink):
        def write(self, record: ToolInvocationRecord) -> None:
            super().write(record)
            raise OSError("no space left")

    watcher, sink, other = Watcher(), Fails(), MemorySink()
    runner = runner_of(gives, short=short, sinks=[sink, other])
    scope = CallScope(RunTally("r"), observer=watcher)
    with pytest.raises(OSError, match="no space left"):
        await runner.exec(ToolCall("c", "", "gives", '{"n":1}'), scope=scope)
    assert len(sink.records) == len(other.records) == len(watcher.told) == 1


@pytest.mark.parametrize("short", [True, False])
async def test_a_tool_that_calls_its_own_runner(short: bool) -> None:
    runners: list[ToolRunner] = []

    @tool(visible=ALL)
    async def down(depth: int) -> int:
        """Go down."""
        if depth == 0:
            return 0
        call = ToolCall(f"d{depth}", "", "down", f'{{"depth":{depth - 1}}}')
        outcome = await runners[0].exec(call)
        assert isinstance(outcome, Completed)
        return int(outcome.value) + 1

    runners.append(runner_of(down, short=short, concurrency=1))
    outcome = await runners[0].exec(ToolCall("top", "", "down", '{"depth":4}'))
    assert isinstance(outcome, Completed)
    assert outcome.value == 4
    assert runners[0]._setup.gate._running == 0


async def test_a_call_that_was_changed_after_hydration_is_recorded_as_it_ran() -> None:
    @tool(visible=ALL)
    async def counts(items: Any) -> int:
        """Count."""
        return len(items)

    runner = ToolRunner([counts], sinks=[sink := MemorySink()])
    hydrated = hydrate(ToolCall("c", "", "counts", '{"items":[1]}'), runner.catalog)
    assert hydrated.success
    hydrated.arguments["items"].append(5)  # type: ignore[union-attr]
    outcome = await runner.exec(hydrated)
    assert isinstance(outcome, Completed)
    assert (outcome.value, sink.records[0].arguments) == (2, {"items": [1, 5]})


def test_a_call_whose_loop_is_gone_leaves_nothing_claimed() -> None:
    runner = ToolRunner([waits])
    steps = runner.exec(ToolCall("c", "", "waits", '{"n":1}'))

    async def begin() -> None:
        steps.send(None)

    asyncio.run(begin())
    assert runner._setup.gate._running == 1
    steps.close()
    assert runner._setup.gate._running == 0
    assert runner._setup.memory.on_their_way() == []
